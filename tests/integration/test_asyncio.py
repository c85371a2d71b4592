"""An asyncio program that publishes and handles in one event loop's process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ignis
from tests.support import WAIT_S, idle, reasons

pytestmark = pytest.mark.integration


async def until(condition: Any) -> None:
    async def look() -> None:
        while not condition():  # noqa: ASYNC110 - a thread makes it true
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), WAIT_S)


def test_requests_that_publish_while_coroutines_handle(app: ignis.Ignis) -> None:
    queue = app.queue("events", dict, shards=4)
    seen: list[int] = []

    @queue.handler(concurrency=20, timeout_s=30)
    async def handle(event: dict[str, Any], ctx: ignis.Context) -> bool:
        await asyncio.sleep(0.001 * (event["n"] % 3))
        seen.append(event["n"])
        return event["n"] % 100 != 99

    async def request(publisher: ignis.Publisher[dict[str, Any]], n: int) -> str:
        if n % 10 == 0:
            return (await queue.apublish({"n": n}, key=str(n))).id
        return await (await publisher.asend({"n": n}, key=str(n)))

    async def main() -> None:
        async with queue.publisher(capacity=64) as publisher:
            ids = await asyncio.gather(*(request(publisher, n) for n in range(500)))
        assert len(set(ids)) == 500
        await until(lambda: idle(queue))

    app.start()
    asyncio.run(main())
    assert sorted(seen) == list(range(500))
    assert reasons(queue) == {"rejected": 5}
    assert app.stop() is True


def test_a_cancelled_waiter_does_not_take_its_message_along(app: ignis.Ignis) -> None:
    queue = app.queue("events", int)

    async def main() -> None:
        async with queue.publisher() as publisher:
            receipt = publisher.send(1)

            async def wait() -> str:
                return await receipt

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await receipt

    asyncio.run(main())
    assert [one.message for one in queue.main.fire(10)] == [1]


def test_two_event_loops_await_the_same_publisher(app: ignis.Ignis) -> None:
    queue = app.queue("events", int)
    with queue.publisher() as publisher:

        async def main() -> None:
            await asyncio.gather(*[publisher.send(n) for n in range(100)])

        for _ in range(2):
            asyncio.run(main())
    assert queue.main.pending() == 200
