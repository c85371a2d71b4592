"""What a pass of the sweeper did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SweepResult"]


@dataclass
class SweepResult:
    """What one pass did.

    Attributes:
        queues: looked at.
        swept: messages moved from main magazines into sidelines.
        sideline_swept: put back within a sideline.
        expired: retired because their time to live had run out.
        failed_queues: could not be swept; the log says why.
        untimed_queues: swept by proof of death alone, because the age of their claims cannot be known.
    """

    queues: int = 0
    swept: int = 0
    sideline_swept: int = 0
    expired: int = 0
    failed_queues: int = 0
    untimed_queues: int = 0

    def add(self, part: SweepResult) -> None:
        """Adds another's figures, but for the number of queues."""
        for name in ("swept", "sideline_swept", "expired", "failed_queues", "untimed_queues"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
