"""Walks through the trials of a directory, as a process that is killed at their points: ``directory``.

A trial is a directory ``trial-*`` with ``in/`` and ``trial.json``; what came of it is written to ``done.json``. Each of its kills
is carried out once, over all processes that work on it: ``used-<number>`` says that it was.

A kill is ``ingest:<step>:<when>`` or ``export:<step>:<when>`` (``begin``, ``end``, or seconds behind the begin),
``handlers:<before or after>:<number>`` (a message is passed on), or ``worker:<ingest or export>:<step>:<seconds>``: one of
Spark's Python workers, and not this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pandas as pd

from ignis import Ignis
from ignis.consumer.handler import Context
from ignis.spark import publish_in_pandas
from ignis.spark._pyspark import functions
from ignis.spark.pipeline import Progress, Step, Target, checks, export, ingest, parse_description, reading
from tests.support import spark as spark_support
from tests.torture.pipeline_files import LIMIT_BYTES, Layout, description

__all__ = ["DONE", "IN", "MUTANTS", "OUT", "Kills", "carry_out"]

IN, OUT, DONE = "rows-in", "rows-out", "done.json"
WAIT_S = 120.0
_MOST_WORKERS_WAIT_S = 5.0


class Kills:
    """The kills of a trial that were not carried out yet. With ``real=False`` none is."""

    def __init__(self, directory: Path, planned: list[str], *, real: bool = True) -> None:
        self._directory = directory
        self._left = {
            number: kill.split(":")
            for number, kill in enumerate(planned)
            if real and not (directory / f"used-{number}").exists()
        }

    def matching(self, *begin: str) -> Iterator[tuple[int, list[str]]]:
        for number, parts in list(self._left.items()):
            if tuple(parts[: len(begin)]) == begin:
                yield number, parts[len(begin) :]

    def die(self, number: int) -> None:
        self.used(number)
        os.kill(os.getpid(), signal.SIGKILL)

    def used(self, number: int) -> None:
        self._left.pop(number, None)
        (self._directory / f"used-{number}").touch()

    def at(self, *where: str) -> None:
        """Dies here, if a kill says so."""
        for number, rest in self.matching(*where):
            if not rest:
                self.die(number)


class Deadly(Progress):
    """Carries out the kills of one half of the pipeline."""

    def __init__(self, kills: Kills, phase: str) -> None:
        self._kills = kills
        self._phase = phase
        self._ended = threading.Event()

    def begin(self, step: Step) -> None:
        self._kills.at(self._phase, step.name, "begin")
        self._ended = ended = threading.Event()
        for number, (when, *_) in self._kills.matching(self._phase, step.name):
            if when[0].isdigit():
                self._later(ended, float(when), lambda number=number: self._kills.die(number))  # type: ignore[misc]
        for number, (when, *_) in self._kills.matching("worker", self._phase, step.name):
            self._later(ended, 0, lambda number=number, when=when: self._kill_worker(number, float(when), ended))  # type: ignore[misc]

    def end(self, step: Step) -> None:
        self._ended.set()
        self._kills.at(self._phase, step.name, "end")

    def _later(self, ended: threading.Event, seconds: float, act: Callable[[], None]) -> None:
        def wait() -> None:
            if not ended.wait(seconds):
                act()

        threading.Thread(target=wait, daemon=True).start()

    def _kill_worker(self, number: int, seconds: float, ended: threading.Event) -> None:
        until = time.monotonic() + _MOST_WORKERS_WAIT_S
        ended.wait(seconds)
        while time.monotonic() < until and not ended.is_set():
            for pid in python_workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self._kills.used(number)
                    return
            time.sleep(0.005)


def python_workers() -> list[int]:
    """Spark's Python workers below this process: forked by a daemon that the JVM has started."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in Path(f"/proc/{name}/cmdline").read_bytes():
                daemons.add(int(name))

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return sorted(pid for pid in daemons if parents.get(pid) in daemons and ours(pid))


# -- handlers


