"""The embedded store with damaged entries in its catalogue: each costs what it stands for, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import StoreFormatError
from ignis.storage.base import FireResult, QueueRecord
from ignis.storage.embedded.catalogue import Scope
from ignis.storage.embedded.locks import Step
from ignis.storage.embedded.store import EmbeddedStore
from tests.integration.embedded_support import body, record

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def overwrite_key(path: Path, kind: bytes, name: str, value: bytes) -> None:
    """As a store that is written by something else than this code would have it."""
    with EmbeddedStore(path) as store:
        key = Scope("local", "ignis").key(kind, name)
        store.sync_data().committer.submit(Step(lambda txn: txn.put(key, value)))


def records(*texts: str) -> list[bytes]:
    return [record(text) for text in texts]


def bodies(fired: FireResult) -> list[str | None]:
    return [body(one) for claim in fired.claims for one in claim.records]


def entry(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"id": 1, "name": "m", "shards": 2, "durability": "sync", **fields})


@pytest.mark.parametrize(
    "damaged",
    [
        entry(shards=8.0),
        entry(shards=True),
        entry(shards=0),
        entry(shards=1 << 40),
        entry(durability="always"),
        entry(id=-1),
        entry(name="others"),
        b"",
        b"\xc1\xff\x00",
    ],
    ids=["float", "bool", "no shards", "too many", "durability", "id", "name", "empty", "no msgpack"],
)
def test_a_damaged_magazine_costs_itself_alone(path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedStore(path) as store:
        for name in ("m", "n"):
            store.magazines.declare(name, 2)
            store.magazines.load_records(name, 0, records("a", "b"))
        store.magazines.fire("n", 1, store.owner)
    overwrite_key(path, b"M", "m", damaged)
    for _ in range(2):  # the first of them is alone, and recovers
        with caplog.at_level(logging.ERROR), EmbeddedStore(path) as store:
            magazines = store.magazines
            assert {"m", "n"} <= set(magazines.names())
            assert bodies(magazines.fire("n", 10, store.owner)) in (["b"], [])
            calls: list[tuple[Any, ...]] = [
                (magazines.metadata, "m"),
                (magazines.fire, "m", 1, store.owner),
                (magazines.load_records, "m", 0, records("c")),
                (magazines.declare, "m", 2),
            ]
            for call, *arguments in calls:
                with pytest.raises(StoreFormatError, match="catalogue entry of magazine 'm' is damaged"):
                    call(*arguments)
            magazines.declare("new", 1)
    assert "magazine 'm' is damaged" in caplog.text
    with EmbeddedStore(path) as store:
        store.magazines.drop("m")
        assert store.magazines.names() == ["n", "new"]
        store.magazines.declare("m", 2)
        assert not any(state.load_counter for state in store.magazines.metadata("m"))
        assert sum(state.in_flight for state in store.magazines.metadata("n")) == 2


def test_claims_of_a_magazine_whose_entry_is_damaged_are_kept(path: Path) -> None:
    with EmbeddedStore(path) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, records("a", "b"))
        store.magazines.fire("m", 1, store.owner)
        good = msgspec.msgpack.encode(store.magazines._find("m"))  # type: ignore[attr-defined]
    overwrite_key(path, b"M", "m", b"?")
    EmbeddedStore(path).close()
    overwrite_key(path, b"M", "m", good)
    with EmbeddedStore(path) as store:
        assert bodies(store.magazines.fire("m", 10, store.owner)) == ["b"]


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


def test_the_number_of_the_next_magazine_is_not_needed_to_go_on(path: Path) -> None:
    with EmbeddedStore(path) as store:
        store.magazines.declare("m", 1)
        store.sync_data().committer.submit(Step(lambda txn: txn.put(b"N", b"?")))
        store.sync_data().committer.submit(Step(lambda txn: txn.put(b"G?", b"")))
    with EmbeddedStore(path) as store:
        store.magazines.load_records("m", 0, records("a"))
        with pytest.raises(StoreFormatError, match="next magazine id is damaged"):
            store.magazines.declare("n", 1)
