"""The two clients are one surface: the same names, the same arguments, the same words, and each request spelled once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.async_subscription import AsyncSubscription
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.commands import ClientCommands, SubscriptionCommands
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_subscription import SyncSubscription
from ignis.broker.protocol.commands import Command
from ignis.errors import ForkedHandleError
from ignis.native import PackedBatch, encode_record
from ignis.process_hooks import FORKS

PAIRS = [(SyncClient, AsyncClient, ClientCommands), (SyncSubscription, AsyncSubscription, SubscriptionCommands)]
RECORD = encode_record(b"x")

ASKED: list[tuple[Callable[[Any], Any], Command]] = [
    (lambda client: client.ping(), Command.PING),
    (lambda client: client.send("q", RECORD), Command.SEND),
    (lambda client: client.send_batch("q", [(0, PackedBatch.pack([RECORD]))]), Command.SEND_BATCH),
    (lambda client: client.ack("q", {0: [1]}), Command.ACK),
    (lambda client: client.nack("q", {0: [1]}, sideline=True), Command.NACK),
    (lambda client: client.renew("q", {0: [1]}), Command.RENEW_CLAIMS),
    (lambda client: client.send_later("q", RECORD, 1.5), Command.LOAD_LATER),
    (lambda client: client.list_later("q", after=(1, 0, 1)), Command.LIST_LATER),
    (lambda client: client.cancel_later("q", {0: [1]}), Command.CANCEL_LATER),
    (lambda client: client.run_now("q", {0: [1]}), Command.RUN_NOW),
]


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(getattr(kind, name)).parameters.values()]


@pytest.mark.parametrize(("for_threads", "for_coroutines", "commands"), PAIRS)
def test_both_have_the_same_names_and_arguments(for_threads: type, for_coroutines: type, commands: type) -> None:
    assert names(for_threads) == names(for_coroutines)
    for name in names(for_threads):
        if callable(getattr(for_threads, name)):
            assert parameters(for_threads, name) == parameters(for_coroutines, name), name
    assert hasattr(for_threads, "__enter__") and hasattr(for_coroutines, "__aenter__")


@pytest.mark.parametrize(("for_threads", "for_coroutines", "commands"), PAIRS)
def test_a_command_is_spelled_once(for_threads: type, for_coroutines: type, commands: type) -> None:
    for name in names(commands):
        command = inspect.getattr_static(commands, name)
        assert inspect.getattr_static(for_threads, name) is command, name
        assert inspect.getattr_static(for_coroutines, name) is command, name
        assert inspect.getdoc(command), name


@pytest.mark.parametrize(("call", "command"), ASKED, ids=[command.name for _, command in ASKED])
def test_both_ask_for_the_same(call: Callable[[Any], Any], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ClientRequest[Any]] = []

    def ask(self: Any, request: ClientRequest[Any], timeout: float | None = None) -> int:
        asked.append(request)
        return 7

    async def ask_later(self: Any, request: ClientRequest[Any], timeout: float | None = None) -> int:
        return ask(self, request)

    monkeypatch.setattr(SyncClient, "ask", ask)
    monkeypatch.setattr(AsyncClient, "ask", ask_later)
    assert call(SyncClient(BrokerAddress())) == 7

    async def main() -> int:
        found: int = await call(AsyncClient(BrokerAddress()))
        return found

    assert asyncio.run(main()) == 7
    assert [one.command for one in asked] == [command] * 2
    assert asked[0].payload == asked[1].payload


def test_a_forked_child_is_told_so_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = SyncClient(BrokerAddress()), AsyncClient(BrokerAddress())
    monkeypatch.setattr("ignis.broker.client.client_base.FORKS", [FORKS[0] + 1])
    with pytest.raises(ForkedHandleError):
        clients[0].ask(requests.ping())

    async def main() -> None:
        with pytest.raises(ForkedHandleError):
            await clients[1].ask(requests.ping())
        await clients[1].close()  # the parent's: nothing happens

    asyncio.run(main())
    assert not clients[1].closed
