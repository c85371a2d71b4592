"""The magazines of the Aerospike store: argument checks, counts and wake-ups around the parts that do the work.

Atomicity and durability. A call is a few batches of small operations, each of which is atomic; what holds when a process
dies between two of them is said in `append`, `claim` and `remove`. A record is durable on return as the namespace
makes it: Aerospike has one durability, and the magazines' classes are recorded and otherwise the same.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ignis.errors import IgnisError, QueueNotFoundError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import PackedBatch
from ignis.storage.aerospike.append import Appender, Item
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.claim import Claimer
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.aerospike.inspection import Inspector
from ignis.storage.aerospike.later import AerospikeLater, main_of_later
from ignis.storage.aerospike.later_inspection import LaterInspector
from ignis.storage.aerospike.later_records import LaterRecords
from ignis.storage.aerospike.remove import Remover
from ignis.storage.aerospike.trickle import Trickle
from ignis.storage.aerospike.waits import WHOLE, Waits
from ignis.storage.aerospike.wake_words import WakeWords
from ignis.storage.base import KEEP_TTL, MOST_FRUITLESS, MagazineStore
from ignis.storage.checks import check_epoch, check_limit, check_loadable, check_owner, expiry_ms
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.records import Abandoned, Fence, FireResult, Pointers, Run, ShardState, Transfer, group_pointers
from ignis.storage.runs import Runs, overlap, runs_of

__all__ = ["AerospikeMagazines"]

log = logging.getLogger("ignis.storage.aerospike")

_HOLE_WAIT_S = 0.02
"""What arrives in a hole rings no bell: a waiter looks when the hole's time has come, and not more often than this."""


