"""``ignis://``: a broker as the store of an application. Every call of the storage contract is a request to it."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote

from ignis.broker.auth.tls import client_context
from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.claim_tracker import ClaimTracker
from ignis.broker.client.pending_loads import begin
from ignis.broker.client.requests import ClientRequest
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.commands import DEFAULT_PORT, Command
from ignis.broker.protocol.payloads import unpack_send_ack
from ignis.config import ClientSettings, resolve
from ignis.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    ConnectionLostError,
    FrameTooLargeError,
    PermissionDeniedError,
    QueueNotFoundError,
    StoreTimeoutError,
    StoreUnreachableError,
    WaitTimeoutError,
)
from ignis.native import PackedBatch
from ignis.native.wire import MAX_POINTERS, pack_pointers
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    ArrayStore,
    Fence,
    FireResult,
    LoadedOnce,
    LockRecord,
    LockStore,
    LockTable,
    MagazineStore,
    Pointers,
    QueueRecord,
    QueueStore,
    Run,
    ShardState,
    Store,
    Transfer,
)
from ignis.storage.checks import (
    check_declaration,
    check_limit,
    check_option_name,
    check_owner,
    check_queue,
    check_record,
    ttl_milliseconds,
)
from ignis.storage.in_flight import Gate
from ignis.storage.pending_load import PendingLoad
from ignis.storage.purging import PURGE_BATCH, Purged
from ignis.storage.records import group_pointers
from ignis.urls import redacted

__all__ = ["BrokerStore", "open_store"]

T = TypeVar("T")

_MOST_WAIT_S = 30.0
_PAUSE_S = 0.25
_MOST_SHARDS = _MOST_BATCHES = 0xFFFF


_SETTINGS = frozenset(one.name for one in dataclasses.fields(ClientSettings))
_OPTIONS = _SETTINGS | {"ca", "cert", "key", "token", "user", "password"}


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: Mapping[str, Any]) -> BrokerStore:
    """``ignis://host:port`` or ``ignis+tls://host:port``; options: those of ``[client]``, ``token``, ``user``,
    ``password``, and for TLS ``ca``, ``cert`` and ``key`` (paths of PEM files). A user and password may stand in the
    URL.

    Raises ConfigError, StoreUnreachableError, UnauthenticatedError.
    """
    given: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    given.pop("create", None)
    for name in given:
        check_option_name(name, _OPTIONS | {setting for setting in _SETTINGS if name == setting.removesuffix("_s")})
    files: dict[str, str] = {name: str(given.pop(name)) for name in ("ca", "cert", "key") if name in given}
    try:
        host, port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
    except ValueError:  # which would show what stands there
        raise ConfigError(
            f"broker URL {redacted(parts.geturl())!r}: its port is no number of 1 to 65535; write ignis://user:password@host:port"
        ) from None
    endpoint = BrokerAddress(
        host,
        port,
        client_id,
        farm_id,
        str(given.pop("token", "")) or os.environ.get("IGNIS_TOKEN", ""),
        str(given.pop("user", unquote(parts.username or ""))),
        str(given.pop("password", unquote(parts.password or ""))),
        client_context(files.get("ca"), certificate=files.get("cert"), key=files.get("key"))
        if parts.scheme.endswith("+tls")
        else None,
    )
    if parts.path.strip("/"):
        raise ConfigError(f"a broker's URL has no path: {redacted(parts.geturl())!r}")
    if files and endpoint.tls is None:
        raise ConfigError(f"{min(files)} is for ignis+tls://")
    return BrokerStore(endpoint, resolve(ClientSettings, given))


class BrokerStore(Store):
    """One connection to a broker. Thread-safe; not usable in a child after ``fork``.

    What this store claimed stays its own over a new connection, and over a new broker, as long as it is back soon (see
    ``broker.redeliver_after_s``); if not, it is delivered to others. `close` leaves it claimed, as other stores do.

    Args:
        endpoint: where the broker is.
        settings: of ``[client]``.

    Raises:
        StoreUnreachableError, UnauthenticatedError.
    """

    @property
    def message_expiry_s(self) -> int:  # type: ignore[override]
        """As the store behind the broker; said when connecting."""
        link = self.client.link
        return 0 if link is None or link.machine.broker is None else link.machine.broker.message_expiry_s

    def __init__(self, endpoint: BrokerAddress, settings: ClientSettings) -> None:
        self.url = f"ignis{'+tls' if endpoint.tls else ''}://{endpoint.host}:{endpoint.port}"
        self.client_id = endpoint.client_id
        self.farm_id = endpoint.farm_id
        self.client = SyncClient(endpoint, settings)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.tracking = ClaimTracker(self.client, keeps=True)
        self.gate = Gate("store", settings.timeout_s)
        self._closing = False
        self._waits: dict[Slot, SyncConnection] = {}
        self._waits_lock = threading.Lock()
        self.magazines = BrokerMagazines(self)
        self.queues = BrokerQueues(self)
        self.locks = BrokerLocks(self)
        self.arrays = BrokerArrays(self)
        broker = self.client.connect(settings.connect_timeout_s).machine.broker
        if broker is not None and broker.owner:
            self._owner = broker.owner  # the same at every broker: it is made of who this client is

    # -- what the facets use

    @contextmanager
    def call(self) -> Iterator[SyncClient]:
        """A call that `close` waits for. Raises ForkedHandleError, ClosedError."""
        if self.client.forked:
            self.client.check()
        self.gate.enter()
        try:
            yield self.client
        finally:
            self.gate.leave()

    def ask(self, ask: ClientRequest[T]) -> T:
        """One request. Raises what the broker answers, and what `SyncClient.ask` raises."""
        if self.client.forked:
            self.client.check()
        self.gate.enter()
        try:
            return self.client.ask(ask)
        finally:
            self.gate.leave()

    def wait(self, ask: ClientRequest[int], seen: int) -> int:
        """A request that the broker holds back for long: `close` ends it. A lost connection is no error, but an
        early return."""
        with self.call() as client:
            slot = Slot()
            try:
                link = client.connect()
                deadline = time.monotonic() + client.settings.timeout_s + ask.extra_s
                request_id = link.begin(ask.command, ask.payload, slot, deadline)
                with self._waits_lock:
                    self._waits[slot] = link
                try:
                    answer = link.next_answer(slot, deadline - time.monotonic())
                finally:
                    with self._waits_lock:
                        del self._waits[slot]
                    if not slot.over or slot.answers:
                        link.cancel(request_id, slot)
                if answer is None:
                    link.cancel(request_id, slot)
                    raise StoreTimeoutError("WAIT", int(1000 * client.settings.timeout_s), "client.timeout_s")
                if answer.error is not None:
                    link.cancel(request_id, slot)
                    raise answer.error
                return ask.parse(answer.payload)
            except (ConnectionLostError, StoreUnreachableError, StoreTimeoutError):
                if self._closing:
                    raise ClosedError("store is closed") from None
                time.sleep(min(_PAUSE_S, max(0.0, ask.extra_s)))
                return seen

    # -- Store

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def local_dir(self) -> str | None:
        return None

    def remove_queue(self, name: str, *, force: bool = False) -> bool:
        """One request: the broker does it."""
        return self.ask(requests.delete_queue(check_queue(name), force))

    def stats(self) -> dict[str, int | float | str]:
        """Figures of the broker's store, for this application, and of this connection: of that alone for users who may not
        see the store's, such as workers with ``work:orders``, whose metrics need the rest."""
        try:
            figures = self.ask(requests.stats())
        except PermissionDeniedError:
            figures = {}
        client = self.client
        link = client.link
        return {
            **figures,
            "broker": self.url,
            "broker_connects": client.connects,
            "broker_pending": 0 if link is None else link.machine.pending,
            "broker_late_answers": client.late_answers + (0 if link is None else link.machine.late_answers),
        }

    def close(self, timeout: float = 30.0) -> None:
        if self.client.forked:
            return  # the parent's
        self._closing = True
        self.tracking.close()
        self.gate.close()
        deadline = time.monotonic() + timeout
        while True:
            with self._waits_lock:
                waits = list(self._waits.items())
            for slot, link in waits:
                link.interrupt(slot, ClosedError("store is closed"))
            try:
                self.gate.wait_empty(min(0.05, max(0.0, deadline - time.monotonic())))
                break
            except WaitTimeoutError:
                if time.monotonic() >= deadline:
                    raise
        self.client.close(max(0.1, deadline - time.monotonic()), give_back=False)


