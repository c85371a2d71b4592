"""Prometheus metrics, made from the figures of ``app.stats()`` at the moment they are asked for.

Nothing is counted twice and nothing on the hot path knows of Prometheus. In a service::

    from prometheus_client import REGISTRY
    REGISTRY.register(Collector(app.stats))

``ignis worker --health-bind`` serves the same under ``/metrics``. Needs the extra ``metrics``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
    from prometheus_client.registry import Collector as BaseCollector
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"metrics need a package ({exc.name} is missing): pip install 'ignis-mq[metrics]'", name=exc.name
    ) from exc

from ignis.figures import CONSUMER, QUEUE, SCHEDULE, SHOVEL, Figure
from ignis.message import REASONS

__all__ = ["Collector", "Exposition", "FigureCollector"]

Stats = Mapping[str, Any]
Labelled = tuple[str, Mapping[str, str], float]
"""(name, labels, value)."""

# (where it is in a queue's figures, what it is)
_FIGURES = (
    *(((one.name,), one) for one in QUEUE if one.metric),
    *((("shovel", one.name), one) for one in SHOVEL if one.metric),
    *((("consumer", one.name), one) for one in CONSUMER if one.metric),
    (
        ("consumer", "sidelined_timeout"),
        Figure("", False, "ignis_timeout_count", "Handler calls here that overran their time; only rises."),
    ),
)
_SIDELINED = "sidelined_"


class Collector(BaseCollector):
    """Thread-safe.

    Args:
        stats: returns the figures, in the form of ``Ignis.stats``.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats
        self._rates = _Rates()

    def describe(self) -> Iterable[Metric]:
        """None: registering must not open the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        stats = self._stats()
        queues: list[Stats] = list(stats.get("queues", ()))
        yield from _of_queues(queues)
        yield self._rates.metric(queues)
        if "ring_depth" in stats:
            yield GaugeMetricFamily(
                "ignis_ring_depth", "Messages in buffered publishers, not durable yet.", value=stats["ring_depth"]
            )
        yield from _of_pool(stats.get("pool"))
        yield from _of_schedules(stats.get("schedules"))
        for section in ("store", "sweeper", "scheduler"):
            yield from _plain(section, stats.get(section))
        yield from _of_leaders(stats.get("leaders"))
        yield from _of_refresher(stats.get("refresher"))
        yield from _of_supervisor(stats.get("supervisor"))
        yield from _of_autoscaler(stats.get("autoscaler"))


class FigureCollector(BaseCollector):
    """Shows Prometheus a part that names its figures as Prometheus does, such as the broker. Thread-safe as ``figures`` is.

    Args:
        figures: returns them; those of one name have the same labels. What ends in ``_total`` only rises.
        says: what each name means.
    """

    def __init__(self, figures: Callable[[], Iterable[Labelled]], says: Mapping[str, str]) -> None:
        self._figures = figures
        self._says = says

    def describe(self) -> Iterable[Metric]:
        """None: registering asks nobody."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in self._figures():
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families[name] = kind(name.removesuffix("_total"), self._says[name], labels=list(labels))
            family.add_metric(list(labels.values()), value)
        return families.values()


class Exposition:
    """The text that a Prometheus server reads. Thread-safe."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, collector: BaseCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def text(self) -> bytes:
        """Of type `content_type`."""
        return generate_latest(self._registry)


def _value(figures: Stats, path: tuple[str, ...]) -> float | None:
    found: Any = figures
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            # Of a consumer that runs every figure is there, with 0: what appears with its first event shows no rise.
            return 0.0 if found and name == path[-1] and path[0] == "consumer" != name else None
        found = found[name]
    return 0.0 if found is None else float(found)


def _of_queues(queues: list[Stats]) -> Iterable[Metric]:
    for path, figure in _FIGURES:
        kind = CounterMetricFamily if figure.rises else GaugeMetricFamily
        family = kind(figure.metric, figure.says, labels=["queue"])
        for one in queues:
            value = _value(one, path)
            if value is not None:
                family.add_metric([one["queue"]], value)
        yield family
    sidelined = CounterMetricFamily("ignis_sidelined", "Messages set aside here.", labels=["queue", "reason"])
    spent = SummaryMetricFamily("ignis_handler_duration_seconds", "Time in handlers here.", labels=["queue"])
    for one in queues:
        counts = one.get("consumer") or {}
        if counts:
            every = {f"{_SIDELINED}{reason}": 0 for reason in REASONS} | dict(counts)
            for key, value in every.items():
                if key.startswith(_SIDELINED):
                    sidelined.add_metric([one["queue"], key.removeprefix(_SIDELINED)], value)
        if "timed_s" in counts:
            spent.add_metric([one["queue"]], count_value=counts.get("timed", 0), sum_value=counts["timed_s"])
    yield sidelined
    yield spent


class _Rates:
    """Messages handled a second since the look before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, tuple[float, float]] = {}

    def metric(self, queues: list[Stats]) -> Metric:
        family = GaugeMetricFamily(
            "ignis_drain_rate", "Messages handled here a second, since the last look.", labels=["queue"]
        )
        now = time.monotonic()
        with self._lock:
            for one in queues:
                handled = _value(one, ("consumer", "handled")) or 0.0
                at, before = self._before.get(one["queue"], (now, handled))
                self._before[one["queue"]] = now, handled
                family.add_metric([one["queue"]], max(0.0, handled - before) / (now - at) if now > at else 0.0)
        return family


