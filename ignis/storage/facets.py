"""What a store has beside its messages, each a facet of its own: the queues' settings, locks with epochs, arrays of values."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from ignis.errors import ConfigError
from ignis.storage.fitting import first_fitting
from ignis.storage.records import Fence, LockRecord, QueueRecord

__all__ = ["ArrayStore", "LockStore", "LockTable", "QueueStore"]


class QueueStore(abc.ABC):
    """The queues' settings. Durable on return (``sync``), atomic per call."""

    tells_removed = True
    """Whether `get` gives None only for a queue that is not there."""

    @abc.abstractmethod
    def get(self, name: str) -> QueueRecord | None: ...

    def look(self, name: str) -> QueueRecord | None:
        """`get` on behalf of who is about to load something, and who waits for the store then: this does not."""
        return self.get(name)

    @abc.abstractmethod
    def put(self, record: QueueRecord) -> None:
        """Creates or replaces."""

    def chosen(self, name: str, settings: set[str]) -> None:
        """Told before `put` which settings of a new queue somebody chose, though it may be their defaults. For stores that
        do not see yet whether there is such a queue already, and with what settings."""

    @abc.abstractmethod
    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        """Applies ``change`` to the stored record in one transaction and returns the result. ``change`` may be called
        more than once. Raises QueueNotFoundError, StaleEpochError."""

    @abc.abstractmethod
    def list(self, active: bool | None = None) -> list[QueueRecord]:
        """All queues, or only the active or inactive ones, by name. One whose record is damaged is left out and logged: `get`
        says what is wrong with it."""

    def page(
        self,
        after: str,
        *,
        active: bool | None = None,
        max_bytes: int,
        wanted: Callable[[str], bool] | None = None,
    ) -> tuple[builtins.list[QueueRecord], bool]:
        """A part of what `list` gives: the queues whose names come behind ``after`` and are ``wanted``.

        Their records have ``max_bytes`` in all as MessagePack, but one comes at least. Returns too whether there are more.
        """
        found = (one for one in self.list(active) if one.name > after and (wanted is None or wanted(one.name)))
        return first_fitting(((one, len(msgspec.msgpack.encode(one))) for one in found), max_bytes)

    @abc.abstractmethod
    def remove(self, name: str) -> bool: ...

    def applications(self) -> builtins.list[tuple[str, str]] | None:
        """The applications that have queues in the store, this one too: (farm_id, client_id), in order. None where the store
        keeps no list of them. For people who look into a wrong one, not for work."""
        return None


class LockTable(abc.ABC):
    """Locks with owners, times to live and fencing tokens. Atomic per call."""

    @abc.abstractmethod
    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        """Takes the lock if nobody holds it (or its time ran out); None when held by another. Holding it already
        with the same owner also gives None: locks are not re-entrant."""

    @abc.abstractmethod
    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        """Extends a lock that ``owner`` still holds, same token; None when it is no longer theirs."""

    @abc.abstractmethod
    def release(self, name: str, owner: str) -> bool:
        """True only if it was theirs. The owner is checked in the same operation."""

    @abc.abstractmethod
    def get(self, name: str) -> LockRecord | None: ...

    def held(self) -> list[LockRecord] | None:
        """The locks that somebody holds now, by name; None where the store keeps no list of them. It finds them by their
        keys, which stay when a lock is released: for people who look, not for work."""
        return None

    def draw_token(self, name: str, owner: str) -> int | None:
        """The lock's token when ``owner`` still holds it, else None. For stores whose `acquire` leaves the token at 0
        because it costs calls of its own: it is drawn here, above every token drawn before."""
        record = self.get(name)
        return record.token if record is not None and record.owner == owner else None


class LockStore(LockTable):
    """The locks of the store's own application and deployment; and epochs, which only rise."""

    def table(self, name: str, farm_id: str) -> LockTable:
        """The distributed locks of one table.

        Args:
            name: of the table: ``DC#{farm}#{suffix}`` or ``XDC#{suffix}``. Everybody who names it sees the same locks,
                whatever farm and application the store was opened for.
            farm_id: the deployment that asks.

        Raises:
            ConfigError: a name is longer than the store takes.
        """
        raise ConfigError("this store has no distributed locks")

    @abc.abstractmethod
    def next_epoch(self, scope: str) -> int:
        """Raises the scope's epoch by one and returns it. Every fence with a lower epoch is stale from then on."""

    @abc.abstractmethod
    def raise_epoch(self, scope: str, epoch: int) -> None:
        """Raises the scope's epoch to one that somebody else counts, such as ZooKeeper. Every fence with a lower epoch is
        stale from then on. Idempotent. Raises StaleEpochError when the scope has seen a higher one: nothing changed."""

    @abc.abstractmethod
    def epoch(self, scope: str) -> int:
        """The scope's current epoch; 0 before the first."""

    def epochs(self) -> dict[str, int] | None:
        """Every scope that has an epoch, by name; None where the store keeps no list of them."""
        return None


class ArrayStore(abc.ABC):
    """First-in-first-out queues of plain values, each named by a name and a bin. Atomic and durable per call.

    A value is one that MessagePack has: an int of 64 bits, a float, a bool, text, bytes, or a list or mapping of these.
    A queue that was never used is empty.
    """

    bounds_answers: ClassVar[bool] = True
    """Whether it keeps to ``max_bytes`` and ``max_value_bytes``. Where it does not, a queue as a whole is small."""

    @abc.abstractmethod
    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        """Appends all values or none; returns the new size. Raises RecordTooLargeError, StoreFullError: nothing was
        stored."""

    @abc.abstractmethod
    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        """Removes and returns the oldest values, at most ``limit``, and no more than have ``max_bytes`` in all; one at least.

        Bytes are those of MessagePack. A value of more than ``max_value_bytes`` is not returned: the call ends before it, and
        raises MessageTooLargeError when it is the oldest. Nothing is removed then.
        """

    @abc.abstractmethod
    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        """The values that `dequeue` would return. Changes nothing. Raises what `dequeue` does."""

    @abc.abstractmethod
    def size(self, name: str, bin_name: str) -> int:
        """How many values there are."""
