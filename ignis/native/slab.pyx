# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""The size-classed buffer pool of ``csrc/ignis_slab.h`` on its own, for tests and tools.

Messages travel through :class:`ignis.native.Channel`, which owns a slab inside its region.
"""

from collections import namedtuple

cimport cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

include "_errors.pxi"
include "_pool.pxi"
include "_whole.pxi"

BufferRef = namedtuple("BufferRef", ("slot", "generation", "offset", "length"))
BufferRef.__doc__ = "A buffer of a slab: slot, generation (odd while allocated), offset and length in bytes."

DEFAULT_SIZE_CLASSES = ((256, 1024), (1024, 256), (4096, 64), (16384, 16))


cdef int fill_ref(object ref, ign_slab_ref *out) except -1:
    slot, generation, offset, length = ref
    out.slot = _as_index(slot)
    out.generation = _as_index(generation)
    out.offset = _as_index(offset)
    out.length = _as_index(length)
    return 0


@cython.final
@cython.no_gc
cdef class Slab:
    """A pool of buffers in private memory.

    Args:
        size_classes: pairs of (slot size in bytes, number of slots), rising; sizes are rounded up to 64 bytes.

    Not thread-safe beyond the GIL. One made before ``fork()`` raises ForkedHandleError in the child.
    """

    def __cinit__(self, size_classes=DEFAULT_SIZE_CLASSES):
        cdef uint32_t sizes[16]
        cdef uint32_t counts[16]
        cdef ign_slab_table table
        cdef uint32_t n = 0
        pairs = list(size_classes)
        ign_fork_watch()
        self._forks = ign_fork_generation()
        if not 0 < len(pairs) <= <int>IGN_SLAB_MAX_CLASSES:
            raise ValueError(f"size_classes: 1..{IGN_SLAB_MAX_CLASSES} pairs, got {len(pairs)}")
        for size, count in pairs:
            sizes[n] = <uint32_t>whole(size, "size_classes: slot bytes", 1, 1 << 30)
            counts[n] = <uint32_t>whole(count, "size_classes: slots", 1, 1 << 24)
            n += 1
        if ign_slab_table_build(&table, sizes, counts, n) != IGN_OK:
            raise ValueError(f"size_classes must rise and have 1..2**24 slots in all, got {pairs!r}")
        self._words = <ign_slab_word *>calloc(1, ign_slab_words_bytes(&table))
        self._data = <uint8_t *>calloc(1, table.data_bytes)
        if self._words == NULL or self._data == NULL:
            raise MemoryError(f"slab of {table.data_bytes} bytes")
        cdef int rc = ign_slab_open(&self._slab, &table, self._words, self._data)
        if rc != IGN_OK:
            raise_code(rc, "slab")

    def __dealloc__(self):
        ign_slab_close(&self._slab)
        free(self._words)
        free(self._data)

    cdef int _check(self) except -1:
        if self._forks != ign_fork_generation():
            raise_code(IGN_E_FORKED, "slab")
        if self._slab.table.class_count == 0:
            raise _errors.ClosedError("slab: closed")
        return 0

    def allocate(self, size: int):
        """Takes a buffer of at least ``size`` bytes.

        Raises:
            NoSizeClassError: no class is that large. PoolExhaustedError: the class is empty at the moment.
        """
        cdef ign_slab_ref ref
        cdef size_t c_size = <size_t>whole(size, "size", 0, 0x7FFFFFFFFFFFFFFF)
        self._check()
        cdef int rc = ign_slab_allocate(&self._slab, c_size, &ref)
        if rc != IGN_OK:
            raise_code(rc, f"allocate({c_size})")
        return BufferRef(ref.slot, ref.generation, ref.offset, ref.length)

    def release(self, ref) -> None:
        """Gives a buffer back.

        Raises:
            DoubleReleaseError, StaleReferenceError, ForeignReferenceError: it is not an allocated buffer of this slab.
        """
        cdef ign_slab_ref c_ref
        fill_ref(ref, &c_ref)
        self._check()
        cdef int rc = ign_slab_release(&self._slab, c_ref.slot, c_ref.generation)
        if rc != IGN_OK:
            raise_code(rc, f"release({ref})")

    cdef uint8_t *_bytes(self, ref, ign_slab_ref *c_ref) except NULL:
        cdef uint8_t *at = NULL
        fill_ref(ref, c_ref)
        self._check()
        cdef int rc = ign_slab_bytes(&self._slab, c_ref, &at)
        if rc != IGN_OK:
            raise_code(rc, f"{ref}")
        return at

    def write(self, ref, data) -> None:
        """Copies ``data`` into the buffer; ValueError when it is longer than the reference."""
        cdef ign_slab_ref c_ref
        cdef const uint8_t[::1] view = data  # before the reference is looked at: taking a buffer may run Python
        cdef uint8_t *at = self._bytes(ref, &c_ref)
        if <size_t>view.shape[0] > c_ref.length:
            raise ValueError(f"{view.shape[0]} bytes do not fit into {ref}")
        if view.shape[0]:
            memcpy(at, &view[0], <size_t>view.shape[0])

    def read(self, ref) -> bytes:
        """A copy of the buffer's bytes."""
        cdef ign_slab_ref c_ref
        cdef uint8_t *at = self._bytes(ref, &c_ref)
        return (<char *>at)[:c_ref.length]

    def stats(self) -> dict:
        """active, allocated, released, refused (counts), bytes (slot bytes in use), classes (list of dicts)."""
        self._check()
        cdef ign_slab_stats figures = self._slab.stats
        cdef uint32_t active = ign_slab_active(&self._slab)
        return {
            "active": active,
            "allocated": figures.allocated,
            "released": figures.released,
            "refused": figures.refused,
            "bytes": figures.active_bytes,
            "classes": slab_classes(&self._slab),
        }

    def close(self) -> None:
        """Ends the slab; later calls raise ClosedError. Idempotent."""
        ign_slab_close(&self._slab)
