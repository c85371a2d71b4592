"""What a publishing task's messages carry of a trace, and its spans, without a JVM."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import ConfigError, InvalidMessageError
from ignis.message import encode_meta, with_deadline

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk.trace")

import pandas as pd  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from ignis.spark import publish_in_pandas  # noqa: E402
from ignis.spark.publish_task import Publishing, load_rows  # noqa: E402
from ignis.spark.queue_path import Place, close_stores, make_place  # noqa: E402
from ignis.spark.sink import Target  # noqa: E402
from ignis.spark.trace_column import _traceparents  # noqa: E402
from ignis.spark.traces import is_context, job_trace  # noqa: E402
from tests.support.spans import Spans, id_of, recorded_spans, trace_of  # noqa: E402

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
STATE = "congo=t61rcWkgMzE"
FAR_MS = 3_786_912_000_000
"""In 2090."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"embedded://{tmp_path}/store"
    close_stores()


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNIS_TRACING_ENABLED", "true")


def place(url: str, **options: Any) -> Place:
    return make_place(url, "q", {"shards": 2, **options}, codec="raw")


def rows(count: int, **columns: Any) -> Any:
    return pa.RecordBatch.from_pydict({"body": pa.array([str(n) for n in range(count)]), **columns})


def headers(url: str) -> dict[str, dict[str, Any]]:
    """Those of each message, by its body."""
    with ignis.Ignis(url) as app:
        found = app.queue("q", bytes).main.peek(10_000)
        return {bytes(one.message).decode(): dict(one.envelope.headers) for one in found}


def context_of(span: Any) -> str:
    return f"00-{trace_of(span):032x}-{id_of(span):016x}-{span.get_span_context().trace_flags:02x}"


def test_a_job_that_traces_nothing_carries_nothing(url: str) -> None:
    at = place(url)
    assert job_trace(at) is None
    list(Publishing(at, job_trace(at))([rows(3)]))
    assert headers(url) == {"0": {}, "1": {}, "2": {}}


@pytest.mark.parametrize("state", [{}, {"tracestate": STATE}])
def test_all_rows_carry_what_is_given(url: str, state: dict[str, str]) -> None:
    at = place(url)
    given = {"traceparent": GIVEN, **state}
    list(Publishing(at, job_trace(at, given))([rows(3)]))
    assert headers(url) == {str(n): given for n in range(3)}


@pytest.mark.parametrize("named", [False, True])
def test_each_row_carries_its_own(url: str, named: bool) -> None:
    """With ids, delays and deadlines as well: those are other ways into the store."""
    at = place(url)
    zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01"
    texts = [
        GIVEN,
        None,
        OTHER,
        "",
        "nonsense",
        GIVEN + "\n",
        GIVEN.upper(),
        zero,
        f"ff{GIVEN[2:]}",
        f"x{GIVEN}",
        f"cc{GIVEN[2:]}",
    ]
    dues = pa.array([FAR_MS - 9_000 if n == 2 else None for n in range(len(texts))], pa.int64())
    ends = pa.array([FAR_MS if n % 2 == 0 else None for n in range(len(texts))], pa.int64())
    ids = pa.array([bytes([n]) * 16 for n in range(len(texts))], pa.binary(16)) if named else None
    batch = rows(len(texts), traceparent=pa.array(texts, pa.string()), due=dues, end=ends)
    load_rows(at, 0, batch.slice(0, 4), None if ids is None else ids.slice(0, 4), job_trace(at, column=True))
    load_rows(at, 0, batch.slice(4), None if ids is None else ids.slice(4), job_trace(at, column=True))
    found = headers(url)
    with ignis.Ignis(url) as app:
        (later,) = app.queue("q", bytes).later
        assert later.message is not None
        found[bytes(later.message.body).decode()] = dict(later.message.headers)
    kept = {"0": GIVEN, "2": OTHER, "10": texts[10]}
    assert found == {str(n): {"traceparent": kept[str(n)]} if str(n) in kept else {} for n in range(len(texts))}


def test_a_context_of_any_size_fails_no_message(url: str) -> None:
    at = place(url)
    load_rows(at, 0, rows(1), None, job_trace(at, {"traceparent": GIVEN, "tracestate": "a=" + "x" * 70_000}))
    assert headers(url) == {"0": {}}


