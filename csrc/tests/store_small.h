/* A store of small segments, and calls of few arguments. */
#ifndef IGNIS_TEST_STORE_SMALL_H
#define IGNIS_TEST_STORE_SMALL_H

#include "store_batch.h"
#include "store_dir.h"

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 27, .checkpoint_bytes = 1 << 16};

static inline ign_store *open_with(ign_store_io *io, const ign_store_options *options)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, options), IGN_OK);
    return store;
}

static inline uint32_t declare(ign_store *store, const char *name, uint16_t shards)
{
    uint32_t number;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, name, shards, 0, &number, NULL, &mark), IGN_OK);
    return number;
}

static inline ign_store_part part_of(uint8_t *batch, uint16_t shard, uint32_t count, uint64_t id, uint64_t expires_at_ms)
{
    ign_store_part part = {.shard = shard, .batch = batch, .bytes = batch_make_until(batch, count, id, 24, expires_at_ms)};
    return part;
}

static inline int load_how(ign_store *store, uint32_t m, uint16_t shard, uint32_t count, uint64_t id, uint64_t expires, const ign_store_how *how)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = part_of(batch, shard, count, id, expires);
    return ign_store_load(store, m, &part, 1, how, &mark);
}

/* How many were claimed at that time; *expired as told. */
static inline uint32_t claim_at(ign_store *store, uint32_t m, uint16_t shard, uint64_t ms, const char *owner, bool *expired)
{
    ign_slice slices[64];
    uint32_t count, total = 0;
    ign_store_mark mark;
    int rc = ign_store_claim(store, m, shard, 1000, 1 << 20, owner, ms, slices, 64, &count, expired, NULL, &mark);
    CHECK(rc == IGN_OK || rc == IGN_EMPTY);
    for (uint32_t i = 0; i < count; i++)
        total += slices[i].to - slices[i].from;
    return total;
}

#endif
