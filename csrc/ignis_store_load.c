/* Loads, alone, with a claim of what is loaded, and with ids that are loaded once. */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <errno.h>
#include <string.h>

enum {
    IDS_AT_A_TIME = 1024, /* that are looked up while the lock is held */
    MUCH = 1 << 20,       /* a batch that takes its time */
};

/* Neighbours of one time are one. */
static uint32_t count_dues(ign_load_call *call)
{
    uint32_t found = 0;
    uint64_t at = 0;
    call->earliest = IGN_DUE_NONE;
    for (uint16_t i = 0; i < call->count; i++)
        for (uint64_t end = at + ign_get32(call->parts[i].batch + 4); at < end; at++) {
            found += at == 0 || call->dues[at] != call->dues[at - 1];
            call->earliest = call->dues[at] < call->earliest ? call->dues[at] : call->earliest;
        }
    return found;
}

static void put_dues(const ign_load_call *call, uint8_t *to)
{
    uint8_t *begin = to;
    uint64_t at = 0, from = 0;
    uint32_t found = 0;
    for (uint16_t i = 0; i < call->count; i++)
        at += ign_get32(call->parts[i].batch + 4);
    for (uint64_t end = at; from < end; from = at) {
        for (at = from; at < end && call->dues[at] == call->dues[from]; at++)
            ;
        ign_put64(to, call->dues[from]);
        ign_put32(to + 8, (uint32_t)(at - from));
        ign_put32(to + 12, 0);
        to += IGN_DUES_BYTES;
        found++;
    }
    ign_put32(to, found);
    ign_put32(to + 4, ign_dues_check(call->magazine, begin, found));
}

int ign_load_check(ign_load_call *call)
{
    call->bytes = 8;
    call->batches = 0;
    for (uint16_t i = 0; i < call->count; i++) {
        ign_segment segment;
        int rc = ign_segment_open(call->parts[i].batch, call->parts[i].bytes, &segment);
        if (rc != IGN_OK)
            return rc;
        call->bytes += 16 + ign_pad8(call->parts[i].bytes);
        call->batches += call->parts[i].bytes;
    }
    if (call->dues != NULL)
        call->bytes += (uint64_t)count_dues(call) * IGN_DUES_BYTES + IGN_DUES_END;
    return call->bytes > IGN_ENTRY_MAX / 2 ? IGN_E_TOO_LARGE : IGN_OK;
}

int ign_load_fits(ign_store *store, ign_generation *g, const ign_load_call *call, uint64_t freed)
{
    uint64_t most = store->options.max_bytes, living = g->ctl.root->living_bytes;
    bool fits = freed == 0 ? ign_load_dues_fit(store, g, call) : call->batches <= freed || living + call->batches - freed <= most;
    if (call->moves || (fits && (freed == 0 || ign_store_may_grow(store, g, call, freed))))
        return IGN_OK;
    errno = fits ? E2BIG : ENOBUFS;
    return IGN_E_NO_ROOM;
}

/* The first pointers are drawn in the order of the parts. */
int ign_load_put(ign_generation *g, ign_load_call *call, uint8_t *to)
{
    ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    if (call->dues != NULL) {
        const ign_due *due = (magazine->durability & IGN_MAGAZINE_IS_LATER) == 0 ? NULL : ign_state_due(&g->ctl, magazine);
        if (due == NULL)
            return IGN_E_INVALID;
        if (IGN_MAGAZINE_OTHER(magazine) == 0)
            return IGN_E_UNKNOWN;
        call->wakes = call->earliest < due->next ? IGN_MAGAZINE_OTHER(magazine) : 0;
    }
    memset(to, 0, 8);
    ign_put32(to, call->magazine);
    ign_put16(to + 4, (uint16_t)((call->reload ? IGN_LOAD_RELOAD : 0) | (call->dues != NULL ? IGN_LOAD_LATER : 0)));
    ign_put16(to + 6, call->count);
    to += 8;
    for (uint16_t i = 0; i < call->count; i++) {
        ign_store_part *part = &call->parts[i];
        ign_shard *shard = ign_state_shard(&g->ctl, magazine, part->shard);
        if (shard == NULL)
            return IGN_E_INVALID;
        uint64_t first = shard->load_pointer + 1;
        for (uint16_t k = i; k-- > 0;)
            if (call->parts[k].shard == part->shard) {
                first = call->parts[k].first + ign_get32(call->parts[k].batch + 4);
                break;
            }
        if (first > IGN_POINTER_MAX - ign_get32(part->batch + 4) + 1) {
            errno = EOVERFLOW;
            return IGN_E_NO_ROOM;
        }
        part->first = first;
        memset(to, 0, 8);
        ign_put16(to, part->shard);
        ign_put32(to + 4, part->bytes);
        ign_put64(to + 8, first);
        ign_put_padded(to + 16, part->batch, part->bytes);
        ign_segment_seal(to + 16, call->magazine, part->shard, first);
        if (part->bytes >= MUCH)
            ign_store_gets_on(g);
        to += 16 + ign_pad8(part->bytes);
    }
    if (call->dues != NULL)
        put_dues(call, to);
    return IGN_OK;
}

