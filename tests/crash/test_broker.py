"""The short form of ``python -m tests.torture broker``."""

from __future__ import annotations

import random

import pytest

from tests.torture import broker, broker_wire

pytestmark = [pytest.mark.integration, pytest.mark.torture]


def test_nothing_is_lost_when_broker_and_clients_are_killed() -> None:
    outcome = broker.broker_kill9(1, random.Random(1))
    assert outcome.ok, outcome.faults
    assert outcome.figures["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("plant", [broker.answers_before_storing, broker.deletes_on_delivery])
def test_planted_faults_are_caught(plant: object) -> None:
    rng = random.Random(2)
    assert any(not broker.broker_kill9(1, rng, prepare=plant).ok for _ in range(6))  # type: ignore[arg-type]


def test_cancelled_requests_do_not_cross() -> None:
    outcome = broker_wire.cancellations(5_000, random.Random(3))
    assert outcome.ok, outcome.faults
    assert outcome.figures["pending"] == 0
    assert outcome.figures["late_answers"] > 0


def test_damaged_frames() -> None:
    outcome = broker_wire.frames(50_000, random.Random(4))
    assert outcome.ok, outcome.faults
    assert outcome.figures["refused"] > 0


def test_hostile_clients() -> None:
    outcome = broker_wire.hostile(30)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.ok, outcome.faults
    assert outcome.figures["idle_connections"] == 30
