# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""Events and a mutex that processes share through mapped files, and the identity of processes.

Everything here is safe from several threads. A handle made before ``fork()`` raises ForkedHandleError in the child.
"""

import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t

include "_errors.pxi"
include "_time.pxi"
include "_path.pxi"
include "_whole.pxi"

cdef extern from *:
    """
    static _Thread_local uint64_t ignis_thread_spin_ns;
    static _Thread_local uint64_t ignis_thread_unsignalled; /* 1 + the count of forks at which the thread was not the main one */
    """
    uint64_t ignis_thread_spin_ns
    uint64_t ignis_thread_unsignalled

cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()

cdef extern from "ignis_turn.h" nogil:
    ctypedef struct ign_turn:
        pass
    bint ign_turn_take(ign_turn *turn, uint64_t timeout_ns)
    void ign_turn_give(ign_turn *turn)
    bint ign_turn_crowded(const ign_turn *turn)

cdef ign_turn interpreter_turn  # of the threads that come back with work: see ignis_turn.h
cdef uint64_t TURN_NS = 10000000000  # then the interpreter lock is waited for without a turn

ign_fork_watch()  # from the beginning: a child finds the turn free, whoever had it in its parent

cdef enum:
    SPIN_NS = 20000
    SLICE_NS = 100000000
    LONG_SLICE_NS = 500000000  # of threads that no signal is handled in
    MOST_SPIN_US = 100000


def set_spin(spin_us: int) -> None:
    """How long an `EventBoard.wait` and a `Log.wait` of this thread look before they sleep, in microseconds, 0 to 100,000; an event
    board looks for 20 in any case. The interpreter lock is not held meanwhile, but a core is busy."""
    global ignis_thread_spin_ns
    ignis_thread_spin_ns = <uint64_t>whole(spin_us, "spin_us", 0, MOST_SPIN_US) * 1000


cdef uint64_t thread_spin_ns() noexcept nogil:
    """What `set_spin` has set for this thread."""
    return ignis_thread_spin_ns


cdef bint take_turn() noexcept nogil:
    """Waits for the turn for the interpreter lock; true when it is to be given. For all modules: each has a count of forks of its
    own, and the turn goes by one."""
    return ign_turn_take(&interpreter_turn, TURN_NS)


cdef void give_turn() noexcept nogil:
    ign_turn_give(&interpreter_turn)


cdef bint turn_crowded() noexcept nogil:
    """Whether several threads wait for their turn. Who lets go of the interpreter lock for some microseconds gets it back behind
    them, after two changes of threads each: a short call that need not wait keeps it."""
    return ign_turn_crowded(&interpreter_turn)


cdef bint in_main_thread() except -1:
    """Whether this is the one thread in which signals are handled: the others may wait in one piece."""
    global ignis_thread_unsignalled
    cdef bint main
    if is_unsignalled():
        return False
    main = threading.get_ident() == threading.main_thread().ident
    if not main:
        ignis_thread_unsignalled = <uint64_t>ign_fork_generation() + 1
    return main


cdef bint is_unsignalled() noexcept nogil:
    """Whether it is known of this thread that it is not the main one. In a child of ``fork()`` another one is."""
    return ignis_thread_unsignalled == <uint64_t>ign_fork_generation() + 1


def process_start_time(pid: int) -> int:
    """When a process started, in the kernel's own unit; with the pid it names one process for ever.

    0 when there is no such process (a zombie counts as none).
    """
    return ign_process_start_time(_as_index(pid))


def process_alive(pid: int, start_time: int) -> bool:
    """Is this very process (not a later one with the same pid) still running?"""
    return start_time != 0 and ign_process_start_time(_as_index(pid)) == _as_index(start_time)


@cython.final
@cython.no_gc  # it refers to text only
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
        cdef uint32_t count = <uint32_t>whole(events, "events", 1, IGN_BOARD_MAX_EVENTS)
        cdef bytes encoded
        cdef int rc
        if path is None:
            rc = ign_board_open(&self._board, NULL, count)
        else:
            self._path, encoded = path_pair(path)
            rc = ign_board_open(&self._board, encoded, count)
        if rc != IGN_OK:
            raise_code(rc, "event board on the heap" if path is None else self._path)
        self.events = count

    def __dealloc__(self):
        ign_board_close(&self._board)

    cdef int _check(self) except -1:
        cdef int rc = IGN_E_CLOSED if self._closing else ign_board_check(&self._board)
        if rc != IGN_OK:
            raise_code(rc, f"event board {self._path}")
        return 0

    cdef uint32_t _index(self, object index) except? 0xFFFFFFFF:
        """The index as a number, and the board open: in this order, because asking an object for its number may run Python."""
        cdef Py_ssize_t i = small_index(index)
        self._check()
        if not 0 <= i < <Py_ssize_t>self.events:
            raise IndexError(f"event {index}, the board has {self.events}")
        return <uint32_t>i

    def sequence(self, index: int) -> int:
        """The event's current sequence number."""
        cdef uint32_t i = self._index(index)
        cdef uint64_t now = ign_board_sequence(&self._board, i)
        self._check()  # zeros of a file that was cut are no number
        return now

    def notify(self, index: int) -> None:
        """Raises the sequence number; a system call only when somebody sleeps."""
        cdef uint32_t i = self._index(index)
        ign_event_advance(&self._board.events[i])
        self._check()

    def wait(self, index: int, seen: int, timeout) -> int:
        """Waits until the sequence number is not ``seen``, or the timeout (seconds) runs out; returns the current one.

        A ``seen`` that the event never had (-1) returns at once. The GIL is released; signals are handled every 100 ms. How long
        it looks before it sleeps: `set_spin`.
        """
        cdef uint64_t spin = max(<uint64_t>SPIN_NS, ignis_thread_spin_ns), step = SLICE_NS
        cdef uint64_t left = timeout_ns(timeout), began, spin_until, until, now, c_seen
        cdef int over = 0, rc, k
        cdef object number = _as_index(seen)
        cdef long long as_seen = _as_long_long(number, &over)
        cdef bint never = over != 0 or as_seen < 0
        cdef uint32_t i = self._index(index)
        cdef ign_event *event = &self._board.events[i]
        now = ign_board_sequence(&self._board, i)
        c_seen = <uint64_t>as_seen
        if never or now != c_seen or left == 0:
            self._check()
            return now
        began = ign_now_ns()
        until = began + left
        self._waiting += 1
        try:
            with nogil:
                spin_until = began + (spin if left > spin else left)
                while now == c_seen and ign_now_ns() < spin_until:
                    for k in range(32):
                        ign_cpu_relax()
                    now = ign_board_sequence(&self._board, i)
            if now == c_seen and not in_main_thread():
                step = LONG_SLICE_NS
            while now == c_seen:
                began = ign_now_ns()
                if began >= until:
                    break
                left = until - began
                with nogil:
                    rc = ign_event_wait_sequence(event, c_seen, left if left < step else step, &now)
                PyErr_CheckSignals()
                if now == c_seen:
                    self._check()  # closed, or the file was cut
            return now
        finally:
            self._waiting -= 1
            self._finish()

    cdef void _finish(self) noexcept:
        # The last one out unmaps.
        if self._closing and self._waiting == 0:
            ign_board_close(&self._board)

    def close(self, timeout=5.0) -> None:
        """Ends the handle; waits of other threads end with ClosedError first. Idempotent.

        Raises:
            WaitTimeoutError: a thread was still inside a wait. The last one that leaves finishes the close.
        """
        cdef uint64_t until = timeout_ns(timeout)
        until += ign_now_ns()
        self._closing = True
        while self._waiting:
            if ign_now_ns() >= until:
                raise _errors.WaitTimeoutError(f"event board {self._path}: {self._waiting} thread(s) still wait")
            threading.Event().wait(0.005)
        self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@cython.final
