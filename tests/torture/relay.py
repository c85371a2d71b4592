"""kill -9 of the relay and of its producers, at random and between the steps of a turn.

What counts as acknowledged is stricter than a receipt: every message whose ``send`` returned is in a file that survives its
producer, so it must be in the store when a relay has come to rest. Copies have a bound: a relay that dies leaves those of
one load, and a load has at most ``relay.max_batch`` messages.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ignis
from ignis.relay import daemon
from ignis.relay.channel_reader import Inlet
from tests.support.relay import shared_memory
from tests.torture.actors import MAIN, Place, drainer
from tests.torture.ledger import Ledger, make_body, make_id
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["relay_jobs", "relay_kill9", "relay_mutants", "relay_steps"]

_PRODUCERS = 3
_KILLS_PER_ROUND = 6
_CAPACITY = 256
_SHARDS = 3
_MAX_BATCH = 200
"""So much that the store is at work in a thread of its own, and less than the channels hold."""

Plant = Callable[[], None]


class _Scene:
    """A relay's directory and the store behind it."""

    def __init__(self, directory: Path, shared: Path, durability: str) -> None:
        self.url = f"relay://{shared}?capacity={_CAPACITY}"
        self.shared = shared
        self.durability = durability
        self.place = Place(f"embedded://{directory}/store", durability, shards=_SHARDS)

    def channels(self) -> list[Path]:
        return list((self.shared / "channels").glob("*.channel"))


def producing(scene: _Scene, number: int) -> Role:
    """Sends until killed, through a publisher; now and then through ``publish``, which waits for the store."""

    def role(report: Reporter) -> None:
        rng = random.Random()
        queue = ignis.Ignis(scene.url).queue(MAIN, bytes, shards=_SHARDS, durability=scene.durability)
        publisher = queue.publisher(send_timeout_s=60)
        report.note("opened")
        sequence = 0
        while True:
            many = [make_id(number, one) for one in range(sequence, sequence + rng.choice((1, 3, 20)))]
            sequence = many[-1] + 1 - make_id(number, 0)
            report.sending(many)
            if rng.random() < 0.1:
                queue.publish_many([make_body(one) for one in many])
            else:
                for one in many:
                    publisher.send(make_body(one))
            report.acknowledged(many)
            if rng.random() < 0.2:
                time.sleep(0.001)

    return role


def relaying(scene: _Scene) -> Role:
    """A relay, until SIGTERM."""

    def role(report: Reporter) -> None:
        relay = daemon.Relay(ignis.Ignis(scene.place.url), scene.shared, scan=0.02, max_batch=_MAX_BATCH)
        signal.signal(signal.SIGTERM, lambda number, frame: relay.request_stop())

        def say() -> None:
            while not relay.running:
                time.sleep(0.001)
            report.note("opened")

        threading.Thread(target=say, daemon=True).start()
        relay.run()
        report.note("stopped", relay.stats())

    return role


def relay_kill9(
    rounds: int, rng: random.Random, *, durability: str = "sync", deadline: float = float("inf")
) -> Outcome:
    """Producers and relays die and are replaced; then the last relay comes to rest, and the store is drained and judged."""
    outcome = Outcome(f"relay-kill9/{durability}")
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        _in_scene(outcome, durability, lambda scene, number=number: _round(outcome, rng, scene, f"round {number}"))
        outcome.rounds += 1
    return outcome.finish()


def relay_steps(rounds: int, rng: random.Random, *, deadline: float = float("inf")) -> Outcome:
    """The relay dies at each of its points: while the store is at work, when the next load was copied meanwhile, between
    loading and taking, and between taking from one channel and from the next. ``at_point`` counts these deaths."""
    outcome = Outcome("relay-steps")
    for number in range(rounds):
        for name, plant in _POINTS:
            if time.monotonic() >= deadline:
                break
            count = rng.randint(1, 6)
            _in_scene(
                outcome, "interval",
                lambda scene, number=number, name=name, plant=plant, count=count:
                    _round(outcome, rng, scene, f"round {number}, {name}", lambda: plant(count)),
            )  # fmt: skip
        outcome.rounds += 1
    return outcome.finish()


def relay_jobs(jobs: int, rng: random.Random, *, deadline: float = float("inf")) -> Outcome:
    """Short producers, one message each and gone without a word. During the first half of them the relay dies as well; what
    the last one holds when the second half has gone by is what a new relay holds."""
    outcome = Outcome("relay-jobs")
    _in_scene(outcome, "interval", lambda scene: _jobs(outcome, rng, scene, jobs, deadline))
    outcome.rounds = jobs
    return outcome.finish()


