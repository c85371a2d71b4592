# A part of lone.pyx: looking for what comes next before the event loop sleeps. csrc/ignis_spin.h says when.

cdef extern from "ignis_spin.h" nogil:
    ctypedef struct ign_spin:
        uint64_t looked
        uint64_t found
    void ign_spin_open(ign_spin *spin, int loop, uint64_t limit_ns)
    void ign_spin_arrived(ign_spin *spin, uint64_t now_ns)
    bint ign_spin_wants(ign_spin *spin, uint64_t now_ns)
    bint ign_spin_look(ign_spin *spin, int socket)


cdef enum:
    MOST_LOOP_SPIN_US = 10000


@cython.final
@cython.no_gc       # refers to nothing
cdef class LoopSpin:
    """Looks whether anything is ready on an event loop that has just answered, without the interpreter lock.

    Args:
        descriptor: the loop's own, readable when anything is ready, as that of epoll is; -1 = never look.
        spin_us: so long at most, 0 to 10,000; 0 = never.

    Belongs to the event loop. Cannot be copied or pickled.
    """

    cdef ign_spin _spin

    def __cinit__(self, int descriptor, spin_us):
        ign_spin_open(&self._spin, descriptor, <uint64_t>whole(spin_us, "spin_us", 0, MOST_LOOP_SPIN_US) * 1000)

    def __reduce__(self):
        raise TypeError("a LoopSpin cannot be pickled or copied")

    @property
    def looked(self) -> int:
        """How often it looked."""
        return self._spin.looked

    @property
    def found(self) -> int:
        """How often something came meanwhile."""
        return self._spin.found

    cdef void _arrived(self) noexcept:
        ign_spin_arrived(&self._spin, ign_now_ns())

    cdef int _after(self, int socket, flushes, turns) except -1:
        """It was answered on that socket. What else is to be done in this pass of the loop goes first."""
        if ign_spin_wants(&self._spin, ign_now_ns()) and not flushes.planned and turns.idle:
            with nogil:
                ign_spin_look(&self._spin, socket)
        return 0
