"""Claiming for a job without reading, finding its claims again, renewing them; and loading each id once."""

from __future__ import annotations

import time

import pytest

from ignis.errors import ConfigError, QueueNotFoundError
from ignis.native import PackedBatch, encode_record
from ignis.storage.base import MagazineStore, Run, Store
from tests.contract.support import Kind, drain, numbered, peeked, pointers, record, state

JOB = "job:nightly"


def with_ids(*numbers: int) -> PackedBatch:
    return PackedBatch.pack([encode_record(b"m%d" % number, id=number.to_bytes(16, "big")) for number in numbers])


def messages(runs: list[Run]) -> int:
    return sum(run.messages for run in runs)


class TestClaim:
    def test_runs_over_shards(self, magazines: MagazineStore) -> None:
        for shard in range(3):
            magazines.load_records("m", shard, numbered(10, f"s{shard}-"))
            magazines.load_records("m", shard, numbered(5, f"t{shard}-"))
        runs = magazines.claim("m", 100, JOB)
        assert runs == [Run(shard, 1, 15, 15) for shard in range(3)]
        assert magazines.fire("m", 10, "other").claims == []
        found = peeked(magazines.peek("m", {1: range(1, 16)}))
        assert [found[1][pointer] for pointer in (1, 10, 11, 15)] == ["s1-0", "s1-9", "t1-0", "t1-4"]

    def test_limit(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(10))
        magazines.load_records("m", 1, numbered(10))
        assert messages(magazines.claim("m", 13, JOB)) == 13
        assert magazines.fire("m", 100, "other").total() == 7
        assert magazines.claim("m", 13, JOB) == []

    def test_some_shards(self, magazines: MagazineStore) -> None:
        for shard in range(4):
            magazines.load_records("m", shard, numbered(3))
        assert magazines.claim("m", 100, JOB, shards=[1, 3]) == [Run(1, 1, 3, 3), Run(3, 1, 3, 3)]

    def test_nothing_pending(self, magazines: MagazineStore) -> None:
        assert magazines.claim("m", 5, JOB) == []
        assert magazines.held("m", JOB) == []

    def test_what_was_deleted_is_not_counted(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(10))
        magazines.delete("m", {0: [3, 4, 8]})
        runs = magazines.claim("m", 100, JOB)
        assert messages(runs) == 7
        covered = {pointer for run in runs for pointer in range(run.first, run.last + 1)}
        assert covered >= {1, 2, 5, 6, 7, 9, 10}
        assert messages(magazines.held("m", JOB)) == 7

    def test_expired_ones_are_not_claimed(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(4), ttl_s=0.001)
        magazines.load_records("m", 0, [record("kept")])
        time.sleep(0.01)
        runs = magazines.claim("m", 100, JOB)
        assert messages(runs) == 1
        assert list(peeked(magazines.peek("m", {0: range(1, 6)}))[0].values()) == ["kept"]

    def test_refusals(self, magazines: MagazineStore) -> None:
        with pytest.raises(QueueNotFoundError):
            magazines.claim("nothing", 5, JOB)
        with pytest.raises(ConfigError):
            magazines.claim("m", 5, JOB, shards=[9])


class TestHeld:
    def test_only_that_owner(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(30))
        magazines.claim("m", 10, JOB)
        magazines.fire("m", 10, "other")
        magazines.claim("m", 5, JOB)
        assert magazines.held("m", JOB) == [Run(0, 1, 10, 10), Run(0, 21, 25, 5)]
        assert magazines.held("m", "job:another") == []

    def test_what_is_finished_is_not_held(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(6))
        magazines.claim("m", 6, JOB)
        magazines.delete("m", {0: [1, 2]})
        magazines.reload("m", {0: [6]})
        assert messages(magazines.held("m", JOB)) == 3
        assert state(magazines, "m").pending == 1
        magazines.delete("m", {0: [3, 4, 5]})
        assert magazines.held("m", JOB) == []

    def test_another_handle_finds_them(self, kind: Kind) -> None:
        first = kind.open()
        first.magazines.declare("m", 2)
        first.magazines.load_records("m", 1, numbered(20))
        first.magazines.claim("m", 12, JOB)
        again = kind.reopen()
        assert again.magazines.held("m", JOB) == [Run(1, 1, 12, 12)]
        assert again.magazines.delete("m", {1: range(1, 13)}) == 12
        assert again.magazines.held("m", JOB) == []
        assert len(drain(again.magazines, "m")) == 8

    def test_an_unknown_magazine(self, magazines: MagazineStore) -> None:
        with pytest.raises(QueueNotFoundError):
            magazines.held("nothing", JOB)


class TestRenew:
    def test_the_stuck_time_begins_anew(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(4))
        magazines.claim("m", 4, JOB)
        time.sleep(0.02)
        claimed_before_ms = int(time.time() * 1000)
        assert len(magazines.abandoned("m", 0, claimed_before_ms, 10)) == 4
        time.sleep(0.02)
        if not magazines.renew("m", JOB):
            assert len(magazines.abandoned("m", 0, claimed_before_ms, 10)) == 4, "says that it renewed nothing"
            return
        assert magazines.abandoned("m", 0, claimed_before_ms, 10) == []
        assert len(magazines.abandoned("m", 0, int(time.time() * 1000) + 1_000, 10)) == 4

    def test_not_those_of_others(self, magazines: MagazineStore) -> None:
        magazines.load_records("m", 0, numbered(4))
        result = magazines.fire("m", 4, "other")
        time.sleep(0.02)
        fired_before_ms = int(time.time() * 1000)
        time.sleep(0.02)
        magazines.renew("m", JOB)
        assert len(magazines.abandoned("m", 0, fired_before_ms, 10)) == 4
        assert magazines.delete("m", pointers(result)) == 4


