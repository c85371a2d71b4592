"""Traces of OpenTelemetry: who published a message, who handled it, and what became of it. An optional extra.

Nothing here imports ``opentelemetry`` but `ignis.tracing.otel`, which is imported when an application switches tracing on.
An application that does not has ``tracing`` None, and its queues and handlers are called as if this folder were not there.
"""

from __future__ import annotations

from ignis.tracing.opening import open_tracing
from ignis.tracing.records import context_of, current_context, with_context

__all__ = ["context_of", "current_context", "open_tracing", "with_context"]
