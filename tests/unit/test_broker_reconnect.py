"""How long, and how often, a client tries to connect."""

from __future__ import annotations

import pytest
import tenacity

from ignis.broker.client.reconnect import Attempts, retry_rules, time_tried
from ignis.config import ClientSettings


class Failed(tenacity.RetryCallState):
    """After an attempt that failed, so many seconds from the first."""

    def __init__(self, attempt: int, passed_s: float) -> None:
        self.attempt_number = attempt
        self.passed_s = passed_s

    @property
    def seconds_since_start(self) -> float:
        return self.passed_s


@pytest.mark.parametrize("limit_s", [0.05, 1.0, 3.0, 10.0, 600.0])
def test_the_last_try_is_made_when_the_time_is_nearly_over(limit_s: float) -> None:
    for _ in range(100):
        rules = retry_rules(ClientSettings(), limit_s, Attempts())
        passed_s, attempts, waits = 0.0, 1, []
        while not rules["stop"](Failed(attempts, passed_s)):
            waits.append(rules["wait"](Failed(attempts, passed_s)))
            passed_s += waits[-1]
            attempts += 1
        assert limit_s - min(0.1, limit_s / 10) == pytest.approx(passed_s)
        assert max(waits) <= ClientSettings().max_retry_wait_s


@pytest.mark.parametrize(
    ("limit_s", "says"),
    [
        (10.0, "; tried for 10 s (client.connect_timeout_s)"),
        (9.9987, "; tried for 10 s (client.connect_timeout_s)"),
        (4.0, "; tried for 4 s (client.timeout_s)"),
        (2.5, "; tried for 2.5 s"),
    ],
)
def test_how_long_it_was_tried_is_said_with_its_setting(limit_s: float, says: str) -> None:
    assert time_tried(ClientSettings(timeout_s=4), limit_s) == says
