"""The contract of ingest and export over generated files; the long form is ``python -m tests.torture pipeline-property``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from tests.torture.pipeline_rows import check, examples

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("kind", "kill"), [("jsonl", "publish"), ("csv", "")])
def test_every_row_once_as_python_reads_it(spark: Any, tmp_path: Path, kind: str, kill: str) -> None:
    files = examples(kind, 60, random.Random(7))
    assert len(files) == 60
    assert check(spark, tmp_path, kind, files, kill=kill) == []
