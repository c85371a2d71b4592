"""Distributed locks in the layout of the Java lock manager, so that Java and Python instances exclude each other.

=========  ==========================================================================================================
set        ``DC#{farm}#{suffix}`` or ``XDC#{suffix}``
key        ``{client}#{lock id}``
bins       ``{farm}##data`` = 1, ``{farm}##uat`` = milliseconds of the acquisition; ours beside them: ``ign_owner``,
           and ``ign_token`` once it was drawn
=========  ==========================================================================================================

A lock is held while its record exists. It is written create-only with a time to live, and removed on release. Since
nothing is left of it then, tokens come from a record of their own that never ends: set ``{set}#tokens``, same key,
bin ``token``.

Order of tokens. A token is drawn when the lock is already held, and counts only if the lock is still held afterwards;
the server checks that while it notes the token in the lock. So the draws of two holders are in the order in which they
held the lock. Drawn before or beside the acquisition, in the same batch, an older holder could get the higher token.

Locks are committed to the master only, as Java does; tokens to all replicas, so that a failover does not repeat one.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import Any

from aerospike_helpers import expressions as exp

from ignis.errors import ConfigError
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.connection import policy
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.aerospike.status_codes import EXISTS, FILTERED, GENERATION, NOT_FOUND
from ignis.storage.base import LockTable
from ignis.storage.checks import check_lock_in_table, check_owner, ttl_milliseconds
from ignis.storage.records import LockRecord

__all__ = ["AerospikeLockTable"]

MAX_BIN_BYTES = 15
OWNER_BIN = layout.OWNER
DRAWN_BIN = "ign_token"
_COUNT = "token"
_TOKENS = "#tokens"
_DATA, _SINCE = "##data", "##uat"
_MASTER_ONLY = 1
"""The commit level; a number of the protocol."""
_TAKEN = (EXISTS, GENERATION)
_NOT_OURS = (NOT_FOUND, FILTERED)


class AerospikeLockTable(LockTable):
    """The locks of one set. Thread-safe. One client call each, `draw_token` two; none is repeated here.

    Args:
        context: of the store whose locks these are.
        set_name: see the module.
        farm_id: part of the bins' names.

    Raises:
        ConfigError: a bin's or the set's name is longer than the server takes.
    """

    def __init__(self, context: StoreContext, set_name: str, farm_id: str) -> None:
        self._data, self._at = farm_id + _DATA, farm_id + _SINCE
        longest = len(self._data.encode())
        if longest > MAX_BIN_BYTES:
            raise ConfigError(
                f"farm_id {farm_id!r} of {len(farm_id.encode())} bytes makes the bin name {self._data!r} of {longest} bytes; "
                f"Aerospike takes {MAX_BIN_BYTES}, so a farm that has locks may have {MAX_BIN_BYTES - len(_DATA)}"
            )
        longest = len((set_name + _TOKENS).encode())
        if longest > layout.MAX_SET_BYTES:
            raise ConfigError(
                f"the locks' suffix makes the set name {set_name + _TOKENS!r} of {longest} bytes; "
                f"Aerospike takes {layout.MAX_SET_BYTES}"
            )
        self._context = context
        self._connection = context.connection
        self._set = set_name

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms, how = _create(ttl_s)
        check_owner(owner)
        now_ms = int(time.time() * 1000)
        key, bins = self._key(name), {self._data: 1, self._at: now_ms, OWNER_BIN: owner}
        context = self._context
        context.enter()
        try:
            done = self._connection.once("lock", lambda client: client.put(key, bins, policy=how), _TAKEN)
        finally:
            context.leave()
        return None if done is None else LockRecord(name, owner, 0, now_ms, now_ms + ttl_ms)

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)
        how = self._if_mine(owner, _seconds(ttl_ms))
        # Something has to be written for the time to live to be set; the owner is what is there already.
        ops = [expressions.write(OWNER_BIN, owner), expressions.read(DRAWN_BIN), expressions.read(self._at)]
        bins = self._apply("lock_renew", name, ops, how)
        if bins is None:
            return None
        return LockRecord(
            name, owner, bins.get(DRAWN_BIN) or 0, bins.get(self._at) or 0, int(time.time() * 1000) + ttl_ms
        )

    def release(self, name: str, owner: str) -> bool:
        key, how = self._key(name), {"expressions": _is_of(owner), "commit_level": _MASTER_ONLY}
        context = self._context
        context.enter()
        try:
            done = self._connection.once("lock_release", lambda client: client.remove(key, policy=how), _NOT_OURS)
        finally:
            context.leave()
        return done is not None

    def draw_token(self, name: str, owner: str) -> int | None:
        check_lock_in_table(name)
        counter = (self._connection.namespace, self._set + _TOKENS, name)
        draw = [expressions.increment(_COUNT, 1), expressions.read(_COUNT)]
        with self._context.call():
            # A draw whose answer was lost only leaves a number out.
            drawn = self._connection.apply("lock_token", counter, draw, policy(ttl=layout.TTL_NEVER), repeat=False)
        token = int((drawn or {})[_COUNT])
        written = self._apply(
            "lock_token", name, [expressions.write(DRAWN_BIN, token)], self._if_mine(owner, layout.TTL_KEEP)
        )
        return None if written is None else token

    def get(self, name: str) -> LockRecord | None:
        """A holder that is no ignis has no owner here: it is the empty text. The end is known to the second."""
        key = self._key(name)
        with self._context.call():
            found = self._connection.call("lock_get", lambda client: client.get(key), fine=(NOT_FOUND,), repeat=False)
        if found is None:
            return None
        _, meta, bins = found
        acquired_ms = next((value for bin_name, value in bins.items() if bin_name.endswith(_SINCE)), 0)
        ends_ms = int((time.time() + meta["ttl"]) * 1000)
        return LockRecord(name, bins.get(OWNER_BIN, ""), bins.get(DRAWN_BIN, 0), acquired_ms, ends_ms)

    def _key(self, name: str) -> tuple[str, str, str]:
        """Raises InvalidNameError."""
        check_lock_in_table(name)
        return self._connection.namespace, self._set, name

    @staticmethod
    def _if_mine(owner: str, ttl: int) -> dict[str, Any]:
        how = policy("update", ttl=ttl, only_if=_is_of(owner))
        return {**how, "commit_level": _MASTER_ONLY}

    def _apply(self, what: str, name: str, ops: list[Any], how: dict[str, Any]) -> dict[str, Any] | None:
        with self._context.call():
            return self._connection.apply(what, self._key(name), ops, how, repeat=False)


_PLACE = {"val": "the owner's place"}
_OWNER_IS = exp.Eq(exp.StrBin(OWNER_BIN), _PLACE["val"]).compile()
_AT = next(index for index, part in enumerate(_OWNER_IS) if part[2] == _PLACE)


def _is_of(owner: str) -> Any:
    """The condition that the lock is this owner's. Every acquisition has an owner of its own, and putting that into a
    compiled condition is several times as fast as compiling one."""
    part = _OWNER_IS[_AT]
    return [*_OWNER_IS[:_AT], (part[0], part[1], {"val": owner}, *part[3:]), *_OWNER_IS[_AT + 1 :]]


@lru_cache(maxsize=64)
def _create(ttl_s: float) -> tuple[int, dict[str, Any]]:
    """The time to live in milliseconds, and how the lock is written; shared, so not to be changed. Raises ConfigError."""
    ttl_ms = ttl_milliseconds(ttl_s)
    return ttl_ms, {**policy("create", ttl=_seconds(ttl_ms)), "commit_level": _MASTER_ONLY}


def _seconds(ttl_ms: int) -> int:
    """What the server counts in, never less than asked for."""
    return math.ceil(ttl_ms / 1000)
