"""Text that others have chosen, on a terminal or in a log: whoever publishes chooses every byte of a message, and tracebacks
show what messages hold."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Any

__all__ = ["PlainFormatter", "escape_uncaught", "plain", "print_trace"]

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


def print_trace(exc: BaseException | None = None) -> None:
    """An exception's traceback on stderr, where it goes beside any log; None = of the one that is handled now. Never raises."""
    try:
        found = sys.exc_info()[1] if exc is None else exc
        if found is not None and sys.stderr is not None:
            text = "".join(traceback.format_exception(type(found), found, found.__traceback__)).rstrip()
            sys.stderr.write(_entry(text).encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    except BaseException:
        return


def escape_uncaught() -> None:
    """What the interpreter itself says of exceptions that nobody catches, in threads and while objects end, and of log records
    for which no handler is set up, goes the same way. For processes that are ours as a whole."""

    def of_thread(args: Any) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "?"
            sys.stderr.write(plain(f"exception in thread {name}:") + "\n")
            print_trace(args.exc_value)

    def unraisable(args: Any) -> None:
        if args.exc_value is not None:
            print_trace(args.exc_value)

    threading.excepthook = of_thread
    sys.unraisablehook = unraisable
    sys.excepthook = lambda kind, exc, trace: print_trace(exc)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
