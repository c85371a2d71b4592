# cython: language_level=3
"""``csrc/ignis_slab.h``, and the fork counter of ``csrc/ignis_wait.h``."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "ignis_slab.h" nogil:
    enum:
        IGN_SLAB_MAX_CLASSES

    ctypedef struct ign_slab_ref:
        uint32_t slot
        uint32_t generation
        uint32_t offset
        uint32_t length

    ctypedef struct ign_slab_class:
        uint32_t slot_bytes
        uint32_t count
        uint32_t first_slot
        uint64_t data_offset

    ctypedef struct ign_slab_table:
        uint32_t class_count
        uint32_t slot_count
        uint64_t data_bytes
        ign_slab_class *classes

    ctypedef struct ign_slab_word:
        uint32_t generation

    ctypedef struct ign_slab_stats:
        uint64_t allocated
        uint64_t released
        uint64_t refused
        uint64_t active_bytes

    ctypedef struct ign_slab:
        ign_slab_table table
        uint32_t *free_count
        ign_slab_stats stats

    int ign_slab_table_build(ign_slab_table *table, const uint32_t *slot_bytes, const uint32_t *counts, uint32_t classes)
    size_t ign_slab_words_bytes(const ign_slab_table *table)
    int ign_slab_open(ign_slab *slab, const ign_slab_table *table, ign_slab_word *words, uint8_t *data)
    void ign_slab_close(ign_slab *slab)
    int ign_slab_allocate(ign_slab *slab, size_t size, ign_slab_ref *ref)
    int ign_slab_release(ign_slab *slab, uint32_t slot, uint32_t generation)
    int ign_slab_bytes(ign_slab *slab, const ign_slab_ref *ref, uint8_t **bytes)
    uint32_t ign_slab_active(const ign_slab *slab)


cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()
    uint32_t ign_fork_generation()


cdef class Slab:
    cdef ign_slab _slab
    cdef ign_slab_word *_words
    cdef uint8_t *_data
    cdef uint32_t _forks

    cdef int _check(self) except -1
    cdef uint8_t *_bytes(self, ref, ign_slab_ref *c_ref) except NULL
