"""The outbox: encoding, draining into batches, receipts."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis import errors
from ignis.native import ANY_SHARD, Outbox, PackedBatch, Receipt, Record, id_text
from tests.unit.native.native_support import in_child


def records(batches: list[tuple[int, PackedBatch]]) -> list[tuple[int, Record]]:
    return [(shard, Record(record)) for shard, batch in batches for record in batch.records()]


def test_a_message_is_encoded_as_it_was_given() -> None:
    outbox = Outbox(capacity=16)
    receipt = outbox.send(b"body", 3, 2, b"key", b"\x80", 1.0)
    empty = outbox.send(b"", ANY_SHARD, 0)
    count, batches = outbox.drain(100, 1 << 20, 1, 4, 1.0)
    assert count == 2
    (shard, first), (other, second) = records(batches)
    assert (shard, id_text(first.id), first.flags, first.key, first.meta, first.body) == (
        3,
        receipt.id,
        2,
        b"key",
        b"\x80",
        b"body",
    )
    assert (other, id_text(second.id), second.body, second.key) == (1, empty.id, b"", b"")
    assert abs(first.enqueued_at_us / 1e6 - time.time()) < 60
    assert (receipt.sequence, empty.sequence) == (1, 2)
    assert outbox.drain(100, 1 << 20, 0, 4, 0.01) == (0, [])


@given(
    st.lists(st.tuples(st.one_of(st.just(ANY_SHARD), st.integers(0, 4)), st.integers(0, 300)), max_size=120),
    st.integers(0, 4),
    st.integers(1, 30),
    st.integers(1, 3000),
    st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_draining_keeps_order_and_bounds(
    messages: list[tuple[int, int]], any_shard: int, chunk_records: int, chunk_bytes: int, max_messages: int
) -> None:
    outbox = Outbox(capacity=128, max_message_bytes=1024)
    sent = [(shard, outbox.send(b"x" * size, shard, 0).id) for shard, size in messages]
    order = {id_: i for i, (_, id_) in enumerate(sent)}
    drained = 0
    while drained < len(sent):
        count, batches = outbox.drain(max_messages, 1 << 30, any_shard, 5, 1.0, chunk_records, chunk_bytes)
        assert 0 < count <= max_messages
        per_shard: dict[int, list[int]] = {}
        for shard, batch in batches:
            assert 0 < batch.count <= chunk_records
            found = batch.records()
            assert batch.count == 1 or sum(map(len, found)) <= chunk_bytes
            per_shard.setdefault(shard, []).extend(order[id_text(Record(r).id)] for r in found)
        assert sorted(i for many in per_shard.values() for i in many) == list(range(drained, drained + count))
        for shard, many in per_shard.items():
            assert many == sorted(many)  # first in, first out
            assert all(sent[i][0] in (shard, ANY_SHARD) for i in many)
        drained += count
    assert outbox.drain(1, 1, 0, 5, 0) == (0, [])


def test_max_bytes_takes_at_least_one() -> None:
    outbox = Outbox(capacity=16)
    for _ in range(3):
        outbox.send(b"x" * 1000, 0, 0)
    assert [outbox.drain(100, 10, 0, 1, 1.0)[0] for _ in range(3)] == [1, 1, 1]


def test_receipts_settle_in_order() -> None:
    outbox = Outbox(capacity=16)
    receipts = [outbox.send(b"", 0, 0) for _ in range(5)]
    outbox.settle(2)
    assert [r.done() for r in receipts] == [True, True, False, False, False]
    boom = errors.StoreFullError("no room")
    outbox.fail(2, boom)
    assert receipts[1].result(0) == receipts[1].id
    assert receipts[1].exception(0) is None
    for failed in receipts[2:4]:
        assert failed.exception(0) is boom
        with pytest.raises(errors.StoreFullError):
            failed.result(0)
    with pytest.raises(errors.WaitTimeoutError):
        receipts[4].result(0.01)
    assert (outbox.sent, outbox.settled, outbox.pending, outbox.failed) == (5, 4, 1, 2)
    assert outbox.first_error is boom
    with pytest.raises(ValueError, match="pending"):
        outbox.settle(2)
    with pytest.raises(ValueError, match="never sent"):
        outbox.wait_settled(6, 0)
    outbox.settle(1)
    assert receipts[4].exception() is None
    outbox.wait_settled(5, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_failures_are_found_again(steps: list[tuple[bool, int]]) -> None:
    outbox = Outbox(capacity=256, max_message_bytes=64)
    expected: list[BaseException | None] = []
    receipts: list[Receipt] = []
    shared = ValueError("the same")
    for ok, n in steps:
        receipts += [outbox.send(b"", 0, 0) for _ in range(n)]
        if ok:
            outbox.settle(n)
            expected += [None] * n
        else:
            error = shared if n % 2 else ValueError(n)
            outbox.fail(n, error)
            expected += [error] * n
    assert [r.exception(0) for r in receipts] == expected


def test_threads_wait_for_receipts() -> None:
    outbox = Outbox(capacity=16)
    receipts = [outbox.send(b"", 0, 0) for _ in range(3)]
    results: dict[int, object] = {}

    def wait(i: int) -> None:
        try:
            results[i] = receipts[i].result(30)
        except ValueError as error:
            results[i] = error

    threads = [threading.Thread(target=wait, args=[i]) for i in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert results == {}
    outbox.settle(1)
    threads[0].join(60)
    assert results == {0: receipts[0].id}
    outbox.fail(2, ValueError("no"))
    for thread in threads:
        thread.join(60)
    assert isinstance(results[2], ValueError)


def test_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox(capacity=16)
    receipts = [outbox.send(b"", 0, 0) for _ in range(3)]
    seen: list[int] = []
    shown: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: shown.append(args.exc_value))
    receipts[1].add_done_callback(lambda r: seen.append(r.sequence))
    receipts[0].add_done_callback(lambda r: seen.append(r.sequence))
    receipts[0].add_done_callback(lambda _: 1 / 0)
    outbox.settle(1)
    assert seen == [1]
    assert isinstance(shown[0], ZeroDivisionError)
    receipts[0].add_done_callback(lambda _: seen.append(99))  # already done: at once
    outbox.settle(2)
    assert seen == [1, 99, 2]


def test_await() -> None:
    outbox = Outbox(capacity=16)

    async def main() -> None:
        receipts = [outbox.send(b"", 0, 0) for _ in range(4)]
        done = asyncio.gather(*receipts[:3], return_exceptions=True)
        cancelled = asyncio.ensure_future(_wait(receipts[3]))
        await asyncio.sleep(0.01)
        cancelled.cancel()

        def flush() -> None:
            outbox.settle(2)
            outbox.fail(2, ValueError("no"))

        threading.Thread(target=flush).start()
        got = await asyncio.wait_for(done, 10)
        assert got[:2] == [receipts[0].id, receipts[1].id]
        assert isinstance(got[2], ValueError)
        assert await receipts[0] == receipts[0].id  # again, done already

    async def _wait(receipt: Receipt) -> str:
        return await receipt

    asyncio.run(main())


def test_limits() -> None:
    outbox = Outbox(capacity=4, max_message_bytes=100)
    outbox.send(b"x" * 100, 0, 0, b"k" * 65535)
    with pytest.raises(errors.MessageTooLargeError) as caught:
        outbox.send(b"x" * 101, 0, 0)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (101, 100)
    with pytest.raises(errors.MessageTooLargeError):
        outbox.send(b"", 0, 0, b"k" * 65536)
    with pytest.raises(ValueError, match="shard"):
        outbox.send(b"", 65536, 0)
    with pytest.raises(TypeError):
        outbox.send("text", 0, 0)  # type: ignore[arg-type]
    assert outbox.sent == 1
    for capacity in (0, 3, 2**25):
        with pytest.raises(ValueError, match="capacity"):
            Outbox(capacity=capacity)


def test_full() -> None:
    outbox = Outbox(capacity=4)
    for _ in range(4):
        outbox.send(b"", 0, 0)
    with pytest.raises(errors.ChannelFullError):
        outbox.send(b"", 0, 0, timeout=0)
    with pytest.raises(errors.WaitTimeoutError):
        outbox.send(b"", 0, 0, timeout=0.02)
    assert outbox.sent == 4
    timer = threading.Timer(0.05, lambda: outbox.drain(2, 1 << 20, 0, 1, 1))
    timer.start()
    assert outbox.send(b"", 0, 0, timeout=10).sequence == 5
    timer.join()


def test_everything_sent_is_drained_once() -> None:
    outbox = Outbox(capacity=64, max_message_bytes=256)
    got: list[bytes] = []

    def flush() -> None:
        try:
            while True:
                count, batches = outbox.drain(50, 1 << 20, 0, 3, 0.2)
                got.extend(record.body for _, record in records(batches))
                outbox.settle(count)
        except errors.ClosedError:
            pass

    flusher = threading.Thread(target=flush)
    flusher.start()
    senders = [
        threading.Thread(target=lambda who=who: [outbox.send(b"%d-%d" % (who, i), ANY_SHARD, 0) for i in range(2000)])
        for who in range(3)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(20)
    outbox.wait_settled(6000, 20)
    outbox.close()
    flusher.join(60)
    assert sorted(got) == sorted(b"%d-%d" % (who, i) for who in range(3) for i in range(2000))


def test_close() -> None:
    outbox = Outbox(capacity=16)
    receipt = outbox.send(b"", 0, 0)
    outbox.close()
    outbox.close()
    with pytest.raises(errors.ClosedError):
        receipt.result(0)
    with pytest.raises(errors.ClosedError):
        outbox.send(b"", 0, 0)
    with pytest.raises(errors.ClosedError):
        outbox.drain(1, 1, 0, 1, 0)
    outbox.settle(1)  # the flusher's answer comes late: nobody is hurt
    assert outbox.pending == 0


def test_a_child_is_refused(tmp_path: Path) -> None:
    outbox = Outbox(capacity=16)
    receipt = outbox.send(b"", 0, 0)

    def check() -> None:
        with pytest.raises(errors.ForkedHandleError):
            outbox.send(b"", 0, 0)
        with pytest.raises(errors.ForkedHandleError):
            receipt.result(1)
        outbox.close()

    in_child(check)
    assert outbox.drain(10, 100, 0, 1, 1)[0] == 1
    outbox.settle(1)
    assert receipt.done()


def test_receipts_keep_nothing_alive_and_cost_little() -> None:
    outbox = Outbox(capacity=1 << 16)
    receipts = [outbox.send(b"", 0, 0) for _ in range(1000)]
    assert not gc.is_tracked(receipts[0])
    assert receipts[0].__sizeof__() <= 64
    with pytest.raises(TypeError):
        Receipt()
