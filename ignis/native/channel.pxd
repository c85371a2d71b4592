# cython: language_level=3
"""``csrc/ignis_region.h`` and ``csrc/ignis_channel.h``."""

cimport cython
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t

from ignis.native.ring cimport ign_ring_consumer, ign_ring_entry, ign_ring_producer
from ignis.native.slab cimport ign_slab, ign_slab_ref, ign_slab_table
from ignis.native.wait cimport ign_event


cdef extern from "ignis_channel.h" nogil:
    enum:
        IGN_CHANNEL_AHEAD
        IGN_NOTE_REFUSED
        IGN_REGION_NOTES
        IGN_REGION_LABEL_MAX
        IGN_SLAB_MAX_CLASSES

    ctypedef enum ign_role:
        IGN_PRODUCER
        IGN_CONSUMER

    ctypedef struct ign_region_header:
        pass

    ctypedef enum ign_naming:
        IGN_NAMED
        IGN_RENAMED
        IGN_UNNAMED
    ctypedef struct ign_region_config:
        uint32_t ring_capacity
        uint64_t max_message_bytes
        uint32_t class_count
        uint32_t bytering_bytes
        uint32_t *slot_bytes
        uint32_t *slot_counts
        const uint8_t *label
        uint32_t label_bytes

    ctypedef struct ign_region:
        uint32_t bytering_bytes
        ign_region_header *header
        size_t bytes
        uint32_t ring_capacity
        uint64_t max_message_bytes
        uint64_t data_offset
        uint32_t label_bytes
        ign_slab_table table

    bint ign_bytering_size_valid(uint64_t bytes)
    uint32_t ign_bytering_default_bytes(uint32_t ring_capacity)
    enum:
        IGN_BYTERING_SLOT
        IGN_BYTERING_MAX_MESSAGE
        IGN_BYTERING_MAX_BYTES
    ctypedef struct ign_bytering:
        uint64_t head
        uint64_t tail
    int ign_region_config_default(ign_region_config *config, uint32_t ring_capacity, uint64_t max_message_bytes)
    int ign_region_check(const ign_region *region)
    int ign_region_owner_state(ign_region *region, ign_role role)
    void ign_region_set_note(ign_region *region, uint32_t index, uint64_t value)
    uint64_t ign_region_get_note(ign_region *region, uint32_t index)
    const uint8_t *ign_region_label(const ign_region *region)
    int ign_region_check_size(ign_region *region)
    ign_naming ign_region_naming(const ign_region *region, const char *path)

    ctypedef struct ign_message:
        const uint8_t *bytes
        uint32_t length
        uint32_t slot
        uint32_t generation
        uint16_t kind
        int16_t code

    ctypedef struct ign_channel:
        ign_region region
        bint produces
        bint consumes
        ign_ring_producer forward_out
        ign_ring_consumer back_in
        ign_slab slab
        uint64_t sent
        uint64_t bad_returns
        ign_ring_consumer forward_in
        ign_ring_producer back_out
        uint64_t received

    int ign_channel_heap(ign_channel *channel, const ign_region_config *config)
    int ign_channel_create(ign_channel *channel, const char *path, const ign_region_config *config, ign_role role)
    int ign_channel_open(ign_channel *channel, const char *path, ign_role role)
    void ign_channel_close(ign_channel *channel)
    void ign_channel_interrupt(ign_channel *channel)
    int ign_channel_reserve(ign_channel *channel, size_t size, ign_slab_ref *ref, uint8_t **at)
    int ign_channel_collect(ign_channel *channel)
    void ign_channel_stage(ign_channel *channel, const ign_slab_ref *ref, uint16_t kind)
    void ign_channel_abort(ign_channel *channel, const ign_slab_ref *ref)
    void ign_channel_publish(ign_channel *channel)
    int ign_channel_peek(ign_channel *channel, const ign_message **messages, uint32_t *got)
    void ign_channel_advance(ign_channel *channel, uint32_t count)
    int ign_channel_give_back(ign_channel *channel, uint32_t slot, uint32_t generation)
    void ign_channel_flush(ign_channel *channel)
    int ign_channel_wait_items(ign_channel *channel, uint64_t timeout_ns, bint spin)
    int ign_channel_wait_space(ign_channel *channel, uint64_t timeout_ns, bint spin, bint slots)
    bint ign_channel_set_small(ign_channel *channel, uint32_t size)
    int ign_channel_survey(
        ign_channel *channel, uint32_t skip, ign_ring_entry *entries, ign_message *messages, uint32_t max, uint32_t *got)
    void ign_channel_take(ign_channel *channel, uint32_t count)
    int ign_channel_wait_progress(ign_channel *channel, uint64_t seen, bint slots, uint64_t timeout_ns)
    int ign_channel_wait_any(
        ign_event *bell, uint64_t *seen, ign_channel **channels, uint32_t count, uint64_t timeout_ns)
    uint64_t ign_channel_read_pos(ign_channel *channel)
    uint64_t ign_channel_depth(ign_channel *channel)

    uint64_t ign_now_ns()
    void ign_prefetch "__builtin_prefetch" (const void *address)


cdef class Channel:
    cdef object __weakref__
    cdef ign_channel *_channel
    cdef str _path
    cdef bint _closing      # set by close(): no new call begins
    cdef int _waiting       # threads of this process inside a wait without the GIL
    cdef int _views         # views that still hold a slot

    cdef int _check(self) except -1
    cdef int _as(self, ign_role role) except -1
    cdef void _finish(self) noexcept
    cdef int _push(self, const uint8_t *data, size_t size, uint16_t kind) noexcept
    cdef int _fail(self, int rc, size_t size) except -1
    cdef int _wait(self, ign_role role, uint64_t until, bint spin) except -1
    cdef int _send(self, object data, uint16_t kind, uint64_t wait_ns, bint waits) except -1
    cdef int _send_slow(self, const uint8_t *data, size_t size, uint16_t kind, uint64_t wait_ns) except -1
    cdef const ign_message *_next(self, uint64_t wait_ns, bint waits) except? NULL
    cdef bytes _take(self, const ign_message *message)


cdef class View:
    cdef Channel _owner
    cdef const uint8_t *_bytes
    cdef bytes _copy        # of a small message: those lie in the byte ring, where nothing can be held
    cdef Py_ssize_t _size
    cdef uint32_t _slot
    cdef uint32_t _generation
    cdef int _exports
    cdef readonly int kind

    cdef void _give_back(self) noexcept
