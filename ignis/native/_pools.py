"""The slab pools of this process: every channel and outbox that hands out buffers of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["pool_classes", "register", "sum_classes"]


class _Pool(Protocol):
    def classes(self) -> list[dict[str, int]]: ...


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def register(pool: _Pool) -> None:
    """Called once by each pool when it is made. It is forgotten with its last reference."""
    _pools.add(pool)


def sum_classes(many: Iterable[Iterable[Mapping[str, int]]]) -> list[dict[str, int]]:
    """Classes of the same size of several pools as one, by rising ``slot_bytes``."""
    sums: dict[int, dict[str, int]] = {}
    for classes in many:
        for one in classes:
            size = one["slot_bytes"]
            into = sums.setdefault(size, {"slot_bytes": size, "slots": 0, "active": 0})
            into["slots"] += one["slots"]
            into["active"] += one["active"]
    return [sums[size] for size in sorted(sums)]


def pool_classes() -> list[dict[str, int]]:
    """The buffers of all pools that are open here, by size class: ``slot_bytes``, ``slots`` and ``active`` (in use).

    Thread-safe. After ``fork`` the parent's pools do not count in the child. Messages of up to 1 KiB that lie in a
    channel's byte ring need no buffer.
    """
    return sum_classes(pool.classes() for pool in list(_pools))
