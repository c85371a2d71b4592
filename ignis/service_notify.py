"""Tells systemd how a service is: ready, stopping, alive. The protocol of ``sd_notify(3)``, a datagram to ``NOTIFY_SOCKET``.

Without that variable nothing is done. There is no package for it that is kept up and needs no C library of systemd's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping

from ignis.stacks import start_thread

__all__ = ["ServiceNotifier", "notify"]

log = logging.getLogger("ignis.service")

_LOOK_S = 0.25
"""Between two looks whether the service has begun to stop."""


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Sends assignments such as ``READY=1``, one on a line. False where there is no service manager, or it is not reached."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # an abstract name
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(1.0)
            sending.sendto(state.encode(), address)
    except OSError as exc:
        log.warning(
            "the service manager is not told %s: %s", state.partition("=")[0], exc,
            extra={"event": "service_manager_not_told"},
        )  # fmt: skip
        return False
    return True


class ServiceNotifier:
    """Tells the service manager that this process is ready, then that it lives, then that it stops. A context manager.

    Args:
        stopping: whether the service has begun to stop.
        alive: whether it works. While it does not, the watchdog is not told, and systemd starts the service anew. May block:
            that counts as not alive.
    """

    def __init__(self, stopping: Callable[[], bool], alive: Callable[[], bool] = lambda: True) -> None:
        self._stopping = stopping
        self._alive = alive
        self._watchdog_s = _watchdog_s(os.environ)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def ready(self) -> None:
        """The service works. Called once; from any thread."""
        if not notify(f"READY=1\nMAINPID={os.getpid()}"):
            return
        self._thread = threading.Thread(target=self._attend, name="ignis-notify", daemon=True)
        start_thread(self._thread)

    def close(self) -> None:
        """The service has ended. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def __enter__(self) -> ServiceNotifier:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _attend(self) -> None:
        told_stopping = False
        since_s = self._watchdog_s or 0.0
        while True:
            over = self._ended.is_set()
            if not told_stopping and (over or self._stopping()):
                told_stopping = notify("STOPPING=1")
            if over:
                return
            if self._watchdog_s is not None and since_s >= self._watchdog_s:
                since_s = 0.0
                # While it drains it is alive as well: how long that may take systemd knows.
                with contextlib.suppress(Exception):
                    if told_stopping or self._alive():
                        notify("WATCHDOG=1")
            self._ended.wait(_LOOK_S)
            since_s += _LOOK_S


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life: a third of what systemd waits. None = it does not wait for any from this process."""
    period_us, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not period_us.isdecimal() or not int(period_us) or (pid and pid != str(os.getpid())):
        return None
    return int(period_us) / 3e6
