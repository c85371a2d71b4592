/* The writer's lock: one word in the control file, held by a slot and its incarnation.
 *
 * A holder that died is found out by its slot, and whoever finds it takes the lock over; a holder that lives and does
 * nothing for `stopped_after_ns` (stopped, frozen, starved, or waiting for a disk that hangs) has its generation sealed.
 * Whoever takes the lock first makes the state whole: undoes what a dead holder left half done, and applies what
 * it had written to the log.
 */
#include "ignis_store_parts.h"

#include "ignis_wait.h"

enum { SPINS = 200 };
static const uint64_t look_ns = 5000000; /* so often a waiter looks whether the holder lives */

static bool take(ign_ctl_head *head, uint32_t expected, uint32_t word)
{
    if (!atomic_compare_exchange_strong_explicit(&head->lock, &expected, word, memory_order_seq_cst, memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&head->lock_turn, 1, memory_order_relaxed);
    return true;
}

void ign_store_gets_on(ign_generation *g)
{
#ifndef IGN_MUTANT_SEEMS_STOPPED
    atomic_fetch_add_explicit(&g->ctl.head->lock_turn, 1, memory_order_relaxed);
#endif
}

static int acquire(ign_store *store, ign_generation *g, bool at_once)
{
    ign_ctl_head *head = g->ctl.head;
    ign_store_io *io = store->io;
    for (int i = 0; i < SPINS; i++) {
        if (take(head, 0, g->word))
            return IGN_OK;
        IGN_STEP(io);
        ign_cpu_relax();
    }
    if (at_once)
        return IGN_E_BUSY;
    uint64_t began = io->now_ns(io), since = began, turn = UINT64_MAX;
    for (;;) {
        if (ign_store_sealed(g))
            return IGN_E_STALE;
        uint32_t holder = atomic_load_explicit(&head->lock, memory_order_seq_cst);
        IGN_STEP(io);
        if (holder == 0 || !ign_store_alive(store, g, holder)) {
            if (take(head, holder, g->word))
                return IGN_OK;
            continue;
        }
        uint64_t now = io->now_ns(io), seen = atomic_load_explicit(&head->lock_turn, memory_order_relaxed);
        if (seen != turn) {
            turn = seen;
            since = now;
        } else if (now - since >= store->options.stopped_after_ns) {
            ign_store_seal(store, g);
            return IGN_E_STALE;
        }
        if (now - began >= store->options.busy_after_ns)
            return IGN_E_BUSY;
        atomic_store_explicit(&head->lock_waiting, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&head->lock, memory_order_seq_cst) == holder)
            io->wait(io, &head->lock, holder, look_ns);
    }
}

/* A control file that somebody cut: pages that are gone would end the call, but half a page reads as zeros. */
static bool is_shorter(ign_store *store, ign_generation *g, uint64_t bytes)
{
    uint64_t had = atomic_load_explicit(&g->control_bytes, memory_order_relaxed);
#ifdef IGN_MUTANT_CUT_UNSEEN
    had = 0;
#endif
    if (bytes < had) {
        pthread_mutex_lock(&store->mutex);
        atomic_store_explicit(&g->lost, true, memory_order_seq_cst);
        store->lost_generation = g->number > store->lost_generation ? g->number : store->lost_generation;
        pthread_mutex_unlock(&store->mutex);
        return true;
    }
    if (bytes > had)
        atomic_store_explicit(&g->control_bytes, bytes, memory_order_relaxed);
    return false;
}

static bool was_cut(ign_store *store, ign_generation *g)
{
    uint64_t bytes = 0;
    return store->io->size(store->io, g->ctl.file, &bytes) == 0 && is_shorter(store, g, bytes);
}

/* Who opens the store looks for the name: without it nobody seems to live here, and what is written from then on is read by nobody. */
bool ign_store_has_ended(ign_store *store, ign_generation *g)
{
    bool named = true;
#ifndef IGN_MUTANT_REMOVED_UNSEEN
    if (!ign_store_sealed(g) && (store->io->named(store->io, g->ctl.file, &named) != 0 || named))
        return false;
#endif
    if (!named)
        ign_store_seal(store, g);
    return ign_store_sealed(g);
}

/* The state is looked at next, and is there. */
static int lock(ign_store *store, ign_generation *g, bool at_once)
{
    int rc = acquire(store, g, at_once);
    if (rc != IGN_OK)
        return rc;
    IGN_STEP(store->io);
    if (ign_store_sealed(g))
        rc = IGN_E_STALE;
    g->at_once = at_once;
    if (rc == IGN_OK && at_once && (atomic_load_explicit(&g->ctl.head->ready, memory_order_acquire) == 0 || !ign_store_is_whole(g)))
        rc = IGN_E_BUSY;
    if (rc == IGN_OK)
        rc = ign_store_make_ready(store, &g->ctl);
    if (rc == IGN_OK)
        rc = ign_store_heal(store, g);
    if (rc != IGN_OK && ign_store_sealed(g))
        rc = IGN_E_STALE;
    if (rc != IGN_OK)
        ign_store_unlock(store, g);
    return rc;
}

int ign_store_lock(ign_store *store, ign_generation *g, bool at_once)
{
    if (was_cut(store, g) || ign_store_has_ended(store, g))
        return IGN_E_STALE;
    return lock(store, g, at_once);
}

int ign_store_lock_to_write(ign_store *store, ign_generation *g, bool at_once)
{
    ign_store_io *io = store->io;
    uint64_t bytes;
    if (io->leads_to != NULL && g->identity.inode != 0 && io->leads_to(io, g->name, &g->identity, &bytes) && !ign_store_sealed(g))
        return is_shorter(store, g, bytes) ? IGN_E_STALE : lock(store, g, at_once);
    int rc = ign_store_error(io->same_place(io));
    return rc != IGN_OK ? rc : ign_store_lock(store, g, at_once);
}

void ign_store_unlock(ign_store *store, ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    uint32_t mine = g->word;
    IGN_STEP(store->io);
    atomic_compare_exchange_strong_explicit(&head->lock, &mine, 0, memory_order_seq_cst, memory_order_relaxed);
    if (atomic_load_explicit(&head->lock_waiting, memory_order_seq_cst) != 0 &&
        atomic_exchange_explicit(&head->lock_waiting, 0, memory_order_seq_cst) != 0)
        store->io->wake(store->io, &head->lock);
}
