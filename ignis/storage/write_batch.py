"""Writes and claims that are made at once, by a thread that must never wait, and several writes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ignis.native import PackedBatch
from ignis.native.lone import LoneAck, LoneLane, LoneRequest
from ignis.storage.records import Claim, FireResult, Pointers

__all__ = ["AtOnce", "ClaimsWriter", "DirectReceiver", "FiredInto", "LoneReceiver", "PendingSync", "WriteBatch"]


class ClaimsWriter(Protocol):
    """Where a claim's records are put as they are found. A store in C puts them into `ignis.native.wire.ClaimsFrame` without
    making an object for each."""

    def add(self, claims: Sequence[Claim]) -> None:
        """Adds claims with their records."""

    def add_batch(self, shard: int, first: int, batch: PackedBatch) -> None:
        """Adds the records of a batch, whose pointers are those from ``first`` on."""


class FiredInto(NamedTuple):
    """`ignis.storage.records.FireResult` without the claims, which are in the writer."""

    holes: dict[int, list[int]]
    expired: int
    more: bool


class DirectReceiver(Protocol):
    """Who waits for the very messages that are being loaded."""

    @property
    def owner(self) -> str:
        """In whose name they are claimed."""

    def give(self, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int]) -> None:
        """The records of these batches, with pointers from those on, are this taker's, if the write succeeds. Called when that is
        all but certain and before it has happened, so that a message is on its way while it is being stored; from within the
        store, which must not be called.

        When the write then fails after all, its pointers will be another message's: nobody may account for them any more.
        """


class LoneReceiver(Protocol):
    """`DirectReceiver` of a request that was received alone."""

    @property
    def owner(self) -> str:
        """In whose name they are claimed."""

    def give_lone(self, lone: LoneRequest) -> None:
        """Its messages are this taker's. As `DirectReceiver.give`."""


class WriteBatch:
    """One load or one delete.

    Args:
        magazine: which.
        batches: (shard, batch), what is to be loaded; None = this is a delete.
        ttl_s: of the load; None = never expires.
        pointers: what is to be deleted.
        taker: who would be given the loaded messages at once, if nothing older of their shards is pending. A store that
            cannot do that ignores it, and they are claimed as any others.

    Afterwards ``done`` says whether the write was made (or refused for good, with ``error``). Where it was not, `load` or
    `delete` is to be called in a thread that may wait, with what ``batches`` and ``pointers`` are then.
    """

    __slots__ = (
        "batches",
        "count",
        "done",
        "durable",
        "error",
        "firsts",
        "given",
        "magazine",
        "pointers",
        "taker",
        "ttl_s",
    )

    def __init__(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]] | None = None,
        ttl_s: float | None = None,
        pointers: Pointers | None = None,
        taker: DirectReceiver | None = None,
    ) -> None:
        self.magazine = magazine
        self.batches = batches
        self.ttl_s = ttl_s
        self.pointers: Pointers = pointers or {}
        self.taker = taker
        self.given = False
        """The taker was given the messages. Where there is an ``error``, or the write is not ``done``, that must be undone."""
        self.done = False
        self.durable = False
        """As durable as the magazine promises; else it is once `PendingSync.flush` has returned."""
        self.error: BaseException | None = None
        self.firsts: list[int] = []
        """Of a load: the first pointer of each batch."""
        self.count = 0
        """Of a delete: how many records were still there."""


class PendingSync(Protocol):
    """What is done and not durable yet."""

    def flush(self) -> None:
        """Waits for the disk. From any thread, once. Raises StoreFailedError: nobody may be told that the writes were
        made, though others may have seen them."""


class AtOnce:
    """What of a store's magazines can be tried without waiting; here: nothing. Thread-safe."""

    quick = False
    """Whether small writes and claims usually take microseconds, so that an event loop may try them itself: a change of
    threads would cost more than they do."""

    def try_together(self, writes: Sequence[WriteBatch]) -> PendingSync | None:
        """Makes small loads and deletes, as many as can be in one transaction, without waiting for a lock, for room or for
        the disk. Each write then says what became of it; what could not be made at once was not begun.

        What was made can be seen, and fired, when this returns. Returns what must be flushed before anybody is told of
        those that are not ``durable`` yet, or None when there is nothing to flush.
        """
        return None

    def try_load_lone(
        self,
        magazine: str,
        lone: LoneRequest,
        shards: int,
        any_shard: int,
        ttl_s: float | None,
        taker: LoneReceiver | None = None,
    ) -> PendingSync | bool:
        """A small load by itself, of a request where it was received, as `try_together` makes it: True when it is as durable as
        the magazine promises, or what must be flushed before anybody is told. With a taker it is given the messages.

        Args:
            shards: of the magazine. any_shard: where a message goes that names neither a shard nor a key.

        False when it would have to wait, anything is wrong with it, or older messages go before the taker's: nothing was
        made. Raises why it is refused. What a taker was given is to be undone in both cases.
        """
        return False

    def lone_lane(self, magazine: str) -> LoneLane | None:
        """A straighter way than `try_load_lone`, for who knows when it is to be given up: when the magazine is declared anew or
        dropped. None where there is none."""
        return None

    def try_delete_lone(self, magazine: str, ack: LoneAck) -> PendingSync | bool:
        """A small delete by itself, of a request where it was received, as `try_together` makes it: True when it is as durable
        as the magazine promises, or what must be flushed before anybody is told.

        False when it would have to wait, or anything is wrong with it: nothing was made. Raises why it is refused.
        """
        return False

    def try_fire(self, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20) -> FireResult | None:
        """`MagazineStore.fire` over all shards, or None when that would have to wait, or would retire expired records:
        nothing was claimed then."""
        return None

    def try_fire_into(
        self, writer: ClaimsWriter, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20
    ) -> FiredInto | None:
        """`try_fire` into a writer."""
        found = self.try_fire(magazine, limit, owner, max_bytes)
        if found is None:
            return None
        writer.add(found.claims)
        return FiredInto(found.holes, found.expired, found.more)