def _of_pool(classes: Iterable[Mapping[str, int]] | None) -> Iterable[Metric]:
    if classes is not None:
        used = GaugeMetricFamily("ignis_pool_buffers", "Buffers of the slab pools in use here.", labels=["class"])
        there = GaugeMetricFamily("ignis_pool_slots", "Buffers that the slab pools have here.", labels=["class"])
        for one in classes:
            used.add_metric([str(one["slot_bytes"])], one["active"])
            there.add_metric([str(one["slot_bytes"])], one["slots"])
        yield used
        yield there


def _of_schedules(schedules: Iterable[Stats] | None) -> Iterable[Metric]:
    rows = list(schedules or ())
    for figure in SCHEDULE if rows else ():
        kind = CounterMetricFamily if figure.rises else GaugeMetricFamily
        family = kind(figure.metric, figure.says, labels=["schedule", "queue"])
        for one in rows:
            family.add_metric([one["schedule"], one["queue"]], float(one[figure.name]))
        yield family


def _plain(section: str, figures: Stats | None) -> Iterable[Metric]:
    """Every number of a section, by its own name."""
    if figures:
        family = GaugeMetricFamily(f"ignis_{section}", f"Figures of the {section} here.", labels=["figure"])
        for name, value in figures.items():
            if isinstance(value, (int, float)):
                family.add_metric([name], float(value))
        yield family


def _of_leaders(figures: Stats | None) -> Iterable[Metric]:
    if figures:
        family = GaugeMetricFamily("ignis_leader", "Figures of each candidacy here.", labels=["scope", "figure"])
        for scope, one in figures.items():
            for name, value in one.items():
                if isinstance(value, (int, float)):
                    family.add_metric([scope, name], float(value))
        yield family


def _of_refresher(figures: Stats | None) -> Iterable[Metric]:
    if figures:
        yield CounterMetricFamily("ignis_refresh_passes", "Passes over all queues.", value=figures["passes"])
        yield CounterMetricFamily("ignis_refresh_errors", "Queues or passes that failed.", value=figures["errors"])
        states = GaugeMetricFamily(
            "ignis_queue_state", "1 for the state of each queue here.", labels=["queue", "state"]
        )
        for queue, state in figures["states"].items():
            # Why it failed is for the log: every text would be a series of its own.
            states.add_metric([queue, state.partition(":")[0]], 1)
        yield states


def _of_supervisor(figures: Stats | None) -> Iterable[Metric]:
    if figures:
        yield GaugeMetricFamily("ignis_processes_wanted", "Worker processes wanted.", value=figures["wanted"])
        yield CounterMetricFamily("ignis_process_deaths", "Worker processes that died.", value=figures["deaths"])
        yield CounterMetricFamily(
            "ignis_process_restarts", "Worker processes started again.", value=figures["restarts"]
        )
        yield CounterMetricFamily(
            "ignis_recovered", "Messages of dead worker processes put into the sideline.", value=figures["recovered"]
        )
        family = GaugeMetricFamily("ignis_processes", "Worker processes by state.", labels=["state"])
        states = [one["state"] for one in figures["processes"]]
        for state in sorted(set(states)):
            family.add_metric([state], states.count(state))
        yield family


def _of_autoscaler(figures: Stats | None) -> Iterable[Metric]:
    if figures:
        yield GaugeMetricFamily("ignis_autoscaler_leading", "1 while this one acts.", value=float(figures["leading"]))
        if figures["workers"] is not None:  # else nobody knows
            yield GaugeMetricFamily("ignis_autoscaler_workers", "Workers of its target.", value=figures["workers"])
        yield GaugeMetricFamily("ignis_autoscaler_wanted", "Workers wanted.", value=figures["wanted"] or 0)
