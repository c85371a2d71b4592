"""The embedded store with a damaged log, failing writes and flushes, a full disk and a state that must grow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ignis
from ignis.errors import ConfigError, StoreFullError
from ignis.native import PackedBatch
from ignis.storage.base import Store
from ignis.storage.embedded.log_files import ENTRY_HEADER_BYTES, Segment
from tests.support import eventually
from tests.support.disk import disk, fill_disk
from tests.support.embedded import (
    Child,
    bodies,
    body,
    flip,
    forever,
    in_child,
    newest_segment,
    open_at,
    record,
)

pytestmark = pytest.mark.integration

Say = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


# -- damage of a store that nobody has open: an entry is whole, or it is not there


class Place(NamedTuple):
    """Of an entry, in its file."""

    kind: str
    file: Path
    offset: int
    bytes: int


def end_of(store: Store) -> int:
    return int(store.directory.log("sync").figures()["end"])  # type: ignore[attr-defined]


def place_of(path: Path, position: int) -> Place:
    segment = Segment(newest_segment(path / "sync"))
    entry = segment.entry_at(position)
    assert entry is not None
    found = Place(entry.kind, segment.path, segment.offset(position), entry.next - position)
    segment.close()
    return found


def prepare(path: Path, work: Callable[[Store], object] = lambda store: None) -> tuple[Place, Place]:
    """A batch of four, one of four others, then ``work``; and two entries behind, which tell that all before was flushed. Where
    the first batch stands, and what ``work`` did."""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        begin = end_of(store)
        store.magazines.load_records("m", 0, [record(f"m{number}") for number in range(4)])
        store.magazines.load_records("m", 0, [record(f"n{number}") for number in range(4)])
        middle = end_of(store)
        work(store)
        store.magazines.load_records("m", 0, [record("behind")])
        store.magazines.load_records("m", 0, [record("last")])
    return place_of(path, begin), place_of(path, middle)


OTHERS = ["n0", "n1", "n2", "n3", "behind", "last"]


@pytest.mark.parametrize("part", ["length", "checksum", "kind", "payload", "last", "all"])
def test_a_damaged_batch_costs_nothing_beside_it(path: Path, part: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, laid aside, and what is delivered is what was loaded, under its own pointers."""
    place, _ = prepare(path)
    content = place.file.read_bytes()
    if part == "all":
        changed = content[: place.offset] + bytes([0xA5]) * place.bytes + content[place.offset + place.bytes :]
    else:
        at = {"length": 2, "checksum": 5, "kind": 8, "payload": ENTRY_HEADER_BYTES + 7, "last": place.bytes - 8}[part]
        changed = flip(content, place.offset + at)
    place.file.write_bytes(changed)
    with open_at(path) as store:
        assert "bytes of the log are damaged" in caplog.text
        assert int(store.stats()["damaged_bytes"]) > 0
        assert list((path / "sync").glob("damaged-*"))
        found = [(pointer, body(one)) for _, pointer, one in store.magazines.scan("m", limit=99)]
        assert found[-len(OTHERS) :] == list(enumerate(OTHERS, 5))
        assert set(found[: -len(OTHERS)]) <= {
            (number + 1, text) for number in range(4) for text in (f"m{number}", None)
        }
        fired = store.magazines.fire("m", 99, "me")
        assert [body(one) for claim in fired.claims for one in claim.records] == [text for _, text in found]
        assert store.magazines.load_records("m", 0, [record("new")]) > 10


def test_an_entry_in_the_place_of_another_is_damage(path: Path) -> None:
    """Its checksum is over its position too."""
    place, _ = prepare(path)
    content = bytearray(place.file.read_bytes())
    content[place.offset : place.offset + place.bytes] = content[
        place.offset + place.bytes : place.offset + 2 * place.bytes
    ]
    place.file.write_bytes(content)
    with open_at(path) as store:
        assert bodies(store, "m") == OTHERS


