/* Flushing the log: one for all who wait, without the writer's lock.
 *
 * Only the newest segment is ever not flushed, so a flush is of one file, which the process holds open. Whoever flushes says
 * so in a word, and the others sleep; should it die or be slow, another process flushes as well: each has its own descriptor.
 *
 * The kernel tells each open file once that writing back a page failed, and from then on calls the page clean. Of two
 * threads that flush one descriptor at a time, one hears of the failure and the other that all is well: so the threads of
 * a process take turns, and a descriptor that failed once flushes nothing more. A file that was opened after the failure
 * was told to somebody else is told nothing. So a flush through a descriptor covers what was written after it was opened;
 * of what was written before, the process writes the same bytes once more.
 *
 * A flush that fails seals the generation. Nothing of the file beyond the last good flush is trusted: the next
 * generation begins with a new file, into which that is written again from memory. Who waits is told that all is well when
 * the next generation has what they wrote, and else that it is refused: `refused_from` sees to it that it is not found.
 */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>

static const uint64_t look_ns = 2000000, slow_ns = 50000000;
enum { DECIDE_ROUNDS = 200, PIECE = 1 << 18 };

/* Bytes of entries, written once more as they are. What cannot be read any more, or is no entry now, is a failure. */
static int write_again(ign_store *store, const ign_log_file *file, uint64_t from, uint64_t since, uint64_t end)
{
    ign_log_reader reader;
    ign_entry entry;
    int rc = IGN_OK;
    ign_log_reader_open(&reader, store->io, file->file, &file->info, from, end);
    while (rc == IGN_OK && reader.position < since && reader.position < end) {
        rc = ign_log_next(&reader, &entry);
        if (rc == IGN_OK)
            rc = store->io->write(store->io, file->file, entry.payload - IGN_ENTRY_HEADER,
                                  (size_t)(entry.next - entry.position), ign_segment_offset(&file->info, entry.position));
    }
    ign_log_reader_close(&reader);
    return rc == IGN_OK ? IGN_OK : EIO;
}

static void raise_durable(ign_store *store, ign_ctl_head *head, uint64_t to)
{
    uint64_t had = atomic_load_explicit(&head->durable, memory_order_relaxed);
    while (had < to && !atomic_compare_exchange_weak_explicit(&head->durable, &had, to, memory_order_seq_cst, memory_order_relaxed))
        ;
    atomic_fetch_add_explicit(&head->flush_turn, 1, memory_order_seq_cst);
    store->io->wake(store->io, &head->flush_turn);
}

/* IGN_E_BUSY: another thread of ours is at it, and what it is told holds for us too. */
static int flush_file(ign_store *store, ign_log_file *file)
{
    bool busy = false;
    if (!atomic_compare_exchange_strong(&file->flushing, &busy, true))
        return IGN_E_BUSY;
    int rc = atomic_load(&file->failed) ? EIO : store->io->flush(store->io, file->file);
    if (rc != 0)
        atomic_store(&file->failed, true);
    atomic_store(&file->flushing, false);
    return rc;
}

