"""The journal of the `sync` environment: what was acknowledged comes back after a power cut, whatever the cut left.

A power cut is played by copying the directory as a disk would hold it: the journal's files as they are (each commit
flushed them), and the B-tree's file as it was when the state was last made steady.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.storage.embedded import journal as journal_module
from ignis.storage.embedded.recorder import MAX_RECORD_BYTES, Recorder, put_new
from ignis.storage.embedded.steady import Steady

pytestmark = pytest.mark.integration

STALE = "another boot"


def body(index: int) -> bytes:
    return encode_record(b"message %d" % index)


class Machine:
    """A directory whose power can be cut."""

    def __init__(self, root: Path) -> None:
        self.live = root / "live"
        self.disk = root / "disk"
        self.store: Store = self._open(self.live)

    @staticmethod
    def _open(path: Path) -> Store:
        # No background flush within a test: what is steady is what was steady when the store was opened.
        return open_store(f"embedded://{path}", sync_interval_ms=3_600_000)

    def remember_tree(self) -> None:
        """What the disk holds of the B-tree from now on."""
        self.disk.mkdir(exist_ok=True)
        shutil.copytree(self.live, self.disk, dirs_exist_ok=True)

    def cut_power(self) -> Store:
        """Opens what the disk holds, after another boot."""
        for name in journal_module.FILES:
            shutil.copy(self.live / "sync" / name, self.disk / "sync" / name)
        (self.disk / "boot").write_text(STALE)
        return self._open(self.disk)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("ignis.storage.embedded.directory._CHECKPOINT_S", 3600.0)
    machine = Machine(tmp_path)
    machine.store.magazines.declare("m", 2)
    yield machine
    machine.store.close()


def pointers(store: Store) -> list[tuple[int, int]]:
    return [(shard, pointer) for shard, pointer, _ in store.magazines.scan("m", limit=10_000)]


def test_acknowledged_loads_and_deletes_survive(machine: Machine) -> None:
    magazines = machine.store.magazines
    magazines.load_records("m", 0, [body(0)])
    machine.remember_tree()
    for index in range(1, 50):
        magazines.load_records("m", index % 2, [body(index)])
    magazines.fire("m", 10, "me", [0])
    magazines.delete("m", {0: [1, 2, 3]})
    expected = pointers(machine.store)
    with machine.cut_power() as after:
        assert pointers(after) == expected
        assert all(record is not None for _, _, record in after.magazines.scan("m", limit=1_000))
        # Nothing is used twice: the next pointers follow the ones that came back.
        assert after.magazines.load_records("m", 0, [body(99)]) == max(p for s, p in expected if s == 0) + 1


def test_a_second_power_cut_during_recovery_changes_nothing(machine: Machine) -> None:
    machine.remember_tree()
    for index in range(20):
        machine.store.magazines.load_records("m", 0, [body(index)])
    expected = pointers(machine.store)
    again = machine.disk.with_name("again")
    for name in journal_module.FILES:
        shutil.copy(machine.live / "sync" / name, machine.disk / "sync" / name)
    shutil.copytree(machine.disk, again)
    with machine.cut_power() as after:
        assert pointers(after) == expected
    (again / "boot").write_text(STALE)
    with Machine._open(again) as after:
        assert pointers(after) == expected


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_record_that_was_cut_short_ends_the_replay(machine: Machine, damage: str) -> None:
    machine.remember_tree()
    loads = machine.store.magazines
    for index in range(5):
        loads.load_records("m", 0, [body(index)])
    file = max((machine.live / "sync" / name for name in journal_module.FILES), key=_base)
    ends = [end for _, end, _ in journal_module._records(os.open(file, os.O_RDONLY), _base(file), 64, _base(file))]
    assert len(ends) == 6  # the declaration as well
    with open(file, "r+b") as stored:
        stored.seek(ends[-2] + 30 if damage == "torn" else ends[-2] + 26)
        if damage == "torn":
            stored.write(bytes(ends[-1] - ends[-2] - 30))
        else:
            byte = stored.read(1)
            stored.seek(ends[-2] + 26)
            stored.write(bytes([byte[0] ^ 1]))
    with machine.cut_power() as after:
        assert [pointer for _, pointer in pointers(after)] == [1, 2, 3, 4]


def _base(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return journal_module._read_base(fd)
    finally:
        os.close(fd)


def test_a_transaction_without_a_record_is_made_steady_instead(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between LMDB's commit and the journal leaves a gap in the numbers."""
    magazines = machine.store.magazines
    magazines.load_records("m", 0, [body(0)])
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.Journal, "append", lambda self, txnid, recorder: True)
        magazines.load_records("m", 0, [body(1)])
    magazines.load_records("m", 0, [body(2)])
    # Now the B-tree itself has been flushed with all three.
    machine.remember_tree()
    with machine.cut_power() as after:
        assert [pointer for _, pointer in pointers(after)] == [1, 2, 3]


