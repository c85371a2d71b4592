"""What the console's API answers and does: looks, changes, and the gateway for programs."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console import Console
from ignis.console.leases import Leases
from ignis.console.snapshot import REFRESH_S, Snapshot
from tests.support import eventually
from tests.support.console import ORIGIN, Someone, a_console, fail, write_users

MakeApp = Callable[..., Ignis]
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def console(app: Ignis) -> Iterator[Console]:
    with a_console(app, anyone="admin") as made:
        yield made


class Admin(Someone):
    """Everybody, with a session: each change shows its token."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.http.headers.update({"origin": ORIGIN, "x-csrf-token": self.post("/session")["csrf"]})


@pytest.fixture
def admin(console: Console) -> Admin:
    return Admin(console)


def code_of(found: Any) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


# -- looking


def test_the_overview_has_every_queue_and_says_whose_each_figure_is(app: Ignis, admin: Admin) -> None:
    app.queue("empty", dict).open()
    jobs = app.queue("jobs", dict, shards=2)
    fail(jobs, {"n": 1}, {"n": 2})
    jobs.publish_many([{"n": 3}] * 3)
    app.queue("later", dict).publish({}, delay="1h")
    found = admin.get("/overview")
    rows = {one["queue"]: one for one in found["queues"]}
    assert set(rows) == {"empty", "jobs", "later"}
    assert [rows["jobs"][name] for name in ("pending", "in_flight", "sideline")] == [3, 0, 2]
    assert rows["later"]["delayed"] == 1
    assert rows["jobs"]["oldest_age_s"] >= 0
    assert rows["empty"]["oldest_age_s"] is None
    figures = set(rows["jobs"]) - {"queue", "paused", "settings", "roles"}
    assert figures <= set(found["figures"])
    assert {one["scope"] for one in found["figures"].values()} == {"fleet", "process"}
    assert found["history"]["jobs"][-1][1:4] == [3, 0, 2]


def test_however_many_ask_the_store_is_looked_at_once(memory_app: Ignis) -> None:
    memory_app.queue("jobs", dict).open()
    now_s = [100.0]
    snapshot = Snapshot(lambda: memory_app.store, clock=lambda: now_s[0], now_s=lambda: now_s[0])
    gate, found = threading.Barrier(8), []

    def ask() -> None:
        gate.wait()
        found.append(snapshot.get())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (snapshot.looks, len({id(one) for one in found})) == (1, 1)
    now_s[0] += REFRESH_S - 0.01
    snapshot.get()
    assert snapshot.looks == 1
    now_s[0] += 0.02
    snapshot.get()
    assert snapshot.looks == 2


def test_rates_are_the_fleets_and_not_of_who_asks(memory_app: Ignis) -> None:
    jobs = memory_app.queue("jobs", dict, shards=4)
    jobs.open()
    now_s = [100.0]
    snapshot = Snapshot(lambda: memory_app.store, clock=lambda: now_s[0], now_s=lambda: now_s[0])
    assert snapshot.get().queues["jobs"]["published_rate"] is None
    jobs.publish_many([{}] * 30)
    jobs.main.delete(jobs.main.fire(10))
    jobs.main.reload(jobs.main.fire(5))
    now_s[0] += 10
    row = snapshot.get().queues["jobs"]
    assert (row["published_rate"], row["finished_rate"]) == (3.0, 1.0)
    now_s[0] += 1_000
    assert snapshot.get().queues["jobs"]["published_rate"] is None


def test_a_queue_its_shards_and_who_works_on_it(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=2)
    jobs.publish_many([{"n": 1}] * 4)
    jobs.main.fire(3)
    found = admin.get("/queues/jobs")
    assert (found["pending"], found["in_flight"], found["scope"]) == (1, 3, "fleet")
    assert "admin" in found["roles"]
    shards = admin.get("/queues/jobs/shards")["shards"]
    assert (len(shards), sum(one["in_flight"] for one in shards)) == (2, 3)
    (worker,) = admin.get("/queues/jobs/workers")["workers"]
    assert (worker["in_flight"], worker["dead"]) == (3, False)
    assert code_of(admin.ask("GET", "/queues/nope")) == (404, "queue_not_found")
    assert code_of(admin.ask("GET", "/queues/jobs_SIDELINE")) == (400, "invalid_name")


