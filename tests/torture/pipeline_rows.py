"""Generated files through ingest, handlers and export, under generated kills: every row is found once, as Python's own readers
say, or put aside with the bytes that stood there.

A *trial* is one pipeline: a generated layout, many generated files (an example each), and kills. A driver process walks
through the trials and is killed with SIGKILL at their points; another one goes on where it ended. What the readers of
`pipeline_readers` say of the files is then held against the Parquet files, the quarantine and the figures.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ignis import Ignis
from tests.support import spark as spark_support
from tests.torture.pipeline_files import Layout, draw, files_of, kept, layouts, telling
from tests.torture.pipeline_readers import Read, Row, body_row, exported, put_aside, read_file
from tests.torture.report import Outcome

__all__ = ["drive", "faults_of", "make_trial", "mutants", "rows_property", "tests", "walk"]

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 3_600.0
_KINDS = ("csv", "jsonl", "csv")
_STEPS = {
    "ingest": ("check", "quarantine", "publish"),
    "export": ("claim", "write", "quarantine", "place", "commit"),
}


def kills_of(rng: random.Random) -> list[str]:
    """Up to three, anywhere from the first step to the last."""
    found = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        phase = rng.choice(("ingest", "handlers", "export", "export", "worker"))
        if phase == "handlers":
            found.append(f"handlers:{rng.choice(('before', 'after'))}:{rng.choice((0, 1, 20, 60))}")
            continue
        within = phase if phase != "worker" else rng.choice(("ingest", "export"))
        steps = _STEPS[within] if phase != "worker" else ("check", "publish") if within == "ingest" else ("write",)
        when = f"{rng.uniform(0, 0.8):.3f}"
        if phase != "worker":
            when = rng.choice(("begin", "end", when, when))
        found.append(":".join(([phase] if phase != within else []) + [within, rng.choice(steps), when]))
    return found


def make_trial(
    directory: Path, kind: str, count: int, rng: random.Random, *, kills: list[str] | None = None, mutant: str = "",
    withheld: int = 0, url: str = "",
) -> list[str]:  # fmt: skip
    """Writes a trial of so many files, and one more that is always the same; returns its kills. So many files are ``withheld``
    from the pipeline, which must be seen. ``url``: of a store elsewhere than in the directory."""
    (layout,) = draw(layouts(kind), 1, rng)
    if mutant == "wrong-encoding":
        layout = dataclasses.replace(layout, encoding="utf-8")  # in which the mistake shows
    files = draw(files_of(layout), count, rng)
    files.append(telling(layout))
    kills = kills_of(rng) if kills is None else kills
    for folder in ("in", "all"):
        (directory / folder).mkdir(parents=True)
    for number, (name, data) in enumerate(files):
        where = [directory / "all", *([directory / "in"] if number >= withheld else [])]
        for folder in where:
            (folder / f"{number:05} {name}.{kind}").write_bytes(data)
    trial = {
        "layout": kept(layout),
        "kills": kills,
        "mutant": mutant,
        "url": url or f"embedded://{directory / 'store'}",
    }
    (directory / "trial.json").write_text(json.dumps(trial))
    return kills


def drive(top: Path, spark: Any = None) -> bool:
    """One process goes through the trials of a directory; returns whether it was killed. Raises RuntimeError when it failed.
    With ``spark`` it works in that session's JVM, which lives on."""
    command = [sys.executable, "-m", "tests.torture.pipeline_rows_driver", str(top)]
    # Into a file: a pipe would be held open by the dead driver's JVM, which takes a moment to notice.
    log = top / "driver.log"
    before = len(list(top.glob("trial-*/used-*")))
    with log.open("wb") as file:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=WAIT_S, check=False,
            env=None if spark is None else spark_support.guest_of(spark),
        )  # fmt: skip
    if spark is not None:
        spark_support.bury(spark)
    if done.returncode == -signal.SIGKILL and len(list(top.glob("trial-*/used-*"))) > before:
        return True
    if done.returncode:
        raise RuntimeError(f"the driver ended with {done.returncode}: {log.read_text()[-3000:]}")
    return False


