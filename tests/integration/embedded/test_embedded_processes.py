"""The embedded store shared by processes that come, go, fork and die."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ignis.errors import StoreUnreachableError
from ignis.storage import process_identity
from ignis.storage.base import Transfer
from tests.support.embedded import Child, bodies, body, forever, in_child, open_at, record

pytestmark = pytest.mark.integration

Say = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def loader(path: Path, name: str, count: int, durability: str = "sync") -> Callable[[Say], None]:
    def run(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 3, durability)
        for number in range(count):
            text = f"{name}{number}"
            store.magazines.load_records("m", number % 3, [record(text)])
            say(text)
        store.close()

    return run


def consumer(path: Path, total: int) -> Callable[[Say], None]:
    def run(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 3)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            seen = store.magazines.wait("m", -1, 0)
            fired = store.magazines.fire("m", 5, store.owner)
            for claim in fired.claims:
                for pointer, one in zip(claim.pointers, claim.records, strict=True):
                    say(f"{claim.shard}:{pointer}:{body(one)}")
                store.magazines.delete("m", {claim.shard: claim.pointers})
            if not fired.claims:
                states = store.magazines.metadata("m")
                if sum(one.load_counter for one in states) == total and not any(one.pending for one in states):
                    break
                store.magazines.wait("m", seen, 0.2)
        store.close()

    return run


def test_processes_share_the_work(path: Path) -> None:
    loaders = [Child(loader(path, f"w{number}-", 150)) for number in range(2)]
    consumers = [Child(consumer(path, 300)) for _ in range(2)]
    try:
        sent = [line for child in loaders for line in child.lines()]
        seen = [line for child in consumers for line in child.lines()]
        assert [child.join() for child in loaders + consumers] == [0, 0, 0, 0]
    finally:
        for child in loaders + consumers:
            child.__exit__(None, None, None)
    assert Counter(line.split(":", 2)[2] for line in seen) == Counter(sent)
    assert len({line.rsplit(":", 1)[0] for line in seen}) == 300, "a pointer was handed out twice"


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_what_a_killed_process_was_told_is_stored_stays(path: Path, durability: str) -> None:
    for turn in range(2):
        with Child(loader(path, f"{turn}-", 1_000_000, durability)) as child:
            told = [child.line() for _ in range(40 + 30 * turn)]
            child.kill()
            told += child.lines()
            assert child.join() == -signal.SIGKILL
        store = open_at(path)
        there = bodies(store, "m")
        assert None not in there
        assert set(told) <= set(there)
        assert len(there) - len(set(there)) == 0
        store.magazines.drop("m")
        store.close()


def claim_and_wait(path: Path, count: int) -> Callable[[Say], None]:
    def run(say: Say) -> None:
        store = open_at(path)
        fired = store.magazines.fire("m", count, store.owner)
        say(store.owner)
        say(str(fired.total()))
        forever()

    return run


def test_a_dead_claimer_is_recognised_at_once(path: Path) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record(f"m{number}") for number in range(9)])
        with Child(claim_and_wait(path, 4)) as child:
            owner, count = child.line(), child.line()
            assert count == "4"
            assert store.magazines.abandoned("m", 0, 0, 99) == []
            child.kill()
            child.join()
        mine = store.magazines.fire("m", 2, store.owner)
        assert [body(one) for one in mine.claims[0].records] == ["m4", "m5"]
        found = store.magazines.abandoned("m", 0, 0, 99)
        assert [(one.pointer, one.owner, one.owner_dead) for one in found] == [(n, owner, True) for n in (1, 2, 3, 4)]
        assert store.magazines.abandoned("m", 0, 0, 99, dead_owners=False) == []
        moved = [Transfer(0, one.pointer, one.record, 0) for one in found if one.record is not None]
        assert store.magazines.transfer("m", "m", moved, None) == 4
        assert store.magazines.abandoned("m", 0, 0, 99) == []


def test_claims_of_the_dead_survive_a_reopen_by_others(path: Path) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a"), record("b")])
    with Child(claim_and_wait(path, 1)) as child:
        child.line(), child.line()
        child.kill()
        child.join()
    with open_at(path) as store:
        assert [one.owner_dead for one in store.magazines.abandoned("m", 0, 0, 9)] == [True]
        assert store.magazines.fire("m", 9, "me").total() == 1


def test_a_process_elsewhere_is_not_provably_dead() -> None:
    from ignis.storage.process_identity import this_process

    here = this_process()
    gone = here._replace(pid=here.pid, start_time=here.start_time - 1)
    assert gone.provably_dead(here)
    assert not here.provably_dead(here)
    assert not gone._replace(boot="another").provably_dead(here)
    assert not gone._replace(namespace=here.namespace + 1).provably_dead(here)
    assert not gone._replace(start_time=0).provably_dead(here)


def test_a_sweeper_with_a_clock_of_its_own_leaves_the_living_alone(path: Path) -> None:
    """In a time namespace every start time in /proc is another: who lives is told by locks, there and here."""
    wrapper = ("unshare", "--time", "--boottime", "1000", "--fork")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no time namespaces here: nobody has checked that a living process stays alive for them")
    theirs = f"""
