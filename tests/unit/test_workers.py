"""Workers without a store: what they are given, what they report, and what becomes of messages when they go away."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest

from ignis.consumer.handler import Failure, HandlerSpec, Outcome
from ignis.consumer.pools import Chunk, Pool, Worker, coroutine
from ignis.consumer.pools.base import COMMAND_HANDED_OVER, COMMAND_HANDLE, COMMAND_RETURNED, INDEX_BITS, make_inbox
from ignis.consumer.pools.child import _ChildSink
from ignis.consumer.pools.coroutine import CoroutinePool, _LoopWorker
from ignis.consumer.pools.factory import make_pool
from ignis.consumer.pools.loop import FramesInbox, WorkLoop
from ignis.consumer.runner import Runner
from ignis.errors import MessageTooLargeError, WorkerStartError
from ignis.figures import HANDLING
from ignis.message import BodyCodec
from ignis.native import CODEC_JSON, Channel, decode_frames, encode_record
from ignis.native.histogram import Histogram
from tests.support import WAIT_S, Gate, eventually

MAX_RECORD_BYTES = 64 << 10


class Reports:
    """A sink that remembers. Every id must be accounted for exactly once."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: dict[int, Failure] = {}
        self.returned: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self.timed = 0
        self.durations = Histogram(HANDLING.bounds_s)

    def on_done(self, first_id: int, count: int) -> None:
        self.runs.append((first_id, count))
        self.done += range(first_id, first_id + count)

    def on_failed(self, request_id: int, failure: Failure) -> None:
        assert request_id not in self.failed
        self.failed[request_id] = failure

    def giving_back(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def on_returned(self, first_id: int, count: int) -> None:
        self.returned += range(first_id, first_id + count)

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        self.timed += messages

    def everything(self) -> list[int]:
        return sorted([*self.done, *self.failed, *self.returned])


def chunk_of(number: int, bodies: list[Any], shard: int = 0) -> Chunk:
    records = [encode_record(BodyCodec(None).encode_checked(body), flags=CODEC_JSON) for body in bodies]
    return Chunk(number, [(shard, range(1, len(records) + 1))], records, sum(map(len, records)))


def ids(chunk: Chunk) -> list[int]:
    return list(range(chunk.first_id, chunk.first_id + len(chunk.records)))


MakePool = Callable[..., tuple[Pool, Reports]]


@pytest.fixture
def pool_of() -> Iterator[MakePool]:
    """``pool_of(fn, workers=1, **settings of the handler)``: a running pool and what it reports."""
    pools: list[Pool] = []

    def make(
        fn: Callable[..., Any], workers: int = 1, give_back_s: float = 60, **settings: Any
    ) -> tuple[Pool, Reports]:
        spec, reports = HandlerSpec(fn, "jobs", concurrency=workers, **settings), Reports()
        pool = make_pool(
            spec,
            reports,
            lambda: Runner(spec, BodyCodec(None), {}),
            codec="json",
            max_record_bytes=MAX_RECORD_BYTES,
            give_back_s=give_back_s,
        )
        pools.append(pool)
        pool.resize(workers)
        return pool, reports

    yield make
    for pool in pools:
        pool.drain(5)
        pool.close(5)


def checking(pool: Pool, condition: Callable[[], Any]) -> None:
    """Waits while the pool is looked after, as a consumer does."""

    def look() -> Any:
        pool.check(time.monotonic())
        return condition()

    eventually(look)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(only="stop")
    yield gate
    gate.open.set()


# -- accounting


class Silent(Worker):
    """A worker that never reports by itself."""

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        return self._send(self.inbox, chunk, start, stop)

    def __init__(self, reports: Reports) -> None:
        super().__init__(reports)
        self.inbox = make_inbox(MAX_RECORD_BYTES)


@pytest.mark.parametrize(
    ("at", "count", "done", "failed", "returned"),
    [
        (None, 0, [], [], [10, 11, 12, 20, 21]),
        (10, 1, [], [10], [11, 12, 20, 21]),
        (11, 1, [10], [11], [12, 20, 21]),
        (20, 1, [10, 11, 12], [20], [21]),
        (21, 1, [10, 11, 12, 20], [21], []),
        (12, 2, [10, 11], [12, 20], [21]),
        (99, 1, [], [], [10, 11, 12, 20, 21]),
    ],
)
@pytest.mark.parametrize("failure", [Failure("crash", "x"), None])
def test_a_lost_worker_is_accounted_for(
    at: int | None, count: int, done: list[int], failed: list[int], returned: list[int], failure: Failure | None
) -> None:
    """Before the message at hand: handled. That message: failed, or left alone. Behind it: returned."""
    reports = Reports()
    worker = Silent(reports)
    one, two = chunk_of(10, [0, 1, 2]), chunk_of(20, [0, 1])
    assert worker.submit(one, 0, 3)
    assert worker.submit(two, 0, 2)
    assert worker.outstanding == 5

    def real(short: int) -> int:
        return ((short // 10 * 10) << INDEX_BITS) + short % 10

    worker.settle_lost(0 if at is None else real(at), count, failure)
    assert reports.done == [real(one) for one in done]
    assert list(reports.failed) == ([real(one) for one in failed] if failure is not None else [])
    assert reports.returned == [real(one) for one in returned]
    assert worker.outstanding == 0


def test_a_worker_that_reports_what_it_was_not_given_is_caught() -> None:
    worker = Silent(Reports())
    worker.submit(chunk_of(1, [0, 1]), 0, 2)
    with pytest.raises(RuntimeError, match="but owes"):
        worker.on_done((1 << INDEX_BITS) + 1, 1)


def test_a_full_inbox_is_a_result() -> None:
    reports = Reports()
    worker = Silent(reports)
    chunk = chunk_of(1, ["x" * 30_000])
    sent = 0
    while worker.submit(chunk, 0, 1):
        sent += 1
    assert sent
    assert worker.outstanding == sent


def test_a_record_that_no_inbox_takes_is_told_and_not_owed() -> None:
    worker = Silent(Reports())
    with pytest.raises(MessageTooLargeError):
        worker.submit(chunk_of(1, ["x" * (1 << 20)]), 0, 1)
    assert worker.outstanding == 0


# -- the loop of threads and processes


def loop_over(
    fn: Callable[..., Any],
    chunks: list[Chunk],
    reports: Reports,
    *,
    give_back_s: float = 60,
    returning: Any = None,
    **settings: Any,
) -> Channel:
    """Runs a loop over the chunks until its inbox is empty."""
    spec = HandlerSpec(fn, "jobs", **settings)
    inbox = make_inbox(MAX_RECORD_BYTES)
    for chunk in chunks:
        assert inbox.try_send(chunk.frames(0, len(chunk.records)))
    loop = WorkLoop(
        Runner(spec, BodyCodec(None), {}),
        spec,
        FramesInbox(inbox),
        reports,
        should_return=returning or (lambda: False),
        should_stop=lambda: True,
        on_start=None,
        give_back_s=give_back_s,
    )
    loop.run()
    return inbox


def test_a_chunk_of_successes_is_one_report() -> None:
    reports, chunk = Reports(), chunk_of(1, list(range(100)))
    loop_over(lambda message: None, [chunk], reports)
    assert reports.runs == [(chunk.first_id, 100)]
    assert reports.timed == 100


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_through_the_loop_report_the_same(seed: int) -> None:
    """A plain handler is called from C; with a middleware, or attempts, from Python."""
    chosen = random.Random(seed)
    answers = [chosen.choice([None, True, True, None, False, 7, "raise", "ignored", "exit"]) for _ in range(60)]

    def handle(message: int) -> Any:
        answer = answers[message]
        if answer == "raise":
            raise ValueError(message)
        if answer == "ignored":
            raise KeyError(message)
        if answer == "exit":
            raise SystemExit(message)
        return answer

    def through(ctx: Any, call_next: Any) -> Any:
        return call_next(ctx)

    unreadable = set(chosen.sample(range(60), 3))
    told = []
    for middleware in ([], [through]):
        reports, chunk = Reports(), chunk_of(1, [{} if number in unreadable else number for number in range(60)])
        spec = HandlerSpec(handle, "jobs", ignore=(KeyError,), middleware=list(middleware))
        loop = WorkLoop(
            Runner(spec, BodyCodec(int), {}), spec, FramesInbox(make_inbox(MAX_RECORD_BYTES)), reports,
            should_return=lambda: False, should_stop=lambda: True, on_start=None, give_back_s=60,
        )  # fmt: skip
        assert loop._run_chunk(chunk.first_id, chunk.records)
        assert reports.everything() == ids(chunk)
        told.append((
            sorted(reports.done), {id_: (one.reason, one.error) for id_, one in reports.failed.items()}, reports.timed,
        ))  # fmt: skip
    assert told[0] == told[1]
    assert {reason for reason, _ in told[0][1].values()} >= {"unreadable"}


def test_failures_split_the_run_and_keep_the_order() -> None:
    reports, chunk = Reports(), chunk_of(1, list(range(10)))
    loop_over(lambda message: message not in (3, 4, 9), [chunk], reports)
    first = chunk.first_id
    assert reports.runs == [(first, 3), (first + 5, 4)]
    assert list(reports.failed) == [first + 3, first + 4, first + 9]
    assert reports.everything() == ids(chunk)


def test_a_misjudged_chunk_is_given_back() -> None:
    """The first message takes long: whoever is free may have the others."""
    reports, chunk = Reports(), chunk_of(1, list(range(10)))
    loop_over(lambda message: time.sleep(0.06), [chunk], reports, give_back_s=0.01)
    assert reports.done
    assert len(reports.returned) >= 8
    assert reports.everything() == ids(chunk)


def test_what_is_not_started_is_returned_on_request() -> None:
    reports, chunk, handled = Reports(), chunk_of(1, list(range(5))), []

    def handle(message: int) -> None:
        handled.append(message)
        time.sleep(0.005)  # longer than the time between two looks

    loop_over(handle, [chunk, chunk_of(2, [7])], reports, returning=lambda: len(handled) == 2)
    assert handled == [0, 1]
    assert reports.done == ids(chunk)[:2]
    assert reports.returned == [*ids(chunk)[2:], 2 << INDEX_BITS]


def test_frames_carry_the_chunk() -> None:
    chunk = chunk_of(3, ["a", "b", "c"])
    from ignis.native import decode_frames

    frames, _ = decode_frames(chunk.frames(1, 3))
    assert frames == [(COMMAND_HANDLE, chunk.first_id + i, chunk.records[i]) for i in (1, 2)]


# -- threads


def test_threads_handle_everything(pool_of: MakePool) -> None:
    seen: list[Any] = []
    pool, reports = pool_of(seen.append, workers=3)
    chunks = [chunk_of(n, [f"{n}.{i}" for i in range(20)]) for n in range(1, 7)]
    for number, chunk in enumerate(chunks):
        assert pool.workers[number % 3].submit(chunk, 0, 20)
    eventually(lambda: len(reports.done) == 120)
    assert sorted(seen) == sorted(f"{n}.{i}" for n in range(1, 7) for i in range(20))
    assert reports.everything() == sorted(one for chunk in chunks for one in ids(chunk))
    assert not any(worker.outstanding for worker in pool.workers)


def test_a_thread_that_overruns_is_given_up_and_replaced(pool_of: MakePool, gate: Gate) -> None:
    pool, reports = pool_of(gate, timeout_s=0.05)
    [stuck] = pool.workers
    chunk = chunk_of(1, ["before", "stop", "after"])
    assert stuck.submit(chunk, 0, 3)
    assert stuck.submit(chunk_of(2, ["queued"]), 0, 1)
    gate.wait_entered()
    checking(pool, lambda: reports.failed)
    first = chunk.first_id
    assert reports.failed == {first + 1: Failure("timeout", "handler ran for more than 0.05 s")}
    assert reports.done == [first]
    assert reports.returned == [first + 2, 2 << INDEX_BITS]
    assert stuck.outstanding == 0
    assert not stuck.submit(chunk, 2, 3), "nothing is given to a thread that was given up"
    [fresh] = pool.workers
    assert fresh is not stuck
    assert pool.lost_threads == 1  # type: ignore[attr-defined]
    assert fresh.submit(chunk_of(3, ["again"]), 0, 1)
    eventually(lambda: 3 << INDEX_BITS in reports.done)
    gate.open.set()
    eventually(lambda: pool.lost_threads == 0)  # type: ignore[attr-defined]
    assert gate.seen == ["before", "stop", "again"], "what was taken from it is not handled by it"
    assert reports.done == [first, 3 << INDEX_BITS], "and it has nothing more to say"


def test_hanging_threads_do_not_multiply_without_bound(
    pool_of: MakePool, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    pool, reports = pool_of(gate, timeout_s=0.02, max_consumers=2)
    for number in range(1, 4):
        eventually(lambda: pool.workers)
        assert pool.workers[0].submit(chunk_of(number, ["stop"]), 0, 1)
        assert not pool.used_up
        checking(pool, lambda n=number: len(reports.failed) == n)  # type: ignore[misc]
    pool.check(time.monotonic())
    pool.check(time.monotonic())
    assert list(pool.workers) == []
    assert pool.used_up
    said = [one.getMessage() for one in caplog.records if "overran timeout_s and still run" in one.getMessage()]
    assert len(said) == 1 and "consumer.max_consumers (2)" in said[0]
    gate.open.set()
    checking(pool, lambda: pool.workers)
    assert not pool.used_up


def test_fewer_threads(pool_of: MakePool, gate: Gate) -> None:
    pool, reports = pool_of(gate, workers=2)
    stays, leaves = pool.workers
    chunk = chunk_of(1, ["stop", "not started"])
    assert leaves.submit(chunk, 0, 2)
    gate.wait_entered()
    pool.resize(1)
    assert list(pool.workers) == [stays]
    assert not leaves.submit(chunk_of(2, ["late"]), 0, 1)
    gate.open.set()
    checking(pool, lambda: not leaves.outstanding)
    assert (reports.done, reports.returned) == (ids(chunk)[:1], ids(chunk)[1:])


def test_a_stuck_thread_keeps_only_what_it_is_at(
    pool_of: MakePool, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    pool, reports = pool_of(gate)
    [worker] = pool.workers
    chunk = chunk_of(1, ["before", "stop", "after"])
    assert worker.submit(chunk, 0, 3)
    assert worker.submit(chunk_of(2, ["queued"]), 0, 1)
    gate.wait_entered()
    assert pool.drain(0.05) is False
    first = chunk.first_id
    assert (reports.done, reports.failed) == ([first], {})
    assert reports.returned == [first + 2, 2 << INDEX_BITS]
    gate.open.set()
    pool.close(5)
    eventually(lambda: pool.lost_threads == 0)  # type: ignore[attr-defined]
    assert gate.seen == ["before", "stop"]
    assert first + 1 not in reports.everything(), "left claimed: the sweeper's"
    assert [one for one in caplog.records if one.name.startswith("ignis.consumer")] == [], "its late end is no error"


def test_drained_threads_return_what_they_did_not_start(pool_of: MakePool, gate: Gate) -> None:
    pool, reports = pool_of(gate)
    chunk = chunk_of(1, ["stop", "a", "b"])
    assert pool.workers[0].submit(chunk, 0, 3)
    gate.wait_entered()
    threading.Timer(0.05, gate.open.set).start()
    assert pool.drain(WAIT_S) is True
    assert (reports.done, reports.returned) == (ids(chunk)[:1], ids(chunk)[1:])


def test_batches_in_threads(pool_of: MakePool) -> None:
    sizes: list[int] = []

    def batch(messages: list[int]) -> list[bool]:
        sizes.append(len(messages))
        return [message % 3 != 0 for message in messages]

    pool, reports = pool_of(batch, batch_size=4, batch_wait_s=1)
    one, two = chunk_of(1, list(range(6))), chunk_of(2, list(range(6, 9)))
    assert pool.workers[0].submit(one, 0, 6)
    assert pool.workers[0].submit(two, 0, 3)
    eventually(lambda: len(reports.everything()) == 9)
    assert sizes == [4, 4, 1], "full ones at once, the rest after the wait"
    assert sorted(reports.failed) == [ids(one)[0], ids(one)[3], ids(two)[0]]
    assert reports.everything() == ids(one) + ids(two)


def test_an_incomplete_batch_is_returned_when_drained(pool_of: MakePool) -> None:
    pool, reports = pool_of(lambda messages: None, batch_size=10, batch_wait_s=300)
    chunk = chunk_of(1, [1, 2, 3])
    assert pool.workers[0].submit(chunk, 0, 3)
    assert pool.drain(WAIT_S) is True
    assert reports.returned == ids(chunk)


# -- coroutines


def test_coroutines_run_at_the_same_time_up_to_the_limit(pool_of: MakePool) -> None:
    running, most = 0, 0

    async def handler(message: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    pool, reports = pool_of(handler, workers=5)
    chunk = chunk_of(1, list(range(40)))
    assert pool.workers[0].submit(chunk, 0, 40)
    eventually(lambda: len(reports.done) == 40)
    assert most == 5
    assert sorted(reports.done) == ids(chunk)


def test_a_slow_coroutine_does_not_hold_back_the_reports_of_others(pool_of: MakePool) -> None:
    release: list[asyncio.Event] = []

    async def handler(message: Any) -> None:
        if message == 0:
            release.append(asyncio.Event())
            await release[0].wait()

    pool, reports = pool_of(handler, workers=2)
    [worker] = pool.workers
    chunk = chunk_of(1, list(range(50)))
    assert worker.submit(chunk, 0, 50)
    eventually(lambda: len(reports.done) == 49)
    assert worker.outstanding == 1
    worker.loop.call_soon_threadsafe(release[0].set)  # type: ignore[attr-defined]
    eventually(lambda: len(reports.done) == 50)


def test_coroutines_return_what_they_did_not_start(pool_of: MakePool) -> None:
    entered = threading.Event()

    async def handler(message: Any) -> None:
        entered.set()
        await asyncio.sleep(0.05)

    pool, reports = pool_of(handler, workers=1)
    chunk = chunk_of(1, list(range(10)))
    assert pool.workers[0].submit(chunk, 0, 10)
    assert entered.wait(WAIT_S)
    assert pool.drain(WAIT_S) is True
    assert 1 <= len(reports.done) < 10
    assert reports.everything() == ids(chunk)


def test_a_coroutine_that_a_drain_breaks_off_is_returned(pool_of: MakePool) -> None:
    entered, cancelled = threading.Event(), []

    async def handler(message: Any) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(message)
            raise

    pool, reports = pool_of(handler, workers=1)
    chunk = chunk_of(1, ["stuck", "other"])
    assert pool.workers[0].submit(chunk, 0, 2)
    assert entered.wait(WAIT_S)
    assert pool.drain(0.05) is True
    assert [(first_id, count) for first_id, count, _ in pool.broken_off] == [(chunk.first_id, 1)]
    assert pool.unended == []
    pool.close(0.05)
    assert cancelled == ["stuck"]
    assert sorted(reports.returned) == ids(chunk)


def test_a_batch_that_a_drain_breaks_off_is_returned(pool_of: MakePool) -> None:
    entered = threading.Event()

    async def handler(messages: list[Any]) -> None:
        entered.set()
        await asyncio.sleep(60)

    pool, reports = pool_of(handler, workers=1, batch_size=3)
    chunk = chunk_of(1, [1, 2, 3])
    assert pool.workers[0].submit(chunk, 0, 3)
    assert entered.wait(WAIT_S)
    assert pool.drain(0.05) is True
    assert [(first_id, count) for first_id, count, _ in pool.broken_off] == [(chunk.first_id, 3)]
    assert sorted(reports.returned) == ids(chunk)


def test_what_a_cancelled_coroutine_still_answers_counts(pool_of: MakePool) -> None:
    entered: list[Any] = []

    async def handler(message: Any) -> None:
        entered.append(message)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if message == "fails":
                raise ValueError("in the middle") from None
            assert message == "done"

    pool, reports = pool_of(handler, workers=2)
    chunk = chunk_of(1, ["done", "fails"])
    assert pool.workers[0].submit(chunk, 0, 2)
    eventually(lambda: len(entered) == 2)
    assert pool.drain(0.05) is True
    assert reports.done == ids(chunk)[:1]
    assert reports.failed[ids(chunk)[1]].error == "ValueError: in the middle"
    assert reports.returned == []
    assert (pool.broken_off, pool.unended) == ([], [])


def test_a_coroutine_that_nothing_cancels_stays_claimed(
    pool_of: MakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coroutine, "_CANCEL_S", 0.1)
    entered, over = threading.Event(), threading.Event()

    async def handler(message: Any) -> None:
        entered.set()
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    pool, reports = pool_of(handler, workers=1)
    chunk = chunk_of(1, ["stuck", "other"])
    assert pool.workers[0].submit(chunk, 0, 2)
    assert entered.wait(WAIT_S)
    assert pool.drain(0.05) is False
    assert [(first_id, count) for first_id, count, _ in pool.unended] == [(chunk.first_id, 1)]
    assert pool.broken_off == []
    pool.close(0.05)
    over.set()
    assert reports.everything() == ids(chunk)[1:]
    assert "coroutines of jobs did not end, though they were cancelled" in caplog.text


@pytest.mark.parametrize("timeout_s", [None, 30])
def test_no_handler_ends_its_event_loop(pool_of: MakePool, timeout_s: float | None) -> None:
    async def handler(message: Any) -> None:
        if message == "exit":
            raise SystemExit(1)
        if message == "cancel":
            raise asyncio.CancelledError

    pool, reports = pool_of(handler, workers=2, timeout_s=timeout_s)
    chunk = chunk_of(1, ["exit", "cancel", "fine"])
    assert pool.workers[0].submit(chunk, 0, 3)
    eventually(lambda: len(reports.everything()) == 3)
    assert {failure.reason for failure in reports.failed.values()} == {"exception"}
    assert reports.done == ids(chunk)[2:]


def test_batches_of_coroutines(pool_of: MakePool) -> None:
    sizes: list[int] = []

    async def batch(messages: list[int]) -> list[bool]:
        sizes.append(len(messages))
        return [message != 2 for message in messages]

    pool, reports = pool_of(batch, batch_size=4, batch_wait_s=1)
    chunk = chunk_of(1, list(range(6)))
    assert pool.workers[0].submit(chunk, 0, 6)
    eventually(lambda: len(reports.everything()) == 6)
    assert sizes == [4, 2]
    assert list(reports.failed) == [ids(chunk)[2]]


def test_no_coroutines_no_worker(pool_of: MakePool) -> None:
    async def handler(message: Any) -> None: ...

    pool, reports = pool_of(handler, workers=2)
    pool.resize(0)
    assert list(pool.workers) == []
    pool.resize(1)
    assert pool.workers[0].submit(chunk_of(1, [1]), 0, 1)
    eventually(lambda: reports.done)


def test_a_worker_process_can_report_what_is_not_utf8() -> None:
    outbox = make_inbox(MAX_RECORD_BYTES)
    _ChildSink(outbox, Histogram(HANDLING.bounds_s)).on_failed(7, Failure("exception", "caf\udce9" * 2_000))
    ((_, request_id, payload),) = decode_frames(outbox.recv_many(1, WAIT_S)[0])[0]
    reason, error, _, _ = msgspec.msgpack.decode(payload)
    assert (request_id, reason, error) == (7, "exception", ("caf\\udce9" * 2_000)[: len(error)])
    outbox.close()


class BrokenRunner(Runner):
    """What no handler can do, done."""

    async def run_async(self, data: bytes) -> Outcome:
        raise RuntimeError("a bug")

    async def run_batch_async(self, records: Sequence[bytes]) -> list[Outcome]:
        raise SystemExit(3)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_coroutine_that_fails_outside_its_handler_is_a_failure(batch_size: int | None) -> None:
    async def handle(message: Any) -> None:
        pass

    spec, reports = HandlerSpec(handle, "jobs", batch_size=batch_size, attempts=2), Reports()
    pool = CoroutinePool(spec, reports, lambda: BrokenRunner(spec, BodyCodec(None), {}))
    pool.resize(1)
    chunk = chunk_of(1, ["a", "b"])
    assert pool.workers[0].submit(chunk, 0, 2)
    checking(pool, lambda: len(reports.failed) == 2)
    assert sorted(reports.failed) == ids(chunk)
    assert {one.reason for one in reports.failed.values()} == {"exception"}
    assert pool.drain(WAIT_S)
    pool.close(WAIT_S)


def test_a_task_that_exits_ends_no_event_loop(pool_of: MakePool) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def handle(message: Any) -> None:
        if message == "leave":
            await asyncio.create_task(leave())

    pool, reports = pool_of(handle)
    chunk = chunk_of(1, ["leave", "stay"])
    assert pool.workers[0].submit(chunk, 0, 2)
    checking(pool, lambda: reports.everything() == ids(chunk))
    assert list(reports.failed) == ids(chunk)[:1]
    assert reports.failed[chunk.first_id].error == "SystemExit: 3"


def test_an_event_loop_that_ends_fails_its_pool(pool_of: MakePool) -> None:
    async def handle(message: Any) -> None:
        worker.loop.run_forever = broken  # type: ignore[method-assign]
        worker.loop.stop()

    def broken() -> None:
        raise OSError("no more files")

    pool, _ = pool_of(handle)
    worker = cast("_LoopWorker", pool.workers[0])
    assert worker.submit(chunk_of(1, ["a"]), 0, 1)
    worker.thread.join(WAIT_S)
    with pytest.raises(WorkerStartError, match="its event loop ended"):
        pool.check(time.monotonic())


def test_a_handler_that_stops_the_event_loop_ends_nothing(pool_of: MakePool) -> None:
    async def handle(message: Any) -> None:
        asyncio.get_running_loop().stop()

    pool, reports = pool_of(handle)
    chunk = chunk_of(1, ["a", "b"])
    assert pool.workers[0].submit(chunk, 0, 2)
    checking(pool, lambda: reports.done == ids(chunk))


# -- held up


def test_what_lies_behind_a_call_is_handed_over(pool_of: MakePool, gate: Gate) -> None:
    pool, reports = pool_of(gate)
    (worker,) = pool.workers
    first, second = chunk_of(1, ["a", "stop", "b", "c"]), chunk_of(2, ["d", "e"])
    assert worker.submit(first, 0, 4) and worker.submit(second, 0, 2)
    gate.wait_entered()
    worker.hand_over()
    assert reports.returned == [*ids(first)[2:], *ids(second)]
    worker.hand_over()
    assert len(reports.returned) == 4 and worker.outstanding == 2
    third = chunk_of(3, ["f"])
    assert worker.submit(third, 0, 1)
    gate.open.set()
    eventually(lambda: not worker.outstanding)
    assert reports.done == [*ids(first)[:2], *ids(third)]
    assert gate.seen == ["a", "stop", "f"]


@pytest.mark.parametrize("settings", [{}, {"timeout_s": WAIT_S}, {"attempts": 2}, {"batch_size": 7, "batch_wait_s": 1}])
def test_what_is_handed_over_while_it_is_begun_is_accounted_for_once(
    pool_of: MakePool, settings: dict[str, Any]
) -> None:
    called: list[Any] = []

    def handle(given: Any) -> None:
        called.extend([given] if isinstance(given, str) else given)
        time.sleep(0)  # others may run

    pool, reports = pool_of(handle, **settings)
    (worker,) = pool.workers
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            worker.hand_over()
            time.sleep(random.random() * 0.0003)

    thief = threading.Thread(target=take)
    thief.start()
    given: list[int] = []
    bodies: dict[int, Any] = {}
    try:
        for number in range(1, 300):
            chunk = chunk_of(number, [f"{number}.{n}" for n in range(50)])
            bodies |= zip(ids(chunk), (f"{number}.{n}" for n in range(50)), strict=True)
            given += ids(chunk)
            assert worker.submit(chunk, 0, 20) and worker.submit(chunk, 20, 50)
        eventually(lambda: not worker.outstanding)
    finally:
        over.set()
        thief.join(WAIT_S)
    eventually(lambda: len(reports.everything()) == len(given))
    assert reports.everything() == given
    assert sorted(called) == sorted(bodies[one] for one in reports.done)
    assert reports.done and reports.returned


def test_a_worker_goes_on_until_it_would_be_found_held_up(pool_of: MakePool, gate: Gate) -> None:
    pool, _ = pool_of(gate)
    (worker,) = pool.workers
    assert worker.goes_on(1.0), "it has nothing"
    assert worker.submit(chunk_of(1, ["stop", "b"]), 0, 2)
    gate.wait_entered()
    assert worker.goes_on(10.0) and worker.goes_on(10.01)
    assert not worker.goes_on(10.1)
    assert not worker.held_up, "that is for who does something about it"
    assert worker.goes_on(10.1, 0.2), "where others make it wait"
    assert worker.look(10.1, 0.2) is None and not worker.held_up
    assert worker.look(10.1) == pytest.approx(0.1) and worker.held_up
    gate.open.set()
    eventually(lambda: worker.outstanding == 0)
    assert worker.goes_on(10.2)


def test_a_worker_is_held_up_from_the_second_look_on_until_its_call_ends(pool_of: MakePool, gate: Gate) -> None:
    pool, _ = pool_of(gate)
    (worker,) = pool.workers
    assert worker.look(1.0) is None and worker.look(9.0) is None, "it has nothing to do"
    assert worker.submit(chunk_of(1, ["stop", "b"]), 0, 2)
    gate.wait_entered()
    assert worker.look(10.0) is None and not worker.held_up
    assert worker.look(10.01) is None and not worker.held_up
    assert worker.look(12.0) == 2.0 and worker.held_up
    gate.open.set()
    eventually(lambda: not worker.held_up)
    eventually(lambda: not worker.outstanding)
    assert worker.look(13.0) is None


def test_a_worker_that_is_gone_owes_nothing_of_what_was_handed_over(pool_of: MakePool, gate: Gate) -> None:
    pool, reports = pool_of(gate)
    (worker,) = pool.workers
    chunk = chunk_of(1, ["stop", "b", "c"])
    assert worker.submit(chunk, 0, 2) and worker.submit(chunk, 2, 3)
    gate.wait_entered()
    worker.hand_over()
    late = chunk_of(2, ["d"])
    assert worker.submit(late, 0, 1)
    worker.settle_lost(chunk.first_id, 1, Failure("timeout", ""))
    assert reports.returned == [*ids(chunk)[1:], *ids(late)]
    assert list(reports.failed) == ids(chunk)[:1]
    assert not worker.outstanding
    cast(Any, worker).given_up = True
    gate.open.set()


def test_a_loop_hands_over_what_waits_for_its_coroutines(pool_of: MakePool) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def handle(message: str) -> None:
        entered.set()
        while not go_on.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.002)

    pool, reports = pool_of(handle, pool="async")
    (worker,) = pool.workers
    chunk = chunk_of(1, ["a", "b", "c"])
    assert worker.submit(chunk, 0, 3)
    assert entered.wait(WAIT_S)
    worker.hand_over()
    eventually(lambda: reports.returned == ids(chunk)[1:])
    go_on.set()
    eventually(lambda: reports.done == ids(chunk)[:1])


def test_a_loop_hands_over_what_waits_for_its_batches(pool_of: MakePool) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def handle(messages: list[str]) -> None:
        entered.set()
        while not go_on.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.002)

    pool, reports = pool_of(handle, pool="async", batch_size=2)
    (worker,) = pool.workers
    chunk = chunk_of(1, ["a", "b", "c", "d", "e"])
    assert worker.submit(chunk, 0, 5)
    assert entered.wait(WAIT_S)
    worker.hand_over()
    eventually(lambda: reports.returned == ids(chunk)[2:])
    go_on.set()
    eventually(lambda: reports.done == ids(chunk)[:2])


@pytest.mark.parametrize("settings", [{}, {"timeout_s": WAIT_S}, {"attempts": 2}, {"batch_size": 7, "batch_wait_s": 1}])
def test_what_a_loop_hands_over_is_accounted_for_once(pool_of: MakePool, settings: dict[str, Any]) -> None:
    called: list[Any] = []

    async def handle(given: Any) -> None:
        called.extend([given] if isinstance(given, str) else given)
        if random.random() < 0.2:
            await asyncio.sleep(random.random() * 0.002)

    pool, reports = pool_of(handle, pool="async", **settings)
    (worker,) = pool.workers
    given: list[int] = []
    bodies: dict[int, Any] = {}
    for number in range(1, 100):
        chunk = chunk_of(number, [f"{number}.{n}" for n in range(50)])
        bodies |= zip(ids(chunk), (f"{number}.{n}" for n in range(50)), strict=True)
        given += ids(chunk)
        assert worker.submit(chunk, 0, 20) and worker.submit(chunk, 20, 50)
        time.sleep(random.random() * 0.005)
        worker.hand_over()
    eventually(lambda: not worker.outstanding)
    assert reports.everything() == given
    assert sorted(called) == sorted(bodies[one] for one in reports.done)
    assert reports.done and reports.returned


def test_a_call_that_blocks_its_loop_and_has_ended_holds_up_nothing(pool_of: MakePool) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def handle(message: str) -> None:
        if message == "stop":
            entered.set()
            assert go_on.wait(WAIT_S)

    pool, reports = pool_of(handle, pool="async")
    (worker,) = pool.workers
    chunk = chunk_of(1, ["stop", "b", "c"])
    assert worker.submit(chunk, 0, 3)
    assert entered.wait(WAIT_S)
    assert worker.look(10.0) is None
    assert worker.look(12.0) == 2.0 and worker.held_up
    worker.hand_over()  # which the loop sees to when it runs again
    go_on.set()
    eventually(lambda: reports.done == ids(chunk))
    assert not reports.returned and not worker.held_up


def test_a_process_refuses_what_would_pass_what_it_has_given_back() -> None:
    sent: list[tuple[int, int]] = []

    class Outbox:
        def send(self, message: bytes, timeout: float) -> None:
            ((command, first_id, _),) = decode_frames(message, len(message))[0]
            sent.append((command, first_id))

    sink = _ChildSink(cast(Any, Outbox()), Histogram(HANDLING.bounds_s))
    assert not sink.refused(50, 1)
    sink.on_returned(10, 5)
    sink.hand_over(20, 4)
    assert sink.refused(30, 2), "it was sent before the parent heard of 10"
    assert not sink.refused(10, 3), "nothing on its way comes before it"
    assert sink.refused(13, 2)
    sink.heard(1)
    assert not sink.refused(13, 2), "30 is on its way, and comes behind it"
    assert sink.refused(25, 1)
    sink.heard(5)
    assert not sink.refused(30, 2)
    assert sent == [
        (COMMAND_RETURNED, 10), (COMMAND_HANDED_OVER, 20), (COMMAND_HANDED_OVER, 30), (COMMAND_HANDED_OVER, 13),
        (COMMAND_HANDED_OVER, 25),
    ]  # fmt: skip
