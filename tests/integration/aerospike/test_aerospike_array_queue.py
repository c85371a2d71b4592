"""Array queues on a real Aerospike server: the module, the record's layout, and the record-size limit."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.array_queue import ArrayQueue
from ignis.errors import RecordTooLargeError, StoreError
from ignis.storage import open_store
from ignis.storage.aerospike import array_queues
from ignis.storage.aerospike.store import AerospikeStore
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

LUA = Path(ignis.__file__).with_name("array_queue.lua")


@pytest.fixture
def client_id() -> str:
    return f"a{os.getpid()}"


@pytest.fixture
def store(client_id: str) -> Iterator[AerospikeStore]:
    with open_store(aerospike_support.url(client_id=client_id)) as store:
        assert isinstance(store, AerospikeStore)
        yield store
    aerospike_support.forget(aerospike_support.address(), [client_id])


@pytest.fixture
def client() -> Iterator[Any]:
    client = aerospike_support.raw_client()
    yield client
    client.close()


@pytest.fixture
def key(client_id: str) -> tuple[str, str, str]:
    return aerospike_support.address().partition("/")[2], f"local_{client_id}_ignis_arrays", "q"


def limit_bytes(store: AerospikeStore) -> int:
    limit = store.connection.record_limit()
    assert limit
    return limit


def modules(client: Any) -> dict[str, str]:
    """Registered modules of ours: name -> hash."""
    found = {one["name"]: bytes(one["hash"]).decode() for one in client.udf_list()}
    return {name: digest for name, digest in found.items() if name.startswith("ignis_array_queue_")}


def test_the_module_says_which_one_it_is(store: AerospikeStore, client: Any) -> None:
    digest = hashlib.sha256(LUA.read_bytes()).hexdigest()[:8]
    assert array_queues.module_name() == f"ignis_array_queue_v{array_queues.LUA_VERSION}_{digest}"
    assert ArrayQueue(store, "q").size() == 0
    assert f"{array_queues.module_name()}.lua" in modules(client)


def test_registering_leaves_no_file_behind(
    store: AerospikeStore, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_module(client)
    monkeypatch.chdir(tmp_path)
    ArrayQueue(store, "q").enqueue(1)
    assert list(tmp_path.iterdir()) == []


def remove_module(client: Any) -> None:
    name = f"{array_queues.module_name()}.lua"
    if name in modules(client):
        client.udf_remove(name)
        eventually(lambda: name not in modules(client))


def test_a_module_that_was_removed_comes_back(store: AerospikeStore, client: Any) -> None:
    queue = ArrayQueue(store, "q")
    queue.enqueue_many([1, 2, 3])
    for call in (queue.dequeue, queue.size, queue.peek, lambda: queue.enqueue(4)):
        remove_module(client)
        call()
        assert f"{array_queues.module_name()}.lua" in modules(client)
    assert queue.dequeue_many(9) == [2, 3, 4]


def test_another_text_is_another_module(store: AerospikeStore, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance with a newer module does not replace what an older one is running; both work on the same queue."""
    old = ArrayQueue(store, "q")
    old.enqueue(1)
    before = array_queues.module_name()
    text = LUA.read_bytes() + b"-- changed\n"
    digest = hashlib.sha256(text).hexdigest()[:8]
    monkeypatch.setattr(array_queues, "module_text", lambda: text)
    array_queues.module_name.cache_clear()
    try:
        assert array_queues.module_name() == f"ignis_array_queue_v{array_queues.LUA_VERSION}_{digest}" != before
        with open_store(store.url, client_id=f"a{os.getpid()}") as other:
            assert ArrayQueue(other, "q").enqueue(2) == 2
        assert {f"{before}.lua", f"{array_queues.module_name()}.lua"} <= modules(client).keys()
        remove_module(client)
    finally:
        array_queues.module_name.cache_clear()
    assert old.dequeue_many(9) == [1, 2]


def test_a_module_that_the_server_does_not_take(client_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_queues, "module_text", lambda: b"function broken( return")
    array_queues.module_name.cache_clear()
    try:
        with (
            open_store(aerospike_support.url(client_id=client_id)) as store,
            pytest.raises(StoreError, match=r"compile_error;file=ignis_array_queue_v\d+_"),
        ):
            ArrayQueue(store, "q").size()
    finally:
        array_queues.module_name.cache_clear()


def test_as_an_operator_calls_it(store: AerospikeStore, client: Any, key: tuple[str, str, str]) -> None:
    """What ``execute <module>.enqueue('Q', 99) on ns.set where pk = 'q'`` sends."""

    def execute(function: str, *arguments: Any) -> Any:
        return client.apply(key, array_queues.module_name(), function, list(arguments))

    queue = ArrayQueue(store, "q")
    assert queue.size() == 0
    assert execute("enqueue", "Q", 99) == 1
    assert execute("enqueue", "Q", "x") == 2
    assert queue.peek_many(9) == [99, "x"]
    assert execute("dequeue", "Q") == 99
    assert execute("size", "Q") == 1
    assert queue.dequeue() == "x"
    assert execute("dequeue", "Q") is None


def test_the_record(store: AerospikeStore, client: Any, key: tuple[str, str, str]) -> None:
    queue = ArrayQueue(store, "q")
    assert (queue.size(), queue.dequeue(), queue.peek()) == (0, None, None)
    assert client.exists(key)[1] is None, "looking at a queue makes no record"
    queue.enqueue_many([1, 2, 3, 4])
    _, meta, bins = client.get(key)
    assert bins == {"Q": {"size": 4, "pos": 0, "rear": [1, 2, 3, 4]}}
    assert meta["ttl"] == 0xFFFF_FFFF, "for ever"
    assert queue.dequeue() == 1
    assert client.get(key)[2] == {"Q": {"size": 3, "pos": 2, "front": [4, 2, 3]}}
    queue.enqueue(5)
    assert queue.dequeue() == 2
    assert client.get(key)[2] == {"Q": {"size": 3, "pos": 3, "front": [4, 3], "rear": [5]}}


