"""Which failures stop a durability class of the embedded store, and which only the call that met them."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ConfigError, IgnisError, StoreBusyError, StoreFailedError, StoreFormatError
from ignis.storage.base import QueueRecord
from ignis.storage.embedded import EmbeddedStore
from tests.contract.support import batch, drain


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path / "store") as opened:
        for durability in ("sync", "interval", "none"):
            opened.magazines.declare(durability, 2, durability)
        yield opened


def still_works(store: EmbeddedStore) -> None:
    for durability in ("sync", "interval", "none"):
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


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
@pytest.mark.parametrize("key", [b"", b"x" * 600])
def test_a_key_that_lmdb_does_not_take(store: EmbeddedStore, durability: str, key: bytes) -> None:
    env = store.directory.data(durability).env
    with pytest.raises(ConfigError, match="511 bytes"):
        env.transact(lambda txn: txn.put(key, b""))
    still_works(store)


@pytest.mark.parametrize("error", [MemoryError(), TypeError("no such thing"), OSError(errno.EMFILE, "no descriptors")])
def test_an_operation_that_raises(store: EmbeddedStore, error: Exception) -> None:
    def run(txn: Any) -> None:
        txn.put(b"half", b"done")
        raise error

    for durability in ("sync", "interval", "none"):
        with pytest.raises(type(error)):
            store.directory.data(durability).env.transact(run)
        with store.directory.data(durability).env.reading() as txn:
            assert txn.get(b"half") is None
    still_works(store)


def test_a_flush_opens_no_file(store: EmbeddedStore) -> None:
    for durability in ("sync", "interval"):
        steady = store.directory.data(durability).steady
        assert steady is not None
        with no_descriptors():
            store.magazines.load(durability, [(0, batch("a"))], None)
            assert steady.flush(5)
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


def test_no_address_space_for_a_larger_map(store: EmbeddedStore) -> None:
    for durability in ("sync", "interval", "none"):
        with pytest.raises(StoreBusyError, match="cannot be mapped"):
            store.directory.data(durability).env.ensure_room(1 << 52)
    still_works(store)


def test_a_neighbour_that_holds_the_flush(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed meanwhile is told to be open, and made durable with the next commit."""
    data = store.directory.data("sync")
    assert data.steady is not None
    monkeypatch.setattr(data.steady._journal, "write", lambda txnid, recorder: False)

    def busy() -> None:
        raise StoreBusyError("a neighbour flushes")

    monkeypatch.setattr(data.steady, "_flush_held", busy)
    with pytest.raises(StoreBusyError):
        store.magazines.load("sync", [(0, batch("open"))], None)
    monkeypatch.undo()
    store.magazines.load("sync", [(1, batch("next"))], None)
    assert sorted(map(str, drain(store.magazines, "sync"))) == ["next", "open"]
    still_works(store)


def test_a_lost_pin_is_taken_again_before_the_next_commit(store: EmbeddedStore) -> None:
    steady = store.directory.data("sync").steady
    assert steady is not None
    with store.directory.data("sync").env.writer():
        assert steady._pin is not None
        steady._pin.drop()
        steady._pin = None
    store.magazines.load("sync", [(0, batch("a"))], None)
    assert steady._pin is not None
    assert drain(store.magazines, "sync") == ["a"]


def _fails(*args: object) -> int:
    raise OSError(errno.EIO, "the disk is gone")


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_write_or_flush_of_the_journal_does_stop_the_class(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failing: Callable[..., int] = _fails
    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StoreFailedError):
        store.magazines.load("sync", [(0, batch("a"))], None)
    monkeypatch.undo()
    with pytest.raises(StoreFailedError, match="must be reopened"):
        store.magazines.load("sync", [(0, batch("b"))], None)
    store.magazines.load("none", [(0, batch("c"))], None)
    assert drain(store.magazines, "none") == ["c"]


def test_a_damaged_record_costs_its_own_queue(store: EmbeddedStore) -> None:
    for name in ("a", "b", "c"):
        store.queues.put(QueueRecord(name))
    key = store.scope.key(b"Q", "b")
    store.sync_data().env.transact(lambda txn: txn.put(key, b"\xc1 no record"))
    assert [one.name for one in store.queues.list()] == ["a", "c"]
    with pytest.raises(StoreFormatError):
        store.queues.get("b")
    store.queues.put(QueueRecord("b"))
    assert [one.name for one in store.queues.list(active=True)] == ["a", "b", "c"]
