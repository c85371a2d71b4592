# cython: language_level=3
"""``csrc/ignis_ring.h``, and the fork counter of ``csrc/ignis_wait.h``."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t


cdef extern from "ignis_ring.h" nogil:
    enum:
        IGN_LINE_BYTES
        IGN_RING_MAX_CAPACITY

    ctypedef struct ign_ring_entry:
        uint32_t slot
        uint32_t generation
        uint32_t length
        uint16_t offset
        uint16_t kind

    ctypedef struct ign_ring_control:
        pass

    ctypedef struct ign_ring_producer:
        ign_ring_control *control
        bint check_thread

    ctypedef struct ign_ring_consumer:
        ign_ring_control *control
        bint check_thread

    bint ign_ring_capacity_valid(uint64_t capacity)
    size_t ign_ring_bytes(uint32_t capacity)
    int ign_ring_format(void *memory, uint32_t capacity, uint64_t start)
    int ign_ring_producer_open(ign_ring_producer *ring, void *memory, uint32_t capacity)
    int ign_ring_consumer_open(ign_ring_consumer *ring, void *memory, uint32_t capacity)
    int ign_ring_try_push_spsc(ign_ring_producer *ring, const ign_ring_entry *entry)
    int ign_ring_try_push_many_spsc(ign_ring_producer *ring, const ign_ring_entry *entries, uint32_t count, uint32_t *pushed)
    int ign_ring_reserve_spsc(ign_ring_producer *ring, uint32_t want, uint32_t *room)
    ign_ring_entry *ign_ring_reserved(ign_ring_producer *ring, uint32_t i)
    void ign_ring_commit_spsc(ign_ring_producer *ring, uint32_t count)
    int ign_ring_try_pop_spsc(ign_ring_consumer *ring, ign_ring_entry *entry)
    int ign_ring_try_pop_many_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *popped)
    int ign_ring_peek_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *got)
    void ign_ring_release_spsc(ign_ring_consumer *ring, uint32_t count)
    uint64_t ign_ring_depth(ign_ring_control *control)


cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()
    uint32_t ign_fork_generation()


cdef class Ring:
    cdef void *_memory
    cdef ign_ring_producer *_out
    cdef ign_ring_consumer *_in
    cdef uint32_t _reserved
    cdef uint32_t _peeked
    cdef uint32_t _forks
    cdef readonly uint32_t capacity

    cdef int _check(self) except -1
    cdef list _entries(self, object max_entries, bint take)
