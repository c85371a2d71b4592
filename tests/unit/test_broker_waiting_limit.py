"""How many requests of one user wait for messages: the counting alone."""

from __future__ import annotations

import pytest

from ignis.broker.server.waiting_limit import WaitingLimit, Waits
from ignis.errors import TooManyRequestsError


def test_each_user_has_his_own() -> None:
    limit = WaitingLimit(2)
    first, second, other = Waits(limit), Waits(limit), Waits(limit)
    first.begin("a")
    second.begin("a")
    other.begin("b")
    with pytest.raises(TooManyRequestsError, match=r"3 requests .* the limit is 2 \(broker.max_waiting_per_user\)"):
        first.begin("a")
    second.end()
    first.begin("a")
    assert (limit.count("a"), limit.count("b")) == (2, 1)


def test_several_at_once_are_counted_or_none_is() -> None:
    limit = WaitingLimit(4)
    limit.begin("a", 3)
    with pytest.raises(TooManyRequestsError, match="5 requests"):
        limit.begin("a", 2)
    assert limit.count("a") == 3
    limit.begin("a")
    limit.end("a", 3)
    assert limit.count("a") == 1


def test_a_connection_that_is_over_gives_all_of_its_own_back_once() -> None:
    limit = WaitingLimit(10)
    first, second = Waits(limit), Waits(limit)
    for _ in range(4):
        first.begin("a")
    second.begin("a")
    first.end()
    first.end_all()
    assert limit.count("a") == 1
    first.end()  # what was under way ends later
    first.end_all()
    assert limit.count("a") == 1
    second.end()
    assert limit.count("a") == 0
    assert not limit._counts, "nothing is kept of who has none"
