"""Messages that wait for their time, under kill -9 of everybody, while the wall clock is set forward and back by hours.

Writers put messages with due times of a moment, workers handle, retry and give back, movers move what is due, one process
cancels and one runs now what is due much later. One after the other dies and is replaced. Each put, move, retry and cancel is one
transaction: none is lost, none is there twice but what a dead worker held, none is handed out before its time, and what
was cancelled never comes.

All children share a wall clock that the parent sets. The store counts by a clock that nobody sets.
"""

from __future__ import annotations

import mmap
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ignis.native import CODEC_RAW, PackedBatch, Record, encode_record
from ignis.storage.base import Store, Transfer
from tests.torture import later_faults
from tests.torture.actors import MAIN, Place, creator, drainer, identify, store_url, sweeper
from tests.torture.faults import Mutant
from tests.torture.ledger import Ledger, make_body, make_id
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["later_kill9", "tests"]

_HOUR_S = 3_600
_FAR_MS = 100 * _HOUR_S * 1000
_LIMIT = 50
_KILLS_PER_ROUND = 8
_PATIENCE = 60
"""Rounds in which each planted fault has to be found."""
_DUE = struct.Struct(">Q")


class WallClock:
    """What `time.time` tells in all children that are forked from here: the machine's, and so many seconds."""

    def __init__(self) -> None:
        self._ahead = mmap.mmap(-1, 8)

    def put(self, ahead_s: float) -> None:
        """Sets it."""
        self._ahead[:8] = struct.pack("d", ahead_s)

    def install(self) -> None:
        """In a child, before it opens its store."""
        real, real_ns = time.time, time.time_ns

        def ahead_s() -> float:
            return float(struct.unpack("d", self._ahead[:8])[0])

        vars(time)["time"] = lambda: real() + ahead_s()
        vars(time)["time_ns"] = lambda: real_ns() + int(ahead_s() * 1e9)


def _record(identity: int, due_ms: int) -> bytes:
    """It says when it is due, so that whoever gets it can tell whether that was too early."""
    return encode_record(make_body(identity), flags=CODEC_RAW, meta=_DUE.pack(due_ms))


def _due_of(record: bytes) -> int:
    return int(_DUE.unpack(Record(record).meta)[0])


def _now_ms(store: Store) -> int:
    return int(store.now_s() * 1000)


def due_writer(place: Place, number: int, clock: WallClock) -> Role:
    """Puts messages that are due in a moment, are due already, or are due in days; until killed."""

    def role(report: Reporter) -> None:
        clock.install()
        rng = random.Random()
        store = place.open()
        report.note("opened")
        sequence = 0
        while True:
            many = [make_id(number, sequence + one) for one in range(rng.choice((1, 1, 2, 7, 40)))]
            sequence += len(many)
            now_ms = _now_ms(store)
            dues = [now_ms + (_FAR_MS if rng.random() < 0.15 else rng.randint(-5, 60)) for _ in many]
            records = [_record(one, due_ms) for one, due_ms in zip(many, dues, strict=True)]
            report.sending(many)
            store.magazines.load_later(MAIN, [(rng.randrange(place.shards), PackedBatch.pack(records))], [dues], None)
            report.acknowledged(many)
            time.sleep(0.0005)

    return role


def worker(place: Place, clock: WallClock) -> Role:
    """Fires, then finishes, retries or gives back what it got, until killed. What is retried counts as not seen."""

    def role(report: Reporter) -> None:
        clock.install()
        rng = random.Random()
        store = place.open()
        report.note("opened")
        magazines = store.magazines
        while True:
            sequence = magazines.wait(MAIN, -1, 0)
            fired = magazines.fire(MAIN, rng.randint(1, _LIMIT), store.owner)
            now_ms = _now_ms(store)
            for claim in fired.claims:
                _check_times(report, claim.records, now_ms)
                luck = rng.random()
                if luck < 0.4 and None not in claim.records:
                    _retry(store, claim.shard, claim.pointers, claim.records, rng, report)
                elif luck < 0.5:
                    magazines.reload(MAIN, {claim.shard: list(claim.pointers)})
                else:
                    known = identify(report, claim.records)
                    report.seen(known)
                    magazines.delete(MAIN, {claim.shard: list(claim.pointers)})
                    report.finished(known)
            if not fired.total():
                magazines.wait(MAIN, sequence, 0.05)

    return role


