"""The log of a worker process: its lines go to the parent, whose configuration decides where they end and in which form.

They travel in the channel of the outcomes, in their order: what a killed process had logged is there, whole lines only, and a
parent that is slow to write slows the handler down, as it would in a thread, instead of filling memory. Levels are the parent's
at the start of the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from ignis.consumer.handler_log import cut, failure_fields, failure_told
from ignis.errors import IgnisError
from ignis.escaping import PlainFormatter, print_trace
from ignis.hooks import log_safely
from ignis.log_format import JsonFormatter, event_of, event_text, extra_of
from ignis.process_hooks import FORKS

__all__ = ["ForwardedLog", "LogLevels", "log_levels", "packed", "relog"]

log = logging.getLogger("ignis.workers")

_MOST_EXTRA_BYTES = 4_000
_MOST_NAME_CHARS = 200
_KEPT = ("levelno", "created", "process", "lineno", "funcName", "threadName")
_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


class LogLevels(msgspec.Struct):
    """What of the parent's configuration decides what is logged at all."""

    levels: dict[str, int]
    """Of the loggers that have one of their own; "" is the root."""
    disabled_up_to: int
    warnings: bool
    """Whether `warnings` are lines of the log."""
    json: bool
    """Whether its lines are JSON: for what can no longer be sent."""


def log_levels() -> LogLevels:
    """As they are in this process now."""
    named = {
        name: one.level
        for name, one in list(logging.root.manager.loggerDict.items())
        if isinstance(one, logging.Logger)
    }
    levels = {name: level for name, level in named.items() if level}
    as_json = any(isinstance(one.formatter, JsonFormatter) for one in logging.root.handlers)
    captured = warnings.showwarning is getattr(logging, "_showwarning", None)
    return LogLevels({"": logging.root.level, **levels}, logging.root.manager.disable, captured, as_json)


class ForwardedLog(logging.Handler):
    """Sends every line to the parent.

    Args:
        send: hands what `relog` takes to the parent; may block. What it raises is told on stderr, with the line.
        fields: of the message in hand, for each line that does not say otherwise.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], fields: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._send = send
        self._fields = fields
        self._forks = FORKS[0]
        self._sending = threading.local()

    def install(self, parent: LogLevels) -> None:
        """Before anything of the application is imported."""
        for name, level in parent.levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.disable(parent.disabled_up_to)
        logging.captureWarnings(parent.warnings)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(JsonFormatter() if parent.json else PlainFormatter())
        logging.root.addHandler(self)

    def take_over(self) -> None:
        """After the application's modules were imported: what they configured is the parent's too, and writes there."""
        for one in list(logging.root.manager.loggerDict.values()):
            if isinstance(one, logging.Logger):
                one.handlers, one.propagate = [], True
        logging.root.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        if FORKS[0] != self._forks or getattr(self._sending, "now", False):
            # A child that the handler has forked off is not heard by anybody; nor is what sending itself logs.
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        self._sending.now = True
        try:
            self._send(self._told(record))
        except IgnisError:  # the parent is gone, or this process ends
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        except Exception as exc:
            print_trace(exc)
        finally:
            self._sending.now = False

    def _told(self, record: logging.LogRecord) -> dict[str, Any]:
        try:
            text = record.getMessage()
        except Exception:  # the arguments do not fit the text
            text = f"{record.msg} {record.args!r}"
        told: dict[str, Any] = {name: getattr(record, name, None) for name in _KEPT}
        told |= {
            "name": record.name[:_MOST_NAME_CHARS],
            "text": cut(text),
            "event": event_of(record)[:_MOST_NAME_CHARS],
        }
        exc = record.exc_info[1] if record.exc_info else None
        if exc is not None:
            told["failure"] = failure_told(exc)
        elif record.exc_text:
            told["failure"] = ("", "", cut(record.exc_text))
        told["extra"] = _bounded(self._fields() | extra_of(record))
        return told


def _bounded(extra: dict[str, Any]) -> dict[str, Any]:
    """What can be sent, and is not too long."""
    with contextlib.suppress(Exception):  # it holds itself, or what is no character
        if len(_encode(extra)) <= _MOST_EXTRA_BYTES:
            return extra
    return {cut(str(name), 50): cut(_text(value), 100) for name, value in list(extra.items())[:20]}


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as exc:
        return f"<{type(value).__name__} whose text raises {type(exc).__name__}>"


def packed(told: dict[str, Any]) -> bytes:
    """What `relog` takes, to be sent."""
    return _encode(told)


def relog(told: dict[str, Any]) -> None:
    """In the parent: logs what the process sent, as the loggers here say. Never raises."""
    try:
        logger = logging.getLogger(told["name"])
        level = told["levelno"]
        if not logger.isEnabledFor(level):
            return
        own = {name: told[name] for name in _KEPT}
        own |= {"name": told["name"], "levelname": logging.getLevelName(level), "msg": told["text"], "args": ()}
        record = logging.makeLogRecord(
            {"event": told["event"], **told["extra"], **failure_fields(told.get("failure")), **own}
        )
        record.msecs = (record.created - int(record.created)) * 1000
        logger.handle(record)
    except Exception as exc:
        log_safely(
            log,
            logging.ERROR,
            event_text("line_not_logged", "a line of a worker process could not be logged"),
            exc_info=exc,
        )
