"""Counting the calls in flight, so that `close` and `fork` can wait for them: a gate that many may be inside of, or that
one has shut."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ignis.errors import ClosedError, WaitTimeoutError

__all__ = ["Gate", "guarded"]

P = ParamSpec("P")
R = TypeVar("R")


class Gate:
    """Counts who is inside. Thread-safe. Not re-entrant for whoever shuts it.

    Args:
        what: for messages.
        timeout_s: bound on every wait.
    """

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._barred = False
        self._closed = False

    def enter(self) -> None:
        """Raises ClosedError after `close`, WaitTimeoutError when it stays shut."""
        with self._changed:
            if self._barred or self._closed:
                self._wait_open()
            self._inside += 1

    def try_enter(self) -> bool:
        """`enter` without waiting: False while it is shut, or after `close`."""
        with self._changed:
            if self._barred or self._closed:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside and (self._barred or self._closed):
                self._changed.notify_all()

    @contextmanager
    def shut(self, timeout_s: float | None = None) -> Iterator[None]:
        """Nobody is inside during the block. The caller must not be inside. Raises ClosedError, WaitTimeoutError."""
        with self._changed:
            self._wait_open()
            self._barred = True
        try:
            self.wait_empty(self._timeout_s if timeout_s is None else timeout_s)
            yield
        finally:
            with self._changed:
                self._barred = False
                self._changed.notify_all()

    def close(self) -> None:
        """From now on nobody gets in. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_empty(self, timeout: float) -> None:
        """Waits until nobody is inside. Raises WaitTimeoutError."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._inside:
                left = deadline - time.monotonic()
                if (left <= 0 or not self._changed.wait(left)) and self._inside:
                    raise WaitTimeoutError(f"{self._what}: {self._inside} call(s) in flight after {timeout:g} s")

    def _wait_open(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while self._barred and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeoutError(f"{self._what}: no way in after {self._timeout_s:g} s")
            self._changed.wait(left)
        if self._closed:
            raise ClosedError(f"{self._what} is closed")


class _Counted(Protocol):
    def enter(self) -> None: ...
    def leave(self) -> None: ...


def guarded(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """For methods of objects with a ``_store``: refused after `close` and after ``fork``, counted otherwise."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        store: _Counted = self._store
        store.enter()
        try:
            return method(self, *args, **kwargs)
        finally:
            store.leave()

    return call
