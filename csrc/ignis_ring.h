/* SPSC ring of buffer references.
 *
 * One thread pushes, one thread pops; neither takes a lock, neither uses a read-modify-write. Positions are free-running
 * 64-bit counters: entry number `pos` lives in slot `pos & mask`. The ring is empty when the two are equal and full
 * when they differ by the capacity, so every slot is usable. Only unsigned differences are ever compared: the wrap of
 * the counters is an ordinary addition.
 *
 * The control block and the entries live in memory that two processes may share. Each side works through a private
 * handle with its own position and the last position of the other side that it saw. The shared position is only
 * *published* from the handle and never read back, so a peer that scribbles over it cannot move us.
 *
 * Ordering. Two pairs make the ring, and each is named again where it is used:
 *   W1 (producer: store write_pos, release)  ->  R1 (consumer: load write_pos, acquire)
 *       what was written to the entries and to the buffers they name is visible to who pops them.
 *   W2 (consumer: store read_pos, release)   ->  R2 (producer: load read_pos, acquire)
 *       the consumer's reads of an entry are over before the producer writes that slot again.
 * A third pair, S1/S2, is for sleeping and needs sequential consistency: see ignis_wait.h.
 */
#ifndef IGNIS_RING_H
#define IGNIS_RING_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ignis_error.h"

/* Two 64-byte lines: the adjacent-line prefetcher of x86 fetches pairs, and Apple's cores have 128-byte lines. */
#define IGN_LINE_BYTES 128u
#define IGN_RING_MAX_CAPACITY (1u << 24)

typedef struct ign_ring_entry {
    uint32_t slot;
    uint32_t generation;
    uint32_t length;
    uint16_t offset;
    uint16_t kind;
} ign_ring_entry;
static_assert(sizeof(ign_ring_entry) == 16, "entries are part of the region's layout");

typedef struct ign_ring_control {
    alignas(IGN_LINE_BYTES) _Atomic uint64_t write_pos; /* stored by the producer alone */
    alignas(IGN_LINE_BYTES) _Atomic uint64_t read_pos;  /* stored by the consumer alone */
} ign_ring_control;
static_assert(offsetof(ign_ring_control, write_pos) == 0, "layout");
static_assert(offsetof(ign_ring_control, read_pos) == IGN_LINE_BYTES, "layout");
static_assert(sizeof(ign_ring_control) == 2 * IGN_LINE_BYTES, "layout");
static_assert(sizeof(_Atomic uint64_t) == 8, "positions must be lock-free words of eight bytes");

/* The producer's private half. */
typedef struct ign_ring_producer {
    alignas(IGN_LINE_BYTES) ign_ring_control *control;
    ign_ring_entry *entries;
    uint64_t mask;
    uint64_t write_pos;       /* ours; control->write_pos is its published copy */
    uint64_t cached_read_pos; /* the consumer's, as last seen: at most behind, never ahead */
    bool check_thread;        /* debug builds: refuse a second thread */
    _Atomic uintptr_t thread;
} ign_ring_producer;
static_assert(sizeof(ign_ring_producer) % IGN_LINE_BYTES == 0, "the halves must not share a line");

/* The consumer's private half. */
typedef struct ign_ring_consumer {
    alignas(IGN_LINE_BYTES) ign_ring_control *control;
    const ign_ring_entry *entries;
    uint64_t mask;
    uint64_t read_pos;
    uint64_t cached_write_pos;
    bool check_thread;
    _Atomic uintptr_t thread;
} ign_ring_consumer;
static_assert(sizeof(ign_ring_consumer) % IGN_LINE_BYTES == 0, "the halves must not share a line");

bool ign_ring_capacity_valid(uint64_t capacity); /* power of two, 1..IGN_RING_MAX_CAPACITY */
size_t ign_ring_bytes(uint32_t capacity);        /* control block and entries */

/* Formats `memory` (IGN_LINE_BYTES aligned, ign_ring_bytes() long). Both positions begin at `start`; tests pass values
 * just below a wrap. IGN_OK | IGN_E_INVALID. */
int ign_ring_format(void *memory, uint32_t capacity, uint64_t start);

/* Take one side of a formatted ring. Positions are adopted from the control block.
 * IGN_OK | IGN_E_INVALID | IGN_E_CORRUPT (positions that cannot be). */
int ign_ring_producer_open(ign_ring_producer *ring, void *memory, uint32_t capacity);
int ign_ring_consumer_open(ign_ring_consumer *ring, void *memory, uint32_t capacity);

/* -- producer ----------------------------------------------------------------------------------------------------- */

/* IGN_OK | IGN_FULL | IGN_E_CORRUPT | IGN_E_THREAD. Nobody is woken: for consumers that poll. */
static inline int ign_ring_try_push_spsc(ign_ring_producer *ring, const ign_ring_entry *entry);

/* Pushes as many of `count` entries as fit, with one store. *pushed is set in every case. IGN_OK when at least one. */
int ign_ring_try_push_many_spsc(ign_ring_producer *ring, const ign_ring_entry *entries, uint32_t count, uint32_t *pushed);

