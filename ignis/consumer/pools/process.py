"""A pool of workers that are processes: how many there are, what replaces those that end, and who gives up."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from ignis.consumer.handler import HandlerSpec
from ignis.consumer.outcome import overrun_failure
from ignis.consumer.pools.base import (
    Pool,
    Sink,
    Worker,
)
from ignis.consumer.pools.process_worker import ProcessWorker
from ignis.errors import NativeError, WorkerStartError
from ignis.log_format import event_text
from ignis.native import process_start_time
from ignis.private_files import make_temporary
from ignis.process_hooks import at_exit

__all__ = ["ProcessPool"]

log = logging.getLogger("ignis.workers")

_ACCOUNT_S = 10.0
"""How long the accounting for a killed process may take."""
_RESTART_PAUSE_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_MOST_FAILED_STARTS = 8
"""After so many in a row, with no worker left, the pool gives up."""


class ProcessPool(Pool):
    """A `Pool` of processes. Each process is a new interpreter that imports the handler's module.

    A process that ends before it is ready is replaced after a pause that grows, one at a time; see `check` for the end of
    that.

    Args:
        spec: the handler.
        sink: where outcomes go.
        codec: the name of the queue's body codec.
        max_record_bytes: the largest record that a worker has room for.
        give_back_s: see `WorkLoop`.
        start_timeout_s: how long a process may take until it is ready.
        cancel_grace_s: how long one may go on with a message that was cancelled.
    """

    def __init__(
        self,
        spec: HandlerSpec,
        sink: Sink,
        *,
        codec: str,
        max_record_bytes: int,
        give_back_s: float,
        start_timeout_s: float,
        cancel_grace_s: float,
    ) -> None:
        self.spec = spec
        self.sink = sink
        self.codec = codec
        self.max_record_bytes = max_record_bytes
        self.give_back_s = give_back_s
        self.pid = os.getpid()
        self._start_timeout_s = start_timeout_s
        self._cancel_grace_s = cancel_grace_s
        memory = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
        if memory.is_dir():
            _remove_leftovers(memory)
        prefix = f"ignis-{os.getpid()}-{_pid_namespace()}-"
        try:
            self.directory = Path(make_temporary(prefix, memory if memory.is_dir() else None))
        except OSError as exc:
            raise WorkerStartError(spec.name, spec.queue, f"no directory for its channels: {exc.strerror}") from exc
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a worker is ready, or has ended
        self._workers: list[ProcessWorker] = []
        self._leaving: list[ProcessWorker] = []
        self._target = 0
        self._made = 0
        self._early_deaths = 0
        self._restart_at = 0.0
        self.deaths = 0
        self.failed_starts = 0
        """Processes in a row that ended before they were ready."""
        self.start_error: str | None = None
        """Why the last of them did."""
        at_exit(_kill_at_exit)
        _open.add(self)

    @property
    def workers(self) -> Sequence[Worker]:
        return [worker for worker in self._workers if worker.ready and not worker.leaving]

    @property
    def holders(self) -> Sequence[Worker]:
        return [worker for worker in [*self._workers, *self._leaving] if worker.ready]

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid]

    def resize(self, count: int) -> None:
        with self._lock:
            self._target = count
            self._size(count)

    def _size(self, count: int) -> None:
        """Caller holds the lock."""
        for worker in self._workers[count:]:
            worker.leave(stop=True)
            self._leaving.append(worker)
        self._workers = self._workers[:count]
        # One that ends the message it is at counts until then, so that no more run than there are to be.
        while len(self._workers) + len(self._leaving) < count:
            self._made += 1
            self._workers.append(ProcessWorker(self, self._made))

    def on_death(self, worker: ProcessWorker) -> None:
        """Called by the reader of a process that ended, after it accounted for everything."""
        with self._lock:
            if worker in self._leaving:
                self._leaving.remove(worker)
            elif worker in self._workers:
                self._workers.remove(worker)
                self.deaths += 1
                if not worker.ready:
                    self._count_failed_start(worker.start_error)
                early = time.monotonic() - worker.started_at < 2.0
                self._early_deaths = self._early_deaths + 1 if early or not worker.ready else 0
                pause = _RESTART_PAUSE_S[min(self._early_deaths, len(_RESTART_PAUSE_S) - 1)]
                self._restart_at = time.monotonic() + pause
            self._changed.notify_all()
        worker.close()

    def on_ready(self) -> None:
        """Called by the reader of a process that has begun to take messages."""
        with self._lock:
            self.failed_starts, self.start_error = 0, None
            self._changed.notify_all()

    def _count_failed_start(self, why: str | None) -> None:
        """Caller holds the lock."""
        self.failed_starts += 1
        self.start_error = why
        log.warning(
            event_text("worker_process_not_started", "worker process of %s cannot start (%d in a row): %s"),
            self.spec.queue,
            self.failed_starts,
            why,
        )

    def wait_started(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        with self._lock:
            while self._target and not any(worker.ready for worker in self._workers):
                told = [worker.start_error for worker in self._workers if worker.start_error is not None]
                why = next(iter(told), self.start_error)
                if told or (why is not None and not self._workers):
                    raise WorkerStartError(self.spec.name, self.spec.queue, why or "")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise WorkerStartError(self.spec.name, self.spec.queue, self._too_slow())
                self._changed.wait(left_s)

    def _too_slow(self) -> str:
        return f"none was ready within {self._start_timeout_s:g} s (consumer.worker_start_timeout_s)"

    def check(self, now_s: float) -> None:
        timeout_s = self.spec.timeout_s
        if timeout_s is not None:
            for worker in [*self._workers, *self._leaving]:
                running = worker.running() if worker.ready and worker.process.poll() is None else None
                if running is not None and running[2] is not None and running[2] > timeout_s:
                    failure = overrun_failure(timeout_s)
                    said = f"{failure.error} (its process is killed)"
                    named, again = worker.name_of(running[0], running[1]), worker.overrun_follows(running[0])
                    self.spec.log.failed(failure.reason, said, named, again=again)
                    worker.kill(failure)
        for worker in [*self._workers, *self._leaving]:
            worker.kill_cancelled(now_s, self._cancel_grace_s)
        for worker in list(self._workers):
            if not worker.ready and now_s - worker.started_at > self._start_timeout_s and worker.process.poll() is None:
                worker.start_error = self._too_slow()
                worker.process.kill()
        if len(self._workers) + len(self._leaving) < self._target and now_s >= self._restart_at:
            self._replace()

    def _replace(self) -> None:
        """Starts what is missing; after a start that failed only one at a time, until one is ready."""
        with self._lock:
            count = len(self._workers)
            if not self.failed_starts:
                count = self._target
            elif all(worker.ready for worker in self._workers):
                if not self._workers and self.failed_starts >= _MOST_FAILED_STARTS:
                    raise WorkerStartError(
                        self.spec.name,
                        self.spec.queue,
                        f"{self.start_error} ({self.failed_starts} failed starts in a row)",
                    )
                count = min(self._target, count + 1)
            try:
                self._size(count)
            except (WorkerStartError, NativeError) as exc:  # no process, or no room for its channels
                self._count_failed_start(str(exc))
                pause = _RESTART_PAUSE_S[min(self.failed_starts, len(_RESTART_PAUSE_S) - 1)]
                self._restart_at = time.monotonic() + pause

    def drain(self, timeout: float) -> bool:
        self._target = 0
        everyone = [*self._workers, *self._leaving]
        for worker in everyone:
            worker.leave(stop=False)
        deadline = time.monotonic() + timeout
        while any(worker.outstanding for worker in everyone):
            if time.monotonic() >= deadline:
                return self._break_off([worker for worker in everyone if worker.outstanding])
            self.check(time.monotonic())
            time.sleep(0.005)
        return True

    def _break_off(self, workers: Sequence[ProcessWorker]) -> bool:
        """Kills these. What they were at goes back, where they have ended for it: whether they have all."""
        calls = [(worker, call) for worker in workers for call in worker.calls()]
        for worker in workers:
            worker.kill(None, give_back=True)
        for worker in workers:
            worker.thread.join(_ACCOUNT_S)
        self.broken_off = [call for worker, call in calls if worker.gave_back]
        self.unended = [call for worker, call in calls if not worker.gave_back]
        return all(worker.gave_back for worker in workers)

    def close(self, timeout: float) -> None:
        self._target = 0
        with self._lock:
            everyone = [*self._workers, *self._leaving]
            self._leaving, self._workers = everyone, []
        for worker in everyone:
            worker.leave(stop=True)
        deadline = time.monotonic() + timeout
        for worker in everyone:
            if not worker.ended(max(0.05, deadline - time.monotonic())):
                log.warning(
                    event_text("worker_process_killed", "worker process %s did not end in time; killed"), worker.name
                )
                worker.kill(None)
            worker.thread.join(_ACCOUNT_S)
        self._forget()

    def kill(self) -> None:
        for worker in [*self._workers, *self._leaving]:
            worker.kill(None)
        self._forget()

    def _forget(self) -> None:
        _open.discard(self)
        shutil.rmtree(self.directory, ignore_errors=True)


_open: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _kill_at_exit() -> None:
    # They would notice that their parent is gone, but not before they have finished what they are at.
    for pool in list(_open):
        if pool.pid == os.getpid():
            pool.kill()


def _pid_namespace() -> int:
    """Process ids mean nothing outside it, and containers may share the directory."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _remove_leftovers(memory: Path) -> None:
    """Removes the directories of processes that were killed and could not do it themselves."""
    for path in memory.glob(f"ignis-*-{_pid_namespace()}-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not process_start_time(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
