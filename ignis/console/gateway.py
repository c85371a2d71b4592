"""The queues for programs in any language: publish, pull with a lease, acknowledge, extend, release."""

from __future__ import annotations

import base64
import binascii
import codecs
import time
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ignis.config import check_timeout
from ignis.console.body_room import FREE_BYTES, decoded_bytes, decoded_msgpack_bytes
from ignis.console.call import Call
from ignis.console.leases import MOST_HELD, MOST_OF_A_USER
from ignis.console.refusals import RefusedError
from ignis.console.roles import ADMIN, CONSUME
from ignis.control.inspection import message_dict
from ignis.deadlines import SIDELINE, on_expiry_of
from ignis.errors import BadRequestError, DrainingError, IgnisError, InvalidMessageError, UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_EXPIRED, REASON_UNREADABLE, Message, corrupt_record, failed_record
from ignis.pausing import PAUSED
from ignis.queue import Queue
from ignis.storage.base import Claim, FireResult, QueueRecord, Transfer
from ignis.storage.parts import transfer_all
from ignis.storage.records import group_pointers

__all__ = [
    "EndLeases",
    "Extend",
    "Publish",
    "Pull",
    "Receipts",
    "Release",
    "acknowledge",
    "decoded_body",
    "end_leases",
    "extend",
    "leased",
    "publish",
    "pull",
    "release",
]

_MOST_MESSAGES = 1_000
_PULL_BYTES = 4 << 20
_STEP_S = 1.0
"""How long a pull waits before it looks whether the queue was paused, or its client has left."""
_BUSY_S = 0.01
_MOST_RECEIPTS = 1_000

Header = Annotated[str, Meta(max_length=16_384)]
Delay = Annotated[float, Meta(ge=0, le=3e9)] | Annotated[str, Meta(max_length=40)]
LeaseS = Annotated[float, Meta(ge=1, le=43_200, description="Seconds until the messages go back to the queue.")]
ReceiptList = Annotated[
    list[Annotated[str, Meta(max_length=64)]], Meta(min_length=1, max_length=_MOST_RECEIPTS, description="From a pull.")
]


class Outgoing(msgspec.Struct, forbid_unknown_fields=True):
    """One message: its body as a JSON value, as text, or in base64, which are for queues of codec raw."""

    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_text: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    key: Annotated[str, Meta(max_length=65_535)] | None = None
    headers: dict[str, Any] | None = None


class Publish(msgspec.Struct, forbid_unknown_fields=True):
    """Messages, and when they are due and expire."""

    messages: Annotated[list[Outgoing], Meta(min_length=1, max_length=_MOST_MESSAGES)]
    delay: Delay | None = None
    at: datetime | None = None
    expires_in: Delay | None = None
    expires_at: datetime | None = None


