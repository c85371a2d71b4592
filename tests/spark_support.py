"""One Spark session for all tests of a process: starting its JVM takes longer than most of them.

Without Java what needs Spark is skipped, with these words; where ``CI=true`` that is an error, since a skip would be a
success that nobody has seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    """A session on two cores that repeats failed tasks and listens on this machine alone. Skips without Java."""
    reason = unavailable()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("ignis tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        # The quick compiler alone: the tests run short, and the thorough one would take a core from them.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
