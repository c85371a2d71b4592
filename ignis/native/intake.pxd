# cython: language_level=3
"""The consumer's side of mapped outboxes: what one process collects from many."""

from libc.stdint cimport uint32_t, uint64_t

from ignis.native.channel cimport ign_channel, ign_message
from ignis.native.outbox cimport Taken
from ignis.native.ring cimport ign_ring_entry
from ignis.native.wait cimport ign_board


cdef class Intake:
    cdef ign_channel *_channel
    cdef readonly object path
    cdef bint _closed
    cdef int _inside            # pack() is at work on our memory
    cdef ign_ring_entry *_entries
    cdef ign_message *_messages
    cdef Taken *_taken          # held: looked at, and neither acknowledged nor let go; a ring, from _first on
    cdef uint32_t _first
    cdef uint32_t _count
    cdef uint32_t _packed       # the first of them, which were packed
    cdef readonly uint64_t bytes_taken
    cdef readonly uint64_t acknowledged

    cdef int _check(self) except -1
    cdef Taken *_at(self, uint32_t i) noexcept nogil


cdef class Bell:
    cdef ign_board _board
    cdef readonly object path
    cdef uint64_t _seen
    cdef bint _closed
    cdef int _waiting

    cdef int _check(self) except -1
