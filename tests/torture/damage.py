"""Damaged bytes: each class of stored data is altered and cut short; the damage must be detected, never delivered.

The bytes are changed through LMDB itself, so that the B-tree stays whole and the store's own checks are what is
tried; in addition the data file as a whole is cut short and flipped at random places, where the operating system and
LMDB stand between the damage and the store: there, wrong deliveries are faults and refusals to open are counted.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb

from tests.torture.actors import MAIN, Place, drainer, identify, pack
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter
from tests.torture.report import Outcome

__all__ = ["CLASSES", "tests"]

_SHARDS = 2
_BATCHES = 6
_BATCH = 5
_SEGMENT_HEADER_BYTES = 24
_INDEX_ENTRY_BYTES = 8
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class ByteClass:
    """Where a class of bytes lies.

    ``environment``: LMDB directory inside the store. ``prefix``: first byte of the keys. ``part``: value length ->
    (start, stop) of the bytes of this class. ``most_corrupt``: most records that one damaged byte may cost.
    """

    name: str
    environment: str
    prefix: bytes
    part: Callable[[int], tuple[int, int]]
    most_corrupt: int


def _whole(length: int) -> tuple[int, int]:
    return 0, length


_INDEX_STOP = _SEGMENT_HEADER_BYTES + _BATCH * _INDEX_ENTRY_BYTES

CLASSES = (
    ByteClass("segment-header", "sync", b"S", lambda length: (0, _SEGMENT_HEADER_BYTES), _BATCH),
    ByteClass("segment-index", "sync", b"S", lambda length: (_SEGMENT_HEADER_BYTES, _INDEX_STOP), _BATCH),
    ByteClass("record", "sync", b"S", lambda length: (_INDEX_STOP, length), 1),
    ByteClass("bitmap", "sync", b"T", _whole, _BATCH),
    ByteClass("claim", "claims", b"C", _whole, 0),
    ByteClass("fire-pointers", "claims", b"F", _whole, 0),
    ByteClass("owner", "claims", b"O", _whole, 0),
)


def _prepare(place: Place) -> Callable[[Reporter], None]:
    """Leaves pending, fired, finished and partly finished segments behind."""

    def role(report: Reporter) -> None:
        store = place.open()
        for number in range(_BATCHES):
            many = [make_id(1, one) for one in range(number * _BATCH, (number + 1) * _BATCH)]
            report.sending(many)
            store.magazines.load(MAIN, pack(many, place.shards, number), None)
            report.acknowledged(many)
        for claim in store.magazines.fire(MAIN, 2 * _BATCH + 2, store.owner).claims:
            pointers, known = list(claim.pointers)[::2], identify(report, claim.records[::2])
            report.seen(known)
            store.magazines.delete(MAIN, {claim.shard: pointers})
            report.finished(known)
        store.close()

    return role


def _values(directory: Path, one: ByteClass) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(directory / one.environment), readonly=True, lock=False, max_dbs=16) as env, env.begin() as txn:
        return [(bytes(key), bytes(value)) for key, value in txn.cursor() if bytes(key).startswith(one.prefix)]


def _put(directory: Path, one: ByteClass, key: bytes, value: bytes) -> None:
    with lmdb.open(str(directory / one.environment), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(key, value)


def _alter(directory: Path, one: ByteClass, cut: bool, rng: random.Random) -> bool:
    """Changes one stored value; False when the store holds no such bytes."""
    values = _values(directory, one)
    if not values:
        return False
    key, value = rng.choice(values)
    start, stop = one.part(len(value))
    if stop <= start:
        return False
    place = rng.randrange(start, stop)
    if cut:
        damaged = value[:place]
    else:
        damaged = value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]
    _put(directory, one, key, damaged)
    return True


def _round(
    outcome: Outcome, template: Path, started: Ledger, damage: Callable[[Path], bool], most_corrupt: int | None,
    where: str, plant: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Copies the prepared store, damages the copy, drains it and judges.

    ``most_corrupt`` None: the store may refuse to open or die, but not deliver anything wrong.
    """
    with tempfile.TemporaryDirectory(prefix="ignis-damage-") as directory:
        copy = Path(directory) / "store"
        shutil.copytree(template, copy)
        if not damage(copy):
            outcome.add(absent=1)
            return
        ledger = Ledger(
            dict(started.sent), dict(started.acknowledged), seen=dict(started.seen), finished=dict(started.finished)
        )
        place = Place(f"embedded://{copy}", shards=_SHARDS)
        with Child(drainer(place, ordered=False), "drainer", plant) as child:
            status = child.join(ledger, 60)
            trouble = child.trouble()
        verdict = ledger.verdict()
        outcome.rounds += 1
        outcome.add(corrupt=ledger.corrupt, refused_open=int(status == 1), died=int(status < 0))
        if verdict.invented or verdict.altered:
            outcome.fault(f"{where}: {'; '.join(verdict.faults())}")
        if most_corrupt is None:
            # LMDB's own pages carry no checksum: what such damage hides without a word is counted, not excused.
            outcome.add(silently_missing=0 if status else max(0, len(verdict.lost) - ledger.corrupt))
            return
        if status:
            outcome.fault(f"{where}: drain: exit {status}: {trouble[-600:]}")
        elif len(verdict.lost) > ledger.corrupt:
            outcome.fault(f"{where}: {len(verdict.lost)} missing, {ledger.corrupt} of them set aside as corrupt")
        elif ledger.corrupt > most_corrupt:
            outcome.fault(f"{where}: one damaged byte cost {ledger.corrupt} records, at most {most_corrupt} expected")
        elif len(verdict.resurrected) > _BATCH:
            outcome.fault(f"{where}: {len(verdict.resurrected)} finished ones came back")


