"""Mapped outboxes and what empties them: nothing is taken before it is acknowledged, nothing unsound is believed."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis import errors
from ignis.native import (
    ANY_SHARD,
    Bell,
    Channel,
    Intake,
    MappedOutbox,
    PackedBatch,
    Record,
    encode_record,
    id_text,
    pack,
    shard_for_key,
)
from tests.unit.native.native_support import eventually, finish, in_child, start

RING_OFFSET = 4_096


@pytest.fixture
def box(tmp_path: Path) -> Iterator[MappedOutbox]:
    made = outbox(tmp_path)
    yield made
    made.close()


def outbox(tmp_path: Path, **options: object) -> MappedOutbox:
    chosen: dict[str, object] = {
        "path": tmp_path / "channel", "capacity": 64, "max_message_bytes": 4_096, "bytering_bytes": 8_192, **options
    }  # fmt: skip
    return MappedOutbox(bell=tmp_path / "bell", **chosen)  # type: ignore[arg-type]


def bodies(batches: list[tuple[int, PackedBatch]]) -> list[tuple[int, bytes]]:
    return [(shard, Record(record).body) for shard, batch in batches for record in batch.records()]


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_is_acknowledged_is_settled(tmp_path: Path, box: MappedOutbox) -> None:
    intake = Intake.open(tmp_path / "channel")
    receipts = [box.send(b"%d" % n, ANY_SHARD, 0, b"key%d" % n if n % 2 else b"") for n in range(10)]
    assert intake.hold(4, 1 << 20, 8, 0) == 4
    assert intake.held == 4
    found = bodies(pack([intake], 3, 8))
    assert Counter(found) == Counter(
        [(3, b"0"), (3, b"2"), (shard_for_key(b"key1", 8), b"1"), (shard_for_key(b"key3", 8), b"3")]
    )
    assert not receipts[0].done()
    with pytest.raises(ValueError, match="4 messages are held"):
        intake.acknowledge(5)
    assert intake.acknowledge() == 4
    assert [receipt.done() for receipt in receipts] == [True] * 4 + [False] * 6
    assert (box.sent, box.settled, box.pending, intake.acknowledged) == (10, 4, 6, 4)
    assert intake.hold(100, 1 << 20, 8, 0) == 6
    intake.let_go()
    assert intake.hold(100, 1, 8, 0) == 1, "one message at least, however large"
    assert bodies(pack([intake], 0, 8))[0][1] == b"4"
    assert intake.acknowledge() == 1
    assert intake.acknowledge() == 0
    intake.close()
    with pytest.raises(errors.ClosedError):
        intake.depth()


def test_a_kept_message_is_the_next_consumers(tmp_path: Path, box: MappedOutbox) -> None:
    for n in range(20):
        box.send(b"%d" % n, ANY_SHARD, 0)
    child = start(
        """
intake = Intake.open(sys.argv[1])
intake.hold(5, 1 << 20, 4, 0)
intake.acknowledge()
intake.hold(10, 1 << 20, 4, 0)
pack([intake], 0, 4)
print("held", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
        tmp_path / "channel",
    )
    finish(child, code=-signal.SIGKILL)
    assert box.settled == 5
    intake = Intake.open(tmp_path / "channel")
    assert intake.hold(100, 1 << 20, 4, 0) == 15
    assert [body for _, body in bodies(pack([intake], 0, 4))] == [b"%d" % n for n in range(5, 20)]
    intake.acknowledge()
    assert box.pending == 0
    intake.close()


def test_more_is_held_while_earlier_messages_are_stored(tmp_path: Path, box: MappedOutbox) -> None:
    """Many times around the ring: what was packed is not packed again, and is taken in the order it was held."""
    intake = Intake.open(tmp_path / "channel")
    sent = packed = taken = 0
    for round_ in range(300):
        for _ in range(round_ % 40):
            box.send(b"%d" % sent, ANY_SHARD, 0, timeout=0)
            sent += 1
        count = intake.hold(round_ % 7 * 5 + 1, 1 << 20, 1, 0)
        assert intake.held == packed + count - taken
        assert intake.waiting == sent - packed - count
        assert [body for _, body in bodies(pack([intake], 0, 1))] == [b"%d" % n for n in range(packed, packed + count)]
        assert pack([intake], 0, 1) == []
        packed += count
        first = (packed - taken + 1) // 2
        assert intake.acknowledge(first) == first
        taken += first
        assert (box.settled, intake.acknowledged) == (taken, taken)
        if intake.waiting + intake.held > 24:
            intake.hold(64, 1 << 20, 1, 0)
            intake.let_go(packed - taken)
            assert intake.held == packed - taken, "what is on its way is held still"
            intake.let_go()
            packed = taken
            count = intake.hold(64, 1 << 20, 1, 0)
            found = [body for _, body in bodies(pack([intake], 0, 1))]
            assert found == [b"%d" % n for n in range(taken, sent)]
            packed += count
            intake.acknowledge()
            taken = packed
    assert sent > 1_000
    intake.close()


