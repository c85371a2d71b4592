"""Gives back at once what a process held that is known to be dead, without waiting until its claims look old.

For whoever has seen the death itself, as a parent does of its child, for whoever starts where others died, and for whoever runs
beside them. The sweeper does the same for deaths that it can prove or has to wait out.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ignis.errors import IgnisError, QueueNotFoundError, RecordTooLargeError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_ABANDONED, REASON_CORRUPT, corrupt_record, failed_record
from ignis.shovel_rounds import shovel_retry_of
from ignis.storage import transactions
from ignis.storage.base import Abandoned, Fence, QueueRecord, Store, Transfer
from ignis.storage.parts import transfer_in_parts
from ignis.storage.process_identity import BROKER_PREFIX
from ignis.storage.records import group_pointers

__all__ = [
    "Aside", "DeathWatch", "Recovered", "count_aside", "recover_dead", "recover_owner", "set_aside", "take_back",
]  # fmt: skip

log = logging.getLogger("ignis.control.redelivery")

_BATCH = 1_000


Aside = Counter[tuple[str, str]]
"""Messages set aside, by queue and reason."""


@dataclass
class Recovered:
    """How many messages went to their queue's sideline, and how many to the tail of a sideline they were shovelled from."""

    sidelined: int = 0
    returned: int = 0
    aside: Aside = field(default_factory=Counter, compare=False)
    """Of ``sidelined``: by queue and reason."""


def recover_owner(store: Store, owner: str, why: str, result: Recovered | None = None) -> Recovered:
    """Moves what ``owner`` has claimed in any queue to the sideline, with the reason ``abandoned`` and one crash more: one
    of these messages may be what killed it. What it had claimed in a sideline goes back to that sideline's tail.

    Safe beside the sweeper and beside others that do the same: what one has moved the other skips. Durable as the queue is.

    Args:
        store: any.
        owner: the name under which the dead process claimed (``store.owner`` there). It must be dead.
        why: what is known of its end, for the message's error.
        result: what was moved is added here, also before an error; None = to a new one, which is returned.

    Raises:
        StoreError. What was moved until then stays moved; call it again.
    """
    result = Recovered() if result is None else result
    for queue in store.queues.list():
        _sideline_held(store, queue, owner, why, result)
        result.returned += _return_held(store, queue, owner)
    return result


def recover_dead(
    store: Store, queue: QueueRecord, owners: Collection[str] | None = None, result: Recovered | None = None
) -> Recovered:
    """`recover_owner`, for one queue and everybody in whose name something is claimed there and who is provably dead: for
    whoever starts where others were killed. Needs no leadership. A store that cannot prove a death has none of these.

    On a full store it ends at the first refusal, with StoreFullError: what gives room is the consumer that waits to start.

    Args:
        store, queue: where to look.
        owners: only what these claimed; None = everybody's.
        result: as for `recover_owner`."""
    result = Recovered() if result is None else result
    for owner in _dead(store, queue.name, owners):
        _sideline_held(store, queue, owner, "its worker's process is dead", result, patient=False)
    for owner in _dead(store, queue.name + SIDELINE_SUFFIX, owners):
        result.returned += _return_held(store, queue, owner)
    return result


def take_back(store: Store, name: str) -> Recovered:
    """`recover_dead` before a consumer of the queue starts: nobody need wait for the sweeper's first pass. What it did, or
    could not do, is in the log. Returns what is known to be done."""
    try:
        record = store.queues.get(name)
        found = Recovered() if record is None else recover_dead(store, record)
    except IgnisError as exc:
        log.warning(
            event_text("dead_processes_left", "what dead processes held of %s is left to the sweeper: %s"), name, exc
        )
        return Recovered()
    _say_recovered(record, found)
    return found


def _say_recovered(record: QueueRecord | None, found: Recovered) -> None:
    said = []
    if found.sidelined:
        said.append(f"{found.sidelined:,} are in its sideline now")
    if found.returned:
        said.append(f"{found.returned:,} that they were shovelling are back in its sideline")
    if record is not None and said:
        log.warning(
            event_text("dead_processes_recovered", "dead processes held messages of %s: %s; they come back %s"),
            record.name, " and ".join(said), _how_back(record),
        )  # fmt: skip


def _how_back(record: QueueRecord) -> str:
    """From the queue's sideline to its handlers, for the log."""
    by_hand = f"ignis sideline shovel {record.name}"
    if not record.shovel_interval_s:
        return f"only by: {by_hand} (shovel_interval_s = 0)"
    if shovel_retry_of(record):
        return f"as its shovel_retry says, or at once by: {by_hand}"
    if not record.max_returns:
        return f"only by: {by_hand} (max_returns = 0)"
    most = "once" if record.max_returns == 1 else f"{record.max_returns} times"
    return (
        f"with its shovel's next pass, within {record.shovel_interval_s:,} s (shovel_interval_s), at most {most} each "
        f"(max_returns), or at once by: {by_hand}"
    )


