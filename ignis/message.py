"""The message as users see it, and the codecs between objects and bodies.

The envelope's bytes are those of ``csrc/ignis_record.h``; the part that grows with later features (headers, the last
failure) is a MessagePack map in its ``meta`` field, so that readers of today skip what they do not know.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from ignis.errors import ConfigError, InvalidMessageError, UnreadableMessageError
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, Record, encode_record

__all__ = ["BodyCodec", "Message", "corrupt_record", "encode_key", "encode_meta", "failed_record"]

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
_meta_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_COUNTER_MAX = 0xFFFF


class BodyCodec(Generic[M]):
    """Encodes one message type. Thread-safe (msgspec's coders are).

    Args:
        type: the message type: ``bytes``, ``str``, ``dict``, a ``msgspec.Struct``, a dataclass, or whatever else
            msgspec can encode; ``None`` accepts and gives any JSON value.
        codec: ``auto``, ``raw``, ``json`` or ``msgpack``.
    """

    def __init__(self, type: Any = None, codec: str = "auto") -> None:
        self.type = type
        raw = type in (bytes, str, bytearray, memoryview)
        if codec == "auto":
            codec = "raw" if raw else "json"
        if codec == "raw" and not raw:
            raise ConfigError(f"codec raw takes messages of bytes or str, not {type!r}; use json or msgpack")
        self.name = codec
        target = Any if type is None else type
        self.encode: Callable[[Any], bytes]
        self.decode: Callable[[bytes], Any]
        if codec == "raw":
            self.flags = CODEC_RAW
            self.encode = _encode_text if type is str else _encode_bytes
            self.decode = _decode_text if type is str else _decode_bytes
            if type is not str:
                self.decode_checked = _decode_bytes  # type: ignore[method-assign] # any bytes will do
            return
        try:
            if codec == "json":
                self.flags = CODEC_JSON
                self._encode_known = msgspec.json.Encoder().encode
                self.decode = msgspec.json.Decoder(target).decode
            elif codec == "msgpack":
                self.flags = CODEC_MSGPACK
                self._encode_known = msgspec.msgpack.Encoder().encode
                self.decode = msgspec.msgpack.Decoder(target).decode
            else:
                raise ConfigError(f"codec = {codec!r} is not one of auto, raw, json, msgpack")
        except TypeError as exc:
            raise ConfigError(f"message type {type!r} cannot be encoded as {codec}: {exc}") from exc
        self.encode = self._encode_known

    def encode_checked(self, message: object) -> bytes:
        """`encode`, with InvalidMessageError that names the message's type and the queue's."""
        if self.type is not None and self.flags != CODEC_RAW and not _is_instance(message, self.type):
            raise InvalidMessageError(
                f"a {type(message).__name__} was published to a queue of {getattr(self.type, '__name__', self.type)}"
            )
        try:
            return self.encode(message)
        except InvalidMessageError:
            raise
        except (TypeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError) as exc:
            # ArithmeticError: an integer beyond 64 bits; RecursionError: an object that holds itself.
            raise InvalidMessageError(f"cannot encode a {type(message).__name__} as {self.name}: {exc}") from exc

    def decode_checked(self, body: bytes) -> Any:
        """`decode`, with UnreadableMessageError."""
        try:
            return self.decode(body)
        except Exception as exc:
            # Whatever it is: a type's own __post_init__ may raise anything, and bytes nested too deeply exhaust the
            # stack. A body must not be able to end the worker that reads it.
            raise UnreadableMessageError(f"body of {len(body)} bytes is not {self.name}: {exc}") from exc


def _is_instance(message: object, kind: Any) -> bool:
    try:
        return isinstance(message, kind)
    except TypeError:  # a parametrised type such as list[int]: msgspec checks it on decoding
        return True


def _encode_bytes(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, (bytearray, memoryview)):
        return bytes(message)
    raise InvalidMessageError(f"a {type(message).__name__} was published to a queue of bytes")


def _encode_text(message: Any) -> bytes:
    if isinstance(message, str):
        return message.encode("utf-8")
    raise InvalidMessageError(f"a {type(message).__name__} was published to a queue of str")


def _decode_bytes(body: bytes) -> bytes:
    return body


def _decode_text(body: bytes) -> str:
    return body.decode("utf-8")


def encode_key(key: str | bytes | None) -> bytes:
    """A key's bytes; text is UTF-8. None and the empty key are the same: no key. Raises InvalidMessageError."""
    if key is None:
        return b""
    if isinstance(key, str):
        return key.encode("utf-8")
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    # bytes(7) would be seven zeros: every number of one size would be one key.
    raise InvalidMessageError(f"a key is text or bytes, not {type(key).__name__}: {key!r}")


def encode_meta(headers: Mapping[str, Any] | None) -> bytes:
    """The envelope's growing part for a new message. Raises InvalidMessageError."""
    if not headers:
        return b""
    try:
        return _meta_encoder.encode({"headers": dict(headers)})
    except (TypeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError) as exc:
        raise InvalidMessageError(f"cannot encode the headers: {exc}") from exc


def decode_meta(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return _meta_decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise UnreadableMessageError(f"envelope of {len(data)} bytes is not a MessagePack map: {exc}") from exc


def failed_record(data: bytes, reason: str, error: str = "", *, handler: str = "", crashed: bool = False) -> bytes:
    """The record with its failure in the envelope: attempts + 1 (crashes + 1 when ``crashed``), reason, error, time.

    Id, key, body and enqueue time stay. A record that cannot be read is returned as it is: set aside, not lost.
    """
    try:
        record = Record(data)
        meta = decode_meta(record.meta)
    except UnreadableMessageError:
        return data
    meta["reason"] = reason
    meta["error"] = error[:MAX_ERROR_CHARS]
    meta["failed_at_ms"] = time.time_ns() // 1_000_000
    if handler:
        meta["handler"] = handler
    return record.replace(
        attempts=min(record.attempts + 1, _COUNTER_MAX),
        crashes=min(record.crashes + crashed, _COUNTER_MAX),
        meta=_meta_encoder.encode(meta),
    )


class Message:
    """One stored message: the envelope, and the body as bytes. Read-only. Thread-safe.

    Attributes are read from the record when asked for: ``id`` (UUIDv7 text), ``key`` (text or None),
    ``enqueued_at_us``, ``attempts`` (failed deliveries), ``crashes``, ``headers``, ``reason`` and ``error`` of the last
    failure, ``body``.
    """

    __slots__ = ("_meta", "_record")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._meta: dict[str, Any] | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Parses a record; raises UnreadableMessageError."""
        return cls(Record(data))

    @property
    def id(self) -> str:
        return str(uuid.UUID(bytes=self._record.id))

    @property
    def key(self) -> str | None:
        key = self._record.key
        return key.decode("utf-8", "surrogateescape") if key else None

    @property
    def body(self) -> bytes:
        return self._record.body

    @property
    def enqueued_at_us(self) -> int:
        return self._record.enqueued_at_us

    @property
    def attempts(self) -> int:
        return self._record.attempts

    @property
    def crashes(self) -> int:
        return self._record.crashes

    @property
    def codec(self) -> str:
        return {CODEC_RAW: "raw", CODEC_JSON: "json", CODEC_MSGPACK: "msgpack"}.get(
            self._record.flags & 0x0F, "unknown"
        )

    @property
    def meta(self) -> dict[str, Any]:
        if self._meta is None:
            self._meta = decode_meta(self._record.meta)
        return self._meta

    @property
    def headers(self) -> dict[str, Any]:
        headers = self.meta.get("headers")
        return headers if isinstance(headers, dict) else {}

    @property
    def reason(self) -> str | None:
        return self.meta.get("reason")

    @property
    def error(self) -> str | None:
        return self.meta.get("error")

    @property
    def failed_at_ms(self) -> int | None:
        return self.meta.get("failed_at_ms")

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` output and the console. A body that is not text is given as hexadecimal under ``body_hex``."""
        out: dict[str, Any] = {
            "id": self.id,
            "key": self.key,
            "enqueued_at_us": self.enqueued_at_us,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "headers": self.headers,
            "reason": self.reason,
            "error": self.error,
            "failed_at_ms": self.failed_at_ms,
            "codec": self.codec,
        }
        try:
            if self._record.flags & 0x0F == CODEC_MSGPACK:
                out["body"] = msgspec.to_builtins(msgspec.msgpack.decode(self.body))
            elif self._record.flags & 0x0F == CODEC_JSON:
                out["body"] = msgspec.json.decode(self.body)
            else:
                out["body"] = self.body.decode("utf-8")
        except (ValueError, msgspec.MsgspecError):
            out["body_hex"] = self.body.hex()
        return out

    def __repr__(self) -> str:
        return f"<Message {self.id} key={self.key!r} attempts={self.attempts} {len(self.body)} bytes>"


def corrupt_record(magazine: str, shard: int, pointer: int) -> bytes:
    """Stands in the sideline for a record whose bytes did not match their checksum: where it was, and no body."""
    meta = {
        "reason": REASON_CORRUPT,
        "error": f"checksum mismatch at {magazine}, shard {shard}, pointer {pointer}",
        "failed_at_ms": time.time_ns() // 1_000_000,
    }
    return encode_record(b"", flags=CODEC_RAW, meta=_meta_encoder.encode(meta), attempts=1)
