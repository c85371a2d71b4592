"""The writes of a magazine's data, as operations for the committer, and what follows their commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from ignis.errors import ConfigError, QueueNotFoundError
from ignis.native import PackedBatch
from ignis.storage.base import Fence, Pointers, Transfer, group_pointers
from ignis.storage.checks import check_epoch
from ignis.storage.embedded import catalogue, claims, segments
from ignis.storage.embedded.catalogue import Catalogue, MagazineInfo, Scope
from ignis.storage.embedded.committer import Operation
from ignis.storage.embedded.directory import Directory
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.locks import read_epoch
from ignis.storage.embedded.segments import Retired, Touched
from ignis.storage.runs import runs_of

__all__ = ["Delete", "Load", "Move", "Place", "Reload", "announce", "live_pointers", "pack_records", "settle"]

_CHUNK_RECORDS = 1_024
_SEGMENT_OVERHEAD_BYTES = 3 * 4096


class Place:
    """A magazine as an operation sees it: looked up by name, and looked up again inside the transaction."""

    __slots__ = ("catalogue", "directory", "info")

    def __init__(self, directory: Directory, known: Catalogue, info: MagazineInfo) -> None:
        self.directory = directory
        self.catalogue = known
        self.info = info

    def current(self, txn: Txn) -> MagazineInfo:
        """The magazine now. Raises QueueNotFoundError when it was dropped since the call began."""
        info = self.info
        fresh: MagazineInfo | None
        if info.durability == "sync":
            fresh = catalogue.get(txn, self.catalogue.scope, info.name)
        else:
            fresh = self.catalogue.find(info.name, self.directory.board.sequence(self.directory.catalogue_event))
        if fresh is None or fresh.durability != info.durability:
            raise QueueNotFoundError(f"magazine {info.name!r} was dropped")
        return fresh

    @property
    def event(self) -> int:
        return self.info.id % self.directory.events

    def check_fence(self, txn: Txn, fence: Fence | None) -> None:
        """Raises StaleEpochError. In the same transaction where the magazine lives beside the epochs; elsewhere read
        while the write lock of the magazine's environment is held."""
        if fence is None:
            return
        scope: Scope = self.catalogue.scope
        if self.info.durability == "sync":
            epoch = read_epoch(txn, scope, fence.scope)
        else:
            with self.directory.data("sync").env.reading() as other:
                epoch = read_epoch(other, scope, fence.scope)
        check_epoch(epoch, fence)


