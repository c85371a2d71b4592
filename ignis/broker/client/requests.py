"""Requests about messages, queues and the broker. Each function gives a request and how its answer is read. No I/O.

Those of the storage contract are in `ignis.broker.client.store_requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ignis.broker.client.client_request import (
    Batches,
    ClientRequest,
    Ttl,
    build,
    encoded_name,
    packed_pointers,
    read_as,
    ttl_ms_of,
)
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack, unpack_value
from ignis.broker.protocol.payloads import unpack_send_ack
from ignis.config import MAX_EXPIRY_S, check_number, check_whole, shown
from ignis.errors import ConfigError
from ignis.message import MAX_ERROR_CHARS
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import pack_pointers, unpack_claims
from ignis.storage.base import Claim, FireResult, Pointers

_PLAIN = pack(payloads.Delivery())
"""How a DELIVER begins when nothing expired and no more is known to be there."""


def count_of(payload: bytes) -> int:
    """Reads a count from an answer. Raises BadRequestError."""
    return int(unpack_value(payload, int))


def delivered(payload: bytes) -> FireResult:
    """Reads the payload of DELIVER, and of the answer to FIRE."""
    if payload.startswith(_PLAIN):  # as a rule
        return FireResult([Claim(*one) for one in unpack_claims(payload, len(_PLAIN))], {}, 0, False)
    head, at = unpack(payload, payloads.Delivery)
    return FireResult([Claim(*one) for one in unpack_claims(payload, at)], head.holes, head.expired, head.more)


def pointers_of(found: FireResult) -> dict[int, Sequence[int]]:
    """Names what was delivered, as `ack` and `nack` take it: a range for a shard where it is one run, else a list."""
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
    """Stores one record (see `ignis.native.encode_record`); answers (shard, pointer)."""
    ttl_ms = ttl_ms_of(ttl_s)
    given: Any = record  # whatever it is
    if not isinstance(given, bytes):
        raise ConfigError(f"record = {shown(given)} is not bytes; make it with ignis.native.encode_record")
    if shard != ANY_SHARD:
        check_whole(shard, "shard", 0, ANY_SHARD - 1)
    return ClientRequest(Command.SEND, payloads.pack_send(encoded_name(queue), ttl_ms, shard, record), _placed)


def _placed(payload: bytes) -> tuple[int, int]:
    return unpack_send_ack(payload)[0][:2]


def send_batch(queue: str, batches: Batches, *, ttl_s: Ttl = "queue") -> ClientRequest[list[tuple[int, int, int]]]:
    """Stores packed batches, in one transaction where the store has any; answers (shard, first pointer, count) for each."""
    given: Any = batches  # whatever it is
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ConfigError(f"batches = {shown(given)} is not a sequence of pairs of a shard and a PackedBatch")
    for one in given:
        if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], PackedBatch)):
            raise ConfigError(f"batches hold {shown(one)}, which is not a pair of a shard and a PackedBatch")
        check_whole(one[0], "shard", 0, ANY_SHARD if one[0] == ANY_SHARD else ANY_SHARD - 1)
    if not 1 <= len(batches) <= 0xFFFF:
        raise ConfigError(f"{len(batches)} batches in one request; 1 to 65535 are allowed")
    ttl_ms = ttl_ms_of(ttl_s)
    return ClientRequest(
        Command.SEND_BATCH, payloads.pack_send_batch(encoded_name(queue), ttl_ms, batches), unpack_send_ack
    )


# -- consuming


def subscribe(queue: str, credit: int, max_bytes: int) -> ClientRequest[int]:
    check_whole(credit, "credit", 0)
    check_whole(max_bytes, "max_bytes", 1)

    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[Any] | None:
        return unsubscribe(request_id) if command == Command.RESULT else _given_back(queue, payload)

    return replace(build(Command.SUBSCRIBE, queue, credit, max_bytes), undo=undo)


def unsubscribe(subscription: int) -> ClientRequest[bool]:
    return build(Command.UNSUBSCRIBE, subscription)


def credit(subscription: int, count: int) -> ClientRequest[None]:
    return build(Command.CREDIT, subscription, check_whole(count, "credit", 0))


def consume(queue: str, limit: int, wait_s: float, max_bytes: int) -> ClientRequest[FireResult]:
    """Claims up to ``limit`` messages; the broker waits up to ``wait_s`` seconds for the first."""
    check_whole(limit, "limit", 1)
    check_whole(max_bytes, "max_bytes", 1)
    timeout_ms = int(check_number(wait_s, "wait_s", 0, 86_400) * 1000)
    return replace(
        build(Command.CONSUME, queue, limit, timeout_ms, max_bytes),
        parse=delivered,
        extra_s=max(0.0, wait_s),
        undo=lambda request_id, command, payload: _given_back(queue, payload),
    )


def _given_back(queue: str, payload: bytes) -> ClientRequest[int] | None:
    """Makes the NACK for all that a DELIVER brought."""
    pointers = pointers_of(delivered(payload))
    return nack(queue, pointers) if pointers else None


def ack(queue: str, pointers: Pointers | Iterable[tuple[int, Iterable[int]]]) -> ClientRequest[int]:
    """Retires messages that this connection holds; answers how many it did hold."""
    return build(Command.ACK, queue, bulk=packed_pointers(pointers))


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
    return build(Command.NACK, queue, how, int(delay_s * 1000), reason, text, bulk=packed_pointers(pointers))


def renew_claims(
    magazine: str, runs: bytes, owner: str, to_owner: str = ""
) -> ClientRequest[list[tuple[int, int, int]]]:
    """Starts the stuck time of claims anew; answers what that owner does not hold: (shard, first, behind the last)."""
    return build(Command.RENEW_CLAIMS, magazine, owner, to_owner, bulk=runs)


def renew_own(queue: str, pointers: Pointers) -> ClientRequest[int]:
    """Starts the stuck time of messages anew; answers how many of them this client does not hold (any more)."""
    lost = renew_claims(queue, pack_pointers(pointers), "")
    return read_as(lambda runs: sum(stop - start for _, start, stop in runs), lost)


def resume(magazine: str, runs: bytes, renews: bool = False) -> ClientRequest[int]:
    """Says what this client holds of the magazine; whatever else is claimed in its name goes back. Answers how many are held."""
    return build(Command.RESUME, magazine, renews, bulk=runs)


# -- queues and the broker


def create_queue(name: str, settings: Mapping[str, Any]) -> ClientRequest[dict[str, Any]]:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings = {shown(settings)} is not a mapping")
    return build(Command.CREATE_QUEUE, name, dict(settings))


def delete_queue(name: str, force: bool) -> ClientRequest[bool]:
    return build(Command.DELETE_QUEUE, name, force)


def list_queues(active: bool | None, after: str | None = None) -> ClientRequest[Any]:
    """Answers a list of mappings; with ``after`` a page of those behind that name: (list, whether there are more)."""
    return build(Command.LIST_QUEUES, active, after)


def queue_info(name: str) -> ClientRequest[dict[str, Any]]:
    return build(Command.QUEUE_INFO, name)


def node_status() -> ClientRequest[dict[str, Any]]:
    return build(Command.NODE_STATUS)


def cluster_status() -> ClientRequest[list[dict[str, Any]]]:
    return build(Command.CLUSTER_STATUS)


def metrics() -> ClientRequest[list[tuple[str, dict[str, str], float]]]:
    return build(Command.METRICS)


def ping() -> ClientRequest[bytes]:
    return ClientRequest(Command.PING, b"", bytes, True)


def disconnect(give_back: bool) -> ClientRequest[None]:
    """Ends the connection in order: with ``give_back`` what this connection holds is pending again at once, else it stays
    claimed."""
    return build(Command.DISCONNECT, give_back)
