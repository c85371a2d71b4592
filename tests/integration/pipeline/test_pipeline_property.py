"""The contract of the pipeline over generated files, through handlers and a kill; the long form is
``python -m tests.torture pipeline-property``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from tests.torture.pipeline_rows import drive, faults_of, make_trial
from tests.torture.pipeline_rows_driver import carry_out

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_every_row_once_as_python_reads_it(spark: Any, tmp_path: Path) -> None:
    """CSV; a Python worker is killed if one is there in time."""
    directory = tmp_path / "trial-0"
    make_trial(directory, "csv", 40, random.Random(11), kills=["worker:ingest:publish:0"])
    carry_out(spark, directory)
    faults, figures = faults_of(directory)
    assert not faults
    assert figures["accepted"] > 10 and figures["rejected"] > 10


@pytest.mark.long
def test_every_row_once_though_the_driver_is_killed(spark: Any, tmp_path: Path) -> None:
    """JSON lines; SIGKILL once everything is published, before the run knows of it. In the long form the JVM dies too."""
    directory = tmp_path / "trial-0"
    make_trial(directory, "jsonl", 40, random.Random(12), kills=["ingest:publish:end"])
    assert drive(tmp_path, spark), "the driver was not killed"
    carry_out(spark, directory)
    faults, figures = faults_of(directory)
    assert not faults
    assert figures["accepted"] > 10 and figures["rejected"] > 10
