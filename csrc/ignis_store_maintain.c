/* Maintenance: one store at a time lays out the next segments, checkpoints, removes and compacts.
 *
 * Who does it says so in a word, as with a flush. Two at a time do no harm, so whoever is dead is followed at once, and whoever
 * seems to be stopped, after a time in which nothing was done.
 */
#include "ignis_store_parts.h"

#include <string.h>

enum {
    STOPPED_TIMES = 30, /* `stopped_after_ns`: a checkpoint of a large state takes its time */
    HOLLOW_PART = 4,
    HOLLOW_TIMES = 16, /* `repack_bytes` */
    SLACK = 16 << 20,
};

static const uint64_t look_ns = 5000000; /* so often who waits for it looks round */

static void raise_turn(ign_generation *g)
{
    atomic_fetch_add_explicit(&g->ctl.head->maintain_turn, 1, memory_order_seq_cst);
}

/* Does another store do it? */
static bool is_done_by_another(ign_store *store, ign_generation *g, uint32_t holder)
{
    if (!ign_store_alive(store, g, holder))
        return false;
    uint64_t turn = atomic_load_explicit(&g->ctl.head->maintain_turn, memory_order_seq_cst), now = store->io->now_ns(store->io);
    pthread_mutex_lock(&store->mutex);
    if (store->maintain_since == 0 || store->maintain_turn != turn) {
        store->maintain_turn = turn;
        store->maintain_since = now;
    }
    bool stopped = now - store->maintain_since >= STOPPED_TIMES * store->options.stopped_after_ns;
    pthread_mutex_unlock(&store->mutex);
    return !stopped;
}

typedef struct sweep {
    ign_store *store;
    ign_generation *g;
} sweep;

/* What one that died at it left. Should it be somebody's who is at work after all, it begins anew. */
static void sweep_file(void *arg, const char *name)
{
    const sweep *s = arg;
    const ign_ctl_head *head = s->g->ctl.head;
    uint64_t a, b;
    bool goes = ign_store_parse_name(name, "tmp-control", &a, &b) || ign_store_parse_name(name, "tmp-checkpoint", &a, &b) ||
                (ign_store_parse_name(name, "tmp-ahead", &a, &b) && b != atomic_load_explicit(&head->ahead, memory_order_seq_cst) &&
                 b != atomic_load_explicit(&head->reserve, memory_order_seq_cst)) ||
                (ign_store_parse_name(name, "tmp-spare", &a, &b) && b != atomic_load_explicit(&head->spare, memory_order_seq_cst));
    if (goes && a == head->generation)
        s->store->io->remove(s->store->io, name);
}

static bool begin(ign_store *store, ign_generation *g)
{
    uint32_t holder = atomic_load_explicit(&g->ctl.head->maintaining, memory_order_seq_cst);
#ifndef IGN_MUTANT_MAINTAIN_TOGETHER
    if (holder != 0 && is_done_by_another(store, g, holder))
        return false;
#endif
    if (!atomic_compare_exchange_strong_explicit(&g->ctl.head->maintaining, &holder, g->word, memory_order_seq_cst, memory_order_relaxed))
        return false;
    raise_turn(g);
    if (holder != 0 && atomic_load_explicit(&g->ctl.head->ready, memory_order_seq_cst) != 0)
        store->io->list(store->io, sweep_file, &(sweep){.store = store, .g = g});
    return true;
}

static void end(ign_generation *g)
{
    uint32_t mine = g->word;
    raise_turn(g);
    atomic_compare_exchange_strong_explicit(&g->ctl.head->maintaining, &mine, 0, memory_order_seq_cst, memory_order_relaxed);
}

bool ign_store_await_maintenance(ign_store *store, ign_generation *g)
{
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    uint32_t holder = atomic_load_explicit(&head->maintaining, memory_order_seq_cst), now = holder;
    uint64_t began = io->now_ns(io);
    while (now != 0 && now == holder && !ign_store_sealed(g) && ign_store_alive(store, g, holder)) {
        if (io->now_ns(io) - began >= store->options.stopped_after_ns)
            return false;
        io->wait(io, &head->maintaining, holder, look_ns);
        now = atomic_load_explicit(&head->maintaining, memory_order_seq_cst);
    }
    return true;
}

