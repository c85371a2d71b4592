"""The memory of bodies: of requests while they come in and are worked on, of messages that are read for an answer, and of answers
until they are read. A bound for all, a bound for each user. No I/O."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ignis.console.refusals import RefusedError

__all__ = ["FREE_BYTES", "BodyRoom", "Share", "decoded_bytes", "decoded_msgpack_bytes"]

MOST_BYTES = 128 << 20
MOST_BYTES_OF_A_USER = 32 << 20
FREE_BYTES = 64 << 10
"""A body of so much is not counted: the number of connections bounds those."""
_READERS = 3
"""Reads of the store at a time, and one of a user: how large a message is, is known only when it has been read."""
_READ_WAIT_S = 30.0
"""A store that does not answer those who read must not keep the threads of all others."""

_WEIGHTS = ((b"{", 232), (b"[", 72), (b",", 40), (b'"', 28))
"""What CPython takes for a dict of a few keys, a list, an entry of either, and half of a short text."""
_ASCII = bytes(range(128))


def decoded_bytes(data: bytes) -> int:
    """About how much memory what stands in the JSON takes once it is decoded, rather too much: seven bytes may become a dict of
    250."""
    return len(data) + sum(data.count(mark) * weight for mark, weight in _WEIGHTS)


def decoded_msgpack_bytes(data: bytes) -> int:
    """The same for MessagePack, where one byte may be a list, a map, or a number in a list."""
    return 8 * len(data) + 80 * len(data.translate(None, _ASCII))


class BodyRoom:
    """Gives out room for bodies. Thread-safe: bodies come in on the event loop, and messages are read in threads."""

    def __init__(self, most: int = MOST_BYTES, most_of_a_user: int = MOST_BYTES_OF_A_USER) -> None:
        self._most = most
        self._most_of_a_user = most_of_a_user
        self._taken: Counter[str | None] = Counter()
        self._reading: Counter[str | None] = Counter()
        self._changed = threading.Condition()

    def of(self, who: str | None, size: int) -> Share:
        """Room for one request, and at first for a body of ``size``. ``who``: the user; None = nobody has a name here, and all
        share the room. Raises RefusedError (``too_many_requests``), which names the limit."""
        share = Share(self, who)
        share.take(size)
        return share

    @contextmanager
    def _reader(self, who: str | None) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._reading.total() < _READERS and (who is None or not self._reading[who]), _READ_WAIT_S
            ):
                raise RefusedError(
                    "too_many_requests", f"other requests have read messages for {_READ_WAIT_S:g} s; try again later"
                )
            self._reading[who] += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading[who] -= 1
                self._changed.notify_all()

    def _take(self, who: str | None, more: int, own: int) -> None:
        with self._changed:
            self._check(who, more, own)
            self._taken[who] += more

    def _give(self, who: str | None, count: int) -> None:
        with self._changed:
            self._taken[who] -= count
            if not self._taken[who]:
                del self._taken[who]

    def _check(self, who: str | None, more: int, own: int) -> None:
        """``own``: what the request itself has taken. One that is alone may take more than the limit."""
        mine, all_bytes = self._taken[who] - own, self._taken.total() - own
        more += own
        if who is not None and mine and mine + more > self._most_of_a_user:
            raise _refused(
                f"bodies of user {who!r} take {mine} bytes, and with this one more than", self._most_of_a_user
            )
        if all_bytes and all_bytes + more > self._most:
            raise _refused(f"bodies of requests take {all_bytes} bytes, and with this one more than", self._most)

    def __len__(self) -> int:
        return self._taken.total()


class Share:
    """The room of one request, from `BodyRoom.of`. It belongs to one thread at a time. Close it, or use it as a context."""

    def __init__(self, room: BodyRoom, who: str | None) -> None:
        self._room = room
        self._who = who
        self._taken = 0
        self._small = 0
        """What was taken in small parts, and is not counted before it is more than is free."""

    def take(self, more: int) -> None:
        """Takes more. Raises RefusedError (``too_many_requests``): nothing was taken."""
        if more <= FREE_BYTES:
            self._small += more
            if self._small <= FREE_BYTES:
                return
            more, self._small = self._small, 0
        self._room._take(self._who, more, self._taken)
        self._taken += more

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Room for something while the block runs. Raises as `take`."""
        if size <= FREE_BYTES:
            yield
            return
        self._room._take(self._who, size, self._taken)
        self._taken += size
        try:
            yield
        finally:
            self._give(size)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around a call of the store that reads messages, and the `take` that follows: the threads of a user take turns, so that
        only a few have read what nobody has counted yet. Nothing else is done meanwhile."""
        with self._room._reader(self._who):
            yield

    def settle(self, size: int) -> None:
        """Has so much from now on, for the answer, and gives back what is more. Raises as `take` where it is not enough yet."""
        self._small = 0
        wanted = size if size > FREE_BYTES else 0
        if wanted > self._taken:
            self._room._take(self._who, wanted - self._taken, self._taken)
            self._taken = wanted
        self._give(self._taken - wanted)

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        self.settle(0)

    def _give(self, count: int) -> None:
        self._taken -= count
        if count:
            self._room._give(self._who, count)

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _refused(text: str, most: int) -> RefusedError:
    return RefusedError("too_many_requests", f"{text} {most}, the limit: send it again later")
