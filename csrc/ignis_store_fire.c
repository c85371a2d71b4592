/* Claims over all shards of a magazine in one entry. */
#include "ignis_store_parts.h"

#include "ignis_store_fire.h"
#include "ignis_store_later.h"

#include <errno.h>
#include <stdlib.h>

typedef struct fire_call {
    uint32_t magazine, runs;
    ign_store_fire *fire;
    ign_store_run *run; /* one for each shard that something is claimed of */
    uint64_t left, bytes_left;
    bool sized;         /* what is claimed came to its end within a batch, by its size */
    bool moved;         /* what is due has been moved, as far as it could be */
} fire_call;

/* True: the walk over the shards is over. */
static bool walk_extent(fire_call *call, ign_ctl *ctl, uint16_t number, const ign_item *e, uint64_t from, bool *begun)
{
    ign_store_fire *fire = call->fire;
    uint64_t first, last, bytes = e->word[3] & UINT32_MAX;
    bool fits = bytes <= call->bytes_left, charged = false;
    while (from <= IGN_ITEM_LAST(e) && ign_extent_run(ctl, e, from, UINT64_MAX, &first, &last)) {
        uint64_t most = call->left;
        if (call->left == 0 || call->sized || (!fits && fire->count > 0 && !charged)) {
            fire->more = true;
            return true;
        }
        if (fire->count == fire->room) {
            fire->more = fire->full = true;
            return true;
        }
        ign_slice *slice = &fire->slices[fire->count];
        if (!fits && fire->sized_count == 0) {
            *slice = ign_extent_slice(number, e, first, last);
            call->sized = true;
            return true;
        }
        if (!fits) {
            if (fire->sized_shard != number || fire->sized_first != first) {
                *slice = ign_extent_slice(number, e, first, last);
                call->sized = true;
                return true;
            }
            most = most < fire->sized_count ? most : fire->sized_count;
            call->sized = true;
        } else if (!charged)
            call->bytes_left -= bytes;
        charged = true;
        last = last - first < most ? last : first + most - 1;
        if (!*begun)
            call->run[call->runs++] = (ign_store_run){.shard = number, .first = first};
        *begun = true;
        call->run[call->runs - 1].last = last;
        *slice = ign_extent_slice(number, e, first, last);
        fire->count++;
        call->left -= last - first + 1;
        from = last + 1;
    }
    return false;
}

static bool walk_shard(fire_call *call, ign_ctl *ctl, ign_shard *shard, uint16_t number)
{
    ign_store_fire *fire = call->fire;
    uint64_t from = shard->fire_pointer + 1;
    bool begun = false;
    ign_cursor at;
    for (ign_item *e = ign_seq_find(ctl, &shard->extents, from, &at); e != NULL; e = ign_seq_next(ctl, &shard->extents, &at)) {
        if (e->word[1] != 0 && e->word[1] <= fire->ms) {
            fire->expired[fire->expired_count++] = number;
            return false;
        }
        if (fire->limit == 0) {
            fire->more = true;
            return false;
        }
        if (begun && IGN_ITEM_LAST(e) - call->run[call->runs - 1].first >= IGN_MAX_SPAN) {
            fire->more = true; /* one claim does not reach so far: another call does */
            return false;
        }
        if (walk_extent(call, ctl, number, e, e->first > from ? e->first : from, &begun))
            return true;
    }
    return false;
}

/* Without a descriptor for what is claimed, nothing is: it is read next. */
static int may_read(ign_store *store, const ign_store_fire *fire)
{
    for (uint32_t i = 0; i < fire->count; i++) {
        const ign_slice *slice = &fire->slices[i];
        if (i > 0 && slice->generation == slice[-1].generation && slice->number == slice[-1].number)
            continue;
        ign_log_file *file;
        int rc = ign_store_error(ign_store_use_file(store, slice->generation, slice->number, NULL, &file));
        if (rc != IGN_OK)
            return rc;
        ign_store_drop_file(store, file);
    }
    return IGN_OK;
}

