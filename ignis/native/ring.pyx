# cython: language_level=3, boundscheck=False, wraparound=False
"""The SPSC ring of ``csrc/ignis_ring.h`` on its own, in private memory, for tests and tools."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

include "_errors.pxi"

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)


cdef int fill_entry(object ref, object kind, ign_ring_entry *out) except -1:
    slot, generation, offset, length = ref
    out.slot = slot
    out.generation = generation
    out.offset = offset
    out.length = length
    out.kind = kind
    return 0


cdef tuple entry_of(const ign_ring_entry *entry):
    return ((entry.slot, entry.generation, entry.offset, entry.length), entry.kind)


cdef class Ring:
    """A ring of buffer references (tuples of slot, generation, offset, length), each with a kind.

    Args:
        capacity: entries, a power of two up to 2**24.
        start: first position; only tests of the counters' wrap pass one.

    One thread may push while one other pops. After ``fork()`` each process has its own copy.
    """

    def __cinit__(self, capacity: int, start: int = 0):
        if not 0 < capacity <= <uint64_t>IGN_RING_MAX_CAPACITY or not ign_ring_capacity_valid(capacity):
            raise ValueError(f"capacity must be a power of two from 1 to {IGN_RING_MAX_CAPACITY}, got {capacity}")
        self.capacity = capacity
        self._memory = aligned_alloc(IGN_LINE_BYTES, (ign_ring_bytes(capacity) + IGN_LINE_BYTES - 1) // IGN_LINE_BYTES * IGN_LINE_BYTES)
        self._out = <ign_ring_producer *>aligned_alloc(IGN_LINE_BYTES, sizeof(ign_ring_producer))
        self._in = <ign_ring_consumer *>aligned_alloc(IGN_LINE_BYTES, sizeof(ign_ring_consumer))
        if self._memory == NULL or self._out == NULL or self._in == NULL:
            raise MemoryError(f"ring of {capacity} entries")
        cdef int rc = ign_ring_format(self._memory, self.capacity, <uint64_t>(start & 0xFFFFFFFFFFFFFFFF))
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

    def __len__(self) -> int:
        """Published entries."""
        return ign_ring_depth(self._out.control)

    def try_push(self, ref, kind: int = 0) -> bool:
        """Pushes one reference; False when the ring is full."""
        cdef ign_ring_entry entry
        fill_entry(ref, kind, &entry)
        cdef int rc = ign_ring_try_push_spsc(self._out, &entry)
        if rc < 0:
            raise_code(rc, "ring")
        return rc == IGN_OK

    def try_pop(self):
        """Pops one reference as (ref, kind); None when the ring is empty."""
        cdef ign_ring_entry entry
        cdef int rc = ign_ring_try_pop_spsc(self._in, &entry)
        if rc < 0:
            raise_code(rc, "ring")
        return entry_of(&entry) if rc == IGN_OK else None

    def push_many(self, items) -> int:
        """Pushes as many of the (ref, kind) pairs as fit with one store; returns how many."""
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
        finally:
            free(entries)
        if rc < 0:
            raise_code(rc, "ring")
        return pushed

    def pop_many(self, max_entries: int) -> list:
        """Pops up to ``max_entries`` (ref, kind) pairs with one store."""
        taken = self.peek(max_entries)
        self.release(len(taken))
        return taken

    def reserve(self, want: int) -> int:
        """Room for up to ``want`` entries; nothing is visible to the consumer before ``commit``."""
        cdef uint32_t room = 0
        cdef int rc = ign_ring_reserve_spsc(self._out, want, &room)
        if rc < 0:
            raise_code(rc, "ring")
        self._reserved = room
        return room

    def commit(self, items) -> None:
        """Writes (ref, kind) pairs into the reserved room and publishes them; ValueError when they are too many."""
        cdef list pairs = list(items)
        cdef uint32_t i
        if <uint32_t>len(pairs) > self._reserved:
            raise ValueError(f"{len(pairs)} entries committed, {self._reserved} reserved")
        for i in range(<uint32_t>len(pairs)):
            ref, kind = pairs[i]
            fill_entry(ref, kind, ign_ring_reserved(self._out, i))
        ign_ring_commit_spsc(self._out, <uint32_t>len(pairs))
        self._reserved = 0

    def peek(self, max_entries: int) -> list:
        """Up to ``max_entries`` (ref, kind) pairs, not taken: their slots stay the consumer's until ``release``."""
        cdef uint32_t n = <uint32_t>min(max(0, max_entries), self.capacity), got = 0, i
        self._peeked = 0
        if n == 0:
            return []
        cdef ign_ring_entry *entries = <ign_ring_entry *>malloc(n * sizeof(ign_ring_entry))
        if entries == NULL:
            raise MemoryError(f"{n} entries")
        cdef int rc = ign_ring_peek_spsc(self._in, entries, n, &got)
        taken = []
        try:
            if rc < 0:
                raise_code(rc, "ring")
            for i in range(got):
                taken.append(entry_of(&entries[i]))
        finally:
            free(entries)
        self._peeked = got
        return taken

    def release(self, count: int) -> None:
        """Takes the first ``count`` peeked entries; ValueError when that is more than were peeked."""
        if not 0 <= count <= self._peeked:
            raise ValueError(f"release of {count} entries, {self._peeked} peeked")
        ign_ring_release_spsc(self._in, count)
        self._peeked -= <uint32_t>count
