"""Spark beside what machines do: no memory, no room, clocks that step, a sweeper and a shovel at work."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from ignis import Ignis
from ignis.errors import IgnisError, StoreFullError
from tests.support import aerospike as aerospike_support
from tests.support import eventually
from tests.support.disk import disk, fill_disk, resize

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from pyspark import TaskContext, cloudpickle

from ignis.spark import drain, publish
from ignis.spark.pipeline import Target, export, ingest, parse_description
from tests.torture import spark as failures
from tests.torture.spark import QUEUE, Found

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.integration

CLEAN = Found(0, 0, 0)
DAY_S = 86_400.0
ROWS = 3_000


@dataclass(frozen=True)
class Starved:
    """A stage's function that runs out of memory in its first attempt, after it has handed out a batch."""

    inner: Any

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(self.inner(batches)):
            yield batch
            if number == 0 and context.attemptNumber() == 0:
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used, used))
                bytearray(64 << 20)


@dataclass(frozen=True)
class Stepped:
    """A stage's function in whose worker the wall clock is off by so many seconds."""

    inner: Any
    step_s: float

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self.step_s
        time.time_ns = lambda: real_ns() + int(self.step_s * 1e9)
        try:
            yield from self.inner(batches)
        finally:
            time.time, time.time_ns = real, real_ns


