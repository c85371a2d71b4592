# cython: language_level=3
"""The buffered publisher's ring, and the receipts of what was sent into it."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from ignis.native.channel cimport ign_channel, ign_message
from ignis.native.wait cimport ign_board


cdef struct Taken:
    const uint8_t *bytes
    uint32_t length
    uint32_t slot
    uint32_t generation
    uint16_t kind
    uint32_t batch      # which of the batches under construction


cdef class Outbox:
    cdef object __weakref__
    cdef ign_channel *_channel
    cdef uint64_t _sent
    cdef uint64_t _settled
    cdef uint64_t _failed
    cdef uint64_t _max_body
    cdef bint _closing
    cdef int _inside            # threads inside the C core without the GIL
    cdef object _first_error
    cdef list _failures         # (first, last, error), ascending
    cdef list _heap             # sequences that somebody waits for
    cdef dict _waiting          # sequence -> list of callables and (loop, future) pairs
    cdef Taken *_taken          # messages between the ring and their batches
    cdef uint32_t _taken_count
    cdef uint32_t _taken_room
    cdef size_t _small          # up to this size messages lie in the byte ring and nowhere else
    cdef bint _mapped           # in a file: what its consumer has taken is settled
    cdef ign_board _bell        # rung after each message; only of a mapped one
    cdef object _refusal
    cdef readonly object path
    cdef public object on_waiter    # called when somebody registers for a receipt: watch() is needed from now on
    cdef public object on_timeout   # called with the text of a WaitTimeoutError for the error to raise instead
    cdef public object on_refusal   # called for the error when the consumer refused the file

    cdef int _check(self) except -1
    cdef int _wait_items(self, uint64_t until) except -1
    cdef int _complete(self, uint64_t settled) except -1
    cdef int _register(self, uint64_t sequence, object waiter) except -1
    cdef object _error_of(self, uint64_t sequence)
    cdef bint _is_settled(self, uint64_t sequence) except -1
    cdef object _refused(self)
    cdef object _timed_out(self, str text)
    cdef int _refresh(self) except -1
    cdef int _wait_mapped(self, uint64_t sequence, object timeout) except -1
    cdef bint _watch(self, uint64_t until) except -1


cdef class Receipt:
    cdef Outbox _outbox
    cdef uint64_t _sequence
    cdef uint8_t _id[16]

    cdef int _await_done(self, object timeout) except -1
