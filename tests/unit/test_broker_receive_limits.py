"""Who is read while frames are arriving that hold more memory than they may: the rules alone, without a network."""

from __future__ import annotations

import random
from typing import cast

import pytest

from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.session import Session
from ignis.native import encode_frame
from ignis.native.wire import FrameReader, ReadArea

LIMIT = 20_000


class FakeSession:
    """As much of a session as is looked at."""

    def __init__(self, area: ReadArea) -> None:
        self.arriving = FrameReader(area, 1 << 20)
        self.unread = False

    def pause(self, reason: str) -> None:
        assert not self.unread
        self.unread = True

    def resume(self, reason: str) -> None:
        assert self.unread
        self.unread = False


class Broker:
    """Connections that read in turn, and a clock."""

    def __init__(self, connections: int) -> None:
        self.area = ReadArea(65_536)
        self.receiving = ReceiveLimits(self.area, LIMIT, 10)
        self.sessions = [FakeSession(self.area) for _ in range(connections)]
        self.now = 0.0
        self.most = 0

    def read(self, number: int, data: bytes) -> bytes:
        """Gives a connection as much as it reads at once; returns the rest."""
        session = self.sessions[number]
        assert not session.unread
        view = session.arriving.get_buffer()
        taken = min(len(view), len(data))
        view[:taken] = data[:taken]
        view.release()
        done = session.arriving.received(taken)
        self.receiving.read(cast(Session, session), bool(done), self.now)
        self.most = max(self.most, self.area.carried_bytes)
        return data[taken:]

    def leave(self, number: int) -> None:
        self.receiving.left(cast(Session, self.sessions[number]))

    def late(self, now: float) -> list[int]:
        self.now = now
        return [self.sessions.index(cast(FakeSession, one)) for one, _ in self.receiving.overdue(now)]


def frame(size: int) -> bytes:
    return encode_frame(7, 1, bytes(size - 14))


@pytest.mark.parametrize("seed", range(20))
def test_every_frame_arrives_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    broker = Broker(8)
    left = [b"".join(frame(rng.choice([20, 700, 9_000, 30_000, 60_000])) for _ in range(6)) for _ in range(8)]
    for _ in range(100_000):
        ready = [n for n in range(8) if left[n] and not broker.sessions[n].unread]
        if not ready:
            break
        number = rng.choice(ready)
        piece = left[number][: rng.choice([10, 500, 5_000])]
        left[number] = broker.read(number, piece) + left[number][len(piece) :]
    assert not any(left)
    assert (broker.area.carried_bytes, broker.receiving.waiting) == (0, 0)
    assert broker.area.read_bytes == 65_536
    # The limit, one frame that goes on regardless, and the beginnings that nobody is asked for.
    assert broker.most <= LIMIT + 60_000 + 8 * 5_000


def test_what_was_promised_to_one_is_not_promised_to_the_next() -> None:
    """All that can be read are read once before any of them is read again, as an event loop does it."""
    broker = Broker(16)
    left = [frame(60_000) for _ in range(16)]
    while any(left):
        for number in [n for n in range(16) if left[n] and not broker.sessions[n].unread]:
            piece = left[number][:1_000]
            left[number] = broker.read(number, piece) + left[number][len(piece) :]
    # The limit, one frame that goes on regardless, and the beginnings that came when everything was promised.
    assert broker.most <= LIMIT + 60_000 + 6 * 1_000


def test_the_first_in_line_goes_first() -> None:
    broker = Broker(4)
    for number in range(4):
        broker.read(number, frame(60_000)[:8_000])
    # 8,000 each, and 16,000 wanted: the second finds it used up and goes on regardless, the others wait.
    waits = [one.unread for one in broker.sessions]
    assert waits == [False, False, True, True] or waits == [False, True, True, True]
    assert broker.receiving.waiting == sum(waits)
    assert broker.area.read_bytes == 4_096
    first = waits.index(True)
    for number in range(first):
        broker.leave(number)
    assert not broker.sessions[first].unread


def test_one_that_leaves_the_line_is_forgotten() -> None:
    broker = Broker(5)
    for number in range(5):
        broker.read(number, frame(60_000)[:8_000])
    broker.leave(4)
    assert broker.receiving.waiting == [one.unread for one in broker.sessions[:4]].count(True)
    for number in range(4):
        broker.leave(number)
    assert (broker.area.carried_bytes, broker.receiving.waiting) == (0, 0)


def test_small_frames_pass_by() -> None:
    broker = Broker(6)
    for number in range(5):
        broker.read(number, frame(60_000)[:8_000])
    for _ in range(100):
        assert broker.read(5, frame(900)) == b""
        assert not broker.sessions[5].unread


