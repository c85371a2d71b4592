"""A request to load that came alone, from the receive buffer into a log and to its answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.payloads import Delivery
from ignis.errors import ClosedError, StoreFullError
from ignis.native import ANY_SHARD, FrameDecoder, PackedBatch, Record, encode_frame, encode_record, shard_for_key
from ignis.native.lone import LoneAck, LoneRequest
from ignis.native.store import Log
from ignis.native.wire import (
    COMMAND_SEND,
    COMMAND_SEND_ACK,
    COMMAND_SEND_BATCH,
    ClaimsFrame,
    FrameReader,
    ReadArea,
    pack_pointers,
    pack_send_batch,
    unpack_claims,
)

ID = 77
NOTHING_ELSE = pack(Delivery())
"""The head of a DELIVER."""


class Connection:
    """The receiving side: what `comes` lies where a loop has read it."""

    def __init__(self, area: ReadArea | None = None, most: int = 4_096) -> None:
        self.area = area or ReadArea(8_192)
        self.reader = FrameReader(self.area, most, sends=True)
        self.lone = LoneRequest(self.area)
        self.ack = LoneAck(self.area)

    def reads(self, data: bytes) -> None:
        with self.reader.get_buffer() as buffer:
            buffer[: len(data)] = data

    def comes(self, data: bytes) -> str | None:
        self.reads(data)
        return self.lone.look(self.reader, len(data))

    def acks(self, data: bytes) -> str | None:
        self.reads(data)
        return self.ack.look(self.reader, len(data))


@pytest.fixture
def here() -> Connection:
    return Connection()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(str(tmp_path), segment_bytes=1 << 20)
    yield made
    made.close()


@pytest.fixture
def number(log: Log) -> int:
    """A magazine of four shards."""
    made = log.declare("m", 4, 0)
    assert made is not None
    return made


def send(shard: int = 2, *, name: bytes = b"m", key: bytes = b"", body: bytes = b"body", ttl_ms: int = 5) -> bytes:
    front = len(name).to_bytes(2, "big") + name + ttl_ms.to_bytes(8, "big") + shard.to_bytes(2, "big")
    return encode_frame(COMMAND_SEND, ID, front + encode_record(body, key=key))


def send_batch(shard: int = 2, bodies: int = 3, *, groups: int = 1, key: bytes = b"") -> bytes:
    batch = PackedBatch.pack([encode_record(b"%d" % one, key=key) for one in range(bodies)])
    return encode_frame(COMMAND_SEND_BATCH, ID, pack_send_batch(b"m", 5, [(shard, batch)] * groups))


def there(log: Log, number: int, shard: int) -> list[tuple[int, list[bytes], int]]:
    """(first pointer, bodies, expires_at_ms) of what a shard has."""
    pieces = log.peek(number, shard, [(1, 1 << 40)])
    return [(first, [Record(one or b"").body for one in records], expires) for first, records, expires in pieces]


def acked(data: bytes) -> tuple[int, int, bytes]:
    decoder = FrameDecoder()
    decoder.feed(data)
    ((command, request_id, payload),) = decoder.frames()
    return command, request_id, payload


def test_a_send_goes_from_the_buffer_into_the_log(here: Connection, log: Log, number: int) -> None:
    assert here.comes(send()) == "m"
    lone = here.lone
    assert (lone.request_id, lone.is_batch, lone.ttl_ms, lone.any_shard, lone.count) == (ID, False, 5, False, 1)
    assert lone.load(log, number, 4, 0, 123_456) == 1
    assert there(log, number, 2) == [(1, [b"body"], 123_456)]
    assert acked(lone.answer()) == (COMMAND_SEND_ACK, ID, bytes.fromhex("0001 0002 0000000000000001 00000001"))
    # The reader knows nothing of it.
    assert here.reader.buffered_bytes == 0
    assert here.reader.feed(encode_frame(3, 1, b"")) == [(3, 1, b"")]


def test_a_batch_goes_as_a_whole(here: Connection, log: Log, number: int) -> None:
    assert here.comes(send_batch()) == "m"
    assert (here.lone.is_batch, here.lone.count) == (True, 3)
    assert here.lone.load(log, number, 4, 0, 0) == 1
    assert here.comes(send_batch(bodies=2)) == "m"
    assert here.lone.load(log, number, 4, 0, 0) == 4
    assert there(log, number, 2) == [(1, [b"0", b"1", b"2"], 0), (4, [b"0", b"1"], 0)]
    assert acked(here.lone.answer())[2] == bytes.fromhex("0001 0002 0000000000000004 00000002")


@pytest.mark.parametrize("make", [send, send_batch])
@pytest.mark.parametrize("key", [b"", b"customer 7"])
def test_the_shard_is_chosen_by_the_key_or_is_any(
    here: Connection, log: Log, number: int, make: object, key: bytes
) -> None:
    frame = send(ANY_SHARD, key=key) if make is send else send_batch(ANY_SHARD, 1, key=key)
    assert here.comes(frame) == "m"
    assert here.lone.any_shard
    assert here.lone.load(log, number, 4, 3, 0) == 1
    assert len(there(log, number, shard_for_key(key, 4) if key else 3)) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"", send()[:-1], send() + b"\0", send() + send(), send_batch(groups=2), send_batch(groups=0),
        encode_frame(25, ID, b"x"), encode_frame(COMMAND_SEND, ID, b""), encode_frame(COMMAND_SEND_BATCH, ID, b"\0"),
        send(name=b""), send(name=b"n" * 256), send(name="n\u00e4me".encode()), b"\xff" * 40,
        send(body=b"x" * 4_096),
    ],
    ids=[
        "nothing", "cut", "more", "two", "two groups", "no group", "another", "empty", "empty batch", "no name",
        "long name", "not ASCII", "no frame", "too large",
    ],
)  # fmt: skip
def test_everything_else_is_left_as_it_is(here: Connection, log: Log, number: int, data: bytes) -> None:
    assert here.comes(data) is None
    with pytest.raises(ValueError, match="look first"):
        here.lone.load(log, number, 4, 0, 0)


def test_what_is_wrong_with_it_is_not_loaded(here: Connection, log: Log, number: int) -> None:
    damaged = bytearray(send_batch())
    damaged[-1] ^= 1
    for data in (
        bytes(damaged),
        send(4),
        send_batch(4),
        send_batch(ANY_SHARD, 2),
        send(ANY_SHARD, body=b"").replace(b"\1", b"\x09"),
    ):
        if here.comes(data) is not None:
            assert here.lone.load(log, number, 4, 0, 0) is None
            with pytest.raises(ValueError, match="not loaded"):
                here.lone.answer()
            # The bytes are as they were.
            assert here.reader.received(len(data))
    assert all(not there(log, number, shard) for shard in range(4))


def test_a_frame_of_which_something_lies_elsewhere_is_none(here: Connection) -> None:
    data = send()
    assert here.reader.feed(data[:20]) == []
    assert here.lone.look(here.reader, len(data)) is None
    other = Connection()
    assert here.lone.look(other.reader, len(data)) is None


def test_what_another_connection_was_read_over_is_not_loaded(here: Connection, log: Log, number: int) -> None:
    """Where it lies is another customer's message by then, whole and with the right checksums."""
    other = Connection(here.area)
    assert here.comes(send(1, body=b"mine")) == "m"
    assert other.comes(send(2, body=b"hers")) == "m"
    with pytest.raises(ValueError, match="look first"):
        here.lone.load(log, number, 4, 0, 0)
    assert here.lone.look(here.reader, len(send(1, body=b"mine"))) is None
    assert other.lone.load(log, number, 4, 0, 0) == 1
    assert [there(log, number, shard) for shard in range(4)] == [[], [], [(1, [b"hers"], 0)], []]


