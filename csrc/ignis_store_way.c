/* Decides whether an entry may be written, what has to be laid out for it, and which calls go on when the disk has no more room. */
#include "ignis_store_parts.h"

#include <errno.h>

/* Whether more than the first eighth of the segment would be written. */
static bool is_begun(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    return g->ctl.root->applied + size > last->base + last->size / 8;
}

/* Returns the bytes of entries that fit into what a word says is laid out. A roll must not fail if that can be avoided: behind a failed one
 * the log goes on only with another segment. */
static uint64_t fits(_Atomic uint64_t *word)
{
    uint64_t bytes = ign_ahead_bytes(atomic_load_explicit(word, memory_order_seq_cst));
    return bytes < IGN_LOG_SECTOR ? 0 : bytes - IGN_LOG_SECTOR;
}

/* Returns the bytes of entries that fit into that much of the newest segment and into what is laid out. An entry is in one segment, so some
 * room at the end of each stays empty. */
static uint64_t room_in(ign_generation *g, uint64_t left, uint64_t ahead, uint64_t kept)
{
    uint64_t largest = atomic_load_explicit(&g->ctl.head->largest, memory_order_relaxed), room = 0, most = 0, parts[3] = {left, ahead, kept};
    uint64_t empty = largest > IGN_SHORT_MOVE_BYTES ? largest : IGN_SHORT_MOVE_BYTES;
    for (unsigned i = 0; i < 3; i++) {
        room += parts[i] > empty ? parts[i] - empty : 0;
        most = parts[i] > most ? parts[i] : most;
    }
    return room > most ? room : most;
}

static uint64_t left_in_newest(ign_generation *g)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    return ign_store_must_roll(g, 0) ? 0 : ign_segment_end(last) - g->ctl.root->applied;
}

uint64_t ign_store_left(ign_generation *g)
{
    return room_in(g, left_in_newest(g), fits(&g->ctl.head->ahead), fits(&g->ctl.head->reserve));
}

/* Decides without room for more segments: IGN_OK or IGN_E_NO_ROOM. Compaction may use what is left, and loads may not. Others may while the
 * cheapest segment can still be emptied behind them. */
static int make_do(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t ahead = fits(&head->ahead), kept = fits(&head->reserve), left = left_in_newest(g);
    uint64_t behind = weight == IGN_WEIGHT_FREES ? 0 : ign_store_cheapest(g);
    bool goes = false;
    if (weight == IGN_WEIGHT_LOAD)
        return IGN_E_NO_ROOM;
    if (!ign_store_must_roll(g, size))
        goes = left >= size && room_in(g, left - size, ahead, kept) >= behind;
    else if (ahead != 0)
        goes = ahead >= size && room_in(g, ahead - size, 0, kept) >= behind;
    else
        goes = kept >= size && kept - size >= behind;
    return goes ? IGN_OK : IGN_E_NO_ROOM;
}

bool ign_store_has_way(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    if (ign_store_must_roll(g, size))
        return false;
    bool room_is_short = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst) != 0;
    if (weight == IGN_WEIGHT_FREES || (!room_is_short && !is_begun(g, size)))
        return true;
    if (room_is_short)
        return make_do(g, size, weight) == IGN_OK;
    return ign_ahead_is_laid(&head->reserve) && (weight != IGN_WEIGHT_LOAD || ign_ahead_is_laid(&head->ahead));
}

/* Notes that room is short, after which loads are refused. While maintenance is at work room may be lacking only for a moment: it lays out what
 * the call needs, or a checkpoint's copy has the room and returns it. Then nothing is noted, unless the call has already waited for that. */
void ign_store_note_no_room(ign_generation *g, ign_store_weight weight, bool goes)
{
    ign_ctl_head *head = g->ctl.head;
    uint32_t was = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst);
    bool at_work = atomic_load_explicit(&head->maintaining, memory_order_seq_cst) != 0 ||
                   atomic_load_explicit(&head->maintain_turn, memory_order_seq_cst) != g->since;
    if (was == 0 && at_work && weight != IGN_WEIGHT_FREES && (goes || g->patient))
        g->in_hand = true;
    else if (was == 0 || !goes)
        atomic_store_explicit(&head->short_of_room, !goes && weight != IGN_WEIGHT_LOAD ? 2 : was > 1 ? 2 : 1, memory_order_seq_cst);
}

int ign_store_make_way(ign_store *store, ign_generation *g, uint64_t size, ign_store_weight weight, uint64_t *another)
{
    ign_ctl_head *head = g->ctl.head;
    uint64_t bytes = ign_store_next_bytes(store, g);
    bool rolls = ign_store_must_roll(g, size);
    uint32_t was_short = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst);
    *another = 0;
    if (ign_store_has_way(g, size, weight))
        return IGN_OK;
    if (was_short != 0 && weight != IGN_WEIGHT_LOAD && make_do(g, size, weight) == IGN_OK)
        return IGN_OK; /* maintenance looks for more room, not this call */
    if (was_short != 0 && weight == IGN_WEIGHT_OTHER) {
        /* A checkpoint's room comes first: without a checkpoint no segment is removed. */
        bool kept = atomic_load_explicit(&head->spare_bytes, memory_order_seq_cst) >= g->ctl.root->used;
        int laid = kept ? ign_store_lay_into(store, g, &head->reserve, ign_store_reserve_bytes(store, g), false) : ign_store_error(ENOSPC);
        if (laid >= 0 && rolls)
            laid = ign_store_lay_into(store, g, &head->ahead, bytes, false);
        int error = errno;
        if (laid < 0 && laid != IGN_E_NO_ROOM)
            return laid;
        if (make_do(g, size, weight) == IGN_OK)
            return IGN_OK;
        ign_store_note_no_room(g, weight, false);
        errno = laid < 0 ? error : ENOSPC;
        return IGN_E_NO_ROOM;
    }
    int rc = was_short != 0 && weight == IGN_WEIGHT_LOAD ? ign_store_error(ENOSPC) : IGN_OK; /* until maintenance has all the room again */
    if (rc == IGN_OK && weight == IGN_WEIGHT_LOAD && rolls)
        rc = ign_store_keep_spare(store, g, ign_store_spare_bytes(g, ign_store_log_bytes(g) + bytes));
    if (rc >= 0)
        rc = ign_store_lay_into(store, g, &head->reserve, ign_store_reserve_bytes(store, g), false);
    if (rc >= 0 && (rolls || weight == IGN_WEIGHT_LOAD))
        rc = ign_store_lay_into(store, g, &head->ahead, bytes, false);
    if (rc >= 0 && rolls)
        rc = ign_store_lay_out(store, g, "tmp-ahead", 2 * bytes <= store->options.segment_bytes ? 2 * bytes : bytes, false, another);
    if (rc != IGN_E_NO_ROOM)
        return rc < 0 ? rc : IGN_OK;
    *another = 0;
    int kept = errno;
    rc = make_do(g, size, weight);
    ign_store_note_no_room(g, weight, rc == IGN_OK);
    errno = kept;
    return rc;
}
