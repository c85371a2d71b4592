"""Prometheus metrics: names, values, and that what only rises does so over the death of processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ignis
from ignis.figures import CONSUMER, QUEUE, SHOVEL, TIMES
from ignis.message import REASONS
from ignis.metric_catalogue import OTHER
from ignis.metrics import Collector, Exposition
from ignis.supervisor.aggregate import Totals
from ignis.testing import ManualClock
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, eventually, wait_idle

NAMES = {one.metric for one in (*QUEUE, *SHOVEL, *CONSUMER, *TIMES) if one.metric} | {
    "ignis_build_info", "ignis_queue_state", "ignis_queues_left_out", "ignis_refresh_errors", "ignis_refresh_passes",
    "ignis_ring_depth", "ignis_sidelined",
}  # fmt: skip
PARTS = ("ignis_leader_", "ignis_pool_", "ignis_scheduler_", "ignis_store_", "ignis_sweeper_")
JOBS = (("queue", "jobs"),)


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
    assert after["ignis_claimed_messages_total", jobs] == 10
    assert after["ignis_claims_total", jobs] >= 1
    assert after["ignis_consumers", jobs] == 1
    for name, count in (("publish", 1), ("wait", 10), ("handler", 10), ("end_to_end", 5)):
        assert after[f"ignis_{name}_duration_seconds_count", jobs] == count, name
        assert after[f"ignis_{name}_duration_seconds_sum", jobs] > 0, name
    assert after["ignis_queue_state", (("queue", "jobs"), ("state", "running"))] == 1
    assert after["ignis_refresh_passes_total", ()] == 1
    assert after["ignis_ring_depth", ()] == 0
    assert after["ignis_store_calls_total", (("call", "loads"),)] >= 1
    assert after["ignis_leader_leading", (("scope", "sweeper"),)] in (0, 1)
    names = {family.name for family in text_string_to_metric_families(exposition.text().decode())}
    assert {name for name in names if not name.startswith(PARTS)} == NAMES


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
        "ignis_acknowledgement_errors_total", "ignis_retried_total", "ignis_returned_total", "ignis_expired_total",
    ):  # fmt: skip
        assert found[name, "jobs"] == 0, name
    for reason in REASONS:
        assert found["ignis_sidelined_total", "jobs", reason] == 0
    assert memory_app.queue("jobs").stats()["consumer"]["handled"] == 0


def test_turns_that_are_taken_and_waited_for(memory_url: str, new_app: MakeApp, gate: Gate) -> None:
    app = new_app(memory_url, consumer={"max_running": 1})
    for name in ("jobs", "mails", "sums"):
        app.queue(name, bytes).handler(gate)
        app.queue(name).publish(b"x")
    exposition = Exposition(Collector(app.stats))
    app.start()
    gate.wait_entered()
    names = ("ignis_turns", "ignis_turns_taken", "ignis_turns_waiting")
    eventually(lambda: [parsed(exposition.text())[name, ()] for name in names] == [1, 1, 2])
    gate.open.set()
    eventually(lambda: [parsed(exposition.text())[name, ()] for name in names] == [1, 0, 0])


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
    app = ignis.Ignis("ignis://127.0.0.1:1")
    assert list(Collector(app.stats).describe()) == []


def test_other_sections_are_shown_by_names_of_their_own() -> None:
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
    assert found["ignis_sweeper_passes_total", ()] == 3
    assert found["ignis_sweeper_running", ()] == 1
    scope = (("scope", "sweeper"),)
    assert {name: value for (name, labels), value in found.items() if labels == scope} == {
        "ignis_leader_leading": 1, "ignis_leader_epoch": 9, "ignis_leader_since_timestamp_seconds": 0,
    }  # fmt: skip
    assert not [name for name, _ in found if "who" in name]
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
        assert found["ignis_scheduler_fired_total", ()] == 1
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


def test_what_a_supervisor_and_a_sweeper_set_aside_is_counted_by_queue_and_reason() -> None:
    totals = Totals()
    totals.note(1, {"queues": [{"queue": "jobs", "consumer": {"sidelined_crash": 1, "sidelined_abandoned": 4}}]})
    for _ in range(2):
        totals.count_aside({("jobs", "abandoned"): 3, ("other", "corrupt"): 1})
    totals.close(1)
    queues = totals.queues()
    assert queues["jobs"]["consumer"] == {"sidelined_crash": 1, "sidelined_abandoned": 10}
    assert queues["other"]["consumer"] == {"sidelined_corrupt": 2}
    stats = {
        "queues": list(queues.values()),
        "set_aside": [{"queue": name, "consumer": {"sidelined_abandoned": 5}} for name in ("jobs", "third")],
    }
    text = Exposition(Collector(lambda: stats)).text().decode()
    for queue, reason, count in (("jobs", "abandoned", 15), ("other", "corrupt", 2), ("third", "abandoned", 5)):
        assert f'ignis_sidelined_total{{queue="{queue}",reason="{reason}"}} {count}.0' in text


def test_what_dead_processes_held_is_counted_by_who_sets_it_aside(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda body: None)
    queue.publish_many(range(6))
    assert queue.main.store.fire("jobs", 6, "gone")
    claimants = memory_app.store.magazines.claimants
    monkeypatch.setattr(
        memory_app.store.magazines, "claimants", lambda name: {one: one == "gone" for one in claimants(name)}
    )
    memory_app.start()
    counts = queue.stats()["consumer"]
    assert (counts["sidelined_abandoned"], counts["sidelined"], queue.sideline.pending()) == (6, 0, 6)


def test_times_are_summed_over_processes_and_never_go_down() -> None:
    totals = Totals()
    for number, counts in ((1, [1, 2]), (2, [3, 4])):
        totals.note(number, {"queues": [{"queue": "jobs", "times": {"wait": {"counts": counts, "sum_s": 0.5}}}]})
    assert totals.queues()["jobs"]["times"] == {"wait": {"counts": [4, 6], "sum_s": 1.0}}
    totals.close(1)
    assert totals.queues()["jobs"]["times"] == {"wait": {"counts": [4, 6], "sum_s": 1.0}}


def test_every_number_of_a_store_is_shown(app: ignis.Ignis) -> None:
    """As many series as it has numbers."""
    app.queue("jobs", int).publish(1)
    numbers = [name for name, value in app.store.stats().items() if isinstance(value, (int, float))]
    found = [name for name, _ in parsed(Exposition(Collector(lambda: {"store": app.store.stats()})).text())]
    shown = [name for name in found if name.startswith("ignis_store_") and name != "ignis_store_up"]
    assert len(shown) == len(numbers), (found, numbers)


def test_the_figures_of_an_aerospike_store() -> None:
    store = {
        "store": "aerospike", "used_bytes": 7, "client_calls": 5, "client_batch_write": 3, "client_get": 2, "loads": 4,
        "holes_seen": 1, "holes_left": 0, "sealed_loads": 6, "pointers_restored": 8, "resurrected_seen": 9,
    }  # fmt: skip
    found = parsed(Exposition(Collector(lambda: {"store": store})).text())
    assert found["ignis_store_client_calls_total", (("kind", "get"),)] == 2
    assert found["ignis_store_holes_total", (("what", "seen"),)] == 1
    assert found["ignis_store_calls_total", (("call", "loads"),)] == 4
    assert found["ignis_store_resurrected_records_total", ()] == 9
    assert ("ignis_store_client_calls_total", (("kind", "calls"),)) not in found, "the sum of the others"


def figures_of(names: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {
            "queue": name, "pending": 2, "oldest_age_s": age, "consumer": {"handled": 10, "sidelined_timeout": 1},
            "times": {"wait": {"counts": [1] * 12, "sum_s": 3.0}},
        }
        for age, name in enumerate(names)
    ]  # fmt: skip


def series(found: Mapping[tuple[str, Any], float]) -> Counter[str]:
    return Counter(name for name, _ in found)


def test_labels_are_bounded_and_keep_their_queues() -> None:
    names = [f"q{number}" for number in range(5)]
    stats: dict[str, Any] = {"queues": figures_of(names)}
    exposition = Exposition(Collector(lambda: stats, max_queues=2))
    found = parsed(exposition.text())
    other = (("queue", OTHER),)
    assert series(found)["ignis_queue_pending"] == 3
    assert (found["ignis_queue_pending", other], found["ignis_oldest_age_seconds", other]) == (6, 4)
    assert found["ignis_consumed_total", other] == 30
    assert found["ignis_sidelined_total", (("queue", OTHER), ("reason", "timeout"))] == 3
    assert found["ignis_wait_duration_seconds_count", other] == 36
    assert found["ignis_queues_left_out", ()] == 3
    stats["queues"] = figures_of(["new", "q4", "q1"])
    again = parsed(exposition.text())
    assert again["ignis_queue_pending", (("queue", "q1"),)] == 2, "it was seen before the others"
    assert (again["ignis_queue_pending", other], again["ignis_queues_left_out", ()]) == (4, 2)


def test_a_rate_is_left_to_who_scrapes(memory_app: ignis.Ignis) -> None:
    """Two that scrape see the same: nothing is since the look before."""
    memory_app.queue("jobs", int).publish(1)
    stats = memory_app.stats()
    exposition = Exposition(Collector(lambda: stats))
    assert exposition.text() == exposition.text()


def test_a_buffered_publisher_counts_its_loads(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    with queue.publisher() as publisher:
        for number in range(100):
            publisher.send(number)
    counts = queue.local_stats()["times"]["publish"]["counts"]
    assert 1 <= sum(counts) <= 100


def test_what_is_published_is_right_to_the_message_whoever_scrapes_meanwhile(app: ignis.Ignis) -> None:
    """Publishers, workers and scrapes at once: afterwards every count is what was done, and none ever fell."""
    messages = 20_000
    queue = app.queue("jobs", int, shards=2)
    queue.handler(concurrency=2)(lambda n: None)
    exposition = Exposition(Collector(app.stats))
    rising = (
        "ignis_published_total", "ignis_consumed_total", "ignis_claimed_messages_total", "ignis_wait_duration_seconds_count",
        "ignis_handler_duration_seconds_count", "ignis_end_to_end_duration_seconds_count",
    )  # fmt: skip
    over, seen, fell = threading.Event(), Counter[str](), list[str]()

    def scrape() -> None:
        while not over.is_set():
            found = parsed(exposition.text())
            for name in rising:
                value = int(found.get((name, JOBS), 0))
                if value < seen[name]:
                    fell.append(name)
                seen[name] = value

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        app.start()
        for start in range(0, messages, 1_000):
            queue.publish_many(range(start, start + 1_000))
        wait_idle(queue)
        eventually(lambda: queue.local_stats()["consumer"]["handled"] == messages)
        eventually(lambda: queue.local_stats()["consumer"]["timed"] == messages)
    finally:
        over.set()
        scraper.join()
    assert fell == []
    found = parsed(exposition.text())
    assert {name: found[name, JOBS] for name in rising} == dict.fromkeys(rising, messages)


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
