"""The loop of a worker thread alone, fed with records: what is done for a message between its claim and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ignis
from ignis.consumer.handler import Failure, HandlerSpec
from ignis.consumer.pools.base import Part
from ignis.consumer.pools.loop import WorkLoop
from ignis.figures import HANDLING
from ignis.native.histogram import Histogram


class _Inbox:
    poll_s = 0.0

    def take(self, most: int, wait_s: float) -> list[Part]:
        return []


class _Sink:
    """Counts what was handled. Raises AssertionError for anything else."""

    def __init__(self) -> None:
        self.done = 0
        self.durations = Histogram(HANDLING.bounds_s)

    def on_done(self, first_id: int, count: int) -> None:
        self.done += count

    def on_failed(self, request_id: int, failure: Failure) -> None:
        raise AssertionError(f"message {request_id} failed: {failure}")

    def on_returned(self, first_id: int, count: int) -> None:
        self.done += count  # a chunk that took too long on a busy machine gives back its rest

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        pass


def worker_loop(queue: ignis.Queue[Any], handler: Callable[..., Any]) -> Callable[[Sequence[bytes]], None]:
    """What runs the handler on each record, as a chunk of a worker thread."""
    spec, sink = HandlerSpec(handler, queue.name, pool="thread"), _Sink()
    loop = WorkLoop(
        queue.make_runner(spec), spec, _Inbox(), sink,
        should_return=lambda: False, should_stop=lambda: False, on_start=None, give_back_s=60.0,
    )  # fmt: skip

    def run(records: Sequence[bytes]) -> None:
        before = sink.done
        loop._run_chunk(1 << 16, records)
        assert sink.done - before == len(records)

    return run
