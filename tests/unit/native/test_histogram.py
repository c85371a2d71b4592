"""Durations by bucket: what falls where, what stands beside messages, and what odd callers get."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import time

import pytest

from ignis.native import encode_record, new_id
from ignis.native.histogram import HISTOGRAM_BYTES, Histogram

WAIT_S = 60.0  # not of tests.support: the sanitized copy has this folder alone

BOUNDS = (0.1, 1.0, 10.0)
LONGEST_S = 1e9


def test_a_bound_is_of_its_bucket() -> None:
    times = Histogram(BOUNDS)
    for seconds in (0.05, 0.1, 0.100001, 1, 9.9, 10, 10.1):
        times.add(seconds)
    times.add(0.5, 4)
    figures = times.figures()
    assert figures["counts"] == [2, 6, 2, 1]
    assert math.isclose(figures["sum_s"], 0.05 + 0.1 + 0.100001 + 1 + 9.9 + 10 + 10.1 + 2)


def test_ages_of_messages() -> None:
    now_s = 1_800_000_000.0
    ages_s = (0.01, 0.5, 5, 50)
    records: list[bytes | None] = [
        encode_record(b"body", id=new_id(), enqueued_at_us=round((now_s - age_s) * 1e6)) for age_s in ages_s
    ]
    times = Histogram(BOUNDS)
    times.add_ages(records, now_s)
    assert times.figures()["counts"] == [1, 1, 1, 1]
    assert math.isclose(times.figures()["sum_s"], sum(ages_s), abs_tol=1e-5)
    times.add_ages(tuple(records), now_s, 1, 3)
    assert times.figures()["counts"] == [1, 2, 2, 1]
    times.add_ages([None, b"", b"x" * 35], now_s)
    times.add_ages(records, now_s, 4, 9)
    times.add_ages(records, now_s, 3, 3)
    assert times.figures()["counts"] == [1, 2, 2, 1], "what is no message has no age"


def test_a_clock_that_was_set_back_counts_as_none() -> None:
    times = Histogram(BOUNDS)
    times.add_ages([encode_record(b"", id=new_id(), enqueued_at_us=10**15)], 1.0)
    for seconds in (-5.0, float("nan")):
        times.add(seconds)
    assert times.figures() == {"counts": [3, 0, 0, 0], "sum_s": 0}


def test_what_never_ends_does_not_spoil_the_sum() -> None:
    times = Histogram(BOUNDS)
    times.add(math.inf)
    assert times.figures() == {"counts": [0, 0, 0, 1], "sum_s": LONGEST_S}


def test_since_a_moment() -> None:
    times = Histogram([3_600.0])
    times.add_since(time.monotonic() - 7_200)
    times.add_since(time.monotonic())
    figures = times.figures()
    assert figures["counts"] == [1, 1]
    assert 7_200 <= figures["sum_s"] < 7_200 + 2 * WAIT_S


def test_messages_are_counted_beside() -> None:
    times = Histogram(BOUNDS)
    times.add_since(time.monotonic(), 1)
    times.add_since(time.monotonic())
    times.count(10)
    assert (times.messages, sum(times.figures()["counts"])) == (11, 2)
    with pytest.raises(OverflowError):
        times.count(-1)
    with pytest.raises(AttributeError):
        times.messages = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    "bounds", [(), (0.0,), (1.0, 1.0), (2.0, 1.0), (math.nan,), (math.inf,), (LONGEST_S,), tuple(range(1, 17))]
)
def test_bounds_that_are_none(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram(bounds)


def test_odd_callers() -> None:
    times = Histogram(BOUNDS)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            act(times)
    for wrong in (None, "1", [1]):
        with pytest.raises(TypeError):
            times.add(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            times.add_since(wrong)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        times.add(1.0, -1)
    with pytest.raises(TypeError):
        times.add_ages(None, 1.0)  # type: ignore[arg-type]
    Histogram.__init__(times)
    assert times.figures()["counts"] == [0, 0, 0, 0]


def test_threads_lose_no_count() -> None:
    times = Histogram(BOUNDS)
    records = [encode_record(b"", id=new_id(), enqueued_at_us=1)] * 100
    rounds, threads = 200, 4

    def work() -> None:
        for _ in range(rounds):
            times.add_ages(records, 1.0)
            times.add(0.01, 3)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join(WAIT_S)
    assert times.figures()["counts"] == [3 * rounds * threads, len(records) * rounds * threads, 0, 0]


def test_what_another_has_counted_is_taken_once() -> None:
    memory = bytearray(HISTOGRAM_BYTES)
    there, seen, all_ = Histogram(BOUNDS, memory), Histogram(BOUNDS, memory), Histogram(BOUNDS)
    there.add(0.5)
    there.add(5, 2)
    all_.add(50)
    all_.take(seen)
    all_.take(seen)
    assert all_.figures() == {"counts": [0, 1, 2, 1], "sum_s": 60.5}
    there.add(0.05)
    del there
    all_.take(seen)
    assert all_.figures()["counts"] == [1, 1, 2, 1]
    assert math.isclose(all_.figures()["sum_s"], 60.55)
    with pytest.raises(ValueError, match="other bounds"):
        all_.take(Histogram([1.0]))


def test_memory_that_it_cannot_count_in() -> None:
    with pytest.raises(BufferError):
        Histogram(BOUNDS, bytes(HISTOGRAM_BYTES))
    with pytest.raises(ValueError, match="takes 136 bytes"):
        Histogram(BOUNDS, bytearray(HISTOGRAM_BYTES - 1))
    with pytest.raises(ValueError, match="multiple of 8"):
        Histogram(BOUNDS, memoryview(bytearray(HISTOGRAM_BYTES + 8))[1:])
