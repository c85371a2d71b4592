"""Who is served when more is asked than a pass should carry out: the rules alone, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Request
from ignis.broker.server import request_turns
from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.request_turns import RequestTurns
from ignis.native.wire import ReadArea

SLOW_S = 0.0005
"""What a request takes, so that a pass has room for few."""


class FakeClock:
    """In place of the module ``time``: only requests take any."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


CLOCK = FakeClock()


class FakeLoop:
    """What is to be called in the next pass."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def run_pass(self) -> None:
        now, self.soon = self.soon, []
        for call in now:
            call()


class FakeSession:
    """A connection of a user, which notes in a common list what it carries out."""

    def __init__(self, user: str, log: list[tuple[str, int]]) -> None:
        self.shares_with = user
        self.log = log
        self.unread = False
        self.refused: list[int] = []
        self.turns: RequestTurns | None = None

    def carry_out(self, request: Request) -> None:
        if request.payload == b"bad":
            raise RuntimeError("bad")
        CLOCK.now_s += SLOW_S
        self.log.append((self.shares_with, request.request_id))

    def read_deferred(self, data: bytes) -> None:
        """Each byte is a request."""
        assert self.turns is not None
        requests = [Request(Command.QUEUE_INFO, number, b"1234") for number in data]
        self.turns.take(self, requests, 0, CLOCK.perf_counter())

    def refuse(self, request_id: int, exc: BaseException) -> None:
        self.refused.append(request_id)

    def pause(self, reason: str) -> None:
        assert not self.unread
        self.unread = True

    def resume(self, reason: str) -> None:
        assert self.unread
        self.unread = False


class Fixture:
    """Turns, and what was carried out in them."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.area = ReadArea(262_144)
        self.receiving = ReceiveLimits(self.area, 1 << 20, 10)
        self.turns = RequestTurns(cast(asyncio.AbstractEventLoop, self.loop), self.receiving)
        self.log: list[tuple[str, int]] = []

    def session(self, user: str) -> FakeSession:
        made = FakeSession(user, self.log)
        made.turns = self.turns
        return made

    def take(
        self,
        session: FakeSession,
        count: int,
        first: int = 0,
        payload: Any = b"1234",
        then: Callable[[], None] | None = None,
    ) -> None:
        requests = [Request(Command.QUEUE_INFO, number, payload) for number in range(first, first + count)]
        self.turns.take(session, requests, 0, CLOCK.perf_counter(), then)

    def run(self) -> None:
        """Passes until nobody is in the line."""
        for _ in range(10_000):
            if not self.turns.waiting:
                break
            self.loop.run_pass()
        assert (self.turns.waiting, self.receiving.backlog_bytes) == (0, 0)
        assert self.area.read_bytes == 262_144


@pytest.fixture
def fixture(monkeypatch: pytest.MonkeyPatch) -> Fixture:
    monkeypatch.setattr(request_turns, "time", CLOCK)
    return Fixture()


def test_a_few_requests_are_carried_out_at_once(fixture: Fixture) -> None:
    for _ in range(50):
        fixture.take(fixture.session("a"), 8)
    assert len(fixture.log) == 400
    fixture.loop.run_pass()
    assert fixture.turns.passes == 0


def test_many_are_carried_out_in_order_and_the_connection_is_not_read_meanwhile(fixture: Fixture) -> None:
    one = fixture.session("a")
    fixture.take(one, 200)
    assert 8 <= len(fixture.log) < 200
    assert one.unread
    assert fixture.receiving.backlog_bytes == 4 * (200 - len(fixture.log))
    assert fixture.area.read_bytes == 16_384
    fixture.take(one, 5, first=200)  # what a layer below had read already
    assert fixture.turns.waits(one)
    fixture.run()
    assert not one.unread
    assert fixture.log == [("a", number) for number in range(205)]


def test_users_take_turns_however_many_connections_they_have(fixture: Fixture) -> None:
    many = [fixture.session("many") for _ in range(50)]
    for one in many:
        fixture.take(one, 100)
    began = len(fixture.log)
    good = fixture.session("good")
    fixture.take(good, 3)
    assert good.unread, "it comes behind others, for once"
    fixture.loop.run_pass()
    fixture.loop.run_pass()
    between = fixture.log[began:].index(("good", 0))
    assert between <= 2 * 16
    assert not good.unread
    fixture.run()
    assert len(fixture.log) == 5_003


