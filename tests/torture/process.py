"""Child processes that can be killed at any moment, and the lines in which they say what they did.

Children are forked, not started anew: a round costs milliseconds instead of a start of the interpreter, and a fault can
be planted in a child by a plain function that runs there first. The parent must therefore stay single-threaded and
must never open a store itself.

A line is written with one ``write`` of at most ``PIPE_BUF`` bytes, so a kill never leaves half a line between others
and several threads may write. What a child had written before its death counts: the kernel keeps the pipe's contents.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from types import TracebackType

from ignis.native import process_start_time
from tests.torture.ledger import Ledger

__all__ = ["Child", "Reporter", "Role", "follow", "id_lines", "process_name"]

_LINE_BYTES = 4096  # PIPE_BUF on Linux: longer writes are not atomic
_PIPE_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ = 1031


class Reporter:
    """The child's side: one method per kind of event. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def line(self, *fields: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, fields)) + "\n").encode())

    def sending(self, many: Iterable[int]) -> None:
        self._ids(f"s {time.monotonic():.6f}", many)

    def acknowledged(self, many: Iterable[int]) -> None:
        self._ids(f"a {time.monotonic():.6f}", many)

    def refused(self, many: Iterable[int], error: BaseException) -> None:
        self._ids(f"r {type(error).__name__}", many)

    def seen(self, many: Iterable[int], shard: int = -1) -> None:
        self._ids(f"d {shard} {time.monotonic():.6f}", many)

    def present(self, many: Iterable[int]) -> None:
        self._ids("p", many)

    def finished(self, many: Iterable[int]) -> None:
        self._ids(f"f {time.monotonic():.6f}", many)

    def altered(self, count: int) -> None:
        self.line("w", count)

    def corrupt(self, count: int) -> None:
        self.line("c", count)

    def note(self, word: str, text: object = "") -> None:
        """``word``: one word that the parent may wait for."""
        self.line("n", word, str(text).replace("\n", " ")[:2000])

    def _ids(self, head: str, many: Iterable[int]) -> None:
        for line in id_lines(head, many):
            os.write(self._descriptor, line)


def process_name(pid: int) -> str:
    """A word for a living process that no other one ever has: numbers are given again."""
    return f"{pid}-{process_start_time(pid)}"


def id_lines(head: str, many: Iterable[int]) -> Iterator[bytes]:
    """Runs of consecutive identities are written as ``first-last``."""
    parts: list[str] = []
    length = len(head)
    for first, last in _runs(many):
        part = f"{first:x}" if first == last else f"{first:x}-{last:x}"
        if length + len(part) + 2 > _LINE_BYTES:
            yield f"{head} {' '.join(parts)}\n".encode()
            parts, length = [], len(head)
        parts.append(part)
        length += len(part) + 1
    if parts:
        yield f"{head} {' '.join(parts)}\n".encode()


