"""Both sides of the protocol beside frames that were made from ``docs/protocol.md`` by hand: see ``tests/vectors/by_hand.py``."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from ignis import errors
from ignis.broker.client import later_requests, requests, store_requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.protocol import encoding, later_payloads, payloads
from ignis.broker.protocol.commands import ANSWERS as ANSWER_COMMANDS
from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.encoding import pack, pack_connect, unpack_connect
from ignis.broker.protocol.errors import failure_of
from ignis.broker.protocol.machine import Answer, BrokerMachine, ClientMachine, Request
from ignis.broker.protocol.payloads import Connect, Connected, Delivery, pack_send_ack
from ignis.errors import IgnisError, ProtocolError
from ignis.native import ANY_SHARD, PackedBatch, encode_frame, encode_record
from ignis.native.wire import ReadArea, pack_claims, pack_pointers, unpack_runs, unpack_send_batch
from ignis.storage.base import (
    Abandoned,
    Claim,
    Fence,
    FireResult,
    LoadedOnce,
    LockRecord,
    QueueRecord,
    Run,
    ShardState,
    Transfer,
)
from ignis.storage.later import Delayed, MovedDue
from ignis.storage.purging import Purged
from tests.vectors import by_hand

AREA = ReadArea()
HELLO, WELCOME = Connect(*by_hand.CONNECT), Connected(*by_hand.CONNECTED)  # type: ignore[arg-type]


def a_record(body: bytes, key: bytes = b"", **more: Any) -> bytes:
    return encode_record(body, key=key, id=bytes(range(16)), enqueued_at_us=1_700_000_000_000_000, **more)


ONE, TWO = a_record(b"one"), a_record(b"two", b"k")
MOVED = a_record(b"moved", b"k1", meta=b"\x81\xa6reason\xa5stuck", attempts=2, crashes=1)
QUEUE, LATER = QueueRecord(**by_hand.QUEUE), QueueRecord(**by_hand.LATER)  # type: ignore[arg-type]
ROWS = ([(0, 4, ONE), (1, 7, None)], True)
DELIVERED = FireResult([Claim(3, [1, 2, 5], [ONE, None, b""]), Claim(4, range(9, 10), [TWO])], {0: [4, 5]}, 1, True)
AT_MS = 1_700_000_060_000
WAITING = [Delayed(AT_MS, 0, 4, ONE), Delayed(AT_MS + 1, 1, 7, None)]
LOCK = LockRecord("db", "me", 7, 1_700_000_000_000, 1_700_000_090_000)


def batch(*records: bytes) -> PackedBatch:
    return PackedBatch.pack(records)


def sent_requests() -> dict[str, ClientRequest[Any]]:
    """What this client sends for each command of the vectors."""
    runs = pack_pointers({0: range(4, 6)})
    return {
        "DISCONNECT": requests.disconnect(True),
        "PING": ClientRequest(Command.PING, b"abc", bytes),
        "SEND": requests.send("orders", a_record(b"hello", b"k1"), shard=3, ttl_s=60),
        "SEND_BATCH": requests.send_batch(
            "orders_SIDELINE", [(7, batch(ONE, TWO)), (ANY_SHARD, batch(MOVED))], ttl_s=None
        ),
        "SUBSCRIBE": requests.subscribe("orders", 100, 1 << 20),
        "UNSUBSCRIBE": requests.unsubscribe(42),
        "CREDIT": requests.credit(5, 10),
        "CONSUME": requests.consume("orders", 10, 1.5, 16 << 20),
        "ACK": requests.ack("orders", {3: [1, 2, 3, 7], 4: [9]}),
        "NACK": requests.nack("orders", {3: [1]}, delay_s=2.5, sideline=True, reason="exception", error="boom"),
        "CREATE_QUEUE": requests.create_queue("orders", {"shards": 8, "codec": "msgpack"}),
        "DELETE_QUEUE": requests.delete_queue("orders", True),
        "LIST_QUEUES": requests.list_queues(True),
        "QUEUE_INFO": requests.queue_info("orders"),
        "CLUSTER_STATUS": requests.cluster_status(),
        "NODE_STATUS": requests.node_status(),
        "METRICS": requests.metrics(),
        "DECLARE": store_requests.declare("orders", 8, "sync"),
        "FIRE": store_requests.fire("orders", 100, "me", [0, 2], 1 << 20, 1.5),
        "RELOAD": store_requests.reload("orders", runs, Fence("sweep", 3)),
        "DELETE": store_requests.delete("orders", runs),
        "PEEK": store_requests.peek("orders", pack_pointers({0: range(1, 11), 1: [300]})),
        "SCAN": store_requests.scan("orders", {0: 16}, 50, True),
        "TRANSFER": store_requests.transfer(
            "orders", "orders_SIDELINE", [Transfer(0, 4, MOVED, 1)], 60, Fence("sweep", 3)
        ),
        "ABANDONED": store_requests.abandoned("orders", 2, 1_700_000_000_000, 1_000, False, "me"),
        "EXPIRE": store_requests.expire("orders", 500),
        "METADATA": store_requests.metadata("orders"),
        "OLDEST": store_requests.oldest("orders"),
        "WAIT": store_requests.wait("orders", -1, 1),
        "WAKE": store_requests.wake("orders"),
        "DROP": store_requests.drop("orders"),
        "NAMES": store_requests.names(),
        "LOAD_ONCE": store_requests.load_once("orders", [(7, batch(ONE))], 60, 600),
        "QUEUE_GET": store_requests.queue_get("orders"),
        "QUEUE_PUT": store_requests.queue_put(QUEUE),
        "QUEUE_REPLACE": store_requests.queue_replace(QUEUE, LATER, Fence("refresh", 9)),
        "QUEUE_LIST": store_requests.queue_list(None, "orders"),
        "QUEUE_REMOVE": store_requests.queue_remove("orders"),
        "CLAIM": store_requests.claim("orders", 200_000, "spark-1", [1]),
        "HELD": store_requests.held("orders", "spark-1"),
        "RENEW": store_requests.renew("orders", "spark-1"),
        "RENEW_CLAIMS": requests.renew_claims("orders", runs, "spark-1"),
        "RESUME": requests.resume("orders", runs, True),
        "LOCK_ACQUIRE": store_requests.lock(Command.LOCK_ACQUIRE, "db", "me", 90.5, "dc", "farm"),
        "LOCK_RENEW": store_requests.lock(Command.LOCK_RENEW, "db", "me", 90.5),
        "LOCK_RELEASE": store_requests.lock_release("db", "me"),
        "LOCK_GET": store_requests.lock(Command.LOCK_GET, "db"),
        "LOCK_TOKEN": store_requests.lock_token("db", "me"),
        "EPOCH_NEXT": store_requests.epoch_next("sweep"),
        "EPOCH_GET": store_requests.epoch_get("sweep"),
        "EPOCH_RAISE": store_requests.epoch_raise("sweep", 1 << 40),
        "ARRAY_ENQUEUE": store_requests.array_enqueue("a", "b", [1, "x", b"y", {"z": [None, 2.5]}]),
        "ARRAY_DEQUEUE": store_requests.array_dequeue("a", "b", 10, 1_048_576, 67_108_800),
        "ARRAY_PEEK": store_requests.array_peek("a", "b", 10),
        "ARRAY_SIZE": store_requests.array_size("a", "b"),
        "PURGE": store_requests.purge("orders", 500, True, {3: (17, 90)}),
        "DELETE_WAITING": store_requests.delete_waiting("orders", runs),
        "DROP_EMPTY": store_requests.drop_empty("orders"),
        "STATS": store_requests.stats(),
        "LOAD_LATER": later_requests.load_later("orders", [(7, batch(ONE, TWO))], [[AT_MS, (1 << 48) - 1]], 60),
        "DEFER": later_requests.defer("orders", [Transfer(0, 4, MOVED, 1)], [AT_MS], -1, Fence("sweep", 3)),
        "MOVE_DUE": later_requests.move_due("orders", 500, Fence("sweep", 3)),
        "LIST_LATER": later_requests.listed("orders", (AT_MS, 0, 4), 50),
        "RUN_NOW": later_requests.run_now("orders", runs),
        "CANCEL_LATER": later_requests.cancel_later("orders", runs),
        "DELAYED": later_requests.delayed("orders"),
        "CLOCK": later_requests.clock(),
    }


STATES = [ShardState(0, 100, 90, 100, 80, 10, 2_815_614_201_523_719, 3), ShardState(1, 0, 0, 0, 0, 0, 7)]
LEFT = [Abandoned(2, 4, ONE, 1_700_000_000_000, "me", True), Abandoned(2, 5, None, 1, "", False)]
VALUES: dict[str, tuple[Any, Any]] = {
    "CREATE_QUEUE": ({"name": "orders", "shards": 8},) * 2,
    "LIST_QUEUES": ([{"name": "orders", "active": True}],) * 2,
    "QUEUE_INFO": ({"name": "orders", "pending": 12, "oldest_enqueued_at_us": None},) * 2,
    "CLUSTER_STATUS": ([{"broker": "b", "address": "127.0.0.1:9710", "since_s": 1.5}],) * 2,
    "NODE_STATUS": ({"broker": "b", "pid": 7, "draining": False},) * 2,
    "METRICS": ([("ignis_broker_connections", {"application": "shop"}, 3.0)],) * 2,
    "PEEK": (ROWS, ROWS),
    "SCAN": (ROWS, ROWS),
    "ABANDONED": (([tuple(one) for one in LEFT], False), LEFT),
    "METADATA": ([tuple(vars(one).values()) for one in STATES], STATES),
    "LOAD_ONCE": ([LoadedOnce(1_000, 1, 0), LoadedOnce(0, 0, 2)],) * 2,
    "QUEUE_GET": (QUEUE, QUEUE),
    "QUEUE_REPLACE": (LATER, LATER),
    "QUEUE_LIST": (([QUEUE, LATER], True),) * 2,
    "PURGE": (Purged(500, 0, {3: (517, 90)}),) * 2,
    "CLAIM": ([Run(1, 5, 204, 200)],) * 2,
    "HELD": ([], []),
    "RENEW_CLAIMS": ([(0, 5, 6)], [(0, 5, 6)]),
    "LOCK_ACQUIRE": (LOCK, LOCK),
    "LOCK_RENEW": (LOCK, LOCK),
    "ARRAY_DEQUEUE": ([1, "x", b"y", {"z": [None, 2.5]}],) * 2,
    "ARRAY_PEEK": ([], []),
    "STATS": ({"flushes": 3, "mean_ms": 0.25},) * 2,
    "LOAD_LATER": ([(7, 1_000, 2)],) * 2,
    "MOVE_DUE": (MovedDue(20, 1, None),) * 2,
    "LIST_LATER": ((WAITING, True),) * 2,
    "DELAYED": ((12, AT_MS),) * 2,
    **{name: (value, value) for name, value in {
        "DISCONNECT": None, "SUBSCRIBE": 42, "UNSUBSCRIBE": True, "CREDIT": None, "ACK": 5, "NACK": 1, "DELETE_QUEUE": True,
        "DECLARE": None, "RELOAD": 2, "DELETE": 2, "TRANSFER": 1, "EXPIRE": 500, "OLDEST": 1_700_000_000_000_000, "WAIT": 18,
        "WAKE": None, "DROP": None, "DROP_EMPTY": False, "DELETE_WAITING": 2,
        "NAMES": ["orders", "orders_SIDELINE"], "QUEUE_PUT": None, "QUEUE_REMOVE": False,
        "RENEW": True, "LOCK_RELEASE": True, "LOCK_GET": None, "LOCK_TOKEN": 8, "EPOCH_NEXT": 9, "EPOCH_GET": 1 << 40,
        "EPOCH_RAISE": None, "RESUME": 2, "ARRAY_ENQUEUE": 4, "ARRAY_SIZE": 70_000,
        "DEFER": 1, "RUN_NOW": 2, "CANCEL_LATER": 2, "CLOCK": 1_700_000_000_000_000,
    }.items()},
}  # fmt: skip
"""Commands that RESULT answers: what a broker packs, and what the client's caller is given."""

