/* Begins the next segment. A segment that is laid out has its size, its room on the disk, and a name that no segment has; the roll links it to
 * the segment's name.
 */
#include "ignis_store_parts.h"

#include <errno.h>

enum { UNIT = IGN_AHEAD_UNIT };

/* Whether the log must go on in another segment. The last one is full, or one was begun behind it that the state does not know. The header of
 * that one would take over the log from where it begins, so another one must take over from it. */
bool ign_store_must_roll(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
#ifdef IGN_MUTANT_STRAY_SEGMENT
    return size > ign_segment_end(last) - g->ctl.root->applied;
#endif
    return size > ign_segment_end(last) - g->ctl.root->applied ||
           atomic_load_explicit(&g->ctl.head->next_number, memory_order_relaxed) != last->number + 1;
}

/* Gives what is laid out its name. 0 or an errno; ENOENT: nothing is laid out. It is taken out first, so that no file becomes two segments.
 * *bytes: its size. */
static int take(ign_store *store, ign_generation *g, _Atomic uint64_t *from, const char *name, uint64_t *bytes)
{
    ign_store_io *io = store->io;
    char laid_out[IGN_STORE_NAME_MAX];
    uint64_t drawn = atomic_exchange_explicit(from, 0, memory_order_seq_cst);
    if (drawn == 0)
        return ENOENT;
    IGN_STEP(io);
    *bytes = ign_ahead_bytes(drawn);
    ign_store_file_name(laid_out, "tmp-ahead", g->ctl.head->generation, drawn);
    int rc = io->link_new(io, laid_out, name);
    io->remove(io, laid_out);
    return rc;
}

/* Begins another segment, in the open transaction. It flushes the one before it: only the newest is ever not flushed. */
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
    /* No number is used twice, even when a roll fails or its writer dies: a process may have the file open. And once there may be
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
