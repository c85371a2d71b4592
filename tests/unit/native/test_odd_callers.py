"""Callers that do what nobody should: copies, bare objects, arguments and destructors that call back, closing under a thread.

None of it may cost more than a typed error. `call_fuzz` looks for the rest at random.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis import errors
from ignis.native import (
    Bell,
    FrameDecoder,
    Intake,
    MappedOutbox,
    Outbox,
    PackedBatch,
    Receipt,
    Record,
    SendRing,
    encode_frame,
    encode_frames,
    encode_record,
    pack,
    unpack_segment,
)
from ignis.native.lone import LoneAck, LoneRequest, LoopSpin
from ignis.native.outbox import ReceiptBook
from ignis.native.record import segment_columns
from ignis.native.wire import (
    COMMAND_SEND,
    FrameReader,
    ReadArea,
    encode_send_acks,
    pack_claims,
    pack_pointers,
    unpack_claims,
)

MARGIN_S = 5.0
"""No wait of these tests comes near."""


class Odd:
    """A number that does something while it is looked at."""

    def __init__(self, act: Callable[[], object], value: float = 0.2) -> None:
        self._act = act
        self._value = value

    def __float__(self) -> float:
        self._act()
        return float(self._value)

    def __index__(self) -> int:
        self._act()
        return int(self._value)

    __int__ = __index__


class OddWhole(int):
    """The same for callers that take nothing but numbers."""

    act: Callable[[], object]

    def __float__(self) -> float:
        self.act()
        return 0.2 if self == 0 else float(int(self))


def odd_whole(act: Callable[[], object], value: int = 0) -> OddWhole:
    made = OddWhole(value)
    made.act = act
    return made


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[MappedOutbox]:
    made = MappedOutbox(capacity=16, max_message_bytes=4096, path=tmp_path / "box", bell=tmp_path / "bell")
    yield made
    made.close()


@pytest.fixture
def intake(mapped: MappedOutbox, tmp_path: Path) -> Iterator[Intake]:
    made = Intake.open(tmp_path / "box")
    yield made
    made.close()


@pytest.fixture
def bell(mapped: MappedOutbox, tmp_path: Path) -> Iterator[Bell]:
    made = Bell(tmp_path / "bell")
    made.wait([], 0)  # the new outbox rang it
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.set_threshold(700, 10, 10)
    gc.enable()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What went to ``sys.unraisablehook``."""
    found: list[BaseException] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: found.append(args.exc_value))
    return found


def at_each_allocation(act: Callable[[], object], run: Callable[[], object], thresholds: range) -> None:
    """``run()``, again and again, with ``act()`` called by a destructor at one allocation after the other.

    Since Python 3.12 collections do not run inside of allocations, and this finds nothing.
    """
    gc.collect()
    gc.freeze()  # what is there already: each collection would go through all that this process has imported
    for threshold in thresholds:
        gc.disable()
        gc.collect()

        class Trash:
            def __del__(self) -> None:
                with contextlib.suppress(errors.IgnisError, ValueError, BufferError):
                    act()

        one = Trash()
        one.me = one  # type: ignore[attr-defined]
        del one
        gc.set_threshold(threshold, 1, 1)
        gc.enable()
        run()
    gc.set_threshold(700, 10, 10)


# -- copies and bare objects ------------------------------------------------------------------------------------------


def everything(tmp_path: Path) -> list[Any]:
    box = Outbox(capacity=4)
    MappedOutbox(capacity=4, path=tmp_path / "box", bell=tmp_path / "bell").close()
    area = ReadArea()
    return [
        box, box.send(b"x", 0, 0), Intake.open(tmp_path / "box"), Bell(tmp_path / "bell"), FrameDecoder(), area,
        FrameReader(area, 1000), PackedBatch.pack([b"r"]), LoneRequest(area), LoneAck(area), LoopSpin(-1, 0),
    ]  # fmt: skip


