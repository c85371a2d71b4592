#include "ignis_ring.h"

#include <string.h>

#include "ignis_error.h"

#ifdef IGN_DEBUG
static int wrong_thread(bool enabled, _Atomic uintptr_t *owner)
{
    static _Thread_local char marker; /* its address names the thread */
    uintptr_t me = (uintptr_t)&marker;
    uintptr_t none = 0;
    if (!enabled || atomic_compare_exchange_strong_explicit(owner, &none, me, memory_order_relaxed, memory_order_relaxed))
        return 0;
    return none != me;
}
#define CHECK_THREAD(ring)                                    \
    do {                                                      \
        if (wrong_thread((ring)->check_thread, &(ring)->thread)) \
            return IGN_E_THREAD;                              \
    } while (0)
#else
#define CHECK_THREAD(ring) ((void)0)
#endif

bool ign_ring_capacity_valid(uint64_t capacity)
{
    return capacity != 0 && capacity <= IGN_RING_MAX_CAPACITY && (capacity & (capacity - 1)) == 0;
}

size_t ign_ring_bytes(uint32_t capacity)
{
    return sizeof(ign_ring_control) + (size_t)capacity * sizeof(ign_ring_entry);
}

int ign_ring_format(void *memory, uint32_t capacity, uint64_t start)
{
    if (memory == NULL || (uintptr_t)memory % IGN_LINE_BYTES != 0 || !ign_ring_capacity_valid(capacity))
        return IGN_E_INVALID;
    ign_ring_control *control = memory;
    atomic_init(&control->write_pos, start);
    atomic_init(&control->read_pos, start);
    return IGN_OK;
}

static ign_ring_entry *entries_of(void *memory)
{
    return (ign_ring_entry *)(void *)((char *)memory + sizeof(ign_ring_control));
}

int ign_ring_producer_open(ign_ring_producer *ring, void *memory, uint32_t capacity)
{
    if (memory == NULL || (uintptr_t)memory % IGN_LINE_BYTES != 0 || !ign_ring_capacity_valid(capacity))
        return IGN_E_INVALID;
    memset(ring, 0, sizeof *ring);
    ring->control = memory;
    ring->entries = entries_of(memory);
    ring->mask = (uint64_t)capacity - 1;
    ring->check_thread = true;
    ring->cached_read_pos = atomic_load_explicit(&ring->control->read_pos, memory_order_acquire);
    ring->write_pos = atomic_load_explicit(&ring->control->write_pos, memory_order_acquire);
    if (ring->write_pos - ring->cached_read_pos > capacity)
        return IGN_E_CORRUPT;
    return IGN_OK;
}

int ign_ring_consumer_open(ign_ring_consumer *ring, void *memory, uint32_t capacity)
{
    if (memory == NULL || (uintptr_t)memory % IGN_LINE_BYTES != 0 || !ign_ring_capacity_valid(capacity))
        return IGN_E_INVALID;
    memset(ring, 0, sizeof *ring);
    ring->control = memory;
    ring->entries = entries_of(memory);
    ring->mask = (uint64_t)capacity - 1;
    ring->check_thread = true;
    ring->read_pos = atomic_load_explicit(&ring->control->read_pos, memory_order_acquire);
    ring->cached_write_pos = atomic_load_explicit(&ring->control->write_pos, memory_order_acquire);
    if (ring->cached_write_pos - ring->read_pos > capacity)
        return IGN_E_CORRUPT;
    return IGN_OK;
}

int ign_ring_reserve_spsc(ign_ring_producer *ring, uint32_t want, uint32_t *room)
{
    *room = 0;
    CHECK_THREAD(ring);
    uint64_t capacity = ring->mask + 1;
    uint64_t used = ring->write_pos - ring->cached_read_pos;
    if (capacity - used < want) {
        /* R2: pairs with W2 in ign_ring_release_spsc: the consumer's reads of the slots up to read_pos are over before
         * we write them again. Only re-read when the ring looks too full: this line belongs to the other core. */
        uint64_t read_pos = atomic_load_explicit(&ring->control->read_pos, memory_order_acquire);
        used = ring->write_pos - read_pos;
        if (used > capacity)
            return IGN_E_CORRUPT; /* beyond write_pos, or more than a lap behind; not remembered, so it stays an error */
        ring->cached_read_pos = read_pos;
        if (used == capacity)
            return IGN_FULL;
    }
    uint64_t free_entries = capacity - used;
    *room = free_entries < want ? (uint32_t)free_entries : want;
    return IGN_OK;
}

void ign_ring_commit_spsc(ign_ring_producer *ring, uint32_t count)
{
    ring->write_pos += count;
    /* W1: pairs with R1 in ign_ring_peek_spsc: entries and the buffers behind them before the position. */
    atomic_store_explicit(&ring->control->write_pos, ring->write_pos, IGN_RING_PUBLISH);
}

