"""What the broker has of one application (client_id and farm_id): its store, and what is under way in it.

Unless a docstring says otherwise, methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ignis.app import Ignis
from ignis.broker.crashes import count_crash
from ignis.broker.delivery import Pump
from ignis.broker.holding import Run, as_pointers
from ignis.broker.inbox import Inbox
from ignis.broker.turns import Turns
from ignis.broker.watching import Watch
from ignis.errors import IgnisError, QueueNotFoundError, TooManyRequestsError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.storage.base import QueueRecord, Store

if TYPE_CHECKING:
    from ignis.broker.server import Broker

__all__ = ["OWNER_PREFIX", "Application"]

log = logging.getLogger("ignis.broker")

_RECORD_S = 5.0
_MOST_WATCHES = 1_024
_RECOVER_BATCH = 10_000
_RECOVER_S = 10.0

OWNER_PREFIX = "broker/"
"""How the owner of what a broker delivers begins, so that another one knows it may take that back."""


class Known(NamedTuple):
    """What is remembered of a magazine, and how long it is good (monotonic). Of its queue perhaps nothing is."""

    shards: int
    ttl_ms: int | None
    until_s: float


class Application:
    """Made when its first client connects; lives as long as the broker.

    Args:
        broker: whose.
        app: on the broker's store, with the application's ids.
    """

    def __init__(self, broker: Broker, app: Ignis) -> None:
        self.broker = broker
        self.app = app
        self.closed = False
        self.sessions = 0
        self.turns = Turns(self)
        self._inboxes: dict[str, Inbox] = {}
        self._pumps: dict[str, Pump] = {}
        self._watches: dict[str, Watch] = {}
        self._turn = itertools.count()
        self._delayed: dict[int, tuple[asyncio.TimerHandle, str, list[Run]]] = {}
        self._lock = threading.Lock()  # over those below, which threads of the store's use
        self._shards: dict[str, int] = {}
        self._records: dict[str, tuple[float, QueueRecord | None]] = {}
        self._recovered: dict[str, float] = {}
        self._known: dict[str, Known] = {}

    @property
    def store(self) -> Store:
        """Opened on first use, in a thread of the store's. Any thread."""
        return self.app.store

    @property
    def quick(self) -> bool:
        """Whether the event loop itself may try small writes and claims."""
        return self.store.magazines.quick

    # -- parts

    def inbox(self, magazine: str) -> Inbox:
        found = self._inboxes.get(magazine)
        if found is None:
            found = self._inboxes[magazine] = Inbox(self, magazine)
        return found

    def pump(self, magazine: str) -> Pump:
        found = self._pumps.get(magazine)
        if found is None:
            found = self._pumps[magazine] = Pump(self, magazine)
        return found

    def pump_of(self, magazine: str) -> Pump | None:
        """The magazine's pump, if there ever was a consumer."""
        return self._pumps.get(magazine)

    def watch(self, magazine: str) -> Watch:
        """Raises TooManyRequestsError when too many magazines are watched."""
        found = self._watches.get(magazine)
        if found is None:
            for name in [name for name, one in self._watches.items() if not one.wanted and one.stopped]:
                del self._watches[name]
            if len(self._watches) >= _MOST_WATCHES:
                raise TooManyRequestsError(len(self._watches), _MOST_WATCHES, "watched magazines")
            found = self._watches[magazine] = Watch(self, magazine)
        return found

    @property
    def inboxes(self) -> Iterable[Inbox]:
        return self._inboxes.values()

    @property
    def pumps(self) -> Iterable[Pump]:
        return self._pumps.values()

    def tidy(self) -> None:
        """Forgets what nobody uses: names come from clients."""
        for name in [name for name, one in self._inboxes.items() if one.idle]:
            del self._inboxes[name]
        for name in [name for name, one in self._pumps.items() if one.idle]:
            self.broker.delivered += self._pumps[name].delivered
            del self._pumps[name]

    def poke(self, magazine: str) -> None:
        """There may be room for deliveries."""
        pump = self._pumps.get(magazine)
        if pump is not None:
            pump.poke()

    # -- what is remembered of the store (any thread)

    def next_shard(self) -> int:
        """Rises with every batch that has no shard of its own."""
        return next(self._turn)

    def remembers(self, magazine: str) -> bool:
        """Whether `shards` would answer from memory."""
        return magazine in self._shards

    def known(self, magazine: str) -> Known | None:
        """What `shards` and `ttl_ms` would answer from memory; None when the store would have to be asked for the shards."""
        found = self._known.get(magazine)
        if found is not None and time.monotonic() <= found.until_s:
            return found
        with self._lock:
            shards = self._shards.get(magazine)
            if shards is None:
                return None
            at_s, record = self._records.get(magazine.removesuffix(SIDELINE_SUFFIX), (0.0, None))
            until_s = at_s + _RECORD_S
            if record is None or time.monotonic() > until_s:
                return Known(shards, None, 0.0)
            found = self._known[magazine] = Known(shards, record.message_expiry_s * 1000, until_s)
            return found

    def shards(self, magazine: str, *, fresh: bool = False) -> int:
        """Of the magazine, from memory unless ``fresh``. Raises QueueNotFoundError."""
        with self._lock:
            known = self._shards.get(magazine)
        if known is None or fresh:
            known = len(self.store.magazines.metadata(magazine))
            with self._lock:
                self._known.pop(magazine, None)
                self._shards[magazine] = known
        return known

    def ttl_ms(self, magazine: str) -> int:
        """The time to live that the magazine's queue gives its messages. Raises QueueNotFoundError."""
        record = self.record(magazine)
        if record is None:
            raise QueueNotFoundError(f"magazine {magazine!r} belongs to no queue; give a time to live")
        return record.message_expiry_s * 1000

    def record(self, magazine: str) -> QueueRecord | None:
        """The stored queue that a magazine belongs to, as it was at most five seconds ago."""
        name = magazine.removesuffix(SIDELINE_SUFFIX)
        with self._lock:
            at_s, record = self._records.get(name, (0.0, None))
        if record is None or time.monotonic() - at_s > _RECORD_S:
            record = self.store.queues.get(name)
            with self._lock:
                self._records[name] = time.monotonic(), record
        return record

    def forget(self, magazine: str) -> None:
        """After a change of its declaration or its queue."""
        with self._lock:
            self._known.pop(magazine, None)
            self._shards.pop(magazine, None)
            self._records.pop(magazine.removesuffix(SIDELINE_SUFFIX), None)

    def recover(self, magazine: str) -> None:
        """What brokers of this machine held when they died goes back to the tail; looked for every ten seconds at
        most. On stores that cannot prove a death it is the sweeper's."""
        with self._lock:
            if time.monotonic() < self._recovered.get(magazine, 0.0) + _RECOVER_S:
                return
            self._recovered[magazine] = time.monotonic()
        if self.store.local_dir is None:
            return
        magazines = self.store.magazines
        for shard in range(self.shards(magazine)):
            while True:
                found = magazines.abandoned(magazine, shard, 0, _RECOVER_BATCH)
                ours = [one.pointer for one in found if one.owner_dead and one.owner.startswith(OWNER_PREFIX)]
                if ours:
                    count = magazines.reload(magazine, {shard: ours})
                    log.info("%d message(s) of %s, delivered by a broker that died, are pending again", count, magazine)
                if not ours or len(found) < _RECOVER_BATCH:
                    break

    # -- giving back

    def give_back(self, magazine: str, runs: list[Run], crashed: bool = False) -> None:
        """Puts claimed messages back at their shards' tails; after their client was lost (``crashed``) see `count_crash`.
        Those that the store refuses now are tried again later."""
        if runs:
            self.broker.call(self._reload, self._reloaded, (magazine, runs, crashed))

    def give_back_later(self, magazine: str, runs: list[Run], delay_s: float) -> None:
        """The same after a while; until then they stay claimed by this broker, in the store too."""
        number = next(self._turn)

        def now() -> None:
            self._delayed.pop(number, None)
            self.give_back(magazine, runs)

        self._delayed[number] = self.broker.loop.call_later(delay_s, now), magazine, runs

    def give_back_delayed(self) -> None:
        """All of them now: the broker ends."""
        delayed, self._delayed = self._delayed, {}
        for timer, magazine, runs in delayed.values():
            timer.cancel()
            self.give_back(magazine, runs)

    def _reload(self, what: tuple[str, list[Run], bool]) -> tuple[str, list[Run], bool, int, BaseException | None]:
        magazine, runs, crashed = what
        aside = 0
        try:
            if crashed:
                aside = count_crash(self, magazine, runs)
            else:
                self.store.magazines.reload(magazine, as_pointers(runs))
        except QueueNotFoundError:
            pass  # dropped, with all that was in it
        except IgnisError as exc:
            return magazine, runs, crashed, aside, exc
        return magazine, runs, crashed, aside, None

    def _reloaded(self, result: tuple[str, list[Run], bool, int, BaseException | None]) -> None:
        magazine, runs, crashed, aside, error = result
        if aside:
            self.broker.sidelined += aside
            log.warning("%d message(s) of %s were held by too many lost connections: sideline", aside, magazine)
        if error is None:
            self.poke(magazine)
        elif self.closed or self.broker.draining:
            log.error("messages of %s could not be given back and are left to the sweeper: %s", magazine, error)
        else:
            log.warning("messages of %s could not be given back, trying again: %s", magazine, error)
            self.broker.loop.call_later(1.0, self.give_back, magazine, runs, crashed)

    def close(self) -> None:
        """Closes the store. In any thread; nothing of it may be under way."""
        self.closed = True
        self.app.close()
