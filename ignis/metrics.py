"""Prometheus metrics, made from the figures of ``app.stats()`` at the moment they are asked for.

Nothing is counted twice and nothing on the hot path knows of Prometheus. In a service::

    from prometheus_client import REGISTRY
    REGISTRY.register(Collector(app.stats, local=app.local_stats))

``ignis worker --health-bind`` serves the same under ``/metrics``. Needs the extra ``metrics``. What there is, with unit and
meaning, stands in `ignis.metric_catalogue` and `ignis.figures`, of which ``docs/metrics.md`` is made.
"""

from __future__ import annotations

import itertools
import logging
import platform
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ignis.log_format import event_text

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.core import (
        Metric as Family,
    )
    from prometheus_client.registry import Collector as BaseCollector
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"metrics need a package ({exc.name} is missing): pip install 'ignis-mq[metrics]'", name=exc.name
    ) from exc

from ignis._version import __version__
from ignis.bounded_call import BoundedCall
from ignis.errors import IgnisError, PermissionDeniedError, PublishOnlyError
from ignis.figures import CONSUMER, QUEUE, SCHEDULE, SHOVEL, SIDELINED, TIMES, Time
from ignis.log_limit import LimitedLog
from ignis.message import REASONS
from ignis.metric_catalogue import (
    BROKER,
    BUILD,
    COUNTER,
    FLEET,
    HISTOGRAM,
    LEADER,
    OTHER,
    PROCESS,
    STORE,
    STORE_CALLS,
    UPKEEP,
    Metric,
)
from ignis.metric_names import leader_metric, store_metric, upkeep_metric

__all__ = ["ASK_S", "FRESH_S", "MAX_QUEUES", "Collector", "Exposition", "FigureCollector"]

log = logging.getLogger("ignis.metrics")

ASK_S = 3.0
"""A scrape waits for the store for so long: a Prometheus gives up after 10 s."""

FRESH_S = 1.0
"""An endpoint's figures of the store are at most this old: however many ask, it is asked once."""

MAX_QUEUES = 1_000
"""Queues, and schedules, that have labels of their own."""

Stats = Mapping[str, Any]
Labelled = tuple[str, Mapping[str, str], float]
"""(name, labels, value)."""

# (where it is in a queue's figures, what it is)
_FIGURES = tuple(
    (path, figure.shown("queue"))
    for path, figure in (
        *(((one.name,), one) for one in QUEUE),
        *((("shovel", one.name), one) for one in SHOVEL),
        *((("consumer", one.name), one) for one in CONSUMER),
    )
    if figure.metric
)
_TIMES = tuple((one, one.shown("queue")) for one in TIMES)
_SCHEDULES = tuple((one.name, one.shown("schedule", "queue")) for one in SCHEDULE)
_METRICS = {
    one.name: one
    for one in (
        *BUILD, *PROCESS, *STORE, *UPKEEP, *LEADER, *FLEET, *BROKER, SIDELINED,
        *(metric for _, metric in (*_FIGURES, *_TIMES, *_SCHEDULES)),
    )
}  # fmt: skip
_SIDELINED = "sidelined_"
_LARGEST = frozenset(
    ("ignis_oldest_age_seconds", "ignis_queue_paused", "ignis_schedule_lag_seconds", "ignis_schedule_paused")
)
"""Of several queues under one label the largest counts, and not the sum."""


