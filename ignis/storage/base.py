"""The storage contract: what every store promises. It gives out the values that cross it, which `ignis.storage.records` has, and
the facets beside the messages, which `ignis.storage.facets` has.

A :class:`Store` is opened from a URL and offers four facets: ``magazines`` (the messages), ``queues`` (their settings),
``locks`` (mutual exclusion and fencing) and ``arrays`` (queues of plain values). One contract suite (``tests/contract``) runs on
every store.

Words. A *magazine* is a sharded, append-only sequence of records. A *pointer* is a record's number in its shard:
they rise, and none is used twice; the first is 1, and a store may leave numbers out when it is opened. *Load* appends,
*fire* claims, *delete* retires. A record is the bytes of ``csrc/ignis_record.h``: an envelope and a body; a store never
looks into the body.

All magazine calls take batches and are thread-safe. Unless a docstring says otherwise a call is atomic per call
and durable on return as the magazine's durability says: ``sync`` survives a power cut, ``interval`` survives
``kill -9`` and loses at most the interval in a power cut, ``none`` survives ``kill -9`` and leaves the rest to the
operating system.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignis.clock import Clock
from ignis.config import LEAST_STUCK_AFTER_S, PublisherSettings
from ignis.native import PackedBatch, Watch
from ignis.native.store import Recall
from ignis.storage import transactions
from ignis.storage.columns import RecordColumns, columns_of
from ignis.storage.facets import ArrayStore, LockStore, LockTable, QueueStore
from ignis.storage.later import KeepsLater
from ignis.storage.pending_load import BeginsLoads
from ignis.storage.purging import Purges
from ignis.storage.records import (
    KEEP_TTL,
    Abandoned,
    Claim,
    Fence,
    FireResult,
    LoadedOnce,
    LockRecord,
    Owner,
    Pointers,
    Process,
    QueueRecord,
    Run,
    ShardState,
    Transfer,
    joined_runs,
    runs_of_pointers,
)
from ignis.storage.removing import remove_queue
from ignis.storage.write_batch import AtOnce, ClaimsWriter, FiredInto

__all__ = [
    "KEEP_TTL",
    "MOST_FRUITLESS",
    "Abandoned",
    "ArrayStore",
    "Claim",
    "Fence",
    "FireResult",
    "LoadedOnce",
    "LockRecord",
    "LockStore",
    "LockTable",
    "MagazineStore",
    "Owner",
    "Pointers",
    "Process",
    "QueueRecord",
    "QueueStore",
    "Run",
    "ShardState",
    "Store",
    "Transfer",
    "renewal_period_s",
]

MOST_FRUITLESS = 16
"""So often in a row `MagazineStore.fire` is called again when it brought nothing and says that there is more: others were
quicker, or much had expired. After that what is there cannot be had now."""

RENEWALS = 4
"""How often within a queue's stuck time a living owner renews what it works on, at least."""


def renewal_period_s(stuck_after_s: float) -> float:
    """How long a living owner may leave what it works on without renewing it. As if the stuck time were the shortest that there
    is: anybody may set it to that, and sweeps by it before the owner has learnt of it."""
    return min(max(stuck_after_s, 1.0), LEAST_STUCK_AFTER_S) / RENEWALS


