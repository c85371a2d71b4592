/* Reads the files of a directory as one log: which segment holds for which positions, and which checkpoint is the newest.
 *
 * A segment of a higher generation, or of a higher number, takes over from its base on: what stands in older files from
 * there on was never confirmed, or was written again. So a process that was stopped for years, and then goes on to write into its
 * old file, changes nothing.
 */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>

typedef struct listing {
    ign_store *store;
    ign_chain *chain;
    struct { uint64_t generation, position; } *checkpoints;
    uint64_t checkpoint_count, checkpoint_room;
} listing;

static void *grown(void *items, uint64_t count, uint64_t *room, size_t size)
{
    if (count < *room)
        return items;
    *room = *room == 0 ? 16 : *room * 2;
    return realloc(items, (size_t)*room * size);
}

static void look_at(void *arg, const char *name)
{
    listing *l = arg;
    ign_chain *chain = l->chain;
    uint64_t a, b;
    if (chain->failed != 0)
        return;
    bool segment = ign_segment_parse_name(name, &a, &b);
    if (segment || ign_store_parse_name(name, "checkpoint", &a, &b) || ign_store_parse_name(name, "control", &a, &b)) {
        if (a > chain->newest_generation)
            chain->newest_generation = a;
    } else
        return;
    if (segment) {
        ign_chain_segment *all = grown(chain->segments, chain->count, &chain->capacity, sizeof *all);
        if (all == NULL) {
            chain->failed = ENOMEM;
            return;
        }
        chain->segments = all;
        all[chain->count++] = (ign_chain_segment){.info = {.generation = a, .number = b}, .limit = UINT64_MAX};
    } else if (name[1] == 'h') {
        void *all = grown(l->checkpoints, l->checkpoint_count, &l->checkpoint_room, sizeof *l->checkpoints);
        if (all == NULL) {
            chain->failed = ENOMEM;
            return;
        }
        l->checkpoints = all;
        l->checkpoints[l->checkpoint_count].generation = a;
        l->checkpoints[l->checkpoint_count++].position = b;
    } else if (a > chain->newest_control)
        chain->newest_control = a;
}

static int by_age(const void *a, const void *b)
{
    const ign_segment_info *x = &((const ign_chain_segment *)a)->info, *y = &((const ign_chain_segment *)b)->info;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Reads a segment's header. IGN_EMPTY: it is not valid, and the segment holds nothing; the replay finds the gap that it leaves. */
static int read_header(ign_store *store, ign_segment_info *info)
{
    char name[IGN_STORE_NAME_MAX];
    uint8_t sector[IGN_LOG_SECTOR];
    ign_segment_info got;
    int file;
    ign_segment_name(name, info->generation, info->number);
    int rc = store->io->open(store->io, name, false, &file);
    if (rc == ENOENT)
        return IGN_E_STALE; /* removed since the directory was read: look again */
    if (rc != 0)
        return ign_store_error(rc);
    uint64_t missing;
    rc = ign_segment_read(store->io, file, info->generation, info->number, sector, sizeof sector, 0, &missing);
    store->io->close(store->io, file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc);
    rc = ign_segment_get_header(sector, &got);
    if (rc == IGN_E_VERSION)
        return rc;
    if (rc != IGN_OK || got.generation != info->generation || got.number != info->number)
        return IGN_EMPTY;
    *info = got;
    return IGN_OK;
}

static int sort_segments(ign_store *store, ign_chain *chain)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < chain->count; i++) {
        int rc = read_header(store, &chain->segments[i].info);
        if (rc < 0)
            return rc;
        if (rc == IGN_OK) {
            chain->segments[kept++] = chain->segments[i];
            continue;
        }
        void *strays = grown(chain->strays, chain->stray_count, &chain->stray_room, sizeof *chain->strays);
        if (strays == NULL)
            return IGN_E_NOMEM;
        chain->strays = strays;
        chain->strays[chain->stray_count].generation = chain->segments[i].info.generation;
        chain->strays[chain->stray_count++].number = chain->segments[i].info.number;
    }
    chain->count = kept;
    if (kept > 0)
        qsort(chain->segments, (size_t)kept, sizeof *chain->segments, by_age);
    for (uint64_t i = 0; i < kept; i++) {
        const ign_segment_info *info = &chain->segments[i].info;
        if (chain->store == 0)
            chain->store = info->store;
        else if (chain->store != info->store)
            return IGN_E_CORRUPT; /* files of two stores in one directory */
        for (uint64_t k = 0; k < i; k++)
            if (chain->segments[k].limit > info->base)
                chain->segments[k].limit = info->base;
    }
    return IGN_OK;
}

