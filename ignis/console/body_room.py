"""The memory of request bodies while they come in and are worked on: a bound for all, a bound for each user. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.console.refusals import RefusedError

__all__ = ["FREE_BYTES", "BodyRoom"]

MOST_BYTES = 128 << 20
MOST_BYTES_OF_A_USER = 32 << 20
FREE_BYTES = 64 << 10
"""A body of so much is not counted: the number of connections bounds those."""


class BodyRoom:
    """Gives out room for bodies, by the length that they say. Belongs to the event loop."""

    def __init__(self, most: int = MOST_BYTES, most_of_a_user: int = MOST_BYTES_OF_A_USER) -> None:
        self._most = most
        self._most_of_a_user = most_of_a_user
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def of(self, who: str | None, size: int) -> Iterator[None]:
        """Room for a body while the block runs. ``who``: the user; None = nobody has a name here, and all share the room.

        Raises RefusedError (``too_many_requests``), which names the limit.
        """
        if size <= FREE_BYTES:
            yield
            return
        mine, all_bytes = self._taken[who], self._taken.total()
        if who is not None and mine and mine + size > self._most_of_a_user:
            raise _refused(
                f"bodies of user {who!r} take {mine} bytes, and with this one more than", self._most_of_a_user
            )
        if all_bytes and all_bytes + size > self._most:
            raise _refused(f"bodies of requests take {all_bytes} bytes, and with this one more than", self._most)
        self._taken[who] += size
        try:
            yield
        finally:
            self._taken[who] -= size
            if not self._taken[who]:
                del self._taken[who]

    def __len__(self) -> int:
        return self._taken.total()


def _refused(text: str, most: int) -> RefusedError:
    return RefusedError("too_many_requests", f"{text} {most}, the limit: send it again later")
