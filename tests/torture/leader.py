"""Three instances, one sweeps: the leader dies, is stopped past its session, is cut off; ZooKeeper itself dies.

A real ZooKeeper server, one embedded store, three processes that each run a sweeper and, beside it, make control writes of
their own as fast as they are let. Every accepted one is noted *by the store, in the transaction that checks its epoch*, so
that the record of the queue ``ledger`` holds the writes in the order in which they were accepted: epochs must only rise,
and each belong to one instance. A feeder claims messages that are abandoned at once, so that there is always something to
sweep; in the end every message must be in the sideline exactly once.

Each instance reaches ZooKeeper over a way of its own, which is cut without anybody being told: see `network`.

A process that is stopped while it holds the store's write lock stops the whole store, which has nothing to do with who
leads: the feeder shows it, and another moment is chosen.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ignis
from ignis.errors import StaleEpochError, StoreBusyError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import Message
from ignis.storage.base import KEEP_TTL, QueueRecord, Transfer
from tests.support.zookeeper import Server, missing
from tests.torture.faults import Mutant
from tests.torture.network import Cable, ProxyWay, Way, cables_possible
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["tests"]

FAULTS = ("killed", "stopped", "cut-off", "zookeeper")
SESSION_S = 2.0
ALLOWED_S = 2.0
"""Beyond the session timeout, until somebody else sweeps."""
_INSTANCES = 3
_WRITERS = 3
_QUEUE = "work"
_LEDGER = "ledger"
_BOUND_S = 60.0
_STEP_S = 0.1
_STUCK_STORE_S = 0.6
_OUTAGE_S = 4.0


def forget_epochs() -> None:
    """Mutant: the store takes what any leader writes."""
    from ignis.storage.embedded import keys, transfers

    for module in (keys, transfers):
        vars(module)["check_epoch"] = lambda current, fence: None


MUTANT = Mutant("no-epoch-check", forget_epochs, expects="accepted under epoch")


# -- the processes


def instance(url: str, name: str, address: str) -> Role:
    """A sweeper, and control writes one after the other, each under the fence that it looked up a moment before."""

    def role(report: Reporter) -> None:
        app = ignis.Ignis(
            url,
            # Whatever is claimed was claimed long ago.
            clock=lambda: time.time() + 100_000,
            sweeper={"interval": 0.1, "initial_delay": 0},
            leader={"zookeeper": address, "session_timeout": SESSION_S, "instance": name},
        )
        transfer = app.store.magazines.transfer

        def noted(
            source: str, target: str, items: Sequence[Transfer], ttl_s: float | None = KEEP_TTL, fence: Any = None
        ) -> int:
            moved = transfer(source, target, items, ttl_s, fence)
            if moved:
                report.note("swept", f"{fence.epoch} {time.monotonic()} {moved}")
            return moved

        app.store.magazines.transfer = noted  # type: ignore[method-assign]
        app.sweeper().start()
        for _ in range(_WRITERS):
            threading.Thread(target=write_on, args=(report, app, name), daemon=True).start()
        report.note("opened")
        threading.Event().wait()

    return role


def write_on(report: Reporter, app: ignis.Ignis, name: str) -> None:
    """Control writes, each under a fence that was good when the work for it began."""
    under = 0
    while True:
        fence = app.leader().fence
        time.sleep(random.uniform(0.02, 0.12))
        if fence is None:
            continue
        try:
            app.store.queues.update(_LEDGER, lambda record, fence=fence: book(record, fence.epoch, name), fence)
            if fence.epoch != under:
                under = fence.epoch
                report.note("acting", under)
        except StaleEpochError:
            report.note("refused", fence.epoch)
        except StoreBusyError:
            continue


def book(record: QueueRecord, epoch: int, name: str) -> None:
    """Appends to the runs of accepted writes: epoch, instance, how many in a row."""
    runs = record.extra.setdefault("runs", [])
    if runs and runs[-1][:2] == [epoch, name]:
        runs[-1][2] += 1
    else:
        runs.append([epoch, name, 1])


def feeder(url: str) -> Role:
    """Publishes and claims, and never finishes anything: it all is the sweeper's."""

    def role(report: Reporter) -> None:
        app = ignis.Ignis(url)
        queue = app.queue(_QUEUE, int, shards=2)
        number = 0
        while True:
            try:
                queue.publish_many(range(number, number + 3))
                queue.main.fire(3)
            except StoreBusyError:
                continue
            number += 3
            report.note("fed", f"{number} {time.monotonic()}")
            time.sleep(0.02)

    return role


