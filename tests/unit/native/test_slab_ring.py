"""The slab and the ring on their own."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis import errors
from ignis.native import BufferRef, Ring, Slab


def ref(n: int) -> tuple[int, int, int, int]:
    return (n, n + 1, n % 65536, n * 2)


def test_slab_reads_back_what_was_written() -> None:
    slab = Slab(((256, 2), (1024, 2)))
    a, b = slab.allocate(100), slab.allocate(1000)
    slab.write(a, b"a" * 100)
    slab.write(b, bytearray(b"b" * 1000))
    assert slab.read(a) == b"a" * 100
    assert slab.read(b) == b"b" * 1000
    stats = slab.stats()
    assert (stats["active"], stats["allocated"], stats["released"], stats["bytes"]) == (2, 2, 0, 1280)
    assert [c["active"] for c in stats["classes"]] == [1, 1]
    with pytest.raises(ValueError, match="do not fit"):
        slab.write(a, b"x" * 101)


def test_slab_errors() -> None:
    slab = Slab(((256, 2),))
    with pytest.raises(errors.NoSizeClassError):
        slab.allocate(257)
    a, b = slab.allocate(1), slab.allocate(1)
    with pytest.raises(errors.PoolExhaustedError):
        slab.allocate(1)
    slab.release(a)
    with pytest.raises(errors.DoubleReleaseError):
        slab.release(a)
    c = slab.allocate(1)
    with pytest.raises(errors.StaleReferenceError):
        slab.release(a)
    with pytest.raises(errors.StaleReferenceError):
        slab.read(a)
    with pytest.raises(errors.ForeignReferenceError):
        slab.release(BufferRef(2, 1, 0, 1))
    with pytest.raises(errors.ForeignReferenceError):
        slab.read(c._replace(length=257))
    slab.release(b)
    slab.close()
    with pytest.raises(errors.ClosedError):
        slab.allocate(1)
    slab.close()


@pytest.mark.parametrize(
    "classes", [(), ((0, 1),), ((256, 0),), ((256, 1), (256, 1)), ((512, 1), (256, 1)), ((64, 1),) * 17]
)
def test_slab_refuses_classes(classes: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="size_classes"):
        Slab(classes)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1100)), max_size=200))
@settings(max_examples=60, deadline=None)
def test_slab_against_a_model(steps: list[tuple[bool, int]]) -> None:
    slab = Slab(((128, 4), (512, 3), (1024, 2)))
    live: list[tuple[BufferRef, bytes]] = []
    for allocate, number in steps:
        if allocate:
            try:
                new = slab.allocate(number)
            except errors.PoolExhaustedError:
                assert sum(1 for r, _ in live if (r.length > 512) == (number > 512)) > 0
                continue
            except errors.NoSizeClassError:
                assert number > 1024
                continue
            assert all(new.slot != r.slot for r, _ in live)
            data = bytes([number % 256]) * number
            slab.write(new, data)
            live.append((new, data))
        elif live:
            old, data = live.pop(number % len(live))
            assert slab.read(old) == data
            slab.release(old)
    assert slab.stats()["active"] == len(live)


@pytest.mark.parametrize("start", [0, 2**32 - 2, 2**64 - 2])
def test_ring_fills_and_drains_over_the_wrap(start: int) -> None:
    ring = Ring(4, start=start)
    for _ in range(3):
        assert all(ring.try_push(ref(i), i) for i in range(4))
        assert not ring.try_push(ref(9))
        assert len(ring) == 4
        assert [ring.try_pop() for _ in range(5)] == [*((ref(i), i) for i in range(4)), None]


def test_ring_reserve_commit_and_peek_release() -> None:
    ring = Ring(4)
    assert ring.reserve(9) == 4
    assert ring.peek(4) == []
    ring.commit([(ref(1), 1), (ref(2), 2)])
    with pytest.raises(ValueError, match="reserved"):
        ring.commit([(ref(3), 3)])
    assert ring.peek(1) == [(ref(1), 1)]
    assert ring.peek(4) == [(ref(1), 1), (ref(2), 2)]
    with pytest.raises(ValueError, match="peeked"):
        ring.release(3)
    ring.release(1)
    assert ring.pop_many(9) == [(ref(2), 2)]


@pytest.mark.parametrize("capacity", [0, 3, -4, 2**25])
def test_ring_refuses_capacity(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Ring(capacity)


@given(st.lists(st.integers(-9, 9), max_size=100), st.sampled_from([0, 2**64 - 5, 2**32 - 5]))
@settings(max_examples=60, deadline=None)
def test_ring_against_a_model(steps: list[int], start: int) -> None:
    ring, model, n = Ring(8, start=start), deque[int](), 0
    for step in steps:
        if step > 0:
            pushed = ring.push_many([(ref(n + i), (n + i) % 65536) for i in range(step)])
            assert pushed == min(step, 8 - len(model))
            model.extend(range(n, n + pushed))
            n += pushed
        else:
            taken = ring.pop_many(-step)
            assert taken == [(ref(model[0] if not taken else i), i % 65536) for i in list(model)[: len(taken)]]
            assert len(taken) == min(-step, len(model))
            for _ in taken:
                model.popleft()
        assert len(ring) == len(model)
