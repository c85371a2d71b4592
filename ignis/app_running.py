"""The life of an application in one process: start, pause, stop, and `run` until a signal comes."""

from __future__ import annotations

import contextlib
import logging
import os
import queue as queues_
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from ignis.app_schedules import AppSchedules
from ignis.config import check_name, check_timeout, shown
from ignis.consumer import PROCESS
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.control.refresher import Refresher
from ignis.control.sweeper import Sweeper
from ignis.errors import ConfigError, IgnisError, StoreUnreachableError
from ignis.hooks import Hooks
from ignis.log_format import event_text
from ignis.main_guard import check_start
from ignis.near_names import meant
from ignis.process_hooks import FORKS, at_exit
from ignis.queue_table import QueueTable
from ignis.stacks import start_thread
from ignis.stop_signals import stop_signals
from ignis.storage.base import QueueRecord
from ignis.storage.os_errors import without_means
from ignis.upkeep import timers_of, upkeep_stalled

__all__ = ["AppRunning"]

log = logging.getLogger("ignis.app")

_IDLE_S = 1.0
"""So long a stop with nothing in hand waits for a store that cannot be reached."""
_MOST_NAMED = 20
"""Queues in an error's text."""

_started: weakref.WeakSet[AppRunning] = weakref.WeakSet()


def _say_running() -> None:
    """At the end of a process whose main thread has nothing more to do: the threads that handle messages end with it."""
    if any(one.running and one.started_at_fork == FORKS[0] for one in list(_started)):
        log.warning(
            event_text(
                "ended_while_running",
                "the process ends while an application runs: what is in hand is handled again later, elsewhere; "
                "app.run() instead of app.start() waits for a signal, app.close() lets handlers finish",
            )
        )