def creator(url: str) -> Role:
    def role(report: Reporter) -> None:
        with ignis.Ignis(url) as app:
            app.queue(_QUEUE, int, shards=2).open()
            app.store.queues.put(QueueRecord(_LEDGER, shards=1))
            app.store.magazines.declare(_LEDGER, 1)
            app.store.magazines.declare(_LEDGER + "_SIDELINE", 1)

    return role


def checker(url: str) -> Role:
    """What the store holds in the end."""

    def role(report: Reporter) -> None:
        with ignis.Ignis(url) as app:
            ledger = app.store.queues.get(_LEDGER)
            assert ledger is not None
            for epoch, name, count in ledger.extra.get("runs", []):
                report.note("run", f"{epoch} {name} {count}")
            numbers = []
            for magazine in (_QUEUE, _QUEUE + SIDELINE_SUFFIX):
                # Also what is claimed: the last moments before the end left some so.
                for _, _, record in app.store.magazines.scan(magazine, limit=100_000_000):
                    assert record is not None
                    numbers.append(int(Message.from_bytes(record).body))
            report.note("held", f"{len(numbers)} {len(set(numbers))} {max(numbers, default=-1)}")

    return role


# -- one run


@dataclass
class Fleet:
    """The living, by name, and what each of them has said so far."""

    url: str
    server: Server
    plant: Callable[[], None] | None
    outcome: Outcome
    new_way: Callable[[], Way]
    instances: dict[str, Child] = field(default_factory=dict)
    ways: dict[str, Way] = field(default_factory=dict)
    feeder: Child | None = None
    made: list[Child] = field(default_factory=list)
    helpers: list[Child] = field(default_factory=list)
    _number: int = 0
    _sweeps: list[tuple[int, float, str]] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)

    def child(self, role: Role, name: str, plant: Callable[[], None] | None = None) -> Child:
        self.made.append(Child(role, name, plant))
        return self.made[-1]

    def helper(self, role: Role, name: str) -> Child:
        self.helpers.append(self.child(role, name))
        return self.helpers[-1]

    def wait(self, until: Callable[[], bool], what: str, timeout: float = _BOUND_S) -> None:
        living = [*self.instances.values(), *([self.feeder] if self.feeder else []), *self.helpers]
        if not follow(living, None, until, timeout):
            trouble = " | ".join(f"{one.name}: {one.trouble(600)}" for one in self.instances.values())
            raise TimeoutError(f"{what}: not within {timeout:g} s; {trouble}")
        dead = [one for one in living if not one.alive()]
        if dead:
            raise RuntimeError(f"{dead[0].name} ended by itself: {dead[0].trouble()}")

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end, "pause", seconds + 10)

    def add(self) -> None:
        name = f"i{self._number}"
        self._number += 1
        self.ways[name] = way = self.new_way()
        way.open(self.server.port, self.helper, self.wait)

        def prepare() -> None:
            way.enter()
            if self.plant is not None:
                self.plant()

        self.instances[name] = one = self.child(instance(self.url, name, f"zk://{way.address}"), name, prepare)
        self.wait(lambda: one.noted("opened") is not None, f"start of {name}")

    def sweeps(self) -> list[tuple[int, float, str]]:
        """(epoch, when, by whom) of all sweeps so far that moved something."""
        for name, child in self.instances.items():
            notes = child.notes
            for word, text in notes[self._read.get(name, 0) :]:
                if word == "swept":
                    epoch, at_s, _ = text.split()
                    self._sweeps.append((int(epoch), float(at_s), name))
            self._read[name] = len(notes)
        return self._sweeps

    def leader(self) -> tuple[int, str]:
        """Epoch and name of the one that swept last."""
        epoch, _, name = max(self.sweeps())
        return epoch, name

    def wait_for_writes_above(self, epoch: int) -> None:
        """Until somebody has made a control write under a higher epoch."""

        def made() -> bool:
            notes = [one for child in self.instances.values() for one in child.notes]
            return any(word == "acting" and int(text) > epoch for word, text in notes)

        self.wait(made, "control writes of the next leader")

    def fed(self) -> tuple[int, float]:
        """How many messages the feeder has claimed, and when the last of them."""
        assert self.feeder is not None
        for word, text in reversed(self.feeder.notes):
            if word == "fed":
                count, at_s = text.split()
                return int(count), float(at_s)
        return 0, 0.0

    def signal(self, child: Child, number: int) -> None:
        os.kill(child.pid, number)

    def freeze(self, child: Child) -> float | None:
        """Stops a process and returns when; None, and it goes on, when it holds the store's write lock at this moment."""
        at_s = time.monotonic()
        self.signal(child, signal.SIGSTOP)
        goes_on = at_s + _STEP_S
        self.wait(lambda: self.fed()[1] > goes_on or time.monotonic() > at_s + _STUCK_STORE_S, "feeder")
        if self.fed()[1] > goes_on:
            return at_s
        self.signal(child, signal.SIGCONT)
        self.outcome.add(held_lock=1)
        self.pause(random.uniform(0.05, 0.2))
        return None

    def close(self) -> None:
        for one in self.made:
            if one.status is None and one.alive():
                os.kill(one.pid, signal.SIGCONT)
            one.close()
        for way in self.ways.values():
            way.close()


