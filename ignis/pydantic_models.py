"""Messages that are pydantic models, or hold some: encoded and validated by pydantic, where it is installed.

Nothing is imported for a type in which there is none. A model's aliases, serialisers and validators count; computed fields
are not stored, because a consumer makes them anew.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from ignis.config import shown
from ignis.errors import ConfigError
from ignis.safe_msgpack import decode

__all__ = ["Coders", "pydantic_coders"]

_OLDEST = (2, 7)
_MOST_ERRORS = 5


class Coders(NamedTuple):
    """What a `BodyCodec` needs for a type of pydantic's. ``changed`` says where a message differs from what was read back,
    None = nowhere."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    changed: Callable[[Any, Any], str | None]


def pydantic_coders(type: Any, codec: str, strict: bool) -> Coders | None:
    """The coders of a type that is or holds a pydantic model; None for any other type.

    Args:
        type: the queue's.
        codec: ``json`` or ``msgpack``.
        strict: whether a value that is not of its field's type is refused; else it is encoded as it is.

    Raises ConfigError: a model of pydantic 1, or models within a type that pydantic does not know.
    """
    if "pydantic" not in sys.modules or not any(_models(type, set())):
        return None
    import pydantic

    version = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
    if version < _OLDEST:
        raise ConfigError(f"message type {shown(type)}: models need pydantic 2.7 or newer, here is {pydantic.VERSION}")
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(type)
        if not getattr(adapter, "pydantic_complete", True):  # a name is missing; pydantic 2.10 and newer put that off
            adapter.rebuild(raise_errors=True)
    except Exception as exc:  # PydanticUserError, NameError of a forward reference, ...
        raise ConfigError(f"message type {shown(type)} cannot be encoded as {codec}: {_first_line(exc)}") from exc
    checks: typing.Literal["error", "none"] = "error" if strict else "none"

    def dump(message: Any) -> Any:
        return adapter.dump_python(message, by_alias=True, round_trip=True, warnings="none")

    def encode_json(message: Any) -> bytes:
        return adapter.dump_json(message, by_alias=True, round_trip=True, warnings=checks)

    def encode_msgpack(message: Any) -> bytes:
        return msgspec.msgpack.encode(
            adapter.dump_python(message, by_alias=True, round_trip=True, warnings=checks), enc_hook=str
        )

    def decode_json(body: bytes) -> Any:
        try:
            return adapter.validate_json(body)
        except pydantic.ValidationError as exc:
            raise ValueError(_told(exc)) from None

    def decode_msgpack(body: bytes) -> Any:
        try:
            return adapter.validate_python(decode(body))
        except pydantic.ValidationError as exc:
            raise ValueError(_told(exc)) from None

    def changed(message: Any, read: Any) -> str | None:
        # Not the objects: what a model keeps to itself (private attributes, excluded fields) is not sent on purpose.
        return next(_differences(dump(message), dump(read), "$"), None)

    if codec == "json":
        return Coders(encode_json, decode_json, changed)
    return Coders(encode_msgpack, decode_msgpack, changed)


def _models(kind: Any, seen: set[int]) -> Iterator[Any]:
    """The pydantic classes in a type. Raises ConfigError."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for one in typing.get_args(kind):
        yield from _models(one, seen)
    if not isinstance(kind, type):
        return
    if hasattr(kind, "__pydantic_validator__"):
        yield kind
        return
    if any(one.__module__.startswith("pydantic") and one.__name__ == "BaseModel" for one in kind.__mro__):
        raise ConfigError(f"message type {shown(kind)} is a model of pydantic 1; derive it from pydantic 2's BaseModel")
    if kind.__module__ == "builtins":
        return
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # msgspec says what is wrong with it
        return
    inner = [model for hint in hints.values() for model in _models(hint, seen)]
    if inner and (issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__")):
        raise ConfigError(
            f"message type {shown(kind)} holds {shown(inner[0])}, a pydantic model, which msgspec and attrs cannot validate; "
            "make the outer class a model as well, or the inner one none"
        )
    yield from inner


def _told(exc: Any) -> str:
    """The places that are wrong, in one line, without the values: they may be secrets."""
    errors = exc.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{one['msg']} - at `{_path(one['loc'])}`" for one in errors[:_MOST_ERRORS]]
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _path(location: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in location)


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0]


def _differences(value: Any, read: Any, path: str) -> Iterator[str]:
    """Where two dumps differ. Values are not said: they may be secrets."""
    if isinstance(value, dict) and isinstance(read, dict):
        for key in value.keys() | read.keys():
            if key in value and key in read:
                yield from _differences(value[key], read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, (list, tuple)) and isinstance(read, (list, tuple)) and len(value) == len(read):
        for index, (one, other) in enumerate(zip(value, read, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif value != read and not (value != value and read != read):  # "not a number" is not even itself
        yield path
