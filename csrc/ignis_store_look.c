/* The catalogue, and the calls that only look. A look at the state takes the writer's lock, for moments; reading a batch does not. */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_store_fire.h"

#include <errno.h>
#include <string.h>

enum { TRIES = 16 };

/* Enters the newest generation and locks it. */
int ign_store_look(ign_store *store, ign_generation **g)
{
    int rc = IGN_E_STALE;
    for (int i = 0; i < TRIES && rc == IGN_E_STALE; i++) {
        uint64_t cut;
        rc = ign_store_enter(store, g);
        if (rc != IGN_OK)
            return rc;
        rc = ign_store_lock(store, *g, false);
        if (rc == IGN_OK)
            return IGN_OK;
        if (rc == IGN_E_STALE) {
            int followed = ign_store_follow(store, *g, &cut);
            rc = followed == IGN_OK ? IGN_E_STALE : followed;
        }
        ign_store_leave(store, *g);
    }
    return rc == IGN_E_STALE ? IGN_E_BUSY : rc;
}

void ign_store_look_end(ign_store *store, ign_generation *g)
{
    ign_store_unlock(store, g);
    ign_store_leave(store, g);
}

/* -- magazines ----------------------------------------------------------------------------------------------------------- */

typedef struct catalogue_call {
    const char *name;
    uint32_t number;
    uint16_t shards;
    uint8_t durability;
    uint32_t main; /* whose later magazine it is; 0: of none */
    bool only_empty, holds; /* ... any message: result */
} catalogue_call;

static bool holds_any(ign_ctl *ctl, const ign_magazine *magazine)
{
    for (uint64_t i = 0; i < magazine->shards; i++)
        if (ign_state_shard(ctl, magazine, i)->living != 0)
            return true;
    const ign_due *due = (magazine->durability & IGN_MAGAZINE_IS_LATER) != 0 ? NULL : ign_state_due(ctl, magazine);
    return due != NULL && due->living != 0;
}

/* May a later magazine be as it was declared? IGN_EMPTY: it is. */
static int check_later(ign_ctl *ctl, catalogue_call *call, const ign_magazine *found)
{
    const ign_magazine *main = ign_state_magazine(ctl, call->main);
    if (main == NULL || (main->durability & IGN_MAGAZINE_IS_LATER) != 0)
        return IGN_E_UNKNOWN;
    call->durability = IGN_MAGAZINE_DURABILITY(main);
    if (found == NULL)
        return IGN_OK;
    if ((found->durability & IGN_MAGAZINE_IS_LATER) == 0)
        return IGN_E_MISMATCH;
    if (call->shards < found->shards)
        call->shards = (uint16_t)found->shards; /* nothing goes: what is there may live */
    bool linked = IGN_MAGAZINE_OTHER(found) == main->number && IGN_MAGAZINE_OTHER(main) == found->number;
    return linked && call->shards == found->shards ? IGN_EMPTY : IGN_OK;
}

static int build_catalogue(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    catalogue_call *call = arg;
    ign_ctl *ctl = &g->ctl;
    size_t name_bytes = call->name == NULL ? 0 : strlen(call->name);
    uint64_t first = ctl->root->first_pointer;
    if (call->name == NULL) {
        const ign_magazine *magazine = ign_state_magazine(ctl, call->number);
        call->holds = false;
        if (magazine == NULL)
            return IGN_EMPTY;
        call->holds = call->only_empty && holds_any(ctl, magazine);
        if (call->holds)
            return IGN_EMPTY;
    } else {
        uint64_t found = ign_map_find(ctl, IGN_KEY_MAGAZINE, call->name, (uint32_t)name_bytes);
        ign_magazine *magazine = found == 0 ? NULL : ign_record_value(ign_ctl_at(ctl, found));
        call->number = (uint32_t)(magazine == NULL ? ctl->root->next_magazine : magazine->number);
        if (call->main != 0) {
            int rc = check_later(ctl, call, magazine);
            if (rc != IGN_OK)
                return rc;
        } else if (magazine != NULL) {
            if (IGN_MAGAZINE_DURABILITY(magazine) != call->durability || (magazine->durability & IGN_MAGAZINE_IS_LATER) != 0)
                return IGN_E_MISMATCH;
            for (uint64_t i = call->shards; i < magazine->shards; i++)
                if (ign_state_shard(ctl, magazine, i)->living != 0)
                    return IGN_E_MISMATCH;
            if (magazine->shards == call->shards)
                return IGN_EMPTY;
        }
    }
    uint8_t *to;
    *bytes = 32 + (name_bytes + 7) / 8 * 8;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, (size_t)*bytes);
    ign_put32(to, call->number);
    ign_put16(to + 4, call->name == NULL ? 0 : call->shards);
    to[6] = call->durability;
    to[7] = call->main != 0 ? IGN_CATALOGUE_LATER : 0;
    ign_put32(to + 28, call->main);
    ign_put64(to + 8, first);
    ign_put64(to + 16, store->io->random(store->io));
    ign_put32(to + 24, (uint32_t)name_bytes);
    if (name_bytes > 0)
        memcpy(to + 32, call->name, name_bytes);
    return IGN_OK;
}

