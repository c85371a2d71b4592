"""Payloads: the head of each command, a class with the bounds of its fields, and the forms of SEND, SEND_BATCH and SEND_ACK.

No I/O. `ignis.broker.protocol.encoding` packs a head and reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from ignis.errors import MalformedFrameError, ProtocolError
from ignis.native import wire
from ignis.native.wire import pack_send_batch
from ignis.storage.base import QueueRecord
from ignis.storage.checks import (
    MAX_EPOCH,
    MAX_SHARDS,
    MAX_TABLE_BYTES,
    MAX_TABLE_LOCK_BYTES,
    MAX_TTL_S,
)

__all__ = [
    "AbandonedRequest",
    "AnyNamed",
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
    "Head",
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
    "pack_send",
    "pack_send_ack",
    "pack_send_batch",
    "unpack_send_ack",
]

# What each field of a request may be, checked when it is decoded. Names that are any text, such as a lock's id, are bounded
# here and checked by `ignis.storage.checks` before the store is asked.

Name = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}\Z")]
Magazine = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}(?:_SIDELINE)?\Z")]
AnyMagazine = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}(?:_SIDELINE|@LATER)?\Z")]
"""A later magazine too, which one may look into and remove from. What is put there needs a due time."""
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

MAX_VALUES = 1_000_000
"""Values that one ARRAY_ENQUEUE may have."""
_RUN = struct.Struct(">HQI")


class Head(msgspec.Struct, array_like=True):
    """The fields of a head, in order."""

    told: ClassVar[bool] = True
    """Whether the text of a refusal may show what was given."""


class Connect(Head):
    """CONNECT. ``instance`` names the client for as long as it lives, so that it can take up its claims after a lost
    connection. No value of it is in any message: a client that puts its fields in another order must not read its password
    in the log."""

    told: ClassVar[bool] = False
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


class Connected(Head):
    """The answer to CONNECT: the limits that the broker sets."""

    broker: str
    max_frame_bytes: int
    max_pending: int
    idle_timeout_ms: int
    principal: str = ""
    resumed: int = 0
    tells_repeats: bool = False
    owner: str = ""
    """The name in which this client's claims are made."""
    message_expiry_s: int = 0
    """What a queue gets whose time to live nobody has chosen; 0 = its messages never expire."""
    keeps_later: bool = False
    """Whether the store keeps messages until they are due, and the broker knows the commands for them."""
    holds_fires: bool = False
    """Whether the broker holds a FIRE back for its ``timeout_ms``: one of before answers it at once."""


class Failure(Head):
    """ERROR. ``arguments`` are those of the exception class that ``code`` names, where it has numbers of its own."""

    code: str
    message: str
    retryable: bool = False
    fatal: bool = False
    arguments: list[Any] = []


class Named(Head):
    """Commands that are about one queue or magazine: ACK, DELETE_WAITING, OLDEST, WAKE, DROP_EMPTY, QUEUE_GET, QUEUE_REMOVE,
    QUEUE_INFO, RUN_NOW, CANCEL_LATER, DELAYED."""

    name: Magazine


class AnyNamed(Head):
    """Those that are about a later magazine as well: DELETE, PEEK, METADATA, DROP."""

    name: AnyMagazine


class Subscribe(Head):
    """SUBSCRIBE: ``credit`` is how many delivered messages may be unacknowledged."""

    queue: Magazine
    credit: CountOrNone
    max_bytes: Size = 1 << 20


class Credit(Head):
    """CREDIT: a new limit for a subscription, which is named by the request id of its SUBSCRIBE."""

    subscription: RequestId
    credit: CountOrNone


class Unsubscribe(Head):
    """UNSUBSCRIBE. What was delivered and not acknowledged stays with the connection."""

    subscription: RequestId


class Consume(Head):
    """CONSUME: one answer with up to ``limit`` messages, empty when none came in time."""

    queue: Magazine
    limit: Count
    timeout_ms: Milliseconds = 0
    max_bytes: Size = 16 << 20


class Delivery(Head):
    """DELIVER, and the answer to FIRE; the claims follow as bulk."""

    more: bool = False
    expired: int = 0
    holes: dict[int, list[int]] = {}


class Nack(Head):
    """NACK, pointers as bulk: ``requeue`` after ``delay_ms``, or ``sideline`` with a reason."""

    queue: Magazine
    action: Annotated[str, Meta(max_length=16)] = "requeue"
    delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    reason: Annotated[str, Meta(max_length=64)] = "rejected"
    error: str = ""