FIRED = pack(Delivery(True, 1, {0: [4, 5]}), pack_claims(DELIVERED.claims))
BULKY: dict[str, tuple[bytes, Any]] = {
    "PING": (b"abc", b"abc"),
    "SEND": (pack_send_ack([(3, 1_000, 1)]), (3, 1_000)),
    "SEND_BATCH": (pack_send_ack([(7, 1_000, 2), (4, 1, 1)]), [(7, 1_000, 2), (4, 1, 1)]),
    "CONSUME": (FIRED, DELIVERED),
    "FIRE": (FIRED, DELIVERED),
}
"""Those whose answer is more than a value: the payload of this broker, and what the caller is given."""

HEADS: dict[str, type[Any]] = {
    "SUBSCRIBE": payloads.Subscribe, "UNSUBSCRIBE": payloads.Unsubscribe, "CREDIT": payloads.Credit, "NACK": payloads.Nack,
    "CONSUME": payloads.Consume, "CREATE_QUEUE": payloads.CreateQueue, "DELETE_QUEUE": payloads.DeleteQueue,
    "LIST_QUEUES": payloads.QueueList, "DECLARE": payloads.Declare, "FIRE": payloads.Fire, "RELOAD": payloads.Reload,
    "SCAN": payloads.Scan, "TRANSFER": payloads.TransferRequest, "ABANDONED": payloads.AbandonedRequest,
    "EXPIRE": payloads.Expire, "WAIT": payloads.Wait, "LOAD_ONCE": payloads.LoadOnce, "QUEUE_PUT": QueueRecord,
    "QUEUE_REPLACE": payloads.QueueReplace, "QUEUE_LIST": payloads.QueueList, "CLAIM": payloads.ClaimRequest,
    "HELD": payloads.OwnerRequest, "RENEW": payloads.OwnerRequest, "RENEW_CLAIMS": payloads.RenewClaims,
    "RESUME": payloads.Resume, "PURGE": payloads.PurgeRequest, "LOAD_LATER": later_payloads.LoadLater,
    "DEFER": later_payloads.DeferRequest, "MOVE_DUE": later_payloads.MoveDue, "LIST_LATER": later_payloads.ListLater,
    **dict.fromkeys(("DELETE", "PEEK", "METADATA", "DROP"), payloads.AnyNamed),
    **dict.fromkeys(
        (
            "ACK", "QUEUE_INFO", "DELETE_WAITING", "DROP_EMPTY", "OLDEST", "WAKE", "QUEUE_GET", "QUEUE_REMOVE", "RUN_NOW",
            "CANCEL_LATER", "DELAYED",
        ),
        payloads.Named
    ),
    **dict.fromkeys(("LOCK_ACQUIRE", "LOCK_RENEW", "LOCK_RELEASE", "LOCK_GET", "LOCK_TOKEN"), payloads.LockRequest),
    **dict.fromkeys(("EPOCH_NEXT", "EPOCH_GET", "EPOCH_RAISE"), payloads.EpochRequest),
    **dict.fromkeys(("ARRAY_ENQUEUE", "ARRAY_DEQUEUE", "ARRAY_PEEK", "ARRAY_SIZE"), payloads.ArrayRequest),
}  # fmt: skip


