"""Renewing claims: what a living owner works on stays its own, the rest ages on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis.errors import QueueNotFoundError
from ignis.storage import open_store
from ignis.storage.base import MagazineStore, Owner, Process, Store
from ignis.storage.runs import Runs, runs_of
from tests.contract.support import Kind, drain, numbered, pointers, tick

LATER_MS = 60_000


def claimed(magazines: MagazineStore, owner: str, count: int) -> None:
    magazines.load_records("m", 0, numbered(count))
    assert magazines.fire("m", count, owner).total() == count


def stuck(magazines: MagazineStore, before_ms: int, limit: int = 10_000) -> list[int]:
    return [one.pointer for one in magazines.abandoned("m", 0, before_ms, limit, dead_owners=False)]


def test_a_whole_claim(magazines: MagazineStore) -> None:
    claimed(magazines, "me", 5)
    moment = tick()
    assert stuck(magazines, moment) == [1, 2, 3, 4, 5]
    assert magazines.renew_claims("m", {0: range(1, 6)}, "me") == {}
    assert stuck(magazines, moment) == []
    assert stuck(magazines, tick() + LATER_MS) == [1, 2, 3, 4, 5]
    assert magazines.delete("m", {0: range(1, 6)}) == 5


@pytest.mark.parametrize(
    "mine", [[1], [10], [4, 5, 6], [1, 2, 9, 10], [2, 4, 6, 8], [10, 1, 5, 5], list(range(1, 10))], ids=str
)
def test_a_part_is_renewed_and_the_rest_ages_on(magazines: MagazineStore, mine: list[int]) -> None:
    claimed(magazines, "me", 10)
    moment = tick()
    assert magazines.renew_claims("m", {0: mine}, "me") == {}
    assert stuck(magazines, moment) == [one for one in range(1, 11) if one not in mine]
    again = tick()
    assert magazines.renew_claims("m", {0: range(1, 11)}, "me") == {}, "a split claim is renewed as any other"
    assert stuck(magazines, again) == []
    assert sum(run.messages for run in magazines.held("m", "me")) == 10
    assert magazines.delete("m", {0: range(1, 11)}) == 10
    assert magazines.held("m", "me") == []


def test_what_is_finished_does_not_split_a_claim(magazines: MagazineStore) -> None:
    claimed(magazines, "me", 10)
    magazines.delete("m", {0: [1, 3, 5, 7, 9]})
    moment = tick()
    assert magazines.renew_claims("m", {0: range(1, 11)}, "me") == {0: [1, 3, 5, 7, 9]}
    assert stuck(magazines, moment) == []
    assert magazines.delete("m", {0: range(1, 11)}) == 5


def test_only_the_owner_renews(magazines: MagazineStore) -> None:
    claimed(magazines, "me", 4)
    claimed(magazines, "other", 4)
    moment = tick()
    assert magazines.renew_claims("m", {0: range(1, 9)}, "other") == {0: [1, 2, 3, 4]}
    assert stuck(magazines, moment) == [1, 2, 3, 4]
    assert magazines.renew_claims("m", {0: range(1, 9)}, "nobody") == {0: list(range(1, 9))}


def test_what_is_not_claimed_is_not_held(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(3))
    assert magazines.renew_claims("m", {0: [1, 2, 99], 3: [1]}, "me") == {0: [1, 2, 99], 3: [1]}
    assert magazines.renew_claims("m", {}, "me") == {}
    assert magazines.renew_claims("m", {0: []}, "me") == {}
    assert len(drain(magazines, "m")) == 3


def test_swept_and_put_back_is_held_no_more(magazines: MagazineStore) -> None:
    claimed(magazines, "me", 3)
    magazines.reload("m", {0: [2]})
    assert magazines.renew_claims("m", {0: [1, 2, 3]}, "me") == {0: [2]}
    assert len(drain(magazines, "m")) == 1, "where it is now it is anybody's"


def test_over_batches_and_shards(magazines: MagazineStore) -> None:
    for _ in range(5):
        magazines.load_records("m", 0, numbered(7))
        magazines.load_records("m", 2, numbered(3))
    result = magazines.fire("m", 1_000, "me")
    moment = tick()
    assert magazines.renew_claims("m", pointers(result), "me") == {}
    assert stuck(magazines, moment) == []
    assert magazines.abandoned("m", 2, moment, 100) == []


def test_a_renewed_claim_does_not_hide_what_lies_behind_it(magazines: MagazineStore) -> None:
    claimed(magazines, "long", 2)
    claimed(magazines, "gone", 3)
    moment = tick()
    magazines.renew_claims("m", {0: [1, 2]}, "long")
    assert stuck(magazines, moment) == [3, 4, 5]
    assert [one.pointer for one in magazines.abandoned("m", 0, moment, 10)] == [3, 4, 5]
    assert stuck(magazines, moment, limit=2) == [3, 4]


def test_another_owner(magazines: MagazineStore) -> None:
    claimed(magazines, "me", 6)
    assert magazines.renew_claims("m", {0: [2, 3]}, "me", to_owner="keeper") == {}
    assert [(one.first, one.last) for one in magazines.held("m", "keeper")] == [(2, 3)]
    assert sum(run.messages for run in magazines.held("m", "me")) == 4
    assert magazines.renew_claims("m", {0: range(1, 7)}, "me") == {0: [2, 3]}
    assert magazines.renew_claims("m", {0: range(1, 7)}, "keeper") == {0: [1, 4, 5, 6]}


def test_claimants(magazines: MagazineStore) -> None:
    if not magazines.claimants("m") and "Broker" in type(magazines).__name__:
        pytest.skip("not told over a broker")
    assert magazines.claimants("m") == {}
    claimed(magazines, "me", 2)
    claimed(magazines, "other", 2)
    assert magazines.claimants("m") == {"me": False, "other": False}
    magazines.delete("m", {0: [1, 2]})
    assert "other" in magazines.claimants("m")


def test_the_process_behind_an_owner(kind: Kind) -> None:
    """A broker claims for others: it is their death that counts, and not its own."""
    if not kind.in_directory:
        pytest.skip("of a store that keeps processes beside names")
    store = kind.open()
    store.magazines.declare("m", 1)
    here = store.directory.here  # type: ignore[attr-defined]
    store.magazines.load_records("m", 0, numbered(6))
    store.magazines.fire("m", 2, Owner("dead", Process(here.pid, here.start_time + 1, here.namespace, here.boot)))
    store.magazines.fire("m", 2, Owner("alive", Process(*here)))
    store.magazines.fire("m", 2, Owner("elsewhere", Process(1, 1, here.namespace, "another-boot")))
    assert store.magazines.claimants("m") == {"dead": True, "alive": False, "elsewhere": False}
    found = store.magazines.abandoned("m", 0, 0, 10)
    assert [(one.pointer, one.owner, one.owner_dead) for one in found] == [(1, "dead", True), (2, "dead", True)]
    store.magazines.fire("m", 1, Owner("dead", Process(*here)))
    again = kind.reopen()
    assert again.magazines.claimants("m") == {"dead": True, "alive": False, "elsewhere": False}


def test_another_handle_renews(kind: Kind) -> None:
    first = kind.open()
    first.magazines.declare("m", 1)
    claimed(first.magazines, "me", 4)
    moment = tick()
    again = kind.reopen()
    assert again.magazines.renew_claims("m", {0: [1, 2]}, "me") == {}
    assert stuck(again.magazines, moment) == [3, 4]


def test_an_unknown_magazine(store: Store) -> None:
    with pytest.raises(QueueNotFoundError):
        store.magazines.renew_claims("nothing", {0: [1]}, "me")


class Named(Runs):
    """Names pointers. Nobody may make anything of each of them."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("work was done for each pointer that was named")


