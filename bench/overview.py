"""What the console's overview costs: of a store with many queues, shards and messages, from a cold start and again.

One process fills a store and closes it. Others, one after the other, open it as ``ignis console`` does and make the overview:
each says how long the store took to open, and the first and a second look. The best of them is what the work takes; what the
others took longer, the machine was doing something else.

``python -m bench.overview --messages 5e6``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from ignis import Ignis

_BODY = b'{"customer": 7, "order": 123456, "total": "19.90"}'

_LOOK = """
import json, sys, time
from ignis import Ignis
from ignis.console.snapshot import Snapshot
times = []
began_s, cpu_s = time.perf_counter(), time.process_time()
app = Ignis(sys.argv[1])
store = app.store
times += [time.perf_counter() - began_s, time.process_time() - cpu_s]
for _ in range(2):
    began_s, cpu_s = time.perf_counter(), time.process_time()
    found = Snapshot(lambda: store).get()
    times += [time.perf_counter() - began_s, time.process_time() - cpu_s]
assert len(found.queues) == int(sys.argv[2])
assert sum(one["pending"] for one in found.queues.values()) == int(sys.argv[3])
print(json.dumps(times))
app.close()
"""


def fill(url: str, queues: int, shards: int, messages: int) -> int:
    """Returns how many messages there are."""
    from ignis.native import PackedBatch

    each = messages // (queues * shards)
    with Ignis(url) as app:
        for number in range(queues):
            queue = app.queue(f"queue-{number}", dict, shards=shards, durability="none")
            queue.open()
            for shard in range(shards):
                # Packed for one shard, and so loaded into this one.
                batches, _ = PackedBatch.pack_bodies(
                    [_BODY] * each, flags=queue.codec.flags, keys=None, shards=1, any_shard=0, max_records=each or 1,
                    max_bytes=1 << 20,
                )  # fmt: skip
                if batches:
                    app.store.magazines.load(queue.name, [(shard, batch) for _, batch in batches], None)
    return each * queues * shards


@click.command()
@click.option("--queues", default=100, show_default=True)
@click.option("--shards", default=32, show_default=True)
@click.option("--messages", default="1e6", show_default=True, help="In all queues together.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--dir", "directory", type=click.Path(file_okay=False), help="Where the store is made, and removed.")
def main(queues: int, shards: int, messages: str, rounds: int, directory: str | None) -> None:
    """Measures the console's overview."""
    path = Path(tempfile.mkdtemp(prefix="ignis-overview-", dir=directory))
    try:
        url = f"embedded://{path}/store"
        began_s = time.perf_counter()
        count = fill(url, queues, shards, int(float(messages)))
        click.echo(
            f"{queues} queues x {shards} shards, {count:,} messages, filled in {time.perf_counter() - began_s:.1f} s"
        )
        found = []
        for _ in range(rounds):
            command = [sys.executable, "-c", _LOOK, url, str(queues), str(count)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        columns = [[one * 1e3 for one in column] for column in zip(*found, strict=True)]
        for at, name in enumerate(("open", "first look", "second look")):
            wall, processor = columns[2 * at], columns[2 * at + 1]
            click.echo(
                f"{name:12} best {min(wall):7.1f} ms, median {statistics.median(wall):7.1f} ms; "
                f"processor best {min(processor):6.1f} ms, median {statistics.median(processor):6.1f} ms"
            )
        cold = [row[0] + row[2] for row in found]
        click.echo(f"cold start   best {min(cold) * 1e3:7.1f} ms, median {statistics.median(cold) * 1e3:7.1f} ms")
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
