"""How long a coroutine's call has run, and its end when its time is up.

A handler that blocks its event loop stops the clocks of the calls beside it: they could not run meanwhile, begun or not. Its own
clock goes on. What counts as blocking is a step, from one ``await`` to the next, of at least `BLOCKED_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from types import coroutine
from typing import Any

from ignis.consumer.forked import end_child
from ignis.process_hooks import FORKS
from ignis.retries import is_kind

__all__ = ["BLOCKED_S", "CallClock", "OverrunError", "Overruns", "stepped", "within"]

BLOCKED_S = 0.05
BEGINNING: Any = object()
"""In the place of what a coroutine waits for: it has not begun."""


class OverrunError(Exception):
    """The call was cancelled because its time was up."""


class CallClock:
    """What one call, with all its attempts, has used of its time. Made by `Overruns.clock`.

    Args:
        overruns: of all calls of the loop.
        began_s: when it began, by the loop's clock.
    """

    __slots__ = ("_others_s", "_overruns", "began_s", "now_s", "overran", "task")

    def __init__(self, overruns: Overruns, began_s: float) -> None:
        self._overruns = overruns
        self._others_s = overruns.blocked_s  # not this call's: what there was before, and its own
        self.began_s = began_s
        self.now_s = overruns.now_s
        self.overran = False
        """Whether it was cancelled because its time was up."""
        self.task: asyncio.Task[Any] | None = None
        """What is cancelled when its time is up."""

    def left_s(self) -> float:
        """Seconds; 0 or less = the time is up."""
        overruns = self._overruns
        return overruns.timeout_s - (self.now_s() - self.began_s) + (overruns.blocked_s - self._others_s)

    def note_step(self, began_s: float) -> None:
        """A step of this call, which began at this time of the event loop, has ended."""
        took_s = self.now_s() - began_s
        if took_s >= BLOCKED_S:
            self._overruns.note_blocked(took_s)
            self._others_s += took_s


class Overruns:
    """Cancels the calls of one event loop whose time is up. All may take as long, so one timer does for all of them: that of the
    call that began first.

    Args:
        timeout_s: seconds that each may take.

    Attributes:
        blocked_s: seconds for which calls have blocked the event loop.
        now_s: the loop's clock.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.blocked_s = 0.0
        self.now_s: Callable[[], float] = time.monotonic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clocks: dict[
            CallClock, None
        ] = {}  # in the order in which their time is up, but for what blocked the loop
        self._timer: asyncio.TimerHandle | None = None

    def clock(self, ago_s: float = 0.0) -> CallClock:
        """That of a call that began so many seconds ago. Called on the event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None
            self.now_s = loop.time
            self._clocks.clear()
        return CallClock(self, self.now_s() - ago_s)

    def add(self, clock: CallClock) -> None:
        """From now on that call is cancelled when its time is up. Called in its task."""
        again, clock.overran = clock.task is not None, False
        clock.task = asyncio.current_task()
        self._clocks[clock] = None
        if again or self._timer is None:
            # Not at once where no time is left: what blocked from its first step to its last has returned by the next turn.
            self._look_in(clock.left_s())

    def remove(self, clock: CallClock) -> None:
        """It has come back."""
        self._clocks.pop(clock, None)

    def note_blocked(self, took_s: float) -> None:
        """A call has blocked the loop for so long; its own time went on meanwhile."""
        self.blocked_s += took_s
        if self._clocks:
            self._look_in(0.0)

    def _look_in(self, delay_s: float) -> None:
        """At the latest; a timer that rings sooner looks anew."""
        assert self._loop is not None
        due_s = self.now_s() + max(0.0, delay_s)
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        next_s = None
        for clock in list(self._clocks):
            left_s = clock.left_s()
            if left_s <= 0:
                del self._clocks[clock]
                if clock.task is not None:
                    clock.overran = True
                    clock.task.cancel()
            elif next_s is None or left_s < next_s:
                next_s = left_s
        if next_s is not None:
            self._look_in(next_s)


async def within(answer: Awaitable[Any], clock: CallClock | None, overruns: Overruns | None, queue: str) -> Any:
    """What it returns or raises. Its task is cancelled when the time is up, and what ends for that raises OverrunError; a call
    that returns all the same, such as one that nothing could cancel because it blocked, counts as what it returned.
    ``queue``: whose handler it is, for what is said where a child of ``fork`` comes back from it."""
    forks = FORKS[0]
    try:
        if clock is None or overruns is None:
            result = await answer
        else:
            overruns.add(clock)
            try:
                result = await answer
            finally:
                overruns.remove(clock)
    except BaseException as exc:
        if FORKS[0] != forks:
            end_child(queue, exc)
        if clock is not None and clock.overran and is_kind(type(exc), asyncio.CancelledError):
            raise OverrunError from None
        raise
    if FORKS[0] != forks:
        end_child(queue, None)
    return result


@coroutine
def stepped(
    steps: Any, context: Context | None, clock: CallClock | None, waits_for: Any = BEGINNING
) -> Generator[Any, Any, Any]:
    """Awaits what has been begun, or is to be.

    Args:
        steps: a coroutine, or an iterator of ``__await__``.
        context: in which each step is run; None = that of the task.
        clock: is told of each step.
        waits_for: what it waits for; left out = it has not begun.
    """
    send: Callable[[Any], Any] = getattr(steps, "send", None) or (lambda sent: next(steps))
    step, value = send, None
    while True:
        if waits_for is not BEGINNING:
            try:
                step, value = send, (yield waits_for)
            except GeneratorExit:
                if (close := getattr(steps, "close", None)) is not None:
                    close()
                raise
            except BaseException as exc:
                step, value = steps.throw, exc
        began_s = 0.0 if clock is None else clock.now_s()
        try:
            waits_for = step(value) if context is None else context.run(step, value)
        except StopIteration as end:
            return end.value
        finally:
            value = None
            if clock is not None:
                clock.note_step(began_s)
