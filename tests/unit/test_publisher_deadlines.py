"""The buffered publisher with deadlines: each message keeps its own, and the store retires what has expired by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError
from ignis.testing import ManualClock, drain
from tests.support import NewThreads, eventually
from tests.support.broker import RunningBroker

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["memory", "embedded", "broker"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ignis.Ignis]:
    if request.param == "broker":
        with RunningBroker(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(broker.url) as made:
            yield made
        return
    with ignis.Ignis("memory://" if request.param == "memory" else f"embedded://{tmp_path}/store") as made:
        yield made


def claimed(app: ignis.Ignis) -> list[ignis.Message]:
    """What a claim by hand gets, whatever the envelopes say."""
    found = app.store.magazines.fire("jobs", 1_000, app.store.owner).claims
    return [ignis.Message.from_bytes(record or b"") for claim in found for record in claim.records]


def test_each_message_has_its_own_and_the_store_knows_it(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=3)
    ways: list[dict[str, Any]] = [{"expires_at": LONG_AGO}, {"expires_in": "1h"}, {}, {"expires_in": timedelta(days=2)}]
    with queue.publisher() as publisher:
        before_ms = time.time() * 1000
        receipts = [publisher.send(n, key=f"k{n % 5}", headers={"n": n}, **ways[n % 4]) for n in range(200)]
        publisher.flush()
        assert (publisher.sent, publisher.pending, publisher.failed) == (200, 0, 0)
    stored_s = app.store.now_s()
    eventually(lambda: app.store.now_s() > stored_s + 0.01)  # a deadline that is over is a millisecond's time to live
    ids = {one.result(0): n for n, one in enumerate(receipts)}
    found: list[ignis.Message] = []
    eventually(lambda: found.extend(claimed(app)) or len(found) == 150)
    for message in found:
        n = ids[message.id]
        assert (message.body, message.headers["n"], n % 4 != 0) == (str(n).encode(), n, True)
        ahead_s = None if message.expires_at_ms is None else (message.expires_at_ms - before_ms) / 1000
        if n % 4 == 2:
            assert ahead_s is None
        else:
            least_s = 3_600 if n % 4 == 1 else 172_800
            assert ahead_s is not None and least_s - 1 <= ahead_s <= least_s + 600
    eventually(lambda: app.store.magazines.expire("jobs") == 0 and queue.stats()["expired"] == 50)


def test_exact_by_a_clock_of_the_tests() -> None:
    clock = ManualClock(1_600_000_000)
    with ignis.Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str)
        found: list[str] = []
        queue.handler(found.append)
        with queue.publisher() as publisher:
            publisher.send("late", expires_in=60)
            publisher.send("in time", expires_in=61)
        clock.advance(60.02)  # the store's own step is not over
        drain(queue)
        assert found == ["in time"]
        with queue.publisher() as publisher:
            publisher.send("gone", expires_in=60)
        clock.advance(60.2)
        assert app.store.magazines.fire("jobs", 9, app.store.owner).total() == 0
        assert queue.stats()["expired"] >= 1


def test_with_a_delay(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=1)
    with queue.publisher() as publisher:
        publisher.send("late", delay=0.3, expires_in=0.001)
        publisher.send("in time", delay=0.3, expires_in="1h")
        publisher.send("plain", delay=0.3)
    found: list[bytes] = []
    eventually(lambda: found.extend(one.body for one in claimed(app)) or len(found) == 2)
    assert sorted(found) == [b"in time", b"plain"]
    eventually(lambda: queue.stats()["expired"] == 1)


def test_where_the_store_is_to_keep_them_they_go_with_the_others(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=1, on_expiry="sideline")
    queue.open()
    threads = NewThreads()
    with queue.publisher() as publisher:
        for n in range(20):
            publisher.send(f"{n}", key="k", **({"expires_at": LONG_AGO} if n % 2 else {}))
        publisher.flush()
        assert len(threads.named("ignis-flusher-jobs")) == 1
    assert [one.body for one in claimed(app)] == [f"{n}".encode() for n in range(20)], "in their order"


def test_for_coroutines(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)

    async def main() -> None:
        async with queue.publisher() as publisher:
            receipts = [await publisher.asend(n, expires_in="1h" if n % 2 else 0.001) for n in range(50)]
            await asyncio.gather(*receipts)

    asyncio.run(main())
    found: list[ignis.Message] = []
    eventually(lambda: found.extend(claimed(app)) or len(found) >= 25)
    assert sorted(int(one.body) for one in found if int(one.body) % 2) == list(range(1, 50, 2))


@pytest.mark.parametrize(
    "options", [{"expires_in": 0}, {"expires_at": datetime(2030, 1, 1)}, {"expires_in": 1, "expires_at": LONG_AGO}]  # noqa: DTZ001
)  # fmt: skip
def test_wrong_deadlines_send_nothing(app: ignis.Ignis, options: dict[str, Any]) -> None:
    with app.queue("jobs", str).publisher() as publisher:
        with pytest.raises(ConfigError):
            publisher.send("a", **options)
        with pytest.raises(ConfigError):
            publisher.send("a", delay=1, **options)
        assert publisher.sent == 0
