"""Handles under odd callers: no copies, nothing half made, arguments that run Python, closing while another thread is inside."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis import errors
from ignis.native import (
    Alarm,
    Channel,
    EventBoard,
    ProcessMutex,
    Ring,
    Slab,
    ThreadBell,
    Watch,
    channel,
    process_alive,
    process_start_time,
    ring,
    slab,
    wait,
)
from tests.unit.native.native_support import eventually, finish, start

MODULES = [channel, ring, slab, wait]
CLASSES = [
    c
    for m in MODULES
    for c in vars(m).values()
    if isinstance(c, type) and c.__module__ == m.__name__ and not issubclass(c, tuple)
]
DESCRIPTORS: tuple[type[Alarm] | type[Watch], ...] = (Alarm, Watch)
LARGE = b"x" * 3000  # in a slot of the slab, not in the byte ring


def test_the_walk_finds_every_class() -> None:
    assert {c.__name__ for c in CLASSES} == {
        "Alarm", "Channel", "View", "Ring", "Slab", "EventBoard", "ProcessMutex", "ThreadBell", "Watch",
    }  # fmt: skip


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[dict[type, Any]]:
    pipe = Channel.heap(capacity=8, bytering_bytes=0)
    pipe.send(LARGE)
    view = pipe.recv_views(1)[0]
    made = [pipe, view, Ring(4), Slab(), EventBoard(None, 1), ProcessMutex(tmp_path / "m"), ThreadBell()]
    for cls in DESCRIPTORS:
        with contextlib.suppress(OSError):  # not on this kernel
            made.append(cls())
    yield {type(handle): handle for handle in made}
    view.release()
    pipe.close()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_handle_is_not_copied_and_not_pickled(cls: type, handles: dict[type, Any]) -> None:
    if cls in DESCRIPTORS and cls not in handles:
        pytest.skip("this kernel has no such descriptors")
    handle = handles[cls]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=cls.__name__):
            handle.__reduce_ex__(protocol)
        with pytest.raises(TypeError, match=cls.__name__):
            pickle.dumps(handle, protocol)
    for refused in (handle.__reduce__, lambda: copy.copy(handle), lambda: copy.deepcopy(handle)):
        with pytest.raises(TypeError, match=cls.__name__):
            refused()
    assert not hasattr(handle, "__setstate_cython__") and not hasattr(handle, "__reduce_cython__")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_no_half_made_handle_and_no_subclass(cls: Any) -> None:
    if cls is Slab:  # has a default for its one argument: what __new__ gives is whole
        assert cls.__new__(cls).stats()["active"] == 0
    elif cls is ThreadBell:  # has none: so is this one
        assert cls.__new__(cls).wait(0) is False
    elif cls is Watch:  # so has this one
        with contextlib.suppress(OSError):
            assert cls.__new__(cls).take() is True
    elif cls is Alarm:
        with contextlib.suppress(OSError):
            assert cls.__new__(cls).take() is False
    else:
        with pytest.raises(TypeError):
            cls.__new__(cls)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (cls,), {})
    assert not gc.is_tracked(Ring(2))


def test_a_view_in_a_cycle_sends_its_slot_home(tmp_path: Path) -> None:
    producer = Channel.create(
        tmp_path / "c",
        role="producer",
        capacity=64,
        size_classes=[(4096, 64)],
        max_message_bytes=4096,
        bytering_bytes=0,
    )
    consumer = Channel.open(tmp_path / "c", role="consumer")

    def handle() -> None:
        view = consumer.recv_views(1, 0)[0]
        try:
            raise ValueError(bytes(view)[:1])
        except ValueError as error:
            kept = error  # the frame holds the error, and the error's traceback the frame
            assert kept

    for _ in range(20):
        producer.send(LARGE)
        handle()
    gc.collect()
    assert consumer.try_recv() is None
    assert producer.stats()["active"] == 0
    consumer.close()
    Channel.open(tmp_path / "c", role="consumer").close()
    producer.close()


def test_a_collection_between_two_messages_neither_doubles_nor_loses_one() -> None:
    pipe = Channel.heap(capacity=4096, size_classes=[(8192, 4096)], max_message_bytes=8192, bytering_bytes=0)
    for number in range(600):
        pipe.send(b"%04d" % number * 300)
    got: list[bytes] = []

    class Receiving:
        me: Receiving

        def __del__(self) -> None:
            got.extend(message[:4] for message in pipe.recv_many(3, 0))

    before = gc.get_threshold()
    gc.disable()
    try:
        for _ in range(100):
            one = Receiving()
            one.me = one
        del one
        gc.set_threshold(20, 1, 1)
        gc.enable()
        views = pipe.recv_views(300, 0)
        got.extend(view.tobytes()[:4] for view in views)
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    del views
    got.extend(message[:4] for message in pipe.recv_many(600, 0))
    assert sorted(got) == [b"%04d" % number for number in range(600)]
    pipe.close()


class Asked:
    """A number that does something when it is asked for its value, and tells another one the next time."""

    def __init__(self, then: Callable[[], object], *values: float) -> None:
        self.then, self.values = then, list(values)

    def value(self) -> float:
        self.then()
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]

    def __float__(self) -> float:
        return float(self.value())

    def __index__(self) -> int:
        return int(self.value())

    __int__ = __index__


def full() -> Channel:
    pipe = Channel.heap(capacity=2)
    pipe.send_many([b"a", b"b"])
    return pipe


def closing_items(pipe: Channel) -> Iterator[bytes]:
    yield b"x" * 2000
    pipe.close()
    yield b"y" * 2000


def shrinking(items: list[Any]) -> Any:
    class Item:
        def __buffer__(self, flags: int) -> memoryview:
            items.clear()
            return memoryview(b"q" * 100)

    return Item()


EMPTY_PIPE: list[Callable[[Channel], object]] = [
    lambda pipe: pipe.recv(Asked(pipe.close, 0.2)),
    lambda pipe: pipe.recv_with_kind(Asked(pipe.close, 0.2)),
    lambda pipe: pipe.recv_many(4, Asked(pipe.close, 0.2)),
    lambda pipe: pipe.recv_many(Asked(pipe.close, 4), 0.2),
    lambda pipe: pipe.recv_views(4, Asked(pipe.close, 0.2)),
    lambda pipe: pipe.send(b"b", Asked(pipe.close, 3)),
    lambda pipe: pipe.send(b"b", 0, Asked(pipe.close, 0.2)),
    lambda pipe: pipe.send_many([b"b"], 0, Asked(pipe.close, 0.2)),
    lambda pipe: pipe.send_many(closing_items(pipe)),
    lambda pipe: pipe.set_note(0, Asked(pipe.close, 3)),
    lambda pipe: pipe.set_note(Asked(pipe.close, 3), 0),
    lambda pipe: pipe.get_note(Asked(pipe.close, 3)),
]


@pytest.mark.parametrize("number", range(len(EMPTY_PIPE)))
@pytest.mark.parametrize("make", [lambda: Channel.heap(capacity=2), full], ids=["empty", "full"])
def test_an_argument_that_closes_the_channel(number: int, make: Callable[[], Channel]) -> None:
    pipe = make()
    with pytest.raises(errors.ClosedError):
        EMPTY_PIPE[number](pipe)
    assert pipe.closed


def test_a_wrong_timeout_is_refused_though_nothing_has_to_be_waited_for() -> None:
    with Channel.heap(capacity=4) as pipe:
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                pipe.send(b"x", 0, wrong)
            assert pipe.depth() == 0
        pipe.send(b"x")
        for call in (pipe.recv, pipe.recv_with_kind, lambda t: pipe.recv_many(1, t), lambda t: pipe.recv_views(1, t)):
            with pytest.raises(ValueError, match="timeout"):
                call(-1)
            with pytest.raises(TypeError):
                call("soon")
        assert pipe.depth() == 1


def test_a_list_that_changes_while_it_is_sent() -> None:
    with Channel.heap(capacity=64) as pipe:
        items: list[Any] = [b"a"] * 20
        items[3] = shrinking(items)
        try:
            sent = pipe.send_many(items)
        except TypeError:
            return  # before Python 3.12 that is no buffer
        assert sent == 20 and len(pipe.recv_many(64, 0)) == 20


@pytest.mark.parametrize("shared", [False, True])
def test_an_argument_that_closes_the_board(tmp_path: Path, shared: bool) -> None:
    calls: list[Callable[[EventBoard], object]] = [
        lambda b: b.wait(0, 0, Asked(b.close, 0.2)),
        lambda b: b.wait(0, Asked(b.close, 0), 0.2),
        lambda b: b.wait(Asked(b.close, 0), 0, 0.2),
        lambda b: b.notify(Asked(b.close, 0)),
        lambda b: b.sequence(Asked(b.close, 0)),
    ]
    for call in calls:
        board = EventBoard(tmp_path / "e" if shared else None, 4)
        with pytest.raises(errors.ClosedError):
            call(board)


def test_an_argument_that_closes_the_mutex_or_the_slab(tmp_path: Path) -> None:
    mutex = ProcessMutex(tmp_path / "m")
    with pytest.raises(errors.ClosedError):
        mutex.acquire(Asked(mutex.close, 0.2))
    for call in (
        lambda pool, ref: pool.allocate(Asked(pool.close, 10)),
        lambda pool, ref: pool.release((Asked(pool.close, ref[0]), *ref[1:])),
        lambda pool, ref: pool.read((Asked(pool.close, ref[0]), *ref[1:])),
        lambda pool, ref: pool.write((Asked(pool.close, ref[0]), *ref[1:]), b"abc"),
    ):
        pool = Slab()
        with pytest.raises(errors.ClosedError):
            call(pool, pool.allocate(10))


def test_a_number_is_asked_for_once(tmp_path: Path) -> None:
    board = EventBoard(None, Asked(int, 1, 1 << 19))
    assert board.events == 1
    with pytest.raises(IndexError):
        board.notify(1)
    with pytest.raises(IndexError):
        board.notify(1 << 63)
    assert Ring(Asked(int, 4, 1 << 20)).capacity == 4
    assert Slab([(Asked(int, 64, 1 << 29), Asked(int, 2, 1 << 23))]).stats()["classes"] == [
        {"slot_bytes": 64, "slots": 2, "active": 0}
    ]
    with Channel.heap(capacity=Asked(int, 8, 1 << 24), bytering_bytes=Asked(int, 2048, 3)) as pipe:
        assert pipe.stats()["capacity"] == 8 and pipe.stats()["bytering_bytes"] == 2048
    for wrong in (
        {"capacity": 3},
        {"capacity": 1 << 80},
        {"size_classes": [(1 << 40, 1)]},
        {"size_classes": []},
        {"max_message_bytes": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Channel.heap(**wrong)
    with pytest.raises(TypeError):
        Channel.heap(capacity=8.0)


def test_half_a_number_is_none() -> None:
    with Channel.heap(capacity=8) as pipe, EventBoard(None, 2) as board:
        calls: list[Callable[[Any], object]] = [
            lambda n: pipe.send(b"", n),
            lambda n: pipe.try_send(b"", n),
            lambda n: pipe.send_many([b""], n),
            lambda n: pipe.recv_many(n, 0),
            lambda n: pipe.recv_views(n, 0),
            lambda n: pipe.set_note(0, n),
            pipe.get_note,
            lambda n: board.wait(0, n, 0),
            board.notify,
            Ring,
            lambda n: Ring(4, n),
            lambda n: Ring(4).peek(n),
            lambda n: Ring(4).try_push((n, 0, 0, 0)),
            lambda n: Slab().allocate(n),
            lambda n: Slab().read((n, 1, 0, 0)),
            process_start_time,
            lambda n: process_alive(1, n),
        ]
        for call in calls:
            for wrong in (4.0, "4", None):
                with pytest.raises(TypeError):
                    call(wrong)
        assert pipe.depth() == 0


def test_a_path_with_a_zero_byte_names_no_file(tmp_path: Path) -> None:
    name = str(tmp_path / "a") + "\0b"
    opens: list[Callable[[], object]] = [
        lambda: Channel.create(name, role="producer"),
        lambda: Channel.open(name, role="consumer"),
        lambda: EventBoard(name, 1),
        lambda: ProcessMutex(name),
    ]
    for call in opens:
        with pytest.raises(ValueError, match="zero byte"):
            call()
    with pytest.raises(ValueError, match="no file"):
        ProcessMutex(str(tmp_path / "\ud800"))
    assert os.listdir(tmp_path) == []


def test_what_was_reserved_or_peeked_ends_with_a_push_or_a_pop() -> None:
    def entry(n: int) -> tuple[tuple[int, int, int, int], int]:
        return (n, 0, 0, 0), 0

    pushed = Ring(4)
    assert pushed.reserve(4) == 4
    pushed.try_push(*entry(7))
    with pytest.raises(ValueError, match="reserved"):
        pushed.commit([entry(n) for n in range(4)])
    assert len(pushed) == 1
    assert pushed.reserve(3) == 3
    within = ((Asked(lambda: pushed.push_many([entry(8)] * 3), 1), 0, 0, 0), 0)
    with pytest.raises(ValueError, match="reserved"):
        pushed.commit([within])
    assert [ref[0] for ref, _ in pushed.pop_many(9)] == [7, 8, 8, 8]
    popped = Ring(4)
    popped.push_many([entry(1), entry(2)])
    assert len(popped.peek(2)) == 2
    assert popped.try_pop() == entry(1)
    with pytest.raises(ValueError, match="peeked"):
        popped.release(2)
    popped.release(1)
    assert len(popped) == 0 and popped.try_pop() is None


@pytest.mark.skipif(
    not os.path.exists("/proc/self"), reason="robust mutexes and files that shrink under a mapping are Linux's"
)
class TestMutexFiles:
    def test_a_file_that_was_cut_or_emptied_locks_nothing(self, tmp_path: Path) -> None:
        for grows_again in (False, True):
            path = tmp_path / f"m{grows_again}"
            first, second = ProcessMutex(path), ProcessMutex(path)
            size = path.stat().st_size
            os.truncate(path, 0)
            if grows_again:
                os.truncate(path, size)
            for mutex in (first, second):
                with pytest.raises(errors.RegionTruncatedError):
                    mutex.acquire(0)
                mutex.close()

    def test_a_holder_is_told_and_its_page_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "m"
        held, other = ProcessMutex(path), ProcessMutex(tmp_path / "n")
        assert held.acquire(0)
        os.truncate(path, 0)
        with pytest.raises(errors.RegionTruncatedError):
            held.release()
        held.close()
        assert other.acquire(0)  # walks the thread's list of locks, in which the first still is
        other.release()
        other.close()

    def test_closed_while_a_thread_gets_the_lock(self, tmp_path: Path) -> None:
        path = tmp_path / "m"
        holder = start(
            "m = ProcessMutex(sys.argv[1]); m.acquire(60); print('held', flush=True); sys.stdin.readline(); m.release()",
            path,
        )
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        mutex, other = ProcessMutex(path), ProcessMutex(tmp_path / "n")
        outcome: list[object] = []
        inside = threading.Event()

        def take() -> None:
            inside.set()
            try:
                outcome.append(mutex.acquire(20))
            except errors.ClosedError as error:
                outcome.append(error)
            outcome.append(other.acquire(0))  # on an unmapped neighbour in the thread's list of locks this would crash
            other.release()

        thread = threading.Thread(target=take)
        thread.start()
        inside.wait(60)
        closer = threading.Thread(target=mutex.close)
        closer.start()
        holder.stdin.write("\n")
        holder.stdin.close()
        thread.join(20)
        closer.join(20)
        holder.stdin = None
        finish(holder)
        assert isinstance(outcome[0], errors.ClosedError) and outcome[1] is True
        with ProcessMutex(path) as again:  # let go by who got it from a closed handle
            assert again.acquire(60)
            again.release()


def test_the_last_one_out_finishes_the_close() -> None:
    board = EventBoard(None, 1)
    ended = threading.Event()

    def wait_long() -> None:
        with pytest.raises(errors.ClosedError):
            board.wait(0, 0, 20)
        ended.set()

    thread = threading.Thread(target=wait_long)
    thread.start()
    eventually(thread.is_alive)
    with contextlib.suppress(errors.WaitTimeoutError):
        board.close(0)
    assert ended.wait(30)
    thread.join()
    board.close()


GUARDED = """
import faulthandler, mmap
from ignis.native.outbox import MappedOutbox
report = open(os.devnull, "w")
path = sys.argv[1]

