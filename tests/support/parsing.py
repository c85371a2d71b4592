"""Reading Python's sources while other threads are at work."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

__all__ = ["despite_threads", "parse"]

T = TypeVar("T")
_TRIES = 20


def despite_threads(read: Callable[[], T]) -> T:
    """Calls what parses sources, again where another thread disturbed it.

    Python 3.11 counts how deep a tree is for all threads together (python/cpython#106905), and its tracebacks parse lines as
    well: a thread that logs one meanwhile, such as one that an earlier test left, ends ``ast.parse`` here with SystemError.
    """
    for _ in range(_TRIES - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()


def parse(source: str | bytes, name: str = "<source>") -> ast.Module:
    """`ast.parse`, despite threads."""
    return despite_threads(lambda: ast.parse(source, name))
