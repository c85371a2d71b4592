"""Pointers behind the low-water mark that were claimed and never had a record, where Java may still write one.

A Java producer reserves a pointer and then writes the record, however long that takes, and is told that it was stored. The
mark cannot wait for it. So when the mark passes a pointer at which only a claim stands, the pointer is kept in a list of its
shard; every sweep looks there too. It leaves the list when the claim is gone: the record came and was moved or deleted, or
the claim's time to live ended.
"""

from __future__ import annotations

import logging
import time

from ignis.log_format import event_text
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection, policy, write_entry
from ignis.storage.aerospike.status_codes import FILTERED, NOT_FOUND, OK

__all__ = ["MAX_OPEN", "OPEN_TTL_S", "OpenPointers"]

log = logging.getLogger("ignis.storage.aerospike")

OPEN_TTL_S = 30 * 86_400
"""How long a claim waits for its record. A producer that takes longer is taken for dead."""
MAX_OPEN = 10_000
"""A shard; more would not fit into a small record. The mark waits before the next."""


class OpenPointers:
    """Keeps the list of pointers whose record may still come. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def read(self, magazine: Magazine, shard: int) -> frozenset[int]:
        """The shard's list; one call, and none where only ignis loads. The pointers have been looked at."""
        view = magazine.views[shard]
        if not view.shared:
            return view.open
        found = self._connection.get("open", self._catalogue.open_key(magazine, shard))
        kept = found[0].get(layout.OPEN) if found is not None else None
        view.open = frozenset(kept or ())
        return view.open

    def note(self, magazine: Magazine, shard: int, pointers: list[int]) -> set[int]:
        """Puts pointers on the list; returns those that are on it."""
        view = magazine.views[shard]
        pointers = sorted(pointers)[: max(0, MAX_OPEN - len(view.open))]
        if not pointers:
            return set()
        log.warning(
            event_text(
                "pointers_open",
                "%d pointer(s) of shard %d of %s were reserved by another's producer and have no record; the first is %d"),
            len(pointers), shard, magazine.name, pointers[0],
        )  # fmt: skip
        now_ms = int(time.time() * 1000)
        put = expressions.put_in_map(layout.OPEN, dict.fromkeys(pointers, now_ms))
        how = policy(ttl=layout.TTL_NEVER)
        self._connection.send(
            "open", [write_entry(self._catalogue.open_key(magazine, shard), [put], how)]
        )  # fmt: skip
        view.open |= frozenset(pointers)
        # From now on the claim does not stay for ever; a record that joins it has its own time to live.
        keep = policy("update", ttl=OPEN_TTL_S, only_if=expressions.still_vacant)
        places = [(shard, pointer) for pointer in pointers]
        self._connection.operate(
            "open", self._catalogue.data_keys(magazine, places), [expressions.write(layout.OPEN, now_ms)], keep,
            allowed=(OK, FILTERED, NOT_FOUND),
        )  # fmt: skip
        return set(pointers)

    def forget(self, magazine: Magazine, shard: int, pointers: list[int]) -> None:
        """Takes pointers off the list."""
        if not pointers:
            return
        entry = write_entry(
            self._catalogue.open_key(magazine, shard), [expressions.remove_from_map(layout.OPEN, pointers)],
            policy("update", ttl=layout.TTL_NEVER),
        )  # fmt: skip
        self._connection.send("open", [entry], allowed=(OK, NOT_FOUND))
        magazine.views[shard].open -= frozenset(pointers)
