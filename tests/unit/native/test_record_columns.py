"""Columns in and out: batches packed from Arrow columns, and records taken apart into columns."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import Any

import pytest

from ignis.errors import MessageTooLargeError
from ignis.native.record import (
    PackedBatch,
    Record,
    crc32c,
    encode_record,
    id_keys,
    position_ids,
    record_columns,
    segment_columns,
    shard_for_key,
    unpack_segment,
)

pa = pytest.importorskip("pyarrow")


def read(batches: list[tuple[int, PackedBatch]]) -> list[tuple[int, Record]]:
    return [(shard, Record(data)) for shard, batch in batches for data in batch.records()]


def pack(bodies: Any, **options: Any) -> list[tuple[int, PackedBatch]]:
    return PackedBatch.pack_columns(bodies, **{"flags": 1, "shards": 4, "any_shard": 0, **options})


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_bodies_of_every_type(kind: Any) -> None:
    values = ["a", "", "b" * 300, "ü"]
    found = read(pack(pa.array(values, kind)))
    assert [record.body.decode() for _, record in found] == values
    assert {record.flags for _, record in found} == {1}
    assert len({record.id for _, record in found}) == len(values)


def test_the_same_as_from_objects() -> None:
    bodies = [b"m%d" % number for number in range(1_000)]
    keys = [b"k%d" % (number % 7) if number % 3 else None for number in range(1_000)]
    options: dict[str, Any] = {"flags": 0, "shards": 5, "any_shard": 2, "max_records": 64, "max_bytes": 4_096}
    expected, _ = PackedBatch.pack_bodies(bodies, keys=keys, **options)
    found = PackedBatch.pack_columns(pa.array(bodies), keys=pa.array(keys), **options)
    assert [(shard, record.key, record.body) for shard, record in read(found)] == [
        (shard, record.key, record.body) for shard, record in read(expected)
    ]
    assert [(shard, batch.count) for shard, batch in found] == [(shard, batch.count) for shard, batch in expected]


def test_a_slice_is_what_it_shows() -> None:
    bodies = pa.array([b"%d" % number for number in range(100)])
    ids = pa.array([bytes([number]) * 16 for number in range(100)], pa.binary(16))
    keys = pa.array([str(number) if number % 2 else None for number in range(100)])
    found = read(pack(bodies.slice(11, 20), ids=ids.slice(11, 20), keys=keys.slice(11, 20)))
    assert sorted(record.body for _, record in found) == [b"%d" % number for number in range(11, 31)]
    for shard, record in found:
        number = int(record.body)
        assert record.id == bytes([number]) * 16
        assert record.key == (record.body if number % 2 else b"")
        assert not record.key or shard == shard_for_key(record.key, 4)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)], ids=str)
def test_each_body_has_its_meta(kind: Any) -> None:
    bodies = pa.array([b"%d" % number for number in range(100)])
    metas = pa.array([b"%04d" % number if number % 3 else None for number in range(100)], kind)
    found = read(pack(bodies.slice(7, 50), metas=metas.slice(7, 50), max_bytes=400))
    assert sorted(int(record.body) for _, record in found) == list(range(7, 57))
    for _, record in found:
        number = int(record.body)
        assert record.meta == (b"%04d" % number if number % 3 else b"")


def test_ids_of_a_batch() -> None:
    ids = [bytes([number]) * 16 for number in range(5)]
    ((_, batch),) = pack(pa.array(["x"] * 5), ids=pa.array(ids, pa.binary(16)))
    assert batch.ids() == ids
    batch.seal(1, 0, 1)
    assert batch.ids() == ids
    assert PackedBatch.pack([b"no record"]).ids() == [b""]


class TestIdKeys:
    def batches(self, *ids: list[int]) -> list[PackedBatch]:
        return [
            PackedBatch.pack([encode_record(b"m", id=number.to_bytes(16, "big")) for number in some]) for some in ids
        ]

    @pytest.mark.parametrize(
        "ids", [[[1, 2, 3], [4, 5]], [[900, 2], [1 << 127, 3, 256]], [[7, 7], [1, 7]], [[5]]], ids=str
    )
    def test_sorted_and_each_once(self, ids: list[list[int]]) -> None:
        flat = [number for some in ids for number in some]
        keys, repeated = id_keys(self.batches(*ids), b"pre")
        assert keys == [b"pre" + number.to_bytes(16, "big") for number in sorted(set(flat))]
        assert repeated == len(flat) - len(set(flat))

    def test_many_in_no_order(self) -> None:
        numbers = [number * 0x9E3779B97F4A7C15 % (1 << 128) for number in range(20_000)]
        keys, repeated = id_keys(self.batches(numbers[:9_000], numbers[9_000:]), b"")
        assert keys == sorted(number.to_bytes(16, "big") for number in numbers)
        assert repeated == 0

    def test_what_has_none(self) -> None:
        assert id_keys([], b"p") == ([], 0)
        assert id_keys([PackedBatch.pack([b"no record", b""])], b"p") == ([], 0)

    def test_a_sealed_batch(self) -> None:
        (batch,) = self.batches([1])
        batch.seal(1, 0, 1)
        assert len(id_keys([batch], b"p")[0]) == 1

    def test_refusals(self) -> None:
        with pytest.raises(TypeError, match="expected PackedBatch"):
            id_keys([b"text"], b"p")  # type: ignore[list-item]
        with pytest.raises(TypeError):
            id_keys([], None)  # type: ignore[arg-type]


def test_nothing() -> None:
    assert pack(pa.array([], pa.binary())) == []
    assert record_columns([])[:2] == (0, [])


def test_large_input_without_the_gil() -> None:
    bodies = pa.array([b"x" * 1_000] * 5_000)
    assert sum(batch.count for _, batch in pack(bodies)) == 5_000


def test_the_column_is_let_go() -> None:
    class Column:
        def __init__(self) -> None:
            self.array = pa.array(["a", "b"])

        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return self.array.__arrow_c_array__(requested_schema)

    column = Column()
    gone = weakref.ref(column)
    batches = pack(column)
    del column
    gc.collect()
    assert gone() is None
    assert [record.body for _, record in read(batches)] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("bodies", "options", "error"),
    [
        (pa.array([1, 2]), {}, TypeError),
        (pa.array(["a", "a"]).dictionary_encode(), {}, TypeError),
        (["a"], {}, TypeError),
        (pa.array(["a", None]), {}, ValueError),
        (pa.array(["a"]), {"keys": pa.array(["a", "b"])}, ValueError),
        (pa.array(["a"]), {"keys": pa.array(["k" * 65_536])}, MessageTooLargeError),
        (pa.array(["a"]), {"metas": pa.array([b"a", b"b"])}, ValueError),
        (pa.array(["a"]), {"metas": pa.array([1])}, TypeError),
        (pa.array(["a"]), {"ids": pa.array([b"x" * 16])}, TypeError),
        (pa.array(["a"]), {"ids": pa.array([b"x" * 8], pa.binary(8))}, TypeError),
        (pa.array(["a"]), {"ids": pa.array([None], pa.binary(16))}, ValueError),
        (pa.array(["a"]), {"ids": pa.array([b"x" * 16] * 2, pa.binary(16))}, ValueError),
        (pa.array(["a" * 11]), {"max_body_bytes": 10}, MessageTooLargeError),
        (pa.array(["a"]), {"flags": 16}, ValueError),
        (pa.array(["a"]), {"any_shard": 4}, ValueError),
    ],
)
def test_refusals(bodies: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        pack(bodies, **options)


def test_records_as_columns() -> None:
    records = [
        encode_record(b"b%d" % number, key=b"k" * number, meta=b"", id=bytes([number]) * 16, enqueued_at_us=10 + number,
                      attempts=number, crashes=2 * number)
        for number in range(4)
    ]  # fmt: skip
    count, bad, ids, stamps, attempts, crashes, key_ends, keys, meta_ends, metas, body_ends, bodies = record_columns(
        [records[0], None, records[1], b"damaged", records[2], b"", records[3]]
    )
    assert (count, bad) == (4, [1, 3, 5])
    assert ids == b"".join(bytes([number]) * 16 for number in range(4))
    assert struct.unpack("<4q", stamps) == (10, 11, 12, 13)
    assert struct.unpack("<4i", attempts) == (0, 1, 2, 3)
    assert struct.unpack("<4i", crashes) == (0, 2, 4, 6)
    assert struct.unpack("<5i", key_ends) == (0, 0, 1, 3, 6)
    assert keys == b"kkkkkk"
    assert struct.unpack("<5i", meta_ends) == (0,) * 5
    assert metas == b""
    assert struct.unpack("<5i", body_ends) == (0, 2, 4, 6, 8)
    assert bodies == b"b0b1b2b3"


def test_bodies_as_lines() -> None:
    found = record_columns([encode_record(b"ab"), None, encode_record(b""), encode_record(b"c")], lines=True)
    assert (found[0], found[1]) == (3, [1])
    assert struct.unpack("<4i", found[-2]) == (0, 3, 4, 6)
    assert found[-1] == b"ab\n\nc\n"


def test_columns_of_what_is_no_bytes() -> None:
    with pytest.raises(TypeError):
        record_columns(["text"])  # type: ignore[list-item]


class TestSegmentColumns:
    """The records of segments as columns: the same as those of the records one by one."""

    def segment(self, first: int, count: int) -> bytes:
        batch = PackedBatch.pack(
            [encode_record(b"body%d" % number, key=b"k" * (number % 3)) for number in range(first, first + count)]
        )
        batch.seal(7, 3, first)
        return bytes(batch)

    def test_like_record_by_record(self) -> None:
        one, two = self.segment(1, 40), self.segment(41, 10)
        deleted = bytes([0b101, 0, 0b1])
        parts: Any = [(one, 1, 40, 2, 38, deleted), (memoryview(two), 41, 50, 41, 51, None)]
        records = [unpack_segment(data, 7, 3, last, start, stop, skip) for data, _, last, start, stop, skip in parts]
        pointers = [number for number in range(2, 38) if number not in (3, 17)] + list(range(41, 51))
        for lines in (False, True):
            count, bad, found, *buffers = segment_columns(parts, 7, 3, lines=lines)
            assert (count, bad) == (len(pointers), [])
            assert list(struct.unpack(f"<{count}q", found)) == pointers
            assert tuple(buffers) == record_columns(records[0] + records[1], lines=lines)[2:]

    def test_what_is_damaged_is_named(self) -> None:
        good, flipped, headless = self.segment(1, 5), bytearray(self.segment(6, 5)), bytearray(self.segment(11, 5))
        flipped[-1] ^= 1
        headless[5] ^= 1
        parts: Any = [(good, 1, 5, 1, 6, None), (flipped, 6, 10, 6, 11, None), (headless, 11, 15, 12, 16, b"\x05")]
        count, bad, found, *_ = segment_columns(parts, 7, 3)
        assert (count, bad) == (9, [10, 12, 14, 15]), "13 was deleted"
        assert struct.unpack("<9q", found) == tuple(range(1, 10))
        # Of another place, or under another key, none is what it should be.
        assert segment_columns([(good, 1, 5, 1, 6, None)], 8, 3)[:2] == (0, [1, 2, 3, 4, 5])
        assert segment_columns([(good, 2, 6, 2, 7, None)], 7, 3)[:2] == (0, [2, 3, 4, 5, 6])
        assert segment_columns([(good, 1, 9, 2, 4, None)], 7, 3)[:2] == (0, [2, 3])
        other = PackedBatch.pack([b"no record"])
        other.seal(7, 3, 1)
        assert segment_columns([(bytes(other), 1, 1, 1, 2, None)], 7, 3)[:2] == (0, [1])

    def test_large_ones_without_the_gil(self) -> None:
        batch = PackedBatch.pack([encode_record(b"x" * 1_000)] * 4_000)
        batch.seal(7, 3, 1)
        count, bad, _, *buffers = segment_columns([(batch, 1, 4_000, 1, 4_001, None)], 7, 3)
        assert (count, bad, buffers[-1]) == (4_000, [], b"x" * 4_000_000)

    def test_nothing(self) -> None:
        assert segment_columns([], 7, 3)[:3] == (0, [], b"")
        assert segment_columns([(self.segment(1, 2), 1, 2, 1, 1, None)], 7, 3)[:3] == (0, [], b"")

    @pytest.mark.parametrize(
        "part", [(1, 5, 1, 7), (1, 5, 3, 2), (1, 5, 0, 2), (-1, 3, 1, 2), (1, 1 << 62, 1, 2), (1, 5, 1, 1 << 63)]
    )
    def test_refused_ranges(self, part: tuple[int, int, int, int]) -> None:
        with pytest.raises(ValueError, match="allowed are"):
            segment_columns([(self.segment(1, 5), *part, None)], 7, 3)

    def test_other_types(self) -> None:
        with pytest.raises(TypeError):
            segment_columns([("text", 1, 1, 1, 2, None)], 7, 3)  # type: ignore[list-item]


class TestPositionIds:
    PREFIX = b"prefix"

    def ids(self, bodies: list[str], first: int = 0) -> list[bytes]:
        made = position_ids(self.PREFIX, first, pa.array(bodies))
        return [made[start : start + 16] for start in range(0, len(made), 16)]

    def test_the_same_row_gets_the_same_id(self) -> None:
        whole = self.ids(["a", "b", "b", "c"])
        assert len(set(whole)) == 4
        assert self.ids(["b", "c"], first=2) == whole[2:]

    def test_another_row_at_that_place_gets_another(self) -> None:
        assert not set(self.ids(["a", "b"])) & set(self.ids(["b", "a"]))

    def test_what_they_hold(self) -> None:
        row = 0xFEDCBA98
        (one,) = self.ids(["x" * 700], first=row)
        whole = int.from_bytes(one, "big")
        assert one[:6] == self.PREFIX
        assert (whole >> 76 & 0xF, whole >> 62 & 3) == (8, 2)
        high, low = whole >> 64 & 0xFFF, whole >> 42 & 0xFFFFF
        assert high << 20 | low == row
        assert whole >> 32 & 0x3FF == 700
        assert whole & 0xFFFFFFFF == crc32c(b"x" * 700)

    def test_they_rise(self) -> None:
        for first in (0, 60, 16_380, 1_048_570):
            ids = self.ids(["b", "a"] * 10, first)
            assert ids == sorted(ids)

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="prefix has 5 bytes"):
            position_ids(b"short", 0, pa.array(["a"]))
        with pytest.raises(ValueError, match="number"):
            position_ids(self.PREFIX, 0xFFFFFFFF, pa.array(["a", "b"]))
        with pytest.raises(ValueError, match="null"):
            position_ids(self.PREFIX, 0, pa.array([None, "b"]))
        assert position_ids(self.PREFIX, 0, pa.array([], pa.string())) == b""
