"""Very many pulls that wait on one queue: none of them is looked at again for each of the others."""

from __future__ import annotations

from typing import Any

import pytest

from ignis.broker.server.dispatcher import Dispatcher
from ignis.broker.server.subscription import Packed, Subscription
from ignis.native.wire import ClaimsFrame

PULLS = 500


class Watch:
    changed: Any = None

    def ensure(self) -> None:
        pass


class Client:
    """One that reads; says what was answered."""

    takes_deliveries = True
    shares_with = "user ann"

    def __init__(self) -> None:
        self.answered: list[int] = []

    def answer(self, command: int, request_id: int, payload: bytes) -> None:
        self.answered.append(request_id)


class Application:
    """Of a store that is quick and empty: all that is asked of its context here."""

    quick = True
    draining = False
    loop = threads = None
    watched = forgotten = 0

    def __init__(self) -> None:
        self.broker = self.state = self.magazines = self.watches = self.facts = self

    def watch(self, magazine: str, holder: str) -> Watch:
        self.watched += 1
        return Watch()

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        return 1

    def unwatch(self, magazine: str) -> None:
        self.watched = 0


class Counted(Subscription):
    """Counts how often it is asked whether its time is over, or for its room."""

    __slots__ = ()
    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("due", "tried", "room"):
            Counted.looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("known", [False, True], ids=["a claim looks", "known to be empty"])
def test_nothing_is_done_for_each_of_the_others(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    application, client = Application(), Client()
    pump = Dispatcher(application, "q", None, None)  # type: ignore[arg-type]
    pump._by_thread = False
    if known:
        pump._empty_at = (0, 1)
    monkeypatch.setattr(pump, "_fire_at_once", lambda consumer, limit: Packed(ClaimsFrame(), b"", [], 0, False))
    monkeypatch.setattr(Counted, "looks", 0)
    pulls = [Counted(client, number, "q", 1, 1, True, lambda *_: None) for number in range(PULLS)]  # type: ignore[arg-type]
    for one in pulls:
        pump.add(one)
    assert pump.consumers == PULLS and application.watched
    assert all(one.tried for one in pulls)
    for one in pulls[:-1]:
        pump.time_over(one)
    assert client.answered == list(range(PULLS - 1))
    assert pump.consumers == 1 and application.watched
    pump.remove(pulls[-1])
    assert pump.idle and not application.watched
    assert Counted.looks < 20 * PULLS
