"""What each worker process of the demo runs: ``ignis worker ignis.demo.app:app``.

``IGNIS_DEMO_DIR`` names the directory in which the worker notes its results, and in which the file ``count-cancelled``
tells the handler that cancelled flights are now to be counted instead of refused. With ``IGNIS_DEMO_PARENT``, a process
id, the worker drains and ends when that process is no longer its parent: a demo that is killed leaves nobody behind.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ignis.consumer.handler import Context
from ignis.demo.data import Flight
from ignis.demo.results import Entry, ResultsWriter
from ignis.demo.settings import (
    BUSY_CARRIER,
    BUSY_FAILURES,
    COUNT_CANCELLED,
    DIRECTORY_VARIABLE,
    QUEUE,
    QUEUE_SETTINGS,
    WorkerApp,
)
from ignis.errors import ConfigError
from ignis.retries import Retry

__all__ = ["CarrierBusyError", "FlightCancelledError", "app", "on_flight"]


class FlightsApp(WorkerApp):
    """The demo's application. One carrier is tried again where the store can wait for the next attempt."""

    def start(self, queues: Iterable[str] | None = None) -> None:
        """As `Ignis.start`, once the handler is registered."""
        if flights.spec is None:
            retry = Retry(attempts=5, base="50ms", max="1s", on=CarrierBusyError)
            flights.handler(concurrency=1, retry=retry if self.store.magazines.keeps_later else None)(on_flight)
        super().start(queues)


app = FlightsApp()
flights = app.queue(QUEUE, Flight, **QUEUE_SETTINGS)


class FlightCancelledError(Exception):
    """The handler cannot make anything of a flight that never departed, until it is told how to count it."""


class CarrierBusyError(Exception):
    """One carrier's own figures are not to be had at the first calls, as of a service that is busy: it is tried again."""


@functools.cache
def _directory() -> Path:
    name = os.environ.get(DIRECTORY_VARIABLE)
    if not name:
        raise ConfigError(f"{DIRECTORY_VARIABLE} is not set: this application is run by `ignis demo`")
    return Path(name)


@functools.cache
def _writer() -> ResultsWriter:
    return ResultsWriter(_directory())


def on_flight(flight: Flight, ctx: Context) -> None:
    """Notes the flight's delays for the statistics; a cancelled flight fails, unless those are counted by now."""
    if flight.dep_time is None and not (_directory() / COUNT_CANCELLED).exists():
        raise FlightCancelledError("no departure time")
    if flight.carrier == BUSY_CARRIER and ctx.attempt <= BUSY_FAILURES and app.store.magazines.keeps_later:
        raise CarrierBusyError(f"attempt {ctx.attempt}")
    message = ctx.message
    _writer().append(
        Entry(
            time.time_ns() // 1000,
            message.enqueued_at_us,
            flight.row,
            flight.dep_delay,
            flight.arr_delay,
            flight.carrier,
            message.failures,
            ctx.attempt,
        )
    )
