"""The consumer of one queue in one process: claim, dispatch to workers, acknowledge in batches.

Three parties. Who *claims* takes as many messages as the workers can finish soon by their measured speed, and cuts them
into chunks: of worker threads the one that leads (``ignis/workers/leading.py``), for coroutines and worker processes a
thread of its own. The *workers* (``ignis/workers``) report runs of outcomes. The *acknowledger* thread turns what has
gathered into one delete and one transfer to the sideline per round. A message leaves the main magazine only when it was
handled, dropped, or accepted by the sideline; whatever goes wrong in between leaves it claimed, for the sweeper.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignis.acknowledger import Acknowledger
from ignis.config import ConsumerSettings
from ignis.errors import (
    ClosedError,
    IgnisError,
    MessageTooLargeError,
    QueueNotFoundError,
    WaitTimeoutError,
)
from ignis.handler import Failure, HandlerSpec, check_consumers
from ignis.log_limit import LimitedLog
from ignis.message import REASON_UNREADABLE
from ignis.native import set_spin
from ignis.storage.base import Claim
from ignis.workers import Chunk, Worker, make_pool
from ignis.workers.base import CHUNK_BYTES, INDEX_BITS
from ignis.workers.cutting import Mixed, bytes_of, cut
from ignis.workers.leading import Leading, Tray

if TYPE_CHECKING:
    from ignis.queue import Queue

__all__ = ["FLEET", "PROCESS", "REMOVAL", "Consumer"]

PROCESS, FLEET, REMOVAL = "process", "fleet", "removal"
"""Who pauses a consumer: the application here, the queue's record, and a removal that is under way."""

log = logging.getLogger("ignis.consumer")

_CHECK_S = 0.05
_IDLE_CHECK_S = 0.5
"""Where no time-out is to be kept and no process may die: only a thread that ended by itself is looked for."""
_PASS_S = 0.5
_WORTH_WAKING_S = 0.001
"""A worker gets at least this much work at a time, where there is as much."""


