"""Who of a consumer's threads waits for messages, and where each finds what it was given.

One thread is the *leader*: it waits on the store and claims, for itself and for those that are free. When it has got
something itself it calls another to lead, and handles what it claimed: no thread stands between claim and handler.
The others, the *followers*, sleep until they are given something or called. Where many messages are done sooner than
another thread would be at them, one follower only watches: should the leader not be back in time, it leads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Protocol

from ignis.consumer.pools.base import Part, Worker
from ignis.native import ThreadBell
from ignis.upkeep import Turn, Turns

__all__ = ["Feeder", "Leading", "Tray"]


class Feeder(Protocol):
    """Who claims: the consumer."""

    leading: Leading

    def lead(self, worker: Worker, tray: Tray, wait_s: float) -> float:
        """Claims in the calling thread, the leader's, until its tray has something, it is going, or the time is up. Returns for
        how many seconds nobody else need lead; 0 = somebody is to."""


class Tray:
    """What one thread was given and has not begun. Others `put` and `ring`, the thread itself takes.

    Args:
        worker: whose it is.
        feeder: lets the thread lead while it has nothing; None = others feed it.
        turns: what it takes is for when it is the thread's turn; None = it has no need of one.
    """

    poll_s = 60.0

    def __init__(self, worker: Worker, feeder: Feeder | None, turns: Turns | None = None) -> None:
        self._worker = worker
        self._feeder = feeder
        self.parts: deque[Part] = deque()
        """What is in it. Only the thread itself, while it leads, adds to it here."""
        self._leads = False
        self._bell = ThreadBell()
        self.turn = Turn(turns, self._bell) if turns is not None else None

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.parts)

    def put(self, part: Part) -> None:
        self.parts.append(part)
        if not self._leads:  # the leader feeds itself
            self.ring()

    def ring(self) -> None:
        """Ends the thread's `take`, or its next one. From any thread. One that leads waits on the store: wake it there."""
        self._bell.ring()

    def put_off(self, seconds: float) -> None:
        """The thread that watches leads in so many seconds at the soonest. From any thread."""
        self._bell.put_off(seconds)

    def end(self) -> None:
        """The thread itself ends. Should it have been called to lead, another is."""
        self.give_up()
        if self._feeder is not None:
            self._feeder.leading.pass_on()

    def give_up(self) -> None:
        """The thread is given up: its turn is another's. From any thread."""
        if self.turn is not None:
            self.turn.end()

    def take(self, most: int, wait_s: float) -> list[Part]:
        """See `ignis.consumer.pools.loop.Inbox`. The thread leads meanwhile, if nobody else does."""
        if self.turn is not None:
            self.turn.give()
        if not self.parts and wait_s > 0:
            if self._feeder is None:
                self._bell.wait(wait_s)
            else:
                self._lead_or_follow(self._feeder, time.monotonic() + wait_s)
        if self.turn is not None and self.parts and not self._has_turn(self.poll_s if wait_s > 0 else 0):
            return []
        return self._taken(most)

    def rest(self) -> list[Part]:
        """See `ignis.consumer.pools.loop.Inbox`."""
        return self.take_away()

    def begin(self) -> bool:
        """See `ignis.consumer.pools.loop.Inbox`."""
        return self._has_turn(self.poll_s)

    def _has_turn(self, wait_s: float) -> bool:
        """Who gives back what it has needs none."""
        return self.turn is None or self._worker.returning or self.turn.take(wait_s)

    def take_away(self) -> list[Part]:
        """What it was given and has not taken. From any thread."""
        return self._taken(len(self.parts))

    def _taken(self, most: int) -> list[Part]:
        parts: list[Any] = [None] * min(most, len(self.parts))  # all the memory that it takes
        count = 0
        try:  # nothing of `contextlib`: a message waits for this
            while count < len(parts):
                parts[count] = self.parts.popleft()
                count += 1
        except IndexError:  # others took them away
            del parts[count:]
        return parts

    def _lead_or_follow(self, feeder: Feeder, until_s: float) -> None:
        """Once: whoever rings may have several reasons, and what the thread was told is its caller's to look at."""
        leading = feeder.leading
        if leading.follow(self):
            overdue = False
            if not self.parts:
                self._bell.wait(max(0.0, until_s - time.monotonic()))
                if leading.watcher is self and not self.parts:
                    overdue = not self._bell.wait(max(0.0, until_s - time.monotonic()), may_be_put_off=True)
            if not leading.leave(self, leads=overdue) and not overdue:
                return
            if self.parts or time.monotonic() >= until_s or not leading.take(self):
                leading.pass_on()  # it was called, and has something else to do by now
                return
        self._leads = True
        away_s = 0.0
        try:
            away_s = feeder.lead(self._worker, self, until_s - time.monotonic())
        finally:
            self._leads = False
            leading.resign(away_s)


class Leading:
    """Which of a consumer's threads leads, and which would. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resigned = threading.Condition(self._lock)
        """Told once nobody is to lead any more."""
        self._leader: Tray | None = None
        self._followers: list[Tray] = []
        self.watcher: Tray | None = None
        """The follower that leads if who led last is not back in time."""
        self._ended = False

    def take(self, tray: Tray) -> bool:
        """Whether that thread leads from now on."""
        with self._lock:
            if self._leader is not None or self._ended:
                return False
            self._leader = tray
            return True

    def follow(self, tray: Tray) -> bool:
        """Whether that thread is a follower from now on, until it leaves. If not it leads: nobody else does."""
        with self._lock:
            if self._leader is not None or self._ended:
                self._followers.append(tray)
                return True
            self._leader = tray
            return False

    def leave(self, tray: Tray, *, leads: bool = False) -> bool:
        """The follower woke up. Whether it was called to lead: then, and with ``leads``, it leads or passes it on."""
        with self._lock:
            if tray not in self._followers:
                return True
            watched = self.watcher is tray
            self._remove(tray)
        if watched and not leads:
            self.pass_on()  # it has something else to do, and who led last may be long at what it has
        return False

    def resign(self, away_s: float = 0.0) -> None:
        """The leader has something else to do: another is called, or watches for so many seconds until it is."""
        with self._lock:
            self._leader = heir = None
            if self._ended:
                self._resigned.notify_all()
            elif away_s and self._followers:
                if self.watcher is None:
                    self.watcher = heir = self._followers[-1]
                self.watcher.put_off(away_s)
            elif self._followers:
                heir = self._called()
        if heir is not None:
            heir.ring()

    def gone(self, tray: Tray) -> None:
        """Its thread has ended, in whatever way. Should it still lead, another is called."""
        with self._lock:
            watched = self.watcher is tray
            if tray in self._followers:
                self._remove(tray)
            leads = self._leader is tray
        if leads:
            self.resign()
        elif watched:
            self.pass_on()

    def pass_on(self) -> None:
        """Calls the follower that has slept least, if nobody leads."""
        with self._lock:
            if self._leader is not None or self._ended or not self._followers:
                return
            heir = self._called()
        heir.ring()

    def _called(self) -> Tray:
        """The one that is to lead, with the lock held."""
        heir = self._followers[-1]
        self._remove(heir)
        return heir

    def _remove(self, tray: Tray) -> None:
        self._followers.remove(tray)
        if self.watcher is tray:
            self.watcher = None

    def end(self, timeout: float) -> bool:
        """Lets nobody lead any more; whether nobody does, after that many seconds at most."""
        with self._lock:
            self._ended = True
            return self._resigned.wait_for(lambda: self._leader is None, timeout)
