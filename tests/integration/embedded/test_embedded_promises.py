"""What docs/guarantees.md promises of the embedded store alone: each test is named there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.cli import main as cli
from ignis.errors import StoreFailedError, StoreFormatError, StoreFullError
from ignis.native import PackedBatch, Record, encode_record, shard_for_key
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.storage.embedded.keys import Change
from tests.support import eventually, sidelined, wait_idle
from tests.support.disk import disk, fill_disk, resize
from tests.support.embedded import Child, forever
from tests.support.interpreter import hold_interpreter
from tests.torture.volume import Volume, unavailable

pytestmark = pytest.mark.integration

CLASSES = ("sync", "interval", "none")
LEFT_OUT = 1 << 24


def batch(*bodies: str) -> list[tuple[int, PackedBatch]]:
    return [(0, PackedBatch.pack([encode_record(body.encode()) for body in bodies]))]


def drained(store: Store, magazine: str) -> list[str]:
    """The bodies of all that waits, in many calls: a claim spans so many pointers at most, and each opening leaves some out."""
    bodies: list[str] = []
    while claims := store.magazines.fire(magazine, 10_000, "me").claims:
        bodies += [Record(record or b"").body.decode() for claim in claims for record in claim.records]
    return bodies


# -- the directory


@pytest.mark.parametrize("instead", ["nothing", "an empty directory", "a copy"])
def test_a_directory_that_was_moved_is_noticed(tmp_path: Path, instead: str) -> None:
    """Nothing is confirmed that whoever opens the path would not find; back in its place, it goes on."""
    path, moved = tmp_path / "store", tmp_path / "moved"
    said = "is another directory than the one that was opened" if instead == "a copy" else "is not there any more"
    with open_store(f"embedded://{path}") as store:
        magazines = store.magazines
        for name in CLASSES:
            magazines.declare(name, 1, name)
            magazines.load(name, batch("before", "claimed"), None)
        path.rename(moved)
        if instead == "an empty directory":
            path.mkdir(mode=0o700)
        elif instead == "a copy":
            shutil.copytree(moved, path)
        for name in CLASSES:
            calls: list[Callable[[], object]] = [
                lambda name=name: magazines.load(name, batch("refused"), None),  # type: ignore[misc]
                lambda name=name: magazines.fire(name, 1, "me"),  # type: ignore[misc]
                lambda name=name: magazines.delete(name, {0: [1]}),  # type: ignore[misc]
            ]
            for call in calls:
                with pytest.raises(StoreFailedError, match=said):
                    call()
        with pytest.raises(StoreFailedError, match=said):
            store.locks.next_epoch("s")
        for name in CLASSES:  # the first delayed message raises the format, which is a file of its own
            with pytest.raises(StoreFailedError, match=said):
                magazines.load_later(name, batch("refused"), [[4_000_000_000_000]], None)
        if instead == "an empty directory":
            assert not list(path.iterdir())
        if instead != "nothing":
            shutil.rmtree(path)
        moved.rename(path)
        for name in CLASSES:
            # A flush of the background may have been refused meanwhile, and says so once.
            eventually(lambda name=name: _loads(store, name))  # type: ignore[misc]
            assert drained(store, name) == ["before", "claimed", "after"]


def test_what_is_refused_while_the_directory_moves_is_not_found(tmp_path: Path) -> None:
    """The move may come between the write and the flush: then the error does not say that nothing was stored."""
    path, moved, ended = tmp_path / "store", tmp_path / "moved", threading.Event()

    def move() -> None:
        while not ended.is_set():
            path.rename(moved)
            time.sleep(0.001)
            moved.rename(path)
            time.sleep(0.001)

    with open_store(f"embedded://{path}") as store:
        store.magazines.declare("m", 1, "sync")
        mover = threading.Thread(target=move)
        mover.start()
        stored, refused = [], []
        try:
            for number in range(600):
                try:
                    store.magazines.load("m", batch(str(number)), None)
                    stored.append(str(number))
                except StoreFailedError as exc:
                    if "nothing was stored" in str(exc):
                        refused.append(str(number))
        finally:
            ended.set()
            mover.join()
        found = set(drained(store, "m"))
        assert refused
        assert set(stored) <= found
        assert not found & set(refused)


def test_a_link_counts_as_it_was_at_the_opening(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("first")
    with open_store(f"embedded://{link}") as store:
        store.magazines.declare("m", 1)
        link.unlink()
        link.symlink_to("second")
        store.magazines.load("m", batch("a"), None)
        with open_store(f"embedded://{link}") as other:
            assert other.magazines.names() == []
    with open_store(f"embedded://{tmp_path}/first") as store:
        assert drained(store, "m") == ["a"]


def _loads(store: Store, name: str) -> bool:
    try:
        store.magazines.load(name, batch("after"), None)
    except StoreFailedError:
        return False
    return True


def test_each_opening_by_somebody_alone_leaves_pointers_out(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    firsts = []
    for _ in range(3):
        with open_store(url) as store:
            store.magazines.declare("m", 2)
            firsts.append(store.magazines.load("m", batch("a"), None)[0])
            with open_store(url) as beside:
                assert beside.magazines.load("m", batch("b"), None) == [firsts[-1] + 1], "not alone"
    assert [later - before >= LEFT_OUT for before, later in itertools.pairwise(firsts)] == [True, True]


# -- interval


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, None], ids=str)
def test_the_end_of_a_killed_process_is_flushed_by_whoever_uses_the_class(
    tmp_path: Path, end: signal.Signals | None
) -> None:
    """Neither a signal nor ``os._exit``, by which a `Child` ends, lets it flush anything itself."""
    url = f"embedded://{tmp_path}/store"
    with open_store(url) as store:
        store.magazines.declare("m", 1, "interval")

    def load(say: Callable[[str], None]) -> None:
        store = open_store(url, sync_interval_ms=3_600_000)
        store.magazines.load("m", batch("a"), None)
        say("loaded")
        if end is not None:
            forever()

    with open_store(url, sync_interval_ms=50) as store, Child(load) as child:
        log = store.directory.log("interval")  # type: ignore[attr-defined]
        assert child.line() == "loaded"
        if end is not None:
            child.kill(end)
        if end is not signal.SIGSTOP:
            assert child.join() == -(end or 0)
        eventually(lambda: log.figures()["durable"] == log.figures()["end"])
        assert drained(store, "m") == ["a"]


def test_interval_is_flushed_while_a_program_holds_the_interpreter(tmp_path: Path) -> None:
    """As a regular expression does that takes for ever. Nobody else flushes: the other process only looks."""
    url = f"embedded://{tmp_path}/store"
    reading, writing = os.pipe()

    def load(say: Callable[[str], None]) -> None:
        with open_store(url, sync_interval_ms=100) as store:
            store.magazines.load("m", batch("a"), None)
            say("loaded")
            assert hold_interpreter(reading)
            say("let go")

    with open_store(url, sync_interval_ms=3_600_000) as store:
        store.magazines.declare("m", 1, "interval")
        log = store.directory.log("interval")  # type: ignore[attr-defined]
        with Child(load) as child:
            assert child.line() == "loaded"
            eventually(lambda: log.figures()["durable"] == log.figures()["end"])
            os.write(writing, b"x")
            assert child.line() == "let go"
            assert child.join() == 0
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_killed_process_leaves_its_end_to_the_system(tmp_path: Path, durability: str) -> None:
    """Nobody else has the store open: what was acknowledged is in the system's memory."""
    url = f"embedded://{tmp_path}/store"

    def load(say: Callable[[str], None]) -> None:
        store = open_store(url, sync_interval_ms=3_600_000)
        store.magazines.declare("m", 1, durability)
        for number in range(50):
            store.magazines.load("m", batch(f"{number}"), None)
        say("loaded")
        forever()

    with Child(load) as child:
        assert child.line() == "loaded"
        child.kill(signal.SIGKILL)
        child.join()
    with open_store(url) as store:
        assert drained(store, "m") == [str(number) for number in range(50)]


