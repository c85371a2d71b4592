"""What can be asked of a broker: each function gives the request and how its answer is read. No I/O.

The sync and the async client, and the ``ignis://`` store, are shells over these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.machine import Undo
from ignis.broker.protocol.payloads import pack, unpack, unpack_send_ack, unpack_value
from ignis.config import MAX_EXPIRY_S, check_number, check_whole, shown
from ignis.errors import ConfigError
from ignis.message import MAX_ERROR_CHARS
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import pack_pointers, unpack_claims
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


def count_of(payload: bytes) -> int:
    """How many an answer says it were. Raises BadRequestError."""
    return int(unpack_value(payload, int))


def _truth(payload: bytes) -> bool:
    return bool(unpack_value(payload, bool))


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


# -- consuming


def subscribe(queue: str, credit: int, max_bytes: int) -> ClientRequest[int]:
    check_whole(credit, "credit", 0)
    check_whole(max_bytes, "max_bytes", 1)

    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[Any] | None:
        return unsubscribe(request_id) if command == Command.RESULT else _given_back(queue, payload)

    return ClientRequest(Command.SUBSCRIBE, pack(payloads.Subscribe(queue, credit, max_bytes)), count_of, undo=undo)


def unsubscribe(subscription: int) -> ClientRequest[bool]:
    return ClientRequest(Command.UNSUBSCRIBE, pack(payloads.Unsubscribe(subscription)), _truth)


def credit(subscription: int, count: int) -> ClientRequest[None]:
    return ClientRequest(Command.CREDIT, pack(payloads.Credit(subscription, check_whole(count, "credit", 0))), _nothing)


def consume(queue: str, limit: int, wait_s: float, max_bytes: int) -> ClientRequest[FireResult]:
    """Up to ``limit`` messages; waits up to ``wait_s`` seconds for the first."""
    check_whole(limit, "limit", 1)
    check_whole(max_bytes, "max_bytes", 1)
    head = payloads.Consume(queue, limit, int(check_number(wait_s, "wait_s", 0, 86_400) * 1000), max_bytes)
    return ClientRequest(
        Command.CONSUME,
        pack(head),
        delivered,
        extra_s=max(0.0, wait_s),
        undo=lambda request_id, command, payload: _given_back(queue, payload),
    )


def _given_back(queue: str, payload: bytes) -> ClientRequest[int] | None:
    """NACK for all that a DELIVER brought."""
    pointers = pointers_of(delivered(payload))
    return nack(queue, pointers) if pointers else None


def ack(queue: str, pointers: Pointers | Iterable[tuple[int, Iterable[int]]]) -> ClientRequest[int]:
    """Retires messages that this connection holds; answers how many it did hold."""
    return ClientRequest(Command.ACK, pack(payloads.Named(queue), _packed(pointers)), count_of)


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
    head = payloads.Nack(
        queue, "sideline" if sideline else "requeue", int(delay_s * 1000), reason, error[:MAX_ERROR_CHARS]
    )
    return ClientRequest(Command.NACK, pack(head, _packed(pointers)), count_of)


# -- queues and the broker


def create_queue(name: str, settings: Mapping[str, Any]) -> ClientRequest[dict[str, Any]]:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings = {shown(settings)} is not a mapping")
    return ClientRequest(Command.CREATE_QUEUE, pack(payloads.CreateQueue(name, dict(settings))), unpack_value, True)


def delete_queue(name: str, force: bool) -> ClientRequest[bool]:
    return ClientRequest(Command.DELETE_QUEUE, pack(payloads.DeleteQueue(name, force)), _truth)


def list_queues(active: bool | None) -> ClientRequest[list[dict[str, Any]]]:
    return ClientRequest(Command.LIST_QUEUES, pack(payloads.QueueList(active)), unpack_value, True)


def queue_info(name: str) -> ClientRequest[dict[str, Any]]:
    return ClientRequest(Command.QUEUE_INFO, pack(payloads.Named(name)), unpack_value, True)


def node_status() -> ClientRequest[dict[str, Any]]:
    return ClientRequest(Command.NODE_STATUS, pack(None), unpack_value, True)


def cluster_status() -> ClientRequest[list[dict[str, Any]]]:
    return ClientRequest(Command.CLUSTER_STATUS, pack(None), unpack_value, True)


def metrics() -> ClientRequest[list[tuple[str, dict[str, str], float]]]:
    return ClientRequest(
        Command.METRICS, pack(None), lambda data: unpack_value(data, list[tuple[str, dict[str, str], float]]), True
    )


def ping() -> ClientRequest[bytes]:
    return ClientRequest(Command.PING, b"", bytes, True)


def disconnect(give_back: bool) -> ClientRequest[None]:
    """The orderly end: with ``give_back`` what this connection holds is pending again at once, else it stays
    claimed."""
    return ClientRequest(Command.DISCONNECT, pack(give_back), _nothing)


# -- magazines


def declare(magazine: str, shards: int, durability: str) -> ClientRequest[None]:
    return ClientRequest(Command.DECLARE, pack(payloads.Declare(magazine, shards, durability)), _nothing, True)


def fire(
    magazine: str, limit: int, owner: str, shards: Sequence[int] | None, max_bytes: int
) -> ClientRequest[FireResult]:
    head = payloads.Fire(magazine, limit, owner, None if shards is None else list(shards), max_bytes)

    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[int] | None:
        pointers = pointers_of(delivered(payload))
        return reload(magazine, pack_pointers(pointers)) if pointers else None

    return ClientRequest(Command.FIRE, pack(head), delivered, undo=undo)


def load_once(
    magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None, remember_s: float
) -> ClientRequest[list[LoadedOnce]]:
    head = payloads.LoadOnce(magazine, ttl_milliseconds(remember_s))

    def parse(payload: bytes) -> list[LoadedOnce]:
        return [LoadedOnce(*row) for row in unpack_value(payload, list[tuple[int, int, int]])]

    bulk = payloads.pack_send_batch(_encoded(magazine), _ms(ttl_s), batches)
    return ClientRequest(Command.LOAD_ONCE, pack(head, bulk), parse)


def _runs(payload: bytes) -> list[Run]:
    return [Run(*row) for row in unpack_value(payload, list[tuple[int, int, int, int]])]


def claim(magazine: str, limit: int, owner: str, shards: Sequence[int] | None) -> ClientRequest[list[Run]]:
    head = payloads.ClaimRequest(magazine, limit, owner, None if shards is None else list(shards))
    return ClientRequest(Command.CLAIM, pack(head), _runs)


def held(magazine: str, owner: str) -> ClientRequest[list[Run]]:
    return ClientRequest(Command.HELD, pack(payloads.OwnerRequest(magazine, owner)), _runs, True)


def renew(magazine: str, owner: str) -> ClientRequest[bool]:
    return ClientRequest(Command.RENEW, pack(payloads.OwnerRequest(magazine, owner)), _truth, True)


def renew_claims(
    magazine: str, runs: bytes, owner: str, to_owner: str = ""
) -> ClientRequest[list[tuple[int, int, int]]]:
    """Answers what that owner does not hold: (shard, first, behind the last)."""
    return ClientRequest(
        Command.RENEW_CLAIMS,
        pack(payloads.RenewClaims(magazine, owner, to_owner), runs),
        lambda data: unpack_value(data, list[tuple[int, int, int]]),
        True,
    )


def resume(magazine: str, runs: bytes, renews: bool = False) -> ClientRequest[int]:
    """What this client holds of the magazine; whatever else is claimed in its name goes back. Answers how many are held."""
    return ClientRequest(Command.RESUME, pack(payloads.Resume(magazine, renews), runs), count_of, True)


def reload(magazine: str, runs: bytes, fence: Fence | None = None) -> ClientRequest[int]:
    return ClientRequest(Command.RELOAD, pack(payloads.Reload(magazine, fence), runs), count_of)


def delete(magazine: str, runs: bytes) -> ClientRequest[int]:
    return ClientRequest(Command.DELETE, pack(payloads.Named(magazine), runs), count_of)


def delete_waiting(magazine: str, runs: bytes) -> ClientRequest[int]:
    return ClientRequest(Command.DELETE_WAITING, pack(payloads.Named(magazine), runs), count_of)


def purge(
    magazine: str, limit: int, in_flight: bool, left: Mapping[int, tuple[int, int]] | None
) -> ClientRequest[Purged]:
    """One step; see `MagazineStore.purge`."""
    head = payloads.PurgeRequest(magazine, limit, in_flight, None if left is None else dict(left))

    def parse(payload: bytes) -> Purged:
        return Purged(*unpack_value(payload, tuple[int, int, dict[int, tuple[int, int]]]))

    return ClientRequest(Command.PURGE, pack(head), parse)


def _rows(payload: bytes) -> tuple[list[Row], bool]:
    rows, cut = unpack_value(payload, tuple[list[tuple[int, int, bytes | None]], bool])
    return rows, cut


def peek(magazine: str, runs: bytes) -> ClientRequest[tuple[list[Row], bool]]:
    """Answers rows in shard and pointer order, and whether more were left out because the answer would be too large."""
    return ClientRequest(Command.PEEK, pack(payloads.Named(magazine), runs), _rows, True)


def scan(
    magazine: str, after: Mapping[int, int], limit: int, pending_only: bool
) -> ClientRequest[tuple[list[Row], bool]]:
    return ClientRequest(Command.SCAN, pack(payloads.Scan(magazine, dict(after), limit, pending_only)), _rows, True)


def transfer(
    source: str, target: str, items: Sequence[Transfer], ttl_s: float | None, fence: Fence | None
) -> ClientRequest[int]:
    plain = [tuple(item) for item in items]
    ttl_ms = -1 if ttl_s == KEEP_TTL else _ms(ttl_s)
    head = payloads.TransferRequest(source, target, plain, ttl_ms, fence)  # type: ignore[arg-type]
    return ClientRequest(Command.TRANSFER, pack(head), count_of)


def abandoned(
    magazine: str, shard: int, fired_before_ms: int, limit: int, dead_owners: bool, owner: str | None
) -> ClientRequest[list[Abandoned]]:
    head = payloads.AbandonedRequest(magazine, shard, fired_before_ms, limit, dead_owners, owner)

    def parse(payload: bytes) -> list[Abandoned]:
        rows, _ = unpack_value(payload, tuple[list[tuple[int, int, bytes | None, int, str, bool]], bool])
        return [Abandoned(*row) for row in rows]

    return ClientRequest(Command.ABANDONED, pack(head), parse, True)


def expire(magazine: str, limit: int) -> ClientRequest[int]:
    return ClientRequest(Command.EXPIRE, pack(payloads.Expire(magazine, limit)), count_of)


def metadata(magazine: str) -> ClientRequest[list[ShardState]]:
    def parse(payload: bytes) -> list[ShardState]:
        rows = unpack_value(payload, list[list[int]])
        return [ShardState(*row[: len(dataclasses.fields(ShardState))]) for row in rows]

    return ClientRequest(Command.METADATA, pack(payloads.Named(magazine)), parse, True)


def oldest(magazine: str) -> ClientRequest[int | None]:
    return ClientRequest(
        Command.OLDEST, pack(payloads.Named(magazine)), lambda data: unpack_value(data, int | None), True
    )


def wait(magazine: str, seen: int, timeout_s: float) -> ClientRequest[int]:
    head = payloads.Wait(magazine, seen, int(max(0.0, timeout_s) * 1000))
    return ClientRequest(Command.WAIT, pack(head), count_of, True, max(0.0, timeout_s))


def wake(magazine: str) -> ClientRequest[None]:
    return ClientRequest(Command.WAKE, pack(payloads.Named(magazine)), _nothing, True)


def drop(magazine: str) -> ClientRequest[None]:
    return ClientRequest(Command.DROP, pack(payloads.Named(magazine)), _nothing, True)


def drop_empty(magazine: str) -> ClientRequest[bool]:
    return ClientRequest(Command.DROP_EMPTY, pack(payloads.Named(magazine)), _truth, True)


def names() -> ClientRequest[list[str]]:
    return ClientRequest(Command.NAMES, pack(None), lambda data: unpack_value(data, list[str]), True)


# -- queues' settings


def queue_get(name: str) -> ClientRequest[QueueRecord | None]:
    return ClientRequest(
        Command.QUEUE_GET, pack(payloads.Named(name)), lambda data: unpack_value(data, QueueRecord | None), True
    )


def queue_put(record: QueueRecord) -> ClientRequest[None]:
    return ClientRequest(Command.QUEUE_PUT, pack(record), _nothing, True)


def queue_replace(known: QueueRecord, fresh: QueueRecord, fence: Fence | None) -> ClientRequest[QueueRecord]:
    head = payloads.QueueReplace(known, fresh, fence)
    return ClientRequest(Command.QUEUE_REPLACE, pack(head), lambda data: unpack_value(data, QueueRecord))


def queue_list(active: bool | None) -> ClientRequest[list[QueueRecord]]:
    head = payloads.QueueList(active)
    return ClientRequest(Command.QUEUE_LIST, pack(head), lambda data: unpack_value(data, list[QueueRecord]), True)


def queue_remove(name: str) -> ClientRequest[bool]:
    return ClientRequest(Command.QUEUE_REMOVE, pack(payloads.Named(name)), _truth)


# -- locks and epochs


def _lock(payload: bytes) -> LockRecord | None:
    row = unpack_value(payload, tuple[str, str, int, int, int] | None)
    return None if row is None else LockRecord(*row)


def lock(
    command: Command, name: str, owner: str = "", ttl_s: float = 0, table: str = "", farm_id: str = ""
) -> ClientRequest[LockRecord | None]:
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_GET."""
    head = payloads.LockRequest(name, owner, ttl_s, table, farm_id)
    return ClientRequest(command, pack(head), _lock, command is Command.LOCK_GET)


