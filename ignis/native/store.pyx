# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False, annotation_typing=False
"""One log of the embedded store: the Python face of ``csrc/ignis_store.h``.

Every call gives the interpreter lock up while it is in C, and is safe in threads and beside other processes. In a child of
``fork()`` every call raises ForkedHandleError.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from ignis.native.gate cimport CallGate
from ignis.native.record cimport IGN_SEGMENT_HEADER_BYTES, IGN_SEGMENT_INDEX_BYTES, PackedBatch, ign_segment
from ignis.native.record cimport (
    ign_segment_get, ign_segment_open, ign_segment_size, next_id, now_us, put_alone, record_bytes, text_of_id,
)
from ignis.native.wire cimport (
    IGN_WIRE_NO_RECORD, ClaimsFrame, claim_head, ign_get32, ign_put32, put_claim_head,
)
from ignis.native.wait cimport (
    Watch, give_turn, ign_fork_generation, ign_now_ns, in_main_thread, is_unsignalled, take_turn, thread_spin_ns, turn_crowded,
)

include "_errors.pxi"
include "_path.pxi"
include "_whole.pxi"
include "_time.pxi"
include "_store_errors.pxi"

cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()


cdef enum:
    LISTING_BYTES = 1 << 16
    SLICES = 64
    SLICE_NS = 100000000
    LONG_SLICE_NS = 500000000  # of threads that no signal is handled in
    MOST_MOVES = 16
    MOST_PARTS = 65535
    MOST_SLICES = 1024
    READ_WHOLE = 1 << 16


cdef uint64_t MOST_POINTER = <uint64_t>1 << 62


class NoShardError(ValueError):
    """A shard that the magazine does not have."""


class FenceError(Exception):
    """The key of a fence has another value: ask again."""


class GrowthError(_errors.StoreFullError):
    """What is moved is larger than what it takes the place of, and the disk is full."""


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


@cython.final
cdef class Places:
    """Which pointer comes next in each shard, as far as the entries of a log say that were read so far, in order."""

    cdef ign_places _places

    def __dealloc__(self):
        ign_places_free(&self._places)

    def copy(self):
        cdef Places made = Places.__new__(Places)
        if ign_places_copy(&made._places, &self._places) != IGN_OK:
            raise MemoryError("places")
        return made

    def see(self, kind, payload not None):
        """An entry that is whole. Returns how many messages went before it of which nothing was read or counted."""
        cdef const uint8_t[::1] view = payload
        cdef uint64_t missing = 0
        cdef const uint8_t *at = NULL
        if view.shape[0] > 0:
            at = &view[0]
        if ign_places_see(&self._places, kind, at, <uint64_t>view.shape[0], &missing) != IGN_OK:
            raise MemoryError("places")
        return missing


def salvage(bytes data not None, salt, position, Places places not None):
    """What can still be read of a damaged entry that begins at ``position`` and reaches no further than ``data``; ``places`` are
    those before it, and then those behind it.

    Returns (type, payload, records that hold, records that do not, position behind it), of which an entry can be made that is
    whole. The payload is None when it loaded nothing, or nothing of that holds.
    """
    cdef ign_entry entry
    cdef ign_salvaged salvaged
    cdef uint64_t size = <uint64_t>PyBytes_GET_SIZE(data), its_salt = salt, at = position
    cdef uint8_t *copy = NULL
    cdef int rc
    memset(&salvaged, 0, sizeof(salvaged))
    if size < IGN_ENTRY_HEADER:
        return (0, None, 0, 0, at + size)
    copy = <uint8_t *>malloc(size)
    if copy == NULL:
        raise MemoryError("salvage")
    try:
        memcpy(copy, PyBytes_AS_STRING(data), size)
        with nogil:
            rc = ign_entry_salvage(copy, size, its_salt, at, &places._places, &entry, &salvaged)
        if rc == IGN_E_NOMEM:
            raise MemoryError("salvage")
        if rc != IGN_OK:
            return (0, None, 0, salvaged.damaged, at + size)
        return (entry.type, PyBytes_FromStringAndSize(<const char *>entry.payload, entry.payload_bytes), salvaged.whole,
                salvaged.damaged, entry.next)
    finally:
        free(copy)


cdef inline uint64_t slice_ns(bint unsignalled) noexcept nogil:
    """How long a wait sleeps in one piece. Who closes or recalls wakes it; the bound is for signals, and for who cannot wake."""
    return LONG_SLICE_NS if unsignalled else SLICE_NS


cdef inline Mark mark_of(const ign_store_mark *at):
    cdef Mark made = Mark.__new__(Mark)
    made._mark = at[0]
    return made


cdef str what_is_lost(const ign_store_lost *lost):
    cdef bytes name = <bytes>(<const char *>lost.file)
    cdef str places = f"positions {lost.lost_from:#x} to {lost.lost_to:#x}"
    if lost.lost_to == UINT64_MAX:
        places = f"positions from {lost.lost_from:#x} on"
    if not name:
        return f"{places} are in no file"
    return f"{name.decode()}, which is not there or has no header" + (f" ({places})" if lost.lost_from else "")


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
        pass_over: what is missing of the log is given up, where it would be refused to open it.

    Raises:
        StoreFormatError, StoreFailedError, StoreFullError, StoreBusyError, StoreUnreachableError.
    """

    def __cinit__(self, directory, *, max_bytes=0, busy_after_s=30.0, stopped_after_s=0.0, segment_bytes=0, arena_bytes=0,
                  control_reserve=0, checkpoint_bytes=0, bint pass_over=False):
        cdef ign_store_options options
        cdef ign_store_lost lost
        cdef int rc, number
        cdef const char *path
        memset(&options, 0, sizeof(options))
        memset(&lost, 0, sizeof(lost))
        options.lost = &lost
        options.pass_over = pass_over
        self._late = {}
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
            if rc == IGN_E_LOST:
                raise lost_error(self.directory, what_is_lost(&lost))
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
            "salvaged_records": f.salvaged_records,
            "damaged_records": f.damaged_records,
            "segments": f.segments,
            "log_bytes": f.log_bytes,
            "state_bytes": f.state_bytes,
            "arena_bytes": f.arena_bytes,
            "batches": f.batches,
            "dead_bytes": f.dead_bytes,
        }

    def unread(self) -> int:
        """How often a part of a batch could not be read since the log was opened."""
        cdef uint64_t count
        self._enter()
        count = ign_store_unread(self._store)
        self._leave()
        return count

    def abandon(self) -> None:
        """In a child of ``fork()``: lets go of the descriptors and mappings that were inherited. Idempotent."""
        cdef ign_store *store = self._store
        if self._forks == ign_fork_generation():
            raise RuntimeError(f"store: {self.directory} was opened by this very process: close it")
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
        cdef uint64_t size = 8
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
                size += 24 + <uint64_t>made[i].key_bytes + made[i].value_bytes
            if size > IGN_ENTRY_MAX - IGN_ENTRY_HEADER:
                raise transaction_error(size, IGN_ENTRY_MAX - IGN_ENTRY_HEADER)
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


    # -- magazines

    def declare(self, str name not None, int shards, int durability, *, durable=True):
        """Makes a magazine known, or changes its number of shards. Returns its number; None when there is one of another
        durability, or something lives in the shards that would go.

        Raises ValueError: the number of shards is outside 1..512, the name longer than 1,024 bytes.
        """
        cdef bytes encoded = name.encode()
        cdef const char *text = PyBytes_AS_STRING(encoded)
        cdef uint16_t count = <uint16_t>whole(shards, "shards", 1, IGN_STORE_MAX_SHARDS)
        cdef uint8_t kind = <uint8_t>durability
        cdef uint32_t number = 0
        cdef Call call
        call_begin(&call, False, durable)
        self._enter()
        with nogil:
            call.rc = ign_store_declare(self._store, text, count, kind, &number, &call.how, &call.mark)
            call_end(self._store, &call)
        if call.rc == IGN_E_MISMATCH:
            self._leave()
            return None
        self._check(call.rc)
        return number

    def drop(self, uint32_t number, *, only_empty=False, durable=True) -> bool:
        """Removes a magazine and all that is in it. With ``only_empty`` False, and nothing happened, when anything is."""
        cdef bint empty = only_empty
        cdef Call call
        call_begin(&call, False, durable)
        self._enter()
        with nogil:
            call.rc = ign_store_drop(self._store, number, empty, &call.how, &call.mark)
            call_end(self._store, &call)
        return self._check(call.rc) == IGN_OK

    def find(self, str name not None):
        """The number of the magazine of that name, or None."""
        cdef bytes encoded = name.encode()
        cdef const char *text = PyBytes_AS_STRING(encoded)
        cdef uint32_t number = 0
        cdef int rc
        self._enter()
        with nogil:
            rc = ign_store_find(self._store, text, &number)
        if rc == IGN_E_UNKNOWN:
            self._leave()
            return None
        self._check(rc)
        return number

    def magazines(self) -> list:
        """(number, name, shards, durability) of all magazines."""
        cdef list found = []
        cdef uint32_t after = 0
        cdef int rc
        cdef ign_store_magazine *one = <ign_store_magazine *>malloc(sizeof(ign_store_magazine))
        if one == NULL:
            raise MemoryError("magazines")
        try:
            while True:
                self._enter()
                with nogil:
                    rc = ign_store_next_magazine(self._store, after, one)
                if self._check(rc) == IGN_EMPTY:
                    return found
                found.append((one.number, one.name[:one.name_bytes].decode(), one.shards, one.durability))
                after = one.number
        finally:
            free(one)

    def shards(self, uint32_t number) -> list:
        """(load_pointer, fire_pointer, load_counter, fire_counter, in_flight, living, incarnation, expired) of each shard."""
        cdef uint32_t count = 0, i
        cdef int rc
        cdef ign_shard *copies = <ign_shard *>malloc(IGN_STORE_MAX_SHARDS * sizeof(ign_shard))
        if copies == NULL:
            raise MemoryError("shards")
        try:
            self._enter()
            with nogil:
                rc = ign_store_shards(self._store, number, copies, IGN_STORE_MAX_SHARDS, &count)
            self._check(rc)
            return [
                (copies[i].load_pointer, copies[i].fire_pointer, copies[i].load_counter, copies[i].fire_counter,
                 copies[i].in_flight, copies[i].living, copies[i].incarnation, copies[i].expired)
                for i in range(count)
            ]
        finally:
            free(copies)

    # -- the way of a message

    def load(self, uint32_t number, batches, *, durable, at_once=False, bytes owner=None, uint64_t ms=0, fence=None):
        """Appends each (shard, `PackedBatch`) at its shard's tail, in one entry; returns the first pointer of each.

        With ``owner`` (its stored name) its records are claimed in the same entry; None, and nothing happened, when something
        older is pending in one of the shards. The batches count as sealed then, and stay as they were if the call fails.

        Raises ValueError (a batch is sealed), BufferError, `NoShardError`, `FenceError` (see `transfer`); of ``at_once``
        StoreBusyError, when it would wait.
        """
        cdef Parts parts
        cdef Call call
        cdef ign_store_change change
        cdef tuple held
        cdef const char *name = NULL if owner is None else PyBytes_AS_STRING(owner)
        call_begin(&call, at_once, durable)
        if fence is not None:
            held = fenced(&call, &change, fence)  # keeps its bytes alive
        cdef list packed = parts_open(&parts, batches)
        try:
            self._enter()
            with nogil:
                if name == NULL:
                    call.rc = ign_store_load(self._store, number, parts.parts, <uint16_t>parts.count, &call.how, &call.mark)
                else:
                    call.rc = ign_store_load_claimed(self._store, number, parts.parts, <uint16_t>parts.count, name, ms,
                                                     &call.how, &call.mark)
                call_end(self._store, &call)
            parts.loaded = call.loaded
            if self._checked(call.rc) == IGN_EMPTY:
                return None
            return [parts.parts[i].first for i in range(parts.count)]
        finally:
            parts_close(&parts, packed)

    def known_ids(self, uint32_t number, bytes ids not None, uint32_t hour_now) -> bytes:
        """Of ids of 16 bytes each, one behind the other: a byte each, 1 for those that were loaded and are remembered."""
        cdef uint32_t count = id_count(ids)
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(ids)
        cdef bytes known = PyBytes_FromStringAndSize(NULL, count)
        cdef bool *flags = <bool *>PyBytes_AS_STRING(known)
        cdef int rc
        if count == 0:
            return known
        self._enter()
        with nogil:
            rc = ign_store_known_ids(self._store, number, hour_now, data, count, flags)
        self._check(rc)
        return known

    def load_once(self, uint32_t number, batches, bytes ids not None, *, uint32_t forget_hour, uint32_t hour_now, durable,
                  dues=None):
        """`load`, and in the same entry these ids become known until that hour. None, and nothing happened, when one of them
        is known. With ``dues`` into a later magazine, as `load_later`; the ids are those of its main one."""
        cdef Parts parts
        cdef Call call
        cdef uint64_t *times = NULL
        cdef uint32_t count = id_count(ids)
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(ids)
        call_begin(&call, False, durable)
        cdef list packed = parts_open(&parts, batches)
        try:
            if dues is not None:
                times = dues_open(&parts, packed, dues)
            self._enter()
            with nogil:
                call.rc = ign_store_load_once(self._store, number, parts.parts, <uint16_t>parts.count, times, data, count,
                                              forget_hour, hour_now, &call.how, &call.mark)
                call_end(self._store, &call)
            parts.loaded = call.loaded
            if call.rc == IGN_E_MISMATCH:
                self._leave()
                return None
            self._checked(call.rc)
            return [parts.parts[i].first for i in range(parts.count)]
        finally:
            free(times)
            parts_close(&parts, packed)

    def forget_ids(self, uint32_t number, uint32_t hour_now, uint32_t limit) -> bool:
        """Removes about so many ids whose hour is here. False: there are none."""
        cdef Call call
        call_begin(&call, False, False)
        self._enter()
        with nogil:
            call.rc = ign_store_forget_ids(self._store, number, hour_now, limit, &call.how, &call.mark)
        return self._check(call.rc) == IGN_OK

    def fire(self, uint32_t number, limit, bytes owner not None, uint64_t ms, order=None, uint16_t begin=0,
             max_bytes=1 << 62, at_once=False, *, records=True, first=True):
        """Claims up to ``limit`` records over the shards, in one entry as a rule; 0 = looks only.

        Args:
            owner: its stored name.
            order: the shards to look at, each once; None = all, from ``begin`` on.
            max_bytes: of the records. One that alone has more is handed out by itself, if ``first``.
            records: whether they are read; without, `pieces` have how many there are in their place.

        Returns (pieces, expired, more, shards): pieces are (shard, pointers, records) with ``pointers`` a range, ``expired``
        the shards where the walk ended before a record that has expired at ``ms``, ``shards`` how many the magazine has.
        """
        cdef Firing firing
        cdef Call call
        cdef list pieces = []
        cdef bint reading = records, more = False, one_fits = first, waits = not at_once, turn
        cdef bint keeps = waits and turn_crowded()
        cdef uint64_t left = whole(limit, "limit", 0, 1 << 62), bytes_left = whole(max_bytes, "max_bytes", 0, 1 << 62)
        cdef uint64_t taken
        cdef uint32_t i
        cdef set expired = None     # mostly there are none
        firing_open(&firing, order, begin, owner, ms, left)
        try:
            while True:
                firing.fire.limit = left
                firing.fire.max_bytes = bytes_left
                call_begin(&call, keeps or not waits, False)
                self._enter()
                if keeps:
                    firing_claim(self._store, number, &firing, reading, &call)
                    if call.rc == IGN_E_BUSY:  # nothing happened
                        self._leave()
                        keeps = False
                        continue
                else:
                    with nogil:
                        firing_claim(self._store, number, &firing, reading, &call)
                        turn = waits and take_turn()
                    if turn:
                        give_turn()
                if firing.fire.later:
                    self._later = True
                if call.rc == IGN_NEED_MORE:
                    self._leave()
                    if not one_fits:
                        return pieces, [] if expired is None else sorted(expired), True, firing.fire.shards
                    continue
                self._checked(call.rc)
                firing.fire.sized_count = 0
                more = firing.fire.more
                if firing.fire.expired_count != 0 and expired is None:
                    expired = set()
                for i in range(firing.fire.expired_count):
                    expired.add(firing.fire.expired[i])
                taken = 0
                for i in range(firing.fire.count):
                    taken += firing.slices[i].stop - firing.slices[i].begin
                    if reading:
                        bytes_left -= min(bytes_left, <uint64_t>firing.slices[i].bytes)
                gather(self, pieces, number, &firing, reading)
                left -= taken
                one_fits = one_fits and taken == 0
                if not (firing.fire.full and waits) or left == 0:
                    return pieces, [] if expired is None else sorted(expired), more, firing.fire.shards
        finally:
            self._note_late(number, firing.fire.late)
            firing_close(&firing)

    def fire_next(self, uint32_t number, limit, bytes owner not None, uint64_t ms, CallGate gate not None, Recall recall not None,
                  long long seen, timeout, uint16_t begin=0, max_bytes=1 << 62):
        """Waits until something was loaded since ``seen``, as `wait`, and claims it, as `fire`, without the interpreter lock in between.

        Args:
            ms: the time now; the claim has the time at which it is made.
            gate: is gone through by the claim, not by the wait. If it is shut nothing is claimed.
            recall: ends the wait without a claim.

        Returns (number, fired): where the magazine is, read before the claim; what `fire` returns, or None when nothing was tried.
        """
        cdef Firing firing
        cdef Call call
        cdef list pieces = []
        cdef uint64_t began_ms = ignis_rising_ms(), now = ign_now_ns(), spin = thread_spin_ns(), left = timeout_ns(timeout)
        cdef uint64_t deadline = now + left
        cdef uint32_t known = <uint32_t>seen, found = 0, i
        cdef bint inside = False, more, due = False, turn = False, unsignalled = is_unsignalled()
        cdef uint64_t most = whole(limit, "limit", 1, 1 << 62)
        cdef Moving moving
        moving.pause_ns = moving.again_ns = 0
        firing_open(&firing, None, begin, owner, ms, most)
        firing.fire.limit = most
        call_begin(&call, False, False)
        try:
            firing.fire.max_bytes = whole(max_bytes, "max_bytes", 0, 1 << 62)
            self._enter()
            try:
                while True:
                    with nogil:
                        while True:
                            left = min(deadline - now if deadline > now else 0, slice_ns(unsignalled))
                            if self._later:
                                left = until_due(self._store, number, ms, began_ms, left, &moving, &due)
                            found = await_due(self._store, number, known, left, spin, due, &moving)
                            if due and found == known and self._later:
                                found = moved_due(self._store, number, ms + (ignis_rising_ms() - began_ms), known, &moving, &firing.fire.late)
                            if found != known and not ignis_flag(recall._flag) and not self._closing:
                                inside = gate.try_go_in()
                                if inside:
                                    firing.fire.ms = ms + (ignis_rising_ms() - began_ms)
                                    firing_claim(self._store, number, &firing, True, &call)
                                    while call.rc == IGN_NEED_MORE:
                                        firing_claim(self._store, number, &firing, True, &call)
                            now = ign_now_ns()
                            if found != known or now >= deadline or self._closing or not unsignalled:
                                break
                            spin = 0
                        turn = (inside or unsignalled) and take_turn()
                    if turn:
                        give_turn()
                    if found != known or now >= deadline or self._closing:
                        break
                    spin = 0
                    PyErr_CheckSignals()
                    unsignalled = not in_main_thread()
            except BaseException:
                self._leave()
                raise
            if not inside:
                self._leave()
                return found, None
            if firing.fire.later:
                self._later = True
            self._checked(call.rc)
            gather(self, pieces, number, &firing, True)
            more = firing.fire.more
            return found, (pieces, [firing.fire.expired[i] for i in range(firing.fire.expired_count)], more, firing.fire.shards)
        finally:
            if inside:
                gate.go_out()
            self._note_late(number, firing.fire.late)
            firing_close(&firing)

    def expire(self, uint32_t number, uint16_t shard, uint64_t ms, uint64_t limit, *, durable) -> int:
        """Retires up to so many of the records that come next and have expired at ``ms``; returns how many, and counts them."""
        cdef Call call
        cdef uint64_t expired = 0
        call_begin(&call, False, durable)
        self._enter()
        with nogil:
            call.rc = ign_store_expire(self._store, number, shard, ms, limit, &expired, &call.how, &call.mark)
            call_end(self._store, &call)
        if self._checked(call.rc) == IGN_EMPTY:
            return 0
        return expired

    def retire(self, uint32_t number, pointers, *, durable, waiting_only=False, at_once=False) -> int:
        """Retires records; returns how many were still there.

        Args:
            pointers: shard -> pointers in any order. Numbers that no record can have are passed over.
            waiting_only: none that was ever claimed.
        """
        cdef Call call
        cdef RunList runs
        cdef uint64_t retired = 0
        cdef bint waiting = waiting_only, keeps = not at_once and not durable and turn_crowded()
        call_begin(&call, at_once or keeps, durable)
        runs_open(&runs, pointers)
        try:
            if runs.count == 0:
                return 0
            self._enter()
            if keeps:
                call.rc = ign_store_retire(self._store, number, runs.runs, runs.count, waiting, &retired, &call.how, &call.mark)
                keeps = call.rc != IGN_E_BUSY
                call.how.at_once = keeps  # busy: nothing happened
            if not keeps:
                with nogil:
                    call.rc = ign_store_retire(self._store, number, runs.runs, runs.count, waiting, &retired, &call.how, &call.mark)
                    call_end(self._store, &call)
            self._checked(call.rc)
            return retired
        finally:
            free(runs.runs)

    def transfer(self, uint32_t source, pointers, uint32_t target, batches, *, durable, reload=False, fence=None) -> bool:
        """Retires records of the source and loads the batches into the target, or neither: then it returns False, and one of
        the pointers is gone. With ``reload`` both are one magazine, and the records are no new messages.

        Args:
            fence: (key, value): the key must have that value, None = not be there.

        Raises `FenceError` when it has not.
        """
        cdef Call call
        cdef RunList runs
        cdef Parts parts
        cdef ign_store_change change
        cdef bint again = reload
        cdef tuple held
        call_begin(&call, False, durable)
        if fence is not None:
            held = fenced(&call, &change, fence)  # keeps its bytes alive
        cdef list packed = parts_open(&parts, batches)
        runs.runs = NULL
        try:
            runs_open(&runs, pointers)
            if runs.count == 0:
                raise ValueError("a transfer of nothing")
            self._enter()
            with nogil:
                call.rc = ign_store_transfer(self._store, source, runs.runs, runs.count, target, parts.parts,
                                             <uint16_t>parts.count, again, &call.how, &call.mark)
                call_end(self._store, &call)
            parts.loaded = call.loaded
            return self._checked(call.rc) == IGN_OK
        finally:
            free(runs.runs)
            parts_close(&parts, packed)

    # -- claims

    def claims(self, uint32_t number, uint16_t shard, uint64_t first=0, uint32_t room=64) -> list:
        """(first pointer, last pointer, how many live, ms, stored owner) of up to ``room`` claims of one shard that end at
        ``first`` or behind; fewer: there are no more."""
        cdef uint32_t count = 0, i
        cdef int rc
        cdef ign_store_claimed *found = <ign_store_claimed *>malloc(max(room, 1) * sizeof(ign_store_claimed))
        if found == NULL:
            raise MemoryError("claims")
        try:
            self._enter()
            with nogil:
                rc = ign_store_claims(self._store, number, shard, first, found, room, &count)
            self._checked(rc)
            return [
                (found[i].first, found[i].last, found[i].living, found[i].ms, found[i].owner[:found[i].owner_bytes])
                for i in range(count)
            ]
        finally:
            free(found)

    def owners(self, uint32_t number=0) -> set:
        """The stored names of all who have claimed something that lives, in one magazine or in all (0)."""
        cdef list found = []
        cdef ign_store_place place
        cdef uint64_t filled = 0
        cdef int rc
        cdef uint8_t *to = <uint8_t *>malloc(LISTING_BYTES)
        if to == NULL:
            raise MemoryError("owners")
        memset(&place, 0, sizeof(place))
        try:
            while True:
                self._enter()
                with nogil:
                    rc = ign_store_next_owners(self._store, number, &place, to, LISTING_BYTES, &filled)
                if self._check(rc) == IGN_EMPTY:
                    return {name for name, _ in found}
                list_pairs(found, to, filled)
        finally:
            free(to)

    def renew(self, uint32_t number, pointers, bytes owner not None, bytes next_owner, uint64_t ms) -> None:
        """Gives these claims of the stored owner another time, and perhaps another owner, as far as they are still its."""
        cdef Call call
        cdef RunList runs
        cdef const char *name = PyBytes_AS_STRING(owner)
        cdef const char *other = NULL if next_owner is None else PyBytes_AS_STRING(next_owner)
        call_begin(&call, False, False)
        runs_open(&runs, pointers)
        try:
            if runs.count != 0:
                self._enter()
                with nogil:
                    call.rc = ign_store_renew(self._store, number, runs.runs, runs.count, name, other, ms, &call.how, &call.mark)
                self._checked(call.rc)
        finally:
            free(runs.runs)

    @property
    def later(self) -> bool:
        """Whether a magazine was seen that has a later one: only then due times are looked at."""
        return self._later

    @property
    def late(self) -> bool:
        """Whether `take_late` has anything to tell, of any magazine."""
        return len(self._late) != 0

    def take_late(self, uint32_t number) -> int:
        """How many messages of that main magazine this object has seen to expire before they were due, since the last call. What
        another process retires that one is told."""
        return self._late.pop(number, 0)

    cdef int _note_late(self, uint32_t number, uint64_t count) except -1:
        if count != 0:
            self._late[number] = self._late.get(number, 0) + count
        return 0

    # -- looking

    def peek(self, uint32_t number, uint16_t shard, runs, *, limit=-1) -> list:
        """What exists of these pointers, claimed or not, in pieces: (first pointer, records, expires_at_ms). A record that does
        not match its checksum is None. Of a batch whose records lie in several runs the index is read once.

        Args:
            runs: (first, behind the last) each, ascending.
            limit: most records; below 0 = all.
        """
        cdef list pieces = []
        self._look(pieces, number, shard, runs, limit, -1, True)
        return [(pointers.start, records, expires) for _, pointers, records, expires in pieces]

    def peek_within(self, uint32_t number, uint16_t shard, runs, max_bytes, *, limit=-1) -> tuple:
        """`peek` up to where the records have so many bytes, or little more; one comes in any case. Returns the pieces, and whether
        some may have been left out."""
        cdef list pieces = []
        cdef bint cut = self._look(pieces, number, shard, runs, limit, max(max_bytes, 0), True)
        return [(pointers.start, records, expires) for _, pointers, records, expires in pieces], cut

    def living(self, uint32_t number, uint16_t shard, runs, *, limit=-1) -> list:
        """`peek` without reading: (first pointer, last pointer, expires_at_ms, first pointer of the batch)."""
        cdef list pieces = []
        self._look(pieces, number, shard, runs, limit, -1, False)
        return pieces

    cdef int _look(self, list pieces, uint32_t number, uint16_t shard, object runs, object limit, object max_bytes,
                   bint reading) except -1:
        cdef ign_slice slices[SLICES]
        cdef Reading opened
        cdef uint32_t count, i
        cdef uint64_t first, last
        cdef int64_t left = limit, bytes_left = max_bytes
        cdef int rc
        reading_begin(&opened)
        try:
            for start, stop in runs:
                first = clipped(start, 1)
                last = clipped(stop, 1) - 1
                while first <= last and left != 0:
                    self._enter()
                    count = 0
                    with nogil:
                        rc = ign_store_peek(self._store, number, shard, first, last, slices, SLICES, &count)
                    self._checked(rc)
                    for i in range(count):
                        first = slices[i].first + slices[i].stop
                        if 0 <= left < <int64_t>(slices[i].stop - slices[i].begin):
                            slices[i].stop = slices[i].begin + <uint32_t>left
                        if left >= 0:
                            left -= slices[i].stop - slices[i].begin
                        if not reading:
                            pieces.append((slices[i].first + slices[i].begin, slices[i].first + slices[i].stop - 1,
                                           slices[i].expires_at_ms, slices[i].first))
                        elif self._read_within(pieces, number, &slices[i], max_bytes, &bytes_left, &opened):
                            return 1
                        if left == 0:
                            return 0
                    if count < SLICES:
                        break
            return 0
        finally:
            reading_end(&opened)

    cdef int _read_within(self, list pieces, uint32_t number, ign_slice *at, object max_bytes, int64_t *left,
                          Reading *reading) except -1:
        """`_read` of as much as is left of ``max_bytes``; True: that was all that there is room for."""
        cdef uint32_t stop = at.stop
        if max_bytes < 0:
            self._read(pieces, number, at, 0, reading)
            return 0
        self._enter()
        with nogil:
            reading_fit(self._store, at, <uint64_t>left[0], reading)
        self._leave()
        stop -= at.stop
        left[0] -= self._read(pieces, number, at, 0, reading)
        return stop != 0 or left[0] <= 0

    cdef int64_t _read(self, list pieces, uint32_t number, ign_slice *at, int tries, Reading *reading) except -1:
        """Adds (shard, pointers, records, expires_at_ms) for what a slice names. Where it was moved meanwhile it is looked up
        again. Returns the bytes of the records. ``reading`` may have the batch open."""
        cdef ign_slice slices[SLICES]
        cdef uint32_t count = 0, i
        cdef uint64_t first = at.first + at.begin, last = at.first + at.stop - 1
        cdef int64_t bytes = 0
        cdef int rc
        self._enter()
        if at.bytes <= READ_WHOLE and turn_crowded():
            rc = reading_run(self._store, number, at, reading)
        else:
            with nogil:
                rc = reading_run(self._store, number, at, reading)
        if rc != IGN_E_STALE:
            self._check(rc)
            pieces.append(piece_read(at, reading))
            return <int64_t>reading_bytes(reading, at.stop - at.begin)
        self._leave()
        reading_end(reading)
        if tries == MOST_MOVES:
            raise log_error(IGN_E_BUSY, 0, self)
        self._enter()
        with nogil:
            rc = ign_store_peek(self._store, number, at.shard, first, last, slices, SLICES, &count)
        self._checked(rc)
        for i in range(count):
            bytes += self._read(pieces, number, &slices[i], tries + 1, reading)
        if count == SLICES:
            slices[0] = slices[SLICES - 1]
            at.begin = <uint32_t>(slices[0].first + slices[0].stop - at.first)
            bytes += self._read(pieces, number, at, tries, reading)
        return bytes

    def batches(self, uint32_t number, uint16_t shard, uint64_t first, uint64_t last) -> list:
        """The whole batches in which pointers first..last exist, for `segment_columns`: (data, first pointer of the batch, last
        one, first pointer wanted, behind the last one wanted, None)."""
        cdef ign_slice slices[SLICES]
        cdef uint32_t count = 0, i
        cdef uint64_t known = 0, known_offset = 0
        cdef bytes data = None
        cdef list parts = []
        cdef int rc
        cdef int tries = 0
        cdef uint8_t *to
        while first <= last:
            self._enter()
            with nogil:
                rc = ign_store_peek(self._store, number, shard, first, last, slices, SLICES, &count)
            self._checked(rc)
            for i in range(count):
                if data is None or slices[i].position != known or slices[i].offset != known_offset:
                    data = PyBytes_FromStringAndSize(NULL, slices[i].bytes)
                    to = <uint8_t *>PyBytes_AS_STRING(data)
                    self._enter()
                    with nogil:
                        rc = ign_store_fetch(self._store, &slices[i], to)
                    if rc == IGN_E_STALE:
                        self._leave()
                        data = None
                        break
                    if rc == IGN_OK:
                        batch_mend(to, &slices[i], number)
                    self._check(rc)
                    known = slices[i].position
                    known_offset = slices[i].offset
                parts.append((data, slices[i].first, slices[i].first + max(batch_count(data), slices[i].stop) - 1,
                              slices[i].first + slices[i].begin, slices[i].first + slices[i].stop, None))
                first = slices[i].first + slices[i].stop
            else:
                if count < SLICES:
                    return parts
                continue
            tries += 1
            if tries > MOST_MOVES:
                raise log_error(IGN_E_BUSY, 0, self)
        return parts

    # -- waking

    def wait(self, uint32_t number, long long seen, timeout, uint64_t ms=0) -> int:
        """Waits until something was loaded into the magazine since ``seen``, or the time is over; returns the new number. With
        ``ms``, the time now, what comes to be due meanwhile is moved, and so loaded."""
        cdef uint64_t began_ms = ignis_rising_ms() if ms != 0 and self._later else 0
        cdef bint due = False, turn = False, unsignalled = is_unsignalled()
        cdef uint64_t left = timeout_ns(timeout), now = ign_now_ns(), deadline = now + left, spin = thread_spin_ns(), late = 0
        cdef uint32_t known = <uint32_t>seen, found = 0
        cdef Moving moving
        moving.pause_ns = moving.again_ns = 0
        self._enter()
        if left == 0 and began_ms == 0:  # a look
            found = ign_store_await(self._store, number, known, 0, 0)
            self._leave()
            return found
        try:
            while True:
                with nogil:
                    while True:
                        left = min(deadline - now if deadline > now else 0, slice_ns(unsignalled))
                        if began_ms != 0 and left != 0:
                            left = until_due(self._store, number, ms, began_ms, left, &moving, &due)
                        found = await_due(self._store, number, known, left, spin, due, &moving)
                        if due and found == known:
                            found = moved_due(self._store, number, ms + (ignis_rising_ms() - began_ms), known, &moving, &late)
                        now = ign_now_ns()
                        spin = 0
                        if found != known or now >= deadline or self._closing or not unsignalled:
                            break
                    turn = unsignalled and take_turn()
                if turn:
                    give_turn()
                if found != known or now >= deadline or self._closing:
                    return found
                PyErr_CheckSignals()
                unsignalled = not in_main_thread()
        finally:
            self._note_late(number, late)
            self._leave()

    def watch(self, uint32_t number, long long seen, Watch watch not None):
        """Arms the watch if nothing was loaded since ``seen``: it becomes readable with the next load, `wake` or `forewarn`. Returns the number, which is ``seen`` when the watch is armed; None when it could not be.
        """
        cdef uint32_t known = <uint32_t>seen, found
        cdef int armed
        watch._check()
        self._enter()
        with nogil:
            found = ign_store_watch(self._store, number, known, &watch._watch, &armed)
        self._leave()
        return found if armed == IGN_OK else None

    def wake(self, uint32_t number) -> None:
        """Makes every `wait` on this magazine return."""
        self._enter()
        with nogil:
            ign_store_wake(self._store, number)
        self._leave()

    def awaited(self, uint32_t number) -> bool:
        """Whether anybody has begun to wait for this magazine since it was loaded or woken last. A hint: he may have gone."""
        cdef bint found
        self._enter()
        with nogil:
            found = ign_store_awaited(self._store, number)
        self._leave()
        return found

    def forewarn(self, uint32_t number) -> None:
        """A load of this magazine is about to be made: who sleeps on it is woken and looks for it for a moment. Nothing is raised."""
        if self._forks == ign_fork_generation() and not self._closing:
            self._inside += 1
            with nogil:
                ign_store_forewarn(self._store, number)
            self._leave()

    def announce(self, uint32_t number, long long seen) -> bool:
        """The next load into the magazine rings the bell. False when there was one since ``seen``."""
        cdef uint32_t known = <uint32_t>seen
        self._enter()
        cdef bint still = ign_store_announce(self._store, number, known + 1) == known
        self._leave()
        return still

    def moved(self, watched) -> list:
        """Of (number, seen, ...), those of magazines that were loaded since."""
        cdef list found = []
        cdef uint32_t known
        self._enter()
        try:
            for one in watched:
                known = <uint32_t><long long>one[1]
                if ign_store_wait(self._store, one[0], known, 0) != known:
                    found.append(one)
        finally:
            self._leave()
        return found

    def listen(self, long long seen, timeout) -> int:
        """Waits until the bell was rung since ``seen``, or the time is over; returns where it is. -1 returns at once."""
        cdef uint64_t left = timeout_ns(timeout)
        cdef uint32_t known = <uint32_t>seen, found
        self._enter()
        if seen < 0:
            left = 0
        with nogil:
            found = ign_store_listen(self._store, known, left)
        self._leave()
        return found

    def ring(self) -> None:
        """Rings the bell: every `listen` returns."""
        self._enter()
        with nogil:
            ign_store_ring(self._store)
        self._leave()

    cdef int _checked(self, int rc) except -1:
        """`_check` of a call that names shards or a fence."""
        if rc == IGN_E_INVALID:
            self._leave()
            raise NoShardError(f"store: {self.directory}: no such shard, or pointers that cannot be")
        if rc == IGN_E_MISMATCH:
            self._leave()
            raise FenceError(f"store: {self.directory}: the fence does not hold")
        return self._check(rc)


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
            raise _errors.MessageTooLargeError(
                PyBytes_GET_SIZE(value), (1 << 28) - 1, "one value of an embedded store", "value"
            )
        made.value = PyBytes_AS_STRING(value)
        made.value_bytes = <uint32_t>PyBytes_GET_SIZE(value)
    return key, expected, value


include "_store_arguments.pxi"
include "_store_reading.pxi"
include "_store_frames.pxi"
include "_store_firing.pxi"
include "_store_later.pxi"
include "_store_lone.pxi"
include "_store_interval.pxi"
