"""The message as users see it, and the codecs between objects and bodies.

The envelope's bytes are those of ``csrc/ignis_record.h``; the part that grows with later features (headers, the last
failure) is a MessagePack map in its ``meta`` field, so that readers of today skip what they do not know.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ignis.body_plan import plan_of
from ignis.config import shown
from ignis.errors import ConfigError, InvalidMessageError, MessageTooLargeError, UnreadableMessageError
from ignis.history import Attempt, extended, parsed
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, Record, encode_record, id_text
from ignis.native.plan import Plan
from ignis.pydantic_models import pydantic_coders

__all__ = [
    "BodyCodec",
    "Message",
    "as_utf8",
    "bare_record",
    "corrupt_record",
    "encode_key",
    "encode_meta",
    "failed_record",
    "is_readable",
    "returned_record",
    "slim_record",
]

M = TypeVar("M")

REASON_REJECTED = "rejected"
REASON_EXCEPTION = "exception"
REASON_TIMEOUT = "timeout"
REASON_UNREADABLE = "unreadable"
REASON_CRASH = "crash"
REASON_ABANDONED = "abandoned"
REASON_CORRUPT = "corrupt"
REASONS = (
    REASON_REJECTED,
    REASON_EXCEPTION,
    REASON_TIMEOUT,
    REASON_UNREADABLE,
    REASON_CRASH,
    REASON_ABANDONED,
    REASON_CORRUPT,
)

MAX_ERROR_CHARS = 2_000
"""An error's text is cut here: a sideline full of tracebacks must not outgrow its messages."""

_meta_encoder = msgspec.msgpack.Encoder()
_json_encode = msgspec.json.Encoder().encode
_meta_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_kinds_encoder = msgspec.msgpack.Encoder()
_headers_decoder = msgspec.msgpack.Decoder(dict[str, dict[str, Any]])
_COUNTER_MAX = 0xFFFF
_SLIM_ERROR_CHARS = 100
_OF_FAILURE = ("reason", "error", "failed_at_ms", "handler", "history")
MAX_KEY_BYTES = 0xFFFF
"""A record has two bytes for the length of its key."""
MAX_HEADERS_BYTES = 16 << 10
_MAX_DEPTH = 1_000
_ANYTHING = (Any, dict, list, tuple, set, frozenset, object)
"""Types of which every message that can be encoded can be read again."""
_SCALARS = (
    int, float, decimal.Decimal, uuid.UUID, dt.date, dt.time, dt.timedelta, enum.Enum,
)  # fmt: skip