def named(table: dict[tuple[str, int], bytes]) -> dict[str, bytes]:
    return {name: body for (name, _), body in table.items()}


REQUESTS, FEWEST = named(by_hand.REQUESTS), named(by_hand.FEWEST)
ASKED = [name for name in REQUESTS if name != "CONNECT"]


def broker() -> BrokerMachine:
    """After the handshake, whose frames are those of the vectors."""
    machine = BrokerMachine(AREA, 1 << 20, 8)
    ((command, request_id, head),), at_once = machine.feed(by_hand.frame(1, 1, REQUESTS["CONNECT"]))
    assert (command, request_id, head, at_once) == (1, 1, HELLO, b"")
    assert machine.welcome(request_id, WELCOME) == by_hand.frame(5, 1, by_hand.ANSWERS["CONNECT"][1])
    return machine


def client() -> ClientMachine:
    machine = ClientMachine(AREA, 1 << 20, 100)
    assert machine.connect(HELLO) == by_hand.frame(1, 1, REQUESTS["CONNECT"])
    machine.feed(by_hand.frame(5, 1, by_hand.ANSWERS["CONNECT"][1]))
    assert machine.broker == WELCOME
    return machine


# -- the vectors themselves


def test_the_file_is_what_the_page_says() -> None:
    found = (by_hand.HERE / "protocol.json").read_text("utf-8")
    assert found == by_hand.text(), "run: python -m tests.vectors.by_hand"