int ign_load_build(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    ign_load_call *call = arg;
    uint8_t *to;
    *bytes = call->bytes;
    int rc = ign_load_fits(store, g, call, 0);
    if (rc == IGN_OK)
        rc = ign_store_stage(g, call->bytes, &to);
    return rc != IGN_OK ? rc : ign_load_put(g, call, to);
}

void ign_load_wake(ign_store *store, const ign_load_call *call)
{
    if (call->wakes != 0)
        ign_store_wake(store, call->wakes);
}

int ign_store_load(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const ign_store_how *how,
                   ign_store_mark *mark)
{
    ign_load_call call = {.magazine = magazine, .parts = parts, .count = count};
    if (count > 0)
        ign_store_forewarn(store, magazine);
    int rc = count == 0 ? IGN_E_INVALID : ign_load_check(&call);
    if (rc == IGN_OK)
        rc = ign_store_commit(store, IGN_ENTRY_LOAD, ign_load_build, &call, how, mark);
    if (rc == IGN_OK)
        ign_store_wake(store, magazine);
    return rc;
}

/* -- with a claim -------------------------------------------------------------------------------------------------------- */

typedef struct claimed_call {
    ign_load_call load;
    const char *owner;
    uint64_t ms;
} claimed_call;

/* Is anything pending in the shards of the parts? It would be handed out of turn. */
static int nothing_older(ign_generation *g, const ign_load_call *call)
{
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    for (uint16_t i = 0; i < call->count; i++) {
        ign_cursor at;
        ign_shard *shard = ign_state_shard(&g->ctl, magazine, call->parts[i].shard);
        if (shard == NULL)
            return IGN_E_INVALID;
#ifndef IGN_MUTANT_OUT_OF_TURN
        uint64_t next = shard->fire_pointer + 1;
        for (ign_item *e = ign_seq_find(&g->ctl, &shard->extents, next, &at); e != NULL; e = ign_seq_next(&g->ctl, &shard->extents, &at))
            if (ign_extent_living(&g->ctl, e, next, UINT64_MAX) != 0)
                return IGN_EMPTY;
#endif
    }
    return IGN_OK;
}

static int build_claimed(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    claimed_call *call = arg;
    uint64_t loads = ign_pad8(call->load.bytes);
    uint8_t *to;
    *bytes = 8 + loads + ign_claim_bytes(call->owner, call->load.count);
    int rc = nothing_older(g, &call->load);
    if (rc == IGN_OK)
        rc = ign_load_fits(store, g, &call->load, 0);
    if (rc == IGN_OK)
        rc = ign_store_stage(g, *bytes, &to);
    if (rc == IGN_OK)
        rc = ign_load_put(g, &call->load, to + 8);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 8);
    ign_put32(to, (uint32_t)call->load.bytes);
    to = ign_claim_put(to + 8 + loads, call->load.magazine, call->owner, call->ms, call->load.count);
    for (uint16_t i = 0; i < call->load.count; i++) {
        const ign_store_part *part = &call->load.parts[i];
        to = ign_put_run(to, part->shard, part->first, part->first + ign_get32(part->batch + 4) - 1);
    }
    return IGN_OK;
}

int ign_store_load_claimed(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const char *owner, uint64_t ms,
                           const ign_store_how *how, ign_store_mark *mark)
{
    claimed_call call = {.load = {.magazine = magazine, .parts = parts, .count = count}, .owner = owner, .ms = ms};
    int rc = count == 0 || !ign_owner_fits(owner) ? IGN_E_INVALID : ign_load_check(&call.load);
    return rc != IGN_OK ? rc : ign_store_commit(store, IGN_ENTRY_CLAIMED, build_claimed, &call, how, mark);
}

