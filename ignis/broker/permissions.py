"""What a user may do: rules of commands and queue names, ``publish:orders``, ``consume,look:logs.*``, ``all:*``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ignis.errors import ConfigError

__all__ = ["GROUPS", "Permissions", "Rule"]

_OPENING = frozenset({"DECLARE", "QUEUE_GET", "QUEUE_INFO"})
_STORE_READ = frozenset({"PEEK", "SCAN", "METADATA", "OLDEST", "NAMES", "QUEUE_LIST", "LOCK_GET", "EPOCH_GET"})

GROUPS: dict[str, frozenset[str]] = {
    "publish": frozenset({"SEND", "SEND_BATCH", "LOAD_ONCE", *_OPENING}),
    "consume": frozenset({"SUBSCRIBE", "UNSUBSCRIBE", "CREDIT", "CONSUME", "ACK", "NACK", *_OPENING}),
    "look": frozenset(
        {
            "LIST_QUEUES", "QUEUE_INFO", "QUEUE_GET", "CLUSTER_STATUS", "NODE_STATUS", "METRICS", "STATS",
            "ARRAY_PEEK", "ARRAY_SIZE", *_STORE_READ,
        }
    ),
    "manage": frozenset(
        {"CREATE_QUEUE", "DELETE_QUEUE", "DROP", "QUEUE_PUT", "QUEUE_REPLACE", "QUEUE_REMOVE", *_OPENING}
    ),
    "work": frozenset(
        {
            "SEND", "SEND_BATCH", "LOAD_ONCE", "CLAIM", "RENEW", "HELD",
            "SUBSCRIBE", "UNSUBSCRIBE", "CREDIT", "CONSUME", "ACK", "NACK", "FIRE", "RELOAD",
            "DELETE", "TRANSFER", "ABANDONED", "EXPIRE", "WAIT", "WAKE", "QUEUE_PUT", "QUEUE_REPLACE",
            *_OPENING, *_STORE_READ,
        }
    ),
    "locks": frozenset(
        {
            "LOCK_ACQUIRE", "LOCK_RENEW", "LOCK_RELEASE", "LOCK_GET", "LOCK_TOKEN",
            "EPOCH_NEXT", "EPOCH_RAISE", "EPOCH_GET",
        }
    ),
    "arrays": frozenset({"ARRAY_ENQUEUE", "ARRAY_DEQUEUE", "ARRAY_PEEK", "ARRAY_SIZE"}),
}  # fmt: skip
"""Words for what goes together. ``work`` is what a worker process needs of a queue: claim, retire, sideline, recover."""

FREE = frozenset({"CONNECT", "DISCONNECT", "PING", "PONG"})
"""Commands that are about the connection and need no permission."""

_COMMAND = re.compile(r"[A-Z][A-Z_]{1,31}\Z")
_QUEUE = re.compile(r"(?:[A-Za-z0-9._-]{1,128}\*?|\*)\Z")
_MAX_REMEMBERED = 4_096


class Rule:
    """Some commands on some queues. ``text`` is how it was written.

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
        for word in words.split(","):
            if word == "all":
                self.everything = True
            elif word in GROUPS:
                commands |= GROUPS[word]
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

    def allows(self, command: str, queue: str) -> bool:
        """Whether this rule alone allows the command on the queue; ``""`` = on none in particular."""
        if not self.everything and command not in self.commands:
            return False
        if not queue:
            return "" in self._prefixes
        return queue in self._names or queue.startswith(self._prefixes)


class Permissions:
    """The rules of one user. Thread-safe; remembers its answers."""

    def __init__(self, rules: Iterable[str]) -> None:
        self._rules = [Rule(text) for text in rules]
        self._remembered: dict[tuple[str, str], bool] = {}

    def allows(self, command: str, queue: str) -> bool:
        """Whether any rule allows the command on the queue."""
        key = command, queue
        known = self._remembered.get(key)
        if known is None:
            known = command in FREE or any(rule.allows(command, queue) for rule in self._rules)
            if len(self._remembered) >= _MAX_REMEMBERED:  # somebody tries names: not at our memory's cost
                self._remembered.clear()
            self._remembered[key] = known
        return known
