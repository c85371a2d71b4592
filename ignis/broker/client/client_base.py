"""What both clients remember: the address, the settings, the present connection, and whether they are closed. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.commands import ClientCommands
from ignis.broker.client.pending_acks import PendingAcks
from ignis.broker.protocol.machine import ClientMachine
from ignis.config import ClientSettings, check_timeout, resolve
from ignis.errors import ClosedError, ForkedHandleError
from ignis.process_hooks import FORKS

__all__ = ["ClientBase", "chosen_timeout_s"]


class _Connection(Protocol):
    @property
    def machine(self) -> ClientMachine: ...
    @property
    def pending_acks(self) -> PendingAcks: ...
    def lose(self, why: str) -> None: ...


S = TypeVar("S")
C = TypeVar("C", bound=_Connection)


def chosen_timeout_s(settings: ClientSettings, timeout: float | None) -> float:
    """Returns the timeout of a call, or ``client.timeout_s`` for None. Raises ConfigError."""
    return settings.timeout_s if timeout is None else check_timeout(timeout)


class ClientBase(ClientCommands[S], Generic[S, C]):
    """What both clients remember.

    Args:
        address: where the broker is, and who wants in.
        settings: of ``[client]`` in ``docs/settings.md``.

    Attributes:
        instance: who this client is over all its connections.
        connects: connections so far: the number of the present one.
    """

    def __init__(self, address: BrokerAddress, settings: ClientSettings | Mapping[str, Any] | None = None) -> None:
        self.address = address
        self.settings = settings if isinstance(settings, ClientSettings) else resolve(ClientSettings, settings or {})
        self.instance = secrets.token_hex(16)
        self.connects = 0
        self._late_answers = 0
        self.connection: C | None = None
        """The present connection. Only the client itself sets it."""
        self._closed = False
        self._forks = FORKS[0]

    @property
    def pending(self) -> int:
        """Requests under way on the present connection, with those that were given up."""
        connection = self.connection
        return 0 if connection is None else connection.machine.pending

    @property
    def late_answers(self) -> int:
        """Answers that came after their caller had given up."""
        connection = self.connection
        return self._late_answers + (0 if connection is None else connection.machine.late_answers)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return self._forks != FORKS[0]

    def check(self) -> None:
        """Raises ForkedHandleError, ClosedError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this client was made before fork(); make another in the child")
        if self._closed:
            raise ClosedError("the client is closed")

    def _replace_connection(self, fresh: C) -> None:
        """The new connection takes over what the old one has not told yet."""
        old = self.connection
        if old is not None:
            self._leave(old, "another connection took its place")
            fresh.pending_acks.inherit(old.pending_acks)
        self.connection = fresh
        self.connects += 1

    def _leave(self, connection: C, why: str) -> None:
        self._late_answers += connection.machine.late_answers
        connection.lose(why)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address.host}:{self.address.port}>"
