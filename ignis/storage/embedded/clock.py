"""What makes the clock of a store's directory the same for all processes of a boot: the file ``clock``.

| offset | size | field |
| 0 | 8 | magic |
| 8 | 4 | version |
| 12 | 4 | CRC32C of what follows |
| 16 | 8 | what the time was, in milliseconds since 1970, when the machine's rising clock stood at 0 |
| 24 | . | the boot, as in the file ``boot`` |

Little-endian. The file of another boot, or a damaged one, is replaced: the wall clock is believed once more.
"""

from __future__ import annotations

import struct
from pathlib import Path

from ignis.native import crc32c
from ignis.storage import clock
from ignis.storage.embedded.atomic_files import create_whole, read_or_none, write_whole

__all__ = ["open_clock"]

FILE = "clock"
_HEADER = struct.Struct("<8sII")
_OFFSET = struct.Struct("<q")
_MAGIC = b"IGNCLCK\0"
_VERSION = 1


def open_clock(directory: Path, boot: str) -> clock.StoreClock:
    """The clock of the store in that directory, begun by whoever opens it first in a boot.

    Raises ConfigError where the machine's clock stands before 1970: the store would go by that for the whole boot.
    """
    path = directory / FILE
    offset_ms = _decode(read_or_none(path), boot)
    if offset_ms is None:
        mine_ms = clock.check_era(clock.wall_ms()) - clock.machine_ms()
        data = _encode(mine_ms, boot)
        # Several processes may do this at the same time where there is no file yet: the first one's stays.
        if path.exists():
            write_whole(path, data)
        else:
            create_whole(path, data)
        offset_ms = _decode(read_or_none(path), boot)
        if offset_ms is None:
            offset_ms = mine_ms
    return clock.StoreClock(offset_ms)


def _encode(offset_ms: int, boot: str) -> bytes:
    body = _OFFSET.pack(offset_ms) + boot.encode()
    return _HEADER.pack(_MAGIC, _VERSION, crc32c(body)) + body


def _decode(data: bytes | None, boot: str) -> int | None:
    """None for what is not of this boot."""
    if data is None or len(data) < _HEADER.size + _OFFSET.size:
        return None
    magic, version, check = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or check != crc32c(body):
        return None
    if body[_OFFSET.size :] != boot.encode():
        return None
    offset_ms: int = _OFFSET.unpack_from(body)[0]
    return offset_ms