from ignis.storage import open_store
with open_store("embedded://{path}") as store:
    print([one.owner_dead for one in store.magazines.abandoned("m", 0, 0, 9)])
    store.magazines.fire("m", 1, "theirs")
    print([one.owner_dead for one in store.magazines.abandoned("m", 0, 0, 9) if one.owner == "theirs"])
    import subprocess, sys
    end = "import os; from ignis.storage import open_store\\n"
    end += "open_store('embedded://{path}').magazines.fire('m', 1, 'gone'); os._exit(0)"
    subprocess.run([sys.executable, "-c", end], check=True, timeout=50)
    print([one.owner_dead for one in store.magazines.abandoned("m", 0, 0, 9) if one.owner == "gone"])
"""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a"), record("b"), record("c")])
        assert store.magazines.fire("m", 1, "ours").total() == 1
        done = subprocess.run(
            [*wrapper, sys.executable, "-c", theirs], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.split("\n")[:3] == ["[]", "[]", "[True]"], done.stderr
        found = {one.owner: one.owner_dead for one in store.magazines.abandoned("m", 0, 1 << 50, 9)}
        assert found == {"ours": False, "theirs": True, "gone": True}, "their locks ended with them"


def test_namespaces_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"pid": 0xF0000001, "time": 0xEFFFFFFA}
    monkeypatch.setattr(
        process_identity.os, "stat", lambda path: SimpleNamespace(st_ino=numbers[path.rpartition("/")[2]])
    )
    plain = process_identity.this_process().namespace
    assert plain == 0xF0000001, "as it was stored before"
    seen = {plain}
    for time_ in (0xF0000001, 0xF0000002, 0xFFFFFFFF):
        numbers["time"] = time_
        seen.add(process_identity.this_process().namespace)
    assert len(seen) == 4
    assert max(seen) < 1 << 62, "what a broker takes of a client"


def test_a_load_wakes_another_process(path: Path) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)

        def wait(say: Say) -> None:
            other = open_at(path)
            seen = other.magazines.wait("m", -1, 0)
            say("waiting")
            say(str(other.magazines.wait("m", seen, 20) != seen))

        with Child(wait) as child:
            assert child.line() == "waiting"
            store.magazines.load_records("m", 0, [record("a")])
            assert child.line() == "True"


def test_a_process_that_stopped_while_it_wrote_is_passed_over(path: Path) -> None:
    """It is stopped again and again, mostly within a call. The others go on, and what it was told is stored is stored."""
    with open_at(path, write_timeout_s=20) as store:
        store.magazines.declare("m", 3, "none")
        with Child(loader(path, "theirs", 1_000_000, "none")) as child:
            told = [child.line()]
            for turn in range(20):
                os.kill(child.pid, signal.SIGSTOP)
                store.magazines.load_records("m", 0, [record(f"mine{turn}")])
                os.kill(child.pid, signal.SIGCONT)
                told.append(child.line())
            child.kill()
            told += child.lines()
            child.join()
        there = bodies(store, "m")
        assert {f"mine{turn}" for turn in range(20)} <= set(there)
        assert set(told) <= set(there)
        assert len(there) == len(set(there))
        assert None not in there


# -- fork


def test_children_open_their_own_while_the_parent_works(path: Path) -> None:
    with open_at(path, sync_interval_ms=20) as store:
        for durability in ("sync", "interval", "none"):
            store.magazines.declare(durability, 1, durability)
            store.magazines.load_records(durability, 0, [record("parent")])

        def use(say: Say) -> None:
            own = open_at(path)
            for durability in ("sync", "interval", "none"):
                say(f"{own.magazines.load_records(durability, 0, [record('child')])}")
            own.close()

        for turn in range(3):
            assert in_child(use) == [str(2 + 2 * turn)] * 3
            # The reader slots that the child inherited are still ours.
            for durability in ("sync", "interval", "none"):
                assert store.magazines.load_records(durability, 0, [record("parent")]) == 3 + 2 * turn
                assert store.magazines.peek(durability, {0: [1]})
            time.sleep(0.03)


def test_a_child_in_the_middle_of_other_threads_work(path: Path) -> None:
    import threading

    with open_at(path) as store:
        store.magazines.declare("m", 4)
        stop = threading.Event()
        loaded = [0]

        def work() -> None:
            while not stop.is_set():
                store.magazines.load_records("m", 0, [record("a")])
                loaded[0] += 1
                store.magazines.fire("m", 1, "me", shards=[1])

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:

            def use(say: Say) -> None:
                own = open_at(path)
                own.magazines.load_records("m", 2, [record("child")])
                own.close()

            for _ in range(4):
                in_child(use)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        assert store.magazines.metadata("m")[2].load_pointer == 4
        assert store.magazines.metadata("m")[0].load_pointer >= loaded[0] - 3


def test_an_idle_child_does_not_keep_the_directory_locked(path: Path) -> None:
    """The child lives on after its parent died; the next to open is alone all the same and may recover."""

    def parent(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 1)
        pid = os.fork()
        if pid == 0:
            say("forked")
            time.sleep(60)
            os._exit(0)
        say(str(store.stats()["generation_sync"]))
        say(str(pid))
        forever()

    with Child(parent) as child:
        said = {child.line() for _ in range(3)} - {"forked"}
        before, grandchild = sorted(map(int, said))
        child.kill()
        child.join()
        try:
            with open_at(path, write_timeout_s=1) as store:
                assert store.magazines.names() == ["m"]
                assert int(store.stats()["generation_sync"]) == before + 1, "it was opened by somebody alone"
        finally:
            os.kill(grandchild, signal.SIGKILL)


# -- the directory


def test_only_the_owner_can_look_inside(path: Path) -> None:
    with open_at(path) as store:
        for durability in ("sync", "interval", "none"):
            store.magazines.declare(durability, 1, durability)
            store.magazines.load_records(durability, 0, [record("a")])
        for one in [path, *path.rglob("*")]:
            assert stat.S_IMODE(one.stat().st_mode) == (0o700 if one.is_dir() else 0o600), one


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnreachableError):
        open_at(tmp_path / "file" / "store")


def test_processes_that_create_it_at_the_same_time(path: Path) -> None:
    def use(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 1, "interval")
        store.magazines.load_records("m", 0, [record("a")])
        store.close()

    children = [Child(use) for _ in range(5)]
    for child in children:
        with child:
            assert (child.lines(), child.join()) == ([], 0)
    with open_at(path) as store:
        assert bodies(store, "m") == ["a"] * 5
        assert store.magazines.metadata("m")[0].load_counter == 5