def leader_rounds(
    rounds: int,
    rng: random.Random,
    *,
    faults: Sequence[str] = FAULTS,
    mutant: Mutant | None = None,
    outage_s: float = _OUTAGE_S,
    timed: bool = True,
    deadline: float = float("inf"),
) -> Outcome:
    """Each fault in turn, ``rounds`` of them, in one fleet.

    Args:
        timed: whether sweeping must be resumed within the session timeout and 2 s.
        outage_s: how long ZooKeeper is down when it is its turn.
    """
    outcome = Outcome("leader" + (f"/{mutant.name}" if mutant else ""))
    took_ms: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="ignis-leader-") as directory:
        cables = cables_possible()
        server = Server(host="" if cables else "127.0.0.1")
        plant = mutant.plant if mutant else None
        new_way = Cable if cables else ProxyWay
        fleet = Fleet(f"embedded://{Path(directory)}/store", server, plant, outcome, new_way)
        outcome.add(namespaces=int(cables))
        try:
            server.start()
            with Child(creator(fleet.url), "creator") as child:
                if child.join(None):
                    raise RuntimeError(f"the store was not created: {child.trouble()}")
            fleet.feeder = fleet.child(feeder(fleet.url), "feeder")
            for _ in range(_INSTANCES):
                fleet.add()
            for number in range(rounds):
                if time.monotonic() >= deadline:
                    break
                fleet.wait(lambda: bool(fleet.sweeps()), "first sweep")
                fault = faults[number % len(faults)]
                took_s = _one_round(fleet, fault, rng, outage_s)
                took_ms.setdefault(fault, []).append(took_s * 1000)
                if timed and fault != "zookeeper" and took_s > SESSION_S + ALLOWED_S:
                    outcome.fault(f"round {number}: {fault}: sweeping was resumed after {took_s:.2f} s")
                outcome.rounds += 1
            _judge(fleet)
        finally:
            fleet.close()
            server.remove()
    for fault, all_ms in took_ms.items():
        word = fault.replace("-", "_")
        outcome.add(**{f"{word}_median_ms": round(statistics.median(all_ms)), f"{word}_max_ms": round(max(all_ms))})
    return outcome.finish()


