"""Who is given how much while too much is unread: the rules alone, without a network."""

from __future__ import annotations

from typing import cast

from ignis.broker.server.send_limits import SendLimits
from ignis.broker.server.state import BrokerState
from ignis.config import BrokerSettings

LIMIT = 1 << 20


class FakeSession:
    """As much of a session as is looked at."""

    def __init__(self, user: str) -> None:
        self.shares_with = user
        self.outbound_bytes = 0


class FakeLoop:
    now = 0.0

    def time(self) -> float:
        return self.now


class Broker:
    """Connections that are sent something and read it, or not."""

    def __init__(self, *users: str) -> None:
        self.loop = FakeLoop()
        self.state = BrokerState()
        self.sessions = [FakeSession(user) for user in users]
        settings = BrokerSettings(max_unread_bytes=LIMIT)
        self.limits = SendLimits(settings, cast("object", self.loop), self.state, self.sessions)  # type: ignore[arg-type]

    def send(self, number: int, size: int) -> None:
        self.sessions[number].outbound_bytes += size
        self.state.bytes_out += size
        self.limits.look()

    def read(self, number: int) -> None:
        self.sessions[number].outbound_bytes = 0
        self.loop.now += 1
        self.limits.look()


def test_a_user_with_more_than_a_part_is_held_back_above_twice_the_limit() -> None:
    broker = Broker("greedy", "greedy", "good", "idle")
    broker.send(2, 1_000)
    broker.send(0, LIMIT)
    broker.send(1, LIMIT - 1_000)
    assert broker.limits.crowded
    assert not broker.limits.held_back  # just twice the limit
    broker.loop.now += 1
    broker.send(1, 1)
    assert broker.limits.held_back == {"greedy"}
    broker.read(0)
    assert not broker.limits.held_back
    broker.read(1)
    assert not broker.limits.crowded


def test_each_has_an_equal_part() -> None:
    broker = Broker("a", "b", "c")
    broker.send(0, 2 * LIMIT)
    broker.send(1, LIMIT // 3 + 1)
    broker.send(2, LIMIT // 3 - 1)
    broker.loop.now += 1
    broker.limits.look()
    assert broker.limits.held_back == {"a", "b"}


def test_much_is_seen_at_once() -> None:
    """Not with the next count alone, which comes 50 ms later."""
    broker = Broker("a", "b")
    broker.send(0, 2 * LIMIT + 1)
    assert broker.limits.held_back == {"a"}
    broker.send(1, LIMIT // 2 + 1)
    assert broker.limits.held_back == {"a", "b"}


def test_threads_wait_for_the_event_loop() -> None:
    broker = Broker("a")
    broker.limits.made_in_thread(LIMIT)
    assert not broker.limits.behind
    broker.limits.made_in_thread(1)
    assert broker.limits.behind
    broker.limits.made(0, LIMIT, in_thread=True)
    assert not broker.limits.behind
