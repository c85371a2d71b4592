"""Packed batches and stored segments: packing by shard, sealing, reading back, and every refusal."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import CorruptRecordError, MessageTooLargeError
from ignis.native.record import PackedBatch, Record, encode_record, segment_info, shard_for_key, unpack_segment

VECTORS = Path(__file__).parents[2] / "vectors"
PARSED: dict[str, Any] = json.loads((VECTORS / "record.json").read_text(encoding="utf-8"))
RECORDS = [bytes.fromhex(vector["record"]) for vector in PARSED["records"]]

MAGAZINE, SHARD, FIRST = 7, 3, 1000


def sealed(records: list[bytes], expires_at_ms: int = 0) -> bytes:
    batch = PackedBatch.pack(records, expires_at_ms)
    batch.seal(MAGAZINE, SHARD, FIRST)
    return bytes(memoryview(batch))


def each_id(ids: bytes) -> list[bytes]:
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]


def unpack(data: bytes, count: int, low: int = 0, high: int | None = None, skip: bytes | None = None) -> list[Any]:
    """By index instead of pointer."""
    high = count if high is None else high
    return unpack_segment(data, MAGAZINE, SHARD, FIRST + count - 1, FIRST + low, FIRST + high, skip)


class TestVectors:
    @pytest.mark.parametrize("vector", PARSED["segments"], ids=lambda v: v["file"])
    def test_bytes(self, vector: dict[str, Any]) -> None:
        data = (VECTORS / vector["file"]).read_bytes()
        batch = PackedBatch.pack(RECORDS, vector["expires_at_ms"])
        if vector["sealed"]:
            batch.seal(**vector["sealed"])
        assert bytes(memoryview(batch)) == data
        assert segment_info(data) == (len(RECORDS), vector["expires_at_ms"])
        assert batch.nbytes == len(data)

    def test_read(self) -> None:
        data = (VECTORS / "record_sealed.bin").read_bytes()
        assert unpack_segment(data, 7, 3, 1002, 1000, 1003) == RECORDS


class TestPack:
    def test_attributes(self) -> None:
        batch = PackedBatch.pack(tuple(RECORDS))
        assert (batch.count, batch.sealed) == (3, False)
        assert batch.records() == RECORDS
        batch.seal(1, 2, 3)
        assert batch.sealed
        assert batch.records() == RECORDS
        assert "count=3" in repr(batch)

    def test_records_are_not_looked_into(self) -> None:
        assert unpack(sealed([b"", b"x", b""]), 3) == [b"", b"x", b""]

    def test_a_large_batch(self) -> None:
        records = [os.urandom(i % 300) for i in range(20_000)]  # far beyond what is done while holding the GIL
        assert unpack(sealed(records), 20_000) == records
        assert PackedBatch.pack(records).records() == records

    @pytest.mark.parametrize("bad", [[], [b"x"] * (1 << 20) + [b""]])
    def test_count_limits(self, bad: list[bytes]) -> None:
        with pytest.raises(ValueError, match=f"batch of {len(bad)} records, allowed are 1..1048576"):
            PackedBatch.pack(bad)

    def test_types(self) -> None:
        wrong: list[tuple[Any, str]] = [
            ([b"", "text"], r"records\[1\] is str, expected bytes"),
            ([None], r"records\[0\] is NoneType, expected bytes"),
            (b"abc", r"records\[0\] is int, expected bytes"),
        ]
        for records, message in wrong:
            with pytest.raises(TypeError, match=message):
                PackedBatch.pack(records)
        with pytest.raises(TypeError, match=r"PackedBatch\.pack"):
            PackedBatch()
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(PackedBatch.pack(RECORDS))

    def test_one_made_without_memory_answers_with_errors(self) -> None:
        empty = PackedBatch.__new__(PackedBatch)
        for call in (empty.records, lambda: empty.seal(1, 2, 3), lambda: empty.set_expiry(1)):
            with pytest.raises(ValueError, match="the batch is"):
                call()
        with pytest.raises(BufferError):
            memoryview(empty)


class TestSeal:
    def test_expiry_before_sealing_only(self) -> None:
        batch = PackedBatch.pack(RECORDS, 5)
        assert segment_info(batch) == (3, 5)
        batch.set_expiry(1_767_225_600_000)
        assert segment_info(batch) == (3, 1_767_225_600_000)
        batch.set_expiry(0)
        batch.seal(MAGAZINE, SHARD, FIRST)
        assert segment_info(batch) == (3, 0)
        with pytest.raises(ValueError, match="sealed already"):
            batch.set_expiry(1)

    def test_once(self) -> None:
        batch = PackedBatch.pack(RECORDS)
        batch.seal(MAGAZINE, SHARD, FIRST)
        before = bytes(memoryview(batch))
        with pytest.raises(ValueError, match="sealed already"):
            batch.seal(MAGAZINE, SHARD, FIRST)
        assert bytes(memoryview(batch)) == before

    def test_a_refused_seal_changes_nothing(self) -> None:
        batch = PackedBatch.pack(RECORDS)
        for arguments, message in (
            ((1 << 32, 0, 0), "magazine_id is 4294967296, allowed are 0..4294967295"),
            ((0, 65_536, 0), "shard is 65536, allowed are 0..65535"),
            ((0, 0, -1), "first_pointer is -1"),
            ((0, 0, (1 << 63) - 3), "first_pointer is 9223372036854775805, allowed are 0..9223372036854775804"),
        ):
            with pytest.raises(ValueError, match=message):
                batch.seal(*arguments)
        assert not batch.sealed
        batch.seal(0xFFFFFFFF, 0xFFFF, (1 << 63) - 4)
        assert unpack_segment(batch, 0xFFFFFFFF, 0xFFFF, (1 << 63) - 2, (1 << 63) - 4, (1 << 63) - 1) == RECORDS

    def test_not_while_it_has_views(self) -> None:
        batch = PackedBatch.pack(RECORDS)
        with memoryview(batch) as first, memoryview(batch):
            assert first.readonly
            with pytest.raises(BufferError, match="2 view"):
                batch.seal(MAGAZINE, SHARD, FIRST)
            with pytest.raises(BufferError):
                batch.set_expiry(1)
        batch.seal(MAGAZINE, SHARD, FIRST)

    def test_one_of_many_threads_wins(self) -> None:
        batch = PackedBatch.pack([b"x" * 20] * 200_000)
        refused: list[Exception] = []

        def seal() -> None:
            try:
                batch.seal(MAGAZINE, SHARD, FIRST)
            except ValueError as error:
                refused.append(error)

        threads = [threading.Thread(target=seal) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(refused) == 3
        assert unpack(bytes(memoryview(batch)), 200_000, 199_999) == [b"x" * 20]


class TestBuffer:
    def test_a_view_keeps_the_memory(self) -> None:
        view = memoryview(PackedBatch.pack(RECORDS))
        gc.collect()
        assert bytes(view) == (VECTORS / "record_unsealed.bin").read_bytes()

    def test_is_read_only(self) -> None:
        view = memoryview(PackedBatch.pack(RECORDS))
        with pytest.raises(TypeError):
            view[0] = 1


class TestPackBodies:
    def test_envelope(self) -> None:
        before = time.time_ns() // 1000
        batches, ids = PackedBatch.pack_bodies(
            [b"a", b"", b"c"], flags=2, keys=[b"key", None, b""], shards=1, any_shard=0, metas=[b"\x80", b"", b"\x80"]
        )
        [(shard, batch)] = batches
        records = [Record(data) for data in batch.records()]
        assert shard == 0
        assert [record.id for record in records] == each_id(ids) == sorted(each_id(ids))
        assert [(r.body, r.key, r.meta) for r in records] == [
            (b"a", b"key", b"\x80"),
            (b"", b"", b""),
            (b"c", b"", b"\x80"),
        ]
        assert {(r.flags, r.attempts, r.crashes) for r in records} == {(2, 0, 0)}
        [enqueued_at_us] = {record.enqueued_at_us for record in records}
        assert before <= enqueued_at_us <= time.time_ns() // 1000

    def test_nothing(self) -> None:
        assert PackedBatch.pack_bodies([], flags=0, keys=None, shards=1, any_shard=0) == ([], b"")

    def test_keyless_move_on_when_a_batch_is_full(self) -> None:
        batches, ids = PackedBatch.pack_bodies(
            [b"%d" % i for i in range(10)], flags=0, keys=None, shards=3, any_shard=2, max_records=3
        )
        assert [(shard, batch.count) for shard, batch in batches] == [(2, 3), (0, 3), (1, 3), (2, 1)]
        assert [Record(r).id for _, batch in batches for r in batch.records()] == each_id(ids)

    def test_bytes_limit(self) -> None:
        # 36 bytes of envelope each: two records of 100 fit exactly, the large one travels alone.
        sizes = [64, 64, 64, 500, 64]
        batches, _ = PackedBatch.pack_bodies(
            [bytes(n) for n in sizes], flags=0, keys=None, shards=8, any_shard=0, max_bytes=200
        )
        assert [(shard, batch.count) for shard, batch in batches] == [(0, 2), (1, 1), (2, 1), (3, 1)]

    def test_keys_decide_the_shard_and_order_is_kept_in_it(self) -> None:
        keys: list[bytes | None] = [None if i % 5 == 0 else b"key-%d" % (i % 17) for i in range(2000)]
        bodies = [b"%d" % i for i in range(2000)]
        batches, _ = PackedBatch.pack_bodies(bodies, flags=0, keys=keys, shards=4, any_shard=1, max_records=100)
        per_shard: dict[int, list[Record]] = {}
        for shard, batch in batches:
            assert 1 <= batch.count <= 100
            per_shard.setdefault(shard, []).extend(Record(data) for data in batch.records())
        for shard, records in per_shard.items():
            numbers = [int(record.body) for record in records]
            assert numbers == sorted(numbers)
            assert all(not r.key or shard_for_key(r.key, 4) == shard for r in records)
        assert sorted(int(r.body) for records in per_shard.values() for r in records) == list(range(2000))

    def test_large_and_in_threads(self) -> None:
        bodies = [os.urandom(400) for _ in range(3000)]  # together large enough for the GIL to be given up
        results: list[tuple[list[tuple[int, PackedBatch]], bytes]] = []
        threads = [
            threading.Thread(
                target=lambda: results.append(
                    PackedBatch.pack_bodies(bodies, flags=0, keys=None, shards=32, any_shard=0)
                )
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len({each for _, ids in results for each in each_id(ids)}) == 12_000
        for batches, ids in results:
            records = [Record(data) for _, batch in batches for data in batch.records()]
            assert [record.body for record in records] == bodies
            assert [record.id for record in records] == each_id(ids) == sorted(each_id(ids))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"flags": 16}, "flags is 16, allowed are 0..15"),
            ({"shards": 0}, "shards is 0, allowed are 1..65535"),
            ({"any_shard": 4}, "any_shard is 4, allowed are 0..3"),
            ({"max_records": 0}, "max_records is 0, allowed are 1..1048576"),
            ({"max_body_bytes": -1}, "max_body_bytes is -1, allowed are 0..4294967295"),
            ({"max_bytes": 0}, "max_bytes is 0, allowed are 1..4294967295"),
            ({"keys": [b"k"]}, "keys has 1 entries for 2 bodies"),
            ({"metas": [b"", b"", b""]}, "metas has 3 entries for 2 bodies"),
        ],
    )
    def test_values(self, arguments: dict[str, Any], message: str) -> None:
        good: dict[str, Any] = {"flags": 0, "keys": None, "shards": 4, "any_shard": 0}
        with pytest.raises(ValueError, match=message):
            PackedBatch.pack_bodies([b"", b""], **(good | arguments))

    def test_types_and_sizes(self) -> None:
        def pack(**arguments: Any) -> None:
            PackedBatch.pack_bodies(**({"flags": 0, "keys": None, "shards": 4, "any_shard": 0} | arguments))

        with pytest.raises(TypeError, match=r"bodies\[1\] is bytearray"):
            pack(bodies=[b"", bytearray()])
        with pytest.raises(TypeError, match=r"bodies\[0\] is NoneType"):
            pack(bodies=[None])
        with pytest.raises(MessageTooLargeError, match=r"5 bytes.*4"):
            pack(bodies=[b"four", b"fives"], max_body_bytes=4)
        with pytest.raises(TypeError, match=r"keys\[1\] is str"):
            pack(bodies=[b"", b""], keys=[None, "k"])
        with pytest.raises(TypeError, match=r"metas\[0\] is NoneType"):
            pack(bodies=[b""], metas=[None])
        with pytest.raises(MessageTooLargeError) as caught:
            pack(bodies=[b"", b""], keys=[None, bytes(65_536)])
        assert (caught.value.size_bytes, caught.value.limit_bytes, caught.value.setting) == (65_536, 65_535, "key")


class TestUnpack:
    WHOLE = tuple(b"%d" % i * 10 for i in range(20))
    DATA = sealed(list(WHOLE))

    @pytest.mark.parametrize(("low", "high"), [(0, 20), (0, 0), (5, 6), (19, 20), (20, 20), (3, 17)])
    def test_ranges(self, low: int, high: int) -> None:
        assert unpack(self.DATA, 20, low, high) == list(self.WHOLE[low:high])

    def test_any_buffer(self) -> None:
        for data in (bytearray(self.DATA), memoryview(b"x" + self.DATA)[1:]):
            assert unpack_segment(data, MAGAZINE, SHARD, FIRST + 19, FIRST, FIRST + 20) == list(self.WHOLE)

    def test_skip(self) -> None:
        bitmap = bytes([0b0000_0101, 0b1000_0000])  # 0, 2 and 15; ends before the segment does
        left = [r for i, r in enumerate(self.WHOLE) if i not in (0, 2, 15)]
        assert unpack(self.DATA, 20, skip=bitmap) == left
        assert unpack(self.DATA, 20, 2, 4, skip=bitmap) == [self.WHOLE[3]]
        assert unpack(self.DATA, 20, skip=b"\xff" * 3) == []
        assert unpack(self.DATA, 20, skip=b"") == list(self.WHOLE)

    def test_a_damaged_record_is_none_and_the_others_are_not(self) -> None:
        damaged = bytearray(self.DATA)
        damaged[-1] ^= 1
        assert unpack(bytes(damaged), 20) == [*self.WHOLE[:19], None]
        assert unpack(bytes(damaged), 20, 0, 19) == list(self.WHOLE[:19])
        assert unpack(bytes(damaged), 20, skip=b"\x00\x00\x08") == list(self.WHOLE[:19])

    @pytest.mark.parametrize(
        "place", [(MAGAZINE + 1, SHARD, FIRST), (MAGAZINE, SHARD + 1, FIRST), (MAGAZINE, SHARD, FIRST + 1)]
    )
    def test_sound_bytes_in_another_place_are_corrupt(self, place: tuple[int, int, int]) -> None:
        magazine, shard, first = place
        assert unpack_segment(self.DATA, magazine, shard, first + 19, first, first + 20) == [None] * 20

    @pytest.mark.parametrize(("start", "stop"), [(FIRST, FIRST + 21), (FIRST + 5, FIRST + 4), (FIRST + 21, FIRST + 22)])
    def test_ranges_that_no_such_segment_has(self, start: int, stop: int) -> None:
        with pytest.raises(ValueError, match="ends at 1019") as caught:
            unpack_segment(self.DATA, MAGAZINE, SHARD, FIRST + 19, start, stop)
        assert not isinstance(caught.value, CorruptRecordError)

    def test_a_segment_that_is_too_short_for_its_place(self) -> None:
        with pytest.raises(CorruptRecordError, match="has no pointer 999"):
            unpack_segment(self.DATA, MAGAZINE, SHARD, FIRST + 19, FIRST - 1, FIRST + 1)
        with pytest.raises(CorruptRecordError, match="segment of 20 records that ends at pointer 5"):
            unpack_segment(self.DATA, MAGAZINE, SHARD, 5, 1, 2)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "segment of 0 bytes"),
            (b"\x01" * 10, "segment of 10 bytes"),
            (b"\x02" + DATA[1:], "segment of version 2, this build reads version 1"),
            (DATA[:16] + b"\0\0\0\0" + DATA[20:], "does not match its checksum"),
            (DATA[:-1], "contradicts its own header"),
            (DATA + b"x", "contradicts its own header"),
        ],
    )
    def test_damaged_index(self, data: bytes, message: str) -> None:
        with pytest.raises(CorruptRecordError, match=message):
            unpack(data, 20)
        with pytest.raises(CorruptRecordError, match=message):
            segment_info(data)

    def test_the_buffer_is_given_back(self) -> None:
        data = bytearray(self.DATA)
        unpack_segment(data, MAGAZINE, SHARD, FIRST + 19, FIRST, FIRST + 20)
        data.append(0)  # BufferError while it is lent
        with pytest.raises(CorruptRecordError):
            unpack_segment(data, MAGAZINE, SHARD, FIRST + 19, FIRST, FIRST + 20)
        data.append(0)

    def test_an_unsealed_batch_is_not_taken_for_a_sealed_one(self) -> None:
        batch = PackedBatch.pack([encode_record(b"x")])
        assert unpack_segment(batch, MAGAZINE, SHARD, FIRST, FIRST, FIRST + 1) == [None]
