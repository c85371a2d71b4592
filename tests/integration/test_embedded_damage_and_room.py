"""The embedded store with damaged values, failing flushes, a full disk and a map that must grow."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ignis.errors import StoreFailedError, StoreFullError
from ignis.native import PackedBatch
from ignis.storage.base import Store
from tests.integration.embedded_support import (
    Child,
    bodies,
    body,
    flip,
    forever,
    in_child,
    open_at,
    overwrite,
    record,
    stored,
)

pytestmark = pytest.mark.integration

Say = Callable[[str], None]
HEADER_BYTES = 24
INDEX_BYTES = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def prepare(path: Path, count: int = 4) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record(f"m{number}") for number in range(count)])
        store.magazines.load_records("m", 0, [record("behind")])


def damage(path: Path, prefix: bytes, change: Callable[[bytes], bytes]) -> None:
    key, value = next(stored(path, "sync", prefix))
    overwrite(path, "sync", key, change(value))


# -- damage


def test_a_damaged_record_is_none_and_the_others_are_whole(path: Path) -> None:
    prepare(path)
    damage(path, b"S", lambda value: flip(value, len(value) - 1))
    with open_at(path) as store:
        fired = store.magazines.fire("m", 99, "me")
        assert [body(one) for claim in fired.claims for one in claim.records] == ["m0", "m1", "m2", None, "behind"]
        assert store.magazines.abandoned("m", 0, 1 << 52, 9)[3].record is None
        assert store.magazines.peek("m", {0: [4]}) == {0: {4: None}}
        assert store.magazines.delete("m", {0: range(1, 6)}) == 5


@pytest.mark.parametrize("place", [0, 4, 7, 8, 15, 17, HEADER_BYTES + 1, HEADER_BYTES + 2 * INDEX_BYTES])
def test_a_damaged_header_or_index_never_delivers_anything_wrong(path: Path, place: int) -> None:
    prepare(path)
    damage(path, b"S", lambda value: flip(value, place))
    with open_at(path) as store:
        fired = store.magazines.fire("m", 99, "me")
        found = [body(one) for claim in fired.claims for one in claim.records]
        assert len(found) == 5
        assert all(one in (None, right) for one, right in zip(found, ["m0", "m1", "m2", "m3", "behind"], strict=True))
        assert found.count(None) >= 1
        assert found[-1] == "behind"
        assert store.magazines.delete("m", {0: range(1, 6)}) == 5


@pytest.mark.parametrize("length", [0, 3, HEADER_BYTES, HEADER_BYTES + INDEX_BYTES, 100])
def test_a_segment_that_was_cut_short(path: Path, length: int) -> None:
    prepare(path)
    damage(path, b"S", lambda value: value[:length])
    with open_at(path) as store:
        found = bodies(store, "m")
        assert len(found) == 5
        assert None in found[:4]
        assert found[4] == "behind"


def test_a_segment_under_another_key_is_corrupt(path: Path) -> None:
    prepare(path)
    (key, value), (_, other) = list(stored(path, "sync", b"S"))
    overwrite(path, "sync", key, other)
    del value
    with open_at(path) as store:
        assert bodies(store, "m")[:4] == [None] * 4


def test_a_damaged_bitmap_brings_records_back_and_loses_none(path: Path) -> None:
    prepare(path)
    with open_at(path) as store:
        store.magazines.fire("m", 4, "me")
        store.magazines.delete("m", {0: [1, 3]})
    damage(path, b"T", lambda value: flip(value, len(value) - 1))
    with open_at(path) as store:
        assert bodies(store, "m") == ["m0", "m1", "m2", "m3", "behind"]
        assert store.magazines.delete("m", {0: [2, 4]}) == 2
        assert store.magazines.delete("m", {0: [1, 3]}) == 2
    assert not list(stored(path, "sync", b"T"))


def test_damaged_counters_do_not_make_a_pointer_come_twice(path: Path) -> None:
    prepare(path)
    with open_at(path) as store:
        store.magazines.fire("m", 9, "me")
        store.magazines.delete("m", {0: range(1, 6)})
    damage(path, b"R", lambda value: flip(value, 5))
    with open_at(path) as store:
        assert store.magazines.load_records("m", 0, [record("new")]) == 6
        assert store.magazines.fire("m", 9, "me").total() == 1


def test_a_corrupt_record_is_not_reloaded_as_a_good_one(path: Path) -> None:
    prepare(path)
    damage(path, b"S", lambda value: flip(value, len(value) - 1))
    with open_at(path) as store:
        fired = store.magazines.fire("m", 9, "me")
        before = fired.claims[0]
        assert store.magazines.reload("m", {0: range(1, 6)}) == 4
        assert [one.pointer for one in store.magazines.abandoned("m", 0, 1 << 52, 9)] == [4]
        again = store.magazines.fire("m", 9, "me")
        assert [body(one) for claim in again.claims for one in claim.records] == ["m0", "m1", "m2", "behind"]
        assert len(before.records) == 4


# -- failing commits


class FailingCommits:
    """Makes LMDB's commits fail while ``error`` is set, behind the store's back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.delay: threading.Event | None = None
        real_open = lmdb.open
        outer = self

        class Transaction:
            def __init__(self, real: Any) -> None:
                self._real = real

            def __getattr__(self, name: str) -> Any:
                return getattr(self._real, name)

            def commit(self) -> None:
                if outer.delay is not None:
                    outer.delay.wait(10)
                if outer.error is not None:
                    self._real.abort()
                    error = lmdb.DiskError(f"mdb_txn_commit: {os.strerror(outer.error)}")
                    error.code = outer.error  # type: ignore[misc]
                    raise error
                self._real.commit()

        class Environment:
            def __init__(self, real: Any, path: str) -> None:
                self._real = real
                self._slow = path.endswith("sync")

            def __getattr__(self, name: str) -> Any:
                return getattr(self._real, name)

            def begin(self, *arguments: Any, **options: Any) -> Any:
                real = self._real.begin(*arguments, **options)
                return Transaction(real) if options.get("write") and self._slow else real

        def open_failing(path: str, **options: Any) -> Any:
            return Environment(real_open(path, **options), path)

        monkeypatch.setattr(lmdb, "open", open_failing)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> FailingCommits:
    return FailingCommits(monkeypatch)


