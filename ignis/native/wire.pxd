# cython: language_level=3
"""``csrc/ignis_wire.h``, and what a connection of the broker keeps in C."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "ignis_bytes.h" nogil:
    uint16_t ign_get16(const uint8_t *p)
    uint32_t ign_get32(const uint8_t *p)
    uint64_t ign_get64(const uint8_t *p)
    void ign_put32(uint8_t *p, uint32_t v)
    void ign_put64(uint8_t *p, uint64_t v)
    void ign_put16(uint8_t *p, uint16_t v)


cdef extern from "ignis_wire.h" nogil:
    enum:
        IGN_WIRE_SEND
        IGN_WIRE_SEND_BATCH
        IGN_WIRE_SEND_ACK
        IGN_WIRE_NO_RECORD
        IGN_WIRE_RUN_BYTES
        IGN_WIRE_ACK_FRAME_BYTES
        IGN_WIRE_CLAIM_BYTES
        IGN_WIRE_CLAIM_RUN_BYTES
        IGN_WIRE_MAX_POINTERS
    const uint64_t IGN_WIRE_POINTER_MAX

    ctypedef struct ign_wire_group:
        uint8_t *segment
        size_t segment_bytes
        size_t data_bytes
        uint8_t *request_ids
        uint32_t count
        uint16_t shard

    ctypedef struct ign_wire_sorter:
        ign_wire_group *groups
        uint32_t group_count

    ctypedef struct ign_wire_sends:
        const uint8_t *name
        size_t name_len
        uint64_t ttl_ms
        int64_t request_id
        size_t meta_bytes

    int ign_wire_take_sends(ign_wire_sorter *sorter, const uint8_t *src, size_t len, size_t max_frame_bytes,
                            ign_wire_sends *sends, size_t *consumed)
    int ign_wire_route(ign_wire_sorter *sorter, const uint8_t *segment, size_t len, uint16_t shards, uint16_t any_shard,
                       const uint8_t *request_ids, uint32_t *bad)
    void ign_wire_sorter_clear(ign_wire_sorter *sorter)
    void ign_wire_sorter_free(ign_wire_sorter *sorter)

    ctypedef struct ign_wire_batches:
        const uint8_t *name
        size_t name_len
        uint64_t ttl_ms

    int ign_wire_batches_open(ign_wire_batches *batches, const uint8_t *src, size_t len)
    int ign_wire_batches_next(ign_wire_batches *batches, uint16_t *shard, const uint8_t **segment, size_t *len)
    int ign_wire_copy_segment(uint8_t *dst, const uint8_t *src, size_t len, uint32_t *count, size_t *data_bytes,
                              uint32_t *bad)
    void ign_wire_put_acks(uint8_t *dst, const uint8_t *request_ids, size_t count, uint16_t shard, uint64_t first)

    ctypedef struct ign_wire_run:
        uint64_t first
        uint32_t count
        uint16_t shard

    ctypedef struct ign_wire_runs:
        uint32_t count

    int ign_wire_runs_add(ign_wire_runs *runs, uint16_t shard, uint64_t first, uint32_t count)
    void ign_wire_runs_break(ign_wire_runs *runs)
    void ign_wire_runs_put(const ign_wire_runs *runs, uint8_t *dst)
    void ign_wire_runs_put_bare(const ign_wire_runs *runs, uint8_t *dst)
    void ign_wire_runs_free(ign_wire_runs *runs)
    int ign_wire_pointers_open(const uint8_t *src, size_t len, uint32_t *count)
    void ign_wire_pointers_get(const uint8_t *src, uint32_t i, ign_wire_run *run)

    ctypedef struct ign_wire_claims:
        uint32_t claims

    ctypedef struct ign_wire_claim:
        uint16_t shard
        uint32_t records
        uint32_t runs

    int ign_wire_claims_open(ign_wire_claims *claims, const uint8_t *src, size_t len)
    int ign_wire_claims_next(ign_wire_claims *claims, ign_wire_claim *claim)
    void ign_wire_claim_run(const ign_wire_claim *claim, uint32_t i, ign_wire_run *run)
    const uint8_t *ign_wire_claim_take(ign_wire_claim *claim, uint32_t *len)
    void ign_wire_put_claim(uint8_t *dst, uint16_t shard, uint32_t records, uint32_t runs)


cdef class ClaimsFrame:
    cdef uint8_t *_data
    cdef size_t _room
    cdef size_t _front              # where the claims begin
    cdef size_t _begin              # of the frame, once it is whole
    cdef size_t _filled
    cdef uint32_t _claims
    cdef Py_ssize_t _exports
    cdef bint _whole
    cdef readonly uint64_t messages
    cdef readonly list runs

    cdef uint8_t *room_for(self, size_t size) except NULL
    cdef int added(self, uint16_t shard, uint64_t first, uint32_t records, size_t size) except -1
    cdef int _run(self, uint16_t shard, uint64_t start, uint64_t stop) except -1


cdef size_t claim_head(uint32_t records) noexcept nogil
cdef void put_claim_head(uint8_t *to, uint16_t shard, uint64_t first, uint32_t records) noexcept nogil


cdef class ReadArea:
    cdef uint8_t *_data
    cdef Py_ssize_t _size
    cdef Py_ssize_t _read
    cdef Py_ssize_t _carried
    cdef uint64_t _lent             # how often it was given to be read into
    cdef ign_wire_sorter _sorter    # scratch of whichever connection is being read
    cdef bint _busy                 # frames are being taken out

    cdef int _check(self) except -1


@cython.final
cdef class _Carry:
    cdef uint8_t *data
    cdef Py_ssize_t room
    cdef Py_ssize_t filled
    cdef Py_ssize_t exports


cdef class FrameReader:
    cdef ReadArea _area
    cdef _Carry _carry               # None between two frames
    cdef Py_ssize_t _exports        # of the area
    cdef uint64_t _lent             # which time it was this one's; 0 = the next bytes go into the carry
    cdef bint _sends
    cdef tuple _error               # class and arguments, once the stream is lost
    cdef Py_ssize_t _skipping       # bytes to come of a frame that nobody wants
    cdef Py_ssize_t _max_frame_bytes

    cdef int _limit(self, Py_ssize_t value) except -1
    cdef void _lend(self) noexcept
    cdef Py_ssize_t _room_wanted(self)
    cdef int _keep(self, const uint8_t *src, Py_ssize_t size) except -1
    cdef int _drop(self) except -1
    cdef Py_ssize_t _parse(self, list out, const uint8_t *src, Py_ssize_t size) except -1
    cdef Py_ssize_t _parse_alone(self, list out, const uint8_t *src, Py_ssize_t size) except -1
