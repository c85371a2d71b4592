/* Which generation this process is in: joining the newest one, if somebody lives in it, or making the next.
 *
 * Who lives is told by locks on bytes of the control file, one byte for each open store. The kernel drops them when the
 * last descriptor goes, so no death is missed, and a restart of the machine, a remount or a copy of the directory has
 * none. A stale control file can look joined for no reason but a lock that somebody took in it, and nobody takes one
 * without having seen another's, or having made the file.
 */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 64, ROOM_ROUNDS = 8 };
static const uint64_t look_ns = 5000000; /* so often who waits for another thread looks whether it has found one */

bool ign_store_sealed(const ign_generation *generation)
{
    return atomic_load_explicit(&generation->lost, memory_order_seq_cst) ||
           atomic_load_explicit(&generation->ctl.head->sealed, memory_order_seq_cst) != 0;
}

void ign_store_ring_head(ign_store *store, ign_ctl_head *head)
{
    atomic_fetch_add_explicit(&head->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&head->bell_waiting, memory_order_seq_cst) != 0 &&
        atomic_exchange_explicit(&head->bell_waiting, 0, memory_order_seq_cst) != 0)
        store->io->wake(store->io, &head->bell);
}

static void wake_everybody(ign_store *store, ign_ctl_head *head)
{
    store->io->wake(store->io, &head->lock);
    atomic_fetch_add_explicit(&head->flush_turn, 1, memory_order_seq_cst);
    store->io->wake(store->io, &head->flush_turn);
    for (unsigned i = 0; i < IGN_STORE_WAKES; i++)
        if (atomic_load_explicit(&head->wake_waiting[i], memory_order_seq_cst) != 0) {
            atomic_fetch_add_explicit(&head->wake[i], 1, memory_order_seq_cst);
            ign_store_tell(store, &head->wake_waiting[i], IGN_STORE_SLEEPS | IGN_STORE_LISTENS);
        }
    ign_store_ring_head(store, head);
}

void ign_store_seal(ign_store *store, ign_generation *generation)
{
    atomic_store_explicit(&generation->ctl.head->sealed, 1, memory_order_seq_cst);
    wake_everybody(store, generation->ctl.head);
}

bool ign_store_alive(ign_store *store, ign_generation *generation, uint32_t word)
{
    uint32_t slot = (word & 0xfffu) - 1u, incarnation = word >> 12;
    ign_ctl_head *head = generation->ctl.head;
    if (slot >= IGN_STORE_SLOTS ||
        (atomic_load_explicit(&head->incarnation[slot], memory_order_acquire) & 0xfffffu) != incarnation)
        return false; /* somebody else has the slot now */
    if (slot == generation->slot)
        return true;
    bool held = true;
    return store->io->locked(store->io, generation->ctl.file, slot, 1, &held) != 0 || held;
}

static int take_slot(ign_store *store, ign_generation *g)
{
    ign_store_io *io = store->io;
    for (uint32_t slot = 0; slot < IGN_STORE_SLOTS; slot++) {
        int rc = io->lock(io, g->ctl.file, slot);
        if (rc == EAGAIN)
            continue;
        if (rc != 0)
            return ign_store_error(rc);
        uint32_t turn = (atomic_load_explicit(&g->ctl.head->incarnation[slot], memory_order_relaxed) + 1) & 0xfffffu;
        turn = turn == 0 ? 1 : turn;
        atomic_store_explicit(&g->ctl.head->incarnation[slot], turn, memory_order_release);
        g->slot = slot;
        g->word = (slot + 1) | turn << 12;
        return IGN_OK;
    }
    return IGN_E_BUSY;
}

typedef struct newest {
    uint64_t control;
} newest;

static void look_for_control(void *arg, const char *name)
{
    newest *n = arg;
    uint64_t a, b;
    if (ign_store_parse_name(name, "control", &a, &b) && a > n->control)
        n->control = a;
}

static void close_generation(ign_generation *g)
{
    if (g == NULL)
        return;
    ign_ctl_close(&g->ctl);
    free(g->stage);
    free(g);
}