def _runs(many: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for one in many:
        if first is None or last is None:
            first = last = one
        elif one == last + 1:
            last = one
        else:
            yield first, last
            first = last = one
    if first is not None and last is not None:
        yield first, last


def _parse_ids(fields: Sequence[str]) -> Iterator[int]:
    for part in fields:
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


Role = Callable[[Reporter], None]


class Child:
    """A forked process that runs ``role(reporter)`` and exits 0, or 1 when the role raised.

    Args:
        role: what it does. Runs after ``prepare``.
        name: for messages.
        prepare: runs first in the child: plants faults.

    Its standard error goes to a file whose end `trouble` returns. It dies with its parent.
    """

    def __init__(self, role: Role, name: str = "child", prepare: Callable[[], None] | None = None) -> None:
        self.name = name
        self.notes: list[tuple[str, str]] = []
        self.refusals: dict[str, int] = {}
        self.acknowledged = 0
        self.seen = 0
        self.present: set[int] = set()
        self.status: int | None = None
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._read, write = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(role, prepare, write)
        os.close(write)

    def _run(self, role: Role, prepare: Callable[[], None] | None, write: int) -> None:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            os.close(self._read)
            os.dup2(self._errors.fileno(), 2)
            os.dup2(self._errors.fileno(), 1)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            faulthandler.enable(file=2, all_threads=True)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            random.seed()
            if prepare is not None:
                prepare()
            role(Reporter(write))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    # -- the parent's side -----------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._read

    def pump(self, ledger: Ledger | None) -> bool:
        """Reads what is there and books it; False when the child has closed its end."""
        data = os.read(self._read, _PIPE_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._book(line.decode().split(" "), ledger if ledger is not None else Ledger())
        return bool(data)

    def _book(self, fields: list[str], ledger: Ledger) -> None:
        kind = fields[0]
        if kind == "s":
            ledger.send(_parse_ids(fields[2:]), float(fields[1]))
        elif kind == "a":
            many = list(_parse_ids(fields[2:]))
            self.acknowledged += len(many)
            ledger.acknowledge(many, float(fields[1]))
        elif kind == "r":
            many = list(_parse_ids(fields[2:]))
            self.refusals[fields[1]] = self.refusals.get(fields[1], 0) + len(many)
            ledger.refuse(many)
        elif kind == "d":
            many = list(_parse_ids(fields[3:]))
            self.seen += len(many)
            ledger.see(many, None if fields[1] == "-1" else int(fields[1]), float(fields[2]))
        elif kind == "h":
            ledger.see(_parse_ids(fields[3:]), at=float(fields[2]), by=fields[1])
        elif kind == "p":
            self.present.update(_parse_ids(fields[1:]))
        elif kind == "f":
            ledger.finish(_parse_ids(fields[2:]), float(fields[1]))
        elif kind == "w":
            ledger.altered += int(fields[1])
        elif kind == "c":
            ledger.corrupt += int(fields[1])
        elif kind == "n":
            self.notes.append((fields[1], " ".join(fields[2:])))

    def book_file(self, path: str, ledger: Ledger) -> None:
        """Books the lines of a file that grandchildren appended to; an unfinished last line is left out."""
        with open(path, "rb") as lines:
            for line in lines.read().split(b"\n")[:-1]:
                self._book(line.decode().split(" "), ledger)

    def noted(self, word: str) -> str | None:
        """The text of the first note with this word, or None."""
        return next((text for one, text in self.notes if one == word), None)

    def alive(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def kill(self) -> None:
        """SIGKILL; nothing when it is dead already. Does not wait."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)

    def join(self, ledger: Ledger | None, timeout: float = 30.0) -> int:
        """Books everything until the child's end and returns its exit code (negative: signal).

        A child that is not gone after ``timeout`` seconds is killed and TimeoutError raised.
        """
        late = not follow([self], ledger, lambda: False, timeout)
        if late and self.alive():
            self.kill()
            follow([self], ledger, lambda: False, 5.0)
        deadline = time.monotonic() + 5
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.alive():  # the pipe's end was closed, the process goes on
            self.kill()
            os.waitpid(self.pid, 0)
            self.status = -int(signal.SIGKILL)
            late = True
        if late:
            raise TimeoutError(f"{self.name} did not end within {timeout} s: {self.trouble()}")
        assert self.status is not None
        return self.status

    def trouble(self, limit: int = 3000) -> str:
        """The end of what it wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - limit))
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        """Kills it if need be and frees the descriptors. Idempotent."""
        if self._read < 0:
            return
        self.kill()
        if self.status is None:
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
        os.close(self._read)
        self._read = -1
        self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def follow(children: Sequence[Child], ledger: Ledger | None, until: Callable[[], bool], timeout: float) -> bool:
    """Books the children's lines until ``until()`` or until all have closed their ends.

    Returns True in both cases, False when ``timeout`` seconds ran out first.
    """
    deadline = time.monotonic() + timeout
    open_ones = list(children)
    while open_ones:
        if until():
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        ready = wait(open_ones, min(left, 0.05))
        for child in ready:
            if not child.pump(ledger):
                open_ones.remove(child)
        if not ready:
            # Grandchildren may hold the pipe open; nothing more comes from a dead child whose pipe is empty, and that is
            # looked at after its death: it may have said all it had to say since the wait was over.
            open_ones = [child for child in open_ones if child.alive() or wait([child], 0)]
    return True
