"""How many consumers of a process store outcomes at a time, where that is quick.

Each consumer's outcomes are stored by a shared thread. A thousand queues that have work at once would be a thousand such
threads, and what they would do most is wait for the interpreter. A store that answers within microseconds is kept busy by a
few: the others wait in line for one of them, and gather meanwhile. Where a call may take long there are no slots: behind a
network, and where it waits for a flush, which many share.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from ignis.consumer.taking import NO_MEMORY_S
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.process_hooks import FORKS
from ignis.storage.base import Store
from ignis.upkeep import run_soon

__all__ = ["AckSlots", "ack_slots"]

log = logging.getLogger("ignis.consumer")

SLOTS = 4
"""At work at a time."""

STAYING = 8
"""Of those that have nothing to do, so many keep their threads for a while: what comes next need not wake another one."""


class AckSlots:
    """Slots for calls that store outcomes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._staying = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._returning: deque[threading.Lock] = deque()
        """Of who had a slot and waits for one again, before all others: each gave his to one of them, or nobody wanted it."""

    @property
    def wanted(self) -> bool:
        """Whether others wait for a slot: whoever has one should not linger."""
        return bool(self._waiting or self._returning)

    def run(self, call: Callable[[], None]) -> None:
        """Makes the call in a shared thread, once there is a slot. Raises what `run_soon` raises: then it is not made."""
        with self._lock:
            if self._taken >= SLOTS:
                self._waiting.append(call)
                return
            self._taken += 1
        self._start(call)

    def give_way(self, call: Callable[[], None]) -> bool:
        """For who has a slot and more to do: puts the rest, ``call``, behind those in line. False where nobody waits."""
        with self._lock:
            if self.wanted:
                self._waiting.append(call)
                return True
            return False

    def stay(self) -> bool:
        """For who has a slot and nothing to do: gives it up, unless others wait for its thread. When it stays it comes `back`."""
        with self._lock:
            if self.wanted or self._staying >= STAYING:
                return False
            self._staying += 1
            self._taken -= 1
            return True

    def back(self) -> None:
        """Who stayed has a slot again; waits for one."""
        with self._lock:
            self._staying -= 1
        self._come_back()

    def _come_back(self) -> None:
        with self._lock:
            if self._taken < SLOTS:
                self._taken += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._returning.append(turn)
        turn.acquire()

    @contextlib.contextmanager
    def without(self) -> Iterator[None]:
        """Within it the caller sleeps for longer, and another has its slot. Waits for one behind it."""
        call = self._next()
        if call is not None:
            try:
                self._start(call)
            except (RuntimeError, MemoryError):  # it waits for the next that is given up
                with self._lock:
                    self._waiting.appendleft(call)
        try:
            yield
        finally:
            self._come_back()

    def _start(self, call: Callable[[], None]) -> None:
        """With a slot that is the call's."""
        try:
            run_soon(functools.partial(self._work, call))
        except BaseException:
            with self._lock:
                self._give_back()
            raise

    def _give_back(self) -> None:
        """To who waits to come back, if anybody does. Caller holds the lock."""
        if self._returning:
            self._returning.popleft().release()
        else:
            self._taken -= 1

    def _next(self) -> Callable[[], None] | None:
        """The first in line, which has the caller's slot from now on; None = another has it, or nobody."""
        with self._lock:
            if self._waiting and not self._returning:
                return self._waiting.popleft()
            self._give_back()
            return None

    def _work(self, first: Callable[[], None]) -> None:
        call: Callable[[], None] | None = first
        while call is not None:
            try:
                call()
            except MemoryError:  # it has not begun
                time.sleep(NO_MEMORY_S)
                continue
            except BaseException as exc:
                log_safely(
                    log,
                    logging.ERROR,
                    event_text("shared_call_failed", "a call in a shared thread failed"),
                    exc_info=exc,
                )
            call = self._next()


_of_process: dict[int, weakref.WeakKeyDictionary[Store, AckSlots]] = {}
"""By the count of forks: those whom a parent's slots were taken by are not in its child."""


def ack_slots(store: Store) -> AckSlots:
    """Those of a store in this process. A store that keeps its callers waiting holds up nobody else's."""
    of_stores = _of_process.get(FORKS[0]) or _of_process.setdefault(FORKS[0], weakref.WeakKeyDictionary())
    return of_stores.get(store) or of_stores.setdefault(store, AckSlots())