def walk(top: Path) -> int:
    """Carries out the trials of a directory, process after process; returns how often one was killed."""
    killed = 0
    while drive(top):
        killed += 1
    return killed


# -- judging


def faults_of(directory: Path) -> tuple[list[str], Counter[str]]:
    """What is wrong with a trial that was carried out, and its figures."""
    from tests.torture.pipeline_rows_driver import DONE, IN, OUT

    trial = json.loads((directory / "trial.json").read_text())
    layout, once = Layout.read(trial["layout"]), trial["url"].startswith("embedded")
    said = json.loads((directory / DONE).read_text())
    if "error" in said:
        return [f"ended with an error: {said['error']}"], Counter()
    reads: list[tuple[int, Read]] = []
    for path in sorted((directory / "all").iterdir()):
        reads += [(int(path.name[:5]), read) for read in read_file(path.read_bytes(), layout)]
    good = [read.row for _, read in reads if read.row is not None]
    bad = [(number, read.line, read.raw) for number, read in reads if read.row is None]
    figures = Counter(rows=len(reads), accepted=len(good), rejected=len(bad))
    faults: list[str] = []
    ingested, written = said["ingest"], said["export"]
    for name, ours, theirs in (
        ("read", ingested["read"], len(reads)),
        ("accepted", ingested["accepted"], len(good)),
        ("rejected", sum(ingested["rejected"].values()), len(bad)),
        ("accepted + rejected", ingested["accepted"] + sum(ingested["rejected"].values()), ingested["read"]),
    ):
        if ours != theirs:
            faults.append(f"{name}: the pipeline says {ours}, Python {theirs}")
    aside = Counter(
        (int(row["file"].rpartition("/")[2][:5]), row["line"], row["bytes"])
        for row in put_aside(directory / "quarantine" / "ingest", layout.encoding)
    )
    faults += differences(Counter(bad), aside, "in the quarantine")
    found = exported(directory / "out", layout)
    moved = 0
    for row in put_aside(directory / "quarantine" / "export", "utf-8"):
        moved += 1
        if row["reason"] != "partition" or layout.partition != "p":
            faults.append(f"put aside by the export: {row}")
        found[body_row(row["bytes"], row.get("key"), layout)] += 1
    wanted, seen, where = Counter(good), found, "exported"
    if layout.dedup:
        wanted, seen, where = *_one_of_each(good, found), "of their id"
    if not once:  # a store that cannot tell repeats: at least once
        figures.update(doubles=(seen - wanted).total())
        seen = Counter({one: min(count, wanted[one] or 1) for one, count in seen.items()})
    faults += differences(wanted, seen, where)
    total = sum(found.values())
    if (written["written"], sum(written["rejected"].values()), written["read"]) != (total - moved, moved, total):
        faults.append(f"the export says {written}, {total - moved} and {moved} were found")
    with Ignis(trial["url"]) as app:
        for name in (IN, OUT):
            stats = app.queue(name).stats()
            if left := {key: stats[key] for key in ("pending", "in_flight", "sideline") if stats[key]}:
                faults.append(f"left in {name}: {left}")
    return faults, figures


def differences(wanted: Counter[Any], found: Counter[Any], where: str) -> list[str]:
    """What is missing, and what is there too often or was never wanted."""
    lost, many = wanted - found, found - wanted
    return [f"{count} lost {where}: {one!r:.600}" for one, count in lost.items()] + [
        f"{count} too many {where}: {one!r:.600}" for one, count in many.items()
    ]


def _one_of_each(good: list[Row], found: Counter[Row]) -> tuple[Counter[Any], Counter[Any]]:
    """Ids that are wanted once, and the ids of what was found: with the row where it is none of those of its id."""
    rows = set(good)
    ids = Counter({row[0]: 1 for row in good})
    return ids, Counter([row[0] if row in rows else row for row in found.elements()])


