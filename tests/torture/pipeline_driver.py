"""The pipeline program in a process that kills itself: ``directory url point mutant``.

A point is ``<step>:begin``, ``<step>:end``, ``<step>:within`` (as soon as messages of it are in the queue), ``random:<seconds>``
or empty.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ignis.spark._pyspark import functions
from ignis.spark.pipeline import Progress, Step, Target, export, ingest, load_description
from ignis.storage import open_store
from tests.support import spark as spark_support

QUEUE = "orders"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Progress):
    """Kills the process at the point."""

    def __init__(self, point: str, url: str) -> None:
        self.step, _, self.when = point.partition(":")
        self.url = url

    def begin(self, step: Step) -> None:
        if step.name == self.step and self.when == "begin":
            die()
        if step.name == self.step and self.when == "within":
            threading.Thread(target=self._die_within, daemon=True).start()

    def end(self, step: Step) -> None:
        if step.name == self.step and self.when in ("end", "within"):
            die()

    def _die_within(self) -> None:
        with open_store(self.url) as store:
            before = store.magazines.metadata(QUEUE)
            while store.magazines.metadata(QUEUE) == before:
                time.sleep(0.001)
        die()


def _die_after(seconds: float) -> None:
    time.sleep(seconds)
    die()


def _random_id(*_: Any) -> Any:
    return functions.unhex(functions.replace(functions.uuid(), functions.lit("-"), functions.lit("")))


def main(directory: str, url: str, point: str, mutant: str) -> None:
    described = load_description(Path(directory) / "p.toml")
    if mutant:  # message ids that are not made of the row
        sys.modules["ignis.spark.pipeline.ingest"]._message_id = _random_id  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="ignis-driver-") as local:
        spark = spark_support.start(Path(local))
        progress = Deadly(point, url)
        if progress.step == "random":
            threading.Thread(target=_die_after, args=(float(progress.when),), daemon=True).start()
        target = Target(url, "", "")
        ingest(spark, described, target=target, progress=progress)
        export(spark, described, target=target, progress=progress)


if __name__ == "__main__":
    main(*sys.argv[1:5])
