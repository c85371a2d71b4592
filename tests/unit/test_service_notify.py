"""What a service tells systemd, by the socket that it names."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis.service_notify import ServiceNotifier, notify
from tests.support import WAIT_S


class Manager:
    """The service manager's side."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(WAIT_S)

    def heard(self) -> list[str]:
        return self.socket.recv(4_096).decode().splitlines()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.socket.close()


def test_ready_then_stopping(manager: Manager) -> None:
    stopping = threading.Event()
    with ServiceNotifier(stopping.is_set) as service:
        service.ready()
        assert manager.heard() == ["READY=1", f"MAINPID={os.getpid()}"]
        stopping.set()
        assert manager.heard() == ["STOPPING=1"]
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.heard()


def test_an_end_of_its_own_is_told_too(manager: Manager) -> None:
    service = ServiceNotifier(lambda: False)
    service.ready()
    assert manager.heard()[0] == "READY=1"
    service.close()
    service.close()
    assert manager.heard() == ["STOPPING=1"]


def test_the_watchdog_hears_who_is_alive(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    looked = threading.Semaphore(0)
    alive = [True]

    def look() -> bool:
        looked.release()
        return alive[0]

    with ServiceNotifier(lambda: False, look) as service:
        service.ready()
        assert manager.heard()[0] == "READY=1"
        assert manager.heard() == ["WATCHDOG=1"]
        assert manager.heard() == ["WATCHDOG=1"]
        alive[0] = False
        for _ in range(4):  # one of them may have begun before
            assert looked.acquire(timeout=WAIT_S)
        manager.socket.setblocking(False)
        said: list[str] = []
        while True:
            try:
                said += manager.heard()
            except BlockingIOError:
                break
        manager.socket.settimeout(WAIT_S)
        for _ in range(2):
            assert looked.acquire(timeout=WAIT_S)
        manager.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.heard()


@pytest.mark.parametrize(("period_us", "pid"), [("", ""), ("0", ""), ("soon", ""), ("300000", "1")])
def test_a_watchdog_that_is_not_ours(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, period_us: str, pid: str
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", period_us)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    looked: list[int] = []
    with ServiceNotifier(lambda: False, lambda: looked.append(1) is None) as service:
        assert service._watchdog_s is None


def test_an_abstract_name() -> None:
    name = f"ignis-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    try:
        assert notify("READY=1", {"NOTIFY_SOCKET": f"@{name}"})
        assert manager.heard() == ["READY=1"]
    finally:
        manager.socket.close()


@pytest.mark.parametrize("address", ["", "somewhere", "/no/such/socket"])
def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")
    with ServiceNotifier(lambda: False) as service:
        service.ready()
        assert service._thread is None
