"""Long work on the event loop, a piece of it in each pass.

A request may name a million pointers that are no neighbours. All of them at once would keep every other connection waiting for
seconds; so such a list is taken apart, `MOST_RUNS` runs in a pass, whoever it belongs to and however many such lists there
are. Everything here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ignis.broker.server.threads import BrokerThreads
from ignis.log_format import event_text

__all__ = ["Steps", "Work"]

log = logging.getLogger("ignis.broker")

Work = Generator[Callable[[], Any] | None, Any, None]
"""Each ``yield`` ends a piece. A yielded call is made in a thread of the store's, and what it returns or raises comes back."""


class Steps:
    """Does the long work of a broker on its event loop: one piece in a pass, of each work in turn.

    Args:
        loop: the event loop.
        threads: of the broker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: BrokerThreads) -> None:
        self.passes = 0
        """Pieces that were done."""
        self._loop = loop
        self._threads = threads
        self._due: deque[tuple[Work, Callable[[], None], Any]] = deque()
        self._open = 0
        self._planned = False

    @property
    def idle(self) -> bool:
        return not self._open

    def begin(self, work: Work, done: Callable[[], None]) -> None:
        """Does the work, from the next pass on, and calls ``done`` behind it. The work itself must not raise: what it raises is
        logged."""
        self._open += 1
        self._put(work, done, None)

    def _put(self, work: Work, done: Callable[[], None], value: Any) -> None:
        self._due.append((work, done, value))
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._planned = False
        work, done, value = self._due.popleft()
        self.passes += 1
        try:
            call = work.throw(value) if isinstance(value, BaseException) else work.send(value)
        except StopIteration:
            self._end(done)
        except Exception:
            log.exception(event_text("pieces_failed", "work that is done in pieces failed"))
            self._end(done)
        else:
            if call is None:
                self._put(work, done, None)
            else:
                self._call(work, done, call)
        if self._due and not self._planned:
            self._planned = True
            self._loop.call_soon(self._pass)

    def _call(self, work: Work, done: Callable[[], None], call: Callable[[], Any]) -> None:
        def made(value: Any) -> None:
            self._put(work, done, value)

        self._threads.call(lambda _: call(), made, None, made)

    def _end(self, done: Callable[[], None]) -> None:
        self._open -= 1
        done()
