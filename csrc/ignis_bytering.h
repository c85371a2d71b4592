/* Small messages, one behind the other: where the bytes of a channel's small messages lie.
 *
 * A slab gives every message a slot of its own, so two messages never share a cache line and each costs the other core
 * at least two lines that it cannot foresee. Here messages follow each other in memory, in the order of the ring that
 * refers to them: the hardware's prefetchers see one stream, and nothing has to come home. A message's bytes are free
 * again when the ring's read position has passed its entry, so whoever receives must have copied them by then; what
 * is to be held longer, or is too large, goes into the slab.
 *
 * One owner, the producer. All of this struct is its private memory; only the bytes themselves are shared. Freeing
 * needs no word from the consumer but the ring's read position: `marks` remembers where in the byte ring every 64th
 * ring position began. Not thread-safe: one thread at a time, the producer's.
 */
#ifndef IGNIS_BYTERING_H
#define IGNIS_BYTERING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ignis_ring.h"

/* In a ring entry: `generation` is the offset in the byte ring. No slab has a slot of that number. */
#define IGN_BYTERING_SLOT UINT32_MAX
#define IGN_BYTERING_ALIGN 8u
#define IGN_BYTERING_MAX_MESSAGE 1024u /* larger ones go into the slab: they have cache lines of their own anyway */
#define IGN_BYTERING_MAX_BYTES (1u << 28)
#define IGN_BYTERING_STEP 64u /* ring positions between two marks */
/* Laps are this long while the consumer keeps up, so that both cores find the bytes in their own caches (measured:
 * docs/performance.md), and as long as need be while it does not. */
#define IGN_BYTERING_LAP (256u << 10)

typedef struct ign_bytering {
    uint8_t *data;
    uint32_t bytes; /* power of two; 0: there is none */
    uint64_t head;  /* free-running; the next message begins at or behind it */
    uint64_t tail;  /* free-running; what lies before it is free */
    uint32_t limit; /* of this lap: an offset up to which messages may lie before the next turn or longer lap */
    uint64_t *marks;
    uint64_t mark_count; /* power of two, more than the steps that the forward ring spans */
} ign_bytering;

/* `bytes`: a power of two from twice IGN_BYTERING_MAX_MESSAGE, or 0. What a predecessor published on the ring and nobody
 * received stays in use. IGN_OK | IGN_E_NOMEM. */
int ign_bytering_open(ign_bytering *self, uint8_t *data, uint32_t bytes, const ign_ring_producer *ring);
void ign_bytering_close(ign_bytering *self);

bool ign_bytering_size_valid(uint64_t bytes);
/* 128 bytes for each place in the ring, from 2 KiB to 8 MiB. */
uint32_t ign_bytering_default_bytes(uint32_t ring_capacity);

/* Frees what lies before the ring's `read_pos`, as far as the marks tell; everything when that is `next_pos`, the position
 * of the next message. The caller has read `read_pos` with acquire: R2 in ignis_ring.h. */
void ign_bytering_free(ign_bytering *self, uint64_t read_pos, uint64_t next_pos);

/* Room for `size` bytes, at most half of all: the offset, or UINT32_MAX: free some, turn, ask again. What is
 * reserved and never sent is free again when the next message is. */
static inline uint32_t ign_bytering_reserve(ign_bytering *self, uint32_t size)
{
    uint32_t need = (size + IGN_BYTERING_ALIGN - 1) & ~(IGN_BYTERING_ALIGN - 1);
    uint32_t at = (uint32_t)(self->head & (self->bytes - 1));
    if (at + need > self->limit || self->head + need - self->tail > self->bytes)
        return UINT32_MAX;
    self->head += need;
    return at;
}

/* After a failed reserve, when what could be freed was freed: goes back to the beginning where that is right. */
void ign_bytering_turn(ign_bytering *self, uint32_t size);

/* To be called for each ring position, in order, before anything is reserved for it. */
static inline void ign_bytering_mark(ign_bytering *self, uint64_t pos)
{
    if (pos % IGN_BYTERING_STEP == 0)
        self->marks[(pos / IGN_BYTERING_STEP) & (self->mark_count - 1)] = self->head;
}

#endif