static bool is_short(const ign_generation *g)
{
    return atomic_load_explicit(&g->ctl.head->short_of_room, memory_order_seq_cst) != 0;
}

static bool give(ign_store *store, ign_generation *g, _Atomic uint64_t *word, const char *kind)
{
    uint64_t drawn = atomic_exchange_explicit(word, 0, memory_order_seq_cst);
    if (drawn != 0)
        ign_store_give(store, g, kind, drawn);
    return drawn != 0;
}

/* A checkpoint, for which room is kept. If that is not enough and segments go with it, the older checkpoint goes, and then what is kept for
 * segments: those that go are more. */
static int checkpoint_somehow(ign_store *store, ign_generation *g, bool removes)
{
    ign_ctl_head *head = g->ctl.head;
    int rc = ign_store_checkpoint(store);
    if (rc == IGN_E_NO_ROOM) {
        atomic_store_explicit(&head->spare_bytes, 0, memory_order_seq_cst);
        if (give(store, g, &head->spare, "tmp-spare"))
            rc = ign_store_checkpoint(store);
    }
    if (rc == IGN_E_NO_ROOM && removes && ign_store_drop_older(store) == IGN_OK)
        rc = ign_store_checkpoint(store);
    if (rc == IGN_E_NO_ROOM && removes && give(store, g, &head->reserve, "tmp-ahead"))
        rc = ign_store_checkpoint(store);
    if (rc == IGN_E_NO_ROOM && removes && give(store, g, &head->ahead, "tmp-ahead"))
        rc = ign_store_checkpoint(store);
    return rc;
}

/* Much when a call was refused, or will be soon: the longer that waits, the less is left to be moved. */
static ign_need need_of(const ign_generation *g, const ign_store_figures *figures)
{
    const ign_ctl_head *head = g->ctl.head;
    if (!is_short(g))
        return IGN_NEED_NONE;
    bool much = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst) > 1 ||
                (atomic_load_explicit(&head->ahead, memory_order_seq_cst) == 0 && figures->segment_bytes - figures->written < figures->segment_bytes / 4);
    return much ? IGN_NEED_MUCH : IGN_NEED_SOME;
}

static int build_nothing(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store, (void)arg;
    uint8_t *to;
    *bytes = 16;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc == IGN_OK)
        memset(to, 0, 16); /* of a segment that there never was */
    return rc;
}

/* When room is short all is to be flushed, so that the checkpoint is of all; and what is dead by the newest checkpoint goes with one more,
 * though nobody else writes anything. */
static int push_on(ign_store *store, ign_generation *g, ign_store_figures *figures, uint64_t from)
{
    ign_store_mark mark;
    int rc = figures->end <= from ? ign_store_commit(store, IGN_ENTRY_SEGMENT, build_nothing, NULL, NULL, &mark) : IGN_OK;
    if (rc == IGN_OK)
        rc = ign_store_flush_to(store, g, atomic_load_explicit(&g->ctl.head->end, memory_order_seq_cst));
    return rc != IGN_OK ? rc : ign_store_figures_of(store, figures);
}

/* The newest checkpoint is far behind, or there are segments that wait for one. They wait for two, which are at different places: where nobody
 * writes, maintenance goes on by itself. Two segments may wait, and more where a checkpoint is larger than that. */
static int checkpoint(ign_store *store, ign_generation *g, ign_store_figures *figures)
{
    ign_chain chain;
    int rc = ign_chain_read(store, &chain);
    uint64_t from = rc != IGN_OK || chain.checkpoint == UINT64_MAX ? 0 : chain.checkpoint;
    ign_chain_free(&chain);
    uint64_t state = figures->state_bytes, due = store->options.checkpoint_bytes, many = 2 * figures->next_segment_bytes;
    due = due > state ? due : state; /* no more is written for checkpoints than for the log */
    many = many > state ? many : state;
    bool waits = figures->dead_bytes >= (is_short(g) ? 1 : many < due ? many : due);
    if (rc == IGN_OK && waits && (is_short(g) || figures->durable <= from))
        rc = push_on(store, g, figures, from);
    if (rc != IGN_OK)
        return rc;
    if (figures->durable <= from || (figures->durable - from < due && !waits))
        return IGN_EMPTY;
    rc = checkpoint_somehow(store, g, waits && is_short(g));
    raise_turn(g);
    int removed = rc < 0 ? rc : ign_store_remove_dead(store);
    raise_turn(g);
    return removed < 0 ? removed : rc;
}

