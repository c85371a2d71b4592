"""What waits for its time in the embedded store: a later magazine in the main one's log, whose due times the engine keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ignis.errors import QueueNotFoundError
from ignis.native import PackedBatch
from ignis.native import store as native
from ignis.native.store import NoShardError
from ignis.storage.checks import check_dues
from ignis.storage.embedded import inspection, transfers
from ignis.storage.embedded.catalogue import Catalogue, Magazine
from ignis.storage.embedded.claim_scan import warn_of_late
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.format import keep_later
from ignis.storage.embedded.writes import Writes
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.in_flight import guarded
from ignis.storage.later import MOVE_LIMIT, Delayed, KeepsLater, MovedDue, later_of
from ignis.storage.records import KEEP_TTL, Fence, Pointers, Transfer
from ignis.storage.runs import runs_of

__all__ = ["EmbeddedLater"]

_T = TypeVar("_T")
_FIRST = (0, 0, 0)
_AT_ONCE = 4_096
"""Messages that are read together for a list."""
_Place = tuple[int, int, int]
_LIVING, _EXPIRED = 5, 7
"""Of `Log.shards`."""


class EmbeddedLater(KeepsLater):
    """The later magazines of one application. Thread-safe."""

    keeps_later = True
    _store: StoreContext
    _catalogue: Catalogue
    _writes: Writes
    _expired_log: ExpiredLog
    calls: dict[str, int]

    @guarded
    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        check_dues(dues_ms, [batch.count for _, batch in batches])
        expires_at_ms = self._store.directory.clock.expiry_ms(ttl_s)

        def load(main: Magazine, later: Magazine) -> list[int]:
            if ttl_s is not None:
                for _, batch in batches:
                    batch.set_expiry(expires_at_ms)
            return native.load_later(later.log, later.number, batches, dues_ms, durable=later.durable)

        if not batches:
            self._catalogue.find(magazine)
            return []
        with self._store.directory.refused_loads:
            firsts = self._with_later(magazine, [shard for shard, _ in batches], load)
        self.calls["loads"] += 1
        return firsts

    @guarded
    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        check_dues([dues_ms], [len(items)])
        expires_at_ms = None if ttl_s == KEEP_TTL else self._store.directory.clock.expiry_ms(ttl_s)
        self.calls["transfers"] += 1
        if fence is not None or not items:  # the later magazine is made for what is put there, and not before
            self._catalogue.on(magazine, lambda main: transfers.fenced(self._store, main, fence, lambda _: None))
        if not items:
            return 0
        return self._with_later(
            magazine,
            [item.target_shard for item in items],
            lambda main, later: transfers.defer(self._store, main, later, items, dues_ms, expires_at_ms, fence),
        )

    @guarded
    def next_due_ms(self, magazine: str) -> int | None:
        due_ms: int | None = self._catalogue.on(magazine, _next_due)
        return due_ms

    @guarded
    def due_in_s(self, magazine: str) -> float | None:
        if not self._catalogue.find(magazine).log.later:
            return None
        due_ms = self._catalogue.on(magazine, _next_due)
        return None if due_ms is None else self._store.directory.clock.until_s(due_ms)

    @guarded
    def move_due(self, magazine: str, limit: int = MOVE_LIMIT, fence: Fence | None = None) -> MovedDue:
        def move(main: Magazine) -> MovedDue:
            now_ms = self._store.directory.clock.now_ms()
            moved = transfers.fenced(
                self._store,
                main,
                fence,
                lambda held: MovedDue(*native.move_due(main.log, main.number, now_ms, limit, fence=held)),
            )
            warn_of_late(main, self._expired_log)
            return moved

        return self._catalogue.on(magazine, move)

    @guarded
    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        self._catalogue.find(magazine)
        return self._on_later(magazine, lambda later: _list(later, after, limit, None)[0], [])

    @guarded
    def list_later_within(
        self, magazine: str, *, after: tuple[int, int, int] | None, limit: int, max_bytes: int
    ) -> tuple[list[Delayed], bool]:
        self._catalogue.find(magazine)
        nothing: tuple[list[Delayed], bool] = ([], False)
        return self._on_later(magazine, lambda later: _list(later, after, limit, max_bytes), nothing)

    @guarded
    def run_now(self, magazine: str, pointers: Pointers) -> int:
        def run(main: Magazine, later: Magazine) -> int:
            moved = 0
            left = {shard: runs_of(many) for shard, many in pointers.items() if 0 <= shard < 1 << 16}
            while left:
                pieces, left = inspection.read_some(later, left)
                items = [
                    Transfer(shard, pointer, record, shard % main.shards)
                    for shard, first, records, _ in pieces
                    for pointer, record in enumerate(records, first)
                    if record is not None
                ]
                moved += transfers.transfer(self._store, later, main, items, None, None) if items else 0
            return moved

        main = self._catalogue.find(magazine)
        return self._on_later(magazine, lambda later: run(main, later), 0)

    @guarded
    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        self._catalogue.find(magazine)
        self.calls["deletes"] += 1
        return self._on_later(magazine, lambda later: self._writes.retire(later, pointers), 0)

    @guarded
    def delayed(self, magazine: str) -> int:
        self._catalogue.find(magazine)
        return self._on_later(
            magazine, lambda later: sum(state[_LIVING] for state in later.log.shards(later.number)), 0
        )

    @guarded
    def expired_later(self, magazine: str) -> int:
        self._catalogue.find(magazine)
        return self._on_later(
            magazine, lambda later: sum(state[_EXPIRED] for state in later.log.shards(later.number)), 0
        )

    # -- the later magazine

    def _on_later(self, magazine: str, call: Callable[[Magazine], _T], otherwise: _T) -> _T:
        """Calls with the later magazine, if there is one."""
        try:
            return self._catalogue.on(later_of(magazine), call)
        except QueueNotFoundError:
            return otherwise

    def _with_later(self, magazine: str, shards: Sequence[int], call: Callable[[Magazine, Magazine], _T]) -> _T:
        """Calls with the main magazine and its later one, which is made when there is none."""

        def on(main: Magazine) -> _T:
            if main.durability == "interval":
                self._store.directory.changing("interval")
            known = self._catalogue.remembered(later_of(magazine))
            if known is not None and known.log is main.log and max(shards, default=0) < known.shards:
                with suppress(QueueNotFoundError, NoShardError):
                    return call(main, known)
            self._catalogue.forget_name(later_of(magazine))
            if shards and not 0 <= min(shards) <= max(shards) < main.shards:
                raise self._catalogue.no_shard(main, shards)
            # Which notices that the directory was moved, before a file is written where it was.
            main.log.flush(refuse=False)
            keep_later(self._store.directory.path)
            try:
                return call(main, self._catalogue.declare_later(main, later_of(magazine)))
            except NoShardError:
                raise self._catalogue.no_shard(main, shards) from None

        return self._catalogue.on(magazine, on)


def _next_due(main: Magazine) -> int | None:
    due_ms: int | None = native.next_due(main.log, main.number)
    return due_ms


def _list(
    later: Magazine, after: tuple[int, int, int] | None, limit: int, max_bytes: int | None
) -> tuple[list[Delayed], bool]:
    """What waits behind ``after``, and whether it ended because the records have so many bytes."""
    found: list[Delayed] = []
    halved = False
    places = _places(later, _FIRST if after is None else after, limit)
    while places:
        records = _records(later, places, max_bytes)
        if records is None and len(places) == 1 and found:
            return found, True
        if records is None and len(places) > 1:
            places = places[: len(places) // 2]
            halved = True
            continue
        if records is None:
            records = _records(later, places, None) or {}
        found += (Delayed(*place, records[place[1:]]) for place in places if place[1:] in records)
        if max_bytes is not None:
            max_bytes -= sum(len(record or b"") for record in records.values())
            if halved or max_bytes <= 0:
                return found, True
        places = _places(later, places[-1], limit - len(found))
    return found, False


def _places(later: Magazine, after: _Place, limit: int) -> list[_Place]:
    """The next ones (due time, shard, pointer), at most so many."""
    places: list[_Place] = []
    most = min(limit, _AT_ONCE)
    if most > 0:
        for due_ms, shard, first, last in native.list_later(later.log, later.number, after, most):
            stop = min(last + 1, first + most - len(places))
            places += ((due_ms, shard, pointer) for pointer in range(first, stop))
            if len(places) == most:
                break
    return places


def _records(
    later: Magazine, places: Sequence[_Place], max_bytes: int | None
) -> dict[tuple[int, int], bytes | None] | None:
    """What stands there, by shard and pointer, read in the order in which it lies in the log: neighbours in time are strewn over
    batches, and each of these is opened once. None: it is more than ``max_bytes``."""
    by_shard: dict[int, list[int]] = {}
    for _, shard, pointer in places:
        by_shard.setdefault(shard, []).append(pointer)
    records: dict[tuple[int, int], bytes | None] = {}
    for shard, pointers in by_shard.items():
        runs = runs_of(pointers)
        if max_bytes is None:
            pieces = later.log.peek(later.number, shard, runs)
        else:
            pieces, cut = later.log.peek_within(later.number, shard, runs, max_bytes)
            max_bytes -= sum(len(record or b"") for _, some, _ in pieces for record in some)
            if cut or max_bytes < 0:
                return None
        for first, some, _ in pieces:
            records.update(((shard, pointer), record) for pointer, record in enumerate(some, first))
    return records
