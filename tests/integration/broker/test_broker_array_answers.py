"""Array queues through a broker whose frames have no room for all that is asked for: nothing is lost, and order holds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ignis.array_queue import ArrayQueue
from ignis.broker.client import store_requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.errors import FrameTooLargeError, MessageTooLargeError
from ignis.storage import open_store
from ignis.storage.base import ArrayStore
from tests.integration.broker.test_broker_hostile import stuck_store
from tests.support import eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration

FRAME = 1 << 20


def stored(broker: RunningBroker) -> ArrayStore:
    """The array queues of the store behind the broker; a client must have said who it is."""
    return broker.broker.applications[0].store.arrays


def values(count: int, size: int) -> list[bytes]:
    return [bytes([number]) * size for number in range(count)]


def drained(queue: ArrayQueue, limit: int) -> list[list[Any]]:
    """What each call gave, until one gives nothing."""
    found = []
    while one := queue.dequeue_many(limit):
        found.append(one)
    return found


def test_more_than_a_frame_comes_in_several_calls(memory_url: str) -> None:
    with running(memory_url, settings={"max_frame_bytes": FRAME}) as broker, open_store(broker.url) as store:
        queue, sent = ArrayQueue(store, "q"), values(20, 200_000)
        for one in sent:
            queue.enqueue(one)
        assert queue.peek_many(20) == sent[:2], "half a frame"
        calls = drained(queue, 20)
        assert [len(one) for one in calls] == [2] * 10
        assert list(itertools.chain(*calls)) == sent


def test_a_client_of_smaller_frames_is_given_what_it_can_receive(memory_url: str) -> None:
    with running(memory_url) as broker, open_store(broker.url, max_frame_bytes=1 << 16) as store:
        queue, sent = ArrayQueue(store, "q"), values(10, 20_000)
        queue.enqueue_many(sent[:3])
        for one in sent[3:]:
            queue.enqueue(one)
        calls = drained(queue, 10)
        assert [len(one) for one in calls] == [3, 3, 3, 1]
        assert list(itertools.chain(*calls)) == sent
        stored(broker).enqueue("q", "Q", [b"x" * 100_000])
        for read in (queue.peek, queue.dequeue):
            with pytest.raises(MessageTooLargeError) as raised:
                read()
            assert (raised.value.setting, raised.value.part) == ("client.max_frame_bytes", "value")
        assert len(queue) == 1


def test_a_value_that_no_frame_can_bring_stays_where_it_is(memory_url: str) -> None:
    with running(memory_url, settings={"max_frame_bytes": FRAME}) as broker, open_store(broker.url) as store:
        queue = ArrayQueue(store, "q")
        queue.enqueue(1)
        stored(broker).enqueue("q", "Q", [bytes(FRAME), 2])
        assert queue.dequeue_many(9) == [1]
        for read in (queue.peek, queue.dequeue):
            with pytest.raises(MessageTooLargeError) as raised:
                read()
            assert (raised.value.setting, raised.value.part) == ("broker.max_frame_bytes", "value")
        assert len(queue) == 2
        assert stored(broker).dequeue("q", "Q", 9) == [bytes(FRAME), 2]


def test_a_value_that_no_frame_could_bring_back_is_not_taken(memory_url: str) -> None:
    """Floats of four bytes are kept as ones of eight."""
    floats = b"\xdd" + (200_000).to_bytes(4, "big") + b"\xca\x3f\x80\x00\x00" * 200_000
    head = b"\x93" + pack("a")[4:] + pack("Q")[4:] + b"\x91" + floats
    assert len(head) < FRAME - 100
    with running(memory_url, settings={"max_frame_bytes": FRAME}) as broker, open_store(broker.url) as store:
        with Wire(broker.port) as wire:
            wire.greet()
            wire.send(Command.ARRAY_ENQUEUE, 2, len(head).to_bytes(4, "big") + head)
            assert (failure := wire.failure()).code == "message_too_large"
            assert "broker.max_frame_bytes" in failure.message
        with pytest.raises(FrameTooLargeError):
            store.arrays.enqueue("a", "Q", [bytes(FRAME)])
        assert store.arrays.size("a", "Q") == 0


def test_nothing_is_removed_for_a_connection_that_is_gone(memory_url: str) -> None:
    """What ARRAY_DEQUEUE removes is in its answer alone."""
    with running(memory_url, settings={"store_threads": 1}) as broker, broker.client() as client:
        client.ask(store_requests.array_enqueue("a", "Q", [1, 2]))
        with stuck_store(broker) as go_on, Wire(broker.port) as busy, Wire(broker.port) as gone:
            for wire in (busy, gone):
                wire.greet()
            busy.send(Command.ARRAY_ENQUEUE, 2, pack(["a", "Q", [3]]))
            application = broker.broker.applications[0]
            eventually(lambda: application.calls == 1)
            gone.send(Command.ARRAY_DEQUEUE, 2, pack(["a", "Q", [], 9]))
            eventually(lambda: application.calls == 2)
            sessions = len(broker.broker.sessions)
            gone.close()
            eventually(lambda: len(broker.broker.sessions) == sessions - 1)
            go_on.set()
            assert busy.receive()[0] == Command.RESULT
            eventually(lambda: application.calls == 0)
        assert client.ask(store_requests.array_peek("a", "Q", 9)) == [1, 2, 3]
