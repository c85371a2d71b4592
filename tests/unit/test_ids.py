"""An id is text, the same on every way a message takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis.native import id_text, new_id
from tests.support import eventually
from tests.support.broker import running

STORES = ("memory", "embedded", "broker")


@pytest.fixture(params=STORES)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ignis.Queue[int]]:
    store = "memory://ids" if request.param == "memory" else f"embedded://{tmp_path}/store"
    if request.param != "broker":
        with ignis.Ignis(store, client_id=f"ids-{tmp_path.name}") as app:
            yield app.queue("jobs", int)
        return
    with running(store) as broker, ignis.Ignis(broker.url) as app:
        yield app.queue("jobs", int)


def every_way(queue: ignis.Queue[int]) -> dict[str, object]:
    """What each way in says the id of its message is."""

    async def coroutines(publisher: ignis.Publisher[int]) -> dict[str, object]:
        return {
            "apublish": (await queue.apublish(1)).id,
            "apublish_many": (await queue.apublish_many([1]))[0],
            "await send": await publisher.send(1),
            "await asend": await (await publisher.asend(1)),
        }

    with queue.publisher() as publisher:
        told: dict[str, object] = {
            "publish": queue.publish(1).id,
            "publish_many": queue.publish_many([1])[0],
            "publish_many, a slice": queue.publish_many([1])[:1][0],
            "result": publisher.send(1).result(),
            **asyncio.run(coroutines(publisher)),
        }
        receipt = publisher.send(1)
        told["receipt.id"] = receipt.id
        called: list[str] = []
        receipt.add_done_callback(lambda done: called.append(done.id))
        publisher.flush()
        eventually(lambda: called == [receipt.id])
        return told


def test_every_way_in_and_out(queue: ignis.Queue[int]) -> None:
    told = every_way(queue)
    assert {way: type(id) for way, id in told.items()} == dict.fromkeys(told, str)
    seen: set[str] = set()

    @queue.handler
    def handle(message: int, ctx: ignis.Context) -> None:
        seen.add(ctx.message.id)

    peeked = {one.envelope.id for one in queue.main.peek(100)}
    assert peeked == set(told.values())
    queue.app.start()
    eventually(lambda: seen == peeked)


def test_the_text_is_that_of_a_uuid() -> None:
    for id in (bytes(16), b"\xff" * 16, bytes(range(16)), new_id()):
        assert id_text(id) == str(uuid.UUID(bytes=id))
    for wrong in (b"", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match=f"16 bytes, not {len(wrong)}"):
            id_text(wrong)
