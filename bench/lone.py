"""What a lone call costs: processor time of a load, a claim and a delete of one message, beside what others take.

All in one process and one thread, cold and hot. Cold: a call a millisecond, so that each begins with what others have left of
the caches. The clock is the thread's own (``CLOCK_THREAD_CPUTIME_ID``); what reading it takes is measured and taken off.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Options, Recorder, Result
from bench.peers.base import NONE, MissingError, require_module
from bench.tables import Goal, console, latency_table

_COLD, _HOT = 1_000, 5_000
_PAUSE_S = 0.001
_GOAL_US = 15.0
_WORDS = ("load", "claim", "delete")

Steps = tuple[Callable[[], object], ...]


@contextmanager
def _ignis(directory: Path, body: bytes) -> Iterator[Steps]:
    import ignis

    with ignis.Ignis(f"embedded://{directory}/store") as app:
        queue = app.queue("lone", bytes, shards=1, durability=NONE)
        held: list[object] = []
        main = queue.main

        def load() -> None:
            queue.publish(body)

        def claim() -> None:
            held[:] = main.fire(1)

        def delete() -> None:
            main.delete(held)  # type: ignore[arg-type]

        yield load, claim, delete


@contextmanager
def _lmdb(directory: Path, body: bytes) -> Iterator[Steps]:
    require_module("lmdb", "lmdb")
    import lmdb

    directory.mkdir()
    env = lmdb.open(str(directory), map_size=1 << 28, sync=False, max_dbs=2)
    waiting, claimed = env.open_db(b"waiting"), env.open_db(b"claimed")
    numbers = iter(range(1 << 60))
    held: list[bytes] = []

    def load() -> None:
        with env.begin(db=waiting, write=True) as txn:
            txn.put(next(numbers).to_bytes(8, "big"), body, append=True)

    def claim() -> None:
        with env.begin(write=True) as txn:
            cursor = txn.cursor(waiting)
            cursor.first()
            key, value = cursor.item()
            txn.put(key, value, db=claimed)
            cursor.delete()
            held[:] = [key]

    def delete() -> None:
        with env.begin(db=claimed, write=True) as txn:
            txn.delete(held[0])

    with closing(env):
        yield load, claim, delete


@contextmanager
def _sqlite(directory: Path, body: bytes) -> Iterator[Steps]:
    directory.mkdir()
    held: list[int] = []
    with closing(sqlite3.connect(directory / "queue", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        db.execute(
            "CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB, claimed INTEGER NOT NULL DEFAULT 0)"
        )
        db.execute("CREATE INDEX waiting ON queue (id) WHERE claimed = 0")

        def load() -> None:
            db.execute("INSERT INTO queue (body) VALUES (?)", (body,))

        def claim() -> None:
            held[:] = db.execute(
                "UPDATE queue SET claimed = 1 "
                "WHERE id = (SELECT id FROM queue WHERE claimed = 0 ORDER BY id LIMIT 1) RETURNING id"
            ).fetchone()

        def delete() -> None:
            db.execute("DELETE FROM queue WHERE id = ?", (held[0],))

        yield load, claim, delete


@contextmanager
def _floor(directory: Path, body: bytes) -> Iterator[Steps]:
    """What the store asks the system for in a call that changes anything: a look by path, a write, a look by descriptor."""
    directory.mkdir()
    path = directory / "log"
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        handle, at = file.fileno(), 0

        def write() -> None:
            nonlocal at
            os.stat(path)
            os.pwrite(handle, body, at)
            os.fstat(handle)
            at = (at + len(body)) % (1 << 19)

        yield write, write, write


_PEERS = (
    ("ignis", _ignis, "publish; magazine.fire(1); magazine.delete"),
    ("py-lmdb", _lmdb, "a transaction each, sync=False: a put; a move; a delete"),
    ("sqlite3", _sqlite, "WAL, synchronous = OFF: INSERT; UPDATE ... RETURNING; DELETE"),
    ("three system calls", _floor, "stat, pwrite, fstat"),
)


def _spent(call: Callable[[], object]) -> int:
    clock, which = time.clock_gettime_ns, time.CLOCK_THREAD_CPUTIME_ID
    began = clock(which)
    call()
    return clock(which) - began


def _measure(steps: Steps, count: int, pause_s: float) -> list[list[int]]:
    """Nanoseconds of each step, `count` times, in turn."""
    times: list[list[int]] = [[] for _ in steps]
    reading = sorted(_spent(lambda: None) for _ in range(200))[100]
    for _ in range(count):
        for step, into in zip(steps, times, strict=True):
            if pause_s:
                time.sleep(pause_s)
            into.append(max(0, _spent(step) - reading))
    return times


def run(options: Options, recorder: Recorder) -> None:
    """One table a step."""
    body = b"x" * options.size_bytes
    results: dict[tuple[str, str, str], Result] = {}
    for _ in range(1 if options.quick else options.runs):
        for name, opened, how in _PEERS:
            if not options.wants(name):
                continue
            with TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
                try:
                    with opened(Path(directory, "made"), body) as steps:
                        _measure(steps, 50, 0.0)
                        for word, count, pause_s in (("cold", _COLD, _PAUSE_S), ("hot", _HOT, 0.0)):
                            times = _measure(steps, count // (10 if options.quick else 1), pause_s)
                            for step, values in zip(_WORDS, times, strict=True):
                                key = (step, word, name)
                                result = results.setdefault(key, Result(f"{name}, {word}", NONE, how, {"step": step}))
                                result.n += len(values)
                                result.add_latencies(values)
                except MissingError as exc:
                    for step in _WORDS:
                        results[step, "cold", name] = Result(
                            f"{name}, cold", NONE, problem=str(exc), parameters={"step": step}
                        )
    for step in _WORDS:
        here = {key[1:]: one for key, one in results.items() if key[0] == step}
        latency_table(
            f"A lone {step}: processor time", list(here.values()), caption="one thread; cold: one call a millisecond"
        )
        ours = here.get(("cold", "ignis"))
        if ours is not None and not options.quick:
            Goal(f"a lone {step}, cold", ours.latency("p50") / 1e3, _GOAL_US, at_most=True, unit=" µs").show()
        recorder.write_all("lone", list(here.values()))
    console.print()