/* -- with ids ------------------------------------------------------------------------------------------------------------ */

int ign_store_known_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, const uint8_t *ids, uint32_t count, bool *known)
{
    IGN_LANDING(store, );
    int rc = IGN_OK;
    for (uint32_t from = 0; rc == IGN_OK && from < count;) {
        uint32_t to = count - from > IDS_AT_A_TIME ? from + IDS_AT_A_TIME : count;
        ign_generation *g;
        rc = ign_store_look(store, &g);
        if (rc != IGN_OK)
            return rc;
        const ign_magazine *found = ign_state_magazine(&g->ctl, magazine);
        for (uint32_t i = from; found != NULL && i < to; i++)
            known[i] = ign_ids_known(&g->ctl, &found->ids, hour_now, ids + (size_t)i * IGN_ID_BYTES);
        ign_store_look_end(store, g);
        rc = found == NULL ? IGN_E_UNKNOWN : IGN_OK;
        from = to;
    }
    return rc;
}

/* The ids of what is delayed are those of the main magazine: once is once, delayed or not. */
static ign_magazine *with_ids(ign_ctl *ctl, uint32_t number)
{
    ign_magazine *magazine = ign_state_magazine(ctl, number);
    return magazine == NULL ? NULL : ign_state_with_ids(ctl, magazine);
}

typedef struct once_call {
    ign_load_call load;
    const uint8_t *ids;
    uint32_t count, forget_hour, hour_now;
} once_call;

static int build_once(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    once_call *call = arg;
    const ign_magazine *magazine = with_ids(&g->ctl, call->load.magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
#ifndef IGN_MUTANT_LOAD_TWICE
    for (uint32_t i = 0; i < call->count; i++)
        if (ign_ids_known(&g->ctl, &magazine->ids, call->hour_now, call->ids + (size_t)i * IGN_ID_BYTES))
            return IGN_E_MISMATCH;
#endif
    uint64_t ids = (uint64_t)call->count * IGN_ID_BYTES;
    uint8_t *to;
    *bytes = 16 + ids + call->load.bytes;
    int rc = ign_load_fits(store, g, &call->load, 0);
    if (rc == IGN_OK)
        rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 16);
    ign_put32(to, call->load.magazine);
    ign_put32(to + 4, call->count);
    ign_put32(to + 8, call->forget_hour);
    if (ids > 0)
        memcpy(to + 16, call->ids, (size_t)ids);
    return ign_load_put(g, &call->load, to + 16 + ids);
}

int ign_store_load_once(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                        const uint8_t *ids, uint32_t id_count, uint32_t forget_hour, uint32_t hour_now, const ign_store_how *how,
                        ign_store_mark *mark)
{
    once_call call = {.load = {.magazine = magazine, .parts = parts, .count = count, .dues = dues}, .ids = ids, .count = id_count,
                      .forget_hour = forget_hour, .hour_now = hour_now};
    int rc = count == 0 || forget_hour <= hour_now ? IGN_E_INVALID : ign_load_check(&call.load);
    if (rc == IGN_OK)
        rc = ign_store_commit(store, IGN_ENTRY_ONCE, build_once, &call, how, mark);
    if (rc == IGN_OK && dues == NULL)
        ign_store_wake(store, magazine);
    else if (rc == IGN_OK)
        ign_load_wake(store, &call.load);
    return rc;
}

typedef struct forget_call {
    uint32_t magazine, hour_now, limit;
} forget_call;

static int build_forget(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    const forget_call *call = arg;
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    if (!ign_ids_over(&g->ctl, &magazine->ids, call->hour_now))
        return IGN_EMPTY;
    uint8_t *to;
    *bytes = 16;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 16);
    ign_put32(to, call->magazine);
    ign_put32(to + 4, call->hour_now);
    ign_put32(to + 8, call->limit);
    return IGN_OK;
}

int ign_store_forget_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, uint32_t limit, const ign_store_how *how,
                         ign_store_mark *mark)
{
    forget_call call = {.magazine = magazine, .hour_now = hour_now, .limit = limit};
    return limit == 0 ? IGN_E_INVALID : ign_store_commit(store, IGN_ENTRY_FORGET, build_forget, &call, how, mark);
}