def cut(made, name, use):
    faulthandler.disable()
    faulthandler.enable(report)
    os.truncate(name, 0)
    for _ in range(2):
        try:
            use(made)
        except errors.RegionTruncatedError:
            continue
        if _:
            raise SystemExit("not noticed: " + name)

def foreign():
    with open(path + "f", "w+b") as file:
        file.truncate(4096)
        pages = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        return pages[0]
"""


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="files that shrink under a mapping are Linux's to signal")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer's own handler lies under ours")
class TestFaulthandler:
    """Python's own handler of faults, installed over ours."""

    def test_a_file_that_is_cut_is_still_an_error_and_not_the_end(self, tmp_path: Path) -> None:
        code = """
cut(EventBoard(path + "e", 4), path + "e", lambda board: board.notify(0))
time.sleep(1.1)
cut(Channel.create(path + "c", role="producer"), path + "c", lambda pipe: pipe.send(b"x"))
time.sleep(1.1)
box = MappedOutbox(capacity=4, max_message_bytes=100, path=path + "o", bell=path + "b")
cut(box, path + "o", lambda box: box.send(b"x", 0, 0))
print("alive")
"""
        assert finish(start(GUARDED + code, tmp_path / "x")) == "alive\n"

    @pytest.mark.parametrize(
        "end",
        [
            "foreign()",
            "[os.kill(os.getpid(), signal.SIGBUS) for _ in range(2)]",
            "[signal.raise_signal(signal.SIGBUS) for _ in range(2)]",
        ],
    )
    @pytest.mark.parametrize("over", ["", "faulthandler.enable(report); "])
    def test_a_fault_of_another_is_still_the_end(self, tmp_path: Path, end: str, over: str) -> None:
        code = f"board = EventBoard(path + 'e', 4)\n{over}{end}\nprint('alive')"
        assert finish(start(GUARDED + code, tmp_path / "x"), code=-signal.SIGBUS) == ""