def test_a_queue_of_the_plain_two_buffer_module_goes_on(
    store: AerospikeStore, client: Any, key: tuple[str, str, str]
) -> None:
    """In every state that such a module can leave."""
    for total, taken, behind in itertools.product(range(1, 7), range(7), range(3)):
        if taken > total:
            continue
        front, pos = list(range(total)), 1
        for _ in range(taken):  # as published: the last value moves into the place of the one that leaves
            if pos < len(front):
                front[pos - 1] = front[-1]
                pos += 1
            front.pop()
        rear = [total + number for number in range(behind)]
        stored: dict[str, Any] = {"size": len(front) + behind, "pos": pos}
        stored.update({"front": front} if front else {}, **({"rear": rear} if rear else {}))
        client.put(key, {"Q": stored})
        queue = ArrayQueue(store, "q")
        expected = list(range(taken, total + behind))
        assert queue.peek_many(99) == expected, stored
        assert queue.dequeue_many(99) == expected, stored
        assert queue.size() == 0


def test_every_sequence_of_calls(client: Any, store: AerospikeStore, key: tuple[str, str, str]) -> None:
    """All 6,561 sequences of eight calls of three kinds, in one go beside a deque."""
    queue = ArrayQueue(store, "q")
    queue.size()
    number = 0

    def execute(function: str, *arguments: Any) -> Any:
        return client.apply(key, array_queues.module_name(), function, ["Q", *arguments])

    for calls in itertools.product((0, 1, 2), repeat=8):
        model: deque[int] = deque()
        for call in calls:
            if call == 0:
                number += 1
                model.append(number)
                assert execute("enqueue", number) == len(model)
            elif call == 1:
                assert execute("dequeue") == (model.popleft() if model else None)
            else:
                assert execute("dequeue_many", 2) == [model.popleft() for _ in range(min(2, len(model)))]
        assert execute("peek", 99) == list(model)
        assert execute("dequeue_many", 99) == list(model)


def test_a_queue_that_grows_too_large_loses_nothing(store: AerospikeStore) -> None:
    limit = limit_bytes(store)
    queue, piece = ArrayQueue(store, "q"), b"x" * (limit // 8)
    stored = 0

    def fill() -> None:
        nonlocal stored
        while True:
            stored = queue.enqueue([stored, piece])

    with pytest.raises(RecordTooLargeError) as caught:
        fill()
    assert stored in (6, 7, 8)
    assert caught.value.limit_bytes == limit
    assert limit < caught.value.size_bytes < limit + 2 * len(piece)
    assert caught.value.code == "record_too_large"
    assert queue.size() == stored
    assert [queue.dequeue()[0] for _ in range(2)] == [0, 1]
    assert queue.enqueue([stored, piece]) == stored - 1
    assert [one[0] for one in queue.dequeue_many(99)] == list(range(2, stored + 1))


def test_many_that_are_too_large_are_refused_as_a_whole(store: AerospikeStore) -> None:
    limit = limit_bytes(store)
    queue = ArrayQueue(store, "q")
    queue.enqueue(1)
    with pytest.raises(RecordTooLargeError) as caught:
        queue.enqueue_many([2, b"x" * (limit // 2), b"y" * (limit // 2), 3])
    assert caught.value.size_bytes > limit
    with pytest.raises(RecordTooLargeError):
        ArrayQueue(store, "new").enqueue(b"x" * limit)
    assert queue.dequeue_many(9) == [1]
    assert ArrayQueue(store, "new").size() == 0


def test_what_is_no_queue_is_left_alone(store: AerospikeStore, client: Any, key: tuple[str, str, str]) -> None:
    for value in (5, "text", [1, 2], {"a": 1}, b"bytes"):
        client.put(key, {"Q": value})
        for call in (
            lambda: ArrayQueue(store, "q").enqueue(1),
            ArrayQueue(store, "q").dequeue,
            ArrayQueue(store, "q").size,
        ):
            with pytest.raises(StoreError, match="bin Q holds no queue"):
                call()
        assert client.get(key)[2] == {"Q": value}
    assert ArrayQueue(store, "q", "R").enqueue(1) == 1
    assert client.get(key)[2]["Q"] == b"bytes"


def test_a_bin_name_that_the_server_would_drop(store: AerospikeStore, client: Any, key: tuple[str, str, str]) -> None:
    import aerospike

    ArrayQueue(store, "q").size()
    with pytest.raises(aerospike.exception.UDFError, match="bin name of 16 bytes"):
        client.apply(key, array_queues.module_name(), "enqueue", ["Q" * 16, 1])


def test_several_clients_lose_and_invent_nothing(store: AerospikeStore, client_id: str) -> None:
    seen, lock, done = Counter[int](), threading.Lock(), threading.Event()

    def produce(number: int) -> None:
        with open_store(store.url, client_id=client_id) as own:
            queue = ArrayQueue(own, "q")
            for one in range(0, 300, 3):
                queue.enqueue_many([1_000 * number + one + step for step in range(3)])

    def consume() -> None:
        with open_store(store.url, client_id=client_id) as own:
            queue = ArrayQueue(own, "q")
            while True:
                finished = done.is_set()
                found = queue.dequeue_many(7)
                with lock:
                    seen.update(found)
                if finished and not found:
                    return

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join(WAIT_S)
    done.set()
    for thread in consumers:
        thread.join(WAIT_S)
    assert seen == Counter(1_000 * number + one for number in range(3) for one in range(300))
