/* Writing an entry: to the log, and from there into the state. All under the writer's lock. */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 16, LEAST_STAGE = 4096, KEPT_STAGE = 1 << 20 };

int ign_store_stage(ign_generation *g, uint64_t payload_bytes, uint8_t **payload)
{
    uint64_t bytes = ign_entry_size(payload_bytes);
    if (bytes > IGN_ENTRY_MAX)
        return IGN_E_TOO_LARGE;
    if (bytes > g->stage_bytes || g->stage_bytes > KEPT_STAGE) {
        uint64_t want = bytes < LEAST_STAGE ? LEAST_STAGE : bytes;
        uint8_t *grown = realloc(g->stage, (size_t)want);
        if (grown == NULL)
            return IGN_E_NOMEM;
        g->stage = grown;
        g->stage_bytes = want;
    }
    *payload = g->stage + IGN_ENTRY_HEADER;
    return IGN_OK;
}

/* Which segment is written, for whoever flushes without the lock: the base is set last, and read twice. */
static void tell_segment(ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    const ign_segment_info *info = &ign_state_last_segment(&g->ctl)->info;
    if (atomic_load_explicit(&head->log_base, memory_order_relaxed) == info->base &&
        atomic_load_explicit(&head->log_number, memory_order_relaxed) == info->number)
        return;
    atomic_store_explicit(&head->log_base, UINT64_MAX, memory_order_seq_cst);
    atomic_store_explicit(&head->log_number, info->number, memory_order_seq_cst);
    atomic_store_explicit(&head->log_base, info->base, memory_order_seq_cst);
}

/* The file of the segment that is written, held open by this process. */
static int last_file(ign_store *store, ign_generation *g, ign_log_file **file)
{
    const ign_segment_info *info = &ign_state_last_segment(&g->ctl)->info;
    return ign_store_error(ign_store_use_file(store, info->generation, info->number, g->ctl.head, file));
}

/* What may have been written behind the end, of an entry that was never whole, becomes zeros again. */
static int wipe(ign_store *store, ign_generation *g, uint64_t from, uint64_t to)
{
    ign_store_io *io = store->io;
    const ign_state_segment *segment = ign_state_last_segment(&g->ctl);
    uint64_t end = ign_segment_end(&segment->info);
    static const uint8_t zeros[4096];
    ign_log_file *file;
    int rc = last_file(store, g, &file);
    if (rc != IGN_OK)
        return rc;
    for (to = to < end ? to : end; rc == 0 && from < to;) {
        uint64_t part = to - from < sizeof zeros ? to - from : sizeof zeros;
        rc = io->write(io, file->file, zeros, (size_t)part, ign_segment_offset(&segment->info, from));
        from += part;
    }
    ign_store_drop_file(store, file);
    return ign_store_error(rc);
}

/* The log could not be written: what stands in the file from here on is refused, and the next call goes on in another file. */
static int give_up(ign_store *store, ign_generation *g, uint64_t position)
{
    uint64_t none = UINT64_MAX;
    bool told = atomic_compare_exchange_strong_explicit(&g->ctl.head->refused_from, &none, position, memory_order_seq_cst,
                                                        memory_order_seq_cst);
    ign_store_seal(store, g);
    return told || none <= position ? IGN_E_FAILED : IGN_E_IN_DOUBT;
}

int ign_store_heal(ign_store *store, ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    ign_root *root = g->ctl.root;
    if (atomic_load_explicit(&head->undo_count, memory_order_relaxed) == 0 &&
        atomic_load_explicit(&head->undo_lost, memory_order_relaxed) == 0 &&
        atomic_load_explicit(&head->end, memory_order_relaxed) == root->applied &&
        atomic_load_explicit(&head->written_to, memory_order_relaxed) == root->applied)
        return IGN_OK;
    if (!ign_ctl_roll_back(&g->ctl)) {
        ign_store_seal(store, g);
        return IGN_E_STALE;
    }
    ign_log_file *file;
    int rc = last_file(store, g, &file);
    if (rc != IGN_OK)
        return rc;
    ign_segment_info info = ign_state_last_segment(&g->ctl)->info;
    ign_log_reader reader;
    ign_entry entry;
    uint64_t written = atomic_load_explicit(&head->written_to, memory_order_relaxed);
    ign_log_reader_open(&reader, store->io, file->file, &info, root->applied, UINT64_MAX);
    while (root->applied < written && (rc = ign_log_next(&reader, &entry)) == IGN_OK) {
        ign_ctl_begin(&g->ctl);
        int applied = ign_state_apply(&g->ctl, &entry);
        if (applied == IGN_E_NO_ROOM) {
            ign_store_seal(store, g);
            rc = IGN_E_STALE;
            break;
        }
        ign_ctl_commit(&g->ctl, entry.next);
    }
    ign_log_reader_close(&reader);
    ign_store_drop_file(store, file);
    if (rc == IGN_E_STALE || rc == IGN_E_NOMEM)
        return rc;
    rc = wipe(store, g, root->applied, written);
    if (rc != IGN_OK)
        return give_up(store, g, root->applied) == IGN_OK ? rc : IGN_E_FAILED;
    IGN_STEP(store->io);
    tell_segment(g);
    atomic_store_explicit(&head->written_to, root->applied, memory_order_release);
    atomic_store_explicit(&head->end, root->applied, memory_order_release);
    return IGN_OK;
}

/* The segment is full, or one was begun behind it that the state does not know: its header would take over the log from
 * where it begins, so another one must take over from that. */
static bool must_roll(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
#ifdef IGN_MUTANT_STRAY_SEGMENT
    return size > ign_segment_end(last) - g->ctl.root->applied;
#endif
    return size > ign_segment_end(last) - g->ctl.root->applied ||
           atomic_load_explicit(&g->ctl.head->next_number, memory_order_relaxed) != last->number + 1;
}

