# The flush of durability `interval`, by a thread that needs no interpreter lock. Part of store.pyx.

cdef enum:
    DROPPED_NS = 1000000000     # so long whoever drops an Interval that was not closed waits for a flush


@cython.final
@cython.no_gc
cdef class Interval:
    """Flushes all of a log every so often, whatever Python threads do meanwhile. Thread-safe. In a child of ``fork()`` it does
    nothing.

    The log stays open until it has ended, also when it is closed before.

    Raises:
        RuntimeError: no thread can be started; in the words of ``threading``.
    """

    def __cinit__(self, Log log not None, every_ms):
        cdef uint64_t every_ns = <uint64_t>whole(every_ms, "every_ms", 1, 1 << 32) * 1000000
        cdef int rc
        self._log = log
        log._enter()
        with nogil:
            rc = ign_store_interval_open(&self._interval, log._store, every_ns)
        if rc != IGN_OK:
            self._interval = NULL
            log._leave()
            if rc == IGN_E_NOMEM:
                raise MemoryError("interval")
            raise RuntimeError("can't start new thread")

    def __dealloc__(self):
        cdef int rc
        if self._interval == NULL:
            return
        if self._is_a_childs():
            ign_store_interval_abandon(self._interval)
            return
        with nogil:
            rc = ign_store_interval_close(self._interval, DROPPED_NS)
        if rc != IGN_OK:
            Py_INCREF(self._log)  # a disk that hangs: what the thread uses stays for as long as the process
            return
        ign_store_interval_free(self._interval)
        if not self._ended:
            self._log._leave()

    def __reduce__(self):
        raise TypeError("an Interval cannot be pickled or copied")

    cdef inline bint _is_a_childs(self) noexcept:
        """Its thread is its parent's, and its mutex may be held by one that is not here."""
        return self._log._forks != ign_fork_generation()

    @property
    def failures(self):
        """How many flushes failed."""
        return ign_store_interval_failures(self._interval)

    def failure(self):
        """What the last flush that failed met; None when there is none."""
        cdef ign_store_failure failure
        if self._is_a_childs():
            return None
        ign_store_interval_failure(self._interval, &failure)  # without giving up the interpreter lock: it is a moment
        return None if failure.times == 0 else log_error(failure.code, failure.error, self._log)

    def take(self):
        """`failure`, once for each; of several since the last call the last one."""
        cdef uint64_t times = ign_store_interval_failures(self._interval)
        if times == self._told or self._is_a_childs():
            return None
        self._told = times
        return self.failure()

    @property
    def untold(self):
        """Whether `take` has something to tell."""
        return ign_store_interval_failures(self._interval) != self._told

    def rest(self, timeout) -> bool:
        """No flush begins until `go_on`; False: one is still under way, and it does not rest."""
        cdef uint64_t ns = timeout_ns(timeout)
        cdef int rc
        if self._is_a_childs():
            return True
        with nogil:
            rc = ign_store_interval_rest(self._interval, ns)
        return rc == IGN_OK

    def go_on(self) -> None:
        """Once for each `rest` that was True."""
        if not self._is_a_childs():
            ign_store_interval_go_on(self._interval)

    def close(self, timeout) -> bool:
        """Ends the thread; False: a flush is still under way, behind which it ends. Idempotent."""
        cdef uint64_t ns = timeout_ns(timeout)
        cdef int rc
        if self._is_a_childs():
            return True
        with nogil:
            rc = ign_store_interval_close(self._interval, ns)
        if rc != IGN_OK:
            return False
        if not self._ended:
            self._ended = True
            self._log._leave()
        return True
