"""Which metric of `ignis.metric_catalogue` shows a figure of a store, of the sweeper, of the scheduler or of a candidate."""

from __future__ import annotations

from collections.abc import Mapping

from ignis.metric_catalogue import LEADER, STORE, STORE_CALLS, UPKEEP, Metric

__all__ = ["leader_metric", "store_metric", "upkeep_metric"]

_STORE = {one.name: one for one in STORE}
_UPKEEP = {one.name: one for one in UPKEEP}
_LEADER = {one.name: one for one in LEADER}

# What a store calls its figures, where the metric is not called ``ignis_store_<figure>``.
_STORE_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "max_store_bytes": ("ignis_store_limit_bytes", ()),
    "unreadable_reads": ("ignis_store_unreadable_reads_total", ()),
    "sealed_loads": ("ignis_store_sealed_loads_total", ()),
    "pointers_restored": ("ignis_store_restored_pointers_total", ()),
    "resurrected_seen": ("ignis_store_resurrected_records_total", ()),
    "broker_connects": ("ignis_broker_client_connects_total", ()),
    "broker_pending": ("ignis_broker_client_pending", ()),
    "broker_late_answers": ("ignis_broker_client_late_answers_total", ()),
    "channels": ("ignis_relay_channels", ()),
    **{call: ("ignis_store_calls_total", (call,)) for call in STORE_CALLS},
}
# The same where a part of the figure's name is a label.
_STORE_PARTS = (
    ("used_bytes_", "ignis_store_class_used_bytes"),
    ("generation_", "ignis_store_generation"),
    ("refused_loads_", "ignis_store_refused_loads_total"),
    ("holes_", "ignis_store_holes_total"),
    ("client_", "ignis_store_client_calls_total"),
)
_UPKEEP_NAMES = {
    "last_pass_at_s": "last_pass_timestamp_seconds",
    "last_pass_took_s": "last_pass_duration_seconds",
}
_LEADER_NAMES = {"since_s": "since_timestamp_seconds", "unavailable_s": "unavailable_seconds"}


def store_metric(figure: str) -> tuple[Metric, tuple[str, ...]] | None:
    """Of a figure of ``store.stats()``: its metric, and the values of its labels; None = it has none."""
    if figure == "client_calls":  # the sum of those by kind
        return None
    if figure in _STORE_NAMES:
        name, labels = _STORE_NAMES[figure]
        return _STORE[name], labels
    if (metric := _STORE.get(f"ignis_store_{figure}")) is not None:
        return metric, ()
    for start, name in _STORE_PARTS:
        if figure.startswith(start):
            return _STORE[name], (figure.removeprefix(start),)
    return None


def upkeep_metric(part: str, figure: str) -> Metric | None:
    """Of a figure of the sweeper or the scheduler."""
    name = f"ignis_{part}_{_UPKEEP_NAMES.get(figure, figure)}"
    return _UPKEEP.get(name) or _UPKEEP.get(f"{name}_total")


def leader_metric(figure: str) -> Metric | None:
    """Of a figure of `Leadership.stats`."""
    name = f"ignis_leader_{_LEADER_NAMES.get(figure, figure)}"
    return _LEADER.get(name) or _LEADER.get(f"{name}_total")
