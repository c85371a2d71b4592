"""``ignis doctor`` and ``ignis locks`` of a real Aerospike: what is well, and each thing that can be wrong there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ignis
from ignis.cli import doctor_aerospike, main
from ignis.errors import StoreError
from tests.conftest import MakeApp
from tests.support import aerospike as aerospike_support
from tests.support import eventually
from tests.support.aerospike import Asd

pytestmark = pytest.mark.integration

Examine = Callable[[str], tuple[int, dict[str, dict[str, str]]]]
OK = dict.fromkeys(("reach", "version", "clock", "queues", "namespace", "room"), "ok")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asd]:
    """One that the test may kill and set differently."""
    monkeypatch.delenv("IGNIS_CONFIG", raising=False)
    pytest.importorskip("aerospike", reason="the driver is not installed: pip install 'ignis-mq[aerospike]'")
    one = aerospike_support.new_server()
    try:
        yield one
    finally:
        one.remove()


@pytest.fixture
def examine(capfd: pytest.CaptureFixture[str]) -> Examine:
    """The exit code, and the findings by code."""

    def call(url: str) -> tuple[int, dict[str, dict[str, str]]]:
        capfd.readouterr()
        code = main(["doctor", "--json", url])
        document = json.loads(capfd.readouterr().out)
        assert document["sound"] == (code == 0)
        return code, {one["code"]: one for one in document["findings"]}

    return call


def url(server: Asd, namespace: str = "test", user: str = "", **options: Any) -> str:
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return f"aerospike://{user}{server.address(namespace)}?client_id=shop{query}"


def grades(findings: dict[str, dict[str, str]]) -> dict[str, str]:
    return {code: one["grade"] for code, one in findings.items()}


def configure(server: Asd, setting: str) -> None:
    client = aerospike_support.raw_client(server.address())
    try:
        for error, answer in client.info_all(f"set-config:context=namespace;id=test;{setting}").values():
            assert (error, str(answer).strip().rpartition("\t")[2]) == (None, "ok")
    finally:
        client.close()


def test_a_sound_server(server: Asd, new_app: MakeApp, examine: Examine) -> None:
    new_app(url(server, "durable")).queue("q", bytes).publish(b"x")
    code, findings = examine(url(server, "durable"))
    assert (code, grades(findings)) == (0, OK)
    assert findings["queues"]["what"] == "1 queue(s) of local/shop"
    assert findings["version"]["what"].startswith("1 server(s) of Aerospike ")
    assert "writes stop at 70 %" in findings["room"]["what"]


def test_a_namespace_in_memory_is_a_note(server: Asd, examine: Examine) -> None:
    code, findings = examine(url(server))
    assert (code, grades(findings)) == (0, {**OK, "storage": "note"})


def test_the_server_is_down(server: Asd, examine: Examine, capfd: pytest.CaptureFixture[str]) -> None:
    server.kill()
    code, findings = examine(url(server))
    assert (code, grades(findings)) == (3, {"reach": "problem"})
    assert findings["reach"]["do"]
    assert main(["locks", "-u", url(server)]) == 3
    assert "cannot be reached" in capfd.readouterr().err


def test_another_namespace(server: Asd, examine: Examine, capfd: pytest.CaptureFixture[str]) -> None:
    code, findings = examine(url(server, "nowhere"))
    assert (code, grades(findings)) == (1, {"namespace": "problem"})
    assert "it has durable, test" in findings["namespace"]["what"]
    assert findings["namespace"]["do"]
    assert main(["locks", "-u", url(server, "nowhere")]) == 1
    assert "it has durable, test" in capfd.readouterr().err


def test_a_user_where_the_server_has_none(server: Asd, examine: Examine) -> None:
    """The Community Edition knows no users; and TLS, which is on with a user, is what it does not speak."""
    code, findings = examine(url(server, user="ann:secret@", tls="off"))
    assert (code, grades(findings)) == (1, {"open": "problem"})
    assert "leave user and password away" in findings["open"]["what"]
    assert "secret" not in str(findings)
    code, findings = examine(url(server, user="ann:secret@", retries=1))
    assert (code, grades(findings)) == (3, {"reach": "problem"})
    assert "tls=off" in findings["reach"]["what"]


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_clocks_that_are_apart(server: Asd, examine: Examine, ahead_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_aerospike, "time", SimpleNamespace(time=lambda: time.time() + ahead_s))
    code, findings = examine(url(server))
    assert (code, findings["clock"]["grade"]) == (1, "problem")
    assert "59 min" in findings["clock"]["what"] or "1 h" in findings["clock"]["what"]
    assert "NTP" in findings["clock"]["do"]


def test_a_namespace_that_refuses_times_to_live(server: Asd, new_app: MakeApp, examine: Examine) -> None:
    configure(server, "nsup-period=0")
    code, findings = examine(url(server))
    assert (code, findings["namespace"]["grade"]) == (1, "problem")
    assert "nsup-period" in findings["namespace"]["what"]
    with pytest.raises(StoreError, match="nsup-period"):  # and so it is
        new_app(url(server)).queue("q", bytes).publish(b"x")


def test_a_namespace_that_is_full(server: Asd, examine: Examine) -> None:
    # The server looks every few seconds how much of the machine's memory is used; more than one percent is, anywhere.
    configure(server, "stop-writes-sys-memory-pct=1")
    eventually(lambda: examine(url(server))[0] == 1, "the server stops writes")
    code, findings = examine(url(server))
    assert (code, findings["room"]["grade"]) == (1, "problem")
    assert "takes no more writes" in findings["room"]["what"]
    assert findings["room"]["do"]


def test_locks_by_name(server: Asd, new_app: MakeApp, capfd: pytest.CaptureFixture[str]) -> None:
    app: ignis.Ignis = new_app(url(server))
    fence = app.leader().lead()
    lease = app.store.locks.acquire("own", "ann", 60)
    assert lease is not None
    capfd.readouterr()
    assert main(["locks", "-u", url(server), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    leaders = {one["scope"]: (one["leader"], one["epoch"]) for one in shown["leaders"]}
    assert leaders["sweeper"] == (app.store.owner, fence.epoch)
    assert shown["locks"] is None
    assert main(["locks", "-u", url(server), "--json", "own"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [(one["lock"], one["owner"], one["token"]) for one in shown["locks"]] == [("own", "ann", lease.token)]
    assert main(["locks", "-u", url(server), "nobody's"]) == 5
