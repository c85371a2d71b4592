"""What the tests of the embedded store share: children to kill, and LMDB behind the store's back."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from ignis.native import Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import Store

WAIT_S = 30.0


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


def restart_machine(path: Path) -> None:
    """As if the machine had been started anew since the store was last used. Nobody may have it open."""
    (path / "boot").write_text("another-boot")


def stored(path: Path, environment: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values as LMDB has them. Nobody may have the store open."""
    with lmdb.open(str(path / environment)) as env, env.begin() as txn:
        found = [(key, value) for key, value in txn.cursor() if key.startswith(prefix)]
    yield from found


def overwrite(path: Path, environment: str, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path / environment)) as env, env.begin(write=True) as txn:
        assert txn.put(key, value)


def flip(value: bytes, index: int) -> bytes:
    return value[:index] + bytes([value[index] ^ 0x10]) + value[index + 1 :]
