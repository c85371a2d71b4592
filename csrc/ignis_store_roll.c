/* From one segment to the next, and what is laid out ahead.
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

enum { UNIT = 1024, SLACK = 4096, LARGEST_TIMES = 4, SLACK_OF_LOG = 8, SPARE_UNIT = 64 << 10 };

static uint64_t size_of(uint64_t drawn)
{
    return (drawn & IGN_AHEAD_KIB) * UNIT;
}

/* The segment is full, or one was begun behind it that the state does not know: its header would take over the log from
 * where it begins, so another one must take over from that. */
bool ign_store_must_roll(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
#ifdef IGN_MUTANT_STRAY_SEGMENT
    return size > ign_segment_end(last) - g->ctl.root->applied;
#endif
    return size > ign_segment_end(last) - g->ctl.root->applied ||
           atomic_load_explicit(&g->ctl.head->next_number, memory_order_relaxed) != last->number + 1;
}

/* What is laid out gets its name: 0, an errno; ENOENT: there is none. It is taken first: no file becomes two segments. *bytes: its size. */
static int take(ign_store *store, ign_generation *g, _Atomic uint64_t *from, const char *name, uint64_t *bytes)
{
    ign_store_io *io = store->io;
    char laid_out[IGN_STORE_NAME_MAX];
    uint64_t drawn = atomic_exchange_explicit(from, 0, memory_order_seq_cst);
    if (drawn == 0)
        return ENOENT;
    IGN_STEP(io);
    *bytes = size_of(drawn);
    ign_store_file_name(laid_out, "tmp-ahead", g->ctl.head->generation, drawn);
    int rc = io->link_new(io, laid_out, name);
    io->remove(io, laid_out);
    return rc;
}

/* Another segment, in the open transaction. The one before it is flushed: only the newest is ever not. */
int ign_store_roll(ign_store *store, ign_generation *g, uint64_t size)
{
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    ign_segment_info last = ign_state_last_segment(&g->ctl)->info, made = last;
    uint64_t end = g->ctl.root->applied, needed = (size + IGN_LOG_SECTOR + UNIT - 1) / UNIT * UNIT;
    int rc = ign_store_flush_to(store, g, end);
    if (rc != IGN_OK)
        return rc;
    made.generation = head->generation;
    made.base = end;
    made.size = ign_store_next_bytes(store, g);
    made.salt = io->random(io);
    char name[IGN_STORE_NAME_MAX];
    uint8_t sector[IGN_LOG_SECTOR];
    int file;
    /* No number is used twice, though a roll fails or its writer dies: somebody may have the file open. And once there may be
     * a file that begins here, the log does not go on in the one before: see above. */
    made.number = atomic_fetch_add_explicit(&head->next_number, 1, memory_order_relaxed);
    IGN_STEP(io);
    ign_segment_name(name, made.generation, made.number);
    rc = take(store, g, &head->ahead, name, &made.size);
    if (rc == ENOENT)
        rc = take(store, g, &head->reserve, name, &made.size);
    if (rc == ENOENT)
        rc = io->open(io, name, true, &file);
    else if (rc == 0)
        rc = io->open(io, name, false, &file);
    if (rc != 0)
        return ign_store_error(rc);
    made.size = made.size > needed ? made.size : needed;
    rc = io->allocate(io, file, made.size);
    ign_segment_put_header(sector, &made);
    if (rc == 0)
        rc = io->write(io, file, sector, sizeof sector, 0);
    if (rc == 0)
        rc = io->flush(io, file);
    if (rc == 0)
        rc = io->flush_names(io);
    io->close(io, file);
    if (rc != 0) {
        io->remove(io, name);
        return ign_store_error(rc);
    }
    ign_state_add_segment(&g->ctl, &made);
    if (g->ctl.no_room)
        return ign_store_error(ENOSPC);
    IGN_STEP(io);
    ign_store_tell_segment(g);
    return IGN_OK;
}

/* -- ahead --------------------------------------------------------------------------------------------------------------- */

