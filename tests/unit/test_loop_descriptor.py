"""The descriptor that is readable when an event loop has something to do."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from ignis.broker.server.loop_descriptor import loop_descriptor
from ignis.native.lone import LoopSpin


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_is_readable_when_a_descriptor_of_the_loop_is(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Of a loop that names it no more the broker would sleep at once, and nobody would notice."""
    loop = make()
    end, other = os.pipe()
    try:
        loop.add_reader(end, loop.stop)
        loop.call_soon(loop.stop)
        loop.run_forever()  # a loop tells the kernel when it next sleeps
        poller = select.poll()
        poller.register(loop_descriptor(loop), select.POLLIN)
        assert not poller.poll(0)
        os.write(other, b"x")
        assert poller.poll(0)
    finally:
        loop.close()
        os.close(end)
        os.close(other)


@pytest.mark.parametrize("loop", [object(), type("Odd", (), {"_selector": 1, "_get_backend_id": lambda self: None})()])
def test_a_loop_that_does_not_say_has_none(loop: Any) -> None:
    assert loop_descriptor(loop) == -1


@pytest.mark.parametrize("spin_us", [-1, 10_001, 1 << 70])
def test_how_long_it_may_look(spin_us: int) -> None:
    with pytest.raises(ValueError, match="spin_us"):
        LoopSpin(-1, spin_us)
