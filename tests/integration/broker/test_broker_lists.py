"""Lists of a broker with many queues: in pages or refused, two at a time for each connection, and none for one that is gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ignis.broker.client import requests, store_requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.errors import BadRequestError
from ignis.storage import open_store
from ignis.storage.base import QueueRecord, Store
from tests.integration.broker.test_broker_hostile import Users
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration

NAMES = [f"q{number:02}" for number in range(40)]


def behind(broker: RunningBroker) -> Store:
    """The store behind the broker; a client must have said who it is."""
    return broker.broker.applications[0].store


def fill(broker: RunningBroker) -> None:
    """Forty queues of 10 kB each, every fourth of them not active."""
    for number, name in enumerate(NAMES):
        behind(broker).queues.put(QueueRecord(name, active=number % 4 > 0, extra={"x": "y" * 10_000}))


def test_a_client_lists_all_queues_page_by_page(memory_url: str) -> None:
    with running(memory_url, settings={"max_outbound_bytes": 1 << 16}) as broker, open_store(broker.url) as store:
        assert store.queues.list() == []
        fill(broker)
        assert store.queues.list() == behind(broker).queues.list()
        assert [one.name for one in store.queues.list(active=False)] == NAMES[::4]
        with broker.client() as client:
            records, more = client.ask(store_requests.queue_list(None, "q35"))
            assert ([one.name for one in records], more) == (NAMES[36:], False)
            assert client.ask(store_requests.queue_list(None, "q39")) == ([], False)
            described, more = client.ask(requests.list_queues(True, "q35"))
            assert ([one["name"] for one in described], more) == (["q37", "q38", "q39"], False)
            assert [one["name"] for one in client.ask(requests.list_queues(None))] == NAMES


def test_who_may_see_few_is_given_these_in_one_page(memory_url: str) -> None:
    users = Users(boss=["all:*"], some=["look:q07", "look:q39"])
    settings = {"max_outbound_bytes": 1 << 16}
    with (
        running(memory_url, settings=settings, authenticator=users) as broker,
        broker.client(user="boss") as boss,
        broker.client(user="some") as some,
    ):
        boss.ping()
        fill(broker)
        records, more = some.ask(store_requests.queue_list(None, ""))
        assert ([one.name for one in records], more) == (["q07", "q39"], False)


def test_a_list_that_no_frame_has_room_for_is_refused(memory_url: str) -> None:
    """The connection goes on, and the error says how to ask."""
    with running(memory_url, settings={"max_frame_bytes": 1 << 16}) as broker, broker.client() as client:
        client.ping()
        fill(broker)
        with Wire(broker.port) as wire:
            wire.greet()
            for number, command in enumerate((Command.QUEUE_LIST, Command.LIST_QUEUES), 2):
                wire.send(command, number, pack([None]))
                assert (failure := wire.failure()).code == "bad_request"
                assert "broker.max_frame_bytes = 65536; ask for it page by page, with `after`" in failure.message
        magazines = behind(broker).magazines
        for number in range(1_000):
            magazines.declare("n" * 100 + str(number), 1)
        with pytest.raises(BadRequestError, match="answer to NAMES is over"):
            client.ask(store_requests.names())
        assert client.ping() >= 0


@contextlib.contextmanager
def slow_pages(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """Pages of queues wait for the event; the list has one entry for each that was begun."""
    begun: list[str] = []
    go_on = threading.Event()
    queues = behind(broker).queues
    page = queues.page

    def slow(after: str, **options: Any) -> Any:
        begun.append(after)
        assert go_on.wait(WAIT_S)
        return page(after, **options)

    monkeypatch.setattr(queues, "page", slow)
    try:
        yield begun, go_on
    finally:
        go_on.set()


@pytest.mark.parametrize("command", [Command.QUEUE_LIST, Command.LIST_QUEUES])
def test_lists_for_one_that_is_gone_are_not_made(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Others are served meanwhile: lists have threads of their own."""
    settings = {"store_threads": 1}
    with running(memory_url, settings=settings) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        with slow_pages(broker, monkeypatch) as (begun, go_on):
            wires = [Wire(broker.port) for _ in range(4)]
            for wire in wires:
                wire.greet()
                for number in range(2, 22):
                    wire.send(command, number, pack([None]))
            eventually(lambda: len(begun) == 2)
            assert client.ask(store_requests.queue_get("q"))
            sessions = len(broker.broker.sessions)
            for wire in wires:
                wire.close()
            eventually(lambda: len(broker.broker.sessions) == sessions - 4)
            application = broker.broker.applications[0]
            assert broker.on_loop(lambda: application.calls) <= 4 * 2, "two at a time for each connection"
            go_on.set()
            eventually(lambda: broker.on_loop(lambda: application.calls) == 0)
            assert len(begun) == 2


def test_the_cluster_is_not_asked_for_one_that_is_gone(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(memory_url) as broker, broker.client() as client, Wire(broker.port) as busy:
        client.ping()
        asked: list[int] = []
        members = broker.broker.members

        def counted() -> list[dict[str, Any]]:
            asked.append(1)
            return members()

        monkeypatch.setattr(broker.broker, "members", counted)
        with slow_pages(broker, monkeypatch) as (begun, go_on):
            busy.greet()
            for number in (2, 3):
                busy.send(Command.QUEUE_LIST, number, pack([None]))
            eventually(lambda: len(begun) == 2)
            with Wire(broker.port) as gone:
                gone.greet()
                for number in range(2, 22):
                    gone.send(Command.CLUSTER_STATUS, number, pack(None))
                gone.send(Command.PING, 22)
                assert gone.receive()[0] == Command.PONG
            eventually(lambda: len(broker.broker.sessions) == 2)
            go_on.set()
            assert len(client.ask(requests.cluster_status())) == 1
            assert len(asked) == 1


@pytest.mark.parametrize("command", [Command.METADATA, Command.QUEUE_LIST, Command.NAMES])
def test_who_is_held_back_is_given_no_list(memory_url: str, command: Command) -> None:
    """Of a user who leaves more than an equal part of too much unread; it is given when that is over."""
    with running(memory_url) as broker, broker.client() as client, Wire(broker.port) as wire:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        wire.greet()
        session = next(one for one in broker.broker.sessions if one.peer.endswith(f":{wire.sock.getsockname()[1]}"))
        unread = broker.broker.context.unread
        unread.held_back = frozenset({session.shares_with})
        wire.send(command, 2, pack([None] if command == Command.QUEUE_LIST else ["q"]))
        wire.send(Command.PING, 3)
        assert wire.receive()[:2] == (Command.PONG, 3)
        application = broker.broker.applications[0]
        assert broker.on_loop(lambda: application.calls) == 0
        unread.held_back = frozenset()
        assert wire.receive()[:2] == (Command.RESULT, 2)
