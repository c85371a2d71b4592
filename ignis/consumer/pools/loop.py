"""The loop of worker threads and worker processes: take a chunk, run the handler on each message, report in runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ignis.consumer.handler import Failure, HandlerSpec, Outcome
from ignis.consumer.outcome import timed
from ignis.consumer.pools.base import COMMAND_HEARD, INBOX_CAPACITY, Part, Sink, frames_of
from ignis.consumer.pools.gathered import Gathered, records_of
from ignis.consumer.runner import NOT_CALLED, Runner
from ignis.errors import ClosedError, PeerDiedError
from ignis.native import Channel
from ignis.native.handling import WENT_ON, Progress

__all__ = ["FramesInbox", "Inbox", "WorkLoop"]

_REPORT_S = 0.05
"""A run of done messages is reported at least this often, however long the chunk."""

_LOOK_S = 0.001
"""Between two messages it is looked this often whether the rest is to be given back, however quick the handler."""

_PARTS = 64
"""Most parts that a batch handler's worker looks at before it calls the handler."""


class Inbox(Protocol):
    """Where a worker's messages come from."""

    poll_s: float
    """The longest wait that may pass between two looks at whether to stop."""

    def take(self, most: int, wait_s: float) -> list[Part]:
        """The oldest parts, at most so many; none when there was nothing within the time, or somebody wants to be looked at
        sooner. Raises ClosedError, PeerDiedError when no more will come."""

    def rest(self) -> list[Part]:
        """All that is in it, which the worker will not handle. Waits for nothing."""

    def begin(self) -> bool:
        """Before something that was taken earlier is handled. False: not now, somebody wants to be looked at."""


class Returns(Protocol):
    """What a process has given back, and its parent may not have heard of yet."""

    def heard(self, count: int) -> None:
        """The parent has heard so many reports before it sent what comes."""

    def refused(self, first_id: int, count: int) -> bool:
        """Whether a part is not to be handled, since something that was given back comes before it: then it is given back as
        well."""


class FramesInbox:
    """The receiving side of a channel, in a process of its own.

    Args:
        returns: None = nothing is given back while more is sent.
    """

    poll_s = 0.2

    def __init__(self, channel: Channel, returns: Returns | None = None) -> None:
        self._channel = channel
        self._returns = returns
        self._taken: list[Part] = []
        self._taking = threading.Lock()  # a channel has one receiver at a time

    def record(self, request_id: int) -> bytes | None:
        """Of a message that was taken last."""
        for first, records in self._taken:
            if first <= request_id < first + len(records):
                return records[request_id - first]
        return None

    def rest(self) -> list[Part]:
        return self.take(INBOX_CAPACITY, 0)

    def begin(self) -> bool:
        return True

    def take(self, most: int, wait_s: float) -> list[Part]:
        with self._taking:
            parts = self._receive(most, wait_s)
        self._taken = parts or self._taken
        return parts

    def take_away(self, rest: Callable[[], None]) -> list[Part]:
        """What was sent and not taken, from another thread. Before it takes that it calls ``rest``, while the loop cannot take
        anything; it does nothing of both while the loop takes."""
        if not self._taking.acquire(blocking=False):
            return []
        try:
            rest()
            return self._receive(INBOX_CAPACITY, 0)
        finally:
            self._taking.release()

    def _receive(self, most: int, wait_s: float) -> list[Part]:
        parts: list[Part] = []
        for message in self._channel.recv_many(most, wait_s):
            frames = frames_of(message)
            command, first_id, _ = frames[0]
            if self._returns is not None:
                if command == COMMAND_HEARD:
                    self._returns.heard(first_id)
                    continue
                if self._returns.refused(first_id, len(frames)):
                    continue
            parts.append((first_id, [record for _, _, record in frames]))
        return parts


