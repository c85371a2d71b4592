"""The vectors of the broker's protocol, from ``docs/protocol.md`` alone: this file imports nothing of ignis.

Written so that a reader can hold it beside the page. ``python -m tests.vectors.by_hand`` writes ``protocol.json``; a test
compares the two, and both sides of the protocol with them.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ANSWERS", "BIG_FORMS", "ERRORS", "MALFORMED", "REQUESTS", "Refused", "all_vectors", "frame", "payload"]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "protocol.md"


# -- MessagePack, in its shortest forms


def _sized(size: int, forms: Sequence[tuple[int, int, str]]) -> bytes:
    """The head of a value of so many bytes or members: the first of the forms (below, marker, length format) that fits."""
    for below, marker, length in forms:
        if size < below:
            return bytes([marker | size]) if not length else bytes([marker]) + struct.pack(length, size)
    raise ValueError(size)


_STR = [(1 << 5, 0xA0, ""), (1 << 8, 0xD9, ">B"), (1 << 16, 0xDA, ">H"), (1 << 32, 0xDB, ">I")]
_BIN = [(1 << 8, 0xC4, ">B"), (1 << 16, 0xC5, ">H"), (1 << 32, 0xC6, ">I")]
_ARRAY = [(1 << 4, 0x90, ""), (1 << 16, 0xDC, ">H"), (1 << 32, 0xDD, ">I")]
_MAP = [(1 << 4, 0x80, ""), (1 << 16, 0xDE, ">H"), (1 << 32, 0xDF, ">I")]


def _number(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value) if value < 0 else bytes([value])
    forms = (
        [(0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")]
        if value >= 0
        else [(0xD0, ">b"), (0xD1, ">h"), (0xD2, ">i"), (0xD3, ">q")]
    )
    for marker, form in forms:
        try:
            return bytes([marker]) + struct.pack(form, value)
        except struct.error:
            continue
    raise ValueError(value)


def message_pack(value: Any) -> bytes:
    """One value."""
    if value is None:
        return b"\xc0"
    if value is False or value is True:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return _sized(len(text), _STR) + text
    if isinstance(value, bytes):
        return _sized(len(value), _BIN) + value
    if isinstance(value, Mapping):
        members = b"".join(message_pack(key) + message_pack(one) for key, one in value.items())
        return _sized(len(value), _MAP) + members
    return _sized(len(value), _ARRAY) + b"".join(message_pack(one) for one in value)


# -- frames and what they hold


def frame(command: int, request_id: int, body: bytes) -> bytes:
    """int32 length, int16 command, int64 request id, payload."""
    return struct.pack(">ihq", 10 + len(body), command, request_id) + body


def payload(head: Any, bulk: bytes = b"") -> bytes:
    """u32 head_bytes, head, bulk."""
    packed = message_pack(head)
    return struct.pack(">I", len(packed)) + packed + bulk


def hello(head: Any, lowest: int = 1, highest: int = 1, magic: bytes = b"IGNB") -> bytes:
    return magic + struct.pack(">HHQ", lowest, highest, 0) + payload(head)


def pointers(*runs: tuple[int, int, int]) -> bytes:
    """(shard, first, count) each."""
    return struct.pack(">I", len(runs)) + b"".join(struct.pack(">HQI", *run) for run in runs)


def claims(*each: tuple[int, Sequence[tuple[int, int]], Sequence[bytes | None]]) -> bytes:
    """(shard, runs of (first, count), records) each."""
    out = struct.pack(">I", len(each))
    for shard, runs, records in each:
        out += struct.pack(">HII", shard, len(records), len(runs))
        out += b"".join(struct.pack(">QI", *run) for run in runs)
        out += b"".join(struct.pack(">I", 0xFFFFFFFF if one is None else len(one)) for one in records)
        out += b"".join(one for one in records if one is not None)
    return out


def crc32c(data: bytes) -> int:
    """RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(body: bytes, key: bytes = b"", meta: bytes = b"", attempts: int = 0, crashes: int = 0) -> bytes:
    at_us = 1_700_000_000_000_000
    head = struct.pack(">BBHHHIQ", 1, 0, attempts, crashes, len(key), len(meta), at_us)
    return head + bytes(range(16)) + key + meta + body


