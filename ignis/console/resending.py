"""Sends a message of the sideline again with another body, other headers or another key: as a new message that names the old."""

from __future__ import annotations

import base64
import binascii
import random
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.console.browsing import shown_text, stored_record
from ignis.console.call import Call
from ignis.console.choice import Id
from ignis.console.refusals import RefusedError
from ignis.errors import BadRequestError, InvalidMessageError, MessageTooLargeError, UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import Message, encode_key, encode_meta
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, PackedBatch
from ignis.queue import Queue
from ignis.safe_msgpack import decode
from ignis.storage.base import Transfer

__all__ = ["RESENT_HEADER", "Resend", "resend"]

RESENT_HEADER = "ignis-resent-from"
"""A message that was sent again has the id of the one that it replaces here."""

_SHOWN_CHARS = 4_096
_MOST_DECODED = 1 << 20
_FLAGS = {"raw": CODEC_RAW, "json": CODEC_JSON, "msgpack": CODEC_MSGPACK}


class Resend(msgspec.Struct, forbid_unknown_fields=True):
    """What is different in the new message; what is not given stays as it was. ``id``: of the message that is meant."""

    id: Id
    body_text: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    key: Annotated[str, Meta(max_length=65_535)] | msgspec.UnsetType | None = msgspec.UNSET
    dry_run: bool = False


def resend(call: Call) -> dict[str, Any]:
    """Publishes a message of the sideline again, changed, under a new id and with the old one in a header. The old message is
    removed with the same step that stores the new one. A dry run checks it and says what would be stored."""
    asked: Resend = call.body
    record = call.record()
    sideline = record.name + SIDELINE_SUFFIX
    shard, pointer, stored = stored_record(call, sideline)
    call.room.take(2 * len(stored or b""))  # for its body, and the new record
    try:
        old = Message.from_bytes(stored or b"")
        headers = old.headers if asked.headers is msgspec.UNSET else asked.headers
    except UnreadableMessageError as exc:
        raise InvalidMessageError(f"the message cannot be read, so it cannot be changed: {exc}") from None
    if old.id != asked.id.lower():
        raise RefusedError("message_not_found", "another message is at that shard and pointer by now")
    queue: Queue[Any] = call.services.app.queue(record.name)
    queue.open()
    body = _body(asked, old, queue.codec.name)
    if len(body) > queue.main.max_message_bytes:
        raise MessageTooLargeError(len(body), queue.main.max_message_bytes, "queue.max_message_bytes")
    meta = encode_meta({**headers, RESENT_HEADER: old.id}, queue.main.max_headers_bytes)
    queue.main.follow_shards()
    shards = queue.main.shards
    key = _old_key(old) if asked.key is msgspec.UNSET else asked.key
    [(to, batch)], _ = PackedBatch.pack_bodies(
        [body], flags=_FLAGS[queue.codec.name], keys=[encode_key(key)] if key else None, shards=shards,
        any_shard=random.randrange(shards), metas=[meta],
    )  # fmt: skip
    (fresh,) = batch.records()
    made = Message.from_bytes(fresh)
    shown = shown_text(call.room, fresh, _SHOWN_CHARS, _MOST_DECODED)  # before it is sent: what is refused is not
    call.audited.update(dry_run=asked.dry_run, old_id=old.id)
    if not asked.dry_run:
        call.audited.update(id=made.id)
        item = Transfer(shard, pointer, fresh, to)
        if not call.store.magazines.transfer(sideline, record.name, [item], record.message_expiry_s or None):
            raise RefusedError("conflict", "somebody else has just moved or dropped this message")
    about = made.about()
    return {
        "queue": record.name, "id": None if asked.dry_run else made.id, "old_id": old.id, "dry_run": asked.dry_run,
        "key": made.key, "headers": about["headers"], "body_kind": shown["body_kind"], "body_text": shown["body_text"],
        "body_bytes": len(body),
    }  # fmt: skip


def _old_key(old: Message) -> str | bytes | None:
    return None if old.key is None else old.key.encode("utf-8", "surrogateescape")


def _body(asked: Resend, old: Message, codec: str) -> bytes:
    """The new body, of the kind that the queue has. Raises BadRequestError, InvalidMessageError."""
    text, data = asked.body_text, asked.body_base64
    if text is not msgspec.UNSET and data is not msgspec.UNSET:
        raise BadRequestError("give one of body_text and body_base64, or neither")
    if isinstance(data, str):
        try:
            body = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise InvalidMessageError(f"body_base64 is no base64: {exc}") from None
        return _checked(body, codec)
    if isinstance(text, str):
        if codec == "raw":
            try:
                return text.encode("utf-8")
            except UnicodeEncodeError as exc:
                raise InvalidMessageError(f"body_text is not UTF-8: {exc.reason} at {exc.start}") from None
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise InvalidMessageError(
                f"body_text is no JSON value, which a queue of codec {codec} takes: {exc}"
            ) from None
        if codec == "json":
            return text.encode("utf-8")  # as it was written: numbers keep their digits
        try:
            return msgspec.msgpack.encode(value)
        except (msgspec.MsgspecError, OverflowError, RecursionError) as exc:
            raise InvalidMessageError(f"body_text cannot be encoded as msgpack: {exc}") from None
    if old.codec != codec:
        raise InvalidMessageError(f"the message has codec {old.codec}, and the queue {codec}: give body_text")
    return old.body


def _checked(body: bytes, codec: str) -> bytes:
    """Bytes that somebody gives for a body must be one of the queue's codec."""
    try:
        if codec == "json":
            msgspec.json.decode(body)
        elif codec == "msgpack":
            decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        raise InvalidMessageError(f"body_base64 is no {codec} value: {exc}") from None
    return body
