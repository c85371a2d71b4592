/* What checkpoints make room for. The two newest are kept. A segment is removed when nothing lives in it by the newer, and the older begins
 * behind it: should the newer be damaged, the log from the older on says again that nothing lives there.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <errno.h>
#include <stdlib.h>

typedef struct keep {
    ign_store *store;
    uint64_t generation, positions[2], generations[2]; /* the newest, and the one before */
    bool remove;
} keep;

static void look_at(void *arg, const char *name)
{
    keep *k = arg;
    uint64_t generation, position;
    if (!ign_store_parse_name(name, "checkpoint", &generation, &position))
        return;
    if (k->remove) {
        if (position < k->positions[1])
            k->store->io->remove(k->store->io, name);
        return;
    }
    if (position > k->positions[0]) {
        k->positions[1] = k->positions[0];
        k->generations[1] = k->generations[0];
        k->positions[0] = position;
        k->generations[0] = generation;
    } else if (position > k->positions[1] && position < k->positions[0]) {
        k->positions[1] = position;
        k->generations[1] = generation;
    }
}

typedef struct gone {
    uint64_t generation, number;
} gone;

static int build_gone(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    const gone *what = arg;
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    bool known = false;
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        known = known || (all[i].info.generation == what->generation && all[i].info.number == what->number);
    if (!known)
        return IGN_EMPTY;
    uint8_t *payload;
    *bytes = 16;
    int rc = ign_store_stage(g, *bytes, &payload);
    if (rc != IGN_OK)
        return rc;
    ign_put64(payload, what->generation);
    ign_put64(payload + 8, what->number);
    return IGN_OK;
}

/* Segments in which nothing lives by the newer checkpoint, and that end before the older. */
static int find_dead(ign_store *store, const keep *k, bool in_memory, uint64_t state_bytes, gone **dead, uint64_t *count)
{
    ign_ctl ctl;
    char scratch[IGN_STORE_NAME_MAX];
    *dead = NULL;
    *count = 0;
    ign_store_file_name(scratch, "tmp-control", k->generation, store->io->random(store->io));
    int rc = ign_checkpoint_scratch(store, &ctl, scratch, in_memory, state_bytes);
    if (rc != IGN_OK)
        return rc;
    rc = ign_checkpoint_load(store, k->generations[0], k->positions[0], &ctl);
    if (rc == IGN_OK && ctl.root->segment_count > 0) {
        *dead = calloc((size_t)ctl.root->segment_count, sizeof **dead);
        rc = *dead == NULL ? IGN_E_NOMEM : IGN_OK;
        const ign_state_segment *all = ign_ctl_at(&ctl, ctl.root->segments);
        for (uint64_t i = 0; rc == IGN_OK && i + 1 < ctl.root->segment_count; i++)
            if (all[i].living == 0 && all[i + 1].info.base <= k->positions[1])
                (*dead)[(*count)++] = (gone){all[i].info.generation, all[i].info.number};
    }
    ign_checkpoint_drop_scratch(store, &ctl, scratch);
    return rc;
}

static int remove_segment(ign_store *store, gone *what)
{
    char name[IGN_STORE_NAME_MAX];
    ign_store_mark mark;
    int rc = ign_store_commit(store, IGN_ENTRY_SEGMENT, build_gone, what, NULL, &mark);
    ign_segment_name(name, what->generation, what->number);
    if (rc == IGN_OK || rc == IGN_EMPTY) {
        int removed = store->io->remove(store->io, name);
        rc = removed == 0 || removed == ENOENT ? IGN_OK : ign_store_error(removed);
    }
    return rc;
}

/* Segments of older generations of which nothing is left: all of it was written again. No checkpoint knows them. */
static int remove_replaced(ign_store *store, uint64_t generation, uint64_t *count)
{
    ign_chain chain;
    int rc = ign_chain_read(store, &chain);
    for (uint64_t i = 0; rc == IGN_OK && i < chain.count; i++)
        if (chain.segments[i].info.generation < generation && chain.segments[i].limit <= chain.segments[i].info.base) {
            gone what = {chain.segments[i].info.generation, chain.segments[i].info.number};
            rc = remove_segment(store, &what);
            (*count)++;
        }
    ign_chain_free(&chain);
    return rc;
}

/* All but the newest go, if that is whole. Until the next is made there is one alone: only on a disk without room. */
int ign_store_drop_older(ign_store *store)
{
    keep k = {.store = store};
    int rc = ign_store_error(store->io->list(store->io, look_at, &k));
    if (rc != IGN_OK || k.positions[1] == 0)
        return rc == IGN_OK ? IGN_EMPTY : rc;
    rc = ign_checkpoint_check(store, k.generations[0], k.positions[0]);
    if (rc != IGN_OK)
        return rc;
    k.positions[1] = k.positions[0];
    k.remove = true;
    return ign_store_error(store->io->list(store->io, look_at, &k));
}

int ign_store_remove_dead(ign_store *store)
{
    ign_generation *g;
    int rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    keep k = {.store = store, .generation = g->ctl.head->generation};
    uint64_t state_bytes = atomic_load_explicit(&g->ctl.head->arena_bytes, memory_order_relaxed);
    ign_store_leave(store, g);
    rc = ign_store_error(store->io->list(store->io, look_at, &k));
    if (rc != IGN_OK || k.positions[1] == 0)
        return rc == IGN_OK ? IGN_EMPTY : rc;
    /* The newest must be good before the one that it replaces goes, and before a segment goes that only that one needs. */
    rc = ign_checkpoint_check(store, k.generations[0], k.positions[0]);
    if (rc != IGN_OK)
        return rc;
    gone *dead;
    uint64_t count;
    rc = find_dead(store, &k, false, state_bytes, &dead, &count);
    if (rc == IGN_E_NO_ROOM) {
        free(dead);
        rc = find_dead(store, &k, true, state_bytes, &dead, &count);
    }
    for (uint64_t i = 0; rc == IGN_OK && i < count; i++)
        rc = remove_segment(store, &dead[i]);
    if (rc == IGN_OK)
        rc = remove_replaced(store, k.generation, &count);
    int found = count > 0 ? IGN_OK : IGN_EMPTY;
    free(dead);
    if (count > 0 && ign_store_enter(store, &g) == IGN_OK) { /* who has one open is to close it */
        atomic_fetch_add_explicit(&g->ctl.head->removals, 1, memory_order_seq_cst);
        ign_store_leave(store, g);
    }
    if (rc == IGN_OK) {
        k.remove = true;
        store->io->list(store->io, look_at, &k);
    }
    return rc == IGN_OK ? found : rc;
}
