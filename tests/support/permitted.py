"""Users of a broker whose rules each test chooses."""

from __future__ import annotations

from typing import Any

import ignis
from ignis.broker.auth.authenticator import KnownUser
from ignis.broker.auth.principal import Credentials
from ignis.broker.auth.users_file import User
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack_value
from tests.support.broker import RunningBroker

__all__ = ["Tokens", "app", "ask", "client", "make"]


class Tokens:
    """The token is the user's name, a colon, and the rules with blanks between."""

    open = False

    def authenticate(self, credentials: Credentials) -> KnownUser:
        name, _, rules = credentials.token.partition("|")
        return KnownUser(User(name, rules.split()))


def client(broker: RunningBroker, name: str, *rules: str) -> SyncClient:
    return broker.client(token=f"{name}|{' '.join(rules)}", timeout_s=10)


def ask(who: SyncClient, command: Command, head: Any, bulk: bytes = b"") -> Any:
    return who.ask(ClientRequest(command, pack(head, bulk), unpack_value))


def make(broker: RunningBroker, *names: str, **settings: Any) -> None:
    with client(broker, "boss", "all:*") as boss:
        for name in names:
            ask(boss, Command.CREATE_QUEUE, payloads.CreateQueue(name, {"codec": "raw", "shards": 2, **settings}))


def app(broker: RunningBroker, name: str, *rules: str) -> ignis.Ignis:
    return ignis.Ignis(broker.url, store={"token": f"{name}|{' '.join(rules)}"})
