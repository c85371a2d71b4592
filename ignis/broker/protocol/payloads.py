"""Payloads: what stands in a frame behind its header. No I/O.

Every payload but those of SEND, SEND_BATCH and SEND_ACK is ``u32 head_bytes | head | bulk``: the head is a
MessagePack value (for requests an array, whose fields are those of the classes below, in order), the bulk a packed
block of pointers or claims, or nothing. Readers ignore fields at the end of an array that they do not know, and take
the default for those that are missing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ignis.array_queue import MAX_DEPTH
from ignis.broker.protocol.commands import FEATURES, MAGIC, MAX_HEAD_BYTES, VERSION
from ignis.errors import (
    BadRequestError,
    ConfigError,
    IgnisError,
    InvalidMessageError,
    InvalidNameError,
    MalformedFrameError,
    ProtocolError,
)
from ignis.native import wire
from ignis.native.wire import pack_send_batch
from ignis.storage.base import QueueRecord
from ignis.storage.checks import (
    MAX_EPOCH,
    MAX_SHARDS,
    MAX_TABLE_BYTES,
    MAX_TABLE_LOCK_BYTES,
    MAX_TTL_S,
    shorten,
)

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
    "PurgeRequest",
    "QueueList",
    "QueueReplace",
    "Reload",
    "RenewClaims",
    "Resume",
    "Scan",
    "Subscribe",
    "TransferRequest",
    "Unsubscribe",
    "Wait",
    "head_bytes",
    "pack",
    "pack_connect",
    "pack_send",
    "pack_send_ack",
    "pack_send_batch",
    "unpack",
    "unpack_connect",
    "unpack_enqueued",
    "unpack_send_ack",
    "unpack_value",
]

T = TypeVar("T")

# What each field of a request may be, checked when it is decoded. Names that are any text, such as a lock's id, are bounded
# here and checked by `ignis.storage.checks` before the store is asked.

Name = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}\Z")]
Magazine = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}(?:_SIDELINE)?\Z")]
Scope = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._@-]{1,200}\Z")]
LockName = Annotated[str, Meta(min_length=1, max_length=MAX_TABLE_LOCK_BYTES)]
Table = Annotated[str, Meta(max_length=MAX_TABLE_BYTES)]
Farm = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,128}\Z")]
Owner = Annotated[str, Meta(pattern=r"\A[ -~]{0,255}\Z")]
Bin = Annotated[str, Meta(min_length=1, max_length=15)]
Says = Annotated[str, Meta(pattern=r"\A[ -~]{0,1024}\Z")]
Text = Annotated[str, Meta(max_length=255)]
Durability = Annotated[str, Meta(pattern=r"\A(?:sync|interval|none)\Z")]
Shard = Annotated[int, Meta(ge=0, lt=MAX_SHARDS)]
Shards = Annotated[list[Shard], Meta(max_length=MAX_SHARDS)] | None
Pointer = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
CountOrNone = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Size = Annotated[int, Meta(ge=0, le=1 << 62)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TTL_S * 1000)]
MillisecondsOrKeep = Annotated[int, Meta(ge=-1, le=MAX_TTL_S * 1000)]
Moment = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_TTL_S)]
Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
Fencing = tuple[Scope, Epoch] | None
RequestId = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_NAMES = frozenset(
    {"name", "queue", "magazine", "source", "target", "owner", "scope", "table", "farm_id", "bin_name", "fence"}
)
"""Fields whose text is refused as a name."""
_SECRET = frozenset({"token", "password"})
"""Fields whose value is in no message, whatever it is and whichever payload has them."""
_WHERE = re.compile(r" - at (?:`key` in )?`\$\[(\d+)\]")
_OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (?:[<>]|of length|matching|that's)")

_TOLD_BYTES = 8_192
"""Of a larger head no value is shown: all of it would be decoded again for one word of a message."""
_MOST_VALUES = 1_000_000

_U32 = struct.Struct(">I")
_HELLO = struct.Struct(">4sHHQ")  # magic, lowest version, highest version, features
_RUN = struct.Struct(">HQI")
_encode = msgspec.msgpack.Encoder().encode
_MAP = dict[str | int, msgspec.Raw]
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


class _Head(msgspec.Struct, array_like=True):
    pass


class Connect(_Head):
    """CONNECT. ``instance`` names the client for as long as it lives, so that it can take up its claims after a lost
    connection. No value of it is in any message: a client that puts its fields in another order must not read its password
    in the log."""

    client_id: str
    farm_id: str
    instance: Says
    token: str = ""
    user: str = ""
    password: str = ""
    software: Says = ""
    process: tuple[Text, Size, Size, Size, Text] | None = None
    """Host, pid, start time, namespace (of pids and of time) and boot of the client's process, by which its end can be proved."""

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
    owner: str = ""
    """In whose name this client's claims are made."""
    message_expiry_s: int = 0
    """What a queue gets whose time to live nobody has chosen; 0 = its messages never expire."""


