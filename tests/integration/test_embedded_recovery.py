"""The embedded store after the machine lost its power, as far as that can be played: another boot, nothing closed.

What the disk really keeps is tried by the torture programme; here it is the logic, with mutants that must fail.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis.storage.base import Store
from ignis.storage.embedded import steady
from ignis.storage.embedded.environment import Pin
from tests.integration.embedded_support import (
    Child,
    bodies,
    flip,
    forever,
    in_child,
    open_at,
    overwrite,
    record,
    restart_machine,
    stored,
)

pytestmark = pytest.mark.integration

Say = Callable[[str], None]


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


def test_what_was_claimed_is_fired_again(path: Path) -> None:
    def work(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 2)
        for shard in range(2):
            store.magazines.load_records("m", shard, [record(f"{shard}{one}") for one in range(4)])
        store.magazines.fire("m", 8, store.owner)
        store.magazines.delete("m", {0: [2], 1: [1, 2, 3, 4]})

    killed(work)
    restart_machine(path)
    with open_at(path) as store:
        states = store.magazines.metadata("m")
        assert [(one.load_pointer, one.fire_pointer, one.in_flight) for one in states] == [(4, 0, 0), (4, 4, 0)]
        fired = store.magazines.fire("m", 99, "me")
        assert [(one.shard, list(one.pointers)) for one in fired.claims] == [(0, [1, 3, 4])]
        assert store.magazines.load_records("m", 1, [record("new")]) == 5


def test_the_same_boot_keeps_the_claims(path: Path) -> None:
    def work(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a"), record("b")])
        store.magazines.fire("m", 1, store.owner)

    killed(work)
    with open_at(path) as store:
        assert store.magazines.metadata("m")[0].in_flight == 1
        assert store.magazines.fire("m", 9, "me").total() == 1


def interval_work(path: Path, rounds: int) -> Callable[[Say], None]:
    """Makes 60 records steady, then works on without a flush, using pages again as fast as it can."""

    def work(say: Say) -> None:
        store = open_at(path, sync_interval_ms=3_600_000)
        store.magazines.declare("m", 1, "interval")
        for number in range(60):
            store.magazines.load_records("m", 0, [record(f"steady{number}" + "x" * 500)])
        flush(store)
        store.magazines.delete("m", {0: range(1, 61)})
        for number in range(rounds):
            first = store.magazines.load_records("m", 0, [record(f"later{number}" + "y" * 500)] * 3)
            store.magazines.delete("m", {0: range(first, first + 2)})

    return work


def flush(store: Store) -> None:
    keeper = store.directory.data("interval").steady  # type: ignore[attr-defined]
    assert keeper is not None
    assert keeper.flush(5)


def test_interval_returns_to_the_last_flushed_state(path: Path) -> None:
    killed(interval_work(path, 60))
    with open_at(path) as store:
        # kill -9 alone loses nothing ...
        assert len(bodies(store, "m")) == 60
        assert all(str(one).startswith("later") for one in bodies(store, "m"))


def test_a_death_at_any_write_of_an_opening_is_no_power_cut(path: Path) -> None:
    """Somebody opens the store after a kill -9 and is killed as well, right after emptying, or making, one of its files."""

    def opens_and_dies(where: Path, at: int) -> Callable[[Say], None]:
        def role(say: Say) -> None:
            writes = itertools.count()
            real_open = os.open

            def dying(name: Any, flags: int, *rest: Any, **more: Any) -> int:
                fd = real_open(name, flags, *rest, **more)
                if flags & (os.O_WRONLY | os.O_RDWR) and str(name).startswith(str(where)) and next(writes) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return fd

            def dying_whole(self: Path, data: bytes) -> int:
                fd = dying(self, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.write(fd, data)
                os.close(fd)
                return len(data)

            os.open = dying  # type: ignore[assignment]
            Path.write_bytes = dying_whole  # type: ignore[method-assign, assignment]
            open_at(where)
            say("opened")

        return role

    for at in range(100):
        where = path / str(at)  # another one each time: closing it, as is done below, makes everything steady
        where.mkdir(parents=True)
        killed(interval_work(where, 3))
        with Child(opens_and_dies(where, at)) as child:
            opened = child.lines() == ["opened"]
            child.join()
        with open_at(where) as store:
            assert [str(one)[:6] for one in bodies(store, "m")] == ["later0", "later1", "later2"], at
        if opened:
            break
    else:
        raise AssertionError("an opening never comes to its end")


def test_interval_after_another_boot(path: Path) -> None:
    killed(interval_work(path, 60))
    restart_machine(path)
    with open_at(path) as store:
        # ... a power cut loses what was not flushed: here nearly everything, the interval being an hour.
        assert [str(one)[:9].rstrip("x") for one in bodies(store, "m")][:2] == ["steady0", "steady1"]
        assert len(bodies(store, "m")) == 60
        fired = store.magazines.fire("m", 99, "me")
        assert fired.total() == 60
        assert None not in fired.claims[0].records
        assert store.magazines.load_records("m", 0, [record("new")]) == 61


@pytest.mark.parametrize("mutant", ["no pin", "no meta pages"])
def test_without_pin_or_meta_pages_it_would_be_ruined(path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_at_once(self: Pin, txn: object) -> None:
        self.txnid = txn.id()  # type: ignore[attr-defined]
        txn.abort()  # type: ignore[attr-defined]

    if mutant == "no pin":
        monkeypatch.setattr(Pin, "__init__", drop_at_once)
        monkeypatch.setattr(Pin, "drop", lambda self: None)
    else:
        monkeypatch.setattr(steady, "restore", lambda directory: True)
    killed(interval_work(path, 60))
    restart_machine(path)

    def look(say: Say) -> None:
        with open_at(path) as store:
            there = bodies(store, "m")
            say(str(len(there) == 60 and all(str(one).startswith("steady") for one in there)))

    with Child(look) as child:
        lines = []
        try:
            lines = child.lines()
        except AssertionError:
            lines = ["False"]  # LMDB itself noticed
        status = child.join()
    assert lines != ["True"] or status != 0


def test_each_process_guards_the_flushed_state(path: Path) -> None:
    """Another process opens, works, is killed; the state that the first one made steady must have been guarded."""
    with open_at(path, sync_interval_ms=3_600_000) as store:
        store.magazines.declare("m", 1, "interval")
        store.magazines.load_records("m", 0, [record("a" * 500)] * 50)
        flush(store)
        killed(interval_work(path, 40))
        store.magazines.delete("m", {0: range(1, 51)})
        for _ in range(40):
            store.magazines.load_records("m", 0, [record("b" * 500)])
    # Closed in order, so flushed at the end.
    restart_machine(path)
    with open_at(path) as store:
        assert None not in bodies(store, "m")
        assert len(bodies(store, "m")) == 50 + 40 + 40


def test_interval_survives_growth_of_the_map(path: Path) -> None:
    def work(say: Say) -> None:
        store = open_at(path, sync_interval_ms=3_600_000, map_size_bytes=1 << 20)
        store.magazines.declare("m", 1, "interval")
        for _ in range(40):
            store.magazines.load_records("m", 0, [record("x" * 100_000)])

    killed(work)
    restart_machine(path)
    with open_at(path) as store:
        there = bodies(store, "m")
        assert None not in there
        # The map was grown several times; each growth made the state before it steady.
        assert 10 <= len(there) <= 40


def test_interval_without_any_flushed_state_starts_empty(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1, "interval")
        store.magazines.load_records("m", 0, [record("a")])
    (path / "interval" / steady.FILE).write_bytes(b"")
    restart_machine(path)
    with caplog.at_level(logging.ERROR), open_at(path) as store:
        assert bodies(store, "m") == []
        assert store.magazines.load_records("m", 0, [record("b")]) == 1
    assert "starts empty" in caplog.text
    assert list(path.glob("interval.unclean-*"))


@pytest.mark.parametrize("slot", [0, 1])
def test_half_a_steady_file_still_has_the_state_before(path: Path, slot: int) -> None:
    with open_at(path, sync_interval_ms=3_600_000) as store:
        store.magazines.declare("m", 1, "interval")
        for text in ("a", "b"):
            store.magazines.load_records("m", 0, [record(text)])
            flush(store)
    file = path / "interval" / steady.FILE
    content = file.read_bytes()
    half = len(content) // 2
    torn = slot * half + 100
    file.write_bytes(flip(content, torn))
    restart_machine(path)
    with open_at(path) as store:
        assert bodies(store, "m") in (["a", "b"], ["a"])


def test_none_is_set_aside_when_it_was_not_closed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(say: Say) -> None:
        store = open_at(path)
        store.magazines.declare("m", 1, "none")
        store.magazines.declare("s", 1, "sync")
        store.magazines.load_records("m", 0, [record("a")])
        store.magazines.load_records("s", 0, [record("a")])

    killed(work)
    restart_machine(path)
    with caplog.at_level(logging.ERROR), open_at(path) as store:
        assert bodies(store, "m") == []
        assert bodies(store, "s") == ["a"]
        assert store.magazines.load_records("m", 0, [record("b")]) == 1
    assert "starts empty" in caplog.text


def test_none_stays_when_the_last_one_closed_it(path: Path) -> None:
    first = open_at(path)
    first.magazines.declare("m", 1, "none")

    def other(say: Say) -> None:
        with open_at(path) as store:
            store.magazines.load_records("m", 0, [record("a")])

    in_child(other)
    first.magazines.load_records("m", 0, [record("b")])
    assert not (path / "none" / "clean").exists()
    first.close()
    assert (path / "none" / "clean").exists()
    restart_machine(path)
    with open_at(path) as store:
        assert bodies(store, "m") == ["a", "b"]
        assert not (path / "none" / "clean").exists()


def test_a_fire_pointer_beyond_the_records_is_wound_back(path: Path) -> None:
    """As when the records' environment lost its end and the claims did not."""
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a"), record("b")])
        store.magazines.load_records("m", 0, [record("c")])
        store.magazines.fire("m", 3, "me")
    last = [key for key, _ in stored(path, "sync", b"S")][-1]
    import lmdb

    with lmdb.open(str(path / "sync")) as env, env.begin(write=True) as txn:
        assert txn.delete(last)
    with open_at(path) as store:
        assert store.magazines.metadata("m")[0].fire_pointer == 0
        assert store.magazines.fire("m", 9, "me").total() == 2


