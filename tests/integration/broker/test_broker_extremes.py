"""Every field of every request with values that nobody means: typed refusals that say which field, a broker that lives, and a
store in which a refused request has changed nothing."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.inspect import (
    BytesType,
    CustomType,
    DataclassType,
    DictType,
    FloatType,
    IntType,
    ListType,
    StrType,
    StructType,
    TupleType,
    Type,
    UnionType,
    type_info,
)  # fmt: skip

from ignis import errors
from ignis.broker.client import requests, store_requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.protocol import later_payloads, payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack, unpack_value
from ignis.broker.protocol.errors import _by_code
from ignis.broker.protocol.payloads import Failure
from ignis.broker.protocol.table import TABLE
from ignis.native.wire import pack_pointers
from ignis.storage import open_store
from ignis.storage.base import QueueRecord, Store
from ignis.storage.checks import MAX_MOMENT_MS, MAX_TTL_S
from ignis.storage.embedded import EmbeddedStore
from tests.contract.support import batch, drain, record
from tests.support.broker import RunningBroker, Wire, running

INTS: list[Any] = [
    -1,
    0,
    1,
    3,
    1 << 31,
    (1 << 32) - 1,
    1 << 53,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
]
FLOATS: list[Any] = [-1.0, 0.5, 1e18, 1e300, -1e300, math.inf, -math.inf, math.nan]
TEXTS: list[Any] = [
    "", "x" * 240, "x" * 600, "x" * 100_000, "a\nb", "a\0b", "../x", "a/../b", "\u202eb", "\u0085", "q\n", "q ", " ", "\u00e9",
]  # fmt: skip
OTHERS: list[Any] = [
    None,
    True,
    b"\xff",
    b"x" * 600,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    {-1: -1},
    [1 << 63] * 3,
    [-1],
    ["x"],
    [[0]],
]
EXTREMES = [*INTS, *FLOATS, *TEXTS, *OTHERS]

RECORD = msgspec.to_builtins(QueueRecord("q", shards=4, codec="raw"), str_keys=False)
HEADS: dict[int, list[Any]] = {
    Command.SUBSCRIBE: ["empty", 0, 1], Command.UNSUBSCRIBE: [1], Command.CREDIT: [1, 1], Command.CONSUME: ["empty", 1, 0, 1],
    Command.ACK: ["empty"], Command.NACK: ["empty", "requeue", 0, "rejected", ""],
    Command.CREATE_QUEUE: ["q", {"codec": "raw", "shards": 4}], Command.DELETE_QUEUE: ["none", False],
    Command.LIST_QUEUES: [None, "p"], Command.QUEUE_INFO: ["q"],
    Command.DECLARE: ["q", 4, "sync"], Command.FIRE: ["q", 1, "me", None, 1], Command.RELOAD: ["q", ["s", 0]],
    Command.DELETE: ["q"], Command.DELETE_WAITING: ["q"], Command.PURGE: ["q", 1, True, {0: [1, 1]}],
    Command.DROP_EMPTY: ["none"], Command.PEEK: ["q"], Command.SCAN: ["q", {0: 1}, 1, False],
    Command.TRANSFER: ["q", "q_SIDELINE", [], 0, ["s", 0]], Command.ABANDONED: ["q", 0, 0, 1, True, "me"],
    Command.EXPIRE: ["q", 1], Command.METADATA: ["q"], Command.OLDEST: ["q"], Command.WAIT: ["q", -1, 0],
    Command.WAKE: ["q"], Command.DROP: ["none"], Command.LOAD_ONCE: ["q", 1], Command.QUEUE_GET: ["q"],
    Command.QUEUE_REPLACE: [RECORD, RECORD, ["s", 0]], Command.QUEUE_LIST: [None, "p"], Command.QUEUE_REMOVE: ["none"],
    Command.CLAIM: ["q", 1, "me", None], Command.HELD: ["q", "me"], Command.RENEW: ["q", "me"],
    Command.RENEW_CLAIMS: ["q", "me", "you"], Command.RESUME: ["q", False],
    Command.LOCK_ACQUIRE: ["l", "me", 5.0, "DC#local#t", "local"], Command.LOCK_RENEW: ["l", "me", 5.0, "", ""],
    Command.LOCK_RELEASE: ["l", "me", 0, "", ""], Command.LOCK_GET: ["l", "", 0, "", ""],
    Command.LOCK_TOKEN: ["l", "me", 0, "", ""], Command.EPOCH_NEXT: ["s", 0], Command.EPOCH_GET: ["s", 0],
    Command.EPOCH_RAISE: ["s", 1 << 60], Command.ARRAY_ENQUEUE: ["a", "Q", [1], 0],
    Command.ARRAY_DEQUEUE: ["a", "Q", [], 1, 1, 1], Command.ARRAY_PEEK: ["a", "Q", [], 1, 1, 1],
    Command.ARRAY_SIZE: ["a", "Q", [], 0],
    Command.LOAD_LATER: ["q", False], Command.DEFER: ["q", [], -1, ["s", 0]],
    Command.MOVE_DUE: ["q", 1, ["s", 0]], Command.LIST_LATER: ["q", [1, 0, 1], 1], Command.RUN_NOW: ["q"],
    Command.CANCEL_LATER: ["q"], Command.DELAYED: ["q"],
}  # fmt: skip
ALONE = {Command.QUEUE_PUT: RECORD}
"""Heads that are no array."""
NOTHING = {
    Command.CLUSTER_STATUS,
    Command.NODE_STATUS,
    Command.METRICS,
    Command.STATS,
    Command.NAMES,
    Command.CLOCK,
    Command.DISCONNECT,
}
NATIVE = {Command.CONNECT, Command.PING, Command.SEND, Command.SEND_BATCH}
"""Decoded by C, and tested with the codec; their names below."""
WITH_POINTERS = {
    Command.ACK, Command.NACK, Command.RELOAD, Command.DELETE, Command.DELETE_WAITING, Command.PEEK,
    Command.RENEW_CLAIMS, Command.RESUME, Command.RUN_NOW, Command.CANCEL_LATER,
}  # fmt: skip
FINE = {code for code in _by_code if code not in ("broker", "store_failed", "error", "store")}


def test_every_field_of_a_request_is_bounded() -> None:
    """Declared once, beside its name: an int and a float on both sides, text in its length or by a pattern."""
    answers = {"Connected", "Failure", "Delivery"}
    before_anybody_is_known = {"Connect"}  # in a frame of 8 KiB at most, with rules of their own
    free = {("Nack", "error"), ("ArrayRequest", "values"), ("CreateQueue", "settings")}  # cut; checked one by one
    named = [*vars(payloads).values(), *vars(later_payloads).values()]
    heads = {one for one in named if isinstance(one, type) and issubclass(one, payloads.Head)}
    open_ended = []
    for kind in heads:
        if kind is payloads.Head or kind.__name__ in answers | before_anybody_is_known:
            continue
        described = type_info(kind)
        assert isinstance(described, StructType)
        open_ended += [
            f"{kind.__name__}.{field.name}: {field.type}"
            for field in described.fields
            if (kind.__name__, field.name) not in free and not _bounded(field.type)
        ]
    assert not open_ended


def _bounded(kind: Type) -> bool:
    if isinstance(kind, (IntType, FloatType)):
        return (kind.ge is not None or kind.gt is not None) and (kind.le is not None or kind.lt is not None)
    if isinstance(kind, StrType):
        return kind.pattern is not None or kind.max_length is not None
    if isinstance(kind, UnionType):
        return all(map(_bounded, kind.types))
    if isinstance(kind, ListType):
        return _bounded(kind.item_type)
    if isinstance(kind, TupleType):
        return all(map(_bounded, kind.item_types))
    if isinstance(kind, DictType):
        return _bounded(kind.key_type) and _bounded(kind.value_type)
    return not isinstance(kind, CustomType) or isinstance(kind, (BytesType, DataclassType))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running(f"embedded://{tmp_path}/store", settings={"max_wait_s": 0.1}) as one:
        yield one


class Asking:
    """One connection, and the store behind it to look into."""

    def __init__(self, broker: RunningBroker) -> None:
        self.wire = Wire(broker.port)
        self.wire.greet()
        self._ids = itertools.count(10)

    def ask(self, command: int, payload: bytes) -> Failure | None:
        """What was refused; None when it was not."""
        request_id = next(self._ids)
        self.wire.send(command, request_id, payload)
        while True:
            answer, answered, body = self.wire.receive()
            if answered == request_id:
                return unpack(body, Failure)[0] if answer == Command.ERROR else None


def content(store: Store) -> Any:
    """All but who has claimed what."""
    magazines = store.magazines
    return (
        {
            name: ([one.load_pointer for one in magazines.metadata(name)], magazines.scan(name, limit=50))
            for name in magazines.names()
        },
        store.queues.list(),
        [store.locks.get(name) for name in ("l", "leader-sweeper")],
        [store.locks.epoch(scope) for scope in ("s", "sweeper")],
        store.arrays.size("a", "Q"),
    )


def _written(store: Store) -> int:
    """Bytes of all entries so far, the broker's too: it is the same directory."""
    assert isinstance(store, EmbeddedStore)
    return sum(log.figures()["end"] for log in store.directory.opened().values())


