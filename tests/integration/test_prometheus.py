"""A real Prometheus scrapes a live worker and a broker, and evaluates every alert and every panel of the dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.server.health import broker_endpoint
from ignis.supervisor.http_routes import app_endpoint
from tests.support import eventually, wait_idle
from tests.support.broker import RunningBroker
from tests.support.prometheus import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ignis" / "deploy" / "prometheus" / "ignis.rules.yml"
DASHBOARD = ROOT / "ignis" / "deploy" / "grafana" / "ignis.json"
START_S = 60.0
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: ignis-worker
    static_configs: [{{targets: ["{worker}"]}}]
  - job_name: ignis-broker
    static_configs: [{{targets: ["{broker}"]}}]
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not RULES.is_file(), reason="no repository around the tests"),
]


class Prometheus:
    """A server of its own, in a directory of its own."""

    def __init__(self, directory: Path, targets: dict[str, str]) -> None:
        server = program("prometheus")
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, **targets))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = (directory / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                server, f"--config.file={config}", f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--storage.tsdb.retention.time=1h", "--log.level=warn",
            ],
            stdout=self._log,
            stderr=self._log,
        )  # fmt: skip

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=START_S
        ) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """Raises HTTPError for what is no query."""
        found: list[dict[str, Any]] = self.ask("/api/v1/query", query=text)["result"]
        return found

    def value(self, text: str) -> float:
        [one] = self.query(text)
        return float(one["value"][1])

    @property
    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.url}/-/ready", timeout=START_S).status == 200)
        return False

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


@pytest.fixture
def app(embedded_url: str) -> Iterator[ignis.Ignis]:
    with ignis.Ignis(embedded_url) as app:
        queue = app.queue("jobs", int)
        queue.handler(lambda n: n % 10 != 0)
        queue.publish_many(range(1_000))
        app.start()
        wait_idle(queue)
        eventually(lambda: queue.sideline.pending() == 100)
        app.refresh()
        yield app


def test_alerts_and_dashboard_by_a_real_prometheus(app: ignis.Ignis, tmp_path: Path) -> None:
    running = RunningBroker(f"embedded://{tmp_path / 'broker'}")
    with contextlib.ExitStack() as closing:
        closing.callback(running.stop)
        worker, broker = app_endpoint("0", app), broker_endpoint("0", running.broker)
        closing.callback(worker.close)
        closing.callback(broker.close)
        targets = {"worker": f"127.0.0.1:{worker.port}", "broker": f"127.0.0.1:{broker.port}"}
        prometheus = Prometheus(tmp_path, targets)
        closing.callback(prometheus.close)
        eventually(lambda: prometheus.ready, timeout=START_S)
        eventually(lambda: len(prometheus.query("up == 1")) == 2, timeout=START_S)
        eventually(
            lambda: len(prometheus.query("count_over_time(ignis_consumed_total[1m]) >= 3")) == 1, timeout=START_S
        )

        # What it has is what was done.
        assert prometheus.value('ignis_consumed_total{queue="jobs"}') == 900
        assert prometheus.value('sum(ignis_sidelined_total{queue="jobs"})') == 100
        assert prometheus.value('ignis_end_to_end_duration_seconds_count{queue="jobs"}') == 900
        assert prometheus.value('ignis_handler_duration_seconds_bucket{le="+Inf"}') == 1_000
        assert len(prometheus.query("ignis_build_info")) == 2

        # Every rule was evaluated, without an error.
        def rules() -> list[dict[str, Any]]:
            return [one for group in prometheus.ask("/api/v1/rules")["groups"] for one in group["rules"]]

        eventually(lambda: all(one["health"] != "unknown" for one in rules()), timeout=START_S)
        assert [one["name"] for one in rules() if one["health"] != "ok"] == []
        assert len(rules()) == RULES.read_text("utf-8").count("- alert: ")
        firing = {one["name"] for one in rules() if one["state"] == "firing"}
        assert firing <= {"IgnisSweeperFails"}, "nothing is wrong here"

        # Every panel is a query; those of what a worker and a broker have show something.
        empty = []
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*")
                assert "$" not in re.sub(r"\{[^}]*\}", "", text)
                try:
                    found = prometheus.query(text)
                except urllib.error.HTTPError as exc:
                    pytest.fail(f"{panel['title']}: {text}: {exc.read().decode()}")
                if not found:
                    empty.append(text)
        allowed = ("> 0", "ignis_processes", "ignis_process_deaths_total", "ignis_schedule_lag_seconds")
        assert [text for text in empty if not any(one in text for one in allowed)] == []
