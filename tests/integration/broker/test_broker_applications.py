"""Applications end when nobody uses them, none is made for who may do nothing, and waits share threads."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from ignis.broker.auth.principal import Anyone
from ignis.broker.client import requests, store_requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack_value
from ignis.broker.protocol.payloads import Wait
from ignis.broker.server.server import Broker
from ignis.errors import ClosedError, PermissionDeniedError, TooManyRequestsError
from ignis.native import encode_record
from ignis.storage.base import Store
from tests.integration.broker.test_broker_hostile import Users
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration


def applications(broker: RunningBroker) -> set[str]:
    return broker.on_loop(lambda: {one.app.client_id for one in broker.broker.applications})


def test_who_may_do_nothing_has_no_application(memory_url: str) -> None:
    users = Users(none=[], boss=["all:*"])
    with running(memory_url, authenticator=users, settings={"max_applications": 2}) as broker:
        for number in range(5):
            with broker.client(user="none", client_id=f"junk{number}") as client, pytest.raises(PermissionDeniedError):
                client.ask(store_requests.names())
        assert applications(broker) == {"ignis"}
        with broker.client(user="boss", client_id="orders") as client:
            assert client.ask(store_requests.names()) == []


def test_an_application_ends_when_nobody_is_left(tmp_path: Any) -> None:
    settings = {"application_linger_s": 0.05, "redeliver_after_s": 0.05}
    with running(f"embedded://{tmp_path}/store", settings=settings) as broker:
        stores: list[Store] = []
        for _ in range(2):
            with broker.client(client_id="orders") as client:
                client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
                client.ask(requests.send("q", encode_record(b"x")))
                assert client.consume("q", 2).total() == 1 + len(stores), "what the last one held is back"
                stores.append(broker.on_loop(lambda: broker.broker.applications[-1].store))
                assert applications(broker) == {"ignis", "orders"}
            eventually(lambda: applications(broker) == {"ignis"})
            eventually(lambda: is_closed(stores[-1]))


def is_closed(store: Store) -> bool:
    try:
        store.magazines.names()
    except ClosedError:
        return True
    return False


def test_places_that_nobody_uses_are_free_at_once(memory_url: str) -> None:
    settings = {"max_applications": 3, "application_linger_s": 3_600, "redeliver_after_s": 0}
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        for number in range(6):
            with broker.client(client_id=f"app{number}") as client:
                assert client.ask(store_requests.names()) == []
            eventually(lambda: not broker.on_loop(lambda: broker.broker.sessions))
        for number in range(2):
            stack.enter_context(broker.client(client_id=f"stays{number}")).ask(store_requests.names())
        with pytest.raises(TooManyRequestsError, match=r"broker\.max_applications"):
            broker.client(client_id="third", connect_timeout_s=0.2).ask(store_requests.names())


def test_one_user_takes_no_more_than_its_share_of_the_applications(memory_url: str) -> None:
    users = Users(mallory=["all:*"], ann=["all:*"], bob=["all:*"])
    settings = {"max_applications": 8, "application_linger_s": 3_600, "redeliver_after_s": 0}
    with running(memory_url, authenticator=users, settings=settings) as broker, contextlib.ExitStack() as stack:

        def enter(user: str, client_id: str) -> Wire:
            wire = stack.enter_context(Wire(broker.port))
            wire.greet(user=user, client_id=client_id)
            return wire

        first = enter("mallory", "a")
        enter("mallory", "b")
        enter("mallory", "b")
        with (
            Wire(broker.port) as third,
            pytest.raises(AssertionError, match=r"3 applications .* the limit is 2 \(a quarter"),
        ):
            third.greet(user="mallory", client_id="c")
        for number in range(2):
            enter("ann", f"ann{number}")
        enter("mallory", "ann0")  # that there is already: it costs nothing
        first.close()
        eventually(lambda: broker.on_loop(lambda: len(broker.broker.sessions)) == 5)
        enter("bob", "a")
        with Wire(broker.port) as third, pytest.raises(AssertionError, match="a quarter of"):
            third.greet(user="mallory", client_id="c")
        with Wire(broker.port) as third, pytest.raises(AssertionError, match="a quarter of"):
            third.greet(user="ann", client_id="c")


@pytest.mark.parametrize(
    ("peer", "holder"),
    [
        ("127.0.0.1:5", ""),
        ("::1:5", ""),
        ("192.0.2.7:5", "address 192.0.2.7"),
        ("2001:db8::1:5", "address 2001:db8::/64"),
    ],
)
def test_without_users_an_address_has_the_share(peer: str, holder: str) -> None:
    broker = Broker("memory://shares")
    assert broker.holder(Anyone(), peer) == holder


def test_each_limit_says_of_what_there_are_too_many() -> None:
    for setting, what in (
        ("broker.max_pending", "9 requests are waiting"), ("client.max_pending", "9 requests are waiting"),
        ("broker.max_connections", "9 connections would be open"), ("broker.max_applications", "9 applications would be"),
        ("broker.max_unauthenticated", "9 connections have not said"),
        ("failed logins; try again in 3 s", "9 failed logins, the limit is 8 (try again in 3 s)"),
        ("logins by password", "9 logins by password are"), ("connections of the endpoint", "9 connections would"),
        ("connections of one address", "9 connections of one address"),
    ):  # fmt: skip
        assert str(TooManyRequestsError(9, 8, setting)).startswith(what)


def watching_threads() -> int:
    return sum(one.name.startswith("ignis-broker-watch") for one in threading.enumerate())


@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_waits_share_threads(memory_url: str, tmp_path: Any, store: str) -> None:
    url = memory_url if store == "memory" else f"embedded://{tmp_path}/store"
    eventually(lambda: watching_threads() == 0)
    with running(url, settings={"watch_threads": 3}) as broker, Wire(broker.port) as wire, broker.client() as client:
        wire.greet()
        for number in range(40):
            client.ask(store_requests.declare(f"m{number}", 1, "none"))
        seen = {number: client.ask(store_requests.wait(f"m{number}", -1, 0)) for number in range(40)}
        for number in range(40):
            wire.send(Command.WAIT, 100 + number, pack(Wait(f"m{number}", seen[number], 30_000)))
        eventually(
            lambda: broker.on_loop(lambda: broker.broker.sessions) and broker.broker.context.watchers.threads == 4
        )
        assert watching_threads() == 4
        # Through the broker, and past it: by another user of its store.
        client.ask(requests.send("m39", encode_record(b"x"), ttl_s=None))
        assert wire.receive()[:2] == (Command.RESULT, 139)
        other = broker.on_loop(lambda: broker.broker.applications[0].store)
        for number in (38, 0):
            other.magazines.wake(f"m{number}")
            command, request_id, payload = wire.receive()
            assert (command, request_id) == (Command.RESULT, 100 + number)
            assert unpack_value(payload) != seen[number]
        assert watching_threads() == 4
    eventually(lambda: watching_threads() == 0)


def test_an_application_does_not_end_while_a_request_is_at_the_store(memory_url: str) -> None:
    """What the request claims is still to be given back."""
    settings = {"application_linger_s": 0.05, "redeliver_after_s": 0}
    with running(memory_url, settings=settings) as broker:
        with broker.client(client_id="orders") as client:
            client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
            client.ask(requests.send("q", encode_record(b"x")))
            application = broker.on_loop(lambda: broker.broker.applications[-1])
            fire, reached, go_on = application.store.magazines.fire, threading.Event(), threading.Event()

            def slow(*args: Any, **options: Any) -> Any:
                reached.set()
                assert go_on.wait(WAIT_S)
                return fire(*args, **options)

            application.store.magazines.fire = slow  # type: ignore[method-assign]
            with Wire(broker.port) as wire:
                wire.greet(client_id="orders")
                wire.send(Command.FIRE, 10, pack(["q", 1, "me", [0]]))  # of named shards: a thread's
                assert reached.wait(WAIT_S)
        eventually(lambda: not broker.on_loop(lambda: broker.broker.sessions))
        assert not broker.on_loop(lambda: application.idle)
        go_on.set()
        eventually(lambda: applications(broker) == {"ignis"})
        with broker.client(client_id="orders") as client:
            assert client.consume("q", 1).total() == 1
