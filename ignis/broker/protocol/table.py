"""The table of commands: one row each says what it is about, where its payload names that, and whose it is.

Permissions follow from it alone, the words of the users file (`GROUPS` in ``permissions.py``) included. ``docs/security.md``
shows it; a test compares the two, and asks a broker for every command in every role.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.payloads import EpochRequest, LockRequest, Named, unpack
from ignis.errors import BadRequestError

__all__ = ["TABLE", "WORDS", "About", "Row"]

T = TypeVar("T")
Names = Callable[[bytes], tuple[str, ...]]

WORDS = ("publish", "consume", "work", "look", "manage", "locks", "arrays")
"""Of the users file, for what goes together. ``all`` is everything."""


class About(enum.Enum):
    """What a command is about, and so what a rule must name."""

    CONNECTION = "the connection"
    """Needs no permission."""
    QUEUE = "queue"
    """Each queue that it names; a sideline counts as its queue."""
    ARRAY = "array queue"
    LOCK = "lock"
    EPOCH = "epoch"
    SUBSCRIPTION = "subscription"
    """The queue of that subscription, which is the connection's own."""
    LIST = "list"
    """Any queue: the answer has what the user may ask for by name, and nothing else."""
    BROKER = "broker"
    """No queue: only a rule for ``*`` allows it."""


class Row(NamedTuple):
    """One command. ``words``: which of `WORDS` include it; with ``*`` behind only as part of a rule for ``*``."""

    about: About
    words: str = ""
    names: Names | None = None


class _Pair(msgspec.Struct, array_like=True):
    source: str
    target: str


class _RecordName(msgspec.Struct):
    name: str


class _Records(msgspec.Struct, array_like=True):
    known: _RecordName
    fresh: _RecordName


def _head(kind: type[T], of: Callable[[T], tuple[str, ...]]) -> Names:
    """The part of the head that names something: nothing else of it is read before the permission is known."""
    return lambda payload: of(unpack(payload, kind)[0])


def _replaced(records: _Records) -> tuple[str, ...]:
    if records.known.name != records.fresh.name:
        raise BadRequestError(
            f"QUEUE_REPLACE of {records.known.name[:128]!a} by a record of {records.fresh.name[:128]!a}"
        )
    return (records.known.name,)


_ONE = _head(Named, lambda head: (head.name,))
_BOTH = _head(_Pair, lambda head: (head.source, head.target))
_RECORD = _head(_RecordName, lambda record: (record.name,))
_SCOPE = _head(EpochRequest, lambda head: (head.scope,))
_LOCK = _head(LockRequest, lambda head: (head.name,))


def _queue(words: str, names: Names = _ONE) -> Row:
    return Row(About.QUEUE, words, names)


_OPENING = "publish consume work manage"

TABLE: dict[int, Row] = {
    Command.CONNECT: Row(About.CONNECTION),
    Command.DISCONNECT: Row(About.CONNECTION),
    Command.PING: Row(About.CONNECTION),

    # SEND and SEND_BATCH are decoded before they come here: see `ignis.broker.server.publish_commands`.
    Command.SEND: _queue("publish work"),
    Command.SEND_BATCH: _queue("publish work"),
    Command.LOAD_ONCE: _queue("publish work"),

    Command.SUBSCRIBE: _queue("consume work"),
    Command.UNSUBSCRIBE: Row(About.SUBSCRIPTION, "consume work"),
    Command.CREDIT: Row(About.SUBSCRIPTION, "consume work"),
    Command.CONSUME: _queue("consume work"),
    Command.ACK: _queue("consume work"),
    Command.NACK: _queue("consume work"),
    # Of one's own claims; of others', such as a job's, RENEW must be allowed as well: see `ignis.broker.server.claim_commands`.
    Command.RENEW_CLAIMS: _queue("consume work"),
    Command.RESUME: _queue("consume work"),

    Command.DECLARE: _queue(_OPENING),
    Command.QUEUE_GET: _queue(f"{_OPENING} look"),
    Command.QUEUE_INFO: _queue(f"{_OPENING} look"),

    Command.FIRE: _queue("work"),
    Command.CLAIM: _queue("work"),
    Command.HELD: _queue("work"),
    Command.RENEW: _queue("work"),
    Command.RELOAD: _queue("work"),
    Command.DELETE: _queue("work"),
    Command.DELETE_WAITING: _queue("work manage"),
    Command.PURGE: _queue("work manage"),
    Command.TRANSFER: _queue("work", _BOTH),
    Command.ABANDONED: _queue("work"),
    Command.EXPIRE: _queue("work"),
    Command.WAIT: _queue("work"),
    Command.WAKE: _queue("work"),
    Command.QUEUE_REPLACE: _queue("work manage", _head(_Records, _replaced)),

    Command.PEEK: _queue("work look"),
    Command.SCAN: _queue("work look"),
    Command.METADATA: _queue("work look"),
    Command.OLDEST: _queue("work look"),
    Command.NAMES: Row(About.LIST, "work look"),
    Command.QUEUE_LIST: Row(About.LIST, "work look"),
    Command.LIST_QUEUES: Row(About.LIST, "look"),

    Command.CREATE_QUEUE: _queue("manage"),
    Command.DELETE_QUEUE: _queue("manage"),
    Command.DROP: _queue("manage"),
    Command.DROP_EMPTY: _queue("manage"),
    Command.QUEUE_PUT: _queue("manage", _RECORD),
    Command.QUEUE_REMOVE: _queue("manage"),

    # For `work` without `*` a lock and an epoch are the user's own, for the leadership of its sweeper.
    Command.LOCK_ACQUIRE: Row(About.LOCK, "locks work*", _LOCK),
    Command.LOCK_RENEW: Row(About.LOCK, "locks work*", _LOCK),
    Command.LOCK_RELEASE: Row(About.LOCK, "locks work*", _LOCK),
    Command.LOCK_GET: Row(About.LOCK, "locks look work*", _LOCK),
    Command.LOCK_TOKEN: Row(About.LOCK, "locks", _LOCK),
    Command.EPOCH_NEXT: Row(About.EPOCH, "locks work*", _SCOPE),
    Command.EPOCH_GET: Row(About.EPOCH, "locks look work*", _SCOPE),
    Command.EPOCH_RAISE: Row(About.EPOCH, "locks work*", _SCOPE),

    Command.ARRAY_ENQUEUE: Row(About.ARRAY, "arrays", _ONE),
    Command.ARRAY_DEQUEUE: Row(About.ARRAY, "arrays", _ONE),
    Command.ARRAY_PEEK: Row(About.ARRAY, "arrays look", _ONE),
    Command.ARRAY_SIZE: Row(About.ARRAY, "arrays look", _ONE),

    Command.CLUSTER_STATUS: Row(About.BROKER, "look"),
    Command.NODE_STATUS: Row(About.BROKER, "look"),
    Command.METRICS: Row(About.BROKER, "look"),
    Command.STATS: Row(About.BROKER, "look"),
}  # fmt: skip
