"""Decides what a user may do, by rules of commands and queue names: ``publish:orders``, ``consume,look:logs.*``, ``all:*``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.permission_words import GROUPS, WHOLE
from ignis.broker.protocol.table import TABLE, About
from ignis.errors import ConfigError

__all__ = ["FREE", "Permissions", "Rule"]

FREE = frozenset(Command(number).name for number, row in TABLE.items() if row.about is About.CONNECTION) | {"PONG"}
"""Commands that are about the connection and need no permission."""

_COMMAND = re.compile(r"[A-Z][A-Z_]{1,31}\Z")
_QUEUE = re.compile(r"(?:[A-Za-z0-9._-]{1,128}\*?|\*)\Z")
_MAX_REMEMBERED = 4_096
_MOST_NAME = 200
"""The longest name of anything that a rule is about: of a lock. What is longer is not remembered."""


class Rule:
    """Allows some commands on some queues. ``text`` is how it was written.

    Args:
        text: ``commands:queues``. Commands: the words of `GROUPS`, names of commands (``SEND``), or ``all``, with commas.
            Queues: names, or beginnings of names with ``*`` behind, with commas; ``*`` is every queue, and also what
            belongs to no queue (locks, metrics, the list of queues).

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        words, colon, queues = text.replace(" ", "").partition(":")
        if not colon or not words or not queues:
            raise ConfigError(f"permission {text!r} is not of the form commands:queues, for example publish:orders.*")
        self.everything = False
        commands: set[str] = set()
        whole: set[str] = set()
        for word in words.split(","):
            if word == "all":
                self.everything = True
            elif word in GROUPS:
                commands |= GROUPS[word]
                whole |= WHOLE[word]
            elif _COMMAND.match(word):
                commands.add(word)
            else:
                raise ConfigError(
                    f"permission {text!r}: {word!r} is not one of all, {', '.join(GROUPS)}, nor a command such as SEND"
                )
        self.commands = frozenset(commands)
        self._names: set[str] = set()
        prefixes = []
        for queue in queues.split(","):
            if _QUEUE.match(queue) is None:
                raise ConfigError(
                    f"permission {text!r}: {queue!r} is neither a queue's name nor a beginning with * behind"
                )
            if queue.endswith("*"):
                prefixes.append(queue[:-1])
            else:
                self._names.add(queue)
        self._prefixes = tuple(prefixes)
        if "" in prefixes:
            self.commands |= whole

    def allows(self, command: str, queue: str) -> bool:
        """Whether this rule alone allows the command on the queue; ``""`` = on none in particular."""
        if not self.everything and command not in self.commands:
            return False
        if not queue:
            return "" in self._prefixes
        return queue in self._names or queue.startswith(self._prefixes)


class Permissions:
    """Answers by all rules of one user, and remembers its answers. Thread-safe."""

    def __init__(self, rules: Iterable[str]) -> None:
        self._rules = [Rule(text) for text in rules]
        self._remembered: dict[tuple[str, str], bool] = {}

    def allows(self, command: str, queue: str) -> bool:
        """Whether any rule allows the command on the queue."""
        key = command, queue
        known = self._remembered.get(key)
        if known is None:
            known = command in FREE or any(rule.allows(command, queue) for rule in self._rules)
            if len(queue) > _MOST_NAME:
                return known
            if len(self._remembered) >= _MAX_REMEMBERED:  # somebody tries names: not at our memory's cost
                self._remembered.clear()
            self._remembered[key] = known
        return known

    def allows_some(self, command: str) -> bool:
        """Whether any rule allows the command on any queue, or on none."""
        return any(rule.everything or command in rule.commands for rule in self._rules)
