"""A broker in its own process among clients that mean it harm: its memory stays bounded, and a good client is served.

`LIMITS` names a test for every limit of ``docs/protocol.md``: one in which a client exceeds it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import logging
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.authenticator import KnownUser
from ignis.broker.auth.principal import Credentials, Principal
from ignis.broker.auth.users_file import User
from ignis.broker.client import later_requests, requests, store_requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, pack_connect, unpack
from ignis.broker.protocol.payloads import Connect, Failure, Subscribe, pack_send, pack_send_batch
from ignis.broker.repeated_log import RepeatedLog
from ignis.broker.server import request_turns
from ignis.errors import ConfigError, ConnectionLostError
from ignis.native import PackedBatch, encode_frame, encode_record
from ignis.native.wire import pack_pointers
from ignis.storage.base import QueueRecord
from tests.integration.broker.test_broker_process import BrokerProcess
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
_LIMITS, _HERE, _FLOODS = "test_broker_limits", "test_broker_hostile", "test_broker_floods"
_USERS, _ARRAYS, _LISTS = "test_broker_permissions", "test_broker_array_answers", "test_broker_lists"

LIMITS: dict[str, tuple[str, str]] = {
    "frame before the handshake": (_LIMITS, "test_a_bad_beginning_ends_the_connection_with_a_reason"),
    "frame": (_HERE, "test_a_frame_over_the_limit"),
    "frame over 8,192 bytes of a request that its sender may not make": (
        _HERE,
        "test_a_denied_request_is_answered_before_it_has_come",
    ),
    (
        "frame of a command other than SEND, SEND_BATCH, LOAD_ONCE, LOAD_LATER, ACK, NACK, RELOAD, DELETE, DELETE_WAITING, PEEK, "
        "TRANSFER, DEFER, RUN_NOW, CANCEL_LATER, ARRAY_ENQUEUE"
    ): (_HERE, "test_a_denied_request_is_answered_before_it_has_come"),
    "head of a request other than TRANSFER, DEFER and ARRAY_ENQUEUE": (_HERE, "test_heads_and_values_are_bounded"),
    "metadata of a record in SEND, SEND_BATCH, LOAD_ONCE, LOAD_LATER": (
        _USERS,
        "test_metadata_over_the_limit_is_refused",
    ),
    "keys of a map in a part of a head that has no type (`extra`, `settings`, values)": (
        _USERS,
        "test_keys_of_one_hash_reach_no_record",
    ),
    "values of an ARRAY_ENQUEUE": (_HERE, "test_heads_and_values_are_bounded"),
    "rows of a TRANSFER or DEFER": (_HERE, "test_too_many_rows_cost_a_broker_nothing"),
    "memory of frames that are still arriving, over all connections": (_HERE, "test_frames_that_never_arrive"),
    "time for a frame to arrive": (_HERE, "test_a_frame_that_arrives_too_slowly"),
    "requests that one pass of the broker's event loop has no time for": (
        _HERE,
        "test_who_asks_for_much_at_once_does_not_hold_up_a_login",
    ),
    (
        "requests of a user that wait for messages (FIRE with `timeout_ms`, CONSUME, WAIT) and runs of pointers of delayed "
        "NACKs, over all connections; without users of an address"
    ): ("test_broker_held_fires", "test_a_user_has_so_many_requests_that_wait"),
    "pending requests of a connection": (_LIMITS, "test_the_cap_on_pending_requests"),
    "bytes of one queue waiting for the store": (_LIMITS, "test_a_full_inbox_holds_senders_back"),
    "bytes of a connection's requests waiting for the store": (_HERE, "test_requests_that_wait_are_bounded_in_bytes"),
    "bytes of all connections' requests waiting for the store": (_HERE, "test_requests_of_all_are_bounded_in_bytes"),
    "bytes a connection has not read": (_LIMITS, "test_one_that_reads_nothing_is_closed"),
    "bytes that all connections together have not read": (_HERE, "test_what_all_leave_unread_together"),
    "silence": (_LIMITS, "test_idle_connections_are_closed_and_clients_connect_again"),
    "connections": (_LIMITS, "test_connections_are_counted"),
    "connections that have not said who they are": (_FLOODS, "test_silence_of_one_address_does_not_lock_out_another"),
    (
        "answer to FIRE, CONSUME, PEEK, SCAN, LIST_LATER, ABANDONED, ARRAY_DEQUEUE, ARRAY_PEEK, and to QUEUE_LIST and "
        "LIST_QUEUES with `after`"
    ): (_HERE, "test_answers_are_cut_to_their_limit"),
    "answer that is not cut, to what changes nothing": (_LISTS, "test_a_list_that_no_frame_has_room_for_is_refused"),
    "one value of an array queue": (_ARRAYS, "test_a_value_that_no_frame_could_bring_back_is_not_taken"),
    "unacknowledged messages of a subscription": (_HERE, "test_credit_over_the_limit"),
}
"""What the page's table calls it -> module and test."""


