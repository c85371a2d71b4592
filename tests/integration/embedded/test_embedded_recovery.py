"""The embedded store after the machine lost its power, or everybody was killed: what was flushed is there, and nothing is twice.

What file systems make of a real cut is tried by the torture programme, each step of a recovery by the simulation of the C core.
Here it is the store: a copy of it that ends where its logs were flushed to.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import QueueNotFoundError
from ignis.storage.base import FireResult, Store
from ignis.storage.embedded.log_files import Segment
from tests.support.embedded import (
    WAIT_S,
    Child,
    bodies,
    body,
    flip,
    forever,
    newest_segment,
    open_at,
    power_cut,
    record,
)
from tests.torture import faults
from tests.torture.volume import Volume, unavailable

pytestmark = pytest.mark.integration

Say = Callable[[str], None]
LEFT_OUT = 1 << 24
MOST_LEFT_OUT = LEFT_OUT + (1 << 28)


def behind_a_gap(pointer: int, last: int) -> bool:
    """Whether it is the next pointer after an opening."""
    return last + LEFT_OUT < pointer <= last + MOST_LEFT_OUT


"""So many pointers of each shard are left out by an opening of a store that nobody has open."""
SELDOM = {"sync_interval_ms": 3_600_000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def killed(run: Callable[[Say], None]) -> None:
    """Runs it in a child that is then killed: nothing is closed."""

    def role(say: Say) -> None:
        run(say)
        say("done")
        forever()

    with Child(role) as child:
        while child.line() != "done":
            pass
        child.kill()
        child.join()


def log_of(store: Store, durability: str) -> Any:
    return store.directory.log(durability)  # type: ignore[attr-defined]


def texts(fired: FireResult) -> list[str | None]:
    return [body(one) for claim in fired.claims for one in claim.records]


# -- claims


def claim_some(path: Path) -> Store:
    """Two shards of four, of which all is claimed."""
    store = open_at(path)
    store.magazines.declare("m", 2)
    for shard in range(2):
        store.magazines.load_records("m", shard, [record(f"{shard}{one}") for one in range(4)])
    assert store.magazines.fire("m", 8, store.owner).total() == 8
    return store


def test_what_was_claimed_is_fired_again(path: Path, tmp_path: Path) -> None:
    """A claim is not flushed by itself: the power takes it with what had not been flushed behind it."""
    with claim_some(path) as store:
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        states = store.magazines.metadata("m")
        assert [(one.fire_pointer, one.in_flight) for one in states] == [(0, 0)] * 2
        assert all(behind_a_gap(one.load_pointer + 1, 4) for one in states)
        assert sorted(map(str, texts(store.magazines.fire("m", 99, "me")))) == sorted(
            f"{shard}{one}" for shard in range(2) for one in range(4)
        )


def test_a_claim_that_was_flushed_stays_and_its_owner_is_dead(path: Path, tmp_path: Path) -> None:
    """What is flushed behind a claim flushes the claim too: what was finished of it stays finished."""
    with claim_some(path) as store:
        owner = store.owner
        assert store.magazines.delete("m", {0: [2], 1: [1, 2, 3, 4]}) == 5
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        assert [one.in_flight for one in store.magazines.metadata("m")] == [3, 0]
        assert store.magazines.fire("m", 99, "me").total() == 0
        found = store.magazines.abandoned("m", 0, 0, 99)
        assert [(one.pointer, body(one.record), one.owner, one.owner_dead) for one in found] == [
            (pointer, f"0{pointer - 1}", owner, True) for pointer in (1, 3, 4)
        ]
        assert store.magazines.reload("m", {0: [1, 3, 4]}) == 3
        assert texts(store.magazines.fire("m", 99, "me")) == ["00", "02", "03"]
        assert behind_a_gap(store.magazines.load_records("m", 1, [record("new")]), 4)


def test_claims_survive_the_death_of_everybody(path: Path) -> None:
    def work(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a"), record("b")])
        store.magazines.fire("m", 1, store.owner)

    killed(work)
    with open_at(path) as store:
        assert store.magazines.metadata("m")[0].in_flight == 1
        assert [one.owner_dead for one in store.magazines.abandoned("m", 0, 0, 9)] == [True]
        assert store.magazines.fire("m", 9, "me").total() == 1


@pytest.mark.parametrize("behind", [0, 2])
def test_damaged_claims_cost_a_second_delivery_at_most(path: Path, behind: int) -> None:
    """As the end of the log, and in its midst, where an entry tells that it was flushed."""
    with open_at(path) as store:
        store.magazines.declare("m", 2)
        for shard in range(2):
            store.magazines.load_records("m", shard, [record(f"{one}") for one in range(4)])
        begin = log_of(store, "sync").figures()["end"]
        store.magazines.fire("m", 6, "me")
        for _ in range(behind):
            store.magazines.load_records("m", 0, [record("behind")])
    segment = Segment(newest_segment(path / "sync"))
    entry = segment.entry_at(begin)
    assert entry is not None
    assert entry.kind == "claim"
    place = segment.offset(entry.next) - 1
    segment.close()
    segment.path.write_bytes(flip(segment.path.read_bytes(), place - 8))
    with open_at(path) as store:
        assert not behind or int(store.stats()["damaged_bytes"]) > 0
        assert store.magazines.fire("m", 99, "me").total() == 8 + behind
        assert None not in bodies(store, "m")


# -- what is flushed


@pytest.mark.parametrize("mutant", [False, True])
def test_what_sync_acknowledged_survives_a_power_cut(path: Path, tmp_path: Path, mutant: bool) -> None:
    """The same without any flush loses it: the cut takes what it should."""

    def work(say: Say) -> None:
        if mutant:
            faults.skip_flushes()
        store = open_at(path)
        store.magazines.declare("m", 1)
        for number in range(20):
            store.magazines.load_records("m", 0, [record(str(number))])
        store.magazines.delete("m", {0: [1, 2]})
        power_cut(store, tmp_path / "cut")

    killed(work)
    with open_at(tmp_path / "cut") as store:
        if mutant:
            assert store.magazines.names() == [] or len(bodies(store, "m")) < 18
        else:
            assert bodies(store, "m") == [str(number) for number in range(2, 20)]


def interval_work(path: Path, durability: str = "interval", rounds: int = 60) -> Store:
    """Flushes 60 records, then works on without a flush."""
    store = open_at(path, **SELDOM)
    store.magazines.declare("m", 1, durability)
    for number in range(60):
        store.magazines.load_records("m", 0, [record(f"flushed{number}" + "x" * 500)])
    log_of(store, durability).flush()
    store.magazines.delete("m", {0: range(1, 61)})
    for number in range(rounds):
        first = store.magazines.load_records("m", 0, [record(f"later{number}" + "y" * 500)] * 3)
        store.magazines.delete("m", {0: range(first, first + 2)})
    return store


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_kill_9_alone_loses_nothing(path: Path, durability: str) -> None:
    killed(lambda say: interval_work(path, durability) and None)
    with open_at(path) as store:
        assert [str(one).rstrip("y") for one in bodies(store, "m")] == [f"later{number}" for number in range(60)]


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_power_cut_loses_what_was_not_flushed_and_nothing_else(path: Path, tmp_path: Path, durability: str) -> None:
    with interval_work(path, durability) as store:
        given = store.magazines.metadata("m")[0].load_pointer
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        assert int(store.stats()["damaged_bytes"]) == 0
        there = bodies(store, "m")
        assert [str(one).rstrip("x") for one in there] == [f"flushed{number}" for number in range(60)]
        assert texts(store.magazines.fire("m", 99, "me")) == there
        first = store.magazines.load_records("m", 0, [record("new")])
        assert first > given, "a pointer that was given out stands for one message"
        assert behind_a_gap(first, 60)


@pytest.mark.parametrize("durability", ["interval", pytest.param("none", marks=pytest.mark.long)])
def test_the_power_may_go_within_any_entry(path: Path, tmp_path: Path, durability: str) -> None:
    """Of what was not flushed there is a beginning, never a part of a call, and the rest is no damage."""
    with open_at(path, **SELDOM) as store:
        store.magazines.declare("m", 2, durability)
        log_of(store, durability).flush()
        log = log_of(store, durability)
        ends = [log.figures()["end"]]
        for number in range(4):
            one = [record(f"{number}a"), record(f"{number}b")]
            store.magazines.load_records("m", number % 2, one)
            ends.append(log.figures()["end"])
        whole = power_cut(store, tmp_path / "whole")
        segment = Segment(newest_segment(path / durability))
        written = segment.bytes_at(ends[0], ends[-1] - ends[0])
        offset = segment.offset(ends[0])
        name = segment.path.name
        segment.close()
    for length in [*range(1, ends[1] - ends[0] + 40), *range(ends[1] - ends[0] + 40, len(written) + 1, 31)][::7]:
        cut = tmp_path / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        subprocess.run(["cp", "-a", "--sparse=always", str(whole), str(cut)], check=True, timeout=60)
        with (cut / durability / name).open("r+b") as file:
            file.seek(offset)
            file.write(written[:length])
        with open_at(cut) as store:
            # The padding behind an entry may be missing.
            calls = sum(ends[0] + length > end - 8 for end in ends[1:])
            found = bodies(store, "m")
            assert len(found) in (2 * calls, 2 * calls - 2), length
            expected = [f"{number}{one}" for number in range(len(found) // 2) for one in "ab"]
            assert sorted(map(str, found)) == expected, length
            assert int(store.stats()["damaged_bytes"]) == 0


def test_each_class_is_cut_for_itself(path: Path, tmp_path: Path) -> None:
    with open_at(path, **SELDOM) as store:
        for durability in ("sync", "interval", "none"):
            store.magazines.declare(durability, 1, durability)
            store.magazines.load_records(durability, 0, [record("a")])
        log_of(store, "interval").flush()
        for durability in ("sync", "interval", "none"):
            store.magazines.load_records(durability, 0, [record("b")])
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        assert bodies(store, "sync") == ["a", "b"]
        assert bodies(store, "interval") == ["a"]
        # That it was declared was flushed, what was loaded was not.
        assert bodies(store, "none") == []
        assert behind_a_gap(store.magazines.load_records("none", 0, [record("c")]), 0)


def test_one_process_flushes_for_all(path: Path, tmp_path: Path) -> None:
    """Another process works, and is killed; what it wrote is flushed with what this one flushes."""
    with open_at(path, **SELDOM) as store:
        store.magazines.declare("m", 1, "interval")
        store.magazines.load_records("m", 0, [record("mine")] * 50)
        log_of(store, "interval").flush()
        killed(lambda say: interval_work(path, rounds=40) and None)
        before = len(bodies(store, "m"))
        assert before == 60 + 40 + 40 - 50
        cut = power_cut(store, tmp_path / "cut")
        log_of(store, "interval").flush()
        whole = power_cut(store, tmp_path / "whole")
    with open_at(cut) as store:
        assert len(bodies(store, "m")) == 50 + 60
    with open_at(whole) as store:
        assert len(bodies(store, "m")) == before
        assert None not in bodies(store, "m")


def test_only_the_newest_segment_is_ever_not_flushed(path: Path, tmp_path: Path) -> None:
    """However long the interval is, a power cut takes the end of the newest segment, and leaves no hole."""
    with open_at(path, **SELDOM, max_store_bytes=64 << 20) as store:
        store.magazines.declare("m", 1, "interval")
        for number in range(40):
            store.magazines.load_records("m", 0, [record(f"{number:02}" + "x" * 100_000)])
        assert len(list((path / "interval").glob("log-*"))) > 2
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        there = [str(one)[:2] for one in bodies(store, "m")]
        assert 40 - (1 << 20) // 100_000 <= len(there) < 40
        assert there == [f"{number:02}" for number in range(len(there))]


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_who_closes_it_flushes_it(path: Path, tmp_path: Path, durability: str) -> None:
    """Also with another one that still has it open: what is closed in order needs no luck."""
    with open_at(path, **SELDOM) as looking:
        looking.magazines.declare("m", 1, durability)

        def other(say: Say) -> None:
            with open_at(path, **SELDOM) as store:
                store.magazines.load_records("m", 0, [record("a")])

        with Child(other) as child:
            assert (child.lines(), child.join()) == ([], 0)
        looking.magazines.load_records("m", 0, [record("b")])
        cut = power_cut(looking, tmp_path / "cut")
    with open_at(cut) as store:
        assert bodies(store, "m") == ["a"]
    with open_at(path) as store:
        assert bodies(store, "m") == ["a", "b"]


def test_a_drop_is_whole(path: Path, tmp_path: Path) -> None:
    with open_at(path, **SELDOM) as store:
        store.magazines.declare("m", 2, "interval")
        store.magazines.load_records("m", 0, [record("a")] * 5)
        before = power_cut(store, tmp_path / "before")
        store.magazines.drop("m")
        after = power_cut(store, tmp_path / "after")
    with open_at(before) as store:
        assert store.magazines.names() == ["m"]
    with open_at(after) as store:
        assert store.magazines.names() == []
        with pytest.raises(QueueNotFoundError):
            store.magazines.metadata("m")
        assert int(store.stats()["records"]) == 0
        store.magazines.declare("m", 1, "sync")
        assert bodies(store, "m") == []


# -- checkpoints


@pytest.mark.parametrize("which", ["newest", "both", "gone"])
@pytest.mark.parametrize("place", [5, 13, 40, -1])
def test_a_damaged_checkpoint_costs_nothing(path: Path, which: str, place: int) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        for number in range(30):
            store.magazines.load_records("m", 0, [record(str(number))])
            if number in (10, 20):
                log_of(store, "sync").checkpoint()
        store.magazines.fire("m", 5, "me")
        store.magazines.delete("m", {0: [1, 2]})
    made = sorted((path / "sync").glob("checkpoint-*"))
    assert len(made) == 2
    for one in made if which != "newest" else made[-1:]:
        if which == "gone":
            one.unlink()
        else:
            content = one.read_bytes()
            one.write_bytes(flip(content, place % len(content)))
    with open_at(path) as store:
        assert bodies(store, "m") == [str(number) for number in range(2, 30)]
        assert store.magazines.metadata("m")[0].in_flight == 3
        assert int(store.stats()["damaged_bytes"]) == 0


# -- the same path, whatever happened before


def some_of_everything(path: Path) -> Store:
    """An array queue, an epoch, a lock, and of each class four messages, two of them claimed and one of those finished."""
    store = open_at(path)
    for durability in ("sync", "interval", "none"):
        store.magazines.declare(durability, 2, durability)
        store.magazines.load_records(durability, 1, [record(f"{durability}{number}") for number in range(4)])
        store.magazines.fire(durability, 2, store.owner)
        store.magazines.delete(durability, {1: [1]})
    store.locks.next_epoch("s")
    store.arrays.enqueue("a", "Q", [b"1", b"2"])
    return store


def check_everything(path: Path) -> None:
    with open_at(path) as store:
        for durability in ("sync", "interval", "none"):
            assert bodies(store, durability) == [f"{durability}{number}" for number in (1, 2, 3)]
            assert [one.in_flight for one in store.magazines.metadata(durability)] == [0, 1]
            found = store.magazines.abandoned(durability, 1, 0, 9)
            assert [(one.pointer, one.owner_dead) for one in found] == [(2, True)]
            assert texts(store.magazines.fire(durability, 9, "me")) == [f"{durability}2", f"{durability}3"]
            assert store.magazines.load_records(durability, 1, [record("new")]) > 4
        assert store.locks.epoch("s") == 1
        assert store.arrays.size("a", "Q") == 2
        assert int(store.stats()["damaged_bytes"]) == 0


def test_a_copy_of_a_closed_store_is_a_store(path: Path, tmp_path: Path) -> None:
    some_of_everything(path).close()
    subprocess.run(["cp", "-a", str(path), str(tmp_path / "copy")], check=True, timeout=60)
    check_everything(tmp_path / "copy")
    check_everything(path)


def test_a_store_that_was_moved_is_a_store(path: Path, tmp_path: Path) -> None:
    some_of_everything(path).close()
    path.rename(tmp_path / "moved")
    check_everything(tmp_path / "moved")


def test_a_backup_is_restored(path: Path, tmp_path: Path) -> None:
    """Over the same path, under which another life of the store went on meanwhile."""
    some_of_everything(path).close()
    subprocess.run(["tar", "-C", str(path), "-Scf", str(tmp_path / "backup.tar"), "."], check=True, timeout=60)
    with open_at(path) as store:
        store.magazines.drop("sync")
        store.magazines.load_records("interval", 0, [record("after the backup")])
    shutil.rmtree(path)
    path.mkdir(mode=0o700)
    subprocess.run(["tar", "-C", str(path), "-Sxpf", str(tmp_path / "backup.tar")], check=True, timeout=60)
    check_everything(path)


def test_a_copy_without_the_state_is_a_store(path: Path) -> None:
    """Control files are made anew, and room that was laid out ahead is not needed."""
    some_of_everything(path).close()
    for one in [*path.glob("*/control-*"), *path.glob("*/tmp-*"), path / "clock"]:
        one.unlink()
    check_everything(path)


def test_a_file_system_that_was_mounted_again(tmp_path: Path) -> None:
    if reason := unavailable("ext4"):
        pytest.skip(reason)
    with Volume(tmp_path / "volume", "ext4", size_mb=600) as volume:
        some_of_everything(volume.path / "store").close()
        volume.restart()
        check_everything(volume.path / "store")


STRACE = ["strace", "-f", "-qq", "-o", os.devnull]


def look(path: Path, say: Say) -> None:
    """Waits until somebody traces it, opens the store and says how many messages it has."""
    os.kill(os.getpid(), signal.SIGSTOP)
    with open_at(path) as store:
        say(str(sum(len(store.magazines.scan(name, limit=1000)) for name in store.magazines.names())))


def opened_and_killed(path: Path, call: str, number: int) -> tuple[int, list[str]]:
    """Exit status and lines of an opening that dies at its ``number``-th such system call. It is a fork of this process, so that
    a Python need not be started for each."""
    with Child(lambda say: look(path, say)) as child:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        tracer = subprocess.Popen([*STRACE, "-e", f"inject={call}:signal=KILL:when={number}", "-p", str(child.pid)])
        try:
            deadline = time.monotonic() + WAIT_S
            while "TracerPid:\t0\n" in Path(f"/proc/{child.pid}/status").read_text("ascii"):
                assert tracer.poll() is None and time.monotonic() < deadline, "strace did not begin"
                time.sleep(0.002)
            child.kill(signal.SIGCONT)
            return child.join(), child.lines()
        finally:
            child.kill()
            tracer.wait(WAIT_S)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("fallocate", marks=pytest.mark.long),
        pytest.param("pwrite64", marks=pytest.mark.long),
        "fdatasync",
        pytest.param("linkat", marks=pytest.mark.long),
        pytest.param("fsync", marks=pytest.mark.long),
        pytest.param("unlinkat", marks=pytest.mark.long),
    ],
)
def test_recovery_may_be_killed_anywhere_and_is_repeated(path: Path, call: str) -> None:
    """One opening after the other dies at its first such call, at its second, and so on; the one that gets through finds all."""
    probe = [*STRACE, "-e", "inject=getppid:signal=KILL:when=9999", "true"]
    if shutil.which("strace") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("no strace here: nobody has killed a recovery at each of its calls")
    killed(lambda say: some_of_everything(path) and None)
    for number in range(1, 200):
        status, lines = opened_and_killed(path, call, number)
        if status != -signal.SIGKILL:
            assert (status, lines) == (0, ["9"])
            break
    else:
        raise AssertionError("an opening never comes to its end")
    assert number > 3, "each of the three logs makes such a call"
    check_everything(path)
