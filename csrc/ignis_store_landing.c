#include "ignis_store_parts.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

static _Thread_local ign_landing *volatile landing;
static _Thread_local volatile bool writing, searching;

void ign_landing_begin(ign_landing *here, const ign_store *store)
{
    here->outer = landing;
    if (store->io->step != NULL) /* simulated processes are coroutines of one thread, and their memory is always there */
        return;
    memset(here->entered, 0, sizeof here->entered);
    landing = here;
}

void ign_landing_end(ign_landing *here)
{
    landing = here->outer;
}

void ign_landing_leave(void)
{
    ign_landing *here = landing;
#ifdef IGN_MUTANT_NO_LANDING
    here = NULL;
#endif
    if (here != NULL)
        siglongjmp(here->here, 1);
}

static void exchange(const ign_generation *had, ign_generation *has)
{
    ign_landing *here = landing;
    for (unsigned i = 0; here != NULL && i < sizeof here->entered / sizeof here->entered[0]; i++)
        if (here->entered[i] == had) {
            here->entered[i] = has;
            return;
        }
}

void ign_landing_entered(ign_generation *generation)
{
    exchange(NULL, generation);
}

void ign_landing_left(const ign_generation *generation)
{
    exchange(generation, NULL);
}

void ign_landing_writes(bool begins)
{
    writing = begins;
}

void ign_landing_searches(bool begins)
{
    searching = begins;
}

int ign_landing_fell(ign_store *store)
{
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS); /* blocked while its handler runs, and that was left by a jump */
    pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    pthread_mutex_lock(&store->mutex);
    if (store->now != NULL) {
        atomic_store_explicit(&store->now->lost, true, memory_order_seq_cst);
        store->lost_generation = store->now->number;
    }
    pthread_mutex_unlock(&store->mutex);
    ign_landing *here = landing;
    for (unsigned i = 0; here != NULL && i < sizeof here->entered / sizeof here->entered[0]; i++)
        if (here->entered[i] != NULL)
            ign_store_leave(store, here->entered[i]);
#ifndef IGN_MUTANT_SEARCH_STAYS
    if (searching)
        ign_store_end_search(store);
#endif
    bool in_doubt = writing;
    writing = false;
    errno = EIO;
    return in_doubt ? IGN_E_IN_DOUBT : IGN_E_IO;
}
