"""The outbox of messages with times: each keeps its own, and only those that may go to a store together are drained together."""

from __future__ import annotations

import time
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis.errors import ChannelFullError
from ignis.native import ANY_SHARD, Outbox, Record

DRAIN = (1 << 20, 0, 3, 0)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from([ANY_SHARD, 0, 1, 2]),
                st.sampled_from([None, 0, 7, 1 << 47]),
                st.sampled_from([None, 0, 5]),
            ),
            st.integers(1, 20),
        ),
        max_size=150,
    ),
    st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_each_message_leaves_the_ring_with_its_times(
    steps: list[tuple[int, int | None, int | None] | int], chunk_records: int
) -> None:
    outbox = Outbox(capacity=16, max_message_bytes=64, timed=True)
    inside: deque[tuple[bytes, int, int | None, int | None]] = deque()

    def drain(most: int) -> None:
        count, batches, dues, until = outbox.drain_timed(most, *DRAIN, chunk_records)
        assert count == sum(batch.count for _, batch in batches) <= most
        together = [inside.popleft() for _ in range(count)]
        assert {(one[2] is None, one[3]) for one in together} <= {(dues is None, until)}
        if 0 < count < most and inside:  # it ended where the next one does not go with them
            assert (inside[0][2] is None, inside[0][3]) != (dues is None, until)
        expected = {body: (shard, due_ms) for body, shard, due_ms, _ in together}
        for number, (shard, batch) in enumerate(batches):
            times = [None] * batch.count if dues is None else dues[number]
            for record, due_ms in zip(batch.records(), times, strict=True):
                asked, theirs = expected.pop(Record(record).body)
                assert (theirs, asked in (shard, ANY_SHARD)) == (due_ms, True)
        assert not expected
        outbox.settle(count)

    for number, step in enumerate(steps):
        if isinstance(step, int):
            drain(step)
            continue
        shard, due_ms, until = step
        try:
            outbox.send_timed(b"%d" % number, shard, 0, b"", b"", 0.0, due_ms, until)
        except ChannelFullError:
            assert len(inside) == 16
            continue
        inside.append((b"%d" % number, shard, due_ms, until))
    while inside:
        drain(100)
    assert outbox.drain_timed(100, *DRAIN) == (0, [], None, None)


def test_a_delay_ends_with_the_first_millisecond_behind_it() -> None:
    outbox = Outbox(capacity=1024, timed=True, of_boottime_ms=1_000_000)
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    for delay_s in (0.0, 1e-7, 0.0004, 0.001, 1.5, 86_400.0, 36_500 * 86_400.0):
        before_ns = time.clock_gettime_ns(clock)
        outbox.send_timed(b"", 0, 0, b"", b"", 0.0, None, None, delay_s)
        after_ns = time.clock_gettime_ns(clock)
        _, _, dues, _ = outbox.drain_timed(1, *DRAIN)
        assert dues is not None
        due_ns = (dues[0][0] - 1_000_000) * 1_000_000 - round(delay_s * 1e9)
        assert before_ns - 2_000 <= due_ns < after_ns + 1_000_000


def test_a_message_without_times_among_them() -> None:
    outbox = Outbox(capacity=16, timed=True)
    outbox.send_timed(b"a", 0, 0, b"", b"", 0.0, 5)
    outbox.send(b"b", 0, 0)
    assert outbox.drain_timed(10, *DRAIN)[2:] == ([[5]], None)
    assert outbox.drain_timed(10, *DRAIN)[2:] == (None, None)


def test_what_cannot_be() -> None:
    plain = Outbox(capacity=16)
    with pytest.raises(ValueError, match="without times"):
        plain.send_timed(b"", 0, 0, b"", b"", 0.0, 5)
    with pytest.raises(ValueError, match="without times"):
        plain.drain_timed(1, *DRAIN)
    timed = Outbox(capacity=16, timed=True, of_boottime_ms=0)
    for delay_s in (-1.0, float("nan"), float("inf"), 1e10):
        with pytest.raises(ValueError, match="delay_s"):
            timed.send_timed(b"", 0, 0, b"", b"", 0.0, None, None, delay_s)
    for due_ms in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            timed.send_timed(b"", 0, 0, b"", b"", 0.0, due_ms)
    with pytest.raises(TypeError):  # nobody said by which clock
        Outbox(capacity=16, timed=True).send_timed(b"", 0, 0, b"", b"", 0.0, None, None, 1.0)
    assert (timed.sent, timed.drain_timed(1, *DRAIN)[0]) == (0, 0)
