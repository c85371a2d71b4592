# cython: language_level=3, boundscheck=False, wraparound=False
"""Events and a mutex that processes share through mapped files, and the identity of processes.

Everything here is safe from several threads. A handle made before ``fork()`` raises ForkedHandleError in the child.
"""

import os
import threading

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

include "_errors.pxi"
include "_time.pxi"

cdef enum:
    SPIN_NS = 20000
    SLICE_NS = 100000000


def process_start_time(pid: int) -> int:
    """When a process started, in the kernel's own unit; with the pid it names one process for ever.

    0 when there is no such process (a zombie counts as none).
    """
    return ign_process_start_time(pid)


def process_alive(pid: int, start_time: int) -> bool:
    """Is this very process (not a later one with the same pid) still running?"""
    return start_time != 0 and ign_process_start_time(pid) == start_time


cdef class EventBoard:
    """N event words, 64 bytes apart, each with a sequence number that ``notify`` raises.

    Args:
        path: a file that all participants map, made if it is not there (0600, complete before its name appears);
            None for words on the heap, shared by threads only.
        events: how many; all participants must ask for the same number, 1..2**20.

    Raises:
        RegionFormatError, RegionTruncatedError, RegionIOError: the file is something else, or cannot be used.

    To wait without missing anything: read ``sequence``, look at the condition, then ``wait`` with what was read.
    """

    def __cinit__(self, path, events: int = 1024):
        cdef bytes encoded
        cdef int rc
        if not 0 < events <= <int>IGN_BOARD_MAX_EVENTS:
            raise ValueError(f"events must be 1..{IGN_BOARD_MAX_EVENTS}, got {events}")
        self._path = path
        if path is None:
            rc = ign_board_open(&self._board, NULL, events)
        else:
            encoded = os.fsencode(path)
            rc = ign_board_open(&self._board, encoded, events)
        if rc != IGN_OK:
            raise_code(rc, str(path))
        self.events = events

    def __dealloc__(self):
        ign_board_close(&self._board)

    cdef uint32_t _index(self, object index) except? 0xFFFFFFFF:
        cdef int rc = IGN_E_CLOSED if self._closing else ign_board_check(&self._board)
        if rc != IGN_OK:
            raise_code(rc, f"event board {self._path}")
        if not 0 <= index < self.events:
            raise IndexError(f"event {index}, the board has {self.events}")
        return index

    def sequence(self, index: int) -> int:
        """The event's current sequence number."""
        return ign_board_sequence(&self._board, self._index(index))

    def notify(self, index: int) -> None:
        """Raises the sequence number; a system call only when somebody sleeps."""
        ign_event_advance(&self._board.events[self._index(index)])

    def wait(self, index: int, seen: int, timeout) -> int:
        """Waits until the sequence number is not ``seen``, or the timeout (seconds) runs out; returns the current one.

        A ``seen`` that the event never had (-1) returns at once. The GIL is released; signals are handled every 100 ms.
        """
        cdef uint32_t i = self._index(index)
        cdef uint64_t now = ign_board_sequence(&self._board, i)
        if seen < 0 or now != <uint64_t>seen:
            return now
        cdef uint64_t c_seen = seen, left = timeout_ns(timeout), began = ign_now_ns(), spin_until, until = began + left
        cdef ign_event *event = &self._board.events[i]
        cdef int rc, k
        if left == 0:
            return now
        self._waiting += 1
        try:
            with nogil:
                spin_until = began + (SPIN_NS if left > SPIN_NS else left)
                while now == c_seen and ign_now_ns() < spin_until:
                    for k in range(32):
                        ign_cpu_relax()
                    now = ign_board_sequence(&self._board, i)
            while now == c_seen:
                began = ign_now_ns()
                if began >= until:
                    break
                left = until - began
                with nogil:
                    rc = ign_event_wait_sequence(event, c_seen, left if left < SLICE_NS else SLICE_NS, &now)
                PyErr_CheckSignals()
                if now == c_seen:
                    self._index(index)  # closed, or the file was cut
            return now
        finally:
            self._waiting -= 1

    def close(self, timeout=5.0) -> None:
        """Ends the handle; waits of other threads end with ClosedError first. Idempotent.

        Raises:
            WaitTimeoutError: a thread was still inside a wait; the words stay mapped until the object goes.
        """
        cdef uint64_t until = ign_now_ns() + timeout_ns(timeout)
        self._closing = True
        while self._waiting:
            if ign_now_ns() >= until:
                raise _errors.WaitTimeoutError(f"event board {self._path}: {self._waiting} thread(s) still wait")
            threading.Event().wait(0.005)
        ign_board_close(&self._board)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef class ProcessMutex:
    """A mutex in a mapped file that is released when its holder dies, ``kill -9`` included.

    Args:
        path: the file, made if it is not there.

    The OS thread that acquired it must release it. Not re-entrant. Linux: a robust process-shared pthread mutex; elsewhere a
    polled file lock.
    """

    def __cinit__(self, path):
        cdef bytes encoded = os.fsencode(path)
        cdef int rc = ign_mutex_open(&self._mutex, encoded)
        if rc != IGN_OK:
            raise_code(rc, str(path))
        self._path = path

    def __dealloc__(self):
        # A lock that is held at this moment lies in the kernel's list of this thread: unmapping it would break that list,
        # so one page is left behind instead.
        if not self._held or ign_mutex_check(&self._mutex) == IGN_E_FORKED:
            ign_mutex_close(&self._mutex)

    cdef int _check(self) except -1:
        cdef int rc = IGN_E_CLOSED if self._closing else ign_mutex_check(&self._mutex)
        if rc != IGN_OK:
            raise_code(rc, f"mutex {self._path}")
        return 0

    def acquire(self, timeout) -> bool:
        """Takes the lock within ``timeout`` seconds (0 tries once); False when somebody else kept it.

        Raises:
            RuntimeError: this thread holds it already. ClosedError, ForkedHandleError, RegionIOError.
        """
        self._check()
        cdef uint64_t left = timeout_ns(timeout), until = ign_now_ns() + left, now
        cdef int rc
        if self._held and self._holder_thread == threading.get_ident():
            raise RuntimeError(f"mutex {self._path} is held by this thread; it is not re-entrant")
        rc = ign_mutex_acquire(&self._mutex, 0)
        if rc == IGN_TIMEOUT and left:
            self._waiting += 1
            try:
                while rc == IGN_TIMEOUT:
                    now = ign_now_ns()
                    if now >= until:
                        break
                    left = until - now
                    with nogil:
                        rc = ign_mutex_acquire(&self._mutex, left if left < SLICE_NS else SLICE_NS)
                    if rc == IGN_TIMEOUT:
                        PyErr_CheckSignals()
                        self._check()
            finally:
                self._waiting -= 1
        if rc == IGN_TIMEOUT:
            return False
        if rc == IGN_E_BUSY:
            raise RuntimeError(f"mutex {self._path} is held by this thread; it is not re-entrant")
        if rc != IGN_OK:
            raise_code(rc, f"mutex {self._path}")
        self._held = True
        self._holder_thread = threading.get_ident()
        return True

    def release(self) -> None:
        """Lets go. RuntimeError when this thread does not hold it."""
        cdef int rc
        if not self._closing or not self._held:
            self._check()
        if not self._held or self._holder_thread != threading.get_ident():
            raise RuntimeError(f"mutex {self._path} is not held by this thread")
        self._held = False
        rc = ign_mutex_release(&self._mutex)
        if rc != IGN_OK:
            raise RuntimeError(f"mutex {self._path} is not held by this thread")

    @property
    def holder_pid(self) -> int:
        """Process that holds it, 0 when free. May be out of date by the time it is read."""
        self._check()
        return ign_mutex_holder(&self._mutex)

    @property
    def recovered(self) -> int:
        """How often this handle took the lock over from a holder that had died."""
        return self._mutex.recovered

    def close(self, timeout=5.0) -> None:
        """Ends the handle. Idempotent.

        Raises:
            RuntimeError: a thread of this process holds it. WaitTimeoutError: one still waits for it.
        """
        cdef uint64_t until = ign_now_ns() + timeout_ns(timeout)
        if self._held and ign_mutex_check(&self._mutex) == IGN_OK:
            raise RuntimeError(f"mutex {self._path} is held; release it first")
        self._closing = True
        while self._waiting:
            if ign_now_ns() >= until:
                raise _errors.WaitTimeoutError(f"mutex {self._path}: {self._waiting} thread(s) still wait")
            threading.Event().wait(0.005)
        ign_mutex_close(&self._mutex)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