class AerospikeMagazines(AerospikeLater, MagazineStore):
    """The magazines of an Aerospike store: a `MagazineStore`. Thread-safe."""

    def __init__(self, context: StoreContext, epoch: Callable[[str], int]) -> None:
        self._connection = connection = context.connection
        self._context = context
        self._epoch = epoch
        self.calls: Counter[str] = Counter(dict.fromkeys(("loads", "fires", "deletes", "reloads", "transfers"), 0))
        self._catalogue = Catalogue(connection, context.sets)
        self._appender = Appender(connection, self._catalogue)
        trickle = Trickle(connection, self._catalogue)
        self._trickle = trickle
        self._claimer = Claimer(connection, self._catalogue, trickle)
        self._remover = Remover(connection, self._catalogue, self._appender, trickle)
        self._said = LimitedLog(log)
        self._records = LaterRecords(connection, self._catalogue, self._appender)
        self._later_inspector = LaterInspector(connection, self._catalogue, self._records)
        self._inspector = Inspector(connection, self._catalogue)
        self._expired_log = ExpiredLog()
        # All that decides where the records are, but for the hosts: one cluster has many names.
        words = WakeWords(connection.options.wake_dir, f"{connection.namespace}\0{context.sets.data}")
        self.waits = Waits(self._pending, words, self._asleep_on_s)

    @contextmanager
    def _call(self, counted: str = "") -> Iterator[None]:
        """Raises ForkedHandleError, ClosedError."""
        self._context.enter()
        try:
            yield
            if counted:
                self.calls[counted] += 1
        finally:
            self._context.leave()

    def figures(self) -> dict[str, int]:
        """For `Store.stats`."""
        claimer = self._claimer
        return {
            **self.calls,
            "holes_seen": claimer.holes.seen,
            "holes_filled": claimer.holes.filled,
            "holes_sealed": claimer.holes.sealed,
            "holes_left": claimer.holes.left,
            "sealed_loads": self._appender.sealed_seen,
            "pointers_restored": self._catalogue.restored,
            "resurrected_seen": claimer.resurrected_seen + self._inspector.resurrected_seen,
        }

    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        with self._call():
            self._catalogue.declare(magazine, shards, durability)

    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        """Two client calls, whatever the size. Not one transaction: when writing fails, what was written is removed
        again and the error raised; nothing is acknowledged. The first pointers are those reserved; a record whose
        pointer a consumer had sealed meanwhile stands further behind."""
        expires_at_ms = expiry_ms(ttl_s)
        with self._call("loads"):
            found = self._catalogue.with_shards(magazine, (shard for shard, _ in batches))
            check_loadable(magazine, batches, found.shards)
            if not batches:
                return []
            items: list[Item] = []
            starts: list[int] = []
            for shard, batch in batches:
                starts.append(len(items))
                items += [Item(shard, record, expires_at_ms) for record in batch.records()]
            placed = self._appender.append(found, items)
            firsts = [placed[start] for start in starts]
            for (shard, batch), first in zip(batches, firsts, strict=True):
                batch.seal(0, shard, first)
            self.waits.ring(magazine, {shard for shard, _ in batches})
            return firsts

    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        """Two client calls where one round is enough. The sizes are known only after the claim: what does not fit into
        ``max_bytes`` goes back to the head, or to the tail when others have claimed since."""
        check_limit(limit)
        check_owner(owner)
        with self._call("fires"):
            found = self._catalogue.get(magazine)
            if shards and not 0 <= min(shards) <= max(shards) < found.shards:
                found = self._catalogue.refresh(magazine)
            now_ms = int(time.time() * 1000)
            self._move_ready(found, now_ms)
            result = self._fire(found, limit, owner, shards, max_bytes)
            # The claim may have shown that something is due.
            if self._is_ready(found, now_ms):
                if result.claims:
                    result = result._replace(more=True)
                elif self._move_ready(found, now_ms):
                    again = self._fire(found, limit, owner, shards, max_bytes)
                    result = again._replace(
                        holes={**result.holes, **again.holes}, expired=result.expired + again.expired
                    )
            return result

    def _fire(
        self, found: Magazine, limit: int, owner: str, shards: Sequence[int] | None, max_bytes: int
    ) -> FireResult:
        look = WHOLE
        if shards is None:
            look = self.waits.look(found.name, found.shards, whole=bool(found.holes))
            if look.shards is not None:
                shards = self._claimer.with_backlog(found, look.shards)
        result, surplus = self._claimer.fire(found, limit, owner, shards, max_bytes, look.expected)
        if surplus:
            self._remover.reload(found, group_pointers(surplus))
        self._expired_log.note(found.name, result.expired)
        claimed = {claim.shard: len(claim.pointers) for claim in result.claims}
        self.waits.fired(found.name, claimed, look, more=result.more)
        return result

    def _settled(self, magazine: str) -> Magazine:
        """The magazine, with all claims of this process written."""
        found = self._catalogue.get(magazine)
        self._claimer.settle(found)
        return found

    def held(self, magazine: str, owner: str) -> list[Run]:
        with self._call():
            return self._inspector.held(self._settled(magazine), owner)

    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        """One client call."""
        with self._call():
            return self._claimer.renew(self._settled(magazine), pointers, owner, to_owner)

    def claimants(self, magazine: str) -> dict[str, bool]:
        with self._call():
            return self._inspector.claimants(self._settled(magazine))

    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        """Loaded at the tail, then removed at the old place; a mark keeps others away in between. The fence is read before
        the mark and before the load."""
        with self._call("reloads"):
            found = self._catalogue.get(magazine)
            count = self._remover.reload(found, pointers, lambda: self._check_fence(fence))
            self.waits.ring(magazine, [shard for shard in range(found.shards) if shard in pointers])
            return count

    def delete(self, magazine: str, pointers: Pointers) -> int:
        """One client call. What is being moved elsewhere at this moment is not deleted, and not counted."""
        if (main := main_of_later(magazine)) is not None:
            return self.cancel_later(main, pointers)
        with self._call("deletes"):
            return self._remover.delete(self._catalogue.get(magazine), pointers)

    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        """One client call for the records and one for the counters, after those of `expire`: a server cannot tell what has run
        out. Atomic for each record."""
        self.expire(magazine)
        with self._call("deletes"):
            return self._remover.delete_waiting(self._catalogue.get(magazine), pointers)

    def _purge_waiting(self, magazine: str, part: Pointers, ends: Mapping[int, int]) -> int:
        """By claims: a record that is removed unclaimed leaves a tombstone, which every consumer has to pass. What was claimed
        and not removed, because this process ended in between, is the sweeper's. A claim passes tombstones and so may bring
        what the next part would have: it is removed now."""
        self.expire(magazine)
        found = self._catalogue.get(magazine)
        with self._call():
            known = self._catalogue.pointers(found, sorted(part))
        count = 0
        for shard, many in part.items():
            end = ends[shard]
            limit = min(len(many), many[-1] - known[shard].fire)
            if limit <= 0:
                continue  # others have claimed it all
            runs = self._claim_waiting(found, shard, limit)
            mine = overlap(runs.runs, 1, end + 1)
            beyond = overlap(runs.runs, end + 1, 1 << 62)
            if mine:
                count += self.delete(magazine, {shard: Runs(mine)})
            if beyond:
                # Others claimed meanwhile, so that this reached what was loaded since the purge began.
                self.reload(magazine, {shard: Runs(beyond)})
        return count

    def _claim_waiting(self, found: Magazine, shard: int, limit: int) -> Runs:
        """Claims what waits in one shard, and moves nothing that is due there first."""
        pointers: list[int] = []
        fruitless = 0
        while len(pointers) < limit and fruitless <= MOST_FRUITLESS:
            with self._call("fires"):
                result = self._fire(found, limit - len(pointers), self._context.owner, [shard], 64 << 20)
            pointers += (one for claim in result.claims for one in claim.pointers)
            fruitless = 0 if result.claims else fruitless + 1
            if not result.more:
                break
        return Runs(runs_of(pointers))

    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        with self._call():
            if (main := self._main_of(magazine)) is not None:
                return self._peek_later(main, pointers)
            return self._inspector.peek(self._catalogue.get(magazine), pointers)

    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        with self._call():
            if (main := self._main_of(magazine)) is not None:
                return self._later_inspector.scan(main, after or {}, limit)
            return self._inspector.scan(self._catalogue.get(magazine), after, limit, pending_only)

    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        """Marked, loaded, removed: a process that dies after the load leaves the message in both magazines, with the
        same id. The fence is read before the mark and before the load."""
        with self._call("transfers"):
            origin = self._catalogue.get(source)
            destination = self._catalogue.with_shards(target, (item.target_shard for item in items))
            count = self._remover.transfer(origin, destination, items, ttl_s, lambda: self._check_fence(fence))
            self.waits.ring(target, {item.target_shard for item in items})
            return count

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is not None:
            check_epoch(self._epoch(fence.scope), fence)

    def abandoned(
        self,
        magazine: str,
        shard: int,
        fired_before_ms: int,
        limit: int,
        *,
        dead_owners: bool = True,
        owner: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Abandoned]:
        """A death is proved only for processes of this machine; for those of others time counts."""
        with self._call():
            found = self._catalogue.with_shard(magazine, shard)
            if not 0 <= shard < found.shards:
                return []
            self._claimer.settle(found)
            return self._inspector.abandoned(found, shard, fired_before_ms, limit, dead_owners, owner)

    def expire(self, magazine: str, limit: int = 10_000) -> int:
        with self._call():
            count = self._inspector.expire(self._catalogue.get(magazine), limit)
            self._expired_log.note(magazine, count)
            return count

    def metadata(self, magazine: str) -> list[ShardState]:
        with self._call():
            if (main := self._main_of(magazine)) is not None:
                return self._later_inspector.states(main)
            return self._inspector.metadata(self._catalogue.get(magazine))

    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        with self._call():
            return self._inspector.oldest_enqueued_at_us(self._catalogue.get(magazine))

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        with self._context.call():
            found = self._catalogue.get(magazine)
            if found.holes:
                timeout_s = min(timeout_s, max(_HOLE_WAIT_S, self._claimer.holes.next_look_s(found)))
            return self.waits.wait(magazine, seen, timeout_s)

    def idle(self, magazine: str, seen: int, timeout_s: float) -> int:
        """See `MagazineStore.idle`. Asks nobody: the claim that follows is the question."""
        with self._context.call():
            found = self._catalogue.get(magazine)
            self._trickle.idle(found)
            if found.holes:
                timeout_s = min(timeout_s, max(_HOLE_WAIT_S, self._claimer.holes.next_look_s(found)))
            return self.waits.idle(magazine, seen, self._asleep_s(found, timeout_s), found.trickle.looked_at)

    def rest(self, magazine: str) -> None:
        """See `MagazineStore.rest`. One client call, and more where a record was on its way."""
        with self._call():
            found = self._catalogue.get(magazine)
            left = self._put_back(found, self._trickle.flush(found))
            self._claimer.holes.remember(found, left, {})

    def _put_back(self, magazine: Magazine, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """What was claimed before its record came, and is there by now, goes to the tail; returns the rest."""
        if not places:
            return []
        there = self._inspector.peek(magazine, group_pointers(places))
        back = [place for place in places if place[1] in there.get(place[0], ())]
        if back:
            self._claimer.count(magazine, Counter(shard for shard, _ in back))
            self._remover.reload(magazine, group_pointers(back))
            self.waits.ring(magazine.name, {shard for shard, _ in back})
        return [place for place in places if place not in back]

    def _pending(self, magazine: str) -> bool:
        """Whether there is something to claim. Not while the server is away: the waiter's next call says so."""
        try:
            found = self._catalogue.get(magazine)
            known = self._catalogue.pointers(found, list(range(found.shards)))
        except IgnisError as exc:
            if not exc.retryable:
                raise
            return False
        # What is due is moved by who waits, too: the time to live of some of it may be over.
        return self._move_ready(found, int(time.time() * 1000)) or any(one.unfired for one in known.values())

    def wake(self, magazine: str) -> None:
        with self._call():
            self._catalogue.get(magazine)
            self.waits.wake(magazine)

    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        """Not one transaction: what is loaded between the look and the removal is removed too."""
        with self._call():
            if (main := main_of_later(magazine)) is not None:
                return self._drop_later(main, only_empty)
            if only_empty and not self._drop_later(magazine, only_empty):
                return False
            if only_empty:
                try:
                    found = self._catalogue.refresh(magazine)
                except QueueNotFoundError:
                    return True
                if any(one.pending or one.in_flight for one in self._inspector.metadata(found)):
                    return False
            had_later = self._had_later(magazine)
            self._catalogue.drop(magazine)
            if had_later:
                self._records.clear(magazine)
            return True

    def names(self) -> list[str]:
        with self._call():
            return self._catalogue.names()

    def close(self) -> None:
        """Ends all waits, and writes what claims have left."""
        self.waits.close()
        for magazine in self._catalogue.known():
            try:
                self._claimer.settle(magazine)
                left = self._put_back(magazine, self._claimer.holes.take_all(magazine))
                self._claimer.leave(magazine, left, self._context.owner)
            except IgnisError as exc:
                log.warning(
                    event_text("claims_left", "the last claims of %s are left to the sweeper: %s"), magazine.name, exc
                )

    def release(self) -> None:
        """After the last call has ended."""
        self.waits.words.close()