@pytest.fixture(params=["embedded", "aerospike"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that other processes reach."""
    if request.param == "embedded":
        yield f"embedded://{tmp_path}/store"
        return
    from ignis.spark.queue_path import close_stores

    where, client_id = aerospike_support.address(), aerospike_support.hold_client(aerospike_support.address())
    yield aerospike_support.url(client_id=client_id)
    close_stores()
    aerospike_support.forget(where, [client_id])


def is_clean(found: Found, url: str) -> bool:
    """Nothing lost nor invented, and nothing twice where the store knows what it has."""
    return (found.lost, found.invented) == (0, 0) and (not found.duplicates or url.startswith("aerospike"))


def described(directory: Path, out: Path) -> Any:
    (directory / "in.jsonl").write_text(
        "".join(f'{{"id":{number},"text":"{os.urandom(100).hex()}"}}\n' for number in range(ROWS))
    )
    return parse_description(
        {
            "name": "p",
            "queue": {"name": QUEUE, "settings": {"shards": 4, "shovel_interval_s": 0}},
            "schema": {"id": {"type": "integer", "required": True}, "text": {}},
            "ingest": {"paths": ["in.jsonl"], "format": "jsonl", "dedup": ["id"]},
            "export": {"path": str(out), "compression": "none"},
        },
        directory,
    )


def exported(out: Path) -> list[int]:
    return sorted(
        pads.dataset(out, partitioning="hive", ignore_prefixes=["_", "."]).to_table(columns=["id"])["id"].to_pylist()
    )


def held(url: str, name: str = QUEUE) -> dict[str, int]:
    with Ignis(url) as app:
        stats = app.queue(name).stats()
    return {key: stats[key] for key in ("pending", "in_flight", "sideline") if stats[key]}


def claim_and_die(url: str) -> None:
    script = """
import os, sys, ignis
print(len(ignis.Ignis(sys.argv[1]).queue(sys.argv[2], dict).main.fire(1000)), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, url, QUEUE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "100"


def test_a_worker_that_runs_out_of_memory(spark: Any, url: str) -> None:
    """Its task is run again, in another worker; what it had stored is known by its id."""
    failures.publish_with(spark, url, 600, Starved, ids=True)
    assert is_clean(failures.check_queue(url, range(600)), url)


@pytest.mark.long
def test_a_disk_that_is_full_while_the_files_are_written(spark: Any, url: str, tmp_path: Path) -> None:
    """The export fails and deletes nothing; with room again, running it again has every message once."""
    with disk(tmp_path / "disk", "256k") as small:
        pipeline, target = described(tmp_path, small / "out"), Target(url, "", "")
        assert ingest(spark, pipeline, target=target).published == ROWS
        with pytest.raises(IgnisError, match=r"^writing Parquet failed: .*No space left on device$"):
            export(spark, pipeline, target=target)
        assert sum(held(url).values()) == ROWS
        assert not list((small / "out").glob("run=*"))
        resize(small, "16m")
        again = export(spark, pipeline, target=target)
        assert (again.resumed, again.written, again.taken_back) == (True, ROWS, 0)
        assert exported(small / "out") == list(range(ROWS))
        # What the first attempt had written is gone.
        assert {path.parent.name for path in small.rglob("*.parquet")} == {f"run={again.run}"}
    assert held(url) == {}


def test_a_disk_that_is_full_while_rows_are_published(spark: Any, tmp_path: Path) -> None:
    """The ingest fails with the store's own error; with room again, running it again stores every row once."""
    with disk(tmp_path / "disk", "24m") as small:
        url = f"embedded://{small}/store"
        pipeline, target = described(tmp_path, tmp_path / "out"), Target(url, "", "")
        with Ignis(url) as app:
            app.queue(QUEUE, dict, shards=4, shovel_interval_s=0).open()
        fill_disk(small / "ballast")
        with pytest.raises(StoreFullError, match="disk full"):
            ingest(spark, pipeline, target=target)
        (small / "ballast").unlink()
        again = ingest(spark, pipeline, target=target)
        assert again.published + again.known == ROWS
        assert failures.check_queue(url, range(ROWS)) == CLEAN


def test_a_drain_beside_the_sweeper_and_the_shovel(
    spark: Any, url: str, tmp_path: Path, new_app: Callable[..., Ignis]
) -> None:
    """They leave alone what a living drain holds, however often they look; what they bring back is for the next one."""
    out = str(tmp_path / "out")
    publish(failures.rows(spark, 600), url, QUEUE, id="id").collect()
    app = new_app(url)
    queue = app.queue(QUEUE, dict)
    sweeper, done = app.sweeper(), threading.Event()
    rounds: list[None] = []

    def work() -> None:
        while not done.wait(0.01):
            sweeper.run_once()
            queue.shovel.run_once()
            rounds.append(None)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            with drain(spark, url, QUEUE, schema="id long", job="job", limit=500) as drained:
                claim_and_die(url)  # a hundred, which the sweeper puts on the sideline and the shovel back
                drained.df.select("id").write.option("compression", "none").parquet(out)
                eventually(lambda: queue.shovel.total.moved == 100)
                before = len(rounds)
                eventually(lambda: len(rounds) > before + 3)
                retired = drained.commit()
            assert (retired.retired, retired.late) == (500, 0)
            with drain(spark, url, QUEUE, schema="id long", job="job") as drained:
                drained.df.select("id").write.option("compression", "none").mode("append").parquet(out)
                assert drained.commit().retired == 100
        finally:
            done.set()
        working.result(30)
    assert failures.check_files(spark, out, range(600)) == CLEAN
    assert failures.check_queue(url, ()) == CLEAN


@pytest.mark.parametrize("days", [30, pytest.param(-30, marks=pytest.mark.long)])
def test_steps_of_the_wall_clock(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """In a worker they make the store forget no id; in the driver they make no claim stale."""
    url, out = f"embedded://{tmp_path}/store", str(tmp_path / "out")
    assert failures.publish_with(spark, url, 600, functools.partial(Stepped, step_s=days * DAY_S), ids=True) == 600
    assert failures.publish_with(spark, url, 600, lambda stage: stage, ids=True) == 0
    assert failures.publish_with(spark, url, 600, functools.partial(Stepped, step_s=-days * DAY_S), ids=True) == 0
    with drain(spark, url, QUEUE, schema="id long", job="job") as drained:
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + days * DAY_S)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(days * DAY_S * 1e9))
        with Ignis(url) as app:
            assert app.sweep_queue(QUEUE).swept == 0
        drained.df.select("id").write.option("compression", "none").parquet(out)
        done = drained.commit()
    assert (done.retired, done.late) == (600, 0)
    assert failures.check_files(spark, out, range(600)) == CLEAN
    assert failures.check_queue(url, ()) == CLEAN