@pytest.mark.usefixtures("tracing")
def test_a_span_tells_that_headers_had_no_room(url: str, spans: Spans) -> None:
    for limit in (78, 16_384):
        at = place(url, max_headers_bytes=limit)
        load_rows(at, 0, rows(1), None, job_trace(at))
    told = [one.attributes.get("ignis.context.left_out") for one in spans.named("publish q")]
    assert told == [True, None]


def test_what_is_a_context() -> None:
    assert is_context(GIVEN)
    assert not any(
        is_context(text) for text in ("traceparent", "", GIVEN + "\n", f"ff{GIVEN[2:]}", "00-" + "0" * 32 + GIVEN[35:])
    )


@pytest.mark.parametrize("column", [False, True])
def test_where_headers_have_no_room_messages_go_without(url: str, column: bool) -> None:
    at = place(url, max_headers_bytes=78)
    batch = rows(2, traceparent=pa.array([GIVEN, None])) if column else rows(2)
    given = {} if column else {"traceparent": GIVEN}
    load_rows(at, 0, batch, None, job_trace(at, given, column=column))
    assert headers(url) == {"0": {}, "1": {}}


@pytest.mark.usefixtures("tracing")
def test_a_load_is_a_span_of_the_driver_s_trace(url: str, spans: Spans) -> None:
    at = place(url, batch_rows=2)
    with trace.get_tracer("test").start_as_current_span("job") as job:
        publishing = Publishing(at, job_trace(at))
    list(publishing([rows(3)]))
    loads = spans.named("publish q")
    assert [(one.kind, one.parent.span_id) for one in loads] == [
        (trace.SpanKind.PRODUCER, job.get_span_context().span_id)
    ] * 2
    assert [one.attributes["messaging.batch.message_count"] for one in loads] == [2, 1]
    assert loads[0].attributes["messaging.operation.type"] == "send"
    found = headers(url)
    assert [found[body]["traceparent"] for body in "012"] == [context_of(loads[at]) for at in (0, 0, 1)]


@pytest.mark.usefixtures("tracing")
def test_without_a_span_in_the_driver_a_load_begins_a_trace(url: str, spans: Spans) -> None:
    at = place(url)
    list(Publishing(at, job_trace(at))([rows(1)]))
    load = spans.one("publish q")
    assert load.parent is None
    assert headers(url)["0"] == {"traceparent": context_of(load)}


@pytest.mark.usefixtures("tracing")
def test_a_load_is_linked_with_the_contexts_of_its_rows(url: str, spans: Spans) -> None:
    at = place(url)
    batch = rows(5, traceparent=pa.array([GIVEN, OTHER, None, GIVEN, "nonsense"]))
    load_rows(at, 0, batch, None, job_trace(at, column=True))
    load = spans.one("publish q")
    assert [f"{link.context.trace_id:032x}" for link in load.links] == [GIVEN[3:35], OTHER[3:35]]
    own = context_of(load)
    assert [headers(url)[body]["traceparent"] for body in "01234"] == [GIVEN, OTHER, own, GIVEN, own]


@pytest.mark.usefixtures("tracing")
def test_rows_that_are_known_and_rows_that_are_refused(url: str, spans: Spans) -> None:
    at = place(url)
    ids = pa.array([bytes([n]) * 16 for n in range(3)], pa.binary(16))
    for _ in range(2):
        load_rows(at, 0, rows(3), ids, job_trace(at))
    first, again = spans.named("publish q")
    assert "ignis.batch.duplicate_count" not in first.attributes
    assert again.attributes["ignis.batch.duplicate_count"] == 3
    assert headers(url)["0"] == {"traceparent": context_of(first)}
    with pytest.raises(InvalidMessageError):
        load_rows(at, 0, pa.RecordBatch.from_pydict({"body": pa.array([None], pa.string())}), None, job_trace(at))
    refused = spans.named("publish q")[2]
    assert refused.attributes["error.type"] == "ignis.errors.InvalidMessageError"
    assert refused.status.status_code is trace.StatusCode.ERROR