class BodyCodec(Generic[M]):
    """Encodes one message type. Thread-safe (msgspec's coders are).

    Args:
        type: the message type: ``bytes``, ``str``, ``dict``, a ``msgspec.Struct``, a dataclass, a pydantic model, or
            whatever else msgspec can encode; ``None`` accepts and gives any JSON value.
        codec: ``auto``, ``raw``, ``json`` or ``msgpack``.
        strict: whether `encode_checked` reads back what it has encoded, as the consumer will, and refuses what would
            arrive as something else.
    """

    takes_any = False
    """Whether a decoded body is its bytes."""

    def __init__(self, type: Any = None, codec: str = "auto", strict: bool = True) -> None:
        self.type = type
        raw = any(type is one for one in (bytes, str, bytearray, memoryview))
        if not isinstance(codec, str):
            raise ConfigError(f"codec = {shown(codec)} is not one of auto, raw, json, msgpack")
        if not isinstance(strict, bool):
            raise ConfigError(f"strict = {shown(strict)} is not true or false")
        if codec == "auto":
            codec = "raw" if raw else "json"
        if codec == "raw" and not raw:
            raise ConfigError(f"codec raw takes messages of bytes or str, not {shown(type)}; use json or msgpack")
        self.name = codec
        target = Any if type is None else type
        self._changed: Callable[[Any, Any], str | None] | None = None
        self.encode: Callable[[Any], bytes]
        self.decode: Callable[[bytes], Any]
        self._reads_back = self._is_json = False
        self._skim: Callable[[bytes], Any] | None = None
        self._plan: Plan | None = None
        self._kind = None if raw or type is None or not _tells_instances(type) else type
        if strict and _has_no_fields(type):
            self._kind = None  # as for a field of that type, reading back says whether a value will do
        if codec == "raw":
            self.flags = CODEC_RAW
            self.encode = _encode_text if type is str else _encode_bytes
            self.decode = _decode_text if type is str else _decode_bytes
            self.encode_checked = self.encode  # type: ignore[method-assign] # says itself what is wrong
            if type is not str:
                self.decode_checked = _decode_bytes  # type: ignore[method-assign] # any bytes will do
                self.takes_any = True
            return
        models = pydantic_coders(type, codec, strict) if codec in ("json", "msgpack") else None
        if models is not None:
            self.flags = CODEC_JSON if codec == "json" else CODEC_MSGPACK
            self.encode, self.decode, self._changed = models
            self._reads_back = strict
            return
        try:
            if codec == "json":
                self.flags, self._is_json = CODEC_JSON, True
                self._encode_known = msgspec.json.Encoder().encode
                self.decode = msgspec.json.Decoder(target).decode
            elif codec == "msgpack":
                self.flags = CODEC_MSGPACK
                self._encode_known = msgspec.msgpack.Encoder().encode
                self.decode = msgspec.msgpack.Decoder(target).decode
            else:
                raise ConfigError(f"codec = {shown(codec)} is not one of auto, raw, json, msgpack")
        except ConfigError:
            raise
        except Exception as exc:
            # Whatever it is: msgspec asks the type itself, and a forward reference raises NameError.
            raise ConfigError(f"message type {shown(type)} cannot be encoded as {codec}: {exc}") from exc
        self.encode = self._encode_known
        anything = any(target is one for one in _ANYTHING)
        # What JSON has no form for, it writes in the form of something else: that shows when it is read, also without a type.
        self._reads_back = strict and (self._is_json or not anything)
        if self._reads_back or self._is_json:
            self._plan = plan_of(target)
        if strict and not self._reads_back:
            # Makes no objects: a third of what reading back costs. Only a msgspec.Raw puts in what cannot be read.
            self._skim = msgspec.msgpack.Decoder(msgspec.Raw).decode

    def encode_checked(self, message: object) -> bytes:
        """`encode`, with InvalidMessageError that names the message's type and the queue's, or the field that is wrong."""
        # Every field is plainly what its type says: nothing of it can arrive as something else.
        proven = self._reads_back and self._plan is not None and self._plan.holds(message)
        if not proven and self._kind is not None and not isinstance(message, self._kind):
            raise InvalidMessageError(f"{_a(message)} was published to a queue of {_name(self.type)}")
        try:
            body = self.encode(message)
        except InvalidMessageError:
            raise
        except Exception as exc:
            # An integer beyond 64 bits, an object that holds itself, half of a surrogate pair; or whatever a property of
            # the message raises.
            raise InvalidMessageError(f"cannot encode {_a(message)} as {self.name}: {exc}") from exc
        if proven:
            return body
        if self._reads_back:
            # As the consumer will: one call, and there is no second list of what a type may hold.
            try:
                read = self.decode(body)
            except Exception as exc:  # whatever it is: a type's own __post_init__ may raise anything
                raise self._unreadable(message, exc) from exc
            if self._is_json or self._changed is not None:
                try:
                    same = read == message
                except Exception:  # a type's own __eq__
                    same = False
                if not same:
                    self._check_changes(message, read, body)
            return body
        if self._skim is not None:
            try:
                self._skim(body)
            except Exception as exc:
                raise self._unreadable(message, exc) from exc
        if self._is_json and b"null" in body:
            self._check_nulls(message, body)
        return body

    def _unreadable(self, message: object, exc: Exception) -> InvalidMessageError:
        if self._is_json:
            self._check_numbers(message)  # says more of what became null
        return InvalidMessageError(
            f"{_a(message)} does not fit the queue's type, {_name(self.type)}: no consumer could read it: {exc}"
        )

    def _check_changes(self, message: object, read: object, body: bytes) -> None:
        """Looking at every field takes ten times as long as reading the body back: only where that is not the message."""
        if self._changed is not None:
            where = self._changed(message, read)
            if where is not None:
                raise InvalidMessageError(
                    f"{_a(message)} would arrive as another one: {where} is masked, left out or changed when it is written; "
                    "Field(exclude=True) leaves it out on purpose, strict=False publishes it all the same"
                )
            return
        if b"null" in body:
            self._check_numbers(message)
        if not _same_kinds(message, read):
            for said in _changes(message, read, "$", 0):
                raise InvalidMessageError(said)

    def _check_nulls(self, message: object, body: bytes) -> None:
        if self._plan is not None and self._plan.holds(message):
            return
        try:
            same = bool(self.decode(body) == message)
        except Exception:
            same = False
        if not same:
            self._check_numbers(message)

    def _check_numbers(self, message: object) -> None:
        """JSON has no number for "not a number" and infinity: msgspec has made null of them."""
        for path, number in _not_finite(message, "$", 0):
            raise InvalidMessageError(f"{path} is {number!r}, for which JSON has no number; codec='msgpack' takes it")

    def decode_checked(self, body: bytes) -> Any:
        """`decode`, with UnreadableMessageError."""
        try:
            return self.decode(body)
        except Exception as exc:
            # Whatever it is: a type's own __post_init__ may raise anything, and bytes nested too deeply exhaust the
            # stack. A body must not be able to end the worker that reads it.
            fault = f"does not fit {_name(self.type)}" if self._is_wellformed(body) else f"is not {self.name}"
            raise UnreadableMessageError(f"body of {len(body)} bytes {fault}: {_said(exc)}") from exc

    def _is_wellformed(self, body: bytes) -> bool:
        """Whether it is what the codec writes, for whatever type."""
        try:
            if self.name == "json":
                msgspec.json.decode(body)
            else:
                msgspec.msgpack.decode(body)
        except Exception:
            return False
        return self.name != "raw"


