"""What can be asked of a broker: each function gives the request and how its answer is read. No I/O.

The sync and the async client, and the ``ignis://`` store, are shells over these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.machine import Undo
from ignis.broker.protocol.payloads import pack, unpack, unpack_send_ack, unpack_value
from ignis.broker.protocol.table import TABLE
from ignis.config import MAX_EXPIRY_S, check_number, check_whole, shown
from ignis.errors import ConfigError
from ignis.message import MAX_ERROR_CHARS
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import Outgoing, pack_pointers, unpack_claims
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    Claim,
    Fence,
    FireResult,
    LoadedOnce,
    LockRecord,
    Pointers,
    QueueRecord,
    Run,
    ShardState,
    Transfer,
)
from ignis.storage.checks import check_magazine, ttl_milliseconds
from ignis.storage.purging import Purged

__all__ = ["ClientRequest", "Ttl"]

T = TypeVar("T")

Row = tuple[int, int, "bytes | None"]
Ttl = float | Literal["queue"] | None
"""Seconds; None = never expires; ``"queue"`` = as the queue's settings say."""


class ClientRequest(msgspec.Struct, Generic[T], frozen=True):
    """One request.

    Attributes:
        parse: payload of the answer -> result. Raises ProtocolError, BadRequestError for an answer that is none.
        repeatable: whether doing it twice is as good as once, so that it may be sent again when a connection was lost.
        extra_s: how long the broker may hold the request back by itself; added to the client's timeout.
        undo: gives the request that takes back what an answer brought that comes when nobody waits for it any more.
    """

    command: Command
    payload: bytes
    parse: Callable[[bytes], T]
    repeatable: bool = False
    extra_s: float = 0.0
    undo: Undo | None = None


def _ms(ttl_s: Ttl) -> int:
    if ttl_s == "queue":
        return OWN_TTL
    return 0 if ttl_s is None else ttl_milliseconds(ttl_s)


def _encoded(magazine: str) -> bytes:
    """Raises InvalidNameError."""
    try:
        return _known_name(magazine)
    except TypeError:  # it cannot even be looked up
        return check_magazine(magazine).encode()


@lru_cache(maxsize=1_024)
def _known_name(magazine: str) -> bytes:
    return check_magazine(magazine).encode()


def _packed(pointers: Any) -> bytes:
    """Raises ConfigError for what names no records."""
    try:
        return pack_pointers(pointers)
    except (TypeError, ValueError, OverflowError, AttributeError) as exc:
        raise ConfigError(f"pointers = {shown(pointers)}: {exc}") from None


def _nothing(payload: bytes) -> None:
    return None


def _reader(answer: Any) -> Callable[[bytes], Any]:
    """What reads the value of a RESULT."""
    return _nothing if answer is None else lambda payload: unpack_value(payload, answer)


_ROWS = {number: (row.payload, _reader(row.answer), row.repeats) for number, row in TABLE.items()}


def _request(command: Command, *fields: Any, bulk: bytes = b"") -> ClientRequest[Any]:
    """The request that the table of commands describes, of the fields of its head; its answer is the value that comes."""
    kind, read, repeats = _ROWS[command]
    return ClientRequest(command, pack(None if kind is None else kind(*fields), bulk), read, repeats)


def _read_as(parse: Callable[[Any], T], request: ClientRequest[Any]) -> ClientRequest[T]:
    """The same, whose answer is made of the value that comes."""
    read = request.parse
    return ClientRequest(request.command, request.payload, lambda payload: parse(read(payload)), request.repeatable)


def count_of(payload: bytes) -> int:
    """How many an answer says it were. Raises BadRequestError."""
    return int(unpack_value(payload, int))


def delivered(payload: bytes) -> FireResult:
    """The payload of DELIVER, and of the answer to FIRE."""
    head, at = unpack(payload, payloads.Delivery)
    return FireResult([Claim(*one) for one in unpack_claims(payload, at)], head.holes, head.expired, head.more)


def pointers_of(found: FireResult) -> dict[int, Sequence[int]]:
    """What was delivered, as `ack` and `nack` take it: a range for a shard where it is one run, else a list."""
    pointers: dict[int, Sequence[int]] = {}
    for claim in found.claims:
        known = pointers.get(claim.shard)
        if known is None:
            pointers[claim.shard] = claim.pointers
        elif isinstance(known, range) and isinstance(claim.pointers, range) and known.stop == claim.pointers.start:
            pointers[claim.shard] = range(known.start, claim.pointers.stop)
        else:
            pointers[claim.shard] = [*known, *claim.pointers]
    return pointers


# -- sending


