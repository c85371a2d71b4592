"""While the store is away a process goes on showing what it knows by itself, within a bounded time and without a traceback."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis.broker.server.health import broker_endpoint
from ignis.errors import StoreUnreachableError
from ignis.supervisor import LocalProcesses
from ignis.supervisor.http_routes import app_endpoint, supervisor_endpoint
from tests.support import eventually, wait_idle
from tests.support.broker import RunningBroker
from tests.support.fleet import START_S

pytestmark = pytest.mark.integration

SCRAPE_S = 8.0
"""A Prometheus gives up after 10 s."""


def ask(port: int, path: str) -> tuple[int, str]:
    began_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
    assert time.monotonic() - began_s < SCRAPE_S, path
    return answer.status, text


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", "broker", "--url", f"embedded://{tmp_path}/store", "--bind", "127.0.0.1:0", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        yield process, f"ignis://{started['address']}"
    finally:
        process.kill()
        process.communicate(timeout=START_S)


@pytest.mark.parametrize(
    "times",
    [{"timeout_s": 1, "connect_timeout_s": 1}, pytest.param({}, marks=pytest.mark.long)],
    ids=["short times", "as they are"],
)
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "gone"])
def test_a_worker_whose_broker_is_away(
    broker: tuple[subprocess.Popen[bytes], str],
    how: signal.Signals,
    times: dict[str, float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    process, url = broker
    with ignis.Ignis(url, store=times) as app:
        queue = app.queue("jobs", int)
        queue.handler(lambda n: None)
        queue.publish_many(range(5))
        app.start()
        wait_idle(queue)
        endpoint = app_endpoint("0", app)
        try:
            port = endpoint.port
            status, text = ask(port, "/metrics")
            assert (status, "ignis_store_up 1.0" in text) == (200, True)
            assert 'ignis_queue_pending{queue="jobs"} 0.0' in text
            process.send_signal(how)
            with caplog.at_level(logging.WARNING):
                eventually(lambda: "ignis_store_up 0.0" in ask(port, "/metrics")[1], timeout=START_S)
                for _ in range(2):
                    status, text = ask(port, "/metrics")
                    assert status == 200
                    assert "ignis_store_up 0.0" in text
                    assert 'ignis_consumed_total{queue="jobs"} 5.0' in text
                    assert 'ignis_leader_leading{scope="sweeper"}' in text
                    assert "ignis_queue_pending{" not in text
                assert ask(port, "/scale")[0] == 503
                # It goes on by itself when the store is back, and a new process would not reach it either.
                assert (ask(port, "/livez")[0], ask(port, "/readyz")[0]) == (200, 200)
            said = [one for one in caplog.records if one.name in ("ignis.metrics", "ignis.http_endpoint")]
            assert {one.name for one in said} == {"ignis.metrics", "ignis.http_endpoint"}
            assert [one.getMessage() for one in said if one.exc_info or "\n" in one.getMessage()] == []
            if how == signal.SIGSTOP:
                process.send_signal(signal.SIGCONT)
                eventually(lambda: "ignis_store_up 1.0" in ask(port, "/metrics")[1], timeout=START_S)
        finally:
            endpoint.close()
            process.send_signal(signal.SIGCONT)
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_supervisor_whose_processes_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("import time\ntime.sleep(60)\n")
    with LocalProcesses("jobs", ["--url", "ignis://127.0.0.1:9"], directory=str(tmp_path)) as fleet:
        endpoint = supervisor_endpoint("0", fleet.supervisor, lambda: None)
        try:
            status, text = ask(endpoint.port, "/metrics")
            assert status == 200
            assert "ignis_store_up 0.0" in text
            assert "ignis_processes_wanted 1.0" in text
            assert ask(endpoint.port, "/scale")[0] == 503
        finally:
            endpoint.close()
            for one in list(fleet.supervisor._living):
                one.kill()


def test_a_broker_whose_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store") as running:
        endpoint = broker_endpoint("0", running.broker)
        try:
            text = ask(endpoint.port, "/metrics")[1]
            assert "ignis_store_up 1.0" in text
            assert "ignis_store_limit_bytes" in text
            assert "ignis_store_calls_total" not in text, "they are of one application"

            def fail() -> None:
                raise StoreUnreachableError("away")

            monkeypatch.setattr(running.broker, "store_stats", fail)
        finally:
            endpoint.close()
        endpoint = broker_endpoint("0", running.broker)
        try:
            status, text = ask(endpoint.port, "/metrics")
            assert (status, "ignis_store_up 0.0" in text, "ignis_broker_connections" in text) == (200, True, True)
        finally:
            endpoint.close()
