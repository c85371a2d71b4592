"""``ignis locks``: who leads, and who holds which lock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.cli import main
from ignis.locks import LockLevel, LockManager
from tests.support.broker import running

MakeApp = Callable[..., ignis.Ignis]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def new_manager(new_app: MakeApp) -> Iterator[Callable[..., LockManager]]:
    """Managers of the application and deployment that the command line means, unless said otherwise."""
    made: list[LockManager] = []

    def make(url: str, client_id: str = "ignis", farm_id: str = "local", **settings: Any) -> LockManager:
        made.append(LockManager(client_id, farm_id, new_app(url).store, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close(5)


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_nobody_holds_anything(embedded_url: str, new_app: MakeApp, run: Run) -> None:
    new_app(embedded_url).store.queues.list()
    code, out, err = run("locks", "-u", embedded_url)
    assert code == 0
    assert [line[:2] for line in words(out)] == [
        ["scope", "leader"],
        ["sweeper", "nobody"],
        ["schedules", "nobody"],
        ["autoscaler", "nobody"],
    ]
    assert err == "nobody holds a lock\n"
    assert json.loads(run("locks", "-u", embedded_url, "--json")[1])["locks"] == []


def test_leaders_and_locks_are_listed(embedded_url: str, new_app: MakeApp, new_manager: Any, run: Run) -> None:
    app, manager = new_app(embedded_url), new_manager(embedded_url)
    fence = app.leader("reports").lead()
    lock, wide = manager.lock("nightly report"), manager.lock("export", LockLevel.XDC)
    assert lock.try_acquire(ttl_s=3600)
    assert wide.try_acquire(ttl_s=3600)
    own = app.store.locks.acquire("own", "somebody", 3600)
    assert own is not None
    # None of these is meant: released, of another application, of another deployment, in another table.
    gone = manager.lock("gone")
    assert gone.try_acquire()
    gone.release()
    for other in ({"client_id": "ignis2"}, {"farm_id": "east"}, {"suffix": "other"}):
        assert new_manager(embedded_url, **other).lock("not mine").try_acquire()

    code, out, err = run("locks", "-u", embedded_url, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    leaders = {one["scope"]: one for one in shown["leaders"]}
    assert set(leaders) == {"sweeper", "schedules", "autoscaler", "reports"}
    assert (leaders["reports"]["leader"], leaders["reports"]["epoch"]) == (app.store.owner, fence.epoch)
    held = manager.holder("nightly report")
    assert held is not None
    assert shown["locks"][:2] == [
        {
            "lock": "own", "level": "app", "owner": "somebody", "token": own.token, "acquired_at_ms": own.acquired_at_ms,
            "expires_at_ms": own.expires_at_ms,
        },
        {
            "lock": "nightly report", "level": "dc", "owner": held.owner, "token": lock.token,
            "acquired_at_ms": held.acquired_at_ms, "expires_at_ms": held.expires_at_ms,
        },
    ]  # fmt: skip
    assert [(one["lock"], one["level"]) for one in shown["locks"][2:]] == [("export", "xdc")]

    code, out, err = run("locks", "-u", embedded_url)
    assert (code, err) == (0, "")
    table = out[out.index("lock ") :]
    assert words(table)[0] == ["lock", "level", "owner", "since", "until", "token"]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["own", "nightly", "export"]
    assert [
        one["lock"]
        for one in json.loads(run("locks", "-u", embedded_url, "--json", "--suffix", "other")[1])["locks"][1:]
    ] == ["not mine"]


def test_names_choose(embedded_url: str, new_app: MakeApp, new_manager: Any, run: Run) -> None:
    app, manager = new_app(embedded_url), new_manager(embedded_url)
    for level in LockLevel:
        assert manager.lock("l", level).try_acquire()
    assert manager.lock("a long name / of two").try_acquire()
    assert app.store.locks.acquire("l", "somebody", 60) is not None
    code, out, _ = run("locks", "-u", embedded_url, "--json", "l", "l", "none")
    shown = json.loads(out)
    assert code == 0
    assert [(one["lock"], one["level"]) for one in shown["locks"]] == [("l", "dc"), ("l", "xdc"), ("l", "app")]
    assert shown["leaders"] == []
    assert run("locks", "-u", embedded_url, "a long name / of two")[0] == 0

    code, out, err = run("locks", "-u", embedded_url, "none")
    assert (code, out, err) == (5, "", "nobody holds any of these locks\n")
    assert run("locks", "-u", embedded_url, "sweeper")[0] == 5
    app.leader().lead()
    code, out, _ = run("locks", "-u", embedded_url, "--json", "sweeper")
    shown = json.loads(out)
    assert (code, [one["leader"] for one in shown["leaders"]], shown["locks"]) == (0, [app.store.owner], [])
    code, _, err = run("locks", "-u", embedded_url, "two\nlines")
    assert (code, "lock id" in err) == (2, True)


def test_looking_changes_nothing(embedded_url: str, new_app: MakeApp, run: Run) -> None:
    app = new_app(embedded_url)
    app.store.locks.next_epoch("reports")
    for _ in range(2):
        assert run("locks", "-u", embedded_url)[0] == 0
        assert run("locks", "-u", embedded_url, "reports", "other")[0] == 5
    assert app.store.locks.epochs() == {"reports": 1}
    assert app.store.locks.held() == []


def test_a_broker_is_asked_by_name(embedded_url: str, new_manager: Any, run: Run) -> None:
    with running(embedded_url) as broker:
        assert new_manager(broker.url).lock("l").try_acquire()
        code, out, err = run("locks", "-u", broker.url)
        assert (code, words(out)[0][0]) == (0, "scope")
        assert err == "this store has no list of its locks; name those that you look for: ignis locks NAME\n"
        assert json.loads(run("locks", "-u", broker.url, "--json")[1])["locks"] is None
        code, out, _ = run("locks", "-u", broker.url, "--json", "l")
        assert (code, [(one["lock"], one["level"]) for one in json.loads(out)["locks"]]) == (0, [("l", "dc")])


def test_no_store_there(embedded_url: str, run: Run) -> None:
    assert run("locks", "-u", embedded_url)[0] == 3


def test_nobody_can_tell_who_leads(
    embedded_url: str, new_app: MakeApp, new_manager: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kazoo")
    assert new_manager(embedded_url).lock("l").try_acquire()
    monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", "zk://127.0.0.1:1")
    monkeypatch.setenv("IGNIS_LEADER_SESSION_TIMEOUT_S", "2")
    code, out, _ = run("locks", "-u", embedded_url, "--json")
    shown = json.loads(out)
    assert code == 3
    assert [one["scope"] for one in shown["leaders"]] == ["sweeper", "schedules", "autoscaler"]
    assert {one["available"] for one in shown["leaders"]} == {False}
    assert [one["lock"] for one in shown["locks"]] == ["l"]
