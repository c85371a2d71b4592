"""Handlers in worker processes: their spans are made there, and what becomes of their messages is told by the parent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from tests.support import eventually

pytest.importorskip("opentelemetry.sdk.trace")

from tests.support.spans import id_of, is_linked, recorded_spans, trace_of


def spans_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.mark.integration
def test_the_spans_of_a_worker_process(
    memory_url: str,
    new_app: Callable[..., ignis.Ignis],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "spans"
    monkeypatch.setenv("IGNIS_TEST_SPANS", str(path))
    with recorded_spans() as spans:
        from tests.apps import traced  # behind the provider of this process

        queue = traced.register(new_app(memory_url, tracing={"enabled": True}))
        queue.publish({"id": 1})
        app = queue.app
        app.start()
        eventually(lambda: len(spans_in(path)) >= 2, "two spans of the worker process")
        again, sent = spans.one("retry orders"), spans.one("publish orders")
        eventually(lambda: queue.main.pending() == 0 and queue.stats()["consumer"]["handled"] == 1)
        app.stop()
    first, second = spans_in(path)
    for one in (first, second):
        assert one["name"] == "process orders"
        assert one["kind"] == "SpanKind.CONSUMER"
        assert one["context"]["trace_id"] == f"0x{trace_of(sent):032x}"
        assert one["parent_id"] == f"0x{id_of(sent):016x}"
    assert [one["attributes"]["ignis.message.attempt"] for one in (first, second)] == [1, 2]
    # What the handler saw as the current span is in its error, and the retry, which the parent stores, is a child of it.
    assert again.attributes is not None and first["status"]["description"] == f"seen {first['context']['span_id'][2:]}"
    assert again.parent is not None and f"0x{again.parent.span_id:016x}" == first["context"]["span_id"]
    assert is_linked(again, sent)
    assert f"0x{id_of(again):016x}" in [link["context"]["span_id"] for link in second["links"]]
