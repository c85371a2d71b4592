"""One LMDB environment: bounded writer lock, growth, room kept for drains, and what a failed write does.

The only module that imports ``lmdb``. An environment may be open once per process; `Directory` sees to that.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import lmdb

from ignis.errors import (
    ConfigError,
    IgnisError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFormatError,
    StoreFullError,
)
from ignis.native import ProcessMutex
from ignis.storage.embedded.gate import Gate
from ignis.storage.embedded.reading import Pin, Reading
from ignis.storage.embedded.recorder import Recorder
from ignis.storage.os_errors import NO_ROOM, store_error

__all__ = ["Cursor", "Environment", "Pin", "Txn", "WouldWait"]

log = logging.getLogger("ignis.storage")

Txn: TypeAlias = "lmdb.Transaction[memoryview]"
Cursor: TypeAlias = "lmdb.Cursor[memoryview]"
T = TypeVar("T")

MAX_READERS = 1_022
DRAIN_RESERVE_BYTES = 256 << 10
"""What deletes alone need behind the last page in use."""
DATA_RESERVE_BYTES = 2_176 << 10
"""Kept allocated on disk behind the last page in use of messages, so that a full disk stops neither deletes nor transfers of
messages of the largest usual size (1 MiB), of which two must fit: what one leaves free may be a page short for the next."""
_STEP_LOW_BYTES, _STEP_HIGH_BYTES = 1 << 20, 64 << 20
_LOAD_MARK = 0.9
_AT_HAND_BYTES = 64 << 10
"""What a small transaction writes beside the records that it loads."""
_FOLLOW_WAIT_S = 0.2
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_NO_KEY = b"\0"
_NO_MEANS = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.EBUSY}
"""Of the process or the machine, at this moment: nothing was written, and the same call may succeed later."""
_LOST_WRITES = {errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EBADF}
"""What the disk says when a write fails, also one that a large transaction makes before its commit."""


class WouldWait(Exception):
    """Of the calls that never wait: they would have to. Nothing was done."""


class Environment:
    """One LMDB environment directory, opened in this process. Thread-safe.

    Args:
        path: its directory; made (0700) when it is not there.
        name: for messages: the durability class, or ``claims``.
        durable: every commit is flushed to the disk before it returns.
        map_bytes, max_bytes: address space at first, and the limit for loads.
        timeout_s: longest wait for the writer lock.
        reserve_bytes: room on the disk that loads leave to deletes and transfers.
        mutex: bounds the wait for LMDB's own writer lock, which knows no timeout. Owned by the environment.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        durable: bool,
        map_bytes: int,
        max_bytes: int,
        timeout_s: float,
        mutex: ProcessMutex,
        reserve_bytes: int = DATA_RESERVE_BYTES,
    ) -> None:
        self.path = path
        self._reserve_bytes = reserve_bytes
        self.name = name
        self.commits = 0
        self._durable = durable
        self.before_remap: Callable[[], None] | None = None
        self.after_remap: Callable[[], None] | None = None
        self.persist: Callable[[int, Recorder], None] | None = None
        self.note: Callable[[int, Recorder], None] | None = None
        self.has_room_to_note: Callable[[int], bool] = lambda size: True
        self.free_pages: Callable[[], None] | None = None
        self.before_writing: Callable[[], None] | None = None
        self._max_bytes = max_bytes
        self._drain_bytes = max_bytes + max(16 << 20, max_bytes // 8)
        self._timeout_s = timeout_s
        self._mutex = mutex
        self._threads = threading.Lock()
        self._gate = Gate(f"environment {name}", timeout_s)
        self._failed: str | None = None
        self._unusable: str | None = None
        self._preallocates = hasattr(os, "posix_fallocate")
        self.spare_bytes: int | None = None
        """While a transaction with transfers runs on a full store: bytes that are free, the reserve included. None = enough."""
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lmdb = lmdb.open(
                str(path),
                map_size=min(map_bytes, max_bytes),
                mode=0o600,
                sync=durable,
                metasync=durable,
                max_readers=MAX_READERS,
                max_spare_txns=0,  # a child that lets go of its copy after fork would free the slots of spare ones
            )
        except lmdb.Error as exc:
            mutex.close()
            code = getattr(exc, "code", 0)
            if code > 0:  # the system's, not one of LMDB's own
                raise store_error(f"environment {name} cannot be opened", OSError(code, os.strerror(code))) from exc
            raise StoreFailedError(f"environment {name} cannot be opened: {exc}") from exc
        self._lmdb.reader_check()
        self._page_bytes = self._lmdb.stat()["psize"]
        try:
            # LMDB's file locks are on lock.mdb: closing a descriptor of the data file releases none of them.
            self._fd = os.open(path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        except OSError as exc:
            self._lmdb.close()  # else it counts as open in this process, and the next try is refused
            mutex.close()
            raise store_error(f"environment {name} cannot be opened", exc) from exc
        self._file_bytes = os.fstat(self._fd).st_size
        end = (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes
        if self._file_bytes < end:
            # Reading a page that is not there would be a bus error.
            self._lmdb.close()
            os.close(self._fd)
            mutex.close()
            raise StoreFormatError(f"{path}/data.mdb was cut short: {self._file_bytes} bytes, its pages end at {end}")

    # -- reading

    def reading(self) -> Reading:
        """``with env.reading() as txn``. Keep it short: pages that it sees are not used again meanwhile."""
        return Reading(self)

    def begin_read(self) -> Txn:
        """A read transaction, to be ended with `end_read` by any thread. Prefer `reading`."""
        while True:
            self._gate.enter()
            txn = self._begin_inside()
            if txn is not None:
                return txn
            with self.writer():
                self._remap(0)

    def try_begin_read(self) -> Txn:
        """`begin_read`, or WouldWait where the map is to change."""
        txn = self._begin_inside() if self._gate.try_enter() else None
        if txn is None:
            raise WouldWait
        return txn

    def _begin_inside(self) -> Txn | None:
        """None when another process has grown the map. Without a transaction the gate is left."""
        try:
            if self._unusable is not None:
                raise StoreFailedError(self._unusable)
            return self._lmdb.begin(buffers=True)
        except BaseException as exc:
            self._gate.leave()
            if isinstance(exc, lmdb.MapResizedError):
                return None
            if isinstance(exc, lmdb.Error):
                raise self.failure(exc) from exc
            raise

    def end_read(self, txn: Txn) -> None:
        txn.abort()
        self._gate.leave()

    # -- writing

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Holds the writer lock over threads and processes. Raises StoreBusyError naming the holder's process."""
        self._lock_writer()
        try:
            yield
        finally:
            self._unlock_writer()

    def _lock_writer(self) -> None:
        if not self._threads.acquire(timeout=self._timeout_s):
            raise StoreBusyError(
                f"store: writer lock of {self.name} held by this process for over {self._timeout_s:g} s"
            )
        try:
            if not self._mutex.acquire(self._timeout_s):
                raise StoreBusyError(
                    f"store: writer lock of {self.name} held by process {self._mutex.holder_pid} "
                    f"for over {self._timeout_s:g} s (write_timeout_s)"
                )
        except BaseException:
            self._threads.release()
            raise

    def _unlock_writer(self) -> None:
        self._mutex.release()
        self._threads.release()

    def transact(
        self,
        run: Callable[[Txn], T],
        need_bytes: int = 0,
        visible: Callable[[], None] | None = None,
        move_bytes: int = 0,
    ) -> T:
        """Runs ``run`` in one write transaction and commits it, as durable as the environment is.

        Args:
            run: may be called more than once; what an earlier call wrote is gone then. Raising aborts.
            need_bytes: room that loads in it will take; 0 for transactions that free room.
            move_bytes: what transfers in it will write, which frees as much; see `spare_bytes`.
            visible: called when others can see it, before it is durable; must not raise.

        Raises:
            StoreFullError: no room; nothing was written. StoreFailedError, StoreBusyError; what ``run`` raises.
        """
        self._lock_writer()
        try:
            self._may_write()
            if need_bytes:
                self._make_room(need_bytes)
            else:
                self._keep_reserve()
            self.spare_bytes = self._spare(move_bytes) if move_bytes else None
            limit = self._max_bytes if need_bytes else self._drain_bytes
            result, txnid, recorder = self._attempt_with_room(run, limit)
            if visible is not None:
                visible()
            if recorder is not None and recorder.parts and self.persist is not None:
                # Committed, and not durable yet: until this returns nobody is told.
                self.persist(txnid, recorder)
            return result
        finally:
            self._unlock_writer()

    def try_transact(
        self, run: Callable[[Txn], T], need_bytes: int = 0, visible: Callable[[], None] | None = None
    ) -> tuple[T, int | None]:
        """`transact` for a thread that must never wait: for a lock, for room in the file or the map, or for a flush.

        Returns what ``run`` returned, and the number of the transaction if it is not durable before `Steady.flush_noted`
        was called with it.

        Raises WouldWait, with nothing written; what `transact` raises.
        """
        if not self._threads.acquire(blocking=False):
            raise WouldWait
        try:
            if not self._mutex.acquire(0):
                raise WouldWait
            try:
                self._may_write()
                if not self._room_at_hand(need_bytes):
                    raise WouldWait
                result, txnid, recorder = self._attempt(run)
                if visible is not None:
                    visible()
                if recorder is None or not recorder.parts or self.note is None:
                    return result, None
                self.note(txnid, recorder)
                return result, txnid
            except (lmdb.MapFullError, lmdb.MapResizedError):
                raise WouldWait from None
            finally:
                self._mutex.release()
        finally:
            self._threads.release()

    def _room_at_hand(self, need_bytes: int) -> bool:
        """Whether a transaction needs neither a longer file nor a larger map, and is small enough for the journal. Caller
        holds `writer`."""
        if not self.has_room_to_note(need_bytes + _AT_HAND_BYTES):
            return False
        info = self._lmdb.info()
        end = (info["last_pgno"] + 1) * self._page_bytes + need_bytes
        if need_bytes and end + DRAIN_RESERVE_BYTES > int(self._max_bytes * _LOAD_MARK):
            return False
        in_file = end + (self._reserve(end) if need_bytes else self._reserve(end) // 2)
        return end + DRAIN_RESERVE_BYTES <= info["map_size"] and (in_file <= self._file_bytes or not self._preallocates)

    def _attempt_with_room(self, run: Callable[[Txn], T], limit: int) -> tuple[T, int, Recorder | None]:
        """`_attempt` in a map that grows up to ``limit`` bytes; what was retired is made room of before it is given up."""
        tidied = self.free_pages is None
        while True:
            try:
                try:
                    return self._attempt(run)
                except lmdb.MapFullError:
                    self._grow(limit)
                except lmdb.MapResizedError:
                    self._remap(0)
            except StoreFullError:
                if tidied:
                    raise
                tidied = True
                self._free_retired()

    def _free_retired(self) -> None:
        """Makes room of what was retired, also by the newest transaction: LMDB uses its pages again only when a later one is
        the oldest that anybody looks at. Caller holds `writer`."""
        assert self.free_pages is not None
        with suppress(lmdb.Error):
            txn = self._lmdb.begin(write=True)
            try:
                txn.put(_NO_KEY, b"")  # a transaction that writes nothing is none
                txn.delete(_NO_KEY)
                txn.commit()
            except BaseException:
                with suppress(lmdb.Error):
                    txn.abort()
                raise
        self.free_pages()

    def _attempt(self, run: Callable[[Txn], T]) -> tuple[T, int, Recorder | None]:
        self._gate.enter()
        committing = False
        try:
            txn = self._lmdb.begin(write=True, buffers=True)
            try:
                recorder = None if self.persist is None else Recorder(txn)
                result = run(txn if recorder is None else cast(Txn, recorder))
                txnid = txn.id()
                committing = True
                txn.commit()
            except BaseException:
                with suppress(lmdb.Error):
                    txn.abort()
                raise
            self.commits += 1
            return result, txnid, recorder
        except (lmdb.MapFullError, lmdb.MapResizedError):
            raise
        except lmdb.Error as exc:
            raise self.failure(exc, writing=True, committing=committing) from exc
        finally:
            self._gate.leave()

    # -- failure

    def check_usable(self) -> None:
        """Raises StoreFailedError after a failed durable write. Caller holds `writer`, or only looks."""
        failed = self._unusable or self._failed
        if failed is not None:
            raise StoreFailedError(failed)

    def _may_write(self) -> None:
        """Raises StoreFailedError, and what a pin that was lost costs to get again. Caller holds `writer`."""
        self.check_usable()
        if self.before_writing is not None:
            self.before_writing()

    def fail(self, why: str) -> None:
        """From now on this process writes nothing to the environment until it is opened anew."""
        if self._failed is None:
            self._failed = f"store: environment {self.name} failed and must be reopened: {why}"
            log.error("%s", self._failed)

    def reading_failed(self, exc: BaseException) -> IgnisError | None:
        """The exception of ours for one of LMDB's that came up in a read transaction; None for others."""
        return self.failure(exc) if isinstance(exc, lmdb.Error) else None

    def failure(self, exc: lmdb.Error, *, writing: bool = False, committing: bool = False) -> IgnisError:
        """The exception of ours for one of LMDB's.

        A write that failed, and nothing else, marks the environment as failed: what is on the disk is unknown from then on.
        Everything else concerns the one call. Its transaction was aborted, and the next one begins where it began.

        Args:
            writing: it came up in a write transaction, or ``committing``, in its commit.
        """
        code = getattr(exc, "code", 0)
        if code in NO_ROOM:
            return StoreFullError(f"store: disk full ({self.name}): {exc}")
        if code in _NO_MEANS:
            return StoreBusyError(f"store: {self.name}: no memory or no descriptor at the moment: {exc}")
        if isinstance(exc, lmdb.BadValsizeError):
            return ConfigError(f"store: {self.name}: a key is empty or longer than 511 bytes: {exc}")
        if isinstance(exc, lmdb.ReadersFullError):
            return StoreBusyError(f"store: all {MAX_READERS} reader slots of {self.name} are taken")
        if isinstance(exc, lmdb.TxnFullError):
            return StoreFullError(f"store: too much for one transaction ({self.name}): {exc}")
        if writing and not self._durable and self._disk_is_full():
            # Nothing is flushed by such a commit, so this is LMDB's word for a write that was cut short by a full disk.
            return StoreFullError(f"store: disk full ({self.name}): {exc}")
        # Numbers below 0 are LMDB's own, about what it was asked for; those above come from the operating system.
        if isinstance(exc, lmdb.PanicError) or (writing and (code in _LOST_WRITES or (committing and code >= 0))):
            self.fail(str(exc))
            return StoreFailedError(f"store: environment {self.name}: {exc}")
        if isinstance(exc, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)):
            return StoreFormatError(f"store: environment {self.name} is damaged: {exc}")
        return StoreError(f"store: environment {self.name}: {exc}")

    def _disk_is_full(self) -> bool:
        stat = os.fstatvfs(self._fd)
        return stat.f_bavail * stat.f_frsize < DRAIN_RESERVE_BYTES

    # -- room

    def check_growth(self, grown_bytes: int, of_bytes: int) -> None:
        """Raises StoreFullError when a transfer that grows by so much, to ``of_bytes``, would leave too little room for those
        that do not grow: the whole reserve, or half of it for one that grows by no more than a quarter. In `transact`."""
        spare = self.spare_bytes
        if spare is None or grown_bytes <= 0:
            return
        kept = self._reserve(self._end_bytes())
        if 4 * grown_bytes <= of_bytes:
            kept //= 2
        if grown_bytes + kept > spare:
            raise StoreFullError(
                f"store: disk full ({self.name}): a transfer grows by {grown_bytes} bytes, "
                f"and of {spare} that are free {kept} are kept"
            )

    def _spare(self, move_bytes: int) -> int | None:
        """What `spare_bytes` is to be. Caller holds `writer`."""
        end = (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes
        wanted, in_file = end + move_bytes + self._reserve(end), True
        if self._preallocates and wanted > self._file_bytes:
            try:
                self._extend(wanted, end, move_bytes)
            except StoreFullError:
                in_file = False
        used = self.used_bytes()
        if in_file and used + move_bytes + self._reserve(end) <= self._drain_bytes:
            return None
        most = self._drain_bytes if in_file else min(self._drain_bytes, max(end, self._file_bytes))
        return max(0, most - used)

    def _reserve(self, end_bytes: int) -> int:
        """Room on the disk that loads leave behind the last page: a transfer needs no more than there is to move."""
        return min(self._reserve_bytes, DRAIN_RESERVE_BYTES + end_bytes)

    def _make_room(self, need_bytes: int) -> None:
        """Refuses a load that would leave no room for drains, in the map or on the disk. Caller holds `writer`."""
        # No gate: the map cannot change while the writer lock is held.
        end = (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes
        mark = int(self._max_bytes * _LOAD_MARK)
        if end + need_bytes > mark and self.used_bytes() + need_bytes > mark:
            raise StoreFullError(
                f"store: {self.name} holds {self.used_bytes()} bytes; loads stop at 90 % of {self._max_bytes} (max_store_bytes)"
            )
        wanted = end + need_bytes + self._reserve(end + need_bytes)
        if self._preallocates and wanted > self._file_bytes:
            self._extend(wanted, end, need_bytes)

    def _extend(self, wanted: int, end: int, need_bytes: int) -> None:
        """Allocates the file up to ``wanted`` and a step further. LMDB itself thus never meets a full disk."""
        self._file_bytes = os.fstat(self._fd).st_size
        step = min(max(self._file_bytes // 8, _STEP_LOW_BYTES), _STEP_HIGH_BYTES)
        for size in (wanted + step, wanted):
            if size <= self._file_bytes:
                return
            try:
                os.posix_fallocate(self._fd, self._file_bytes, size - self._file_bytes)
            except OSError as exc:
                if exc.errno in NO_ROOM:
                    continue
                if exc.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                    self._preallocates = False
                    return
                raise StoreFullError(f"store: {self.name} cannot be extended: {exc.strerror}") from exc
            self._file_bytes = size
            return
        # Nothing to be had from the disk; pages of retired messages may still do, once no pin holds them.
        if self.free_pages is not None:
            self.free_pages()
        free_bytes = max(end, self._file_bytes) - self.used_bytes()
        if free_bytes < 4 * need_bytes + 2 * DRAIN_RESERVE_BYTES + self._reserve(end):
            raise StoreFullError(f"store: disk full ({self.name})")

    def _keep_reserve(self) -> None:
        """Before a drain: pages for it behind the last one in use, or, when the disk has none, those that a pin held."""
        end = (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes
        if self._preallocates and end + self._reserve(end) // 2 > self._file_bytes:
            with suppress(StoreFullError):
                self._extend(end + self._reserve(end), end, 0)

    def reserve(self) -> None:
        """Allocates the drains' reserve, as far as the disk has it. For environments without loads."""
        if self._preallocates:
            with suppress(StoreFullError):
                end = self._end_bytes()
                self._extend(end + self._reserve(end), end, 0)

    def _grow(self, limit: int) -> None:
        now = self.map_bytes()
        size = min(max(2 * now, 1 << 20), limit)
        if size <= now:
            raise StoreFullError(f"store: {self.name} has reached {now} bytes (max_store_bytes)")
        self._remap(size)

    def _remap(self, size: int, wait_s: float | None = None) -> None:
        """Maps ``size`` bytes, or (0) what another process has grown the file to. Caller holds `writer`.

        Waits for this process's readers first. When they take longer than ``wait_s`` (WaitTimeoutError) nothing has changed:
        the pin, above all, is dropped only when nothing can come in between any more.
        """
        if size:
            self._check_address_space(size)
        with self._gate.shut(wait_s):
            if self.before_remap is not None:
                self.before_remap()
            try:
                self._lmdb.set_mapsize(size)
            except lmdb.Error as exc:
                # Without a map any access is a crash, reading included.
                self._unusable = f"store: environment {self.name} cannot be mapped at {size} bytes: {exc}"
                log.error("%s", self._unusable)
                raise StoreFailedError(self._unusable) from exc
            if self.after_remap is not None:
                self.after_remap()

    def _check_address_space(self, size: int) -> None:
        """Raises StoreBusyError when so much cannot be mapped at the moment: LMDB takes the old map away first, and would be
        left with none."""
        try:
            mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=mmap.PROT_READ).close()
        except (OSError, OverflowError) as exc:
            raise StoreBusyError(f"store: {self.name} cannot be mapped at {size} bytes at the moment: {exc}") from exc

    # -- figures and upkeep

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    # These read the meta pages in the map, so they must not meet a change of the map.

    def used_bytes(self) -> int:
        """Bytes of pages that hold data; free ones not counted."""
        with self._inside():
            stat = self._lmdb.stat()
        return (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * self._page_bytes

    def _end_bytes(self) -> int:
        with self._inside():
            return (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes

    def map_bytes(self) -> int:
        with self._inside():
            return self._lmdb.info()["map_size"]

    def file_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def last_txnid(self) -> int:
        """The newest committed transaction, by any process. Caller holds `writer`, so the map cannot change."""
        return self._lmdb.info()["last_txnid"]

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._gate.enter()
        try:
            if self._unusable is not None:
                raise StoreFailedError(self._unusable)
            yield
        finally:
            self._gate.leave()

    def follow_growth(self) -> None:
        """Maps what another process has grown the file to, which `pin` needs. Caller holds `writer` and nothing else.

        Raises WaitTimeoutError soon when this process is reading: others must not wait for the writer lock meanwhile.
        """
        try:
            self._lmdb.begin(buffers=True).abort()
        except lmdb.MapResizedError:
            self._remap(0, _FOLLOW_WAIT_S)
        except lmdb.Error as exc:
            raise self.failure(exc) from exc

    def ensure_room(self, room_bytes: int) -> None:
        """Maps at least that much behind the last page, so that the map need not change under a pin."""
        with self.writer():
            wanted = (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes + room_bytes
            if wanted > self._lmdb.info()["map_size"]:
                self._remap(wanted)

    def pin(self) -> Pin:
        """A pin on the newest state. Caller holds `writer`, so that nothing newer comes in between."""
        try:
            return Pin(self._lmdb.begin(buffers=True))
        except lmdb.Error as exc:
            raise self.failure(exc) from exc

    def read_meta_pages(self) -> bytes:
        """The two pages that say where the B-tree begins. Caller holds `writer`."""
        return os.pread(self._fd, 2 * self._page_bytes, 0)

    def flush(self) -> None:
        """Writes everything committed so far to the disk. Raises StoreFailedError, and marks the environment as failed."""
        self.check_usable()
        try:
            self._lmdb.sync(True)
        except lmdb.Error as exc:
            self.fail(f"flush: {exc}")
            raise StoreFailedError(f"store: environment {self.name}: flush: {exc}") from exc

    def abandon(self) -> None:
        """In the child of a fork: lets go of LMDB's handle. Closing it would take the parent's reader slots away, and as
        long as it exists the child cannot open the directory; only its deallocation leaves the parent alone."""
        del self._lmdb
        os.close(self._fd)
        self._fd = -1

    def close(self, timeout: float) -> None:
        """Waits for transactions in flight, then closes. Idempotent. Raises WaitTimeoutError."""
        self._gate.close()
        self._gate.wait_empty(timeout)
        if self._fd >= 0:
            self._lmdb.close()
            os.close(self._fd)
            self._fd = -1
            with suppress(IgnisError, RuntimeError):
                self._mutex.close()
