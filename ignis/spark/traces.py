"""The traces of what a Spark job publishes: what its messages carry, and the spans of the loads that its tasks make.

A context is carried with or without OpenTelemetry. The spans need it, and ``tracing.enabled``. A job that neither traces nor
is given a context has None in place of `JobTrace`, and its rows are what they are without this module.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ignis.config import TracingSettings
from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.message import encode_meta
from ignis.spark.queue_path import Place
from ignis.tracing import current_context, open_tracing
from ignis.tracing.envelope import TRACEPARENT, TRACESTATE, fits

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing

__all__ = ["JobTrace", "Load", "given_context", "is_context", "job_trace"]

log = logging.getLogger("ignis.spark")

_CONTEXT = r"(?:[0-9a-e][0-9a-f]|f[0-9a-e])-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
_NO_CONTEXT = "-0{32}-|-0{16}-"
_CONTEXT_CHARS = 55
_MAX_STATE_CHARS = 512
_MOST_LINKS = 128
"""As many as an SDK keeps of a span, unless it is told otherwise."""


def is_context(text: str) -> bool:
    """Whether that is a ``traceparent`` as W3C Trace Context writes it. No column is named so by accident."""
    return re.fullmatch(_CONTEXT, text) is not None and re.search(_NO_CONTEXT, text) is None


class Load:
    """One load of a task: its rows, and what is to be said of it when they are stored."""

    __slots__ = ("repeats", "rows")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.repeats = 0


@dataclass(frozen=True)
class JobTrace:
    """What the messages of a job carry. Small, and pickled into every task."""

    context: Mapping[str, str] = field(default_factory=dict)
    """Of the driver, or given: the parent of the tasks' spans, and what messages carry where nobody makes these."""
    spans: bool = False
    """Whether tasks make spans where they find OpenTelemetry."""
    limit_bytes: int = 0
    """The queue's ``max_headers_bytes``: where a context has no room, messages go without."""

    @contextmanager
    def load(self, queue: str, rows: pa.RecordBatch) -> Iterator[Load]:
        """Rows that are loaded together: they get a column ``meta``, of the column ``traceparent`` where they have one. Where the
        task makes spans it is one around the load, and messages without a context of their own carry it."""
        tracing = _tracing() if self.spans else None
        if tracing is None:
            yield Load(_with_metas(rows, self.context, self.limit_bytes))
            return
        operation = tracing.start(
            "publish",
            queue,
            tracing.PRODUCER,
            parent=self.context or None,
            links=[({TRACEPARENT: one}, {}) for one in _given(rows)],
            attributes={"messaging.batch.message_count": rows.num_rows},
        )
        try:
            context = operation.carrier() or self.context
            if context and not _meta(context, self.limit_bytes):
                operation.set("ignis.context.left_out", True)
            load = Load(_with_metas(rows, context, self.limit_bytes))
            yield load
            if load.repeats:
                operation.set("ignis.batch.duplicate_count", load.repeats)
        except BaseException as exc:
            operation.raised(exc)
            raise
        finally:
            operation.end()

    def flush(self) -> None:
        """Exports what the task has made: Spark ends Python workers without a word."""
        tracing = _tracing() if self.spans else None
        if tracing is not None:
            tracing.flush()


def job_trace(place: Place, given: Mapping[str, str] | None = None, *, column: bool = False) -> JobTrace | None:
    """How a job traces; None where it does not. Called in the driver.

    Args:
        place: the queue, with what ``tracing.enabled`` says.
        given: a context of the caller's; None = what is current, where the job traces.
        column: whether the rows have contexts of their own.
    """
    if given is None:
        given = current_context() if place.traced else {}
    if not (given or column or place.traced):
        return None
    return JobTrace(dict(given), place.traced, place.max_headers_bytes)


def given_context(traceparent: str, tracestate: str | None = None) -> dict[str, str]:
    """The context in two options. Raises ConfigError."""
    if tracestate is None:
        return {TRACEPARENT: traceparent}
    if len(tracestate) > _MAX_STATE_CHARS:
        raise ConfigError(f"tracestate has {len(tracestate)} characters, allowed are {_MAX_STATE_CHARS}")
    return {TRACEPARENT: traceparent, TRACESTATE: tracestate}


@functools.lru_cache(1)
def _tracing() -> Tracing | None:
    """Of this process. An executor without the packages makes no spans; what the driver gave is carried all the same."""
    try:
        return open_tracing(TracingSettings(enabled=True))
    except ConfigError as exc:
        log.warning(event_text("spark_spans_missing", "this task makes no spans: %s"), exc)
        return None


def _given(rows: pa.RecordBatch) -> list[str]:
    """The contexts of the rows, each once, as far as a span takes links to them."""
    if TRACEPARENT not in rows.schema.names:
        return []
    texts = rows.column(TRACEPARENT)
    found: list[str] = pc.unique(texts.filter(_are_contexts(texts))).slice(0, _MOST_LINKS).to_pylist()
    return found


def _are_contexts(texts: pa.Array) -> pa.Array:
    matched = pc.and_not(
        pc.match_substring_regex(texts, f"^{_CONTEXT}$"),
        pc.match_substring_regex(texts, _NO_CONTEXT),
    )
    return pc.fill_null(matched, False)


def _meta(context: Mapping[str, str], limit_bytes: int) -> bytes:
    """An envelope with that context alone; empty where there is none, or no room for it."""
    return encode_meta(context, limit_bytes) if fits(context, context, limit_bytes) else b""


def _with_metas(rows: pa.RecordBatch, context: Mapping[str, str], limit_bytes: int) -> pa.RecordBatch:
    """The rows with a column ``meta`` in place of ``traceparent``; what is no context in there is as if it were null."""
    common = _meta(context, limit_bytes)
    at = rows.schema.get_field_index(TRACEPARENT)
    if at < 0:
        if not common:
            return rows
        same = pa.py_buffer(common * rows.num_rows)
        return rows.append_column("meta", pa.Array.from_buffers(pa.binary(len(common)), rows.num_rows, [None, same]))
    texts = rows.column(at)
    rows = rows.remove_column(at)
    # The text is the last that stands there, so that all before it is the same for every row.
    head = encode_meta({TRACEPARENT: "0" * _CONTEXT_CHARS})[:-_CONTEXT_CHARS]
    if len(head) + _CONTEXT_CHARS > limit_bytes:
        metas = pa.nulls(rows.num_rows, pa.binary())
    else:
        own = pc.binary_join_element_wise(head, texts.cast(pa.binary()), b"")
        metas = pc.if_else(_are_contexts(texts), own, pa.scalar(common or None, pa.binary()))
    return rows.append_column("meta", metas)