def test_there_is_a_vector_for_everything() -> None:
    asked = {one.name: int(one) for one in Command if one not in ANSWER_COMMANDS}
    assert dict(by_hand.REQUESTS) == {(name, asked[name]): REQUESTS[name] for name in asked}
    assert set(by_hand.ANSWERS) == set(asked)
    assert {command for command, _ in by_hand.ANSWERS.values()} | {("ERROR", 6)} == {
        (one.name, int(one)) for one in ANSWER_COMMANDS
    }
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, IgnisError)]
    assert set(by_hand.ERRORS) == {kind.code for kind in kinds}
    assert set(ASKED) == set(sent_requests()) == set(VALUES) | set(BULKY)


def test_the_records_of_the_vectors_are_ours() -> None:
    assert (ONE, TWO, MOVED) == (by_hand.ONE, by_hand.TWO, by_hand.MOVED)
    assert bytes(batch(ONE, TWO)) == by_hand.segment(ONE, TWO)


# -- requests


@pytest.mark.parametrize("name", ASKED)
def test_what_a_client_sends(name: str) -> None:
    ask = sent_requests()[name]
    assert encode_frame(ask.command, 42, ask.payload).hex() == by_hand.frame(Command[name], 42, REQUESTS[name]).hex()


def take(name: str, body: bytes) -> Request:
    """The request as a broker reads it."""
    (request,), at_once = broker().feed(by_hand.frame(Command[name], 42, body))
    assert (request.command, request.request_id, at_once) == (Command[name], 42, b"")
    return request


