"""What programs have pulled and not acknowledged: each message with a receipt, and a time until which it is theirs.

A lease lives in the console's memory, the claim behind it in the store. While a lease lasts its claim is renewed; when it has
run out the message goes back to the tail of its queue, with one crash more in its envelope, and after too many of them to the
sideline. When the console's process dies, the sweeper finds its claims as it finds those of a dead worker.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ignis.config import BrokerSettings
from ignis.console.refusals import RefusedError
from ignis.errors import IgnisError, QueueNotFoundError, UnreadableMessageError
from ignis.log_limit import LimitedLog
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CRASH, REASON_REJECTED, corrupt_record, failed_record, is_readable
from ignis.native import Record
from ignis.stacks import start_thread
from ignis.storage.base import Store, Transfer, renewal_period_s
from ignis.storage.parts import transfer_all
from ignis.storage.records import group_pointers
from ignis.upkeep import outlast

__all__ = ["MOST_HELD", "MOST_OF_A_USER", "Held", "Leases"]

log = logging.getLogger("ignis.console")

MOST_HELD = 100_000
MOST_OF_A_USER = 25_000
_LOOK_S = 0.5
_BATCH = 128
_BATCH_BYTES = 8 << 20
_RECEIPT_BYTES = 16

Holding = Callable[[int], AbstractContextManager[None]]


def _no_bound(nbytes: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class Held:
    """One message that a program has. Times by the monotonic clock."""

    receipt: str
    queue: str
    by: str
    shard: int
    pointer: int
    nbytes: int
    until_s: float
    renewed_s: float
    stuck_after_s: float


class Leases:
    """Keeps the leases. Thread-safe. Has a thread of its own from the first lease on.

    Args:
        store: gives the store.
        clock: seconds that only rise; injectable for tests, which then call `look` themselves.
    """

    def __init__(self, store: Callable[[], Store], clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._clock = clock or time.monotonic
        self._by_hand = clock is not None
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._of_user: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._said = LimitedLog(log)
        self._max_crashes = BrokerSettings().max_crashes

    def check_room(self, count: int, who: str | None) -> None:
        """Raises RefusedError (``too_many_requests``) where so many more do not fit. ``who``: the user; None = nobody has a name
        here, and all share the room."""
        mine = self._of_user[who] if who is not None else 0
        if mine + count > MOST_OF_A_USER:
            raise RefusedError(
                "too_many_requests",
                f"{mine} messages are leased to user {who!r}, and {count} more would be over the limit of a user, "
                f"{MOST_OF_A_USER}: acknowledge some, or let leases run out",
            )
        if len(self._held) + count > MOST_HELD:
            raise RefusedError(
                "too_many_requests", f"{len(self._held)} messages are leased: acknowledge some, or let leases run out"
            )

    def take(
        self, queue: str, by: str, places: Iterable[tuple[int, int, int]], lease_s: float, stuck_after_s: float
    ) -> list[Held]:
        """Leases of messages that this process has just claimed. ``places``: shard, pointer, and how many bytes each has."""
        now_s = self._clock()
        made = [
            Held(
                secrets.token_urlsafe(_RECEIPT_BYTES),
                queue,
                by,
                shard,
                pointer,
                nbytes,
                now_s + lease_s,
                now_s,
                stuck_after_s,
            )
            for shard, pointer, nbytes in places
        ]
        with self._lock:
            self._keep(made)
            thread = None
            if made and self._thread is None and not self._by_hand and not self._closing.is_set():
                thread = self._thread = threading.Thread(
                    target=outlast, args=(log, self._run), name="ignis-console-leases", daemon=True
                )
        if thread is not None:
            try:
                start_thread(thread)
            except RuntimeError:  # the messages are claimed, and are the caller's; the next lease starts it
                self._thread = None
        return made

    def acknowledge(self, queue: str, by: str, receipts: Sequence[str]) -> int:
        """Removes the messages for good; returns how many of them were still held. Durable as the queue is. Raises StoreError:
        none of them is acknowledged as far as is known, and the leases last."""
        found = self._pop(queue, by, receipts)
        try:
            return self._store().magazines.delete(queue, _pointers(found)) if found else 0
        except BaseException:
            self._put_back(found)
            raise

    def extend(self, queue: str, by: str, receipts: Sequence[str], lease_s: float) -> list[str]:
        """Begins the leases anew, for so long; returns the receipts that are held. The others are not theirs any more."""
        found = self._pop(queue, by, receipts)
        if not found:
            return []
        store = self._store()
        try:
            lost = store.magazines.renew_claims(queue, _pointers(found), store.owner)
        except BaseException:
            self._put_back(found)
            raise
        gone = {(shard, pointer) for shard, some in lost.items() for pointer in some}
        kept = [one for one in found if (one.shard, one.pointer) not in gone]
        now_s = self._clock()
        for one in kept:
            one.until_s, one.renewed_s = now_s + lease_s, now_s
        self._put_back(kept)
        return [one.receipt for one in kept]

    def release(
        self, queue: str, by: str, receipts: Sequence[str], error: str | None = None, holding: Holding = _no_bound
    ) -> int:
        """Gives the messages back to the tail of their queue, not counted; with an error to the sideline, as ``rejected``.
        Returns how many were still held. Durable as the queue is. ``holding``: takes the memory for so
        many bytes that are read."""
        found = self._pop(queue, by, receipts)
        if not found:
            return 0
        magazines = self._store().magazines
        try:
            if error is None:
                return magazines.reload(queue, _pointers(found))
            moved = 0
            for part in _parts(found):
                with holding(2 * sum(one.nbytes for one in part)):
                    moved += self._reject(queue, by, part, error)
            return moved
        except BaseException:
            self._put_back(found)
            raise

    def _reject(self, queue: str, by: str, some: list[Held], error: str) -> int:
        magazines = self._store().magazines
        aside = [
            Transfer(
                shard, pointer,
                corrupt_record(queue, shard, pointer) if data is None
                else failed_record(data, REASON_REJECTED, error, handler="gateway", worker=by),
                shard,
            )
            for shard, many in magazines.peek(queue, _pointers(some)).items() for pointer, data in many.items()
        ]  # fmt: skip
        return transfer_all(aside, lambda items: magazines.transfer(queue, queue + SIDELINE_SUFFIX, items))

    def counts(self) -> list[tuple[str, str, int]]:
        """(queue, user, how many messages), for all that hold some."""
        with self._lock:
            found = Counter((one.queue, one.by) for one in self._held.values())
        return [(queue, by, count) for (queue, by), count in sorted(found.items())]

    def end(self, queue: str, by: str) -> int:
        """Takes back all that a user has leased of a queue, not counted; returns how many messages. Durable as the queue is."""
        with self._lock:
            receipts = [one.receipt for one in self._held.values() if one.queue == queue and one.by == by]
        return self.release(queue, by, receipts)

    def look(self) -> None:
        """Takes back what has run out, and renews the claims of the others in time. What the store refuses is tried again."""
        now_s = self._clock()
        over: dict[str, list[Held]] = defaultdict(list)
        due: dict[str, list[Held]] = defaultdict(list)
        with self._lock:
            for one in list(self._held.values()):
                if one.until_s <= now_s:
                    over[one.queue].append(self._drop(one))
                elif now_s - one.renewed_s > renewal_period_s(one.stuck_after_s):
                    due[one.queue].append(one)
        for queue, some in over.items():
            try:
                self._count_crash(queue, some)
            except QueueNotFoundError:
                pass  # removed, with all that was in it
            except IgnisError as exc:
                self._said.warning("leases of %s ran out and could not be given back, trying again: %s", queue, exc)
                self._put_back(some)
        for queue, some in due.items():
            try:
                self._renew(queue, some)
            except QueueNotFoundError:
                self._pop(queue, None, [one.receipt for one in some])
            except IgnisError as exc:
                self._said.warning("claims behind leases of %s could not be renewed: %s", queue, exc)

    def close(self) -> None:
        """Gives everything back, not counted. Idempotent."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(10.0)
        with self._lock:
            held, self._held = list(self._held.values()), {}
            self._of_user.clear()
        by_queue: dict[str, list[Held]] = defaultdict(list)
        for one in held:
            by_queue[one.queue].append(one)
        for queue, some in by_queue.items():
            try:
                self._store().magazines.reload(queue, _pointers(some))
            except QueueNotFoundError:
                pass
            except IgnisError as exc:
                log.error("%d leased message(s) of %s are left to the sweeper: %s", len(some), queue, exc)

    def __len__(self) -> int:
        return len(self._held)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_S):
            try:
                self.look()
            except Exception as exc:
                self._said.error("leases could not be looked after", exc_info=exc)

    def _pop(self, queue: str, by: str | None, receipts: Sequence[str]) -> list[Held]:
        """Takes these out of the table, so that nobody else acts on them meanwhile. What has run out is nobody's."""
        now_s, found = self._clock(), []
        with self._lock:
            for receipt in receipts:
                one = self._held.get(receipt)
                if one is not None and one.queue == queue and by in (None, one.by) and one.until_s > now_s:
                    found.append(self._drop(one))
        return found

    def _put_back(self, some: Iterable[Held]) -> None:
        with self._lock:
            self._keep(some)

    def _keep(self, some: Iterable[Held]) -> None:
        """To be called with the lock, as `_drop`."""
        for one in some:
            self._of_user[one.by] += one.receipt not in self._held
            self._held[one.receipt] = one

    def _drop(self, one: Held) -> Held:
        del self._held[one.receipt]
        self._of_user[one.by] -= 1
        if self._of_user[one.by] <= 0:
            del self._of_user[one.by]
        return one

    def _renew(self, queue: str, some: list[Held]) -> None:
        store, now_s = self._store(), self._clock()
        lost = store.magazines.renew_claims(queue, _pointers(some), store.owner)
        gone = {(shard, pointer) for shard, many in lost.items() for pointer in many}
        with self._lock:
            for one in some:
                if (one.shard, one.pointer) in gone:
                    if one.receipt in self._held:
                        self._drop(one)
                else:
                    one.renewed_s = now_s

    def _count_crash(self, queue: str, some: list[Held]) -> None:
        """Back to the tail, or aside. What an earlier try has moved is left alone."""
        magazines, limit = self._store().magazines, self._max_crashes
        for part in _parts(some):
            back: list[Transfer] = []
            aside: list[Transfer] = []
            for shard, many in magazines.peek(queue, _pointers(part)).items():
                for pointer, data in many.items():
                    if data is None:
                        aside.append(Transfer(shard, pointer, corrupt_record(queue, shard, pointer), shard))
                        continue
                    crashes = _crashes(data) + 1
                    why = f"{crashes} lease(s) of a program ran out"
                    fresh = failed_record(data, REASON_CRASH, why, handler="gateway", crashed=True)
                    stays = bool(limit) and (crashes >= limit or not is_readable(data))
                    (aside if stays else back).append(Transfer(shard, pointer, fresh, shard))
            if back:
                transfer_all(back, lambda items: magazines.transfer(queue, queue, items))
            if aside:
                transfer_all(aside, lambda items: magazines.transfer(queue, queue + SIDELINE_SUFFIX, items))


def _pointers(some: Iterable[Held]) -> dict[int, list[int]]:
    return group_pointers((one.shard, one.pointer) for one in some)


def _parts(some: list[Held]) -> Iterator[list[Held]]:
    """By number and by bytes: they are read, and written anew."""
    part: list[Held] = []
    left = _BATCH_BYTES
    for one in some:
        if part and (len(part) == _BATCH or one.nbytes > left):
            yield part
            part, left = [], _BATCH_BYTES
        part.append(one)
        left -= one.nbytes
    if part:
        yield part


def _crashes(data: bytes) -> int:
    try:
        return Record(data).crashes
    except UnreadableMessageError:
        return 0
