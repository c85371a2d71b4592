"""Few of many consumers store their outcomes at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import ignis
from ignis.consumer import ack_slots as module
from ignis.consumer.ack_slots import SLOTS, STAYING, AckSlots, ack_slots
from ignis.consumer.acknowledger import Acknowledger
from tests.support import WAIT_S, eventually


@pytest.fixture
def slots() -> AckSlots:
    return AckSlots()


class Busy:
    """Calls that hold their slots until they are let go."""

    def __init__(self, slots: AckSlots) -> None:
        self.slots = slots
        self.go_on = threading.Event()
        self.begun: list[int] = []
        self.ended: list[int] = []

    def add(self, number: int) -> None:
        self.slots.run(lambda: self.call(number))

    def call(self, number: int) -> None:
        self.begun.append(number)
        assert self.go_on.wait(WAIT_S)
        self.ended.append(number)


def test_no_more_at_a_time_than_there_are_slots(slots: AckSlots) -> None:
    busy = Busy(slots)
    for number in range(SLOTS + 20):
        busy.add(number)
    eventually(lambda: len(busy.begun) == SLOTS)
    assert slots.wanted
    time.sleep(0.05)
    assert len(busy.begun) == SLOTS
    busy.go_on.set()
    eventually(lambda: len(busy.ended) == SLOTS + 20)
    assert busy.begun[SLOTS:] == list(range(SLOTS, SLOTS + 20)), "in the order in which they came"
    assert not slots.wanted


def test_who_sleeps_gives_the_slot_to_the_next(slots: AckSlots) -> None:
    busy = Busy(slots)
    asleep, awake = threading.Event(), threading.Event()

    def sleeps() -> None:
        with slots.without():
            asleep.set()
            assert awake.wait(WAIT_S)

    for _ in range(SLOTS):
        slots.run(sleeps)
    busy.add(1)
    eventually(lambda: busy.begun == [1])
    assert asleep.is_set()
    busy.go_on.set()
    awake.set()
    eventually(lambda: slots._taken == 0)


def test_who_has_nothing_to_do_stays_only_where_nobody_waits(slots: AckSlots) -> None:
    slots._taken = STAYING + 2
    stayed = [slots.stay() for _ in range(STAYING + 1)]
    assert stayed == [True] * STAYING + [False]
    slots.back()
    assert slots.stay()
    for _ in range(SLOTS - 2):
        slots.back()
    slots.run(lambda: None)
    assert slots.wanted
    assert not slots.stay()


@pytest.mark.parametrize("why", ["stayed", "slept"])
def test_who_comes_back_waits_for_a_slot(slots: AckSlots, why: str) -> None:
    """He comes before those in line, and no more are at work than there are slots."""
    busy, away, home = Busy(slots), threading.Event(), threading.Event()
    back: list[bool] = []

    def goes() -> None:
        if why == "stayed":
            assert slots.stay()
            away.set()
            assert home.wait(WAIT_S)
            slots.back()
        else:
            with slots.without():
                away.set()
                assert home.wait(WAIT_S)
        back.append(busy.go_on.is_set())

    slots.run(goes)
    assert away.wait(WAIT_S)
    for number in range(SLOTS + 2):
        busy.add(number)
    eventually(lambda: len(busy.begun) == SLOTS)
    home.set()
    eventually(lambda: len(slots._returning) == 1)
    time.sleep(0.05)
    assert not back and slots._taken == SLOTS
    busy.go_on.set()
    eventually(lambda: len(busy.ended) == SLOTS + 2 and slots._taken == 0)
    assert back == [True]


def test_who_always_has_more_to_do_gives_way(slots: AckSlots) -> None:
    """More busy calls than slots, each of which would go on for ever: every one gets on."""
    rounds = [0] * (3 * SLOTS)
    over = threading.Event()

    def busy(number: int) -> None:
        while not over.is_set():
            rounds[number] += 1
            if slots.give_way(lambda: busy(number)):
                return

    for number in range(len(rounds)):
        slots.run(lambda number=number: busy(number))
    try:
        eventually(lambda: min(rounds) >= 10)
    finally:
        over.set()
    eventually(lambda: slots._taken == 0 and not slots.wanted)


@pytest.mark.parametrize("durability", ["none", "interval", "sync"])
def test_a_queue_with_work_all_the_time_leaves_the_others_their_turns(embedded_url: str, durability: str) -> None:
    """As many rounds under way as there are slots, of queues that always have more: another one is stored all the same."""
    with ignis.Ignis(embedded_url) as app:
        queues = [app.queue(f"q{number}", int, durability=durability) for number in range(SLOTS + 2)]
        for queue in queues:
            queue.handler(lambda body: None)
        app.start()
        ackers = [queue.consumer._acker for queue in queues if queue.consumer is not None]
        assert [one._slots is None for one in ackers] == [durability == "sync"] * len(ackers)
        for acker in ackers[:SLOTS]:
            settle = acker._settle_done

            def again(acker: Acknowledger = acker, settle: Callable[[], None] = settle) -> None:
                settle()
                acker._work.ring()  # something came meanwhile

            acker._settle_done = again  # type: ignore[method-assign]
            acker._wake()
        for queue in queues:
            queue.publish_many(range(3))
        eventually(lambda: [queue.consumer.counts.handled for queue in queues if queue.consumer] == [3] * len(queues))
        for acker in ackers:
            vars(acker).pop("_settle_done", None)


def test_a_call_that_fails_keeps_no_slot(slots: AckSlots, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("broken")

    for _ in range(2 * SLOTS):
        slots.run(fails)
    eventually(lambda: slots._taken == 0 and not slots.wanted)
    assert caplog.text.count("a call in a shared thread failed") == 2 * SLOTS


def test_without_a_thread_the_slot_is_free_again(slots: AckSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(call: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_soon", no_thread)
        for _ in range(2 * SLOTS):
            with pytest.raises(RuntimeError):
                slots.run(lambda: None)
    done = threading.Event()
    slots.run(done.set)
    assert done.wait(WAIT_S)


def test_a_hook_that_blocks_holds_up_its_own_queue_alone(memory_url: str) -> None:
    """Hooks are the user's: what one waits for may be what another queue has handled."""
    with ignis.Ignis(memory_url) as app:
        go_on = threading.Event()
        queues = [app.queue(f"q{number}", int) for number in range(3 * SLOTS)]

        @app.after_handling
        def wait(queue: str, handled: int, sidelined: int) -> None:
            if queue != queues[-1].name:
                assert go_on.wait(WAIT_S)

        for queue in queues:
            queue.handler(lambda body: None)
            queue.publish(1)
        app.start()
        try:
            last = queues[-1].consumer
            assert last is not None
            eventually(lambda: last.counts.handled == 1 and not last._acker.waiting)
        finally:
            go_on.set()


def test_each_store_has_its_own(memory_url: str, embedded_url: str) -> None:
    with ignis.Ignis(memory_url) as one, ignis.Ignis(embedded_url) as other:
        assert ack_slots(one.store) is ack_slots(one.store)
        assert ack_slots(one.store) is not ack_slots(other.store)
