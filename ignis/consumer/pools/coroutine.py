"""Workers that are coroutines on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ignis.consumer.forked import end_child
from ignis.consumer.handler import Failure, HandlerSpec, Outcome, failure_of
from ignis.consumer.outcome import by_worker, timed
from ignis.consumer.pools.base import Chunk, Part, Pool, Sink, Worker
from ignis.consumer.pools.gathered import Gathered, records_of
from ignis.consumer.runner import NOT_CALLED, Runner
from ignis.consumer.taking import NO_MEMORY_S, add_one, wait_for_memory
from ignis.errors import WorkerStartError
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native.handling import ANSWERED, FORKED, RAISED, WENT_ON, Progress
from ignis.process_hooks import on_fork
from ignis.retries import is_kind
from ignis.stacks import start_thread
from ignis.upkeep import timers_of

__all__ = ["CoroutinePool", "LoopFeeder"]

log = logging.getLogger("ignis.workers")

_CANCEL_S = 1.0
"""How long cancelled coroutines have to clean up after themselves, at the end of a drain and once more at the loop's end."""

_SLICE_S = 0.001
"""So long coroutines that do not wait run one after the other before the loop has its turn."""

_QUICK = 8
"""So many in a row that did not wait, and the next are expected not to."""


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

    def again(self) -> None:
        """Calls of the loop may have been lost: it looks whether there is something to claim."""


_Ended = tuple[int, int, Outcome]
"""First request id, messages, what became of each."""


