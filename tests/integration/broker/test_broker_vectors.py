"""The vectors of ``docs/protocol.md`` against a broker: malformed frames are refused as written, every request is answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ignis.broker.client import requests
from ignis.broker.protocol.commands import Command
from tests.support.broker import RunningBroker, Wire
from tests.vectors import by_hand

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker("memory://broker-vectors", settings={"max_frame_bytes": 1 << 20}) as one:
        with one.client() as client:
            client.ask(requests.create_queue("orders", {"shards": 8, "codec": "raw"}))
        yield one


def greeted(port: int) -> Wire:
    wire = Wire(port)
    wire.greet()
    return wire


@pytest.mark.parametrize("name", by_hand.MALFORMED)
def test_what_is_malformed_is_refused_as_the_page_says(broker: RunningBroker, name: str) -> None:
    one = by_hand.MALFORMED[name]
    with Wire(broker.port) if not one.ready else greeted(broker.port) as wire:
        wire.raw(one.frame)
        command, request_id, payload = wire.receive()
        assert command == Command.ERROR
        failure = requests.unpack_value(payload)
        assert (failure[0], failure[3]) == (one.code, one.fatal)
        if one.fatal:
            assert request_id == 0
            assert wire.closed()
        else:
            assert request_id == 9
            wire.raw(by_hand.frame(3, 10, b"still there"))
            assert wire.receive() == (Command.PONG, 10, b"still there")


def test_every_request_is_answered_once(broker: RunningBroker) -> None:
    """In the order of the commands' numbers, which destroys nothing before it is used; what the store says to it is open."""
    left_out = {"CONNECT", "DISCONNECT"}
    tables = (by_hand.REQUESTS, by_hand.FEWEST, by_hand.OTHER_FORMS, by_hand.LATER_FIELDS)
    asked = [(one, body) for table in tables for one, body in table.items() if one[0] not in left_out]
    subscribed = 0
    with greeted(broker.port) as wire:
        for number, ((name, command), body) in enumerate(asked, 100):
            wire.raw(by_hand.frame(command, number, body))
            answered, request_id, payload = wire.receive()
            while request_id == subscribed:  # a delivery, or its end when the queue is deleted
                answered, request_id, payload = wire.receive()
            assert request_id == number, name
            if answered == Command.ERROR:
                assert requests.unpack_value(payload)[0] not in ("malformed_frame", "broker", "protocol"), (
                    name,
                    payload,
                )
                continue
            assert answered == by_hand.ANSWERS[name][0][1], name
            if name == "SUBSCRIBE":
                subscribed = number
        wire.raw(by_hand.frame(2, 99_999, by_hand.REQUESTS["DISCONNECT", 2]))
        while wire.receive()[1] != 99_999:
            continue
        assert wire.closed()
