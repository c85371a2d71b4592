"""What a handler logs in a worker process goes through the parent's logging: its levels, its handlers, its form."""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis.log_format import JsonFormatter
from tests.apps import logging_jobs
from tests.support import WAIT_S, Journal, eventually, sidelined, wait_idle


class Records(logging.Handler):
    """What the parent's configuration gets, as records and as lines of JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [one for one in map(json.loads, list(self.lines)) if one["logger"] == name]


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    before = logging.root.level
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.INFO)
    yield handler
    logging.root.setLevel(before)
    logging.root.removeHandler(handler)


@pytest.fixture
def queue(memory_app: ignis.Ignis, journal: Journal, records: Records) -> ignis.Queue[Any]:
    queue: ignis.Queue[Any] = memory_app.queue("logged", dict)
    queue.handler(logging_jobs.handle, pool="process")
    return queue


NAME = "apps.logging_jobs"


def test_a_line_has_the_message_s_fields_and_its_own(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records, capfd: pytest.CaptureFixture[str]
) -> None:
    id = queue.publish({"n": 7, "do": "lines", "count": 3}).id
    memory_app.start()
    wait_idle(queue)
    found = records.of(NAME)
    assert [one["message"] for one in found] == ["line 0 of 7", "line 1 of 7", "line 2 of 7"]
    assert [one["number"] for one in found] == [0, 1, 2]
    for one in found:
        assert (one["queue"], one["message_id"], one["attempt"], one["level"]) == ("logged", id, 1, "info")
        assert one["event"] == "line_of"
        assert one["pid"] != os.getpid()
    assert "line 0" not in capfd.readouterr().err.replace("\n{", ""), "the process itself writes nothing"


def test_the_stacks_of_a_process_are_one_record(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.publish({"n": 1, "do": "lines", "count": 1})
    memory_app.start()
    wait_idle(queue)
    assert queue.consumer is not None
    [pid] = queue.consumer.worker_pids

    def found() -> list[dict[str, Any]]:
        return [one for one in records.of("ignis.workers") if one["event"] == "stacks"]

    for number in (1, 2):
        os.kill(pid, signal.SIGUSR1)
        eventually(lambda number=number: len(found()) == number)  # type: ignore[misc]
    for one in found():
        first, *rest = one["message"].splitlines()
        assert (first, one["pid"]) == (f"stacks of process {pid}:", os.getpid())
        assert all(line.startswith("  ") for line in rest)
        assert one["message"].count("Current thread") == 1
    assert "most recent call first" not in capfd.readouterr().err.replace("\n{", ""), (
        "the process itself writes nothing"
    )


def test_an_exception_keeps_its_fields(memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records) -> None:
    queue.publish({"n": 1, "do": "exception"})
    memory_app.start()
    wait_idle(queue)
    [one] = records.of(NAME)
    assert (one["message"], one["error_type"], one["error"]) == ("could not charge", "KeyError", "'why'")
    assert one["trace"].startswith("Traceback (most recent call last)")
    [record] = [one for one in records.records if one.name == NAME]
    assert 'raise KeyError("why")' in logging.Formatter().format(record)


def test_whatever_is_logged_is_a_line(memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records) -> None:
    queue.publish({"n": 1, "do": "odd"})
    memory_app.start()
    wait_idle(queue)
    texts = [one["message"] for one in records.of(NAME)]
    assert texts[0].startswith("%d and %d")
    assert texts[1] == "odd extra"
    assert texts[2].startswith("long yyy")
    assert "\n...\n" in texts[2]
    assert texts[3] == "caf\\udce9"
    assert len(texts) == 4
    assert sidelined(queue) == []


def test_warnings_and_uncaught_exceptions_of_threads_are_lines(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records
) -> None:
    logging.captureWarnings(True)
    try:
        queue.publish_many([{"n": 1, "do": "warn"}, {"n": 2, "do": "thread"}])
        memory_app.start()
        wait_idle(queue)
    finally:
        logging.captureWarnings(False)
    assert any("old ways" in one["message"] for one in records.of("py.warnings"))
    [one] = records.of("ignis.uncaught")
    assert (one["error_type"], one["error"], one["queue"]) == ("RuntimeError", "of a thread", "logged")
    assert warnings.showwarning is not None


def test_what_a_killed_process_had_logged_is_there_and_whole(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records, journal: Journal
) -> None:
    queue.publish({"n": 1, "do": "die"})
    memory_app.start()
    eventually(lambda: len(sidelined(queue)) == 1)
    assert [one["message"] for one in records.of(NAME)] == ["last words"]
    queue.publish({"n": 2, "do": "flood until killed"})
    eventually(lambda: "flooding" in journal.lines() and len(records.of(NAME)) > 5)
    assert queue.consumer is not None
    for pid in queue.consumer.worker_pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(sidelined(queue)) == 2)
    queue.publish({"n": 3, "do": "lines", "count": 1})
    eventually(lambda: any(one["message"] == "line 0 of 3" for one in records.of(NAME)))
    floods = [one["message"] for one in records.of(NAME) if one["message"].startswith("flood")]
    assert set(floods) == {"flood " + "w" * 3_000}


def test_a_child_that_the_handler_forks_disturbs_nothing(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.publish({"n": 1, "do": "fork"})
    memory_app.start()
    wait_idle(queue)
    assert [one["message"] for one in records.of(NAME)] == ["of the parent"]
    assert "of a child" in capfd.readouterr().err


def test_many_lines_arrive_in_order_and_none_is_lost(
    memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records
) -> None:
    queue.publish({"n": 1, "do": "lines", "count": 5_000, "padding": 200})
    memory_app.start()
    wait_idle(queue, 2 * WAIT_S)
    assert [one["number"] for one in records.of(NAME)] == list(range(5_000))


def test_levels_are_the_parents(memory_app: ignis.Ignis, queue: ignis.Queue[Any], records: Records) -> None:
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.WARNING)
    try:
        queue.publish_many([{"n": 1, "do": "lines", "count": 2}, {"n": 2, "do": "exception"}])
        memory_app.start()
        wait_idle(queue)
    finally:
        logger.setLevel(logging.NOTSET)
    assert [one["message"] for one in records.of(NAME)] == ["could not charge"]
