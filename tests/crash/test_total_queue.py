"""The checker itself: it has to see every kind of loss, and to stay silent when there is none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torture import process
from tests.torture.ledger import Ledger, make_body, make_id, read_body, split_id
from tests.torture.process import Child
from tests.torture.report import Outcome


def full(count: int = 10) -> Ledger:
    ledger = Ledger()
    many = [make_id(3, one) for one in range(count)]
    ledger.send(many)
    ledger.acknowledge(many)
    ledger.see(many, 0)
    ledger.finish(many)
    return ledger


def test_a_complete_life_has_no_faults() -> None:
    verdict = full().verdict()
    assert verdict.ok and verdict.faults() == []
    assert (verdict.sent, verdict.acknowledged, verdict.seen, verdict.duplicates) == (10, 10, 10, 0)


def test_an_acknowledged_message_that_never_came_is_lost() -> None:
    ledger = full()
    ledger.send([make_id(3, 10)])
    ledger.acknowledge([make_id(3, 10)])
    verdict = ledger.verdict()
    assert verdict.lost == (make_id(3, 10),) and not verdict.ok
    assert "1 lost (writer:sequence 3:10)" in verdict.faults()


def test_a_sent_message_that_never_came_is_not_lost() -> None:
    ledger = full()
    ledger.send([make_id(3, 10)])
    assert ledger.verdict().ok


def test_a_message_from_nowhere_is_invented() -> None:
    ledger = full()
    ledger.see([make_id(4, 0)])
    assert ledger.verdict().invented == (make_id(4, 0),) and not ledger.verdict().ok


def test_duplicates_and_unacknowledged_are_counted_and_are_no_faults() -> None:
    ledger = Ledger()
    ledger.send([1, 2])
    ledger.acknowledge([1])
    ledger.see([1, 2, 2])
    verdict = ledger.verdict()
    assert verdict.ok and verdict.duplicates == 1 and verdict.unacknowledged_seen == 1


def test_a_finished_message_that_comes_back_is_resurrected() -> None:
    ledger = full()
    ledger.see([make_id(3, 4)])
    assert ledger.verdict().resurrected == (make_id(3, 4),) and not ledger.verdict().ok


def test_a_late_report_of_a_dead_consumer_is_no_resurrection() -> None:
    ledger = Ledger()
    ledger.send([1, 2])
    ledger.see([1, 2], at=20.0)
    ledger.finish([1, 2], at=21.0)
    ledger.see([1], at=10.0)
    assert ledger.verdict().ok and ledger.verdict().duplicates == 1
    ledger.see([2], at=30.0)
    assert ledger.verdict().resurrected == (2,)


def test_a_resurrection_is_seen_in_whichever_order_the_reports_arrive() -> None:
    ledger = Ledger()
    ledger.send([1])
    ledger.see([1], at=30.0)
    ledger.finish([1], at=21.0)
    assert ledger.verdict().resurrected == (1,)


def test_a_copy_left_by_an_interrupted_move_is_a_duplicate() -> None:
    ledger = full()
    ledger.copies = True
    ledger.see([make_id(3, 4)])
    assert ledger.verdict().ok and ledger.verdict().duplicates == 1


def test_a_duplicate_is_put_down_to_whoever_died() -> None:
    ledger = Ledger()
    ledger.send([1, 2, 3, 4, 5])
    ledger.see([1, 2, 3], at=20.0, by="dead")
    ledger.see([4, 5], at=20.0, by="alive")
    assert ledger.doubles(["dead"]) == ({}, 0)
    ledger.see([1, 4], at=30.0, by="alive")
    ledger.see([5], at=10.0, by="dead")  # its report came late: it was the first
    ledger.see([2])  # by the drainer
    assert ledger.doubles(["dead"]) == ({"dead": 3}, 1), "4 was handled by one that lived"
    assert ledger.doubles([]) == ({}, 4)
    assert ledger.verdict().duplicates == 4
    ledger.see([2])
    assert ledger.doubles(["dead"]) == ({"dead": 3}, 2), "the store held it twice"


def test_order_is_checked_per_shard_and_writer_on_first_sight_only() -> None:
    ledger = Ledger()
    ledger.send([make_id(1, one) for one in range(6)] + [make_id(2, 0)])
    ledger.see([make_id(1, 3), make_id(2, 0)], 0)
    ledger.see([make_id(1, 1)], 1)
    ledger.see([make_id(1, 3)], 0)
    assert ledger.verdict().disordered == 0
    ledger.see([make_id(1, 2)], 0)
    assert ledger.verdict().disordered == 1 and not ledger.verdict().ok


def test_altered_bytes_are_a_fault() -> None:
    ledger = full()
    ledger.altered += 1
    assert not ledger.verdict().ok


def test_forgiving_takes_back_only_the_window() -> None:
    ledger = Ledger()
    ledger.send([1, 2, 3])
    ledger.acknowledge([1, 2], at=10.0)
    ledger.acknowledge([3], at=20.0)
    ledger.see([2])
    ledger.finish([2], at=20.0)
    ledger.forgive(after=15.0)
    assert ledger.verdict().lost == (1,)
    ledger.see([1, 2])
    assert ledger.verdict().ok


def test_browsing_finds_the_same_faults_without_a_drain() -> None:
    ledger = Ledger()
    ledger.send([1, 2, 3, 4])
    ledger.acknowledge([1, 2, 3])
    ledger.see([3])
    ledger.finish([3])
    assert ledger.browse({1, 2, 4}) == ([], [], [])
    ledger.see([2])
    assert ledger.browse({1, 4}) == ([], [], []), "in doubt: its consumer may have deleted it and died"
    assert ledger.browse({3, 9}) == ([1], [9], [3])


@given(st.integers(0, 65_535), st.integers(0, (1 << 40) - 1), st.integers(-1, 400))
def test_bodies_prove_their_identity(writer: int, sequence: int, filler_bytes: int) -> None:
    identity = make_id(writer, sequence)
    assert split_id(identity) == (writer, sequence)
    assert read_body(make_body(identity, filler_bytes)) == identity


@given(st.integers(0, 1 << 50), st.integers(0, 60), st.data())
def test_any_changed_byte_or_length_is_seen(identity: int, filler_bytes: int, data: st.DataObject) -> None:
    body = bytearray(make_body(identity, filler_bytes))
    place = data.draw(st.integers(0, len(body) * 8 - 1))
    body[place // 8] ^= 1 << place % 8
    assert read_body(bytes(body)) is None
    whole = make_body(identity, filler_bytes)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert read_body(whole[:cut]) is None and read_body(whole + b"\0") is None


def test_an_outcome_fails_on_a_fault_and_on_a_missed_mutant() -> None:
    outcome = Outcome("x")
    assert outcome.ok
    outcome.plant("caught", True)
    assert "mutants=1/1" in outcome.line()
    outcome.plant("missed", False)
    assert "FAILED" in outcome.line()
    other = Outcome("y")
    lossy = Ledger(sent={1: 0.0}, acknowledged={1: 0.0})
    assert not other.take(lossy.verdict(), "round 1") and not other.ok
    assert other.faults == ["round 1: 1 lost (writer:sequence 0:1)"]


def test_what_a_child_says_between_two_looks_is_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says everything and ends after the parent's wait was over, and before the parent looks whether it lives."""
    many = [make_id(1, one) for one in range(3)]
    waits: list[object] = []

    def too_early(ones: Sequence[Child], timeout: float | None) -> list[object]:
        waits.append(ones)
        if len(waits) == 1:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            return []
        return list(wait(ones, timeout))

    ledger = Ledger()
    with Child(lambda report: report.sending(many)) as child:
        monkeypatch.setattr(process, "wait", too_early)
        assert child.join(ledger) == 0
    assert sorted(ledger.sent) == many
