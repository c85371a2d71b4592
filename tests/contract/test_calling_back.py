"""`MagazineStore.on_load`: a call after a load, for who waits without a thread."""

from __future__ import annotations

import threading

import pytest

from ignis.errors import ClosedError, QueueNotFoundError
from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind, records
from tests.support import WAIT_S, eventually


@pytest.fixture
def listened(magazines: MagazineStore, durability: str) -> MagazineStore:
    """With an empty magazine ``l`` of that durability, on a store that calls back; others say that they do not."""
    magazines.declare("l", 2, durability)
    if not magazines.calls_back:
        assert magazines.on_load("l", magazines.wait("l", -1, 0), lambda: None) is None
        pytest.skip("this store does not call back")
    return magazines


def test_one_load_one_call(listened: MagazineStore) -> None:
    calls: list[int] = []
    listened.on_load("l", listened.wait("l", -1, 0), lambda: calls.append(1))
    listened.load_records("m", 0, records("of another"))
    assert calls == []
    listened.load_records("l", 0, records("a"))
    eventually(lambda: calls)
    listened.load_records("l", 1, records("b"))
    listened.wake("l")
    assert listened.wait("l", -1, 0) >= 3
    assert calls == [1]


def test_what_was_loaded_meanwhile_is_told_at_once(listened: MagazineStore) -> None:
    called = threading.Event()
    seen = listened.wait("l", -1, 0)
    listened.load_records("l", 0, records("a"))
    listened.on_load("l", seen, called.set)
    assert called.wait(WAIT_S)


def test_a_wake_calls_too(listened: MagazineStore) -> None:
    called = threading.Event()
    listened.on_load("l", listened.wait("l", -1, 0), called.set)
    listened.wake("l")
    assert called.wait(WAIT_S)


def test_a_wish_that_was_taken_back_is_not_granted(listened: MagazineStore) -> None:
    calls: list[str] = []
    seen = listened.wait("l", -1, 0)
    cancel = listened.on_load("l", seen, lambda: calls.append("first"))
    listened.on_load("l", seen, lambda: calls.append("second"))
    assert cancel is not None
    cancel()
    cancel()
    listened.load_records("l", 0, records("a"))
    eventually(lambda: calls)
    assert calls == ["second"]


def test_every_load_is_told_to_somebody(listened: MagazineStore) -> None:
    """Again and again, as a consumer does it: read the number, claim, wait. Nothing is loaded between two of these unseen."""
    got, done = [], threading.Event()
    loads = 300

    def look() -> None:
        while True:
            seen = listened.wait("l", -1, 0)
            result = listened.fire("l", 100, "me")
            got.extend(result.claims)
            if sum(len(claim.pointers) for claim in got) == loads:
                done.set()
                return
            if not result.claims:
                rung = threading.Event()
                listened.on_load("l", seen, rung.set)
                if not rung.wait(WAIT_S):
                    return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    for number in range(loads):
        listened.load_records("l", number % 2, records(str(number)))
    assert done.wait(WAIT_S)
    looking.join(WAIT_S)


def test_the_end_of_the_store_is_told(listened: MagazineStore, store: Store) -> None:
    called = threading.Event()
    listened.on_load("l", listened.wait("l", -1, 0), called.set)
    store.close()
    assert called.wait(WAIT_S)
    with pytest.raises(ClosedError):
        listened.on_load("l", 0, called.set)


def test_another_store_of_the_process_tells_and_its_end_does_not(listened: MagazineStore, kind: Kind) -> None:
    other = kind.open()
    called = threading.Event()
    listened.on_load("l", listened.wait("l", -1, 0), called.set)
    other.close()
    assert not called.wait(0.1)
    third = kind.open()
    third.magazines.load_records("l", 0, records("a"))
    assert called.wait(WAIT_S)


def test_a_magazine_that_is_not_there(listened: MagazineStore) -> None:
    with pytest.raises(QueueNotFoundError):
        listened.on_load("nothing", 0, lambda: None)


def test_a_magazine_that_is_removed_is_told(listened: MagazineStore) -> None:
    called = threading.Event()
    listened.on_load("l", listened.wait("l", -1, 0), called.set)
    listened.drop("l")
    assert called.wait(WAIT_S)


def test_who_waits_is_known_where_the_store_can_tell(magazines: MagazineStore, durability: str) -> None:
    magazines.declare("l", 2, durability)
    if magazines.awaited("l") is None:
        pytest.skip("this store cannot tell")
    assert magazines.awaited("l") is False
    seen, over = magazines.wait("l", -1, 0), threading.Event()

    def wait() -> None:
        while not over.is_set():
            magazines.wait("l", magazines.wait("l", -1, 0), WAIT_S)

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        eventually(lambda: magazines.awaited("l"))
        magazines.wake("l")
        eventually(lambda: magazines.awaited("l"), "it waits anew")
        magazines.load_records("l", 0, records("a"))
        eventually(lambda: magazines.awaited("l"))
    finally:
        over.set()
        magazines.wake("l")
        waiting.join(WAIT_S)
    magazines.wake("l")
    assert magazines.awaited("l") is False
    if magazines.calls_back:
        cancel = magazines.on_load("l", magazines.wait("l", -1, 0), lambda: None)
        assert cancel is not None and magazines.awaited("l")
        magazines.load_records("l", 0, records("b"))
        assert magazines.awaited("l") is False
    assert seen >= 0
