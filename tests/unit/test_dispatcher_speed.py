"""How fast a handler is, as the dispatcher learns it, and who gets what by that."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from ignis.config import ConsumerSettings
from ignis.consumer.dispatcher import Dispatcher
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.speeds import Speed, speed_of
from ignis.native import ThreadBell
from ignis.upkeep import Turn, Turns


def learned(*measured: tuple[int, float]) -> float:
    """Seconds that a message takes, after so many messages took so long, again and again."""
    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher.handle_s = 0.0
    dispatcher._speed = Speed()
    for messages, seconds in measured:
        dispatcher.measured(messages, seconds)
    return dispatcher.handle_s


def test_many_quick_messages_outweigh_a_first_one_that_began_cold() -> None:
    assert learned((1, 0.001)) == 0.001
    assert learned((1, 0.001), (200, 200 * 1e-6)) < 25e-6


def test_single_messages_are_trusted_slowly() -> None:
    assert learned((1, 0.001), (1, 1e-6)) == pytest.approx(0.0008, rel=0.01)


def test_what_is_slow_counts_at_once() -> None:
    assert learned((1_000, 0.001), (1, 0.1)) > 0.04


class Taker:
    """A worker that takes what it is offered, and does nothing with it."""

    held_up = False

    def __init__(self) -> None:
        self.outstanding = 0

    def submit(self, chunk: object, start: int, stop: int) -> bool:
        self.outstanding += stop - start
        return True


def claimed(
    each_s: float,
    *,
    leads: bool = True,
    batch_size: int | None = None,
    elsewhere_s: float = 0.0,
    turns: Turns | None = None,
    target_s: float = 10,
) -> tuple[int, list[int]]:
    """How many messages are wanted, and how many of them each of four workers gets in chunks of 1,024, the leader first."""
    workers = [Taker() for _ in range(4)]
    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher.handle_s = each_s
    dispatcher._speed = Speed()
    dispatcher._speed.each_s = elsewhere_s
    dispatcher.workers = len(workers)
    dispatcher.returned = deque()
    dispatcher.leader = workers[0] if leads else None  # type: ignore[assignment]
    dispatcher._spec = SimpleNamespace(batch_size=batch_size, pool="thread")  # type: ignore[assignment]
    dispatcher._turns = turns
    dispatcher._settings = ConsumerSettings(chunk_target_s=target_s, max_chunk=1_024)
    dispatcher._acker = SimpleNamespace(unacked=0)  # type: ignore[assignment]
    dispatcher._in_hand = SimpleNamespace(nbytes=0)  # type: ignore[assignment]
    dispatcher._pool = lambda: SimpleNamespace(workers=workers)  # type: ignore[assignment, return-value]
    wanted = dispatcher.wanted()
    for start in range(0, wanted, 1_024):
        assert dispatcher._offer(None, start, start + 1_024)  # type: ignore[arg-type]
    return wanted, [worker.outstanding for worker in workers]


def test_quick_messages_are_handled_where_they_are_claimed() -> None:
    assert claimed(1e-6) == (2_048, [2_048, 0, 0, 0])


def test_others_are_shared_out() -> None:
    assert claimed(10e-6) == (8_192, [2_048, 2_048, 2_048, 2_048])
    assert claimed(1e-6, leads=False) == (8_192, [2_048, 2_048, 2_048, 2_048])  # worker processes
    assert claimed(1e-6, batch_size=10)[1] == [2_048, 2_048, 2_048, 2_048]
    assert claimed(0.0)[0] == 4  # not measured yet


def test_who_has_his_turn_claims_one_chunk_for_himself() -> None:
    turns = Turns(1)
    assert claimed(10e-6, turns=turns) == (1_024, [1_024, 0, 0, 0])
    assert claimed(0.0, turns=turns)[0] == 1
    assert claimed(0.001, turns=turns, target_s=0.02)[0] == 20
    waiting = [Turn(turns, ThreadBell()) for _ in range(2)]
    assert [turns.take(turn) for turn in waiting] == [True, False]
    assert claimed(0.001, turns=turns, target_s=0.02)[0] == 5, "others wait for theirs"
    assert claimed(0.001, turns=turns, target_s=0.002)[0] == 2
    assert claimed(1.0, turns=turns)[0] == 1


@pytest.mark.parametrize(
    ("each_s", "wait_s", "chunk"),
    [
        (0.025, 0.0, 1),  # nobody waits: slow ones come one by one
        (0.025, 0.005, 8),
        (0.3, 0.5, 6),  # of which it is others' for the most part, as far as can be told
        (0.1, 0.01, 2),
        (5.0, 0.5, 1),
        (0.001, 0.5, 20),
    ],
)
def test_in_a_crowd_slow_ones_are_claimed_several_at_a_time(
    each_s: float, wait_s: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ignis.consumer.dispatcher.interpreter_wait_s", lambda: wait_s)
    assert claimed(each_s, target_s=0.02)[0] == 4 * (2 * chunk if chunk > 1 else 1)
    assert claimed(each_s, target_s=0.02, turns=Turns(1))[0] == max(1, int(0.02 / each_s)), (
        "who waits has claimed nothing"
    )


def test_the_speed_of_the_same_function_on_another_queue_is_the_first_guess() -> None:
    assert claimed(0.0, elsewhere_s=10e-6)[0] == 8_192
    assert claimed(0.0, elsewhere_s=30.0)[0] == 4
    assert claimed(30.0, elsewhere_s=1e-6)[0] == 4  # what was measured here counts


def test_speeds_are_kept_by_function_and_by_how_it_is_run() -> None:
    def handle(body: bytes) -> None:
        """Somebody's handler."""

    def other(body: bytes) -> None:
        """Somebody else's."""

    first = speed_of(HandlerSpec(handle, "a"))
    assert speed_of(HandlerSpec(handle, "b")) is first
    assert speed_of(HandlerSpec(other, "b")) is not first
    assert speed_of(HandlerSpec(handle, "b", concurrency=3)) is not first


def test_a_handler_that_no_other_queue_can_have_has_a_speed_of_its_own() -> None:
    class Handler:
        __slots__ = ()  # nobody can refer to it weakly

        def __call__(self, body: bytes) -> None:
            """Somebody's handler."""

    class Odd:
        def __hash__(self) -> int:
            raise ValueError("not to be hashed")

        def __call__(self, body: bytes) -> None:
            """Somebody's handler."""

    for handler in (Handler(), Odd()):
        assert speed_of(HandlerSpec(handler, "a")) is not speed_of(HandlerSpec(handler, "a"))
