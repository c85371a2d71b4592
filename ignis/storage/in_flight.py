"""Counting the calls in flight, so that `close` and `fork` can wait for them: a gate that many may be inside of, or that
one has shut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ignis.native.gate import CallGate, guarded

__all__ = ["Gate", "guarded"]


class Gate(CallGate):
    """Counts who is inside. Thread-safe. Not re-entrant for whoever shuts it.

    Args:
        what: for messages.
        timeout_s: bound on every wait.
        forked: what ForkedHandleError says to who goes in in a child of ``fork``; None = it may.
    """

    @contextmanager
    def shut(self, timeout_s: float) -> Iterator[None]:
        """Nobody is inside during the block. The caller must not be inside. Raises ClosedError, WaitTimeoutError."""
        self.bar(timeout_s)
        try:
            yield
        finally:
            self.unbar()
