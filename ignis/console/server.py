"""Serves the console until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
from collections.abc import Callable

from ignis.console.asgi import Console
from ignis.console.http_server import Server
from ignis.errors import AddressInUseError, ConfigError
from ignis.stop_signals import stop_signals

__all__ = ["listen", "serve"]

_INTERRUPTED = 130
"""The exit code of who was told twice."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ConfigError, AddressInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as exc:
        made.close()
        if exc.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{host}:{port}", "--bind") from exc
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    return made


def serve(console: Console, listening: socket.socket, tls: ssl.SSLContext | None, started: Callable[[], None]) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP. What is under way is answered; a second signal ends the process at once.

    Args:
        console: closed at the end.
        listening: from `listen`; closed at the end.
        tls: None = plain HTTP.
        started: called when requests are answered.
    """
    server = Server(console, tls, started)
    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += number != signal.SIGHUP  # a terminal that ends sends it twice
        if signals > 1:
            os._exit(_INTERRUPTED)
        console.services.closing.set()  # so that nobody waits on
        server.should_exit = True

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, on_signal, number)
        await server.serve(sockets=[listening])

    try:
        asyncio.run(main())
    finally:
        listening.close()
        console.close()
