"""Workers that are threads of this process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ignis.consumer.handler import Failure, HandlerSpec
from ignis.consumer.outcome import overrun_failure
from ignis.consumer.pools.base import Chunk, Pool, Sink, Worker
from ignis.consumer.pools.leading import Feeder, Tray
from ignis.consumer.pools.loop import WorkLoop
from ignis.consumer.runner import Runner
from ignis.log_format import event_text
from ignis.message import REASON_CRASH
from ignis.native.histogram import Histogram
from ignis.stacks import start_thread
from ignis.upkeep import Turns

__all__ = ["ThreadPool"]

log = logging.getLogger("ignis.workers")


class _GivenUpError(Exception):
    """Ends a thread whose messages were taken from it."""


class _Reports:
    """What the thread says, for as long as it is listened to."""

    def __init__(self, worker: _ThreadWorker) -> None:
        self._worker = worker

    def on_done(self, first_id: int, count: int) -> None:
        with self._worker.listening():
            self._worker.on_done(first_id, count)

    def on_failed(self, request_id: int, failure: Failure) -> None:
        with self._worker.listening():
            self._worker.on_failed(request_id, failure)

    def giving_back(self) -> contextlib.AbstractContextManager[Any]:
        return self._worker.giving_back()

    def on_returned(self, first_id: int, count: int) -> None:
        with self.giving_back(), self._worker.listening():  # in that order, as who hands out has it
            self._worker.on_returned(first_id, count)

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        self._worker.on_timing(messages, elapsed_s)

    @property
    def durations(self) -> Histogram:
        return self._worker.durations


class _ThreadWorker(Worker):
    """One thread. A handler that overruns its time cannot be stopped from outside: the thread is given up (its message
    goes to the sideline, what it had not started to others) and another takes its place.

    ``_lock`` decides between giving the thread up on one side, and its reports and what is handed to it on the other:
    whichever comes first holds.
    """

    def __init__(self, pool: ThreadPool, name: str) -> None:
        super().__init__(pool.sink)
        self.name = name
        self.stopping = False
        self.given_up = False
        self.ended = False
        self._lock = threading.Lock()
        self._running: tuple[int, int, float] | None = None  # first request id, count, started
        self.tray = Tray(self, pool.feeder, pool.turns)
        self._pool = pool
        spec = pool.spec
        self._loop = WorkLoop(
            pool.make_runner(),
            spec,
            self.tray,
            _Reports(self),
            should_return=None,
            should_stop=lambda: self.stopping,
            on_start=self._on_start if spec.timeout_s is not None else None,
            give_back_s=pool.give_back_s,
        )
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)  # the pool starts it

    @property
    def going(self) -> bool:
        return self.stopping or self.given_up

    @property
    def returning(self) -> bool:
        return self.going or self._loop.returning

    def give_back(self, *, stop: bool = False) -> None:
        """What it has not started is to be given back; with ``stop`` the thread ends after that."""
        self.stopping = self.stopping or stop
        self._loop.returning = True
        self.tray.ring()

    def _run(self) -> None:
        try:
            self._loop.run()
        except _GivenUpError:
            pass
        except Exception:
            log.exception(event_text("worker_broken", "worker thread %s ended"), threading.current_thread().name)
        finally:
            self.ended = True
            self.tray.end()
            if not self.going or self._pool.to_be_checked:  # somebody may be added in its place
                self._pool.on_ended()

    @property
    def call(self) -> int | None:
        return self._loop.call

    def hand_over(self) -> None:
        with self._lock:  # a report of the thread comes before, or after
            if self.given_up:
                return
            taken = self._loop.take_rest()
            taken += [(first_id, len(records)) for first_id, records in self.tray.take_away()]
            for first_id, count in taken:
                self._disown(first_id, count)
        for first_id, count in taken:
            self._sink.on_returned(first_id, count)

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        part = chunk.part(start, stop)
        with self._lock:
            if self.returning:
                return False
            self._owe(chunk, start, stop)
            try:
                self.tray.put(part)
            except MemoryError:
                self._owed.pop()
                self.submitted -= stop - start
                raise
            return True

    def take_own(self, chunk: Chunk) -> bool:
        # What `submit` does, in one function: a message that waits for it pays for each that is called.
        first_id = chunk.first_id
        with self._lock:
            if self.stopping or self.given_up or self._loop.progress.returning:
                return False
            part, submitted = (first_id, chunk.records), self.submitted + 1
            self._owed.append([first_id, first_id + 1])
            try:
                self.tray.parts.append(part)
            except MemoryError:
                self._owed.pop()
                raise
            self.submitted = submitted
            return True

    def running(self) -> tuple[int, int, float | None] | None:
        first_id, count = self._loop.at
        running = self._running
        if not self.owes(first_id):
            return None
        return first_id, count, time.monotonic() - running[2] if running is not None else None

    # -- being given up

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Held while the thread reports. Raises _GivenUpError, which ends it, when it was given up."""
        with self._lock:
            if self.given_up:
                raise _GivenUpError
            yield

    def _on_start(self, first_id: int, count: int, took: tuple[float, int] | None) -> bool:
        with self._lock:
            self._running = (first_id, count, time.monotonic()) if count else None
            if took is not None and not self.given_up:
                self.durations.add(*took)
            return not self.given_up

    def give_up_overdue(self, now_s: float, timeout_s: float) -> tuple[int, int] | None:
        """Gives the worker up when its call has run for too long, and counts how long; (first request id, count) of that call,
        or None."""
        with self._lock:
            if self.given_up or self._running is None or now_s - self._running[2] <= timeout_s:
                return None
            self.given_up = True
            first_id, count, began_s = self._running
            self.durations.add(now_s - began_s, count)
        self.tray.give_up()
        return first_id, count

    def give_up(self, failure: Failure | None) -> None:
        """Takes everything from the worker: what it is at goes where `settle_lost` says, the rest back."""
        with self._lock:
            if self.given_up:
                return
            self.given_up = True
            first_id, count = self._loop.at
        self.tray.give_up()
        self.settle_lost(first_id, count, failure)


