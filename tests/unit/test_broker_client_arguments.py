"""What a broker's client is asked with wrong arguments: a typed error before anything is sent, or even connected."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.errors import ConfigError
from ignis.native import PackedBatch, encode_record

QUICK = {"connect_timeout_s": 0.05}
RECORD = encode_record(b"x")
NOT_WHOLE = [True, 1.5, "1", math.nan, -1, 1 << 70, None, b"", []]
NOT_SECONDS = [True, "1", math.nan, -1, -0.5, 10**400, b"", []]
NOT_POINTERS = [None, 7, "x", {0: "x"}, {0: [-1]}, {"x": [1]}, {1 << 20: [1]}, [1], {0: None}]

CALLS: list[tuple[str, Callable[..., Any], list[Any]]] = [
    ("record", lambda c, v: c.send("q", v), [None, 7, "x", [], bytearray(RECORD)]),
    ("shard", lambda c, v: c.send("q", RECORD, shard=v), NOT_WHOLE),
    ("batches", lambda c, v: c.send_batch("q", v), [None, 7, "x", [], [1], [(0,)], [(0, b"")], [(True, None)]]),
    ("batch shard", lambda c, v: c.send_batch("q", [(v, PackedBatch.pack([RECORD]))]), NOT_WHOLE),
    ("limit", lambda c, v: c.consume("q", v), [0, *NOT_WHOLE]),
    ("wait_s", lambda c, v: c.consume("q", 1, v), [math.inf, None, *NOT_SECONDS]),
    ("max_bytes", lambda c, v: c.consume("q", 1, 0, max_bytes=v), [0, *NOT_WHOLE]),
    ("ack", lambda c, v: c.ack("q", v), NOT_POINTERS),
    ("nack", lambda c, v: c.nack("q", v), NOT_POINTERS),
    ("delay_s", lambda c, v: c.nack("q", {0: [1]}, delay_s=v), [math.inf, None, *NOT_SECONDS]),
]


@pytest.fixture
def nowhere() -> BrokerAddress:
    return BrokerAddress("127.0.0.1", 1)


@pytest.mark.parametrize(("name", "call", "values"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_argument_is_said_before_connecting(
    nowhere: BrokerAddress, name: str, call: Callable[..., Any], values: list[Any]
) -> None:
    sync = SyncClient(nowhere, QUICK)
    for value in values:
        if name in ("record", "shard", "batches", "batch shard", "nack", "delay_s"):
            continue  # the client for threads has no call of its own for these
        with pytest.raises(ConfigError):
            call(sync, value)
    assert sync.connects == 0

    async def main() -> None:
        client = AsyncClient(nowhere, QUICK)
        for value in values:
            with pytest.raises(ConfigError):
                await call(client, value)
        assert client.connects == 0

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [value for value in NOT_SECONDS if value is not None], ids=repr)
def test_a_timeout_is_a_number_of_seconds(nowhere: BrokerAddress, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        SyncClient(nowhere, QUICK).ping(timeout)
