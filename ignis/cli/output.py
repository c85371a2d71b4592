"""Output: tables for people, aligned plain lines for pipes, JSON for programs.

Results go to stdout. Errors, progress and remarks go to stderr, so that a pipe carries results alone. What draws for a terminal
is imported when there is one.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ignis.errors import IgnisError
from ignis.escaping import plain
from ignis.log_format import JsonFormatter, event_text
from ignis.urls import masked

__all__ = [
    "TEXT_AS_JSON",
    "age",
    "as_lines_of_json",
    "describe",
    "document",
    "error",
    "event",
    "label",
    "line",
    "moment",
    "number",
    "on_terminal",
    "pairs",
    "plain",
    "preview",
    "rate",
    "remark",
    "setting",
    "size",
    "table",
    "to_json",
    "warning",
]

log = logging.getLogger("ignis.cli")

_lines_of_json = [False]
_EVENT_S = 2.0
_EVENT_BYTES = 512
"""What a pipe that can be written to takes without waiting."""
_encode = msgspec.json.Encoder().encode
_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3600.0, 86_400.0
NONE = "-"
TEXT_AS_JSON = "text stands in quotes of its own, '\"hello\"'"
"""For who gave plain text where JSON is read."""
_ZERO = {"message_expiry_s": "never", "shovel_interval_s": "only by hand"}
"""Settings whose 0 is no span of time."""
_LABELS = {"queue_expiry_s": "inactive (not deleted) when unused for"}
_STATES = {
    "inactive": "inactive: nothing is deleted",
    "expired": "expired: inactive until a message comes, nothing is deleted",
}
"""What a word alone does not say to who reads it for the first time."""


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def document(value: object) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(to_json(value) + "\n")


def event(value: object) -> None:
    """`document` for what a service says of itself, sent at once. A standard output that is closed, full, or that nobody
    reads is logged and keeps the service from nothing; it waits at most 2 s."""
    data = (to_json(value) + "\n").encode()
    try:
        sys.stdout.flush()
        try:
            descriptor = sys.stdout.fileno()
        except (OSError, ValueError):  # it is no file
            sys.stdout.write(data.decode())
            return
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        while data:
            if not poller.poll(_EVENT_S * 1_000):
                raise TimeoutError(f"nobody reads it for {_EVENT_S:g} s")
            data = data[os.write(descriptor, data[:_EVENT_BYTES]) :]
    except (OSError, ValueError) as exc:
        log.warning(event_text("output_not_written", "standard output cannot be written, going on without it: %s"), exc)


def to_json(value: object) -> str:
    r"""JSON text on one line; what could steer a terminal stands in it as ``\uXXXX``."""
    text = _encode(value).decode()
    return text if text.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    """A character of a JSON text, which has such ones in strings alone; beyond 16 bits half by half."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def line(text: str, *, style: str = "") -> None:
    """A line of result; ``style`` shows on a terminal only."""
    text = plain(text)
    if style and on_terminal():
        from rich.console import Console
        from rich.markup import escape

        Console(file=sys.stdout).print(escape(text), style=style, highlight=False, soft_wrap=True)
    else:
        sys.stdout.write(text + "\n")


def as_lines_of_json(wanted: bool) -> None:
    """With ``--log-format json``: whatever is written to stderr is one JSON object a line, with its ``event``."""
    _lines_of_json[0] = wanted


def _json_line(level: int, event: str, text: str, **fields: object) -> None:
    made = {"name": log.name, "levelno": level, "levelname": logging.getLevelName(level), "msg": text, "event": event}
    sys.stderr.write(JsonFormatter().format(logging.makeLogRecord(made | fields)) + "\n")


def remark(text: str, *, event: str = "remark", **fields: object) -> None:
    """A line that is no part of the result. ``event`` and ``fields``: of it as JSON."""
    if _lines_of_json[0]:
        _json_line(logging.INFO, event, text, **fields)
        return
    sys.stderr.write(plain(text, keep="\n") + "\n")


