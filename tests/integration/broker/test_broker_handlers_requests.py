"""What a handler behind ``ignis://`` asks for each message (WAIT, FIRE, DELETE) is done by the broker's event loop where it can
be. The answers are those that a thread would give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.payloads import pack_send
from ignis.broker.server.load_notifier import Watch
from ignis.broker.server.request_queue import RequestQueue
from ignis.native import encode_record
from ignis.native.wire import pack_pointers
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire
from tests.support.embedded import held_by_another, resting, settle

pytestmark = pytest.mark.integration


def record(number: int) -> bytes:
    return encode_record(b"body %d" % number, id=bytes([number]) * 16, enqueued_at_us=1)


def pointers(*many: int) -> bytes:
    return pack_pointers({0: list(many)})


def asked(queue: str) -> list[tuple[int, bytes]]:
    """Commands and payloads, one behind the other's answer."""
    fire, delete, wait = Command.FIRE, Command.DELETE, Command.WAIT
    return [
        (fire, pack((queue, 2, ""))),
        (fire, pack((queue, 2, "", None, 40))),
        (fire, pack((queue, 2, "job-7"))),
        (delete, pack((queue,), pointers(1))),
        (delete, pack((queue,), pointers(1))),
        (delete, pack((queue,), pointers(2, 3, 900))),
        (fire, pack((queue, 1_000_000, ""))),
        (fire, pack((queue, 5, ""))),
        (delete, pack((queue,), pointers(*range(1, 200, 2)))),
        (delete, pack((queue,), pack_pointers({0: range(1, 6_000)}))),
        (delete, pack((queue,), pack_pointers({9: [1]}))),
        (delete, pack((queue,), pointers())),
        (fire, pack(("unknown", 2, ""))),
        (fire, pack(("not a name", 2, ""))),
        (fire, pack((queue, 0, ""))),
        (fire, pack((queue, 2, "broker/other"))),
        (fire, pack((queue, 2, "", [0]))),
        (fire, b"\xff"),
        (delete, pack(("unknown",), pointers(1))),
        (delete, pack(("not a name",), pointers(1))),
        (delete, pack((queue,), pointers(1))[:-1]),
        (delete, b""),
        (wait, pack((queue, -1, 0))),
        (wait, pack((queue, 0, 1))),
        (wait, pack(("unknown", -1, 0))),
        (wait, pack((queue, -2, 0))),
    ]


def said(path: Path, durability: str, uvloop: bool, monkeypatch: pytest.MonkeyPatch, by_loop: bool) -> tuple[Any, ...]:
    """The answers, what is left, and how many requests a thread carried out."""
    by_thread: list[int] = []
    real_call, real_at_once = RequestQueue._call, RequestQueue._at_once

    def call(self: RequestQueue, given: Any) -> Any:
        by_thread.append(given[0].command)
        return real_call(self, given)

    with monkeypatch.context() as patched:
        patched.setattr(RequestQueue, "_call", call)
        patched.setattr(RequestQueue, "_at_once", lambda self, request: by_loop and real_at_once(self, request))
        with RunningBroker(f"embedded://{path}", uvloop=uvloop) as broker, Wire(broker.port) as wire:
            made = requests.create_queue(durability, {"shards": 1, "durability": durability, "codec": "raw"})
            wire.greet()
            wire.send(made.command, 2, made.payload)
            assert wire.receive()[0] == Command.RESULT
            answers = []
            for number in range(12):
                wire.send(Command.SEND, 10 + number, pack_send(durability.encode(), 0, 0, record(number)))
                answers.append(wire.receive())
            for number, (command, payload) in enumerate(asked(durability), 100):
                wire.send(command, number, payload)
                answer, request_id, told = wire.receive()
                answers.append((answer, request_id, told.replace(str(path).encode(), b"")))
            session = next(iter(broker.broker.sessions))
            left = broker.on_loop(lambda: (session.held.runs(durability), session.pending, session.claims.fired.count))
            left += (broker.broker.state.errors,)
            store: Any = broker.broker.applications[0].store
            return answers, left, store.magazines.scan(durability, limit=100), by_thread


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("durability", ["none", "sync"])
def test_the_answers_are_those_of_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, uvloop: bool
) -> None:
    *ours, few = said(tmp_path / "a", durability, uvloop, monkeypatch, True)
    *theirs, many = said(tmp_path / "b", durability, uvloop, monkeypatch, False)
    assert ours == theirs
    assert many.count(Command.FIRE) - few.count(Command.FIRE) >= 5
    assert many.count(Command.DELETE) - few.count(Command.DELETE) >= 5


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path / 'store'}", uvloop=request.param == "uvloop") as running:
        yield running


