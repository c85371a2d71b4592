"""The values of ARRAY_ENQUEUE, counted before any of them is made. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from ignis.array_queue import MAX_DEPTH
from ignis.broker.protocol.commands import MAX_HEAD_BYTES
from ignis.broker.protocol.encoding import reader_of, unpack
from ignis.broker.protocol.payloads import MAX_VALUES, Bin, Name
from ignis.errors import BadRequestError, ConfigError, InvalidMessageError
from ignis.safe_msgpack import check_keys

__all__ = ["unpack_enqueued"]

_U32 = struct.Struct(">I")
_MAP = dict[str | int, msgspec.Raw]


class _Enqueued(msgspec.Struct, array_like=True):
    """ARRAY_ENQUEUE as it is read: the values when it is known how many there are."""

    name: Name
    bin_name: Bin
    values: msgspec.Raw = msgspec.Raw(b"\x90")


def unpack_enqueued(payload: bytes) -> tuple[str, str, list[Any]]:
    """(name, bin, values) of ARRAY_ENQUEUE. Values are counted before any of them is made: an empty one is a byte in the
    payload and 64 in memory.

    Raises what `unpack` does; ConfigError when there are more than a million, those within lists and dicts included.
    """
    head, _ = unpack(payload, _Enqueued)
    try:
        check_keys(head.values)
    except msgspec.DecodeError as exc:
        raise BadRequestError(f"ArrayRequest: values: {exc}") from None
    _check_count(head.values)
    return head.name, head.bin_name, unpack(_U32.pack(len(head.values)) + bytes(head.values), list[Any])[0]


def _check_count(values: msgspec.Raw) -> None:
    data = memoryview(values)
    if data[0] & 0xF0 != 0x90 and data[0] not in (0xDC, 0xDD):
        raise BadRequestError("ArrayRequest: values: Expected `array`")
    count = _length(data)
    # A head of no unusual size cannot hold so much that counting all of it is worth while.
    within = [(values, 0)] if len(data) > MAX_HEAD_BYTES else []
    while within and count <= MAX_VALUES:
        raw, depth = within.pop()
        if depth > MAX_DEPTH:
            raise InvalidMessageError(f"lists and dicts are nested deeper than {MAX_DEPTH}")
        for one in _parts(raw):
            added = _length(memoryview(one))
            if added:
                count += added
                within.append((one, depth + 1))
                if count > MAX_VALUES:
                    break
    if count > MAX_VALUES:
        raise ConfigError(f"ArrayRequest: values = {count} values or more: at most {MAX_VALUES} are taken at a time")


def _parts(raw: msgspec.Raw) -> Iterable[msgspec.Raw]:
    """What is directly within an array or a map; of the latter the values, whose keys are no containers."""
    first = memoryview(raw)[0]
    kind: Any = list[msgspec.Raw] if first & 0xF0 == 0x90 or first in (0xDC, 0xDD) else _MAP
    try:
        found = reader_of(kind)(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("ArrayRequest: values: no MessagePack of values, or a key that is none") from None
    return found.values() if isinstance(found, dict) else found


def _length(data: memoryview) -> int:
    """Elements of the array or pairs of the map that begins here; 0 for anything else."""
    first = data[0]
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    size = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(first, 0)
    return int.from_bytes(data[1 : 1 + size], "big")