def _used_bytes(directory: Path) -> int:
    """The part of the file that holds pages; behind it lies room that was only allocated."""
    with lmdb.open(str(directory / "sync"), readonly=True, lock=False) as env:
        return (int(env.info()["last_pgno"]) + 1) * _PAGE_BYTES


def _cut_file(directory: Path, rng: random.Random) -> bool:
    data = directory / "sync" / "data.mdb"
    size = _used_bytes(directory)
    with open(data, "r+b") as handle:
        handle.truncate(rng.randrange(size))
    return True


def _flip_file(directory: Path, rng: random.Random) -> bool:
    """Behind the two meta pages: with those gone LMDB refuses the file, which is all that can be asked."""
    data = directory / "sync" / "data.mdb"
    place = rng.randrange(2 * _PAGE_BYTES, _used_bytes(directory))
    with open(data, "r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return True


def judge(
    name: str, rounds: int, rng: random.Random, damages: list[tuple[str, Callable[[Path], bool], int | None]],
    deadline: float = float("inf"), plant: Callable[[], None] | None = None,
) -> Outcome:  # fmt: skip
    """Prepares one store and applies each damage ``rounds`` times, each time to a fresh copy of it."""
    outcome = Outcome(f"damage/{name}")
    with tempfile.TemporaryDirectory(prefix="ignis-damage-") as directory:
        template = Path(directory) / "store"
        started = Ledger()
        with Child(_prepare(Place(f"embedded://{template}", shards=_SHARDS)), "preparer") as child:
            if child.join(started):
                outcome.fault(f"prepare: {child.trouble()}")
                return outcome.finish()
        for what, damage, most_corrupt in damages:
            for number in range(rounds):
                if time.monotonic() >= deadline:
                    return outcome.finish()
                _round(outcome, template, started, damage, most_corrupt, f"{what} {number}", plant)
    if not outcome.rounds:
        outcome.fault("the store holds no such bytes: this test looks in the wrong place")
    return outcome.finish()


def of_class(
    one: ByteClass,
    rounds: int,
    rng: random.Random,
    deadline: float = float("inf"),
    plant: Callable[[], None] | None = None,
) -> Outcome:
    """Flips and truncations of one byte class."""
    damages: list[tuple[str, Callable[[Path], bool], int | None]] = [
        ("flip", lambda directory: _alter(directory, one, False, rng), one.most_corrupt),
        ("cut", lambda directory: _alter(directory, one, True, rng), _BATCH),
    ]
    return judge(one.name, rounds, rng, damages, deadline, plant)


def tests(rounds: int, rng: random.Random, deadline: float) -> Iterator[Callable[[], Outcome]]:
    """One test per byte class, and one for the whole file."""
    for one in CLASSES:
        yield lambda one=one: of_class(one, rounds, rng, deadline)  # type: ignore[misc]
    yield lambda: judge(
        "file",
        rounds,
        rng,
        [("cut", lambda path: _cut_file(path, rng), None), ("flip", lambda path: _flip_file(path, rng), None)],
        deadline,
    )  # fmt: skip