def test_what_holds_memory_is_neither_copied_nor_pickled(tmp_path: Path) -> None:
    for one in everything(tmp_path):
        for call in (copy.copy, copy.deepcopy, *(lambda x, n=n: pickle.dumps(x, n) for n in range(6))):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                call(one)  # type: ignore[operator]
        assert not hasattr(one, "__setstate_cython__"), one
        assert not hasattr(one, "__reduce_cython__"), one
    record = Record(encode_record(b"body", key=b"k"))
    assert pickle.loads(pickle.dumps(record)).body == copy.copy(record).body == b"body"


@pytest.mark.parametrize("kind", [Receipt, Intake, PackedBatch])
def test_bare_objects_refuse(kind: type) -> None:
    one = kind.__new__(kind)
    repr(one)
    for name in [*sorted(set(dir(kind)) - set(dir(object))), "__await__"]:
        if name.startswith("__pyx"):
            continue
        try:
            found = getattr(one, name, None)
            if callable(found):
                found = found()
                next(found) if name == "__await__" and found is not None else None
        except (TypeError, ValueError, errors.IgnisError):
            continue
        assert not found or name in ("id", "pack", "open", "closed"), name
    if kind is Intake:
        with pytest.raises(TypeError, match=r"Intake\.open"):
            one.hold(1, 1, 1, 0)
        with pytest.raises(TypeError, match=r"Intake\.open"):
            pack([one], 0, 1)
    if kind is Receipt:
        for call in (one.done, lambda: one.result(0), lambda: one.exception(0), lambda: one.add_done_callback(print)):
            with pytest.raises(TypeError, match=r"Outbox\.send"):
                call()


def test_an_outbox_is_collected_with_what_hangs_on_it() -> None:
    def of_callbacks(box: Outbox) -> None:
        box.send(b"x", 0, 0).add_done_callback(lambda receipt: None)

    def of_both(box: Outbox) -> None:
        for _ in range(3):
            receipt = box.send(b"x", 0, 0)
            receipt.add_done_callback(lambda receipt: None)
            receipt.add_done_callback(box.close)  # type: ignore[arg-type]

    for hang_on in (of_callbacks, of_both):
        box = Outbox(capacity=4)
        gone = weakref.ref(box)
        hang_on(box)
        del box
        gc.collect()
        assert gone() is None, hang_on.__name__


def test_a_mapped_outbox_is_collected_with_its_hooks(tmp_path: Path) -> None:
    box = MappedOutbox(capacity=4, path=tmp_path / "box", bell=tmp_path / "bell")
    gone = weakref.ref(box)
    box.send(b"x", 0, 0).add_done_callback(lambda receipt: None)
    box.on_waiter = box.close
    del box
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", [SendRing, ReceiptBook])
def test_what_kinds_of_outbox_share_is_no_outbox(kind: type[ReceiptBook]) -> None:
    class Own(kind):  # type: ignore[misc,valid-type]
        pass

    for make in (kind, lambda: kind.__new__(kind), Own, lambda: kind.__new__(Own)):
        with pytest.raises(TypeError, match="use Outbox"):
            make()


# -- callbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_callback_stops_the_others(kind: type[BaseException], shown: list[BaseException]) -> None:
    box = Outbox(capacity=4)
    seen: list[int] = []

    def fail(receipt: Receipt) -> None:
        raise kind

    receipts = [box.send(b"", 0, 0) for _ in range(3)]
    receipts[0].add_done_callback(fail)
    for receipt in receipts:
        receipt.add_done_callback(lambda r: seen.append(r.sequence))
    box.settle(2)
    assert (seen, box.settled) == ([1, 2], 2)
    box.fail(1, ValueError("no"))
    assert seen == [1, 2, 3]
    receipts[0].add_done_callback(fail)  # done already
    assert [type(error) for error in shown] == [kind, kind]
    with pytest.raises(TypeError, match="callback"):
        receipts[0].add_done_callback(None)  # type: ignore[arg-type]