/* Twice the newest, so that a log that is written little stays small; and the largest entry fits. */
uint64_t ign_store_next_bytes(const ign_store *store, ign_generation *g)
{
    uint64_t most = store->options.segment_bytes, bytes = 2 * ign_state_last_segment(&g->ctl)->info.size;
    uint64_t entry = atomic_load_explicit(&g->ctl.head->largest, memory_order_relaxed) + IGN_LOG_SECTOR + SLACK;
    bytes = bytes < most ? bytes : most;
    bytes = bytes < entry && entry <= LARGEST_TIMES * most ? entry : bytes;
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* What any segment holds fits into what is kept. */
uint64_t ign_store_reserve_bytes(const ign_store *store, ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t bytes = ign_store_next_bytes(store, g);
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        if (all[i].info.size > bytes && all[i].info.size <= LARGEST_TIMES * store->options.segment_bytes)
            bytes = all[i].info.size;
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* A batch of one record takes less in a move than in its load, and what is left of a batch is packed anew. */
uint64_t ign_store_cost(const ign_state_segment *segment)
{
    uint64_t cost = 2 * segment->living + SLACK, most = segment->info.size - IGN_LOG_SECTOR;
    return segment->living == 0 ? SLACK : cost < most ? cost : most;
}

/* Of the segment that is emptied most cheaply, of those that nobody writes to. */
uint64_t ign_store_cheapest(ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t best = SLACK;
    for (uint64_t i = 0; i + 1 < g->ctl.root->segment_count; i++) {
        uint64_t cost = ign_store_cost(&all[i]);
        best = i == 0 || cost < best ? cost : best;
    }
    return best;
}

static bool has(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst) != 0;
}

/* More than the first eighth of the segment would be written. */
static bool is_begun(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    return g->ctl.root->applied + size > last->base + last->size / 8;
}

int ign_store_fill(ign_store_io *io, int file, uint64_t bytes)
{
    static uint8_t zeros[1 << 18];
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < bytes; at += sizeof zeros)
        rc = ign_store_write_out(io, file, zeros, bytes - at < sizeof zeros ? bytes - at : sizeof zeros, at);
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
        rc = ign_store_fill(io, file, bytes);
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
static int lay_into(ign_store *store, ign_generation *g, _Atomic uint64_t *word, uint64_t bytes, bool filled)
{
    uint64_t drawn, none = 0;
    if (has(word))
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
    return lay_into(store, g, &g->ctl.head->reserve, bytes, false);
}

int ign_store_lay_ahead(ign_store *store, ign_generation *g, uint64_t bytes, uint64_t reserve_bytes)
{
    ign_ctl_head *head = g->ctl.head;
    int reserve = ign_store_lay_reserve(store, g, reserve_bytes);
    int ahead = reserve < 0 ? reserve : lay_into(store, g, &head->ahead, bytes, true);
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
 * one by one take more until compaction has packed them, and the fuller all segments are, the more has to be moved for little. */
uint64_t ign_store_spare_bytes(const ign_generation *g, uint64_t log_bytes)
{
    uint64_t bytes = 2 * atomic_load_explicit(&g->ctl.head->arena_bytes, memory_order_relaxed) + (64 << 10) + log_bytes / SLACK_OF_LOG;
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
    int rc, file;
    if (had != 0) {
        char name[IGN_STORE_NAME_MAX];
        ign_store_file_name(name, "tmp-spare", head->generation, had);
        rc = io->open(io, name, false, &file);
        if (rc == 0) {
            rc = io->allocate(io, file, bytes);
            io->close(io, file);
        }
        rc = ign_store_error(rc);
    } else {
        rc = ign_store_lay_out(store, g, "tmp-spare", bytes, false, &drawn);
        if (rc == IGN_OK && !atomic_compare_exchange_strong_explicit(&head->spare, &had, drawn, memory_order_seq_cst, memory_order_seq_cst))
            ign_store_give(store, g, "tmp-spare", drawn);
    }
    if (rc == IGN_OK)
        atomic_store_explicit(&head->spare_bytes, bytes, memory_order_seq_cst);
    return rc;
}

bool ign_store_has_way(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    if (ign_store_must_roll(g, size))
        return false;
    bool room_is_short = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst) != 0;
    if (weight == IGN_WEIGHT_FREES || (!room_is_short && !is_begun(g, size)))
        return true;
    return !(weight == IGN_WEIGHT_LOAD && room_is_short) && has(&head->reserve) && (weight != IGN_WEIGHT_LOAD || has(&head->ahead));
}

/* Bytes of entries that fit into what a word says is laid out. A roll that fails is to be avoided: behind one the log goes on only with
 * another segment. */
static uint64_t fits(_Atomic uint64_t *word)
{
    uint64_t bytes = size_of(atomic_load_explicit(word, memory_order_seq_cst));
    return bytes < IGN_LOG_SECTOR ? 0 : bytes - IGN_LOG_SECTOR;
}

uint64_t ign_store_left(ign_generation *g)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    uint64_t left = ign_store_must_roll(g, 0) ? 0 : ign_segment_end(last) - g->ctl.root->applied;
    uint64_t ahead = fits(&g->ctl.head->ahead), kept = fits(&g->ctl.head->reserve);
    ahead = ahead > kept ? ahead : kept; /* not the sum: an entry is in one segment */
    return left > ahead ? left : ahead;
}

