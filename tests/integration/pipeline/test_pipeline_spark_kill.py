"""The pipeline program ended with kill -9 between the worst two steps of each half, and run again. Its JVM is that of the tests;
``python -m tests.torture pipeline`` has one for each, which dies with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.spark.pipeline import Target, export, ingest, load_description
from tests.torture.pipeline import Ground

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_killed_and_run_again(spark: Any, tmp_path: Path) -> None:
    """Killed while messages are being published, and with files in place whose messages are not deleted."""
    ground = Ground(tmp_path)
    ground.add_file(2_000)
    assert ground.drive("publish:within", spark=spark)
    assert ground.drive("place:end", spark=spark)
    assert sum(ground.found().values()) == 2_000
    assert ground.left() == {"in_flight": 2_000}
    ground.add_file(500)
    described, target = load_description(tmp_path / "p.toml"), Target(ground.url, "", "")
    assert ingest(spark, described, target=target).published == 500
    first = export(spark, described, target=target)
    assert (first.resumed, first.written) == (True, 2_000)
    assert export(spark, described, target=target).written == 500
    assert list(ground.faults()) == []