# -- the property


def rows_property(rounds: int, rng: random.Random, deadline: Callable[[], bool], *, batch: int = 200) -> Outcome:
    """So many generated files, in trials of ``batch``."""
    outcome = Outcome("pipeline/rows")
    while outcome.rounds < rounds and not deadline():
        with tempfile.TemporaryDirectory(prefix="ignis-rows-") as name:
            top = Path(name)
            for number in range(4):  # so that a verdict comes now and then
                count = min(batch, rounds - outcome.rounds)
                if count <= 0:
                    break
                kind = _KINDS[outcome.figures.get("trials", 0) % len(_KINDS)]
                make_trial(top / f"trial-{number:03}", kind, count, rng)
                outcome.rounds += count
                outcome.add(trials=1)
            _judge(outcome, top)
    return outcome.finish()


def _judge(outcome: Outcome, top: Path) -> None:
    outcome.add(driver_kills=walk(top))
    for directory in sorted(top.glob("trial-*")):
        trial = json.loads((directory / "trial.json").read_text())
        used = [kill for number, kill in enumerate(trial["kills"]) if (directory / f"used-{number}").exists()]
        outcome.add(worker_kills=sum(kill.startswith("worker:") for kill in used))
        faults, figures = faults_of(directory)
        outcome.add(**figures)
        for fault in faults:
            outcome.fault(f"{directory.name} {used} {trial['layout']}: {fault}")


def mutants(rng: random.Random) -> Outcome:
    """The same with a mistake planted into the pipeline or the handlers; each must be seen."""
    from tests.torture.pipeline_rows_driver import MUTANTS

    outcome = Outcome("pipeline/rows-mutants")
    with tempfile.TemporaryDirectory(prefix="ignis-rows-") as name:
        top = Path(name)
        for mutant, kills in MUTANTS.items():
            kind = "csv" if mutant == "wrong-encoding" else "jsonl"
            make_trial(top / f"trial-{mutant}", kind, 40, rng, kills=kills, mutant=mutant)
        make_trial(top / "trial-withheld-files", "jsonl", 40, rng, kills=[], withheld=20)
        outcome.add(driver_kills=walk(top))
        for directory in sorted(top.glob("trial-*")):
            faults, _ = faults_of(directory)
            outcome.plant(
                directory.name.removeprefix("trial-"), any("ended with an error" not in one for one in faults)
            )
            outcome.rounds += 1
    return outcome.finish()


def on_aerospike(rounds: int, rng: random.Random, deadline: Callable[[], bool]) -> Outcome:
    """The same on a store of which every process of every machine is a client, and which promises each row at least once."""
    from tests.support import aerospike as aerospike_support

    outcome = Outcome("pipeline/rows-aerospike")
    if os.environ.get("IGNIS_TEST_AEROSPIKE") is None and aerospike_support.asd_binary() is None:
        outcome.skipped = aerospike_support.SKIPPED
        return outcome
    where = aerospike_support.address()
    while outcome.rounds < rounds and not deadline():
        count = min(50, rounds - outcome.rounds)
        client_id = aerospike_support.hold_client(where)
        with tempfile.TemporaryDirectory(prefix="ignis-rows-") as name:
            kind = _KINDS[outcome.figures.get("trials", 0) % len(_KINDS)]
            url = aerospike_support.url(client_id=client_id)
            make_trial(Path(name) / "trial-000", kind, count, rng, url=url)
            outcome.rounds += count
            outcome.add(trials=1)
            _judge(outcome, Path(name))
        aerospike_support.forget(where, [client_id])
    return outcome.finish()


def tests(rounds: int, rng: random.Random, deadline: Callable[[], bool]) -> Iterator[Callable[[], Outcome]]:
    yield lambda: rows_property(rounds, rng, deadline)
    yield lambda: mutants(rng)
    yield lambda: on_aerospike(max(50, rounds // 10), rng, deadline)
