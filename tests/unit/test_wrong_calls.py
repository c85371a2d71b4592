"""Calls that left with an error that is not ours, or with one as long as the value that was wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis import Message
from ignis.errors import ConfigError, IgnisError, InvalidMessageError
from ignis.storage import clock, open_store

BIG = "x" * 200_000


class Name(str):
    __slots__ = ()


def test_wrong_arguments_are_typed_errors(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("q", int)
    queue.publish(1)
    queue.handler(print)
    fired: Any
    for fired in (1.0, [1], None):
        with pytest.raises(ConfigError):
            queue.main.renew(fired)
    count: Any
    for count in (math.nan, math.inf, -1, True, "x", None):
        with pytest.raises(ConfigError):
            queue.set_local_consumers(count)
    for seconds in (math.nan, -1, True, "x"):
        with pytest.raises(ConfigError):
            queue.stop(seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="capacity = 3 is not a power of two"):
        queue.publisher(capacity=3)
    with pytest.raises(InvalidMessageError):
        Message(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessageError):
        Message.from_bytes("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limit"):
        memory_app.store.arrays.peek("a", "b", 1 << 63)


def test_a_name_of_a_class_of_its_own_is_a_name(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue(Name("q"), int)
    queue.publish(1)
    assert memory_app.queue("q") is queue
    assert type(memory_app.magazine(Name("q")).name) is type(queue.name) is str


CALLS: dict[str, Callable[[ignis.Ignis], Any]] = {
    "durability": lambda app: app.queue("d", int, durability=BIG),
    "codec": lambda app: app.queue("d", int, codec=BIG),
    "codec of a magazine": lambda app: app.magazine("m", codec=BIG),
    "setting": lambda app: app.queue("d", int, **{BIG: 1}),
    "pool": lambda app: app.queue("d", int).handler(print, pool=BIG),
    "url": lambda app: ignis.Ignis(BIG).store,
    "scheme": lambda app: ignis.Ignis(BIG + "://x").store,
    "option": lambda app: ignis.Ignis("memory://", store={BIG: 1}).store,
    "option of a file": lambda app: ignis.Ignis("embedded:///tmp/x", store={BIG: 1}).store,
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_quote_no_long_values(memory_app: ignis.Ignis, name: str) -> None:
    with pytest.raises(IgnisError) as caught:
        CALLS[name](memory_app)
    assert len(str(caught.value)) < 2_000


def test_a_clock_before_1970_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: -315_619_200_000)
    with pytest.raises(ConfigError, match="before 1970"):
        open_store(f"embedded://{tmp_path}/s")
    monkeypatch.undo()
    with open_store(f"embedded://{tmp_path}/s") as store:
        store.magazines.declare("m", 1)
    with pytest.raises(ConfigError, match="before 1970"):
        clock.StoreClock(-315_619_200_000, lambda: 0).expiry_ms(5)


def test_run_does_not_block_an_event_loop(memory_app: ignis.Ignis) -> None:
    """Nothing said why everything else of the program stood still."""
    memory_app.queue("jobs").handler(lambda message: None)

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"app.run\(\) was called in a running event loop .*async with app"):
            memory_app.run()
        assert not memory_app.running
        async with memory_app as app:
            await asyncio.to_thread(app.start)
            assert app.ready
        assert not memory_app.running

    asyncio.run(main())
