"""The journal of the ``sync`` environment when several processes share it, and when recovery itself is cut.

Every message here was acknowledged; after another boot every one of them must be there.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignis.errors import StoreFailedError, WaitTimeoutError
from ignis.native import PackedBatch
from ignis.storage.base import Store
from ignis.storage.embedded import journal, steady
from ignis.storage.embedded.environment import Environment
from ignis.storage.embedded.steady import Steady
from tests.integration.embedded_support import Child, bodies, forever, open_at, record, restart_machine

pytestmark = pytest.mark.integration

Say = Callable[[str], None]
Step = Callable[[Store], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _flush_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No background flush: the tests say when the state becomes steady."""
    monkeypatch.setattr(Steady, "_loop", lambda self: None)


def keeper(store: Store) -> Steady:
    found = store.directory.data("sync").steady  # type: ignore[attr-defined]
    assert isinstance(found, Steady)
    return found


def load(text: str) -> Step:
    def step(store: Store) -> None:
        store.magazines.load_records("m", 0, [record(text)])

    return step


started: list[Steps] = []


@pytest.fixture(autouse=True)
def _end_what_was_started() -> Iterator[None]:
    yield
    while started:
        started.pop().kill()


class Steps:
    """A child that does one step for every byte it is sent, and answers ``done``."""

    def __init__(self, path: Path, steps: list[Step], **options: int) -> None:
        reading, self._writing = os.pipe()

        def run(say: Say) -> None:
            os.close(self._writing)
            store = open_at(path, **options)
            store.magazines.declare("m", 1)
            say("done")
            for step in steps:
                assert os.read(reading, 1)
                step(store)
                say("done")
            forever()

        self.child = Child(run)
        os.close(reading)
        self._ended = False
        started.append(self)
        assert self.child.line() == "done"

    def step(self) -> None:
        self.start()
        assert self.child.line() == "done"

    def start(self) -> None:
        os.write(self._writing, b".")

    def kill(self) -> None:
        if not self._ended:
            self._ended = True
            self.child.__exit__(None, None, None)
            os.close(self._writing)


def make_steady(store: Store) -> None:
    assert keeper(store).flush(5)


def die_before_steady(store: Store) -> None:
    """Killed in the middle of a flush: appending has moved on, the state is not steady yet."""
    keeper(store)._exchange = lambda *rest: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    keeper(store).flush(5)


def test_a_flush_by_one_process_does_not_orphan_what_another_appends(path: Path) -> None:
    """One process commits, another only flushes: the committer must follow to the file that the other one began."""
    writer = Steps(path, [load(text) for text in "abcd"])
    flusher = Steps(path, [make_steady, die_before_steady])
    writer.step()
    flusher.step()
    writer.step()
    writer.step()
    flusher.start()
    assert flusher.child.join() == -signal.SIGKILL
    writer.step()
    flusher.kill()
    writer.kill()
    restart_machine(path)
    with open_at(path) as store:
        assert bodies(store, "m") == ["a", "b", "c", "d"]


def test_two_processes_that_commit_and_flush_in_turn(path: Path) -> None:
    one = Steps(path, [load("a"), make_steady, load("c"), make_steady] * 3)
    two = Steps(path, [load("b"), make_steady] * 6)
    for _ in range(12):
        one.step()
        two.step()
    one.kill()
    two.kill()
    restart_machine(path)
    with open_at(path) as store:
        assert bodies(store, "m") == ["a", "b", "c", "b"] * 3


@pytest.mark.parametrize("after", [1, 40, 500])
def test_a_recovery_that_is_killed_is_done_again(path: Path, after: int) -> None:
    """The steady state must not be overwritten by the replay: it is needed again."""
    count = 300

    def many(store: Store) -> None:
        # One large commit and a flush: hardly a page is free, so the replay soon wants those of the steady state.
        batches = [(0, PackedBatch.pack([record(f"old{number}" + "x" * 700)])) for number in range(count)]
        store.magazines.load("m", batches, None)
        make_steady(store)
        for number in range(count):
            store.magazines.load_records("m", 0, [record(f"new{number}" + "y" * 700)])
            store.magazines.delete("m", {0: [number + 1]})

    worker = Steps(path, [many])
    worker.step()
    worker.kill()
    restart_machine(path)
    real = Environment.transact

    def recover(say: Say) -> None:
        done = [0]

        def transact(self: Environment, *rest: object, **named: object) -> object:
            result = real(self, *rest, **named)  # type: ignore[arg-type]
            if self.name == "sync":
                done[0] += 1
                if done[0] == after:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        Environment.transact = transact  # type: ignore[assignment,method-assign]
        open_at(path)

    for _ in range(2):
        with Child(recover) as child:
            assert child.join() == -signal.SIGKILL
    with open_at(path) as store:
        found = bodies(store, "m")
        assert None not in found
        assert [str(one).rstrip("xy") for one in found] == [f"new{number}" for number in range(count)]


