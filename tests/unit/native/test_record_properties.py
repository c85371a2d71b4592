"""Properties of the record codec over generated input: what goes in comes out, and damage never passes for data."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ignis.errors import CorruptRecordError, UnreadableMessageError
from ignis.native.record import (
    PackedBatch,
    Record,
    crc32c,
    encode_record,
    segment_info,
    shard_for_key,
    unpack_segment,
)

u16 = st.integers(0, 0xFFFF)
fields = st.fixed_dictionaries(
    {
        "flags": st.integers(0, 15),
        "key": st.binary(max_size=300),
        "meta": st.binary(max_size=300),
        "id": st.binary(min_size=16, max_size=16),
        "enqueued_at_us": st.integers(0, 2**63 - 1),
        "attempts": u16,
        "crashes": u16,
    }
)
bodies = st.binary(max_size=2000)
record_lists = st.lists(st.binary(max_size=80), min_size=1, max_size=40)
places = st.tuples(st.integers(0, 2**32 - 1), u16, st.integers(0, 2**62))

EXAMPLES = int(os.environ.get("IGNIS_TEST_EXAMPLES", "100"))
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def crc32c_bitwise(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@quick
@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_crc32c_is_the_definition_at_any_split(data: bytes, cut: int) -> None:
    assert crc32c(data) == crc32c_bitwise(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@quick
@given(bodies, fields)
def test_record_round_trip(body: bytes, given_fields: dict[str, Any]) -> None:
    data = encode_record(body, **given_fields)
    record = Record(data)
    assert record.body == body
    assert {name: getattr(record, name) for name in given_fields} == given_fields
    assert len(data) == 36 + len(given_fields["key"]) + len(given_fields["meta"]) + len(body)
    assert record.replace() == data


@quick
@given(bodies, fields, u16, u16, st.binary(max_size=300))
def test_replace_is_encoding_with_other_values(
    body: bytes, given_fields: dict[str, Any], attempts: int, crashes: int, meta: bytes
) -> None:
    changed = Record(encode_record(body, **given_fields)).replace(attempts=attempts, crashes=crashes, meta=meta)
    assert changed == encode_record(body, **(given_fields | {"attempts": attempts, "crashes": crashes, "meta": meta}))


@quick
@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_a_record_or_unreadable(data: bytes) -> None:
    for candidate in (data, b"\x01" + data, b"\x01\x00" + data):
        try:
            record = Record(candidate)
        except UnreadableMessageError:
            continue
        assert record.replace() == candidate


@quick
@given(record_lists, places, st.data())
def test_segment_round_trip(records: list[bytes], place: tuple[int, int, int], data: st.DataObject) -> None:
    magazine, shard, first = place
    expires_at_ms = data.draw(st.integers(0, 2**63 - 1))
    batch = PackedBatch.pack(records, expires_at_ms)
    assert batch.records() == records
    batch.seal(magazine, shard, first)
    assert batch.records() == records
    assert segment_info(batch) == (len(records), expires_at_ms)
    low = data.draw(st.integers(0, len(records)))
    high = data.draw(st.integers(low, len(records)))
    skip = data.draw(st.none() | st.binary(max_size=6))
    kept = [
        record
        for i, record in enumerate(records)
        if low <= i < high and not (skip and i // 8 < len(skip) and skip[i // 8] >> i % 8 & 1)
    ]
    last = first + len(records) - 1
    assert unpack_segment(batch, magazine, shard, last, first + low, first + high, skip) == kept


def is_refused_or_subset(data: bytes, records: list[bytes], place: tuple[int, int, int]) -> bool:
    """True when reading gives an error, or for each pointer the right record or None, with at least one None."""
    magazine, shard, first = place
    last = first + len(records) - 1
    try:
        read = unpack_segment(data, magazine, shard, last, first, last + 1)
    except CorruptRecordError:
        return True
    return (
        len(read) == len(records)
        and None in read
        and all(got is None or got == written for got, written in zip(read, records, strict=True))
    )


@quick
@given(record_lists, places, st.data())
def test_any_truncation_of_a_segment_is_seen(
    records: list[bytes], place: tuple[int, int, int], data: st.DataObject
) -> None:
    batch = PackedBatch.pack(records)
    batch.seal(*place)
    whole = bytes(memoryview(batch))
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert is_refused_or_subset(whole[:cut], records, place)
    assert is_refused_or_subset(whole + data.draw(st.binary(min_size=1, max_size=9)), records, place)


@quick
@given(record_lists, places, st.data())
def test_any_changed_byte_of_a_segment_is_seen(
    records: list[bytes], place: tuple[int, int, int], data: st.DataObject
) -> None:
    batch = PackedBatch.pack(records, data.draw(st.integers(0, 2**63 - 1)))
    batch.seal(*place)
    damaged = bytearray(memoryview(batch))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    assert is_refused_or_subset(bytes(damaged), records, place)


def test_every_bit_of_a_small_segment_is_guarded() -> None:
    records, place = [encode_record(b"first", key=b"k"), encode_record(b""), b"x"], (7, 3, 1000)
    batch = PackedBatch.pack(records, 1_767_225_600_000)
    batch.seal(*place)
    whole = bytes(memoryview(batch))
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert is_refused_or_subset(bytes(damaged), records, place), bit
    assert all(is_refused_or_subset(whole[:cut], records, place) for cut in range(len(whole)))


@quick
@given(st.binary(max_size=300))
def test_any_bytes_are_a_segment_or_corrupt(data: bytes) -> None:
    for candidate in (data, b"\x01\x00\x00\x00\x00\x00\x00\x01" + data):
        try:
            segment_info(candidate)
        except CorruptRecordError:
            continue
        raise AssertionError("bytes without a checksum were taken for a segment")


@quick
@given(st.data())
def test_pack_bodies_against_a_model(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    given_bodies = data.draw(st.lists(st.binary(max_size=60), min_size=count, max_size=count))
    keys = data.draw(
        st.none() | st.lists(st.none() | st.sampled_from([b"", b"a", b"b", b"c"]), min_size=count, max_size=count)
    )
    metas = data.draw(st.none() | st.lists(st.binary(max_size=9), min_size=count, max_size=count))
    shards = data.draw(st.integers(1, 5))
    any_shard = data.draw(st.integers(0, shards - 1))
    max_records = data.draw(st.integers(1, 8))
    max_bytes = data.draw(st.integers(1, 400))
    batches, packed_ids = PackedBatch.pack_bodies(
        given_bodies,
        flags=1,
        keys=keys,
        shards=shards,
        any_shard=any_shard,
        metas=metas,
        max_records=max_records,
        max_bytes=max_bytes,
    )

    ids = [packed_ids[at : at + 16] for at in range(0, len(packed_ids), 16)]

    # The same in plain words: one open batch per shard; a full one closes, and keyless bodies then move on.
    expected: list[tuple[int, list[int]]] = []
    sizes: list[int] = []
    still_open: dict[int, int] = {}

    def has_room(shard: int, size: int) -> bool:
        at = still_open.get(shard)
        return at is not None and len(expected[at][1]) < max_records and sizes[at] + size <= max_bytes

    for i, body in enumerate(given_bodies):
        key = (keys[i] if keys else None) or b""
        size = 36 + len(key) + len(metas[i] if metas else b"") + len(body)
        shard = shard_for_key(key, shards) if key else any_shard
        if not key and shard in still_open and not has_room(shard, size):
            shard = any_shard = (any_shard + 1) % shards
        if not has_room(shard, size):
            still_open[shard] = len(expected)
            expected.append((shard, []))
            sizes.append(0)
        expected[still_open[shard]][1].append(i)
        sizes[still_open[shard]] += size

    assert [shard for shard, _ in batches] == [shard for shard, _ in expected]
    for (_, batch), (_, members) in zip(batches, expected, strict=True):
        records = [Record(record) for record in batch.records()]
        assert [record.body for record in records] == [given_bodies[i] for i in members]
        assert [record.id for record in records] == [ids[i] for i in members]
        assert [record.meta for record in records] == [metas[i] if metas else b"" for i in members]
    assert ids == sorted(set(ids))
    assert len(ids) == count