def _said(exc: BaseException) -> str:
    """The text of an exception that may be of the user's making."""
    try:
        return str(exc)
    except Exception:
        return type(exc).__qualname__


def _tells_instances(kind: Any) -> bool:
    try:
        isinstance(None, kind)
    except Exception:  # a parametrised type such as list[int]: its messages are read back
        return False
    return True


def _has_no_fields(kind: Any) -> bool:
    if not isinstance(kind, type):
        return kind is not None
    return issubclass(kind, _SCALARS)


def _a(message: object) -> str:
    """The message's type with its article."""
    name = type(message).__name__
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def _name(kind: Any) -> str:
    return str(kind.__name__) if isinstance(kind, type) else str(kind)


def _same_kinds(message: object, read: object) -> bool:
    """Whether MessagePack, which tells text from bytes and numbers from both, writes both alike; quicker than to look."""
    try:
        return _kinds_encoder.encode(message) == _kinds_encoder.encode(read)
    except Exception:  # a number beyond 64 bits
        return False


def _changes(value: Any, read: Any, path: str, depth: int) -> Iterator[str]:
    """What of a message arrives as something else though JSON and the type took it: bytes as text, text as bytes, keys."""
    if depth > _MAX_DEPTH or value is read:
        return
    if isinstance(value, (bytes, bytearray, memoryview)):
        if isinstance(read, str):
            yield (
                f"{path} is {type(value).__name__}, which JSON has not: it would arrive as base64 text; "
                "declare the queue as bytes, or codec='msgpack'"
            )
    elif isinstance(value, str):
        if isinstance(read, (bytes, bytearray, memoryview)):
            yield f"{path} is str and not bytes: it would be taken for base64 and arrive as {len(read)} other bytes"
    elif isinstance(value, Mapping):
        if isinstance(read, Mapping):
            yield from _changed_entries(value, read, path, depth)
    elif isinstance(value, (list, tuple)):
        if isinstance(read, (list, tuple)):
            for index, (one, other) in enumerate(zip(value, read, strict=False)):
                yield from _changes(one, other, f"{path}[{index}]", depth + 1)
    elif isinstance(value, (set, frozenset)):
        # Without an order nothing says which became which; what is bytes on one side alone has changed.
        ours, theirs = (next((one for one in side if isinstance(one, bytes)), "") for side in (value, read or ()))
        if isinstance(ours, bytes) != isinstance(theirs, bytes):
            yield from _changes(ours, theirs, f"{path}[...]", depth + 1)
    else:
        yield from _changed_fields(value, read, path, depth)


