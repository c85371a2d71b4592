"""What a request says, read and checked: who asks, the query, the body. Bounded before it is read."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from ignis.console.access import COOKIE, Asked
from ignis.console.refusals import RefusedError
from ignis.console.routes import ApiRoute
from ignis.errors import BadRequestError

__all__ = ["JSON", "asked_in", "body_in", "path_in", "query_in"]

JSON = "application/json"
_MOST_LOGIN_BYTES = 16 << 10
"""Whoever logs in has not said who they are yet."""


def asked_in(request: Request) -> Asked:
    """What says who asks."""
    client = request.client
    return Asked(
        request.headers,
        request.cookies.get(COOKIE, ""),
        request.url.scheme,
        None if client is None else (client.host, client.port),
    )


def path_in(request: Request) -> str:
    """The path as it was sent, escapes and all: what it stands for could begin a line of its own, or vanish on the way."""
    raw = request.scope.get("raw_path")
    if isinstance(raw, bytes):
        return raw.partition(b"?")[0].decode("ascii", "backslashreplace")
    return quote(request.scope["path"], errors="surrogatepass")


def query_in(row: ApiRoute, request: Request) -> Any:
    """The query, as the route wants it. Raises BadRequestError."""
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    if row.query is None:
        return None
    if len(set(names)) != len(names):
        raise BadRequestError("each part of the query may be given once")
    try:
        return msgspec.convert(dict(given), row.query, strict=False)
    except msgspec.ValidationError as exc:
        raise BadRequestError(str(exc)) from None


async def body_in(row: ApiRoute, request: Request, most_bytes: int) -> Any:
    """What was sent, as the route wants it. One that says it is too large is refused unread. Raises RefusedError,
    BadRequestError."""
    if row.body is None:
        return None
    most = min(most_bytes, _MOST_LOGIN_BYTES) if row.asks_first else most_bytes
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdecimal() and int(said[:20]) > most:
        raise _too_large(most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = bytearray()
    async for piece in request.stream():
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
