"""A figure is declared once; `stats`, the metrics and the sums over processes follow."""

from __future__ import annotations

from collections import Counter

import ignis
from ignis.figures import CONSUMER, QUEUE, SHOVEL, TIMES, ConsumerFigures
from ignis.metrics import Collector
from ignis.supervisor.aggregate import Totals


def test_stats_have_what_is_declared(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)
    memory_app.start()
    stats = queue.stats()
    assert stats["consumer"].keys() == {one.name for one in CONSUMER}
    assert stats["shovel"].keys() == {one.name for one in SHOVEL}
    assert stats.keys() == {one.name for one in QUEUE} - {"swept"} | {"queue", "consumer", "shovel", "times"}
    assert stats["times"].keys() == {one.name for one in TIMES}


def test_every_metric_of_a_queue_is_shown_once(memory_app: ignis.Ignis) -> None:
    declared = Counter(one.metric for one in (*QUEUE, *SHOVEL, *CONSUMER) if one.metric)
    shown = Counter(family.name for family in Collector(memory_app.stats).collect())
    assert {name: shown[name] for name in declared} == declared == dict.fromkeys(declared, 1)


def test_what_only_rises_outlives_its_process() -> None:
    figures = ConsumerFigures(sidelined_by=Counter(timeout=2))
    for one in CONSUMER:
        setattr(figures, one.name, 3)
    totals = Totals()
    totals.note(1, {"queues": [{"queue": "jobs", "consumer": figures.all()}]})
    assert totals.queues()["jobs"]["consumer"] == figures.all()
    totals.close(1)
    assert totals.queues()["jobs"]["consumer"] == figures.counted()
    assert figures.counted()["sidelined_timeout"] == 2
