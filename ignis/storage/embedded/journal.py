"""The journal of the ``sync`` environment: one flush a commit where LMDB alone needs two.

LMDB makes a commit durable by flushing the pages and then the page that says where the B-tree begins. Here a commit is
not flushed at all; its writes are appended to this journal, and *that* is flushed: one sequential write into a file
that
is laid out already. The B-tree follows when the state is made steady (``steady.py``). After a power cut the steady
state
is put back and the journal's records behind it are run again.

Two files take turns. A record belongs to LMDB's transaction number *n*; a file's header has the number after which its
records begin, its base:

| offset | size | field |
| 0 | 8 | magic |
| 8 | 4 | version |
| 12 | 4 | CRC32C of the base |
| 16 | 8 | base: the records are those of base + 1, base + 2, ... |
| 64 | . | records |

| offset | size | field of a record |
| 0 | 8 | base of the file, so that what an earlier turn left does not count |
| 8 | 8 | transaction number |
| 16 | 4 | length of the writes |
| 20 | 4 | CRC32C of the fields before and of the writes |
| 24 | . | writes: u8 1 = put, 2 = delete; u16 key length; u32 value length; key; value |

All little-endian. The rules:

1. A record is appended after LMDB's commit, under the writer lock, and flushed before the caller hears of it. A process
   that dies in between leaves a transaction that nobody was told of and that has no record: whoever comes next sees the
   gap in the numbers and makes the state steady instead of appending.
2. The flush may come after the writer lock was released (`write`, then `flush`), so another process may have appended and
   flushed meanwhile: the file is one, so what lies before its record is then on the disk too. When the flush fails, no
   later one of this process counts; another process that has the file open is told of the failure by its own flush, and
   whoever opens it later makes the state steady before anything else.
3. When the state *n* is about to be made steady, appending moves to the other file, with base *n*. The records of the one
   that is left are flushed first, whoever wrote them, and must reach *n*; the other's old records must be behind the steady
   state already. Otherwise, and for large commits, the state is made steady under the writer lock.
4. Recovery runs the records behind the steady state in order, each file as far as its numbers and checksums go. Running
   them again after another power cut gives the same, since nothing is steady and no file is used anew before the end.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ignis.errors import StoreFailedError
from ignis.native import crc32c
from ignis.storage.embedded.environment import Environment
from ignis.storage.embedded.recorder import MAX_RECORD_BYTES, PUT, WRITE, Recorder
from ignis.storage.os_errors import store_error, store_errors

__all__ = ["Journal"]

log = logging.getLogger("ignis.storage")

FILES = ("journal.0", "journal.1")
FILE_BYTES = 8 << 20

_HEADER = struct.Struct("<8sIIQ")
_MAGIC = b"IGNJRNL\0"
_VERSION = 1
_RECORDS_AT = 64
_RECORD = struct.Struct("<QQII")
_BASE = struct.Struct("<Q")


class Journal:
    """The journal of one environment as this process uses it. Everything but `flush` and `close` is called with the writer
    lock of the environment held."""

    def __init__(self, directory: Path) -> None:
        self._fds: list[int] = []
        try:
            for name in FILES:
                self._fds.append(_open(directory / name))
        except BaseException:
            self.close()
            raise
        self._current = 0
        self._base = -1
        self._offset = _RECORDS_AT
        self._last = -1
        self.appended = 0
        self._flushing = threading.Lock()  # of several flushes of one file at a time only one is told that it failed
        self._failed: str | None = None
        self._marks = threading.Lock()  # over where we are, above, and the two below: `flush` has no writer lock
        self._flushed = -1
        """All that this process appended up to this transaction is on the disk."""
        self._open_at = (-1, _RECORDS_AT)
        """(base, offset): what lies behind is this process's own and not flushed."""

    # -- appending

    def append(self, txnid: int, recorder: Recorder) -> bool:
        """Makes the committed transaction durable. False when it has to be made steady instead.

        Raises StoreFailedError when that failed.
        """
        if not self.write(txnid, recorder):
            return False
        try:
            self.flush(txnid)
        except StoreFailedError:
            self.retract()
            raise
        return True

    def write(self, txnid: int, recorder: Recorder) -> bool:
        """`append` without the flush: the transaction is durable when `flush` has returned."""
        if recorder.nbytes > MAX_RECORD_BYTES:
            return False
        # The numbers alone do not tell: a process that only flushes moves on to the other file without committing.
        if self._last != txnid - 1 or self._newest() != (self._current, self._base):
            self._catch_up()
            if self._last != txnid - 1:
                return False
        size = _RECORD.size + recorder.nbytes
        if self._offset + size > FILE_BYTES:
            return False
        writes = b"".join(recorder.parts)
        head = _RECORD.pack(self._base, txnid, len(writes), 0)[:-4]
        record = b"".join((head, crc32c(writes, crc32c(head)).to_bytes(4, "little"), writes))
        try:
            if os.pwrite(self._fds[self._current], record, self._offset) != len(record):
                raise OSError("short write")
        except OSError as exc:
            self._erase(self._offset)
            raise StoreFailedError(f"store: journal: {exc}") from exc
        with self._marks:
            self._offset += size
            self._last = txnid
        self.appended += 1
        return True

    def has_room(self, size: int) -> bool:
        """Whether a record of about ``size`` bytes would be appended, so that no flush of everything would follow."""
        return size <= MAX_RECORD_BYTES and self._offset + size + _RECORD.size <= FILE_BYTES

    def flush(self, txnid: int) -> None:
        """Returns when what this process appended up to that transaction is on the disk. From any thread, with or without
        the writer lock; not bounded but by the disk.

        Raises StoreFailedError, and for ever after: the disk may lack what a later flush would report as written.
        """
        with self._flushing:
            if self._failed is not None:
                raise StoreFailedError(self._failed)
            if self._flushed >= txnid:
                return
            with self._marks:
                last, offset, base, current = self._last, self._offset, self._base, self._current
            if last < txnid:  # the numbers were forgotten after a failure
                raise StoreFailedError(f"store: journal: transaction {txnid} is not in it")
            self._flush_file(current)
            with self._marks:
                self._flushed = max(self._flushed, last)
                self._open_at = max(self._open_at, (base, offset))

    def _flush_file(self, index: int) -> None:
        """Caller holds ``_flushing``."""
        try:
            _flush(self._fds[index])
        except OSError as exc:
            self._failed = f"store: journal: {exc}"
            raise StoreFailedError(self._failed) from exc

    def retract(self) -> None:
        """After a flush that failed: what this process has appended since the last good one shall not be built upon. Others
        could still read it, from memory, and append behind it; without it they see the gap and make the state steady.
        Nobody else may have committed since."""
        with self._marks:
            base, offset = self._open_at
        self._erase(offset if base == self._base else _RECORDS_AT)

    @property
    def last(self) -> int:
        """The transaction of the newest record, as far as this process has read."""
        return self._last

    def _erase(self, offset: int) -> None:
        self._last = -1
        with suppress(OSError):
            os.pwrite(self._fds[self._current], bytes(_RECORD.size), offset)

    def move_on(self, txnid: int, steady: int) -> bool:
        """Begins the other file behind ``txnid``, the state that is about to be made steady; ``steady`` is the one on the
        disk now. False when the other file is still needed, or the records do not reach ``txnid``."""
        current, base = self._newest()
        if base != txnid:  # else nothing was committed since
            if base > steady:
                return False
            if steady < txnid:
                if self._last != txnid or (current, base) != (self._current, self._base):
                    self._catch_up()
                    if self._last != txnid:
                        return False  # a process died before its record: nothing may begin behind that gap
                with self._flushing:
                    self._flush_file(current)
            self._begin(1 - current, txnid)
        with self._marks:
            self._flushed = max(self._flushed, txnid)
        return True

    def _newest(self) -> tuple[int, int]:
        """The file that is appended to now, by whichever process, and its base."""
        bases = [_read_base(fd) for fd in self._fds]
        current = 0 if bases[0] >= bases[1] else 1
        return current, bases[current]

    def _begin(self, index: int, base: int) -> None:
        # Flushed with the first record of this turn; until then the file is empty either way.
        packed = _BASE.pack(base)
        try:
            os.pwrite(self._fds[index], _HEADER.pack(_MAGIC, _VERSION, crc32c(packed), base), 0)
        except OSError as exc:
            self._last = -1
            raise StoreFailedError(f"store: journal: {exc}") from exc
        with self._marks:
            self._current, self._base, self._offset, self._last = index, base, _RECORDS_AT, base
            self._open_at = max(self._open_at, (base, _RECORDS_AT))

    def _catch_up(self) -> None:
        """Finds the end that other processes have reached."""
        current, base = self._newest()
        offset, last = self._offset, self._last
        if (current, base) != (self._current, self._base) or last < 0:
            offset, last = _RECORDS_AT, base
        for txnid, end, _ in _records(self._fds[current], base, offset, last):
            offset, last = end, txnid
        with self._marks:
            self._current, self._base, self._offset, self._last = current, base, offset, last
            # What others have appended behind ours they may have acknowledged: it must never be erased.
            self._open_at = max(self._open_at, (self._base, self._offset))

    # -- recovery

    def outstanding(self, steady: int) -> tuple[int, int]:
        """How many records there are behind the steady state, and their bytes."""
        found = list(self._behind(steady))
        return len(found), sum(len(writes) for _, writes in found)

    def replay(self, env: Environment, steady: int) -> int:
        """Runs the records behind the steady state; returns how many. The environment is at that state, and the caller holds
        a pin on it: it is needed again when we die at this."""
        count = 0
        for _, writes in self._behind(steady):
            env.transact(lambda txn: _run(txn, writes))  # noqa: B023 - called at once
            count += 1
        return count

    def _behind(self, steady: int) -> Iterator[tuple[int, bytes]]:
        """(transaction number, writes) of the records behind the steady state, in order."""
        last = steady
        for fd in sorted(self._fds, key=_read_base):
            base = _read_base(fd)
            if base < 0:
                continue
            if base > last:
                log.error("store: journal begins behind transaction %d, the steady state is %d", base, last)
                break
            for txnid, _, writes in _records(fd, base, _RECORDS_AT, base):
                if txnid == last + 1:
                    last = txnid
                    yield txnid, writes

    def close(self) -> None:
        """Lets go of the files; also in the child of a fork."""
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds = []


