"""The lines of a dump, one JSON object each: what they hold, and how a stored record becomes one and is made of one again.

The first line names the format. Each queue has a line with its settings before its messages; the last line says that the dump
is whole. A record that is made of its line is the one that was dumped, byte for byte: what JSON cannot hold goes as base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal
from uuid import UUID

import msgspec

from ignis.config import shown
from ignis.errors import IgnisError, UnreadableMessageError
from ignis.message import decode_meta
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, Record, encode_record

__all__ = [
    "FORMAT",
    "PLACES",
    "VERSION",
    "BadLineError",
    "End",
    "Head",
    "Line",
    "MessageLine",
    "Place",
    "QueueLine",
    "deadline_ms_of",
    "line_of_record",
    "parse_line",
    "record_of_line",
]

FORMAT = "ignis-dump"
VERSION = 1

Place = Literal["main", "later", "sideline"]
PLACES: tuple[Place, ...] = ("main", "later", "sideline")
"""The magazines of a queue, in the order in which they are dumped: a message mostly moves that way."""

_CODECS = {CODEC_RAW: "raw", CODEC_JSON: "json", CODEC_MSGPACK: "msgpack"}
_FLAGS = {name: flags for flags, name in _CODECS.items()}
_U16, _I64 = (1 << 16) - 1, (1 << 63) - 1
_SHOWN_CHARS = 80


class BadLineError(IgnisError, ValueError):
    """A line is no line of a dump, or not one that can be loaded."""

    code = "bad_line"


class Head(msgspec.Struct, omit_defaults=False, forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int
    ignis: str = ""
    dumped_at_ms: int = 0


class QueueLine(msgspec.Struct, forbid_unknown_fields=True):
    """A queue's settings, by the names of its stored record."""

    queue: str
    settings: dict[str, Any]


