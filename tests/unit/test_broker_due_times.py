"""Due times as they stand in a request: runs of records that are due at the same time."""

from __future__ import annotations

import random
import struct

import pytest

from ignis.broker.protocol.later_payloads import pack_dues, unpack_dues
from ignis.errors import ConfigError, MalformedFrameError
from ignis.native.wire import MAX_POINTERS
from ignis.storage.checks import MOST_DUE_MS


def runs(*each: tuple[int, int]) -> bytes:
    return struct.pack(">I", len(each)) + b"".join(struct.pack(">IQ", *one) for one in each)


def test_one_time_for_all_is_one_run() -> None:
    packed = pack_dues([[5] * 1_000, [5] * 7, [5]])
    assert packed == runs((1_008, 5))
    assert unpack_dues(b"head" + packed + b"rest", 4) == ([(1_008, 5)], 4 + len(packed))


def test_every_list_comes_back() -> None:
    rng = random.Random(4)
    for _ in range(200):
        dues = [
            [rng.choice((0, 1, MOST_DUE_MS, rng.randrange(MOST_DUE_MS))) for _ in range(rng.randrange(9))]
            for _ in range(rng.randrange(1, 5))
        ]
        flat = [one for many in dues for one in many]
        if not flat:
            continue
        found, end = unpack_dues(pack_dues(dues), 0)
        assert [due_ms for count, due_ms in found for _ in range(count)] == flat
        assert end == len(pack_dues(dues))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0\0\0", runs(), runs((1, 1))[:-1], runs((0, 1)), runs((1, 1), (0, 1)), runs((MAX_POINTERS, 1), (1, 1)),
        runs((0xFFFFFFFF, 1), (0xFFFFFFFF, 1)), b"\xff\xff\xff\xff" + bytes(100),
    ],
)  # fmt: skip
def test_what_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        unpack_dues(b"head" + data, 4)


def test_too_many_runs_are_refused_before_they_are_made() -> None:
    with pytest.raises(
        MalformedFrameError, match=f"due times of {MAX_POINTERS + 1} records or more; at most {MAX_POINTERS} "
    ):
        unpack_dues(struct.pack(">I", MAX_POINTERS + 1) + bytes(12 * (MAX_POINTERS + 1)), 0)


@pytest.mark.parametrize("due_ms", [MOST_DUE_MS + 1, 1 << 62, (1 << 64) - 1])
def test_times_that_no_store_keeps(due_ms: int) -> None:
    with pytest.raises(ConfigError, match=str(due_ms)):
        unpack_dues(runs((1, 0), (2, due_ms)), 0)
    assert unpack_dues(runs((MAX_POINTERS, MOST_DUE_MS)), 0)[0] == [(MAX_POINTERS, MOST_DUE_MS)]