def segment(*records: bytes, expires_at_ms: int = 0) -> bytes:
    head = struct.pack(">BBHIQ", 1, 0, 0, len(records), expires_at_ms)
    ends, end = [], 0
    for one in records:
        end += len(one)
        ends.append(struct.pack(">I", end))
    index = b"".join(at + struct.pack(">I", crc32c(one)) for at, one in zip(ends, records, strict=True))
    return head + struct.pack(">II", crc32c(head + b"".join(ends)), 0) + index + b"".join(records)


def send(name: bytes, ttl_ms: int, shard: int, one: bytes) -> bytes:
    return struct.pack(">H", len(name)) + name + struct.pack(">QH", ttl_ms, shard) + one


def send_batch(name: bytes, ttl_ms: int, *groups: tuple[int, bytes]) -> bytes:
    out = struct.pack(">H", len(name)) + name + struct.pack(">QH", ttl_ms, len(groups))
    return out + b"".join(struct.pack(">HI", shard, len(one)) + one for shard, one in groups)


def due_times(*runs: tuple[int, int]) -> bytes:
    """(count, due_ms) each."""
    return struct.pack(">I", len(runs)) + b"".join(struct.pack(">IQ", *run) for run in runs)


def send_ack(*runs: tuple[int, int, int]) -> bytes:
    return struct.pack(">H", len(runs)) + b"".join(struct.pack(">HQI", *run) for run in runs)


# -- what is said


OWN_TTL = (1 << 64) - 1
ONE, TWO = record(b"one"), record(b"two", b"k")
MOVED = record(b"moved", b"k1", message_pack({"reason": "stuck"}), attempts=2, crashes=1)
QUEUE = {
    "name": "orders", "shards": 8, "message_expiry_s": 3_600, "queue_expiry_s": 7_200, "stuck_after_s": 300,
    "durability": "interval", "codec": "msgpack", "handler_type": "", "concurrency": 2, "shovel_concurrency": 4,
    "shovel_interval_s": 600, "max_batch_size": 0, "max_wait_s": 1.5, "created_at_ms": 1_700_000_000_000, "active": True,
    "sweep_pointers": {0: 17}, "sideline_sweep_pointers": {}, "swept_count": 3, "sideline_swept_count": 0,
    "extra": {"note": "x"}, "max_returns": 4,
}  # fmt: skip
LATER = {**QUEUE, "concurrency": 3}
LOCK = ["db", "me", 7, 1_700_000_000_000, 1_700_000_090_000]
DELIVERY = [True, 1, {0: [4, 5]}]
CLAIMS = claims((3, [(1, 2), (5, 1)], [ONE, None, b""]), (4, [(9, 1)], [TWO]))

CONNECT = ["shop", "local", "instance-1", "secret", "u", "p", "test/1", ("host-1", 7, 123_456, 4_026_531_836, "a-boot")]
CONNECTED = [
    "broker-1",
    1 << 20,
    8,
    60_000,
    "anyone",
    0,
    True,
    "broker/client/6f@host-1:7:123456:4026531836:a-boot",
    172_800,
    True,
    True,
]

