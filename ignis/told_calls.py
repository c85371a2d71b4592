"""Which calls of handlers run long, as it is stored with their queue for people who look.

A claim's own time begins anew with each renewal, so the store cannot say how long somebody has been at a message. Whoever is at
it can.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from ignis.storage.base import QueueRecord

__all__ = ["CALLS", "ToldCall", "calls_of", "put_calls"]

CALLS = "long_calls"
"""Where the stored queue keeps them in its ``extra``: id -> [since, messages, owner, when, in ms]."""

_MOST = 50
_AGE_MS = 30_000
"""Whoever is at a message stores it every few seconds; what is older was left behind by a process that has died."""


class ToldCall(NamedTuple):
    """One call of a handler. Times in milliseconds since 1970.

    Attributes:
        id: of its message, or of the first of a batch.
        since_ms: when the handler began.
        messages: of the call.
        owner: who has claimed them.
        at_ms: when that was stored.
    """

    id: str
    since_ms: int
    messages: int
    owner: str
    at_ms: int


def put_calls(
    record: QueueRecord, owner: str, now: Mapping[bytes, tuple[int, int]], before: Iterable[bytes], at_ms: int
) -> None:
    """Puts these calls, id -> (since, messages), into the record, and removes those that were there before and have ended. At
    most 50 of a queue are kept, the longest."""
    ended = {str(UUID(bytes=id)) for id in before}
    kept = {one.id: one for one in calls_of(record, at_ms) if one.id not in ended}
    for id, (since_ms, messages) in now.items():
        kept[str(UUID(bytes=id))] = ToldCall(str(UUID(bytes=id)), since_ms, messages, owner, at_ms)
    longest = sorted(kept.values(), key=lambda one: one.since_ms)[:_MOST]
    if longest:
        record.extra[CALLS] = {one.id: list(one[1:]) for one in longest}
    else:
        record.extra.pop(CALLS, None)


def calls_of(record: QueueRecord, now_ms: int | None = None) -> list[ToldCall]:
    """What is stored and not older than half a minute, the longest first."""
    found = record.extra.get(CALLS)
    told = []
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    for id, entry in found.items() if isinstance(found, dict) else ():
        with suppress(TypeError, ValueError):  # another version, or another program, may have written there
            since_ms, messages, owner, at_ms = entry
            one = ToldCall(str(UUID(str(id))), int(since_ms), int(messages), str(owner), int(at_ms))
            if now_ms - one.at_ms < _AGE_MS:
                told.append(one)
    return sorted(told, key=lambda one: one.since_ms)