def test_after_a_failed_commit_nothing_is_accepted_until_reopened(path: Path, commits: FailingCommits) -> None:
    store = open_at(path)
    store.magazines.declare("m", 1)
    store.magazines.load_records("m", 0, [record("a"), record("b")])
    fired = store.magazines.fire("m", 1, "me")
    commits.error = errno.EIO
    with pytest.raises(StoreFailedError):
        store.magazines.load_records("m", 0, [record("c")])
    commits.error = None
    for _ in range(2):
        with pytest.raises(StoreFailedError, match="reopened"):
            store.magazines.load_records("m", 0, [record("d")])
        with pytest.raises(StoreFailedError, match="reopened"):
            store.magazines.delete("m", {0: fired.claims[0].pointers})
    assert bodies(store, "m") == ["a", "b"]
    store.close()
    with open_at(path) as again:
        assert again.magazines.delete("m", {0: [1]}) == 1
        assert again.magazines.load_records("m", 0, [record("e")]) == 3


def test_a_full_disk_at_the_commit_is_not_for_ever(path: Path, commits: FailingCommits) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        commits.error = errno.ENOSPC
        with pytest.raises(StoreFullError):
            store.magazines.load_records("m", 0, [record("a")])
        commits.error = None
        assert store.magazines.load_records("m", 0, [record("b")]) == 1
        assert bodies(store, "m") == ["b"]


