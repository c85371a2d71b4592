"""Threads that claim for themselves: who leads, who follows, and that there is always one that would."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import ignis
from ignis.consumer.pools import Worker
from ignis.consumer.pools.leading import Leading, Tray
from ignis.errors import StoreFormatError
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, NewThreads, eventually, one_store, wait_idle
from tests.support.trays import Sink, Still


class Line:
    """Threads that take from their trays; whoever leads waits until it is given something or told to stop."""

    def __init__(self) -> None:
        self.leading = Leading()
        self.led: list[Tray] = []
        self.over = threading.Event()
        self.away_s = 0.0

    def lead(self, worker: Worker, tray: Tray, wait_s: float) -> float:
        self.led.append(tray)
        until = time.monotonic() + wait_s
        while not tray and not self.over.is_set() and time.monotonic() < until:
            time.sleep(0.001)
        return self.away_s

    def tray(self) -> Tray:
        return Tray(Still(Sink()), self)


def in_thread(tray: Tray, wait_s: float = WAIT_S) -> tuple[threading.Thread, list[Any]]:
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.extend(tray.take(1, wait_s)), daemon=True)
    thread.start()
    return thread, taken


def test_a_leader_that_got_something_calls_the_next() -> None:
    line = Line()
    first, second = line.tray(), line.tray()
    one, taken = in_thread(first)
    eventually(lambda: line.led == [first])
    other, _ = in_thread(second)
    time.sleep(0.02)
    assert line.led == [first], "one at a time"
    first.put((1, [b"x"]))
    one.join(WAIT_S)
    assert taken == [(1, [b"x"])]
    eventually(lambda: line.led == [first, second])
    line.over.set()
    other.join(WAIT_S)
    assert not other.is_alive()


def test_what_is_given_to_a_follower_wakes_it() -> None:
    line = Line()
    leader, _ = in_thread(line.tray())
    eventually(lambda: line.led)
    tray = line.tray()
    follower, taken = in_thread(tray)
    tray.put((7, [b"x"]))
    follower.join(WAIT_S)
    assert taken == [(7, [b"x"])]
    assert leader.is_alive()
    line.over.set()
    leader.join(WAIT_S)


def test_a_follower_that_was_called_and_given_something_passes_the_call_on() -> None:
    """The call must not end with one that has something else to do: nobody would claim until it is done with that."""
    leading = Leading()
    line = Line()
    line.leading = leading
    first, busy, free = line.tray(), line.tray(), line.tray()
    assert leading.take(first)
    assert leading.follow(free)
    assert leading.follow(busy)
    leading.resign()  # calls `busy`, which came last
    assert leading.leave(busy), "it was called"
    leading.pass_on()
    assert leading.leave(free), "and so is the next one"
    assert leading.take(free)


def test_a_thread_that_ends_instead_of_leading_passes_it_on() -> None:
    line = Line()
    first, ends, stays = line.tray(), line.tray(), line.tray()
    assert line.leading.take(first)
    assert line.leading.follow(stays)
    assert line.leading.follow(ends)
    line.leading.resign()
    ends.end()
    assert line.leading.leave(stays)


def test_a_call_to_lead_hides_nothing_else_that_the_thread_is_told() -> None:
    """Rung twice, it wakes once: who is called and somebody else leads by then returns, and looks at what it was told."""
    line = Line()
    first, told, other = line.tray(), line.tray(), line.tray()
    assert line.leading.take(first)
    thread, _ = in_thread(told)
    eventually(lambda: told in line.leading._followers)
    with line.leading._lock:
        line.leading._followers.remove(told)  # called ...
        line.leading._leader = other  # ... and too late
        told.ring()
        told.ring()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_who_gave_up_waiting_is_not_called() -> None:
    line = Line()
    first, gone = line.tray(), line.tray()
    assert line.leading.take(first)
    assert gone.take(1, 0.01) == []
    line.leading.resign()
    assert line.leading.take(first), "nobody was called meanwhile"


@pytest.mark.parametrize("away_s", [3600.0, 0.001])
def test_who_is_soon_back_calls_nobody_until_it_is_late(away_s: float) -> None:
    line = Line()
    line.away_s = away_s
    first, second, third = line.tray(), line.tray(), line.tray()
    leader, taken = in_thread(first)
    eventually(lambda: line.led == [first])
    others = [in_thread(second)[0], in_thread(third)[0]]
    eventually(lambda: len(line.leading._followers) == 2)
    first.put((1, [b"x", b"y"]))
    leader.join(WAIT_S)
    assert taken == [(1, [b"x", b"y"])]
    if away_s < 1:
        eventually(lambda: len(line.led) == 2)
        assert line.led[1] in (second, third) and line.leading.watcher is None
    else:
        assert line.leading.watcher in (second, third) and line.leading.watcher in line.leading._followers
        assert line.leading.take(first), "it is back: nobody led meanwhile"
        assert line.led == [first]
        line.leading.resign()
    line.over.set()
    for other in others:
        line.leading.pass_on()
        other.join(WAIT_S)


def test_a_watcher_that_has_something_else_to_do_leaves_the_lead_to_another() -> None:
    """Who led last may be at what it has for ever."""
    line = Line()
    first, second, third = line.tray(), line.tray(), line.tray()
    assert line.leading.take(first)
    started = {tray: in_thread(tray) for tray in (second, third)}
    eventually(lambda: len(line.leading._followers) == 2)
    line.leading.resign(3600.0)
    watcher = line.leading.watcher
    assert watcher is not None
    watcher.put((7, [b"x"]))
    started[watcher][0].join(WAIT_S)
    assert started[watcher][1] == [(7, [b"x"])]
    other = third if watcher is second else second
    eventually(lambda: line.led == [other])
    assert line.leading.watcher is None
    line.over.set()
    started[other][0].join(WAIT_S)


def test_the_thread_of_a_watcher_ends_and_another_is_called() -> None:
    leading = Leading()
    line = Line()
    line.leading = leading
    first, other, watcher = line.tray(), line.tray(), line.tray()
    assert leading.take(first)
    assert leading.follow(other)
    assert leading.follow(watcher)
    leading.resign(3600.0)
    assert leading.watcher is watcher
    leading.gone(watcher)
    assert leading.watcher is None
    assert leading.leave(other), "it was called"
    assert leading.take(other)


def test_nobody_leads_after_the_end() -> None:
    line = Line()
    leader, _ = in_thread(line.tray())
    eventually(lambda: line.led)
    assert line.leading.end(0.02) is False, "somebody still does"
    line.over.set()
    assert line.leading.end(WAIT_S) is True
    leader.join(WAIT_S)
    assert line.tray().take(1, 0.01) == []
    assert len(line.led) == 1


# -- in a consumer


def claiming_threads(queue: ignis.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that claim from now on."""
    found: set[int] = set()
    fire = queue.main.store.fire

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.add(threading.get_ident())
        return fire(*args, **kwargs)

    monkeypatch.setattr(queue.main.store, "fire", noted)
    return found


