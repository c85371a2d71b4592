"""What one connection consumes: subscriptions, pulls, waits, acknowledgements. Runs on the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.in_flight import MOST_RUNS, InFlight, PointerRange, as_pointers, runs_of
from ignis.broker.protocol.machine import Request
from ignis.broker.protocol.payloads import (
    AnyNamed,
    Consume,
    Credit,
    Fire,
    Nack,
    Named,
    Subscribe,
    Unsubscribe,
    Wait,
)
from ignis.broker.server.application import Application
from ignis.broker.server.caller import Caller
from ignis.broker.server.claimants import owner_for
from ignis.broker.server.long_work import Work
from ignis.broker.server.queue_commands import sideline
from ignis.broker.server.subscription import Subscription
from ignis.broker.server.waiting_limit import Waits
from ignis.errors import BadRequestError, ConfigError, DrainingError, IgnisError, TooManyRequestsError
from ignis.native.wire import count_runs, runs_between, unpack_runs

__all__ = ["ACTIONS", "ConsumerCommands"]

A = TypeVar("A")
R = TypeVar("R")


class ConsumerCommands:
    """Carries out what one session consumes: subscribes, pulls, acknowledges."""

    def __init__(self, session: Caller) -> None:
        self.waits: dict[int, Callable[[], None]] = {}
        self._session = session
        self._claims = session.claims
        self._settings = session.context.settings
        self._state = session.context.state
        self._threads = session.context.threads
        self._subscriptions: dict[int, Subscription] = {}
        self._pulls: dict[int, Subscription] = {}
        self._waiting = Waits(session.context.waiting)
        """What the broker holds back for this connection: pulls and waits."""
        self._begun: set[Subscription] = set()
        """Pulls of which a thread looks whether there is such a queue."""
        self._looks: deque[Callable[[], None]] = deque()
        """What is to be looked up of messages that the connection does not hold; the first is under way."""

    @property
    def subscriptions(self) -> int:
        return len(self._subscriptions)

    def take(self, request: Request) -> bool:
        """Carries the request out if it is one of these. Raises what is to be answered."""
        action = ACTIONS.get(request.command)
        if action is not None:
            action(self, request)
            return True
        if request.command == Command.FIRE:
            return self._fire(request)
        if request.command == Command.WAKE:
            self._wake(request)  # and the store's wait too
        return False

    def end(self) -> None:
        """The connection is over: nothing more is delivered to it."""
        for consumer in [*self._subscriptions.values(), *self._pulls.values()]:
            self._application.pump(consumer.magazine).remove(consumer)
        self._subscriptions.clear()
        self._pulls.clear()
        self._waiting.end_all()
        for drop in self.waits.values():
            drop()
        self.waits.clear()

    def _over(self, consumer: Subscription, exc: BaseException | None) -> None:
        """A pull was answered; or the broker cannot go on delivering, and the pull or subscription ends with the reason."""
        self._pulls.pop(consumer.request_id, None)
        if consumer.once:
            self._waiting.end()
        if exc is None:
            return
        self._subscriptions.pop(consumer.request_id, None)
        if consumer.once:
            self._session.refuse(consumer.request_id, exc)
        else:
            self._session.fail_stream(consumer.request_id, exc)

    def stop_pulls(self) -> None:
        """Every pull is answered now, mostly with nothing: the broker drains."""
        for consumer in list(self._pulls.values()):
            self._application.pump(consumer.magazine).stop_pull(consumer)

    def poke(self) -> None:
        """The connection can be written to again."""
        for magazine in {one.magazine for one in [*self._subscriptions.values(), *self._pulls.values()]}:
            self._application.poke(magazine)

    @property
    def _application(self) -> Application:
        application = self._session.application
        assert application is not None
        return application

    # -- subscriptions

    def magazine_of(self, payload: bytes) -> str | None:
        """Returns the magazine of the subscription that an UNSUBSCRIBE or CREDIT names; None when there is none. Raises
        BadRequestError."""
        consumer = self._subscriptions.get(unpack(payload, Unsubscribe)[0].subscription)
        return None if consumer is None else consumer.magazine

    def _subscribe(self, request: Request) -> None:
        head, _ = unpack(request.payload, Subscribe)
        if any(one.magazine == head.queue for one in self._subscriptions.values()):
            raise BadRequestError(f"this connection is subscribed to {head.queue!r} already; change its credit instead")
        consumer = Subscription(
            self._session,
            request.request_id,
            head.queue,
            self._credit(head.credit),
            self._bytes(head.max_bytes),
            once=False,
            over=self._over,
        )

        session, application = self._session, self._application

        def exists(_: None) -> list[PointerRange]:
            application.facts.shards(head.queue)
            if not application.recovery.young:
                return []
            # A broker before this one may have delivered some of it.
            held = application.store.magazines.held(head.queue, session.owner)
            return [(one.shard, one.first, one.last + 1) for one in held]

        def begin(claimed: list[PointerRange]) -> None:
            if session.closed:
                return
            if head.queue not in self._claims.resumed:
                # A subscription ends with its connection: what it left unacknowledged comes again.
                earlier = self._claims.take(head.queue, self._claims.earlier.runs(head.queue))
                unknown = _difference(claimed, earlier + session.held.runs(head.queue))
                application.give_back(head.queue, earlier + unknown)
            session.result(request.request_id, request.request_id)
            self._subscriptions[request.request_id] = consumer
            try:
                self._application.pump(head.queue).add(consumer)
            except IgnisError as exc:
                self._session.fail_stream(request.request_id, exc)

        self._call(exists, begin, None, lambda exc: self._session.refuse(request.request_id, exc))

    def _call(
        self, work: Callable[[A], R], done: Callable[[R], None], argument: A, failed: Callable[[BaseException], None]
    ) -> None:
        """In a thread of the store's, in the line of its user."""
        self._threads.call(work, done, argument, failed, line=self._session.shares_with)

    def _credit(self, credit: int) -> int:
        most = self._settings.max_credit
        if not 0 <= credit <= most:
            raise ConfigError(f"credit = {credit} is outside 0 to {most} (broker.max_credit)")
        return credit

    def _bytes(self, max_bytes: int) -> int:
        return max(1, min(max_bytes, self._settings.max_outbound_bytes))

    def _unsubscribe(self, request: Request) -> None:
        head, _ = unpack(request.payload, Unsubscribe)
        consumer = self._subscriptions.pop(head.subscription, None)
        if consumer is not None:
            self._application.pump(consumer.magazine).remove(consumer)
        self._session.result(request.request_id, consumer is not None)

    def _change_credit(self, request: Request) -> None:
        head, _ = unpack(request.payload, Credit)
        consumer = self._subscriptions.get(head.subscription)
        if consumer is None:
            raise BadRequestError(f"no subscription {head.subscription} on this connection")
        consumer.credit = self._credit(head.credit)
        self._session.result(request.request_id, None)
        self._application.poke(consumer.magazine)

    # -- pulls

    def _consume(self, request: Request) -> None:
        head, _ = unpack(request.payload, Consume)
        if head.limit < 1:
            raise ConfigError(f"limit = {head.limit} is below 1")
        self._pull(request, head.queue, head.limit, head.timeout_ms, head.max_bytes, fired=False)

    def _fire(self, request: Request) -> bool:
        """A FIRE that waits, as a pull does, for what comes. False for any other."""
        head, _ = unpack(request.payload, Fire)
        owner = self._session.owner
        if (
            not head.timeout_ms
            or head.shards is not None
            or head.limit < 1
            or owner_for(head.owner, owner) is not owner
        ):
            return False
        self._pull(request, head.magazine, head.limit, head.timeout_ms, head.max_bytes, fired=True)
        return True

    def _wake(self, request: Request) -> None:
        """Who wakes a magazine ends the FIREs with which this connection waits for it."""
        head, _ = unpack(request.payload, AnyNamed)
        for consumer in [one for one in self._pulls.values() if one.fired and one.magazine == head.name]:
            self._application.pump(head.name).time_over(consumer)
        for consumer in self._begun:
            if consumer.fired and consumer.magazine == head.name:
                consumer.due = True

    def _pull(
        self, request: Request, magazine: str, limit: int, timeout_ms: int, max_bytes: int, *, fired: bool
    ) -> None:
        limit = min(limit, self._settings.max_credit)
        wait_s = min(max(0, timeout_ms) / 1000, self._settings.max_wait_s)
        consumer = Subscription(
            self._session, request.request_id, magazine, limit, self._bytes(max_bytes), True, self._over, fired
        )
        consumer.due = wait_s <= 0
        application = self._application
        self._waiting.begin(self._session.shares_with)

        def exists(_: None) -> int:
            return application.facts.shards(magazine)

        def begin(_: int) -> None:
            self._begun.discard(consumer)
            if self._session.closed:
                return
            if self._state.draining:
                self._waiting.end()
                self._session.refuse(request.request_id, DrainingError("the broker is shutting down"))
                return
            self._pulls[request.request_id] = consumer
            try:
                application.pump(magazine).add(consumer)
            except IgnisError as exc:
                self._pulls.pop(request.request_id, None)
                self._waiting.end()
                self._session.refuse(request.request_id, exc)
                return
            if not (consumer.ended or consumer.due):
                pump = application.pump(magazine)
                consumer.timer = self._session.context.loop.call_later(wait_s, pump.time_over, consumer)

        if application.store.magazines.quick and application.facts.remembers(magazine):
            begin(0)
            return

        def failed(exc: BaseException) -> None:
            self._begun.discard(consumer)
            self._waiting.end()
            self._session.refuse(request.request_id, exc)

        self._begun.add(consumer)
        self._call(exists, begin, None, failed)

    # -- waits

    def _wait(self, request: Request) -> None:
        head, _ = unpack(request.payload, Wait)
        session, application = self._session, self._application
        limit_s = min(max(0, head.timeout_ms) / 1000, self._settings.max_wait_s)

        def read(_: None) -> int:
            return application.store.magazines.wait(head.magazine, -1, 0)

        def was_read(sequence: int) -> None:
            if session.closed:
                return
            if sequence != head.seen or limit_s <= 0:
                session.result(request.request_id, sequence)
                return
            try:
                watch = application.watches.watch(head.magazine, session.shares_with)
                self._waiting.begin(session.shares_with)
            except IgnisError as exc:
                session.refuse(request.request_id, exc)
                return
            # Put down before, because the answer may come at once.
            self.waits[request.request_id] = _nothing
            drop = watch.wait(head.seen, limit_s, moved)
            if request.request_id in self.waits:
                self.waits[request.request_id] = drop

        def moved(sequence: int) -> None:
            if self.waits.pop(request.request_id, None) is not None:
                self._waiting.end()
                session.result(request.request_id, sequence)

        if application.store.magazines.quick and application.facts.remembers(head.magazine):
            was_read(read(None))
            return
        self._call(read, was_read, None, lambda exc: session.refuse(request.request_id, exc))

    # -- acknowledgements

    def _ack(self, request: Request) -> None:
        head, at = unpack(request.payload, Named)
        self._take_up(request, head.name, at, lambda mine: self._retire(request, head, mine))

    def _take_up(self, request: Request, magazine: str, at: int, then: Callable[[list[PointerRange]], None]) -> None:
        """Goes on with what the client holds of the runs, which it holds no longer. What its connection does not hold may have
        been delivered to it by a broker that died: that is so if the store has it claimed in its name."""
        session = self._session
        count = count_runs(request.payload, at)
        if count > MOST_RUNS:
            session.in_pieces(self._take_up_in_pieces(request, magazine, at, count, then), len(request.payload))
            return
        runs = unpack_runs(request.payload, at)
        mine = self._claims.take(magazine, runs)
        rest = _difference(runs, mine)
        if not rest:
            then(mine)
            return

        def look(runs: list[PointerRange]) -> list[PointerRange]:
            return self._claimed(magazine, runs)

        def found(more: list[PointerRange]) -> None:
            self._next_look()
            then(mine + more)

        refuse = self._refused(request, magazine, mine)

        def failed(exc: BaseException) -> None:
            self._next_look()
            refuse(exc)

        self._looks.append(lambda: self._call(look, found, rest, failed))
        if len(self._looks) == 1:
            self._looks[0]()

    def _claimed(self, magazine: str, runs: list[PointerRange]) -> list[PointerRange]:
        """What of the runs the store has claimed in the client's name. In a thread of the store's."""
        lost = self._application.store.magazines.renew_claims(magazine, as_pointers(runs), self._session.owner)
        return _difference(runs, [run for shard, many in lost.items() for run in runs_of(shard, many)])

    def _take_up_in_pieces(
        self, request: Request, magazine: str, at: int, count: int, then: Callable[[list[PointerRange]], None]
    ) -> Work:
        """`_take_up` of a long list."""
        mine: list[PointerRange] = []
        try:
            for first in range(0, count, MOST_RUNS):
                runs = runs_between(request.payload, at, first, min(count, first + MOST_RUNS))
                taken = self._claims.take(magazine, runs)
                mine += taken
                rest = _difference(runs, taken)
                mine += (yield partial(self._claimed, magazine, rest)) if rest else (yield None) or ()
        except Exception as exc:
            self._refused(request, magazine, mine)(exc)
        else:
            then(mine)

    def _next_look(self) -> None:
        """One at a time: a client that names what it does not hold takes one thread of the store's, and not all of them."""
        self._looks.popleft()
        if self._looks:
            self._looks[0]()

    def _retire(self, request: Request, head: Named, mine: list[PointerRange]) -> None:
        application, session = self._application, self._session
        if not mine:
            session.result(request.request_id, 0)
            return

        def deleted(count: int) -> None:
            if not session.closed:
                session.result(request.request_id, count)
            application.poke(head.name)

        application.turns.delete(
            head.name,
            mine,
            deleted,
            self._refused(request, head.name, mine),
            may_wait=not session.held.count_of(head.name),
        )

    def _settle(
        self,
        request: Request,
        magazine: str,
        runs: list[PointerRange],
        work: Callable[[list[PointerRange]], int],
        done: Callable[[int], None],
    ) -> None:
        self._call(work, done, runs, self._refused(request, magazine, runs))

    def _refused(self, request: Request, magazine: str, runs: list[PointerRange]) -> Callable[[BaseException], None]:
        """What is being settled is no longer held, so that it is not redelivered; it is again when the store
        refuses."""
        session = self._session

        def failed(exc: BaseException) -> None:
            if len(runs) > MOST_RUNS and not session.closed:
                session.in_pieces(hold_in_pieces(exc))
                return
            self._claims.hold(magazine, runs)
            if not session.closed:
                session.refuse(request.request_id, exc)

        def hold_in_pieces(exc: BaseException) -> Work:
            for first in range(0, len(runs), MOST_RUNS):
                self._claims.hold(magazine, runs[first : first + MOST_RUNS])
                yield None
            if not session.closed:
                session.refuse(request.request_id, exc)

        return failed

    def _nack(self, request: Request) -> None:
        head, at = unpack(request.payload, Nack)
        if head.action not in ("requeue", "sideline"):
            raise BadRequestError(f"action {head.action!r} is not requeue or sideline")
        if not 0 <= head.delay_ms <= 86_400_000:
            raise BadRequestError(f"delay_ms = {head.delay_ms} is outside 0 to 86400000")
        self._take_up(request, head.queue, at, lambda mine: self._refuse(request, head, mine))

    def _refuse(self, request: Request, head: Nack, mine: list[PointerRange]) -> None:
        application, session = self._application, self._session
        if not mine:
            session.result(request.request_id, 0)
            return
        if head.action == "requeue" and head.delay_ms:
            count = sum(stop - start for _, start, stop in mine)
            try:
                application.redelivery.give_back_later(
                    head.queue, mine, head.delay_ms / 1000, session.owner, session.shares_with
                )
            except TooManyRequestsError as exc:
                self._refused(request, head.queue, mine)(exc)
                return
            session.result(request.request_id, count)
            application.poke(head.queue)
            return

        def work(runs: list[PointerRange]) -> int:
            if head.action == "sideline":
                return sideline(application, head.queue, runs, head, self._state.sidelined, str(session.owner))
            return application.store.magazines.reload(head.queue, as_pointers(runs))

        def done(moved: int) -> None:
            if not session.closed:
                session.result(request.request_id, moved)
            application.poke(head.queue)

        self._settle(request, head.queue, mine, work, done)


def _difference(runs: list[PointerRange], taken: list[PointerRange]) -> list[PointerRange]:
    """The runs without what was taken of them."""
    if runs == taken:
        return []
    left = InFlight()
    left.add("", runs)
    left.take("", taken)
    return left.runs("")


def _nothing() -> None:
    """Takes nothing back."""


ACTIONS: dict[int, Callable[[ConsumerCommands, Request], None]] = {
    Command.SUBSCRIBE: ConsumerCommands._subscribe,
    Command.UNSUBSCRIBE: ConsumerCommands._unsubscribe,
    Command.CREDIT: ConsumerCommands._change_credit,
    Command.CONSUME: ConsumerCommands._consume,
    Command.ACK: ConsumerCommands._ack,
    Command.NACK: ConsumerCommands._nack,
    Command.WAIT: ConsumerCommands._wait,
}
