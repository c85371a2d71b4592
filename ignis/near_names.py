"""What somebody meant who wrote a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["meant", "near_name"]


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is close to a misspelt one; None where none is."""
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, 0.8)), None)


def meant(name: object, known: Iterable[str]) -> str:
    """For an error, before the list of what is known: ``is X meant? ``, or nothing."""
    near = near_name(name, known) if isinstance(name, str) else None
    return f"is {near} meant? " if near is not None else ""
