"""What people are shown of queues, messages and claims, as values: for the command line and the console. Changes nothing."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any
from uuid import UUID

from ignis.control.queue_depths import shard_states
from ignis.deadlines import on_expiry_of
from ignis.errors import QueueNotFoundError, UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CORRUPT, REASON_UNREADABLE, Message
from ignis.message_filter import UNKNOWN
from ignis.native import Record, id_text
from ignis.pausing import EXPIRED, PAUSED
from ignis.shovel_choice import waits
from ignis.shovel_rounds import shovel_retry_of
from ignis.storage.base import Abandoned, QueueRecord, Store
from ignis.told_calls import calls_of

__all__ = [
    "ErrorCounts", "Reason", "Row", "claim_owners", "failure_of", "message_dict", "queue_settings", "queue_state",
    "scan_magazine", "sideline_reasons",
]  # fmt: skip

Row = tuple[int, int, "bytes | None"]
"""Shard, pointer, record."""

_PAGE, _PAGE_BYTES = 1_000, 8 << 20
_PAST = 1 << 62
_MOST_CLAIMS = 10_000
"""Claimed messages of one shard that are looked at; they are read for it."""
_FAR_MS = 1 << 53


def message_dict(shard: int, pointer: int, record: bytes | None, *, body: bool = True) -> dict[str, Any]:
    """A stored message for ``--json``; one that cannot be read says so under ``reason`` and ``error``, with the rest that can be
    read. Every one has an ``id`` and ``failures``, which may be None. Without ``body`` the body is not looked at."""
    place: dict[str, Any] = {"shard": shard, "pointer": pointer}
    if record is None:
        unknown = {"id": None, "failures": None}
        return {**place, **unknown, "reason": REASON_CORRUPT, "error": "the stored record does not match its checksum"}
    try:
        message = Message.from_bytes(record)
        return {**place, **(message.as_dict() if body else message.about())}
    except UnreadableMessageError as exc:
        found = {**place, **_legible(record), "reason": "unreadable", "error": str(exc)}
        return {**found, "body_hex": record.hex()} if body else found


def _legible(record: bytes) -> dict[str, Any]:
    """What of a record can be read whose metadata cannot."""
    try:
        found = Record(record)
    except UnreadableMessageError:
        return {"id": None, "failures": None}
    return {"id": id_text(found.id), "failures": found.attempts, "crashes": found.crashes}


def queue_settings(record: QueueRecord) -> dict[str, Any]:
    """The stored settings that people ask for, with the state first."""
    names = (
        "active",
        "shards",
        "durability",
        "codec",
        "handler_type",
        "concurrency",
        "message_expiry_s",
        "queue_expiry_s",
        "stuck_after_s",
        "shovel_interval_s",
        "max_returns",
        "created_at_ms",
    )
    found = {name: getattr(record, name) for name in names}
    shovel_retry = shovel_retry_of(record)
    return {"state": queue_state(record), **found, "on_expiry": on_expiry_of(record), "shovel_retry": shovel_retry}


def queue_state(record: QueueRecord) -> str:
    """What the store knows of it: ``active``, ``paused`` (its consumers claim nothing), ``publish only`` (no consumers wanted),
    ``no handler`` (no application has ever registered one), ``inactive``, or ``expired`` (inactive until a message comes)."""
    if not record.active:
        return "expired" if EXPIRED in record.extra else "inactive"
    if PAUSED in record.extra:
        return "paused"
    if not record.handler_type:
        return "no handler"
    return "active" if record.concurrency else "publish only"


def claim_owners(
    store: Store, magazine: str, most_messages: int = 0, *, max_bytes: int | None = None
) -> list[dict[str, Any]]:
    """The busiest first. ``dead``: provably; ``long_calls``: what its handlers have been at for some seconds, where the claimed
    messages have a handler; ``oldest_claim_s``: since the longest of these calls began, or since a claim was made or renewed,
    whichever is longer.

    ``most_messages`` of each are listed under ``messages``, those that it has had longest: what it is at. ``max_bytes``: of one
    shard only so much of what is claimed is looked at, as far as the store knows how.
    """
    found: dict[str, dict[str, Any]] = {}
    held: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    now_s = time.time()
    record = None if magazine.endswith(SIDELINE_SUFFIX) else store.queues.get(magazine)
    told = {} if record is None else {one.id: one for one in calls_of(record)}
    for state in shard_states(store, magazine):
        if not state.in_flight:
            continue
        for one in store.magazines.abandoned(magazine, state.shard, _FAR_MS, _MOST_CLAIMS, max_bytes=max_bytes):
            row = found.setdefault(
                one.owner,
                {
                    "magazine": magazine, "owner": str(one.owner), "in_flight": 0, "oldest_claim_s": 0.0, "dead": False,
                    "long_calls": [],
                },
            )  # fmt: skip
            row["in_flight"] += 1
            row["oldest_claim_s"] = max(row["oldest_claim_s"], _age_s(one, now_s))
            row["dead"] = row["dead"] or one.owner_dead
            call = told.get(_id_of(one.record)) if told else None
            if call is not None and call.owner == str(one.owner):
                call_s = round(max(0.0, now_s - call.since_ms / 1000), 3)
                row["long_calls"].append({"id": call.id, "running_s": call_s, "messages": call.messages})
                row["oldest_claim_s"] = max(row["oldest_claim_s"], call_s)
            if most_messages:
                longest = held.setdefault(one.owner, [])
                if len(longest) < most_messages or one.fired_at_ms < longest[-1][0]:
                    longest.append((one.fired_at_ms, _claimed(one, now_s)))  # and not the record: it may be large
                    longest.sort(key=lambda each: each[0])
                    del longest[most_messages:]
    for owner, longest in held.items():
        found[owner]["messages"] = [about for _, about in longest]
    for row in found.values():
        row["long_calls"].sort(key=lambda call: -call["running_s"])
    return sorted(found.values(), key=lambda row: -row["in_flight"])


def _age_s(one: Abandoned, now_s: float) -> float:
    return round(max(0.0, now_s - one.fired_at_ms / 1000), 3)


def _claimed(one: Abandoned, now_s: float) -> dict[str, Any]:
    """Where it is, whose it is, and since when."""
    stored = message_dict(one.shard, one.pointer, one.record, body=False)
    return {
        **{name: stored.get(name) for name in ("shard", "pointer", "id", "key", "attempt")},
        "claimed_s": _age_s(one, now_s),
    }


def _id_of(record: bytes | None) -> str:
    if record is not None:
        with suppress(UnreadableMessageError):
            return str(UUID(bytes=Record(record).id))
    return ""


_WORD = re.compile(r"[\w-]+")
_DIGIT = re.compile(r"\d")
MOST_ERRORS = 1_000
"""So many different errors are told apart for one reason."""


class ErrorCounts:
    """How often each error is there. Errors that differ only in words with a digit, such as ids, numbers and times, count as one
    and are shown by the first of them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, error: str) -> None:
        shape = _WORD.sub(_shape, error)
        # A handler that puts a name into every error must not make this as large as the sideline.
        if shape in self._first or len(self._first) < MOST_ERRORS:
            self._counts[shape] += 1
            self._first.setdefault(shape, error)

    def commonest(self) -> tuple[str, int]:
        """The most frequent error and how often it is there; ``("", 0)`` when no text came with the failures."""
        return next(iter(self.most_common(1)), ("", 0))

    def __len__(self) -> int:
        return len(self._counts)

    def most_common(self, most: int) -> list[tuple[str, int]]:
        return [(self._first[shape], count) for shape, count in self._counts.most_common(most)]