MANY = 1 << 60


@pytest.fixture
def inside(kind: Kind, magazines: MagazineStore) -> MagazineStore:
    if kind.name == "broker":
        pytest.skip("a client sends what it is given; the broker's own store is meant")
    return magazines


def test_who_names_many_pays_for_what_there_is(inside: MagazineStore) -> None:
    claimed(inside, "me", 10)
    claimed(inside, "other", 4)
    inside.load_records("m", 0, numbered(3))
    every = {0: Named([(1, MANY)]), 1: Named([(1, MANY)]), 9: Named([(5, MANY)])}
    lost = inside.renew_claims("m", every, "nobody")
    assert {shard: runs_of(many) for shard, many in lost.items()} == {0: [(1, MANY)], 1: [(1, MANY)], 9: [(5, MANY)]}
    lost = inside.renew_claims("m", {0: Named([(2, 6), (8, MANY)])}, "me")
    assert runs_of(lost[0]) == [(11, MANY)]
    assert {shard: len(found) for shard, found in inside.peek("m", every).items()} == {0: 17}
    assert inside.reload("m", {0: Named([(1, 2), (13, MANY)])}) == 3
    assert inside.delete("m", {0: Named([(2, 3), (5, MANY)]), 2: Named([(1, MANY)])}) == 15
    assert drain(inside, "m") == []
    assert sum(run.messages for run in inside.held("m", "me")) == 2


def test_many_runs_of_which_few_exist(inside: MagazineStore) -> None:
    for _ in range(4):
        claimed(inside, "me", 5)
    sparse = Named((2 * at, 2 * at + 1) for at in range(2_000))
    assert runs_of(inside.renew_claims("m", {0: sparse}, "me")[0]) == [
        (0, 1),
        *((at, at + 1) for at in range(22, 4_000, 2)),
    ]
    assert list(inside.peek("m", {0: sparse})[0]) == list(range(2, 21, 2))
    assert inside.delete("m", {0: sparse}) == 10
    assert sum(run.messages for run in inside.held("m", "me")) == 10


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 26)),
    st.sets(st.integers(0, 26)),
    st.sets(st.integers(0, 26)),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("url", ["memory://", "embedded"])
def test_renewing_is_what_sets_say(
    tmp_path_factory: pytest.TempPathFactory,
    url: str,
    loads: list[int],
    gone: set[int],
    taken: set[int],
    asked: set[int],
) -> None:
    with open_store(url if "://" in url else f"{url}://{tmp_path_factory.mktemp('store')}") as store:
        magazines = store.magazines
        magazines.declare("m", 1, "none")
        for count in loads:
            claimed(magazines, "me", count)
        there = set(range(1, sum(loads) + 1)) - gone
        magazines.delete("m", {0: sorted(gone)})
        others = magazines.renew_claims("m", {0: sorted(taken)}, "me", to_owner="other")
        assert set(others.get(0, ())) == taken - there
        lost = magazines.renew_claims("m", {0: Runs(runs_of(asked))}, "me")
        assert set(lost.get(0, ())) == asked - (there - taken)
        assert sum(run.messages for run in magazines.held("m", "me")) == len(there - taken)
        assert sum(run.messages for run in magazines.held("m", "other")) == len(there & taken)
