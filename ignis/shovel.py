"""The shovel: brings the sideline back to the main magazine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ignis.config import check_timeout
from ignis.context import QueueContext
from ignis.errors import ConfigError, IgnisError
from ignis.log_format import event_text
from ignis.near_names import meant
from ignis.shovel_choice import Where
from ignis.shovel_pass import Progress, ShovelPass, ShovelResult, check_options
from ignis.shovel_schedule import ShovelSchedule
from ignis.stacks import start_thread

__all__ = ["Shovel", "ShovelResult"]

log = logging.getLogger("ignis.shovel")

ONE_SHOT_RETRY_S = 10.0
_ONCE_OPTIONS = ("dry_run", "limit", "progress", "rate", "where")


class Shovel:
    """Moves one queue's sideline, its dead-letter queue, back to its main magazine. Others call a shovel redrive. Thread-safe.

    Every message keeps its id, its failures, the reason of its last failure and the rest of its time to live. A message that
    the main magazine does not accept stays in the sideline. A corrupt one has no body to handle and always stays.

    The schedule brings a message back ``max_returns`` times and counts each return in its envelope; then it waits for a
    person. So does a message whose envelope cannot hold the count, and one that its handler's ``retry`` has given up. With a
    ``shovel_retry`` the schedule goes by that policy, see `ignis.shovel_rounds`.
    `run_once`, `run_until_done` and `start_once` are for a person: they bring back every message that fits and begin the
    count anew.

    Args:
        name: of the queue.
        queue: gives the queue as it is now; opens it where it is not.
    """

    def __init__(self, name: str, queue: Callable[[], QueueContext[Any]]) -> None:
        self._name = name
        self._queue = queue
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._once: threading.Thread | None = None
        self._passes = ShovelPass(name, queue, self._stop)
        self._schedule = ShovelSchedule(name, queue, self._passes, self._stop, self._lock)

    @property
    def total(self) -> ShovelResult:
        """The counts of all passes since the start of this process."""
        return self._passes.total

    @property
    def returned(self) -> int:
        """Messages that the schedule moved; `total` has those moved by hand too."""
        return self._schedule.returned

    @property
    def waiting(self) -> int:
        """Messages that only a person brings back, as of the schedule's last pass in this process."""
        return self._schedule.waiting

    @property
    def given_up(self) -> int:
        """Of these: messages for which the queue's ``shovel_retry`` has no round left."""
        return self._schedule.given_up

    def stats(self) -> dict[str, int]:
        """Figures since the start of this process; ``waiting`` as of the schedule's last pass here."""
        total = self.total
        return {
            "moved": total.moved, "returned": self.returned, "kept": total.kept, "refused": total.refused,
            "waiting": self.waiting, "given_up": self.given_up,
        }  # fmt: skip

    def run_once(
        self,
        *,
        limit: int | None = None,
        where: Where | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ShovelResult:
        """Makes one pass over the messages that are in the sideline now. Returns the counts.

        It also moves messages that have come back ``max_returns`` times, and begins the count of all that it moves anew.
        Messages that arrive meanwhile wait for the next pass.

        Args:
            limit: look at no more than this many messages.
            where: move only messages for which this is true; the others stay where they are, and nobody claims them. What
                has an attribute ``spent`` that is true ends the pass.
            rate: move at most so many messages a second, so that the handlers can keep up.
            dry_run: only count the messages that would move; nothing is claimed or changed.
            progress: called with the number of messages looked at since the last call.

        Raises ConfigError, and the store's error when a claim fails.
        """
        check_options(limit, where, rate, progress)
        if not self._schedule.started and self._once is None:
            self._stop.clear()  # an earlier stop ended the schedule, not passes by hand
        if dry_run:
            result = self._passes.count(limit, where, progress)
        elif where is not None:
            result = self._passes.pick(limit, where, rate, progress)
        else:
            result = self._passes.run(limit, rate, progress, None)
        with contextlib.suppress(IgnisError):  # the pass is made: who may not count, or cannot now, is told what it did
            result.left = self._passes.left(result, limit, where, dry_run=dry_run)
        return result

    def run_until_done(self, timeout: float, **options: Any) -> ShovelResult:
        """Makes a pass by hand, and another one 10 s after each that fails or that has refused messages, for ``timeout`` seconds.

        Returns ``moved`` of all passes, ``kept``, ``refused`` and ``left`` of the last. ``options``: those of `run_once`. Raises
        the last error; one that is not retryable at once."""
        deadline = time.monotonic() + check_timeout(timeout)
        result = ShovelResult()
        while True:
            try:
                one = self.run_once(**options)
                result = ShovelResult(result.moved + one.moved, one.kept, one.refused, left=one.left)
                if not one.refused or time.monotonic() + ONE_SHOT_RETRY_S > deadline:
                    return result
                log.warning(
                    event_text("shovel_once_refused", "%d message(s) of %s were refused, trying again in %g s"),
                    one.refused, self._name, ONE_SHOT_RETRY_S,
                )  # fmt: skip
            except IgnisError as exc:
                if not exc.retryable or time.monotonic() + ONE_SHOT_RETRY_S > deadline:
                    raise
                log.warning(
                    event_text("shovel_once_failed", "shovel of %s failed, trying again in %g s: %s"),
                    self._name,
                    ONE_SHOT_RETRY_S,
                    exc,
                )
            if self._stop.wait(ONE_SHOT_RETRY_S):
                return result

    def start_once(self, timeout: float = 86_400.0, **options: Any) -> threading.Thread:
        """Calls `run_until_done` in a thread of its own, beside any schedule; returns the thread. While such a thread runs, that
        one is returned and none is started. Its error is logged. Raises ConfigError."""
        check_timeout(timeout)
        for name in options:
            if name not in _ONCE_OPTIONS:
                raise ConfigError(
                    f"unknown option {name!r} of a shovel; {meant(name, _ONCE_OPTIONS)}known: {', '.join(_ONCE_OPTIONS)}"
                )
        given = {name: options.get(name) for name in ("limit", "where", "rate", "progress")}
        check_options(**given)  # so that the caller gets the error, not the thread's log
        with self._lock:
            if self._once is not None and self._once.is_alive():
                return self._once
            if not self._schedule.started:
                self._stop.clear()
            self._once = threading.Thread(
                target=self._run_once_logged, args=(timeout, options), name=f"ignis-shovel-once-{self._name}",
                daemon=True,
            )  # fmt: skip
            start_thread(self._once)
            return self._once

    def _run_once_logged(self, timeout: float, options: dict[str, Any]) -> None:
        try:
            result = self.run_until_done(timeout, **options)
            log.info(
                event_text("shovel_once_done", "one-shot shovel of %s moved %d message(s)"), self._name, result.moved
            )
        except Exception as exc:
            log.error(
                event_text("shovel_once_gave_up", "one-shot shovel of %s gave up: %s"), self._name, exc, exc_info=exc
            )

    # -- the schedule

    def run_scheduled(self) -> ShovelResult:
        """Makes a pass of the schedule, over messages that have not come back ``max_returns`` times. If there are none, it claims
        nothing. With a ``shovel_retry``: a pass over those whose round has come."""
        return self._schedule.run()

    def start(self) -> None:
        """Starts the schedule (``queue.shovel_interval_s``; 0 = none). The first pass is due when the interval has passed since
        the last one of any process. Idempotent."""
        self._schedule.start()

    def reschedule(self) -> None:
        """Follows a changed ``shovel_interval_s`` at once: the wait in progress begins anew."""
        self._schedule.reschedule()

    @property
    def started(self) -> bool:
        """Whether it passes at its interval."""
        return self._schedule.started

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and the one-shot; a pass in progress ends after its batch, and puts back what it claimed. What the
        store did not take back is tried again until the store is closed. Idempotent."""
        with self._lock:
            once, self._once = self._once, None
            self._schedule.end(timeout)
        if once is not None:
            once.join(timeout)
