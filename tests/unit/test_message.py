"""Codecs and the envelope."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.errors import ConfigError, InvalidMessageError, UnreadableMessageError
from ignis.message import (
    MAX_ERROR_CHARS,
    REASONS,
    BodyCodec,
    Message,
    corrupt_record,
    encode_key,
    encode_meta,
    failed_record,
)
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, Record, encode_record
from tests.support import UNREADABLE_METAS


class Order(msgspec.Struct):
    id: str
    total: float


class Picky(msgspec.Struct):
    id: str

    def __post_init__(self) -> None:
        raise KeyError(self.id)


@dataclasses.dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize("codec", ["auto", "json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Order, Order("o1", 9.5)),
        (Point, Point(1, 2)),
        (dict, {"a": [1, None, "é"]}),
        (list[int], [1, 2]),
        (int, 5),
        (None, {"anything": ["goes", 1.5]}),
        (None, None),
        (int | None, None),
    ],
)
def test_objects_come_back_as_they_were(kind: Any, message: Any, codec: str) -> None:
    coder: BodyCodec[Any] = BodyCodec(kind, codec)
    assert coder.decode_checked(coder.encode_checked(message)) == message
    assert coder.flags == (CODEC_MSGPACK if codec == "msgpack" else CODEC_JSON)


@pytest.mark.parametrize("codec", ["auto", "raw"])
@given(data=st.binary(), text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_raw_bodies_are_the_message(codec: str, data: bytes, text: str) -> None:
    raw: BodyCodec[bytes] = BodyCodec(bytes, codec)
    assert raw.flags == CODEC_RAW
    assert raw.encode_checked(data) == data == raw.decode_checked(data)
    assert raw.encode_checked(bytearray(data)) == data == raw.encode_checked(memoryview(data))  # type: ignore[arg-type]
    words: BodyCodec[str] = BodyCodec(str, codec)
    assert words.encode_checked(text) == text.encode()
    assert words.decode_checked(text.encode()) == text


@pytest.mark.parametrize(
    ("kind", "codec", "message", "says"),
    [
        (Order, "json", {"id": "o1", "total": 1.0}, "a dict was published to a queue of Order"),
        (dict, "json", [1], "a list was published to a queue of dict"),
        (bytes, "raw", "text", "a str was published to a queue of bytes"),
        (str, "raw", b"bytes", "a bytes was published to a queue of str"),
        (None, "json", object(), "cannot encode an object as json"),
        (None, "msgpack", 2**70, "cannot encode an int as msgpack"),
        (str, "raw", "\udcff", "cannot encode a str as raw"),
    ],
)
def test_what_is_not_of_the_type_is_refused(kind: Any, codec: str, message: Any, says: str) -> None:
    with pytest.raises(InvalidMessageError, match=says):
        BodyCodec(kind, codec).encode_checked(message)


def test_an_object_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidMessageError, match="cannot encode a list"):
        BodyCodec(None).encode_checked(loop)


@pytest.mark.parametrize(
    ("kind", "codec", "body", "fault"),
    [
        (Order, "json", b"{bad", "is not json"),
        (Order, "json", b'{"id": 5, "total": 1}', "does not fit Order: "),
        (Order, "json", b"", "is not json"),
        (Order, "msgpack", b"\xc1", "is not msgpack"),
        (Order, "msgpack", b"\x01", "does not fit Order: "),
        (Picky, "json", b'{"id": "x"}', "does not fit Picky: "),
        (str, "raw", b"\xff", "is not raw"),
        (None, "json", b"[" * 100_000, "is not json"),
        (None, "msgpack", b"\x91" * 100_000, "is not msgpack"),
    ],
)
def test_a_body_of_another_type_is_unreadable(kind: Any, codec: str, body: bytes, fault: str) -> None:
    with pytest.raises(UnreadableMessageError, match=f"body of {len(body)} bytes {fault}"):
        BodyCodec(kind, codec).decode_checked(body)


def test_codecs_that_do_not_fit_the_type() -> None:
    with pytest.raises(ConfigError, match="codec raw takes messages of bytes or str"):
        BodyCodec(dict, "raw")
    with pytest.raises(ConfigError, match="is not one of auto, raw, json, msgpack"):
        BodyCodec(dict, "pickle")


@pytest.mark.parametrize(("key", "raw"), [(None, b""), ("", b""), ("é", "é".encode()), (b"\xff", b"\xff")])
def test_keys(key: Any, raw: bytes) -> None:
    assert encode_key(key) == raw


@pytest.mark.parametrize("key", [7, 1.5, [1], True])
def test_a_key_that_is_neither_text_nor_bytes(key: Any) -> None:
    with pytest.raises(InvalidMessageError, match="a key is text or bytes"):
        encode_key(key)


def test_headers_that_cannot_be_stored() -> None:
    with pytest.raises(InvalidMessageError, match="cannot encode the headers"):
        encode_meta({"x": object()})


def test_envelope() -> None:
    data = encode_record(b'{"a":1}', flags=CODEC_JSON, key=b"k\xff", meta=encode_meta({"trace": "t1"}))
    message = Message.from_bytes(data)
    assert uuid.UUID(message.id).version == 7
    assert message.key is not None
    assert message.key.encode("utf-8", "surrogateescape") == b"k\xff"
    assert (message.failures, message.crashes, message.codec) == (0, 0, "json")
    assert message.headers == {"trace": "t1"}
    assert (message.reason, message.error, message.failed_at_ms) == (None, None, None)
    assert message.enqueued_at_us > 1_600_000_000_000_000
    assert message.id in repr(message)


def test_a_failure_is_written_into_the_envelope() -> None:
    before = encode_record(b"body", key=b"k", meta=encode_meta({"h": 1}))
    once = failed_record(before, "exception", "RuntimeError: x", handler="on_order")
    twice = Message.from_bytes(failed_record(once, "crash", "y" * 10_000, crashed=True))
    first, message = Message.from_bytes(before), Message.from_bytes(once)
    for name in ("id", "key", "body", "enqueued_at_us", "headers"):
        assert getattr(first, name) == getattr(message, name) == getattr(twice, name)
    assert (message.failures, message.crashes, message.reason, message.error) == (1, 0, "exception", "RuntimeError: x")
    assert message.meta["handler"] == "on_order"
    assert message.failed_at_ms is not None
    assert (twice.failures, twice.crashes, twice.reason) == (2, 1, "crash")
    assert twice.error == "y" * MAX_ERROR_CHARS


def test_counters_of_failures_do_not_overflow() -> None:
    data = encode_record(b"", attempts=0xFFFF, crashes=0xFFFF)
    message = Message.from_bytes(failed_record(data, "crash", crashed=True))
    assert (message.failures, message.crashes) == (0xFFFF, 0xFFFF)


@pytest.mark.parametrize("data", [b"", b"\x09not a record"], ids=["empty", "envelope"])
def test_what_cannot_be_read_is_set_aside_as_it_is(data: bytes) -> None:
    assert failed_record(data, "unreadable", "why") == data


def test_a_corrupt_record_is_replaced_by_a_note() -> None:
    message = Message.from_bytes(corrupt_record("orders", 3, 17))
    assert (message.reason, message.body) == ("corrupt", b"")
    assert message.error == "checksum mismatch at orders, shard 3, pointer 17"


def test_unreadable_metadata_is_told() -> None:
    message = Message(Record(encode_record(b"x", meta=b"\xc1")))
    with pytest.raises(UnreadableMessageError, match="not a MessagePack map"):
        _ = message.reason


@pytest.mark.parametrize(
    ("body", "flags", "key", "value"),
    [
        (b'{"a": 1}', CODEC_JSON, "body", {"a": 1}),
        (msgspec.msgpack.encode({"a": 1}), CODEC_MSGPACK, "body", {"a": 1}),
        ("é".encode(), CODEC_RAW, "body", "é"),
        (b"\xff\x00", CODEC_RAW, "body_hex", "ff00"),
        (b"{bad", CODEC_JSON, "body_hex", b"{bad".hex()),
    ],
)
def test_as_dict_is_json(body: bytes, flags: int, key: str, value: Any) -> None:
    found = Message.from_bytes(encode_record(body, flags=flags)).as_dict()
    assert found[key] == value
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("body", "meta", "key", "hidden"),
    [
        (b"1", b"", b"\xff\x1b[31m", "key_hex"),
        (b"1", b"\x81\xa7headers\x81\xc3\x01", b"k", "meta_hex"),  # {true: 1}
        (b"1", b"\x81\xa7headers\x81\xa1a\xd4\x05\x01", b"k", "meta_hex"),  # an extension
        (b"\x81\xc3\x01", b"", b"k", "body_hex"),
        (b"\x81\xc0\x01", b"", b"k", "body_hex"),
        (b"\x81\x91\x01\x01", b"", b"k", "body_hex"),
    ],
)
def test_as_dict_is_json_whatever_the_record_holds(body: bytes, meta: bytes, key: bytes, hidden: str) -> None:
    data = encode_record(body, flags=CODEC_MSGPACK, meta=meta, key=key)
    found = Message.from_bytes(data).as_dict()
    assert bytes.fromhex(found[hidden]) == {"key_hex": key, "meta_hex": meta, "body_hex": body}[hidden]
    shown = msgspec.json.decode(msgspec.json.encode(found))
    assert shown["id"] == Message.from_bytes(data).id
    assert len({"key_hex", "meta_hex", "body_hex"} & set(shown)) == 1


def test_reasons_are_distinct() -> None:
    assert len(set(REASONS)) == len(REASONS) == 9


@pytest.mark.parametrize("kind", UNREADABLE_METAS)
def test_headers_that_cannot_be_read_end_nobody(kind: str) -> None:
    meta = UNREADABLE_METAS[kind]
    data = encode_record(b"1", flags=CODEC_JSON, meta=meta, key=b"k")
    with pytest.raises(UnreadableMessageError, match=f"envelope of {len(meta)} bytes"):
        _ = Message.from_bytes(data).headers
    failed = Message.from_bytes(failed_record(data, "crash", "why", handler="h", crashed=True))
    assert (failed.reason, failed.failures, failed.crashes, failed.key) == ("unreadable", 1, 1, "k")
    assert failed.error is not None
    assert failed.error.endswith("(then crash: why)")
    assert failed.meta["unread"] == meta, "nothing is lost"
    assert failed.as_dict()["body"] == 1


def test_what_can_be_read_and_not_be_written_again_ends_nobody() -> None:
    for depth in range(100, 2_000, 50):
        data = encode_record(b"1", flags=CODEC_JSON, meta=b"\x81\xa1a" + b"\x91" * depth + b"\xc0")
        assert Message.from_bytes(failed_record(data, "exception", "why")).reason in ("exception", "unreadable")


def test_a_failure_that_no_consumer_wrote_is_none() -> None:
    meta = msgspec.msgpack.encode({"reason": [1], "error": {}, "failed_at_ms": "now"})
    message = Message.from_bytes(encode_record(b"1", flags=CODEC_JSON, meta=meta))
    assert (message.reason, message.error, message.failed_at_ms) == (None, None, None)


def test_a_body_nested_too_deeply_is_shown_as_bytes() -> None:
    for flags, body in ((CODEC_JSON, b"[" * 5_000), (CODEC_MSGPACK, b"\x91" * 5_000)):
        assert Message.from_bytes(encode_record(body, flags=flags)).as_dict()["body_hex"] == body.hex()