def test_a_bad_record_does_not_take_those_before_it_along(tmp_path: Path) -> None:
    raw_channel(tmp_path / "bad", [encode_record(b"1"), encode_record(b"2"), b"no record"])
    intake = Intake.open(tmp_path / "bad")
    assert intake.hold(1, 1 << 20, 1, 0) == 1
    assert intake.hold(10, 1 << 20, 1, 0) == 1
    with pytest.raises(errors.UnreadableMessageError):
        intake.hold(10, 1 << 20, 1, 0)
    assert intake.held == 2
    assert [body for _, body in bodies(pack([intake], 0, 1))] == [b"1", b"2"]
    assert intake.acknowledge() == 2
    intake.close()


def test_all_sizes_share_the_byte_ring(tmp_path: Path) -> None:
    """Nothing of up to small_message_bytes takes a slot; a full byte ring is a full channel until something is taken."""
    box = outbox(
        tmp_path, capacity=1_024, bytering_bytes=1 << 18, small_message_bytes=1 << 14, max_message_bytes=1 << 16
    )
    intake = Intake.open(tmp_path / "channel")
    sent: list[bytes] = []

    def fill() -> None:
        for n in range(1_000):
            body = b"%d-" % n + b"x" * (n * 1_237 % 16_000)
            box.send(body, ANY_SHARD, 0, timeout=0)
            sent.append(body)

    with pytest.raises(errors.ChannelFullError):
        fill()
    assert len(sent) > 25
    box.send(b"y" * 60_000, ANY_SHARD, 0, timeout=0)  # has a slot of its own
    waiting = threading.Thread(target=box.send, args=(b"z" * 16_000, ANY_SHARD, 0), kwargs={"timeout": 30})
    waiting.start()
    found: list[bytes] = []
    for _ in range(2):
        intake.hold(1_000, 1 << 20, 1, 0)
        found += [body for _, body in bodies(pack([intake], 0, 1))]
        intake.acknowledge()
        waiting.join(30)
    assert not waiting.is_alive()
    assert found == [*sent, b"y" * 60_000, b"z" * 16_000]
    for n in range(2_000):
        box.send(b"x" * (n * 797 % 16_000), ANY_SHARD, 0, timeout=0)
        assert intake.hold(10, 1 << 20, 1, 0) == 1
        intake.acknowledge()
    with pytest.raises(ValueError, match="a quarter of bytering_bytes"):
        outbox(tmp_path, path=tmp_path / "other", small_message_bytes=4_096)
    box.close()
    intake.close()


def test_slots_go_round_for_ever(tmp_path: Path) -> None:
    """More messages than the channel holds, of every size class; the producer never waits for want of a slot."""
    box = outbox(tmp_path, size_classes=[(1_024, 30), (4_096, 30)])
    intake = Intake.open(tmp_path / "channel")
    for round_ in range(200):
        sent = [b"%d-" % round_ + b"x" * (n * 97 % 4_000) for n in range(30)]
        for body in sent:
            box.send(body, ANY_SHARD, 0, timeout=0)
        assert intake.hold(100, 1 << 20, 1, 0) == 30
        assert [body for _, body in bodies(pack([intake], 0, 1))] == sent
        intake.acknowledge()
    assert box.pending == 0
    intake.close()
    box.close()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40), st.binary(max_size=6)), max_size=60),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(1, 600),
)
@settings(max_examples=60, deadline=None)
def test_packing_keeps_order_per_key_and_channel(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[int, bytes, bytes]],
    shards: int,
    chunk_records: int,
    chunk_bytes: int,
) -> None:
    where = tmp_path_factory.mktemp("intakes")
    boxes = [
        MappedOutbox(capacity=64, max_message_bytes=256, path=where / f"{n}", bell=where / "bell") for n in range(3)
    ]
    intakes = [Intake.open(where / f"{n}") for n in range(3)]
    sent: dict[str, tuple[int, int, bytes]] = {}
    for n, (which, body, key) in enumerate(messages):
        receipt = boxes[which].send(body, 7, 0, key)  # the producer's opinion of the shard does not count
        sent[receipt.id] = (which, n, key)
    for intake in intakes:
        intake.hold(100, 1 << 20, shards, 0)
    last: dict[tuple[int, bytes], int] = {}
    batches = pack(intakes, 0, shards, chunk_records, chunk_bytes)
    for shard, batch in batches:
        assert batch.count <= chunk_records
        for data in batch.records():
            record = Record(data)
            which, n, key = sent.pop(id_text(record.id))
            assert record.key == key
            if key:
                assert shard == shard_for_key(key, shards)
                assert last.get((which, key), -1) < n
                last[which, key] = n
    assert not sent
    for one in [*intakes, *boxes]:
        one.close()