def _named(pointers: Pointers) -> Iterator[tuple[bytes, int]]:
    """Packed pointers in pieces that one request may have, with how many each names. What no shard can have is left
    out."""
    pieces: list[tuple[int, Sequence[int]]] = []
    count = 0
    for shard, many in pointers.items():
        if not 0 <= shard <= _MOST_SHARDS:
            continue
        left = many if isinstance(many, range) or min(many, default=0) >= 0 else [one for one in many if one >= 0]
        while left:
            part = left[: MAX_POINTERS - count]
            left = left[len(part) :]
            pieces.append((shard, part))
            count += len(part)
            if count == MAX_POINTERS:
                yield pack_pointers(pieces), count
                pieces, count = [], 0
    yield pack_pointers(pieces), count


class BrokerMagazines(MagazineStore):
    """The messages. Atomicity and durability are those of the store behind the broker, whose answer is waited for."""

    def __init__(self, store: BrokerStore) -> None:
        self._store = store

    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        check_declaration(magazine, shards, durability)
        self._store.ask(requests.declare(magazine, shards, durability))

    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        if not batches:
            self._store.ask(requests.metadata(magazine))
            return []
        self._check(batches)
        placed = self._load_one(magazine, *batches[0], ttl_s) if len(batches) == 1 else None
        if placed is None:
            ask = requests.load(magazine, batches, ttl_s)
            self._check_size(len(ask.payload))
            placed = self._store.ask(ask)
        firsts = [first for _, first, _ in placed]
        for (shard, batch), first in zip(batches, firsts, strict=True):
            batch.seal(0, shard, first)  # so that it is not loaded again
        return firsts

    def _load_one(
        self, magazine: str, shard: int, batch: PackedBatch, ttl_s: float | None
    ) -> list[tuple[int, int, int]] | None:
        """`load` where nobody else waits on the connection: without putting the request together. None when it was not sent."""
        store = self._store
        client, link = store.client, store.client.link
        broker = None if link is None else link.machine.broker
        outgoing = requests.load_one(magazine, shard, batch, ttl_s)
        if broker is None or outgoing.nbytes > broker.max_frame_bytes or client.forked:
            return None
        store.gate.enter()
        try:
            answer = client.exchange_alone(outgoing)
        finally:
            store.gate.leave()
        return None if answer is None else unpack_send_ack(answer)

    def begin_load(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        after: PendingLoad | None = None,
    ) -> PendingLoad | None:
        self._check(batches)
        ask = requests.load(magazine, batches, ttl_s)
        self._check_size(len(ask.payload))
        return begin(self._store.client, self._store.gate, ask, batches, after)

    @staticmethod
    def _check(batches: Sequence[tuple[int, PackedBatch]]) -> None:
        if len(batches) > _MOST_BATCHES:
            raise ConfigError(f"{len(batches)} batches in one request; 1 to {_MOST_BATCHES} are allowed")
        for shard, batch in batches:
            if batch.sealed:
                raise ValueError("the batch is sealed already")
            if not 0 <= shard < _MOST_SHARDS:
                raise ConfigError(f"shard {shard} is outside 0 to {_MOST_SHARDS - 1}")

    def _check_size(self, payload_bytes: int) -> None:
        """Raises FrameTooLargeError before anything is sent: the broker would close the connection."""
        link = self._store.client.link
        broker = None if link is None else link.machine.broker
        if broker is not None and payload_bytes + 14 > broker.max_frame_bytes:
            raise FrameTooLargeError(payload_bytes + 14, broker.max_frame_bytes)

    @property
    def tells_repeats(self) -> bool:  # type: ignore[override]
        """As the store behind the broker; asked when connecting."""
        link = self._store.client.link
        return link is not None and link.machine.broker is not None and link.machine.broker.tells_repeats

    def load_once(
        self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None, remember_s: float
    ) -> list[LoadedOnce]:
        if not batches:
            return []
        self._check(batches)
        ask = requests.load_once(magazine, batches, ttl_s, remember_s)
        self._check_size(len(ask.payload))
        done = self._store.ask(ask)
        for shard, batch in batches:
            batch.seal(0, shard, 1)  # so that it is not loaded again
        return done

    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        check_limit(limit)
        check_owner(owner)  # none at all is this client to the broker
        with self._store.tracking.claiming(magazine) as found:
            result = self._store.ask(requests.fire(magazine, limit, owner, shards, max_bytes))
            if owner == self._store.owner:
                found.extend(result.claims)
        return result

    def claim(self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None) -> list[Run]:
        check_owner(owner)
        return self._store.ask(requests.claim(magazine, limit, owner, shards))

    def held(self, magazine: str, owner: str) -> list[Run]:
        return self._store.ask(requests.held(magazine, owner))

    def renew(self, magazine: str, owner: str) -> bool:
        return self._store.ask(requests.renew(magazine, owner))

    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        lost: dict[int, list[int]] = {
            shard: sorted(many) for shard, many in pointers.items() if not 0 <= shard <= _MOST_SHARDS and many
        }
        for shard, many in pointers.items():
            if 0 <= shard <= _MOST_SHARDS and (low := sorted({one for one in many if one < 0})):
                lost[shard] = low
        for runs, count in _named(pointers):
            if count:
                for shard, start, stop in self._store.ask(
                    requests.renew_claims(magazine, runs, str(owner), str(to_owner or ""))
                ):
                    lost.setdefault(shard, []).extend(range(start, stop))
        return dict(lost)

    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        count = sum(self._store.ask(requests.reload(magazine, runs, fence)) for runs, _ in _named(pointers))
        self._store.tracking.accounted(magazine, pointers)
        return count

    def delete(self, magazine: str, pointers: Pointers) -> int:
        count = sum(self._store.ask(requests.delete(magazine, runs)) for runs, _ in _named(pointers))
        self._store.tracking.accounted(magazine, pointers)
        return count

    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        return sum(
            self._store.ask(requests.delete_waiting(magazine, runs)) for runs, count in _named(pointers) if count
        )

    def purge(
        self, magazine: str, limit: int = PURGE_BATCH, *, in_flight: bool = False, left: Mapping[int, Any] | None = None
    ) -> Purged:
        """One request: the step is made where the store is."""
        return self._store.ask(requests.purge(magazine, limit, in_flight, left))

    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        found: dict[int, dict[int, bytes | None]] = {}
        left: Pointers = {shard: sorted(set(many)) for shard, many in pointers.items()}
        while True:
            cut = False
            for runs, _ in _named(left):
                rows, cut = self._store.ask(requests.peek(magazine, runs))
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
            found, cut = self._store.ask(requests.scan(magazine, begin, limit - len(rows), pending_only))
            rows += found
            if not cut or len(rows) >= limit:
                return rows
            shard, pointer, _ = found[-1]
            begin.update(dict.fromkeys(range(shard), 1 << 62))
            begin[shard] = pointer

    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        ask = requests.transfer(source, target, items, ttl_s, fence)
        self._check_size(len(ask.payload))
        moved = self._store.ask(ask)
        self._store.tracking.accounted(source, group_pointers((item.shard, item.pointer) for item in items))
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
    ) -> list[Abandoned]:
        return self._store.ask(requests.abandoned(magazine, shard, fired_before_ms, limit, dead_owners, owner))

    def expire(self, magazine: str, limit: int = 10_000) -> int:
        return self._store.ask(requests.expire(magazine, limit))

    def metadata(self, magazine: str) -> list[ShardState]:
        return self._store.ask(requests.metadata(magazine))

    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        return self._store.ask(requests.oldest(magazine))

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        return self._store.wait(requests.wait(magazine, seen, min(timeout_s, _MOST_WAIT_S)), seen)

    def wake(self, magazine: str) -> None:
        self._store.ask(requests.wake(magazine))

    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        if only_empty:
            return self._store.ask(requests.drop_empty(magazine))
        self._store.ask(requests.drop(magazine))
        return True

    def names(self) -> list[str]:
        return self._store.ask(requests.names())


