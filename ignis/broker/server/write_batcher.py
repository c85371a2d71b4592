"""Small writes on the event loop itself: what all connections of an application sent and acknowledged in one turn of the
loop becomes one transaction, made at once where the store can do that without waiting. What a consumer waits for is
claimed for it, and sent to it, within that transaction.

A change of threads, there and back, costs more than such a transaction does, and two threads of one interpreter are in
each other's way. So a turn goes like this: the transaction; then claims and deliveries of what it made visible; then, in
the next turn, so that deliveries have left and other requests may join, one flush for all that was written since the last;
then the answers. Nothing is answered before it is as durable as its queue promises.

What cannot be done at once (somebody else holds a lock, a file has to grow) and what is large goes to the store's threads,
as everything does for stores that are not ``quick``. A magazine's loads keep their order: see `PublishBuffer`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ignis.broker.protocol.in_flight import PointerRange, as_pointers
from ignis.broker.server.context import ApplicationContext
from ignis.log_format import event_text
from ignis.storage.write_batch import PendingSync, WriteBatch

__all__ = ["WriteBatcher"]

log = logging.getLogger("ignis.broker")

_MOST_RUNS = 64
"""Of one acknowledgement; each may be a page of the store."""
_MOST_MESSAGES = 4_096
"""Of one acknowledgement: some 100 us, which is less than what two changes of threads cost the broker."""
_SLOW_FLUSH_S = 0.002
_FEW_WAITING = 2
"""Writes for which the loop itself flushes: so few come from one or two connections, which wait for their answers."""
_NEWEST_COUNTS = 0.1
"""Of the running average of how long flushes take: one that is late now and then is no slow disk."""
_LOADS_GO_ON_S = 0.005
_SHARES_S = 0.001
"""So long acknowledgements wait for the flush of a load to share, while loads come at intervals of `_LOADS_GO_ON_S`."""


class _Deleting(NamedTuple):
    write: WriteBatch
    runs: list[PointerRange]
    done: Callable[[int], None]
    failed: Callable[[BaseException], None]
    may_wait: bool


class Loading(Protocol):
    """A load that the event loop makes itself."""

    magazine: str

    @property
    def writes(self) -> list[WriteBatch]: ...
    @property
    def given(self) -> bool:
        """Whether a consumer has the messages already."""

    def check(self) -> bool:
        """Whether the writes were made."""

    def to_thread(self) -> None:
        """It could not be made at once."""

    def finish(self, error: BaseException | None) -> None:
        """It is durable, or ``error``."""


class Loads(Protocol):
    """Where what is to be loaded waits."""

    def try_take(self) -> Loading | None:
        """What waits, for a load by the event loop; None when there is nothing, or a thread has been given it."""


class WriteBatcher:
    """Makes the small writes of one application in one transaction for each turn. Belongs to the event loop."""

    def __init__(self, context: ApplicationContext) -> None:
        self.at_once = 0
        """Writes that were made without a thread."""
        self._magazines = context.magazines
        self._poke = context.poke
        self._said = context.said
        self._loop = context.broker.loop
        self._threads = context.broker.threads
        self._flushes = context.broker.flushes
        self._inboxes: list[Loads] = []
        self._deletes: list[_Deleting] = []
        self._planned = False
        self._unflushed: list[tuple[PendingSync, list[Callable[[BaseException | None], None]]]] = []
        self._flush_planned = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._loaded_at_s = 0.0
        self._flush_s = 0.0
        self._flushing = False
        """A thread is at it."""

    def load(self, inbox: Loads) -> None:
        """At the end of this turn what waits in the inbox is loaded."""
        self._inboxes.append(inbox)
        self._plan()

    def loaded(self, unflushed: PendingSync, finish: Callable[[BaseException | None], None]) -> None:
        """Something was loaded; ``finish`` is called when it is flushed, which happens in the next pass, for all that was."""
        self._unflushed.append((unflushed, [finish]))
        self._plan_flush(True, True)

    def deleted(
        self, unflushed: PendingSync, finish: Callable[[BaseException | None], None], *, may_wait: bool = False
    ) -> None:
        """The same of something that was deleted; ``may_wait`` as for `delete`."""
        self._unflushed.append((unflushed, [finish]))
        self._plan_flush(False, not may_wait)

    def delete(
        self,
        magazine: str,
        runs: list[PointerRange],
        done: Callable[[int], None],
        failed: Callable[[BaseException], None],
        *,
        may_wait: bool = False,
    ) -> None:
        """Retires messages; ``done`` is called with how many were still there when that is durable.

        ``may_wait``: a moment, for a flush to share. Not for a client that has more to do and may be waiting for the answer.
        """
        if (
            len(runs) > _MOST_RUNS
            or not self._magazines.quick
            or sum(stop - start for _, start, stop in runs) > _MOST_MESSAGES
        ):
            self._delete_in_thread(magazine, runs, done, failed)
            return
        self._deletes.append(_Deleting(WriteBatch(magazine, pointers=as_pointers(runs)), runs, done, failed, may_wait))
        self._plan()

    @property
    def idle(self) -> bool:
        return not (self._flushing or self._inboxes or self._deletes or self._unflushed)

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._run)

    # -- the transaction

    def _run(self) -> None:
        self._planned = False
        with self._flushes.one_flush():
            self._run_all()

    def _run_all(self) -> None:
        inboxes, self._inboxes = self._inboxes, []
        deletes, self._deletes = self._deletes, []
        loads: list[Loading] = []
        for inbox in inboxes:
            loading = inbox.try_take()
            if loading is not None:
                loads.append(loading)
        writes = [write for loading in loads for write in loading.writes]
        writes += (one.write for one in deletes)
        unflushed = None
        try:
            if writes:
                unflushed = self._magazines.try_together(writes)
        except Exception as exc:
            self._said.error(
                event_text("write_at_once_failed", "writing at once failed; tried again in a thread"), exc_info=exc
            )
        finishing: list[Callable[[BaseException | None], None]] = []
        for loading in loads:
            self._loaded(loading, finishing)
        for one in deletes:
            self._deleted(one, finishing)
        if unflushed is not None:
            self._unflushed.append((unflushed, finishing))
            of_loads = any(not write.durable for loading in loads for write in loading.writes)
            self._plan_flush(of_loads, of_loads or not all(one.may_wait for one in deletes))

    def _loaded(self, loading: Loading, finishing: list[Callable[[BaseException | None], None]]) -> None:
        if not loading.check():
            loading.to_thread()
            return
        self.at_once += len(loading.writes)
        if not loading.given:
            # Before the flush: who handles a message earlier than its publisher is told takes nothing from anybody.
            self._poke(loading.magazine)
        if all(write.durable for write in loading.writes):
            loading.finish(None)
        else:
            finishing.append(loading.finish)

    def _deleted(self, one: _Deleting, finishing: list[Callable[[BaseException | None], None]]) -> None:
        write = one.write
        if not write.done:
            self._delete_in_thread(write.magazine, one.runs, one.done, one.failed)
            return
        self.at_once += 1

        def finish(error: BaseException | None) -> None:
            error = error or write.error
            if error is None:
                one.done(write.count)
            else:
                one.failed(error)

        if write.durable:
            finish(None)
        else:
            finishing.append(finish)

    def _delete_in_thread(
        self,
        magazine: str,
        runs: list[PointerRange],
        done: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        def delete(runs: list[PointerRange]) -> int:
            return self._magazines.delete(magazine, as_pointers(runs))

        self._threads.call(delete, done, runs, failed)

    # -- the flush

    def _plan_flush(self, of_loads: bool, now: bool) -> None:
        now_s = time.monotonic()
        if of_loads:
            self._loaded_at_s = now_s
        if now and self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
            self._flush_planned = False
        if self._flush_planned:
            return
        self._flush_planned = True
        if now or now_s - self._loaded_at_s > _LOADS_GO_ON_S:
            self._loop.call_soon(self._flush)
        else:
            self._flush_timer = self._loop.call_later(_SHARES_S, self._flush)

    def _flush(self) -> None:
        self._flush_planned, self._flush_timer = False, None
        if self._flushing:
            return  # what waits is flushed behind it, all at once
        unflushed, self._unflushed = self._unflushed, []
        if len(unflushed) == 1 and self._flush_s <= _SLOW_FLUSH_S:
            one, waiting = unflushed[0]
            first: object = waiting[0] if waiting else None
            if first is one:  # it tells its sender by itself: `LonePending`
                self._flush_lone(one, waiting[0])
                return

        def flush(_: None) -> float:
            began_s = time.monotonic()
            # The last one first: it takes the earlier ones along.
            for one, _waiting in reversed(unflushed):
                one.flush()
            return time.monotonic() - began_s

        def flushed(took_s: float) -> None:
            self._flush_s += _NEWEST_COUNTS * (took_s - self._flush_s)
            finish(None)

        def finish(error: BaseException | None) -> None:
            with self._flushes.one_flush():
                for _, waiting in unflushed:
                    for call in waiting:
                        call(error)
            if self._flushing:
                self._flushing = False
                if self._unflushed:
                    self._plan_flush(True, True)

        if self._flush_s > _SLOW_FLUSH_S or len(unflushed) > _FEW_WAITING:
            # A disk that is slow, or busy, must not hold up everybody; and where many come, the loop has other things to do.
            self._flushing = True
            self._threads.flush_call(flush, flushed, finish)
            return
        try:
            took_s = flush(None)
        except Exception as exc:
            finish(exc)
        else:
            flushed(took_s)

    def _flush_lone(self, one: PendingSync, answer: Callable[[BaseException | None], None]) -> None:
        """`_flush` of the ordinary case: who publishes one message at a time waits for this."""
        began_s = time.monotonic()
        try:
            one.flush()
        except Exception as exc:
            answer(exc)
        else:
            self._flush_s += _NEWEST_COUNTS * (time.monotonic() - began_s - self._flush_s)
            answer(None)
