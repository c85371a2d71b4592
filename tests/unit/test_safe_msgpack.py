"""MessagePack with keys whose hashes can be made equal is refused at every door, before anything of it is made."""

from __future__ import annotations

import ast
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis import safe_msgpack
from ignis.body_codec import BodyCodec
from ignis.broker.protocol.array_values import unpack_enqueued
from ignis.broker.protocol.encoding import pack, unpack, unpack_value
from ignis.broker.protocol.payloads import CreateQueue, QueueReplace
from ignis.errors import (
    BadRequestError,
    ConfigError,
    InvalidMessageError,
    StoreFormatError,
    UnreadableMessageError,
)
from ignis.message import Message, decode_meta, encode_meta, failed_record
from ignis.native import CODEC_MSGPACK, Record, encode_record, unsafe_keys
from ignis.storage.base import QueueRecord
from ignis.storage.checks import check_record
from ignis.storage.embedded.queues import decode as stored_queue
from tests.support.parsing import parse

PACKAGE = Path(ignis.__file__).parent
DOOR = PACKAGE / "safe_msgpack.py"
encode = msgspec.msgpack.encode

_P1, _P2, _P5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
_MASK = 2**64 - 1


class _Node(msgspec.Struct):
    below: list[_Node] = []
    rest: Any = None


def _turned(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def one_hash(count: int) -> bytes:
    """A map of so many pairs of numbers, all of one hash: decoded without a type it takes time by the square of it."""
    first, second = pow(_P1, -1, 2**64), pow(_P2, -1, 2**64)
    keys: list[bytes] = []
    number = 0
    while len(keys) < count:
        number += 1
        lane = _turned((_P5 + number * _P2) & _MASK, 31) * _P1 & _MASK
        other = (_turned(12345 * first & _MASK, 33) - lane) * second & _MASK
        other -= 2**64 if other >> 63 else 0
        if abs(other) < 2**61 - 1 and other != -1:
            keys.append(b"\x92\xce" + struct.pack(">I", number) + b"\xd3" + struct.pack(">q", other) + b"\xc0")
    return b"\xdf" + struct.pack(">I", count) + b"".join(keys)


FLOOD = one_hash(300)
META = b"\x81" + encode("headers") + b"\x81" + encode("h") + FLOOD
HEADED = struct.Struct(">I")


def headed(head: bytes) -> bytes:
    return HEADED.pack(len(head)) + head


def test_the_keys_here_are_what_the_rule_is_for() -> None:
    found = msgspec.msgpack.decode(one_hash(50))
    assert len(found) == 50
    assert len({hash(one) for one in found}) == 1


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (b"\x92\x01\x02", "an array"), (b"\x80", "a map"), (encode(1.5), "a float"),
        (encode(msgspec.msgpack.Ext(5, b"x")), "an extension"),
    ],
)  # fmt: skip
def test_the_refusal_names_what_was_found_and_where(key: bytes, named: str) -> None:
    data = b"\x82" + encode("name") + b"\xc0" + key + b"\xc0"
    with pytest.raises(
        msgspec.DecodeError, match=rf"a map has {named} for a key, at byte 7; keys are text, bytes or integers"
    ):
        safe_msgpack.decode(data)
    assert safe_msgpack.decode(b"\x91" + key) is not None  # as a value


def test_integers_are_counted() -> None:
    most = safe_msgpack.MAX_INTEGER_KEYS
    assert len(safe_msgpack.decode(encode(dict.fromkeys(range(1 << 16, (1 << 16) + most))))) == most
    with pytest.raises(msgspec.DecodeError, match=rf"more than {most} integers of 16 bits or more for keys, at byte"):
        safe_msgpack.decode(encode(dict.fromkeys(range(1 << 40, (1 << 40) + most + 1))))
    few = [*range(-128, 256), *range(256, 256 + most)]
    assert len(safe_msgpack.decode(encode(dict.fromkeys(few)))) == 384 + most
    for more in (-129, 256 + most, 1 << 20):
        with pytest.raises(msgspec.DecodeError, match="16 bits or more"):
            safe_msgpack.decode(encode(dict.fromkeys([*few, more])))
    assert len(safe_msgpack.decoder(dict[int, Any])(encode(dict.fromkeys(range(-32_768, 65_536))))) == 98_304
    with pytest.raises(ConfigError, match="16 bits or more"):
        check_record(QueueRecord("q", extra={"x": dict.fromkeys(range(1 << 40, (1 << 40) + most + 1))}))
    check_record(QueueRecord("q", sweep_pointers=dict.fromkeys(range(512), 7)))
    with pytest.raises(ValueError, match="max_integers"):
        unsafe_keys(b"", -1)


def test_what_is_no_messagepack_is_the_decoders_to_refuse() -> None:
    for data in (b"", b"\xc1", b"\x81", b"\x81\xa1", b"\xdf\xff\xff\xff\xff", b"\xa1\xff", b"\xc0\xc0"):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            safe_msgpack.decode(data)
    with pytest.raises(msgspec.DecodeError, match="nested deeper than 256"):
        safe_msgpack.decode(b"\x91" * 5_000 + b"\xc0")


