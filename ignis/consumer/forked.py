"""The child of a handler that forked: it ends where the handler ends, and handles nothing of its own.

The child is a copy of the worker in the middle of a call. What it would go on with is its parent's: the rest of the chunk,
the reports, the claims. So whoever calls a user's code compares the count of forks before and after the call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from ignis.escaping import print_line, print_trace
from ignis.process_hooks import FORKS
from ignis.stacks import start_thread

__all__ = ["end_child", "ending_children"]

_TELL_S = 5.0
"""How long the child's last words may take: a thread that is not in the child may have held the lock of a stream."""


def ending_children(call: Callable[[Any], Any], queue: str) -> Callable[[Any], Any]:
    """``call``, from which only the process comes back that called it; a child that it forked off ends there."""

    def called(argument: Any) -> Any:
        forks = FORKS[0]
        try:
            answer = call(argument)
        except BaseException as exc:
            if FORKS[0] != forks:
                end_child(queue, exc)
            raise
        if FORKS[0] != forks:
            end_child(queue, None)
        return answer

    return called


def end_child(queue: str, exc: BaseException | None) -> NoReturn:
    """Ends this process, the child of a handler, without its exit functions: those are its parent's.

    Args:
        queue: whose handler it was.
        exc: what the handler raised in the child. SystemExit ends it with its code and says no more than ``sys.exit`` does;
            anything else is printed, and the code is 1.
    """
    code = 1
    try:
        if isinstance(exc, SystemExit) and (exc.code is None or isinstance(exc.code, int)):
            code = (exc.code or 0) & 0xFF
        telling = threading.Thread(target=_tell, args=(queue, exc), daemon=True)
        start_thread(telling)
        telling.join(_TELL_S)
    finally:
        os._exit(code)


def _tell(queue: str, exc: BaseException | None) -> None:
    if not isinstance(exc, SystemExit):
        if exc is not None:
            print_trace(exc)
        print_line(
            f"ignis: process {os.getpid()}, forked off by a handler of {queue!r}, came back from the handler and was ended: "
            "its parent goes on with the message; end such a child with os._exit()"
        )
    elif exc.code is not None and not isinstance(exc.code, int):
        print_line(str(exc.code))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
