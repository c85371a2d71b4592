"""A whole fleet under fire: supervised worker processes, publishers, sweepers and shovels die at random for minutes, and
an autoscaled one follows a burst up and down.

The workers are those of the real command line, ``ignis worker --processes``; the others are forked children.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import ignis
import ignis.app_store as application
from tests.torture import actors, faults
from tests.torture.actors import MAIN, Place, drainer
from tests.torture.app_kill9 import buffered, direct, shovelling, sweeping
from tests.torture.ledger import Ledger, make_body, make_id
from tests.torture.process import Child, Reporter, Role, follow, process_name
from tests.torture.report import Outcome

__all__ = ["autoscaling", "chaos"]

SHARDS = 3
_START_S = 60.0
_DRAIN_S = 180.0
_STILL_S = 45.0
"""Longer than a lease of the sweeper's leadership, after which another one may sweep."""
_STILL_PLANTED_S = 3.0
"""What a planted fault holds back does not come any more."""
_PROCESSES = 3
_MAX_UNACKED, _MAX_CHUNK = 16, 2
_DIES_WITH_A_WORKER = _MAX_UNACKED + 2 * 2 * _MAX_CHUNK
"""What a killed process may have handled and not acknowledged: no more than ``max_unacked`` when it claimed last, and what
its two workers then had in hand, two chunks each."""

_CONFIG = """
[supervisor]
restart_wait_s = 0.05
restart_wait_max_s = 0.5
[autoscaler]
interval_s = 0.2
messages_per_worker = 2000
max_age_s = 0
cool_down_s = 2
"""