class WorkLoop:
    """Runs until told to stop.

    Args:
        runner: calls the handler.
        inbox: where chunks come from.
        sink: where outcomes go.
        should_return: true when messages not yet started are to be given back; asked every millisecond. None = `returning`
            says it.
        should_stop: true when the loop is to end once its inbox is empty.
        on_start: called with (first request id, count) before a handler call and with (0, 0) after the last one of a
            chunk; returns False when the worker was given up meanwhile and must say nothing more. Its third argument is how
            long the call before took, in seconds, and of how many messages it was, None = there was none: whoever watches
            counts it, or has counted a call that was given up.
        give_back_s: a chunk that takes longer than this was misjudged: the rest is returned.
    """

    def __init__(
        self,
        runner: Runner,
        spec: HandlerSpec,
        inbox: Inbox,
        sink: Sink,
        *,
        should_return: Callable[[], bool] | None,
        should_stop: Callable[[], bool],
        on_start: Callable[[int, int, tuple[float, int] | None], bool] | None,
        give_back_s: float,
    ) -> None:
        self._runner = runner
        self._inbox = inbox
        self._sink = sink
        self._durations = sink.durations
        self._should_return = should_return
        self._should_stop = should_stop
        self._on_start = on_start
        self._give_back_s = give_back_s
        self.progress = Progress()
        self.progress.open(0, 0)  # it has nothing
        """Where it is, and whether it is to give back: see `returning`."""
        self._at_batch: tuple[int, int] | None = None
        self._in_batch = False
        self._held = Gathered()  # for the next batch
        self._held_lock = threading.Lock()
        self._done_run = (0, 0)  # of batches: first request id and end of what is done and not reported
        self._batches_timed = (
            0  # messages of batches since the last report, how long they took, and when the first began
        )
        self._batches_s = 0.0
        self._batches_from = 0.0
        directly = on_start is None and runner.direct is not None
        self._run_chunk: Callable[[int, Sequence[bytes]], bool] = self._run_directly if directly else self._run_each
        self._batch_size = spec.batch_size
        self._batch_wait_s = spec.batch_wait_s

    @property
    def returning(self) -> bool:
        """Set by another thread of this process: `should_return` at once, without waiting for the next look."""
        return self.progress.returning

    @returning.setter
    def returning(self, returning: bool) -> None:
        self.progress.returning = returning

    @property
    def at(self) -> tuple[int, int]:
        """(first request id, count) of the call in progress or just ended, for whoever gives the worker up."""
        return self._at_batch or (self.progress.at_id, 1)

    @property
    def call(self) -> int | None:
        """See `ignis.consumer.pools.base.Worker.call`."""
        if self._batch_size is not None:
            return self._at_batch[0] if self._at_batch is not None and self._in_batch else None
        return self.progress.next_id

    def take_rest(self) -> list[tuple[int, int]]:
        """Takes from the loop what it has of a chunk, or for its next batch, and has not begun: (first request id, count) each.
        From another thread."""
        if self._batch_size is None:
            first, end = self.progress.cut()
            return [(first, end - first)] if first < end else []
        with self._held_lock:
            return self._held.runs()

    def run(self) -> None:
        """Returns when stopped, given up, or when the other side is gone."""
        try:
            if self._batch_size is None:
                while self._take_chunk():
                    pass
            else:
                self._run_batches(self._batch_size)
        except (ClosedError, PeerDiedError):
            return

    def _take_chunk(self) -> bool:
        stop = self._should_stop()
        parts = self._inbox.take(1, 0 if stop else self._inbox.poll_s)
        if not parts:
            return not stop
        first, records = parts[0]
        return self._run_chunk(first, records)

    def _run_each(self, first: int, records: Sequence[bytes]) -> bool:
        """False when the worker was given up."""
        run, progress, on_start = self._runner.run, self.progress, self._on_start or self._count
        progress.open(first, first + len(records))
        clock = time.monotonic
        began = reported = clock()
        look_at = 0.0
        run_start = first
        now = began
        took: tuple[float, int] | None = None
        for request_id, record in enumerate(records, first):
            if now >= look_at:
                if self._should_return is not None and self._should_return():
                    break
                look_at = now + _LOOK_S
            if progress.returning or not progress.begin(request_id):
                break
            if not on_start(request_id, 1, took):
                return False
            outcome = run(record)
            call_began, now = now, clock()
            took = (now - call_began, 1) if outcome is None or outcome.reason not in NOT_CALLED else None
            due = now - reported > _REPORT_S
            if outcome is None and not due:
                continue
            if not on_start(0, 0, took):
                return False
            took = None
            self._report(run_start, request_id + (outcome is None))
            if outcome is not None:
                self._report_one(request_id, timed(outcome, call_began))
            run_start = request_id + 1
            if due:
                reported = now
                if now - began > self._give_back_s:
                    break
        if not on_start(0, 0, took):
            return False
        self._end_chunk(first, run_start, began)
        return True

    def _count(self, first_id: int, count: int, took: tuple[float, int] | None) -> bool:
        """`on_start` where nobody watches."""
        if took is not None:
            self._durations.add(*took)
        return True

    def _run_directly(self, first: int, records: Sequence[bytes]) -> bool:
        """`_run_each` where nothing stands between worker and handler: what is the same for each message is done in C."""
        direct = self._runner.direct
        assert direct is not None
        clock, progress, should_return = time.monotonic, self.progress, self._should_return
        progress.open(first, first + len(records))
        began = reported = now = clock()
        at = start = 0
        while (
            first + at < progress.end_id and not progress.returning and (should_return is None or not should_return())
        ):
            at, what, value, call_began = direct(records, at, first, progress, now + _LOOK_S, self._durations)
            if what != WENT_ON:
                outcome = self._runner.judge(what, records[at], value)
                value = None
                now = clock()
                if outcome is None or outcome.reason not in NOT_CALLED:
                    self._durations.add(now - call_began)
                if outcome is not None:
                    self._report(first + start, first + at)
                    self._report_one(first + at, timed(outcome, call_began))
                    start = at + 1
                at += 1
            now = clock()
            if now - reported > _REPORT_S:
                self._report(first + start, first + at)
                start, reported = at, now
                if now - began > self._give_back_s:
                    break
        self._end_chunk(first, first + start, began)
        return True

    def _end_chunk(self, first: int, start: int, began: float) -> None:
        """Reports from ``start`` on; what was not begun is given back, unless others have taken it."""
        rest, end = self.progress.cut()
        current = self.progress.next_id
        self._report(start, current)
        if current > first:
            self._sink.on_timing(current - first, time.monotonic() - began)
        if rest < end:
            self._return_all(rest, end - rest)

    def _return_all(self, rest: int, count: int) -> None:
        """Gives back the rest of a chunk, and what lies in the inbox as well, which was claimed after it."""
        with self._sink.giving_back():
            self._sink.on_returned(rest, count)
            for first, records in self._inbox.rest():
                self._sink.on_returned(first, len(records))

    def _report(self, start: int, stop: int) -> None:
        if stop > start:
            self._sink.on_done(start, stop - start)

    def _report_one(self, request_id: int, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._sink.on_failed(request_id, outcome)
        else:
            self._sink.on_done(request_id, 1)

    def _run_batches(self, size: int) -> None:
        clock = time.monotonic
        since = 0.0
        poll_s = self._inbox.poll_s
        while True:
            wait_s = poll_s if not self._held else min(poll_s, max(0.0, since + self._batch_wait_s - clock()))
            if self._should_stop() or (self._held and self.returning):
                wait_s = 0
            for part in self._inbox.take(_PARTS, wait_s):
                with self._held_lock:
                    if not self._held:
                        since = clock()
                    self._held.add(part)
            returning = self.returning or (self._should_return is not None and self._should_return())
            if returning or (self._should_stop() and not self._held):
                for first_id, count in self.take_rest():
                    self._sink.on_returned(first_id, count)
                if self._should_stop():
                    return
            while (
                self._held
                and (due := clock() - since >= self._batch_wait_s or self._held.count >= size)
                and self._inbox.begin()
                and (batch := self._next_batch(size, due=due))
            ):
                since = clock()
                if not self._run_batch(batch):
                    return
                if clock() - self._batches_from > _REPORT_S:
                    self._report_batches()
                if self.returning:
                    break
            self._report_batches()

    def _next_batch(self, size: int, *, due: bool) -> list[Part]:
        """An empty one: there are not enough messages, and it is not due; or there is none."""
        with self._held_lock:
            return self._held.take(size) if due or self._held.count >= size else []

    def _run_batch(self, batch: Sequence[Part]) -> bool:
        began = time.monotonic()
        first = batch[0][0]
        records = records_of(batch)
        count = len(records)
        if self._on_start is not None and not self._on_start(first, count, None):
            return False
        self._at_batch = (first, count)
        self._in_batch = True
        try:
            outcomes = self._runner.run_batch(records)
        finally:
            self._in_batch = False
        took_s = time.monotonic() - began
        called = count if outcomes is None else sum(one is None or one.reason not in NOT_CALLED for one in outcomes)
        if self._on_start is None:
            self._durations.add(took_s, called)
        elif not self._on_start(0, 0, (took_s, called)):
            return False
        if not self._batches_timed:
            self._batches_from = began
        if outcomes is None:
            for start, some in batch:
                self._note_done(start, len(some))
        else:
            self._report_batches()
            self._report_batch(batch, outcomes, began)
        self._batches_timed += count
        self._batches_s += time.monotonic() - began
        return True

    def _note_done(self, first: int, count: int) -> None:
        """To be reported with the batch before, if that was of the same chunk."""
        start, stop = self._done_run
        if first != stop:
            self._report(start, stop)
            start = first
        self._done_run = start, first + count

    def _report_batches(self) -> None:
        """Reports what is done, and how long it took."""
        (start, stop), self._done_run = self._done_run, (0, 0)
        self._report(start, stop)
        if self._batches_timed:
            count, self._batches_timed = self._batches_timed, 0
            took_s, self._batches_s = self._batches_s, 0.0
            self._sink.on_timing(count, took_s)

    def _report_batch(self, batch: Sequence[Part], outcomes: Sequence[Outcome], began: float) -> None:
        """Runs of what is done, and each of the others by itself."""
        at = 0
        for first, records in batch:
            start = first
            for request_id, outcome in enumerate(outcomes[at : at + len(records)], first):
                if outcome is not None:
                    self._report(start, request_id)
                    self._report_one(request_id, timed(outcome, began))
                    start = request_id + 1
            self._report(start, first + len(records))
            at += len(records)
