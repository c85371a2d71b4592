"""The Spark session of the pipeline program, and settings that hold for one step."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ignis.spark._pyspark import SparkSession
from ignis.spark.pipeline.description import SparkPart

__all__ = ["SETTINGS", "session", "settings"]

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # the same rows give the same text, and so the same ids, on every machine
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a folder x=01 means the text 01
    "spark.sql.caseSensitive": "true",  # ID and id are two columns, as they are in the files
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",  # a date that does not fit its format is no error of the job
}
"""What an ingest and an export set while they run, whoever made the session."""
_LOCAL = {
    # Spark listens on every address unless it is told otherwise; nobody but this machine has business here.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Otherwise a page of warnings stands before the first line of ours.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
}


@contextlib.contextmanager
def session(part: SparkPart, *, app_name: str, master: str = "", log_level: str = "ERROR") -> Iterator[SparkSession]:
    """The session that a description asks for, stopped at the end; one that runs already is taken, and left, as it is.

    Args:
        part: ``[spark]`` of the description.
        app_name: what Spark calls the program.
        master: goes before the description's.
        log_level: of Spark's JVM.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with _utf8_names():
        made = _make(part, app_name, master)
    try:
        made.sparkContext.setLogLevel(log_level)
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def _utf8_names() -> Iterator[None]:
    """A JVM that is started inside names files in UTF-8, whatever the locale is: in that of a cron job, C, it fails at ``é``."""
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


def _make(part: SparkPart, app_name: str, master: str) -> SparkSession:
    master = master or part.master
    if not master and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"  # not started by spark-submit, so nobody else says it
    builder = SparkSession.builder.appName(app_name)
    if master:
        builder = builder.master(master)
    chosen = {"spark.ui.showConsoleProgress": "false"}  # the pipeline has a display of its own
    if master.startswith("local"):
        # A cluster's executors have their own Python; those of this machine are to find what this one finds.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        chosen |= _LOCAL
    for name, value in {**chosen, **part.conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Spark SQL settings for the time of a ``with``."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
