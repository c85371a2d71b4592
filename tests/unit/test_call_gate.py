"""The gate that counts calls in flight, and a claim that goes through it without the interpreter lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ClosedError, WaitTimeoutError
from ignis.native import PackedBatch, encode_record
from ignis.native.store import Log, Recall
from ignis.storage.in_flight import Gate
from tests.support import eventually

WAIT_S = 60.0
OWNER = b"somebody"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(str(tmp_path))
    yield opened
    opened.close()


class Claiming:
    """A thread in `Log.fire_next`."""

    def __init__(self, log: Log, number: int, gate: Gate, recall: Recall, seen: int) -> None:
        self.result: Any = None
        self._call = lambda: log.fire_next(number, 10, OWNER, 1, gate=gate, recall=recall, seen=seen, timeout=WAIT_S)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._call()

    def done(self) -> Any:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.result


def load(log: Log, number: int, text: bytes) -> None:
    log.load(number, [(0, PackedBatch.pack([encode_record(text)]))], durable=False)


def test_it_lets_in_until_it_is_shut_or_closed() -> None:
    gate = Gate("store", 0.05)
    gate.enter()
    assert gate.try_enter()
    with pytest.raises(WaitTimeoutError, match="2 call"), gate.shut(0.05):
        pass
    gate.leave()
    gate.leave()
    with gate.shut(WAIT_S):
        assert not gate.try_enter()
        with pytest.raises(WaitTimeoutError, match="no way in"):
            gate.enter()
    gate.enter()
    gate.close()
    assert not gate.try_enter()
    with pytest.raises(ClosedError):
        gate.enter()
    with pytest.raises(WaitTimeoutError):
        gate.wait_empty(0.01)
    gate.leave()
    gate.wait_empty(0)


def test_who_shuts_it_waits_for_all_that_are_inside() -> None:
    gate, counts = Gate("store", WAIT_S), [0] * 4
    inside, ends, wrong = [0], threading.Event(), []

    def goes_in(number: int) -> None:
        while not ends.is_set():
            gate.enter()
            inside.append(number)  # atomic, as the next line is
            inside.remove(number)
            counts[number] += 1
            gate.leave()

    threads = [threading.Thread(target=goes_in, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with gate.shut(WAIT_S):
            wrong += inside[1:]
    before = list(counts)
    eventually(lambda: all(now > then for now, then in zip(counts[1:], before[1:], strict=True)), "all got in again")
    ends.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert wrong == []


def test_a_wait_ends_with_the_claim_of_what_was_loaded(log: Log) -> None:
    number = log.declare("m", 1, 0)
    gate, recall, seen = Gate("store", WAIT_S), Recall(), log.wait(number, -1, 0)
    claiming = Claiming(log, number, gate, recall, seen)
    load(log, number, b"one")
    now, (pieces, expired, more, shards) = claiming.done()
    assert (now, expired, more, shards) == (seen + 1, [], False, 1)
    assert [(shard, pointers, len(records)) for shard, pointers, records, _ in pieces] == [(0, pieces[0][1], 1)]
    gate.wait_empty(0)


def test_a_wait_that_is_called_back_claims_nothing(log: Log) -> None:
    number = log.declare("m", 1, 0)
    gate, recall, seen = Gate("store", WAIT_S), Recall(), log.wait(number, -1, 0)
    claiming = Claiming(log, number, gate, recall, seen)
    recall.set()
    load(log, number, b"one")  # behind the recall: whatever wakes the thread, this is not claimed
    assert claiming.done() == (seen + 1, None)
    recall.clear()
    assert len(Claiming(log, number, gate, recall, seen).done()[1][0]) == 1


def test_a_gate_that_is_shut_lets_no_claim_through_and_does_not_wait_for_the_wait(log: Log) -> None:
    number = log.declare("m", 1, 0)
    gate, recall, seen = Gate("store", WAIT_S), Recall(), log.wait(number, -1, 0)
    claiming = Claiming(log, number, gate, recall, seen)
    with gate.shut(WAIT_S):
        load(log, number, b"one")
        assert claiming.done() == (seen + 1, None)
    assert len(Claiming(log, number, gate, recall, seen).done()[1][0]) == 1


def test_a_wait_of_many_looks_ends_with_the_load_and_with_the_log(log: Log) -> None:
    number = log.declare("m", 1, 0)
    gate, recall, seen = Gate("store", WAIT_S), Recall(), log.wait(number, -1, 0)
    claiming = Claiming(log, number, gate, recall, seen)
    time.sleep(0.35)  # a look lasts a tenth of a second; from the second on the thread asks for nothing in between
    load(log, number, b"one")
    assert len(claiming.done()[1][0]) == 1
    claiming = Claiming(log, number, gate, recall, seen + 1)
    time.sleep(0.35)
    log.close()
    assert claiming.done() == (seen + 1, None)


def test_the_claim_has_the_time_at_which_it_is_made(log: Log) -> None:
    number = log.declare("m", 1, 0)
    gate, recall, seen = Gate("store", WAIT_S), Recall(), log.wait(number, -1, 0)
    began = time.monotonic()
    claiming = Claiming(log, number, gate, recall, seen)
    time.sleep(0.05)
    load(log, number, b"one")
    claiming.done()
    waited_ms = (time.monotonic() - began) * 1000
    (claim,) = log.claims(number, 0)
    assert 1 + 40 <= claim[3] <= 1 + waited_ms + 1
