"""A trace as a collector has it: two processes send their spans by OTLP, and what arrived is read back.

``IGNIS_TEST_OTLP`` is the address of the OTLP receiver over HTTP of Datadog's test agent, which tells what it got with links
and all. ``scripts/try-collector`` installs and starts one, and runs this test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import WAIT_S, eventually
from tests.support.otlp import Collected, collected, tree

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = os.environ.get("IGNIS_TEST_OTLP", "")


def run(part: str, store: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("IGNIS", "OTEL"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.apps.collected", part, f"embedded://{store}"],
        cwd=ROOT, env={**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS, "OTEL_SERVICE_NAME": part},
        capture_output=True, text=True, timeout=3 * WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not ADDRESS, reason="no collector: IGNIS_TEST_OTLP names none; scripts/try-collector starts one")
def test_what_a_collector_gets(tmp_path: Path) -> None:
    trace = run("shop", tmp_path / "store")
    run("worker", tmp_path / "store")
    spans = eventually(lambda: found if len(found := collected(ADDRESS, trace)) >= 8 else None, "the spans arrive")
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
