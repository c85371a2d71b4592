/* The state without holes: all that it says, copied into an arena of its own.
 *
 * Blocks that were freed are used again and never given back, so a state is as large as it ever was, and so are the checkpoints that are copies of
 * it. A checkpoint is replayed into an arena that nobody else sees. Where at least half of that is free, it is copied here before it is written,
 * and whoever makes a generation from it has the smaller one.
 */
#include "ignis_store_state.h"

#include <string.h>

static void change_extent(ign_ctl *to, ign_ctl *from, ign_item *item)
{
    if (IGN_ITEM_SPAN(item) <= 64 || item->word[2] == 0)
        return; /* which of its records live stands in the item */
#ifdef IGN_MUTANT_BITS_STAY
    return;
#endif
    uint64_t bytes = (IGN_ITEM_SPAN(item) + 63) / 64 * 8, bitmap = ign_ctl_alloc(to, bytes);
    if (bitmap == 0)
        return;
    memcpy(ign_ctl_at(to, bitmap), ign_ctl_at(from, item->word[2]), (size_t)bytes);
    item->word[2] = bitmap;
}

static void change_claim(ign_ctl *to, ign_ctl *from, ign_item *item)
{
    (void)to;
    item->word[0] = ign_map_copied(from, item->word[0]); /* its owner */
}

/* Its record was copied with the map, and names blocks of the old arena. */
static void copy_magazine(ign_ctl *to, ign_ctl *from, ign_magazine *copy)
{
    const ign_magazine old = *copy;
    ign_ids_copy(to, &copy->ids, from, &old.ids);
    if ((old.durability & IGN_MAGAZINE_IS_LATER) != 0) {
        ign_due *due = ign_state_due(to, copy);
        due->root = ign_due_copy(to, from, due->root);
    }
    copy->shards_at = ign_ctl_alloc(to, old.shards * sizeof(ign_shard));
    for (uint64_t i = 0; i < old.shards && !to->no_room; i++) {
        ign_shard *had = (ign_shard *)ign_ctl_at(from, old.shards_at) + i, *made = (ign_shard *)ign_ctl_at(to, copy->shards_at) + i;
        *made = *had;
        ign_seq_copy(to, &made->extents, from, &had->extents, change_extent);
        ign_seq_copy(to, &made->claims, from, &had->claims, change_claim);
    }
}

static void copy_segments(ign_root *to, ign_ctl *made, const ign_ctl *from)
{
    uint64_t count = from->root->segment_count;
    to->segments = count == 0 ? 0 : ign_ctl_alloc(made, count * sizeof(ign_state_segment));
    if (to->segments == 0)
        return;
    memcpy(ign_ctl_at(made, to->segments), ign_ctl_at(from, from->root->segments), (size_t)count * sizeof(ign_state_segment));
    to->segment_count = to->segment_capacity = count;
}

int ign_state_repack(ign_ctl *to, ign_ctl *from)
{
    const ign_root *old = from->root;
    ign_root *root = to->root;
    ign_ctl_begin(to);
    root->openings = old->openings;
    root->next_magazine = old->next_magazine;
    root->first_pointer = old->first_pointer;
    root->living_bytes = old->living_bytes;
    root->living_records = old->living_records;
    root->damaged_bytes = old->damaged_bytes;
    root->salvaged_records = old->salvaged_records;
    root->damaged_records = old->damaged_records;
    copy_segments(root, to, from);
    ign_map_copy(to, from);
    if (old->by_id_count != 0 && !to->no_room) {
        root->by_id = ign_ctl_alloc(to, old->by_id_count * sizeof(uint64_t));
        root->by_id_count = to->no_room ? 0 : old->by_id_count;
    }
    for (uint64_t n = 0; n < root->by_id_count && !to->no_room; n++) {
        uint64_t record = ((const uint64_t *)ign_ctl_at(from, old->by_id))[n];
        ((uint64_t *)ign_ctl_at(to, root->by_id))[n] = record == 0 ? 0 : ign_map_copied(from, record);
    }
    for (uint64_t n = 0; n < root->by_id_count && !to->no_room; n++) {
        ign_magazine *magazine = ign_state_magazine(to, n);
        if (magazine != NULL)
            copy_magazine(to, from, magazine);
    }
    ign_ctl_commit(to, old->applied);
    return to->no_room ? IGN_E_NO_ROOM : IGN_OK;
}
