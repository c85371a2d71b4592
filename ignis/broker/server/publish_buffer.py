"""What connections send to one magazine, on its way into the store.

All connections put into one queue per magazine. What arrives in one turn of the event loop, or while a load is under way,
gathers and becomes one load: one call of the store, one commit and one flush for however many connections. A small load is
made by the event loop itself where the store is quick (`WriteBatcher`), any other by a thread; never both at a time for one
magazine, so its messages keep their order. What waits is bounded in bytes; above the bound the connections that send to
this magazine are not read until it went down by half. Each may have brought one request more by then, so what waits in all
inboxes counts in `ReceiveLimits` too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ignis.broker.protocol.commands import OWN_TTL
from ignis.broker.server.context import ApplicationContext
from ignis.broker.server.dispatcher import DirectDelivery, Dispatcher
from ignis.broker.server.write_batcher import WriteBatcher
from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.magazine import queue_of
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.lone import LoneLane, LoneRequest
from ignis.native.wire import route_batch
from ignis.storage.checks import MAX_TTL_S
from ignis.storage.write_batch import PendingSync, WriteBatch

__all__ = ["Loading", "LoneSender", "Placed", "PublishBuffer", "Sent"]

log = logging.getLogger("ignis.broker")

_SMALL_BYTES = 1 << 20
"""What the event loop loads itself. More is worth a thread, whose work on it the loop need not wait for."""
_SMALL_BATCHES = 256
_MOST_BYTES = 16 << 20
_MOST_TTL_MS = MAX_TTL_S * 1000
_MOST_BATCHES = 4_096


class Placed(NamedTuple):
    """A batch that is stored, and the ids of the requests it came from (int64 each) when those were single SENDs."""

    shard: int
    first: int
    messages: int
    request_ids: bytes | None


class LoneSender(Protocol):
    """Who answers a request that was loaded on the spot."""

    def lone_stored(self, lone: LoneRequest) -> None:
        """It is durable."""

    def lone_pending(self, lone: LoneRequest) -> Callable[[BaseException | None], None]:
        """It is not durable yet; what is returned is called when it is, or with the error."""

    def lone_refused(self, lone: LoneRequest, exc: BaseException) -> None:
        """It was not loaded, and the sender is to be told why."""


class Sent:
    """One request, or a run of SENDs, until it is stored.

    Args:
        batches: (shard, batch, request ids or None); the shard may be `ANY_SHARD`.
        ttl_ms: 0 = never expires, `OWN_TTL` = as the queue says.
        done: called on the event loop with what was placed, or the error.
    """

    __slots__ = ("batches", "done", "error", "nbytes", "placed", "request_id", "ttl_ms")

    def __init__(
        self,
        batches: Sequence[tuple[int, PackedBatch, bytes | None]],
        ttl_ms: int,
        done: Callable[[Sent], None],
        request_id: int = 0,
    ) -> None:
        self.batches = batches
        self.ttl_ms = ttl_ms
        self.done = done
        self.request_id = request_id
        self.nbytes = sum(batch.nbytes for _, batch, _ in batches)
        self.placed: list[Placed] = []
        self.error: BaseException | None = None


class _UnknownError(Exception):
    """What a request needs to know is not remembered, and the store would have to be asked."""


class Loading:
    """A load that the event loop makes itself: what was taken, and the writes that it became."""

    __slots__ = ("_inbox", "_taken", "_taking", "_writes", "magazine")

    def __init__(
        self,
        inbox: PublishBuffer,
        taken: list[Sent],
        writes: list[tuple[WriteBatch, list[Sent]]],
        taking: DirectDelivery | None,
    ) -> None:
        self.magazine = inbox.magazine
        self._inbox = inbox
        self._taken = taken
        self._writes = writes
        self._taking = taking

    @property
    def writes(self) -> list[WriteBatch]:
        return [write for write, _ in self._writes]

    @property
    def given(self) -> bool:
        """Whether a consumer has the messages already."""
        return any(write.given for write, _ in self._writes)

    def check(self) -> bool:
        """Whether the writes were made. What a consumer was given, and was not stored, is taken from it."""
        done = all(write.done for write, _ in self._writes)
        if self.given and self._taking is not None and not (done and all(write.error is None for write in self.writes)):
            log.error(
                event_text("delivered_not_stored", "messages of %s were delivered and could not be stored"),
                self.magazine,
            )
            self._taking.undo()
        return done

    def to_thread(self) -> None:
        """It could not be made at once."""
        for write, many in self._writes:
            # Others by now, if they had been sealed for a transaction that was given up.
            batches = iter(write.batches or ())
            for sent in many:
                sent.batches = [(shard, next(batches)[1], ids) for shard, _, ids in sent.batches]
        self._inbox.start(self._taken)

    def finish(self, error: BaseException | None) -> None:
        """It is durable, or ``error``."""
        for write, many in self._writes:
            _tell(many, write.firsts, error or write.error)
        self._inbox.finish(self._taken)


def _tell(many: list[Sent], firsts: Sequence[int], error: BaseException | None) -> None:
    if error is not None:
        for sent in many:
            sent.error = error
        return
    pointers = iter(firsts)
    for sent in many:
        sent.placed = [Placed(shard, next(pointers), batch.count, ids) for shard, batch, ids in sent.batches]


class PublishBuffer:
    """Gathers what connections send to one magazine and loads it, one load at a time. All but `_load` runs on the event loop.

    Args:
        context: of the application.
        magazine: its name.
        batcher: makes the loads of the event loop.
        dispatcher_of: the dispatcher of a magazine, if there ever was a consumer.
    """

    def __init__(
        self,
        context: ApplicationContext,
        magazine: str,
        batcher: WriteBatcher,
        dispatcher_of: Callable[[str], Dispatcher | None],
    ) -> None:
        self.magazine = magazine
        self.queue = queue_of(magazine)
        """By which permissions are asked for."""
        self.bytes = 0
        self.loads = 0
        self.requests = 0
        self.lane: LoneLane | None = None
        """The way in for requests that come alone, while nothing else is on its way into the magazine. See `LoneLoads`."""
        self._magazines = context.magazines
        self._facts = context.facts
        self._poke = context.poke
        self._loop = context.broker.loop
        self._threads = context.broker.threads
        self._limit_bytes = context.broker.settings.max_inbox_bytes
        self._receiving = context.broker.receiving
        self._batcher = batcher
        self._dispatcher_of = dispatcher_of
        self._waiting: deque[Sent] = deque()
        self._busy = False
        self._planned = False
        self._blocked: list[Callable[[], None]] = []

    def put(self, sent: Sent) -> None:
        """Takes a request; its ``done`` is called when it is durable or refused."""
        self.lane = None  # what comes alone now would overtake it
        self._waiting.append(sent)
        self.bytes += sent.nbytes
        self._receiving.count_backlog(sent.nbytes)
        self.requests += 1
        self._begin()

    def load_lone(self, lone: LoneRequest, sender: LoneSender) -> bool:
        """Loads a request on the spot that came alone: nothing waits that it could share a load with. Who waits for its messages
        is given them. The sender is told when it is durable, perhaps from here. False when nothing was done, and it is to be
        `put` like any other."""
        if self._busy or self._planned or self._waiting or not self._magazines.quick:
            return False
        known, facts = self._facts.known(self.magazine), self._facts
        ttl_ms: int | None = lone.ttl_ms
        if known is None:
            return False
        if ttl_ms == OWN_TTL:
            ttl_ms = known.ttl_ms
        if ttl_ms is None or ttl_ms > _MOST_TTL_MS:
            return False
        taking, pump = None, self._dispatcher_of(self.magazine)
        if pump is not None and pump.gives:
            taking = pump.taker(lone.count, lone.nbytes)
            if taking is None:
                return False
        any_shard = facts.next_shard() % known.shards if lone.any_shard else 0
        ttl_s = ttl_ms / 1000 if ttl_ms else None
        try:
            loaded = self._magazines.try_load_lone(self.magazine, lone, known.shards, any_shard, ttl_s, taking)
        except Exception as exc:
            self.lone_failed(lone, taking, sender, exc)
            return True
        if loaded is False:
            self._take_back(taking)
            return False
        if self.lane is None:
            self.lane = self._magazines.lone_lane(self.magazine)
        if loaded is True:
            sender.lone_stored(lone)
            self.loads += 1
        else:
            self._flush_lone(lone, loaded, sender)
        self.requests += 1
        self._batcher.at_once += 1
        if taking is None:
            self._poke(self.magazine)
        return True

    def _flush_lone(self, lone: LoneRequest, unflushed: PendingSync, sender: LoneSender) -> None:
        """It is loaded, and durable with the next flush."""
        nbytes, done = lone.nbytes, sender.lone_pending(lone)
        self.bytes += nbytes

        def flushed(error: BaseException | None) -> None:
            self.flushed(nbytes)
            done(error)

        self._batcher.loaded(unflushed, flushed)

    def flushed(self, nbytes: int) -> None:
        """A request that came alone is durable, or refused."""
        self.bytes -= nbytes
        self.loads += 1
        if self._blocked:
            self._relieve()

    def lone_failed(self, lone: LoneRequest, taking: DirectDelivery | None, sender: LoneSender, exc: Exception) -> None:
        """Its load was refused."""
        self.lane = None
        self._take_back(taking)
        sender.lone_refused(lone, exc)

    def _take_back(self, taking: DirectDelivery | None) -> None:
        """The load did not succeed."""
        if taking is not None and taking.given:
            log.error(
                event_text("delivered_not_stored", "messages of %s were delivered and could not be stored"),
                self.magazine,
            )
            taking.undo()

    def _begin(self) -> None:
        if self._busy or self._planned or not self._waiting:
            return
        if self._magazines.quick and self._waiting[0].nbytes <= _SMALL_BYTES:
            self._planned = True
            self._batcher.load(self)
        else:
            self.start(self._take())

    @property
    def full(self) -> bool:
        """Whether senders are to wait, for this magazine's inbox or for all of them: see `when_room`."""
        return self.bytes > self._limit_bytes or self._receiving.crowded

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back, once, when what waits went down to half the limit."""
        self._blocked.append(call)

    @property
    def waiting(self) -> int:
        """Requests that the store has not been given yet."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._busy and not self._waiting and not self.bytes

    def try_take(self) -> Loading | None:
        """What waits, for a load by the event loop. None when it is too much for that, or something has to be looked up
        first: then a thread has been given it."""
        self._planned = False
        if self._busy or not self._waiting:
            return None
        taken = self._take(_SMALL_BYTES, _SMALL_BATCHES)
        if self._waiting:
            # More than one turn of the loop should be held up by. Not at once: what was taken goes first.
            self._loop.call_soon(self._begin)
        small = sum(sent.nbytes for sent in taken) <= _SMALL_BYTES
        if small and sum(len(sent.batches) for sent in taken) <= _SMALL_BATCHES:
            try:
                groups = self._by_ttl(taken, waits=False)
            except _UnknownError:
                pass
            else:
                taking = self._taker(taken) if len(groups) == 1 else None
                writes = [(self._write(many, ttl_ms, taking), many) for ttl_ms, many in groups.items()]
                return Loading(self, taken, writes, taking)
        self.start(taken)
        return None

    def _taker(self, taken: list[Sent]) -> DirectDelivery | None:
        pump = self._dispatcher_of(self.magazine)
        if pump is None:
            return None
        messages = sum(batch.count for sent in taken for _, batch, _ in sent.batches)
        return pump.taker(messages, sum(sent.nbytes for sent in taken))

    def _write(self, many: list[Sent], ttl_ms: int, taking: DirectDelivery | None) -> WriteBatch:
        batches = [(shard, batch) for sent in many for shard, batch, _ in sent.batches]
        return WriteBatch(self.magazine, batches, ttl_ms / 1000 if ttl_ms else None, taker=taking)

    def _take(self, most_bytes: int = _MOST_BYTES, most_batches: int = _MOST_BATCHES) -> list[Sent]:
        taken: list[Sent] = []
        room, batches = most_bytes, 0
        while self._waiting:
            following = self._waiting[0]
            room -= following.nbytes
            batches += len(following.batches)
            if taken and (room < 0 or batches > most_batches):
                break
            taken.append(self._waiting.popleft())
        return taken

    def start(self, taken: list[Sent]) -> None:
        """Has a thread load these; until it has, nothing else of this magazine is loaded."""
        self._busy = True
        self._threads.call(self._load, self._stored, taken, line=f"magazine {self.magazine}")

    def _by_ttl(self, taken: list[Sent], *, waits: bool) -> dict[int, list[Sent]]:
        """What can be loaded, by time to live; the others have their error. Raises _UnknownError if not ``waits``."""
        groups: dict[int, list[Sent]] = {}
        for sent in taken:
            try:
                self._place(sent, waits)
            except _UnknownError:
                raise
            except Exception as exc:
                sent.error = exc
            else:
                groups.setdefault(sent.ttl_ms, []).append(sent)
        return groups

    def _load(self, taken: list[Sent]) -> list[Sent]:
        """In a thread of the store's. Every request ends with what was placed or an error."""
        for ttl_ms, many in self._by_ttl(taken, waits=True).items():
            batches = [(shard, batch) for sent in many for shard, batch, _ in sent.batches]
            try:
                firsts = self._magazines.load(self.magazine, batches, ttl_ms / 1000 if ttl_ms else None)
            except Exception as exc:
                _tell(many, (), exc)
            else:
                _tell(many, firsts, None)
        return taken

    def _place(self, sent: Sent, waits: bool) -> None:
        """Finds shards and time to live. What is wrong with one request is found here, so that it does not fail the
        others that share its load."""
        facts = self._facts
        known = facts.known(self.magazine)
        ttl_ms = None if known is None else known.ttl_ms
        if not waits and (known is None or (sent.ttl_ms == OWN_TTL and ttl_ms is None)):
            raise _UnknownError
        shards = facts.shards(self.magazine) if known is None else known.shards
        if sent.ttl_ms == OWN_TTL:
            sent.ttl_ms = facts.ttl_ms(self.magazine) if ttl_ms is None else ttl_ms
        elif sent.ttl_ms > _MOST_TTL_MS:
            raise ConfigError(f"ttl_ms = {sent.ttl_ms} is outside 0 to {_MOST_TTL_MS}")
        if any(shard == ANY_SHARD for shard, _, _ in sent.batches):
            turn = facts.next_shard()
            sent.batches = [
                routed
                for shard, batch, ids in sent.batches
                for routed in (
                    route_batch(batch, shards, turn % shards, ids) if shard == ANY_SHARD else [(shard, batch, ids)]
                )
            ]
        worst = max((shard for shard, _, _ in sent.batches), default=0)
        if worst >= shards:
            if not waits:
                raise _UnknownError
            shards = facts.shards(self.magazine, fresh=True)
            if worst >= shards:
                raise ConfigError(f"shard {worst} of magazine {self.magazine!r}, which has {shards}")

    def _stored(self, taken: list[Sent]) -> None:
        self._busy = False
        self._begin()
        self.finish(taken)
        # The magazine's watch will say so too, a change of threads later.
        self._poke(self.magazine)

    def finish(self, taken: list[Sent]) -> None:
        """These are durable, or refused: their senders are told."""
        self.loads += 1
        nbytes = sum(sent.nbytes for sent in taken)
        self.bytes -= nbytes
        for sent in taken:
            sent.done(sent)
        self._receiving.count_backlog(-nbytes)
        self._relieve()

    def _relieve(self) -> None:
        if self._blocked and self.bytes <= self._limit_bytes // 2:
            blocked, self._blocked = self._blocked, []
            for call in blocked:
                call()
