# Whole numbers from Python: asked once, checked, and only then used. Included by the modules that need it.

from cpython.long cimport PyLong_AsLongLongAndOverflow as _as_long_long
from cpython.number cimport PyNumber_Index as _as_index


cdef long long whole(object value, str name, long long low, long long high) except? -1:
    """`value` as a whole number from `low` to `high`; ValueError when it is another, TypeError when it is none."""
    cdef int over = 0
    cdef object number = _as_index(value)
    cdef long long n = _as_long_long(number, &over)
    if over != 0 or not low <= n <= high:
        raise ValueError(f"{name} must be {low}..{high}, got {number}")
    return n


cdef inline Py_ssize_t small_index(object value) except? -1:
    """`value` as an index; -1 when it is one that no array here has."""
    cdef int over = 0
    cdef long long n = _as_long_long(_as_index(value), &over)
    return -1 if over != 0 or not 0 <= n <= 0x7FFFFFFF else <Py_ssize_t>n