/* Joins the newest generation, or makes the next. */
static int find_generation(ign_store *store, ign_generation **found)
{
    ign_store_io *io = store->io;
    int rc = IGN_E_STALE;
    for (int round = 0; round < ROUNDS && rc == IGN_E_STALE; round++) {
        ign_generation *g = calloc(1, sizeof *g);
        if (g == NULL)
            return IGN_E_NOMEM;
        g->ctl.file = -1;
        newest n = {0};
        rc = ign_store_error(io->list(io, look_for_control, &n));
        bool there = false, living = false;
        if (rc == IGN_OK && n.control != 0) {
            char name[IGN_STORE_NAME_MAX];
            ign_store_file_name(name, "control", n.control, 0);
            rc = ign_ctl_open(&g->ctl, io, name, store->options.control_reserve);
            there = rc == IGN_OK;
            if (rc == ENOENT)
                rc = IGN_E_STALE;
            else if (rc == IGN_E_MAGIC || rc == IGN_E_SIZE || rc == IGN_E_TRUNCATED)
                rc = IGN_OK; /* nobody lives in what is no control file */
            else
                rc = ign_store_error(rc);
        }
        if (rc == IGN_OK && there)
            rc = ign_store_error(io->locked(io, g->ctl.file, 0, IGN_STORE_SLOTS, &living));
        if (rc == IGN_OK && living && !g->ctl.cut && n.control > store->lost_generation && !ign_store_sealed(g))
            rc = take_slot(store, g);
        else if (rc == IGN_OK) {
            ign_generation *made = calloc(1, sizeof *made);
            rc = made == NULL ? IGN_E_NOMEM : IGN_OK;
            if (rc == IGN_OK && there)
                ign_store_seal(store, g);
            if (rc == IGN_OK)
                rc = ign_store_rebuild(store, n.control, there ? &g->ctl : NULL, made);
            close_generation(g);
            g = made;
            if (rc != IGN_OK && made != NULL) {
                free(made);
                g = NULL;
            }
        }
        if (rc == IGN_OK) {
            g->number = g->ctl.head->generation;
            ign_store_file_name(g->name, "control", g->number, 0);
            if (io->identify == NULL || io->identify(io, g->ctl.file, &g->identity) != 0)
                g->identity = (ign_store_identity){0};
            *found = g;
            return IGN_OK;
        }
        close_generation(g);
    }
    return rc == IGN_E_STALE ? IGN_E_BUSY : rc;
}

/* -- for each call --------------------------------------------------------------------------------------------------- */

int ign_store_enter(ign_store *store, ign_generation **generation)
{
    pthread_mutex_lock(&store->mutex);
    *generation = store->now;
    if (*generation != NULL)
        (*generation)->users++;
    pthread_mutex_unlock(&store->mutex);
    if (*generation != NULL)
        ign_landing_entered(*generation);
    return *generation == NULL ? IGN_E_CLOSED : IGN_OK;
}

void ign_store_leave(ign_store *store, ign_generation *generation)
{
    ign_landing_left(generation);
    pthread_mutex_lock(&store->mutex);
    bool last = --generation->users == 0;
    pthread_mutex_unlock(&store->mutex);
    int kept = errno; /* it says more about the call that ends here */
    if (last)
        close_generation(generation);
    errno = kept;
}

static bool is_current(ign_store *store, const ign_generation *g)
{
    pthread_mutex_lock(&store->mutex);
    bool yes = store->now == g;
    pthread_mutex_unlock(&store->mutex);
    return yes;
}

void ign_store_end_search(ign_store *store)
{
    ign_landing_searches(false);
    atomic_store_explicit(&store->searching, 0, memory_order_seq_cst);
    store->io->wake(store->io, &store->searching);
}

/* One thread of a process looks for the next generation, or makes it, and the others wait: each would write again all that is not flushed.
 * IGN_OK: it is this one's; IGN_EMPTY: it is found; IGN_E_BUSY: not in time. */
static int begin_search(ign_store *store, const ign_generation *old)
{
    ign_store_io *io = store->io;
    uint64_t began = io->now_ns(io);
    while (is_current(store, old)) {
        uint32_t nobody = 0;
#ifdef IGN_MUTANT_MADE_BY_EACH
        return IGN_OK;
#endif
        if (atomic_compare_exchange_strong_explicit(&store->searching, &nobody, 1, memory_order_seq_cst, memory_order_seq_cst)) {
            ign_landing_searches(true);
            if (is_current(store, old))
                return IGN_OK;
            ign_store_end_search(store);
        } else if (io->now_ns(io) - began >= store->options.busy_after_ns)
            return IGN_E_BUSY;
        else
            io->wait(io, &store->searching, 1, look_ns);
    }
    return IGN_EMPTY;
}

int ign_store_follow(ign_store *store, ign_generation *old, uint64_t *cut)
{
    ign_generation *g = NULL, *replaced = NULL;
    uint64_t next = old->number + 1;
    int rc = begin_search(store, old);
    bool ours = rc == IGN_OK;
    if (ours)
        rc = find_generation(store, &g);
    if (rc < 0) {
        if (ours)
            ign_store_end_search(store);
        return rc;
    }
    pthread_mutex_lock(&store->mutex);
    if (store->now == old && g != NULL) {
        replaced = store->now;
        store->now = g;
        g->users++;
        g = NULL;
    }
    pthread_mutex_unlock(&store->mutex);
    if (ours)
        ign_store_end_search(store);
    if (replaced != NULL)
        ign_store_leave(store, replaced);
    close_generation(g); /* another thread was quicker */
    /* What it found is on the disk, but only found there once its log has its name. */
    rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    const ign_ctl_cut *known = &g->ctl.head->cuts[next % IGN_CTL_CUTS];
    *cut = known->generation == next ? known->position : UINT64_MAX;
    rc = ign_store_make_ready(store, &g->ctl);
    ign_store_leave(store, g);
    return rc;
}

