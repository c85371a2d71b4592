"""Delayed messages through a relay: each comes when it is due, whoever dies in between."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import datetime, timedelta, timezone

import pytest

import ignis
from ignis import errors
from ignis.later import DelayedMessage
from ignis.native import encode_record, process_start_time
from ignis.relay import channel_label
from ignis.relay.channel_label import DELAYED_VERSION, VERSION, Label
from ignis.relay.due_times import with_due, without_due
from tests.support import WAIT_S, eventually
from tests.support.relay import Place, finish, kill, say, stop


def waiting(here: Place) -> list[DelayedMessage]:
    with ignis.Ignis(here.store_url) as app:
        return [] if app.store.queues.get("q") is None else list(app.queue("q", bytes).later)


def bodies(found: list[DelayedMessage]) -> list[bytes]:
    return [one.message.body for one in found if one.message is not None]


def test_every_way_to_publish_takes_a_delay(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    began = datetime.now(timezone.utc)
    at = began + timedelta(hours=5)
    published = queue.publish(b"one", delay="1h", key="k", headers={"a": 1})
    assert (published.shard, published.pointer) == (-1, 0)
    ids = queue.publish_many([b"two", b"three"], delay="2h")
    asyncio.run(queue.apublish(b"four", delay="3h", expires_in="4h"))
    with queue.publisher() as publisher:
        receipt = publisher.send(b"five", delay="4h", key="k", headers={"b": 2})
        publisher.send(b"six", at=at)
        publisher.send(b"now")
        publisher.flush(WAIT_S)
        assert receipt.done()
        assert (publisher.sent, publisher.pending, publisher.failed) == (3, 0, 0)
    ended = datetime.now(timezone.utc)
    found = waiting(here)
    assert bodies(found) == [b"one", b"two", b"three", b"four", b"five", b"six"]
    for one, hours in zip(found[:5], (1, 2, 2, 3, 4), strict=True):
        assert began + timedelta(hours=hours) <= one.due <= ended + timedelta(hours=hours, seconds=1)
    assert abs(found[5].due - at) <= timedelta(seconds=1)
    assert [one.id for one in found[:3]] == [published.id, *ids]
    assert found[4].id == receipt.id
    assert here.stored() == [b"now"]


def test_what_is_stored_is_what_the_store_itself_would_have(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    with queue.publisher() as publisher:
        publisher.send(b"plain", delay="1h")
        publisher.send(b"more", delay="2h", key="k", headers={"a": 1})
        publisher.send(b"both", delay="150m", expires_in="8h", key="k", headers={"a": 1})
    queue.publish(b"mortal", delay="3h", headers={"a": 1}, expires_in="9h")
    with ignis.Ignis("memory://") as app:
        direct = app.queue("q", bytes)
        direct.publish(b"plain", delay="1h")
        direct.publish(b"more", delay="2h", key="k", headers={"a": 1})
        direct.publish(b"both", delay="150m", expires_in="8h", key="k", headers={"a": 1})
        direct.publish(b"mortal", delay="3h", headers={"a": 1}, expires_in="9h")
        wanted = [one.message for one in direct.later]
    for one, other in zip(waiting(here), wanted, strict=True):
        assert one.message is not None
        assert other is not None
        assert one.message.meta.keys() == other.meta.keys()
        assert (one.message.key, one.message.headers, one.message.codec) == (other.key, other.headers, other.codec)
        assert list(one.message.meta)[:1] == list(other.meta)[:1], "a deadline stands in front"


def test_it_comes_when_it_is_due(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    began_s = time.monotonic()
    queue.publish(b"soon", delay="200ms")
    with ignis.Ignis(here.store_url) as app:
        handled: list[float] = []
        consumed = app.queue("q", bytes)
        consumed.handler(lambda body: handled.append(time.monotonic()))
        app.start()
        eventually(lambda: handled)
        assert handled[0] - began_s >= 0.199


def test_what_waits_for_a_relay_goes_on_towards_its_time(here: Place) -> None:
    producer = here.producer(
        "queue.publisher().send(b'late', delay=0.05)\nqueue.publisher().send(b'far', delay='1h')\nsay('sent')\nos._exit(0)"
    )
    assert say(producer) == "sent"
    finish(producer)
    time.sleep(0.1)
    relay = here.start_relay()
    eventually(lambda: not here.channels)
    stop(relay)
    with ignis.Ignis(here.store_url) as app:
        found = app.queue("q", bytes)
        assert [one.message for one in found.main.fire(10)] == [b"late"]
        assert len(found.later) == 1


def test_a_killed_relay_leaves_them_to_the_next(here: Place, queue: ignis.Queue[bytes]) -> None:
    relay = here.start_relay()
    publisher = queue.publisher()
    ids = {publisher.send(b"%d" % n, delay=3_600 + n).id for n in range(300)}
    kill(relay)
    ids |= {publisher.send(b"%d" % n, delay=3_600 + n).id for n in range(300, 600)}
    relay = here.start_relay()
    publisher.close(WAIT_S)
    stop(relay)
    found = waiting(here)
    assert {one.id for one in found} == ids
    assert sorted(set(bodies(found)), key=int) == [b"%d" % n for n in range(600)]


def test_a_forked_child_delays_too(here: Place) -> None:
    producer = here.producer(
        "publisher = queue.publisher()\n"
        "publisher.send(b'parent', delay='1h')\n"
        "if os.fork() == 0:\n"
        "    publisher.send(b'child', delay='2h')\n"
        "    publisher.close(30)\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "publisher.close(30)\n"
    )
    here.start_relay()
    finish(producer)
    assert bodies(waiting(here)) == [b"parent", b"child"]


def test_looking_and_cancelling_want_the_stores_own_url(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    published = queue.publish(b"x", delay="1h")
    for ask in (
        queue.later.list,
        queue.later.__len__,
        lambda: queue.later.find(published.id),
        lambda: queue.later.cancel(published.id),
        lambda: queue.later.run_now(published.id),
        queue.later.cancel_all,
    ):
        with pytest.raises(errors.PublishOnlyError):
            ask()
    assert len(waiting(here)) == 1


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"at": "tomorrow"}, {"delay": 1, "at": datetime.now(timezone.utc)}])
def test_a_wrong_time_sends_nothing(here: Place, queue: ignis.Queue[bytes], wrong: dict[str, object]) -> None:
    publisher = queue.publisher()
    with pytest.raises(errors.ConfigError):
        publisher.send(b"x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError):
        queue.publish(b"x", **wrong)  # type: ignore[arg-type]
    assert publisher.sent == 0
    here.start_relay()
    publisher.close(WAIT_S)


def pretend(here: Place, **said: object) -> None:
    """What a relay says that lives: this process."""
    start = process_start_time(os.getpid())
    state = {
        "version": 1,
        "pid": os.getpid(),
        "start_time": start,
        "client_id": "ignis",
        "farm_id": "local",
        "queues": {},
    }
    (here.directory / "relay.json").write_text(json.dumps({**state, **said}))


@pytest.mark.parametrize(
    ("said", "why"),
    [({}, "the relay on .*, which is of an earlier version,"), ({"keeps_later": False}, "the store of the relay on")],
)
def test_a_relay_that_takes_none_is_known_before_anything_is_sent(
    here: Place, queue: ignis.Queue[bytes], said: dict[str, object], why: str
) -> None:
    publisher = queue.publisher()
    pretend(here, **said)
    for ask in (
        lambda: queue.publish(b"x", delay="1h"),
        lambda: queue.publish_many([b"x"], delay="1h"),
        lambda: publisher.send(b"x", delay="1h"),
    ):
        with pytest.raises(errors.DelayNotSupportedError, match=why):
            ask()
    assert publisher.sent == 0
    (here.directory / "relay.json").unlink()
    here.start_relay()
    publisher.close(WAIT_S)
    assert waiting(here) == []


def test_a_relay_of_an_earlier_version_refuses_the_channel_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows one number, and every channel without due times still has that one."""
    label = Label(DELAYED_VERSION, "q", "raw", "ignis", "local").encoded()
    plain = Label(VERSION, "q", "raw", "ignis", "local").encoded()
    assert Label.parse(label).delayed
    monkeypatch.setattr(channel_label, "DELAYED_VERSION", VERSION)
    with pytest.raises(errors.ConfigError, match=f"it writes version {DELAYED_VERSION}"):
        Label.parse(label)
    assert Label.parse(plain).version == VERSION


