# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""The SPSC ring of ``csrc/ignis_ring.h`` on its own, in private memory, for tests and tools."""

cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

include "_errors.pxi"
include "_whole.pxi"

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)


cdef int fill_entry(object ref, object kind, ign_ring_entry *out) except -1:
    slot, generation, offset, length = ref
    out.slot = _as_index(slot)
    out.generation = _as_index(generation)
    out.offset = _as_index(offset)
    out.length = _as_index(length)
    out.kind = _as_index(kind)
    return 0


cdef tuple entry_of(const ign_ring_entry *entry):
    return ((entry.slot, entry.generation, entry.offset, entry.length), entry.kind)


@cython.final
@cython.no_gc
cdef class Ring:
    """A ring of buffer references (tuples of slot, generation, offset, length), each with a kind.

    Args:
        capacity: entries, a power of two up to 2**24.
        start: first position; only tests of the counters' wrap pass one.

    One thread may push while one other pops. One made before ``fork()`` raises ForkedHandleError in the child.
    """

    def __cinit__(self, capacity: int, start: int = 0):
        cdef uint32_t places = <uint32_t>whole(capacity, "capacity", 1, IGN_RING_MAX_CAPACITY)
        cdef uint64_t first = <uint64_t>(_as_index(start) & 0xFFFFFFFFFFFFFFFF)
        if not ign_ring_capacity_valid(places):
            raise ValueError(f"capacity must be a power of two from 1 to {IGN_RING_MAX_CAPACITY}, got {places}")
        self.capacity = places
        ign_fork_watch()
        self._forks = ign_fork_generation()
        self._memory = aligned_alloc(IGN_LINE_BYTES, (ign_ring_bytes(places) + IGN_LINE_BYTES - 1) // IGN_LINE_BYTES * IGN_LINE_BYTES)
        self._out = <ign_ring_producer *>aligned_alloc(IGN_LINE_BYTES, sizeof(ign_ring_producer))
        self._in = <ign_ring_consumer *>aligned_alloc(IGN_LINE_BYTES, sizeof(ign_ring_consumer))
        if self._memory == NULL or self._out == NULL or self._in == NULL:
            raise MemoryError(f"ring of {places} entries")
        cdef int rc = ign_ring_format(self._memory, self.capacity, first)
        if rc == IGN_OK:
            rc = ign_ring_producer_open(self._out, self._memory, self.capacity)
        if rc == IGN_OK:
            rc = ign_ring_consumer_open(self._in, self._memory, self.capacity)
        if rc != IGN_OK:
            raise_code(rc, "ring")

    def __dealloc__(self):
        free(self._memory)
        free(self._out)
        free(self._in)

    cdef int _check(self) except -1:
        if self._forks != ign_fork_generation():
            raise_code(IGN_E_FORKED, "ring")
        return 0

    def __len__(self) -> int:
        """Published entries."""
        self._check()
        return ign_ring_depth(self._out.control)

    def try_push(self, ref, kind: int = 0) -> bool:
        """Pushes one reference; False when the ring is full."""
        self._check()
        cdef ign_ring_entry entry
        fill_entry(ref, kind, &entry)
        cdef int rc = ign_ring_try_push_spsc(self._out, &entry)
        if rc < 0:
            raise_code(rc, "ring")
        self._reserved = 0  # what was reserved lay behind the old position
        return rc == IGN_OK

    def try_pop(self):
        """Pops one reference as (ref, kind); None when the ring is empty."""
        self._check()
        cdef ign_ring_entry entry
        cdef int rc = ign_ring_try_pop_spsc(self._in, &entry)
        if rc < 0:
            raise_code(rc, "ring")
        if rc == IGN_OK and self._peeked != 0:
            self._peeked -= 1  # it was the first of those
        return entry_of(&entry) if rc == IGN_OK else None

    def push_many(self, items) -> int:
        """Pushes as many of the (ref, kind) pairs as fit with one store; returns how many."""
        self._check()
        cdef list pairs = list(items)
        cdef uint32_t n = <uint32_t>len(pairs), pushed = 0, i
        if n == 0:
            return 0
        cdef ign_ring_entry *entries = <ign_ring_entry *>malloc(n * sizeof(ign_ring_entry))
        if entries == NULL:
            raise MemoryError(f"{n} entries")
        try:
            for i in range(n):
                ref, kind = pairs[i]
                fill_entry(ref, kind, &entries[i])
            rc = ign_ring_try_push_many_spsc(self._out, entries, n, &pushed)
            self._reserved = 0
        finally:
            free(entries)
        if rc < 0:
            raise_code(rc, "ring")
        return pushed

    def pop_many(self, max_entries: int) -> list:
        """Pops up to ``max_entries`` (ref, kind) pairs with one store."""
        return self._entries(max_entries, True)

    cdef list _entries(self, object max_entries, bint take):
        """Entries as pairs. All that concerns the ring comes before the first pair is made, which may run Python."""
        cdef uint32_t n, got = 0, i
        cdef Py_ssize_t limit = <Py_ssize_t>whole(max_entries, "max_entries", -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
        cdef list pairs = []
        self._check()
        self._peeked = 0
        n = self.capacity if limit > <Py_ssize_t>self.capacity else <uint32_t>(limit if limit > 0 else 0)
        if n == 0:
            return pairs
        cdef ign_ring_entry *entries = <ign_ring_entry *>malloc(n * sizeof(ign_ring_entry))
        if entries == NULL:
            raise MemoryError(f"{n} entries")
        cdef int rc = ign_ring_peek_spsc(self._in, entries, n, &got)
        if rc == IGN_OK and take:
            ign_ring_release_spsc(self._in, got)
        elif rc == IGN_OK:
            self._peeked = got
        try:
            if rc < 0:
                raise_code(rc, "ring")
            for i in range(got):
                pairs.append(entry_of(&entries[i]))
        finally:
            free(entries)
        return pairs

    def reserve(self, want: int) -> int:
        """Room for up to ``want`` entries; nothing is visible to the consumer before ``commit``."""
        self._check()
        cdef uint32_t room = 0
        cdef uint32_t c_want = <uint32_t>whole(want, "want", 0, 0xFFFFFFFF)
        cdef int rc = ign_ring_reserve_spsc(self._out, c_want, &room)
        if rc < 0:
            raise_code(rc, "ring")
        self._reserved = room
        return room

    def commit(self, items) -> None:
        """Writes (ref, kind) pairs into the reserved room and publishes them; ValueError when they are too many."""
        self._check()
        cdef list pairs = list(items)
        cdef Py_ssize_t n = len(pairs), i
        cdef ign_ring_entry *entries = <ign_ring_entry *>malloc((n + 1) * sizeof(ign_ring_entry))
        if entries == NULL:
            raise MemoryError(f"{n} entries")
        try:
            for i in range(n):
                ref, kind = pairs[i]
                fill_entry(ref, kind, &entries[i])
            # Looked at last: the entries' numbers may have been Python's to tell, and may have pushed.
            if n > self._reserved:
                raise ValueError(f"{n} entries committed, {self._reserved} reserved")
            for i in range(n):
                ign_ring_reserved(self._out, <uint32_t>i)[0] = entries[i]
            ign_ring_commit_spsc(self._out, <uint32_t>n)
            self._reserved = 0
        finally:
            free(entries)

    def peek(self, max_entries: int) -> list:
        """Up to ``max_entries`` (ref, kind) pairs, not taken: their slots stay the consumer's until ``release``."""
        return self._entries(max_entries, False)

    def release(self, count: int) -> None:
        """Takes the first ``count`` peeked entries; ValueError when that is more than were peeked."""
        cdef Py_ssize_t n = small_index(count)
        self._check()
        if not 0 <= n <= <Py_ssize_t>self._peeked:
            raise ValueError(f"release of {count} entries, {self._peeked} peeked")
        ign_ring_release_spsc(self._in, <uint32_t>n)
        self._peeked -= <uint32_t>n