class MagazineStore(AtOnce, BeginsLoads, KeepsLater, Purges, abc.ABC):
    """The messages. What a store may offer on top is in `AtOnce`, for callers that must not wait, and in
    `KeepsLater`, for messages that wait for their time."""

    @abc.abstractmethod
    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        """Makes the magazine known. Idempotent.

        Raises QueueMismatchError when it exists with another durability, or with more shards than asked for while
        those hold records. More shards than before is fine.
        """

    @abc.abstractmethod
    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        """Appends each (shard, batch) at that shard's tail, in order (a shard may occur several times); returns the first
        pointer of each batch. One transaction where there are any.

        ``ttl_s`` None = never expires. A batch is sealed in place and cannot be loaded twice. Concurrent loads of
        several threads share one commit. Raises StoreFullError (nothing stored), StoreFailedError,
        QueueNotFoundError (not declared), MessageTooLargeError: it is more than the store takes at once, see `most_load_bytes`.
        """

    def load_records(self, magazine: str, shard: int, records: Sequence[bytes], ttl_s: float | None = None) -> int:
        """`load` for one shard and plain record bytes; returns the first pointer."""
        return self.load(magazine, [(shard, PackedBatch.pack(records))], ttl_s)[0]

    @property
    def most_load_bytes(self) -> int:
        """So many bytes of records one `load` should have at most, unless one record alone has more: who has more divides it."""
        return transactions.MOST_BYTES

    takes_bodies = False
    """Whether `load_body` can do anything."""

    def load_body(
        self, magazine: str, shard: int, body: bytes, flags: int, ttl_s: float | None
    ) -> tuple[str, int, int] | None:
        """`load` of one message that has this body and no key, without a batch made of it, where that can be done at once.

        Args:
            flags: the codec of the body.

        Returns its id, its shard and its pointer; None when nothing was done, and it is to be loaded like any other. Raises what
        `load` raises.
        """
        return None

    tells_repeats = False
    """Whether `load_once` can tell that an id was loaded before."""

    def load_once(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        remember_s: float,
        dues_ms: Sequence[Sequence[int]] | None = None,
    ) -> list[LoadedOnce]:
        """`load`, but for the records whose id an earlier `load_once` of this magazine remembers: those are left out.
        With ``dues_ms`` `KeepsLater.load_later`, but for these: an id is known whether its message was delayed or not.

        Ids and records are stored in one transaction, so that of two loads of the same records, at the same time or
        one after a crash of the other, one stores each. An id is remembered for at least ``remember_s`` seconds from
        its load on, at most half as long again (an hour at the least), whether its message is still there or not. It costs
        about 70 bytes.

        Only where ``tells_repeats`` is true. The other stores load everything: at least once.
        """
        if dues_ms is None:
            firsts = self.load(magazine, batches, ttl_s)
        else:
            firsts = self.load_later(magazine, batches, dues_ms, ttl_s)
        return [LoadedOnce(first, batch.count, 0) for first, (_, batch) in zip(firsts, batches, strict=True)]

    @abc.abstractmethod
    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        """Claims up to ``limit`` records over the shards, oldest first within a shard, starting at a shard that rotates.

        No pointer is handed out twice. The fire time and the owner are stored with the claim; an `Owner` names another
        process than this one. ``max_bytes`` bounds
        the sum of the records' sizes (at least one record is handed out). A claim survives ``kill -9`` of anybody;
        after a power cut what was claimed and not deleted is fired again.
        """

    def fire_into(
        self,
        writer: ClaimsWriter,
        magazine: str,
        limit: int,
        owner: str,
        shards: Sequence[int] | None = None,
        max_bytes: int = 64 << 20,
    ) -> FiredInto:
        """`fire` into a writer."""
        found = self.fire(magazine, limit, owner, shards, max_bytes)
        writer.add(found.claims)
        return FiredInto(found.holes, found.expired, found.more)

    def claim(self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None) -> list[Run]:
        """`fire` without the records, for a job whose parts `peek` them: up to ``limit`` in runs, ``[]`` when nothing is
        pending.

        ``owner`` names the job, so that `held` finds its claims again in another process. The claims end with the job
        or, untouched for the queue's stuck time, with the sweeper; never with the death of the process that made
        them. Durable as those of `fire`.
        """
        runs: list[Run] = []
        fruitless = 0
        while limit > 0:
            result = self.fire(magazine, limit, owner, shards)
            runs += (run for claim in result.claims for run in runs_of_pointers(claim.shard, claim.pointers))
            limit -= result.total()
            fruitless = 0 if result.claims else fruitless + 1
            if not result.more or fruitless > MOST_FRUITLESS:
                break
        return joined_runs(runs)

    @abc.abstractmethod
    def held(self, magazine: str, owner: str) -> list[Run]:
        """What is claimed in that owner's name and still there, by shard and pointer."""

    def renew(self, magazine: str, owner: str) -> bool:
        """Starts the stuck time of all claims in that owner's name anew: for a job. False where the store's claims cannot be
        renewed: the sweeper takes what is not finished within the stuck time."""
        pointers: dict[int, list[int]] = {}
        for run in self.held(magazine, owner):
            pointers.setdefault(run.shard, []).extend(range(run.first, run.last + 1))
        if pointers:
            self.renew_claims(magazine, pointers, owner)
        return True

    @abc.abstractmethod
    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        """Starts the stuck time of these claims anew, as far as ``owner`` still holds them; returns those it does not hold
        (any more), by shard and ascending: finished, swept, of somebody else, or never there. With ``to_owner`` the claims
        are that one's from now on. Nothing else about a claim changes, and claims that are not named age on. What it costs
        grows with what is held, and not with the numbers that a range, or `ignis.storage.runs.Runs`, names.

        For what takes long, a few times within the stuck time: not for every message. Durable as claims are."""

    def claimants(self, magazine: str) -> dict[str, bool]:
        """In whose name anything is claimed, and of each whether its process is provably dead. ``{}`` where the store cannot
        tell."""
        return {}

    def dead_claimants(self) -> frozenset[str]:
        """In whose name anything is claimed in any magazine, of those stores that are provably closed or dead. It costs what
        there are claimants, not claims, so it may be asked every few seconds. Empty where a store cannot tell that cheaply."""
        return frozenset()

    @abc.abstractmethod
    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        """Puts fired records back at their shard's tail with the remaining time to live, corrects the counters,
        removes the old ones; returns how many there were. What is gone already is skipped. Any number may be named: where they
        have many bytes, in several transactions. Raises StaleEpochError when the fence is old: no more was put back."""

    @abc.abstractmethod
    def delete(self, magazine: str, pointers: Pointers) -> int:
        """Retires records; returns how many were still there. Idempotent: what is gone changes nothing.
        Concurrent calls share one commit."""

    @abc.abstractmethod
    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        """Shard -> pointer -> record, for those that exist (fired or not). Never claims. None = corrupt."""

    def peek_columns(self, magazine: str, shard: int, pointers: range, *, lines: bool = False) -> RecordColumns:
        """`peek` in one shard, taken apart into columns; ``lines``: with a newline behind each body."""
        return columns_of(self.peek(magazine, {shard: pointers}).get(shard, {}), lines=lines)

    @abc.abstractmethod
    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        """(shard, pointer, record) of what exists, in shard and pointer order, beginning behind ``after``: to browse."""

    def scan_within(
        self, magazine: str, *, after: Mapping[int, int], limit: int, max_bytes: int, pending_only: bool = False
    ) -> tuple[list[tuple[int, int, bytes | None]], bool]:
        """`scan` up to where the records have so many bytes, or little more; one comes in any case. And whether it stopped
        before ``limit`` with more to come. A store that reads by the number alone reads some at a time, which may have more; a
        broker's answer has a bound of its own."""
        rows: list[tuple[int, int, bytes | None]] = []
        seen, step = dict(after), 64
        while max_bytes > 0 and len(rows) < limit:
            asked = min(step, limit - len(rows))
            page = self.scan(magazine, after=seen, limit=asked, pending_only=pending_only)
            for row in page:
                if max_bytes <= 0:
                    return rows, True
                rows.append(row)
                max_bytes -= len(row[2] or b"") + transactions.BESIDE_BYTES
            if len(page) < asked:
                return rows, False
            shard, pointer, _ = page[-1]
            seen.update(dict.fromkeys(range(shard), 1 << 62))
            seen[shard] = pointer
            step = min(1_000, step * 2)
        return rows, len(rows) < limit

    @abc.abstractmethod
    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        """Loads into ``target``, then deletes from ``source``: one transaction where the store has them and both
        magazines share a durability, that order where not. Items that have more bytes than `ignis.storage.transactions` allows
        one are moved by several, in their order. Items whose source record is gone are skipped (somebody
        else finished them); returns how many moved. Raises StaleEpochError when the fence is old: no more moved.

        Each record keeps the end of its time to live, whatever it becomes: a message does not live longer because it
        failed. ``ttl_s`` gives all of them another one; None = never expires."""

    @abc.abstractmethod
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
        """Records fired before ``fired_before_ms`` that still exist, in pointer order, at most ``limit``; with
        ``dead_owners`` also those whose owner is provably dead, whenever they were fired (a store that cannot prove
        a death returns none of these). With ``owner`` only what that one claimed, whenever it was fired: for a caller
        who knows that its process is gone. Claims whose records are all gone are forgotten on the way.

        ``max_bytes``: of the records; one comes in any case. For who asks again until nothing comes. A broker gives no more than
        its answer has room for, whatever it was asked for, and a store that reads by the number alone may give more."""

    @abc.abstractmethod
    def expire(self, magazine: str, limit: int = 10_000) -> int:
        """Retires up to ``limit`` unfired records at the shards' heads whose time to live has run out. They are counted in
        `metadata`, as are those that a `fire` meets, and a warning says so."""

    @abc.abstractmethod
    def metadata(self, magazine: str) -> list[ShardState]:
        """Pointers and counters per shard. A snapshot per shard, not over shards."""

    @abc.abstractmethod
    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        """When the oldest pending record was enqueued, or None when none is pending."""

    @abc.abstractmethod
    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        """Blocks until something was loaded since ``seen`` or the timeout runs out; returns the new sequence number.
        ``wait(m, seen=-1, 0)`` only reads it: read it *before* a fire that comes back empty. A store without
        notification sleeps. May return early."""

    def idle(self, magazine: str, seen: int, timeout_s: float) -> int:
        """`wait` for who claims right after, whatever the answer: a store that must be asked may leave that to the claim."""
        return self.wait(magazine, seen, timeout_s)

    def forewarn(self, magazine: str) -> None:
        """A load of this magazine is about to be made: a store whose consumers sleep on this machine may wake them now, so that
        they run when it is. Cheap; promises nothing, raises nothing."""

    def fire_next(
        self,
        magazine: str,
        limit: int,
        owner: str,
        seen: int,
        timeout_s: float,
        recall: Recall,
        max_bytes: int = 64 << 20,
    ) -> tuple[int, FireResult | None] | None:
        """`wait` and the `fire` that follows it, in one call that needs no interpreter in between; None where a store cannot.

        ``recall`` ends it without a claim: set it, then `wake`. Returns (sequence number before the claim, what was claimed), or
        (number, None) when the time ran out, it was recalled, or a claim has to be made by `fire`. Where `holds_fires_s` is not 0
        the number is ``seen`` then only if there was nothing to claim all the while.
        """
        return None

    @property
    def holds_fires_s(self) -> float:
        """For how long one `fire_next` may wait: who holds it back sees every load, so that no look in between is needed. 0 = no
        longer than the caller would wait between two looks."""
        return 0.0

    calls_back = False
    """Whether `on_load` does, and `try_fire` leaves nothing for later: who must not wait may claim without a thread."""

    def on_load(self, magazine: str, seen: int, call: Callable[[], None]) -> Callable[[], None] | None:
        """`wait` without a thread: calls back once when something was loaded since ``seen``, at once if it has been, and may
        do so early. ``call`` must neither wait nor raise; it may be made from any thread, and is when the store closes.

        Returns what takes the wish back, after which it may be called once more; None where the store can only `wait`.
        """
        return None

    def watch(self, magazine: str, seen: int, watch: Watch) -> int | None:
        """`on_load` for an event loop, by a descriptor and without a thread in between: arms the watch if nothing was loaded
        since ``seen``. It becomes readable with the next load, or with one that is about to be made: look again, and arm it.

        Returns the sequence number: ``seen`` when the watch is armed. None where a store cannot.
        """
        return None

    def awaited(self, magazine: str) -> bool | None:
        """Whether anybody has begun to wait for a load of this magazine since it was last loaded or woken: a consumer that
        has claimed more than it can begin may give it back. A hint, for he may have gone. None: the store cannot tell."""
        return None

    def rest(self, magazine: str) -> None:
        """Who has called `idle` makes no claim for now: what a store has left to the next one is done."""

    @abc.abstractmethod
    def wake(self, magazine: str) -> None:
        """Makes every `wait` on this magazine return: how a stopping consumer is told at once."""

    @abc.abstractmethod
    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        """Removes the magazine and all its records. Idempotent. With ``only_empty`` False is returned, and nothing has
        changed, when it holds any, claimed ones included: looked at and removed in one transaction in memory and for
        ``sync`` on the embedded store.
        """

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Declared magazines, sorted."""


class Store(abc.ABC):
    """One opened store. Thread-safe. Not usable in a child after ``fork``: ForkedHandleError; open another there."""

    in_process = False
    """Whether nobody but this process can see the store."""

    message_expiry_s = 0
    """What a queue gets whose time to live nobody has chosen; 0 = its messages never expire."""

    url: str
    client_id: str = "ignis"
    farm_id: str = "local"
    magazines: MagazineStore
    queues: QueueStore
    locks: LockStore
    arrays: ArrayStore

    @property
    @abc.abstractmethod
    def owner(self) -> str:
        """A name for this process's claims from which, where the store can, its death is told."""

    @property
    @abc.abstractmethod
    def local_dir(self) -> str | None:
        """The directory that all users of the store on this machine share, for lock files; None when there is none."""

    lock_clock: Clock | None = None
    """By which this process judges whether what it holds has ended; None = the machine's, which goes on while it sleeps."""

    asks_clock = False
    """Whether `now_s` asks somebody else, and so takes its time and may fail."""

    def now_s(self) -> float:
        """Seconds since 1970 by the clock that ends what is stored here. Where all users of the store are on one machine
        nobody can set it; elsewhere it is this machine's wall clock."""
        return time.time()

    @property
    def of_boottime_ms(self) -> int | None:
        """What is added to the system's clock that only rises to get `now_s`; None where that is not how it is made."""
        return None

    def wall_s(self) -> float:
        """What users read as the time, in seconds since 1970: the wall clock, or the one that a test gave the store."""
        return time.time() if self.lock_clock is None else self.lock_clock()

    def wait_no_longer(self, within_s: float | None) -> None:
        """A store that cannot be reached is waited for no longer than for so many seconds from now, whoever calls: the
        application stops. None = as long as usual again. For a store in a process of its own."""

    def open_publisher(self, magazine: Any, settings: PublisherSettings) -> Any:
        """A buffered publisher of this store's own making (an `ignis.Publisher`) for an `ignis.Magazine`; None, which is the
        rule: messages gather in this process and go to the store with `MagazineStore.load`."""
        return None

    def remove_queue(self, name: str, *, force: bool = False) -> bool:
        """Removes a queue: its magazines with all that is in them, and its record; True when there was a record.

        Without ``force`` a queue that holds messages, claimed ones included, is refused. In memory, and on the embedded store
        for the durability ``sync``, that holds for what is published at the same moment too; elsewhere what is loaded in the
        moment between the look and the removal is removed with the queue. Magazines go before the record: what is begun and
        not ended leaves an empty queue.

        Raises QueueNotFoundError, QueueNotEmptyError.
        """
        return remove_queue(self.magazines, self.queues, name, force)

    def check_consuming(self) -> None:
        """Raises PublishOnlyError where messages only go in: there is nothing to start a handler on."""

    @property
    def queues_unknown(self) -> str:
        """Why it cannot be told which queues there are; empty where it can."""
        return ""

    @abc.abstractmethod
    def stats(self) -> dict[str, int | float | str]:
        """Figures for ``ignis stats``: bytes used, limits, commits, calls per kind."""

    def process_stats(self) -> dict[str, int | float]:
        """Those of `stats` that this process counted. Asks nobody, waits for nobody."""
        return {}

    @abc.abstractmethod
    def close(self, timeout: float = 30.0) -> None:
        """Waits for calls in flight, then closes. Idempotent. Raises WaitTimeoutError."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
