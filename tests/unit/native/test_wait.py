"""Event boards, the mutex, and the identity of processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ignis import errors
from ignis.native import (
    Alarm,
    EventBoard,
    PackedBatch,
    ProcessMutex,
    ThreadBell,
    Watch,
    encode_record,
    new_id,
    process_alive,
    process_start_time,
)
from ignis.native.store import Log
from tests.unit.native.native_support import finish, in_child, start


@pytest.mark.parametrize("shared", [False, True])
def test_notify_wakes_a_sleeping_thread(tmp_path: Path, shared: bool) -> None:
    with EventBoard(str(tmp_path / "events") if shared else None, 8) as board:
        seen = board.sequence(3)
        timer = threading.Timer(0.05, board.notify, [3])
        timer.start()
        began = time.monotonic()
        assert board.wait(3, seen, 10) == seen + 1
        assert time.monotonic() - began < 5
        timer.join()
        assert board.wait(3, seen, 10) == seen + 1  # already past
        assert board.wait(3, -1, 10) == seen + 1
        assert board.sequence(4) == 0


def test_wait_is_bounded() -> None:
    with EventBoard(None, 1) as board:
        began = time.monotonic()
        assert board.wait(0, 0, 0.15) == 0
        assert 0.14 < time.monotonic() - began < 5
        assert board.wait(0, 0, 0) == 0
        with pytest.raises(ValueError, match="timeout"):
            board.wait(0, 0, -1)
        with pytest.raises(IndexError):
            board.notify(1)


def test_a_thread_bell_wakes_once() -> None:
    bell = ThreadBell()
    began = time.monotonic()
    assert bell.wait(0.15) is False and 0.14 < time.monotonic() - began < 5
    bell.ring()
    bell.ring()  # as one
    assert bell.rung and bell.wait(60) is True
    assert not bell.rung and bell.wait(0) is False
    bell.ring()
    bell.silence()
    bell.silence()
    assert not bell.rung and bell.wait(0) is False
    bell.ring()
    assert bell.wait(0) is True and bell.wait(0) is False
    with pytest.raises(ValueError, match="timeout"):
        bell.wait(-1)
    timer = threading.Timer(0.05, bell.ring)
    timer.start()
    assert bell.wait(60) is True
    timer.join()


def test_a_wait_is_put_off_and_ends_by_itself() -> None:
    bell = ThreadBell()
    assert bell.wait(60, may_be_put_off=True) is False, "nobody did"
    ended: list[bool] = []
    bell.put_off(0.2)
    thread = threading.Thread(target=lambda: ended.append(bell.wait(60, may_be_put_off=True)))
    thread.start()
    began = time.monotonic()
    for _ in range(20):
        bell.put_off(0.2)
        time.sleep(0.02)
        last = time.monotonic()
    thread.join(30)
    assert ended == [False]
    assert time.monotonic() - began > 0.3 and time.monotonic() - last < 30
    bell.put_off(60)
    assert bell.wait(0.01, may_be_put_off=True) is False, "no longer than the time that the wait itself has"
    bell.ring()
    assert bell.wait(60, may_be_put_off=True) is True
    bell.put_off(0)
    threading.Timer(0.05, bell.ring).start()
    assert bell.wait(60) is True, "another wait has nothing to do with it"
    with pytest.raises(ValueError, match="timeout"):
        bell.put_off(-1)


def test_many_threads_are_rung_for_at_once_and_each_wakes_once() -> None:
    bells = [ThreadBell() for _ in range(50)]
    woken: list[int] = []

    def sleeper(number: int) -> None:
        for _ in range(20):
            assert bells[number].wait(30)
            woken.append(number)

    threads = [threading.Thread(target=sleeper, args=(number,)) for number in range(len(bells))]
    for thread in threads:
        thread.start()
    for turn in range(1, 21):
        for bell in bells:
            bell.ring()
        until = time.monotonic() + 30
        while len(woken) < turn * len(bells):
            assert time.monotonic() < until
            time.sleep(0.001)
    for thread in threads:
        thread.join(30)
    assert sorted(woken) == sorted(20 * list(range(len(bells))))


def test_in_a_forked_child_bells_and_claims_take_turns_as_before(tmp_path: Path) -> None:
    for name in ("parent", "child"):
        (tmp_path / name).mkdir()
    Log(str(tmp_path / "parent")).close()  # what the child inherits knows of forks

    def check() -> None:
        log = Log(str(tmp_path / "child"))
        number = log.declare("m", 1, 0)
        bells = [ThreadBell() for _ in range(8)]

        def rings_and_waits(at: int) -> None:
            for _ in range(1_000):
                bells[at ^ 1].ring()
                bells[at].wait(0.01)
                log.fire(number, 1, b"somebody", 1)

        threads = [threading.Thread(target=rings_and_waits, args=(at,)) for at in range(len(bells))]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 8  # who lost his turn would wait for it for ten seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        assert not any(thread.is_alive() for thread in threads)

    in_child(check)


def test_a_signal_is_handled_while_the_main_thread_waits_for_a_bell() -> None:
    bell = ThreadBell()
    before = signal.signal(signal.SIGALRM, lambda *_: bell.ring())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        assert bell.wait(30) is True and time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGALRM, before)


def test_board_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventBoard(path, 16) as board:
        child = start(
            """
