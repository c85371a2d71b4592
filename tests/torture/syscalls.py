"""Failing system calls: for every N, the N-th call of a kind made by a store's process fails with an error.

strace attaches to the forked child before it opens its store and injects the failure. Nothing that was acknowledged
may be missing when the store is opened again without injection, and nothing that was refused may be found. That a
second sync of the same file is not believed is for the engine's simulation to show: no kill takes away what the system
has in memory.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ignis.errors import IgnisError
from tests.torture import faults
from tests.torture.actors import MAIN, Place, drainer, identify, pack, store_url, try_close
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter, follow
from tests.torture.report import Outcome

__all__ = ["CALLS", "syscalls", "unavailable"]

CALLS = (
    ("fdatasync", "EIO"),
    ("fsync", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("ftruncate", "ENOSPC"),
    ("linkat", "EIO"),
    ("openat", "EMFILE"),
    ("fallocate", "ENOSPC"),
    ("mmap", "ENOMEM"),
)
_ATTACH_TIMEOUT_S = 15
_MOST_CALLS = 400


def unavailable() -> str | None:
    """Why calls cannot be made to fail here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with Child(lambda report: time.sleep(30), "probe") as child:
        attached = _attach(child, ["-e", "inject=fdatasync:error=EIO:when=1"], Path(os.devnull))
        _detach(attached)
        return None if attached is not None else "strace cannot attach to a process here"


def _traced(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as status:
            return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status)
    except OSError:
        return False


def _attach(child: Child, options: list[str], log: Path) -> subprocess.Popen[bytes] | None:
    command = ["strace", "-f", "-q", "-ttt", "-o", str(log), "-p", str(child.pid), *options]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _ATTACH_TIMEOUT_S
    while time.monotonic() < deadline and tracer.poll() is None and child.alive():
        if _traced(child.pid):
            return tracer
        time.sleep(0.002)
    _detach(tracer)
    return None


def _detach(tracer: subprocess.Popen[bytes] | None) -> None:
    if tracer is not None:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGTERM)
        try:
            tracer.wait(10)
        except subprocess.TimeoutExpired:
            tracer.kill()
            tracer.wait(10)


def _worker(place: Place, die: bool) -> Callable[[Reporter], None]:
    """Loads, fires and deletes a little; a careless caller that goes on after errors. ``die``: ends by SIGKILL."""

    def role(report: Reporter) -> None:
        while not _traced(os.getpid()):
            time.sleep(0.001)
        try:
            store = place.open()
        except (IgnisError, OSError) as exc:
            report.note("unopened", f"{type(exc).__name__} {exc}")
            return
        for number in range(12):
            many = [make_id(1, one) for one in range(number * 5, number * 5 + 5)]
            report.sending(many)
            try:
                store.magazines.load(MAIN, pack(many, place.shards, number), None)
                report.acknowledged(many)
            except IgnisError as exc:
                report.refused(many, exc)
            if number % 3 == 2:
                try:
                    for claim in store.magazines.fire(MAIN, 4, store.owner).claims:
                        known = identify(report, claim.records)
                        report.seen(known)
                        store.magazines.delete(MAIN, {claim.shard: list(claim.pointers)})
                        report.finished(known)
                except IgnisError as exc:
                    report.note("error", f"{type(exc).__name__} {exc}")
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        try_close(store)

    return role


def _plans(limit: int, rng: random.Random, persistent: bool) -> Iterator[str]:
    """``when=`` expressions: every call in turn, or ``limit`` of them when not all are wanted."""
    numbers = list(range(1, _MOST_CALLS))
    if limit:
        # The first one always; most kinds of call are rare, and places behind the last call hit nothing.
        numbers = [1, *sorted(rng.sample(range(2, 30), limit - 1))]
    for number in numbers:
        yield f"{number}+" if persistent else str(number)


def syscalls(
    call: str,
    error: str,
    rng: random.Random,
    *,
    limit: int = 0,
    persistent: bool = False,
    durability: str = "sync",
    mutant: faults.Mutant | None = None,
    deadline: float = float("inf"),
) -> Outcome:
    """Lets each ``call`` fail in turn until a run makes fewer calls than that.

    Args:
        call: the system call. error: errno's name.
        limit: only so many runs, at random places; 0 = all.
        persistent: the N-th and all later calls fail.
    """
    outcome = Outcome(f"syscalls/{call}:{error}" + ("+" if persistent else "") + (f"/{mutant.name}" if mutant else ""))
    injected = 0
    for when in _plans(limit, rng, persistent):
        if time.monotonic() >= deadline or (mutant is not None and outcome.faults):
            break
        with tempfile.TemporaryDirectory(prefix="ignis-syscalls-") as directory:
            hit = _one_run(outcome, Path(directory), call, error, when, durability, mutant)
        outcome.rounds += 1
        injected += hit
        if not hit and not limit:
            break
    outcome.add(injected=injected)
    if not injected and not outcome.faults:
        # Nothing failed, so nothing was tried: that must not read as a success.
        outcome.skipped = f"no {call} was reached in {outcome.rounds} run(s); nothing was injected"
    return outcome.finish()


def _one_run(
    outcome: Outcome, directory: Path, call: str, error: str, when: str, durability: str, mutant: faults.Mutant | None
) -> bool:
    place = Place(store_url(f"{directory}/store"), durability, shards=2)
    ledger = Ledger()
    log = directory / "calls"
    # Every other run ends without a clean close, which would flush what an acknowledgement should have flushed.
    restart = int(when.rstrip("+")) % 2 == 0
    with Child(_worker(place, restart), "worker", mutant.plant if mutant else None) as child:
        options = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
        tracer = _attach(child, options, log)
        if tracer is None:
            raise RuntimeError("strace did not attach")
        try:
            follow([child], ledger, lambda: False, 30)
            status = child.join(ledger, 10)
        finally:
            _detach(tracer)
        where = f"{call} {error} when={when}"
        if status not in ((0, -signal.SIGKILL) if restart else (0,)):
            outcome.fault(f"{where}: exit {status}: {child.trouble()}")
        outcome.add(refused=sum(child.refusals.values()), unopened=child.noted("unopened") is not None)
    with Child(drainer(place), "drainer") as child:
        status = child.join(ledger, 60)
        if status or child.noted("left") is not None:
            outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
    if ledger.corrupt:
        outcome.fault(f"{where}: {ledger.corrupt} corrupt")
    found = ledger.refused & ledger.seen.keys()
    if found:
        outcome.fault(f"{where}: {len(found)} refused and found all the same")
    outcome.take(ledger.verdict(), where)
    return "(INJECTED)" in log.read_text(errors="replace")
