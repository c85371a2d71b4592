"""``python -m tests.torture``: one line of figures per test, exit code 1 on any loss or missed mutant."""

from __future__ import annotations

import functools
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from tests.support import spark as spark_support
from tests.torture import (
    app_kill9,
    broker,
    broker_wire,
    damage,
    diskerrors,
    diskfull,
    fleet,
    kill9,
    later,
    leader,
    mutants,
    powercut,
    relay,
    schedules,
    syscalls,
)
from tests.torture.report import Outcome

Tests = Iterator[Callable[[], Outcome]]


class Run:
    """The options of one run, and what came out of it."""

    def __init__(self, rounds: int, seed: int | None, time_limit: float) -> None:
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self.rounds = rounds
        self.deadline = time.monotonic() + time_limit if time_limit else float("inf")
        self.bad = 0

    def rng(self, name: str) -> random.Random:
        """Of its own for each test, so that one test alone repeats what it did among others."""
        return random.Random(f"{self.seed}/{name}")

    def of(self, usual: int) -> int:
        """The rounds asked for, or a test's usual number."""
        return self.rounds or usual

    def carry_out(self, tests: Tests) -> None:
        for test in tests:
            try:
                outcome = test()
            except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as exc:
                click.echo(f"BROKEN, no verdict: {type(exc).__name__}: {str(exc)[-1500:]}")
                self.bad += 1
                continue
            click.echo(outcome.line())
            for one in outcome.faults[:20] if not outcome.ok or not outcome.planted else []:
                click.echo(f"  {one}")
            for name in sorted(set(outcome.planted) - set(outcome.caught)):
                click.echo(f"  mutant not caught: {name}")
            self.bad += not outcome.ok
        if self.bad:
            click.echo(f"{self.bad} test(s) failed; repeat with --seed {self.seed}", err=True)
            sys.exit(1)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every subcommand has."""
    for option in (
        click.option(
            "--time-limit", type=float, default=0, help="Seconds; no further round begins after that. 0 = none."
        ),
        click.option("--seed", type=int, default=None, help="Repeats the choices of an earlier run."),
        click.option("--rounds", type=int, default=0, help="Rounds per test; 0 = the test's own number."),
    ):
        command = option(command)
    return command


def mutants_option(command: Callable[..., None]) -> Callable[..., None]:
    """For a subcommand whose last test plants faults, which the tests before it must catch."""
    return click.option(
        "--mutants/--no-mutants", "planted", default=True, help="Whether the planted faults are tried as well."
    )(command)


def powercut_tests(run: Run, kinds: tuple[str, ...], durabilities: tuple[str, ...]) -> Tests:
    for kind in kinds:
        for durability in durabilities:
            yield lambda kind=kind, durability=durability: powercut.powercut(  # type: ignore[misc]
                run.of(200),
                run.rng(f"powercut/{kind}/{durability}"),
                kind=kind,
                durability=durability,
                deadline=run.deadline,
            )


def snapshot_tests(run: Run, kinds: tuple[str, ...], usual: int) -> Tests:
    for kind in kinds:
        yield lambda kind=kind: powercut.powercut(  # type: ignore[misc]
            run.of(usual), run.rng(f"snapshot/{kind}"), kind=kind, how="snapshot", deadline=run.deadline
        )


def turn_tests(run: Run, kinds: tuple[str, ...], usual: int) -> Tests:
    for kind in kinds:
        yield lambda kind=kind: powercut.two_writers_take_turns(  # type: ignore[misc]
            run.of(usual), kind=kind, deadline=run.deadline
        )


def kill9_tests(run: Run, pairs: tuple[tuple[str, str], ...]) -> Tests:
    for durability, sideline in pairs:
        yield lambda durability=durability, sideline=sideline: kill9.kill9(  # type: ignore[misc]
            run.of(100), run.rng(f"kill9/{durability}/{sideline}"), durability=durability, sideline_durability=sideline,
            deadline=run.deadline,
        )  # fmt: skip


def container_tests(run: Run, pairs: tuple[tuple[str, str], ...], usual: int) -> Tests:
    for durability, sideline in pairs:
        yield lambda durability=durability, sideline=sideline: kill9.kill9(  # type: ignore[misc]
            run.of(usual), run.rng(f"contained/{durability}/{sideline}"), durability=durability,
            sideline_durability=sideline, contained=True, deadline=run.deadline,
        )  # fmt: skip


def app_tests(run: Run, usual: int, pools: tuple[str, ...], most: int = 0) -> Tests:
    for pool in pools:
        yield lambda pool=pool: app_kill9.app_kill9(  # type: ignore[misc]
            min(run.of(usual), most or run.of(usual)), run.rng(f"app/{pool}"), pool=pool, deadline=run.deadline,
        )  # fmt: skip


def race_tests(run: Run, usual: int) -> Tests:
    for durability in ("sync", "interval", "none"):
        yield lambda durability=durability: kill9.open_race(  # type: ignore[misc]
            run.of(usual), durability=durability, deadline=run.deadline
        )


def crash_tests(every: int, pairs: tuple[tuple[str, str], ...]) -> Tests:
    for durability, sideline in pairs:
        yield lambda durability=durability, sideline=sideline: kill9.crash_points(  # type: ignore[misc]
            durability=durability, sideline_durability=sideline, every=every
        )


def syscall_tests(run: Run, limit: int, persistent: tuple[bool, ...]) -> Tests:
    for call, error in syscalls.CALLS:
        for lasting in persistent:
            yield lambda call=call, error=error, lasting=lasting: syscalls.syscalls(  # type: ignore[misc]
                call, error, run.rng(f"syscalls/{call}/{error}"), limit=limit, persistent=lasting, deadline=run.deadline
            )


def full_tests(run: Run, kinds: tuple[str, ...], durabilities: tuple[str, ...]) -> Tests:
    for durability in durabilities:
        for kind in kinds:
            yield lambda kind=kind, durability=durability: diskfull.diskfull(  # type: ignore[misc]
                run.of(5), run.rng(f"diskfull/{kind}"), kind=kind, durability=durability, deadline=run.deadline
            )
        yield lambda durability=durability: diskfull.mapfull(  # type: ignore[misc]
            run.of(5), run.rng("mapfull"), durability=durability, deadline=run.deadline
        )


def fleet_tests(run: Run, short: bool, seconds: float, planted: bool) -> Tests:
    """On an embedded store, and on the Aerospike server that ``IGNIS_TEST_AEROSPIKE`` names."""
    named = os.environ.get("IGNIS_TEST_AEROSPIKE", "")
    for server in ("", named) if named else ("",):
        for _ in range(run.of(1)):
            yield lambda server=server: fleet.chaos(seconds, run.rng("fleet"), server=server)  # type: ignore[misc]
        yield lambda server=server: fleet.autoscaling(  # type: ignore[misc]
            4_000 if short else 100_000, most=2 if short else 4, server=server
        )
    if planted:
        yield lambda: mutants.fleet_mutants(run.rng)
    if not named:
        yield lambda: Outcome("fleet/aerospike", skipped="IGNIS_TEST_AEROSPIKE names no server")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
def main() -> None:
    pass


@main.command("powercut", help="Cut the power under writers and consumers. Needs root and loop devices.")
@options
@click.option("--short", is_flag=True, help="A few rounds on XFS.")
def powercut_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    kinds = ("xfs",) if short else ("xfs", "ext4")
    run.carry_out(
        itertools.chain(
            turn_tests(run, kinds, 50),
            powercut_tests(run, kinds, ("sync", "interval")),
            snapshot_tests(run, kinds, 8 if short else 100),
        )
    )


@main.command("kill9", help="kill -9 of every actor, at random and at every commit.")
@options
@click.option("--short", is_flag=True, help="A few crash points, one pair of durability.")
def kill9_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    pairs = (("sync", ""), ("sync", "interval"))
    mixed = (("sync", "interval"),)
    run.carry_out(
        itertools.chain(
            kill9_tests(run, mixed if short else (*pairs, ("interval", ""), ("interval", "none"))),
            container_tests(run, mixed if short else pairs, 3 if short else 50),
            race_tests(run, 50),
            app_tests(run, 100, ("thread", "process", "async"), most=2 if short else 0),
            crash_tests(25 if short else 1, mixed if short else pairs),
        )
    )


@main.command("syscalls", help="Every system call of a kind fails in turn. Needs strace.")
@options
@click.option("--short", is_flag=True, help="A few calls of each kind.")
def syscalls_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    reason = syscalls.unavailable()
    if reason:
        run.carry_out(iter([lambda: Outcome("syscalls", skipped=reason)]))
        return
    run.carry_out(syscall_tests(run, rounds or (3 if short else 0), (False,) if short else (False, True)))


@main.command("diskfull", help="Disk full and store full.")
@options
@click.option("--short", is_flag=True, help="Fewer file systems.")
def diskfull_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    kinds = ("xfs",) if short else ("xfs", "ext4", "tmpfs")
    run.carry_out(full_tests(run, kinds, ("sync", "interval")))


@main.command("diskerrors", help="Write errors under a store's data. Needs root and loop devices.")
@options
@click.option("--short", is_flag=True, help="Two rounds on XFS.")
def diskerrors_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(
        lambda kind=kind: diskerrors.diskerrors(  # type: ignore[misc]
            run.of(2 if short else 50), run.rng(f"diskerrors/{kind}"), kind=kind, deadline=run.deadline
        )
        for kind in ("xfs",)
    )


@main.command("damage", help="Bit flips and truncation of each class of stored bytes.")
@options
@click.option("--short", is_flag=True, help="Fewer places in each class.")
def damage_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(damage.tests(run.of(4 if short else 40), run.rng("damage"), run.deadline))


@main.command("leader", help="The leader dies, is stopped, is cut off; ZooKeeper dies. Needs ZooKeeper.")
@options
@click.option("--short", is_flag=True, help="Each fault once, and no bound on the time.")
@mutants_option
def leader_command(rounds: int, seed: int | None, time_limit: float, short: bool, planted: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(
        leader.tests(run.of(4 if short else 50), run.rng("leader"), short=short, planted=planted, deadline=run.deadline)
    )


@main.command("schedules", help="A fast schedule whose leaders die or stop at every step.")
@options
@click.option("--short", is_flag=True, help="20 changes of leaders instead of 200.")
@mutants_option
def schedules_command(rounds: int, seed: int | None, time_limit: float, short: bool, planted: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(
        schedules.tests(run.of(20 if short else 200), run.rng("schedules"), planted=planted, deadline=run.deadline)
    )


@main.command("later", help="Delayed messages and retries under kill -9, while the wall clock is set by hours.")
@options
@click.option("--short", is_flag=True, help="A few rounds, and the planted faults.")
@mutants_option
def later_command(rounds: int, seed: int | None, time_limit: float, short: bool, planted: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(later.tests(run.of(3 if short else 100), run.rng, planted=planted, deadline=run.deadline))


@main.command("fleet", help="A supervised fleet under fire for 5 minutes, and an autoscaled one under a burst.")
@options
@click.option("--short", is_flag=True, help="8 seconds, and a small burst.")
@click.option("--seconds", type=float, default=0, help="Of fire; 0 = 300, or 8 in the short form.")
@mutants_option
def fleet_command(
    rounds: int, seed: int | None, time_limit: float, short: bool, planted: bool, seconds: float = 0
) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(fleet_tests(run, short, seconds or (8 if short else 300), planted))


@main.command(
    "pipeline-property",
    help="Generated files through ingest, handlers and export, under kill -9, beside Python's own readers. Needs Java.",
)
@options
@click.option("--short", is_flag=True, help="200 files instead of 2,000.")
def pipeline_property_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    reason = spark_support.unavailable()
    if reason:
        run.carry_out(iter([lambda: Outcome("pipeline/rows", skipped=reason)]))
        return
    from tests.torture import pipeline_rows

    files, rng = run.of(200 if short else 2_000), run.rng("pipeline-property")
    run.carry_out(pipeline_rows.tests(files, rng, lambda: time.monotonic() >= run.deadline))


@main.command("pipeline", help="The Spark pipeline program, killed at named points and at random. Needs Java.")
@options
@click.option("--short", is_flag=True, help="Four rounds.")
@click.option("--first", default=0, help="Leaves so many rounds out: a long run in several parts, of one seed.")
def pipeline_command(rounds: int, seed: int | None, time_limit: float, short: bool, first: int = 0) -> None:
    run = Run(rounds, seed, time_limit)
    reason = spark_support.unavailable()
    if reason:
        run.carry_out(iter([lambda: Outcome("pipeline", skipped=reason)]))
        return
    from tests.torture import pipeline

    rounds, rng = run.of(4 if short else 30), run.rng("pipeline")
    run.carry_out(pipeline.tests(rounds, rng, lambda: time.monotonic() >= run.deadline, first))


@main.command("spark", help="Spark: killed workers and drivers, speculation, failing commits. Needs Java.")
@options
@click.option("--short", is_flag=True, help="Three rounds of each.")
def spark_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    reason = spark_support.unavailable()
    if reason:
        run.carry_out(iter([lambda: Outcome("spark", skipped=reason)]))
        return
    from tests.torture import spark

    with tempfile.TemporaryDirectory(prefix="ignis-torture-") as directory:
        session = functools.cache(lambda: spark_support.start(Path(directory)))
        run.carry_out(spark.tests(session, run.of(3 if short else 20), run.rng("spark"), run.deadline))


@main.command(
    "broker", help="kill -9 of broker and clients, planted faults, cancellation, damaged frames, hostile clients."
)
@options
@click.option(
    "--short", is_flag=True, help="Few rounds, 20,000 cancellations, 200,000 frames, 200 clients of each kind."
)
@click.option("--only", multiple=True, help="kill9, mutants, cancellations, frames, hostile; may be given again.")
def broker_command(rounds: int, seed: int | None, time_limit: float, short: bool, only: tuple[str, ...] = ()) -> None:
    run = Run(rounds, seed, time_limit)
    tests: dict[str, Callable[[], Outcome]] = {
        "kill9": lambda: broker.broker_kill9(
            run.of(2 if short else 100), run.rng("broker/kill9"), deadline=run.deadline
        ),
        "mutants": lambda: broker.mutants(10, run.rng("broker/mutants")),
        "cancellations": lambda: broker_wire.cancellations(
            20_000 if short else 10_000_000, run.rng("broker/cancellations"), run.deadline
        ),
        "frames": lambda: broker_wire.frames(200_000 if short else 100_000_000, run.rng("broker/frames"), run.deadline),
        "hostile": lambda: broker_wire.hostile(200 if short else 10_000, run.deadline),
    }
    if unknown := set(only) - set(tests):
        raise click.UsageError(f"--only {', '.join(sorted(unknown))}: known are {', '.join(tests)}")
    run.carry_out(test for name, test in tests.items() if not only or name in only)


@main.command("relay", help="kill -9 of the relay and of its producers, at random and between the steps of a turn.")
@options
@click.option("--short", is_flag=True, help="A few rounds.")
@mutants_option
def relay_command(rounds: int, seed: int | None, time_limit: float, short: bool, planted: bool) -> None:
    run = Run(rounds, seed, time_limit)
    usual = 2 if short else 60
    tests: list[Callable[[], Outcome]] = [
        lambda durability=durability: relay.relay_kill9(  # type: ignore[misc]
            run.of(usual), run.rng(f"relay/{durability}"), durability=durability, deadline=run.deadline
        )
        for durability in (("sync",) if short else ("sync", "interval"))
    ]
    tests.append(lambda: relay.relay_steps(run.of(usual), run.rng("relay/steps"), deadline=run.deadline))
    tests.append(lambda: relay.relay_jobs(60 if short else 1_000, run.rng("relay/jobs"), deadline=run.deadline))
    if planted:
        tests.append(lambda: relay.relay_mutants(run.rng("relay/mutants")))
    run.carry_out(iter(tests))


@main.command("mutants", help="Planted faults that the tests above must catch.")
@options
@click.option("--short", is_flag=True, help="Only those that are quick to catch.")
def mutants_command(rounds: int, seed: int | None, time_limit: float, short: bool) -> None:
    run = Run(rounds, seed, time_limit)
    run.carry_out(mutants.tests(run.rng, short))


@main.command("all", help="Everything, in its long form.")
@options
@click.pass_context
def all_command(context: click.Context, rounds: int, seed: int | None, time_limit: float) -> None:
    failed = []
    for command in (
        powercut_command,
        kill9_command,
        syscalls_command,
        diskfull_command,
        diskerrors_command,
        damage_command,
        leader_command,
        schedules_command,
        later_command,
        fleet_command,
        spark_command,
        pipeline_command,
        pipeline_property_command,
        broker_command,
        relay_command,
        mutants_command,
    ):
        try:
            context.invoke(command, rounds=rounds, seed=seed, time_limit=time_limit, short=False)
        except SystemExit as exc:
            failed += [command.name] if exc.code else []
    if failed:
        click.echo(f"failed: {', '.join(str(one) for one in failed)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m tests.torture")
