"""What a request says, read and checked: its path, the query, the body. Bounded before it is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ignis.console.body_room import decoded_bytes
from ignis.console.refusals import RefusedError
from ignis.console.routes import ApiRoute
from ignis.errors import BadRequestError

__all__ = ["JSON", "body_in", "path_in", "query_in", "size_in"]

JSON = "application/json"
_MOST_LOGIN_BYTES = 16 << 10
"""Whoever logs in has not said who they are yet."""
_BODY_S = 60.0
"""In which a body has come."""
_READ_ON = 4
"""So many times what a request may have is read, and thrown away, of one that has too much: who sends all of it before reading
finds the answer, and no broken connection."""
_READ_ON_S = 5.0


def path_in(scope: Mapping[str, Any]) -> str:
    """The path as it was sent, escapes and all: what it stands for could begin a line of its own, or vanish on the way."""
    raw = scope.get("raw_path")
    if isinstance(raw, bytes):
        return raw.partition(b"?")[0].decode("ascii", "backslashreplace")
    return quote(scope["path"], errors="surrogatepass")


def query_in(row: ApiRoute, given: Sequence[tuple[str, str]]) -> Any:
    """The query, as the route wants it. Raises BadRequestError."""
    names = [name for name, _ in given]
    if row.query is None:
        return None
    if len(set(names)) != len(names):
        raise BadRequestError("each part of the query may be given once")
    try:
        return msgspec.convert(dict(given), row.query, strict=False)
    except msgspec.ValidationError as exc:
        raise BadRequestError(str(exc)) from None


def size_in(row: ApiRoute, headers: Mapping[str, str], most_bytes: int) -> int:
    """How much memory the body may take. Nothing, where it is refused unread."""
    if row.body is None:
        return 0
    says = headers.get("content-length")
    if says is None:
        return most_bytes if "transfer-encoding" in headers else 0
    size = _number(says)
    return size if size <= most_bytes else 0


def _number(text: str) -> int:
    return int(text[:20]) if text.isascii() and text.isdecimal() else 0


async def body_in(
    row: ApiRoute,
    headers: Mapping[str, str],
    pieces: AsyncIterator[bytes],
    most_bytes: int,
    take: Callable[[int], None],
) -> Any:
    """What was sent, as the route wants it. One that says it is too large is refused unread. ``take``: takes the memory for
    what it is decoded to, before it is. Raises RefusedError, BadRequestError."""
    if row.body is None:
        return None
    try:
        return await asyncio.wait_for(_read(row, headers, pieces, most_bytes, take), _BODY_S)
    except asyncio.TimeoutError:
        raise RefusedError("body_too_slow", f"the body did not come within {_BODY_S:.0f} s", _ends()) from None


async def _read(
    row: ApiRoute,
    headers: Mapping[str, str],
    pieces: AsyncIterator[bytes],
    most_bytes: int,
    take: Callable[[int], None],
) -> Any:
    most = min(most_bytes, _MOST_LOGIN_BYTES) if row.asks_first else most_bytes
    says = _number(headers.get("content-length", ""))
    if says > most:
        if says <= _READ_ON * most and "expect" not in headers:  # who expects an answer first has sent nothing yet
            await _read_on(pieces, says)
        raise _too_large(most)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    data = bytearray()
    async for piece in pieces:
        data += piece
        if piece and kind != JSON:
            await _read_on(pieces, _READ_ON * most - len(data))
            raise RefusedError("unsupported_media_type", f"send the body as {JSON}", _ends())
        if len(data) > most:
            await _read_on(pieces, _READ_ON * most - len(data))
            raise _too_large(most)
    whole = bytes(data)
    take(decoded_bytes(whole))
    try:
        return msgspec.json.decode(whole or b"{}", type=row.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise BadRequestError(str(exc)) from None


async def _read_on(pieces: AsyncIterator[bytes], most: int) -> None:
    """Reads at most so many bytes, for at most `_READ_ON_S`."""

    async def read() -> None:
        count = 0
        async for piece in pieces:
            count += len(piece)
            if count >= most:
                return

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _READ_ON_S)


def _too_large(most: int) -> RefusedError:
    return RefusedError("body_too_large", f"this request has at most {most} bytes", _ends())


def _ends() -> dict[str, str]:
    """Ends the connection: what follows of the body is not read."""
    return {"Connection": "close"}
