"""Messages that wait for their time: how exactly they come, and what they cost beside messages that do not wait.

* Delay error: a message every 20 ms, due a second later, and a consumer that sleeps in between. Its clock starts when it
  is due, by the moment in which the call to publish began, and ends when the handler has it.
* Put, due and drain: the same number of messages, plain and delayed, in turns in one run.
* Burst: a million messages that are due within one second. Nobody gets them quicker than they come to be due: the goal is of
  that rate, or of the drain's where it is less.
* Memory (``--memory 10000000``, not in the usual run): anonymous memory while so many are put, wait, and come.

``python -m bench.delays``, or ``python -m bench delays``.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.measure import Options, Recorder, Result, Sample
from bench.memory import Watch
from bench.peers.base import NONE, PROMISES, SYNC, Peer
from bench.peers.beanstalkd import Beanstalkd
from bench.peers.huey_sqlite import HueySqlite
from bench.peers.ignis_broker import IgnisBroker
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.peers.nats_schedules import NatsSchedules
from bench.processes import BenchError, Gate, Task, run_together
from bench.store import measure, started
from bench.tables import Goal, console, latency_table, rate, show_environment

DELAY_S = 1.0
EVERY_S = 0.02
BACKLOG = 200_000
BURST = 1_000_000
BURST_S = 1.0
_BATCH = 1_000
_STAMP = struct.Struct("<q")
_SLACK_S = 60.0
_FAR_S = 86_400.0
GOALS_MS = {"embedded": (1.0, 5.0), "broker": (2.0, 10.0)}
MEMORY_BYTES = 100 << 20


def produce(gate: Gate, peer: Peer, size: int, count: int) -> None:
    """Publishes by a timetable."""
    session = peer.session()
    padding = b"x" * max(0, size - _STAMP.size)
    gate()
    time.sleep(0.5)  # the consumer gets to its waiting place
    next_s = time.monotonic()
    for number in range(count):
        now_s = time.monotonic()
        if now_s < next_s:
            time.sleep(next_s - now_s)
        # Not a whole number of milliseconds: due times are, and a run would see one part of a millisecond only.
        next_s += EVERY_S + number * 0.37 % 1 / 1000
        session.publish_later(_STAMP.pack(time.monotonic_ns() + int(DELAY_S * 1e9)) + padding, DELAY_S)
    session.flush()
    time.sleep(DELAY_S)  # a session that ends may take its consumers' place with it
    session.close()


def consume(gate: Gate, peer: Peer, count: int, timeout_s: float) -> list[int]:
    """Nanoseconds between due and handled; below 0: too early."""
    session = peer.session()
    errors: list[int] = []

    def handle(body: bytes) -> None:
        errors.append(time.monotonic_ns() - _STAMP.unpack_from(body)[0])

    gate()
    handled = session.listen(count, handle, time.monotonic() + timeout_s)
    session.close()
    if handled < count:
        raise BenchError(f"{handled:,} of {count:,} messages were handled in {timeout_s:.0f} s")
    return errors


def delay_errors(options: Options, recorder: Recorder) -> None:
    """One table a class."""
    count = 50 if options.quick else int(500 * options.seconds)
    timeout_s = count * EVERY_S + DELAY_S + _SLACK_S
    for durability in (SYNC, NONE):
        peers: list[Peer] = [
            IgnisEmbedded(durability), IgnisEmbedded(durability, pool="async"), IgnisBroker(durability),
            Beanstalkd(durability), HueySqlite(durability), NatsSchedules(durability),
        ]  # fmt: skip
        parameters = {"delay_s": DELAY_S, "every_s": EVERY_S}
        tried = [
            (peer, Result(peer.name, durability, peer.how_delay, dict(parameters)))
            for peer in peers
            if options.wants(peer.name)
        ]

        def one_run(peer: Peer, result: Result) -> None:
            with started(peer, options):
                tasks = [
                    Task(produce, (peer, options.size_bytes, count)),
                    Task(consume, (peer, count, timeout_s)),
                ]
                _, errors = run_together(tasks, timeout_s + _SLACK_S)
            result.n += len(errors)
            result.add_latencies(errors)
            result.extra["too_early"] = result.extra.get("too_early", 0) + sum(one < 0 for one in errors)

        results = measure(options, tried, one_run)
        latency_table(
            f"Delay error [{durability}], due to handled, a message every {EVERY_S * 1000:g} ms, delay {DELAY_S:g} s",
            results, caption=f"{PROMISES[durability]}; two processes, {count:,} messages a run",
        )  # fmt: skip
        for result in results:
            if result.is_ignis and result.latency_ns:
                p50_ms, p99_ms = GOALS_MS["broker" if "broker" in result.peer else "embedded"]
                for name, goal_ms in (("p50", p50_ms), ("p99", p99_ms)):
                    text = f"{result.peer} [{durability}], {name} of the delay error, ms"
                    Goal(text, result.latency(name) / 1e6, goal_ms, at_most=True, unit="").show()
        recorder.write_all("delays.error", results)


# -- what they cost


def put(gate: Gate, peer: IgnisEmbedded, size: int, how: str, later: bool, seconds: float) -> float:
    """Messages a second."""
    session: Any = peer.session()
    queue, body = session.queue, b"x" * size
    given: dict[str, Any] = {"delay": _FAR_S} if later else {}
    gate()
    began, count = time.perf_counter(), 0
    end = began + seconds
    if how == "publisher":
        with queue.publisher() as publisher:
            while time.perf_counter() < end:
                for _ in range(100):
                    publisher.send(body, **given)
                count += 100
    else:
        bodies = [body] * _BATCH
        while time.perf_counter() < end:
            if how == "publish":
                queue.publish(body, **given)
                count += 1
            else:
                queue.publish_many(bodies, **given)
                count += _BATCH
    elapsed = time.perf_counter() - began
    session.close()
    return count / elapsed


def fill(session: Any, size: int, count: int, due: datetime | None, spread_s: float = 0.0) -> None:
    """Puts the backlog; with a spread the batches are due one after the other within so long."""
    bodies = [b"x" * size] * _BATCH
    batches = count // _BATCH
    for number in range(batches):
        if due is None:
            session.queue.publish_many(bodies)
        else:
            session.queue.publish_many(bodies, at=due + timedelta(seconds=spread_s * number / batches))


def drain_when_due(
    gate: Gate, peer: IgnisEmbedded, size: int, count: int, ahead_s: float, spread_s: float
) -> tuple[float, float]:
    """Messages a second from the moment when they are due, and seconds until the first was handled. ``ahead_s`` 0: plain
    messages, which wait when the consumer starts."""
    session: Any = peer.session()
    first: list[float] = []
    session._handle = lambda body: first or first.append(time.monotonic())
    gate()
    due = None if not ahead_s else datetime.now(timezone.utc) + timedelta(seconds=ahead_s)
    fill(session, size, count, due, spread_s)
    if due is None:
        began = time.monotonic()
        session.app.start()
    else:
        session.app.start()
        left_s = (due - datetime.now(timezone.utc)).total_seconds()
        if left_s <= 0:
            raise BenchError(
                f"putting {count:,} messages took {-left_s:.1f} s longer than the {ahead_s:.1f} s it was given"
            )
        began = time.monotonic() + left_s
    deadline = began + 4 * _SLACK_S
    while session.queue.consumer.counts.handled < count and time.monotonic() < deadline:
        time.sleep(0.002)
    elapsed = time.monotonic() - began
    handled = session.queue.consumer.counts.handled
    session.app.stop(30.0)
    session.close()
    if handled < count:
        raise BenchError(f"{handled:,} of {count:,} were handled in {elapsed:.0f} s")
    return count / elapsed, first[0] - began


def costs(options: Options, recorder: Recorder) -> None:
    """Plain and delayed, in turns."""
    backlog, burst = (20_000, 50_000) if options.quick else (BACKLOG, BURST)
    rates: dict[tuple[str, bool], Sample] = {}
    starts: dict[str, Sample] = {"due and drain": Sample(), "burst": Sample()}
    hows = ("publish", "publish_many", "publisher")

    def once(function: Any, *arguments: Any) -> Any:
        peer = IgnisEmbedded(SYNC)
        with started(peer, options):
            return run_together([Task(function, (peer, options.size_bytes, *arguments))], 8 * _SLACK_S)[0]

    for _ in range(options.runs):
        for how in hows:
            for later in (False, True):
                got = once(put, how, later, options.seconds)
                rates.setdefault((how, later), Sample()).add(got)
        putting = rates["publish_many", True].median
        for what, count, spread_s in (("due and drain", backlog, 0.0), ("burst", burst, BURST_S)):
            plain, _ = once(drain_when_due, count, 0.0, 0.0)
            rates.setdefault((what, False), Sample()).add(plain)
            got, start_s = once(drain_when_due, count, 3 + 4 * count / putting, spread_s)
            rates.setdefault((what, True), Sample()).add(got)
            starts[what].add(start_s)
    table = Table(title=f"What a delay costs [{SYNC}], medians of {options.runs}", title_justify="left")
    for head in ("", "plain/s", "delayed/s", "delayed / plain", "first handled behind due"):
        table.add_column(head, justify="right")
    results = []
    for what in (*hows, "due and drain", "burst"):
        plain, later = rates[what, False], rates[what, True]
        ratio = statistics.median(b / a for a, b in zip(plain.values, later.values, strict=True))
        start = f"{starts[what].median * 1000:.1f} ms" if what in starts else ""
        table.add_row(what, rate(plain.median), rate(later.median), f"{ratio:.2f}", start)
        result = Result(f"ignis, {what}", SYNC, parameters={"backlog": backlog, "burst": burst})
        result.throughput = later
        result.extra = {"plain_per_s": plain.as_json(), "ratio": ratio}
        if what in starts:
            result.extra["first_handled_s"] = starts[what].as_json()
        results.append((what, ratio, result))
    console.print(table)
    for what, ratio, _ in results:
        if what != "burst":
            Goal(f"{what}: delayed against plain", ratio, 0.5).show()
    plain, later = rates["burst", False], rates["burst", True]
    possible = statistics.median(  # nothing is handled before it is due
        a / min(b, burst / BURST_S) for a, b in zip(later.values, plain.values, strict=True)
    )
    Goal("burst: against the drain, or the rate at which it is due", possible, 0.5).show()
    Goal("first of the burst handled, s", starts["burst"].median, 1.0, at_most=True, unit="").show()
    recorder.write_all("delays.costs", [result for _, _, result in results])


# -- memory


def put_and_wait(gate: Gate, peer: IgnisEmbedded, size: int, count: int, later: float) -> float:
    """Puts so many; returns the rate."""
    session: Any = peer.session()
    gate()
    began = time.monotonic()
    fill(session, size, count, datetime.now(timezone.utc) + timedelta(seconds=later), 600.0)
    elapsed = time.monotonic() - began
    session.close()
    return count / elapsed


def run_all(gate: Gate, peer: IgnisEmbedded, count: int) -> float:
    """Opens what waits, moves it to the queue as if it were due, and drains it; returns the rate."""
    session: Any = peer.session()
    magazines, name = session.app.store.magazines, session.queue.name
    gate()
    began = time.monotonic()
    session.app.start()
    while waiting := magazines.list_later(name, limit=_BATCH):
        places: dict[int, list[int]] = {}
        for one in waiting:
            places.setdefault(one.shard, []).append(one.pointer)
        magazines.run_now(name, {shard: sorted(many) for shard, many in places.items()})
    while session.queue.consumer.counts.handled < count and time.monotonic() < began + 1_800:
        time.sleep(0.01)
    elapsed = time.monotonic() - began
    session.app.stop(30.0)
    session.close()
    return count / elapsed


def memory(options: Options, recorder: Recorder, count: int) -> None:
    """Anonymous memory with so many that wait."""
    peer = IgnisEmbedded(NONE)
    with started(peer, options):
        putting, coming = Watch(), Watch()
        put_rate = run_together([Task(put_and_wait, (peer, options.size_bytes, count, _FAR_S))], 1_800, putting.begin)[
            0
        ]
        putting.end()
        drain_rate = run_together([Task(run_all, (peer, count))], 3_600, coming.begin)[0]
        coming.end()
    results = []
    for what, watch, per_s in (("put", putting, put_rate), ("run now and drained", coming, drain_rate)):
        console.print(
            f"Memory, {count:,} delayed messages, {what}: peak {watch.peak / 2**20:.0f} MiB anonymous, last quarter "
            f"{watch.growth / 2**20:+.1f} MiB over the second, {rate(per_s)} messages/s"
        )
        result = Result(f"ignis, {what}", NONE, n=count)
        result.throughput.add(per_s)
        result.extra = {"peak_rss_anon_bytes": watch.peak, "growth_bytes": watch.growth, "samples": len(watch.samples)}
        results.append(result)
    peak = max(putting.peak, coming.peak) / 2**20
    Goal("peak of anonymous memory", peak, MEMORY_BYTES / 2**20, at_most=True, unit=" MiB").show()
    recorder.write_all("delays.memory", results)


def run(options: Options, recorder: Recorder) -> None:
    """Delay errors, then what they cost."""
    delay_errors(options, recorder)
    costs(options, recorder)
    console.print()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 20))
@click.option("--seconds", default=1.0, show_default=True, type=click.FloatRange(0.05, 600))
@click.option("--quick", is_flag=True, help="Shows that it works.")
@click.option("--only", multiple=True, metavar="NAME", help="Of the delay errors, only peers whose name contains this.")
@click.option("--memory", "messages", type=click.IntRange(1_000), help="Only memory, with so many delayed messages.")
@click.option("--part", type=click.Choice(["error", "costs"]), help="Only this part.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), default=tempfile.gettempdir()
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def main(
    runs: int, seconds: float, quick: bool, only: tuple[str, ...], messages: int | None, part: str | None,
    directory: Path, json_path: Path | None,
) -> None:  # fmt: skip
    """Delayed messages: error, cost, memory."""
    options = Options(
        runs=1 if quick else runs, seconds=seconds, quick=quick, only=frozenset(only), directory=directory.resolve(),
        json_path=json_path,
    )  # fmt: skip
    recorder = Recorder(options)
    show_environment(options)
    if messages is not None:
        memory(options, recorder, messages)
    if messages is None and part != "costs":
        delay_errors(options, recorder)
    if messages is None and part != "error":
        costs(options, recorder)


if __name__ == "__main__":
    main()