class _Families:
    """The metrics of one scrape. A name that is not in the catalogue is a KeyError."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._times: dict[str, dict[tuple[str, ...], tuple[Time, list[int], float]]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """One value; several of the same labels are one, see `OTHER`."""
        rows = self._values.setdefault(name, {})
        if labels in rows:
            value = max(rows[labels], value) if name in _LARGEST else rows[labels] + value
        rows[labels] = value

    def add_time(self, time: Time, counts: Iterable[int], sum_s: float, *labels: str) -> None:
        rows = self._times.setdefault(time.metric, {})
        before = rows.get(labels)
        if before is not None:
            counts = [one + other for one, other in zip(before[1], counts, strict=True)]
            sum_s += before[2]
        rows[labels] = time, list(counts), sum_s

    def open(self, *metrics: Metric) -> None:
        """They are shown also when nothing is added."""
        for one in metrics:
            if one.kind == HISTOGRAM:
                self._times.setdefault(one.name, {})
            else:
                self._values.setdefault(one.name, {})

    def all(self) -> Iterable[Family]:
        for name, rows in self._values.items():
            metric = _METRICS[name]
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), metric.says, labels=metric.labels)
            for labels, value in rows.items():
                family.add_metric(labels, value)
            yield family
        for name, times in self._times.items():
            metric = _METRICS[name]
            histogram = HistogramMetricFamily(name, metric.says, labels=metric.labels)
            for labels, (time, counts, sum_s) in times.items():
                bounds = [*(f"{bound:g}" for bound in time.bounds_s), "+Inf"]
                risen = list(itertools.accumulate(counts))
                histogram.add_metric(labels, list(zip(bounds, risen, strict=True)), sum_s)
            yield histogram


class Collector(BaseCollector):
    """Shows the figures of a process, whether its store answers or not. Thread-safe.

    Args:
        stats: returns the figures, in the form of ``Ignis.stats``. It is called in a thread of its own, and waited for at most
            3 s. While it raises an error of the store, or does not return, ``ignis_store_up`` is 0 and the error is logged.
        local: returns those that the process has by itself, for that time: ``Ignis.local_stats``; None = none.
        fresh_s: what ``stats`` returned is used again for so long.
        max_queues: so many queues have labels of their own, those that were seen first; the rest is summed as ``~other``.
            The same holds for schedules.
    """

    def __init__(
        self,
        stats: Callable[[], Stats],
        *,
        local: Callable[[], Stats] | None = None,
        fresh_s: float = 0.0,
        max_queues: int = MAX_QUEUES,
    ) -> None:
        self._stats = BoundedCall(stats, "the store", ASK_S, fresh_s=fresh_s)
        self._local = local
        self._said = LimitedLog(log)
        self._queues, self._schedules = _Bound(max_queues), _Bound(max_queues)

    def describe(self) -> Iterable[Family]:
        """None: registering must not open the store."""
        return ()

    def collect(self) -> Iterable[Family]:
        """The figures of this moment."""
        found = _Families()
        _add_build(found)
        stats = self._answered(found)
        queues: list[Stats] = list(stats.get("queues", ()))
        _add_queues(found, queues, self._queues)
        _add_set_aside(found, stats.get("set_aside") or (), self._queues)
        if "ring_depth" in stats:
            found.add("ignis_ring_depth", stats["ring_depth"])
        if turns := stats.get("turns"):
            found.add("ignis_turns", turns["limit"])
            found.add("ignis_turns_taken", turns["taken"])
            found.add("ignis_turns_waiting", turns["waiting"])
        for one in stats.get("pool") or ():
            found.add("ignis_pool_buffers", one["active"], str(one["slot_bytes"]))
            found.add("ignis_pool_slots", one["slots"], str(one["slot_bytes"]))
        _add_schedules(found, stats.get("schedules") or (), self._schedules)
        _add_store(found, stats.get("store") or {})
        for part in ("sweeper", "scheduler"):
            _add_upkeep(found, part, stats.get(part) or {})
        for scope, one in (stats.get("leaders") or {}).items():
            _add_leader(found, scope, one)
        _add_refresher(found, stats.get("refresher"), self._queues)
        _add_supervisor(found, stats.get("supervisor"))
        _add_autoscaler(found, stats.get("autoscaler"))
        return list(found.all())

    def _answered(self, found: _Families) -> Stats:
        try:
            stats = self._stats()
        except (IgnisError, OSError) as exc:
            self._said.warning(event_text("store_figures_missing", "metrics go without the store's figures: %s"), exc)
            # Who is refused has been answered.
            found.add("ignis_store_up", float(isinstance(exc, (PermissionDeniedError, PublishOnlyError))))
            return {} if self._local is None else self._local()
        if "store" in stats:
            found.add("ignis_store_up", 1)
        return stats


class FigureCollector(BaseCollector):
    """Shows Prometheus a part that names its figures as Prometheus does, such as the broker. Thread-safe as ``figures`` is.

    Args:
        figures: returns them; each stands in the catalogue.
        store: returns those of the store behind it, in the form of ``Store.stats``; None = it has none. Waited for as for those
            of a `Collector`. Calls are left out: they are of one application.
    """

    def __init__(self, figures: Callable[[], Iterable[Labelled]], store: Callable[[], Stats] | None = None) -> None:
        self._figures = figures
        self._store = None if store is None else BoundedCall(store, "the store", ASK_S, fresh_s=FRESH_S)
        self._said = LimitedLog(log)

    def describe(self) -> Iterable[Family]:
        """None: registering asks nobody."""
        return ()

    def collect(self) -> Iterable[Family]:
        """The figures of this moment."""
        found = _Families()
        _add_build(found)
        for name, labels, value in self._figures():
            found.add(name, value, *(labels[label] for label in _METRICS[name].labels))
        if self._store is not None:
            try:
                figures = self._store()
            except (IgnisError, OSError) as exc:
                self._said.warning(
                    event_text("store_figures_missing", "metrics go without the store's figures: %s"), exc
                )
                found.add("ignis_store_up", 0)
            else:
                found.add("ignis_store_up", 1)
                _add_store(found, {name: value for name, value in figures.items() if name not in STORE_CALLS})
        return list(found.all())


class Exposition:
    """The text that a Prometheus server reads. Thread-safe."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, collector: BaseCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def text(self) -> bytes:
        """Of type `content_type`."""
        return generate_latest(self._registry)


