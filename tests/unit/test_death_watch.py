"""What a process held that died while another one works on the same queues."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from ignis.control import redelivery
from ignis.control.redelivery import DeathWatch, recover_owner
from ignis.errors import StoreFullError
from ignis.storage.base import Owner, Process
from tests.conftest import MakeApp
from tests.support import eventually, reasons, sidelined

BY_HAND = {"initial_delay_s": 86_400, "watch_s": 0}


@pytest.fixture
def app(embedded_url: str, new_app: MakeApp) -> ignis.Ignis:
    return new_app(embedded_url, refresher=BY_HAND)


def filled(app: ignis.Ignis, *names: str) -> list[ignis.Queue[int]]:
    queues = [app.queue(name, int, shards=2) for name in names]
    for queue in queues:
        queue.publish_many(range(6))
    return queues


def claims_and_dies(url: str, new_app: MakeApp, *names: str, durability: str | None = None) -> str:
    """A store that claims three messages of each queue, and is closed: to the kernel that is a death. Returns its owner."""
    other = new_app(url)
    for name in names:
        assert other.store.magazines.fire(name, 3, other.store.owner).total() == 3
    owner = other.store.owner
    other.close()
    return owner


def test_what_the_dead_held_of_these_queues_is_set_aside(
    app: ignis.Ignis, embedded_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = filled(app, "one", "two")
    watch = DeathWatch(lambda: app.store, 0)
    assert watch.look(["one", "two"]) == {}
    owner = claims_and_dies(embedded_url, new_app, "one", "two")
    assert app.store.magazines.dead_claimants() == {owner}
    assert watch.look(["one"]) == {("one", "abandoned"): 3, ("one", "corrupt"): 0}
    assert [(message.reason, message.crashes) for message in sidelined(one)] == [("abandoned", 1)] * 3
    assert "dead processes held messages of one: 3 are in its sideline now" in caplog.text
    assert (one.main.in_flight(), two.main.in_flight()) == (0, 3), "only of the queues that run here"


def test_the_living_and_other_proofs_are_left_alone(app: ignis.Ignis, embedded_url: str, new_app: MakeApp) -> None:
    """Whose death is not told by the lock of its own store: a job has none, and a broker looks after its clients."""
    (queue,) = filled(app, "jobs")
    living = new_app(embedded_url)
    living.store.magazines.fire("jobs", 1, living.store.owner)
    other = new_app(embedded_url)
    gone = Process(1 << 30, 1, 0, "another boot")
    for name in (Owner("client", gone), Owner("job", Process()), "broker/name@host"):
        other.store.magazines.fire("jobs", 1, name)
    other.close()
    assert DeathWatch(lambda: app.store, 0).look(["jobs"]) == {}
    assert queue.main.in_flight() == 4


def test_many_that_see_the_same_death_move_each_message_once(
    app: ignis.Ignis, embedded_url: str, new_app: MakeApp
) -> None:
    (queue,) = filled(app, "jobs")
    others = [app, new_app(embedded_url), new_app(embedded_url)]
    watches = [DeathWatch(lambda one=one: one.store, 0) for one in others]  # type: ignore[misc]
    for watch in watches:
        watch.look(["jobs"])
    claims_and_dies(embedded_url, new_app, "jobs")
    assert sum(watch.look(["jobs"]).total() for watch in watches) == 3
    assert reasons(queue) == {"abandoned": 3}


def test_a_shovel_that_died_gives_back(
    app: ignis.Ignis, embedded_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    (queue,) = filled(app, "jobs")
    claims_and_dies(embedded_url, new_app, "jobs")
    watch = DeathWatch(lambda: app.store, 0)
    watch.look(["jobs"])
    other = new_app(embedded_url)
    assert other.store.magazines.fire(queue.sideline.name, 2, other.store.owner).total() == 2
    other.close()
    caplog.clear()
    assert watch.look(["jobs"]).total() == 0
    assert (queue.sideline.in_flight(), len(sidelined(queue))) == (0, 3)
    assert "held messages of jobs: 2 that they were shovelling are back in its sideline; they come back" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"shovel_interval": 300},
            (
                "with its shovel's next pass, within 300 s (shovel_interval_s), at most 5 times each (max_returns), "
                "or at once by: ignis sideline shovel jobs"
            ),
        ),
        ({"shovel_interval": 0}, "only by: ignis sideline shovel jobs (shovel_interval_s = 0)"),
        ({"max_returns": 0}, "only by: ignis sideline shovel jobs (max_returns = 0)"),
        (
            {"shovel_retry": ignis.Retry(attempts=3)},
            "as its shovel_retry says, or at once by: ignis sideline shovel jobs",
        ),
    ],
    ids=["interval", "no interval", "no returns", "policy"],
)
def test_the_line_says_how_the_messages_come_back(
    app: ignis.Ignis,
    embedded_url: str,
    new_app: MakeApp,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    said: str,
) -> None:
    app.queue("jobs", int, shards=2, **settings).publish_many(range(6))
    claims_and_dies(embedded_url, new_app, "jobs")
    DeathWatch(lambda: app.store, 0).look(["jobs"])
    assert f"dead processes held messages of jobs: 3 are in its sideline now; they come back {said}\n" in caplog.text


def test_what_is_refused_is_tried_again_and_what_is_done_is_not(
    app: ignis.Ignis,
    embedded_url: str,
    new_app: MakeApp,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, two = filled(app, "one", "two")
    claims_and_dies(embedded_url, new_app, "one", "two")
    magazines, watch = app.store.magazines, DeathWatch(lambda: app.store, 0)

    def full(*args: Any, **kwargs: Any) -> int:
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(magazines, "transfer", full)
        for _ in range(3):
            assert watch.look(["one"]).total() == 0
    assert caplog.text.count("what dead processes held of one cannot be taken back yet, trying again: no room") == 1
    assert watch.look(["one"]).total() == 3
    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(magazines, "claimants", lambda magazine: asked.append(magazine) or {})
        watch.look(["one"])
    assert asked == [], "the dead that still hold messages of queues that do not run here cost one look"
    assert two.main.in_flight() == 3


def test_the_refresher_looks_and_counts(app: ignis.Ignis, embedded_url: str, new_app: MakeApp) -> None:
    (queue,) = filled(app, "jobs")
    queue.handler(lambda message: None)
    claims_and_dies(embedded_url, new_app, "jobs")
    app.refresher.watch_once()
    assert queue.main.in_flight() == 3, "no consumer runs here"
    app.start()
    eventually(lambda: queue.main.pending() == 0)
    assert reasons(queue) == {"abandoned": 3}, "a start takes back by itself"
    assert queue.consumer is not None
    queue.consumer.pause()
    eventually(lambda: queue.consumer is not None and queue.consumer.quiet)
    queue.publish_many(range(3))
    claims_and_dies(embedded_url, new_app, "jobs")
    app.refresher.watch_once()
    assert reasons(queue) == {"abandoned": 6}
    assert queue.consumer is not None
    assert queue.consumer.stats()["sidelined_abandoned"] == 6


def test_it_may_be_left_to_the_sweeper(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url, refresher=BY_HAND, sweeper={"dead_owners": False})
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    app.start()
    assert queue.consumer is not None
    queue.consumer.pause()
    eventually(lambda: queue.consumer is not None and queue.consumer.quiet)
    queue.publish_many(range(3))
    claims_and_dies(embedded_url, new_app, "jobs")
    app.refresher.watch_once()
    assert queue.main.in_flight() == 3


def test_every_durability_that_is_in_use(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    for durability in ("sync", "interval", "none"):
        app.queue(durability, int, durability=durability).publish_many(range(3))
    claims_and_dies(embedded_url, new_app, "sync", "interval", "none")
    assert DeathWatch(lambda: app.store, 0).look(["sync", "interval", "none"]).total() == 9
    assert app.store.magazines.dead_claimants() == frozenset(), "who holds nothing is forgotten"


def test_a_store_in_memory_has_no_dead(memory_url: str, new_app: MakeApp) -> None:
    app = new_app(memory_url)
    (queue,) = filled(app, "jobs")
    queue.main.store.fire("jobs", 2, "gone")
    assert DeathWatch(lambda: app.store, 0).look(["jobs"]) == {}
    assert queue.main.in_flight() == 2


def test_a_supervisor_comes_first(
    app: ignis.Ignis, embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows how its process ended, and counts what it gives back."""
    (queue,) = filled(app, "jobs")
    owner = claims_and_dies(embedded_url, new_app, "jobs")
    naps: list[float] = []

    def supervise(seconds: float) -> None:
        naps.append(seconds)
        recover_owner(app.store, owner, "its process ended with signal SIGKILL")

    monkeypatch.setattr(redelivery.time, "sleep", supervise)
    assert DeathWatch(lambda: app.store, 1.0).look(["jobs"]) == {}
    assert (naps, reasons(queue)) == ([1.0], {"abandoned": 3})
    assert all("SIGKILL" in (message.error or "") for message in sidelined(queue))