def _check_times(report: Reporter, records: Sequence[bytes | None], now_ms: int) -> None:
    """What was run now says that it is due in days."""
    for record in records:
        if record is not None and now_ms < (due_ms := _due_of(record)) < now_ms + _FAR_MS // 2:
            report.note("early", due_ms - now_ms)


def _retry(
    store: Store,
    shard: int,
    pointers: Sequence[int],
    records: Sequence[bytes | None],
    rng: random.Random,
    report: Reporter,
) -> None:
    """Acknowledges them and puts them into the later magazine, which is one transaction."""
    now_ms = _now_ms(store)
    dues, items = [], []
    for pointer, identity in zip(pointers, identify(report, records), strict=True):
        dues.append(now_ms + rng.randint(0, 60))
        items.append(Transfer(shard, pointer, _record(identity, dues[-1]), shard))
    moved = store.magazines.defer(MAIN, items, dues)
    if moved != len(items):
        report.note("wrong", f"{len(items)} claimed messages, {moved} were put for a retry")


def mover(place: Place, clock: WallClock) -> Role:
    """Moves what is due, as who has no consumers does, until killed."""

    def role(report: Reporter) -> None:
        clock.install()
        rng = random.Random()
        store = place.open()
        report.note("opened")
        while True:
            store.magazines.move_due(MAIN, rng.choice((1, 5, 100)))
            time.sleep(0.001)

    return role


def canceller(place: Place, clock: WallClock) -> Role:
    """Cancels what is due in days, one message at a time, and says so before and after; until killed."""

    def role(report: Reporter) -> None:
        for store, one in _far(place, clock, report):
            for identity in identify(report, [one.record]):
                report.note("cancelling", identity)
                if store.magazines.cancel_later(MAIN, {one.shard: [one.pointer]}):
                    report.note("cancelled", f"{identity} {time.monotonic():.6f}")
                else:
                    report.note("missed", identity)

    return role


def runner(place: Place, clock: WallClock) -> Role:
    """Runs now what is due in days, one message at a time, until killed."""

    def role(report: Reporter) -> None:
        for store, one in _far(place, clock, report):
            store.magazines.run_now(MAIN, {one.shard: [one.pointer]})

    return role


