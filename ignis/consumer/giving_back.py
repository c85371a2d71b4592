"""What was claimed and cannot be begun here soon goes back to the queue, for others to claim.

It goes to the tail, as all that is put back, so messages of its shard that were published later come before it. Where that would
break a promise, a single worker's order, it is done for those alone who wait: the store knows whether anybody does. Where the
store does not know, what has an order to lose stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ignis.consumer.dispatcher import Dispatcher
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.in_hand import InHand
from ignis.consumer.pools import Chunk
from ignis.consumer.taking import put_back
from ignis.context import QueueContext
from ignis.errors import ClosedError, IgnisError, UnreadableMessageError
from ignis.figures import ConsumerFigures
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import Record

__all__ = ["GivingBack"]

log = logging.getLogger("ignis.consumer")

_WAITED_S = 0.04
"""What waited for so long for a worker here is given back, where somebody elsewhere waits for messages."""

_WAITED_LONG_S = 0.25
"""The same where the store cannot tell whether anybody waits."""


class GivingBack:
    """Looks after `Dispatcher.returned`, of one consumer. One thread at a time.

    Args:
        queue, spec: whose messages they are, and who handles them.
        dispatcher: gives where the messages wait.
        in_hand: forgets them.
        counts: where it counts.
    """

    def __init__(
        self,
        queue: QueueContext[Any],
        spec: HandlerSpec,
        dispatcher: Callable[[], Dispatcher],
        in_hand: InHand,
        counts: ConsumerFigures,
    ) -> None:
        self._queue = queue
        self._dispatcher = dispatcher
        self._in_hand = in_hand
        self._counts = counts
        self._said = LimitedLog(log)
        self._going: list[tuple[Chunk, int, int]] = []  # on their way back: nobody here handles them any more
        self._since_s: float | None = None  # when the first look found something waiting
        self._asked = False  # who waits was woken since, and has announced itself anew if it still waits

    @property
    def pending(self) -> bool:
        """Whether anything waits for a worker, or is on its way back."""
        return bool(self._dispatcher().returned or self._going)

    def look(self, now_s: float, concurrency: int, *, someone_free: bool) -> None:
        """Gives back what should be. Raises nothing that may pass.

        Args:
            concurrency: of the handler, here.
            someone_free: whether a worker here may take something soon.
        """
        try:
            if not self._dispatcher().returned:
                self._since_s, self._asked = None, False
            elif self._is_time(now_s, concurrency, someone_free):
                self._take()
            if self._going:
                self._reload()
        except ClosedError:  # whoever opens the store next sweeps what is claimed
            return
        except IgnisError as exc:
            self._said.warning(
                event_text("give_back_failed", "messages of %s could not be given back, trying again: %s"),
                self._queue.name,
                exc,
            )

    def give_back_all(self) -> None:
        """At the end: whatever has not begun. Raises the store's error."""
        self._take()
        if self._going:
            self._reload()

    def _take(self) -> None:
        taken = self._dispatcher().take_returned()
        try:
            self._going += taken
        except MemoryError:
            put_back(self._dispatcher().returned, taken)
            raise

    def _is_time(self, now_s: float, concurrency: int, someone_free: bool) -> bool:
        if not concurrency:
            return True  # nobody here will begin it
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        awaited = self._queue.main.store.awaited(self._queue.main.name)
        if awaited is None:
            return waited_s >= _WAITED_LONG_S and (concurrency > 1 or self._in_no_order())
        if not awaited or (someone_free and waited_s < _WAITED_S):
            return False
        if not self._asked:
            # Who announced himself may have gone, or may have been a thread of this process: whoever waits does it anew.
            self._queue.main.store.wake(self._queue.main.name)
            self._asked = True
            return False
        return True

    def _in_no_order(self) -> bool:
        """Whether none of the messages has a key, and the queue several shards: then nobody was promised their order."""
        if self._queue.main.shards == 1:
            return False
        try:
            return not any(
                Record(record).key
                for chunk, start, stop in list(self._dispatcher().returned)
                for record in chunk.records[start:stop]
            )
        except (UnreadableMessageError, RuntimeError):  # it changed meanwhile: at the next look
            return False

    def _reload(self) -> None:
        """What cannot be put back stays in `_going`, for the next look: some of it may be back by now."""
        pointers: dict[int, list[int]] = {}
        nothing: list[tuple[Chunk, int, int]] = []
        for chunk, start, stop in self._going:
            for shard, some in chunk.places(start, stop):
                pointers.setdefault(shard, []).extend(some)
        self._counts.reloaded += self._queue.main.store.reload(self._queue.main.name, pointers)
        going, self._going = self._going, nothing
        for chunk, start, stop in going:
            self._in_hand.forget(chunk, stop - start)
