"""The pipeline program, killed at named points and at random, and run again: files, queue and Parquet must agree."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads

from ignis import Ignis
from tests.support import spark as spark_support
from tests.torture.report import Outcome

__all__ = ["DESCRIPTION", "POINTS", "Ground", "tests"]

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300.0
QUEUE = "orders"
DESCRIPTION = """
name = "orders"
queue = { name = "orders", settings = { shards = 4, shovel_interval = 0 } }

[schema]
order = { type = "integer", required = true }
kind = { values = ["a", "b"] }

[ingest]
paths = ["in/*.jsonl"]
format = "jsonl"
dedup = ["order"]

[export]
path = "out"
partition_by = ["kind"]
"""
POINTS = (
    "check:end",
    "quarantine:end",
    "publish:within",
    "publish:end",
    "claim:begin",
    "claim:end",
    "write:end",
    "place:begin",
    "place:end",
    "commit:end",
)


class Ground:
    """A directory with a description, input that grows, and what should come out of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"embedded://{directory / 'store'}"
        self.rejected = 0
        self.expected: set[int] = set()
        (directory / "in").mkdir()
        (directory / "p.toml").write_text(DESCRIPTION)

    def add_file(self, rows: int) -> None:
        """Another file: rows, a tenth of them twice, and three that are broken."""
        first = len(self.expected)
        orders = range(first, first + rows)
        lines = [json.dumps({"order": order, "kind": "ab"[order % 2]}) for order in [*orders, *orders[::10]]]
        path = self.directory / "in" / f"{first:09}.jsonl"
        path.write_text("\n".join([*lines, "broken", '{"kind":"a"}', '{"order":1,"kind":"c"}']) + "\n")
        self.expected |= set(orders)
        self.rejected += 3

    def drive(self, point: str = "", mutant: str = "", *, spark: Any = None) -> bool:
        """Runs the program in a process of its own; returns whether it was killed. Raises RuntimeError when it failed.
        With ``spark`` it works in that session's JVM, which lives on."""
        command = [sys.executable, "-m", "tests.torture.pipeline_driver", str(self.directory), self.url, point, mutant]
        # Into a file: a pipe would be held open by the dead driver's JVM, which takes a moment to notice.
        log = self.directory / "driver.log"
        with log.open("wb") as file:
            done = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=WAIT_S, check=False,
                env=None if spark is None else spark_support.guest_of(spark),
            )  # fmt: skip
        if spark is not None:
            spark_support.bury(spark)
        if done.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the driver ended with {done.returncode} at {point!r}: {log.read_text()[-2000:]}")
        return done.returncode != 0

    def found(self) -> Counter[int]:
        """Order -> how often it is in the Parquet files that readers see."""
        out = self.directory / "out"
        if not out.exists():
            return Counter()
        table = pads.dataset(out, partitioning="hive", ignore_prefixes=["_", "."]).to_table(columns=["order"])
        return Counter(table["order"].to_pylist())

    def quarantined(self) -> int:
        return sum(
            len(path.read_text().splitlines())
            for path in (self.directory / "quarantine").rglob("*.json")
            if not any(part.startswith(("_", ".")) for part in path.relative_to(self.directory).parts)
        )

    def left(self) -> dict[str, Any]:
        """What is still in the queue."""
        with Ignis(self.url) as app:
            stats = app.queue(QUEUE).stats()
        return {name: stats[name] for name in ("pending", "in_flight", "sideline") if stats[name]}

    def faults(self) -> Iterator[str]:
        """What does not agree, once everything was run to its end."""
        found = self.found()
        if lost := self.expected - set(found):
            yield f"{len(lost)} lost, e.g. {sorted(lost)[:3]}"
        if invented := set(found) - self.expected:
            yield f"{len(invented)} invented, e.g. {sorted(invented)[:3]}"
        if doubles := [order for order, count in found.items() if count > 1]:
            yield f"{len(doubles)} twice, e.g. {sorted(doubles)[:3]}"
        if self.quarantined() != self.rejected:
            yield f"{self.quarantined()} rows in the quarantine, not {self.rejected}"
        if left := self.left():
            yield f"left in the queue: {left}"


def killed_at_points(
    rounds: int, rng: random.Random, deadline: Callable[[], bool], *, first: int = 0, rows: int = 2_000
) -> Outcome:
    """One kill a round, at each point in turn and then at random; all rounds in one directory. The rounds before ``first``
    are left out."""
    outcome = Outcome("pipeline/kill9")
    points = [*POINTS, *(f"random:{rng.uniform(0.5, 12):.2f}" for _ in range(first + rounds - len(POINTS)))]
    with tempfile.TemporaryDirectory(prefix="ignis-pipeline-") as directory:
        ground = Ground(Path(directory))
        for point in points[first : first + rounds]:
            if deadline():
                break
            ground.add_file(rows)
            outcome.add(kills=int(ground.drive(point)))
            outcome.rounds += 1
        for _ in range(3):  # what was left, what came later, and what that brings to light
            ground.drive()
        outcome.add(rows=len(ground.expected), exported=sum(ground.found().values()), rejected=ground.quarantined())
        for fault in ground.faults():
            outcome.fault(fault)
    return outcome.finish()


def blind() -> Outcome:
    """With ids that are not made of the row, a run that is run again doubles: the checker must see it."""
    outcome = Outcome("pipeline/mutant")
    with tempfile.TemporaryDirectory(prefix="ignis-pipeline-") as directory:
        ground = Ground(Path(directory))
        ground.add_file(500)
        ground.drive("publish:end", "random-ids")
        ground.drive("", "random-ids")
        outcome.plant("random ids", any("twice" in fault for fault in ground.faults()))
        outcome.rounds = 1
    return outcome.finish()


def tests(rounds: int, rng: random.Random, deadline: Callable[[], bool], first: int) -> Iterator[Callable[[], Outcome]]:
    yield lambda: killed_at_points(rounds, rng, deadline, first=first)
    yield blind