REQUESTS: dict[tuple[str, int], bytes] = {
    ("CONNECT", 1): hello(CONNECT),
    ("DISCONNECT", 2): payload(True),
    ("PING", 3): b"abc",
    ("SEND", 10): send(b"orders", 60_000, 3, record(b"hello", b"k1")),
    ("SEND_BATCH", 11): send_batch(b"orders_SIDELINE", 0, (7, segment(ONE, TWO)), (65_535, segment(MOVED))),
    ("SUBSCRIBE", 20): payload(["orders", 100, 1_048_576]),
    ("UNSUBSCRIBE", 21): payload([42]),
    ("CREDIT", 22): payload([5, 10]),
    ("CONSUME", 23): payload(["orders", 10, 1_500, 16_777_216]),
    ("ACK", 25): payload(["orders"], pointers((3, 1, 3), (3, 7, 1), (4, 9, 1))),
    ("NACK", 26): payload(["orders", "sideline", 2_500, "exception", "boom"], pointers((3, 1, 1))),
    ("CREATE_QUEUE", 30): payload(["orders", {"shards": 8, "codec": "msgpack"}]),
    ("DELETE_QUEUE", 31): payload(["orders", True]),
    ("LIST_QUEUES", 32): payload([True, None]),
    ("QUEUE_INFO", 33): payload(["orders"]),
    ("CLUSTER_STATUS", 34): payload(None),
    ("NODE_STATUS", 35): payload(None),
    ("METRICS", 36): payload(None),
    ("DECLARE", 64): payload(["orders", 8, "sync"]),
    ("FIRE", 65): payload(["orders", 100, "me", [0, 2], 1 << 20, 1_500]),
    ("RELOAD", 66): payload(["orders", ["sweep", 3]], pointers((0, 4, 2))),
    ("DELETE", 67): payload(["orders"], pointers((0, 4, 2))),
    ("PEEK", 68): payload(["orders"], pointers((0, 1, 10), (1, 300, 1))),
    ("SCAN", 69): payload(["orders", {0: 16}, 50, True]),
    ("TRANSFER", 70): payload(["orders", "orders_SIDELINE", [[0, 4, MOVED, 1]], 60_000, ["sweep", 3]]),
    ("ABANDONED", 71): payload(["orders", 2, 1_700_000_000_000, 1_000, False, "me"]),
    ("EXPIRE", 72): payload(["orders", 500]),
    ("METADATA", 73): payload(["orders"]),
    ("OLDEST", 74): payload(["orders"]),
    ("WAIT", 75): payload(["orders", -1, 1_000]),
    ("WAKE", 76): payload(["orders"]),
    ("DROP", 77): payload(["orders"]),
    ("NAMES", 78): payload(None),
    ("LOAD_ONCE", 79): payload(["orders", 600_000, False], send_batch(b"orders", 60_000, (7, segment(ONE)))),
    ("QUEUE_GET", 80): payload(["orders"]),
    ("QUEUE_PUT", 81): payload(QUEUE),
    ("QUEUE_REPLACE", 82): payload([QUEUE, LATER, ["refresh", 9]]),
    ("QUEUE_LIST", 83): payload([None, "orders"]),
    ("QUEUE_REMOVE", 84): payload(["orders"]),
    ("CLAIM", 85): payload(["orders", 200_000, "spark-1", [1]]),
    ("HELD", 86): payload(["orders", "spark-1"]),
    ("RENEW", 87): payload(["orders", "spark-1"]),
    ("RENEW_CLAIMS", 88): payload(["orders", "spark-1", ""], pointers((0, 4, 2))),
    ("RESUME", 89): payload(["orders", True], pointers((0, 4, 2))),
    ("PURGE", 98): payload(["orders", 500, True, {3: [17, 90]}]),
    ("DELETE_WAITING", 99): payload(["orders"], pointers((0, 4, 2))),
    ("LOCK_ACQUIRE", 90): payload(["db", "me", 90.5, "dc", "farm"]),
    ("LOCK_RENEW", 91): payload(["db", "me", 90.5, "", ""]),
    ("LOCK_RELEASE", 92): payload(["db", "me", 0, "", ""]),
    ("LOCK_GET", 93): payload(["db", "", 0, "", ""]),
    ("LOCK_TOKEN", 94): payload(["db", "me", 0, "", ""]),
    ("EPOCH_NEXT", 95): payload(["sweep", 0]),
    ("EPOCH_GET", 96): payload(["sweep", 0]),
    ("EPOCH_RAISE", 97): payload(["sweep", 1 << 40]),
    ("ARRAY_ENQUEUE", 100): payload(["a", "b", [1, "x", b"y", {"z": [None, 2.5]}], 0, None, None]),
    ("ARRAY_DEQUEUE", 101): payload(["a", "b", [], 10, 1_048_576, 67_108_800]),
    ("ARRAY_PEEK", 102): payload(["a", "b", [], 10, None, None]),
    ("ARRAY_SIZE", 103): payload(["a", "b", [], 0, None, None]),
    ("STATS", 110): payload(None),
    ("DROP_EMPTY", 111): payload(["orders"]),
    ("LOAD_LATER", 120): payload(
        ["orders", False],
        due_times((1, 1_700_000_060_000), (1, (1 << 48) - 1)) + send_batch(b"orders", 60_000, (7, segment(ONE, TWO))),
    ),
    ("DEFER", 121): payload(["orders", [[0, 4, MOVED, 1, 1_700_000_060_000]], -1, ["sweep", 3]]),
    ("MOVE_DUE", 122): payload(["orders", 500, ["sweep", 3]]),
    ("LIST_LATER", 123): payload(["orders", [1_700_000_060_000, 0, 4], 50]),
    ("RUN_NOW", 124): payload(["orders"], pointers((0, 4, 2))),
    ("CANCEL_LATER", 125): payload(["orders"], pointers((0, 4, 2))),
    ("DELAYED", 126): payload(["orders"]),
    ("CLOCK", 127): payload(None),
}
"""(name, number) -> payload, with every field given."""