def fields(head: Any) -> list[Any]:
    return [getattr(head, name) for name in head.__struct_fields__]


@pytest.mark.parametrize("name", HEADS)
def test_what_a_broker_reads(name: str) -> None:
    found, bulk = encoding.unpack(take(name, REQUESTS[name]).payload, HEADS[name])
    sent = sent_requests()[name]
    assert found == encoding.unpack(sent.payload, HEADS[name])[0]
    said, behind = encoding.unpack(REQUESTS[name], Any)
    assert encoding.unpack(pack(found), Any)[0] == said, "nothing of it is lost"
    assert bulk == behind
    if name == "LOAD_ONCE":
        magazine, ttl_ms, ((shard, loaded),) = unpack_send_batch(REQUESTS[name], bulk)
        assert (magazine, ttl_ms, shard, loaded.records()) == (b"orders", 60_000, 7, [ONE])
    elif name == "LOAD_LATER":
        dues, at = later_payloads.unpack_dues(REQUESTS[name], bulk)
        assert dues == [(1, AT_MS), (1, (1 << 48) - 1)]
        magazine, ttl_ms, ((shard, loaded),) = unpack_send_batch(REQUESTS[name], at)
        assert (magazine, ttl_ms, shard, loaded.records()) == (b"orders", 60_000, 7, [ONE, TWO])
    elif name == "ACK":
        assert unpack_runs(REQUESTS[name], bulk) == [(3, 1, 4), (3, 7, 8), (4, 9, 10)]


def test_what_a_broker_reads_of_sends() -> None:
    name, ttl_ms, ((shard, sent, ids),) = take("SEND", REQUESTS["SEND"]).payload
    assert (name, ttl_ms, shard, ids) == (b"orders", 60_000, 3, (42).to_bytes(8, "big"))
    assert sent.records() == [a_record(b"hello", b"k1")]
    name, ttl_ms, groups = take("SEND_BATCH", REQUESTS["SEND_BATCH"]).payload
    assert (name, ttl_ms) == (b"orders_SIDELINE", 0)
    assert [(shard, one.records()) for shard, one in groups] == [(7, [ONE, TWO]), (65_535, [MOVED])]
    assert by_hand.OWN_TTL == OWN_TTL


@pytest.mark.parametrize("name", FEWEST)
def test_defaults_may_be_left_out(name: str) -> None:
    if name == "CONNECT":
        machine = BrokerMachine(AREA, 1 << 20, 8)
        (request,), _ = machine.feed(by_hand.frame(1, 1, FEWEST[name]))
        assert fields(request.payload) == ["shop", "local", "instance-1", "", "", "", "", None]
        return
    head = encoding.unpack(take(name, FEWEST[name]).payload, HEADS[name])[0]
    if isinstance(head, QueueRecord):
        assert head == QueueRecord("orders")
        return
    given = [one for one in inspect.signature(type(head)).parameters.values() if one.default is inspect.Parameter.empty]
    needed = fields(head)[: len(given)]
    assert head == type(head)(*needed), "what is left out is what the class says"
    assert needed[0] in ("orders", "db")


