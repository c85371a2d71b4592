"""One pass of a shovel over a sideline: claims what waits there, moves what comes back, and puts the rest back."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignis.cancellation import forget_former_requests
from ignis.config import check_number, check_whole, shown
from ignis.context import QueueContext
from ignis.errors import ConfigError, IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.shovel_choice import Where, coming_back, wanted, why_waiting
from ignis.shovel_owed import Owed, Place
from ignis.shovel_picks import is_spent, pick, rows_of
from ignis.storage.base import MOST_FRUITLESS, Claim, Transfer
from ignis.storage.parts import in_parts
from ignis.tracing.returning import returning
from ignis.upkeep import WorkThreads

__all__ = ["Progress", "ShovelPass", "ShovelResult", "check_options"]

log = logging.getLogger("ignis.shovel")

Progress = Callable[[int], None]

BATCH = 1_000
_PACED_BATCH_S = 0.1
"""With a rate, a batch has what may move in this time, so that few messages are claimed while the shovel waits."""


def check_options(limit: Any, where: Any, rate: Any, progress: Any) -> None:
    """Raises ConfigError."""
    if limit is not None:
        check_whole(limit, "limit", 0)
    if rate is not None:
        check_number(rate, "rate", above=True)
    for name, fn in (("where", where), ("progress", progress)):
        if fn is not None and not callable(fn):
            raise ConfigError(f"{name} is not callable: {shown(fn)}")


@dataclass
class ShovelResult:
    """The counts of one pass.

    ``moved``: to the main magazine; in a dry run, those that would move. ``kept``: were looked at and stayed in the sideline. Of
    these, ``refused`` were not taken by the store, and ``waiting`` are brought back only by a person. ``left``: all that is in
    the sideline after a pass by hand, looked at or not; in a dry run, what would be. None = nobody counted it.
    """

    moved: int = 0
    kept: int = 0
    refused: int = 0
    waiting: int = 0
    causes: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    """Of ``waiting``, as `why_waiting` says it."""
    left: int | None = field(default=None, compare=False)

    def told(self, dry_run: bool) -> dict[str, int | None]:
        """For a document: by the names of these counts, and after a dry run by names that say that nothing has happened."""
        moved, kept, left = ("would_move", "would_keep", "would_be_left") if dry_run else ("moved", "kept", "left")
        return {moved: self.moved, kept: self.kept, left: self.left, "refused": self.refused, "waiting": self.waiting}

    def add(self, other: ShovelResult) -> None:
        """Adds the counts of another result to these."""
        self.moved += other.moved
        self.kept += other.kept
        self.refused += other.refused
        self.waiting += other.waiting
        self.causes += other.causes


class ShovelPass:
    """Makes the passes over one queue's sideline, and remembers what they still have to put back. Thread-safe.

    Args:
        name: of the queue.
        queue: gives the queue as it is now; opens it where it is not.
        stopped: set to end a pass after its batch.
    """

    def __init__(self, name: str, queue: Callable[[], QueueContext[Any]], stopped: threading.Event) -> None:
        self._name = name
        self._queue = queue
        self._stop = stopped
        self._lock = threading.Lock()
        self._owed = Owed()
        self._said = LimitedLog(log)
        self.total = ShovelResult()
        """The counts of all passes."""

    def add(self, result: ShovelResult) -> None:
        """Adds the counts of a pass to the total."""
        with self._lock:
            self.total.add(result)

    def pick(self, limit: int | None, where: Where, rate: float | None, progress: Progress | None) -> ShovelResult:
        """Makes a pass by hand over chosen messages: of a large sideline a few may be meant, and the others are to stay in their
        order."""
        self.give_back()
        queue, result = self._queue(), ShovelResult()
        queue.main.follow_shards()  # as in `run`
        pace = None if rate is None else Pace(rate, self._stop)
        size = BATCH if pace is None else pace.batch
        try:
            for found in pick(
                queue.sideline, lambda record: coming_back(record, where, None), where, queue.main.shards, limit, size
            ):
                before = result.moved
                result.kept += found.looked_at - len(found.moving)
                if found.moving:
                    result.kept += len(self.transfer(found.moving, result))
                if progress is not None:
                    progress(found.looked_at)
                if pace is not None:
                    pace.wait_after(result.moved - before)
                if self._stop.is_set():
                    break
        finally:
            self.add(result)
        return result

    def run(
        self, limit: int | None, rate: float | None, progress: Progress | None, max_returns: int | None
    ) -> ShovelResult:
        """Makes a pass over what is in the sideline now. ``max_returns``: the bound of the schedule; None = a pass by hand."""
        self.give_back()
        self._queue().main.follow_shards()  # another process may have given it more shards: messages go back to their own
        pending = self._queue().sideline.pending()
        budget = Budget(pending if limit is None else min(limit, pending))
        pace = None if rate is None else Pace(rate, self._stop)
        staying: list[Place] = []
        sideline = self._queue().sideline
        workers = (
            1 if rate is not None else min(self._queue().settings.shovel_concurrency, max(1, budget.left // BATCH))
        )
        try:
            if workers <= 1:
                results = [self._work(budget, pace, progress, max_returns, staying)]
            else:
                with WorkThreads(workers, f"ignis-shovel-{self._name}") as pool:
                    futures = [
                        pool.submit_or_run(self._work, budget, pace, progress, max_returns, staying)
                        for _ in range(workers)
                    ]
                    results = [future.result() for future in futures]
        finally:
            # Only when all workers are done. Else one of them would claim again what another has put back, instead of
            # messages that none has seen.
            self._owed.add(staying)
            self._owed.give_back(sideline)
        result = ShovelResult()
        for one in results:
            result.add(one)
        self.add(result)
        return result

    def count(self, limit: int | None, where: Where | None, progress: Progress | None) -> ShovelResult:
        """What a pass by hand would move. Claims and changes nothing."""
        sideline, result = self._queue().sideline, ShovelResult()
        for _, _, record in itertools.islice(self.pending(), limit):
            if is_spent(where):
                break
            moves = record is not None and wanted(record, where)
            result.moved += moves
            result.kept += not moves
            if progress is not None:
                progress(1)
        log.debug(event_text("shovel_dry_run", "dry run over %s"), sideline.name)
        return result

    def left(self, result: ShovelResult, limit: int | None, where: Where | None, *, dry_run: bool) -> int:
        """What is in the sideline after that pass by hand. Where the pass ended early it is what the store counts, which may
        include what was removed from between other messages."""
        sideline = self._queue().sideline
        claimed = sideline.in_flight()
        counted = sideline.pending() + claimed - (result.moved if dry_run else 0)
        limited = limit is not None and result.moved + result.kept >= limit
        early = limited or is_spent(where) or self._stop.is_set()
        return counted if early else min(counted, result.kept + claimed)

    def pending(self) -> Iterator[tuple[int, int, bytes | None]]:
        """(shard, pointer, record) of all that waits in the sideline, as it is read."""
        for page in rows_of(self._queue().sideline, bounded=False):
            yield from page

    def _work(
        self,
        budget: Budget,
        pace: Pace | None,
        progress: Progress | None,
        max_returns: int | None,
        owed: list[Place],
    ) -> ShovelResult:
        """One worker's part of a pass. ``owed``: here it adds what it claimed and did not move."""
        queue, result = self._queue(), ShovelResult()
        sideline, owner = queue.sideline, queue.store.owner
        staying: list[Place] = []
        most = BATCH if pace is None else pace.batch
        fruitless = 0
        try:
            while not self._stop.is_set():
                size = budget.take(most)
                if not size:
                    break
                fired = sideline.store.fire(sideline.name, size, owner)
                if not fired.claims:
                    fruitless += 1
                    if not fired.more or fruitless > MOST_FRUITLESS:
                        break
                    budget.give_back(size)
                    continue
                fruitless = 0
                claimed = [(claim.shard, pointer) for claim in fired.claims for pointer in claim.pointers]
                before = result.moved
                try:
                    moved = [self._move(claim, result, max_returns) for claim in fired.claims]
                except BaseException:
                    staying += claimed  # those that moved already are not in the sideline any more, and are skipped
                    raise
                staying += [one for some in moved for one in some]
                if progress is not None:
                    progress(len(claimed))
                budget.give_back(size - len(claimed))
                if pace is not None:
                    pace.wait_after(result.moved - before)
        finally:
            if staying:
                result.kept += len(staying)
                with self._lock:
                    owed += staying
        return result

    def give_back(self) -> None:
        """Puts what passes have claimed and not moved back at the sideline's tail; see `Owed`."""
        self._owed.give_back(self._queue().sideline)

    def _move(self, claim: Claim, result: ShovelResult, max_returns: int | None) -> list[tuple[int, int]]:
        """Moves the messages that may come back; returns (shard, pointer) of those that stay."""
        main = self._queue().main
        moving: list[Transfer] = []
        staying: list[tuple[int, int]] = []
        for pointer, record in zip(claim.pointers, claim.records, strict=True):
            fresh = coming_back(record, None, max_returns)
            if fresh is None:
                staying.append((claim.shard, pointer))
                if max_returns is not None:
                    result.waiting += 1
                    result.causes[why_waiting(record, max_returns)] += 1
            else:
                moving.append(Transfer(claim.shard, pointer, fresh, claim.shard % main.shards))
        if moving:
            staying += self.transfer(moving, result)
        return staying

    def transfer(self, moving: Sequence[Transfer], result: ShovelResult) -> Collection[tuple[int, int]]:
        """Moves them to the main magazine and counts them; returns (shard, pointer) of those that it refuses."""
        tracing = self._queue().tracing
        if tracing is None:
            return self._store(moving, result)
        with returning(tracing, self._name, moving) as traced:
            return self._store(traced, result)

    def _store(self, moving: Sequence[Transfer], result: ShovelResult) -> Collection[tuple[int, int]]:
        queue = self._queue()
        main, sideline = queue.main, queue.sideline
        left = {(item.shard, item.pointer): None for item in moving}
        try:
            forget_former_requests(queue.store.queues, self._name, [item.record for item in moving])
            for part, moved in in_parts(moving, lambda some: main.store.transfer(sideline.name, main.name, some)):
                result.moved += moved
                for item in part:
                    left.pop((item.shard, item.pointer), None)
        except IgnisError as exc:
            self._said.warning(
                event_text("shovel_refused", "%d message(s) of %s stay in the sideline: %s"), len(left), self._name, exc
            )
            result.refused += len(left)
        return left


class Budget:
    """How many messages a pass may still claim, shared by its workers."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._lock = threading.Lock()

    def take(self, most: int) -> int:
        with self._lock:
            taken = min(most, self.left)
            self.left -= taken
            return taken

    def give_back(self, count: int) -> None:
        with self._lock:
            self.left += count


class Pace:
    """Holds one worker to a number of messages a second. Unused time is not made up for later."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._free_at = time.monotonic()
        self.batch = max(1, min(BATCH, int(rate * _PACED_BATCH_S)))

    def wait_after(self, moved: int) -> None:
        """Waits until the next messages may move, or the shovel is stopped."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + moved / self._rate
        self._stop.wait(max(0.0, self._free_at - now))