def _changed_fields(value: Any, read: Any, path: str, depth: int) -> Iterator[str]:
    names = _field_names(value)
    if isinstance(read, (list, tuple)):  # a struct that is an array, perhaps behind its tag
        found: list[Any] = list(read[max(0, len(read) - len(names)) :])
    elif isinstance(read, Mapping):
        found = [read.get(name, _NOT_THERE) for name in getattr(value, "__struct_encode_fields__", names)]
    else:
        found = [getattr(read, name, _NOT_THERE) for name in names]
    for name, other in zip(names, found, strict=False):
        yield from _changes(getattr(value, name, None), other, f"{path}.{name}", depth + 1)


_NOT_THERE = object()


def _changed_entries(value: Mapping[Any, Any], read: Mapping[Any, Any], path: str, depth: int) -> Iterator[str]:
    written: dict[str, Any] = {}
    for key, one in value.items():
        text = key if isinstance(key, str) else next(iter(msgspec.to_builtins({key: None}, str_keys=True)))
        if text in written:
            yield f"{path} has the keys {shown(written[text])} and {shown(key)}: in JSON both are {shown(text)}, and one is lost"
        written[text] = key
        if key in read:
            yield from _changes(
                one, read[key], f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]", depth + 1
            )
        elif not isinstance(key, str) and text in read:
            yield (
                f"{path} has the key {shown(key)}, {_a(key)}: in JSON keys are text, it would arrive as {shown(text)}; "
                "give the queue a type such as dict[int, str], or codec='msgpack'"
            )
        elif isinstance(key, str) and any(isinstance(other, bytes) for other in read):
            yield f"{path} has the key {shown(key)}, which is str and not bytes: it would be taken for base64"


def _not_finite(value: Any, path: str, depth: int) -> Iterator[tuple[str, float]]:
    """Where numbers are that are not finite, in whatever msgspec can encode."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            yield path, value
        return
    if kind in _PLAIN or depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _not_finite(one, f"{path}[{key!r}]" if not isinstance(key, str) else f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, one in enumerate(value):
            yield from _not_finite(one, f"{path}[{index}]", depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif isinstance(value, enum.Enum):
        yield from _not_finite(value.value, path, depth + 1)
    else:
        for name in _field_names(value):
            yield from _not_finite(getattr(value, name, None), f"{path}.{name}", depth + 1)


_PLAIN = frozenset({str, int, bool, bytes, type(None)})


def _field_names(value: Any) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [one.name for one in dataclasses.fields(value)]
    return [one.name for one in getattr(type(value), "__attrs_attrs__", ())]


def _encode_bytes(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, (bytearray, memoryview)):
        try:
            return bytes(message)
        except Exception as exc:  # a view of what is gone
            raise InvalidMessageError(f"cannot encode {_a(message)} as raw: {exc}") from exc
    raise InvalidMessageError(f"{_a(message)} was published to a queue of bytes")


def _encode_text(message: Any) -> bytes:
    if isinstance(message, str):
        try:
            return message.encode("utf-8")
        except Exception as exc:  # half of a surrogate pair; or whatever a subclass raises
            raise InvalidMessageError(f"cannot encode {_a(message)} as raw: {exc}") from exc
    raise InvalidMessageError(f"{_a(message)} was published to a queue of str")


def _decode_bytes(body: bytes) -> bytes:
    return body


def _decode_text(body: bytes) -> str:
    return body.decode("utf-8")


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


def encode_meta(headers: Mapping[str, Any] | None, max_bytes: int = MAX_HEADERS_BYTES) -> bytes:
    """The envelope's growing part for a new message. Raises InvalidMessageError, MessageTooLargeError."""
    if headers is None:
        return b""
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(f"headers are a mapping from text to values, not {type(headers).__name__}")
    if not headers:
        return b""
    try:
        meta = _meta_encoder.encode({"headers": dict(headers)})
        if len(meta) <= max_bytes:
            _headers_decoder.decode(meta)  # as the consumer will; says which key is no text
    except Exception as exc:  # an own type of the caller's may raise anything
        raise InvalidMessageError(f"cannot encode the headers: {_said(exc)}") from exc
    if len(meta) > max_bytes:
        raise MessageTooLargeError(len(meta), max_bytes, "queue.max_headers_bytes", "headers")
    return meta