def _one_round(fleet: Fleet, fault: str, rng: random.Random, outage_s: float) -> float:
    """Returns how long it took until somebody else swept, from the fault on; for ZooKeeper's own from its return on."""
    fleet.pause(rng.uniform(0.05, 0.3))
    if fault == "stopped":
        return _stopped(fleet)
    epoch, name = fleet.leader()
    victim, way = fleet.instances[name], fleet.ways[name]
    if fault == "killed":
        at_s = time.monotonic()
        victim.kill()
        del fleet.instances[name]
        took_s = _resumed(fleet, epoch, at_s)
        fleet.ways.pop(name).close()
        fleet.add()
        return took_s
    if fault == "cut-off":
        at_s = time.monotonic()
        way.cut()
        took_s = _resumed(fleet, epoch, at_s)
        way.mend()
        fleet.pause(0.3)
        return took_s
    fleet.server.kill()
    fed, _ = fleet.fed()
    fleet.pause(SESSION_S)
    before = len(fleet.sweeps())
    fleet.pause(outage_s - SESSION_S)
    if len(fleet.sweeps()) != before:
        fleet.outcome.fault("somebody swept while ZooKeeper was down")
    if fleet.fed()[0] <= fed:
        fleet.outcome.fault("publishing and claiming did not go on while ZooKeeper was down")
    fleet.server.start()
    return _resumed(fleet, epoch, time.monotonic())


def _stopped(fleet: Fleet) -> float:
    for _ in range(100):
        epoch, name = fleet.leader()
        at_s = fleet.freeze(fleet.instances[name])
        if at_s is not None:
            took_s = _resumed(fleet, epoch, at_s)
            fleet.wait_for_writes_above(epoch)
            fleet.signal(fleet.instances[name], signal.SIGCONT)
            # It was about to write: what it holds in its hand must be refused.
            fleet.pause(0.3)
            return took_s
    raise TimeoutError("the leader held the store's write lock each time")


def _resumed(fleet: Fleet, epoch: int, since_s: float) -> float:
    def later() -> list[float]:
        return [at_s for found, at_s, _ in fleet.sweeps() if found > epoch]

    fleet.wait(lambda: bool(later()), "sweeping is resumed by another")
    return min(later()) - since_s


def _judge(fleet: Fleet) -> None:
    """All have to be dead before it is counted."""
    outcome = fleet.outcome
    refused = 0
    for one in fleet.made:
        if one.alive():
            os.kill(one.pid, signal.SIGCONT)
            one.kill()
    for one in fleet.made:
        if one.fileno() >= 0:
            one.join(None)
        refused += sum(word == "refused" for word, _ in one.notes)
    fed, _ = fleet.fed()
    with Child(checker(fleet.url), "checker") as child:
        if child.join(None, 60):
            raise RuntimeError(f"the store could not be checked: {child.trouble()}")
        runs = [text.split() for word, text in child.notes if word == "run"]
        held, different, highest = map(int, str(child.noted("held")).split())
    epochs = [int(epoch) for epoch, _, _ in runs]
    for (before, first, _), (after, second, count) in itertools.pairwise(runs):
        if int(after) <= int(before):
            outcome.fault(f"{count} write(s) of {second} accepted under epoch {after} after {before} of {first}")
    outcome.add(epochs=len(set(epochs)), writes=sum(int(count) for _, _, count in runs), refused=refused, messages=held)
    if held != different:
        outcome.fault(f"{held - different} message(s) twice")
    if different < fed:
        outcome.fault(f"{fed - different} lost of {fed}")
    if highest >= fed + 3:
        outcome.fault(f"message {highest} was never sent")


def tests(
    rounds: int, rng: random.Random, *, short: bool, planted: bool, deadline: float
) -> Iterator[Callable[[], Outcome]]:
    """The rounds; a minute without ZooKeeper; and the planted fault, which must be found."""
    why = missing()
    if why:
        yield lambda: Outcome("leader", skipped=why)
        return
    yield lambda: leader_rounds(rounds, rng, timed=not short, deadline=deadline)
    if not short:
        yield lambda: leader_rounds(1, rng, faults=("zookeeper",), outage_s=60.0, deadline=deadline)
    if planted:
        yield lambda: _planted(rng)


def _planted(rng: random.Random) -> Outcome:
    outcome = Outcome("mutants/leader")
    found = leader_rounds(3, rng, faults=("stopped",), mutant=MUTANT, timed=False)
    outcome.rounds = found.rounds
    outcome.plant(MUTANT.name, any(MUTANT.expects in one for one in found.faults))
    return outcome.finish()
