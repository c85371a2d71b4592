/* Writing an entry: to the log, and from there into the state. All under the writer's lock. */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 16, WAITS_FOR_ROOM = 4, FLUSHES_AHEAD = 4, LEAST_STAGE = 4096, KEPT_STAGE = 2 << 20, UNFLUSHED = 256 << 10, PART_TAKES = 3200, MOVE_TAKES = 10240, MOVED_TAKES = 256 };

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
void ign_store_tell_segment(ign_generation *g)
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

bool ign_store_is_whole(const ign_generation *g)
{
    const ign_ctl_head *head = g->ctl.head;
    uint64_t applied = g->ctl.root->applied;
    return atomic_load_explicit(&head->undo_count, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&head->undo_lost, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&head->end, memory_order_relaxed) == applied &&
           atomic_load_explicit(&head->written_to, memory_order_relaxed) == applied;
}

int ign_store_heal(ign_store *store, ign_generation *g)
{
    ign_ctl_head *head = g->ctl.head;
    ign_root *root = g->ctl.root;
    if (ign_store_is_whole(g))
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
    if (rc == IGN_E_STALE || rc == IGN_E_NOMEM || rc == IGN_E_IO)
        return rc;
    rc = wipe(store, g, root->applied, written);
    if (rc != IGN_OK)
        return give_up(store, g, root->applied) == IGN_OK ? rc : IGN_E_FAILED;
    IGN_STEP(store->io);
    ign_store_tell_segment(g);
    atomic_store_explicit(&head->written_to, root->applied, memory_order_release);
    atomic_store_explicit(&head->end, root->applied, memory_order_release);
    return IGN_OK;
}

/* What makes the state or the log hold more is refused while there is still room for what does not: messages are handed out
 * and retired though the disk is full. */
