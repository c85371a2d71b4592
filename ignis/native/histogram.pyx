# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""Durations counted by bucket. One call counts a whole batch, so that a message pays some ten instructions for it."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t

from ignis.native.record cimport IGN_RECORD_HEADER_BYTES
from ignis.native.wait cimport ign_now_ns

HISTOGRAM_BYTES = WORDS * 8
"""Of the memory that a histogram may be in."""

cdef enum:
    ENQUEUED_AT = 12     # of the 8 big-endian bytes in a record, see csrc/ignis_record.h

cdef double LONGEST_S = 1e9  # 31 years: what a wrong clock says must not spoil the sum for good


cdef inline uint64_t enqueued_at_us(const uint8_t *record) noexcept:
    cdef uint64_t value = 0
    cdef int i
    for i in range(ENQUEUED_AT, ENQUEUED_AT + 8):
        value = value << 8 | record[i]
    return value


@cython.final
@cython.no_gc
cdef class Histogram:
    """Counts durations by bucket. Thread-safe: every method holds the interpreter from its first count to its last.

    Args:
        bounds_s: the upper bound of each bucket but the last, which has none: 1 to 15 rising seconds above 0.
        memory: of `HISTOGRAM_BYTES` that can be written, zeroed, such as a mapped file: another process reads there what this one has
            counted, also after its end. One process at a time counts there. None = its own.

    Attributes:
        messages: that the durations were of, as far as somebody said so.
    """

    def __cinit__(self, bounds_s, memory=None):
        cdef double before = 0.0, bound
        cdef Py_buffer view
        given = tuple(bounds_s)
        if not 0 < len(given) <= MOST_BOUNDS:
            raise ValueError(f"a histogram has 1 to {MOST_BOUNDS} bounds, not {len(given)}")
        for one in given:
            bound = one
            if not before < bound < LONGEST_S:
                raise ValueError(f"the bounds of a histogram rise from above 0, not {given}")
            self._bounds[self._size] = before = bound
            self._size += 1
        self._counts = self._own
        if memory is not None:
            PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
            try:
                if view.len < WORDS * 8 or <size_t>view.buf % 8:
                    raise ValueError(f"a histogram takes {WORDS * 8} bytes from a multiple of 8 on, not {view.len}")
                self._counts = <uint64_t *>view.buf
                self._memory = memoryview(memory)  # keeps it where it is
            finally:
                PyBuffer_Release(&view)

    cdef double *_sum(self) noexcept:
        return <double *>&self._counts[WORDS - 1]

    def __reduce__(self):
        raise TypeError("a Histogram cannot be pickled or copied")

    cdef void _put(self, double seconds, uint64_t count) noexcept:
        cdef int at = 0
        if not seconds > 0.0:  # a clock that was set back, and what is no number
            seconds = 0.0
        elif seconds > LONGEST_S:
            seconds = LONGEST_S
        while at < self._size and seconds > self._bounds[at]:
            at += 1
        self._counts[at] += count
        self._sum()[0] += seconds * <double>count

    def add(self, double seconds, unsigned long long count=1):
        """Counts so many of that duration each."""
        self._put(seconds, count)

    def add_since(self, double began_s, unsigned long long messages=0):
        """Counts one that began at this time of ``time.monotonic`` and ends now, and so many messages."""
        self._put(<double>ign_now_ns() / 1e9 - began_s, 1)
        self.messages += messages

    def count(self, unsigned long long messages):
        """Counts so many messages, and no duration."""
        self.messages += messages

    def add_ages(self, records, double now_s, Py_ssize_t start=0, Py_ssize_t stop=-1):
        """Counts how long ago each of these stored messages was published: those from ``start`` to before ``stop``, -1 = all.

        Args:
            records: a list of bytes; None, and what is too short to be a message, is left out.
            now_s: seconds since 1970.
        """
        cdef list held = records if type(records) is list else list(records)
        cdef double now_us = now_s * 1e6
        cdef Py_ssize_t i
        cdef object one
        if stop < 0 or stop > len(held):
            stop = len(held)
        for i in range(max(start, 0), stop):
            one = held[i]
            if type(one) is bytes and PyBytes_GET_SIZE(one) >= <Py_ssize_t>IGN_RECORD_HEADER_BYTES:
                self._put((now_us - <double>enqueued_at_us(<const uint8_t *>PyBytes_AS_STRING(one))) / 1e6, 1)

    def take(self, Histogram other not None):
        """Counts what the other, which has the same bounds, has counted since it was last taken from."""
        cdef int i
        cdef uint64_t now
        cdef double sum_s
        if other._size != self._size:
            raise ValueError("it has other bounds")
        for i in range(self._size + 1):
            now = other._counts[i]
            self._counts[i] += now - other._taken[i]
            other._taken[i] = now
        sum_s = other._sum()[0]
        self._sum()[0] += sum_s - (<double *>&other._taken[WORDS - 1])[0]
        (<double *>&other._taken[WORDS - 1])[0] = sum_s

    def figures(self):
        """``counts``: of each bucket by itself, the last is that above all bounds; ``sum_s``: of all durations."""
        return {"counts": [self._counts[i] for i in range(self._size + 1)], "sum_s": self._sum()[0]}
