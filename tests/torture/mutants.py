"""Every planted fault against the test that has to find it, and how many were found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.torture import faults, fleet, kill9, powercut, syscalls
from tests.torture.faults import Mutant
from tests.torture.report import Outcome

__all__ = ["fleet_mutants", "tests"]

Rng = Callable[[str], random.Random]


def _nothing() -> None:
    pass


POWER_CUT = (
    # Deletes are promised as loads are: what shows first is chance.
    Mutant("durability-none", _nothing, "none", judged="sync", expects="lost|resurrected"),
    Mutant("interval-as-sync", _nothing, "interval", judged="sync", expects="lost|resurrected"),
    Mutant(
        "interval-never-flushed",
        faults.write_little,
        "interval",
        {"sync_interval_ms": 3_600_000},
        expects="lost|resurrected",
    ),
    Mutant("log-unflushed", faults.skip_flushes, expects="lost|resurrected"),
    Mutant("early-acknowledgement", faults.acknowledge_early, expects="lost|resurrected"),
    Mutant("late-delete", faults.postpone_deletes, expects="resurrected"),
)
KILL = (
    Mutant("early-acknowledgement", faults.acknowledge_early, expects="lost|resurrected"),
    Mutant("late-delete", faults.postpone_deletes, expects="resurrected"),
    Mutant("delete-on-fire", faults.delete_on_fire),
)
CRASH_POINTS = (Mutant("delete-before-load", faults.delete_before_load),)
FLEET = (
    ("delete_on_fire", "lost"),
    ("reload_some", "doubled that no death explains"),
    ("postpone_many_deletes", "doubled by one death"),
)
SYSTEM_CALLS = (Mutant("refusal-forgotten", faults.keep_refused, expects="refused and found"),)


def _collect(name: str, runs: Iterator[tuple[str, Outcome, str]]) -> Outcome:
    """One outcome for several planted runs: each must have found the kind of fault that was planted."""
    outcome = Outcome(name)
    for label, run, expects in runs:
        if run.skipped:
            outcome.skipped = run.skipped
            return outcome
        outcome.rounds += run.rounds
        found = [any(f" {word}" in one for word in expects.split("|")) for one in run.faults]
        outcome.plant(label, any(found))
        outcome.add(other_faults=found.count(False))
    return outcome.finish()


def fleet_mutants(rng: Rng) -> Outcome:
    """Workers of a fleet that delete what they claim, that handle twice, that acknowledge late."""
    return _collect(
        "mutants/fleet",
        ((name, fleet.chaos(5, rng(f"fleet/{name}"), plant=name), expects) for name, expects in FLEET),
    )


def tests(rng: Rng, short: bool) -> Iterator[Callable[[], Outcome]]:
    """One test per part of the programme. ``short``: fewer rounds where each of them counts; a planted fault ends its test
    when it is found, so those have rounds enough for an unlucky run on a loaded machine."""
    patience = 80
    yield lambda: _collect(
        "mutants/powercut",
        ((one.name, powercut.powercut(patience, rng(one.name), mutant=one), one.expects) for one in POWER_CUT),
    )
    yield lambda: _collect(
        "mutants/kill9", ((one.name, kill9.kill9(patience, rng(one.name), mutant=one), one.expects) for one in KILL)
    )
    yield lambda: _collect(
        "mutants/crashpoints", ((one.name, kill9.crash_points(mutant=one), one.expects) for one in CRASH_POINTS)
    )
    if not short:
        yield lambda: fleet_mutants(rng)
    if syscalls.unavailable() is None:
        yield lambda: _collect(
            "mutants/syscalls",
            (
                (
                    f"{one.name}-{call}",
                    syscalls.syscalls(call, "EIO", rng(one.name), mutant=one, persistent=True),
                    one.expects,
                )
                for one in SYSTEM_CALLS
                for call in ("fdatasync",)
            ),
        )
