"""What the memory store keeps, and what the parts of one store share: the content, its one lock, the clock."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ignis.errors import ClosedError, ForkedHandleError, WaitTimeoutError
from ignis.process_hooks import FORKS, on_fork
from ignis.storage.checks import check_epoch, check_scope, draw_incarnation
from ignis.storage.clock import StoreClock
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.records import Fence, LockRecord, QueueRecord
from ignis.storage.runs import Runs, overlap, runs_of

__all__ = ["Content", "Held", "MagazineState", "Shard", "StoreContext"]

_FEW = 64
"""So few pointers are looked up one by one: their runs would cost more than they save."""


@dataclass
class Held:
    """One stored record; ``owner`` empty = not fired."""

    data: bytes
    expires_at_ms: int
    owner: str = ""
    fired_at_ms: int = 0


@dataclass
class Shard:
    """The records of one shard, in the order of their pointers, and its counters."""

    records: dict[int, Held] = field(default_factory=dict)
    load_pointer: int = 0
    fire_pointer: int = 0
    reloaded: int = 0
    expired: int = 0

    def append(self, data: bytes, expires_at_ms: int) -> None:
        self.load_pointer += 1
        self.records[self.load_pointer] = Held(data, expires_at_ms)

    def unfired(self) -> Iterator[int]:
        """Pointers behind the fire pointer that have a record, ascending: pointers are added in order."""
        return (one for one in self.records if one > self.fire_pointer)

    def fired_to(self) -> int:
        """The fire pointer; behind the last record when nothing is left before it."""
        return self.fire_pointer if next(self.unfired(), None) is not None else self.load_pointer

    def there(self, pointers: Sequence[int]) -> list[int]:
        """Those that have a record, ascending. Who names many that do not exist pays for no more than there is."""
        if isinstance(pointers, list) and len(pointers) <= _FEW:
            return sorted({pointer for pointer in pointers if pointer in self.records})
        runs = overlap(runs_of(pointers), 1, self.load_pointer + 1)
        if sum(stop - start for start, stop in runs) <= len(self.records):
            return [pointer for pointer in Runs(runs) if pointer in self.records]
        wanted = Runs(runs)
        return [pointer for pointer in self.records if pointer in wanted]

    def retire(self, pointers: Sequence[int]) -> int:
        gone = self.there(pointers)
        for pointer in gone:
            del self.records[pointer]
        if gone and gone[-1] > self.fire_pointer:
            self.fire_pointer = next(self.unfired(), self.load_pointer + 1) - 1
        return len(gone)


class MagazineState:
    """One magazine: its shards, who waits for loads, and the ids that it remembers."""

    def __init__(self, number: int, shards: int, durability: str) -> None:
        self.number = number
        self.durability = durability
        self.incarnation = draw_incarnation()
        self.all_shards: list[Shard] = []
        self.resize(shards)
        self.next_shard = 0
        self.sequence = 0
        self.waiting = 0  # threads that wait for a load
        self.listeners: dict[object, tuple[StoreContext, Callable[[], None]]] = {}
        self.known_ids: dict[bytes, int] = {}  # until when, in milliseconds since the epoch
        self.later: MagazineState | None = None
        self.dues: list[tuple[int, int, int]] = []  # a heap: due time, shard and pointer there
        self.alarm: tuple[int, threading.Timer] | None = None  # when it rings for those who listen

    def tell(self, of: StoreContext | None = None) -> None:
        """Calls those who listen: all, or one store's."""
        for wish, (store, call) in list(self.listeners.items()):
            if of is None or store is of:
                self.listeners.pop(wish, None)
                call()

    def resize(self, shards: int) -> None:
        """Shards that are not asked for any more are kept aside: their pointers must not be used twice."""
        self.all_shards += [Shard() for _ in range(shards - len(self.all_shards))]
        self.shards = self.all_shards[:shards]


class Content:
    """What stores of one name share. Everything is guarded by the lock of ``changed``."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.numbers = itertools.count(1)
        self.magazines: dict[tuple[str, str], MagazineState] = {}
        self.queues: dict[tuple[str, str], QueueRecord] = {}
        self.locks: dict[tuple[str, str], LockRecord] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.arrays: dict[tuple[str, str, str], deque[bytes]] = {}


_named: dict[str, Content] = {}
_named_lock = threading.Lock()


def _in_child() -> None:
    _named.clear()
    _named_lock.release()


class StoreContext:
    """What the facets of one opened store share. Thread-safe. After ``fork`` no call can begin in the child.

    Args:
        name: stores of the same name share their content as long as the process lives; empty = private to this one.
        scope: stands before all names of the application.
        clock: by which everything ends and ages.
    """

    def __init__(self, name: str, scope: str, clock: StoreClock) -> None:
        if name:
            on_fork(before=_named_lock.acquire, in_parent=_named_lock.release, in_child=_in_child)
            with _named_lock:
                self.content = _named.setdefault(name, Content())
        else:
            self.content = Content()
        self.scope = scope
        self.clock = clock
        self.calls = {"loads": 0, "fires": 0, "deletes": 0, "reloads": 0, "transfers": 0}
        self.expired_log = ExpiredLog()
        self.closed = False
        self.waiting = 0
        self._forks = FORKS[0]

    @contextmanager
    def open_content(self) -> Iterator[Content]:
        """The content, locked. Raises ForkedHandleError, ClosedError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this store was opened before fork(); open another in the child")
        with self.content.changed:
            if self.closed:
                raise ClosedError("store is closed")
            yield self.content

    def check_fence(self, fence: Fence | None) -> None:
        """Raises StaleEpochError. Caller holds the lock."""
        if fence is not None:
            check_scope(fence.scope)
            check_epoch(self.content.epochs.get((self.scope, fence.scope), 0), fence)

    def close(self, timeout: float) -> None:
        """Ends what waits. Idempotent; nothing in the child of a fork. Raises WaitTimeoutError."""
        if self._forks != FORKS[0]:
            return
        with self.content.changed:
            self.closed = True
            self.content.changed.notify_all()
            for magazine in self.content.magazines.values():
                magazine.tell(self)
            if not self.content.changed.wait_for(lambda: not self.waiting, timeout):
                raise WaitTimeoutError(f"store: {self.waiting} call(s) still in flight after {timeout:g} s")
