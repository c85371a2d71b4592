"""What a sweep costs: 1,000 abandoned messages behind 10,000 or 1,000,000 that were finished long ago.

The embedded store, and Aerospike where ``IGNIS_BENCH_AEROSPIKE=host:port/namespace`` names a server. Calls are those that
the store counts: commits and moves on the embedded one, client calls on Aerospike. No pass is made by the application that
did the work and so knows what is gone:

* *first*: by another that begins now, where nobody has swept before;
* *second*: nothing is abandoned; what was missing twice is passed for good;
* *again*: with 1,000 abandoned messages more;
* *nothing*: with none;
* *elsewhere*: by a third application, with 1,000 more.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.table import Table

import ignis
from bench.locks import VARIABLE
from bench.measure import Options, Recorder, Result
from bench.tables import Goal, console

RETIRED = (10_000, 1_000_000)
ABANDONED = 1_000
SHARDS = 32
PASSES = ("first", "second", "again", "nothing", "elsewhere")
_CHUNK = 20_000
_AHEAD_S = 100_000.0
_SETTLE_S = 1.0
_FACTOR = 2.0


@dataclass
class Cost:
    """Of one pass."""

    calls: int
    seconds: float
    swept: int


class Missing(Exception):
    """There is no server."""


def run(options: Options, recorder: Recorder) -> None:
    """One table per store. The goal: what was finished long ago does not count once it has been passed."""
    for kind in ("embedded", "aerospike"):
        if not options.wants(kind):
            continue
        results = []
        costs: dict[int, dict[str, Cost]] = {}
        for retired in RETIRED[:1] if options.quick else RETIRED:
            result = Result(f"ignis {kind}", parameters={"retired": retired, "abandoned": ABANDONED, "shards": SHARDS})
            results.append(result)
            try:
                costs[retired] = measure(kind, retired, options)
            except (Missing, AssertionError) as exc:
                result.problem = str(exc)
                continue
            result.n = ABANDONED
            result.extra = {name: vars(cost) for name, cost in costs[retired].items()}
        _show(kind, costs, results)
        recorder.write_all("sweep", results)


def _show(kind: str, costs: dict[int, dict[str, Cost]], results: list[Result]) -> None:
    table = Table(title=f"Sweep, {kind}: {ABANDONED:,} abandoned", title_justify="left")
    for column in ("finished before", *(label for name in PASSES for label in (f"{name},\ncalls", "ms"))):
        table.add_column(column, justify="right")
    for retired, passes in costs.items():
        cells = [f"{retired:,}"]
        for name in PASSES:
            cells += [f"{passes[name].calls:,}", f"{passes[name].seconds * 1000:,.0f}"]
        table.add_row(*cells)
    console.print(table)
    for problem in {result.problem for result in results if result.problem}:
        console.print(problem, style="yellow")
    if len(costs) == len(RETIRED):
        few, many = (costs[retired]["again"].calls for retired in RETIRED)
        Goal(f"{kind}: calls after 1,000,000 / after 10,000, once passed", many / few, _FACTOR, at_most=True).show()


@contextmanager
def _place(kind: str, options: Options) -> Iterator[dict[str, Any]]:
    """Arguments of an application on a fresh store."""
    if kind == "embedded":
        with tempfile.TemporaryDirectory(prefix="ignis-bench-", dir=options.directory) as directory:
            yield {"url": f"embedded://{directory}/store"}
        return
    address = os.environ.get(VARIABLE)
    if not address:
        raise Missing(f"MISSING: no Aerospike server; set {VARIABLE}=host:port/namespace")
    client_id = f"bench{os.getpid()}"
    where = {"url": f"aerospike://{address}", "client_id": client_id, "store": {"settle_s": _SETTLE_S}}
    try:
        yield where
    finally:
        with ignis.Ignis(**where) as app:
            for name in app.store.magazines.names():
                app.store.magazines.drop(name)
            for record in app.store.queues.list():
                app.store.queues.remove(record.name)


def measure(kind: str, retired: int, options: Options) -> dict[str, Cost]:
    """Raises Missing; AssertionError when a pass did not find what is abandoned."""
    with _place(kind, options) as where:
        costs: dict[str, Cost] = {}
        name = f"jobs{retired}"
        with ignis.Ignis(**where) as worker:
            queue = worker.queue(name, bytes, shards=SHARDS, durability="interval")
            _finish(queue, retired, options.size_bytes)
            _abandon(queue, options.size_bytes)
            with ignis.Ignis(**where, clock=lambda: time.time() + _AHEAD_S) as app:
                costs["first"] = _sweep(app, name)
                time.sleep(_SETTLE_S * 1.5)
                costs["second"] = _sweep(app, name)
                _abandon(queue, options.size_bytes)
                costs["again"] = _sweep(app, name)
                time.sleep(_SETTLE_S * 1.5)
                _sweep(app, name)
                costs["nothing"] = _sweep(app, name)
            _abandon(queue, options.size_bytes)
            with ignis.Ignis(**where, clock=lambda: time.time() + _AHEAD_S) as app:
                costs["elsewhere"] = _sweep(app, name)
    for one, cost in costs.items():
        assert cost.swept == (0 if one in ("second", "nothing") else ABANDONED), f"{one}: swept {cost.swept}"
    return costs


def _finish(queue: ignis.Queue[bytes], count: int, size_bytes: int) -> None:
    """Publishes, claims and deletes so many messages, as consumers do."""
    body = b"x" * size_bytes
    for start in range(0, count, _CHUNK):
        queue.publish_many([body] * min(_CHUNK, count - start))
        while fired := queue.main.fire(_CHUNK):
            queue.main.delete(fired)


def _abandon(queue: ignis.Queue[bytes], size_bytes: int) -> None:
    queue.publish_many([b"x" * size_bytes] * ABANDONED, keys=[b"%d" % number for number in range(ABANDONED)])
    left = ABANDONED
    while left:
        left -= len(queue.main.fire(left))


def _sweep(app: ignis.Ignis, name: str) -> Cost:
    before, began_s = _calls(app), time.perf_counter()
    result = app.sweep_queue(name)
    return Cost(_calls(app) - before, time.perf_counter() - began_s, result.swept)


def _calls(app: ignis.Ignis) -> int:
    figures = app.store.stats()
    names = ("client_calls",) if "client_calls" in figures else ("commits", "claim_commits", "transfers", "reloads")
    return sum(int(figures[name]) for name in names)
