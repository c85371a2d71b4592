"""The link between a supervisor and its processes: neither may ever wait for the other, and no message may be torn."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from ignis.errors import ClosedError
from ignis.supervisor import control_pipe as link_module
from ignis.supervisor.control_pipe import Link
from tests.support import WAIT_S, eventually

Ends = tuple[Link, Link]


@pytest.fixture
def ends() -> Iterator[Ends]:
    mine, theirs = Link.pair()
    other = Link(theirs)
    yield mine, other
    mine.close()
    other.close()


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    one, other = ends
    for n in range(500):
        one.send(n=n, filler="é" * n)
    found: list[int] = []

    def all_there() -> bool:
        one.flush(0)
        found.extend(message["n"] for message in other.receive(0.1))
        return len(found) >= 500

    eventually(all_there)
    assert found == list(range(500))
    assert other.receive(0) == []


def test_an_end_that_does_not_read_holds_nobody_up_and_tears_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_MAX_BUFFERED_BYTES", 1 << 20)
    one, other = ends
    for n in range(20_000):
        one.send(n=n, filler="x" * 200)
    found: list[int] = []

    def drained() -> bool:
        one.flush(0)
        some = [message["n"] for message in other.receive(0)]
        found.extend(some)
        return not some

    eventually(drained)
    assert not other.ended
    assert found == list(range(len(found))), "the first ones, whole; the rest was dropped"
    assert 1_000 < len(found) < 20_000
    one.send(n=-1)
    assert [message["n"] for message in other.receive(WAIT_S)] == [-1], "it goes on"


def test_the_other_ones_end_is_noticed(ends: Ends) -> None:
    one, other = ends
    one.send(n=1)
    one.close()
    assert [message["n"] for message in other.receive(WAIT_S)] == [1]
    assert other.receive(WAIT_S) == []
    assert other.ended
    with pytest.raises(ClosedError):
        other.send(n=2)


def test_what_is_no_message_ends_it() -> None:
    mine, theirs = Link.pair()
    with theirs:
        theirs.sendall(b'{"n": 1}\nnonsense\n{"n": 2}\n')
        assert [message["n"] for message in mine.receive(WAIT_S)] == [1]
        assert mine.ended
    mine.close()


def test_what_a_handler_starts_does_not_keep_it_open() -> None:
    mine, theirs = Link.pair()
    os.set_inheritable(theirs.fileno(), True)
    link = Link(socket.socket(fileno=theirs.detach()))
    assert os.get_inheritable(link.fileno()) is False
    link.close()
    mine.close()
