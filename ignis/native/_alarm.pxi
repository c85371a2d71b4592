# A timer for an event loop, as exact as the system's. Included by wait.pyx.

cdef extern from *:
    """
    #include <errno.h>
    #include <time.h>
    #include <unistd.h>
    #if defined(__linux__)
    #include <sys/timerfd.h>
    static int ignis_alarm_open(void)
    {
        return timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    }
    static int ignis_alarm_set(int alarm, uint64_t ns)
    {
        struct itimerspec at = {.it_value = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}};
        return timerfd_settime(alarm, 0, &at, NULL);
    }
    #else
    static int ignis_alarm_open(void)
    {
        errno = ENOSYS;
        return -1;
    }
    static int ignis_alarm_set(int alarm, uint64_t ns)
    {
        (void)alarm;
        (void)ns;
        errno = ENOSYS;
        return -1;
    }
    #endif
    static int ignis_alarm_take(int alarm)
    {
        uint64_t times;
        return read(alarm, &times, sizeof times) == (ssize_t)sizeof times;
    }
    """
    int ignis_alarm_open() nogil
    int ignis_alarm_set(int alarm, uint64_t ns) nogil
    bint ignis_alarm_take(int alarm) nogil
    int ignis_alarm_close "close"(int alarm) nogil


@cython.final
@cython.no_gc
cdef class Alarm:
    """A descriptor for an event loop that becomes readable after so long. The loop's own timers are rounded up to a millisecond.

    Used by one thread. The time that the machine sleeps counts. Raises OSError where the system has no such descriptors, or none
    left.
    """

    cdef int _descriptor
    cdef uint32_t _forks

    def __cinit__(self):
        self._forks = ign_fork_generation()
        self._descriptor = ignis_alarm_open()
        if self._descriptor < 0:
            raise OSError(_c_errno, _os.strerror(_c_errno))

    def __dealloc__(self):
        if self._descriptor >= 0:
            ignis_alarm_close(self._descriptor)

    def __reduce__(self):
        raise TypeError("an Alarm cannot be pickled or copied; make another")

    cdef int _check(self) except -1:
        if self._forks != ign_fork_generation():
            raise _errors.ForkedHandleError("this alarm was made before fork(); make another in the child")
        if self._descriptor < 0:
            raise _errors.ClosedError("this alarm is closed")
        return 0

    def fileno(self) -> int:
        """The descriptor."""
        self._check()
        return self._descriptor

    def set(self, timeout) -> None:
        """It becomes readable in so many seconds, a day at most, and not at the time that was set before; None: not at all."""
        cdef uint64_t left = 0
        self._check()
        if timeout is not None:
            left = timeout_ns(timeout)
            left += left == 0
        if ignis_alarm_set(self._descriptor, left) != 0:
            raise OSError(_c_errno, _os.strerror(_c_errno))

    def take(self) -> bool:
        """It is readable no more. False: it was not, or was set anew meanwhile."""
        self._check()
        return ignis_alarm_take(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        cdef int descriptor = self._descriptor
        self._descriptor = -1
        if descriptor >= 0:
            ignis_alarm_close(descriptor)
