"""Requests that name very many messages are carried out in pieces, so that other connections are served in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ignis.broker.client import requests, store_requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.in_flight import MOST_RUNS, InFlight, PointerRange
from ignis.native import encode_record
from ignis.native.wire import pack_pointers
from tests.support import WAIT_S
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration

SCATTERED = range(1, 2 * (5 * MOST_RUNS + 7), 2)


class _Passes:
    """Counts the passes of the broker's loop, and how many runs are looked up in each."""

    def __init__(self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[int] = []
        self.number = 0
        self._broker = broker
        self._own = broker.on_loop(threading.get_ident)
        take = InFlight.take

        def counted(held: InFlight, magazine: str, runs: Iterable[PointerRange]) -> list[PointerRange]:
            runs = list(runs)
            if magazine and threading.get_ident() == self._own:
                self.runs.append(len(runs))
            return take(held, magazine, runs)

        monkeypatch.setattr(InFlight, "take", counted)


def _send(wire: Wire, request_id: int, ask: ClientRequest[Any]) -> None:
    wire.send(ask.command, request_id, ask.payload)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda pointers: requests.ack("q", {0: pointers}),
        lambda pointers: requests.nack("q", {0: pointers}),
        lambda pointers: store_requests.delete("q", pack_pointers({0: pointers})),
        lambda pointers: store_requests.reload("q", pack_pointers({0: pointers})),
    ],
    ids=["ack", "nack", "delete", "reload"],
)
def test_a_list_of_very_many_runs_is_looked_up_in_pieces(
    store_url: str, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[range], ClientRequest[Any]]
) -> None:
    with running(store_url) as broker, Wire(broker.port) as wire:
        wire.greet()
        _send(wire, 2, requests.create_queue("q", {"shards": 1}))
        assert wire.receive()[0] == Command.RESULT
        passes = _Passes(broker, monkeypatch)
        _send(wire, 3, request_of(SCATTERED))
        assert wire.receive()[:2] == (Command.RESULT, 3)
        _send(wire, 4, requests.node_status())  # behind what is still being done for the request
        assert wire.receive()[:2] == (Command.RESULT, 4)
        assert sum(passes.runs) >= len(SCATTERED)
        assert max(passes.runs) <= MOST_RUNS
        assert broker.on_loop(lambda: broker.broker.context.steps.idle)


def test_another_connection_is_answered_while_a_long_list_is_looked_up(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(memory_url) as broker, Wire(broker.port) as wire, broker.client() as other:
        wire.greet()
        _send(wire, 2, requests.create_queue("q", {"shards": 1}))
        assert wire.receive()[0] == Command.RESULT
        begun, answered = threading.Event(), threading.Event()
        magazines = broker.broker.applications[0].store.magazines
        renew_claims, pieces = magazines.renew_claims, []

        def slow(*arguments: Any, **options: Any) -> Any:
            pieces.append(not answered.is_set())
            if len(pieces) == 2:
                begun.set()
                assert answered.wait(WAIT_S)
            return renew_claims(*arguments, **options)

        monkeypatch.setattr(magazines, "renew_claims", slow)
        _send(wire, 3, requests.ack("q", {0: SCATTERED}))
        assert begun.wait(WAIT_S)
        assert other.ask(requests.node_status())["connections"] == 2
        answered.set()
        assert wire.receive()[:2] == (Command.RESULT, 3)
        assert pieces.count(True) == 2
        assert len(pieces) == 6


def test_requests_behind_a_long_list_keep_their_order(memory_url: str) -> None:
    with running(memory_url) as broker, Wire(broker.port) as wire:
        wire.greet()
        _send(wire, 2, requests.create_queue("q", {"shards": 1}))
        assert wire.receive()[0] == Command.RESULT
        for request_id in (3, 4):
            _send(wire, request_id, requests.ack("q", {0: SCATTERED}))
        _send(wire, 5, requests.node_status())
        _send(wire, 6, requests.send("q", encode_record(b"x"), ttl_s=None))
        assert [wire.receive()[1] for _ in range(4)] == [3, 4, 5, 6]


@pytest.mark.parametrize("what", ["ack", "nack"])
def test_a_long_list_of_held_messages_is_accounted_for(store_url: str, what: str) -> None:
    count = 2 * MOST_RUNS + 200
    with running(store_url) as broker:
        with broker.client() as client:
            client.ask(requests.create_queue("q", {"shards": 1, "durability": "none", "codec": "raw"}))
            magazines = broker.broker.applications[0].store.magazines
            magazines.load_records("q", 0, [encode_record(b"%d" % number) for number in range(count)])
            pointers: list[int] = []
            while len(pointers) < count:
                found = client.consume("q", count - len(pointers), WAIT_S)
                pointers += [one for claim in found.claims for one in claim.pointers]
            some = sorted(pointers)[::2]
            assert len(some) > MOST_RUNS
            assert client.ask(requests.ack("q", {0: some}) if what == "ack" else requests.nack("q", {0: some})) == len(
                some
            )
            # Of what was accounted for nothing is held any more, and of the rest all.
            assert client.ask(requests.ack("q", {0: some})) == 0
            (session,) = broker.broker.sessions
            assert broker.on_loop(lambda: session.held.count) == count - len(some)
            # Before the connection ends: what it still holds is given back then, and a scan may see that in both places.
            left = magazines.scan("q", limit=count + 1)
        assert len(left) == (count - len(some) if what == "ack" else count)


def test_what_was_taken_up_of_a_long_list_is_held_again_when_the_store_refuses(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * MOST_RUNS + 200
    with running(memory_url) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "durability": "none", "codec": "raw"}))
        magazines = broker.broker.applications[0].store.magazines
        magazines.load_records("q", 0, [encode_record(b"%d" % number) for number in range(count)])
        pointers: list[int] = []
        while len(pointers) < count:
            found = client.consume("q", count - len(pointers), WAIT_S)
            pointers += [one for claim in found.claims for one in claim.pointers]
        some = sorted(pointers)[::2]

        def refuse(*_: Any) -> int:
            raise ValueError("refused")

        with monkeypatch.context() as patched:
            patched.setattr(magazines, "delete", refuse)
            with pytest.raises(Exception, match="refused"):
                client.ask(requests.ack("q", {0: some}))
        (session,) = broker.broker.sessions
        assert broker.on_loop(lambda: session.held.count) == count
        assert client.ask(requests.ack("q", {0: some})) == len(some)
