"""From failures to what the sideline, or the later magazine, gets."""

from __future__ import annotations

from ignis.clock import Clock
from ignis.consumer.handler import Failure
from ignis.consumer.outcome import attempts_of
from ignis.consumer.pools.base import Chunk
from ignis.consumer.retrying import Decision
from ignis.message import REASON_CRASH, corrupt_record, failed_record
from ignis.storage.base import Transfer

__all__ = ["corrupt_item", "failed_item"]


def failed_item(handler: str, chunk: Chunk, index: int, failure: Failure, decision: Decision, clock: Clock) -> Transfer:
    """A failed message on its way out of the main magazine, with the reason in it.

    Args:
        handler: the name of the handler that failed.
        chunk, index: the message.
        failure: why.
        decision: what becomes of it.
        clock: of the queue. One that is set by hand says when the message failed: the shovel's waits count from there.
    """
    shard, pointer = chunk.place(index)
    record = failed_record(
        chunk.records[index], failure.reason, failure.error, handler=handler, crashed=failure.reason == REASON_CRASH,
        attempts=attempts_of(failure), tried=decision.tried, given_up=decision.given_up,
        counts=decision.counts,
        at_ms=int(clock() * 1000) if clock.by_hand else None,
    )  # fmt: skip
    return Transfer(shard, pointer, record, shard)


def corrupt_item(magazine: str, shard: int, pointer: int) -> Transfer:
    """What goes to the sideline for a record of the main magazine whose checksum does not match."""
    return Transfer(shard, pointer, corrupt_record(magazine, shard, pointer), shard)
