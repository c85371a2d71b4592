#include "ignis_bytering.h"

#include <stdlib.h>
#include <string.h>

#include "ignis_error.h"

bool ign_bytering_size_valid(uint64_t bytes)
{
    return bytes == 0 || (bytes >= 2 * IGN_BYTERING_MAX_MESSAGE && bytes <= IGN_BYTERING_MAX_BYTES && (bytes & (bytes - 1)) == 0);
}

uint32_t ign_bytering_default_bytes(uint32_t ring_capacity)
{
    uint64_t bytes = 128ull * ring_capacity;
    if (bytes < 2 * IGN_BYTERING_MAX_MESSAGE)
        bytes = 2 * IGN_BYTERING_MAX_MESSAGE;
    return bytes < 8u << 20 ? (uint32_t)bytes : 8u << 20;
}

/* What was published and not received: from the first of its bytes to behind the last. */
static void adopt(ign_bytering *self, const ign_ring_producer *ring)
{
    bool found = false;
    for (uint64_t pos = ring->cached_read_pos; pos != ring->write_pos; pos++) {
        const ign_ring_entry *e = &ring->entries[pos & ring->mask];
        uint32_t at = e->generation, length = e->length;
        /* A peer may have scribbled over the entries; then the message is spoilt, but never our own arithmetic. */
        if (e->slot != IGN_BYTERING_SLOT || at >= self->bytes || length > self->bytes - at)
            continue;
        if (!found)
            self->tail = at;
        found = true;
        uint64_t end = at + ((length + IGN_BYTERING_ALIGN - 1) & ~(IGN_BYTERING_ALIGN - 1));
        self->head = end > self->tail ? end : end + self->bytes;
    }
    for (uint64_t i = 0; i < self->mark_count; i++)
        self->marks[i] = self->tail;
}

int ign_bytering_open(ign_bytering *self, uint8_t *data, uint32_t bytes, const ign_ring_producer *ring)
{
    memset(self, 0, sizeof *self);
    if (bytes == 0)
        return IGN_OK;
    self->mark_count = 2; /* positions that are not aligned to a step touch one more */
    while (self->mark_count < 2 * ((ring->mask + 1) / IGN_BYTERING_STEP))
        self->mark_count *= 2;
    self->marks = malloc(self->mark_count * sizeof *self->marks);
    if (self->marks == NULL)
        return IGN_E_NOMEM;
    self->data = data;
    self->bytes = bytes;
    adopt(self, ring);
    self->limit = self->head != 0 || bytes < IGN_BYTERING_LAP ? bytes : IGN_BYTERING_LAP;
    return IGN_OK;
}

void ign_bytering_close(ign_bytering *self)
{
    free(self->marks);
    memset(self, 0, sizeof *self);
}

void ign_bytering_free(ign_bytering *self, uint64_t read_pos, uint64_t next_pos)
{
#ifdef IGN_MUTANT_EARLY_FREE
    if (next_pos - read_pos > IGN_BYTERING_STEP)
        read_pos += IGN_BYTERING_STEP;
#endif
    if (read_pos == next_pos)
        self->tail = self->head;
    else
        self->tail = self->marks[(read_pos / IGN_BYTERING_STEP) & (self->mark_count - 1)];
}

void ign_bytering_turn(ign_bytering *self, uint32_t size)
{
    uint32_t at = (uint32_t)(self->head & (self->bytes - 1));
    uint32_t need = (size + IGN_BYTERING_ALIGN - 1) & ~(IGN_BYTERING_ALIGN - 1);
    uint32_t lap = IGN_BYTERING_LAP < self->bytes ? IGN_BYTERING_LAP : self->bytes;
    if (lap < need)
        lap = need;
    if (at + size + IGN_BYTERING_ALIGN <= self->limit)
        return; /* it was not the lap's end, the ring is full */
    uint64_t began = self->head - at;
    bool keeps_up = self->tail == self->head || (self->tail > began && self->head - self->tail <= lap / 8);
    if (keeps_up || self->limit == self->bytes) {
        /* A message is never split: what is left of the lap stays empty. */
        self->head = began + self->bytes;
        if (self->tail == began + at)
            self->tail = self->head;
        self->limit = lap;
    } else {
        self->limit = self->bytes - self->limit < lap / 4 ? self->bytes : self->limit + lap / 4;
    }
}
