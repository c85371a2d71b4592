/* What the generations before this one left: the room that they kept, segments that nobody needs any more, and files of theirs.
 */
#include "ignis_store_parts.h"

enum { LEAST_SPARE = 8192 };

typedef struct sweep {
    ign_store *store;
    uint64_t generation;
} sweep;

static void sweep_room(void *arg, const char *name)
{
    sweep *s = arg;
    uint64_t a, b;
    if ((ign_store_parse_name(name, "tmp-ahead", &a, &b) || ign_store_parse_name(name, "tmp-spare", &a, &b)) && a < s->generation)
        s->store->io->remove(s->store->io, name);
}

/* The room of older generations that nobody needs any more: what was kept ahead, and the state of one in which nobody lives. That is
 * as large as the one that is to be made. */
void ign_before_give_back(ign_store *store, ign_ctl *sealed, uint64_t generation)
{
    ign_store_io *io = store->io;
    bool living = true;
    io->list(io, sweep_room, &(sweep){.store = store, .generation = generation});
    if (sealed != NULL && io->locked(io, sealed->file, 0, IGN_STORE_SLOTS, &living) == 0 && !living)
        ign_ctl_give_back(sealed);
}

/* Whoever makes a generation holds a lock in its control file. One without a lock is of a maker who died before it had its name: with its log some 2 MiB,
 * for each that died. Where the file has another name, it had got it meanwhile, and its log is needed; else it never gets one. */
static void remove_unborn(void *arg, const char *name)
{
    ign_store_io *io = ((sweep *)arg)->store->io;
    uint64_t generation, instance;
    int file;
    if (!ign_store_parse_name(name, "tmp-control", &generation, &instance) || io->open(io, name, false, &file) != 0)
        return;
    bool held = true, named = true;
    if (io->locked(io, file, 0, IGN_STORE_SLOTS, &held) == 0 && !held && io->remove(io, name) == 0 && io->named(io, file, &named) == 0 && !named) {
        char log[IGN_STORE_NAME_MAX];
        ign_store_file_name(log, "tmp-log", generation, instance);
        io->remove(io, log);
    }
    io->close(io, file);
}

void ign_before_remove_unborn(ign_store *store)
{
#ifndef IGN_MUTANT_UNBORN_STAY
    store->io->list(store->io, remove_unborn, &(sweep){.store = store});
#endif
}

/* The room of one checkpoint, before anything else takes it: without a checkpoint no segment goes. That of the older one, if need be. Where there is
 * not even that much, messages can still be taken out. */
int ign_before_keep_spare(ign_store *store, ign_generation *made, bool needs_room)
{
    uint64_t bytes = (made->ctl.root->used + LEAST_SPARE) / IGN_LOG_SECTOR * IGN_LOG_SECTOR;
    int rc = ign_store_keep_spare(store, made, bytes);
    if (rc == IGN_E_NO_ROOM && needs_room && ign_store_drop_older(store) == IGN_OK)
        rc = ign_store_keep_spare(store, made, bytes);
    return rc == IGN_E_NO_ROOM && needs_room ? IGN_OK : rc;
}

/* Segments that were begun, but not far enough to hold an entry. What has anything behind a header that cannot
 * be read stays, should the checkpoint say that nothing lives there. */
void ign_before_remove_strays(ign_store *store, const ign_chain *chain)
{
    ign_store_io *io = store->io;
    for (uint64_t i = 0; i < chain->stray_count; i++) {
        char name[IGN_STORE_NAME_MAX];
        ign_segment_name(name, chain->strays[i].generation, chain->strays[i].number);
        if (ign_chain_is_blank(store, name, IGN_LOG_SECTOR, UINT64_MAX))
            io->remove(io, name);
    }
}

/* The segments that it took the place of. Its own has its name on the disk. */
void ign_before_remove_replaced(ign_store *store, const ign_chain *chain, uint64_t begin)
{
    for (uint64_t i = 0; i < chain->count; i++) {
        char name[IGN_STORE_NAME_MAX];
        ign_segment_name(name, chain->segments[i].info.generation, chain->segments[i].info.number);
        if (chain->segments[i].info.base >= begin)
            store->io->remove(store->io, name);
    }
}

static bool is_temporary(const char *name, uint64_t *generation)
{
    uint64_t b;
    return ign_store_parse_name(name, "tmp-control", generation, &b) || ign_store_parse_name(name, "tmp-log", generation, &b) ||
           ign_store_parse_name(name, "tmp-ahead", generation, &b) || ign_store_parse_name(name, "tmp-spare", generation, &b) ||
           ign_store_parse_name(name, "tmp-checkpoint", generation, &b);
}

static void sweep_temporary(void *arg, const char *name)
{
    const sweep *s = arg;
    uint64_t generation;
    if (is_temporary(name, &generation) && generation < s->generation)
        s->store->io->remove(s->store->io, name);
}

static void sweep_control(void *arg, const char *name)
{
    const sweep *s = arg;
    uint64_t generation, b;
    if (ign_store_parse_name(name, "control", &generation, &b) && generation < s->generation)
        s->store->io->remove(s->store->io, name);
}

#ifdef IGN_MUTANT_NAME_GIVEN_AGAIN
static void sweep_any(void *arg, const char *name)
{
    sweep_control(arg, name);
    sweep_temporary(arg, name);
}
#endif

/* What older generations left. A process that is still in one keeps its mapping; it looks for the newest name.
 *
 * The name of an older control file is free behind this, and must not be given again: who looked for the newest while it was that would take
 * a late one for it. Who makes a generation and was away meanwhile could do so as long as his file has its temporary name. So those go first, all of
 * them. One that is made later does not get that far, see `rebuild`. */
void ign_before_sweep(ign_store *store, uint64_t generation)
{
    sweep s = {.store = store, .generation = generation};
#ifdef IGN_MUTANT_NAME_GIVEN_AGAIN
    store->io->list(store->io, sweep_any, &s);
#else
    if (store->io->list(store->io, sweep_temporary, &s) == 0)
        store->io->list(store->io, sweep_control, &s);
#endif
}
