/* Sleeping until something is loaded, and waking who sleeps.
 *
 * `wake[i]` is the condition: a number that rises behind each load. Who waits for one magazine sleeps on `wake_waiting[i]`, which says
 * in its two lowest bits who sleeps, and above them counts how often sleepers were told. The order is that of ignis_wait.h:
 *
 *   sleeper                                            loader
 *     set IGN_STORE_SLEEPS in the word, seq_cst          raise the number, seq_cst
 *     look at the number, seq_cst                        look at the word, seq_cst
 *     if it is what it was: sleep while the word is      if somebody sleeps: clear the bit and count, in one step
 *     what it was when the bit was set                   wake up all sleepers
 *
 * Whoever's bit was cleared finds another word, and does not sleep. The count tells a word whose bit was cleared and set again, by
 * another, from the one that the sleeper looked at the number with.
 *
 * A loader may tell the sleepers before it writes (`ign_store_forewarn`): it takes as long until they run as until the load is made.
 * Who is told and finds the number as it was looks for a little while instead of sleeping again. The bit is cleared, so that the load
 * itself has nobody to wake; should it take longer, the sleeper sets it again, and is woken as if there had been no warning.
 *
 * An event loop does not sleep here: the kernel waits on the word for it and raises a descriptor (ignis_watch.h).
 */
#include "ignis_store_parts.h"

#include "ignis_wait.h"

#include <sched.h>

/* So long it is before another look at a generation that cannot be followed. */
#define UNFOLLOWED_NS 10000000u
/* So long a sleeper that was told looks for what it was told of. */
#define FOREWARNED_NS 100000u

/* What a call without an error returns behind a landing. */
#define SEEN_NEXT(rc) ((void)(rc), seen + 1)
#define SEEN_UNKNOWN(rc) ((void)(rc), unknown)
#define NOTHING(rc) ((void)(rc))
#define NOBODY(rc) ((void)(rc), false)

enum { TOLD = 4, LOOKS = 32 }; /* the count's lowest bit; looks between two at the clock */

uint32_t ign_store_tell(ign_store *store, _Atomic uint32_t *waiting, uint32_t whom)
{
    uint32_t had = atomic_load_explicit(waiting, memory_order_seq_cst);
    while ((had & whom) != 0)
        if (atomic_compare_exchange_weak_explicit(waiting, &had, (had & ~whom) + TOLD, memory_order_seq_cst, memory_order_seq_cst)) {
            if ((had & whom & IGN_STORE_SLEEPS) != 0)
                store->io->wake(store->io, waiting);
            return had & whom;
        }
    return 0;
}

/* Looks until the number is another or the time is over; returns the number. Another process of the same core may be the loader: it
 * is let go first. */
static uint32_t look(ign_store *store, ign_generation *g, const _Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    uint32_t now = atomic_load_explicit(word, memory_order_seq_cst);
    if (store->io->step != NULL) /* simulated processes are coroutines of one thread */
        return now;
    while (now == seen && !ign_store_sealed(g) && store->io->now_ns(store->io) < until_ns) {
        for (int i = 0; i < LOOKS && now == seen; i++) {
            ign_cpu_relax();
            now = atomic_load_explicit(word, memory_order_seq_cst);
        }
        if (now == seen)
            sched_yield();
    }
    return now;
}

/* Until something was loaded, a generation ended, the time is over, or the sleep was ended by something else, as a signal. */
static uint32_t sleep_until(ign_store *store, ign_generation *g, uint32_t i, uint32_t seen, uint64_t until_ns)
{
    ign_store_io *io = store->io;
    _Atomic uint32_t *word = &g->ctl.head->wake[i], *waiting = &g->ctl.head->wake_waiting[i];
    for (;;) {
        uint32_t announced = atomic_fetch_or_explicit(waiting, IGN_STORE_SLEEPS, memory_order_seq_cst) | IGN_STORE_SLEEPS;
        uint64_t now_ns = io->now_ns(io);
        if (atomic_load_explicit(word, memory_order_seq_cst) != seen || ign_store_sealed(g) || now_ns >= until_ns)
            break;
        IGN_STEP(io);
        io->wait(io, waiting, announced, until_ns - now_ns);
        if (atomic_load_explicit(waiting, memory_order_seq_cst) / TOLD == announced / TOLD)
            break; /* nobody told us */
        now_ns = io->now_ns(io);
        if (look(store, g, word, seen, now_ns + FOREWARNED_NS < until_ns ? now_ns + FOREWARNED_NS : until_ns) != seen)
            break;
    }
    return atomic_load_explicit(word, memory_order_seq_cst);
}

uint32_t ign_store_await(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns, uint64_t spin_ns)
{
    IGN_LANDING(store, SEEN_NEXT);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return seen + 1;
    uint32_t i = magazine % IGN_STORE_WAKES;
    const _Atomic uint32_t *word = &g->ctl.head->wake[i];
    uint32_t now = atomic_load_explicit(word, memory_order_seq_cst);
    if (timeout_ns > 0 && now == seen) {
        uint64_t began = store->io->now_ns(store->io), until_ns = began + timeout_ns;
        if (spin_ns > 0)
            now = look(store, g, word, seen, spin_ns < timeout_ns ? began + spin_ns : until_ns);
        if (now == seen)
            now = sleep_until(store, g, i, seen, until_ns);
        if (now == seen && ign_store_sealed(g))
            now = seen + 1; /* who calls next follows to another generation */
    }
    ign_store_leave(store, g);
    return now;
}

