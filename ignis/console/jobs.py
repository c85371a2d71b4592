"""Work that may take longer than a request: bringing back, dropping, purging. Each runs in a thread and can be asked after."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from ignis.console.refusals import RefusedError, document_of
from ignis.errors import IgnisError
from ignis.stacks import start_thread

__all__ = ["Job", "Jobs", "StoppedError"]

log = logging.getLogger("ignis.console")

MOST_RUNNING = 8
MOST_OF_A_USER = 4
KEPT_FREE = 2
"""Of the places, those that only somebody gets who has none."""
MOST_KEPT = 100
MOST_S = 86_400.0
"""How long a job may take: one that never ends would keep its place for ever."""


class StoppedError(Exception):
    """Raised into a job's work by its `Job.looked`, between two steps, after somebody stopped it."""


class Job:
    """One piece of work. Thread-safe. ``state``: ``running``, ``done``, ``failed`` or ``stopped``."""

    def __init__(self, kind: str, queue: str, by: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self.id = secrets.token_hex(8)
        self.kind = kind
        self.queue = queue
        self.by = by
        self.began_at_ms = time.time_ns() // 1_000_000
        self.state = "running"
        self.looked_at = 0
        self.result: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.on_stop: Callable[[], None] = lambda: None
        """Called once when it is stopped, for work that does not raise `StoppedError` by itself."""
        self._stopping = threading.Event()
        self._ended = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether somebody has stopped it."""
        return self._stopping.is_set()

    def looked(self, count: int) -> None:
        """Counts messages that were looked at. Raises StoppedError."""
        self.count(count)
        if self._stopping.is_set():
            raise StoppedError

    def count(self, count: int) -> None:
        """Counts messages that were looked at. Stops the job where it has taken too long."""
        self.looked_at += count
        self.end_in_time()

    def end_in_time(self) -> None:
        """Stops it where it has taken too long."""
        if self.state == "running" and self._clock() - self._began_s > MOST_S:
            text = f"the job has run for {MOST_S:.0f} s, which is the longest: begin another for what is left"
            self.error = document_of(RefusedError("job_too_long", text))["error"]
            self.stop()

    def stop(self) -> None:
        """Ends it after the step under way. Returns at once. Idempotent."""
        if not self._stopping.is_set():
            self._stopping.set()
            self.on_stop()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within so long."""
        return self._ended.wait(timeout_s)

    def run(self, work: Callable[[Job], dict[str, Any]]) -> None:
        """Does the work, in the thread that calls. Never raises."""
        try:
            self.result = work(self)
            self.state = "stopped" if self.stopping else "done"
        except StoppedError:
            self.state = "stopped"
        except Exception as exc:
            if not isinstance(exc, IgnisError):
                log.error("%s of %s failed", self.kind, self.queue, exc_info=exc)
            self.error = document_of(exc)["error"]
            self.state = "failed"
        finally:
            self._ended.set()

    def document(self) -> dict[str, Any]:
        """What is answered about it."""
        return {
            "job": self.id, "kind": self.kind, "queue": self.queue, "by": self.by, "began_at_ms": self.began_at_ms,
            "state": self.state, "looked_at": self.looked_at, "result": self.result, "error": self.error,
        }  # fmt: skip


class Jobs:
    """Starts jobs and keeps the last of them. Thread-safe.

    Args:
        clock: seconds that only rise; injectable for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Job] = {}
        self._threads: dict[threading.Thread, str | None] = {}
        """Those that run, and who has begun each."""
        self._closed = False

    def start(
        self, kind: str, queue: str, by: str, work: Callable[[Job], dict[str, Any]], *, shared: bool = False
    ) -> Job:
        """Begins one. Raises RefusedError (``too_many_requests``) when `MOST_RUNNING` run, or so many of the user that others
        would be kept out. ``shared``: nobody has a name here, so that all share the places."""
        self._end_in_time()
        job, who = Job(kind, queue, by, self._clock), None if shared else by

        def run() -> None:
            job.run(work)
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

        with self._lock:
            self._check_room(who)
            thread = threading.Thread(target=run, name=f"ignis-console-{kind}", daemon=True)
            self._threads[thread] = who
            self._known[job.id] = job
            ended = [one.id for one in self._known.values() if one.state != "running"]
            for id in ended[: max(0, len(self._known) - MOST_KEPT)]:
                del self._known[id]
        try:
            start_thread(thread)
        except BaseException:
            with self._lock:
                self._threads.pop(thread, None)
                self._known.pop(job.id, None)
            raise
        return job

    def _check_room(self, who: str | None) -> None:
        """Raises RefusedError where the user may not begin one more."""
        running, mine = len(self._threads), sum(one == who for one in self._threads.values())
        if self._closed or running >= MOST_RUNNING:
            raise RefusedError(
                "too_many_requests", f"{running} jobs run already, which is the limit: wait for one of them, or stop it"
            )
        if who is None or mine == 0:
            return
        if mine >= MOST_OF_A_USER or running >= MOST_RUNNING - KEPT_FREE:
            raise RefusedError(
                "too_many_requests",
                f"{running} jobs run, {mine} of them of user {who!r}: a user has at most {MOST_OF_A_USER}, and the last "
                f"{KEPT_FREE} of {MOST_RUNNING} places are for users who have none: wait for one of yours, or stop it",
            )

    def _end_in_time(self) -> None:
        for job in self.list():
            job.end_in_time()

    def get(self, id: str) -> Job:
        """Raises RefusedError (``job_not_found``)."""
        with self._lock:
            found = self._known.get(id)
        if found is None:
            raise RefusedError("job_not_found", "no such job is known here: the last hundred of this process are")
        return found

    def list(self) -> list[Job]:
        """The last ones, the newest first."""
        with self._lock:
            return list(reversed(self._known.values()))

    def close(self, timeout_s: float = 30.0) -> None:
        """Stops all and waits for their ends. Idempotent."""
        with self._lock:
            self._closed = True
            threads, jobs = list(self._threads), list(self._known.values())
        for job in jobs:
            job.stop()
        until_s = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
