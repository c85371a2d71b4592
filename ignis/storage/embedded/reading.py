"""Read transactions of an environment: for a moment, and as pins that keep pages from being used again."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ignis.storage.embedded.environment import Environment, Txn

__all__ = ["Pin", "Reading"]


class Pin:
    """A read transaction that is held only to keep LMDB from using the pages again that it can see."""

    def __init__(self, txn: Txn) -> None:
        self._txn = txn
        self.txnid = txn.id()

    def drop(self) -> None:
        self._txn.abort()

    def abandon(self) -> None:
        """In the child of a fork: the transaction is the parent's."""
        del self._txn


class Reading:
    """A read transaction as a context manager. Nothing that it returned may be used after it ended."""

    __slots__ = ("_env", "_txn")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._txn: Txn | None = None

    def __enter__(self) -> Txn:
        self._txn = self._env.begin_read()
        return self._txn

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._txn is not None:
            self._env.end_read(self._txn)
        failure = None if value is None else self._env.reading_failed(value)
        if failure is not None:
            raise failure from value