class TestLoadOnce:
    @pytest.fixture
    def telling(self, store: Store, magazines: MagazineStore) -> MagazineStore:
        if not magazines.tells_repeats:
            pytest.skip("this store cannot tell repeats; see test_without_telling")
        return magazines

    def test_all_new(self, telling: MagazineStore) -> None:
        loaded = telling.load_once("m", [(0, with_ids(1, 2, 3)), (1, with_ids(4))], None, 60)
        assert loaded == [(1, 3, 0), (1, 1, 0)]
        assert sorted(map(str, drain(telling, "m"))) == ["m1", "m2", "m3", "m4"]

    def test_repeats_are_left_out(self, telling: MagazineStore) -> None:
        telling.load_once("m", [(0, with_ids(1, 2, 3))], None, 60)
        loaded = telling.load_once("m", [(0, with_ids(2, 3, 4, 5)), (1, with_ids(1)), (2, with_ids(6))], None, 60)
        assert loaded == [(4, 2, 2), (0, 0, 1), (1, 1, 0)]
        assert sorted(map(str, drain(telling, "m"))) == ["m1", "m2", "m3", "m4", "m5", "m6"]

    def test_within_one_call(self, telling: MagazineStore) -> None:
        loaded = telling.load_once("m", [(0, with_ids(1, 1, 2)), (1, with_ids(2, 3))], None, 60)
        assert [(one.loaded, one.repeats) for one in loaded] == [(2, 1), (1, 1)]
        assert sorted(map(str, drain(telling, "m"))) == ["m1", "m2", "m3"]

    def test_remembered_after_the_message_is_gone(self, telling: MagazineStore) -> None:
        telling.load_once("m", [(0, with_ids(1))], None, 60)
        assert drain(telling, "m") == ["m1"]
        assert telling.load_once("m", [(0, with_ids(1))], None, 60) == [(0, 0, 1)]

    def test_for_different_times(self, telling: MagazineStore) -> None:
        telling.load_once("m", [(0, with_ids(1))], None, 60)
        telling.load_once("m", [(0, with_ids(2))], None, 30 * 86_400)
        telling.load_once("m", [(0, with_ids(3))], None, 5 * 86_400)
        assert telling.load_once("m", [(0, with_ids(1, 2, 3, 4))], None, 60) == [(4, 1, 3)]

    def test_each_magazine_for_itself(self, telling: MagazineStore) -> None:
        telling.declare("other", 4)
        telling.load_once("m", [(0, with_ids(1))], None, 60)
        assert telling.load_once("other", [(0, with_ids(1))], None, 60) == [(1, 1, 0)]

    def test_a_plain_load_neither_asks_nor_remembers(self, telling: MagazineStore) -> None:
        telling.load("m", [(0, with_ids(1))], None)
        assert telling.load_once("m", [(0, with_ids(1))], None, 60) == [(2, 1, 0)]
        telling.load("m", [(0, with_ids(1))], None)
        assert len(drain(telling, "m")) == 3

    def test_forgotten_with_the_magazine(self, telling: MagazineStore) -> None:
        telling.load_once("m", [(0, with_ids(1))], None, 60)
        telling.drop("m")
        telling.declare("m", 4)
        assert [one.loaded for one in telling.load_once("m", [(0, with_ids(1))], None, 60)] == [1]

    def test_remembered_by_another_handle(self, kind: Kind) -> None:
        first = kind.open()
        if not first.magazines.tells_repeats:
            pytest.skip("this store cannot tell repeats")
        first.magazines.declare("m", 2)
        first.magazines.load_once("m", [(0, with_ids(*range(100)))], None, 86_400)
        again = kind.reopen()
        loaded = again.magazines.load_once("m", [(1, with_ids(*range(50, 150)))], None, 86_400)
        assert [(one.loaded, one.repeats) for one in loaded] == [(50, 50)]

    def test_expires_like_any(self, telling: MagazineStore) -> None:
        telling.load_once("m", [(0, with_ids(1, 2))], 0.001, 60)
        time.sleep(0.01)
        assert telling.fire("m", 10, "x").expired == 2

    def test_refusals_store_nothing(self, telling: MagazineStore) -> None:
        with pytest.raises(ConfigError):
            telling.load_once("m", [(0, with_ids(1)), (9, with_ids(2))], None, 60)
        with pytest.raises(ConfigError):
            telling.load_once("m", [(0, with_ids(1))], None, 0)
        assert telling.load_once("m", [(0, with_ids(1, 2))], None, 60) == [(1, 2, 0)]

    def test_without_telling(self, magazines: MagazineStore) -> None:
        if magazines.tells_repeats:
            pytest.skip("this store tells repeats")
        magazines.load_once("m", [(0, with_ids(1, 2))], None, 60)
        loaded = magazines.load_once("m", [(0, with_ids(1, 2))], None, 60)
        assert [(one.loaded, one.repeats) for one in loaded] == [(2, 0)]
        assert len(drain(magazines, "m")) == 4


def test_two_threads_load_the_same_rows(store: Store, magazines: MagazineStore) -> None:
    from concurrent.futures import ThreadPoolExecutor

    if not magazines.tells_repeats:
        pytest.skip("this store cannot tell repeats")
    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(magazines.load_once, "m", [(turn % 4, with_ids(*range(start, start + 50)))], None, 60)
            for start in range(0, 500, 25)
            for turn in range(3)
        ]
        loaded = sum(one.loaded for future in futures for one in future.result(30))
    assert loaded == 525
    assert len(set(drain(magazines, "m"))) == 525
