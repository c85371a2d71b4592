"""Damage in what stands before the messages of a batch: heads of the entry and of its parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import ignis
from ignis.cli import main
from ignis.storage.embedded.log_files import SECTOR_BYTES, Segment
from tests.support.embedded import newest_segment

pytestmark = pytest.mark.integration

_BATCH = 600  # of parts of 256


def filled(path: Path) -> tuple[Path, int]:
    """Three batches; the segment's file, and where the entry of the second is in it."""
    with ignis.Ignis(f"embedded://{path}") as app:
        queue = app.queue("q", str, shards=1)
        for batch in range(3):
            queue.publish_many(f"{batch}-{number:04}-{'z' * 40}" for number in range(_BATCH))
    file = newest_segment(path / "sync")
    segment = Segment(file)
    try:
        loads, position = [], segment.base
        while (entry := segment.entry_at(position)) is not None:
            if entry.kind in ("load", "once") and entry.next - position > 20_000:
                loads.append(position)
            position = entry.next
        return file, loads[1] - segment.base + SECTOR_BYTES
    finally:
        segment.close()


def doctor(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    main(["doctor", str(path), "--json", *arguments])
    document = json.loads(capsys.readouterr().out)
    return [one for one in document["classes"][0]["problems"] if one["code"] == "log-damaged"]


def delivered(path: Path) -> tuple[int, int, int, int]:
    """Messages, corrupt ones, and the figures."""
    with ignis.Ignis(f"embedded://{path}") as app:
        queue = app.queue("q", str)
        figures = app.store.directory.log("sync").figures()  # type: ignore[attr-defined]
        seen, corrupt = set(), 0
        while fired := queue.main.fire(1000):
            for one in fired:
                if one.corrupt:
                    corrupt += 1
                else:
                    seen.add(one.message)
        return len(seen), corrupt, figures["salvaged_records"], figures["damaged_records"]


def damage(file: Path, at: int, what: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(at)
        opened.write(what)


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize(
    ("offset", "count"),
    [(40, 8), (46, 2), (44, 4), (32, 4), (36, 4), (48, 8), (32, 40), (0, 60), (0, 72)],
    ids=["first", "two of first", "four of first", "shard", "bytes", "count", "part", "entry", "all heads"],
)
@pytest.mark.parametrize("noise", [False, True])
def test_a_damaged_head_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offset: int, count: int, noise: bool, repaired: bool
) -> None:
    path = tmp_path / "store"
    file, at = filled(path)
    zeros = b"\xff" * count if offset == 32 and count == 4 else bytes(count)  # the shard is 0 as it stands
    damage(file, at + offset, os.urandom(count) if noise else zeros)
    [problem] = doctor(path, capsys, *(["--repair"] if repaired else []))
    assert (problem["readable"], problem["unreadable"]) == (_BATCH, 0)
    salvaged = 0 if repaired else _BATCH
    assert delivered(path) == (3 * _BATCH, 0, salvaged, 0)


@pytest.mark.parametrize("repaired", [False, True])
def test_what_is_lost_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, repaired: bool
) -> None:
    """The index of the first part is gone, and with it which messages these were."""
    path = tmp_path / "store"
    file, at = filled(path)
    damage(file, at, bytes(4096))
    [problem] = doctor(path, capsys, *(["--repair"] if repaired else []))
    assert (problem["readable"], problem["unreadable"]) == (_BATCH - 256, 256)
    salvaged = (0, 0) if repaired else (_BATCH - 256, 256)
    assert delivered(path) == (3 * _BATCH - 256, 0, *salvaged)
    assert ("(256 cannot)" in caplog.text) is not repaired
