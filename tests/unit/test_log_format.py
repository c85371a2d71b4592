"""Logs as JSON: one object on each line, whatever is in it, with an event that is the same for each line of one kind."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.consumer.handler_log import HandlerLog
from ignis.log_format import JsonFormatter
from ignis.message import REASON_EXCEPTION, REASON_UNREADABLE
from tests.support import WAIT_S, eventually


class Lines(logging.Handler):
    """What a stream would get."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def found(self, event: str) -> list[dict[str, Any]]:
        return [one for one in map(json.loads, list(self.lines)) if one["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("ignis")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def line_of(text: object, *args: object, **extra: Any) -> dict[str, Any]:
    logger = logging.getLogger("ignis.some")
    record = logger.makeRecord(logger.name, logging.WARNING, __file__, 1, text, args, None, extra=extra)  # type: ignore[arg-type]
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_line() -> None:
    line = line_of("claim on %s failed, trying again: %.3g s", "jobs", 0.25, queue="jobs", message_id=None)
    assert line.pop("time").endswith("+00:00")
    assert isinstance(line.pop("pid"), int)
    assert line == {
        "level": "warning", "logger": "ignis.some", "event": "claim_on_failed_trying_again_s", "queue": "jobs",
        "message": "claim on jobs failed, trying again: 0.25 s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("%s", "ignis_some"),
        ("", "ignis_some"),
        ("100%% of %(name)s", "100_of"),
        ("process %d (%s) %s: killed", "process_killed"),
        ("word " * 30, "_".join(["word"] * 12)),
        ("x" * 100, "x" * 60),
    ],
)
def test_the_event_is_that_of_the_text_before_its_arguments(text: str, event: str) -> None:
    record = logging.makeLogRecord({"name": "ignis.some", "msg": text})
    assert json.loads(JsonFormatter().format(record))["event"] == event


def test_an_event_that_is_given() -> None:
    assert line_of("%s", "text", event="handler_raised")["event"] == "handler_raised"


@pytest.mark.parametrize("text", ["\n2026 ERROR forged", "\x1b[2J", "\u202e", "\udc80", "\x85\u2028"])
def test_nobody_can_forge_a_line_or_steer_a_terminal(text: str) -> None:
    assert line_of("%s", text)["message"] == text


def test_what_fits_nothing_is_a_line_all_the_same() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    holds_itself: list[Any] = []
    holds_itself.append(holds_itself)
    assert line_of("%d and %d", "one")["message"] == "%d and %d ('one',)"
    assert line_of("text", thing=Odd())["thing"] == "<Odd whose text raises ValueError>"
    assert line_of("text", thing=holds_itself)["message"] == "text"
    assert line_of("text", thing={(1, 2): 3})["thing"] == "{(1, 2): 3}"
    assert line_of("text", thing=Path("/x"))["thing"] == "/x"


def test_an_exception() -> None:
    try:
        raise OSError("no\nroom")
    except OSError as exc:
        record = logging.makeLogRecord(
            {"name": "ignis", "msg": "failed", "exc_info": (OSError, exc, exc.__traceback__)}
        )
    line = JsonFormatter().format(record)
    found = json.loads(line)
    assert "\n" not in line
    assert (found["error_type"], found["error"]) == ("OSError", "no\nroom")
    assert 'raise OSError("no' in found["trace"]


def test_a_failing_handler_names_queue_and_message(memory_app: ignis.Ignis, lines: Lines) -> None:
    queue = memory_app.queue("jobs", str)
    queue.handler(handle_odd)
    published = queue.publish("raise")
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 1, timeout=WAIT_S)
    [line] = eventually(lambda: lines.found("handler_raised"))
    assert (line["queue"], line["message_id"], line["level"]) == ("jobs", str(published.id), "error")
    assert str(uuid.UUID(line["message_id"])) == line["message_id"]
    queue.publish("ignored")
    [line] = eventually(lambda: lines.found("answer_ignored"))
    assert line["queue"] == "jobs"


def test_what_a_worker_process_sends_names_them_too(lines: Lines) -> None:
    log = HandlerLog("jobs", "fn")
    id = str(uuid.uuid4())
    log.forwarded(
        logging.ERROR, "ValueError", f"handler fn of queue jobs raised ValueError on message {id}; it\nTraceback"
    )
    log.forwarded(logging.WARNING, REASON_UNREADABLE, f"a batch of 3 from message {id} on goes to the sideline")
    log.forwarded(
        logging.WARNING, f"again {REASON_EXCEPTION}", f"handler fn of queue jobs: message {id} failed, exception: no"
    )
    for event, count in (("handler_raised", 1), ("message_failed", 2)):
        line, *others = lines.found(event)
        assert len(others) == count - 1
        assert (line["queue"], line["message_id"]) == ("jobs", id)


def test_the_exception_of_a_worker_process_is_in_fields_of_its_own(lines: Lines) -> None:
    sent: list[Any] = []
    there = HandlerLog("jobs", "fn")
    there.send = lambda *told: sent.append(told)
    id = str(uuid.uuid4())
    there.raised(ValueError("why\nnot"), f"message {id}", again=False)
    HandlerLog("jobs", "fn").forwarded(*sent[0])
    [line] = lines.found("handler_raised")
    assert "Traceback" not in line["message"]
    assert (line["error_type"], line["error"], line["message_id"]) == ("ValueError", "why\nnot", id)
    assert line["trace"].endswith("ValueError: why\nnot")


def handle_odd(body: str) -> Any:
    if body == "raise":
        raise ValueError(body)
    return body


def test_the_option_of_the_command_line(tmp_path: Path) -> None:
    """Also of the worker processes of a supervisor, and of what nobody catches."""
    (tmp_path / "jobs.py").write_text(
        "import threading, ignis\napp = ignis.Ignis()\n"
        "@app.queue('q', str).handler\ndef handle(body): raise ValueError(body)\n"
        "def fail(): raise RuntimeError('of a thread')\n"
        "thread = threading.Thread(target=fail)\nthread.start(); thread.join()\n"
    )
    url = f"embedded://{tmp_path}/store"
    with ignis.Ignis(url) as app:
        app.queue("q", str).publish("one")
    for arguments in (["--processes", "1", "--burst"], ["--burst"]):
        done = subprocess.run(
            [sys.executable, "-m", "ignis", "worker", "jobs", "--url", url, "--log-format", "json", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
        )  # fmt: skip
        found = [json.loads(line) for line in done.stderr.splitlines() if not line.startswith("ignis worker")]
        assert {"time", "level", "logger", "event", "message", "pid"} <= set.intersection(*map(set, found))
        uncaught = [one for one in found if one["event"] == "exception_in_thread"]
        assert uncaught, done.stderr
        assert (uncaught[0]["error_type"], uncaught[0]["error"]) == ("RuntimeError", "of a thread")
        if "--processes" in arguments:
            [raised] = [one for one in found if one["event"] == "handler_raised"]
            assert (raised["queue"], raised["error"]) == ("q", "one")
