"""What the children do to a store: write, consume, move, drain, browse. Each is a role for `process.Child`.

Every actor opens its own store and reports each step on its pipe: *before* it sends, after it was told that the
messages are durable, when it sees one, and after a deletion was confirmed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignis.errors import IgnisError, StoreError, StoreFailedError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native import CODEC_RAW, PackedBatch, Record
from ignis.storage import (
    embedded,  # noqa: F401 - now, in the parent: all children of a run must run one version of it
    open_store,
)
from ignis.storage.base import MagazineStore, Store, Transfer
from ignis.storage.records import group_pointers
from tests.torture.ledger import make_body, make_id, read_body
from tests.torture.process import Reporter, Role

__all__ = [
    "FOREVER_MS",
    "Place",
    "browser",
    "consumer",
    "creator",
    "drain",
    "drainer",
    "mover",
    "store_url",
    "sweeper",
    "writer",
]

MAIN = "torture"
SIDELINE = MAIN + SIDELINE_SUFFIX
FOREVER_MS = 1 << 52


def store_url(directory: object) -> str:
    """Of the store in that directory."""
    return f"embedded://{directory}"


@dataclass(frozen=True)
class Place:
    """A store and the two magazines in it: what every actor needs.

    ``sideline_durability`` empty = the same as the main magazine's. Different ones force the moves between them to
    be two transactions.
    """

    url: str
    durability: str = "sync"
    sideline_durability: str = ""
    shards: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Store:
        store = open_store(self.url, **self.options)
        store.magazines.declare(MAIN, self.shards, self.durability)
        store.magazines.declare(SIDELINE, self.shards, self.sideline_durability or self.durability)
        return store

    @property
    def two_steps(self) -> bool:
        """A move between the magazines takes two transactions."""
        return bool(self.sideline_durability) and self.sideline_durability != self.durability

    def magazines(self) -> tuple[str, str]:
        return MAIN, SIDELINE


def creator(place: Place) -> Role:
    """Makes the store and its magazines, and closes it."""

    def role(report: Reporter) -> None:
        place.open().close()

    return role


def pack(
    identities: Sequence[int], shards: int, any_shard: int, filler_bytes: int = -1
) -> list[tuple[int, PackedBatch]]:
    """Batches for `MagazineStore.load`: all of them on one shard, so that the order within it can be checked."""
    batches, _ = PackedBatch.pack_bodies(
        [make_body(one, filler_bytes) for one in identities],
        flags=CODEC_RAW,
        keys=None,
        shards=shards,
        any_shard=any_shard % shards,
    )
    return batches


def identify(report: Reporter, records: Sequence[bytes | None]) -> list[int]:
    """The identities of the records; corrupt ones and ones with altered bodies are reported instead."""
    found: list[int] = []
    corrupt = altered = 0
    for record in records:
        identity = None if record is None else read_body(bytes(Record(record).body))
        if identity is not None:
            found.append(identity)
        elif record is None:
            corrupt += 1
        else:
            altered += 1
    if corrupt:
        report.corrupt(corrupt)
    if altered:
        report.altered(altered)
    return found


def writer(
    place: Place,
    number: int,
    first: int = 0,
    *,
    limit: int = 1 << 39,
    pause_after: int = 0,
    sizes: Sequence[int] = (1, 1, 1, 2, 7, 40),
    pause_s: float = 0.0,
    filler_bytes: int = -1,
    stop_when_failed: bool = True,
    delay_share: float = 0.0,
) -> Role:
    """Loads messages ``first``, ``first + 1``, ... of writer ``number`` until killed, or ``limit`` of them.

    Args:
        pause_after: after this many acknowledgements notes ``paused`` and does nothing more: lock-step.
        sizes: lengths of the batches, drawn at random.
        pause_s: between batches.
        stop_when_failed: end at StoreFailedError; otherwise go on trying, as a careless caller would.
        delay_share: of the batches, which are due a moment later.
    """

    def role(report: Reporter) -> None:
        rng = random.Random()
        store = place.open()
        report.note("opened")
        write(store.magazines, lambda: int(store.now_s() * 1000), report, rng)
        store.close()

    def write(magazines: MagazineStore, now_ms: Callable[[], int], report: Reporter, rng: random.Random) -> None:
        sequence, end, acknowledged = first, first + limit, 0
        while sequence < end:
            stop = min(end, sequence + rng.choice(sizes))
            many = [make_id(number, one) for one in range(sequence, stop)]
            sequence = stop
            report.sending(many)
            try:
                batches = pack(many, place.shards, rng.randrange(place.shards), filler_bytes)
                if rng.random() < delay_share:
                    magazines.load_later(MAIN, batches, [_dues(now_ms(), len(many), rng)], None)
                else:
                    magazines.load(MAIN, batches, None)
            except StoreError as exc:
                report.refused(many, exc)
                if stop_when_failed and isinstance(exc, StoreFailedError):
                    report.note("failed", exc)
                    return
                time.sleep(0.001)
                continue
            report.acknowledged(many)
            acknowledged += len(many)
            if pause_after and acknowledged >= pause_after:
                report.note("paused")
                threading.Event().wait()
            if pause_s:
                time.sleep(pause_s)
        report.note("done")

    return role


def consumer(
    place: Place,
    *,
    limit: int = 50,
    sideline_share: float = 0.0,
    reload_share: float = 0.0,
    retry_share: float = 0.0,
    idle_end: bool = False,
) -> Role:
    """Fires, then finishes, sidelines, reloads or puts off what it got, until killed (``idle_end``: until nothing is left).

    A moved message counts as not seen: it has to come out at the end.
    """

    def role(report: Reporter) -> None:
        rng = random.Random()
        store = place.open()
        report.note("opened")
        magazines = store.magazines
        while True:
            try:
                sequence = magazines.wait(MAIN, -1, 0)
                if consume(store, report, rng) == 0:
                    if idle_end:
                        break
                    magazines.wait(MAIN, sequence, 0.05)
            except StoreFailedError as exc:
                report.note("failed", exc)
                break
            except StoreError as exc:
                report.note("error", exc)
                time.sleep(0.001)
        store.close()

    def consume(store: Store, report: Reporter, rng: random.Random) -> int:
        magazines = store.magazines
        fired = magazines.fire(MAIN, rng.randint(1, limit), store.owner)
        for claim in fired.claims:
            known = identify(report, claim.records)
            pointers = {claim.shard: list(claim.pointers)}
            luck = rng.random()
            if luck < sideline_share and None not in claim.records:
                magazines.transfer(MAIN, SIDELINE, _transfers(claim.shard, claim.pointers, claim.records), None)
            elif luck < sideline_share + reload_share:
                magazines.reload(MAIN, pointers)
            elif luck < sideline_share + reload_share + retry_share and None not in claim.records:
                items = _transfers(claim.shard, claim.pointers, claim.records)
                magazines.defer(MAIN, items, _dues(int(store.now_s() * 1000), len(items), rng))
            else:
                report.seen(known)
                magazines.delete(MAIN, pointers)
                report.finished(known)
        return fired.total()

    return role


def _dues(now_ms: int, count: int, rng: random.Random) -> list[int]:
    return [now_ms + rng.randint(0, 50) for _ in range(count)]


def _transfers(shard: int, pointers: Sequence[int], records: Sequence[bytes | None]) -> list[Transfer]:
    return [
        Transfer(shard, pointer, record, shard)
        for pointer, record in zip(pointers, records, strict=True)
        if record is not None
    ]


def mover(place: Place, *, source: str = SIDELINE, target: str = MAIN, limit: int = 50) -> Role:
    """A shovel: fires from the sideline and transfers back to the main magazine, until killed."""

    def role(report: Reporter) -> None:
        store = place.open()
        report.note("opened")
        magazines = store.magazines
        while True:
            try:
                moved = 0
                for claim in magazines.fire(source, limit, store.owner).claims:
                    moved += magazines.transfer(
                        source, target, _transfers(claim.shard, claim.pointers, claim.records), None
                    )
                report.note("moved", moved)
                if not moved:
                    time.sleep(0.002)
            except StoreFailedError as exc:
                report.note("failed", exc)
                return
            except StoreError as exc:
                report.note("error", exc)
                time.sleep(0.001)

    return role


def sweeper(place: Place) -> Role:
    """Moves what dead owners held to the sideline, until killed."""

    def role(report: Reporter) -> None:
        store = place.open()
        report.note("opened")
        while True:
            try:
                report.note("swept", sweep(store, place))
            except StoreError as exc:
                report.note("error", exc)
            time.sleep(0.002)

    return role


def sweep(store: Store, place: Place) -> int:
    """One pass over the main magazine; returns how many records moved."""
    moved = 0
    for shard in range(place.shards):
        found = store.magazines.abandoned(MAIN, shard, 0, 1000)
        items = [Transfer(one.shard, one.pointer, one.record, one.shard) for one in found if one.record is not None]
        if items:
            moved += store.magazines.transfer(MAIN, SIDELINE, items, None)
    return moved


def drain(store: Store, place: Place, report: Reporter, ordered: bool = True) -> None:
    """Hands out everything that the magazines hold, fired or not, due or not, and deletes it.

    ``ordered``: let the ledger check the order within each shard of the main magazine. Not after moves: a message
    that came back is behind younger ones.
    """
    magazines = store.magazines
    while waiting := magazines.list_later(MAIN, limit=5000):  # for its next attempt
        if not magazines.run_now(MAIN, group_pointers((one.shard, one.pointer) for one in waiting)):
            report.note("left", f"{len(waiting)} delayed")
            break
    for name in place.magazines():
        while True:
            fired = magazines.fire(name, 5000, store.owner)
            for claim in fired.claims:
                known = identify(report, claim.records)
                report.seen(known, claim.shard if ordered and name == MAIN else -1)
                magazines.delete(name, {claim.shard: list(claim.pointers)})
                report.finished(known)
            if fired.total() == 0 and not fired.expired:
                break
        for shard in range(place.shards):
            while True:
                held = magazines.abandoned(name, shard, FOREVER_MS, 5000)
                if not held:
                    break
                known = identify(report, [one.record for one in held])
                report.seen(known)
                magazines.delete(name, {shard: [one.pointer for one in held]})
                report.finished(known)
        left = [
            (one.shard, one.pending, one.in_flight) for one in magazines.metadata(name) if one.pending or one.in_flight
        ]
        if left:
            report.note("left", f"{name}: (shard, pending, in flight) {left}")


def drainer(place: Place, *, ordered: bool = True) -> Role:
    """Opens, drains everything, closes. ``ordered``: see `drain`."""

    def role(report: Reporter) -> None:
        store = place.open()
        report.note("opened")
        drain(store, place, report, ordered)
        store.close()
        report.note("drained")

    return role


def browser(place: Place) -> Role:
    """Opens, browses everything that exists without claiming it, closes."""

    def role(report: Reporter) -> None:
        store = place.open()
        report.note("opened")
        for name in place.magazines():
            after: dict[int, int] = {}
            while found := store.magazines.scan(name, after=after, limit=2000):
                report.present(identify(report, [record for _, _, record in found]))
                after.update({shard: pointer for shard, pointer, _ in found})
        behind = None
        while waiting := store.magazines.list_later(MAIN, after=behind, limit=2000):
            report.present(identify(report, [one.record for one in waiting]))
            behind = waiting[-1][:3]
        store.close()
        report.note("browsed")

    return role


def try_close(store: Store) -> None:
    """Closes a store that may have failed."""
    try:
        store.close()
    except IgnisError:
        return