void ign_ring_commit_ordered_spsc(ign_ring_producer *ring, uint32_t count)
{
    ring->write_pos += count;
#ifdef IGN_MUTANT_RELAXED
    atomic_store_explicit(&ring->control->write_pos, ring->write_pos, memory_order_relaxed);
#else
    /* W1 as above, and S1: in the single total order this store comes before our look at the sleeper's flag, which
     * the sleeper sets (S2) before it looks at write_pos a last time. One of the two sees the other. */
    atomic_store_explicit(&ring->control->write_pos, ring->write_pos, memory_order_seq_cst);
#endif
}

int ign_ring_look_for_room_spsc(ign_ring_producer *ring)
{
    CHECK_THREAD(ring);
    uint64_t capacity = ring->mask + 1;
    if (ring->write_pos - ring->cached_read_pos < capacity)
        return IGN_OK; /* only builds that check the thread ask then */
    /* R2, as in ign_ring_reserve_spsc. */
    uint64_t read_pos = atomic_load_explicit(&ring->control->read_pos, memory_order_acquire);
    uint64_t used = ring->write_pos - read_pos;
    if (used > capacity)
        return IGN_E_CORRUPT;
    ring->cached_read_pos = read_pos;
    return used == capacity ? IGN_FULL : IGN_OK;
}

int ign_ring_try_push_many_spsc(ign_ring_producer *ring, const ign_ring_entry *entries, uint32_t count, uint32_t *pushed)
{
    int rc = ign_ring_reserve_spsc(ring, count, pushed);
    if (rc != IGN_OK)
        return rc;
    uint64_t first = ring->write_pos & ring->mask;
    uint64_t before_wrap = ring->mask + 1 - first;
    uint64_t n = *pushed;
    uint64_t head = n < before_wrap ? n : before_wrap;
    memcpy(&ring->entries[first], entries, head * sizeof *entries);
    memcpy(&ring->entries[0], entries + head, (n - head) * sizeof *entries);
    ign_ring_commit_spsc(ring, *pushed);
    return IGN_OK;
}

int ign_ring_peek_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *got)
{
    return ign_ring_peek_behind_spsc(ring, 0, entries, max, got);
}

int ign_ring_peek_behind_spsc(ign_ring_consumer *ring, uint32_t skip, ign_ring_entry *entries, uint32_t max, uint32_t *got)
{
    *got = 0;
    CHECK_THREAD(ring);
    uint64_t available = ring->cached_write_pos - ring->read_pos;
    if (available < (uint64_t)skip + max) {
        /* R1: pairs with W1 in ign_ring_commit_spsc: everything that the producer wrote before it published this
         * position is visible below. Only re-read when we know of too few: the line belongs to the other core. */
        uint64_t write_pos = atomic_load_explicit(&ring->control->write_pos, memory_order_acquire);
        available = write_pos - ring->read_pos;
        if (available > ring->mask + 1 || available < skip)
            return IGN_E_CORRUPT; /* not remembered, so it stays an error */
        if (available == skip)
            return IGN_EMPTY;
        ring->cached_write_pos = write_pos;
    }
    uint64_t n = available - skip < max ? available - skip : max;
    uint64_t first = (ring->read_pos + skip) & ring->mask;
    uint64_t before_wrap = ring->mask + 1 - first;
    uint64_t head = n < before_wrap ? n : before_wrap;
    if (n == 1) {
        entries[0] = ring->entries[first];
    } else {
        memcpy(entries, &ring->entries[first], head * sizeof *entries);
        memcpy(entries + head, &ring->entries[0], (n - head) * sizeof *entries);
    }
    *got = (uint32_t)n;
    return IGN_OK;
}

void ign_ring_release_spsc(ign_ring_consumer *ring, uint32_t count)
{
    ring->read_pos += count;
    /* W2: pairs with R2 in ign_ring_reserve_spsc: our reads of the entries are over before the slots are free. */
    atomic_store_explicit(&ring->control->read_pos, ring->read_pos, IGN_RING_PUBLISH);
}

void ign_ring_announce_spsc(ign_ring_consumer *ring)
{
    /* S1, mirror image: a producer that sleeps for room sets its flag (S2), then looks at read_pos a last time. */
    atomic_store_explicit(&ring->control->read_pos, ring->read_pos, memory_order_seq_cst);
}

int ign_ring_look_for_entry_spsc(ign_ring_consumer *ring)
{
    CHECK_THREAD(ring);
    if (ring->cached_write_pos != ring->read_pos)
        return IGN_OK; /* only builds that check the thread ask then */
    /* R1, as in ign_ring_peek_spsc. */
    uint64_t write_pos = atomic_load_explicit(&ring->control->write_pos, memory_order_acquire);
    uint64_t available = write_pos - ring->read_pos;
    if (available > ring->mask + 1)
        return IGN_E_CORRUPT;
    if (available == 0)
        return IGN_EMPTY;
    ring->cached_write_pos = write_pos;
    return IGN_OK;
}

int ign_ring_try_pop_many_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *popped)
{
    int rc = ign_ring_peek_spsc(ring, entries, max, popped);
    if (rc == IGN_OK)
        ign_ring_release_spsc(ring, *popped);
    return rc;
}
