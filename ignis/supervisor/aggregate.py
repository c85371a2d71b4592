"""Figures over all worker processes. What is counted must never go down, so the dead ones count too.

How each figure is put together stands with its metric: see `Supervised`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ignis.figures import CONSUMER, SHOVEL
from ignis.metric_catalogue import COUNTER, Metric, Supervised
from ignis.metric_names import leader_metric, store_metric, upkeep_metric
from ignis.native import sum_classes

__all__ = ["Totals"]

_GAUGES = frozenset(one.name for one in CONSUMER if not one.rises)
_SEEN = tuple(one.name for one in SHOVEL if one.supervised is Supervised.LARGEST)
_PARTS = ("sweeper", "scheduler")

Figures = Mapping[str, Any]


class Totals:
    """Sums of what the processes say of themselves. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Mapping[str, Any]] = {}
        self._dead: dict[str, dict[str, Any]] = {}
        self._dead_parts: dict[tuple[str, ...], dict[str, float]] = {}
        """What only rises beside the queues; see `_parts_of`."""

    def note(self, number: int, status: Mapping[str, Any]) -> None:
        """The latest that the process with that number has said."""
        if "queues" in status:
            with self._lock:
                self._living[number] = status

    def close(self, number: int) -> None:
        """The process is gone; what it counted stays."""
        with self._lock:
            status = self._living.pop(number, None)
            if status is not None:
                _add(self._dead, status["queues"], gauges=False)
                for part, figures in _parts_of(status):
                    into = self._dead_parts.setdefault(part, {})
                    for name, value in _rising(part, figures):
                        into[name] = into.get(name, 0) + value

    def count_aside(self, aside: Mapping[tuple[str, str], int]) -> None:
        """The supervisor itself has set these aside for a dead process, by queue and reason."""
        with self._lock:
            for (queue, reason), count in aside.items():
                _add(self._dead, [{"queue": queue, "consumer": {f"sidelined_{reason}": count}}], gauges=False)

    def queues(self) -> dict[str, dict[str, Any]]:
        """Queue -> the sums, in the form of ``Queue.local_stats``. All but the states of the moment never go down."""
        with self._lock:
            sums: dict[str, dict[str, Any]] = {}
            _add(sums, list(self._dead.values()), gauges=False)
            for status in self._living.values():
                _add(sums, status["queues"], gauges=True)
            return sums

    def pool(self) -> list[dict[str, int]]:
        """The buffers of the living, in the form of `pool_classes`."""
        with self._lock:
            return sum_classes(status.get("pool", ()) for status in self._living.values())

    def parts(self) -> dict[str, Any]:
        """What ``app.local_stats`` has beside queues and pools, in its form. Of a queue's states there are all that some process
        sees it in. A part that no process has is not there."""
        with self._lock:
            living = list(self._living.values())
            dead = {part: dict(figures) for part, figures in self._dead_parts.items()}
        found: dict[tuple[str, ...], list[Figures]] = {part: [] for part in dead}
        for status in living:
            for part, figures in _parts_of(status):
                found.setdefault(part, []).append(figures)
        parts: dict[str, Any] = {}
        for part, those in found.items():
            together = _together(part, those, dead.get(part, {}))
            if len(part) == 1:
                parts[part[0]] = together
            else:
                parts.setdefault(part[0], {})[part[1]] = together
        if "refresher" in parts:
            parts["refresher"]["states"] = _states(living)
        if living:
            parts["ring_depth"] = sum(status.get("ring_depth", 0) for status in living)
        if turns := [status["turns"] for status in living if "turns" in status]:
            parts["turns"] = {name: sum(one[name] for one in turns) for name in turns[0]}
        return parts


def _parts_of(status: Figures) -> Iterator[tuple[tuple[str, ...], Figures]]:
    """(name, figures) of the parts of a process: of a candidate the name is ``("leaders", scope)``."""
    for name in ("store", "refresher", *_PARTS):
        if name in status:
            yield (name,), status[name]
    for scope, figures in (status.get("leaders") or {}).items():
        yield ("leaders", scope), figures


def _metric(part: tuple[str, ...], figure: str) -> Metric | None:
    if part[0] == "store":
        shown = store_metric(figure)
        return None if shown is None else shown[0]
    return leader_metric(figure) if part[0] == "leaders" else upkeep_metric(part[0], figure)


def _rising(part: tuple[str, ...], figures: Figures) -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if part == ("refresher",):
            rises = name in ("passes", "errors")
        else:
            metric = _metric(part, name)
            rises = metric is not None and metric.kind == COUNTER
        if rises:
            yield name, value


def _together(part: tuple[str, ...], living: list[Figures], dead: Mapping[str, float]) -> dict[str, Any]:
    sums: dict[str, Any] = dict(dead)
    for figures in living:
        for name, value in _rising(part, figures):
            sums[name] = sums.get(name, 0) + value
    names = {name: metric for one in living for name in one if (metric := _metric(part, name)) is not None}
    for name, metric in names.items():
        if metric.kind != COUNTER:
            values = [one[name] or 0 for one in living if name in one]
            sums[name] = _gauge(metric.supervised, values, name, living)
    return sums


def _gauge(rule: Supervised, values: list[float], name: str, living: list[Figures]) -> float:
    if rule is Supervised.SMALLEST:
        return min(values)
    if rule is Supervised.LATEST:
        return float(max(living, key=lambda one: one.get("last_pass_at_s") or 0).get(name) or 0)
    return sum(values) if rule is Supervised.SUM else max(values)


def _states(living: list[Figures]) -> dict[str, list[str]]:
    """Without why: that is in the process's log."""
    states: dict[str, set[str]] = {}
    for status in living:
        for queue, state in (status.get("refresher") or {}).get("states", {}).items():
            states.setdefault(queue, set()).add(state.partition(":")[0])
    return {queue: sorted(those) for queue, those in states.items()}


def _add(sums: dict[str, dict[str, Any]], queues: list[dict[str, Any]], *, gauges: bool) -> None:
    for one in queues:
        into = sums.setdefault(
            one["queue"],
            {"queue": one["queue"], "published": 0, "shovel": Counter(), "consumer": Counter(), "times": {}},
        )
        into["published"] += one.get("published", 0)
        shovel = dict(one.get("shovel", {}))
        # Each process has seen the same sideline.
        seen = {name: max(into["shovel"].pop(name, 0), shovel.pop(name, 0) if gauges else 0) for name in _SEEN}
        into["shovel"].update(shovel)
        for name, value in seen.items():
            into["shovel"][name] = value  # `update` of a counter adds
        for name, time in one.get("times", {}).items():
            before = into["times"].get(name)
            into["times"][name] = time if before is None else _sum_times(before, time)
        counts = one.get("consumer") or {}
        into["consumer"].update(
            {
                name: value
                for name, value in counts.items()
                if (gauges or name not in _GAUGES) and isinstance(value, int | float)
            }
        )


def _sum_times(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    counts = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    return {"counts": counts, "sum_s": one["sum_s"] + other["sum_s"]}
