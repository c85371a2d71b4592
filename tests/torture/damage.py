"""Damaged bytes: each class of stored data is altered and cut short; the damage must be told, and never delivered.

The store is closed, and damaged in a copy. What is damaged may be gone, but for a record whose neighbours are whole:
then nothing else is missing, and somebody says so: the record is handed out as damaged, or the log's figures count
what was passed over. The doctor must find what is wrong, and have it repaired so that it finds nothing more.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ignis.errors import IgnisError
from ignis.native.store import Log
from ignis.storage.embedded.check import Alone, check_store
from ignis.storage.embedded.log_files import ENTRY_HEADER_BYTES, Segment
from ignis.storage.embedded.repair import repair_store
from tests.torture.actors import MAIN, Place, drainer, identify, pack, store_url
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter
from tests.torture.report import Outcome

__all__ = ["CLASSES", "tests"]

_SHARDS = 2
_BATCHES = 6
_BATCH = 5
_HEADER_BYTES = 68
_OPTIONS = {"max_store_bytes": 64 << 20}
"""Small segments: a copy of the store is made for each damage."""

Span = tuple[Path, int, int]
"""A file, and which bytes of it."""


@dataclass(frozen=True)
class ByteClass:
    """Where a class of bytes lies.

    ``spans``: all of the class in a store's ``sync`` directory. ``most_lost``: how many messages one damage may cost; None =
    any number, or the store may refuse to open: but nothing wrong is delivered.
    """

    name: str
    spans: Callable[[Path], list[Span]]
    most_lost: int | None


def _entries(kind: str, header: bool) -> Callable[[Path], list[Span]]:
    """Headers or payloads of all entries of a kind that another one follows: the last may be a tail."""

    def spans(directory: Path) -> list[Span]:
        found: list[Span] = []
        for path in sorted(directory.glob("log-*")):
            segment = Segment(path)
            try:
                many, position = [], segment.base
                while position < segment.limit and (entry := segment.entry_at(position)) is not None:
                    many.append(entry)
                    position = entry.next
                for entry in many[:-2]:
                    if entry.kind == kind:
                        start, stop = segment.offset(entry.position), segment.offset(entry.next)
                        middle = start + ENTRY_HEADER_BYTES
                        found.append((path, start, middle) if header else (path, middle, stop - 7))
            finally:
                segment.close()
        return found

    return spans


def _files(pattern: str, start: int, stop: int) -> Callable[[Path], list[Span]]:
    def spans(directory: Path) -> list[Span]:
        return [(path, start, min(stop, path.stat().st_size)) for path in sorted(directory.glob(pattern))]

    return spans


CLASSES = (
    ByteClass("load-header", _entries("load", True), _BATCH),
    ByteClass("load", _entries("load", False), _BATCH),
    ByteClass("claim", _entries("claim", False), 0),
    ByteClass("retire", _entries("retire", False), 0),
    ByteClass("catalogue", _entries("catalogue", False), None),
    ByteClass("segment-header", _files("log-*", 0, _HEADER_BYTES), None),
    ByteClass("checkpoint-header", _files("checkpoint-*", 0, 60), None),
    ByteClass("checkpoint", _files("checkpoint-*", 512, 4_096), None),
    ByteClass("control", _files("control-*", 0, 1 << 20), 0),
)


def _prepare(place: Place, checkpoint: bool) -> Callable[[Reporter], None]:
    """Leaves pending, fired, finished and partly finished batches behind."""

    def role(report: Reporter) -> None:
        store = place.open()
        for number in range(_BATCHES):
            many = [make_id(1, one) for one in range(number * _BATCH, (number + 1) * _BATCH)]
            report.sending(many)
            store.magazines.load(MAIN, pack(many, place.shards, number), None)
            report.acknowledged(many)
            if checkpoint and number == _BATCHES // 2:
                store.directory.log("sync").checkpoint()  # type: ignore[attr-defined]
        for claim in store.magazines.fire(MAIN, 2 * _BATCH + 2, store.owner).claims:
            pointers, known = list(claim.pointers)[::2], identify(report, claim.records[::2])
            report.seen(known)
            store.magazines.delete(MAIN, {claim.shard: pointers})
            report.finished(known)
        # Entries behind that say how far the log was flushed.
        for turn in range(3):
            store.locks.next_epoch(f"turn{turn}")
        store.close()

    return role


def _alter(directory: Path, one: ByteClass, cut: bool, rng: random.Random) -> bool:
    """Changes one byte, or cuts the file there; False when the store holds no such bytes."""
    spans = [span for span in one.spans(directory / "sync") if span[1] < span[2]]
    if not spans:
        return False
    path, start, stop = rng.choice(spans)
    place = rng.randrange(start, stop)
    with open(path, "r+b") as handle:
        if cut:
            handle.truncate(place)
            return True
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return True


def _told(directory: Path, ledger: Ledger, said: str) -> bool:
    """Whether the store said that something is damaged: with the records, in its figures, or in the log of its opening."""
    if ledger.corrupt or "is damaged" in said or "are damaged" in said:
        return True
    try:
        log = Log(str(directory / "sync"))
    except IgnisError:
        return True
    try:
        return log.figures()["damaged_bytes"] > 0
    finally:
        log.close()


def _round(
    outcome: Outcome, template: Path, started: Ledger, damage: Callable[[Path], bool], most_lost: int | None, where: str
) -> None:
    """Copies the prepared store, damages the copy, drains it and judges; and has another copy repaired."""
    with tempfile.TemporaryDirectory(prefix="ignis-damage-") as directory:
        copy, other = Path(directory) / "store", Path(directory) / "other"
        shutil.copytree(template, copy)
        if not damage(copy):
            outcome.add(absent=1)
            return
        shutil.copytree(copy, other)
        ledger = Ledger(
            dict(started.sent), dict(started.acknowledged), seen=dict(started.seen), finished=dict(started.finished)
        )
        with Child(
            drainer(Place(store_url(copy), shards=_SHARDS, options=_OPTIONS), ordered=False), "drainer"
        ) as child:
            status = child.join(ledger, 60)
            trouble = child.trouble()
        verdict = ledger.verdict()
        outcome.rounds += 1
        outcome.add(
            corrupt=ledger.corrupt, missing=len(verdict.lost), refused_open=int(status == 1), died=int(status < 0)
        )
        if verdict.invented or verdict.altered:
            outcome.fault(f"{where}: {'; '.join(verdict.faults())}")
        if status < 0 or (status and most_lost is not None):
            outcome.fault(f"{where}: drain: exit {status}: {trouble[-600:]}")
        elif not status and verdict.lost and not _told(copy, ledger, trouble):
            outcome.fault(f"{where}: {len(verdict.lost)} missing, and nobody says why")
        elif most_lost is not None and len(verdict.lost) > most_lost:
            outcome.fault(f"{where}: one damage cost {len(verdict.lost)} messages, at most {most_lost} expected")
        _repair(outcome, other, bool(status or verdict.lost), where)


def _repair(outcome: Outcome, directory: Path, costly: bool, where: str) -> None:
    with Alone(directory):
        report = check_store(directory)
        found = [one.code for one in report.all_problems()]
        outcome.add(found=bool(found))
        if costly and report.sound:
            outcome.fault(f"{where}: the doctor finds nothing wrong ({', '.join(found)})")
        if any(one.code == "no-checkpoint" for one in report.all_problems()):
            return
        repair_store(report)
        left = [one.code for one in check_store(directory).all_problems()]
        if left:
            outcome.fault(f"{where}: found {', '.join(found)}, and after the repair {', '.join(left)}")
        outcome.add(repaired=not left)


def of_class(one: ByteClass, rounds: int, rng: random.Random, deadline: float = float("inf")) -> Outcome:
    """Flips and truncations of one byte class."""
    outcome = Outcome(f"damage/{one.name}")
    with tempfile.TemporaryDirectory(prefix="ignis-damage-") as directory:
        template = Path(directory) / "store"
        started = Ledger()
        role = _prepare(Place(store_url(template), shards=_SHARDS, options=_OPTIONS), one.name.startswith("checkpoint"))
        with Child(role, "preparer") as child:
            if child.join(started):
                outcome.fault(f"prepare: {child.trouble()}")
                return outcome.finish()
        for what, cut in (("flip", False), ("cut", True)):
            for number in range(rounds):
                if time.monotonic() >= deadline:
                    return outcome.finish()
                most = None if cut and one.name != "control" else one.most_lost
                _round(
                    outcome,
                    template,
                    started,
                    lambda path, cut=cut: _alter(path, one, cut, rng),
                    most,
                    f"{what} {number}",
                )  # type: ignore[misc]
    if not outcome.rounds:
        outcome.fault("the store holds no such bytes: this test looks in the wrong place")
    return outcome.finish()


def tests(rounds: int, rng: random.Random, deadline: float) -> Iterator[Callable[[], Outcome]]:
    """One test per byte class."""
    for one in CLASSES:
        yield lambda one=one: of_class(one, rounds, rng, deadline)  # type: ignore[misc]
