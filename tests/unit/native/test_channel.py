"""Channels within one process: messages, limits, views, waiting, closing."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis import errors
from ignis.native import Channel
from tests.unit.native.native_support import eventually, in_child

CLASSES = ((128, 16), (1024, 8))


@pytest.fixture(params=[None, 0], ids=["byte ring", "slab"])
def heap(request: pytest.FixtureRequest) -> Iterator[Channel]:
    with Channel.heap(
        capacity=16, size_classes=CLASSES, max_message_bytes=1000, bytering_bytes=request.param
    ) as channel:
        yield channel


@pytest.fixture
def slab_heap() -> Iterator[Channel]:
    with Channel.heap(capacity=16, size_classes=CLASSES, max_message_bytes=1000, bytering_bytes=0) as channel:
        yield channel


def pair(path: Path, **options: object) -> tuple[Channel, Channel]:
    producer = Channel.create(path, role="producer", **(options or {"capacity": 16}))  # type: ignore[arg-type]
    return producer, Channel.open(path, role="consumer")


def repeat(call: Callable[[], object], times: int = 100) -> None:
    """Calls until it raises."""
    for _ in range(times):
        call()


def test_messages_come_out_as_they_went_in(heap: Channel) -> None:
    for data in (b"", b"a", bytearray(b"bc"), memoryview(b"def"), b"x" * 1000):
        heap.send(data, kind=len(data))
    assert heap.depth() == 5
    assert heap.recv_with_kind(1) == (0, b"")
    assert heap.recv() == b"a"
    assert heap.recv_many(2) == [b"bc", b"def"]
    assert heap.recv_with_kind(1) == (1000, b"x" * 1000)
    assert heap.try_recv() is None
    stats = heap.stats()
    assert (stats["sent"], stats["received"], stats["depth"]) == (5, 5, 0)


def test_nothing_leaks_over_many_laps(heap: Channel) -> None:
    for i in range(3000):
        heap.send(b"%d" % i)
        assert heap.recv() == b"%d" % i
    assert heap.recv_many(10, timeout=0) == []  # an idle consumer sends home what it holds back
    assert heap.stats()["active"] == 0
    assert heap.stats()["bad_returns"] == 0


def test_limits(heap: Channel) -> None:
    with pytest.raises(errors.MessageTooLargeError) as caught:
        heap.send(b"x" * 1001)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (1001, 1000)
    with pytest.raises(errors.MessageTooLargeError):
        heap.send_many([b"a", b"x" * 1001])
    assert heap.depth() == 0  # none of them
    with pytest.raises(OverflowError):
        heap.send(b"", kind=65536)
    with pytest.raises(TypeError):
        heap.send("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        heap.send_many([5])  # type: ignore[list-item]


def test_full_is_an_answer(slab_heap: Channel) -> None:
    for _ in range(8):
        assert slab_heap.try_send(b"x" * 1000)
    assert not slab_heap.try_send(b"x" * 1000)  # no slot of that size
    assert slab_heap.try_send(b"small")
    with pytest.raises(errors.WaitTimeoutError):
        slab_heap.send(b"x" * 1000, timeout=0)
    assert slab_heap.send_many([b"s"] * 20, timeout=0.01) == 7  # the ring
    with pytest.raises(errors.WaitTimeoutError):
        slab_heap.send_many([b"s"], timeout=0.01)
    assert len(slab_heap.recv_many(100)) == 16
    assert slab_heap.send_many([b"s"] * 16, timeout=0) == 16


def test_waits_are_bounded(heap: Channel) -> None:
    began = time.monotonic()
    with pytest.raises(errors.WaitTimeoutError):
        heap.recv(timeout=0.15)
    assert 0.14 < time.monotonic() - began < 5
    assert heap.recv_many(5, timeout=0.01) == []
    assert heap.recv_views(5, timeout=0) == []
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            heap.recv(timeout=bad)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 0},
        {"capacity": 3},
        {"capacity": 2**25},
        {"max_message_bytes": 0},
        {"size_classes": ()},
        {"size_classes": ((128, 4),), "max_message_bytes": 129},
        {"size_classes": ((256, 4), (128, 4)), "max_message_bytes": 100},
        {"size_classes": ((128, 0),), "max_message_bytes": 100},
    ],
)
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"capacity|max_message_bytes|size_classes"):
        Channel.heap(**options)  # type: ignore[arg-type]


@given(st.lists(st.one_of(st.lists(st.binary(max_size=600), max_size=9), st.integers(0, 9)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_against_a_model(steps: list[list[bytes] | int]) -> None:
    with Channel.heap(capacity=8, size_classes=((256, 8), (640, 8)), max_message_bytes=640) as channel:
        model: list[bytes] = []
        for step in steps:
            if isinstance(step, int):
                got = channel.recv_many(step, timeout=0)
                assert got == model[:step]
                del model[:step]
            else:
                for message in step:
                    if channel.try_send(message):
                        model.append(message)
                    else:
                        assert len(model) == 8
        assert channel.recv_many(100, timeout=0) == model


def test_two_threads_keep_order_and_content() -> None:
    with Channel.heap(capacity=64, size_classes=((256, 20), (4096, 4)), max_message_bytes=4096) as channel:
        total = 20_000

        def produce() -> None:
            n = 0
            while n < total:
                batch = [b"%d:" % i + b"x" * (i * 37 % 700) for i in range(n, min(n + 50, total))]
                n += channel.send_many(batch, timeout=20)

        thread = threading.Thread(target=produce)
        thread.start()
        n = 0
        while n < total:
            for message in channel.recv_many(33, timeout=20):
                assert message == b"%d:" % n + b"x" * (n * 37 % 700)
                n += 1
        thread.join(60)


def send_numbered(channel: Channel, who: int) -> None:
    for i in range(500):
        channel.send(b"%d %d" % (who, i))


def test_several_senders() -> None:
    with Channel.heap(capacity=16, max_message_bytes=256) as channel:
        threads = [threading.Thread(target=send_numbered, args=[channel, who]) for who in range(4)]
        for thread in threads:
            thread.start()
        last = dict.fromkeys(range(4), -1)
        for _ in range(2000):
            who, i = map(int, channel.recv(20).split())
            assert i == last[who] + 1
            last[who] = i
        for thread in threads:
            thread.join(60)


def test_views_hold_their_slots(slab_heap: Channel) -> None:
    slab_heap.send_many([b"x" * 1000] * 8)
    views = slab_heap.recv_views(100)
    assert [len(v) for v in views] == [1000] * 8
    assert not slab_heap.try_send(b"x" * 1000)
    with views[0] as view:
        assert memoryview(view).readonly
        assert bytes(view) == view.tobytes() == b"x" * 1000
    assert view.released
    assert slab_heap.try_send(b"y" * 1000)
    with pytest.raises(errors.ClosedError):
        memoryview(view)
    window = memoryview(views[1])
    with pytest.raises(BufferError):
        views[1].release()
    window.release()
    views[1].release()
    views[1].release()  # idempotent
    del views  # the rest goes home by itself
    assert slab_heap.recv() == b"y" * 1000
    assert slab_heap.recv_many(1, timeout=0) == []
    assert slab_heap.stats()["active"] == 0


def test_views_of_small_messages_are_copies(tmp_path: Path) -> None:
    """They hold no slot: the byte ring goes round under them."""
    with Channel.heap(capacity=16, bytering_bytes=2048) as channel:
        channel.send_many([b"%04d" % i * 25 for i in range(16)])
        views = channel.recv_views(16)
        for n in range(100):
            channel.send(b"y" * 100)
            assert channel.recv() == b"y" * 100, n
        assert [bytes(view) for view in views] == [b"%04d" % i * 25 for i in range(16)]
        assert channel.stats()["active"] == 0
        with views[3] as view:
            assert len(view) == 100
        with pytest.raises(errors.ClosedError):
            memoryview(view)


def test_a_full_byte_ring_is_no_full_channel() -> None:
    with Channel.heap(capacity=1024, bytering_bytes=2048) as channel:
        assert channel.stats()["bytering_bytes"] == 2048
        sent = [b"%06d" % n * (n % 40) for n in range(1024)]
        assert channel.send_many(sent, timeout=0) == 1024
        assert not channel.try_send(b"one more")
        assert channel.stats()["active"] > 500, "most of them went into the slab"
        assert channel.recv_many(2000) == sent
        assert channel.recv_many(1, timeout=0) == []
        assert channel.try_send(b"")
        assert channel.recv() == b""


@pytest.mark.parametrize("wrong", [-1, 1, 1024, 3000, 1 << 29, 1 << 40])
def test_a_byte_ring_has_a_size(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"bytering_bytes.*{wrong}"):
        Channel.heap(bytering_bytes=wrong)


def test_views_outlive_close(tmp_path: Path) -> None:
    producer, consumer = pair(tmp_path / "r")
    producer.send(b"still here")
    view = consumer.recv_views(1)[0]
    consumer.close()
    assert bytes(view) == b"still here"
    assert producer.peer_alive() is True  # the slot is still out, so the role is still taken
    with pytest.raises(errors.RegionBusyError):
        Channel.open(tmp_path / "r", role="consumer")
    view.release()
    assert producer.peer_alive() is False
    Channel.open(tmp_path / "r", role="consumer").close()
    producer.close()


def test_closing_ends_waits() -> None:
    channel = Channel.heap(capacity=2)
    caught: list[BaseException] = []

    def run(call: str) -> None:
        try:
            channel.recv(20) if call == "recv" else channel.send(b"", timeout=20)
        except errors.ClosedError as error:
            caught.append(error)

    receiver = threading.Thread(target=run, args=["recv"])
    receiver.start()
    time.sleep(0.05)
    channel.close()
    receiver.join(60)
    assert len(caught) == 1
    assert channel.closed
    channel.close()
    for call in (channel.recv, channel.try_recv, channel.depth, channel.stats, channel.peer_alive):
        with pytest.raises(errors.ClosedError):
            call()
    with pytest.raises(errors.ClosedError):
        channel.send(b"")


def test_a_clean_end_comes_after_the_last_message(tmp_path: Path) -> None:
    producer, consumer = pair(tmp_path / "r")
    producer.send_many([b"1", b"2"])
    producer.close()
    assert consumer.recv_many(10) == [b"1", b"2"]
    with pytest.raises(errors.ClosedError, match="other side"):
        consumer.recv(20)
    producer = Channel.open(tmp_path / "r", role="producer")
    producer.send(b"3")
    assert consumer.recv() == b"3"
    consumer.close()
    assert producer.send_many([b""] * 20, timeout=20) == 16
    with pytest.raises(errors.ClosedError, match="other side"):
        producer.send(b"", timeout=20)
    producer.close()


def test_roles(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with pytest.raises(errors.RegionIOError) as caught:
        Channel.open(path, role="consumer")
    assert caught.value.errno == errno.ENOENT
    producer = Channel.create(path, role="producer", capacity=16)
    assert path.stat().st_mode & 0o777 == 0o600
    assert producer.peer_alive() is None
    with pytest.raises(errors.RegionIOError) as caught:
        Channel.create(path, role="producer")
    assert caught.value.errno == errno.EEXIST
    assert os.listdir(tmp_path) == ["r"]  # no temporary file is left
    with pytest.raises(errors.RegionBusyError):
        Channel.open(path, role="producer", timeout=0.05)
    with pytest.raises(ValueError, match="role"):
        Channel.open(path, role="both")
    consumer = Channel.open(path, role="consumer")
    assert producer.peer_alive() is True
    with pytest.raises(ValueError, match="opened as"):
        consumer.send(b"")
    with pytest.raises(ValueError, match="opened as"):
        producer.recv()
    producer.close()
    consumer.close()


def test_open_waits_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r"
    made: list[Channel] = []
    timer = threading.Timer(0.1, lambda: made.append(Channel.create(path, role="producer", capacity=16)))
    timer.start()
    with Channel.open(path, role="consumer", timeout=10) as consumer:
        eventually(lambda: made)
        made[0].send(b"x")
        assert consumer.recv() == b"x"
    made[0].close()


def test_notes(tmp_path: Path) -> None:
    producer, consumer = pair(tmp_path / "r")
    assert consumer.get_note(7) == 0
    producer.set_note(7, 2**64 - 1)
    assert consumer.get_note(7) == 2**64 - 1
    consumer.set_note(0, 5)
    assert producer.get_note(0) == 5
    for index in (-1, 8):
        with pytest.raises(IndexError):
            producer.set_note(index, 1)
    with pytest.raises(OverflowError):
        producer.set_note(0, 2**64)
    producer.close()
    consumer.close()


def test_foreign_and_cut_files(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for junk in (b"", b"x", b"no region at all " * 1000):
        path.write_bytes(junk)
        with pytest.raises(errors.RegionFormatError):
            Channel.open(path, role="consumer")
    path.unlink()
    Channel.create(path, role="producer", capacity=16, max_message_bytes=256).close()
    good = path.read_bytes()
    for size in (4095, 4096, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(errors.RegionTruncatedError):
            Channel.open(path, role="consumer")
    path.write_bytes(good + b"x")
    with pytest.raises(errors.RegionFormatError):
        Channel.open(path, role="consumer")
    path.write_bytes(good[:8] + b"\x63" + good[9:])  # layout version
    with pytest.raises(errors.RegionFormatError, match="version"):
        Channel.open(path, role="consumer")


def test_a_file_that_shrinks_is_an_error_not_a_crash(tmp_path: Path) -> None:
    producer, consumer = pair(tmp_path / "r")
    producer.send(b"x" * 200)
    view = consumer.recv_views(1)[0]
    producer.send(b"y" * 200)
    os.truncate(tmp_path / "r", 0)
    with pytest.raises(errors.RegionTruncatedError):
        repeat(lambda: consumer.recv(timeout=0.05))
    with pytest.raises(errors.RegionTruncatedError):
        repeat(lambda: producer.send(b"z" * 200, timeout=0.05))
    with pytest.raises(errors.RegionTruncatedError):
        view.tobytes()
    view.release()
    producer.close()
    consumer.close()


def test_a_child_is_refused(tmp_path: Path) -> None:
    producer, consumer = pair(tmp_path / "r")
    producer.send_many([b"1", b"2"])
    view = consumer.recv_views(1)[0]

    def check() -> None:
        for call in (lambda: producer.send(b"3"), consumer.recv, consumer.depth, consumer.stats):
            with pytest.raises(errors.ForkedHandleError):
                call()
        view.release()  # neither this
        consumer.close()  # nor this touches the parent's region
        producer.close()

    in_child(check)
    assert consumer.recv() == b"2"
    view.release()
    assert consumer.recv_many(1, timeout=0) == []
    assert producer.stats()["active"] == 0
    assert producer.stats()["bad_returns"] == 0
    producer.close()
    consumer.close()


def test_signals_interrupt_a_wait(heap: Channel) -> None:
    class Hit(Exception):
        pass

    def handler(*_: object) -> None:
        raise Hit

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        with pytest.raises(Hit):
            heap.recv(20)
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)
