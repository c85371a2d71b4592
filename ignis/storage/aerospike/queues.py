"""Queues in the bins of the Java library, see `layout`.

What Java has no bin for is in one map bin of ours. The record lives twice the queue's expiry after its last write.
"""

from __future__ import annotations

import builtins
import copy
import logging
import math
import operator
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ignis.errors import QueueNotFoundError, StoreBusyError, StoreFormatError
from ignis.log_format import event_text
from ignis.storage.aerospike import layout
from ignis.storage.aerospike.connection import policy
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.base import QueueStore
from ignis.storage.checks import check_epoch, check_printable, check_record, check_same_name
from ignis.storage.records import Fence, QueueRecord

__all__ = ["ACTIVE", "AerospikeQueues", "bins_of", "record_of"]

log = logging.getLogger("ignis.storage.aerospike")

ACTIVE = "active"
OURS = "ign_queue"
TTL_FACTOR = 2
MESSAGE_EXPIRY_S = 172_800
"""Of a queue for which nobody has said another, as Java has it."""
MAX_NAME_BYTES = 255
_BUSY_S = 30.0


class AerospikeQueues(QueueStore):
    """Queues of one application. Thread-safe."""

    def __init__(self, context: StoreContext, epoch: Callable[[str], int]) -> None:
        self._context = context
        self._epoch = epoch
        self._connection = context.connection
        self._set = context.sets.queues
        self._reported: set[str] = set()

    def _key(self, name: str) -> tuple[str, str, str]:
        """Raises InvalidNameError. Java's queues may have names that ours cannot have."""
        check_printable(name, "queue", MAX_NAME_BYTES)
        return self._connection.namespace, self._set, name

    def get(self, name: str) -> QueueRecord | None:
        with self._context.call():
            found = self._connection.get("queue", self._key(name))
            return None if found is None else record_of(name, found[0])

    def put(self, record: QueueRecord) -> None:
        check_record(record, fractions=True)
        with self._context.call():
            self._connection.put("queue", self._key(record.name), bins_of(record), policy(ttl=_ttl(record)))

    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        """Read, changed, and written if nobody has written since; else again. The fence is read right before the write:
        what remains between the two is one round trip."""
        with self._context.call():
            deadline = time.monotonic() + _BUSY_S
            while True:
                found = self._connection.get("queue", self._key(name))
                if found is None:
                    raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
                bins, generation = found
                record = record_of(name, bins)
                change(record)
                check_same_name(name, record)
                check_record(record, fractions=True, any_name=True)
                if fence is not None:
                    check_epoch(self._epoch(fence.scope), fence)
                how = policy("update", ttl=_ttl(record), generation=generation)
                if self._connection.put("queue", self._key(name), bins_of(record), how, generation):
                    return copy.deepcopy(record)
                if time.monotonic() > deadline:
                    raise StoreBusyError(f"queue {name!r} is changed by others all the time, for {_BUSY_S:g} s")
                time.sleep(random.uniform(0, 0.005))

    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        with self._context.call():
            if active is None:
                rows = self._connection.everything("queues", self._set)
            else:
                rows = self._connection.select("queues", self._set, ACTIVE, _text(active))
            records: builtins.list[QueueRecord] = []
            for name, bins in rows:
                try:
                    records.append(record_of(name, bins))
                except StoreFormatError as exc:
                    # The others go on; who asks for this one is told.
                    if name not in self._reported:
                        self._reported.add(name)
                        log.error(event_text("queue_record_damaged", "%s"), exc)
            return sorted(records, key=lambda record: record.name)

    def remove(self, name: str) -> bool:
        with self._context.call():
            return self._connection.discard("queue", self._key(name))


def _text(flag: bool) -> str:
    return "true" if flag else "false"


def _ttl(record: QueueRecord) -> int:
    return min(layout.MAX_TTL_S, max(1, math.ceil(TTL_FACTOR * record.queue_expiry_s)))


