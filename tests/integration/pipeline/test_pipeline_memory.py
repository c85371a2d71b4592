"""Rows that were published so long ago that the store may have forgotten their ids are not published again unasked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.errors import ConfigError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.spark.pipeline import Progress, Step, Target, ingest, parse_description

pytestmark = pytest.mark.integration

DAY_MS = 86_400_000


class Ending(Progress):
    """Ends the run at the end of a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def end(self, step: Step) -> None:
        if step.name == self._step:
            raise KeyboardInterrupt


class Runs:
    """A pipeline over one file of three rows."""

    def __init__(self, spark: Any, directory: Path, url: str) -> None:
        self._spark, self._directory = spark, directory
        self._target = Target(url, "", "")
        self.file = directory / "in.jsonl"
        self.file.write_text('{"id":1}\n{"id":2}\n{"id":3}\n')
        self._described = parse_description(
            {
                "name": "p",
                "queue": {"name": "q", "settings": {"shards": 1}},
                "schema": {"id": {"required": True}},
                "ingest": {"paths": ["in.jsonl"], "format": "jsonl"},
            },
            directory,
        )

    def ingest(self, **options: Any) -> Any:
        return ingest(self._spark, self._described, target=self._target, **options)

    def age(self, days: float) -> None:
        """Makes the records of the runs so much older."""
        for path in (self._directory / "runs").rglob("ingest-*.json"):
            data = json.loads(path.read_text())
            for name in ("started_at_ms", "finished_at_ms", "publishing_since_ms"):
                data[name] = data[name] and int(data[name] - days * DAY_MS)
            path.write_text(json.dumps(data))


@pytest.fixture
def runs(spark: Any, embedded_url: str, tmp_path: Path) -> Runs:
    return Runs(spark, tmp_path, embedded_url)


def test_an_unfinished_run(runs: Runs) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.ingest(progress=Ending("publish"))
    runs.age(8)
    for new_run in (False, True):
        with pytest.raises(ConfigError, match=r"ids are remembered for 604,800 s \(spark.remember_ids_s\)"):
            runs.ingest(new_run=new_run)
    assert (again := runs.ingest(accept_changes=True)).resumed and again.known == 3


@pytest.mark.long
def test_one_that_has_published_nothing_is_taken_up(runs: Runs) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.ingest(progress=Ending("check"))
    runs.age(8)
    assert runs.ingest().published == 3


@pytest.mark.long
def test_files_that_are_read_again(runs: Runs, new_app: Callable[..., Ignis]) -> None:
    """With ``--all``, and because they have changed; not one that has only grown."""
    assert runs.ingest().published == 3
    runs.age(8)
    with runs.file.open("a") as file:
        file.write('{"id":4}\n')
    assert runs.ingest().published == 1
    with pytest.raises(ConfigError, match="remember"):
        runs.ingest(everything=True)
    runs.file.write_text('{"id":0}\n' + runs.file.read_text())
    with pytest.raises(ConfigError, match="remember"):
        runs.ingest()
    runs.age(-8)
    assert runs.ingest().read == 5
