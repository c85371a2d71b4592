"""Delayed messages of a store behind a broker: its consumers get them when they are due; to publish some is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.errors import DelayNotSupportedError
from tests.support.broker import RunningBroker

BOUND_S = 60.0


def wait_until(done: Callable[[], Any]) -> None:
    until = time.monotonic() + BOUND_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("idle_s", [0.0, 2.0])
def test_a_consumer_of_the_broker_gets_what_comes_to_be_due(tmp_path: Path, idle_s: float) -> None:
    directory = f"embedded://{tmp_path}/store"
    broker = RunningBroker(directory)
    try:
        got: list[str] = []
        with Ignis(broker.url) as consumer, Ignis(directory) as publisher:
            queue = consumer.queue("jobs", str)
            queue.handler(got.append)
            queue.start()
            theirs = publisher.queue("jobs", str)
            theirs.publish("now")
            wait_until(lambda: got == ["now"])
            time.sleep(idle_s)  # an idle consumer waits in another way
            theirs.publish("far", delay="1h")
            theirs.publish("near", delay=0.3)
            wait_until(lambda: got == ["now", "near"])
            assert len(theirs.later) == 1
    finally:
        broker.stop()


def test_to_publish_with_a_delay_is_refused(tmp_path: Path) -> None:
    broker = RunningBroker(f"embedded://{tmp_path}/store")
    try:
        with Ignis(broker.url) as app:
            queue = app.queue("jobs", str)
            with pytest.raises(DelayNotSupportedError):
                queue.publish("a", delay="1h")
            assert queue.stats()["pending"] == 0
    finally:
        broker.stop()
