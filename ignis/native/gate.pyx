# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""Counting the calls in flight without a lock, so that `close` and `fork` can wait for them.

Who goes in raises one word and looks at another; who shuts the gate sets the second and looks at the first. Both are sequentially
consistent, so one sees the other. It works with and without the interpreter lock.
"""

import functools

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

from ignis.native.wait cimport ign_fork_generation, ign_now_ns

include "_errors.pxi"
include "_time.pxi"

cdef extern from *:
    """
    #include "ignis_wait.h"
    enum { IGNIS_GATE_BARRED = 1, IGNIS_GATE_CLOSED = 2 };

    static inline void ignis_gate_leave(ignis_gate_word *inside, ignis_gate_word *state)
    {
        if (atomic_fetch_sub(inside, 1) == 1 && atomic_load(state) != 0)
            ign_futex_wake_all(inside);
    }

    static inline int ignis_gate_enter(ignis_gate_word *inside, ignis_gate_word *state)
    {
        atomic_fetch_add(inside, 1);
        if (atomic_load(state) == 0)
            return 1;
        ignis_gate_leave(inside, state);
        return 0;
    }

    static inline int ignis_gate_bar(ignis_gate_word *state)
    {
        uint32_t open = 0;
        return atomic_compare_exchange_strong(state, &open, IGNIS_GATE_BARRED);
    }

    static inline void ignis_gate_set(ignis_gate_word *state, uint32_t bit)
    {
        atomic_fetch_or(state, bit);
        ign_futex_wake_all(state);
    }

    static inline void ignis_gate_clear(ignis_gate_word *state, uint32_t bit)
    {
        atomic_fetch_and(state, ~bit);
        ign_futex_wake_all(state);
    }
    """
    enum:
        IGNIS_GATE_BARRED
        IGNIS_GATE_CLOSED
    void ignis_gate_leave(ignis_gate_word *inside, ignis_gate_word *state) nogil
    int ignis_gate_enter(ignis_gate_word *inside, ignis_gate_word *state) nogil
    int ignis_gate_bar(ignis_gate_word *state) nogil
    void ignis_gate_set(ignis_gate_word *state, uint32_t bit) nogil
    void ignis_gate_clear(ignis_gate_word *state, uint32_t bit) nogil
    uint32_t atomic_load(ignis_gate_word *word) nogil

cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()
    int ign_futex_wait(ignis_gate_word *word, uint32_t seen, uint64_t timeout_ns)


cdef enum:
    SLICE_NS = 50000000


cdef class CallGate:
    """Many may be inside, or one has shut it. Thread-safe. Not re-entrant for whoever shuts it.

    Args:
        what: for messages.
        timeout_s: bound on every wait.
        forked: what is raised for in a child of ``fork``; None = a child may go in as well.
    """

    def __cinit__(self, str what not None, double timeout_s, str forked=None):
        ign_fork_watch()
        self._what = what
        self._timeout_s = timeout_s
        self._forked = forked
        self._forks = ign_fork_generation()

    cdef int go_in(self) except -1:
        if self._forked is not None and self._forks != ign_fork_generation():
            raise _errors.ForkedHandleError(self._forked)
        while not ignis_gate_enter(&self._inside, &self._state):
            self._wait_open()
        return 0

    cdef bint try_go_in(self) noexcept nogil:
        return self._forks == ign_fork_generation() and ignis_gate_enter(&self._inside, &self._state)

    cdef void go_out(self) noexcept nogil:
        ignis_gate_leave(&self._inside, &self._state)

    def enter(self) -> None:
        """Raises ClosedError after `close`, WaitTimeoutError when it stays shut, ForkedHandleError."""
        self.go_in()

    def try_enter(self) -> bool:
        """`enter` without waiting: False while it is shut, after `close`, and in a child of ``fork`` that may not go in."""
        if self._forked is None:
            return ignis_gate_enter(&self._inside, &self._state) != 0
        return self.try_go_in()

    def leave(self) -> None:
        self.go_out()

    def bar(self, timeout_s) -> None:
        """Nobody goes in from now on until `unbar`, and nobody is inside on return. Raises ClosedError, WaitTimeoutError: then it
        is as it was."""
        while not ignis_gate_bar(&self._state):
            self._wait_open()
        try:
            self.wait_empty(timeout_s)
        except BaseException:
            self.unbar()
            raise

    def unbar(self) -> None:
        ignis_gate_clear(&self._state, IGNIS_GATE_BARRED)

    def close(self) -> None:
        """From now on nobody gets in. Idempotent."""
        ignis_gate_set(&self._state, IGNIS_GATE_CLOSED)

    def wait_empty(self, timeout_s) -> None:
        """Waits until nobody is inside. Raises WaitTimeoutError."""
        cdef uint64_t until = ign_now_ns() + timeout_ns(timeout_s), now
        cdef uint32_t inside = atomic_load(&self._inside)
        while inside != 0:
            now = ign_now_ns()
            if now >= until:
                raise _errors.WaitTimeoutError(f"{self._what}: {inside} call(s) in flight after {timeout_s:g} s")
            with nogil:
                ign_futex_wait(&self._inside, inside, min(until - now, <uint64_t>SLICE_NS))
            PyErr_CheckSignals()
            inside = atomic_load(&self._inside)

    cdef int _wait_open(self) except -1:
        cdef uint64_t until = ign_now_ns() + timeout_ns(self._timeout_s), now
        cdef uint32_t state = atomic_load(&self._state)
        while state == IGNIS_GATE_BARRED:
            now = ign_now_ns()
            if now >= until:
                raise _errors.WaitTimeoutError(f"{self._what}: no way in after {self._timeout_s:g} s")
            with nogil:
                ign_futex_wait(&self._state, state, min(until - now, <uint64_t>SLICE_NS))
            PyErr_CheckSignals()
            state = atomic_load(&self._state)
        if state & IGNIS_GATE_CLOSED:
            raise _errors.ClosedError(f"{self._what} is closed")
        return 0


def guarded(method):
    """For methods of objects with a ``_store`` that has a ``gate``: refused after `close` and after ``fork``, counted otherwise."""
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        cdef CallGate gate = self._store.gate
        gate.go_in()
        try:
            return method(self, *args, **kwargs)
        finally:
            gate.go_out()
    return call
