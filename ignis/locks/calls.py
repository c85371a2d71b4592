"""Asking the store: trying again, and the answers that got lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from ignis.config import LockSettings
from ignis.errors import (
    LockConnectionError,
    LockError,
    LockInternalError,
    LockRetriesExhaustedError,
    StoreError,
)
from ignis.log_format import event_text
from ignis.storage.base import LockRecord, LockTable

__all__ = ["LockCalls", "now_s"]

log = logging.getLogger("ignis.locks")

T = TypeVar("T")

# Goes on while the machine sleeps, where the system has such a clock: a lock's time runs out on the server meanwhile.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Seconds of a clock that never goes back."""
    return time.clock_gettime(_CLOCK)


class LockCalls:
    """The calls on one lock, each made up to ``settings.tries`` times. Thread-safe.

    Args:
        table: where the lock is.
        key: its name there.
        settings: tries, and the wait between them.
        clock: by which the lock's time runs out.
    """

    __slots__ = ("_clock", "_key", "_settings", "_table")

    def __init__(self, table: LockTable, key: str, settings: LockSettings, clock: Callable[[], float] = now_s) -> None:
        self._clock = clock
        self._table = table
        self._key = key
        self._settings = settings

    def acquire(self, owner: str, ttl_s: float) -> LockRecord | None:
        """The lock, or None when somebody else holds it. Raises LockConnectionError, LockInternalError."""
        try:
            return self._table.acquire(self._key, owner, ttl_s)
        except StoreError as exc:
            return self._acquire_again(owner, ttl_s, exc)

    def _acquire_again(self, owner: str, ttl_s: float, first: StoreError) -> LockRecord | None:
        """The tries after the first. From now on whoever holds the lock may be an earlier try whose answer was lost."""

        def attempt() -> LockRecord | None:
            record = self._table.acquire(self._key, owner, ttl_s)
            if record is not None:
                return record
            found = self._table.get(self._key)
            return found if found is not None and found.owner == owner else None

        try:
            return self._tried("acquired", attempt, LockConnectionError, first)
        except LockError:
            with suppress(StoreError):
                # Otherwise a lock that was taken without our knowledge keeps everybody out until its end.
                self._table.release(self._key, owner)
            raise

    def renew(self, owner: str, ttl_s: float) -> LockRecord | None:
        """The lock with a new end, or None when it is no longer the owner's. Raises as `acquire` does."""
        return self._tried("renewed", lambda: self._table.renew(self._key, owner, ttl_s), LockConnectionError)

    def renew_once(self, owner: str, ttl_s: float) -> LockRecord | None:
        """`renew` without a second try. Raises StoreError."""
        return self._table.renew(self._key, owner, ttl_s)

    def draw_token(self, owner: str) -> int | None:
        """The lock's token, or None when it is no longer the owner's. Raises as `acquire` does."""
        return self._tried("given a token", lambda: self._table.draw_token(self._key, owner), LockConnectionError)

    def release(self, owner: str, deadline_s: float) -> bool:
        """True when it was the owner's and is free now. Raises LockRetriesExhaustedError, LockInternalError.

        Args:
            deadline_s: until when it is certainly the owner's if nobody released it. A try whose answer was lost may have
                done it; then the next one finds nothing, and only the time can tell whether it was still ours.
        """
        try:
            return self._table.release(self._key, owner)
        except StoreError as exc:
            return self._tried(
                "released",
                lambda: self._table.release(self._key, owner) or self._clock() < deadline_s,
                LockRetriesExhaustedError,
                exc,
            )

    def get(self) -> LockRecord | None:
        """Who holds it. Raises as `acquire` does."""
        return self._tried("looked at", lambda: self._table.get(self._key), LockConnectionError)

    def _tried(
        self, what: str, call: Callable[[], T], exhausted: type[LockError], first: StoreError | None = None
    ) -> T:
        """``call`` until it succeeds. ``first`` is how a try that was made already has failed."""
        left, failed = self._settings.tries, first
        while True:
            if failed is not None:
                left -= 1
                self._check(what, failed, left, exhausted)
                time.sleep(self._settings.retry_wait_s)
            try:
                return call()
            except StoreError as exc:
                failed = exc

    def _check(self, what: str, exc: StoreError, left: int, exhausted: type[LockError]) -> None:
        if not exc.retryable:
            self._fail(f"lock {self._key!r} could not be {what}: {exc}", LockInternalError, exc)
        if not left:
            self._fail(f"lock {self._key!r} could not be {what} in {self._settings.tries} tries: {exc}", exhausted, exc)
        log.debug(event_text("lock_call_retried", "lock %s: not %s, trying again: %s"), self._key, what, exc)

    @staticmethod
    def _fail(text: str, kind: type[LockError], exc: StoreError) -> NoReturn:
        raise kind(text) from exc
