"""How fast a handler is, as the dispatcher learns it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ignis.consumer.dispatcher import Dispatcher


def learned(*measured: tuple[int, float]) -> float:
    """Seconds that a message takes, after so many messages took so long, again and again."""
    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher.handle_s = 0.0
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


def shared_out(each_s: float, *, messages: int = 8_192, size: int = 1_024, leads: bool = True) -> list[int]:
    """How many each of four workers gets, the leader first, of so many messages in chunks of that size."""
    workers = [Taker() for _ in range(4)]
    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher.handle_s = each_s
    dispatcher.leader = workers[0] if leads else None  # type: ignore[assignment]
    dispatcher._pool = lambda: SimpleNamespace(workers=workers)  # type: ignore[assignment, return-value]
    for start in range(0, messages, size):
        assert dispatcher._offer(None, start, start + size)  # type: ignore[arg-type]
    return [worker.outstanding for worker in workers]


def test_work_of_a_moment_is_left_to_the_thread_that_claimed_it() -> None:
    assert shared_out(0.1e-6) == [8_192, 0, 0, 0]


def test_it_takes_no_more_than_a_moment() -> None:
    assert shared_out(0.4e-6) == [3_072, 2_048, 2_048, 1_024]


def test_slow_messages_are_shared_out_evenly() -> None:
    assert shared_out(0.01, messages=8, size=1) == [2, 2, 2, 2]
    assert shared_out(0.0, messages=4, size=1) == [1, 1, 1, 1]  # not measured yet


def test_where_no_worker_claims_all_are_alike() -> None:
    assert shared_out(0.1e-6, leads=False) == [2_048, 2_048, 2_048, 2_048]
