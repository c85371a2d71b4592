# cython: language_level=3
"""``csrc/ignis_store.h``."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "ignis_store_log.h" nogil:
    enum:
        IGN_ENTRY_MAX


cdef extern from "ignis_store.h" nogil:
    ctypedef struct ign_store_io:
        pass

    ctypedef struct ign_store:
        pass

    ctypedef struct ign_store_mark:
        uint64_t generation
        uint64_t position

    ctypedef struct ign_store_options:
        uint64_t segment_bytes
        uint64_t control_reserve
        uint64_t arena_bytes
        uint64_t stopped_after_ns
        uint64_t busy_after_ns
        uint64_t checkpoint_bytes

    ctypedef struct ign_store_change:
        const void *key
        uint32_t key_bytes
        const void *expected
        uint32_t expected_bytes
        const void *value
        uint32_t value_bytes

    ctypedef struct ign_store_figures:
        uint64_t generation
        uint64_t openings
        uint64_t end
        uint64_t durable
        uint64_t living_bytes
        uint64_t living_records
        uint64_t damaged_bytes
        uint64_t segments
        uint64_t log_bytes
        uint64_t state_bytes
        uint64_t dead_bytes

    int ign_store_io_open(const char *directory, ign_store_io **io)
    void ign_store_io_close(ign_store_io *io)
    int ign_store_open(ign_store **store, ign_store_io *io, const ign_store_options *options)
    void ign_store_close(ign_store *store)

    int ign_store_change_keys(ign_store *store, const ign_store_change *changes, uint32_t count, ign_store_mark *mark)
    int ign_store_get_key(ign_store *store, const void *key, uint32_t key_bytes, void *value, uint32_t room, uint32_t *bytes)
    int ign_store_flush(ign_store *store, const ign_store_mark *mark, bint refuse)
    int ign_store_mark_now(ign_store *store, ign_store_mark *mark)
    int ign_store_maintain(ign_store *store)
    int ign_store_checkpoint(ign_store *store)
    int ign_store_figures_of(ign_store *store, ign_store_figures *figures)


cdef class Mark:
    cdef ign_store_mark _mark


cdef class Log:
    cdef ign_store_io *_io
    cdef ign_store *_store
    cdef Py_ssize_t _inside
    cdef bint _closing
    cdef uint32_t _forks
    cdef readonly str directory
    cdef readonly object max_bytes
    cdef readonly double busy_after_s

    cdef int _enter(self) except -1
    cdef int _leave(self) except -1
    cdef int _check(self, int rc) except -1
    cdef void _finish(self) noexcept
