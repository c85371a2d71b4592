"""Clocks that are moved by hand, and mistakes with due times that are planted for `test_later_model.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ignis.native import PackedBatch
from ignis.storage import clock as store_clock
from ignis.storage.base import MagazineStore, Transfer
from ignis.storage.later import Delayed
from ignis.storage.records import group_pointers

__all__ = ["MISTAKES", "QUEUE", "Hand", "Mistake"]

QUEUE = "jobs"
_RISING_NS = time.clock_gettime_ns(store_clock._CLOCK) // 1_000_000 * 1_000_000
_WALL_NS = time.time_ns() // 1_000_000 * 1_000_000
"""The same in each run, so that a run that is repeated gives what it gave."""


class Hand:
    """The clocks of this process, moved by hand."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.passed_s = self.step_s = 0
        real_ns = time.clock_gettime_ns

        def now_ns() -> int:
            return _WALL_NS + (self.passed_s + self.step_s) * 10**9

        self.patch.setattr(
            time,
            "clock_gettime_ns",
            lambda which: _RISING_NS + self.passed_s * 10**9 if which == store_clock._CLOCK else real_ns(which),
        )
        self.patch.setattr(time, "time_ns", now_ns)
        self.patch.setattr(time, "time", lambda: now_ns() / 1e9)


Mistake = Callable[[MagazineStore, Hand], None]
"""Replaces a call of the store by a worse one."""


def each_due(magazines: MagazineStore, at_ms: Callable[[], float], do: Callable[[list[Delayed]], None]) -> None:
    """Before and behind whatever moves: ``do`` with what was due at that time, and is not there any more."""

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def moving(*given: Any, **options: Any) -> Any:
            there = magazines.list_later(QUEUE, limit=10_000) if given[0] == QUEUE else []
            done = real(*given, **options)
            do([one for one in there if one.due_ms <= at_ms()])
            return done

        return moving

    vars(magazines).update(fire=around(magazines.fire), move_due=around(magazines.move_due))


def load_again(magazines: MagazineStore, some: Sequence[Delayed]) -> None:
    for one in some:
        assert one.record is not None
        magazines.load_records(QUEUE, one.shard, [one.record])


def moved_twice(magazines: MagazineStore, hand: Hand) -> None:
    now_ms = store_clock.process_clock().now_ms
    each_due(magazines, now_ms, lambda some: load_again(magazines, some))


def moved_by_the_wall_clock(magazines: MagazineStore, hand: Hand) -> None:
    """A step forward makes it too early."""
    now_ms = store_clock.process_clock().now_ms
    each_due(
        magazines, lambda: now_ms() + hand.step_s * 1000,
        lambda some: magazines.run_now(QUEUE, places(some)),
    )  # fmt: skip


def a_step_back_moves_again(magazines: MagazineStore, hand: Hand) -> None:
    moved: list[Delayed] = []
    last_s = [hand.step_s]
    now_ms = store_clock.process_clock().now_ms

    def note(some: list[Delayed]) -> None:
        if hand.step_s < last_s[0]:
            load_again(magazines, moved)
        last_s[0] = hand.step_s
        moved.extend(some)

    each_due(magazines, now_ms, note)


def retried_and_not_put(magazines: MagazineStore, hand: Hand) -> None:
    magazines.defer = lambda name, items, *rest, **options: magazines.delete(  # type: ignore[method-assign]
        name, group_pointers((one.shard, one.pointer) for one in items)
    )


def put_and_not_acknowledged(magazines: MagazineStore, hand: Hand) -> None:
    def defer(name: str, items: Sequence[Transfer], dues_ms: Sequence[int], *rest: Any, **options: Any) -> int:
        for one, due_ms in zip(items, dues_ms, strict=True):
            magazines.load_later(name, [(one.target_shard, PackedBatch.pack([one.record]))], [[due_ms]], None)
        return len(items)

    magazines.defer = defer  # type: ignore[method-assign]


def attempts_not_counted(magazines: MagazineStore, hand: Hand) -> None:
    real = magazines.defer

    def defer(name: str, items: Sequence[Transfer], *rest: Any, **options: Any) -> int:
        there = magazines.peek(name, group_pointers((one.shard, one.pointer) for one in items))
        return real(name, [one._replace(record=there[one.shard][one.pointer]) for one in items], *rest, **options)

    magazines.defer = defer  # type: ignore[method-assign]


def the_wrong_one_is_cancelled(magazines: MagazineStore, hand: Hand) -> None:
    real = magazines.cancel_later

    def cancel(name: str, pointers: Any) -> int:
        return real(name, places(magazines.list_later(name, limit=1)) if any(pointers.values()) else pointers)

    magazines.cancel_later = cancel  # type: ignore[method-assign]


def run_now_cancels(magazines: MagazineStore, hand: Hand) -> None:
    magazines.run_now = magazines.cancel_later  # type: ignore[method-assign]


def a_purge_takes_what_waits(magazines: MagazineStore, hand: Hand) -> None:
    real = magazines.purge

    def purge(name: str, *rest: Any, **options: Any) -> Any:
        magazines.cancel_later(name, places(magazines.list_later(name, limit=10_000)))
        return real(name, *rest, **options)

    magazines.purge = purge  # type: ignore[method-assign]


def a_moment_too_early(magazines: MagazineStore, hand: Hand) -> None:
    real = magazines.load_later

    def load_later(name: str, batches: Any, dues_ms: Sequence[Sequence[int]], ttl_s: float | None) -> list[int]:
        return real(name, batches, [[max(0, due_ms - 1) for due_ms in some] for some in dues_ms], ttl_s)

    magazines.load_later = load_later  # type: ignore[method-assign]


def places(some: Sequence[Delayed]) -> dict[int, list[int]]:
    return group_pointers((one.shard, one.pointer) for one in some)


MISTAKES: tuple[Mistake, ...] = (
    moved_twice,
    moved_by_the_wall_clock,
    a_step_back_moves_again,
    retried_and_not_put,
    put_and_not_acknowledged,
    attempts_not_counted,
    the_wrong_one_is_cancelled,
    run_now_cancels,
    a_purge_takes_what_waits,
    a_moment_too_early,
)
