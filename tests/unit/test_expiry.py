"""Times to live: none by default, and nothing dies unseen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.cli import main
from ignis.errors import ConfigError
from ignis.message import failed_record
from ignis.metrics import Collector, Exposition
from ignis.native import encode_record
from ignis.storage.base import QueueRecord, Store, Transfer
from tests.conftest import MakeApp

SHORT_S = 0.05


def ends(app: ignis.Ignis) -> list[int]:
    """Of everything in a memory store; 0 = never."""
    magazines = app.store.content.magazines.values()  # type: ignore[attr-defined]
    return [one.expires_at_ms for each in magazines for shard in each.shards for one in shard.records.values()]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "time to live" in one.getMessage()]


def load_short(queue: ignis.Queue[Any], count: int, magazine: str = "") -> None:
    """Messages that run out of time at once, whatever the queue says."""
    store = queue.main.store
    for _ in range(count):
        body = encode_record(b"1", flags=1)
        name = magazine or queue.name
        if magazine:
            body = failed_record(body, "exception", "E")
        store.load_records(name, 0, [body], SHORT_S)
    time.sleep(2 * SHORT_S)


def _magazine(app: ignis.Ignis) -> None:
    app.queue("jobs", int).open()
    app.magazine("jobs", int).load(1)


def _buffered(queue: ignis.Queue[int]) -> None:
    with queue.publisher() as publisher:
        publisher.send(1)


WAYS: dict[str, Callable[[ignis.Ignis], object]] = {
    "publish": lambda app: app.queue("jobs", int).publish(1),
    "publish_many": lambda app: app.queue("jobs", int).publish_many([1]),
    "publisher": lambda app: _buffered(app.queue("jobs", int)),
    "magazine of a queue": _magazine,
    "magazine of its own": lambda app: app.magazine("own", int).load(1),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_messages_never_expire_unless_somebody_says_so(memory_app: ignis.Ignis, way: Callable[..., object]) -> None:
    way(memory_app)
    assert ends(memory_app) == [0]
    assert all(record.message_expiry_s == 0 for record in memory_app.store.queues.list())


def test_a_queue_that_was_stored_with_a_time_to_live_keeps_it(memory_url: str, new_app: MakeApp) -> None:
    new_app(memory_url).store.queues.put(QueueRecord("jobs", message_expiry_s=60))
    app = new_app(memory_url)
    app.queue("jobs", int).publish(1)
    app.magazine("jobs", int).load(2)
    assert all(0 < end <= (time.time() + 3_600) * 1000 for end in ends(app))
    assert app.queue("jobs", int).settings.message_expiry_s == 60


def test_a_store_whose_queues_are_shared_says_another_default(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Aerospike does: Java counts on two days."""
    monkeypatch.setattr(type(memory_app.store), "message_expiry_s", 172_800)
    memory_app.queue("new", int).publish(1)
    memory_app.queue("short", int, queue_expiry="1h").publish(1)
    memory_app.queue("chosen", int, message_expiry=0).publish(1)
    found = {record.name: record.message_expiry_s for record in memory_app.store.queues.list()}
    assert found == {"new": 172_800, "short": 3_600, "chosen": 0}
    assert sorted(end > 0 for end in ends(memory_app)) == [False, True, True]


def test_the_default_of_the_aerospike_store() -> None:
    pytest.importorskip("aerospike")
    from ignis.storage.aerospike.queues import record_of
    from ignis.storage.aerospike.store import AerospikeStore

    assert AerospikeStore.message_expiry_s == 172_800
    assert record_of("q", {}).message_expiry_s == 172_800, "of a queue that Java made"
    assert Store.message_expiry_s == 0


@pytest.mark.parametrize("value", [0.5, "500ms", -1])
def test_less_than_a_second_is_refused(memory_app: ignis.Ignis, value: Any) -> None:
    """Stored in whole seconds it would be never."""
    with pytest.raises(ConfigError, match="message_expiry_s"):
        memory_app.queue("jobs", int, message_expiry=value)


@pytest.mark.parametrize("by", ["a claim", "the sweeper", "a job"])
def test_what_expires_is_counted_and_warned_of(app: ignis.Ignis, caplog: pytest.LogCaptureFixture, by: str) -> None:
    queue = app.queue("jobs", int, shards=2)
    queue.open()
    load_short(queue, 3)
    load_short(queue, 2, "jobs_SIDELINE")
    for magazine in ("jobs", "jobs_SIDELINE"):
        if by == "a claim":
            assert app.store.magazines.fire(magazine, 9, "me").total() == 0
        elif by == "a job":
            assert app.store.magazines.claim(magazine, 9, "me") == []
    if by == "the sweeper":
        assert app.sweeper().run_once().expired == 5
    stats = queue.stats()
    assert (stats["expired"], stats["sideline_expired"]) == (3, 2)
    assert [text.split(" waited")[0] for text in warned(caplog)] == [
        "3 message(s) of jobs", "2 message(s) of jobs_SIDELINE",
    ]  # fmt: skip
    assert all(one.levelno == logging.WARNING for one in caplog.records if "time to live" in one.getMessage())
    text = Exposition(Collector(app.stats)).text().decode()
    assert 'ignis_expired_total{queue="jobs"} 3.0' in text
    assert 'ignis_sideline_expired_total{queue="jobs"} 2.0' in text


def test_the_shovel_does_not_hide_what_expires(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shovel_interval=0)
    queue.open()
    load_short(queue, 2, "jobs_SIDELINE")
    queue.shovel.run_once()
    assert queue.stats()["sideline_expired"] == 2


def test_the_counts_outlive_the_process(embedded_url: str, new_app: MakeApp, capfd: pytest.CaptureFixture[str]) -> None:
    app = new_app(embedded_url)
    queue = app.queue("jobs", int, shards=3)
    queue.open()
    load_short(queue, 2)
    app.store.magazines.fire("jobs", 9, "me")
    app.close()
    again = new_app(embedded_url)
    load_short(again.queue("jobs", int), 1)
    again.store.magazines.fire("jobs", 9, "me")
    assert again.queue("jobs", int).stats()["expired"] == 3
    assert [one.expired for one in again.store.magazines.metadata("jobs")] == [3, 0, 0]
    again.queue("jobs", int).main.store.declare("jobs", 8)
    assert [one.expired for one in again.store.magazines.metadata("jobs")] == [3] + [0] * 7
    again.close()
    assert main(["stats", "jobs", "-u", embedded_url, "--json"]) == 0
    assert '"expired":3' in capfd.readouterr().out.replace(" ", "")
    assert main(["stats", "-u", embedded_url]) == 0
    assert "sideline expired" in capfd.readouterr().out


def test_a_dropped_magazine_begins_anew(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.open()
    load_short(queue, 2)
    app.store.magazines.fire("jobs", 9, "me")
    app.store.magazines.drop("jobs")
    app.store.magazines.declare("jobs", 4)
    assert sum(one.expired for one in app.store.magazines.metadata("jobs")) == 0


def test_a_message_that_fails_at_its_end_expires_in_the_sideline_and_is_counted(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.open()
    store = queue.main.store
    record = encode_record(b"1", flags=1)
    store.load_records("jobs", 0, [record], SHORT_S)
    moved = store.transfer("jobs", "jobs_SIDELINE", [Transfer(0, 1, failed_record(record, "exception", "E"), 0)])
    assert moved == 1
    time.sleep(2 * SHORT_S)
    assert store.fire("jobs_SIDELINE", 1, "me").expired == 1
    assert queue.stats()["sideline_expired"] == 1