class AppRunning:
    """Starts and stops what works on the queues of one application. Thread-safe.

    Args:
        table: the application's queues.
        refresher: of the application.
        sweeper: the application's sweeper, made with the first call.
        sweeper_made: the same where it was made, else None.
        schedules: of the application.
        lock: held while everything is started.
        stop_timeout_s: for a `stop` without one.
        check_consuming: raises where the store has nothing to consume from.
        stored: what the store knows of the queue of that name.
        hooks: of the application.
        wait_no_longer: see `AppStore.wait_no_longer`.
    """

    def __init__(
        self,
        table: QueueTable,
        refresher: Callable[[], Refresher],
        sweeper: Callable[[], Sweeper],
        sweeper_made: Callable[[], Sweeper | None],
        schedules: AppSchedules,
        lock: threading.RLock,
        stop_timeout_s: float,
        check_consuming: Callable[[], None],
        stored: Callable[[str], QueueRecord | None],
        hooks: Hooks,
        wait_no_longer: Callable[[float | None], None],
    ) -> None:
        self._table = table
        self._refresher = refresher
        self._sweeper = sweeper
        self._sweeper_made = sweeper_made
        self._schedules = schedules
        self._lock = lock
        self._stop_timeout_s = stop_timeout_s
        self._check_consuming = check_consuming
        self._stored = stored
        self._hooks = hooks
        self._wait_no_longer = wait_no_longer
        self.running = False
        self.started_at_fork = FORKS[0]
        self.paused = False
        self._ready = False
        self.drained = True
        self._stop_lock = threading.Lock()
        # A SimpleQueue, because a signal handler may put into it whatever lock the interrupted code holds; an Event
        # set from there can wait for itself.
        self._wake: queues_.SimpleQueue[None] = queues_.SimpleQueue()
        self._stop_asked = False
        self._stop_why = ""
        self._signalled = False
        self._signals_seen = 0
        self._failure: BaseException | None = None

    def start(self, queues: Iterable[str] | None = None) -> None:
        """See ``app.start``."""
        check_start("app.start() was called")
        if queues is not None:
            if isinstance(queues, str):
                raise ConfigError(f"queues = {shown(queues)} is one name; give a list of names")
            try:
                queues = [check_name(one) for one in queues]
            except TypeError:
                raise ConfigError(f"queues = {shown(queues)} is not a list of names") from None
        refresher, templates = self._refresher(), self._table.templates
        with self._lock:
            chosen = [queue for queue in self._table.all() if queue.spec is not None]
            if queues is not None:
                wanted = set(queues)
                named = {queue.name for queue in chosen}
                if missing := [name for name in sorted(wanted - named) if not self._may_fit(name, templates)]:
                    raise _no_handlers(missing, sorted(named), [one.pattern for one in templates if one.pattern])
                chosen = [queue for queue in chosen if queue.name in wanted]
            if not chosen and not templates:
                raise ConfigError("no queue of this application has a handler")
            self._failure = None
            self.running, self.started_at_fork = True, FORKS[0]
            _started.add(self)
            at_exit(_say_running)
            try:
                with without_means("the application cannot be started"):
                    self._check_consuming()
                    timers_of(None).begin()  # later there may be no thread for them
                    # The store need not know them yet: who runs them is the first to open them.
                    chosen += self._table.adopt_declared(lambda name: queues is None or name in wanted)
                    for queue in chosen:
                        queue.start(held=True)
                    self._sweeper().start()
                    self._schedules.start()
                    refresher.start(None if queues is None else wanted)
            except BaseException:
                self._stop(0)
                raise
            # Nothing is claimed before everything runs: a start that fails leaves no message behind.
            for queue in chosen:
                queue.let_go()
        if templates:
            refresher.run_once()  # the queues that are there already do not wait for the first pass
        self._ready = True

    def _may_fit(self, name: str, templates: Sequence[HandlerTemplate]) -> bool:
        """Whether a handler of a pattern or a type runs, or may later run, a queue of that name. Asks the store where only its
        record can tell."""
        if not templates or any(one.fits_name(name) for one in templates):
            return bool(templates)
        record = self._stored(name)
        if record is not None:
            return any(one.fits(record) for one in templates)
        return not all(one.pattern for one in templates)

    def start_late(self, name: str | None = None) -> None:
        """Runs what was registered while the application runs: the queue of that name, or those that a pattern fits."""
        if not self.running:
            return
        log.warning(
            event_text(
                "handler_registered_late",
                "a handler of %s was registered after the start: it runs from now on; register before app.start()",
            ),
            name or "a pattern of queues",
        )
        if name is None:
            try:
                for queue in self._table.adopt_declared(self._refresher().may_run):
                    queue.start()
                self._refresher().run_once()
            except IgnisError as exc:
                log.warning(
                    event_text(
                        "late_queues_wait", "the queues that it fits are found by the refresher's next pass: %s"
                    ),
                    exc,
                )
        elif self._refresher().may_run(name) and (named := self._table.find(name)) is not None:
            named.start()

    def pause(self) -> None:
        """See ``app.pause``."""
        self.paused = True
        for queue in self._table.all():
            if queue.consumer is not None:
                queue.consumer.pause(PROCESS)

    def resume(self) -> None:
        """Claims again after `pause`."""
        self.paused = False
        for queue in self._table.all():
            if queue.consumer is not None:
                queue.consumer.resume(PROCESS)

    @property
    def ready(self) -> bool:
        """Started, and there are threads for what is due beside the handlers: acknowledgements, renewals, timers."""
        return self._ready and not upkeep_stalled()

    @property
    def quiet(self) -> bool:
        """Paused, with nothing claimed and every outcome stored."""
        consumers = [queue.consumer for queue in self._table.all()]
        return self.paused and all(one is None or one.quiet for one in consumers)

    def stop(self, timeout: float | None = None) -> bool:
        """See ``app.stop``."""
        timeout = self._stop_timeout_s if timeout is None else check_timeout(timeout)
        self.check_outside("app.stop()")
        return self._stop(timeout)

    def check_outside(self, called: str) -> None:
        """Raises ConfigError in a handler of this application or a hook after handling, for whose end the call would wait."""
        if self._hooks.runs_here():
            where = "an after_handling hook"
        else:
            consumers = [(queue.name, queue.consumer) for queue in self._table.all()]
            inside = [name for name, one in consumers if one is not None and one.runs_here()]
            if not inside:
                return
            where = f"a handler of queue {inside[0]!r}"
        raise ConfigError(
            f"{called} was called in {where}, and would wait for it to end: call app.request_stop() there, which makes app.run() "
            f"return and stop the application; without app.run(), wake the thread that started it and call {called} in that one"
        )

    def _stop(self, timeout: float) -> bool:
        # Not under the application's lock: a handler that is to finish may want a queue of this application.
        with self._stop_lock:
            self.running = self._ready = False
            # What is in hand is worth the time that a stop has.
            self._wait_no_longer(min(timeout, _IDLE_S) if self._idle else timeout)
            try:
                # All of them at once: where hundreds are busy, each step that waits takes long until the others are quiet.
                for queue in self._table.all():
                    queue.begin_stop()
                return self._stop_all(timeout)
            finally:
                self._wait_no_longer(None)

    @property
    def _idle(self) -> bool:
        """Whether nothing is claimed here, and every outcome is stored."""
        consumers = [queue.consumer for queue in self._table.all()]
        return all(one is None or one.idle for one in consumers)

    def _stop_all(self, timeout: float) -> bool:
        # Before the rest: it would start again what is stopped here.
        self._refresher().stop(timeout)
        queues = self._table.all()
        clean: list[bool] = []
        threads = [threading.Thread(target=lambda one=one: clean.append(one.stop(timeout))) for one in queues]
        for thread in threads:
            try:
                start_thread(thread)
            except (RuntimeError, MemoryError, OSError):  # no thread can be started: one after the other, then
                thread.run()
        self._schedules.stop(timeout)
        sweeper = self._sweeper_made()
        if sweeper is not None:
            sweeper.stop(timeout)
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout + 10)
        self.drained = len(clean) == len(queues) and all(clean)
        self._wake.put(None)  # `run`, in another thread
        return self.drained

    def run(self, start: Callable[[], object], stop: Callable[[], object], stop_timeout: float | None) -> None:
        """See ``app.run``. ``start`` and ``stop`` are the application's, which may do more than those of here."""
        if stop_timeout is not None:
            check_timeout(stop_timeout, "stop_timeout")
        self.check_outside("app.run()")
        self._stop_asked, self._stop_why = False, ""
        self._signalled, self._signals_seen = False, 0
        check_start("app.run() was called")
        _check_no_loop()
        with _signals(self._on_signal):
            start()
            while self.running and not self._stop_asked:
                with contextlib.suppress(queues_.Empty):
                    self._wake.get(timeout=0.5)
            self._say_stopping()
            stop()
        if self._failure is not None:
            raise self._failure

    def _say_stopping(self) -> None:
        # Which process, since those of a supervisor log to one place.
        if self._signalled:
            log.info(event_text("stopping", "process %d: stopping; a second signal ends at once"), os.getpid())
        else:
            why = self._stop_why or "app.stop() was called"  # by another thread: nobody asked `run`
            log.info(event_text("stopping", "process %d: %s: stopping"), os.getpid(), why)

    def request_stop(self, why: str = "") -> None:
        """Makes `run` return, from any thread or a handler. ``why``: for the log."""
        self._stop_why = self._stop_why or why or "app.request_stop() was called"
        self._stop_asked = True
        self._wake.put(None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals_seen += number != signal.SIGHUP
        if self._signals_seen > 1:
            for queue in self._table.all():
                if queue.consumer is not None:
                    queue.consumer.kill()
            os._exit(130)
        self._signalled = True
        self.request_stop()

    def failed(self, exc: BaseException) -> None:
        """A consumer cannot go on."""
        if isinstance(exc, MemoryError):
            error = StoreUnreachableError("a consumer ended: no memory is left (ulimit -v)")
            error.__cause__ = exc
            exc = error
        self._failure = exc
        self.request_stop("a consumer cannot go on")


def _no_handlers(missing: Sequence[str], named: Sequence[str], patterns: Sequence[str]) -> ConfigError:
    """``named``: the queues that have a handler; ``patterns``: of those that may come."""
    hint = meant(missing[0], named) if len(missing) == 1 else ""
    known = [*named, *(f"every {pattern}" for pattern in patterns)]
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    there = f"{hint}there are {', '.join(known[:_MOST_NAMED])}{more}" if known else "there is none for any queue"
    return ConfigError(f"no handler is registered for {', '.join(missing)}: {there}")


def _check_no_loop() -> None:
    """Raises ConfigError inside a coroutine: nothing else of its event loop would run until the end."""
    asyncio = sys.modules.get("asyncio")  # without it there is no loop, and it takes long to import
    if asyncio is None or asyncio._get_running_loop() is None:
        return
    raise ConfigError(
        "app.run() was called in a running event loop and would block it: inside `async with app:` write "
        "`await asyncio.to_thread(app.start)`, and await whatever ends the program; leaving the block stops the application"
    )


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Installs the handler for the signals that ask to stop while in the main thread; elsewhere nothing can be installed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
