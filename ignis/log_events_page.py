"""The page of all log events, ``docs/log-events.md``, from the log calls of the package: ``python -m ignis.log_events_page``.

The sources are read, not run. A call whose text names no event is an error of ours, which `unnamed` finds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["LogCall", "log_calls", "reference", "unnamed"]

_PACKAGE = Path(__file__).parent
_METHODS = {
    "debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error", "critical": "critical",
    "log": "",
}  # fmt: skip
_LOGGER = re.compile(r"(?:^|[._])(?:log|logger|said|said_rarely)$")
_FUNCTIONS = {"log_safely": 2, "call_user_code": 1, "say_broken": 0, "_say_displaced": 0}
"""Where their text stands among their arguments."""
_FORWARDERS = frozenset(("hooks.py", "log_limit.py", "broker/repeated_log.py"))
"""They log the texts of others."""
_BY_FIELDS = {"handler_raised": "error, warning", "message_failed": "error, warning", "answer_ignored": "warning"}
"""Named by `ignis.consumer.handler_log`, where the text is put together."""
_ELSEWHERE = ("console",)


class LogCall(NamedTuple):
    """One call that logs.

    Attributes:
        file: below the package.
        line: of the call.
        event: that it names; empty = none.
        level: in the words of logging; empty = not known.
        text: before its arguments are put in; empty where it is not a constant.
    """

    file: str
    line: int
    event: str
    level: str
    text: str


def log_calls() -> Iterator[LogCall]:
    """Every log call of the package, but for those of the console."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        file = path.relative_to(_PACKAGE).as_posix()
        if not file.startswith(_ELSEWHERE):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and (found := _log_call(file, node)) is not None:
                    yield found


def unnamed() -> list[LogCall]:
    """Calls that name no event, or none that is a short name."""
    return [one for one in log_calls() if not re.fullmatch(r"[a-z][a-z_]{2,39}", one.event)]


def reference() -> str:
    """The page of every event, as Markdown: ``docs/log-events.md`` is this text."""
    by_event: dict[str, list[LogCall]] = {}
    for one in log_calls():
        by_event.setdefault(one.event, []).append(one)
    for event, level in _BY_FIELDS.items():
        by_event.setdefault(event, []).append(LogCall("", 0, event, level, "see [Logs](operations.md#logs)"))
    lines = [
        "# Log events",
        "",
        "Generated from the log calls of the package (`python -m ignis.log_events_page`).",
        "With `--log-format json` each line has its `event`: alert on it, since the words of a text may change and the event",
        "does not. `%s` and the like stand for what is put in. Lines of the console are not listed yet. Others' lines, such as",
        "those of a handler, have an event that is made from their text.",
        "",
        "| event | level | text |",
        "| --- | --- | --- |",
    ]
    for event, calls in sorted(by_event.items()):
        levels = ", ".join(sorted({one.level for one in calls if one.level}))
        texts = " / ".join(dict.fromkeys(one.text.replace("|", "\\|").replace("\n", " ") for one in calls if one.text))
        lines.append(f"| `{event}` | {levels} | {texts} |")
    return "\n".join(lines) + "\n"


def _log_call(file: str, node: ast.Call) -> LogCall | None:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in _FUNCTIONS:
        position, level = _FUNCTIONS[name], {"log_safely": _level(node), "call_user_code": "error"}.get(name, "info")
    elif isinstance(called, ast.Attribute) and name in _METHODS and _LOGGER.search(ast.unparse(called.value)):
        position, level = int(name == "log"), _METHODS[name]
    else:
        return None
    text = node.args[position] if len(node.args) > position else None
    if text is None or (file in _FORWARDERS and not _names_event(text)):
        return None
    if _names_event(text):
        assert isinstance(text, ast.Call)
        event, shown = ast.literal_eval(text.args[0]), text.args[1]
    else:
        event, shown = _extra_event(node), text
    if event is None:
        return None
    return LogCall(file, node.lineno, event, level, _constant(shown))


def _names_event(text: ast.expr) -> bool:
    return (
        isinstance(text, ast.Call)
        and isinstance(text.func, ast.Name)
        and text.func.id == "event_text"
        and isinstance(text.args[0], ast.Constant)
    )


def _extra_event(node: ast.Call) -> str | None:
    """Of ``extra={"event": ...}``; None where a function of `ignis.consumer.handler_log` gives the fields."""
    for keyword in node.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event" and isinstance(value, ast.Constant):
                    return str(value.value)
        elif keyword.arg == "extra" and ast.unparse(keyword.value).startswith("self._fields("):
            return None
    return ""


def _level(node: ast.Call) -> str:
    given = node.args[1] if len(node.args) > 1 else None
    return given.attr.lower() if isinstance(given, ast.Attribute) and given.attr.isupper() else ""


def _constant(text: ast.expr) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "%s" for one in text.values)
    return ""


if __name__ == "__main__":
    print(reference(), end="")