def send(queue: str, record: bytes, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue") -> ClientRequest[tuple[int, int]]:
    """One record (see `ignis.native.encode_record`); answers (shard, pointer)."""
    ttl_ms = _ms(ttl_s)
    given: Any = record  # whatever it is
    if not isinstance(given, bytes):
        raise ConfigError(f"record = {shown(given)} is not bytes; make it with ignis.native.encode_record")
    if shard != ANY_SHARD:
        check_whole(shard, "shard", 0, ANY_SHARD)
    return ClientRequest(Command.SEND, payloads.pack_send(_encoded(queue), ttl_ms, shard, record), _placed)


def _placed(payload: bytes) -> tuple[int, int]:
    return unpack_send_ack(payload)[0][:2]


def send_batch(
    queue: str, batches: Sequence[tuple[int, PackedBatch]], *, ttl_s: Ttl = "queue"
) -> ClientRequest[list[tuple[int, int, int]]]:
    """Packed batches, in one transaction where the store has any; answers (shard, first pointer, count) for each."""
    given: Any = batches  # whatever it is
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ConfigError(f"batches = {shown(given)} is not a sequence of pairs of a shard and a PackedBatch")
    for one in given:
        if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], PackedBatch)):
            raise ConfigError(f"batches hold {shown(one)}, which is not a pair of a shard and a PackedBatch")
        check_whole(one[0], "shard", 0, ANY_SHARD)
    if not 1 <= len(batches) <= 0xFFFF:
        raise ConfigError(f"{len(batches)} batches in one request; 1 to 65535 are allowed")
    ttl_ms = _ms(ttl_s)
    return ClientRequest(
        Command.SEND_BATCH, payloads.pack_send_batch(_encoded(queue), ttl_ms, batches), unpack_send_ack
    )


def load(
    magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: Ttl
) -> ClientRequest[list[tuple[int, int, int]]]:
    """`send_batch` of what was checked already."""
    payload = payloads.pack_send_batch(_encoded(magazine), _ms(ttl_s), batches)
    return ClientRequest(Command.SEND_BATCH, payload, unpack_send_ack)


def load_one(magazine: str, shard: int, batch: PackedBatch, ttl_s: Ttl) -> Outgoing:
    """`load` of one batch, for a connection on which nobody waits; its answer is read with `unpack_send_ack`."""
    return Outgoing.load(_encoded(magazine), _ms(ttl_s), shard, batch)


# -- consuming


def subscribe(queue: str, credit: int, max_bytes: int) -> ClientRequest[int]:
    check_whole(credit, "credit", 0)
    check_whole(max_bytes, "max_bytes", 1)

    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[Any] | None:
        return unsubscribe(request_id) if command == Command.RESULT else _given_back(queue, payload)

    return replace(_request(Command.SUBSCRIBE, queue, credit, max_bytes), undo=undo)


def unsubscribe(subscription: int) -> ClientRequest[bool]:
    return _request(Command.UNSUBSCRIBE, subscription)


def credit(subscription: int, count: int) -> ClientRequest[None]:
    return _request(Command.CREDIT, subscription, check_whole(count, "credit", 0))


def consume(queue: str, limit: int, wait_s: float, max_bytes: int) -> ClientRequest[FireResult]:
    """Up to ``limit`` messages; waits up to ``wait_s`` seconds for the first."""
    check_whole(limit, "limit", 1)
    check_whole(max_bytes, "max_bytes", 1)
    timeout_ms = int(check_number(wait_s, "wait_s", 0, 86_400) * 1000)
    return replace(
        _request(Command.CONSUME, queue, limit, timeout_ms, max_bytes),
        parse=delivered,
        extra_s=max(0.0, wait_s),
        undo=lambda request_id, command, payload: _given_back(queue, payload),
    )


def _given_back(queue: str, payload: bytes) -> ClientRequest[int] | None:
    """NACK for all that a DELIVER brought."""
    pointers = pointers_of(delivered(payload))
    return nack(queue, pointers) if pointers else None


def ack(queue: str, pointers: Pointers | Iterable[tuple[int, Iterable[int]]]) -> ClientRequest[int]:
    """Retires messages that this connection holds; answers how many it did hold."""
    return _request(Command.ACK, queue, bulk=_packed(pointers))


def nack(
    queue: str,
    pointers: Pointers,
    *,
    delay_s: float = 0,
    sideline: bool = False,
    reason: str = "rejected",
    error: str = "",
) -> ClientRequest[int]:
    """Gives messages back, after ``delay_s`` if that is above 0; or moves them to the sideline with a reason."""
    check_number(delay_s, "delay_s", 0, MAX_EXPIRY_S)
    how = "sideline" if sideline else "requeue"
    text = error[:MAX_ERROR_CHARS]
    return _request(Command.NACK, queue, how, int(delay_s * 1000), reason, text, bulk=_packed(pointers))


# -- queues and the broker


def create_queue(name: str, settings: Mapping[str, Any]) -> ClientRequest[dict[str, Any]]:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings = {shown(settings)} is not a mapping")
    return _request(Command.CREATE_QUEUE, name, dict(settings))


