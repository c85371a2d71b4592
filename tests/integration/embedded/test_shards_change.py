"""Processes that run go on where another gives their queue more shards, or fewer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis.native import shard_for_key
from ignis.publisher import Publisher

KEYS = [f"key-{n}" for n in range(200)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ignis.Ignis]:
    # Each load looks at what is stored.
    with ignis.Ignis(f"embedded://{tmp_path}/store", refresher={"watch_s": 0.001}) as app:
        app.queue("jobs", dict, shards=16).open()
        yield app


def give(folder: Path, shards: int) -> None:
    """As another process does."""
    with ignis.Ignis(f"embedded://{folder}/store") as other:
        other.queue("jobs", dict, shards=shards).open()


def shards_of_keys(app: ignis.Ignis) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for one in app.queue("jobs", dict).main.peek(10_000):
        found.setdefault(str(one.envelope.key), set()).add(one.shard)
    return found


@pytest.mark.parametrize("shards", [3, 40])
@pytest.mark.parametrize("way", ["publish", "publish_many", "publisher"])
def test_who_publishes_follows_the_number_of_shards(
    running: ignis.Ignis, way: str, shards: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = running.queue("jobs", dict)
    publisher: Publisher[dict[str, str]] = queue.publisher()
    publisher.send({}).result(30)
    queue.purge()
    give(tmp_path, shards)
    with caplog.at_level(logging.WARNING, "ignis.magazine"), publisher:
        if way == "publish":
            placed = [queue.publish({"key": key}, key=key) for key in KEYS]
            assert {one.shard for one in placed} <= set(range(shards))
        elif way == "publish_many":
            queue.publish_many([{"key": key} for key in KEYS], keys=KEYS)
        else:
            for receipt in [publisher.send({"key": key}, key=key) for key in KEYS]:
                receipt.result(30)
        assert publisher.failed == 0
    assert shards_of_keys(running) == {key: {shard_for_key(key.encode(), shards)} for key in KEYS}
    assert f"has {shards} shards by now, it had 16" in caplog.text


def test_what_lies_in_the_ring_is_routed_anew(running: ignis.Ignis, tmp_path: Path) -> None:
    """It was given its shard before the change."""
    queue = running.queue("jobs", dict)
    with queue.publisher() as publisher:
        for turn in range(20):
            for key in KEYS:
                publisher.send({"turn": turn}, key=key)
            if turn == 10:
                publisher.flush()
                queue.purge()
                give(tmp_path, 40)
                queue.publish({}, key=KEYS[0])
    assert publisher.failed == 0
    assert shards_of_keys(running) == {key: {shard_for_key(key.encode(), 40)} for key in KEYS}


def test_a_refused_shard_is_learnt_from_the_refusal(tmp_path: Path) -> None:
    """Where nothing has looked at the queue in between."""
    url = f"embedded://{tmp_path}/store"
    with ignis.Ignis(url, refresher={"watch_s": 300}) as app:
        queue = app.queue("jobs", dict, shards=16)
        queue.open()
        give(tmp_path, 2)
        for key in KEYS:
            queue.publish({}, key=key)
        # What lay below both numbers was taken before the first refusal.
        assert sum(len(shards) for shards in shards_of_keys(app).values()) == len(KEYS)
        assert {shard for shards in shards_of_keys(app).values() for shard in shards} == {0, 1}