class _Call:
    """One call of the handler that has begun, and its messages."""

    __slots__ = ("began_s", "cancelled", "count", "first_id")

    def __init__(self, first_id: int, count: int, began_s: float) -> None:
        self.first_id = first_id
        self.count = count
        self.began_s = began_s
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
        self.progress = Progress()
        self.stopping = False
        self.ended = False
        self._given: deque[Part] = deque()
        self._calls_ended = 0
        self._pumping = False  # a look at what was given is on its way
        self._waiting = Gathered()
        self._ended_runs: list[_Ended] = []
        self._timed = 0  # messages since the last report, and what they took of the worker
        self._timed_s = 0.0
        self._report_due = False
        self._broken_off: list[tuple[int, int]] = []  # first request id, messages: to be returned
        self.broken_off: set[int] = set()
        """First request ids of what was cancelled by a drain, and has ended for it."""
        self._ending = False  # the loop runs only for what is cancelled at its end
        # The event loop itself holds only weak references to them. None = it is at no message that waits for anything.
        self._tasks: dict[asyncio.Task[None], _Call | None] = {}
        self._free_tasks = 0  # of `_tasks`: those that are at no message that waits
        self._quick = True  # coroutines do not wait for anything, as far as has been seen
        self._quick_in_a_row = 0
        self._running_quickly = False
        self._batch_timer: asyncio.TimerHandle | None = None
        self._said = LimitedLog(log)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_loop_error)
        self.thread = threading.Thread(target=self._run, name=f"ignis-{pool.spec.queue}-loop", daemon=True)
        start_thread(self.thread)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        on_fork(in_child=_in_child)
        _running[threading.get_ident()] = self
        try:
            while not self._run_loop():
                pass
            self._runner.cancelling = self._ending = True
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                waited_for = list(self._tasks)  # a copy: who ends leaves it
                self.loop.run_until_complete(asyncio.wait(waited_for, timeout=_CANCEL_S))
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
        except MemoryError as exc:
            _let_run_again(self.loop)
            self._recover(exc)
            return False
        except (SystemExit, KeyboardInterrupt) as exc:
            log.error(
                event_text("handler_task_ended", "a task of a handler of %s ended with %s"),
                self._spec.queue,
                failure_of(exc).error,
            )
            return False
        return self.stopping

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A call of the loop has failed. Where there was no memory for it, what it was to do is done by another."""
        exc = context.get("exception")
        if isinstance(exc, MemoryError):
            self._recover(exc)
        else:
            loop.default_exception_handler(context)

    def _recover(self, exc: MemoryError) -> None:
        """There was no memory for a moment, and calls of the loop may have been lost."""
        with contextlib.suppress(MemoryError):
            self._said.warning(
                event_text("event_loop_without_memory", "event loop of %s had no memory, and goes on: %r"),
                self._spec.queue,
                exc,
            )
        if self.stopping and not self._tasks:
            return
        while True:
            try:
                timers_of(None).after(NO_MEMORY_S, self._look_again)
                return
            except (MemoryError, RuntimeError):
                time.sleep(NO_MEMORY_S)

    def _look_again(self) -> None:
        """From a thread of the upkeep."""
        self._pumping = True
        self._report_due = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._go_on)
            if self._pool.feeder is not None:
                self._pool.feeder.again()

    def _go_on(self) -> None:
        """What was to begin, and may never, is begun by another task."""
        if self._spec.batch_size is None:
            for task in [task for task, call in self._tasks.items() if call is None]:
                del self._tasks[task]
                self._free_tasks -= 1
        self._report()

    def on_forked(self) -> None:
        """In the child, in the middle of the coroutine that forked: the loop ends it before anything else runs there."""
        for handle in getattr(
            self.loop, "_ready", ()
        ):  # of asyncio's own loops; what is ready would run in this turn yet
            handle.cancel()
        self.loop.call_soon(end_child, self._spec.queue, None)

    @property
    def returning(self) -> bool:
        """What has not begun is to be given back."""
        return self.progress.returning

    @returning.setter
    def returning(self, returning: bool) -> None:
        self.progress.returning = returning

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        part = chunk.part(start, stop)
        if self.returning or self.stopping or not self.concurrency:
            return False
        self.submitted += stop - start
        try:
            self._given.append(part)
        except MemoryError:
            self.submitted -= stop - start
            raise
        if threading.get_ident() == self.thread.ident:
            try:
                self._pump()  # who claims on the loop is a call of its own there: nothing of the pool is under way
            except MemoryError as exc:
                self._recover(exc)  # it is given: the next look starts it
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

    # In any order, and nobody ever asks what a loop owes: it cannot be killed apart from its process. It is reported first, and
    # counted then: what there was no memory for is reported again.

    def on_done(self, first_id: int, count: int) -> None:
        self._sink.on_done(first_id, count)
        self.reported += count

    def on_failed(self, request_id: int, failure: Failure) -> None:
        self._sink.on_failed(request_id, by_worker(failure, self.label))
        self.reported += 1

    def on_returned(self, first_id: int, count: int) -> None:
        self._sink.on_returned(first_id, count)
        self.reported += count

    def calls(self) -> list[tuple[int, int, float | None]]:
        now_s = time.monotonic()
        begun = [call for call in list(self._tasks.values()) if call is not None]
        calls: list[tuple[int, int, float | None]] = [
            (call.first_id, call.count, now_s - call.began_s) for call in begun
        ]
        if self._running_quickly:
            calls.append((self.progress.at_id, 1, None))
        return calls

    def cancel(self, request_id: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._cancel_call, request_id)

    def break_off(self) -> None:
        """Cancels all calls. Each that ends for that is reported as returned."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._cancel_all)

    # -- on the loop from here

    def _cancel_all(self) -> None:
        self._runner.cancelling = True
        for task in list(self._tasks):
            task.cancel()

    def _cancel_call(self, request_id: int) -> None:
        """Cancels the task, once: what it does to clean up after itself is not disturbed."""
        for task, call in self._tasks.items():
            if call is not None and not call.cancelled and call.first_id <= request_id < call.first_id + call.count:
                call.cancelled = True
                task.cancel()

    def _pump(self) -> None:
        self._pumping = False
        while self._given:
            self._waiting.add(self._given[0])
            self._given.popleft()
        if self.returning:
            self._return_waiting()
        elif self._spec.batch_size is None:
            self._begin_tasks()
        else:
            self._pump_batches(self._spec.batch_size)
        if self.stopping and not self._ending and not self._tasks and not self._waiting:
            self.loop.stop()

    def _give_back_waiting(self) -> None:
        """They are behind calls that take long, unless one has ended meanwhile."""
        if self._given:
            self._pump()
        if len(self._tasks) - self._free_tasks >= self.concurrency:
            self._return_waiting()

    def _return_waiting(self) -> None:
        while self._waiting:
            first, records, at = self._waiting.head()
            self.on_returned(first + at, len(records) - at)
            self._waiting.skip(len(records) - at)

    # -- one message at a time

    def _begin_tasks(self) -> None:
        """As many as there are messages for. One task runs all coroutines that do not wait for anything."""
        room = min(self.concurrency - len(self._tasks), self._waiting.count - self._free_tasks)
        if self._quick:
            room = min(room, 1 - self._free_tasks)
        for _ in range(room):
            self._start(self._run_task(alone=self._quick), self._not_begun)
            self._free_tasks += 1

    def _start(self, work: Coroutine[Any, Any, None], ended: Callable[[asyncio.Task[None]], None]) -> None:
        # Not by the loop's factory, which is a handler's to set: a task must begin in a turn of its own.
        task: asyncio.Task[None] | None = None
        try:
            task = asyncio.Task(work, loop=self.loop)
            self._tasks[task] = None
            task.add_done_callback(ended)
        except MemoryError:
            if task is None:
                work.close()
            else:
                self._tasks.pop(task, None)
                task.cancel()  # before its first step
            raise

    def _not_begun(self, task: asyncio.Task[None]) -> None:
        """Somebody has cancelled it before it was at any message."""
        self._leave(task)

    async def _run_task(self, *, alone: bool) -> None:
        """Runs coroutines that do not wait: one, or where it is ``alone`` for `_SLICE_S`. One that waits it runs to its end, and
        ends with it: what waits has a task of its own."""
        task = asyncio.current_task()
        assert task is not None
        if task not in self._tasks:  # it was taken for lost
            return
        task.remove_done_callback(self._not_begun)
        try:
            waiting = self._run_quick(task, _SLICE_S if alone else 0.0)
            if waiting is not None:
                await self._await(task, *waiting)
        except MemoryError as exc:
            self._recover(exc)
        finally:
            self._leave(task)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """The task is at its end."""
        if task not in self._tasks:
            return
        if self._tasks.pop(task) is None:
            self._free_tasks -= 1
        self._calls_ended += 1
        self._report_soon()

    def _run_quick(self, task: asyncio.Task[None], for_s: float) -> tuple[_Call, int, bytes, Any] | None:
        """Runs coroutines for so long, at least one; stops at one that waits: (its call, and what `Runner.go_on` takes)."""
        runner, waiting, progress, durations = self._runner, self._waiting, self.progress, self.durations
        clock = time.monotonic
        began = now = clock()
        until, handled = began + for_s, 0
        self._running_quickly = True
        try:
            while waiting and not progress.returning:
                first, records, start = waiting.head()
                stepped_s = call_began = now
                progress.at_id = first + start
                try:
                    at, what, value, call_began = runner.begin(records, start, first, progress, until, durations, task)
                except BaseException as exc:  # a body's own code may raise anything; the message is accounted for
                    at, what, value = progress.at_id - first, RAISED, exc
                now = clock()
                handled += at - start
                if at > start:
                    add_one(self._ended_runs, (first + start, at - start, None))
                    waiting.skip(at - start)
                if what != WENT_ON:
                    if what not in (ANSWERED, RAISED, FORKED):
                        found = _Call(first + at, 1, call_began), what, records[at], value
                        waiting.skip(1)
                        return found
                    outcome = runner.judge_begun(what, records[at], value)
                    value = None
                    self._note_ended(first + at, outcome, call_began, now)
                    waiting.skip(1)
                    handled += 1
                runner.note_blocked(now - max(stepped_s, call_began if what != WENT_ON else 0.0))
                if now >= until or task._must_cancel or task._callbacks:  # type: ignore[attr-defined]
                    break
            self._quick_in_a_row += handled
            if not self._quick and self._quick_in_a_row >= _QUICK:
                self._quick = True
        finally:
            self._running_quickly = False
            self._calls_ended += handled
            self._timed += handled
            self._timed_s += clock() - began
        return None

    def _note_ended(self, request_id: int, outcome: Outcome, began_s: float, now_s: float) -> None:
        """Waits for the memory that it needs."""
        while True:
            try:
                self._ended_runs.append((request_id, 1, timed(outcome, began_s)))
                break
            except MemoryError:
                wait_for_memory()
        try:
            if outcome is None or outcome.reason not in NOT_CALLED:
                self.durations.add(now_s - began_s)
        except MemoryError:
            pass  # what is counted, and not what is accounted for

    async def _await(self, task: asyncio.Task[None], call: _Call, what: int, record: bytes, value: Any) -> None:
        self._tasks[task] = call
        self._free_tasks -= 1
        self._quick, self._quick_in_a_row = False, 0
        if self._waiting.count > self._free_tasks:
            try:
                self._begin_tasks()
            except MemoryError as exc:
                self._recover(exc)
        outcome: Outcome
        try:
            outcome = await self._runner.go_on(what, record, value, call.began_s)
        except BaseException as exc:  # whatever it was, the message is accounted for
            thrown_away = is_kind(type(exc), GeneratorExit)
            if thrown_away or self._runner.cancelling:
                if not thrown_away:
                    self._break_off(call.first_id, 1)
                raise
            outcome = _failure_of(exc)
        now_s = time.monotonic()
        self._note_ended(call.first_id, outcome, call.began_s, now_s)
        self._timed += 1
        self._timed_s += (now_s - call.began_s) / len(self._tasks)

    def _break_off(self, first_id: int, count: int) -> None:
        """These were cancelled by a drain, and nothing handles them any more. At the loop's end nobody hears that."""
        if not self._ending:
            self.broken_off.add(first_id)
            add_one(self._broken_off, (first_id, count))

    # -- batches

    def _pump_batches(self, size: int, due: bool = False) -> None:
        while self._waiting and len(self._tasks) < self.concurrency and (self._waiting.count >= size or due):
            batch = self._waiting.oldest(size)
            self._start(self._run_batch(batch), functools.partial(self._batch_ended, batch))
            self._waiting.begin(batch)
            due = False
        if self._waiting and self._batch_timer is None:
            self._batch_timer = self.loop.call_later(self._spec.batch_wait_s, self._batch_due)

    def _batch_due(self) -> None:
        self._batch_timer = None
        if self._spec.batch_size is not None and not self.returning:
            self._pump_batches(self._spec.batch_size, due=True)

    def _batch_ended(self, batch: list[Part], task: asyncio.Task[None]) -> None:
        call = self._tasks.pop(task)
        self._calls_ended += 1
        if batch and self._runner.cancelling:
            for first, records in batch:
                self._break_off(first, len(records))
        elif batch:
            # Somebody has cancelled the task itself: what had not begun is nobody's yet, the rest has failed.
            exc = None if task.cancelled() else task.exception()
            if exc is not None:
                log_safely(log, logging.ERROR, event_text("worker_broken", "worker coroutine failed"), exc_info=exc)
            failure = _failure_of(asyncio.CancelledError() if exc is None else exc)
            if call is not None:
                self._note_runs(
                    lambda: [
                        (one, 1, failure) for first, records in batch for one in range(first, first + len(records))
                    ]
                )
                self.durations.add(time.monotonic() - call.began_s, call.count)
            else:
                for first, records in batch:
                    self.on_returned(first, len(records))
        self._report_soon()

    def _note_runs(self, runs: Callable[[], list[_Ended]]) -> None:
        """To be reported. Waits for the memory that it needs."""
        while True:
            try:
                self._ended_runs += runs()
                return
            except MemoryError:
                wait_for_memory()

    async def _run_batch(self, batch: list[Part]) -> None:
        """Leaves nothing of the list once its messages are accounted for."""
        task = asyncio.current_task()
        assert task is not None
        records = records_of(batch)
        began = time.monotonic()
        self._tasks[task] = _Call(batch[0][0], len(records), began)
        outcomes: Sequence[Outcome] | None
        try:
            outcomes = await self._runner.run_batch_async(records)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:
            outcomes = [_failure_of(exc)] * len(records)
        took_s = time.monotonic() - began
        self._note_runs(lambda: _ended_of(batch, outcomes, began))
        batch.clear()
        called = len(records)
        if outcomes is not None:
            called = sum(one is None or one.reason not in NOT_CALLED for one in outcomes)
        self.durations.add(took_s, called)
        self._timed += len(records)
        self._timed_s += took_s / max(1, len(self._tasks))

    # -- reports

    def _report_soon(self) -> None:
        if not self._report_due and not self.loop.is_closed():
            try:
                self.loop.call_soon(self._report)
                self._report_due = True
            except MemoryError as exc:
                self._recover(exc)

    def _report(self) -> None:
        """Reports what has ended, runs of done messages in one call, and starts what waits."""
        self._report_due = False
        nothing: list[_Ended] = []
        ended = self._ended_runs
        ended.sort(key=_first_id)
        self._ended_runs = nothing
        reported = upto = 0
        try:
            while reported < len(ended):
                first_id, count, outcome = ended[reported]
                upto = reported + 1
                if isinstance(outcome, Failure):
                    self.on_failed(first_id, outcome)
                else:
                    while upto < len(ended):
                        next_id, some, outcome = ended[upto]
                        if next_id != first_id + count or isinstance(outcome, Failure):
                            break
                        count += some
                        upto += 1
                    self.on_done(first_id, count)
                reported = upto
        except Exception as exc:
            if not isinstance(exc, MemoryError):
                reported = upto  # it would fail again
            raise
        finally:
            while reported < len(ended):  # no memory for a moment: they are reported with the next
                add_one(self._ended_runs, ended[reported])
                reported += 1
        while self._broken_off:
            self.on_returned(*self._broken_off[0])
            self._broken_off.pop(0)
        if self._timed:
            timed_s, self._timed_s = self._timed_s, 0.0
            timed_count, self._timed = self._timed, 0
            self.on_timing(timed_count, timed_s)
        self._pump()


