"""Large frames are judged by their first bytes: who may not send them is told so, and the rest is not kept."""

from __future__ import annotations

import gc
import struct

import msgspec
import pytest

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, pack_connect, unpack
from ignis.broker.protocol.later_payloads import DeferRequest, LoadLater
from ignis.broker.protocol.machine import BrokerMachine, Request
from ignis.broker.protocol.payloads import (
    ArrayRequest,
    Connect,
    Connected,
    Failure,
    LoadOnce,
    Nack,
    Named,
    Reload,
    RenewClaims,
    Resume,
    TransferRequest,
    pack_send,
    pack_send_batch,
)
from ignis.broker.protocol.row_count import MAX_ROWS, ROWS, check_row_count
from ignis.broker.protocol.screening import HEAD_BYTES, name_at_head
from ignis.broker.protocol.table import LARGE
from ignis.errors import BadRequestError, ConfigError, InvalidNameError, PermissionDeniedError
from ignis.native import PackedBatch, decode_frames, encode_frame, encode_record
from ignis.native.wire import ReadArea

_BULK = bytes(40_000)
_NAME = "orders.high"

PAYLOADS = {
    Command.SEND: pack_send(_NAME.encode(), 0, 0, encode_record(_BULK)),
    Command.SEND_BATCH: pack_send_batch(_NAME.encode(), 0, [(0, PackedBatch.pack([encode_record(_BULK)]))]),
    Command.LOAD_ONCE: pack(LoadOnce(_NAME, 1), _BULK),
    Command.LOAD_LATER: pack(LoadLater(_NAME), _BULK),
    Command.DEFER: pack(DeferRequest(_NAME, [(0, 1, _BULK, 0, 1)])),
    Command.RUN_NOW: pack(Named(_NAME), _BULK),
    Command.CANCEL_LATER: pack(Named(_NAME), _BULK),
    Command.ACK: pack(Named(_NAME), _BULK),
    Command.NACK: pack(Nack(_NAME), _BULK),
    Command.RELOAD: pack(Reload(_NAME), _BULK),
    Command.DELETE: pack(Named(_NAME), _BULK),
    Command.DELETE_WAITING: pack(Named(_NAME), _BULK),
    Command.PEEK: pack(Named(_NAME), _BULK),
    Command.RENEW_CLAIMS: pack(RenewClaims(_NAME), _BULK),
    Command.RESUME: pack(Resume(_NAME), _BULK),
    Command.TRANSFER: pack(TransferRequest(_NAME, "target", [(0, 1, _BULK, 0)], 0)),
    Command.ARRAY_ENQUEUE: pack(ArrayRequest(_NAME, "bin", [_BULK.hex()])),
}


class Judge:
    """Allows what is about one queue."""

    def __init__(self, allowed: str = "") -> None:
        self.allowed = allowed
        self.asked: list[tuple[int, str]] = []

    def __call__(self, command: int, name: str) -> BaseException | None:
        self.asked.append((command, name))
        return None if name == self.allowed else PermissionDeniedError(Command(command).name, name)


def ready(judge: Judge | None) -> tuple[BrokerMachine, ReadArea]:
    area = ReadArea(4_096)
    machine = BrokerMachine(area, 64 << 20, 100)
    machine.feed(encode_frame(Command.CONNECT, 1, pack_connect(Connect("a", "b", "c"))))
    machine.welcome(1, Connected("broker", 64 << 20, 100, 0, "anyone"))
    machine.screen = judge
    return machine, area


def failures(data: bytes) -> list[tuple[int, str]]:
    return [(request_id, unpack(payload, Failure)[0].code) for _, request_id, payload in decode_frames(data)[0]]


def feed(machine: BrokerMachine, area: ReadArea, data: bytes, step: int) -> tuple[list[Request], bytes, int]:
    """Also the most memory that was held."""
    requests, answers, most = [], b"", 0
    for at in range(0, len(data), step):
        some, answered = machine.feed(data[at : at + step])
        requests += some
        answers += answered
        most = max(most, area.carried_bytes)
    return requests, answers, most