_RESULT, _PONG, _SEND_ACK, _DELIVER = ("RESULT", 5), ("PONG", 4), ("SEND_ACK", 12), ("DELIVER", 24)
ROWS = [[[0, 4, ONE], [1, 7, None]], True]

ANSWERS: dict[str, tuple[tuple[str, int], bytes]] = {
    "CONNECT": (_RESULT, hello(CONNECTED)),
    "DISCONNECT": (_RESULT, payload(None)),
    "PING": (_PONG, b"abc"),
    "SEND": (_SEND_ACK, send_ack((3, 1_000, 1))),
    "SEND_BATCH": (_SEND_ACK, send_ack((7, 1_000, 2), (4, 1, 1))),
    "SUBSCRIBE": (_RESULT, payload(42)),
    "UNSUBSCRIBE": (_RESULT, payload(True)),
    "CREDIT": (_RESULT, payload(None)),
    "CONSUME": (_DELIVER, payload(DELIVERY, CLAIMS)),
    "ACK": (_RESULT, payload(5)),
    "NACK": (_RESULT, payload(1)),
    "CREATE_QUEUE": (_RESULT, payload({"name": "orders", "shards": 8})),
    "DELETE_QUEUE": (_RESULT, payload(True)),
    "LIST_QUEUES": (_RESULT, payload([{"name": "orders", "active": True}])),
    "QUEUE_INFO": (_RESULT, payload({"name": "orders", "pending": 12, "oldest_enqueued_at_us": None})),
    "CLUSTER_STATUS": (_RESULT, payload([{"broker": "b", "address": "127.0.0.1:9710", "since_s": 1.5}])),
    "NODE_STATUS": (_RESULT, payload({"broker": "b", "pid": 7, "draining": False})),
    "METRICS": (_RESULT, payload([["ignis_broker_connections", {"application": "shop"}, 3.0]])),
    "DECLARE": (_RESULT, payload(None)),
    "FIRE": (_RESULT, payload(DELIVERY, CLAIMS)),
    "RELOAD": (_RESULT, payload(2)),
    "DELETE": (_RESULT, payload(2)),
    "PEEK": (_RESULT, payload(ROWS)),
    "SCAN": (_RESULT, payload(ROWS)),
    "TRANSFER": (_RESULT, payload(1)),
    "ABANDONED": (_RESULT, payload([[[2, 4, ONE, 1_700_000_000_000, "me", True], [2, 5, None, 1, "", False]], False])),
    "EXPIRE": (_RESULT, payload(500)),
    "METADATA": (_RESULT, payload([[0, 100, 90, 100, 80, 10, 2_815_614_201_523_719, 3], [1, 0, 0, 0, 0, 0, 7, 0]])),
    "OLDEST": (_RESULT, payload(1_700_000_000_000_000)),
    "WAIT": (_RESULT, payload(18)),
    "WAKE": (_RESULT, payload(None)),
    "DROP": (_RESULT, payload(None)),
    "NAMES": (_RESULT, payload(["orders", "orders_SIDELINE"])),
    "LOAD_ONCE": (_RESULT, payload([[1_000, 1, 0], [0, 0, 2]])),
    "QUEUE_GET": (_RESULT, payload(QUEUE)),
    "QUEUE_PUT": (_RESULT, payload(None)),
    "QUEUE_REPLACE": (_RESULT, payload(LATER)),
    "QUEUE_LIST": (_RESULT, payload([[QUEUE, LATER], True])),
    "QUEUE_REMOVE": (_RESULT, payload(False)),
    "CLAIM": (_RESULT, payload([[1, 5, 204, 200]])),
    "HELD": (_RESULT, payload([])),
    "RENEW": (_RESULT, payload(True)),
    "RENEW_CLAIMS": (_RESULT, payload([[0, 5, 6]])),
    "RESUME": (_RESULT, payload(2)),
    "LOCK_ACQUIRE": (_RESULT, payload(LOCK)),
    "LOCK_RENEW": (_RESULT, payload(LOCK)),
    "LOCK_RELEASE": (_RESULT, payload(True)),
    "LOCK_GET": (_RESULT, payload(None)),
    "LOCK_TOKEN": (_RESULT, payload(8)),
    "EPOCH_NEXT": (_RESULT, payload(9)),
    "EPOCH_GET": (_RESULT, payload(1 << 40)),
    "EPOCH_RAISE": (_RESULT, payload(None)),
    "ARRAY_ENQUEUE": (_RESULT, payload(4)),
    "ARRAY_DEQUEUE": (_RESULT, payload([1, "x", b"y", {"z": [None, 2.5]}])),
    "ARRAY_PEEK": (_RESULT, payload([])),
    "ARRAY_SIZE": (_RESULT, payload(70_000)),
    "PURGE": (_RESULT, payload([500, 0, {3: [517, 90]}])),
    "DELETE_WAITING": (_RESULT, payload(2)),
    "DROP_EMPTY": (_RESULT, payload(False)),
    "STATS": (_RESULT, payload({"flushes": 3, "mean_ms": 0.25})),
    "LOAD_LATER": (_RESULT, payload([[7, 1_000, 2]])),
    "DEFER": (_RESULT, payload(1)),
    "MOVE_DUE": (_RESULT, payload([20, 1, None])),
    "LIST_LATER": (_RESULT, payload([[[1_700_000_060_000, 0, 4, ONE], [1_700_000_060_001, 1, 7, None]], True])),
    "RUN_NOW": (_RESULT, payload(2)),
    "CANCEL_LATER": (_RESULT, payload(2)),
    "DELAYED": (_RESULT, payload([12, 1_700_000_060_000])),
    "CLOCK": (_RESULT, payload(1_700_000_000_000_000)),
}
"""Command asked -> the answer's (name, number) and payload."""

