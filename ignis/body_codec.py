"""The codecs between objects and bodies: what a message is encoded to, and what of it could not be read back.

What most kinds of messages need not have checked is told by `ignis.body_plan`; models of pydantic have coders of their own.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect as kinds

from ignis.body_plan import plan_of
from ignis.config import shown
from ignis.errors import ConfigError, InvalidMessageError, UnreadableMessageError
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, only_bytes
from ignis.native.plan import Plan
from ignis.pydantic_models import pydantic_coders
from ignis.safe_msgpack import check_keys, decode, decoder

__all__ = ["BodyCodec", "error_text"]

M = TypeVar("M")

_json_encode = msgspec.json.Encoder().encode
_kinds_encoder = msgspec.msgpack.Encoder()
_to_raw = decoder(msgspec.Raw)
_MAX_DEPTH = 1_000
_ANYTHING = (Any, dict, list, tuple, set, frozenset, object)
"""Types of which every message that can be encoded can be read again."""
_SCALARS = (
    int, float, decimal.Decimal, uuid.UUID, dt.date, dt.time, dt.timedelta, enum.Enum,
)  # fmt: skip


_RECORD_MARKS = ("__struct_fields__", "__pydantic_fields__", "model_fields", "__attrs_attrs__", "_fields")
"""One of these has a class whose objects are made of named fields: msgspec's, pydantic's, attrs', a named tuple."""


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
                self.decode = decoder(target)
            else:
                raise ConfigError(f"codec = {shown(codec)} is not one of auto, raw, json, msgpack")
        except ConfigError:
            raise
        except Exception as exc:
            # Whatever it is: msgspec asks the type itself, and a forward reference raises NameError.
            raise ConfigError(f"message type {shown(type)} cannot be encoded as {codec}: {exc}") from exc
        self.encode = self._encode_known
        _check_is_read(type, codec, strict)
        anything = any(target is one for one in _ANYTHING)
        # What JSON has no form for, it writes in the form of something else: that shows when it is read, also without a type.
        self._reads_back = strict and (self._is_json or not anything)
        if self._reads_back or self._is_json:
            self._plan = plan_of(target)
        if strict and not self._reads_back:
            # Makes no objects: a third of what reading back costs. Only a msgspec.Raw puts in what cannot be read.
            self._skim = _skim

    def encode_all(self, messages: Sequence[object]) -> Sequence[bytes]:
        """`encode_checked` of each."""
        if self.takes_any and only_bytes(messages):  # encoded already
            return cast("Sequence[bytes]", messages)
        encode = self.encode_checked
        return [encode(message) for message in messages]

    def _remedy(self, message: object) -> str:
        name = _name(self.type)
        if message is self.type:
            return f": the class itself and not one of its objects, {name}(...)"
        record = dataclasses.is_dataclass(self.type) or any(hasattr(self.type, one) for one in _RECORD_MARKS)
        return f"; {name}(**message) makes one" if isinstance(message, dict) and record else ""

    def encode_checked(self, message: object) -> bytes:
        """`encode`, with InvalidMessageError that names the message's type and the queue's, or the field that is wrong."""
        # Every field is plainly what its type says: nothing of it can arrive as something else.
        proven = self._plan is not None and self._plan.holds(message)
        if not proven and self._kind is not None and not isinstance(message, self._kind):
            raise InvalidMessageError(
                f"{_a(message)} was published to a queue of {_name(self.type)}{self._remedy(message)}"
            )
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
            raise UnreadableMessageError(f"body of {len(body)} bytes {fault}: {error_text(exc)}") from exc

    def _is_wellformed(self, body: bytes) -> bool:
        """Whether it is what the codec writes, for whatever type."""
        try:
            if self.name == "json":
                msgspec.json.decode(body)
            else:
                decode(body)
        except Exception:
            return False
        return self.name != "raw"


def _skim(body: bytes) -> None:
    """Raises for MessagePack that a consumer would not decode without a type."""
    _to_raw(body)
    check_keys(body)


def error_text(exc: BaseException) -> str:
    """The text of an exception that may be of the user's making."""
    try:
        return str(exc)
    except Exception:
        return type(exc).__qualname__


_READ: tuple[object, ...] = (
    None, True, 0, 0.0, "", b"", [], {}, dt.datetime.min.replace(tzinfo=dt.timezone.utc), msgspec.msgpack.Ext(0, b""),
)  # fmt: skip
"""What a body is read as where its type says nothing of its form: one of each kind."""


def _check_is_read(kind: Any, codec: str, strict: bool) -> None:
    """Raises ConfigError where it is certain that no body is read as an object of this class: each message would be refused.

    A class whose own metaclass says what is one of its objects, as those of ``abc`` and ``Protocol`` do, may surprise: of those
    nothing is said, nor of what only holds such objects.
    """
    if not strict or type(kind) is not type:
        return
    try:
        found = isinstance(kinds.type_info(kind), kinds.CustomType) and not any(isinstance(one, kind) for one in _READ)
    except Exception:  # of a type that only the codec understands
        return
    if found:
        raise ConfigError(
            f"message type {shown(kind)} cannot be encoded as {codec}: no body is read as one of its objects; make it a "
            "dataclass, a msgspec.Struct or a pydantic model, or leave the type out"
        )


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
    if type(message) is bytes:
        return message
    if isinstance(message, (bytes, bytearray, memoryview)):
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