class ThreadPool(Pool):
    """A `Pool` of threads. ``lost_threads`` counts threads that were given up and still run."""

    def __init__(
        self,
        spec: HandlerSpec,
        sink: Sink,
        make_runner: Callable[[], Runner],
        *,
        give_back_s: float,
        feeder: Feeder | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.feeder = feeder
        self.turns = turns
        self.spec = spec
        self.sink = sink
        self.make_runner = make_runner
        self.give_back_s = give_back_s
        self._workers: list[_ThreadWorker] = []
        self._leaving: list[_ThreadWorker] = []
        self._lost: list[_ThreadWorker] = []
        self._target = 0
        self._made = 0
        self._said_short = False

    @property
    def workers(self) -> Sequence[Worker]:
        return self._workers

    @property
    def holders(self) -> Sequence[_ThreadWorker]:
        return [*self._workers, *self._leaving]

    @property
    def lost_threads(self) -> int:
        return sum(worker.thread.is_alive() for worker in self._lost)

    @property
    def to_be_checked(self) -> bool:
        return bool(self._lost or self._leaving) or len(self._workers) < self._target

    def runs_here(self) -> bool:
        here = threading.get_ident()  # of a thread that was given up nobody waits for the end
        return any(worker.thread.ident == here and not worker.given_up for worker in [*self._workers, *self._leaving])

    def resize(self, count: int) -> None:
        self._target = count
        workers = list(self._workers)
        fresh = [self._make() for _ in range(count - len(workers) - self._going())]
        workers += fresh
        for worker in workers[count:]:
            worker.give_back(stop=True)
            self._leaving.append(worker)
        self._workers = workers[:count]
        self._start(fresh)

    def _going(self) -> int:
        """Those that end the message they are at. Each counts until then, so that no more run than there are to be: `check` makes
        the one in its place."""
        return sum(not worker.given_up and worker.thread.is_alive() for worker in self._leaving)

    def _make(self) -> _ThreadWorker:
        self._made += 1
        return _ThreadWorker(self, f"ignis-{self.spec.queue}-{self._made}")

    def _start(self, fresh: Sequence[_ThreadWorker]) -> None:
        """Once they are among `workers`: a thread may claim at once, and what for is decided by who is there."""
        for worker in fresh:
            start_thread(worker.thread)

    def check(self, now_s: float) -> None:
        self._lost = [worker for worker in self._lost if worker.thread.is_alive()]
        if self.spec.timeout_s is not None:
            for worker in [*self._workers, *self._leaving]:
                self._check_time(worker, now_s, self.spec.timeout_s)
        for worker in [*self._workers, *self._leaving]:
            if worker.ended or not worker.thread.is_alive():
                # It was told to, or failed in a way that no handler can cause: what it still owes goes to others.
                if self.feeder is not None:
                    self.feeder.leading.gone(worker.tray)
                worker.give_up(Failure(REASON_CRASH, "worker thread ended"))
        self._leaving = [worker for worker in self._leaving if not worker.given_up]
        workers = [worker for worker in self._workers if not worker.given_up]
        # Threads that hang for ever must not multiply without bound.
        fresh = []
        while len(workers) + self._going() < self._target and len(self._lost) <= self.spec.max_consumers:
            fresh.append(self._make())
            workers.append(fresh[-1])
        self._workers = workers
        self._start(fresh)
        self._say_short()

    @property
    def used_up(self) -> bool:
        return not self._workers and self._target > 0 and self._at_most

    @property
    def _at_most(self) -> bool:
        """Whether so many threads hang that no other takes the place of one."""
        return len(self._lost) > self.spec.max_consumers

    def _say_short(self) -> None:
        """Once, until some of the threads have returned."""
        short = self._at_most and len(self._workers) < self._target
        if short and not self._said_short:
            log.error(
                event_text(
                    "worker_threads_used_up",
                    "%d threads of handler %s of %s overran timeout_s and still run, more than consumer.max_consumers (%d): "
                    "none takes their place, and %d worker(s) of %d are left until some return; a handler that may hang for "
                    'ever needs pool="process", whose workers can be killed'),
                len(self._lost), self.spec.name, self.spec.queue, self.spec.max_consumers, len(self._workers),
                self._target,
            )  # fmt: skip
        self._said_short = short

    def _check_time(self, worker: _ThreadWorker, now_s: float, timeout_s: float) -> None:
        overrun = worker.give_up_overdue(now_s, timeout_s)
        if overrun is None:
            return
        failure = overrun_failure(timeout_s)
        said, again = f"{failure.error} (its thread is given up)", self.overrun_follows(overrun[0])
        self.spec.log.failed(failure.reason, said, self.name_of(*overrun), again=again)
        self._lost.append(worker)
        worker.settle_lost(*overrun, failure)

    def begin_drain(self) -> None:
        for worker in self.holders:
            worker.give_back()

    def drain(self, timeout: float) -> bool:
        self._target = 0
        self.begin_drain()
        everyone = self.holders
        deadline = time.monotonic() + timeout
        while any(worker.outstanding for worker in everyone):
            if time.monotonic() >= deadline:
                self.unended = [call for worker in everyone for call in worker.calls()]
                for worker in everyone:
                    if worker.outstanding:
                        worker.give_up(None)
                        self._lost.append(worker)
                return False
            self.check(time.monotonic())
            time.sleep(0.002)
        return True

    def close(self, timeout: float) -> None:
        self._target = 0
        deadline = time.monotonic() + timeout
        everyone = [worker for worker in [*self._workers, *self._leaving] if not worker.given_up]
        for worker in everyone:
            worker.give_back(stop=True)
        for worker in everyone:
            if worker.thread.ident is None:
                continue  # there were no means to start it
            worker.thread.join(max(0.0, deadline - time.monotonic()))
            if worker.thread.is_alive():
                log.warning(
                    event_text("worker_thread_stuck", "worker thread %s did not end in time"), worker.thread.name
                )
        self._workers, self._leaving = [], []