/* What was there already may not be on the disk yet: the mark says how far to flush all the same. */
static int commit_catalogue(ign_store *store, catalogue_call *call, const ign_store_how *how, ign_store_mark *mark)
{
    int rc = ign_store_commit(store, IGN_ENTRY_CATALOGUE, build_catalogue, call, how, mark);
    return rc == IGN_EMPTY ? ign_store_mark_now(store, mark) : rc;
}

int ign_store_declare(ign_store *store, const char *name, uint16_t shards, uint8_t durability, uint32_t *number,
                      const ign_store_how *how, ign_store_mark *mark)
{
    catalogue_call call = {.name = name, .shards = shards, .durability = durability};
    if (name[0] == 0 || strlen(name) > IGN_STORE_NAME_BYTES || shards == 0 || shards > IGN_STORE_MAX_SHARDS)
        return IGN_E_INVALID;
    int rc = commit_catalogue(store, &call, how, mark);
    if (rc == IGN_OK)
        *number = call.number;
    return rc;
}

int ign_store_declare_later(ign_store *store, uint32_t main, const char *name, uint16_t shards, uint32_t *number, const ign_store_how *how,
                            ign_store_mark *mark)
{
    catalogue_call call = {.name = name, .shards = shards, .main = main};
    if (name[0] == 0 || strlen(name) > IGN_STORE_NAME_BYTES || shards == 0 || shards > IGN_STORE_MAX_SHARDS || main == 0)
        return IGN_E_INVALID;
    int rc = commit_catalogue(store, &call, how, mark);
    if (rc == IGN_OK)
        *number = call.number;
    return rc;
}

int ign_store_drop(ign_store *store, uint32_t number, bool only_empty, const ign_store_how *how, ign_store_mark *mark)
{
    catalogue_call call = {.number = number, .only_empty = only_empty};
    int rc = commit_catalogue(store, &call, how, mark);
    return rc == IGN_OK && call.holds ? IGN_EMPTY : rc;
}

int ign_store_find(ign_store *store, const char *name, uint32_t *number)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    uint64_t found = ign_map_find(&g->ctl, IGN_KEY_MAGAZINE, name, (uint32_t)strlen(name));
    if (found != 0)
        *number = (uint32_t)((ign_magazine *)ign_record_value(ign_ctl_at(&g->ctl, found)))->number;
    ign_store_look_end(store, g);
    return found != 0 ? IGN_OK : IGN_E_UNKNOWN;
}

int ign_store_shard(ign_store *store, uint32_t number, uint16_t shard, ign_shard *copy)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, number);
    ign_shard *found = magazine == NULL ? NULL : ign_state_shard(&g->ctl, magazine, shard);
    if (found != NULL)
        *copy = *found;
    ign_store_look_end(store, g);
    return found != NULL ? IGN_OK : magazine == NULL ? IGN_E_UNKNOWN : IGN_E_INVALID;
}

int ign_store_get_key(ign_store *store, const void *key, uint32_t key_bytes, void *value, uint32_t room, uint32_t *bytes)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    uint64_t found = ign_map_find(&g->ctl, IGN_KEY_VALUE, key, key_bytes);
    if (found == 0)
        rc = IGN_EMPTY;
    else {
        ign_record_of *record = ign_ctl_at(&g->ctl, found);
        *bytes = IGN_VALUE_BYTES(record);
        rc = *bytes > room ? IGN_E_TOO_LARGE : IGN_OK;
        if (rc == IGN_OK)
            memcpy(value, ign_record_value(record), *bytes);
    }
    ign_store_look_end(store, g);
    return rc;
}