def test_with_an_owner_it_is_claimed_unless_older_ones_wait(here: Connection, log: Log, number: int) -> None:
    here.comes(send())
    assert here.lone.load(log, number, 4, 0, 0, b"me", 1_000) == 1
    claims = ClaimsFrame()
    here.lone.put_into(claims)
    assert (claims.messages, claims.runs) == (1, [(2, 1, 2)])
    ((shard, pointers, records),) = unpack_claims(bytes(claims.frame(24, 1, b""))[14:])
    assert (shard, list(pointers)) == (2, [1])
    assert Record(records[0] or b"").body == b"body"
    assert log.claims(number, 2) == [(1, 1, 1, 1_000, b"me")]
    here.comes(send())
    assert here.lone.load(log, number, 4, 0, 0) == 2
    here.comes(send())
    assert here.lone.load(log, number, 4, 0, 0, b"me", 1_000) is None


def test_what_a_log_refuses(here: Connection, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    log = Log(str(tmp_path / "small"), segment_bytes=1 << 20, max_bytes=100)
    number = log.declare("m", 4, 0)
    assert number is not None
    here.comes(send(body=b"x" * 200))
    with pytest.raises(StoreFullError):
        here.lone.load(log, number, 4, 0, 0)
    log.close()
    with pytest.raises(ClosedError):
        here.lone.load(log, number, 4, 0, 0)


def test_a_magazine_that_is_not_there_is_for_those_who_can_look_for_it(here: Connection, log: Log, number: int) -> None:
    here.comes(send())
    assert here.lone.load(log, number + 1, 4, 0, 0) is None
    assert here.lone.load(log, number, 4, 0, 0) == 1


def test_the_answer_is_sent_or_what_is_left_of_it_returned(here: Connection, log: Log, number: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        here.comes(send())
        here.lone.load(log, number, 4, 0, 0)
        answer = here.lone.answer()
        assert here.lone.acknowledge(one.fileno()) == (len(answer), b"")
        assert other.recv(100) == answer
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(b"x" * 1_000)
        assert here.lone.acknowledge(one.fileno()) == (len(answer), answer)
        other.close()
        assert here.lone.acknowledge(one.fileno()) == (len(answer), answer), "the transport finds out"


@pytest.mark.parametrize("bodies", [1, 3, 200])
def test_its_messages_are_sent_from_where_they_lie(log: Log, number: int, bodies: int) -> None:
    """The same frame as by way of claims, in however many pieces the system takes it."""
    here = Connection(ReadArea(65_536), 65_536)
    one, other = socket.socketpair()
    with one, other:
        here.comes(send_batch(bodies=bodies))
        with pytest.raises(ValueError, match="not loaded"):
            here.lone.deliver(one.fileno(), 9)
        assert here.lone.load(log, number, 4, 0, 0, b"me", 1_000) == 1
        assert here.lone.run == (2, 1, 1 + bodies)
        claims = ClaimsFrame()
        here.lone.put_into(claims)
        frame = bytes(claims.frame(24, 9, NOTHING_ELSE))
        size, rest = here.lone.deliver(one.fileno(), 9)
        assert (size, rest) == (len(frame), b"")
        assert other.recv(2 * size) == frame
        one.setblocking(False)
        for filler in (1_000, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(b"x" * filler)
        assert here.lone.deliver(one.fileno(), 9) == (size, frame), "no room at all"
        other.close()
        assert here.lone.deliver(one.fileno(), 9) == (size, frame), "the transport finds out"


def test_what_the_system_did_not_take_of_a_delivery_is_returned(log: Log, number: int) -> None:
    here = Connection(ReadArea(1 << 20), 1 << 20)
    one, other = socket.socketpair()
    with one, other:
        here.comes(send(body=b"".join(b"%07d." % part for part in range(3_000))))
        assert here.lone.load(log, number, 4, 0, 0, b"me", 1_000) == 1
        claims = ClaimsFrame()
        here.lone.put_into(claims)
        frame = bytes(claims.frame(24, 9, NOTHING_ELSE))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        size, rest = here.lone.deliver(one.fileno(), 9)
        assert size == len(frame)
        assert 0 < len(rest) < size
        assert other.recv(size - len(rest), socket.MSG_WAITALL) + rest == frame


def test_numbers_out_of_range(here: Connection, log: Log, number: int) -> None:
    here.comes(send())
    for arguments in ((-1, 4, 0, 0), (number, 0, 0, 0), (number, 65_536, 0, 0), (number, 4, -1, 0), (number, 4, 0, -1)):
        with pytest.raises(ValueError, match="must be"):
            here.lone.load(log, *arguments)
    with pytest.raises(TypeError):
        LoneRequest(None)  # type: ignore[arg-type]


# -- acknowledgements


def ack(*runs: tuple[int, range], name: str = "m") -> bytes:
    return encode_frame(Command.ACK, ID, pack((name,), pack_pointers(list(runs))))


@pytest.fixture
def loaded(here: Connection, log: Log, number: int) -> int:
    """A magazine of four shards with five messages in each of the first two, all of them claimed."""
    for shard in (0, 1):
        here.comes(send_batch(shard, 5))
        here.lone.load(log, number, 4, 0, 0, b"me", 1_000)
    return number


def test_what_is_acknowledged_is_retired(here: Connection, log: Log, loaded: int) -> None:
    assert here.acks(ack((0, range(2, 3)))) == "m"
    assert here.ack.request_id == ID
    assert here.ack.runs == [(0, 2, 3)]
    assert here.ack.retire(log, loaded) == 1
    assert acked(here.ack.answer()) == (Command.RESULT, ID, pack(1))
    assert here.acks(ack((0, range(1, 2)), (0, range(3, 4)), (1, range(1, 6)))) == "m"
    assert here.ack.runs == [(0, 1, 2), (0, 3, 4), (1, 1, 6)]
    assert here.ack.retire(log, loaded) == 7
    assert acked(here.ack.answer()) == (Command.RESULT, ID, pack(7))
    assert [there(log, loaded, shard) for shard in (0, 1)] == [[(4, [b"3", b"4"], 0)], []]


def test_what_is_gone_is_not_counted(here: Connection, log: Log, loaded: int) -> None:
    for count in (2, 0):
        assert here.acks(ack((1, range(4, 9)))) == "m"
        assert here.ack.retire(log, loaded) == count
        assert acked(here.ack.answer()) == (Command.RESULT, ID, pack(count))


@pytest.mark.parametrize("number_of_messages", [1, 127, 128, 255, 256])
def test_the_answer_is_written_as_others_write_it(log: Log, number: int, number_of_messages: int) -> None:
    here = Connection(ReadArea(1 << 20), 1 << 20)
    here.comes(send_batch(bodies=number_of_messages))
    assert here.lone.load(log, number, 4, 0, 0) == 1
    assert here.acks(ack((2, range(1, 1 + number_of_messages)))) == "m"
    assert here.ack.retire(log, number) == number_of_messages
    assert here.ack.answer() == encode_frame(Command.RESULT, ID, pack(number_of_messages))


@pytest.mark.parametrize(
    "data",
    [
        b"", ack((0, range(1, 2)))[:-1], ack((0, range(1, 2))) + b"\0", 2 * ack((0, range(1, 2))), ack(),
        ack((0, range(1, 3)), (0, range(2, 3))), ack((1, range(1, 2)), (0, range(1, 2))), ack((0, range(1, 4_098))),
        ack(*((0, range(2 * one, 2 * one + 1)) for one in range(1, 66))), ack((0, range(1, 2)), name=""),
        ack((0, range(1, 2)), name="n\u00e4me"), ack((0, range(1, 2)), name="n" * 256), send(),
        encode_frame(Command.NACK, ID, pack(("m",), pack_pointers({0: [1]}))),
        encode_frame(Command.ACK, ID, pack(("m", 1), pack_pointers({0: [1]}))),
        encode_frame(Command.ACK, ID, pack("m", pack_pointers({0: [1]}))),
        encode_frame(Command.ACK, ID, pack((b"m",), pack_pointers({0: [1]}))),
        encode_frame(Command.ACK, ID, b""), encode_frame(Command.ACK, ID, b"\0\0\0\0"), b"\xff" * 40,
    ],
    ids=[
        "nothing", "cut", "more", "two", "no pointer", "one twice", "descending", "many pointers", "many runs", "no name",
        "not ASCII", "long name", "a SEND", "a NACK", "two fields", "no array", "bytes", "empty", "no head", "no frame",
    ],
)  # fmt: skip
def test_every_other_acknowledgement_is_left_as_it_is(here: Connection, log: Log, loaded: int, data: bytes) -> None:
    assert here.acks(data) is None
    with pytest.raises(ValueError, match="look first"):
        here.ack.retire(log, loaded)
    with pytest.raises(ValueError, match="look first"):
        here.ack.runs  # noqa: B018
    assert len(there(log, loaded, 0)[0][1]) == 5


@pytest.mark.parametrize("run", [(9, range(1, 2)), (0, range(1)), (0, range(1 << 62, (1 << 62) + 1))])
def test_an_acknowledgement_that_a_log_has_no_answer_to_changes_nothing(
    here: Connection, log: Log, loaded: int, run: tuple[int, range]
) -> None:
    data = ack(run)
    assert here.acks(data) == "m"
    assert here.ack.retire(log, loaded) is None
    with pytest.raises(ValueError, match="not retired"):
        here.ack.answer()
    # The bytes are as they were.
    assert here.reader.received(len(data)) == [(Command.ACK, ID, data[14:])]
    assert here.acks(ack((0, range(1, 2)))) == "m"
    assert here.ack.retire(log, loaded + 1) is None, "a magazine that is not there is for those who can look for it"
    assert here.ack.retire(log, loaded) == 1


def test_an_acknowledgement_that_another_connection_was_read_over_is_not_carried_out(
    here: Connection, log: Log, loaded: int
) -> None:
    other = Connection(here.area)
    assert here.acks(ack((0, range(1, 2)))) == "m"
    assert other.acks(ack((1, range(1, 2)))) == "m"
    for call in (lambda: here.ack.retire(log, loaded), lambda: here.ack.runs):
        with pytest.raises(ValueError, match="look first"):
            call()
    assert other.ack.retire(log, loaded) == 1
    assert [len(there(log, loaded, shard)[0][1]) for shard in (0, 1)] == [5, 4]


def test_an_acknowledgement_is_carried_out_once(here: Connection, log: Log, loaded: int) -> None:
    assert here.acks(ack((0, range(1, 2)))) == "m"
    assert here.ack.retire(log, loaded) == 1
    with pytest.raises(ValueError, match="look first"):
        here.ack.retire(log, loaded)
    assert len(there(log, loaded, 0)[0][1]) == 4


def test_the_answer_to_an_acknowledgement_is_sent_or_what_is_left_of_it_returned(
    here: Connection, log: Log, loaded: int
) -> None:
    one, other = socket.socketpair()
    with one, other:
        here.acks(ack((0, range(1, 2))))
        here.ack.retire(log, loaded)
        answer = here.ack.answer()
        assert here.ack.acknowledge(one.fileno()) == (len(answer), b"")
        assert other.recv(100) == answer
        other.close()
        assert here.ack.acknowledge(one.fileno()) == (len(answer), answer), "the transport finds out"


def test_odd_arguments_of_an_acknowledgement(here: Connection, log: Log, loaded: int) -> None:
    here.acks(ack((0, range(1, 2))))
    with pytest.raises(ValueError, match="must be"):
        here.ack.retire(log, -1)
    with pytest.raises(TypeError):
        LoneAck(None)  # type: ignore[arg-type]
    log.close()
    with pytest.raises(ClosedError):
        here.ack.retire(log, loaded)