LOADS = """
import os, sys
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
store = open_store(sys.argv[1], sync_interval_ms=3_600_000)
for name in ("none", "interval", "sync"):
    store.magazines.declare(name, 1, name)
for name in ("none", "interval", "sync"):
    os.write(2, b"BEGIN " + name.encode())
    for _ in range(20):
        store.magazines.load(name, [(0, PackedBatch.pack([encode_record(b"a")] * 50))], None)
os.write(2, b"BEGIN end")
os._exit(0)
"""


REMOVALS = """
import os, sys
import ignis
app = ignis.Ignis(sys.argv[1], store={"sync_interval_ms": 3_600_000})
ids, later = {}, {}
for name in ("none", "interval", "sync"):
    queue = app.queue(name, int, shards=1, durability=name)
    ids[name] = queue.publish_many([1, 2, 3])
    later[name] = [queue.publish(4, delay=3_600).id for _ in range(2)]
for name in ("none", "interval", "sync"):
    queue = app.queue(name, int)
    os.write(2, b"BEGIN " + name.encode())
    assert queue.delete([ids[name][0]]).deleted == 1
    assert queue.cancel(ids[name][1]) == "waiting"
    assert queue.cancel(later[name][0]) == "delayed"
    assert queue.later.cancel(later[name][1]) == 1
    assert queue.purge().waiting == 1
os.write(2, b"BEGIN end")
os._exit(0)
"""