def bins_of(record: QueueRecord) -> dict[str, Any]:
    """Bins as Java writes them: whole numbers and text, maps from text to whole numbers; and ours."""
    return {
        "handlerType": record.handler_type,
        "shards": int(record.shards),
        "queueExpiry": math.ceil(record.queue_expiry_s),
        "messageExpiry": math.ceil(record.message_expiry_s),
        "concurrency": int(record.concurrency),
        "shovelConcur": int(record.shovel_concurrency),
        "shovelInterval": math.ceil(record.shovel_interval_s),
        "createdAt": int(record.created_at_ms),
        ACTIVE: _text(record.active),
        "sweepPointers": {str(shard): int(pointer) for shard, pointer in record.sweep_pointers.items()},
        "sidelineSweep": {str(shard): int(pointer) for shard, pointer in record.sideline_sweep_pointers.items()},
        "sweptCounter": int(record.swept_count),
        "sidelineSwept": int(record.sideline_swept_count),
        "sweepDuration": math.ceil(record.stuck_after_s * 1000),
        "maxBatchSize": int(record.max_batch_size),
        "maxWaitTime": math.ceil(record.max_wait_s),
        OURS: {
            "version": 1,
            "durability": record.durability,
            "codec": record.codec,
            "max_returns": int(record.max_returns),
            # Exact, where Java's bin has whole seconds.
            "exact": msgspec.json.encode(_exact(record)).decode(),
            "extra": msgspec.json.encode(record.extra).decode(),
        },
    }


_EXACT = {
    "queue_expiry_s": "queueExpiry",
    "message_expiry_s": "messageExpiry",
    "shovel_interval_s": "shovelInterval",
    "max_wait_s": "maxWaitTime",
}


def _exact(record: QueueRecord) -> dict[str, float]:
    values = {name: getattr(record, name) for name in (*_EXACT, "stuck_after_s")}
    return {name: value for name, value in values.items() if value != int(value)}


def record_of(name: str, bins: Mapping[str, Any]) -> QueueRecord:
    """The queue that the bins describe, whoever wrote them. What is missing has its default.

    Raises StoreFormatError for what no client writes, which concerns this queue alone.
    """
    try:
        record = _record_of(name, bins)
    except (ArithmeticError, AttributeError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise StoreFormatError(f"the record of queue {name!r} is damaged: {exc}") from exc
    for field, kinds in _KINDS.items():
        value = getattr(record, field)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise StoreFormatError(f"the record of queue {name!r} is damaged: {field} = {value!r}")
    return record


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("shards", "concurrency", "shovel_concurrency", "max_batch_size", "created_at_ms", "max_returns"), (int,)
    ),
    **dict.fromkeys(("swept_count", "sideline_swept_count"), (int,)),
    **dict.fromkeys(
        ("message_expiry_s", "queue_expiry_s", "stuck_after_s", "shovel_interval_s", "max_wait_s"), (int, float)
    ),
    **dict.fromkeys(("durability", "codec", "handler_type"), (str,)),
    "extra": (dict,),
}


def _record_of(name: str, bins: Mapping[str, Any]) -> QueueRecord:
    ours = bins.get(OURS) or {}
    exact: dict[str, float] = msgspec.json.decode(ours.get("exact") or "{}")
    default = QueueRecord(name, message_expiry_s=MESSAGE_EXPIRY_S)

    def whole(bin_name: str, otherwise: float) -> Any:
        value = bins.get(bin_name)
        return otherwise if value is None else value

    record = QueueRecord(
        name,
        shards=whole("shards", default.shards),
        durability=ours.get("durability", default.durability),
        codec=ours.get("codec", default.codec),
        handler_type=bins.get("handlerType") or "",
        concurrency=whole("concurrency", default.concurrency),
        shovel_concurrency=whole("shovelConcur", default.shovel_concurrency),
        max_batch_size=whole("maxBatchSize", 0),
        max_returns=ours.get("max_returns", default.max_returns),
        created_at_ms=whole("createdAt", 0),
        active=bins.get(ACTIVE) != "false",
        sweep_pointers=_shards(bins.get("sweepPointers")),
        sideline_sweep_pointers=_shards(bins.get("sidelineSweep")),
        swept_count=whole("sweptCounter", 0),
        sideline_swept_count=whole("sidelineSwept", 0),
        extra=msgspec.json.decode(ours.get("extra") or "{}"),
    )
    for field, bin_name in _EXACT.items():
        # Somebody else may have changed the bin since: then that holds.
        stored = whole(bin_name, getattr(default, field))
        setattr(record, field, exact[field] if field in exact and math.ceil(exact[field]) == stored else stored)
    duration_ms = whole("sweepDuration", default.stuck_after_s * 1000)
    seconds = duration_ms / 1000
    record.stuck_after_s = int(seconds) if seconds == int(seconds) else seconds
    return record


def _shards(stored: Any) -> dict[int, int]:
    return {int(shard): operator.index(pointer) for shard, pointer in (stored or {}).items()}