def test_nothing_is_built_on_a_gap_while_the_state_is_made_steady(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died left a gap, and another one's background flush comes first, not its commit."""
    magazines = machine.store.magazines
    machine.remember_tree()
    magazines.load_records("m", 0, [body(0)])
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.Journal, "append", lambda self, txnid, recorder: True)
        magazines.load_records("m", 0, [body(1)])
    data = machine.store.directory.data("sync")  # type: ignore[attr-defined]
    meanwhile: list[list[tuple[int, int]]] = []

    def make_steady(steady: Steady, txnid: int, pages: bytes) -> None:
        if steady is data.steady and not meanwhile and not data.env._threads.locked():
            # Whoever commits now is told that it is durable, and the state is not steady yet.
            magazines.load_records("m", 1, [body(2)])
            with machine.cut_power() as after:
                meanwhile.append(pointers(after))
        original(steady, txnid, pages)

    original = Steady._make_steady
    monkeypatch.setattr(Steady, "_make_steady", make_steady)
    assert data.steady.flush(5.0)
    assert meanwhile == [] or (1, 1) in meanwhile[0]
    magazines.load_records("m", 1, [body(3)])
    expected = pointers(machine.store)
    machine.remember_tree()
    with machine.cut_power() as after:
        assert pointers(after) == expected


def test_large_commits_and_a_full_journal_go_through_the_tree(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "FILE_BYTES", 4_096)
    magazines = machine.store.magazines
    for index in range(60):
        magazines.load_records("m", 0, [body(index)])
    magazines.load_records("m", 1, [encode_record(bytes(300_000))])
    machine.remember_tree()
    magazines.load_records("m", 1, [body(61)])
    expected = pointers(machine.store)
    assert len(expected) == 62
    with machine.cut_power() as after:
        assert pointers(after) == expected


def test_the_two_files_take_turns(machine: Machine) -> None:
    machine.remember_tree()
    data = machine.store.directory.data("sync")  # type: ignore[attr-defined]
    for index in range(30):
        machine.store.magazines.load_records("m", 0, [body(index)])
        if index % 7 == 6:
            assert data.steady.flush(5.0)
            machine.remember_tree()
    expected = pointers(machine.store)
    with machine.cut_power() as after:
        assert pointers(after) == expected


def test_a_flush_that_fails_refuses_further_writes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from ignis.errors import StoreFailedError

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "_flush", broken)
        with pytest.raises(StoreFailedError, match="journal"):
            machine.store.magazines.load_records("m", 0, [body(0)])
    with pytest.raises(StoreFailedError, match="reopened"):
        machine.store.magazines.load_records("m", 0, [body(1)])


def test_ids_that_were_loaded_once_are_known_after_a_power_cut(machine: Machine) -> None:
    """A journalled load, and one so large that it is flushed as a whole, remember their ids as durably as their records."""

    def batch(first: int, count: int) -> PackedBatch:
        return PackedBatch.pack(
            [encode_record(b"m", id=number.to_bytes(16, "big")) for number in range(first, first + count)]
        )

    def load(store: Store, first: int, count: int) -> tuple[int, int]:
        (done,) = store.magazines.load_once("m", [(0, batch(first, count))], None, 86_400)
        return done.loaded, done.repeats

    load(machine.store, 0, 10)
    machine.remember_tree()
    assert load(machine.store, 5, 10) == (10 - 5, 5)
    expected = pointers(machine.store)
    with machine.cut_power() as after:
        assert pointers(after) == expected
        assert load(after, 0, 20) == (5, 15)
    recorder = Recorder(_Ignored())
    put_new(recorder, [b"k%d" % number for number in range(50_000)], b"v")
    assert recorder.nbytes > MAX_RECORD_BYTES, "not appended to the journal, but made steady at once"


class _Ignored:
    """A transaction that takes everything."""

    get = put = delete = None

    def cursor(self) -> _Ignored:
        return self

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], overwrite: bool) -> tuple[int, int]:
        count = sum(1 for _ in items)
        return count, count
