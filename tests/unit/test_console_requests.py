"""Requests that are made of the OpenAPI document: whatever is sent, nothing ends in an error of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("schemathesis", reason="no schemathesis: the extra dev has it")

import schemathesis
from hypothesis import HealthCheck, settings

from ignis import Ignis
from ignis.console import Console
from ignis.console.openapi import document
from ignis.console.routes import PREFIX, ROUTES
from tests.support.console import ORIGIN, Someone, a_console, fail


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    with Ignis("memory://") as app:
        jobs = app.queue("jobs", dict, shards=2)
        fail(jobs, {"n": 1}, {"n": 2})
        jobs.publish_many([{"n": 3}] * 5)
        jobs.publish({"n": 4}, delay="1h")
        app.schedules.add("beat", queue="jobs", message={"tick": 1}, every="1h")
        with a_console(app, anyone="admin") as made:
            yield made


@pytest.fixture(scope="module")
def someone(console: Console) -> Someone:
    made = Someone(console)
    made.http.headers.update({"origin": ORIGIN, "x-csrf-token": made.post("/session")["csrf"]})
    return made


def _schema() -> Any:
    found = document(ROUTES)
    # Of names that are there, so that most requests get past the first look; and no request that waits on purpose.
    for methods in found["paths"].values():
        for operation in methods.values():
            for one in operation["parameters"]:
                if one["name"] in ("queue", "schedule"):
                    one["schema"] = {"enum": ["jobs", "beat", "none", "a b"]}
    for name in ("Pull", "RedriveBody", "DropIds", "DropBody", "PurgeBody"):
        properties = found["components"]["schemas"][name]["properties"]
        properties["wait_s"] = {"type": "number", "minimum": 0, "maximum": 0.05}
    del found["paths"][f"{PREFIX}/session"]  # another session would begin, or this one end, whatever method is tried
    return schemathesis.openapi.from_dict(found)


@_schema().parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_ends_in_an_error_of_the_server(case: Any, someone: Someone) -> None:
    given = case.as_transport_kwargs(base_url=ORIGIN)
    found = someone.http.request(
        given["method"], given["url"], params=given.get("params"), json=given.get("json"), headers=_plain(given)
    )
    assert found.status_code < 500 or found.status_code == 503, (given, found.text)
    assert found.status_code not in (401, 403), found.text  # or nothing behind it was tried
    assert found.headers["content-type"] == "application/json"
    answer = found.json()
    if found.status_code >= 400:
        error = answer["error"]
        assert isinstance(error["code"], str)
        assert isinstance(error["message"], str)
        assert isinstance(error["retryable"], bool)
    else:
        assert isinstance(answer, dict)


def _plain(given: dict[str, Any]) -> dict[str, str]:
    """Headers without those that the client sets itself."""
    kept = {"accept", "content-type"}
    return {name: value for name, value in (given.get("headers") or {}).items() if name.lower() in kept}
