"""What a tray belongs to, where no consumer is wanted."""

from __future__ import annotations

import contextlib

from ignis.consumer.handler import Failure
from ignis.consumer.pools import Chunk, Worker
from ignis.native.histogram import Histogram


class Sink:
    """Hears every report, and does nothing."""

    durations = Histogram([1.0])

    def on_done(self, first_id: int, count: int) -> None: ...

    def on_failed(self, request_id: int, failure: Failure) -> None: ...

    def giving_back(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def on_returned(self, first_id: int, count: int) -> None: ...

    def on_timing(self, messages: int, elapsed_s: float) -> None: ...


class Still(Worker):
    """Takes nothing."""

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        return False
