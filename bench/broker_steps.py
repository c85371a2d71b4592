"""Where the time of a lone publish through the broker goes: each step from the call to its return, the broker's own in between.

Two processes, one message at a time. The clock is read where the library's own functions begin and end, which adds two or three
microseconds in all. The floor beside it is C alone: as many bytes there, an acknowledgement's bytes back, over loopback TCP.
"""

from __future__ import annotations

import asyncio
import bisect
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import DURABILITIES
from bench.peers.ports import free_port
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import console, latency_table

_MESSAGES, _WARM = 3_000, 300
_QUICK_MESSAGES, _QUICK_WARM = 150, 15
_TIMEOUT_S = 120.0
_FRAME_BYTES = 50
"""About what stands round a message on the wire."""
_ACK_BYTES = 30
_STEPS = (
    ("publish, until its request is packed", "publish", "packed"),
    ("publish, until the broker has read", "publish", "reads"),
    ("read, until the client has the answer", "reads", "answered"),
    ("read, until the broker waits again, without a flush", "reads", "done"),
    ("answered, until publish returns", "answered", "returned"),
    ("publish", "publish", "returned"),
)
_FLOOR_SOURCE = r"""
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
/* Round trips, each with `there` bytes and `back` bytes, into `times`. 0, or -1. */
int floor_of(uint32_t count, uint32_t there, uint32_t back, uint64_t *times)
{
    char bytes[1 << 16] = {0};
    int one = 1, listening = socket(AF_INET, SOCK_STREAM, 0), us = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(listening, (void *)&at, sizeof at) || listen(listening, 1) || getsockname(listening, (void *)&at, &size) ||
        there > sizeof bytes || back > sizeof bytes)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(us); /* else its copy keeps the connection open, and it waits out its time at the end */
        int them = accept(listening, NULL, NULL), watch = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN}, found;
        setsockopt(them, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(watch, EPOLL_CTL_ADD, them, &event);
        while (epoll_wait(watch, &found, 1, 10000) == 1 && recv(them, bytes, sizeof bytes, 0) > 0)
            send(them, bytes, back, MSG_NOSIGNAL);
        _exit(0);
    }
    if (child < 0 || connect(us, (void *)&at, sizeof at))
        return -1;
    setsockopt(us, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int failed = 0;
    for (uint32_t i = 0; i < count && !failed; i++) {
        uint64_t began = now();
        failed = send(us, bytes, there, MSG_NOSIGNAL) != there || recv(us, bytes, back, MSG_WAITALL) != back;
        times[i] = now() - began;
    }
    close(us);
    close(listening);
    waitpid(child, NULL, 0);
    return -failed;
}
"""


def _counts(options: Options) -> tuple[int, int]:
    """How many messages are measured, and how many are published before them."""
    return (_QUICK_MESSAGES, _QUICK_WARM) if options.quick else (_MESSAGES, _WARM)


def _around(rows: list[tuple[str, int]], owner: Any, name: str, before: str, after: str) -> None:
    """Reads the clock before and behind a function."""
    call, now_ns, take = getattr(owner, name), time.monotonic_ns, rows.append

    def timed(*args: Any) -> Any:
        if before:
            take((before, now_ns()))
        found = call(*args)
        if after:
            take((after, now_ns()))
        return found

    setattr(owner, name, timed)


def _serve(gate: Gate, url: str, port: int) -> list[tuple[str, int]]:
    from ignis.broker.server.server import Broker
    from ignis.broker.server.session import Session
    from ignis.cli.broker import _new_loop

    rows: list[tuple[str, int]] = []
    _around(rows, Session, "buffer_updated", "reads", "done")

    async def serve() -> None:
        broker = Broker(url, port=port)
        await broker.start()
        gate()
        deadline = time.monotonic() + _TIMEOUT_S
        # By what was read, and not by a session that was seen: a quick run is over between two looks.
        came = False
        while time.monotonic() < deadline and not (came and not broker.sessions):
            came = bool(rows)
            await asyncio.sleep(0.1)
        await broker.stop(5.0)

    loop = _new_loop()
    loop.run_until_complete(serve())
    loop.close()
    return rows


def _publish(gate: Gate, port: int, durability: str, size: int, count: int, warm: int) -> list[dict[str, int]]:
    import ignis
    from ignis.broker.client import sync_connection

    at: list[tuple[str, int]] = []
    _around(at, sync_connection, "exchange_lone", "packed", "answered")
    now_ns, rows, body = time.monotonic_ns, [], b"x" * size
    gate()
    with ignis.Ignis(f"ignis://127.0.0.1:{port}") as app:
        queue = app.queue("bench", bytes, shards=32, durability=durability)
        queue.open()
        for _ in range(warm):
            queue.publish(body)
        for _ in range(count):
            at.clear()
            began = now_ns()
            queue.publish(body)
            rows.append({"publish": began, "returned": now_ns(), **dict(at)})
    return rows


def _one_run(options: Options, durability: str, times: dict[str, list[int]]) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        served, published = run_together(
            [
                Task(_serve, (f"embedded://{directory}/store", port)),
                Task(_publish, (port, durability, options.size_bytes, *_counts(options))),
            ],
            2 * _TIMEOUT_S,
        )
    starts = [at for _, at in served]
    next_ones = [row["publish"] for row in published[1:]] + [starts[-1] + 1]
    for row, next_one in zip(published, next_ones, strict=True):
        first, last = bisect.bisect_left(starts, row["publish"]), bisect.bisect_left(starts, next_one)
        for name, at in served[first:last]:
            row.setdefault(name, at)
        for step, begins, ends in _STEPS:
            # The client may have published again before the broker is done.
            if begins in row and ends in row:
                times.setdefault(step, []).append(row[ends] - row[begins])
    if missing := [step for step, _, _ in _STEPS if step not in times]:
        raise BenchError(f"never read: {', '.join(missing)}: has a function another name?")


def _floor(options: Options) -> list[int]:
    count, _ = _counts(options)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        source, library = Path(directory, "floor.c"), Path(directory, "floor.so")
        source.write_text(_FLOOR_SOURCE, "utf-8")
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source], check=True, timeout=60
        )
        measured = (ctypes.c_uint64 * count)()
        there = options.size_bytes + _FRAME_BYTES
        if ctypes.CDLL(str(library)).floor_of(count, there, _ACK_BYTES, measured):
            raise BenchError("the floor in C could not be measured")
        return list(measured)


def run(options: Options, recorder: Recorder) -> None:
    """One table a durability class, the floor in each."""
    runs = 1 if options.quick else options.runs
    for durability in DURABILITIES:
        results: dict[str, Result] = {}
        for _ in range(runs):
            times: dict[str, list[int]] = {}
            _one_run(options, durability, times)
            times["floor in C: there and back over loopback TCP"] = _floor(options)
            for step, values in times.items():
                name = step if step.startswith("floor") else f"ignis: {step}"
                result = results.setdefault(step, Result(name, durability, ""))
                result.n += len(values)
                result.add_latencies(values)
        latency_table(f"Steps of a lone publish through the broker [{durability}]", list(results.values()))
        recorder.write_all("broker_steps", results.values())
    console.print()