@cython.no_gc  # it refers to text only
cdef class ProcessMutex:
    """A mutex in a mapped file that is released when its holder dies, ``kill -9`` included.

    Args:
        path: the file, made if it is not there.

    The OS thread that acquired it must release it. Not re-entrant. Linux: a robust process-shared pthread mutex; elsewhere a
    polled file lock.
    """

    def __cinit__(self, path):
        cdef bytes encoded
        self._path, encoded = path_pair(path)
        cdef int rc = ign_mutex_open(&self._mutex, encoded)
        if rc != IGN_OK:
            raise_code(rc, self._path)

    def __dealloc__(self):
        self._unmap()

    cdef void _unmap(self) noexcept:
        # A lock that is held at this moment lies in the kernel's list of its thread: unmapping it would break that list, so one
        # page is left behind instead. So it is with a file that was cut while the lock was held: the list knows it still.
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
            RuntimeError: this thread holds it already. ClosedError: also when another thread closed the handle meanwhile; then the
            lock is free again. RegionTruncatedError: the file was cut or emptied, so it locks nothing any more. ForkedHandleError,
            RegionIOError.
        """
        cdef uint64_t left = timeout_ns(timeout), until = ign_now_ns() + left, now
        cdef int rc
        self._check()
        if self._held and self._holder_thread == <unsigned long>PyThread_get_thread_ident():
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
                if rc == IGN_OK and self._closing:
                    # close() waits for us, or gave us up; either way the handle is over and must not go with its lock held.
                    self._held = ign_mutex_release(&self._mutex) != IGN_OK
                    rc = IGN_E_CLOSED
                if self._closing and self._waiting == 0:
                    self._unmap()
        if rc == IGN_TIMEOUT:
            return False
        if rc == IGN_E_BUSY:
            raise RuntimeError(f"mutex {self._path} is held by this thread; it is not re-entrant")
        if rc != IGN_OK:
            raise_code(rc, f"mutex {self._path}")
        self._held = True
        self._holder_thread = <unsigned long>PyThread_get_thread_ident()
        return True

    def release(self) -> None:
        """Lets go. RuntimeError when this thread does not hold it.

        Raises:
            RegionTruncatedError: the file was cut or emptied since: others may have thought that they hold it, too.
        """
        cdef int rc
        self._check()
        if not self._held or self._holder_thread != <unsigned long>PyThread_get_thread_ident():
            raise RuntimeError(f"mutex {self._path} is not held by this thread")
        rc = ign_mutex_release(&self._mutex)
        if rc == IGN_E_TRUNCATED or rc == IGN_E_CORRUPT:
            raise_code(rc, f"mutex {self._path}")
        self._held = False
        if rc != IGN_OK:
            raise RuntimeError(f"mutex {self._path} is not held by this thread")

    @property
    def holder_pid(self) -> int:
        """Process that holds it, 0 when free. May be out of date by the time it is read."""
        self._check()
        cdef uint32_t pid = ign_mutex_holder(&self._mutex)
        self._check()
        return pid

    @property
    def recovered(self) -> int:
        """How often this handle took the lock over from a holder that had died."""
        return self._mutex.recovered

    def close(self, timeout=5.0) -> None:
        """Ends the handle. Idempotent.

        Raises:
            RuntimeError: a thread of this process holds it. WaitTimeoutError: one still waits for it; the last one that leaves
            finishes the close.
        """
        cdef uint64_t until = timeout_ns(timeout)
        until += ign_now_ns()
        if self._held and ign_mutex_check(&self._mutex) == IGN_OK:
            raise RuntimeError(f"mutex {self._path} is held; release it first")
        self._closing = True
        while self._waiting:
            if ign_now_ns() >= until:
                raise _errors.WaitTimeoutError(f"mutex {self._path}: {self._waiting} thread(s) still wait")
            threading.Event().wait(0.005)
        self._unmap()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@cython.final
@cython.no_gc
cdef class Watch:
    """A descriptor for an event loop that becomes readable when what it was armed for happens: see `Log.watch`.

    Used by one thread, the one that made it. Raises OSError where the kernel has no such descriptors (before Linux 6.7, other
    systems), refuses them to this process (a container's profile may), or has none left.
    """

    def __cinit__(self):
        self._forks = ign_fork_generation()
        if ign_watch_open(&self._watch) != IGN_OK:
            raise OSError(_c_errno, _os.strerror(_c_errno))

    def __dealloc__(self):
        ign_watch_close(&self._watch)

    def __reduce__(self):
        raise TypeError("a Watch cannot be pickled or copied; make another")

    cdef int _check(self) except -1:
        if self._forks != ign_fork_generation():
            raise _errors.ForkedHandleError("this watch was made before fork(); make another in the child")
        if ign_watch_descriptor(&self._watch) < 0:
            raise _errors.ClosedError("this watch is closed")
        return 0

    def fileno(self) -> int:
        """The descriptor."""
        self._check()
        return ign_watch_descriptor(&self._watch)

    def take(self) -> bool:
        """It is readable: makes it that no more. True when what was waited for has happened, or may have: look, and arm it again."""
        self._check()
        return ign_watch_take(&self._watch)

    def close(self) -> None:
        """Idempotent."""
        ign_watch_close(&self._watch)


include "_alarm.pxi"
include "_thread_bell.pxi"
