"""Prometheus' own judge of metrics finds nothing to say about what ignis shows."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector as BaseCollector

import ignis
from ignis.broker.server.health import broker_endpoint
from ignis.figures import TIMES
from ignis.metric_catalogue import HISTOGRAM
from ignis.metrics import _METRICS, Exposition, _Families
from ignis.supervisor.http_routes import app_endpoint
from tests.support import WAIT_S, eventually, wait_idle
from tests.support.broker import RunningBroker
from tests.support.prometheus import promtool


def scrape(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:
        return bytes(answer.read())


def test_a_scrape_of_a_worker(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda n: n % 2 == 0)
    queue.publish_many(range(10))
    app.start()
    wait_idle(queue)
    eventually(lambda: queue.sideline.pending() == 5)
    endpoint = app_endpoint("0", app)
    try:
        assert promtool("check", "metrics", text=scrape(endpoint.url)) == ""
    finally:
        endpoint.close()


def test_a_scrape_of_a_broker(tmp_path: Path) -> None:
    running = RunningBroker(f"embedded://{tmp_path / 'store'}")
    endpoint = broker_endpoint("0", running.broker)
    try:
        text = scrape(endpoint.url)
        assert b"ignis_broker_connections 0.0" in text
        assert promtool("check", "metrics", text=text) == ""
    finally:
        endpoint.close()
        running.stop()


class _Everything(BaseCollector):
    """One series of every metric that there is, also of those that few processes have."""

    def collect(self) -> Iterable[Metric]:
        found = _Families()
        times = {one.metric: one for one in TIMES}
        for one in _METRICS.values():
            if one.kind == HISTOGRAM:
                found.add_time(times[one.name], [0] * (len(times[one.name].bounds_s) + 1), 0.0, *one.labels)
            else:
                found.add(one.name, 1, *one.labels)
        return found.all()


def test_every_metric_of_the_catalogue() -> None:
    text = Exposition(_Everything()).text()
    assert text.count(b"# HELP ") == len(_METRICS)
    assert promtool("check", "metrics", text=text) == ""
