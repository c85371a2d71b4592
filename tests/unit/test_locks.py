"""The lock manager over a store that fails: tries, answers that got lost, renewals that do not come through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.config import LockSettings
from ignis.errors import (
    ClosedError,
    ConfigError,
    InvalidNameError,
    LockConnectionError,
    LockError,
    LockInternalError,
    LockLostError,
    LockRetriesExhaustedError,
    StoreFormatError,
    StoreUnreachableError,
)
from ignis.locks import Lock, LockLevel, LockManager
from ignis.locks.calls import now_s
from ignis.locks.renewal import Renewer
from ignis.storage.base import LockRecord, LockTable
from ignis.storage.memory.store import MemoryStore
from tests.support import WAIT_S, eventually

LOST, REFUSED = "the answer is lost", "the call does not arrive"


class Unreliable(LockTable):
    """A table whose next calls fail, each before or after it was done. Counts the calls."""

    def __init__(self, table: LockTable) -> None:
        self.table = table
        self.faults: dict[str, list[Any]] = {}
        self.calls: list[str] = []

    def fail(self, method: str, *faults: Any) -> None:
        """``LOST`` does it, ``REFUSED`` does not, None lets it through, an exception is raised."""
        self.faults[method] = list(faults)

    def _run(self, method: str, call: Callable[[], Any]) -> Any:
        self.calls.append(method)
        faults = self.faults.get(method) or [None]
        fault = faults.pop(0)
        if isinstance(fault, Exception):
            raise fault
        if fault == REFUSED:
            raise StoreUnreachableError(REFUSED)
        answer = call()
        if fault == LOST:
            raise StoreUnreachableError(LOST)
        return answer

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        found: LockRecord | None = self._run("acquire", lambda: self.table.acquire(name, owner, ttl_s))
        return found

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        found: LockRecord | None = self._run("renew", lambda: self.table.renew(name, owner, ttl_s))
        return found

    def release(self, name: str, owner: str) -> bool:
        return bool(self._run("release", lambda: self.table.release(name, owner)))

    def get(self, name: str) -> LockRecord | None:
        found: LockRecord | None = self._run("get", lambda: self.table.get(name))
        return found


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def table(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Unreliable:
    unreliable = Unreliable(store.locks.table("DC#fa#distributed_lock", "fa"))
    monkeypatch.setattr(store.locks, "table", lambda name, farm_id: unreliable)
    return unreliable


@pytest.fixture
def manager(store: MemoryStore, table: Unreliable) -> Iterator[LockManager]:
    with LockManager("app", "fa", store, retry_wait_s=0.001, poll_s=0.001) as manager:
        yield manager


def test_the_promised_defaults(store: MemoryStore) -> None:
    settings = LockSettings()
    assert (settings.ttl_s, settings.timeout_s, settings.poll_s) == (90, 90, 1)
    assert (settings.tries, settings.retry_wait_s) == (5, 0.08)
    manager = LockManager("app", "fa", store)
    assert manager.settings == settings
    assert manager.level is LockLevel.DC
    lock = manager.lock("l")
    lock.acquire()
    found = manager.holder("l")
    assert found is not None
    assert found.expires_at_ms - found.acquired_at_ms == 90_000
    assert found.name == "app#l"
    manager.close()


def test_settings_come_from_all_places(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNIS_LOCKS_POLL", "250ms")
    manager = LockManager("app", "fa", store, file={"locks": {"ttl": "2m", "poll_s": 3}}, timeout="1.5s")
    assert (manager.settings.ttl_s, manager.settings.poll_s, manager.settings.timeout_s) == (120, 0.25, 1.5)
    with pytest.raises(ConfigError, match="unknown locks setting 'nope'"):
        LockManager("app", "fa", store, nope=1)


@pytest.mark.parametrize("fault", [LOST, REFUSED])
def test_acquire_tries_again(manager: LockManager, table: Unreliable, fault: str) -> None:
    table.fail("acquire", fault, fault, fault, fault)
    lock = manager.lock("l")
    assert lock.try_acquire()
    assert table.calls.count("acquire") == 5
    assert lock.token == 1, "a lost answer is no second acquisition"
    assert not manager.lock("l").try_acquire()
    assert lock.release()


def test_a_lost_answer_is_not_taken_for_another_ones_lock(manager: LockManager, table: Unreliable) -> None:
    other = manager.lock("l")
    other.acquire()
    table.fail("acquire", REFUSED)
    assert not manager.lock("l").try_acquire()
    assert other.release()


def test_reading_the_owner_back_may_fail_as_well(manager: LockManager, table: Unreliable) -> None:
    table.fail("acquire", LOST)
    table.fail("get", REFUSED, LOST)
    lock = manager.lock("l")
    assert lock.try_acquire()
    assert lock.release()


@pytest.mark.parametrize("fault", [LOST, REFUSED])
def test_acquire_gives_up_and_leaves_nothing_behind(manager: LockManager, table: Unreliable, fault: str) -> None:
    table.fail("acquire", *[fault] * 5)
    table.fail("get", *[REFUSED] * 5)
    lock = manager.lock("l")
    with pytest.raises(LockConnectionError, match="'app#l' could not be acquired in 5 tries") as caught:
        lock.acquire()
    assert caught.value.code == "CONNECTION_ERROR"
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, StoreUnreachableError)
    assert not lock.held
    assert not lock.release()
    table.faults.clear()
    assert manager.holder("l") is None
    assert manager.lock("l").try_acquire()


def test_the_wait_between_two_tries(store: MemoryStore, table: Unreliable, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("ignis.locks.calls.time.sleep", slept.append)
    table.fail("acquire", *[REFUSED] * 5)
    with pytest.raises(LockConnectionError):
        LockManager("app", "fa", store).lock("l").try_acquire()
    assert slept == [0.08] * 4


@pytest.mark.parametrize("method", ["acquire", "renew", "release"])
def test_what_trying_again_does_not_change(manager: LockManager, table: Unreliable, method: str) -> None:
    lock = manager.lock("l")
    if method != "acquire":
        lock.acquire()
    table.calls.clear()
    table.fail(method, StoreFormatError("damaged"))
    with pytest.raises(LockInternalError, match="damaged") as caught:
        getattr(lock, method)()
    assert caught.value.code == "INTERNAL_ERROR"
    assert not caught.value.retryable
    assert table.calls.count(method) == 1


def test_release_whose_answer_is_lost(manager: LockManager, table: Unreliable) -> None:
    lock = manager.lock("l")
    lock.acquire()
    table.fail("release", LOST)
    assert lock.release()
    assert manager.lock("l").try_acquire()


def test_release_whose_answer_is_lost_when_the_time_had_run_out(manager: LockManager, table: Unreliable) -> None:
    lock = manager.lock("l")
    assert lock.try_acquire(0.01)
    eventually(lambda: not lock.held)
    table.fail("release", LOST)
    assert not lock.release()


def test_release_gives_up_and_can_be_called_again(manager: LockManager, table: Unreliable) -> None:
    lock = manager.lock("l")
    lock.acquire()
    table.fail("release", *[REFUSED] * 5)
    with pytest.raises(LockRetriesExhaustedError, match="could not be released in 5 tries") as caught:
        lock.release()
    assert caught.value.code == "RETRIES_EXHAUSTED"
    assert manager.holder("l") is not None
    assert lock.release()
    assert manager.holder("l") is None


def test_a_block_whose_release_fails(manager: LockManager, table: Unreliable) -> None:
    table.fail("release", *[REFUSED] * 10)
    with pytest.raises(LockRetriesExhaustedError), manager.lock("l"):
        pass
    table.fail("release", *[REFUSED] * 5)
    with pytest.raises(KeyError), manager.lock("m"):
        raise KeyError("the block's own error is seen")


def test_renewal_survives_failures_and_tells_nobody(manager: LockManager, table: Unreliable) -> None:
    lock = manager.lock("l", renew=True)
    table.fail("renew", REFUSED, LOST, REFUSED)
    lock.acquire(1.2)
    eventually(lambda: not table.faults["renew"] and table.calls.count("renew") > 4)
    assert lock.held
    assert not lock.lost.is_set()
    assert lock.release()


def test_renewals_that_all_fail_lose_the_lock(manager: LockManager, table: Unreliable) -> None:
    told = threading.Event()
    lock = manager.lock("l", renew=True, on_lost=lambda one: told.set())
    table.fail("renew", *[REFUSED] * 1_000)
    lock.acquire(0.3)
    assert lock.lost.wait(WAIT_S)
    assert told.wait(WAIT_S)
    assert not lock.held
    assert not lock.release()


def test_a_renewal_that_finds_another_holder(manager: LockManager, table: Unreliable) -> None:
    told: list[Lock] = []

    def on_lost(one: Lock) -> None:
        told.append(one)
        raise KeyError("what the callback raises is logged")

    lock = manager.lock("l", renew=True, on_lost=on_lost)
    lock.acquire(0.3)
    held = manager.holder("l")
    assert held is not None
    table.table.release("app#l", held.owner)  # as if it had run out
    other = manager.lock("l")
    other.acquire()
    assert lock.lost.wait(WAIT_S)
    eventually(lambda: told == [lock])
    assert not lock.release()
    assert other.held
    assert other.release()


def test_a_release_during_a_renewal_is_no_loss(manager: LockManager, table: Unreliable) -> None:
    """The renewal finds the lock gone while the release has not come back yet."""
    entered, go, gone = threading.Event(), threading.Event(), threading.Event()
    renew, release = table.table.renew, table.table.release

    def renew_late(name: str, owner: str, ttl_s: float) -> LockRecord | None:
        entered.set()
        assert go.wait(WAIT_S)
        return renew(name, owner, ttl_s)

    def release_slowly(name: str, owner: str) -> bool:
        released = release(name, owner)
        go.set()
        assert gone.wait(WAIT_S)
        return released

    table.table.renew, table.table.release = renew_late, release_slowly  # type: ignore[method-assign]
    told: list[Lock] = []
    lock = manager.lock("l", renew=True, on_lost=told.append)
    manager.renewer.add(lambda: gone.set() if go.is_set() else now_s() + 0.01, 0)  # behind the renewal, in its thread
    lock.acquire(1)
    assert entered.wait(WAIT_S)
    assert lock.release()
    assert not lock.lost.is_set()
    assert not told
    assert manager.holder("l") is None


def test_one_thread_renews_them_all_and_ends(manager: LockManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.locks.renewal._LINGER_S", 0.05)
    before = set(threading.enumerate())
    locks = [manager.lock(f"l{number}", renew=True) for number in range(20)]
    for lock in locks:
        lock.acquire(0.5)
    running = [one for one in threading.enumerate() if one.name == "ignis-renew-app" and one not in before]
    assert len(running) == 1
    time.sleep(0.7)
    assert all(lock.held for lock in locks)
    assert all(lock.release() for lock in locks)
    running[0].join(WAIT_S)
    assert not running[0].is_alive()
    assert locks[0].try_acquire(0.5)
    assert any(one.name == "ignis-renew-app" for one in threading.enumerate())


def test_the_renewer_outlives_a_task_that_raises() -> None:
    renewer, done = Renewer("x"), threading.Event()

    def broken() -> float | None:
        raise KeyError("no")

    def fine() -> float | None:
        done.set()
        return None

    renewer.add(broken, 0)
    renewer.add(fine, 0)
    assert done.wait(WAIT_S)
    renewer.close(WAIT_S)
    done.clear()
    renewer.add(fine, 0)
    assert not done.wait(0.05)


@pytest.mark.parametrize("lock_id", ["", "a\0", "x" * 201, "ü" * 101])
def test_bad_ids(manager: LockManager, lock_id: str) -> None:
    with pytest.raises(InvalidNameError, match="lock id"):
        manager.lock(lock_id)
    with pytest.raises(InvalidNameError):
        manager.holder(lock_id)


@pytest.mark.parametrize("lock_id", ["x" * 200, "orders/2026-11-21 #7", "ü"])
def test_good_ids(manager: LockManager, lock_id: str) -> None:
    with manager.lock(lock_id):
        assert manager.holder(lock_id) is not None


def test_bad_arguments(manager: LockManager, store: MemoryStore) -> None:
    for ttl_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="ttl_s"):
            manager.lock("l").try_acquire(ttl_s)
    for timeout in (-1, float("nan")):
        with pytest.raises(ConfigError, match="timeout"):
            manager.lock("l").acquire(timeout=timeout)
    with pytest.raises(ConfigError, match="max_hold_s"):
        manager.lock("l", max_hold_s=0)
    for suffix in ("", "a b", "x" * 33, "a#b"):
        with pytest.raises(ConfigError, match="suffix"):
            LockManager("app", "fa", store, suffix=suffix)
    with pytest.raises(InvalidNameError):
        LockManager("a b", "fa", store)
    with pytest.raises(InvalidNameError):
        LockManager("app", "f#a", store)
    assert manager.lock("l", "XDC").level is LockLevel.XDC  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="level = 'WAN' is not one of DC, XDC"):
        manager.lock("l", "WAN")  # type: ignore[arg-type]


def test_after_close(store: MemoryStore) -> None:
    manager = LockManager("app", "fa", store)
    manager.close()
    with pytest.raises(ClosedError):
        manager.lock("l")


def test_every_error_is_a_lock_error() -> None:
    for kind in (LockConnectionError, LockInternalError, LockLostError, LockRetriesExhaustedError):
        assert issubclass(kind, LockError)


def test_what_a_lock_says_of_itself(manager: LockManager) -> None:
    lock = manager.lock("l")
    assert repr(lock) == "<Lock DC 'l'>"
    with lock:
        assert repr(lock) == "<Lock DC 'l' held>"


def test_a_manager_needs_an_opened_store(memory_app: ignis.Ignis) -> None:
    wrong: list[Any] = ["memory://z", "ignis://me:geheim@host", memory_app, None]
    for store in wrong:
        with pytest.raises(ConfigError, match="open_store") as found:
            LockManager("b", "w", store)
        assert "geheim" not in str(found.value)
    LockManager("b", "w", memory_app.store).close()
