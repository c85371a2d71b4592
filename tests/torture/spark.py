"""Spark under failure: workers killed in the middle of a partition, attempts side by side, drivers that die, commits that
fail. The functions are given a session; what runs in its tasks is pickled by value, so executors need not have the tests.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as F  # noqa: N812

from ignis.errors import StoreFailedError
from ignis.native import Record
from ignis.spark import drain, drain_task, publish, resume
from ignis.spark.columns import MESSAGE_SCHEMA, to_messages
from ignis.spark.publish_task import RECEIPT_SCHEMA, Publishing
from ignis.spark.queue_path import close_stores, make_place
from ignis.spark.read_task import Reading, cut_runs
from ignis.storage import open_store
from tests.torture.report import Outcome

__all__ = ["Killed", "check_queue", "tests"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "q"
BATCH_ROWS = 50
WAIT_S = 120.0
POINTS = ("claimed", "written", "committing")
"""Where a driver is killed: before the action, after it, and between two transactions of the commit."""


@dataclass(frozen=True)
class Killed:
    """A stage's function whose Python worker is killed in the first attempts, after it has handed out some batches."""

    inner: Any
    after: int
    attempts: int = 1

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(self.inner(batches)):
            if number == self.after and context.attemptNumber() < self.attempts:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


@dataclass(frozen=True)
class Waiting:
    """A stage's function whose first attempt at partition 0 goes on only once another attempt at it has begun: so that
    speculation starts one, and both store the same rows at the same time."""

    inner: Any
    directory: str

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(self.inner(batches)):
            if number == 0 and context.partitionId() == 0:
                (Path(self.directory) / f"attempt-{context.attemptNumber()}").touch()
                until = time.monotonic() + WAIT_S
                while len(list(Path(self.directory).glob("attempt-*"))) < 2 and time.monotonic() < until:
                    time.sleep(0.02)
            yield batch


@dataclass
class Found:
    """What a check found: rows that are missing, that nobody sent, and that are there more often than once."""

    lost: int
    invented: int
    duplicates: int

    @classmethod
    def of(cls, seen: Counter[int], sent: Iterable[int]) -> Found:
        wanted = set(sent)
        return cls(len(wanted - seen.keys()), len(seen.keys() - wanted), sum(count - 1 for count in seen.values()))


def rows(spark: Any, count: int, parts: int = 3) -> Any:
    return spark.range(0, count, 1, parts).select("id", F.concat(F.lit("n"), "id").alias("name"))


def check_queue(url: str, sent: Iterable[int]) -> Found:
    """Everything that the queue holds, claimed or not, its sideline too."""
    seen: Counter[int] = Counter()
    with open_store(url) as store:
        for magazine in (QUEUE, QUEUE + "_SIDELINE"):
            for _, _, record in store.magazines.scan(magazine, limit=1 << 30):
                seen[json.loads(Record(record or b"").body)["id"]] += 1
    return Found.of(seen, sent)


def check_files(spark: Any, path: str, sent: Iterable[int]) -> Found:
    return Found.of(Counter(row.id for row in spark.read.parquet(path).select("id").collect()), sent)


def publish_with(spark: Any, url: str, count: int, wrap: Callable[[Publishing], Any], *, ids: bool) -> int:
    """Publishes through a wrapped stage; returns what the receipts say was stored."""
    messages = to_messages(rows(spark, count), value=None, columns=None, key=None, id="id" if ids else None)
    place = make_place(url, QUEUE, {"batch_rows": BATCH_ROWS}, codec="json")
    receipts = messages.mapInArrow(wrap(Publishing(place)), RECEIPT_SCHEMA)
    return int(receipts.agg(F.sum("count")).first()[0] or 0)


def publish_killed(spark: Any, directory: Path, after: int, attempts: int, *, ids: bool) -> Found:
    """kill -9 of the Python worker of every partition, after that many of its transactions were committed."""
    url = f"embedded://{directory}/store"
    publish_with(spark, url, 600, lambda stage: Killed(stage, after, attempts), ids=ids)
    return check_queue(url, range(600))