FEWEST: dict[tuple[str, int], bytes] = {
    ("CONNECT", 1): hello(["shop", "local", "instance-1"]),
    ("SUBSCRIBE", 20): payload(["orders", 100]),
    ("CONSUME", 23): payload(["orders", 10]),
    ("NACK", 26): payload(["orders", "requeue"], pointers((3, 1, 1))),
    ("CREATE_QUEUE", 30): payload(["orders"]),
    ("FIRE", 65): payload(["orders", 100, "me"]),
    ("SCAN", 69): payload(["orders"]),
    ("TRANSFER", 70): payload(["orders", "orders_SIDELINE", []]),
    ("ABANDONED", 71): payload(["orders", 2, 1_700_000_000_000, 1_000]),
    ("EXPIRE", 72): payload(["orders"]),
    ("PURGE", 98): payload(["orders"]),
    ("LOAD_ONCE", 79): payload(["orders", 600_000], send_batch(b"orders", 0, (7, segment(ONE)))),
    ("LOAD_LATER", 120): payload(["orders"], due_times((1, 0)) + send_batch(b"orders", 0, (7, segment(ONE)))),
    ("DEFER", 121): payload(["orders", []]),
    ("MOVE_DUE", 122): payload(["orders"]),
    ("LIST_LATER", 123): payload(["orders"]),
    ("QUEUE_PUT", 81): payload({"name": "orders"}),
    ("LOCK_ACQUIRE", 90): payload(["db"]),
}
"""With every default left out."""