def test_few_are_read_again_in_a_pass(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered without being carried out takes time as well."""
    many = [fixture.session("many") for _ in range(50)]
    began_s = CLOCK.perf_counter() - 1
    for one in many:
        fixture.turns.take(one, [], 60_000, began_s)
    assert all(one.unread for one in many)
    monkeypatch.setattr(request_turns, "_PASS_S", 60)
    fixture.loop.run_pass()
    assert [one.unread for one in many].count(False) == 8
    fixture.run()


def test_one_that_leaves_is_forgotten(fixture: Fixture) -> None:
    one, other = fixture.session("a"), fixture.session("b")
    fixture.take(one, 200)
    fixture.take(other, 20)
    carried_out = fixture.log.count(("a", 0))
    fixture.turns.left(one)
    assert fixture.receiving.backlog_bytes == 4 * 20
    fixture.run()
    assert fixture.log.count(("a", 199)) == 0
    assert fixture.log.count(("a", 0)) == carried_out
    assert fixture.log[-1] == ("b", 19)


@pytest.mark.parametrize("count", [0, 3, 200])
def test_one_that_ends_behind_its_requests_has_them_carried_out_in_turn(fixture: Fixture, count: int) -> None:
    one, ended = fixture.session("a"), []
    fixture.take(one, count, then=lambda: ended.append(len(fixture.log)))
    if count > 100:
        assert not ended, "others are served in between"
    fixture.run()
    assert fixture.log == [("a", number) for number in range(count)]
    assert ended == [count]
    assert one.unread == (count > 100), "it is not read again"


def test_one_that_ends_while_it_is_in_the_line(fixture: Fixture) -> None:
    one, ended = fixture.session("a"), []
    fixture.take(one, 100)
    fixture.take(one, 3, first=100, then=lambda: ended.append(len(fixture.log)))
    fixture.run()
    assert ended == [103]


def test_what_is_read_in_a_pass_that_took_long_is_put_by(fixture: Fixture) -> None:
    """A few requests of many connections are many."""
    many = [fixture.session("many") for _ in range(40)]
    looked_at = 0
    for one in many:
        if fixture.turns.defers(one):
            fixture.turns.defer(one, bytes(range(3)))
        else:
            fixture.take(one, 3)
            looked_at += 1
    assert 5 <= looked_at < 30
    assert fixture.receiving.backlog_bytes == 3 * (40 - looked_at)
    last = many[-1]
    assert fixture.turns.waits(last) and last.unread
    fixture.turns.defer(last, bytes([3]))  # what a layer below had read already
    good = fixture.session("good")
    fixture.loop.run_pass()
    assert not fixture.turns.defers(good)
    fixture.take(good, 2)
    began = len(fixture.log)
    fixture.loop.run_pass()
    assert ("good", 0) in fixture.log[began:], "the users take turns"
    fixture.run()
    assert len(fixture.log) == 40 * 3 + 1 + 2
    assert fixture.log.count(("many", 3)) == 1
    assert not any(one.unread for one in many)


def test_what_was_put_by_of_one_that_left_is_forgotten(fixture: Fixture) -> None:
    one = fixture.session("a")
    fixture.turns.defer(one, b"abc")
    assert fixture.receiving.backlog_bytes == 3
    fixture.turns.left(one)
    fixture.run()
    assert fixture.log == []


def test_bytes_that_no_message_comes_of_wait_for_their_turn(fixture: Fixture) -> None:
    many = [fixture.session("a") for _ in range(30)]
    for one in many:
        fixture.turns.charge(one, 262_144)
    assert [one.unread for one in many].count(True) > 15, "a pass has room for a few such reads"
    assert fixture.area.read_bytes < 262_144
    other = fixture.session("b")
    fixture.take(other, 1)
    fixture.loop.run_pass()
    assert fixture.log == [("b", 0)], "who was not in the line is served in the next pass"
    assert [one.unread for one in many].count(True) > 5, "and few of the others are read again in it"
    fixture.run()
    assert not any(one.unread for one in many)


def test_little_is_charged_to_nobody(fixture: Fixture) -> None:
    one = fixture.session("a")
    for _ in range(20):
        fixture.turns.charge(one, 8_192)
    assert not one.unread
    fixture.loop.run_pass()
    for _ in range(20):
        fixture.turns.charge(one, 262_144)
        assert one.unread == (fixture.turns.waiting == 1)


def test_memory_of_what_is_carried_out_is_never_promised_to_others(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever carries a request out holds it from then on: between the line and him its bytes always count."""
    sizes: list[int] = []
    go_on = fixture.receiving._go_on

    def seen() -> None:
        sizes.append(fixture.receiving.backlog_bytes)
        go_on()

    class Keeping(FakeSession):
        def carry_out(self, request: Request) -> None:
            super().carry_out(request)
            fixture.receiving.count_backlog(len(request.payload))

    monkeypatch.setattr(fixture.receiving, "_go_on", seen)
    fixture.receiving._narrow = True  # somebody waits for memory: whoever gives some back makes others go on
    one = Keeping("a", fixture.log)
    fixture.take(one, 200)
    assert one.unread
    while fixture.turns.waiting:
        fixture.loop.run_pass()
        fixture.receiving._narrow = True
    fixture.take(one, 100)
    assert one.unread
    while fixture.turns.waiting:
        fixture.loop.run_pass()
        fixture.receiving._narrow = True
    assert fixture.receiving.backlog_bytes == 4 * 300
    assert sizes and min(sizes) >= 4 * 200


def test_a_request_that_fails_takes_nobodys_turn(fixture: Fixture) -> None:
    one, other = fixture.session("a"), fixture.session("b")
    fixture.take(one, 100)
    fixture.take(one, 1, first=100, payload=b"bad")
    fixture.take(one, 1, first=101)
    fixture.take(other, 20)
    fixture.run()
    assert one.refused == [100]
    assert ("a", 101) in fixture.log
    assert ("b", 19) in fixture.log