def test_records_and_limits(tmp_path: Path) -> None:
    box = outbox(tmp_path, label=b"who I am")
    intake = Intake.open(tmp_path / "channel")
    assert intake.label == b"who I am"
    assert intake.region_bytes == (tmp_path / "channel").stat().st_size
    record = encode_record(b"ready made", key=b"k")
    assert box.send_record(record, 0) == 1
    assert intake.hold(1, 1, 4, 0) == 1
    (_, batch) = pack([intake], 0, 4)[0]
    assert batch.records() == [record]
    with pytest.raises(errors.MessageTooLargeError):
        box.send_record(b"x" * (1 << 20), 0)
    with pytest.raises(errors.MessageTooLargeError):
        box.send(b"x" * 4_097, ANY_SHARD, 0)
    with pytest.raises(TypeError, match="path"):
        MappedOutbox(label=b"x", bell=tmp_path / "bell")  # type: ignore[call-arg]
    with pytest.raises(errors.RegionIOError):
        outbox(tmp_path)  # the file is there
    with pytest.raises(errors.RegionBusyError):
        Intake.open(tmp_path / "channel")
    box.close()
    intake.close()


def test_full_and_empty(tmp_path: Path, box: MappedOutbox) -> None:
    for n in range(64):
        box.send(b"%d" % n, ANY_SHARD, 0, timeout=0)
    with pytest.raises(errors.ChannelFullError):
        box.send(b"no", ANY_SHARD, 0, timeout=0)
    with pytest.raises(errors.WaitTimeoutError):
        box.send(b"no", ANY_SHARD, 0, timeout=0.01)
    box.on_timeout = lambda text: errors.RelayAbsentError("/here", text)
    with pytest.raises(errors.RelayAbsentError, match="no room for"):
        box.send(b"no", ANY_SHARD, 0, timeout=0.01)
    intake = Intake.open(tmp_path / "channel")
    waiting = threading.Thread(target=box.send, args=(b"waited", ANY_SHARD, 0), kwargs={"timeout": 30})
    waiting.start()
    intake.hold(1, 1, 1, 0)
    intake.acknowledge()
    waiting.join(30)
    assert not waiting.is_alive()
    assert (box.sent, intake.depth()) == (65, 64)
    intake.close()


def test_watching_completes_receipts(tmp_path: Path, box: MappedOutbox) -> None:
    intake = Intake.open(tmp_path / "channel")
    called: list[bytes] = []
    wanted = threading.Event()
    box.on_waiter = wanted.set
    assert box.watch(0) is False
    first = box.send(b"1", ANY_SHARD, 0)
    first.add_done_callback(lambda receipt: called.append(receipt.id))
    assert wanted.is_set()
    assert box.watch(0.01) is True
    intake.hold(1, 1, 1, 0)
    intake.acknowledge()
    assert box.watch(30) is False
    assert called == [first.id]
    intake.close()


def test_a_refused_channel_raises_at_its_producer(tmp_path: Path, box: MappedOutbox) -> None:
    intake = Intake.open(tmp_path / "channel")
    taken = box.send(b"1", ANY_SHARD, 0)
    intake.hold(1, 1, 1, 0)
    intake.acknowledge()
    left = box.send(b"2", ANY_SHARD, 0)
    box.on_refusal = lambda: errors.RelayRefusedError("channel", "because")
    intake.refuse()
    with pytest.raises(errors.RelayRefusedError, match="because"):
        box.send(b"3", ANY_SHARD, 0)
    with pytest.raises(errors.RelayRefusedError, match="because"):
        left.result(30)
    assert taken.exception(0) is None
    assert (box.failed, box.pending) == (1, 0)
    intake.close()


def test_the_bell_wakes_and_is_woken(tmp_path: Path, box: MappedOutbox) -> None:
    bell, intake = Bell(tmp_path / "bell"), Intake.open(tmp_path / "channel")
    bell.wait([intake], 0)  # the outbox rang when it was made
    assert bell.wait([intake], 0) is False
    timer = threading.Timer(0.02, bell.ring)
    timer.start()
    assert bell.wait([intake], 30)
    timer.join()
    timer = threading.Timer(0.02, box.send, (b"x", ANY_SHARD, 0))
    timer.start()
    assert bell.wait([intake], 30)
    timer.join()
    assert bell.wait([intake], 0), "a message that is there is seen without sleeping"
    intake.close()
    bell.close()
    with pytest.raises(errors.ClosedError):
        bell.ring()


