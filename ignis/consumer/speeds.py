"""How long a message takes, by function: what one queue's consumer has measured is where another's begins.

A thousand queues that share a handler would be a thousand first claims of a single message each, made to measure it. The speed
of a function on another queue is a guess, as the last speed on the same queue is, and is put right in the same ways.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ignis.consumer.handler import HandlerSpec

__all__ = ["Speed", "speed_of"]

_Kind = tuple[str, int | None, int]
"""Pool, batch size and workers: by these a message of the same function takes another time."""


class Speed:
    """What was measured last, by any consumer of this process."""

    __slots__ = ("each_s",)

    def __init__(self) -> None:
        self.each_s = 0.0
        """Seconds a message; 0 = nobody knows."""


_of_functions: weakref.WeakKeyDictionary[Callable[..., Any], dict[_Kind, Speed]] = weakref.WeakKeyDictionary()


def speed_of(spec: HandlerSpec) -> Speed:
    """That of the handler's function, run in this way. A function that nobody else can have has one of its own. Thread-safe."""
    kind = spec.pool, spec.batch_size, spec.concurrency
    try:
        known = _of_functions.get(spec.fn) or _of_functions.setdefault(spec.fn, {})
    except Exception:  # a callable that cannot be a key, in whatever way
        return Speed()
    return known.get(kind) or known.setdefault(kind, Speed())