/* Another segment, in the open transaction. The one before it is flushed: only the newest is ever not. */
static int roll(ign_store *store, ign_generation *g, uint64_t size)
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
     * a file that begins here, the log does not go on in the one before: see must_roll. */
    made.number = atomic_fetch_add_explicit(&head->next_number, 1, memory_order_relaxed);
    IGN_STEP(io);
    ign_segment_name(name, made.generation, made.number);
    rc = io->open(io, name, true, &file);
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
    tell_segment(g);
    return IGN_OK;
}

int ign_store_append(ign_store *store, ign_generation *g, uint8_t type, uint64_t payload_bytes, uint64_t *position)
{
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    uint64_t at = g->ctl.root->applied, size = ign_entry_size(payload_bytes);
    *position = at;
    /* A file that is laid out ahead, and room in the arena: what is in the log must not fail to be applied. */
    int rc = ign_store_error(ign_ctl_make_room(&g->ctl, 16384 + g->ctl.root->used / 4 + payload_bytes));
    if (rc != IGN_OK)
        return rc;
    ign_ctl_begin(&g->ctl);
    if (must_roll(g, size))
        rc = roll(store, g, size);
    ign_log_file *file = NULL;
    if (rc == IGN_OK)
        rc = last_file(store, g, &file);
    if (rc != IGN_OK) {
        ign_ctl_roll_back(&g->ctl);
        return rc;
    }
    const ign_segment_info info = ign_state_last_segment(&g->ctl)->info;
    ign_entry_seal(g->stage, type, (uint32_t)payload_bytes, info.salt, at, atomic_load_explicit(&head->durable, memory_order_relaxed));
    IGN_STEP(io);
    atomic_store_explicit(&head->written_to, at + size, memory_order_release);
    IGN_STEP(io);
    rc = io->write(io, file->file, g->stage, (size_t)size, ign_segment_offset(&info, at));
    ign_store_drop_file(store, file);
    if (rc != 0) {
        rc = ign_store_error(rc);
        if (wipe(store, g, at, at + size) != IGN_OK || rc != IGN_E_NO_ROOM)
            return give_up(store, g, at);
        atomic_thread_fence(memory_order_seq_cst);
        if (ign_store_sealed(g))
            return IGN_E_STALE; /* somebody may have read it before it was wiped */
        ign_ctl_roll_back(&g->ctl);
        atomic_store_explicit(&head->written_to, at, memory_order_release);
        return rc;
    }
    atomic_thread_fence(memory_order_seq_cst);
    IGN_STEP(io);
#ifndef IGN_MUTANT_NO_SEAL_CHECK
    if (ign_store_sealed(g))
        return IGN_E_STALE;
#endif
    uint8_t *payload = g->stage + IGN_ENTRY_HEADER;
    ign_entry entry = {.type = type, .position = at, .payload = payload, .payload_bytes = (uint32_t)payload_bytes, .next = at + size};
    rc = ign_state_apply(&g->ctl, &entry);
    if (g->ctl.no_room) {
        ign_store_seal(store, g); /* it is in the log: the next generation has it */
        return IGN_E_STALE;
    }
    ign_ctl_commit(&g->ctl, entry.next);
    IGN_STEP(io);
    atomic_store_explicit(&head->end, entry.next, memory_order_release);
    *position = entry.next;
    return IGN_OK;
}

int ign_store_commit(ign_store *store, uint8_t type, ign_store_build *build, void *arg, const ign_store_how *how, ign_store_mark *mark)
{
    int rc = IGN_E_STALE;
    (void)how;
    for (int i = 0; i < TRIES && rc == IGN_E_STALE; i++) {
        ign_generation *g;
        uint64_t bytes = 0, at = UINT64_MAX, cut;
        rc = ign_store_enter(store, &g);
        if (rc != IGN_OK)
            return rc;
        rc = ign_store_error(store->io->same_place(store->io));
        if (rc != IGN_OK) {
            ign_store_leave(store, g);
            return rc;
        }
        rc = ign_store_lock(store, g);
        if (rc == IGN_OK) {
            int built = build(store, g, arg, &bytes);
            if (built == IGN_OK)
                rc = ign_store_append(store, g, type, bytes, &at);
            if (rc != IGN_OK && rc != IGN_E_STALE && rc != IGN_E_FAILED && rc != IGN_E_IN_DOUBT && ign_store_sealed(g)) {
                rc = IGN_E_STALE; /* nothing was written: the files are not where a state that holds no more has them */
                at = UINT64_MAX;
            }
            ign_store_unlock(store, g);
            if (built != IGN_OK && ign_store_sealed(g))
                rc = IGN_E_STALE; /* looked at a state that holds no more */
            else if (built != IGN_OK) {
                ign_store_leave(store, g);
                return built;
            }
        }
        if (rc == IGN_E_STALE) {
            int followed = ign_store_follow(store, g, &cut);
            if (at != UINT64_MAX && (followed != IGN_OK || cut == UINT64_MAX)) {
                /* Written, and nobody can say whether it was found. Told once more, at most: by an error of its own. */
                ign_store_leave(store, g);
                return IGN_E_IN_DOUBT;
            }
            if (followed != IGN_OK)
                rc = followed;
            else if (at != UINT64_MAX && at < cut) {
                rc = IGN_OK; /* found: it is in the generation that followed, and that one was flushed with it */
                at = cut;
            }
        }
        *mark = (ign_store_mark){.generation = g->ctl.head->generation, .position = at};
        ign_store_leave(store, g);
    }
    return rc == IGN_E_STALE ? IGN_E_BUSY : rc;
}