def test_a_record_whose_flush_failed_is_not_built_upon(path: Path) -> None:
    """It can still be read, from memory; but the disk may not have it, and a later flush would not write it."""

    def load_with_a_failing_flush(store: Store) -> None:
        def fail(fd: int) -> None:
            raise OSError(errno.EIO, "injected")

        before, journal._flush = journal._flush, fail
        try:
            with pytest.raises(StoreFailedError):
                load("b")(store)
        finally:
            journal._flush = before

    def load_and_look(store: Store) -> None:
        appended: list[bool] = []
        real = journal.Journal.append

        def append(self: journal.Journal, *rest: object) -> bool:
            appended.append(real(self, *rest))  # type: ignore[arg-type]
            return appended[-1]

        journal.Journal.append = append  # type: ignore[method-assign]
        load("c")(store)
        # Not appended behind the record in doubt but made steady, which writes everything anew.
        assert appended == [False]

    first = Steps(path, [load("a"), load_with_a_failing_flush])
    second = Steps(path, [load_and_look])
    first.step()
    first.step()
    second.step()
    first.kill()
    second.kill()


@pytest.mark.parametrize("flushed", [True, False])
def test_the_slot_of_another_process_is_written_again_before_it_is_relied_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """That process may have died before its flush, which then has left no mark: the slot is read from memory and need not
    be on the disk."""
    file = path / "sync" / steady.FILE
    with open_at(path) as store:
        load_other = Steps(path, [load("a"), make_steady])
        load_other.step()
        load_other.step()
        load_other.kill()
        before = file.read_bytes()
        slots = steady._slots(before)
        newest = slots.index(max(slot for slot in slots if slot is not None))
        half = len(before) // 2
        marks = [(one + 1) * half - steady._MARK.size for one in (0, 1)]
        if not flushed:
            file.write_bytes(
                before[: marks[newest]] + bytes(steady._MARK.size) + before[marks[newest] + steady._MARK.size :]
            )
        calls: list[tuple[str, int]] = []
        real_pwrite, real_fsync = os.pwrite, os.fsync

        def named(fd: int) -> bool:
            return os.readlink(f"/proc/self/fd/{fd}").endswith(steady.FILE)

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            if named(fd):
                calls.append(("write", offset))
            return real_pwrite(fd, data, offset)

        def fsync(fd: int) -> None:
            if named(fd):
                calls.append(("flush", 0))
            real_fsync(fd)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "fsync", fsync)
        load("b")(store)
        make_steady(store)
        again = [("write", newest * half), ("flush", 0), ("write", marks[newest])]
        other = [("write", (1 - newest) * half), ("flush", 0), ("write", marks[1 - newest])]
        assert calls == (other if flushed else again + other)


def test_an_idle_process_follows_the_growth_of_the_map_when_it_flushes(path: Path) -> None:
    def grow(store: Store) -> None:
        for _ in range(40):
            store.magazines.load_records("m", 0, [record("x" * 100_000)])

    def flush_and_load(store: Store) -> None:
        make_steady(store)
        load("end")(store)

    small = 1 << 20
    grower = Steps(path, [grow], map_size_bytes=small)
    idle = Steps(path, [flush_and_load], map_size_bytes=small)
    grower.step()
    idle.step()
    grower.kill()
    idle.kill()
    restart_machine(path)
    with open_at(path) as store:
        assert len(bodies(store, "m")) == 41


def test_a_process_that_reads_for_long_does_not_hold_the_writer_lock(path: Path) -> None:
    """It cannot follow the growth of the map while it reads; the others must not wait for that, and its pin must stay."""

    reading: list[object] = []

    def read(store: Store) -> None:
        reading.append(store.directory.data("sync").env.begin_read())  # type: ignore[attr-defined]

    def flush(store: Store) -> None:
        env = store.directory.data("sync").env  # type: ignore[attr-defined]
        pin = keeper(store)._pin
        assert pin is not None
        with pytest.raises(WaitTimeoutError):
            keeper(store).flush(5)
        assert keeper(store)._pin is pin
        env.end_read(reading.pop())
        make_steady(store)
        load("end")(store)

    def grow(store: Store) -> None:
        for _ in range(40):
            store.magazines.load_records("m", 0, [record("x" * 100_000)])

    small = 1 << 20
    grower = Steps(path, [grow], map_size_bytes=small)
    reader = Steps(path, [read, flush], map_size_bytes=small)
    reader.step()
    grower.step()
    reader.step()
    reader.kill()
    grower.kill()
    with open_at(path) as store:
        assert len(bodies(store, "m")) == 41
