"""Channels between processes, some of which are killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ignis import errors
from ignis.native import Channel
from tests.unit.native.native_support import eventually, finish, start

PRODUCE = """
with Channel.open(sys.argv[1], role="producer", timeout=10) as channel:
    total, n = int(sys.argv[2]), 0
    while n < total:
        n += channel.send_many([b"%d:" % i + b"x" * (i * 37 % 600) for i in range(n, min(n + 64, total))], timeout=20)
"""


def test_order_and_content(tmp_path: Path) -> None:
    path, total = tmp_path / "r", 50_000
    with Channel.create(path, role="consumer", capacity=256, max_message_bytes=4096) as consumer:
        child = start(PRODUCE, path, total)
        n = 0
        while n < total:
            for message in consumer.recv_many(100, timeout=20):
                assert message == b"%d:" % n + b"x" * (n * 37 % 600)
                n += 1
        with pytest.raises(errors.ClosedError):
            consumer.recv(20)
        finish(child)


def test_ping_pong(tmp_path: Path) -> None:
    there = Channel.create(tmp_path / "there", role="producer", capacity=16)
    back = Channel.create(tmp_path / "back", role="consumer", capacity=16)
    child = start(
        """
with Channel.open(sys.argv[1], role="consumer") as there, Channel.open(sys.argv[2], role="producer") as back:
    for _ in range(2000):
        kind, message = there.recv_with_kind(20)
        back.send(message, kind)
""",
        tmp_path / "there",
        tmp_path / "back",
    )
    for i in range(2000):
        there.send(b"%d" % i, i)
        assert back.recv_with_kind(20) == (i, b"%d" % i)
        if i % 500 == 0:
            time.sleep(0.05)  # long enough for the other to fall asleep
    finish(child)
    there.close()
    back.close()


def test_what_a_killed_producer_sent_is_received(tmp_path: Path) -> None:
    path = tmp_path / "r"
    child = start(
        """
channel = Channel.create(sys.argv[1], role="producer", capacity=1024)
for i in range(1000):
    channel.send(b"%d" % i)
os.kill(os.getpid(), signal.SIGKILL)
""",
        path,
    )
    finish(child, code=-signal.SIGKILL)
    with Channel.open(path, role="consumer") as consumer:
        got: list[bytes] = []
        while len(got) < 1000:
            got += consumer.recv_many(300)
        assert got == [b"%d" % i for i in range(1000)]
        assert consumer.peer_alive() is False
        began = time.monotonic()
        with pytest.raises(errors.PeerDiedError):
            consumer.recv(20)
        assert time.monotonic() - began < 5
        with Channel.open(path, role="producer") as producer:  # the role is free again
            producer.send(b"next")
            assert consumer.recv() == b"next"


def test_a_consumer_asleep_notices_the_death(tmp_path: Path) -> None:
    with Channel.create(tmp_path / "r", role="consumer", capacity=16) as consumer:
        child = start(
            "c = Channel.open(sys.argv[1], role='producer'); print('in', flush=True); time.sleep(60)", tmp_path / "r"
        )
        eventually(consumer.peer_alive)
        with pytest.raises(errors.WaitTimeoutError):
            consumer.recv(0.2)
        child.kill()
        with pytest.raises(errors.PeerDiedError):
            consumer.recv(20)
        finish(child, code=-signal.SIGKILL)


def test_a_producer_goes_on_after_its_consumer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with Channel.create(
        path, role="producer", capacity=16, size_classes=((128, 16),), max_message_bytes=128, bytering_bytes=0
    ) as producer:
        producer.send_many([b"%d" % i for i in range(16)])
        child = start(
            """
channel = Channel.open(sys.argv[1], role="consumer")
views = channel.recv_views(6)
os.kill(os.getpid(), signal.SIGKILL)
""",
            path,
        )
        finish(child, code=-signal.SIGKILL)
        with pytest.raises(errors.PeerDiedError):
            producer.send(b"late", timeout=20)  # every slot is in the ring or was in the dead one's hands
        with Channel.open(path, role="consumer") as consumer:
            # The dead one's six slots come back; what it had not taken is all here.
            assert consumer.recv_many(100) == [b"%d" % i for i in range(6, 16)]
            for i in range(100):
                producer.send(b"%d" % i, timeout=30)
                assert consumer.recv(30) == b"%d" % i
            assert consumer.recv_many(1, timeout=0) == []
        assert producer.stats()["active"] == 0
        assert producer.stats()["bad_returns"] == 0


def expect_in_order(consumer: Channel, n: int, until: float) -> int:
    """Receives messages n, n + 1, ... until the time is reached; returns the next number."""
    while time.monotonic() < until:
        for message in consumer.recv_many(7, timeout=20):
            assert message == b"%d:" % n + b"x" * (n * 37 % 600)
            n += 1
    return n


def test_killed_at_random_nothing_committed_is_lost(tmp_path: Path) -> None:
    """A producer is killed over and over in the middle of sending; what arrives is always a gapless prefix."""
    for round_ in range(6):
        path = tmp_path / f"r{round_}"
        with Channel.create(path, role="consumer", capacity=64, max_message_bytes=1024) as consumer:
            child = start(PRODUCE.replace("with Channel", "print('go', flush=True)\nwith Channel"), path, 10_000_000)
            assert child.stdout is not None
            child.stdout.readline()
            eventually(consumer.depth)
            until = time.monotonic() + 0.05 + round_ * 0.02
            n = expect_in_order(consumer, 0, until)
            child.kill()
            with pytest.raises(errors.PeerDiedError):
                expect_in_order(consumer, n, time.monotonic() + 20)
            finish(child, code=-signal.SIGKILL)
