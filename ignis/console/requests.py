"""What a request says, read and checked: its path, the query, the body. Bounded before it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ignis.console.refusals import RefusedError
from ignis.console.routes import ApiRoute
from ignis.errors import BadRequestError

__all__ = ["JSON", "body_in", "path_in", "query_in"]

JSON = "application/json"
_MOST_LOGIN_BYTES = 16 << 10
"""Whoever logs in has not said who they are yet."""


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


async def body_in(row: ApiRoute, headers: Mapping[str, str], pieces: AsyncIterator[bytes], most_bytes: int) -> Any:
    """What was sent, as the route wants it. One that says it is too large is refused unread. Raises RefusedError,
    BadRequestError."""
    if row.body is None:
        return None
    most = min(most_bytes, _MOST_LOGIN_BYTES) if row.asks_first else most_bytes
    said = headers.get("content-length", "")
    if said.isascii() and said.isdecimal() and int(said[:20]) > most:
        raise _too_large(most)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    data = bytearray()
    async for piece in pieces:
        if piece and kind != JSON:
            raise RefusedError("unsupported_media_type", f"send the body as {JSON}", _ends())
        data += piece
        if len(data) > most:
            raise _too_large(most)
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=row.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise BadRequestError(str(exc)) from None


def _too_large(most: int) -> RefusedError:
    return RefusedError("body_too_large", f"this request has at most {most} bytes", _ends())


def _ends() -> dict[str, str]:
    """Ends the connection: what follows of the body is not read."""
    return {"Connection": "close"}
