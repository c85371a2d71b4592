"""What ``ignis doctor URL`` finds, and from where on a figure is a problem."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "SKEW_S", "Finding"]

SKEW_S = 5.0
FULL = 0.9


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``grade``: ``ok``, ``note`` (all goes on) or ``problem``; ``do``: what to do about it."""

    code: str
    grade: str
    what: str
    do: str = ""
