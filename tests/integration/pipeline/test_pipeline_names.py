"""Columns may have any name that a file can give them, on the way in and on the way out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.spark.pipeline import Target, export, ingest, parse_description

pytestmark = pytest.mark.integration

NAMES = ('q"q', "back\\slash", "tab\tname", "semi;colon", "a - b", "Customer No", "ID", "id", "%41")


@pytest.mark.parametrize("kind", ["csv", pytest.param("jsonl", marks=pytest.mark.long)])
def test_odd_names_of_columns(spark: Any, embedded_url: str, tmp_path: Path, kind: str) -> None:
    """Quotes, backslashes and what SQL takes for an expression: in the files, in the bodies, and as folders."""
    row = {name: f"value {number}" for number, name in enumerate(NAMES)}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([row.keys(), row.values()])
    (tmp_path / f"in.{kind}").write_text(out.getvalue() if kind == "csv" else json.dumps(row) + "\n")
    described = parse_description(
        {
            "name": "p",
            "queue": {"name": "q", "settings": {"shards": 1}},
            "schema": {name: {} for name in NAMES},
            "ingest": {"paths": [f"in.{kind}"], "format": kind},
            "export": {"path": "out", "partition_by": ["semi;colon", "a - b"]},
        },
        tmp_path,
    )
    target = Target(embedded_url, "", "")
    assert ingest(spark, described, target=target).accepted == 1
    written = export(spark, described, target=target)
    assert (written.written, written.rejected) == (1, {})
    (path,) = Path(written.path).rglob("*.parquet")
    (found,) = pq.ParquetFile(path).read().to_pylist()
    assert {name: found[name] for name in NAMES if name in found} == {
        name: value for name, value in row.items() if name not in ("semi;colon", "a - b")
    }
    assert path.relative_to(written.path).parts[:-1] == ("semi;colon=value 3", "a - b=value 4")
