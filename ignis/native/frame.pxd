# cython: language_level=3
"""``csrc/ignis_frame.h``."""

from libc.stdint cimport int16_t, int64_t, uint8_t


cdef extern from "ignis_frame.h" nogil:
    enum:
        IGN_FRAME_HEADER_BYTES
        IGN_FRAME_MAX_PAYLOAD

    ctypedef struct ign_frame:
        int16_t command
        int64_t request_id
        const uint8_t *payload
        size_t payload_len

    void ign_frame_put_header(uint8_t *dst, int16_t command, int64_t request_id, size_t payload_len)
    int ign_frame_decode(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frame, size_t *consumed)
    int ign_frame_decode_many(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frames, size_t max,
                              size_t *count, size_t *consumed, size_t *announced)


cdef class FrameDecoder:
    cdef uint8_t *_buffer
    cdef size_t _room
    cdef size_t _begin
    cdef size_t _end
    cdef object _error
    cdef bint _busy             # frames() reads the buffer
    cdef readonly size_t max_frame_bytes

    cdef int _check(self) except -1
