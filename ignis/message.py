"""The message as users see it, and its envelope. What makes bodies of objects is `ignis.body_codec`.

The envelope's bytes are those of ``csrc/ignis_record.h``; the part that grows with later features (headers, the last
failure) is a MessagePack map in its ``meta`` field, so that readers of today skip what they do not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from ignis.body_codec import BodyCodec, error_text
from ignis.config import shown
from ignis.errors import InvalidMessageError, MessageTooLargeError, UnreadableMessageError
from ignis.history import Attempt, extended, parsed
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, Record, encode_record, id_text
from ignis.safe_msgpack import decode, decoder

__all__ = [
    "LAST_TRACEPARENT",
    "BodyCodec",
    "Message",
    "as_utf8",
    "bare_record",
    "corrupt_record",
    "encode_key",
    "encode_meta",
    "expires_at_ms_of",
    "failed_record",
    "has_deadline",
    "is_readable",
    "message_id",
    "returned_record",
    "slim_record",
    "tried",
    "unmarked_record",
    "with_last_traceparent",
]

REASON_REJECTED = "rejected"
REASON_EXCEPTION = "exception"
REASON_TIMEOUT = "timeout"
REASON_UNREADABLE = "unreadable"
REASON_CRASH = "crash"
REASON_ABANDONED = "abandoned"
REASON_CORRUPT = "corrupt"
REASON_EXPIRED = "expired"
REASON_CANCELLED = "cancelled"
REASONS = (
    REASON_REJECTED,
    REASON_EXCEPTION,
    REASON_TIMEOUT,
    REASON_UNREADABLE,
    REASON_CRASH,
    REASON_ABANDONED,
    REASON_CORRUPT,
    REASON_EXPIRED,
    REASON_CANCELLED,
)
STAYS = (REASON_CORRUPT, REASON_EXPIRED, REASON_CANCELLED)
"""With one of these the shovel's schedule brings no message back: it would fail again, or nobody wants it any more."""

_DEADLINE = "expires_at_ms"
LAST_TRACEPARENT = "last_traceparent"
"""Here stands the trace context of what happened to a message last, see `ignis.tracing.envelope`."""

MAX_ERROR_CHARS = 2_000
"""An error's text is cut here: a sideline full of tracebacks must not outgrow its messages."""

_meta_encoder = msgspec.msgpack.Encoder()
_json_encode = msgspec.json.Encoder().encode
_read_meta: Callable[[bytes], dict[str, Any]] = decoder(dict[str, Any])
_read_headers = decoder(dict[str, dict[str, Any]])
_COUNTER_MAX = 0xFFFF
_SLIM_ERROR_CHARS = 100
_OF_FAILURE = ("reason", "error", "failed_at_ms", "handler", "history", "given_up", LAST_TRACEPARENT)
_OF_RETURNS = ("returns", "tried", "given_up")
"""What begins anew when a person brings a message back."""
MAX_KEY_BYTES = 0xFFFF
"""A record has two bytes for the length of its key."""
MAX_HEADERS_BYTES = 16 << 10


def encode_key(key: str | bytes | None) -> bytes:
    """A key's bytes; text is UTF-8. None and the empty key are the same: no key.

    Raises InvalidMessageError, MessageTooLargeError (over 65,535 bytes).
    """
    if key is None:
        return b""
    if isinstance(key, str):
        try:
            raw = key.encode("utf-8")
        except UnicodeEncodeError as exc:
            raise InvalidMessageError(f"key {shown(key)} is not UTF-8: {exc.reason} at {exc.start}") from None
    elif isinstance(key, (bytes, bytearray, memoryview)):
        raw = bytes(key)
    else:
        # bytes(7) would be seven zeros: every number of one size would be one key.
        raise InvalidMessageError(f"a key is text or bytes, not {type(key).__name__}: {shown(key)}")
    if len(raw) > MAX_KEY_BYTES:
        raise MessageTooLargeError(len(raw), MAX_KEY_BYTES, "the record's format", "key")
    return raw


def encode_meta(
    headers: Mapping[str, Any] | None, max_bytes: int = MAX_HEADERS_BYTES, expires_at_ms: int | None = None
) -> bytes:
    """The envelope's growing part for a new message, with its deadline where it has one. Raises InvalidMessageError,
    MessageTooLargeError."""
    meta = _encode_headers(headers, max_bytes)
    return meta if expires_at_ms is None else with_deadline(meta, expires_at_ms)


