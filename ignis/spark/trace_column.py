"""The traces of messages that a Spark job reads, as a column: for spans of its own, and for what it publishes in turn."""

from __future__ import annotations

import pyarrow as pa

from ignis.errors import UnreadableMessageError
from ignis.message import decode_meta
from ignis.spark._pyspark import Column, arrow_udf
from ignis.spark.traces import is_context
from ignis.tracing.envelope import TRACEPARENT, carrier_of

__all__ = ["traceparent_of"]


def traceparent_of(meta: str | Column = "_meta") -> Column:
    """The context that a message carries, as a column of text; null where it carries none.

    It is worked out in Python, from the envelope that `ignis.spark.drain`, `ignis.spark.resume` and the source give. Who does not
    ask for it pays nothing.

    Args:
        meta: the column with the envelope's growing part.
    """
    return arrow_udf(_traceparents, "string")(meta)  # type: ignore[call-overload, no-any-return]


def _traceparents(metas: pa.Array) -> pa.Array:
    # What was published together has the same one.
    found = metas.dictionary_encode()
    return pa.array([_traceparent(meta) for meta in found.dictionary.to_pylist()], pa.string()).take(found.indices)


def _traceparent(meta: bytes) -> str | None:
    """Whoever may publish chooses these bytes: nothing in them fails a task."""
    try:
        headers = decode_meta(meta).get("headers")
    except UnreadableMessageError:
        return None
    text = carrier_of(headers).get(TRACEPARENT)
    return text if text is not None and is_context(text) else None
