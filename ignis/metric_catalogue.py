"""Every metric that ignis shows, with its kind, unit, labels and meaning. Nothing is shown that does not stand here.

The page ``docs/metrics.md`` is made from it (`ignis.metrics_page`). Figures of a queue and of a schedule are declared in
`ignis.figures`, which adds them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = [
    "BROKER",
    "BUILD",
    "COUNTER",
    "FLEET",
    "GAUGE",
    "HISTOGRAM",
    "LEADER",
    "OTHER",
    "PROCESS",
    "STORE",
    "STORE_CALLS",
    "UPKEEP",
    "Metric",
    "Supervised",
    "unit_of",
]

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

OTHER = "~other"
"""The label of what is over the bound on labels; no queue can have that name."""


class Supervised(Enum):
    """What a supervisor shows of a metric. The value stands in ``docs/metrics.md``."""

    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"
    LATEST = "of the latest pass"
    EACH = "each that is in any"
    ASKED = "asks the store"
    OWN = "its own"
    NOT = "none"


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: as Prometheus shows it; that of a counter ends in ``_total``.
        kind: `COUNTER`, `GAUGE` or `HISTOGRAM`.
        unit: what it counts, or in what it is measured.
        says: what it means.
        labels: their names.
        supervised: what a supervisor shows of it, by what its worker processes say.
    """

    name: str
    kind: str
    unit: str
    says: str
    labels: tuple[str, ...] = ()
    supervised: Supervised = Supervised.SUM


def unit_of(name: str, otherwise: str) -> str:
    """The unit that a metric's name says; else the other."""
    base = name.removesuffix("_total")
    if base.endswith("_timestamp_seconds"):
        return "seconds since 1970"
    return next((unit for unit in ("seconds", "bytes") if base.endswith(f"_{unit}")), otherwise)


def _gauge(name: str, unit: str, says: str, *labels: str, supervised: Supervised) -> Metric:
    return Metric(name, GAUGE, unit_of(name, unit), says, labels, supervised)


def _counter(name: str, unit: str, says: str, *labels: str, supervised: Supervised = Supervised.SUM) -> Metric:
    return Metric(name, COUNTER, unit_of(name, unit), says, labels, supervised)


def _plain(name: str, unit: str, says: str, *labels: str) -> Metric:
    return _gauge(name, unit, says, *labels, supervised=Supervised.OWN)


def _shown(supervised: Supervised, *metrics: Metric) -> tuple[Metric, ...]:
    """A section in which a supervisor shows all in one way."""
    return tuple(one._replace(supervised=supervised) for one in metrics)


_SUM, _LARGEST, _SMALLEST, _LATEST = Supervised.SUM, Supervised.LARGEST, Supervised.SMALLEST, Supervised.LATEST
_EACH, _ASKED, _OWN, _NOT = Supervised.EACH, Supervised.ASKED, Supervised.OWN, Supervised.NOT

BUILD = (
    _gauge(
        "ignis_build_info", "always 1", "Which ignis this is, on which Python.", "version", "python", supervised=_OWN
    ),
)
"""Of every process that shows metrics."""

PROCESS = (
    _gauge("ignis_ring_depth", "messages", "In buffered publishers here, not durable yet.", supervised=_SUM),
    _gauge(
        "ignis_pool_buffers", "buffers", "Of the slab pools, in use here, by size in bytes.", "class", supervised=_SUM
    ),
    _gauge(
        "ignis_turns", "threads", "That may be in handlers here at a time, by consumer.max_running.", supervised=_SUM
    ),
    _gauge("ignis_turns_taken", "threads", "That have their turn in handlers here, or claim for it.", supervised=_SUM),
    _gauge(
        "ignis_turns_waiting",
        "threads",
        "That wait for their turn here, one a queue that has messages.",
        supervised=_SUM,
    ),
    _gauge("ignis_pool_slots", "buffers", "That the slab pools have here, by size in bytes.", "class", supervised=_SUM),
    _counter("ignis_refresh_passes_total", "passes", "Over all queues, to follow what others changed."),
    _counter("ignis_refresh_errors_total", "errors", "Queues or passes that failed."),
    _gauge("ignis_queue_state", "1 for the state it is in", "Of each queue here.", "queue", "state", supervised=_EACH),
    _gauge(
        "ignis_queues_left_out", "queues", f"Over the bound on labels; they are summed as {OTHER}.", supervised=_OWN
    ),
)
"""Of a worker's process."""

