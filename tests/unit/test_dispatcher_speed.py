"""How fast a handler is, as the dispatcher learns it."""

from __future__ import annotations

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
