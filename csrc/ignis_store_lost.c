/* Files that are missing, or have lost their headers: a store is not opened as one that holds less.
 *
 * Who says that there was more: the segments on both sides of a gap; the checkpoint, of the segment that was written when it was made, and of
 * those in which something lived; the control file of the generation before, of the segment that was written last and how far it was
 * flushed; and a file with a segment's name that has anything in it and no header. The words of a control file are only raised when what they say
 * is on the disk, so it does not matter which of them a power cut left.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16, RUNS = 1024 };

int ign_store_is_lost(ign_store *store, const char *file, uint64_t from, uint64_t to)
{
    strcpy(store->lost.file, file);
    store->lost.from = from;
    store->lost.to = to;
#ifdef IGN_MUTANT_OPEN_WITH_LESS
    return IGN_OK;
#endif
    return store->options.pass_over ? IGN_OK : IGN_E_LOST;
}

bool ign_chain_has(const ign_chain *chain, uint64_t generation, uint64_t number)
{
    for (uint64_t i = chain->count; i-- > 0;)
        if (chain->segments[i].info.generation == generation && chain->segments[i].info.number == number)
            return true;
    return false;
}

ign_known ign_ctl_knows(const ign_ctl *sealed)
{
    const ign_ctl_head *head = sealed == NULL ? NULL : sealed->head;
    if (head == NULL || atomic_load_explicit(&head->ready, memory_order_acquire) == 0)
        return (ign_known){0};
    return (ign_known){.store = head->store, .generation = head->generation,
                       .number = atomic_load_explicit(&head->log_number, memory_order_seq_cst),
                       .durable = ign_ctl_durable(head)};
}

int ign_chain_know(ign_store *store, ign_chain *chain, const ign_known *known)
{
    if (known->generation == 0 || (chain->store != 0 && known->store != chain->store))
        return IGN_OK;
    for (uint64_t i = 0; i < chain->count; i++)
        if (chain->segments[i].info.generation > known->generation)
            return IGN_OK;
    chain->known_generation = known->generation;
    chain->known_number = known->number;
    chain->known = known->durable;
    if (ign_chain_has(chain, chain->known_generation, chain->known_number))
        return IGN_OK;
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, chain->known_generation, chain->known_number);
    chain->known_generation = 0;
    return ign_store_is_lost(store, name, 0, chain->known);
}

bool ign_chain_is_blank(ign_store *store, const char *name, uint64_t from, uint64_t to)
{
    ign_store_io *io = store->io;
    uint64_t size = 0;
    int file;
    if (io->open(io, name, false, &file) != 0)
        return true; /* gone meanwhile */
    uint8_t *piece = malloc(PIECE);
    bool blank = piece != NULL && io->size(io, file, &size) == 0;
    to = to < size ? to : size;
    for (uint64_t at = from; blank && at < to; at += PIECE) {
        size_t part = to - at < PIECE ? (size_t)(to - at) : PIECE;
        blank = io->read(io, file, piece, part, at) == 0 && piece[0] == 0 && memcmp(piece, piece + 1, part - 1) == 0;
    }
    free(piece);
    io->close(io, file);
    return blank;
}

static bool is_older(uint64_t generation, uint64_t number, const ign_segment_info *than)
{
    return generation != than->generation ? generation < than->generation : number < than->number;
}

int ign_chain_check_files(ign_store *store, const ign_chain *chain, ign_ctl *ctl)
{
    char name[IGN_STORE_NAME_MAX];
    const ign_state_segment *last = ign_state_last_segment(ctl);
    int rc = IGN_OK;
    if (last != NULL) {
        const ign_chain_segment *found = ign_chain_at(chain, ctl->root->applied);
        ign_segment_name(name, last->info.generation, last->info.number);
        if (found == NULL || is_older(found->info.generation, found->info.number, &last->info))
            rc = ign_store_is_lost(store, name, last->info.base, UINT64_MAX);
    }
    for (uint64_t i = 0; rc == IGN_OK && i < chain->stray_count; i++) {
        if (last != NULL && is_older(chain->strays[i].generation, chain->strays[i].number, &last->info))
            continue; /* known to the checkpoint: nothing lives there, or it is missed as such */
        ign_segment_name(name, chain->strays[i].generation, chain->strays[i].number);
        if (!ign_chain_is_blank(store, name, IGN_LOG_SECTOR, UINT64_MAX))
            rc = ign_store_is_lost(store, name, 0, UINT64_MAX);
    }
    return rc;
}

