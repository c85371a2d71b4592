"""The broker and its clients under kill -9. Cancellation, damaged frames and hostile clients: ``broker_wire.py``."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ignis import Ignis
from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.in_flight import as_pointers
from ignis.broker.server import dispatcher
from ignis.broker.server.publish_buffer import Placed, PublishBuffer, Sent
from ignis.broker.server.server import Broker
from ignis.broker.server.subscription import Packed, Subscription
from ignis.errors import ConnectionLostError, IgnisError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native import PackedBatch, Record, encode_record
from ignis.storage.base import FireResult
from tests.torture.ledger import Ledger, make_body, make_id, read_body
from tests.torture.process import Child, Reporter, Role, follow
from tests.torture.report import Outcome

__all__ = ["broker_kill9", "mutants"]

QUEUE = "q"
_KILLS_PER_ROUND = 6
_DRAIN_S = 90.0


# -- the actors


def serving(url: str, port: int) -> Role:
    """A broker, until killed."""

    def role(report: Reporter) -> None:
        async def run() -> None:
            broker = Broker(url, port=port, settings={"redeliver_after_s": 0.05})
            await broker.start()
            report.note("opened")
            await broker.run()

        asyncio.run(run())

    return role


def _client(port: int) -> SyncClient:
    return SyncClient(
        BrokerAddress("127.0.0.1", port), {"timeout_s": 20, "connect_timeout_s": 20, "max_retry_wait_s": 0.1}
    )


def sending(port: int, number: int, batch: int) -> Role:
    """Single messages (batch 1) or batches, each acknowledged; goes on with new ones after every error."""

    def role(report: Reporter) -> None:
        client = _client(port)
        report.note("opened")
        sequence = 0
        while True:
            many = [make_id(number, one) for one in range(sequence, sequence + batch)]
            sequence += batch
            records = [encode_record(make_body(one)) for one in many]
            report.sending(many)
            try:
                if batch == 1:
                    client.ask(requests.send(QUEUE, records[0]))
                else:
                    client.ask(requests.send_batch(QUEUE, [(sequence % 3, PackedBatch.pack(records))]))
            except IgnisError as exc:
                report.note("error", exc)
            else:
                report.acknowledged(many)

    return role


def _read(report: Reporter, found: FireResult) -> tuple[list[int], dict[int, list[int]]]:
    ids: list[int] = []
    places: dict[int, list[int]] = {}
    for claim in found.claims:
        places.setdefault(claim.shard, []).extend(claim.pointers)
        for record in claim.records:
            one = None if record is None else read_body(Record(record).body)
            if one is None:
                report.altered(1)
            else:
                ids.append(one)
    report.seen(ids)
    return ids, places


def consuming(port: int) -> Role:
    """Sees and acknowledges by subscription, each delivery before the next."""

    def role(report: Reporter) -> None:
        client = _client(port)
        report.note("opened")
        while True:
            try:
                with client.subscribe(QUEUE, credit=100) as subscription:
                    for found in subscription:
                        ids, places = _read(report, found)
                        if subscription.ack(places) == len(ids):
                            report.finished(ids)
            except IgnisError as exc:
                report.note("error", exc)
                time.sleep(0.005)

    return role


def pulling(port: int) -> Role:
    """Sees by pulls, and waits for the acknowledgements of many at a time."""

    def role(report: Reporter) -> None:
        client = _client(port)
        report.note("opened")
        unsettled: list[int] = []
        while True:
            try:
                ids, places = _read(report, client.consume(QUEUE, 50, wait_s=0.2))
                if ids:
                    client.ack_nowait(QUEUE, places)
                    unsettled += ids
                if len(unsettled) >= 300 or not ids:
                    if client.wait_acks() == len(unsettled):
                        report.finished(unsettled)
                    unsettled = []
            except IgnisError as exc:
                report.note("error", exc)
                unsettled = []
                with contextlib.suppress(IgnisError):
                    client.wait_acks()  # of these it is not known which were retired
                time.sleep(0.005)

    return role


def handling(port: int) -> Role:
    """Sees by a handler behind ``ignis://``: its claims are its own, and outlive the broker."""

    def role(report: Reporter) -> None:
        def handler(body: bytes) -> None:
            one = read_body(body)
            if one is None:
                report.altered(1)
            else:
                report.seen([one])

        settings = {"timeout_s": 20, "connect_timeout_s": 20, "max_retry_wait_s": 0.1}
        while True:
            with Ignis(f"ignis://127.0.0.1:{port}", store=settings) as app:
                app.queue(QUEUE, bytes).handler(handler, concurrency=2)
                try:
                    app.start()
                except ConnectionLostError as exc:  # the broker died while the queue was registered
                    report.note("error", exc)
                    continue
                report.note("opened")
                while True:
                    time.sleep(1)

    return role