/* 0; an errno: the disk refused; IGN_E_STALE: another segment is written now, look again; IGN_E_BUSY: as above. */
static int flush_once(ign_store *store, ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t end = atomic_load_explicit(&head->end, memory_order_seq_cst);
    uint64_t base = atomic_load_explicit(&head->log_base, memory_order_seq_cst);
    uint64_t durable = ign_ctl_durable(head);
    if (durable >= end)
        return 0;
    uint64_t number = atomic_load_explicit(&head->log_number, memory_order_seq_cst);
    if (base == UINT64_MAX || atomic_load_explicit(&head->log_base, memory_order_seq_cst) != base)
        return IGN_E_STALE;
    ign_log_file *file;
    int rc = ign_store_use_file(store, head->generation, number, head, &file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : rc;
    uint64_t since = file->since;
#ifdef IGN_MUTANT_NO_REWRITE
    since = 0;
#endif
    if (since > durable)
        rc = write_again(store, file, durable > base ? durable : base, since, end);
    IGN_STEP(store->io);
    if (rc == 0)
        rc = flush_file(store, file);
    ign_store_drop_file(store, file);
#ifdef IGN_MUTANT_LYING_FLUSH
    rc = 0;
#endif
    if (rc == 0)
        raise_durable(store, head, end);
    return rc;
}

void ign_store_send(ign_store *store, ign_generation *g)
{
    enum { MUCH = 1 << 20 };
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    uint64_t end = atomic_load_explicit(&head->end, memory_order_relaxed), durable = ign_ctl_durable(head);
    uint64_t base = atomic_load_explicit(&head->log_base, memory_order_seq_cst);
    uint64_t sent = atomic_load_explicit(&g->sent, memory_order_relaxed), from = sent > durable ? sent : durable;
    from = from > base ? from : base;
    if (io->send == NULL || base == UINT64_MAX || end < from + MUCH)
        return;
    uint64_t number = atomic_load_explicit(&head->log_number, memory_order_seq_cst);
    ign_log_file *file;
    if (atomic_load_explicit(&head->log_base, memory_order_seq_cst) != base ||
        !atomic_compare_exchange_strong_explicit(&g->sent, &sent, end, memory_order_relaxed, memory_order_relaxed) ||
        ign_store_use_file(store, head->generation, number, head, &file) != 0)
        return;
    io->send(io, file->file, ign_segment_offset(&file->info, from), end - from);
    ign_store_drop_file(store, file);
}

int ign_store_flush_to(ign_store *store, ign_generation *g, uint64_t position)
{
    ign_ctl_head *head = g->ctl.head;
    ign_store_io *io = store->io;
    if (ign_store_sealed(g))
        return IGN_E_STALE;
    uint64_t began = io->now_ns(io);
    for (;;) {
        uint32_t turn = atomic_load_explicit(&head->flush_turn, memory_order_seq_cst);
        if (ign_store_sealed(g))
            return IGN_E_STALE;
        if (ign_ctl_durable(head) >= position)
            return ign_store_sealed(g) ? IGN_E_STALE : IGN_OK;
        uint32_t flushing = 0;
        bool ours = atomic_compare_exchange_strong_explicit(&head->flushing, &flushing, g->word, memory_order_seq_cst,
                                                            memory_order_relaxed);
        if (ours || io->now_ns(io) - began >= slow_ns || !ign_store_alive(store, g, flushing)) {
            int rc = flush_once(store, g);
            flushing = g->word;
            if (ours)
                atomic_compare_exchange_strong_explicit(&head->flushing, &flushing, 0, memory_order_seq_cst, memory_order_relaxed);
            else if (rc != IGN_E_BUSY) /* who had it is dead, or slow and will find it taken */
                atomic_store_explicit(&head->flushing, 0, memory_order_seq_cst);
            if (rc == IGN_E_STALE || rc == 0)
                continue;
            if (rc == IGN_E_BUSY) {
                io->wait(io, &head->flush_turn, turn, look_ns);
                continue;
            }
            if (rc == EMFILE || rc == ENFILE || rc == ENOMEM || rc == IGN_E_NOMEM)
                return ign_store_error(rc); /* no failure of the disk */
            ign_store_seal(store, g);
            errno = rc > 0 ? rc : EIO;
            return IGN_E_FAILED;
        }
        io->wait(io, &head->flush_turn, turn, look_ns);
    }
}

/* The generation of the mark has ended. Did the next one find what we wrote? Else it is refused, if that is asked for. *error: by what,
 * if it is not known yet. */
static int settle(ign_store *store, ign_generation *g, uint64_t position, bool refuse, int *error)
{
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    for (int i = 0; i < DECIDE_ROUNDS; i++) {
        uint64_t cut;
        int followed = ign_store_follow(store, g, &cut);
        if (*error == 0 && (followed == IGN_E_IO || followed == IGN_E_NO_ROOM || followed == IGN_E_FAILED))
            *error = errno;
        if (followed == IGN_OK)
            return cut == UINT64_MAX ? IGN_E_IN_DOUBT : position <= cut ? IGN_OK : IGN_E_FAILED;
        uint64_t from = atomic_load_explicit(&head->refused_from, memory_order_seq_cst);
        uint64_t durable = ign_ctl_durable(head);
        if (position <= durable)
            return IGN_OK; /* a flush had covered it before the one that failed */
        if (!refuse)
            return IGN_E_FAILED;
        if (from != UINT64_MAX && (from & IGN_REFUSED_FROZEN) != 0) { /* somebody is about to say what was found */
            io->wait(io, &head->flush_turn, atomic_load_explicit(&head->flush_turn, memory_order_seq_cst), look_ns);
            continue;
        }
        /* From here on nothing more is raised: another process may be in a flush that will cover this, and would tell others so. */
#ifndef IGN_MUTANT_LATE_FLUSH
        durable = atomic_fetch_or_explicit(&head->durable, IGN_DURABLE_FINAL, memory_order_seq_cst) & ~IGN_DURABLE_FINAL;
#endif
        if (position <= durable)
            return IGN_OK;
        if (atomic_compare_exchange_strong_explicit(&head->refused_from, &from, from < durable ? from : durable,
                                                    memory_order_seq_cst, memory_order_seq_cst))
            return IGN_E_FAILED;
    }
    return IGN_E_IN_DOUBT;
}

int ign_store_flush(ign_store *store, const ign_store_mark *mark, bool refuse)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    const ign_ctl_head *head = g->ctl.head;
    int error = 0;
    if (mark->generation == g->number) {
        rc = ign_store_flush_to(store, g, mark->position);
        error = rc == IGN_E_FAILED ? errno : 0;
        if (rc == IGN_E_STALE || rc == IGN_E_FAILED)
            rc = settle(store, g, mark->position, refuse, &error);
    } else {
        const ign_ctl_cut *cut = &head->cuts[(mark->generation + 1) % IGN_CTL_CUTS];
        rc = cut->generation != mark->generation + 1 ? IGN_E_IN_DOUBT : mark->position <= cut->position ? IGN_OK : IGN_E_FAILED;
        if (rc == IGN_OK)
            rc = ign_store_make_ready(store, &g->ctl);
    }
    if (rc == IGN_OK)
        rc = ign_store_error(store->io->same_place(store->io));
    rc = rc == IGN_E_MOVED ? IGN_E_LEFT : rc; /* who puts it back finds what was written */
    if (rc == IGN_E_FAILED)
        errno = error;
    ign_store_leave(store, g);
    return rc;
}

int ign_store_mark_now(ign_store *store, ign_store_mark *mark)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_enter_living(store, &g);
    if (rc != IGN_OK)
        return rc;
    *mark = (ign_store_mark){.generation = g->ctl.head->generation,
                             .position = atomic_load_explicit(&g->ctl.head->end, memory_order_seq_cst)};
    ign_store_leave(store, g);
    return IGN_OK;
}