BIG_FORMS = struct.pack(">I", 27) + b"\xdd\0\0\0\2" + b"\xdb\0\0\0\6orders" + b"\xd3\0\0\0\0\0\0\0\x64\xc0\xc0"
"""The head of SUBSCRIBE (orders, 100) in the longest forms, as an array of two with bytes behind it: not one value."""
LONG = b"\xdd\0\0\0\3" + b"\xdb\0\0\0\6orders" + b"\xd3\0\0\0\0\0\0\0\x64" + b"\xcf\0\0\0\0\0\x10\0\0"
OTHER_FORMS: dict[tuple[str, int], bytes] = {("SUBSCRIBE", 20): struct.pack(">I", len(LONG)) + LONG}
LATER_FIELDS: dict[tuple[str, int], bytes] = {
    ("SUBSCRIBE", 20): payload(["orders", 100, 1_048_576, "of version 2", [1]])
}


# -- errors, from the page's table

_SAMPLES = {"text": "some text", "int": 17, "float": 2.5, "bool": False, "[text...]": ["a", "b"]}


def _codes() -> Iterator[tuple[str, bool, list[Any]]]:
    for code, retryable, arguments in re.findall(
        r"^\| `(\w+)` \| (yes|no) \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE
    ):
        kinds = [one.partition(": ")[2] for one in arguments.strip().split(", ") if one]
        yield code, retryable == "yes", [_SAMPLES[kind] for kind in kinds]


ERRORS: dict[str, list[Any]] = {
    code: [code, "some text", retryable, False, arguments] for code, retryable, arguments in _codes()
}
"""code -> head of an ERROR that leaves the connection open."""


# -- what must be refused


class Refused(NamedTuple):
    """``ready``: after the handshake. ``fatal``: the connection ends, and request id 0 is answered."""

    frame: bytes
    code: str
    ready: bool = True
    fatal: bool = False


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _wrong_sum(good: bytes) -> bytes:
    """A segment whose first record is another than its checksum says."""
    return _flipped(good, len(good) - 1)


_GOOD_SEND = send(b"orders", 0, 3, ONE)
_GOOD = segment(ONE)


def _batch(one: bytes) -> bytes:
    return frame(11, 9, send_batch(b"orders", 0, (3, one)))


def _ack(bulk: bytes) -> bytes:
    return frame(25, 9, payload(["orders"], bulk))


def _late(dues: bytes) -> bytes:
    """A LOAD_LATER of one record with these due times."""
    return frame(120, 9, payload(["orders"], dues + send_batch(b"orders", 0, (3, _GOOD))))


_NAN = float("nan")

