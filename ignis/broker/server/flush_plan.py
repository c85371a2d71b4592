"""What connections have written in one pass of the event loop goes out together, each connection's in one call of the
system."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol

from ignis.log_format import event_text

__all__ = ["FlushPlan"]

log = logging.getLogger("ignis.broker")


class Writes(Protocol):
    """A connection that has written."""

    peer: str

    def flush_planned(self) -> None: ...


class FlushPlan:
    """The connections of one broker that have something to send. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.in_turn = False
        """What is written now is sent at the end of what is being done."""
        self._loop = loop
        self._written: list[Writes] = []
        self._planned = False

    @property
    def planned(self) -> bool:
        """Whether anything is to be sent at the end of this pass."""
        return bool(self._written)

    def plan(self, session: Writes) -> None:
        """The connection has written. It goes out with `flush_written`, at the end of this pass of the loop at the latest."""
        self._written.append(session)
        if not (self._planned or self.in_turn):
            self._planned = True
            self._loop.call_soon(self._flush_planned_ones)

    def _flush_planned_ones(self) -> None:
        self._planned = False
        self.flush_written()

    @contextlib.contextmanager
    def one_flush(self) -> Iterator[None]:
        """What is written within the block goes out behind it, each connection's in one call of the system."""
        self.in_turn = True
        try:
            yield
        finally:
            self.in_turn = False
            self.flush_written()

    def flush_written(self) -> None:
        """What connections have written goes out, each in one call of the system."""
        written, self._written = self._written, []
        for session in written:
            try:
                session.flush_planned()
            except Exception:
                log.exception(event_text("answer_not_sent", "%s: what was written could not be sent"), session.peer)
