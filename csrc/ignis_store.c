/* The calls that change messages: each builds one entry from the state, under the lock, and has it committed. */
#include "ignis_store_parts.h"

#include "ignis_store_later.h"
#include "ignis_bytes.h"
#include "ignis_record.h"

#include <string.h>

/* -- claims ------------------------------------------------------------------------------------------------------------ */

typedef struct claim_call {
    uint32_t magazine;
    uint16_t shard;
    uint32_t limit, room, count;
    uint64_t max_bytes, ms;
    const char *owner;
    ign_slice *slices;
    bool expired;
} claim_call;

static int build_claim(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    claim_call *call = arg;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    ign_shard *shard = ign_state_shard(&g->ctl, magazine, call->shard);
    if (shard == NULL)
        return IGN_E_INVALID;
    uint64_t first = 0, last = 0;
    call->expired = false;
    call->count = ign_state_next(&g->ctl, shard, call->limit, call->max_bytes, call->ms, call->slices, call->room, &first, &last,
                                 &call->expired);
    if (call->count == 0)
        return IGN_EMPTY;
    /* What is claimed is read next: without a descriptor for it nothing is claimed. */
    for (uint32_t i = 0; i < call->count; i++) {
        ign_log_file *file;
        ign_store_locate(g, call->shard, &call->slices[i]);
        int rc = ign_store_error(ign_store_use_file(store, call->slices[i].generation, call->slices[i].number, NULL, &file));
        if (rc != IGN_OK)
            return rc;
        ign_store_drop_file(store, file);
    }
    uint8_t *to;
    *bytes = ign_claim_bytes(call->owner, 1);
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc == IGN_OK)
        ign_put_run(ign_claim_put(to, call->magazine, call->owner, call->ms, 1), call->shard, first, last);
    return rc;
}

int ign_store_claim(ign_store *store, uint32_t magazine, uint16_t shard, uint32_t limit, uint64_t max_bytes, const char *owner,
                    uint64_t ms, ign_slice *slices, uint32_t room, uint32_t *count, bool *expired, const ign_store_how *how,
                    ign_store_mark *mark)
{
    claim_call call = {.magazine = magazine, .shard = shard, .limit = limit, .room = room, .max_bytes = max_bytes, .ms = ms,
                       .owner = owner, .slices = slices};
    if (limit == 0 || room == 0 || max_bytes == 0 || !ign_owner_fits(owner))
        return IGN_E_INVALID;
    int rc = ign_store_commit(store, IGN_ENTRY_CLAIM, build_claim, &call, how, mark);
    *count = rc == IGN_OK ? call.count : 0;
    *expired = call.expired;
    return rc;
}

typedef struct expire_call {
    uint32_t magazine;
    uint16_t shard;
    uint64_t ms, limit, expired;
} expire_call;

static int build_expire(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    expire_call *call = arg;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    ign_shard *shard = ign_state_shard(&g->ctl, magazine, call->shard);
    if (shard == NULL)
        return IGN_E_INVALID;
    uint64_t last = 0;
    call->expired = ign_state_expired(&g->ctl, shard, call->ms, call->limit, &last);
    if (call->expired == 0)
        return IGN_EMPTY;
    uint8_t *to;
    *bytes = 8 + IGN_RUN_BYTES;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 8);
    ign_put32(to, call->magazine);
    ign_put_run(to + 8, call->shard, shard->fire_pointer + 1, last);
    return IGN_OK;
}

int ign_store_expire(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t ms, uint64_t limit, uint64_t *expired,
                     const ign_store_how *how, ign_store_mark *mark)
{
    expire_call call = {.magazine = magazine, .shard = shard, .ms = ms, .limit = limit};
    int rc = ign_store_commit(store, IGN_ENTRY_EXPIRE, build_expire, &call, how, mark);
    *expired = rc == IGN_OK ? call.expired : 0;
    return rc;
}

/* -- retiring, transfers, renewals ------------------------------------------------------------------------------------- */

typedef struct run_call {
    uint32_t magazine, count;
    const ign_store_run *runs;
    uint64_t retired, retired_bytes;
    uint32_t kept; /* runs that name anything that may go */
    bool waiting_only;
    ign_load_call load;
    const char *owner, *next;
    uint64_t ms;
} run_call;

/* Where the part of a run begins that may be retired; behind its end: there is none. */
static uint64_t begin_of(const run_call *call, const ign_shard *shard, const ign_store_run *run)
{
#ifdef IGN_MUTANT_RETIRE_CLAIMED
    return run->first;
#endif
    return call->waiting_only && run->first <= shard->fire_pointer ? shard->fire_pointer + 1 : run->first;
}