def test_a_callback_does_not_keep_others_from_their_await(shown: list[BaseException]) -> None:
    async def main() -> None:
        box = Outbox(capacity=4)
        receipt = box.send(b"", 0, 0)
        waiting = asyncio.ensure_future(_wait(receipt))
        await asyncio.sleep(0.01)

        def fail(_: Receipt) -> None:
            raise asyncio.CancelledError

        receipt.add_done_callback(fail)
        box.settle(1)
        assert await asyncio.wait_for(waiting, MARGIN_S) == receipt.id

    async def _wait(receipt: Receipt) -> bytes:
        return await receipt

    asyncio.run(main())
    assert len(shown) == 1


def test_callbacks_that_close_and_settle() -> None:
    box = Outbox(capacity=8)
    receipts = [box.send(b"", 0, 0) for _ in range(4)]
    receipts[0].add_done_callback(lambda _: box.settle(1))
    receipts[1].add_done_callback(lambda _: box.close())
    box.settle(1)
    assert (box.settled, box.failed) == (4, 2)
    assert isinstance(receipts[3].exception(0), errors.ClosedError)


def test_close_says_why() -> None:
    box = Outbox(capacity=4)
    receipt = box.send(b"", 0, 0)
    box.close(ZeroDivisionError("why"))
    assert isinstance(receipt.exception(0), ZeroDivisionError)
    with pytest.raises(TypeError, match="exception or None"):
        box.close("text")  # type: ignore[arg-type]


# -- arguments that call back -----------------------------------------------------------------------------------------


