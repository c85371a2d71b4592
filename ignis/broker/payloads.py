"""Payloads: what stands in a frame behind its header. No I/O.

Every payload but those of SEND, SEND_BATCH and SEND_ACK is ``u32 head_bytes | head | bulk``: the head is a
MessagePack value (for requests an array, whose fields are those of the classes below, in order), the bulk a packed
block of pointers or claims, or nothing. Readers ignore fields at the end of an array that they do not know, and take
the default for those that are missing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ignis.broker.commands import FEATURES, MAGIC, VERSION
from ignis.errors import BadRequestError, ProtocolError
from ignis.native import PackedBatch
from ignis.storage.base import QueueRecord

__all__ = [
    "AbandonedRequest",
    "ArrayRequest",
    "ClaimRequest",
    "Connect",
    "Connected",
    "Consume",
    "CreateQueue",
    "Credit",
    "Declare",
    "DeleteQueue",
    "Delivery",
    "EpochRequest",
    "Expire",
    "Failure",
    "Fire",
    "LoadOnce",
    "LockRequest",
    "Nack",
    "Named",
    "OwnerRequest",
    "QueueList",
    "QueueReplace",
    "Reload",
    "Scan",
    "Subscribe",
    "TransferRequest",
    "Unsubscribe",
    "Wait",
    "pack",
    "pack_connect",
    "pack_send",
    "pack_send_ack",
    "pack_send_batch",
    "unpack",
    "unpack_connect",
    "unpack_send_ack",
    "unpack_value",
]

T = TypeVar("T")

_U32 = struct.Struct(">I")
_HELLO = struct.Struct(">4sHHQ")  # magic, lowest version, highest version, features
_GROUP = struct.Struct(">HI")
_RUN = struct.Struct(">HQI")
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


class _Head(msgspec.Struct, array_like=True):
    pass


class Connect(_Head):
    """CONNECT. ``instance`` names the client for as long as it lives, so that it can take up its claims after a lost
    connection."""

    client_id: str
    farm_id: str
    instance: str
    token: str = ""
    user: str = ""
    password: str = ""
    software: str = ""

    def __repr__(self) -> str:
        return f"<Connect {self.farm_id}/{self.client_id} instance={self.instance!r} user={self.user!r}>"


class Connected(_Head):
    """The answer to CONNECT: the limits that the broker sets."""

    broker: str
    max_frame_bytes: int
    max_pending: int
    idle_timeout_ms: int
    principal: str = ""
    resumed: int = 0
    tells_repeats: bool = False


class Failure(_Head):
    """ERROR. ``arguments`` are those of the exception class that ``code`` names, where it has numbers of its own."""

    code: str
    message: str
    retryable: bool = False
    fatal: bool = False
    arguments: list[Any] = []


class Named(_Head):
    """Commands that are about one queue or magazine: ACK, DELETE, PEEK, METADATA, OLDEST, WAKE, DROP,
    QUEUE_GET, QUEUE_REMOVE, QUEUE_INFO."""

    name: str


class Subscribe(_Head):
    """SUBSCRIBE: ``credit`` is how many delivered messages may be unacknowledged."""

    queue: str
    credit: int
    max_bytes: int = 1 << 20


class Credit(_Head):
    """CREDIT: a new limit for a subscription, which is named by the request id of its SUBSCRIBE."""

    subscription: int
    credit: int


class Unsubscribe(_Head):
    """UNSUBSCRIBE. What was delivered and not acknowledged stays with the connection."""

    subscription: int


class Consume(_Head):
    """CONSUME: one answer with up to ``limit`` messages, empty when none came in time."""

    queue: str
    limit: int
    timeout_ms: int = 0
    max_bytes: int = 16 << 20


class Delivery(_Head):
    """DELIVER, and the answer to FIRE; the claims follow as bulk."""

    more: bool = False
    expired: int = 0
    holes: dict[int, list[int]] = {}


class Nack(_Head):
    """NACK, pointers as bulk: ``requeue`` after ``delay_ms``, or ``sideline`` with a reason."""

    queue: str
    action: str = "requeue"
    delay_ms: int = 0
    reason: str = "rejected"
    error: str = ""


class CreateQueue(_Head):
    """CREATE_QUEUE: settings as in ``[queue]`` of the settings page."""

    name: str
    settings: dict[str, Any] = {}


class DeleteQueue(_Head):
    """DELETE_QUEUE."""

    name: str
    force: bool = False


class Declare(_Head):
    """DECLARE."""

    magazine: str
    shards: int
    durability: str


class Fire(_Head):
    """FIRE. ``shards`` nil = all."""

    magazine: str
    limit: int
    owner: str
    shards: list[int] | None = None
    max_bytes: int = 64 << 20


class Scan(_Head):
    """SCAN. ``after``: shard -> pointer."""

    magazine: str
    after: dict[int, int] = {}
    limit: int = 100
    pending_only: bool = False


class TransferRequest(_Head):
    """TRANSFER. Items are (shard, pointer, record, target shard); ``ttl_ms`` 0 = never; the fence is a scope and an
    epoch."""

    source: str
    target: str
    items: list[tuple[int, int, bytes, int]]
    ttl_ms: int = 0
    fence: tuple[str, int] | None = None


class AbandonedRequest(_Head):
    """ABANDONED."""

    magazine: str
    shard: int
    fired_before_ms: int
    limit: int
    dead_owners: bool = True
    owner: str | None = None


class LoadOnce(_Head):
    """LOAD_ONCE; the payload of a SEND_BATCH follows as bulk."""

    magazine: str
    remember_ms: int


class ClaimRequest(_Head):
    """CLAIM."""

    magazine: str
    limit: int
    owner: str
    shards: list[int] | None = None


class OwnerRequest(_Head):
    """HELD, RENEW."""

    magazine: str
    owner: str


class Reload(_Head):
    """RELOAD, pointers as bulk."""

    magazine: str
    fence: tuple[str, int] | None = None


class Expire(_Head):
    """EXPIRE."""

    magazine: str
    limit: int = 10_000


class Wait(_Head):
    """WAIT."""

    magazine: str
    seen: int
    timeout_ms: int


class QueueReplace(_Head):
    """QUEUE_REPLACE: the record becomes ``fresh`` if it still is ``known``; else ``conflict``."""

    known: QueueRecord
    fresh: QueueRecord
    fence: tuple[str, int] | None = None


class QueueList(_Head):
    """QUEUE_LIST, LIST_QUEUES. ``active`` nil = all."""

    active: bool | None = None


class LockRequest(_Head):
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_RELEASE, LOCK_GET, LOCK_TOKEN. ``table`` empty = the application's own locks."""

    name: str
    owner: str = ""
    ttl_s: float = 0
    table: str = ""
    farm_id: str = ""


