"""How long a coroutine's call has run, and its end when its time is up.

A handler that blocks its event loop stops the clocks of the calls beside it: they could not run meanwhile, begun or not. Its own
clock goes on. What counts as blocking is a step, from one ``await`` to the next, of at least `BLOCKED_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterator
from types import coroutine
from typing import Any, NamedTuple

from ignis.consumer.forked import end_child
from ignis.process_hooks import FORKS

__all__ = ["BLOCKED_S", "CallClock", "OverrunError", "within"]

BLOCKED_S = 0.05


class OverrunError(Exception):
    """The call was cancelled because its time was up."""


class CallClock:
    """What one call, with all its attempts, has used of its time. Made on the event loop, and goes by its clock.

    Args:
        blocked: seconds for which calls have blocked the event loop: one list of one number, which all calls of the loop share.
        timeout_s: seconds that it may take.
    """

    __slots__ = ("_began_s", "_blocked", "_others_s", "_timeout_s", "now_s")

    def __init__(self, blocked: list[float], timeout_s: float) -> None:
        self._blocked = blocked
        self._timeout_s = timeout_s
        self._others_s = blocked[0]  # not this call's: what there was before, and its own
        self.now_s = asyncio.get_running_loop().time
        self._began_s = self.now_s()

    def left_s(self) -> float:
        """Seconds; 0 or less = the time is up."""
        return self._timeout_s - (self.now_s() - self._began_s) + (self._blocked[0] - self._others_s)

    def note_step(self, began_s: float) -> None:
        """A step of this call, which began at this time of the event loop, has ended."""
        took_s = self.now_s() - began_s
        if took_s >= BLOCKED_S:
            self._blocked[0] += took_s
            self._others_s += took_s


async def within(answer: Awaitable[Any], clock: CallClock | None, queue: str) -> Any:
    """What it returns or raises. Cancels it when the time is up, and raises OverrunError; a call that returns all the same,
    such as one that nothing could cancel because it blocked, counts as what it returned.
    ``queue``: whose handler it is, for what is said where a child of ``fork`` comes back from it."""
    if clock is None:
        made = await _contained(answer, queue)
    else:
        made = await _cancelled_in_time(answer, clock, queue)
    if type(made) is _Contained:
        raise made.exc
    return made


async def _cancelled_in_time(answer: Awaitable[Any], clock: CallClock, queue: str) -> Any:
    loop = asyncio.get_running_loop()
    task = loop.create_task(_contained(_timed(answer, clock), queue))
    overran = False
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal overran, timer
        left_s = clock.left_s()
        if left_s > 0:
            timer = loop.call_later(left_s, look)
        elif not task.done():
            overran = True
            task.cancel()

    # Not at once where no time is left: what blocked from its first step to its last has returned by the next turn.
    timer = loop.call_later(max(0.0, clock.left_s()), look)
    try:
        return await task
    except asyncio.CancelledError:
        if overran and task.cancelled():
            raise OverrunError from None
        raise
    finally:
        timer.cancel()


@coroutine
def _timed(answer: Awaitable[Any], clock: CallClock) -> Generator[Any, Any, Any]:
    """Awaits it, and notes each of its steps."""
    steps: Iterator[Any] = answer.__await__()
    sent: Any = None
    raised: BaseException | None = None
    while True:
        began_s = clock.now_s()
        try:
            if raised is not None:
                waits_for = steps.throw(raised)  # type: ignore[attr-defined]
            elif sent is None:
                waits_for = next(steps)
            else:
                waits_for = steps.send(sent)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        finally:
            clock.note_step(began_s)
            raised = None
        try:
            sent = yield waits_for
        except GeneratorExit:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
            raise
        except BaseException as exc:
            raised = exc


class _Contained(NamedTuple):
    """What a task must not end with."""

    exc: BaseException


async def _contained(answer: Awaitable[Any], queue: str) -> Any:
    """A task that ends with SystemExit ends its event loop as well. A child of ``fork`` ends with the coroutine."""
    forks = FORKS[0]
    try:
        result = await answer
    except BaseException as exc:
        if FORKS[0] != forks:
            end_child(queue, exc)
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            return _Contained(exc)
        raise
    if FORKS[0] != forks:
        end_child(queue, None)
    return result
