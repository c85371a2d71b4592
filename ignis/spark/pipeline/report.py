"""What is in a sideline, added up: why, whose handler, which keys, how old.

The sideline is looked through page by page, without claiming anything and without Spark. Memory does not grow with it: at
most `MAX_KEYS` keys are told apart, and the others are counted together.
"""

from __future__ import annotations

import bisect
import csv
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ignis.config import check_name
from ignis.control.inspection import ErrorCounts
from ignis.errors import QueueNotFoundError, UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CORRUPT, REASON_UNREADABLE, Message
from ignis.storage.base import Store

__all__ = ["AGES", "MAX_KEYS", "Failures", "SidelineReport", "Slice", "sideline_report", "write_csv"]

MAX_KEYS = 100_000
_PAGE = 1_000
_UNKNOWN = "unknown"
_FORMULA = re.compile(r"""((?:^|[;,|\t])[\s"']*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])""")
"""Before the sign that begins a formula, at the beginning of a text or behind what may separate cells."""

AGES: tuple[tuple[float, str], ...] = (
    (60, "under 1 min"),
    (600, "1 to 10 min"),
    (3_600, "10 min to 1 h"),
    (21_600, "1 to 6 h"),
    (86_400, "6 to 24 h"),
    (172_800, "1 to 2 d"),
    (604_800, "2 to 7 d"),
    (float("inf"), "over 7 d"),
)
"""Upper bound in seconds (not included) and name of each age."""
AGE_UNKNOWN = "not known"
_BOUNDS = [bound for bound, _ in AGES]


class Slice(NamedTuple):
    """What a message is counted under. ``key`` None = it has none; ``age`` is one of `AGES`."""

    reason: str
    handler: str
    age: str


class Failures:
    """Messages that failed for one reason in one handler. Ages in seconds since the failure, None = not known."""

    def __init__(self) -> None:
        self.count = 0
        self.oldest_s: float | None = None
        self.newest_s: float | None = None
        self.errors = ErrorCounts()

    def add(self, error: str, age_s: float | None) -> None:
        self.count += 1
        if error:
            self.errors.add(error)
        if age_s is not None:
            self.oldest_s = age_s if self.oldest_s is None else max(self.oldest_s, age_s)
            self.newest_s = age_s if self.newest_s is None else min(self.newest_s, age_s)

    def commonest(self) -> tuple[str, int]:
        """The most frequent error and how often it is there; ``("", 0)`` when no text came with the failures."""
        return self.errors.commonest()


class SidelineReport:
    """The figures of one sideline at one time.

    Attributes:
        queue: its name.
        made_at_s: when it was looked through, in seconds since the epoch.
        total: messages.
        failures: (reason, handler) -> `Failures`.
        slices: `Slice` -> messages.
        keys: (key, reason) -> messages, for the first `MAX_KEYS` pairs that were met.
        other_keys: messages with keys beyond those.
        without_key: messages.
    """

    def __init__(self, queue: str, made_at_s: float) -> None:
        self.queue = queue
        self.made_at_s = made_at_s
        self.total = 0
        self.failures: dict[tuple[str, str], Failures] = {}
        self.slices: Counter[Slice] = Counter()
        self.keys: Counter[tuple[str, str]] = Counter()
        self.other_keys = 0
        self.without_key = 0

    def add(self, reason: str, handler: str, key: str | None, error: str, age_s: float | None) -> None:
        """Counts one message."""
        self.total += 1
        self.failures.setdefault((reason, handler), Failures()).add(error, age_s)
        self.slices[Slice(reason, handler, age_name(age_s))] += 1
        if key is None:
            self.without_key += 1
        elif (key, reason) in self.keys or len(self.keys) < MAX_KEYS:
            self.keys[key, reason] += 1
        else:
            self.other_keys += 1

    def rows(self) -> list[tuple[str, str, Failures]]:
        """(reason, handler, failures), the most frequent first."""
        found = [(reason, handler, one) for (reason, handler), one in self.failures.items()]
        return sorted(found, key=lambda row: (-row[2].count, row[0], row[1]))

    def top_keys(self, count: int) -> list[tuple[str, int]]:
        """The keys with the most failures, over all reasons."""
        sums: Counter[str] = Counter()
        for (key, _), number in self.keys.items():
            sums[key] += number
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:count]

    def by_reason(self) -> dict[str, int]:
        """Reason -> messages, the most frequent first."""
        sums: Counter[str] = Counter()
        for one, number in self.slices.items():
            sums[one.reason] += number
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def ages(self) -> dict[str, dict[str, int]]:
        """Age -> reason -> messages, the youngest first, all ages in between included."""
        names = [name for _, name in AGES]
        if any(one.age == AGE_UNKNOWN for one in self.slices):
            names.append(AGE_UNKNOWN)
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for one, number in self.slices.items():
            found[one.age][one.reason] = found[one.age].get(one.reason, 0) + number
        return found

    def as_dict(self, *, keys: int = 20) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "queue": self.queue,
            "made_at_s": self.made_at_s,
            "total": self.total,
            "failures": [
                {
                    "reason": reason,
                    "handler": handler,
                    "count": one.count,
                    "oldest_age_s": one.oldest_s,
                    "newest_age_s": one.newest_s,
                    "error": one.commonest()[0],
                    "error_count": one.commonest()[1],
                }
                for reason, handler, one in self.rows()
            ],
            "ages": self.ages(),
            "keys": [{"key": key, "count": count} for key, count in self.top_keys(keys)],
            "other_keys": self.other_keys,
            "without_key": self.without_key,
        }


