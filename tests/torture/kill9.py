"""kill -9 of every actor: at random moments, and right before or after each commit of a two-step protocol."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ignis.storage.base import MagazineStore, Transfer
from ignis.storage.records import group_pointers
from tests.torture import containers, faults
from tests.torture.actors import (
    FOREVER_MS,
    MAIN,
    SIDELINE,
    Place,
    consumer,
    creator,
    drainer,
    identify,
    mover,
    pack,
    store_url,
    sweeper,
    writer,
)
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["crash_points", "kill9", "open_race"]

_CONSUMER_LIMIT = 50
_KILLS_PER_ROUND = 5
_SCRIPT_MESSAGES = 24
_FAR_MS = 1 << 46


def _finish(outcome: Outcome, ledger: Ledger, place: Place, where: str) -> None:
    """Drains the store and books the verdict."""
    with Child(drainer(place, ordered=False), "drainer") as child:
        status = child.join(ledger, 60)
        if status or child.noted("left") is not None:
            outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
            return
    if ledger.corrupt:
        outcome.fault(f"{where}: {ledger.corrupt} corrupt")
    outcome.take(ledger.verdict(), where)


def kill9(
    rounds: int,
    rng: random.Random,
    *,
    durability: str = "sync",
    sideline_durability: str = "",
    mutant: faults.Mutant | None = None,
    contained: bool = False,
    deadline: float = float("inf"),
) -> Outcome:
    """Writers, a consumer, a mover and a sweeper share a store; one after the other dies and is replaced.

    The two magazines may be of different durability, so that every move between them is two transactions. Duplicates
    are bounded by what the dead consumers held, and checked against that. With ``contained`` each lives in a pid
    namespace of its own, as in a container, where all of them are process 1.
    """
    name = f"kill9/{durability}" + (f"+{sideline_durability}" if sideline_durability else "")
    name += "/contained" if contained else ""
    if contained and (reason := containers.unavailable()):
        return Outcome(name, skipped=reason)
    outcome = Outcome(name + (f"/{mutant.name}" if mutant else ""))
    for number in range(rounds):
        if time.monotonic() >= deadline or (mutant is not None and outcome.faults):
            break
        with tempfile.TemporaryDirectory(prefix="ignis-kill9-") as directory:
            _one_round(outcome, rng, Path(directory), number, durability, sideline_durability, mutant, contained)
        outcome.rounds += 1
    return outcome.finish()


def _one_round(
    outcome: Outcome,
    rng: random.Random,
    directory: Path,
    number: int,
    durability: str,
    sideline_durability: str,
    mutant: faults.Mutant | None,
    contained: bool,
) -> None:
    start = containers.contained if contained else Child
    place = Place(store_url(f"{directory}/store"), durability, sideline_durability, shards=3)
    ledger = Ledger(copies=place.two_steps)
    writers = iter(range(1, 1000))
    roles: dict[str, Callable[[], Role]] = {
        "writer": lambda: writer(place, next(writers), pause_s=0.0005),
        "writer2": lambda: writer(place, next(writers), pause_s=0.0005, delay_share=0.3),
        "consumer": lambda: consumer(
            place, limit=_CONSUMER_LIMIT, sideline_share=0.3, reload_share=0.1, retry_share=0.1
        ),
        "mover": lambda: mover(place),
        "sweeper": lambda: sweeper(place),
    }
    plant = mutant.plant if mutant else None
    with Child(creator(place), "creator") as child:
        if child.join(None):
            raise RuntimeError(f"the store was not created: {child.trouble()}")
    living = {name: start(make(), name, plant) for name, make in roles.items()}
    dead: list[Child] = []
    # Between two classes a move is two steps: who dies between them leaves a copy of each message in each.
    leaving = {"consumer", "mover", "sweeper"} if place.two_steps else {"consumer"}
    deaths = len(leaving)
    try:
        first = list(living.values())
        started = follow(first, ledger, lambda: all(one.noted("opened") is not None for one in first), 20)
        if not started or any(one.noted("opened") is None for one in first):
            raise RuntimeError("a child did not start: " + " | ".join(one.trouble() for one in first))
        for _ in range(_KILLS_PER_ROUND):
            end = time.monotonic() + rng.uniform(0.002, 0.06)
            follow(list(living.values()), ledger, lambda end=end: time.monotonic() >= end, 5)  # type: ignore[misc]
            victim = rng.choice(list(living))
            deaths += victim in leaving
            gone = living.pop(victim)
            if not gone.alive():
                outcome.fault(f"round {number}: {victim} ended by itself: {gone.trouble()}")
            gone.kill()
            dead.append(gone)
            living[victim] = start(roles[victim](), victim, plant)
        for one in living.values():
            one.kill()
        dead += living.values()
        # Seen before finished, whoever reported it: all lines are booked before the drain begins.
        for one in dead:
            one.join(ledger)
        outcome.add(kills=len(dead))
        _finish(outcome, ledger, place, f"round {number}")
        allowed = deaths * _CONSUMER_LIMIT
        if ledger.verdict().duplicates > allowed:
            outcome.fault(f"round {number}: {ledger.verdict().duplicates} duplicates, at most {allowed} were in flight")
    finally:
        for one in [*dead, *living.values()]:
            one.close()


def _script(place: Place, report: Reporter) -> None:
    """Every two-step protocol once, in one process: load, fire, delete, transfer, reload, sweep; and with due times."""
    store = place.open()
    report.note("opened")
    magazines = store.magazines
    for start in range(0, _SCRIPT_MESSAGES, 4):
        many = [make_id(1, one) for one in range(start, start + 4)]
        report.sending(many)
        magazines.load(MAIN, pack(many, place.shards, start // 4), None)
        report.acknowledged(many)
    for step in ("delete", "part", "transfer", "reload", "sweep", "keep"):
        for claim in magazines.fire(MAIN, 4, store.owner).claims:
            pointers = list(claim.pointers)
            items = [
                Transfer(claim.shard, pointer, record, claim.shard)
                for pointer, record in zip(pointers, claim.records, strict=True)
                if record is not None
            ]
            if step in ("delete", "part"):
                if step == "part":
                    items = items[::2]
                known = identify(report, [one.record for one in items])
                report.seen(known)
                magazines.delete(MAIN, {claim.shard: [one.pointer for one in items]})
                report.finished(known)
            elif step == "transfer":
                magazines.transfer(MAIN, SIDELINE, items, None)
            elif step == "reload":
                magazines.reload(MAIN, {claim.shard: pointers})
    for shard in range(place.shards):
        held = magazines.abandoned(MAIN, shard, FOREVER_MS, 100)
        items = [Transfer(one.shard, one.pointer, one.record, one.shard) for one in held if one.record is not None]
        magazines.transfer(MAIN, SIDELINE, items, None)
    for claim in magazines.fire(SIDELINE, 6, store.owner).claims:
        items = [
            Transfer(claim.shard, pointer, record, claim.shard)
            for pointer, record in zip(claim.pointers, claim.records, strict=True)
            if record is not None
        ]
        magazines.transfer(SIDELINE, MAIN, items, None)
    _later_steps(magazines, place, report)
    store.close()
    report.note("done")


def _later_steps(magazines: MagazineStore, place: Place, report: Reporter) -> None:
    """Delayed messages: put, moved, put off, cancelled, run now."""
    for number, due_ms in enumerate((1, 2, _FAR_MS, _FAR_MS + 1)):
        many = [make_id(2, number * 4 + one) for one in range(4)]
        report.sending(many)
        magazines.load_later(MAIN, pack(many, place.shards, number), [[due_ms] * 4], None)
        report.acknowledged(many)
    magazines.move_due(MAIN, 4)
    for claim in magazines.fire(MAIN, 4, "somebody").claims:
        items = [
            Transfer(claim.shard, pointer, record, claim.shard)
            for pointer, record in zip(claim.pointers, claim.records, strict=True)
            if record is not None
        ]
        magazines.defer(MAIN, items, [_FAR_MS + 2] * len(items))
    waiting = magazines.list_later(MAIN, limit=100)
    known = identify(report, [one.record for one in waiting[:3]])
    report.seen(known)
    magazines.cancel_later(MAIN, group_pointers((one.shard, one.pointer) for one in waiting[:3]))
    report.finished(known)
    magazines.run_now(MAIN, group_pointers((one.shard, one.pointer) for one in waiting[3:6]))


def crash_points(
    *,
    durability: str = "sync",
    sideline_durability: str = "interval",
    mutant: faults.Mutant | None = None,
    every: int = 1,
) -> Outcome:
    """Runs one script of all protocols again and again and dies before, or after, its first, second, ... commit.

    Every point between two steps of every protocol is met, without having to name it. ``every`` = 3 takes each third.
    """
    outcome = Outcome(f"crashpoints/{durability}+{sideline_durability}" + (f"/{mutant.name}" if mutant else ""))
    for when in ("before", "after"):
        for number in range(1, 500, every):
            with tempfile.TemporaryDirectory(prefix="ignis-crash-") as directory:
                place = Place(store_url(f"{directory}/store"), durability, sideline_durability, shards=2)
                ledger = Ledger(copies=place.two_steps)

                def prepare(number: int = number, when: str = when) -> None:
                    if mutant is not None:
                        mutant.plant()
                    faults.crash_at_commit(number, when)

                def role(report: Reporter, place: Place = place) -> None:
                    _script(place, report)

                with Child(role, "script", prepare) as child:
                    status = child.join(ledger)
                    if status not in (0, -9):
                        outcome.fault(f"{when} commit {number}: exit {status}: {child.trouble()}")
                outcome.rounds += 1
                _finish(outcome, ledger, place, f"{when} commit {number}")
            if status == 0 or (mutant is not None and outcome.faults):
                break
    return outcome.finish()


def open_race(rounds: int, *, durability: str = "sync", processes: int = 6, deadline: float = float("inf")) -> Outcome:
    """Several processes open a directory that does not exist yet, all at once; each must succeed and store."""
    outcome = Outcome(f"open-race/{durability}")
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        with tempfile.TemporaryDirectory(prefix="ignis-race-") as directory:
            place = Place(store_url(f"{directory}/store"), durability, shards=2)
            ledger = Ledger()
            children = [Child(writer(place, one, limit=5), f"opener {one}") for one in range(processes)]
            try:
                for child in children:
                    if child.join(ledger):
                        outcome.fault(f"round {number}: {child.name}: {child.trouble().splitlines()[-1]}")
            finally:
                for child in children:
                    child.close()
            outcome.rounds += 1
            _finish(outcome, ledger, place, f"round {number}")
    return outcome.finish()
