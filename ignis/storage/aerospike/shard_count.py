"""The number of shards as Java keeps it: a record ``{magazine}_SHARDS`` beside the pointers.

Java reads it when a magazine is made and refuses a smaller number than stands there, and several shards where one stands.
It writes the record when there is none. So do we, and follow the same rules, before anything is changed: else a Java
instance does not start again, or loads into shards that nobody here reads.
"""

from __future__ import annotations

from ignis.errors import QueueMismatchError
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.connection import Connection, policy
from ignis.storage.aerospike.layout import Keys, SetNames

__all__ = ["ShardCount"]

_BY_US = "ign_shards"
"""Marks a record that we have written, which nobody of Java's has relied on when the magazine was made."""


class ShardCount:
    """See the module. Thread-safe."""

    def __init__(self, connection: Connection, sets: SetNames) -> None:
        self._connection = connection
        self._set = sets.meta

    def key(self, keys: Keys) -> tuple[str, str, str]:
        return self._connection.namespace, self._set, keys.shards

    def stored(self, keys: Keys) -> int | None:
        """The number, if there is one."""
        found = self._connection.get("declare", self.key(keys))
        shards = found[0].get(layout.SHARDS) if found is not None else None
        return shards if isinstance(shards, int) and shards > 0 else None

    def check(self, name: str, keys: Keys, shards: int, *, mine: int | None, shared: bool = False) -> None:
        """Whether the magazine may have this number of shards.

        Args:
            name: the magazine's, for the message.
            keys: its keys.
            shards: the number asked for.
            mine: the number declared here so far, None before the first time.
            shared: Java has loaded into the magazine.

        Raises:
            QueueMismatchError: Java has made the magazine, or uses it, with a number that cannot become this one.
        """
        found = self._connection.get("declare", self.key(keys))
        bins = found[0] if found is not None else {}
        stored = bins.get(layout.SHARDS)
        if not isinstance(stored, int):
            stored = mine
        if stored is None or (not shared and bins.get(_BY_US) and mine is not None):
            return
        if shards < stored:
            raise QueueMismatchError(
                f"magazine {name!r} has {stored} shards, which Java instances use; asked for {shards}: fewer would leave "
                "messages in shards that nobody reads, and Java would not start"
            )
        if stored <= 1 < shards and (mine is None or shared or not bins.get(_BY_US)) and found is not None:
            raise QueueMismatchError(
                f"magazine {name!r} was made by Java with one shard; asked for {shards}: its keys have no shard number, so "
                "Java would not start with more"
            )

    def store(self, keys: Keys, shards: int) -> None:
        """Writes the number. A magazine that began with one shard keeps that: Java must not look for keys with numbers."""
        ops = [expressions.write(layout.SHARDS, 1 if keys.plain else shards), expressions.write(_BY_US, 1)]
        made = self._connection.apply("declare", self.key(keys), ops, policy("create", ttl=layout.TTL_NEVER))
        if made is None:
            # Java's runs out after a year, whether the magazine is in use or not.
            self._connection.apply("declare", self.key(keys), ops[:1], policy("update", ttl=layout.TTL_NEVER))
