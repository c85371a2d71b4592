"""What is to happen when this process forks, and when it ends: the only hooks of the library into either.

A handle that must not be used in a child keeps the count of forks with which it was made, and compares. State of a process
that a child begins anew is kept by that count: no hook, and no order of hooks, is needed. Only who has to act at a fork, as
for a descriptor that the child must close, registers for it, at the first use and not at import.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ignis.escaping import print_trace

__all__ = ["FORKS", "at_exit", "on_fork"]

FORKS = [0]
"""How often this process and its ancestors were forked off, as its only item. Quicker to ask for than the process's number."""

Call = Callable[[], object]


class _Hook(NamedTuple):
    before: Call | None
    in_parent: Call | None
    in_child: Call | None


# Insertion and lookup are one step each under the interpreter's lock: no lock that a fork could find taken.
_hooks: dict[_Hook, None] = {}
_at_exit: dict[Call, None] = {}
_forking = threading.local()


def on_fork(*, before: Call | None = None, in_parent: Call | None = None, in_child: Call | None = None) -> None:
    """Registers functions that a fork calls, from now on. Thread-safe. The same functions are registered once, however often
    this is called.

    What one of them raises is printed and does not keep the others from being called, nor the process from forking.

    Args:
        before: in the forking thread, before the fork; the last registered first.
        in_parent, in_child: after it, in the order in which they were registered; in the same thread, and only where
            ``before`` was called.
    """
    _hooks.setdefault(_Hook(before, in_parent, in_child))


def at_exit(call: Call) -> None:
    """Registers a function that the normal end of the interpreter calls; the last registered first. Thread-safe. The same
    function is registered once. What it raises is printed."""
    _at_exit[call] = None


def _end() -> None:
    while _at_exit:
        _call([_at_exit.popitem()[0]])


def _before() -> None:
    _forking.hooks = tuple(_hooks)
    _call(hook.before for hook in reversed(_forking.hooks))


def _told() -> list[_Hook]:
    """Who is told of this fork: not who came meanwhile, in another thread, and should have been asked before."""
    return [hook for hook in tuple(_hooks) if hook.before is None or hook in _forking.hooks]


def _in_parent() -> None:
    _call(hook.in_parent for hook in _told())


def _in_child() -> None:
    FORKS[0] += 1
    _call(hook.in_child for hook in _told())


def _call(calls: Iterable[Call | None]) -> None:
    for call in calls:
        if call is not None:
            try:
                call()
            except BaseException as exc:
                print_trace(exc)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
atexit.register(_end)