def pass_on(url: str, kills: Kills, mutant: str = "") -> int:
    """Handlers move every message from one queue to the other, under its id and key; returns how many calls there were."""
    stage = publish_in_pandas(
        url, OUT, key="key", id=None if mutant == "moved-without-ids" else "id", codec="json", shards=4,
        max_message_bytes=LIMIT_BYTES,
    )  # fmt: skip
    calls = 0
    with Ignis(url, consumer={"idle_poll_s": 0.02}, sweeper={"interval_s": 0.1, "initial_delay_s": 0}) as app:
        queue = app.queue(IN, msgspec.Raw)

        def move(bodies: list[msgspec.Raw], ids: list[str], keys: list[Any]) -> None:
            nonlocal calls
            for number, (at,) in kills.matching("handlers", "before"):
                if calls >= int(at):
                    kills.die(number)
            frame = pd.DataFrame(
                {"body": [bytes(one) for one in bodies], "id": ids, "key": pd.Series(keys, dtype=object)}
            )
            list(stage([frame]))
            calls += len(bodies)
            for number, (at,) in kills.matching("handlers", "after"):
                if calls >= int(at):
                    kills.die(number)

        @queue.handler(batch_size=20, batch_wait_s=1.0)
        def handle(bodies: list[msgspec.Raw], context: Context) -> None:
            said = [bytes(one) for one in bodies]
            envelopes = [(one.id, one.key or None) for one in context.messages]
            arguments = (said, [str(one) for one, _ in envelopes], [key for _, key in envelopes])
            if mutant == "early-acknowledgement":
                threading.Timer(0.5, move, arguments).start()
            else:
                move(*arguments)  # type: ignore[arg-type]

        app.start()
        until = time.monotonic() + WAIT_S
        while True:
            stats = queue.stats()
            left = {name: stats[name] for name in ("pending", "in_flight", "sideline") if stats[name]}
            if not left:
                break
            if time.monotonic() > until:
                raise TimeoutError(f"the handlers have left {left}")
            time.sleep(0.02)
        app.stop()
    if mutant == "early-acknowledgement":
        time.sleep(1)
    return calls


# -- planted faults


def _random_id(*_: Any) -> Any:
    return functions.unhex(functions.replace(functions.uuid(), functions.lit("-"), functions.lit("")))


def _always(*_: Any) -> Any:
    return functions.lit(True)


_TYPED = checks._typed


def _reparsed(name: str, column: Any) -> Any:
    value = _TYPED(name, column)
    return functions.to_json(functions.try_parse_json(value)) if column.type == "json" else value


def _latin(layout: Any, encoding: str, *others: Any) -> Any:
    from ignis.spark.pipeline.csv_lines import CsvLines

    return CsvLines(layout, "latin-1", *others)


def _committed_early(write: Any) -> Any:
    def planted(self: Any, drained: Any) -> None:
        drained.commit()
        write(self, drained)

    return planted


def planted(mutant: str) -> contextlib.AbstractContextManager[Any]:
    """The mistake of that name, for the time of a ``with``."""
    ingesting, exporting = sys.modules["ignis.spark.pipeline.ingest"], sys.modules["ignis.spark.pipeline.export"]
    mistakes: dict[str, Callable[[], Any]] = {
        "random-ids": lambda: mock.patch.object(ingesting, "_message_id", _random_id),
        "rounded-decimals": lambda: mock.patch.object(checks, "_is_exact", _always),
        "reparsed-json": lambda: mock.patch.object(checks, "_typed", _reparsed),
        "wrong-encoding": lambda: mock.patch.object(reading, "CsvLines", _latin),
        "forgotten-rejects": lambda: mock.patch.object(ingesting._Ingest, "_put_aside", return_value=None),
        "early-commit": lambda: mock.patch.object(
            exporting._Export, "_write", _committed_early(exporting._Export._write)
        ),
    }
    return mistakes[mutant]() if mutant in mistakes else contextlib.nullcontext()


MUTANTS = {
    "random-ids": ["ingest:publish:end"],
    "rounded-decimals": [],
    "reparsed-json": [],
    "wrong-encoding": [],
    "forgotten-rejects": [],
    "early-commit": ["export:place:begin"],
    "early-acknowledgement": ["handlers:before:0"],
    "moved-without-ids": ["handlers:after:1"],
}
"""Mistakes, and the kills under which they show."""


# -- a trial


def carry_out(spark: Any, directory: Path, *, real: bool = True) -> None:
    """One trial, or what an earlier process has left of it, to its end. ``real``: kills are carried out."""
    trial = json.loads((directory / "trial.json").read_text())
    layout = Layout.read(trial["layout"])
    kills = Kills(directory, trial["kills"], real=real)
    url = trial["url"]
    target = Target(url, "", "")
    said: dict[str, Any] = {}
    with planted(trial["mutant"]):
        read = parse_description(description(layout, queue=IN, out="out"), directory)
        said["ingest"] = ingest(spark, read, target=target, run_id="the", progress=Deadly(kills, "ingest"))
        said["handled"] = pass_on(url, kills, trial["mutant"])
        write = parse_description(description(layout, queue=OUT, out="out"), directory)
        said["export"] = export(spark, write, target=target, run_id="the", progress=Deadly(kills, "export"))
    (directory / DONE).write_bytes(msgspec.json.encode(said))


def main(top: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ignis-driver-") as local:
        spark = spark_support.start(Path(local))
        spark.sparkContext.setLogLevel("OFF")  # workers that are killed are what this is about
        for directory in sorted(Path(top).glob("trial-*")):
            if (directory / DONE).exists():
                continue
            began = time.monotonic()
            try:
                carry_out(spark, directory)
            except Exception:
                text = traceback.format_exc()
                (directory / DONE).write_bytes(msgspec.json.encode({"error": text[-3000:]}))
            print(f"{directory.name}: {time.monotonic() - began:.1f} s", flush=True)
        if not spark_support.is_guest():
            spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
