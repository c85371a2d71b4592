"""Counting the calls in flight, so that `close` can wait for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["guarded"]

P = ParamSpec("P")
R = TypeVar("R")


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
