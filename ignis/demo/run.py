"""The order of events of the demo."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ignis.app import Ignis
from ignis.demo.data import Flight, FlightData, load_flights
from ignis.demo.processes import MemoryPeak, WorkerProcess
from ignis.demo.report import Report, show
from ignis.demo.results import count_entries
from ignis.demo.settings import BUSY_FAILURES, COUNT_CANCELLED, QUEUE, QUEUE_SETTINGS
from ignis.errors import ConfigError, IgnisError
from ignis.magazine import Magazine
from ignis.message import Message
from ignis.private_files import make_temporary, remove_temporary
from ignis.progress import Progress, make_progress
from ignis.queue import Queue

__all__ = ["Options", "run_demo"]

_STEP = 1_024
"""Flights published between two looks at everything else."""
_KILL_AT = 0.3
"""Part of the flights sent when a worker is killed: early enough that a backlog is there, late enough that it works."""
_POLL_S = 0.02
_STALL_S = 120.0
_EMPTY_LOOKS = 3
"""What waits for its next attempt may be between two magazines when it is counted: so often in a row there must be nothing."""


@dataclass
class Options:
    """What to run. ``flights`` None = all; ``url`` None = a store in a directory made for it."""

    flights: int | None = None
    workers: int = 2
    rate: int = 1_000
    steady_s: float = 5.0
    url: str | None = None
    client_id: str = "ignis-demo"
    farm_id: str = "local"
    keep: bool = False
    json: bool = False


def run_demo(options: Options) -> bool:
    """Runs the demo and shows its report; True when nothing was lost and every figure agrees.

    Raises ConfigError (data missing, the queue is in use), IgnisError when a worker does not start or work stalls.
    """
    directory = Path(make_temporary("ignis-demo-"))
    try:
        with make_progress(quiet=options.json) as progress:
            report = _Demo(options, directory, progress).run()
        return show(report, as_json=options.json, kept=directory if options.keep else None)
    finally:
        if not options.keep:
            remove_temporary(directory)


@dataclass
class _Killed:
    pid: int = 0
    held: int = 0
    swept: int = 0


@dataclass
class _Demo:
    options: Options
    directory: Path
    progress: Progress
    memory: MemoryPeak = field(default_factory=MemoryPeak)
    killed: _Killed = field(default_factory=_Killed)
    publish_s: float = 0.0
    busy_failures: int = 0
    workers: list[WorkerProcess] = field(default_factory=list)
    _started: int = 0

    def run(self) -> Report:
        began = time.monotonic()
        options = self.options
        with self.progress.phase("reading the flights"):
            data = load_flights(options.flights)
        with Ignis(self.url, client_id=options.client_id, farm_id=options.farm_id) as app:
            queue = app.queue(QUEUE, Flight, **QUEUE_SETTINGS)
            _must_be_empty(queue, options)
            with self._workers():
                steady = data.flights[: min(int(options.rate * options.steady_s), len(data.flights) // 10)]
                self._steady(queue, steady)
                self._full_speed(app, queue, data.flights[len(steady) :])
                self._await_empty("handling", [queue.main], len(data.flights))
                sidelined = self._sidelined(queue)
                shovelled = self._shovel(queue, sum(sidelined.values()), len(data.flights))
            self.busy_failures = BUSY_FAILURES if app.store.magazines.keeps_later else 0
        with self.progress.phase("comparing with the file"):
            return self._report(data, len(steady), sidelined, shovelled, time.monotonic() - began)

    @property
    def url(self) -> str:
        return self.options.url or f"embedded://{self.directory / 'store'}"

    # -- workers

    @contextlib.contextmanager
    def _workers(self) -> Iterator[None]:
        try:
            with self.progress.phase(f"starting {self.options.workers} worker processes"):
                for _ in range(self.options.workers):
                    self._start_worker()
                for worker in self.workers:
                    worker.wait_ready()
            yield
            with self.progress.phase("stopping the workers"):
                for worker in self.workers:
                    worker.ask_to_stop()
                codes = [worker.wait_stopped() for worker in self.workers]
            self.workers = []
            if any(codes):
                raise IgnisError(f"workers ended with exit codes {codes}; --keep keeps their logs")
        finally:
            for worker in self.workers:
                worker.kill()

    def _start_worker(self) -> WorkerProcess:
        self._started += 1
        options = self.options
        worker = WorkerProcess(self._started, self.url, options.client_id, options.farm_id, self.directory)
        self.workers.append(worker)
        return worker

    def _look(self) -> None:
        for worker in self.workers:
            worker.check()
        self.memory.look([os.getpid(), *(worker.pid for worker in self.workers)])

    # -- the parts, in order

    def _steady(self, queue: Queue[Flight], flights: Sequence[Flight]) -> None:
        if not flights:
            return
        interval_s = 1 / self.options.rate
        with (
            self.progress.phase(f"publishing {self.options.rate:,} a second", len(flights)) as phase,
            queue.publisher() as publisher,
        ):
            due = time.perf_counter()
            for index, flight in enumerate(flights):
                due += interval_s
                # The schedule does not wait for anybody: a late message is sent at once, and its delay counts.
                wait_s = due - time.perf_counter()
                if wait_s > 0:
                    time.sleep(wait_s)
                publisher.send(flight, key=flight.tailnum)
                if index % 64 == 0:
                    phase.done(index)
                    self._look()
            phase.done(len(flights))
        self._await_empty("", [queue.main], 0)

    def _full_speed(self, app: Ignis, queue: Queue[Flight], flights: Sequence[Flight]) -> None:
        kill_at = int(len(flights) * _KILL_AT)
        began = time.monotonic()
        with self.progress.phase("publishing at full speed", len(flights)) as phase:
            with queue.publisher() as publisher:
                send = publisher.send
                for start in range(0, len(flights), _STEP):
                    for flight in flights[start : start + _STEP]:
                        send(flight, key=flight.tailnum)
                    phase.done(publisher.sent)
                    if start >= kill_at and not self.killed.pid:
                        self._kill_one(app, queue.main, insist=False)
                    self._look()
                publisher.flush()
                self.publish_s = time.monotonic() - began
            if not self.killed.pid:
                self._kill_one(app, queue.main, insist=True)

    def _kill_one(self, app: Ignis, main: Magazine[Flight], *, insist: bool) -> None:
        """Kills the first worker with SIGKILL while it holds messages, and has the sweeper take them; a new worker takes its
        place. One that had just finished what it held is replaced, and another dies later."""
        victim = self.workers[0]
        deadline = time.monotonic() + 5.0
        while not self._held_by(main, victim):
            if not insist:
                return
            if time.monotonic() >= deadline or not main.pending():
                break
            time.sleep(0.001)
        self.memory.look([victim.pid], every_s=0)
        victim.kill()
        self.workers.remove(victim)
        held = self._held_by(main, victim)
        if held or insist:
            self.killed = _Killed(victim.pid, held)
            self.progress.note(f"kill -9 {victim.pid}: it held {held:,} messages; another worker takes its place")
            self._sweep(app)
        # Behind the sweep: a worker that starts takes what the dead held as well.
        self._start_worker()

    def _held_by(self, main: Magazine[Flight], worker: WorkerProcess) -> int:
        far_ms = (time.time_ns() // 1_000_000) + 3_600_000
        return sum(
            one.owner == worker.owner
            for shard in range(main.shards)
            for one in main.store.abandoned(main.name, shard, far_ms, 100_000, dead_owners=False)
        )

    def _sweep(self, app: Ignis) -> None:
        sweeper = app.sweeper()
        try:
            self.killed.swept = sweeper.run_once([QUEUE]).swept
        finally:
            sweeper.stop()
        self.progress.note(f"the sweeper took {self.killed.swept:,} messages from the dead worker into the sideline")

    def _await_empty(self, title: str, magazines: Sequence[Magazine[Flight]], total: int) -> None:
        """Waits until nothing is pending, claimed, or to be tried again. Raises IgnisError when nothing moves for long."""
        with self.progress.phase(title, total) as phase:
            recent: deque[int] = deque(maxlen=1)
            moved_at = time.monotonic()
            empty = 0
            while True:
                self._look()
                left = sum(map(_left, magazines))
                phase.done(count_entries(self.directory))
                empty = 0 if left else empty + 1
                if empty == _EMPTY_LOOKS:
                    return
                if left not in recent:
                    recent.append(left)
                    moved_at = time.monotonic()
                if time.monotonic() - moved_at > _STALL_S:
                    raise IgnisError(f"{left:,} messages are left and nothing moves; --keep keeps the workers' logs")
                time.sleep(_POLL_S)

    def _sidelined(self, queue: Queue[Flight]) -> dict[str, int]:
        """What is in the sideline now, by reason."""
        counts: dict[str, int] = {}
        sideline = queue.sideline
        after: dict[int, int] = {}
        while True:
            rows = sideline.store.scan(sideline.name, after=after, limit=1_000)
            for shard, pointer, record in rows:
                reason = (Message.from_bytes(record).reason if record is not None else "corrupt") or "unknown"
                counts[reason] = counts.get(reason, 0) + 1
                after[shard] = pointer
            if len(rows) < 1_000:
                return dict(sorted(counts.items()))

    def _shovel(self, queue: Queue[Flight], sidelined: int, total: int) -> int:
        (self.directory / COUNT_CANCELLED).touch()
        with self.progress.phase("shovelling the sideline back", sidelined) as phase:
            looked_at = 0

            def advance(count: int) -> None:
                nonlocal looked_at
                looked_at += count
                phase.done(looked_at)

            moved = queue.shovel.run_once(progress=advance).moved
        self._await_empty("handling those too", [queue.main, queue.sideline], total)
        return moved

    def _report(
        self, data: FlightData, steady: int, sidelined: dict[str, int], shovelled: int, seconds: float
    ) -> Report:
        report = Report(
            published=len(data.flights),
            steady=steady,
            rate=self.options.rate,
            workers=self.options.workers,
            url=self.url,
            sidelined=sidelined,
            shovelled=shovelled,
            swept=self.killed.swept,
            killed_pid=self.killed.pid,
            killed_held=self.killed.held,
            publish_s=self.publish_s,
            publisher_memory_bytes=self.memory.of(os.getpid()),
            worker_memory_bytes=self.memory.others(os.getpid()),
            seconds=seconds,
            busy_failures=self.busy_failures,
        )
        report.count(self.directory, data)
        return report


def _left(magazine: Magazine[Flight]) -> int:
    return magazine.pending() + magazine.in_flight() + magazine.store.delayed(magazine.name)


def _must_be_empty(queue: Queue[Flight], options: Options) -> None:
    left = _left(queue.main) + _left(queue.sideline)
    if left:
        raise ConfigError(
            f"queue {QUEUE!r} of client_id {options.client_id!r} holds {left:,} messages; the demo wants it empty: "
            "choose another --client-id"
        )
