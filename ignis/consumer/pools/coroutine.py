"""Workers that are coroutines on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ignis.consumer.forked import end_child
from ignis.consumer.handler import Failure, HandlerSpec, Outcome, failure_of
from ignis.consumer.outcome import timed
from ignis.consumer.pools.base import Chunk, Part, Pool, Sink, Worker, largest_part, runs_of_ids
from ignis.consumer.runner import NOT_CALLED, Runner
from ignis.errors import MessageTooLargeError, WorkerStartError
from ignis.log_format import event_text
from ignis.process_hooks import on_fork
from ignis.stacks import start_thread

__all__ = ["CoroutinePool", "LoopFeeder"]

log = logging.getLogger("ignis.workers")

_CANCEL_S = 1.0
"""How long cancelled coroutines have to clean up after themselves."""


_running: dict[int, _LoopWorker] = {}
"""By the thread that runs the loop."""


def _in_child() -> None:
    """A coroutine has forked: the child's copy of the loop must not go on with the others."""
    worker = _running.get(threading.get_ident())
    if worker is not None:
        worker.on_forked()


class LoopFeeder(Protocol):
    """Who claims, on the event loop."""

    def attach(self, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
        """That is the loop, and its worker. It need not run yet."""


class _Call:
    """One call of the handler, and its messages until they are accounted for."""

    __slots__ = ("began_s", "begun", "cancelled", "ids")

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids: Sequence[int] = ids
        self.begun = False
        self.began_s = 0.0
        self.cancelled = False


class _LoopWorker(Worker):
    """The event loop as one worker that runs up to ``concurrency`` coroutines at a time.

    Coroutines end in any order, and a slow one must not hold back the reports of the others: what ended in one turn of
    the loop is sorted and reported in runs.
    """

    def __init__(self, pool: CoroutinePool) -> None:
        super().__init__(pool.sink)
        self.name = f"ignis-{pool.spec.queue}-async"
        self._spec = pool.spec
        self._pool = pool
        self._runner = pool.make_runner()
        self.concurrency = 0
        self.returning = False
        self.stopping = False
        self.ended = False
        self._largest = largest_part(pool.max_record_bytes)
        self._given: deque[Part] = deque()
        self._calls_ended = 0
        self._pumping = False  # a look at what was given is on its way
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._ended_calls: list[tuple[int, Outcome]] = []
        self._report_due = False
        self._tasks: dict[asyncio.Task[None], _Call] = {}  # the event loop itself holds only weak references to them
        self._batch_timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=f"ignis-{pool.spec.queue}-loop", daemon=True)
        start_thread(self.thread)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        on_fork(in_child=_in_child)
        _running[threading.get_ident()] = self
        try:
            while not self._run_loop():
                pass
            self._runner.cancelling = True
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                self.loop.run_until_complete(asyncio.wait(self._tasks, timeout=_CANCEL_S))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        except Exception:
            log.exception(
                event_text("worker_broken", "event loop of %s ended"), self._spec.queue
            )  # `check` tells the consumer
        finally:
            del _running[threading.get_ident()]
            self.loop.close()
            self.ended = True
            if not self.stopping:
                self._pool.on_ended()

    def _run_loop(self) -> bool:
        """Whether it was told to end. A task of a handler's own that ends with SystemExit is raised out of the loop, and a
        handler may stop the loop as well."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as exc:
            log.error(
                event_text("handler_task_ended", "a task of a handler of %s ended with %s"),
                self._spec.queue,
                failure_of(exc).error,
            )
            return False
        return self.stopping

    def on_forked(self) -> None:
        """In the child, in the middle of the coroutine that forked: the loop ends it before anything else runs there."""
        for handle in getattr(
            self.loop, "_ready", ()
        ):  # of asyncio's own loops; what is ready would run in this turn yet
            handle.cancel()
        self.loop.call_soon(end_child, self._spec.queue, None)

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        part = chunk.part(start, stop)
        if chunk.nbytes > self._largest and (nbytes := sum(map(len, part[1]))) > self._largest:
            raise MessageTooLargeError(nbytes, self._largest)
        if self.returning or self.stopping or not self.concurrency:
            return False
        self.submitted += stop - start
        self._given.append(part)
        if threading.get_ident() == self.thread.ident:
            self._pump()  # who claims on the loop is a call of its own there: nothing of the pool is under way
        else:
            self.kick()
        return True

    @property
    def call(self) -> int | None:
        """Another one with each call that ends: until then nothing begins, where as many run as may."""
        return self._calls_ended if len(self._tasks) >= self.concurrency else None

    def hand_over(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._give_back_waiting)

    def kick(self) -> None:
        """Makes the loop look at what it was given, and at its flags."""
        if self._pumping:
            return
        self._pumping = True
        if threading.get_ident() == self.thread.ident:
            self.loop.call_soon(self._pump)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._pump)

    def _settle(self, first_id: int, count: int) -> None:
        # In any order, and nobody ever asks what a loop owes: it cannot be killed apart from its process.
        self.reported += count

    def calls(self) -> list[tuple[int, int, float | None]]:
        now_s = time.monotonic()
        calls = [(call.ids, call.began_s) for call in list(self._tasks.values()) if call.begun]
        return [(ids[0], len(ids), now_s - began_s) for ids, began_s in calls if ids]

    def cancel(self, request_id: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._cancel_call, request_id)

    # -- on the loop from here

    def _cancel_call(self, request_id: int) -> None:
        """Cancels the task, once: what it does to clean up after itself is not disturbed."""
        for task, call in self._tasks.items():
            if call.begun and not call.cancelled and request_id in call.ids:
                call.cancelled = True
                task.cancel()

    def _pump(self) -> None:
        self._pumping = False
        while self._given:
            first, records = self._given.popleft()
            self._waiting.extend(enumerate(records, first))
        if self.returning:
            self._return_waiting()
        elif self._spec.batch_size is None:
            while self._waiting and len(self._tasks) < self.concurrency:
                request_id, record = self._waiting.popleft()
                call = _Call((request_id,))
                self._start(call, self._one(call, record))
        else:
            self._pump_batches(self._spec.batch_size)
        if self.stopping and not self._tasks and not self._waiting:
            self.loop.stop()

    def _give_back_waiting(self) -> None:
        """They are behind calls that take long, unless one has ended meanwhile."""
        if self._given:
            self._pump()
        if len(self._tasks) >= self.concurrency:
            self._return_waiting()

    def _return_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for first_id, count in runs_of_ids(request_id for request_id, _ in waiting):
            self.on_returned(first_id, count)

    def _pump_batches(self, size: int, due: bool = False) -> None:
        while self._waiting and len(self._tasks) < self.concurrency and (len(self._waiting) >= size or due):
            batch = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            call = _Call([request_id for request_id, _ in batch])
            self._start(call, self._batch(call, [record for _, record in batch]))
            due = False
        if self._waiting and self._batch_timer is None:
            self._batch_timer = self.loop.call_later(self._spec.batch_wait_s, self._batch_due)

    def _batch_due(self) -> None:
        self._batch_timer = None
        if self._spec.batch_size is not None and not self.returning:
            self._pump_batches(self._spec.batch_size, due=True)

    def _start(self, call: _Call, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks[task] = call
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        call = self._tasks.pop(task)
        self._calls_ended += 1
        exc = None if task.cancelled() else task.exception()
        if exc is not None:
            log.error(event_text("worker_broken", "worker coroutine failed"), exc_info=exc)
        if call.ids and not self._runner.cancelling:
            # Somebody has cancelled the task itself: what had not begun is nobody's yet, the rest has failed.
            failure = failure_of(asyncio.CancelledError() if exc is None else exc)
            if call.begun:
                self.durations.add(time.monotonic() - call.began_s, len(call.ids))
            for request_id in call.ids:
                if call.begun:
                    self._ended_calls.append((request_id, failure))
                else:
                    self.on_returned(request_id, 1)
        if not self._report_due:
            self._report_due = True
            self.loop.call_soon(self._report)

    async def _one(self, call: _Call, record: bytes) -> None:
        call.begun = True
        call.began_s = began = time.monotonic()
        # Awaited first: `_report` puts a new list in place meanwhile; an append bound before would go to the old one.
        try:
            outcome = await self._runner.run_async(record)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:  # whatever it was, the message is accounted for
            outcome = failure_of(exc)
        self._ended_calls.append((call.ids[0], timed(outcome, began)))
        call.ids = ()
        self._time([outcome], began)

    async def _batch(self, call: _Call, records: list[bytes]) -> None:
        call.begun = True
        call.began_s = began = time.monotonic()
        try:
            outcomes = await self._runner.run_batch_async(records)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:
            outcomes = [failure_of(exc)] * len(records)
        self._ended_calls += [
            (request_id, timed(outcome, began)) for request_id, outcome in zip(call.ids, outcomes, strict=True)
        ]
        call.ids = ()
        self._time(outcomes, began)

    def _time(self, outcomes: Sequence[Outcome], began: float) -> None:
        took_s = time.monotonic() - began
        self.durations.add(took_s, sum(one is None or one.reason not in NOT_CALLED for one in outcomes))
        self.on_timing(len(outcomes), took_s / max(1, len(self._tasks)))

    def _report(self) -> None:
        """Reports what has ended, runs of done messages in one call, and starts what waits."""
        self._report_due = False
        ended, self._ended_calls = self._ended_calls, []
        ended.sort(key=_request_id)
        start = count = 0
        for request_id, outcome in ended:
            if isinstance(outcome, Failure):
                self.on_failed(request_id, outcome)
                continue
            if count and request_id != start + count:
                self.on_done(start, count)
                count = 0
            if not count:
                start = request_id
            count += 1
        if count:
            self.on_done(start, count)
        self._pump()


def _request_id(ended: tuple[int, Outcome]) -> int:
    return ended[0]


class CoroutinePool(Pool):
    """A `Pool` of coroutines. All coroutines of a handler share one loop, hence one `Worker`."""

    def __init__(
        self,
        spec: HandlerSpec,
        sink: Sink,
        make_runner: Callable[[], Runner],
        *,
        max_record_bytes: int,
        feeder: LoopFeeder | None = None,
    ) -> None:
        self.feeder = feeder
        self.spec = spec
        self.sink = sink
        self.make_runner = make_runner
        self.max_record_bytes = max_record_bytes
        self._worker: _LoopWorker | None = None

    @property
    def workers(self) -> Sequence[Worker]:
        return [self._worker] if self._worker is not None and self._worker.concurrency else []

    def resize(self, count: int) -> None:
        worker, fresh = self._worker, self._worker is None
        if worker is None:
            worker = self._worker = _LoopWorker(self)
        worker.concurrency = count
        worker.kick()
        if fresh and self.feeder is not None:
            self.feeder.attach(worker.loop, worker)  # once it is counted: what is claimed is decided by who is there

    def check(self, now_s: float) -> None:
        """Time-outs are the calls' own (`call_clock`). Raises WorkerStartError when the loop has ended by itself."""
        worker = self._worker
        if worker is not None and not worker.stopping and (worker.ended or not worker.thread.is_alive()):
            raise WorkerStartError(self.spec.name, self.spec.queue, "its event loop ended")

    def drain(self, timeout: float) -> bool:
        worker = self._worker
        if worker is None:
            return True
        worker.returning = True
        worker.kick()
        deadline = time.monotonic() + timeout
        while worker.outstanding:
            if time.monotonic() >= deadline or not worker.thread.is_alive():
                return False
            time.sleep(0.002)
        return True

    def close(self, timeout: float) -> None:
        worker = self._worker
        if worker is None:
            return
        worker.returning = worker.stopping = True
        worker.kick()
        worker.thread.join(timeout)
        if worker.thread.is_alive():
            log.warning(
                event_text("coroutines_cancelled", "coroutines of %s did not end in time; cancelled"), self.spec.queue
            )
            worker.loop.call_soon_threadsafe(worker.loop.stop)
            worker.thread.join(1.0)
        self._worker = None