int ign_chain_check_living(ign_store *store, const ign_chain *chain, ign_ctl *ctl)
{
    const ign_state_segment *all = ign_ctl_at(ctl, ctl->root->segments);
    int rc = IGN_OK;
    for (uint64_t i = 0; rc == IGN_OK && i + 1 < ctl->root->segment_count; i++) {
        char name[IGN_STORE_NAME_MAX];
        ign_segment_name(name, all[i].info.generation, all[i].info.number);
        if (all[i].living != 0 && !ign_chain_has(chain, all[i].info.generation, all[i].info.number))
            rc = ign_store_is_lost(store, name, all[i].info.base, all[i + 1].info.base);
    }
    return rc;
}

/* -- passing over ---------------------------------------------------------------------------------------------------------- */

static bool is_there(ign_store *store, const ign_segment_info *info)
{
    ign_log_file *file;
    int rc = ign_store_use_file(store, info->generation, info->number, NULL, &file);
    bool there = rc == 0 && !file->headless;
    if (rc == 0)
        ign_store_drop_file(store, file);
    return there;
}

/* Up to RUNS extents of one magazine whose segment is not there. */
static int build_drop(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)arg;
    uint8_t *to;
    uint32_t runs = 0;
    int rc = ign_store_stage(g, 8 + (uint64_t)RUNS * IGN_RUN_BYTES, &to);
    if (rc != IGN_OK)
        return rc;
    for (uint64_t number = 0; number < g->ctl.root->by_id_count && runs == 0; number++) {
        const ign_magazine *magazine = ign_state_magazine(&g->ctl, number);
        for (uint64_t s = 0; magazine != NULL && s < magazine->shards; s++) {
            ign_shard *shard = ign_state_shard(&g->ctl, magazine, s);
            const ign_state_segment *looked_at = NULL;
            bool there = true;
            ign_cursor at;
            for (ign_item *e = ign_seq_find(&g->ctl, &shard->extents, 0, &at); e != NULL && runs < RUNS;
                 e = ign_seq_next(&g->ctl, &shard->extents, &at)) {
                const ign_state_segment *segment = ign_state_find_segment(&g->ctl, e->word[0]);
                if (segment != looked_at)
                    there = segment != NULL && is_there(store, &segment->info);
                looked_at = segment;
                if (!there)
                    ign_put_run(to + 8 + (uint64_t)runs++ * IGN_RUN_BYTES, (uint16_t)s, e->first, IGN_ITEM_LAST(e));
            }
        }
        ign_put32(to, (uint32_t)number);
    }
    ign_put32(to + 4, runs);
    *bytes = 8 + (uint64_t)runs * IGN_RUN_BYTES;
    return runs == 0 ? IGN_EMPTY : IGN_OK;
}

int ign_store_drop_lost(ign_store *store)
{
    int rc = IGN_OK;
    while (rc == IGN_OK) {
        ign_store_mark mark;
        rc = ign_store_commit(store, IGN_ENTRY_RETIRE, build_drop, NULL, NULL, &mark);
    }
    /* From here on nothing before is needed. */
    ign_store_mark mark;
    if (rc == IGN_EMPTY)
        rc = ign_store_mark_now(store, &mark);
    if (rc == IGN_OK)
        rc = ign_store_flush(store, &mark, true);
    if (rc == IGN_OK)
        rc = ign_store_checkpoint(store);
    return rc == IGN_EMPTY ? IGN_OK : rc;
}
