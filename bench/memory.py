"""Memory over a large backlog: published by one process, drained by another, each watched from outside.

What counts is a process's own memory: RssAnon of /proc/PID/status, summed over the process and its children. The pages
of the store's mapped file are left out: they are the system's cache, given back whenever anybody else needs them.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Options, Recorder, Result
from bench.peers.base import SYNC, MissingError
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.processes import BenchError, Gate, Task, run_together
from bench.store import started
from bench.tables import Goal, console, rate

BACKLOG = 5_000_000
LIMIT_BYTES = 400 << 20
GROWTH_BYTES = 32 << 20
_EVERY_S = 0.1
_TIMEOUT_S = 1_800.0
_PORTION = 10_000


@dataclass
class Watch:
    """Samples the memory of processes, and of their children, until stopped."""

    samples: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self, pids: list[int]) -> None:
        self._thread = threading.Thread(target=self._watch, args=(pids,), daemon=True)
        self._thread.start()

    def _watch(self, pids: list[int]) -> None:
        while not self._stop.wait(_EVERY_S):
            total = sum(anonymous_bytes(pid) for root in pids for pid in family(root))
            if total:
                self.samples.append(total)

    def end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    @property
    def peak(self) -> int:
        return max(self.samples, default=0)

    @property
    def growth(self) -> int:
        """How much higher the last quarter lies than the second: the first is start-up, which may grow."""
        quarter = len(self.samples) // 4
        if not quarter:
            return 0
        second, last = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        return int(statistics.median(last) - statistics.median(second))


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text("utf-8").split()]
    return found


def fill(gate: Gate, peer: IgnisEmbedded, size: int, count: int) -> float:
    """Publishes; returns the seconds until everything was durable."""
    session = peer.session()
    body = b"x" * size
    gate()
    began = time.monotonic()
    for _ in range(count):
        session.publish(body)
    session.flush()
    elapsed = time.monotonic() - began
    session.close()
    return elapsed


def empty(gate: Gate, peer: IgnisEmbedded, count: int) -> tuple[int, float]:
    """Drains; returns the messages acknowledged and the seconds."""
    session = peer.session()
    gate()
    began = time.monotonic()
    done = session.drain_all(count, _PORTION, len, began + _TIMEOUT_S)
    elapsed = time.monotonic() - began
    session.close()
    return done, elapsed


def run(options: Options, recorder: Recorder) -> None:
    """A backlog published and drained once, with workers as threads and as processes."""
    count = BACKLOG // 50 if options.quick else BACKLOG
    results, peaks, growths = [], [], []
    for pool in ("thread", "process"):
        writer = IgnisEmbedded(SYNC, via="publisher")
        try:
            if not Path("/proc/self/status").exists():
                raise BenchError("needs /proc")
            with started(writer, options):
                reader = IgnisEmbedded(SYNC, pool=pool)
                reader.url = writer.url
                filling, emptying = Watch(), Watch()
                seconds = run_together([Task(fill, (writer, options.size_bytes, count))], _TIMEOUT_S, filling.begin)[0]
                filling.end()
                done, drained_s = run_together([Task(empty, (reader, count))], _TIMEOUT_S, emptying.begin)[0]
                emptying.end()
            if done != count:
                raise BenchError(f"{count:,} messages published, {done:,} drained")
        except (MissingError, BenchError, OSError) as exc:
            result = Result(f"ignis, {pool} pool", SYNC, problem=str(exc))
            console.print(f"Memory, {pool} pool: {result.problem}", style="bold red", markup=False)
            results.append(result)
            continue
        for what, watch, elapsed in (("publishing", filling, seconds), ("draining", emptying, drained_s)):
            result = Result(f"ignis, {pool} pool, {what}", SYNC, n=count)
            result.throughput.add(count / elapsed)
            result.extra = {
                "peak_rss_anon_bytes": watch.peak,
                "growth_bytes": watch.growth,
                "samples": len(watch.samples),
            }
            results.append(result)
            peaks.append(watch.peak)
            growths.append(watch.growth)
            console.print(
                f"Memory, {what} {count:,} messages, {pool} pool: peak {watch.peak / 2**20:.0f} MiB, "
                f"last quarter {watch.growth / 2**20:+.1f} MiB over the second, {rate(count / elapsed)} messages/s"
            )
    Goal(
        "peak of a side", max(peaks, default=float("nan")) / 2**20, LIMIT_BYTES / 2**20, at_most=True, unit=" MiB"
    ).show()
    Goal(
        "growth over time", max(growths, default=float("nan")) / 2**20, GROWTH_BYTES / 2**20, at_most=True, unit=" MiB"
    ).show()
    recorder.write_all("memory", results)