def test_every_limit_of_the_page_has_a_test() -> None:
    table = PAGE.read_text("utf-8").split("\n## Limits\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[2:]
    assert set(rows) == set(LIMITS)
    for module, name in LIMITS.values():
        assert callable(getattr(importlib.import_module(f"tests.integration.broker.{module}"), name))


def greeted(port: int) -> Wire:
    wire = Wire(port)
    wire.greet()
    return wire


def big_batch(size: int, shard: int = 0) -> bytes:
    """The payload of a SEND_BATCH of about so many bytes."""
    records = [encode_record(bytes(10_000)) for _ in range(size // 10_036)]
    return pack_send_batch(b"q", 0, [(shard, PackedBatch.pack(records))])


@pytest.mark.parametrize("count", [3, 900])
def test_what_comes_before_a_bad_frame_is_answered(memory_url: str, count: int) -> None:
    """In its turn, and the connection ends behind it."""
    with RunningBroker(memory_url) as broker, greeted(broker.port) as wire, greeted(broker.port) as other:
        asked = b"".join(encode_frame(Command.UNSUBSCRIBE, 10 + number, pack([5])) for number in range(count))
        wire.raw(asked + b"\0\0\0\1" + b"x" * 20)
        other.send(Command.PING, 1)
        assert other.receive()[:2] == (Command.PONG, 1)
        answers = [wire.receive() for _ in range(count)]
        assert sorted(number for _, number, _ in answers) == list(range(10, 10 + count))
        assert wire.receive()[:2] == (Command.ERROR, 0)
        assert wire.closed()
        eventually(lambda: broker.on_loop(lambda: broker.broker.context.turns.waiting) == 0)


def test_what_a_pass_has_no_time_for_is_answered_in_order(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were put by unread, of connections that sent a few requests each, and a part of one."""
    monkeypatch.setattr(request_turns, "_MOST_PASS_S", 0.0)
    with RunningBroker(memory_url) as broker:
        wires = [greeted(broker.port) for _ in range(20)]
        asked = [encode_frame(Command.UNSUBSCRIBE, 10 + number, pack([5])) for number in range(40)]
        stream = b"".join(asked)
        for at in range(0, len(stream), 101):
            for wire in wires:
                wire.raw(stream[at : at + 101])
        for wire in wires:
            assert [wire.receive()[1] for _ in asked] == list(range(10, 50))
            wire.sock.close()
        eventually(lambda: broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) == 0)


# -- frames


@pytest.fixture
def narrow(memory_url: str) -> Iterator[RunningBroker]:
    """Little memory for frames that are arriving."""
    settings = {
        "max_frame_bytes": 4 << 20, "max_receive_bytes": 1 << 20, "max_inbox_bytes": 1 << 30, "frame_timeout_s": 60,
    }  # fmt: skip
    with RunningBroker(memory_url, settings=settings) as one:
        with one.client() as client:
            client.ask(requests.create_queue("q", {"shards": 4, "codec": "raw", "durability": "none"}))
        yield one


def held_bytes(broker: RunningBroker) -> int:
    return broker.on_loop(lambda: broker.broker.receiving.held_bytes)


def test_a_frame_over_the_limit(narrow: RunningBroker) -> None:
    with greeted(narrow.port) as wire:
        wire.raw(((4 << 20) - 3).to_bytes(4, "big"))
        failure = wire.failure()
        assert (failure.code, failure.fatal) == ("frame_too_large", True)
        assert wire.closed()


def test_heads_and_values_are_bounded(memory_url: str) -> None:
    with running(memory_url) as broker, greeted(broker.port) as wire:
        wire.send(Command.NACK, 2, pack(["orders", "requeue", -1, "", "", [{}] * 400_000]))
        assert (failure := wire.failure()).code == "bad_request"
        assert "262144" in failure.message
        wire.send(Command.ARRAY_ENQUEUE, 3, pack(["a", "Q", [{}] * 1_000_001]))
        assert (failure := wire.failure()).code == "config"
        assert "at most 1000000" in failure.message
        wire.send(Command.ARRAY_ENQUEUE, 4, pack(["a", "Q", [0] * 400_000]))
        assert wire.receive()[:2] == (Command.RESULT, 4)
        wire.send(Command.PING, 5)
        assert wire.receive()[0] == Command.PONG


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the most memory that a process had")
def test_too_many_rows_cost_a_broker_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(f"embedded://{tmp_path / 'store'}")

    def most_mib() -> int:
        (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{broker.process.pid}/status").read_text())
        return int(line) >> 10

    try:
        with greeted(broker.port) as wire:
            begun = most_mib()
            for number, (command, names, row) in enumerate(
                (
                    (Command.TRANSFER, ("q", "q_SIDELINE"), b"\x94\x00\x01\xc4\x00\x00"),
                    (Command.DEFER, ("q",), b"\x95\x00\x01\xc4\x00\x00\x00"),
                ),
                2,
            ):
                count = (20 << 20) // len(row)
                rows = b"\xdd" + count.to_bytes(4, "big") + row * count
                head = bytes([0x91 + len(names)]) + pack(names)[5:] + rows
                wire.send(command, number, len(head).to_bytes(4, "big") + head)
                assert (failure := wire.failure()).code == "config"
                assert f"{command.name} with {count} rows; at most 100000 are taken in one request" in failure.message
            wire.send(Command.PING, 9)
            assert wire.receive()[0] == Command.PONG
            assert most_mib() - begun < 20  # the frames alone have as much each
    finally:
        broker.end(signal.SIGTERM)


@pytest.mark.parametrize(
    "odd",
    [{2: "a\nb"}, {6: "a\nb"}, {7: [1]}, {7: ["h", -1, 1, 1, "b"]}, {1: 5}, {5: b"secretpw"}],
    ids=["instance", "software", "short process", "pid", "farm_id", "password"],
)
def test_an_odd_connect_is_told_so_and_is_one_line_of_the_log(
    narrow: RunningBroker, odd: dict[int, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = RepeatedLog(
        logging.getLogger("ignis.broker"), logging.INFO
    )  # the test before may have had this second's line
    monkeypatch.setattr(narrow.broker, "say_broken", say)
    fields = ["ignis", "local", "wire", "", "", "", "", None]
    hello = pack_connect(Connect("", "", ""))[: -len(pack(Connect("", "", "")))]
    caplog.set_level("INFO")
    with Wire(narrow.port) as wire:
        wire.send(Command.CONNECT, 1, hello + pack([odd.get(at, one) for at, one in enumerate(fields)]))
        failure = wire.failure()
        assert (failure.code, failure.fatal) == ("protocol", True)
        assert wire.closed()
    lines = [one for one in caplog.records if one.exc_info or "Expected" in one.getMessage()]
    assert len(lines) == 1
    text = lines[0].getMessage()
    assert len(text) < 300
    assert "\n" not in text
    assert "secretpw" not in text + failure.message
    assert lines[0].exc_info is None


def test_connects_that_are_odd_all_the_time_do_not_fill_the_log(
    narrow: RunningBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    say = RepeatedLog(logging.getLogger("ignis.broker"), logging.INFO, lambda: now_s[0])
    monkeypatch.setattr(narrow.broker, "say_broken", say)
    caplog.set_level("INFO")
    before = narrow.broker.state.protocol_errors
    for _ in range(100):
        with Wire(narrow.port) as wire:
            wire.raw(b"\xff\xff\xff\xff")
            assert wire.failure().fatal
            assert wire.closed()
    assert narrow.broker.state.protocol_errors - before == 100
    assert len([one for one in caplog.records if one.name == "ignis.broker"]) == 1
    now_s[0] += 1
    with Wire(narrow.port) as wire:
        wire.raw(b"\xff\xff\xff\xff")
        assert wire.failure().fatal
    assert "(99 more like this were not logged)" in caplog.text


def test_what_follows_good_frames_is_told_as_well(narrow: RunningBroker) -> None:
    """In one write: CONNECT, PING, and a length that is none. It gets its answers, then the reason."""
    hello = encode_frame(Command.CONNECT, 1, pack_connect(Connect("ignis", "local", "x")))
    with Wire(narrow.port) as wire:
        wire.raw(hello + encode_frame(Command.PING, 2, b"abc") + b"\xff\xff\xff\xff")
        assert wire.receive() == (Command.PONG, 2, b"abc")
        failure = wire.failure()
        assert (failure.code, failure.fatal) == ("malformed_frame", True)
        assert wire.closed()


def test_many_large_frames_at_once_all_get_through(narrow: RunningBroker) -> None:
    """Together 48 MiB on their way, where 1 MiB may be held, and one frame of 4."""
    frames = [encode_frame(Command.SEND_BATCH, 9, big_batch(4_000_000, n % 4)) for n in range(12)]
    answered: list[int] = []
    most = 0

    def send(frame: bytes) -> None:
        with greeted(narrow.port) as wire:
            wire.raw(frame)
            answered.append(wire.receive()[0])

    threads = [threading.Thread(target=send, args=(one,)) for one in frames]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, held_bytes(narrow))
        threads[0].join(0.01)
        threads = [thread for thread in threads if thread.is_alive()]
    assert answered == [Command.SEND_ACK] * 12
    assert most <= (1 << 20) + (4 << 20) + (1 << 20)
    assert held_bytes(narrow) == 0


def test_a_frame_that_arrives_too_slowly(memory_url: str) -> None:
    frame = encode_frame(Command.SEND_BATCH, 9, big_batch(400_000))
    with (
        running(memory_url, settings={"frame_timeout_s": 0.3}) as broker,
        greeted(broker.port) as silent,
        greeted(broker.port) as slow,
    ):
        for wire in (silent, slow):
            wire.raw(frame[:1_000])
        ended = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                for one in frame[1_000:]:
                    slow.raw(bytes([one]))
                    if ended.wait(0.02):
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        for wire in (silent, slow):
            failure = wire.failure()
            assert (failure.code, failure.fatal) == ("broker", True)
            assert "broker.frame_timeout_s" in failure.message
        ended.set()
        thread.join(WAIT_S)
        eventually(lambda: held_bytes(broker) == 0)


def test_frames_that_never_arrive(memory_url: str) -> None:
    """Twenty clients begin a frame each and stop, so that all memory is used up. Requests that need none are answered as
    ever, and a large frame gets through when the time of the others is over."""
    settings = {"max_frame_bytes": 4 << 20, "max_receive_bytes": 1 << 20, "frame_timeout_s": 0.5}
    begun = encode_frame(Command.SEND_BATCH, 9, big_batch(3_000_000))[:300_000]
    with (
        running(memory_url, settings=settings) as broker,
        broker.client(timeout_s=WAIT_S) as good,
        contextlib.ExitStack() as stack,
    ):
        good.ask(requests.create_queue("q", {"shards": 4, "codec": "raw"}))
        hostile = [stack.enter_context(greeted(broker.port)) for _ in range(20)]
        for wire in hostile:
            wire.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                wire.sock.send(begun)
        eventually(lambda: held_bytes(broker) > 1 << 20)
        assert held_bytes(broker) <= (1 << 20) + (4 << 20) + 20 * (256 << 10)
        good.ask(requests.send("q", encode_record(b"x")))
        assert good.ask(store_requests.names())
        batch = PackedBatch.pack([encode_record(bytes(10_000)) for _ in range(300)])
        ask = requests.send_batch("q", [(0, batch)])

        def gets_through() -> bool:
            # On a slow machine it may be taken for a slow one itself, and comes again.
            with contextlib.suppress(ConnectionLostError):
                return good.ask(ask)[0][2] == 300
            return False

        eventually(gets_through)
        eventually(lambda: held_bytes(broker) == 0)


@pytest.mark.parametrize("uvloop", [True, False])
def test_an_idle_connection_holds_nothing_of_its_last_frame(memory_url: str, uvloop: bool) -> None:
    with running(memory_url, uvloop=uvloop) as broker, broker.client() as client, greeted(broker.port) as wire:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        wire.send(Command.SEND_BATCH, 9, big_batch(3_000_000))
        assert wire.receive()[0] == Command.SEND_ACK
        assert held_bytes(broker) == 0


# -- what waits, and what is answered


@contextlib.contextmanager
def stuck_store(broker: RunningBroker) -> Iterator[threading.Event]:
    """Array queues that wait for the event."""
    store = broker.broker.applications[0].store
    go_on = threading.Event()
    enqueue = store.arrays.enqueue

    def slow(*args: Any) -> Any:
        assert go_on.wait(WAIT_S)
        return enqueue(*args)

    store.arrays.enqueue = slow  # type: ignore[method-assign]
    try:
        yield go_on
    finally:
        go_on.set()
        store.arrays.enqueue = enqueue  # type: ignore[method-assign]


def sends_until_it_is_not_read(broker: RunningBroker, wire: Wire, frame: bytes) -> None:
    """The frame over and over. What one read brings is taken, so a little more than the limit may be held."""
    port = wire.sock.getsockname()[1]
    session = next(one for one in broker.broker.sessions if one.peer.endswith(f":{port}"))
    wire.sock.setblocking(False)
    sent = 0

    def stuck() -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += wire.sock.send(frame[sent % len(frame) :])
        return broker.on_loop(lambda: session.unread)

    eventually(stuck)


def test_requests_that_wait_are_bounded_in_bytes(memory_url: str) -> None:
    settings = {"max_outbound_bytes": 1 << 20, "max_pending": 100_000, "store_threads": 1}
    ask = store_requests.array_enqueue("a", "b", [bytes(100_000)])
    with running(memory_url, settings=settings) as broker, greeted(broker.port) as wire, stuck_store(broker) as go_on:
        sends_until_it_is_not_read(broker, wire, encode_frame(ask.command, 5, ask.payload))
        assert broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) <= (1 << 20) + (512 << 10)
        wire.send_nothing_more()
        go_on.set()
        eventually(lambda: broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) == 0)


def test_requests_of_all_are_bounded_in_bytes(memory_url: str) -> None:
    """Eight connections, each of which may have 8 MiB waiting, where 1 MiB may wait in all."""
    settings = {"max_receive_bytes": 1 << 20, "max_pending": 100_000, "store_threads": 1}
    ask = store_requests.array_enqueue("a", "b", [bytes(100_000)])
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(greeted(broker.port)) for _ in range(8)]
        with stuck_store(broker) as go_on:
            for wire in wires:
                sends_until_it_is_not_read(broker, wire, encode_frame(ask.command, 5, ask.payload))
            assert broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) <= (1 << 20) + 8 * (512 << 10)
            for wire in wires:
                wire.send_nothing_more()
            go_on.set()
            eventually(lambda: broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) == 0)


@pytest.mark.parametrize("uvloop", [True, pytest.param(False, marks=pytest.mark.long)])
def test_who_asks_for_much_at_once_does_not_hold_up_a_login(memory_url: str, uvloop: bool) -> None:
    """Forty connections with 400 requests each; a connection that comes then is served before they are through."""
    with running(memory_url, uvloop=uvloop) as broker, contextlib.ExitStack() as stack:
        with broker.client() as client:
            client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        wires = [stack.enter_context(greeted(broker.port)) for _ in range(40)]
        frames = b"".join(encode_frame(Command.QUEUE_INFO, number, pack(["q"])) for number in range(5, 405))
        answered: list[list[int]] = [[] for _ in wires]

        def flood(number: int) -> None:
            wires[number].raw(frames)
            answered[number] += (wires[number].receive()[1] for _ in range(400))

        floods = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(len(wires))]
        for one in floods:
            one.start()
        eventually(lambda: broker.broker.context.turns.waiting >= 10)
        with greeted(broker.port) as good:
            good.send(Command.QUEUE_INFO, 7, pack(["q"]))
            assert good.receive()[:2] == (Command.RESULT, 7)
            assert any(one.is_alive() for one in floods)
            good.send_nothing_more()
        for one in floods:
            one.join(WAIT_S)
        assert all(sorted(ids) == list(range(5, 405)) for ids in answered)
        assert broker.on_loop(lambda: (broker.broker.context.turns.waiting, broker.broker.receiving.backlog_bytes)) == (
            0,
            0,
        )


@pytest.mark.parametrize("asked", [["q", 1, 0, 1_000, bytes(200_000)], ["q" * 200_000]], ids=["denied", "malformed"])
def test_bytes_of_refused_requests_wait_for_their_turn(memory_url: str, asked: list[Any]) -> None:
    """They are dropped as they come and carried out by nobody, but forty connections of nothing else would keep the loop."""
    users = Users(web=["publish:orders"], boss=["all:*"])
    command = Command.CONSUME if len(asked) > 1 else Command.QUEUE_INFO
    frames = b"".join(encode_frame(command, number, pack(asked)) for number in range(5, 25))
    answered, rounds = threading.Event(), [0] * 40

    def flood(number: int) -> None:
        while not answered.is_set():
            wires[number].raw(frames)
            rounds[number] += 1

    with running(memory_url, authenticator=users) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.port)) for _ in rounds]
        for wire in wires:
            wire.greet(user="web")
        floods = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(40)]
        stack.callback(answered.set)
        for one in floods:
            one.start()
        eventually(lambda: broker.broker.context.turns.waiting >= 10)
        with Wire(broker.port) as boss:
            boss.greet(user="boss")
            boss.send(Command.QUEUE_INFO, 7, pack(["q"]))
            assert boss.receive()[1] == 7  # while they go on
        answered.set()
        for one in floods:
            one.join(WAIT_S)
            assert not one.is_alive()
        for wire, times in zip(wires, rounds, strict=True):
            for _ in range(times):
                assert [wire.receive()[:2] for _ in range(20)] == [(Command.ERROR, number) for number in range(5, 25)]
        eventually(lambda: broker.on_loop(lambda: broker.broker.context.turns.waiting) == 0)


def test_a_login_of_another_user_comes_before_hundreds_of_connections(memory_url: str) -> None:
    """Whose line they stand in is their own user's."""
    users = Users(web=["publish:orders"], boss=["all:*"])
    with running(memory_url, authenticator=users) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.port)) for _ in range(60)]
        for wire in wires:
            wire.greet(user="web")
        frames = b"".join(encode_frame(Command.QUEUE_GET, number, pack(["orders"])) for number in range(5, 505))
        for wire in wires:
            wire.raw(frames)
        began = time.monotonic()
        with Wire(broker.port) as boss:
            boss.greet(user="boss")
        assert time.monotonic() - began < WAIT_S / 3


def test_publishes_of_all_are_bounded_in_bytes(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen connections with one message of 2 MB each, where 4 MiB may wait in all, and one frame more may arrive."""
    settings = {"max_receive_bytes": 4 << 20, "max_inbox_bytes": 1 << 20, "store_threads": 1}
    frame = encode_frame(Command.SEND_BATCH, 5, big_batch(2_000_000))
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        with broker.client() as client:
            client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        wires = [stack.enter_context(greeted(broker.port)) for _ in range(16)]
        receiving, go_on = broker.broker.receiving, threading.Event()
        magazines = broker.broker.applications[0].store.magazines
        load = magazines.load

        def slow(*args: Any, **options: Any) -> Any:
            assert go_on.wait(WAIT_S)
            return load(*args, **options)

        monkeypatch.setattr(magazines, "load", slow)
        most = 0

        def held() -> int:
            nonlocal most
            inboxes = broker.broker.applications[0].inboxes
            most = max(most, sum(one.bytes for one in inboxes) + receiving.held_bytes - receiving.backlog_bytes)
            return receiving.waiting

        def overdue() -> list[Any]:
            """Of two minutes, as if they had passed; a frame of this size may take a minute and a half."""
            now = broker.broker.loop.time()
            found = [late for tick in range(1, 600) for late in receiving.overdue(now + tick / 5)]
            receiving.overdue(now)  # and back
            return found

        senders = [threading.Thread(target=wire.sock.sendall, args=(frame,), daemon=True) for wire in wires]
        try:
            for sender in senders:
                sender.start()
            eventually(lambda: broker.on_loop(held) >= 12)
            broker.on_loop(held)
            assert broker.on_loop(overdue) == [], "who waits for the store is not sent away"
        finally:
            go_on.set()
        for wire in wires:
            broker.on_loop(held)
            assert wire.receive()[0] == Command.SEND_ACK
        assert most <= (4 << 20) + len(frame) + (1 << 20)
        eventually(lambda: broker.on_loop(lambda: receiving.held_bytes) == 0)


def test_small_publishes_of_all_are_bounded_in_bytes(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many queues, none of which has much, from connections that begin no frame which they do not end."""
    settings = {"max_receive_bytes": 1 << 20, "max_pending": 100_000, "store_threads": 1}
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        names = [f"q{number}" for number in range(8)]
        with broker.client() as client:
            for name in names:
                client.ask(requests.create_queue(name, {"shards": 1, "codec": "raw"}))
        receiving, go_on = broker.broker.receiving, threading.Event()
        facts = broker.broker.applications[0].facts
        known = facts.shards

        def slow(*args: Any, **options: Any) -> Any:
            assert go_on.wait(WAIT_S)
            return known(*args, **options)

        monkeypatch.setattr(facts, "known", lambda magazine: None)
        monkeypatch.setattr(facts, "shards", slow)
        wires = [stack.enter_context(greeted(broker.port)) for _ in names]
        try:
            for wire, name in zip(wires, names, strict=True):
                payload = pack_send(name.encode(), 0, 0, encode_record(bytes(3_000)))
                sends_until_it_is_not_read(broker, wire, encode_frame(Command.SEND, 5, payload))
            inboxes = list(broker.broker.applications[0].inboxes)
            waiting = broker.on_loop(lambda: sum(one.bytes for one in inboxes))
            assert waiting <= (1 << 20) + 8 * (64 << 10) + (256 << 10)
            for wire in wires:
                wire.send_nothing_more()
        finally:
            go_on.set()
        eventually(lambda: broker.on_loop(lambda: receiving.held_bytes) == 0)


def test_long_lists_of_all_are_bounded_in_bytes(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight connections with one list of 4 MiB each, where 6 MiB and one frame more may wait in all."""
    settings = {"max_receive_bytes": 6 << 20, "store_threads": 1}
    ask = requests.ack("orders", {0: range(1, 600_001, 2)})
    frame = encode_frame(ask.command, 5, ask.payload)
    assert len(frame) > 4 << 20
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(greeted(broker.port)) for _ in range(8)]
        receiving, go_on = broker.broker.receiving, threading.Event()
        magazines = broker.broker.applications[0].store.magazines
        renew_claims = magazines.renew_claims

        def slow(*args: Any, **options: Any) -> Any:
            assert go_on.wait(WAIT_S)
            return renew_claims(*args, **options)

        monkeypatch.setattr(magazines, "renew_claims", slow)
        senders = [threading.Thread(target=wire.sock.sendall, args=(frame,), daemon=True) for wire in wires]
        try:
            for sender in senders:
                sender.start()
            eventually(lambda: broker.on_loop(lambda: receiving.waiting) >= 6)
            assert broker.on_loop(lambda: receiving.held_bytes) <= (6 << 20) + len(frame) + (256 << 10)
        finally:
            go_on.set()
        for wire in wires:
            assert wire.receive()[0] in (Command.ERROR, Command.RESULT)
        eventually(lambda: broker.on_loop(lambda: receiving.held_bytes) == 0)


def test_what_all_leave_unread_together(memory_url: str) -> None:
    """Thirty clients, each of which may leave 8 MiB, where 4 MiB may be left in all; one that reads is served."""
    settings = {"max_unread_bytes": 4 << 20, "store_threads": 2, "max_pending": 1_000, "drain_timeout_s": 0}
    with running(memory_url, settings=settings) as broker, broker.client() as client, contextlib.ExitStack() as stack:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(100):
            client.ask(requests.send("q", encode_record(bytes(30_000))))
        greedy = [stack.enter_context(greeted(broker.port)) for _ in range(30)]
        for wire in greedy:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            wire.sock.setblocking(False)
            with contextlib.suppress(OSError):
                for number in range(20):
                    wire.send(Command.SCAN, 10 + number, pack(["q", {}, 100, False]))
        most = 0
        for _ in range(100):
            most = max(most, broker.on_loop(lambda: sum(one.outbound_bytes for one in broker.broker.sessions)))
            assert client.ask(store_requests.scan("q", {}, 100, False))[0]
        # Above twice the limit next to nothing is added; one answer of each thread that looks is on its way. Nothing need be
        # left unread: two threads make the answers, small ones while much is on its way, and sockets take those.
        assert most < 2 * (4 << 20) + 2 * (4 << 20)
        for wire in greedy:
            wire.close()
        eventually(lambda: not broker.on_loop(lambda: broker.broker.context.unread.crowded))
        eventually(lambda: len(client.ask(store_requests.scan("q", {}, 100, False))[0]) == 100)


_ONE_RECORD: dict[str, tuple[Command, bytes]] = {
    "scan": (Command.SCAN, pack(["q", {}, 1, False])),
    "peek": (Command.PEEK, pack(["q"]) + pack_pointers({0: range(1, 2)})),
    "fire": (Command.FIRE, pack(["q", 1, "me", None, 1 << 30])),
    "consume": (Command.CONSUME, pack(["q", 1, 60_000, 1 << 30])),
    "subscribe": (Command.SUBSCRIBE, pack(Subscribe("q", 1))),
    "list": (Command.QUEUE_LIST, pack([None])),
}
"""Requests that are answered with a record, however large it is, or with all queues' records."""


def _reads_a_record(wire: Wire, size: int) -> bool:
    command, _, payload = wire.receive()
    if command == Command.RESULT and len(payload) < size:  # that it is subscribed
        command, _, payload = wire.receive()
    return command != Command.ERROR and len(payload) > size


@pytest.mark.parametrize(
    "how", [how if how in ("scan", "subscribe") else pytest.param(how, marks=pytest.mark.long) for how in _ONE_RECORD]
)
def test_large_records_that_nobody_reads_are_bounded(memory_url: str, how: str) -> None:
    """Each of a user's connections has read everything, and is given a record of 8 MiB: together they are given four or so where
    4 MiB may be left unread in all. Another user is served meanwhile, and they are when they are read."""
    size, limit, count = 8 << 20, 4 << 20, 24
    settings = {"max_unread_bytes": limit, "store_threads": 2, "write_timeout_s": 3_600, "drain_timeout_s": 0}
    users = Users(greedy=["all:*"], good=["all:*"])
    with (
        running(memory_url, settings=settings, authenticator=users) as broker,
        broker.client(user="good") as client,
        contextlib.ExitStack() as stack,
    ):
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(count + 1):
            client.ask(requests.send("q", encode_record(bytes(size))))
        if how == "list":
            queues = broker.broker.applications[0].store.queues
            for number in range(size // 60_000 + 1):
                queues.put(QueueRecord(f"r{number}", extra={"x": "y" * 60_000}))
        greedy = [stack.enter_context(Wire(broker.port)) for _ in range(count)]
        for number, wire in enumerate(greedy):
            wire.greet(user="greedy", instance=f"greedy{number}")
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        for wire in greedy:
            wire.send(_ONE_RECORD[how][0], 10, _ONE_RECORD[how][1])
        eventually(lambda: broker.on_loop(lambda: bool(broker.broker.context.unread.held_back)))
        most = 0
        for _ in range(20):
            most = max(most, broker.on_loop(lambda: sum(one.outbound_bytes for one in broker.broker.sessions)))
            assert client.ask(store_requests.scan("q", {}, 1, False))[0]
        # One record for each thread that makes an answer, and for each user.
        assert 2 * limit < most <= 2 * limit + 4 * size
        with concurrent.futures.ThreadPoolExecutor(count) as readers:  # who was given nothing waits for others who read
            assert all(readers.map(lambda wire: _reads_a_record(wire, size), greedy))
        eventually(lambda: not broker.on_loop(lambda: broker.broker.context.unread.held_back))


def test_answers_are_cut_to_their_limit(memory_url: str) -> None:
    with running(memory_url, settings={"max_outbound_bytes": 1 << 16}) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(12):
            client.ask(requests.send("q", encode_record(bytes(30_000))))
        rows, cut = client.ask(store_requests.scan("q", {}, 100, False))
        assert (len(rows), cut) == (2, True)
        rows, cut = client.ask(store_requests.peek("q", pack_pointers({0: range(1, 13)})))
        assert (len(rows), cut) == (2, True)
        found = client.ask(store_requests.fire("q", 100, "me", None, 1 << 30))
        assert 1 <= sum(len(one.records) for one in found.claims) <= 3
        assert found.more
        pulled = client.consume("q", 100, WAIT_S, max_bytes=1 << 30)
        assert 1 <= sum(len(one.records) for one in pulled.claims) <= 3
        left = client.ask(store_requests.abandoned("q", 0, 1 << 50, 100, False, None))
        assert 1 <= len(left) <= 2
        for _ in range(12):
            client.send_later("q", encode_record(bytes(30_000)), 3600)
        waiting, cut = client.ask(later_requests.listed("q", None, 100))
        assert (len(waiting), cut) == (1, True)  # each row has its due time and place beside the record
        for _ in range(12):
            client.ask(store_requests.array_enqueue("a", "Q", [bytes(30_000)]))
        assert len(client.ask(store_requests.array_peek("a", "Q", 100))) == 2
        assert len(client.ask(store_requests.array_dequeue("a", "Q", 100))) == 2
        assert len(client.ask(store_requests.array_dequeue("a", "Q", 100, 40_000))) == 1
        assert client.ask(store_requests.array_size("a", "Q")) == 9
        for number in range(9):
            client.ask(store_requests.queue_put(QueueRecord(f"r{number}", extra={"x": "y" * 30_000})))
        records, more = client.ask(store_requests.queue_list(None, "r"))
        assert ([one.name for one in records], more) == (["r0", "r1"], True)
        described, more = client.ask(requests.list_queues(None, "r5"))
        assert ([one["name"] for one in described], more) == (["r6", "r7"], True)


def test_credit_over_the_limit(memory_url: str) -> None:
    with running(memory_url, settings={"max_credit": 10}) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        with pytest.raises(ConfigError, match="max_credit"):
            client.ask(requests.subscribe("q", 11, 1 << 20))
        with greeted(broker.port) as wire:
            wire.send(Command.SUBSCRIBE, 5, pack(Subscribe("q", 10)))
            assert wire.receive()[0] == Command.RESULT
            wire.send(Command.CREDIT, 6, pack([5, 11]))
            assert wire.failure().code == "config"


def test_one_that_leaves_more_than_its_part_unread_is_closed(memory_url: str) -> None:
    """Though it is far below its own limit: others are crowded by it."""
    settings = {"max_unread_bytes": 1 << 16, "write_timeout_s": 0.5, "max_pending": 1_000}
    with running(memory_url, settings=settings) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(100):
            client.ask(requests.send("q", encode_record(bytes(60_000))))
        with greeted(broker.port) as wire:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            wire.sock.setblocking(False)
            with contextlib.suppress(OSError):
                for number in range(200):
                    wire.send(Command.SCAN, 10 + number, pack(["q", {}, 100, False]))
            eventually(lambda: broker.broker.state.timeouts == 1)
        assert client.ask(store_requests.names())


# -- all at once, against a process of its own


def own_bytes(pid: int) -> int:
    """Memory that is the process's own: without the pages of the store's file, which grow with what is stored."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def idle(port: int) -> socket.socket:
    return greeted(port).sock


def half_open(port: int) -> socket.socket:
    """Begins a handshake and says no more."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    sock.sendall(b"\0\0\0\x40\0\1")
    return sock


def slow_reader(port: int) -> socket.socket:
    """Asks for more than it ever reads."""
    wire = greeted(port)
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    wire.sock.setblocking(False)
    with contextlib.suppress(OSError):
        for number in range(200):
            wire.send(Command.SCAN, 10 + number, pack(["q", {}, 100, False]))
    return wire.sock


def announcer(port: int) -> socket.socket:
    """Announces the largest frame that is allowed and brings 200,000 bytes of it."""
    wire = greeted(port)
    wire.sock.setblocking(False)
    with contextlib.suppress(OSError):
        wire.raw(((64 << 20) - 4).to_bytes(4, "big") + bytes(200_000))
    return wire.sock


def flood(port: int) -> socket.socket:
    """Frames before it says who it is: PING without end, and nothing is read."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        for _ in range(2_000):
            sock.send(encode_frame(Command.PING, 1, bytes(4_000)))
    return sock


def stream(port: int) -> socket.socket:
    """Sends messages and never reads what became of them."""
    wire = greeted(port)
    wire.sock.setblocking(False)
    with contextlib.suppress(OSError):
        for number in range(5_000):
            wire.send(Command.SEND, 10 + number, pack_send(b"q", 0, 0, encode_record(bytes(500))))
    return wire.sock


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    "attack",
    [
        half_open,
        pytest.param(announcer, marks=pytest.mark.long),
        slow_reader,
        pytest.param(flood, marks=pytest.mark.long),
        pytest.param(stream, marks=pytest.mark.long),
        pytest.param(idle, marks=pytest.mark.long),
    ],
    ids=lambda one: one.__name__,
)
def test_a_process_among_hostile_clients(tmp_path: Path, attack: Callable[[int], socket.socket]) -> None:
    limits = {
        "MAX_RECEIVE_BYTES": 4 << 20,
        "MAX_OUTBOUND_BYTES": 1 << 18,
        "MAX_UNAUTHENTICATED": 1_000,
        "MAX_INBOX_BYTES": 1 << 20,
        "MAX_UNREAD_BYTES": 8 << 20,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setenv(f"IGNIS_BROKER_{name}", str(value))
        broker = BrokerProcess(f"embedded://{tmp_path / 'store'}")
    with broker, broker.client() as good, contextlib.ExitStack() as stack:
        good.ask(requests.create_queue("q", {"shards": 1, "codec": "raw", "durability": "none"}))
        for _ in range(20):
            good.ask(requests.send("q", encode_record(bytes(30_000))))
        before = own_bytes(broker.process.pid)
        for _ in range(100):
            with contextlib.suppress(OSError, EOFError):
                stack.enter_context(contextlib.closing(attack(broker.port)))
        for number in range(20):
            good.ask(requests.send("q", encode_record(b"good")))
            assert good.ask(store_requests.names()), number
        assert own_bytes(broker.process.pid) - before < 150 << 20
        assert broker.process.poll() is None


# -- users who may not do what they ask for


class Users:
    """Lets in who has a name, with its own rules."""

    open = False

    def __init__(self, **rules: list[str]) -> None:
        self.users = {name: KnownUser(User(name, texts)) for name, texts in rules.items()}

    def authenticate(self, credentials: Credentials) -> Principal:
        return self.users[credentials.user]


def test_a_denied_request_is_answered_before_it_has_come(memory_url: str) -> None:
    """And nothing of it is kept, however many there are and whatever they are called."""
    users = Users(none=[], web=["publish:orders"])
    with running(memory_url, authenticator=users) as broker, Wire(broker.port) as none, Wire(broker.port) as web:
        none.greet(user="none")
        web.greet(user="web", instance="web")
        name = "n" * (8 << 20)
        for number in range(2, 12):
            for wire, command, payload, codes in (
                (none, Command.METADATA, pack([f"{number}{name}"]), ("bad_request",)),
                (none, Command.SEND, pack_send(b"orders", 0, 0, bytes(8 << 20)), ("permission_denied",)),
                (web, Command.SEND, pack_send(b"bills", 0, 0, bytes(8 << 20)), ("permission_denied",)),
                (web, Command.METADATA, pack([f"{number}{'n' * 200_000}"]), ("permission_denied", "invalid_name")),
            ):
                frame = encode_frame(command, number, payload)
                half = len(frame) // 2 if len(frame) > 1 << 20 else len(frame)
                wire.raw(frame[:half])
                answered, request_id, failure = wire.receive()
                assert (answered, request_id) == (Command.ERROR, number)
                assert unpack(failure, Failure)[0].code in codes
                assert held_bytes(broker) <= 2 * (256 << 10)
                wire.raw(frame[half:])
        for wire in (none, web):
            wire.send(Command.PING, 99)
            assert wire.receive()[:2] == (Command.PONG, 99)
        assert broker.on_loop(lambda: broker.broker.receiving.backlog_bytes) == 0
        remembered = [key for user in users.users.values() for key in user._permissions._remembered]
        assert all(len(queue) <= 512 for _, queue in remembered)


@pytest.mark.parametrize("field", ["client_id", "farm_id"])
def test_a_refused_connect_shows_no_value(narrow: RunningBroker, caplog: pytest.LogCaptureFixture, field: str) -> None:
    caplog.set_level("DEBUG")
    secret = "hunter2 in the wrong place"
    with Wire(narrow.port) as wire:
        fields = {"client_id": "ignis", "farm_id": "local", "instance": "wire", field: secret}
        wire.send(Command.CONNECT, 1, pack_connect(Connect(**fields)))
        failure = wire.failure()
        assert (failure.code, wire.closed()) == ("invalid_name", True)
    assert field in failure.message
    assert "hunter2" not in failure.message + caplog.text
