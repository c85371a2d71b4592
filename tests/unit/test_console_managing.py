"""Sending a failed message again, changed; schedules made, changed and removed; how many consumers and shards."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console import Console
from ignis.errors import StoreFullError
from ignis.locks import LockLevel, LockManager
from tests.support.broker import running
from tests.support.console import ORIGIN, Someone, a_console, fail, write_users

MakeApp = Callable[..., Ignis]


@pytest.fixture
def console(app: Ignis, tmp_path: Path) -> Iterator[Console]:
    with a_console(app, anyone="admin", audit=tmp_path / "audit") as made:
        yield made


@pytest.fixture
def admin(console: Console) -> Someone:
    made = Someone(console)
    made.http.headers.update({"origin": ORIGIN, "x-csrf-token": made.post("/session")["csrf"]})
    return made


def code_of(found: Any) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


def first_failed(admin: Someone, queue: str = "jobs") -> tuple[str, dict[str, Any]]:
    (one, *_) = admin.get(f"/queues/{queue}/sideline")["messages"]
    return f"/queues/{queue}/sideline/{one['shard']}/{one['pointer']}/resend", one


# -- sending again


def test_a_failed_message_is_sent_again_with_another_body(app: Ignis, admin: Someone, tmp_path: Path) -> None:
    jobs = app.queue("jobs", dict, shards=4)
    fail(jobs, {"n": 1}, key="customer-7")
    path, one = first_failed(admin)
    asked = {"id": one["id"], "body_text": '{"n": 2, "price": 1.10}'}
    tried = admin.post(path, {**asked, "dry_run": True})
    assert (tried["id"], tried["old_id"], tried["dry_run"], tried["key"]) == (None, one["id"], True, "customer-7")
    assert (jobs.main.pending(), jobs.sideline.pending()) == (0, 1)
    found = admin.post(path, asked)
    assert (jobs.main.pending(), jobs.sideline.pending()) == (1, 0)
    (fired,) = jobs.main.fire(1)
    envelope = fired.envelope
    assert fired.message == {"n": 2, "price": 1.10}
    assert envelope.body == b'{"n": 2, "price": 1.10}'  # as it was written
    assert (envelope.id, envelope.key) == (found["id"], "customer-7")
    assert envelope.id != one["id"]
    assert envelope.headers == {"ignis-resent-from": one["id"]}
    assert (envelope.failures, envelope.reason, envelope.history) == (0, None, ())
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()][1:]
    assert [(line["dry_run"], line["old_id"], line.get("id")) for line in lines] == [
        (True, one["id"], None), (False, one["id"], found["id"]),
    ]  # fmt: skip
    assert "price" not in (tmp_path / "audit").read_text()


def test_what_is_not_given_stays(app: Ignis, admin: Someone) -> None:
    jobs = app.queue("jobs", dict, shards=4)
    jobs.publish({"n": 0}, key="a", headers={"trace": "t"})
    fail(jobs, {"n": 1}, key="a")
    where = jobs.main.fire(1)[0].shard
    path, one = first_failed(admin)
    admin.post(path, {"id": one["id"], "headers": {"x": [1, "é"]}})
    (fired,) = jobs.main.fire(1)
    assert (fired.message, fired.envelope.key, fired.shard) == ({"n": 1}, "a", where)  # a key keeps its shard
    assert fired.envelope.headers == {"x": [1, "é"], "ignis-resent-from": one["id"]}
    fail(jobs, {"n": 2}, key="b")
    path, one = first_failed(admin)
    admin.post(path, {"id": one["id"], "key": None})
    assert jobs.main.fire(1)[0].envelope.key is None


@pytest.mark.parametrize("codec", ["raw", "json", "msgpack"])
def test_a_body_is_checked_by_the_queues_codec(app: Ignis, admin: Someone, codec: str) -> None:
    jobs = app.queue("jobs", bytes if codec == "raw" else dict, shards=1, codec=codec)
    fail(jobs, b"\x00\xff" if codec == "raw" else {"n": 1})
    path, one = first_failed(admin)
    wrong = [
        {"body_text": "\ud800"},
        {"body_base64": "x"},
        {"body_text": "a", "body_base64": ""},
        {"headers": {"k": "x" * 70_000}},
    ]
    if codec != "raw":
        wrong += [{"body_text": "{"}, {"body_text": "NaN"}, {"body_base64": base64.b64encode(b"\xc1").decode()}]
    for asked in wrong:
        content = json.dumps({"id": one["id"], **asked})
        found = admin.http.post(f"/ignis/v1{path}", content=content, headers={"content-type": "application/json"})
        assert found.status_code in (400, 413), (asked, found.text)
    assert (jobs.main.pending(), jobs.sideline.pending()) == (0, 1)
    found = admin.post(path, {"id": one["id"], "body_text": '{"n": 2}'})
    assert found["body_kind"] == ("text" if codec == "raw" else "json")
    assert jobs.main.fire(1)[0].message == (b'{"n": 2}' if codec == "raw" else {"n": 2})


def test_a_message_that_somebody_else_moved_is_not_sent_twice(app: Ignis, admin: Someone, monkeypatch: Any) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    fail(jobs, {"n": 1}, {"n": 2})
    path, one = first_failed(admin)
    other = "00000000-0000-7000-8000-000000000000"
    assert code_of(admin.ask("POST", path, {"id": other})) == (404, "message_not_found")
    real = app.store.magazines.transfer

    def late(*args: Any, **options: Any) -> int:
        jobs.shovel.run_once(where=lambda message: message.id == one["id"])
        return real(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(
            app.store.magazines, "transfer", lambda *args, **options: patched.undo() or late(*args, **options)
        )
        assert code_of(admin.ask("POST", path, {"id": one["id"]})) == (409, "conflict")
    assert (jobs.main.pending(), jobs.sideline.pending()) == (1, 1)
    assert code_of(admin.ask("POST", path, {"id": one["id"]})) == (404, "message_not_found")


def test_the_original_stays_until_the_new_one_is_stored(app: Ignis, admin: Someone, monkeypatch: Any) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    fail(jobs, {"n": 1})
    path, one = first_failed(admin)

    def full(*args: Any, **options: Any) -> int:
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(app.store.magazines, "load", full)
        patched.setattr(app.store.magazines, "transfer", full)
        assert code_of(admin.ask("POST", path, {"id": one["id"]})) == (503, "store_full")
    assert (jobs.main.pending(), jobs.sideline.pending(), jobs.sideline.in_flight()) == (0, 1, 0)


# -- schedules


def test_a_schedule_is_made_changed_and_removed(app: Ignis, admin: Someone) -> None:
    jobs = app.queue("jobs", dict, shards=1)
    jobs.open()
    path = "/schedules/beat"
    made = admin.ask("PUT", path, {"queue": "jobs", "every": "5m", "body": {"tick": 1}})
    assert (made.status_code, made.json()["made"], made.json()["every_s"]) == (200, True, 300)
    admin.post(f"{path}/pause")
    changed = admin.ask("PUT", path, {"every": 60, "missed": "skip"}).json()
    assert (changed["made"], changed["every_s"], changed["missed"], changed["paused"]) == (False, 60, "skip", True)
    assert app.schedules.get("beat").message == b'{"tick":1}'
    assert admin.ask("PUT", path, {"body": {"tick": 2}}).json()["every_s"] == 60
    assert admin.post(f"{path}/run")["queue"] == "jobs"
    assert jobs.main.fire(1)[0].message == {"tick": 2}
    assert admin.ask("DELETE", path).json() == {"schedule": "beat", "queue": "jobs", "removed": True}
    assert code_of(admin.ask("DELETE", path)) == (404, "schedule_not_found")
    assert app.schedules.list() == []


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"every": "5m", "body": {}}, 400, "bad_request"),
        ({"queue": "jobs", "body": {}}, 400, "bad_request"),
        ({"queue": "jobs", "every": "5m"}, 400, "bad_request"),
        ({"queue": "jobs", "every": "5m", "cron": "* * * * *", "body": {}}, 400, "config"),
        ({"queue": "jobs", "every": "5m", "timezone": "Europe/Berlin", "body": {}}, 400, "bad_request"),
        ({"queue": "jobs", "every": "soon", "body": {}}, 400, "config"),
        ({"queue": "jobs", "every": "5m", "body_text": "x"}, 400, "invalid_message"),
        ({"queue": "none", "every": "5m", "body": {}}, 404, "queue_not_found"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(
    app: Ignis, admin: Someone, asked: dict[str, Any], status: int, code: str
) -> None:
    app.queue("jobs", dict, shards=1).open()
    assert code_of(admin.ask("PUT", "/schedules/beat", asked)) == (status, code)
    assert app.schedules.list() == []
    assert app.store.queues.get("none") is None


# -- how many


def test_consumers_and_shards_are_changed_for_the_fleet(app: Ignis, admin: Someone) -> None:
    jobs = app.queue("jobs", dict, shards=2)
    jobs.handler(lambda message: None)
    app.start()
    try:
        path = "/queues/jobs/scale"
        assert code_of(admin.ask("POST", path, {"consumers": 3, "confirm": "job"})) == (409, "not_confirmed")
        assert code_of(admin.ask("POST", path, {"confirm": "jobs"})) == (400, "bad_request")
        assert code_of(admin.ask("POST", path, {"shards": 1, "confirm": "jobs"})) == (409, "conflict")
        found = admin.post(path, {"consumers": 3, "shards": 5, "confirm": "jobs"})
        assert found["before"] == {"consumers": 1, "shards": 2}
        assert found["now"] == {"consumers": 3, "shards": 5}
        app.refresher.run_once()
        assert jobs.consumers == 3
        assert len(jobs.sideline.metadata()) == len(jobs.main.metadata()) == 5
    finally:
        app.stop()


# -- the system


def test_a_lock_is_looked_up_by_its_name(app: Ignis, admin: Someone) -> None:
    free = admin.get("/lock?id=nightly")
    assert (free["held"], free["scope"]) == (None, "fleet")
    with LockManager("shop", app.farm_id, app.store) as manager:
        held = manager.lock("nightly", level=LockLevel.XDC)
        assert held.try_acquire()
        found = admin.get("/lock?id=nightly&client_id=shop&level=xdc")["held"]
        assert found["owner"]
        assert found["expires_at_ms"] > found["acquired_at_ms"]
        assert admin.get("/lock?id=nightly&client_id=shop")["held"] is None
        assert admin.get("/lock?id=nightly&level=xdc")["held"] is None
    for query in ("", "?id=", "?id=a&level=x", "?id=%00", "?id=a&suffix=%2F", "?id=a&client_id=%2F"):
        assert admin.ask("GET", f"/lock{query}").status_code == 400, query


def test_all_locks_are_listed_where_the_store_can(app: Ignis, admin: Someone, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admin.get("/locks") == {"locks": [], "scope": "fleet"}
    with LockManager("shop", app.farm_id, app.store) as manager:
        taken = [manager.lock("nightly", level=LockLevel.XDC), manager.lock("hourly", level=LockLevel.DC)]
        assert all(one.try_acquire() for one in taken)
        found = admin.get("/locks?client_id=shop")["locks"]
        assert sorted((one["lock"], one["level"]) for one in found) == [("hourly", "dc"), ("nightly", "xdc")]
        assert all(one["owner"] and one["expires_at_ms"] > one["acquired_at_ms"] for one in found)
        assert admin.get("/locks")["locks"] == [], "of another application"
        monkeypatch.setattr(LockManager, "held", lambda *arguments: None)
        assert admin.get("/locks?client_id=shop")["locks"] is None
    for query in ("?id=a", "?suffix=%2F", "?client_id=%2F"):
        assert admin.ask("GET", f"/locks{query}").status_code == 400, query


def test_what_this_process_holds_is_labelled(app: Ignis, admin: Someone) -> None:
    found = admin.get("/store")
    assert (found["scope"], found["ring_depth"]) == ("process", 0)
    assert isinstance(found["pool"], list)
    assert admin.get("/broker") == {"broker": None, "brokers": None, "refused": None, "scope": "fleet"}


def test_the_broker_behind_the_url_says_its_connections(tmp_path: Path) -> None:
    with running(f"embedded://{tmp_path}/store") as broker, Ignis(broker.url) as app, a_console(app) as console:
        app.queue("jobs", dict, shards=1).open()
        found = Someone(console).get("/broker")
        assert found["broker"]["connections"] >= 1
        assert found["broker"]["scope"] == "process of the broker"
        assert isinstance(found["brokers"], list)
        assert found["refused"] is None


def test_the_broker_is_shown_to_who_may_look_at_everything(tmp_path: Path) -> None:
    tokens = write_users(tmp_path / "users.json")
    with (
        running(f"embedded://{tmp_path}/store") as broker,
        Ignis(broker.url) as app,
        a_console(app, users=tmp_path / "users.json") as console,
    ):
        app.queue("other", dict, shards=1).open()
        found = Someone(console, tokens["else"]).get("/broker")
        assert (found["broker"], found["brokers"], found["refused"]["code"]) == (None, None, "permission_denied")
        found = Someone(console, tokens["rita"]).get("/broker")
        assert (found["broker"]["connections"] >= 1, found["refused"]) == (True, None)