int ign_store_enter_living(ign_store *store, ign_generation **generation)
{
    int rc = ign_store_enter(store, generation);
    if (rc != IGN_OK || !atomic_load_explicit(&(*generation)->lost, memory_order_seq_cst))
        return rc;
    uint64_t cut;
    rc = ign_store_follow(store, *generation, &cut);
    ign_store_leave(store, *generation);
    return rc != IGN_OK ? rc : ign_store_enter(store, generation);
}

/* -- opening and closing --------------------------------------------------------------------------------------------- */

static uint64_t choose(uint64_t value, uint64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static int find_first(ign_store *store, ign_generation **g)
{
    IGN_LANDING(store, );
    return find_generation(store, g);
}

static bool is_short_of_room(ign_store *store)
{
    ign_generation *g;
    if (ign_store_enter(store, &g) != IGN_OK)
        return false;
    bool yes = atomic_load_explicit(&g->ctl.head->short_of_room, memory_order_seq_cst) != 0;
    ign_store_leave(store, g);
    return yes;
}

/* Each opening takes some room. On a disk that has none, whoever comes gives back what he can before anything else: he may not live long enough
 * for maintenance. A round may go on in a newer generation, and leaves the one that was found. */
static void make_room(ign_store *store)
{
#ifdef IGN_MUTANT_NO_ROOM_MADE
    return;
#endif
    for (int round = 0; round < ROOM_ROUNDS && is_short_of_room(store); round++)
        if (ign_store_maintain(store) != IGN_OK)
            break;
}

int ign_store_open(ign_store **store, ign_store_io *io, const ign_store_options *options)
{
    ign_store *s = calloc(1, sizeof *s);
    if (s == NULL)
        return IGN_E_NOMEM;
    s->io = io;
    s->options = (ign_store_options){
        .segment_bytes = choose(options->segment_bytes, 16ull << 20),
        .first_segment_bytes = choose(options->first_segment_bytes, 1ull << 20),
        .control_reserve = choose(options->control_reserve, 64ull << 30),
        .arena_bytes = choose(options->arena_bytes, 768ull << 10),
        .undo_capacity = choose(options->undo_capacity, 8192),
        .stopped_after_ns = choose(options->stopped_after_ns, 2000000000ull),
        .piece_bytes = choose(options->piece_bytes, 4ull << 20),
        .busy_after_ns = choose(options->busy_after_ns, 30000000000ull),
        .checkpoint_bytes = choose(options->checkpoint_bytes, 64ull << 20),
        .repack_bytes = choose(options->repack_bytes, 768ull << 10),
        .max_bytes = choose(options->max_bytes, UINT64_MAX),
        .pass_over = options->pass_over,
    };
    if (s->options.first_segment_bytes > s->options.segment_bytes)
        s->options.first_segment_bytes = s->options.segment_bytes;
    for (unsigned i = 0; i < IGN_LOG_FILES; i++)
        s->files[i].file = -1;
    ign_generation *g = NULL;
    int rc = pthread_mutex_init(&s->mutex, NULL) == 0 ? find_first(s, &g) : IGN_E_NOMEM;
    if (rc != IGN_OK) {
        if (rc == IGN_E_LOST && options->lost != NULL)
            *options->lost = s->lost;
        ign_store_close_files(s);
        free(s);
        return rc;
    }
    g->users = 1;
    s->now = g;
    if (options->pass_over && (rc = ign_store_drop_lost(s)) != IGN_OK) {
        ign_store_close(s);
        return rc;
    }
    make_room(s);
    *store = s;
    return IGN_OK;
}

/* Other threads of the parent may hold the mutex, and be anywhere: it is not asked for. A generation that one of them was about to leave
 * stays mapped. */
void ign_store_abandon(ign_store *store)
{
    if (store == NULL)
        return;
    close_generation(store->now);
    ign_store_close_files(store);
    free(store);
}

void ign_store_close(ign_store *store)
{
    if (store == NULL)
        return;
    ign_store_witness(store);
    ign_generation *g = store->now;
    store->now = NULL;
    if (g != NULL)
        ign_store_leave(store, g);
    ign_store_close_files(store);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}
