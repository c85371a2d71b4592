"""What runs inside a worker process beside the consumers: limits, the link to the supervisor, the dump."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ignis.app import Ignis
from ignis.errors import ClosedError, ConfigError, IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.stacks import start_thread
from ignis.supervisor.control_pipe import Link
from ignis.supervisor.debug_dump import dumping_on_signal, in_hand
from ignis.urls import redacted

__all__ = ["Limits", "Worker", "process_figures", "rss_bytes"]

log = logging.getLogger("ignis.worker")

BURST = "burst"
HANGING = "hanging"
MAX_MESSAGES = "max_messages"
MAX_RSS = "max_rss"
ORPHANED = "orphaned"
SIGNAL = "signal"

_WORDS = {
    BURST: "nothing is left to do",
    HANGING: "all threads that a queue may have hang",
    MAX_MESSAGES: "the messages of --max-messages are handled",
    MAX_RSS: "the memory is over --max-rss",
    ORPHANED: "the supervisor is gone",
}
"""For the log."""
_LOOK_S = 0.1
_REPORT_S = 0.5
_FLUSH_S = 2.0


@dataclass(frozen=True)
class Limits:
    """When a worker process ends by itself, gracefully. 0 = never.

    Attributes:
        max_messages: after so many messages were handled or sidelined; what it holds then is finished.
        max_rss_bytes: when its resident memory is larger.
        burst: when its queues are empty and it has nothing in hand.
    """

    max_messages: int = 0
    max_rss_bytes: int = 0
    burst: bool = False


class Worker:
    """Runs an application in this process until a signal or a limit ends it. Made and used in the main thread.

    Args:
        app: the application.
        queues: names of those to run; None = all with a handler.
        limits: see `Limits`.
        link: to the supervisor, or None.
        stacks_fd: its file for stacks; None = stderr.
        on_started: called once the consumers run and signals are heard.
    """

    def __init__(
        self,
        app: Ignis,
        queues: Iterable[str] | None = None,
        *,
        limits: Limits | None = None,
        link: Link | None = None,
        stacks_fd: int | None = None,
        on_started: Callable[[], None] | None = None,
    ) -> None:
        self._app = app
        self._queues = None if queues is None else list(queues)
        self._limits = limits or Limits()
        self._link = link
        self._stacks_fd = stacks_fd
        self._on_started = on_started
        self._ended = threading.Event()
        self._carried_out = 0
        self._said = LimitedLog(log)
        self._reported_at = 0.0
        self._before = 0
        self.why = SIGNAL

    def run(self, stop_timeout: float | None = None) -> None:
        """Blocks until the end. Raises ConfigError, and the error of a consumer that failed."""
        app = self._app
        if self._link is not None and app.store.in_process:
            raise ConfigError(f"url = {redacted(app.url)!r}: every worker process would have a store of its own")
        # Before anything is claimed: should this process die in its first message, it is known who it was.
        self._tell(
            event="opened", owner=app.store.owner, url=app.url, client_id=app.client_id, farm_id=app.farm_id,
            store_options=app.store_options,
        )  # fmt: skip
        thread = threading.Thread(target=self._attend, name="ignis-worker", daemon=True)
        with dumping_on_signal(lambda: {"pid": os.getpid(), "queues": in_hand(app)}, self._stacks_fd):
            start_thread(thread)
            try:
                app.run(self._queues, stop_timeout=stop_timeout)
            finally:
                self._ended.set()
                thread.join(5.0)
                self._tell(event="ending", why=self.why, drained=app.drained, **process_figures(app))
                if self._link is not None:
                    with contextlib.suppress(ClosedError):
                        self._link.flush(_FLUSH_S)

    # -- the thread beside it

    def _attend(self) -> None:
        app = self._app
        while not app.ready:
            if self._ended.wait(0.005):
                return
        self._tell(
            event="started", queues=running_queues(app), publish_only=publish_only(app), patterns=patterns(app),
        )  # fmt: skip
        if self._on_started is not None:
            self._on_started()
        while not self._ended.is_set():
            try:
                self._hear()
                self._look_at_limits()
                self._report()
            except IgnisError as exc:
                self._said.warning(event_text("worker_look_failed", "worker process cannot look at itself: %s"), exc)
                self._ended.wait(1.0)
            except Exception as exc:
                self._said.error(event_text("worker_look_broken", "worker process cannot look at itself"), exc_info=exc)
                self._ended.wait(1.0)

    def _hear(self) -> None:
        if self._link is None:
            self._ended.wait(_LOOK_S)
            return
        for order in self._link.receive(_LOOK_S):
            if order["do"] == "pause":
                self._app.pause()
            elif order["do"] == "resume":
                self._app.resume()
            self._carried_out = order["number"]
            self._reported_at = 0.0
        if self._link.ended and not self._ended.is_set():
            log.warning(event_text("supervisor_gone", "the supervisor is gone: draining"))
            self._end(ORPHANED)

    def _look_at_limits(self) -> None:
        limits = self._limits
        if limits.max_messages and _finished(self._app) >= limits.max_messages:
            self._end(MAX_MESSAGES)
        elif limits.max_rss_bytes and rss_bytes() > limits.max_rss_bytes:
            log.warning(
                event_text("memory_limit_reached", "resident memory of %d bytes is over %d: ending"),
                rss_bytes(),
                limits.max_rss_bytes,
            )
            self._end(MAX_RSS)
        elif limits.burst and self._empty():
            self._end(BURST)

    def _empty(self) -> bool:
        # What a paused queue or one with no workers has waiting is not for this process.
        queues = [queue for queue in self._app.queues() if queue.consumer is not None and queue.consumers]
        return not any(queue.main.pending() for queue in queues if not queue.paused) and not _in_hand(self._app)

    def _end(self, why: str) -> None:
        self.why = why
        self._app.request_stop(_WORDS[why])
        self._ended.set()

    def _report(self) -> None:
        if self._link is None or time.monotonic() < self._reported_at + _REPORT_S:
            return
        self._reported_at = time.monotonic()
        # The number first: what is quiet now was so after that order.
        number = self._carried_out
        self._tell(event="status", number=number, quiet=self._app.quiet, **process_figures(self._app))
        if any(one.consumer is not None and one.consumer.used_up for one in self._app.queues()):
            self._end(HANGING)  # the supervisor starts another process

    def _tell(self, **message: Any) -> None:
        if self._link is not None:
            try:
                self._link.send(**message)
            except ClosedError:
                return


def running_queues(app: Ignis) -> list[str]:
    """Names of the queues with a consumer here."""
    return sorted(queue.name for queue in app.queues() if queue.consumer is not None)


def publish_only(app: Ignis) -> list[str]:
    """Those of `running_queues` that have a concurrency of 0: nothing of them is claimed here."""
    return sorted(queue.name for queue in app.queues() if queue.consumer is not None and not queue.consumers)


def patterns(app: Ignis) -> list[str]:
    """Of queues that its handlers wait for."""
    return [one.shown for one in app.templates]


def process_figures(app: Ignis) -> dict[str, Any]:
    """What one process knows of itself, without asking the store."""
    figures = app.local_stats()
    figures["queues"] += figures.pop("set_aside", [])
    return {"pid": os.getpid(), "rss_bytes": rss_bytes(), **figures}


def _finished(app: Ignis) -> int:
    consumers = [queue.consumer for queue in app.queues() if queue.consumer is not None]
    return sum(one.counts.handled + one.counts.overdue + one.counts.sidelined for one in consumers)


def _in_hand(app: Ignis) -> bool:
    """Whether this process has claimed what it has not settled: also what a full store does not take yet."""
    return any(not queue.consumer.idle for queue in app.queues() if queue.consumer is not None)


def rss_bytes() -> int:
    """Resident memory of this process; where the system does not say, the largest that it ever was."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