class EpochRequest(_Head):
    """EPOCH_NEXT, EPOCH_GET, EPOCH_RAISE."""

    scope: str
    epoch: int = 0


class ArrayRequest(_Head):
    """ARRAY_ENQUEUE, ARRAY_DEQUEUE, ARRAY_PEEK, ARRAY_SIZE."""

    name: str
    bin_name: str
    values: list[Any] = []
    limit: int = 0


# -- head and bulk


def pack(head: Any, bulk: bytes = b"") -> bytes:
    """``u32 head_bytes | head | bulk``."""
    encoded = _encode(head)
    return b"".join((_U32.pack(len(encoded)), encoded, bulk))


def unpack(payload: bytes, kind: type[T]) -> tuple[T, int]:
    """The head, checked against its class, and where the bulk begins. Raises BadRequestError."""
    if len(payload) < 4:
        raise BadRequestError(f"payload of {len(payload)} bytes is cut short")
    end = 4 + _U32.unpack_from(payload)[0]
    if end > len(payload):
        raise BadRequestError(f"payload of {len(payload)} bytes announces a head of {end - 4} bytes")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(memoryview(payload)[4:end]), end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequestError(f"payload is not a {getattr(kind, '__name__', kind)}: {exc}") from None


def unpack_value(payload: bytes, kind: Any = Any) -> Any:
    """The head alone, of a RESULT."""
    return unpack(payload, kind)[0]


# -- the handshake


def pack_connect(head: Connect | Connected, *, lowest: int = VERSION, highest: int = VERSION) -> bytes:
    """CONNECT and its answer begin with magic, versions and features, in a form that no later version changes."""
    return _HELLO.pack(MAGIC, lowest, highest, FEATURES) + pack(head)


def unpack_connect(payload: bytes, kind: type[T]) -> tuple[T, int, int]:
    """(head, version to speak, features of the other side). Raises ProtocolError."""
    if len(payload) < _HELLO.size:
        raise ProtocolError(f"a handshake of {len(payload)} bytes is cut short")
    magic, lowest, highest, features = _HELLO.unpack_from(payload)
    if magic != MAGIC:
        raise ProtocolError(
            f"the other side does not speak this protocol: it begins with {magic!r} instead of {MAGIC!r}"
        )
    if not lowest <= VERSION <= highest:
        raise ProtocolError(f"the other side speaks versions {lowest} to {highest}, this one {VERSION}")
    try:
        return unpack(payload[_HELLO.size :], kind)[0], VERSION, features
    except BadRequestError as exc:
        raise ProtocolError(str(exc)) from None


# -- sending


def pack_send(name: bytes, ttl_ms: int, shard: int, record: bytes) -> bytes:
    """SEND: ``u16 name_bytes | name | u64 ttl_ms | u16 shard | record``."""
    return b"".join((struct.pack(">H", len(name)), name, struct.pack(">QH", ttl_ms, shard), record))


def pack_send_batch(name: bytes, ttl_ms: int, batches: Sequence[tuple[int, PackedBatch]]) -> bytes:
    """SEND_BATCH: ``u16 name_bytes | name | u64 ttl_ms | u16 groups``, then per group ``u16 shard | u32 bytes |
    segment``."""
    pieces: list[Any] = [struct.pack(">H", len(name)), name, struct.pack(">QH", ttl_ms, len(batches))]
    for shard, batch in batches:
        pieces.append(_GROUP.pack(shard, batch.nbytes))
        pieces.append(batch)
    return b"".join(pieces)


def pack_send_ack(runs: Sequence[tuple[int, int, int]]) -> bytes:
    """SEND_ACK: ``u16 runs``, then ``u16 shard | u64 first pointer | u32 count`` each."""
    return b"".join((struct.pack(">H", len(runs)), *(_RUN.pack(*run) for run in runs)))


def unpack_send_ack(payload: bytes) -> list[tuple[int, int, int]]:
    """(shard, first pointer, count) per group. Raises ProtocolError."""
    if len(payload) < 2 or len(payload) != 2 + _RUN.size * int.from_bytes(payload[:2], "big"):
        raise ProtocolError(f"SEND_ACK of {len(payload)} bytes")
    return list(_RUN.iter_unpack(payload[2:]))