def _ended_of(batch: Sequence[Part], outcomes: Sequence[Outcome] | None, began_s: float) -> list[_Ended]:
    if outcomes is None:
        return [(first, len(records), None) for first, records in batch]
    ids = [one for first, records in batch for one in range(first, first + len(records))]
    return [(one, 1, timed(outcome, began_s)) for one, outcome in zip(ids, outcomes, strict=True)]


def _failure_of(exc: BaseException) -> Failure:
    """Waits for the memory that it needs."""
    while True:
        try:
            return failure_of(exc)
        except MemoryError:
            wait_for_memory()


def _let_run_again(loop: asyncio.AbstractEventLoop) -> None:
    """A loop that ran out of memory at its own end still counts as running, and would not run again."""
    asyncio._set_running_loop(None)
    if getattr(loop, "_thread_id", None) is not None:
        loop._thread_id = None  # type: ignore[attr-defined]


def _first_id(ended: _Ended) -> int:
    return ended[0]


class CoroutinePool(Pool):
    """A `Pool` of coroutines. All coroutines of a handler share one loop, hence one `Worker`."""

    def __init__(
        self,
        spec: HandlerSpec,
        sink: Sink,
        make_runner: Callable[[], Runner],
        *,
        feeder: LoopFeeder | None = None,
    ) -> None:
        self.feeder = feeder
        self.spec = spec
        self.sink = sink
        self.make_runner = make_runner
        self._worker: _LoopWorker | None = None

    @property
    def workers(self) -> Sequence[Worker]:
        return [self._worker] if self._worker is not None and self._worker.concurrency else []

    def runs_here(self) -> bool:
        return self._worker is not None and self._worker.thread.ident == threading.get_ident()

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
            if not worker.thread.is_alive():
                return False
            if time.monotonic() >= deadline:
                return self._break_off(worker)
            time.sleep(0.002)
        return True

    def _break_off(self, worker: _LoopWorker) -> bool:
        """Whether all calls have ended for it."""
        calls = worker.calls()
        worker.break_off()
        until = time.monotonic() + _CANCEL_S
        while worker.outstanding and worker.thread.is_alive() and time.monotonic() < until:
            time.sleep(0.002)
        left = {first_id for first_id, _, _ in worker.calls()}
        self.unended = [call for call in calls if call[0] in left]
        self.broken_off = [call for call in calls if call[0] in worker.broken_off]
        return not worker.outstanding

    def close(self, timeout: float) -> None:
        worker = self._worker
        if worker is None:
            return
        worker.returning = worker.stopping = True
        worker.kick()
        worker.thread.join(timeout)
        if worker.thread.is_alive():
            log.warning(
                event_text("coroutines_stuck", "coroutines of %s did not end, though they were cancelled"),
                self.spec.queue,
            )
            worker.loop.call_soon_threadsafe(worker.loop.stop)
            worker.thread.join(1.0)
        self._worker = None
