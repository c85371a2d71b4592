"""The context of a trace in a record, for programs that send and take records themselves: a broker's low-level clients.

These make no spans, and need nothing of an application. The first call imports OpenTelemetry.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from ignis.errors import ConfigError, UnreadableMessageError
from ignis.message import MAX_HEADERS_BYTES, Message
from ignis.native import Record
from ignis.tracing.envelope import carrier_of, fits, headers_of

if TYPE_CHECKING:
    from ignis.tracing.otel import Context

__all__ = ["context_of", "current_context", "with_context"]


def with_context(record: bytes) -> bytes:
    """The record with the context of the span that is current now, in its headers: whoever handles it continues the trace.

    It is the same record where nothing is current, where it has a ``traceparent`` already, where its headers have no room left,
    and where it cannot be read. Raises ConfigError where the packages are missing.
    """
    context = current_context()
    if not context:
        return record
    try:
        message = Message.from_bytes(record)
        meta, own = message.meta, message.headers
    except UnreadableMessageError:
        return record
    filled = {**own, **context}
    if carrier_of(own) or not fits(filled, own, MAX_HEADERS_BYTES):
        return record
    return Record(record).replace(meta=msgspec.msgpack.encode({**meta, "headers": filled}))


def context_of(record: bytes) -> Context:
    """The context that the record carries, to be the parent of a span; an empty one where it carries none. Raises ConfigError
    where the packages are missing."""
    found: Context
    try:
        found = _otel().context_in(headers_of(Message.from_bytes(record)))
    except UnreadableMessageError:
        found = _otel().context_in({})
    return found


def current_context() -> dict[str, str]:
    """The context of the span that is current now, as headers; empty where none is. Raises ConfigError where the packages are
    missing."""
    found: dict[str, str] = _otel().current_carrier()
    return found


def _otel() -> ModuleType:
    try:
        from ignis.tracing import otel
    except ImportError as exc:
        raise ConfigError(f"a trace needs a package ({exc.name} is missing): pip install 'ignis-mq[otel]'") from exc
    return otel
