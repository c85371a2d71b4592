"""Delayed messages on Aerospike: what a death between two steps leaves, what nobody pays for who delays nothing, and what Java
does not see."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import StoreFullError
from ignis.storage import open_store
from ignis.storage.aerospike import layout, remove
from ignis.storage.aerospike.due_index import DueIndex
from ignis.storage.aerospike.later_records import MOST_MOVED
from ignis.storage.aerospike.layout import NO_DUE, LaterKeys
from ignis.storage.base import MagazineStore, Store, Transfer
from ignis.storage.later import later_of
from tests.conftest import MakeApp
from tests.contract.support import batch, drain, numbered, pointers, record, records, text
from tests.support import WAIT_S, eventually, sidelined
from tests.support import aerospike as aerospike_support
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration

FAR_MS = 3_600_000
MESSAGES = 8
SHARDS = 4


class Bench:
    """A store, the bare driver, and the place of both."""

    def __init__(self) -> None:
        self.address = aerospike_support.address()
        self.namespace = self.address.partition("/")[2]
        self.url = aerospike_support.url()
        self.client_id = self.url.partition("client_id=")[2]
        self.client = aerospike_support.raw_client()
        self.opened: list[Store] = []
        self.store = self.open()
        self.magazines: MagazineStore = self.store.magazines
        self.magazines.declare("m", SHARDS)

    def open(self) -> Store:
        self.opened.append(open_store(self.url))
        return self.opened[-1]

    def now_ms(self) -> int:
        return int(self.store.now_s() * 1000)

    def put(self, shard: int, due_ms: int, *bodies: str) -> int:
        return self.magazines.load_later("m", [(shard, batch(*bodies))], [[due_ms] * len(bodies)], None)[0]

    def key(self, set_name: str, key: str) -> tuple[str, str, str]:
        return self.namespace, f"local_{self.client_id}_{set_name}", key

    def keys(self, set_name: str) -> list[str]:
        rows = self.client.query(self.namespace, f"local_{self.client_id}_{set_name}").results()
        return sorted(str(row[0][2]) for row in rows)

    def due(self, shard: int) -> int:
        bins = self.client.get(self.key("meta_set", f"m_SHARD_{shard}_POINTERS"))[2]
        return int(bins.get(layout.NEXT_DUE, NO_DUE))


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    yield one
    for store in one.opened:
        store.close(10)
    one.client.close()
    aerospike_support.forget(one.address, [one.client_id])


@pytest.fixture
def marks_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a process that died is void at once, and not after half a minute."""
    monkeypatch.setattr(remove, "MOVE_STALE_MS", -60_000)


# -- who delays nothing


