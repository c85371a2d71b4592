"""The leader dies, is stopped past its session, is cut off, loses ZooKeeper: short form."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import zookeeper as zookeeper_support


def test_one_epoch_at_a_time_whatever_happens_to_the_leader(torture: Callable[..., str]) -> None:
    zookeeper_support.need()
    output = torture("leader", "--short")
    assert "leader: ok rounds=4" in output
    assert "mutants=1/1" in output
