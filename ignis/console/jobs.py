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
MOST_KEPT = 100


class StoppedError(Exception):
    """Raised into a job's work by its `Job.looked`, between two steps, after somebody stopped it."""


class Job:
    """One piece of work. Thread-safe. ``state``: ``running``, ``done``, ``failed`` or ``stopped``."""

    def __init__(self, kind: str, queue: str, by: str) -> None:
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
        self.looked_at += count
        if self._stopping.is_set():
            raise StoppedError

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
    """Starts jobs and keeps the last of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Job] = {}
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def start(self, kind: str, queue: str, by: str, work: Callable[[Job], dict[str, Any]]) -> Job:
        """Begins one. Raises RefusedError (``too_many_requests``) when `MOST_RUNNING` run."""
        job = Job(kind, queue, by)

        def run() -> None:
            job.run(work)
            with self._lock:
                self._threads.discard(threading.current_thread())

        with self._lock:
            if self._closed or len(self._threads) >= MOST_RUNNING:
                raise RefusedError("too_many_requests", f"{len(self._threads)} jobs run already: wait for one of them")
            thread = threading.Thread(target=run, name=f"ignis-console-{kind}", daemon=True)
            self._threads.add(thread)
            self._known[job.id] = job
            ended = [one.id for one in self._known.values() if one.state != "running"]
            for id in ended[: max(0, len(self._known) - MOST_KEPT)]:
                del self._known[id]
        try:
            start_thread(thread)
        except BaseException:
            with self._lock:
                self._threads.discard(thread)
                self._known.pop(job.id, None)
            raise
        return job

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
