"""Logs as lines of JSON, for programs that gather them: ``--log-format json``.

A line has ``time``, ``level``, ``logger``, ``event``, ``message`` and ``pid``; where they are known ``queue`` and ``message_id``;
of an exception ``error``, ``error_type`` and ``trace``. What a handler's own log call gives as ``extra`` is there too.

The event is the same for each line of one kind, whatever its words. Every call of ignis names it, by `event_text` or as
``extra={"event": ...}``; docs/log-events.md has all of them. Of others' lines it is made from the text before its arguments
are put in: ``"claim on %s failed, trying again: %s"`` is ``claim_on_failed_trying_again``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

__all__ = [
    "JsonFormatter",
    "JsonHandler",
    "add_fields",
    "error_type",
    "event_of",
    "event_text",
    "extra_of",
    "json_trace",
    "log_uncaught",
]

log = logging.getLogger("ignis.uncaught")

_PLACE = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[a-zA-Z%]")
_BETWEEN = re.compile(r"[^a-z0-9]+")
_MOST_EVENT = 60
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event", "color_message"}
"""What every record has; the rest was given as ``extra``. ``color_message`` is uvicorn's, for terminals."""


class EventText(str):
    """A text to be logged that names its event. Made by `event_text`."""

    __slots__ = ("event",)

    event: str

    def __add__(self, more: str) -> EventText:
        return event_text(self.event, super().__add__(more))


def event_text(event: str, text: str) -> EventText:
    """The text of a log call, with the name by which programs know lines of its kind."""
    made = EventText(text)
    made.event = event
    return made


_more_fields: list[Callable[[logging.LogRecord], Mapping[str, object]]] = []


def event_of(record: logging.LogRecord) -> str:
    """The name of what happened."""
    given = getattr(record, "event", None) or getattr(record.msg, "event", None)
    if isinstance(given, str) and given:
        return given
    words = _BETWEEN.sub("_", _PLACE.sub(" ", str(record.msg)).lower()).strip("_")
    if len(words) > _MOST_EVENT:
        words = words[: _MOST_EVENT + 1].rpartition("_")[0] or words[:_MOST_EVENT]
    return words or _BETWEEN.sub("_", record.name.lower()).strip("_")


def error_type(exc: BaseException) -> str:
    """The exception's class with its module, without that for Python's own."""
    try:
        return f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    except Exception:  # a class of a metaclass that does not say
        return "Exception"


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as ``extra``, and what `add_fields` adds."""
    found = {name: value for name, value in vars(record).items() if name not in _OWN and value is not None}
    for fields in _more_fields:
        found.update(fields(record))
    return found


def add_fields(fields: Callable[[logging.LogRecord], Mapping[str, object]]) -> None:
    """Lines have what ``fields(record)`` gives too, such as the ids of a trace. Once for each function."""
    if fields not in _more_fields:
        _more_fields.append(fields)


class JsonFormatter(logging.Formatter):
    """One line of ASCII for each record: what others have chosen can neither begin a line nor steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event_of(record),
            "message": _message(record),
            "pid": record.process,
        }
        for name, value in extra_of(record).items():
            line.setdefault(name, value)
        if record.exc_info and record.exc_info[1] is not None:
            exc = record.exc_info[1]
            line["error_type"] = error_type(exc)
            line["error"] = _text(exc)
            line["trace"] = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        elif record.exc_text:
            line["trace"] = record.exc_text  # of another process, or of a handler before this one
        try:
            return json.dumps(line, default=_text)
        except (TypeError, ValueError):  # keys that are no text, or what holds itself
            return json.dumps(
                {name: value if isinstance(value, (str, int)) else _text(value) for name, value in line.items()}
            )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit the text
        return f"{record.msg} {_text(record.args)}"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as exc:
        return f"<{type(value).__name__} whose text raises {type(exc).__name__}>"


class JsonHandler(logging.StreamHandler[Any]):
    """Writes `JsonFormatter`'s lines to stderr, and what goes wrong with it as such a line."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is the base's
        exc = sys.exc_info()[1]
        with contextlib.suppress(Exception):
            self.stream.write(json_trace(exc, "a line could not be logged") + "\n")


def json_trace(exc: BaseException | None, text: str) -> str:
    """The line of something that goes beside any log, such as an exception that nobody catches."""
    made = {"name": log.name, "levelno": logging.CRITICAL, "levelname": "CRITICAL", "msg": text or "uncaught exception"}
    if exc is not None:
        made["exc_info"] = (type(exc), exc, exc.__traceback__)
    else:
        made |= {"levelno": logging.WARNING, "levelname": "WARNING"}
    return JsonFormatter().format(logging.makeLogRecord(made))


def log_uncaught() -> None:
    """Exceptions that nobody catches, in threads and while objects end, are lines of the log. For processes that are ours."""

    def of_thread(args: Any) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "?"
            log.critical(event_text("exception_in_thread", "exception in thread %s"), name, exc_info=args.exc_value)

    def unraisable(args: Any) -> None:
        if args.exc_value is not None:
            log.critical(
                event_text("unraisable_exception", "exception that could not be raised"), exc_info=args.exc_value
            )

    threading.excepthook = of_thread
    sys.unraisablehook = unraisable
    sys.excepthook = lambda kind, exc, trace: log.critical(
        event_text("uncaught_exception", "uncaught exception"), exc_info=exc
    )
