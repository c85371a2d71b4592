"""The leader dies, is stopped past its session, is cut off, loses ZooKeeper: short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import zookeeper as zookeeper_support


def test_one_epoch_at_a_time_whatever_happens_to_the_leader(torture: Callable[..., str]) -> None:
    zookeeper_support.need()
    output = torture("leader", "--short", "--no-mutants")
    assert "leader: ok rounds=4" in output


@pytest.mark.long
def test_the_planted_fault_is_caught(torture: Callable[..., str]) -> None:
    zookeeper_support.need()
    assert "mutants=1/1" in torture("leader", "--short")
