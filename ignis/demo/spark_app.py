"""What each worker process of the Spark demo runs: ``ignis worker ignis.demo.spark_app:app``.

A flight that departed becomes a message of the queue ``results``; one that did not goes to the sideline.
"""

from __future__ import annotations

from typing import Any, Optional

import msgspec

from ignis.consumer.handler import Failure
from ignis.demo.settings import WorkerApp

__all__ = ["CANCELLED", "QUEUE", "RESULTS", "app", "on_flights"]

QUEUE = "flights"
RESULTS = "results"
CANCELLED = "rejected"
"""The reason of a flight that never departed."""


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One scheduled departure, as `flights.toml` describes it. Delays in minutes, negative = early."""

    month: int
    carrier: str
    flight: int
    dep_delay: Optional[int]  # noqa: UP045 - msgspec reads annotations at run time, and 3.10 is supported
    arr_delay: Optional[int]  # noqa: UP045
    distance: int


class Result(msgspec.Struct, frozen=True, gc=False):
    """One departure that took place, as `results.toml` describes it. ``made_up``: minutes won in the air."""

    month: int
    carrier: str
    flight: int
    dep_delay: int
    arr_delay: Optional[int]  # noqa: UP045
    made_up: Optional[int]  # noqa: UP045
    distance: int


app = WorkerApp()
flights = app.queue(QUEUE, Flight)
results = app.queue(RESULTS, Result)


@flights.handler(concurrency=1, batch_size=2_000, batch_wait_s=1.0)
def on_flights(batch: list[Flight]) -> list[Any]:
    """Publishes a result for each flight that departed; durable before the flights are acknowledged."""
    departed = [_result(flight, flight.dep_delay) for flight in batch if flight.dep_delay is not None]
    results.publish_many(departed, key=lambda result: result.carrier)
    return [None if flight.dep_delay is not None else Failure(CANCELLED, "it never departed") for flight in batch]


def _result(flight: Flight, dep_delay: int) -> Result:
    made_up = None if flight.arr_delay is None else dep_delay - flight.arr_delay
    return Result(flight.month, flight.carrier, flight.flight, dep_delay, flight.arr_delay, made_up, flight.distance)
