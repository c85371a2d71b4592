"""A moment without memory ends no thread that the library needs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ignis.upkeep import outlast
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually


def failing_once(monkeypatch: pytest.MonkeyPatch, on: Any, name: str, exc: BaseException | None = None) -> list[str]:
    """The next call of that method raises."""
    whole, failed = getattr(on, name), list[str]()

    def call(*args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(name)
            raise exc or MemoryError
        return whole(*args, **kwargs)

    monkeypatch.setattr(on, name, call)
    return failed


def test_a_loop_begins_again_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds = list[int]()

    def loop() -> None:
        rounds.append(1)
        if len(rounds) < 4:
            raise MemoryError

    outlast(logging.getLogger("ignis.test"), loop)
    assert len(rounds) == 4
    said = [one for one in caplog.records if getattr(one.msg, "event", "") == "thread_goes_on"]
    assert len(said) == 1 and "MemoryError" in said[0].getMessage()


def test_what_cannot_be_logged_ends_it_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def log(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ignis.upkeep.lasting.log_safely", log)
    rounds = iter([True, True, False])

    def loop() -> None:
        if next(rounds):
            raise MemoryError

    outlast(logging.getLogger("ignis.test"), loop)
    assert next(rounds, None) is None


def thread_of(name: str) -> threading.Thread:
    return next(one for one in threading.enumerate() if one.name.startswith(name))


def test_the_maintenance_goes_on(new_app: MakeApp, embedded_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(embedded_url)
    app.queue("jobs", int).publish(1)
    directory = app.store.directory  # type: ignore[attr-defined]
    for name in ("_logs", "_look_round"):
        failed, rounds = failing_once(monkeypatch, directory._maintenance, name), threading.Event()
        eventually(lambda: failed)  # noqa: B023
        monkeypatch.setattr(directory._maintenance, "_look_round", rounds.set)
        assert rounds.wait(WAIT_S)
    assert directory._maintenance._thread.is_alive()


class LockWithoutEnd:
    """As Python's own where there is no memory for the end of a ``with`` block."""

    def __init__(self, lock: Any) -> None:
        self.acquire, self.release, self.locked = lock.acquire, lock.release, lock.locked

    def __enter__(self) -> bool:
        return bool(self.acquire())

    def __exit__(self, *exc: object) -> None:
        raise MemoryError


def test_the_maintenance_leaves_its_lock(new_app: MakeApp, embedded_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(embedded_url)
    app.queue("jobs", int).publish(1)
    maintenance, rounds = app.store.directory._maintenance, list[int]()  # type: ignore[attr-defined]
    monkeypatch.setattr(maintenance, "_at_work", LockWithoutEnd(maintenance._at_work))
    monkeypatch.setattr(maintenance, "_look_round", lambda: rounds.append(1))
    eventually(lambda: len(rounds) > 2)


def test_those_who_wait_for_a_load_are_still_called(
    new_app: MakeApp, embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(embedded_url)
    queue = app.queue("jobs", int)
    queue.open()
    store, called = app.store.magazines, threading.Event()
    listener = app.store.directory.listener("sync")  # type: ignore[attr-defined]
    failed = failing_once(monkeypatch, listener, "_move_due")
    seen = store.wait("jobs", -1, 0)
    store.on_load("jobs", seen, called.set)
    queue.publish(1)
    assert called.wait(WAIT_S)
    called.clear()
    store.on_load("jobs", store.wait("jobs", -1, 0), called.set)
    eventually(lambda: failed)
    queue.publish(2)
    assert called.wait(WAIT_S)


def test_sweeper_refresher_and_scheduler_go_on(
    new_app: MakeApp, embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(
        embedded_url,
        sweeper={"interval_s": 0.1, "initial_delay_s": 0},
        refresher={"watch_s": 0.1, "interval_s": 0.1, "initial_delay_s": 0},
    )
    app.queue("jobs", int).handler(lambda n: None)
    app.start()
    sweeper = app.sweeper()
    failed: list[Callable[..., object]] = [
        failing_once(monkeypatch, sweeper, "_attempt").__len__,
        failing_once(monkeypatch, sweeper._wake, "clear").__len__,
    ]
    eventually(lambda: all(one() for one in failed))
    passes = sweeper.passes
    eventually(lambda: sweeper.passes > passes + 1)
    for thread in ("ignis-sweeper", "ignis-refresher", "ignis-scheduler"):
        assert thread_of(thread).is_alive()
    assert app.stop(WAIT_S)
