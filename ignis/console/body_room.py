"""The memory of request bodies while they come in and are worked on: a bound for all, a bound for each user. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ignis.console.refusals import RefusedError

__all__ = ["FREE_BYTES", "BodyRoom", "decoded_bytes"]

MOST_BYTES = 128 << 20
MOST_BYTES_OF_A_USER = 32 << 20
FREE_BYTES = 64 << 10
"""A body of so much is not counted: the number of connections bounds those."""

_WEIGHTS = ((b"{", 232), (b"[", 72), (b",", 40), (b'"', 28))
"""What CPython takes for a dict of a few keys, a list, an entry of either, and half of a short text."""


def decoded_bytes(data: bytes) -> int:
    """About how much memory what stands in the JSON takes once it is decoded, rather too much: seven bytes may become a dict of
    250."""
    return len(data) + sum(data.count(mark) * weight for mark, weight in _WEIGHTS)


class BodyRoom:
    """Gives out room for bodies, by the length that they say. Belongs to the event loop."""

    def __init__(self, most: int = MOST_BYTES, most_of_a_user: int = MOST_BYTES_OF_A_USER) -> None:
        self._most = most
        self._most_of_a_user = most_of_a_user
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def of(self, who: str | None, size: int) -> Iterator[Callable[[int], None]]:
        """Room for a body while the block runs. ``who``: the user; None = nobody has a name here, and all share the room.

        Yields what takes more of it, for what the body is decoded to. Both raise RefusedError (``too_many_requests``), which
        names the limit.
        """
        taken = 0

        def take(more: int) -> None:
            nonlocal taken
            if more > FREE_BYTES:
                self._check(who, more, taken)
                self._taken[who] += more
                taken += more

        take(size)
        try:
            yield take
        finally:
            self._taken[who] -= taken
            if not self._taken[who]:
                del self._taken[who]

    def _check(self, who: str | None, more: int, own: int) -> None:
        """``own``: what the body itself has taken. One that is alone may take more than the limit."""
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


def _refused(text: str, most: int) -> RefusedError:
    return RefusedError("too_many_requests", f"{text} {most}, the limit: send it again later")
