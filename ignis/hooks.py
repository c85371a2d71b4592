"""Callbacks after messages were stored and after they were handled: for scaling and counting of one's own.

They are called once per batch, in the thread that stored or acknowledged it, after the store has said yes. What they
raise is logged and goes no further (see `call_user_code`). Without any a batch costs one look at an empty tuple.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType

from ignis.escaping import print_trace
from ignis.log_format import event_text

__all__ = ["AfterHandling", "AfterPublish", "Hooks", "call_user_code", "log_safely"]

log = logging.getLogger("ignis.hooks")

AfterPublish = Callable[[str, int], object]
"""``fn(queue, count)``: so many messages of the queue are durable, as its setting promises."""

AfterHandling = Callable[[str, int, int], object]
"""``fn(queue, handled, sidelined)``: so many were handled or dropped and are gone, so many are in the sideline."""


def log_safely(
    logger: logging.Logger,
    level: int,
    text: str,
    *args: object,
    exc_info: BaseException | bool | None = None,
    trace_from: Callable[[TracebackType | None], TracebackType | None] | None = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Logs, from a thread that must go on. A log handler that raises is named in a line of its own and goes no
    further; where it raises for that as well the error is on stderr.

    ``trace_from`` gives the part of an exception's traceback that is shown.

    What is no character in a text or an exception, such as the bytes of a file's name that is not UTF-8, is logged as its
    escape: a stream would refuse the whole line.
    """
    try:
        if not logger.isEnabledFor(level):
            return
        exc = sys.exc_info()[1] if exc_info is True else exc_info or None
        said = text % args if args else text
        began = None if exc is None else exc.__traceback__ if trace_from is None else trace_from(exc.__traceback__)
        info = None if exc is None else (type(exc), exc, began)
        trace = "" if info is None else "".join(traceback.format_exception(*info))
        if _is_utf8(said) and _is_utf8(trace):
            logger.log(level, text, *args, exc_info=info, extra=extra)
        else:
            whole = f"{said}\n{trace}".rstrip().encode("utf-8", "backslashreplace").decode("utf-8")
            logger.log(
                level, event_text(event, "%s") if (event := getattr(text, "event", "")) else "%s", whole, extra=extra
            )
    except BaseException as exc:
        with contextlib.suppress(BaseException):
            _say_unsaid(logger, level, exc)


def _say_unsaid(logger: logging.Logger, level: int, exc: BaseException) -> None:
    """A line could not be logged: said as far as the log lets us, and on stderr where it lets us not at all."""
    try:
        logger.log(level, event_text("line_not_logged", "a line could not be logged: %s"), type(exc).__qualname__)
    except BaseException:
        print_trace(exc)


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def call_user_code(logger: logging.Logger, text: str, call: Callable[..., object], *args: object) -> None:
    """Calls code of the user from one of our threads: what it raises, of whatever kind, is logged under ``text``.

    In the main thread KeyboardInterrupt and SystemExit go on: there they come from a signal, and mean the program.
    """
    try:
        call(*args)
    except BaseException as exc:
        if not isinstance(exc, Exception) and threading.current_thread() is threading.main_thread():
            raise
        log_safely(
            logger, logging.ERROR, event_text(getattr(text, "event", "user_code_failed"), "%s"), text, exc_info=exc
        )


class _Calls(threading.local):
    """Calls of the hooks after handling that go on in this thread."""

    depth = 0


class Hooks:
    """The callbacks of one application. Thread-safe; may be added at any time."""

    def __init__(self) -> None:
        self._calls = _Calls()
        self.after_publish: tuple[AfterPublish, ...] = ()
        self.after_handling: tuple[AfterHandling, ...] = ()
        self._lock = threading.Lock()

    def add_after_publish(self, fn: AfterPublish) -> None:
        with self._lock:
            self.after_publish = (*self.after_publish, fn)

    def add_after_handling(self, fn: AfterHandling) -> None:
        with self._lock:
            self.after_handling = (*self.after_handling, fn)

    def published(self, queue: str, count: int) -> None:
        for fn in self.after_publish:
            call_user_code(
                log,
                event_text("after_publish_failed", f"after_publish hook failed for {count} message(s) of {queue}"),
                fn,
                queue,
                count,
            )

    def handled(self, queue: str, handled: int, sidelined: int) -> None:
        self._calls.depth += 1
        try:
            for fn in self.after_handling:
                text = f"after_handling hook failed for {handled + sidelined} message(s) of {queue}"
                call_user_code(log, event_text("after_handling_failed", text), fn, queue, handled, sidelined)
        finally:
            self._calls.depth -= 1

    def runs_here(self) -> bool:
        """Whether it is a hook after handling that asks: the acknowledgements of its queue wait for its end."""
        return self._calls.depth > 0
