"""The state to which a ``sync`` or ``interval`` environment returns after a power cut; what ``sync`` has acknowledged since
is in its journal (``journal.py``).

LMDB without flushes can be ruined by a power cut: a page that says where the B-tree begins may reach the disk before
the pages that it points to, and pages are used again to which the state on the disk still refers. Hence, at every
interval:

1. under the writer lock: pin the newest state T with a read transaction and copy the two meta pages;
2. flush the file: everything that T refers to is on the disk;
3. save the copy in ``steady.meta``, in that of its two slots that holds the older state, and flush it;
4. only now drop the pin on the state before.

No page of the saved state is used again while any process that could commit holds a pin on it or on an older one, so
after a power cut putting the saved meta pages back gives exactly T. Each process that has the environment open holds a
pin of its own, from before its first commit, so the death of one leaves the state protected by the others; when all are
dead nobody commits, and the next one to open makes the newest state steady first.

The steady mutex orders the processes: an older state must not be saved over a newer one. It is taken after the writer
lock, never before.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ignis.errors import (
    ClosedError,
    IgnisError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreUnreachableError,
)
from ignis.log_limit import LimitedLog
from ignis.native import ProcessMutex, crc32c
from ignis.storage.embedded.environment import Environment, Pin
from ignis.storage.embedded.files import create_whole, read_or_none
from ignis.storage.embedded.journal import Journal
from ignis.storage.embedded.recorder import Recorder
from ignis.storage.os_errors import store_errors

__all__ = ["Steady", "restore"]

log = logging.getLogger("ignis.storage")

FILE = "steady.meta"
_HEADER = struct.Struct("<8sIIQI")  # magic, version, page bytes, transaction id, CRC32C of what follows
_MAGIC = b"IGNSTDY\0"
_VERSION = 1
_MARK = struct.Struct("<QI")  # transaction id and CRC32C of the slot once more, at its end: written when it was flushed


def _slot_bytes(page_bytes: int) -> int:
    return -(-(_HEADER.size + 2 * page_bytes + _MARK.size) // 4096) * 4096


def _decode(data: bytes) -> tuple[int, bytes] | None:
    """(transaction id, meta pages) of one slot, or None when it is empty or was cut short by a power cut."""
    if len(data) < _HEADER.size:
        return None
    magic, version, page_bytes, txnid, check = _HEADER.unpack_from(data)
    pages = data[_HEADER.size : _HEADER.size + 2 * page_bytes]
    if magic != _MAGIC or version != _VERSION or len(pages) != 2 * page_bytes or check != crc32c(pages):
        return None
    return txnid, pages


def _slots(data: bytes) -> list[tuple[int, bytes] | None]:
    half = len(data) // 2
    return [_decode(data[:half]), _decode(data[half:])]


def _is_marked(data: bytes, index: int, slot: tuple[int, bytes]) -> bool:
    """Whether whoever wrote the slot has flushed it. A process that dies before that leaves the mark of an older state."""
    half = len(data) // 2
    return _MARK.unpack_from(data, (index + 1) * half - _MARK.size) == (slot[0], crc32c(slot[1]))


def restore(directory: Path) -> bool:
    """Puts the saved meta pages back. False when there are none: nothing was ever acknowledged in this environment, or it
    is damaged. Nobody may have the environment open."""
    slots = [slot for slot in _slots(read_or_none(directory / FILE) or b"") if slot is not None]
    if not slots:
        return False
    fd = os.open(directory / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(fd, max(slots)[1], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


class Steady:
    """Keeps one environment's steady state, with a thread of its own. Thread-safe.

    Args:
        env: opened; nothing was committed to it by this process yet.
        mutex: orders processes; owned by this object.
        interval_s: time between flushes.
        timeout_s: longest wait for another process's flush.

    Raises what a flush raises: with the first one not done nothing may be committed.
    """

    def __init__(
        self,
        env: Environment,
        mutex: ProcessMutex,
        interval_s: float,
        timeout_s: float,
        journal: Journal | None = None,
    ) -> None:
        self._env = env
        self._journal = journal
        self._mutex = mutex
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._path = env.path / FILE
        self._pin: Pin | None = None
        self._on_disk: tuple[int, bytes] | None = None
        self._stop = threading.Event()
        self._said = LimitedLog(log)
        self.at_work = threading.Lock()
        self._create()
        # Kept open: a flush must not fail because the process has no descriptor left.
        with store_errors(str(self._path)):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.flush(timeout_s)
        except BaseException:
            self._close_file()
            raise
        env.before_remap = self._before_remap
        env.after_remap = self._after_remap
        env.free_pages = self._flush_held
        env.before_writing = self._ensure_pin
        if journal is not None:
            env.persist = self._persist
            env.note = self._note
            env.has_room_to_note = journal.has_room
        self._thread = threading.Thread(target=self._loop, name="ignis-store-sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:
            raise StoreUnreachableError(f"store: no thread for the flushes of {env.name}: {exc}") from exc

    def flush(self, wait_s: float) -> bool:
        """Makes the newest state steady. False when another process was at it for longer than ``wait_s``."""
        with ExitStack() as held:
            with self._env.writer():
                txnid = self._env.last_txnid()
                if self._pin is not None and self._pin.txnid == txnid:
                    return True
                self._env.follow_growth()
                if not self._mutex.acquire(wait_s):
                    return False
                held.callback(self._mutex.release)
                if self._journal is not None and not self._journal.move_on(txnid, self._saved()):
                    # A process died at this, or before its record: the journal alone does not hold what is not steady.
                    self._flush_held(locked=True)
                    return True
                fresh = self._env.pin()
                pages = self._env.read_meta_pages()
            self._exchange(txnid, pages, fresh)
        return True

    def _flush_held(self, locked: bool = False) -> None:
        """Makes the newest state steady while the caller holds the writer lock (and, ``locked``, the steady mutex)."""
        if not locked:
            self._env.follow_growth()
            if not self._mutex.acquire(self._timeout_s):
                raise StoreBusyError(
                    f"store: flush of {self._env.name} by process {self._mutex.holder_pid} takes too long"
                )
        try:
            txnid = self._env.last_txnid()
            self._exchange(txnid, self._env.read_meta_pages(), self._env.pin())
            if self._journal is not None:
                self._journal.move_on(txnid, txnid)
        finally:
            if not locked:
                self._mutex.release()

    def _exchange(self, txnid: int, pages: bytes, fresh: Pin) -> None:
        try:
            self._make_steady(txnid, pages)
        except BaseException:
            fresh.drop()
            raise
        old, self._pin = self._pin, fresh
        if old is not None:
            old.drop()

    def _persist(self, txnid: int, recorder: Recorder) -> None:
        """Makes a committed transaction durable. Called with the writer lock."""
        assert self._journal is not None
        with self._settling():
            if not self._journal.append(txnid, recorder):
                self._flush_held()

    def _note(self, txnid: int, recorder: Recorder) -> None:
        """Appends a committed transaction to the journal without a flush, which `flush_noted` does. Called with the writer
        lock."""
        assert self._journal is not None
        with self._settling():
            if not self._journal.write(txnid, recorder):
                self._flush_held()

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Around what makes a committed transaction durable. A write or a flush that failed marks the environment as failed.
        After anything else, such as a neighbour's flush that takes too long, the journal has a gap: the next commit sees it
        and makes everything steady, this transaction with it."""
        try:
            yield
        except StoreFailedError as exc:
            self._env.fail(str(exc))
            raise
        except OSError as exc:  # of reading the journal
            raise StoreBusyError(
                f"store: journal of {self._env.name}: {exc}; whether the commit lasts is open"
            ) from exc

    def flush_noted(self, txnid: int) -> None:
        """Returns when what `Environment.try_transact` noted up to that transaction is durable. Without the writer lock.
        Raises StoreFailedError; the environment takes no more writes then."""
        assert self._journal is not None
        try:
            self._journal.flush(txnid)
        except StoreFailedError as exc:
            self._env.fail(str(exc))
            with suppress(IgnisError), self._env.writer():
                if self._env.last_txnid() == self._journal.last:
                    self._journal.retract()
            raise

    def _saved(self) -> int:
        """The transaction of the newest state that is on the disk; -1 when there is none. Caller holds the steady
        mutex."""
        data = self._read()
        newest = self._confirm(data, _slots(data))
        return -1 if newest is None else newest[0]

    def _read(self) -> bytes:
        try:
            return os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        except OSError as exc:
            raise StoreError(f"store: {FILE} of {self._env.name} cannot be read: {exc}") from exc

    def _confirm(self, data: bytes, slots: list[tuple[int, bytes] | None]) -> tuple[int, bytes] | None:
        """The newest slot, which is on the disk when this returns.

        What another process wrote is read from memory, and it may have died before its flush, which its mark would tell.
        Before anything is built on such a slot, and before the older one is overwritten, it is written again and flushed.
        """
        newest = max((slot for slot in slots if slot is not None), default=None)
        if newest is not None and newest != self._on_disk:
            index = slots.index(newest)
            if _is_marked(data, index, newest):
                self._on_disk = newest
            else:
                self._write_slot(index, *newest)
        return newest

    def _write_slot(self, index: int, txnid: int, pages: bytes) -> None:
        size, check = _slot_bytes(self._env.page_bytes), crc32c(pages)
        header = _HEADER.pack(_MAGIC, _VERSION, self._env.page_bytes, txnid, check)
        try:
            os.pwrite(self._fd, header + pages, index * size)
            os.fsync(self._fd)
        except OSError as exc:
            self._env.fail(f"{FILE}: {exc}")
            raise StoreFailedError(f"store: {FILE} of {self._env.name}: {exc}") from exc
        with suppress(OSError):  # without the mark the next process flushes once more
            os.pwrite(self._fd, _MARK.pack(txnid, check), (index + 1) * size - _MARK.size)
        self._on_disk = (txnid, pages)

    def abandon(self) -> None:
        """In the child of a fork, which has neither the thread nor a right to the pin."""
        if self._pin is not None:
            self._pin.abandon()
            self._pin = None
        if self._journal is not None:
            self._journal.close()
        self._close_file()

    def close(self, timeout: float) -> None:
        """Ends the thread, flushes a last time and drops the pin. The environment must be at rest."""
        self._stop.set()
        self._thread.join(timeout)
        try:
            self.flush(min(timeout, self._timeout_s))
        except IgnisError as exc:
            log.error("store: last flush of %s failed: %s", self._env.name, exc)
        if self._pin is not None:
            self._pin.drop()
            self._pin = None
        if self._journal is not None:
            self._journal.close()
        self._close_file()
        self._mutex.close()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1  # a close that could not end is called again
        if fd >= 0:
            os.close(fd)

    def _create(self) -> None:
        """Both slots are written once, so that a full disk cannot stop a flush later."""
        create_whole(self._path, bytes(2 * _slot_bytes(self._env.page_bytes)))

    def _make_steady(self, txnid: int, pages: bytes) -> None:
        """Caller holds the steady mutex and a pin on ``txnid``."""
        data = self._read()
        slots = _slots(data)
        if self._confirm(data, slots) == (txnid, pages):
            return
        self._env.flush()
        older = min((0, 1), key=lambda index: slot[0] if (slot := slots[index]) is not None else -1)
        self._write_slot(older, txnid, pages)

    def _before_remap(self) -> None:
        """The map cannot change under a pin, so the state that the pin guards must not be needed any more."""
        if not self._mutex.acquire(self._timeout_s):
            raise StoreBusyError(f"store: flush of {self._env.name} by process {self._mutex.holder_pid} takes too long")
        try:
            txnid = self._env.last_txnid()
            self._make_steady(txnid, self._env.read_meta_pages())
            if self._journal is not None:
                self._journal.move_on(txnid, txnid)
            if self._pin is not None:
                self._pin.drop()
                self._pin = None
        finally:
            self._mutex.release()

    def _after_remap(self) -> None:
        # Nobody committed since: the writer lock was held all the time. When it fails, `_ensure_pin` tries again.
        self._pin = self._env.pin()

    def _ensure_pin(self) -> None:
        """Before every commit: without a pin it could use the steady state's pages again. Called with the writer lock."""
        if self._pin is None:
            self._flush_held()

    def _loop(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                with self.at_work:
                    self.flush(0)
            except StoreFailedError as exc:
                if not self._stop.is_set():
                    log.error("store: flush of %s failed: %s", self._env.name, exc)
                    self._env.fail(f"background flush: {exc}")
                return
            except ClosedError:
                return
            except Exception as exc:  # no flush failed: the next one makes up for this one
                if self._stop.is_set():
                    return
                self._said.warning("store: flush of %s postponed: %s", self._env.name, exc)