def test_a_channel_whose_messages_have_no_due_times_is_set_aside(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    queue.open()
    store = queue.app.store
    outbox = store.new_outbox("q", 1 << 20, 64, delayed=True)
    outbox.send_record(encode_record(b"x", flags=0), WAIT_S)
    eventually(lambda: here.aside)
    reason = here.aside[0].with_name(here.aside[0].name + ".reason").read_text()
    assert "has no due time" in reason
    queue.publish(b"good", delay="1h")
    assert bodies(waiting(here)) == [b"good"]
    outbox.close()


def test_a_due_time_that_no_store_keeps_costs_its_own_channel_only(here: Place, queue: ignis.Queue[bytes]) -> None:
    relay = here.start_relay()
    queue.open()
    outbox = queue.app.store.new_outbox("q", 1 << 20, 64, delayed=True)
    outbox.send_record(encode_record(b"x", flags=0, meta=with_due(b"", 1 << 62)), WAIT_S)
    eventually(lambda: here.aside)
    assert relay.poll() is None
    queue.publish(b"good", delay="1h")
    assert bodies(waiting(here)) == [b"good"]
    outbox.close()


def test_due_times_go_into_an_envelope_and_out_of_it() -> None:
    for meta in (b"", ignis.message.encode_meta({"a": [1]}), ignis.message.encode_meta({"a": 1}, expires_at_ms=5)):
        record = encode_record(b"body", key=b"k", meta=meta)
        due = encode_record(b"body", key=b"k", meta=with_due(meta, 77))
        plain, due_ms = without_due(due)
        assert due_ms == 77
        one, other = ignis.Message.from_bytes(plain), ignis.Message.from_bytes(record)
        assert (one.meta, one.key, one.body) == (other.meta, other.key, other.body)
    with pytest.raises(errors.UnreadableMessageError, match="no due time"):
        without_due(record)
