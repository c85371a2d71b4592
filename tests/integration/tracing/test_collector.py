"""A trace as a collector has it: two processes send their spans by OTLP, and what arrived is read back.

``IGNIS_TEST_OTLP`` is the address of an OTLP receiver over HTTP: of Datadog's test agent, which tells what it got with links
and all, or of a collector that writes it into the file ``IGNIS_TEST_OTLP_FILE``. ``scripts/try-collector`` starts either and
runs these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import WAIT_S, eventually
from tests.support.otlp import Collected, collected, tree
from tests.support.spark import unavailable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = os.environ.get("IGNIS_TEST_OTLP", "")
FILE = os.environ.get("IGNIS_TEST_OTLP_FILE", "")


def run(service: str, module: str, *arguments: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("IGNIS", "OTEL"))}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env={**environment, **more, "OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS, "OTEL_SERVICE_NAME": service},
        capture_output=True, text=True, timeout=6 * WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


needs_a_collector = pytest.mark.skipif(
    not ADDRESS, reason="no collector: IGNIS_TEST_OTLP names none; scripts/try-collector starts one"
)


@needs_a_collector
def test_what_a_collector_gets(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    trace = run("shop", "tests.apps.collected", "shop", url)
    run("worker", "tests.apps.collected", "worker", url)
    spans = eventually(
        lambda: found if len(found := collected(ADDRESS, trace, FILE)) >= 8 else None, "the spans arrive"
    )
    sys.stdout.write(f"\n{tree(spans)}\n")

    def of(name: str, attempt: int | None = None) -> Collected:
        (found,) = [
            one for one in spans if one.name == name and attempt in (None, one.attributes.get("ignis.message.attempt"))
        ]
        return found

    checkout, sent, mail, mailed = of("checkout"), of("publish orders"), of("publish mails"), of("process mails")
    first, second = of("process orders", 1), of("process orders", 2)
    again, aside = of("retry orders"), of("sideline orders")
    parents = {
        checkout.id: "",
        sent.id: checkout.id,
        first.id: sent.id,
        mail.id: first.id,
        mailed.id: mail.id,
        again.id: first.id,
        second.id: sent.id,
        aside.id: second.id,
    }
    assert {one.id: one.parent for one in spans} == parents
    links = {
        first.id: {sent.id},
        mailed.id: {mail.id},
        again.id: {sent.id},
        second.id: {sent.id, again.id},
        aside.id: {sent.id},
    }
    assert {one.id: {id for _, id in one.links} for one in spans if one.links} == links
    assert {linked for one in spans for linked, _ in one.links} == {trace}
    assert {one.id for one in spans if one.service == "shop"} == {checkout.id, sent.id}
    assert {one.service for one in spans} == {"shop", "worker"}
    assert {one.name: one.kind for one in spans} == {
        "checkout": "INTERNAL",
        "publish orders": "PRODUCER",
        "publish mails": "PRODUCER",
        "process orders": "CONSUMER",
        "process mails": "CONSUMER",
        "retry orders": "CLIENT",
        "sideline orders": "CLIENT",
    }
    assert {one.id for one in spans if one.status == "ERROR"} == {first.id, second.id}
    assert {one.attributes["error.type"] for one in (first, second)} == {"ValueError"}
    assert aside.attributes["error.type"] == "exception"
    assert (first.events, again.events, aside.events) == (
        ("exception",), ("ignis.retry.scheduled",), ("ignis.sidelined",),
    )  # fmt: skip
    of_orders = (sent, first, again, second, aside)
    assert len({one.attributes["messaging.message.id"] for one in of_orders}) == 1


@needs_a_collector
def test_what_a_collector_gets_of_a_spark_job(tmp_path: Path) -> None:
    """The tasks' spans come from Spark's Python workers, which have an SDK of their own."""
    if reason := unavailable():
        pytest.skip(reason)
    pytest.importorskip("pyspark")
    url = f"embedded://{tmp_path}/store"
    root = str(ROOT)
    trace = run(
        "job", "tests.apps.collected_spark", url, str(tmp_path), IGNIS_TRACING_ENABLED="true", PYTHONPATH=root
    ).splitlines()[-1]
    spans = eventually(
        lambda: found if len(found := collected(ADDRESS, trace, FILE)) >= 9 else None, "the spans arrive"
    )
    sys.stdout.write(f"\n{tree(spans)}\n")
    (job,) = [one for one in spans if one.name == "nightly"]
    loads = [one for one in spans if one.name == "publish orders"]
    assert [(one.parent, one.kind, one.attributes["messaging.batch.message_count"]) for one in loads] == [
        (job.id, "PRODUCER", 3)
    ] * 2
    calls = [one for one in spans if one.name == "process orders"]
    assert Counter(one.parent for one in calls) == Counter({one.id: 3 for one in loads})
    assert len(spans) == 9
