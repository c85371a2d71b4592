"""Planted faults of delayed messages, as in `tests.torture.faults`: each a known-bad variant that a test must catch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ignis.native import PackedBatch
from ignis.storage.base import FireResult
from ignis.storage.records import group_pointers
from tests.torture.faults import wrap_magazines

__all__ = [
    "move_by_the_wall_clock",
    "move_twice",
    "postpone_cancels",
    "put_later_early",
    "retry_without_acknowledgement",
    "retry_without_put",
]


def move_twice() -> None:
    """Each message that comes to be due is put into the queue once more."""

    def change(magazines: Any) -> None:
        def around(real: Any) -> Any:
            def moving(magazine: str, *given: Any, **options: Any) -> Any:
                there = {one[:3]: one for one in magazines.list_later(magazine, limit=100)}
                done = real(magazine, *given, **options)
                gone = there.keys() - {one[:3] for one in magazines.list_later(magazine, limit=10_000)}
                for one in gone:
                    magazines.load_records(magazine, one[1], [there[one].record], None)
                return done

            return moving

        magazines.fire, magazines.move_due = around(magazines.fire), around(magazines.move_due)

    wrap_magazines(change)


def retry_without_put() -> None:
    """What is to be tried again is acknowledged, and that is all."""

    def change(magazines: Any) -> None:
        magazines.defer = lambda magazine, items, *rest: magazines.delete(
            magazine, group_pointers((one.shard, one.pointer) for one in items)
        )

    wrap_magazines(change)


def retry_without_acknowledgement() -> None:
    """What is to be tried again is put into the later magazine, and stays claimed."""

    def change(magazines: Any) -> None:
        def defer(magazine: str, items: Sequence[Any], dues_ms: Sequence[int]) -> int:
            for one, due_ms in zip(items, dues_ms, strict=True):
                magazines.load_later(magazine, [(one.target_shard, PackedBatch.pack([one.record]))], [[due_ms]], None)
            return len(items)

        magazines.defer = defer

    wrap_magazines(change)


def put_later_early() -> None:
    """A delayed message is acknowledged before it is stored: it is stored when the next one comes."""

    def change(magazines: Any) -> None:
        real, waiting = magazines.load_later, []

        def load_later(*given: Any) -> list[int]:
            waiting.append(given)
            if len(waiting) > 1:
                real(*waiting.pop(0))
            return [0] * len(given[1])

        magazines.load_later = load_later

    wrap_magazines(change)


def postpone_cancels() -> None:
    """A message is said to be cancelled before it is: that happens when the next one is."""

    def change(magazines: Any) -> None:
        real, waiting = magazines.cancel_later, []

        def cancel(magazine: str, pointers: Mapping[int, Sequence[int]]) -> int:
            if any(pointers == one for _, one in waiting):
                return 0
            waiting.append((magazine, pointers))
            if len(waiting) > 1:
                real(*waiting.pop(0))
            return sum(map(len, pointers.values()))

        magazines.cancel_later = cancel

    wrap_magazines(change)


def move_by_the_wall_clock() -> None:
    """A wall clock that was set forward makes messages due."""

    def change(magazines: Any) -> None:
        real = magazines.fire

        def fire(magazine: str, *given: Any, **options: Any) -> FireResult:
            now_ms = time.time() * 1000
            early = [one for one in magazines.list_later(magazine, limit=100) if one.due_ms <= now_ms]
            magazines.run_now(magazine, group_pointers((one.shard, one.pointer) for one in early))
            result: FireResult = real(magazine, *given, **options)
            return result

        magazines.fire = fire

    wrap_magazines(change)
