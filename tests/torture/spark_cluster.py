"""A Spark cluster on this machine, and speculation on it: ``directory rounds seconds``; prints a line of JSON per round.

Spark puts the second attempt of a task on another host than the first. Two addresses of the loopback interface are two
hosts to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ignis.spark import drain, drain_task, publish
from ignis.spark.read_task import Reading
from ignis.storage.records import group_pointers
from tests.torture.spark import BATCH_ROWS, QUEUE, WAIT_S, Waiting, check_files, check_queue, publish_with, rows

HOSTS = ("127.0.0.1", "127.0.0.2")


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOSTS[0], 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A master and a worker on each host; gives the master's URL."""
    home = Path(pyspark.__file__).parent
    start = [str(home / "bin" / "spark-class")]
    port = free_port()
    url = f"spark://{HOSTS[0]}:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", str(free_port())]]
    for number, host in enumerate(HOSTS):
        commands.append(
            [f"{deploy}.worker.Worker", "--host", host, "--cores", "1", "--memory", "700m", "--webui-port", str(free_port()),
             "--work-dir", str(directory / f"worker-{number}"), url]
        )  # fmt: skip
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    running: list[subprocess.Popen[bytes]] = []
    try:
        with (directory / "daemons.log").open("wb") as log:
            for command in commands:
                # One by one, so that those that were started are ended when one cannot be.
                running.append(subprocess.Popen([*start, *command], env=environment, stdout=log, stderr=log))  # noqa: PERF401
        yield url
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def one_round(spark: Any, directory: Path, *, ids: bool) -> dict[str, Any]:
    directory.mkdir()
    url = f"embedded://{directory}/store"
    marks = directory / "marks"
    marks.mkdir()
    publish_with(spark, url, 600, lambda stage: Waiting(stage, str(marks)), ids=ids)
    attempts = len(list(marks.glob("attempt-*")))
    until = time.monotonic() + WAIT_S
    while spark.sparkContext.statusTracker().getActiveStageIds() and time.monotonic() < until:
        time.sleep(0.1)  # the attempt that came second is at work yet, or is being ended
    found = check_queue(url, range(600))
    return {"stage": "publish", "mutant": "" if ids else "no-ids", "second_attempts": attempts - 1, **vars(found)}


@dataclass(frozen=True)
class Taking:
    """The planted mistake: a task that deletes what it hands over, as one does that acknowledges by itself."""

    inner: Reading

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        magazines = self.inner.place.open().magazines
        for batch in self.inner(batches):
            places = zip(batch.column("_shard").to_pylist(), batch.column("_pointer").to_pylist(), strict=True)
            magazines.delete(QUEUE, group_pointers(places))
            yield batch


def drain_round(spark: Any, directory: Path, *, mutant: str = "") -> dict[str, Any]:
    """A drain of which two attempts at one task read the same messages, and one of them writes. Some bodies do not parse: they
    are to be found on the sideline."""
    marks, out = directory / "marks", str(directory / "out")
    marks.mkdir(parents=True)
    url = f"embedded://{directory}/store"
    is_bad = F.col("id") % 50 == 7
    # Each part of them has some, which both attempts note.
    body = F.when(is_bad, F.format_string('{"id":"n%d"}', "id")).otherwise(F.format_string('{"id":%d}', "id"))
    bad = {number for number in range(600) if number % 50 == 7}
    # Several runs, and so several batches, in each part.
    messages = rows(spark, 600).select("id", body.alias("body"))
    publish(messages, url, QUEUE, value="body", id="id", batch_rows=BATCH_ROWS).collect()

    def waiting(*arguments: Any) -> Waiting:
        reading = Reading(*arguments)
        return Waiting(Taking(reading) if mutant else reading, str(marks))

    with mock.patch.object(drain_task, "Reading", waiting):
        drained = drain(spark, url, QUEUE, schema="id long", read_bytes=1_024, partition_rows=150)
    drained.df.select("id").write.option("compression", "none").parquet(out)
    attempts = len(list(marks.glob("attempt-*")))
    drained.commit()
    files = check_files(spark, out, set(range(600)) - bad)
    aside = check_queue(url, (f"n{number}" for number in bad))
    found = {name: value + getattr(aside, name) for name, value in vars(files).items()}
    return {"stage": "drain", "mutant": mutant, "second_attempts": attempts - 1, **found}


def main(directory: Path, rounds: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with cluster(directory) as url:
        spark = (
            SparkSession.builder.master(url)
            .config("spark.driver.bindAddress", HOSTS[0])
            .config("spark.driver.host", HOSTS[0])
            .config("spark.driver.memory", "512m")
            .config("spark.executor.memory", "512m")
            .config("spark.cores.max", "2")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
            .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
            .config("spark.speculation", "true")
            .config("spark.speculation.interval", "100ms")
            .config("spark.speculation.multiplier", "1.01")
            .config("spark.speculation.quantile", "0.3")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for number in range(rounds):
                if time.monotonic() > until:
                    break
                for ids in (True, False):
                    found = one_round(spark, directory / f"round-{number}-{ids}", ids=ids)
                    print(json.dumps(found), flush=True)
                for mutant in ("", "taken-by-tasks"):
                    found = drain_round(spark, directory / f"round-{number}-drain-{mutant}", mutant=mutant)
                    print(json.dumps(found), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
