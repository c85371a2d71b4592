"""The operations and expressions that are sent to the server. Compiled once; sharing them between calls is safe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import expression_operations, map_operations, operations

from ignis.storage.aerospike import layout

__all__ = ["claim", "has_unfired", "increment", "read", "reserve", "write"]

read = operations.read
write = operations.write
increment = operations.increment
touch = operations.touch()

_NOTHING, _MAP_COUNT, _MAP_VALUE = 0, 5, 7
"""What a map is asked for; numbers of the protocol."""


def _whole(name: str) -> Any:
    """A bin that Java writes only once it counts something."""
    return exp.Cond(exp.BinExists(name), exp.IntBin(name), 0)


_load = _whole(layout.LOAD_POINTER)
_fire = _whole(layout.FIRE_POINTER)

_due = exp.Cond(exp.BinExists(layout.NEXT_DUE), exp.IntBin(layout.NEXT_DUE), layout.NO_DUE)

has_unfired = exp.Or(exp.LT(_fire, _load), exp.LT(_due, layout.NO_DUE)).compile()
"""Pointers record: something is behind the fire pointer, or waits for its time: who claims learns then when that is."""

nothing_unfired = exp.GE(_fire, _load).compile()
"""Pointers record: all is claimed."""

still_empty = exp.Not(exp.Or(exp.BinExists(layout.DATA), exp.BinExists(layout.SEALED))).compile()
"""Data record: nothing but a claim stands there. A record that does not exist at all passes too."""

has_data = exp.BinExists(layout.DATA).compile()

still_vacant = exp.Not(exp.BinExists(layout.DATA)).compile()
"""Data record: no data, be it a claim or a tombstone."""

_BEFORE = expression_operations.expression_read("before", _fire.compile())
READ_POINTERS = [
    read(name)
    for name in (
        layout.LOAD_POINTER, layout.FIRE_POINTER, layout.VOIDS, layout.BORN, layout.OURS, layout.LEAVING,
        layout.NEXT_DUE, layout.DUE_CHANGES,
    )
]  # fmt: skip


@lru_cache(maxsize=1_024)
def claim(count: int) -> list[Any]:
    """Operations on a pointers record: advance the fire pointer by ``count``, never beyond the load pointer; the fire
    pointer before is read as ``before``."""
    # Not back either: two Java consumers can have moved it beyond the load pointer.
    target = exp.Max(_fire, exp.Min(exp.Add(_fire, count), _load)).compile()
    return [_BEFORE, expression_operations.expression_write(layout.FIRE_POINTER, target), *READ_POINTERS]


@lru_cache(maxsize=64)
def reserve(count: int) -> list[Any]:
    """Operations on a pointers record: ``count`` more pointers at the tail, known as ours."""
    return [increment(layout.LOAD_POINTER, count), increment(layout.OURS, count), *READ_POINTERS]


@lru_cache(maxsize=64)
def reserve_delayed(count: int) -> list[Any]:
    """Operations on a pointers record: ``count`` more pointers of the later magazine."""
    return [increment(layout.DELAYED, count), read(layout.DELAYED), *READ_POINTERS]


def lower_due(due_ms: int) -> list[Any]:
    """Operations on a pointers record: something is due then, or earlier. When it was before is read as ``before``."""
    return [
        expression_operations.expression_read("before", _due.compile()),
        expression_operations.expression_write(layout.NEXT_DUE, exp.Min(_due, due_ms).compile()),
        increment(layout.DUE_CHANGES, 1),
        *READ_POINTERS,
    ]


def due_unchanged(changes: int) -> Any:
    """Pointers record: the next due time was not lowered since so many changes."""
    return exp.Eq(_whole(layout.DUE_CHANGES), changes).compile()


def raise_to(bin_name: str, value: int) -> Any:
    """The operation that raises a number."""
    return expression_operations.expression_write(bin_name, exp.Max(_whole(bin_name), value).compile())


def is_within(bin_name: str, first: int, last: int) -> Any:
    """The bin is a number in first..last."""
    number = exp.IntBin(bin_name)
    return exp.And(exp.BinExists(bin_name), exp.GE(number, first), exp.LE(number, last)).compile()


def fire_pointer_is(pointer: int) -> Any:
    return exp.Eq(_fire, pointer).compile()


def free_to_move(before_ms: int) -> Any:
    """Data record: there, and nobody is moving it, or began to before ``before_ms`` and died."""
    # Asked only where there is one: comparing a bin that is not there answers "unknown", which matches nothing.
    stale = exp.Cond(exp.BinExists(layout.MOVING), exp.LT(exp.IntBin(layout.MOVING), before_ms), True)
    return exp.And(exp.BinExists(layout.DATA), stale)


def only_moved_at(at_ms: int) -> Any:
    """Data record: this call's own mark is on it."""
    return exp.Cond(exp.BinExists(layout.MOVING), exp.Eq(exp.IntBin(layout.MOVING), at_ms), False)


