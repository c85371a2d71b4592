"""The console as an ASGI application: requests become calls, and answers become responses. The only file that knows Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ignis.app import Ignis
from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.logins import Logins
from ignis.config import check_whole
from ignis.console.access import Access, Asked, Visitor, cookie_in, cookie_name
from ignis.console.audit import AuditLog
from ignis.console.body_room import BodyRoom, Share
from ignis.console.call import Answer, Call, Services
from ignis.console.choice import Wanted
from ignis.console.documents import FILES, Document, Strangers, api_document, file_document
from ignis.console.jobs import Jobs
from ignis.console.lanes import Lanes
from ignis.console.leases import Leases
from ignis.console.refusals import RefusedError, document_of, status_of
from ignis.console.requests import JSON, body_in, path_in, query_in, size_in
from ignis.console.roles import READ
from ignis.console.routes import PREFIX, ROUTES, ApiRoute
from ignis.console.sessions import Sessions
from ignis.console.snapshot import Snapshot
from ignis.console.waiting import FOR_OPERATORS, Places
from ignis.errors import IgnisError, TooManyRequestsError
from ignis.log_limit import LimitedLog
from ignis.upkeep import WorkThreads, in_thread

__all__ = ["Console", "application"]

log = logging.getLogger("ignis.console")

T = TypeVar("T")

_THREADS = 16
_LOGINS = 2
_READERS = 8
_READERS_OF_A_USER = 4
"""Requests that read messages: the other threads are for what takes no time."""
_PIECE_BYTES = 64 << 10
_READ_S = 30.0
_LEAST_BYTES_PER_S = 256 << 10
"""In so many seconds, and one more for so many bytes, an answer is read, or given up."""
_LEAVING = 8
"""Threads for requests that have lost their place to others and are about to be answered."""
_MOST_WAITING = 1_000
_KNOWN = "ignis.known"
"""Where a request's scope says that it is somebody's."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_UNTOLD = frozenset(
    {"messages", "receipts", "password", "token", "body", "body_text", "body_base64", "headers", "error"}
)
"""What a request says that the audit log does not repeat: contents and secrets."""


def application(
    store: str | Ignis,
    /,
    *,
    users: str | os.PathLike[str] | None = None,
    anyone: str = READ,
    origins: Collection[str] = (),
    audit: str | os.PathLike[str] | None = None,
    host_checked: bool = True,
    secure: bool = False,
    idle_s: float = 1_800.0,
    most_s: float = 43_200.0,
    max_body_bytes: int = 4 << 20,
    max_waiting: int = 24,
    max_waiting_per_user: int = 12,
    **options: Any,
) -> Console:
    """The console of a store, as an ASGI application: to be served by itself or mounted in another.

    Args:
        store: its URL, or an application on it, which then stays open when the console closes.
        users: the users file, as ``ignis broker user`` writes it; None = nobody logs in.
        anyone: the role of everybody, where there is no users file: ``read``, ``operate`` or ``admin``.
        origins: further origins that are the console's own, such as ``https://queues.example`` of a proxy.
        audit: the file that gets a line for each change; None = the log ``ignis.console.audit``.
        host_checked: whether requests must be for a name of this machine. False where others reach the console.
        secure: whether browsers send the session's cookie by TLS only. It is so anyhow for who logs in by TLS.
        idle_s, most_s: a session ends after so many seconds without a request, and so many after its login.
        max_body_bytes: of one request.
        max_waiting: pulls that wait for messages at a time, each in a thread that mostly sleeps.
        max_waiting_per_user: of these, those of one user.
        options: of `Ignis`, where ``store`` is a URL: ``client_id``, ``farm_id``, ``config``, ...

    Raises ConfigError, also for a users file that cannot be read. The store is opened with the first request that needs it.
    """
    check_whole(max_body_bytes, "max_body_bytes", 1)
    check_whole(max_waiting, "max_waiting", 1, _MOST_WAITING)
    check_whole(max_waiting_per_user, "max_waiting_per_user", 1, _MOST_WAITING)
    access = Access(
        None if users is None else UsersFile(users), anyone, Sessions(idle_s, most_s), origins=origins,
        host_checked=host_checked,
    )  # fmt: skip
    owned = isinstance(store, str)
    app = Ignis(store, **options) if isinstance(store, str) else store
    services = Services(
        app, owned, access, AuditLog(audit), Snapshot(lambda: app.store), Jobs(), Leases(lambda: app.store)
    )
    return Console(
        services, secure=secure, max_body_bytes=max_body_bytes, max_waiting=max_waiting,
        max_waiting_per_user=max_waiting_per_user,
    )  # fmt: skip