def delete_queue(name: str, force: bool) -> ClientRequest[bool]:
    return _request(Command.DELETE_QUEUE, name, force)


def list_queues(active: bool | None) -> ClientRequest[list[dict[str, Any]]]:
    return _request(Command.LIST_QUEUES, active)


def queue_info(name: str) -> ClientRequest[dict[str, Any]]:
    return _request(Command.QUEUE_INFO, name)


def node_status() -> ClientRequest[dict[str, Any]]:
    return _request(Command.NODE_STATUS)


def cluster_status() -> ClientRequest[list[dict[str, Any]]]:
    return _request(Command.CLUSTER_STATUS)


def metrics() -> ClientRequest[list[tuple[str, dict[str, str], float]]]:
    return _request(Command.METRICS)


def ping() -> ClientRequest[bytes]:
    return ClientRequest(Command.PING, b"", bytes, True)


def disconnect(give_back: bool) -> ClientRequest[None]:
    """The orderly end: with ``give_back`` what this connection holds is pending again at once, else it stays
    claimed."""
    return _request(Command.DISCONNECT, give_back)


# -- magazines


def declare(magazine: str, shards: int, durability: str) -> ClientRequest[None]:
    return _request(Command.DECLARE, magazine, shards, durability)


def _shards(shards: Sequence[int] | None) -> list[int] | None:
    return None if shards is None else list(shards)


def fire(
    magazine: str, limit: int, owner: str, shards: Sequence[int] | None, max_bytes: int
) -> ClientRequest[FireResult]:
    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[int] | None:
        pointers = pointers_of(delivered(payload))
        return reload(magazine, pack_pointers(pointers)) if pointers else None

    return replace(
        _request(Command.FIRE, magazine, limit, owner, _shards(shards), max_bytes), parse=delivered, undo=undo
    )


def load_once(
    magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None, remember_s: float
) -> ClientRequest[list[LoadedOnce]]:
    bulk = payloads.pack_send_batch(_encoded(magazine), _ms(ttl_s), batches)
    request = _request(Command.LOAD_ONCE, magazine, ttl_milliseconds(remember_s), bulk=bulk)
    return _read_as(lambda rows: [LoadedOnce(*row) for row in rows], request)


def _runs(rows: list[tuple[int, int, int, int]]) -> list[Run]:
    return [Run(*row) for row in rows]


def claim(magazine: str, limit: int, owner: str, shards: Sequence[int] | None) -> ClientRequest[list[Run]]:
    return _read_as(_runs, _request(Command.CLAIM, magazine, limit, owner, _shards(shards)))


def held(magazine: str, owner: str) -> ClientRequest[list[Run]]:
    return _read_as(_runs, _request(Command.HELD, magazine, owner))


def renew(magazine: str, owner: str) -> ClientRequest[bool]:
    return _request(Command.RENEW, magazine, owner)


def renew_claims(
    magazine: str, runs: bytes, owner: str, to_owner: str = ""
) -> ClientRequest[list[tuple[int, int, int]]]:
    """Answers what that owner does not hold: (shard, first, behind the last)."""
    return _request(Command.RENEW_CLAIMS, magazine, owner, to_owner, bulk=runs)


def renew_own(queue: str, pointers: Pointers) -> ClientRequest[int]:
    """Starts the stuck time of messages anew; answers how many of them this client does not hold (any more)."""
    lost = renew_claims(queue, pack_pointers(pointers), "")
    return _read_as(lambda runs: sum(stop - start for _, start, stop in runs), lost)


def resume(magazine: str, runs: bytes, renews: bool = False) -> ClientRequest[int]:
    """What this client holds of the magazine; whatever else is claimed in its name goes back. Answers how many are held."""
    return _request(Command.RESUME, magazine, renews, bulk=runs)


def reload(magazine: str, runs: bytes, fence: Fence | None = None) -> ClientRequest[int]:
    return _request(Command.RELOAD, magazine, fence, bulk=runs)


def delete(magazine: str, runs: bytes) -> ClientRequest[int]:
    return _request(Command.DELETE, magazine, bulk=runs)


def delete_waiting(magazine: str, runs: bytes) -> ClientRequest[int]:
    return _request(Command.DELETE_WAITING, magazine, bulk=runs)


def purge(
    magazine: str, limit: int, in_flight: bool, left: Mapping[int, tuple[int, int]] | None
) -> ClientRequest[Purged]:
    """One step; see `MagazineStore.purge`."""
    request = _request(Command.PURGE, magazine, limit, in_flight, None if left is None else dict(left))
    return _read_as(lambda row: Purged(*row), request)