STORE = (
    _gauge("ignis_store_up", "1 or 0", "Whether the store answers; while it is 0, what is the store's is left out.",
           supervised=_OWN),
    _gauge("ignis_store_records", "messages", "That the store holds.", supervised=_ASKED),
    _gauge("ignis_store_used_bytes", "", "Of living messages and their envelopes.", supervised=_ASKED),
    _gauge("ignis_store_file_bytes", "", "Of the log's files on the disk.", supervised=_ASKED),
    _gauge("ignis_store_state_bytes", "", "Of the store's state in shared memory.", supervised=_ASKED),
    _gauge("ignis_store_limit_bytes", "", "Loads are refused when a durability has more living bytes.", supervised=_ASKED),
    _gauge("ignis_store_free_bytes", "", "Free on the file system of the store.", supervised=_ASKED),
    _counter("ignis_store_refused_loads_total", "loads", "Refused: max_store_bytes (limit), no disk (room).", "reason"),
    _gauge("ignis_store_damaged_bytes", "", "Of the log, passed over when it was last read: run `ignis doctor`.",
           supervised=_ASKED),
    _counter("ignis_store_unreadable_reads_total", "reads", "That the disk refused."),
    _gauge("ignis_store_class_used_bytes", "", "Living bytes of one durability.", "durability", supervised=_ASKED),
    _gauge("ignis_store_generation", "openings", "Rises when a log is opened anew, and when a flush failed.", "durability",
           supervised=_ASKED),
    _counter("ignis_store_calls_total", "calls", "Of the store's contract, from here, by kind.", "call"),
    _counter("ignis_store_client_calls_total", "calls", "Of the Aerospike client, from here, by kind.", "kind"),
    _counter("ignis_store_holes_total", "pointers", "Claimed before their record was there, by what became of them.", "what"),
    _counter("ignis_store_sealed_loads_total", "loads", "That found one of their pointers sealed."),
    _counter("ignis_store_restored_pointers_total", "pointers", "Of magazines, restored after their record was lost."),
    _counter("ignis_store_resurrected_records_total", "records", "That came back after they were deleted."),
    _counter("ignis_broker_client_connects_total", "connections", "That this process made to its broker."),
    _gauge("ignis_broker_client_pending", "requests", "Of this process that wait for its broker's answer.", supervised=_SUM),
    _counter("ignis_broker_client_late_answers_total", "answers", "Of the broker, after the request was given up."),
    _gauge("ignis_relay_channels", "channels", "Of producers, in the relay's directory.", supervised=_ASKED),
)  # fmt: skip
"""Of the store, as the process sees it."""

STORE_CALLS = ("loads", "fires", "deletes", "reloads", "transfers")
"""Values of the label ``call``."""

UPKEEP = (
    *(
    metric
    for part, what in (("sweeper", "passes"), ("scheduler", "looks"))
    for metric in (
        _gauge(f"ignis_{part}_running", "1 or 0", f"Whether the {part}'s thread runs here.", supervised=_LARGEST),
        _counter(f"ignis_{part}_{what}_total", what, f"Of the {part} here."),
        _counter(f"ignis_{part}_refused_writes_total", what, "That ended because another instance leads."),
    )
),
    _counter("ignis_sweeper_failed_passes_total", "passes", "Of the sweeper here."),
    _counter("ignis_sweeper_swept_total", "messages", "Abandoned ones that the sweeper here put into the sideline."),
    _counter("ignis_sweeper_sideline_swept_total", "messages", "The same, of what a shovel had claimed in the sideline."),
    _counter("ignis_sweeper_expired_total", "messages", "That the sweeper here found expired."),
    _counter("ignis_sweeper_failed_queues_total", "queues", "That a pass here could not sweep."),
    _counter("ignis_sweeper_untimed_queues_total", "queues", "Left alone because the age of claims cannot be told."),
    _gauge("ignis_sweeper_last_pass_timestamp_seconds", "", "When the last pass here ended; 0 = there was none.",
           supervised=_LARGEST),
    _gauge("ignis_sweeper_last_pass_duration_seconds", "", "How long it took.", supervised=_LATEST),
    _counter("ignis_scheduler_fired_total", "ticks", "That the scheduler here fired."),
    _counter("ignis_scheduler_missed_total", "ticks", "That it left out, because they were too late."),
    _counter("ignis_scheduler_failed_total", "schedules", "Or queues, that could not be fired when they were due."),
)  # fmt: skip
"""Of the sweeper and the scheduler of one instance."""

