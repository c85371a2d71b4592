"""Who waits for a magazine to be loaded: deliveries, and clients' WAITs.

A wait of the store blocks a thread. `LoadNotifier` has ``broker.watch_threads`` of them, each for one magazine, so a load by
another process is noticed at once. Magazines beyond that share one more thread, which looks at them in turn every few
milliseconds. What is loaded through this broker the event loop sees by itself; while that happens often, a magazine's own thread
looks every few milliseconds too, in place of being woken by each such load.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import islice

from ignis.errors import ClosedError, IgnisError, TooManyRequestsError
from ignis.log_format import event_text
from ignis.native import ThreadBell
from ignis.stacks import start_thread
from ignis.storage.base import MagazineStore

__all__ = ["LoadNotifier", "Watch", "Watches"]

log = logging.getLogger("ignis.broker")

_SLICE_S = 1.0
_ROUND_S = 0.02
_OWN_S = 0.005
"""So long a thread looks away from loads that the event loop knows of."""
_LIVELY_S = 0.05
"""So long after such a load the next one is expected to be one too."""
_LINGER_S = 1.0
"""So long a thread stays that nobody needs: who waits for one message after the other wants it again at once."""
_ASK_S = 0.001
"""How long a store that has to ask somebody else waits in a round for one magazine."""
_TOLD_IN_A_PASS = 256
_WARN_S = 10.0
_MOST_WATCHES = 4_096
"""Magazines that are watched for one application."""
_SHARE = _MOST_WATCHES // 4
"""And for one user of it."""


class _Waiter:
    __slots__ = ("call", "seen", "timer")

    def __init__(self, seen: int, call: Callable[[int], None]) -> None:
        self.seen = seen
        self.call = call
        self.timer: asyncio.TimerHandle | None = None


class Watch:
    """Tells those who wait that one magazine was loaded.

    Belongs to the event loop but for `once`, which `LoadNotifier` calls in a thread.
    """

    def __init__(self, watches: Watches, magazine: str, holder: str) -> None:
        self.magazine = magazine
        self.holder = holder
        """Whose share it counts in."""
        self.changed: Callable[[], None] | None = None
        """Called on the event loop after every load, while set."""
        self.at_work = False
        """A thread looks after it."""
        self.shared = False
        """That thread looks after others as well."""
        self._watches = watches
        self._magazines = watches.magazines
        self._loop = watches.loop
        self._waiters: set[_Waiter] = set()
        self._sequence: int | None = None
        self._telling = False
        """Some of those who wait are told in the next pass."""
        self._own_s = float("-inf")
        """When something was loaded through this broker the last time. Read by the thread."""
        self._seen = -1
        self._again = ThreadBell()
        """Rung when somebody wants to know."""
        self._warned_s = float("-inf")

    @property
    def wanted(self) -> bool:
        return self.changed is not None or bool(self._waiters)

    @property
    def over(self) -> bool:
        """Whether it may be forgotten."""
        return not self.wanted and not self.at_work

    def loads(self) -> None:
        """Something is about to be loaded through this broker."""
        self._own_s = time.monotonic()

    def ensure(self) -> None:
        """A thread looks after it from now on."""
        self._again.ring()
        if not self.at_work:
            self.at_work = True
            self._seen = -1
            self._watches.notifier.put(self)

    def wait(self, seen: int, timeout_s: float, call: Callable[[int], None]) -> Callable[[], None]:
        """Calls back once with the sequence number: when it differs from ``seen``, or after the timeout, with ``seen``.
        Returns what takes the wish back."""
        waiter = _Waiter(seen, call)
        self._waiters.add(waiter)
        waiter.timer = self._loop.call_later(timeout_s, self._answer, waiter, seen)
        self.ensure()
        if self._sequence is not None and self._sequence > seen:
            self._answer(waiter, self._sequence)
        return lambda: self._drop(waiter)

    def look(self) -> None:
        """Something was loaded through this broker, perhaps, and its consumers are told behind this."""
        if not (self.at_work and self._magazines.quick):
            return
        try:
            sequence = self._magazines.wait(self.magazine, -1, 0)
        except IgnisError:
            return  # the thread says so
        if sequence != self._sequence:
            self.loads()
            self._tell(sequence)

    def _drop(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if waiter.timer is not None:
                waiter.timer.cancel()

    def _answer(self, waiter: _Waiter, sequence: int) -> None:
        if waiter in self._waiters:
            self._drop(waiter)
            waiter.call(sequence)

    def _tell(self, sequence: int) -> None:
        """Answers who waits, so many in a pass of the event loop: there may be many thousands."""
        self._sequence = sequence
        if self._telling:
            return
        told = list(islice((one for one in self._waiters if one.seen != sequence), _TOLD_IN_A_PASS))
        for waiter in told:
            self._answer(waiter, sequence)
        if len(told) == _TOLD_IN_A_PASS:
            self._telling = True
            self._loop.call_soon(self._tell_more)

    def _tell_more(self) -> None:
        self._telling = False
        if self._sequence is not None:
            self._tell(self._sequence)

    def _moved(self, sequence: int) -> None:
        """A thread has seen this number."""
        if sequence != self._sequence:
            self._tell(sequence)
            if self.changed is not None:
                self.changed()

    def _ended(self) -> None:
        self.at_work = self.shared = False
        self._sequence = None
        if self.wanted and not self._watches.closed:
            self.ensure()

    # -- in a thread

    def once(self, timeout_s: float) -> bool:
        """Waits so long for a load at most. False when nobody has wanted to know for a while. Raises RuntimeError when the
        event loop is closed."""
        if self._watches.closed:
            return False
        if not self.wanted:
            return timeout_s >= _SLICE_S and self._linger()
        try:
            sequence = self._magazines.wait(self.magazine, self._seen, timeout_s if self._seen >= 0 else 0)
        except ClosedError:
            return False
        except IgnisError as exc:
            if time.monotonic() - self._warned_s > _WARN_S:
                self._warned_s = time.monotonic()
                log.warning(
                    event_text("load_wait_failed", "waiting for messages of %s failed, trying again: %s"),
                    self.magazine,
                    exc,
                )
            if timeout_s >= _SLICE_S:
                time.sleep(_SLICE_S)
            return True
        if sequence != self._seen:
            self._seen = sequence
            if timeout_s >= _SLICE_S and time.monotonic() - self._own_s < _LIVELY_S:
                time.sleep(_OWN_S)  # one of this broker's, most likely
                try:
                    sequence = self._seen = self._magazines.wait(self.magazine, -1, 0)
                except IgnisError:
                    return True  # the next look says so
            if sequence != self._sequence:
                self._loop.call_soon_threadsafe(self._moved, sequence)
        return True

    def _linger(self) -> bool:
        """Waits until somebody wants to know again; False when nobody does for so long."""
        self._again.silence()
        time.sleep(_OWN_S)  # who comes back so soon does not wake it
        return self.wanted or self._again.wait(_LINGER_S)

    def glance(self) -> bool:
        """`once` for a thread that has others to look after. What comes to be due is moved by who sleeps in the store: not by
        this one, which does it here."""
        try:
            if self._magazines.due_in_s(self.magazine) == 0:
                self._magazines.move_due(self.magazine)
        except IgnisError:
            pass  # whatever it is, the wait says so
        return self.once(0.0 if self._magazines.quick else _ASK_S)

    def end(self) -> None:
        """No thread looks after it any more. Raises RuntimeError when the event loop is closed."""
        self._loop.call_soon_threadsafe(self._ended)


class Watches:
    """The watched magazines of one application. Belongs to the event loop.

    Args:
        loop: the event loop.
        notifier: whose threads look after them.
        magazines: the application's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, notifier: LoadNotifier, magazines: MagazineStore) -> None:
        self.loop = loop
        self.notifier = notifier
        self.magazines = magazines
        self.closed = False
        """The application has ended: no thread goes on. Read by them too."""
        self._watches: dict[str, Watch] = {}

    def watch(self, magazine: str, holder: str) -> Watch:
        """Raises TooManyRequestsError when too many magazines are watched, or too many of the holder's."""
        found = self._watches.get(magazine)
        if found is None:
            self.tidy()
            if len(self._watches) >= _MOST_WATCHES:
                raise TooManyRequestsError(len(self._watches), _MOST_WATCHES, "watched magazines")
            if sum(one.wanted and one.holder == holder for one in self._watches.values()) >= _SHARE:
                raise TooManyRequestsError(_SHARE + 1, _SHARE, "watched magazines of one user")
            found = self._watches[magazine] = Watch(self, magazine, holder)
        return found

    def unwatch(self, magazine: str) -> None:
        """No delivery waits for the magazine any more."""
        found = self._watches.get(magazine)
        if found is not None:
            found.changed = None

    def look(self, magazine: str) -> None:
        """Something was loaded through this broker, perhaps."""
        found = self._watches.get(magazine)
        if found is not None:
            found.look()

    def tidy(self) -> None:
        """Forgets those that nobody wants."""
        for name in [name for name, one in self._watches.items() if one.over]:
            del self._watches[name]

    @property
    def wanted(self) -> bool:
        """Whether anybody waits."""
        return any(one.wanted for one in self._watches.values())


