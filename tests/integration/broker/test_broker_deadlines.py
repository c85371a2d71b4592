"""Deadlines that a broker's clients give: they are in the envelopes, and consumers go by them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis, Message
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.errors import ConfigError
from ignis.message import encode_meta
from ignis.native import PackedBatch, encode_record
from ignis.storage.records import FireResult
from ignis.testing import drain
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)
HEADERS = {"a": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path}/store") as one:
        yield one


def record(body: bytes) -> bytes:
    return encode_record(body, key=b"k", meta=encode_meta(HEADERS))


def deadlines(found: FireResult) -> dict[bytes, int | None]:
    """By body. What else was in the envelope is there still."""
    messages = [Message.from_bytes(one or b"") for claim in found.claims for one in claim.records]
    assert all((one.key, one.headers) == ("k", HEADERS) for one in messages)
    return {one.body: one.expires_at_ms for one in messages}


def check(found: dict[bytes, int | None], began_s: float) -> None:
    assert found.pop(b"plain") is None
    assert found.keys() == {b"one", b"two", b"three", b"later"}
    for at_ms in found.values():
        assert at_ms is not None
        assert began_s + 3_600 - 0.001 <= at_ms / 1000 <= time.time() + 3_600


def test_every_command_that_sends_takes_them(broker: RunningBroker) -> None:
    with Ignis(broker.url) as app:
        app.queue("jobs", bytes, shards=1).open()
    began_s = time.time()
    with broker.client() as client:
        client.send("jobs", record(b"plain"))
        client.send("jobs", record(b"one"), expires_in="1h")
        client.send_batch("jobs", [(0, PackedBatch.pack([record(b"two"), record(b"three")]))], expires_in=3_600)
        client.send_later("jobs", record(b"later"), 0, expires_in=timedelta(hours=1))
        check(deadlines(client.consume("jobs", 9)), began_s)


def test_the_client_for_coroutines(broker: RunningBroker) -> None:
    with Ignis(broker.url) as app:
        app.queue("jobs", bytes, shards=1).open()

    async def main() -> dict[bytes, int | None]:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port)) as client:
            await client.send("jobs", record(b"plain"))
            at = datetime.now(timezone.utc) + timedelta(hours=1)
            await client.send("jobs", record(b"one"), expires_at=at)
            batch = PackedBatch.pack([record(b"two"), record(b"three")])
            await client.send_batch("jobs", [(0, batch)], expires_at=at)
            await client.send_later("jobs", record(b"later"), 0, expires_in="1h")
            return deadlines(await client.consume("jobs", 9))

    began_s = time.time()
    check(asyncio.run(main()), began_s)


@pytest.mark.parametrize("on_expiry", ["drop", "sideline"])
def test_no_handler_begins_with_what_is_over(broker: RunningBroker, on_expiry: str) -> None:
    with Ignis(broker.url) as app, broker.client() as client:
        queue = app.queue("jobs", bytes, on_expiry=on_expiry)
        handled: list[bytes] = []
        queue.handler(handled.append)
        queue.open()
        client.send("jobs", encode_record(b"over"), expires_at=LONG_AGO)
        client.send("jobs", encode_record(b"in time"), expires_in="1h")
        drain(queue)
        assert handled == [b"in time"]
        assert queue.sideline.pending() == (on_expiry == "sideline")


@pytest.mark.parametrize(
    "options", [{"expires_in": 0}, {"expires_at": datetime(2030, 1, 1)}, {"expires_in": 1, "expires_at": LONG_AGO}]  # noqa: DTZ001
)  # fmt: skip
def test_deadlines_that_are_none(broker: RunningBroker, options: dict[str, Any]) -> None:
    with Ignis(broker.url) as app, broker.client() as client:
        queue = app.queue("jobs", bytes)
        queue.open()
        with pytest.raises(ConfigError):
            client.send("jobs", encode_record(b"x"), **options)
        with pytest.raises(ConfigError):
            client.send_batch("jobs", [(0, PackedBatch.pack([encode_record(b"x")]))], **options)
        with pytest.raises(ConfigError):
            client.send_later("jobs", encode_record(b"x"), 1, **options)
        assert queue.main.pending() == len(queue.later) == 0
