# cython: language_level=3
from libc.stdint cimport uint32_t


cdef extern from *:
    """
    #include <stdatomic.h>
    #include <stdint.h>
    #ifndef IGNIS_GATE_WORD
    #define IGNIS_GATE_WORD
    typedef _Atomic uint32_t ignis_gate_word;
    #endif
    """
    ctypedef struct ignis_gate_word:
        pass


cdef class CallGate:
    cdef ignis_gate_word _inside
    cdef ignis_gate_word _state
    cdef str _what
    cdef str _forked
    cdef double _timeout_s
    cdef uint32_t _forks

    cdef int go_in(self) except -1
    cdef bint try_go_in(self) noexcept nogil
    cdef void go_out(self) noexcept nogil
    cdef int _wait_open(self) except -1
