"""A call that may hang, such as one to a store that does not answer, for callers that must not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ignis.errors import WaitTimeoutError
from ignis.stacks import start_thread

__all__ = ["BoundedCall"]

R = TypeVar("R")


class _Run(Generic[R]):
    """One run of the function, in a thread of its own."""

    def __init__(self, call: Callable[[], R]) -> None:
        self.ended = threading.Event()
        self.ended_at_s = 0.0
        self._call = call
        self._result: R
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as exc:  # raised where somebody waits for it
            self._error = exc
        finally:
            self.ended_at_s = time.monotonic()
            self.ended.set()

    def result(self) -> R:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._result


class BoundedCall(Generic[R]):
    """Calls a function and waits for a bounded time. It never runs twice at once: who comes meanwhile waits for the same run, so
    that one that hangs keeps one thread. Thread-safe.

    Args:
        call: the function.
        what: it is, for the error: "the store".
        timeout_s: how long a caller waits.
        fresh_s: a result that is not older, or an error, is given again.
    """

    def __init__(self, call: Callable[[], R], what: str, timeout_s: float, *, fresh_s: float = 0.0) -> None:
        self._call = call
        self._what = what
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._last: _Run[R] | None = None

    def __call__(self) -> R:
        """The function's result. Raises what it raises, and WaitTimeoutError."""
        with self._lock:
            last = self._last
            if last is None or (last.ended.is_set() and time.monotonic() >= last.ended_at_s + self._fresh_s):
                last = self._last = _Run(self._call)
                try:
                    start_thread(threading.Thread(target=last.run, name="ignis-bounded-call", daemon=True))
                except (RuntimeError, MemoryError):  # no thread can be started
                    self._last = None
                    raise WaitTimeoutError(f"{self._what} was not asked: there is no thread to ask with") from None
        if not last.ended.wait(self._timeout_s):
            raise WaitTimeoutError(f"{self._what} has not answered within {self._timeout_s:g} s")
        return last.result()