@lru_cache(maxsize=256)
def is_claimed_by(owner: str) -> Any:
    """Data record: there, and stamped by this owner."""
    mine = exp.Cond(exp.BinExists(layout.OWNER), exp.Eq(exp.StrBin(layout.OWNER), owner), False)
    return exp.And(exp.BinExists(layout.DATA), mine).compile()


is_unfired = exp.And(exp.BinExists(layout.DATA), exp.Not(exp.BinExists(layout.FIRED_AT)))
"""Data record: there, and not stamped."""
is_unfired_record = is_unfired.compile()


def both(one: Any, other: Any) -> Any:
    """Both conditions hold."""
    return exp.And(one, other)


def compiled(condition: Any) -> Any:
    """What the driver takes."""
    return condition.compile()


not_born = exp.Not(exp.BinExists(layout.BORN)).compile()


def advance_map(bin_name: str, key: str | int, old: int, new: int) -> list[Any]:
    """Operations that raise one entry of a map; send them under `map_value_is`."""
    return [map_operations.map_increment(bin_name, key, new - old)]


def put_in_map(bin_name: str, items: dict[int, int]) -> Any:
    """The operation that sets entries of a map."""
    return map_operations.map_put_items(bin_name, items)


def remove_from_map(bin_name: str, keys: list[int]) -> Any:
    """The operation that removes entries of a map."""
    return map_operations.map_remove_by_key_list(bin_name, keys, _NOTHING)


def map_value_is(bin_name: str, key: str | int, value: int) -> Any:
    """The map's entry has this value; for 0 also when there is none."""
    entry = exp.MapGetByKey(None, _MAP_VALUE, exp.ResultType.INTEGER, key, exp.MapBin(bin_name))
    count = exp.MapGetByKey(None, _MAP_COUNT, exp.ResultType.INTEGER, key, exp.MapBin(bin_name))
    absent = exp.Eq(0, value)
    there = exp.Cond(exp.GT(count, 0), exp.Eq(entry, value), absent)
    return exp.Cond(exp.BinExists(bin_name), there, absent).compile()


def is_at_most(bin_name: str, value: int) -> Any:
    """The bin has this value or a lower one, or there is none."""
    return exp.Cond(exp.BinExists(bin_name), exp.LE(exp.IntBin(bin_name), value), True).compile()


def _ran_out(ttl_bin: str) -> Any:
    return exp.GE(exp.SinceUpdateTime(), exp.IntBin(ttl_bin))


def lock_is_free(owner_bin: str, ttl_bin: str) -> Any:
    """Lock record: released, or not renewed in time by the server's clock."""
    return exp.Or(exp.Eq(exp.StrBin(owner_bin), ""), _ran_out(ttl_bin)).compile()


def lock_is_held(owner_bin: str, ttl_bin: str) -> Any:
    return exp.And(exp.NE(exp.StrBin(owner_bin), ""), exp.Not(_ran_out(ttl_bin))).compile()


def lock_is_of(owner_bin: str, ttl_bin: str, owner: str) -> Any:
    return exp.And(exp.Eq(exp.StrBin(owner_bin), owner), exp.Not(_ran_out(ttl_bin))).compile()