def _far(place: Place, clock: WallClock, report: Reporter) -> Iterator[tuple[Store, Any]]:
    """What is due in days, one after the other, over and over."""
    clock.install()
    rng = random.Random()
    store = place.open()
    report.note("opened")
    while True:
        behind = (_now_ms(store) + _FAR_MS // 2, 0, 0)
        found = store.magazines.list_later(MAIN, after=behind, limit=200)
        if found:
            yield store, rng.choice(found)
        time.sleep(0.002)


def later_kill9(
    rounds: int,
    rng: random.Random,
    *,
    durability: str = "sync",
    mutant: Mutant | None = None,
    deadline: float = float("inf"),
) -> Outcome:
    """So many stores, each with deaths of all roles and a clock that is set; see the module."""
    outcome = Outcome(f"later/{durability}" + (f"/{mutant.name}" if mutant else ""))
    for number in range(rounds):
        if time.monotonic() >= deadline or (mutant is not None and outcome.faults):
            break
        with tempfile.TemporaryDirectory(prefix="ignis-later-") as directory:
            _one_round(outcome, rng, Path(directory), number, durability, mutant)
        outcome.rounds += 1
    return outcome.finish()


def _one_round(
    outcome: Outcome, rng: random.Random, directory: Path, number: int, durability: str, mutant: Mutant | None
) -> None:
    place = Place(store_url(f"{directory}/store"), durability, shards=3)
    where, ledger, clock = f"round {number}", Ledger(), WallClock()
    writers = iter(range(1, 1000))
    roles: dict[str, Callable[[], Role]] = {
        "writer": lambda: due_writer(place, next(writers), clock),
        "writer2": lambda: due_writer(place, next(writers), clock),
        "worker": lambda: worker(place, clock),
        "worker2": lambda: worker(place, clock),
        "mover": lambda: mover(place, clock),
        "canceller": lambda: canceller(place, clock),
        "runner": lambda: runner(place, clock),
        "sweeper": lambda: sweeper(place),
    }
    plant = mutant.plant if mutant else None
    with Child(creator(place), "creator") as child:
        if child.join(None):
            raise RuntimeError(f"the store was not created: {child.trouble()}")
    living = {name: Child(make(), name, plant) for name, make in roles.items()}
    dead: list[Child] = []
    deaths = steps = 0
    try:
        first = list(living.values())
        started = follow(first, ledger, lambda: all(one.noted("opened") is not None for one in first), 30)
        if not started or any(one.noted("opened") is None for one in first):
            raise RuntimeError("a child did not start: " + " | ".join(one.trouble() for one in first))
        for _ in range(_KILLS_PER_ROUND):
            clock.put(rng.choice((0, rng.uniform(-9, 9) * _HOUR_S)))
            steps += 1
            end = time.monotonic() + rng.uniform(0.002, 0.08)
            follow(list(living.values()), ledger, lambda end=end: time.monotonic() >= end, 5)  # type: ignore[misc]
            victim = rng.choice(list(living))
            gone = living.pop(victim)
            if not gone.alive():
                outcome.fault(f"{where}: {victim} ended by itself: {gone.trouble()}")
            gone.kill()
            dead.append(gone)
            living[victim] = Child(roles[victim](), victim, plant)
        for one in living.values():
            one.kill()
        dead += living.values()
        for one in dead:
            one.join(ledger)
        deaths = sum(one.name.startswith("worker") for one in dead)
        outcome.add(kills=len(dead), clock_steps=steps)
        doubtful = _book_cancelled(outcome, dead, ledger, where)
        with Child(drainer(place, ordered=False), "drainer") as child:
            status = child.join(ledger, 60)
            if status or child.noted("left") is not None:
                outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
                return
        for identity in doubtful - ledger.seen.keys():
            ledger.acknowledged.pop(identity, None)  # cancelled by one that died before it said so
        if ledger.corrupt:
            outcome.fault(f"{where}: {ledger.corrupt} corrupt")
        verdict = ledger.verdict()
        outcome.take(verdict, where)
        if verdict.duplicates > deaths * _LIMIT:
            outcome.fault(f"{where}: {verdict.duplicates} duplicates, at most {deaths * _LIMIT} were in flight")
    finally:
        for one in [*dead, *living.values()]:
            one.close()


def _book_cancelled(outcome: Outcome, children: Sequence[Child], ledger: Ledger, where: str) -> set[int]:
    """What was cancelled is finished. Returns what was being cancelled when its canceller died."""
    doubtful: set[int] = set()
    for one in children:
        for word, text in one.notes:
            if word == "cancelling":
                doubtful.add(int(text))
            elif word == "missed":
                doubtful.discard(int(text))
            elif word == "cancelled":
                identity, at = int(text.split()[0]), float(text.split()[1])
                doubtful.discard(identity)
                ledger.see([identity], at=at)
                ledger.finish([identity], at)
                outcome.add(cancelled=1)
            elif word in ("early", "wrong"):
                outcome.fault(f"{where}: {one.name}: {word} {text}")
    return doubtful


MUTANTS = (
    Mutant("due-moved-twice", later_faults.move_twice, expects="duplicates|resurrected"),
    Mutant("retry-not-put", later_faults.retry_without_put, expects="lost"),
    Mutant("retry-not-acknowledged", later_faults.retry_without_acknowledgement, expects="duplicates|resurrected"),
    Mutant("early-acknowledgement", later_faults.put_later_early, expects="lost"),
    Mutant("late-cancel", later_faults.postpone_cancels, expects="resurrected"),
    Mutant("due-by-the-wall-clock", later_faults.move_by_the_wall_clock, expects="early"),
)


def tests(
    rounds: int, rng: Callable[[str], random.Random], *, planted: bool, deadline: float
) -> Iterator[Callable[[], Outcome]]:
    """Two durabilities, then the planted faults."""
    for durability in ("sync", "interval"):
        yield lambda durability=durability: later_kill9(  # type: ignore[misc]
            rounds, rng(f"later/{durability}"), durability=durability, deadline=deadline
        )

    def mutants() -> Outcome:
        outcome = Outcome("later/mutants")
        for mutant in MUTANTS:
            found = later_kill9(_PATIENCE, rng(f"later/{mutant.name}"), mutant=mutant)
            outcome.rounds += found.rounds
            outcome.plant(
                mutant.name, any(f" {word}" in one for word in mutant.expects.split("|") for one in found.faults)
            )
        return outcome.finish()

    if planted:
        yield mutants
