"""The parts of a store that a relay's producer does not have: every call says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ignis.errors import PublishOnlyError
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    ArrayStore,
    Fence,
    FireResult,
    LockRecord,
    LockStore,
    LockTable,
    MagazineStore,
    Pointers,
    Run,
    ShardState,
    Transfer,
)
from ignis.storage.later import Delayed
from ignis.storage.purging import PURGE_BATCH, Purged

__all__ = ["NoArrays", "NoLocks", "NoReading", "refuse"]


def refuse(call: str, url: str) -> NoReturn:
    """Raises PublishOnlyError; ``call`` says in the words of the docs what was wanted."""
    raise PublishOnlyError(call, url)


class NoReading(MagazineStore):
    """A magazine store without anything that looks at messages or takes them out."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        refuse("claiming messages", self.url)

    def held(self, magazine: str, owner: str) -> list[Run]:
        refuse("claimed messages", self.url)

    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        refuse("claimed messages", self.url)

    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        refuse("giving messages back", self.url)

    def delete(self, magazine: str, pointers: Pointers) -> int:
        refuse("acknowledging messages", self.url)

    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        refuse("removing messages", self.url)

    def purge(
        self, magazine: str, limit: int = PURGE_BATCH, *, in_flight: bool = False, left: Mapping[int, Any] | None = None
    ) -> Purged:
        refuse("removing messages", self.url)

    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        refuse("looking at messages", self.url)

    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        refuse("looking at messages", self.url)

    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        refuse("moving messages", self.url)

    def abandoned(
        self,
        magazine: str,
        shard: int,
        fired_before_ms: int,
        limit: int,
        *,
        dead_owners: bool = True,
        owner: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Abandoned]:
        refuse("sweeping", self.url)

    def expire(self, magazine: str, limit: int = 10_000) -> int:
        refuse("removing what has expired", self.url)

    def metadata(self, magazine: str) -> list[ShardState]:
        refuse("counting messages", self.url)

    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        refuse("the age of messages", self.url)

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        refuse("waiting for messages", self.url)

    def wake(self, magazine: str) -> None:
        refuse("waking consumers", self.url)

    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        refuse("moving messages", self.url)

    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        refuse("looking at delayed messages", self.url)

    def run_now(self, magazine: str, pointers: Pointers) -> int:
        refuse("moving messages", self.url)

    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        refuse("removing messages", self.url)

    def delayed(self, magazine: str) -> int:
        refuse("counting messages", self.url)

    def expired_later(self, magazine: str) -> int:
        refuse("counting messages", self.url)

    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        refuse("removing a queue", self.url)


class NoLocks(LockStore):
    """Locks, epochs and lock tables, none of which there is."""

    def __init__(self, url: str) -> None:
        self.url = url

    def table(self, name: str, farm_id: str) -> LockTable:
        refuse("locks", self.url)

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        refuse("locks", self.url)

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        refuse("locks", self.url)

    def release(self, name: str, owner: str) -> bool:
        refuse("locks", self.url)

    def get(self, name: str) -> LockRecord | None:
        refuse("locks", self.url)

    def next_epoch(self, scope: str) -> int:
        refuse("epochs", self.url)

    def raise_epoch(self, scope: str, epoch: int) -> None:
        refuse("epochs", self.url)

    def epoch(self, scope: str) -> int:
        refuse("epochs", self.url)


class NoArrays(ArrayStore):
    """Array queues, of which there are none."""

    def __init__(self, url: str) -> None:
        self.url = url

    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        refuse("array queues", self.url)

    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        refuse("array queues", self.url)

    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        refuse("array queues", self.url)

    def size(self, name: str, bin_name: str) -> int:
        refuse("array queues", self.url)
