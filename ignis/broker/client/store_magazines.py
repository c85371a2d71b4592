"""The messages of an ``ignis://`` store: every call of `MagazineStore` is a request to the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ignis.broker.client import requests, store_requests
from ignis.broker.client.client_request import encoded_name, ttl_ms_of
from ignis.broker.client.pending_loads import begin
from ignis.broker.client.slot import Slot
from ignis.broker.client.store_arguments import MOST_SHARDS, check_batches, pointer_pieces, row_pieces
from ignis.broker.client.store_calls import LOOK_S, StoreCalls
from ignis.broker.client.store_later import BrokerLater
from ignis.broker.client.sync_client import exchange_alone
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.payloads import unpack_send_ack
from ignis.errors import (
    ConnectionLostError,
    DrainingError,
    StoreTimeoutError,
    StoreUnreachableError,
    TooManyRequestsError,
)
from ignis.native import PackedBatch
from ignis.native.store import Recall
from ignis.native.wire import Outgoing, pointer_in_ack
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    Fence,
    FireResult,
    LoadedOnce,
    MagazineStore,
    Pointers,
    Run,
    ShardState,
    Transfer,
)
from ignis.storage.checks import check_declaration, check_dues, check_limit, check_owner
from ignis.storage.pending_load import PendingLoad
from ignis.storage.purging import PURGE_BATCH, Purged
from ignis.storage.records import group_pointers

__all__ = ["BrokerMagazines"]

_MOST_WAIT_S = 30.0
_LEAST_WAIT_S = 0.002
"""A FIRE is not held back for less."""
_HELD_S = 10.0
"""For so long the broker holds a FIRE back that finds nothing. One that is gone without a word is noticed that much later."""
_MOST_BODY_BYTES = 65_536
"""Of a message that is put together with the interpreter lock held."""


class BrokerMagazines(BrokerLater, MagazineStore):
    """The messages. Atomicity and durability are those of the store behind the broker, whose answer is waited for."""

    takes_bodies = True

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    @property
    def most_load_bytes(self) -> int:
        return self._calls.most_load_bytes

    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        check_declaration(magazine, shards, durability)
        self._calls.ask(store_requests.declare(magazine, shards, durability))

    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        if not batches:
            self._calls.ask(store_requests.metadata(magazine))
            return []
        if len(batches) == 1:
            shard, batch = batches[0]
            if not batch.sealed and 0 <= shard < MOST_SHARDS:
                first = self._load_one(magazine, shard, batch, ttl_s)
                if first is not None:
                    batch.seal(0, shard, first)
                    return [first]
        check_batches(batches)
        request = store_requests.load(magazine, batches, ttl_s)
        self._calls.check_size(len(request.payload))
        placed = self._calls.ask(request)
        firsts = [first for _, first, _ in placed]
        for (shard, batch), first in zip(batches, firsts, strict=True):
            batch.seal(0, shard, first)  # so that it is not loaded again
        return firsts

    def _load_one(self, magazine: str, shard: int, batch: PackedBatch, ttl_s: float | None) -> int | None:
        """Loads one batch where nobody else waits on the connection, without putting the request together; returns its first
        pointer. None when it was not sent."""
        gate, client = self._calls.gate, self._calls.client
        outgoing = store_requests.load_one(magazine, shard, batch, ttl_s)
        gate.enter()
        try:
            answer = exchange_alone(client, outgoing)
        finally:
            gate.leave()
        if answer is None:
            return None
        ((_, first, _),) = unpack_send_ack(answer)
        return first

    def load_body(
        self, magazine: str, shard: int, body: bytes, flags: int, ttl_s: float | None
    ) -> tuple[str, int, int] | None:
        if len(body) > _MOST_BODY_BYTES or not 0 <= shard < MOST_SHARDS:
            return None
        gate, client = self._calls.gate, self._calls.client
        ttl_ms = 0 if ttl_s is None else ttl_ms_of(ttl_s)
        outgoing = Outgoing.load_body(encoded_name(magazine), ttl_ms, shard, body, flags)
        gate.enter()
        try:
            answer = exchange_alone(client, outgoing)
        finally:
            gate.leave()
        return None if answer is None else (outgoing.message_id, shard, pointer_in_ack(answer))

    def begin_load(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        after: PendingLoad | None = None,
    ) -> PendingLoad | None:
        check_batches(batches)
        request = store_requests.load(magazine, batches, ttl_s)
        self._calls.check_size(len(request.payload))
        return begin(self._calls.client, self._calls.gate, request, batches, after)

    @property
    def tells_repeats(self) -> bool:  # type: ignore[override]
        """Whether the store behind the broker does; the broker says it when the connection is made."""
        broker = self._calls.broker
        return broker is not None and broker.tells_repeats

    def load_once(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        remember_s: float,
        dues_ms: Sequence[Sequence[int]] | None = None,
    ) -> list[LoadedOnce]:
        if dues_ms is not None:
            check_dues(dues_ms, [batch.count for _, batch in batches])
            self._check_keeps()
        if not batches:
            return []
        check_batches(batches)
        request = store_requests.load_once(magazine, batches, ttl_s, remember_s, dues_ms)
        self._calls.check_size(len(request.payload))
        done = self._calls.ask(request)
        for shard, batch in batches:
            batch.seal(0, shard, 1)  # so that it is not loaded again
        return done

    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        check_limit(limit)
        check_owner(owner)  # none at all is this client to the broker
        with self._calls.tracking.claiming(magazine) as found:
            result = self._calls.ask(store_requests.fire(magazine, limit, owner, shards, max_bytes))
            if owner == self._calls.owner:
                found.extend(result.claims)
        return result

    @property
    def holds_fires_s(self) -> float:
        broker = self._calls.broker
        return _HELD_S if broker is not None and broker.holds_fires else 0.0

    def fire_next(
        self,
        magazine: str,
        limit: int,
        owner: str,
        seen: int,
        timeout_s: float,
        recall: Recall,
        max_bytes: int = 64 << 20,
    ) -> tuple[int, FireResult | None] | None:
        """One request: the broker holds it back until there is something to claim."""
        calls, connection = self._calls, self._calls.client.connection
        broker = None if connection is None or not connection.usable else connection.machine.broker
        if broker is None or not broker.holds_fires or owner != calls.owner:
            return None
        timeout_s = min(timeout_s, _MOST_WAIT_S)
        if timeout_s < _LEAST_WAIT_S or not calls.tracking.in_step:
            return None
        look = seen + 1
        if not calls.may_wait:
            calls.pause(timeout_s, wanted_s=LOOK_S)
            return look, None
        request = store_requests.fire(magazine, limit, owner, None, max_bytes, timeout_s)

        def sent(connection: SyncConnection, deadline: float) -> None:
            # Who recalls it wakes the magazine, perhaps before the request had left.
            if recall.is_set():
                wake = store_requests.wake(magazine)
                connection.begin(wake.command, wake.payload, Slot(), deadline)

        try:
            with calls.tracking.claiming(magazine) as found:
                result = calls.held_back(request, sent, claims=True)
                found.extend(result.claims)
        except TooManyRequestsError:
            calls.pause(timeout_s, wanted_s=LOOK_S)
            return look, None
        except (ConnectionLostError, StoreUnreachableError, StoreTimeoutError, DrainingError):
            calls.pause()
            return look, None
        return seen, result if result.claims or result.expired or result.holes else None

    def claim(self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None) -> list[Run]:
        check_owner(owner)
        return self._calls.ask(store_requests.claim(magazine, limit, owner, shards))

    def held(self, magazine: str, owner: str) -> list[Run]:
        return self._calls.ask(store_requests.held(magazine, owner))

    def renew(self, magazine: str, owner: str) -> bool:
        return self._calls.ask(store_requests.renew(magazine, owner))

    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        lost: dict[int, list[int]] = {
            shard: sorted(many) for shard, many in pointers.items() if not 0 <= shard <= MOST_SHARDS and many
        }
        for shard, many in pointers.items():
            if 0 <= shard <= MOST_SHARDS and (low := sorted({one for one in many if one < 0})):
                lost[shard] = low
        for runs, count in pointer_pieces(pointers):
            if count:
                for shard, start, stop in self._calls.ask(
                    requests.renew_claims(magazine, runs, str(owner), str(to_owner or ""))
                ):
                    lost.setdefault(shard, []).extend(range(start, stop))
        return dict(lost)

    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        count = sum(
            self._calls.ask(store_requests.reload(magazine, runs, fence)) for runs, _ in pointer_pieces(pointers)
        )
        self._calls.tracking.accounted(magazine, pointers)
        return count

    def delete(self, magazine: str, pointers: Pointers) -> int:
        count = sum(self._calls.ask(store_requests.delete(magazine, runs)) for runs, _ in pointer_pieces(pointers))
        self._calls.tracking.accounted(magazine, pointers)
        return count

    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        return sum(
            self._calls.ask(store_requests.delete_waiting(magazine, runs))
            for runs, count in pointer_pieces(pointers)
            if count
        )

    def purge(
        self, magazine: str, limit: int = PURGE_BATCH, *, in_flight: bool = False, left: Mapping[int, Any] | None = None
    ) -> Purged:
        """Makes one step, in one request: the broker does it where the store is."""
        return self._calls.ask(store_requests.purge(magazine, limit, in_flight, left))

    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        found: dict[int, dict[int, bytes | None]] = {}
        left: Pointers = {shard: sorted(set(many)) for shard, many in pointers.items()}
        while True:
            cut = False
            for runs, _ in pointer_pieces(left):
                rows, cut = self._calls.ask(store_requests.peek(magazine, runs))
                for shard, pointer, record in rows:
                    found.setdefault(shard, {})[pointer] = record
                if cut:
                    shard, pointer, _ = rows[-1]
                    left = {
                        one: many if one > shard else [each for each in many if each > pointer]
                        for one, many in left.items()
                        if one >= shard
                    }
                    break
            if not cut:
                return found

    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        begin, rows = dict(after or {}), list[tuple[int, int, "bytes | None"]]()
        while True:
            found, cut = self._calls.ask(store_requests.scan(magazine, begin, limit - len(rows), pending_only))
            rows += found
            if not cut or len(rows) >= limit:
                return rows
            shard, pointer, _ = found[-1]
            begin.update(dict.fromkeys(range(shard), 1 << 62))
            begin[shard] = pointer

    def scan_within(
        self, magazine: str, *, after: Mapping[int, int], limit: int, max_bytes: int, pending_only: bool = False
    ) -> tuple[list[tuple[int, int, bytes | None]], bool]:
        """One answer of the broker, which bounds it by itself."""
        rows, cut = self._calls.ask(store_requests.scan(magazine, after, limit, pending_only))
        return rows, bool(rows) and cut and len(rows) < limit

    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        """More than one request may have goes in several, each a transaction: when one of them fails, what was moved before stays
        moved."""
        moved = 0
        for part in row_pieces(items, self.most_load_bytes):
            some = items[part]
            request = store_requests.transfer(source, target, some, ttl_s, fence)
            self._calls.check_size(len(request.payload))
            moved += self._calls.ask(request)
            self._calls.tracking.accounted(source, group_pointers((item.shard, item.pointer) for item in some))
        return moved

    def abandoned(
        self,
        magazine: str,
        shard: int,
        fired_before_ms: int,
        limit: int,
        *,
        dead_owners: bool = True,
        owner: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Abandoned]:
        return self._calls.ask(store_requests.abandoned(magazine, shard, fired_before_ms, limit, dead_owners, owner))

    def expire(self, magazine: str, limit: int = 10_000) -> int:
        return self._calls.ask(store_requests.expire(magazine, limit))

    def metadata(self, magazine: str) -> list[ShardState]:
        return self._calls.ask(store_requests.metadata(magazine))

    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        return self._calls.ask(store_requests.oldest(magazine))

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        return self._calls.wait(store_requests.wait(magazine, seen, min(timeout_s, _MOST_WAIT_S)), seen)

    def wake(self, magazine: str) -> None:
        self._calls.wake(store_requests.wake(magazine))

    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        if only_empty:
            return self._calls.ask(store_requests.drop_empty(magazine))
        self._calls.ask(store_requests.drop(magazine))
        return True

    def names(self) -> list[str]:
        return self._calls.ask(store_requests.names())
