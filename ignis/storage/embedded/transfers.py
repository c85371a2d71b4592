"""Moving records: to the tail of their shard, or into another magazine. Each keeps its own time to live.

Any number of them may be asked for. What one transaction does not take is moved by the next: a message moves whole or not at
all, and no two of them have to move together."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ignis.errors import StoreBusyError, StoreFullError
from ignis.native import PackedBatch
from ignis.native import store as native
from ignis.native.store import FenceError, GrowthError, NoShardError
from ignis.storage.checks import check_epoch
from ignis.storage.embedded import inspection
from ignis.storage.embedded.catalogue import Magazine
from ignis.storage.embedded.claims import Claims
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.keys import epoch_key, epoch_of, epoch_value, read_fence
from ignis.storage.records import Fence, Pointers, Transfer, group_pointers
from ignis.storage.runs import Pair, overlap, runs_of
from ignis.storage.transactions import divided

__all__ = ["defer", "fenced", "reload", "transfer"]

T = TypeVar("T")
_CHUNK_RECORDS = 1_024
_ATTEMPTS = 64
_ROOM_WITHIN_S = 10.0
_ROOM_PAUSE_S = 0.02
_Held = tuple[bytes, bytes | None]


# -- fences


def fenced(store: StoreContext, magazine: Magazine, fence: Fence | None, call: Callable[[_Held | None], T]) -> T:
    """Calls with the key and the value under which the fence holds, and again when the epoch rose meanwhile. Raises
    StaleEpochError."""
    if fence is None:
        return call(None)
    for _ in range(_ATTEMPTS):
        key, value = read_fence(store.keys, store.scope, fence)
        if not magazine.durable:
            value = _carry(store, magazine, fence)
            if value is None:
                continue
        try:
            return call((key, value))
        except FenceError:
            continue
    raise StoreBusyError(f"store: epoch {fence.scope!r} was raised {_ATTEMPTS} times in a row meanwhile")


def _carry(store: StoreContext, magazine: Magazine, fence: Fence) -> bytes | None:
    """Epochs live in the log of ``sync``, and an entry of another log cannot look at them. So whoever writes there under a
    fence first leaves the epoch in that log too: from then on no older one writes there, however late it comes. None: somebody
    else was changing it."""
    key = epoch_key(store.scope, fence.scope)
    before = magazine.log.get_key(key)
    known = epoch_of(before, fence.scope)
    check_epoch(known, fence)
    value = epoch_value(fence.epoch)
    if known == fence.epoch and before is not None:
        return value
    return None if magazine.log.change_keys([(key, before, value)]) is None else value


# -- transfers


def transfer(
    store: StoreContext,
    source: Magazine,
    target: Magazine,
    items: Sequence[Transfer],
    expires_at_ms: int | None,
    fence: Fence | None,
) -> int:
    """See `MagazineStore.transfer`. Raises NoShardError for a target shard that is not there."""
    outside = [item for item in items if not 0 <= item.target_shard < 1 << 16]
    if outside:
        raise NoShardError(f"shard {outside[0].target_shard}")
    move = _move_in_room if source.log is target.log else _load_and_delete
    if not items:  # the fence is asked all the same
        return fenced(store, target, fence, lambda _: 0)
    return sum(
        fenced(store, target, fence, functools.partial(move, source, target, part, expires_at_ms))
        for part in divided(items)
    )


def _move_in_room(
    source: Magazine, target: Magazine, items: Sequence[Transfer], expires_at_ms: int | None, held: _Held | None
) -> int:
    """On a full disk a move gives back what it takes, but later: it is made in smaller pieces, with maintenance between."""
    until = time.monotonic() + _ROOM_WITHIN_S
    moved, piece = 0, len(items)
    while items:
        try:
            moved += _move(source, target, items[:piece], expires_at_ms, held)
        except GrowthError:
            raise  # no time gives room for that: what may be spared goes first
        except StoreFullError:
            if time.monotonic() >= until:
                raise
            piece = max(1, piece // 2)
            _find_room(source)
            continue
        items = items[piece:]
    return moved


def _find_room(source: Magazine) -> None:
    try:
        if source.log.maintain():
            return
    except StoreFullError:
        pass  # the next round may find some
    time.sleep(_ROOM_PAUSE_S)


def _move(
    source: Magazine, target: Magazine, items: Sequence[Transfer], expires_at_ms: int | None, held: _Held | None
) -> int:
    for _ in range(_ATTEMPTS):
        moving = _still_there(source, items)
        if not moving:
            return 0
        pointers = group_pointers((item.shard, item.pointer) for item, _ in moving)
        batches = _pack(moving, expires_at_ms)
        if source.log.transfer(source.number, pointers, target.number, batches, durable=source.durable, fence=held):
            return len(moving)
    raise StoreBusyError(f"store: records of {source.name!r} went {_ATTEMPTS} times in a row while they were moved")


def defer(
    store: StoreContext,
    source: Magazine,
    later: Magazine,
    items: Sequence[Transfer],
    dues_ms: Sequence[int],
    expires_at_ms: int | None,
    fence: Fence | None,
) -> int:
    """See `KeepsLater.defer`. Both magazines are of one log. Raises NoShardError."""
    due_of = {(item.shard, item.pointer): due_ms for item, due_ms in zip(items, dues_ms, strict=True)}

    def move(held: _Held | None, part: Sequence[Transfer]) -> int:
        for _ in range(_ATTEMPTS):
            moving = _still_there(source, part)
            if not moving:
                return 0
            pointers = group_pointers((item.shard, item.pointer) for item, _ in moving)
            moving.sort(key=lambda one: one[0].target_shard)  # as `_pack` has them
            batches = _pack(moving, expires_at_ms)
            times = iter([due_of[item.shard, item.pointer] for item, _ in moving])
            dues = [[next(times) for _ in range(batch.count)] for _, batch in batches]
            if native.defer(
                source.log, source.number, pointers, later.number, batches, dues, durable=source.durable, fence=held
            ):
                return len(moving)
        raise StoreBusyError(f"store: records of {source.name!r} went {_ATTEMPTS} times in a row while they were moved")

    return sum(fenced(store, later, fence, functools.partial(move, part=part)) for part in divided(items))


def _load_and_delete(
    source: Magazine, target: Magazine, items: Sequence[Transfer], expires_at_ms: int | None, held: _Held | None
) -> int:
    """Between durability classes: a crash between the two leaves messages twice, and loses none."""
    moving = _still_there(source, items)
    if not moving:
        return 0
    target.log.load(target.number, _pack(moving, expires_at_ms), durable=target.durable, fence=held)
    if not target.durable and source.durable:
        # Flushed once: else a power cut that spares the delete could take what it made way for.
        target.log.flush()
    pointers = group_pointers((item.shard, item.pointer) for item, _ in moving)
    source.log.retire(source.number, pointers, durable=source.durable)
    return len(moving)


def _still_there(source: Magazine, items: Sequence[Transfer]) -> list[tuple[Transfer, int]]:
    """The items whose source record exists, each record once, and when it expires (0 = never)."""
    there: dict[int, dict[int, int]] = {}
    for shard, many in group_pointers((item.shard, item.pointer) for item in items).items():
        found: dict[int, int] = {}
        if 0 <= shard < 1 << 16:
            try:
                for first, last, expires, _ in source.log.living(source.number, shard, runs_of(many)):
                    found.update(dict.fromkeys(range(first, last + 1), expires))
            except NoShardError:
                continue
        there[shard] = found
    moving: list[tuple[Transfer, int]] = []
    for item in items:
        expires_at_ms = there.get(item.shard, {}).pop(item.pointer, None)
        if expires_at_ms is not None:
            moving.append((item, expires_at_ms))
    return moving


def _pack(items: Iterable[tuple[Transfer, int]], expires_at_ms: int | None) -> list[tuple[int, PackedBatch]]:
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
        for batch in _batches(records, ends_at_ms)
    ]


def _batches(records: Sequence[bytes], expires_at_ms: int) -> list[PackedBatch]:
    """Of a handy size."""
    return [
        PackedBatch.pack(records[start : start + _CHUNK_RECORDS], expires_at_ms)
        for start in range(0, len(records), _CHUNK_RECORDS)
    ]


# -- reloads


def reload(store: StoreContext, magazine: Magazine, pointers: Pointers, fence: Fence | None) -> int:
    """See `MagazineStore.reload`. A corrupt record cannot be appended anew without passing for a good one: it stays where it
    is, claimed from now on anew."""
    # As they are now: what is put back may be claimed by others before the last of these is.
    fired = [state[1] for state in magazine.log.shards(magazine.number)]
    left = {
        shard: overlap(runs_of(many), 1, fired[shard] + 1)
        for shard, many in pointers.items()
        if 0 <= shard < len(fired)
    }
    count = 0
    while True:
        reload_some = functools.partial(_reload, store, magazine, left)
        reloaded, left = fenced(store, magazine, fence, reload_some)
        count += reloaded
        if not left:
            return count


def _reload(
    store: StoreContext, magazine: Magazine, left: Mapping[int, Sequence[Pair]], held: _Held | None
) -> tuple[int, dict[int, list[Pair]]]:
    """One transaction: how many it put back, and what is left for the next."""
    log, number = magazine.log, magazine.number
    for _ in range(_ATTEMPTS):
        old: dict[int, list[int]] = {}
        corrupt: dict[int, list[int]] = {}
        groups: dict[int, list[tuple[int, list[bytes]]]] = {}
        pieces, rest = inspection.read_some(magazine, left)
        for shard, first, records, expires in pieces:
            of_shard = groups.setdefault(shard, [])
            for pointer, record in enumerate(records, first):
                if record is None:
                    corrupt.setdefault(shard, []).append(pointer)
                    continue
                if not of_shard or of_shard[-1][0] != expires:
                    of_shard.append((expires, []))
                of_shard[-1][1].append(record)
                old.setdefault(shard, []).append(pointer)
        batches = [
            (shard, batch) for shard, some in groups.items() for expires, records in some
            for batch in _batches(records, expires)
        ]  # fmt: skip
        _claim_anew(store, magazine, corrupt)
        if not old:
            return 0, rest
        if log.transfer(number, old, number, batches, durable=magazine.durable, reload=True, fence=held):
            return sum(map(len, old.values())), rest
    raise StoreBusyError(
        f"store: records of {magazine.name!r} went {_ATTEMPTS} times in a row while they were put back"
    )


def _claim_anew(store: StoreContext, magazine: Magazine, pointers: Pointers) -> None:
    now_ms = store.directory.clock.now_ms()
    for shard, many in pointers.items():
        for claim in Claims.of(magazine, shard, min(many), max(many)):
            mine = [pointer for pointer in many if claim.first <= pointer <= claim.last]
            if mine:
                magazine.log.renew(magazine.number, {shard: range(claim.first, claim.stop)}, claim.stored, None, now_ms)
