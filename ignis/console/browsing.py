"""Answers what lies in a queue: its messages, its sideline and its delayed ones, page by page, and one of them whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.config import check_whole
from ignis.console.call import Call
from ignis.console.choice import SidelineWhere
from ignis.console.refusals import RefusedError
from ignis.control.inspection import Row, message_dict, sideline_reasons
from ignis.control.queue_depths import shard_states
from ignis.errors import BadRequestError, ConfigError
from ignis.later import DelayedMessage, Later
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message_filter import Filter
from ignis.shovel_choice import waits
from ignis.shovel_schedule import next_return_ms
from ignis.storage.bounded_reads import PAST, scan_fitting

__all__ = [
    "DelayedQuery", "MessagesQuery", "ReasonsQuery", "SidelineQuery", "body_text", "delayed", "message", "messages",
    "reasons", "sideline", "sideline_message", "stored_record",
]  # fmt: skip

_MOST_PAGE = 200
_READ_AT_ONCE = 200
_BYTES_AT_ONCE = 8 << 20
_MOST_BYTES = 64 << 20
"""Of the records that one request looks through: a page ends there, and has a next one."""
_MOST_LOOKED_AT = 5_000
"""Records that one request looks through for those that a filter means."""
_PREVIEW_CHARS = 1_024
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
    found: list[dict[str, Any]] = []
    looked_at, looked_bytes, last = 0, 0, after
    for row in _rows(call, magazine, after, pending_only):
        looked_at += 1
        looked_bytes += len(row[2] or b"")
        last = f"{row[0]}.{row[1]}"
        if not wanted.given or wanted.matches(row[2]):
            found.append({**_short(row), **more(row)})
        if len(found) == limit or looked_at == _MOST_LOOKED_AT or looked_bytes >= _MOST_BYTES:
            return {"messages": found, "looked_at": looked_at, "next": last}
    return {"messages": found, "looked_at": looked_at, "next": None}


def _rows(call: Call, magazine: str, after: str, pending_only: bool) -> Iterator[Row]:
    states = shard_states(call.store, magazine)
    if not states:
        return
    seen: dict[int, int] = {}
    if after:
        shard, _, pointer = after.partition(".")
        seen = {**dict.fromkeys(range(min(int(shard), len(states))), PAST), int(shard): min(int(pointer), PAST)}
    cut = True
    while cut:
        page, cut = scan_fitting(
            call.store.magazines, magazine, after=seen, limit=_READ_AT_ONCE, max_bytes=_BYTES_AT_ONCE,
            pending_only=pending_only,
        )  # fmt: skip
        yield from page
        seen.update({shard: pointer for shard, pointer, _ in page})
        cut = cut or len(page) == _READ_AT_ONCE


def _short(row: Row) -> dict[str, Any]:
    """A message in a list: the beginning of its body as text, and no history."""
    found = message_dict(*row)
    text, kind = body_text(found)
    for name in ("body", "body_hex", "history", "meta_hex"):
        found.pop(name, None)
    cut = len(text) > _PREVIEW_CHARS
    return {**found, "body_text": text[:_PREVIEW_CHARS], "body_kind": kind, "body_cut": cut}


def body_text(found: dict[str, Any]) -> tuple[str, str]:
    """The body as text, and what the text is: ``text``, ``json``, ``hex`` or ``none``."""
    if "body_hex" in found:
        return found["body_hex"], "hex"
    if "body" not in found:
        return "", "none"
    body = found["body"]
    if isinstance(body, str) and found.get("codec") == "raw":
        return body, "text"
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode(), "json"


def message(call: Call) -> dict[str, Any]:
    """One message of the queue, whole: headers, history, and its body as text."""
    return _one(call, call.record().name)


def sideline_message(call: Call) -> dict[str, Any]:
    """One message of the sideline, likewise."""
    return _one(call, call.record().name + SIDELINE_SUFFIX)


def stored_record(call: Call, magazine: str) -> Row:
    """What is at the shard and pointer of the path. Raises RefusedError (``message_not_found``), BadRequestError."""
    shard, pointer = _number(call.path["shard"], 65_535), _number(call.path["pointer"], PAST)
    there = call.store.magazines.peek(magazine, {shard: [pointer]}) if shard_states(call.store, magazine) else {}
    records = there.get(shard, {})
    if pointer not in records:
        raise RefusedError("message_not_found", "there is no message at that shard and pointer any more")
    return shard, pointer, records[pointer]


def _one(call: Call, magazine: str) -> dict[str, Any]:
    found = message_dict(*stored_record(call, magazine))
    text, kind = body_text(found)
    found.pop("body", None)
    found.pop("body_hex", None)
    cut = len(text) > _MOST_BODY_CHARS
    return {**found, "body_text": text[:_MOST_BODY_CHARS], "body_kind": kind, "body_cut": cut}


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
    found = sideline_reasons(call.store, call.record().name, limit=asked.limit)
    return {
        "queue": call.queue,
        "scope": "fleet",
        "looked_at": sum(one.count for one in found.values()),
        "reasons": {name: one.as_dict() for name, one in found.items()},
    }


def delayed(call: Call) -> dict[str, Any]:
    """The delayed messages of the queue, the next one first: `kind` is `delay` for those that were published for later, and
    `retry` for those that failed and wait for their next attempt, whose number, last error and history are there."""
    waiting = Later(call.store, call.record().name)
    asked: DelayedQuery = call.query
    total = len(waiting)
    return {"queue": call.queue, "total": total, "messages": [_due(one) for one in waiting.list(asked.limit)]}


def _due(one: DelayedMessage) -> dict[str, Any]:
    about = {"due": one.due.isoformat(), "id": one.id, "shard": one.shard, "pointer": one.pointer}
    if one.message is None:
        return {**about, "kind": "unreadable", "body_text": "", "body_kind": "none", "body_cut": False}
    found = one.message.as_dict()
    text, kind = body_text(found)
    names = ("key", "headers", "attempt", "reason", "error", "enqueued_at_us", "failures", "failed_at_ms", "history")
    return {
        **{name: found[name] for name in names},
        **about,
        # A failure stands in the envelope of what a retry has put back, and in no other that waits here.
        "kind": "delay" if found["reason"] is None else "retry",
        "body_text": text[:_PREVIEW_CHARS],
        "body_kind": kind,
        "body_cut": len(text) > _PREVIEW_CHARS,
    }