int ign_chain_read(ign_store *store, ign_chain *chain)
{
    *chain = (ign_chain){.checkpoint = UINT64_MAX};
    listing l = {.store = store, .chain = chain};
    int rc = store->io->list(store->io, look_at, &l);
    rc = ign_store_error(rc != 0 ? rc : chain->failed);
    if (rc == IGN_OK)
        rc = sort_segments(store, chain);
    /* Finds the newest checkpoint that is whole, and whose log still holds. */
    while (rc == IGN_OK && l.checkpoint_count > 0) {
        uint64_t best = 0;
        for (uint64_t i = 1; i < l.checkpoint_count; i++)
            if (l.checkpoints[i].position > l.checkpoints[best].position ||
                (l.checkpoints[i].position == l.checkpoints[best].position && l.checkpoints[i].generation > l.checkpoints[best].generation))
                best = i;
        uint64_t generation = l.checkpoints[best].generation, position = l.checkpoints[best].position;
        l.checkpoints[best] = l.checkpoints[--l.checkpoint_count];
        bool holds = true;
        for (uint64_t i = 0; i < chain->count; i++)
            if (chain->segments[i].info.generation > generation && chain->segments[i].info.base < position)
                holds = false;
        int whole = holds ? ign_checkpoint_check(store, generation, position) : IGN_E_CORRUPT;
        if (whole != IGN_OK && whole != IGN_E_CORRUPT)
            rc = whole; /* not damage: another version, no descriptor, or removed since the directory was read */
        if (whole != IGN_OK)
            continue;
        chain->checkpoint = position;
        chain->checkpoint_generation = generation;
        break;
    }
    free(l.checkpoints);
    if (rc == IGN_OK && chain->checkpoint == UINT64_MAX && chain->count > 0) {
        bool from_start = false;
        for (uint64_t i = 0; i < chain->count; i++)
            from_start = from_start || chain->segments[i].info.base == 0;
        if (!from_start) { /* no checkpoint is whole, and the beginning of the log is gone: passing it over would leave nothing */
            ign_store_is_lost(store, "", 0, ign_chain_next(chain, 0));
            rc = IGN_E_LOST;
        }
    }
    return rc;
}

void ign_chain_free(ign_chain *chain)
{
    free(chain->segments);
    free(chain->strays);
    chain->segments = NULL;
    chain->strays = NULL;
    chain->stray_count = chain->stray_room = 0;
    chain->count = chain->capacity = 0;
}

const ign_chain_segment *ign_chain_at(const ign_chain *chain, uint64_t position)
{
    const ign_chain_segment *found = NULL;
    for (uint64_t i = 0; i < chain->count; i++)
        if (chain->segments[i].info.base <= position && position < chain->segments[i].limit)
            found = &chain->segments[i];
    return found;
}

/* Returns where the next segment behind a position begins; UINT64_MAX: there is none. */
uint64_t ign_chain_next(const ign_chain *chain, uint64_t position)
{
    uint64_t next = UINT64_MAX;
    for (uint64_t i = 0; i < chain->count; i++)
        if (chain->segments[i].info.base > position && chain->segments[i].info.base < chain->segments[i].limit &&
            chain->segments[i].info.base < next)
            next = chain->segments[i].info.base;
    return next;
}