MALFORMED: dict[str, Refused] = {
    "length of 9": Refused(struct.pack(">i", 9) + bytes(9), "malformed_frame", ready=False, fatal=True),
    "length of -1": Refused(struct.pack(">i", -1), "malformed_frame", fatal=True),
    "length over the limit before the handshake": Refused(struct.pack(">i", 8_189), "frame_too_large", False, True),
    "length over the limit": Refused(struct.pack(">i", (1 << 20) - 3), "frame_too_large", fatal=True),
    "no CONNECT first": Refused(frame(35, 1, payload(None)), "protocol", False, True),
    "an answer instead of CONNECT": Refused(frame(5, 1, payload(None)), "protocol", False, True),
    "CONNECT of another protocol": Refused(frame(1, 1, hello(CONNECT, magic=b"MQTT")), "protocol", False, True),
    "CONNECT of other versions": Refused(frame(1, 1, hello(CONNECT, 2, 9)), "protocol", False, True),
    "CONNECT cut short": Refused(frame(1, 1, hello(CONNECT)[:15]), "protocol", False, True),
    "CONNECT without a head": Refused(frame(1, 1, hello(CONNECT)[:16]), "protocol", False, True),
    "CONNECT with too few fields": Refused(frame(1, 1, hello(["shop", "local"])), "protocol", False, True),
    "CONNECT again": Refused(frame(1, 9, hello(CONNECT)), "protocol", fatal=True),
    "RESULT from a client": Refused(frame(5, 9, payload(None)), "protocol", fatal=True),
    "ERROR from a client": Refused(frame(6, 9, payload(["broker", "x"])), "protocol", fatal=True),
    "PONG from a client": Refused(frame(4, 9, b""), "protocol", fatal=True),
    "SEND_ACK from a client": Refused(frame(12, 9, send_ack((3, 1, 1))), "protocol", fatal=True),
    "DELIVER from a client": Refused(frame(24, 9, payload(DELIVERY, CLAIMS)), "protocol", fatal=True),
    "command that is none": Refused(frame(13, 9, payload(None)), "bad_request"),
    "command below 0": Refused(frame(-1, 9, b""), "bad_request"),
    "payload cut short": Refused(frame(20, 9, b"\0\0\0"), "bad_request"),
    "head longer than the payload": Refused(frame(20, 9, b"\0\0\0\5\xc0"), "bad_request"),
    "head that is no MessagePack": Refused(frame(20, 9, b"\0\0\0\1\xc1"), "bad_request"),
    "head of two values": Refused(frame(20, 9, BIG_FORMS), "bad_request"),
    "head that is no array": Refused(frame(20, 9, payload("orders")), "bad_request"),
    "head with too few fields": Refused(frame(20, 9, payload(["orders"])), "bad_request"),
    "head with a field of another type": Refused(frame(20, 9, payload(["orders", "many"])), "bad_request"),
    "name that is no UTF-8": Refused(frame(80, 9, b"\0\0\0\3\x91\xa1\xff"), "bad_request"),
    "SEND without a record": Refused(frame(10, 9, send(b"orders", 0, 3, b"")), "malformed_frame"),
    "SEND with a record cut short": Refused(frame(10, 9, send(b"orders", 0, 3, ONE[:35])), "malformed_frame"),
    "SEND whose name is longer than it": Refused(frame(10, 9, b"\xff\xff" + _GOOD_SEND[2:]), "malformed_frame"),
    "SEND_BATCH cut short": Refused(frame(11, 9, send_batch(b"orders", 0, (3, _GOOD))[:-1]), "malformed_frame"),
    "SEND_BATCH with bytes too many": Refused(frame(11, 9, send_batch(b"orders", 0, (3, _GOOD)) + b"\0"), "malformed_frame"),
    "SEND_BATCH with a wrong checksum": Refused(_batch(_wrong_sum(_GOOD)), "malformed_frame"),
    "SEND_BATCH with a damaged index": Refused(_batch(_flipped(_GOOD, 27)), "malformed_frame"),
    "SEND_BATCH of another segment version": Refused(_batch(b"\2" + _GOOD[1:]), "malformed_frame"),
    "ACK without pointers": Refused(frame(25, 9, payload(["orders"])), "malformed_frame"),
    "ACK with pointers cut short": Refused(_ack(pointers((3, 1, 1))[:-1]), "malformed_frame"),
    "ACK with bytes too many": Refused(_ack(pointers((3, 1, 1)) + b"\0"), "malformed_frame"),
    "ACK with an empty run": Refused(_ack(pointers((3, 1, 0))), "malformed_frame"),
    "ACK of too many": Refused(_ack(pointers((3, 1, 1 << 20), (4, 1, 1))), "malformed_frame"),
    "ACK beyond the last pointer": Refused(_ack(pointers((3, 1 << 63, 1))), "malformed_frame"),
    "LOAD_LATER without due times": Refused(frame(120, 9, payload(["orders"])), "malformed_frame"),
    "LOAD_LATER with due times cut short": Refused(frame(120, 9, payload(["orders"], due_times((1, 1))[:-1])), "malformed_frame"),
    "LOAD_LATER with an empty run": Refused(_late(due_times((0, 1))), "malformed_frame"),
    "LOAD_LATER with due times of too many": Refused(_late(due_times((0xFFFFFFFF, 1), (0xFFFFFFFF, 1))), "malformed_frame"),
    "LOAD_LATER with a due time too many": Refused(_late(due_times((2, 1))), "config"),
    "LOAD_LATER beyond the last due time": Refused(_late(due_times((1, 1 << 48))), "config"),
    "LOAD_LATER of a sideline": Refused(
        frame(120, 9, payload(["orders_SIDELINE"], due_times((1, 1)) + send_batch(b"orders_SIDELINE", 0, (3, _GOOD)))),
        "invalid_name",
    ),
    "DEFER until no number": Refused(frame(121, 9, payload(["orders", [[0, 4, MOVED, 1, _NAN]]])), "bad_request"),
    "DEFER until before all time": Refused(frame(121, 9, payload(["orders", [[0, 4, MOVED, 1, -1]]])), "config"),
    "LIST_LATER behind no due time": Refused(frame(123, 9, payload(["orders", [1 << 48, 0, 1]])), "config"),
    "SEND to a later magazine": Refused(frame(10, 9, send(b"orders@LATER", 0, 3, ONE)), "invalid_name"),
    "LOAD_ONCE without a batch": Refused(frame(79, 9, payload(["orders", 1])), "malformed_frame"),
}  # fmt: skip