/* How many of the runs' records live; counts of it are what the entry will retire. */
static int count_runs(ign_generation *g, run_call *call, uint64_t *named)
{
    ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    call->retired = call->retired_bytes = *named = 0;
    call->kept = 0;
    for (uint32_t i = 0; i < call->count; i++) {
        const ign_store_run *run = &call->runs[i];
        ign_shard *shard = ign_state_shard(&g->ctl, magazine, run->shard);
        if (shard == NULL || run->first == 0 || run->last < run->first || (i > 0 && run->shard == run[-1].shard && run->first <= run[-1].last))
            return IGN_E_INVALID; /* in order, so that nothing is counted twice */
        uint64_t first = begin_of(call, shard, run);
        if (first > run->last)
            continue;
        ign_cursor at;
        call->kept++;
        *named += run->last - first + 1;
        for (ign_item *e = ign_seq_find(&g->ctl, &shard->extents, first, &at); e != NULL && e->first <= run->last;
             e = ign_seq_next(&g->ctl, &shard->extents, &at)) {
            uint64_t living = ign_extent_living(&g->ctl, e, first, run->last);
            call->retired += living;
            call->retired_bytes += (e->word[3] & UINT32_MAX) * living / IGN_ITEM_SPAN(e);
        }
    }
    return IGN_OK;
}

static uint64_t retire_bytes(const run_call *call)
{
    return 8 + (uint64_t)call->kept * IGN_RUN_BYTES;
}

static void put_retire(ign_generation *g, const run_call *call, uint8_t *to)
{
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    ign_put32(to, call->magazine);
    ign_put32(to + 4, call->kept);
    to += 8;
    for (uint32_t i = 0; i < call->count; i++) {
        const ign_store_run *run = &call->runs[i];
        uint64_t first = begin_of(call, ign_state_shard(&g->ctl, magazine, run->shard), run);
        if (first <= run->last)
            to = ign_put_run(to, run->shard, first, run->last);
    }
}

static int build_retire(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    run_call *call = arg;
    uint64_t named;
    uint8_t *to;
    int rc = count_runs(g, call, &named);
    if (rc != IGN_OK || call->retired == 0)
        return rc != IGN_OK ? rc : IGN_EMPTY;
    *bytes = retire_bytes(call);
    rc = ign_store_stage(g, *bytes, &to);
    if (rc == IGN_OK)
        put_retire(g, call, to);
    return rc;
}

int ign_store_retire(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, bool waiting_only,
                     uint64_t *retired, const ign_store_how *how, ign_store_mark *mark)
{
    run_call call = {.magazine = magazine, .runs = runs, .count = count, .waiting_only = waiting_only};
    int rc = ign_store_commit(store, IGN_ENTRY_RETIRE, build_retire, &call, how, mark);
    *retired = rc == IGN_OK ? call.retired : 0;
    if (rc != IGN_EMPTY)
        return rc;
    return ign_store_mark_now(store, mark); /* gone already: durable with whoever retired it */
}

static int build_transfer(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    run_call *call = arg;
    uint64_t named;
    uint8_t *to;
    int rc = count_runs(g, call, &named);
    if (rc != IGN_OK || call->retired != named)
        return rc != IGN_OK ? rc : IGN_EMPTY;
    *bytes = 8 + call->load.bytes + retire_bytes(call);
    rc = ign_load_fits(store, g, &call->load, call->retired_bytes);
    if (rc == IGN_OK)
        rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 8);
    ign_put32(to, (uint32_t)call->load.bytes);
    put_retire(g, call, to + 8 + call->load.bytes);
    return ign_load_put(g, &call->load, to + 8);
}

static int transfer(ign_store *store, run_call *call, const ign_store_how *how, ign_store_mark *mark)
{
    int rc = call->count == 0 || call->load.count == 0 ? IGN_E_INVALID : ign_load_check(&call->load);
    return rc == IGN_OK ? ign_store_commit(store, IGN_ENTRY_TRANSFER, build_transfer, call, how, mark) : rc;
}

int ign_store_transfer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target,
                       ign_store_part *parts, uint16_t part_count, bool reload, const ign_store_how *how, ign_store_mark *mark)
{
    run_call call = {.magazine = source, .runs = runs, .count = count,
                     .load = {.magazine = target, .parts = parts, .count = part_count, .reload = reload}};
    int rc = reload && source != target ? IGN_E_INVALID : transfer(store, &call, how, mark);
    if (rc == IGN_OK)
        ign_store_wake(store, target);
    return rc;
}

