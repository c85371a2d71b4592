"""The unit over ``csrc/ignis_store.h``: one log, with its keys, magazines and messages."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ignis.errors import (
    ClosedError,
    ForkedHandleError,
    QueueNotFoundError,
    StoreFullError,
    StoreUnreachableError,
)
from ignis.native import PackedBatch, Record, encode_record, segment_columns
from ignis.native.store import ANY, FenceError, Log, Mark, NoShardError
from ignis.storage.runs import Runs

SMALL = 1 << 20
ME = b"me"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(str(tmp_path), segment_bytes=SMALL)
    yield made
    made.close()


@pytest.fixture
def number(log: Log) -> int:
    """A magazine of four shards."""
    made = log.declare("m", 4, 0)
    assert made is not None
    return made


def batch(*bodies: str, expires_at_ms: int = 0) -> PackedBatch:
    return PackedBatch.pack([encode_record(body.encode()) for body in bodies], expires_at_ms)


def texts(records: Sequence[bytes | None]) -> list[str]:
    return [Record(record or b"").body.decode() for record in records]


def fired(log: Log, number: int, limit: int = 100, **how: object) -> list[tuple[int, list[int], list[str]]]:
    pieces = log.fire(number, limit, ME, 1_000, **how)[0]  # type: ignore[arg-type]
    return [(shard, list(pointers), texts(records)) for shard, pointers, records, _ in pieces]


# -- the log


def test_keys_are_compared_and_set_together(log: Log) -> None:
    mark = log.change_keys([(b"a", None, b"1"), (b"b", ANY, b"2" * 2_000)])
    assert isinstance(mark, Mark)
    assert mark.position > 0
    log.flush(mark)
    assert (log.get_key(b"a"), log.get_key(b"b"), log.get_key(b"c")) == (b"1", b"2" * 2_000, None)
    assert log.change_keys([(b"a", b"1", b"9"), (b"b", b"other", None)]) is None
    assert log.get_key(b"a") == b"1", "all or none"
    assert log.change_keys([(b"a", b"1", None)]) is not None
    assert log.get_key(b"a") is None


def test_keys_are_listed_by_prefix(log: Log) -> None:
    many = {f"p{n}".encode(): os.urandom(n % 300) for n in range(900)}
    large = {b"p-large": b"x" * 300_000}
    for key, value in {**many, **large, b"q": b""}.items():
        log.change_keys([(key, None, value)])
    assert dict(log.keys(b"p")) == {**many, **large}
    assert len(log.keys()) == len(many) + 2
    assert log.keys(b"nothing") == []


@pytest.mark.parametrize("key", [b"", b"x" * 65_536])
def test_keys_that_are_none(log: Log, key: bytes) -> None:
    with pytest.raises(ValueError, match="key has"):
        log.get_key(key)
    with pytest.raises(ValueError, match="key has"):
        log.change_keys([(key, None, b"")])


def test_what_is_written_is_there_after_a_reopen(tmp_path: Path) -> None:
    first = Log(str(tmp_path), segment_bytes=SMALL)
    number = first.declare("m", 1, 0)
    assert number is not None
    first.load(number, [(0, batch("a", "b"))], durable=True)
    first.change_keys([(b"k", None, b"v")])
    first.close()
    again = Log(str(tmp_path), segment_bytes=SMALL)
    assert again.find("m") == number
    assert again.get_key(b"k") == b"v"
    assert fired(again, number) == [(0, [1, 2], ["a", "b"])]
    again.close()


def test_a_closed_log(log: Log) -> None:
    log.close()
    log.close()
    for call in (log.figures, log.mark, log.maintain, lambda: log.get_key(b"a"), lambda: log.wake(1)):
        with pytest.raises(ClosedError):
            call()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="none"):
        Log(str(tmp_path / "none"))


def test_a_child_lets_go(log: Log) -> None:
    log.change_keys([(b"a", None, b"1")])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"?"
        try:
            try:
                log.get_key(b"a")
            except ForkedHandleError:
                log.abandon()
                log.close()
                answer = b"refused"
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"refused"
    assert os.waitpid(pid, 0)[1] == 0
    assert log.get_key(b"a") == b"1"


def test_figures_count_what_lives(log: Log, number: int) -> None:
    log.load(number, [(0, batch("a", "b", "c"))], durable=True)
    assert log.figures()["living_records"] == 3
    log.retire(number, {0: [1, 2]}, durable=True)
    assert log.figures()["living_records"] == 1
    assert log.figures()["durable"] > 0


# -- magazines


def test_declaring(log: Log, number: int) -> None:
    assert log.declare("m", 4, 0) == number
    assert log.declare("m", 4, 1) is None, "another durability"
    assert log.declare("n", 2, 1) not in (None, number)
    assert {name: (shards, kind) for _, name, shards, kind in log.magazines()} == {"m": (4, 0), "n": (2, 1)}
    log.load(number, [(3, batch("a"))], durable=False)
    assert log.declare("m", 2, 0) is None, "something lives in what would go"
    log.retire(number, {3: [1]}, durable=False)
    assert log.declare("m", 2, 0) == number
    assert len(log.shards(number)) == 2


def test_dropping(log: Log, number: int) -> None:
    log.load(number, [(0, batch("a"))], durable=False)
    assert not log.drop(number, only_empty=True)
    assert log.drop(number)
    assert log.find("m") is None
    with pytest.raises(QueueNotFoundError):
        log.load(number, [(0, batch("b"))], durable=False)


# -- the way of a message


def test_a_batch_is_sealed_by_a_load_that_succeeds(log: Log, number: int) -> None:
    one = batch("a")
    with pytest.raises(NoShardError):
        log.load(number, [(0, one), (4, batch("b"))], durable=False)
    before = one.sealed
    assert log.load(number, [(0, one)], durable=False) == [1]
    assert (before, one.sealed) == (False, True), "until then it stays as it was"
    assert texts(one.records()) == ["a"]
    with pytest.raises(ValueError, match="sealed"):
        log.load(number, [(0, one)], durable=False)
    twice = batch("c")
    with pytest.raises(ValueError, match="sealed"):
        log.load(number, [(0, twice), (1, twice)], durable=False)
    assert not twice.sealed
    with memoryview(twice), pytest.raises(BufferError):
        log.load(number, [(0, twice)], durable=False)


def test_a_fire_takes_over_shards_in_turn(log: Log, number: int) -> None:
    log.load(number, [(0, batch("a", "b")), (2, batch("c")), (3, batch("d"))], durable=False)
    assert fired(log, number, 2, begin=2) == [(2, [1], ["c"]), (3, [1], ["d"])]
    pieces, expired, more, shards = log.fire(number, 1, ME, 1_000)
    assert [(piece[0], list(piece[1])) for piece in pieces] == [(0, [1])]
    assert (expired, more, shards) == ([], True, 4)
    assert fired(log, number, order=[3, 2]) == []
    assert fired(log, number, order=[3, 0]) == [(0, [2], ["b"])]
    assert log.fire(number, 9, ME, 1_000)[2] is False
    with pytest.raises(NoShardError):
        log.fire(number, 1, ME, 1_000, order=[4])


def test_one_fire_is_one_claim_for_each_shard(log: Log, number: int) -> None:
    for _ in range(5):
        log.load(number, [(0, batch("a", "b")), (1, batch("c"))], durable=False)
    before = log.figures()["end"]
    log.fire(number, 100, ME, 77)
    assert log.figures()["end"] - before < 200, "one entry"
    assert log.claims(number, 0) == [(1, 10, 10, 77, ME)]
    assert log.claims(number, 1) == [(1, 5, 5, 77, ME)]
    assert log.owners(number) == {ME}


def test_bytes_bound_a_fire_by_record(log: Log, number: int) -> None:
    sizes = [10, 2_000, 10, 10, 70_000, 10]
    log.load(number, [(0, batch(*("x" * size for size in sizes)))], durable=False)
    log.load(number, [(0, batch("y"))], durable=False)
    found = []
    while pieces := log.fire(number, 10, ME, 1, max_bytes=2_130)[0]:
        found.append([len(Record(record).body) for _, _, records, _ in pieces for record in records])
    assert found == [[10, 2_000, 10], [10], [70_000], [10], [1]]


def test_a_record_over_the_bound_is_only_handed_out_first(log: Log, number: int) -> None:
    log.load(number, [(0, batch("x" * 1_000))], durable=False)
    assert log.fire(number, 1, ME, 1, max_bytes=10, first=False)[::2] == ([], True)
    assert len(log.fire(number, 1, ME, 1, max_bytes=10)[0]) == 1


def test_many_small_batches_are_fired_at_once(log: Log, number: int) -> None:
    for n in range(3_000):
        log.load(number, [(0, batch(f"{n}"))], durable=False)
    assert [text for _, _, many in fired(log, number, 2_500) for text in many] == [f"{n}" for n in range(2_500)]
    assert sum(many[2] for many in log.fire(number, 9_999, ME, 1, records=False)[0]) == 500


def test_what_has_expired_stands_in_the_way_until_it_is_retired(log: Log, number: int) -> None:
    log.load(number, [(0, batch("short", "short", expires_at_ms=500)), (0, batch("long"))], durable=False)
    log.load(number, [(1, batch("other", expires_at_ms=5_000))], durable=False)
    pieces, expired, more, _ = log.fire(number, 9, ME, 1_000)
    assert ([piece[0] for piece in pieces], expired, more) == ([1], [0], False)
    assert log.expire(number, 0, 1_000, 1, durable=False) == 1
    assert log.expire(number, 0, 1_000, 9, durable=True) == 1
    assert log.expire(number, 0, 1_000, 9, durable=True) == 0
    assert log.shards(number)[0][7] == 2, "counted"
    assert fired(log, number) == [(0, [3], ["long"])]


def test_a_look_sees_every_head(log: Log, number: int) -> None:
    log.load(number, [(0, batch("a")), (1, batch("b", expires_at_ms=5)), (2, batch("c"))], durable=False)
    assert log.fire(number, 0, ME, 1_000)[:3] == ([], [1], True)
    assert log.shards(number)[0][1] == 0, "nothing was claimed"


def test_pointers_of_every_shape_are_retired(log: Log, number: int) -> None:
    log.load(number, [(0, batch(*"abcdefgh")), (1, batch(*"abcd"))], durable=False)
    shapes = {0: [7, 2, 2, -5, 0, 1 << 70], 1: Runs([(1, 3), (4, 1 << 60)])}
    assert log.retire(number, shapes, durable=False) == 5
    assert log.retire(number, {0: range(-3, 5), 70_000: [1], -1: [1]}, durable=False) == 3
    assert log.retire(number, {0: ()}, durable=False) == 0
    assert [(low, high) for low, high, _, _ in log.living(number, 0, [(1, 99)])] == [(5, 6), (8, 8)]
    with pytest.raises(NoShardError):
        log.retire(number, {4: [1]}, durable=False)


def test_only_what_waits_is_retired_when_that_is_asked_for(log: Log, number: int) -> None:
    log.load(number, [(0, batch(*"abcd"))], durable=False)
    log.fire(number, 2, ME, 1)
    assert log.retire(number, {0: range(1, 9)}, durable=False, waiting_only=True) == 2
    assert log.shards(number)[0][2:6] == (4, 4, 2, 2)


def test_a_load_that_is_claimed_in_the_same_entry(log: Log, number: int) -> None:
    assert log.load(number, [(0, batch("a")), (1, batch("b", "c"))], durable=False, owner=ME, ms=5) == [1, 1]
    assert log.claims(number, 1) == [(1, 2, 2, 5, ME)]
    log.load(number, [(1, batch("older"))], durable=False)
    waits = batch("younger")
    assert log.load(number, [(1, waits)], durable=False, owner=ME, ms=5) is None
    assert not waits.sealed
    assert fired(log, number) == [(1, [3], ["older"])]


def test_ids_are_loaded_once(log: Log, number: int) -> None:
    ids = b"".join(n.to_bytes(16, "big") for n in range(50))
    assert log.load_once(number, [(0, batch("a"))], ids, forget_hour=10, hour_now=5, durable=True) == [1]
    assert log.known_ids(number, ids[:32] + b"\xff" * 16, 5) == b"\1\1\0"
    again = batch("b")
    assert log.load_once(number, [(0, again)], ids[16:32], forget_hour=10, hour_now=5, durable=True) is None
    assert not again.sealed
    assert log.known_ids(number, ids[:16], 10) == b"\0"
    assert log.forget_ids(number, 10, 1_000)
    assert not log.forget_ids(number, 10, 1_000)
    with pytest.raises(ValueError, match="16 bytes"):
        log.known_ids(number, b"short", 5)


def test_a_transfer_is_all_or_nothing_and_fenced(log: Log, number: int) -> None:
    target = log.declare("n", 1, 0)
    assert target is not None
    log.load(number, [(0, batch("a", "b"))], durable=False)
    log.change_keys([(b"epoch", None, b"7")])
    for fence in ((b"epoch", b"6"), (b"epoch", None), (b"other", b"7")):
        with pytest.raises(FenceError):
            log.transfer(number, {0: [1]}, target, [(0, batch("a"))], durable=True, fence=fence)
        with pytest.raises(FenceError):
            log.load(number, [(0, batch("c"))], durable=True, fence=fence)
    assert log.transfer(number, {0: [1]}, target, [(0, batch("moved"))], durable=True, fence=(b"epoch", b"7"))
    left = batch("gone")
    assert not log.transfer(number, {0: [1, 2]}, target, [(0, left)], durable=True)
    assert not left.sealed
    assert fired(log, target) == [(0, [1], ["moved"])]
    assert fired(log, number) == [(0, [2], ["b"])]


def test_claims_are_renewed_and_handed_over(log: Log, number: int) -> None:
    log.load(number, [(0, batch(*"abcdef"))], durable=False)
    log.fire(number, 6, ME, 1)
    log.renew(number, {0: [2, 3]}, ME, None, 9)
    assert log.claims(number, 0) == [(1, 1, 1, 1, ME), (2, 3, 2, 9, ME), (4, 6, 3, 1, ME)]
    log.renew(number, {0: range(1, 3)}, ME, b"other", 11)
    log.renew(number, {0: range(1, 7)}, b"nobody", None, 99)
    assert [(first, last, ms, owner) for first, last, _, ms, owner in log.claims(number, 0)] == [
        (1, 1, 11, b"other"),
        (2, 2, 11, b"other"),
        (3, 3, 9, ME),
        (4, 6, 1, ME),
    ]
    assert [one[0] for one in log.claims(number, 0, 3, 1)] == [3]
    assert log.owners() == {ME, b"other"}


# -- looking


def test_a_part_of_a_large_batch_is_read_alone(log: Log, number: int) -> None:
    bodies = [f"{n:04}" * 100 for n in range(2_000)]
    log.load(number, [(0, batch(*bodies))], durable=False)
    for first, stop in ((1, 3), (1_000, 1_010), (1_999, 2_001), (1, 2_001)):
        pieces = log.peek(number, 0, [(first, stop)])
        assert [text for _, records, _ in pieces for text in texts(records)] == bodies[first - 1 : stop - 1]
    assert [len(records) for _, records, _ in log.peek(number, 0, [(5, 9), (20, 90)], limit=6)] == [4, 2]


def test_columns_of_several_batches_of_one_entry(log: Log, number: int) -> None:
    log.load(number, [(1, batch(*"abc")), (0, batch("x")), (1, batch(*"de"))], durable=False)
    log.retire(number, {1: [2]}, durable=False)
    found = segment_columns(log.batches(number, 1, 1, 4), number, 1)
    assert (found[0], found[1]) == (3, [])
    assert found[12 - 0] == b"acd"


def test_a_damaged_record_is_none_and_the_others_are_read(log: Log, number: int, tmp_path: Path) -> None:
    log.load(number, [(0, batch("before", "DAMAGED", "behind"))], durable=True)
    (file,) = [one for one in tmp_path.glob("log-*") if b"DAMAGED" in one.read_bytes()]
    with file.open("r+b") as opened:
        opened.seek(file.read_bytes().index(b"DAMAGED"))
        opened.write(b"damaged")
    ((_, pointers, records, _),) = log.fire(number, 9, ME, 1)[0]
    assert list(pointers) == [1, 2, 3]
    assert [None if record is None else Record(record).body for record in records] == [b"before", None, b"behind"]


# -- limits and waiting


def test_loads_stop_at_the_limit_and_retirements_go_on(tmp_path: Path) -> None:
    log = Log(str(tmp_path), segment_bytes=SMALL, max_bytes=SMALL)
    number = log.declare("m", 1, 0)
    assert number is not None
    fit = SMALL // 50_100
    for _ in range(fit):
        log.load(number, [(0, batch("x" * 50_000))], durable=False)
    with pytest.raises(StoreFullError, match=rf"{SMALL} \(max_store_bytes\)"):
        log.load(number, [(0, batch("x" * 50_000))], durable=False)
    assert log.figures()["living_records"] == fit
    assert log.retire(number, {0: [1, 2]}, durable=True) == 2
    log.load(number, [(0, batch("x" * 50_000))], durable=False)
    log.close()


def test_a_wait_ends_with_a_load_a_wake_and_its_time(log: Log, number: int) -> None:
    seen = log.wait(number, -1, 0)
    began = time.monotonic()
    assert log.wait(number, seen, 0.15) == seen
    assert 0.14 < time.monotonic() - began < 5
    calls: list[Callable[[], object]] = [
        lambda: log.load(number, [(0, batch("a"))], durable=False),
        lambda: log.wake(number),
    ]
    for call in calls:
        found: list[int] = []
        seen = log.wait(number, -1, 0)
        thread = threading.Thread(target=lambda: found.append(log.wait(number, seen, 20)))  # noqa: B023
        thread.start()
        time.sleep(0.05)
        began = time.monotonic()
        call()
        thread.join(20)
        assert time.monotonic() - began < 5
        assert found[0] != seen


def test_threads_over_one_log(log: Log, number: int) -> None:
    taken: list[tuple[int, int]] = []
    failed: list[BaseException] = []

    def load(shard: int) -> None:
        for n in range(60):
            log.load(number, [(shard, batch(f"{n}"))], durable=n % 20 == 0)

    def take() -> None:
        deadline = time.monotonic() + 30
        while len(taken) < 240 and time.monotonic() < deadline:
            for shard, pointers, _, _ in log.fire(number, 7, ME, 1)[0]:
                taken.extend((shard, pointer) for pointer in pointers)
                assert log.retire(number, {shard: pointers}, durable=False) == len(pointers)

    def guarded(work: object, *arguments: object) -> None:
        try:
            work(*arguments)  # type: ignore[operator]
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=guarded, args=(load, shard)) for shard in range(4)]
    threads += [threading.Thread(target=guarded, args=(take,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert failed == []
    assert len(taken) == len(set(taken)) == 240


# -- odd callers


class Fleeting(Sequence[tuple[int, PackedBatch]]):
    """Makes what it is asked for anew each time, so that nobody but the call holds it."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: object) -> tuple[int, PackedBatch]:  # type: ignore[override]
        if not isinstance(index, int) or index >= 200:
            raise IndexError(index)
        return index % 4, batch(f"{index}" * 100)


