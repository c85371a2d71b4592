"""One lock, as its users hold it."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from ignis.config import MAX_EXPIRY_S, LockSettings, check_number, check_timeout
from ignis.errors import LockError, LockLostError, LockUnavailableError, StoreError
from ignis.hooks import call_user_code
from ignis.locks.calls import LockCalls, now_s
from ignis.locks.renewal import Renewer
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.storage.os_errors import without_means
from ignis.upkeep import WorkThreads

__all__ = ["Lock", "LockContext", "LockLevel"]

log = logging.getLogger("ignis.locks")

T = TypeVar("T")

_TICK_S = 0.005
"""We let go of a lock so much before its end: stores count in whole milliseconds of another clock than ours."""


class _Hold:
    """One acquisition. Times are those of `now_s`; ``until_s`` is when it ends at the earliest if nothing renews it,
    ``last_s`` when renewals end (None = there are none)."""

    __slots__ = ("last_s", "leaving", "lost", "owner", "token", "ttl_s", "until_s")

    def __init__(self, owner: str, token: int, ttl_s: float, until_s: float, last_s: float | None) -> None:
        self.owner = owner
        self.token = token
        self.ttl_s = ttl_s
        self.until_s = until_s
        self.last_s = last_s
        self.lost = False
        self.leaving = False


class _Patience:
    """How long to wait for a lock, and between two looks at it."""

    def __init__(self, lock_id: str, timeout_s: float, poll_s: float) -> None:
        self._lock_id = lock_id
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._end_s = now_s() + timeout_s

    def pause_s(self) -> float:
        """How long to sleep before the next look. Raises LockUnavailableError when there is to be none."""
        left_s = self._end_s - now_s()
        if left_s <= 0:
            raise LockUnavailableError(self._lock_id, self._timeout_s)
        return min(self._poll_s, left_s)


class LockLevel(enum.Enum):
    """How far a lock reaches."""

    DC = "DC"
    """Within one farm: farms have locks of the same name independently of each other."""
    XDC = "XDC"
    """Over all farms that share the store."""


class LockContext(Protocol):
    """What a lock needs of the application's locks. A `LockManager` is one."""

    settings: LockSettings
    now_s: Callable[[], float]
    renewer: Renewer

    def new_owner(self) -> str:
        """A name for one acquisition, which nobody else can have."""

    def executor(self) -> WorkThreads:
        """Where the store calls of coroutines run. Raises ClosedError."""


