"""What a handler's failures and answers say in the log, at a bounded rate.

A handler that fails for every message must be seen, and must not fill a disk. So a failure is logged at once, with its
traceback, and then at most once in 10 s for each queue and type of exception; the next line says how many were left
out. Failures that another attempt follows are counted apart from those that send a message to the sideline. Nothing here
runs for a message that does not fail.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable

from ignis.history import type_name, without_callers
from ignis.hooks import call_user_code, log_safely
from ignis.log_format import error_type, event_text
from ignis.log_limit import LogLimit
from ignis.message import REASON_EXCEPTION, REASON_TIMEOUT, REASONS

__all__ = ["FailureTold", "HandlerLog", "cut", "failure_fields", "failure_told", "message_id_in"]

log = logging.getLogger("ignis.consumer.handler")

_MOST_TEXT_BYTES = 12_000
"""Of a text that a worker process sends to its parent, or a traceback: it goes through a channel."""
_MOST_ERROR_BYTES = 2_000

_MESSAGE = re.compile(r"\bmessage ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
"""A message as `ignis.consumer.runner.message_name` names it."""
_RAISED, _FAILED, _IGNORED = "handler_raised", "message_failed", "answer_ignored"
"""Events, see `ignis.log_format`."""
_AGAIN = "again "
_HANDLERS_FAULT = (REASON_EXCEPTION, REASON_TIMEOUT)
"""Reasons that are as grave as an exception."""

FailureTold = tuple[str, str, str]
"""Of an exception in another process: its type, its text, its traceback."""
Send = Callable[[int, str, str, FailureTold | None], None]
"""``send(level, key, text, failure)``."""


class HandlerLog:
    """Logs the failures of one handler at a bounded rate. Thread-safe. Never raises.

    Args:
        queue, handler: their names.
    """

    def __init__(self, queue: str, handler: str) -> None:
        self._queue = queue
        self._name = f"handler {handler} of queue {queue}"
        self._limit = LogLimit()
        self._once: dict[str, object] = {}
        self.send: Send | None = None
        """In a worker process: hands what is to be logged to the parent, whose log is the one that people read."""

    def raised(self, exc: BaseException, message: str, *, again: bool) -> None:
        """A call has raised. ``message``: which one it was; ``again``: whether another attempt follows."""
        kind = type_name(exc)
        kept = _kept(kind, again=again)
        count = self._limit.due(kept)
        if count:
            text = f"{self._name} raised {kind} on {message}; {_then(again=again)}{_more(count)}"
            self._write(logging.WARNING if again else logging.ERROR, kept, text, exc, _RAISED)

    def failed(self, reason: str, error: str, message: str, *, again: bool = False) -> None:
        """A message failed without an exception of the handler's: it overran, its answer was a mistake, or the message could not
        be read. ``again``: whether another attempt follows."""
        kept = _kept(reason, again=again)
        count = self._limit.due(kept)
        if count:
            text = f"{self._name}: {message} failed, {reason}: {error}; {_then(again=again)}{_more(count)}"
            for_good = reason in _HANDLERS_FAULT and not again
            self._write(logging.ERROR if for_good else logging.WARNING, kept, text, None, _FAILED)

    def ignored(self, answer: object) -> None:
        """The handler returned what says nothing. Said once."""
        self._write_once(
            "ignored",
            f"{self._name} returned a value of type {type_name(answer)}, which is ignored: the message is done. Only "
            "False fails it, None and True do not (said once)",
        )

    def ignored_list(self, length: int, count: int) -> None:
        """The handler of a batch returned a list of another length, which fails nothing. Said once."""
        self._write_once(
            "ignored",
            f"{self._name} returned a list of {length:,} for a batch of {count:,}, which is ignored: the messages are done. A "
            "list of answers has one for each message (said once)",
        )

    def forwarded(self, level: int, key: str, text: str, failure: FailureTold | None = None) -> None:
        """What a worker process sent."""
        if key == "ignored":
            self._write_once(key, text)
        elif self._limit.due(key):
            event = _FAILED if key.removeprefix(_AGAIN) in REASONS else _RAISED
            extra = self._fields(event, text) | failure_fields(failure)
            if log.isEnabledFor(level):
                made = {"name": log.name, "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
                call_user_code(
                    log,
                    event_text("line_not_logged", "a line could not be logged"),
                    log.handle,
                    logging.makeLogRecord(made | extra),
                )

    def _write_once(self, key: str, text: str) -> None:
        mine = object()
        if self._once.setdefault(key, mine) is mine:  # of several workers at the same time one says it
            self._write(logging.WARNING, key, text, None, _IGNORED)

    def _fields(self, event: str, text: str) -> dict[str, object]:
        """What a program that reads the log wants to know apart from the text."""
        return {"event": event, "queue": self._queue, "message_id": message_id_in(text.partition("\n")[0])}

    def _write(self, level: int, key: str, text: str, exc: BaseException | None, event: str) -> None:
        if self.send is None:
            log_safely(
                log, level, "%s", text, exc_info=exc, trace_from=without_callers, extra=self._fields(event, text)
            )
            return
        try:
            self.send(level, key, cut(text), None if exc is None else failure_told(exc))
        except BaseException:
            # Whatever the exception's own text raises, or a parent that is gone: the message's outcome is told elsewhere.
            log_safely(
                log, level, "%s", text, exc_info=exc, trace_from=without_callers, extra=self._fields(event, text)
            )


def message_id_in(text: str) -> str | None:
    """The id of the message, of a batch of the first, that `message_name` has put into a text."""
    named = _MESSAGE.search(text)
    return None if named is None else named[1]


def _kept(kind: str, *, again: bool) -> str:
    """Under which limit a line stands: what is tried again must not keep quiet that a message failed for good."""
    return f"{_AGAIN}{kind}" if again else kind


def _then(*, again: bool) -> str:
    return "it is tried again" if again else "the message goes to the sideline"


def _more(count: int) -> str:
    return f" ({count - 1:,} more like it were not logged)" if count > 1 else ""


def failure_told(exc: BaseException) -> FailureTold:
    """What can be told of an exception; its own text may raise."""
    kind = error_type(exc)
    try:
        trace = "".join(traceback.format_exception(type(exc), exc, without_callers(exc.__traceback__))).rstrip()
        return cut(kind, 200), cut(str(exc), _MOST_ERROR_BYTES), cut(trace)
    except BaseException as odd:  # KeyboardInterrupt too: it is the user's code that is called here
        return cut(kind, 200), f"<text raises {type_name(odd)}>", cut(kind, 200)


def failure_fields(failure: FailureTold | None) -> dict[str, str]:
    """Attributes of a record from which every form of log shows it."""
    if failure is None:
        return {}
    kind, text, trace = failure
    return {"exc_text": trace} | ({"error_type": kind, "error": text} if kind else {})


def cut(text: str, most_bytes: int = _MOST_TEXT_BYTES) -> str:
    """Both ends of a long text: the beginning says what it is, the end where it happened."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > most_bytes:
        half = most_bytes // 2
        data = data[:half] + b"\n...\n" + data[-half:]
    return data.decode("utf-8", "ignore")
