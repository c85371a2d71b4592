"""What the users of the users file may do in the console. No rule of its own: each role is some of the broker's commands."""

from __future__ import annotations

from ignis.broker.auth.principal import Principal

__all__ = [
    "ADMIN",
    "CONSUME",
    "LOGIN",
    "NOBODY",
    "NONE",
    "OPERATE",
    "PUBLISH",
    "READ",
    "ROLES",
    "Reader",
    "may",
    "roles_of",
]

NONE = ""
"""What needs nothing: the pages, the description of the API, and logging in."""
LOGIN = "login"
"""Anybody who has said who they are."""
READ = "read"
OPERATE = "operate"
ADMIN = "admin"
PUBLISH = "publish"
CONSUME = "consume"

_COMMANDS: dict[str, tuple[str, ...]] = {
    READ: ("PEEK",),
    OPERATE: ("PEEK", "TRANSFER"),
    ADMIN: ("PEEK", "TRANSFER", "CREATE_QUEUE"),
    PUBLISH: ("SEND",),
    CONSUME: ("CONSUME", "ACK"),
}
"""What a role takes, as the users file allows it. With its words: ``look`` is read, ``work`` is operate, ``work,manage`` is
admin; ``publish`` and ``consume`` are those of programs."""

ROLES = (READ, OPERATE, ADMIN)
"""Of people, each with all of those before it."""


def may(principal: Principal, needs: str, queue: str | None) -> bool:
    """Whether a role is the principal's: for a queue, or (None) for any queue at all."""
    if needs in (NONE, LOGIN):
        return True
    commands = _COMMANDS[needs]
    if queue is None:
        return all(principal.allows_some(command) for command in commands)
    return all(principal.allows(command, queue) for command in commands)


def roles_of(principal: Principal, queue: str | None) -> list[str]:
    """All roles for a queue, or for any queue at all."""
    return [role for role in _COMMANDS if may(principal, role, queue)]


class Reader:
    """Everybody, where there is no users file: with one role, on all queues.

    Args:
        role: ``read``, ``operate`` or ``admin``; the last two take in publishing and consuming.
    """

    name = "anyone"

    def __init__(self, role: str = READ) -> None:
        self._commands = {*_COMMANDS[role], *(() if role == READ else ("SEND", "CONSUME", "ACK"))}

    def allows(self, command: str, queue: str) -> bool:
        return command in self._commands

    def allows_some(self, command: str) -> bool:
        return command in self._commands


class _Nobody:
    name = ""

    def allows(self, command: str, queue: str) -> bool:
        return False

    def allows_some(self, command: str) -> bool:
        return False


NOBODY: Principal = _Nobody()
"""Who has not said who they are."""
