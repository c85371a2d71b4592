"""A moment without memory: nothing stops for good, nothing is lost, and callers get errors that they can tell from others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import ignis
from ignis.consumer.taking import add_one, put_back, taken_of
from ignis.errors import StoreUnreachableError
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually
from tests.unit.test_outlasting import failing_once


@pytest.fixture
def app(new_app: MakeApp, embedded_url: str) -> ignis.Ignis:
    return new_app(embedded_url)


def failing_behind(monkeypatch: pytest.MonkeyPatch, on: Any, name: str, often: int = 1) -> list[str]:
    """The next calls of that method do what they do, and then raise."""
    whole, failed = getattr(on, name), list[str]()

    def call(*args: Any, **kwargs: Any) -> Any:
        made = whole(*args, **kwargs)
        if len(failed) < often:
            failed.append(name)
            raise MemoryError
        return made

    monkeypatch.setattr(on, name, call)
    return failed


# -- publishing


@pytest.mark.parametrize("delay", [None, 0.01])
@pytest.mark.parametrize("where", ["_load", "_drain"])
def test_the_flusher_goes_on(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, where: str, delay: float | None
) -> None:
    queue = app.queue("jobs", int, shards=1)
    publisher = queue.publisher()
    publisher.send(1, delay=delay).result(WAIT_S)
    ring: Any = publisher if delay is None else publisher._second  # type: ignore[attr-defined]
    if where == "_load":
        failing_once(monkeypatch, ring, where)
    else:
        whole, taken, begun = ring._drain, list[int](), threading.Event()

        def drain(*args: Any) -> Any:
            begun.set()
            count, batches = whole(*args)
            if count and not taken:
                taken.append(count)
                raise MemoryError
            return count, batches

        monkeypatch.setattr(ring, "_drain", drain)
        assert begun.wait(WAIT_S)
    first = publisher.send(2, delay=delay)
    with pytest.raises(StoreUnreachableError, match="no memory is left; whether it is stored is not known"):
        first.result(WAIT_S)
    later = [publisher.send(number, delay=delay) for number in range(3, 20)]
    for receipt in later:
        receipt.result(WAIT_S)
    fired = list[Any]()
    eventually(lambda: fired.extend(queue.main.fire(100)) or len(fired) == 18)
    assert {one.message for one in fired} == {1, *range(3, 20)}
    with pytest.raises(ignis.errors.PublishError, match="1 buffered"):
        publisher.close(WAIT_S)


@pytest.mark.parametrize("many", [False, True])
def test_who_publishes_hears_that_it_is_not_known(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    queue = app.queue("jobs", int)
    queue.publish(0)
    failing_behind(monkeypatch, app.store.magazines, "load")
    failing_behind(monkeypatch, app.store.magazines, "load_body")
    with pytest.raises(StoreUnreachableError, match="no memory is left; whether the message is stored is not known"):
        queue.publish_many([1]) if many else queue.publish(1)
    assert queue.main.pending() == 2, "it is"


def test_what_is_stored_is_not_an_error(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    queue.publish(0)

    def count(*args: Any) -> None:
        raise MemoryError

    app.after_publish(lambda name, number: None)
    monkeypatch.setattr(app.hooks, "published", count)
    queue.publish(1)
    queue.publish_many([2])
    assert queue.main.pending() == 3


def test_what_never_reaches_the_caller_of_fire_is_given_back(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=2)
    queue.publish_many(range(10))

    def fired(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("ignis.magazine.Fired", fired)
        with pytest.raises(StoreUnreachableError, match="given back"):
            queue.main.fire(10)
    assert queue.main.pending() == 10 and not queue.main.in_flight()


# -- consuming


def handled(app: ignis.Ignis, kind: str) -> tuple[ignis.Queue[int], list[int]]:
    queue, seen = app.queue("jobs", int, shards=2), list[int]()
    if kind == "async":

        async def handle(number: int) -> None:
            seen.append(number)

        queue.handler(handle, concurrency=4)
    elif kind == "batch":
        queue.handler(seen.extend, batch_size=5, batch_wait_s=1.0, concurrency=2)
    else:
        queue.handler(seen.append, concurrency=4)
    app.start()
    queue.publish_many(range(20))
    eventually(lambda: len(seen) == 20)
    return queue, seen


def places(app: ignis.Ignis, queue: ignis.Queue[int], where: str) -> tuple[Any, str]:
    consumer: Any = queue.consumer
    on, name = where.split(".")
    found = {
        "store": app.store.magazines,
        "dispatcher": consumer._dispatcher,
        "in_hand": consumer._in_hand,
        "acker": consumer._acker,
        "claims": consumer._claims,
        "consumer": consumer,
        "pool": consumer._pool,
    }
    return found[on], name


@pytest.mark.parametrize(
    "kind", ["thread", pytest.param("async", marks=pytest.mark.long), pytest.param("batch", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "where",
    [
        "store.delete", "dispatcher.wanted", "dispatcher._plan", "in_hand.add", "acker._round",
        "acker._renew", "claims._claim", "claims._look_at_pauses", "consumer._plan_check", "pool.check",
    ],
)  # fmt: skip
def test_a_consumer_goes_on(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, kind: str, where: str) -> None:
    queue, seen = handled(app, kind)
    on, name = places(app, queue, where)
    failing_once(monkeypatch, on, name)
    for number in range(20, 60):
        queue.publish(number)
    eventually(lambda: sorted(set(seen)) == list(range(60)))
    eventually(lambda: not queue.stats()["in_flight"])
    assert app.running and app.ready
    assert app.stop(WAIT_S)


@pytest.mark.parametrize("where", ["_pump", "_report", "_begin_tasks", "_run_quick"])
def test_an_event_loop_goes_on(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    queue, seen = handled(app, "async")
    worker: Any = queue.consumer._pool._worker  # type: ignore[union-attr]
    failed = failing_once(monkeypatch, worker, where)
    queue.publish_many(range(20, 40))
    eventually(lambda: sorted(seen) == list(range(40)) and failed)
    eventually(lambda: not queue.stats()["in_flight"])
    failed = failing_once(monkeypatch, worker.loop, "_run_once")
    queue.publish_many(range(40, 60))
    eventually(lambda: sorted(seen) == list(range(60)) and failed)
    assert app.stop(WAIT_S)


@pytest.mark.parametrize("number", range(1, 9))
def test_an_event_loop_goes_on_though_one_of_its_calls_cannot_be_planned(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    queue, seen = handled(app, "async")
    loop: Any = queue.consumer._pool._worker.loop  # type: ignore[union-attr]
    whole, calls = loop.call_soon, list[int]()

    def call_soon(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise MemoryError
        return whole(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon", call_soon)
    for message in range(20, 40):
        queue.publish(message)
    eventually(lambda: sorted(set(seen)) == list(range(40)))
    eventually(lambda: not queue.stats()["in_flight"])
    assert len(calls) > number
    assert app.stop(WAIT_S)


@pytest.mark.parametrize("kind", ["async", "batch"])
def test_what_a_loop_could_not_hand_over_is_handed_over_later(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue, seen, hold = app.queue("jobs", int, shards=1), list[int](), threading.Event()

    async def handle(given: Any) -> None:
        while 0 in (given if kind == "batch" else [given]) and not hold.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        seen.extend(given if kind == "batch" else [given])

    if kind == "batch":
        queue.handler(handle, batch_size=2, batch_wait_s=1)
    else:
        queue.handler(handle)
    app.start()
    worker: Any = queue.consumer._pool._worker  # type: ignore[union-attr]
    failed = failing_once(monkeypatch, worker, "_return_waiting")
    queue.publish_many(range(40))
    eventually(lambda: failed)
    hold.set()
    eventually(lambda: sorted(seen) == list(range(40)))
    eventually(lambda: not queue.stats()["in_flight"])
    assert app.stop(WAIT_S)


def test_run_ends_with_an_error_of_ours(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda number: None)
    ended = threading.Timer(0.3, lambda: queue.consumer._ended_by(MemoryError()))  # type: ignore[union-attr]
    ended.start()
    with pytest.raises(StoreUnreachableError, match="no memory is left"):
        app.run()
    assert not app.running


# -- queues within


def test_what_is_taken_is_put_back_in_its_order() -> None:
    class Scarce(ignis.consumer.taking.deque[Any]):
        left = 3

        def popleft(self) -> Any:
            if not Scarce.left:
                raise MemoryError
            Scarce.left -= 1
            return super().popleft()

    queued = Scarce(range(6))
    with pytest.raises(MemoryError):
        taken_of(queued)
    assert list(queued) == [0, 1, 2, 3, 4, 5]
    Scarce.left = 6
    assert taken_of(queued) == [0, 1, 2, 3, 4, 5] and not queued
    put_back(queued, [1, 2, 3], 1)
    add_one(queued, 4)
    assert list(queued) == [2, 3, 4]
