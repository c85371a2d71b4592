"""Failures of the embedded store stop the call that met them, and nothing else: no class, no other process, no later call."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ConfigError, IgnisError, StoreBusyError, StoreFailedError, StoreFormatError
from ignis.native.store import ANY
from ignis.storage.base import QueueRecord
from ignis.storage.embedded import EmbeddedStore
from ignis.storage.embedded.options import StoreOptions
from tests.contract.support import batch, drain
from tests.support import eventually
from tests.support.embedded import (
    bodies,
    held_by_another,
    in_child,
    lose_segment,
    refuse_writes,
    resting,
    settle,
)

pytestmark = pytest.mark.integration
CLASSES = ("sync", "interval", "none")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path / "store") as opened:
        for durability in CLASSES:
            opened.magazines.declare(durability, 2, durability)
        settle(opened)
        yield opened


def still_works(store: EmbeddedStore) -> None:
    for durability in CLASSES:
        store.magazines.load(durability, [(0, batch("a")), (1, batch("b"))], None)
        assert sorted(map(str, drain(store.magazines, durability))) == ["a", "b"]
    store.magazines.declare(f"m{len(store.magazines.names())}", 1)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Whoever opens a file meanwhile is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("error", [MemoryError(), TypeError("no such thing"), OSError(errno.EMFILE, "no descriptors")])
def test_an_operation_that_raises(store: EmbeddedStore, error: Exception) -> None:
    def half() -> Iterator[tuple[bytes, Any, bytes]]:
        yield b"half", ANY, b"done"
        raise error

    def change(record: QueueRecord) -> None:
        record.active = not record.active
        raise error

    for durability in CLASSES:
        log = store.directory.log(durability)
        with pytest.raises(type(error)):
            log.change_keys(half())
        assert log.get_key(b"half") is None
    store.queues.put(QueueRecord("q"))
    before = store.queues.get("q")
    with pytest.raises(type(error)):
        store.queues.update("q", change)
    assert store.queues.get("q") == before
    still_works(store)


def test_a_load_and_its_flush_open_no_file(store: EmbeddedStore) -> None:
    still_works(store)
    for durability in CLASSES:
        with no_descriptors():
            store.magazines.load(durability, [(0, batch("a"))], None)
            store.directory.log(durability).flush()
        assert drain(store.magazines, durability) == ["a"]
    still_works(store)


def test_no_descriptors_for_a_class_that_is_opened(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "store") as opened:
        for durability in ("interval", "none"):
            with no_descriptors(), pytest.raises(IgnisError) as refused:
                opened.magazines.declare(durability, 2, durability)
            assert not isinstance(refused.value, StoreFailedError)
            opened.magazines.declare(durability, 2, durability)
        opened.magazines.declare("sync", 2)
        still_works(opened)


def test_no_address_space_for_a_class_that_is_opened(tmp_path: Path) -> None:
    def look(say: Callable[[str], None]) -> None:
        with EmbeddedStore(tmp_path / "store") as opened:
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            for durability in ("interval", "none"):
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, ((pages << 12) + (64 << 20), hard))
                try:
                    opened.magazines.declare(durability, 2, durability)
                except ConfigError as exc:
                    say(str(exc))
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
                opened.magazines.declare(durability, 2, durability)
            opened.magazines.declare("sync", 2)
            still_works(opened)

    said = in_child(look)
    assert len(said) == 2
    assert all("MiB of addresses (ulimit -v" in one for one in said)


def test_a_neighbour_that_holds_the_log(tmp_path: Path) -> None:
    """Who waits is told whose time is over, and goes on when it is free; another class does not notice."""
    path = tmp_path / "store"
    with EmbeddedStore(path, StoreOptions(write_timeout_s=0.3)) as store:
        for durability in CLASSES:
            store.magazines.declare(durability, 2, durability)
        with held_by_another(path, "sync") as held:
            with pytest.raises(StoreBusyError, match="write_timeout_s"):
                store.magazines.load("sync", [(0, batch("refused"))], None)
            store.magazines.load("none", [(0, batch("other"))], None)
            assert held()
        store.magazines.load("sync", [(1, batch("next"))], None)
        assert drain(store.magazines, "sync") == ["next"]
        assert drain(store.magazines, "none") == ["other"]
        still_works(store)


def test_who_waits_for_a_neighbour_goes_on_when_it_is_done(store: EmbeddedStore, tmp_path: Path) -> None:
    begun, done = threading.Event(), threading.Event()

    def load() -> None:
        begun.set()
        store.magazines.load("sync", [(0, batch("a"))], None)
        done.set()

    thread = threading.Thread(target=load, daemon=True)
    with held_by_another(tmp_path / "store", "sync") as held:
        thread.start()
        assert begun.wait(30)
        assert held()
        assert not done.is_set()
    eventually(done.is_set)
    assert drain(store.magazines, "sync") == ["a"]
    still_works(store)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_failed_write_of_the_log_is_one_calls_error(store: EmbeddedStore, tmp_path: Path, durability: str) -> None:
    """The next one goes on in a new file."""
    log = store.directory.log(durability)
    store.magazines.load(durability, [(0, batch("before"))], None)
    generation = log.figures()["generation"]
    with resting(store):
        refuse_writes(tmp_path / "store", durability)
        with pytest.raises(StoreFailedError, match="nothing was stored"):
            store.magazines.load(durability, [(0, batch("a"))], None)
    store.magazines.load(durability, [(0, batch("b"))], None)
    assert log.figures()["generation"] == generation + 1
    assert drain(store.magazines, durability) == ["before", "b"]
    still_works(store)


def test_a_failed_flush_of_the_log_is_one_calls_error(store: EmbeddedStore, tmp_path: Path) -> None:
    log = store.directory.log("sync")
    generation = log.figures()["generation"]
    number = log.find("local/ignis/sync")
    assert number is not None
    log.load(number, [(0, batch("a"))], durable=False)
    with resting(store):
        lose_segment(tmp_path / "store", "sync")
        with pytest.raises(StoreFailedError, match="nothing was stored"):
            log.flush()
    store.magazines.load("sync", [(0, batch("b"))], None)
    assert log.figures()["generation"] > generation
    assert drain(store.magazines, "sync") == ["b"]
    still_works(store)


def test_a_failed_flush_of_interval_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the next call that changes something of that class."""
    path = tmp_path / "store"
    with EmbeddedStore(path, StoreOptions(sync_interval_ms=20)) as store:
        store.magazines.declare("interval", 2, "interval")
        settle(store)
        log = store.directory.log("interval")
        number = log.find("local/ignis/interval")
        assert number is not None
        flusher = store.directory._flusher
        assert flusher is not None

        def met_it() -> bool:
            # Not by `magazines`, which asks the flusher. It may be quicker than the loss: the next load meets that then.
            with suppress(StoreFailedError):
                log.load(number, [(0, batch("x"))], durable=False)
                lose_segment(path, "interval")
                eventually(lambda: log.figures()["durable"] == log.figures()["end"])
            return flusher.untold

        with resting(store):
            eventually(met_it)
            with pytest.raises(StoreFailedError):
                store.magazines.load("interval", [(0, batch("told"))], None)
            store.magazines.load("interval", [(0, batch("b"))], None)
        assert any("store: interval: " in one.getMessage() for one in caplog.records)
        assert "told" not in bodies(store, "interval")
        assert "b" in bodies(store, "interval")


def test_a_damaged_record_costs_its_own_queue(store: EmbeddedStore) -> None:
    for name in ("a", "b", "c"):
        store.queues.put(QueueRecord(name))
    key = store.scope.key(b"Q", "b")
    assert store.directory.log("sync").change_keys([(key, ANY, b"\xc1 no record")]) is not None
    assert [one.name for one in store.queues.list()] == ["a", "c"]
    with pytest.raises(StoreFormatError):
        store.queues.get("b")
    store.queues.put(QueueRecord("b"))
    assert [one.name for one in store.queues.list(active=True)] == ["a", "b", "c"]