static int build_fire(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    fire_call *call = arg;
    ign_store_fire *fire = call->fire;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    if (IGN_MAGAZINE_OTHER(magazine) != 0 && !call->moved) {
        const ign_due *due = ign_state_due(&g->ctl, magazine);
        fire->later = true;
        if (due != NULL && due->next <= fire->ms)
            return IGN_TIMEOUT;
    }
    uint32_t shards = (uint32_t)magazine->shards, count = fire->order == NULL ? shards : fire->order_count;
    fire->shards = shards;
    fire->count = fire->expired_count = call->runs = 0;
    fire->more = fire->full = call->sized = false;
    call->left = fire->limit;
    call->bytes_left = fire->max_bytes;
    for (uint32_t i = 0; fire->order != NULL && i < count; i++)
        if (fire->order[i] >= shards)
            return IGN_E_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t number = (uint16_t)((fire->begin + i) % shards);
        if (fire->order != NULL)
            number = fire->order[i];
        ign_shard *shard = ign_state_shard(&g->ctl, magazine, number);
        if (shard->fire_counter < shard->load_counter && walk_shard(call, &g->ctl, shard, number))
            break;
    }
    if (call->sized && fire->count == 0) {
        ign_store_locate(g, fire->slices[0].shard, &fire->slices[0]);
        return IGN_NEED_MORE;
    }
    if (fire->count == 0)
        return IGN_EMPTY;
    for (uint32_t i = 0; i < fire->count; i++)
        ign_store_locate(g, fire->slices[i].shard, &fire->slices[i]);
    int rc = may_read(store, fire);
    uint8_t *to;
    *bytes = ign_claim_bytes(fire->owner, call->runs);
    if (rc == IGN_OK)
        rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    to = ign_claim_put(to, call->magazine, fire->owner, fire->ms, call->runs);
    for (uint32_t i = 0; i < call->runs; i++)
        to = ign_put_run(to, call->run[i].shard, call->run[i].first, call->run[i].last);
    return IGN_OK;
}

int ign_store_fire_over(ign_store *store, uint32_t magazine, ign_store_fire *fire, const ign_store_how *how, ign_store_mark *mark)
{
    fire_call call = {.magazine = magazine, .fire = fire};
    if (fire->room == 0 || fire->order_count > IGN_STORE_MAX_SHARDS || !ign_owner_fits(fire->owner))
        return IGN_E_INVALID;
    call.run = malloc(IGN_STORE_MAX_SHARDS * sizeof *call.run);
    if (call.run == NULL)
        return IGN_E_NOMEM;
    fire->later = false;
    int rc = ign_store_commit(store, IGN_ENTRY_CLAIM, build_fire, &call, how, mark);
    if (rc == IGN_TIMEOUT) {
        ign_store_moved moved;
        call.moved = true;
        rc = ign_store_move_due(store, magazine, fire->ms, IGN_MOVE_RECORDS, IGN_MOVE_BYTES, &moved, how, mark);
        fire->late += moved.expired;
        int moving = rc, error = errno;
        if (rc == IGN_OK || rc == IGN_E_NO_ROOM) /* what is there is claimed all the same */
            rc = ign_store_commit(store, IGN_ENTRY_CLAIM, build_fire, &call, how, mark);
        if (rc == IGN_EMPTY && moving != IGN_OK) { /* there is something, and it cannot be had */
            rc = moving;
            errno = error;
        }
    }
    if (rc != IGN_OK)
        fire->count = 0;
    free(call.run);
    return rc;
}

int ign_store_shards(ign_store *store, uint32_t number, ign_shard *copies, uint32_t room, uint32_t *count)
{
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, number);
    *count = magazine == NULL ? 0 : (uint32_t)magazine->shards;
    rc = magazine == NULL ? IGN_E_UNKNOWN : *count > room ? IGN_E_TOO_LARGE : IGN_OK;
    for (uint32_t i = 0; rc == IGN_OK && i < *count; i++)
        copies[i] = *ign_state_shard(&g->ctl, magazine, i);
    ign_store_look_end(store, g);
    return rc;
}
