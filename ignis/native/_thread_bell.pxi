# A thread that sleeps until another rings. Included by wait.pyx.

from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PY_LOCK_FAILURE, PY_LOCK_INTR, PyLockStatus, PyThread_acquire_lock, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock,
)

cdef extern from *:
    """
    #define ignis_put_off(end, ns) __atomic_store_n(&(end), (ns), __ATOMIC_RELAXED)
    #define ignis_end(end) __atomic_load_n(&(end), __ATOMIC_RELAXED)
    """
    void ignis_put_off(uint64_t end, uint64_t ns) nogil
    uint64_t ignis_end(uint64_t end) nogil

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

    def put_off(self, seconds) -> None:
        """A `wait` that may be put off, also one that goes on, ends by itself in so many seconds at the soonest. From any thread."""
        ignis_put_off(self._end_ns, ign_now_ns() + timeout_ns(seconds))

    def wait(self, timeout, *, bint may_be_put_off=False) -> bool:
        """Waits until it is rung, for at most so many seconds, and `silence`s it; False when the time is up. One thread at a time.

        Args:
            may_be_put_off: the time is also up when that is over which `put_off` said last, or at once if it said nothing yet. A wait
                that is put off again and again asks for the interpreter lock once, at its end.

        Raises what a signal's handler raises, in the main thread."""
        cdef uint64_t left = timeout_ns(timeout), until, now
        cdef PyLockStatus status
        cdef bint turn
        if left == 0:
            if not self._rung:
                return False
            self.silence()
            return True
        now = ign_now_ns()
        until = now + left
        while True:
            with nogil:
                left = self._left_ns(now, until, may_be_put_off)
                while True:
                    status = PyThread_acquire_lock_timed(self._lock, <long long>(left // 1000 + 1), 1)
                    now = ign_now_ns()
                    left = self._left_ns(now, until, may_be_put_off)
                    if status != PY_LOCK_FAILURE or left == 0:
                        break
                turn = take_turn()
            if turn:
                give_turn()
            if status == PY_LOCK_ACQUIRED:
                self._rung = False
                return True
            if status == PY_LOCK_INTR:
                PyErr_CheckSignals()
            if left == 0:
                return False

    cdef uint64_t _left_ns(self, uint64_t now, uint64_t until, bint may_be_put_off) noexcept nogil:
        """How long it is until a wait ends by itself."""
        if may_be_put_off:
            until = min(until, ignis_end(self._end_ns))
        return until - now if until > now else 0
