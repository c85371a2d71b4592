"""A broker whose event loop is stuck, or over, is found out by its health endpoint, within a bound."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ignis.broker.server import health
from tests.support import WAIT_S
from tests.support.broker import RunningBroker


def ask(url: str, path: str = "/healthz") -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(url + path, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def test_it_names_no_file(tmp_path: Path) -> None:
    running = RunningBroker(f"embedded://{tmp_path / 'store'}")
    endpoint = health.broker_endpoint("0", running.broker)
    try:
        assert str(tmp_path) not in json.dumps(ask(endpoint.url))
    finally:
        endpoint.close()
        running.stop()


def test_a_loop_that_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = RunningBroker(f"embedded://{tmp_path / 'store'}")
    endpoint = health.broker_endpoint("0", running.broker)
    try:
        assert ask(endpoint.url)[0] == 200
        monkeypatch.setattr(health, "_LOOP_S", 0.2)
        free, stuck = threading.Event(), threading.Event()

        def hang() -> None:
            stuck.set()
            free.wait(WAIT_S)

        running.broker.loop.call_soon_threadsafe(hang)
        assert stuck.wait(WAIT_S)
        status, said = ask(endpoint.url)
        assert (ask(endpoint.url, "/livez")[0], ask(endpoint.url, "/readyz")[0]) == (503, 503)
        free.set()
        assert (status, said["status"]) == (503, "failing")
        assert "did not answer" in said["error"]
        monkeypatch.setattr(health, "_LOOP_S", WAIT_S)
        assert ask(endpoint.url)[0] == 200
        for path in ("/livez", "/readyz"):
            assert ask(endpoint.url, path) == (200, {"status": "ok"})
        running.broker.loop.call_soon_threadsafe(setattr, running.broker.state, "draining", True)
        assert ask(endpoint.url, "/livez") == (200, {"status": "ok"}), "a new process is no help"
        assert ask(endpoint.url, "/readyz") == (503, {"status": "failing", "error": "it drains"})
        running.broker.loop.call_soon_threadsafe(setattr, running.broker.state, "draining", False)
        running.stop()
        status, said = ask(endpoint.url)
        assert (status, said["status"]) == (503, "failing")
    finally:
        endpoint.close()
        running.stop()