with EventBoard(sys.argv[1], 16) as board:
    for i in range(200):
        board.wait(0, i, 10)
        board.notify(1)
""",
            path,
        )
        for i in range(200):
            board.notify(0)
            assert board.wait(1, i, 10) == i + 1
        finish(child)


def test_board_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "events"
    EventBoard(path, 16).close()
    with pytest.raises(errors.RegionFormatError):
        EventBoard(path, 17)
    with pytest.raises(errors.RegionFormatError):
        ProcessMutex(path)
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(errors.RegionTruncatedError):
        EventBoard(path, 16)
    path.write_bytes(b"something else altogether" * 300)
    with pytest.raises(errors.RegionFormatError):
        EventBoard(path, 16)
    with pytest.raises(errors.RegionIOError) as caught:
        EventBoard(tmp_path / "no" / "such", 16)
    assert caught.value.errno == 2
    with pytest.raises(ValueError, match="events"):
        EventBoard(None, 0)


def test_closing_ends_waits() -> None:
    board = EventBoard(None, 1)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            board.wait(0, 0, 20)
        except errors.ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    board.close()
    thread.join(60)
    assert len(caught) == 1
    with pytest.raises(errors.ClosedError):
        board.notify(0)
    board.close()


def test_handles_refuse_in_a_child(tmp_path: Path) -> None:
    board, mutex = EventBoard(tmp_path / "e", 4), ProcessMutex(tmp_path / "m")

    def check() -> None:
        with pytest.raises(errors.ForkedHandleError):
            board.sequence(0)
        with pytest.raises(errors.ForkedHandleError):
            mutex.acquire(0)
        with EventBoard(tmp_path / "e", 4) as own:
            own.notify(0)

    in_child(check)
    assert board.sequence(0) == 1
    board.close()
    mutex.close()


def test_signals_interrupt_a_wait() -> None:
    class Hit(Exception):
        pass

    def handler(*_: object) -> None:
        raise Hit

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with EventBoard(None, 1) as board:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            began = time.monotonic()
            with pytest.raises(Hit):
                board.wait(0, 0, 20)
            assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)


def test_mutex_excludes_threads_and_is_not_reentrant(tmp_path: Path) -> None:
    with ProcessMutex(tmp_path / "m") as mutex:
        assert mutex.acquire(0)
        assert mutex.holder_pid == os.getpid()
        with pytest.raises(RuntimeError, match="re-entrant"):
            mutex.acquire(0)
        results: list[object] = []

        def other() -> None:
            results.append(mutex.acquire(0.1))
            try:
                mutex.release()
            except RuntimeError as error:
                results.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        assert results[0] is False
        assert isinstance(results[1], RuntimeError)
        with pytest.raises(RuntimeError, match="held"):
            mutex.close()
        mutex.release()
        assert mutex.holder_pid == 0
        with pytest.raises(RuntimeError):
            mutex.release()


def test_mutex_counts_right_over_threads_and_handles(tmp_path: Path) -> None:
    count, rounds = 0, 300

    def add() -> None:
        nonlocal count
        with ProcessMutex(tmp_path / "m") as mutex:
            for _ in range(rounds):
                assert mutex.acquire(60)
                before = count
                if before % 50 == 0:
                    time.sleep(0.0005)
                count = before + 1
                mutex.release()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert count == 4 * rounds


def test_mutex_is_taken_over_from_a_killed_holder(tmp_path: Path) -> None:
    with ProcessMutex(tmp_path / "m") as mutex:
        child = start(
            "m = ProcessMutex(sys.argv[1]); m.acquire(60); print('held', flush=True); time.sleep(60)", tmp_path / "m"
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert not mutex.acquire(0.05)
        assert mutex.holder_pid == child.pid
        child.kill()
        assert mutex.acquire(60)
        assert mutex.recovered == 1
        mutex.release()
        assert mutex.acquire(0)
        mutex.release()
        finish(child, code=-signal.SIGKILL)


def test_process_identity() -> None:
    mine = process_start_time(os.getpid())
    assert mine > 0
    assert process_alive(os.getpid(), mine)
    assert not process_alive(os.getpid(), mine + 1)
    assert not process_alive(os.getpid(), 0)
    assert process_start_time(2**22 + 1) == 0
    child = subprocess.Popen(["sleep", "60"])
    started = process_start_time(child.pid)
    assert process_alive(child.pid, started)
    child.kill()
    until = time.monotonic() + 60
    while process_alive(child.pid, started):
        assert time.monotonic() < until
    assert process_start_time(child.pid) == 0  # a zombie has stopped to exist
    child.wait(60)


def test_a_watch_tells_of_loads_and_of_nothing_else(tmp_path: Path) -> None:
    try:
        watch = Watch()
    except OSError as exc:
        pytest.skip(f"this kernel has no such descriptors, or refuses them: {exc}")
    log = Log(str(tmp_path))
    one, other = (log.declare(name, 1, 0) for name in ("one", "other"))
    assert one is not None and other is not None
    poll = select.poll()
    poll.register(watch.fileno(), select.POLLIN)
    for _ in range(50):
        seen = log.wait(one, -1, 0)
        assert log.watch(one, seen, watch) == seen
        log.load(other, [(0, PackedBatch.pack([encode_record(b"x", id=new_id())]))], durable=False)
        assert not poll.poll(0)
        log.load(one, [(0, PackedBatch.pack([encode_record(b"x", id=new_id())]))], durable=False)
        while not (poll.poll(10_000) and watch.take()):
            pass
        assert log.watch(one, seen, watch) == seen + 1

    def refused() -> None:
        for call in (watch.fileno, watch.take, lambda: log.watch(one, 0, watch)):
            with pytest.raises(errors.ForkedHandleError):
                call()

    in_child(refused)
    watch.close()
    watch.close()
    for call in (watch.fileno, watch.take, lambda: log.watch(one, 0, watch)):
        with pytest.raises(errors.ClosedError):
            call()
    log.close()


def test_an_alarm_rings_at_its_time_and_not_before() -> None:
    try:
        alarm = Alarm()
    except OSError as exc:
        pytest.skip(f"this system has no such descriptors: {exc}")
    poll = select.poll()
    poll.register(alarm.fileno(), select.POLLIN)
    assert (poll.poll(0), alarm.take()) == ([], False)
    for timeout in (0, 1e-9, 0.0203):
        began_s = time.monotonic()
        alarm.set(timeout)
        assert poll.poll(10_000)
        assert time.monotonic() - began_s >= timeout - 1e-6
        assert alarm.take()
        assert (poll.poll(0), alarm.take()) == ([], False)
    alarm.set(3_600)
    alarm.set(0.001)  # in place of the other one
    assert poll.poll(10_000)
    alarm.set(3_600)
    assert (poll.poll(0), alarm.take()) == ([], False)
    alarm.set(0)
    assert poll.poll(10_000)
    alarm.set(None)
    assert (poll.poll(0), alarm.take()) == ([], False)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            alarm.set(timeout)

    def refused() -> None:
        for call in (alarm.fileno, alarm.take, lambda: alarm.set(1)):
            with pytest.raises(errors.ForkedHandleError):
                call()

    in_child(refused)
    alarm.close()
    alarm.close()
    for call in (alarm.fileno, alarm.take, lambda: alarm.set(1)):
        with pytest.raises(errors.ClosedError):
            call()