class MagazineOperation(Operation):
    """What `settle` needs to know of an operation: the event to raise and the segments touched."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.notify: int | None = None
        self.touched: list[Touched] = []
        self.restamp = False

    def _retired(self, txn: Txn, info: MagazineInfo) -> Retired:
        retired = Retired(txn, info.id, info.shards)
        if retired.damaged:
            # How far the shards were loaded is only known from the fire pointers then: no pointer may be used twice.
            with self.place.directory.claims.reading() as other:
                for shard, pointer in enumerate(claims.stored_fire_pointers(other, info.id) or []):
                    if shard < len(retired.high):
                        retired.raise_high(shard, pointer)
        return retired


class Load(MagazineOperation):
    """Appends sealed batches; the result is the first pointer of each."""

    def __init__(self, place: Place, batches: Sequence[tuple[int, PackedBatch]], fence: Fence | None = None) -> None:
        super().__init__(place)
        self.notify = place.event
        self._fence = fence
        self._batches = [batch for _, batch in batches]
        self._shards = [shard for shard, _ in batches]
        self._sealed: list[tuple[int, int] | None] = [None] * len(batches)
        self._need_bytes = sum(batch.nbytes + _SEGMENT_OVERHEAD_BYTES for batch in self._batches)

    def need_bytes(self) -> int:
        return self._need_bytes

    def run(self, txn: Txn) -> list[int]:
        self.place.check_fence(txn, self._fence)
        info = self.place.current(txn)
        retired = self._retired(txn, info)
        cursor = txn.cursor()
        firsts: list[int] = []
        ends: dict[int, int] = {}
        for index, shard in enumerate(self._shards):
            end = ends.get(shard)
            if end is None:
                if not 0 <= shard < info.shards:
                    raise ConfigError(f"shard {shard} of magazine {info.name!r}, which has {info.shards}")
                end = segments.load_pointer(cursor, retired, info.id, shard)
            batch = self._seal(index, info.id, shard, end + 1)
            firsts.append(end + 1)
            ends[shard] = end = end + batch.count
            txn.put(segments.segment_key(info.id, shard, end, batch.count), batch)
        retired.store(txn)
        return firsts

    def placed(self) -> Iterator[tuple[int, int, PackedBatch]]:
        """After `run`: shard, first pointer and records of each batch."""
        return zip(self._shards, self.result, self._batches, strict=True)

    def _seal(self, index: int, magazine_id: int, shard: int, first: int) -> PackedBatch:
        batch = self._batches[index]
        if self._sealed[index] == (magazine_id, first):
            return batch
        if self._sealed[index] is not None:
            # The transaction runs again and a neighbour before us is gone: same records, other pointers.
            expires_at_ms = segments.expires_at_ms(memoryview(batch))
            batch = self._batches[index] = PackedBatch.pack(batch.records(), expires_at_ms)
        batch.seal(magazine_id, shard, first)
        self._sealed[index] = (magazine_id, first)
        return batch


class Delete(MagazineOperation):
    """Retires records; the result is how many were still there. ``expired``: because their time ran out, which is counted.
    ``now_ms``: those whose time has run out by then are counted so, and not in the result."""

    def __init__(self, place: Place, pointers: Pointers, *, expired: bool = False, now_ms: int = 0) -> None:
        super().__init__(place)
        self._expired = expired
        self._now_ms = now_ms
        self.expired_count = 0
        self._runs = {shard: runs_of(many) for shard, many in pointers.items()}

    def run(self, txn: Txn) -> int:
        info = self.place.current(txn)
        self.touched = []
        retired = self._retired(txn, info)
        counts: dict[int, int] = {}
        late: dict[int, int] = {}
        for shard, runs in self._runs.items():
            if 0 <= shard < len(retired.high):
                if self._now_ms:
                    late[shard] = self._late(txn, info, shard, runs)
                counts[shard] = segments.retire(txn, info.id, shard, runs, retired, self.touched)
        if self._expired:
            late = counts
        self.expired_count = sum(late.values())
        if self.expired_count:
            segments.add_expired(txn, info.id, late)
        retired.store(txn)
        return sum(counts.values()) - (0 if self._expired else self.expired_count)

    def _late(self, txn: Txn, info: MagazineInfo, shard: int, runs: Sequence[tuple[int, int]]) -> int:
        return sum(
            len(segments.live(found, bitmap, low, high))
            for found, low, high, bitmap, value in segments.walk_runs(txn, info.id, shard, runs)
            if 0 < segments.expires_at_ms(value) <= self._now_ms
        )


class Reload(MagazineOperation):
    """Puts fired records at their shards' tails; the result is how many. A corrupt one cannot be appended anew without
    passing for a good one: it stays where it is, claimed from now on anew."""

    def __init__(self, place: Place, pointers: Pointers, fence: Fence | None = None) -> None:
        super().__init__(place)
        self.notify = place.event
        self._runs = {shard: runs_of(many) for shard, many in pointers.items()}
        self._fence = fence

    def run(self, txn: Txn) -> int:
        self.place.check_fence(txn, self._fence)
        info = self.place.current(txn)
        self.touched = []
        self.restamp = False
        with self.place.directory.claims.reading() as other:
            fired = claims.stored_fire_pointers(other, info.id) or []
        retired = self._retired(txn, info)
        count = 0
        for shard, runs in self._runs.items():
            if not 0 <= shard < min(len(fired), len(retired.high)):
                continue
            bounded = [(start, min(stop, fired[shard] + 1)) for start, stop in runs if start <= fired[shard]]
            count += self._reload_shard(txn, info, shard, bounded, retired)
        retired.store(txn)
        return count

    def _reload_shard(
        self, txn: Txn, info: MagazineInfo, shard: int, runs: Sequence[tuple[int, int]], retired: Retired
    ) -> int:
        old: list[int] = []
        groups: list[tuple[int, list[bytes]]] = []
        for found, low, high, bitmap, value in segments.walk_runs(txn, info.id, shard, runs):
            expires = segments.expires_at_ms(value)
            if not groups or groups[-1][0] != expires:
                groups.append((expires, []))
            there = segments.live(found, bitmap, low, high)
            for pointer, record in zip(there, segments.read_live(value, found, low, high, bitmap), strict=True):
                if record is None:
                    self.restamp = True
                else:
                    old.append(pointer)
                    groups[-1][1].append(record)
        if not old:
            return 0
        segments.retire(txn, info.id, shard, runs_of(old), retired, self.touched)
        cursor = txn.cursor()
        for expires, records in groups:
            for batch in pack_records(records, expires):
                end = segments.load_pointer(cursor, retired, info.id, shard) + batch.count
                batch.seal(info.id, shard, end - batch.count + 1)
                txn.put(segments.segment_key(info.id, shard, end, batch.count), batch)
        retired.add_reloaded(shard, len(old))
        return len(old)


class Move(MagazineOperation):
    """A transfer within one environment; the result is how many moved. ``expires_at_ms`` None: each keeps its own."""

    def __init__(
        self, source: Place, target: Place, items: Sequence[Transfer], expires_at_ms: int | None, fence: Fence | None
    ) -> None:
        super().__init__(source)
        self.notify = target.event
        self._target = target
        self._items = items
        self._expires_at_ms = expires_at_ms
        self._fence = fence
        self._bytes = sum(len(item.record) for item in items)

    def move_bytes(self) -> int:
        return self._bytes

    def run(self, txn: Txn) -> int:
        self.place.check_fence(txn, self._fence)
        source = self.place.current(txn)
        self.touched = []
        moving = still_there(txn, source, self._items)
        if not moving:
            return 0
        self._check_growth(txn, source, moving)
        load = Load(self._target, pack_transfers(moving, self._expires_at_ms))
        load.run(txn)
        retired = self._retired(txn, source)
        for shard, many in group_pointers((item.shard, item.pointer) for item, _ in moving).items():
            segments.retire(txn, source.id, shard, runs_of(many), retired, self.touched)
        retired.store(txn)
        return len(moving)

    def _check_growth(self, txn: Txn, source: MagazineInfo, moving: Sequence[tuple[Transfer, int]]) -> None:
        """Raises StoreFullError where that would use up what is kept for transfers that do not grow."""
        env = self.place.directory.data(source.durability).env
        if env.spare_bytes is None:
            return
        before = 0
        for shard, many in group_pointers((item.shard, item.pointer) for item, _ in moving).items():
            for found, low, high, bitmap, value in segments.walk_runs(txn, source.id, shard, runs_of(many)):
                before += sum(len(record or b"") for record in segments.read_live(value, found, low, high, bitmap))
        after = sum(len(item.record) for item, _ in moving)
        env.check_growth(after - before, after)


def live_pointers(txn: Txn, info: MagazineInfo, pointers: Pointers) -> dict[int, dict[int, int]]:
    """Those of the pointers that have a record, and when each expires (0 = never)."""
    there: dict[int, dict[int, int]] = {}
    for shard, many in pointers.items():
        if not 0 <= shard < info.shards:
            continue
        found_there: dict[int, int] = {}
        for found, low, high, bitmap, value in segments.walk_runs(txn, info.id, shard, runs_of(many)):
            found_there.update(dict.fromkeys(segments.live(found, bitmap, low, high), segments.expires_at_ms(value)))
        there[shard] = found_there
    return there


def still_there(txn: Txn, source: MagazineInfo, items: Sequence[Transfer]) -> list[tuple[Transfer, int]]:
    """The items whose source record exists, each record once, and when it expires (0 = never)."""
    there = live_pointers(txn, source, group_pointers((item.shard, item.pointer) for item in items))
    moving: list[tuple[Transfer, int]] = []
    for item in items:
        expires_at_ms = there.get(item.shard, {}).pop(item.pointer, None)
        if expires_at_ms is not None:
            moving.append((item, expires_at_ms))
    return moving


def pack_records(records: Sequence[bytes], expires_at_ms: int) -> list[PackedBatch]:
    """Batches of a handy size."""
    return [
        PackedBatch.pack(records[start : start + _CHUNK_RECORDS], expires_at_ms)
        for start in range(0, len(records), _CHUNK_RECORDS)
    ]


def pack_transfers(items: Iterable[tuple[Transfer, int]], expires_at_ms: int | None) -> list[tuple[int, PackedBatch]]:
    """Batches by shard, in order. ``expires_at_ms`` None: each record keeps its own end, and those of one end that lie side by
    side go together."""
    by_shard: dict[int, list[tuple[int, list[bytes]]]] = {}
    for item, own in items:
        groups = by_shard.setdefault(item.target_shard, [])
        ends_at_ms = own if expires_at_ms is None else expires_at_ms
        if not groups or groups[-1][0] != ends_at_ms:
            groups.append((ends_at_ms, []))
        groups[-1][1].append(item.record)
    return [
        (shard, batch)
        for shard, groups in by_shard.items()
        for ends_at_ms, records in groups
        for batch in pack_records(records, ends_at_ms)
    ]


def announce(directory: Directory, operations: Sequence[Operation]) -> None:
    """Wakes the consumers: the records can be seen, if they are not durable yet. Handling a message earlier than its
    publisher is told costs nothing: in a power cut it is one that was never acknowledged, or comes again."""
    mine = [operation for operation in operations if isinstance(operation, MagazineOperation)]
    for event in {operation.notify for operation in mine if operation.notify is not None}:
        directory.board.notify(event)


def settle(directory: Directory, operations: Sequence[Operation]) -> None:
    """After a durable commit: removes the claims that have nothing left, in one transaction for all."""
    mine = [operation for operation in operations if isinstance(operation, MagazineOperation)]
    retiring = [operation for operation in mine if operation.touched or operation.restamp]
    if not retiring:
        return
    now_ms = directory.clock.now_ms()

    def run(txn: Txn) -> dict[int, MagazineInfo]:
        behind: dict[int, MagazineInfo] = {}
        for operation in retiring:
            info = operation.place.info
            if claims.settle(txn, info.id, operation.touched, now_ms if operation.restamp else None):
                behind[info.id] = info
        return behind

    for info in directory.claims.transact(run).values():
        with ExitStack() as held:
            data = held.enter_context(directory.data(info.durability).env.reading())
            directory.claims.transact(lambda txn: claims.skip_retired(txn, data, info.id, info.shards))  # noqa: B023
