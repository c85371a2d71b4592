"""The two state machines. The frames themselves: ``test_broker_vectors.py``."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.broker.client import requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.machine import BrokerMachine, ClientMachine, State, ids_of
from ignis.broker.protocol.payloads import Connect, Connected, Failure
from ignis.errors import (
    BadRequestError,
    ConnectionLostError,
    FrameTooLargeError,
    MalformedFrameError,
    ProtocolError,
    TooManyRequestsError,
)
from ignis.native import decode_frames, encode_frame, encode_record
from ignis.native.wire import ReadArea

ROOT = Path(__file__).resolve().parents[2]
AREA = ReadArea()
HELLO = Connect("shop", "local", "instance-1", "secret", "", "", "test/1")


def pair(max_pending: int = 8) -> tuple[ClientMachine, BrokerMachine]:
    """Both sides, connected."""
    client, broker = ClientMachine(AREA, 1 << 20, 100), BrokerMachine(AREA, 1 << 20, max_pending)
    requests, at_once = broker.feed(client.connect(HELLO, "hello"))
    assert at_once == b""
    assert requests[0].payload == HELLO
    (answer,) = client.feed(broker.welcome(requests[0].request_id, Connected("b", 1 << 20, max_pending, 60_000)))
    assert (answer.token, answer.error, answer.last) == ("hello", None, True)
    assert (client.state, broker.state) == (State.READY, State.READY)
    return client, broker


def sample_record(body: bytes, key: bytes = b"") -> bytes:
    return encode_record(body, key=key, id=bytes(range(16)), enqueued_at_us=1_700_000_000_000_000)


def test_the_page_lists_every_command_with_its_number() -> None:
    page = (ROOT / "docs/protocol.md").read_text("utf-8")
    listed = {name: int(number) for name, number in re.findall(r"([A-Z_]+) \((\d+)\)", page)}
    assert listed == {one.name: int(one) for one in Command}


# -- request ids


def test_answers_in_any_order() -> None:
    client, broker = pair()
    sent = {token: client.request(Command.NAMES, pack(None), token) for token in "abc"}
    requests, _ = broker.feed(b"".join(frame for _, frame in sent.values()))
    assert [one.request_id for one in requests] == [request_id for request_id, _ in sent.values()]
    frames = b"".join(broker.result(one.request_id, one.request_id) for one in reversed(requests))
    found = {answer.token: unpack(answer.payload, int)[0] for answer in client.feed(frames)}
    assert found == {token: request_id for token, (request_id, _) in sent.items()}
    assert (client.pending, broker.pending) == (0, 0)


@given(st.lists(st.sampled_from(["ask", "cancel", "answer"]), max_size=60), st.randoms(use_true_random=False))
def test_no_answer_ever_reaches_another_caller(steps: list[str], rng: Any) -> None:
    client, broker = pair(1_000)
    open_: dict[int, str] = {}
    cancelled: set[int] = set()
    used: set[int] = set()
    late = 0
    for number, step in enumerate(steps):
        if step == "ask":
            request_id, frame = client.request(Command.NAMES, pack(None), f"t{number}")
            assert request_id not in used, "an id is never used again"
            used.add(request_id)
            broker.feed(frame)
            open_[request_id] = f"t{number}"
        elif step == "cancel" and open_:
            request_id = rng.choice(list(open_))
            client.cancel(request_id)
            cancelled.add(request_id)
        elif step == "answer" and open_:
            request_id = rng.choice(list(open_))
            answers = client.feed(broker.result(request_id, request_id))
            token = open_.pop(request_id)
            if request_id in cancelled:
                assert answers == []
                late += 1
            else:
                assert [(one.token, unpack(one.payload, int)[0]) for one in answers] == [(token, request_id)]
        assert client.pending == len(open_)
    assert client.late_answers == late


def test_the_client_keeps_to_the_lower_limit() -> None:
    client, _ = pair(max_pending=2)
    first, _ = client.request(Command.NAMES, b"", 1)
    client.request(Command.NAMES, b"", 2)
    client.cancel(first)
    with pytest.raises(TooManyRequestsError) as found:
        client.request(Command.NAMES, b"", 3)
    assert (found.value.pending, found.value.limit) == (2, 2)


def test_the_broker_refuses_what_is_over_the_limit() -> None:
    client, broker = pair(max_pending=2)
    client.max_pending = 100
    frames = b"".join(client.request(Command.NAMES, pack(None), n)[1] for n in range(4))
    asked, at_once = broker.feed(frames)
    assert len(asked) == 2
    refused = client.feed(at_once)
    assert [(one.token, type(one.error)) for one in refused] == [(2, TooManyRequestsError), (3, TooManyRequestsError)]
    assert (broker.pending, broker.refused) == (2, 2)
    sends = b"".join(
        client.request(Command.SEND, requests.send("q", sample_record(b"x")).payload, n)[1] for n in range(3)
    )
    asked, at_once = broker.feed(sends)
    assert asked == []
    assert [one.token for one in client.feed(at_once)] == [0, 1, 2]


def test_runs_of_sends_count_one_by_one() -> None:
    client, broker = pair(max_pending=10)
    sent = [
        client.request(Command.SEND, requests.send("q", sample_record(b"x"), shard=n % 2).payload, n) for n in range(5)
    ]
    (request,), _ = broker.feed(b"".join(frame for _, frame in sent))
    assert broker.pending == 5
    assert sorted(ids_of(*request)) == [request_id for request_id, _ in sent]


# -- the end


def test_a_lost_connection_tells_each_request_what_is_known() -> None:
    client, _ = pair()
    first, _ = client.request(Command.SEND, b"", "sent")
    client.sent(first)
    client.request(Command.SEND, b"", "unsent")
    given_up, _ = client.request(Command.SEND, b"", "given up")
    client.cancel(given_up)
    failed = {one.token: one.error for one in client.lost("cable cut")}
    assert set(failed) == {"sent", "unsent"}
    for token, error in failed.items():
        assert isinstance(error, ConnectionLostError)
        assert error.sent == (token == "sent")
    with pytest.raises(ConnectionLostError) as found:
        client.request(Command.SEND, b"", "late")
    assert not found.value.sent
    assert client.lost("again") == []


def test_a_fatal_error_is_kept_behind_what_was_answered_before() -> None:
    client, broker = pair()
    request_id, frame = client.request(Command.NAMES, pack(None), "a")
    broker.feed(frame)
    answers = client.feed(broker.result(request_id, []) + broker.fatal(ProtocolError("enough")))
    assert [one.token for one in answers] == ["a"]
    assert isinstance(client.failure, ProtocolError)


def test_a_subscription_has_many_answers_and_one_end() -> None:
    client, broker = pair()
    request_id, frame = client.request(Command.SUBSCRIBE, requests.subscribe("q", 1, 1).payload, "s", streams=True)
    broker.feed(frame)
    first, second = client.feed(
        broker.result(request_id, request_id) + broker.answer(Command.DELIVER, request_id, b"x", count=0)
    )
    assert (first.last, second.last, second.token) == (False, False, "s")
    (end,) = client.feed(broker.error_frame(request_id, BadRequestError("gone")))
    assert end.last
    assert isinstance(end.error, BadRequestError)
    assert client.feed(broker.answer(Command.DELIVER, request_id, b"x", count=0)) == []
    assert client.unknown_answers == 1


def test_a_notice_of_the_end() -> None:
    client, broker = pair()
    assert client.feed(broker.answer(Command.DISCONNECT, 0, pack(None), count=0)) == []
    assert client.draining


@pytest.mark.parametrize("command", [Command.CONNECT, *sorted({Command.RESULT, Command.PONG, Command.SEND_ACK})])
def test_what_a_client_must_not_send(command: int) -> None:
    _, broker = pair()
    with pytest.raises(ProtocolError):
        broker.feed(encode_frame(command, 9, b""))


def test_what_a_broker_must_not_send() -> None:
    client, _ = pair()
    request_id, _ = client.request(Command.NAMES, pack(None), "a")
    with pytest.raises(ProtocolError):
        client.feed(encode_frame(Command.SEND, request_id, b""))
    with pytest.raises(ProtocolError):
        client.feed(encode_frame(Command.SEND, 99, b""))


def test_unknown_commands_are_refused_one_by_one() -> None:
    _, broker = pair()
    requests, at_once = broker.feed(encode_frame(12_345, 9, b"") + encode_frame(Command.PING, 10, b""))
    assert requests == []
    frames, _ = decode_frames(at_once)
    assert [(command, request_id) for command, request_id, _ in frames] == [(Command.ERROR, 9), (Command.PONG, 10)]
    assert unpack(frames[0][2], Failure)[0].code == "bad_request"


@pytest.mark.parametrize("request_id", [1, 0, -1, -(1 << 63), (1 << 63) - 1])
def test_the_broker_answers_with_the_id_that_it_was_given(request_id: int) -> None:
    """Also with one that the client must not take, and twice."""
    _, broker = pair()
    for _ in range(2):
        _, at_once = broker.feed(encode_frame(Command.PING, request_id, b"a") + encode_frame(12_345, request_id, b""))
        frames, _ = decode_frames(at_once)
        assert [(command, one) for command, one, _ in frames] == [
            (Command.PONG, request_id),
            (Command.ERROR, request_id),
        ]


@given(st.binary(max_size=200))
def test_any_bytes_before_the_handshake(data: bytes) -> None:
    broker = BrokerMachine(AREA, 1 << 20, 8)
    try:
        requests, _ = broker.feed(data)
    except (ProtocolError, MalformedFrameError):
        return
    assert requests == []


@given(st.lists(st.tuples(st.sampled_from([*map(int, Command), 0, -1, 500]), st.binary(max_size=80)), max_size=8))
def test_any_frames_after_the_handshake(frames: list[tuple[int, bytes]]) -> None:
    client, broker = pair(1_000)
    with contextlib.suppress(ProtocolError):
        broker.feed(b"".join(encode_frame(command, n, payload) for n, (command, payload) in enumerate(frames, 2)))
    client.request(Command.NAMES, b"", "x")
    with contextlib.suppress(ProtocolError, BadRequestError):
        client.feed(b"".join(encode_frame(command, n, payload) for n, (command, payload) in enumerate(frames, 2)))


def test_the_limit_before_the_handshake_is_the_smaller_one() -> None:
    broker = BrokerMachine(AREA, 1 << 20, 8)
    with pytest.raises(FrameTooLargeError) as found:
        broker.feed(encode_frame(Command.PING, 1, bytes(9_000)))
    assert found.value.limit_bytes == 8_192
    _, connected = pair()
    assert connected.feed(encode_frame(Command.PING, 1, bytes(9_000)))[1]
