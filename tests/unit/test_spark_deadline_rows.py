"""Rows with deadlines as a publishing task stores them, without a JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ignis.spark.publish_task import load_rows  # noqa: E402
from ignis.spark.queue_path import Place, close_stores, make_place  # noqa: E402

FAR_MS = 3_786_912_000_000
"""In 2090."""
PAST_MS = 1_000_000_000_000
COUNT = 30


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"embedded://{tmp_path}/store"
    close_stores()


def place(url: str, **options: Any) -> Place:
    return make_place(url, "q", {"shards": 2, **options}, codec="raw")


def rows(ends: list[int | None], dues: list[int | None] | None = None) -> Any:
    columns = {
        "body": pa.array([str(n) for n in range(len(ends))]),
        "key": pa.array([None if n % 2 else f"k{n % 4}" for n in range(len(ends))]),
        "end": pa.array(ends, pa.int64()),
    }
    if dues is not None:
        columns["due"] = pa.array(dues, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def ids() -> Any:
    return pa.array([n.to_bytes(16, "big") for n in range(COUNT)], pa.binary(16))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("delayed", [False, True])
def test_each_row_has_its_own(url: str, named: bool, delayed: bool) -> None:
    ends = [FAR_MS + n if n % 3 == 0 else PAST_MS if n % 3 == 1 else None for n in range(COUNT)]
    dues = [FAR_MS - 9_000 if n % 5 == 0 else None for n in range(COUNT)] if delayed else None
    loaded = load_rows(place(url), 0, rows(ends, dues), ids() if named else None)
    assert sum(one.loaded for _, one in loaded) == COUNT
    with ignis.Ignis(url) as app:
        queue = app.queue("q", bytes)
        found = [one.envelope for one in queue.main.peek(100)]
        found += [one.message for one in queue.later if one.message is not None]
        assert {int(one.body): one.expires_at_ms for one in found} == dict(enumerate(ends))
        assert all(one.key == (None if int(one.body) % 2 else f"k{int(one.body) % 4}") for one in found)
        assert len(queue.later) == (COUNT // 5 if delayed else 0)
    if named:
        again = load_rows(place(url), 0, rows(ends, dues), ids())
        assert sum(one.repeats for _, one in again) == COUNT


@pytest.mark.parametrize(("on_expiry", "left"), [("drop", 0), ("sideline", 5)])
def test_the_store_drops_what_is_over_where_the_queue_does(url: str, on_expiry: str, left: int) -> None:
    load_rows(place(url, on_expiry=on_expiry), 0, rows([PAST_MS] * 5))
    with ignis.Ignis(url) as app:
        stored_s = app.store.now_s()
        while app.store.now_s() < stored_s + 0.01:  # what is over has a millisecond to live
            time.sleep(0.001)
        assert len(app.queue("q", bytes).main.fire(100)) == left


def test_the_last_deadline_of_a_load_counts_for_the_store(url: str) -> None:
    load_rows(place(url), 0, rows([PAST_MS, FAR_MS]))
    load_rows(place(url), 0, rows([PAST_MS, None]))
    with ignis.Ignis(url) as app:
        assert sum(len(app.queue("q", bytes).main.fire(100)) for _ in range(4)) == 4


def test_too_far_away(url: str) -> None:
    with pytest.raises(ConfigError, match="100 years"):
        load_rows(place(url), 0, rows([1 << 47]))
