"""No room, no descriptors: what leaves a public call is an error of ours, and what is claimed still reaches the sideline."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import StoreFullError, StoreUnreachableError
from ignis.native import encode_record
from ignis.relay.directory import RelayDirectory
from ignis.storage import open_store
from ignis.storage.checks import DURABILITIES
from tests.support import eventually, reasons
from tests.support.disk import disk, fill_disk

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]

DRAINED_WITHIN_S = 120.0
_CHECKPOINTS_BYTES = 512 << 10


def fill(queue: ignis.Queue[Any], size: int, batch: int) -> int:
    """Publishes until refused; returns how many messages were stored."""
    count = 0
    with contextlib.suppress(StoreFullError):
        while True:
            queue.publish_many([os.urandom(size) for _ in range(batch)])
            count += batch
    return count


@pytest.mark.parametrize(
    ("size", "batch", "room", "part"),
    [(900, 20, "24m", 1), pytest.param(900, 20, "24m", 2, marks=pytest.mark.long), (1_000_000, 1, "40m", 1)],
)
def test_failures_reach_the_sideline_of_a_full_disk(
    tmp_path: Path, new_app: MakeApp, size: int, batch: int, room: str, part: int
) -> None:
    """Every one of them, though a transfer of all at once has no room: the rest frees it."""
    with disk(tmp_path / "disk", room) as path:
        app = new_app(f"embedded://{path}/store", consumer={"ack_retry": 0.05})
        queue = app.queue("jobs", bytes, shards=2, shovel_interval=0)
        count = fill(queue, size, batch)
        assert count >= 10
        fill_disk(path / "ballast")
        if size > 500_000:
            # Such a record takes a whole file of the log. Of the room that one gives back a checkpoint may take a part, and then
            # there is none for the next: the failures stay claimed until there is.
            os.truncate(path / "ballast", max(0, (path / "ballast").stat().st_size - _CHECKPOINTS_BYTES))
        handled: list[int] = []

        @queue.handler
        def handle(message: bytes) -> bool:
            handled.append(1)
            return len(handled) % part != 0

        app.start()
        eventually(lambda: not queue.main.pending() and not queue.main.in_flight(), timeout=DRAINED_WITHIN_S)
        assert len(handled) == count
        assert sum(reasons(queue).values()) == count // part
        assert app.stop() is True
        app.close()


def test_retries_wait_for_room_on_a_full_disk(tmp_path: Path, new_app: MakeApp) -> None:
    """Nothing is lost or counted twice meanwhile, and all of it goes on when there is room."""
    with disk(tmp_path / "disk", "24m") as path:
        app = new_app(f"embedded://{path}/store", consumer={"ack_retry": 0.05})
        queue = app.queue("jobs", bytes, shards=2, shovel_interval=0)
        count = len(queue.publish_many([os.urandom(900) for _ in range(600)]))
        fill_disk(path / "ballast")
        calls: list[int] = []

        @queue.handler(retry=ignis.Retry(attempts=3, base=0))
        def handle(message: bytes, ctx: ignis.Context) -> bool:
            calls.append(ctx.attempt)
            return len(calls) % 2 == 0

        def figure(name: str) -> int:
            return int(queue.stats()["consumer"][name])

        app.start()
        eventually(lambda: figure("ack_errors") >= 3)
        (path / "ballast").unlink()
        eventually(lambda: figure("handled") + figure("sidelined") == count, timeout=DRAINED_WITHIN_S)
        assert calls.count(1) == count
        assert sum(reasons(queue).values()) == figure("sidelined")
        assert figure("retried") == calls.count(2) + calls.count(3)
        assert app.stop() is True
        app.close()


@pytest.mark.parametrize(
    ("size", "batch", "room", "attempts"),
    [
        (10_200, 1, "34m", 9),
        pytest.param(1_000, 20, "24m", 9, marks=pytest.mark.long),
        pytest.param(900, 20, "24m", 3, marks=pytest.mark.long),
        pytest.param(200, 50, "24m", 1, marks=pytest.mark.long),
    ],
)
def test_failures_that_grow_reach_the_sideline_of_a_full_disk(
    tmp_path: Path, new_app: MakeApp, size: int, batch: int, room: str, attempts: int
) -> None:
    """Each would need more room than it frees: without its history it does not, or without anything that its failure says.
    The first ones must not take what the last ones need to move at all, and on a disk that others filled there may be no more."""
    with disk(tmp_path / "disk", room) as path:
        app = new_app(f"embedded://{path}/store", consumer={"ack_retry": 0.05})
        queue = app.queue("jobs", bytes, shards=2, shovel_interval=0)
        count = fill(queue, size, batch)
        assert count >= 200
        fill_disk(path / "ballast")

        @queue.handler(attempts=attempts)
        def handle(message: bytes) -> None:
            raise ValueError("x" * 400)

        app.start()
        eventually(lambda: not queue.main.pending() and not queue.main.in_flight(), timeout=DRAINED_WITHIN_S)
        found = reasons(queue)
        assert set(found) <= {"exception", None}
        assert sum(found.values()) == count  # all are there; what says why may be spared for all of them
        assert app.stop() is True
        app.close()


def test_a_sweep_by_hand_works_on_a_full_disk(tmp_path: Path, new_app: MakeApp) -> None:
    with disk(tmp_path / "disk", "24m") as path:
        app = new_app(f"embedded://{path}/store", clock=lambda: 4e9)
        queue = app.queue("jobs", bytes, shovel_interval=0)
        count = fill(queue, 900, 20)
        fired = queue.main.store.fire("jobs", count, "somebody")
        assert fired.total() == count
        fill_disk(path / "ballast")
        while True:
            try:
                result = app.sweep_queue("jobs")
            except StoreFullError:  # and no other
                os.unlink(path / "ballast")
                continue
            if not result.swept:
                break
        assert queue.main.in_flight() == 0
        assert sum(reasons(queue).values()) == count
        app.close()


@pytest.mark.parametrize("filled", DURABILITIES)
def test_a_store_that_filled_its_disk_is_opened_again(tmp_path: Path, filled: str) -> None:
    """All of it, though one durability class has all the room: who comes to make room must get in."""
    with disk(tmp_path / "disk", "24m") as path:
        url = f"embedded://{path}/store"
        stored = dict.fromkeys(DURABILITIES, 0)
        with open_store(url) as store:
            for durability in DURABILITIES:
                store.magazines.declare(durability, 1, durability)
                store.magazines.load_records(durability, 0, [encode_record(b"x")])
                stored[durability] += 1
            with contextlib.suppress(StoreFullError):
                while True:
                    store.magazines.load_records(filled, 0, [encode_record(os.urandom(900)) for _ in range(20)])
                    stored[filled] += 20
        for _ in range(2):
            with open_store(url) as store:
                for durability in DURABILITIES:
                    store.magazines.declare(durability, 1, durability)
                    shard = store.magazines.metadata(durability)[0]
                    assert shard.load_counter - shard.fire_counter == stored[durability]


@pytest.mark.parametrize("size", ["4k", "16k", "64k", "256k", "512k", "1m", "4m", "8m", "12m", "16m", "17m"])
def test_a_new_store_on_a_full_disk(tmp_path: Path, size: str) -> None:
    with disk(tmp_path / "disk", size) as path:
        for _ in range(2):
            try:
                with open_store(f"embedded://{path}/store") as store:
                    store.magazines.declare("m", 1)
                    store.magazines.declare("i", 1, "interval")
            except StoreFullError:
                continue


LIMITED = """
import os, resource, sys
from ignis.errors import IgnisError
from ignis.storage import open_store
from ignis.native import encode_record
import ignis.storage.embedded
what, limit, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
kind = getattr(resource, what)
if what == "RLIMIT_NOFILE":
    limit += len(os.listdir("/proc/self/fd"))
resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
try:
    with open_store("embedded://" + path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [encode_record(b"x")])
        print("opened")
except IgnisError as exc:
    assert not isinstance(exc, OSError), repr(exc)
    print(type(exc).__name__)
"""


def limited(what: str, limit: int, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, what, str(limit), str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_without_descriptors(tmp_path: Path) -> None:
    found = [limited("RLIMIT_NOFILE", limit, tmp_path / f"store{limit}") for limit in range(0, 24, 6)]
    assert set(found) <= {"StoreUnreachableError", "opened"}
    assert found[0] == "StoreUnreachableError"


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    found = [limited("RLIMIT_FSIZE", limit, tmp_path / f"store{limit}") for limit in (0, 100, 10_000, 1 << 20)]
    assert found[:3] == ["StoreFullError"] * 3
    assert found[3] in ("StoreFullError", "opened")  # as far as small segments go


FLUSHING = """
import os, sys, time
from ignis.storage import open_store
from ignis.native import encode_record
with open_store("embedded://" + sys.argv[1], sync_interval_ms=10) as store:
    for durability in ("sync", "interval"):
        store.magazines.declare(durability, 1, durability)
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for number in range(20):
        for durability in ("sync", "interval"):
            store.magazines.load_records(durability, 0, [encode_record(b"x")])
        time.sleep(0.02)
    for fd in taken:
        os.close(fd)
    for durability in ("sync", "interval"):
        assert store.magazines.fire(durability, 100, "me").total() == 20
print("done")
"""


def test_a_flush_needs_no_descriptor(tmp_path: Path) -> None:
    """Running out of them is no failure of the disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FLUSHING), str(tmp_path / "store")],
        capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_a_leader_s_lock_that_cannot_be_made(
    embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(embedded_url)
    leader = app.leader("sweeper")
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if "leader-" in os.fspath(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreFullError, match="leader's lock"):
        leader.try_lead()


def test_a_relay_without_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = RelayDirectory(tmp_path / "relay")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert not relay.relay_present()
    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    for call in (relay.lock, relay.relay_present, relay.channel_files):
        with pytest.raises(StoreUnreachableError, match="ulimit"):
            call()


def test_the_first_delayed_message_on_a_full_disk(tmp_path: Path, new_app: MakeApp) -> None:
    """The error says what it wanted to write, and how much is left."""
    with disk(tmp_path / "disk", "24m") as path:
        app = new_app(f"embedded://{path}/store")
        queue = app.queue("jobs", bytes)
        queue.publish(b"x")
        fill_disk(path / "ballast")
        with pytest.raises(
            StoreFullError, match=r"first delayed message raises the store's format.*\(\d[\d,]* bytes are free"
        ):
            queue.publish(b"x", delay="1h")
        (path / "ballast").unlink()
        queue.publish(b"x", delay="1h")
        app.close()
