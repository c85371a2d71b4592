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
    cdef int _inside            # threads in the C core that read our memory; none of them runs Python code meanwhile
    cdef bint _busy             # a hold, pack or acknowledge is at work on what is held
    cdef ign_ring_entry *_entries
    cdef ign_message *_messages
    cdef Taken *_taken          # held: looked at, and neither acknowledged nor let go; a ring, from _first on
    cdef uint32_t _first
    cdef uint32_t _count
    cdef uint32_t _packed       # the first of them, which were packed
    cdef readonly uint64_t bytes_taken
    cdef readonly uint64_t acknowledged

    cdef int _check(self) except -1
    cdef int _check_alone(self) except -1
    cdef void _let_go(self, uint32_t keep) noexcept
    cdef Taken *_at(self, uint32_t i) noexcept nogil


cdef class Bell:
    cdef ign_board _board
    cdef readonly object path
    cdef uint64_t _seen
    cdef bint _closed
    cdef int _inside            # threads asleep on it, in the C core

    cdef int _check(self) except -1