class Failure(_Head):
    """ERROR. ``arguments`` are those of the exception class that ``code`` names, where it has numbers of its own."""

    code: str
    message: str
    retryable: bool = False
    fatal: bool = False
    arguments: list[Any] = []


class Named(_Head):
    """Commands that are about one queue or magazine: ACK, DELETE, DELETE_WAITING, PEEK, METADATA, OLDEST, WAKE, DROP, DROP_EMPTY,
    QUEUE_GET, QUEUE_REMOVE, QUEUE_INFO."""

    name: Magazine


class Subscribe(_Head):
    """SUBSCRIBE: ``credit`` is how many delivered messages may be unacknowledged."""

    queue: Magazine
    credit: CountOrNone
    max_bytes: Size = 1 << 20


class Credit(_Head):
    """CREDIT: a new limit for a subscription, which is named by the request id of its SUBSCRIBE."""

    subscription: RequestId
    credit: CountOrNone


class Unsubscribe(_Head):
    """UNSUBSCRIBE. What was delivered and not acknowledged stays with the connection."""

    subscription: RequestId


class Consume(_Head):
    """CONSUME: one answer with up to ``limit`` messages, empty when none came in time."""

    queue: Magazine
    limit: Count
    timeout_ms: Milliseconds = 0
    max_bytes: Size = 16 << 20


class Delivery(_Head):
    """DELIVER, and the answer to FIRE; the claims follow as bulk."""

    more: bool = False
    expired: int = 0
    holes: dict[int, list[int]] = {}


class Nack(_Head):
    """NACK, pointers as bulk: ``requeue`` after ``delay_ms``, or ``sideline`` with a reason."""

    queue: Magazine
    action: Annotated[str, Meta(max_length=16)] = "requeue"
    delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    reason: Annotated[str, Meta(max_length=64)] = "rejected"
    error: str = ""


class CreateQueue(_Head):
    """CREATE_QUEUE: settings as in ``[queue]`` of the settings page."""

    name: Name
    settings: Annotated[dict[str, Any], Meta(max_length=64)] = {}


class DeleteQueue(_Head):
    """DELETE_QUEUE."""

    name: Name
    force: bool = False


class Declare(_Head):
    """DECLARE."""

    magazine: Magazine
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    durability: Durability


class Fire(_Head):
    """FIRE. ``shards`` nil = all."""

    magazine: Magazine
    limit: Count
    owner: Owner
    shards: Shards = None
    max_bytes: Size = 64 << 20


class Scan(_Head):
    """SCAN. ``after``: shard -> pointer."""

    magazine: Magazine
    after: dict[Annotated[int, Meta(ge=0, le=MAX_SHARDS)], Pointer] = {}
    limit: CountOrNone = 100
    pending_only: bool = False


class TransferRequest(_Head):
    """TRANSFER. Items are (shard, pointer, record, target shard); ``ttl_ms`` 0 = never, -1 = each keeps its own; the fence is
    a scope and an epoch."""

    source: Magazine
    target: Magazine
    items: list[tuple[Shard, Pointer, bytes, Shard]]
    ttl_ms: MillisecondsOrKeep = 0
    fence: Fencing = None


class AbandonedRequest(_Head):
    """ABANDONED."""

    magazine: Magazine
    shard: Shard
    fired_before_ms: Moment
    limit: Count
    dead_owners: bool = True
    owner: Owner | None = None


