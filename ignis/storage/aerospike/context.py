"""What the parts of one Aerospike store share: the connection, the names of its sets, and the count of the calls under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.errors import ClosedError, ForkedHandleError, WaitTimeoutError
from ignis.process_hooks import FORKS
from ignis.storage.aerospike.connection import Connection
from ignis.storage.aerospike.layout import SetNames

__all__ = ["StoreContext"]


class StoreContext:
    """Of one opened store. Thread-safe. After ``fork`` no call can begin in the child.

    Args:
        connection: to the cluster; closed by whoever made it.
        sets: where the store's records are.
        owner: in whose name this process claims.
    """

    def __init__(self, connection: Connection, sets: SetNames, owner: str) -> None:
        self.connection = connection
        self.sets = sets
        self.owner = owner
        # Entering the lock itself is twice as fast as entering the condition, and every call does it twice.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._inside = 0
        self._closed = False
        self._forks = FORKS[0]

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the store."""
        return self._forks != FORKS[0]

    def enter(self) -> None:
        """Begins a call. Raises ForkedHandleError, ClosedError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this store was opened before fork(); open another in the child")
        with self._mutex:
            if self._closed:
                raise ClosedError("store is closed")
            self._inside += 1

    def leave(self) -> None:
        with self._mutex:
            self._inside -= 1
            if not self._inside and self._closed:
                self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """`enter` and `leave`."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def refuse(self) -> None:
        """From now on no call can begin. Idempotent."""
        with self._mutex:
            self._closed = True

    def wait_until_idle(self, deadline: float, timeout_s: float) -> None:
        """Waits for the calls under way, until ``time.monotonic()`` is ``deadline``. Raises WaitTimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._inside, max(0.0, deadline - time.monotonic())):
                raise WaitTimeoutError(f"store: {self._inside} call(s) still in flight after {timeout_s:g} s")
