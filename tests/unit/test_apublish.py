"""``queue.apublish``: many coroutines share a transaction, and each hears what became of its own message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import ClosedError, InvalidMessageError, MessageTooLargeError, StoreFullError
from tests.support import WAIT_S, eventually

MESSAGES = 200


class Gatekeeper:
    """Stands before a magazine's loads: counts them, holds them while it is closed, refuses them while it has an error."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._open = threading.Event()
        self.open = self._open.set
        self.close = self._open.clear
        self.waiting = threading.Event()
        self.error: BaseException | None = None
        self.loads = 0

    def __call__(self, *args: Any) -> Any:
        self.waiting.set()
        assert self._open.wait(WAIT_S)
        self.loads += 1
        if self.error is not None:
            raise self.error
        return self._call(*args)


@pytest.fixture
def queue(app: ignis.Ignis) -> ignis.Queue[int]:
    return app.queue("jobs", int, shards=4)


@pytest.fixture
def door(queue: ignis.Queue[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gatekeeper]:
    door = Gatekeeper(queue.main.store.load)
    monkeypatch.setattr(queue.main.store, "load", door)
    yield door
    door.error = None
    door.open()


def test_what_gathers_is_one_transaction(queue: ignis.Queue[int], door: Gatekeeper) -> None:
    async def main() -> list[ignis.Published]:
        first = asyncio.create_task(queue.apublish(-1))
        await asyncio.to_thread(door.waiting.wait, WAIT_S)
        rest = [asyncio.create_task(queue.apublish(n, key=str(n))) for n in range(MESSAGES)]
        await asyncio.sleep(0)  # all of them have handed their message over
        door.open()
        return [await first, *[await one for one in rest]]

    published = asyncio.run(main())
    assert door.loads == 2
    eventually(lambda: queue.published == MESSAGES + 1)  # counted once those who wait have been told
    found = {(one.shard, one.pointer): one for one in queue.main.peek(1_000)}
    assert len(found) == MESSAGES + 1
    for n, one in enumerate(published, -1):
        stored = found[one.shard, one.pointer]
        assert (stored.message, stored.envelope.id) == (n, one.id)


def test_one_task_keeps_the_order_of_a_key(queue: ignis.Queue[int]) -> None:
    async def main() -> None:
        for n in range(50):
            await queue.apublish(n, key="k", headers={"n": n})

    asyncio.run(main())
    fired = queue.main.fire(100)
    assert [one.message for one in fired] == list(range(50))
    assert [one.envelope.headers["n"] for one in fired] == list(range(50))


def test_refusals_reach_who_published(queue: ignis.Queue[int], door: Gatekeeper) -> None:
    async def main() -> None:
        with pytest.raises(InvalidMessageError, match="a str does not fit"):
            await queue.apublish("x")  # type: ignore[arg-type]
        with pytest.raises(MessageTooLargeError, match="headers"):
            await queue.apublish(1, headers={"h": "x" * 20_000})
        door.error = StoreFullError(1, 1)
        door.open()
        failed = await asyncio.gather(*(queue.apublish(n) for n in range(20)), return_exceptions=True)
        assert {type(one) for one in failed} == {StoreFullError}
        door.error = None
        assert (await queue.apublish(7)).pointer == 1

    asyncio.run(main())
    assert [one.message for one in queue.main.fire(100)] == [7]


def test_a_message_over_the_limit_names_the_setting(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("small", bytes, max_message_bytes=100)
    with pytest.raises(MessageTooLargeError, match=r"100 bytes .*max_message_bytes"):
        asyncio.run(queue.apublish(b"x" * 101))


def test_a_cancelled_coroutine_leaves_nothing_behind(queue: ignis.Queue[int], door: Gatekeeper) -> None:
    async def main() -> None:
        door.open()
        await queue.apublish(-1)  # the first one opens the store, in a thread
        door.close()
        door.waiting.clear()
        tasks = [asyncio.create_task(queue.apublish(n)) for n in range(10)]
        await asyncio.to_thread(door.waiting.wait, WAIT_S)
        for one in tasks[:5]:
            one.cancel()
        await asyncio.sleep(0)
        door.open()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in done] == [asyncio.CancelledError] * 5 + [ignis.Published] * 5

    asyncio.run(main())
    assert sorted(one.message for one in queue.main.peek(100)) == list(range(-1, 10))
    assert queue._awaited is not None
    assert queue._awaited._places == {}


def test_loops_in_several_threads(queue: ignis.Queue[int]) -> None:
    ids: list[str] = []

    async def main(first: int) -> None:
        some = await asyncio.gather(*(queue.apublish(first + n) for n in range(50)))
        ids.extend(one.id for one in some)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(main(100 * n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert {one.envelope.id for one in queue.main.peek(1_000)} == set(ids)
    assert len(set(ids)) == 200


def test_hooks_and_figures_count_it(app: ignis.Ignis) -> None:
    queue, seen = app.queue("jobs", int), []
    app.after_publish(lambda name, count: seen.append((name, count)))

    async def main() -> None:
        await asyncio.gather(*(queue.apublish(n) for n in range(30)))

    asyncio.run(main())
    eventually(lambda: sum(count for _, count in seen) == 30)
    assert {name for name, _ in seen} == {"jobs"}
    assert queue.published == 30


def test_closing_the_application_waits_for_what_is_on_its_way(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)

    async def main() -> list[ignis.Published]:
        await queue.apublish(-1)  # the first one opens the store, in a thread
        tasks = [asyncio.create_task(queue.apublish(n)) for n in range(20)]
        await asyncio.sleep(0)
        app.close()
        return await asyncio.gather(*tasks)

    assert len({one.id for one in asyncio.run(main())}) == 20


def test_what_is_not_durable_in_time_fails_when_the_application_closes(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_app.queue("jobs", int)
    door = Gatekeeper(queue.main.store.load)
    monkeypatch.setattr(queue.main.store, "load", door)

    async def main() -> None:
        task = asyncio.create_task(queue.apublish(1))
        await asyncio.to_thread(door.waiting.wait, WAIT_S)
        await asyncio.to_thread(memory_app.close, 0.05)
        with pytest.raises(ClosedError):
            await task

    asyncio.run(main())
    door.open()


def test_apublish_works_again_whatever_was_made_while_the_application_was_closed(
    memory_url: str, new_app: Callable[..., ignis.Ignis], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(memory_url)
    queue = app.queue("jobs", int)
    asyncio.run(queue.apublish(1))
    close_awaited = queue.close_awaited

    def close_and_publish(timeout: float | None = None) -> None:
        close_awaited(timeout)
        asyncio.run(queue.apublish(2))  # another thread does, before the store is closed

    with monkeypatch.context() as patch:
        patch.setattr(queue, "close_awaited", close_and_publish)
        app.close()
    asyncio.run(queue.apublish(3))
    assert queue.main.pending() == 3
