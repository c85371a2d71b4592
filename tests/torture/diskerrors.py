"""Real write errors under a store's data: the device below its file system has no room left, and gets it back.

The image lies in a small tmpfs. Once that is full, whatever the file system writes to a part of its device that was never
written before fails, behind the back of who had been told that there is room: the flush reports it, once. What the
file system keeps of its own was written when it was made. Writers go on trying, as careless callers would: what was
refused must not be found, what is acknowledged, later too, must be. In half of the rounds the power fails at the end.

On ext4 the first write to fail is one of its journal's, and then fdatasync says 0 to whoever comes second, for a plain file
too: nothing that a store does can mend that, so the programme does not judge it there.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.torture.actors import Place, consumer, creator, drainer, store_url, writer
from tests.torture.ledger import Ledger
from tests.torture.process import Child, follow
from tests.torture.report import Outcome
from tests.torture.volume import Volume, unavailable

__all__ = ["diskerrors"]

_TMPFS_MB = 160
_GROWN_MB = 400
_WHOLE = {
    "xfs": ("-K",),
    "ext4": ("-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=8"),
}


@contextlib.contextmanager
def _thin(directory: Path) -> Iterator[Path]:
    path = directory / "thin"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS_MB}m", "ignis-torture", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True, timeout=30)


def _fill(path: Path) -> Path:
    filler = path / "filler"
    with open(filler, "wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(1 << 16))
    return filler


def _grow(path: Path) -> None:
    command = ["mount", "-o", f"remount,size={_GROWN_MB}m", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def diskerrors(
    rounds: int, rng: random.Random, *, kind: str = "xfs", durability: str = "sync", deadline: float = float("inf")
) -> Outcome:
    """``rounds`` times: room, none, room again."""
    outcome = Outcome(f"diskerrors/{kind}/{durability}")
    reason = unavailable(kind)
    if reason:
        outcome.skipped = reason
        return outcome
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        with (
            tempfile.TemporaryDirectory(prefix="ignis-diskerrors-") as directory,
            _thin(Path(directory)) as thin,
            Volume(thin, kind, options=_WHOLE[kind], page_requests=True) as volume,
        ):
            _one_round(outcome, rng, thin, volume, durability, number)
        outcome.rounds += 1
    if outcome.rounds and not outcome.figures.get("refused"):
        outcome.skipped = f"no write failed in {outcome.rounds} round(s); nothing was tried"
    return outcome.finish()


def _one_round(outcome: Outcome, rng: random.Random, thin: Path, volume: Volume, durability: str, number: int) -> None:
    place = Place(store_url(volume.path / "store"), durability, shards=2)
    ledger = Ledger()
    with Child(creator(place), "creator") as child:
        if child.join(None):
            raise RuntimeError(f"the store was not created: {child.trouble()}")
    cut = number % 2 == 0
    children = [
        Child(writer(place, one, pause_s=0.002, filler_bytes=3_000, stop_when_failed=False), "writer") for one in (1, 2)
    ]
    children.append(Child(consumer(place), "consumer"))
    try:
        if not follow(children, ledger, lambda: all(one.noted("opened") is not None for one in children), 20):
            raise RuntimeError("a child did not start: " + " | ".join(one.trouble() for one in children))

        def work(seconds: float) -> None:
            end = time.monotonic() + seconds
            follow(children, ledger, lambda: time.monotonic() >= end, seconds + 5)

        work(rng.uniform(0.2, 0.5))
        filler = _fill(thin)
        work(rng.uniform(1.0, 3.0))
        before = sum(one.acknowledged for one in children)
        filler.unlink()
        work(rng.uniform(1.0, 2.0))
        outcome.add(went_on=sum(one.acknowledged for one in children) > before)
        if cut:
            volume.cut()
        for one in children:
            one.kill()
        for one in children:
            one.join(ledger)
    finally:
        for one in children:
            one.close()
    outcome.add(refused=len(ledger.refused), cuts=cut)
    _grow(thin)  # what the file system replays has room
    volume.restart()
    before_drain = dict(ledger.seen)
    with Child(drainer(place), "drainer") as child:
        status = child.join(ledger, 60)
        if status or child.noted("left") is not None:
            outcome.fault(f"round {number}: drain: exit {status} {child.noted('left') or ''} {child.trouble()[-600:]}")
            return
    # A consumer may be handed a message whose publisher is then told of a failed flush; from then on it is not there.
    found = {one for one in ledger.refused if ledger.seen.get(one, 0) > before_drain.get(one, 0)}
    outcome.add(refused_found=len(found))
    if found and not cut:
        outcome.fault(f"round {number}: {len(found)} refused and found all the same")
    if ledger.corrupt:
        outcome.fault(f"round {number}: {ledger.corrupt} corrupt")
    outcome.take(ledger.verdict(), f"round {number}")
