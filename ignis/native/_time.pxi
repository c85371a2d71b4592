# Timeouts: seconds from Python, nanoseconds in C. Included by the modules that wait.

from libc.stdint cimport uint64_t as _u64

DEFAULT_TIMEOUT_S = 30.0


cdef _u64 timeout_ns(object timeout) except? 0xFFFFFFFFFFFFFFFF:
    """Nanoseconds of a timeout in seconds. None is the default bound, never forever; a day is the most."""
    cdef double seconds = 30.0 if timeout is None else timeout
    if not seconds >= 0.0:
        raise ValueError(f"timeout must be 0 or more seconds, got {timeout!r}")
    if seconds > 86400.0:
        seconds = 86400.0
    return <_u64>(seconds * 1e9)
