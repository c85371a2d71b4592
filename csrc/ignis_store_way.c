/* May an entry be written? What has to be laid out for it, and who goes on when the disk has no more room. */
#include "ignis_store_parts.h"

#include <errno.h>

/* More than the first eighth of the segment would be written. */
static bool is_begun(ign_generation *g, uint64_t size)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    return g->ctl.root->applied + size > last->base + last->size / 8;
}

bool ign_store_has_way(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    if (ign_store_must_roll(g, size))
        return false;
    bool room_is_short = atomic_load_explicit(&head->short_of_room, memory_order_seq_cst) != 0;
    if (weight == IGN_WEIGHT_FREES || (!room_is_short && !is_begun(g, size)))
        return true;
    return !(weight == IGN_WEIGHT_LOAD && room_is_short) && ign_ahead_is_laid(&head->reserve) && (weight != IGN_WEIGHT_LOAD || ign_ahead_is_laid(&head->ahead));
}

/* Bytes of entries that fit into what a word says is laid out. A roll that fails is to be avoided: behind one the log goes on only with
 * another segment. */
static uint64_t fits(_Atomic uint64_t *word)
{
    uint64_t bytes = ign_ahead_bytes(atomic_load_explicit(word, memory_order_seq_cst));
    return bytes < IGN_LOG_SECTOR ? 0 : bytes - IGN_LOG_SECTOR;
}

uint64_t ign_store_left(ign_generation *g)
{
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    uint64_t left = ign_store_must_roll(g, 0) ? 0 : ign_segment_end(last) - g->ctl.root->applied;
    uint64_t ahead = fits(&g->ctl.head->ahead), kept = fits(&g->ctl.head->reserve);
    ahead = ahead > kept ? ahead : kept; /* not the sum: an entry is in one segment */
    return left > ahead ? left : ahead;
}

/* No room for more segments. Compaction goes on in what is left, and others as long as it can. */
static int make_do(ign_generation *g, uint64_t size, ign_store_weight weight)
{
    ign_ctl_head *head = g->ctl.head;
    const ign_segment_info *last = &ign_state_last_segment(&g->ctl)->info;
    uint64_t ahead = fits(&head->ahead), kept = fits(&head->reserve), left = ign_segment_end(last) - g->ctl.root->applied;
    bool rolls = ign_store_must_roll(g, size), goes = false;
    if (weight == IGN_WEIGHT_LOAD)
        return IGN_E_NO_ROOM;
    if (!rolls) /* what is kept is enough, or what is left of this one */
        goes = weight == IGN_WEIGHT_FREES || kept != 0 || left >= size + ign_store_cheapest(g);
    else if (ahead != 0)
        goes = ahead >= size;
    else
        goes = kept >= size + (weight == IGN_WEIGHT_FREES ? 0 : ign_store_cheapest(g));
    return goes ? IGN_OK : IGN_E_NO_ROOM;
}

/* While maintenance is at work, room may be wanting for a moment only: it lays out what the call looks for, or has made a checkpoint's copy
 * that it gives back. Loads are refused once it is noted that room is short, so that is not noted then, unless it was waited for already. */
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
        return IGN_OK; /* what room there is, is for maintenance to find */
    int rc = was_short != 0 && weight == IGN_WEIGHT_LOAD ? ign_store_error(ENOSPC) : IGN_OK; /* until maintenance has found room for all */
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