class LoadOnce(_Head):
    """LOAD_ONCE; the payload of a SEND_BATCH follows as bulk."""

    magazine: Magazine
    remember_ms: Annotated[int, Meta(ge=1, le=MAX_TTL_S * 1000)]


class ClaimRequest(_Head):
    """CLAIM."""

    magazine: Magazine
    limit: Count
    owner: Owner
    shards: Shards = None


class OwnerRequest(_Head):
    """HELD, RENEW."""

    magazine: Magazine
    owner: Owner


class RenewClaims(_Head):
    """RENEW_CLAIMS, pointers as bulk."""

    magazine: Magazine
    owner: Owner = ""
    to_owner: Owner = ""


class Resume(_Head):
    """RESUME, pointers as bulk. ``renews``: the client renews them by itself."""

    magazine: Magazine
    renews: bool = False


class PurgeRequest(_Head):
    """PURGE. ``left``: what the answer to the step before said, shard -> (first, last); nil begins a purge."""

    magazine: Magazine
    limit: Count = 10_000
    in_flight: bool = False
    left: dict[Shard, tuple[Pointer, Pointer]] | None = None


class Reload(_Head):
    """RELOAD, pointers as bulk."""

    magazine: Magazine
    fence: Fencing = None


class Expire(_Head):
    """EXPIRE."""

    magazine: Magazine
    limit: Count = 10_000


class Wait(_Head):
    """WAIT."""

    magazine: Magazine
    seen: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    timeout_ms: Milliseconds


class QueueReplace(_Head):
    """QUEUE_REPLACE: the record becomes ``fresh`` if it still is ``known``; else ``conflict``."""

    known: QueueRecord
    fresh: QueueRecord
    fence: Fencing = None


class QueueList(_Head):
    """QUEUE_LIST, LIST_QUEUES. ``active`` nil = all."""

    active: bool | None = None


class LockRequest(_Head):
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_RELEASE, LOCK_GET, LOCK_TOKEN. ``table`` empty = the application's own locks."""

    name: LockName
    owner: Owner = ""
    ttl_s: Seconds = 0
    table: Table = ""
    farm_id: Farm = ""


class EpochRequest(_Head):
    """EPOCH_NEXT, EPOCH_GET, EPOCH_RAISE."""

    scope: Scope
    epoch: Epoch = 0


class ArrayRequest(_Head):
    """ARRAY_ENQUEUE, ARRAY_DEQUEUE, ARRAY_PEEK, ARRAY_SIZE."""

    name: Name
    bin_name: Bin
    values: Annotated[list[Any], Meta(max_length=_MOST_VALUES)] = []
    limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class _Enqueued(msgspec.Struct, array_like=True):
    """ARRAY_ENQUEUE as it is read: the values when it is known how many there are."""

    name: Name
    bin_name: Bin
    values: msgspec.Raw = msgspec.Raw(b"\x90")


# -- head and bulk


def head_bytes(payload: bytes) -> int:
    """How long its head says that it is."""
    return int(_U32.unpack_from(payload)[0]) if len(payload) >= 4 else 0


def pack(head: Any, bulk: bytes = b"") -> bytes:
    """``u32 head_bytes | head | bulk``. Raises ConfigError for values that MessagePack has not."""
    try:
        encoded = _encode(head)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ConfigError(f"{type(head).__name__} cannot be encoded: {exc}") from None
    return b"".join((_U32.pack(len(encoded)), encoded, bulk))


