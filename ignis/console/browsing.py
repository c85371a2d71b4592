"""Answers what lies in a queue: its messages, its sideline and its delayed ones, page by page, and one of them whole."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.config import check_whole
from ignis.console.body_room import Share, decoded_bytes, decoded_msgpack_bytes
from ignis.console.call import Call
from ignis.console.choice import SidelineWhere
from ignis.console.refusals import RefusedError
from ignis.control.inspection import Row, message_dict, sideline_reasons
from ignis.control.queue_depths import shard_states
from ignis.errors import BadRequestError, ConfigError, UnreadableMessageError
from ignis.later import DelayedMessage, Later, delayed_message
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import Message
from ignis.message_filter import Filter
from ignis.shovel_choice import waits
from ignis.shovel_schedule import next_return_ms
from ignis.storage.bounded_reads import PAST

__all__ = [
    "DelayedQuery", "MessagesQuery", "ReasonsQuery", "SidelineQuery", "delayed", "message", "messages",
    "reasons", "shown_text", "sideline", "sideline_message", "stored_record",
]  # fmt: skip

_MOST_PAGE = 200
_READ_AT_ONCE = 200
_BYTES_AT_ONCE = 1 << 20
"""Of records: so much is read in one piece, or one record that has more."""
_MOST_BYTES = 64 << 20
"""Of the records that one request looks through: a page ends there, and has a next one."""
_MOST_LOOKED_AT = 5_000
"""Records that one request looks through for those that a filter means."""
_PREVIEW_CHARS = 1_024
_DECODED_IN_A_LIST = 64 << 10
"""A body of more bytes is shown in a list as it is stored."""
_MOST_BODY_CHARS = 1 << 20
_MOST_REASONED = 20_000

Limit = Annotated[int, Meta(ge=1, le=_MOST_PAGE, description="At most so many.")]
After = Annotated[
    str, Meta(max_length=40, pattern=r"^([0-9]{1,5}\.[0-9]{1,19})?$", description="`next` of the page before.")
]


class MessagesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A page of messages."""

    limit: Limit = 50
    after: After = ""


class SidelineQuery(SidelineWhere, forbid_unknown_fields=True):
    """A page of a sideline, and which of its messages are meant."""

    limit: Limit = 50
    after: After = ""


class ReasonsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages to look at."""

    limit: Annotated[int, Meta(ge=1, le=_MOST_REASONED, description="Look at so many at most.")] = 10_000


class DelayedQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The next delayed messages."""

    limit: Limit = 50


def messages(call: Call) -> dict[str, Any]:
    """A page of what waits in the queue. Nothing is claimed."""
    asked: MessagesQuery = call.query
    return _page(call, call.record().name, Filter(), asked.limit, asked.after, pending_only=True)


def sideline(call: Call) -> dict[str, Any]:
    """A page of the sideline. With a filter a page may be short and still have a next one: one request looks at 5,000
    messages at most. `comes_back` says whether the shovel brings a message back by itself, and `next_at_ms` when at the
    earliest, where that is known."""
    asked: SidelineQuery = call.query
    record = call.record()
    now_s = call.store.wall_s()
    return _page(
        call, record.name + SIDELINE_SUFFIX, asked.filter(), asked.limit, asked.after, pending_only=False,
        more=lambda row: {
            "comes_back": not waits(row[2], record), "next_at_ms": next_return_ms(row[2], record, now_s),
        },
    )  # fmt: skip


def _page(
    call: Call,
    magazine: str,
    wanted: Filter,
    limit: int,
    after: str,
    *,
    pending_only: bool,
    more: Callable[[Row], dict[str, Any]] = lambda row: {},
) -> dict[str, Any]:
    found: list[msgspec.Raw] = []
    looked_at, looked_bytes, last = 0, 0, after
    with closing(_rows(call, magazine, after, pending_only)) as rows:
        for row in rows:
            looked_at += 1
            looked_bytes += len(row[2] or b"")
            last = f"{row[0]}.{row[1]}"
            if not wanted.given or _matches(call, wanted, row):
                found.append(call.kept({**_short(call, row), **more(row)}))
            if len(found) == limit or looked_at == _MOST_LOOKED_AT or looked_bytes >= _MOST_BYTES:
                return {"messages": found, "looked_at": looked_at, "next": last}
            del row  # before the next one is read
    return {"messages": found, "looked_at": looked_at, "next": None}


