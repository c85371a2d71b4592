"""Metrics at a high rate: what a supervisor's endpoint has counted in the end is what was done, to the message."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ignis
from ignis.supervisor.http_routes import app_endpoint
from tests.support import eventually, idle
from tests.support.fleet import START_S, Command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(900),
]

DONE_S = 600.0
SCRAPE_S = 0.1
BATCH = 2_000
LATE = 1_500
"""Messages of each kind whose time is over before anybody can claim them."""
COUNTS = {"threads": 40_000, "processes": 30_000}
KILLS = (4_000, 10_000, 18_000)
"""Behind so many messages comes one that ends the process which handles it."""
DEATHS = len(KILLS)
REPLACED_AT = 14_000
REJECTED, FAILED, RETRIED, GIVEN_UP, IGNORED, CHAINED = range(1, 7)
"""What a handler does with a number, by its rest after the division by 100; with any other it is done."""

MODULE = """
import os, ignis

app = ignis.Ignis(consumer={"idle_poll_s": 0.05}, refresher={"watch_s": 0.1})

class AgainError(Exception): ...
class IgnoredError(Exception): ...

def act(n, attempt):
    match n % 100:
        case 1:
            return False
        case 2:
            raise RuntimeError("failed")
        case 3 if attempt == 1:
            raise AgainError
        case 4:
            raise AgainError
        case 5:
            raise IgnoredError

options = {"ignore": IgnoredError, "retry": {AgainError: ignis.Retry(attempts=2, base=0)}}
chained = app.queue("chained", int, shards=4, shovel_interval=0)
chained.handler(lambda n: None)

@app.queue("threads", int, shards=4, shovel_interval=0).handler(concurrency=2, **options)
def in_a_thread(n, ctx):
    if n % 100 == 6:
        chained.publish(n)
    return act(n, ctx.attempt)

@app.queue("processes", int, shards=4, shovel_interval=0, on_expiry="sideline").handler(pool="process", **options)
def in_a_process(n, ctx):
    if n < 0:
        os._exit(3)
    return act(n, ctx.attempt)

@app.queue("brief", int, shards=4, shovel_interval=0, message_expiry=1).handler
def never(n):
    raise RuntimeError("its time was over")
