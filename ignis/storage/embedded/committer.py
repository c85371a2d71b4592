"""Group commit: what several threads ask for at the same time shares one transaction and one flush.

A caller puts its operation into a queue. If nobody leads, it leads: it takes everything that is queued, runs it in one
transaction, commits once and tells the others. A lone caller therefore hands nothing over to another thread. When a
leader is done and the queue is not empty, the first in it becomes the leader.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ignis.errors import StoreBusyError, StoreFullError
from ignis.log_limit import LimitedLog
from ignis.storage.embedded.environment import Environment, Txn, WouldWait

__all__ = ["Committer", "Operation"]

log = logging.getLogger("ignis.storage")

_MOST_OPERATIONS = 4_096
_MOST_BYTES = 64 << 20


class Operation:
    """One request. Subclasses implement `run` and may implement `committed`."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.leads = False
        self.signal: threading.Lock | None = None

    def need_bytes(self) -> int:
        """Room that a load takes; 0 for operations that must go on when the store is full."""
        return 0

    def move_bytes(self) -> int:
        """What a transfer writes; 0 for others."""
        return 0

    def run(self, txn: Txn) -> Any:
        """Does it. May be called more than once, each time on a state without the earlier call's writes. Raising undoes
        this operation and no other one."""
        raise NotImplementedError


class _Undo(Exception):
    """One operation of the batch failed: the transaction is run again without it."""


