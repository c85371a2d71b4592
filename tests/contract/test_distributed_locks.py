"""Distributed locks on every store: one holder, tokens that rise, time that runs out."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ignis.errors import ForkedHandleError, LockLostError, LockUnavailableError
from ignis.locks import Lock, LockLevel, LockManager
from tests.contract.support import Kind, tick
from tests.support import WAIT_S, eventually

TTL_S = 1.0  # whole, since one store counts in seconds
LONG_S = 60.0


class Managers:
    """Managers of one store, one application unless said otherwise; each has a handle of its own, as a process would."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.client_id = f"c{os.getpid()}-{time.monotonic_ns()}"
        self._made: list[LockManager] = []

    def __call__(self, farm_id: str = "fa", client_id: str | None = None, **settings: Any) -> LockManager:
        given = {"poll_s": 0.01, "ttl_s": LONG_S, "timeout_s": WAIT_S, **settings}
        manager = LockManager(client_id or self.client_id, farm_id, self.kind.open(), suffix="test_lock", **given)
        self._made.append(manager)
        return manager

    def close(self) -> None:
        for one in self._made:
            one.close(WAIT_S)
        self._made.clear()


@pytest.fixture
def managers(kind: Kind) -> Iterator[Managers]:
    made = Managers(kind)
    yield made
    made.close()


def free(lock: Lock) -> bool:
    """Takes it and gives it back."""
    return lock.try_acquire() and lock.release()


def test_one_holder(managers: Managers) -> None:
    mine, yours = managers().lock("l"), managers().lock("l")
    assert mine.try_acquire()
    assert mine.held
    assert not yours.try_acquire()
    assert not yours.held
    assert not yours.release()
    assert not yours.renew()
    assert mine.release()
    assert not mine.held
    assert not mine.release()
    assert yours.try_acquire()
    assert not mine.try_acquire()
    assert yours.release()