class _Scene:
    """A store, and a directory for what is beside it."""

    def __init__(self, directory: Path, server: str, **environment: str) -> None:
        self.directory = directory
        self.url = f"aerospike://{server}?client_id=tfleet" if server else f"embedded://{directory}/store"
        self.transactions = not server
        self.place = Place(self.url, shards=SHARDS)
        self.log = str(directory / "handled")
        (directory / "ignis.toml").write_text(_CONFIG)
        open(self.log, "wb").close()
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "IGNIS_TORTURE_URL": self.url,
            "IGNIS_TORTURE_LOG": self.log,
            **environment,
        }

    def queue(self) -> ignis.Queue[bytes]:
        """For the roles, in a child."""
        if not self.transactions:
            faults.note_moves(self.log)
            application.open_store = actors.open_store  # type: ignore[attr-defined]
        return ignis.Ignis(self.url).queue(MAIN, bytes, shards=SHARDS, shovel_interval_s=0)

    def prepare(self, ledger: Ledger) -> None:
        """Registers the queue before everybody else looks for it; on a server, in an empty place."""

        def role(report: Reporter) -> None:
            if not self.transactions:
                from tests.support import aerospike as aerospike_support

                aerospike_support.forget(self.url.removeprefix("aerospike://").partition("?")[0], ["tfleet"])
            self.queue().open()

        with Child(role, "creator") as creator:
            if creator.join(ledger, _START_S):
                raise RuntimeError(f"creator: {creator.trouble()}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


class _Workers:
    """``ignis worker --processes`` as a process."""

    def __init__(self, scene: _Scene, *arguments: str) -> None:
        self._errors = (scene.directory / "workers.log").open("ab")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "ignis", "worker", "tests.torture.fleet_handlers", "--json",
                "--config", str(scene.directory / "ignis.toml"), "--health-bind", "0", *arguments,
            ],
            env=scene.environment, stdout=subprocess.PIPE, stderr=self._errors, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_die_with_parent,  # noqa: PLW1509 - the parent has one thread
        )  # fmt: skip
        self.port = 0

    def ready(self, wait_s: float = 0.0) -> bool:
        """Whether its processes consume."""
        if self.port:
            return True
        assert self.process.stdout is not None
        if not wait([self.process.stdout], wait_s):
            return False
        line = self.process.stdout.readline()
        if not line:
            return False
        self.port = int(json.loads(line)["health"].rpartition(":")[2])
        return True

    def get(self, path: str) -> dict[str, Any]:
        """Empty when nobody answers: it may just be dying."""
        if not self.ready():
            return {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            found = json.loads(connection.getresponse().read())
            return found if isinstance(found, dict) else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()

    def pids(self, *states: str) -> list[int]:
        return [one["pid"] for one in self.get("/healthz").get("processes", []) if one["state"] in states]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """The exit code of a graceful stop."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_START_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


def chaos(seconds: float, rng: random.Random, *, server: str = "", plant: str = "", pause_s: float = 0.02) -> Outcome:
    """Kills one part after the other for so long, lets the rest work everything off, and counts.

    Args:
        server: ``host:port/namespace`` of an Aerospike server; empty = an embedded store.
        plant: the name of a fault for the workers, see ``tests.torture.faults``.
        pause_s: between two batches of a publisher.
    """
    outcome = Outcome(f"fleet/{'aerospike' if server else 'embedded'}{'/' + plant if plant else ''}")
    with tempfile.TemporaryDirectory(prefix="ignis-fleet-") as name:
        scene = _Scene(
            Path(name), server, IGNIS_TORTURE_FAILING="0.03", IGNIS_TORTURE_PLANT=plant, IGNIS_TORTURE_PAUSE_S="0.008",
            IGNIS_TORTURE_HOLD=f"{_MAX_UNACKED},{_MAX_CHUNK}", IGNIS_TORTURE_MOVES="1" if server else "",
        )  # fmt: skip
        still_s = _STILL_PLANTED_S if plant else _STILL_S if server else _DRAIN_S
        _Chaos(scene, rng, outcome, pause_s, still_s).run(seconds)
    outcome.rounds = 1
    return outcome.finish()


class _Chaos:
    def __init__(self, scene: _Scene, rng: random.Random, outcome: Outcome, pause_s: float, still_s: float) -> None:
        numbers = iter(range(1, 60_000))
        self.scene, self.rng, self.outcome, self.still_s = scene, rng, outcome, still_s
        self.ledger = Ledger(copies=not scene.transactions)
        self.publishers: dict[str, Callable[[], Role]] = {
            "publisher": lambda: direct(scene, next(numbers), 1, pause_s),  # type: ignore[arg-type]
            "publisher of many": lambda: direct(scene, next(numbers), 20, 5 * pause_s),  # type: ignore[arg-type]
            "buffered publisher": lambda: buffered(scene, next(numbers), 3 * pause_s),  # type: ignore[arg-type]
        }
        self.movers: dict[str, Callable[[], Role]] = {
            "sweeper": lambda: sweeping(scene),  # type: ignore[arg-type]
            "shovel": lambda: shovelling(scene),  # type: ignore[arg-type]
        }
        self.living: dict[str, Child] = {}
        self.dead: list[Child] = []
        self.kills: Counter[str] = Counter()
        self.killed_workers: set[str] = set()

    def run(self, seconds: float) -> None:
        self.scene.prepare(self.ledger)
        self.workers = _Workers(self.scene, "--processes", str(_PROCESSES))
        try:
            if not self.workers.ready(_START_S):
                raise RuntimeError(f"workers do not start: {_tail(self.scene)}")
            for name, make in {**self.publishers, **self.movers}.items():
                self.living[name] = Child(make(), name)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._listen(self.rng.uniform(0.1, 0.8))
                self._kill_somebody()
            self._finish()
        finally:
            for one in [*self.living.values(), *self.dead]:
                one.close()
            self.workers.close()

    def _listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        follow(list(self.living.values()), self.ledger, lambda: time.monotonic() >= end, seconds + 5)

    def _kill_somebody(self) -> None:
        parts = [*self.living, *["worker"] * 6, *(["supervisor"] if self.rng.random() < 0.2 else [])]
        victim = self.rng.choice(parts)
        if victim == "worker":
            pids = self.workers.pids("running")
            if pids:
                pid = self.rng.choice(pids)
                self.killed_workers.add(process_name(pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills["worker"] += 1
            return
        self.kills[victim] += 1
        if victim == "supervisor":
            # Its processes notice and drain by themselves, beside the new ones.
            self.workers.kill()
            self.workers.close()
            self.workers = _Workers(self.scene, "--processes", str(_PROCESSES))
            if not self.workers.ready(_START_S):
                raise RuntimeError(f"workers do not start again: {_tail(self.scene)}")
            return
        gone = self.living.pop(victim)
        if not gone.alive():
            self.outcome.fault(f"{victim} ended by itself ({gone.status}): {gone.trouble()}")
        gone.kill()
        gone.join(self.ledger)
        self.dead.append(gone)
        make = {**self.publishers, **self.movers}[victim]
        self.living[victim] = Child(make(), victim)

    def _finish(self) -> None:
        """No more publishing and no more killing: everything is worked off, then what the store holds is looked at."""
        for name in self.publishers:
            gone = self.living.pop(name)
            gone.kill()
            gone.join(self.ledger)
            self.dead.append(gone)
        drained = self._wait_drained()
        for one in self.living.values():
            one.kill()
            one.join(self.ledger)
        self.dead += self.living.values()
        self.living = {}
        code = self.workers.stop()
        if code:
            self.outcome.fault(f"the supervisor ended with {code}: {_tail(self.scene)}")
        self.dead[0].book_file(self.scene.log, self.ledger)
        handled = len(self.ledger.seen)
        with Child(drainer(self.scene.place, ordered=False), "drainer") as child:
            if child.join(self.ledger, 120) or child.noted("left") is not None:
                self.outcome.fault(f"drain: {child.noted('left') or ''} {child.trouble()}")
                return
        left = len(self.ledger.seen) - handled
        if not drained and self.scene.transactions:
            self.outcome.fault(f"not worked off in {_DRAIN_S:g} s: {left} were left")
        elif not self.scene.transactions:
            # Claimed by somebody who died before he could write his name on it: only age tells, see docs/fleet.md.
            self.outcome.add(left_to_age=left)
        self.outcome.take(self.ledger.verdict(), "fleet")
        self._judge_duplicates()
        self.outcome.add(**{f"killed_{name.replace(' ', '_')}": n for name, n in sorted(self.kills.items())})

    def _judge_duplicates(self) -> None:
        """Each of them must have been handled by a process that was killed, and by no process more than it may hold; on a
        store without transactions, or be one of those that a move which was cut in two left in both places."""
        repeated, unexplained = self.ledger.doubles(self.killed_workers)
        worst = max(repeated.values(), default=0)
        copies = 0 if self.scene.transactions else self._cut_in_two() + self.kills["supervisor"] * _DIES_WITH_A_WORKER
        self.outcome.add(
            bound=len(self.killed_workers) * _DIES_WITH_A_WORKER + copies, most_of_one_death=worst,
            bound_of_one_death=_DIES_WITH_A_WORKER, unexplained=unexplained, bound_of_unexplained=copies,
        )  # fmt: skip
        if worst > _DIES_WITH_A_WORKER:
            self.outcome.fault(f"{worst} doubled by one death are over the bound of {_DIES_WITH_A_WORKER}")
        if unexplained > copies:
            self.outcome.fault(f"{unexplained} doubled that no death explains are over the bound of {copies}")

    def _cut_in_two(self) -> int:
        """Messages of the moves that were begun and not finished."""
        under_way: Counter[str] = Counter()
        for line in Path(self.scene.log).read_text().splitlines():
            if line.startswith("m "):
                _, name, count = line.split(" ")
                under_way[name] += int(count)
        return sum(under_way.values())

    def _wait_drained(self) -> bool:
        """Until nothing is pending, in flight or in the sideline, by the figures of the supervisor's endpoint; or until
        nothing has moved for so long."""
        wanted = ("ignis_queue_pending", "ignis_queue_sideline", "ignis_queue_in_flight")
        now = time.monotonic()
        deadline, still_since, before = now + _DRAIN_S, now, dict[str, float]()
        while time.monotonic() < deadline:
            self._listen(0.5)
            found = _metrics(self.workers.port, wanted)
            if len(found) == len(wanted) and not any(found.values()):
                return True
            if found != before:
                before, still_since = found, time.monotonic()
            elif time.monotonic() > still_since + self.still_s:
                return False
        return False


def _metrics(port: int, names: tuple[str, ...]) -> dict[str, float]:
    """The figures of the one queue."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    label = f'{{queue="{MAIN}"}} '
    return {
        name: float(line.partition(label)[2]) for line in lines for name in names if line.startswith(f"{name}{label}")
    }


def _tail(scene: _Scene) -> str:
    path = scene.directory / "workers.log"
    return path.read_text(errors="replace")[-3_000:] if path.exists() else ""


# -- up and down


def autoscaling(messages: int, *, most: int = 4, server: str = "") -> Outcome:
    """A burst scales one process to ``most`` and back to one; meanwhile a trickle goes on, so that messages come just when
    processes are on their way out. Nothing may be lost, and nothing handled twice.

    Args:
        messages: of the burst.
        most: processes.
        server: as for `chaos`.
    """
    outcome = Outcome(f"autoscaling/{'aerospike' if server else 'embedded'}")
    with tempfile.TemporaryDirectory(prefix="ignis-scale-") as name:
        scene = _Scene(Path(name), server, IGNIS_TORTURE_PAUSE_S="0.0005")
        ledger = Ledger()
        scene.prepare(ledger)
        config = scene.directory / "ignis.toml"
        text = config.read_text().replace("2000", str(max(1, messages // 50)))
        # Longer than a process takes to start on a busy machine, or it is called off before it has consumed anything.
        config.write_text(text.replace("cool_down_s = 2", "cool_down_s = 10"))
        workers = _Workers(scene, "--processes", "1", "--autoscale", str(most))
        children: list[Child] = []
        try:
            if not workers.ready(_START_S):
                raise RuntimeError(f"workers do not start: {_tail(scene)}")
            children.append(Child(_burst(scene, messages), "burst"))
            if children[0].join(ledger, 120):
                raise RuntimeError(f"burst: {children[0].trouble()}")
            children.append(Child(direct(scene, 2, 1, 0.01), "trickle"))  # type: ignore[arg-type]
            _follow_up_and_down(workers, children[1], ledger, outcome, most, messages)
            children[1].kill()
            children[1].join(ledger)
            _settle(workers, outcome)
            code = workers.stop()
            if code:
                outcome.fault(f"the supervisor ended with {code}: {_tail(scene)}")
            children[0].book_file(scene.log, ledger)
            with Child(drainer(scene.place, ordered=False), "drainer") as child:
                if child.join(ledger, 120) or child.noted("left") is not None:
                    outcome.fault(f"drain: {child.noted('left') or ''} {child.trouble()}")
            verdict = ledger.verdict()
            outcome.take(verdict, "autoscaling")
            if verdict.duplicates:
                outcome.fault(f"{verdict.duplicates} handled twice")
        finally:
            for one in children:
                one.close()
            workers.close()
    outcome.rounds = 1
    return outcome.finish()


def _burst(scene: _Scene, messages: int) -> Role:
    def role(report: Reporter) -> None:
        queue = scene.queue()
        for start in range(0, messages, 5_000):
            many = [make_id(1, one) for one in range(start, min(messages, start + 5_000))]
            report.sending(many)
            queue.publish_many([make_body(one, 16) for one in many])
            report.acknowledged(many)

    return role


def _follow_up_and_down(
    workers: _Workers, trickle: Child, ledger: Ledger, outcome: Outcome, most: int, messages: int
) -> None:
    """Until it was at ``most`` and is at one again."""
    seen: list[int] = []
    locked = 0
    began = time.monotonic()
    deadline = began + 60 + messages / 200
    while time.monotonic() < deadline:
        follow([trickle], ledger, lambda: False, 0.1)
        health = workers.get("/healthz")
        states = Counter(one["state"] for one in health.get("processes", []))
        if health and (not seen or seen[-1] != states["running"]):
            seen.append(states["running"])
        locked = max(locked, states["locked"])
        if most in seen and states["running"] == 1 == sum(states.values()):
            outcome.add(peak=max(seen), locked_at_once=locked, up_and_down_s=int(time.monotonic() - began))
            return
    outcome.fault(f"went through {seen} processes and not to {most} and back to 1")


def _settle(workers: _Workers, outcome: Outcome) -> None:
    wanted = ("ignis_queue_pending", "ignis_queue_in_flight")
    deadline = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline:
        found = _metrics(workers.port, wanted)
        if len(found) == len(wanted) and not any(found.values()):
            break
        time.sleep(0.2)
    health = workers.get("/healthz")
    outcome.add(deaths=health.get("deaths", -1), restarts=health.get("restarts", -1))
    if health.get("deaths") or health.get("recovered"):
        outcome.fault(f"a process died or left something: {health}")