int ign_store_move(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target, ign_store_part *parts,
                   uint16_t part_count, const ign_store_how *how, ign_store_mark *mark)
{
    run_call call = {.magazine = source, .runs = runs, .count = count,
                     .load = {.magazine = target, .parts = parts, .count = part_count, .moves = true}};
    int rc = transfer(store, &call, how, mark);
    if (rc == IGN_OK)
        ign_store_wake(store, target);
    return rc;
}

int ign_store_defer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t later, ign_store_part *parts,
                    uint16_t part_count, const uint64_t *dues, const ign_store_how *how, ign_store_mark *mark)
{
    run_call call = {.magazine = source, .runs = runs, .count = count,
                     .load = {.magazine = later, .parts = parts, .count = part_count, .dues = dues}};
    int rc = transfer(store, &call, how, mark);
    if (rc == IGN_OK)
        ign_load_wake(store, &call.load);
    return rc;
}

static int build_renew(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    run_call *call = arg;
    uint64_t named;
    uint8_t *to;
    int rc = count_runs(g, call, &named);
    size_t owner_bytes = strlen(call->owner), next_bytes = call->next == NULL ? 0 : strlen(call->next);
    if (rc == IGN_OK && ign_map_find(&g->ctl, IGN_KEY_OWNER, call->owner, (uint32_t)owner_bytes) == 0)
        rc = IGN_EMPTY;
    *bytes = 24 + ign_pad8(owner_bytes) + ign_pad8(next_bytes) + (uint64_t)call->count * IGN_RUN_BYTES;
    if (rc == IGN_OK)
        rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 24);
    ign_put32(to, call->magazine);
    ign_put16(to + 4, (uint16_t)owner_bytes);
    ign_put16(to + 6, (uint16_t)next_bytes);
    ign_put64(to + 8, call->ms);
    ign_put32(to + 16, call->count);
    to = ign_put_padded(to + 24, call->owner, owner_bytes);
    to = next_bytes == 0 ? to : ign_put_padded(to, call->next, next_bytes);
    for (uint32_t i = 0; i < call->count; i++)
        to = ign_put_run(to, call->runs[i].shard, call->runs[i].first, call->runs[i].last);
    return IGN_OK;
}

int ign_store_renew(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, const char *owner,
                    const char *next_owner, uint64_t ms, const ign_store_how *how, ign_store_mark *mark)
{
    run_call call = {.magazine = magazine, .runs = runs, .count = count, .owner = owner, .next = next_owner, .ms = ms};
    if (!ign_owner_fits(owner) || (next_owner != NULL && !ign_owner_fits(next_owner)))
        return IGN_E_INVALID;
    return ign_store_commit(store, IGN_ENTRY_RENEW, build_renew, &call, how, mark);
}

/* -- keys ---------------------------------------------------------------------------------------------------------------- */

typedef struct key_call {
    const ign_store_change *changes;
    uint32_t count;
} key_call;

static int build_keys(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    const key_call *call = arg;
    uint8_t *to;
    *bytes = 8;
    for (uint32_t i = 0; i < call->count; i++) {
        const ign_store_change *change = &call->changes[i];
        if (!ign_as_expected(&g->ctl, change))
            return IGN_E_MISMATCH;
        *bytes += 8 + ign_pad8(change->key_bytes) + (change->value == NULL ? 0 : ign_pad8(change->value_bytes));
    }
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 8);
    ign_put32(to, call->count);
    to += 8;
    for (uint32_t i = 0; i < call->count; i++) {
        const ign_store_change *change = &call->changes[i];
        ign_put32(to, change->key_bytes);
        ign_put32(to + 4, change->value == NULL ? UINT32_MAX : change->value_bytes);
        to = ign_put_padded(to + 8, change->key, change->key_bytes);
        if (change->value != NULL)
            to = ign_put_padded(to, change->value, change->value_bytes);
    }
    return IGN_OK;
}

int ign_store_change_keys(ign_store *store, const ign_store_change *changes, uint32_t count, const ign_store_how *how,
                          ign_store_mark *mark)
{
    key_call call = {.changes = changes, .count = count};
    for (uint32_t i = 0; i < count; i++)
        if (changes[i].key_bytes == 0 || changes[i].key_bytes >= 1u << 16 || (changes[i].value != NULL && changes[i].value_bytes >= 1u << 28))
            return IGN_E_INVALID;
    return ign_store_commit(store, IGN_ENTRY_KEY, build_keys, &call, how, mark);
}
