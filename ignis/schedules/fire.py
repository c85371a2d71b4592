"""Publishes the messages of ticks, each tick once where the store can tell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ignis.message import encode_meta
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, PackedBatch, encode_record
from ignis.schedules.stored import StoredSchedule, tick_id
from ignis.storage.base import MagazineStore, QueueRecord

__all__ = ["SCHEDULE_HEADER", "TICK_HEADER", "load_ticks", "remember_s", "tick_text"]

SCHEDULE_HEADER = "ignis-schedule"
TICK_HEADER = "ignis-tick"
"""The headers of a tick's message: the schedule's name, and the tick's time in UTC, as in RFC 3339."""

_FLAGS = {"json": CODEC_JSON, "msgpack": CODEC_MSGPACK, "raw": CODEC_RAW}
_LEAST_REMEMBERED_S = 3_600.0
_MOST_REMEMBERED_S = 7 * 86_400.0
_REMEMBERED_TICKS = 20_000


def remember_s(period_s: float) -> float:
    """How long the ids of ticks are remembered: 20,000 ticks, but an hour at least and a week at most. So a schedule costs a few
    megabytes of the store at most, at 70 bytes an id."""
    return min(_MOST_REMEMBERED_S, max(_LEAST_REMEMBERED_S, _REMEMBERED_TICKS * period_s))


def load_ticks(
    magazines: MagazineStore,
    record: QueueRecord,
    name: str,
    schedule: StoredSchedule,
    ticks_ms: Sequence[int],
    *,
    ids: Sequence[bytes] | None = None,
    once_for_s: float | None = None,
) -> int:
    """Loads a message for each tick; returns how many were not there yet. Durable as the queue is.

    Args:
        magazines: of the store.
        record: of the queue.
        name, schedule: of whose ticks.
        ticks_ms: when they are.
        ids: of the messages; None = those of the ticks.
        once_for_s: how long their ids are remembered, and what was loaded under them left out: only for a store that can. None =
            they are loaded whatever was loaded before.

    Raises StoreFullError, QueueNotFoundError and what else a load raises: nothing was stored.
    """
    body, flags = schedule.message(), _FLAGS[schedule.codec]
    ttl_s = record.message_expiry_s or None
    chosen = [tick_id(name, schedule.life, one) for one in ticks_ms] if ids is None else ids
    by_shard: dict[int, list[bytes]] = {}
    for tick_ms, id in zip(ticks_ms, chosen, strict=True):
        meta = encode_meta({SCHEDULE_HEADER: name, TICK_HEADER: tick_text(tick_ms)})
        made = encode_record(body, flags=flags, meta=meta, id=id)
        # By its id, so that whoever fires the tick puts it into the same shard.
        by_shard.setdefault(int.from_bytes(id[8:], "big") % record.shards, []).append(made)
    batches = [(shard, PackedBatch.pack(records)) for shard, records in by_shard.items()]
    if once_for_s is not None:
        return sum(one.loaded for one in magazines.load_once(record.name, batches, ttl_s, once_for_s))
    magazines.load(record.name, batches, ttl_s)
    return len(ticks_ms)


def tick_text(at_ms: int) -> str:
    """A tick's time as its message has it."""
    at = dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc)
    return at.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds").replace("+00:00", "Z")
