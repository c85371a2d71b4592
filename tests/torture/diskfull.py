"""Disk full and map full: loads are refused with StoreFullError, drains go on, and it recovers without a restart."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ignis.errors import IgnisError, StoreFullError
from ignis.storage.base import Store
from tests.torture import volume
from tests.torture.actors import MAIN, Place, drainer, identify, pack, store_url
from tests.torture.ledger import Ledger, make_id
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["diskfull", "mapfull"]

_FILLER_BYTES = 900
_BATCH = 20
_BALLAST_BYTES = 8 << 20
_TMPFS_MB = 64
_TIMEOUT_S = 60


def _fill(place: Place, ballast: Path | None) -> Role:
    """Loads until refused, drains while full, makes room, loads again; all with one open store."""

    def role(report: Reporter) -> None:
        store = place.open()
        report.note("opened")
        sequence = load_until_refused(store, report, 0)
        drained = consume(store, report, 10 * _BATCH)
        report.note("drained_while_full", drained)
        if ballast is not None:
            ballast.unlink(missing_ok=True)
        else:
            consume(store, report, 1 << 40)
        deadline = time.monotonic() + _TIMEOUT_S / 2
        again = 0
        while again < 5 and time.monotonic() < deadline:
            sequence, stored = load(store, report, sequence)
            again += stored
            if not stored:
                time.sleep(0.05)
        report.note("stored_again", again)
        store.close()

    def load(store: Store, report: Reporter, sequence: int) -> tuple[int, bool]:
        many = [make_id(1, one) for one in range(sequence, sequence + _BATCH)]
        report.sending(many)
        try:
            batches = pack(many, place.shards, sequence // _BATCH, _FILLER_BYTES)
            store.magazines.load(MAIN, batches, None)
        except IgnisError as exc:
            report.refused(many, exc)
            if not isinstance(exc, StoreFullError):
                report.note("wrong_error", f"{type(exc).__name__}: {exc}")
            return sequence + _BATCH, False
        report.acknowledged(many)
        return sequence + _BATCH, True

    def load_until_refused(store: Store, report: Reporter, sequence: int) -> int:
        refused = 0
        end = time.monotonic() + _TIMEOUT_S / 2
        while refused < 5 and time.monotonic() < end:
            sequence, stored = load(store, report, sequence)
            refused += not stored
        report.note("full", sequence)
        return sequence

    def consume(store: Store, report: Reporter, most: int) -> int:
        done = 0
        while done < most:
            fired = store.magazines.fire(MAIN, _BATCH, store.owner)
            if fired.total() == 0:
                break
            for claim in fired.claims:
                known = identify(report, claim.records)
                report.seen(known)
                done += store.magazines.delete(MAIN, {claim.shard: list(claim.pointers)})
                report.finished(known)
        return done

    return role


def _judge(outcome: Outcome, place: Place, role: Role, where: str) -> None:
    ledger = Ledger()
    with Child(role, "filler") as child:
        ended = follow([child], ledger, lambda: False, _TIMEOUT_S)
        status = child.join(ledger, 5) if ended else None
        if status != 0:
            outcome.fault(f"{where}: exit {status}: {child.notes[-3:]} {child.trouble()}")
        wrong = child.noted("wrong_error")
        if wrong is not None:
            outcome.fault(f"{where}: refused with another error: {wrong}")
        if not child.refusals:
            outcome.fault(f"{where}: never refused a load")
        if status == 0 and int(child.noted("drained_while_full") or 0) < 10 * _BATCH:
            outcome.fault(f"{where}: drained only {child.noted('drained_while_full')} while full")
        if status == 0 and int(child.noted("stored_again") or 0) < 5:
            outcome.fault(f"{where}: did not recover without a restart")
        outcome.add(refused=sum(child.refusals.values()))
    with Child(drainer(place), "drainer") as child:
        status = child.join(ledger, 60)
        if status or child.noted("left") is not None:
            outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
            return
    outcome.take(ledger.verdict(), where)


@contextmanager
def _tmpfs(directory: Path) -> Iterator[Path]:
    path = directory / "mount"
    path.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS_MB}m", "ignis-torture", str(path)],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=False, capture_output=True, timeout=30)


def _grow_ballast(mount: Path, leave_bytes: int) -> Path:
    """A file that leaves so much room on the file system."""
    free = os.statvfs(mount)
    size = free.f_bavail * free.f_frsize - leave_bytes
    ballast = mount / "ballast"
    with open(ballast, "wb") as handle:
        if size > 0:
            os.posix_fallocate(handle.fileno(), 0, size)
    return ballast


def diskfull(
    rounds: int, rng: random.Random, *, kind: str = "xfs", durability: str = "sync", deadline: float = float("inf")
) -> Outcome:
    """Fills a small file system (``kind``: "tmpfs", "xfs" or "ext4") under a store that is at work."""
    outcome = Outcome(f"diskfull/{kind}/{durability}")
    reason = volume.unavailable("xfs" if kind == "tmpfs" else kind)
    if reason:
        outcome.skipped = reason
        return outcome
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        with tempfile.TemporaryDirectory(prefix="ignis-diskfull-") as directory:
            mount = _tmpfs(Path(directory)) if kind == "tmpfs" else None
            if mount is not None:
                with mount as path:
                    _fill_disk(outcome, path, rng, durability, number)
            else:
                with volume.Volume(Path(directory), kind) as one:
                    _fill_disk(outcome, one.path, rng, durability, number)
        outcome.rounds += 1
    return outcome.finish()


def _fill_disk(outcome: Outcome, path: Path, rng: random.Random, durability: str, number: int) -> None:
    place = Place(store_url(f"{path}/store"), durability, shards=2)
    with Child(drainer(place), "creator") as child:
        if child.join(None):
            outcome.fault(f"round {number}: create: {child.trouble()}")
            return
    ballast = _grow_ballast(path, _BALLAST_BYTES + rng.randrange(1 << 20))
    _judge(outcome, place, _fill(place, ballast), f"round {number}")


def mapfull(rounds: int, rng: random.Random, *, durability: str = "sync", deadline: float = float("inf")) -> Outcome:
    """The store's own limit instead of the disk's."""
    outcome = Outcome(f"mapfull/{durability}")
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        limit = (4 << 20) + rng.randrange(4 << 20) // 4096 * 4096
        with tempfile.TemporaryDirectory(prefix="ignis-mapfull-") as directory:
            options = {"max_store_bytes": limit}
            place = Place(store_url(f"{directory}/store"), durability, shards=2, options=options)
            _judge(outcome, place, _fill(place, None), f"round {number} (limit {limit})")
        outcome.rounds += 1
    return outcome.finish()