def test_a_producer_that_left_is_seen(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    intake = Intake.open(tmp_path / "channel")
    assert intake.producer_alive()
    receipt = box.send(b"1", ANY_SHARD, 0)
    box.close()
    assert not intake.producer_alive()
    assert intake.depth() == 1
    with pytest.raises(errors.ClosedError):
        receipt.result(0)
    with pytest.raises(errors.ClosedError):
        box.send(b"2", ANY_SHARD, 0)
    box.close()
    intake.close()


def test_after_fork_both_sides_refuse(tmp_path: Path, box: MappedOutbox) -> None:
    intake = Intake.open(tmp_path / "channel")

    def look() -> None:
        for call in (lambda: box.send(b"x", ANY_SHARD, 0), lambda: intake.hold(1, 1, 1, 0), intake.depth):
            with pytest.raises(errors.ForkedHandleError):
                call()
        box.close()
        intake.close()

    in_child(look)
    box.send(b"still mine", ANY_SHARD, 0)
    assert intake.hold(1, 1 << 10, 1, 0) == 1
    intake.close()


# -- producers that do not keep to the rules


def raw_channel(path: Path, messages: list[bytes]) -> None:
    with Channel.create(path, role="producer", capacity=64, max_message_bytes=4_096) as channel:
        for message in messages:
            channel.send(message)


def test_bytes_that_are_no_record_are_not_believed(tmp_path: Path) -> None:
    good = encode_record(b"good")
    damaged = [b"", b"x" * 35, b"\x07" + good[1:], good[:1] + b"\xff" + good[2:], good[:6] + b"\xff\xff" + good[8:]]
    for n, bad in enumerate(damaged):
        raw_channel(tmp_path / f"{n}", [good, bad, good])
        intake = Intake.open(tmp_path / f"{n}")
        assert intake.hold(10, 1 << 20, 4, 0) == 1, "what stood before it is good"
        intake.acknowledge()
        with pytest.raises(errors.UnreadableMessageError):
            intake.hold(10, 1 << 20, 4, 0)
        assert intake.held == 0
        intake.close()
    raw_channel(tmp_path / "codec", [encode_record(b"{}", flags=1)])
    intake = Intake.open(tmp_path / "codec")
    with pytest.raises(errors.UnreadableMessageError, match="codec 2"):
        intake.hold(10, 1 << 20, 4, 2)
    assert intake.hold(10, 1 << 20, 4, 1) == 1
    intake.close()


@given(st.lists(st.tuples(st.integers(0, 4_096 + 3_000), st.binary(min_size=1, max_size=16)), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_scribbled_files_are_errors(
    tmp_path_factory: pytest.TempPathFactory, scribbles: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "channel"
    raw_channel(path, [encode_record(b"%d" % n, key=b"k%d" % n) for n in range(20)])
    for offset, data in scribbles:
        poke(path, offset, data)
    try:
        intake = Intake.open(path)
    except (errors.NativeError, ValueError):
        return
    try:
        for _ in range(5):
            assert len(intake.label) <= 2_048
            if intake.hold(100, 1 << 20, 4, 0):
                pack([intake], 0, 4)
                intake.acknowledge()
    except (errors.NativeError, errors.UnreadableMessageError):
        pass
    finally:
        intake.close()


def test_impossible_positions_are_an_error(tmp_path: Path, box: MappedOutbox) -> None:
    box.send(b"x", ANY_SHARD, 0)
    intake = Intake.open(tmp_path / "channel")
    poke(tmp_path / "channel", RING_OFFSET, struct.pack("=Q", 1 << 40))
    with pytest.raises(errors.NativeError):
        intake.hold(100, 1 << 20, 4, 0)
    poke(tmp_path / "channel", RING_OFFSET, struct.pack("=Q", 1))
    assert intake.hold(100, 1 << 20, 4, 0) == 1
    intake.close()
    poke(
        tmp_path / "channel", RING_OFFSET + 128, struct.pack("=Q", 1 << 40)
    )  # the consumer's, as the producer reads it
    with pytest.raises(errors.NativeError):
        box.wait_settled(1, 0.01)
    poke(tmp_path / "channel", RING_OFFSET + 128, struct.pack("=Q", 1))


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="files that shrink under a mapping are Linux's to signal")
def test_a_file_that_is_cut_is_an_error_on_both_sides(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    intake = Intake.open(tmp_path / "channel")
    receipt = box.send(b"x" * 3_000, ANY_SHARD, 0)
    os.truncate(tmp_path / "channel", 4_096)
    with pytest.raises(errors.NativeError):
        intake.hold(100, 1 << 20, 4, 0)
    with pytest.raises(errors.RegionTruncatedError):
        intake.check_size()
    with pytest.raises(errors.NativeError):
        receipt.result(0.5)
    called: list[object] = []
    receipt.add_done_callback(called.append)
    with pytest.raises(errors.NativeError):
        box.watch(0.5)
    assert called == [receipt]
    intake.close()
    box.close()
    eventually(lambda: box.closed)
