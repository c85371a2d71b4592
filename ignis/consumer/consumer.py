"""The consumer of one queue in one process: claim, dispatch to workers, acknowledge in batches.

Three parties. Who *claims* (``claims.py``, ``loop_claims.py``) takes as many messages as the workers can finish soon by their
measured speed, and the *dispatcher* cuts them into chunks. The *workers* (``pools``) report runs of outcomes. The *acknowledger*
turns what has gathered into one delete and one transfer to the sideline per round. A message leaves the main magazine only
when it was handled, dropped, or accepted by the sideline; whatever goes wrong in between leaves it claimed, for the sweeper.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from ignis.config import ConsumerSettings
from ignis.consumer.acknowledger import Acknowledger
from ignis.consumer.claims import Claims, ThreadClaims
from ignis.consumer.dispatcher import Dispatcher
from ignis.consumer.giving_back import GivingBack
from ignis.consumer.handler import Failure, HandlerSpec, check_consumers
from ignis.consumer.in_hand import InHand
from ignis.consumer.long_work import LongWork
from ignis.consumer.loop_claims import LoopClaims
from ignis.consumer.outcome import is_dropped
from ignis.consumer.pools import Chunk, make_pool
from ignis.consumer.pools.base import HELD_UP_S, Call
from ignis.consumer.runner import Runner, message_name, overrun_follows
from ignis.consumer.taking import wait_for_memory
from ignis.context import QueueContext
from ignis.errors import ClosedError, IgnisError, QueueNotFoundError, UnreadableMessageError, WaitTimeoutError
from ignis.figures import ConsumerFigures
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.message import REASON_CANCELLED, REASON_EXPIRED
from ignis.native import Record
from ignis.native.histogram import Histogram
from ignis.storage.expired_log import ExpiredLog
from ignis.upkeep import Timer, Turns, interpreter_wait_s, run_soon, timers_of

__all__ = ["FLEET", "PROCESS", "REMOVAL", "START", "Consumer"]

PROCESS, FLEET, REMOVAL, START = "process", "fleet", "removal", "start"
"""Who pauses a consumer: the application here, the queue's record, a removal that is under way, and the start of an application
of which another part may still fail."""

log = logging.getLogger("ignis.consumer")

_MOST_NAMED = 10
_CHECK_S = 0.05
_SELDOM_CHECK_S = 0.5
"""Where no time-out is to be kept, no process may die, and no message waits behind another: only a thread that ended by itself is
looked for."""
_OTHERS_S = 0.1
"""Of what a call takes at most so much counts as its wait for the interpreter."""


def _held_up_s() -> float:
    """A call that takes longer holds up what lies behind it: what it waits for the interpreter is the same for all."""
    return HELD_UP_S + min(interpreter_wait_s(), _OTHERS_S)


class Consumer:
    """Runs one handler on one queue. Thread-safe. Started and stopped by the application object.

    Args:
        queue: the queue, opened.
        spec: the handler and how to run it.
        settings: see ``ignis.config``.
        make_runner: makes what calls the handler, one for each worker.
        on_failure: called with what made this consumer end by itself, unless that is the queue's removal.
        turns: of the threads of all consumers of the application; None = all of them may run at a time.
    """

    def __init__(
        self,
        queue: QueueContext[Any],
        spec: HandlerSpec,
        settings: ConsumerSettings,
        make_runner: Callable[[], Runner],
        on_failure: Callable[[BaseException], None],
        turns: Turns | None = None,
    ) -> None:
        self._queue = queue
        self._times = queue.times
        self._on_failure = on_failure
        self.spec = spec
        self.settings = settings
        self.counts = ConsumerFigures()
        self.failed: BaseException | None = None
        self._lock = threading.Lock()  # over times, and the check
        self._said = LimitedLog(log)
        self._expired_log = ExpiredLog()
        self._in_hand = InHand(self._look_after)
        self._giving_back = GivingBack(queue, spec, lambda: self._dispatcher, self._in_hand, self.counts)
        self._acker = Acknowledger(queue, spec.name, settings, self.counts, self._poke, self._in_hand, spec.retry)
        self._dispatcher = Dispatcher(
            spec, settings, lambda: self._pool, self._in_hand, self._acker, self.counts, self.on_failed, turns
        )
        claims_of = (queue, settings, self._dispatcher, self._in_hand, self.counts, self._ended_by)
        self._claims: Claims = LoopClaims(*claims_of) if spec.pool == "async" else ThreadClaims(*claims_of)
        self._long_work = LongWork(queue, self._in_hand, self._cancel, self._calls, may_cancel=spec.batch_size is None)
        self._pool_lock = threading.RLock()
        self._pool = make_pool(
            spec,
            self,
            make_runner,
            codec=queue.codec.name,
            max_record_bytes=queue.settings.max_message_bytes + (128 << 10),
            give_back_s=max(10 * settings.chunk_target_s, 0.25),
            start_timeout_s=settings.worker_start_timeout_s,
            cancel_grace_s=settings.cancel_grace_s,
            claims=self._claims,
            turns=turns,
        )
        self._pool.on_ended = self._check_soon
        self._pool.name_of = self._name_of
        self._pool.overrun_follows = self._overrun_follows
        self._started = False
        self._check_timer: Timer | None = None
        self._check_often = False
        self._check_asked = False
        self._ready = 0

    # -- life

    def start(self) -> None:
        """Starts the workers. Once. Raises WorkerStartError when no worker process can start."""
        if self._started:
            return
        self._claims.begin()
        self._acker.begin(self._give_back_rest, self._ended_by)
        with self._pool_lock:
            try:
                self._pool.resize(self.concurrency)
                self._pool.wait_started()
            except BaseException:
                self._pool.close(1.0)
                self._acker.finish(0)
                raise
        self._started = True
        if isinstance(self._claims, ThreadClaims) and self.spec.pool == "process":
            self._claims.start_thread(f"ignis-fetch-{self._queue.name}")
            self._plan_check()

    def begin_stop(self) -> None:
        """Claims nothing more, and begins nothing more where that needs no waiting. `stop` follows. Idempotent."""
        if self._started:
            self._claims.begin_end()
            self._pool.begin_drain()

    def stop(self, timeout: float | None = None) -> bool:
        """Drains: no further claims; running handlers finish; what was claimed and not started is reloaded; everything
        finished is acknowledged.

        What still runs after the timeout is ended and given back: coroutines are cancelled, worker processes killed. A thread
        cannot be ended, nor a coroutine that goes on for more than a second: its message stays claimed, for the sweeper.

        Returns True when nothing is left claimed by this consumer.
        """
        if not self._started:
            return True
        timeout = self.settings.stop_timeout_s if timeout is None else timeout
        deadline = time.monotonic() + timeout
        self._claims.end(max(0.1, deadline - time.monotonic()))
        with self._pool_lock:
            drained = self._pool.drain(max(0.0, deadline - time.monotonic()))
            self._say_unended(timeout)
        self._acker.finish(max(deadline, time.monotonic() + 1.0))
        stored = self._acker.over.wait(max(1.0, deadline - time.monotonic()) + 1.0)
        with self._pool_lock:
            self._pool.close(max(1.0, deadline - time.monotonic()))
        self._started = False
        self._long_work.end()
        if self._pool.unended:
            # Threads that nobody can end: as long as they are at it, nobody else gets what they have.
            self._acker.renew_left(lambda: bool(self._in_hand) and getattr(self._pool, "lost_threads", 0) > 0)
        left = self._in_hand or self._acker.left or self._giving_back.pending
        clean = drained and stored and not left
        if not (clean or self.idle):
            log.warning(
                event_text(
                    "consumer_left_messages",
                    "consumer of %s stopped with %d message(s) left to the sweeper: %d in hand, of %d the outcome is not stored"),
                self._queue.name, self.in_flight + self._acker.unacked, self.in_flight, self._acker.unacked,
            )  # fmt: skip
        return clean

    def runs_here(self) -> bool:
        """Whether it is a handler of this consumer that asks: a `stop` there would wait for itself. False in a worker process,
        which has no consumer."""
        return self._pool.runs_here()

    def _say_unended(self, timeout: float) -> None:
        """What took longer than a stop may, and what becomes of it."""
        if self._pool.broken_off:
            log.warning(
                event_text(
                    "handler_calls_ended",
                    "handler %s of %s did not end within the %g s that a stop has (consumer.stop_timeout_s) and was ended: %s; "
                    "what it was at goes back to the queue, and is handled again"),
                self.spec.name, self._queue.name, timeout, self._named(self._pool.broken_off),
            )  # fmt: skip
        if self._pool.unended:
            log.warning(
                event_text(
                    "handler_calls_left",
                    "handler %s of %s did not end within the %g s that a stop has (consumer.stop_timeout_s) and cannot be ended: "
                    "%s; what it is at stays claimed until this process ends or closes its store"),
                self.spec.name, self._queue.name, timeout, self._named(self._pool.unended),
            )  # fmt: skip

    def _named(self, calls: Sequence[Call]) -> str:
        """The messages of these calls, for the log, and for how long they ran."""
        named = []
        for call in calls[:_MOST_NAMED]:
            seconds = self._long_work.seconds(call)
            with contextlib.suppress(LookupError):  # accounted for meanwhile
                named.append(self._name_of(*call[:2]) + ("" if seconds is None else f" after {seconds:.1f} s"))
        more = len(calls) - len(named)
        return ", ".join(named) + (f" and {more} more" if named and more else "")

    def kill(self) -> None:
        """Before the process ends at once: worker processes are killed, everything claimed is left to the sweeper.
        Callable from a signal handler."""
        self._pool.kill()

    def resize(self, count: int) -> None:
        """Sets the number of workers. Raises ConsumerLimitError, ConfigError."""
        check_consumers(count, *self.spec.limit)
        with self._pool_lock:
            self._dispatcher.workers = count
            if self._started and not self._claims.stopping.is_set():
                self._pool.resize(count)
        self._claims.poke()
        if self._started:
            self._claims.wake()  # the thread that waits may be one that is to end

    def pause(self, by: str = PROCESS) -> None:
        """Stops claiming; what was claimed is finished. Returns at once, see `quiet`. Idempotent. Each that pauses it must
        resume it."""
        self._claims.pause(by)
        if self._started:
            self._claims.wake()

    def resume(self, by: str = PROCESS) -> None:
        """Claims again after `pause`, unless somebody else paused it too. Idempotent."""
        self._claims.resume(by)

    @property
    def paused(self) -> bool:
        return self._claims.paused

    @property
    def quiet(self) -> bool:
        """Paused, nothing claimed, every outcome stored: this consumer may go without touching any message."""
        if not self._claims.parked:
            return False
        return self.idle

    @property
    def waiting(self) -> bool:
        """Whether any outcome is not stored yet. What has left `in_flight` is seen here."""
        return self._acker.waiting

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed, and every outcome is stored."""
        # In the order in which a message passes: what has left the one is seen in the other.
        return not self.in_flight and not self.waiting

    @property
    def used_up(self) -> bool:
        """Whether all threads that it may have hang."""
        return self._pool.used_up

    @property
    def broken(self) -> bool:
        """Only a new process helps: it ended by an error, and not because its queue was removed, which is no fault of this
        process; or it is `used_up`."""
        return self.used_up or (self.failed is not None and not isinstance(self.failed, QueueNotFoundError))

    @property
    def concurrency(self) -> int:
        """The number of workers asked for."""
        return self._dispatcher.workers

    @property
    def in_flight(self) -> int:
        """Messages claimed and not yet accounted for."""
        return self._in_hand.messages

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of worker processes; empty for threads and coroutines."""
        return list(getattr(self._pool, "pids", []))

    def in_hand(self) -> dict[str, Any]:
        """For a person who asks what this process is doing: what each worker is at, and how much is claimed."""
        workers = []
        for worker in list(self._pool.workers):
            one: dict[str, Any] = {"name": worker.name, "given": worker.outstanding}
            running = worker.running()
            if running is not None:
                one.update(self._described(running))
            else:  # coroutines
                one["calls"] = [found for call in worker.calls()[:_MOST_NAMED] if (found := self._described(call))]
            workers.append(one)
        told = [
            {"id": str(UUID(bytes=one.id)), "fraction": one.fraction, "text": one.text}
            for one in self._long_work.told()
        ]
        return {
            "in_flight": self.in_flight, "unacknowledged": self._acker.unacked, "workers": workers, "progress": told,
        }  # fmt: skip

    def _described(self, call: Call) -> dict[str, Any]:
        """A call for a person who asks; nothing when it is accounted for."""
        first_id, messages, _ = call
        try:
            chunk, index = self._in_hand.locate(first_id)
        except LookupError:
            return {}
        shard, pointer = chunk.place(index)
        described: dict[str, Any] = {
            "shard": shard,
            "pointer": pointer,
            "messages": messages,
            "seconds": self._long_work.seconds(call),
        }
        with contextlib.suppress(UnreadableMessageError):
            described["id"] = str(UUID(bytes=Record(chunk.records[index]).id))
        return described

    def look_for_cancelled(self) -> None:
        """A message that this consumer may be at was cancelled just now. Raises the store's error."""
        self._long_work.look()

    def _cancel(self, request_id: int) -> None:
        for worker in list(self._pool.workers):
            worker.cancel(request_id)

    def _calls(self) -> list[tuple[int, int, float | None]]:
        return [call for worker in list(self._pool.workers) for call in worker.calls()]

    def figures(self) -> ConsumerFigures:
        """Counts since the start, and what is in flight now."""
        now = copy.copy(self.counts)
        now.concurrency = self.concurrency
        now.workers = len(self._pool.workers)
        now.in_flight = self.in_flight
        now.in_flight_bytes = self._in_hand.nbytes
        now.paused = self.paused
        now.handle_s = self._dispatcher.handle_s
        told = self._long_work.told()
        now.progress_told = len(told)
        now.progress = sum(one.fraction or 0.0 for one in told)
        now.lost_threads = getattr(self._pool, "lost_threads", 0)
        now.failed_starts = getattr(self._pool, "failed_starts", 0)
        now.start_error = getattr(self._pool, "start_error", None)
        now.worker_deaths = getattr(self._pool, "deaths", 0)
        return now

    def stats(self) -> dict[str, Any]:
        """`figures`, by name."""
        return self.figures().all()

    # -- the workers' reports (any thread)

    def on_done(self, first_id: int, count: int) -> None:
        if self._long_work.anybody_told():
            first_id, count = self._without_broken_off(first_id, count)
            if not count:
                return
            self._long_work.account_for(first_id, count)
        chunk, start = self._in_hand.locate(first_id)
        with contextlib.suppress(MemoryError):  # what is counted, and not what is acknowledged
            self._times.end_to_end.add_ages(chunk.records, self._queue.clock(), start, start + count)
        self._acker.add_done(chunk, start, count)
        self._in_hand.forget(chunk, count)
        self._claims.poke()

    def _without_broken_off(self, first_id: int, count: int) -> tuple[int, int]:
        """What is left of a run of done messages behind those that broke off because they were cancelled."""
        for request_id in self._long_work.broken_off(first_id, count):
            failure = Failure(REASON_CANCELLED, "its handler was told, and came to its end")
            done = request_id - first_id
            if done:
                self._long_work.account_for(first_id, done)
                chunk, start = self._in_hand.locate(first_id)
                self._acker.add_done(chunk, start, done)
                self._in_hand.forget(chunk, done)
            self.on_failed(request_id, failure)
            first_id, count = request_id + 1, count - done - 1
        return first_id, count

    def on_failed(self, request_id: int, failure: Failure) -> None:
        chunk, index = self._in_hand.locate(request_id)
        if self._long_work.anybody_told():
            failure = self._long_work.failure_of(request_id, failure)
        if failure.reason == REASON_EXPIRED:
            self._end_expired(chunk, index, failure)
        else:
            if failure.reason == REASON_CANCELLED:
                self.spec.log.failed(failure.reason, failure.error, message_name(chunk.records[index]))
            self._acker.add_failed(chunk, index, failure)
        self._in_hand.forget(chunk, 1)
        self._claims.poke()

    def _end_expired(self, chunk: Chunk, index: int, failure: Failure) -> None:
        if is_dropped(failure, self._queue.settings.on_expiry):
            self._expired_log.note(self._queue.name, 1)
            self._acker.add_dropped(chunk, index)
        else:
            self.spec.log.failed(failure.reason, failure.error, message_name(chunk.records[index]))
            self._acker.add_failed(chunk, index, failure)

    def giving_back(self) -> contextlib.AbstractContextManager[Any]:
        return self._dispatcher.handing_out

    def on_returned(self, first_id: int, count: int) -> None:
        chunk, start = self._in_hand.locate(first_id)
        self._dispatcher.take_back(chunk, start, start + count)
        self._claims.returned()

    @property
    def durations(self) -> Histogram:
        return self._times.handling

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        with self._lock:
            self.counts.timed_s += elapsed_s
            self.counts.timed += messages
        self._dispatcher.measured(messages, elapsed_s)

    def _name_of(self, first_id: int, count: int) -> str:
        """Of messages in hand, for the log."""
        chunk, index = self._in_hand.locate(first_id)
        return message_name(chunk.records[index], count)

    def _overrun_follows(self, first_id: int) -> bool:
        chunk, index = self._in_hand.locate(first_id)
        return overrun_follows(self.spec.retry, chunk.records[index])

    def _poke(self) -> None:
        self._claims.poke()

    def _give_back_rest(self) -> None:
        """At the end: what was claimed and not started goes back to the queue's tail, and what was broken off."""
        with contextlib.suppress(QueueNotFoundError):  # it was removed, with its messages
            self._giving_back.give_back_all()

    # -- upkeep

    def _look_after(self, count: int) -> None:
        """So many more are in hand: the workers, and the age of the claims, are looked after from now on."""
        if self._acker.renew_timer is None:
            self._acker.keep()
        if self._long_work.timer is None:
            self._long_work.keep()
        if self._check_timer is None or (count > 1 and not self._check_often):
            self._plan_check(often=count > 1)

    def _plan_check(self, *, often: bool = False) -> None:
        """``often``: messages wait behind others."""
        often = often or self.spec.pool == "process" or (self.spec.pool == "thread" and self.spec.timeout_s is not None)
        with self._lock:
            if self._acker.finishing:
                return
            if self._check_timer is not None:
                if self._check_often or not often:
                    return
                self._check_timer.cancel()
            self._check_often = often
            self._check_timer = timers_of(None).after(
                _CHECK_S if often else _SELDOM_CHECK_S, self._check, self._nothing_to_check
            )

    def _nothing_to_check(self) -> bool:
        """When a look is due: whether there is nothing to look at, and the next that is in hand asks for one; or nothing to
        do, and the next look is planned."""
        with self._lock:  # before it is looked: whoever adds something sees this, or is seen here
            self._check_timer = None
            self._check_often = False
        if self.spec.pool == "process" or self._pool.to_be_checked:
            return False
        return not self._in_hand or self._all_go_on()

    def _all_go_on(self) -> bool:
        """`_check_once` where it would find nothing to do: threads all of which have begun another message since the last look.
        A change of threads for each of hundreds of queues, twenty times a second, is what their handlers would wait for."""
        if self.spec.pool != "thread" or self.spec.timeout_s is not None or self._giving_back.pending:
            return False
        if not self._pool_lock.acquire(blocking=False):
            return False
        try:
            if self._acker.finishing or len(self._pool.workers) != self._ready:
                return False
            now_s, held_up_s = time.monotonic(), _held_up_s()
            holders = self._pool.holders
            if not all(worker.goes_on(now_s, held_up_s) for worker in holders):
                return False  # the full look sees the others
        finally:
            self._pool_lock.release()
        self._plan_check(often=any(worker.outstanding > 1 for worker in holders))
        return True

    def _check_soon(self) -> None:
        """A worker ended by itself."""
        if not self._started or self._claims.stopping.is_set():
            return
        with self._lock:  # one look for all that ended before it
            asked, self._check_asked = self._check_asked, True
        if asked:
            return
        try:
            run_soon(self._check)
        except BaseException:
            self._check_asked = False
            raise

    def _check(self) -> None:
        while True:
            try:
                self._check_once()
                return
            except MemoryError:  # the next look must be planned, whatever there is no memory for
                wait_for_memory()

    def _check_once(self) -> None:
        with self._lock:
            self._check_asked = False
            if self._check_timer is not None:
                self._check_timer.cancel()
                self._check_timer = None
                self._check_often = False
        behind = False
        try:
            if self._pool_lock.acquire(blocking=False):
                try:
                    if self._acker.finishing:
                        return
                    self._pool.check(time.monotonic())
                    behind = self._look_for_held_up(time.monotonic())
                    ended = self._pool.to_be_checked
                finally:
                    self._pool_lock.release()
            else:
                ended = True
            before, self._ready = self._ready, len(self._pool.workers)
            if self._ready > before:
                self._claims.poke()
        except (MemoryError, RuntimeError) as exc:
            if isinstance(exc, RuntimeError) and "start new thread" not in str(exc):
                self._ended_by(exc)
                return
            with contextlib.suppress(MemoryError):
                self._said.warning(
                    event_text("workers_wait", "a worker of %s cannot be started, trying again: %s"),
                    self._queue.name,
                    repr(exc),
                )
            ended = True
        except BaseException as exc:
            self._ended_by(exc)
            return
        if ended or self._in_hand or self.spec.pool == "process":
            self._plan_check(often=behind)

    def _look_for_held_up(self, now_s: float) -> bool:
        """Hands what lies behind a call that takes long to others: to workers here that are free, by way of
        `Dispatcher.returned`, and what none takes back to the queue. Returns whether to look again soon."""
        free, held_up_s = False, _held_up_s()
        for worker in self._pool.holders:
            with self._dispatcher.handing_out:  # from then on it is given nothing until all that it had is there
                seconds = worker.look(now_s, held_up_s)
                if seconds is not None:
                    self._dispatcher.held_up(seconds)
                    worker.hand_over()
        for worker in self._pool.workers:
            free = free or not worker.held_up
        if not self._claims.stopping.is_set():
            self._giving_back.look(now_s, 0 if self._pool.used_up else self.concurrency, someone_free=free)
        return self._giving_back.pending or any(worker.outstanding > 1 for worker in self._pool.holders)

    def _ended_by(self, exc: BaseException) -> None:
        """What fails must be seen: the consumer is marked failed, and says so in `stats` and the log."""
        passes = isinstance(exc, (ClosedError, WaitTimeoutError)) or (isinstance(exc, IgnisError) and exc.retryable)
        if not (passes and self._claims.stopping.is_set()):  # at the end what is left claimed is the sweeper's
            self._fail(exc)

    def _fail(self, exc: BaseException) -> None:
        self.failed = exc
        self._claims.fail()
        if isinstance(exc, QueueNotFoundError):  # removed by somebody: the other queues go on
            log.info(event_text("consumer_queue_gone", "consumer of %s stopped claiming: %s"), self._queue.name, exc)
            return
        log.error(
            event_text("consumer_failed", "consumer of %s failed and stopped claiming: %s"),
            self._queue.name,
            exc,
            exc_info=exc,
        )
        self._on_failure(exc)
