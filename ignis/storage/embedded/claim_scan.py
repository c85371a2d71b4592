"""Claiming what waits: over the shards of a magazine, beginning behind the one that was served last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ignis.errors import ConfigError
from ignis.native.store import Recall, fire_into
from ignis.native.wire import ClaimsFrame
from ignis.storage.embedded.catalogue import Magazine
from ignis.storage.embedded.context import StoreContext
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.later import later_of
from ignis.storage.records import Claim, FireResult, Run, joined_runs
from ignis.storage.write_batch import FiredInto

__all__ = ["ClaimScan", "warn_of_late"]

_MOST_EXPIRED = 100_000
"""So many expired records one call retires; the rest is for the next."""
_ANY_SIZE = 1 << 62
_row = tuple.__new__
"""Makes a named tuple without the function of Python's that its class makes one with."""


def warn_of_late(found: Magazine, expired_log: ExpiredLog) -> None:
    """Warns of what expired in the later magazine of this one, and was retired when it was due. Any call that claims or waits may
    have done that."""
    if found.log.late:
        expired_log.note(later_of(found.name), found.log.take_late(found.number))


class ClaimScan:
    """Claims what waits in the magazines of one store, over their shards. Thread-safe.

    Args:
        store: whose magazines they are.
        expired_log: warns of what expired before it was due.
    """

    def __init__(self, store: StoreContext, expired_log: ExpiredLog) -> None:
        self._directory = store.directory
        self._owner = store.owner
        self._gate = store.gate
        self._expired_log = expired_log
        self._rotation: dict[str, int] = {}

    def order(self, found: Magazine, shards: Sequence[int] | None) -> list[int] | None:
        """The shards to look at; None = all, from `begin` on."""
        if shards is None:
            return None
        begin = self.begin(found)
        wanted = sorted(set(shards))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < found.shards:
            raise ConfigError(
                f"shards {wanted[0]} to {wanted[-1]} of magazine {found.name!r}, which has {found.shards}"
            )
        return [shard for shard in wanted if shard >= begin] + [shard for shard in wanted if shard < begin]

    def begin(self, found: Magazine) -> int:
        return self._rotation.get(found.name, 0) % found.shards

    def served(self, found: Magazine, shard: int) -> None:
        self._rotation[found.name] = shard + 1

    def fire(
        self,
        found: Magazine,
        limit: int,
        owner: bytes,
        shards: Sequence[int] | None,
        max_bytes: int,
        wait: bool = True,
    ) -> FireResult | None:
        """See `MagazineStore.fire`. What has expired is retired on the way.

        Without ``wait`` it is left where it is, and None is returned when there is nothing else: it is retired by who may wait.
        StoreBusyError says that a lock would have to be waited for; nothing was claimed then.
        """
        name, _, log, number, many = found
        order = None if shards is None else self.order(found, shards)
        now_ms = self._directory.clock.now_ms()
        size = max_bytes if 0 <= max_bytes <= _ANY_SIZE else min(max(max_bytes, 0), _ANY_SIZE)
        begin = self._rotation.get(name, 0) % many
        pieces, expired, more, _ = log.fire(number, limit, owner, now_ms, order, begin, size, not wait)
        if log.late:
            warn_of_late(found, self._expired_log)
        if len(pieces) == 1 and not expired:  # as a rule: a lone message, or one shard
            shard, pointers, records, _ = pieces[0]
            self._rotation[name] = shard + 1
            return _row(FireResult, ([_row(Claim, (shard, pointers, records))], {}, 0, more))
        claims = self._claims_of(found, pieces)
        if not expired:
            return _row(FireResult, (claims, {}, 0, more))
        if not wait:
            return FireResult(claims, {}, 0, True) if claims else None
        return self._fire_behind(found, limit, owner, max_bytes, now_ms, claims, expired, more)

    def fire_next(
        self, found: Magazine, limit: int, owner: bytes, seen: int, timeout_s: float, recall: Recall, max_bytes: int
    ) -> tuple[int, FireResult | None]:
        """See `MagazineStore.fire_next`."""
        name, _, log, number, many = found
        now_ms = self._directory.clock.now_ms()
        size = max_bytes if 0 <= max_bytes <= _ANY_SIZE else min(max(max_bytes, 0), _ANY_SIZE)
        begin = self._rotation.get(name, 0) % many
        seen, fired = log.fire_next(number, limit, owner, now_ms, self._gate, recall, seen, timeout_s, begin, size)
        if log.late:
            warn_of_late(found, self._expired_log)
        if fired is None:
            return seen, None
        pieces, expired, more, _ = fired
        if len(pieces) == 1 and not expired:  # as a rule: a handler waits for this message
            shard, pointers, records, _ = pieces[0]
            self._rotation[name] = shard + 1
            return seen, _row(FireResult, ([_row(Claim, (shard, pointers, records))], {}, 0, more))
        claims = self._claims_of(found, pieces)
        if not expired:
            return seen, FireResult(claims, {}, 0, more)
        self._gate.enter()
        try:
            now_ms = self._directory.clock.now_ms()
            return seen, self._fire_behind(found, limit, owner, max_bytes, now_ms, claims, expired, more)
        finally:
            self._gate.leave()

    def _claims_of(self, found: Magazine, pieces: list[Any]) -> list[Claim]:
        claims = [_row(Claim, piece[:3]) for piece in pieces]  # (shard, pointers, records)
        if claims:
            self._rotation[found.name] = claims[-1].shard + 1
        return claims

    def _fire_behind(
        self, found: Magazine, limit: int, owner: bytes, max_bytes: int, now_ms: int,
        claims: list[Claim], expired: list[int], more: bool,
    ) -> FireResult:  # fmt: skip
        """What has expired is retired, and what lies behind it is claimed as well."""
        log, number = found.log, found.number
        count = 0
        while expired:
            count += self._retire(found, expired, now_ms, _MOST_EXPIRED - count)
            if more or count >= _MOST_EXPIRED:
                more = True
                break
            left = limit - sum(len(claim.pointers) for claim in claims)
            size = min(max(max_bytes, 0), _ANY_SIZE)
            size -= sum(len(record or b"") for claim in claims for record in claim.records)
            pieces, expired, more, _ = log.fire(
                number,
                left if size > 0 or not claims else 0,
                owner,
                now_ms,
                order=expired,
                max_bytes=max(size, 0),
                first=not claims,
            )
            claims += [Claim(shard, pointers, records) for shard, pointers, records, _ in pieces]
        return FireResult(claims, {}, count, more)

    def fire_into(
        self,
        found: Magazine,
        frame: ClaimsFrame,
        limit: int,
        owner: bytes,
        shards: Sequence[int] | None,
        max_bytes: int,
        wait: bool = True,
    ) -> FiredInto | None:
        """`fire` into a frame."""
        order = self.order(found, shards)
        now_ms = self._directory.clock.now_ms()
        size = min(max(max_bytes, 0), _ANY_SIZE)
        before, began = frame.messages, frame.nbytes
        served, expired, more, _ = fire_into(
            found.log,
            frame,
            found.number,
            limit,
            owner,
            now_ms,
            order=order,
            begin=self.begin(found),
            max_bytes=size,
            at_once=not wait,
        )
        warn_of_late(found, self._expired_log)
        if served is not None:
            self.served(found, served)
        if expired and not wait:
            return None if served is None else FiredInto({}, 0, True)
        count = 0
        while expired:
            count += self._retire(found, expired, now_ms, _MOST_EXPIRED - count)
            if more or count >= _MOST_EXPIRED:
                more = True
                break
            left = limit - (frame.messages - before)
            size = min(max(max_bytes, 0), _ANY_SIZE) - (frame.nbytes - began)
            none_yet = frame.messages == before
            _, expired, more, _ = fire_into(
                found.log,
                frame,
                found.number,
                left if size > 0 or none_yet else 0,
                owner,
                now_ms,
                order=expired,
                max_bytes=max(size, 0),
                first=none_yet,
            )
        return FiredInto({}, count, more)

    def claim(self, found: Magazine, limit: int, owner: bytes, shards: Sequence[int] | None) -> tuple[list[Run], int]:
        """The runs that were claimed, and how many records had expired."""
        order = self.order(found, shards)
        now_ms = self._directory.clock.now_ms()
        runs: list[Run] = []
        count = 0
        while True:
            left = limit - sum(run.messages for run in runs)
            pieces, expired, more, _ = found.log.fire(
                found.number, left, owner, now_ms, order=order, begin=self.begin(found), records=False
            )
            warn_of_late(found, self._expired_log)
            runs += (Run(shard, pointers[0], pointers[-1], many) for shard, pointers, many, _ in pieces)
            if expired:
                count += self._retire(found, expired, now_ms, _MOST_EXPIRED - count)
            if more or not expired or count >= _MOST_EXPIRED:
                return joined_runs(runs), count
            order = expired

    def expire(self, found: Magazine, limit: int) -> int:
        """See `MagazineStore.expire`."""
        now_ms = self._directory.clock.now_ms()
        _, expired, _, _ = found.log.fire(found.number, 0, self._owner.encode(), now_ms)
        warn_of_late(found, self._expired_log)
        return self._retire(found, expired, now_ms, limit)

    def expire_heads(self, found: Magazine, shards: Iterable[int]) -> int:
        """Retires, and counts as expired, what has run out of time at the heads of these shards."""
        now_ms = self._directory.clock.now_ms()
        return self._retire(found, [shard for shard in shards if 0 <= shard < found.shards], now_ms, _MOST_EXPIRED)

    @staticmethod
    def _retire(found: Magazine, shards: Sequence[int], now_ms: int, limit: int) -> int:
        # Not flushed: what a power cut brings back has expired all the same, and is retired and counted again.
        count = 0
        for shard in shards:
            if count < limit:
                count += found.log.expire(found.number, shard, now_ms, limit - count, durable=False)
        return count
