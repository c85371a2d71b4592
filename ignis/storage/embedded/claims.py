"""Who is working on what: fire pointers, claims and owners, in an environment that is never flushed.

It survives the death of any process, because the page cache does, and is thrown away after another boot, when all
owners are dead anyway. Keys, integers big-endian:

* ``F | magazine u32`` -> the fire pointer of each shard
* ``C | magazine u32 | shard u16 | first pointer u64`` -> one claim: count, owner, time. It lies within one segment.
* ``O | owner u64`` -> an owner: name and identity

Every value ends or begins with a CRC32C: a damaged one must cost a second delivery at most, never a message.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ignis.native import crc32c
from ignis.storage.base import Owner, Process
from ignis.storage.embedded import segments
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.owner import NOBODY, Identity
from ignis.storage.embedded.segments import Retired, Touched
from ignis.storage.runs import Runs, difference, first_reaching, joined, overlap, runs_of

__all__ = [
    "Held",
    "Owners",
    "claims_of",
    "fire_pointers",
    "forget_claims",
    "named",
    "put_claim",
    "put_fire_pointers",
    "renew",
    "renew_some",
    "settle",
]

log = logging.getLogger("ignis.storage")

_CLAIM_KEY = struct.Struct(">cIHQ")
_MAGAZINE = struct.Struct(">cI")
_OWNER_KEY = struct.Struct(">cQ")
_CLAIM = struct.Struct("<IQQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_NO_SHARD = 1 << 16
_MOST_OWNERS = 16_384


class Held(NamedTuple):
    """One claim. A damaged one has ``length`` 0, no owner, and was fired at the beginning of time."""

    shard: int
    first: int
    length: int
    owner_id: int
    fired_at_ms: int

    @property
    def stop(self) -> int:
        return self.first + self.length


# -- fire pointers


def stored_fire_pointers(txn: Txn, magazine_id: int) -> list[int] | None:
    """As stored; None when there are none or they are damaged."""
    value = txn.get(_MAGAZINE.pack(b"F", magazine_id))
    if value is None:
        return None
    numbers = bytes(value[4:])
    if len(value) < 4 or len(numbers) % 8 or _U32.unpack_from(value)[0] != crc32c(numbers):
        log.error("store: fire pointers of magazine %d are damaged; what is in flight is fired again", magazine_id)
        return None
    return list(struct.unpack(f"<{len(numbers) // 8}Q", numbers))


def fire_pointers(txn: Txn, data: Txn, magazine_id: int, shards: int) -> list[int]:
    """The fire pointer of each shard. Where none is stored: right before the first record that exists, so that
    everything not deleted is fired (again)."""
    stored = stored_fire_pointers(txn, magazine_id) or []
    if len(stored) < shards:
        retired = Retired(data, magazine_id, shards)
        cursor = data.cursor()
        for shard in range(len(stored), shards):
            found = segments.find(cursor, magazine_id, shard, 0)
            if found is not None and found.shard == shard:
                stored.append(found.first - 1)
            else:
                stored.append(retired.high[shard])
    return stored


def put_fire_pointers(txn: Txn, magazine_id: int, pointers: Sequence[int]) -> None:
    """Stores how far each shard was fired, with a checksum."""
    numbers = struct.pack(f"<{len(pointers)}Q", *pointers)
    txn.put(_MAGAZINE.pack(b"F", magazine_id), _U32.pack(crc32c(numbers)) + numbers)


# -- claims


def put_claim(txn: Txn, magazine_id: int, claim: Held) -> None:
    """Stores one claim, with a checksum."""
    body = _CLAIM.pack(claim.length, claim.owner_id, claim.fired_at_ms, 0)[:-4]
    txn.put(_CLAIM_KEY.pack(b"C", magazine_id, claim.shard, claim.first), body + _U32.pack(crc32c(body)))


def _decode(shard: int, first: int, value: memoryview) -> Held:
    if len(value) == _CLAIM.size:
        count, owner_id, fired_at_ms, check = _CLAIM.unpack(value)
        if check == crc32c(value[:-4]):
            return Held(shard, first, count, owner_id, fired_at_ms)
    log.error("store: a claim in shard %d at pointer %d is damaged; it counts as abandoned", shard, first)
    return Held(shard, first, 0, 0, 0)


def claims_of(txn: Txn, magazine_id: int, shard: int | None = None) -> Iterator[Held]:
    """The claims of one shard, or of all, in pointer order. Do not write meanwhile."""
    cursor = txn.cursor()
    more = cursor.set_range(_CLAIM_KEY.pack(b"C", magazine_id, shard or 0, 0))
    while more:
        key = cursor.key()
        if len(key) != _CLAIM_KEY.size:
            return
        kind, found_id, found_shard, first = _CLAIM_KEY.unpack(key)
        if kind != b"C" or found_id != magazine_id or (shard is not None and found_shard != shard):
            return
        yield _decode(found_shard, first, cursor.value())
        more = cursor.next()


def end_of(claim: Held, following: Held | None, data: Txn, magazine_id: int, fired: int) -> int:
    """Behind the last pointer of a claim; for a damaged one the furthest that it can have reached."""
    if claim.length:
        return claim.stop
    found = segments.find(data.cursor(), magazine_id, claim.shard, claim.first)
    stop = fired + 1
    if found is not None and found.shard == claim.shard:
        stop = min(stop, found.last + 1)
    if following is not None:
        stop = min(stop, following.first)
    return max(stop, claim.first)


def with_ends(
    txn: Txn, data: Txn, magazine_id: int, shards: int, shard: int | None = None
) -> Iterator[tuple[Held, int]]:
    """Claims and where they end."""
    fired: list[int] | None = None
    held = list(claims_of(txn, magazine_id, shard))
    for index, claim in enumerate(held):
        if claim.length:
            yield claim, claim.stop
            continue
        if fired is None:
            fired = fire_pointers(txn, data, magazine_id, shards)
        following = held[index + 1] if index + 1 < len(held) and held[index + 1].shard == claim.shard else None
        reached = fired[claim.shard] if claim.shard < len(fired) else 0
        yield claim, end_of(claim, following, data, magazine_id, reached)


def forget_claims(txn: Txn, magazine_id: int, claims: Iterable[Held]) -> None:
    """Removes claims if they are still the same."""
    for claim in claims:
        key = _CLAIM_KEY.pack(b"C", magazine_id, claim.shard, claim.first)
        value = txn.get(key)
        if value is not None and _decode(claim.shard, claim.first, value) == claim:
            txn.delete(key)


def settle(txn: Txn, magazine_id: int, touched: Sequence[Touched], now_ms: int | None = None) -> bool:
    """After a retire: removes the claims that have nothing left. True when a shard's fire pointer stands before records
    that were retired without ever being fired, see `skip_retired`.

    ``now_ms``: new fire time of the claims that have something left, or None to leave it.
    """
    cursor = txn.cursor()
    fired = stored_fire_pointers(txn, magazine_id)
    behind = False
    for shard, first, last, deleted in touched:
        if fired is not None and shard < len(fired) and last > fired[shard]:
            behind = True
        key = _CLAIM_KEY.pack(b"C", magazine_id, shard, first)
        more = cursor.set_range(key)
        while more:
            found = cursor.key()
            if len(found) != _CLAIM_KEY.size:
                break
            kind, found_id, found_shard, start = _CLAIM_KEY.unpack(found)
            if kind != b"C" or found_id != magazine_id or found_shard != shard or start > last:
                break
            claim = _decode(shard, start, cursor.value())
            whole = ((1 << claim.length) - 1) << (start - first)
            if deleted is None or (claim.length and deleted & whole == whole):
                more = cursor.delete() and len(cursor.key()) > 0
                continue
            if now_ms is not None and claim.length:
                put_claim(txn, magazine_id, claim._replace(fired_at_ms=now_ms))
            more = cursor.next()
    return behind


def skip_retired(txn: Txn, data: Txn, magazine_id: int, shards: int) -> None:
    """Moves each fire pointer to right before the next record that exists."""
    fired = fire_pointers(txn, data, magazine_id, shards)
    retired = Retired(data, magazine_id, len(fired))
    cursor = data.cursor()
    for shard, pointer in enumerate(fired):
        following = segments.first_live(data, magazine_id, shard, pointer + 1)
        end = segments.load_pointer(cursor, retired, magazine_id, shard) if following is None else following - 1
        fired[shard] = max(pointer, end)
    put_fire_pointers(txn, magazine_id, fired)


def forget_magazine(txn: Txn, magazine_id: int) -> None:
    """Removes the fire pointers and claims of a magazine: everything not deleted will be fired again."""
    txn.delete(_MAGAZINE.pack(b"F", magazine_id))
    prefix = _MAGAZINE.pack(b"C", magazine_id)
    cursor = txn.cursor()
    while cursor.set_range(prefix) and bytes(cursor.key()[: len(prefix)]) == prefix:
        cursor.delete()


def magazine_ids(txn: Txn) -> set[int]:
    """Every magazine that has fire pointers or claims."""
    found: set[int] = set()
    cursor = txn.cursor()
    for kind in (b"C", b"F"):
        more = cursor.set_range(kind)
        while more and len(cursor.key()) >= _MAGAZINE.size:
            key_kind, magazine_id = _MAGAZINE.unpack_from(cursor.key())
            if key_kind != kind:
                break
            found.add(magazine_id)
            more = cursor.set_range(_MAGAZINE.pack(kind, magazine_id + 1)) if magazine_id < 0xFFFFFFFF else False
    return found


def sound(txn: Txn, data: Txn, magazine_id: int, shards: int) -> bool:
    """Whether fire pointers and claims of the magazine fit each other and the records."""
    fired = stored_fire_pointers(txn, magazine_id)
    if fired is None:
        return False
    retired = Retired(data, magazine_id, max(shards, len(fired)))
    cursor = data.cursor()
    for shard, pointer in enumerate(fired):
        # Damaged counters say nothing about how far the shard was loaded; the fire pointer itself then does.
        if not retired.damaged and pointer > segments.load_pointer(cursor, retired, magazine_id, shard):
            return False
    behind: dict[int, int] = {}
    for claim in claims_of(txn, magazine_id):
        if not claim.length or claim.shard >= len(fired) or claim.stop - 1 > fired[claim.shard]:
            return False
        if claim.first < behind.get(claim.shard, 0):
            return False
        behind[claim.shard] = claim.stop
    return True


# -- claims in one owner's name


def named(txn: Txn, owners: Owners, magazine_id: int, owner: str) -> list[Held]:
    """The claims of all processes that name this owner; damaged ones name nobody."""
    names: dict[int, str] = {}
    found: list[Held] = []
    for claim in claims_of(txn, magazine_id):
        if claim.length:
            if claim.owner_id not in names:
                names[claim.owner_id] = owners.look_up(txn, claim.owner_id)[0]
            if names[claim.owner_id] == owner:
                found.append(claim)
    return found


def renew(txn: Txn, owners: Owners, magazine_id: int, owner: str, now_ms: int) -> None:
    """Gives them a new fire time."""
    for claim in named(txn, owners, magazine_id, owner):
        put_claim(txn, magazine_id, claim._replace(fired_at_ms=now_ms))


def renew_some(
    txn: Txn,
    data: Txn,
    owners: Owners,
    magazine_id: int,
    asked: Mapping[int, Sequence[tuple[int, int]]],
    owner: str,
    now_ms: int,
    new_owner_id: int | None = None,
) -> dict[int, Sequence[int]]:
    """Gives these claimed records a new fire time, and perhaps a new owner, as far as the owner holds them; returns the
    others. A claim of which only a part is renewed is split, so that the rest of it ages on.

    ``asked``: by shard, ascending runs of pointers. What they cost is what the owner holds of them, not what they name."""
    lost: dict[int, Sequence[int]] = {}
    theirs = _Theirs(txn, owners, owner)
    for shard, runs in asked.items():
        renewed: list[tuple[int, int]] = []
        for found, bitmap, claim in theirs.claims(data, magazine_id, shard, runs):
            there = segments.live(found, bitmap, claim.first, claim.stop)
            wanted = overlap(runs, claim.first, claim.stop)
            fresh = claim._replace(
                owner_id=claim.owner_id if new_owner_id is None else new_owner_id, fired_at_ms=now_ms
            )
            renewed += _renew_part(txn, magazine_id, claim, fresh, there, wanted)
        left = difference(runs, joined(renewed))
        if left:
            lost[shard] = Runs(left)
    return lost


def holds_any(
    txn: Txn, data: Txn, owners: Owners, magazine_id: int, asked: Mapping[int, Sequence[tuple[int, int]]], owner: str
) -> bool:
    """Whether `renew_some` would find a claim."""
    theirs = _Theirs(txn, owners, owner)
    return any(next(theirs.claims(data, magazine_id, shard, runs), None) is not None for shard, runs in asked.items())


class _Theirs:
    """The claims of one owner, as one transaction sees them."""

    def __init__(self, txn: Txn, owners: Owners, owner: str) -> None:
        self._txn = txn
        self._owners = owners
        self._owner = owner
        self._numbers: dict[int, bool] = {}

    def _is_theirs(self, claim: Held) -> bool:
        known = self._numbers.get(claim.owner_id)
        if known is None:
            known = self._numbers[claim.owner_id] = self._owners.look_up(self._txn, claim.owner_id)[0] == self._owner
        return known

    def claims(
        self, data: Txn, magazine_id: int, shard: int, runs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[segments.Found, int, Held]]:
        """Those that have a pointer in the runs: (segment, bitmap, claim)."""
        if not 0 <= shard < _NO_SHARD:
            return
        walked = 0
        for found, _, _, bitmap, _ in segments.walk_runs(data, magazine_id, shard, runs):
            if found.last <= walked:
                continue  # an earlier run lay in the same segment
            walked = found.last
            for claim in _within(self._txn, magazine_id, shard, found.first, found.last):
                at = first_reaching(runs, claim.first)
                if claim.length and at < len(runs) and runs[at][0] < claim.stop and self._is_theirs(claim):
                    yield found, bitmap, claim


def _within(txn: Txn, magazine_id: int, shard: int, first: int, last: int) -> list[Held]:
    """The claims of one segment, from its first to its last pointer."""
    found: list[Held] = []
    cursor = txn.cursor()
    more = cursor.set_range(_CLAIM_KEY.pack(b"C", magazine_id, shard, first))
    while more and len(cursor.key()) == _CLAIM_KEY.size:
        kind, found_id, found_shard, start = _CLAIM_KEY.unpack(cursor.key())
        if kind != b"C" or found_id != magazine_id or found_shard != shard or start > last:
            break
        found.append(_decode(shard, start, cursor.value()))
        more = cursor.next()
    return found


def _renew_part(
    txn: Txn, magazine_id: int, claim: Held, fresh: Held, there: Sequence[int], asked: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Gives those of a claim's records that are asked for the owner and time of ``fresh``; returns them. ``asked`` lies
    within the claim."""
    wanted = set(Runs(asked))
    mine = [pointer for pointer in there if pointer in wanted]
    if not mine:
        return []
    if len(mine) == len(there):
        put_claim(txn, magazine_id, fresh)
        return runs_of(mine)
    # Pieces that are alike, cut before the first record of each; they cover the claim as it was.
    cuts = [(claim.first, there[0] in wanted)]
    for pointer in there:
        if (pointer in wanted) != cuts[-1][1]:
            cuts.append((pointer, not cuts[-1][1]))
    for (first, is_wanted), stop in zip(cuts, [*(first for first, _ in cuts[1:]), claim.stop], strict=True):
        put_claim(txn, magazine_id, (fresh if is_wanted else claim)._replace(first=first, length=stop - first))
    return runs_of(mine)


