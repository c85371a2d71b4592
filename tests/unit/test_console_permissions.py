"""Who may call what of the console's API. Each route stands in the table of this test, or it fails: none can be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console import Console
from ignis.console.routes import ROUTES, ApiRoute
from tests.support.console import ALLOWED, ORIGIN, Someone, a_console, fail, write_users

# Method and path -> the users who may, and a body for it.
PEOPLE = {"rita", "olga", "adam"}
OPERATORS = {"olga", "adam"}
EVERYBODY = set(ALLOWED)
ID = "01890000-0000-7000-8000-000000000000"
MAY: dict[str, tuple[set[str], Any]] = {
    "GET /health": (EVERYBODY, None),
    "GET /session": (EVERYBODY, None),
    "POST /session": (EVERYBODY, {"user": "rita", "password": "wrong"}),
    "DELETE /session": (EVERYBODY, None),
    "GET /overview": (PEOPLE | {"else"}, None),
    "GET /store": (PEOPLE | {"else"}, None),
    "GET /leaders": (PEOPLE | {"else"}, None),
    "GET /lock": (PEOPLE, None),
    "GET /locks": (PEOPLE, None),
    "GET /broker": (PEOPLE | {"else"}, None),
    "GET /jobs": (PEOPLE | {"else"}, None),
    "GET /jobs/{job}": (PEOPLE | {"else"}, None),
    "DELETE /jobs/{job}": (OPERATORS | {"else"}, None),
    "GET /leases": ({"adam", "else"}, None),
    "GET /schedules": (PEOPLE | {"else"}, None),
    "PUT /schedules/{schedule}": ({"adam"}, {"every": "2h"}),
    "DELETE /schedules/{schedule}": ({"adam"}, None),
    "POST /schedules/{schedule}/run": (OPERATORS, {}),
    "POST /schedules/{schedule}/pause": (OPERATORS, {}),
    "POST /schedules/{schedule}/resume": (OPERATORS, {}),
    "GET /queues/{queue}": (PEOPLE, None),
    "GET /queues/{queue}/shards": (PEOPLE, None),
    "GET /queues/{queue}/workers": (PEOPLE, None),
    "GET /queues/{queue}/messages": (PEOPLE, None),
    "GET /queues/{queue}/messages/{shard}/{pointer}": (PEOPLE, None),
    "GET /queues/{queue}/delayed": (PEOPLE, None),
    "GET /queues/{queue}/sideline": (PEOPLE, None),
    "GET /queues/{queue}/sideline/reasons": (PEOPLE, None),
    "GET /queues/{queue}/sideline/{shard}/{pointer}": (PEOPLE, None),
    "POST /queues/{queue}/sideline/{shard}/{pointer}/resend": (OPERATORS, {"id": ID, "body_text": "{}"}),
    "POST /queues/{queue}/sideline/redrive": (OPERATORS, {"all": True}),
    "POST /queues/{queue}/sideline/drop": (OPERATORS, {"ids": [ID]}),
    "POST /queues/{queue}/sideline/drop-all": ({"adam"}, {"all": True, "confirm": "jobs"}),
    "POST /queues/{queue}/pause": (OPERATORS, {}),
    "POST /queues/{queue}/resume": (OPERATORS, {}),
    "POST /queues/{queue}/scale": ({"adam"}, {"shards": 2, "confirm": "jobs"}),
    "POST /queues/{queue}/purge": ({"adam"}, {"confirm": "jobs"}),
    "POST /queues/{queue}/cancel": (OPERATORS, {"id": ID}),
    "POST /queues/{queue}/delayed/cancel": (OPERATORS, {"ids": [ID]}),
    "POST /queues/{queue}/delayed/run": (OPERATORS, {"ids": [ID]}),
    "POST /queues/{queue}/leases/end": ({"adam"}, {"user": "con"}),
    "POST /queues/{queue}/publish": (OPERATORS | {"pub"}, {"messages": [{"body": {"new": True}}]}),
    "POST /queues/{queue}/pull": (OPERATORS | {"con"}, {"limit": 1}),
    "POST /queues/{queue}/acknowledge": (OPERATORS | {"con"}, {"receipts": ["r"]}),
    "POST /queues/{queue}/extend": (OPERATORS | {"con"}, {"receipts": ["r"]}),
    "POST /queues/{queue}/release": (OPERATORS | {"con"}, {"receipts": ["r"]}),
}

CHANGES = [row for row in ROUTES if row.mutating and not row.asks_first]


def name_of(row: ApiRoute) -> str:
    return f"{row.method} {row.path}"


def path_of(row: ApiRoute) -> str:
    parts = {"queue": "jobs", "schedule": "beat", "job": "none", "shard": "0", "pointer": "1"}
    return row.path.format(**parts) + ("?id=nightly" if row.path == "/lock" else "")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ignis, Console, dict[str, str]]]:
    path = tmp_path_factory.mktemp("console") / "users.json"
    tokens = write_users(path)
    with Ignis("memory://") as app:
        jobs = app.queue("jobs", dict, shards=1)
        fail(jobs, {"failed": 1}, {"failed": 2})
        jobs.publish_many([{"waiting": 1}, {"waiting": 2}])
        jobs.publish({"delayed": 1}, delay="1h")
        app.schedules.add("beat", queue="jobs", message={"tick": 1}, every="1h")
        with a_console(app, users=path, audit=path.with_name("audit")) as console:
            yield app, console, tokens


@pytest.fixture(scope="module")
def two_sessions(stage: tuple[Ignis, Console, dict[str, str]]) -> tuple[Someone, dict[str, str], str]:
    """A client that is adam, the headers of his changes, and the token of another session of his: a login takes a while."""
    adam = Someone(stage[1])
    return adam, adam.log_in("adam"), Someone(stage[1]).log_in("adam")["x_csrf_token"]


@pytest.fixture
def unchanged(stage: tuple[Ignis, Console, dict[str, str]]) -> Iterator[None]:
    """Whatever the test asked for, nothing has changed."""

    def seen() -> Any:
        app = stage[0]
        queue = app.queue("jobs")
        states = [vars(one) for one in (*queue.main.metadata(), *queue.sideline.metadata())]
        return states, len(queue.later), queue.app.store.queues.get("jobs"), app.schedules.get("beat")

    before = seen()
    yield
    assert seen() == before


def refused(found: Any, status: int, code: str) -> None:
    assert (found.status_code, found.json()["error"]["code"]) == (status, code), found.text


def test_every_route_is_in_the_table() -> None:
    assert {name_of(row) for row in ROUTES} == set(MAY)
    assert len({name_of(row) for row in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("row", CHANGES, ids=name_of)
@pytest.mark.usefixtures("unchanged")
def test_a_change_is_refused_to_a_stranger(stage: tuple[Ignis, Console, dict[str, str]], row: ApiRoute) -> None:
    stranger = Someone(stage[1])
    _, body = MAY[name_of(row)]
    refused(stranger.ask(row.method, path_of(row), body), 401, "unauthenticated")
    refused(
        stranger.ask(row.method, path_of(row), body, origin=ORIGIN, cookie="ignis_console_9711=made-up"),
        401,
        "unauthenticated",
    )
    wrong = Someone(stage[1], "ign_000000000000_" + "x" * 43)
    refused(wrong.ask(row.method, path_of(row), body), 401, "unauthenticated")
    for scheme in ("Basic YWRhbTpvcGVu", "Bearer", "bearer ", "ign_1"):
        refused(stranger.ask(row.method, path_of(row), body, authorization=scheme), 401, "unauthenticated")


@pytest.mark.parametrize("row", CHANGES, ids=name_of)
@pytest.mark.usefixtures("unchanged")
def test_a_change_by_session_needs_its_token_and_the_right_origin(
    two_sessions: tuple[Someone, dict[str, str], str], row: ApiRoute
) -> None:
    adam, right, other = two_sessions
    _, body = MAY[name_of(row)]
    for token in ("", right["x_csrf_token"][:-1], other):
        found = adam.ask(row.method, path_of(row), body, origin=ORIGIN, x_csrf_token=token)
        refused(found, 401, "unauthenticated")
    for origin in ("http://evil.example", "null", "http://localhost:9712", "https://localhost:9711", ""):
        given = {**right, "origin": origin}
        refused(adam.ask(row.method, path_of(row), body, **given), 403, "origin")
    refused(adam.ask(row.method, path_of(row), body, x_csrf_token=right["x_csrf_token"]), 403, "origin")


@pytest.mark.parametrize("row", [row for row in ROUTES if not row.mutating and row.needs], ids=name_of)
def test_nothing_is_shown_to_who_has_the_cookie_alone(
    stage: tuple[Ignis, Console, dict[str, str]], row: ApiRoute
) -> None:
    adam = Someone(stage[1])
    adam.log_in("adam")
    refused(adam.ask("GET", path_of(row), x_csrf_token=""), 401, "unauthenticated")


@pytest.mark.parametrize("row", CHANGES, ids=name_of)
@pytest.mark.usefixtures("unchanged")
def test_a_change_is_refused_to_who_has_not_the_role(
    stage: tuple[Ignis, Console, dict[str, str]], row: ApiRoute
) -> None:
    may, body = MAY[name_of(row)]
    for user in EVERYBODY - may:
        found = Someone(stage[1], stage[2][user]).ask(row.method, path_of(row), body)
        refused(found, *_refusal(row, user))
    if EVERYBODY - may:
        by_session = Someone(stage[1])
        user = min(EVERYBODY - may)
        right = by_session.log_in(user)
        refused(by_session.ask(row.method, path_of(row), body, **right), *_refusal(row, user))


def _refusal(row: ApiRoute, user: str) -> tuple[int, str]:
    """To somebody of another queue the schedule is not there."""
    if user != "else" or "{schedule}" not in row.path:
        return 403, "permission_denied"
    return (400, "bad_request") if row.method == "PUT" else (404, "schedule_not_found")


def test_a_schedule_of_a_queue_that_somebody_may_not_see_is_as_none(
    stage: tuple[Ignis, Console, dict[str, str]],
) -> None:
    other = Someone(stage[1], stage[2]["else"])
    for ask in (("POST", "/run"), ("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
        for given in ({}, {"queue": "jobs"}):
            answers = []
            for name in ("beat", "absent"):
                path = f"/schedules/{name}{ask[1]}"
                if ask[0] == "DELETE" and given:
                    path += "?queue=jobs"
                found = other.ask(ask[0], path, given if ask[0] == "POST" else None)
                refused(found, 404, "schedule_not_found")
                answers.append(found.json()["error"]["message"].replace(name, "NAME"))
            assert answers[0] == answers[1]
            assert "beat" not in answers[0]


@pytest.mark.parametrize("row", [row for row in ROUTES if not row.mutating], ids=name_of)
def test_a_look_is_for_those_who_may(stage: tuple[Ignis, Console, dict[str, str]], row: ApiRoute) -> None:
    may, _ = MAY[name_of(row)]
    if may != EVERYBODY:
        refused(Someone(stage[1]).ask("GET", path_of(row)), 401, "unauthenticated")
    for user in EVERYBODY:
        found = Someone(stage[1], stage[2][user]).ask("GET", path_of(row))
        if user in may:
            assert found.status_code in (200, 404), found.text
            assert found.status_code == 200 or found.json()["error"]["code"] in ("job_not_found", "message_not_found")
        else:
            refused(found, 403, "permission_denied")


@pytest.mark.parametrize("row", ROUTES, ids=name_of)
@pytest.mark.usefixtures("unchanged")
def test_a_request_for_another_host_is_refused(stage: tuple[Ignis, Console, dict[str, str]], row: ApiRoute) -> None:
    _, body = MAY[name_of(row)]
    refused(
        Someone(stage[1], stage[2]["adam"]).ask(row.method, path_of(row), body, host="rebound.example:9711"),
        421,
        "misdirected",
    )


def test_pages_for_another_host_are_refused(stage: tuple[Ignis, Console, dict[str, str]]) -> None:
    for path in ("/", "/assets/app.js", "/ignis/v1/openapi.json"):
        found = Someone(stage[1]).http.get(path, headers={"host": "rebound.example"})
        refused(found, 421, "misdirected")


@pytest.mark.parametrize("row", CHANGES, ids=name_of)
def test_who_may_is_let_through(row: ApiRoute, tmp_path: Path, stage: tuple[Ignis, Console, dict[str, str]]) -> None:
    """Each on a store of its own, by token and by session."""
    may, body = MAY[name_of(row)]
    path = tmp_path / "users.json"
    tokens = write_users(path)
    with Ignis("memory://") as app:
        app.queue("jobs", dict, shards=1).open()
        app.schedules.add("beat", queue="jobs", message={"tick": 1}, every="1h")
        with a_console(app, users=path, audit=tmp_path / "audit") as console:
            for user in sorted(may):
                found = Someone(console, tokens[user]).ask(row.method, path_of(row), body)
                assert found.status_code in (200, 404), found.text
                assert found.status_code == 200 or found.json()["error"]["code"] in (
                    "job_not_found",
                    "message_not_found",
                    "schedule_not_found",
                )
            someone = Someone(console)
            right = someone.log_in(min(may))
            assert someone.ask(row.method, path_of(row), body, **right).status_code in (200, 404)
        lines = (tmp_path / "audit").read_text().splitlines()
        assert len(lines) == len(may) + 2  # the login too