static ign_store_weight weight_of(const ign_generation *g, uint8_t type)
{
    if (type == IGN_ENTRY_MOVE || type == IGN_ENTRY_SEGMENT)
        return IGN_WEIGHT_FREES;
    if (type == IGN_ENTRY_CATALOGUE && ign_get16(g->stage + IGN_ENTRY_HEADER + 4) == 0)
        return IGN_WEIGHT_OTHER; /* a magazine goes */
#ifdef IGN_MUTANT_NO_RESERVE
    return IGN_WEIGHT_OTHER;
#endif
    bool grows = type == IGN_ENTRY_LOAD || type == IGN_ENTRY_ONCE || type == IGN_ENTRY_CLAIMED || type == IGN_ENTRY_CATALOGUE;
    return grows ? IGN_WEIGHT_LOAD : IGN_WEIGHT_OTHER;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Extents twice, and the blocks that they are put into anew. */
static uint64_t move_takes(const uint8_t *p, uint64_t bytes)
{
    uint64_t takes = 0;
    while (bytes >= 24) {
        uint64_t at = 24;
        takes += MOVE_TAKES;
        for (uint32_t parts = ign_get32(p + 8); parts > 0; parts--) {
            at += 16 + ign_pad8(ign_get32(p + at + 4));
            takes += MOVED_TAKES;
        }
        p += at;
        bytes -= at;
    }
    return takes;
}

/* What the due times of a LOAD may take, and tidying those of the magazine of which something is retired. */
static uint64_t dues_take(const ign_generation *g, uint8_t type, const uint8_t *payload, uint64_t payload_bytes)
{
    ign_ctl *ctl = (ign_ctl *)(uintptr_t)&g->ctl;
    const uint8_t *load = payload;
    uint64_t bytes = payload_bytes, more = 0;
    const ign_magazine *retired = NULL;
    if (type == IGN_ENTRY_TRANSFER) {
        bytes = ign_get32(payload);
        load = payload + 8;
        retired = ign_state_magazine(ctl, ign_get32(load + ign_pad8(bytes)));
    } else if (type == IGN_ENTRY_RETIRE || type == IGN_ENTRY_EXPIRE)
        retired = ign_state_magazine(ctl, ign_get32(payload));
    if (retired != NULL && (retired->durability & IGN_MAGAZINE_IS_LATER) != 0)
        more = ign_due_tidy_takes(ign_state_due(ctl, retired));
    if (type == IGN_ENTRY_ONCE) {
        uint64_t ids = 16 + (uint64_t)ign_get32(payload + 4) * IGN_STORE_ID_BYTES;
        load = payload + ids;
        bytes = payload_bytes - ids;
    } else if (type != IGN_ENTRY_LOAD && type != IGN_ENTRY_TRANSFER)
        return more;
    return more + ign_load_dues_take(ctl, load, bytes);
}

/* Of the state, what applying an entry may take. Batches stay in the log: each takes an extent, or a block of them. */
static uint64_t takes(const ign_generation *g, uint8_t type, uint64_t payload_bytes)
{
    const uint8_t *payload = g->stage + IGN_ENTRY_HEADER;
    uint64_t dues = dues_take(g, type, payload, payload_bytes);
    if (type == IGN_ENTRY_LOAD)
        return least(payload_bytes, (uint64_t)ign_get16(payload + 6) * PART_TAKES) + dues;
    if (type == IGN_ENTRY_CLAIMED || type == IGN_ENTRY_TRANSFER) {
        uint64_t loads = ign_pad8(ign_get32(payload));
        return least(loads, (uint64_t)ign_get16(payload + 14) * PART_TAKES) + payload_bytes - loads + dues;
    }
    return type == IGN_ENTRY_MOVE ? move_takes(payload, payload_bytes) : payload_bytes + dues;
}

/* Loads leave room for the extents of what is transferred one by one before compaction packs it: some 48 bytes for 224 of log, of which a full disk
 * has room for no more than is kept for it. */
static uint64_t room_for(const ign_generation *g, uint8_t type, uint64_t payload_bytes)
{
    uint64_t used = g->ctl.root->used, more = takes(g, type, payload_bytes);
    if (weight_of(g, type) != IGN_WEIGHT_LOAD)
        return 8192 + used / 8 + more;
    uint64_t segment = ign_state_last_segment((ign_ctl *)&g->ctl)->info.size;
    return 32768 + used / 2 + least(IGN_MOVE_TAKES, segment) + segment / 2 + least(g->ctl.root->living_records * IGN_RECORD_TAKES, IGN_RECORDS_TAKE) + more;
}

/* In pieces, if it is large: a disk may take its time for all of it, and who waits for the lock must see that its holder is at work. */
static int write_entry(ign_store *store, ign_generation *g, const ign_log_file *file, const ign_segment_info *info, uint64_t size, uint64_t at)
{
    uint64_t piece = store->options.piece_bytes, offset = ign_segment_offset(info, at);
    for (uint64_t done = 0; done < size;) {
        uint64_t bytes = least(size - done, piece);
        if (done > 0) {
            ign_store_gets_on(g);
            IGN_STEP(store->io);
        }
        int rc = store->io->write(store->io, file->file, g->stage + done, (size_t)bytes, offset + done);
        if (rc != 0)
            return rc;
        done += bytes;
    }
    return 0;
}

int ign_store_append(ign_store *store, ign_generation *g, uint8_t type, uint64_t payload_bytes, uint64_t *position)
{
    ign_store_io *io = store->io;
    ign_ctl_head *head = g->ctl.head;
    uint64_t at = g->ctl.root->applied, size = ign_entry_size(payload_bytes);
    *position = UINT64_MAX;
#ifdef IGN_MUTANT_NOT_WRITTEN
    *position = at;
#endif
    /* A file that is laid out ahead, and room in the arena: what is in the log must not fail to be applied. */
    uint64_t room = room_for(g, type, payload_bytes), another = 0;
    uint64_t fits = size + (type == IGN_ENTRY_WITNESS ? 0 : ign_entry_size(0)); /* with a witness behind it */
    /* What comes to a full disk can be made in pieces: segments that hold one such entry could not be emptied one into another. */
    bool in_pieces = weight_of(g, type) != IGN_WEIGHT_LOAD && atomic_load_explicit(&head->short_of_room, memory_order_seq_cst) != 0;
    if (size > atomic_load_explicit(&head->largest, memory_order_relaxed) && !in_pieces)
        atomic_store_explicit(&head->largest, size, memory_order_relaxed);
    bool rolls = ign_store_must_roll(g, fits);
    if (g->at_once && (!ign_store_has_way(g, fits, weight_of(g, type)) ||
                       atomic_load_explicit(&head->arena_bytes, memory_order_relaxed) - g->ctl.root->used < room))
        return IGN_E_BUSY;
    /* An opening writes again what is not flushed, and on a full disk there is no room for much. */
    uint64_t durable = ign_ctl_durable(head);
    if (in_pieces && at > durable + UNFLUSHED && !g->at_once) {
        int flushed = ign_store_flush_to(store, g, at);
        if (flushed != IGN_OK)
            return flushed;
    }
    int rc = ign_store_error(ign_ctl_make_room(&g->ctl, room));
    if (rc == IGN_E_NO_ROOM && weight_of(g, type) != IGN_WEIGHT_LOAD) /* what was freed is used again first: mostly that is all it takes */
        rc = ign_store_error(ign_ctl_make_room(&g->ctl, room - g->ctl.root->used / 8 + g->ctl.root->used / 32));
    if (rc == IGN_E_NO_ROOM)
        ign_store_note_no_room(g, weight_of(g, type), false);
    if (rc == IGN_OK)
        rc = ign_store_make_way(store, g, fits, weight_of(g, type), &another);
    if (rc != IGN_OK)
        return rc;
    ign_ctl_begin(&g->ctl);
    if (rolls)
        rc = ign_store_roll(store, g, fits);
    ign_store_set_ahead(store, g, another);
    ign_log_file *file = NULL;
    if (rc == IGN_OK)
        rc = last_file(store, g, &file);
#ifndef IGN_MUTANT_ANOTHERS_ENTRY
    /* Who sealed it may have read another entry at this place: that of a writer who died in a segment that he had begun, which this one begins
     * anew. Who seals it from here on reads the new one. */
    atomic_thread_fence(memory_order_seq_cst);
    if (rc == IGN_OK && ign_store_sealed(g)) {
        ign_store_drop_file(store, file);
        rc = IGN_E_STALE;
    }
#endif
    if (rc != IGN_OK) {
        ign_ctl_roll_back(&g->ctl);
        return rc;
    }
    *position = at;
    const ign_segment_info info = ign_state_last_segment(&g->ctl)->info;
    ign_entry_seal(g->stage, type, (uint32_t)payload_bytes, info.salt, at, ign_ctl_durable(head));
    IGN_STEP(io);
    ign_landing_writes(true);
    atomic_store_explicit(&head->written_to, at + size, memory_order_release);
    IGN_STEP(io);
    rc = write_entry(store, g, file, &info, size, at);
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
    if (ign_store_has_ended(store, g))
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

/* Whether the entry begins another segment behind much that is not flushed, as only behind large entries. A roll flushes that under the lock, and a
 * disk may take longer for it than anybody waits. */
static bool should_flush_first(ign_store *store, ign_generation *g, uint64_t payload_bytes)
{
#ifdef IGN_MUTANT_FLUSHED_WITHIN
    return false;
#endif
    return g->ctl.root->applied > ign_ctl_durable(g->ctl.head) + store->options.segment_bytes &&
           ign_store_must_roll(g, ign_entry_size(payload_bytes) + ign_entry_size(0));
}

static bool wants_witness(const ign_generation *g)
{
    const ign_ctl_head *head = g->ctl.head;
    uint64_t end = atomic_load_explicit(&head->end, memory_order_seq_cst);
#ifdef IGN_MUTANT_NO_WITNESS
    return false;
#endif
    return !ign_store_sealed(g) && ign_ctl_durable(head) == end &&
           atomic_load_explicit(&head->witnessed, memory_order_seq_cst) != end;
}

/* Under the lock. Should it not be written, nothing is lost but the witness. */
static void witness(ign_store *store, ign_generation *g)
{
    uint8_t *payload;
    uint64_t end;
    if (wants_witness(g) && ign_store_stage(g, 0, &payload) == IGN_OK &&
        ign_store_append(store, g, IGN_ENTRY_WITNESS, 0, &end) == IGN_OK)
        atomic_store_explicit(&g->ctl.head->witnessed, end, memory_order_seq_cst);
    ign_landing_writes(false);
}

static int try_witness(ign_store *store)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    if (!atomic_load_explicit(&g->lost, memory_order_seq_cst) && wants_witness(g) && ign_store_lock(store, g, true) == IGN_OK) {
        witness(store, g);
        ign_store_unlock(store, g);
    }
    ign_store_leave(store, g);
    return IGN_OK;
}

void ign_store_witness(ign_store *store)
{
    try_witness(store);
}

int ign_store_commit(ign_store *store, uint8_t type, ign_store_build *build, void *arg, const ign_store_how *how, ign_store_mark *mark)
{
    IGN_LANDING(store, );
    ign_landing_writes(false);
    int rc = IGN_E_STALE, patience = WAITS_FOR_ROOM, flushes = FLUSHES_AHEAD;
    bool at_once = how != NULL && how->at_once;
    const ign_store_change *fence = how == NULL ? NULL : how->fence;
    for (int i = 0; i < TRIES && rc == IGN_E_STALE; i++) {
        ign_generation *g;
        uint64_t bytes = 0, at = UINT64_MAX, cut;
        rc = ign_store_enter(store, &g);
        if (rc != IGN_OK)
            return rc;
        bool in_hand = false;
        rc = ign_store_lock_to_write(store, g, at_once);
        if (rc == IGN_OK) {
            g->since = atomic_load_explicit(&g->ctl.head->maintain_turn, memory_order_seq_cst);
            g->patient = patience > 0;
            g->in_hand = false;
#ifdef IGN_MUTANT_NO_FENCE
            fence = NULL;
#endif
            int built = fence == NULL || ign_as_expected(&g->ctl, fence) ? build(store, g, arg, &bytes) : IGN_E_MISMATCH;
            if (built == IGN_OK && !at_once && flushes > 0 && should_flush_first(store, g, bytes)) {
                uint64_t end = g->ctl.root->applied;
                ign_store_unlock(store, g);
                flushes--;
                rc = ign_store_flush_to(store, g, end);
                rc = rc == IGN_OK || ign_store_sealed(g) ? IGN_E_STALE : rc; /* nothing was written: once more, in whichever generation */
                ign_store_leave(store, g);
                continue;
            }
            if (built == IGN_OK)
                rc = ign_store_append(store, g, type, bytes, &at);
            ign_landing_writes(false);
            if (rc != IGN_OK && rc != IGN_E_STALE && rc != IGN_E_FAILED && rc != IGN_E_IN_DOUBT && ign_store_sealed(g)) {
                rc = IGN_E_STALE; /* nothing was written: the files are not where a state that holds no more has them */
                at = UINT64_MAX;
            }
            in_hand = rc == IGN_E_NO_ROOM && g->in_hand;
            ign_store_unlock(store, g);
            if (rc == IGN_OK && !at_once)
                ign_store_send(store, g);
            if (built != IGN_OK && ign_store_sealed(g))
                rc = IGN_E_STALE; /* looked at a state that holds no more */
            else if (built != IGN_OK) {
                ign_store_leave(store, g);
                return built;
            }
        }
        if (in_hand) { /* nothing was written: once more, when maintenance has put down what it had in hand */
            patience = ign_store_await_maintenance(store, g) ? patience - 1 : 0;
            ign_store_leave(store, g);
            rc = IGN_E_STALE;
            continue;
        }
        if (rc == IGN_E_STALE && at_once && at == UINT64_MAX)
            rc = IGN_E_BUSY; /* somebody has to make the next generation, and that takes its time */
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
        *mark = (ign_store_mark){.generation = g->number, .position = at};
        ign_store_leave(store, g);
    }
    return rc == IGN_E_STALE ? IGN_E_BUSY : rc;
}