class Console:
    """An ASGI application. `close` it after its server has stopped; where a server runs its lifespan, that does it."""

    def __init__(
        self,
        services: Services,
        *,
        secure: bool = False,
        max_body_bytes: int = 4 << 20,
        max_waiting: int = 24,
        max_waiting_per_user: int = 12,
    ) -> None:
        self.services = services
        self._secure = secure
        self._max_body_bytes = max_body_bytes
        self._said = LimitedLog(log)
        self._pool = WorkThreads(_THREADS, "ignis-console")
        self._waiting = WorkThreads(max_waiting + FOR_OPERATORS + _LEAVING, "ignis-console-wait")
        self._checking = WorkThreads(_LOGINS, "ignis-console-login")
        self.places = Places(max_waiting, max_waiting_per_user)
        self.room = BodyRoom()
        self.lanes = Lanes(_READERS, _READERS_OF_A_USER)
        self._strangers = Strangers()
        self._logins: Logins | None = None
        self._closed = threading.Lock()
        self._is_closed = False
        by_path: dict[str, list[ApiRoute]] = defaultdict(list)
        for row in ROUTES:
            by_path[PREFIX + row.path].append(row)
        # What anybody may ask for comes first: it is found without a look at the others.
        found = [Route(path, partial(self._file, *file)) for path, file in FILES.items()]
        found.append(Route(f"{PREFIX}/openapi.json", self._openapi))
        found += [
            Route(
                path, partial(self._endpoint, {row.method: row for row in rows}), methods=[row.method for row in rows]
            )
            for path, rows in by_path.items()
        ]
        starlette = Starlette(
            routes=found,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._not_served},
        )
        starlette.router.redirect_slashes = False  # nowhere but here, whatever the Host
        self._app: ASGIApp = starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = {**_HEADERS, **({"strict-transport-security": "max-age=31536000"} if _by_tls(scope) else {})}
                if self._strangers.answered(scope.get("client"), bool(scope.get(_KNOWN))):
                    headers["connection"] = "close"
                message = {
                    **message,
                    "headers": [*message["headers"], *((one.encode(), said.encode()) for one, said in headers.items())],
                }
            await send(message)

        await self._app(scope, receive, send_guarded)

    def close(self) -> None:
        """Ends what runs and waits, gives back what programs have leased, and closes the store where it is the console's own.
        Idempotent. Blocks: not for an event loop's thread."""
        with self._closed:
            if self._is_closed:
                return
            self._is_closed = True
            self.services.closing.set()
            for pool in (self._checking, self._waiting, self._pool):
                pool.shutdown(wait=True, cancel_futures=True)
            self.services.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> Any:
        yield
        await in_thread(self.close)

    # -- what is no call of the API

    async def _file(self, name: str, kind: str, request: Request) -> Response:
        return self._misdirected(request) or _tagged(file_document(name), kind, request)

    async def _openapi(self, request: Request) -> Response:
        root = request.scope.get("root_path", "") or "/"
        return self._misdirected(request) or _tagged(api_document(root), JSON, request)

    def _misdirected(self, request: Request) -> Response | None:
        try:
            self.services.access.check_host(self._asked(request))
        except RefusedError as exc:
            return _refusal(exc)
        return None

    async def _not_served(self, request: Request, exc: Exception) -> Response:
        if (elsewhere := self._misdirected(request)) is not None:
            return elsewhere
        status = exc.status_code if isinstance(exc, HTTPException) else 500
        code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
        headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
        if status == 405 and "Allow" in headers:  # in one order, and without what only Starlette added
            headers["Allow"] = ", ".join(sorted(headers["Allow"].replace(" ", "").split(",")))
        text = {
            404: f"there is nothing at this path: {PREFIX}/overview has the queues, {PREFIX}/openapi.json lists every path",
            405: f"this path takes other methods, as {PREFIX}/openapi.json says",
        }.get(status, "bad request")
        return _json(document_of(RefusedError(code, text)), status, headers)

    def _asked(self, request: Request) -> Asked:
        client, scheme = request.client, request.scope["scheme"]
        return Asked(
            request.headers,
            cookie_in(request.headers, self._cookie_name(request.headers, scheme)),
            scheme,
            None if client is None else (client.host, client.port),
        )

    def _cookie_name(self, headers: Mapping[str, str], scheme: str) -> str:
        return cookie_name(headers, scheme, self._secure or scheme == "https")

    # -- calls

    async def _endpoint(self, rows: dict[str, ApiRoute], request: Request) -> Response:
        row = rows["GET" if request.method == "HEAD" else request.method]
        asked = self._asked(request)
        call: Call | None = None
        room = self.room.of(None, 0)
        try:
            visitor = await self._in_thread(partial(self._visitor, row, asked))
            request.scope[_KNOWN] = visitor.via != "nobody"
            call = Call(self.services, visitor, asked, request.path_params)
            await self._in_thread(partial(self._admit, row, call))
            call.query = query_in(row, request.query_params.multi_items())
            who = None if self.services.access.open else visitor.name
            room = call.room = self.room.of(who, size_in(row, request.headers, self._max_body_bytes))
            call.body = await body_in(row, request.headers, request.stream(), self._max_body_bytes, room.take)
            answer, data = await self._answered(row, call, request)
            response = self._response(answer, data, room, asked)
        except ClientDisconnect:
            room.close()
            return Response(status_code=400)
        except Exception as exc:
            if not isinstance(exc, IgnisError):
                self._said.error("%s %s failed", row.method, row.path, about=row.path, exc_info=exc)
            room.close()
            response = _refusal(exc)
        except BaseException:
            room.close()
            raise
        if row.mutating and call is not None and (row.asks_first or call.admitted or call.visitor.known):
            try:
                await self._in_thread(partial(self._audit, row, call, path_in(request.scope), response.status_code))
            except BaseException:
                room.close()
                raise
        return response

    def _visitor(self, row: ApiRoute, asked: Asked) -> Visitor:
        """Who asks. Raises what refuses a request whoever it is of."""
        access = self.services.access
        access.check_host(asked)
        visitor = access.visitor(asked)
        if row.asks_first:
            access.check_origin(asked, missing=True)
        return visitor

    def _admit(self, row: ApiRoute, call: Call) -> None:
        """Raises what refuses it to its visitor: this and `_visitor` are all that stands between a request and its handler."""
        if not row.asks_first:
            call.visitor.require(row.needs, call.path.get("queue"))
            if row.mutating:
                self.services.access.check_change(call.visitor, call.asked)
        call.admitted = True

    async def _answered(self, row: ApiRoute, call: Call, request: Request) -> tuple[Answer, bytes]:
        if row.asks_first:
            answer = await self._in_line(call, row)
            return answer, msgspec.json.encode(answer.value)
        who = None if self.services.access.open else call.visitor.name
        work = partial(_made, row, call)
        if row.waits and call.body.wait_s > 0:
            program = row.group == "gateway"
            with self.places.of_program(who, call.enough) if program else self.places.of_operator(who):
                return await self._in_waiting_thread(work, call.gone, request)
        if not row.reads:
            return await self._in_thread(work)
        async with self.lanes.of(who):
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _in_waiting_thread(self, work: Callable[[], T], gone: threading.Event, request: Request) -> T:
        """For what may take seconds. When the client leaves meanwhile, ``gone`` is set."""
        watching = asyncio.create_task(_watch(request.receive, gone))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._waiting, work)
        finally:
            watching.cancel()

    async def _in_line(self, call: Call, row: ApiRoute) -> Answer:
        """A login: two passwords are checked at a time, and the addresses take turns."""
        loop = asyncio.get_running_loop()
        if self._logins is None:
            self._logins = Logins(loop.call_later)
        logins = self._logins
        answer: asyncio.Future[Answer] = loop.create_future()

        def begin() -> None:
            checked = loop.run_in_executor(self._checking, row.handler, call)
            checked.add_done_callback(ended)

        def ended(checked: asyncio.Future[Answer]) -> None:
            logins.left()
            if answer.done():
                return
            exc = None if checked.cancelled() else checked.exception()
            if checked.cancelled() or exc is not None:
                answer.set_exception(exc or RefusedError("too_many_requests", "the console ends"))
            else:
                answer.set_result(checked.result())

        def refused(exc: BaseException) -> None:
            if not answer.done():
                answer.set_exception(exc)

        logins.enter(begin, refused, answer.done, call.asked.network, call.body.user)
        return await answer

    def _response(self, answer: Answer, data: bytes, room: Share, asked: Asked) -> Response:
        response = _HeldResponse(data, answer.status, room)
        if answer.cookie is not None:
            response.set_cookie(
                self._cookie_name(asked.headers, asked.scheme),
                answer.cookie,
                max_age=int(self.services.access.sessions.most_s) if answer.cookie else 0,
                httponly=True,
                samesite="strict",
                secure=self._secure or asked.scheme == "https",
            )
        return response

    def _audit(self, row: ApiRoute, call: Call, path: str, status: int) -> None:
        said = {} if call.body is None else msgspec.structs.asdict(call.body)
        told = {name: value for name, value in said.items() if name not in _UNTOLD and value is not msgspec.UNSET}
        if isinstance(where := told.get("where"), Wanted):
            told["where"] = where.told()
        user = call.audited.pop("user", call.visitor.name)
        entry = {
            "user": user, "via": call.visitor.via, "from": call.asked.network, "method": row.method,
            "path": path[:500], "status": status, "asked": told, **call.audited,
        }  # fmt: skip
        if row.asks_first and status >= 400:
            self.services.audit.write_refused_login(entry)
        else:
            self.services.audit.write(entry)