# -- owners


class Owners:
    """The owner table, as one process writes it: for itself, and for the processes that it claims for. Thread-safe.

    An owner's number is drawn at random per process and name; the environment is only ever thrown away when no process
    has it open, so a number once written stays valid.
    """

    def __init__(self, here: Identity) -> None:
        self.here = here
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, Process], int] = OrderedDict()
        self._written: set[int] = set()

    def number(self, txn: Txn, owner: str, *, is_process: bool = True) -> int:
        """The number of an owner, written to the table if it was not.

        ``is_process`` false: the owner is a job, which does not end with this process.
        """
        process = self._process(owner) if is_process else NOBODY
        with self._lock:
            number = self._known.get((owner, process))
            if number is None:
                number = self._known[owner, process] = secrets.randbits(63) | 1
                if len(self._known) > _MOST_OWNERS:
                    # Of a client that is long gone, as a rule; if it comes again it is given another number.
                    self._written.discard(self._known.popitem(last=False)[1])
            else:
                self._known.move_to_end((owner, process))
        if number not in self._written:
            body = msgspec.msgpack.encode((str(owner), *process))
            txn.put(_OWNER_KEY.pack(b"O", number), _U32.pack(crc32c(body)) + body)
        return number

    def _process(self, owner: str) -> Process:
        return owner.process if isinstance(owner, Owner) else self.here

    def written(self, owner: str, *, is_process: bool = True) -> None:
        """After the commit of the transaction in which `number` was asked for."""
        with self._lock:
            number = self._known.get((owner, self._process(owner) if is_process else NOBODY))
            if number is not None:
                self._written.add(number)

    def look_up(self, txn: Txn, number: int) -> tuple[str, Identity | None]:
        """Name and identity; ("unknown", None) for one that is damaged or gone."""
        value = txn.get(_OWNER_KEY.pack(b"O", number))
        if value is not None and len(value) > 4:
            body = bytes(value[4:])
            if _U32.unpack_from(value)[0] == crc32c(body):
                try:
                    name, pid, start, space, boot = msgspec.msgpack.decode(body, type=tuple[str, int, int, int, str])
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    return "unknown", None
                return name, Identity(pid, start, space, boot)
        return "unknown", None


def forget_idle_owners(txn: Txn, ids: Iterable[int]) -> None:
    """Removes the owners that hold no claim of these magazines."""
    holding = {claim.owner_id for magazine_id in ids for claim in claims_of(txn, magazine_id)}
    cursor = txn.cursor()
    more = cursor.set_range(b"O")
    while more and len(cursor.key()) == _OWNER_KEY.size:
        if _OWNER_KEY.unpack(cursor.key())[1] in holding:
            more = cursor.next()
        else:
            more = cursor.delete() and len(cursor.key()) > 0
