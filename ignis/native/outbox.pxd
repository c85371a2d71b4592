# cython: language_level=3
"""The buffered publisher's ring, and the receipts of what was sent into it."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from ignis.native.channel cimport ign_channel, ign_message
from ignis.native.slab cimport ign_slab_ref
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
    cdef int _inside            # threads inside the C core without the GIL; none of them runs Python code meanwhile
    cdef object _first_error
    cdef list _failures         # [first, last, error], ascending
    cdef list _heap             # sequences that somebody waits for
    cdef dict _waiting          # sequence -> list of callables and (loop, future) pairs
    cdef Taken *_taken          # messages between the ring and their batches
    cdef uint32_t _taken_count
    cdef uint32_t _taken_room
    cdef size_t _small          # up to this size messages lie in the byte ring and nowhere else
    cdef bint _mapped           # in a file: what its consumer has taken is settled
    cdef ign_board _bell        # rung after each message; only of a mapped one
    cdef object _refusal
    cdef bint _draining         # a drain is at work: between its look at the ring and its giving back
    cdef readonly object path
    cdef list _hooks            # on_waiter, on_timeout, on_refusal: in a list that the collector can empty

    cdef int _check(self) except -1
    cdef int _reserve_slow(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except? -999
    cdef int _wait_items(self, uint64_t until) except -1
    cdef object _drain(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, uint64_t left,
        uint32_t chunk_records, size_t chunk_bytes)
    cdef int _fail_up_to(self, uint64_t last, object error) except -1
    cdef int _complete(self, uint64_t settled) except -1
    cdef int _register(self, uint64_t sequence, object waiter) except -1
    cdef object _error_of(self, uint64_t sequence)
    cdef bint _is_settled(self, uint64_t sequence) except -1
    cdef object _refused(self)
    cdef object _timed_out(self, str text)
    cdef int _refresh(self) except -1
    cdef int _wait_mapped(self, uint64_t sequence, uint64_t left, object timeout) except -1
    cdef bint _watch(self, uint64_t until) except -1


cdef class Receipt:
    cdef Outbox _outbox
    cdef uint64_t _sequence
    cdef uint8_t _id[16]

    cdef Outbox _of(self)
    cdef int _await_done(self, object timeout) except -1
