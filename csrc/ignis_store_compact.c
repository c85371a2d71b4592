/* Compaction: what lives in a segment that holds little is written again at the log's end, so that the segment can go, though
 * one old message stays for ever.
 *
 * Segments in which anything lives may take twice what lives and 32 MiB (or 4 segments, if that is less). Beyond that, the segment with the smallest
 * part of it alive is emptied: its entries are read, each batch that still stands there is looked up in the state, and its
 * living records are packed again, one batch for each run of pointers, and logged as a move. Pointers, checks and claims
 * stay as they are. The segment goes with the checkpoints that follow.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FREE_SEGMENTS = 4 };

typedef struct move_call {
    uint32_t magazine;
    uint16_t shard;
    uint64_t first, position; /* of the extent, and of its entry */
    const uint8_t *batch;     /* as it stands in the log */
    uint32_t bytes;
} move_call;

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

static uint32_t record_end(const uint8_t *batch, uint32_t i)
{
    return i == 0 ? 0 : ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (size_t)(i - 1) * IGN_SEGMENT_INDEX_BYTES);
}

/* Records from..to - 1 of a batch as a batch of their own: the checks are of the pointers, which stay. Its bytes. */
static uint64_t put_piece(uint8_t *to, const uint8_t *batch, const ign_segment *whole, uint32_t from, uint32_t upto)
{
    uint32_t begin = record_end(batch, from), count = upto - from;
    size_t data = record_end(batch, upto) - begin, total = ign_segment_size(count, data);
    ign_segment_begin(to, count, whole->expires_at_ms);
    memcpy(to + total - data, whole->data + begin, data);
    for (uint32_t i = 0; i < count; i++)
        ign_segment_put_index(to, i, record_end(batch, from + i + 1) - begin,
                              ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (size_t)(from + i) * IGN_SEGMENT_INDEX_BYTES + 4));
    ign_segment_finish(to);
    return total;
}

static int build_move(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    const move_call *call = arg;
    ign_ctl *ctl = &g->ctl;
    ign_magazine *magazine = ign_state_magazine(ctl, call->magazine);
    ign_shard *shard = magazine == NULL ? NULL : ign_state_shard(ctl, magazine, call->shard);
    ign_cursor at;
    ign_segment whole;
    ign_item *extent = shard == NULL ? NULL : ign_seq_find(ctl, &shard->extents, call->first, &at);
    if (extent == NULL || extent->first != call->first || extent->word[0] != call->position)
        return IGN_EMPTY; /* dead, or moved by somebody else */
    if (ign_segment_open(call->batch, call->bytes, &whole) != IGN_OK || whole.count != IGN_ITEM_SPAN(extent))
        return IGN_E_CORRUPT;
    uint64_t from = extent->first, first, last;
    uint32_t parts = 0;
    *bytes = 24;
    while (from <= IGN_ITEM_LAST(extent) && ign_extent_run(ctl, extent, from, UINT32_MAX, &first, &last)) {
        uint32_t a = (uint32_t)(first - extent->first), b = (uint32_t)(last - extent->first + 1);
        *bytes += 16 + pad8(ign_segment_size(b - a, record_end(call->batch, b) - record_end(call->batch, a)));
        parts++;
        from = last + 1;
    }
    uint8_t *to;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, (size_t)*bytes);
    ign_put32(to, call->magazine);
    ign_put16(to + 4, call->shard);
    ign_put32(to + 8, parts);
    ign_put64(to + 16, extent->first);
    to += 24;
    from = extent->first;
    while (from <= IGN_ITEM_LAST(extent) && ign_extent_run(ctl, extent, from, UINT32_MAX, &first, &last)) {
        uint64_t size = put_piece(to + 16, call->batch, &whole, (uint32_t)(first - extent->first), (uint32_t)(last - extent->first + 1));
        ign_put16(to, call->shard);
        ign_put32(to + 4, (uint32_t)size);
        ign_put64(to + 8, first);
        to += 16 + pad8(size);
        from = last + 1;
    }
    return IGN_OK;
}

