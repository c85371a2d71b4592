"""A request of a client: what is sent, and how its answer is read. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.encoding import pack, unpack_value
from ignis.broker.protocol.machine import Undo
from ignis.broker.protocol.table import TABLE
from ignis.config import shown
from ignis.errors import ConfigError
from ignis.native import PackedBatch
from ignis.native.wire import pack_pointers
from ignis.storage.checks import check_magazine, ttl_milliseconds

__all__ = [
    "Batches",
    "ClientRequest",
    "Ttl",
    "build",
    "encoded_name",
    "packed_pointers",
    "read_as",
    "read_nothing",
    "ttl_ms_of",
]

T = TypeVar("T")

Batches = Sequence[tuple[int, PackedBatch]]
"""Pairs of a shard and what is loaded there."""
Ttl = float | Literal["queue"] | None
"""Seconds; None = never expires; ``"queue"`` = as the queue's settings say."""


class ClientRequest(msgspec.Struct, Generic[T], frozen=True):
    """What is sent, and how its answer is read.

    Attributes:
        parse: payload of the answer -> result. Raises ProtocolError, BadRequestError for an answer that is none.
        repeatable: whether doing it twice is as good as once, so that it may be sent again when a connection was lost.
        extra_s: how long the broker may hold the request back by itself; added to the client's timeout.
        undo: gives the request that takes back what an answer brought that comes when nobody waits for it any more.
    """

    command: Command
    payload: bytes
    parse: Callable[[bytes], T]
    repeatable: bool = False
    extra_s: float = 0.0
    undo: Undo | None = None


def ttl_ms_of(ttl_s: Ttl) -> int:
    """Returns a time to live as it is sent. Raises ConfigError."""
    if ttl_s == "queue":
        return OWN_TTL
    return 0 if ttl_s is None else ttl_milliseconds(ttl_s)


def encoded_name(magazine: str) -> bytes:
    """Checks a name and encodes it. Raises InvalidNameError."""
    try:
        return _known_name(magazine)
    except TypeError:  # it cannot even be looked up
        return check_magazine(magazine).encode()


@lru_cache(maxsize=1_024)
def _known_name(magazine: str) -> bytes:
    return check_magazine(magazine).encode()


def packed_pointers(pointers: Any) -> bytes:
    """Packs pointers. Raises ConfigError for what names no records."""
    try:
        return pack_pointers(pointers)
    except (TypeError, ValueError, OverflowError, AttributeError) as exc:
        raise ConfigError(f"pointers = {shown(pointers)}: {exc}") from None


def read_nothing(payload: bytes) -> None:
    """Reads an answer that says no more than that it was done."""


def _reader(answer: Any) -> Callable[[bytes], Any]:
    """Returns what reads the value of a RESULT."""
    return read_nothing if answer is None else lambda payload: unpack_value(payload, answer)


_ROWS = {number: (row.payload, _reader(row.answer), row.repeats) for number, row in TABLE.items()}


def build(command: Command, *fields: Any, bulk: bytes = b"") -> ClientRequest[Any]:
    """Builds the request that the table of commands describes, of the fields of its head. Its answer is the value that comes."""
    kind, read, repeats = _ROWS[command]
    return ClientRequest(command, pack(None if kind is None else kind(*fields), bulk), read, repeats)


def read_as(parse: Callable[[Any], T], request: ClientRequest[Any]) -> ClientRequest[T]:
    """Returns the same request, whose answer is made of the value that comes."""
    read = request.parse
    return ClientRequest(request.command, request.payload, lambda payload: parse(read(payload)), request.repeatable)
