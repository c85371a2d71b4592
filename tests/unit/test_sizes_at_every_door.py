"""What one door takes every other takes: body, key and headers at the edges of their limits, by each way to publish."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import MessageTooLargeError
from ignis.message import encode_meta
from tests.support import WAIT_S
from tests.support.broker import RunningBroker
from tests.support.relay import place

BODY, KEY, HEADERS = 5_000, 65_535, 64 << 10
HEADERS_HEAD = 15
"""What the envelope says about headers with one long value."""
FITTING = list(itertools.product((0, BODY), (0, KEY), (0, HEADERS - 1, HEADERS)))
TOO_LARGE = [(BODY + 1, 0, 0), (0, KEY + 1, 0), (0, 0, HEADERS + 1), (BODY + 1, KEY, HEADERS)]
TIMES: dict[str, dict[str, Any]] = {
    "at-once": {},
    "delayed": {"delay": "1h"},
    "mortal": {"expires_in": "2h"},
    "both": {"delay": "1h", "expires_in": "2h"},
}
Publish = Callable[..., Any]


@pytest.fixture(scope="module", params=["memory", "embedded", "broker", "relay"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ignis.Ignis]:
    tmp_path = tmp_path_factory.mktemp("sizes")
    if request.param == "broker":
        with RunningBroker(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(broker.url) as made:
            yield made
    elif request.param == "relay":
        with place(tmp_path) as here, ignis.Ignis(here.url, store={"timeout_s": WAIT_S}) as made:
            here.start_relay()
            yield made
    else:
        with ignis.Ignis("memory://" if request.param == "memory" else f"embedded://{tmp_path}/store") as made:
            yield made


def doors(queue: ignis.Queue[bytes], publisher: ignis.Publisher[bytes], times: dict[str, Any]) -> dict[str, Publish]:
    """Every way to publish; each returns when the message is durable."""

    def many(body: bytes, *, key: Any, headers: Any) -> None:
        queue.publish_many([body], keys=[key], headers=headers, **times)

    async def asend(body: bytes, **options: Any) -> None:
        await (await publisher.asend(body, **options, **times))

    return {
        "publish": lambda body, **options: queue.publish(body, **options, **times),
        "publish_many": many,
        "apublish": lambda body, **options: asyncio.run(queue.apublish(body, **options, **times)),
        "send": lambda body, **options: publisher.send(body, timeout=WAIT_S, **options, **times).result(WAIT_S),
        "asend": lambda body, **options: asyncio.run(asend(body, **options)),
    }


def refusal(publish: Publish, body: int, key: int, headers: int) -> str | None:
    """What was too large, and over which limit; None when the message was taken."""
    given = {"x": b"h" * (headers - HEADERS_HEAD)} if headers else None
    try:
        publish(b"b" * body, key=b"k" * key or None, headers=given)
    except MessageTooLargeError as exc:
        return f"{exc.part} over {exc.limit_bytes}"
    return None


def test_the_headers_are_of_the_size_that_is_meant() -> None:
    for size in (HEADERS - 1, HEADERS):
        assert len(encode_meta({"x": b"h" * (size - HEADERS_HEAD)}, 1 << 20)) == size


@pytest.mark.parametrize("when", TIMES)
def test_what_fits_fits_through_every_door(app: ignis.Ignis, when: str) -> None:
    queue = app.queue(when, bytes, max_message_bytes=BODY, max_headers_bytes=HEADERS, shards=1)
    with queue.publisher() as publisher:
        for name, door in doors(queue, publisher, TIMES[when]).items():
            assert {sizes: refusal(door, *sizes) for sizes in FITTING} == dict.fromkeys(FITTING), name
            said = {sizes: refusal(door, *sizes) for sizes in TOO_LARGE}
            first = [f"message over {BODY}", f"key over {KEY}", f"headers over {HEADERS}"]
            assert [said[sizes] for sizes in TOO_LARGE[:3]] == first, name
            assert said[TOO_LARGE[3]] is not None, name
