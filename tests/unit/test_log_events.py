"""Each log call of the package names its event, and ``docs/log-events.md`` has all of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from ignis.hooks import call_user_code, log_safely
from ignis.log_events_page import log_calls, reference, unnamed
from ignis.log_format import JsonFormatter, event_text
from ignis.log_limit import LimitedLog
from tests.support.parsing import despite_threads

PAGE = Path(__file__).parents[2] / "docs" / "log-events.md"


def test_each_call_names_its_event() -> None:
    """Else programs know the line by its words, and an alert ends with the next rewording."""
    assert despite_threads(unnamed) == []
    assert len(despite_threads(lambda: list(log_calls()))) > 200


def test_the_page_is_current() -> None:
    if not PAGE.is_file():
        pytest.skip("no repository around the tests")
    assert PAGE.read_text("utf-8") == despite_threads(reference), (
        "run: python -m ignis.log_events_page > docs/log-events.md"
    )


def test_whoever_passes_a_text_on_keeps_its_event(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("ignis.some")
    now_s = [0.0]
    limited = LimitedLog(log, 10.0, lambda: now_s[0])
    for _ in range(3):
        limited.warning(event_text("of_a_limit", "again: %d"), 1)
    now_s[0] = 11.0
    limited.warning(event_text("of_a_limit", "again: %d"), 1)
    log_safely(log, logging.WARNING, event_text("not_utf8", "%s"), "\udcff")

    def fail() -> None:
        raise ValueError

    call_user_code(log, event_text("of_a_user", "it failed"), fail)
    call_user_code(log, "it failed", fail)
    lines = [json.loads(JsonFormatter().format(one)) for one in caplog.records]
    assert [one["event"] for one in lines] == ["of_a_limit", "of_a_limit", "not_utf8", "of_a_user", "user_code_failed"]
    assert lines[1]["message"] == "again: 1 (2 more like this were not logged)"