class DeathWatch:
    """Takes back what processes held that died while this one runs. One thread at a time.

    It costs one look at who has claimed anything in the store, and nothing more while all of them live. What one process
    moves, the others that saw the same death skip. A supervisor that saw it as well comes first: it knows how its process ended.

    Args:
        store: gives the store.
        grace_s: how long it leaves a death that it has just seen to the supervisor.
    """

    def __init__(self, store: Callable[[], Store], grace_s: float = 1.0) -> None:
        self._store = store
        self._grace_s = grace_s
        self._done: frozenset[str] = frozenset()  # dead, and what they held of the queues here is moved
        self._said = LimitedLog(log)

    def look(self, queues: Sequence[str]) -> Aside:
        """Takes back what the dead held of these queues, as `recover_dead` does. Returns what was set aside, by queue and reason.
        What the store refuses is tried again with the next look. Raises what it raises when it cannot be asked at all."""
        store, aside = self._store(), Aside()
        dead = self._dead(store)
        fresh = dead - self._done
        if fresh:
            time.sleep(self._grace_s)
            dead = self._dead(store)
            fresh &= dead
        left = sum(not self._take_back(store, name, fresh, aside) for name in queues) if fresh else 0
        self._done = (self._done if left else self._done | fresh) & dead
        return aside

    @staticmethod
    def _dead(store: Store) -> frozenset[str]:
        return frozenset(one for one in store.magazines.dead_claimants() if not one.startswith(BROKER_PREFIX))

    def _take_back(self, store: Store, name: str, owners: Collection[str], aside: Aside) -> bool:
        """Whether nothing is left to do."""
        found = Recovered()
        record: QueueRecord | None = None
        try:
            record = store.queues.get(name)
            if record is not None:
                recover_dead(store, record, owners, found)
        except IgnisError as exc:
            self._said.warning(
                event_text("dead_processes_wait", "what dead processes held of %s cannot be taken back yet, trying again: %s"),
                name, exc, about=name,
            )  # fmt: skip
            return False
        finally:
            aside.update(found.aside)
            _say_recovered(record, found)
        return True


def _dead(store: Store, magazine: str, owners: Collection[str] | None = None) -> list[str]:
    try:
        claimants = store.magazines.claimants(magazine)
    except QueueNotFoundError:
        return []
    return [owner for owner, dead in claimants.items() if dead and (owners is None or owner in owners)]


def _sideline_held(
    store: Store, queue: QueueRecord, owner: str, why: str, result: Recovered, *, patient: bool = True
) -> None:
    """What is claimed in the main magazine goes to the sideline."""
    for shard in range(queue.shards):
        while found := _held(store, queue.name, shard, owner):
            moved = set_aside(store, queue, found, lambda _: why, patient=patient)
            result.sidelined += moved
            count_aside(result.aside, queue.name, found, moved)
            if not moved:
                break  # others are at it: looking again at once would show the same


def _return_held(store: Store, queue: QueueRecord, owner: str) -> int:
    """What is claimed in the sideline goes back to its tail."""
    sideline, count = queue.name + SIDELINE_SUFFIX, 0
    for shard in range(queue.shards):
        while found := _held(store, sideline, shard, owner):
            moved = store.magazines.reload(sideline, group_pointers((one.shard, one.pointer) for one in found))
            count += moved
            if not moved:
                break
    return count


def _held(store: Store, magazine: str, shard: int, owner: str) -> list[Abandoned]:
    try:
        return store.magazines.abandoned(magazine, shard, 0, _BATCH, owner=owner, max_bytes=transactions.MOST_BYTES)
    except QueueNotFoundError:  # registered, and never used
        return []


def count_aside(aside: Aside, queue: str, found: Sequence[Abandoned], moved: int) -> None:
    """Counts what `set_aside` has moved of these, by reason. Where others have moved some meanwhile it is not known which."""
    corrupt = min(moved, sum(one.record is None for one in found))
    aside[queue, REASON_CORRUPT] += corrupt
    aside[queue, REASON_ABANDONED] += moved - corrupt


def set_aside(
    store: Store,
    queue: QueueRecord,
    found: Sequence[Abandoned],
    why: Callable[[Abandoned], str],
    fence: Fence | None = None,
    *,
    patient: bool = True,
) -> int:
    """Moves abandoned messages of the main magazine to the sideline; returns how many moved. Durable as the queue is.

    Args:
        store, queue: where they are.
        found: what `MagazineStore.abandoned` gave. Those of a dead owner count one crash more.
        why: what is known of each, for its error.
        fence: the authority, for who needs one.
        patient: on a full store in ever smaller parts, which may take minutes; else refused after one try, in which some may have
            moved.

    Raises:
        StaleEpochError: nothing moved. StoreFullError: there is no room for any. StoreError.
    """
    items, now_ms = [], time.time_ns() // 1_000_000
    for one in found:
        if one.record is None:
            record = corrupt_record(queue.name, one.shard, one.pointer)
        else:
            record = failed_record(
                one.record,
                REASON_ABANDONED,
                f"claimed by {one.owner}: {why(one)}",
                crashed=one.owner_dead,
                worker=one.owner,
                took_ms=max(0, now_ms - one.fired_at_ms) if one.fired_at_ms else None,
            )
        items.append(Transfer(one.shard, one.pointer, record, one.shard))

    def transfer(part: Sequence[Transfer]) -> int:
        return store.magazines.transfer(queue.name, queue.name + SIDELINE_SUFFIX, part, fence=fence)

    if not patient:
        with contextlib.suppress(RecordTooLargeError):  # shortened below
            return transfer(items)
    return transfer_in_parts(items, transfer)