def peek(magazine: str, runs: bytes) -> ClientRequest[tuple[list[Row], bool]]:
    """Answers rows in shard and pointer order, and whether more were left out because the answer would be too large."""
    return _request(Command.PEEK, magazine, bulk=runs)


def scan(
    magazine: str, after: Mapping[int, int], limit: int, pending_only: bool
) -> ClientRequest[tuple[list[Row], bool]]:
    return _request(Command.SCAN, magazine, dict(after), limit, pending_only)


def transfer(
    source: str, target: str, items: Sequence[Transfer], ttl_s: float | None, fence: Fence | None
) -> ClientRequest[int]:
    ttl_ms = -1 if ttl_s == KEEP_TTL else _ms(ttl_s)
    return _request(Command.TRANSFER, source, target, [tuple(item) for item in items], ttl_ms, fence)


def abandoned(
    magazine: str, shard: int, fired_before_ms: int, limit: int, dead_owners: bool, owner: str | None
) -> ClientRequest[list[Abandoned]]:
    request = _request(Command.ABANDONED, magazine, shard, fired_before_ms, limit, dead_owners, owner)
    return _read_as(lambda found: [Abandoned(*row) for row in found[0]], request)


def expire(magazine: str, limit: int) -> ClientRequest[int]:
    return _request(Command.EXPIRE, magazine, limit)


def metadata(magazine: str) -> ClientRequest[list[ShardState]]:
    count = len(dataclasses.fields(ShardState))
    return _read_as(lambda rows: [ShardState(*row[:count]) for row in rows], _request(Command.METADATA, magazine))


def oldest(magazine: str) -> ClientRequest[int | None]:
    return _request(Command.OLDEST, magazine)


def wait(magazine: str, seen: int, timeout_s: float) -> ClientRequest[int]:
    left_s = max(0.0, timeout_s)
    return replace(_request(Command.WAIT, magazine, seen, int(left_s * 1000)), extra_s=left_s)


def wake(magazine: str) -> ClientRequest[None]:
    return _request(Command.WAKE, magazine)


def drop(magazine: str) -> ClientRequest[None]:
    return _request(Command.DROP, magazine)


def drop_empty(magazine: str) -> ClientRequest[bool]:
    return _request(Command.DROP_EMPTY, magazine)


def names() -> ClientRequest[list[str]]:
    return _request(Command.NAMES)


# -- queues' settings


def queue_get(name: str) -> ClientRequest[QueueRecord | None]:
    return _request(Command.QUEUE_GET, name)


def queue_put(record: QueueRecord) -> ClientRequest[None]:
    return ClientRequest(Command.QUEUE_PUT, pack(record), _nothing, True)


def queue_replace(known: QueueRecord, fresh: QueueRecord, fence: Fence | None) -> ClientRequest[QueueRecord]:
    return _request(Command.QUEUE_REPLACE, known, fresh, fence)


def queue_list(active: bool | None) -> ClientRequest[list[QueueRecord]]:
    return _request(Command.QUEUE_LIST, active)


def queue_remove(name: str) -> ClientRequest[bool]:
    return _request(Command.QUEUE_REMOVE, name)


# -- locks and epochs


def lock(
    command: Command, name: str, owner: str = "", ttl_s: float = 0, table: str = "", farm_id: str = ""
) -> ClientRequest[LockRecord | None]:
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_GET."""
    request = _request(command, name, owner, ttl_s, table, farm_id)
    return _read_as(lambda row: None if row is None else LockRecord(*row), request)


def lock_release(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[bool]:
    return _request(Command.LOCK_RELEASE, name, owner, 0, table, farm_id)


def lock_token(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[int | None]:
    return _request(Command.LOCK_TOKEN, name, owner, 0, table, farm_id)


def epoch_next(scope: str) -> ClientRequest[int]:
    return _request(Command.EPOCH_NEXT, scope)


def epoch_get(scope: str) -> ClientRequest[int]:
    return _request(Command.EPOCH_GET, scope)


def epoch_raise(scope: str, epoch: int) -> ClientRequest[None]:
    return _request(Command.EPOCH_RAISE, scope, epoch)


# -- array queues


def array_enqueue(name: str, bin_name: str, values: Sequence[Any]) -> ClientRequest[int]:
    return _request(Command.ARRAY_ENQUEUE, name, bin_name, list(values))


def array_dequeue(name: str, bin_name: str, limit: int) -> ClientRequest[list[Any]]:
    return _request(Command.ARRAY_DEQUEUE, name, bin_name, [], limit)


def array_peek(name: str, bin_name: str, limit: int) -> ClientRequest[list[Any]]:
    return _request(Command.ARRAY_PEEK, name, bin_name, [], limit)


def array_size(name: str, bin_name: str) -> ClientRequest[int]:
    return _request(Command.ARRAY_SIZE, name, bin_name)


def stats() -> ClientRequest[dict[str, Any]]:
    return _request(Command.STATS)