@pytest.mark.parametrize("durability", ["none", "sync"])
def test_a_message_needs_no_thread_on_its_way_to_a_handler_and_back(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The load wakes who waits, and the claim and the delete are the loop's."""
    by_thread: list[str] = []
    with broker.client(timeout_s=WAIT_S) as client, Wire(broker.port) as publisher, Wire(broker.port) as handler:
        client.ask(requests.create_queue(durability, {"shards": 1, "durability": durability, "codec": "raw"}))
        publisher.greet(instance="publisher")
        handler.greet(instance="handler")
        for number in (2, 3):  # what is to be known of the queue is known behind these
            publisher.send(Command.SEND, number, pack_send(durability.encode(), 0, 0, record(number)))
            assert publisher.receive()[0] == Command.SEND_ACK
        handler.send(Command.FIRE, 2, pack((durability, 2, "")))
        assert handler.receive()[0] == Command.RESULT
        application = broker.broker.applications[0]
        store: Any = application.store
        settle(store)
        threads = broker.broker.context.threads
        real = type(threads).call

        def call(self: Any, work: Any, *arguments: Any, **how: Any) -> None:
            if work.__qualname__.split(".")[0] in ("RequestQueue", "ConsumerCommands", "WriteBatcher", "PublishBuffer"):
                by_thread.append(work.__qualname__)
            real(self, work, *arguments, **how)

        monkeypatch.setattr(type(threads), "call", call)
        # Whoever looks from a thread of its own is too late here: only the loop says that something has come.
        monkeypatch.setattr(Watch, "once", lambda self, timeout_s: self.wanted)
        with resting(store):
            for number in range(6):
                handler.send(Command.WAIT, 100 + number, pack((durability, 2 + number, int(WAIT_S * 1_000))))
                handler.send(Command.PING, 200 + number)
                assert handler.receive()[:2] == (Command.PONG, 200 + number), "it waits"
                publisher.send(Command.SEND, 10 + number, pack_send(durability.encode(), 0, 0, record(number)))
                assert handler.receive() == (Command.RESULT, 100 + number, pack(3 + number))
                assert publisher.receive()[:2] == (Command.SEND_ACK, 10 + number)
                handler.send(Command.FIRE, 300 + number, pack((durability, 10, "")))
                command, request_id, payload = handler.receive()
                assert (command, request_id) == (Command.RESULT, 300 + number)
                assert b"body %d" % number in payload
                handler.send(Command.DELETE, 400 + number, pack((durability,), pointers(3 + number)))
                assert handler.receive() == (Command.RESULT, 400 + number, pack(1))
        assert by_thread == []
        monkeypatch.undo()
        info = client.ask(requests.queue_info(durability))
        assert (info["pending"], info["in_flight"]) == (0, 2)


def test_what_a_store_cannot_do_at_once_is_done_by_a_thread(broker: RunningBroker, tmp_path: Path) -> None:
    with broker.client(timeout_s=WAIT_S) as client, Wire(broker.port) as wire:
        client.ask(requests.create_queue("none", {"shards": 1, "durability": "none", "codec": "raw"}))
        wire.greet()
        for number in (2, 3):
            wire.send(Command.SEND, number, pack_send(b"none", 0, 0, record(number)))
            assert wire.receive()[0] == Command.SEND_ACK
        wire.send(Command.FIRE, 4, pack(("none", 1, "")))
        assert wire.receive()[0] == Command.RESULT
        with held_by_another(tmp_path / "store", "none") as held:
            wire.send(Command.FIRE, 5, pack(("none", 1, "")))
            wire.send(Command.DELETE, 6, pack(("none",), pointers(1)))
            wire.send(Command.PING, 7)
            assert wire.receive()[:2] == (Command.PONG, 7), "the loop waits for nobody"
            assert held()
        assert {wire.receive()[:2] for _ in range(2)} == {(Command.RESULT, 5), (Command.RESULT, 6)}
        eventually(lambda: client.ask(requests.queue_info("none"))["in_flight"] == 1)
