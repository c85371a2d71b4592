"""Every figure of a queue: its name in `stats`, whether it only rises, and its metric.

A figure is declared here and set where the thing happens. `Queue.stats`, the metrics and the sums over the processes of a
supervisor follow from the declaration.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from ignis.metric_catalogue import COUNTER, GAUGE, HISTOGRAM, Metric, Supervised, unit_of
from ignis.native.histogram import Histogram
from ignis.storage.base import ShardState

__all__ = [
    "CONSUMER",
    "QUEUE",
    "SCHEDULE",
    "SHOVEL",
    "SIDELINED",
    "TIMES",
    "ConsumerFigures",
    "Figure",
    "QueueTimes",
    "Time",
    "depths",
]


class Figure(NamedTuple):
    """One figure.

    Attributes:
        name: in ``stats``.
        rises: whether it only rises, and stays when a process ends; else it is a state of the moment.
        metric: its name for Prometheus, without ``_total``; empty = none.
        says: what it is.
        unit: what it counts, where the metric's name does not say it.
        supervised: what a supervisor makes of it.
    """

    name: str
    rises: bool
    metric: str = ""
    says: str = ""
    unit: str = "messages"
    supervised: Supervised = Supervised.SUM

    def shown(self, *labels: str) -> Metric:
        """Its metric."""
        name = f"{self.metric}_total" if self.rises else self.metric
        kind = COUNTER if self.rises else GAUGE
        return Metric(name, kind, unit_of(name, self.unit), self.says, labels, self.supervised)


def _rises(metric: str = "", says: str = "", unit: str = "messages", default: Any = 0) -> Any:
    return dataclasses.field(default=default, metadata={"rises": True, "metric": metric, "says": says, "unit": unit})


def _now(metric: str = "", says: str = "", unit: str = "messages", default: Any = 0) -> Any:
    return dataclasses.field(default=default, metadata={"rises": False, "metric": metric, "says": says, "unit": unit})


@dataclasses.dataclass(slots=True)
class ConsumerFigures:
    """Counts what one consumer did since its start. Each counter is written by one thread at a time.

    Each is there from the start, with 0: what appears with its first event shows no rise.
    """

    concurrency: int = _now("ignis_consumers", "Workers asked for here.", "workers")
    workers: int = _now()
    in_flight: int = _now()
    in_flight_bytes: int = _now("ignis_direct_used_bytes", "Bytes of messages in memory here, claimed, not finished.")
    paused: bool = _now(default=False)
    handle_s: float = _now(default=0.0)
    progress_told: int = _now("ignis_progress_told", "Messages in handlers here that have told their progress.")
    progress: float = _now("ignis_progress", "The sum of what they told, each 0 to 1.", "messages", default=0.0)
    lost_threads: int = _now("ignis_lost_threads", "Threads given up that still run here.", "threads")
    failed_starts: int = _now(
        "ignis_failed_starts", "Worker processes in a row that could not start here.", "processes"
    )
    start_error: str | None = _now(default=None)
    timed_s: float = _rises(default=0.0)
    worker_deaths: int = _rises("ignis_worker_deaths", "Worker processes of pool=process that died.", "processes")
    handled: int = _rises("ignis_consumed", "Messages handled here, also with an error to ignore, and acknowledged.")
    sidelined: int = _rises()
    retried: int = _rises("ignis_retried", "Failed messages put back here to be tried again.")
    fetched: int = _rises("ignis_claimed_messages", "Messages in claims here.")
    claims: int = _rises("ignis_claims", "Claims that found something here.", "claims")
    late_acks: int = _rises(
        "ignis_late_acknowledgements",
        "Messages taken away while they were being handled here, or acknowledged again since the answer was lost.",
    )
    ack_errors: int = _rises(
        "ignis_acknowledgement_errors", "Acknowledgements that the store refused at first.", "calls"
    )
    fetch_errors: int = _rises("ignis_claim_errors", "Claims that the store refused at first.", "calls")
    renewals: int = _rises()
    renew_errors: int = _rises()
    reloaded: int = _rises()
    expired: int = _rises()
    overdue: int = _rises("ignis_overdue", "Messages dropped here, not handled: their deadline had passed.")
    timed: int = _rises()
    sidelined_by: Counter[str] = dataclasses.field(default_factory=Counter)
    """By reason: what is in `sidelined`, and what dead processes held when this consumer began.

    In ``stats`` as ``sidelined_<reason>``, from the first on."""

    def counted(self) -> dict[str, Any]:
        """What only rises, by name."""
        own = {one.name: getattr(self, one.name) for one in CONSUMER if one.rises}
        return {**own, **{f"sidelined_{reason}": count for reason, count in dict(self.sidelined_by).items()}}

    def all(self) -> dict[str, Any]:
        """Every figure, by name."""
        return {**{one.name: getattr(self, one.name) for one in CONSUMER if not one.rises}, **self.counted()}


CONSUMER = tuple(Figure(one.name, **one.metadata) for one in dataclasses.fields(ConsumerFigures) if one.metadata)
"""Of a consumer: ``stats()["consumer"]``."""

SHOVEL = (
    Figure("waiting", False, "ignis_sideline_waiting",
           "Messages in the sideline that only a person brings back, as the schedule of this process counted them at its "
           "last pass.", supervised=Supervised.LARGEST),
    Figure("given_up", False, "ignis_sideline_given_up",
           "Of these: messages for which the shovel's policy has no round left.", supervised=Supervised.LARGEST),
    Figure("moved", True, "ignis_shovelled", "Messages brought back from the sideline here."),
    Figure("returned", True, "ignis_returned", "Of these: by the schedule."),
    Figure("kept", True),
    Figure("refused", True),
)  # fmt: skip
"""Of a shovel: ``stats()["shovel"]``. Each process has seen the same sideline, so that what waits there is not summed."""


def _asked(*figures: Figure) -> tuple[Figure, ...]:
    """Figures of the store, which a supervisor asks as any process does; ``published`` is each process's own."""
    return tuple(one if one.name == "published" else one._replace(supervised=Supervised.ASKED) for one in figures)


