"""What is registered while the application runs."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError
from tests.support import eventually


@pytest.fixture
def running(app: ignis.Ignis) -> ignis.Ignis:
    app.queue("first", int).handler(lambda message: None)
    app.start()
    return app


def test_a_handler_is_run_at_once_with_a_warning(running: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    """Long before the refresher's next pass."""
    queue, seen = running.queue("late", int), list[int]()
    queue.publish(1)
    queue.handler(seen.append)
    assert "a handler of late was registered after the start" in caplog.text
    eventually(lambda: seen == [1])
    running.stop()
    assert queue.consumer is None


def test_a_coroutine_too(running: ignis.Ignis) -> None:
    queue, seen = running.queue("late", int), list[int]()
    queue.publish(1)

    @queue.handler
    async def handle(message: int) -> None:
        seen.append(message)

    eventually(lambda: seen == [1])


def test_a_handler_of_a_pattern_takes_the_queues_that_are_there(
    running: ignis.Ignis, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    running.queue("late.one", int).publish(1)
    running.handler("late.*", int)(seen.append)
    assert "a handler of a pattern of queues was registered after the start" in caplog.text
    eventually(lambda: seen == [1])


def test_not_in_an_application_that_was_started_for_other_queues(app: ignis.Ignis) -> None:
    app.queue("first", int).handler(lambda message: None)
    app.start(["first"])
    queue = app.queue("late", int)
    queue.handler(lambda message: None)
    assert queue.consumer is None


def test_a_middleware_that_no_running_worker_would_know_of_is_refused(running: ignis.Ignis) -> None:
    def layer(ctx: ignis.Context, call_next: Any) -> Any:
        return call_next(ctx)

    for register in (running.middleware, running.queue("first", int).middleware):
        with pytest.raises(ConfigError, match="layer comes too late: the handler of queue 'first' runs without it"):
            register(layer)
    assert not running.layers
    running.stop()
    running.middleware(layer)
