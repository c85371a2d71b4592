"""Power cuts: a file system is stopped without writing its log, while writers and consumers are at work on it.

In lock-step the writer stops right after an acknowledgement, so that no later commit can make up for a missing one;
otherwise the cut comes at a random moment. In half of the stores messages are delayed, moved when they are due, and put off for
another attempt. The machine itself does not restart: a recovery that asked for that would
find the same boot and do nothing. ``how`` says what the store is opened on then: the same volume mounted again, or a
copy of its device, as a snapshot of it is, mounted elsewhere.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.torture import faults
from tests.torture.actors import MAIN, Place, browser, consumer, creator, drainer, pack, store_url, writer
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter, follow
from tests.torture.report import Outcome
from tests.torture.volume import Volume, unavailable

__all__ = ["INTERVAL_MS", "powercut", "two_writers_take_turns"]

INTERVAL_MS = 50
# The window is the interval and the time that a flush takes: up to 344 ms were measured on a volume like this one, beside
# other work. A loaded machine also wakes the background thread late.
_SLACK_S = 1.0
_ROUNDS_PER_STORE = 8
_LONGEST_RUN_S = 0.12
_LONGEST_WINDOWED_RUN_S = 2.2  # well behind the slack, or nothing would be left to judge


class _Machine:
    """One store on the volume over several cuts, and the ledger of its whole life."""

    def __init__(
        self,
        volume: Volume,
        name: str,
        durability: str,
        rng: random.Random,
        mutant: faults.Mutant | None,
        how: str = "remount",
    ) -> None:
        self.how = how
        self.name = name
        self.volume = volume
        self.directory = volume.path / name
        self.durability = durability
        self.rng = rng
        self.prepare = mutant.plant if mutant is not None else None
        self.ledger = Ledger()
        self.cuts = 0
        self.later = rng.random() < 0.5
        """Some messages are delayed and some are tried again: then nothing has an order that could be checked."""
        options = {"sync_interval_ms": INTERVAL_MS, **(mutant.options if mutant is not None else {})}
        self.place = Place(store_url(self.directory), durability, shards=3, options=options)
        self.judged = mutant.judged if mutant is not None and mutant.judged else durability
        self.forgiven = 0
        with Child(creator(self.place), "creator") as child:
            if child.join(None):
                raise RuntimeError(f"the store was not created: {child.trouble()}")

    def round(self, lockstep: bool) -> None:
        """Works, cuts, restarts. Raises RuntimeError when a child failed before the cut."""
        self.cuts += 1
        lockstep = lockstep and self.judged == "sync"
        writers = 1 if lockstep else self.rng.randint(1, 2)
        pause = self.rng.randint(1, 60) if lockstep else 0
        # Without a flush per load a writer is fast enough to drown the checker.
        pause_s = 0.0 if self.judged == "sync" else 0.001
        children: list[Child] = []
        try:
            for number in range(writers):
                role = writer(
                    self.place, self.cuts * 4 + number, pause_after=pause, pause_s=pause_s,
                    delay_share=0.5 if self.later else 0.0,
                )  # fmt: skip
                children.append(Child(role, "writer", self.prepare))
            if self.rng.random() < 0.6:
                role = consumer(self.place, retry_share=0.3 if self.later else 0.0)
                children.append(Child(role, "consumer", self.prepare))
            self._work(children, lockstep)
            at = self.volume.cut()
            for child in children:
                child.kill()
            for child in children:
                child.join(self.ledger)
        finally:
            for child in children:
                child.close()
        if self.how == "snapshot":
            self._move_to_snapshot()
        else:
            self.volume.restart()
        if self.judged == "interval":
            self.forgiven += self.ledger.forgive(at - INTERVAL_MS / 1000 - _SLACK_S)

    def _move_to_snapshot(self) -> None:
        """The store of the other volume is the one from now on; the volume that was cut stays as it is."""
        before = self.volume
        self.volume = before.snapshot()
        before.restart()
        self.directory = self.volume.path / self.name
        self.place = dataclasses.replace(self.place, url=store_url(self.directory))

    def _work(self, children: list[Child], lockstep: bool) -> None:
        def begun() -> bool:
            return all(child.noted("opened") is not None for child in children)

        def paused() -> bool:
            return children[0].noted("paused") is not None

        if not follow(children, self.ledger, begun, 20) or not begun():
            raise RuntimeError("a child did not start: " + " | ".join(child.trouble() for child in children))
        if lockstep:
            if not follow(children, self.ledger, paused, 20) or not paused():
                raise RuntimeError("the writer stopped before the cut: " + children[0].trouble())
        else:
            longest = _LONGEST_RUN_S if self.judged == "sync" else _LONGEST_WINDOWED_RUN_S
            end = time.monotonic() + self.rng.uniform(0, longest)
            follow(children, self.ledger, lambda: time.monotonic() >= end, 5)

    def drain(self) -> list[str]:
        """Everything out; the faults of the store's whole life."""
        with Child(drainer(self.place, ordered=not self.later), "drainer") as child:
            status = child.join(self.ledger, 60)
            if status or child.noted("left") is not None:
                return [f"drain after the cut: exit {status} {child.noted('left') or ''} {child.trouble()}"]
        corrupt = [f"{self.ledger.corrupt} corrupt after a cut"] if self.ledger.corrupt else []
        return self.ledger.verdict().faults() + corrupt

    def browse(self) -> list[str]:
        """Looks without claiming, so that the next round finds a store with a past."""
        with Child(browser(self.place), "browser") as child:
            status = child.join(self.ledger, 60)
            if status:
                return [f"browse after the cut: exit {status} {child.trouble()}"]
            lost, invented, resurrected = self.ledger.browse(child.present)
        if self.judged == "interval":
            # Whatever survived of the last window exists now and is durable after the next start.
            self.ledger.acknowledge(child.present)
        words = (("lost", lost), ("invented", invented), ("resurrected", resurrected))
        found = [f"{len(many)} {word} when browsing" for word, many in words if many]
        return found + ([f"{self.ledger.corrupt} corrupt after a cut"] if self.ledger.corrupt else [])


