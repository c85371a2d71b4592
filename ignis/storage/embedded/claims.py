"""Who works on what: listing claims, renewing them, and finding those that nobody finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ignis.native.store import NoShardError
from ignis.storage.embedded.catalogue import Magazine
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.owners import claimed_by_store, owner_text
from ignis.storage.records import Abandoned, Pointers, Run
from ignis.storage.runs import Runs, difference, joined, overlap, runs_of

__all__ = ["Claims"]

_PAGE = 64
_ANY_SIZE = 1 << 62
_Runs = list[tuple[int, int]]


class ClaimRecord(NamedTuple):
    """One claim, of whose pointers ``living`` have a record."""

    first: int
    last: int
    living: int
    ms: int
    stored: bytes

    @property
    def stop(self) -> int:
        return self.last + 1

    @property
    def owner(self) -> str:
        return owner_text(self.stored.decode())


class Claims:
    """Lists and renews the claims of one store, and finds those that nobody finishes. Thread-safe."""

    def __init__(self, store: StoreContext) -> None:
        self._store = store
        self._directory = store.directory
        self._owners = store.directory.owners

    @staticmethod
    def of(found: Magazine, shard: int, first: int = 0, last: int = 1 << 62) -> Iterator[ClaimRecord]:
        """The claims of one shard that reach into ``first..last``, in pointer order."""
        while True:
            page = found.log.claims(found.number, shard, first, _PAGE)
            for one in page:
                claim = ClaimRecord(*one)
                if claim.first > last:
                    return
                yield claim
            if len(page) < _PAGE:
                return
            first = page[-1][1] + 1

    def held(self, found: Magazine, owner: str) -> Iterator[Run]:
        for shard, state in enumerate(found.log.shards(found.number)):
            if not state[4]:
                continue
            for claim in self.of(found, shard):
                if claim.owner == owner:
                    yield from _runs(found, shard, claim)

    def claimants(self, found: Magazine) -> dict[str, bool]:
        return self._dead(found.log.owners(found.number))

    def dead_claimants(self) -> frozenset[str]:
        """See `MagazineStore.dead_claimants`. Of other proofs than a store's lock it says nothing: a broker looks after its
        clients."""
        dead: set[str] = set()
        living: set[str] = set()
        for log in self._directory.opened().values():
            for name, is_dead in self._dead(log.owners(), claimed_by_store).items():
                (dead if is_dead else living).add(name)
        return frozenset(dead - living)

    def _dead(self, owners: Iterable[bytes], counts: Callable[[str], bool] | None = None) -> dict[str, bool]:
        """Whether they are provably dead, by name. ``counts``: whose claims count at all; None = everybody's."""
        # A name may have stood for several processes: it is dead when all of them are.
        names: dict[str, bool] = {}
        for stored in owners:
            text = stored.decode()
            if counts is None or counts(text):
                name = owner_text(text)
                names[name] = self._owners.dead(text) and names.get(name, True)
        return names

    # -- renewing

    def renew(self, found: Magazine, owner: str) -> None:
        """Gives all of the owner's claims a new time."""
        now_ms = self._directory.clock.now_ms()
        stored = [one for one in found.log.owners(found.number) if owner_text(one.decode()) == owner]
        if not stored:
            return
        every = {
            shard: range(1, state[0] + 1) for shard, state in enumerate(found.log.shards(found.number)) if state[4]
        }
        for one in stored:
            found.log.renew(found.number, every, one, None, now_ms)

    def renew_some(
        self, found: Magazine, pointers: Pointers, owner: str, to_owner: str | None
    ) -> dict[int, Sequence[int]]:
        """See `MagazineStore.renew_claims`. It costs what the owner holds of the pointers, not what they name."""
        asked = {shard: runs_of(many) for shard, many in pointers.items()}
        mine = {shard: self._mine(found, shard, runs, owner) for shard, runs in asked.items()}
        by_owner: dict[bytes, dict[int, Runs]] = {}
        for shard, claims in mine.items():
            for stored, runs in claims.items():
                by_owner.setdefault(stored, {})[shard] = Runs(runs)
        now_ms = self._directory.clock.now_ms()
        next_owner = None if to_owner is None else self._store.stored_owner(to_owner).encode()
        for stored, named in by_owner.items():
            found.log.renew(found.number, named, stored, next_owner, now_ms)
        lost: dict[int, Sequence[int]] = {}
        for shard, runs in asked.items():
            # Theirs before, and still (or from now on the other's): what was finished in between is not.
            before = [run for many in mine[shard].values() for run in many]
            renewed = self._living(found, shard, before, owner if to_owner is None else to_owner)
            left = difference(runs, renewed)
            if left:
                lost[shard] = Runs(left)
        return lost

    def _mine(self, found: Magazine, shard: int, runs: _Runs, owner: str) -> dict[bytes, _Runs]:
        """What the owner has claimed of the runs, by the names under which it is stored."""
        mine: dict[bytes, _Runs] = {}
        for claim in self._reaching(found, shard, runs):
            if claim.owner == owner:
                mine.setdefault(claim.stored, []).extend(overlap(runs, claim.first, claim.stop))
        return mine

    def _living(self, found: Magazine, shard: int, runs: _Runs, owner: str) -> _Runs:
        """What exists of the runs and is the owner's."""
        wanted = joined(runs)
        living: _Runs = []
        for claim in self._reaching(found, shard, wanted):
            if claim.owner == owner:
                there = found.log.living(found.number, shard, overlap(wanted, claim.first, claim.stop))
                living += ((first, last + 1) for first, last, _, _ in there)
        return joined(living)

    def _reaching(self, found: Magazine, shard: int, runs: _Runs) -> Iterator[ClaimRecord]:
        """The claims that have a pointer in the runs."""
        if not runs or not 0 <= shard < 1 << 16:
            return
        try:
            for claim in self.of(found, shard, max(runs[0][0], 0), runs[-1][1] - 1):
                if overlap(runs, claim.first, claim.stop):
                    yield claim
        except NoShardError:
            return  # nothing is claimed in a shard that is not there

    # -- what nobody finishes

    def abandoned(
        self,
        found: Magazine,
        shard: int,
        fired_before_ms: int,
        limit: int,
        dead_owners: bool,
        owner: str | None,
        max_bytes: int | None,
    ) -> list[Abandoned]:
        """See `MagazineStore.abandoned`."""
        ahead_ms = self._directory.clock.ahead_ms()
        before_ms = fired_before_ms + ahead_ms if fired_before_ms else 0
        rows: list[Abandoned] = []
        dead: dict[bytes, bool] = {}
        room_bytes = _ANY_SIZE if max_bytes is None else max_bytes
        try:
            for claim in self.of(found, shard):
                if len(rows) >= limit or (rows and room_bytes <= 0):
                    break
                if owner is not None:
                    if claim.owner != owner:
                        continue
                    is_dead = True
                else:
                    if claim.stored not in dead:
                        dead[claim.stored] = self._owners.dead(claim.stored.decode())
                    is_dead = dead[claim.stored]
                    if claim.ms >= before_ms and not (is_dead and dead_owners):
                        continue
                pieces, _ = found.log.peek_within(
                    found.number, shard, [(claim.first, claim.stop)], room_bytes, limit=limit - len(rows)
                )
                room_bytes -= sum(len(record or b"") for _, records, _ in pieces for record in records)
                rows += [
                    Abandoned(shard, first + index, record, claim.ms - ahead_ms, claim.owner, is_dead)
                    for first, records, _ in pieces
                    for index, record in enumerate(records)
                ]
        except NoShardError:
            return []
        return rows


def _runs(found: Magazine, shard: int, claim: ClaimRecord) -> Iterator[Run]:
    """What lives of a claim, in one run for each batch that it is of: pointers of two batches may lie far from each other."""
    batch = -1
    first = last = count = 0
    for low, high, _, of in found.log.living(found.number, shard, [(claim.first, claim.stop)]):
        if of != batch and count:
            yield Run(shard, first, last, count)
            count = 0
        if not count:
            batch, first = of, low
        last = high
        count += high - low + 1
    if count:
        yield Run(shard, first, last, count)