def with_deadline(meta: bytes, expires_at_ms: int) -> bytes:
    """The envelope's growing part with that deadline, in front, in place of any other. Raises UnreadableMessageError."""
    rest = decode_meta(meta)
    rest.pop(_DEADLINE, None)
    return _meta_encoder.encode({_DEADLINE: expires_at_ms, **rest})


def mortal_record(data: bytes, expires_at_ms: int) -> bytes:
    """A record with that deadline. Raises UnreadableMessageError."""
    record = Record(data)
    return record.replace(meta=with_deadline(record.meta, expires_at_ms))


def _encode_headers(headers: Mapping[str, Any] | None, max_bytes: int) -> bytes:
    if headers is None:
        return b""
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(f"headers are a mapping from text to values, not {type(headers).__name__}")
    if not headers:
        return b""
    try:
        meta = _meta_encoder.encode({"headers": dict(headers)})
        if len(meta) <= max_bytes:
            _read_headers(meta)  # as the consumer will; says which key is no text
    except Exception as exc:  # an own type of the caller's may raise anything
        raise InvalidMessageError(f"cannot encode the headers: {error_text(exc)}") from exc
    if len(meta) > max_bytes:
        raise MessageTooLargeError(len(meta), max_bytes, "queue.max_headers_bytes", "headers")
    return meta


