"""How far messages that are being handled say to have come, as it is stored with their queue for people who look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from ignis.storage.base import QueueRecord

__all__ = ["PROGRESS", "ToldProgress", "progress_of", "put_progress"]

PROGRESS = "progress"
"""Where the stored queue keeps it in its ``extra``: id -> [fraction, text, owner, when, in ms]."""

_MOST = 50
_TEXT_CHARS = 60
"""The record has little room, and others keep something there too."""
_AGE_MS = 30_000
"""Whoever runs a message stores its progress every few seconds; what is older was left behind by a process that has died."""


class ToldProgress(NamedTuple):
    """What the handler of one message has told."""

    id: str
    fraction: float
    text: str
    owner: str
    at_ms: int


def put_progress(
    record: QueueRecord, owner: str, now: Mapping[bytes, tuple[float, str]], before: Iterable[bytes], at_ms: int
) -> None:
    """Puts the progress of these messages into the record, and removes that of those that were there before and have ended. At
    most 50 of a queue are kept, the latest."""
    ended = {str(UUID(bytes=id)) for id in before}
    kept = {one.id: one for one in progress_of(record, at_ms) if one.id not in ended}
    for id, (fraction, text) in now.items():
        kept[str(UUID(bytes=id))] = ToldProgress(str(UUID(bytes=id)), fraction, text[:_TEXT_CHARS], owner, at_ms)
    newest = sorted(kept.values(), key=lambda one: one.at_ms)[-_MOST:]
    if newest:
        record.extra[PROGRESS] = {one.id: list(one[1:]) for one in newest}
    else:
        record.extra.pop(PROGRESS, None)


def progress_of(record: QueueRecord, now_ms: int | None = None) -> list[ToldProgress]:
    """What is stored and not older than half a minute."""
    found = record.extra.get(PROGRESS)
    told = []
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    for id, entry in found.items() if isinstance(found, dict) else ():
        with suppress(TypeError, ValueError):  # another version, or another program, may have written there
            fraction, text, owner, at_ms = entry
            one = ToldProgress(str(UUID(str(id))), float(fraction), str(text), str(owner), int(at_ms))
            if now_ms - one.at_ms < _AGE_MS:
                told.append(one)
    return told