def unpack(payload: bytes, kind: type[T]) -> tuple[T, int]:
    """The head, checked against its class, and where the bulk begins.

    Raises BadRequestError for what is not of its class's types, ConfigError for a value out of its field's bounds, and
    InvalidNameError for a name that is none; the last two say which field, what was given and what is allowed.
    """
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
    except UnicodeDecodeError:
        # Its own text has a byte of the value, which may be a password.
        raise BadRequestError(f"payload is not a {getattr(kind, '__name__', kind)}: text that is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise _refusal(payload[4:end], kind, str(exc)) from None


def _refusal(head: bytes, kind: Any, why: str) -> BadRequestError | ConfigError:
    """For a head that was not taken."""
    called = getattr(kind, "__name__", kind)
    where = _WHERE.search(why)
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    if where is None or int(where[1]) >= len(fields):
        return BadRequestError(f"payload is not a {called}: {why[:200]}")
    field, expected = fields[int(where[1])], why[: where.start()]
    text = f"{called}: {field}: {expected[:200]}"
    if kind is not Connect and field not in _SECRET and len(head) <= _TOLD_BYTES:
        try:
            given = shorten(msgspec.msgpack.decode(head)[int(where[1])])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            given = "something"  # which cannot be read without its type
        text = f"{called}: {field} = {given}: {expected[:200]}"
    if field in _NAMES:
        return InvalidNameError(text)
    return ConfigError(text) if _OUT_OF_BOUNDS.match(expected) else BadRequestError(text)


def unpack_value(payload: bytes, kind: Any = Any) -> Any:
    """The head alone, of a RESULT."""
    return unpack(payload, kind)[0]


# -- values of an array queue


def unpack_enqueued(payload: bytes) -> tuple[str, str, list[Any]]:
    """(name, bin, values) of ARRAY_ENQUEUE. Values are counted before any of them is made: an empty one is a byte in the
    payload and 64 in memory.

    Raises what `unpack` does; ConfigError when there are more than a million, those within lists and dicts included.
    """
    head, _ = unpack(payload, _Enqueued)
    _check_count(head.values)
    return head.name, head.bin_name, unpack(_U32.pack(len(head.values)) + bytes(head.values), list[Any])[0]


def _check_count(values: msgspec.Raw) -> None:
    data = memoryview(values)
    if data[0] & 0xF0 != 0x90 and data[0] not in (0xDC, 0xDD):
        raise BadRequestError("ArrayRequest: values: Expected `array`")
    count = _length(data)
    # A head of no unusual size cannot hold so much that counting all of it is worth while.
    within = [(values, 0)] if len(data) > MAX_HEAD_BYTES else []
    while within and count <= _MOST_VALUES:
        raw, depth = within.pop()
        if depth > MAX_DEPTH:
            raise InvalidMessageError(f"lists and dicts are nested deeper than {MAX_DEPTH}")
        for one in _parts(raw):
            added = _length(memoryview(one))
            if added:
                count += added
                within.append((one, depth + 1))
                if count > _MOST_VALUES:
                    break
    if count > _MOST_VALUES:
        raise ConfigError(f"ArrayRequest: values = {count} values or more: at most {_MOST_VALUES} are taken at a time")


def _parts(raw: msgspec.Raw) -> Iterable[msgspec.Raw]:
    """What is directly within an array or a map; of the latter the values, whose keys are no containers."""
    first = memoryview(raw)[0]
    kind: Any = list[msgspec.Raw] if first & 0xF0 == 0x90 or first in (0xDC, 0xDD) else _MAP
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found = decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("ArrayRequest: values: no MessagePack of values, or a key that is none") from None
    return found.values() if isinstance(found, dict) else found


def _length(data: memoryview) -> int:
    """Elements of the array or pairs of the map that begins here; 0 for anything else."""
    first = data[0]
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    size = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(first, 0)
    return int.from_bytes(data[1 : 1 + size], "big")


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
    except IgnisError as exc:  # of the wrong type, out of bounds, or no name
        raise ProtocolError(str(exc)) from None


# -- sending


def pack_send(name: bytes, ttl_ms: int, shard: int, record: bytes) -> bytes:
    """SEND: ``u16 name_bytes | name | u64 ttl_ms | u16 shard | record``."""
    return b"".join((struct.pack(">H", len(name)), name, struct.pack(">QH", ttl_ms, shard), record))


def pack_send_ack(runs: Sequence[tuple[int, int, int]]) -> bytes:
    """SEND_ACK: ``u16 runs``, then ``u16 shard | u64 first pointer | u32 count`` each."""
    return b"".join((struct.pack(">H", len(runs)), *(_RUN.pack(*run) for run in runs)))


def unpack_send_ack(payload: bytes) -> list[tuple[int, int, int]]:
    """(shard, first pointer, count) per group. Raises ProtocolError."""
    try:
        return wire.unpack_send_ack(payload)
    except MalformedFrameError as exc:
        raise ProtocolError(str(exc)) from None
