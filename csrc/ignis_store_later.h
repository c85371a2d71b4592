/* Messages that wait for their time, in a later magazine beside the main one. Beside ignis_store.h, whose rules hold here too.
 *
 * Times are milliseconds that the caller counts. What is due is moved to the tail of the main magazine, into the shard of the same number,
 * by one TRANSFER: a firing does that first (ignis_store_fire.h). A later magazine goes with its main one. */
#ifndef IGNIS_STORE_LATER_H
#define IGNIS_STORE_LATER_H

#include "ignis_store.h"

enum { IGN_MOVE_RECORDS = 8192, IGN_MOVE_BYTES = 4 << 20 };

typedef struct ign_store_moved {
    uint64_t moved, expired; /* records; what had expired is retired, and its shard of the later magazine counts it */
    uint64_t next;           /* ms: nothing is due before; IGN_DUE_NONE: nothing at all */
} ign_store_moved;

/* Makes the later magazine of a main one known, of the same durability, or gives it more shards. IGN_E_UNKNOWN: there is no such main
 * one. IGN_E_MISMATCH: something else has the name. */
int ign_store_declare_later(ign_store *store, uint32_t main, const char *name, uint16_t shards, uint32_t *number, const ign_store_how *how,
                            ign_store_mark *mark);
/* Loads into a later magazine; `dues` are the times of all records of the parts, one behind the other. */
int ign_store_load_later(ign_store *store, uint32_t later, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                         const ign_store_how *how, ign_store_mark *mark);
/* ign_store_transfer into a later magazine. */
int ign_store_defer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t later, ign_store_part *parts,
                    uint16_t part_count, const uint64_t *dues, const ign_store_how *how, ign_store_mark *mark);
/* When something of the magazine, or of its later one, is due; a time that is too early where the earliest was retired. */
int ign_store_next_due(ign_store *store, uint32_t magazine, uint64_t *ms);
/* Moves what is due at `ms`, up to so many records of about so many bytes. */
int ign_store_move_due(ign_store *store, uint32_t main, uint64_t ms, uint64_t limit, uint64_t max_bytes, ign_store_moved *result,
                       const ign_store_how *how, ign_store_mark *mark);
/* In how many nanoseconds it is `at`, from `ns` behind the beginning of `ms`; 0: it is. */
static inline uint64_t ign_due_in_ns(uint64_t at, uint64_t ms, uint32_t ns)
{
    if (at <= ms)
        return 0;
    return at - ms > UINT64_MAX / 1000000u ? UINT64_MAX : (at - ms) * 1000000u - ns;
}

/* Up to `room` runs of records that live, by time, shard and pointer, beginning behind a record of that time, shard and pointer. */
int ign_store_list_later(ign_store *store, uint32_t later, const ign_due_run *after, ign_due_run *runs, uint32_t room, uint32_t *count);

#endif