def decode_meta(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return _meta_decoder.decode(data)
    except Exception as exc:
        # Text that is not UTF-8 and values nested too deeply are no errors of msgspec's own. Whoever may publish chooses
        # these bytes: they must not be able to end whoever reads them.
        raise UnreadableMessageError(f"envelope of {len(data)} bytes is not a MessagePack map: {exc}") from exc


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
) -> bytes:
    """The record with its failure in the envelope: failures + 1 (crashes + 1 when ``crashed``), reason, error, time, and the
    calls that it is made of behind those of earlier failures, see `ignis.history`.

    Without ``attempts`` the failure counts as one, by this ``worker``, of this duration.

    Id, key, body and enqueue time stay. Where the growing part of the envelope cannot be read the reason is ``unreadable``,
    the error says both, and the bytes that were there stay in it under ``unread``. A record that cannot be read at all is
    returned as it is: set aside, not lost. Never raises: one message must not hold up those that go with it.
    """
    try:
        record = Record(data)
    except UnreadableMessageError:
        return data
    if not attempts:
        attempts = (Attempt(time.time_ns() // 1_000_000, reason, error, worker=worker, took_ms=took_ms),)
    try:
        meta = _encode_failure(decode_meta(record.meta), reason, error, handler, attempts)
    except Exception as exc:  # what could be read may still be nested too deeply to be written again
        why = f"{exc} (then {reason}: {error})"
        meta = _encode_failure({"unread": record.meta}, REASON_UNREADABLE, why, handler, attempts)
    return record.replace(
        attempts=min(record.attempts + 1, _COUNTER_MAX), crashes=min(record.crashes + crashed, _COUNTER_MAX), meta=meta
    )


def _encode_failure(meta: dict[str, Any], reason: str, error: str, handler: str, attempts: Sequence[Attempt]) -> bytes:
    meta["reason"] = as_utf8(reason)
    meta["error"] = as_utf8(error[:MAX_ERROR_CHARS])[:MAX_ERROR_CHARS]
    meta["failed_at_ms"] = time.time_ns() // 1_000_000
    if handler:
        meta["handler"] = as_utf8(handler)
    meta["history"] = extended(meta.get("history"), attempts)
    return _meta_encoder.encode(meta)


def returned_record(data: bytes, *, counted: bool) -> bytes:
    """The record on its way back from the sideline. ``counted``: brought back by the schedule, one return more; else by a
    person, and the returns begin anew. Raises UnreadableMessageError where the envelope cannot be counted in."""
    record = Record(data)
    meta = decode_meta(record.meta)
    returns = _count(meta.get("returns"))
    if counted:
        meta["returns"] = min(returns + 1, _COUNTER_MAX)
    elif "returns" not in meta:
        return data
    else:
        del meta["returns"]
    try:
        return record.replace(meta=_meta_encoder.encode(meta))
    except Exception as exc:  # what could be read may still be nested too deeply to be written again
        raise UnreadableMessageError(f"envelope of {len(record.meta)} bytes cannot be written again: {exc}") from exc


def _count(value: object) -> int:
    """A number that stands in an envelope, whose bytes whoever may publish chooses."""
    return value if type(value) is int and value >= 0 else 0


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
    """The record of a failed message with nothing of what its failure says but the counters: no larger than it was before it
    failed. Never raises."""
    try:
        record = Record(data)
        meta = decode_meta(record.meta)
        if isinstance(meta.get("unread"), bytes):
            return record.replace(meta=meta["unread"])
        kept = {name: value for name, value in meta.items() if name not in _OF_FAILURE}
        return record.replace(meta=_meta_encoder.encode(kept) if kept else b"")
    except Exception:  # as in `slim_record`
        return data


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
    * ``history``: the last eight failed attempts, oldest first, see `ignis.history.Attempt`;
    * ``returns``: how often the schedule brought it back from the sideline, since a person last did.

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
        """Deliveries that ended in the sideline."""
        return self._record.attempts

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
            "returns": self.returns,
            "history": [one._asdict() for one in self.history],
            "codec": self.codec,
        }
        if not _is_json(out["key"]):
            out |= {"key": None, "key_hex": self._record.key.hex()}
        if not _is_json(out["headers"]):
            out |= {"headers": {}, "meta_hex": self._record.meta.hex()}
        try:
            if self._record.flags & 0x0F == CODEC_MSGPACK:
                out["body"] = msgspec.to_builtins(msgspec.msgpack.decode(self.body))
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
