"""The values that cross the storage contract: how records are named, what a claim is, what is stored of a queue. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

__all__ = [
    "KEEP_TTL",
    "Abandoned",
    "Claim",
    "Fence",
    "FireResult",
    "LoadedOnce",
    "LockRecord",
    "Owner",
    "Pointers",
    "Process",
    "QueueRecord",
    "Run",
    "ShardState",
    "Transfer",
    "group_pointers",
    "joined_runs",
    "runs_of_pointers",
]

KEEP_TTL: Final = -1.0
"""In place of a time to live, of `MagazineStore.transfer`: each record keeps its own."""

Pointers = Mapping[int, Sequence[int]]
"""Shard -> pointers. How a set of records is named in every call."""


class Process(NamedTuple):
    """A process, named so that its death can be proved by whoever sees the same processes. ``start_time`` 0 = no process that
    anybody could prove anything of; ``namespace`` 0 = its system has no process namespaces."""

    pid: int = 0
    start_time: int = 0
    namespace: int = 0
    boot: str = ""


class Owner(str):
    """An owner's name, and the process that stands behind it, where that is another than the one that makes the claim: a
    broker claims for its clients. A plain text stands for the calling process."""

    __slots__ = ("process",)
    process: Process

    def __new__(cls, name: str, process: Process) -> Owner:
        made = super().__new__(cls, name)
        made.process = process
        return made


class Claim(NamedTuple):
    """Records of one shard that one ``fire`` handed out, in pointer order.

    ``records[i]`` belongs to ``pointers[i]``; ``None`` marks a record whose checksum does not match (set it aside as
    ``corrupt``).
    """

    shard: int
    pointers: Sequence[int]
    records: list[bytes | None]


class FireResult(NamedTuple):
    """What ``fire`` found.

    ``holes`` are pointers that were claimed but have no record (yet): only stores without transactions report any.
    ``expired`` counts the records whose time to live had run out: they were retired, not handed out.
    ``more`` is true when records may be left: because of ``limit``, because others were at them, or because many had
    expired. A result without claims means that nothing was there only when it is false.
    """

    claims: list[Claim]
    holes: dict[int, list[int]]
    expired: int
    more: bool

    def total(self) -> int:
        """Number of records (corrupt ones included) in all claims."""
        return sum(len(claim.pointers) for claim in self.claims)


class Run(NamedTuple):
    """Claimed pointers ``first``..``last`` of one shard, of which ``messages`` had a record when they were claimed."""

    shard: int
    first: int
    last: int
    messages: int


class LoadedOnce(NamedTuple):
    """What `MagazineStore.load_once` did with one batch: where its records begin (0 when none was left), how many were
    loaded, and how many were left out because their ids were known."""

    first: int
    loaded: int
    repeats: int


class Transfer(NamedTuple):
    """One record on its way from a source magazine to a target: where it is, what it becomes, where it goes."""

    shard: int
    pointer: int
    record: bytes
    target_shard: int


class Abandoned(NamedTuple):
    """A record that was fired and never finished. ``record`` is None when its checksum does not match."""

    shard: int
    pointer: int
    record: bytes | None
    fired_at_ms: int
    owner: str
    owner_dead: bool


class Fence(NamedTuple):
    """The authority under which a control-plane write is made: refused when ``scope`` has seen a higher epoch."""

    scope: str
    epoch: int


@dataclass(frozen=True)
class ShardState:
    """Pointers and counters of one shard. ``pending = load_counter - fire_counter``.

    A reload appends the record anew (``load_pointer`` grows) and corrects the fire counter, so the counters count
    messages while the pointers count positions.

    ``incarnation`` is drawn at random when the shard is made, and stays: a magazine that was dropped and declared again, or
    that stands in another store, has another one. A pointer that is kept outside the store means something only
    together with it. 0 = not known.

    ``expired``: records that were retired because their time to live had run out, since the shard was made and by whomever,
    as far as the store can tell.
    """

    shard: int
    load_pointer: int
    fire_pointer: int
    load_counter: int
    fire_counter: int
    in_flight: int
    incarnation: int = 0
    expired: int = 0

    @property
    def pending(self) -> int:
        return self.load_counter - self.fire_counter


@dataclass
class QueueRecord:
    """Settings and progress of one queue, as stored."""

    name: str
    shards: int = 32
    message_expiry_s: int = 0
    queue_expiry_s: int = 172_800
    stuck_after_s: int = 1_200
    durability: str = "sync"
    codec: str = "json"
    handler_type: str = ""
    concurrency: int = 1
    shovel_concurrency: int = 4
    shovel_interval_s: int = 600
    max_batch_size: int = 0
    max_wait_s: float = 0
    created_at_ms: int = 0
    active: bool = True
    sweep_pointers: dict[int, int] = field(default_factory=dict)
    sideline_sweep_pointers: dict[int, int] = field(default_factory=dict)
    swept_count: int = 0
    sideline_swept_count: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    max_returns: int = 5


class LockRecord(NamedTuple):
    """Who holds a lock. ``token`` rises with every acquisition of the same lock, for ever."""

    name: str
    owner: str
    token: int
    acquired_at_ms: int
    expires_at_ms: int


def group_pointers(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Groups (shard, pointer) pairs by shard, each list ascending and without repeats."""
    grouped: dict[int, set[int]] = {}
    for shard, pointer in pairs:
        grouped.setdefault(shard, set()).add(pointer)
    return {shard: sorted(many) for shard, many in grouped.items()}


def runs_of_pointers(shard: int, pointers: Sequence[int]) -> Iterator[Run]:
    """Ascending pointers of one shard, as runs without gaps."""
    if not pointers:
        return
    first = last = pointers[0]
    for pointer in pointers[1:]:
        if pointer != last + 1:
            yield Run(shard, first, last, last - first + 1)
            first = pointer
        last = pointer
    yield Run(shard, first, last, last - first + 1)


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """By shard and pointer; those that touch become one."""
    joined: list[Run] = []
    for run in sorted(runs):
        if joined and joined[-1].shard == run.shard and joined[-1].last + 1 == run.first:
            before = joined[-1]
            joined[-1] = Run(run.shard, before.first, run.last, before.messages + run.messages)
        else:
            joined.append(run)
    return joined
