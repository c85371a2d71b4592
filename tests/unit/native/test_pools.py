"""The buffers of all pools of a process, by size class."""

from __future__ import annotations

import gc
from pathlib import Path

from ignis.native import Channel, Outbox, pool_classes, sum_classes
from tests.unit.native.native_support import in_child

CLASSES = ((192, 16), (7_040, 8))
"""Sizes that no other pool of the tests' process has."""


def ours() -> list[dict[str, int]]:
    gc.collect()
    sizes = [size for size, _ in CLASSES]
    return [one for one in pool_classes() if one["slot_bytes"] in sizes]


def test_channels_and_outboxes_count_while_they_are_open() -> None:
    assert ours() == []
    channel = Channel.heap(capacity=16, size_classes=CLASSES, max_message_bytes=7_000, bytering_bytes=0)
    outbox = Outbox(capacity=16, size_classes=CLASSES)
    channel.send(b"x" * 150)
    for _ in range(3):
        outbox.send(b"x" * 5_000, 0, 0)
    assert ours() == [{"slot_bytes": 192, "slots": 32, "active": 1}, {"slot_bytes": 7_040, "slots": 16, "active": 3}]
    assert channel.recv() == b"x" * 150
    assert channel.try_recv() is None  # buffers go home in batches: at the latest when there is nothing more
    count, _ = outbox.drain(16, 1 << 20, 0, 1, 0)
    outbox.settle(count)
    assert ours() == [{"slot_bytes": 192, "slots": 32, "active": 0}, {"slot_bytes": 7_040, "slots": 16, "active": 0}]
    channel.close()
    assert ours() == outbox.classes() == [
        {"slot_bytes": 192, "slots": 16, "active": 0}, {"slot_bytes": 7_040, "slots": 8, "active": 0},
    ]  # fmt: skip
    outbox.close()
    assert ours() == channel.classes() == outbox.classes() == []


def test_one_that_nobody_holds_is_forgotten() -> None:
    channel = Channel.heap(capacity=16, size_classes=CLASSES, max_message_bytes=7_000)
    assert len(ours()) == 2
    del channel
    assert ours() == []


def test_a_mapped_channel_counts_where_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "channel"
    with (
        Channel.create(path, role="producer", capacity=16, size_classes=CLASSES, max_message_bytes=7_000) as producer,
        Channel.open(path, role="consumer") as consumer,
    ):
        producer.send(b"x" * 5_000)
        assert producer.classes() == producer.stats()["classes"] == ours()
        assert [one["active"] for one in ours()] == [0, 1]
        assert consumer.classes() == []


def test_a_child_does_not_count_what_its_parent_holds() -> None:
    with Channel.heap(capacity=16, size_classes=CLASSES, max_message_bytes=7_000) as channel:
        assert len(ours()) == 2

        def check() -> None:
            assert ours() == channel.classes() == []

        in_child(check)


def test_sums() -> None:
    one = [{"slot_bytes": 256, "slots": 4, "active": 1}]
    other = [{"slot_bytes": 128, "slots": 1, "active": 0}, {"slot_bytes": 256, "slots": 2, "active": 2}]
    assert sum_classes([one, other]) == [other[0], {"slot_bytes": 256, "slots": 6, "active": 3}]
    assert sum_classes([]) == []
