"""Ways to a server on this machine that can be cut so that nobody is told: packets vanish, connections stay.

As root, each way is a network namespace with a cable of its own, which is pulled. Elsewhere it is a proxy process, which is
stopped.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable

from tests.support.zookeeper import Link
from tests.torture.process import Child, Reporter, Role

__all__ = ["Cable", "ProxyWay", "Way", "cables_possible"]

_CLONE_NEWNET = 0x40000000
_WAIT_S = 10.0
_numbers = itertools.count()


class Way:
    """How one child reaches the server. ``address`` is known after `open`."""

    address: str

    def open(
        self, port: int, child: Callable[[Role, str], Child], wait: Callable[[Callable[[], bool], str], None]
    ) -> None:
        """Lays the way to ``port``."""

    def enter(self) -> None:
        """In the child, before it starts threads."""

    def cut(self) -> None:
        """Nothing passes any more."""

    def mend(self) -> None:
        """What is sent again arrives."""

    def close(self) -> None:
        """Idempotent."""


class ProxyWay(Way):
    """Over a process that passes everything on."""

    def open(
        self, port: int, child: Callable[[Role, str], Child], wait: Callable[[Callable[[], bool], str], None]
    ) -> None:
        self._proxy = proxy = child(_proxy(port), "proxy")
        wait(lambda: proxy.noted("port") is not None, "proxy")
        self.address = f"127.0.0.1:{proxy.noted('port')}"

    def cut(self) -> None:
        os.kill(self._proxy.pid, signal.SIGSTOP)

    def mend(self) -> None:
        os.kill(self._proxy.pid, signal.SIGCONT)


def _proxy(port: int) -> Role:
    def role(report: Reporter) -> None:
        report.note("port", Link(port).port)
        signal.pause()

    return role


class Cable(Way):
    """A network namespace and a pair of virtual devices. The server must listen on all addresses."""

    def __init__(self) -> None:
        number = next(_numbers)
        self._name = f"ignis-{os.getpid()}-{number}"
        self._device = f"ign{os.getpid() % 100_000}v{number % 1000}"
        # 198.18/15 is for tests of networks and routed nowhere.
        block = (os.getpid() % 500) * 256 + number % 64 * 4
        self._near, self._far = (f"198.{18 + (block >> 16)}.{block >> 8 & 255}.{(block & 255) + end}" for end in (1, 2))
        self._laid = False

    def open(
        self, port: int, child: Callable[[Role, str], Child], wait: Callable[[Callable[[], bool], str], None]
    ) -> None:
        self._laid = True
        _ip("netns", "add", self._name)
        _ip("link", "add", self._device, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        _ip("addr", "add", f"{self._near}/30", "dev", self._device)
        _ip("link", "set", self._device, "up")
        _ip("-n", self._name, "addr", "add", f"{self._far}/30", "dev", "eth0")
        _ip("-n", self._name, "link", "set", "eth0", "up")
        _ip("-n", self._name, "link", "set", "lo", "up")
        self.address = f"{self._near}:{port}"

    def enter(self) -> None:
        with open(f"/run/netns/{self._name}") as handle:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(handle.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def cut(self) -> None:
        _ip("link", "set", self._device, "down")

    def mend(self) -> None:
        _ip("link", "set", self._device, "up")

    def close(self) -> None:
        if self._laid:
            self._laid = False
            _ip("link", "del", self._device, check=False)
            _ip("netns", "del", self._name, check=False)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=_WAIT_S)


def cables_possible() -> bool:
    """Whether namespaces can be made here: tried, since containers often forbid it to their root."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    cable = Cable()
    try:
        cable.open(0, _no_child, _no_wait)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        cable.close()
    return True


def _no_child(role: Role, name: str) -> Child:
    raise RuntimeError(name)


def _no_wait(until: Callable[[], bool], what: str) -> None:
    raise RuntimeError(what)
