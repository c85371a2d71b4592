# cython: language_level=3
"""``csrc/ignis_store.h``."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ignis.native.record cimport ign_segment
from ignis.native.wait cimport ign_watch


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint bool


cdef extern from "ignis_store_log.h" nogil:
    enum:
        IGN_ENTRY_MAX
        IGN_ENTRY_HEADER

    ctypedef struct ign_entry:
        uint8_t type
        const uint8_t *payload
        uint32_t payload_bytes
        uint64_t next


cdef extern from "ignis_store_places.h" nogil:
    ctypedef struct ign_places:
        uint64_t unplaced

    void ign_places_free(ign_places *places)
    int ign_places_copy(ign_places *to, const ign_places *source)
    int ign_places_see(ign_places *places, uint8_t type, const uint8_t *payload, uint64_t bytes, uint64_t *missing)


cdef extern from "ignis_store_salvage.h" nogil:
    ctypedef struct ign_salvaged:
        uint64_t whole
        uint64_t damaged

    uint32_t ign_batch_mend(uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t *count)
    int ign_entry_salvage(uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_places *places,
                          ign_entry *entry, ign_salvaged *salvaged)


cdef extern from "ignis_store_state.h" nogil:
    enum:
        IGN_STORE_MAX_SHARDS

    ctypedef struct ign_shard:
        uint64_t load_pointer
        uint64_t fire_pointer
        uint64_t load_counter
        uint64_t fire_counter
        uint64_t in_flight
        uint64_t living
        uint64_t incarnation
        uint64_t expired

    ctypedef struct ign_slice:
        uint16_t shard
        uint64_t first
        uint32_t begin "from"
        uint32_t stop "to"
        uint32_t offset
        uint32_t bytes
        uint64_t position
        uint64_t expires_at_ms
        uint64_t generation
        uint64_t number
        uint64_t file_offset


cdef extern from "ignis_store.h" nogil:
    ctypedef struct ign_store_io:
        pass

    ctypedef struct ign_store:
        pass

    ctypedef struct ign_store_mark:
        uint64_t generation
        uint64_t position

    ctypedef struct ign_store_lost:
        char file[1]
        uint64_t lost_from "from"
        uint64_t lost_to "to"

    ctypedef struct ign_store_options:
        uint64_t segment_bytes
        uint64_t control_reserve
        uint64_t arena_bytes
        uint64_t stopped_after_ns
        uint64_t busy_after_ns
        uint64_t checkpoint_bytes
        uint64_t max_bytes
        ign_store_lost *lost
        bint pass_over

    ctypedef struct ign_store_change:
        const void *key
        uint32_t key_bytes
        const void *expected
        uint32_t expected_bytes
        const void *value
        uint32_t value_bytes

    ctypedef struct ign_store_figures:
        uint64_t generation
        uint64_t openings
        uint64_t end
        uint64_t durable
        uint64_t living_bytes
        uint64_t living_records
        uint64_t damaged_bytes
        uint64_t salvaged_records
        uint64_t damaged_records
        uint64_t segments
        uint64_t log_bytes
        uint64_t state_bytes
        uint64_t arena_bytes
        uint64_t batches
        uint64_t dead_bytes

    int ign_store_io_open(const char *directory, ign_store_io **io)
    void ign_store_io_close(ign_store_io *io)
    int ign_store_open(ign_store **store, ign_store_io *io, const ign_store_options *options)
    void ign_store_close(ign_store *store)

    ctypedef struct ign_store_how:
        bint at_once
        const ign_store_change *fence

    ctypedef struct ign_store_part:
        uint16_t shard
        const uint8_t *batch
        uint32_t bytes
        uint64_t first

    ctypedef struct ign_store_run:
        uint16_t shard
        uint64_t first
        uint64_t last

    ctypedef struct ign_store_magazine:
        uint32_t number
        uint16_t shards
        uint8_t durability
        uint32_t name_bytes
        char name[1]

    ctypedef struct ign_store_claimed:
        uint64_t first
        uint64_t last
        uint64_t living
        uint64_t ms
        uint32_t owner_bytes
        char owner[1]

    ctypedef struct ign_store_place:
        uint64_t a
        uint64_t b

    void ign_store_abandon(ign_store *store)
    int ign_store_declare(ign_store *store, const char *name, uint16_t shards, uint8_t durability, uint32_t *number,
                          const ign_store_how *how, ign_store_mark *mark)
    int ign_store_drop(ign_store *store, uint32_t number, bint only_empty, const ign_store_how *how, ign_store_mark *mark)
    int ign_store_find(ign_store *store, const char *name, uint32_t *number)
    int ign_store_load(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const ign_store_how *how,
                       ign_store_mark *mark)
    int ign_store_load_claimed(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const char *owner,
                               uint64_t ms, const ign_store_how *how, ign_store_mark *mark)
    int ign_store_known_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, const uint8_t *ids, uint32_t count,
                            bool *known)
    int ign_store_load_once(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                            const uint8_t *ids,
                            uint32_t id_count, uint32_t forget_hour, uint32_t hour_now, const ign_store_how *how,
                            ign_store_mark *mark)
    int ign_store_forget_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, uint32_t limit, const ign_store_how *how,
                             ign_store_mark *mark)
    int ign_store_expire(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t ms, uint64_t limit, uint64_t *expired,
                         const ign_store_how *how, ign_store_mark *mark)
    int ign_store_retire(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, bint waiting_only,
                         uint64_t *retired, const ign_store_how *how, ign_store_mark *mark)
    int ign_store_transfer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target,
                           ign_store_part *parts, uint16_t part_count, bint reload, const ign_store_how *how,
                           ign_store_mark *mark)
    int ign_store_renew(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, const char *owner,
                        const char *next_owner, uint64_t ms, const ign_store_how *how, ign_store_mark *mark)
    int ign_store_next_magazine(ign_store *store, uint32_t after, ign_store_magazine *found)
    int ign_store_claims(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t first, ign_store_claimed *claims,
                         uint32_t room, uint32_t *count)
    int ign_store_next_keys(ign_store *store, const void *prefix, uint32_t prefix_bytes, ign_store_place *place, void *to,
                            uint64_t room, uint64_t *bytes)
    int ign_store_next_owners(ign_store *store, uint32_t magazine, ign_store_place *place, void *to, uint64_t room,
                              uint64_t *bytes)
    int ign_store_peek(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t first, uint64_t last, ign_slice *slices,
                       uint32_t room, uint32_t *count)
    int ign_store_fetch(ign_store *store, const ign_slice *slice, uint8_t *batch)
    uint64_t ign_store_unread(ign_store *store)
    uint32_t ign_store_wait(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns)
    uint32_t ign_store_await(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns, uint64_t spin_ns)
    uint32_t ign_store_watch(ign_store *store, uint32_t magazine, uint32_t seen, ign_watch *watch, int *armed)
    void ign_store_wake(ign_store *store, uint32_t magazine)
    bint ign_store_awaited(ign_store *store, uint32_t magazine)
    void ign_store_forewarn(ign_store *store, uint32_t magazine)
    uint32_t ign_store_announce(ign_store *store, uint32_t magazine, uint32_t unknown)
    uint32_t ign_store_listen(ign_store *store, uint32_t seen, uint64_t timeout_ns)
    void ign_store_ring(ign_store *store)
    int ign_store_change_keys(ign_store *store, const ign_store_change *changes, uint32_t count, const ign_store_how *how,
                              ign_store_mark *mark)
    int ign_store_get_key(ign_store *store, const void *key, uint32_t key_bytes, void *value, uint32_t room, uint32_t *bytes)
    int ign_store_flush(ign_store *store, const ign_store_mark *mark, bint refuse)
    int ign_store_mark_now(ign_store *store, ign_store_mark *mark)

    ctypedef struct ign_store_interval:
        pass

    ctypedef struct ign_store_failure:
        uint64_t times
        int code
        int error

    int ign_store_interval_open(ign_store_interval **interval, ign_store *store, uint64_t every_ns)
    uint64_t ign_store_interval_failures(const ign_store_interval *interval)
    void ign_store_interval_failure(ign_store_interval *interval, ign_store_failure *failure)
    int ign_store_interval_rest(ign_store_interval *interval, uint64_t timeout_ns)
    void ign_store_interval_go_on(ign_store_interval *interval)
    int ign_store_interval_close(ign_store_interval *interval, uint64_t timeout_ns)
    void ign_store_interval_free(ign_store_interval *interval)
    void ign_store_interval_abandon(ign_store_interval *interval)
    int ign_store_maintain(ign_store *store)
    int ign_store_checkpoint(ign_store *store)
    int ign_store_figures_of(ign_store *store, ign_store_figures *figures)


cdef extern from "ignis_store_fire.h" nogil:
    ctypedef struct ign_store_fire:
        const uint16_t *order
        uint32_t order_count
        uint16_t begin
        uint64_t limit
        uint64_t max_bytes
        const char *owner
        uint64_t ms
        uint16_t sized_shard
        uint64_t sized_first
        uint32_t sized_count
        ign_slice *slices
        uint32_t room
        uint16_t *expired
        uint32_t count
        uint32_t expired_count
        uint32_t shards
        bint more
        bint full
        bint later
        uint64_t late

    int ign_store_fire_over(ign_store *store, uint32_t magazine, ign_store_fire *fire, const ign_store_how *how,
                            ign_store_mark *mark)
    int ign_store_shards(ign_store *store, uint32_t magazine, ign_shard *copies, uint32_t room, uint32_t *count)
    int ign_store_fetch_part(ign_store *store, const ign_slice *slice, uint64_t first, uint8_t *to, uint64_t bytes)


cdef extern from "ignis_store_due.h" nogil:
    uint64_t IGN_DUE_NONE

    ctypedef struct ign_due_run:
        uint64_t ms
        uint64_t shard
        uint64_t first
        uint64_t last


cdef extern from "ignis_store_later.h" nogil:
    enum:
        IGN_MOVE_RECORDS
        IGN_MOVE_BYTES

    ctypedef struct ign_store_moved:
        uint64_t moved
        uint64_t expired
        uint64_t next

    int ign_store_declare_later(ign_store *store, uint32_t main, const char *name, uint16_t shards, uint32_t *number,
                                const ign_store_how *how, ign_store_mark *mark)
    int ign_store_load_later(ign_store *store, uint32_t later, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                             const ign_store_how *how, ign_store_mark *mark)
    int ign_store_defer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t later,
                        ign_store_part *parts, uint16_t part_count, const uint64_t *dues, const ign_store_how *how,
                        ign_store_mark *mark)
    int ign_store_next_due(ign_store *store, uint32_t magazine, uint64_t *ms)
    uint64_t ign_due_in_ns(uint64_t at, uint64_t ms, uint32_t ns)
    int ign_store_move_due(ign_store *store, uint32_t main, uint64_t ms, uint64_t limit, uint64_t max_bytes,
                           ign_store_moved *result, const ign_store_how *how, ign_store_mark *mark)
    int ign_store_list_later(ign_store *store, uint32_t later, const ign_due_run *after, ign_due_run *runs, uint32_t room,
                             uint32_t *count)


# Of _store_reading.pxi.
cdef struct Piece:
    const uint8_t *data         # NULL: it does not match its checksum
    size_t size


cdef struct Reading:
    uint8_t small[4096]
    uint8_t *batch              # as large as the whole batch; only what was asked for is filled in
    ign_segment segment
    bint damaged                # the header or the index: nothing of it can be read
    bint opened, whole          # header and index are here; and so are all records
    ign_slice place             # ... of the batch that is open
    Piece few[8]
    Piece *pieces


cdef class Mark:
    cdef ign_store_mark _mark


cdef class Log:
    cdef ign_store_io *_io
    cdef ign_store *_store
    cdef Py_ssize_t _inside
    cdef bint _closing
    cdef bint _later            # a magazine was seen that has a later one
    cdef dict _late             # by main magazine: messages that expired before they were due, and of which nobody was told yet
    cdef uint32_t _forks
    cdef readonly str directory
    cdef readonly object max_bytes
    cdef readonly double busy_after_s

    cdef int _note_late(self, uint32_t number, uint64_t count) except -1
    cdef int _enter(self) except -1
    cdef int _leave(self) except -1
    cdef int _check(self, int rc) except -1
    cdef int _checked(self, int rc) except -1
    cdef int _look(self, list pieces, uint32_t number, uint16_t shard, object runs, object limit, object max_bytes,
                   bint reading) except -1
    cdef int _read_within(self, list pieces, uint32_t number, ign_slice *at, object max_bytes, int64_t *left,
                          Reading *reading) except -1
    cdef int64_t _read(self, list pieces, uint32_t number, ign_slice *at, int tries, Reading *reading) except -1
    cdef void _finish(self) noexcept


cdef class Interval:
    cdef ign_store_interval *_interval
    cdef Log _log
    cdef uint64_t _told         # failures that `take` has told of
    cdef bint _ended

    cdef inline bint _is_a_childs(self) noexcept
