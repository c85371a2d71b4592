"""``ignis leader`` where a file lock decides; with ZooKeeper see ``tests/integration/zookeeper/test_zookeeper_leader.py``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.cli import main
from ignis.storage.base import QueueRecord

MakeApp = Callable[..., ignis.Ignis]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return call


def test_nobody_leads_yet(embedded_url: str, new_app: MakeApp, run: Any) -> None:
    new_app(embedded_url).store.queues.put(QueueRecord("q"))
    code, out, _ = run("leader", "-u", embedded_url)
    assert code == 5
    assert [line.split() for line in out.splitlines()] == [
        ["what", "value"], ["leader", "nobody"], ["sweeping", "nobody"], ["since", "-"], ["epoch", "0"],
        ["decided", "by", "file"], ["members", "none"],
    ]  # fmt: skip


def test_nobody_leads_before_the_first_sweep_is_due(
    embedded_url: str, new_app: MakeApp, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the first ten minutes of any fleet: nothing is wrong then."""
    new_app(embedded_url).queue("q").open()
    code, out, _ = run("leader", "-u", embedded_url)
    assert (code, "nobody yet: the first sweep is due in 9 min" in out) == (5, True)
    assert 500 < json.loads(run("leader", "-u", embedded_url, "--json")[1])["first_sweep_due_s"] <= 600
    assert "nobody yet" not in run("leader", "-u", embedded_url, "--scope", "schedules")[1]
    monkeypatch.setenv("IGNIS_SWEEPER_INITIAL_DELAY_S", "0")
    assert "nobody yet" not in run("leader", "-u", embedded_url)[1]


def test_who_leads_and_what_was_swept(embedded_url: str, new_app: MakeApp, run: Any) -> None:
    app, other = new_app(embedded_url), new_app(embedded_url)
    app.store.queues.put(QueueRecord("q", extra={"sweep": {"epoch": 1, "at_ms": 1_700_000_000_000}}))
    fence = app.leader().lead()
    other.leader().start()
    code, out, _ = run("leader", "-u", embedded_url, "--json")
    assert code == 0
    status = json.loads(out)
    since_s = app.leader().since_s
    assert since_s is not None
    assert status.pop("since_ms") == int(since_s * 1000)
    owner = app.store.owner
    assert sorted(status.pop("members")) == sorted([owner, other.store.owner])
    assert status == {
        "kind": "file", "scope": "sweeper", "leader": owner, "sweeping": owner, "epoch": fence.epoch,
        "here": False, "available": True, "trouble": "", "refused": False, "first_sweep_due_s": None,
        "swept_queues": {"q": {"epoch": 1, "at_ms": 1_700_000_000_000}},
    }  # fmt: skip
    code, out, _ = run("leader", "-u", embedded_url)
    assert code == 0
    assert "2023-11-14 22:13:20+00:00" in out
    app.close()
    code, out, _ = run("leader", "-u", embedded_url, "--json")
    status = json.loads(out)
    assert (code, status["leader"], status["epoch"], status["members"]) == (5, "", fence.epoch, [other.store.owner])


def test_scopes_are_apart(embedded_url: str, new_app: MakeApp, run: Any) -> None:
    new_app(embedded_url).leader("autoscaler").lead()
    assert run("leader", "-u", embedded_url, "--scope", "autoscaler")[0] == 0
    assert run("leader", "-u", embedded_url)[0] == 5


def test_settings_count(embedded_url: str, new_app: MakeApp, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new_app(embedded_url).store.queues.put(QueueRecord("q"))
    monkeypatch.setenv("IGNIS_LEADER_KIND", "lease")
    code, out, _ = run("leader", "-u", embedded_url, "--json")
    assert (code, json.loads(out)["kind"], json.loads(out)["members"]) == (5, "lease", None)
    monkeypatch.setenv("IGNIS_LEADER_KIND", "zookeeper")
    code, _, err = run("leader", "-u", embedded_url)
    assert code == 2
    assert "leader.zookeeper names no hosts" in err
