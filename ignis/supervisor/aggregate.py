"""Counts over all worker processes, the dead ones included: what is counted must never go down."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ignis.figures import CONSUMER
from ignis.native import sum_classes

__all__ = ["Totals"]

_GAUGES = frozenset(one.name for one in CONSUMER if not one.rises)


class Totals:
    """Sums of what the processes say of themselves. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Mapping[str, Any]] = {}
        self._dead: dict[str, dict[str, Any]] = {}

    def note(self, number: int, status: Mapping[str, Any]) -> None:
        """The latest that the process with that number has said."""
        if status.get("queues"):
            with self._lock:
                self._living[number] = status

    def close(self, number: int) -> None:
        """The process is gone; what it counted stays."""
        with self._lock:
            status = self._living.pop(number, None)
            if status is not None:
                _add(self._dead, status["queues"], gauges=False)

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


def _add(sums: dict[str, dict[str, Any]], queues: list[dict[str, Any]], *, gauges: bool) -> None:
    for one in queues:
        into = sums.setdefault(
            one["queue"],
            {"queue": one["queue"], "published": 0, "shovel": Counter(), "consumer": Counter(), "times": {}},
        )
        into["published"] += one.get("published", 0)
        shovel = dict(one.get("shovel", {}))
        # Each process has seen the same sideline.
        seen = {
            name: max(into["shovel"].pop(name, 0), shovel.pop(name, 0) if gauges else 0)
            for name in ("waiting", "given_up")
        }
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
