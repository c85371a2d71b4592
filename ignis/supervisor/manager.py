"""The supervisor: keeps a number of worker processes running, whatever happens to each of them.

One thread, the caller's, does everything that concerns processes; what others ask for (signals, the autoscaler) is a
note that it reads. Nothing here handles messages or imports the application: a supervisor has little to die of.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue as queues_
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ignis.config import SupervisorSettings
from ignis.errors import ConfigError, IgnisError, StoreUnreachableError
from ignis.exit_status import ending
from ignis.hooks import call_user_code
from ignis.log_format import event_text
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.supervisor.aggregate import Totals
from ignis.supervisor.orphaned_claims import OrphanedClaims
from ignis.supervisor.process import GONE, LOCKED, RUNNING, STARTING, STOPPING, WorkerCommand, WorkerProcess
from ignis.supervisor.worker_main import BURST, HANGING, MAX_MESSAGES, MAX_RSS

__all__ = ["Supervisor"]

log = logging.getLogger("ignis.supervisor")

_LOOK_S = 0.05
_GIVE_BACK_S = 15.0
_KILLED_S = 5.0
_LEAST_END_S = 1.0
_PAUSE_S = 2.0
"""A look that took longer: this process was stopped, and perhaps all were."""
_NOT_WHOLE = 1
_USAGE = 2
_INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Supervisor:
    """Runs worker processes. `run` belongs to one thread (for signals the main one); everything else is thread-safe.

    Args:
        command: how one is started.
        processes: how many at first.
        settings: see ``ignis.config``.
        stop_timeout_s: how long a process may drain.
        burst: the processes end when their queues are empty, and so does `run`.
        on_started: called once the first ``processes`` consume.
        on_stopping: called in the end, before the store is closed: whoever uses `store` must stop then.
    """

    def __init__(
        self,
        command: WorkerCommand,
        processes: int,
        *,
        settings: SupervisorSettings | None = None,
        stop_timeout_s: float = 30.0,
        burst: bool = False,
        on_started: Callable[[], None] | None = None,
        on_stopping: Callable[[], object] | None = None,
    ) -> None:
        if processes < 0:
            raise ConfigError(f"processes = {processes} is below 0")
        self._command = command
        self._settings = settings or SupervisorSettings()
        self._stop_timeout_s = stop_timeout_s
        self._burst = burst
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._target = processes
        self._first_target = processes
        self._living: list[WorkerProcess] = []
        self._generation = 0
        self._looked_at = time.monotonic()
        self._silent: set[int] = set()
        self._asked: queues_.SimpleQueue[str] = queues_.SimpleQueue()
        self._numbers = iter(range(1, 1 << 62))
        self._stopping = False
        self._stops_asked = 0
        self._ever_ready = False
        self._announced = False
        self._failures = 0
        self._start_at = 0.0
        self._code = 0
        self._store: Store | None = None
        self._store_lock = threading.Lock()
        self._from: dict[str, Any] = {}
        self.totals = Totals()
        self.orphaned = OrphanedClaims(self.store, self.totals.count_aside)
        self.deaths = 0
        self.restarts = 0

    # -- what others may ask

    def request_stop(self) -> None:
        """Drains all processes, then `run` returns. Asked a second time it ends them at once."""
        self._asked.put("stop")

    def reload(self) -> None:
        """Replaces the processes one by one: each ends only when its successor consumes. Those that are locked from claiming
        end as soon as they have nothing in hand, and are not unlocked again."""
        self._asked.put("reload")

    def dump(self) -> None:
        """Lets every process write what it is doing into its log, and this one too."""
        self._asked.put("dump")

    def workers(self) -> int:
        """The number of processes that are wanted."""
        return self._target

    def scale_to(self, count: int) -> None:
        """Sets the number of processes. More start at once, those locked before any new one. Fewer: the youngest are locked
        from claiming and end when they have nothing in hand. Returns at once."""
        if count < 0:
            raise ConfigError(f"processes = {count} is below 0")
        self._target = count

    def store(self) -> Store:
        """The workers' store, opened on first use. Raises StoreUnreachableError before any of them has started."""
        with self._store_lock:
            if self._store is None:
                if not self._from:
                    raise StoreUnreachableError("no worker process has said which store it uses")
                self._store = open_store(
                    self._from["url"], client_id=self._from["client_id"], farm_id=self._from["farm_id"],
                    **self._from["store_options"],
                )  # fmt: skip
            return self._store

    @property
    def opened(self) -> Store | None:
        """The workers' store, where it is open here. Waits for nobody."""
        return self._store

    @property
    def queues(self) -> list[str]:
        """The queues that run in any process."""
        return sorted({name for one in list(self._living) for name in one.started.get("queues", [])})

    @property
    def publish_only(self) -> list[str]:
        """Those of `queues` that no process claims from: their concurrency was 0 when it started."""
        return sorted({name for one in list(self._living) for name in one.started.get("publish_only", [])})

    @property
    def patterns(self) -> list[str]:
        """Of queues that their handlers wait for."""
        return sorted({name for one in list(self._living) for name in one.started.get("patterns", [])})

    @property
    def healthy(self) -> bool:
        """Whether as many processes as wanted consume and speak. Those that begin count while one consumes and none has
        failed lately: more workers are no reason to end them all."""
        living = list(self._living)
        there = speaking = sum(one.state == RUNNING and not self._is_silent(one) for one in living)
        if speaking and not self._failures:
            there += sum(one.state == STARTING and one.replaces is None for one in living)
        return not self._stopping and there >= self._target

    def _is_silent(self, one: WorkerProcess) -> bool:
        return one.silent_s >= self._settings.silent_after_s

    @property
    def ready(self) -> bool:
        """Whether it is `healthy` and has not begun to stop."""
        return self.healthy and not self._stopping

    @property
    def stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._stopping

    def describe(self) -> dict[str, Any]:
        """For people and for the health endpoint."""
        return {
            "pid": os.getpid(), "wanted": self._target, "stopping": self._stopping, "deaths": self.deaths,
            "restarts": self.restarts, "recovered": self.orphaned.total.sidelined,
            "failures_in_a_row": self._failures, "processes": [one.describe() for one in list(self._living)],
        }  # fmt: skip

    # -- the thread

    def run(self) -> int:
        """Blocks until asked to stop, or in a burst until the queues are empty. Returns an exit code: 0, 1 when a burst
        left messages in hand, 130 after a second signal,
        2 when the processes cannot even begin (a wrong option or setting; they have said which)."""
        with self._signals():
            try:
                self._looked_at = time.monotonic()
                while not self._over():
                    self._obey()
                    self._look_at_the_clock()
                    self._listen()
                    self._reap()
                    self._adjust()
                    self._announce()
            finally:
                self._end()
        return self._code

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        pause_s, self._looked_at = now - self._looked_at, now
        if pause_s > _PAUSE_S:
            for one in self._living:
                one.excuse(pause_s)

    def _over(self) -> bool:
        done = self._stopping or (self._burst and self._target == 0)
        return done and all(one.unkillable for one in self._living)

    def _obey(self) -> None:
        try:
            asked = self._asked.get(timeout=_LOOK_S)
        except queues_.Empty:
            return
        if asked == "stop":
            self._stop()
        elif asked == "reload" and not self._stopping:
            log.info(event_text("processes_reloading", "reloading %d process(es), one by one"), len(self._living))
            self._generation += 1
        elif asked == "dump":
            state = self.describe()
            log.warning(event_text("supervisor_state", "supervisor: %s"), json.dumps(state), extra=state)
            for one in self._living:
                # Before it has its handler the signal would end it.
                if one.state != STARTING:
                    one.send_signal(signal.SIGUSR1)

    def _stop(self) -> None:
        self._stops_asked += 1
        if self._stops_asked > 1:
            log.warning(
                event_text(
                    "processes_ended_at_once",
                    "ending at once: what the processes hold goes to the sideline as abandoned, as far as it is known",
                )
            )
            self._code = _INTERRUPTED
            for one in self._living:
                one.kill()
            return
        log.info(
            event_text("processes_stopping", "stopping %d process(es); a second signal ends at once"), len(self._living)
        )
        self._stopping = True
        for one in self._living:
            one.stop(self._stop_timeout_s + self._settings.kill_after_s)

    def _listen(self) -> None:
        for one in self._living:
            self._hear(one)
            one.log_stacks()
        if self._living and all(one.age_s > self._settings.stable_after_s for one in self._living):
            self._failures = 0

    def _hear(self, one: WorkerProcess) -> None:
        for event in one.hear():
            if event["event"] == "opened":
                self._from = {name: event[name] for name in ("url", "client_id", "farm_id", "store_options")}
            elif event["event"] == "started":
                self._ever_ready = True
                queues = ", ".join(event["queues"]) or "no queue yet"
                log.info(event_text("process_consumes", "process %d consumes: %s"), one.pid, queues)
            elif event["event"] == "ending":
                one.end_within(max(self._settings.kill_after_s, _LEAST_END_S))
        self.totals.note(one.number, one.status)

    def _reap(self) -> None:
        for one in list(self._living):
            code = one.popen.poll()
            if code is None:
                why = one.overdue(self._settings.start_timeout_s, self._settings.silent_kill_after_s)
                if why and not one.killed:
                    log.warning(event_text("process_killed", "process %d (%s) %s: killed"), one.pid, one.state, why)
                    one.kill()
                continue
            self._hear(one)  # what it had said before its end still counts
            self.totals.close(one.number)
            self._living.remove(one)
            self._silent.discard(one.number)
            one.close()
            self._account_for(one, code)
            one.state = GONE

    def _account_for(self, one: WorkerProcess, code: int) -> None:
        """Decides what the end of a process means. One that is over its limit of memory before it has done anything is a
        failure: so will the next one be."""
        clean = code == 0 and bool(one.why) and bool(one.status.get("drained"))
        if self._burst and code == 0 and one.why and not clean:
            log.warning(
                event_text("burst_not_whole", "process %d left messages in hand: the burst is not whole"), one.pid
            )
            self._code = self._code or _NOT_WHOLE
        if one.owner and not clean:
            self.orphaned.give_back(one.owner, f"its process ended with {ending(code)}")
        if one.why == BURST and code == 0:
            self._target = max(0, self._target - 1)
            return
        if code == 0 and (one.why == HANGING or (one.why in (MAX_MESSAGES, MAX_RSS) and one.finished)):
            log.info(event_text("process_limit_reached", "process %d has reached its limit (%s)"), one.pid, one.why)
            self.restarts += not self._stopping
            return
        asked = code in (0, -signal.SIGTERM) and one.why != MAX_RSS
        if one.state == STOPPING and (self._stopping or asked):
            return  # it was told to, perhaps before it could listen
        self.deaths += 1
        if code == _USAGE and not one.started and not self._ever_ready:
            self._code, self._stopping = _USAGE, True
            for other in self._living:
                other.kill()
            return
        self._failures = 1 if one.age_s > self._settings.stable_after_s else self._failures + 1
        wait_s = min(
            self._settings.restart_wait_max_s, self._settings.restart_wait_s * 2 ** min(self._failures - 1, 30)
        )
        self._start_at = time.monotonic() + wait_s
        if not self._stopping:
            self.restarts += 1
            queues = ", ".join(one.started.get("queues", [])) or "no queue yet"
            log.warning(
                event_text("process_died", "process %d of %s ended with %s; another one in %.3g s"),
                one.pid, queues, ending(code), wait_s,
            )  # fmt: skip

    def _adjust(self) -> None:
        """As many processes as wanted: locked ones first, then new ones; the youngest go first."""
        if self._stopping:
            return
        for one in self._living:
            if one.idle:
                one.stop(self._stop_timeout_s + self._settings.kill_after_s)
        self._replace_old()
        serving = [
            one
            for one in self._living
            if one.state in (STARTING, RUNNING) and one.replaces is None and not self._gone_silent(one)
        ]
        missing = self._target - len(serving)
        usable = [
            one for one in self._living if one.state == LOCKED and not (self._is_old(one) or self._is_silent(one))
        ]
        for one in usable[: max(0, missing)]:
            log.info(event_text("process_unlocked", "process %d is unlocked: there is work"), one.pid)
            one.unlock()
            missing -= 1
        if missing > 0 and time.monotonic() >= self._start_at:
            for _ in range(missing):
                self._start()
        for one in sorted(serving, key=_youngest_first)[: max(0, -missing)]:
            if one.state == STARTING:
                one.stop(self._settings.kill_after_s)
            else:
                log.info(
                    event_text(
                        "process_locked", "process %d is locked: it claims nothing more and ends when it is idle"
                    ),
                    one.pid,
                )
                one.lock()

    def _gone_silent(self, one: WorkerProcess) -> bool:
        """Whether it runs and says nothing: stopped, or its handler keeps the interpreter. Another one works beside it then;
        when it speaks again, there is one too many."""
        silent = one.state == RUNNING and self._is_silent(one)
        if silent and one.number not in self._silent:
            log.warning(
                event_text("process_silent", "process %d has said nothing for %.3g s: another one works beside it"),
                one.pid,
                one.silent_s,
            )
            self._silent.add(one.number)
        elif not silent:
            self._silent.discard(one.number)
        return silent

    def _is_old(self, one: WorkerProcess) -> bool:
        """Whether it has the code and the settings from before the last reload."""
        return one.generation < self._generation

    def _replace_old(self) -> None:
        """The reload in progress: a successor beside one old process, and when that consumes, the old one drains."""
        successor = next((one for one in self._living if one.replaces is not None), None)
        if successor is not None:
            if successor.state == RUNNING and successor.replaces is not None:
                successor.replaces.stop(self._stop_timeout_s + self._settings.kill_after_s)
                successor.replaces = None
            return
        old = [one for one in self._living if self._is_old(one)]
        draining = any(one.state == STOPPING for one in old)
        waiting = [one for one in old if one.state in (STARTING, RUNNING) and not self._is_silent(one)]
        if waiting and not draining and time.monotonic() >= self._start_at:
            self._start(replaces=waiting[0])

    def _start(self, replaces: WorkerProcess | None = None) -> None:
        try:
            one = WorkerProcess(self._command, next(self._numbers), self._generation, replaces=replaces)
        except OSError as exc:
            self._failures += 1
            self._start_at = time.monotonic() + self._settings.restart_wait_max_s
            log.error(event_text("process_not_started", "a worker process cannot be started: %s"), exc)
            return
        self._living.append(one)

    def _announce(self) -> None:
        if self._announced or self._on_started is None or self._stopping:
            return
        if sum(one.state == RUNNING for one in self._living) >= self._first_target:
            self._announced = True
            # The processes run: whoever wanted to hear of it does not end them.
            call_user_code(
                log, event_text("start_announcement_failed", "announcing the start failed"), self._on_started
            )

    def _end(self) -> None:
        for one in self._living:
            one.kill()
        for one in self._living:
            try:
                one.popen.wait(_KILLED_S)
            except subprocess.TimeoutExpired:
                log.warning(
                    event_text("process_unkillable", "process %d was killed and has not ended after %g s"),
                    one.pid,
                    _KILLED_S,
                )
            one.close()
            if one.owner:
                self.orphaned.give_back(one.owner, "its supervisor ended it")
        if not self.orphaned.wait_done(_GIVE_BACK_S):
            log.warning(
                event_text(
                    "dead_processes_left",
                    "not everything that dead processes held was given back: the rest is left to the sweeper",
                )
            )
        self.orphaned.close()
        if self._on_stopping is not None:
            self._on_stopping()
        with self._store_lock, contextlib.suppress(IgnisError):
            if self._store is not None:
                self._store.close()
                self._store = None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A SimpleQueue may be put into whatever the interrupted code holds.
        self._asked.put({signal.SIGHUP: "reload", signal.SIGUSR1: "dump"}.get(signal.Signals(number), "stop"))


def _youngest_first(one: WorkerProcess) -> tuple[bool, int]:
    return one.state != STARTING, -one.number
