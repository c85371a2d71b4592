"""What of a large frame is known from its first bytes: whether it may be sent at all. No I/O.

A frame grows in memory while it arrives. One whose sender may not make the request, or that no request can be, is refused
as soon as its command and the name it is about have come; the rest of it is read and dropped.
"""

from __future__ import annotations

import struct

from ignis.broker.protocol.commands import ANSWERS, MAX_HEAD_BYTES, PRE_AUTH_FRAME_BYTES, Command
from ignis.broker.protocol.encoding import head_bytes
from ignis.broker.protocol.row_count import MAX_NAME_BYTES, ROWS, check_row_count
from ignis.broker.protocol.table import LARGE, WHOLE
from ignis.errors import BadRequestError, ConfigError, IgnisError

__all__ = ["HEAD_BYTES", "SCREENED_BYTES", "Unfit", "name_at_head", "refusal"]

SCREENED_BYTES = PRE_AUTH_FRAME_BYTES
"""Frames up to this size come to the end before anything is decided."""
_MOST_BYTES = MAX_HEAD_BYTES
"""The largest request that has no records, pointers or values: as much as one read may bring anyway."""
_FRAME = struct.Struct(">ihq")
HEAD_BYTES = _FRAME.size + 2 * MAX_NAME_BYTES + 64
"""Bytes at the beginning of a frame that are enough to decide: two names, and the lengths of what stands around them."""

_SENDS = frozenset({Command.SEND, Command.SEND_BATCH})


def refusal(command: int, payload: bytes) -> IgnisError | None:
    """Why a request that is not one of records is refused before it is decoded: a head larger than any of this command can be, or
    too many rows. None as a rule."""
    try:
        if command not in WHOLE:
            _check_head_bytes(command, head_bytes(payload))
        elif command in ROWS:
            check_row_count(command, payload, 4)
    except (BadRequestError, ConfigError) as exc:
        return exc.with_traceback(None)  # which would keep the frames of all callers, and so what was read into, in use
    except ValueError as exc:
        return BadRequestError(f"{Command(command).name} of {len(payload)} bytes: {exc}")
    return None


def _check_head_bytes(command: int, size: int) -> None:
    """Raises BadRequestError."""
    if size > MAX_HEAD_BYTES and command not in WHOLE:
        raise BadRequestError(
            f"{Command(command).name} with a head of {size} bytes; at most {MAX_HEAD_BYTES} are allowed"
        )


def name_at_head(head: bytes, frame_bytes: int) -> tuple[int, int, str] | None:
    """(command, request id, name) of a frame over `SCREENED_BYTES`, the name empty where the command says enough; None when
    more bytes are needed.

    Args:
        head: its first bytes, up to `HEAD_BYTES`.
        frame_bytes: its size.

    Raises `Unfit`, with the reason: the frame is no request that could be carried out.
    """
    if len(head) < _FRAME.size:
        return None
    _, command, request_id = _FRAME.unpack_from(head)
    if command not in LARGE:
        if frame_bytes > _MOST_BYTES and command not in ANSWERS:
            what = Command(command).name if command in Command._value2member_map_ else f"command {command}"
            raise Unfit(
                request_id, BadRequestError(f"{what} of {frame_bytes} bytes; at most {_MOST_BYTES} are allowed")
            )
        return command, request_id, ""
    try:
        if command in _SENDS:
            name = _sent_name(head)
        else:
            _check_head_bytes(command, head_bytes(head[_FRAME.size :]))
            name = _first_text(head)
            if command in ROWS and name is not None and not check_row_count(command, head, _FRAME.size + 4):
                name = None
    except (BadRequestError, ConfigError) as exc:
        raise Unfit(request_id, exc) from None
    except ValueError as exc:
        raise Unfit(request_id, BadRequestError(f"{Command(command).name} of {frame_bytes} bytes: {exc}")) from None
    return None if name is None else (command, request_id, name)


class Unfit(Exception):
    """A frame that may not be sent. ``reason`` is what to answer to ``request_id``."""

    def __init__(self, request_id: int, reason: IgnisError) -> None:
        super().__init__(str(reason))
        self.request_id = request_id
        self.reason = reason.with_traceback(None)  # as in `refusal`


def _sent_name(head: bytes) -> str | None:
    """``u16 name_bytes | name``; None when it is not all there. Raises ValueError."""
    at = _FRAME.size
    if len(head) < at + 2:
        return None
    return _text(head, at + 2, int.from_bytes(head[at : at + 2], "big"))


def _first_text(head: bytes) -> str | None:
    """``u32 head_bytes``, then a MessagePack array that begins with a text; None when it is not all there. Raises
    ValueError."""
    at = _FRAME.size + 4
    if len(head) < at + 10:
        return None
    array = head[at]
    if array & 0xF0 == 0x90:
        at += 1
    elif array in (0xDC, 0xDD):
        at += 3 if array == 0xDC else 5
    else:
        raise ValueError("its head is no array")
    kind = head[at]
    if kind & 0xE0 == 0xA0:
        return _text(head, at + 1, kind & 0x1F)
    size = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(kind)
    if size is None:
        raise ValueError("its head does not begin with a name")
    if len(head) < at + 1 + size:
        return None
    return _text(head, at + 1 + size, int.from_bytes(head[at + 1 : at + 1 + size], "big"))


def _text(head: bytes, at: int, size: int) -> str | None:
    if size > MAX_NAME_BYTES:
        raise ValueError(f"its name has {size} bytes; at most {MAX_NAME_BYTES} are allowed")
    if len(head) < at + size:
        return None
    return head[at : at + size].decode("utf-8")  # UnicodeDecodeError is a ValueError
