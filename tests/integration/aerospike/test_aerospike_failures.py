"""Failures, returns and times to live on Aerospike, where the envelope lives in bins of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis.storage.base import Transfer
from tests.conftest import MakeApp
from tests.support import aerospike as aerospike_support
from tests.support import eventually, sidelined, wait_idle

pytestmark = pytest.mark.integration


@pytest.fixture
def app(new_app: MakeApp) -> Iterator[ignis.Ignis]:
    url = aerospike_support.url()
    made = new_app(url)
    yield made
    made.close(5)
    client_id = url.partition("client_id=")[2].partition("&")[0]
    aerospike_support.forget(aerospike_support.address(), [client_id])


def ttl_of(app: ignis.Ignis, key: str) -> int:
    """The seconds that the server has left for a record."""
    client = aerospike_support.raw_client()
    try:
        return int(client.get((app.store.connection.namespace, app.store.sets.data, key))[1]["ttl"])  # type: ignore[attr-defined]
    finally:
        client.close()


def make_javas(app: ignis.Ignis, key: str, ttl: int) -> None:
    """Takes our bins off a record, so that only what Java writes is there, with another time to live."""
    client = aerospike_support.raw_client()
    try:
        place = (app.store.connection.namespace, app.store.sets.data, key)  # type: ignore[attr-defined]
        _, _, bins = client.get(place)
        client.remove(place)
        kept = {name: bins[name] for name in ("data", "modified_at")}
        client.put(place, kept, None, {"ttl": ttl, "key": 1})
    finally:
        client.close()


def test_the_history_and_the_returns_are_kept(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict, shards=1, shovel_interval=0, max_returns=2)
    seen: list[tuple[int, int]] = []

    @queue.handler
    def fail(message: Any, ctx: ignis.Context) -> None:
        seen.append((ctx.message.returns, len(ctx.message.history)))
        raise RuntimeError(f"call {len(seen)}")

    queue.publish({"n": 1}, headers={"trace": "t"})
    app.start()
    for moved in (1, 1, 0):
        eventually(lambda: queue.sideline.pending() == 1)
        wait_idle(queue)
        assert queue.shovel.run_scheduled().moved == moved
    assert seen == [(0, 0), (1, 1), (2, 2)]
    [message] = sidelined(queue)
    assert [one.error for one in message.history] == [f"RuntimeError: call {n}" for n in (1, 2, 3)]
    assert (message.headers, message.returns, queue.shovel.waiting) == ({"trace": "t"}, 2, 1)
    assert app.store.queues.get("jobs").max_returns == 2  # type: ignore[union-attr]


def test_a_new_queue_has_the_time_to_live_of_javas(app: ignis.Ignis) -> None:
    app.queue("jobs", dict, shards=1).publish({"n": 1})
    app.queue("endless", dict, shards=1, message_expiry=0).publish({"n": 1})
    records = {one.name: one.message_expiry_s for one in app.store.queues.list()}
    assert records == {"jobs": 172_800, "endless": 0}
    assert 172_000 < ttl_of(app, "jobs_1") <= 172_802
    assert ttl_of(app, "endless_1") > 10 * 365 * 86_400, "as the server says never"


@pytest.mark.parametrize("javas", [False, True], ids=["ours", "java's"])
def test_the_time_to_live_goes_on(app: ignis.Ignis, javas: bool) -> None:
    queue = app.queue("jobs", dict, shards=1, message_expiry=10_000)
    queue.publish({"n": 1})
    most = 10_002
    if javas:
        make_javas(app, "jobs_1", most := 5_000)
    magazines = app.store.magazines
    [claim] = magazines.fire("jobs", 1, "me").claims
    assert magazines.reload("jobs", {0: claim.pointers}) == 1
    assert most - 60 < ttl_of(app, "jobs_2") <= most + 1
    [claim] = magazines.fire("jobs", 1, "me").claims
    assert claim.records[0] is not None
    assert magazines.transfer("jobs", "jobs_SIDELINE", [Transfer(0, 2, claim.records[0], 0)]) == 1
    assert most - 60 < ttl_of(app, "jobs_SIDELINE_1") <= most + 2
    assert queue.shovel.run_once().moved == 1
    assert most - 60 < ttl_of(app, "jobs_3") <= most + 3


def test_what_java_says_never_expires_does_not_get_an_end(app: ignis.Ignis) -> None:
    app.queue("jobs", dict, shards=1, message_expiry=10_000).publish({"n": 1})
    make_javas(app, "jobs_1", -1)
    magazines = app.store.magazines
    [claim] = magazines.fire("jobs", 1, "me").claims
    assert claim.records[0] is not None
    assert magazines.transfer("jobs", "jobs_SIDELINE", [Transfer(0, 1, claim.records[0], 0)]) == 1
    assert ttl_of(app, "jobs_SIDELINE_1") > 10 * 365 * 86_400