def test_the_sink_takes_a_context_or_a_column(url: str) -> None:
    schema = StructType().add("body", "string").add("parent", "string").add("n", "long")
    options = {"url": url, "queue": "q"}
    Target.of(schema, {**options, "traceparent": GIVEN, "tracestate": STATE}, False).write(iter([rows(1)]), ("a",))
    assert headers(url) == {"0": {"traceparent": GIVEN, "tracestate": STATE}}
    batch = pa.RecordBatch.from_pydict({"body": ["x", "y"], "parent": pa.array([OTHER, None]), "n": [1, 2]})
    Target.of(schema, {**options, "traceparent": "parent"}, False).write(iter([batch]), ("b",))
    assert headers(url) == {"0": {"traceparent": GIVEN, "tracestate": STATE}, "x": {"traceparent": OTHER}, "y": {}}
    for wrong in ({"traceparent": "nothing"}, {"traceparent": "n"}, {"traceparent": GIVEN, "tracestate": "x" * 513}):
        with pytest.raises(ConfigError, match="trace"):
            Target.of(schema, {**options, **wrong}, False)


def test_frames_of_pandas_take_a_context_or_a_column(url: str) -> None:
    frame = pd.DataFrame({"body": ["a", "b"], "parent": [OTHER, None]})
    list(publish_in_pandas(url, "q", traceparent="parent")([frame]))
    assert headers(url) == {"a": {"traceparent": OTHER}, "b": {}}
    list(publish_in_pandas(url, "q", traceparent=GIVEN)([frame.assign(body=["c", "d"])]))
    assert headers(url)["d"] == {"traceparent": GIVEN}


def test_the_context_of_a_message_that_is_read() -> None:
    metas = [
        (encode_meta({"traceparent": GIVEN, "tracestate": STATE, "more": [1]}), GIVEN),
        (with_deadline(encode_meta({"traceparent": OTHER}), FAR_MS), OTHER),
        (encode_meta({"traceparent": OTHER}), OTHER),
        (encode_meta({"more": {"traceparent": GIVEN}}), None),
        (encode_meta({"traceparent": "nonsense"}), None),
        (encode_meta({"traceparent": 7}), None),
        (msgspec.msgpack.encode({"headers": 7}), None),
        (msgspec.msgpack.encode({"last_traceparent": GIVEN}), None),
        (b"\xff no map", None),
        (b"", None),
        (None, None),
    ]
    for chosen in (metas, metas * 2, metas[-1:], []):
        read = _traceparents(pa.array([meta for meta, _ in chosen], pa.binary()))
        assert read.to_pylist() == [expected for _, expected in chosen]


def test_a_task_without_the_packages_carries_the_context_all_the_same(url: str) -> None:
    at = place(url)
    close_stores()
    program = f"""
import sys
sys.modules["opentelemetry"] = None
import pyarrow as pa
from ignis.spark.publish_task import Publishing
from ignis.spark.queue_path import Place
from ignis.spark.traces import JobTrace
import pickle
place = pickle.loads(bytes.fromhex(sys.argv[1]))
list(Publishing(place, JobTrace({{"traceparent": "{GIVEN}"}}, True, 1000))([pa.RecordBatch.from_pydict({{"body": ["0"]}})]))
"""

    done = subprocess.run(
        [sys.executable, "-c", program, pickle.dumps(at).hex()],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ.copy(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert headers(url) == {"0": {"traceparent": GIVEN}}


_TASK = """
import os, pickle, sys
import pyarrow as pa
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult, SpanExporter
from ignis.errors import InvalidMessageError

class Told(SpanExporter):
    def export(self, spans):
        for span in spans:
            print(span.name, span.attributes["messaging.batch.message_count"], span.attributes.get("error.type"), flush=True)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Told(), schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
work = pickle.loads(bytes.fromhex(sys.argv[1]))
for body in ("0", None):
    try:
        work(iter([pa.RecordBatch.from_pydict({"body": pa.array([body], pa.string())})]))
    except InvalidMessageError:
        pass
os._exit(0)  # as Spark ends a Python worker
"""


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("sink", [False, True])
def test_a_task_s_spans_are_exported_before_it_ends(url: str, sink: bool) -> None:
    at = place(url)
    if sink:
        schema = StructType().add("body", "string")
        work: Any = functools.partial(_written, Target.of(schema, {"url": url, "queue": "q"}, False))
    else:
        work = functools.partial(_published, Publishing(at, job_trace(at)))
    close_stores()
    done = subprocess.run(
        [sys.executable, "-c", _TASK, pickle.dumps(work).hex()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["publish q 1 None", "publish q 1 ignis.errors.InvalidMessageError"]


def _published(publishing: Publishing, batches: Iterator[Any]) -> None:
    list(publishing(batches))


def _written(target: Target, batches: Iterator[Any]) -> None:
    target.write(batches, ("a",))
