"""What is the same trouble all the time is not said all the time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.errors import StoreFullError
from ignis.log_limit import LimitedLog
from ignis.message import failed_record
from ignis.native import encode_record
from tests.support import eventually

MakeApp = Callable[..., ignis.Ignis]
log = logging.getLogger("ignis.test")


def test_a_line_is_said_at_once_and_then_with_those_that_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    said = LimitedLog(log, 10.0, lambda: now[0])
    for number in range(5):
        said.warning("claim on %s failed: %s", "jobs", number, about="jobs")
        said.warning("claim on %s failed: %s", "mails", number, about="mails")
        said.error("lost: %s", number, exc_info=ValueError("why"))
    now[0] = 110.0
    said.warning("claim on %s failed: %s", "jobs", 5, about="jobs")
    assert [record.getMessage() for record in caplog.records] == [
        "claim on jobs failed: 0",
        "claim on mails failed: 0",
        "lost: 0",
        "claim on jobs failed: 5 (4 more like this were not logged)",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR", "WARNING"]
    assert caplog.records[2].exc_info is not None


def _refuse(*args: Any, **named: Any) -> Any:
    raise StoreFullError("store: disk full (sync)")


@pytest.mark.parametrize("call", ["delete", "transfer", "fire"])
def test_a_store_that_refuses_for_long_is_told_of_once(
    caplog: pytest.LogCaptureFixture, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Hundreds of times a minute it buried everything else, and filled the disk that is full."""
    app = new_app("memory://", consumer={"ack_retry": 0.01, "idle_poll": 0.01})
    queue = app.queue("jobs", bytes)
    tries: list[int] = []
    with monkeypatch.context() as refusing:

        def refuse(*args: Any, **named: Any) -> Any:
            tries.append(1)
            return _refuse()

        refusing.setattr(queue.main.store, call, refuse)

        @queue.handler
        def handle(message: bytes) -> bool:
            return call != "transfer"

        queue.publish(b"x")
        app.start()
        eventually(lambda: len(tries) > 20)
    eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
    assert app.stop() is True
    lines = [record.getMessage() for record in caplog.records if "trying again" in record.getMessage()]
    assert len(lines) == 1, lines


def test_a_shovel_that_is_refused_says_so_once(
    caplog: pytest.LogCaptureFixture, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app("memory://")
    queue = app.queue("jobs", bytes, shards=4, shovel_interval=0)
    for shard in range(4):
        queue.sideline.store.load_records(queue.sideline.name, shard, [failed_record(encode_record(b"x"), "exception")])
    monkeypatch.setattr(queue.main.store, "transfer", _refuse)
    for _ in range(3):
        assert queue.shovel.run_once().refused == 4
    lines = [record.getMessage() for record in caplog.records if "stay in the sideline" in record.getMessage()]
    assert len(lines) == 1, lines