def calls_of(script: str, tmp_path: Path) -> dict[str, tuple[int, int]]:
    """How often the thread of the script writes and flushes in each of its parts. The background's are not counted."""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=write,pwrite64,pwritev,pwritev2,fdatasync,fsync"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, f"embedded://{tmp_path}/store"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.count(b"BEGIN") == 4
    lines = trace.read_text().splitlines()
    caller = next(line.split()[0] for line in lines if "BEGIN none" in line)
    mine = "\n".join(line for line in lines if line.split()[0] == caller and '"", 0' not in line)
    found = {}
    for part in mine.split("BEGIN ")[1:-1]:
        name = part.partition('"')[0]
        found[name] = (part.count("pwrite"), part.count("fdatasync(") + part.count("fsync("))
    return found


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_what_a_call_flushes(tmp_path: Path) -> None:
    """One write for a call, and in `sync` one flush, however many messages it has."""
    assert calls_of(LOADS, tmp_path) == {"none": (20, 0), "interval": (20, 0), "sync": (20, 20)}


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_removing_flushes_as_publishing_does(tmp_path: Path) -> None:
    assert calls_of(REMOVALS, tmp_path) == {"none": (5, 0), "interval": (5, 0), "sync": (5, 5)}


def test_memory_survives_nothing() -> None:
    url = "memory://survives-nothing"

    def load(say: Callable[[str], None]) -> None:
        store = open_store(url)
        store.magazines.declare("m", 1)
        store.magazines.load("m", batch("a"), None)
        say(" ".join(store.magazines.names()))

    for _ in range(2):
        with Child(load) as child:
            assert (child.lines(), child.join()) == (["m"], 0)
        with open_store(url) as store:
            assert store.magazines.names() == []


# -- order


def test_more_shards_break_the_order_of_a_key(tmp_path: Path) -> None:
    """What docs/guarantees.md warns of: a new message of a key may be handed out before an old one."""
    key = next(f"key{n}" for n in range(100) if shard_for_key(b"key%d" % n, 8) != 0)
    for shards, message in ((1, "old"), (8, "new")):
        with ignis.Ignis(f"embedded://{tmp_path}/store") as app:
            app.queue("q", str, shards=shards).publish(message, key=key)
    with open_store(f"embedded://{tmp_path}/store") as store:
        (claim,) = store.magazines.fire("q", 1, "me", shards=[shard_for_key(key.encode(), 8)]).claims
        assert Record(claim.records[0] or b"").body == b"new"
        assert drained(store, "q") == ["old"]


# -- failing disks

