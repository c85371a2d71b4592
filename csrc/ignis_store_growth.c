/* What makes messages grow, on a disk without room.
 *
 * A move frees as much as it takes, but later, and in the room that is kept for it. What a failure adds to a message (its reason, the
 * attempts at it) is never freed: if the first messages that move took that room, the last ones could not move at all. So
 * messages grow only as long as the log can hold all that lives, and what it takes to go on. That is the next segment and the reserve, two
 * checkpoints, what it takes to move each message by itself that shares a batch, and a twelfth of it all: the fuller segments are, the more
 * has to be written to win back little. All that is looked at whether room is short by now or not. Who is refused moves the
 * message without what it may spare. Its counters it may not: a few bytes for each message are let through.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

enum { BATCH_TAKES = 64, RECORD_TAKES = 32, LOST_PART = 12, ALONE_TAKES = 64 };

bool ign_store_may_grow(ign_store *store, ign_generation *g, const ign_load_call *call, uint64_t frees)
{
    uint64_t has = 0, let_through = frees + (uint64_t)call->count * BATCH_TAKES;
    for (uint16_t i = 0; i < call->count; i++)
        let_through += (uint64_t)ign_get32(call->parts[i].batch + 4) * RECORD_TAKES;
#ifdef IGN_MUTANT_GROWS_FREELY
    return true;
#endif
    if (call->batches <= let_through)
        return true;
    if (store->io->room == NULL || store->io->room(store->io, &has) != 0)
        return true;
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    uint64_t extents = 0, records = g->ctl.root->living_records;
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        extents += all[i].extents;
    has += ign_store_log_bytes(g) + ign_store_kept_bytes(g);
    uint64_t needs = 2 * ign_store_next_bytes(store, g) + ign_store_spare_bytes(g, 0) + has / LOST_PART;
    needs += (records > extents ? records - extents : 0) * ALONE_TAKES; /* each may be moved by itself */
    return g->ctl.root->living_bytes + (call->batches - frees) + needs <= has;
}
