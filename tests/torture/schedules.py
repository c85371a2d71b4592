"""A fast schedule under leaders that die or stop at every step: no tick twice, none missing.

Two or three processes on one embedded store, each of which may fire. Whoever leads ends itself with SIGKILL, or stops itself with
SIGSTOP, at a step drawn for it: before or behind the load of a tick, before or behind the note of it. A killed one is replaced by
a new process; a stopped one goes on when another has led, in the middle of the step. A third run sets the clock of all
processes back by hours and forward by hours before each of these deaths.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ignis
from ignis.message import Message
from ignis.schedules.fire import TICK_HEADER, tick_text
from ignis.schedules.stored import read_schedules
from tests.torture.faults import Mutant
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["tests"]

STEPS = ("before-load", "after-load", "before-note", "after-note")
_QUEUE = "ticks"
_NAME = "fast"
_EVERY_MS = 100
_SLOW_EVERY_MS = 600_000
_HOUR_S = 3_600
_BOUND_S = 60.0


def random_ids() -> None:
    """Mutant: the id of a tick's message is another one each time."""
    from ignis.schedules import fire

    vars(fire)["tick_id"] = lambda name, incarnation, tick_ms: os.urandom(16)


MUTANT = Mutant("random-ids", random_ids, expects="was fired")


class Clock:
    """The machine's, ahead by as many seconds as the parent says. Shared by all processes that are forked from here."""

    def __init__(self) -> None:
        self._ahead = mmap.mmap(-1, 8)
        self._most_s = 0.0

    def __call__(self) -> float:
        return time.time() + struct.unpack("d", self._ahead[:8])[0]

    def _put(self, ahead_s: float) -> None:
        self._ahead[:8] = struct.pack("d", ahead_s)

    def swing(self, rng: random.Random) -> None:
        """Back by hours, for two looks, then forward by hours beyond where it was."""
        self._put(self._most_s - rng.uniform(1, 5) * _HOUR_S)
        time.sleep(0.1)
        self._most_s += rng.uniform(1, 3) * _HOUR_S
        self._put(self._most_s)


def creator(url: str, every_ms: int) -> Role:
    def role(report: Reporter) -> None:
        with ignis.Ignis(url) as app:
            app.queue(_QUEUE, int, shards=3).open()
            app.schedules.add(_NAME, queue=_QUEUE, message=1, every=every_ms / 1000, missed="all")

    return role


def instance(url: str, fault: int, step: str, countdown: int, clock: Clock) -> Role:
    """Fires, and meets its fault at that step of the firing with that number under each of its leads."""

    def role(report: Reporter) -> None:
        stops = fault == signal.SIGSTOP
        leader = {"kind": "lease", "lease": 0.5} if stops else {"kind": "file"}
        app = ignis.Ignis(url, schedules={"look": 0.05}, leader={**leader, "refresh": 0.05}, clock=clock)
        load, update = app.store.magazines.load_once, app.store.queues.update
        begun: Counter[int] = Counter()

        def at(where: str) -> None:
            fence = app.leader("schedules").fence
            epoch = 0 if fence is None else fence.epoch
            if where == "before-load":
                begun[epoch] += 1
                report.note("led", epoch)
            if where == step and begun[epoch] == countdown:
                report.note("fault", epoch)
                os.kill(os.getpid(), fault)

        def loading(*given: Any) -> Any:
            at("before-load")
            done = load(*given)
            at("after-load")
            return done

        def noting(name: str, change: Any, fence: Any = None) -> Any:
            if fence is None:
                return update(name, change)
            at("before-note")
            done = update(name, change, fence)
            at("after-note")
            return done

        app.store.magazines.load_once = loading  # type: ignore[method-assign]
        app.store.queues.update = noting  # type: ignore[method-assign]
        app.scheduler().start()
        threading.Event().wait()

    return role


def checker(url: str) -> Role:
    """What the store holds in the end."""

    def role(report: Reporter) -> None:
        with ignis.Ignis(url) as app:
            record = app.store.queues.get(_QUEUE)
            assert record is not None
            stored = read_schedules(record)[_NAME]
            found: Counter[str] = Counter()
            for _, _, data in app.store.magazines.scan(_QUEUE, limit=10_000_000):
                assert data is not None
                found[Message.from_bytes(data).headers[TICK_HEADER]] += 1
            ticks = range(stored.anchor_ms + stored.every_ms, stored.done_ms + 1, stored.every_ms)
            report.note("ticks", len(ticks))
            report.note("offices", app.store.locks.epoch("schedules"))
            if stored.fired != len(ticks):
                report.note("wrong", f"{stored.fired} ticks are counted, {len(ticks)} were due")
            texts = {tick_text(one) for one in ticks}
            for text in sorted(texts - set(found))[:5]:
                report.note("wrong", f"{text} is missing")
            for text, count in found.items():
                if count > 1:
                    report.note("wrong", f"{text} was fired {count} times")
            # A tick that was loaded and not noted is of the last leader.
            report.note("loose", sum(1 for text in found if text not in texts))

    return role