def _open(path: Path) -> int:
    """Opens a file, laying it out with zeros first: flushing writes into it then moves data and nothing else."""
    with store_errors(str(path)):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        zeros = bytes(1 << 20)
        while size < FILE_BYTES:
            size += os.pwrite(fd, zeros[: FILE_BYTES - size], size)
        os.fsync(fd)
    except OSError as exc:
        os.close(fd)
        raise store_error(str(path), exc) from exc
    return fd


def _flush(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        import fcntl

        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", 51))  # macOS: fsync alone stops at the disk's cache


def _read_base(fd: int) -> int:
    """-1 for a file that was never begun, or whose header is damaged."""
    data = os.pread(fd, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        return -1
    magic, version, check, base = _HEADER.unpack(data)
    if magic != _MAGIC or version != _VERSION or check != crc32c(_BASE.pack(base)):
        return -1
    return int(base)


def _records(fd: int, base: int, offset: int, last: int) -> Iterator[tuple[int, int, bytes]]:
    """(transaction number, end offset, writes) of the records behind ``offset``, as far as they follow each other."""
    while base >= 0:
        head = os.pread(fd, _RECORD.size, offset)
        if len(head) < _RECORD.size:
            return
        of, txnid, size, check = _RECORD.unpack(head)
        if of != base or txnid != last + 1 or size > MAX_RECORD_BYTES:
            return
        writes = os.pread(fd, size, offset + _RECORD.size)
        if len(writes) != size or crc32c(writes, crc32c(head[:-4])) != check:
            return
        offset, last = offset + _RECORD.size + size, txnid
        yield txnid, offset, writes


def _run(txn: Any, writes: bytes) -> None:
    view, at = memoryview(writes), 0
    while at < len(view):
        kind, key_len, value_len = WRITE.unpack_from(view, at)
        at += WRITE.size
        key = bytes(view[at : at + key_len])
        at += key_len
        if kind == PUT:
            txn.put(key, view[at : at + value_len])
            at += value_len
        else:
            txn.delete(key)