def _jobs(outcome: Outcome, rng: random.Random, scene: _Scene, jobs: int, deadline: float) -> None:
    def working(report: Reporter) -> None:
        publisher = ignis.Ignis(scene.url).queue(MAIN, bytes, shards=_SHARDS, durability="interval").publisher()
        for number in range(jobs):
            if time.monotonic() >= deadline:
                return
            one = make_id(1, number)
            report.sending([one])
            pid = os.fork()
            if pid == 0:
                publisher.send(make_body(one))
                os.kill(os.getpid(), signal.SIGKILL)
            if os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL:
                report.acknowledged([one])

    ledger = Ledger(copies=True)
    relay, deaths = Child(relaying(scene), "relay"), 1
    worker = Child(working, "jobs")
    try:
        while worker.alive():
            follow([worker, relay], ledger, lambda: False, 0.5)
            if ledger.verdict().sent < jobs // 2 and rng.random() < 0.5:
                relay.kill()
                relay.join(ledger)
                relay.close()
                relay, deaths = Child(relaying(scene), "relay"), deaths + 1
        if worker.join(ledger, 60):
            outcome.fault(f"the jobs ended with {worker.status}: {worker.trouble()}")
        _until_gone(scene, relay, ledger, outcome, "jobs")
        held = _held_by(relay)
        relay.kill()
        relay.join(ledger)
        with Child(relaying(scene), "fresh relay") as fresh:
            follow([fresh], ledger, lambda: fresh.noted("opened") is not None, 30)
            new = _held_by(fresh)
        outcome.add(kills=deaths, descriptors=held[0], kilobytes=held[1], new_descriptors=new[0], new_kilobytes=new[1])
        # A relay that has stored something has the store's files open, and what it allocated once.
        if held[0] > new[0] + 16 or held[1] > new[1] + 16_384:
            outcome.fault(f"a relay holds {held} descriptors and KiB after {jobs} producers, a new one {new}")
        with Child(drainer(scene.place, ordered=False), "drainer") as child:
            status = child.join(ledger, 60)
            if status or child.noted("left") is not None:
                outcome.fault(f"drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
        verdict = ledger.verdict()
        outcome.take(verdict, "jobs")
        if verdict.duplicates > deaths * _MAX_BATCH:
            outcome.fault(f"{verdict.duplicates} copies, more than {deaths} deaths x {_MAX_BATCH} messages")
    finally:
        worker.close()
        relay.close()


def _held_by(child: Child) -> tuple[int, int]:
    """Descriptors, and KiB of memory of its own."""
    with open(f"/proc/{child.pid}/status", encoding="ascii") as lines:
        own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return len(os.listdir(f"/proc/{child.pid}/fd")), own


def relay_mutants(rng: random.Random) -> Outcome:
    """Planted faults in the relay that the checker must see."""
    outcome = Outcome("relay-mutants")
    for name, plant in (
        ("takes before it loads", take_before_loading),
        ("removes channels of the dead unread", remove_unread),
        ("stores everything three times", store_thrice),
    ):
        found = Outcome(name)
        for attempt in range(6):
            _in_scene(
                found, "interval",
                lambda scene, found=found, attempt=attempt, plant=plant:
                    _round(found, rng, scene, f"attempt {attempt}", plant),
            )  # fmt: skip
            if found.faults:
                break
        wanted = "copies" if plant is store_thrice else "lost"
        outcome.plant(name, any(wanted in one for one in found.faults))
        outcome.rounds += 1
    return outcome.finish()


# -- planted faults, in the relay's process


def die_when_loaded(count: int) -> None:
    """After the ``count``-th load, before anything of it is taken."""
    _patch("_acknowledge", lambda self, load, original: _countdown(count) or original(self, load))


def die_when_half_taken(count: int) -> None:
    """In the ``count``-th turn that took from more than one channel, after the first."""

    def half(self: Any, load: Any, original: Callable[..., None]) -> None:
        if len(load.held) > 1:
            inlet, held = next(iter(load.held.items()))
            inlet.intake.acknowledge(held)
            _countdown(count)
        original(self, load)

    _patch("_acknowledge", half)


def die_when_set_off(count: int) -> None:
    """When the store has just been given the ``count``-th load: it may be stored, or a part of it be written."""
    _patch("_set_off", lambda self, original: (original(self), _countdown(count)))


def die_when_gathered(count: int) -> None:
    """With a load at the store and the next one copied, the ``count``-th time that this is so."""

    def gather(self: Any, original: Callable[..., None]) -> None:
        original(self)
        if self._flight and self._next:
            _countdown(count)

    _patch("_gather", gather)


_POINTS = (
    ("set off", die_when_set_off),
    ("gathered", die_when_gathered),
    ("loaded", die_when_loaded),
    ("half taken", die_when_half_taken),
)


def take_before_loading() -> None:
    """A mutant: what it holds is taken, and stored afterwards if it lives that long."""
    turns = iter(range(1, 1 << 30))

    def early(self: Any, original: Callable[..., None]) -> None:
        for load in self._next.values():
            for inlet, held in load.held.items():
                inlet.intake.acknowledge(held)
            load.held = {}
        if next(turns) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self)

    _patch("_set_off", early)


