"""Damaged entries among what the embedded store keeps beside messages: each costs what it stands for, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import QueueNotFoundError, StoreFormatError
from ignis.native.store import ANY
from ignis.storage.base import FireResult, QueueRecord
from ignis.storage.embedded.keys import Scope
from ignis.storage.embedded.store import EmbeddedStore
from tests.support.embedded import bodies as whole
from tests.support.embedded import body, flip, record

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def overwrite_key(path: Path, kind: bytes, name: str, value: bytes) -> None:
    """As a store that is written by something else than this code would have it."""
    with EmbeddedStore(path) as store:
        key = Scope("local", "ignis").key(kind, name)
        assert store.directory.log("sync").change_keys([(key, ANY, value)]) is not None


def records(*texts: str) -> list[bytes]:
    return [record(text) for text in texts]


def bodies(fired: FireResult) -> list[str | None]:
    return [body(one) for claim in fired.claims for one in claim.records]


def test_a_damaged_declaration_costs_its_own_magazine(path: Path) -> None:
    """Its messages are nobody's then, and a new one of that name begins behind their pointers."""
    with EmbeddedStore(path) as store:
        for name in ("m", "n"):
            store.magazines.declare(name, 2)
        pointers = {name: store.magazines.load_records(name, 0, records("a", "b")) for name in ("m", "n")}
        store.magazines.fire("n", 1, store.owner)
        store.directory.log("sync").flush()
        store.magazines.load_records("n", 1, records("c"))  # an entry that knows of the flush of those before
    (segment,) = (path / "sync").glob("log-*")
    content = segment.read_bytes()
    segment.write_bytes(flip(content, content.index(b"local/ignis/m")))
    for _ in range(2):  # the first of them passes over the damage
        with EmbeddedStore(path) as store:
            assert store.magazines.names() == ["n"]
            assert sum(state.in_flight for state in store.magazines.metadata("n")) == 1
            assert whole(store, "n") == ["a", "b", "c"]
            with pytest.raises(QueueNotFoundError):
                store.magazines.metadata("m")
            assert store.stats()["damaged_bytes"] != 0
    with EmbeddedStore(path) as store:
        store.magazines.declare("m", 2)
        assert whole(store, "m") == []
        assert store.magazines.load_records("m", 0, records("new")) > pointers["m"] + 1
        assert whole(store, "m") == ["new"]
        assert bodies(store.magazines.fire("n", 10, store.owner)) == ["b", "c"]


@pytest.mark.parametrize(
    "damaged",
    [b"\x00", msgspec.msgpack.encode({"name": "bad", "shards": "two"}), msgspec.msgpack.encode({"name": "x"})],
)
def test_a_damaged_queue_costs_itself_alone(path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with ignis.Ignis(f"embedded://{path}") as app:
        for name in ("bad", "good"):
            app.queue(name, dict, shards=1).publish({"n": name})
    overwrite_key(path, b"Q", "bad", damaged)
    seen: list[dict[str, str]] = []
    with caplog.at_level(logging.ERROR), ignis.Ignis(f"embedded://{path}") as app:
        assert [record.name for record in app.store.queues.list()] == ["good"]
        with pytest.raises(StoreFormatError, match="record of queue 'bad' is damaged"):
            app.queue("bad", dict).publish({})
        app.queue("good", dict).handler(seen.append)
        result = app.refresh()
        assert result.failed == []
        app.store.queues.put(QueueRecord("bad", shards=1))
        assert [record.name for record in app.store.queues.list()] == ["bad", "good"]
        assert app.queue("bad", dict).main.pending() == 1
    assert caplog.text.count("record of queue 'bad' is damaged") == 1


@pytest.mark.parametrize("kind", ["lock", "epoch", "array queue"])
def test_a_damaged_key_costs_itself_alone(path: Path, kind: str) -> None:
    with EmbeddedStore(path) as store:
        for name in ("bad", "good"):
            store.locks.acquire(name, "me", 60)
            store.locks.next_epoch(name)
            store.arrays.enqueue("a", name, [b"x"])
    letter = {"lock": b"L", "epoch": b"E", "array queue": b"A"}[kind]
    with EmbeddedStore(path) as store:
        keys = [key for key, _ in store.keys.items(letter) if key.endswith(b"bad") or b"bad" in key]
        assert keys
        for key in keys:
            assert store.directory.log("sync").change_keys([(key, ANY, b"\xc1")]) is not None

    def look(name: str) -> dict[str, Any]:
        return {
            "lock": lambda: store.locks.acquire(name, "other", 60),
            "epoch": lambda: store.locks.next_epoch(name),
            "array queue": lambda: store.arrays.size("a", name),
        }

    with EmbeddedStore(path) as store:
        for name in ("bad", "good"):
            for what, call in look(name).items():
                if (what, name) == (kind, "bad"):
                    with pytest.raises(StoreFormatError, match="damaged"):
                        call()
                else:
                    assert call() == {"lock": None, "epoch": 2, "array queue": 1}[what]