class CreateQueue(Head):
    """CREATE_QUEUE: settings as in ``[queue]`` of the settings page."""

    name: Name
    settings: Annotated[dict[str, Any], Meta(max_length=64)] = {}


class DeleteQueue(Head):
    """DELETE_QUEUE."""

    name: Name
    force: bool = False


class Declare(Head):
    """DECLARE."""

    magazine: Magazine
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    durability: Durability


class Fire(Head):
    """FIRE. ``shards`` nil = all. ``timeout_ms``: how long the broker may hold it back while there is nothing to claim."""

    magazine: Magazine
    limit: Count
    owner: Owner
    shards: Shards = None
    max_bytes: Size = 64 << 20
    timeout_ms: Milliseconds = 0


class Scan(Head):
    """SCAN. ``after``: shard -> pointer."""

    magazine: AnyMagazine
    after: dict[Annotated[int, Meta(ge=0, le=MAX_SHARDS)], Pointer] = {}
    limit: CountOrNone = 100
    pending_only: bool = False


class TransferRequest(Head):
    """TRANSFER. Items are (shard, pointer, record, target shard); ``ttl_ms`` 0 = never, -1 = each keeps its own; the fence is
    a scope and an epoch."""

    source: Magazine
    target: Magazine
    items: list[tuple[Shard, Pointer, bytes, Shard]]
    ttl_ms: MillisecondsOrKeep = 0
    fence: Fencing = None


class AbandonedRequest(Head):
    """ABANDONED."""

    magazine: Magazine
    shard: Shard
    fired_before_ms: Moment
    limit: Count
    dead_owners: bool = True
    owner: Owner | None = None


class LoadOnce(Head):
    """LOAD_ONCE; the payload of a SEND_BATCH follows as bulk, with ``delayed`` behind due times as those of LOAD_LATER."""

    magazine: Magazine
    remember_ms: Annotated[int, Meta(ge=1, le=MAX_TTL_S * 1000)]
    delayed: bool = False


class ClaimRequest(Head):
    """CLAIM."""

    magazine: Magazine
    limit: Count
    owner: Owner
    shards: Shards = None


class OwnerRequest(Head):
    """HELD, RENEW."""

    magazine: Magazine
    owner: Owner


class RenewClaims(Head):
    """RENEW_CLAIMS, pointers as bulk."""

    magazine: Magazine
    owner: Owner = ""
    to_owner: Owner = ""


class Resume(Head):
    """RESUME, pointers as bulk. ``renews``: the client renews them by itself."""

    magazine: Magazine
    renews: bool = False


class PurgeRequest(Head):
    """PURGE. ``left``: what the answer to the step before said, shard -> (first, last); nil begins a purge."""

    magazine: Magazine
    limit: Count = 10_000
    in_flight: bool = False
    left: dict[Shard, tuple[Pointer, Pointer]] | None = None


class Reload(Head):
    """RELOAD, pointers as bulk."""

    magazine: Magazine
    fence: Fencing = None


class Expire(Head):
    """EXPIRE."""

    magazine: Magazine
    limit: Count = 10_000


class Wait(Head):
    """WAIT."""

    magazine: Magazine
    seen: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    timeout_ms: Milliseconds


class QueueReplace(Head):
    """QUEUE_REPLACE: the record becomes ``fresh`` if it still is ``known``; else ``conflict``."""

    known: QueueRecord
    fresh: QueueRecord
    fence: Fencing = None


class QueueList(Head):
    """QUEUE_LIST, LIST_QUEUES. ``active`` nil = all; ``after`` nil = in one answer, a name = a page of those behind it."""

    active: bool | None = None
    after: Annotated[str, Meta(max_length=1_024)] | None = None


class LockRequest(Head):
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_RELEASE, LOCK_GET, LOCK_TOKEN. ``table`` empty = the application's own locks."""

    name: LockName
    owner: Owner = ""
    ttl_s: Seconds = 0
    table: Table = ""
    farm_id: Farm = ""


class EpochRequest(Head):
    """EPOCH_NEXT, EPOCH_GET, EPOCH_RAISE."""

    scope: Scope
    epoch: Epoch = 0


class ArrayRequest(Head):
    """ARRAY_ENQUEUE, ARRAY_DEQUEUE, ARRAY_PEEK, ARRAY_SIZE. ``max_bytes`` and ``max_value_bytes`` bound the answer; nil = the
    broker alone does."""

    name: Name
    bin_name: Bin
    values: Annotated[list[Any], Meta(max_length=MAX_VALUES)] = []
    limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    max_bytes: Size | None = None
    max_value_bytes: Size | None = None


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