def publish_side_by_side(spark: Any, directory: Path, *, ids: bool) -> Found:
    """The same rows by three jobs at the same time, as attempts that run beside each other."""
    url = f"embedded://{directory}/store"
    receipts = publish(rows(spark, 600), url, QUEUE, id="id" if ids else None, batch_rows=BATCH_ROWS)
    with ThreadPoolExecutor(3) as pool:
        for one in [pool.submit(receipts.collect) for _ in range(3)]:
            one.result(WAIT_S)
    return check_queue(url, range(600))


def drain_killed(spark: Any, directory: Path, after: int, attempts: int) -> Found:
    """kill -9 of the Python worker of every part of a drain; checks the files, and that nothing is left."""
    url, out = f"embedded://{directory}/store", f"{directory}/out"
    publish(rows(spark, 600), url, QUEUE, id="id").collect()
    drained = drain(spark, url, QUEUE, read_bytes=1_024)
    parts = tuple(cut_runs(drained.runs, 300, 2))
    numbers = spark.range(0, len(parts), 1, len(parts))
    found = numbers.mapInArrow(Killed(Reading(drained.place, parts), after, attempts), MESSAGE_SCHEMA)
    body = F.from_json(F.col("body").cast("string"), "id long")
    found.select(body.alias("body")).select("body.id").write.parquet(out)
    drained.commit()
    left = check_queue(url, ())
    files = check_files(spark, out, range(600))
    return Found(files.lost, files.invented + left.invented, files.duplicates)


class Failing:
    """A store's magazines of which one delete fails, before or after it was carried out."""

    def __init__(self, inner: Any, at: int, late: bool) -> None:
        self._inner = inner
        self._count = itertools.count()
        self._at = at
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete(self, magazine: str, pointers: Any) -> int:
        fails = next(self._count) == self._at
        if fails and not self._late:
            raise StoreFailedError("planted")
        count = int(self._inner.delete(magazine, pointers))
        if fails:
            raise StoreFailedError("planted")
        return count


def commit_failed(spark: Any, directory: Path, at: int, late: bool) -> Found:
    """A commit that fails at one of its transactions, is called again, and has then retired everything."""
    url, out = f"embedded://{directory}/store", f"{directory}/out"
    publish(rows(spark, 600), url, QUEUE, id="id").collect()
    drained = drain(spark, url, QUEUE, schema="id long", job="job")
    drained._to_retire = list(drain_task.pieces(drained.runs, 100))
    drained.df.select("id").write.parquet(out)
    inner = drained._magazines
    drained._magazines = Failing(inner, at, late)  # type: ignore[assignment]
    try:
        drained.commit()
    except StoreFailedError:
        done = drained.commit()
        assert done.retired + done.late == 600, done
        assert done.late == 0 or late, done
    else:
        raise RuntimeError("the commit did not fail")
    left = check_queue(url, ())
    files = check_files(spark, out, range(600))
    return Found(files.lost, files.invented + left.invented, files.duplicates)


def driver_killed(spark: Any, directory: Path, point: str, commits: int) -> Found:
    """A driver of its own is killed at ``point``; this session resumes its job, by what it finds of the result."""
    url, out = f"embedded://{directory}/store", f"{directory}/out"
    publish(rows(spark, 600), url, QUEUE, id="id").collect()
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.spark_driver", url, out, point, str(commits)],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
    )  # fmt: skip
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the driver ended with {done.returncode} instead of being killed: {done.stderr[-2000:]}")
    before = check_queue(url, range(600))
    again = resume(spark, url, QUEUE, "job", schema="id long")
    if not (Path(out) / "_SUCCESS").exists():
        again.df.select("id").write.mode("overwrite").parquet(out)
    again.commit()
    left = check_queue(url, ())
    files = check_files(spark, out, range(600))
    if point != "committing" and before.lost:
        raise RuntimeError(f"{before.lost} message(s) were gone before the commit")
    if point == "committing" and not 0 < before.lost < 600:
        raise RuntimeError(f"{before.lost} of 600 messages were retired when the driver was killed: not in the middle")
    return Found(files.lost, files.invented + left.invented, files.duplicates)


