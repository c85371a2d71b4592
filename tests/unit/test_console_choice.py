"""What is listed of a sideline is what is brought back and dropped. What waits for its time, and what a worker is at."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")

import msgspec

from ignis import Ignis, Queue, Retry
from ignis.console import Console
from ignis.console.choice import SidelineWhere, Wanted
from ignis.message_filter import Filter
from ignis.shovel_schedule import SHOVELLED
from ignis.testing import make_message
from tests.support import eventually
from tests.support.console import ORIGIN, Someone, a_console, fail

ASKED: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"reason": "timeout"}, {"reasons": ["timeout"]}),
    ({"key": "k1"}, {"key": "k1"}),
    ({"error": "no answer"}, {"error": "no answer"}),
    ({"header": "tenant=blue"}, {"headers": {"tenant": "blue"}}),
    ({"header": "try=2"}, {"headers": {"try": "2"}}),
    ({"header": 'of={"a":1}'}, {"headers": {"of": '{"a":1}'}}),
    ({"text": "café"}, {"text": "café"}),
    ({"text": '"n":3'}, {"text": '"n":3'}),
    ({"reason": "exception", "header": "tenant=red", "text": "café"},
     {"reasons": ["exception"], "headers": {"tenant": "red"}, "text": "café"}),
    ({"header": "tenant=green"}, {"headers": {"tenant": "green"}}),
    ({"older_than_s": "3600"}, {"older_than_s": 3600}),
]  # fmt: skip
"""As the query of the list has it, and as the body of what is done has it."""


@pytest.fixture
def console(memory_app: Ignis) -> Iterator[Console]:
    with a_console(memory_app, anyone="admin") as made:
        yield made


@pytest.fixture
def admin(console: Console) -> Someone:
    found = Someone(console)
    found.http.headers.update({"origin": ORIGIN, "x-csrf-token": found.post("/session")["csrf"]})
    return found


def fill(app: Ignis) -> set[str]:
    jobs = app.queue("jobs", dict, shards=3)
    told: list[Any] = [
        ({"n": 1, "at": "café"}, {"tenant": "red", "try": 2}, "exception", "ValueError: no", "k1"),
        ({"n": 2}, {"tenant": "blue", "of": {"a": 1}}, "timeout", "no answer in 5 s", "k1"),
        ({"n": 3}, {"tenant": "blue", "try": "2"}, "exception", "OSError: no answer", "k2"),
        ({"n": 4, "at": "café"}, None, "exception", "ValueError: no", None),
    ]
    return set(
        itertools.chain.from_iterable(
            fail(jobs, body, headers=headers, reason=reason, error=error, key=key)
            for body, headers, reason, error, key in told
        )
    )


@pytest.mark.parametrize(("query", "where"), ASKED)
def test_what_is_listed_is_what_is_brought_back_and_dropped(
    memory_app: Ignis, admin: Someone, query: dict[str, str], where: dict[str, Any]
) -> None:
    assert msgspec.convert(query, SidelineWhere, strict=False).filter() == msgspec.convert(where, Wanted).filter()
    every = fill(memory_app)
    jobs = memory_app.queue("jobs", dict, shards=3)
    listed = {one["id"] for one in admin.get(f"/queues/jobs/sideline?{urlencode(query)}")["messages"]}
    assert len(listed) < len(every)
    counted = admin.post("/queues/jobs/sideline/redrive", {"where": where, "rate": 1_000, "dry_run": True})["result"]
    assert counted["would_move"] == len(listed)
    counted = admin.post("/queues/jobs/sideline/drop-all", {"where": where, "dry_run": True})["result"]
    assert counted["would_remove"] == len(listed)
    assert jobs.sideline.pending() == len(every)
    done = admin.post("/queues/jobs/sideline/redrive", {"where": where, "rate": 1_000})["result"]
    assert done["moved"] == len(listed)
    assert {one.envelope.id for one in jobs.main.peek()} == listed
    assert {one.envelope.id for one in jobs.sideline.peek()} == every - listed


@pytest.mark.parametrize(("query", "where"), ASKED)
def test_what_is_listed_is_what_is_dropped(
    memory_app: Ignis, admin: Someone, query: dict[str, str], where: dict[str, Any]
) -> None:
    every = fill(memory_app)
    listed = {one["id"] for one in admin.get(f"/queues/jobs/sideline?{urlencode(query)}")["messages"]}
    done = admin.post("/queues/jobs/sideline/drop-all", {"where": where, "confirm": "jobs"})["result"]
    assert done["removed"] == len(listed)
    left = {one.envelope.id for one in memory_app.queue("jobs", dict, shards=3).sideline.peek()}
    assert left == every - listed


def test_a_rate_holds_for_what_was_searched_for(memory_app: Ignis, admin: Someone) -> None:
    jobs = memory_app.queue("jobs", dict, shards=1)
    fail(jobs, *({"n": number} for number in range(20)), headers={"tenant": "red"})
    fail(jobs, {"n": 20}, headers={"tenant": "blue"})
    began_s = time.monotonic()
    done = admin.post(
        "/queues/jobs/sideline/redrive", {"where": {"headers": {"tenant": "red"}}, "rate": 20, "wait_s": 30}
    )
    assert (done["state"], done["result"]["moved"]) == ("done", 20)
    assert time.monotonic() - began_s > 0.3  # at full speed it takes a few milliseconds
    assert (jobs.main.pending(), jobs.sideline.pending()) == (20, 1)


def test_a_header_needs_a_name_and_a_value(memory_app: Ignis, admin: Someone) -> None:
    memory_app.queue("jobs", dict).open()
    for query in ("header=tenant", "header=%3Dred"):
        found = admin.ask("GET", f"/queues/jobs/sideline?{query}")
        assert (found.status_code, found.json()["error"]["code"]) == (400, "bad_request")
    for where in ({"headers": {"": "x"}}, {"text": ""}, {"headers": {}}):
        found = admin.ask("POST", "/queues/jobs/sideline/redrive", {"where": where})
        assert (found.status_code, found.json()["error"]["code"]) == (400, "bad_request"), where


def test_the_audit_log_has_no_header_and_no_text(memory_app: Ignis, tmp_path: Path) -> None:
    memory_app.queue("jobs", dict).open()
    audit = tmp_path / "audit"
    with a_console(memory_app, anyone="admin", audit=audit) as console:
        someone = Someone(console)
        someone.http.headers.update({"origin": ORIGIN, "x-csrf-token": someone.post("/session")["csrf"]})
        where = {"headers": {"card": "4711"}, "text": "a secret"}
        someone.post("/queues/jobs/sideline/redrive", {"where": where, "dry_run": True})
    text = audit.read_text()
    assert "4711" not in text
    assert "secret" not in text
    (line,) = [one for one in map(json.loads, text.splitlines()) if one["path"].endswith("/redrive")]
    assert line["asked"]["where"] == {"by_header": True, "by_text": True}


def test_a_filter_of_text_never_fails() -> None:
    message = make_message({"n": 1}, headers={"a": "b"})
    assert not Filter(text="\ud800").fits(message)
    assert Filter(text="n", headers=(("a", "b"),)).fits(message)
    assert not Filter(headers=(("a", "b"),)).matches(None)
    assert not Filter(text="n").matches(b"no record")


# -- what waits for its time


def test_a_retry_is_told_from_a_delay(memory_app: Ignis, admin: Someone) -> None:
    jobs = memory_app.queue("jobs", dict, shards=1)

    @jobs.handler(retry=Retry(attempts=5, base="10m", max="1h", jitter=False))
    def handle(message: dict[str, Any]) -> None:
        raise ConnectionError("the bank does not answer")

    memory_app.start()
    failed = jobs.publish({"n": 1}, key="k").id
    later = jobs.publish({"n": 2}, delay="2h").id
    eventually(lambda: admin.get("/queues/jobs/delayed")["total"] == 2, what="the message that failed waits")
    retry, delay = admin.get("/queues/jobs/delayed")["messages"]
    assert (retry["id"], retry["kind"], retry["attempt"], retry["failures"]) == (failed, "retry", 2, 1)
    assert (retry["reason"], retry["error"]) == ("exception", "ConnectionError: the bank does not answer")
    (attempt,) = retry["history"]
    assert attempt["error"] == retry["error"]
    assert attempt["at_ms"] <= retry["failed_at_ms"]
    wait_s = datetime.fromisoformat(retry["due"]).timestamp() - retry["failed_at_ms"] / 1_000
    assert wait_s == pytest.approx(600, abs=5)
    assert (delay["id"], delay["kind"], delay["attempt"], delay["reason"]) == (later, "delay", 1, None)
    assert delay["history"] == []


def test_the_sideline_says_what_the_shovel_brings_back_and_when(memory_app: Ignis, admin: Someone) -> None:
    def comes_back(queue: Queue[Any], **failure: Any) -> tuple[bool, int | None]:
        fail(queue, {"n": 1}, **failure)
        (one,) = admin.get(f"/queues/{queue.name}/sideline")["messages"]
        return one["comes_back"], one["next_at_ms"]

    now_ms = time.time() * 1_000
    assert comes_back(memory_app.queue("person", dict, shards=1, shovel_interval_s=0)) == (False, None)
    plain = memory_app.queue("plain", dict, shards=1, shovel_interval_s=60)
    assert comes_back(plain) == (True, None)  # nobody has begun to look after it
    memory_app.store.queues.update("plain", lambda one: one.extra.update({SHOVELLED: 1_000_000}))
    assert admin.get("/queues/plain/sideline")["messages"][0]["next_at_ms"] == 1_060_000
    policy = Retry(attempts=3, base="5m", jitter=False)
    comes, at_ms = comes_back(memory_app.queue("rounds", dict, shards=1, shovel_retry=policy))
    assert comes
    assert at_ms == pytest.approx(now_ms + 300_000, abs=60_000)
    assert comes_back(memory_app.queue("late", dict, shards=1), reason="expired") == (False, None)


# -- who works


def test_a_worker_is_shown_with_what_it_is_at(memory_app: Ignis, admin: Someone) -> None:
    jobs = memory_app.queue("jobs", dict, shards=2)
    ids = {jobs.publish({"n": number}, key=f"k{number}").id for number in range(3)}
    jobs.main.fire(3)
    (worker,) = admin.get("/queues/jobs/workers")["workers"]
    assert worker["in_flight"] == 3
    assert {one["id"] for one in worker["messages"]} == ids
    assert {one["key"] for one in worker["messages"]} == {"k0", "k1", "k2"}
    assert all(one["claimed_s"] >= 0 and one["attempt"] == 1 for one in worker["messages"])
    jobs.publish_many([{"n": number} for number in range(100)])
    jobs.main.fire(100)
    (worker,) = admin.get("/queues/jobs/workers")["workers"]
    assert (worker["in_flight"], len(worker["messages"])) == (103, 20)
