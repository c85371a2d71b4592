"""The files of a log as bytes, read without the engine: a second reader of the formats in ``csrc/ignis_store_log.h`` and
``csrc/ignis_store_checkpoint.c``, for `ignis doctor` and tests. Nothing here writes."""

from __future__ import annotations

import mmap
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from ignis.native import crc32c
from ignis.regular_files import regular_only

__all__ = [
    "ENTRY_HEADER_BYTES",
    "ENTRY_TYPES",
    "SECTOR_BYTES",
    "Checkpoint",
    "Control",
    "Entry",
    "FileDamaged",
    "FileOfAnotherVersion",
    "NothingWritten",
    "Segment",
    "SegmentHeader",
    "mended_header",
    "parse_name",
    "seal_entry",
]

SECTOR_BYTES = 512
ENTRY_HEADER_BYTES = 24
MAX_ENTRY_BYTES = 1 << 30
ENTRY_TYPES = {
    1: "open", 2: "catalogue", 3: "load", 4: "claim", 5: "retire", 6: "transfer", 7: "renew", 8: "move", 9: "key",
    10: "segment", 11: "expire", 12: "claimed", 13: "once", 14: "forget", 15: "witness",
}  # fmt: skip
_LOG_MAGIC = b"IGNSLOG1"
_LOG_VERSION = 1
_LOG_HEADER = struct.Struct(">8sIIQQQQQQI")
_LOG_CRC_BYTES = 64
_CHECKPOINT = struct.Struct("=QIIQQQQII")
_ROOT_SEGMENTS = struct.Struct("=80xQQ")
_STATE_SEGMENT = struct.Struct("=9Q")
_CONTROL = struct.Struct("=QIIQQ")
_CONTROL_WORDS = struct.Struct("=I8xQQ")  # from 1156 on
_CONTROL_MAGIC = 0x314C5443534E4749
_CONTROL_VERSION = 4
_CHECKPOINT_MAGIC = 0x31504B43534E4749
_CHECKPOINT_VERSION = 1
_BYTE_ORDER_MARK = 0x01020304
_ENTRY = struct.Struct(">IIBBHIQ")
_PLACE = struct.Struct(">QQ4s")
_PLACE_OF_HEADER = struct.Struct(">QQ4s4s4s")
_NAME = re.compile(
    r"(log|control|checkpoint|tmp-(?:log|control|checkpoint|ahead|spare))-([0-9a-f]{16})-([0-9a-f]{16})\Z"
)
_PIECE = 1 << 20
_HEADER = re.compile(rb"[\x01-\x1f]" + bytes([_LOG_VERSION]) + rb"\x00\x00")


class FileDamaged(Exception):
    """A file's header says that it is damaged. Its text says what is wrong."""


class NothingWritten(FileDamaged):
    """There is no header: whoever began the file is at it, or died before anything in it counted."""


def _swapped(value: int, width_bytes: int) -> int:
    """As a machine of the other byte order reads it."""
    return int.from_bytes(value.to_bytes(width_bytes, "little"), "big")


class FileOfAnotherVersion(Exception):
    """A file is whole, and of a version that this one does not read."""


def parse_name(name: str) -> tuple[str, int, int] | None:
    """Kind and the two numbers of an engine's file; None for a file that is none of its."""
    found = _NAME.match(name)
    return None if found is None else (found[1], int(found[2], 16), int(found[3], 16))


@dataclass(frozen=True)
class Entry:
    """One entry. ``position`` counts the bytes of all entries ever written; ``next`` is the position of what follows."""

    position: int
    next: int
    type: int
    durable: int

    @property
    def kind(self) -> str:
        return ENTRY_TYPES.get(self.type, f"type {self.type}")


class SegmentHeader(NamedTuple):
    """What the first sector of a segment says."""

    generation: int
    number: int
    base: int
    size: int
    salt: int
    store: int
    flushed: int
    """Up to this position it was on the disk before it got its name."""

    @classmethod
    def read(cls, file: IO[bytes]) -> SegmentHeader:
        """Raises FileDamaged, FileOfAnotherVersion, OSError."""
        head = file.read(SECTOR_BYTES)
        if not any(head):
            raise NothingWritten("it has no header")
        if len(head) < SECTOR_BYTES:
            raise FileDamaged(f"it has {len(head)} bytes, less than a header")
        magic, version, words, generation, number, base, size, salt, store, crc = _LOG_HEADER.unpack_from(head)
        if magic != _LOG_MAGIC:
            raise FileDamaged(f"it begins with {magic!r} instead of {_LOG_MAGIC!r}")
        if crc != crc32c(head[:_LOG_CRC_BYTES]):
            raise FileDamaged("the checksum of its header does not hold")
        if version != _LOG_VERSION:
            raise FileOfAnotherVersion(f"version {version}, this version of ignis reads {_LOG_VERSION}")
        if size < SECTOR_BYTES or base % 8:
            raise FileDamaged(f"its header names a size of {size} bytes and a base of {base}")
        return cls(generation, number, base, size, salt, store, base + 8 * words)