def mutants(command: int) -> Iterator[tuple[str, Any]]:
    if command in ALONE:
        for name, value in itertools.product(ALONE[command], EXTREMES):
            yield f"{name} = {value!r:.60}", {**ALONE[command], name: value}
        return
    head = HEADS[command]
    for index, value in itertools.product(range(len(head)), EXTREMES):
        yield f"field {index} = {value!r:.60}", [*head[:index], value, *head[index + 1 :]]
    for index, part in enumerate(head):
        if isinstance(part, dict) and len(part) > 2:  # a record within the head
            for name, value in itertools.product(part, EXTREMES):
                yield (
                    f"field {index}, {name} = {value!r:.60}",
                    [*head[:index], {**part, name: value}, *head[index + 1 :]],
                )
    if command == Command.TRANSFER:
        item = [0, 1, b"r" * 64, 0]
        for index, value in itertools.product(range(4), EXTREMES):
            yield (
                f"item {index} = {value!r:.60}",
                ["q", "q_SIDELINE", [[*item[:index], value, *item[index + 1 :]]], 0, None],
            )
    if command == Command.DEFER:
        item = [0, 1, b"r" * 64, 0, 1]
        for index, value in itertools.product(range(5), EXTREMES):
            yield f"item {index} = {value!r:.60}", ["q", [[*item[:index], value, *item[index + 1 :]]], -1, None]
    if command == Command.SCAN:
        for shard, pointer in itertools.product((-1, 0, 65_535, 65_536, 1 << 63), (-1, 0, (1 << 63) - 1, 1 << 63)):
            yield f"after {shard}: {pointer}", ["q", {shard: pointer}, 1, False]
    if command in (Command.FIRE, Command.CLAIM):
        for shards in ([-1], [65_535], [1 << 62], [0] * 70_000):
            yield f"shards {shards!r:.60}", [*head[:3], shards]