def entries_of(store: Store, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The calls that it makes, with the number of operations in each."""
    made: list[tuple[str, int]] = []
    connection: Any = store.connection  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for name in ("send", "operate", "remove", "read"):
            real = getattr(connection, name)

            def call(what: str, some: Any, *rest: Any, _real: Any = real, **named: Any) -> Any:
                made.append((what, len(some)))
                return _real(what, some, *rest, **named)

            patch.setattr(connection, name, call)
        asked = connection.between

        def between(what: str, *rest: Any) -> Any:
            made.append((what, 1))
            return asked(what, *rest)

        patch.setattr(connection, "between", between)
        before = Counter(connection.calls)
        act()
        after = Counter(connection.calls)
    assert sum((after - before).values()) == len(made), "a call was made past those that are looked at"
    return made


def test_who_delays_nothing_makes_no_call_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of before there were delays."""
    magazines, store = bench.magazines, bench.store
    loaded = entries_of(store, lambda: magazines.load("m", [(1, batch("a", "b"))], 3600), monkeypatch)
    assert loaded == [("reserve", 2), ("load", 2)]
    found: list[Any] = []
    claimed = entries_of(store, lambda: found.append(magazines.fire("m", 10, "me")), monkeypatch)
    assert claimed == [("claim", SHARDS), ("take", 3)]
    deleted = entries_of(store, lambda: magazines.delete("m", pointers(found[0])), monkeypatch)
    assert deleted == [("delete", 2)]
    assert entries_of(store, lambda: magazines.fire("m", 10, "me"), monkeypatch) == [("claim", SHARDS)]


def test_an_idle_claim_writes_nothing_where_nothing_is_delayed(bench: Bench) -> None:
    bench.magazines.load_records("m", 0, records("a"))
    assert drain(bench.magazines, "m") == ["a"]
    keys = [bench.key("meta_set", f"m_SHARD_{shard}_POINTERS") for shard in range(SHARDS)]
    before = [bench.client.get(key)[1]["gen"] for key in keys]
    assert drain(bench.magazines, "m") == []
    assert [bench.client.get(key)[1]["gen"] for key in keys] == before


def test_a_delayed_message_costs_three_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(0, bench.now_ms() + FAR_MS, "first")
    due_ms = bench.now_ms() + FAR_MS
    made = entries_of(bench.store, lambda: bench.put(1, due_ms, "a", "b"), monkeypatch)
    assert made == [("later_reserve", 1), ("later_load", 2), ("later_due", 1)]


# -- what others see


def test_java_sees_nothing_before_it_is_due(bench: Bench) -> None:
    before = bench.keys("data_set"), bench.keys("meta_set")
    bench.put(0, bench.now_ms() + FAR_MS, "a", "b")
    assert (bench.keys("data_set"), bench.keys("meta_set")) == before
    bins = bench.client.get(bench.key("meta_set", "m_SHARD_0_POINTERS"))[2]
    assert (bins["LOAD_POINTER"], bins["FIRE_POINTER"]) == (0, 0)
    assert bench.magazines.run_now("m", {0: [1]}) == 1
    assert bench.keys("data_set") == ["m_SHARD_0_1"]
    assert bench.keys("later_set") == ["m@LATER_SHARD_0_2"]


def test_magazines_whose_names_begin_alike_are_kept_apart(bench: Bench) -> None:
    number = LaterKeys("m").number
    alike = next(name for name in (f"q{n}" for n in range(10**6)) if LaterKeys(name).number == number)
    for name in ("m2", "m_LATER", alike):
        bench.magazines.declare(name, SHARDS)
        bench.magazines.load_later(name, [(0, batch(name))], [[bench.now_ms() - 1]], None)
    bench.put(0, bench.now_ms() - 1, "mine")
    assert [bench.magazines.delayed(name) for name in ("m", alike)] == [1, 1]
    assert drain(bench.magazines, "m") == ["mine"]
    assert bench.magazines.drop("m")
    assert [drain(bench.magazines, name) for name in ("m2", "m_LATER", alike)] == [["m2"], ["m_LATER"], [alike]]


# -- the next due time


def test_the_next_due_time_is_that_of_the_shard(bench: Bench) -> None:
    base_ms = bench.now_ms() + FAR_MS
    bench.put(0, base_ms, "a")
    bench.put(1, base_ms + 5, "b")
    bench.put(0, base_ms + 9, "c")
    assert [bench.due(shard) for shard in range(3)] == [base_ms, base_ms + 5, NO_DUE]
    bench.put(0, bench.now_ms() - 1, "now")
    assert drain(bench.magazines, "m") == ["now"]
    assert [bench.due(shard) for shard in range(3)] == [base_ms, base_ms + 5, NO_DUE]
    assert bench.magazines.cancel_later("m", {0: [1, 2], 1: [1]}) == 3
    bench.magazines.move_due("m")
    assert [bench.due(shard) for shard in range(3)] == [NO_DUE] * 3


def test_a_message_that_is_put_beside_a_look_is_not_overlooked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes behind the answer of the index, and before the next due time is written."""
    producer = bench.open().magazines
    producer.declare("m", SHARDS)
    due_ms = bench.now_ms() + 400
    real, beside = DueIndex.earliest, [True]

    def earliest(self: DueIndex, *args: Any) -> Any:
        found = real(self, *args)
        if beside.pop() if beside else False:
            producer.load_later("m", [(0, batch("beside"))], [[due_ms]], None)
        return found

    bench.put(0, bench.now_ms() - 1, "due")
    monkeypatch.setattr(DueIndex, "earliest", earliest)
    assert drain(bench.magazines, "m") == ["due"]
    assert not beside
    assert bench.due(0) <= due_ms
    eventually(lambda: drain(bench.magazines, "m") == ["beside"])


def test_the_earliest_of_more_than_one_look_shows(bench: Bench) -> None:
    base_ms = bench.now_ms() + FAR_MS
    dues = [base_ms + 10] * 400 + [base_ms + 3, base_ms + 1, base_ms + 2] + [base_ms + 20 + n for n in range(400)]
    for start in range(0, len(dues), 100):
        some = dues[start : start + 100]
        bench.magazines.load_later("m", [(0, batch(*map(str, some)))], [some], None)
    index: DueIndex = bench.magazines._records.index  # type: ignore[attr-defined]
    keys = LaterKeys("m")
    rows, upto_ms = index.earliest(keys, 50)
    assert [row.due_ms for row in rows if row.due_ms <= upto_ms] == sorted(dues)[: sum(due <= upto_ms for due in dues)]
    assert rows[:3] == [(base_ms + 1, 0, 402, 0), (base_ms + 2, 0, 403, 0), (base_ms + 3, 0, 401, 0)]
    assert base_ms + 3 <= upto_ms < base_ms + 10
    assert {row.due_ms for row in rows[3:]} <= {base_ms + 10}
    rows, upto_ms = index.earliest(keys, 50, base_ms + 10)
    assert upto_ms == base_ms + 9, "more than 50 are due in one millisecond: some of them"
    assert len(rows) == 50
    assert {row.due_ms for row in rows} == {base_ms + 10}
    assert [row.due_ms for row in index.listed(keys, None, 500)] == sorted(dues)[:500]
    assert [row.pointer for row in index.listed(keys, (base_ms + 10, 0, 30), 40)] == list(range(31, 71))
    rows, upto_ms = index.earliest(keys, 10_000)
    assert ([row.due_ms for row in rows], upto_ms) == (sorted(dues), NO_DUE - 1)
    assert index.earliest(keys, 50, base_ms + 421) == ([], NO_DUE - 1)


def test_without_its_index_it_looks_at_all(bench: Bench) -> None:
    due_ms = bench.now_ms() + FAR_MS
    bench.put(0, due_ms, "far")
    bench.put(1, bench.now_ms() - 1, "due")
    name = f"local_{bench.client_id}_later_set_{layout.DUE}"
    bench.client.info_all(f"sindex-delete:ns={bench.namespace};indexname={name}")
    assert drain(bench.magazines, "m") == ["due"]
    assert bench.magazines.next_due_ms("m") == due_ms
    fresh = bench.open().magazines
    assert [one.due_ms for one in fresh.list_later("m")] == [due_ms]
    assert fresh.delayed("m") == 1


def test_lost_pointers_lose_no_delayed_message(bench: Bench) -> None:
    """Neither does a new message come where an old one is, nor does one wait for ever."""
    bench.put(0, bench.now_ms() + FAR_MS, "a", "b")
    bench.put(0, bench.now_ms() + 300, "soon")
    bench.client.remove(bench.key("meta_set", "m_SHARD_0_POINTERS"))
    eventually(lambda: drain(bench.magazines, "m") == ["soon"])
    assert bench.put(0, bench.now_ms() + FAR_MS, "c") > 2
    assert sorted(str(text(one.record)) for one in bench.magazines.list_later("m")) == ["a", "b", "c"]


def test_what_was_dropped_does_not_come_back(bench: Bench) -> None:
    bench.put(0, bench.now_ms() - 1, "old")
    late = bench.client.get(bench.key("later_set", "m@LATER_SHARD_0_1"))
    assert bench.magazines.drop("m")
    assert bench.keys("later_set") == []
    bench.magazines.declare("m", SHARDS)
    # Somebody who was about to write it while the magazine was dropped.
    bench.client.put(bench.key("later_set", "m@LATER_SHARD_0_1"), late[2], None, {"key": 1})
    assert bench.put(0, bench.now_ms() - 1, "new") == 2
    assert drain(bench.magazines, "m") == ["new"]


# -- deaths

CHILD = """
    import os, signal, sys
    from ignis.storage import open_store
    from ignis.storage.aerospike.connection import Connection
    from ignis.storage.base import Transfer
    from tests.contract.support import batch, numbered, record

    url, act, step, side = sys.argv[1:]
    store = open_store(url)
    magazines = store.magazines
    due_ms = int(store.now_s() * 1000) - 1
    bodies = [f"m{n}" for n in range(8)]
    if act == "retry":
        magazines.load_records("m", 1, numbered(8))
        (claim,) = magazines.fire("m", 8, store.owner).claims
    elif act == "move":
        magazines.load_later("m", [(1, batch(*bodies))], [[due_ms] * 8], None)

    def deadly(name):
        real = getattr(Connection, name)

        def call(self, what, *rest, **named):
            if what == step and side == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(self, what, *rest, **named)
            if what == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(Connection, name, call)

    print("ready", flush=True)
    for name in ("send", "operate", "remove", "read", "between"):
        deadly(name)
    if act == "put":
        magazines.load_later("m", [(1, batch(*bodies))], [[due_ms] * 8], None)
    elif act == "move":
        magazines.fire("m", 100, store.owner)
    else:
        items = [Transfer(1, pointer, record(f"m{n}"), 1) for n, pointer in enumerate(claim.pointers)]
        magazines.defer("m", items, [due_ms] * 8)
    print("lived", flush=True)
"""
PUT_STEPS = ["later_reserve", "later_load", "later_due"]
MOVE_STEPS = ["due", "later_mark", "reserve", "load", "later_remove", "later_due", "claim", "take"]
RETRY_STEPS = ["mark", "later_reserve", "later_load", "later_due", "delete"]


def die(bench: Bench, act: str, step: str, side: str) -> None:
    """Has a process do it that is killed right before that call, or right behind it."""
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), bench.url, act, step, side],
        capture_output=True, check=False, timeout=WAIT_S, text=True,
    )  # fmt: skip
    assert (child.stdout, child.returncode) == ("ready\n", -9), child.stderr


def all_of(bench: Bench) -> Counter[str]:
    """All messages that are delivered in the end, by whatever way, and how often each."""
    found: Counter[str] = Counter()
    magazines = bench.open().magazines
    for _ in range(3):
        while magazines.move_due("m").moved:
            pass
        found.update(str(body) for body in drain(magazines, "m"))
        for shard in range(SHARDS):
            swept = magazines.abandoned("m", shard, bench.now_ms() + FAR_MS, 100)
            found.update(str(text(one.record)) for one in swept)
            magazines.delete("m", {shard: [one.pointer for one in swept]})
    assert magazines.delayed("m") == 0
    assert magazines.next_due_ms("m") is None
    return found


EACH_ONCE = Counter({f"m{n}": 1 for n in range(MESSAGES)})


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("step", PUT_STEPS)
def test_a_death_while_putting_doubles_nothing(bench: Bench, step: str, side: str, marks_are_old: None) -> None:
    """Nothing was acknowledged: all of them are there or none is."""
    die(bench, "put", step, side)
    written = (step, side) in {("later_load", "behind"), ("later_due", "before"), ("later_due", "behind")}
    assert all_of(bench) == (EACH_ONCE if written else Counter())


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("step", MOVE_STEPS)
def test_a_death_while_moving_loses_nothing(bench: Bench, step: str, side: str, marks_are_old: None) -> None:
    """It doubles what was loaded and not yet removed here: one batch, once."""
    die(bench, "move", step, side)
    doubled = (step, side) in {("load", "behind"), ("later_remove", "before")}
    assert all_of(bench) == (EACH_ONCE + EACH_ONCE if doubled else EACH_ONCE)


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("step", RETRY_STEPS)
def test_a_death_while_retrying_loses_nothing(bench: Bench, step: str, side: str, marks_are_old: None) -> None:
    """It doubles what was put and not yet removed from the main magazine: the messages of one call, once."""
    die(bench, "retry", step, side)
    put = {("later_load", "behind"), ("later_due", "before"), ("later_due", "behind"), ("delete", "before")}
    assert all_of(bench) == (EACH_ONCE + EACH_ONCE if (step, side) in put else EACH_ONCE)


def test_a_death_doubles_no_more_than_one_batch(
    bench: Bench, marks_are_old: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is due. The first batch is a small one, as long as nobody knows how large the messages are."""
    many = 2 * MOST_MOVED + 100
    due_ms = bench.now_ms() - 1
    bench.magazines.load_later("m", [(0, batch(*(f"m{n}" for n in range(many))))], [[due_ms] * many], None)

    class Died(BaseException):
        pass

    connection: Any = bench.store.connection  # type: ignore[attr-defined]
    real, removals = connection.remove, [0]

    def die_here(what: str, *rest: Any, **named: Any) -> Any:
        removals[0] += what == "later_remove"
        if removals[0] > 1:
            raise Died
        return real(what, *rest, **named)

    monkeypatch.setattr(connection, "remove", die_here)
    with pytest.raises(Died):
        bench.magazines.move_due("m")
    monkeypatch.setattr(connection, "remove", real)
    found = all_of(bench)
    assert len(found) == many
    assert sum(found.values()) - many == MOST_MOVED


def test_large_messages_are_moved_few_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    large = "x" * (2 << 20)
    for _ in range(6):
        bench.magazines.load_later("m", [(0, batch(*[large] * 10))], [[bench.now_ms() - 1] * 10], None)
    made = entries_of(bench.store, lambda: bench.magazines.move_due("m"), monkeypatch)
    assert [count for what, count in made if what == "load"] == [32, 15, 13]
    assert len(drain(bench.magazines, "m")) == 60


def test_while_one_moves_nobody_else_does(bench: Bench) -> None:
    """Its mark holds, and who meets it looks again later and not at once."""
    bench.put(0, bench.now_ms() - 1, "a")
    key = bench.key("later_set", "m@LATER_SHARD_0_1")
    mark = {layout.MOVING: bench.now_ms()}
    bench.client.put(key, mark, None, {"key": 1})
    assert drain(bench.magazines, "m") == []
    assert bench.magazines.run_now("m", {0: [1]}) == 0
    assert bench.magazines.cancel_later("m", {0: [1]}) == 0
    assert bench.magazines.due_in_s("m") is not None
    bench.client.put(key, {layout.MOVING: bench.now_ms() - remove.MOVE_STALE_MS - 1}, None, {"key": 1})
    eventually(lambda: drain(bench.magazines, "m") == ["a"])


def test_what_cannot_be_moved_holds_up_no_claim(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full store has no room for it, and gets some only by claims and acknowledgements."""
    bench.put(0, bench.now_ms() - 1, "due")
    bench.magazines.load_records("m", 0, records("there"))
    connection: Any = bench.store.connection  # type: ignore[attr-defined]
    real = connection.send

    def full(what: str, *rest: Any, **named: Any) -> Any:
        if what == "load":
            raise StoreFullError("no room")
        return real(what, *rest, **named)

    monkeypatch.setattr(connection, "send", full)
    assert drain(bench.magazines, "m") == ["there"]
    with pytest.raises(StoreFullError):
        bench.magazines.move_due("m")
    monkeypatch.setattr(connection, "send", real)
    eventually(lambda: drain(bench.magazines, "m") == ["due"])


def test_a_clock_that_is_set_moves_nothing_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ahead_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s[0])
    bench.put(0, bench.now_ms() + FAR_MS, "a")
    bench.put(0, bench.now_ms() + 3 * FAR_MS, "b")
    assert drain(bench.magazines, "m") == []
    ahead_s[0] = 2 * FAR_MS / 1000
    assert drain(bench.magazines, "m") == ["a"]
    ahead_s[0] = -2 * FAR_MS / 1000
    bench.put(0, bench.now_ms() - 1, "c")
    assert drain(bench.magazines, "m") == ["c"]
    ahead_s[0] = 4 * FAR_MS / 1000
    assert drain(bench.magazines, "m") == ["b"]
    assert drain(bench.magazines, "m") == []


# -- with handlers


def test_a_message_waits_and_is_tried_again(new_app: MakeApp, bench: Bench) -> None:
    app = new_app(bench.url)
    queue = app.queue("jobs", dict)
    seen: list[tuple[int, int]] = []

    @queue.handler(retry=ignis.Retry(attempts=4, base="30ms", factor=1.5, jitter=False))
    def handle(job: dict[str, int], ctx: ignis.Context) -> None:
        seen.append((job["n"], ctx.attempt))
        if ctx.attempt < 3 or job["n"] == 3:
            raise RuntimeError("not yet")

    app.start()
    queue.publish_many([{"n": n} for n in range(3)], delay="50ms")
    queue.publish({"n": 3})
    eventually(lambda: len(seen) >= 13 and not queue.main.in_flight() and not len(queue.later))
    assert sorted(seen) == sorted(
        [(n, attempt) for n in range(3) for attempt in (1, 2, 3)] + [(3, n) for n in (1, 2, 3, 4)]
    )
    (given_up,) = sidelined(queue)
    assert (given_up.reason, len(given_up.history)) == ("exception", 4)
    app.close(WAIT_S)


def test_through_a_broker(new_app: MakeApp, bench: Bench) -> None:
    broker = RunningBroker(bench.url)
    try:
        app = new_app(broker.url)
        queue = app.queue("jobs", str)
        seen: list[int] = []

        @queue.handler(retry=ignis.Retry(attempts=3, base="30ms", jitter=False))
        def handle(job: str, ctx: ignis.Context) -> None:
            seen.append(ctx.attempt)
            if ctx.attempt < 3:
                raise RuntimeError("not yet")

        app.start()
        cancelled = queue.publish("far", delay="1h")
        queue.publish("near", delay="50ms")
        eventually(lambda: seen == [1, 2, 3])
        assert [one.id for one in queue.later.list()] == [cancelled.id]
        assert queue.later.cancel(cancelled.id) == 1
        assert len(queue.later) == 0
        app.close(WAIT_S)
    finally:
        broker.stop()


def test_a_store_in_another_process_learns_of_it(bench: Bench) -> None:
    """By its own claims: it has not put it there."""
    other = bench.open().magazines
    assert drain(other, "m") == []
    bench.put(2, bench.now_ms() + 300, "a")
    assert drain(other, "m") == []
    due_in_s = other.due_in_s("m")
    assert due_in_s is not None and due_in_s <= 0.3
    seen = other.wait("m", -1, 0)
    assert other.wait("m", seen, WAIT_S) != seen
    assert drain(other, "m") == ["a"]
    assert later_of("m") in other.names()


def test_a_retry_keeps_its_place_free_of_doubles(bench: Bench) -> None:
    bench.magazines.load_records("m", 0, numbered(1))
    (claim,) = bench.magazines.fire("m", 1, "me").claims
    item = Transfer(0, claim.pointers[0], record("again"), 0)
    other = bench.open().magazines
    other.declare("m", SHARDS)
    assert bench.magazines.defer("m", [item], [bench.now_ms() - 1]) == 1
    assert other.defer("m", [item], [bench.now_ms() - 1]) == 0
    assert drain(other, "m") == ["again"]
