"""A small HTTP endpoint beside a service: health, metrics, figures for scalers. GET and HEAD only, on loopback by default.

The standard library's server, one thread per connection, with a bound on connections, in all and for each address, on
request time and on the size of what is read. When all places are taken, another address takes one of the address that has
most of them. It shows figures and never a message. On loopback it answers only requests for this machine's own names: a page in
a browser must not read it by a name that leads here (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol

import msgspec

from ignis.config import shown
from ignis.errors import AddressInUseError, ConfigError, IgnisError, TooManyRequestsError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.places import Places, network_of_connection
from ignis.stacks import start_thread

__all__ = [
    "Exposition",
    "HttpEndpoint",
    "Reply",
    "Route",
    "json_reply",
    "metrics_route",
    "names_this_machine",
    "parse_bind",
    "yes_or_no",
]

log = logging.getLogger("ignis.http_endpoint")

JSON = "application/json"
_REQUEST_TIMEOUT_S = 10.0
"""Of one read or write."""
_CONNECTION_S = 30.0
"""Of a connection, from accept to its end: for who sends or reads a little now and then."""
_MAX_CONNECTIONS = 32
_MAX_PER_ADDRESS = 16
_PAUSE_S = 0.1
"""When nothing can be accepted, for want of files or memory."""


class Reply(NamedTuple):
    """What a route answers."""

    status: int
    body: bytes
    content_type: str = JSON


Route = Callable[[str], Reply]
"""``route(rest)``: answers a GET; ``rest`` is the path behind the route's own."""


def json_reply(status: int, value: object) -> Reply:
    """A line of JSON."""
    return Reply(status, msgspec.json.encode(value) + b"\n")


def yes_or_no(yes: bool, why_not: str) -> Reply:
    """What a probe of an orchestrator is answered: 200, or 503 with the reason."""
    return json_reply(200, {"status": "ok"}) if yes else json_reply(503, {"status": "failing", "error": why_not})


_MISDIRECTED = json_reply(
    421, {"error": "the request's Host is not a name of this machine: ask for localhost, 127.0.0.1 or [::1]"}
)


_NO_HEADER = json_reply(400, {"error": "a line of the request's head is no header: a name, a colon behind it, a value"})

_NO_METRICS = "prometheus-client is missing: pip install 'ignis-mq[metrics]'"


class Exposition(Protocol):
    """Metrics as text, see `ignis.metrics.Exposition`."""

    content_type: str

    def text(self) -> bytes: ...


def metrics_route(make: Callable[[], Exposition]) -> Route:
    """What ``/metrics`` answers; 501 where the package that ``make`` needs is missing, which is logged now."""
    try:
        exposition = make()
    except ModuleNotFoundError:
        log.warning(event_text("metrics_missing", "/metrics will answer 501: %s"), _NO_METRICS)
        return lambda rest: json_reply(501, {"error": _NO_METRICS})
    return lambda rest: Reply(200, exposition.text(), exposition.content_type)


def parse_bind(text: str, *, public: bool = False) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT`` (loopback); port 0 = any free one.

    Raises ConfigError for nonsense, and for an address that others can reach unless ``public``: the endpoint asks nobody
    who he is.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"bind address {shown(text)} is not HOST:PORT with a port of 0 to 65535")
    if not public and not _loopback(host):
        raise ConfigError(
            f"bind address {shown(text)} can be reached from outside and asks nobody who he is: say --public-bind"
        )
    return host, int(port)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|((?:[a-z0-9_-]+\.)*[a-z0-9_-]+)\.?)(?::[0-9]*)?")
"""An address of IPv6 in brackets, or a name or an address of IPv4, each with a port or without one; in small letters."""


