"""The line of logins by password."""

from __future__ import annotations

from collections.abc import Callable

from ignis.broker.auth.logins import AT_A_TIME, MOST_WAITING, WAIT_S, Logins
from ignis.errors import TooManyRequestsError


class Timers:
    """Runs what was asked for when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> Timers.One:
        assert delay_s == WAIT_S
        self.calls.append(call)
        return Timers.One(self, call)

    class One:
        def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
            self.timers, self.call = timers, call

        def cancel(self) -> None:
            self.timers.calls.remove(self.call)


class Line:
    def __init__(self) -> None:
        self.timers = Timers()
        self.logins = Logins(self.timers)
        self.begun: list[int] = []
        self.refused: list[int] = []
        self.gone: set[int] = set()

    def enter(self, number: int, address: str = "", name: str = "") -> None:
        def refused(exc: BaseException) -> None:
            assert isinstance(exc, TooManyRequestsError)
            self.refused.append(number)

        self.logins.enter(lambda: self.begun.append(number), refused, lambda: number in self.gone, address, name)


def test_in_order_and_so_many_at_a_time() -> None:
    line = Line()
    for number in range(AT_A_TIME + 3):
        line.enter(number)
    assert line.begun == list(range(AT_A_TIME))
    for ended in range(1, 4):
        line.logins.left()
        assert line.begun == list(range(AT_A_TIME + ended))
    assert line.refused == line.timers.calls == []


def test_over_the_bound_one_is_told_at_once() -> None:
    line = Line()
    for number in range(AT_A_TIME + MOST_WAITING + 2):
        line.enter(number)
    assert line.refused == [AT_A_TIME + MOST_WAITING, AT_A_TIME + MOST_WAITING + 1]
    line.gone.add(AT_A_TIME)
    line.enter(1_000)
    assert len(line.refused) == 2, "the place of one that is gone"
    assert line.logins.waiting == MOST_WAITING


def test_who_waited_too_long_is_told_and_who_is_gone_costs_nothing() -> None:
    line = Line()
    for number in range(AT_A_TIME + 3):
        line.enter(number)
    line.timers.calls.pop(0)()
    assert line.refused == [AT_A_TIME]
    line.gone.add(AT_A_TIME + 1)
    line.logins.left()
    assert line.begun == [*range(AT_A_TIME), AT_A_TIME + 2]
    for _ in range(AT_A_TIME):
        line.logins.left()
    line.enter(1_000)
    assert line.begun[-1] == 1_000, "all places are free again"


def test_addresses_take_turns_and_so_do_names() -> None:
    line = Line()
    for _ in range(AT_A_TIME):
        line.enter(0)
    for number, (address, name) in enumerate(
        [("a", "x"), ("a", "x"), ("a", "x"), ("a", "y"), ("b", "z"), ("c", "z")], 1
    ):
        line.enter(number, address, name)
    for _ in range(6):
        line.logins.left()
    assert line.begun[AT_A_TIME:] == [1, 5, 6, 4, 2, 3]
    assert line.logins.waiting == 0


def test_a_full_line_has_room_for_others() -> None:
    """Whoever fills it loses places to another address, and to another name at his own."""
    line = Line()
    for number in range(AT_A_TIME + MOST_WAITING):
        line.enter(number, "a", "x")
    line.enter(1_000, "a", "x")
    line.enter(1_001, "b", "x")
    line.enter(1_002, "a", "y")
    last = AT_A_TIME + MOST_WAITING - 1
    assert line.refused == [1_000, last, last - 1]
    line.logins.left()
    line.logins.left()
    line.logins.left()
    assert line.begun[AT_A_TIME:] == [AT_A_TIME, 1_001, 1_002]
    line.timers.calls[-1]()
    assert line.logins.waiting == MOST_WAITING - 4


def test_no_address_gets_more_than_it_leaves() -> None:
    line = Line()
    for number in range(AT_A_TIME):
        line.enter(number)
    for number in range(MOST_WAITING):
        line.enter(number, "a" if number % 2 else "b", f"{number}")
    line.enter(1_000, "a", "0")
    assert line.refused == [1_000]
    line.enter(1_001, "c", "0")
    assert len(line.refused) == 2
    assert line.logins.waiting == MOST_WAITING == len(line.timers.calls)
