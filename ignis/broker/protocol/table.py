"""The table of commands, one row each.

A row says what the command is about, whose it is, and what stands in its payload and its answer. It says too how large it may
be, and what happens to it when a connection or a broker ends.

From it follow the requests of both clients and of the store over the broker, what of a large frame is read, and what a broker
that drains still takes. The permissions with the words of the users file (`GROUPS` in ``permission_words.py``) follow too.
``docs/security.md`` shows the permissions; a test compares the two, and asks a broker for every command in every role.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.later_payloads import DeferRequest, ListLater, LoadLater, MoveDue
from ignis.broker.protocol.payloads import (
    AbandonedRequest,
    AnyNamed,
    ArrayRequest,
    ClaimRequest,
    Consume,
    CreateQueue,
    Credit,
    Declare,
    DeleteQueue,
    EpochRequest,
    Expire,
    Fire,
    LoadOnce,
    LockRequest,
    Nack,
    Named,
    OwnerRequest,
    PurgeRequest,
    QueueList,
    QueueReplace,
    Reload,
    RenewClaims,
    Resume,
    Scan,
    Subscribe,
    TransferRequest,
    Unsubscribe,
    Wait,
)
from ignis.errors import BadRequestError
from ignis.storage.base import QueueRecord

__all__ = ["BULKY", "FINISHING", "LARGE", "LOOKS", "TABLE", "WHOLE", "WORDS", "About", "Row", "Size"]

T = TypeVar("T")
Names = Callable[[bytes], tuple[str, ...]]

WORDS = ("publish", "consume", "work", "look", "manage", "locks", "arrays")
"""Words of the users file for what goes together. ``all`` is everything."""


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


class Size(enum.Enum):
    """What a request may weigh. Over some kilobytes the name that it is about comes first in its payload."""

    HEAD = "its head"
    """A request without records, pointers or values."""
    BULK = "head and bulk"
    """Pointers or messages behind a head."""
    WHOLE = "all of it"
    """The payload has no head, or the head is all there is: messages and values."""


class Row(NamedTuple):
    """Describes one command.

    Attributes:
        words: which of `WORDS` include it; with ``*`` behind only as part of a rule for ``*``.
        names: reads from the payload what it is about.
        payload: the class of its head; None = nil, or a form of its own.
        answer: what the value of its RESULT is; None = nil, `Any` = what only the caller knows, or another answer.
        repeats: doing it twice is as good as once, so that it may be sent again when a connection was lost.
        finishes: it ends work that was begun: a broker that is shutting down still answers it.
        bulky: its answer may be large: few of them at a time per connection.
        looks: it reads what may be much, for somebody who looks: in threads of its own, so that nobody else waits for it.
    """

    about: About
    words: str = ""
    names: Names | None = None
    payload: type[Any] | None = None
    answer: Any = None
    repeats: bool = False
    finishes: bool = False
    size: Size = Size.HEAD
    bulky: bool = False
    looks: bool = False


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
            f"QUEUE_REPLACE of {records.known.name[:128]!a} by a record of {records.fresh.name[:128]!a}; "
            "give two records of one queue"
        )
    return (records.known.name,)


_ONE = _head(Named, lambda head: (head.name,))
_ANY = _head(AnyNamed, lambda head: (head.name,))
_BOTH = _head(_Pair, lambda head: (head.source, head.target))
_RECORD = _head(_RecordName, lambda record: (record.name,))
_SCOPE = _head(EpochRequest, lambda head: (head.scope,))
_LOCK = _head(LockRequest, lambda head: (head.name,))


_BULK, _WHOLE = Size.BULK, Size.WHOLE
_Rows = list[tuple[int, int, bytes | None]]
_Runs = list[tuple[int, int, int, int]]
_Placed = list[tuple[int, int, int]]
_Delayed = list[tuple[int, int, int, bytes | None]]


def _queue(words: str, payload: type[Any] | None = Named, answer: Any = None, names: Names = _ONE, **more: Any) -> Row:
    return Row(About.QUEUE, words, names, payload, answer, **more)


def _lock(words: str, answer: Any, **more: Any) -> Row:
    return Row(About.LOCK, words, _LOCK, LockRequest, answer, **more)


def _epoch(words: str, answer: Any) -> Row:
    return Row(About.EPOCH, words, _SCOPE, EpochRequest, answer, repeats=True)


def _array(words: str, answer: Any, **more: Any) -> Row:
    return Row(About.ARRAY, words, _ONE, ArrayRequest, answer, **more)


def _broker(answer: Any, **more: Any) -> Row:
    return Row(About.BROKER, "look", answer=answer, repeats=True, **more)


def _list(words: str, payload: type[Any] | None, answer: Any, **more: Any) -> Row:
    return Row(About.LIST, words, None, payload, answer, repeats=True, **more)


_LockRow = tuple[str, str, int, int, int] | None
_OPENING = "publish consume work manage"

TABLE: dict[int, Row] = {
    Command.CONNECT: Row(About.CONNECTION, answer=Any),
    Command.DISCONNECT: Row(About.CONNECTION, payload=bool, finishes=True),
    Command.PING: Row(About.CONNECTION, answer=Any, repeats=True),

    # SEND and SEND_BATCH are decoded before they come here: see `ignis.broker.server.publish_commands`.
    Command.SEND: _queue("publish work", None, Any, size=_WHOLE),
    Command.SEND_BATCH: _queue("publish work", None, Any, size=_WHOLE),
    Command.LOAD_ONCE: _queue("publish work", LoadOnce, list[tuple[int, int, int]], size=_BULK),
    Command.LOAD_LATER: _queue("publish work", LoadLater, _Placed, size=_BULK),

    Command.SUBSCRIBE: _queue("consume work", Subscribe, int),
    Command.UNSUBSCRIBE: Row(About.SUBSCRIPTION, "consume work", None, Unsubscribe, bool, finishes=True),
    Command.CREDIT: Row(About.SUBSCRIPTION, "consume work", None, Credit),
    Command.CONSUME: _queue("consume work", Consume, Any),
    Command.ACK: _queue("consume work", Named, int, finishes=True, size=_BULK),
    Command.NACK: _queue("consume work", Nack, int, finishes=True, size=_BULK),
    # Of one's own claims; of others', such as a job's, RENEW must be allowed as well: see `ignis.broker.server.claim_commands`.
    Command.RENEW_CLAIMS: _queue("consume work", RenewClaims, list[tuple[int, int, int]], repeats=True, size=_BULK),
    Command.RESUME: _queue("consume work", Resume, int, repeats=True, size=_BULK),

    # Who may not make queues declares one only as it is, which changes nothing: opening it to look is that.
    Command.DECLARE: _queue(f"{_OPENING} look", Declare, repeats=True),
    Command.QUEUE_GET: _queue(f"{_OPENING} look", Named, QueueRecord | None, repeats=True),
    Command.QUEUE_INFO: _queue(f"{_OPENING} look", Named, Any, repeats=True, looks=True),

    Command.FIRE: _queue("work", Fire, Any, bulky=True),
    Command.CLAIM: _queue("work", ClaimRequest, _Runs),
    Command.HELD: _queue("work", OwnerRequest, _Runs, repeats=True),
    Command.RENEW: _queue("work", OwnerRequest, bool, repeats=True),
    Command.RELOAD: _queue("work", Reload, int, finishes=True, size=_BULK),
    Command.DELETE: _queue("work", AnyNamed, int, _ANY, finishes=True, size=_BULK),
    Command.DELETE_WAITING: _queue("work manage", Named, int, size=_BULK),
    Command.PURGE: _queue("work manage", PurgeRequest, tuple[int, int, dict[int, tuple[int, int]]]),
    Command.TRANSFER: _queue("work", TransferRequest, int, _BOTH, finishes=True, size=_WHOLE),
    Command.DEFER: _queue("work", DeferRequest, int, finishes=True, size=_WHOLE),
    Command.MOVE_DUE: _queue("work", MoveDue, tuple[int, int, int | None]),
    Command.RUN_NOW: _queue("work", Named, int, size=_BULK),
    Command.CANCEL_LATER: _queue("work manage", Named, int, size=_BULK),
    Command.ABANDONED: _queue(
        "work", AbandonedRequest, tuple[list[tuple[int, int, bytes | None, int, str, bool]], bool], repeats=True, bulky=True
    ),
    Command.EXPIRE: _queue("work", Expire, int),
    Command.WAIT: _queue("work", Wait, int, repeats=True),
    Command.WAKE: _queue("work", repeats=True),
    Command.QUEUE_REPLACE: _queue("work manage", QueueReplace, QueueRecord, _head(_Records, _replaced)),

    Command.PEEK: _queue("work look", AnyNamed, tuple[_Rows, bool], _ANY, repeats=True, size=_BULK, bulky=True, looks=True),
    Command.SCAN: _queue("work look", Scan, tuple[_Rows, bool], _ANY, repeats=True, bulky=True, looks=True),
    Command.LIST_LATER: _queue("work look", ListLater, tuple[_Delayed, bool], repeats=True, bulky=True, looks=True),
    Command.DELAYED: _queue("work look", Named, tuple[int, int | None], repeats=True),
    Command.METADATA: _queue("work look", AnyNamed, list[list[int]], _ANY, repeats=True),
    Command.OLDEST: _queue("work look", Named, int | None, repeats=True, looks=True),
    Command.NAMES: _list("work look", None, list[str], bulky=True, looks=True),
    # As a client of ours asks for it, with `after`: see `ignis.broker.server.calls.queue_page`.
    Command.QUEUE_LIST: _list("work look", QueueList, tuple[list[QueueRecord], bool], bulky=True, looks=True),
    Command.LIST_QUEUES: _list("look", QueueList, Any, bulky=True, looks=True),
    # Of who may do anything to any queue: what is delayed, and shown, is so by the store's clock.
    Command.CLOCK: _list(f"{_OPENING} look", None, int),

    Command.CREATE_QUEUE: _queue("manage", CreateQueue, Any, repeats=True),
    Command.DELETE_QUEUE: _queue("manage", DeleteQueue, bool),
    Command.DROP: _queue("manage", AnyNamed, None, _ANY, repeats=True),
    Command.DROP_EMPTY: _queue("manage", Named, bool, repeats=True),
    Command.QUEUE_PUT: _queue("manage", QueueRecord, None, _RECORD, repeats=True),
    Command.QUEUE_REMOVE: _queue("manage", Named, bool),

    # For `work` without `*` a lock and an epoch are the user's own, for the leadership of its sweeper.
    Command.LOCK_ACQUIRE: _lock("locks work*", _LockRow),
    Command.LOCK_RENEW: _lock("locks work*", _LockRow),
    Command.LOCK_RELEASE: _lock("locks work*", bool, finishes=True),
    Command.LOCK_GET: _lock("locks look work*", _LockRow, repeats=True),
    Command.LOCK_TOKEN: _lock("locks", int | None, repeats=True),
    Command.EPOCH_NEXT: _epoch("locks work*", int),
    Command.EPOCH_GET: _epoch("locks look work*", int),
    Command.EPOCH_RAISE: _epoch("locks work*", None),

    Command.ARRAY_ENQUEUE: _array("arrays", int, size=_WHOLE),
    Command.ARRAY_DEQUEUE: _array("arrays", Any, bulky=True),
    Command.ARRAY_PEEK: _array("arrays look", Any, repeats=True, bulky=True, looks=True),
    Command.ARRAY_SIZE: _array("arrays look", int, repeats=True),

    Command.CLUSTER_STATUS: _broker(Any),
    Command.NODE_STATUS: _broker(Any, finishes=True),
    Command.METRICS: _broker(list[tuple[str, dict[str, str], float]], finishes=True),
    Command.STATS: _broker(Any),
}  # fmt: skip

FINISHING = frozenset(number for number, row in TABLE.items() if row.finishes)
LARGE = frozenset(number for number, row in TABLE.items() if row.size is not Size.HEAD)
"""What may be of any size."""
WHOLE = frozenset(number for number, row in TABLE.items() if row.size is Size.WHOLE)
BULKY = frozenset(number for number, row in TABLE.items() if row.bulky)
LOOKS = frozenset(number for number, row in TABLE.items() if row.looks)
