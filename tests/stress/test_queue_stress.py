"""Everything at once for a few seconds, then the account: what was acknowledged must have been handled or be aside."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.errors import ConsumerLimitError
from tests.support import eventually, idle, one_store, sidelined

pytestmark = pytest.mark.stress
MakeApp = Callable[..., ignis.Ignis]
RUN_S = 2.0


class IgnoredError(Exception):
    pass


class Account:
    """Who sent what, and who saw it how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: set[int] = set()
        self.seen: Counter[int] = Counter()
        self.numbers = iter(range(1 << 62))

    def take(self, count: int) -> list[int]:
        with self._lock:
            return [next(self.numbers) for _ in range(count)]

    def acknowledge(self, numbers: list[int]) -> None:
        with self._lock:
            self.acknowledged.update(numbers)

    def see(self, number: int) -> None:
        with self._lock:
            self.seen[number] += 1


def publish(queue: ignis.Queue[Any], account: Account, rng: random.Random, until: float) -> None:
    """One producer, by every way there is."""
    with queue.publisher(capacity=256) as publisher:
        while time.monotonic() < until:
            numbers = account.take(rng.choice([1, 1, 3, 50, 700]))
            key = rng.choice([None, "a", "b", "c"])
            match rng.randrange(3):
                case 0:
                    for number in numbers[:5]:
                        queue.publish(number, key=key)
                    numbers = numbers[:5]
                case 1:
                    queue.publish_many(numbers, keys=[key] * len(numbers))
                case _:
                    receipts = [publisher.send(number, key=key) for number in numbers]
                    for receipt in receipts:
                        receipt.result()
            account.acknowledge(numbers)
            time.sleep(rng.random() * 0.01)


def disturb(app: ignis.Ignis, queue: ignis.Queue[Any], rng: random.Random, until: float) -> None:
    """Resizes, shovels, sweeps, and stops and starts the application."""
    while time.monotonic() < until:
        match rng.randrange(5):
            case 0:
                with contextlib.suppress(ConsumerLimitError):
                    queue.increase_consumers(rng.randrange(1, 4))
            case 1:
                if queue.consumers > 1:
                    queue.decrease_consumers(1)
            case 2:
                queue.shovel.run_once(limit=rng.choice([1, 100, None]))
            case 3:
                app.sweeper().run_once()
            case _:
                assert app.stop() is True
                assert queue.main.in_flight() == 0
                app.start()
        time.sleep(rng.random() * 0.1)


@pytest.mark.parametrize("pool", ["thread", pytest.param("async", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [1])
@one_store()
def test_total_queue(store_url: str, new_app: MakeApp, pool: str, seed: int) -> None:
    app, account = new_app(store_url, consumer={"max_consumers": 6}), Account()
    queue = app.queue("numbers", int, shards=4, shovel_interval=0, durability="none")
    rng = random.Random(seed)

    def handle(number: int, ctx: ignis.Context) -> bool:
        if number % 97 == 0:
            time.sleep(0.003)
        account.see(number)
        if number % 31 == 0 and not ctx.message.failures:
            raise RuntimeError
        if number % 37 == 0:
            raise IgnoredError
        return bool(number % 41 or ctx.message.failures)

    async def handle_async(number: int, ctx: ignis.Context) -> bool:
        return handle(number, ctx)

    queue.handler(handle_async if pool == "async" else handle, concurrency=2, ignore=IgnoredError)
    app.start()
    until = time.monotonic() + RUN_S
    producers = [
        threading.Thread(target=publish, args=(queue, account, random.Random(rng.random()), until)) for _ in range(2)
    ]
    for producer in producers:
        producer.start()
    disturb(app, queue, rng, until)
    for producer in producers:
        producer.join()
    eventually(lambda: idle(queue))
    aside = sidelined(queue)
    assert len({message.id for message in aside}) == len(aside)
    assert {message.reason for message in aside} <= {"exception", "rejected"}
    eventually(lambda: queue.shovel.run_once() and idle(queue) and not queue.sideline.pending())
    assert app.stop() is True
    lost = account.acknowledged - set(account.seen)
    invented = set(account.seen) - account.acknowledged
    assert not lost
    assert not invented
    # Nobody died: a message is seen once, and once more when the shovel brought it back.
    expected = {n: 2 if n % 31 == 0 or (n % 41 == 0 and n % 37 != 0) else 1 for n in account.seen}
    assert {n: (count, expected[n]) for n, count in account.seen.items() if count != expected[n]} == {}