@pytest.mark.parametrize("prefix", [b"F", b"C"])
@pytest.mark.parametrize("cut", [False, True])
def test_damaged_claims_cost_a_second_delivery_at_most(path: Path, prefix: bytes, cut: bool) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 2)
        for shard in range(2):
            store.magazines.load_records("m", shard, [record(f"{one}") for one in range(4)])
        store.magazines.fire("m", 6, "me")
    for key, value in stored(path, "claims", prefix):
        overwrite(path, "claims", key, value[:-3] if cut else flip(value, 5))
    with open_at(path) as store:
        assert store.magazines.fire("m", 99, "me").total() == 8


def test_a_damaged_owner_is_unknown_and_not_dead(path: Path) -> None:
    with open_at(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("a")])
        store.magazines.fire("m", 1, "me")
    for key, value in stored(path, "claims", b"O"):
        overwrite(path, "claims", key, flip(value, 6))
    with open_at(path) as store:
        found = store.magazines.abandoned("m", 0, 1 << 52, 9)
        assert [(one.owner, one.owner_dead) for one in found] == [("unknown", False)]


def test_a_drop_that_was_cut_short_is_finished(path: Path) -> None:
    from ignis.storage.embedded import catalogue

    with open_at(path) as store:
        store.magazines.declare("m", 2, "interval")
        store.magazines.load_records("m", 0, [record("a")] * 5)
        scope = store.scope  # type: ignore[attr-defined]
        store.directory.data("sync").env.transact(lambda txn: catalogue.drop(txn, scope, "m"))  # type: ignore[attr-defined]
    assert list(stored(path, "interval", b"S"))
    open_at(path).close()
    assert not list(stored(path, "interval", b"S"))
    assert not list(stored(path, "sync", b"G"))
