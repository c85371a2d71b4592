/* Small batches whose records say which messages they are, and their reading. */
#ifndef IGNIS_TEST_STORE_BATCH_H
#define IGNIS_TEST_STORE_BATCH_H

#include "check.h"

#include "../ignis_record.h"
#include "../ignis_store.h"

#include <string.h>

enum { BATCH_MAX = 1 << 16 };

/* `count` records of `size` bytes (8 at least), that begin with `first_id`, `first_id` + 1 ...; returns the batch's bytes. */
static inline uint32_t batch_make_until(uint8_t *to, uint32_t count, uint64_t first_id, uint32_t size, uint64_t expires_at_ms)
{
    size_t total = ign_segment_size(count, (size_t)count * size);
    ign_segment_begin(to, count, expires_at_ms);
    uint8_t *data = to + total - (size_t)count * size;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t id = first_id + i;
        memset(data + (size_t)i * size, (int)(id * 31), size);
        memcpy(data + (size_t)i * size, &id, sizeof id);
        ign_segment_put_index(to, i, (i + 1) * size, ign_crc32c(0, data + (size_t)i * size, size));
    }
    ign_segment_finish(to);
    return (uint32_t)total;
}

static inline uint32_t batch_make(uint8_t *to, uint32_t count, uint64_t first_id, uint32_t size)
{
    return batch_make_until(to, count, first_id, size, 0);
}

/* The message that stands at a pointer of a fetched batch; 0: its checksum does not hold. */
static inline uint64_t batch_read(const uint8_t *batch, const ign_slice *slice, uint32_t magazine, uint32_t index)
{
    ign_segment segment;
    const uint8_t *record;
    size_t length;
    uint64_t id = 0;
    if (ign_segment_open(batch, slice->bytes, &segment) != IGN_OK)
        return 0;
    if (ign_segment_get(&segment, index, magazine, slice->shard, slice->first, &record, &length) == IGN_OK && length >= sizeof id)
        memcpy(&id, record, sizeof id);
    return id;
}

#endif
