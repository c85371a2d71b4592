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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ignis.spark import drain, publish
from ignis.spark.columns import MESSAGE_SCHEMA
from ignis.spark.reading import Reading, cut_runs
from tests.torture.spark import QUEUE, WAIT_S, Waiting, check_files, check_queue, publish_with, rows

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
    return {"ids": ids, "second_attempts": attempts - 1, **vars(check_queue(url, range(600)))}


def drain_round(spark: Any, directory: Path) -> dict[str, Any]:
    """A drain of which two attempts at one task read the same messages; one of them writes."""
    marks, out = directory / "marks", str(directory / "out")
    marks.mkdir(parents=True)
    url = f"embedded://{directory}/store"
    publish(rows(spark, 600), url, QUEUE, id="id").collect()
    drained = drain(spark, url, QUEUE, read_bytes=1_024)
    parts = tuple(cut_runs(drained.runs, 150, 4))
    numbers = spark.range(0, len(parts), 1, len(parts))
    read = numbers.mapInArrow(Waiting(Reading(drained.place, parts), str(marks)), MESSAGE_SCHEMA)
    body = F.from_json(F.col("body").cast("string"), "id long")
    read.select(body.alias("body")).select("body.id").write.option("compression", "none").parquet(out)
    attempts = len(list(marks.glob("attempt-*")))
    drained.commit()
    files, left = check_files(spark, out, range(600)), check_queue(url, ())
    return {
        "ids": True,
        "second_attempts": attempts - 1,
        **vars(files),
        "invented": files.invented + left.invented,
    }


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
                print(json.dumps(drain_round(spark, directory / f"round-{number}-drain")), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
