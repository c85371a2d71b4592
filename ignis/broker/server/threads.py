"""The threads of one broker: what the event loop must not wait for is done there, and comes back to the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ignis.broker.auth.logins import AT_A_TIME
from ignis.broker.server.thread_pool import ThreadPool
from ignis.log_format import event_text

__all__ = ["BrokerThreads"]

log = logging.getLogger("ignis.broker")

A = TypeVar("A")
R = TypeVar("R")

_FLUSH_THREADS = 2
_LOOK_THREADS = 2
_AUTH_THREADS = 2


class BrokerThreads:
    """Runs calls in threads and brings their results back to the event loop. Everything but the calls belongs to the loop.

    Args:
        loop: the event loop.
        count: threads for calls of the store, ``store_threads``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._loop = loop
        self._under_way = 0
        self._store = ThreadPool(count, "ignis-broker-store")
        # Apart, because reading much takes its time: who looks must not hold up who publishes or consumes.
        self._look = ThreadPool(_LOOK_THREADS, "ignis-broker-look")
        # Apart, and one: a list of a million runs takes up to 390 MiB while it is at the store.
        self._long = ThreadPool(1, "ignis-broker-long")
        self._flush = ThreadPool(_FLUSH_THREADS, "ignis-broker-flush")
        self._auth = ThreadPool(_AUTH_THREADS, "ignis-broker-auth")
        # Apart, because a password check is made to be slow: strangers must hold up neither the store's threads nor tokens.
        self._passwords = ThreadPool(AT_A_TIME, "ignis-broker-password")

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self._under_way

    def call(
        self,
        work: Callable[[A], R],
        done: Callable[[R], None],
        argument: A,
        failed: Callable[[BaseException], None] | None = None,
        *,
        looks: bool = False,
        long: bool = False,
        line: str = "",
    ) -> None:
        """Runs ``work(argument)`` in a thread of the store's, then ``done(result)`` on the event loop, or
        ``failed(exception)``; with ``looks`` in one of those that do nothing else but read, with ``long`` one behind another.
        ``line``: the user who asked, or the magazine that it is about: they take turns."""
        self._submit(self._long if long else self._look if looks else self._store, work, done, argument, failed, line)

    def flush_call(
        self, work: Callable[[None], R], done: Callable[[R], None], failed: Callable[[BaseException], None]
    ) -> None:
        """`call` for a flush, in threads that do nothing else."""
        self._submit(self._flush, work, done, None, failed)

    def auth_call(
        self,
        work: Callable[[None], R],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
        *,
        password: bool = False,
    ) -> None:
        """`call` for a login; with ``password`` it may be slow."""
        self._submit(self._passwords if password else self._auth, work, done, None, failed)

    def close(self, timeout_s: float) -> bool:
        """Ends the threads; False when some are still at work after the timeout of each kind. In any thread."""
        kinds = (self._store, self._look, self._long, self._flush, self._auth, self._passwords)
        return not [one for one in kinds if not one.close(timeout_s)]

    def _submit(
        self,
        threads: ThreadPool,
        work: Callable[[A], R],
        done: Callable[[R], None],
        argument: A,
        failed: Callable[[BaseException], None] | None,
        line: str = "",
    ) -> None:
        self._under_way += 1

        def finish(call: Callable[[Any], None], value: Any) -> None:
            self._under_way -= 1
            call(value)

        def run() -> None:
            call: Callable[[Any], None]
            try:
                value: Any = work(argument)
                call = done
            except BaseException as exc:  # of whatever kind: somebody waits for an answer
                value, call = exc, failed or _log_failure
            with contextlib.suppress(RuntimeError):  # the loop was closed under us
                self._loop.call_soon_threadsafe(finish, call, value)

        threads.submit(run, line)


def _log_failure(exc: BaseException) -> None:
    log.error(event_text("store_call_broken", "a call of the store failed"), exc_info=exc)
