"""The head of a request, looked at before anything parses it: its size, its lines, how its body is delimited. No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["MOST_BYTES", "MOST_LINES", "HeadReader", "Unfit", "unfit"]

MOST_BYTES = 16 << 10
MOST_LINES = 100
"""Parsing costs by the line more than by the byte."""

_END = re.compile(rb"\n\r?\n")
_FRAMED = re.compile(rb"\n[ \t]*transfer-encoding", re.IGNORECASE)


class Unfit(NamedTuple):
    """Why a request is not parsed: the status and the code that it is answered with."""

    status: int
    code: str
    text: str


_LARGE = Unfit(
    431, "head_too_large", f"a request's head has at most {MOST_BYTES} bytes and {MOST_LINES} lines: send fewer headers"
)
_UNSIZED = Unfit(
    411, "length_required", "a request says the length of its body (Content-Length): Transfer-Encoding is not taken"
)


class HeadReader:
    """Gathers the bytes of a connection until a head is complete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._end = -1
        """Where the head ends; -1: not yet."""

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> bool:
        """Takes what came; returns whether there is a head to `take`, or one that has become too large."""
        begun = len(self._data)
        self._data += data
        if self._end < 0:
            found = _END.search(self._data, max(0, begun - 2), MOST_BYTES)
            self._end = -1 if found is None else found.end()
        return self._end >= 0 or len(self._data) > MOST_BYTES

    def take(self) -> tuple[bytes, bytes] | Unfit:
        """The head, and what came behind it. To be called after `add` has said so."""
        data, end = bytes(self._data), self._end
        self._data.clear()
        self._end = -1
        if end < 0:
            return _LARGE
        return unfit(data[:end]) or (data[:end], data[end:])


def unfit(head: bytes) -> Unfit | None:
    """Why a complete head is not to be parsed; None: it may be. A header costs by the line, and a body in chunks by the chunk, of
    which a stranger may send one for each byte."""
    if head.count(b"\n") > MOST_LINES + 1:  # and the empty one
        return _LARGE
    return _UNSIZED if _FRAMED.search(head) else None