class BrokerQueues(QueueStore):
    """The queues' settings."""

    def __init__(self, store: BrokerStore) -> None:
        self._store = store

    def get(self, name: str) -> QueueRecord | None:
        return self._store.ask(requests.queue_get(name))

    def put(self, record: QueueRecord) -> None:
        check_record(record)
        self._store.ask(requests.queue_put(record))

    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        """The change is made here: the record is read, changed, and replaced if nobody else changed it meanwhile. Raises
        ConflictError when others change it again and again for ``client.timeout_s``."""
        with self._store.call() as client:
            deadline = time.monotonic() + client.settings.timeout_s
            while True:
                known = client.ask(requests.queue_get(name))
                if known is None:
                    raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
                fresh = copy.deepcopy(known)
                change(fresh)
                check_record(fresh)
                try:
                    return client.ask(requests.queue_replace(known, fresh, fence))
                except ConflictError:
                    if time.monotonic() >= deadline:
                        raise

    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        return self._store.ask(requests.queue_list(active))

    def remove(self, name: str) -> bool:
        return self._store.ask(requests.queue_remove(name))


class _Locks(LockTable):
    def __init__(self, store: BrokerStore, table: str = "", farm_id: str = "") -> None:
        self._store = store
        self._where = table, farm_id

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_milliseconds(ttl_s)
        return self._store.ask(requests.lock(Command.LOCK_ACQUIRE, name, owner, ttl_s, *self._where))

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_milliseconds(ttl_s)
        return self._store.ask(requests.lock(Command.LOCK_RENEW, name, owner, ttl_s, *self._where))

    def release(self, name: str, owner: str) -> bool:
        return self._store.ask(requests.lock_release(name, owner, *self._where))

    def get(self, name: str) -> LockRecord | None:
        return self._store.ask(requests.lock(Command.LOCK_GET, name, "", 0, *self._where))

    def draw_token(self, name: str, owner: str) -> int | None:
        return self._store.ask(requests.lock_token(name, owner, *self._where))


class BrokerLocks(_Locks, LockStore):
    """Locks and epochs of the store behind the broker."""

    def table(self, name: str, farm_id: str) -> LockTable:
        return _Locks(self._store, name, farm_id)

    def next_epoch(self, scope: str) -> int:
        return self._store.ask(requests.epoch_next(scope))

    def raise_epoch(self, scope: str, epoch: int) -> None:
        self._store.ask(requests.epoch_raise(scope, epoch))

    def epoch(self, scope: str) -> int:
        return self._store.ask(requests.epoch_get(scope))


class BrokerArrays(ArrayStore):
    """Array queues of the store behind the broker."""

    def __init__(self, store: BrokerStore) -> None:
        self._store = store

    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        return self._store.ask(requests.array_enqueue(name, bin_name, values))

    def dequeue(self, name: str, bin_name: str, limit: int) -> builtins.list[Any]:
        return self._store.ask(requests.array_dequeue(name, bin_name, limit))

    def peek(self, name: str, bin_name: str, limit: int) -> builtins.list[Any]:
        return self._store.ask(requests.array_peek(name, bin_name, limit))

    def size(self, name: str, bin_name: str) -> int:
        return self._store.ask(requests.array_size(name, bin_name))