class Pull(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages, for how long, and how long to wait for the first."""

    limit: Annotated[int, Meta(ge=1, le=_MOST_MESSAGES)] = 1
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    lease_s: LeaseS = 60.0
    bodies: Literal["json", "base64"] = "json"


class Receipts(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that were pulled."""

    receipts: ReceiptList


class Extend(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that were pulled, and how long they are still needed."""

    receipts: ReceiptList
    lease_s: LeaseS = 60.0


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that were pulled and are given up. With ``error`` they have failed, and go to the sideline."""

    receipts: ReceiptList
    error: Annotated[str, Meta(max_length=2_000)] | None = None


class EndLeases(msgspec.Struct, forbid_unknown_fields=True):
    """Whose leases of the queue end."""

    user: Annotated[str, Meta(max_length=200)]


def publish(call: Call) -> dict[str, Any]:
    """Stores messages, which are durable when it answers. Where one of them is no message of the queue none is stored."""
    asked: Publish = call.body
    record = call.record()
    queue: Queue[Any] = call.services.app.queue(record.name)
    queue.open()
    call.audited.update(messages=len(asked.messages))
    bodies = [decoded_body(one.body, one.body_text, one.body_base64, queue.codec.name) for one in asked.messages]
    when: dict[str, Any] = {
        "delay": asked.delay, "at": asked.at, "expires_in": asked.expires_in, "expires_at": asked.expires_at,
    }  # fmt: skip
    ids: list[str] = []
    # Headers are given to all messages of one call: neighbours that have the same go together.
    at = 0
    while at < len(bodies):
        end = at + 1
        while end < len(bodies) and asked.messages[end].headers == asked.messages[at].headers:
            end += 1
        ids += queue.publish_many(
            bodies[at:end],
            keys=[one.key for one in asked.messages[at:end]],
            headers=asked.messages[at].headers,
            **when,
        )
        at = end
    return {"queue": record.name, "ids": ids}


def decoded_body(
    body: msgspec.Raw | msgspec.UnsetType,
    text: str | msgspec.UnsetType,
    data: str | msgspec.UnsetType,
    codec: str,
) -> Any:
    """The body as the queue's codec takes it. Raises BadRequestError, InvalidMessageError."""
    if sum(one is not msgspec.UNSET for one in (body, text, data)) != 1:
        raise BadRequestError("give each message one of body, body_text and body_base64")
    if isinstance(body, msgspec.Raw):
        if codec == "raw":
            raise InvalidMessageError("this queue has the codec raw: give body_text or body_base64")
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise InvalidMessageError(f"body is no JSON value: {exc}") from None
    if codec != "raw":
        raise InvalidMessageError(f"this queue has the codec {codec}: give body, a JSON value")
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidMessageError(f"body_base64 is no base64: {exc}") from None


def pull(call: Call) -> dict[str, Any]:
    """Claims messages for this program. It has to acknowledge them before their leases run out; then others get them."""
    asked: Pull = call.body
    record = call.record()
    leases, magazines = call.services.leases, call.store.magazines
    leases.check_room(asked.limit, None if call.services.access.open else call.visitor.name)
    until_s = time.monotonic() + check_timeout(asked.wait_s)
    ready: list[tuple[int, int, bytes]] = []
    waited = False
    while not call.gone.is_set():
        if call.services.closing.is_set():
            raise DrainingError("the console ends")
        paused = PAUSED in record.extra
        if not paused:
            seen = magazines.wait(
                record.name, -1, 0
            )  # before the claim, so that nothing that comes meanwhile is missed
            found = _fired(call, record, asked.limit)
            ready = [row for claim in found.claims for row in _sorted(call, record, claim)]
        left_s = until_s - time.monotonic()
        if waited:
            _check_again(call, record, ready)
        if ready or left_s <= 0 or call.enough.is_set():
            break
        waited = True
        call.room.settle(0)  # what was claimed and is nothing for a program is gone again
        if paused:
            call.services.closing.wait(min(_STEP_S, left_s))
        elif found.claims or found.more:
            time.sleep(min(_BUSY_S, left_s))  # what was there had failed or expired, or others were quicker
        else:
            magazines.wait(record.name, seen, min(_STEP_S, left_s))
        record = call.record()
    places = [(shard, pointer, len(data)) for shard, pointer, data in ready]
    held = leases.take(record.name, call.visitor.name, places, asked.lease_s, record.stuck_after_s)
    if call.gone.is_set():
        leases.release(record.name, call.visitor.name, [one.receipt for one in held])
        return {"queue": record.name, "messages": []}
    try:
        messages = [
            call.kept({"receipt": one.receipt, "lease_s": asked.lease_s, **_shown(call, row, asked.bodies)})
            for one, row in zip(held, ready, strict=True)
        ]
        call.room.take(sum(memoryview(one).nbytes for one in messages))  # they are put together to one answer
    except BaseException:  # the program learns of none of them
        leases.release(record.name, call.visitor.name, [one.receipt for one in held])
        raise
    return {"queue": record.name, "messages": messages}


def _fired(call: Call, record: QueueRecord, limit: int) -> FireResult:
    """Claims messages, and takes the memory for them and a copy. Raises RefusedError (``too_many_requests``): they went back, not
    counted; where a few do not fit, nothing was claimed."""
    magazines = call.store.magazines
    with call.room.reading():
        with call.room.held(2 * _PULL_BYTES):
            found = magazines.fire(record.name, limit, call.store.owner, max_bytes=_PULL_BYTES)
        try:
            call.room.take(2 * sum(len(one or b"") for claim in found.claims for one in claim.records))
        except RefusedError:
            for claim in found.claims:
                magazines.reload(record.name, {claim.shard: list(claim.pointers)})
            raise
    return found


def _check_again(call: Call, record: QueueRecord, claimed: list[tuple[int, int, bytes]]) -> None:
    """Raises what refuses the pull by now. What it has claimed goes back, not counted."""
    try:
        call.check_again(CONSUME)
    except IgnisError:
        if claimed:
            call.store.magazines.reload(record.name, group_pointers(row[:2] for row in claimed))
        raise


def _shown(call: Call, row: tuple[int, int, bytes], bodies: str) -> dict[str, Any]:
    found = message_dict(*row, body=False)
    for name in ("history", "meta_hex"):
        found.pop(name, None)
    message = Message.from_bytes(row[2])
    body = message.body
    if bodies == "base64":
        with call.room.held(3 * len(body)):
            return {**found, "body_base64": base64.b64encode(body).decode()}
    if message.codec == "json" and len(body) > FREE_BYTES:
        return {**found, **_stored_json(body)}
    decoded = decoded_msgpack_bytes(body) if message.codec == "msgpack" else decoded_bytes(body)
    with call.room.held(decoded + 4 * len(body)):
        return {**found, **message.shown_body()}


def _stored_json(body: bytes) -> dict[str, Any]:
    """A large body as it is stored, where it is JSON: what it would be decoded to may be a hundred times as large."""
    try:
        for _ in codecs.iterdecode((body[at : at + FREE_BYTES] for at in range(0, len(body), FREE_BYTES)), "utf-8"):
            pass
        return {"body": msgspec.json.decode(body, type=msgspec.Raw)}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"body_hex": body.hex()}


def _sorted(call: Call, record: QueueRecord, claim: Claim) -> list[tuple[int, int, bytes]]:
    """Those that a program can be given. What cannot be read goes to the sideline, what has expired where the queue says."""
    magazines, now_ms = call.store.magazines, call.store.wall_s() * 1000
    ready: list[tuple[int, int, bytes]] = []
    aside: list[Transfer] = []
    dropped: list[int] = []
    for pointer, data in zip(claim.pointers, claim.records, strict=True):
        if data is None:
            aside.append(Transfer(claim.shard, pointer, corrupt_record(record.name, claim.shard, pointer), claim.shard))
            continue
        try:
            expires_at_ms = Message.from_bytes(data).expires_at_ms
        except UnreadableMessageError as exc:
            fresh = failed_record(data, REASON_UNREADABLE, str(exc), handler="gateway")
            aside.append(Transfer(claim.shard, pointer, fresh, claim.shard))
            continue
        if expires_at_ms is None or expires_at_ms > now_ms:
            ready.append((claim.shard, pointer, data))
        elif on_expiry_of(record) == SIDELINE:
            fresh = failed_record(data, REASON_EXPIRED, "its deadline had passed", handler="gateway")
            aside.append(Transfer(claim.shard, pointer, fresh, claim.shard))
        else:
            dropped.append(pointer)
    if aside:
        transfer_all(aside, lambda some: magazines.transfer(record.name, record.name + SIDELINE_SUFFIX, some))
    if dropped:
        magazines.delete(record.name, {claim.shard: dropped})
    return ready


def acknowledge(call: Call) -> dict[str, Any]:
    """Removes pulled messages for good. Durable when it answers."""
    asked: Receipts = call.body
    name = call.record().name
    done = call.services.leases.acknowledge(name, call.visitor.name, asked.receipts)
    call.audited.update(messages=done)
    return {"queue": name, "acknowledged": done, "gone": len(asked.receipts) - done}


def extend(call: Call) -> dict[str, Any]:
    """Begins leases anew."""
    asked: Extend = call.body
    name = call.record().name
    kept = call.services.leases.extend(name, call.visitor.name, asked.receipts, asked.lease_s)
    lost = sorted(set(asked.receipts) - set(kept))
    return {"queue": name, "extended": kept, "gone": lost, "lease_s": asked.lease_s}


def release(call: Call) -> dict[str, Any]:
    """Gives pulled messages up: back to the queue, or with an error to its sideline."""
    asked: Release = call.body
    name = call.record().name
    done = call.services.leases.release(name, call.visitor.name, asked.receipts, asked.error, holding=call.room.held)
    call.audited.update(messages=done)
    return {"queue": name, "released": done, "gone": len(asked.receipts) - done}


def leased(call: Call) -> dict[str, Any]:
    """How many messages are leased to whom, of queues that the visitor administers."""
    found = [one for one in call.services.leases.counts() if call.visitor.may(ADMIN, one[0])]
    return {
        "leases": [{"queue": queue, "user": by, "messages": count} for queue, by, count in found],
        "most": MOST_HELD,
        "most_of_a_user": None if call.services.access.open else MOST_OF_A_USER,
        "scope": "process",
    }


def end_leases(call: Call) -> dict[str, Any]:
    """Takes back what a user has leased of the queue: to the queue's tail, and not counted as a crash."""
    asked: EndLeases = call.body
    name = call.record().name
    done = call.services.leases.end(name, asked.user)
    call.audited.update(messages=done)
    return {"queue": name, "user": asked.user, "ended": done}