def test_pages_of_a_sideline_hold_every_message_once(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=3)
    ids = fail(jobs, *({"n": number} for number in range(120)))
    found: list[str] = []
    after, pages = "", 0
    while True:
        page = admin.get(f"/queues/jobs/sideline?limit=50&after={after}")
        found += [one["id"] for one in page["messages"]]
        pages += 1
        if page["next"] is None:
            break
        after = page["next"]
    assert (sorted(found), pages) == (sorted(ids), 3)


def test_a_sideline_is_searched(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=2)
    fail(jobs, {"n": 1}, reason="timeout", error="took too long", key="k1")
    (wanted,) = fail(jobs, {"n": 2}, reason="exception", error="KeyError: 'x'", key="k2")
    for query in ("reason=exception", "key=k2", "error=KeyError", f"id={wanted.upper()}", "reason=exception&key=k2"):
        found = admin.get(f"/queues/jobs/sideline?{query}")
        assert [one["id"] for one in found["messages"]] == [wanted], query
        assert found["looked_at"] == 2
    assert admin.get("/queues/jobs/sideline?older_than_s=3600")["messages"] == []
    reasons = admin.get("/queues/jobs/sideline/reasons")["reasons"]
    assert {name: one["count"] for name, one in reasons.items()} == {"timeout": 1, "exception": 1}
    assert reasons["timeout"]["errors"] == [{"error": "took too long", "count": 1}]


