"""Planted faults: known-bad variants that a test must catch, and deaths at chosen points.

Everything here runs in a child, before it opens its store, and replaces a part of the library by a worse one. Nothing
in the library knows about it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ignis.storage.base import FireResult, MagazineStore, Store
from ignis.storage.records import group_pointers
from tests.torture.process import process_name

__all__ = [
    "Mutant",
    "acknowledge_early",
    "crash_at_commit",
    "delete_before_load",
    "delete_on_fire",
    "keep_refused",
    "note_moves",
    "postpone_deletes",
    "postpone_many_deletes",
    "reload_some",
    "skip_flushes",
    "wrap_logs",
    "wrap_magazines",
    "write_little",
]


@dataclass(frozen=True)
class Mutant:
    """A fault by name.

    ``plant`` runs in every child; ``durability`` replaces the magazines' own when not empty; ``options`` are added to
    the store's. ``judged``: the durability by which the outcome is judged, where that is not the magazines'.
    ``expects``: a word of the fault that it must lead to, or several with ``|`` between. A run that broke for another
    reason has caught nothing.
    """

    name: str
    plant: Callable[[], None]
    durability: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    judged: str = ""
    expects: str = "lost"


_CHANGES = frozenset(
    {
        "change_keys",
        "claim",
        "declare",
        "drop",
        "expire",
        "fire",
        "flush",
        "load",
        "load_claimed",
        "load_once",
        "reload",
        "renew",
        "retire",
        "transfer",
    }
)


# Functions of the native module, which are handed the log.
_FUNCTION_CHANGES = frozenset({"declare_later", "defer", "load_body", "load_later", "move_due"})
_FUNCTIONS = _FUNCTION_CHANGES | {"Interval", "list_later", "next_due"}


class _Log:
    """A log whose changes are made by ``around(real, *arguments, **options)``. Everything else goes to the real one."""

    def __init__(self, real: Any, around: Callable[..., Any]) -> None:
        self._real = real
        self._around = around

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name in _CHANGES:
            return lambda *arguments, **options: self._around(real, *arguments, **options)
        return real


def wrap_logs(around: Callable[..., Any]) -> None:
    """Calls ``around(real, *arguments, **options)`` in place of each change, and each flush, of a log of this process."""
    module: Any = importlib.import_module("ignis.storage.embedded.directory")
    real_log = module.Log
    module.Log = lambda *arguments, **options: _Log(real_log(*arguments, **options), around)
    native = vars(importlib.import_module("ignis.native.store"))
    calls = {native[name]: _on_log(native[name], around if name in _FUNCTION_CHANGES else None) for name in _FUNCTIONS}
    for name, one in list(sys.modules.items()):  # those that have imported such a function by its name too
        if name == "ignis.native.store" or name.startswith("ignis.storage.embedded"):
            vars(one).update({word: calls[value] for word, value in vars(one).items() if _known(value, calls)})


def _known(value: object, calls: Mapping[Any, Any]) -> bool:
    return callable(value) and isinstance(value, Hashable) and value in calls


def _on_log(real: Any, around: Callable[..., Any] | None) -> Any:
    """A function of a log, which the real one is handed to."""

    def call(log: Any, *arguments: Any, **options: Any) -> Any:
        def change(*given: Any, **with_: Any) -> Any:
            return real(inner, *given, **with_)

        inner = log._real if isinstance(log, _Log) else log
        change.__name__ = real.__name__
        vars(change)["__self__"] = inner
        return change(*arguments, **options) if around is None else around(change, *arguments, **options)

    return call


def crash_at_commit(number: int, when: str) -> None:
    """This process dies (SIGKILL) right before or right after its ``number``-th change of a log, counted from 1."""
    count = 0

    def around(real: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    wrap_logs(around)


def skip_flushes() -> None:
    """What is appended to the log is acknowledged without having been flushed."""

    def around(real: Any, *arguments: Any, **options: Any) -> Any:
        if real.__name__ == "flush":
            return None
        return real(*arguments, **(options | {"durable": False} if "durable" in options else options))

    wrap_logs(around)


def write_little() -> None:
    """No fault: loads are so few that nothing gets to the disk by itself. What is much is sent there as it is written."""

    def change(magazines: Any) -> None:
        real = magazines.load

        def load(*arguments: Any) -> list[int]:
            time.sleep(0.02)
            return cast("list[int]", real(*arguments))

        magazines.load = load

    wrap_magazines(change)


def keep_refused() -> None:
    """What the caller is told is not stored, because its flush failed, stays in the log."""

    def around(real: Any, *arguments: Any, **options: Any) -> Any:
        if real.__name__ == "flush":
            return real(*arguments, **{**options, "refuse": False})
        if not options.get("durable"):
            return real(*arguments, **options)
        result = real(*arguments, **{**options, "durable": False})
        real.__self__.flush(refuse=False)
        return result

    wrap_logs(around)


def wrap_magazines(change: Callable[[MagazineStore], None]) -> None:
    """Applies ``change`` to the magazines of every store that the actors open from now on."""
    actors: Any = importlib.import_module("tests.torture.actors")
    real_open = actors.open_store

    def open_changed(*arguments: Any, **options: Any) -> Store:
        store: Store = real_open(*arguments, **options)
        change(store.magazines)
        return store

    actors.open_store = open_changed


def note_moves(path: str) -> None:
    """No fault: a transfer or reload is noted in a file before and after, so that one which was cut in two is known.

    On a store without transactions that one's messages are in both places.
    """
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    name = process_name(os.getpid())

    def noting(real: Any, size: Callable[..., int]) -> Any:
        def move(*arguments: Any, **options: Any) -> int:
            count = size(*arguments)
            os.write(log, f"m {name} {count}\n".encode())
            moved = int(real(*arguments, **options))
            os.write(log, f"m {name} {-count}\n".encode())
            return moved

        return move

    def change(magazines: Any) -> None:
        magazines.transfer = noting(magazines.transfer, lambda source, target, items, *rest: len(items))
        magazines.reload = noting(magazines.reload, lambda name, pointers: sum(map(len, pointers.values())))

    wrap_magazines(change)


def reload_some() -> None:
    """Every hundredth message that is deleted is put back into the queue instead: a living process handles it twice."""

    def change(magazines: Any) -> None:
        real, count = magazines.delete, itertools.count()

        def delete(magazine: str, pointers: Mapping[int, Sequence[int]]) -> int:
            back = {shard: [one for one in many if next(count) % 100 == 50] for shard, many in pointers.items()}
            back = {shard: many for shard, many in back.items() if many}
            if back:
                magazines.reload(magazine, back)
            real(
                magazine,
                {shard: [one for one in many if one not in back.get(shard, ())] for shard, many in pointers.items()},
            )
            return sum(map(len, pointers.values()))

        magazines.delete = delete

    wrap_magazines(change)


def acknowledge_early() -> None:
    """A load returns before it is stored: it is stored when the next one comes."""

    def change(magazines: Any) -> None:
        real, waiting = magazines.load, []

        def load(magazine: str, batches: Any, ttl_s: float | None) -> list[int]:
            waiting.append((magazine, batches, ttl_s))
            if len(waiting) > 1:
                real(*waiting.pop(0))
            return [0] * len(batches)

        magazines.load = load
        magazines.takes_bodies = False  # a lone message too goes by `load`

    wrap_magazines(change)


def postpone_deletes() -> None:
    """A deletion is confirmed before it happens: it happens when the next one comes."""

    def change(magazines: Any) -> None:
        real, waiting = magazines.delete, []

        def delete(magazine: str, pointers: Any) -> int:
            waiting.append((magazine, pointers))
            if len(waiting) > 1:
                real(*waiting.pop(0))
            return sum(map(len, pointers.values()))

        magazines.delete = delete

    wrap_magazines(change)


def postpone_many_deletes() -> None:
    """The same, but a hundred confirmations are gathered: a process that dies repeats more than its settings allow."""

    def change(magazines: Any) -> None:
        real, waiting = magazines.delete, []

        def delete(magazine: str, pointers: Any) -> int:
            waiting.append((magazine, pointers))
            while len(waiting) > 100:
                real(*waiting.pop(0))
            return sum(map(len, pointers.values()))

        magazines.delete = delete

    wrap_magazines(change)


def delete_on_fire() -> None:
    """At most once: what is handed out is deleted at once."""

    def change(magazines: Any) -> None:
        real = magazines.fire

        def fire(magazine: str, *arguments: Any, **options: Any) -> FireResult:
            result: FireResult = real(magazine, *arguments, **options)
            for claim in result.claims:
                magazines.delete(magazine, {claim.shard: list(claim.pointers)})
            return result

        magazines.fire = fire

    wrap_magazines(change)


def delete_before_load() -> None:
    """A transfer takes the messages out of the source before the target has them."""

    def change(magazines: Any) -> None:
        def transfer(source: str, target: str, items: Sequence[Any], ttl_s: Any = None, fence: Any = None) -> int:
            there = magazines.peek(source, group_pointers((one.shard, one.pointer) for one in items))
            items = [one for one in items if one.pointer in there.get(one.shard, {})]
            if items:
                magazines.delete(source, group_pointers((one.shard, one.pointer) for one in items))
            for one in items:
                magazines.load_records(target, one.target_shard, [one.record], ttl_s)
            return len(items)

        magazines.transfer = transfer

    wrap_magazines(change)
