# A thread that sleeps until another rings. Included by wait.pyx.

from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PY_LOCK_INTR, PyLockStatus, PyThread_acquire_lock, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock,
)

cdef extern from "pythread.h":
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag) nogil


@cython.final
@cython.no_gc
cdef class ThreadBell:
    """Wakes a thread of this process: what `threading.Event` does for one that waits, in one call.

    Who was woken waits for its turn before it asks for the interpreter lock (``csrc/ignis_turn.h``), so that a thousand that are
    rung for at once do not all ask again and again. Cannot be copied or pickled. A child of ``fork()`` needs one of its own.
    """

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock == NULL:
            raise MemoryError("thread bell")
        PyThread_acquire_lock(self._lock, NOWAIT_LOCK)

    def __dealloc__(self):
        if self._lock != NULL:
            PyThread_free_lock(self._lock)

    def __reduce__(self):
        raise TypeError("a ThreadBell cannot be pickled or copied; make another")

    @property
    def rung(self) -> bool:
        """Whether the next `wait` returns at once."""
        return self._rung

    def ring(self) -> None:
        """Ends the wait of the thread that waits, or the next one. From any thread, and from a signal handler."""
        if not self._rung:
            self._rung = True
            PyThread_release_lock(self._lock)

    def silence(self) -> None:
        """As if it had not been rung. Of the thread that waits."""
        if self._rung and PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            self._rung = False

    def wait(self, timeout) -> bool:
        """Waits until it is rung, for at most so many seconds, and `silence`s it; False when the time is up. One thread at a time.

        Raises what a signal's handler raises, in the main thread."""
        cdef uint64_t left = timeout_ns(timeout), until, now
        cdef PyLockStatus status
        cdef bint turn
        if left == 0:
            if not self._rung:
                return False
            self.silence()
            return True
        until = ign_now_ns() + left
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self._lock, <long long>(left // 1000 + 1), 1)
                turn = take_turn()
            if turn:
                give_turn()
            if status == PY_LOCK_ACQUIRED:
                self._rung = False
                return True
            if status == PY_LOCK_INTR:
                PyErr_CheckSignals()
            now = ign_now_ns()
            if now >= until:
                return False
            left = until - now