/* Nothing was written since the last time. */
static void witness(ign_store *store, ign_generation *g)
{
    uint64_t end = atomic_load_explicit(&g->ctl.head->end, memory_order_seq_cst);
    if (atomic_exchange_explicit(&store->quiet_end, end, memory_order_relaxed) == end)
        ign_store_witness(store);
}

/* What is kept for checkpoints takes no more than that. */
static void trim_spare(ign_store *store, ign_generation *g, uint64_t bytes)
{
    ign_ctl_head *head = g->ctl.head;
    if (atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) <= bytes)
        return;
    atomic_store_explicit(&head->spare_bytes, 0, memory_order_seq_cst);
    if (give(store, g, &head->spare, "tmp-spare"))
        ign_store_keep_spare(store, g, bytes);
}

/* Of one more checkpoint as the state is now. Whatever else is wanting, that stays: without it no segment goes, and the store cannot be
 * opened. */
static uint64_t least_spare(const ign_store_figures *figures)
{
    return (figures->state_bytes + 8192) / 4096 * 4096;
}

/* The same when the state has grown by what is moved one by one. */
static uint64_t wanted_spare(const ign_store_figures *figures)
{
    enum { UNIT = 64 << 10 };
    return (figures->state_bytes + figures->state_bytes / 4) / UNIT * UNIT + 2 * UNIT;
}

/* Room is short, and without a reserve nothing can be moved: it comes first, unless segments wait for checkpoints. */
static bool find_reserve(ign_store *store, ign_generation *g, const ign_store_figures *figures)
{
    ign_ctl_head *head = g->ctl.head;
    if (figures->dead_bytes > 0)
        return false;
    uint64_t largest = atomic_load_explicit(&head->largest, memory_order_relaxed), empty = largest > IGN_SHORT_MOVE_BYTES ? largest : IGN_SHORT_MOVE_BYTES;
    uint64_t left = figures->segment_bytes - IGN_LOG_SECTOR - figures->written, cheapest = figures->cheapest_bytes;
    left = left > empty ? left - empty : 0; /* of the newest, which an entry does not fill to its end */
    if (left != 0)
        cheapest = left < cheapest ? cheapest - left + empty : empty;
    cheapest = (cheapest + 16384) / 4096 * 4096;
    if (ign_ahead_bytes(atomic_load_explicit(&head->reserve, memory_order_seq_cst)) < figures->next_segment_bytes)
        give(store, g, &head->reserve, "tmp-ahead"); /* there was no room for a larger one */
    int rc = ign_store_lay_reserve(store, g, figures->reserve_bytes);
    if (rc == IGN_E_NO_ROOM) {
        trim_spare(store, g, least_spare(figures));
        rc = ign_store_lay_reserve(store, g, figures->reserve_bytes);
    }
    if (rc == IGN_E_NO_ROOM && figures->next_segment_bytes < figures->reserve_bytes)
        rc = ign_store_lay_reserve(store, g, figures->next_segment_bytes);
    if (rc == IGN_E_NO_ROOM && cheapest < figures->next_segment_bytes)
        rc = ign_store_lay_reserve(store, g, cheapest); /* one segment can be emptied into it, and that gives more */
    return rc >= 0;
}