def names_this_machine(header: str, bound: str) -> bool:
    """Whether the Host of a request is ``localhost``, a name below it, an address in digits, or the bound name. A page that came
    here by DNS rebinding can have none of them: a browser sends the name that the page was loaded from. What is not just a host
    and a port, such as a folded header, is none either: others may read it as another name than we do."""
    parts = _HOST.fullmatch(header.strip(" \t").lower())
    if parts is None:
        return False
    address, name = parts.groups()
    if name is not None and (name in ("localhost", bound.lower()) or name.endswith(".localhost")):
        return True
    try:
        ipaddress.IPv4Address(name) if address is None else ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Route]) -> None:
        self.bound = address[0]
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.routes = routes
        self.said = LimitedLog(log)
        self._lock = threading.Lock()
        self._places: Places[socket.socket] = Places(
            _MAX_CONNECTIONS, "connections of the endpoint", _MAX_PER_ADDRESS, "connections of one address"
        )
        self._began: dict[socket.socket, tuple[float, str]] = {}
        """When each began, and what it is counted under."""
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as exc:
            # What waits to be accepted would wake this thread again at once.
            if exc.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        network = network_of_connection(request, client_address)
        with self._lock:
            admitted = self._admit(network, request)
        if not admitted:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had: who calls this closes the connection
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def service_actions(self) -> None:
        """Between two looks for connections: ends those that take too long."""
        overdue_s = time.monotonic() - _CONNECTION_S
        with self._lock:
            for request, (began_s, _) in self._began.items():
                if began_s < overdue_s:
                    _cut(request)

    def _admit(self, network: str, request: socket.socket) -> bool:
        try:
            self._places.check(network)
        except TooManyRequestsError as exc:
            log.debug(event_text("http_refused", "%s refused: %s"), network, exc)
            return False
        if self._places.full:
            # Those that were displaced have a thread until they notice.
            oldest = None if len(self._began) >= 2 * _MAX_CONNECTIONS else self._places.displace(network)
            if oldest is None:
                return False
            _cut(oldest)
        self._places.enter(network, request)
        self._began[request] = time.monotonic(), network
        return True

    def _leave(self, request: socket.socket) -> None:
        with self._lock:
            began = self._began.pop(request, None)
            if began is not None:
                self._places.leave(began[1], request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug(event_text("http_request_ended", "request of %s ended early: %s"), client_address, sys.exc_info()[1])


def _cut(request: socket.socket) -> None:
    """Ends the connection; its thread finds out and closes it."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S
    server_version = "ignis"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.headers.defects:  # what the parser did not take for a header could be another Host
            reply = _NO_HEADER
        else:
            reply = self._reply(path) if self._meant_for_us() else _MISDIRECTED
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(reply.body)

    def _meant_for_us(self) -> bool:
        """Whether it may be answered. Who is bound for all to reach is reached by names that we do not know."""
        bound = self.server.bound
        return not _loopback(bound) or all(names_this_machine(one, bound) for one in self.headers.get_all("Host", ()))

    def _reply(self, path: str) -> Reply:
        for name, route in self.server.routes.items():
            if path == name or (name.endswith("/") and path.startswith(name)):
                try:
                    return route(path[len(name) :])
                except IgnisError as exc:  # of the store, most of all: no fault of this program
                    self.server.said.warning(
                        event_text("http_not_answered", "%s cannot be answered now: %s"),
                        _escaped(path),
                        exc,
                        about=name,
                    )
                    return json_reply(503, {"error": type(exc).__name__})
                except Exception as exc:
                    self.server.said.error(
                        event_text("http_failed", "%s failed"), _escaped(path), about=name, exc_info=exc
                    )
                    return Reply(500, f'{{"error":"{type(exc).__name__}"}}'.encode())
        return Reply(404, b'{"error":"not found"}')

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        log.debug(event_text("http_request", "%s %s"), self.address_string(), _escaped(format % args))


def _escaped(text: str) -> str:
    """What a client sent, as one line without control characters: some of them rewrite what a terminal shows."""
    return text.encode("unicode_escape").decode("ascii")


class HttpEndpoint:
    """Serves routes until closed. Thread-safe.

    Args:
        bind: see `parse_bind`.
        routes: path -> what answers it; a path that ends in ``/`` answers for everything below.
        public: whether an address that others can reach is meant.
        setting: the option that gives the address.

    Raises AddressInUseError, and ConfigError when the address cannot be bound for another reason.
    """

    def __init__(
        self, bind: str, routes: Mapping[str, Route], *, public: bool = False, setting: str = "--health-bind"
    ) -> None:
        address = parse_bind(bind, public=public)
        try:
            self._server = _Server(address, routes)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise AddressInUseError(bind, setting) from exc
            raise ConfigError(f"cannot listen on {bind}: {exc.strerror or exc}") from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="ignis-http", daemon=True
        )
        start_thread(self._thread)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        host = str(self._server.server_address[0])
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
