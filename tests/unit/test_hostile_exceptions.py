"""Exceptions whose classes raise when they are asked what they are: a message that fails holds up no other."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from ignis.retries import is_kind
from tests.support import eventually


class _Asked(type):
    def __instancecheck__(cls, one: object) -> bool:
        raise RuntimeError("__instancecheck__")

    def __subclasscheck__(cls, one: type) -> bool:
        raise RuntimeError("__subclasscheck__")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("__eq__")

    __hash__ = type.__hash__


class Asked(Exception, metaclass=_Asked):
    """Says nothing about what it is."""


class Faceless(Exception):
    """As above, by its objects."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("__class__")


POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "ignore": {"ignore": (Asked,)},
    "on": {"retry": ignis.Retry(attempts=2, base=0, on=(Asked, Faceless))},
    "give_up_on": {"retry": ignis.Retry(attempts=2, base=0, give_up_on=(Asked, Faceless))},
    "mapping": {"retry": {Asked: ignis.Retry(attempts=2, base=0), Exception: ignis.Retry(attempts=2, base=0)}},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["thread", "coroutine"])
@pytest.mark.parametrize("raised", [Asked, Faceless])
def test_it_goes_its_way_and_the_others_theirs(
    policy: str, form: str, raised: type[Exception], app: ignis.Ignis
) -> None:
    calls: list[list[int]] = []
    queue = app.queue("q", list[int], shards=1)
    options = POLICIES[policy]

    def judged(body: list[int]) -> None:
        calls.append(body)
        if body[0] == 1:
            raise raised("x")
        if body[0] == 2:
            raise ValueError("x")

    if form == "thread":
        queue.handler(**options)(judged)
    else:

        async def handler(body: list[int]) -> None:
            judged(body)

        queue.handler(**options)(handler)
    for number in (1, 2, 3):
        queue.publish([number])
    app.start()
    # The interpreter asks such a class too, and may make a RuntimeError of it, which nobody ignores.
    aside = (1, 2) if policy == "ignore" else (2,)
    eventually(lambda: queue.sideline.pending() in aside and queue.main.in_flight() == queue.main.pending() == 0)
    assert app.ready
    assert [3] in calls
    assert len(calls) <= 6  # no more than the attempts


def test_as_an_except_clause_decides_it() -> None:
    assert is_kind(Asked, Asked)
    assert is_kind(Asked, Exception)
    assert is_kind(Faceless, ValueError, Exception)
    assert not is_kind(Asked, ValueError, Faceless)
    assert not is_kind(ValueError)
