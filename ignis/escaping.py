"""Text that others have chosen, on a terminal or in a log: whoever publishes chooses every byte of a message, and tracebacks
show what messages hold."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["PlainFormatter", "escape_uncaught", "plain", "print_line", "print_trace", "print_traces_as"]

_TAB = "\t"


def plain(text: str, keep: str = "") -> str:
    """Text whose control and direction characters, which could steer a terminal or begin a line of their own, are shown escaped;
    those of ``keep`` stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def _entry(text: str) -> str:
    """An entry of a log: control characters are escaped, and every line but its first is indented, so that nothing in it can
    pass for another entry."""
    first, *others = text.split("\n")
    return "\n".join([plain(first, keep=_TAB), *(f"  {plain(one, keep=_TAB)}" for one in others)])


class PlainFormatter(logging.Formatter):
    """Log lines that nobody can forge."""

    def format(self, record: logging.LogRecord) -> str:
        return _entry(super().format(record))


Form = Callable[[BaseException | None, str], str]
"""``form(exception, text)``: the line, without its end."""


def _read(exc: BaseException | None, text: str) -> str:
    """As people read it."""
    if exc is None:
        return plain(text, keep="\n")
    trace = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).rstrip()
    return _entry(f"{plain(text)}\n{trace}" if text else trace)


_form: list[Form] = [_read]


def print_traces_as(form: Form | None) -> None:
    """What `print_trace` and `print_line` write has this form from now on; None = that for people."""
    _form[0] = _read if form is None else form


def print_line(text: str) -> None:
    """A line on stderr, beside any log. Never raises."""
    _print(None, text)


def print_trace(exc: BaseException | None = None, head: str = "") -> None:
    """An exception's traceback on stderr, where it goes beside any log, behind a line that says what it is of; None = of the one
    that is handled now. Never raises."""
    found = sys.exc_info()[1] if exc is None else exc
    if found is not None:
        _print(found, head)


def _print(exc: BaseException | None, text: str) -> None:
    try:
        if sys.stderr is not None:
            sys.stderr.write(_form[0](exc, text).encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    except BaseException:
        return


def escape_uncaught() -> None:
    """What the interpreter itself says of exceptions that nobody catches, in threads and while objects end, and of log records
    for which no handler is set up, goes the same way. For processes that are ours as a whole."""

    def of_thread(args: Any) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "?"
            print_trace(args.exc_value, f"exception in thread {name}:")

    def unraisable(args: Any) -> None:
        if args.exc_value is not None:
            print_trace(args.exc_value)

    threading.excepthook = of_thread
    sys.unraisablehook = unraisable
    sys.excepthook = lambda kind, exc, trace: print_trace(exc)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
