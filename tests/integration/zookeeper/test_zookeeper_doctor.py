"""``ignis doctor`` and ``ignis locks`` with a real ZooKeeper: leading, refused, frozen, gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.cli import main
from tests.support import eventually
from tests.support import zookeeper as zookeeper_support
from tests.support.broker import RunningBroker, running
from tests.support.zookeeper import Server

pytestmark = pytest.mark.integration

Look = Callable[[], tuple[int, dict[str, dict[str, str]]]]
SCOPES = ("sweeper", "schedules", "autoscaler")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("IGNIS_CONFIG", raising=False)
    monkeypatch.setenv("IGNIS_LEADER_SESSION_TIMEOUT_S", "5")
    with zookeeper_support.running() as one:
        monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", f"zk://{one.address}")
        yield one


@pytest.fixture
def broker(embedded_url: str) -> Iterator[RunningBroker]:
    with running(embedded_url) as one:
        yield one


@pytest.fixture
def doctor(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Look:
    """The exit code, and the findings by code."""

    def look() -> tuple[int, dict[str, dict[str, str]]]:
        capfd.readouterr()
        code = main(["doctor", "--json", broker.url])
        document = json.loads(capfd.readouterr().out)
        return code, {one["code"]: one for one in document["findings"]}

    return look


@pytest.fixture
def leaders(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, dict[str, Any]]]:
    """The exit code of ``ignis locks``, and what it says of each scope."""

    def look() -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        code = main(["locks", "-u", broker.url, "--json"])
        return code, {one["scope"]: one for one in json.loads(capfd.readouterr().out)["leaders"]}

    return look


def test_who_leads(server: Server, broker: RunningBroker, doctor: Look, leaders: Any) -> None:
    code, findings = doctor()
    assert (code, findings["zookeeper"]["grade"]) == (0, "ok")
    assert "nobody leads the sweeper" in findings["zookeeper"]["what"]
    with ignis.Ignis(broker.url) as app:
        fence = app.leader().lead()
        name = app.leader().status().leader
        assert name
        code, findings = doctor()
        assert (code, findings["zookeeper"]["what"]) == (0, f"answers; {name} leads the sweeper")
        code, found = leaders()
        assert code == 0
        assert (found["sweeper"]["leader"], found["sweeper"]["epoch"]) == (name, fence.epoch)
        assert {one["kind"] for one in found.values()} == {"zookeeper"}
        assert not any(found[one]["leader"] for one in SCOPES[1:])


def test_permissions_that_are_missing_are_told_from_a_server_that_is_away(
    server: Server, broker: RunningBroker, doctor: Look, leaders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a user, what ignis makes there is open to that user alone."""
    mine = f"zk://ann:secret@{server.address}"
    monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", mine)
    with ignis.Ignis(broker.url) as app:
        app.leader().lead()
        assert doctor()[0] == 0
        for other in (f"zk://{server.address}", f"zk://ann:wrong@{server.address}"):
            monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", other)
            code, findings = doctor()
            assert (code, "zookeeper" in findings) == (1, False), "it answers"
            refused = findings["election"]
            assert refused["grade"] == "problem"
            assert "refuses" in refused["what"]
            assert "leader.user" in refused["do"]
            assert not {"firewalls", "wrong", "secret"} & set(str(findings).replace(":", " ").split())
            code, found = leaders()
            assert code == 3
            assert [found[one]["leader"] for one in SCOPES] == ["", "", ""]
            assert {one["refused"] for one in found.values()} == {True}
        monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", mine)
        assert doctor()[0] == 0


def test_a_user_who_may_look_and_not_take_part(
    server: Server, broker: RunningBroker, doctor: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kazoo.client import KazooClient
    from kazoo.security import make_acl, make_digest_acl

    client = KazooClient(server.address)
    client.start()
    try:
        ann = make_digest_acl("ann", "secret", read=True, create=True, write=True, delete=True)
        client.create("/ignis-ignis-workers", b"", [ann, make_acl("world", "anyone", read=True)])
    finally:
        client.stop()
        client.close()
    code, findings = doctor()
    assert (code, findings["election"]["grade"], "zookeeper" in findings) == (1, "problem", False)
    assert "not take part" in findings["election"]["what"]
    with ignis.Ignis(broker.url) as app:  # and so it is
        app.leader().start()
        eventually(lambda: "refuses" in app.leader().stats()["trouble"])
    monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", f"zk://ann:secret@{server.address}")
    code, findings = doctor()
    assert (code, findings["zookeeper"]["grade"]) == (0, "ok")


def test_a_server_that_is_frozen_or_gone(
    server: Server, doctor: Look, leaders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_LEADER_SESSION_TIMEOUT_S", "1")
    server.stop()
    try:
        code, findings = doctor()
    finally:
        server.go_on()
    assert (code, findings["zookeeper"]["grade"], findings["reach"]["grade"]) == (3, "problem", "ok")
    server.kill()
    code, findings = doctor()
    assert (code, findings["zookeeper"]["grade"]) == (3, "problem")
    assert "cannot be reached" in findings["zookeeper"]["what"]
    assert "firewalls" in findings["zookeeper"]["do"]
    code, found = leaders()
    assert code == 3
    assert [(one["available"], one["refused"]) for one in found.values()] == [(False, False)] * 3
