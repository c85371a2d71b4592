"""The bare ring in C, without Python: two threads on a core each. The program prints its own figures."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from bench.measure import REPOSITORY, Options, Recorder, Result
from bench.processes import BenchError
from bench.tables import Goal, console, throughput_table

PROGRAM = "bench_ring"
_BUILD_TIMEOUT_S = 300.0
_RUN_TIMEOUT_S = 300.0


def build() -> Path:
    """Compiles the program and returns where it is. Raises BenchError."""
    made = subprocess.run(
        ["make", "-C", str(REPOSITORY / "csrc"), PROGRAM],
        capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise BenchError(f"make -C csrc {PROGRAM}: {made.stderr.strip()[-500:]}")
    found = [path for path in (REPOSITORY / "csrc").rglob(PROGRAM) if path.is_file()]
    if not found:
        raise BenchError(f"make -C csrc {PROGRAM} made no program of that name")
    return max(found, key=lambda path: path.stat().st_mtime)


def run(options: Options, recorder: Recorder) -> None:
    """Builds and runs it; its lines of JSON become rows."""
    result = Result("ignis ring")
    try:
        program = build()
        lines = []
        for _ in range(options.runs):
            done = subprocess.run(
                [str(program)],
                capture_output=True,
                text=True,
                timeout=_RUN_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode != 0:
                raise BenchError(f"{PROGRAM} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
            lines.append(done.stdout)
    except (BenchError, OSError, subprocess.TimeoutExpired) as exc:
        result.problem = str(exc)
        throughput_table("Ring in C, two threads", [result])
        recorder.write_all("ring", [result])
        return
    results = parse(lines)
    if not results:
        console.print(lines[-1], markup=False)
        result.problem = f"{PROGRAM} printed no line that this bench understands"
        results = [result]
    throughput_table("Ring and channel in C, two threads on a core each, references or messages/s", results)
    single = next((r.throughput.median for r in results if r.peer == "ignis ring, bulk 1"), float("nan"))
    Goal("ring, try_push / try_pop", single / 1e6, 60, unit=" million/s").show()
    recorder.write_all("ring", results)


def parse(outputs: list[str]) -> list[Result]:
    """Collects the lines of several runs, by what they measured."""
    results: dict[str, Result] = {}
    for output in outputs:
        for text in re.findall(r"^\{.*\}$", output, re.MULTILINE):
            line = json.loads(text)
            if not {"bench", "bulk", "size", "per_second"} <= line.keys():
                continue
            size = f", {line['size']} bytes" if line["size"] else ""
            name = f"ignis {line['bench'].replace('_', ' ')}, bulk {line['bulk']}{size}"
            parameters = {"bulk": line["bulk"], "size_bytes": line["size"]}
            result = results.setdefault(name, Result(name, parameters=parameters))
            result.throughput.add(float(line["per_second"]))
            result.n += int(line.get("n", 0))
    return list(results.values())
