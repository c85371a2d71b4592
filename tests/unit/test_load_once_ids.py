"""How long the embedded store remembers an id, and that it forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
from ignis.storage.clock import StoreClock
from ignis.storage.embedded import load_once
from ignis.storage.embedded.load_once import forget_hour

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("remember_s", [0.001, 1, 3_600, 5_000, 86_400, 7 * 86_400, 365 * 86_400])
def test_long_enough_and_not_much_longer(remember_s: float) -> None:
    hours = set()
    for minute in range(0, 60 * 24, 7):
        now_ms = NOW_MS + minute * 60_000
        until_ms = now_ms + int(remember_s * 1000)
        hour = forget_hour(now_ms, until_ms)
        assert hour * HOUR_MS >= until_ms
        assert hour * HOUR_MS <= until_ms + max(HOUR_MS, (until_ms - now_ms) // 2)
        hours.add(hour)
    # Loads of one day that remember for equally long share a few times, so that a lookup asks few.
    assert len(hours) <= 26 if remember_s <= 5_000 else len(hours) <= 3 + 24 * HOUR_MS // max(1, int(remember_s * 500))


def load(store: Any, first: int, count: int, remember_s: float) -> int:
    batch = PackedBatch.pack(
        [encode_record(b"m", id=number.to_bytes(16, "big")) for number in range(first, first + count)]
    )
    return int(store.magazines.load_once("m", [(0, batch)], None, remember_s)[0].loaded)


def test_what_is_over_is_forgotten_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [float(NOW_MS // 1000)]
    monkeypatch.setattr(load_once, "_FORGOTTEN_AT_ONCE", 60)
    with open_store(f"embedded://{tmp_path}/store") as store:
        any_store: Any = store
        any_store.directory.clock = StoreClock(0, lambda: int(clock[0] * 1000))
        store.magazines.declare("m", 1)
        assert load(store, 0, 100, 3_600) == 100
        assert load(store, 0, 100, 30 * 86_400) == 0
        clock[0] += 3_599
        assert load(store, 0, 100, 3_600) == 0, "remembered as long as was asked for"
        clock[0] += 2 * 3_600
        # The first load's ids are over. Sixty are removed with this one, all are taken for new.
        assert load(store, 0, 100, 3_600) == 100
        assert load(store, 1_000, 1, 3_600) == 1
        clock[0] += 3_600
        assert load(store, 0, 101, 3_600) == 1


def test_the_hour_may_pass_before_the_lock_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are made before the transaction begins; what it stores is what it would have made itself."""
    clock = [float(NOW_MS // 1000)]
    with open_store(f"embedded://{tmp_path}/store") as store:
        any_store: Any = store
        any_store.directory.clock = StoreClock(0, lambda: int(clock[0] * 1000))
        store.magazines.declare("m", 1)
        real = load_once.id_keys

        def later(*args: object) -> object:
            clock[0] += 3_600
            return real(*args)

        monkeypatch.setattr(load_once, "id_keys", later)
        assert load(store, 0, 100, 7_200) == 100
        monkeypatch.setattr(load_once, "id_keys", real)
        assert load(store, 50, 100, 7_200) == 50
        clock[0] += 3_599
        assert load(store, 0, 100, 7_200) == 0, "remembered as long as was asked for"


def test_another_load_of_the_same_ids_may_come_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After they were found to be new, and before they are stored: one of the two stores each."""
    with open_store(f"embedded://{tmp_path}/store") as store:
        store.magazines.declare("m", 1)
        real = load_once.forget_hour
        others: list[int] = []

        def between(*args: int) -> int:
            if not others:
                others.append(0)
                others[0] = load(store, 40, 20, 7_200)
            return real(*args)

        monkeypatch.setattr(load_once, "forget_hour", between)
        assert load(store, 0, 50, 7_200) + others[0] == 60
        assert others == [20]
        assert len(store.magazines.scan("m", limit=1_000)) == 60
