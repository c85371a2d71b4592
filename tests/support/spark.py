"""One Spark session for all tests of a process: starting its JVM takes longer than most of them.

Without Java what needs Spark is skipped, with these words; where ``CI=true`` that is an error, since a skip would be a
success that nobody has seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
"""What PySpark looks for before it starts a JVM of its own."""
_ENDING_S = 60.0

SKIPPED = "no Java 17: scripts/system-packages test installs openjdk-17-jre-headless"


def unavailable() -> str:
    """Why there can be no session; empty when there can."""
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None:
        return SKIPPED
    return (
        ""
        if subprocess.run([java, "-version"], capture_output=True, timeout=60, check=False).returncode == 0
        else SKIPPED
    )


def start(directory: Path) -> Any:
    """A session on two cores that repeats failed tasks and listens on this machine alone. Skips without Java.

    In a process that was started with the environment of `guest_of` it is one in the JVM of that session, which is warm: a new
    one takes five times as long for the same work.
    """
    reason = unavailable()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    if is_guest():
        return _joined()
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("ignis tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.shuffle.partitions", "4")
        # Compiling a class for each plan takes longer than these tests' few rows.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        # The quick compiler alone: the tests run short, and the thorough one would take a core from them. With it come 48 MB
        # for its code, which are soon full: what is thrown out is compiled again.
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
        )
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_guest() -> bool:
    """Whether this process works in another one's JVM, and must not end it."""
    return _GATEWAY[0] in os.environ


def guest_of(session: Any) -> dict[str, str]:
    """The environment for a process that works in this session's JVM."""
    found = session.sparkContext._gateway.gateway_parameters
    return {**os.environ, _GATEWAY[0]: str(found.port), _GATEWAY[1]: found.auth_token}


def bury(session: Any) -> None:
    """Ends what a guest that was killed has left running: with a JVM of its own, that would have ended as well."""
    context = session.sparkContext
    context.cancelAllJobs()
    until = time.monotonic() + _ENDING_S
    while context.statusTracker().getActiveStageIds():
        if time.monotonic() > until:
            raise TimeoutError(f"the jobs of a killed process were not ended within {_ENDING_S:g} s")
        time.sleep(0.02)
    context.setLogLevel("ERROR")


def _joined() -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    spark = gateway.jvm.org.apache.spark
    context = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=gateway.jvm, _jconf=context.getConf())
    # Of its own: what it sets there does not outlive it.
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf)).newSession()
