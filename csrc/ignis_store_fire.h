/* What is read and claimed in one go over all shards of a magazine, and the reading of parts of a batch. Beside
 * ignis_store.h, whose rules hold here too. */
#ifndef IGNIS_STORE_FIRE_H
#define IGNIS_STORE_FIRE_H

#include "ignis_store.h"

typedef struct ign_store_fire {
    /* What is asked for. */
    const uint16_t *order; /* the shards to look at, in this order; NULL = all, from `begin` on and round */
    uint32_t order_count;
    uint16_t begin;
    uint64_t limit;        /* records; 0 = only look at what comes next in each shard */
    uint64_t max_bytes;    /* of the batches that they are in. A batch that does not fit is left, unless it is the first */
    const char *owner;
    uint64_t ms;           /* the time of the claim; what has expired by then is left where it is */
    /* Of the first batch when it alone is over max_bytes: so many records from this pointer on. */
    uint16_t sized_shard;
    uint64_t sized_first;
    uint32_t sized_count;
    ign_slice *slices;     /* room for what is claimed */
    uint32_t room;
    uint16_t *expired;     /* room for as many shards as there are: IGN_STORE_MAX_SHARDS */
    /* What was found. */
    uint32_t count;        /* slices */
    uint32_t expired_count; /* shards where the walk ended before a record that has expired */
    uint32_t shards;       /* of the magazine */
    bool more;             /* something is left that could have been claimed */
    bool full;             /* ... because there was no room for slices */
    bool later;            /* the magazine has a later one: what was due there was moved first */
    uint64_t late;         /* added to: records that had expired there, and were retired instead of being moved */
} ign_store_fire;

/* Claims over many shards in one entry. IGN_EMPTY: nothing was claimed. IGN_NEED_MORE: nothing was claimed, and the batch of
 * slices[0] alone is over max_bytes; call again with how many of its records fit. IGN_E_INVALID: a shard of the order that
 * does not exist. */
int ign_store_fire_over(ign_store *store, uint32_t magazine, ign_store_fire *fire, const ign_store_how *how, ign_store_mark *mark);
/* All shards of a magazine as they are at one moment; IGN_E_TOO_LARGE: there are *count. */
int ign_store_shards(ign_store *store, uint32_t magazine, ign_shard *copies, uint32_t room, uint32_t *count);
/* Bytes from..from + bytes - 1 of the slice's batch, as ign_store_fetch. */
int ign_store_fetch_part(ign_store *store, const ign_slice *slice, uint64_t from, uint8_t *to, uint64_t bytes);

#endif