def _made(row: ApiRoute, call: Call) -> tuple[Answer, bytes]:
    """What is answered, and its JSON, which is made in the thread too: of a large one it takes a while."""
    try:
        found = row.handler(call)
        answer = found if isinstance(found, Answer) else Answer(found)
        data = msgspec.json.encode(answer.value)
        answer.value = found = None
        call.room.settle(len(data))
    except IgnisError as exc:
        # Its frames have what was read, and would have it until the garbage collector comes by.
        exc.__context__ = None
        raise exc.with_traceback(None) from None
    return answer, data


class _HeldResponse(Response):
    """An answer that has its memory until its client has read it, or has had the time to."""

    def __init__(self, data: bytes, status: int, room: Share) -> None:
        super().__init__(None, status, {"cache-control": "no-store", "content-length": str(len(data) + 1)}, JSON)
        self._data = data
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            if len(self._data) <= _PIECE_BYTES:
                await send(start)
                await send({"type": "http.response.body", "body": self._data + b"\n"})
                return
            # Without its end the server closes the connection: nothing that is cut off looks whole.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._send(start, send), _READ_S + len(self._data) / _LEAST_BYTES_PER_S)
        finally:
            self._data = b""
            self._room.close()

    async def _send(self, start: Message, send: Send) -> None:
        """In pieces: the server takes one when the client has read most of those before."""
        await send(start)
        for at in range(0, len(self._data), _PIECE_BYTES):
            await send({"type": "http.response.body", "body": self._data[at : at + _PIECE_BYTES], "more_body": True})
        await send({"type": "http.response.body", "body": b"\n"})


async def _watch(receive: Callable[[], Awaitable[Message]], gone: threading.Event) -> None:
    """Until the client leaves. What else it sends is none of the request's."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value) + b"\n", status, {"cache-control": "no-store", **(headers or {})}, media_type=JSON
    )


def _tagged(found: Document, kind: str, request: Request) -> Response:
    headers = {"cache-control": "no-cache", "etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.data, media_type=kind, headers=headers)


def _refusal(exc: BaseException) -> Response:
    headers = dict(exc.headers) if isinstance(exc, RefusedError) else {}
    status = status_of(exc)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        known_s = exc.retry_after_s if isinstance(exc, TooManyRequestsError) else 0
        headers.setdefault("Retry-After", str(max(1, known_s)))
    return _json(document_of(exc), status, headers)


def _by_tls(scope: Scope) -> bool:
    return scope.get("scheme") == "https"