class _Bound:
    """Which names have a label of their own: the first so many that were seen, for as long as this lives. A counter that
    changed between its own label and that of all others would seem to fall. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._own: set[str] = set()

    def label(self, name: str) -> str:
        with self._lock:
            if name not in self._own and len(self._own) < self._most:
                self._own.add(name)
            return name if name in self._own else OTHER


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _value(figures: Stats, path: tuple[str, ...]) -> float | None:
    found: Any = figures
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            # Of a consumer that runs every figure is there, with 0: what appears with its first event shows no rise.
            return 0.0 if found and name == path[-1] and path[0] == "consumer" != name else None
        found = found[name]
    return 0.0 if found is None else float(found)


def _add_build(found: _Families) -> None:
    found.add("ignis_build_info", 1, __version__, platform.python_version())


def _add_queues(found: _Families, queues: list[Stats], bound: _Bound) -> None:
    found.open(*(metric for _, metric in (*_FIGURES, *_TIMES)), SIDELINED)
    left_out = 0
    for one in queues:
        label = bound.label(one["queue"])
        left_out += label == OTHER
        for path, metric in _FIGURES:
            if (value := _value(one, path)) is not None:
                found.add(metric.name, value, label)
        counts = one.get("consumer") or {}
        if counts:
            every = {f"{_SIDELINED}{reason}": 0 for reason in REASONS} | dict(counts)
            for key, value in every.items():
                if key.startswith(_SIDELINED):
                    found.add(SIDELINED.name, value, label, key.removeprefix(_SIDELINED))
        times = one.get("times") or {}
        for time, _ in _TIMES:
            if time.name in times:
                found.add_time(time, times[time.name]["counts"], times[time.name]["sum_s"], label)
    found.add("ignis_queues_left_out", left_out)


def _add_set_aside(found: _Families, aside: Iterable[Stats], bound: _Bound) -> None:
    """What a sweeper has set aside, perhaps of queues that have no consumer here."""
    for one in aside:
        for key, value in one["consumer"].items():
            found.add(SIDELINED.name, value, bound.label(one["queue"]), key.removeprefix(_SIDELINED))


def _add_schedules(found: _Families, schedules: Iterable[Stats], bound: _Bound) -> None:
    for one in schedules:
        label = bound.label(one["schedule"])
        queue = OTHER if label == OTHER else one["queue"]
        for name, metric in _SCHEDULES:
            found.add(metric.name, float(one[name]), label, queue)


def _add_store(found: _Families, figures: Stats) -> None:
    """Every number of a store; its text, and what the catalogue does not have, is left out."""
    for figure, given in figures.items():
        value, shown = _number(given), store_metric(figure)
        if value is not None and shown is not None:
            metric, labels = shown
            found.add(metric.name, value, *labels)


def _add_upkeep(found: _Families, part: str, figures: Stats) -> None:
    for figure, given in figures.items():
        value, metric = 0.0 if given is None else _number(given), upkeep_metric(part, figure)
        if value is not None and metric is not None:
            found.add(metric.name, value)


def _add_leader(found: _Families, scope: str, figures: Stats) -> None:
    for figure, given in figures.items():
        value, metric = 0.0 if given is None else _number(given), leader_metric(figure)
        if value is not None and metric is not None:
            found.add(metric.name, value, scope)


def _add_refresher(found: _Families, figures: Stats | None, bound: _Bound) -> None:
    if figures:
        found.add("ignis_refresh_passes_total", figures["passes"])
        found.add("ignis_refresh_errors_total", figures["errors"])
        found.open(*(one for one in PROCESS if one.name == "ignis_queue_state"))
        for queue, state in figures["states"].items():
            for one in (state,) if isinstance(state, str) else state:  # of a supervisor: those that its processes say
                # Why it failed is for the log: every text would be a series of its own.
                found.add("ignis_queue_state", 1, bound.label(queue), one.partition(":")[0])


def _add_supervisor(found: _Families, figures: Stats | None) -> None:
    if figures:
        found.add("ignis_processes_wanted", figures["wanted"])
        found.add("ignis_process_deaths_total", figures["deaths"])
        found.add("ignis_process_restarts_total", figures["restarts"])
        found.add("ignis_recovered_total", figures["recovered"])
        for one in figures["processes"]:
            found.add("ignis_processes", 1, one["state"])


def _add_autoscaler(found: _Families, figures: Stats | None) -> None:
    if figures:
        found.add("ignis_autoscaler_leading", float(figures["leading"]))
        if figures["workers"] is not None:  # else nobody knows
            found.add("ignis_autoscaler_workers", figures["workers"])
        found.add("ignis_autoscaler_wanted", figures["wanted"] or 0)
