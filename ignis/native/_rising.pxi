# The clock by which a store counts, see `ignis.storage.clock`. Included by the modules that reckon due times.

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <time.h>
    /* As `time.CLOCK_BOOTTIME`, by which a store counts. */
    static inline uint64_t ignis_rising_ns(void)
    {
        struct timespec t;
    #ifdef CLOCK_BOOTTIME
        clock_gettime(CLOCK_BOOTTIME, &t);
    #else
        clock_gettime(CLOCK_MONOTONIC, &t);
    #endif
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    static inline uint64_t ignis_rising_ms(void)
    {
        return ignis_rising_ns() / 1000000u;
    }
    """
    uint64_t ignis_rising_ms() nogil
    uint64_t ignis_rising_ns() nogil
