"""Loads: what goes from the channels into the store in one go, and the threads that take it there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from ignis.magazine import Magazine
from ignis.native import PackedBatch, pack
from ignis.relay.ages import rest_to_live
from ignis.relay.channel_reader import Inlet, Target
from ignis.relay.due_times import due_batches
from ignis.stacks import start_thread
from ignis.storage.base import Store

__all__ = ["Carrier", "Load", "Outcome"]

_IDLE_S = 10.0
"""Bound of a wait for work; its end means nothing."""


class Load:
    """Messages of one magazine, copied from the channels of one or several producers, where they stay until they are taken.

    For the relay's thread, but for `store`.

    Args:
        magazine: where they go.
        later: the store by whose clock they are due; None = they are not delayed.

    Attributes:
        held: how many messages of each inlet, which are the oldest that it holds and that no earlier load has.
        messages, bytes: of all.
    """

    def __init__(self, magazine: Magazine[Any], later: Store | None = None) -> None:
        self.magazine = magazine
        self.later = later
        self._shards = magazine.shards
        self.held: dict[Inlet, int] = {}
        self.messages = 0
        self.bytes = 0
        self._batches: list[tuple[int, PackedBatch]] = []
        self._unpacked: list[Inlet] = []

    @property
    def target(self) -> Target:
        """Which messages it may have."""
        return Inlet.target_of(self.magazine, self.later is not None)

    def hold(self, inlet: Inlet, max_messages: int, max_bytes: int) -> int:
        """Adds what the inlet has, up to these bounds of the whole load; returns how many messages.

        Raises what `Intake.hold` raises.
        """
        room, room_bytes = max_messages - self.messages, max_bytes - self.bytes
        if room <= 0 or room_bytes <= 0:
            return 0
        before = inlet.intake.bytes_taken
        count = inlet.intake.hold(room, room_bytes, self._shards, inlet.codec)
        if count:
            self.held[inlet] = self.held.get(inlet, 0) + count
            self.messages += count
            self.bytes += inlet.intake.bytes_taken - before
            self._unpacked.append(inlet)
        return count

    def pack(self, any_shard: int) -> None:
        """Copies what was held since the last call. Raises NativeError: a file was cut meanwhile; the load is void."""
        shards = self._shards
        fresh, self._unpacked = self._unpacked, []
        self._batches += pack([inlet.intake for inlet in fresh], any_shard % shards, shards)

    def store(self) -> Exception | None:
        """One transaction of the store, durable on return as the queue says. The error instead, if there is one."""
        try:
            left = rest_to_live(self._batches, self.magazine.ttl_s)
            if self.later is None:
                self.magazine.load_batches(self._batches, shards=self._shards, deadline=left)
            else:
                batches, dues_ms = due_batches(self._batches, self.later)
                self.magazine.load_batches(batches, shards=self._shards, dues_ms=dues_ms, deadline=left)
        except Exception as exc:
            return exc
        except BaseException as exc:  # whoever waits for the outcome gets one, whatever it was
            error = RuntimeError(f"{type(exc).__name__}: {exc}")
            error.__cause__ = exc
            return error
        return None


Outcome = tuple[Load, "Exception | None"]


class Carrier:
    """Stores loads in threads of its own, so that the relay gathers the next ones meanwhile. Used by one thread.

    Args:
        threads: most loads at a time; the store makes those of the same moment durable together.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._todo: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._under_way = 0
        self._outcomes: list[Outcome] = []

    def send(self, loads: Sequence[Load]) -> None:
        """Returns at once; `wait` has the outcomes."""
        while len(self._threads) < min(self._most, len(loads)):
            # Daemons: a store that never answers must not keep the process from ending.
            name = f"ignis-relay-load-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            start_thread(self._threads[-1])
        self._under_way += len(loads)
        for load in loads:
            self._todo.put(load)

    def wait(self, timeout_s: float) -> list[Outcome] | None:
        """The outcomes of all that was sent; None when the time is up before the last of them is known."""
        deadline = time.monotonic() + timeout_s
        while self._under_way:
            try:
                self._outcomes.append(self._done.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                return None
            self._under_way -= 1
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self, timeout_s: float) -> bool:
        """Ends the threads; false when one is still at the store after this time."""
        deadline = time.monotonic() + timeout_s
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while True:
            try:
                load = self._todo.get(timeout=_IDLE_S)
            except queue.Empty:
                continue
            if load is None:
                return
            self._done.put((load, load.store()))
