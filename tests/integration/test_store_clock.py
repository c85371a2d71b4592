"""Steps of the wall clock: no second holder of a lock, no message that ends early or lives on, no claim taken away."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ignis
from ignis.errors import StoreFullError
from ignis.native import PackedBatch, encode_record
from ignis.storage import clock, open_store
from ignis.storage.base import Store
from ignis.storage.embedded import clock as embedded_clock
from ignis.storage.embedded import directory
from ignis.storage.embedded.clock import Boot, open_clock
from ignis.storage.embedded.store import EmbeddedStore
from ignis.storage.process_identity import this_process
from tests.support.disk import disk, fill_disk

pytestmark = pytest.mark.integration

HOUR_S = 3600.0
PRELUDE = """
import sys, time
url, step = sys.argv[1], float(sys.argv[2])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + step
time.time_ns = lambda: real_ns() + int(step * 1e9)
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
store = open_store(url)
magazines, locks = store.magazines, store.locks
"""


def elsewhere(url: str, step_s: float, script: str, *wrapper: str, named: str = "") -> str:
    """What a process says whose wall clock is ahead by so much."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", named + PRELUDE + textwrap.dedent(script), url, str(step_s)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def batch(text: bytes = b"x") -> PackedBatch:
    return PackedBatch.pack([encode_record(text)])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        store.magazines.declare("m", 1)
        yield store


steps = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])


@steps
def test_a_lock_has_one_holder(store: Store, url: str, step_s: float) -> None:
    assert store.locks.acquire("ours", "here", 60) is not None
    theirs = """
        assert locks.get("ours").owner == "here"
        assert locks.acquire("theirs", "there", 60) is not None
        print(locks.acquire("ours", "there", 60), locks.renew("ours", "here", 60) is not None)
    """
    assert elsewhere(url, step_s, theirs) == "None True"
    assert store.locks.acquire("theirs", "here", 60) is None


@steps
def test_a_lock_ends_in_time(store: Store, url: str, step_s: float) -> None:
    assert elsewhere(url, step_s, 'print(locks.acquire("theirs", "there", 0.05) is not None)') == "True"
    time.sleep(0.1)
    assert store.locks.acquire("theirs", "here", 60) is not None


@steps
def test_a_message_lives_as_long_as_it_was_given(store: Store, url: str, step_s: float) -> None:
    store.magazines.load("m", [(0, batch(b"ours"))], 60)
    theirs = """
        magazines.load("m", [(0, PackedBatch.pack([encode_record(b"theirs")]))], 60)
        magazines.load("m", [(0, PackedBatch.pack([encode_record(b"short")]))], 0.05)
        print(magazines.fire("m", 1, "there").total())
    """
    assert elsewhere(url, step_s, theirs) == "1"
    time.sleep(0.1)
    fired = store.magazines.fire("m", 10, "here")
    assert (fired.total(), fired.expired) == (1, 1)


@pytest.mark.parametrize(
    ("step_s", "on_expiry", "handled"),
    [
        (HOUR_S, "drop", "[2]"),
        pytest.param(HOUR_S, "sideline", "[2]", marks=pytest.mark.long),
        pytest.param(-HOUR_S, "drop", "[2, 3]", marks=pytest.mark.long),
        (-HOUR_S, "sideline", "[1, 2, 3]"),
    ],
)
def test_a_deadline_is_a_time_of_day(url: str, step_s: float, on_expiry: str, handled: str) -> None:
    """Consumers go by the wall clock. What the store was told of a deadline goes by its own clock, which nobody sets."""
    with ignis.Ignis(url) as app:
        queue = app.queue("q", int, shards=1, on_expiry=on_expiry)
        queue.publish(1, expires_in=0.05)
        queue.publish(2)
        queue.publish(3, expires_in=60)
    time.sleep(0.1)
    theirs = """
        import ignis
        from ignis.testing import drain
        app, got = ignis.Ignis(url), []
        queue = app.queue("q", int)
        @queue.handler
        def handle(message: int) -> None:
            got.append(message)
        drain(app)
        print(got)
    """
    assert elsewhere(url, step_s, theirs) == handled