def test_a_segment_that_was_cut_short(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is before the cut is there, and it is told. So is the place of the message in which it is."""
    _, place = prepare(path, lambda store: store.magazines.load_records("m", 0, [record("x" * 20_000)]))
    os.truncate(place.file, place.offset + 10_000)
    with open_at(path) as store:
        assert re.search(r"log-\w+-\w+ is damaged: \d+ of its \d+ bytes are left", caplog.text)
        assert bodies(store, "m") == ["m0", "m1", "m2", "m3", "n0", "n1", "n2", "n3", None]
        assert store.magazines.load_records("m", 0, [record("new")]) > 10


def test_a_segment_that_was_cut_within_a_block(path: Path) -> None:
    """All that stands before the cut is there, to the last entry."""
    place, _ = prepare(path)
    os.truncate(place.file, place.offset + place.bytes + 3)
    with open_at(path) as store:
        assert bodies(store, "m") == ["m0", "m1", "m2", "m3"]
        assert store.magazines.load_records("m", 0, [record("new")]) > 10


def test_a_damaged_retirement_brings_records_back_and_loses_none(path: Path) -> None:
    def work(store: Store) -> None:
        store.magazines.delete("m", {0: [1, 3]})

    _, place = prepare(path, work)
    assert place.kind == "retire"
    place.file.write_bytes(flip(place.file.read_bytes(), place.offset + ENTRY_HEADER_BYTES))
    with open_at(path) as store:
        assert bodies(store, "m") == ["m0", "m1", "m2", "m3", *OTHERS]
        assert store.magazines.delete("m", {0: [1, 2, 3, 4]}) == 4
    with open_at(path) as store:
        assert bodies(store, "m") == OTHERS


def test_damage_does_not_make_a_pointer_come_twice(path: Path) -> None:
    """Nothing but the damaged end of the log knows of the last pointers."""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        begin = end_of(store)
        given = store.magazines.load_records("m", 0, [record("a")] * 100) + 99
        store.magazines.fire("m", 100, "me")
        store.magazines.delete("m", {0: range(1, 101)})
    place = place_of(path, begin)
    place.file.write_bytes(flip(place.file.read_bytes(), place.offset + ENTRY_HEADER_BYTES))
    with open_at(path) as store:
        assert bodies(store, "m") == []
        assert store.magazines.load_records("m", 0, [record("new")]) > given
        assert store.magazines.fire("m", 9, "me").total() == 1


# -- damage below a store that is open: each record has a checksum of its own


def damage_last_of_first_batch(store: Store, path: Path) -> None:
    whole = store.magazines.peek("m", {0: [4]})[0][4]
    assert whole is not None
    found = 0
    for file in (path / "sync").glob("log-*"):  # a generation writes the end of the one before again
        content = file.read_bytes()
        if whole in content:
            found += 1
            with file.open("r+b") as opened:
                at = content.index(whole) + len(whole) - 1
                opened.seek(at)
                opened.write(bytes([content[at] ^ 0x10]))
    assert found


def test_a_damaged_record_is_none_and_the_others_are_whole(path: Path) -> None:
    prepare(path)
    with open_at(path) as store:
        damage_last_of_first_batch(store, path)
        fired = store.magazines.fire("m", 99, "me")
        assert [body(one) for claim in fired.claims for one in claim.records] == ["m0", "m1", "m2", None, *OTHERS]
        assert store.magazines.abandoned("m", 0, 1 << 52, 9)[3].record is None
        assert store.magazines.peek("m", {0: [4]}) == {0: {4: None}}
        assert store.magazines.delete("m", {0: range(1, 11)}) == 10


def test_a_damaged_record_is_not_reloaded_as_a_good_one(path: Path) -> None:
    prepare(path)
    with open_at(path) as store:
        damage_last_of_first_batch(store, path)
        assert store.magazines.fire("m", 99, "me").total() == 10
        assert store.magazines.reload("m", {0: range(1, 11)}) == 9
        assert [one.pointer for one in store.magazines.abandoned("m", 0, 1 << 52, 9)] == [4]
        again = store.magazines.fire("m", 99, "me")
        assert [body(one) for claim in again.claims for one in claim.records] == ["m0", "m1", "m2", *OTHERS]


# -- failing writes and flushes

STRACE = ["strace", "-f", "-qq"]

FAILING = """
import sys
from ignis.errors import StoreError
from ignis.storage import open_store
from ignis.native import encode_record
store = open_store("embedded://" + sys.argv[1])
store.magazines.declare("m", 1)
for number in range(12):
    try:
        store.magazines.load_records("m", 0, [encode_record(str(number).encode())])
    except StoreError as exc:
        print("refused", number, type(exc).__name__, flush=True)
    else:
        print("stored", number, flush=True)
there = [bytes(record)[-1:] for _, _, record in store.magazines.scan("m", limit=100)]
print("there", len(there), flush=True)
import os
os._exit(0)
"""


OPENING = """
import os, sys
from ignis.storage import open_store
store = open_store("embedded://" + sys.argv[1])
store.magazines.declare("m", 1)
os._exit(0)
"""


def traced(path: Path, script: str, *options: str) -> list[str]:
    """Lines of a process some of whose calls fail."""
    probe = [*STRACE, "-o", os.devnull, "-e", "inject=getppid:error=EIO:when=9999", "true"]
    if shutil.which("strace") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("no strace here: nobody has made the store's calls fail")
    done = subprocess.run(
        [*STRACE, "-o", str(path.parent / "calls"), *options, sys.executable, "-B", "-c", script, str(path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("call", "error", "refusal"), [("fdatasync", "EIO", "StoreFailedError"), ("pwrite64", "ENOSPC", "StoreFullError")]
)
def test_after_a_failure_of_the_disk_the_next_call_goes_on(path: Path, call: str, error: str, refusal: str) -> None:
    """What was refused is not there, what was acknowledged is, and nothing has to be opened again."""
    open_at(path).close()
    traced(path, OPENING, "-e", f"trace={call}")
    calls = [line.split() for line in (path.parent / "calls").read_text().splitlines()]
    opening = sum(line[0] == calls[0][0] and line[1].startswith(call) for line in calls)
    # Not all: the generation that follows a failure fills a segment and flushes too, and must be able to.
    step = 5 if call == "fdatasync" else 40
    lines = traced(path, FAILING, "-e", f"inject={call}:error={error}:when={opening + 3}+{step}")
    refused = [line.split()[1:] for line in lines if line.startswith("refused")]
    stored = [line.split()[1] for line in lines if line.startswith("stored")]
    assert len(refused) + len(stored) == 12
    assert "(INJECTED)" in (path.parent / "calls").read_text()
    assert {kind for _, kind in refused} <= {refusal}
    assert stored[-1] == "11" or refused[-1][0] == "11"
    assert len(stored) >= 6
    assert lines[-1] == f"there {len(stored)}"
    with open_at(path) as store:
        assert bodies(store, "m") == stored


def test_one_call_that_is_refused_leaves_its_neighbours(path: Path) -> None:
    """Of a call that names a shard which is not there nothing is stored; the others' pointers are as if it had never been."""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        firsts: list[int] = []
        refused: list[BaseException] = []

        def load(shards: list[int]) -> None:
            try:
                many = [(shard, PackedBatch.pack([record("a"), record("b")])) for shard in shards]
                firsts.extend(store.magazines.load("m", many, 60))
            except ConfigError as exc:
                refused.append(exc)

        threads = [threading.Thread(target=load, args=(shards,)) for shards in ([0], [0], [0, 7], [0], [0, 0, 7], [0])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(firsts) == [1, 3, 5, 7]
        assert len(refused) == 2
        assert bodies(store, "m") == ["a", "b"] * 4


# -- room


def fill(store: Store, magazine: str, size: int = 4_000, names: str = "") -> int:
    """Loads until refused with an error that ``names`` this; returns how many were stored."""
    count = 0
    while True:
        try:
            store.magazines.load_records(magazine, 0, [record("x" * size)] * 10)
        except StoreFullError as exc:
            if names in str(exc):
                return count
            raise
        count += 10
        assert count < 100_000


def drain(store: Store, magazine: str) -> int:
    count = 0
    while True:
        fired = store.magazines.fire(magazine, 7, "me")
        if not fired.claims:
            return count
        for claim in fired.claims:
            assert None not in claim.records
            count += store.magazines.delete(magazine, {claim.shard: claim.pointers})


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_a_full_store_refuses_loads_and_drains(path: Path, durability: str) -> None:
    """What lives is counted, not what the files take: as much fits in each time, at once after the drain."""
    with open_at(path, max_store_bytes=3 << 20, sync_interval_ms=20) as store:
        store.magazines.declare("m", 1, durability)
        counts = []
        for _ in range(4):
            counts.append(fill(store, "m", names="max_store_bytes"))
            assert drain(store, "m") == counts[-1]
        assert counts[0] > 600
        assert len(set(counts)) == 1


def test_the_limit_is_of_each_class(path: Path) -> None:
    with open_at(path, max_store_bytes=1 << 20) as store:
        for durability in ("sync", "interval", "none"):
            store.magazines.declare(durability, 1, durability)
            assert fill(store, durability, names="max_store_bytes") > 200
        figures = store.stats()
        for durability in ("sync", "interval", "none"):
            assert (1 << 20) - 50_000 < int(figures[f"used_bytes_{durability}"]) <= 1 << 20


def test_transfers_go_on_in_a_full_store(path: Path) -> None:
    from ignis.storage.base import Transfer

    with open_at(path, max_store_bytes=1 << 20) as store:
        store.magazines.declare("m", 1)
        store.magazines.declare("side", 1)
        count = fill(store, "m")
        fired = store.magazines.fire("m", count, "me")
        items = [
            Transfer(claim.shard, pointer, one, 0)
            for claim in fired.claims
            for pointer, one in zip(claim.pointers, claim.records, strict=True)
            if one is not None
        ]
        assert store.magazines.transfer("m", "side", items, None) == count
        assert len(bodies(store, "side")) == count


def test_the_state_grows_and_other_processes_follow(path: Path) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1, "none")
        store.magazines.load_records("m", 0, [record("first")])
        before = int(store.stats()["state_bytes"])

        def follow(say: Say) -> None:
            other = open_at(path)
            assert other.magazines.metadata("m")[0].load_pointer == 1
            say("ready")
            while other.magazines.metadata("m")[0].pending < 50_000:
                pass
            say(f"{len(bodies(other, 'm'))} {other.magazines.metadata('m')[0].load_pointer}")
            for number in range(50_000):
                other.magazines.load_records("m", 0, [record(str(number))])
            other.close()

        with Child(follow) as child:
            assert child.line() == "ready"
            for number in range(49_999):
                store.magazines.load_records("m", 0, [record(str(number))])
            found, pointer = child.line().split()
            assert found == "50000"
            assert (
                int(pointer) >= 50_000
            )  # more after a call that stood still for 2 s: others go on in another generation
            assert int(store.stats()["state_bytes"]) > before + (2 << 20)
            assert child.lines() == []
            assert child.join() == 0
        assert store.magazines.metadata("m")[0].pending == 100_000
        assert bodies(store, "m")[-1] == "49999"


def test_segments_begin_while_threads_read_and_write(path: Path) -> None:
    with open_at(path, max_store_bytes=64 << 20, sync_interval_ms=5) as store:
        for name, durability in (("s", "sync"), ("i", "interval")):
            store.magazines.declare(name, 1, durability)
        failures: list[BaseException] = []
        writing = threading.Event()

        def write(name: str) -> None:
            try:
                for _ in range(60):
                    store.magazines.load_records(name, 0, [record("x" * 60_000)])
            except BaseException as exc:
                failures.append(exc)

        def read() -> None:
            try:
                while not writing.is_set():
                    for name in ("s", "i"):
                        assert None not in bodies(store, name)
                        store.stats()
            except BaseException as exc:
                failures.append(exc)

        writers = [threading.Thread(target=write, args=(name,)) for name in ("s", "i", "s", "i")]
        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in writers + readers:
            thread.start()
        for thread in writers:
            thread.join(40)
        writing.set()
        for thread in readers:
            thread.join(20)
        assert failures == []
        assert [store.magazines.metadata(name)[0].load_counter for name in ("s", "i")] == [120, 120]
        assert len(list((path / "sync").glob("log-*"))) > 6


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_a_full_disk_refuses_loads_and_drains(tmp_path: Path, durability: str) -> None:
    with disk(tmp_path / "disk", "24m") as small:

        def use(say: Say) -> None:
            with open_at(small / "store", sync_interval_ms=20) as store:
                store.magazines.declare("m", 1, durability)
                for _ in range(2):
                    count = 0

                    def filled() -> bool:
                        nonlocal count
                        count += fill(store, "m")
                        return count > 500

                    eventually(filled)  # what was drained is given back in the background
                    # To the last byte: what drains need must have been kept back.
                    fill_disk(small / "ballast")
                    with pytest.raises(StoreFullError):
                        store.magazines.load_records("m", 0, [record("x" * 4_000)] * 10)
                    assert drain(store, "m") == count
                    os.unlink(small / "ballast")

        in_child(use)


def test_a_process_that_stopped_keeps_no_room(path: Path) -> None:
    """It holds claims and was stopped; the others fill and drain the store over and over, and the files stay small."""
    options: dict[str, Any] = {"max_store_bytes": 4 << 20}
    with open_at(path, **options) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("theirs")])

        def hold(say: Say) -> None:
            other = open_at(path, **options)
            assert other.magazines.fire("m", 1, other.owner).total() == 1
            say("claimed")
            forever()

        with Child(hold) as child:
            assert child.line() == "claimed"
            os.kill(child.pid, signal.SIGSTOP)
            for _ in range(20):
                count = fill(store, "m")
                assert count > 800
                assert drain(store, "m") == count
            assert bodies(store, "m") == ["theirs"]
            assert store.magazines.abandoned("m", 0, 0, 9) == [], "it lives"
            store.directory.log("sync").checkpoint()  # type: ignore[attr-defined]
            while store.directory.log("sync").maintain():  # type: ignore[attr-defined]
                pass
            assert int(store.stats()["file_bytes"]) < 60 << 20, "of 80 MiB that were written"


def test_room_that_is_kept_may_be_removed_by_others(tmp_path: Path) -> None:
    """A publish failed for good, "No such file or directory", when the file that is kept for checkpoints was not there."""
    with contextlib.closing(ignis.Ignis(f"embedded://{tmp_path}/store")) as app:
        queue = app.queue("q", bytes, shards=1, durability="none")
        for round_ in range(1, 4):
            for _ in range(4):
                queue.publish_many([bytes(10_000)] * 1_000)
            kept = eventually(lambda: list(tmp_path.rglob("tmp-spare-*")))
            for path in kept:
                path.unlink()
            assert queue.stats()["pending"] == round_ * 4_000