class Consumer:
    """Runs one handler on one queue. Thread-safe. Started and stopped by the application object.

    Args:
        queue: the queue.
        spec: the handler and how to run it.
        settings: see ``ignis.config``.
    """

    def __init__(self, queue: Queue[Any], spec: HandlerSpec, settings: ConsumerSettings) -> None:
        self.queue = queue
        self.spec = spec
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._magazines = queue.main.store
        self._owner = queue.app.store.owner
        self._target = spec.concurrency
        self._handle_s = 0.0
        self._chunks: dict[int, Chunk] = {}
        self._chunk_ids = itertools.count(1)
        self._renewed_to = 0  # the number of the newest chunk at the last look
        self._returned: deque[tuple[Chunk, int, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()  # over _bytes, _pauses, _parked, times and what is left of each chunk
        self._waiting_for_load = False
        self._empty_at: int | None = None  # the sequence number at which the last claim left nothing behind
        self._idled = False  # waited for a load, and has made no claim since
        self._leader: Worker | None = None  # the worker whose thread claims, and what it was given
        self._leader_tray: Tray | None = None
        self._claims_from_s = 0.0
        self.leading = Leading()
        self._pauses: set[str] = set()  # who wants it paused
        self._parked = True  # nobody claims; only who claims makes this false
        self._timed_s = 0.0
        self._stopping = threading.Event()
        self._said = LimitedLog(log)
        self._room = threading.Event()
        self._acker = Acknowledger(queue, spec.name, settings, self.counts, self._room.set, self._long_held)
        self._pool_lock = threading.RLock()
        self._pool = make_pool(
            spec,
            self,
            lambda: queue.make_runner(spec),
            codec=queue.codec.name,
            max_record_bytes=queue.settings.max_message_bytes + (128 << 10),
            give_back_s=max(10 * settings.chunk_target_s, 0.25),
            start_timeout_s=settings.worker_start_timeout_s,
            feeder=self,
        )
        self._threads: list[threading.Thread] = []

    # -- life

    def start(self) -> None:
        """Starts the workers and the threads. Once. Raises WorkerStartError when no worker process can start."""
        if self._threads:
            return
        self._claims_from_s = time.monotonic() + self.settings.initial_delay_s
        with self._pool_lock:
            try:
                self._pool.resize(self._target)
                self._pool.wait_started()
            except BaseException:
                self._pool.close(1.0)
                raise
        for target, name in ((self._ack_loop, "ack"), (self._check_loop, "check"), (self._fetch_loop, "fetch")):
            if target == self._fetch_loop and self.spec.pool == "thread":
                continue  # they claim themselves
            thread = threading.Thread(
                target=self._guard, args=(target,), name=f"ignis-{name}-{self.queue.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Drains: no further claims; running handlers finish; what was claimed and not started is reloaded; everything
        finished is acknowledged.

        Returns True when nothing is left claimed by this consumer. What still runs after the timeout keeps its claim
        and is left to the sweeper.
        """
        if not self._threads:
            return True
        timeout = self.settings.stop_timeout_s if timeout is None else timeout
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._room.set()
        self._wake()
        acker, checker, *fetchers = self._threads
        self.leading.end(max(0.1, deadline - time.monotonic()))
        for fetcher in fetchers:
            fetcher.join(max(0.1, deadline - time.monotonic()))
        with self._pool_lock:
            drained = self._pool.drain(max(0.0, deadline - time.monotonic()))
        self._acker.finish(max(deadline, time.monotonic() + 1.0))
        acker.join(max(1.0, deadline - time.monotonic()) + 1.0)
        checker.join(1.0)
        with self._pool_lock:
            self._pool.close(max(1.0, deadline - time.monotonic()))
        self._threads = []
        left = self._chunks or self._acker.left or self._returned
        clean = drained and not acker.is_alive() and not left
        if not clean:
            log.warning(
                "consumer of %s stopped with %d message(s) left to the sweeper", self.queue.name, self.in_flight
            )
        return clean

    def kill(self) -> None:
        """Before the process ends at once: worker processes are killed, everything claimed is left to the sweeper.
        Callable from a signal handler."""
        self._pool.kill()

    def resize(self, count: int) -> None:
        """Sets the number of workers. Raises ConsumerLimitError, ConfigError."""
        check_consumers(count, self.settings.max_consumers)
        with self._pool_lock:
            self._target = count
            if self._threads and not self._stopping.is_set():
                self._pool.resize(count)
        self._room.set()
        if self._threads:
            self._wake()  # the thread that waits may be one that is to end

    def pause(self, by: str = PROCESS) -> None:
        """Stops claiming; what was claimed is finished. Returns at once, see `quiet`. Idempotent. Each that pauses it must
        resume it."""
        with self._lock:
            self._pauses.add(by)
        self._room.set()
        if self._threads:
            self._wake()

    def resume(self, by: str = PROCESS) -> None:
        """Claims again after `pause`, unless somebody else paused it too. Idempotent."""
        with self._lock:
            self._pauses.discard(by)
        self._room.set()

    @property
    def paused(self) -> bool:
        return bool(self._pauses)

    @property
    def quiet(self) -> bool:
        """Paused, nothing claimed, every outcome stored: this consumer may go without touching any message."""
        with self._lock:
            if not (self._pauses and self._parked):
                return False
        # In the order in which a message passes: what has left the one is seen in the other.
        return not self.in_flight and not self._acker.waiting

    @property
    def broken(self) -> bool:
        """It ended by an error, and not because its queue was removed, which is no fault of this process."""
        return self.failed is not None and not isinstance(self.failed, QueueNotFoundError)

    @property
    def concurrency(self) -> int:
        """The number of workers asked for."""
        return self._target

    @property
    def in_flight(self) -> int:
        """Messages claimed and not yet accounted for."""
        return sum(chunk.left for chunk in list(self._chunks.values()))

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
            chunk = None if running is None else self._chunks.get(running[0] >> INDEX_BITS)
            if running is not None and chunk is not None:
                shard, pointer = chunk.place(running[0] - chunk.first_id)
                one.update(shard=shard, pointer=pointer, messages=running[1], seconds=running[2])
            workers.append(one)
        return {"in_flight": self.in_flight, "unacknowledged": self._acker.unacked, "workers": workers}

    def totals(self) -> dict[str, Any]:
        """What only rises, since the start."""
        deaths = getattr(self._pool, "deaths", 0)
        return {"timed_s": self._timed_s, "worker_deaths": deaths, **self.counts}

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and what is in flight now."""
        return {
            "concurrency": self._target,
            "workers": len(self._pool.workers),
            "in_flight": self.in_flight,
            "in_flight_bytes": self._bytes,
            "paused": self.paused,
            "handle_s": self._handle_s,
            "lost_threads": getattr(self._pool, "lost_threads", 0),
            "failed_starts": getattr(self._pool, "failed_starts", 0),
            "start_error": getattr(self._pool, "start_error", None),
            **self.totals(),
        }

    # -- the workers' reports (any thread)

    def on_done(self, first_id: int, count: int) -> None:
        chunk, start = self._locate(first_id)
        self._acker.add_done(chunk, start, count)
        self._forget(chunk, count)
        self._room.set()

    def on_failed(self, request_id: int, failure: Failure) -> None:
        chunk, index = self._locate(request_id)
        self._acker.add_failed(chunk, index, failure)
        self._forget(chunk, 1)
        self._room.set()

    def on_returned(self, first_id: int, count: int) -> None:
        chunk, start = self._locate(first_id)
        self._returned.append((chunk, start, start + count))
        self._room.set()
        if self._waiting_for_load and not self._stopping.is_set():
            self._wake()  # who claims sleeps until something is loaded; others may be free for this now

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        with self._lock:
            self._timed_s += elapsed_s
            self.counts["timed"] += messages
        each = elapsed_s / messages
        # A slow message must shrink the next chunk at once; speed is trusted slowly.
        weight = 0.5 if each > self._handle_s else 0.2
        self._handle_s = each if not self._handle_s else self._handle_s + weight * (each - self._handle_s)

    def _locate(self, request_id: int) -> tuple[Chunk, int]:
        chunk = self._chunks[request_id >> INDEX_BITS]
        return chunk, request_id - chunk.first_id

    def _forget(self, chunk: Chunk, count: int) -> None:
        with self._lock:
            chunk.left -= count
            if chunk.left == 0:
                del self._chunks[chunk.first_id >> INDEX_BITS]
                self._bytes -= chunk.nbytes

    # -- claiming: one thread at a time

    def _fetch_loop(self) -> None:
        set_spin(self.settings.spin_us)
        try:
            while not self._stopping.is_set():
                self._claim(_PASS_S)
        finally:
            self._end_claiming()

    def lead(self, worker: Worker, tray: Tray, wait_s: float) -> None:
        """See `ignis.workers.leading.Feeder`."""
        until = time.monotonic() + wait_s
        self._leader, self._leader_tray = worker, tray
        set_spin(self.settings.spin_us)
        try:
            while not (tray or worker.going or self._stopping.is_set()) and (left := until - time.monotonic()) > 0:
                self._claim(left)
        except BaseException as exc:
            self._ended_by(exc)
        finally:
            self._leader = self._leader_tray = None
            self._end_claiming()

    def _end_claiming(self) -> None:
        if self._idled:
            self._rest()
        with self._lock:
            self._parked = True

    def _claim(self, wait_s: float) -> None:
        """One claim, handed out; or one wait, of at most that long, until one may be made."""
        if (early_s := self._claims_from_s - time.monotonic()) > 0:
            self._stopping.wait(min(early_s, wait_s))
            return
        self._room.clear()
        if self._returned:
            self._hand_out_again()
            if self._leader_tray:
                return
        with self._lock:
            self._parked = bool(self._pauses)
        want = 0 if self._parked else self._wanted()
        if want <= 0:
            self._rest()
            self._room.wait(min(wait_s, _PASS_S))
        elif self._empty_at is not None:
            self._await_load(self._empty_at, min(wait_s, self.settings.idle_poll_s))
        else:
            self._fire(want)

    def _fire(self, want: int) -> None:
        name = self.queue.main.name
        room = max(1, self.settings.max_in_flight_bytes - self._bytes)
        try:
            seen = self._magazines.wait(name, -1, 0)
            result = self._magazines.fire(name, min(want, self.settings.max_claim), self._owner, max_bytes=room)
        except IgnisError as exc:
            self._rest_after(exc)
            return
        self._idled = False
        if result.expired:
            self.counts["expired"] += result.expired
        if result.claims:
            self.counts["claims"] += 1
            self._dispatch(result.claims)
        if not result.more:
            self._empty_at = seen

    def _await_load(self, seen: int, wait_s: float) -> None:
        self._empty_at = None
        self._waiting_for_load = self._idled = True
        try:
            if not self._returned:
                self._magazines.idle(self.queue.main.name, seen, wait_s)
        except IgnisError as exc:
            self._rest_after(exc)
        finally:
            self._waiting_for_load = False

    def _wake(self) -> None:
        """Who waits for a load looks round."""
        with contextlib.suppress(IgnisError):
            self._magazines.wake(self.queue.main.name)

    def _rest(self) -> None:
        """No claim follows for now."""
        self._idled = False
        with contextlib.suppress(IgnisError):
            self._magazines.rest(self.queue.main.name)

    def _rest_after(self, exc: IgnisError) -> None:
        """What may pass is counted and waited for; anything else is raised."""
        if not exc.retryable:
            raise exc
        self.counts["fetch_errors"] += 1
        self._said.warning("claim on %s failed, trying again: %s", self.queue.main.name, exc)
        self._stopping.wait(self.settings.idle_poll_s)

    def _window(self) -> tuple[int, int]:
        """(messages per chunk, most messages outstanding per worker), by the measured handling time."""
        if self.spec.batch_size is not None:
            return self.settings.max_chunk, 2 * self.spec.batch_size
        if self.spec.pool == "async":
            # One worker runs them all: at least one waiting for each that runs, more where they are quick.
            soon = int(self.settings.chunk_target_s / self._handle_s) if self._handle_s else 0
            return self.settings.max_chunk, 2 * max(self._target, min(soon, self.settings.max_chunk))
        if not self._handle_s:
            return 1, 1  # one each, to measure: what a worker holds behind a slow message nobody else can have
        chunk = int(self.settings.chunk_target_s / self._handle_s)
        if chunk < 1:
            return 1, 1  # slow handlers get the next message when they are done with the last
        chunk = min(chunk, self.settings.max_chunk)
        return chunk, 2 * chunk

    def _wanted(self) -> int:
        """How many messages to claim now; 0 while the workers have enough."""
        # What is handled and not yet retired would be handled again if this process died now: bounded as well.
        room = self.settings.max_unacked - self._acker.unacked
        if room <= 0 or self._bytes >= self.settings.max_in_flight_bytes or self._returned:
            return 0
        workers = self._pool.workers
        _, window = self._window()
        free = sum(max(0, window - worker.outstanding) for worker in workers)
        # Claims are cheap per batch, not per message: wait until a worker is at half its window.
        return min(free, room) if any(worker.outstanding <= window // 2 for worker in workers) else 0

    def _dispatch(self, claims: Sequence[Claim]) -> None:
        total = sum(len(claim.pointers) for claim in claims)
        self.counts["fetched"] += total
        size, _ = self._window()
        idle = sum(worker.outstanding == 0 for worker in self._pool.workers)
        if idle > 1 and self.spec.batch_size is None:
            # Shared out evenly, but not in crumbs: waking a worker costs more than a few quick messages.
            least = int(_WORTH_WAKING_S / self._handle_s) if self._handle_s else 1
            size = max(1, min(size, max(-(-total // idle), least)))
        mixed = Mixed()
        for claim in claims:
            self._set_corrupt_aside(claim)
            if len(claims) > 1 and len(claim.records) * 2 <= size and bytes_of(claim) <= CHUNK_BYTES:
                # Messages that were published one by one are claims of one each: together they are a chunk.
                if not mixed.takes(claim, size):
                    self._hand_out(mixed)
                    mixed = Mixed()
                mixed.add(claim)
            else:
                if mixed.has(claim.shard):
                    # What the shard had before this claim goes out before it: first in, first out per shard.
                    self._hand_out(mixed)
                    mixed = Mixed()
                for place, records, nbytes in cut(claim, size):
                    self._submit(self._new_chunk([place], records, nbytes), 0, len(records))
        self._hand_out(mixed)

    def _hand_out(self, mixed: Mixed) -> None:
        if mixed.count:
            chunk = self._new_chunk(mixed.places, mixed.records, mixed.nbytes)
            self._submit(chunk, 0, mixed.count)

    def _set_corrupt_aside(self, claim: Claim) -> None:
        """Takes the corrupt records out of the claim, for the sideline."""
        if None in claim.records:
            for index in reversed(range(len(claim.records))):
                if claim.records[index] is None:
                    self._acker.add_corrupt(claim.shard, claim.pointers[index])

    def _new_chunk(self, places: Sequence[tuple[int, Sequence[int]]], records: Sequence[bytes], nbytes: int) -> Chunk:
        chunk = Chunk(next(self._chunk_ids), places, records, nbytes)
        self._chunks[chunk.first_id >> INDEX_BITS] = chunk
        with self._lock:
            self._bytes += nbytes
        return chunk

    def _submit(self, chunk: Chunk, start: int, stop: int) -> None:
        """To the worker with the least to do, or to the end of `_returned`."""
        # What waits there came first: a small chunk must not pass a large one that no worker took.
        if self._returned or not self._offer(chunk, start, stop):
            self._returned.append((chunk, start, stop))

    def _offer(self, chunk: Chunk, start: int, stop: int) -> bool:
        """False when no worker takes it now."""
        try:
            return any(worker.submit(chunk, start, stop) for worker in sorted(self._pool.workers, key=self._load))
        except MessageTooLargeError as exc:
            # Stored under a larger limit than this consumer has; such a record is alone in its chunk.
            for index in range(start, stop):
                self.on_failed(chunk.first_id + index, Failure(REASON_UNREADABLE, str(exc)))
            return True

    def _hand_out_again(self) -> None:
        """From the front of `_returned`, as much as the workers take now."""
        if len(self._returned) > 1:
            # In the order of the claims: a worker gives back what it was at and what lay behind it, in turns with others.
            waiting = sorted((self._returned.popleft() for _ in range(len(self._returned))), key=_claimed)
            self._returned.extendleft(reversed(waiting))
        while self._returned:
            size, window = self._window()
            if not any(worker.outstanding < window for worker in self._pool.workers):
                return
            chunk, start, stop = self._returned.popleft()
            cut = min(stop, start + size)
            if cut < stop:
                self._returned.appendleft((chunk, cut, stop))
            if not self._offer(chunk, start, cut):
                self._returned.appendleft((chunk, start, cut))
                return  # nobody has room: the others would be refused as well

    def _load(self, worker: Worker) -> tuple[int, bool]:
        """Least goes first. Of those that have as little, the one whose thread this is: it need not be woken."""
        return worker.outstanding, worker is not self._leader

    # -- the acknowledger

    def _ack_loop(self) -> None:
        self._acker.run()
        self._give_back_rest()

    def _give_back_rest(self) -> None:
        """At the end: what was claimed and not started goes back to the queue's tail."""
        pointers: dict[int, list[int]] = {}
        for chunk, start, stop in self._returned:
            for shard, some in chunk.places(start, stop):
                pointers.setdefault(shard, []).extend(some)
        if pointers:
            self.counts["reloaded"] += self._magazines.reload(self.queue.main.name, pointers)
            for chunk, start, stop in self._returned:
                self._forget(chunk, stop - start)
            self._returned.clear()

    def _long_held(self) -> list[tuple[int, Sequence[int]]]:
        """What was in hand at the last look and still is, in whole chunks: to be renewed. What of a chunk is finished the
        store knows."""
        chunks = list(self._chunks.items())
        old = [chunk for number, chunk in chunks if number <= self._renewed_to]
        self._renewed_to = max((number for number, _ in chunks), default=self._renewed_to)
        return [place for chunk in old for place in chunk.places(0, len(chunk.records))]

    # -- upkeep

    def _check_loop(self) -> None:
        ready = 0
        often = self.spec.pool == "process" or (self.spec.pool == "thread" and self.spec.timeout_s is not None)
        while not self._acker.finishing.wait(_CHECK_S if often else _IDLE_CHECK_S):
            if self._pool_lock.acquire(blocking=False):
                try:
                    self._pool.check(time.monotonic())
                finally:
                    self._pool_lock.release()
            before, ready = ready, len(self._pool.workers)
            if ready > before:
                self._room.set()

    def _guard(self, target: Callable[[], None]) -> None:
        """A thread that fails must be seen: the consumer is marked failed, and says so in `stats` and the log."""
        try:
            target()
        except BaseException as exc:
            self._ended_by(exc)

    def _ended_by(self, exc: BaseException) -> None:
        if not (isinstance(exc, (ClosedError, WaitTimeoutError)) and self._stopping.is_set()):
            self._fail(exc)

    def _fail(self, exc: BaseException) -> None:
        self.failed = exc
        self._stopping.set()
        self._room.set()
        self.leading.end(0)
        log.error("consumer of %s failed and stopped claiming: %s", self.queue.name, exc, exc_info=exc)
        if not isinstance(exc, QueueNotFoundError):  # removed by somebody: the other queues go on
            self.queue.app.consumer_failed(self, exc)


def _claimed(returned: tuple[Chunk, int, int]) -> int:
    chunk, start, _ = returned
    return chunk.first_id + start