def powercut(
    rounds: int,
    rng: random.Random,
    *,
    durability: str = "sync",
    kind: str = "xfs",
    mutant: faults.Mutant | None = None,
    how: str = "remount",
    deadline: float = float("inf"),
) -> Outcome:
    """Cuts the power ``rounds`` times; half of the rounds in lock-step.

    Args:
        rounds: cuts in all, over stores that live for a few cuts each.
        rng: decides everything that is left to chance.
        durability: of the magazines. ``interval`` forgives the window before a cut, nothing else.
        kind: the file system.
        how: "remount" or "snapshot"; see the module.
        mutant: a planted fault; the run ends with the first loss, and the outcome says whether there was one.
        deadline: monotonic time at which no further round begins.
    """
    name = f"{'powercut' if how == 'remount' else how}/{kind}/{durability}" + (f"/{mutant.name}" if mutant else "")
    outcome = Outcome(name)
    reason = unavailable(kind)
    if reason:
        outcome.skipped = reason
        return outcome
    if mutant is not None:
        durability = mutant.durability or durability
    with tempfile.TemporaryDirectory(prefix="ignis-powercut-") as directory, Volume(Path(directory), kind) as volume:
        machine: _Machine | None = None
        for number in range(rounds):
            if time.monotonic() >= deadline or (mutant is not None and outcome.faults):
                break
            if machine is None:
                machine = _Machine(volume, f"store{number}", durability, rng, mutant, how)
            machine.round(lockstep=number % 2 == 0)
            outcome.rounds += 1
            last = number + 1 == rounds or machine.cuts == _ROUNDS_PER_STORE
            drained = last or rng.random() < 0.5 or mutant is not None
            found = machine.drain() if drained else machine.browse()
            outcome.faults += [f"round {number} ({machine.durability}, cut {machine.cuts}): {one}" for one in found]
            if last or found:
                verdict = machine.ledger.verdict()
                outcome.add(sent=verdict.sent, acked=verdict.acknowledged, lost=len(verdict.lost))
                outcome.add(invented=len(verdict.invented), duplicates=verdict.duplicates)
                outcome.add(in_window=machine.forgiven)
                outcome.add(unacked_seen=verdict.unacknowledged_seen, finished=len(machine.ledger.finished))
                shutil.rmtree(machine.directory, ignore_errors=True)  # the volume is small
                machine.volume.forget_snapshots()
                machine = None
    return outcome.finish()


def two_writers_take_turns(
    rounds: int, *, kind: str = "xfs", mutant: faults.Mutant | None = None, deadline: float = float("inf")
) -> Outcome:
    """A process that seldom flushes goes on writing after others have opened, flushed and closed the store.

    Whatever one process remembers of the shared files has been changed by another between any two of its loads. The
    cut comes right after the last acknowledgement.
    """
    outcome = Outcome(f"powercut-turns/{kind}")
    reason = unavailable(kind)
    if reason:
        outcome.skipped = reason
        return outcome
    with tempfile.TemporaryDirectory(prefix="ignis-turns-") as directory, Volume(Path(directory), kind) as volume:
        for number in range(rounds):
            if time.monotonic() >= deadline:
                break
            store = volume.path / f"store{number}"
            place = Place(store_url(store), "sync", shards=1, options={"sync_interval_ms": 3_600_000})
            loads = 2 + number % 5
            plant = mutant.plant if mutant is not None else None
            _take_turns(outcome, volume, store, place, loads, f"round {number} ({loads} loads)", plant)
            outcome.rounds += 1
            shutil.rmtree(store, ignore_errors=True)
    return outcome.finish()


def _take_turns(
    outcome: Outcome,
    volume: Volume,
    store: Path,
    place: Place,
    loads: int,
    where: str,
    plant: Callable[[], None] | None,
) -> None:
    ledger = Ledger()
    go_read, go_write = os.pipe()

    def role(report: Reporter) -> None:
        opened = place.open()
        report.note("opened")
        for one in range(loads):
            os.read(go_read, 1)
            many = [make_id(1, one)]
            report.sending(many)
            opened.magazines.load(MAIN, pack(many, place.shards, 0), None)
            report.acknowledged(many)
        os.read(go_read, 1)

    def visit() -> None:
        with Child(creator(place), "visitor") as visitor:
            if visitor.join(None):
                raise RuntimeError(f"visitor: {visitor.trouble()}")

    try:
        visit()
        with Child(role, "writer", plant) as child:
            follow([child], ledger, lambda: child.noted("opened") is not None, 20)
            for one in range(loads):
                os.write(go_write, b"x")
                follow([child], ledger, lambda one=one: child.acknowledged > one, 20)  # type: ignore[misc]
                if child.acknowledged != one + 1:
                    raise RuntimeError(f"the writer did not acknowledge load {one}: {child.trouble()}")
                if one + 1 < loads:
                    visit()
            volume.cut()
            child.kill()
            child.join(ledger)
    finally:
        os.close(go_read)
        os.close(go_write)
    volume.restart()
    with Child(drainer(place), "drainer") as child:
        status = child.join(ledger, 60)
        if status:
            outcome.fault(f"{where}: drain: exit {status}: {child.trouble()}")
            return
    outcome.take(ledger.verdict(), where)
