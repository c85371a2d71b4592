"""One request under way: what a client sends and receives with one call of the system each."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from ignis.errors import MalformedFrameError
from ignis.native import (
    CODEC_JSON,
    FRAME_HEADER_BYTES,
    FrameDecoder,
    PackedBatch,
    Record,
    encode_frame,
    encode_record,
    id_text,
)
from ignis.native.wire import (
    FrameReader,
    Outgoing,
    ReadArea,
    exchange_lone,
    pack_send_batch,
    pointer_in_ack,
    receive_answer,
    unpack_send_ack,
    unpack_send_batch,
)  # fmt: skip

ANSWERS = frozenset({2})


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
    with one, other:
        yield one, other


@pytest.fixture
def reader() -> FrameReader:
    return FrameReader(ReadArea(4096), 1 << 20)


def test_a_frame_is_sent_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    for payload in (b"", b"payload", b"x" * 30_000):
        assert Outgoing(11, payload).send(pair[0].fileno(), -5) == FRAME_HEADER_BYTES + len(payload)
        decoder = FrameDecoder()
        found: list[tuple[int, int, bytes]] = []
        while not found:
            decoder.feed(pair[1].recv(1 << 16))
            found += decoder.frames()
        assert found == [(11, -5, payload)]


def test_a_frame_that_has_no_room_is_sent_in_part_or_not_at_all(pair: tuple[socket.socket, socket.socket]) -> None:
    payload = bytes(range(256)) * 20_000
    sent = Outgoing(11, payload).send(pair[0].fileno(), 5)
    assert 0 < sent < len(payload)
    while Outgoing(11, payload).send(pair[0].fileno(), 6):
        pass
    frame = encode_frame(11, 5, payload)
    assert pair[1].recv(sent, socket.MSG_WAITALL) == frame[:sent]


def test_a_broken_connection_is_an_error(pair: tuple[socket.socket, socket.socket], reader: FrameReader) -> None:
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        Outgoing(11, b"x").send(pair[0].fileno(), 5)
    assert receive_answer(reader, pair[0].fileno(), 5, ANSWERS) == 0
    for call in (
        lambda: Outgoing(11, b"x").send(-1, 5),
        lambda: receive_answer(reader, -1, 5, ANSWERS),
    ):
        with pytest.raises(OSError, match="descriptor"):
            call()


def test_an_answer_that_comes_alone_is_taken(pair: tuple[socket.socket, socket.socket], reader: FrameReader) -> None:
    pair[1].sendall(encode_frame(2, 5, b"answer"))
    assert receive_answer(reader, pair[0].fileno(), 5, ANSWERS) == (2, b"answer")
    assert reader.buffered_bytes == 0
    assert receive_answer(reader, pair[0].fileno(), 5, ANSWERS) is None


@pytest.mark.parametrize(
    "came",
    [
        encode_frame(2, 6, b"another's"),
        encode_frame(3, 5, b"a refusal"),
        encode_frame(2, 5, b"mine") + encode_frame(2, 6, b"and another's"),
        encode_frame(2, 5, b"mine")[:9],
        encode_frame(2, 5, b"mine") + encode_frame(2, 6, b"cut")[:8],
    ],
    ids=["another", "refused", "two", "cut", "one and a half"],
)
def test_what_else_comes_is_left_to_the_reader(
    pair: tuple[socket.socket, socket.socket], reader: FrameReader, came: bytes
) -> None:
    pair[1].sendall(came)
    size = receive_answer(reader, pair[0].fileno(), 5, ANSWERS)
    assert size == len(came)
    assert isinstance(size, int)
    expected = FrameReader(ReadArea(4096), 1 << 20)
    assert reader.received(size) == expected.feed(came)
    assert reader.buffered_bytes == expected.buffered_bytes
    if reader.buffered_bytes:  # it holds a part of a frame: the ordinary way is the only one
        pair[1].sendall(encode_frame(2, 5, b"x"))
        assert receive_answer(reader, pair[0].fileno(), 5, ANSWERS) is None


def test_bytes_that_are_no_frame_are_left_to_the_reader(
    pair: tuple[socket.socket, socket.socket], reader: FrameReader
) -> None:
    pair[1].sendall(b"\xff" * 20)
    assert receive_answer(reader, pair[0].fileno(), 5, ANSWERS) == 20
    with pytest.raises(ValueError, match="not a frame"):
        reader.received(20)


def test_batches_are_packed_as_the_broker_reads_them() -> None:
    batches = [(3, PackedBatch.pack([b"a", b"b" * 500])), (0xFFFF, PackedBatch.pack([b"c"]))]
    payload = pack_send_batch(b"queue", 7, batches)
    pieces = [struct.pack(">H", 5), b"queue", struct.pack(">QH", 7, 2)]
    for shard, batch in batches:
        pieces += [struct.pack(">HI", shard, batch.nbytes), bytes(batch)]
    assert payload == b"".join(pieces)
    name, ttl_ms, found = unpack_send_batch(payload)
    assert (name, ttl_ms) == (b"queue", 7)
    assert [(shard, list(batch.records())) for shard, batch in found] == [
        (shard, list(batch.records())) for shard, batch in batches
    ]
    assert pack_send_batch(b"", 0, []) == bytes(12)
    for arguments in ((b"x" * 65_536, 0, []), (b"q", 0, [(65_536, batches[0][1])]), (b"q", 0, [(-1, batches[0][1])])):
        with pytest.raises(ValueError, match="65535"):
            pack_send_batch(*arguments)
    for wrong in ([(0, b"bytes")], [(0, None)]):
        with pytest.raises(TypeError):
            pack_send_batch(b"q", 0, wrong)  # type: ignore[arg-type]


def test_a_load_is_sent_as_it_would_be_put_together(pair: tuple[socket.socket, socket.socket]) -> None:
    for bodies in ([b"x"], [b"y" * 700] * 40):
        batch = PackedBatch.pack(bodies)
        outgoing = Outgoing.load(b"queue", 1 << 63, 3, batch)
        frame = encode_frame(11, 9, pack_send_batch(b"queue", 1 << 63, [(3, batch)]))
        assert outgoing.frame(9) == frame
        assert outgoing.nbytes == len(frame)
        assert outgoing.send(pair[0].fileno(), 9) == len(frame)
        assert pair[1].recv(len(frame), socket.MSG_WAITALL) == frame
        batch.seal(0, 3, 1)  # no view of it is left
    for name, shard in ((b"n" * 65_536, 0), (b"q", -1), (b"q", 65_536)):
        with pytest.raises(ValueError):  # noqa: PT011 - each says what
            Outgoing.load(name, 0, shard, batch)


def test_acknowledgements_of_loads_are_taken_apart() -> None:
    runs = [(1, (1 << 62) + 5, 7), (65_535, 1, 1)]
    packed = b"".join(
        shard.to_bytes(2, "big") + first.to_bytes(8, "big") + count.to_bytes(4, "big") for shard, first, count in runs
    )
    assert unpack_send_ack(b"\0\2" + packed) == runs
    assert unpack_send_ack(b"\0\1" + packed[:14]) == runs[:1]
    assert unpack_send_ack(b"\0\0") == []
    for wrong in (b"", b"\0", b"\0\1", b"\0\2" + packed[:-1], b"\0\1" + packed, b"\xff\xff" + packed):
        with pytest.raises(MalformedFrameError, match=f"SEND_ACK of {len(wrong)} bytes"):
            unpack_send_ack(wrong)


@pytest.mark.parametrize("body", [b"", b"body", b"x" * 70_000], ids=["empty", "small", "large"])
def test_a_body_is_sent_as_the_batch_that_it_would_be_packed_to(body: bytes) -> None:
    outgoing = Outgoing.load_body(b"queue", 1 << 63, 3, body, CODEC_JSON)
    frame = outgoing.frame(7)
    assert len(frame) == outgoing.nbytes
    decoder = FrameDecoder()
    decoder.feed(frame)
    [(command, request_id, payload)] = decoder.frames()
    name, ttl_ms, [(shard, batch)] = unpack_send_batch(payload)
    assert (command, request_id, name, ttl_ms, shard, batch.count) == (11, 7, b"queue", 1 << 63, 3, 1)
    raw = payload[-len(encode_record(body)) :]
    record = Record(raw)
    assert (record.body, record.key, record.meta, record.attempts) == (body, b"", b"", 0)
    assert id_text(record.id) == outgoing.message_id
    again = encode_record(body, flags=CODEC_JSON, id=record.id, enqueued_at_us=record.enqueued_at_us)
    assert payload == pack_send_batch(b"queue", 1 << 63, [(3, PackedBatch.pack([again]))])


def test_a_body_that_has_no_room_is_sent_in_part_and_its_frame_goes_on(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    outgoing = Outgoing.load_body(b"queue", 0, 3, b"x" * 5_000_000, 0)
    sent = outgoing.send(pair[0].fileno(), 5)
    assert 0 < sent < outgoing.nbytes
    while outgoing.send(pair[0].fileno(), 6):
        pass
    frame = outgoing.frame(5)
    assert len(frame) == outgoing.nbytes
    assert pair[1].recv(sent, socket.MSG_WAITALL) == frame[:sent]
    with pytest.raises(OSError, match="descriptor"):
        outgoing.send(-1, 5)


def test_each_body_gets_an_id_of_its_own_and_they_rise() -> None:
    ids = [Outgoing.load_body(b"q", 0, 0, b"", 0).message_id for _ in range(1_000)]
    assert ids == sorted(set(ids))


def test_a_body_that_has_no_room_in_a_frame_is_refused() -> None:
    for name, shard in ((b"n" * 70_000, 1), (b"n", -1), (b"n", 1 << 16)):
        with pytest.raises(ValueError, match=r"shard|batch"):
            Outgoing.load_body(name, 0, shard, b"", 0)


def test_the_pointer_of_an_acknowledgement() -> None:
    ack = struct.pack(">HHQI", 1, 3, 1 << 40, 1)
    assert pointer_in_ack(ack) == 1 << 40
    for wrong in (b"", ack[:-1], ack + b"x", struct.pack(">HHQI", 2, 3, 17, 1), struct.pack(">H", 0)):
        with pytest.raises(MalformedFrameError):
            pointer_in_ack(wrong)


def test_an_exchange_takes_connections_alone() -> None:
    with pytest.raises(AttributeError):
        exchange_lone(object(), Outgoing(11, b""), 0.0, ANSWERS, None)
