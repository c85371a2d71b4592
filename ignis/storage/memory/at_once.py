"""Writes and claims of the memory store by a thread that must not wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ignis.storage.base import FireResult, MagazineStore
from ignis.storage.write_batch import WriteBatch

if TYPE_CHECKING:
    from ignis.storage.memory.store import MemoryStore

__all__ = ["MemoryAtOnce"]


class MemoryAtOnce(MagazineStore):
    """Writes and claims in a memory store without ever waiting. The store's one lock is only tried."""

    quick = True
    calls_back = True
    _store: MemoryStore

    def try_together(self, writes: Sequence[WriteBatch]) -> None:
        if not self._store.content.changed.acquire(blocking=False):
            return
        try:
            for write in writes:
                try:
                    if write.batches is None:
                        write.count = self.delete(write.magazine, write.pointers)
                    else:
                        write.firsts = self.load(write.magazine, write.batches, write.ttl_s)
                except Exception as exc:
                    write.error = exc
                write.done = write.durable = True
        finally:
            self._store.content.changed.release()

    def try_fire(self, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20) -> FireResult | None:
        if not self._store.content.changed.acquire(blocking=False):
            return None
        try:
            return self.fire(magazine, limit, owner, max_bytes=max_bytes)
        finally:
            self._store.content.changed.release()
