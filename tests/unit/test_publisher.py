"""The buffered publisher: receipts, back-pressure, failures, closing."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import (
    ChannelFullError,
    ClosedError,
    ConfigError,
    ForkedHandleError,
    InvalidMessageError,
    MessageTooLargeError,
    PublishError,
    StoreFullError,
    WaitTimeoutError,
)
from ignis.native import shard_for_key
from ignis.storage import transactions
from tests.support import WAIT_S, NewThreads, eventually


class Door:
    """Stands before a magazine's loads: closed, they wait; broken, they fail."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._open = threading.Event()
        self._open.set()
        self.error: BaseException | None = None
        self.waiting = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.waiting.set()
        assert self._open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self._call(*args)

    def close(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def queue(app: ignis.Ignis) -> ignis.Queue[Any]:
    return app.queue("jobs", int, shards=4)


@pytest.fixture
def door(queue: ignis.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    door = Door(queue.main.store.load)
    monkeypatch.setattr(queue.main.store, "load", door)
    yield door
    door.error = None
    door.open()


def stored(queue: ignis.Queue[Any]) -> list[Any]:
    out = []
    while fired := queue.main.fire(10_000):
        out += [one.message for one in fired]
    return out


def test_a_receipt_is_done_when_the_message_is_stored(queue: ignis.Queue[Any], door: Door) -> None:
    door.close()
    with queue.publisher() as publisher:
        receipt = publisher.send(5, headers={"h": 1})
        assert not receipt.done()
        assert (publisher.sent, publisher.pending, publisher.failed) == (1, 1, 0)
        with pytest.raises(WaitTimeoutError):
            receipt.result(timeout=0.01)
        with pytest.raises(WaitTimeoutError):
            publisher.flush(timeout=0.01)
        assert queue.main.pending() == 0
        door.open()
        publisher.flush()
        assert receipt.done()
        [fired] = queue.main.fire(10)
        assert receipt.result(0) == receipt.id == fired.envelope.id
        assert receipt.exception(0) is None
        assert fired.envelope.headers == {"h": 1}
        assert publisher.pending == 0


def test_callbacks(queue: ignis.Queue[Any]) -> None:
    called: list[bytes] = []
    with queue.publisher() as publisher:
        receipts = [publisher.send(n) for n in range(10)]
        for receipt in receipts:
            receipt.add_done_callback(lambda done: called.append(done.result(0)))
    eventually(lambda: len(called) == 10)
    assert called == [receipt.id for receipt in receipts]


def test_many_messages_in_order(queue: ignis.Queue[Any]) -> None:
    with queue.publisher(capacity=256, max_batch=1_000) as publisher:
        receipts = [publisher.send(n, key=f"k{n % 5}") for n in range(5_000)]
        last = [publisher.send(5_000 + n) for n in range(1_000)]
    assert all(receipt.done() for receipt in (*receipts, *last))
    got = stored(queue)
    assert sorted(got) == list(range(6_000))
    for k in range(5):
        assert [n for n in got if n < 5_000 and n % 5 == k] == list(range(k, 5_000, 5))


def test_keys_go_where_publish_puts_them(queue: ignis.Queue[Any]) -> None:
    with queue.publisher() as publisher:
        for n in range(20):
            publisher.send(n, key=f"k{n}")
    for fired in queue.main.fire(100):
        assert fired.envelope.key == f"k{fired.message}"
        assert fired.shard == shard_for_key(fired.envelope.key.encode(), 4)


def test_threads_share_a_publisher(queue: ignis.Queue[Any]) -> None:
    with queue.publisher(capacity=64) as publisher:
        threads = [
            threading.Thread(target=lambda start=start: [publisher.send(start + n) for n in range(500)])  # type: ignore[misc]
            for start in range(0, 2_000, 500)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert sorted(stored(queue)) == list(range(2_000))


def fill(publisher: ignis.Publisher[Any], door: Door) -> int:
    """Sends until the ring is full while the flusher stands at the door; returns how many were sent."""
    publisher.send(0)
    assert door.waiting.wait(WAIT_S)
    sent = 1
    while True:
        try:
            publisher.send(sent, timeout=0)
        except ChannelFullError:
            return sent
        sent += 1


def test_a_full_ring_is_an_error_when_asked(queue: ignis.Queue[Any], door: Door) -> None:
    door.close()
    with queue.publisher(capacity=16) as publisher:
        sent = fill(publisher, door)
        assert sent == 17
        with pytest.raises(
            ChannelFullError, match=r"messages are not durable yet \(publisher\.capacity: .*send_timeout_s"
        ):
            publisher.send(-1, timeout=0)
        with pytest.raises(WaitTimeoutError, match=r"in time; .*publisher\.send_timeout_s"):
            publisher.send(-1, timeout=0.05)
        assert publisher.sent == sent, "what was refused does not count"
        door.open()
    assert sorted(stored(queue)) == list(range(sent))


def test_a_full_ring_holds_the_sender_until_there_is_room(queue: ignis.Queue[Any], door: Door) -> None:
    door.close()
    with queue.publisher(capacity=16) as publisher:
        sent = fill(publisher, door)
        receipts: list[Any] = []
        waiting = threading.Thread(target=lambda: receipts.append(publisher.send(sent)))
        waiting.start()
        assert not receipts
        door.open()
        waiting.join(WAIT_S)
        assert receipts[0].result()
    assert sorted(stored(queue)) == list(range(sent + 1))


def test_the_stores_failure_is_the_receipts(queue: ignis.Queue[Any], door: Door) -> None:
    publisher = queue.publisher()
    good = publisher.send(0)
    publisher.flush()
    door.error = StoreFullError("no room")
    bad = publisher.send(1)
    with pytest.raises(StoreFullError, match="no room"):
        bad.result()
    assert isinstance(bad.exception(0), StoreFullError)
    door.error = None
    after = publisher.send(2)
    publisher.flush()
    assert (publisher.failed, publisher.pending) == (1, 0)
    assert good.result(0)
    assert after.result(0)
    with pytest.raises(PublishError, match=r"1 buffered message\(s\) failed: no room") as info:
        publisher.close()
    assert info.value.failed == 1
    assert isinstance(info.value.__cause__, StoreFullError)
    publisher.close()
    assert sorted(stored(queue)) == [0, 2]


def test_an_interrupt_anywhere_in_flush_leaves_the_publisher_usable(queue: ignis.Queue[Any]) -> None:
    """Ctrl-C raises between any two steps of the main thread, also where a lock was just taken."""
    place, left, interrupted = [0], [0], True

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if event != "call":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    with queue.publisher() as publisher:
        while interrupted:
            place[0] += 1
            left[0] = place[0]
            publisher.send(place[0])
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                publisher.flush(WAIT_S)
                interrupted = left[0] <= 0
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            in_time = threading.Thread(target=publisher.flush, daemon=True)  # one that hangs is left behind
            in_time.start()
            in_time.join(WAIT_S)
            assert not in_time.is_alive(), f"hangs behind an interrupt at step {place[0]}"
    assert place[0] > 5
    assert sorted(stored(queue)) == list(range(1, place[0] + 1))


def test_what_a_store_refuses_again_and_again_is_logged_once(
    queue: ignis.Queue[Any], door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.error = StoreFullError("no room")
    publisher = queue.publisher()
    with caplog.at_level(logging.ERROR, logger="ignis"):
        for n in range(20):
            publisher.send(n)
            publisher.flush()
    assert publisher.failed == 20
    assert [record.getMessage() for record in caplog.records if "buffered" in record.getMessage()] == [
        f"1 buffered message(s) for {queue.name} failed: no room"
    ]
    with pytest.raises(PublishError, match="20 buffered"):
        publisher.close()


def test_leaving_the_block_tells_of_failures(queue: ignis.Queue[Any], door: Door) -> None:
    door.error = StoreFullError("no room")
    with pytest.raises(PublishError), queue.publisher() as publisher:
        publisher.send(1)


def test_a_store_that_hangs_does_not_hang_close(queue: ignis.Queue[Any], door: Door) -> None:
    door.close()
    publisher = queue.publisher()
    receipt = publisher.send(1)
    with pytest.raises(WaitTimeoutError):
        publisher.close(timeout=0.05)
    assert not receipt.done()
    door.open()
    publisher.send(2)
    publisher.close()
    assert receipt.done()
    assert sorted(stored(queue)) == [1, 2]


@pytest.mark.parametrize("where", ["memory", "embedded"])
def test_an_application_that_is_closed_before_its_publisher(tmp_path: Any, where: str) -> None:
    """What is sent afterwards is refused, and not taken in to be lost."""
    with ignis.Ignis("memory://") as other:
        app = ignis.Ignis("memory://" if where == "memory" else f"embedded://{tmp_path}/store")
        publisher, kept = app.queue("q", int).publisher(), other.queue("q", int).publisher()
        assert publisher.send(1).result(WAIT_S)
        app.close()
        with pytest.raises(ClosedError, match="publisher of q is closed: its application was"):
            publisher.send(2)
        publisher.close()
        assert (publisher.sent, publisher.failed, publisher.pending) == (1, 0, 0)
        assert kept.send(3).result(WAIT_S), "another application's goes on"
        kept.close()
        with app.queue("q", int).publisher() as again:
            assert again.send(4).result(WAIT_S)
        app.close()


@pytest.mark.parametrize("where", ["memory", "embedded"])
def test_an_application_that_is_closed_stores_what_its_publishers_hold(tmp_path: Any, where: str) -> None:
    """Though they linger, and though a callback asks for the application while it is closed."""
    app = ignis.Ignis("memory://" if where == "memory" else f"embedded://{tmp_path}/store")
    first, second = app.queue("a", int), app.queue("b", int)
    told: list[tuple[str, int]] = []

    @app.after_publish
    def tell(queue: str, count: int) -> None:
        app.queue("c")
        told.append((queue, count))

    publishers = [queue.publisher(linger_s=1.0) for queue in (first, second)]
    receipts = [publisher.send(number) for publisher in publishers for number in range(1_000)]
    app.close()
    assert all(receipt.done() for receipt in receipts)
    assert all(receipt.exception(0) is None for receipt in receipts)
    for publisher in publishers:
        publisher.close()
    eventually(lambda: sum(count for _, count in told) == len(receipts))
    if where == "embedded":
        assert [app.queue(name, int).stats()["pending"] for name in "ab"] == [1_000, 1_000]
        app.close()


def test_a_closing_application_waits_for_its_publishers_no_longer_than_it_is_told(
    queue: ignis.Queue[Any], door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.close()
    publisher = queue.publisher()
    receipt = publisher.send(1)
    queue.app.close(timeout=0.05)
    assert not receipt.done()
    assert "1 message(s) for jobs" in caplog.text
    door.error = ClosedError("store is closed")
    door.open()
    with pytest.raises(ClosedError):
        receipt.result(WAIT_S)
    with pytest.raises(PublishError):
        publisher.close()


def test_an_application_that_is_closed_by_a_callback_of_its_publisher(queue: ignis.Queue[Any]) -> None:
    """The flusher does not wait for itself."""
    closed = threading.Event()

    @queue.app.after_publish
    def end(name: str, count: int) -> None:
        queue.app.close()
        closed.set()

    publisher = queue.publisher()
    publisher.send(1)
    assert closed.wait(WAIT_S)


def test_closed(queue: ignis.Queue[Any]) -> None:
    publisher = queue.publisher()
    publisher.close()
    publisher.close()
    with pytest.raises(ClosedError, match="publisher of jobs is closed"):
        publisher.send(1)
    with pytest.raises(ClosedError):
        asyncio.run(publisher.asend(1))


def test_no_thread_is_left(queue: ignis.Queue[Any]) -> None:
    threads = NewThreads()
    with queue.publisher() as publisher:
        publisher.send(1)
    eventually(lambda: not threads.named("ignis-flusher-"))


def test_what_is_refused_at_once(app: ignis.Ignis) -> None:
    queue = app.queue("texts", str, max_message_bytes=100)
    with queue.publisher() as publisher:
        with pytest.raises(InvalidMessageError):
            publisher.send(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessageError):
            publisher.send("x", key=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessageError):
            publisher.send("x", headers={"x": object()})
        with pytest.raises(MessageTooLargeError) as info:
            publisher.send("x" * 101)
        assert (info.value.size_bytes, info.value.limit_bytes) == (101, 100)
        publisher.send("x" * 100)
        publisher.send("")
        assert publisher.sent == 2
    assert sorted(stored(queue)) == ["", "x" * 100]


def test_linger_lets_batches_grow_but_not_a_flush_wait(queue: ignis.Queue[Any], door: Door) -> None:
    with queue.publisher(linger_s=10) as publisher:
        for n in range(3):
            publisher.send(n)
            publisher.flush(timeout=5)
    assert sorted(stored(queue)) == [0, 1, 2]


def test_asyncio(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)

    async def main() -> None:
        assert (await queue.apublish(0)).pointer == 1
        assert len(await queue.apublish_many([1, 2], headers={"h": 1})) == 2
        async with queue.publisher(capacity=16) as publisher:
            receipts = [await publisher.asend(n, key="k") for n in range(3, 200)]
            ids = await asyncio.gather(*receipts)
            assert len(set(ids)) == 197
            await publisher.asend(200)
            await publisher.aflush()
            assert publisher.pending == 0

    asyncio.run(main())
    assert sorted(stored(queue)) == list(range(201))


def test_a_full_ring_does_not_stop_the_event_loop(queue: ignis.Queue[Any], door: Door) -> None:
    async def main() -> None:
        publisher = queue.publisher(capacity=16)
        fill(publisher, door)
        sending = asyncio.create_task(publisher.asend(-1))
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not sending.done()
        door.open()
        await (await sending)
        await asyncio.to_thread(publisher.close)

    door.close()
    asyncio.run(main())
    assert -1 in stored(queue)


def test_a_full_ring_is_not_waited_for_without_end(queue: ignis.Queue[Any], door: Door) -> None:
    async def main() -> None:
        publisher = queue.publisher(capacity=16, send_timeout_s=0.05)
        fill(publisher, door)
        with pytest.raises(WaitTimeoutError, match="send_timeout_s"):
            await publisher.asend(-1)
        door.open()
        publisher.close()

    door.close()
    asyncio.run(main())


def test_an_awaited_receipt_raises_the_stores_error(queue: ignis.Queue[Any], door: Door) -> None:
    async def main() -> None:
        publisher = queue.publisher()
        with pytest.raises(StoreFullError):
            await publisher.send(1)
        with pytest.raises(PublishError):
            await asyncio.to_thread(publisher.close)

    door.error = StoreFullError("no room")
    asyncio.run(main())


def test_a_fork_cannot_use_it(queue: ignis.Queue[Any]) -> None:
    with queue.publisher() as publisher:
        publisher.send(1).result()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                publisher.send(2)
            except ForkedHandleError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        publisher.send(3)
    assert sorted(stored(queue)) == [1, 3]


SCRIPT = """
    import os, sys, ignis
    app = ignis.Ignis(sys.argv[1])
    queue = app.queue("jobs", int)
    publisher = queue.publisher(linger_s=5)
    for n in range(1000):
        publisher.send(n)
    {end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "pid = os.fork(); pid and os.waitpid(pid, 0)"])
def test_a_publisher_that_nobody_closed_is_flushed_at_exit(
    embedded_url: str, new_app: Callable[..., ignis.Ignis], end: str
) -> None:
    script = textwrap.dedent(SCRIPT).format(end=end)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, embedded_url],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(stored(new_app(embedded_url).queue("jobs", int))) == list(range(1_000))


def test_time_is_measured_in_seconds(queue: ignis.Queue[Any], door: Door) -> None:
    """A timeout of a tenth of a second is neither a millisecond nor a minute."""
    door.close()
    with queue.publisher() as publisher:
        receipt = publisher.send(1)
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError):
            receipt.result(timeout=0.1)
        assert 0.05 < time.monotonic() - began < WAIT_S
        door.open()


# -- what the flusher survives, and what happens when it does not


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_no_callback_ends_the_flusher(
    queue: ignis.Queue[Any], kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: shown.append(args.exc_type))

    def fail(receipt: Any) -> None:
        raise kind

    with queue.publisher() as publisher:
        receipt = publisher.send(1)
        receipt.add_done_callback(fail)
        receipt.result(WAIT_S)
        publisher.send(2).result(WAIT_S)
    assert shown == [kind]
    assert sorted(stored(queue)) == [1, 2]


class _RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit("a log handler")


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, ValueError])
def test_no_failure_of_the_store_ends_the_flusher(
    queue: ignis.Queue[Any], door: Door, kind: type[BaseException]
) -> None:
    handler = _RaisingHandler()
    logging.getLogger("ignis").addHandler(handler)
    publisher = queue.publisher()
    try:
        door.error = kind("no")
        error = publisher.send(1).exception(WAIT_S)
        # Raised as it is it would end the program, or cancel the task, of whoever asks for the result.
        assert isinstance(error, kind if issubclass(kind, Exception) else PublishError)
        door.error = None
        publisher.send(2).result(WAIT_S)
    finally:
        logging.getLogger("ignis").removeHandler(handler)
    with pytest.raises(PublishError, match=rf"^1 buffered message\(s\) failed: ({kind.__name__}: )?no$"):
        publisher.close(WAIT_S)


def test_no_hook_ends_the_flusher(app: ignis.Ignis, queue: ignis.Queue[Any]) -> None:
    def fail(name: str, count: int) -> None:
        raise SystemExit

    app.after_publish(fail)
    with queue.publisher() as publisher:
        publisher.send(1).result(WAIT_S)
        publisher.send(2).result(WAIT_S)


@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit])
def test_a_flusher_that_ends_leaves_nobody_waiting(
    queue: ignis.Queue[Any], monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    publisher = queue.publisher()
    publisher.send(1).result(WAIT_S)

    def fail(*args: Any) -> None:
        raise kind("injected")

    monkeypatch.setattr(publisher, "_load", fail)
    receipt = publisher.send(2)
    with pytest.raises(ClosedError, match=r"its flusher ended.*injected"):
        receipt.result(WAIT_S)
    eventually(lambda: not publisher._flusher.is_alive())  # type: ignore[union-attr]
    with pytest.raises(ClosedError, match=r"its flusher ended.*injected"):
        publisher.send(3)
    assert (publisher.pending, publisher.failed) == (0, 1)
    with pytest.raises(
        PublishError, match=r"^1 buffered message\(s\) failed: .*injected; what was pending may be stored or not$"
    ):
        publisher.close(WAIT_S)
    publisher.close(WAIT_S)
    assert stored(queue) == [1]


@pytest.mark.parametrize("timeout", ["x", float("nan"), -1, -0.5, [], True], ids=repr)
def test_a_receipt_refuses_a_timeout_that_is_none(memory_app: ignis.Ignis, timeout: Any) -> None:
    """Whether it is done or not."""
    with memory_app.queue("jobs", int).publisher(linger_s=1.0) as publisher:
        receipt = publisher.send(1)
        for _ in range(2):
            for wait in (receipt.result, receipt.exception):
                with pytest.raises(ConfigError, match="is not a number of seconds, 0 or more"):
                    wait(timeout)
            assert receipt.result(WAIT_S) == receipt.result(None) == receipt.result(float("inf"))


def test_no_transaction_is_larger_than_the_store_wants_it(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MOST_BYTES", 10_000)
    queue = memory_app.queue("q", bytes)
    stored: list[int] = []
    memory_app.after_publish(lambda name, count: stored.append(count))
    with queue.publisher() as publisher:
        for _ in range(200):
            publisher.send(bytes(1_000))
    assert sum(stored) == 200
    assert max(stored) <= 10
