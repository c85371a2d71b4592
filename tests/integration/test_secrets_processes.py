"""What the services print, log and answer shows no secret of their store's URL."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.principal import Anyone, Credentials, Principal
from ignis.broker.client import requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.server.health import broker_endpoint
from ignis.errors import UnauthenticatedError
from tests.support import WAIT_S
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration

SECRET = "s3cr3t"
APP = """
import ignis

app = ignis.Ignis()
app.queue("q", bytes).handler(concurrency=1)(lambda message: None)
"""


class Doorman:
    """Lets in who knows the secret."""

    open = False

    def authenticate(self, credentials: Credentials) -> Principal:
        if SECRET not in (credentials.token, credentials.password):
            raise UnauthenticatedError("not let in")
        return Anyone()


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[RunningBroker]:
    with running(f"embedded://{tmp_path}/store", authenticator=Doorman()) as broker:
        with broker.client(token=SECRET) as client:
            client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        yield broker


@pytest.mark.parametrize("form", ["ignis://127.0.0.1:{port}/?token={secret}", "ignis://me:{secret}@127.0.0.1:{port}"])
def test_a_broker_in_front_of_another(inner: RunningBroker, caplog: pytest.LogCaptureFixture, form: str) -> None:
    url = form.format(port=inner.port, secret=SECRET)
    with caplog.at_level(logging.DEBUG), running(url) as broker, Wire(broker.port) as wire:
        wire.greet()
        health = broker_endpoint("0", broker.broker)
        try:
            answers: list[Any] = []
            for number, command in enumerate(
                (Command.NODE_STATUS, Command.CLUSTER_STATUS, Command.METRICS, Command.STATS, Command.LIST_QUEUES), 10
            ):
                wire.send(command, number, pack([]))
                answers.append(wire.receive())
            wire.send(Command.QUEUE_INFO, 20, pack(["nothing-there"]))
            answers.append(wire.receive())
            for path in ("healthz", "metrics"):
                with urllib.request.urlopen(f"{health.url}/{path}", timeout=WAIT_S) as reply:
                    answers.append(reply.read())
        finally:
            health.close()
    assert "in front of ignis://127.0.0.1" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(answers)


@pytest.mark.parametrize("json_lines", [True, pytest.param(False, marks=pytest.mark.long)], ids=["json", "text"])
@pytest.mark.parametrize("service", ["broker", "relay", "worker", "bad"])
def test_start_lines(inner: RunningBroker, tmp_path: Path, service: str, json_lines: bool) -> None:
    url = f"ignis://127.0.0.1:{inner.port}/?token={SECRET}"
    arguments = {
        "broker": ["broker", "--bind", "127.0.0.1:0"],
        "relay": ["relay", "--dir", str(tmp_path / "relay")],
        "worker": ["worker", "secret_app:app", "--queue", "q"],
        "bad": ["queues", "list"],
    }[service]
    (tmp_path / "secret_app.py").write_text(APP)
    given = url if service != "bad" else f"ignis://user:{SECRET}"
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", *arguments, "--url", given, "--log-level", "debug", *(["--json"] * json_lines)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "IGNIS_URL": url, "PYTHONPATH": f"{tmp_path}:."},
    )  # fmt: skip
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if '"started"' in line or "SIGTERM or Ctrl-C" in line:
                break
        process.send_signal(signal.SIGTERM)
        lines += process.communicate(timeout=WAIT_S)[0].splitlines()
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)
    assert lines
    assert SECRET not in "\n".join(lines)
    if service != "bad":
        assert any("ignis://127.0.0.1" in line for line in lines), lines
        assert not json_lines or any(json.loads(line).get("event") == "started" for line in lines if line[0] == "{")
