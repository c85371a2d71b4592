/* What is laid out ahead.
 *
 * A segment that is laid out has its size and room on the disk, and a name that nobody takes for a segment's; the roll links it to
 * its own. Maintenance lays it out and fills it with zeros, so that a flush of what is appended changes neither size nor extents; a load
 * that finds none lays one out and does not wait for the zeros. Each is twice as large as the one before, up to `segment_bytes`.
 *
 * Two are kept: `ahead`, the next, and `reserve`, for compaction. A load goes on only with both, but for the first eighth of a segment,
 * and begins the next segment only when yet another could be laid out. So a disk that is full refuses loads while there is a segment for the
 * calls that go on, and one more into which whatever one segment holds can be moved. Calls that are no loads may begin in it what leaves
 * room for that, by the segment that is emptied most cheaply. Room that is found again goes to these two first.
 */
#include "ignis_store_parts.h"

#include <errno.h>

enum { UNIT = IGN_AHEAD_UNIT, SLACK = 4096, LARGEST_TIMES = 4, SPARE_UNIT = 64 << 10, EXTENT_TAKES = 56, PART_OF_LOG = 8, MOST_OF_LOG = 64 << 20 };

/* Twice the newest, so that a log that is written little stays small, or as large as any (the newest is small where a full disk had no more room);
 * and the largest entry fits. */