def test_no_reentrance(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l")
    lock.acquire()
    assert not lock.try_acquire()
    assert not manager.lock("l").try_acquire()
    with pytest.raises(LockUnavailableError):
        lock.acquire(timeout=0.03)
    assert lock.release()


def test_farms_have_locks_of_their_own_and_share_those_over_farms(managers: Managers) -> None:
    fa, fb = managers("fa"), managers("fb")
    assert fa.lock("l").try_acquire()
    assert fb.lock("l", LockLevel.DC).try_acquire()
    shared = fa.lock("l", LockLevel.XDC)
    assert shared.try_acquire()
    assert not fb.lock("l", LockLevel.XDC).try_acquire()
    first = shared.token
    assert shared.release()
    other = fb.lock("l", LockLevel.XDC)
    assert other.try_acquire()
    assert other.token > first
    assert managers("fa", level=LockLevel.XDC).lock("l").level is LockLevel.XDC


def test_applications_have_locks_of_their_own(managers: Managers) -> None:
    one, other = managers(), managers(client_id=f"{managers.client_id}x")
    for level in LockLevel:
        assert one.lock("l", level).try_acquire()
        assert other.lock("l", level).try_acquire()


def test_what_the_manager_says_of_the_holder(managers: Managers) -> None:
    manager = managers()
    assert manager.holder("l") is None
    lock = manager.lock("l")
    before_ms = tick()
    lock.acquire()
    found = managers().holder("l")
    assert found is not None
    assert str(os.getpid()) in found.owner
    assert before_ms <= found.acquired_at_ms <= before_ms + WAIT_S * 1000
    assert found.expires_at_ms > found.acquired_at_ms
    token = lock.token
    found = managers().holder("l")
    assert found is not None
    assert found.token == token
    lock.release()
    assert manager.holder("l") is None


def test_tokens_rise_for_ever(managers: Managers) -> None:
    tokens = []
    for number in range(6):
        lock = managers().lock("l")
        assert lock.try_acquire(TTL_S if number == 3 else LONG_S)
        tokens.append(lock.token)
        assert lock.token == tokens[-1]
        if number == 2:
            lock.release()
            managers.close()
            managers.kind.close_all()
        elif number == 3:
            eventually(lambda: free(managers().lock("l")), "the time ran out")
        else:
            lock.release()
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0


def test_time_runs_out_and_a_late_release_removes_nothing(managers: Managers) -> None:
    late, next_one = managers().lock("l"), managers().lock("l")
    assert late.try_acquire(TTL_S)
    token = late.token
    next_one.acquire()
    assert next_one.token > token
    eventually(lambda: not late.held)  # by this machine's clock, which is not the store's
    assert not late.renew()
    assert late.lost.is_set()
    assert not late.release()
    assert next_one.renew()
    assert not managers().lock("l").try_acquire()
    assert next_one.release()


def test_an_object_whose_lock_was_lost_can_acquire_again(managers: Managers) -> None:
    lock, other = managers().lock("l"), managers().lock("l")
    assert lock.try_acquire(TTL_S)
    first = lock.token
    other.acquire()
    assert not lock.renew()
    assert other.release()
    lock.acquire()
    assert not lock.lost.is_set()
    assert lock.token > first
    assert lock.release()


def test_a_lock_that_is_not_held_has_no_token(managers: Managers) -> None:
    lock = managers().lock("l")
    with pytest.raises(LockLostError, match="'l' is not held"):
        lock.token  # noqa: B018 - that it raises is the point
    lock.acquire()
    lock.release()
    with pytest.raises(LockLostError):
        lock.token  # noqa: B018


def test_waiting_ends_with_the_timeout(managers: Managers) -> None:
    manager = managers()
    holder = manager.lock("l")
    holder.acquire()
    with pytest.raises(LockUnavailableError, match=r"lock 'l' was held .* 0\.05 s") as caught:
        manager.lock("l").acquire(timeout=0.05)
    assert (caught.value.lock_id, caught.value.waited_s) == ("l", 0.05)
    assert caught.value.code == "LOCK_UNAVAILABLE"
    with pytest.raises(LockUnavailableError):
        manager.lock("l").acquire(timeout=0)
    assert holder.release()
    manager.lock("l").acquire(timeout=0)


def test_waiting_ends_with_the_release(managers: Managers) -> None:
    holder, waiter = managers().lock("l"), managers().lock("l")
    holder.acquire()
    tried = threading.Event()

    def wait() -> None:
        assert not waiter.try_acquire()
        tried.set()
        waiter.acquire()

    thread = threading.Thread(target=wait)
    thread.start()
    assert tried.wait(WAIT_S)
    assert holder.release()
    thread.join(WAIT_S)
    assert waiter.held
    assert waiter.release()


def test_with(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l")
    with lock as entered:
        assert entered is lock
        assert lock.held
    assert not lock.held
    assert free(manager.lock("l"))
    with pytest.raises(KeyError), lock:
        raise KeyError("no")
    assert free(manager.lock("l"))
    with lock:
        lock.release()


def test_a_block_that_lost_its_lock_is_told(managers: Managers) -> None:
    manager = managers(ttl_s=TTL_S)
    other = managers().lock("l")
    with pytest.raises(LockLostError, match="no longer ours"), manager.lock("l"):
        other.acquire()
    assert other.release()


def test_the_error_of_a_block_that_lost_its_lock_is_seen(managers: Managers) -> None:
    def block() -> None:
        with managers(ttl_s=TTL_S).lock("l"):
            managers().lock("l").acquire()
            raise KeyError("no")

    with pytest.raises(KeyError):
        block()


def test_threads_never_meet(managers: Managers) -> None:
    """Every thread with a manager of its own. The order of the tokens is the order in the critical section."""
    inside: list[int] = []
    tokens: list[int] = []
    problems: list[str] = []

    def run(number: int, manager: LockManager) -> None:
        lock = manager.lock("l", LockLevel.XDC)
        for _ in range(10):
            with lock:
                inside.append(number)
                tokens.append(lock.token)
                if inside != [number]:
                    problems.append(f"{inside}")
                time.sleep(0.0005)
                inside.remove(number)

    threads = [threading.Thread(target=run, args=(number, managers(f"f{number}", poll_s=0.001))) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    assert not problems
    assert len(tokens) == 50
    assert tokens == sorted(set(tokens))


def test_of_many_threads_one_gets_the_lock(managers: Managers) -> None:
    manager = managers()
    start = threading.Barrier(8)
    got: list[Lock] = []

    def run() -> None:
        lock = manager.lock("l")
        start.wait(WAIT_S)
        if lock.try_acquire():
            got.append(lock)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(got) == 1
    assert got[0].release()


def test_renewal_keeps_the_lock(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l", renew=True)
    lock.acquire(TTL_S)
    token = lock.token
    first = manager.holder("l")
    assert first is not None

    def renewed() -> bool:
        found = manager.holder("l")
        assert found is not None
        assert (found.owner, found.token) == (first.owner, token)
        return found.acquired_at_ms == first.acquired_at_ms and time.time() * 1000 > first.expires_at_ms + 500

    eventually(renewed, "the lock outlives its first time to live")
    assert lock.held
    assert not lock.lost.is_set()
    assert lock.token == token
    assert lock.release()
    assert not lock.lost.is_set()


def test_renewal_ends_with_the_longest_hold(managers: Managers) -> None:
    told: list[Lock] = []
    manager = managers()
    lock = manager.lock("l", renew=True, max_hold_s=1.5, on_lost=told.append)
    lock.acquire(TTL_S)
    assert lock.lost.wait(WAIT_S)
    eventually(lambda: told == [lock])
    assert not lock.held
    manager.lock("l").acquire()
    assert not lock.release()


def test_renew_by_hand(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l")
    lock.acquire(TTL_S)
    first = manager.holder("l")
    assert lock.renew(LONG_S)
    found = manager.holder("l")
    assert first is not None
    assert found is not None
    assert found.owner == first.owner
    assert found.expires_at_ms > first.expires_at_ms + 30_000


def test_coroutines(managers: Managers) -> None:
    manager = managers()
    order: list[int] = []

    async def run(number: int) -> None:
        async with manager.lock("l") as lock:
            order.append(await lock.atoken())
            assert await lock.arenew()
            await asyncio.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(*(run(number) for number in range(5)))
        lock = manager.lock("l")
        assert await lock.atry_acquire()
        with pytest.raises(LockUnavailableError):
            await manager.lock("l").aacquire(timeout=0.02)
        assert await lock.arelease()
        assert not await lock.arelease()

    asyncio.run(main())
    assert order == sorted(set(order))
    assert len(order) == 5


def test_a_waiting_coroutine_can_be_cancelled(managers: Managers) -> None:
    manager = managers()

    async def main() -> None:
        async with manager.lock("l"):
            waiting = asyncio.create_task(manager.lock("l").aacquire())
            await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
    assert free(manager.lock("l"))


def test_a_coroutine_that_is_cancelled_while_the_store_answers_leaves_no_lock_behind(managers: Managers) -> None:
    manager = managers()
    entered, go, answered = threading.Event(), threading.Event(), threading.Event()
    lock = manager.lock("l")
    real = lock.try_acquire

    def slowly(ttl_s: float | None = None) -> bool:
        entered.set()
        assert go.wait(WAIT_S)
        got = real(ttl_s)
        answered.set()
        return got

    lock.try_acquire = slowly

    async def main() -> None:
        task = asyncio.create_task(lock.atry_acquire())
        assert await asyncio.to_thread(entered.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    go.set()
    assert answered.wait(WAIT_S)
    eventually(lambda: free(managers().lock("l")), "it was given back")


def test_a_forked_child_holds_nothing(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l", renew=True)
    lock.acquire()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            assert not lock.held
            assert not lock.release()
            assert not lock.renew()
            try:
                manager.lock("l").try_acquire()
            except ForkedHandleError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lock.held
    assert lock.renew()
    assert lock.release()


def test_a_manager_that_closes_gives_back_what_it_holds(managers: Managers) -> None:
    manager = managers()
    lock = manager.lock("l", renew=True)
    lock.acquire()
    manager.close(WAIT_S)
    manager.close(WAIT_S)
    assert not lock.held
    assert free(managers().lock("l"))
