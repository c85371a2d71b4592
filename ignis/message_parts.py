"""Many messages, cut into what one transaction takes: by their number, and by their bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from ignis.config import shown
from ignis.errors import ConfigError, InvalidMessageError
from ignis.native import total_bytes

__all__ = ["encoded_parts", "source_of", "stops"]

_MOST_MESSAGES = 8_192
"""The most messages in one transaction."""

_FIRST_BODIES, _MOST_BODIES = 8, 256
"""So many messages are read at first, and at most at a time, before their bytes are counted: what is read beyond the bound of a
transaction is at most that."""

_Part = tuple[Sequence[Any], Sequence[Any] | None]
"""Messages, and the key of each."""

_Source = Callable[[int], _Part]
"""Gives the next messages, at most so many; none when there are no more."""


def encoded_parts(
    take: _Source,
    encode_all: Callable[[Sequence[Any]], Sequence[bytes]],
    beside_bytes: int,
    most_bytes: int,
    *,
    there: bool = False,
) -> Iterator[tuple[Sequence[Any], Sequence[Any] | None, Sequence[bytes] | None, int]]:
    """Messages for one transaction at a time, and a few more at most: each part with its keys, its bodies, and the bytes of
    all but the keys. No bodies where one cannot be encoded.

    Large messages are few in a part, so that what is read and encoded at a time does not grow with their size. ``there``: they
    are their own bodies, and all in memory, so that nothing is gained by that.
    """
    while True:
        part: list[Any] = []
        keys: list[Any] | None = None
        bodies: list[bytes] | None = []
        nbytes, step = 0, _MOST_MESSAGES if there else _FIRST_BODIES
        while bodies is not None and len(part) < _MOST_MESSAGES and step > 0:
            piece, piece_keys = take(min(step, _MOST_MESSAGES - len(part)))
            if not piece:
                break
            part += piece
            if piece_keys is not None:
                keys = [] if keys is None else keys
                keys += piece_keys
            try:
                encoded = encode_all(piece)
            except Exception:  # which one it is, and how many are stored, is told when the part is to be stored
                bodies = None
                break
            counted = len(bodies)
            bodies += encoded
            nbytes += total_bytes(bodies, counted) + beside_bytes * len(piece)
            # As many more as there is room for, if they are as large as those so far.
            step = min(2 * step, _MOST_BODIES, max(0, most_bytes - nbytes) * len(part) // nbytes)
            del piece, piece_keys, encoded
        if not part:
            return
        yield part, keys, bodies, nbytes
        del part, keys, bodies  # the next are read before they would be let go


def stops(
    bodies: Sequence[bytes], keys: Sequence[bytes] | None, nbytes: int, beside_bytes: int, most_bytes: int
) -> Iterator[int]:
    """Where each transaction ends."""
    # Nearly always all of them fit, and nothing is done for each.
    if nbytes + (0 if keys is None else sum(map(len, keys))) > most_bytes:
        filled = 0
        for at, body in enumerate(bodies):
            size = len(body) + beside_bytes + (0 if keys is None else len(keys[at]))
            if filled and filled + size > most_bytes:
                yield at
                filled = 0
            filled += size
    yield len(bodies)


def source_of(messages: Any, key: Callable[[Any], Any] | None, keys: Any) -> _Source:
    """Pieces of a list or tuple are cut out of it; anything else is read when it is asked for. Raises InvalidMessageError,
    ConfigError."""
    if keys is not None:
        if isinstance(keys, (str, bytes, bytearray, Mapping, Set)):
            raise ConfigError(f"keys = {shown(keys)} is not a sequence with a key for each message")
        keys = keys if isinstance(keys, (list, tuple)) else list(_iterated(keys, "keys"))
        if not isinstance(messages, (list, tuple)):  # as many as there are keys, and one more that tells of too many
            messages = list(itertools.islice(_iterated(messages, "messages"), len(keys) + 1))
            if len(messages) > len(keys):
                raise ConfigError(f"{len(keys)} keys were given for more messages")
        if len(keys) != len(messages):
            raise ConfigError(f"{len(keys)} keys were given for {len(messages)} messages")
    if isinstance(messages, (list, tuple)):
        if key is not None:
            keys = [key(message) for message in messages]
        return _cut(messages, keys)
    return _read(_iterated(messages, "messages"), key)


def _cut(messages: Sequence[Any], keys: Sequence[Any] | None) -> _Source:
    end = 0

    def take(count: int) -> _Part:
        nonlocal end
        begin, end = end, end + count
        return messages[begin:end], None if keys is None else keys[begin:end]

    return take


def _read(messages: Iterator[Any], key: Callable[[Any], Any] | None) -> _Source:
    def take(count: int) -> _Part:
        piece = list(itertools.islice(messages, count))
        return piece, None if key is None else [key(message) for message in piece]

    return take


def _iterated(values: Any, what: str) -> Iterator[Any]:
    try:
        return iter(values)
    except TypeError as exc:
        raise InvalidMessageError(f"{what} are {shown(values)}, not a sequence: {exc}") from None