def test_the_thread_that_claims_handles(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    handled_by: list[int] = []
    queue.handler(lambda message: handled_by.append(threading.get_ident()))
    queue.open()
    claimed_by = claiming_threads(queue, monkeypatch)
    app.start()
    for number in range(5):
        queue.publish(number)
        eventually(lambda: len(handled_by) == number + 1)  # noqa: B023
    assert set(handled_by) == claimed_by


def test_the_first_claim_is_made_at_once(app: ignis.Ignis) -> None:
    """A thread that leads before it is counted would want nothing, and sleep."""
    seen: list[int] = []
    times: list[float] = []
    queue = app.queue("jobs", int)
    queue.handler(seen.append)
    for round_ in range(5):
        queue.publish(round_)
        began = time.monotonic()
        app.start()
        eventually(lambda: len(seen) == round_ + 1)  # noqa: B023
        times.append(time.monotonic() - began)
        assert app.stop() is True
    assert min(times) < 0.4


def test_handlers_that_block_stop_nobodys_claims(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    gate = Gate(only=-1)
    queue.handler(gate, concurrency=3)
    app.start()
    for blocked in range(2):
        queue.publish(-1)
        gate.wait_entered()
        for number in range(20):
            queue.publish(100 * blocked + number)
        eventually(lambda: len(gate.seen) == 21 * (blocked + 1))  # noqa: B023
    gate.open.set()
    wait_idle(queue)
    assert app.stop() is True


@one_store()
def test_a_quick_handler_that_suddenly_blocks_stops_nobodys_claims(app: ignis.Ignis) -> None:
    """Who handles quick messages calls nobody, as long as it is back in time."""
    queue = app.queue("jobs", int)
    gate = Gate(only=-1)
    queue.handler(gate, concurrency=3)
    queue.publish_many(range(5_000))
    app.start()
    wait_idle(queue)
    for blocked in range(2):
        queue.publish_many([-1, *range(5_000)])
        gate.wait_entered()
        eventually(lambda: len(gate.seen) == 5_000 + 5_001 * (blocked + 1))  # noqa: B023
    gate.open.set()
    wait_idle(queue)
    assert app.stop() is True


def test_a_batch_that_waits_for_more_gets_it(app: ignis.Ignis) -> None:
    """The one worker holds a batch that is not full: it claims on meanwhile, and no longer than the batch may wait."""
    queue = app.queue("jobs", int)
    batches: list[list[int]] = []
    queue.handler(lambda messages: batches.append(list(messages)), batch_size=4, batch_wait_s=1)
    app.start()
    began = time.monotonic()
    for number in range(6):
        queue.publish(number)
        time.sleep(0.02)
    eventually(lambda: sum(map(len, batches)) == 6)
    assert sorted(map(len, batches)) == [2, 4], "the full one at once, the rest after its wait"
    assert 0.9 < time.monotonic() - began < 10
    assert app.stop() is True


@pytest.mark.parametrize("batch", [None, 4])
@one_store()
def test_fewer_threads_and_the_one_that_waited_is_among_those_that_end(app: ignis.Ignis, batch: int | None) -> None:
    queue, threads = app.queue("fewer", int), NewThreads()
    seen: list[Any] = []
    queue.handler(seen.append, concurrency=4, batch_size=batch, **({} if batch is None else {"batch_wait_s": 1}))
    app.start()
    for count in (1, 3, 1, 4, 2):
        if count > queue.consumers:
            queue.increase_consumers(count - queue.consumers)
        else:
            queue.decrease_consumers(queue.consumers - count)
        for _ in range(3 if batch is None else 1):
            queue.publish(count)
            wait_idle(queue)
    assert queue.consumer is not None
    eventually(lambda: len(threads.named("ignis-fewer-")) == 2)
    assert app.stop() is True


def test_a_store_that_cannot_be_read_ends_the_claims_and_spins_nobody(
    memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(memory_url)
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None, concurrency=3)
    queue.open()
    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        raise StoreFormatError("another format")

    monkeypatch.setattr(queue.main.store, "fire", broken)
    app.start()
    eventually(lambda: queue.consumer is not None and queue.consumer.failed)
    began = time.process_time()
    time.sleep(0.3)
    assert len(calls) == 1
    assert time.process_time() - began < 0.15
    assert app.stop() is True


def test_nobody_leads_again_and_again_while_a_stop_is_announced(
    memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(memory_url)
    queue = app.queue("stopping", bytes)
    queue.handler(concurrency=2)(lambda body: None)
    app.start()
    claims: Any = queue.consumer._claims  # type: ignore[union-attr]
    eventually(lambda: claims.leading._leader is not None)
    looks: list[float] = []
    look_round, wake = claims._look_round, claims.wake

    def slow_wake() -> None:
        wake()
        time.sleep(0.2)  # others have the interpreter before the end is announced any further

    monkeypatch.setattr(claims, "_look_round", lambda: (looks.append(time.monotonic()), look_round()))
    monkeypatch.setattr(claims, "wake", slow_wake)
    app.stop(WAIT_S)
    assert len(looks) < 10


def test_a_stop_tells_all_queues_before_it_waits_for_any(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hundreds are busy, each step that waits takes long until the others are quiet."""
    order: list[str] = []
    for name in ("begin_stop", "stop"):
        whole = getattr(ignis.Queue, name)

        def noted(self: ignis.Queue[Any], *args: Any, whole: Any = whole, name: str = name) -> Any:
            order.append(name)
            return whole(self, *args)

        monkeypatch.setattr(ignis.Queue, name, noted)
    gate, told = Gate(), []

    def handle(number: int, ctx: ignis.Context) -> None:
        gate(number)
        told.append(ctx.stopping)

    for number in range(5):
        queue = memory_app.queue(f"q{number}", int, shards=1)
        queue.handler(handle)
        queue.publish_many(range(10))
    memory_app.start()
    gate.wait_entered(5)
    stopping = threading.Thread(target=memory_app.stop)
    stopping.start()
    eventually(lambda: order.count("stop") == 5)
    assert order[:5] == ["begin_stop"] * 5
    gate.open.set()
    stopping.join(WAIT_S)
    assert told == [True] * 5  # nothing was begun behind it
    for number in range(5):
        queue = memory_app.queue(f"q{number}", int)
        assert (queue.stats()["pending"], queue.stats()["in_flight"]) == (9, 0)
