/* Which segment compaction takes next, if any, and whether it empties it or packs it.
 *
 * All files together may take twice what lives and 32 MiB (or 4 segments, if that is less), beside what is dead or laid out ahead. Beyond that the
 * segment is emptied that gives back most for what it takes.
 *
 * The state has a place for each batch, whatever its size. What they take may be an eighth of what lives (256 MiB at most), and 16 MiB (or a segment).
 * Beyond that the segment with the most of them is packed: small batches are moved out of it and become one with their neighbours. Where they have none,
 * that was in vain, and nothing is packed until there are twice as many.
 *
 * When the disk has no more room, a segment is emptied whenever that gives any back.
 */
#include "ignis_store_parts.h"

enum {
    FREE_SEGMENTS = 4,
    FREE_BYTES = 32 << 20,
    STATE_SEGMENTS = 1,
    STATE_BYTES = 16 << 20,
    STATE_PART = 8,
    STATE_MOST = 256 << 20,
    BATCH_TAKES = 384, /* beside the log: its place in the state, in two checkpoints, and in what is kept for another two */
    ARENAS = 3,        /* as large as the one with the state: itself, and what is kept for two checkpoints */
    IMAGES = 2,
};

/* What is damaged in it cannot be moved: it is not chosen again before something of it is retired. */
static bool is_left(const ign_store *store, const ign_state_segment *segment)
{
#ifdef IGN_MUTANT_EMPTIES_AGAIN
    return false;
#endif
    for (unsigned i = 0; i < IGN_STORE_LEFT; i++)
        if (store->left[i].generation == segment->info.generation && store->left[i].number == segment->info.number &&
            store->left[i].living == segment->living)
            return true;
    return false;
}

static uint64_t beyond(uint64_t bytes, uint64_t free)
{
    return bytes > free ? bytes - free : 0;
}

/* So much is free, of so many segments, if that is less. */
static uint64_t least(const ign_store *store, uint64_t segments, uint64_t bytes)
{
    uint64_t some = segments * store->options.segment_bytes;
    return some < bytes ? some : bytes;
}

static bool takes_too_much(const ign_store *store, const ign_store_figures *figures)
{
    uint64_t first = store->options.arena_bytes;
    uint64_t state = beyond(figures->arena_bytes, first) * ARENAS + beyond(figures->state_bytes, first) * IMAGES;
    uint64_t log = figures->log_bytes - figures->dead_bytes;
    return log + ign_store_spare_of_log(log) + state > 2 * figures->living_bytes + least(store, FREE_SEGMENTS, FREE_BYTES);
}

static bool has_many_batches(const ign_store *store, const ign_store_figures *figures)
{
    uint64_t part = figures->living_bytes / STATE_PART;
    return figures->batches * BATCH_TAKES > (part < STATE_MOST ? part : STATE_MOST) + least(store, STATE_SEGMENTS, STATE_BYTES);
}

bool ign_store_may_choose(const ign_store *store, const ign_store_figures *figures)
{
    return takes_too_much(store, figures) || has_many_batches(store, figures);
}

/* The segment with the least alive for its size. What it takes must be there: before room is needed if it gives back three eighths, then if it gives
 * back a sixteenth. */
ign_work ign_store_choose_short(const ign_store *store, ign_generation *g, ign_need need, ign_segment_info *info, uint64_t *limit)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    bool found = false;
    uint64_t left = ign_store_left(g);
    uint64_t best = UINT64_MAX, most = need == IGN_NEED_SOME ? 640 : 960;
    for (uint64_t i = 0; i + 1 < g->ctl.root->segment_count; i++) {
        uint64_t by = all[i].living * 1024 / all[i].info.size;
        if (all[i].living == 0 || is_left(store, &all[i]) || by >= best || by > most || ign_store_cost(&all[i]) > left)
            continue;
        best = by;
        *info = all[i].info;
        *limit = all[i + 1].info.base;
        found = true;
    }
    return found ? IGN_WORK_EMPTY : IGN_WORK_NONE;
}

/* It gives back at least a third of what it takes. */
static bool choose_to_empty(const ign_store *store, const ign_state_segment *all, uint64_t count, ign_segment_info *info, uint64_t *limit)
{
    uint64_t best = 0;
    for (uint64_t i = 0; i + 1 < count; i++) {
        uint64_t takes = all[i].living, size = all[i].info.size, by;
        if (takes == 0 || is_left(store, &all[i]) || size < takes + takes / 3 || (by = size * 64 / takes) <= best)
            continue;
        best = by;
        *info = all[i].info;
        *limit = all[i + 1].info.base;
    }
    return best != 0;
}

/* What its batches take is at least a quarter of its size. */
static bool choose_to_pack(const ign_state_segment *all, uint64_t count, ign_segment_info *info, uint64_t *limit)
{
    uint64_t best = 0;
    for (uint64_t i = 0; i + 1 < count; i++) {
        if (all[i].extents <= best || all[i].extents * BATCH_TAKES < all[i].info.size / 4)
            continue;
        best = all[i].extents;
        *info = all[i].info;
        *limit = all[i + 1].info.base;
    }
    return best != 0;
}

/* Where the last one was in vain, there must be more of it first: twice as many batches, or an eighth more log. */
ign_work ign_store_choose(const ign_store *store, ign_generation *g, const ign_store_figures *figures, ign_segment_info *info, uint64_t *limit)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t count = g->ctl.root->segment_count;
    if (has_many_batches(store, figures) && figures->batches >= 2 * store->unpacked && choose_to_pack(all, count, info, limit))
        return IGN_WORK_PACK;
    bool gives = figures->log_bytes - figures->dead_bytes > store->unemptied + store->unemptied / 8;
    return takes_too_much(store, figures) && gives && choose_to_empty(store, all, count, info, limit) ? IGN_WORK_EMPTY : IGN_WORK_NONE;
}

void ign_store_note_compacted(ign_store *store, const ign_store_figures *figures, const ign_segment_info *info, ign_work work, const ign_compacted *done)
{
#ifdef IGN_MUTANT_PACKS_AGAIN
    return;
#endif
    if (work == IGN_WORK_PACK)
        store->unpacked = done->made > done->moved / 2 ? figures->batches : 0;
    else
        store->unemptied = done->written > info->size / 8 * 7 ? figures->log_bytes - figures->dead_bytes : 0;
}
