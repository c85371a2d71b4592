"""What can still be read of a damaged range of the log, by the rules of ``csrc/ignis_store_salvage.h``."""

from __future__ import annotations

from dataclasses import dataclass

from ignis.native.store import Places, salvage
from ignis.storage.embedded.log_files import ENTRY_HEADER_BYTES, Entry, Segment, seal_entry

__all__ = ["PlacesRead", "Salvaged", "salvaged"]

_PLACED = {"open", "catalogue", "load", "transfer", "claimed", "once"}


@dataclass(frozen=True)
class Salvaged:
    """One entry of a damaged range: ``entry`` is what is to stand there, None when nothing of it is left; records are counted."""

    position: int
    next: int
    entry: bytes | None
    readable: int
    unreadable: int


def salvaged(segment: Segment, position: int, until: int, places: Places) -> list[Salvaged]:
    """The entries of a damaged range in which records were, in order. ``places``: those before it, and then those behind it."""
    found = []
    for begin, end in segment.damaged_entries(position, min(until, segment.readable_end)):
        kind, payload, readable, unreadable, behind = salvage(
            segment.bytes_at(begin, end - begin), segment.salt, begin, places
        )
        if payload is not None:
            entry = seal_entry(kind, payload, segment.salt, begin)
            found.append(Salvaged(begin, behind, entry, readable, unreadable))
        elif unreadable:
            found.append(Salvaged(begin, end, None, 0, unreadable))
    return found


class PlacesRead:
    """The places of a log that is read from its beginning on, or from behind a gap."""

    def __init__(self) -> None:
        self.places = Places()
        self._behind = 0

    def begin(self, segment: Segment, position: int) -> None:
        """Where something was left out nothing is known any more."""
        if position != self._behind:
            self.places = Places()
        self._behind = segment.limit

    def see(self, segment: Segment, entry: Entry) -> int:
        """How many messages went before it of which nothing was read or counted."""
        if entry.kind not in _PLACED:
            return 0
        begin = entry.position + ENTRY_HEADER_BYTES
        return self.places.see(entry.type, segment.bytes_at(begin, entry.next - begin))
