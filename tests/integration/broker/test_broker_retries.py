"""Retries of handlers that consume through a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

import ignis
from tests.support import eventually, sidelined
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("coroutine", [False, True])
def test_retries_through_a_broker(tmp_path: Path, coroutine: bool) -> None:
    seen: list[tuple[str, int, str | None]] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        seen.append((job, ctx.attempt, ctx.last_error))
        if ctx.attempt < int(job):
            raise RuntimeError(f"attempt {ctx.attempt}")

    async def awaited(job: str, ctx: ignis.Context) -> None:
        handle(job, ctx)

    with RunningBroker(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(broker.url) as app:
        queue = app.queue("jobs", str, shards=1, shovel_interval=0)
        queue.handler(retry=ignis.Retry(attempts=3, base="20ms"))(awaited if coroutine else handle)
        app.start()
        queue.publish_many(["1", "3", "9"])
        (message,) = eventually(lambda: sidelined(queue))
        eventually(lambda: queue.stats()["consumer"]["handled"] == 2)
        assert (message.body, message.failures, message.given_up) == (b"9", 3, True)
        assert [one.error for one in message.history] == [f"RuntimeError: attempt {n}" for n in (1, 2, 3)]
        assert sorted((job, attempt) for job, attempt, _ in seen) == [
            ("1", 1), ("3", 1), ("3", 2), ("3", 3), ("9", 1), ("9", 2), ("9", 3),
        ]  # fmt: skip
        assert queue.stats()["consumer"]["retried"] == 4


def test_a_shovel_goes_by_its_policy_through_a_broker(tmp_path: Path) -> None:
    called: list[str] = []
    policy = ignis.Retry(attempts=3, base="20ms", jitter=False)
    with RunningBroker(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(broker.url) as app:
        queue = app.queue("jobs", str, shards=1, shovel_retry=policy)

        @queue.handler
        def fail(job: str) -> bool:
            called.append(job)
            return False

        app.start()
        queue.publish("a")
        eventually(lambda: queue.shovel.given_up == 1)
        (message,) = sidelined(queue)
        assert (called, message.returns, message.failures) == (["a"] * 3, 2, 3)
        assert queue.stats()["shovel"]["returned"] == 2
