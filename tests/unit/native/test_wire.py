"""The bulk codec: what goes in comes out, and nothing else comes out of damaged bytes than the declared error."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.payloads import pack_send, pack_send_batch
from ignis.errors import FrameTooLargeError, MalformedFrameError, MessageTooLargeError, NativeError
from ignis.native import ANY_SHARD, PackedBatch, Record, decode_frames, encode_frame, encode_record, shard_for_key
from ignis.native.wire import (
    FrameReader,
    ReadArea,
    encode_send_acks,
    pack_claims,
    pack_pointers,
    route_batch,
    unpack_claims,
    unpack_runs,
    unpack_send_batch,
)

AREA = ReadArea(4096)
SEND, SEND_BATCH = int(Command.SEND), int(Command.SEND_BATCH)


def batch(*bodies: bytes, **fields: Any) -> PackedBatch:
    return PackedBatch.pack([encode_record(body, **fields) for body in bodies])


def bodies(one: PackedBatch) -> list[bytes]:
    return [Record(record).body for record in one.records()]


# -- pointers and claims


@given(st.dictionaries(st.integers(0, 65_535), st.lists(st.integers(0, 300), unique=True).map(sorted), max_size=4))
def test_pointers_there_and_back(pointers: dict[int, list[int]]) -> None:
    found: dict[int, list[int]] = {}
    for shard, start, stop in unpack_runs(pack_pointers(pointers)):
        found.setdefault(shard, []).extend(range(start, stop))
    assert found == {shard: many for shard, many in pointers.items() if many}


def test_ranges_are_runs() -> None:
    assert unpack_runs(pack_pointers({1: range(5, 1_000_000)})) == [(1, 5, 1_000_000)]
    assert unpack_runs(b"xx" + pack_pointers([(1, [3, 4]), (1, [5])]), 2) == [(1, 3, 5), (1, 5, 6)]
    for shard in (-1, 65_536):
        with pytest.raises(ValueError, match="shard"):
            pack_pointers({shard: [1]})
    with pytest.raises(ValueError, match="pointer"):
        pack_pointers({0: [-1]})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\0\0", pack_pointers({0: [1]})[:-1], pack_pointers({0: [1]}) + b"\0",
        # 2**20 + 1 pointers: a request must not unfold into more work than this.
        b"\0\0\0\1\0\0" + (1).to_bytes(8, "big") + ((1 << 20) + 1).to_bytes(4, "big"),
        b"\0\0\0\1\0\0" + ((1 << 63) + 1).to_bytes(8, "big") + (1).to_bytes(4, "big"),
    ],
)  # fmt: skip
def test_pointers_that_are_none(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        unpack_runs(data)


claims_of = st.lists(
    st.tuples(
        st.integers(0, 65_535),
        st.lists(
            st.tuples(st.integers(1, 1 << 40), st.binary(max_size=30) | st.none()), max_size=6, unique_by=lambda x: x[0]
        ),
    ),
    max_size=4,
)


@given(claims_of)
def test_claims_there_and_back(claims: list[tuple[int, list[tuple[int, bytes | None]]]]) -> None:
    sent = [(shard, [one[0] for one in sorted(many)], [one[1] for one in sorted(many)]) for shard, many in claims]
    found = unpack_claims(b"head" + pack_claims(sent), 4)
    assert [(shard, list(pointers), records) for shard, pointers, records in found] == sent


@given(claims_of, st.randoms(use_true_random=False))
def test_damaged_claims(claims: list[tuple[int, list[tuple[int, bytes | None]]]], rng: random.Random) -> None:
    sent = [(shard, [one[0] for one in sorted(many)], [one[1] for one in sorted(many)]) for shard, many in claims]
    data = bytearray(pack_claims(sent))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    for size in {len(data), rng.randrange(len(data) + 1)}:
        try:
            for _, pointers, records in unpack_claims(bytes(data[:size])):
                assert len(pointers) == len(records)
        except MalformedFrameError:
            continue


# -- batches


def test_a_batch_arrives_as_it_was_packed() -> None:
    sent = [(3, batch(b"a", b"", b"c" * 3_000)), (0, batch(b"d"))]
    name, ttl_ms, found = unpack_send_batch(b"..." + pack_send_batch(b"orders", 7, sent), 3)
    assert (name, ttl_ms) == (b"orders", 7)
    assert [(shard, one.records()) for shard, one in found] == [(shard, one.records()) for shard, one in sent]
    for _, one in found:
        one.set_expiry(99)
        one.seal(1, 2, 3)


def test_an_expiry_of_the_senders_own_does_not_count() -> None:
    theirs = PackedBatch.pack([encode_record(b"a")], expires_at_ms=1)
    ((_, found),) = unpack_send_batch(pack_send_batch(b"q", 0, [(0, theirs)]))[2]
    assert bytes(found) == bytes(PackedBatch.pack(theirs.records()))


@given(st.randoms(use_true_random=False))
def test_damaged_batches(rng: random.Random) -> None:
    payload = pack_send_batch(b"q", 0, [(shard, batch(*(rng.randbytes(9) for _ in range(3)))) for shard in range(3)])
    reference = [one.records() for _, one in unpack_send_batch(payload)[2]]
    data = bytearray(payload)
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    try:
        name, ttl_ms, found = unpack_send_batch(bytes(data))
    except MalformedFrameError:
        return
    # What is not under a checksum: name, time to live, shard; and the expiry, which is not taken over.
    if (name, ttl_ms, [shard for shard, _ in found]) == (b"q", 0, [0, 1, 2]):
        assert [one.records() for _, one in found] == reference


def test_every_truncation_of_a_batch() -> None:
    payload = pack_send_batch(b"orders", 7, [(3, batch(b"a", b"b")), (0, batch(b"c"))])
    for size in range(len(payload)):
        with pytest.raises(MalformedFrameError):
            unpack_send_batch(payload[:size])
    with pytest.raises(MalformedFrameError):
        unpack_send_batch(payload + b"\0")


def test_routing_by_key() -> None:
    keys = [b"", b"a", b"b", b"a", b"c", b""]
    mixed = PackedBatch.pack([encode_record(bytes([n]), key=key) for n, key in enumerate(keys)])
    ids = b"".join(n.to_bytes(8, "big") for n in range(len(keys)))
    seen = {}
    for shard, one, request_ids in route_batch(mixed, 5, 3, ids):
        for n, body in enumerate(bodies(one)):
            assert request_ids is not None
            assert int.from_bytes(request_ids[8 * n : 8 * n + 8], "big") == body[0]
            seen[body[0]] = shard
    assert seen == {n: shard_for_key(key, 5) if key else 3 for n, key in enumerate(keys)}
    assert [body[0] for shard, one, _ in route_batch(mixed, 1, 0) for body in bodies(one)] == list(range(6))
    with pytest.raises(MalformedFrameError):
        route_batch(PackedBatch.pack([b"not a record"]), 5, 3)
    for shards, any_shard in ((0, 0), (5, 5), (70_000, 0)):
        with pytest.raises(ValueError, match="any_shard"):
            route_batch(mixed, shards, any_shard)


# -- frames


def frames_of(rng: random.Random, count: int) -> bytes:
    """A stream of what a client may send: runs of SENDs, batches, others."""
    out = []
    for n in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            out.append(encode_frame(Command.WAIT, n, rng.randbytes(rng.randrange(60))))
        elif kind == 1:
            out.append(encode_frame(SEND_BATCH, n, pack_send_batch(b"q", 0, [(1, batch(rng.randbytes(50)))])))
        else:
            name = rng.choice([b"q", b"r"])
            payload = pack_send(name, 0, rng.choice([0, 1, ANY_SHARD]), encode_record(rng.randbytes(rng.randrange(40))))
            out.append(encode_frame(SEND, n, payload))
    return b"".join(out)


def flattened(items: list[tuple[int, int, Any]]) -> list[Any]:
    """One entry per frame: runs of SENDs taken apart again."""
    flat: list[Any] = []
    for command, request_id, payload in items:
        if command == SEND and isinstance(payload, tuple):
            name, ttl_ms, groups = payload
            singles = [
                (int.from_bytes(ids[8 * n : 8 * n + 8], "big"), name, ttl_ms, shard, record)
                for shard, one, ids in groups
                for n, record in enumerate(one.records())
            ]
            flat += sorted(singles)
        elif command == SEND_BATCH and isinstance(payload, tuple):
            flat.append((request_id, payload[0], [(shard, one.records()) for shard, one in payload[2]]))
        else:
            flat.append((command, request_id, payload if isinstance(payload, bytes) else type(payload)))
    return flat


@given(st.randoms(use_true_random=False))
def test_any_split_gives_the_same(rng: random.Random) -> None:
    stream = frames_of(rng, rng.randrange(1, 12))
    whole = flattened(FrameReader(AREA, 1 << 16, sends=True).feed(stream))
    assert len(whole) == len(decode_frames(stream)[0])
    reader, parts, at = FrameReader(AREA, 1 << 16, sends=True), [], 0
    while at < len(stream):
        size = rng.choice([1, 2, 13, 14, 15, 100, 5_000])
        parts += reader.feed(stream[at : at + size])
        at += size
    assert flattened(parts) == whole
    assert reader.buffered_bytes == 0


def test_a_frame_larger_than_the_read_area() -> None:
    reader, payload = FrameReader(AREA, 1 << 20), bytes(range(256)) * 200
    stream = encode_frame(7, 1, payload) + encode_frame(8, 2, b"next")
    assert reader.feed(stream) == [(7, 1, payload), (8, 2, b"next")]
    assert reader.feed(stream[:50]) == []
    assert reader.buffered_bytes == 50


@given(st.integers(0, 1 << 32))
def test_what_is_put_by_and_fed_later_gives_the_same(seed: int) -> None:
    """Another connection reads into the area meanwhile."""
    rng = random.Random(seed)
    stream = frames_of(rng, rng.randrange(1, 12)) + encode_frame(7, 99, bytes(9_000)) + encode_frame(8, 98, b"end")
    whole = flattened(FrameReader(AREA, 1 << 16, sends=True).feed(stream))
    reader, other, parts, at = FrameReader(AREA, 1 << 16, sends=True), FrameReader(AREA, 1 << 16), [], 0
    while at < len(stream):
        with reader.get_buffer() as buffer:
            size = min(rng.choice([1, 13, 14, 100, 5_000]), len(buffer), len(stream) - at)
            buffer[:size] = stream[at : at + size]
        if rng.random() < 0.5:
            put_by = reader.arrived(size)
            assert put_by == stream[at : at + size]
            other.feed(encode_frame(9, 1, b"x" * 200))
            parts += reader.feed(put_by)
        else:
            parts += reader.received(size)
        at += size
    assert flattened(parts) == whole


def test_only_what_has_arrived_is_put_by() -> None:
    area = ReadArea(4_096)
    one, other = FrameReader(area, 1 << 16), FrameReader(area, 1 << 16)
    one.get_buffer().release()
    for size in (-1, 4_097):
        with pytest.raises(ValueError, match="were received into"):
            one.arrived(size)
    other.get_buffer().release()
    with pytest.raises(NativeError, match="no longer there"):
        one.arrived(5)
    assert one.arrived(0) == b""


def test_two_connections_share_an_area() -> None:
    one, other = FrameReader(AREA, 1 << 16), FrameReader(AREA, 1 << 16)
    frames = [encode_frame(7, n, bytes([n]) * 500) for n in range(4)]
    found = []
    for n in range(0, 4, 2):
        assert one.feed(frames[n][:100]) == []
        assert other.feed(frames[n + 1][:200]) == []
        found += one.feed(frames[n][100:]) + other.feed(frames[n + 1][200:])
    assert found == [(7, n, bytes([n]) * 500) for n in range(4)]


def test_bytes_that_another_connection_was_read_over_are_refused() -> None:
    area = ReadArea(4_096)
    one, other = FrameReader(area, 1 << 16), FrameReader(area, 1 << 16)
    frame, others = encode_frame(7, 1, b"mine"), encode_frame(7, 2, b"hers")
    with one.get_buffer() as buffer:
        buffer[: len(frame)] = frame
    with other.get_buffer() as buffer:
        buffer[: len(others)] = others
    with pytest.raises(NativeError, match="no longer there"):
        one.received(len(frame))
    assert one.received(0) == []
    assert other.received(len(others)) == [(7, 2, b"hers")]
    assert one.feed(frame) == [(7, 1, b"mine")]


def test_bytes_are_looked_for_only_where_they_were_read_into() -> None:
    reader, frame = FrameReader(ReadArea(4_096), 1 << 16), encode_frame(7, 1, b"mine")
    reader.feed(frame[:5])
    with pytest.raises(NativeError, match="no longer there"):
        reader.received(9)  # into a frame's own memory, which was not given yet
    reader.get_buffer().release()
    reader.close()
    with pytest.raises(NativeError, match="no longer there"):
        reader.received(9)  # they went with what was closed
    assert reader.feed(frame) == [(7, 1, b"mine")]


def test_what_is_announced_costs_nothing() -> None:
    reader = FrameReader(AREA, 1 << 30)
    assert reader.feed((1 << 29).to_bytes(4, "big") + bytes(60)) == []
    assert len(reader.get_buffer()) <= 4096


def test_memory_of_incomplete_frames_is_counted_and_given_back() -> None:
    area = ReadArea(65_536)
    one, other = FrameReader(area, 1 << 20), FrameReader(area, 1 << 20)
    frame = encode_frame(7, 1, bytes(100_000))
    assert one.feed(frame[:70_000]) == []
    assert (one.buffered_bytes, one.frame_bytes, one.needs_bytes) == (70_000, len(frame), 0)
    assert area.carried_bytes == len(frame), "no more than twice of what came, and no more than the frame"
    assert other.feed(frame[:2]) == []
    assert (other.frame_bytes, area.carried_bytes) == (0, len(frame) + 512)
    assert one.feed(frame[70_000:] + b"\0") == [(7, 1, bytes(100_000))]
    assert area.carried_bytes == 2 * 512
    other.close()
    assert (other.buffered_bytes, area.carried_bytes) == (0, 512)
    del one
    assert area.carried_bytes == 0


def test_what_the_next_read_takes_is_known_before() -> None:
    area = ReadArea(65_536)
    reader = FrameReader(area, 1 << 20)
    frame = encode_frame(7, 1, bytes(100_000))
    at = 0
    while at < len(frame):
        before, needs = area.carried_bytes, reader.needs_bytes
        view = reader.get_buffer()
        assert area.carried_bytes == before + needs
        taken = min(len(view), 3_000, len(frame) - at)
        view[:taken] = frame[at : at + taken]
        view.release()
        reader.received(taken)
        at += taken
        assert area.carried_bytes <= 2 * at
    assert (area.carried_bytes, reader.needs_bytes) == (0, 0)


def test_memory_is_given_back_while_somebody_still_looks_at_it() -> None:
    """As event loops do, which keep their view until the next read."""
    area = ReadArea(4_096)
    reader = FrameReader(area, 1 << 20)
    frame = encode_frame(7, 1, bytes(20_000))
    reader.feed(frame[:19_000])
    view = reader.get_buffer()
    assert len(view) == len(frame) - 19_000
    view[:] = frame[19_000:]
    assert reader.received(len(frame) - 19_000) == [(7, 1, bytes(20_000))]
    assert (reader.buffered_bytes, area.carried_bytes) == (0, 0)
    view[0] = 1
    assert reader.feed(frame) == [(7, 1, bytes(20_000))]
    view.release()


def test_reads_can_be_narrowed() -> None:
    area = ReadArea(8_192)
    reader = FrameReader(area, 1 << 20)
    area.read_bytes = 100
    view = reader.get_buffer()
    assert len(view) == 100
    view.release()
    assert reader.feed(encode_frame(7, 1, bytes(5_000))) == [(7, 1, bytes(5_000))]
    for size in (0, -1, 8_193):
        with pytest.raises(ValueError, match="reads of"):
            area.read_bytes = size


def test_damage_gives_the_memory_back() -> None:
    area = ReadArea(4_096)
    reader = FrameReader(area, 10_000)
    reader.feed(encode_frame(7, 1, bytes(8_000))[:5_000])
    assert area.carried_bytes
    assert len(reader.feed(bytes(4_000))) == 1, "the frame, and behind it what is none"
    assert area.carried_bytes == 0
    assert isinstance(reader.lost, MalformedFrameError)
    with pytest.raises(MalformedFrameError):
        reader.feed(b"x")


def test_limits_and_damage() -> None:
    with pytest.raises(FrameTooLargeError) as found:
        FrameReader(AREA, 100).feed((1 << 20).to_bytes(4, "big"))
    assert found.value.limit_bytes == 100
    reader = FrameReader(AREA, 100)
    assert reader.feed(encode_frame(1, 1, b"ok") + b"\xff\xff\xff\xff") == [(1, 1, b"ok")]
    for _ in range(2):
        with pytest.raises(MalformedFrameError):
            reader.feed(b"more")


def test_a_bad_payload_is_one_requests_error() -> None:
    good = pack_send(b"q", 0, 0, encode_record(b"x"))
    stream = (
        encode_frame(SEND, 1, good) + encode_frame(SEND, 2, good[:20]) + encode_frame(SEND, 3, good)
        + encode_frame(SEND_BATCH, 4, b"rubbish") + encode_frame(9, 5, b"after")
    )  # fmt: skip
    items = FrameReader(AREA, 1 << 16, sends=True).feed(stream)
    assert [(command, request_id) for command, request_id, _ in items] == [(10, 1), (10, 2), (10, 3), (11, 4), (9, 5)]
    assert isinstance(items[1][2], MalformedFrameError)
    assert isinstance(items[3][2], MalformedFrameError)


def test_a_buffer_in_use_is_not_given_twice() -> None:
    reader = FrameReader(AREA, 1 << 16)
    held = reader.get_buffer()
    with pytest.raises(BufferError):
        reader.get_buffer()
    held.release()
    with pytest.raises(ValueError, match="received"):
        reader.received(len(reader.get_buffer()) + 1)


def test_acknowledgements_of_a_run() -> None:
    ids = [5, 1 << 40, 7]
    stream = encode_send_acks(b"".join(one.to_bytes(8, "big") for one in ids), 3, 100)
    found, size = decode_frames(stream)
    assert size == len(stream)
    assert [(command, request_id) for command, request_id, _ in found] == [(12, one) for one in ids]
    assert [payload.hex() for _, _, payload in found] == [
        f"00010003{pointer:016x}00000001" for pointer in (100, 101, 102)
    ]


def test_metadata_over_128_kib_are_refused_by_name() -> None:
    """In a batch, and in a run of SENDs of which the others are taken."""
    most = 128 << 10
    for size in (most, most + 1):
        record = encode_record(b"1", meta=bytes(size))
        sent = pack_send_batch(b"orders", 7, [(0, PackedBatch.pack([record]))])
        send = struct.pack(">H", 6) + b"orders" + struct.pack(">QH", 7, 0)
        frames = b"".join(
            encode_frame(SEND, number, send + one)
            for number, one in ((1, encode_record(b"a")), (2, record), (3, encode_record(b"b")))
        )
        reader = FrameReader(ReadArea(1 << 20), 1 << 20, True)
        found = reader.feed(frames + encode_frame(SEND_BATCH, 4, sent))
        if size == most:
            assert len(unpack_send_batch(sent)[2]) == 1
            assert [(request_id, type(payload)) for _, request_id, payload in found] == [(1, tuple), (4, tuple)]
            continue
        with pytest.raises(
            MessageTooLargeError,
            match=f"metadata of {size} bytes is over the limit of {most} bytes .*max_headers_bytes",
        ):
            unpack_send_batch(sent)
        kinds = [(request_id, type(payload)) for _, request_id, payload in found]
        assert kinds == [(1, tuple), (2, MessageTooLargeError), (3, tuple), (4, MessageTooLargeError)]
