"""The bare ring in C: two threads on a core each, beside rigtorp::SPSCQueue. The programs print their own figures.

That one is a header of C++ that no distribution has: ``git clone https://github.com/rigtorp/SPSCQueue`` and
``IGNIS_BENCH_RIGTORP=SPSCQueue/include``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure import REPOSITORY, Options, Recorder, Result
from bench.processes import BenchError
from bench.tables import Goal, console, throughput_table

PROGRAM = "bench_ring"
PEER = "rigtorp::SPSCQueue"
_HEADER_VARIABLE = "IGNIS_BENCH_RIGTORP"
_ALONE = ("ring", "ring_always_empty", "ring_always_full")
_BUILD_TIMEOUT_S = 300.0
_RUN_TIMEOUT_S = 300.0


def build() -> Path:
    """Compiles the program and returns where it is. Raises BenchError."""
    _done(["make", "-C", str(REPOSITORY / "csrc"), PROGRAM], _BUILD_TIMEOUT_S)
    found = [path for path in (REPOSITORY / "csrc").rglob(PROGRAM) if path.is_file()]
    if not found:
        raise BenchError(f"make -C csrc {PROGRAM} made no program of that name")
    return max(found, key=lambda path: path.stat().st_mtime)


@contextlib.contextmanager
def _peer_built() -> Iterator[Path]:
    """The peer's program, as long as it is needed. Raises BenchError where its header is missing."""
    headers = os.environ.get(_HEADER_VARIABLE, "")
    if not (Path(headers) / "rigtorp" / "SPSCQueue.h").is_file():
        raise BenchError(
            f"MISSING: git clone https://github.com/rigtorp/SPSCQueue, and {_HEADER_VARIABLE} names its include directory"
        )
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        program = Path(directory) / "rigtorp_ring"
        source = REPOSITORY / "bench" / "peers" / "rigtorp_ring.cpp"
        command = ["c++", "-std=c++17", "-O3", "-I", headers, "-pthread", str(source), "-o", str(program)]
        _done(command, _BUILD_TIMEOUT_S)
        yield program


def _done(command: Sequence[str], limit_s: float) -> str:
    """What the command printed. Raises BenchError when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise BenchError(f"{command[0]}: {exc}") from exc
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def run(options: Options, recorder: Recorder) -> None:
    """Builds both and runs them in turns; their lines of JSON become rows."""
    ours, theirs, missing = [], [], ""
    with contextlib.ExitStack() as stack:
        try:
            program = build()
            peer = None
            if options.wants(PEER):
                try:
                    peer = stack.enter_context(_peer_built())
                except BenchError as exc:
                    missing = str(exc)
            for _ in range(options.runs):
                ours.append(_done([str(program)], _RUN_TIMEOUT_S))
                if peer is not None:
                    theirs.append(_done([str(peer)], _RUN_TIMEOUT_S))
        except BenchError as exc:
            result = Result("ignis ring", problem=str(exc))
            throughput_table("Ring in C, two threads", [result])
            recorder.write_all("ring", [result])
            return
    results = parse(ours)
    if not results:
        console.print(ours[-1], markup=False)
        results = [Result("ignis ring", problem=f"{PROGRAM} printed no line that this bench understands")]
    peers = [Result(PEER, problem=missing)] if missing else parse(theirs, PEER)
    throughput_table("Ring and channel in C, two threads on a core each, references or messages/s", [*results, *peers])
    rate = {one.peer: one.throughput for one in [*results, *peers]}
    single = rate.get("ignis ring, bulk 1")
    if single is not None:
        Goal("ring, try_push / try_pop", single.median / 1e6, 60, unit=" million/s").show()
    for name in _ALONE:
        mine, other = rate.get(_name(f"ignis {name}", 1, 0)), rate.get(_name(f"{PEER} {name}", 1, 0))
        if mine is not None and other is not None:
            ratio = mine.median / other.median
            Goal(f"{name.replace('_', ' ')}, one at a time: ignis / {PEER}", ratio, 1.0).show()
    recorder.write_all("ring", [*results, *peers])


def _name(bench: str, bulk: int, size: int) -> str:
    return f"{bench.replace('_', ' ')}, bulk {bulk}{f', {size} bytes' if size else ''}"


def parse(outputs: Sequence[str], who: str = "ignis") -> list[Result]:
    """Collects the lines of several runs, by what they measured."""
    results: dict[str, Result] = {}
    for output in outputs:
        for text in re.findall(r"^\{.*\}$", output, re.MULTILINE):
            line = json.loads(text)
            if not {"bench", "bulk", "size", "per_second"} <= line.keys():
                continue
            name = _name(f"{who} {line['bench']}", line["bulk"], line["size"])
            parameters = {"bulk": line["bulk"], "size_bytes": line["size"]}
            result = results.setdefault(name, Result(name, parameters=parameters))
            result.throughput.add(float(line["per_second"]))
            result.n += int(line.get("n", 0))
    return list(results.values())