def test_every_large_command_has_its_name_first() -> None:
    assert set(PAYLOADS) == LARGE
    for command, payload in PAYLOADS.items():
        frame = encode_frame(command, 7, payload)
        assert name_at_head(frame[:HEAD_BYTES], len(frame)) == (command, 7, _NAME)


@pytest.mark.parametrize("command", sorted(PAYLOADS))
@pytest.mark.parametrize("step", [1, 13, 4_000])
def test_the_denied_is_told_at_once_and_not_kept(command: Command, step: int) -> None:
    judge = Judge()
    machine, area = ready(judge)
    follower = encode_frame(Command.NAMES, 8, pack(None))
    data = encode_frame(command, 7, PAYLOADS[command]) + follower
    requests, answers, most = feed(machine, area, data, step)
    assert failures(answers) == [(7, "permission_denied")]
    assert [(one.command, one.request_id) for one in requests] == [(Command.NAMES, 8)]
    assert judge.asked == [(command, _NAME)]
    assert most <= 2 * 8_192 + 4_096
    assert (area.carried_bytes, machine.pending) == (0, 1)


@pytest.mark.parametrize("step", [13, 4_000])
def test_what_is_allowed_comes_to_its_end(step: int) -> None:
    judge = Judge(_NAME)
    machine, area = ready(judge)
    data = b"".join(encode_frame(command, 7, payload) for command, payload in PAYLOADS.items())
    requests, answers, _ = feed(machine, area, data, step)
    assert [one.command for one in requests] == list(PAYLOADS)
    assert answers == b""
    assert len(judge.asked) == len(PAYLOADS), "each once"


def test_what_is_never_large_is_refused_for_everybody() -> None:
    machine, area = ready(Judge(_NAME))
    for command, payload in [
        (Command.METADATA, pack(Named("n" * 300_000))), (Command.PING, bytes(300_000)), (31_000, bytes(300_000)),
        (Command.SEND, b"\x05\x00" + bytes(300_000)), (Command.DELETE, pack(["n" * 2_000], bytes(20_000))),
        (Command.DELETE, pack({"name": "q"}, bytes(20_000))), (Command.DELETE, pack([1], bytes(20_000))),
    ]:  # fmt: skip
        requests, answers, most = feed(machine, area, encode_frame(command, 9, payload), 1_000)
        assert (requests, failures(answers)) == ([], [(9, "bad_request")])
        assert most <= 32_768


def test_small_frames_are_nobodys_business() -> None:
    judge = Judge()
    machine, area = ready(judge)
    requests, _, _ = feed(machine, area, encode_frame(Command.ACK, 7, pack(Named("q"), bytes(8_000))), 100)
    assert len(requests) == 1
    assert judge.asked == []


def rows_of(command: Command, count: int, name: str = _NAME) -> bytes:
    if command == Command.TRANSFER:
        return pack(TransferRequest(name, f"{name}_SIDELINE", [(0, 1, b"", 0)] * count))
    return pack(DeferRequest(name, [(0, 1, b"", 0, 1)] * count))


@pytest.mark.parametrize("command", [Command.TRANSFER, Command.DEFER])
@pytest.mark.parametrize("step", [1_000, 1 << 30])
def test_too_many_rows_are_refused_before_they_come(command: Command, step: int) -> None:
    machine, area = ready(Judge(_NAME))
    follower = encode_frame(Command.NAMES, 8, pack(None))
    data = encode_frame(command, 7, rows_of(command, MAX_ROWS + 1)) + follower
    requests, answers, most = feed(machine, area, data, step)
    ((_, request_id, payload),) = decode_frames(answers)[0]
    failure = unpack(payload, Failure)[0]
    assert (request_id, failure.code) == (7, "config")
    assert failure.message.startswith(f"{command.name} with 100001 rows; at most 100000 are taken in one request")
    assert [one.request_id for one in requests] == [8]
    assert most <= 32_768 or step > len(data)
    assert (area.carried_bytes, machine.pending) == (0, 1)


