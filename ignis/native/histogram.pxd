# cython: language_level=3
cimport cython
from libc.stdint cimport uint64_t

cdef enum:
    MOST_BOUNDS = 15
    WORDS = MOST_BOUNDS + 2


@cython.final
cdef class Histogram:
    cdef double _bounds[MOST_BOUNDS]
    cdef uint64_t _own[WORDS]
    cdef uint64_t *_counts            # one more than there are bounds; behind the last of the most there may be, the sum
    cdef uint64_t _taken[WORDS]       # what `take` has given to another already
    cdef object _memory
    cdef int _size
    cdef readonly unsigned long long messages
    cdef void _put(self, double seconds, uint64_t count) noexcept
    cdef double *_sum(self) noexcept
