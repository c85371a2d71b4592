"""What the C core reads and what a second reader in plain Python reads (`reference_decoders`) are the same: for bytes that are
right, for the same bytes damaged, and for headers made up to mislead."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from ignis.errors import CorruptRecordError, MalformedFrameError, UnreadableMessageError
from ignis.native import PackedBatch, Record, crc32c, decode_frames, encode_frame, encode_record, unpack_segment
from ignis.native.frame import FrameDecoder
from ignis.native.wire import FrameReader, ReadArea, pack_claims, pack_pointers, unpack_claims, unpack_runs
from tests.unit.native import reference_decoders as reference

CASES = int(os.environ.get("IGNIS_TEST_DECODER_CASES", "1500"))
"""Of each kind. The long form, for a change of a layout or of its reader: 1000000."""
SEEDS = (1, 20_261_122)
LIMIT = 4096
EXTREMES = (0, 1, 2, 13, 14, 35, 36, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (reference.RefusedError, MalformedFrameError, UnreadableMessageError):
        return "refused"


def damaged(rnd: random.Random, data: bytes) -> bytes:
    """The bytes as they are, or cut, or with some of them changed, or with a number that misleads."""
    found = bytearray(data)
    for _ in range(rnd.choice([0, 1, 1, 2, 5])):
        if not found:
            break
        at = rnd.randrange(min(len(found), rnd.choice([4, 16, 40, len(found)])))
        choice = rnd.randrange(5)
        if choice == 0:
            found[at] ^= 1 << rnd.randrange(8)
        elif choice == 1:
            width = rnd.choice([1, 2, 4])
            found[at : at + width] = (rnd.choice(EXTREMES) & ((1 << 8 * width) - 1)).to_bytes(width, "big")
        elif choice == 2:
            del found[at:]
        elif choice == 3:
            found[at:at] = rnd.randbytes(rnd.randrange(1, 9))
        else:
            found += rnd.randbytes(rnd.randrange(1, 20))
    return bytes(found)


def a_record(rnd: random.Random) -> bytes:
    return encode_record(
        rnd.randbytes(rnd.choice([0, 1, 50])), flags=rnd.randrange(16), key=rnd.randbytes(rnd.choice([0, 3, 300])),
        meta=rnd.randbytes(rnd.choice([0, 9])), attempts=rnd.randrange(1 << 16), crashes=rnd.randrange(3),
    )  # fmt: skip


def some_frames(rnd: random.Random) -> bytes:
    found = []
    for _ in range(rnd.randrange(5)):
        command, request_id = rnd.randrange(-(1 << 15), 1 << 15), rnd.randrange(-(1 << 63), 1 << 63)
        found.append(encode_frame(command, request_id, rnd.randbytes(rnd.choice([0, 7, 500]))))
    return b"".join(found)


def in_pieces(rnd: random.Random, data: bytes) -> list[bytes]:
    pieces = []
    while data:
        size = rnd.choice([1, 3, 14, 200, len(data)])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def streamed(feed: Callable[[bytes], list[Any]], pieces: list[bytes]) -> list[Any]:
    """All frames up to the one that ends the stream."""
    found: list[Any] = []
    try:
        for piece in pieces:
            found += feed(piece)
    except MalformedFrameError:
        pass
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_frames(seed: int) -> None:
    rnd = random.Random(seed)
    refused = 0
    for _ in range(CASES):
        data = damaged(rnd, some_frames(rnd))
        expected = outcome(lambda data=data: reference.frames(data, LIMIT))
        assert outcome(lambda data=data: decode_frames(data, LIMIT)) == expected, data.hex()
        refused += expected == "refused"
        frames = [] if expected == "refused" else expected[0]
        pieces = in_pieces(rnd, data)
        decoder = FrameDecoder(LIMIT)
        assert streamed(lambda piece, decoder=decoder: decoder.feed(piece) or decoder.frames(), pieces) == frames, (
            data.hex()
        )
        reader = FrameReader(ReadArea(4096), LIMIT)
        assert streamed(reader.feed, pieces) == frames, data.hex()
    assert 0 < refused < CASES


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_frame_headers(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(CASES):
        length = rnd.choice([rnd.choice(EXTREMES), rnd.randrange(1 << 32), rnd.randrange(60)])
        data = struct.pack(">I", length) + rnd.randbytes(rnd.randrange(60))
        assert outcome(lambda data=data: decode_frames(data, LIMIT)) == outcome(
            lambda data=data: reference.frames(data, LIMIT)
        ), data.hex()


@pytest.mark.parametrize("seed", SEEDS)
def test_records(seed: int) -> None:
    def read(data: bytes) -> reference.Record:
        one = Record(data)
        return one.flags, one.attempts, one.crashes, one.enqueued_at_us, one.id, one.key, one.meta, one.body

    rnd = random.Random(seed)
    read_well = 0
    for _ in range(CASES):
        data = damaged(rnd, a_record(rnd))
        expected = outcome(lambda data=data: reference.record(data))
        assert outcome(lambda data=data: read(data)) == expected, data.hex()
        read_well += expected != "refused"
    assert 0 < read_well < CASES


@pytest.mark.parametrize("seed", SEEDS)
def test_segments(seed: int) -> None:
    rnd = random.Random(seed)
    kinds: set[str] = set()
    for _ in range(CASES // 2):
        count = rnd.choice([1, 2, 9])
        batch = PackedBatch.pack([a_record(rnd) for _ in range(count)])
        magazine_id, shard, first = rnd.randrange(1 << 32), rnd.randrange(1 << 16), rnd.randrange(1 << 40)
        batch.seal(magazine_id, shard, first)
        data = bytearray(damaged(rnd, bytes(batch)))
        # Half of the damage carries a checksum that fits, so that the checks behind it are reached.
        told = int.from_bytes(data[4:8], "big")
        if rnd.random() < 0.5 and told < 100 and len(data) >= 24 + 8 * told:
            ends = b"".join(bytes(data[24 + 8 * i : 28 + 8 * i]) for i in range(told))
            data[16:20] = crc32c(ends, crc32c(bytes(data[:16]))).to_bytes(4, "big")
        where = (magazine_id, shard, first + (rnd.random() < 0.1))
        expected = outcome(lambda data=data, where=where: reference.segment(bytes(data), *where))

        def read(data: bytes = bytes(data), where: tuple[int, int, int] = where) -> list[bytes | None]:
            told = int.from_bytes(data[4:8], "big") if len(data) >= 24 else 1
            last = where[2] + min(max(told, 1), 1 << 20) - 1
            return unpack_segment(data, where[0], where[1], last, where[2], last + 1)

        found = outcome(read)
        assert found == expected, bytes(data).hex()
        kinds.add("refused" if found == "refused" else "damaged" if None in found else "whole")
    assert kinds == {"refused", "damaged", "whole"}
    with pytest.raises(CorruptRecordError):
        unpack_segment(b"", 1, 1, 0, 0, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_pointers(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(CASES):
        runs = {
            rnd.randrange(1 << 16): range(rnd.randrange(1000), rnd.randrange(1000, 1009))
            for _ in range(rnd.randrange(4))
        }
        data = damaged(rnd, pack_pointers(runs))
        assert outcome(lambda data=data: unpack_runs(data)) == outcome(lambda data=data: reference.pointers(data)), (
            data.hex()
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_claims(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(CASES):
        claims = []
        for _ in range(rnd.randrange(4)):
            count = rnd.randrange(6)
            records = [rnd.choice([None, b"", rnd.randbytes(20)]) for _ in range(count)]
            claims.append((rnd.randrange(1 << 16), rnd.sample(range(1, 9), count), records))
        data = damaged(rnd, pack_claims(claims))
        found = outcome(
            lambda data=data: [(shard, list(many), records) for shard, many, records in unpack_claims(data)]
        )
        assert found == outcome(lambda data=data: reference.claims(data)), data.hex()
