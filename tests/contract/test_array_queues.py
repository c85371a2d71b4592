"""Array queues on every store, beside ``collections.deque``."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ignis.array_queue import ArrayQueue
from ignis.errors import ConfigError, ForkedHandleError, InvalidMessageError, InvalidNameError, MessageTooLargeError
from ignis.storage.base import Store
from tests.contract.support import Kind
from tests.support import WAIT_S

EXAMPLES = int(os.environ.get("IGNIS_TEST_MODEL_EXAMPLES", "10"))

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
ints = st.integers(-(1 << 63), (1 << 63) - 1)
plain = st.one_of(ints, st.booleans(), st.floats(allow_nan=False), texts, st.binary(max_size=20))
nested = st.recursive(
    plain | st.none(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | ints, inner, max_size=4)
)
values = nested.filter(lambda value: value is not None)


def same(one: Any, other: Any) -> bool:
    """Equal, types included: True is not 1, nor 1 1.0."""
    if isinstance(one, list):
        return type(other) is list and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return type(other) is dict and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def test_first_in_first_out(store: Store) -> None:
    queue = ArrayQueue(store, "q")
    assert (queue.size(), queue.dequeue(), queue.peek()) == (0, None, None)
    assert (queue.dequeue_many(3), queue.peek_many(3)) == ([], [])
    assert [queue.enqueue(number) for number in range(3)] == [1, 2, 3]
    assert queue.enqueue_many([3, 4, 5, 6]) == 7
    assert queue.enqueue_many([]) == 7
    assert queue.peek() == 0
    assert queue.peek_many(4) == [0, 1, 2, 3]
    assert queue.peek_many(100) == list(range(7))
    assert len(queue) == 7
    assert queue.dequeue() == 0
    assert queue.dequeue_many(3) == [1, 2, 3]
    assert queue.enqueue(7) == 4
    assert queue.peek_many(100) == [4, 5, 6, 7]
    assert queue.dequeue_many(100) == [4, 5, 6, 7]
    assert queue.dequeue() is None
    assert queue.size() == 0
    assert queue


def test_order_holds_however_the_calls_alternate(store: Store) -> None:
    """Every sequence of up to eight puts and gets: all places where the buffers are swapped or turned round."""
    for length in range(1, 9):
        queue, model, number = ArrayQueue(store, f"q{length}"), deque[int](), 0
        for choice in range(1 << length):
            for step in range(length):
                if choice >> step & 1:
                    number += 1
                    model.append(number)
                    assert queue.enqueue(number) == len(model)
                else:
                    assert queue.dequeue() == (model.popleft() if model else None)
            if length > 6:  # that they come out in order shows as much, and is quicker
                continue
            assert queue.peek_many(1_000) == list(model)
        assert queue.dequeue_many(1_000) == list(model)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1_001])
def test_order_holds_when_a_long_front_is_used_up(store: Store, count: int) -> None:
    queue = ArrayQueue(store, "q")
    queue.enqueue_many(range(count))
    seen = []
    for number in range(count):
        seen += queue.dequeue_many(1 + number % 3)
        queue.enqueue(count + number)
    seen += queue.dequeue_many(10 * count)
    assert seen == list(range(2 * count))


def test_queues_are_apart(kind: Kind) -> None:
    one, other = kind.open(), kind.open(farm_id="elsewhere")
    queues = [ArrayQueue(one, "a"), ArrayQueue(one, "a", "R"), ArrayQueue(one, "b"), ArrayQueue(other, "a")]
    for number, queue in enumerate(queues):
        queue.enqueue(number)
    assert [queue.dequeue_many(5) for queue in queues] == [[0], [1], [2], [3]]


def test_content_outlives_the_handle(kind: Kind) -> None:
    ArrayQueue(kind.open(), "q").enqueue_many([1, "zwei", b"drei", [4, None], {"5": 5}])
    assert ArrayQueue(kind.reopen(), "q").dequeue_many(2) == [1, "zwei"]
    assert ArrayQueue(kind.reopen(), "q").dequeue_many(9) == [b"drei", [4, None], {"5": 5}]


def test_what_was_put_in_is_a_copy(store: Store) -> None:
    queue, value = ArrayQueue(store, "q"), [1]
    queue.enqueue(value)
    value.append(2)
    queue.peek().append(3)
    assert queue.dequeue() == [1]


def test_values_come_back_as_they_were(kind: Kind) -> None:
    queue = ArrayQueue(kind.open(), "q")

    @settings(max_examples=4 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(values, min_size=1, max_size=5))
    def check(many: list[Any]) -> None:
        queue.enqueue_many(many)
        assert same(many, queue.peek_many(99))
        assert same(many[0], queue.dequeue())
        assert same(many[1:], queue.dequeue_many(99))

    check()


@pytest.mark.parametrize(
    "value",
    [
        None, object(), (1,), {1}, 1 << 63, -(1 << 63) - 1, "a\0b", "\ud800", bytearray(b"x"), [object()], [[(1,)]],
        {"a": 1 << 64}, {b"a": 1}, {True: 1}, {1.5: 1}, {"a\0": 1}, {1 << 63: 1}, type("Sub", (int,), {})(1),
    ],
)  # fmt: skip
def test_what_is_no_value(store: Store, value: Any) -> None:
    queue = ArrayQueue(store, "q")
    queue.enqueue(1)
    with pytest.raises(InvalidMessageError):
        queue.enqueue_many([2, value])
    assert queue.peek_many(9) == [1]


def test_nesting_has_a_limit(store: Store) -> None:
    deep: list[Any] = []
    for _ in range(31):
        deep = [deep]
    queue = ArrayQueue(store, "q")
    queue.enqueue(deep)
    assert queue.dequeue() == deep
    with pytest.raises(InvalidMessageError, match="deeper than 32"):
        queue.enqueue([deep])


def test_names_and_limits(store: Store) -> None:
    with pytest.raises(InvalidNameError):
        ArrayQueue(store, "a b")
    for name in ("", "x" * 16, "ü" * 8, "a\0"):
        with pytest.raises(ConfigError, match="1 to 15 bytes"):
            ArrayQueue(store, "q", name)
    for limit in (0, -1):
        with pytest.raises(ConfigError):
            ArrayQueue(store, "q").dequeue_many(limit)
        with pytest.raises(ConfigError):
            ArrayQueue(store, "q").peek_many(limit)


def test_threads_lose_and_invent_nothing(kind: Kind) -> None:
    store, seen, lock = kind.open(), Counter[int](), threading.Lock()
    produced = [threading.Thread(target=_produce, args=(store, number)) for number in range(3)]
    done = threading.Event()
    problems: list[str] = []

    def consume() -> None:
        queue, last = ArrayQueue(store, "q"), dict.fromkeys(range(3), -1)
        while True:
            finished = done.is_set()
            found = queue.dequeue_many(4)
            for value in found:
                if value % 1_000 <= last[value // 1_000]:
                    problems.append(f"{value} after {last}")
                last[value // 1_000] = value % 1_000
            with lock:
                seen.update(found)
            if finished and not found:
                return

    consumed = [threading.Thread(target=consume) for _ in range(3)]
    for thread in produced + consumed:
        thread.start()
    for thread in produced:
        thread.join(2 * WAIT_S)
    done.set()
    for thread in consumed:
        thread.join(2 * WAIT_S)
    assert not problems
    assert seen == Counter(1_000 * number + one for number in range(3) for one in range(60))


def _produce(store: Store, number: int) -> None:
    queue = ArrayQueue(store, "q")
    for one in range(60):
        queue.enqueue(1_000 * number + one)


def test_a_forked_child_is_refused(store: Store) -> None:
    queue = ArrayQueue(store, "q")
    queue.enqueue(1)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            queue.dequeue()
        except ForkedHandleError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert queue.dequeue() == 1


def fitting(values: Iterable[Any], limit: int, max_bytes: int | None, max_value_bytes: int | None) -> list[Any] | None:
    """What a store returns of them; None when it refuses."""
    found: list[Any] = []
    total = 0
    for value in itertools.islice(values, limit):
        size = len(msgspec.msgpack.encode(value))
        if max_value_bytes is not None and size > max_value_bytes:
            return found or None
        total += size
        if found and max_bytes is not None and total > max_bytes:
            break
        found.append(value)
    return found


def test_no_more_comes_than_there_is_room_for(store: Store) -> None:
    """And no more is removed. One at least is, however large."""
    if not store.arrays.bounds_answers:
        pytest.skip("an array is one record of this store")
    store.arrays.enqueue("q", "Q", ["x" * 100] * 3 + ["y" * 1_000, "z"])
    for max_bytes, count in ((1, 1), (203, 1), (204, 2), (1_300, 3), (1_310, 4), (1_311, 5), (None, 5)):
        assert len(store.arrays.peek("q", "Q", 9, max_bytes=max_bytes)) == count
    assert store.arrays.dequeue("q", "Q", 9, max_bytes=204) == ["x" * 100] * 2
    assert store.arrays.dequeue("q", "Q", 9, max_bytes=500) == ["x" * 100]
    assert store.arrays.dequeue("q", "Q", 9, max_bytes=500) == ["y" * 1_000]
    assert store.arrays.dequeue("q", "Q", 9, max_bytes=500) == ["z"]
    assert store.arrays.dequeue("q", "Q", 9, max_bytes=500) == []


def test_a_value_that_is_too_large_stays(store: Store) -> None:
    if not store.arrays.bounds_answers:
        pytest.skip("an array is one record of this store")
    store.arrays.enqueue("q", "Q", [1, "y" * 1_000, 2])
    assert store.arrays.peek("q", "Q", 9, max_value_bytes=500) == [1]
    assert store.arrays.dequeue("q", "Q", 9, max_value_bytes=500) == [1]
    for read in (store.arrays.peek, store.arrays.dequeue):
        with pytest.raises(MessageTooLargeError) as raised:
            read("q", "Q", 9, max_value_bytes=500)
        assert (raised.value.size_bytes, raised.value.limit_bytes, raised.value.part) == (1_003, 500, "value")
    assert store.arrays.size("q", "Q") == 2
    assert store.arrays.dequeue("q", "Q", 9, max_value_bytes=1_003) == ["y" * 1_000, 2]


class QueueMachine(RuleBasedStateMachine):
    """Two queues in one name, beside two deques."""

    kind_name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ignis-array-"))
        self.kind = Kind(self.kind_name, self.root)
        self.models: dict[str, deque[Any]] = {"Q": deque(), "R": deque()}

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = store = self.kind.reopen()
        self.queues = {name: ArrayQueue(store, "q", name) for name in self.models}

    bins = st.sampled_from(["Q", "R"])

    @rule(name=bins, value=values)
    def enqueue(self, name: str, value: Any) -> None:
        self.models[name].append(value)
        assert self.queues[name].enqueue(value) == len(self.models[name])

    @rule(name=bins, many=st.lists(values, max_size=6))
    def enqueue_many(self, name: str, many: list[Any]) -> None:
        self.models[name].extend(many)
        assert self.queues[name].enqueue_many(many) == len(self.models[name])

    @rule(name=bins)
    def dequeue(self, name: str) -> None:
        expected = self.models[name].popleft() if self.models[name] else None
        assert same(expected, self.queues[name].dequeue())

    @rule(name=bins, limit=st.integers(1, 8))
    def dequeue_many(self, name: str, limit: int) -> None:
        model = self.models[name]
        expected = [model.popleft() for _ in range(min(limit, len(model)))]
        assert same(expected, self.queues[name].dequeue_many(limit))

    @rule(name=bins, limit=st.integers(1, 8))
    def peek_many(self, name: str, limit: int) -> None:
        assert same(list(self.models[name])[:limit], self.queues[name].peek_many(limit))

    @rule(
        name=bins,
        limit=st.integers(1, 8),
        max_bytes=st.none() | st.integers(1, 60),
        max_value_bytes=st.none() | st.integers(1, 20),
        peeks=st.booleans(),
    )
    def read_bounded(
        self, name: str, limit: int, max_bytes: int | None, max_value_bytes: int | None, peeks: bool
    ) -> None:
        arrays = self.store.arrays
        if not arrays.bounds_answers:
            max_bytes = max_value_bytes = None
        expected = fitting(self.models[name], limit, max_bytes, max_value_bytes)
        read = arrays.peek if peeks else arrays.dequeue
        if expected is None:
            with pytest.raises(MessageTooLargeError):
                read("q", name, limit, max_bytes=max_bytes, max_value_bytes=max_value_bytes)
            return
        assert same(expected, read("q", name, limit, max_bytes=max_bytes, max_value_bytes=max_value_bytes))
        for _ in [] if peeks else expected:
            self.models[name].popleft()

    @rule()
    def reopen(self) -> None:
        self.open()

    @invariant()
    def sizes_agree(self) -> None:
        for name, model in self.models.items():
            if hasattr(self, "queues"):
                assert self.queues[name].size() == len(model)

    def teardown(self) -> None:
        try:
            self.kind.forget()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


@pytest.mark.parametrize("name", ["memory", "embedded", "aerospike", "broker"])
def test_stores_do_what_a_deque_does(name: str) -> None:
    machine = type(f"{name.title()}Queue", (QueueMachine,), {"kind_name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
