# cython: language_level=3
"""What the channel and the outbox take from the record codec.

The functions and classes below are reached through this module, so a module that cimports only them need not link
the C codec. One that calls an ``ign_`` function directly links ``ignis_record.c`` and ``ignis_crc32c.c``.
"""

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "ignis_record.h" nogil:
    enum:
        IGN_RECORD_VERSION
        IGN_RECORD_HEADER_BYTES
        IGN_RECORD_MAX_META_BYTES
        IGN_SEGMENT_VERSION
        IGN_SEGMENT_HEADER_BYTES
        IGN_SEGMENT_INDEX_BYTES
        IGN_SEGMENT_MAX_RECORDS

    ctypedef struct ign_record:
        uint8_t flags
        uint16_t attempts
        uint16_t crashes
        uint64_t enqueued_at_us
        uint8_t id[16]
        const uint8_t *key
        size_t key_len
        const uint8_t *meta
        size_t meta_len
        const uint8_t *body
        size_t body_len

    ctypedef struct ign_segment:
        const uint8_t *base
        size_t len
        const uint8_t *data
        size_t data_len
        uint32_t count
        uint64_t expires_at_ms

    enum:
        IGN_CRC_SIDE_BY_SIDE
    uint32_t ign_crc32c(uint32_t crc, const void *data, size_t len)
    void ign_crc32c_side_by_side(const void *data, const size_t *sizes, uint32_t *crcs)
    size_t ign_record_size(const ign_record *rec)
    void ign_record_encode(const ign_record *rec, uint8_t *dst)
    int ign_record_decode(const uint8_t *src, size_t len, ign_record *rec)
    void ign_uuid7(uint64_t now_us, uint64_t random, uint8_t *out)
    void ign_uuid7_next(const uint8_t *first, uint64_t random, uint8_t *out)
    size_t ign_segment_size(uint32_t count, size_t data_bytes)
    void ign_segment_begin(uint8_t *dst, uint32_t count, uint64_t expires_at_ms)
    void ign_segment_put_index(uint8_t *dst, uint32_t i, uint32_t end_offset, uint32_t record_crc)
    void ign_segment_finish(uint8_t *dst)
    void ign_segment_seal(uint8_t *dst, uint32_t magazine_id, uint16_t shard, uint64_t first_pointer)
    int ign_segment_open(const uint8_t *src, size_t len, ign_segment *seg)
    int ign_segment_get(const ign_segment *seg, uint32_t i, uint32_t magazine_id, uint16_t shard,
                        uint64_t first_pointer, const uint8_t **rec, size_t *rec_len)
    uint16_t ign_shard_for_key(const void *key, size_t key_len, uint16_t shards)


# -- clock and randomness ---------------------------------------------------------------------------------------

cdef uint64_t now_us() noexcept nogil
# random_u64 and next_id advance the process's one generator and therefore need the GIL, although they touch no Python object:
# `nogil` here means only that they may stand inside a nogil function whose caller holds it.
cdef uint64_t random_u64() noexcept nogil
cdef void next_id(uint64_t at_us, uint8_t *out) noexcept nogil   # 16 bytes; rising within one microsecond
cdef str text_of_id(const uint8_t *id)                           # of 16 bytes: as users see an id


# -- one record ---------------------------------------------------------------------------------------------------

# Bytes of the encoded record, SIZE_MAX when over a limit.
cdef size_t record_bytes(size_t key_len, size_t meta_len, size_t body_len) noexcept nogil
# Writes record_bytes(...) bytes at dst: attempts and crashes 0. Needs no GIL.
cdef void encode_into(uint8_t *dst, uint8_t flags, const uint8_t *id, uint64_t enqueued_at_us,
                      const uint8_t *key, size_t key_len, const uint8_t *meta, size_t meta_len,
                      const uint8_t *body, size_t body_len) noexcept nogil

# The finished batch of one such record of `size` bytes, with no key and no meta, in the segment_bytes at dst. Needs no GIL.
cdef void put_alone(uint8_t *dst, size_t segment_bytes, size_t size, uint64_t expires_at_ms, uint8_t flags, const uint8_t *id,
                    uint64_t enqueued_at_us, const uint8_t *body, size_t body_len) noexcept nogil


# -- a batch from C pointers ----------------------------------------------------------------------------------------

# builder_open, then builder_add or builder_reserve + builder_commit exactly `count` times with `data_bytes` bytes in
# all, then builder_close (or builder_abort at any point). One thread at a time; only builder_close needs the GIL.
cdef struct BatchBuilder:
    uint8_t *segment
    uint8_t *data
    uint32_t count
    uint32_t filled
    size_t end
    size_t data_bytes
    # Of the last records: committed, and without a checksum yet.
    uint32_t unchecked
    size_t sizes[IGN_CRC_SIDE_BY_SIDE]

# IGN_OK, IGN_E_NOMEM, or IGN_E_TOO_LARGE (count outside 1..IGN_SEGMENT_MAX_RECORDS, data of 4 GiB or more).
cdef int builder_open(BatchBuilder *b, uint32_t count, size_t data_bytes) noexcept nogil
# Copies one encoded record.
cdef void builder_add(BatchBuilder *b, const uint8_t *record, size_t size) noexcept nogil
# Room for the next record, to be encoded in place; commit takes its size.
cdef uint8_t *builder_reserve(BatchBuilder *b) noexcept nogil
cdef void builder_commit(BatchBuilder *b, size_t size) noexcept nogil
# Hands the memory over to a new PackedBatch (expiry 0). On failure the builder still owns it: abort.
cdef PackedBatch builder_close(BatchBuilder *b)
cdef void builder_abort(BatchBuilder *b) noexcept nogil


@cython.final
cdef class PackedBatch:
    cdef uint8_t *_segment
    cdef size_t _nbytes
    cdef uint32_t _count
    cdef Py_ssize_t _exports
    cdef bint _finished     # the index checksum stands in the header
    cdef bint _sealed
    cdef bint _sealing      # seal() is at work without the GIL

    cdef int _to_change(self) except -1
    cdef void _finish(self) noexcept


@cython.final
cdef class Record:
    cdef bytes _data
    cdef ign_record _rec    # views into _data