SCHEDULE = _asked(
    Figure("fired", True, "ignis_schedule_fired", "Ticks that were fired, by anybody.", "ticks"),
    Figure("missed", True, "ignis_schedule_missed", "Ticks that nobody fired in time and that were left out.", "ticks"),
    Figure("lag_s", False, "ignis_schedule_lag_seconds", "How late the last tick was fired."),
    Figure("paused", False, "ignis_schedule_paused", "1 while the schedule is paused.", "1 or 0"),
)
"""Of a schedule: ``stats()["schedules"]``."""

QUEUE = _asked(
    Figure("pending", False, "ignis_queue_pending", "Messages that wait in the queue."),
    Figure("sideline", False, "ignis_queue_sideline", "Messages that wait in the sideline."),
    Figure("delayed", False, "ignis_queue_delayed", "Messages that wait for their time."),
    Figure("in_flight", False, "ignis_queue_in_flight", "Messages claimed and not finished, by anybody."),
    Figure("sideline_in_flight", False),
    Figure("oldest_age_s", False, "ignis_oldest_age_seconds",
           "Age of the oldest waiting message; 0 when none waits."),
    Figure("paused", False, "ignis_queue_paused", "1 while the fleet's consumers are paused.", "1 or 0"),
    Figure("published", True, "ignis_published", "Messages made durable here."),
    Figure("swept", True, "ignis_swept", "Abandoned messages that any sweeper recovered."),
    Figure("expired", True, "ignis_expired",
           "Messages that ran out of time in the queue, delayed or between attempts, whoever retired them."),
    Figure("sideline_expired", True, "ignis_sideline_expired", "Messages that ran out of time in the sideline, likewise."),
)  # fmt: skip
"""Of a queue: ``stats()``. All but ``published`` and ``paused`` are the store's."""

SIDELINED = Metric(
    "ignis_sidelined_total", COUNTER, "messages", "Messages set aside here, by reason.", ("queue", "reason")
)
"""Of each ``sidelined_<reason>`` of a consumer."""


class Time(NamedTuple):
    """One time of a queue's messages, counted by bucket.

    Attributes:
        name: in ``stats()["times"]``.
        metric: its name for Prometheus.
        says: from when to when.
        bounds_s: the upper bound of each bucket but the last, which has none.
    """

    name: str
    metric: str
    says: str
    bounds_s: tuple[float, ...]

    def shown(self, *labels: str) -> Metric:
        """Its metric."""
        return Metric(self.metric, HISTOGRAM, "seconds", self.says, labels)


_CALL_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_WORK_S = (0.0001, 0.001, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0)
_AGE_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0)

TIMES = (
    Time("publish", "ignis_publish_duration_seconds",
         "Of each publish call here, until its messages were durable; of buffered publishers, of each of their loads.", _CALL_S),
    Time("wait", "ignis_wait_duration_seconds",
         "Of each message claimed here, from its first publish to the claim.", _AGE_S),
    Time("handling", "ignis_handler_duration_seconds",
         "Of each message in its handler here, each of a batch with the time of the whole call.", _WORK_S),
    Time("end_to_end", "ignis_end_to_end_duration_seconds",
         "Of each message handled here, from its first publish to the end of its handler.", _AGE_S),
)  # fmt: skip
"""Of a queue: ``stats()["times"]``."""


HANDLING = TIMES[2]


class QueueTimes:
    """The times of one queue in one process, each a `Histogram`. Thread-safe."""

    __slots__ = ("end_to_end", "handling", "publish", "wait")

    def __init__(self) -> None:
        self.publish, self.wait, self.handling, self.end_to_end = (Histogram(one.bounds_s) for one in TIMES)

    def figures(self) -> dict[str, dict[str, Any]]:
        """``counts`` and ``sum_s`` of each, by name."""
        return {one.name: getattr(self, one.name).figures() for one in TIMES}


def depths(
    main: Sequence[ShardState], sideline: Sequence[ShardState], delayed: int = 0, expired_later: int = 0
) -> dict[str, int]:
    """What the store says of a queue's magazines, summed over their shards; ``expired_later`` as in `KeepsLater`."""
    return {
        "pending": sum(one.pending for one in main),
        "in_flight": sum(one.in_flight for one in main),
        "sideline": sum(one.pending for one in sideline),
        "sideline_in_flight": sum(one.in_flight for one in sideline),
        "expired": sum(one.expired for one in main) + expired_later,
        "sideline_expired": sum(one.expired for one in sideline),
        "delayed": delayed,
    }
