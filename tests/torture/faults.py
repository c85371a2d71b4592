"""Planted faults: known-bad variants that a test must catch, and deaths at chosen points.

Everything here runs in a child, before it opens its store, and replaces a part of the library or of LMDB by a worse
one. Nothing in the library knows about it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from ignis.errors import CorruptRecordError, IgnisError
from ignis.storage.base import FireResult, MagazineStore, Store, group_pointers
from tests.torture.process import process_name

__all__ = [
    "Mutant",
    "acknowledge_early",
    "crash_at_commit",
    "delete_before_load",
    "delete_on_fire",
    "forget_boot",
    "note_moves",
    "postpone_deletes",
    "postpone_many_deletes",
    "reload_some",
    "skip_checksums",
    "skip_journal_flush",
    "swallow_failed_commits",
    "trust_own_journal_position",
    "wrap_commits",
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


def forget_boot(directory: Path) -> None:
    """Makes a closed store believe that it was last used in another boot of the machine.

    What a restart takes away by itself, and unmounting a volume does not: the memory of the processes that claimed.
    """
    (directory / "boot").write_text("another-boot", "ascii")


class _Transaction:
    """A write transaction whose commit is seen. Everything else goes to the real one."""

    def __init__(self, real: Any, around: Callable[[Callable[[], None]], None]) -> None:
        self._real = real
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit(self) -> None:
        self._around(self._real.commit)

    def __enter__(self) -> _Transaction:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.commit()
        else:
            self._real.abort()


class _Environment:
    """An LMDB environment whose write transactions are `_Transaction`."""

    def __init__(self, real: Any, around: Callable[[Callable[[], None]], None]) -> None:
        self._real = real
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, *arguments: Any, **options: Any) -> Any:
        real = self._real.begin(*arguments, **options)
        return _Transaction(real, self._around) if options.get("write") else real


def wrap_commits(around: Callable[[Callable[[], None]], None]) -> None:
    """Calls ``around(commit)`` in place of each commit of a write transaction of this process."""
    module: Any = lmdb
    real_open = module.open

    def open_wrapped(*arguments: Any, **options: Any) -> _Environment:
        return _Environment(real_open(*arguments, **options), around)

    module.open = open_wrapped


def crash_at_commit(number: int, when: str) -> None:
    """This process dies (SIGKILL) right before or right after its ``number``-th commit, counted from 1 over all
    environments."""
    count = 0

    def around(commit: Callable[[], None]) -> None:
        nonlocal count
        count += 1
        if count == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit()
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    wrap_commits(around)


def skip_journal_flush() -> None:
    """What is appended to the journal is acknowledged without having been flushed."""
    _journal()._flush = lambda fd: None


def swallow_failed_commits() -> None:
    """A commit, or a write or flush of the journal, that fails looks like one that did not."""

    def around(commit: Callable[[], None]) -> None:
        try:
            commit()
        except lmdb.Error:
            return

    wrap_commits(around)
    journal = _journal()
    real = journal.Journal.append

    def append(self: Any, *arguments: Any) -> bool:
        try:
            return bool(real(self, *arguments))
        except IgnisError:
            return True

    journal.Journal.append = append


def _journal() -> Any:
    module: Any = importlib.import_module("ignis.storage.embedded.journal")
    if not (hasattr(module, "_flush") and hasattr(module.Journal, "_newest")):
        raise RuntimeError("the journal is built otherwise now: this fault would not be planted")
    return module


def trust_own_journal_position() -> None:
    """A process does not look whether another one has moved on to the journal's other file."""
    journal = _journal().Journal
    real = journal._newest

    def append(self: Any, *arguments: Any) -> bool:
        journal._newest = lambda self: (self._current, self._base) if self._last >= 0 else real(self)
        try:
            return bool(real_append(self, *arguments))
        finally:
            journal._newest = real

    real_append = journal.append
    journal.append = append


def _wrap_magazines(change: Callable[[MagazineStore], None]) -> None:
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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


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

    _wrap_magazines(change)


def skip_checksums() -> None:
    """Stored segments are read without looking at their checksums."""

    def unpack(
        data: bytes, magazine_id: int, shard: int, last_pointer: int, start: int, stop: int, skip: bytes | None = None
    ) -> list[bytes | None]:
        data = bytes(data)
        try:
            count = struct.unpack_from(">I", data, 4)[0]
            ends = [0] + [struct.unpack_from(">I", data, 24 + 8 * one)[0] for one in range(count)]
        except struct.error as exc:
            raise CorruptRecordError("cut short") from exc
        base, first = 24 + 8 * count, last_pointer - count + 1
        wanted = [one - first for one in range(start, stop)]
        if skip:
            wanted = [one for one in wanted if one // 8 >= len(skip) or not skip[one // 8] >> one % 8 & 1]
        return [data[base + ends[one] : base + ends[one + 1]] for one in wanted]

    segments: Any = importlib.import_module("ignis.storage.embedded.segments")
    if not hasattr(segments, "unpack_segment"):
        raise RuntimeError("segments are read by another function now: this fault would not be planted")
    segments.unpack_segment = unpack
