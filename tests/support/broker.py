"""A broker in a thread of the test's process, and raw connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack_connect, unpack
from ignis.broker.protocol.payloads import Connect, Failure
from ignis.broker.server.dispatcher import Dispatcher
from ignis.broker.server.server import Broker
from ignis.native import FrameDecoder, encode_frame
from tests.support import WAIT_S

R = TypeVar("R")


class RunningBroker:
    """Started by the constructor on a free port; `stop` is idempotent. Settings as for `Broker`."""

    def __init__(self, store_url: str, *, uvloop: bool = True, at_port: int = 0, **options: Any) -> None:
        self.broker = Broker(store_url, port=at_port, **options)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._uvloop = uvloop
        self._thread = threading.Thread(target=self._run, name="test-broker", daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        loop = self.new_loop()
        try:
            loop.run_until_complete(self._serve())
        finally:
            loop.close()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """One of the kind that the broker runs on."""
        if self._uvloop:
            with contextlib.suppress(ImportError):
                import uvloop

                return uvloop.new_event_loop()
        return asyncio.new_event_loop()

    async def _serve(self) -> None:
        try:
            await self.broker.start()
        except BaseException as exc:
            self._failure = exc
            return
        finally:
            self._started.set()
        await self.broker.run()

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def url(self) -> str:
        return f"ignis://127.0.0.1:{self.port}"

    def on_loop(self, call: Callable[[], R]) -> R:
        """The result of a call in the broker's own thread, where its state may be looked at."""

        async def run() -> R:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.broker.loop).result(WAIT_S)

    def pumps(self) -> list[Dispatcher]:
        """Of all applications."""
        return [pump for application in self.broker.applications for pump in application.pumps]

    def client(self, **settings: Any) -> SyncClient:
        scope = {name: settings.pop(name) for name in list(settings) if name in BrokerAddress._fields}
        return SyncClient(BrokerAddress("127.0.0.1", self.port, **scope), settings)

    def refuses(self) -> bool:
        """Waits until nobody listens any more."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S).close()
            except OSError:
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        if self._thread.is_alive():
            self.broker.request_stop()
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()

    def __enter__(self) -> RunningBroker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Wire:
    """A client that says what it wants, rules or no rules."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._decoder = FrameDecoder()
        self._frames: list[tuple[int, int, bytes]] = []

    def send(self, command: int, request_id: int, payload: bytes = b"") -> None:
        self.raw(encode_frame(command, request_id, payload))

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_nothing_more(self) -> None:
        """The other side sees the end."""
        self.sock.shutdown(socket.SHUT_WR)

    def greet(self, **fields: Any) -> None:
        hello = {"client_id": "ignis", "farm_id": "local", "instance": "wire", **fields}
        self.send(Command.CONNECT, 1, pack_connect(Connect(**hello)))
        command, request_id, payload = self.receive()
        assert (command, request_id) == (Command.RESULT, 1), payload

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame; fails the test when none comes in time. Raises EOFError at the end of the connection."""
        while not self._frames:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._decoder.feed(data)
            self._frames += self._decoder.frames()
        return self._frames.pop(0)

    def failure(self) -> Failure:
        command, _, payload = self.receive()
        assert command == Command.ERROR, command
        return unpack(payload, Failure)[0]

    def closed(self) -> bool:
        """Waits for the broker to close the connection, reading what still comes."""
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextlib.contextmanager
def running(store_url: str, **options: Any) -> Iterator[RunningBroker]:
    """A broker for the length of a block."""
    with RunningBroker(store_url, **options) as broker:
        yield broker
