# cython: language_level=3
"""Rings of messages on their way out, and the receipts of what was sent into them."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from ignis.native.channel cimport ign_channel, ign_message, ign_region_config
from ignis.native.slab cimport ign_slab_ref
from ignis.native.wait cimport ign_board


cdef struct Taken:
    const uint8_t *bytes
    uint32_t length
    uint32_t slot
    uint32_t generation
    uint16_t kind
    uint32_t batch      # which of the batches under construction


cdef struct Times:
    uint64_t due_ms     # NO_TIME: it does not wait
    uint64_t until      # what the messages of one load have in common; NO_TIME: nothing


cdef class ReceiptBook:
    cdef object __weakref__
    cdef uint64_t _sent
    cdef uint64_t _settled
    cdef uint64_t _failed
    cdef object _first_error
    cdef list _failures         # [first, last, error], ascending
    cdef list _heap             # sequences that somebody waits for
    cdef dict _waiting          # sequence -> list of callables and (loop, future) pairs

    cdef int _refresh(self) except -1
    cdef int _check_process(self) except -1
    cdef int _note_waiter(self) except -1
    cdef object _timed_out(self, str text)
    cdef int _wait(self, uint64_t sequence, uint64_t left, object named) except -1
    cdef int _fail_up_to(self, uint64_t last, object error) except -1
    cdef int _complete(self, uint64_t settled) except -1
    cdef int _register(self, uint64_t sequence, object waiter) except -1
    cdef object _error_of(self, uint64_t sequence)
    cdef bint _is_settled(self, uint64_t sequence) except -1
    cdef int _wait_for(self, uint64_t sequence, object timeout, object named) except -1
    cdef object _not_durable(self, uint64_t sequence, object named)


cdef class SendRing(ReceiptBook):
    cdef ign_channel *_channel
    cdef uint64_t _max_body
    cdef size_t _small          # up to this size messages lie in the byte ring and nowhere else
    cdef bint _closing
    cdef uint64_t _looked_us    # when `_look_again` was called last, by the wall clock
    cdef uint64_t _look_us      # how often a sender calls it; 2**64-1: never
    cdef Times *_times          # of the message at each place of the ring; NULL: they have none

    cdef int _describe(
        self, ign_region_config *config, object capacity, object max_message_bytes, object size_classes) except -1
    cdef int _allocate(self) except -1
    cdef int _opened(self) except -1
    cdef int _check(self) except -1
    cdef int _published(self) except -1
    cdef int _look_again(self, uint64_t now) except -1
    cdef int _no_room(self) except -1
    cdef int _wait_room(self, uint64_t seen, uint64_t left, bint spin, bint slots) except? -999
    cdef int _reserve(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except -1
    cdef int _reserve_slow(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except? -999
    cdef void _note_times(self, uint64_t due_ms, uint64_t until) noexcept
    cdef Receipt _send(
        self, bytes body, int shard, int flags, bytes key, bytes meta, object timeout, uint64_t due_ms, uint64_t until)
    cdef int _fail_rest(self, object error) except -1


cdef class Outbox(SendRing):
    cdef Taken *_taken          # messages between the ring and their batches
    cdef uint32_t _taken_count
    cdef uint32_t _taken_room
    cdef bint _draining         # a drain is at work: between its look at the ring and its giving back
    cdef uint64_t *_dues        # of the messages in _taken
    cdef uint64_t _until        # of all of them
    cdef object _of_boottime_ms
    cdef uint64_t _drained      # messages that were taken out of the ring since it was made

    cdef int _wait_items(self, uint64_t until) except -1
    cdef int _check_drain(
        self, uint32_t max_messages, uint32_t any_shard, uint32_t shards, uint32_t chunk_records, size_t chunk_bytes) except -1
    cdef list _dues_by_batch(self, list batches)
    cdef tuple _drain(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, uint64_t left,
        uint32_t chunk_records, size_t chunk_bytes)


cdef class MappedOutbox(SendRing):
    cdef ign_board _bell        # rung after each message
    cdef int _inside            # threads inside the C core without the GIL; none of them runs Python code meanwhile
    cdef object _refusal
    cdef readonly object path
    cdef bytes _file            # the path for C
    cdef uint64_t _looked_ns    # when the file's name was looked at last
    cdef int _lost              # an ign_naming: not IGN_NAMED once nobody takes what is in a file that is not in its place
    cdef uint64_t _lost_count   # messages that were in it and not taken
    cdef bint _had_taker        # whether anybody ever took messages from it
    cdef list _hooks            # on_waiter, on_timeout, on_refusal, on_loss, on_late_send: in a list that the collector can empty

    cdef object _refused(self)
    cdef int _look(self) noexcept
    cdef int _look_at_times(self) noexcept
    cdef int _wait_progress(self, uint64_t seen, uint64_t left, bint slots) except? -999
    cdef bint _watch(self, uint64_t until) except -1


cdef class Receipt:
    cdef ReceiptBook _outbox
    cdef uint64_t _sequence
    cdef uint8_t _id[16]

    cdef ReceiptBook _of(self)
    cdef int _await_done(self, object timeout) except -1