class Committer:
    """The write queue of one environment. Thread-safe.

    Args:
        env: where.
        visible: called with the operations of a batch as soon as others can see what they wrote, before it is durable.
        after: called with the operations of a batch that were committed, before their callers are told. What it raises
            is logged and no more, since the operations did happen.
        timeout_s: longest wait for other threads' batches.
    """

    def __init__(
        self,
        env: Environment,
        visible: Callable[[list[Operation]], None],
        after: Callable[[list[Operation]], None],
        timeout_s: float,
    ) -> None:
        self._env = env
        self._visible = visible
        self._after = after
        self._timeout_s = timeout_s
        self._said = LimitedLog(log)
        self._mutex = threading.Lock()
        self._queue: deque[Operation] = deque()
        self._leading = False
        self._leader_thread = 0
        self.requests = 0

    def submit(self, operation: Operation) -> Any:
        """Runs the operation, together with those of other threads, and returns its result when it is committed.

        Raises what the operation raised, or the store's error; then nothing of it was stored. Only StoreBusyError that
        says so leaves open whether it will be.
        """
        with self._mutex:
            self.requests += 1
            self._queue.append(operation)
            if self._leading:
                if self._leader_thread == threading.get_ident():
                    self._queue.pop()
                    raise RuntimeError("the store was called from within one of its own operations")
                operation.signal = threading.Lock()
                operation.signal.acquire()
            else:
                self._leading = operation.leads = True
        if not operation.leads:
            self._wait(operation)
        if not operation.done:
            self._lead()
        if operation.error is not None:
            raise operation.error
        return operation.result

    def try_submit(self, operations: list[Operation]) -> int | None:
        """Runs the operations in one transaction of their own, without ever waiting; each then has its result or error.

        Returns the number of the transaction if they are not durable before `Steady.flush_noted` was called with it. What
        ``after`` does for a batch is left to the caller.

        Raises WouldWait, with nothing done: another thread is committing, or see `Environment.try_transact`.
        """
        with self._mutex:
            if self._leading:
                raise WouldWait
            self._leading = True
            self._leader_thread = threading.get_ident()
            self.requests += len(operations)
        noted: list[int | None] = [None]

        def transact(run: Callable[[Txn], None], need_bytes: int, visible: Callable[[], None], move_bytes: int) -> None:
            _, noted[0] = self._env.try_transact(run, need_bytes, visible)

        try:
            self._commit(operations, transact)
        finally:
            with self._mutex:
                self._pass_on()
        return noted[0]

    def _wait(self, operation: Operation) -> None:
        """Until the operation is done or this thread is to lead."""
        assert operation.signal is not None
        try:
            if operation.signal.acquire(timeout=self._timeout_s) or not self._withdraw(operation):
                # Taken by a leader that is at work on it, or raised to leader just now.
                if not (operation.done or operation.leads) and not operation.signal.acquire(timeout=self._timeout_s):
                    raise StoreBusyError(
                        f"store: a commit of {self._env.name} takes over {2 * self._timeout_s:g} s; whether it succeeds is open"
                    )
                return
        except BaseException:
            self._withdraw(operation)
            raise
        raise StoreBusyError(f"store: other threads' commits of {self._env.name} take over {self._timeout_s:g} s")

    def _withdraw(self, operation: Operation) -> bool:
        """Takes the operation out of the queue, and passes the lead on when it had just been given it."""
        with self._mutex:
            queued = operation in self._queue
            if queued:
                self._queue.remove(operation)
            if operation.leads and not operation.done:
                self._pass_on()
            return queued

    def _pass_on(self) -> None:
        """Caller holds the mutex and has the lead."""
        self._leader_thread = 0
        if self._queue:
            following = self._queue[0]
            following.leads = True
            assert following.signal is not None
            following.signal.release()
        else:
            self._leading = False

    def _lead(self) -> None:
        with self._mutex:
            self._leader_thread = threading.get_ident()
            batch = self._take()
        try:
            committed = self._commit(batch, self._env.transact)
            if committed:
                self._settle(committed)
        except BaseException:  # KeyboardInterrupt: nobody may wait for ever
            for operation in batch:
                operation.error = operation.error or StoreBusyError(
                    f"store: a commit of {self._env.name} was interrupted; whether it succeeded is open"
                )
            raise
        finally:
            with self._mutex:
                for operation in batch:
                    operation.done = True
                    if operation.signal is not None and not operation.leads:
                        operation.signal.release()
                self._pass_on()

    def _take(self) -> list[Operation]:
        batch: list[Operation] = []
        room = _MOST_BYTES
        while self._queue and len(batch) < _MOST_OPERATIONS:
            room -= self._queue[0].need_bytes()
            if room < 0 and batch:
                break
            batch.append(self._queue.popleft())
        return batch

    def _commit(self, batch: list[Operation], transact: Callable[..., object]) -> list[Operation]:
        """Runs them in one transaction; returns those that were committed. The others have their error."""
        left = batch
        while left:
            need = sum(operation.need_bytes() for operation in left)
            try:
                transact(
                    lambda txn: _run_all(left, txn),  # noqa: B023 - called at once
                    need,
                    lambda: self._visible(left),  # noqa: B023
                    sum(operation.move_bytes() for operation in left),
                )
                break
            except WouldWait:
                raise
            except _Undo:
                left = [operation for operation in left if operation.error is None]
            except StoreFullError as exc:
                # Loads are refused, drains go on.
                refused = [operation for operation in left if operation.need_bytes()] or left
                _fail(refused, exc)
                left = [operation for operation in left if operation.error is None]
            except Exception as exc:
                _fail(left, exc)
                return []
        return left

    def _settle(self, committed: list[Operation]) -> None:
        try:
            self._after(committed)
        except Exception as exc:
            self._said.error("store: work after a commit of %s failed", self._env.name, exc_info=exc)


def _fail(operations: list[Operation], exc: Exception) -> None:
    """Each caller raises an exception of its own: threads must not share a traceback."""
    for operation in operations:
        operation.error = copy.copy(exc)
        operation.error.__cause__ = exc.__cause__


def _run_all(batch: list[Operation], txn: Txn) -> None:
    for operation in batch:
        try:
            operation.result = operation.run(txn)
        except Exception as exc:
            if _is_storage(exc):
                raise
            operation.error = exc
            raise _Undo from exc


def _is_storage(exc: BaseException) -> bool:
    """LMDB's own errors concern the whole transaction, not the operation that met one."""
    return type(exc).__module__.partition(".")[0] == "lmdb"
