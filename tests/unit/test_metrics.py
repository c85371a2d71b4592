"""Prometheus metrics: names, values, and that what only rises does so over the death of processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ignis
from ignis.figures import CONSUMER, QUEUE, SHOVEL
from ignis.message import REASONS
from ignis.metrics import Collector, Exposition
from ignis.supervisor.aggregate import Totals
from ignis.testing import ManualClock
from tests.support import WAIT_S, eventually, wait_idle

NAMES = {one.metric for one in (*QUEUE, *SHOVEL, *CONSUMER) if one.metric} | {
    "ignis_drain_rate", "ignis_handler_duration_seconds", "ignis_leader", "ignis_pool_buffers", "ignis_pool_slots",
    "ignis_queue_state", "ignis_refresh_errors", "ignis_refresh_passes", "ignis_ring_depth", "ignis_sidelined", "ignis_store",
    "ignis_scheduler", "ignis_sweeper", "ignis_timeout_count",
}  # fmt: skip


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_the_figures_of_an_application(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    queue.handler(lambda n: n % 2 == 0)
    exposition = Exposition(Collector(app.stats))
    queue.publish_many(range(10))
    before = parsed(exposition.text())
    jobs = (("queue", "jobs"),)
    assert before["ignis_queue_pending", jobs] == 10
    assert before["ignis_oldest_age_seconds", jobs] >= 0
    assert before["ignis_published_total", jobs] == 10
    app.start()
    wait_idle(queue)
    eventually(lambda: queue.sideline.pending() == 5)
    app.refresh()
    after = parsed(exposition.text())
    assert after["ignis_consumed_total", jobs] == 5
    assert after["ignis_sidelined_total", (("queue", "jobs"), ("reason", "rejected"))] == 5
    assert (after["ignis_queue_pending", jobs], after["ignis_queue_sideline", jobs]) == (0, 5)
    assert after["ignis_handler_duration_seconds_count", jobs] == 10
    assert after["ignis_handler_duration_seconds_sum", jobs] > 0
    assert after["ignis_claimed_messages_total", jobs] == 10
    assert after["ignis_claims_total", jobs] >= 1
    assert after["ignis_consumers", jobs] == 1
    assert after["ignis_drain_rate", jobs] > 0
    assert after["ignis_queue_state", (("queue", "jobs"), ("state", "running"))] == 1
    assert after["ignis_refresh_passes_total", ()] == 1
    assert after["ignis_ring_depth", ()] == 0
    assert after["ignis_store", (("figure", "loads"),)] >= 1
    names = {family.name for family in text_string_to_metric_families(exposition.text().decode())}
    assert names == NAMES


def test_a_consumers_figures_are_there_from_its_start(memory_app: ignis.Ignis) -> None:
    """With 0: one that appears with its first event shows no rise."""
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)
    families = Collector(memory_app.stats).collect()
    samples = {(one.name, *one.labels.values()) for family in families for one in family.samples}
    assert ("ignis_consumed_total", "jobs") not in samples, "none runs here"
    memory_app.start()
    found = {
        (one.name, *one.labels.values()): one.value
        for family in Collector(memory_app.stats).collect()
        for one in family.samples
    }
    for name in (
        "ignis_consumed_total", "ignis_claims_total", "ignis_late_acknowledgements_total", "ignis_claim_errors_total",
        "ignis_acknowledgement_errors_total", "ignis_timeout_count",
    ):  # fmt: skip
        assert found[name, "jobs"] == 0, name
    for reason in REASONS:
        assert found["ignis_sidelined_total", "jobs", reason] == 0
    assert memory_app.queue("jobs").stats()["consumer"]["handled"] == 0


def test_buffers_in_use_by_class(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a publisher whose store does not answer, until it does."""
    queue = memory_app.queue("blobs", bytes)
    blob = (("class", "4096"),)
    answers, asked = threading.Event(), threading.Event()
    real = queue.main.load_batches

    def slow(*arguments: Any) -> Any:
        asked.set()
        assert answers.wait(WAIT_S)
        return real(*arguments)

    monkeypatch.setattr(queue.main, "load_batches", slow)
    exposition = Exposition(Collector(memory_app.stats))
    before = parsed(exposition.text()).get(("ignis_pool_slots", blob), 0)
    with queue.publisher() as publisher:
        publisher.send(b"small")
        assert asked.wait(WAIT_S)
        for _ in range(5):
            publisher.send(b"x" * 3_000)
        found = parsed(exposition.text())
        assert found["ignis_pool_buffers", blob] == 5
        assert found["ignis_pool_slots", blob] >= before + 5
        answers.set()
        publisher.flush()
        assert parsed(exposition.text())["ignis_pool_buffers", blob] == 0
    assert parsed(exposition.text()).get(("ignis_pool_slots", blob), 0) == before


def test_buffers_of_living_processes_are_summed() -> None:
    totals = Totals()
    for number, active in ((1, 2), (2, 3)):
        totals.note(number, {**local(0, 0), "pool": [{"slot_bytes": 4096, "slots": 64, "active": active}]})
    assert totals.pool() == [{"slot_bytes": 4096, "slots": 128, "active": 5}]
    totals.close(2)
    assert totals.pool() == [{"slot_bytes": 4096, "slots": 64, "active": 2}]