@steps
def test_a_claim_is_as_old_as_it_is(store: Store, url: str, step_s: float) -> None:
    store.magazines.load("m", [(0, batch())], None)
    assert elsewhere(url, step_s, 'print(magazines.fire("m", 1, "there").total())') == "1"
    now_ms = int(time.time() * 1000)
    found = store.magazines.abandoned("m", 0, now_ms - 60_000, 10, dead_owners=False)
    assert not found
    (found,) = store.magazines.abandoned("m", 0, now_ms + 60_000, 10, dead_owners=False)
    assert abs(found.fired_at_ms - now_ms) < 60_000


def test_a_container_with_a_clock_of_its_own_counts_alike(store: Store, url: str) -> None:
    wrapper = ("unshare", "--time", "--boottime", "7200", "--fork")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no time namespaces here")
    assert store.locks.acquire("ours", "here", 60) is not None
    assert elsewhere(url, 0, 'print(locks.acquire("ours", "there", 60))', *wrapper) == "None"


def test_a_lock_of_an_earlier_boot_ends_with_its_time_to_live(store: EmbeddedStore) -> None:
    """Whatever the wall clock says: a client of a broker may hold it from another machine."""
    assert store.locks.acquire("l", "before", 60) is not None
    opened = store.directory
    up_ms = [1_000]
    opened.boot = Boot("the next", began_ms=500)
    opened.clock = clock.StoreClock(clock.wall_ms() + 10**9, lambda: up_ms[0])
    assert store.locks.acquire("l", "after", 60) is None
    assert store.locks.renew("l", "somebody", 60) is None
    up_ms[0] = 60_499
    held = store.locks.get("l")
    assert held is not None and abs(held.expires_at_ms - time.time() * 1000 - 1) < 100
    up_ms[0] = 60_500
    assert store.locks.get("l") is None
    record = store.locks.acquire("l", "after", 60)
    assert record is not None and record.token == 2


def test_the_wall_clock_is_read_once_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(boot: str, alone: bool = True) -> tuple[int, str]:
        counts, this_boot = open_clock(tmp_path, boot, alone=alone)
        return counts.offset_ms, this_boot.name

    first, name = opened("boot-1")
    assert name == "boot-1"
    monkeypatch.setattr(clock, "wall_ms", lambda: 5)
    assert opened("boot-1") == (first, "boot-1")
    assert opened("boot-2", alone=False) == (first, "boot-1")
    second, name = opened("boot-2")
    assert second <= 5 and name == "boot-2"
    (tmp_path / "clock").write_bytes((tmp_path / "clock").read_bytes()[:-1] + b"!")
    monkeypatch.undo()
    assert abs(opened("boot-2")[0] + clock.machine_ms() - clock.wall_ms()) < 60_000


ANOTHER_BOOT = """
from ignis.storage.embedded import clock as embedded_clock
from ignis.storage.embedded import directory
named = directory.this_process
directory.this_process = lambda: named()._replace(boot="another")
"""
"""What a container does that gives its boot a name of its own (LXC, systemd-nspawn)."""


def test_a_container_that_names_its_boot_itself_is_in_the_boot_of_those_beside_it(store: Store, url: str) -> None:
    store.magazines.load("m", [(0, batch())], HOUR_S / 2)
    assert store.locks.acquire("l", "here", 60) is not None
    theirs = """
        locks.acquire("theirs", "there", 60)
        print(locks.acquire("l", "there", 60), magazines.fire("m", 1, "there").total())
    """
    assert elsewhere(url, HOUR_S, theirs, named=ANOTHER_BOOT) == "None 1"
    assert store.locks.acquire("theirs", "here", 60) is None
    assert store.locks.renew("l", "here", 60) is not None
    with open_store(url) as another:
        assert abs(another.now_s() - time.time()) < 60


def test_a_lock_outlives_a_container_that_names_its_boot_anew(url: str) -> None:
    """Such as that of a broker, whose clients hold theirs from elsewhere. Nobody has the store open meanwhile."""
    with open_store(url) as store:
        assert store.locks.acquire("l", "a client", 60) is not None
    theirs = 'print(locks.acquire("l", "another", 60), locks.renew("l", "a client", 60) is not None)'
    assert elsewhere(url, 0, theirs, named=ANOTHER_BOOT) == "None True"