/* The order is that of `sleep_until`: announced, looked, and then the kernel compares the word before it waits. */
uint32_t ign_store_watch(ign_store *store, uint32_t magazine, uint32_t seen, ign_watch *watch, int *armed)
{
    *armed = IGN_OK;
    IGN_LANDING(store, SEEN_NEXT);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return seen + 1;
    uint32_t i = magazine % IGN_STORE_WAKES;
    const _Atomic uint32_t *word = &g->ctl.head->wake[i];
    _Atomic uint32_t *waiting = &g->ctl.head->wake_waiting[i];
    uint32_t now = atomic_load_explicit(word, memory_order_seq_cst);
    if (now == seen) {
        uint32_t announced = atomic_fetch_or_explicit(waiting, IGN_STORE_SLEEPS, memory_order_seq_cst) | IGN_STORE_SLEEPS;
        now = atomic_load_explicit(word, memory_order_seq_cst);
        if (now == seen && ign_store_sealed(g))
            now = seen + 1;
        if (now == seen)
            *armed = ign_watch_arm(watch, waiting, announced);
    }
    ign_store_leave(store, g);
    return now;
}

uint32_t ign_store_wait(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns)
{
    return ign_store_await(store, magazine, seen, timeout_ns, 0);
}

void ign_store_wake(ign_store *store, uint32_t magazine)
{
    IGN_LANDING(store, NOTHING);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return;
    ign_ctl_head *head = g->ctl.head;
    uint32_t i = magazine % IGN_STORE_WAKES;
    atomic_fetch_add_explicit(&head->wake[i], 1, memory_order_seq_cst);
    IGN_STEP(store->io);
    if ((ign_store_tell(store, &head->wake_waiting[i], IGN_STORE_SLEEPS | IGN_STORE_LISTENS) & IGN_STORE_LISTENS) != 0)
        ign_store_ring_head(store, head);
    ign_store_leave(store, g);
}

bool ign_store_awaited(ign_store *store, uint32_t magazine)
{
    IGN_LANDING(store, NOBODY);
    ign_generation *g;
    if (ign_store_enter(store, &g) != IGN_OK)
        return false;
    uint32_t word = atomic_load_explicit(&g->ctl.head->wake_waiting[magazine % IGN_STORE_WAKES], memory_order_seq_cst);
    ign_store_leave(store, g);
    return (word & (IGN_STORE_SLEEPS | IGN_STORE_LISTENS)) != 0;
}

void ign_store_forewarn(ign_store *store, uint32_t magazine)
{
    IGN_LANDING(store, NOTHING);
    ign_generation *g;
    if (ign_store_enter(store, &g) != IGN_OK)
        return;
    ign_store_tell(store, &g->ctl.head->wake_waiting[magazine % IGN_STORE_WAKES], IGN_STORE_SLEEPS);
    ign_store_leave(store, g);
}

/* Who waits for many magazines reads the bell, announces each and looks at its number, and sleeps while the bell is what it was.
 * A loader raises the number, then sees the announcement, or its number is seen: the order is that of ignis_wait.h, twice. */

uint32_t ign_store_announce(ign_store *store, uint32_t magazine, uint32_t unknown)
{
    IGN_LANDING(store, SEEN_UNKNOWN);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return unknown;
    ign_ctl_head *head = g->ctl.head;
    uint32_t i = magazine % IGN_STORE_WAKES;
    atomic_fetch_or_explicit(&head->wake_waiting[i], IGN_STORE_LISTENS, memory_order_seq_cst);
    uint32_t now = ign_store_sealed(g) ? unknown : atomic_load_explicit(&head->wake[i], memory_order_seq_cst);
    ign_store_leave(store, g);
    return now;
}

uint32_t ign_store_listen(ign_store *store, uint32_t seen, uint64_t timeout_ns)
{
    IGN_LANDING(store, SEEN_NEXT);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return seen + 1;
    ign_ctl_head *head = g->ctl.head;
    if (timeout_ns > 0 && atomic_load_explicit(&head->bell, memory_order_seq_cst) == seen && !ign_store_sealed(g)) {
        atomic_store_explicit(&head->bell_waiting, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&head->bell, memory_order_seq_cst) == seen && !ign_store_sealed(g))
            store->io->wait(store->io, &head->bell, seen, timeout_ns);
    }
    if (ign_store_sealed(g)) {
        /* Who only listens makes no call that would follow to the next generation, where the bell is another. */
        uint64_t cut;
        if (ign_store_follow(store, g, &cut) != IGN_OK && timeout_ns > 0)
            store->io->wait(store->io, &head->bell, seen, timeout_ns < UNFOLLOWED_NS ? timeout_ns : UNFOLLOWED_NS);
        ign_store_leave(store, g);
        return seen + 1;
    }
    uint32_t now = atomic_load_explicit(&head->bell, memory_order_seq_cst);
    ign_store_leave(store, g);
    return now;
}

void ign_store_ring(ign_store *store)
{
    IGN_LANDING(store, NOTHING);
    ign_generation *g;
    if (ign_store_enter_living(store, &g) != IGN_OK)
        return;
    ign_store_ring_head(store, g->ctl.head);
    ign_store_leave(store, g);
}
