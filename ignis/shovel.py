"""The shovel: brings the sideline back to the main magazine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ignis.errors import IgnisError, UnreadableMessageError
from ignis.message import REASON_CORRUPT, Message
from ignis.storage.base import Claim, Transfer, group_pointers

if TYPE_CHECKING:
    from ignis.queue import Queue

__all__ = ["Shovel", "ShovelResult"]

log = logging.getLogger("ignis.shovel")

BATCH = 1_000
ONE_SHOT_RETRY_S = 10.0


@dataclass
class ShovelResult:
    """What one pass did: moved to the main magazine, kept in the sideline, refused by the store and put back."""

    moved: int = 0
    kept: int = 0
    refused: int = 0


class Shovel:
    """Moves one queue's sideline back to its main magazine. Thread-safe.

    Every message keeps its id, its attempts and the reason of its last failure. A message that the main magazine does
    not accept stays in the sideline. A corrupt one has no body to handle and always stays.
    """

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.total = ShovelResult()

    def run_once(
        self,
        *,
        limit: int | None = None,
        where: Callable[[Message], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> ShovelResult:
        """One pass over what is in the sideline now; what arrives meanwhile waits for the next.

        Args:
            limit: look at no more than this many messages.
            where: only messages for which this is true; the others go back to the sideline's tail.
            progress: called with the number of messages looked at since the last call.

        Returns:
            The counts. Raises the store's error when it cannot claim at all.
        """
        if self._thread is None:
            self._stop.clear()  # an earlier stop ended the schedule, not what is asked for by hand
        pending = self._queue.sideline.pending()
        budget = _Budget(pending if limit is None else min(limit, pending))
        workers = min(self._queue.settings.shovel_concurrency, max(1, budget.left // BATCH))
        if workers <= 1:
            results = [self._work(budget, where, progress)]
        else:
            with ThreadPoolExecutor(workers, thread_name_prefix=f"ignis-shovel-{self._queue.name}") as pool:
                futures = [pool.submit(self._work, budget, where, progress) for _ in range(workers)]
                results = [future.result() for future in futures]
        result = ShovelResult(
            sum(one.moved for one in results), sum(one.kept for one in results), sum(one.refused for one in results)
        )
        self.total.moved += result.moved
        self.total.kept += result.kept
        self.total.refused += result.refused
        return result

    def run_until_done(self, timeout: float, **options: Any) -> ShovelResult:
        """The one-shot: a pass that fails is tried again after 10 s, until the timeout has passed.
        Raises the last error."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.run_once(**options)
            except IgnisError as exc:
                if not exc.retryable or time.monotonic() + ONE_SHOT_RETRY_S > deadline:
                    raise
                log.warning("shovel of %s failed, trying again in %g s: %s", self._queue.name, ONE_SHOT_RETRY_S, exc)
            if self._stop.wait(ONE_SHOT_RETRY_S):
                return ShovelResult()

    def start(self) -> None:
        """Starts the schedule (``shovel_interval_s``; 0 = none)."""
        if self._thread is None and self._queue.settings.shovel_interval_s > 0:
            self._stop.clear()
            self._thread = threading.Thread(target=self._loop, name=f"ignis-shovel-{self._queue.name}", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule; a pass in progress ends after its batch."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None

    def _loop(self) -> None:
        while not self._stop.wait(self._queue.settings.shovel_interval_s):
            try:
                result = self.run_once()
                if result.moved:
                    log.info("shovelled %d message(s) of %s", result.moved, self._queue.name)
            except Exception:
                log.exception("shovel pass of %s failed", self._queue.name)

    def _work(
        self, budget: _Budget, where: Callable[[Message], bool] | None, progress: Callable[[int], None] | None
    ) -> ShovelResult:
        sideline, result = self._queue.sideline, ShovelResult()
        # Goes back only at the end: a pass would meet again what it has put back, instead of what it has not seen.
        staying: list[tuple[int, int]] = []
        try:
            while not self._stop.is_set():
                size = budget.take(BATCH)
                if not size:
                    break
                fired = sideline.store.fire(sideline.name, size, self._queue.app.store.owner)
                if not fired.claims:
                    break
                claimed = [(claim.shard, pointer) for claim in fired.claims for pointer in claim.pointers]
                try:
                    moved = [self._move(claim, where, result) for claim in fired.claims]
                except BaseException:
                    staying += claimed  # what was moved already is no longer there, and skipped
                    raise
                staying += [one for some in moved for one in some]
                if progress is not None:
                    progress(len(claimed))
                budget.give_back(size - len(claimed))
        finally:
            if staying:
                result.kept += sideline.store.reload(sideline.name, group_pointers(staying))
        return result

    def _move(
        self, claim: Claim, where: Callable[[Message], bool] | None, result: ShovelResult
    ) -> list[tuple[int, int]]:
        """Moves what is to be moved; returns (shard, pointer) of what stays."""
        main, sideline = self._queue.main, self._queue.sideline
        moving: list[Transfer] = []
        staying: list[tuple[int, int]] = []
        for pointer, record in zip(claim.pointers, claim.records, strict=True):
            if record is None or not _wanted(record, where):
                staying.append((claim.shard, pointer))
            else:
                moving.append(Transfer(claim.shard, pointer, record, claim.shard % main.shards))
        if moving:
            try:
                result.moved += main.store.transfer(sideline.name, main.name, moving, main.ttl_s)
            except IgnisError as exc:
                log.warning("%d message(s) of %s stay in the sideline: %s", len(moving), self._queue.name, exc)
                result.refused += len(moving)
                staying += [(item.shard, item.pointer) for item in moving]
        return staying


def _wanted(record: bytes, where: Callable[[Message], bool] | None) -> bool:
    try:
        message = Message.from_bytes(record)
        return message.reason != REASON_CORRUPT and (where is None or bool(where(message)))
    except UnreadableMessageError:
        return where is None


class _Budget:
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
