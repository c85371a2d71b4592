"""MessagePack that somebody else may have chosen, decoded without a type: the one door to it.

Whoever may publish, or store a queue's record, chooses bytes that a broker, a console, a command or a worker decodes. A map of
them becomes a dict. Its keys must be text, bytes or integers: the hash of anything else has no secret, so a few thousand keys
with one hash keep a whole process busy for seconds.

What is refused raises `msgspec.DecodeError`, as bytes do that are no MessagePack. No other module decodes MessagePack: a test
looks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect as kinds

from ignis.native import unsafe_keys

__all__ = ["ANY_NUMBER", "MAX_INTEGER_KEYS", "check_keys", "decode", "decoder"]

MAX_INTEGER_KEYS = 256
"""Of one map, of 16 bits or more. The hash of an integer is no secret either: keys can be chosen so that each is looked for
behind all others. With so few of them that costs ten times what decoding costs, and not a thousand times. Two thousand of 16 bits
suffice for that, with no two of one hash: a dict tries the places i, 5i + 1 and so on, and they can all lie on that way. Of
smaller ones there are too few to choose from."""
ANY_NUMBER = 0xFFFF_FFFF

_PLAIN_KEYS = (
    kinds.AnyType, kinds.StrType, kinds.BytesType, kinds.IntType, kinds.BoolType, kinds.NoneType, kinds.EnumType,
    kinds.LiteralType, kinds.UUIDType, kinds.DateType, kinds.TimeType, kinds.DecimalType,
)  # fmt: skip
"""What stands as text, bytes or an integer where it is a key."""


def check_keys(data: Any, max_integers: int = MAX_INTEGER_KEYS) -> None:
    """Raises `msgspec.DecodeError`, which says what was found and where, unless the bytes may be decoded without a type."""
    found = unsafe_keys(data, max_integers)
    if found is not None:
        raise msgspec.DecodeError(f"MessagePack is refused: {found}")


def decoder(kind: Any = Any, *, max_integers: int | None = None) -> Callable[[Any], Any]:
    """Reads values of a type, as `msgspec.msgpack.Decoder` does. Where the type leaves a part open (``Any``, ``dict``), the bytes
    go through `check_keys` before any of them is decoded.

    What a type names itself is read as it says: ``dict[tuple[int, int], str]``, and any number of keys of ``dict[int, str]``.
    Whoever declares it decides.

    Args:
        kind: the type.
        max_integers: holds for all of it; None: `MAX_INTEGER_KEYS`, where the type names no integers for keys.
    """
    read = msgspec.msgpack.Decoder(kind).decode
    named = _named_keys(kind)
    if named is None:
        return read
    most = max_integers
    if most is None:
        most = ANY_NUMBER if kinds.IntType in named else MAX_INTEGER_KEYS

    def checked(data: Any) -> Any:
        found = unsafe_keys(data, most)
        if found is not None:
            raise msgspec.DecodeError(f"MessagePack is refused: {found}")
        return read(data)

    return checked


def _named_keys(kind: Any) -> set[type] | None:
    """The types of keys that a type names, where it leaves another part open; None where bytes need no look."""
    try:
        found = list(_walk(kinds.type_info(kind), set()))
    except Exception:  # a type that only a hook of its own understands
        return set()
    keys = [one.key_type for one in found if isinstance(one, kinds.DictType)]
    named = {type(one) for key in keys for one in getattr(key, "types", (key,))}
    if named.difference(_PLAIN_KEYS) or not any(isinstance(one, kinds.AnyType) for one in found):
        return None
    return named


def _walk(info: Any, seen: set[int]) -> Iterator[Any]:
    """A type and all that it is made of."""
    if isinstance(info, kinds.Metadata):
        info = info.type
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(info, name):
            yield from _walk(getattr(info, name), seen)
    for one in (*getattr(info, "types", ()), *getattr(info, "item_types", ())):
        yield from _walk(one, seen)
    for field in getattr(info, "fields", ()):
        yield from _walk(field.type, seen)


decode = decoder()
"""Reads a value of any type."""
