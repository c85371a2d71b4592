/* Maintenance: one store at a time lays out the next segment, checkpoints, removes and compacts.
 *
 * Who does it says so in a word, as with a flush. Two at a time do no harm, so whoever is dead is followed at once, and whoever
 * seems to be stopped, after a time in which nothing was done.
 */
#include "ignis_store_parts.h"

enum { STOPPED_TIMES = 30 }; /* `stopped_after_ns`: a checkpoint of a large state takes its time */

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
                (ign_store_parse_name(name, "tmp-ahead", &a, &b) && b != atomic_load_explicit(&head->ahead, memory_order_seq_cst)) ||
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

/* A sixteenth of the segment is written: before loads need one. */
static bool wants_ahead(ign_store *store, uint64_t end, uint64_t base)
{
    return end != 0 && base != UINT64_MAX && end - base >= store->options.segment_bytes / 16;
}

/* Room for a checkpoint and what it is made in, for when the disk is full: without one no segment can go. */
static void keep_spare(ign_store *store, ign_generation *g, uint64_t state_bytes)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t bytes = 3 * state_bytes + store->options.arena_bytes + 262144, drawn;
    if (atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) >= bytes ||
        ign_store_lay_out(store, g, "tmp-spare", bytes + bytes / 2, &drawn) != IGN_OK)
        return;
    uint64_t old = atomic_exchange_explicit(&head->spare, drawn, memory_order_seq_cst);
    atomic_store_explicit(&head->spare_bytes, bytes + bytes / 2, memory_order_seq_cst);
    if (old != 0)
        ign_store_give(store, g, "tmp-spare", old);
}

static bool give_spare(ign_store *store, ign_generation *g)
{
    uint64_t drawn = atomic_exchange_explicit(&g->ctl.head->spare, 0, memory_order_seq_cst);
    atomic_store_explicit(&g->ctl.head->spare_bytes, 0, memory_order_seq_cst);
    if (drawn != 0)
        ign_store_give(store, g, "tmp-spare", drawn);
    return drawn != 0;
}

/* The newest checkpoint is far behind, or there are segments that wait for one. */
static int checkpoint(ign_store *store, ign_generation *g, const ign_store_figures *figures)
{
    ign_chain chain;
    int rc = ign_chain_read(store, &chain);
    uint64_t from = rc != IGN_OK || chain.checkpoint == UINT64_MAX ? 0 : chain.checkpoint;
    ign_chain_free(&chain);
    if (rc != IGN_OK)
        return rc;
    if (figures->durable <= from ||
        (figures->durable - from < store->options.checkpoint_bytes && figures->dead_bytes < store->options.checkpoint_bytes))
        return IGN_EMPTY;
    rc = ign_store_checkpoint(store);
    if (rc == IGN_E_NO_ROOM && give_spare(store, g))
        rc = ign_store_checkpoint(store);
    raise_turn(g);
    int removed = rc < 0 ? rc : ign_store_remove_dead(store);
    raise_turn(g);
    return removed < 0 ? removed : rc;
}

static int maintain(ign_store *store, ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    ign_store_figures figures;
    int rc = ign_store_figures_of(store, &figures);
    if (rc != IGN_OK)
        return rc;
    int did = checkpoint(store, g, &figures);
    if (did < 0)
        return did;
    rc = ign_store_compact(store, &figures);
    if (rc < 0)
        return rc;
    did = rc == IGN_EMPTY ? did : rc;
    if (ign_store_sealed(g) || !wants_ahead(store, atomic_load_explicit(&head->end, memory_order_seq_cst),
                                            atomic_load_explicit(&head->log_base, memory_order_seq_cst)))
        return did;
    keep_spare(store, g, figures.state_bytes);
    rc = ign_store_lay_ahead(store, g);
    return rc == IGN_EMPTY || rc == IGN_E_NO_ROOM ? did : rc; /* without room, loads say so */
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
        end(g);
    }
    ign_store_leave(store, g);
    return rc;
}