def test_what_waits_for_a_commit_shares_the_next_one(path: Path, commits: FailingCommits) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        before = store.stats()
        commits.delay = threading.Event()
        threads = [
            threading.Thread(target=lambda: store.magazines.load_records("m", 0, [record("a")])) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        while int(store.stats()["requests"]) - int(before["requests"]) < 12:
            pass
        commits.delay.set()
        for thread in threads:
            thread.join(20)
        after = store.stats()
        assert int(after["commits"]) - int(before["commits"]) == 2
        assert store.magazines.metadata("m")[0].load_pointer == 12


def test_one_operation_that_fails_in_a_shared_commit_leaves_the_others(path: Path, commits: FailingCommits) -> None:
    """The one in the middle is undone after its neighbours ran; those get their pointers as if it had never been."""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        commits.delay = threading.Event()
        firsts: list[int] = []
        refused: list[BaseException] = []

        def load(shards: list[int]) -> None:
            try:
                many = [(shard, PackedBatch.pack([record("a"), record("b")])) for shard in shards]
                firsts.extend(store.magazines.load("m", many, 60))
            except ValueError as exc:
                refused.append(exc)

        threads = [threading.Thread(target=load, args=(shards,)) for shards in ([0], [0], [0, 7], [0], [0, 0, 7], [0])]
        for number, thread in enumerate(threads):
            thread.start()
            while int(store.stats()["requests"]) < number + 2:
                pass
        commits.delay.set()
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
    options = {"max_store_bytes": 3 << 20, "map_size_bytes": 1 << 20, "sync_interval_ms": 20}
    with open_at(path, **options) as store:
        store.magazines.declare("m", 1, durability)
        store.magazines.declare("side", 1, durability)
        for _ in range(3):
            count = fill(store, "m")
            assert count > 200
            count += fill(store, "m", names="max_store_bytes")  # a flush behind the refusal may have given pages back
            assert drain(store, "m") == count


def test_the_map_grows_and_other_processes_follow(path: Path) -> None:
    options = {"map_size_bytes": 1 << 20}
    with open_at(path, **options) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("first")])

        def follow(say: Say) -> None:
            other = open_at(path, **options)
            assert other.magazines.metadata("m")[0].load_pointer == 1
            say("ready")
            while (pointer := other.magazines.metadata("m")[0].load_pointer) < 200:
                pass
            say(f"{pointer} {len(bodies(other, 'm'))}")
            other.magazines.load_records("m", 0, [record("x" * 100_000)] * 20)
            other.close()

        with Child(follow) as child:
            assert child.line() == "ready"
            for _ in range(199):
                store.magazines.load_records("m", 0, [record("x" * 50_000)])
            assert child.line() == "200 200"
            assert child.lines() == []
            assert child.join() == 0
        assert store.magazines.metadata("m")[0].load_pointer == 220
        assert None not in bodies(store, "m")
        assert int(store.stats()["map_bytes"]) > 10 << 20


def test_growth_while_threads_read_and_write(path: Path) -> None:
    with open_at(path, map_size_bytes=1 << 20, sync_interval_ms=5) as store:
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
        assert [store.magazines.metadata(name)[0].load_pointer for name in ("s", "i")] == [120, 120]


def test_a_map_that_cannot_be_made_larger_is_not_touched_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_at(path, map_size_bytes=1 << 20)
    store.magazines.declare("m", 1)
    env = store.directory.data("sync").env  # type: ignore[attr-defined]
    real = env._lmdb

    class Unmappable:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def set_mapsize(self, size: int) -> None:
            raise lmdb.MemoryError("mmap", errno.ENOMEM)

    env._lmdb = Unmappable()
    with pytest.raises(StoreFailedError, match="mapped"):
        fill(store, "m", 50_000)
    with pytest.raises(StoreFailedError):
        store.magazines.peek("m", {0: [1]})
    env._lmdb = real
    store.close()
    with open_at(path) as again:
        assert None not in bodies(again, "m")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB. Needs root."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "ignis-test", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], capture_output=True, timeout=30, check=False)


def fill_disk(path: Path) -> None:
    """Takes the disk to its last byte."""
    with open(path, "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_a_full_disk_refuses_loads_and_drains(small_disk: Path, durability: str) -> None:
    def use(say: Say) -> None:
        with open_at(small_disk / "store", sync_interval_ms=20) as store:
            store.magazines.declare("m", 1, durability)
            for _ in range(2):
                count = fill(store, "m")
                assert count > 500, count
                # To the last byte: what drains need must have been kept back.
                fill_disk(small_disk / "ballast")
                with pytest.raises(StoreFullError):
                    store.magazines.load_records("m", 0, [record("x" * 4_000)] * 10)
                assert drain(store, "m") == count
                os.unlink(small_disk / "ballast")
                assert store.magazines.load_records("m", 0, [record("again")]) > count
                drain(store, "m")

    in_child(use)


def test_a_pinned_reader_does_not_stop_a_drain(path: Path) -> None:
    """A process that stopped in the middle of reading keeps pages from being used again, in a store at its limit."""
    options = {"max_store_bytes": 3 << 20, "map_size_bytes": 1 << 20}
    with open_at(path, **options) as store:
        store.magazines.declare("m", 1)
        count = fill(store, "m", 1_000)

        def pin(say: Say) -> None:
            other = open_at(path, **options)
            other.directory.data("sync").env.begin_read()  # type: ignore[attr-defined]
            say("pinned")
            forever()

        with Child(pin) as child:
            assert child.line() == "pinned"
            drained = 0
            while drained < 300:
                fired = store.magazines.fire("m", 1, "me")
                drained += store.magazines.delete("m", {0: fired.claims[0].pointers})
        assert drain(store, "m") == count - drained