"""

Sample = tuple[str, tuple[tuple[str, str], ...]]


class Scraper:
    """Reads an endpoint every `SCRAPE_S` in a thread of its own, as a Prometheus would, and keeps what is wrong with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scrapes = 0
        self.wrong: list[str] = []
        self._before: dict[Sample, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scraper")
        self._lock = threading.Lock()

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(SCRAPE_S):
            try:
                self.scrape()
            except Exception as exc:
                self.wrong.append(repr(exc))

    def scrape(self) -> dict[Sample, float]:
        """All that only rises, as it is now."""
        with self._lock, urllib.request.urlopen(f"{self.url}/metrics", timeout=START_S) as answer:
            found = {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(answer.read().decode())
                if family.type in ("counter", "histogram")
                for sample in family.samples
            }
            for name, value in self._before.items():
                if name not in found:
                    self.wrong.append(f"{name} was {value} and is not there")
                elif found[name] < value:
                    self.wrong.append(f"{name} fell from {value} to {found[name]}")
            self._before = found
            self.scrapes += 1
            return found


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def counted(found: dict[Sample, float], queue: str) -> dict[str, float]:
    """The figures of one queue that are compared; of those of a histogram their counts."""
    names = {
        "handled": "ignis_consumed_total", "retried": "ignis_retried_total", "claimed": "ignis_claimed_messages_total",
        "overdue": "ignis_overdue_total", "deaths": "ignis_worker_deaths_total", "expired": "ignis_expired_total",
        "late": "ignis_late_acknowledgements_total", "published": "ignis_published_total",
        "waits": "ignis_wait_duration_seconds_count", "calls": "ignis_handler_duration_seconds_count",
        "ends": "ignis_end_to_end_duration_seconds_count",
    }  # fmt: skip
    sums = {name: value(found, metric, queue=queue) for name, metric in names.items()}
    for (name, labels), number in found.items():
        if name == "ignis_sidelined_total" and ("queue", queue) in labels and number:
            sums["aside " + dict(labels)["reason"]] = number
    return sums


def ledger(queue: str) -> dict[str, float]:
    """What `counted` is when all of a queue is done, and nothing that was claimed was given back."""
    done = dict.fromkeys(("retried", "overdue", "deaths", "expired", "late", "published"), 0)
    if queue == "brief":
        return done | {"expired": LATE, **dict.fromkeys(("handled", "claimed", "waits", "calls", "ends"), 0)}
    rests = Counter(n % 100 for n in range(COUNTS["threads" if queue == "chained" else queue]))
    if queue == "chained":
        both = ("published", "handled", "claimed", "waits", "calls", "ends")
        return done | dict.fromkeys(both, rests[CHAINED])
    retried = rests[RETRIED] + rests[GIVEN_UP]
    aside = {"aside rejected": rests[REJECTED], "aside exception": rests[FAILED] + rests[GIVEN_UP]}
    handled = sum(rests.values()) - sum(aside.values())
    calls = claimed = sum(rests.values()) + retried
    if queue == "processes":
        # Whose time is over is claimed here, and set aside without a call.
        aside |= {"aside expired": LATE, "aside crash": DEATHS}
        calls += DEATHS
        claimed += DEATHS + LATE
    else:
        done["expired"] = LATE  # dropped by the store
    return done | aside | {
        "handled": handled, "retried": retried, "deaths": aside.get("aside crash", 0),
        "claimed": claimed, "waits": claimed, "calls": calls, "ends": handled,
    }  # fmt: skip


@pytest.fixture
def app(embedded_url: str) -> Iterator[ignis.Ignis]:
    with ignis.Ignis(embedded_url) as app:
        yield app


def given_back(found: dict[str, float], expected: dict[str, float]) -> dict[str, float]:
    """``expected``, and what was given back unhandled and claimed again: by a process that ends, or behind a long call."""
    again = max(found["claimed"] - expected["claimed"], 0)
    return expected | {"claimed": expected["claimed"] + again, "waits": expected["waits"] + again}


@pytest.mark.parametrize(
    "replaced", [pytest.param(False, marks=pytest.mark.long), True], ids=["steady", "replaced meanwhile"]
)
def test_every_message_is_counted_once(app: ignis.Ignis, embedded_url: str, tmp_path: Path, replaced: bool) -> None:
    queues: dict[str, ignis.Queue[int]] = {
        "threads": app.queue("threads", int, shards=4, shovel_interval=0),
        "processes": app.queue("processes", int, shards=4, shovel_interval=0, on_expiry="sideline"),
        "chained": app.queue("chained", int, shards=4, shovel_interval=0),
        "brief": app.queue("brief", int, shards=4, shovel_interval=0, message_expiry=1),
    }
    for name in COUNTS:
        queues[name].publish_many(range(LATE), expires_in=0.001)
    queues["brief"].publish_many(range(LATE))
    too_late_at = time.time() + 1.5
    eventually(lambda: time.time() > too_late_at)

    with contextlib.ExitStack() as closing:
        here = app_endpoint("0", app)
        closing.callback(here.close)
        command = Command(tmp_path, embedded_url, "--processes", "2", "--health-bind", "0", module=MODULE)
        closing.callback(command.close)
        command.wait_started()
        workers = closing.enter_context(Scraper(command.started["health"]))
        publisher = closing.enter_context(Scraper(f"http://127.0.0.1:{here.port}"))
        first = command.wait_running(2)

        calls = dict.fromkeys(COUNTS, 1)
        for start in range(0, max(COUNTS.values()), BATCH):
            for name, count in COUNTS.items():
                if start < count:
                    queues[name].publish_many(range(start, start + BATCH))
                    calls[name] += 1
            if start in KILLS:
                queues["processes"].publish(-1)
                calls["processes"] += 1
            if replaced and start == REPLACED_AT:
                command.signal(signal.SIGHUP)

        def over() -> bool:
            return all(idle(queue) and not queue.stats()["delayed"] for queue in queues.values())

        def figures() -> dict[str, dict[str, float]]:
            found = workers.scrape()
            return {name: counted(found, name) for name in queues}

        def expected(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
            return {name: given_back(found[name], ledger(name)) for name in queues}

        def agrees() -> bool:
            found = figures()
            return found == expected(found)

        eventually(over, "everything is handled", DONE_S)
        second = command.wait_running(2, without=first if replaced else None)
        with contextlib.suppress(AssertionError):
            eventually(agrees, "the figures have arrived")  # they are up to a second old
        reached = figures()
        assert reached == expected(reached)

        # Nothing that the processes of before had counted is lost with them.
        command.signal(signal.SIGHUP)
        command.wait_running(2, without=second)
        assert figures() == reached
        found = workers.scrape()
        for (name, labels), number in found.items():
            if name.endswith("_bucket") and dict(labels)["le"] == "+Inf":
                rest = {key: text for key, text in labels if key != "le"}
                assert number == value(found, name.removesuffix("_bucket") + "_count", **rest)

        published = publisher.scrape()
        for name, count in COUNTS.items():
            extra = DEATHS if name == "processes" else 0
            assert value(published, "ignis_published_total", queue=name) == LATE + count + extra
            assert value(published, "ignis_publish_duration_seconds_count", queue=name) == calls[name]
        assert workers.wrong == publisher.wrong == []
        assert min(workers.scrapes, publisher.scrapes) > 10
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