def test_two_that_open_it_at_once_in_another_boot_agree(url: str, tmp_path: Path) -> None:
    with open_store(url):
        pass
    script = """
        sys.stdin.readline()
        print(store.directory.boot, store.directory.clock.offset_ms, flush=True)
        sys.stdin.readline()
    """
    for number in range(5):
        named = ANOTHER_BOOT.replace("another", f"{number}-' + str(os.getpid()) + '").replace(
            "\nnamed", "\nimport os\nnamed"
        )
        both = [
            subprocess.Popen(
                [sys.executable, "-c", named + PRELUDE + textwrap.dedent(script), url, str(step)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for step in (0, HOUR_S)
        ]
        for one in both:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        said = [str(one.stdout and one.stdout.readline()) for one in both]
        for one in both:
            one.communicate("\n", timeout=30)
        assert said[0] == said[1] and f"{number}-" in said[0]


def test_another_boot_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk(tmp_path / "disk", "24m") as path:
        url = f"embedded://{path}/store"
        with open_store(url) as store:
            store.magazines.declare("m", 1)
            store.magazines.load("m", [(0, batch())], None)
        fill_disk(path / "ballast")
        here = this_process()
        monkeypatch.setattr(directory, "this_process", lambda: here._replace(boot="b" * len(here.boot)))
        before = (path / "store" / "clock").read_bytes()
        with open_store(url) as store:
            assert store.magazines.fire("m", 1, "o").total() == 1
            after = (path / "store" / "clock").read_bytes()
            assert after != before and len(after) == len(before)
            with pytest.raises(StoreFullError):
                store.magazines.load("m", [(0, PackedBatch.pack([encode_record(bytes(8 << 20))]))], None)


def test_where_the_clock_cannot_be_stored_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that copies what is written over. An old file may not stay: others would go by it."""

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    open_clock(tmp_path, "boot-1", alone=True)
    for module_name in ("write_whole", "overwrite"):
        monkeypatch.setattr(embedded_clock, module_name, refuse)
    counts, boot = open_clock(tmp_path, "boot-2", alone=True)
    assert boot.name == "boot-2" and abs(counts.now_ms() - clock.wall_ms()) < 60_000
    assert not (tmp_path / "clock").exists()
    assert open_clock(tmp_path, "boot-2", alone=False)[1].name == "boot-2"


@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_who_waits_for_a_time_does_not_wait_for_the_end_of_its_millisecond(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("memory://" if kind == "memory" else f"embedded://{tmp_path}/store") as store:
        store.magazines.declare("m", 1)
        real_ns = time.clock_gettime_ns
        at_ns = [real_ns(clock._CLOCK) // 1_000_000 * 1_000_000]
        monkeypatch.setattr(
            time, "clock_gettime_ns", lambda which: at_ns[0] if which == clock._CLOCK else real_ns(which)
        )
        store.magazines.load_later("m", [(0, batch())], [[round(store.now_s() * 1000) + 1_000]], None)
        at_ns[0] += 1_000_000_000 - 1_000
        before_s = store.magazines.due_in_s("m")
        assert before_s is not None and 0 < before_s < 0.000_1
        at_ns[0] += 1_000
        assert store.magazines.due_in_s("m") == 0


@steps
def test_the_memory_store_too(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("memory://") as store:
        store.magazines.declare("m", 1)
        assert store.locks.acquire("l", "one", 60) is not None
        store.magazines.load("m", [(0, batch())], 60)
        store.magazines.load("m", [(0, batch())], 0.05)
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + step_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(step_s * 1e9))
        assert store.locks.acquire("l", "two", 60) is None
        held = store.locks.get("l")
        assert held is not None and 0 < held.expires_at_ms - time.time() * 1000 < 61_000
        time.sleep(0.1)
        assert store.magazines.fire("m", 10, "o").total() == 1
        assert not store.magazines.abandoned("m", 0, int(time.time() * 1000) - 60_000, 10)
        assert abs(store.now_s() - real()) < 60


def test_a_queue_does_not_expire_by_the_wall_clock(embedded_url: str, new_app: Callable[..., ignis.Ignis]) -> None:
    app = new_app(embedded_url)
    app.queue("jobs", int).open()
    app.refresh()
    theirs = """
        import ignis
        print(ignis.Ignis(url).refresh().expired)
    """
    assert elsewhere(embedded_url, 30 * 86_400, theirs) == "[]"
    record = app.store.queues.get("jobs")
    assert record is not None and record.active