def age_name(age_s: float | None) -> str:
    """The one of `AGES` that an age falls into."""
    return AGE_UNKNOWN if age_s is None else AGES[bisect.bisect_right(_BOUNDS, max(0.0, age_s))][1]


def sideline_report(store: Store, queue: str, *, now_s: float | None = None) -> SidelineReport:
    """Looks through a queue's sideline.

    Args:
        queue: its name.
        now_s: what ages are counted from, in seconds since the epoch; None = now.

    Raises:
        QueueNotFoundError: there is no such queue. InvalidNameError.
    """
    if store.queues.get(check_name(queue)) is None:
        raise QueueNotFoundError(f"queue {queue!r} does not exist")
    report = SidelineReport(queue, time.time() if now_s is None else now_s)
    for record in _records(store, queue + SIDELINE_SUFFIX):
        _add(report, record)
    return report


def _add(report: SidelineReport, record: bytes | None) -> None:
    if record is None:
        report.add(REASON_CORRUPT, "", None, "the stored record does not match its checksum", None)
        return
    try:
        message = Message.from_bytes(record)
        meta = message.meta
        key = message.key
    except UnreadableMessageError as exc:
        report.add(REASON_UNREADABLE, "", None, str(exc), None)
        return
    failed_at_ms = meta.get("failed_at_ms")
    age_s = max(0.0, report.made_at_s - failed_at_ms / 1000) if isinstance(failed_at_ms, (int, float)) else None
    # Whoever can write into the store decides what these are: whatever they are, they are shown as text.
    reason, handler, error = (str(meta.get(name) or "") for name in ("reason", "handler", "error"))
    report.add(reason or _UNKNOWN, handler, key, error, age_s)


def _records(store: Store, magazine: str) -> Iterator[bytes | None]:
    """Every record, page by page; none when the magazine was never declared."""
    after: dict[int, int] = {}
    while True:
        try:
            page = store.magazines.scan(magazine, after=after, limit=_PAGE)
        except QueueNotFoundError:
            return
        for shard, pointer, record in page:
            after[shard] = pointer
            yield record
        if len(page) < _PAGE:
            return


def write_csv(report: SidelineReport, path: Path) -> None:
    """Three tables in one, told apart by ``what``: ``age`` (reason, handler and age), ``error`` (the most frequent one of
    each reason and handler), ``key`` (key and reason)."""
    with path.open("w", encoding="utf-8", newline="") as file:
        _write_rows(report, file)


def _write_rows(report: SidelineReport, file: IO[str]) -> None:
    writer = csv.writer(file)
    writer.writerow(["what", "reason", "handler", "age", "key", "error", "messages"])
    order = {name: index for index, (_, name) in enumerate(AGES)}
    for one, count in sorted(report.slices.items(), key=lambda item: (item[0][:2], order.get(item[0].age, len(order)))):
        writer.writerow(["age", cell(one.reason), cell(one.handler), one.age, "", "", count])
    for reason, handler, failures in report.rows():
        error, count = failures.commonest()
        if count:
            writer.writerow(["error", cell(reason), cell(handler), "", "", cell(error), count])
    for (key, reason), count in sorted(report.keys.items(), key=lambda item: (-item[1], item[0])):
        writer.writerow(["key", cell(reason), "", "", cell(key), "", count])
    for key, count in (("(other keys)", report.other_keys), ("(no key)", report.without_key)):
        if count:
            writer.writerow(["key", "", "", "", key, "", count])


def cell(text: str) -> str:
    """Text as a cell: control characters escaped, and nothing that a spreadsheet would take for a formula.

    A spreadsheet may cut at semicolons, tabs or bars instead of commas, whatever the quotes say: what could then be the
    beginning of a cell is treated as one.
    """
    return _FORMULA.sub(r"\1'", printable(text))


def printable(text: str) -> str:
    """Text on one line, with what is not to be seen written out."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)