def test_a_type_that_says_what_its_keys_are_is_read_as_it_says() -> None:
    pairs = {(1, 2): "a", (3, 4): "b"}
    assert safe_msgpack.decoder(dict[tuple[int, int], str])(encode(pairs)) == pairs
    many = dict.fromkeys(range(1 << 40, (1 << 40) + 5_000), "x")
    assert safe_msgpack.decoder(dict[int, str])(encode(many)) == many
    assert safe_msgpack.decoder(dict[int, Any])(encode(many)) == many
    with pytest.raises(msgspec.DecodeError, match="an array for a key"):
        safe_msgpack.decoder(dict[int, Any])(encode({1: pairs}))
    with pytest.raises(msgspec.DecodeError, match="an array for a key"):
        safe_msgpack.decoder(list[_Node])(encode([{"below": [{"rest": pairs}]}]))


def test_the_envelope_of_a_message() -> None:
    with pytest.raises(UnreadableMessageError, match="an array for a key"):
        decode_meta(META)
    record = encode_record(b"1", meta=META)
    failed = Record(failed_record(record, "rejected", "no"))
    assert decode_meta(failed.meta)["reason"] == "unreadable"
    assert decode_meta(failed.meta)["unread"] == META
    with pytest.raises(InvalidMessageError, match=r"cannot encode the headers: .*an array for a key"):
        encode_meta({"h": {(1, 2): 3}})


def test_a_body_that_is_shown() -> None:
    shown = Message.from_bytes(encode_record(FLOOD, flags=CODEC_MSGPACK)).as_dict()
    assert "body" not in shown
    assert shown["body_hex"] == FLOOD.hex()


@pytest.mark.parametrize("kind", [None, dict, dict[str, Any], list[Any]])
def test_a_body_that_a_worker_reads(kind: Any) -> None:
    codec = BodyCodec(kind, "msgpack")
    value: Any = [{(1, 2): 3}] if kind == list[Any] else {"a": {(1, 2): 3}}
    with pytest.raises(UnreadableMessageError, match="an array for a key"):
        codec.decode_checked(encode(value))
    with pytest.raises(InvalidMessageError, match="an array for a key"):
        codec.encode_checked(value)


def test_a_body_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", rest=(Any, None))
    with pytest.raises(UnreadableMessageError, match="an array for a key"):
        BodyCodec(model, "msgpack").decode_checked(encode({"rest": {(1, 2): 3}}))


def test_a_request_to_a_broker() -> None:
    record = {**msgspec.to_builtins(QueueRecord("q")), "extra": {"x": None}}
    poisoned = encode(record).replace(
        encode("extra") + encode({"x": None}), encode("extra") + b"\x81" + encode("x") + FLOOD
    )
    assert len(poisoned) > len(FLOOD)
    for kind, head in (
        (QueueRecord, poisoned),
        (QueueReplace, b"\x92" + encode(record) + poisoned),
        (CreateQueue, b"\x92" + encode("q") + b"\x81" + encode("codec") + FLOOD),
        (Any, FLOOD),
    ):
        with pytest.raises(BadRequestError, match="MessagePack is refused: a map has an array for a key, at byte"):
            unpack(headed(head), kind)
    with pytest.raises(BadRequestError, match="an array for a key"):
        unpack_value(headed(FLOOD))
    with pytest.raises(BadRequestError, match="an array for a key"):
        unpack_enqueued(headed(b"\x93" + encode("q") + encode("b") + b"\x91" + FLOOD))
    assert unpack_enqueued(pack(["q", "b", [{"a": {1: 2}}]])) == ("q", "b", [{"a": {1: 2}}])


def test_a_field_of_another_type_is_not_read_again_with_such_keys() -> None:
    """The refusal tells what was given, and decodes the head without its type for that."""
    head = b"\x93" + encode(7) + encode("b") + b"\x91" + one_hash(200)
    with pytest.raises(BadRequestError, match=r"something|an array for a key"):
        unpack(headed(head), QueueReplace)


def test_a_queues_record() -> None:
    record = QueueRecord("q", extra={"x": {(1, 2): 3}})
    with pytest.raises(ConfigError, match="an array for a key"):
        check_record(record)
    with pytest.raises(StoreFormatError, match=r"record of queue 'q' is damaged: .*an array for a key"):
        stored_queue("q", encode(record))


def test_it_costs_what_reading_costs() -> None:
    """Of 20,000 such keys a decoder would make a dict for a quarter of a minute."""
    flood = one_hash(20_000)
    began = time.thread_time()
    for _ in range(5):
        with pytest.raises(UnreadableMessageError):
            decode_meta(b"\x81" + encode("h") + flood)
    assert time.thread_time() - began < 1


def test_nobody_else_decodes() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != DOOR
        for node in ast.walk(parse(path.read_text(), str(path)))
        if isinstance(node, ast.Attribute)
        and node.attr in ("decode", "Decoder")
        and ast.unparse(node.value).endswith("msgspec.msgpack")
    ]
    assert not found, "MessagePack is decoded by ignis.safe_msgpack alone:\n" + "\n".join(found)
