"""Several threads on one store, and its end."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from ignis.errors import ClosedError, ForkedHandleError, WaitTimeoutError
from ignis.native import PackedBatch
from ignis.storage.base import MagazineStore, QueueRecord, Store, Transfer
from tests.contract.support import Kind, batch, numbered, pointers, records, texts


def run_all(*targets: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guard(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=guard, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_nothing_is_lost_or_handed_out_twice(store: Store, durability: str) -> None:
    magazines = store.magazines
    magazines.declare("m", 4, durability)
    writers, per_writer = 3, 40
    loaded: list[tuple[int, int]] = []
    seen: Counter[str | None] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()
    writing = threading.Event()

    def write(number: int) -> Callable[[], None]:
        def run() -> None:
            rng = random.Random(number)
            for turn in range(per_writer):
                shard, count = rng.randrange(4), rng.randrange(1, 6)
                bodies = [f"{number}.{turn}.{one}" for one in range(count)]
                first = magazines.load_records("m", shard, records(*bodies))
                with lock:
                    loaded.extend((shard, first + one) for one in range(count))

        return run

    def consume() -> None:
        while True:
            finished = writing.is_set()
            result = magazines.fire("m", 7, "me")
            if not result.claims and finished:
                return
            with lock:
                seen.update(texts(result))
                taken.update((shard, one) for shard, many in pointers(result).items() for one in many)
            assert magazines.delete("m", pointers(result)) == result.total()

    def write_all() -> None:
        run_all(*(write(number) for number in range(writers)))
        writing.set()

    run_all(write_all, consume, consume)
    assert len(loaded) == len(set(loaded)), "a pointer was given twice"
    assert set(taken) == set(loaded)
    assert set(taken.values()) == {1}
    assert set(seen.values()) == {1}
    assert [(one.pending, one.in_flight) for one in magazines.metadata("m")] == [(0, 0)] * 4


def test_a_delete_and_a_transfer_of_the_same_record_do_it_once(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("a", 1)
    magazines.declare("b", 1)
    count = 60
    magazines.load_records("a", 0, numbered(count))
    magazines.fire("a", count, "me")
    deleted: list[int] = []
    moved: list[int] = []

    def delete() -> None:
        deleted.extend(magazines.delete("a", {0: [one]}) for one in range(1, count + 1))

    def move() -> None:
        body = numbered(1)[0]
        moved.extend(magazines.transfer("a", "b", [Transfer(0, one, body, 0)], None) for one in range(count, 0, -1))

    run_all(delete, move)
    assert sum(deleted) + sum(moved) == count
    assert magazines.metadata("b")[0].load_pointer == sum(moved)


def test_a_bad_call_does_not_fail_its_neighbours(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("m", 2)
    refused: list[BaseException] = []

    def good() -> None:
        for _ in range(30):
            magazines.load("m", [(0, batch("a"))], None)

    def bad() -> None:
        for _ in range(30):
            try:
                magazines.load("m", [(9, batch("b"))], None)
            except ValueError as exc:
                refused.append(exc)

    run_all(good, good, bad)
    assert len(refused) == 30
    assert magazines.metadata("m")[0].load_pointer == 60


def test_every_call_after_the_close(store: Store, magazines: MagazineStore) -> None:
    store.close()
    store.close()
    for call in (
        lambda: magazines.load("m", [(0, batch("a"))], None),
        lambda: magazines.fire("m", 1, "me"),
        lambda: magazines.delete("m", {0: [1]}),
        magazines.names,
        lambda: magazines.declare("x", 1),
        lambda: magazines.wait("m", -1, 0),
        lambda: magazines.wake("m"),
        lambda: magazines.drop("m"),
        lambda: magazines.drop("m", only_empty=True),
        lambda: magazines.purge("m"),
        lambda: magazines.delete_waiting("m", {0: [1]}),
        lambda: store.queues.get("q"),
        store.queues.list,
        lambda: store.locks.acquire("l", "me", 1),
        lambda: store.locks.epoch("s"),
        store.stats,
    ):
        with pytest.raises(ClosedError):
            call()


def test_with(kind: Kind) -> None:
    with kind.open() as store:
        store.magazines.declare("m", 1)
    with pytest.raises(ClosedError):
        store.magazines.names()


def test_a_close_waits_for_calls_in_flight(kind: Kind) -> None:
    store = kind.open()
    store.magazines.declare("m", 1)
    done: list[int] = []
    started = threading.Event()

    def load() -> None:
        started.set()
        many = PackedBatch.pack(numbered(20_000))
        with contextlib.suppress(ClosedError):
            done.extend(store.magazines.load("m", [(0, many)], None))

    thread = threading.Thread(target=load)
    thread.start()
    started.wait(60)
    try:
        store.close(20)
    finally:
        thread.join(20)
    magazines = kind.open().magazines
    assert magazines.metadata("m")[0].load_counter == (20_000 if done else 0)


def test_a_close_that_may_not_wait_long_enough(store: Store) -> None:
    store.queues.put(QueueRecord("q"))
    inside, go_on = threading.Event(), threading.Event()

    def change(record: object) -> None:
        inside.set()
        go_on.wait(20)

    thread = threading.Thread(target=lambda: store.queues.update("q", change))
    thread.start()
    inside.wait(60)
    closing: list[BaseException | None] = []

    def close() -> None:
        try:
            store.close(0.1)
            closing.append(None)
        except WaitTimeoutError as exc:
            closing.append(exc)

    closer = threading.Thread(target=close)
    closer.start()
    time.sleep(0.3)
    go_on.set()
    thread.join(20)
    closer.join(20)
    assert len(closing) == 1
    store.close(10)


def test_a_child_cannot_use_its_parents_store(store: Store, magazines: MagazineStore, kind: Kind) -> None:
    magazines.load_records("m", 0, numbered(1))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"?"
        try:
            try:
                magazines.fire("m", 1, "me")
                answer = b"fired"
            except ForkedHandleError:
                store.close()
                if kind.in_directory:
                    own = kind.open()
                    answer = b"forked" if own.magazines.metadata("m")[0].pending == 1 else b"lost"
                    own.close()
                else:
                    answer = b"forked"
        except BaseException as exc:
            answer = repr(exc).encode()
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"forked"
    assert os.waitpid(pid, 0)[1] == 0
    assert magazines.fire("m", 1, "me").total() == 1


def test_the_owner_names_this_process(store: Store) -> None:
    assert str(os.getpid()) in store.owner


def test_stats_have_figures(store: Store, magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(3))
    magazines.delete("m", pointers(magazines.fire("m", 3, "me")))
    stats = store.stats()
    assert (stats["loads"], stats["fires"], stats["deletes"]) == (1, 1, 1)
    assert int(stats["used_bytes"]) >= 0
