"""Where a lone message's time goes: each step from the publish call to the stored acknowledgement, cold and hot.

Two processes on a core each. Cold: 1,000 messages a second, so that every step begins with caches that others have used and a
consumer that sleeps. Hot: the next message when the last one was handled. The clock is read where the library's own functions
begin and end, which adds about a microsecond. The floor beside it is C alone: a message of the same size is copied into a mapped
file and a process that sleeps on a futex is woken.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import REPOSITORY, Options, Recorder, Result
from bench.peers.base import DURABILITIES
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import console, latency_table

_PAUSE_S = 0.001
_TIMEOUT_S = 120.0
_INDEX = struct.Struct("<q")
_KEPT = REPOSITORY / "bench" / "instructions.json"
# A step, from which reading to which, and the step of `bench.instructions` that it contains.
_STEPS = (
    ("publish, until the store is called", "publish", "load", ""),
    ("the store's load, until it returns", "load", "loaded", "publish"),
    ("load called, until it is claimed", "load", "claimed", "claim"),
    ("claimed, until its handler runs", "claimed", "handled", "handle"),
    ("publish to handled", "publish", "handled", ""),
    ("handled, until its acknowledgement is stored", "handled", "acked", "delete"),
)
_FLOOR_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct shared { _Atomic uint32_t number, seen; _Atomic uint64_t at; char log[1 << 20]; };
static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static void on_core(int core)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    if (core >= 0) {
        CPU_SET((unsigned)core, &s);
        sched_setaffinity(0, sizeof s, &s);
    }
}
/* Times from before the copy until the other process runs, into `times`. 0, or -1. */
int floor_of(const char *path, uint32_t count, uint32_t size, uint64_t pause_ns, int here, int there, uint64_t *times)
{
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared)) != 0)
        return -1;
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char message[4096] = {1};
    pid_t child = s == MAP_FAILED ? -1 : fork();
    if (child < 0 || size > sizeof message)
        return -1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        on_core(there);
        for (uint32_t i = 0; i < count; i++) {
            while (atomic_load(&s->number) == i)
                syscall(SYS_futex, &s->number, FUTEX_WAIT, i, NULL, NULL, 0);
            atomic_store(&s->at, now());
            atomic_store(&s->seen, i + 1);
        }
        _exit(0);
    }
    on_core(here);
    for (uint32_t i = 0; i < count; i++) {
        struct timespec t = {0, (long)pause_ns};
        if (pause_ns > 0)
            nanosleep(&t, NULL);
        uint64_t began = now();
        memcpy(s->log + (uint64_t)i * size % (sizeof s->log - size), message, size);
        atomic_store(&s->number, i + 1);
        syscall(SYS_futex, &s->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        while (atomic_load(&s->seen) != i + 1)
            if (now() - began > 10000000000u) {
                kill(child, SIGKILL);
                return -1;
            }
        times[i] = atomic_load(&s->at) - began;
    }
    waitpid(child, NULL, 0);
    munmap(s, sizeof *s);
    close(file);
    return 0;
}
"""


class _Counts(NamedTuple):
    """How many messages a run has of each kind, in this order."""

    warm: int = 200
    cold: int = 1_000
    hot: int = 1_000

    @classmethod
    def of(cls, options: Options) -> _Counts:
        return cls(20, 50, 50) if options.quick else cls()


class _Readings:
    """The clock's readings of one process, by the message's number and the place."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}
        self.rows: list[dict[str, int]] = []

    def around(self, owner: type, name: str, before: str, after: str) -> None:
        """Reads the clock before and behind a method."""
        method, at, now_ns = getattr(owner, name), self.at, time.monotonic_ns

        def timed(*args: Any, **settings: Any) -> Any:
            if before:
                at[before] = now_ns()
            try:
                return method(*args, **settings)
            finally:
                if after:
                    at[after] = now_ns()

        setattr(owner, name, timed)


@contextlib.contextmanager
def _counter(path: str) -> Iterator[mmap.mmap]:
    """A number that both processes see: how many messages were handled."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), _INDEX.size) as shared:
        yield shared


def _produce(gate: Gate, url: str, durability: str, size: int, counts: _Counts, counter: str) -> list[dict[str, int]]:
    import ignis
    from ignis.storage.embedded.magazines import EmbeddedMagazines

    readings = _Readings()
    readings.around(EmbeddedMagazines, "load_body", "load", "loaded")
    now_ns, rows = time.monotonic_ns, []
    with ignis.Ignis(url) as app, _counter(counter) as handled:
        queue = app.queue("bench", bytes, shards=32, durability=durability)
        queue.open()
        gate()
        time.sleep(1.0)  # the consumer gets to its waiting place
        for number in range(sum(counts)):
            if number < counts.warm + counts.cold:
                time.sleep(_PAUSE_S)
            began = now_ns()
            queue.publish(_INDEX.pack(number) + b"x" * (size - _INDEX.size))
            rows.append({"publish": began, **readings.at})
            deadline = began + int(_TIMEOUT_S * 1e9)
            while _INDEX.unpack(handled[: _INDEX.size])[0] <= number:
                if now_ns() > deadline:
                    raise BenchError(f"message {number} was not handled in {_TIMEOUT_S:g} s")
    return rows