static int lay_all(ign_store *store, ign_generation *g, const ign_store_figures *figures)
{
    if (!is_short(g)) {
        int rc = ign_store_keep_spare(store, g, ign_store_spare_bytes(g, figures->log_bytes));
        return rc < 0 ? rc : ign_store_lay_ahead(store, g, figures->next_segment_bytes, figures->reserve_bytes);
    }
    trim_spare(store, g, ign_store_spare_bytes(g, 0));
    ign_store_keep_spare(store, g, least_spare(figures));
    if (!find_reserve(store, g, figures))
        return IGN_E_NO_ROOM;
    ign_store_keep_spare(store, g, wanted_spare(figures));
    if (ign_store_keep_spare(store, g, ign_store_spare_bytes(g, 0)) == IGN_E_NO_ROOM)
        return IGN_E_NO_ROOM;
    int rc = ign_store_lay_ahead(store, g, figures->next_segment_bytes, figures->reserve_bytes);
    if (rc >= 0 && ign_store_keep_spare(store, g, ign_store_spare_bytes(g, figures->log_bytes)) == IGN_OK)
        rc = ign_store_probe(store, g, figures->next_segment_bytes);
    return rc;
}

/* A state that holds little of what it once did, as the newest checkpoint shows, gives its room back: the next generation begins from that one.
 * It needs half as much again as the checkpoint has, and what each message takes that is moved alone. */
static bool is_hollow(const ign_store *store, const ign_generation *g, const ign_store_figures *figures)
{
    uint64_t records = figures->living_records * IGN_RECORD_TAKES;
    uint64_t has = figures->arena_bytes, needs = store->image_bytes + store->image_bytes / 2 + (records < IGN_RECORDS_TAKE ? records : IGN_RECORDS_TAKE);
    bool always = store->options.repack_bytes == 1;
    return store->image_generation == g->number && has > HOLLOW_TIMES * store->options.repack_bytes && has / (always ? 1 : HOLLOW_PART) > needs;
}

static int shrink(ign_store *store, ign_generation *g)
{
    uint64_t cut, end = atomic_load_explicit(&g->ctl.head->end, memory_order_seq_cst);
    /* What is not flushed would be written again: where that is much it is flushed first. */
    if (end > ign_ctl_durable(g->ctl.head) + store->options.segment_bytes) {
        int rc = ign_store_flush_to(store, g, end);
        if (rc != IGN_OK && !ign_store_sealed(g))
            return rc;
    }
    ign_store_seal(store, g);
    return ign_store_follow(store, g, &cut);
}

static int maintain(ign_store *store, ign_generation *g)
{
    ign_store_figures figures;
    int rc = ign_store_figures_of(store, &figures);
    if (rc != IGN_OK)
        return rc;
    int did = checkpoint(store, g, &figures);
    if (did == IGN_OK && !is_short(g) && is_hollow(store, g, &figures))
        return shrink(store, g);
    if (did < 0)
        return did;
    uint64_t spare = ign_store_spare_bytes(g, figures.log_bytes);
    if (!is_short(g) && atomic_load_explicit(&g->ctl.head->spare_bytes, memory_order_seq_cst) > 2 * spare + SLACK)
        trim_spare(store, g, spare);
    /* A sixteenth of the segment is written: before loads need another. */
    if (!ign_store_sealed(g) && (is_short(g) || figures.written >= figures.segment_bytes / 16)) {
        rc = lay_all(store, g, &figures);
        if (rc < 0 && rc != IGN_E_NO_ROOM)
            return rc;
        did = rc == IGN_OK ? rc : did; /* without room, loads say so */
    }
    rc = ign_store_compact(store, &figures, need_of(g, &figures));
    return rc == IGN_EMPTY || rc == IGN_E_NO_ROOM ? did : rc;
}

/* Segments that are gone take their room until nobody has them open. */
static void let_go(ign_store *store, ign_generation *g)
{
    uint32_t now = atomic_load_explicit(&g->ctl.head->removals, memory_order_seq_cst);
    if (atomic_exchange_explicit(&store->removals, now, memory_order_seq_cst) != now)
        ign_store_drop_removed(store, g);
}

int ign_store_maintain(ign_store *store)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_enter_living(store, &g);
    if (rc != IGN_OK)
        return rc;
    if (!begin(store, g))
        rc = IGN_EMPTY;
    else {
        rc = maintain(store, g);
        witness(store, g);
        end(g);
    }
    let_go(store, g);
    ign_store_leave(store, g);
    return rc;
}