class Lock:
    """Keeps other processes out for a time to live. Not re-entrant. Made by `LockManager.lock`.

    >>> from ignis import LockManager
    >>> from ignis.storage import open_store
    >>> with LockManager("shop", "west", open_store("memory://")).lock("nightly-report") as lock:
    ...     lock.held, lock.token
    (True, 1)

    One object belongs to one holder at a time: give each thread or task its own. The methods may be called from any
    thread. In a child after ``fork`` the lock is not held.

    Attributes:
        id, level: what is locked.
        lost: an event that is set when a lock that was acquired is no longer ours: a renewal found that out, or the time
            ran out before one succeeded. Cleared by the next acquisition. Without renewal nobody watches, and only
            `held` and the calls tell.
    """

    def __init__(
        self,
        context: LockContext,
        lock_id: str,
        level: LockLevel,
        calls: LockCalls,
        max_hold_s: float | None,
        on_lost: Callable[[Lock], object] | None,
    ) -> None:
        self.id = lock_id
        self.level = level
        self.lost = threading.Event()
        self._context = context
        self._now_s = context.now_s
        self._calls = calls
        self._said = LimitedLog(log)
        self._max_hold_s = max_hold_s
        self._on_lost = on_lost
        self._mutex = threading.Lock()
        self._drawing = threading.RLock()
        self._hold: _Hold | None = None

    # -- acquiring

    def try_acquire(self, ttl_s: float | None = None) -> bool:
        """Takes the lock if it is free. Does not wait for a holder.

        Args:
            ttl_s: seconds above 0 after which the lock is free again unless renewed; None = the setting, 90. Aerospike
                counts whole seconds, rounded up.

        Returns:
            False when somebody holds it, this object included.

        Raises:
            LockConnectionError: the store did not answer in 5 tries 80 ms apart. LockInternalError: it refused.
            ConfigError, ClosedError, ForkedHandleError.
        """
        ttl_s = self._ttl(ttl_s)
        if self.held:
            return False
        owner = self._context.new_owner()
        # From before the call on: the store began to count later.
        began_s = self._now_s()
        record = self._calls.acquire(owner, ttl_s)
        if record is None:
            return False
        last_s = None if self._max_hold_s is None else began_s + self._max_hold_s
        hold = _Hold(owner, record.token, ttl_s, began_s + ttl_s - _TICK_S, last_s)
        with self._mutex:
            self._hold = hold
            if self.lost.is_set():
                self.lost.clear()
        if last_s is not None:
            try:
                with without_means(f"lock {self.id} cannot be renewed"):
                    self._context.renewer.add(self._task(hold), began_s + ttl_s / 3)
            except BaseException:
                with contextlib.suppress(LockError):
                    self.release()
                raise
        return True

    def acquire(self, ttl_s: float | None = None, timeout: float | None = None) -> None:
        """`try_acquire`, once every ``poll_s`` (1 s) until it succeeds.

        Args:
            timeout: seconds to wait for whoever holds it; 0 = one try; None = the setting, 90. A store that does not
                answer may take longer.

        Raises:
            LockUnavailableError: held by somebody else all the time. Otherwise as `try_acquire`.
        """
        patience = None if timeout is None else self._patience(timeout)
        while not self.try_acquire(ttl_s):
            patience = patience or self._patience(timeout)
            time.sleep(patience.pause_s())

    # -- holding

    @property
    def held(self) -> bool:
        """Whether the lock was acquired, is not known to be lost, and its time has not run out by this machine's clock.
        No more than that: another may have it already when the server's clock is ahead."""
        hold = self._hold
        return hold is not None and not hold.lost and self._now_s() < hold.until_s

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier holder of this lock. Give it to whatever the lock
        protects, and let that refuse a lower one than it has seen.

        On Aerospike it is drawn when it is first asked for, which takes two client calls and proves that the lock is
        still ours at that moment; on the other stores it comes with the lock.

        Raises:
            LockLostError: not held, or not any more. LockConnectionError, LockInternalError.
        """
        hold = self._hold
        if hold is None:
            raise LockLostError(f"lock {self.id!r} is not held")
        with self._drawing:
            if not hold.token:
                token = self._calls.draw_token(hold.owner)
                if token is None:
                    self._lose(hold, "somebody else has it, or its time ran out")
                    raise LockLostError(f"lock {self.id!r} is no longer ours")
                hold.token = token
            return hold.token

    def renew(self, ttl_s: float | None = None) -> bool:
        """Sets the lock's end to ``ttl_s`` seconds from now (None = as acquired), if it is still ours.

        Returns:
            False when it was not, or not any more; then `lost` is set.

        Raises:
            LockConnectionError: not known; the lock may end at its old time. LockInternalError.
        """
        hold = self._hold
        if hold is None:
            return False
        ttl_s = hold.ttl_s if ttl_s is None else self._ttl(ttl_s)
        began_s = self._now_s()
        if self._calls.renew(hold.owner, ttl_s) is None:
            self._lose(hold, "somebody else has it, or its time ran out")
            return False
        hold.until_s = began_s + ttl_s - _TICK_S
        return True

    def release(self) -> bool:
        """Gives the lock up, if it is still ours. Whoever has it now keeps it.

        Returns:
            True when it was ours.

        Raises:
            LockRetriesExhaustedError: the store did not confirm it; may be called again. LockInternalError.
        """
        hold = self._hold
        if hold is None:
            return False
        hold.leaving = True  # a renewal on its way must not take what it finds for a loss
        if hold.last_s is not None:
            self._context.renewer.remove(self._task(hold))
        released = self._calls.release(hold.owner, hold.until_s)
        with self._mutex:
            if self._hold is hold:
                self._hold = None
        return released and not hold.lost

    # -- renewal

    def _task(self, hold: _Hold) -> _Renewal:
        return _Renewal(self, hold)

    def renew_hold(self, hold: _Hold) -> float | None:
        """What is due in the background; returns when to come again."""
        began_s = self._now_s()
        if hold.lost or hold.leaving or self._hold is not hold:
            return None
        if began_s >= hold.until_s:
            self._lose(hold, "its time ran out")
            return None
        assert hold.last_s is not None
        ttl_s = min(hold.ttl_s, hold.last_s - began_s)
        if began_s + ttl_s <= hold.until_s + 2 * _TICK_S:
            return hold.until_s  # held for as long as it may be
        try:
            record = self._calls.renew_once(hold.owner, ttl_s)
        except StoreError as exc:
            self._said.warning(
                event_text("lock_renewal_failed", "lock %s could not be renewed, trying again: %s"), self.id, exc
            )
            return min(hold.until_s, self._now_s() + hold.ttl_s / 6)
        if record is None:
            self._lose(hold, "somebody else has it, or its time ran out")
            return None
        hold.until_s = began_s + ttl_s - _TICK_S
        return began_s + ttl_s / 3

    def _lose(self, hold: _Hold, why: str) -> None:
        with self._mutex:
            if hold.lost or hold.leaving or self._hold is not hold:
                return
            hold.lost = True
            self.lost.set()
        log.warning(event_text("lock_lost", "lock %s is lost: %s"), self.id, why)
        if self._on_lost is not None:
            call_user_code(
                log, event_text("lock_on_lost_failed", f"on_lost of lock {self.id} failed"), self._on_lost, self
            )

    # -- coroutines: the same calls, in threads of the context

    async def atry_acquire(self, ttl_s: float | None = None) -> bool:
        """`try_acquire` for coroutines. A lock that is got after the coroutine was cancelled is released."""
        future = self._context.executor().submit(self.try_acquire, ttl_s)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._give_back)
            raise

    async def aacquire(self, ttl_s: float | None = None, timeout: float | None = None) -> None:
        """`acquire` for coroutines. May be cancelled."""
        patience = self._patience(timeout)
        while not await self.atry_acquire(ttl_s):  # noqa: ASYNC110 - what happens in the store raises no event here
            await asyncio.sleep(patience.pause_s())

    async def arenew(self, ttl_s: float | None = None) -> bool:
        """`renew` for coroutines."""
        return await self._in_thread(lambda: self.renew(ttl_s))

    async def atoken(self) -> int:
        """`token` for coroutines."""
        return await self._in_thread(lambda: self.token)

    async def arelease(self) -> bool:
        """`release` for coroutines. Goes on when the coroutine is cancelled."""
        return await self._in_thread(self.release)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._context.executor().submit(call)))

    def _give_back(self, future: Future[bool]) -> None:
        if future.cancelled() or future.exception() is not None or not future.result():
            return
        try:
            self.release()
        except LockError as exc:
            log.warning(
                event_text("lock_acquired_cancelled", "lock %s, acquired after its coroutine was cancelled: %s"),
                self.id,
                exc,
            )

    # -- with

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._hold is not None:  # else it was released in the block
                self._check_left(self.release())
        except LockError as failure:
            self._left_badly(exc, failure)

    async def __aenter__(self) -> Lock:
        await self.aacquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._hold is not None:
                self._check_left(await self.arelease())
        except LockError as failure:
            self._left_badly(exc, failure)

    def _check_left(self, ours: bool) -> None:
        """Raises LockLostError: the block believed to be alone and was perhaps not."""
        if not ours:
            raise LockLostError(f"lock {self.id!r} was no longer ours when its block ended")

    def _left_badly(self, exc: BaseException | None, failure: LockError) -> None:
        if exc is None:
            raise failure
        log.warning(
            event_text("lock_not_released", "lock %s: %s"), self.id, failure
        )  # the block's own error is the one to see

    # -- the rest

    def forget_after_fork(self) -> None:
        """Makes the lock, in the child of a fork, one that nobody here holds. The parent's hold goes on."""
        self._mutex = threading.Lock()
        self._drawing = threading.RLock()
        self.lost = threading.Event()
        self._hold = None

    def _ttl(self, ttl_s: float | None) -> float:
        if ttl_s is None:
            return self._context.settings.ttl_s
        return check_number(ttl_s, "ttl_s", 0, MAX_EXPIRY_S, above=True)

    def _patience(self, timeout: float | None) -> _Patience:
        settings = self._context.settings
        timeout_s = settings.timeout_s if timeout is None else check_timeout(timeout)
        return _Patience(self.id, timeout_s, settings.poll_s)

    def __repr__(self) -> str:
        return f"<Lock {self.level.value} {self.id!r}{' held' if self.held else ''}>"


@dataclass(frozen=True)
class _Renewal:
    """A task of the renewer; equal for the same acquisition."""

    lock: Lock
    hold: _Hold

    def __call__(self) -> float | None:
        return self.lock.renew_hold(self.hold)
