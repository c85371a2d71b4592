# cython: language_level=3
"""``csrc/ignis_wait.h`` and ``csrc/ignis_board.h``, and the turns of the threads that want the interpreter lock."""

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "ignis_board.h" nogil:
    ctypedef struct ign_event:
        pass

    uint64_t ign_now_ns()
    uint64_t ign_process_start_time(int64_t pid)
    uint32_t ign_fork_generation()
    void ign_event_advance(ign_event *event)
    void ign_event_notify(ign_event *event)
    int ign_event_wait_sequence(ign_event *event, uint64_t seen, uint64_t timeout_ns, uint64_t *now)
    void ign_cpu_relax()

    enum:
        IGN_BOARD_MAX_EVENTS

    ctypedef struct ign_board:
        ign_event *events
        uint32_t count

    int ign_board_open(ign_board *board, const char *path, uint32_t events)
    void ign_board_close(ign_board *board)
    int ign_board_check(const ign_board *board)
    uint64_t ign_board_sequence(ign_board *board, uint32_t index)

    ctypedef struct ign_mutex:
        uint64_t recovered

    int ign_mutex_open(ign_mutex *mutex, const char *path)
    void ign_mutex_close(ign_mutex *mutex)
    int ign_mutex_check(const ign_mutex *mutex)
    int ign_mutex_acquire(ign_mutex *mutex, uint64_t timeout_ns)
    int ign_mutex_release(ign_mutex *mutex)
    uint32_t ign_mutex_holder(const ign_mutex *mutex)


cdef extern from "ignis_watch.h" nogil:
    ctypedef struct ign_watch:
        pass

    int ign_watch_open(ign_watch *watch)
    void ign_watch_close(ign_watch *watch)
    int ign_watch_descriptor(const ign_watch *watch)
    bint ign_watch_take(ign_watch *watch)


cdef bint take_turn() noexcept nogil
cdef void give_turn() noexcept nogil
cdef bint turn_crowded() noexcept nogil
cdef uint64_t thread_spin_ns() noexcept nogil
cdef bint in_main_thread() except -1
cdef bint is_unsignalled() noexcept nogil


cdef class EventBoard:
    cdef ign_board _board
    cdef str _path
    cdef bint _closing
    cdef int _waiting
    cdef readonly uint32_t events

    cdef int _check(self) except -1
    cdef void _finish(self) noexcept
    cdef uint32_t _index(self, object index) except? 0xFFFFFFFF


cdef class ProcessMutex:
    cdef ign_mutex _mutex
    cdef str _path
    cdef bint _closing
    cdef int _waiting
    cdef unsigned long _holder_thread
    cdef bint _held

    cdef int _check(self) except -1
    cdef void _unmap(self) noexcept


cdef class Watch:
    cdef ign_watch _watch
    cdef uint32_t _forks

    cdef int _check(self) except -1


cdef class ThreadBell:
    cdef PyThread_type_lock _lock
    cdef bint _rung
    cdef uint64_t _end_ns       # of a wait that may be put off: a hint, so without an order
    cdef uint64_t _left_ns(self, uint64_t now, uint64_t until, bint may_be_put_off) noexcept nogil