def speculate(rounds: int, deadline: float) -> Outcome:
    """``spark.speculation=true`` on a cluster of two hosts of this machine (Spark puts the second attempt elsewhere)."""
    outcome = Outcome("spark/speculation")
    wrong: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="ignis-torture-") as name:
        seconds = max(1.0, min(deadline - time.monotonic(), 3_600.0))
        done = subprocess.run(
            [sys.executable, "-m", "tests.torture.spark_cluster", name, str(rounds), str(seconds)],
            cwd=ROOT, capture_output=True, text=True, timeout=seconds + 600, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the cluster's driver ended with {done.returncode}: {done.stderr[-2000:]}")
        for line in filter(lambda one: one.startswith("{"), done.stdout.splitlines()):
            found = json.loads(line)
            outcome.rounds += 1
            stage, mutant, second = (found.pop(name) for name in ("stage", "mutant", "second_attempts"))
            outcome.add(**{f"{stage}_second_attempts": second})
            if second < 1:
                outcome.fault(f"round {outcome.rounds}: no second attempt at the {stage}")
            if mutant:
                wrong[mutant] = wrong.get(mutant, 0) + sum(found.values())
                continue
            outcome.add(**found)
            if any(found.values()):
                outcome.fault(f"round {outcome.rounds}: {stage} {found}")
    for name, count in wrong.items():
        outcome.plant(name, count > 0)
    return outcome.finish()


def tests(
    session: Callable[[], Any], rounds: int, rng: random.Random, deadline: float
) -> Iterator[Callable[[], Outcome]]:
    """The long form: every test in ``rounds`` rounds."""

    def repeated(name: str, once: Callable[[Path], Found], *, may_double: bool = False) -> Outcome:
        outcome = Outcome(f"spark/{name}")
        for number in range(rounds):
            if time.monotonic() > deadline:
                break
            directory = Path(tempfile.mkdtemp(prefix="ignis-torture-"))
            try:
                found = once(directory)
            finally:
                close_stores()
                shutil.rmtree(directory, ignore_errors=True)
            outcome.rounds += 1
            outcome.add(lost=found.lost, invented=found.invented, duplicates=found.duplicates)
            if found.lost or found.invented or (found.duplicates and not may_double):
                outcome.fault(f"round {number}: {found}")
        if may_double:
            # The same without ids: a checker that sees no double there sees none anywhere.
            outcome.plant("no-ids", outcome.figures.get("duplicates", 0) > 0)
        return outcome.finish()

    spark = session()
    spark.sparkContext.setLogLevel("OFF")  # tasks that fail are what this is about
    for ids in (True, False):
        name = "ids" if ids else "without-ids"
        yield lambda ids=ids, name=name: repeated(  # type: ignore[misc]
            f"worker-killed-publishing/{name}",
            lambda directory: publish_killed(spark, directory, rng.randrange(4), rng.randint(1, 3), ids=ids),
            may_double=not ids,
        )
        yield lambda ids=ids, name=name: repeated(  # type: ignore[misc]
            f"side-by-side/{name}",
            lambda directory: publish_side_by_side(spark, directory, ids=ids),
            may_double=not ids,
        )
    yield lambda: repeated(
        "worker-killed-draining", lambda directory: drain_killed(spark, directory, rng.randrange(4), rng.randint(1, 3))
    )
    yield lambda: repeated(
        "commit-failed", lambda directory: commit_failed(spark, directory, rng.randrange(5), rng.random() < 0.5)
    )
    points = itertools.cycle(POINTS)
    yield lambda: repeated(
        "driver-killed", lambda directory: driver_killed(spark, directory, next(points), rng.randint(1, 4))
    )
    yield lambda: speculate(rounds, deadline)
