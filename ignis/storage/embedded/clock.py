"""What makes the clock of a store's directory the same for all processes of a boot: the file ``clock``.

| offset | size | field |
| 0 | 8 | magic |
| 8 | 4 | version |
| 12 | 4 | CRC32C of what follows |
| 16 | 8 | what the time was, in milliseconds since 1970, when the machine's rising clock stood at 0 |
| 24 | 8 | when this boot began for the store: where the machine's rising clock stood, in milliseconds, when this file was made |
| 32 | . | the boot, as the system named it to whoever made this file |

Little-endian. Which boot it is this file says, as long as any process has the store open: the kernel that keeps the locks of
``owners`` is still the same one, whatever name a container gives to its boot. Only who opens the store alone asks the system, and
replaces the file of another boot: the wall clock is believed once more. So is a damaged one replaced.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from ignis.native import crc32c
from ignis.storage import clock
from ignis.storage.embedded.atomic_files import overwrite, read_or_none, remove, write_whole
from ignis.storage.os_errors import NO_ROOM

__all__ = ["Boot", "open_clock"]

FILE = "clock"
_HEADER = struct.Struct("<8sII")
_TIMES = struct.Struct("<qq")
_MAGIC = b"IGNCLCK\0"
_VERSION = 2


class Boot(NamedTuple):
    """A boot of the machine, as one store knows it.

    Attributes:
        name: the same for all that have the store open.
        began_ms: where the machine's rising clock stood when the store was first opened in it.
    """

    name: str
    began_ms: int


def open_clock(directory: Path, boot: str, *, alone: bool) -> tuple[clock.StoreClock, Boot]:
    """The clock of the store in that directory, begun by whoever opens it first in a boot, and which boot that is.

    Only one process at a time may be here.

    Args:
        directory: of the store.
        boot: what the system calls this boot.
        alone: nobody else has the store open, so that the boot may be another one by now.

    Raises ConfigError where the machine's clock stands before 1970: the store would go by that for the whole boot.
    """
    path = directory / FILE
    found = _decode(read_or_none(path))
    if found is None or (alone and found[1].name != boot):
        rising_ms = clock.machine_ms()
        found = clock.check_era(clock.wall_ms()) - rising_ms, Boot(boot, rising_ms)
        _store(path, _encode(*found))
    return clock.StoreClock(found[0]), found[1]


def _store(path: Path, data: bytes) -> None:
    """On a disk without room over what is there: a name has the same length at each boot, and what is torn is told by its
    checksum. Where even that takes room, what is there goes: who comes to make room must get in."""
    try:
        write_whole(path, data)
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        try:
            overwrite(path, data)
        except FileNotFoundError:
            return
        except OSError as again:
            if again.errno not in NO_ROOM:
                raise
            remove(path)


def _encode(offset_ms: int, boot: Boot) -> bytes:
    body = _TIMES.pack(offset_ms, boot.began_ms) + os.fsencode(boot.name)
    return _HEADER.pack(_MAGIC, _VERSION, crc32c(body)) + body


def _decode(data: bytes | None) -> tuple[int, Boot] | None:
    """What the time was when the rising clock stood at 0, and which boot that was; None for what cannot be read."""
    if data is None or len(data) < _HEADER.size + _TIMES.size:
        return None
    magic, version, check = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or check != crc32c(body):
        return None
    offset_ms, began_ms = _TIMES.unpack_from(body)
    return offset_ms, Boot(os.fsdecode(body[_TIMES.size :]), began_ms)