def schedule_rounds(
    rounds: int,
    rng: random.Random,
    fault: int,
    *,
    swinging: bool = False,
    mutant: Mutant | None = None,
    deadline: float = float("inf"),
) -> Outcome:
    """So many leaders, one after the other, each of which meets the fault; ``swinging``: behind a clock that is set."""
    kind = "stopped" if fault == signal.SIGSTOP else "clock" if swinging else "killed"
    outcome = Outcome(f"schedules/{kind}" + (f"/{mutant.name}" if mutant else ""))
    plant = mutant.plant if mutant else None
    with tempfile.TemporaryDirectory(prefix="ignis-schedules-") as directory:
        url = f"embedded://{Path(directory)}/store"
        every_ms = _SLOW_EVERY_MS if swinging else _EVERY_MS
        clock, steps = Clock(), itertools.cycle(STEPS)
        with Child(creator(url, every_ms), "creator") as child:
            if child.join(None):
                raise RuntimeError(f"the schedule was not stored: {child.trouble()}")
        children: list[Child] = []
        gone_on: Counter[int] = Counter()  # how often each was made to

        def add() -> None:
            role = instance(url, fault, next(steps), 1 if swinging else rng.randint(1, 3), clock)
            children.append(Child(role, f"instance {len(children)}", plant))

        try:
            for _ in range(2):
                add()
            for number in range(rounds):
                if time.monotonic() >= deadline:
                    break
                if swinging:
                    clock.swing(rng)
                if fault == signal.SIGSTOP:
                    _stopped(children, gone_on)
                else:
                    gone = _killed(children)
                    gone.close()
                    children.remove(gone)
                    add()
                outcome.rounds = number + 1
        finally:
            for one in children:
                if one.alive():
                    os.kill(one.pid, signal.SIGCONT)
                one.close()
        with Child(checker(url), "checker") as child:
            if child.join(None, 60):
                raise RuntimeError(f"the store could not be looked at: {child.trouble()}")
            outcome.add(**{word: int(child.noted(word) or 0) for word in ("ticks", "offices", "loose")})
            wrong = [text for word, text in child.notes if word == "wrong"]
    if mutant is not None:
        outcome.plant(mutant.name, any(mutant.expects in one for one in wrong))
    else:
        outcome.faults += wrong
        if outcome.figures["loose"] > 100:
            outcome.fault(f"{outcome.figures['loose']} ticks were loaded that nobody has noted")
    return outcome.finish()


def _killed(children: list[Child]) -> Child:
    """The leader that has ended itself."""
    _follow(children, lambda: any(not one.alive() for one in children), "a leader's end")
    gone = next(one for one in children if not one.alive())
    if gone.status != -signal.SIGKILL:
        raise RuntimeError(f"{gone.name} ended by itself: {gone.trouble()}")
    return gone


def _stopped(children: list[Child], gone_on: Counter[int]) -> None:
    """A leader that has stopped itself goes on after another has led, which may have stopped itself by then."""

    def stops(one: Child) -> list[int]:
        return [int(text) for word, text in one.notes if word == "fault"]

    def faulty() -> Child | None:
        return next((one for one in children if len(stops(one)) > gone_on[one.pid]), None)

    _follow(children, lambda: faulty() is not None, "a leader's stop")
    stopped = faulty()
    assert stopped is not None
    epoch = stops(stopped)[-1]

    def replaced() -> bool:
        others = [one for one in children if one is not stopped]
        return any(word == "led" and int(text) > epoch for one in others for word, text in one.notes)

    _follow(children, replaced, "the next leader")
    gone_on[stopped.pid] += 1
    os.kill(stopped.pid, signal.SIGCONT)


def _follow(children: list[Child], until: Callable[[], bool], what: str) -> None:
    if not follow(children, None, until, _BOUND_S):
        raise TimeoutError(f"{what}: not within {_BOUND_S:g} s; {' | '.join(one.trouble(600) for one in children)}")


def tests(rounds: int, rng: random.Random, *, planted: bool, deadline: float) -> Iterator[Callable[[], Outcome]]:
    """Of all changes of leaders a tenth are by processes that stop and go on: each of these takes a lease's time."""
    yield lambda: schedule_rounds(rounds, rng, signal.SIGKILL, deadline=deadline)
    yield lambda: schedule_rounds(max(3, rounds // 10), rng, signal.SIGSTOP, deadline=deadline)
    yield lambda: schedule_rounds(max(8, rounds // 5), rng, signal.SIGKILL, swinging=True, deadline=deadline)
    if planted:
        yield lambda: schedule_rounds(12, rng, signal.SIGKILL, mutant=MUTANT)
