"""The page of all metrics, ``docs/metrics.md``, from their declarations: ``python -m ignis.metrics_page`` prints it."""

from __future__ import annotations

from collections.abc import Iterable

from ignis.figures import CONSUMER, QUEUE, SCHEDULE, SHOVEL, SIDELINED, TIMES
from ignis.metric_catalogue import BROKER, BUILD, FLEET, LEADER, PROCESS, STORE, UPKEEP, Metric

__all__ = ["SECTIONS", "reference"]

# The figures of the store that stand in a queue's, and those that a process counts.
_STORED = tuple(one.shown("queue") for one in QUEUE if one.metric and one.name != "published")
_COUNTED = (
    *(one.shown("queue") for one in QUEUE if one.name == "published"),
    *(one.shown("queue") for one in (*CONSUMER, *SHOVEL) if one.metric),
    SIDELINED,
)

SECTIONS: tuple[tuple[str, str, tuple[Metric, ...]], ...] = (
    ("Every process", "A worker, a supervisor and a broker alike.", BUILD),
    (
        "Queues, from the store",
        ("The same from every instance, so take `max by (queue)` over instances and never their sum. What only rises does so "
        "from the making of the queue on."),
        _STORED,
    ),
    (
        "Queues, from this process",
        (
            "Of one worker, or of all worker processes of a supervisor: the dead ones count, so nothing falls. What a killed one "
            "did after its last report, half a second before at most, is in none. What the supervisor puts aside for a dead one "
            "is in `ignis_recovered_total`, and in `ignis_sidelined_total` as `abandoned`, as is what the "
            "sweeper here sets aside. Take the sum over instances. A rate is PromQL's to make: "
            "`sum by (queue) (rate(ignis_consumed_total[5m]))`."
        ),
        _COUNTED,
    ),
    (
        "Times",
        ("Histograms of 12 buckets, of this process or of all worker processes of a supervisor. `wait` and `end to end` begin "
        "with the first publish, so what a message waited for its time, in the sideline or between two attempts is in them. They "
        "compare the clocks of two machines where publisher and worker stand apart. The share of slow messages: "
        "`histogram_quantile(0.95, sum by (le, queue) (rate(ignis_wait_duration_seconds_bucket[5m])))`."),
        tuple(one.shown("queue") for one in TIMES),
    ),
    ("Schedules", "The same from every instance: see [schedules.md](schedules.md).",
     tuple(one.shown("schedule", "queue") for one in SCHEDULE)),
    ("A worker's process", "Each of its own.", PROCESS),
    ("The store, as a process sees it",
     "Which of them there are depends on the store. A broker shows them too, without calls.", STORE),
    ("Sweeper and scheduler", "Of one instance; one of them leads.", UPKEEP),
    ("Who leads", "Of each candidacy of this process: see [leader.md](leader.md).", LEADER),
    ("Supervisor and autoscaler", "See [fleet.md](fleet.md).", FLEET),
    ("Broker", "Under `/metrics` of `ignis broker --health-bind`, and as the answer to the command METRICS.", BROKER),
)  # fmt: skip
"""(heading, what they have in common, the metrics)."""

_BOUNDS = "Bounds of the buckets, in seconds; the last has none:"


def reference() -> str:
    """The reference page of every metric, as Markdown: ``docs/metrics.md`` is this text."""
    lines = [
        "# Metrics",
        "",
        "Generated from `ignis/metric_catalogue.py` and `ignis/figures.py` (`python -m ignis.metrics_page`).",
        "`ignis worker --health-bind` and `ignis broker --health-bind` serve them under `/metrics`, with the extra `metrics`.",
        "Alerts and a dashboard that use them are among the [deployment files](deployment.md#the-files);",
        "[runbook.md](runbook.md) says what to do about each alert.",
        "",
        "The first 1,000 queues that a process shows have labels of their own; the rest is summed under `queue=\"~other\"`, and",
        "`ignis_queues_left_out` says how many those are. Schedules likewise. Every other label has a fixed set of values.",
        "",
        "**Of a supervisor** (`ignis worker --processes`) says what it shows of its worker processes, which have no endpoint:",
        "",
        "* `sum`: of all processes. In a counter those that ended count too, so that it does not fall when one is replaced.",
        "* `largest`, `smallest`: of those that run now. `leading`, `epoch` and `since` are the largest, so those of the process",
        "  that leads; `available` is the smallest, so 0 while any process cannot take part.",
        "* `of the latest pass`: of the process that made it.",
        "* `each that is in any`: 1 for each state that some process is in.",
        "* `asks the store`: it asks, and has the same as any process. `its own`: of the supervisor itself.",
        "* `none`: only a broker shows it.",
    ]  # fmt: skip
    for heading, common, metrics in SECTIONS:
        lines += ["", f"## {heading}", "", common, "", *_table(metrics)]
        if heading == "Times":
            lines += ["", _BOUNDS, "", *(f"* `{one.metric}`: {_numbers(one.bounds_s)}" for one in TIMES)]
    return "\n".join(lines) + "\n"


def _numbers(bounds_s: Iterable[float]) -> str:
    return ", ".join(f"{one:,g}" for one in bounds_s)


def _table(metrics: Iterable[Metric]) -> list[str]:
    rows = [
        f"| `{one.name}` | {one.kind} | {one.unit} | {', '.join(f'`{label}`' for label in one.labels)} | {one.says} "
        f"| {one.supervised.value} |"
        for one in metrics
    ]
    heads = "| metric | kind | unit | labels | what it says | of a supervisor |"
    return [heads, "| --- | --- | --- | --- | --- | --- |", *rows]


if __name__ == "__main__":
    print(reference(), end="")
