"""Locks between processes: contention, a holder that dies, a holder that is paused for longer than its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignis.locks import LockManager
from ignis.storage import open_store
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

TTL_S = 1.0
PRELUDE = """
import sys
from ignis.errors import LockError
from ignis.locks import LockManager
from ignis.storage import open_store

url, client_id, path = sys.argv[1:4]
manager = LockManager(client_id, "fa", open_store(url), suffix="test_lock", poll_s=0.01)
lock = manager.lock("l")
"""


@pytest.fixture(params=["embedded", "aerospike"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"embedded://{tmp_path}/store"
        return
    client_id = f"p{os.getpid()}x{tmp_path.name}"[:30]
    yield aerospike_support.url(client_id=client_id)
    aerospike_support.forget(aerospike_support.address(), [client_id])


@pytest.fixture
def client_id(tmp_path: Path) -> str:
    return f"c{os.getpid()}-{tmp_path.name}"[:60]


@pytest.fixture
def manager(url: str, client_id: str) -> Iterator[LockManager]:
    store = open_store(url)
    with LockManager(client_id, "fa", store, suffix="test_lock", poll_s=0.01) as manager:
        yield manager
    store.close()


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(url: str, client_id: str, tmp_path: Path) -> Iterator[Start]:
    """``start(script)``: a process that runs it behind the prelude, killed at the end."""
    running: list[subprocess.Popen[str]] = []

    def begin(script: str) -> subprocess.Popen[str]:
        code = PRELUDE + textwrap.dedent(script)
        command = [sys.executable, "-c", code, url, client_id, str(tmp_path / "log")]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        with process:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


class Fenced:
    """Something that a lock protects and that looks at the tokens, as it should."""

    def __init__(self) -> None:
        self.highest = 0
        self.written: list[str] = []

    def write(self, token: int, what: str) -> bool:
        if token < self.highest:
            return False
        self.highest = token
        self.written.append(what)
        return True


def test_processes_never_meet(start: Start, tmp_path: Path) -> None:
    """Each writes a line when it enters and one when it leaves: they come in pairs, and the tokens rise."""
    script = """
        import time
        with open(path, "a", buffering=1) as log:
            for _ in range(15):
                with lock:
                    token = lock.token
                    log.write(f"in {token}\\n")
                    time.sleep(0.001)
                    log.write(f"out {token}\\n")
    """
    processes = [start(script) for _ in range(4)]
    assert [process.wait(2 * WAIT_S) for process in processes] == [0] * 4
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2 * 4 * 15
    tokens = []
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert entered.removeprefix("in ") == left.removeprefix("out ")
        tokens.append(int(entered.removeprefix("in ")))
    assert tokens == sorted(set(tokens))


def test_a_holder_that_dies(start: Start, manager: LockManager) -> None:
    other = start("""
        lock.acquire(1)
        print(lock.token, flush=True)
        sys.stdin.read()
    """)
    token = int(says(other))
    assert not manager.lock("l").try_acquire()
    other.send_signal(signal.SIGKILL)
    other.wait(WAIT_S)
    lock = manager.lock("l")
    lock.acquire(timeout=WAIT_S)
    assert lock.token > token
    assert lock.release()


def test_a_holder_that_dies_while_it_acquires(start: Start, manager: LockManager) -> None:
    """Wherever it dies, the lock is free again when its time has run out, and no token comes twice."""
    tokens = []
    for _ in range(4):
        other = start("""
            print("begun", flush=True)
            while True:
                lock.acquire(1)
                lock.token
                lock.release()
        """)
        says(other)
        other.send_signal(signal.SIGKILL)
        other.wait(WAIT_S)
        lock = manager.lock("l")
        lock.acquire(timeout=WAIT_S)
        tokens.append(lock.token)
        assert lock.release()
    assert tokens == sorted(set(tokens))


def test_a_paused_holder_is_refused_by_what_it_writes_to(start: Start, manager: LockManager) -> None:
    other = start("""
        lock.acquire(1)
        print(lock.token, flush=True)
        sys.stdin.readline()
        print(lock.token, flush=True)  # it knows nothing, and writes with what it has
        print(lock.renew(), lock.lost.is_set(), lock.release(), flush=True)
    """)
    resource = Fenced()
    assert resource.write(int(says(other)), "the first holder")
    other.send_signal(signal.SIGSTOP)
    try:
        lock = manager.lock("l")
        lock.acquire(60, timeout=WAIT_S)
        assert resource.write(lock.token, "the second holder")
    finally:
        other.send_signal(signal.SIGCONT)
    tell(other)
    assert not resource.write(int(says(other)), "the first holder, late")
    assert says(other) == "False True False"
    assert lock.held
    assert lock.release()
    assert resource.written == ["the first holder", "the second holder"]


def test_a_holder_that_is_paused_before_it_has_a_token(start: Start, manager: LockManager, url: str) -> None:
    other = start("""
        lock.acquire(1)
        print("held", flush=True)
        sys.stdin.readline()
        try:
            print(lock.token, flush=True)
        except LockError as exc:
            print(exc.code, flush=True)
    """)
    assert says(other) == "held"
    other.send_signal(signal.SIGSTOP)
    try:
        lock = manager.lock("l")
        lock.acquire(60, timeout=WAIT_S)
        token = lock.token
    finally:
        other.send_signal(signal.SIGCONT)
    tell(other)
    said = says(other)
    # A token that came with the lock is lower; one that is drawn only now is refused.
    assert said == "LOCK_LOST" if url.startswith("aerospike:") else int(said) < token


def test_a_paused_holder_learns_from_its_renewal(start: Start, manager: LockManager) -> None:
    other = start("""
        lock = manager.lock("l", renew=True)
        lock.acquire(1)
        print("held", flush=True)
        print(lock.lost.wait(60), lock.held, lock.release(), flush=True)
    """)
    assert says(other) == "held"
    other.send_signal(signal.SIGSTOP)
    try:
        lock = manager.lock("l")
        lock.acquire(60, timeout=WAIT_S)
    finally:
        other.send_signal(signal.SIGCONT)
    assert says(other) == "True False False"
    assert lock.release()


def test_waiters_go_on_when_others_die(start: Start, manager: LockManager) -> None:
    lock = manager.lock("l")
    lock.acquire(60)
    script = """
        print("waits", flush=True)
        lock.acquire(1)
        print(lock.token, flush=True)
    """
    waiters = [start(script) for _ in range(3)]
    assert [says(one) for one in waiters] == ["waits"] * 3
    waiters[0].send_signal(signal.SIGKILL)
    waiters[0].wait(WAIT_S)
    token = lock.token
    assert lock.release()
    got = sorted(int(says(one)) for one in waiters[1:])
    assert token < got[0] < got[1]
    eventually(lambda: all(one.poll() == 0 for one in waiters[1:]))