def _matches(call: Call, wanted: Filter, row: Row) -> bool:
    with call.room.held(len(row[2] or b"")):  # who looks for a text looks into a copy
        return wanted.matches(row[2])


def _rows(call: Call, magazine: str, after: str, pending_only: bool) -> Generator[Row, None, None]:
    """Records, a piece of them at a time: the memory of one is given back before the next one is read."""
    states = shard_states(call.store, magazine)
    if not states:
        return
    seen: dict[int, int] = {}
    if after:
        shard, _, pointer = after.partition(".")
        seen = {**dict.fromkeys(range(min(int(shard), len(states))), PAST), int(shard): min(int(pointer), PAST)}
    going_on = True
    while going_on:
        with ExitStack() as held:
            with call.room.reading():
                page, cut = call.store.magazines.scan_within(
                    magazine, after=seen, limit=_READ_AT_ONCE, max_bytes=_BYTES_AT_ONCE, pending_only=pending_only
                )
                held.enter_context(call.room.held(sum(len(row[2] or b"") for row in page)))
            going_on = cut or len(page) == _READ_AT_ONCE
            seen.update({shard: pointer for shard, pointer, _ in page})
            page.reverse()
            while page:
                yield page.pop()


def _short(call: Call, row: Row) -> dict[str, Any]:
    """A message in a list: the beginning of its body as text, and no history."""
    found = message_dict(*row, body=False)
    for name in ("history", "meta_hex"):
        found.pop(name, None)
    return {**found, **shown_text(call.room, row[2], _PREVIEW_CHARS, _DECODED_IN_A_LIST)}


def shown_text(room: Share, record: bytes | None, most_chars: int, most_decoded: int) -> dict[str, Any]:
    """The beginning of a record's body as text, what the text is (``text``, ``json``, ``hex`` or ``none``), and whether there is
    more. A body of more than ``most_decoded`` bytes is not decoded: its text is as it is stored, that of MessagePack in
    hexadecimal. Raises RefusedError (``too_many_requests``)."""
    if record is None:
        return {"body_text": "", "body_kind": "none", "body_cut": False}
    try:
        message = Message.from_bytes(record)
        message.about()
    except UnreadableMessageError:
        return _hex(record, most_chars)
    with room.held(len(record)):
        body = message.body
        if len(body) > most_decoded:
            return _beginning(body, message.codec, most_chars)
    decoded = decoded_msgpack_bytes(body) if message.codec == "msgpack" else decoded_bytes(body)
    with room.held(decoded + 4 * len(body)):
        text, kind = _decoded_text(message)
        return {"body_text": text[:most_chars], "body_kind": kind, "body_cut": len(text) > most_chars}


def _beginning(body: bytes, codec: str, most_chars: int) -> dict[str, Any]:
    head = body[: 4 * most_chars]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(body))
    except UnicodeDecodeError:
        return _hex(body, most_chars)
    if codec not in ("raw", "json"):
        return _hex(body, most_chars)
    cut = len(head) < len(body) or len(text) > most_chars
    return {"body_text": text[:most_chars], "body_kind": "text" if codec == "raw" else "json", "body_cut": cut}