def _consume(
    gate: Gate, url: str, durability: str, counts: _Counts, counter: str
) -> tuple[list[dict[str, int]], list[tuple[int, int]]]:
    import ignis
    from ignis.consumer.acknowledger import Acknowledger
    from ignis.storage.embedded.magazines import EmbeddedMagazines

    readings = _Readings()
    for name in ("fire", "fire_next"):
        readings.around(EmbeddedMagazines, name, "", "claimed")
    readings.around(Acknowledger, "_round", "", "acked")
    now_ns, finished, rounds = time.monotonic_ns, threading.Event(), []
    rows: list[dict[str, int]] = []
    with ignis.Ignis(url) as app, _counter(counter) as handled:
        queue = app.queue("bench", bytes, shards=32, durability=durability)

        @queue.handler
        def handle(body: bytes) -> None:
            rows.append({"handled": now_ns(), "claimed": readings.at["claimed"]})
            handled[: _INDEX.size] = _INDEX.pack(len(rows))
            if len(rows) == sum(counts):
                finished.set()

        done = Acknowledger._delete

        def counted(self: Any, taken: Any) -> None:
            done(self, taken)
            rounds.append((sum(len(pointers) for _, pointers in taken), now_ns()))

        Acknowledger._delete = counted  # type: ignore[method-assign]
        app.start()
        gate()
        if not finished.wait(_TIMEOUT_S):
            raise BenchError(f"{len(rows)} messages were handled in {_TIMEOUT_S:g} s")
        app.stop(30.0)
    return rows, rounds


def _one_run(options: Options, durability: str, times: dict[tuple[str, str], list[int]]) -> None:
    counts = _Counts.of(options)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        counter, url = f"{directory}/counter", f"embedded://{directory}/store"
        Path(counter).write_bytes(bytes(_INDEX.size))
        producer, consumer = options.cores
        published, (rows, rounds) = run_together(
            [
                Task(_produce, (url, durability, options.size_bytes, counts, counter), producer),
                Task(_consume, (url, durability, counts, counter), consumer),
            ],
            2 * _TIMEOUT_S,
        )
    acked = [at for count, at in rounds for _ in range(count)]
    for number, (one, other, at) in enumerate(zip(published, rows, acked, strict=True)):
        if number >= counts.warm:
            readings = {**one, **other, "acked": at}
            for step, begins, ends, _ in _STEPS:
                word = "cold" if number < counts.warm + counts.cold else "hot"
                times.setdefault((step, word), []).append(readings[ends] - readings[begins])


def _floor(options: Options, pause_s: float) -> list[int]:
    count = _Counts.of(options).cold
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        source, library = Path(directory, "floor.c"), Path(directory, "floor.so")
        source.write_text(_FLOOR_SOURCE, "utf-8")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
        measured = (ctypes.c_uint64 * count)()
        here, there = (-1 if core is None else core for core in options.cores)
        allowed = os.sched_getaffinity(0)
        try:
            failed = ctypes.CDLL(str(library)).floor_of(
                f"{directory}/log".encode(),
                count,
                options.size_bytes,
                ctypes.c_uint64(int(pause_s * 1e9)),
                here,
                there,
                measured,
            )
        finally:
            os.sched_setaffinity(0, allowed)
        if failed:
            raise BenchError("the floor in C could not be measured")
        return list(measured)


def _instructions(step: str) -> str:
    counts = json.loads(_KEPT.read_text("utf-8"))["counts"] if step else {}
    return f"{step}: {counts[f'embedded {step}']:,} instructions" if step else ""


def run(options: Options, recorder: Recorder) -> None:
    """One table a durability class, the floor in each."""
    runs = 1 if options.quick else options.runs
    for durability in DURABILITIES:
        results: dict[tuple[str, str], Result] = {}
        for _ in range(runs):
            times: dict[tuple[str, str], list[int]] = {}
            _one_run(options, durability, times)
            for word, pause_s in (("cold", _PAUSE_S), ("hot", 0.0)):
                times["floor in C: copy into a mapped file, wake", word] = _floor(options, pause_s)
            for (step, word), values in times.items():
                note = next((_instructions(counted) for name, _, _, counted in _STEPS if name == step), "")
                name = step if step.startswith("floor") else f"ignis: {step}"
                result = results.setdefault((step, word), Result(f"{name}, {word}", durability, note))
                result.n += len(values)
                result.add_latencies(values)
        latency_table(f"Steps of a lone message [{durability}]", list(results.values()))
        recorder.write_all("steps", results.values())
    console.print()
