"""How a payload is packed and read. No I/O.

Every payload but those of SEND, SEND_BATCH and SEND_ACK is ``u32 head_bytes | head | bulk``. The head is a MessagePack
value: for requests an array, whose fields are those of the classes in `ignis.broker.protocol.payloads`, in order. The bulk is a
packed block of pointers or claims, or nothing. Readers ignore fields at the end of an array that they do not know, and take the
default for those that are missing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ignis.broker.protocol.commands import FEATURES, MAGIC, VERSION
from ignis.errors import BadRequestError, ConfigError, IgnisError, InvalidNameError, ProtocolError
from ignis.safe_msgpack import MAX_INTEGER_KEYS, decode, decoder
from ignis.storage.checks import shorten

__all__ = ["head_bytes", "pack", "pack_connect", "reader_of", "unpack", "unpack_connect", "unpack_value"]

T = TypeVar("T")

_NAMES = frozenset(
    {"name", "queue", "magazine", "source", "target", "owner", "scope", "table", "farm_id", "bin_name", "fence"}
)
"""Fields whose text is refused as a name."""
_SECRET = frozenset({"token", "password"})
"""Fields whose value is in no message, whatever it is and whichever payload has them."""
_WHERE = re.compile(r" - at (?:`key` in )?`\$\[(\d+)\]")
_OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (?:[<>]|of length|matching|that's)")

_TOLD_BYTES = 8_192
"""The largest head of which a value is shown: all of it is decoded again for one word of a message."""

_U32 = struct.Struct(">I")
_HELLO = struct.Struct(">4sHHQ")  # magic, lowest version, highest version, features
_encode = msgspec.msgpack.Encoder().encode
_readers: dict[Any, Callable[[Any], Any]] = {}


def reader_of(kind: Any) -> Callable[[Any], Any]:
    """Reads values of this type, see `ignis.safe_msgpack.decoder`; made once for each."""
    read = _readers.get(kind)
    if read is None:
        read = _readers[kind] = decoder(kind, max_integers=MAX_INTEGER_KEYS)
    return read


def head_bytes(payload: bytes) -> int:
    """How long its head says that it is."""
    return int(_U32.unpack_from(payload)[0]) if len(payload) >= 4 else 0


def pack(head: Any, bulk: bytes = b"") -> bytes:
    """``u32 head_bytes | head | bulk``. Raises ConfigError for values that MessagePack has not."""
    try:
        encoded = _encode(head)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ConfigError(f"the request cannot be encoded: {exc}") from None
    return b"".join((_U32.pack(len(encoded)), encoded, bulk))


def unpack(payload: bytes, kind: type[T]) -> tuple[T, int]:
    """The head, checked against its class, and where the bulk begins.

    Raises BadRequestError for what is not of its class's types, ConfigError for a value out of its field's bounds, and
    InvalidNameError for a name that is none; the last two say which field, what was given and what is allowed.
    """
    if len(payload) < 4:
        raise BadRequestError(f"payload of {len(payload)} bytes is cut short")
    end = 4 + _U32.unpack_from(payload)[0]
    if end > len(payload):
        raise BadRequestError(f"payload of {len(payload)} bytes announces a head of {end - 4} bytes")
    read = _readers.get(kind) or reader_of(kind)
    try:
        return read(memoryview(payload)[4:end]), end
    except UnicodeDecodeError:
        # Its own text has a byte of the value, which may be a password.
        raise BadRequestError(f"payload is not a {getattr(kind, '__name__', kind)}: text that is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise _refusal(payload[4:end], kind, str(exc)) from None


def _refusal(head: bytes, kind: Any, why: str) -> BadRequestError | ConfigError:
    """Says which field of a head was refused, what was given and what is allowed."""
    called = getattr(kind, "__name__", kind)
    where = _WHERE.search(why)
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    if where is None or int(where[1]) >= len(fields):
        return BadRequestError(f"payload is not a {called}: {why[:200]}")
    field, expected = fields[int(where[1])], why[: where.start()]
    text = f"{field}: {expected[:200]}"
    if getattr(kind, "told", True) and field not in _SECRET and len(head) <= _TOLD_BYTES:
        try:
            given = shorten(decode(head)[int(where[1])])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            given = "something"  # which cannot be read without its type
        text = f"{field} = {given}: {expected[:200]}"
    if field in _NAMES:
        return InvalidNameError(text)
    return ConfigError(text) if _OUT_OF_BOUNDS.match(expected) else BadRequestError(text)


def unpack_value(payload: bytes, kind: Any = Any) -> Any:
    """The head alone, of a RESULT."""
    return unpack(payload, kind)[0]


# -- the handshake


def pack_connect(head: Any, *, lowest: int = VERSION, highest: int = VERSION) -> bytes:
    """CONNECT and its answer begin with magic, versions and features, in a form that no later version changes."""
    return _HELLO.pack(MAGIC, lowest, highest, FEATURES) + pack(head)


def unpack_connect(payload: bytes, kind: type[T]) -> tuple[T, int, int]:
    """(head, version to speak, features of the other side). Raises ProtocolError."""
    if len(payload) < _HELLO.size:
        raise ProtocolError(f"a handshake of {len(payload)} bytes is cut short")
    magic, lowest, highest, features = _HELLO.unpack_from(payload)
    if magic != MAGIC:
        raise ProtocolError(
            f"the other side does not speak this protocol: it begins with {magic!r} instead of {MAGIC!r}"
        )
    if not lowest <= VERSION <= highest:
        raise ProtocolError(f"the other side speaks versions {lowest} to {highest}, this one {VERSION}")
    try:
        return unpack(payload[_HELLO.size :], kind)[0], VERSION, features
    except IgnisError as exc:  # of the wrong type, out of bounds, or no name
        raise ProtocolError(str(exc)) from None
