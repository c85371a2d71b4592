"""What is behind ``queue.apublish``: the queue's own buffered publisher, on which coroutines wait.

Messages of many coroutines become one batch, as with any publisher. What is added is where each message went.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ignis.errors import ChannelFullError, PublishError, WaitTimeoutError
from ignis.log_format import event_text
from ignis.magazine import Published
from ignis.native import PackedBatch, Receipt, id_text
from ignis.publisher import OnPlaced, Publisher

__all__ = ["AsyncPublisher"]

M = TypeVar("M")
log = logging.getLogger("ignis.publisher")

_SHARDS = 1 << 16


class AsyncPublisher(Generic[M]):
    """Publishes for coroutines of any event loop, each of which goes on when its message is durable. Thread-safe.

    ``queue.apublish`` is what an application calls:

    >>> import asyncio
    >>> from ignis import Ignis
    >>> async def main(orders) -> None:
    ...     await asyncio.gather(*(orders.apublish({"id": id}) for id in range(3)))
    >>> with Ignis("memory://") as app:
    ...     orders = app.queue("orders", dict)
    ...     asyncio.run(main(orders))
    ...     orders.main.pending()
    3

    Args:
        make: makes the publisher, and is given the function that it is to tell where its batches went.
        on_stored: called with 1 per message where the publisher itself tells nobody what became durable.
    """

    def __init__(
        self,
        make: Callable[[OnPlaced], Publisher[M]],
        on_stored: Callable[[int], None],
    ) -> None:
        # By id, pointer * _SHARDS + shard: a tuple each would be the collector's to look at.
        self._places: dict[str, int] = {}
        self.publisher = make(self._note)
        self._tell = None if self.publisher.tells_stored else on_stored

    async def publish(self, message: M, key: str | bytes | None, headers: dict[str, Any] | None) -> Published:
        """`Queue.apublish`."""
        publisher = self.publisher
        try:
            receipt = publisher.send(message, key=key, headers=headers, timeout=0.0)
        except ChannelFullError:
            receipt = await publisher.asend(message, key=key, headers=headers)
        try:
            if publisher.receipt_timeout_s is None:
                id = await receipt
            else:
                id = await _in_time(publisher, receipt)
        except BaseException:
            # Refused, or the coroutine was cancelled and the message is still on its way.
            receipt.add_done_callback(self._forget)
            raise
        if self._tell is not None:
            self._tell(1)
        place = self._places.pop(id, None)
        return Published(id, -1, 0) if place is None else Published(id, place % _SHARDS, place // _SHARDS)

    def _note(self, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int]) -> None:
        """Called by the flusher before the receipts of these batches are done."""
        for (shard, batch), first in zip(batches, firsts, strict=True):
            if first:
                self._places.update(zip(map(id_text, batch.ids()), itertools.count(first * _SHARDS + shard, _SHARDS)))

    def _forget(self, receipt: Receipt) -> None:
        self._places.pop(receipt.id, None)

    def close(self, timeout: float | None) -> None:
        """Flushes what is on its way. What is not durable in time fails for the coroutine that waits for it. Idempotent."""
        try:
            self.publisher.close(timeout)
        except PublishError:
            pass  # whoever waits for them has been told
        except WaitTimeoutError as exc:
            log.error(
                event_text("apublish_not_durable", "%d message(s) of apublish were not durable in time: %s"),
                self.publisher.pending,
                exc,
            )
            self.publisher.give_up()


async def _in_time(publisher: Publisher[Any], receipt: Receipt) -> str:
    """For stores that tell nobody how long they take."""

    async def done() -> str:
        return await receipt

    try:
        return await asyncio.wait_for(done(), publisher.receipt_timeout_s)
    except asyncio.TimeoutError:
        raise publisher.timed_out(receipt) from None
