"""From claims to the workers: how much is claimed, how it is cut, and who gets it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ignis.config import ConsumerSettings
from ignis.consumer.acknowledger import Acknowledger
from ignis.consumer.chunking import Mixed, bytes_of, cut
from ignis.consumer.handler import Failure, HandlerSpec
from ignis.consumer.in_hand import InHand
from ignis.consumer.pools import Chunk, Pool, Worker
from ignis.consumer.pools.base import CHUNK_BYTES, HELD_UP_S, Part
from ignis.consumer.speeds import speed_of
from ignis.consumer.taking import add_one, put_back, taken_of
from ignis.errors import MessageTooLargeError
from ignis.figures import ConsumerFigures
from ignis.message import REASON_UNREADABLE
from ignis.native import has_none
from ignis.storage.base import Claim
from ignis.upkeep import Turns, interpreter_wait_s

__all__ = ["Dispatcher"]

_Unit = tuple[Sequence[tuple[int, Sequence[int]]], Sequence[bytes], int]
"""What is handed out together: where it is stored, the records, and their bytes."""

_WORTH_WAKING_S = 0.001
"""A worker gets at least this much work at a time, where there is as much."""

_ROUND_S = 0.005
"""Where threads wait for their turn, one is to last no longer than that, by the measured speed: as long as the interpreter lets a
thread go on that others wait for."""

_IN_A_CROWD = 8
"""Where threads wait for the interpreter a worker gets so many messages at a time, though they seem slow: what they take is
mostly that wait, and each claim and each acknowledgement waits for it too."""

_CROWD_S = 0.2
"""But no more than take so long, without what one waits."""

_QUICK_S = 0.000_004
"""A call that takes less did not let go of the interpreter: another thread would have to wait for it, and be no sooner."""

_LATE_S = 0.005
"""Who handles quick messages may be so much later than twice their time before another claims: as long as the interpreter lets a
thread go on that others wait for."""


class Dispatcher:
    """Says how much one consumer may claim, and gives what was claimed to its workers.

    `wanted`, `dispatch` and `hand_out_again` are for who claims: one thread at a time.

    Args:
        spec, settings: of the handler and of the consumer.
        pool: gives the pool of workers.
        in_hand: where what is dispatched is noted.
        acker: gets what is corrupt.
        counts: where it counts.
        on_failed: called with a message that no worker can take.
        turns: of the threads that are workers; None = all of them may run at a time.
    """

    def __init__(
        self,
        spec: HandlerSpec,
        settings: ConsumerSettings,
        pool: Callable[[], Pool],
        in_hand: InHand,
        acker: Acknowledger,
        counts: ConsumerFigures,
        on_failed: Callable[[int, Failure], None],
        turns: Turns | None = None,
    ) -> None:
        self.returned: deque[tuple[Chunk, int, int]] = deque()
        """Chunk, from, to: claimed, and waiting for a worker."""
        self._undelivered: deque[Sequence[tuple[int, Sequence[int]]]] = deque()
        self.leader: Worker | None = None
        """The worker whose thread claims."""
        self.workers = spec.concurrency
        """How many are asked for."""
        self.handle_s = 0.0
        """What a message takes, as measured."""
        self.handing_out = threading.RLock()
        """Between looking at `returned` and giving a worker something on one side, and putting something there on the other: what
        was claimed later must not go out in between."""
        self._spec = spec
        self._speed = speed_of(spec)
        self._settings = settings
        self._pool = pool
        self._in_hand = in_hand
        self._acker = acker
        self._counts = counts
        self._on_failed = on_failed
        self._turns = turns if spec.pool == "thread" else None

    def measured(self, messages: int, seconds: float) -> None:
        """So many took so long together."""
        each_s = seconds / messages
        # A slow message must shrink the next chunk at once; speed is trusted by how many messages have shown it. The first one
        # of a queue begins with cold caches, and perhaps behind many other threads: it says little.
        weight = 0.5 if each_s > self.handle_s else messages / (messages + 4)
        self.handle_s = each_s if not self.handle_s else self.handle_s + weight * (each_s - self.handle_s)
        self._speed.each_s = self.handle_s

    def held_up(self, seconds: float) -> None:
        """A call takes so long at least: what is claimed next is less, without waiting for its end."""
        at_a_time = (self.workers if self._spec.pool == "async" else 1) * (self._spec.batch_size or 1)
        self.handle_s = self._speed.each_s = max(self.handle_s, seconds / at_a_time)

    def _window(self) -> tuple[int, int]:
        """(messages per chunk, most messages outstanding per worker), by the measured handling time."""
        settings = self._settings
        if self._spec.batch_size is not None:
            # Two batches for each that runs; of a handler that is quick as much as of one that takes messages one by one.
            soon = int(settings.chunk_target_s / self.handle_s) if self.handle_s else 0
            at_once = self._spec.batch_size * (self.workers if self._spec.pool == "async" else 1)
            return settings.max_chunk, 2 * max(at_once, min(soon, settings.max_chunk))
        if self._spec.pool == "async":
            # One worker runs them all: at least one waiting for each that runs, more where they are quick, and none where they
            # are slow: it could be with somebody else.
            if self.handle_s * self.workers >= HELD_UP_S:
                return settings.max_chunk, self.workers
            soon = int(settings.chunk_target_s / self.handle_s) if self.handle_s else 0
            return settings.max_chunk, 2 * max(self.workers, min(soon, settings.max_chunk))
        if not self.handle_s:
            return 1, 1  # one each, to measure: what a worker holds behind a slow message nobody else can have
        target_s = settings.chunk_target_s
        if self._turns is not None and self._turns.waiting:
            target_s = min(target_s, _ROUND_S)
        chunk = int(target_s / self.handle_s)
        if (
            chunk < _IN_A_CROWD
            and self._turns is None
            and self._spec.pool == "thread"
            and (wait_s := interpreter_wait_s())
        ):
            chunk = max(chunk, min(_IN_A_CROWD, int(_CROWD_S / max(self.handle_s - wait_s, self.handle_s / 10))))
        if chunk < 1:
            return 1, 1  # slow handlers get the next message when they are done with the last
        chunk = min(chunk, settings.max_chunk)
        return chunk, chunk if self._turns is not None else 2 * chunk  # of a turn nothing is left for the next

    @property
    def _where_claimed(self) -> bool:
        """Whether messages of worker threads are handled where they are claimed: quick ones are, and where threads take turns
        it is the turn of the one that claims."""
        return self._turns is not None or self._is_quick

    @property
    def _is_quick(self) -> bool:
        return self._spec.batch_size is None and 0 < self.handle_s < _QUICK_S

    def away_s(self, parts: Sequence[Part]) -> float:
        """For how long the leader may be at these without calling another: quick messages, at which another thread would only be
        in the way. 0 = not at all."""
        count = sum(len(records) for _, records in parts)
        return _LATE_S + 2 * self.handle_s * count if count > 1 and self._is_quick else 0.0

    def wanted(self) -> int:
        """How many messages to claim now; 0 while the workers have enough."""
        # What is handled and not yet retired would be handled again if this process died now: bounded as well.
        room = self._settings.max_unacked - self._acker.unacked
        if room <= 0 or self._in_hand.nbytes >= self._settings.max_in_flight_bytes or self.returned:
            return 0
        if not self.handle_s:
            self.handle_s = self._speed.each_s  # of the same function on another queue
        _, window = self._window()
        leader = self.leader
        if leader is not None and self._where_claimed:
            # Its own window, and no other's: who leads next claims for himself.
            return min(window - leader.outstanding, room) if leader.outstanding <= window // 2 else 0
        workers = [worker for worker in self._pool().workers if not worker.held_up]
        free = sum(max(0, window - worker.outstanding) for worker in workers)
        # Claims are cheap per batch, not per message: wait until a worker is at half its window. But of one that has nothing
        # waiting each that ends is replaced at once.
        one_by_one = self._spec.pool == "async" and self._spec.batch_size is None and window == self.workers
        enough = window - 1 if one_by_one else window // 2
        return min(free, room) if any(worker.outstanding <= enough for worker in workers) else 0

    def dispatch(self, claims: Sequence[Claim]) -> None:
        """Gives what was claimed to the workers. A lone message is offered to `give_leader` before."""
        total = sum(len(claim.pointers) for claim in claims)
        self._counts.fetched += total
        size, _ = self._window()
        idle = sum(worker.outstanding == 0 for worker in self._pool().workers)
        if idle > 1 and self._spec.batch_size is None and not (self._where_claimed and self.leader is not None):
            # Shared out evenly, but not in crumbs: waking a worker costs more than a few quick messages.
            least = int(_WORTH_WAKING_S / self.handle_s) if self.handle_s else 1
            size = max(1, min(size, max(-(-total // idle), least)))
        units: list[_Unit] = []
        try:
            self._plan(claims, size, units)
        except MemoryError:
            self._undelivered.append([(claim.shard, claim.pointers) for claim in claims])
            raise
        for claim in claims:
            self._set_corrupt_aside(claim)
        for number, (places, records, nbytes) in enumerate(units):
            try:
                chunk = self._in_hand.add(places, records, nbytes)
            except MemoryError:
                self._undelivered.extend(places for places, _, _ in units[number:])
                raise
            self._submit(chunk, 0, len(records))

    def _plan(self, claims: Sequence[Claim], size: int, units: list[_Unit]) -> None:
        """What is handed out together, in order."""
        mixed = Mixed()
        for claim in claims:
            if len(claims) > 1 and len(claim.records) * 2 <= size and bytes_of(claim) <= CHUNK_BYTES:
                # Messages that were published one by one are claims of one each: together they are a chunk.
                if not mixed.takes(claim, size):
                    _end_mixed(mixed, units)
                    mixed = Mixed()
                mixed.add(claim)
            else:
                if mixed.has(claim.shard):
                    # What the shard had before this claim goes out before it: first in, first out per shard.
                    _end_mixed(mixed, units)
                    mixed = Mixed()
                units += [([place], records, nbytes) for place, records, nbytes in cut(claim, size)]
        _end_mixed(mixed, units)

    def give_back_undelivered(self, reload: Callable[[Mapping[int, Sequence[int]]], object]) -> None:
        """What was claimed and could not be handed out for want of memory goes back to the queue's tail."""
        while self._undelivered:
            for shard, pointers in self._undelivered[0]:
                reload({shard: pointers})
            self._undelivered.popleft()

    def give_leader(self, claim: Claim) -> bool:
        """Hands a lone message to the thread that claimed it, if that is free: what `dispatch` would come to. False: do that."""
        leader, records = self.leader, claim.records
        if leader is None or len(records) != 1 or leader.submitted != leader.reported or self.returned:
            return False
        record = records[0]
        if record is None or len(record) > CHUNK_BYTES:
            return False
        self._counts.fetched += 1
        try:
            chunk = self._in_hand.add([(claim.shard, claim.pointers)], [record], len(record))
        except MemoryError:
            self._undelivered.append([(claim.shard, claim.pointers)])
            raise
        try:
            taken = leader.take_own(chunk)
        except MemoryError:
            taken = False
        if not taken:
            self._submit(chunk, 0, 1)
        return True

    def _set_corrupt_aside(self, claim: Claim) -> None:
        """Takes the corrupt records out of the claim, for the sideline."""
        if has_none(claim.records):
            for index in reversed(range(len(claim.records))):
                if claim.records[index] is None:
                    self._acker.add_corrupt(claim.shard, claim.pointers[index])

    def _submit(self, chunk: Chunk, start: int, stop: int) -> None:
        """To the worker with the least to do, or to the end of `returned`."""
        # What waits there came first: a small chunk must not pass a large one that no worker took.
        with self.handing_out:
            try:
                if not self.returned and self._offer(chunk, start, stop):
                    return
            except MemoryError:
                pass  # no worker has it
            add_one(self.returned, (chunk, start, stop))

    def take_back(self, chunk: Chunk, start: int, stop: int) -> None:
        """A worker has not begun it. From any thread."""
        with self.handing_out:
            add_one(self.returned, (chunk, start, stop))

    def _offer(self, chunk: Chunk, start: int, stop: int) -> bool:
        """False when no worker takes it now."""
        try:
            return any(
                worker.submit(chunk, start, stop)
                for worker in sorted(self._takers(), key=self._load)
                if not worker.held_up
            )
        except MessageTooLargeError as exc:
            # Stored under a larger limit than these worker processes were made for; such a record is alone in its chunk.
            why = (
                f"a record of {exc.size_bytes} bytes is over the {exc.limit_bytes} that the worker processes here have room for: "
                "raise queue.max_message_bytes, start the application again, then shovel it back"
            )
            for index in range(start, stop):
                self._on_failed(chunk.first_id + index, Failure(REASON_UNREADABLE, why))
            return True

    def _takers(self) -> Sequence[Worker]:
        """Who may be given something: where threads take turns only the one whose turn it is."""
        if self._turns is None:
            return self._pool().workers
        return [] if self.leader is None else [self.leader]

    def hand_out_again(self) -> None:
        """From the front of `returned`, as much as the workers take now."""
        with self.handing_out:
            self._hand_out_again()

    def take_returned(self) -> list[tuple[Chunk, int, int]]:
        """Everything in `returned`, in the order of the claims: it goes to nobody here. From any thread."""
        with self.handing_out:
            return self._taken_returned()

    def _taken_returned(self) -> list[tuple[Chunk, int, int]]:
        taken = taken_of(self.returned)
        try:
            taken.sort(key=_claimed)
        except MemoryError:
            put_back(self.returned, taken)
            raise
        return taken

    def _hand_out_again(self) -> None:
        if len(self.returned) > 1:
            # In the order of the claims: a worker gives back what it was at and what lay behind it, in turns with others.
            put_back(self.returned, self._taken_returned())
        while self.returned:
            size, window = self._window()
            free = [window - worker.outstanding for worker in self._takers() if not worker.held_up]
            if max(free, default=0) <= 0:
                return
            if self._spec.pool == "async":
                size = min(size, max(free))
            chunk, start, stop = self.returned[0]  # others only add behind it
            cut = min(stop, start + size)
            rest = chunk, cut, stop
            if not self._offer(chunk, start, cut):
                return  # nobody has room: the others would be refused as well
            if cut < stop:
                self.returned[0] = rest
            else:
                self.returned.popleft()

    def _load(self, worker: Worker) -> tuple[int, bool]:
        """Least goes first. Of those that have as little, the one whose thread this is: it need not be woken. Where messages are
        quick all is for that one."""
        if worker is not self.leader:
            return worker.outstanding, True
        return (-1 if self._where_claimed else worker.outstanding), False


def _end_mixed(mixed: Mixed, units: list[_Unit]) -> None:
    if mixed.count:
        units.append((mixed.places, mixed.records, mixed.nbytes))


def _claimed(returned: tuple[Chunk, int, int]) -> int:
    chunk, start, _ = returned
    return chunk.first_id + start
