# cython: language_level=3
"""What a connection of the broker keeps in C."""

from libc.stdint cimport uint8_t


cdef class ReadArea:
    cdef uint8_t *_data
    cdef Py_ssize_t _size
    cdef Py_ssize_t _exports


cdef class FrameReader:
    cdef ReadArea _area
    cdef uint8_t *_carry
    cdef Py_ssize_t _room
    cdef Py_ssize_t _filled
    cdef Py_ssize_t _exports
    cdef bint _into_carry
    cdef bint _sends
    cdef object _error
    cdef public Py_ssize_t max_frame_bytes

    cdef Py_ssize_t _parse(self, list out, const uint8_t *src, Py_ssize_t size) except -1
    cdef int _keep(self, const uint8_t *src, Py_ssize_t size) except -1