def _shape(word: re.Match[str]) -> str:
    return "0" if _DIGIT.search(word[0]) else word[0]


class Reason:
    """What one reason adds up to. Ages in seconds since the failure; ``waiting``: those that only a person brings back."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0
        self.oldest_s: float | None = None
        self.newest_s: float | None = None
        self.errors = ErrorCounts()

    def add(self, error: str | None, age_s: float | None) -> None:
        self.count += 1
        if error:
            self.errors.add(error)
        if age_s is not None:
            self.oldest_s = age_s if self.oldest_s is None else max(self.oldest_s, age_s)
            self.newest_s = age_s if self.newest_s is None else min(self.newest_s, age_s)

    def commonest(self) -> tuple[str, int]:
        return self.errors.commonest()

    def as_dict(self) -> dict[str, Any]:
        errors = [{"error": text, "count": count} for text, count in self.errors.most_common(5)]
        return {
            "count": self.count,
            "waiting": self.waiting,
            "oldest_age_s": self.oldest_s,
            "newest_age_s": self.newest_s,
            "errors": errors,
        }


def sideline_reasons(
    store: Store, queue: str, *, limit: int | None = None, rows: Iterable[Row] | None = None
) -> dict[str, Reason]:
    """Reason -> what it adds up to, the most frequent first, over at most ``limit`` messages. ``rows``: the sideline's, for who
    reads them in a way of his own."""
    now_s = time.time()
    found: dict[str, Reason] = {}
    record = store.queues.get(queue)
    for row in islice(scan_magazine(store, queue + SIDELINE_SUFFIX) if rows is None else rows, limit):
        reason, error, failed_ms = failure_of(row)
        age_s = None if failed_ms is None else round(max(0.0, now_s - failed_ms / 1000), 3)
        one = found.setdefault(reason, Reason())
        one.add(error, age_s)
        one.waiting += record is not None and waits(row[2], record)
        del row  # it may be large, and the next one is read now
    return dict(sorted(found.items(), key=lambda item: -item[1].count))


def failure_of(row: Row) -> tuple[str, str | None, int | None]:
    """(reason, error, when in milliseconds), without looking into the body."""
    record = row[2]
    if record is None:
        return REASON_CORRUPT, "the stored record does not match its checksum", None
    try:
        message = Message.from_bytes(record)
        return message.reason or UNKNOWN, message.error, message.failed_at_ms
    except UnreadableMessageError as exc:
        return REASON_UNREADABLE, str(exc), None


def scan_magazine(store: Store, magazine: str) -> Iterator[Row]:
    """All records of a magazine, claimed ones too, page by page of about 8 MiB; none when it was never declared. What comes
    behind a shard's tail meanwhile is left out: who publishes must not keep this going for ever."""
    ends = {one.shard: one.load_pointer for one in shard_states(store, magazine)}
    after = {shard: _PAST for shard, end in ends.items() if not end}
    while ends:
        try:
            page, cut = store.magazines.scan_within(magazine, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES)
        except QueueNotFoundError:
            return
        for row in page:
            shard, pointer, _ = row
            if pointer > ends.get(shard, 0):
                after[shard] = _PAST
            if after.get(shard, 0) != _PAST:
                after[shard] = pointer
                yield row
        if len(page) < _PAGE and not cut:
            return
