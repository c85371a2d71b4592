# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False, annotation_typing=False
"""One log of the embedded store: the Python face of ``csrc/ignis_store.h``.

Every call gives the interpreter lock up while it is in C, and is safe in threads and beside other processes. In a child of
``fork()`` every call raises ForkedHandleError.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ignis.native.wait cimport ign_fork_generation

include "_errors.pxi"
include "_path.pxi"
include "_whole.pxi"
include "_store_errors.pxi"

cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()


cdef enum:
    LISTING_BYTES = 1 << 16


cdef class _Any:
    def __repr__(self):
        return "ANY"


ANY = _Any()
"""In `Log.change_keys`: whatever value the key has."""


@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class Mark:
    """Where what a call has written ends. Immutable."""

    def __init__(self):
        raise TypeError("a Mark is what a Log's call returns")

    @property
    def generation(self):
        """Positions are given again when a flush failed: they belong to one."""
        return self._mark.generation

    @property
    def position(self):
        return self._mark.position

    def __repr__(self):
        return f"<Mark {self._mark.generation}:{self._mark.position}>"


cdef inline Mark mark_of(const ign_store_mark *at):
    cdef Mark made = Mark.__new__(Mark)
    made._mark = at[0]
    return made


cdef uint64_t nanoseconds(object seconds, str name) except? 0xFFFFFFFFFFFFFFFF:
    """0 stays 0, which is the default."""
    cdef double value = seconds
    if not 0.0 <= value <= 86400.0:
        raise ValueError(f"{name} must be 0..86400 seconds, got {seconds!r}")
    return <uint64_t>(value * 1e9)


@cython.final
cdef class Log:
    """One log in a directory, which must exist. Any number of processes may have it open.

    Args:
        directory: on a local file system.
        max_bytes: of living messages; loads beyond are refused. 0 = no limit.
        busy_after_s: so long a call waits for the writer's lock.
        stopped_after_s: who holds the lock for so long and does nothing is passed over.
        segment_bytes, arena_bytes, control_reserve, checkpoint_bytes: see ``ign_store_options``. 0 = the default.

    Raises:
        StoreFormatError, StoreFailedError, StoreFullError, StoreBusyError, StoreUnreachableError.
    """

    def __cinit__(self, directory, *, max_bytes=0, busy_after_s=30.0, stopped_after_s=0.0, segment_bytes=0, arena_bytes=0,
                  control_reserve=0, checkpoint_bytes=0):
        cdef ign_store_options options
        cdef int rc, number
        cdef const char *path
        memset(&options, 0, sizeof(options))
        ign_fork_watch()
        self._forks = ign_fork_generation()
        self.directory, encoded = path_pair(directory)
        options.segment_bytes = <uint64_t>whole(segment_bytes, "segment_bytes", 0, 1 << 40)
        options.arena_bytes = <uint64_t>whole(arena_bytes, "arena_bytes", 0, 1 << 40)
        options.control_reserve = <uint64_t>whole(control_reserve, "control_reserve", 0, 1 << 46)
        options.checkpoint_bytes = <uint64_t>whole(checkpoint_bytes, "checkpoint_bytes", 0, 1 << 40)
        options.stopped_after_ns = nanoseconds(stopped_after_s, "stopped_after_s")
        options.busy_after_ns = nanoseconds(busy_after_s, "busy_after_s")
        options.max_bytes = <uint64_t>whole(max_bytes, "max_bytes", 0, 1 << 62)
        self.busy_after_s = busy_after_s
        self.max_bytes = whole(max_bytes, "max_bytes", 0, 1 << 62)
        path = PyBytes_AS_STRING(encoded)
        with nogil:
            number = ign_store_io_open(path, &self._io)
        if number != 0:
            raise system_error(number, self.directory)
        with nogil:
            rc = ign_store_open(&self._store, self._io, &options)
        number = _c_errno
        if rc != IGN_OK:
            ign_store_io_close(self._io)
            self._io = NULL
            self._store = NULL
            raise log_error(rc, number, self)

    def __dealloc__(self):
        if self._inside == 0 and self._forks == ign_fork_generation():
            self._finish()

    def __reduce__(self):
        raise TypeError("a Log cannot be pickled or copied; open another")

    def __repr__(self):
        return f"<Log {self.directory}>"

    # -- opening and closing

    cdef int _enter(self) except -1:
        if self._forks != ign_fork_generation():
            raise _errors.ForkedHandleError("this store was opened before fork(); open another in the child")
        if self._closing:
            raise _errors.ClosedError(f"store: {self.directory} is closed")
        self._inside += 1
        return 0

    cdef int _leave(self) except -1:
        self._inside -= 1
        if self._closing and self._inside == 0:
            self._finish()
        return 0

    cdef void _finish(self) noexcept:
        if self._store != NULL:
            ign_store_close(self._store)
            self._store = NULL
        if self._io != NULL:
            ign_store_io_close(self._io)
            self._io = NULL

    def close(self) -> None:
        """From now on every call raises ClosedError; what is in flight ends as it would have. Idempotent."""
        if self._forks != ign_fork_generation():
            return
        self._closing = True
        if self._inside == 0:
            self._finish()

    cdef int _check(self, int rc) except -1:
        """Ends a call that must have succeeded. First thing after it: it looks at errno."""
        cdef int number = _c_errno
        self._leave()
        if rc < 0:
            raise log_error(rc, number, self)
        return rc

    # -- the whole log

    def flush(self, mark=None, *, refuse=True) -> None:
        """Returns once all up to the mark is on the disk; None = all that there is.

        With ``refuse``, what cannot be flushed is given up: nobody will find it later. Without, nothing is: call again.

        Raises StoreFailedError, StoreFullError.
        """
        cdef ign_store_mark at
        cdef bint given_up = refuse
        cdef int rc = IGN_OK
        cdef bint known = mark is not None
        if known:
            at = (<Mark?>mark)._mark
        self._enter()
        with nogil:
            if not known:
                rc = ign_store_mark_now(self._store, &at)
            if rc == IGN_OK:
                rc = ign_store_flush(self._store, &at, given_up)
        self._check(rc)

    def mark(self) -> Mark:
        """Where the log ends now."""
        cdef ign_store_mark at
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_mark_now(self._store, &at)
        self._check(rc)
        return mark_of(&at)

    def maintain(self) -> bool:
        """One bounded piece of upkeep: checkpoints, space. True when there was something to do."""
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_maintain(self._store)
        if rc == IGN_E_STALE:
            rc = IGN_EMPTY  # others were at it
        return self._check(rc) == IGN_OK

    def checkpoint(self) -> None:
        """Writes a checkpoint, so that the next opening reads less."""
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_checkpoint(self._store)
        self._check(rc)

    def figures(self) -> dict:
        """See ``ign_store_figures``."""
        cdef ign_store_figures f
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_figures_of(self._store, &f)
        self._check(rc)
        return {
            "generation": f.generation,
            "openings": f.openings,
            "end": f.end,
            "durable": f.durable,
            "living_bytes": f.living_bytes,
            "living_records": f.living_records,
            "damaged_bytes": f.damaged_bytes,
            "segments": f.segments,
            "log_bytes": f.log_bytes,
            "state_bytes": f.state_bytes,
            "dead_bytes": f.dead_bytes,
        }

    def abandon(self) -> None:
        """In a child of ``fork()``: lets go of the descriptors and mappings that were inherited. Idempotent."""
        cdef ign_store *store = self._store
        self._closing = True
        self._store = NULL
        if store != NULL:
            with nogil:
                ign_store_abandon(store)
        if self._io != NULL:
            ign_store_io_close(self._io)
            self._io = NULL

    # -- keys and values

    def keys(self, bytes prefix not None=b""):
        """(key, value) of all keys that begin with the prefix, in no order; not all of one moment."""
        cdef list found = []
        cdef ign_store_place place
        cdef const char *data = PyBytes_AS_STRING(prefix)
        cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(prefix)
        cdef uint64_t room = LISTING_BYTES, filled = 0
        cdef uint8_t *to = NULL
        cdef int rc
        memset(&place, 0, sizeof(place))
        try:
            while True:
                if to == NULL:
                    to = <uint8_t *>malloc(room)
                    if to == NULL:
                        raise MemoryError("keys")
                self._enter()
                with nogil:
                    rc = ign_store_next_keys(self._store, data, size, &place, to, room, &filled)
                if rc == IGN_E_TOO_LARGE:
                    self._leave()
                    free(to)
                    to = NULL
                    room = max(filled, 2 * room)
                    continue
                if self._check(rc) == IGN_EMPTY:
                    return found
                list_pairs(found, to, filled)
        finally:
            free(to)

    def get_key(self, bytes key not None):
        """The value, or None when there is no such key."""
        cdef uint8_t small[512]
        cdef uint8_t *value = small
        cdef uint8_t *larger = NULL
        cdef uint32_t room = sizeof(small), size = 0
        cdef const char *data = PyBytes_AS_STRING(key)
        cdef uint32_t key_bytes = key_size(key)
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_get_key(self._store, data, key_bytes, value, room, &size)
            while rc == IGN_E_TOO_LARGE:  # it may have grown meanwhile
                free(larger)
                larger = <uint8_t *>malloc(size)
                value = larger
                room = size
                rc = IGN_E_NOMEM if larger == NULL else ign_store_get_key(self._store, data, key_bytes, value, room, &size)
        try:
            if self._check(rc) == IGN_EMPTY:
                return None
            return PyBytes_FromStringAndSize(<char *>value, size)
        finally:
            free(larger)

    def change_keys(self, changes, *, at_once=False):
        """Makes all changes at once, or none.

        Args:
            changes: (key, expected, value) each. ``expected``: the value that the key must have now, None = it must not be
                there, `ANY` = whatever it is. ``value``: None removes the key.

        Returns the `Mark` to flush, or None when an expectation does not hold: nothing was changed then.
        """
        cdef list held = list(changes)
        cdef Py_ssize_t count = len(held), i = 0
        cdef ign_store_how how
        cdef ign_store_mark at
        cdef int rc
        how.at_once = at_once
        how.fence = NULL
        cdef ign_store_change *made = <ign_store_change *>calloc(max(count, 1), sizeof(ign_store_change))
        if made == NULL:
            raise MemoryError("change_keys")
        try:
            for i in range(count):
                held[i] = fill_change(&made[i], held[i])  # a tuple of bytes: kept alive as long as this call
            if count == 0:
                return self.mark()
            self._enter()
            with nogil:
                rc = ign_store_change_keys(self._store, made, <uint32_t>count, &how, &at)
            if rc == IGN_E_MISMATCH:
                self._leave()
                return None
            self._check(rc)
            return mark_of(&at)
        finally:
            free(made)


cdef int list_pairs(list found, const uint8_t *data, uint64_t size) except -1:
    """What a listing has written: u32 bytes of key, u32 bytes of value, key, value, and the next."""
    cdef uint64_t at = 0
    cdef uint32_t lengths[2]
    while at + sizeof(lengths) <= size:
        memcpy(lengths, data + at, sizeof(lengths))
        at += sizeof(lengths)
        found.append((
            PyBytes_FromStringAndSize(<const char *>data + at, lengths[0]),
            PyBytes_FromStringAndSize(<const char *>data + at + lengths[0], lengths[1]),
        ))
        at += <uint64_t>lengths[0] + lengths[1]
    return 0


cdef uint32_t key_size(bytes key) except? 0xFFFFFFFF:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
    if not 0 < size < 65536:
        raise ValueError(f"a key has 1..65535 bytes, got {size}")
    return <uint32_t>size


cdef tuple fill_change(ign_store_change *made, object change):
    cdef bytes key, expected, value
    given, must_be, becomes = change
    key = given
    made.key_bytes = key_size(key)
    made.key = PyBytes_AS_STRING(key)
    if must_be is ANY:
        expected = None
        made.expected_bytes = UINT32_MAX
    else:
        expected = must_be
        if expected is not None:
            made.expected = PyBytes_AS_STRING(expected)
            made.expected_bytes = <uint32_t>PyBytes_GET_SIZE(expected)
    value = becomes
    if value is not None:
        if PyBytes_GET_SIZE(value) >= 1 << 28:
            raise ValueError(f"a value has less than {1 << 28} bytes, got {PyBytes_GET_SIZE(value)}")
        made.value = PyBytes_AS_STRING(value)
        made.value_bytes = <uint32_t>PyBytes_GET_SIZE(value)
    return key, expected, value