def test_timeouts_that_close(mapped: MappedOutbox, bell: Bell) -> None:
    for _ in range(16):
        receipt = mapped.send(b"a", 0, 0, timeout=0)
    full = Outbox(capacity=1, max_message_bytes=100)
    full.send(b"a", 0, 0)
    empty = Outbox(capacity=1)
    calls: list[Callable[[], object]] = [
        lambda: full.send(b"b", 0, 0, timeout=Odd(full.close)),  # type: ignore[arg-type]
        lambda: empty.drain(1, 1, 0, 1, Odd(empty.close)),  # type: ignore[arg-type]
        lambda: mapped.send(b"b", 0, 0, timeout=Odd(mapped.close)),  # type: ignore[arg-type]
        lambda: mapped.send_record(b"b" * 50, Odd(mapped.close)),  # type: ignore[arg-type]
        lambda: bell.wait([], Odd(bell.close)),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(errors.ClosedError):
            call()
    assert isinstance(receipt.exception(odd_whole(mapped.close)), errors.ClosedError)


def test_numbers_that_close(intake: Intake, mapped: MappedOutbox) -> None:
    mapped.send(b"a", 0, 0)
    for at in range(4):
        args: list[Any] = [8, 1 << 20, 1, 0]
        args[at] = Odd(intake.close, args[at])
        with pytest.raises(errors.ClosedError):
            intake.hold(*args)
    with pytest.raises(errors.ClosedError):
        intake.acknowledge(Odd(intake.close, 1))  # type: ignore[arg-type]


def test_what_is_settled_while_a_timeout_is_read_is_not_waited_for() -> None:
    box = Outbox(capacity=4)
    receipt = box.send(b"", 0, 0)
    began = time.monotonic()
    assert receipt.result(odd_whole(lambda: box.settle(1), 20)) == receipt.id
    assert time.monotonic() - began < 20 - MARGIN_S


def test_a_number_that_seals() -> None:
    batch = PackedBatch.pack([b"one", b"two"])
    with pytest.raises(ValueError, match="sealed already"):
        batch.seal(1, 2, Odd(lambda: batch.seal(7, 8, 100), 5))  # type: ignore[arg-type]
    assert unpack_segment(batch, 7, 8, 101, 100, 102) == [b"one", b"two"]


def test_a_second_drain_is_refused() -> None:
    box = Outbox(capacity=4)
    got: list[object] = []
    flusher = threading.Thread(target=lambda: got.append(box.drain(1, 1, 0, 1, 20)[0]))
    flusher.start()
    until = time.monotonic() + 20
    while True:
        try:
            box.drain(1, 1, 0, 1, 0)
        except errors.NativeError as error:
            assert "second thread" in str(error)  # noqa: PT017 - the first tries may come too early
            break
        assert time.monotonic() < until
    box.send(b"", 0, 0)
    flusher.join(20)
    assert got == [1]


def test_sequences_that_change(intake: Intake, mapped: MappedOutbox, bell: Bell) -> None:
    for wrong in ([None], [intake, None], [mapped]):
        with pytest.raises(TypeError, match="expected Intake"):
            pack(wrong, 0, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected Intake"):
            bell.wait(wrong, 0)  # type: ignore[arg-type]
    mapped.send(b"a", 0, 0)
    intake.hold(1, 1, 1, 0)
    with pytest.raises(ValueError, match="twice"):
        pack([intake, intake], 0, 1)
    assert [batch.count for _, batch in pack([intake], 0, 1)] == [1]


def test_answers_that_differ_the_second_time() -> None:
    records: list[bytes | None] = [b"x" * 10 for _ in range(1000)]

    class Pointers:
        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[int]:
            records.clear()
            return iter(range(1000))

    with pytest.raises(ValueError, match="1000 pointers and 0 records"):
        pack_claims([(0, Pointers(), records)])  # type: ignore[list-item]
    for shard, pointers, found, kind in (
        (70_000, [1], [b"r"], ValueError), (1 << 80, [1], [b"r"], ValueError), ("x", [1], [b"r"], TypeError),
        (0, [1], [memoryview(b"r")], TypeError), (0, [-1], [b"r"], ValueError),
    ):  # fmt: skip
        with pytest.raises(kind):
            pack_claims([(shard, pointers, found)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="outside"):
        pack_pointers([(1 << 80, [1])])
    batch = PackedBatch.pack([encode_record(b"x") for _ in range(1000)])
    batch.seal(1, 1, 0)
    data = bytes(batch)

    class Part:
        asked = 0

        def __iter__(self) -> Iterator[object]:
            self.asked += 1
            return iter((data, 0, 999, 0, 2 if self.asked == 1 else 1000, None))

    part = Part()
    assert segment_columns([part], 1, 1)[0] == 2  # type: ignore[list-item]
    assert part.asked == 1


def test_bytes_that_change_while_they_are_read() -> None:
    data = bytearray(pack_claims([(n, [1, 5, 9], [b"a" * 9, None, b"c"]) for n in range(50)]))
    whole = bytes(data)

    def shorten() -> None:
        for at in range(4, len(data) - 4, 4):
            data[at : at + 4] = b"\x00\xff\xff\xff"

    def read() -> None:
        data[:] = whole
        with contextlib.suppress(errors.MalformedFrameError):  # changed before the reading began
            assert len(unpack_claims(data)) == 50

    at_each_allocation(shorten, read, range(3, 300, 31))


def test_numbers_out_of_range(mapped: MappedOutbox, tmp_path: Path) -> None:
    area = ReadArea()
    for value in (-1, 0, 13, -(1 << 63)):
        with pytest.raises(ValueError, match="at least 14"):
            FrameReader(area, value)
    reader = FrameReader(area, 14)
    with pytest.raises(ValueError, match="at least 14"):
        reader.max_frame_bytes = 13
    assert reader.max_frame_bytes == 14
    for shard, first in ((-1, 0), (1 << 16, 0), (0, 1 << 63)):
        with pytest.raises(ValueError, match="pointers from"):
            encode_send_acks(bytes(8), shard, first)
    with pytest.raises(TypeError):
        MappedOutbox(path=tmp_path / "other", bell=tmp_path / "bell", label=None)  # type: ignore[arg-type]
    for number in (-1, 1 << 70):
        with pytest.raises(OverflowError):
            mapped.wait_settled(number)


def test_paths_with_a_nul(tmp_path: Path) -> None:
    path = f"{tmp_path}/box\0more"
    for call in (
        lambda: MappedOutbox(capacity=4, path=path, bell=tmp_path / "bell"), lambda: Intake.open(path), lambda: Bell(path),
        lambda: MappedOutbox(capacity=4, path=tmp_path / "box", bell=path),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="NUL"):
            call()
    assert {found.name for found in tmp_path.iterdir()} <= {"bell"}


# -- destructors ------------------------------------------------------------------------------------------------------


def test_a_destructor_that_feeds_the_decoder() -> None:
    stream = encode_frames(1, 1, [b"x" * 7] * 600)
    decoders: list[FrameDecoder] = []

    def read() -> None:
        decoders.append(FrameDecoder())
        decoders[-1].feed(stream)
        assert len(decoders[-1].frames()) == 600

    at_each_allocation(lambda: decoders[-1].feed(bytes(1 << 20)) if decoders else None, read, range(5, 400, 29))


def test_a_destructor_that_reads_into_the_same_area() -> None:
    send = b"\x00\x01q" + bytes(8)
    sends = b"".join(
        encode_frame(COMMAND_SEND, n, send + (n % 97).to_bytes(2, "big") + encode_record(b"x" * 20)) for n in range(600)
    )
    readers: list[FrameReader] = []

    def read() -> None:
        area = ReadArea(1 << 20)
        readers[:] = [FrameReader(area, 1 << 24, True), FrameReader(area, 1 << 24, True)]
        found = readers[0].feed(sends)
        assert sum(batch.count for _, _, (_, _, parts) in found for _, batch, _ in parts) == 600

    at_each_allocation(lambda: readers[1].feed(sends[:3000]) if readers else None, read, range(5, 900, 61))


def test_a_destructor_that_settles_and_closes() -> None:
    boxes: list[Outbox] = []

    def act() -> None:
        boxes[-1].settle(1)
        boxes[-1].drain(4, 1 << 20, 0, 1, 0)

    def run() -> None:
        boxes.append(Outbox(capacity=64, max_message_bytes=100))
        receipts = [boxes[-1].send(b"x", 0, 0) for _ in range(20)]
        for receipt in receipts:
            receipt.add_done_callback(lambda _: None)
        taken = boxes[-1].drain(64, 1 << 20, 0, 1, 0)[0]
        while boxes[-1].pending:
            with contextlib.suppress(ValueError):  # settled meanwhile
                boxes[-1].fail(boxes[-1].pending, ValueError("no"))
        assert boxes[-1].settled == boxes[-1].sent == 20
        assert taken <= 20
        assert all(receipt.done() for receipt in receipts)

    boxes.append(Outbox(capacity=4))
    at_each_allocation(act, run, range(3, 200, 19))


# -- closing while a thread is inside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["intake", "bell"])
def test_closing_under_a_thread_that_waits(what: str, bell: Bell, intake: Intake) -> None:
    raised: list[BaseException] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            bell.wait([intake], 20)
        except errors.ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(20)
    time.sleep(0.05)
    (intake if what == "intake" else bell).close()
    thread.join(20)
    assert len(raised) == 1
    with pytest.raises(errors.ClosedError):
        bell.wait([intake], 0)


def test_closing_in_a_signal_handler(bell: Bell, intake: Intake) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: intake.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(errors.ClosedError):
            bell.wait([intake], 20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_list_that_is_emptied_while_it_is_waited_on(bell: Bell, tmp_path: Path, mapped: MappedOutbox) -> None:
    held = [Intake.open(tmp_path / "box")]
    thread = threading.Thread(target=bell.wait, args=(held, 20))
    thread.start()
    time.sleep(0.05)
    held.clear()
    gc.collect()
    mapped.send(b"a", 0, 0)
    thread.join(20)
    assert not thread.is_alive()


def test_a_receipt_is_waited_for_while_the_outbox_closes(mapped: MappedOutbox) -> None:
    receipt = mapped.send(b"a", 0, 0)
    raised: list[object] = []
    thread = threading.Thread(target=lambda: raised.append(receipt.exception(20)))
    thread.start()
    time.sleep(0.05)
    mapped.close()
    thread.join(20)
    assert isinstance(raised[0], errors.ClosedError)
