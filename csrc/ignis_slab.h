/* Size-classed buffer pool with one owner.
 *
 * The pool has three parts: a table (geometry, never changes), one word pair per slot (generation and where it was
 * sent), and the data. Words and data can lie in a region that two processes map. The free lists and a bit per slot
 * are in the owner's private memory: a peer that scribbles over the region can spoil contents, but never get one slot
 * onto a free list twice. The words are in the region so that an owner's successor knows what is out.
 *
 * Only the owner allocates and releases; no operation is atomic. Who else is done with a buffer sends it home through
 * a return ring, and the owner releases it. Not thread-safe: one thread at a time, the owner's.
 *
 * A generation is odd while its slot is allocated and even while it is free. So a reference that is released twice or
 * kept too long is told apart from a good one in every build.
 */
#ifndef IGNIS_SLAB_H
#define IGNIS_SLAB_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IGN_SLAB_MAX_CLASSES 16u
#define IGN_SLAB_MAX_SLOTS (1u << 24)
#define IGN_SLAB_ALIGN 64u
#define IGN_SLAB_MAX_SLOT_BYTES (1u << 30)

typedef struct ign_slab_ref {
    uint32_t slot;
    uint32_t generation;
    uint32_t offset;
    uint32_t length;
} ign_slab_ref;

typedef struct ign_slab_class {
    uint32_t slot_bytes; /* multiple of IGN_SLAB_ALIGN */
    uint32_t count;
    uint32_t first_slot;
    uint32_t reserved;
    uint64_t data_offset;
} ign_slab_class;
static_assert(sizeof(ign_slab_class) == 24, "classes are part of the region's layout");

typedef struct ign_slab_table {
    uint32_t class_count;
    uint32_t slot_count;
    uint64_t data_bytes;
    ign_slab_class classes[IGN_SLAB_MAX_CLASSES]; /* rising slot_bytes */
} ign_slab_table;

/* Per slot, written by the owner alone. `sent_pos` is the ring position under which the slot was last sent, or
 * IGN_SLAB_HELD: after a crash it tells what was published from what was only being built. */
typedef struct ign_slab_word {
    uint32_t generation;
    uint32_t reserved;
    uint64_t sent_pos;
} ign_slab_word;
static_assert(sizeof(ign_slab_word) == 16, "slot words are part of the region's layout");
#define IGN_SLAB_HELD UINT64_MAX

typedef struct ign_slab_stats {
    uint64_t allocated; /* ever */
    uint64_t released;  /* ever */
    uint64_t refused;   /* allocations answered with IGN_E_EXHAUSTED */
    uint64_t active_bytes; /* slot bytes in use */
} ign_slab_stats;

typedef struct ign_slab {
    ign_slab_table table; /* private copy: checked once, then trusted */
    ign_slab_word *words;
    uint8_t *data;
    uint32_t *free_slots; /* per class a stack from first_slot on; last in, first out: that buffer is still in cache */
    uint64_t *live;       /* bit per slot: allocated, as far as we ourselves know */
    uint32_t free_count[IGN_SLAB_MAX_CLASSES];
    ign_slab_stats stats;
} ign_slab;

/* Computes the geometry. `slot_bytes` must rise strictly; each is rounded up to IGN_SLAB_ALIGN.
 * IGN_OK | IGN_E_INVALID. */
int ign_slab_table_build(ign_slab_table *table, const uint32_t *slot_bytes, const uint32_t *counts, uint32_t classes);

/* Is this a table that ign_slab_table_build could have made? IGN_OK | IGN_E_SIZE. */
int ign_slab_table_check(const ign_slab_table *table);

static inline size_t ign_slab_words_bytes(const ign_slab_table *table)
{
    return (size_t)table->slot_count * sizeof(ign_slab_word);
}

/* Where a reference points, checked against the geometry: *data_offset and *slot_bytes of the slot.
 * IGN_OK | IGN_E_FOREIGN. For whoever receives references from somebody it does not trust. */
int ign_slab_resolve(const ign_slab_table *table, uint32_t slot, uint32_t offset, uint32_t length, uint64_t *data_offset);

/* Class of a slot, or IGN_SLAB_MAX_CLASSES. */
uint32_t ign_slab_class_of(const ign_slab_table *table, uint32_t slot);

/* Becomes the owner. Slots whose generation is odd count as allocated, the others as free: zeroed words are a fresh
 * slab. `words` and `data` are the caller's and outlive the slab. IGN_OK | IGN_E_SIZE | IGN_E_NOMEM. */
int ign_slab_open(ign_slab *slab, const ign_slab_table *table, ign_slab_word *words, uint8_t *data);
void ign_slab_close(ign_slab *slab); /* frees what open allocated; idempotent */

/* IGN_OK | IGN_E_NO_CLASS (never fits) | IGN_E_EXHAUSTED (fits, nothing free now). */
int ign_slab_allocate(ign_slab *slab, size_t size, ign_slab_ref *ref);

/* IGN_OK | IGN_E_FOREIGN | IGN_E_DOUBLE_RELEASE | IGN_E_STALE | IGN_E_CORRUPT (the words contradict the free list). */
int ign_slab_release(ign_slab *slab, uint32_t slot, uint32_t generation);

/* Bytes of a live reference. IGN_OK | IGN_E_FOREIGN | IGN_E_STALE. */
int ign_slab_bytes(ign_slab *slab, const ign_slab_ref *ref, uint8_t **bytes);

static inline uint32_t ign_slab_active(const ign_slab *slab)
{
    uint32_t free_slots = 0;
    for (uint32_t c = 0; c < slab->table.class_count; c++)
        free_slots += slab->free_count[c];
    return slab->table.slot_count - free_slots;
}

#endif
