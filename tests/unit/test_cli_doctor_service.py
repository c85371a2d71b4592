"""``ignis doctor`` of a broker's URL; of a directory see ``tests/integration/test_doctor.py``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ignis.broker.auth.authenticator import KnownUser
from ignis.broker.auth.principal import Credentials
from ignis.broker.auth.users_file import User
from ignis.broker.client.store import BrokerStore
from ignis.broker.client.store_magazines import BrokerMagazines
from ignis.cli import doctor_service, main
from ignis.errors import UnauthenticatedError
from ignis.storage import open_store
from ignis.storage.base import QueueRecord
from tests.support.broker import RunningBroker, running


class Tokens:
    """Lets in whoever has a token of a name, a bar, and rules."""

    open = False

    def authenticate(self, credentials: Credentials) -> KnownUser:
        name, _, rules = credentials.token.partition("|")
        if not rules:
            raise UnauthenticatedError("unknown user, or wrong token")
        return KnownUser(User(name, rules.split()))


Run = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """The exit code, and the findings by code."""

    def call(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        capfd.readouterr()
        code = main(["doctor", "--json", *arguments])
        document = json.loads(capfd.readouterr().out)
        assert document["sound"] == (code == 0)
        return code, {one["code"]: one for one in document["findings"]}

    return call


@pytest.fixture
def broker(embedded_url: str) -> Iterator[RunningBroker]:
    with running(embedded_url) as one:
        yield one


def grades(findings: dict[str, dict[str, str]]) -> dict[str, str]:
    return {code: one["grade"] for code, one in findings.items()}


def test_a_sound_broker(broker: RunningBroker, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    with open_store(broker.url) as store:
        store.queues.put(QueueRecord("q"))
        code, findings = run(broker.url)
        assert [one.name for one in store.queues.list()] == ["q"]
    assert code == 0
    assert grades(findings) == dict.fromkeys(("reach", "login", "version", "queues", "room", "clock"), "ok")
    assert findings["queues"]["what"] == "1 queue(s) of local/ignis"
    assert main(["doctor", broker.url]) == 0
    assert capfd.readouterr().out.startswith(f"ok reach: {broker.url} answers\n")


def test_nobody_answers(broker: RunningBroker, run: Run) -> None:
    url = broker.url
    broker.stop()
    code, findings = run(f"{url}?connect_timeout_s=1")
    assert (code, grades(findings)) == (3, {"reach": "problem"})
    assert findings["reach"]["do"]


def test_clocks_that_are_apart(broker: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead_s, grade, expected in ((3_600, "problem", 1), (-3_600, "problem", 1), (0, "ok", 0)):
        monkeypatch.setattr(BrokerStore, "now_s", lambda store, ahead_s=ahead_s: time.time() + ahead_s)
        code, findings = run(broker.url)
        assert (code, findings["clock"]["grade"]) == (expected, grade)


def test_room_and_damage(broker: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, Any] = {
        "max_store_bytes": 1000,
        "used_bytes": 1700,
        "used_bytes_sync": 850,
        "used_bytes_none": 850,
    }
    monkeypatch.setattr(BrokerStore, "stats", lambda store: figures)
    assert run(broker.url)[0] == 0  # the bound counts for each durability
    figures["used_bytes_none"] = 900
    code, findings = run(broker.url)
    assert (code, findings["room"]["grade"]) == (1, "problem")
    figures.update(used_bytes_none=0, damaged_bytes=7)
    code, findings = run(broker.url)
    assert (code, findings["room"]["grade"], findings["damaged"]["grade"]) == (1, "ok", "problem")


def test_another_version(broker: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_service, "__version__", "0.0.9")
    code, findings = run(broker.url)
    assert (code, findings["version"]["grade"]) == (0, "note")
    assert "0.0.9" in findings["version"]["what"]


def test_zookeeper_that_does_not_answer(broker: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kazoo")
    monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", "zk://127.0.0.1:1")
    monkeypatch.setenv("IGNIS_LEADER_SESSION_TIMEOUT_S", "2")
    code, findings = run(broker.url)
    assert (code, findings["zookeeper"]["grade"], findings["reach"]["grade"]) == (3, "problem", "ok")


def test_nothing_is_repaired_there(broker: RunningBroker) -> None:
    assert main(["doctor", "--repair", broker.url]) == 2


def test_a_store_in_memory_is_refused() -> None:
    assert main(["doctor", "memory://x"]) == 2


def test_login_and_rights(embedded_url: str, run: Run) -> None:
    with running(embedded_url, authenticator=Tokens()) as broker:
        code, findings = run(f"{broker.url}?token=nobody")
        assert (code, grades(findings)) == (1, {"login": "problem"})
        code, findings = run(f"{broker.url}?token=ann|publish:orders")
        assert code == 0
        assert (findings["login"]["grade"], "'ann'" in findings["login"]["what"]) == ("ok", True)
        refused = [one for one in findings.values() if one["what"].startswith("not looked at: ")]
        assert {one["code"] for one in refused} == {"version", "queues"}
        assert {one["grade"] for one in refused} == {"note"}
        assert all(one["do"] for one in refused)


def test_a_clock_that_is_not_asked_is_not_reported(
    broker: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerMagazines, "keeps_later", False)
    code, findings = run(broker.url)
    assert (code, "clock" in findings) == (0, False)
