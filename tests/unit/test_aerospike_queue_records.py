"""Queue records of Aerospike that no client writes: refused one by one, with what is wrong."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aerospike")

from ignis.errors import StoreFormatError
from ignis.storage.aerospike.queues import OURS, AerospikeQueues, bins_of, record_of
from ignis.storage.base import QueueRecord

ODD: list[dict[str, Any]] = [
    {"shards": "16"},
    {"shards": 8.0},
    {"concurrency": True},
    {"queueExpiry": "never"},
    {"sweepDuration": "x"},
    {"sweepPointers": [1]},
    {"sweepPointers": {"x": 1}},
    {"sweepPointers": {"1": "x"}},
    {OURS: 7},
    {OURS: {"extra": "{"}},
    {OURS: {"exact": '["max_wait_s"]'}},
    {OURS: {"durability": 3}},
]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_no_client_writes_is_refused_by_name(odd: dict[str, Any]) -> None:
    bins = bins_of(QueueRecord("q"))
    assert record_of("q", bins) == QueueRecord("q")
    with pytest.raises(StoreFormatError, match="record of queue 'q' is damaged"):
        record_of("q", {**bins, **odd})


class _Rows:
    def everything(self, what: str, set_name: str) -> list[tuple[str, dict[str, Any]]]:
        rows = [(f"bad{number}", {**bins_of(QueueRecord("x")), **odd}) for number, odd in enumerate(ODD)]
        return [*rows, ("good", bins_of(QueueRecord("good")))]


def context_of_rows() -> Any:
    return SimpleNamespace(connection=_Rows(), sets=SimpleNamespace(queues="queues"), call=contextlib.nullcontext)


def test_one_odd_record_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    queues = AerospikeQueues(context_of_rows(), lambda name: 0)
    assert [record.name for record in queues.list()] == ["good"]
    assert [record.name for record in queues.list()] == ["good"]
    said = [record.getMessage() for record in caplog.records if record.name == "ignis.storage.aerospike"]
    assert [text for text in said if "is damaged" in text] == said
    assert len(said) == len(ODD)