/* No room for more segments. Compaction goes on in what is left, and others as long as it can. */
static int make_do(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    uint64_t ahead = fits(&head->ahead), kept = fits(&head->reserve), left = ign_segment_end(last) - g->ctl.root->applied;
    bool rolls = ign_store_must_roll(g, size), goes = false;
    if (weight == IGN_WEIGHT_LOAD)
        return IGN_E_NO_ROOM;
    if (!rolls) /* what is kept is enough, or what is left of this one */
        goes = weight == IGN_WEIGHT_FREES || kept != 0 || left >= size + ign_store_cheapest(g);
    else if (ahead != 0)
        goes = ahead >= size;
    else
        goes = kept >= size + (weight == IGN_WEIGHT_FREES ? 0 : ign_store_cheapest(g));
    return goes ? IGN_OK : IGN_E_NO_ROOM;
}

uint64_t ign_store_kept_bytes(ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    return size_of(atomic_load_explicit(&head->ahead, memory_order_seq_cst)) + size_of(atomic_load_explicit(&head->reserve, memory_order_seq_cst)) +
           (has(&head->spare) ? atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) : 0);
}

uint64_t ign_store_log_bytes(ign_generation *g)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        bytes += all[i].info.size;
    return bytes;
}

/* While maintenance is at work, room may be wanting for a moment only: it lays out what the call looks for, or has made a checkpoint's copy
 * that it gives back. Loads are refused once it is noted that room is short, so that is not noted then, unless it was waited for already. */
void ign_store_note_no_room(ign_generation *g, ign_store_weight weight, bool goes)
{
    ign_ctl_head *head = g->ctl.head;
    uint32_t was = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst);
    bool at_work = atomic_load_explicit(&head->maintaining, memory_order_seq_cst) != 0 ||
                   atomic_load_explicit(&head->maintain_turn, memory_order_seq_cst) != g->since;
    if (was == 0 && at_work && weight != IGN_WEIGHT_FREES && (goes || g->patient))
        g->in_hand = true;
    else if (was == 0 || !goes)
        atomic_store_explicit(&head->short_of_room, !goes && weight != IGN_WEIGHT_LOAD ? 2 : was > 1 ? 2 : 1, memory_order_seq_cst);
}

int ign_store_make_way(ign_store *store, ign_generation *g, uint64_t size, ign_store_weight weight, uint64_t *another)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t bytes = ign_store_next_bytes(store, g);
    bool rolls = ign_store_must_roll(g, size);
    uint32_t was_short = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst);
    *another = 0;
    if (ign_store_has_way(g, size, weight))
        return IGN_OK;
    if (was_short != 0 && weight != IGN_WEIGHT_LOAD && make_do(g, size, weight) == IGN_OK)
        return IGN_OK; /* what room there is, is for maintenance to find */
    int rc = was_short != 0 && weight == IGN_WEIGHT_LOAD ? ign_store_error(ENOSPC) : IGN_OK; /* until maintenance has found room for all */
    if (rc == IGN_OK && weight == IGN_WEIGHT_LOAD && rolls)
        rc = ign_store_keep_spare(store, g, ign_store_spare_bytes(g, ign_store_log_bytes(g) + bytes));
    if (rc >= 0)
        rc = lay_into(store, g, &head->reserve, ign_store_reserve_bytes(store, g), false);
    if (rc >= 0 && (rolls || weight == IGN_WEIGHT_LOAD))
        rc = lay_into(store, g, &head->ahead, bytes, false);
    if (rc >= 0 && rolls)
        rc = ign_store_lay_out(store, g, "tmp-ahead", 2 * bytes <= store->options.segment_bytes ? 2 * bytes : bytes, false, another);
    if (rc != IGN_E_NO_ROOM)
        return rc < 0 ? rc : IGN_OK;
    *another = 0;
    int kept = errno;
    rc = make_do(g, size, weight);
    ign_store_note_no_room(g, weight, rc == IGN_OK);
    errno = kept;
    return rc;
}

void ign_store_set_ahead(ign_store *store, ign_generation *g, uint64_t drawn)
{
    uint64_t none = 0;
    if (drawn != 0 && !atomic_compare_exchange_strong_explicit(&g->ctl.head->ahead, &none, drawn, memory_order_seq_cst, memory_order_seq_cst))
        ign_store_give(store, g, "tmp-ahead", drawn);
}
