"""Queues: what is stored of them, who may open them how, and publishing."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, NoReturn

import msgspec
import pytest

import ignis
from ignis.errors import (
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    PermissionDeniedError,
    QueueMismatchError,
)
from ignis.metrics import Collector, Exposition
from ignis.storage.base import QueueRecord
from ignis.supervisor.aggregate import Totals
from ignis.supervisor.worker_main import process_figures
from tests.conftest import MakeApp
from tests.support import eventually, wait_idle


class Order(msgspec.Struct):
    id: str
    total: float


@dataclasses.dataclass
class Point:
    x: int
    y: int


TYPES = [
    (Order, "auto", Order("o1", 9.5)),
    (Order, "msgpack", Order("o1", 9.5)),
    (Point, "auto", Point(1, 2)),
    (Point, "msgpack", Point(1, 2)),
    (dict, "auto", {"a": 1}),
    (dict, "msgpack", {"a": 1}),
    (str, "auto", "é"),
    (bytes, "auto", b"\x00"),
    (None, "auto", [1, None]),
]


@pytest.mark.parametrize(("kind", "codec", "message"), TYPES)
def test_typed_messages_reach_the_handler(app: ignis.Ignis, kind: Any, codec: str, message: Any) -> None:
    queue = app.queue("typed", kind, codec=codec)
    seen: list[Any] = []
    queue.handler(seen.append)
    published = queue.publish(message)
    assert published.pointer == 1
    assert len(queue.publish_many([message, message])) == 2
    with queue.publisher() as publisher:
        publisher.send(message)
    app.start()
    wait_idle(queue)
    assert seen == [message] * 4


def test_what_is_stored_of_a_queue(app: ignis.Ignis) -> None:
    queue = app.queue("orders", Order, shards=5, message_expiry="1h", stuck_after="10m", shovel_interval=0)
    queue.handler(lambda batch: None, concurrency=7, batch_size=50, batch_wait_s=2)
    queue.publish(Order("o1", 1))
    record = app.store.queues.get("orders")
    assert record is not None
    assert (record.shards, record.message_expiry_s, record.stuck_after_s, record.shovel_interval_s) == (5, 3600, 600, 0)
    assert (record.codec, record.durability, record.active) == ("json", "sync", True)
    assert (record.concurrency, record.max_batch_size, record.max_wait_s) == (7, 50, 2)
    assert "<lambda>" in record.handler_type
    assert record.created_at_ms > 0
    assert app.store.magazines.names() == ["orders", "orders_SIDELINE"]


def test_what_is_not_given_is_taken_from_the_store(store_url: str, new_app: MakeApp) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("orders", Order, shards=5, stuck_after="10m", codec="msgpack").publish(Order("o1", 1))
    queue = second.queue("orders", Order, stuck_after="20m")
    assert queue.main.shards == 5
    assert (queue.settings.stuck_after_s, queue.codec.name) == (1_200, "msgpack")
    [fired] = queue.main.fire()
    assert fired.message == Order("o1", 1)
    record = first.store.queues.get("orders")
    assert record is not None
    assert record.stuck_after_s == 1_200, "what is given is stored"


def test_a_queue_without_a_type_takes_the_stored_codec(store_url: str, new_app: MakeApp) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("blobs", bytes).publish(b"\xff")
    first.queue("packed", dict, codec="msgpack").publish({"a": 1})
    assert second.queue("blobs").main.fire()[0].message == b"\xff"
    assert second.queue("packed").main.fire()[0].message == {"a": 1}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"durability": "none"},
            "stored with durability 'sync', asked for 'none'; leave durability out .* or drain it and remove it first",
        ),
        (
            {"codec": "msgpack"},
            "stored with codec 'json', asked for 'msgpack'; leave codec out .*: ignis queue delete orders",
        ),
        (
            {"shards": 1},
            "asked for 1.*; leave shards out .* or drain it or empty it first: ignis queue purge orders",
        ),
    ],
)
def test_a_stored_queue_opened_otherwise(store_url: str, new_app: MakeApp, settings: dict[str, Any], says: str) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("orders", Order, shards=4).publish_many(
        [Order(f"o{n}", 1) for n in range(20)], key=lambda order: order.id
    )
    with pytest.raises(QueueMismatchError, match=says):
        second.queue("orders", Order, **settings).publish(Order("o2", 2))


def test_settings_that_are_replaced_are_warned_of(
    store_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    new_app(store_url).queue("orders", Order, shards=2, stuck_after="10m", max_returns=3).open()
    new_app(store_url).queue("orders", Order).open()
    new_app(store_url).queue("orders", Order, shards=2, stuck_after=600).open()
    assert not caplog.records, "nothing was changed"
    new_app(store_url).queue("orders", Order, shards=4, stuck_after="20m", shovel_interval=0.5).open()
    [said] = [one.getMessage() for one in caplog.records]
    assert "queue orders was stored with other settings, which are now replaced for everybody" in said
    assert said.endswith("shards from 2 to 4, stuck_after_s from 600 to 1200, shovel_interval_s from 600 to 1")


def test_settings_that_could_not_be_replaced_are_not_said_to_be(
    new_app: MakeApp, store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_app(store_url).queue("orders", Order).open()
    second = new_app(store_url)

    def update(*_: object) -> NoReturn:
        raise PermissionDeniedError("QUEUE_REPLACE", "orders")

    monkeypatch.setattr(second.store.queues, "update", update)
    with pytest.raises(PermissionDeniedError):
        second.queue("orders", Order, message_expiry="1h").open()
    assert not caplog.records


def test_a_stored_queue_opened_with_another_kind_of_message(store_url: str, new_app: MakeApp) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("text", str).publish("x")
    first.queue("objects", dict).publish({})
    with pytest.raises(
        QueueMismatchError, match=r"codec 'raw', asked for 'json', which messages of dict have; leave type out"
    ):
        second.queue("text", dict).open()
    with pytest.raises(QueueMismatchError, match="stored with codec 'json', asked for 'raw'"):
        second.queue("objects", bytes).open()


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("asked", [{}, {"codec": "raw"}])
def test_text_in_a_queue_with_another_codec_says_which_word_helps(
    store_url: str, new_app: MakeApp, codec: str, asked: dict[str, str]
) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("jobs", codec=codec).publish("hello")
    out = "leave type out" if not asked else "leave type and codec out"
    with pytest.raises(QueueMismatchError, match=f'; give codec="{codec}", or {out} to take the queue as it is'):
        second.queue("jobs", str, **asked).open()
    with pytest.raises(QueueMismatchError, match=f"; {out} to take the queue as it is"):
        new_app(store_url).queue("jobs", bytes, **asked).open()
    # What it recommends works.
    third, fourth = new_app(store_url), new_app(store_url)
    third.queue("jobs", str, codec=codec).publish("there")
    assert [fourth.queue("jobs").main.fire()[0].message for _ in range(2)] == ["hello", "there"]


def test_progress_is_kept_when_a_queue_is_opened(store_url: str, new_app: MakeApp) -> None:
    first, second = new_app(store_url), new_app(store_url)
    first.queue("orders", Order).open()

    def change(record: QueueRecord) -> None:
        record.swept_count = 5
        record.sweep_pointers[1] = 9

    first.store.queues.update("orders", change)
    second.queue("orders", Order, shards=33).open()
    record = first.store.queues.get("orders")
    assert record is not None
    assert (record.swept_count, record.sweep_pointers, record.shards) == (5, {1: 9}, 33)


def test_the_same_queue_again(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", Order, shards=3)
    assert memory_app.queue("orders") is queue
    assert memory_app.queue("orders", Order, shards=3) is queue
    assert memory_app.queues() == [queue]
    with pytest.raises(QueueMismatchError, match="made before with type"):
        memory_app.queue("orders", Point)
    with pytest.raises(QueueMismatchError, match="shards = 3, now asked for with 4"):
        memory_app.queue("orders", Order, shards=4)


@pytest.mark.parametrize("name", ["", "a b", "x/y", "q_SIDELINE", "a" * 129])
def test_bad_names(memory_app: ignis.Ignis, name: str) -> None:
    with pytest.raises(InvalidNameError, match="queue name"):
        memory_app.queue(name)
    assert memory_app.queues() == []


def test_applications_and_deployments_do_not_meet(store_url: str, new_app: MakeApp) -> None:
    apps = [
        new_app(store_url),
        new_app(store_url, client_id="billing"),
        new_app(store_url, farm_id="eu"),
    ]
    for number, app in enumerate(apps):
        app.queue("orders", int, shards=number + 1).publish(number)
    for number, app in enumerate(apps):
        assert [one.message for one in app.queue("orders", int).main.fire(10)] == [number]


def test_publishing_with_keys(app: ignis.Ignis) -> None:
    queue = app.queue("orders", dict, shards=4)
    with pytest.raises(ConfigError, match="give key or keys, not both"):
        queue.publish_many([], key=str, keys=[])
    with pytest.raises(ConfigError, match=r"key = 'k' is not a function .* keys=\[...\] with one for each message"):
        queue.publish_many([], key="k")  # type: ignore[arg-type]
    queue.publish_many([{"k": "a"}, {"k": "b"}], key=lambda message: message["k"], headers={"h": 1})
    found = [one.envelope for one in queue.main.fire(10)]
    assert {message.key for message in found} == {"a", "b"}
    assert all(message.headers == {"h": 1} for message in found)


def test_what_a_queue_refuses(app: ignis.Ignis) -> None:
    queue = app.queue("orders", Order, max_message_bytes=100)
    with pytest.raises(InvalidMessageError, match="a dict was published to a queue of Order"):
        queue.publish({"id": "o1"})  # type: ignore[arg-type]
    with pytest.raises(MessageTooLargeError, match=r"limit of 100 bytes \(queue.max_message_bytes\)"):
        queue.publish(Order("x" * 100, 1))
    assert queue.main.pending() == 0


def test_one_handler_per_queue(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", dict)

    @queue.handler
    def first(message: dict[str, Any]) -> None:
        pass

    assert first({}) is None, "the function is returned unchanged"
    with pytest.raises(ConfigError, match=r"has a handler already: .*first"):
        queue.handler(lambda message: None)


@pytest.mark.parametrize("ignore", [KeyError, (KeyError,), [KeyError], {KeyError}])
def test_ignorable_exceptions_one_or_many(memory_app: ignis.Ignis, ignore: Any) -> None:
    queue = memory_app.queue("orders", dict)
    queue.handler(lambda message: None, ignore=ignore)
    assert queue.spec is not None
    assert queue.spec.ignore == (KeyError,)


def test_consumers_of_a_queue_without_handler(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", dict)
    assert queue.consumers == 0
    with pytest.raises(ConfigError, match="has no handler here"):
        queue.increase_consumers()


def test_consumers_can_be_set_before_the_start(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", int)
    seen: list[int] = []
    queue.handler(seen.append, concurrency=1)
    assert queue.increase_consumers(2) == 3
    queue.publish(1)
    memory_app.start()
    assert queue.consumer is not None
    assert queue.consumer.concurrency == 3
    wait_idle(queue)
    assert seen == [1]


def test_figures(app: ignis.Ignis) -> None:
    queue = app.queue("orders", int)
    assert queue.stats()["oldest_age_s"] is None
    queue.publish_many(range(3))
    queue.main.fire(1)
    found = queue.stats()
    assert (found["pending"], found["in_flight"], found["sideline"]) == (2, 1, 0)
    assert 0 <= found["oldest_age_s"] < 60
    assert [one["queue"] for one in app.stats()["queues"]] == ["orders"]
    assert "orders" in repr(queue)


def test_figures_of_a_consumer_that_was_started_again(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", int)
    seen: list[int] = []
    queue.handler(seen.append, concurrency=2)
    exposition, totals = Exposition(Collector(memory_app.stats)), Totals()
    for count in (2, 4, 6):
        memory_app.start()
        queue.publish_many([1, 2])
        eventually(lambda count=count: len(seen) == count)
        wait_idle(queue)
        eventually(lambda count=count: queue.local_stats()["consumer"]["handled"] == count)
        figures = queue.stats()["consumer"]
        assert (figures["concurrency"], figures["start_error"]) == (2, None)
        assert b'ignis_consumed_total{queue="orders"} %d.0' % count in exposition.text()
        totals.note(1, process_figures(memory_app))
        assert totals.queues()["orders"]["consumer"]["handled"] == count
        queue.stop(10)
        assert queue.local_stats()["consumer"]["handled"] == count
        assert "concurrency" not in queue.local_stats()["consumer"]
        queue.start()
        assert queue.local_stats()["consumer"]["handled"] == count
        memory_app.stop(10)


@pytest.mark.parametrize(
    "messages", ["hello", b"hello", bytearray(b"x"), memoryview(b"x"), {"a": 1}], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("key", [None, str])
def test_one_message_is_not_many(memory_app: ignis.Ignis, messages: Any, key: Any) -> None:
    queue = memory_app.queue("texts", str)
    with pytest.raises(InvalidMessageError, match=r"publish\(\)"):
        queue.publish_many(messages, key=key)
    assert queue.main.pending() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"countdown": 3},
            "'countdown'; docs/coming-from-celery.md says what is here for it; known: key, keys, headers",
        ),
        ({"header": {}}, r"'header'; is headers meant\? known: key"),
        ({"colour": 3}, "publish_many.. has no argument 'colour'; known: key"),
    ],
)
def test_an_argument_that_publish_many_has_not(memory_app: ignis.Ignis, options: dict[str, Any], says: str) -> None:
    queue = memory_app.queue("q")
    with pytest.raises(ConfigError, match=says):
        queue.publish_many([1], **options)
    with pytest.raises(ConfigError, match=says):
        asyncio.run(queue.apublish_many([1], **options))
    assert queue.main.pending() == 0
