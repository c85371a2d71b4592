"""A batch of which a part cannot be read at all, as the file was cut within it: what can be read is handed out, whichever way
it is asked for, and the rest comes out as damaged and can be put aside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.native import FrameDecoder
from ignis.native.store import Recall
from ignis.native.wire import ClaimsFrame, unpack_claims
from ignis.storage.base import Store, Transfer
from tests.support import eventually, sidelined, wait_idle
from tests.support.embedded import bodies, body, open_at, record

pytestmark = pytest.mark.integration

Texts = list[str | None]
READABLE, CUT = ["a", "b"], ["c", "d"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def large(text: str) -> bytes:
    return record(text * 6_000)


def short(data: bytes | None) -> str | None:
    text = body(data)
    return None if text is None else text[0]


def cut(path: Path) -> None:
    """The file ends within the third message of the batch of four."""
    [log] = (path / "sync").glob("log-*")
    content = log.read_bytes()
    os.truncate(log, content.index(b"c" * 6_000) + 3_000)


def load(store: Store) -> None:
    store.magazines.declare("m", 1)
    store.magazines.load_records("m", 0, [large(text) for text in READABLE + CUT])


@pytest.fixture(params=["while it is open", "before an opening"])
def store(path: Path, request: pytest.FixtureRequest) -> Any:
    """A store with one batch of four large messages, the file of which ends within the third."""
    opened = open_at(path)
    load(opened)
    if request.param == "before an opening":
        opened.close()
        cut(path)
        opened = open_at(path)
    else:
        cut(path)
    yield opened
    opened.close()


def fire(store: Store) -> Texts:
    fired = store.magazines.fire("m", 99, store.owner)
    return [short(one) for claim in fired.claims for one in claim.records]


def fire_one_by_one(store: Store) -> Texts:
    return [short(store.magazines.fire("m", 1, store.owner).claims[0].records[0]) for _ in range(4)]


def fire_next(store: Store) -> Texts:
    _, fired = store.magazines.fire_next("m", 99, store.owner, 0, 5.0, Recall())
    assert fired is not None
    return [short(one) for claim in fired.claims for one in claim.records]


def fire_by_size(store: Store) -> Texts:
    found: Texts = []
    while len(found) < 4:
        fired = store.magazines.fire("m", 99, store.owner, max_bytes=1_000)
        found += [short(one) for claim in fired.claims for one in claim.records]
    return found


def fire_into(store: Store) -> Texts:
    frame, decoder = ClaimsFrame(), FrameDecoder()
    store.magazines.fire_into(frame, "m", 99, store.owner)
    decoder.feed(bytes(frame.frame(1, 1, b"")))
    ((_, _, payload),) = decoder.frames()
    return [short(one) for _, _, records in unpack_claims(payload, 0) for one in records]


def peek(store: Store) -> Texts:
    return [short(one) for _, one in sorted(store.magazines.peek("m", {0: [1, 2, 3, 4]})[0].items())]


def scan(store: Store) -> Texts:
    return [short(one) for _, _, one in store.magazines.scan("m", limit=99)]


def columns(store: Store) -> Texts:
    found = store.magazines.peek_columns("m", 0, range(1, 5))
    assert found.damaged == [3, 4]
    return [chr(found.bodies[0]), chr(found.bodies[6_000]), None, None]


def abandoned(store: Store) -> Texts:
    store.magazines.claim("m", 99, store.owner)
    return [short(one.record) for one in store.magazines.abandoned("m", 0, 1 << 60, 9)]


DOORS = [fire, fire_one_by_one, fire_next, fire_by_size, fire_into, peek, scan, columns, abandoned]


@pytest.mark.parametrize("door", DOORS)
def test_what_can_be_read_of_a_batch_is_handed_out(store: Store, door: Callable[[Store], Texts]) -> None:
    assert door(store) == [*READABLE, None, None]


def test_it_is_moved_and_put_back(store: Store) -> None:
    """What cannot be read stays where it is, and is retired like any other."""
    store.magazines.declare("side", 1)
    assert store.magazines.fire("m", 99, store.owner).total() == 4
    assert store.magazines.reload("m", {0: [2, 3]}) == 1
    items = [Transfer(0, 1, large("a"), 0), Transfer(0, 3, record("about the third"), 0)]
    assert store.magazines.transfer("m", "side", items, None) == 2
    assert bodies(store, "side") == ["a" * 6_000, "about the third"]
    assert store.magazines.delete("m", {0: [4]}) == 1
    assert fire(store) == ["b"]
    assert store.magazines.oldest_enqueued_at_us("m") is None


def test_upkeep_goes_on(store: Store) -> None:
    """A checkpoint is made behind it, and from then on it is as it was told."""
    log = store.directory.log("sync")  # type: ignore[attr-defined]
    store.magazines.load_records("m", 0, [record("behind")])
    log.flush()
    log.checkpoint()
    while log.maintain():
        pass
    assert scan(store)[:4] == [*READABLE, None, None]


def test_it_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_at(path) as store:
        load(store)
        assert store.stats()["unreadable_reads"] == 0
        cut(path)
        assert scan(store) == [*READABLE, None, None]  # the entry of a claim would make the file longer, with zeros
        assert int(store.stats()["unreadable_reads"]) > 0
        eventually(lambda: "parts of the log" in caplog.text)


@pytest.mark.parametrize("opened", [False, True], ids=["before an opening", "while it is open"])
def test_a_consumer_goes_on_behind_it(path: Path, new_app: Callable[..., Any], opened: bool) -> None:
    """One batch that cannot be read in part held up all that lies behind it in its shard, until the doctor had been there."""
    texts = [letter * 6_000 for letter in "abcd"]

    def publish(app: ignis.Ignis) -> Any:
        queue = app.queue("jobs", str, shards=1)
        queue.publish_many(texts)
        return queue

    if opened:
        app = new_app(f"embedded://{path}")
        queue = publish(app)
        cut(path)
    else:
        with ignis.Ignis(f"embedded://{path}") as app:
            publish(app)
        cut(path)
        app = new_app(f"embedded://{path}")
        queue = app.queue("jobs", str, shards=1)
        queue.publish("behind")
    handled: list[str] = []
    queue.handler(handled.append)
    app.start()
    wait_idle(queue)
    assert handled == texts[:2] + ([] if opened else ["behind"])
    assert sorted((one.reason, one.error) for one in sidelined(queue)) == [
        ("corrupt", f"checksum mismatch at jobs, shard 0, pointer {pointer}") for pointer in (3, 4)
    ]