CARELESS = """
import os, sys
from ignis.errors import StoreFailedError
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
def batch(n):
    return [(0, PackedBatch.pack([encode_record(b"%d" % n)]))]
with open_store(sys.argv[1]) as store:
    magazines = store.magazines
    magazines.declare("m", 1)
    magazines.declare("beside", 1, "none")
    stored, refused, row = [], 0, 0
    for number in range(2_000):
        try:
            magazines.load("m", batch(number), None)
            stored.append(number)
            row += 1
        except StoreFailedError:
            refused += 1
            row = 0
        magazines.load("beside", batch(number), None)
        if row == 40:
            break
    print(number, refused, *stored)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
@pytest.mark.parametrize(("failing", "refuses"), [("12", False), ("12..20", True)])
def test_a_failed_flush_costs_at_most_its_call(tmp_path: Path, failing: str, refuses: bool) -> None:
    """One that fails alone costs nothing: all is written into another file. Several in a row cost the calls that met them."""
    url = f"embedded://{tmp_path}/store"
    with open_store(url) as store:
        store.magazines.declare("m", 1)
        store.magazines.declare("beside", 1, "none")
    command = [
        "strace",
        "-f",
        "-o",
        os.devnull,
        "-e",
        "trace=fdatasync",
        "-e",
        f"inject=fdatasync:error=EIO:when={failing}",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", CARELESS, url], capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.returncode, done.stderr
    last, refused, *stored = map(int, done.stdout.split())
    assert (refused > 0) == refuses
    assert len(stored) == last + 1 - refused
    with open_store(url) as store:
        assert drained(store, "m") == list(map(str, stored))
        assert drained(store, "beside") == [str(number) for number in range(last + 1)]


BACKGROUND = """
import sys, time
from ignis.errors import StoreFailedError
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
with open_store(sys.argv[1], sync_interval_ms=5) as store:
    magazines = store.magazines
    magazines.declare("m", 1, "interval")
    stored, refused, row = [], 0, 0
    for number in range(2_000):
        try:
            magazines.load("m", [(0, PackedBatch.pack([encode_record(b"%d" % number)]))], None)
            stored.append(number)
            row += 1
        except StoreFailedError:
            refused += 1
            row = 0
        time.sleep(0.005)
        if row == 60:
            break
    print(number, refused, *stored)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_a_failed_flush_of_the_background_is_told_to_the_next_call(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with open_store(url) as store:
        store.magazines.declare("m", 1, "interval")
    command = [
        "strace",
        "-f",
        "-o",
        os.devnull,
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:error=EIO:when=12..25",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", BACKGROUND, url], capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.returncode, done.stderr
    _, refused, *stored = map(int, done.stdout.split())
    assert 0 < refused <= 14, "each is told once"
    with open_store(url) as store:
        assert drained(store, "m") == list(map(str, stored))


# -- full disks


def fill(queue: ignis.Queue[bytes], disk_path: Path) -> int:
    """Publishes until it is refused, and takes what is left of the disk. How many messages were stored."""
    count = 0
    with contextlib.suppress(StoreFullError):
        while True:
            queue.publish_many([os.urandom(900) for _ in range(20)])
            count += 20
    fill_disk(disk_path / "ballast")
    return count


def published(queue: Any, message: bytes) -> bool:
    try:
        queue.publish(message)
    except StoreFullError:
        return False
    return True


def test_a_full_disk_is_drained(tmp_path: Path, new_app: Callable[..., Any]) -> None:
    with disk(tmp_path / "disk", "24m") as path:
        app = new_app(f"embedded://{path}/store")
        queue = app.queue("jobs", bytes, shards=2)
        count = fill(queue, path)
        assert count > 10_000
        handled: list[bytes] = []

        @queue.handler
        def handle(message: bytes) -> None:
            handled.append(message)

        app.start()
        eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
        assert len(handled) == len(set(handled)) == count
        eventually(
            lambda: published(queue, b"again")
        )  # the ballast is still there, and what was drained is given back soon
        eventually(lambda: len(handled) == count + 1)
        app.close()


def test_failures_on_a_full_disk_lose_nothing(tmp_path: Path, new_app: Callable[..., Any]) -> None:
    with disk(tmp_path / "disk", "24m") as path:
        app = new_app(f"embedded://{path}/store", consumer={"ack_retry": 0.05})
        queue = app.queue("jobs", bytes, shards=2, shovel_interval=0)
        count = fill(queue, path)
        queue.handler(lambda _: False)
        app.start()
        eventually(lambda: queue.sideline.pending() > 100)
        app.stop(5)
        app.close()
        resize(path, "64m")
        app = new_app(f"embedded://{path}/store", clock=lambda: time.time() + 100_000)
        queue = app.queue("jobs", bytes, shards=2, shovel_interval=0)
        queue.handler(lambda _: False)
        app.start()
        eventually(lambda: not queue.main.pending() and (app.sweep_queue("jobs"), not queue.main.in_flight())[1])
        assert queue.sideline.pending() == count
        app.close()


# -- power cuts


@pytest.mark.skipif(unavailable("xfs") is not None, reason="no volume whose power can be cut")
def test_what_a_power_cut_leaves(tmp_path: Path) -> None:
    """`sync`: everything, and the claims that were flushed. `none`: all but an unflushed end."""
    with Volume(tmp_path, "xfs") as volume:
        url = f"embedded://{volume.path}/store"

        def work(say: Callable[[str], None]) -> None:
            magazines = open_store(url).magazines
            for name in ("sync", "none"):
                magazines.declare(name, 1, name)
            magazines.load("sync", batch("a", "b"), None)
            assert magazines.fire("sync", 1, "theirs").total() == 1
            magazines.load("sync", batch("c"), None)  # its flush takes the claim along
            for number in range(200):
                magazines.load("none", batch(f"{number}"), None)
            say("done")
            forever()

        with Child(work) as child:
            assert child.line() == "done"
            volume.cut()
            child.kill()
            child.join()
        volume.restart()
        with open_store(url) as store:
            assert store.magazines.metadata("sync")[0].in_flight == 1
            assert list(store.magazines.claimants("sync").values()) == [True], "the sweeper takes it at once"
            assert drained(store, "sync") == ["b", "c"]
            if "none" in store.magazines.names():
                left = drained(store, "none")
                assert left == [str(number) for number in range(len(left))]


# -- damage


@pytest.mark.parametrize("damaged", [b"\x00", b"", b"\x81\xa4name\xa1x"])
def test_a_damaged_record_of_a_queue_costs_itself_alone(
    tmp_path: Path, new_app: Callable[..., Any], damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"embedded://{tmp_path}/store"
    with ignis.Ignis(url) as app:
        for name in ("bad", "good"):
            app.queue(name, dict, shards=1).publish({"n": name})
    with open_store(url) as store:
        keys, key = store.keys, store.scope.key(b"Q", "bad")  # type: ignore[attr-defined]
        keys.change(lambda: ([Change(key, keys.get(key), damaged)], None), "a test")
    with caplog.at_level(logging.ERROR):
        app = new_app(url)
        assert [record.name for record in app.store.queues.list()] == ["good"]
    assert "record of queue 'bad' is damaged" in caplog.text
    with pytest.raises(StoreFormatError, match="record of queue 'bad' is damaged"):
        app.queue("bad", dict, shards=1).publish({})
    app.queue("good", dict).publish({"n": 2})
    assert app.queue("good", dict).main.pending() == 2
    assert app.store.queues.remove("bad")
    again = app.queue("bad", dict, shards=1)
    again.publish({"n": 2})
    assert again.main.pending() == 2, "its messages were not touched"


@pytest.mark.parametrize("how", ["opened", "repaired"])
def test_damaged_messages_of_the_log_reach_the_sideline_with_their_places(
    tmp_path: Path, new_app: Callable[..., Any], how: str
) -> None:
    """Among others of one call, two of three, all of one call, and one alone: the store was closed, and bytes are others now."""
    path = tmp_path / "store"
    calls = [[f"{call}-{number}-" + "x" * 60 for number in range(count)] for call, count in enumerate((5, 3, 2, 1, 1))]
    damaged = [calls[0][1], calls[1][0], calls[1][2], *calls[2], *calls[3]]
    places: dict[str, int] = {}
    with ignis.Ignis(f"embedded://{path}") as app:
        queue = app.queue("jobs", str, shards=1)
        for call in calls:
            places.update((body, pointer) for pointer, body in enumerate(call, 1 + len(places)))
            queue.publish_many(call)
        assert queue.main.pending() == len(places)
    [log] = (path / "sync").glob("log-*")
    content = bytearray(log.read_bytes())
    for body in damaged:
        content[content.index(body.encode()) + 30] ^= 0x10
    log.write_bytes(content)
    if how == "repaired":
        assert cli(["doctor", "--repair", str(path)]) == 0
    app = new_app(f"embedded://{path}")
    queue = app.queue("jobs", str, shards=1)
    handled: list[str] = []
    queue.handler(handled.append)
    app.start()
    wait_idle(queue)
    assert handled == [body for call in calls for body in call if body not in damaged]
    aside = sidelined(queue)
    assert [message.reason for message in aside] == ["corrupt"] * len(damaged)
    assert {message.error for message in aside} == {
        f"checksum mismatch at jobs, shard 0, pointer {places[body]}" for body in damaged
    }


def test_a_message_of_which_no_place_is_left_is_told_and_kept_apart(
    tmp_path: Path, new_app: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the log's own words around a message are gone too, nobody knows which one it was."""
    path = tmp_path / "store"
    bodies = [f"{number}-" + "x" * 60 for number in range(3)]
    with ignis.Ignis(f"embedded://{path}") as app:
        for body in bodies:
            app.queue("jobs", str, shards=1).publish(body)
    [log] = (path / "sync").glob("log-*")
    content = bytearray(log.read_bytes())
    at = content.index(bodies[1].encode())
    content[at - 60 : at + 30] = b"\xff" * 90
    log.write_bytes(content)
    app = new_app(f"embedded://{path}")
    queue = app.queue("jobs", str, shards=1)
    handled: list[str] = []
    queue.handler(handled.append)
    app.start()
    wait_idle(queue)
    assert "bytes of the log are damaged" in caplog.text
    assert handled == [bodies[0], bodies[2]]
    assert not queue.sideline.pending()
    assert app.store.directory.log("sync").figures()["damaged_bytes"] > 90
    [copy] = (path / "sync").glob("damaged-*")
    assert b"\xff" * 90 in copy.read_bytes()
