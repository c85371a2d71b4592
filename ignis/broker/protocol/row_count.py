"""How many rows a TRANSFER or a DEFER has, read from its first bytes: a row of six bytes takes some 270 in memory. No I/O."""

from __future__ import annotations

from ignis.broker.protocol.commands import Command
from ignis.errors import ConfigError

__all__ = ["MAX_NAME_BYTES", "MAX_ROWS", "ROWS", "check_row_count"]

MAX_ROWS = 100_000
"""Rows of one request. The clients of ignis send more in several requests."""
MAX_NAME_BYTES = 1_024
"""Of a name before the rows, whatever its text: no name that is allowed is as long."""
ROWS = {int(Command.TRANSFER): 2, int(Command.DEFER): 1}
"""Commands with rows -> how many names stand before them."""

_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
"""First byte -> bytes of the length behind it."""


def check_row_count(command: int, data: bytes, at: int) -> bool:
    """Whether enough bytes are there to tell how many rows there are; what is no head of such a request is left to its decoder.

    Args:
        command: one of `ROWS`.
        data: a payload, or what has come of it.
        at: where its head begins.

    Raises ConfigError for more than `MAX_ROWS`, ValueError for a name of over `MAX_NAME_BYTES`.
    """
    found = _length(data, at, 0x90, 0x0F, _ARRAYS)
    for _ in range(ROWS[command]):
        if found is None or found[0] < 0:
            return found is not None
        found = _length(data, found[1], 0xA0, 0x1F, _TEXTS)
        if found is not None and found[0] > MAX_NAME_BYTES:
            raise ValueError(f"its name has {found[0]} bytes; at most {MAX_NAME_BYTES} are allowed")
        found = found and (found[0], found[1] + max(0, found[0]))
    if found is None or found[0] < 0:
        return found is not None
    found = _length(data, found[1], 0x90, 0x0F, _ARRAYS)
    if found is not None and found[0] > MAX_ROWS:
        raise ConfigError(
            f"{Command(command).name} with {found[0]} rows; at most {MAX_ROWS} are taken in one request: send them in several"
        )
    return found is not None


def _length(data: bytes, at: int, short: int, mask: int, longer: dict[int, int]) -> tuple[int, int] | None:
    """(length, where what it measures begins) of a text or an array; of anything else -1, and None when bytes are missing."""
    if at >= len(data):
        return None
    kind = data[at]
    if kind & ~mask == short:
        return kind & mask, at + 1
    size = longer.get(kind)
    if size is None:
        return -1, at
    if len(data) < at + 1 + size:
        return None
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size