def draining(port: int) -> Role:
    """Takes everything until nothing is pending or in flight any more."""

    def role(report: Reporter) -> None:
        client = _client(port)
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            # What many connections held when they were lost is in the sideline.
            for magazine in (QUEUE, QUEUE + SIDELINE_SUFFIX):
                ids, places = _read(report, client.consume(magazine, 500, wait_s=0.1))
                if ids:
                    client.ack(magazine, places)
                    report.finished(ids)
            info = client.ask(requests.queue_info(QUEUE))
            if not (info["pending"] or info["in_flight"] or info["sideline"]):
                client.close()
                return
        report.note("left", client.ask(requests.queue_info(QUEUE)))

    return role


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _start(role: Role, name: str, prepare: Callable[[], None] | None = None) -> Child:
    child = Child(role, name, prepare)
    if not follow([child], None, lambda: child.noted("opened") is not None, 30) or child.noted("opened") is None:
        trouble = child.trouble()
        child.close()
        raise RuntimeError(f"{name} did not start: {trouble}")
    return child


# -- kill -9


def broker_kill9(
    rounds: int, rng: random.Random, *, deadline: float = float("inf"), prepare: Callable[[], None] | None = None
) -> Outcome:
    """Broker and clients die one after the other and are replaced; in the end a fresh broker is drained and judged."""
    outcome = Outcome("broker-kill9")
    for number in range(rounds):
        if time.monotonic() >= deadline:
            break
        with tempfile.TemporaryDirectory(prefix="ignis-broker-") as directory:
            _round(outcome, rng, f"embedded://{Path(directory) / 'store'}", f"round {number}", prepare)
        outcome.rounds += 1
    return outcome.finish()


def _round(
    outcome: Outcome, rng: random.Random, url: str, where: str, prepare: Callable[[], None] | None = None
) -> None:
    ledger, port = Ledger(), _free_port()
    numbers = iter(range(1, 1000))
    roles: dict[str, Callable[[], Role]] = {
        "sender": lambda: sending(port, next(numbers), 1),
        "sender of batches": lambda: sending(port, next(numbers), 40),
        "subscriber": lambda: consuming(port),
        "puller": lambda: pulling(port),
        "handler": lambda: handling(port),
    }
    living = {"broker": _start(serving(url, port), "broker", prepare)}
    dead: list[Child] = []
    try:
        with _client(port) as client:
            client.ask(requests.create_queue(QUEUE, {"shards": 3, "codec": "raw", "shovel_interval_s": 0}))
        living |= {name: Child(make(), name) for name, make in roles.items()}
        for _ in range(_KILLS_PER_ROUND):
            end = time.monotonic() + rng.uniform(0.05, 0.3)
            follow(list(living.values()), ledger, lambda end=end: time.monotonic() >= end, 5)  # type: ignore[misc]
            victim = rng.choice([*living, "broker", "broker"])
            gone = living.pop(victim)
            if not gone.alive():
                outcome.fault(f"{where}: {victim} ended by itself ({gone.status}): {gone.trouble()}")
            gone.kill()
            dead.append(gone)
            if victim == "broker":
                gone.join(ledger)
                living[victim] = _start(serving(url, port), "broker", prepare)
            else:
                living[victim] = Child(roles[victim](), victim)
        end = time.monotonic() + 0.5
        follow(list(living.values()), ledger, lambda: time.monotonic() >= end, 5)
        for one in living.values():
            if not one.alive():
                outcome.fault(f"{where}: {one.name} ended by itself ({one.status}): {one.trouble()}")
            one.kill()
        dead += living.values()
        living = {}
        for one in dead:
            one.join(ledger)
        outcome.add(kills=len(dead))
        with _start(serving(url, port), "last broker"), Child(draining(port), "drainer") as child:
            status = child.join(ledger, _DRAIN_S + 30)
            if status or child.noted("left") is not None:
                outcome.fault(f"{where}: drain: exit {status} {child.noted('left') or ''} {child.trouble()}")
                return
        outcome.take(ledger.verdict(), where)
    finally:
        for one in [*dead, *living.values()]:
            one.close()


# -- what must be caught


def answers_before_storing() -> None:
    """A broker that acknowledges what it has not stored yet."""
    put = PublishBuffer.put

    def early(self: PublishBuffer, sent: Sent) -> None:
        sent.placed = [Placed(shard % 3, 1, batch.count, ids) for shard, batch, ids in sent.batches]
        sent.done(sent)
        sent.done = lambda _: None  # type: ignore[method-assign]
        self._loop.call_later(0.2, put, self, sent)

    PublishBuffer.put = early  # type: ignore[method-assign]


def deletes_on_delivery() -> None:
    """A broker that forgets a message once it has sent it."""
    real = dispatcher.Dispatcher.hand_over

    def gone(self: dispatcher.Dispatcher, consumer: Subscription, claimed: Packed) -> None:
        real(self, consumer, claimed)
        # Behind the delivery: within it the store must not be called.
        self._loop.call_soon(self._magazines.delete, self.magazine, as_pointers(claimed.runs))

    dispatcher.Dispatcher.hand_over = gone  # type: ignore[method-assign]


def mutants(rounds: int, rng: random.Random) -> Outcome:
    """Each planted fault must show within the rounds."""
    outcome = Outcome("broker-mutants")
    for plant in (answers_before_storing, deletes_on_delivery):
        caught = False
        for _ in range(rounds):
            found = broker_kill9(1, rng, prepare=plant)
            outcome.rounds += 1
            if not found.ok:
                caught = True
                break
        outcome.plant(plant.__name__, caught)
    return outcome.finish()
