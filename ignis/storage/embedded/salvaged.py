"""What can still be read of a damaged range of the log, by the rules of ``csrc/ignis_store_salvage.h``."""

from __future__ import annotations

from dataclasses import dataclass

from ignis.native.store import salvage
from ignis.storage.embedded.log_files import Segment, seal_entry

__all__ = ["Salvaged", "salvaged"]


@dataclass(frozen=True)
class Salvaged:
    """One entry of a damaged range: ``entry`` is what is to stand there; records are counted."""

    position: int
    next: int
    entry: bytes
    readable: int
    unreadable: int


def salvaged(segment: Segment, position: int, until: int) -> list[Salvaged]:
    """The entries of a damaged range in which records hold, in order."""
    found = []
    for begin, end in segment.damaged_entries(position, min(until, segment.readable_end)):
        got = salvage(segment.bytes_at(begin, end - begin), segment.salt, begin)
        if got is not None:
            kind, payload, readable, unreadable, behind = got
            found.append(Salvaged(begin, behind, seal_entry(kind, payload, segment.salt, begin), readable, unreadable))
    return found