class MessageLine(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A message. Of each pair with ``_base64`` one is there, or none where it is empty. ``flags`` stands for ``codec`` where
    that has no name, ``record_base64`` for everything where the record has a form that this version does not know."""

    queue: str
    magazine: Place
    shard: int
    id: str | None = None
    key: str | None = None
    key_base64: str | None = None
    enqueued_at_us: int = 0
    due_at_ms: int | None = None
    failures: int = 0
    crashes: int = 0
    codec: str | None = None
    flags: int | None = None
    envelope: dict[str, Any] | msgspec.Raw | None = None
    envelope_base64: str | None = None
    body: str | None = None
    body_base64: str | None = None
    record_base64: str | None = None


class End(msgspec.Struct, forbid_unknown_fields=True):
    """The last line: so many messages are in the dump. ``changed``: the queues that others used while it was made."""

    messages: int
    changed: list[str]


Line = Head | QueueLine | MessageLine | End

_to_json = msgspec.json.encode
_from_json = msgspec.json.decode
_to_msgpack = msgspec.msgpack.Encoder().encode
_message_decoder = msgspec.json.Decoder(MessageLine)
_KINDS: tuple[tuple[str, type[Any]], ...] = (("format", Head), ("settings", QueueLine), ("messages", End))


# -- from a record


def line_of_record(queue: str, place: Place, shard: int, data: bytes, due_at_ms: int | None = None) -> MessageLine:
    """``due_at_ms``: in milliseconds since 1970 by the wall clock."""
    line = MessageLine(queue, place, shard, due_at_ms=due_at_ms)
    try:
        record = Record(data)
    except UnreadableMessageError:
        line.record_base64 = _base64(data)
        return line
    line.id = str(UUID(bytes=record.id))
    line.enqueued_at_us = record.enqueued_at_us
    line.failures, line.crashes = record.attempts, record.crashes
    line.codec = _CODECS.get(record.flags)
    line.flags = record.flags if line.codec is None else None
    line.key, line.key_base64 = _text(record.key)
    line.body, line.body_base64 = _text(record.body)
    if record.meta:
        line.envelope, line.envelope_base64 = _envelope(record.meta)
    try:
        same = record_of_line(line) == data
    except BadLineError:  # a value that is never written, in bytes that somebody else made
        same = False
    if not same:
        return MessageLine(queue, place, shard, due_at_ms=due_at_ms, record_base64=_base64(data))
    return line


def _text(data: bytes) -> tuple[str | None, str | None]:
    if not data:
        return None, None
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, _base64(data)


def _envelope(meta: bytes) -> tuple[msgspec.Raw | None, str | None]:
    """As JSON where that says everything, which it does not of bytes, and of numbers that somebody wrote in a longer form."""
    try:
        text = _to_json(decode_meta(meta))
        if _to_msgpack(_from_json(text)) == meta:
            return msgspec.Raw(text), None
    except Exception:  # noqa: S110 - whoever may publish chooses these bytes
        pass
    return None, _base64(meta)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# -- from a line


def parse_line(data: bytes) -> Line:
    """Raises BadLineError, which says what is wrong."""
    try:
        try:
            return _message_decoder.decode(data)
        except msgspec.ValidationError as exc:
            found = _from_json(data)
            kind = next((kind for name, kind in _KINDS if isinstance(found, dict) and name in found), None)
            if kind is None:
                raise BadLineError(f"{exc}") from None
            made: Line = msgspec.convert(found, kind)
            return made
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        cut = "; it may be cut short" if not data.rstrip().endswith(b"}") else ""
        raise BadLineError(f"{exc}{cut}") from None


def record_of_line(line: MessageLine) -> bytes:
    """The record as it was stored. Raises BadLineError."""
    if line.record_base64 is not None:
        return _bytes("record_base64", line.record_base64)
    if line.codec is not None and line.codec not in _FLAGS:
        raise BadLineError(f"codec {_cut(line.codec)} is none of {', '.join(_FLAGS)}")
    flags = line.flags if line.codec is None else _FLAGS[line.codec]
    if flags is None:
        raise BadLineError("the message has no codec")
    for name, value, most in (
        ("flags", flags, 0xFF),
        ("failures", line.failures, _U16),
        ("crashes", line.crashes, _U16),
        ("enqueued_at_us", line.enqueued_at_us, _I64),
    ):
        if not 0 <= value <= most:
            raise BadLineError(f"{name} = {value} is outside 0..{most}")
    try:
        return encode_record(
            _either("body", line.body, line.body_base64),
            flags=flags,
            key=_either("key", line.key, line.key_base64),
            meta=_meta(line),
            id=_id(line.id),
            enqueued_at_us=line.enqueued_at_us,
            attempts=line.failures,
            crashes=line.crashes,
        )
    except (OverflowError, ValueError, TypeError) as exc:
        if isinstance(exc, BadLineError):
            raise
        raise BadLineError(str(exc)) from None


def deadline_ms_of(record: bytes) -> tuple[int | None, str | None, int]:
    """(deadline, reason of the last failure, when it was published in microseconds) of a record; (None, None, 0) of one that
    cannot be read."""
    try:
        found = Record(record)
        meta = decode_meta(found.meta)
    except UnreadableMessageError:
        return None, None, 0
    deadline, reason = meta.get("expires_at_ms"), meta.get("reason")
    return (
        deadline if type(deadline) is int else None,
        reason if isinstance(reason, str) else None,
        found.enqueued_at_us,
    )


def _id(text: str | None) -> bytes:
    if text is None:
        raise BadLineError("the message has no id")
    try:
        return UUID(text).bytes
    except ValueError:
        raise BadLineError(f"{_cut(text)} is not the id of a message, which is a UUID") from None


def _either(name: str, text: str | None, encoded: str | None) -> bytes:
    if text is not None and encoded is not None:
        raise BadLineError(f"both {name} and {name}_base64 are there")
    if encoded is not None:
        return _bytes(f"{name}_base64", encoded)
    try:
        return b"" if text is None else text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise BadLineError(f"{name} is not UTF-8: {exc.reason} at {exc.start}") from None


def _meta(line: MessageLine) -> bytes:
    if line.envelope_base64 is not None:
        if line.envelope is not None:
            raise BadLineError("both envelope and envelope_base64 are there")
        return _bytes("envelope_base64", line.envelope_base64)
    if line.envelope is None:
        return b""
    found = _from_json(line.envelope) if isinstance(line.envelope, msgspec.Raw) else line.envelope
    try:
        return _to_msgpack(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadLineError(f"the envelope cannot be stored: {exc}") from None


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise BadLineError(f"{name} is no base64: {exc}") from None


def _cut(text: str) -> str:
    return shown(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
