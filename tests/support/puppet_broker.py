"""A broker that answers as a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack_connect
from ignis.broker.protocol.payloads import Connected
from ignis.native import FrameDecoder, encode_frame
from tests.support import WAIT_S

Script = Callable[[int, int, bytes], "bytes | None"]


class Puppet:
    """A broker that answers as a test wants: ``script(command, request_id, payload)`` gives bytes to send, None = to close."""

    def __init__(self, script: Script) -> None:
        self.seen: list[tuple[int, int]] = []
        self.payloads: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with connection:
            while True:
                try:
                    data = connection.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                decoder.feed(data)
                for command, request_id, payload in decoder.frames():
                    self.seen.append((command, request_id))
                    self.payloads.append(payload)
                    if command == Command.CONNECT:
                        answer: bytes | None = encode_frame(
                            Command.RESULT, request_id, pack_connect(Connected("puppet", 1 << 20, 100, 60_000))
                        )
                    else:
                        answer = self._script(command, request_id, payload)
                    if answer is None:
                        return
                    try:
                        connection.sendall(answer)
                    except OSError:  # the client has gone
                        return

    def __enter__(self) -> Puppet:
        return self

    def __exit__(self, *exc: object) -> None:
        _end(self._listener)
        self._threads[0].join(WAIT_S)  # none is added from here on
        for connection in self.connections:
            _end(connection)
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads)


def _end(sock: socket.socket) -> None:
    """Closing alone does not wake the thread that waits inside."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