def remove_unread() -> None:
    """A mutant: a producer that is gone has nothing in its channel, it believes. Slow, so that there is something."""
    Inlet.finished = lambda self: not self.intake.producer_alive()  # type: ignore[method-assign]

    def slowly(self: Any, load: Any, original: Callable[..., None]) -> None:
        original(self, load)
        time.sleep(0.03)

    _patch("_acknowledge", slowly)


def store_thrice() -> None:
    """A mutant: takes what it has stored every third time only, as if it died the other two."""
    turns = itertools.cycle((False, False, True))

    def forgetful(self: Any, load: Any, original: Callable[..., None]) -> None:
        if next(turns):
            original(self, load)
            return
        self._drop(load.target)
        for inlet in load.held:
            inlet.intake.let_go()

    _patch("_acknowledge", forgetful)


def _patch(name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(daemon.Relay, name)
    setattr(daemon.Relay, name, lambda self, *args: replacement(self, *args, original))


_left: dict[int, int] = {}


def _countdown(count: int) -> None:
    _left[count] = _left.get(count, count) - 1
    if _left[count] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


# -- one round


def _in_scene(outcome: Outcome, durability: str, work: Callable[[_Scene], None]) -> None:
    shared = Path(tempfile.mkdtemp(prefix="ignis-relay-", dir=shared_memory()))
    try:
        with tempfile.TemporaryDirectory(prefix="ignis-relay-store-") as directory:
            work(_Scene(Path(directory), shared, durability))
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _round(outcome: Outcome, rng: random.Random, scene: _Scene, where: str, plant: Plant | None = None) -> None:
    # A relay that dies between storing and taking leaves copies: as duplicates they are counted, and no fault.
    ledger = Ledger(copies=True)
    numbers = iter(range(1, 1_000))
    living = [Child(producing(scene, next(numbers)), "producer") for _ in range(_PRODUCERS)]
    deaths = 1  # that of the relay at the end
    relay = Child(relaying(scene), "relay", plant)
    dead: list[Child] = []
    try:
        if not follow([*living, relay], ledger, lambda: all(one.noted("opened") is not None for one in living), 30):
            raise RuntimeError("a producer did not start: " + " | ".join(one.trouble() for one in living))
        for _ in range(_KILLS_PER_ROUND):
            end = time.monotonic() + rng.uniform(0.02, 0.15)
            follow([*living, relay], ledger, lambda end=end: time.monotonic() >= end, 5)  # type: ignore[misc]
            if rng.random() < 0.5 or not relay.alive():
                outcome.add(at_point=int(not relay.alive()))
                relay.kill()
                relay.join(ledger)
                dead.append(relay)
                deaths += 1
                relay = Child(relaying(scene), "relay", plant)
            else:
                victim = living.pop(rng.randrange(len(living)))
                victim.kill()
                dead.append(victim)
                living.append(Child(producing(scene, next(numbers)), "producer"))
        for one in living:
            if not one.alive():
                outcome.fault(f"{where}: a producer ended by itself ({one.status}): {one.trouble()}")
        for one in [*living, relay]:
            one.kill()
        dead += [*living, relay]
        living = []
        for one in dead:
            one.join(ledger)
        outcome.add(kills=len(dead))
        _come_to_rest(outcome, scene, ledger, where)
        with Child(drainer(scene.place, ordered=False), "drainer") as child:
            status = child.join(ledger, 60)
            if status or child.noted("left") is not None:
                outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
                return
        verdict = ledger.verdict()
        outcome.take(verdict, where)
        if verdict.duplicates > deaths * _MAX_BATCH:
            outcome.fault(f"{where}: {verdict.duplicates} copies, more than {deaths} deaths x {_MAX_BATCH} messages")
    finally:
        for one in [*dead, *living, relay]:
            one.close()


def _come_to_rest(outcome: Outcome, scene: _Scene, ledger: Ledger, where: str) -> None:
    """The last relay, without a fault, until no channel is left."""
    with Child(relaying(scene), "last relay") as last:
        _until_gone(scene, last, ledger, outcome, where)
        if last.alive():
            os.kill(last.pid, signal.SIGTERM)
        if last.join(ledger, 60):
            outcome.fault(f"{where}: the last relay ended with {last.status}: {last.trouble()}")


def _until_gone(scene: _Scene, relay: Child, ledger: Ledger, outcome: Outcome, where: str) -> None:
    """Waits until the relay has emptied and removed every channel."""
    deadline = time.monotonic() + 60
    while scene.channels() and time.monotonic() < deadline and relay.alive():
        follow([relay], ledger, lambda: False, 0.05)
    if scene.channels():
        outcome.fault(f"{where}: channels are left over: {[one.name for one in scene.channels()]} {relay.trouble()}")
    if list((scene.shared / "aside").iterdir()):
        outcome.fault(f"{where}: channels were refused: {sorted(os.listdir(scene.shared / 'aside'))}")