@pytest.mark.parametrize("table", [by_hand.OTHER_FORMS, by_hand.LATER_FIELDS], ids=["longest forms", "fields of later"])
def test_other_ways_to_write_it(table: dict[tuple[str, int], bytes]) -> None:
    ((name, body),) = named(table).items()
    assert fields(encoding.unpack(take(name, body).payload, HEADS[name])[0]) == ["orders", 100, 1 << 20]


# -- answers


def answer_to(name: str, frame: bytes) -> Answer:
    """What a client makes of it, after it asked."""
    machine = client()
    machine._ids = iter([42])  # type: ignore[assignment]  # the request id of the vectors
    ask = sent_requests()[name]
    request_id, _ = machine.request(ask.command, ask.payload, "token", streams=name == "SUBSCRIBE")
    assert request_id == 42
    (answer,) = machine.feed(frame)
    assert answer.token == "token"
    return answer


@pytest.mark.parametrize("name", ASKED)
def test_what_a_client_reads(name: str) -> None:
    (_, command), body = by_hand.ANSWERS[name]
    answer = answer_to(name, by_hand.frame(command, 42, body))
    assert answer.error is None
    found = sent_requests()[name].parse(answer.payload)
    assert found == (VALUES[name] if name in VALUES else BULKY[name])[1]


@pytest.mark.parametrize("name", ASKED)
def test_what_a_broker_answers(name: str) -> None:
    (_, command), body = by_hand.ANSWERS[name]
    machine = broker()
    if name == "PING":
        made = machine.feed(by_hand.frame(3, 42, b"abc"))[1]
    elif name in BULKY:
        made = machine.answer(command, 42, BULKY[name][0])
    else:
        made = machine.result(42, VALUES[name][0])
    assert made.hex() == by_hand.frame(command, 42, body).hex()


def test_a_notice_of_the_end() -> None:
    notice = by_hand.frame(2, 0, by_hand.payload(None))
    assert broker().answer(Command.DISCONNECT, 0, pack(None), count=0) == notice
    machine = client()
    assert machine.feed(notice) == []
    assert machine.draining


# -- errors


def raised(code: str) -> IgnisError:
    kind: type[IgnisError] = next(
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, IgnisError) and one.code == code
    )
    arguments = [tuple(one) if isinstance(one, list) else one for one in by_hand.ERRORS[code][4]]
    return kind(*(arguments or ["some text"]))


@pytest.mark.parametrize("code", by_hand.ERRORS)
def test_an_error(code: str) -> None:
    head = by_hand.ERRORS[code]
    exc = raised(code)
    answer = answer_to("NAMES", by_hand.frame(6, 42, by_hand.payload(head)))
    assert type(answer.error) is type(exc)
    assert (vars(answer.error), answer.error.retryable) == (vars(exc), head[2])
    # The text is for people and no part of the protocol: the rest is compared to the byte.
    said = by_hand.payload([code, str(exc), *head[2:]])
    assert BrokerMachine.error_frame(42, exc).hex() == by_hand.frame(6, 42, said).hex()


def test_the_last_error() -> None:
    last = by_hand.payload(["protocol", "some text", False, True, []])
    assert broker().fatal(ProtocolError("some text")) == by_hand.frame(6, 0, last)
    machine = client()
    assert machine.feed(by_hand.frame(6, 0, last)) == []
    assert isinstance(machine.failure, ProtocolError)


def test_an_error_is_told_what_it_is_by_its_class() -> None:
    assert msgspec.to_builtins(failure_of(errors.ConflictError("x"))) == ["conflict", "x", True, False, []]


# -- the other side of the handshake


@pytest.mark.parametrize("change", ["magic", "versions", "short", "head"])
def test_an_answer_to_connect_that_is_none(change: str) -> None:
    body = {
        "magic": by_hand.hello(by_hand.CONNECTED, magic=b"HTTP"),
        "versions": by_hand.hello(by_hand.CONNECTED, 2, 3),
        "short": by_hand.hello(by_hand.CONNECTED)[:12],
        "head": by_hand.hello(["broker-1"]),
    }[change]
    machine = ClientMachine(AREA, 1 << 20, 100)
    machine.connect(HELLO)
    with pytest.raises(ProtocolError):
        machine.feed(by_hand.frame(5, 1, body))
    assert unpack_connect(pack_connect(WELCOME), Connected)[0] == WELCOME
