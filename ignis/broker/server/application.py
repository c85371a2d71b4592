"""What the broker has of one application (client_id and farm_id): its store, and what is under way in it.

Unless a docstring says otherwise, methods belong to the event loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from ignis.app import Ignis
from ignis.broker.protocol.in_flight import PointerRange
from ignis.broker.server.claim_renewal import ClaimRenewal
from ignis.broker.server.context import ApplicationContext, BrokerContext
from ignis.broker.server.dispatcher import Dispatcher
from ignis.broker.server.load_notifier import Watches
from ignis.broker.server.peer import Peer
from ignis.broker.server.publish_buffer import PublishBuffer
from ignis.broker.server.queue_facts import QueueFacts
from ignis.broker.server.recovery import Clients, Recovery
from ignis.broker.server.redelivery import Redelivery
from ignis.broker.server.write_batcher import WriteBatcher
from ignis.errors import IgnisError, InvalidNameError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native.lone import LoneLoads
from ignis.storage.checks import check_magazine
from ignis.storage.later import LATER_SUFFIX

__all__ = ["Application"]

log = logging.getLogger("ignis.broker")

_PAUSES_S = 2.0


class Application:
    """Made, in any thread, when its first client connects that may do anything; ends a while after the last has left.

    Args:
        broker: what the applications of a broker share.
        app: on the broker's store, with the application's ids. Its store is opened here.
        clients: who is connected to the broker.
    """

    def __init__(self, broker: BrokerContext, app: Ignis, clients: Clients) -> None:
        self.app = app
        self.store = app.store
        self.users = 0
        """Connections, those that are being let in included. Guarded by the broker."""
        self.holders: Counter[str] = Counter()
        """Whose they are: see `Broker.holder`. Guarded likewise."""
        self.idle_since_s: float | None = None
        self.calls = 0
        """Requests of its connections that are at the store."""
        self.facts = QueueFacts(self.store)
        self.watches = Watches(broker.loop, broker.watchers, self.store.magazines)
        said = LimitedLog(log)
        self.context = ApplicationContext(
            broker, self.store, self.store.magazines, self.facts, self.watches, said, self.poke
        )
        self.redelivery = Redelivery(self.context)
        self.recovery = Recovery(self.context, self.redelivery, clients)
        self.turns = WriteBatcher(self.context)
        self._broker = broker
        self._inboxes: dict[str, PublishBuffer] = {}
        self._pumps: dict[str, Dispatcher] = {}
        self.loads = LoneLoads(
            broker.lone, self._inboxes, self.facts.remembered, self._pumps, self.facts.turn, self.turns, self.poke,
            broker.state, broker.flushes, broker.spin,
        )  # fmt: skip
        """What comes alone, as far as nothing is to be looked up for it."""
        self._renewing = ClaimRenewal(self.context)
        self._pauses_due_s = 0.0

    def enter(self, holder: str | None) -> None:
        """Counts one connection more; None = none. Under the broker's guard."""
        if holder is None:
            return
        self.users += 1
        if holder:
            self.holders[holder] += 1

    def leave(self, holder: str) -> None:
        """Counts one connection less. Under the broker's guard."""
        self.users -= 1
        if holder:
            self.holders -= Counter((holder,))  # forgets those with none left

    # -- parts

    def inbox(self, magazine: str) -> PublishBuffer:
        """Raises InvalidNameError, also for a later magazine: what is put there needs a due time, and comes by LOAD_LATER."""
        found = self._inboxes.get(magazine)
        if found is None:
            check_magazine(magazine)
            if magazine.endswith(LATER_SUFFIX):
                raise InvalidNameError(
                    f"{magazine!r} takes delayed messages alone; send to {magazine.removesuffix(LATER_SUFFIX)!r}, "
                    "or with a due time"
                )
            found = self._inboxes[magazine] = PublishBuffer(self.context, magazine, self.turns, self._pumps.get)
        return found

    def known_inbox(self, magazine: str) -> PublishBuffer | None:
        """That of a magazine which was sent to before."""
        return self._inboxes.get(magazine)

    def pump(self, magazine: str) -> Dispatcher:
        found = self._pumps.get(magazine)
        if found is None:
            found = self._pumps[magazine] = Dispatcher(self.context, magazine, self.redelivery, self.recovery)
        return found

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
            self._broker.state.delivered += self._pumps[name].delivered
            del self._pumps[name]
        self.watches.tidy()
        self.facts.tidy()
        self.recovery.tidy()
        self.facts.known_paused &= self._pumps.keys()

    def note_delivered(self, count: int) -> None:
        """So many messages were given to who asked for them at once. Those of subscriptions the pumps count."""
        self._broker.state.delivered += count

    def poke(self, magazine: str) -> None:
        """Looks whether there are messages, and room for them."""
        # First, so that whatever is loaded behind this look is told by a thread.
        self.watches.look(magazine)
        pump = self._pumps.get(magazine)
        if pump is not None:
            pump.poke()

    def has_room(self, magazine: str) -> None:
        """Somebody holds less of it: looks whether messages wait for that."""
        pump = self._pumps.get(magazine)
        if pump is not None and not pump.drained:
            pump.poke()

    @property
    def idle(self) -> bool:
        """Whether nobody is connected, and nothing is under way or owed."""
        return (
            not (self.users or self.calls)
            and self.redelivery.idle
            and self.turns.idle
            and all(one.idle for one in self._inboxes.values())
            and all(one.idle for one in self._pumps.values())
            and not self.watches.wanted
        )

    def look_at(self, magazine: str) -> None:
        """The queue's record has changed."""
        pump = self._pumps.get(magazine)
        if pump is not None:
            pump.look()

    def look(self, now: float, peers: Sequence[Peer]) -> None:
        """Now and then, with the connections that hold anything: renews what is being worked on, and looks for pauses and for
        what was held at an earlier broker."""
        self._renewing.look(now, peers, self.redelivery.delayed())
        self._look_for_pauses()
        self.recovery.look()

    def _look_for_pauses(self) -> None:
        """Now and then, for the queues whose messages somebody waits for: others may have paused or resumed them."""
        waited_for = [
            name for name, pump in self._pumps.items() if pump.consumers and not name.endswith(SIDELINE_SUFFIX)
        ]
        if not waited_for or time.monotonic() < self._pauses_due_s:
            return
        self._pauses_due_s = math.inf

        def read(names: list[str]) -> dict[str, bool]:
            return {name: self.facts.paused(name) for name in names}

        def compare(found: dict[str, bool]) -> None:
            self._pauses_due_s = time.monotonic() + _PAUSES_S
            for name, paused in found.items():
                if paused != (name in self.facts.known_paused):
                    self.facts.known_paused ^= {name}
                    self.look_at(name)

        def failed(exc: BaseException) -> None:
            self._pauses_due_s = time.monotonic() + _PAUSES_S
            if not isinstance(exc, IgnisError):
                self.context.said.error(event_text("pause_look_failed", "pauses cannot be looked for"), exc_info=exc)

        self._broker.threads.call(read, compare, waited_for, failed)

    def give_back(self, magazine: str, runs: list[PointerRange], crashed: bool = False) -> None:
        """Gives messages back to their queue, see `Redelivery.give_back`."""
        self.redelivery.give_back(magazine, runs, crashed)

    def end(self) -> None:
        """Nobody uses it any more: what still comes back is left to others."""
        self.redelivery.closed = self.watches.closed = True

    def close(self) -> None:
        """Closes the store. In any thread; nothing of it may be under way."""
        self.end()
        self.app.close()
