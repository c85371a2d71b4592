"""The command line: ``python -m bench <subject>``."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from bench.measure import VOLATILE_FILE_SYSTEMS, Options, Recorder, file_system
from bench.tables import console, show_environment

Bench = Callable[[Options, Recorder], None]
SUBJECTS = ("channel", "ring", "publish", "apublish", "relay", "store", "latency", "memory", "broker")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One short run of each: shows that it works, not how fast it is.")
@click.option("--runs", type=click.IntRange(1, 100), help="Runs of each measurement [default: 5].")
@click.option("--seconds", type=click.FloatRange(0.05, 600), help="Length of one timed run [default: 1].")
@click.option(
    "--size", "size_bytes", default=100, show_default=True, type=click.IntRange(16, 1 << 20), help="Bytes of a message."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Producer and consumer on a core each.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where stores and servers keep their files [default: the system's temporary directory].",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only peers whose name contains this; may be given often.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also append the JSON lines to this file.",
)
@click.pass_context
def main(
    context: click.Context,
    quick: bool,
    runs: int | None,
    seconds: float | None,
    size_bytes: int,
    pin: bool,
    directory: Path | None,
    only: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Measures ignis beside its peers, in the same run on the same machine."""
    context.obj = Options(
        runs=runs or (1 if quick else 5),
        seconds=seconds or (0.3 if quick else 1.0),
        size_bytes=size_bytes,
        quick=quick,
        pin=pin,
        directory=(directory or Path(tempfile.gettempdir())).resolve(),
        only=frozenset(only),
        json_path=json_path,
    )


def _run(options: Options, names: tuple[str, ...]) -> None:
    from bench import (
        aerospike,
        apublish,
        broker,
        broker_connections,
        broker_steps,
        channel,
        consumers,
        delays,
        handover,
        latency,
        locks,
        lone,
        memory,
        publish,
        relay,
        ring,
        spark,
        steps,
        store,
        sweep,
    )

    benches: dict[str, Bench] = {
        "channel": channel.run, "ring": ring.run, "publish": publish.run, "relay": relay.run,
        "apublish": apublish.run,
        "broker": broker.run, "connections": broker_connections.run, "broker-steps": broker_steps.run,
        "store": store.run, "latency": latency.run, "steps": steps.run, "memory": memory.run,
        "handover": handover.run, "locks": locks.run, "aerospike": aerospike.run, "sweep": sweep.run, "spark": spark.run,
        "delays": delays.run, "consumers": consumers.run, "lone": lone.run,
    }  # fmt: skip
    # A default SIGTERM would end this process without stopping and removing what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    recorder = Recorder(options)
    show_environment(options)
    if options.quick:
        console.print("quick: shows that everything works; neither figures nor goals mean anything", style="yellow")
    kind = file_system(options.directory)
    if kind in VOLATILE_FILE_SYSTEMS:
        console.print(
            f"WARNING: {options.directory} is {kind}: nothing there survives a power cut, so the durable figures mean "
            "nothing. Name a directory on a disk with --dir.", style="bold red",
        )  # fmt: skip
    for name in names:
        benches[name](options, recorder)
    if unmet := options.only - options.met:
        console.print(
            f"--only: no peer here has {' or '.join(sorted(unmet))} in its name", style="bold red", markup=False
        )
    if recorder.problems:
        console.print(f"{recorder.problems} measurements are missing or failed; see above.", style="bold red")
    if recorder.problems or unmet:
        sys.exit(1)


def _add(name: str, names: tuple[str, ...], text: str) -> None:
    def command(options: Options) -> None:
        _run(options, names)

    main.command(name, help=text)(click.pass_obj(command))


_add("channel", ("channel",), "Messages between two processes: one at a time, in bulk, round trips, sizes.")
_add("ring", ("ring",), "The bare ring in C: two pinned threads.")
_add("publish", ("publish",), "What a buffered publish costs its caller.")
_add("apublish", ("apublish",), "Publishing from coroutines: queue.apublish beside publisher.send.")
_add("relay", ("relay",), "Publishing through shared memory: what a call costs, and what is stored a second.")
_add("broker", ("broker",), "The broker beside Redis, NATS, RabbitMQ and beanstalkd, over TCP.")
_add("connections", ("connections",), "The last part of `broker`: 1,000 connections that send, 10,000 that are idle.")
_add(
    "broker-steps", ("broker-steps",), "Where the time of a lone publish through the broker goes, beside a floor in C."
)
_add("handover", ("handover",), "A change of threads inside the broker, beside the write that it would be made for.")
_add("store", ("store",), "Durable publishing and draining with acknowledgement.")
_add("latency", ("latency",), "From publish to handled at a steady 1,000 messages a second.")
_add("lone", ("lone",), "Processor time of a lone load, claim and delete, cold and hot, beside other stores.")
_add("steps", ("steps",), "Where the time of a lone message goes, step by step, beside a floor in C.")
_add("delays", ("delays",), "Delayed messages: how exactly they come, and what they cost beside plain ones.")
_add("consumers", ("consumers",), "Many consumers of one queue, and many queues with one each, in one process.")
_add("memory", ("memory",), "Memory over a backlog of 5 million messages.")
_add("aerospike", ("aerospike",), "Publish, drain and latency on Aerospike beside call by call; needs a server.")
_add("locks", ("locks",), "A lock on Aerospike beside the bare client calls; needs a server.")
_add("sweep", ("sweep",), "A sweep over messages that are long gone; on Aerospike too where a server is named.")
_add("spark", ("spark",), "A DataFrame into a queue and back into Parquet, beside files of JSON lines; needs Java 17.")
_add("all", SUBJECTS, "Everything that needs no server of somebody else's, in turn.")

if __name__ == "__main__":
    main()