def lock_release(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[bool]:
    return ClientRequest(Command.LOCK_RELEASE, pack(payloads.LockRequest(name, owner, 0, table, farm_id)), _truth)


def lock_token(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[int | None]:
    head = payloads.LockRequest(name, owner, 0, table, farm_id)
    return ClientRequest(Command.LOCK_TOKEN, pack(head), lambda data: unpack_value(data, int | None), True)


def epoch_next(scope: str) -> ClientRequest[int]:
    return ClientRequest(Command.EPOCH_NEXT, pack(payloads.EpochRequest(scope)), count_of, True)


def epoch_get(scope: str) -> ClientRequest[int]:
    return ClientRequest(Command.EPOCH_GET, pack(payloads.EpochRequest(scope)), count_of, True)


def epoch_raise(scope: str, epoch: int) -> ClientRequest[None]:
    return ClientRequest(Command.EPOCH_RAISE, pack(payloads.EpochRequest(scope, epoch)), _nothing, True)


# -- array queues


def array_enqueue(name: str, bin_name: str, values: Sequence[Any]) -> ClientRequest[int]:
    return ClientRequest(Command.ARRAY_ENQUEUE, pack(payloads.ArrayRequest(name, bin_name, list(values))), count_of)


def array_dequeue(name: str, bin_name: str, limit: int) -> ClientRequest[list[Any]]:
    return ClientRequest(Command.ARRAY_DEQUEUE, pack(payloads.ArrayRequest(name, bin_name, [], limit)), unpack_value)


def array_peek(name: str, bin_name: str, limit: int) -> ClientRequest[list[Any]]:
    return ClientRequest(Command.ARRAY_PEEK, pack(payloads.ArrayRequest(name, bin_name, [], limit)), unpack_value, True)


def array_size(name: str, bin_name: str) -> ClientRequest[int]:
    return ClientRequest(Command.ARRAY_SIZE, pack(payloads.ArrayRequest(name, bin_name)), count_of, True)


def stats() -> ClientRequest[dict[str, Any]]:
    return ClientRequest(Command.STATS, pack(None), unpack_value, True)
