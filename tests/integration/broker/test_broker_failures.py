"""Failures, returns and times to live through a broker: as without one."""

from __future__ import annotations

import time
from typing import Any

import pytest

import ignis
from ignis.broker.client import requests
from ignis.message import Message
from ignis.native import PackedBatch, Record, encode_record
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually, sidelined
from tests.support.broker import running

pytestmark = pytest.mark.integration


def test_a_failing_handler_behind_a_broker(memory_url: str, new_app: MakeApp) -> None:
    with running(memory_url) as broker, new_app(broker.url) as app:
        queue = app.queue("jobs", dict, shards=1, shovel_interval=0.01, max_returns=2)
        called: list[tuple[int, list[str]]] = []

        @queue.handler
        def fail(message: Any, ctx: ignis.Context) -> None:
            called.append((ctx.message.returns, [one.error for one in ctx.message.history]))
            raise RuntimeError(f"call {len(called)}")

        queue.publish({"n": 1})
        app.start()
        eventually(lambda: queue.shovel.waiting == 1)
        assert called == [(n, [f"RuntimeError: call {one}" for one in range(1, n + 1)]) for n in range(3)]
        [message] = sidelined(queue)
        assert (message.returns, len(message.history)) == (2, 3)
        assert "in fail" in message.history[-1].trace


def test_who_refused_is_kept(memory_url: str) -> None:
    with running(memory_url) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw", "shovel_interval_s": 0}))
        client.ask(requests.send("q", encode_record(b"x")))
        found = client.consume("q", 1, wait_s=WAIT_S)
        pointers = {claim.shard: claim.pointers for claim in found.claims}
        assert client.ask(requests.nack("q", pointers, sideline=True, reason="exception", error="no such order")) == 1
        [claim] = client.consume("q_SIDELINE", 1, wait_s=WAIT_S).claims
        [attempt] = Message(Record(claim.records[0] or b"")).history
        assert (attempt.reason, attempt.error) == ("exception", "no such order")
        assert attempt.worker.startswith("broker/")


def test_what_expires_behind_a_broker_is_counted(memory_url: str, new_app: MakeApp) -> None:
    with running(memory_url) as broker, new_app(broker.url) as app:
        queue = app.queue("jobs", dict, shards=2)
        queue.publish({"n": 1})
        assert queue.settings.message_expiry_s == 0, "as the store behind the broker has it"
        batch = PackedBatch.pack([encode_record(b"{}", flags=1)] * 3)
        queue.main.store.load("jobs", [(1, batch)], 0.05)
        time.sleep(0.1)
        assert queue.main.store.fire("jobs", 9, "me").total() == 1
        assert (queue.stats()["expired"], queue.stats()["sideline_expired"]) == (3, 0)
        with broker.client() as client:
            assert client.ask(requests.queue_info("jobs"))["expired"] == 3


def test_the_default_of_the_store_behind_the_broker_holds(
    memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ignis.storage.memory.store import MemoryStore

    monkeypatch.setattr(MemoryStore, "message_expiry_s", 172_800)
    with running(memory_url) as broker, new_app(broker.url) as app:
        queue = app.queue("jobs", dict)
        queue.open()
        assert queue.settings.message_expiry_s == 172_800
        with broker.client() as client:
            client.ask(requests.create_queue("made", {}))
            assert client.ask(requests.queue_info("made"))["message_expiry_s"] == 172_800