/* Room for `want` entries behind the write position? *room is set to min(want, free) in every case.
 * IGN_OK when *room > 0 | IGN_FULL | IGN_E_CORRUPT | IGN_E_THREAD. Reserving twice without commit is the same room. */
int ign_ring_reserve_spsc(ign_ring_producer *ring, uint32_t want, uint32_t *room);

/* The i-th reserved entry; write it, then commit. Never committed = aborted: nothing to undo. */
static inline ign_ring_entry *ign_ring_reserved(ign_ring_producer *ring, uint32_t i)
{
    return &ring->entries[(ring->write_pos + i) & ring->mask];
}

/* Publishes the first `count` reserved entries. */
void ign_ring_commit_spsc(ign_ring_producer *ring, uint32_t count);

/* The same, sequentially consistent (S1): the caller must look for a sleeper right afterwards (ign_event_notify). */
void ign_ring_commit_ordered_spsc(ign_ring_producer *ring, uint32_t count);

/* -- consumer ----------------------------------------------------------------------------------------------------- */

/* IGN_OK | IGN_EMPTY | IGN_E_CORRUPT | IGN_E_THREAD. */
static inline int ign_ring_try_pop_spsc(ign_ring_consumer *ring, ign_ring_entry *entry);

/* Pops up to `max` entries with one store. *popped is set in every case. IGN_OK when at least one. */
int ign_ring_try_pop_many_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *popped);

/* Copies up to `max` entries without taking them: each word of shared memory is read once, here, so that what the
 * caller checks is what it uses. *got is set in every case. IGN_OK when at least one. */
int ign_ring_peek_spsc(ign_ring_consumer *ring, ign_ring_entry *entries, uint32_t max, uint32_t *got);

/* The same behind the first `skip` entries, which are peeked already. IGN_E_CORRUPT also when there are fewer than that. */
int ign_ring_peek_behind_spsc(ign_ring_consumer *ring, uint32_t skip, ign_ring_entry *entries, uint32_t max, uint32_t *got);

/* Gives the first `count` peeked entries' slots back to the producer. */
void ign_ring_release_spsc(ign_ring_consumer *ring, uint32_t count);

/* Publishes the read position again, sequentially consistent (S1): look for a sleeping producer right afterwards. */
void ign_ring_announce_spsc(ign_ring_consumer *ring);

/* -- either side, any thread -------------------------------------------------------------------------------------- */

/* Published entries; a snapshot. */
static inline uint64_t ign_ring_depth(ign_ring_control *control)
{
    /* read_pos first: write_pos only grows, so the difference cannot come out negative. */
    uint64_t read_pos = atomic_load_explicit(&control->read_pos, memory_order_acquire);
    uint64_t write_pos = atomic_load_explicit(&control->write_pos, memory_order_acquire);
    return write_pos - read_pos;
}

/* -- one at a time: the common case at the caller's, without a call; what is rare is in ignis_ring.c ------------------ */

/* The known-bad build: with it the stress tests must fail under ThreadSanitizer, or they prove nothing. */
#ifdef IGN_MUTANT_RELAXED
#define IGN_RING_PUBLISH memory_order_relaxed
#else
#define IGN_RING_PUBLISH memory_order_release
#endif

/* Looks at the other side's position again, with the thread checked where that is built in. The codes of push and pop. */
int ign_ring_look_for_room_spsc(ign_ring_producer *ring);
int ign_ring_look_for_entry_spsc(ign_ring_consumer *ring);

static inline int ign_ring_try_push_spsc(ign_ring_producer *ring, const ign_ring_entry *entry)
{
#ifdef IGN_DEBUG
    const bool look = true;
#else
    const bool look = ring->write_pos - ring->cached_read_pos > ring->mask;
#endif
    if (look) {
        int rc = ign_ring_look_for_room_spsc(ring);
        if (rc != IGN_OK)
            return rc;
    }
    ring->entries[ring->write_pos & ring->mask] = *entry;
    ring->write_pos += 1;
    /* W1: pairs with R1 in ign_ring_look_for_entry_spsc: the entry and the buffer behind it before the position. */
    atomic_store_explicit(&ring->control->write_pos, ring->write_pos, IGN_RING_PUBLISH);
    return IGN_OK;
}

static inline int ign_ring_try_pop_spsc(ign_ring_consumer *ring, ign_ring_entry *entry)
{
#ifdef IGN_DEBUG
    const bool look = true;
#else
    const bool look = ring->cached_write_pos == ring->read_pos;
#endif
    if (look) {
        int rc = ign_ring_look_for_entry_spsc(ring);
        if (rc != IGN_OK)
            return rc;
    }
    *entry = ring->entries[ring->read_pos & ring->mask];
    ring->read_pos += 1;
    /* W2: pairs with R2 in ign_ring_look_for_room_spsc: our reads of the entry are over before the slot is free. */
    atomic_store_explicit(&ring->control->read_pos, ring->read_pos, IGN_RING_PUBLISH);
    return IGN_OK;
}

#endif
