"""The readers of ``ignis.native`` once more, in plain Python, straight from docs/protocol.md and docs/message-format.md.

Slow and simple on purpose: what they and the C core make of the same bytes must be the same, for bytes that are right and for
bytes that are not. Each returns what it read, or raises `RefusedError`.
"""

from __future__ import annotations

import struct

FRAME_HEADER = 14
RECORD_HEADER = 36
MAX_POINTERS = 1 << 20
LAST_POINTER = 0x7FFFFFFF00000000
NO_RECORD = 0xFFFFFFFF
SEGMENT_HEADER = 24
SEGMENT_INDEX = 8
MAX_RECORDS = 1 << 20


class RefusedError(Exception):
    """The bytes are none of the layout."""


def crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = crc32c_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def frames(data: bytes, limit: int) -> tuple[list[tuple[int, int, bytes]], int]:
    """The frames at the start of the data, and how many bytes they took. A bad one ends it; the first one raises."""
    found: list[tuple[int, int, bytes]] = []
    at = 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from(">i", data, at)
        if length < FRAME_HEADER - 4 or length + 4 > limit:
            if not found:
                raise RefusedError
            return found, at
        if len(data) - at < 4 + length:
            break
        command, request_id = struct.unpack_from(">hq", data, at + 4)
        found.append((command, request_id, data[at + FRAME_HEADER : at + 4 + length]))
        at += 4 + length
    return found, at


def pointers(data: bytes) -> list[tuple[int, int, int]]:
    """``u32 runs``, then ``u16 shard, u64 first, u32 count`` each, and nothing behind."""
    if len(data) < 4:
        raise RefusedError
    (count,) = struct.unpack_from(">I", data)
    if len(data) - 4 != count * 14:
        raise RefusedError
    found, total = [], 0
    for i in range(count):
        shard, first, many = struct.unpack_from(">HQI", data, 4 + 14 * i)
        total += many
        if many == 0 or total > MAX_POINTERS or first > LAST_POINTER:
            raise RefusedError
        found.append((shard, first, first + many))
    return found


def claims(data: bytes) -> list[tuple[int, list[int], list[bytes | None]]]:
    """``u32 claims``, then of each ``u16 shard, u32 records, u32 runs``, the runs, the lengths and the records."""
    reader = _Reader(data)
    found = []
    for _ in range(reader.number(4)):
        shard, count, runs = reader.number(2), reader.number(4), reader.number(4)
        many: list[int] = []
        reader.need(runs * 12 + count * 4)
        for _ in range(runs):
            first, length = reader.number(8), reader.number(4)
            if length == 0 or first > LAST_POINTER or len(many) + length > count:
                raise RefusedError
            many.extend(range(first, first + length))
        if len(many) != count:
            raise RefusedError
        lengths = [reader.number(4) for _ in range(count)]
        records = [None if length == NO_RECORD else reader.take(length) for length in lengths]
        found.append((shard, many, records))
    if reader.left:
        raise RefusedError
    return found


Record = tuple[int, int, int, int, bytes, bytes, bytes, bytes]


def record(data: bytes) -> Record:
    """(flags, attempts, crashes, enqueued_at_us, id, key, meta, body)."""
    if len(data) < RECORD_HEADER or data[0] != 1 or data[1] > 0x0F:
        raise RefusedError
    flags, attempts, crashes, key_len, meta_len, at_us = struct.unpack_from(">BHHHIQ", data, 1)
    body_at = RECORD_HEADER + key_len + meta_len
    if body_at > len(data):
        raise RefusedError
    key = data[RECORD_HEADER : RECORD_HEADER + key_len]
    return flags, attempts, crashes, at_us, data[20:36], key, data[RECORD_HEADER + key_len : body_at], data[body_at:]


def segment(data: bytes, magazine_id: int, shard: int, first_pointer: int) -> list[bytes | None]:
    """The records of a sealed segment, None where one does not match its checksum."""
    if len(data) < SEGMENT_HEADER:
        raise RefusedError
    version, reserved, count, _, index_crc, reserved_too = struct.unpack_from(">B3sIQII", data)
    if version != 1 or reserved != bytes(3) or reserved_too or not 0 < count <= MAX_RECORDS:
        raise RefusedError
    data_at = SEGMENT_HEADER + SEGMENT_INDEX * count
    if data_at > len(data):
        raise RefusedError
    entries = [struct.unpack_from(">II", data, SEGMENT_HEADER + SEGMENT_INDEX * i) for i in range(count)]
    if index_crc != crc32c(b"".join(end.to_bytes(4, "big") for end, _ in entries), crc32c(data[:16])):
        raise RefusedError
    ends = [0, *(end for end, _ in entries)]
    if ends != sorted(ends) or ends[-1] != len(data) - data_at:
        raise RefusedError
    found: list[bytes | None] = []
    for i, (end, check) in enumerate(entries):
        one = data[data_at + ends[i] : data_at + end]
        place = struct.pack(">IHQI", magazine_id, shard, first_pointer + i, crc32c(one))
        found.append(one if crc32c(place) == check else None)
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def need(self, size: int) -> None:
        if self.left < size:
            raise RefusedError

    def take(self, size: int) -> bytes:
        self.need(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")