def decode_meta(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return _read_meta(data)
    except Exception as exc:
        # Text that is not UTF-8 and values nested too deeply are no errors of msgspec's own. Whoever may publish chooses
        # these bytes: they must not be able to end whoever reads them.
        raise UnreadableMessageError(f"envelope of {len(data)} bytes is not a MessagePack map: {exc}") from exc


def has_deadline(meta: bytes) -> bool:
    """Whether an envelope may have a deadline: it stands first, so that nobody need read the envelopes of the others."""
    return meta[1:15] == b"\xadexpires_at_ms"  # behind the byte that says how many entries the map has


def expires_at_ms_of(meta: Mapping[str, Any]) -> int | None:
    """The deadline in an envelope, in milliseconds since 1970; None where it has none."""
    value = meta.get(_DEADLINE)
    return value if type(value) is int else None


def failed_record(
    data: bytes,
    reason: str,
    error: str = "",
    *,
    handler: str = "",
    crashed: bool = False,
    attempts: Sequence[Attempt] = (),
    worker: str = "",
    took_ms: int | None = None,
    tried: int | None = None,
    given_up: bool = False,
    counts: bool = True,
    at_ms: int | None = None,
) -> bytes:
    """The record with its failure in the envelope: failures + 1 (crashes + 1 when ``crashed``), reason, error, time, and the
    calls that it is made of behind those of earlier failures, see `ignis.history`.

    Without ``attempts`` the failure counts as one, by this ``worker``, of this duration. ``tried``: how many attempts there were
    by a retry policy, this one included; ``given_up``: that policy lets none follow. ``counts``: false where the last call only
    asked for another time: it is no failure then, and not in the history. ``at_ms``: when it failed, where that is not now by the
    wall clock.

    Id, key, body and enqueue time stay. Where the growing part of the envelope cannot be read the reason is ``unreadable``,
    the error says both, and the bytes that were there stay in it under ``unread``. A record that cannot be read at all is
    returned as it is: set aside, not lost. Never raises: one message must not hold up those that go with it.
    """
    try:
        record = Record(data)
    except UnreadableMessageError:
        return data
    if not attempts:
        attempts = (
            Attempt(
                time.time_ns() // 1_000_000 if at_ms is None else at_ms, reason, error, worker=worker, took_ms=took_ms
            ),
        )
    if not counts:
        attempts = attempts[:-1]
    try:
        stored = decode_meta(record.meta)
        if tried is not None:
            stored["tried"] = min(tried, _COUNTER_MAX)
        if given_up:
            stored["given_up"] = True
        meta = _encode_failure(stored, reason, error, handler, attempts, at_ms)
    except Exception as exc:  # what could be read may still be nested too deeply to be written again
        why = f"{exc} (then {reason}: {error})"
        meta = _encode_failure({"unread": record.meta}, REASON_UNREADABLE, why, handler, attempts, at_ms)
    return record.replace(
        attempts=min(record.attempts + counts, _COUNTER_MAX),
        crashes=min(record.crashes + crashed, _COUNTER_MAX),
        meta=meta,
    )


def _encode_failure(
    meta: dict[str, Any], reason: str, error: str, handler: str, attempts: Sequence[Attempt], at_ms: int | None
) -> bytes:
    meta["reason"] = as_utf8(reason)
    meta["error"] = as_utf8(error[:MAX_ERROR_CHARS])[:MAX_ERROR_CHARS]
    meta["failed_at_ms"] = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    if handler:
        meta["handler"] = as_utf8(handler)
    if attempts:
        meta["history"] = extended(meta.get("history"), attempts)
    return _meta_encoder.encode(meta)


def returned_record(data: bytes, *, counted: bool) -> bytes:
    """The record on its way back from the sideline. ``counted``: brought back by the schedule, one return more; else by a
    person: the returns begin anew, as do the attempts of a retry policy, and a deadline for which it is there holds no longer.
    Raises UnreadableMessageError where the envelope cannot be counted in."""
    record = Record(data)
    meta = decode_meta(record.meta)
    returns = _count(meta.get("returns"))
    if counted:
        meta["returns"] = min(returns + 1, _COUNTER_MAX)
    else:
        gone = [name for name in _OF_RETURNS if name in meta]
        if meta.get("reason") == REASON_EXPIRED and _DEADLINE in meta:
            gone.append(_DEADLINE)
        if not gone:
            return data
        for name in gone:
            del meta[name]
    try:
        return record.replace(meta=_meta_encoder.encode(meta))
    except Exception as exc:  # what could be read may still be nested too deeply to be written again
        raise UnreadableMessageError(f"envelope of {len(record.meta)} bytes cannot be written again: {exc}") from exc


def tried(record: Record) -> int | None:
    """How many attempts a retry policy has counted for a stored message; None where its envelope cannot be read."""
    try:
        return _count(decode_meta(record.meta).get("tried"))
    except UnreadableMessageError:
        return None


def _count(value: object) -> int:
    """A number that stands in an envelope, whose bytes whoever may publish chooses."""
    return value if type(value) is int and value >= 0 else 0


def with_last_traceparent(data: bytes, traceparent: str) -> bytes:
    """The record with the trace context of what happens to it now. Never raises: what cannot be read stays as it is."""
    try:
        record = Record(data)
        return record.replace(meta=_meta_encoder.encode({**decode_meta(record.meta), LAST_TRACEPARENT: traceparent}))
    except Exception:  # as in `slim_record`
        return data


def slim_record(data: bytes) -> bytes:
    """The record of a failed message without what a failure may leave out where there is no room for it: the history. The
    reason stays, and as much of the error as an attempt keeps. Never raises."""
    try:
        record = Record(data)
        meta = decode_meta(record.meta)
        if meta.pop("history", None) is None:
            return data
        if isinstance(meta.get("error"), str):
            meta["error"] = meta["error"][:_SLIM_ERROR_CHARS]
        return record.replace(meta=_meta_encoder.encode(meta))
    except Exception:  # an envelope that nobody can read stays as it is
        return data


def bare_record(data: bytes) -> bytes:
    """The record of a failed message with nothing of what its failure says but the counters, and what keeps the shovel's schedule
    from bringing it back: at most 32 bytes larger than it was before it failed. Never raises."""
    return _without_failure(data, marked=True)


def unmarked_record(data: bytes) -> bytes:
    """`bare_record` without that either: no larger than it was before it failed. Never raises."""
    return _without_failure(data, marked=False)


def _without_failure(data: bytes, *, marked: bool) -> bytes:
    try:
        record = Record(data)
        meta = decode_meta(record.meta)
        if isinstance(meta.get("unread"), bytes):
            return record.replace(meta=meta["unread"])
        kept = {name: value for name, value in meta.items() if name not in _OF_FAILURE}
        if marked and meta.get("reason") in STAYS:
            kept["reason"] = meta["reason"]
        elif marked and meta.get("given_up") is True:
            kept["given_up"] = True
        return record.replace(meta=_meta_encoder.encode(kept) if kept else b"")
    except Exception:  # as in `slim_record`
        return data


def message_id(given: Any) -> str:
    """The id of a message in the form in which messages have it; ``given``: as `publish` returns it, or a UUID. Raises
    InvalidMessageError, which names what was given."""
    try:
        return str(given if isinstance(given, UUID) else UUID(given))
    except (ValueError, TypeError, AttributeError):
        raise InvalidMessageError(f"{shown(given)} is not the id of a message, which is a UUID") from None


def as_utf8(text: str) -> str:
    """Text that can be stored: what is no character, such as the bytes of a file's name that is not UTF-8, as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_readable(data: bytes) -> bool:
    """Whether the envelope can be read."""
    try:
        decode_meta(Record(data).meta)
    except UnreadableMessageError:
        return False
    return True


class Message:
    """One stored message: the envelope, and the body as bytes. Read-only. Thread-safe.

    Attributes are read from the record when asked for:

    * ``id`` (UUIDv7 text), ``key`` (text or None), ``enqueued_at_us``, ``headers``, ``body``;
    * ``failures`` (deliveries that failed), ``crashes``, ``reason`` and ``error`` of the last failure;
    * ``expires_at_ms``: its deadline, in milliseconds since 1970, or None;
    * ``history``: the last eight failed attempts, oldest first, see `ignis.history.Attempt`;
    * ``returns``: how often the schedule brought it back from the sideline, since a person last did;
    * ``attempt``: the number of the attempt that is next, or under way, by the handler's ``retry``; 1 is the first.

    >>> from ignis.testing import make_message
    >>> message = make_message({"id": 1}, key="customer-7", failures=2, reason="timeout")
    >>> message.key, message.failures, message.reason, message.body
    ('customer-7', 2, 'timeout', b'{"id":1}')
    """

    __slots__ = ("_meta", "_record")

    def __init__(self, record: Record) -> None:
        if record.__class__ is not Record:
            raise InvalidMessageError(f"a message is made of a Record, not of {shown(record)}")
        self._record = record
        self._meta: dict[str, Any] | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Parses a record; raises UnreadableMessageError, and InvalidMessageError for what is no bytes."""
        if not isinstance(data, bytes):
            raise InvalidMessageError(f"a record is bytes, not {shown(data)}")
        return cls(Record(data))

    @property
    def id(self) -> str:
        """The text of a UUID of version 7, in small letters."""
        return id_text(self._record.id)

    @property
    def key(self) -> str | None:
        """What keeps its order: messages of one key go to one shard. None when it has none."""
        key = self._record.key
        return key.decode("utf-8", "surrogateescape") if key else None

    @property
    def body(self) -> bytes:
        """The user's message, encoded by `codec`."""
        return self._record.body

    @property
    def enqueued_at_us(self) -> int:
        """When it was published, in microseconds since 1970."""
        return self._record.enqueued_at_us

    @property
    def failures(self) -> int:
        """Deliveries that failed: that a retry follows, or that ended in the sideline."""
        return self._record.attempts

    @property
    def attempt(self) -> int:
        """The number of the attempt that is next, or under way: one more than the handler's ``retry`` has counted since the
        message was published, or since a person brought it back from the sideline. 1 where nobody counted or can read it."""
        return 1 + (tried(self._record) or 0)

    @property
    def given_up(self) -> bool:
        """Whether it is in the sideline because the handler's ``retry`` lets no attempt follow: then only a person brings it
        back. Raises UnreadableMessageError."""
        return self.meta.get("given_up") is True

    @property
    def crashes(self) -> int:
        """Deliveries that ended with the death of a worker, or with a lost connection."""
        return self._record.crashes

    @property
    def codec(self) -> str:
        """How the body is encoded: ``raw``, ``json`` or ``msgpack``."""
        return {CODEC_RAW: "raw", CODEC_JSON: "json", CODEC_MSGPACK: "msgpack"}.get(
            self._record.flags & 0x0F, "unknown"
        )

    @property
    def meta(self) -> dict[str, Any]:
        """The envelope's growing part, as stored. Raises UnreadableMessageError."""
        if self._meta is None:
            self._meta = decode_meta(self._record.meta)
        return self._meta

    @property
    def headers(self) -> dict[str, Any]:
        """The publisher's own. Raises UnreadableMessageError."""
        headers = self.meta.get("headers")
        return headers if isinstance(headers, dict) else {}

    @property
    def reason(self) -> str | None:
        """Why it was last put aside, see ``ignis.message.REASONS``; None when it never was."""
        return self._text("reason")

    @property
    def error(self) -> str | None:
        """What went wrong last, as text; None when nothing did."""
        return self._text("error")

    @property
    def failed_at_ms(self) -> int | None:
        """When it last failed, in milliseconds since 1970; None when it never did."""
        value = self.meta.get("failed_at_ms")
        return value if type(value) is int else None

    @property
    def expires_at_ms(self) -> int | None:
        """Until when a handler may begin with it, in milliseconds since 1970; None when it was published without a deadline."""
        return expires_at_ms_of(self.meta)

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The last eight failed attempts, oldest first."""
        return parsed(self.meta.get("history"))

    @property
    def returns(self) -> int:
        """How often the schedule brought it back from the sideline, since a person last did."""
        return _count(self.meta.get("returns"))

    def _text(self, name: str) -> str | None:
        # Whoever may publish chooses the envelope's bytes: what has another type was not written by a consumer.
        value = self.meta.get(name)
        return value if isinstance(value, str) else None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` output and the console: always what JSON can hold, whoever wrote the record. A key that is not UTF-8 is
        given as hexadecimal under ``key_hex``, a body that is no JSON value or text under ``body_hex``, and the envelope under
        ``meta_hex`` where its headers are no JSON."""
        return {**self.about(), **self.shown_body()}

    def about(self) -> dict[str, Any]:
        """`as_dict` without the body, which is not looked at. Raises UnreadableMessageError."""
        out: dict[str, Any] = {
            "id": self.id,
            "key": self.key,
            "enqueued_at_us": self.enqueued_at_us,
            "failures": self.failures,
            "crashes": self.crashes,
            "headers": self.headers,
            "reason": self.reason,
            "error": self.error,
            "failed_at_ms": self.failed_at_ms,
            "expires_at_ms": self.expires_at_ms,
            "returns": self.returns,
            "attempt": self.attempt,
            "history": [one._asdict() for one in self.history],
            "codec": self.codec,
        }
        if not _is_json(out["key"]):
            out |= {"key": None, "key_hex": self._record.key.hex()}
        if not _is_json(out["headers"]):
            out |= {"headers": {}, "meta_hex": self._record.meta.hex()}
        return out

    def shown_body(self) -> dict[str, Any]:
        """The part of `as_dict` that is the body: ``body`` or ``body_hex``."""
        out: dict[str, Any] = {}
        try:
            if self._record.flags & 0x0F == CODEC_MSGPACK:
                out["body"] = msgspec.to_builtins(decode(self.body))
            elif self._record.flags & 0x0F == CODEC_JSON:
                out["body"] = msgspec.json.decode(self.body)
            else:
                out["body"] = self.body.decode("utf-8")
        except Exception:  # as in `decode_checked`
            out["body_hex"] = self.body.hex()
        if not _is_json(out.get("body")):  # MessagePack has maps with keys of any type
            del out["body"]
            out["body_hex"] = self.body.hex()
        return out

    def __repr__(self) -> str:
        return f"<Message {self.id} key={self.key!r} failures={self.failures} {len(self.body)} bytes>"


def _is_json(value: Any) -> bool:
    try:
        _json_encode([{"value": value}])  # as deep as it lies in any document, or deeper
    except Exception:  # as in `decode_checked`
        return False
    return True


def corrupt_record(magazine: str, shard: int, pointer: int) -> bytes:
    """Stands in the sideline for a record whose bytes did not match their checksum: where it was, and no body."""
    meta = {
        "reason": REASON_CORRUPT,
        "error": f"checksum mismatch at {as_utf8(magazine)}, shard {shard}, pointer {pointer}",
        "failed_at_ms": time.time_ns() // 1_000_000,
    }
    return encode_record(b"", flags=CODEC_RAW, meta=_meta_encoder.encode(meta), attempts=1)