uint64_t ign_store_next_bytes(const ign_store *store, ign_generation *g)
{
    uint64_t most = store->options.segment_bytes, bytes = 2 * ign_state_last_segment(&g->ctl)->info.size;
    uint64_t entry = atomic_load_explicit(&g->ctl.head->largest, memory_order_relaxed) + IGN_LOG_SECTOR + SLACK;
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        bytes = all[i].info.size > bytes ? all[i].info.size : bytes;
    bytes = bytes < most ? bytes : most;
    bytes = bytes < entry && entry <= LARGEST_TIMES * most ? entry : bytes;
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* What any segment holds fits into what is kept. When room is short it takes no more than a segment that goes gives back. */
uint64_t ign_store_reserve_bytes(const ign_store *store, ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t bytes = ign_store_next_bytes(store, g);
    bool is_short = atomic_load_explicit(&g->ctl.head->short_of_room, memory_order_seq_cst) != 0;
    for (uint64_t i = 0; !is_short && i < g->ctl.root->segment_count; i++)
        if (all[i].info.size > bytes && all[i].info.size <= LARGEST_TIMES * store->options.segment_bytes)
            bytes = all[i].info.size;
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* Its living records are packed anew: each batch may become a move of its own, with a part and an entry round it. What is left of a batch has an
 * equal share of its bytes; an eighth more is for records that are larger than that. */
uint64_t ign_store_cost(const ign_state_segment *segment)
{
    uint64_t cost = segment->living + segment->living / 8 + segment->extents * EXTENT_TAKES + SLACK, most = segment->info.size - IGN_LOG_SECTOR;
    return segment->living == 0 ? SLACK : cost < most ? cost : most;
}

/* Of the segment that is emptied most cheaply, of those that nobody writes to and that give back what counts: more than it takes, and
 * a reserve again, which small ones are not. Else of any. */
uint64_t ign_store_cheapest(ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t best = UINT64_MAX, any = UINT64_MAX, largest = 0;
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        largest = all[i].info.size > largest ? all[i].info.size : largest;
    for (uint64_t i = 0; i + 1 < g->ctl.root->segment_count; i++) {
        uint64_t cost = ign_store_cost(&all[i]);
        any = cost < any ? cost : any;
        if (all[i].living <= all[i].info.size / 16 * 15 && all[i].info.size >= largest / 2 && cost < best)
            best = cost;
    }
    return best != UINT64_MAX ? best : any != UINT64_MAX ? any : SLACK;
}

int ign_store_fill(ign_store_io *io, int file, uint64_t from, uint64_t to)
{
    static uint8_t zeros[1 << 18];
    int rc = 0;
    for (uint64_t at = from; rc == 0 && at < to; at += sizeof zeros)
        rc = ign_store_write_out(io, file, zeros, to - at < sizeof zeros ? to - at : sizeof zeros, at);
    return rc;
}

/* The second number of its name is drawn. */
int ign_store_lay_out(ign_store *store, const ign_generation *g, const char *kind, uint64_t bytes, bool filled, uint64_t *drawn)
{
    ign_store_io *io = store->io;
    char name[IGN_STORE_NAME_MAX];
    int file;
    uint64_t units = bytes / UNIT < IGN_AHEAD_KIB ? bytes / UNIT : IGN_AHEAD_KIB;
    *drawn = ((io->random(io) | 1) << 24) | units | (filled ? IGN_AHEAD_FILLED : 0);
    ign_store_file_name(name, kind, g->ctl.head->generation, *drawn);
    int rc = io->open(io, name, true, &file);
    if (rc != 0)
        return ign_store_error(rc);
    rc = io->allocate(io, file, bytes);
    if (rc == 0 && filled) {
        rc = ign_store_fill(io, file, 0, bytes);
        rc = rc != 0 ? rc : io->flush(io, file);
    }
    io->close(io, file);
    if (rc != 0)
        io->remove(io, name);
    return ign_store_error(rc);
}

void ign_store_give(ign_store *store, const ign_generation *g, const char *kind, uint64_t drawn)
{
    char name[IGN_STORE_NAME_MAX];
    ign_store_file_name(name, kind, g->ctl.head->generation, drawn);
    store->io->remove(store->io, name);
}

/* What is laid out is in the word, unless somebody was quicker. */
int ign_store_lay_into(ign_store *store, ign_generation *g, _Atomic uint64_t *word, uint64_t bytes, bool filled)
{
    uint64_t drawn, none = 0;
    if (ign_ahead_is_laid(word))
        return IGN_EMPTY;
    int rc = ign_store_lay_out(store, g, "tmp-ahead", bytes, filled, &drawn);
    if (rc == IGN_OK && !atomic_compare_exchange_strong_explicit(word, &none, drawn, memory_order_seq_cst, memory_order_seq_cst))
        ign_store_give(store, g, "tmp-ahead", drawn);
    return rc;
}

/* One that a load had to lay out by itself is not filled: another takes its place. */
static int fill_ahead(ign_store *store, ign_generation *g, uint64_t bytes)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t had = atomic_load_explicit(&head->ahead, memory_order_seq_cst), drawn;
    if (had == 0 || (had & IGN_AHEAD_FILLED) != 0)
        return IGN_EMPTY;
    int rc = ign_store_lay_out(store, g, "tmp-ahead", bytes, true, &drawn);
    if (rc != IGN_OK)
        return rc == IGN_E_NO_ROOM ? IGN_EMPTY : rc;
    bool ours = atomic_compare_exchange_strong_explicit(&head->ahead, &had, drawn, memory_order_seq_cst, memory_order_seq_cst);
    ign_store_give(store, g, "tmp-ahead", ours ? had : drawn);
    return IGN_OK;
}

int ign_store_lay_reserve(ign_store *store, ign_generation *g, uint64_t bytes)
{
    return ign_store_lay_into(store, g, &g->ctl.head->reserve, bytes, false);
}

int ign_store_lay_ahead(ign_store *store, ign_generation *g, uint64_t bytes, uint64_t reserve_bytes)
{
    ign_ctl_head *head = g->ctl.head;
    int reserve = ign_store_lay_reserve(store, g, reserve_bytes);
    int ahead = reserve < 0 ? reserve : ign_store_lay_into(store, g, &head->ahead, bytes, true);
    if (ahead < 0)
        return ahead;
    int filled = fill_ahead(store, g, bytes);
    return filled < 0 ? filled : reserve == IGN_OK || ahead == IGN_OK ? IGN_OK : filled;
}

/* Is there room for more than what is kept? Then loads go on. */
int ign_store_probe(ign_store *store, ign_generation *g, uint64_t bytes)
{
    uint64_t drawn;
    int rc = ign_store_lay_out(store, g, "tmp-ahead", bytes, false, &drawn);
    if (rc != IGN_OK)
        return rc;
    ign_store_give(store, g, "tmp-ahead", drawn);
    atomic_store_explicit(&g->ctl.head->short_of_room, 0, memory_order_seq_cst);
    return IGN_OK;
}

/* Two checkpoints, for when the disk is full: without them no segment can go. The state grows when what a batch holds is moved one by one: loads
 * leave room for that in the arena, and so it is kept for it here. And a part of the log, which is given back then: messages that are moved
 * one by one take more until compaction has packed them, and the fuller all segments are, the more has to be moved for little. No more of it is needed
 * where the log is large: who moves messages waits for compaction then. */
uint64_t ign_store_spare_of_log(uint64_t log_bytes)
{
    return log_bytes / PART_OF_LOG < MOST_OF_LOG ? log_bytes / PART_OF_LOG : MOST_OF_LOG;
}

uint64_t ign_store_spare_bytes(const ign_generation *g, uint64_t log_bytes)
{
    uint64_t bytes = 2 * atomic_load_explicit(&g->ctl.head->arena_bytes, memory_order_relaxed) + (64 << 10) + ign_store_spare_of_log(log_bytes);
    return (bytes + SPARE_UNIT - 1) / SPARE_UNIT * SPARE_UNIT;
}

int ign_store_keep_spare(ign_store *store, ign_generation *g, uint64_t bytes)
{
    ign_ctl_head *head = g->ctl.head;
    ign_store_io *io = store->io;
    uint64_t had = atomic_load_explicit(&head->spare, memory_order_seq_cst), drawn;
#ifdef IGN_MUTANT_NO_SPARE
    return IGN_OK;
#endif
    if (had != 0 && atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) >= bytes)
        return IGN_OK;
    int rc = ENOENT, file;
    if (had != 0) {
        char name[IGN_STORE_NAME_MAX];
        ign_store_file_name(name, "tmp-spare", head->generation, had);
        rc = io->open(io, name, false, &file);
        if (rc == 0) {
            rc = io->allocate(io, file, bytes);
            io->close(io, file);
        }
    }
    if (rc != ENOENT)
        rc = ign_store_error(rc);
    else if (ign_store_sealed(g))
        return IGN_E_STALE; /* its files are being removed */
    else { /* none yet, or others have given it back since it was looked up, or it was removed by hand */
        uint64_t now = atomic_load_explicit(&head->spare, memory_order_seq_cst);
        rc = now == 0 || now == had ? ign_store_lay_out(store, g, "tmp-spare", bytes, false, &drawn) : IGN_EMPTY;
        if (rc == IGN_OK && !atomic_compare_exchange_strong_explicit(&head->spare, &now, drawn, memory_order_seq_cst, memory_order_seq_cst)) {
            ign_store_give(store, g, "tmp-spare", drawn);
            rc = IGN_EMPTY; /* others keep one, of a size that they say */
        }
    }
    if (rc == IGN_OK)
        atomic_store_explicit(&head->spare_bytes, bytes, memory_order_seq_cst);
    return rc;
}

uint64_t ign_store_kept_bytes(ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    return ign_ahead_bytes(atomic_load_explicit(&head->ahead, memory_order_seq_cst)) + ign_ahead_bytes(atomic_load_explicit(&head->reserve, memory_order_seq_cst)) +
           (ign_ahead_is_laid(&head->spare) ? atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) : 0);
}

uint64_t ign_store_log_bytes(ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        bytes += all[i].info.size;
    return bytes;
}

void ign_store_set_ahead(ign_store *store, ign_generation *g, uint64_t drawn)
{
    uint64_t none = 0;
    if (drawn != 0 && !atomic_compare_exchange_strong_explicit(&g->ctl.head->ahead, &none, drawn, memory_order_seq_cst, memory_order_seq_cst))
        ign_store_give(store, g, "tmp-ahead", drawn);
}