def warning(text: str) -> None:
    """A remark that should be seen."""
    text = masked(text)
    if _lines_of_json[0]:
        _json_line(logging.WARNING, "warning", text)
        return
    _on_stderr(f"ignis: {text}", "yellow")


def error(message: str, *, code: str, retryable: bool, exit_code: int, as_json: bool) -> None:
    """The one line that says what went wrong; with ``as_json`` one JSON document, also on stderr. What somebody has typed in the
    place of something else may be a URL."""
    message = masked(message)
    if _lines_of_json[0]:
        fields: dict[str, object] = {"code": code, "retryable": retryable, "exit_code": exit_code}
        if as_json:
            fields["error"] = {"message": message, **fields}
        _json_line(logging.ERROR, "failed", " ".join(message.split()), **fields)
        return
    if as_json:
        body = {"code": code, "message": message, "retryable": retryable, "exit_code": exit_code}
        sys.stderr.write(to_json({"error": body}) + "\n")
        return
    _on_stderr(f"ignis: {' '.join(message.split())}", "bold red")


def _on_stderr(text: str, style: str) -> None:
    text = plain(text)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        Console(file=sys.stderr).print(escape(text), style=style, highlight=False, soft_wrap=True)
    else:
        sys.stderr.write(text + "\n")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    caption: str = "",
) -> None:
    """A table; boxed on a terminal, aligned columns without decoration elsewhere.

    Args:
        columns: the headings.
        rows: cells as text, as many per row as there are columns.
        title: shown on a terminal only.
        right: the columns that hold figures.
        caption: a remark under the table, on a terminal only.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    if on_terminal():
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(
            title=title or None,
            caption=caption or None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            header_style="bold",
        )
        for name in columns:
            drawn.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            drawn.add_row(*(escape(cell) for cell in row))
        Console(file=sys.stdout).print(drawn)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def pairs(values: Mapping[str, Any], *, title: str = "") -> None:
    """A table of names and values."""
    rows = [[label(name), setting(name, value)] for name, value in values.items()]
    table(["what", "value"], rows, title=title, right=["value"])


def label(name: str) -> str:
    """``oldest_age_s`` -> ``oldest age``: `setting` shows the unit."""
    if name in _LABELS:
        return _LABELS[name]
    for unit in ("_at_ms", "_s"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def setting(name: str, value: object) -> str:
    """A value in the form that its name asks for."""
    if value == 0 and name in _ZERO:
        return _ZERO[name]
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "state":
        return _STATES.get(str(value), str(value))
    if not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_at_ms"):
        return moment(value)
    if name.endswith("_s"):
        return age(value)
    return size(value) if "bytes" in name else number(value)


def moment(at_ms: float) -> str:
    """A point in time, given in milliseconds since 1970, in UTC; as a number where it is in no year from 1 to 9999."""
    try:
        return dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def number(value: float | None) -> str:
    """1234567 -> ``1,234,567``; None -> ``-``; fractions with two decimals."""
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def rate(count: int, seconds: float) -> str:
    """``12,345/s``."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else NONE


def age(seconds: float | None) -> str:
    """A span of time in its two largest units: ``850 ms``, ``12.3 s``, ``4 min 5 s``, ``3 h 2 min``, ``5 d 1 h``."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < _SECOND:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    units = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", _SECOND, "s"))
    for unit, name, below, small in units:
        if seconds >= unit:
            rest = int(seconds % unit // below)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {small}" if rest else "")
    raise AssertionError(seconds)


def size(count: float) -> str:
    """Bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def preview(text: str, width: int = 60) -> str:
    """Text on one line, cut to ``width``; control characters, which could steer a terminal, are shown escaped."""
    shown = plain(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def describe(exc: BaseException) -> tuple[str, str, bool]:
    """(message, code, retryable) of an exception, for `error`."""
    if isinstance(exc, IgnisError):
        return str(exc) or type(exc).__name__, exc.code, exc.retryable
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__, "error", False
