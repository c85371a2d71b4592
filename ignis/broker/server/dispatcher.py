"""Delivery of one magazine to competing consumers: subscriptions with credit, and pulls that wait.

Everything runs on the event loop but the claim itself, and that too where the store is quick and no backlog is known of:
a few messages are claimed sooner than a thread is woken. One claim at a time per magazine, each for one consumer, which
take turns. A consumer gets no more than its credit, and nothing while its connection does not read what it was
sent.

A pull is answered with nothing only after a claim that was begun behind its request left nothing (``tried``), and not while
a claim is under way for it. Its time (``due``) decides when it is answered, never what: who asks and does not wait may
take an empty answer for an empty queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.in_flight import PointerRange
from ignis.broker.protocol.payloads import Delivery
from ignis.broker.server.context import ApplicationContext
from ignis.broker.server.load_notifier import Watch
from ignis.broker.server.recovery import Recovery
from ignis.broker.server.redelivery import Redelivery
from ignis.broker.server.subscription import Packed, Subscription, packed
from ignis.errors import DrainingError, IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import PackedBatch
from ignis.native.lone import LoneRequest
from ignis.native.wire import ClaimsFrame, pack_claims
from ignis.storage.base import MOST_FRUITLESS
from ignis.storage.write_batch import FiredInto

__all__ = ["DirectDelivery", "Dispatcher"]

log = logging.getLogger("ignis.broker")

_MOST_AT_ONCE = 1_024
_MOST_BYTES_AT_ONCE = 2 << 20
"""The largest claim by the event loop, which does nothing else meanwhile."""
_FEW = 64
"""After a claim of fewer the next one may follow in the same turn of the loop."""
_MOST_CLAIMS = 16
"""Claims in one turn of the loop, however small they are: there may be a thousand consumers with room for one message each."""
_RETRY_S = 0.5


_NOTHING = Packed(ClaimsFrame(), b"", [], 0, False)
_PAUSED = Packed(ClaimsFrame(), b"", [], 0, False)
"""What a claim on a paused queue finds: there may be messages, and nobody is to have them."""


class DirectDelivery:
    """A consumer that is given messages while they are being loaded. See `ignis.storage.write_batch.DirectReceiver`."""

    __slots__ = ("_consumer", "_pump", "_runs", "owner")

    def __init__(self, pump: Dispatcher, consumer: Subscription, owner: str) -> None:
        self.owner = owner
        self._pump = pump
        self._consumer = consumer
        self._runs: list[PointerRange] = []

    @property
    def given(self) -> bool:
        """Whether it has the messages."""
        return bool(self._runs)

    def give(self, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int]) -> None:
        """Gives the consumer messages that are its own if they are stored."""
        claims = ClaimsFrame()
        for (shard, batch), first in zip(batches, firsts, strict=True):
            claims.add_batch(shard, first, batch)
        found = packed(claims, FiredInto({}, 0, False))
        self._runs = found.runs
        self._pump.hand_over(self._consumer, found)

    def give_lone(self, lone: LoneRequest) -> None:
        """`give` of a request that was received alone."""
        self._runs = [lone.run]
        self._pump.hand_over_lone(self._consumer, lone, self._runs)

    def undo(self) -> None:
        """Takes back messages that were not stored. The consumer must not account for them: their pointers will be others'. What
        it says on this connection from now on is not heard."""
        peer = self._consumer.peer
        peer.claims.take(self._pump.magazine, self._runs)
        peer.abort()


class Dispatcher:
    """Claims what waits in one magazine and delivers it to its consumers in turn.

    Args:
        context: of the application.
        magazine: its name.
        redelivery: takes what was claimed for a consumer that is gone.
        recovery: takes back what the dead held, before a claim.
    """

    def __init__(self, context: ApplicationContext, magazine: str, redelivery: Redelivery, recovery: Recovery) -> None:
        self.magazine = magazine
        self.delivered = 0
        self.drained = False
        """The last claim found that there is nothing more: what comes since says so itself."""
        self._magazines = context.magazines
        self._watches = context.watches
        self._facts = context.facts
        self._state = context.broker.state
        self._loop = context.broker.loop
        self._threads = context.broker.threads
        self._redelivery = redelivery
        self._recovery = recovery
        self._subscriptions: deque[Subscription] = deque()
        self._said = LimitedLog(log)
        self._pulls: dict[Subscription, None] = {}
        """Pulls in the order of their requests. They go first. There may be very many: nothing is done for each of them per
        request, per claim or per time-out."""
        self._untried: dict[Subscription, int] = {}
        """Pulls for which no claim has left nothing yet, with their numbers, ascending."""
        self._over: dict[Subscription, None] = {}
        """Pulls that are due and tried."""
        self._due: dict[Subscription, None] = {}
        """Pulls that are due and not tried."""
        self._waiting = 0
        """How many of them are not due."""
        self._given = 0
        """Consumers that are given messages: all but those who claim by themselves (FIRE)."""
        self._number = 0
        """The number of the latest pull."""
        self._firing = False
        self._firing_for: Subscription | None = None
        self._witness = 0
        """The latest pull that was there when the claim of a thread was begun."""
        self._fruitless = 0
        self._watch: Watch | None = None
        self._again = False
        self._by_thread = True
        """The next claim is a thread's, which also takes back what clients that died have held."""
        self._planned = False
        self._empty_at = -1, -1
        """What `_count` was when a claim last left nothing: as long as it stays there is nothing to claim."""
        self._retry: asyncio.TimerHandle | None = None

    @property
    def consumers(self) -> int:
        return len(self._subscriptions) + len(self._pulls)

    @property
    def gives(self) -> bool:
        """Whether anybody waits who is given messages; who claims by himself is told of them."""
        return self._given > 0

    @property
    def idle(self) -> bool:
        return not self.consumers and not self._firing

    def add(self, consumer: Subscription) -> None:
        """Gives the consumer messages from now on. Raises TooManyRequestsError when too many magazines are watched."""
        if not consumer.due:
            watch = self._watches.watch(self.magazine, consumer.peer.shares_with)
            if watch.changed is None:
                watch.changed = self.poke
            watch.ensure()
            self._watch = watch
        self._given += not consumer.fired
        if consumer.once:
            self._number += 1
            self._pulls[consumer] = None
            if consumer.due:
                self._due[consumer] = None
            else:
                self._waiting += 1
                if self._is_empty():
                    consumer.tried = True
                    return
            self._untried[consumer] = self._number
        else:
            self._subscriptions.append(consumer)
        self.poke()

    def _is_empty(self) -> bool:
        """Whether a claim that is begun now would leave nothing, as the last one did."""
        if self._firing or self._by_thread:
            return False
        try:
            return self._magazines.quick and self._count() == self._empty_at
        except IgnisError:  # the claim says so
            return False

    def remove(self, consumer: Subscription) -> None:
        """Gives the consumer nothing more. Idempotent."""
        consumer.ended = True
        if consumer.timer is not None:
            consumer.timer.cancel()
        if consumer in self._pulls:
            del self._pulls[consumer]
            self._untried.pop(consumer, None)
            self._over.pop(consumer, None)
            self._due.pop(consumer, None)
            self._waiting -= not consumer.due
        elif consumer in self._subscriptions:
            self._subscriptions.remove(consumer)
        else:
            return
        self._given -= not consumer.fired
        if not self._subscriptions and not self._waiting:
            self._watches.unwatch(self.magazine)

    def time_over(self, consumer: Subscription) -> None:
        """A pull waits no longer: an empty answer, as soon as it is known to be true."""
        if consumer.ended or consumer.due:
            return
        consumer.due = True
        self._waiting -= 1
        if consumer.tried:
            self._over[consumer] = None
        else:
            self._due[consumer] = None
            self.poke()
        self._answer_due()

    def stop_pull(self, consumer: Subscription) -> None:
        """The broker drains: a pull is answered now."""
        if consumer.tried:
            self._end_pull(consumer)
        else:
            self._refuse_pull(consumer, DrainingError("the broker is shutting down"))

    def _end_pull(self, consumer: Subscription) -> None:
        self.remove(consumer)
        consumer.over(consumer, None)
        consumer.peer.answer(Command.DELIVER, consumer.request_id, pack(Delivery(), pack_claims([])))

    def _refuse_pull(self, consumer: Subscription, exc: BaseException) -> None:
        self.remove(consumer)
        consumer.over(consumer, exc)

    def _found(self, witness: int, messages: int, more: bool) -> None:
        """A claim is over, which was begun when the pulls up to this number were there."""
        self._fruitless = 0 if messages or not more else self._fruitless + 1
        if more and self._fruitless < MOST_FRUITLESS:
            return
        self._fruitless = 0
        while self._untried:
            one, number = next(iter(self._untried.items()))
            if number > witness:
                break
            del self._untried[one]
            one.tried = True
            if one.due:
                del self._due[one]
                self._over[one] = None
        self._answer_due()

    def _answer_due(self) -> None:
        """Empty answers for those who wait no longer, and for whom nothing is being claimed."""
        for one in [one for one in self._over if one is not self._firing_for]:
            self._end_pull(one)

    def poke(self) -> None:
        """Claims if there may be messages, and room for them."""
        if self._firing:
            self._again = True
            return
        if self._state.draining:
            return
        claims = 0
        self.drained = False
        while (found_room := self._next()) is not None:
            consumer, room = found_room
            limit = min(room, _MOST_AT_ONCE)
            if self._by_thread or not self._magazines.quick:
                self._fire_in_thread(consumer, limit)
                return
            try:
                found = self._fire_at_once(consumer, limit)
            except Exception as exc:
                self._failed(exc)
                return
            if found is None or (found.more and not found.messages):
                self._fire_in_thread(consumer, limit)
                return
            if found.messages:
                self.hand_over(consumer, found)
            if self._pulls:
                self._found(self._number, found.messages, found.more)
            if not found.more:
                self.drained = True
                return
            claims += 1
            if found.messages >= _FEW or claims == _MOST_CLAIMS:
                self._go_on()
                return

    def _go_on(self) -> None:
        """The next claim in the next turn: a deep queue must not keep other connections waiting."""
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._planned_poke)

    def _planned_poke(self) -> None:
        self._planned = False
        self.poke()

    def taker(self, messages: int, nbytes: int) -> DirectDelivery | None:
        """Who can be given so many messages that are about to be loaded; None when nobody has room for them all, or others
        may be pending, which go first."""
        if self._firing or self._by_thread or self._state.draining:
            return None
        found = self._next()
        if found is None or found[1] < messages or found[0].max_bytes < nbytes:
            return None
        consumer = found[0]
        # Who claims by itself says to the next broker what it holds: that must be nothing which may never have been stored.
        if consumer.fired:
            return None
        try:
            if self._count() != self._empty_at:
                return None
        except IgnisError:  # of a queue that is gone, say: the load says so, to its sender
            return None
        if self._watch is not None:
            self._watch.loads()
        return DirectDelivery(self, consumer, consumer.peer.owner)

    def _count(self) -> tuple[int, int]:
        """Changes with each load. The number of a magazine that was made anew begins anew."""
        return self._facts.forgotten, self._magazines.wait(self.magazine, -1, 0)

    def look(self) -> None:
        """Does as `poke`, by a thread in any case: it also takes back what clients that died have held, and learns of a pause."""
        self._by_thread = True
        self.poke()

    def _fire_at_once(self, consumer: Subscription, limit: int) -> Packed | None:
        """A claim by the event loop; None when it would have to wait."""
        magazines = self._magazines
        count = self._count()
        # Not for who waits no longer: a load that is stored already may be announced a moment later.
        if count == self._empty_at and not consumer.due:
            return _NOTHING
        max_bytes = min(consumer.max_bytes, _MOST_BYTES_AT_ONCE)
        claims = ClaimsFrame()
        result = magazines.try_fire_into(claims, self.magazine, limit, consumer.peer.owner, max_bytes)
        if result is None:
            return None
        if not result.more:
            self._empty_at = count
        return packed(claims, result)

    def _fire_in_thread(self, consumer: Subscription, limit: int) -> None:
        self._firing, self._again = True, False
        self._firing_for, self._witness = consumer, self._number
        self._threads.call(self._fire, self._fired, (consumer, limit), line=f"magazine {self.magazine}")

    def _next(self) -> tuple[Subscription, int] | None:
        """Whose turn it is, and how many messages it may be given."""
        for consumer in self._pulls:
            if (room := consumer.room) > 0:
                return consumer, room
        for _ in range(len(self._subscriptions)):
            consumer = self._subscriptions[0]
            if (room := consumer.room) > 0:
                return consumer, room
            self._subscriptions.rotate(-1)
        return None

    def _fire(self, asked: tuple[Subscription, int]) -> tuple[Subscription, Packed]:
        """Claims, in a thread of the store's."""
        consumer, limit = asked
        try:
            self._recovery.recover(self.magazine)
            if self._facts.paused(self.magazine):
                return consumer, _PAUSED
            claims = ClaimsFrame()
            found = self._magazines.fire_into(
                claims, self.magazine, limit, consumer.peer.owner, max_bytes=consumer.max_bytes
            )
            return consumer, packed(claims, found)
        except Exception as exc:
            return consumer, _NOTHING._replace(error=exc)

    def _fired(self, found: tuple[Subscription, Packed]) -> None:
        self._firing = False
        self._firing_for = None
        consumer, claimed = found
        if claimed.error is not None:
            self._failed(claimed.error)
            return
        # A thread looks whether the pause is over, the event loop could not.
        self._by_thread = claimed is _PAUSED
        if claimed is _PAUSED:
            self._facts.known_paused.add(self.magazine)
        if claimed.messages:
            if consumer.ended or consumer.peer.closed:
                self._redelivery.give_back(self.magazine, claimed.runs)
            else:
                self.hand_over(consumer, claimed)
        self._found(self._witness, claimed.messages, claimed.more)
        if claimed.messages or claimed.more or self._again:
            self.poke()

    def hand_over(self, consumer: Subscription, claimed: Packed) -> None:
        """What was claimed for the consumer is its, and on its way."""
        self.delivered += claimed.messages
        peer = consumer.peer
        peer.held.add(self.magazine, claimed.runs)
        if consumer.fired:
            peer.claims.fired.add(self.magazine, claimed.runs)
        if consumer.once:
            self.remove(consumer)
            consumer.over(consumer, None)
            peer.answer_run(1, claimed.claims.frame(Command.DELIVER, consumer.request_id, claimed.head))
        else:
            peer.deliver(claimed.claims.frame(Command.DELIVER, consumer.request_id, claimed.head))
            if self._subscriptions and self._subscriptions[0] is consumer:
                self._subscriptions.rotate(-1)
        peer.flush()

    def hand_over_lone(self, consumer: Subscription, lone: LoneRequest, runs: list[PointerRange]) -> None:
        """`hand_over` of what was loaded for the consumer, from where it was received. It is sent first: what is to be noted can
        wait, and the consumer does."""
        peer = consumer.peer
        peer.deliver_lone(lone, consumer.request_id, 1 if consumer.once else 0)
        self.delivered += lone.count
        peer.held.add(self.magazine, runs)
        if consumer.once:
            self.remove(consumer)
            consumer.over(consumer, None)
        elif self._subscriptions and self._subscriptions[0] is consumer:
            self._subscriptions.rotate(-1)

    def _failed(self, exc: Exception) -> None:
        if isinstance(exc, IgnisError) and exc.retryable:
            self._said.warning(event_text("claim_failed", "claim on %s failed, trying again: %s"), self.magazine, exc)
            if self._retry is not None:
                self._retry.cancel()
            self._retry = self._loop.call_later(_RETRY_S, self.poke)
            for one in [*self._over, *self._due]:
                self._refuse_pull(one, exc)
            return
        if not isinstance(exc, IgnisError):
            self._said.error(event_text("claim_broken", "claim on %s failed"), self.magazine, exc_info=exc)
        for consumer in [*self._pulls, *self._subscriptions]:
            self.remove(consumer)
            consumer.over(consumer, exc)
