"""A message's own deadline, on every store: what has expired goes where the queue says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

import ignis
from ignis.control.queue_depths import queue_depths
from ignis.metrics import Collector, Exposition
from ignis.testing import Drained, drain
from tests.contract.support import ONE_KIND, Kind
from tests.support import eventually

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def app(kind: Kind) -> Iterator[ignis.Ignis]:
    with ignis.Ignis(kind.url) as made:
        yield made


def handled(queue: ignis.Queue[str]) -> list[str]:
    found: list[str] = []
    queue.handler(found.append)
    drain(queue)
    return found


def test_what_expired_is_retired_whoever_claims(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=1)
    queue.publish("late", expires_at=LONG_AGO)
    queue.publish_many(["late too", "late as well"], expires_in=0.01)
    queue.publish("in time", expires_in="1h")
    queue.publish("for ever")
    time.sleep(0.02)
    magazines = app.store.magazines
    found: list[str] = []
    eventually(
        lambda: (
            found.extend(
                ignis.Message.from_bytes(record or b"").body.decode()
                for claim in magazines.fire("jobs", 10, app.store.owner).claims
                for record in claim.records
            )
            or len(found) == 2
        )
    )
    assert found == ["in time", "for ever"]
    assert queue.stats()["expired"] == 3


def test_no_handler_gets_what_expired(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str)
    queue.publish("late", expires_at=LONG_AGO)
    queue.publish("in time", expires_in="1h")
    assert handled(queue) == ["in time"]
    assert queue.stats()["sideline"] == 0


def test_to_the_sideline_where_the_queue_says_so(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, on_expiry="sideline")
    late = queue.publish("late", expires_at=LONG_AGO, headers={"a": 1})
    queue.publish("in time", expires_in="1h")
    assert handled(queue) == ["in time"]
    (aside,) = queue.sideline.peek()
    message = aside.envelope
    assert (message.id, message.reason, message.headers, message.failures) == (late.id, "expired", {"a": 1}, 1)
    assert [one.reason for one in message.history] == ["expired"]
    assert queue.stats()["expired"] == 0
    queue.shovel.run_scheduled()
    assert drain(queue) == Drained()
    queue.shovel.run_once()  # a person wants it handled
    assert drain(queue).done == 1


def test_the_setting_is_the_queues(kind: Kind, app: ignis.Ignis) -> None:
    app.queue("jobs", str, on_expiry="sideline").open()
    with ignis.Ignis(kind.url) as other:
        queue = other.queue("jobs", str)
        queue.publish("late", expires_at=LONG_AGO)
        assert handled(queue) == []
        assert (queue.settings.on_expiry, queue.sideline.pending()) == ("sideline", 1)


@pytest.mark.parametrize("on_expiry", ["drop", "sideline"])
def test_delayed_past_its_deadline(app: ignis.Ignis, on_expiry: str) -> None:
    if not app.store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    queue = app.queue("jobs", str, on_expiry=on_expiry)
    found: list[str] = []
    queue.handler(found.append)
    queue.publish("late", delay=0.02, expires_in=0.001)
    queue.publish("in time", delay=0.02, expires_in="1h")

    def ended() -> bool:
        drain(queue)
        return not len(queue.later) and queue.stats()["pending"] == 0

    eventually(ended)
    stats = queue.stats()
    assert found == ["in time"]
    assert stats["sideline"] == (on_expiry == "sideline")


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = (one.getMessage() for one in caplog.records if "time to live" in one.getMessage())
    return [text.split(" waited")[0] for text in texts]


@pytest.mark.parametrize("by", ["a claim", "who waits", "the sweeper", "the store's clients"])
def test_what_expires_while_it_is_delayed_is_counted_and_warned_of(
    kind: Kind, app: ignis.Ignis, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    magazines = app.store.magazines
    if not magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    queue = app.queue("jobs", str, shards=2)
    queue.publish_many(["late", "late too"], delay=0.05, expires_in=0.01)
    queue.publish("far", delay="1h")
    assert queue.stats()["expired"] == 0

    def retired() -> bool:
        if by == "a claim":
            assert magazines.fire("jobs", 9, app.store.owner).total() == 0
        elif by == "who waits":
            magazines.wait("jobs", magazines.wait("jobs", -1, 0), 0.2)
        elif by == "the sweeper":
            found = app.sweeper().run_once().expired
            assert found in (0, 2)
        else:
            magazines.move_due("jobs")
        return len(queue.later) == 1

    eventually(retired)
    assert queue.stats()["expired"] == 2
    with ignis.Ignis(kind.url) as other:
        assert queue_depths(other.store, other.store.queues.get("jobs"))["expired"] == 2  # type: ignore[arg-type]
    assert 'ignis_expired_total{queue="jobs"} 2.0' in Exposition(Collector(app.stats)).text().decode()
    if kind.name in ("memory", "embedded"):  # a broker's store warns in the broker
        magazines.fire("jobs", 9, app.store.owner)
        assert warned(caplog) == ["2 message(s) of jobs@LATER"]


@pytest.mark.parametrize("pool", ["thread", pytest.param("async", marks=pytest.mark.long)])
@ONE_KIND
def test_what_expires_between_two_attempts_is_counted_and_warned_of(
    kind: Kind, app: ignis.Ignis, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    if not app.store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    queue = app.queue("jobs", str, shards=1)
    calls: list[str] = []

    def fail(body: str) -> None:
        calls.append(body)
        raise ValueError("not today")

    async def fail_too(body: str) -> None:
        fail(body)

    queue.handler(retry=ignis.Retry(attempts=9, base="2.5s", max="2.5s", jitter=False))(
        fail if pool == "thread" else fail_too
    )
    app.start()
    queue.publish("a", expires_in=2)
    eventually(lambda: queue.stats()["expired"] == 1)
    assert queue.stats()["sideline"] == 0
    if kind.name in ("memory", "embedded"):
        eventually(lambda: warned(caplog) == ["1 message(s) of jobs@LATER"])
    app.stop()