def _hex(data: bytes, most_chars: int) -> dict[str, Any]:
    text = data[: most_chars // 2].hex()
    return {"body_text": text, "body_kind": "hex", "body_cut": len(text) < 2 * len(data)}


def _decoded_text(message: Message) -> tuple[str, str]:
    found = message.shown_body()
    if "body_hex" in found:
        return found["body_hex"], "hex"
    body = found["body"]
    if message.codec == "raw":
        return body, "text"
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode(), "json"


def message(call: Call) -> dict[str, Any]:
    """One message of the queue, whole: headers, history, and its body as text."""
    return _one(call, call.record().name)


def sideline_message(call: Call) -> dict[str, Any]:
    """One message of the sideline, likewise."""
    return _one(call, call.record().name + SIDELINE_SUFFIX)


def stored_record(call: Call, magazine: str) -> Row:
    """What is at the shard and pointer of the path. Its memory is taken until the request is answered. Raises RefusedError
    (``message_not_found``, ``too_many_requests``), BadRequestError."""
    shard, pointer = _number(call.path["shard"], 65_535), _number(call.path["pointer"], PAST)
    states = shard_states(call.store, magazine)
    with call.room.reading():
        there = call.store.magazines.peek(magazine, {shard: [pointer]}) if states else {}
        records = there.get(shard, {})
        if pointer not in records:
            raise RefusedError("message_not_found", "there is no message at that shard and pointer any more")
        call.room.take(len(records[pointer] or b""))
    return shard, pointer, records[pointer]


def _one(call: Call, magazine: str) -> dict[str, Any]:
    row = stored_record(call, magazine)
    return {**message_dict(*row, body=False), **shown_text(call.room, row[2], _MOST_BODY_CHARS, _MOST_BODY_CHARS)}


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise BadRequestError(f"{text[:40]!r} is not a number from 0 to {most}")
    try:
        return check_whole(int(text), "the number in the path", 0, most)
    except ConfigError as exc:
        raise BadRequestError(str(exc)) from None


def reasons(call: Call) -> dict[str, Any]:
    """What is in the sideline by reason, with the most frequent errors, over the first messages of it."""
    asked: ReasonsQuery = call.query
    name = call.record().name
    with closing(_rows(call, name + SIDELINE_SUFFIX, "", pending_only=False)) as rows:
        found = sideline_reasons(call.store, name, limit=asked.limit, rows=rows)
    return {
        "queue": call.queue,
        "scope": "fleet",
        "looked_at": sum(one.count for one in found.values()),
        "reasons": {name: one.as_dict() for name, one in found.items()},
    }


def delayed(call: Call) -> dict[str, Any]:
    """The delayed messages of the queue, the next one first: `kind` is `delay` for those that were published for later, and
    `retry` for those that failed and wait for their next attempt, whose number, last error and history are there."""
    name, store = call.record().name, call.store
    asked: DelayedQuery = call.query
    total = len(Later(store, name))
    ahead_s = store.now_s() - store.wall_s()
    found: list[msgspec.Raw] = []
    after: tuple[int, int, int] | None = None
    while len(found) < asked.limit:
        with ExitStack() as held:
            with call.room.reading():
                piece, _ = store.magazines.list_later_within(
                    name, after=after, limit=asked.limit - len(found), max_bytes=_BYTES_AT_ONCE
                )
                held.enter_context(call.room.held(sum(len(one.record or b"") for one in piece)))
            found += [call.kept(_due(call, one.record, delayed_message(one, ahead_s))) for one in piece]
            if not piece:
                break
            after = piece[-1][:3]
            del piece
    return {"queue": call.queue, "total": total, "messages": found}


def _due(call: Call, record: bytes | None, one: DelayedMessage) -> dict[str, Any]:
    about = {"due": one.due.isoformat(), "id": one.id, "shard": one.shard, "pointer": one.pointer}
    if one.message is None:
        return {**about, "kind": "unreadable", "body_text": "", "body_kind": "none", "body_cut": False}
    found = one.message.about()
    names = ("key", "headers", "attempt", "reason", "error", "enqueued_at_us", "failures", "failed_at_ms", "history")
    return {
        **{name: found[name] for name in names},
        **about,
        # A failure stands in the envelope of what a retry has put back, and in no other that waits here.
        "kind": "delay" if found["reason"] is None else "retry",
        **shown_text(call.room, record, _PREVIEW_CHARS, _DECODED_IN_A_LIST),
    }
