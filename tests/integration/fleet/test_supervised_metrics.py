"""What a supervisor shows under ``/metrics``: of all its worker processes, also of what they do beside handling messages."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ignis
from ignis.metric_catalogue import BROKER, LEADER, UPKEEP
from ignis.metric_names import leader_metric
from tests.conftest import MakeApp
from tests.support import eventually
from tests.support.fleet import START_S, Command

RULES = Path(ignis.__file__).parent / "deploy" / "prometheus" / "ignis.rules.yml"
SWEEPS = """
import ignis
app = ignis.Ignis(
    consumer={"idle_poll_s": 0.05}, refresher={"watch_s": 0.1, "initial_delay_s": 0.1, "interval_s": 1},
    sweeper={"initial_delay_s": 0.1, "interval_s": 1}, leader={"refresh_s": 1},
)
app.schedule("tick", queue="q", message="tick", every="1h")

@app.queue("q", str, shards=4).handler
def handle(body):
    pass
"""
ZOOKEEPER_ONLY = {
    leader_metric(name) for name in ("unavailable_s", "losses", "refused_epochs", "members", "partitions")
}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def start(tmp_path: Path, embedded_url: str) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def call(*arguments: str, **options: Any) -> Command:
        made.append(Command(tmp_path, embedded_url, *arguments, **options))
        return made[-1]

    yield call
    for one in made:
        one.close()


def scraped(command: Command) -> dict[tuple[str, Labels], float]:
    status, text = command.get("/metrics")
    assert status == 200, text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of_sweeper(found: dict[tuple[str, Labels], float], name: str) -> float:
    return found.get((f"ignis_leader_{name}", (("scope", "sweeper"),)), 0)


def test_a_supervisor_shows_what_its_processes_do(
    start: Callable[..., Command], new_app: MakeApp, embedded_url: str
) -> None:
    queue = new_app(embedded_url).queue("q", str, shards=4)
    command = start("--processes", "2", "--health-bind", "0", module=SWEEPS).wait_started()
    queue.publish_many(["a", "b", "c"])
    eventually(lambda: of_sweeper(scraped(command), "leading") == 1, timeout=START_S)

    def settled() -> bool:
        found = scraped(command)
        return bool(
            found.get(("ignis_consumed_total", (("queue", "q"),))) == 3
            and found.get(("ignis_sweeper_passes_total", ()))
            and found.get(("ignis_refresh_passes_total", ()), 0) >= 2
        )

    eventually(settled, timeout=START_S)
    found = scraped(command)
    assert of_sweeper(found, "epoch") == of_sweeper(found, "offices_total") == 1, "one of the two leads"
    assert of_sweeper(found, "available") == 1
    assert of_sweeper(found, "since_timestamp_seconds") > 1e9
    assert found["ignis_queue_state", (("queue", "q"), ("state", "running"))] == 1
    assert found["ignis_sweeper_running", ()] == 1
    assert found["ignis_sweeper_last_pass_timestamp_seconds", ()] > 1e9
    assert found["ignis_store_calls_total", (("call", "fires"),)] >= 1, "of the processes, and not of the supervisor"
    names = {name for name, _ in found}
    assert {one.name for one in (*UPKEEP, *LEADER) if one not in ZOOKEEPER_ONLY} <= names

    # Every alert can fire: what its rule reads is there.
    used = set(re.findall(r"\bignis_[a-z_]+\b", RULES.read_text("utf-8")))
    assert used - names - {one.name for one in BROKER} == set()

    # What is counted stays when the process that counted it is gone.
    counted = {
        key: value
        for key, value in found.items()
        if key[0].endswith("_total")
        and key[0].startswith(("ignis_leader", "ignis_sweeper", "ignis_refresh", "ignis_store"))
    }
    first = command.wait_running(2)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    command.wait_running(2, without=first)
    after = scraped(command)
    assert {key: (value, after.get(key)) for key, value in counted.items() if after.get(key, -1) < value} == {}
    eventually(lambda: of_sweeper(scraped(command), "offices_total") == 2, timeout=START_S)
    assert of_sweeper(scraped(command), "leading") == 1
