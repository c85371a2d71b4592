"""What the tests of the embedded store share: children to kill, records, a lock that is held, and a disk that fails."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from ignis.native import PackedBatch, Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.storage.embedded.log_files import Segment, parse_name

WAIT_S = 60.0


class Child:
    """A forked process that runs a function. What the function yields as text lines is read by `line`.

    Use as a context manager: it is killed at the end.
    """

    def __init__(self, run: Callable[[Callable[[str], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reading)
                # As a process of its own has it, whatever other tests have set here.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                run(lambda text: _write(writing, text))
                status = 0
            except BaseException:
                _write(writing, "FAILED " + traceback.format_exc().replace("\n", " | "))
            finally:
                os._exit(status)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        self._buffer = b""
        self._status: int | None = None

    def line(self) -> str:
        """The next line. Raises AssertionError when the child failed, EOFError at its end."""
        os.set_blocking(self._pipe.fileno(), False)
        deadline = time.monotonic() + WAIT_S
        while b"\n" not in self._buffer:
            chunk = self._pipe.read(65536)
            if chunk:
                self._buffer += chunk
            elif chunk == b"":
                raise EOFError(self._buffer)
            else:
                assert time.monotonic() < deadline, "the child says nothing"
                time.sleep(0.002)
        first, _, self._buffer = self._buffer.partition(b"\n")
        assert not first.startswith(b"FAILED"), first.decode()
        return first.decode()

    def lines(self) -> list[str]:
        """Everything to the end."""
        found = []
        try:
            while True:
                found.append(self.line())
        except EOFError:
            return found

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._status is None:
            os.kill(self.pid, number)

    def join(self) -> int:
        """Exit status; negative for a signal."""
        if self._status is None:
            deadline = time.monotonic() + WAIT_S
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
                    break
                assert time.monotonic() < deadline, "the child does not end"
                time.sleep(0.002)
        return self._status

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.join()
        self._pipe.close()


def _write(fd: int, text: str) -> None:
    os.write(fd, text.encode() + b"\n")


def forever() -> None:
    """Until killed."""
    while True:
        time.sleep(60)


def in_child(run: Callable[[Callable[[str], None]], None]) -> list[str]:
    """Runs to the end in a child; its lines."""
    with Child(run) as child:
        found = child.lines()
        assert child.join() == 0, found
        return found


def open_at(path: Path, **options: Any) -> Store:
    return open_store(f"embedded://{path}", **options)


def record(text: str) -> bytes:
    return encode_record(text.encode())


def body(data: bytes | None) -> str | None:
    return None if data is None else Record(data).body.decode()


def bodies(store: Store, magazine: str) -> list[str | None]:
    """All records that exist, fired or not, in shard and pointer order."""
    return [body(one) for _, _, one in store.magazines.scan(magazine, limit=1 << 40)]


def flip(value: bytes, index: int) -> bytes:
    return value[:index] + bytes([value[index] ^ 0x10]) + value[index + 1 :]


def newest_segment(log: Path) -> Path:
    """Of the directory of a durability class. The only one that is ever not flushed."""
    found = [(named[1:], one) for one in log.iterdir() if (named := parse_name(one.name)) and named[0] == "log"]
    return max(found)[1]


def cut_tail(log: Path, position: int) -> None:
    """The disk never got what the log holds from there on."""
    segment = Segment(newest_segment(log))
    offset = segment.offset(position)
    segment.close()
    size = segment.path.stat().st_size
    assert 0 < offset <= size
    os.truncate(segment.path, offset)
    os.truncate(segment.path, size)


def power_cut(store: Store, path: Path) -> Path:
    """A copy of the store as the harshest power cut would leave it at this moment: of each log what was flushed, and no more.

    Nobody but this process may have it open.
    """
    directory: Any = store.directory  # type: ignore[attr-defined]
    with ExitStack() as stack:
        directory.at_rest(stack)
        flushed = {name: log.figures()["durable"] for name, log in directory.opened().items()}
        subprocess.run(["cp", "-a", "--sparse=always", str(directory.path), str(path)], check=True, timeout=60)
    for name, position in flushed.items():
        cut_tail(path / name, position)
        for one in (path / name).glob("control-*"):  # never flushed
            one.unlink()
    return path


# In `ign_ctl_head` of that version (csrc/ignis_store_control.h).
_VERSION, _VERSION_AT, _SEALED_AT, _LOCK_AT = 4, 8, 1152, 1216


@contextlib.contextmanager
def held_by_another(path: Path, durability: str) -> Iterator[Callable[[], bool]]:
    """During the block another process holds the writers' lock of that log, and seems to be at work.

    It is a child that was stopped in the middle of a call. Who waits passes it over when the lock's turn did not rise for two
    seconds; nobody else can raise it meanwhile, so it is raised here. Gives what says whether the lock is held still.
    """
    ended = threading.Event()

    def work(say: Callable[[str], None]) -> None:
        store = open_at(path)
        log = store.directory.log(durability)  # type: ignore[attr-defined]
        number = log.declare("local/ignis/held", 1, 0)
        content = [record("x" * 500_000)]
        say("begins")
        while True:
            (first,) = log.load(number, [(0, PackedBatch.pack(content))], durable=False)
            log.retire(number, {0: [first]}, durable=False)

    with Child(work) as child:
        assert child.line() == "begins"
        newest = max((path / durability).glob("control-*"))
        with newest.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as head:
            assert struct.unpack_from("=I", head, _VERSION_AT) == (_VERSION,)

            def look() -> tuple[int, int, int]:
                (sealed,) = struct.unpack_from("=I", head, _SEALED_AT)
                lock, _, turn = struct.unpack_from("=IIQ", head, _LOCK_AT)
                return sealed, lock, turn

            def stop() -> int:
                for _ in range(2_000):
                    child.kill(signal.SIGSTOP)
                    try:
                        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
                    except ChildProcessError:
                        raise AssertionError(f"the child has ended: {child.lines()}") from None
                    _, lock, turn = look()
                    # Twice: another one may hold it, who is not stopped.
                    time.sleep(0.005)
                    if lock and look() == (0, lock, turn):
                        return lock
                    child.kill(signal.SIGCONT)
                    time.sleep(0.0005)
                raise AssertionError("the child was never stopped while it held the lock")

            lock = stop()

            def raise_turn() -> None:
                while not ended.wait(0.01):
                    struct.pack_into("=Q", head, _LOCK_AT + 8, look()[2] + 1)

            raising = threading.Thread(target=raise_turn, daemon=True)
            raising.start()
            try:
                yield lambda: look()[:2] == (0, lock)
            finally:
                ended.set()
                raising.join(WAIT_S)


def _segment_in_use(path: Path, durability: str) -> tuple[list[int], str]:
    """This process's descriptors of the segment that is written, and its name."""
    names: dict[str, list[int]] = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith(f"{path / durability}/log-") and not target.endswith("(deleted)"):
                names.setdefault(target, []).append(int(entry))
    newest = max(names)
    return names[newest], newest


def resting(store: Store) -> AbstractContextManager[None]:
    """During the block the store's upkeep is not what meets a fault that is meant for somebody else."""
    found: AbstractContextManager[None] = store.directory._maintenance.resting(WAIT_S)  # type: ignore[attr-defined]
    return found


def settle(store: Store) -> None:
    """What has been declared until now is not lost with any segment."""
    for log in store.directory.opened().values():  # type: ignore[attr-defined]
        log.checkpoint()


def refuse_writes(path: Path, durability: str) -> None:
    """From now on this process's writes to the segment fail, as on a disk that has become read-only. It can be read."""
    _replace(path, durability, os.O_RDONLY)


def lose_segment(path: Path, durability: str) -> None:
    """From now on this process's flushes of the segment fail, and what they were to bring to the disk is gone."""
    _replace(path, durability, os.O_PATH)


def _replace(path: Path, durability: str, flags: int) -> None:
    # Nothing is put back: the store closes the descriptor when it needs it no more, and the number may be another file's then.
    descriptors, name = _segment_in_use(path, durability)
    worse = os.open(name, flags | os.O_CLOEXEC)
    for one in descriptors:
        os.dup2(worse, one, inheritable=False)
    os.close(worse)