# -- the file


def all_vectors() -> list[dict[str, Any]]:
    """What stands in ``protocol.json``: name, who sends it, what it is, the frame, and what is to come of it."""
    out: list[dict[str, Any]] = []

    def add(name: str, sender: str, command: tuple[str, int], body: bytes, request_id: int = 42, **more: Any) -> None:
        said = {"name": name, "from": sender, "command": command[0], "request_id": request_id, **more}
        out.append({**said, "frame": frame(command[1], request_id, body).hex()})

    for what, kind in (
        ("", REQUESTS), (", defaults left out", FEWEST), (", longest forms", OTHER_FORMS), (", fields of later", LATER_FIELDS)
    ):  # fmt: skip
        for command, body in kind.items():
            add(command[0] + what, "client", command, body)
    for asked, (command, body) in ANSWERS.items():
        add(f"answer to {asked}", "broker", command, body)
    for code, head in ERRORS.items():
        add(f"ERROR {code}", "broker", ("ERROR", 6), payload(head), code=code)
    last = payload(["protocol", "some text", False, True, []])
    add("ERROR, fatal", "broker", ("ERROR", 6), last, request_id=0, code="protocol")
    add("DISCONNECT, from the broker", "broker", ("DISCONNECT", 2), payload(None), request_id=0)
    for name, one in MALFORMED.items():
        state = "ready" if one.ready else "new"
        said = {"name": name, "from": "client", "state": state, "refused": one.code, "fatal": one.fatal}
        out.append({**said, "frame": one.frame.hex()})
    return out


def text() -> str:
    return "[\n" + ",\n".join("  " + json.dumps(one) for one in all_vectors()) + "\n]\n"


if __name__ == "__main__":
    (HERE / "protocol.json").write_text(text(), "utf-8")
