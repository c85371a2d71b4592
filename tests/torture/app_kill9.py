"""kill -9 of the application's parts: publishers, consumers, single worker processes, sweeper, shovel."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import ignis
from ignis.errors import IgnisError, LockHeldError
from tests.torture.actors import MAIN, Place, drainer
from tests.torture.ledger import Ledger, make_body, make_id
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["app_kill9"]

_KILLS_PER_ROUND = 5
_MAX_UNACKED, _MAX_CHUNK = 256, 32
_DIES_WITH_A_CONSUMER = _MAX_UNACKED + 2 * 2 * _MAX_CHUNK
"""What a killed consumer may have handled and not acknowledged: ``max_unacked``, and of its two workers two chunks each."""


class _Scene:
    """A store directory and what the children are told about it."""

    def __init__(self, directory: Path, durability: str, pool: str) -> None:
        self.url = f"embedded://{directory}/store"
        self.durability = durability
        self.pool = pool
        self.log = str(directory / "handled")
        self.place = Place(self.url, durability, shards=3)

    def enter(self) -> None:
        """In a child: the environment that ``app_handlers`` reads at its import."""
        os.environ.update(
            IGNIS_TORTURE_URL=self.url,
            IGNIS_TORTURE_DURABILITY=self.durability,
            IGNIS_TORTURE_POOL=self.pool,
            IGNIS_TORTURE_LOG=self.log,
            IGNIS_TORTURE_HOLD=f"{_MAX_UNACKED},{_MAX_CHUNK}",
        )

    def queue(self) -> ignis.Queue[bytes]:
        app = ignis.Ignis(self.url)
        return app.queue(MAIN, bytes, shards=3, durability=self.durability, shovel_interval_s=0)


def direct(scene: _Scene, number: int, batch: int, pause_s: float = 0.001) -> Role:
    """``publish`` (batch 1) or ``publish_many``, until killed."""

    def role(report: Reporter) -> None:
        queue = scene.queue()
        queue.open()
        report.note("opened")
        sequence = 0
        while True:
            many = [make_id(number, one) for one in range(sequence, sequence + batch)]
            sequence += batch
            report.sending(many)
            if batch == 1:
                queue.publish(make_body(many[0]))
            else:
                queue.publish_many([make_body(one) for one in many])
            report.acknowledged(many)
            time.sleep(pause_s)

    return role


def buffered(scene: _Scene, number: int, pause_s: float = 0.001) -> Role:
    """A buffered publisher; a message counts as acknowledged once its receipt is done."""

    def role(report: Reporter) -> None:
        queue = scene.queue()
        waiting: deque[tuple[list[int], list[ignis.Receipt]]] = deque()
        with queue.publisher() as publisher:
            report.note("opened")
            sequence = 0
            while True:
                many = [make_id(number, one) for one in range(sequence, sequence + 10)]
                sequence += 10
                report.sending(many)
                waiting.append((many, [publisher.send(make_body(one)) for one in many]))
                while waiting and (all(one.done() for one in waiting[0][1]) or len(waiting) > 50):
                    ids, receipts = waiting.popleft()
                    for receipt in receipts:
                        receipt.result()
                    report.acknowledged(ids)
                time.sleep(pause_s)

    return role


def handling(scene: _Scene) -> Role:
    """An application with a handler; notes its worker processes as they come."""

    def role(report: Reporter) -> None:
        scene.enter()
        from tests.torture import app_handlers

        app_handlers.app.start()
        report.note("opened")
        known: set[int] = set()
        while True:
            consumer = app_handlers.queue.consumer
            for pid in consumer.worker_pids if consumer is not None else []:
                if pid not in known:
                    known.add(pid)
                    report.note("worker", pid)
            time.sleep(0.01)

    return role


def sweeping(scene: _Scene) -> Role:
    """A process that only sweeps, as often as it can."""

    def role(report: Reporter) -> None:
        app = scene.queue().app
        sweep = app.sweeper()
        report.note("opened")
        while True:
            try:
                sweep.run_once()
            except (LockHeldError, IgnisError) as exc:
                report.note("error", exc)
            time.sleep(0.02)

    return role


def shovelling(scene: _Scene) -> Role:
    """A process that only shovels."""

    def role(report: Reporter) -> None:
        queue = scene.queue()
        queue.open()
        report.note("opened")
        while True:
            queue.shovel.run_once()
            time.sleep(0.02)

    return role


def app_kill9(
    rounds: int,
    rng: random.Random,
    *,
    durability: str = "sync",
    pool: str = "thread",
    deadline: float = float("inf"),
) -> Outcome:
    """One part after the other dies and is replaced; then everything dies and the store is drained and judged."""
    outcome = Outcome(f"app-kill9/{durability}/{pool}")
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        with tempfile.TemporaryDirectory(prefix="ignis-app-") as directory:
            _round(outcome, rng, _Scene(Path(directory), durability, pool), f"round {number}")
        outcome.rounds += 1
    return outcome.finish()


def _round(outcome: Outcome, rng: random.Random, scene: _Scene, where: str) -> None:
    ledger = Ledger()
    numbers = iter(range(1, 1000))
    roles: dict[str, Callable[[], Role]] = {
        "publisher": lambda: direct(scene, next(numbers), 1),
        "publisher of many": lambda: direct(scene, next(numbers), 20),
        "buffered publisher": lambda: buffered(scene, next(numbers)),
        "consumer": lambda: handling(scene),
        "sweeper": lambda: sweeping(scene),
        "shovel": lambda: shovelling(scene),
    }
    open(scene.log, "wb").close()
    # Registers the queue before everybody else looks for it.
    with Child(lambda report: scene.queue().open(), "creator") as creator:
        if creator.join(ledger):
            raise RuntimeError(f"creator: {creator.trouble()}")
    living = {name: Child(make(), name) for name, make in roles.items()}
    dead: list[Child] = []
    deaths = 1
    try:
        _await_start(list(living.values()), ledger)
        for _ in range(_KILLS_PER_ROUND):
            end = time.monotonic() + rng.uniform(0.02, 0.15)
            follow(list(living.values()), ledger, lambda end=end: time.monotonic() >= end, 5)  # type: ignore[misc]
            victim = rng.choice([*living, "worker", "worker"] if scene.pool == "process" else list(living))
            if victim == "worker":
                deaths += _kill_worker(living["consumer"], rng)
                continue
            gone = living.pop(victim)
            if not gone.alive():
                outcome.fault(f"{where}: {victim} ended by itself ({gone.status}): {gone.trouble()}")
            gone.kill()
            dead.append(gone)
            deaths += victim == "consumer"
            living[victim] = Child(roles[victim](), victim)
        for one in living.values():
            if not one.alive():
                outcome.fault(f"{where}: {one.name} ended by itself ({one.status}): {one.trouble()}")
            one.kill()
        dead += living.values()
        for one in dead:
            one.join(ledger)
        _await_orphans(dead)
        dead[0].book_file(scene.log, ledger)
        outcome.add(kills=deaths + len(dead))
        with Child(drainer(scene.place, ordered=False), "drainer") as child:
            status = child.join(ledger, 60)
            if status or child.noted("left") is not None:
                outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
                return
        if ledger.corrupt:
            outcome.fault(f"{where}: {ledger.corrupt} corrupt")
        verdict = ledger.verdict()
        outcome.take(verdict, where)
        most = deaths * _DIES_WITH_A_CONSUMER
        if verdict.duplicates > most:
            outcome.fault(f"{where}: {verdict.duplicates} handled twice, at most {most} by {deaths} deaths")
    finally:
        for one in [*dead, *living.values()]:
            one.close()


def _await_start(children: list[Child], ledger: Ledger) -> None:
    started = follow(children, ledger, lambda: all(one.noted("opened") is not None for one in children), 30)
    if not started or any(one.noted("opened") is None for one in children):
        raise RuntimeError("a child did not start: " + " | ".join(f"{one.name}: {one.trouble()}" for one in children))


def _worker_pids(child: Child) -> list[int]:
    return [int(text) for word, text in child.notes if word == "worker"]


def _kill_worker(consumer: Child, rng: random.Random) -> int:
    for pid in rng.sample(_worker_pids(consumer), len(_worker_pids(consumer))):
        try:
            # The number may belong to somebody else by now; a process of ours carries our variable.
            if b"IGNIS_TORTURE_LOG=" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


def _await_orphans(children: list[Child]) -> None:
    """Worker processes end by themselves soon after their parent; until then they may still be handling."""
    deadline = time.monotonic() + 15
    for pid in [pid for child in children for pid in _worker_pids(child)]:
        while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)
        if os.path.exists(f"/proc/{pid}"):
            raise RuntimeError(f"worker process {pid} outlived its parent by 15 s")