def test_a_frame_has_its_time() -> None:
    broker = Broker(3)
    broker.read(0, frame(1_000)[:100])
    broker.read(1, frame(1 << 20)[:100])
    assert broker.read(2, frame(100)) == b""
    assert broker.late(9) == []
    broker.read(0, b"x")
    assert broker.late(10.5) == [0], "a byte now and then does not help"
    assert broker.late(20.5) == [0, 1], "as long again for a MiB"
    broker.leave(0)
    assert broker.late(20.6) == [1]


def test_a_new_frame_has_new_time() -> None:
    broker = Broker(1)
    broker.late(0)
    broker.read(0, frame(100)[:50])
    broker.now = 8
    broker.read(0, frame(100)[50:] + frame(100)[:50])
    assert broker.late(17) == []
    assert broker.late(18.2) == [0]


def test_time_in_which_nobody_reads_does_not_count() -> None:
    broker = Broker(1)
    broker.late(0)
    broker.read(0, frame(100)[:50])
    broker.late(1)
    broker.sessions[0].unread = True
    for now in range(2, 100):
        assert broker.late(now) == []
    broker.sessions[0].unread = False
    assert broker.late(107) == []
    assert broker.late(108.5) == [0]


def test_the_slow_make_room_for_those_who_wait() -> None:
    broker = Broker(4)
    broker.late(0)
    for number in range(4):
        broker.read(number, frame(60_000)[:8_000])
    waits = [number for number in range(4) if broker.sessions[number].unread]
    assert len(waits) >= 2
    assert broker.late(0.9) == []
    # 10 s for a frame of this size, and a tenth of it while somebody waits; the time of those who wait stands still.
    assert broker.late(1.2) == [number for number in range(4) if number not in waits]


def test_all_but_the_first_wait_for_some_time_only() -> None:
    broker = Broker(5)
    broker.late(0)
    for number in range(5):
        broker.read(number, frame(60_000)[:8_000])
    first, *others = [number for number in range(5) if broker.sessions[number].unread]
    broker.now = 9
    late = broker.late(11)
    assert first not in late
    assert set(late) & set(others)
    for number in late:
        broker.leave(number)
    assert not broker.sessions[first].unread
    assert broker.late(11.1) == []


def test_the_last_is_served_when_the_time_of_those_before_is_over() -> None:
    """They hold all memory and send no more; it came a moment after them, and is looked at in the same moment."""
    broker = Broker(30)
    broker.late(0)
    good = 29
    for number in range(29):
        broker.read(number, frame(60_000)[:5_000])
    broker.now = 0.1
    rest = broker.read(good, frame(50_000))
    now = 0.2
    while rest:
        now += 0.25
        assert now < 25
        for number in broker.late(now):
            assert number != good
            broker.leave(number)
        while rest and not broker.sessions[good].unread:
            rest = broker.read(good, rest)
    assert broker.sessions[good].arriving.buffered_bytes == 0


def test_nobody_is_hurried_while_there_is_memory() -> None:
    broker = Broker(2)
    broker.late(0)
    for number in range(2):
        broker.read(number, frame(60_000)[:2_000])
    assert broker.late(9) == []


def test_what_is_published_counts_until_it_is_stored() -> None:
    """No frame needs more memory meanwhile, and who stands in line for that is not late."""
    broker = Broker(4)
    broker.late(0)
    broker.receiving.count_backlog(LIMIT + 1)
    assert broker.receiving.crowded
    assert broker.area.read_bytes == 4_096
    for number in range(4):
        broker.read(number, frame(9_000)[:4_096])
    assert [one.unread for one in broker.sessions] == [True] * 4
    for now in range(1, 100):
        assert broker.late(now) == []
    broker.receiving.count_backlog(-LIMIT - 1)
    for number in range(4):
        assert not broker.sessions[number].unread
        broker.leave(number)
    assert broker.area.read_bytes == 65_536


def test_reads_are_wide_again_without_a_frame_that_arrives() -> None:
    broker = Broker(1)
    broker.receiving.count_backlog(LIMIT + 1)
    broker.receiving.count_backlog(-LIMIT - 1)
    assert broker.area.read_bytes == 65_536


def test_what_was_begun_and_what_waits_are_one_limit() -> None:
    """The first in line goes on regardless of what others have begun only while little waits for the store."""
    broker = Broker(4)
    broker.receiving.count_backlog(LIMIT // 3)
    for number in range(4):
        broker.read(number, frame(18_000)[:6_000])
    assert broker.receiving.held_bytes <= LIMIT + 4 * 6_000
    waiting = broker.receiving.waiting
    assert waiting == sum(one.unread for one in broker.sessions) >= 3
    broker.receiving.count_backlog(LIMIT // 4 - LIMIT // 3)
    assert broker.receiving.waiting < waiting
