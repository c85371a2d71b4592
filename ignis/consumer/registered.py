"""What a handler's function carries for worker processes: they import the function and find there how it is to be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ignis.consumer.handler import HandlerSpec
from ignis.consumer.runner import Runner

__all__ = ["Registered", "note_handler", "note_pattern", "registered"]

_HANDLERS = "__ignis_handlers__"
_PATTERNS = "__ignis_patterns__"


@dataclass(frozen=True, slots=True)
class Registered:
    """One function as the handler of one queue.

    Attributes:
        spec: how it is to be run.
        make_runner: makes what calls it, for bodies in the codec of that name. Does not open the store.
        close: ends what the import of the module may have opened.
    """

    spec: HandlerSpec
    make_runner: Callable[[str], Runner]
    close: Callable[[], None]


def note_handler(fn: Callable[..., Any], found: Registered) -> None:
    """Notes on the function that it is the handler of the queue that the registration names."""
    vars(fn).setdefault(_HANDLERS, {})[found.spec.queue] = found


def note_pattern(fn: Callable[..., Any], adopt: Callable[[str], object]) -> None:
    """Notes on the function that it is the handler of queues that only the store knows; ``adopt`` registers it for the queue
    of that name."""
    vars(fn).setdefault(_PATTERNS, []).append(adopt)


def registered(fn: Callable[..., Any], queue: str) -> Registered | None:
    """What was noted for the queue of that name; None where the function is not its handler."""
    found: dict[str, Registered] = vars(fn).get(_HANDLERS, {})
    if queue not in found:
        # Of a pattern: which queues there are is the store's knowledge, at which the parent has looked.
        for adopt in vars(fn).get(_PATTERNS, [])[:1]:
            adopt(queue)
        found = vars(fn).get(_HANDLERS, {})
    return found.get(queue)