def mended_header(head: bytes) -> bytes | None:
    """A segment's first sector with the one byte put right that was wrong; None when that does not make it whole."""
    for place in range(_LOG_HEADER.size if len(head) == SECTOR_BYTES else 0):
        mended = bytearray(head)
        for value in range(256):
            mended[place] = value
            if (
                mended.startswith(_LOG_MAGIC)
                and crc32c(bytes(mended[:_LOG_CRC_BYTES])).to_bytes(4, "big")
                == mended[_LOG_CRC_BYTES : _LOG_HEADER.size]
            ):
                return bytes(mended)
    return None


class Segment:
    """A segment's file, mapped to be read. Raises FileDamaged, FileOfAnotherVersion, OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb", opener=regular_only) as file:
            header = SegmentHeader.read(file)
            self._bytes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.generation, self.number, self.base, self.size, self.salt, self.store, self.flushed = header
        self.file_bytes = len(self._bytes)
        self.witnessed: int | None = None
        """Up to where its last entries know that it was flushed, once that was looked for."""
        self.limit = self.end
        """Entries from here on are another segment's."""

    @property
    def end(self) -> int:
        """The position behind the last entry that the file has room for."""
        return self.base + self.size - SECTOR_BYTES

    @property
    def readable_end(self) -> int:
        """As `end`, in a file that was cut short."""
        return min(self.end, self.base + max(0, self.file_bytes - SECTOR_BYTES))

    def offset(self, position: int) -> int:
        return position - self.base + SECTOR_BYTES

    def bytes_at(self, position: int, count: int) -> bytes:
        start = self.offset(position)
        return self._bytes[start : start + count]

    def entry_at(self, position: int) -> Entry | None:
        """None where nothing was ever written. Raises FileDamaged for what is no entry."""
        header = self.bytes_at(position, ENTRY_HEADER_BYTES)
        if len(header) < ENTRY_HEADER_BYTES:
            if not any(header):
                return None
            raise self._damaged(position, "the file ends within its header")
        length, crc, kind, version, _, header_check, durable = _ENTRY.unpack(header)
        if not length:
            if not any(header):
                return None
            raise self._damaged(position, "its length is 0, and what follows is not")
        if header_check != self._header_crc(header, position):
            raise self._damaged(position, "the checksum of its header does not hold")
        if version != _LOG_VERSION:
            raise self._damaged(position, f"its version is {version}")
        if not ENTRY_HEADER_BYTES <= length <= MAX_ENTRY_BYTES:
            raise self._damaged(position, f"its length is {length}")
        start = self.offset(position)
        if start + length > self.file_bytes:
            raise self._damaged(position, f"the file ends within its {length} bytes")
        check = crc32c(_PLACE.pack(self.salt, position, header[:4]))
        view = memoryview(self._bytes)[start + 8 : start + length]
        try:
            check = crc32c(view, check)
        finally:
            view.release()
        if check != crc:
            name = ENTRY_TYPES.get(kind, f"type {kind}")
            raise self._damaged(position, f"the checksum of this entry ({name}, {length} bytes) does not hold")
        return Entry(position, position + ((length + 7) & ~7), kind, durable)

    def header_end(self, position: int, until: int) -> int | None:
        """Where the entry ends whose header stands at ``position`` and holds, whatever became of its payload; None: none does."""
        header = self.bytes_at(position, ENTRY_HEADER_BYTES)
        if len(header) < ENTRY_HEADER_BYTES:
            return None
        length, _, kind, version, _, check, _ = _ENTRY.unpack(header)
        end = position + ((length + 7) & ~7)
        if kind not in ENTRY_TYPES or version != _LOG_VERSION or not ENTRY_HEADER_BYTES <= length <= MAX_ENTRY_BYTES:
            return None
        return end if end <= until and check == self._header_crc(header, position) else None

    def damaged_entries(self, position: int, until: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each entry of a damaged range, as far as headers tell."""
        while position < until:
            end = self.header_end(position, until)
            if end is None:
                end = self._next_header(position, until)
            yield position, end
            position = end

    def _next_header(self, position: int, until: int) -> int:
        at, end = self.offset(position) + 8 + 8, self.offset(min(until, self.readable_end))
        while (found := _HEADER.search(self._bytes, at, end)) is not None:
            at = found.start() + 1
            place = self.base + found.start() - 8 - SECTOR_BYTES
            if place % 8 == 0 and self.header_end(place, until) is not None:
                return place
        return until

    def search(self, position: int, until: int) -> Entry | None:
        """The first whole entry behind ``position``, which is none."""
        behind = self.header_end(position, until)
        at = self.offset(position + 8 if behind is None else behind) + 8
        end = self.offset(min(until, self.readable_end))
        while True:
            found = _HEADER.search(self._bytes, at, end)
            if found is None:
                return None
            at = found.start() + 1
            place = self.base + found.start() - 8 - SECTOR_BYTES
            if place % 8:
                continue
            try:
                entry = self.entry_at(place)
            except FileDamaged:
                # No entry begins within one whose header holds.
                behind = self.header_end(place, self.limit)
                at = at if behind is None else self.offset(behind) + 8
                continue
            if entry is not None:
                return entry

    def written_behind(self, position: int) -> int:
        """How many bytes lie between a position and the last byte that is not zero."""
        start = self.offset(position)
        end = self.file_bytes
        while end > start:
            piece = self._bytes[max(start, end - _PIECE) : end]
            stripped = piece.rstrip(b"\0")
            if stripped:
                return end - len(piece) + len(stripped) - start
            end -= len(piece)
        return 0

    def close(self) -> None:
        self._bytes.close()

    def _header_crc(self, header: bytes, position: int) -> int:
        return crc32c(_PLACE_OF_HEADER.pack(self.salt, position, header[:4], header[8:12], header[16:20]))

    def _damaged(self, position: int, what: str) -> FileDamaged:
        return FileDamaged(f"position {position:#x} (offset {self.offset(position)}): {what}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums hold."""

    path: Path
    generation: int
    position: int
    store: int
    bytes: int
    segments: tuple[tuple[int, int, int, int], ...]
    """Generation, number and base of each segment that there was, and how many bytes lived in it."""

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Raises FileDamaged, FileOfAnotherVersion, OSError."""
        with open(path, "rb", opener=regular_only) as file:
            head = file.read(SECTOR_BYTES)
            if len(head) < SECTOR_BYTES:
                raise FileDamaged(f"it has {len(head)} bytes, less than a header")
            magic, version, order, generation, position, store, size, image_crc, _ = _CHECKPOINT.unpack_from(head)
            (crc,) = struct.unpack_from("=I", head, _CHECKPOINT.size)
            if (magic, order) == (_swapped(_CHECKPOINT_MAGIC, 8), _swapped(_BYTE_ORDER_MARK, 4)):
                raise FileOfAnotherVersion(f"it was made on a machine of another byte order than {sys.byteorder}")
            if (magic, order) != (_CHECKPOINT_MAGIC, _BYTE_ORDER_MARK):
                raise FileDamaged("it does not begin as a checkpoint does")
            if crc != crc32c(head[: _CHECKPOINT.size]):
                raise FileDamaged("the checksum of its header does not hold")
            if version != _CHECKPOINT_VERSION:
                raise FileOfAnotherVersion(f"version {version}, this version of ignis reads {_CHECKPOINT_VERSION}")
            check, left = 0, size
            while left > 0:
                piece = file.read(min(_PIECE, left))
                if not piece:
                    raise FileDamaged(f"it ends {left} bytes before the image's end")
                check = crc32c(piece, check)
                left -= len(piece)
            if check != image_crc:
                raise FileDamaged(f"the checksum of its image ({size} bytes) does not hold")
            return cls(path, generation, position, store, size, tuple(cls._segments(file)))

    @staticmethod
    def _segments(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
        file.seek(SECTOR_BYTES)
        place, count = _ROOT_SEGMENTS.unpack(file.read(_ROOT_SEGMENTS.size))
        file.seek(SECTOR_BYTES + place)
        for generation, number, base, *_, living, _ in _STATE_SEGMENT.iter_unpack(
            file.read(count * _STATE_SEGMENT.size)
        ):
            yield generation, number, base, living


class Control(NamedTuple):
    """What a control file says of the log: up to where it was flushed, and which segment was written."""

    generation: int
    store: int
    durable: int
    number: int

    @classmethod
    def read(cls, path: Path) -> Control | None:
        """None when it says nothing: it is none, of another version, or its generation had not begun. Raises OSError."""
        with open(path, "rb", opener=regular_only) as file:
            head = file.read(4096)
        if len(head) < 4096:
            return None
        magic, version, order, generation, store = _CONTROL.unpack_from(head)
        ready, durable, number = _CONTROL_WORDS.unpack_from(head, 1156)
        if magic != _CONTROL_MAGIC or version != _CONTROL_VERSION or order != _BYTE_ORDER_MARK or not ready:
            return None
        return cls(generation, store, durable, number)


def seal_entry(kind: int, payload: bytes, salt: int, position: int) -> bytes:
    """An entry as it stands in a segment of that salt."""
    length = ENTRY_HEADER_BYTES + len(payload)
    header = bytearray(_ENTRY.pack(length, 0, kind, _LOG_VERSION, 0, 0, 0))
    check = crc32c(_PLACE_OF_HEADER.pack(salt, position, bytes(header[:4]), bytes(header[8:12]), bytes(header[16:20])))
    header[12:16] = check.to_bytes(4, "big")
    body = bytes(header[8:]) + payload
    header[4:8] = crc32c(body, crc32c(_PLACE.pack(salt, position, bytes(header[:4])))).to_bytes(4, "big")
    return bytes(header) + payload + bytes(-length % 8)
