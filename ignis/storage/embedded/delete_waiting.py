"""Removing records that nobody has claimed, so that none of them is handed out as well."""

from __future__ import annotations

from ignis.storage.base import Pointers
from ignis.storage.embedded import claims
from ignis.storage.embedded.environment import Environment, Txn
from ignis.storage.embedded.operations import Delete, Place
from ignis.storage.runs import Runs, overlap, runs_of

__all__ = ["delete_waiting"]

_NO_POINTER = 1 << 62


def delete_waiting(place: Place, data: Environment, pointers: Pointers) -> tuple[int, int]:
    """See `MagazineStore.delete_waiting`; returns how many were removed, and how many more whose time had run out.

    Whoever claims holds the claims' write lock while it looks for records. Here it is held over the whole transaction of the
    data, so that a record is seen by a claim or removed, and never both. This is the one place that waits for the data's
    write lock with that of the claims in hand. Nobody may wait the other way round: a transaction of the data only ever reads
    claims.
    """
    directory, info = place.directory, place.info
    asked = {shard: runs_of(many) for shard, many in pointers.items() if 0 <= shard < info.shards}
    count = expired = 0

    def run(txn: Txn) -> None:
        nonlocal count, expired
        with data.reading() as look:
            fired = claims.fire_pointers(txn, look, info.id, info.shards)
        waiting = {shard: Runs(overlap(runs, fired[shard] + 1, _NO_POINTER)) for shard, runs in asked.items() if runs}
        waiting = {shard: some for shard, some in waiting.items() if some}
        if not waiting:
            return
        operation = Delete(place, waiting, now_ms=directory.clock.now_ms())
        # Added up: this runs again when the claims find no room, and does not find again what is gone.
        count += data.transact(operation.run)
        expired += operation.expired_count
        with data.reading() as look:
            claims.skip_retired(txn, look, info.id, info.shards)

    directory.claims.transact(run)
    return count, expired