/* The batches of one part of a LOAD, TRANSFER or MOVE, one after the other. */
static int move_parts(ign_store *store, const ign_entry *entry, const uint8_t *p, const uint8_t *end, uint32_t magazine, uint32_t parts)
{
    int rc = IGN_OK;
    for (; parts > 0 && rc == IGN_OK && end - p >= 16; parts--) {
        uint32_t bytes = ign_get32(p + 4);
        if ((uint64_t)(end - p) - 16 < bytes)
            break;
        move_call call = {.magazine = magazine, .shard = ign_get16(p), .first = ign_get64(p + 8), .position = entry->position,
                          .batch = p + 16, .bytes = bytes};
        ign_store_mark mark;
        rc = ign_store_commit(store, IGN_ENTRY_MOVE, build_move, &call, NULL, &mark);
        if (rc == IGN_EMPTY || rc == IGN_E_CORRUPT)
            rc = IGN_OK; /* what is damaged stays where it is, to be told of by whoever reads it */
        p += 16 + pad8(bytes);
    }
    return rc;
}

static int move_entry(ign_store *store, const ign_entry *entry)
{
    const uint8_t *p = entry->payload, *end = p + entry->payload_bytes;
    if (entry->type == IGN_ENTRY_TRANSFER && entry->payload_bytes >= 16)
        p += 8;
    else if (entry->type == IGN_ENTRY_MOVE && entry->payload_bytes >= 24)
        return move_parts(store, entry, p + 24, end, ign_get32(p), ign_get32(p + 8));
    else if (entry->type != IGN_ENTRY_LOAD || entry->payload_bytes < 8)
        return IGN_OK;
    return move_parts(store, entry, p + 8, end, ign_get32(p), ign_get16(p + 6));
}

/* The segment with the least alive for its size, of those that nobody writes to; its entries end at *limit. */
static bool choose(ign_generation *g, ign_segment_info *info, uint64_t *limit)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    bool found = false;
    uint64_t best = UINT64_MAX;
    for (uint64_t i = 0; i + 1 < g->ctl.root->segment_count; i++) {
        uint64_t share = all[i].living * 1024 / all[i].info.size;
        if (all[i].living == 0 || share >= best || share > 512)
            continue;
        best = share;
        *info = all[i].info;
        *limit = all[i + 1].info.base;
        found = true;
    }
    return found;
}

int ign_store_compact(ign_store *store, const ign_store_figures *figures)
{
    uint64_t spare = FREE_SEGMENTS * store->options.segment_bytes;
    spare = spare < 32ull << 20 ? spare : 32ull << 20;
    if (figures->log_bytes - figures->dead_bytes <= 2 * figures->living_bytes + spare)
        return IGN_EMPTY;
    ign_generation *g;
    ign_segment_info info;
    uint64_t limit;
    int rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    rc = ign_store_lock(store, g, false);
    bool found = rc == IGN_OK && choose(g, &info, &limit);
    if (rc == IGN_OK)
        ign_store_unlock(store, g);
    ign_store_leave(store, g);
    if (!found)
        return rc == IGN_OK ? IGN_EMPTY : rc;
    ign_log_file *file;
    rc = ign_store_use_file(store, info.generation, info.number, NULL, &file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc); /* gone meanwhile: look again */
    ign_log_reader reader;
    ign_entry entry;
    ign_log_reader_open(&reader, store->io, file->file, &info, info.base, limit);
    for (;;) {
        rc = ign_log_next(&reader, &entry);
        if (rc == IGN_E_CORRUPT)
            rc = ign_log_resync(&reader);
        else if (rc == IGN_OK)
            rc = move_entry(store, &entry);
        if (rc != IGN_OK)
            break;
    }
    ign_log_reader_close(&reader);
    ign_store_drop_file(store, file);
    return rc == IGN_EMPTY ? IGN_OK : rc;
}
