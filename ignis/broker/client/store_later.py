"""What waits for its time behind a broker: the calls of `KeepsLater`, each a request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ignis.broker.client import later_requests, store_requests
from ignis.broker.client.store_arguments import check_batches, pointer_pieces, row_pieces
from ignis.broker.client.store_calls import StoreCalls
from ignis.errors import DelayNotSupportedError, QueueNotFoundError
from ignis.native import PackedBatch
from ignis.native.wire import MAX_POINTERS
from ignis.storage.checks import check_dues, check_limit
from ignis.storage.later import MOVE_LIMIT, Delayed, KeepsLater, MovedDue, later_of
from ignis.storage.records import KEEP_TTL, Fence, Pointers, Transfer, group_pointers

__all__ = ["BrokerLater"]

_MOST_LISTED = 10_000


class BrokerLater(KeepsLater):
    """The later magazines of the store behind the broker. Its consumers, and those of the broker, are woken by that store."""

    _calls: StoreCalls

    @property
    def keeps_later(self) -> bool:  # type: ignore[override]
        """Whether the store behind the broker does; the broker says it when the connection is made."""
        broker = self._calls.broker
        return broker is not None and broker.keeps_later

    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        check_dues(dues_ms, [batch.count for _, batch in batches])
        self._check_keeps()
        if not batches:
            self._calls.ask(store_requests.metadata(magazine))
            return []
        check_batches(batches)
        request = later_requests.load_later(magazine, batches, dues_ms, ttl_s)
        self._calls.check_size(len(request.payload))
        firsts = [first for _, first, _ in self._calls.ask(request)]
        for (shard, batch), first in zip(batches, firsts, strict=True):
            batch.seal(0, shard, first)  # so that it is not loaded again
        return firsts

    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        check_dues([dues_ms], [len(items)])
        self._check_keeps()
        moved = 0
        for part in row_pieces(items, self._calls.most_load_bytes):  # as `BrokerMagazines.transfer`
            some = items[part]
            request = later_requests.defer(magazine, some, dues_ms[part], ttl_s, fence)
            self._calls.check_size(len(request.payload))
            moved += self._calls.ask(request)
            self._calls.tracking.accounted(magazine, group_pointers((item.shard, item.pointer) for item in some))
        return moved

    def next_due_ms(self, magazine: str) -> int | None:
        return self._calls.ask(later_requests.delayed(magazine))[1] if self.keeps_later else None

    def move_due(self, magazine: str, limit: int = MOVE_LIMIT, fence: Fence | None = None) -> MovedDue:
        check_limit(limit)
        if not self.keeps_later:
            return MovedDue(0, 0, None)
        return self._calls.ask(later_requests.move_due(magazine, min(limit, MOVE_LIMIT), fence))

    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        found: list[Delayed] = []
        cut = self.keeps_later
        while cut and len(found) < limit:
            wanted = min(limit - len(found), _MOST_LISTED)
            some, cut = self._calls.ask(later_requests.listed(magazine, after, wanted))
            cut = cut or (len(some) == wanted == _MOST_LISTED)
            found += some
            after = found[-1][:3] if found else None
        return found

    def list_later_within(
        self, magazine: str, *, after: tuple[int, int, int] | None, limit: int, max_bytes: int
    ) -> tuple[list[Delayed], bool]:
        """One answer of the broker, which bounds it by itself."""
        if not self.keeps_later:
            return [], False
        wanted = min(limit, _MOST_LISTED)
        some, cut = self._calls.ask(later_requests.listed(magazine, after, wanted))
        return some, bool(some) and len(some) < limit and (cut or len(some) == wanted)

    def run_now(self, magazine: str, pointers: Pointers) -> int:
        self._check_keeps()
        pieces = pointer_pieces(self._within(magazine, pointers))
        return sum(self._calls.ask(later_requests.run_now(magazine, runs)) for runs, count in pieces if count)

    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        self._check_keeps()
        pieces = pointer_pieces(self._within(magazine, pointers))
        return sum(self._calls.ask(later_requests.cancel_later(magazine, runs)) for runs, count in pieces if count)

    def delayed(self, magazine: str) -> int:
        return self._calls.ask(later_requests.delayed(magazine))[0] if self.keeps_later else 0

    def expired_later(self, magazine: str) -> int:
        if not self.keeps_later:
            return 0
        try:
            return sum(one.expired for one in self._calls.ask(store_requests.metadata(later_of(magazine))))
        except QueueNotFoundError:  # nothing was ever delayed
            return 0

    def _within(self, magazine: str, pointers: Pointers) -> Pointers:
        """The same without what cannot be there: a range may name more than all requests together could."""
        if sum(map(len, pointers.values())) <= MAX_POINTERS:
            return pointers
        try:
            ends = {one.shard: one.load_pointer for one in self._calls.ask(store_requests.metadata(later_of(magazine)))}
        except QueueNotFoundError:
            return {}
        return {
            shard: many[: bisect_right(many, ends.get(shard, 0))] if isinstance(many, range) else many
            for shard, many in pointers.items()
        }

    def _check_keeps(self) -> None:
        if not self.keeps_later:
            raise DelayNotSupportedError(f"the store behind {self._calls.client.address.host}")
