"""Small writes and claims by a thread that never waits: `MagazineStore.try_together` and `try_fire` of the embedded store.

A write is committed, and seen by others, before it is durable; who was promised the durability is told after `flush`. The
claims whose records a delete removed are forgotten with the next claim, in the same transaction, or by `catch_up`: until
then they name records that are gone, which whoever reads claims has to expect anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ignis.errors import IgnisError
from ignis.log_limit import LimitedLog
from ignis.native import PackedBatch
from ignis.storage.base import Claim, FireResult
from ignis.storage.checks import check_limit
from ignis.storage.embedded import claims
from ignis.storage.embedded.catalogue import Catalogue, MagazineInfo
from ignis.storage.embedded.committer import Committer, Operation
from ignis.storage.embedded.directory import Directory
from ignis.storage.embedded.environment import Txn, WouldWait
from ignis.storage.embedded.firing import Walk
from ignis.storage.embedded.operations import Delete, Load, MagazineOperation, Place, settle
from ignis.storage.embedded.segments import expires_at_ms
from ignis.storage.embedded.steady import Steady
from ignis.storage.together import Taker, Write

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["AtOnce"]

log = logging.getLogger("ignis.storage")


class _Noted:
    """See `ignis.storage.together.Unflushed`."""

    def __init__(self, store: EmbeddedStore, steady: Steady, txnid: int) -> None:
        self._store = store
        self._steady = steady
        self._txnid = txnid

    def flush(self) -> None:
        self._store.enter()
        try:
            self._steady.flush_noted(self._txnid)
        finally:
            self._store.leave()


class _NotStoredError(Exception):
    """The data could not be committed: the claims around them are given up."""


class _HandOver(Operation):
    """The last of a transaction: claims what the loads before it have placed, and tells the takers. Claimed is only what
    follows immediately on what was fired before: older messages go first."""

    def __init__(self, directory: Directory, txn: Txn, loads: Sequence[tuple[Write, Load]]) -> None:
        super().__init__()
        self._directory = directory
        self._txn = txn
        self._loads = loads
        self.owners: set[str] = set()

    def run(self, txn: Txn) -> None:
        for write, load in self._loads:
            if write.taker is not None and not write.given and load.error is None:
                self._give(write, write.taker, load)

    def _give(self, write: Write, taker: Taker, load: Load) -> None:
        info = load.place.info
        fired = claims.stored_fire_pointers(self._txn, info.id)
        if fired is None or len(fired) < info.shards:
            return
        placed = list(load.placed())
        for shard, first, batch in placed:
            if fired[shard] != first - 1:
                return
            fired[shard] += batch.count
        owner_id = self._directory.owners.number(self._txn, taker.owner)
        self.owners.add(taker.owner)
        now_ms = self._directory.clock.now_ms()
        for shard, first, batch in placed:
            claims.put_claim(self._txn, info.id, claims.Held(shard, first, batch.count, owner_id, now_ms))
        claims.put_fire_pointers(self._txn, info.id, fired)
        write.given = True
        load.notify = None  # nobody else need look
        taker.give(
            [Claim(shard, range(first, first + batch.count), list(batch.records())) for shard, first, batch in placed]
        )


class AtOnce:
    """Of one store. Thread-safe.

    Args:
        order: the shards of a magazine in the order in which a claim looks at them.
        served: called with the magazine and the shard that a claim ended at.
    """

    def __init__(
        self,
        store: EmbeddedStore,
        known: Catalogue,
        order: Callable[[MagazineInfo], Sequence[int]],
        served: Callable[[str, int], None],
    ) -> None:
        self._store = store
        self._directory = store.directory
        self._catalogue = known
        self._said = LimitedLog(log)
        self._order = order
        self._served = served
        self._lock = threading.Lock()
        self._unsettled: list[MagazineOperation] = []

    # -- writing

    def write(self, writes: Sequence[Write]) -> _Noted | None:
        """`MagazineStore.try_together`."""
        if not self._store.try_enter():
            return None
        try:
            return self._write(writes)
        finally:
            self._store.leave()

    def _write(self, writes: Sequence[Write]) -> _Noted | None:
        by_class: dict[str, list[tuple[Write, MagazineOperation]]] = {}
        for write in writes:
            info = self.remembered(write.magazine)
            if info is None:
                continue
            try:
                operation = self._operation(write, info)
            except (IgnisError, ValueError) as exc:
                _refuse(write, exc)
            else:
                by_class.setdefault(info.durability, []).append((write, operation))
        noted = None
        for durability, many in by_class.items():
            data = self._directory.opened().get(durability)
            if data is None:
                continue
            try:
                if any(write.taker is not None for write, _ in many):
                    txnid = self._write_and_claim(data.committer, many)
                else:
                    txnid = data.committer.try_submit([operation for _, operation in many])
            except WouldWait:
                for write, _ in many:
                    _unseal(write)
                continue
            except Exception as exc:
                # Those of another class must be answered all the same.
                self._said.error("store: a commit of %s failed", durability, about=durability, exc_info=exc)
                for write, _ in many:
                    _refuse(write, exc)
                continue
            for write, operation in many:
                self._take_over(write, operation, txnid is None)
            if txnid is not None and data.steady is not None:
                noted = _Noted(self._store, data.steady, txnid)  # there is one class with a journal
        return noted

    def _write_and_claim(self, committer: Committer, many: Sequence[tuple[Write, MagazineOperation]]) -> int | None:
        loads = [(write, one) for write, one in many if isinstance(one, Load)]
        operations: list[Operation] = [operation for _, operation in many]
        txnids: list[int | None] = []
        owners: set[str] = set()

        def run(txn: Txn) -> None:
            hand_over = _HandOver(self._directory, txn, loads)
            txnids.append(committer.try_submit([*operations, hand_over]))
            if any(write.given and load.error is not None for write, load in loads):
                raise _NotStoredError  # and hence not claimed
            owners.update(hand_over.owners)

        try:
            self._settling(run)
        except _NotStoredError:
            pass  # each write has its error
        except WouldWait:
            if not txnids and any(write.given for write, _ in loads):
                raise
            if not txnids:
                return committer.try_submit(operations)  # somebody is at the claims; that need not hold up the load
            self._unclaimed(loads)
        except IgnisError as exc:
            if not txnids:
                raise
            self._said.error("store: what was loaded was handed over, and could not be claimed", exc_info=exc)
            self._unclaimed(loads)
        else:
            for owner in owners:
                self._directory.owners.written(owner)
        return txnids[0]

    def _unclaimed(self, loads: Sequence[tuple[Write, Load]]) -> None:
        """The claims alone could not be committed: what was given is pending as well, and comes again."""
        for write, load in loads:
            if write.given:
                self._directory.board.notify(load.place.event)

    def remembered(self, magazine: str) -> MagazineInfo | None:
        """The magazine, if that needs no look into the store."""
        return self._catalogue.remembered(magazine, self._directory.board.sequence(self._directory.catalogue_event))

    def _operation(self, write: Write, info: MagazineInfo) -> MagazineOperation:
        place = Place(self._directory, self._catalogue, info)
        if write.batches is None:
            return Delete(place, write.pointers)
        expires = self._directory.clock.expiry_ms(write.ttl_s)
        if expires:
            for _, batch in write.batches:
                batch.set_expiry(expires)
        return Load(place, write.batches)

    def _take_over(self, write: Write, operation: MagazineOperation, durable: bool) -> None:
        write.done = True
        write.durable = durable or operation.error is not None
        write.error = operation.error
        if operation.error is not None:
            return
        if write.batches is None:
            write.count = operation.result
            if operation.touched:
                with self._lock:
                    self._unsettled.append(operation)
        else:
            write.firsts = operation.result

    # -- claiming

    def fire(self, magazine: str, limit: int, owner: str, max_bytes: int) -> FireResult | None:
        """`MagazineStore.try_fire`."""
        check_limit(limit)
        if not self._store.try_enter():
            return None
        try:
            info = self.remembered(magazine)
            if info is None or info.durability not in self._directory.opened():
                return None
            walk = Walk(self._directory, info, limit, owner, self._order(info), max_bytes, waits=False)
            try:
                self._settling(walk.run)
                fired = walk.read()
            except WouldWait:
                return None
            finally:
                walk.end()
            if walk.last_shard >= 0:
                self._served(magazine, walk.last_shard)
            return FireResult(fired, {}, 0, walk.more)
        finally:
            self._store.leave()

    def _settling(self, then: Callable[[Txn], None]) -> None:
        """Runs ``then`` in a transaction of the claims, after what deletes have left to do there."""
        with self._lock:
            settling, self._unsettled = self._unsettled, []

        def run(txn: Txn) -> list[MagazineOperation]:
            # Those whose fire pointers have to move as well take a second transaction, and are left to `catch_up`.
            behind = [one for one in settling if claims.settle(txn, one.place.info.id, one.touched)]
            then(txn)
            return behind

        left = settling
        try:
            left, _ = self._directory.claims.try_transact(run)
        finally:
            if left:
                with self._lock:
                    self._unsettled += left

    def catch_up(self) -> bool:
        """`MagazineStore.catch_up`."""
        with self._lock:
            settling, self._unsettled = self._unsettled, []
        if not settling:
            return False
        self._store.enter()
        try:
            operations: list[Operation] = list(settling)
            settle(self._directory, operations)
        except IgnisError:
            with self._lock:
                self._unsettled += settling
            raise
        finally:
            self._store.leave()
        return True


def _refuse(write: Write, exc: Exception) -> None:
    write.done = write.durable = True
    write.error = exc


def _unseal(write: Write) -> None:
    """A transaction that was begun and given up has sealed the batches for pointers that will be others'."""
    if write.batches is not None and any(batch.sealed for _, batch in write.batches):
        write.batches = [
            (shard, PackedBatch.pack(batch.records(), expires_at_ms(memoryview(batch))) if batch.sealed else batch)
            for shard, batch in write.batches
        ]