@pytest.mark.parametrize("command", [Command.TRANSFER, Command.DEFER])
def test_as_many_rows_as_are_allowed_come_to_their_end(command: Command) -> None:
    machine, area = ready(Judge(_NAME))
    data = encode_frame(command, 7, rows_of(command, MAX_ROWS))
    requests, answers, _ = feed(machine, area, data, 65_536)
    assert ([one.request_id for one in requests], answers) == ([7], b"")


@pytest.mark.parametrize("name", ["a", "q" * 31, "q" * 32, "q" * 128, "q" * 300])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("command", [Command.TRANSFER, Command.DEFER])
def test_rows_are_counted_however_the_names_and_lengths_are_written(command: Command, name: str, wide: bool) -> None:
    def text(value: str) -> bytes:
        return b"\xdb" + struct.pack(">I", len(value)) + value.encode() if wide else msgspec.msgpack.encode(value)

    head = b"\xdd\x00\x00\x00\x04" if wide else b"\x94"
    begin = bytes(4) + head + text(name) * ROWS[command]
    for count, allowed in [(0, True), (MAX_ROWS, True), (MAX_ROWS + 1, False), (0xFFFF_FFFF, False)]:
        data = begin + b"\xdd" + struct.pack(">I", count)
        assert all(not check_row_count(command, data[:end], 4) for end in range(4, len(data)))
        if allowed:
            assert check_row_count(command, data, 4)
        else:
            with pytest.raises(ConfigError, match=f"{command.name} with {count} rows; at most {MAX_ROWS} "):
                check_row_count(command, data, 4)


@pytest.mark.parametrize(
    "head", [b"\xc0", b"\x94\x01", b"\x94\xc4\x01q", b"\x94\xa1q\xa1q\xc0", b"\x81\xa1q\xc0", b"\x90\xc0"]
)
def test_what_has_no_rows_is_left_to_the_decoder(head: bytes) -> None:
    assert check_row_count(Command.TRANSFER, bytes(4) + head, 4)
    with pytest.raises((BadRequestError, InvalidNameError)):
        unpack(struct.pack(">I", len(head)) + head, TransferRequest)


def test_a_name_before_rows_that_no_queue_can_have_is_refused() -> None:
    machine, area = ready(Judge(_NAME))
    for payload in (
        pack(TransferRequest(_NAME, "n" * 3_000, [(0, 1, bytes(9_000), 0)])),
        pack(DeferRequest("n" * 3_000, [(0, 1, bytes(9_000), 0, 1)])),
    ):
        command = Command.TRANSFER if payload[5:6] == b"\xab" else Command.DEFER
        for step in (500, 1 << 30):
            requests, answers, _ = feed(machine, area, encode_frame(command, 9, payload), step)
            assert (requests, failures(answers)) == ([], [(9, "bad_request")])


@pytest.mark.parametrize("command", [Command.TRANSFER, Command.NACK])
@pytest.mark.parametrize("step", [4_096, 1 << 20])
def test_a_refusal_keeps_nothing_of_what_was_read_in_use(command: Command, step: int) -> None:
    """An error that is kept with its traceback keeps its callers' variables: the view that was read into is one of them."""
    machine, _ = ready(Judge(_NAME))
    payload = rows_of(command, MAX_ROWS + 1) if command == Command.TRANSFER else pack(Nack(_NAME, error="e" * 300_000))
    data = memoryview(encode_frame(command, 9, payload))
    answers = b""

    def read(at: int) -> int:
        nonlocal answers
        view = machine.receive_buffer()
        size = min(len(view), step, len(data) - at)
        view[:size] = data[at : at + size]
        answers += machine.received(size)[1]
        return at + size

    at = 0
    gc.disable()  # a circle would be found by it
    try:
        while at < len(data):
            at = read(at)
        machine.receive_buffer().release()
    finally:
        gc.enable()
    assert [request_id for request_id, _ in failures(answers)] == [9]
