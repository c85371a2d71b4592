"""What connections send to one magazine, on its way into the store.

All connections put into one queue per magazine. While one load is being made durable, what arrives gathers and
becomes the next: one call of the store, one commit and one flush for however many connections. What waits is bounded
in bytes; above the bound the connections that send to this magazine are not read until it went down by half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ignis.broker.commands import OWN_TTL
from ignis.errors import BadRequestError, ConfigError
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import route_batch

if TYPE_CHECKING:
    from ignis.broker.application import Application

__all__ = ["Intake", "Placed", "Sent"]

_MOST_BYTES = 16 << 20
_MOST_BATCHES = 4_096


class Placed(NamedTuple):
    """A batch that is stored, and the ids of the requests it came from (int64 each) when those were single SENDs."""

    shard: int
    first: int
    messages: int
    request_ids: bytes | None


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


class Intake:
    """Of one magazine. Everything but `_load` runs on the event loop."""

    def __init__(self, application: Application, magazine: str) -> None:
        self.magazine = magazine
        self.bytes = 0
        self.loads = 0
        self.requests = 0
        self._application = application
        self._waiting: deque[Sent] = deque()
        self._busy = False
        self._blocked: list[Callable[[], None]] = []

    def put(self, sent: Sent) -> None:
        """Takes a request; its ``done`` is called when it is durable or refused."""
        self._waiting.append(sent)
        self.bytes += sent.nbytes
        self.requests += 1
        if not self._busy:
            self._start()

    @property
    def full(self) -> bool:
        """Whether senders are to wait: see `when_room`."""
        return self.bytes > self._application.broker.settings.max_intake_bytes

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back, once, when what waits went down to half the limit."""
        self._blocked.append(call)

    @property
    def waiting(self) -> int:
        """Requests that the store has not been given yet."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._busy and not self._waiting

    def _start(self) -> None:
        taken: list[Sent] = []
        room, batches = _MOST_BYTES, 0
        while self._waiting:
            following = self._waiting[0]
            room -= following.nbytes
            batches += len(following.batches)
            if taken and (room < 0 or batches > _MOST_BATCHES):
                break
            taken.append(self._waiting.popleft())
        self._busy = True
        self._application.broker.call(self._load, self._stored, taken)

    def _load(self, taken: list[Sent]) -> list[Sent]:
        """In a thread of the store's. Every request ends with what was placed or an error."""
        groups: dict[int, list[Sent]] = {}
        for sent in taken:
            try:
                self._place(sent)
            except Exception as exc:
                sent.error = exc
            else:
                groups.setdefault(sent.ttl_ms, []).append(sent)
        for ttl_ms, many in groups.items():
            batches = [(shard, batch) for sent in many for shard, batch, _ in sent.batches]
            try:
                firsts = self._application.store.magazines.load(
                    self.magazine, batches, ttl_ms / 1000 if ttl_ms else None
                )
            except Exception as exc:
                for sent in many:
                    sent.error = exc
                continue
            pointers = iter(firsts)
            for sent in many:
                sent.placed = [Placed(shard, next(pointers), batch.count, ids) for shard, batch, ids in sent.batches]
        return taken

    def _place(self, sent: Sent) -> None:
        """Finds shards and time to live. What is wrong with one request is found here, so that it does not fail the
        others that share its load."""
        shards = self._application.shards(self.magazine)
        if sent.ttl_ms == OWN_TTL:
            sent.ttl_ms = self._application.ttl_ms(self.magazine)
        elif sent.ttl_ms > 1 << 62:
            raise BadRequestError(f"ttl_ms = {sent.ttl_ms}")
        if any(shard == ANY_SHARD for shard, _, _ in sent.batches):
            turn = self._application.next_shard()
            sent.batches = [
                routed
                for shard, batch, ids in sent.batches
                for routed in (
                    route_batch(batch, shards, turn % shards, ids) if shard == ANY_SHARD else [(shard, batch, ids)]
                )
            ]
        worst = max((shard for shard, _, _ in sent.batches), default=0)
        if worst >= shards:
            shards = self._application.shards(self.magazine, fresh=True)
            if worst >= shards:
                raise ConfigError(f"shard {worst} of magazine {self.magazine!r}, which has {shards}")

    def _stored(self, taken: list[Sent]) -> None:
        self.loads += 1
        self._busy = False
        self.bytes -= sum(sent.nbytes for sent in taken)
        if self._waiting:
            self._start()
        for sent in taken:
            sent.done(sent)
        # The magazine's watch will say so too, a change of threads later.
        self._application.poke(self.magazine)
        if self._blocked and self.bytes <= self._application.broker.settings.max_intake_bytes // 2:
            blocked, self._blocked = self._blocked, []
            for call in blocked:
                call()
