"""The sweeper: recovers what was claimed and never finished, because its worker died or hangs.

Runs on the leader only; every write carries the leader's epoch. From the main magazine an abandoned message goes to
the sideline with the reason ``abandoned``. In the sideline itself an abandoned claim is a shovel's: it goes back to the
sideline's tail, and only after ``min(now - stuck_after, now - 2 x shovel interval)``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignis.config import SweeperSettings
from ignis.errors import LockHeldError, StaleEpochError
from ignis.leader import Leadership
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_ABANDONED, corrupt_record, failed_record
from ignis.storage.base import Abandoned, Fence, QueueRecord, Store, Transfer, group_pointers

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SweepResult", "Sweeper"]

log = logging.getLogger("ignis.sweeper")


@dataclass
class SweepResult:
    """What one pass did. ``failed_queues`` could not be swept; the log says why."""

    queues: int = 0
    swept: int = 0
    sideline_swept: int = 0
    expired: int = 0
    failed_queues: int = 0


class Sweeper:
    """Sweeps all queues of one store. Thread-safe.

    Args:
        store: the store.
        leader: decides whether this instance may sweep.
        settings: see ``ignis.config``.
        clock: seconds since the epoch; injectable for tests.
    """

    def __init__(
        self, store: Store, leader: Leadership, settings: SweeperSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.total = SweepResult()
        self.refused = 0

    def start(self) -> None:
        """Starts the schedule."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._loop, name="ignis-sweeper", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and gives the leadership up; a pass in progress ends after its batch."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        self._leader.relinquish()

    def run_once(self, queues: Iterable[str] | None = None) -> SweepResult:
        """One pass over all active queues, or over those named. Raises LockHeldError when another instance leads."""
        if self._thread is None:
            self._stop.clear()  # an earlier stop ended the schedule, not what is asked for by hand
        fence = self._leader.lead()
        wanted = None if queues is None else set(queues)
        records = [one for one in self._store.queues.list(active=True) if wanted is None or one.name in wanted]
        result = SweepResult(queues=len(records))
        workers = max(1, min(self._settings.parallel_queues, len(records)))
        with ThreadPoolExecutor(workers, thread_name_prefix="ignis-sweep") as pool:
            for record, future in [(one, pool.submit(self.sweep_queue, one, fence)) for one in records]:
                try:
                    part = future.result()
                except StaleEpochError:
                    # Somebody else leads now: nothing of this pass may be written any more.
                    self.refused += 1
                    self._leader.relinquish()
                    raise
                except Exception:
                    # One queue's failure never stops the others.
                    log.exception("sweep of %s failed", record.name)
                    result.failed_queues += 1
                else:
                    result.swept += part.swept
                    result.sideline_swept += part.sideline_swept
                    result.expired += part.expired
        self.total.swept += result.swept
        self.total.sideline_swept += result.sideline_swept
        self.total.expired += result.expired
        self.total.failed_queues += result.failed_queues
        return result

    def sweep_queue(self, queue: QueueRecord, fence: Fence) -> SweepResult:
        """Sweeps one queue, its shards in turn."""
        main, sideline = queue.name, queue.name + SIDELINE_SUFFIX
        now_ms = int(self._clock() * 1000)
        stuck_before_ms = now_ms - int(queue.stuck_after_s * 1000)
        sideline_before_ms = min(stuck_before_ms, now_ms - 2 * queue.shovel_interval_s * 1000)
        result = SweepResult()
        pointers: dict[int, int] = {}
        sideline_pointers: dict[int, int] = {}
        for shard in range(queue.shards):
            while not self._stop.is_set():
                found = self._abandoned(main, shard, stuck_before_ms)
                if found:
                    pointers[shard] = found[-1].pointer
                    result.swept += self._sideline(queue, main, sideline, found, fence)
                if len(found) < self._settings.batch:
                    break
            while not self._stop.is_set():
                found = self._abandoned(sideline, shard, int(sideline_before_ms))
                if found:
                    self._check(fence)
                    sideline_pointers[shard] = found[-1].pointer
                    result.sideline_swept += self._store.magazines.reload(
                        sideline, group_pointers((one.shard, one.pointer) for one in found)
                    )
                if len(found) < self._settings.batch:
                    break
        result.expired = self._store.magazines.expire(main) + self._store.magazines.expire(sideline)
        if pointers or sideline_pointers:
            self._note(queue.name, pointers, sideline_pointers, result, fence)
            log.warning(
                "swept %d abandoned message(s) of %s into the sideline, %d within it",
                result.swept, queue.name, result.sideline_swept,
            )  # fmt: skip
        return result

    def _abandoned(self, magazine: str, shard: int, before_ms: int) -> list[Abandoned]:
        return self._store.magazines.abandoned(
            magazine, shard, before_ms, self._settings.batch, dead_owners=self._settings.dead_owners
        )

    def _check(self, fence: Fence) -> None:
        """Raises StaleEpochError when another leads by now. For writes that cannot carry the fence themselves: a reload
        changes nothing that somebody else has finished, so what slips through between look and write is harmless."""
        epoch = self._store.locks.epoch(fence.scope)
        if epoch > fence.epoch:
            raise StaleEpochError(f"{fence.scope}: epoch {fence.epoch} was replaced by {epoch}")

    def _sideline(self, queue: QueueRecord, main: str, sideline: str, found: list[Abandoned], fence: Fence) -> int:
        items = []
        for one in found:
            why = "its worker's process is dead" if one.owner_dead else f"not finished after {queue.stuck_after_s:g} s"
            record = (
                corrupt_record(main, one.shard, one.pointer)
                if one.record is None
                else failed_record(
                    one.record, REASON_ABANDONED, f"claimed by {one.owner}: {why}", crashed=one.owner_dead
                )
            )
            items.append(Transfer(one.shard, one.pointer, record, one.shard))
        return self._store.magazines.transfer(main, sideline, items, queue.message_expiry_s, fence)

    def _note(
        self, name: str, pointers: dict[int, int], sideline_pointers: dict[int, int], result: SweepResult, fence: Fence
    ) -> None:
        def change(record: QueueRecord) -> None:
            record.sweep_pointers.update(pointers)
            record.sideline_sweep_pointers.update(sideline_pointers)
            record.swept_count += result.swept
            record.sideline_swept_count += result.sideline_swept

        self._store.queues.update(name, change, fence)

    def _loop(self) -> None:
        wait_s = self._settings.initial_delay_s
        while not self._stop.wait(wait_s):
            wait_s = self._settings.interval_s
            try:
                self.run_once()
            except LockHeldError:
                continue
            except StaleEpochError as exc:
                log.warning("sweep refused: %s", exc)
            except Exception:
                log.exception("sweep pass failed")