def test_batches_that_nobody_else_holds(log: Log, number: int) -> None:
    firsts = log.load(number, Fleeting(), durable=True)
    assert firsts is not None
    assert len(firsts) == 200
    found = [text for _, _, many in fired(log, number, 200) for text in many]
    assert sorted(found) == sorted(f"{n}" * 100 for n in range(200))


@pytest.mark.parametrize("given", [[(0, b"no batch")], [(0,)], [(0.5, None)], [], None, [("0", None)]])
def test_what_is_no_batch(log: Log, number: int, given: object) -> None:
    sound = batch("a")
    with pytest.raises((TypeError, ValueError)):
        log.load(number, [(0, sound), *given] if given else given, durable=False)  # type: ignore[misc, arg-type]
    assert not sound.sealed
    assert log.figures()["living_records"] == 0


def test_only_a_child_abandons(log: Log) -> None:
    with pytest.raises(RuntimeError, match="close it"):
        log.abandon()
    assert log.get_key(b"a") is None


def test_a_close_beside_calls_in_flight(tmp_path: Path) -> None:
    """What is in flight ends as it would have; nothing begins after it."""
    log = Log(str(tmp_path), segment_bytes=SMALL)
    number = log.declare("m", 1, 0)
    assert number is not None
    ended: list[type[BaseException]] = []

    def work() -> None:
        try:
            while True:
                log.load(number, [(0, batch("a"))], durable=True)
                log.fire(number, 1, ME, 1)
        except BaseException as exc:
            ended.append(type(exc))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    log.close()
    for thread in threads:
        thread.join(20)
    assert ended == [ClosedError] * 4


def test_a_mark_and_a_log_are_not_made_or_copied(log: Log) -> None:
    with pytest.raises(TypeError):
        Mark()
    for one in (log, log.mark()):
        with pytest.raises(TypeError):
            pickle.dumps(one)