def test_one_message_with_its_history_and_its_body_as_text(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    fail(jobs, {"note": MARKUP}, error="ValueError: no")
    (short,) = admin.get("/queues/jobs/sideline")["messages"]
    assert "history" not in short
    found = admin.ask("GET", f"/queues/jobs/sideline/{short['shard']}/{short['pointer']}")
    assert found.headers["content-type"] == "application/json"
    assert found.headers["x-content-type-options"] == "nosniff"
    one = found.json()
    assert (one["reason"], one["error"], len(one["history"])) == ("exception", "ValueError: no", 1)
    assert MARKUP in one["body_text"]
    assert one["body_kind"] == "json"
    assert code_of(admin.ask("GET", "/queues/jobs/sideline/0/99")) == (404, "message_not_found")
    assert code_of(admin.ask("GET", "/queues/jobs/sideline/x/1")) == (400, "bad_request")
    assert code_of(admin.ask("GET", "/queues/jobs/messages/0/-1")) == (400, "bad_request")


def test_a_body_that_is_no_text_and_a_long_one(app: Ignis, admin: Admin) -> None:
    raw = app.queue("raw", bytes, shards=1)
    raw.publish(b"\xff\x00")
    raw.publish(b"a" * 5_000)
    binary, long = admin.get("/queues/raw/messages")["messages"]
    assert (binary["body_text"], binary["body_kind"]) == ("ff00", "hex")
    assert (len(long["body_text"]), long["body_cut"], long["body_kind"]) == (1_024, True, "text")
    assert len(admin.get(f"/queues/raw/messages/0/{long['pointer']}")["body_text"]) == 5_000


def test_leaders_and_the_figures_of_this_process(app: Ignis, admin: Admin) -> None:
    app.queue("jobs", dict).open()
    assert [one["scope"] for one in admin.get("/leaders")["leaders"]] == ["sweeper", "schedules"]
    assert admin.get("/store")["scope"] == "process"
    assert admin.get("/health")["status"] == "ok"


# -- the sideline


def test_some_are_brought_back_counted_first(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=2)
    ids = fail(jobs, {"n": 1}, {"n": 2}, {"n": 3})
    path = "/queues/jobs/sideline/redrive"
    dry = admin.post(path, {"where": {"ids": ids[:1]}, "dry_run": True, "wait_s": 30})
    # What is behind the last of the ids is not looked at, and so not counted as kept.
    kept = dry["result"].pop("would_keep")
    assert (dry["state"], dry["result"], kept in range(3)) == (
        "done",
        {"would_move": 1, "would_be_left": 2, "refused": 0, "dry_run": True},
        True,
    )
    assert jobs.sideline.pending() == 3
    moved = admin.post(path, {"where": {"ids": ids[:1]}, "wait_s": 30})["result"]
    assert (moved["moved"], moved["left"]) == (1, 2)
    assert [one.envelope.id for one in jobs.main.peek()] == ids[:1]
    assert admin.post(path, {"all": True, "rate": 1_000, "wait_s": 30})["result"]["moved"] == 2
    assert (jobs.main.pending(), jobs.sideline.pending()) == (3, 0)
    assert [one["kind"] for one in admin.get("/jobs")["jobs"]] == ["redrive"] * 3
    for body in ({}, {"where": {}}, {"all": True, "where": {"key": "k"}}):
        assert code_of(admin.ask("POST", path, body)) == (400, "bad_request")


def test_a_slow_one_goes_on_after_its_answer_and_is_stopped(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    fail(jobs, *({"n": number} for number in range(50)))
    begun = admin.post("/queues/jobs/sideline/redrive", {"all": True, "rate": 1, "wait_s": 0}, status=202)
    assert begun["state"] == "running"
    admin.ask("DELETE", f"/jobs/{begun['job']}")
    until_s = time.monotonic() + 60
    while admin.get(f"/jobs/{begun['job']}")["state"] == "running":
        assert time.monotonic() < until_s
        time.sleep(0.01)
    ended = admin.get(f"/jobs/{begun['job']}")
    assert (ended["state"], ended["error"]) == ("stopped", None)
    assert ended["result"]["moved"] < 50
    assert jobs.main.pending() + jobs.sideline.pending() == 50
    assert jobs.sideline.in_flight() == 0


def test_messages_are_dropped_by_id_or_with_the_queues_name(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=2)
    ids = fail(jobs, {"n": 1}, {"n": 2}, {"n": 3}, reason="timeout")
    fail(jobs, {"n": 4}, reason="exception")
    assert admin.post("/queues/jobs/sideline/drop", {"ids": [ids[0].upper()], "wait_s": 30})["result"]["removed"] == 1
    everything = "/queues/jobs/sideline/drop-all"
    assert code_of(admin.ask("POST", everything, {"all": True})) == (409, "not_confirmed")
    assert code_of(admin.ask("POST", everything, {"all": True, "confirm": "job"})) == (409, "not_confirmed")
    dry = admin.post(everything, {"where": {"reasons": ["timeout"]}, "dry_run": True, "wait_s": 30})
    assert (dry["result"]["would_remove"], jobs.sideline.pending()) == (2, 3)
    wanted = {"where": {"reasons": ["timeout"]}, "confirm": "jobs", "wait_s": 30}
    assert admin.post(everything, wanted)["result"]["removed"] == 2
    assert admin.post(everything, {"all": True, "confirm": "jobs", "wait_s": 30})["result"]["removed"] == 1
    assert len(list(jobs.sideline.peek(pending_only=False))) == 0


# -- the queue, delayed messages, schedules


def test_pause_resume_purge_cancel(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    ids = list(jobs.publish_many([{"n": 1}, {"n": 2}, {"n": 3}]))
    assert admin.post("/queues/jobs/pause") == {"queue": "jobs", "paused": True}
    assert admin.get("/queues/jobs")["paused"] is True
    assert admin.post("/queues/jobs/pull", {"limit": 1, "wait_s": 0.05})["messages"] == []
    assert admin.post("/queues/jobs/resume") == {"queue": "jobs", "paused": False}
    assert admin.post("/queues/jobs/cancel", {"id": ids[0]})["was"] == "waiting"
    assert code_of(admin.ask("POST", "/queues/jobs/cancel", {"id": ids[0]})) == (404, "message_not_found")
    assert code_of(admin.ask("POST", "/queues/jobs/purge", {"confirm": "no"})) == (409, "not_confirmed")
    assert admin.post("/queues/jobs/purge", {"confirm": "jobs", "wait_s": 30})["result"]["removed"] == 2
    assert jobs.main.pending() == 0


def test_delayed_messages_are_run_and_cancelled(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    first = jobs.publish({"n": 1}, delay="1h").id
    second = jobs.publish({"n": 2}, delay="2h", key="k").id
    found = admin.get("/queues/jobs/delayed")
    assert (found["total"], [one["id"] for one in found["messages"]]) == (2, [first, second])
    assert admin.post("/queues/jobs/delayed/run", {"ids": [first]})["moved"] == 1
    assert admin.post("/queues/jobs/delayed/cancel", {"ids": [second]})["cancelled"] == 1
    assert (jobs.main.pending(), len(jobs.later)) == (1, 0)


def test_schedules_are_run_paused_and_resumed(app: Ignis, admin: Admin) -> None:
    app.schedules.add("beat", queue="jobs", message={"tick": 1}, every="1h")
    (one,) = admin.get("/schedules")["schedules"]
    assert (one["schedule"], one["queue"], one["every_s"]) == ("beat", "jobs", 3_600)
    assert admin.post("/schedules/beat/run")["queue"] == "jobs"
    assert app.queue("jobs").main.pending() == 1
    assert admin.post("/schedules/beat/pause")["paused"] is True
    assert admin.post("/schedules/beat/resume")["paused"] is False
    assert code_of(admin.ask("POST", "/schedules/none/run", {})) == (404, "schedule_not_found")


# -- the gateway


def test_a_program_publishes_pulls_and_acknowledges(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.open()
    one, two = {"body": {"n": 1}, "key": "k", "headers": {"trace": "t"}}, {"body": {"n": 2}}
    ids = admin.post("/queues/jobs/publish", {"messages": [one, two]})["ids"]
    pulled = admin.post("/queues/jobs/pull", {"limit": 10, "lease_s": 30})["messages"]
    assert [(each["id"], each["body"], each["key"], each["headers"]) for each in pulled] == [
        (ids[0], {"n": 1}, "k", {"trace": "t"}),
        (ids[1], {"n": 2}, None, {}),
    ]
    assert admin.post("/queues/jobs/pull", {"limit": 10})["messages"] == []
    receipts = [each["receipt"] for each in pulled]
    assert admin.post("/queues/jobs/acknowledge", {"receipts": receipts[:1]}) == {
        "queue": "jobs",
        "acknowledged": 1,
        "gone": 0,
    }
    assert admin.post("/queues/jobs/acknowledge", {"receipts": receipts})["acknowledged"] == 1
    assert (jobs.main.pending(), jobs.main.in_flight()) == (0, 0)


def test_due_times_and_deadlines_of_a_program(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.open()
    message = {"messages": [{"body": {}}]}
    soon = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    admin.post("/queues/jobs/publish", {**message, "delay": "5m"})
    admin.post("/queues/jobs/publish", {**message, "at": soon})
    assert len(jobs.later) == 2
    admin.post("/queues/jobs/publish", {**message, "expires_in": 60})
    (found,) = admin.post("/queues/jobs/pull")["messages"]
    assert found["expires_at_ms"] > time.time() * 1000
    for wrong in ({"delay": "5m", "at": soon}, {"delay": "soon"}, {"at": "2030-01-01T00:00:00"}, {"expires_in": 0}):
        assert code_of(admin.ask("POST", "/queues/jobs/publish", {**message, **wrong})) == (400, "config")


def test_bodies_fit_the_queues_codec_or_none_is_stored(app: Ignis, admin: Admin) -> None:
    jobs, raw = app.queue("jobs", dict, shards=1), app.queue("raw", bytes, shards=1)
    jobs.open()
    raw.open()
    assert admin.post("/queues/raw/publish", {"messages": [{"body_base64": "/wA="}, {"body_text": "é"}]})["ids"]
    pulled = admin.post("/queues/raw/pull", {"limit": 5, "bodies": "base64"})["messages"]
    assert [base64.b64decode(one["body_base64"]) for one in pulled] == [b"\xff\x00", "é".encode()]
    bad = [{"body_text": "x"}, {"body_base64": "eA=="}, {}, {"body": 1, "body_text": "x"}]
    for one in bad:
        found = admin.ask("POST", "/queues/jobs/publish", {"messages": [{"body": {}}, one]})
        assert found.status_code == 400, found.text
    assert code_of(admin.ask("POST", "/queues/raw/publish", {"messages": [{"body": 1}]})) == (400, "invalid_message")
    assert code_of(admin.ask("POST", "/queues/raw/publish", {"messages": [{"body_base64": "?"}]})) == (
        400,
        "invalid_message",
    )
    assert jobs.main.pending() == 0
    assert code_of(admin.ask("POST", "/queues/nope/publish", {"messages": [{"body": 1}]})) == (404, "queue_not_found")
    assert app.store.queues.get("nope") is None


def test_a_long_poll_is_answered_by_what_comes(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.open()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(admin.post("/queues/jobs/pull", {"wait_s": 30})))
    thread.start()
    jobs.publish({"n": 1})
    thread.join(60)
    assert [one["body"] for one in found[0]["messages"]] == [{"n": 1}]


def test_who_leaves_while_it_waits_takes_nothing(app: Ignis, tmp_path: Path) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.open()
    token = write_users(tmp_path / "users.json")["con"]
    left, sent = asyncio.Event(), []

    async def pull(console: Console) -> None:
        pieces = [{"type": "http.request", "body": b'{"wait_s": 30}', "more_body": False}]

        async def receive() -> Any:
            if pieces:
                return pieces.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = {"host": "localhost", "authorization": f"Bearer {token}", "content-type": "application/json"}
        path = "/ignis/v1/queues/jobs/pull"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("10.9.9.9", 1),
            "server": ("localhost", 9711), "headers": [(one.encode(), said.encode()) for one, said in headers.items()],
        }  # fmt: skip
        asked = asyncio.create_task(console(scope, receive, send))
        await asyncio.to_thread(eventually, lambda: len(console.places) == 1, "it waits")
        left.set()
        for _ in range(10):
            await asyncio.sleep(0)  # the loop's turns, until it is known here
        await asyncio.to_thread(jobs.publish, {"n": 1})
        await asyncio.wait_for(asked, 60)

    with a_console(app, users=tmp_path / "users.json") as console:
        asyncio.run(pull(console))
        assert sent[0]["status"] == 200
        assert (jobs.main.pending(), jobs.main.in_flight(), len(console.services.leases)) == (1, 0, 0)


def test_programs_that_wait_leave_places_for_operators(app: Ignis, console: Console, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    fail(jobs, {"n": 1})
    found: list[Any] = []
    asked = {"wait_s": 30}
    threads = [
        threading.Thread(target=lambda: found.append(admin.ask("POST", "/queues/jobs/pull", asked))) for _ in range(24)
    ]
    for one in threads:
        one.start()
    eventually(lambda: len(console.places) == 24, "all of them wait")
    assert code_of(admin.ask("POST", "/queues/jobs/pull", asked)) == (429, "too_many_requests")
    assert admin.post("/queues/jobs/sideline/redrive", {"all": True, "wait_s": 30})["result"]["moved"] == 1
    console.services.closing.set()
    for one in threads:
        one.join(60)
    assert sum(len(one.json().get("messages", ())) for one in found) == 1
    assert {one.status_code for one in found} == {200, 503}


def test_a_lease_is_extended_and_released(app: Ignis, admin: Admin) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.publish_many([{"n": 1}, {"n": 2}])
    one, two = [each["receipt"] for each in admin.post("/queues/jobs/pull", {"limit": 2})["messages"]]
    assert admin.post("/queues/jobs/extend", {"receipts": [one, "none"], "lease_s": 90}) == {
        "queue": "jobs", "extended": [one], "gone": ["none"], "lease_s": 90.0,
    }  # fmt: skip
    assert admin.post("/queues/jobs/release", {"receipts": [one]})["released"] == 1
    assert (jobs.main.pending(), jobs.main.in_flight()) == (1, 1)
    assert admin.post("/queues/jobs/release", {"receipts": [two], "error": "bad data"})["released"] == 1
    (failed,) = jobs.sideline.peek()
    assert (failed.envelope.reason, failed.envelope.error) == ("rejected", "bad data")
    assert admin.post("/queues/jobs/acknowledge", {"receipts": [one, two]}) == {
        "queue": "jobs",
        "acknowledged": 0,
        "gone": 2,
    }


def test_what_a_program_lets_run_out_comes_back_and_is_counted(memory_app: Ignis) -> None:
    jobs = memory_app.queue("jobs", dict, shards=1)
    jobs.publish({"n": 1})
    now_s = [0.0]
    leases = Leases(lambda: memory_app.store, clock=lambda: now_s[0])
    crashes = []
    while jobs.main.pending():
        (fired,) = jobs.main.fire(1)
        crashes.append(fired.envelope.crashes)
        (held,) = leases.take("jobs", "pub", [(fired.shard, fired.pointer, 100)], 10, 1_200)
        now_s[0] += 9
        leases.look()
        assert jobs.main.in_flight() == 1
        now_s[0] += 2
        assert leases.acknowledge("jobs", "pub", [held.receipt]) == 0  # too late, though nobody has looked yet
        leases.look()
        assert (len(leases), jobs.main.in_flight()) == (0, 0)
    assert crashes == list(range(len(crashes)))
    assert len(crashes) > 1
    (aside,) = jobs.sideline.peek()
    assert aside.envelope.reason == "crash"


def test_a_lease_outlives_the_stuck_time(memory_app: Ignis) -> None:
    jobs = memory_app.queue("jobs", dict, shards=1)
    jobs.publish({"n": 1})
    now_s = [0.0]
    leases = Leases(lambda: memory_app.store, clock=lambda: now_s[0])
    (fired,) = jobs.main.fire(1)
    renewed = []
    renew = memory_app.store.magazines.renew_claims
    leases.take("jobs", "pub", [(fired.shard, fired.pointer, 100)], 3_600, 400)
    try:
        memory_app.store.magazines.renew_claims = lambda *asked: renewed.append(now_s[0]) or renew(*asked)  # type: ignore[method-assign, func-returns-value]
        for _ in range(35):
            now_s[0] += 10
            leases.look()
    finally:
        memory_app.store.magazines.renew_claims = renew  # type: ignore[method-assign]
    assert renewed == [80, 160, 240, 320], "every 75 s, though a quarter of 400 would do: others may shorten it"
    leases.close()
    assert jobs.main.pending() == 1


def test_a_receipt_is_of_one_user_and_one_queue(memory_app: Ignis) -> None:
    jobs = memory_app.queue("jobs", dict, shards=1)
    memory_app.queue("bills", dict, shards=1).open()
    jobs.publish({"n": 1})
    leases = Leases(lambda: memory_app.store, clock=lambda: 0.0)
    (fired,) = jobs.main.fire(1)
    (held,) = leases.take("jobs", "ann", [(fired.shard, fired.pointer, 100)], 10, 1_200)
    assert leases.acknowledge("jobs", "bob", [held.receipt]) == 0
    assert leases.acknowledge("bills", "ann", [held.receipt]) == 0
    assert leases.extend("jobs", "bob", [held.receipt], 10) == []
    assert leases.acknowledge("jobs", "ann", [held.receipt]) == 1


def test_what_nobody_can_be_given_is_set_aside_or_dropped(app: Ignis, admin: Admin) -> None:
    kept = app.queue("kept", dict, shards=1, on_expiry="sideline")
    kept.publish({"n": 1}, expires_at=datetime.now(timezone.utc) - timedelta(seconds=1))
    kept.publish({"n": 2})
    assert [one["body"] for one in admin.post("/queues/kept/pull", {"limit": 5})["messages"]] == [{"n": 2}]
    (aside,) = kept.sideline.peek()
    assert aside.envelope.reason == "expired"


def test_what_was_leased_comes_back_when_the_console_ends(app: Ignis) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.publish({"n": 1})
    with a_console(app, anyone="admin") as console:
        assert Admin(console).post("/queues/jobs/pull")["messages"]
        assert jobs.main.in_flight() == 1
    assert (jobs.main.pending(), jobs.main.in_flight()) == (1, 0)
