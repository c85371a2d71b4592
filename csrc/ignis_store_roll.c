/* From one segment to the next, and the one that is laid out ahead.
 *
 * A segment that is laid out has its size and room on the disk, and a name that nobody takes for a segment's; the roll links it to
 * its own. It is laid out by whoever maintains the store, or by a load. A load goes on only with one laid out, but for the
 * first eighth of a segment, and begins the next segment only when yet another could be laid out. So a disk that is full
 * refuses loads while there is a segment for the calls that give room back.
 */
#include "ignis_store_parts.h"

#include <errno.h>

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

/* What is laid out gets its name: 0, an errno; ENOENT: there is none. It is taken first: no file becomes two segments. */
static int take_ahead(ign_store *store, ign_generation *g, const char *name)
{
    ign_store_io *io = store->io;
    char laid_out[IGN_STORE_NAME_MAX];
    uint64_t drawn = atomic_exchange_explicit(&g->ctl.head->ahead, 0, memory_order_seq_cst);
    if (drawn == 0)
        return ENOENT;
    IGN_STEP(io);
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
    uint64_t end = g->ctl.root->applied;
    int rc = ign_store_flush_to(store, g, end);
    if (rc != IGN_OK)
        return rc;
    made.generation = head->generation;
    made.base = end;
    made.size = size + IGN_LOG_SECTOR > store->options.segment_bytes ? size + IGN_LOG_SECTOR : store->options.segment_bytes;
    made.salt = io->random(io);
    char name[IGN_STORE_NAME_MAX];
    uint8_t sector[IGN_LOG_SECTOR];
    int file;
    /* No number is used twice, though a roll fails or its writer dies: somebody may have the file open. And once there may be
     * a file that begins here, the log does not go on in the one before: see above. */
    made.number = atomic_fetch_add_explicit(&head->next_number, 1, memory_order_relaxed);
    IGN_STEP(io);
    ign_segment_name(name, made.generation, made.number);
    rc = take_ahead(store, g, name);
    if (rc == ENOENT)
        rc = io->open(io, name, true, &file);
    else if (rc == 0)
        rc = io->open(io, name, false, &file);
    if (rc != 0)
        return ign_store_error(rc);
    ign_segment_put_header(sector, &made);
    rc = io->allocate(io, file, made.size);
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
        return IGN_E_NO_ROOM;
    IGN_STEP(io);
    ign_store_tell_segment(g);
    return IGN_OK;
}

/* -- ahead --------------------------------------------------------------------------------------------------------------- */

bool ign_store_has_ahead(const ign_generation *g)
{
    return atomic_load_explicit(&g->ctl.head->ahead, memory_order_seq_cst) != 0;
}

bool ign_store_needs_ahead(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    return g->ctl.root->applied + size > last->base + last->size / 8;
}

/* The second number of its name is drawn. */
int ign_store_lay_out(ign_store *store, const ign_generation *g, const char *kind, uint64_t bytes, uint64_t *drawn)
{
    ign_store_io *io = store->io;
    char name[IGN_STORE_NAME_MAX];
    int file;
    *drawn = io->random(io) | 1;
    ign_store_file_name(name, kind, g->ctl.head->generation, *drawn);
    int rc = io->open(io, name, true, &file);
    if (rc != 0)
        return ign_store_error(rc);
    rc = io->allocate(io, file, bytes);
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

int ign_store_lay_ahead(ign_store *store, ign_generation *g)
{
    uint64_t drawn, none = 0;
    if (ign_store_has_ahead(g))
        return IGN_EMPTY;
    int rc = ign_store_lay_out(store, g, "tmp-ahead", store->options.segment_bytes, &drawn);
    if (rc == IGN_OK && !atomic_compare_exchange_strong_explicit(&g->ctl.head->ahead, &none, drawn, memory_order_seq_cst, memory_order_seq_cst))
        ign_store_give(store, g, "tmp-ahead", drawn); /* somebody was quicker */
    return rc;
}

int ign_store_make_way(ign_store *store, ign_generation *g, bool rolls, uint64_t *another)
{
    uint64_t drawn = 0;
    int rc = ign_store_lay_ahead(store, g);
    if (rc >= 0)
        rc = rolls ? ign_store_lay_out(store, g, "tmp-ahead", store->options.segment_bytes, &drawn) : IGN_OK;
    *another = rc == IGN_OK ? drawn : 0;
    return rc;
}

void ign_store_set_ahead(ign_store *store, ign_generation *g, uint64_t drawn)
{
    uint64_t none = 0;
    if (drawn != 0 && !atomic_compare_exchange_strong_explicit(&g->ctl.head->ahead, &none, drawn, memory_order_seq_cst, memory_order_seq_cst))
        ign_store_give(store, g, "tmp-ahead", drawn);
}
