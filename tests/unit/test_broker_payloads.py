"""Heads that are refused: what the refusal says, and what it costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ignis.broker.protocol import array_values, encoding, payloads
from ignis.broker.protocol.commands import FEATURES, MAGIC, VERSION, Command
from ignis.broker.protocol.encoding import pack, unpack, unpack_connect
from ignis.broker.protocol.machine import BrokerMachine
from ignis.broker.protocol.payloads import Connect, Connected, Failure
from ignis.errors import BadRequestError, ConfigError, IgnisError, InvalidMessageError, ProtocolError
from ignis.native import decode_frames, encode_frame
from ignis.native.wire import ReadArea

SECRET = "hunter2-hunter2"
GOOD: list[Any] = ["shop", "local", "wire", SECRET, "user", SECRET, "test/1"]


def hello(fields: Any) -> bytes:
    """The payload of a CONNECT of any fields."""
    return encoding._HELLO.pack(MAGIC, VERSION, VERSION, FEATURES) + pack(fields)


ODD = [
    pytest.param({at: odd}, id=f"{Connect.__struct_fields__[at]}-{type(odd).__name__}")
    for at in range(len(GOOD))
    for odd in (SECRET.encode(), [SECRET], {SECRET: SECRET}, 5, None)
] + [
    pytest.param({2: SECRET + "\n"}, id="instance-line"),
    pytest.param({6: SECRET + "\n"}, id="software-line"),
    pytest.param({7: [SECRET]}, id="process-short"),
    pytest.param({7: [SECRET, -1, 1, 1, SECRET]}, id="process-pid"),
    pytest.param({7: SECRET}, id="process-text"),
]


@pytest.mark.parametrize("changed", ODD)
def test_an_odd_connect_is_a_protocol_error_that_tells_no_value(changed: dict[int, Any]) -> None:
    fields = [changed.get(at, one) for at, one in enumerate([*GOOD, None])]
    machine = BrokerMachine(ReadArea(), 1 << 20, 8)
    with pytest.raises(ProtocolError) as raised:
        machine.feed(encode_frame(Command.CONNECT, 1, hello(fields)))
    text = str(raised.value)
    assert SECRET[:7] not in text
    assert "\n" not in text
    assert Connect.__struct_fields__[next(iter(changed))] in text, "it names the field"


def test_text_that_is_no_utf8_shows_no_byte_of_it() -> None:
    head = msgspec.msgpack.encode([*GOOD[:5], "p" * 15]).replace(b"p" * 15, b"p" * 14 + b"\xe9")
    with pytest.raises(BadRequestError) as raised:
        unpack(len(head).to_bytes(4, "big") + head, Connect)
    assert "e9" not in str(raised.value)


def test_fields_called_token_or_password_are_shown_nowhere() -> None:
    class Later(msgspec.Struct, array_like=True):
        name: str
        password: str
        token: str

    for fields in (["a", SECRET.encode(), "b"], ["a", "b", SECRET.encode()]):
        with pytest.raises(IgnisError) as raised:
            unpack(pack(fields), Later)
        assert SECRET not in str(raised.value)
    with pytest.raises(IgnisError, match="= b'hunter2"):
        unpack(pack([SECRET.encode(), "b", "c"]), Later)


def test_an_answer_to_connect_that_is_none_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        unpack_connect(hello(["broker", -1, "many"]), Connected)


# -- what a refusal costs


def large(command: Command, payload: bytes) -> tuple[list[Any], Failure]:
    """Whole, as one read may bring it."""
    machine = BrokerMachine(ReadArea(), 64 << 20, 8)
    machine.feed(encode_frame(Command.CONNECT, 1, hello(GOOD)))
    machine.welcome(1, Connected("b", 64 << 20, 8, 0))
    requests, answers = machine.feed(encode_frame(command, 7, payload))
    ((answered, request_id, refusal),) = decode_frames(answers)[0]
    assert (answered, request_id, machine.pending) == (Command.ERROR, 7, 0)
    return requests, unpack(refusal, Failure)[0]


@pytest.mark.parametrize(
    ("command", "head"),
    [
        (Command.NACK, ["orders", "requeue", -1, "", "", [{}] * 300_000]),
        (Command.LOAD_ONCE, ["orders", -1, [{}] * 300_000]),
        (Command.ACK, ["orders", [{}] * 300_000]),
        (Command.METADATA, ["o" * 300_000]),
        (Command.CREATE_QUEUE, ["orders", {"x": [{}] * 300_000}]),
    ],
)
def test_a_large_head_is_refused_before_anything_is_decoded(command: Command, head: Any) -> None:
    requests, failure = large(command, pack(head, b"bulk"))
    assert requests == []
    assert failure.code == BadRequestError.code
    assert "262144" in failure.message


def test_a_large_bulk_is_none_of_the_heads() -> None:
    machine = BrokerMachine(ReadArea(), 64 << 20, 8)
    machine.feed(encode_frame(Command.CONNECT, 1, hello(GOOD)))
    machine.welcome(1, Connected("b", 64 << 20, 8, 0))
    (request,), answers = machine.feed(encode_frame(Command.ACK, 7, pack(["orders"], bytes(400_000))))
    assert (request.command, answers) == (Command.ACK, b"")


def test_a_large_head_is_not_decoded_again_to_show_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(data: Any) -> None:
        raise AssertionError("decoded as anything")

    monkeypatch.setattr(encoding, "decode", never)
    for head in (["orders", "requeue", -1, "", "", [{}] * 10_000], ["orders", -1, "x" * 9_000]):
        kind = payloads.Nack if len(head) == 6 else payloads.LoadOnce
        with pytest.raises(ConfigError, match=r"\A[a-z_]+: Expected"):
            unpack(pack(head), kind)
    with pytest.raises(AssertionError):  # of a small one the value is shown
        unpack(pack(["orders", "requeue", -1]), payloads.Nack)


DEEP: Any = []
for _ in range(33):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "values",
    [[{}] * 1_000_001, [[{}] * 1_000_001], [{"a": [0] * 1_000_000}], [[0] * 500_000, {1: [0] * 500_000}]],
    ids=["flat", "nested", "in a dict", "together"],
)
def test_values_are_counted_before_any_is_made(values: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pack(["a", "Q", values])
    del values
    kinds: list[Any] = []
    real = encoding.unpack

    def seen(data: bytes, kind: Any) -> Any:
        kinds.append(kind)
        return real(data, kind)

    monkeypatch.setattr(array_values, "unpack", seen)
    with pytest.raises(ConfigError, match="at most 1000000"):
        array_values.unpack_enqueued(payload)
    assert kinds == [array_values._Enqueued]


def test_values_within_bounds_come_as_they_are() -> None:
    for values in (
        [],
        [1, "a", b"b", None, True, 1.5],
        [{"a": [1, {2: []}]}] * 30_000,
        ["x" * 300_000, {}],
        [0] * 70_000,
    ):
        assert array_values.unpack_enqueued(pack(["a", "Q", values])) == ("a", "Q", values)
    assert array_values.unpack_enqueued(pack(["a", "Q"])) == ("a", "Q", [])


def test_values_that_are_none() -> None:
    for values in (5, {"a": 1}, "text", None):
        with pytest.raises(BadRequestError):
            array_values.unpack_enqueued(pack(["a", "Q", values]))
    with pytest.raises(InvalidMessageError, match="deeper than 32"):
        array_values.unpack_enqueued(pack(["a", "Q", [DEEP, "x" * 300_000]]))
    cut = pack(["a", "Q", [1, 2]])[:-1]
    with pytest.raises(BadRequestError):
        array_values.unpack_enqueued((len(cut) - 4).to_bytes(4, "big") + cut[4:])
