"""Whether an application traces: the one place that imports what needs OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignis.config import TracingSettings
from ignis.errors import ConfigError

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing

__all__ = ["open_tracing"]


def open_tracing(settings: TracingSettings) -> Tracing | None:
    """What makes the spans of an application; None where its settings do not say so. Raises ConfigError where the packages are
    missing."""
    if not settings.enabled:
        return None
    try:
        from ignis.tracing.otel import Tracing
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"tracing.enabled needs a package ({exc.name} is missing): pip install 'ignis-mq[otel]', or switch it off"
        ) from exc
    return Tracing()
