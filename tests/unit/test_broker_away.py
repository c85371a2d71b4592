"""What a store's client says while its broker is away."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ignis.broker.client import sync_client
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.errors import StoreUnreachableError

QUICK = {"connect_timeout_s": 0.2, "retry_wait_s": 0.001, "max_retry_wait_s": 0.01}


def client(*, resumes: bool = True, connects: int = 1) -> SyncClient:
    made = SyncClient(BrokerAddress(), QUICK, resumes=resumes)
    made.connects = connects
    return made


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The broker is away for so many attempts."""
    left = [times]

    def attempt(self: SyncClient, deadline: float) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionRefusedError(111, "Connection refused")
        return "a connection"

    monkeypatch.setattr(SyncClient, "_open_once", attempt)


def test_it_is_said_once_and_so_is_the_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waited for the connection had nothing to say until its own time was up, 10 or 20 seconds later."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sync_client, "_AWAY_S", 0.0)
    refusing(monkeypatch, 5)
    found = client()
    assert found._open(10, time.monotonic() + 10) == "a connection"
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert said == [
        ("WARNING", f"no connection to {found.address.name} for 0 s, trying again: [Errno 111] Connection refused"),
        ("INFO", f"connected to {found.address.name} again after 0 s"),
    ]


def test_how_long_it_is_away_counts_over_all_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, 1_000_000)
    found = client()
    with pytest.raises(StoreUnreachableError):
        found._open(0.05, time.monotonic() + 0.05)
    assert caplog.records == [], "two seconds are nothing to speak of"
    assert found._away_since_s is not None
    found._away_since_s -= 5
    with pytest.raises(StoreUnreachableError):
        found._open(0.05, time.monotonic() + 0.05)
    assert [one.getMessage().partition(" for ")[2] for one in caplog.records] == [
        "5 s, trying again: [Errno 111] Connection refused"
    ]


@pytest.mark.parametrize("kind", [{"connects": 0}, {"resumes": False}])
def test_who_gets_the_error_is_told_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: dict[str, Any]
) -> None:
    monkeypatch.setattr(sync_client, "_AWAY_S", 0.0)
    refusing(monkeypatch, 1_000_000)
    with pytest.raises(StoreUnreachableError):
        client(**kind)._open(0.05, time.monotonic() + 0.05)
    assert caplog.records == []


def test_a_broker_that_drains_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What follows would look like a crash."""
    caplog.set_level(logging.INFO)
    refusing(monkeypatch, 1_000_000)
    found = client()
    draining: Any = SimpleNamespace(alive=True, usable=False)
    found.connection = draining
    for _ in range(2):
        with pytest.raises(StoreUnreachableError):
            found.connect(0.05)
    said = [one.getMessage() for one in caplog.records]
    assert said == [
        f"{found.address.name} is shutting down: what is held is finished there, and the next one is looked for"
    ]
