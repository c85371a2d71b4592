"""Records, ids, checksum and routing: the byte vectors, the limits, the errors."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import CorruptRecordError, MessageTooLargeError, UnreadableMessageError
from ignis.native.record import (
    ANY_SHARD,
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_RAW,
    Record,
    crc32c,
    encode_record,
    new_id,
    shard_for_key,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "record.json").read_text(encoding="utf-8")
)


def unhex(vector: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, int) else bytes.fromhex(value) for name, value in vector.items()}


class TestVectors:
    @pytest.mark.parametrize("vector", VECTORS["crc32c"], ids=lambda v: f"{v['crc']:08x}")
    def test_crc32c(self, vector: dict[str, Any]) -> None:
        assert crc32c(bytes.fromhex(vector["data"])) == vector["crc"]

    @pytest.mark.parametrize("vector", VECTORS["shard_for_key"], ids=lambda v: f"{v['key']}-{v['shards']}")
    def test_shard_for_key(self, vector: dict[str, Any]) -> None:
        assert shard_for_key(bytes.fromhex(vector["key"]), vector["shards"]) == vector["shard"]

    @pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda v: v["id"])
    def test_record(self, vector: dict[str, Any]) -> None:
        fields = unhex(vector)
        data = fields.pop("record")
        assert encode_record(fields.pop("body"), **fields) == data
        record = Record(data)
        assert {name: getattr(record, name) for name in fields} == fields
        assert record.body == bytes.fromhex(vector["body"])

    @pytest.mark.parametrize("vector", VECTORS["unreadable"], ids=lambda v: v["data"][:8] + "-" + v["error"])
    def test_unreadable(self, vector: dict[str, Any]) -> None:
        with pytest.raises(UnreadableMessageError, match=vector["error"]) as caught:
            Record(bytes.fromhex(vector["data"]))
        assert not isinstance(caught.value, CorruptRecordError)


class TestCrc32c:
    def test_goes_on_from_a_value(self) -> None:
        data = os.urandom(3 << 20)  # above the size from which the GIL is given up
        for cut in (0, 1, 767, 768, 1 << 20, len(data)):
            assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)

    def test_takes_any_buffer(self) -> None:
        assert crc32c(bytearray(b"123456789")) == crc32c(memoryview(b"0123456789")[1:]) == 0xE3069283

    @pytest.mark.parametrize("bad", [-1, 1 << 32, 1 << 70])
    def test_refuses_a_value_that_is_no_checksum(self, bad: int) -> None:
        with pytest.raises(ValueError, match=f"crc is {bad}, allowed are 0..4294967295"):
            crc32c(b"", bad)

    def test_refuses_what_is_not_a_contiguous_buffer(self) -> None:
        text: Any = "text"
        with pytest.raises(TypeError):
            crc32c(text)
        with pytest.raises(BufferError):
            crc32c(memoryview(b"123456")[::2])


class TestRouting:
    @pytest.mark.parametrize("bad", [0, -1, 65_536])
    def test_refuses_a_shard_count_outside_its_range(self, bad: int) -> None:
        with pytest.raises(ValueError, match=f"shards is {bad}, allowed are 1..65535"):
            shard_for_key(b"key", bad)

    def test_any_shard_is_no_shard(self) -> None:
        assert ANY_SHARD == 0xFFFF
        assert max(shard_for_key(str(i).encode(), 65_535) for i in range(1000)) < ANY_SHARD


class TestIds:
    def test_is_a_version_7_uuid_of_now(self) -> None:
        before = time.time_ns() // 1_000_000
        made = uuid.UUID(bytes=new_id())
        after = time.time_ns() // 1_000_000
        assert made.version == 7
        assert made.variant == uuid.RFC_4122
        assert before <= made.int >> 80 <= after

    def test_ids_rise_and_do_not_repeat(self) -> None:
        # The clock may step back between two calls; it does not do so for most of them.
        made = [new_id() for _ in range(50_000)]
        assert len(set(made)) == len(made)
        assert sum(a > b for a, b in itertools.pairwise(made)) <= 2

    def test_unique_over_threads(self) -> None:
        made: list[list[bytes]] = [[] for _ in range(4)]
        threads = [
            threading.Thread(target=lambda own: own.extend(new_id() for _ in range(10_000)), args=(own,))
            for own in made
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len({each for own in made for each in own}) == 40_000

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_child_does_not_repeat_its_parents_ids(self) -> None:
        new_id()
        pipes, children = [], []
        for _ in range(3):
            receive, send = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.write(send, b"".join(new_id() for _ in range(100)))
                finally:
                    os._exit(0)
            os.close(send)
            pipes.append(receive)
            children.append(pid)
        # The random half alone: the time in the ids would hide a generator that was copied.
        parts = [b"".join(new_id() for _ in range(100))]
        for receive, pid in zip(pipes, children, strict=True):
            with os.fdopen(receive, "rb") as stream:
                parts.append(stream.read())
            assert os.waitpid(pid, 0)[1] == 0
        random_halves = {part[i + 8 : i + 16] for part in parts for i in range(0, len(part), 16)}
        assert [len(part) for part in parts] == [1600] * 4
        assert len(random_halves) == 400


class TestEncode:
    def test_defaults(self) -> None:
        before = time.time_ns() // 1000
        record = Record(encode_record(b"body"))
        assert before <= record.enqueued_at_us <= time.time_ns() // 1000
        assert uuid.UUID(bytes=record.id).version == 7
        assert (record.flags, record.attempts, record.crashes, record.key, record.meta) == (CODEC_RAW, 0, 0, b"", b"")
        assert record.body == b"body"
        assert (CODEC_JSON, CODEC_MSGPACK) == (1, 2)

    def test_body_may_be_any_buffer_and_empty(self) -> None:
        assert Record(encode_record(bytearray(b"abc"))).body == b"abc"
        assert Record(encode_record(memoryview(b"abc"))).body == b"abc"
        assert Record(encode_record(b"")).body == b""

    def test_a_large_body(self) -> None:
        body = os.urandom(3 << 20)
        assert Record(encode_record(body, key=b"k")).body == body

    def test_the_buffer_is_given_back(self) -> None:
        body = bytearray(b"abc")
        encode_record(body)
        body.append(1)  # BufferError while it is lent
        with pytest.raises(MessageTooLargeError):
            encode_record(body, key=bytes(65_536))
        body.append(1)

    @pytest.mark.parametrize(
        ("name", "bad", "range_"),
        [
            ("flags", 16, "0..15"),
            ("flags", -1, "0..15"),
            ("attempts", 65_536, "0..65535"),
            ("crashes", -1, "0..65535"),
            ("crashes", 1 << 80, "0..65535"),
            ("enqueued_at_us", -1, "0..9223372036854775807"),
        ],
    )
    def test_numbers_outside_their_range(self, name: str, bad: int, range_: str) -> None:
        arguments: dict[str, Any] = {name: bad}
        with pytest.raises(ValueError, match=f"{name} is {bad}, allowed are {range_}"):
            encode_record(b"", **arguments)

    def test_key_limit(self) -> None:
        longest = b"k" * 65_535
        assert Record(encode_record(b"", key=longest)).key == longest
        with pytest.raises(MessageTooLargeError) as caught:
            encode_record(b"", key=longest + b"k")
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (65_536, 65_535)
        assert caught.value.setting == "key"

    @pytest.mark.parametrize("bad", [b"", bytes(15), bytes(17)])
    def test_id_of_another_length(self, bad: bytes) -> None:
        with pytest.raises(ValueError, match=f"id has {len(bad)} bytes, expected 16"):
            encode_record(b"", id=bad)

    @pytest.mark.parametrize("arguments", [{"key": "k"}, {"meta": None}, {"id": "x" * 16}, {"flags": "1"}])
    def test_types(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(TypeError):
            encode_record(b"", **arguments)
        text: Any = "text"
        with pytest.raises(TypeError):
            encode_record(text)


class TestRecord:
    def test_replace_keeps_the_rest(self) -> None:
        data = encode_record(b"body", flags=2, key=b"key", meta=b"\x80", attempts=1, crashes=2)
        record = Record(data)
        assert record.replace() == data
        changed = Record(record.replace(attempts=3, crashes=0, meta=b"\x81\xa1a\x01"))
        assert (changed.attempts, changed.crashes, changed.meta) == (3, 0, b"\x81\xa1a\x01")
        for name in ("id", "flags", "enqueued_at_us", "key", "body"):
            assert getattr(changed, name) == getattr(record, name)
        assert Record(changed.replace(meta=b"")).meta == b""
        assert record.meta == b"\x80"

    def test_replace_refuses_a_count_outside_its_range(self) -> None:
        with pytest.raises(ValueError, match=r"attempts is 65536, allowed are 0\.\.65535"):
            Record(encode_record(b"")).replace(attempts=65_536)

    def test_keeps_its_bytes_alive(self) -> None:
        records = [Record(encode_record(b"%d" % i * 50)) for i in range(1000)]
        assert all(record.body == b"%d" % i * 50 for i, record in enumerate(records))

    def test_is_immutable_and_takes_bytes_only(self) -> None:
        record: Any = Record(encode_record(b""))
        with pytest.raises(AttributeError):
            record.attempts = 1
        wrong: list[tuple[Any, ...]] = [(None,), ("text",), (bytearray(36),), ()]
        for arguments in wrong:
            with pytest.raises(TypeError):
                Record(*arguments)

    def test_pickles_and_shows_no_content(self) -> None:
        record = Record(encode_record(b"secret", key=b"private"))
        copy = pickle.loads(pickle.dumps(record))
        assert (copy.id, copy.body) == (record.id, b"secret")
        assert record.id.hex() in repr(record)
        assert "secret" not in repr(record)
        assert "private" not in repr(record)