def test_there_is_a_request_of_every_command() -> None:
    assert set(TABLE) == {*HEADS, *ALONE, *NOTHING, *NATIVE}


def test_extremes(broker: RunningBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    wrong: list[str] = []
    with open_store(f"embedded://{tmp_path}/store") as store:
        asking = Asking(broker)
        for name in (
            "q",
            "empty",
        ):  # what is consumed may be given back after the answer, so there is nothing in that one
            assert (
                asking.ask(Command.CREATE_QUEUE, pack(payloads.CreateQueue(name, {"codec": "raw", "shards": 4})))
                is None
            )
        store.magazines.load("q", [(0, batch("a", "b"))], None)
        for command in (*HEADS, *ALONE):
            word = Command(command).name
            bulk = pack_pointers({3: [1 << 40]}) if command in WITH_POINTERS else b""
            before, written = content(store), _written(store)
            for what, head in mutants(command):
                try:
                    payload = pack(head, bulk)
                except errors.ConfigError:
                    continue  # MessagePack has no such value
                refused = asking.ask(command, payload)
                if refused is not None and refused.code not in FINE:
                    wrong.append(f"{word}, {what}: {refused.code}: {refused.message:.120}")
                if refused is not None and len(refused.message) > 1_000:
                    wrong.append(f"{word}, {what}: {len(refused.message)} characters of message")
                if _written(store) == written:
                    continue
                after, written = content(store), _written(store)
                # The broker itself writes now and then, to say that it is there.
                if refused is not None and after != before:
                    wrong.append(f"{word}, {what}: refused with {refused.code}, and changed the store")
                before = after
            store.magazines.declare("q", 4)
        assert not wrong, "\n".join(wrong[:40])
        assert [one.getMessage() for one in caplog.records if one.name.startswith("ignis")] == []
        assert asking.ask(Command.METADATA, pack(payloads.Named("q"))) is None
        store.magazines.declare("after", 1)
        store.magazines.load("after", [(0, batch("x"))], None)
        assert drain(store.magazines, "after") == ["x"]
        asking.wire.close()


@pytest.mark.parametrize("at_ms", [1 << 62, MAX_MOMENT_MS + 1, -1])
def test_a_queue_was_not_made_after_the_year_9999(broker: RunningBroker, at_ms: int) -> None:
    with broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        known = client.ask(store_requests.queue_get("q"))
        assert known is not None
        odd = dataclasses.replace(known, created_at_ms=at_ms)
        for ask in (store_requests.queue_replace(known, odd, None), store_requests.queue_put(odd)):
            with pytest.raises(errors.ConfigError, match=f"created_at_ms of queue 'q' = {at_ms} is outside"):
                client.ask(ask)
        client.ask(store_requests.queue_put(dataclasses.replace(known, created_at_ms=MAX_MOMENT_MS)))


@pytest.mark.parametrize(
    ("command", "head", "says"),
    [
        (Command.DECLARE, ["q", 1 << 40, "sync"], "shards = 1099511627776.*65535"),
        (Command.FIRE, ["q", -5, "me"], "limit = -5.*>= 1"),
        (Command.LOCK_ACQUIRE, ["l", "me", math.nan, "", ""], "ttl_s = nan"),
        (Command.CONSUME, ["q", 1, -7], "timeout_ms = -7"),
        (Command.ARRAY_DEQUEUE, ["a", "Q", [], 10_000_000], "limit = 10000000.*1000000"),
    ],
)
def test_a_refusal_names_the_field_the_value_and_the_limit(
    broker: RunningBroker, command: Command, head: list[Any], says: str
) -> None:
    with broker.client() as client, pytest.raises(errors.ConfigError, match=says):
        client.ask(ClientRequest(command, pack(head), unpack_value))


@pytest.mark.parametrize("ttl_ms", [MAX_TTL_S * 1000 + 1, 1 << 62, (1 << 64) - 2])
def test_a_time_to_live_over_the_limit_is_a_setting_that_is_wrong(broker: RunningBroker, ttl_ms: int) -> None:
    """It was a bad request, without the limit."""
    asking = Asking(broker)
    assert asking.ask(Command.DECLARE, pack(payloads.Declare("q", 1, "sync"))) is None
    batches = [(0, batch("x"))]
    sent = payloads.pack_send_batch(b"q", ttl_ms, batches)
    for command, payload in (
        (Command.SEND, payloads.pack_send(b"q", ttl_ms, 0, record("x"))),
        (Command.SEND_BATCH, sent),
        (Command.LOAD_LATER, pack(later_payloads.LoadLater("q", True)) + later_payloads.pack_dues([[1]]) + sent),
        (Command.LOAD_ONCE, pack(payloads.LoadOnce("q", 1_000)) + sent),
    ):
        refused = asking.ask(command, payload)
        assert refused is not None and refused.code == errors.ConfigError.code, (command, refused)
        assert f"ttl_ms = {ttl_ms} is outside 0 to {MAX_TTL_S * 1000}" in refused.message, (command, refused)
    asking.wire.close()


def test_names_of_what_is_sent(broker: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    asking = Asking(broker)
    for name in (b"", b"x" * 240, b"x" * 65_000, b"a\nb", b"../x", b"\xff\xfe", "\u202eb".encode()):
        for ttl_ms in (0, (1 << 64) - 1, 1 << 63):
            sent = payloads.pack_send(name, ttl_ms, 0, b"r" * 64)
            refused = asking.ask(Command.SEND, sent)
            assert refused is not None
            assert refused.code in FINE - {"queue_not_found"}, (name[:20], refused)
    assert broker.on_loop(lambda: [one for each in broker.broker.applications for one in each.inboxes]) == []
    assert not [one for one in caplog.records if one.exc_info]
    asking.wire.close()