LEADER = (
    _gauge("ignis_leader_leading", "1 or 0", "Whether this instance leads.", "scope", supervised=_LARGEST),
    _gauge(
        "ignis_leader_available",
        "1 or 0",
        "Whether who decides answers, and this instance can take part.",
        "scope",
        supervised=_SMALLEST,
    ),
    _gauge("ignis_leader_epoch", "number", "Of its office; 0 = it has none.", "scope", supervised=_LARGEST),
    _gauge(
        "ignis_leader_since_timestamp_seconds",
        "",
        "When it came to lead; 0 = it does not.",
        "scope",
        supervised=_LARGEST,
    ),
    _counter("ignis_leader_offices_total", "times", "That it came to lead.", "scope"),
    _gauge(
        "ignis_leader_unavailable_seconds", "", "For how long ZooKeeper has not answered.", "scope", supervised=_LARGEST
    ),
    _counter("ignis_leader_losses_total", "sessions", "Of ZooKeeper that were lost.", "scope"),
    _counter("ignis_leader_refused_epochs_total", "epochs", "That the store refused.", "scope"),
    _gauge("ignis_leader_members", "instances", "As the leader sees them.", "scope", supervised=_LARGEST),
    _gauge("ignis_leader_partitions", "partitions", "That are assigned to this instance.", "scope", supervised=_SUM),
)
"""Of each candidacy."""

FLEET = _shown(
    _OWN,
    _plain("ignis_processes_wanted", "processes", "Worker processes wanted."),
    _plain("ignis_processes", "processes", "Worker processes by state.", "state"),
    _counter("ignis_process_deaths_total", "processes", "Worker processes that died."),
    _counter("ignis_process_restarts_total", "processes", "Worker processes started again."),
    _counter("ignis_recovered_total", "messages", "Of dead worker processes, put into the sideline."),
    _plain("ignis_autoscaler_leading", "1 or 0", "Whether this autoscaler acts."),
    _plain("ignis_autoscaler_workers", "workers", "Of its target; not there while nobody knows."),
    _plain("ignis_autoscaler_wanted", "workers", "That it wants."),
)
"""Of a supervisor and an autoscaler."""

BROKER = _shown(
    _NOT,
    _plain("ignis_broker_connections", "connections", "That are open."),
    _plain("ignis_broker_requests", "requests", "That wait for their answer."),
    _plain("ignis_broker_unacked_messages", "messages", "Delivered and not accounted for."),
    _counter("ignis_broker_connection_timeouts_total", "connections", "Closed because they were silent, slow or stuck."),
    _counter("ignis_broker_bytes_total", "", "Of the wire.", "direction"),
    _counter("ignis_broker_published_total", "messages", "Stored for clients."),
    _counter("ignis_broker_delivered_total", "messages", "Delivered to clients."),
    _counter("ignis_broker_redelivered_total", "messages", "Given back because their connection was lost."),
    _counter("ignis_broker_sidelined_total", "messages", "Put aside: refused, or held by too many lost connections.", "reason"),
    _plain("ignis_broker_ring_depth", "requests", "That wait for the store."),
    _plain("ignis_broker_ring_bytes", "", "Of these requests."),
    _plain("ignis_broker_receive_bytes", "", "Of memory, of frames that still arrive and requests that wait."),
    _plain("ignis_broker_outbound_bytes", "", "That clients have not read."),
    _counter("ignis_broker_connections_refused_total", "connections", "Refused."),
    _counter("ignis_broker_requests_refused_total", "requests", "Over the limit of their connection."),
    _counter("ignis_broker_errors_total", "errors", "Answered; frames that broke the protocol; permissions denied.", "kind"),
)  # fmt: skip
"""Of a broker; its command METRICS answers with the same."""
