"""What the broker has of one application (client_id and farm_id): its store, and what is under way in it.

Unless a docstring says otherwise, methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ignis.app import Ignis
from ignis.broker.protocol.in_flight import Run, as_pointers
from ignis.broker.server.claim_renewal import ClaimRenewal
from ignis.broker.server.claimants import CLIENT_PREFIX, OWNER_PREFIX
from ignis.broker.server.dispatcher import Dispatcher
from ignis.broker.server.load_notifier import Watch
from ignis.broker.server.publish_buffer import PublishBuffer
from ignis.broker.server.redelivery import count_crash
from ignis.broker.server.write_batcher import WriteBatcher
from ignis.errors import ClosedError, IgnisError, QueueNotFoundError, TooManyRequestsError
from ignis.log_limit import LimitedLog
from ignis.magazine import SIDELINE_SUFFIX
from ignis.pausing import PAUSED
from ignis.storage.base import QueueRecord, Store
from ignis.storage.checks import check_magazine

if TYPE_CHECKING:
    from ignis.broker.server.server import Broker
    from ignis.broker.server.session import Session

__all__ = ["Application"]

log = logging.getLogger("ignis.broker")

_RECORD_S = 5.0
_PAUSES_S = 2.0
_MOST_WATCHES = 1_024
_RECOVER_S = 10.0

_OTHERS_S = 60.0
_GRACE_S = 5.0
"""On top of ``redeliver_after_s``: how long after the start of a broker the clients of the one before it have to come back.
They look for it every half second, and try to connect every two seconds at least."""


class Known(NamedTuple):
    """What is remembered of a magazine, and how long it is good (monotonic). Of its queue perhaps nothing is."""

    shards: int
    ttl_ms: int | None
    until_s: float


class Application:
    """Made when its first client connects that may do anything; ends a while after the last has left.

    Args:
        broker: whose.
        app: on the broker's store, with the application's ids.
    """

    def __init__(self, broker: Broker, app: Ignis) -> None:
        self.broker = broker
        self.app = app
        self.closed = False
        self.users = 0
        """Connections, those that are being let in included. Guarded by the broker."""
        self.holders: Counter[str] = Counter()
        """Whose they are: see `Broker.holder`. Guarded likewise."""
        self.idle_since_s: float | None = None
        self._returning = 0
        self.said = LimitedLog(log)
        self.calls = 0
        """Requests of its connections that are at the store."""
        self.turns = WriteBatcher(self)
        self._inboxes: dict[str, PublishBuffer] = {}
        self._pumps: dict[str, Dispatcher] = {}
        self._watches: dict[str, Watch] = {}
        self._turn = itertools.count()
        self._delayed: dict[int, tuple[asyncio.TimerHandle, str, list[Run]]] = {}
        self._lock = threading.Lock()  # over those below, which threads of the store's use
        self._shards: dict[str, int] = {}
        self._records: dict[str, tuple[float, QueueRecord | None]] = {}
        self._recovered: dict[str, float] = {}
        self._known: dict[str, Known] = {}
        self._renewing = ClaimRenewal(self)
        self._pauses_due_s = 0.0
        self.known_paused: set[str] = set()
        """Of the queues whose messages somebody waits for, those that were found paused."""
        self._opened_s = time.monotonic()
        self._take_back_s = self._opened_s + broker.settings.redeliver_after_s + _GRACE_S

    def enter(self, holder: str | None) -> None:
        """One connection more; None = none. Under the broker's guard."""
        if holder is None:
            return
        self.users += 1
        if holder:
            self.holders[holder] += 1

    def leave(self, holder: str) -> None:
        """One connection less. Under the broker's guard."""
        self.users -= 1
        if holder:
            self.holders -= Counter((holder,))  # forgets those with none left

    @property
    def store(self) -> Store:
        """Opened on first use, in a thread of the store's. Any thread."""
        return self.app.store

    @property
    def quick(self) -> bool:
        """Whether the event loop itself may try small writes and claims."""
        return self.store.magazines.quick

    @property
    def young(self) -> bool:
        """Whether clients may still hold what a broker before this one claimed for them."""
        return time.monotonic() < self._opened_s + _OTHERS_S

    # -- parts

    def inbox(self, magazine: str) -> PublishBuffer:
        """Raises InvalidNameError."""
        found = self._inboxes.get(magazine)
        if found is None:
            check_magazine(magazine)
            found = self._inboxes[magazine] = PublishBuffer(self, magazine)
        return found

    def pump(self, magazine: str) -> Dispatcher:
        found = self._pumps.get(magazine)
        if found is None:
            found = self._pumps[magazine] = Dispatcher(self, magazine)
        return found

    def pump_of(self, magazine: str) -> Dispatcher | None:
        """The magazine's pump, if there ever was a consumer."""
        return self._pumps.get(magazine)

    def watch(self, magazine: str) -> Watch:
        """Raises TooManyRequestsError when too many magazines are watched."""
        found = self._watches.get(magazine)
        if found is None:
            for name in [name for name, one in self._watches.items() if one.over]:
                del self._watches[name]
            if len(self._watches) >= _MOST_WATCHES:
                raise TooManyRequestsError(len(self._watches), _MOST_WATCHES, "watched magazines")
            found = self._watches[magazine] = Watch(self, magazine)
        return found

    def unwatch(self, magazine: str) -> None:
        """No delivery waits for the magazine any more."""
        found = self._watches.get(magazine)
        if found is not None:
            found.changed = None

    @property
    def inboxes(self) -> Iterable[PublishBuffer]:
        return self._inboxes.values()

    @property
    def pumps(self) -> Iterable[Dispatcher]:
        return self._pumps.values()

    def tidy(self) -> None:
        """Forgets what nobody uses: names come from clients."""
        for name in [name for name, one in self._inboxes.items() if one.idle]:
            del self._inboxes[name]
        for name in [name for name, one in self._pumps.items() if one.idle]:
            self.broker.delivered += self._pumps[name].delivered
            del self._pumps[name]
        for name in [name for name, one in self._watches.items() if one.over]:
            del self._watches[name]
        now_s = time.monotonic()
        with self._lock:
            self._records = {name: one for name, one in self._records.items() if now_s - one[0] <= _RECORD_S}
            self._recovered = {name: at_s for name, at_s in self._recovered.items() if now_s - at_s <= _RECOVER_S}
            self._known = {name: one for name, one in self._known.items() if now_s <= one.until_s}
        self.known_paused &= self._pumps.keys()

    def poke(self, magazine: str) -> None:
        """There may be room for deliveries, or messages."""
        pump = self._pumps.get(magazine)
        if pump is not None:
            pump.poke()
        watch = self._watches.get(magazine)
        if watch is not None:
            watch.look()

    @property
    def idle(self) -> bool:
        """Whether nobody is connected, and nothing is under way or owed."""
        return (
            not (self.users or self.calls or self._returning or self._delayed)
            and self.turns.idle
            and all(one.idle for one in self._inboxes.values())
            and all(one.idle for one in self._pumps.values())
            and not any(one.wanted for one in self._watches.values())
        )

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

    def paused(self, magazine: str) -> bool:
        """Whether nothing is to be delivered of it, as it was at most five seconds ago. Its sideline goes on."""
        record = None if magazine.endswith(SIDELINE_SUFFIX) else self.record(magazine)
        return record is not None and PAUSED in record.extra

    def look_at(self, magazine: str) -> None:
        """The queue's record has changed."""
        pump = self._pumps.get(magazine)
        if pump is not None:
            pump.look()

    def forget(self, magazine: str) -> None:
        """After a change of its declaration or its queue."""
        with self._lock:
            self._known.pop(magazine, None)
            self._shards.pop(magazine, None)
            self._records.pop(magazine.removesuffix(SIDELINE_SUFFIX), None)

    def look(self, now: float, sessions: list[Session]) -> None:
        """Now and then: renews what is being worked on; and once, when clients of an earlier broker had time to come back,
        takes back what those held that did not."""
        delayed: dict[str, list[Run]] = {}
        for _, magazine, runs in self._delayed.values():
            delayed.setdefault(magazine, []).extend(runs)
        self._renewing.look(now, sessions, delayed)
        self._look_for_pauses()
        if time.monotonic() >= self._take_back_s and not self.broker.draining:
            self._take_back_s = math.inf
            self.broker.call(self._take_back, self._took_back, None, self._not_taken_back)

    def _look_for_pauses(self) -> None:
        """Now and then, for the queues whose messages somebody waits for: others may have paused or resumed them."""
        waited_for = [
            name for name, pump in self._pumps.items() if pump.consumers and not name.endswith(SIDELINE_SUFFIX)
        ]
        if not waited_for or time.monotonic() < self._pauses_due_s:
            return
        self._pauses_due_s = math.inf

        def read(names: list[str]) -> dict[str, bool]:
            return {name: self.paused(name) for name in names}

        def compare(found: dict[str, bool]) -> None:
            self._pauses_due_s = time.monotonic() + _PAUSES_S
            for name, paused in found.items():
                if paused != (name in self.known_paused):
                    self.known_paused ^= {name}
                    self.look_at(name)

        def failed(exc: BaseException) -> None:
            self._pauses_due_s = time.monotonic() + _PAUSES_S
            if not isinstance(exc, IgnisError):
                self.said.error("pauses cannot be looked for", exc_info=exc)

        self.broker.call(read, compare, waited_for, failed)

    def _take_back(self, _: None) -> tuple[bool, list[tuple[str, str, list[Run]]]]:
        """What clients hold whose broker died. In a thread. Returns whether this broker is the only one of the store, without
        which those who are not here may be at another; and (owner, magazine, runs) of those that came back."""
        alone = len(self.broker.cluster.members()) <= 1
        found: list[tuple[str, str, list[Run]]] = []
        for magazine in self.store.magazines.names():
            try:
                found += self._recover(magazine, everybody=True, absent=alone)
            except QueueNotFoundError:
                continue  # dropped meanwhile
        return alone, found

    def _took_back(self, result: tuple[bool, list[tuple[str, str, list[Run]]]]) -> None:
        """What a client holds that came back is its connection's again, unless it has said so itself."""
        alone, found = result
        if not alone and time.monotonic() < self._opened_s + _OTHERS_S:
            # The broker before this one is listed for some seconds more.
            self._take_back_s = time.monotonic() + _GRACE_S
        for owner, magazine, runs in found:
            for session in self.broker.sessions_of(owner)[-1:]:
                if session.application is self and magazine not in session.held.ever:
                    session.take_up(magazine, runs)

    def _not_taken_back(self, exc: BaseException) -> None:
        if not isinstance(exc, ClosedError):
            self._take_back_s = time.monotonic() + _GRACE_S
            self.said.warning("what clients of an earlier broker held cannot be looked for, trying again: %s", exc)

    def recover(self, magazine: str) -> None:
        """What was held by clients and brokers of this machine that are dead goes back to the tail; looked for every ten
        seconds at most. On stores that cannot prove a death quickly it is the sweeper's."""
        with self._lock:
            if time.monotonic() < self._recovered.get(magazine, 0.0) + _RECOVER_S:
                return
            self._recovered[magazine] = time.monotonic()
        if self.store.local_dir is not None:
            self._recover(magazine)

    def _recover(
        self, magazine: str, *, everybody: bool = False, absent: bool = False
    ) -> list[tuple[str, str, list[Run]]]:
        """Gives back what the dead held: one crash more for a client's, which may have died of it. With ``absent`` also what
        is held by clients that are not here; theirs is no crash. Returns, with ``everybody``, what those hold that are here."""
        magazines = self.store.magazines
        present: list[tuple[str, str, list[Run]]] = []
        claimants = magazines.claimants(magazine)
        awaited = self.broker.awaited() if claimants else set()
        for owner, dead in claimants.items():
            if not owner.startswith(OWNER_PREFIX) or owner == self.broker.owner:
                continue
            is_client = owner.startswith(CLIENT_PREFIX)
            # If its process is dead all the same, its connection ends, and what it held goes back for that.
            here = is_client and owner in awaited
            gone = not here and (dead or (absent and is_client))
            if not gone and not everybody:
                continue
            runs = [(one.shard, one.first, one.last + 1) for one in magazines.held(magazine, owner)]
            if not gone:
                present.append((owner, magazine, runs))
                continue
            if dead and is_client:
                count_crash(self, magazine, runs)
            else:
                magazines.reload(magazine, as_pointers(runs))
            log.info(
                "%d run(s) of %s, held by %s, which is %s, go back",
                len(runs),
                magazine,
                owner,
                "dead" if dead else "gone",
            )
        return present

    # -- giving back

    def give_back(self, magazine: str, runs: list[Run], crashed: bool = False) -> None:
        """Puts claimed messages back at their shards' tails; after their client was lost (``crashed``) see `count_crash`.
        Those that the store refuses now are tried again later."""
        if runs:
            self._returning += 1
            self.broker.call(self._reload, self._reloaded, (magazine, runs, crashed))

    def give_back_later(self, magazine: str, runs: list[Run], delay_s: float, owner: str) -> None:
        """The same after a while; until then they are claimed by this broker, in the store too: ``owner``, who gave them up,
        may end meanwhile."""
        number = next(self._turn)

        def hand_over(_: None) -> None:
            self.store.magazines.renew_claims(magazine, as_pointers(runs), owner, to_owner=self.broker.owner)

        self.broker.call(hand_over, lambda _: None, None)

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
        except Exception as exc:
            # Nothing that is known. The messages come back all the same, if need be without being counted.
            self.said.error("messages of %s could not be given back", magazine, about=magazine, exc_info=exc)
            return self._reload((magazine, runs, False)) if crashed else (magazine, runs, crashed, aside, exc)
        return magazine, runs, crashed, aside, None

    def _reloaded(self, result: tuple[str, list[Run], bool, int, BaseException | None]) -> None:
        self._returning -= 1
        magazine, runs, crashed, aside, error = result
        if aside:
            self.broker.sidelined += aside
            self.said.warning(
                "%d message(s) of %s were held by too many lost connections: sideline", aside, magazine, about=magazine
            )
        if error is None:
            self.poke(magazine)
        elif self.closed or self.broker.draining:
            log.error("messages of %s could not be given back and are left to the sweeper: %s", magazine, error)
        else:
            self.said.warning(
                "messages of %s could not be given back, trying again: %s", magazine, error, about=magazine
            )
            self._returning += 1
            self.broker.loop.call_later(1.0, self._give_back_again, magazine, runs, crashed)

    def _give_back_again(self, magazine: str, runs: list[Run], crashed: bool) -> None:
        self._returning -= 1
        self.give_back(magazine, runs, crashed)

    def close(self) -> None:
        """Closes the store. In any thread; nothing of it may be under way."""
        self.closed = True
        self.app.close()