def test_counts_outlive_the_consumer(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda n: None)
    assert "consumer" not in queue.local_stats()
    for total in (4, 8):
        queue.publish_many(range(4))
        app.start()
        wait_idle(queue)
        assert app.stop()
        counts = queue.local_stats()["consumer"]
        assert (counts["handled"], counts["timed"]) == (total, total)
        assert "concurrency" not in counts


def test_registering_does_not_open_the_store() -> None:
    app = ignis.Ignis("nosql://nowhere")
    assert list(Collector(app.stats).describe()) == []


def test_other_sections_are_shown_by_their_own_names() -> None:
    stats = {
        "sweeper": {"passes": 3, "running": True, "who": "host:1", "leader": {"epoch": 1}},
        "leaders": {"sweeper": {"kind": "file", "leading": True, "epoch": 9, "since_s": None}},
        "supervisor": {
            "wanted": 2, "deaths": 1, "restarts": 4, "recovered": 7,
            "processes": [{"state": "running"}, {"state": "running"}, {"state": "locked"}],
        },
        "autoscaler": {"leading": False, "workers": 2, "wanted": None},
    }  # fmt: skip
    found = parsed(Exposition(Collector(lambda: stats)).text())
    assert found["ignis_sweeper", (("figure", "passes"),)] == 3
    assert found["ignis_sweeper", (("figure", "running"),)] == 1
    assert found["ignis_leader", (("figure", "leading"), ("scope", "sweeper"))] == 1
    assert found["ignis_leader", (("figure", "epoch"), ("scope", "sweeper"))] == 9
    assert len([name for name, _ in found if name == "ignis_leader"]) == 2
    assert ("ignis_sweeper", (("figure", "who"),)) not in found
    assert found["ignis_processes", (("state", "running"),)] == 2
    assert found["ignis_recovered_total", ()] == 7
    assert found["ignis_autoscaler_wanted", ()] == 0


def local(handled: int, in_flight: int) -> dict[str, Any]:
    counts = {"handled": handled, "in_flight": in_flight, "concurrency": 2, "paused": False}
    return {"queues": [{"queue": "jobs", "published": 1, "shovel": {"moved": 1}, "consumer": counts}]}


def test_the_figures_of_a_schedule(memory_url: str) -> None:
    clock = ManualClock()
    with ignis.Ignis(memory_url, clock=clock) as app:
        app.schedules.add("s", queue="jobs", message=1, every="1h", missed="skip")
        clock.advance(3 * 3_600 + 30)
        app.scheduler().run_once()
        found = parsed(Exposition(Collector(app.stats)).text())
        labels = (("queue", "jobs"), ("schedule", "s"))
        for name, value in (("fired_total", 1), ("missed_total", 2), ("lag_seconds", 30), ("paused", 0)):
            assert found[f"ignis_schedule_{name}", labels] == value
        assert found["ignis_scheduler", (("figure", "fired"),)] == 1
        app.schedules.pause("s")
        assert parsed(Exposition(Collector(app.stats)).text())["ignis_schedule_paused", labels] == 1


def test_sums_over_processes_never_go_down() -> None:
    totals = Totals()
    totals.note(1, local(10, 3))
    totals.note(2, local(5, 1))
    one = totals.queues()["jobs"]
    assert (one["consumer"]["handled"], one["consumer"]["in_flight"], one["consumer"]["concurrency"]) == (15, 4, 4)
    totals.close(1)
    totals.close(1)
    totals.note(3, {})
    one = totals.queues()["jobs"]
    assert (one["consumer"]["handled"], one["consumer"]["in_flight"], one["published"]) == (15, 1, 2)
    assert one["shovel"]["moved"] == 2
    totals.note(3, local(1, 0))
    assert totals.queues()["jobs"]["consumer"]["handled"] == 16


def test_what_waits_in_one_sideline_is_not_counted_once_for_each_process() -> None:
    totals = Totals()
    for number, waiting in ((1, 4), (2, 3), (3, 0)):
        shovel = {"moved": 1, "returned": 1, "waiting": waiting, "given_up": waiting // 2}
        totals.note(number, {"queues": [{"queue": "jobs", "shovel": shovel}]})
    assert totals.queues()["jobs"]["shovel"] == {"moved": 3, "returned": 3, "waiting": 4, "given_up": 2}
    totals.close(1)
    assert totals.queues()["jobs"]["shovel"] == {"moved": 3, "returned": 3, "waiting": 3, "given_up": 1}


def test_what_is_no_number_is_not_summed() -> None:
    totals = Totals()
    for number, error in ((1, None), (2, "ImportError: no module")):
        consumer = {"handled": 2, "failed_starts": 3, "start_error": error}
        totals.note(number, {"queues": [{"queue": "jobs", "consumer": consumer}]})
    assert totals.queues()["jobs"]["consumer"] == {"handled": 4, "failed_starts": 6}
    totals.close(2)
    assert totals.queues()["jobs"]["consumer"] == {"handled": 4, "failed_starts": 3}


def test_without_its_package_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['prometheus_client'] = None; import ignis.metrics"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert "pip install 'ignis-mq[metrics]'" in ended.stderr.splitlines()[-1]