/* -- messages ------------------------------------------------------------------------------------------------------------ */

void ign_store_locate(const ign_generation *g, uint16_t shard, ign_slice *slice)
{
    ign_ctl ctl = g->ctl;
    const ign_segment_info *info = &ign_state_find_segment(&ctl, slice->position)->info;
    slice->shard = shard;
    slice->generation = info->generation;
    slice->number = info->number;
    slice->file_offset = ign_segment_offset(info, slice->position) + slice->offset;
}

int ign_store_peek(ign_store *store, uint32_t number, uint16_t shard, uint64_t first, uint64_t last, ign_slice *slices,
                   uint32_t room, uint32_t *count)
{
    IGN_LANDING(store, );
    ign_generation *g;
    *count = 0;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    ign_magazine *magazine = ign_state_magazine(&g->ctl, number);
    ign_shard *found = magazine == NULL ? NULL : ign_state_shard(&g->ctl, magazine, shard);
    ign_cursor at;
    if (found == NULL)
        rc = magazine == NULL ? IGN_E_UNKNOWN : IGN_E_INVALID;
    else
        for (ign_item *e = ign_seq_find(&g->ctl, &found->extents, first, &at); e != NULL && e->first <= last && *count < room;
             e = ign_seq_next(&g->ctl, &found->extents, &at)) {
            uint64_t from = e->first > first ? e->first : first, begin, end;
            while (*count < room && from <= last && ign_extent_run(&g->ctl, e, from, last - from + 1, &begin, &end) && begin <= last) {
                end = end < last ? end : last;
                slices[*count] = ign_extent_slice(shard, e, begin, end);
                ign_store_locate(g, shard, &slices[(*count)++]);
                from = end + 1;
                if (from > IGN_ITEM_LAST(e))
                    break;
            }
        }
    ign_store_look_end(store, g);
    return rc;
}

int ign_store_fetch_part(ign_store *store, const ign_slice *slice, uint64_t from, uint8_t *to, uint64_t bytes)
{
    ign_log_file *file;
    uint64_t missing;
    if (from > slice->bytes || bytes > slice->bytes - from)
        return IGN_E_INVALID;
    int rc = ign_store_use_file(store, slice->generation, slice->number, NULL, &file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc);
    rc = ign_segment_read(store->io, file->file, slice->generation, slice->number, to, bytes, slice->file_offset + from, &missing);
    ign_store_drop_file(store, file);
    if (missing != 0 && rc == 0)
        atomic_fetch_add_explicit(&store->unread, 1, memory_order_relaxed);
    return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc);
}

int ign_store_fetch(ign_store *store, const ign_slice *slice, uint8_t *batch)
{
    return ign_store_fetch_part(store, slice, 0, batch, slice->bytes);
}

uint64_t ign_store_unread(ign_store *store)
{
    return atomic_load_explicit(&store->unread, memory_order_relaxed);
}

int ign_store_figures_of(ign_store *store, ign_store_figures *figures)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    const ign_root *root = g->ctl.root;
    *figures = (ign_store_figures){
        .generation = g->ctl.head->generation, .openings = root->openings, .end = root->applied,
        .durable = ign_ctl_durable(g->ctl.head), .living_bytes = root->living_bytes,
        .living_records = root->living_records, .damaged_bytes = root->damaged_bytes, .salvaged_records = root->salvaged_records,
        .damaged_records = root->damaged_records, .segments = root->segment_count,
        .state_bytes = root->used, .arena_bytes = atomic_load_explicit(&g->ctl.head->arena_bytes, memory_order_relaxed),
    };
    const ign_state_segment *all = ign_ctl_at(&g->ctl, root->segments);
    for (uint64_t i = 0; i < root->segment_count; i++) {
        figures->log_bytes += all[i].info.size;
        figures->batches += all[i].extents;
        if (all[i].living == 0 && i + 1 < root->segment_count)
            figures->dead_bytes += all[i].info.size;
    }
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    figures->written = root->applied - last->base;
    figures->segment_bytes = last->size;
    figures->next_segment_bytes = ign_store_next_bytes(store, g);
    figures->reserve_bytes = ign_store_reserve_bytes(store, g);
    figures->cheapest_bytes = ign_store_cheapest(g);
    ign_store_look_end(store, g);
    return IGN_OK;
}
