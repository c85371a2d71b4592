"""What a broker remembers of magazines and queues, so that it does not ask its store for each request."""

from __future__ import annotations

import pytest

import ignis
from ignis.broker.server.queue_facts import QueueFacts


@pytest.fixture
def facts(memory_app: ignis.Ignis) -> QueueFacts:
    memory_app.queue("q", bytes, shards=3, message_expiry_s=60).open()
    return QueueFacts(memory_app.store)


def test_nothing_is_known_before_the_store_was_asked(facts: QueueFacts) -> None:
    assert facts.known("q") is None
    assert facts.shards("q") == 3


def test_what_is_known_is_made_once_and_anew_when_the_queue_was_read(facts: QueueFacts) -> None:
    facts.shards("q")
    facts.shards("q_SIDELINE")
    before, sideline = facts.known("q"), facts.known("q_SIDELINE")
    assert before is not None
    assert (before.shards, before.ttl_ms) == (3, None)
    assert facts.known("q") is before, "a load that says its own time to live asks for it each time"
    assert facts.ttl_ms("q") == 60_000
    after, beside = facts.known("q"), facts.known("q_SIDELINE")
    assert after is not None
    assert beside is not None
    assert sideline is not None
    assert (after.ttl_ms, beside.ttl_ms, sideline.ttl_ms) == (60_000, 60_000, None)
    assert facts.known("q") is after


def test_it_is_good_for_a_time(facts: QueueFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    facts.shards("q")
    facts.ttl_ms("q")
    now_s = [1e9]
    monkeypatch.setattr("ignis.broker.server.queue_facts.time.monotonic", lambda: now_s[0])
    old = facts.known("q")
    assert old is not None
    assert old.ttl_ms is None
    now_s[0] += 4.0
    assert facts.known("q") is old
    now_s[0] += 2.0
    assert facts.known("q") is not old
    facts.ttl_ms("q")
    found = facts.known("q")
    assert found is not None
    assert found.ttl_ms == 60_000
    now_s[0] += 6.0
    gone = facts.known("q")
    assert gone is not None
    assert gone.ttl_ms is None


def test_what_is_forgotten_is_asked_for_again(facts: QueueFacts) -> None:
    facts.shards("q")
    facts.known("q")
    facts.forget("q")
    assert facts.known("q") is None