class LoadNotifier:
    """The threads of one broker. `put` belongs to the event loop.

    Args:
        most: threads for one magazine each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._own = 0
        self._shared: dict[Watch, None] = {}
        self._round: threading.Thread | None = None

    @property
    def threads(self) -> int:
        """How many there are."""
        with self._lock:
            return self._own + (self._round is not None)

    def put(self, watch: Watch) -> None:
        """A thread looks after it, until nobody wants to know any more."""
        with self._lock:
            watch.shared = self._own >= self._most
            if watch.shared:
                self._shared[watch] = None
                if self._round is not None:
                    return
                going_round = self._round = threading.Thread(
                    target=self._go_round, name="ignis-broker-watch", daemon=True
                )
            else:
                self._own += 1
                going_round = None
        if going_round is not None:
            try:
                start_thread(going_round)
            except BaseException:
                with self._lock:
                    self._round = None
                    self._shared.pop(watch, None)
                raise
            return
        try:
            start_thread(
                threading.Thread(
                    target=self._stay, args=(watch,), name=f"ignis-broker-watch-{watch.magazine}", daemon=True
                )
            )
        except BaseException:  # no thread to be had
            with self._lock:
                self._own -= 1
            raise

    def _stay(self, watch: Watch | None) -> None:
        try:
            while watch is not None:
                while watch.once(_SLICE_S):
                    pass
                watch.end()
                watch = self._next()
        except RuntimeError:  # the event loop was closed
            with self._lock:
                self._own -= 1
        except BaseException:
            with self._lock:
                self._own -= 1
            raise

    def _next(self) -> Watch | None:
        """One that has shared a thread until now gets this one; None, and a thread less, when there is none."""
        with self._lock:
            if self._shared:
                watch = next(iter(self._shared))
                del self._shared[watch]
                watch.shared = False
                return watch
            self._own -= 1
            return None

    def _go_round(self) -> None:
        try:
            while True:
                with self._lock:
                    todo = list(self._shared)
                    if not todo:
                        self._round = None
                        return
                for watch in todo:
                    with self._lock:
                        if watch not in self._shared:
                            continue  # it has a thread of its own by now
                    if watch.glance():
                        continue
                    with self._lock:
                        gone = watch in self._shared
                        self._shared.pop(watch, None)
                    if gone:
                        watch.end()
                time.sleep(_ROUND_S)
        except RuntimeError:  # the event loop was closed
            with self._lock:
                self._shared.clear()
                self._round = None
