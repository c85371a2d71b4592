/* Compaction: what lives in a segment that holds little is written again at the log's end, so that the segment can go, though
 * one old message stays for ever. And what was loaded one by one is packed, since the state has a place for each batch, of whatever size.
 *
 * A segment is chosen (ignis_store_choose.c) and emptied: its entries are read, each batch that still stands there is looked up in the state, and its
 * living records are packed again and logged as a move, many batches in one entry. Neighbours become one batch, so what was loaded or moved
 * one by one takes less than before, in the log and in the state. Pointers, checks and claims stay as they are. The segment goes with the
 * checkpoints that follow.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    VAIN_BYTES = 64 << 10,
    MOST_BATCHES = 128, /* in one entry */
    MOST_GROUPS = 6,
    MOST_BYTES = 1 << 18,
    GATHERED_BATCHES = 1 << 15, /* the more are looked at together, the more of them are neighbours */
    GATHERED_BYTES = 4 << 20,
    PACKED_RECORDS = 16, /* what has more is not packed with others, */
    PACKED_BYTES = 4096, /* ... or is as large as that */
};

/* A batch as it stands in the segment that is emptied. */
typedef struct moved {
    uint32_t magazine, bytes;
    uint64_t shard, first, position; /* of the extent, and of its entry */
    uint64_t at;                     /* in the buffer */
} moved;

/* Records from..to - 1 of a batch; they begin a part, and perhaps a move, or belong to the part before. */
typedef struct piece {
    const moved *of;
    uint32_t from, to;
    bool begins_part, begins_move, joins; /* `joins`: the first of another extent of the same move */
} piece;

typedef struct move_call {
    moved *batches;
    uint32_t count, room, most_batches;
    uint32_t begin, taken; /* those of the entry that is built */
    uint8_t *buffer;
    uint64_t bytes, capacity, most, entry_most; /* `most`: so many are gathered; `entry_most`: so many go into one entry */
    bool packs; /* only what is small is moved */
    piece *pieces;
    uint32_t piece_count, piece_room;
    uint64_t entry_bytes; /* of the entry that was built */
    ign_compacted done;
} move_call;

static uint32_t record_end(const uint8_t *batch, uint32_t i)
{
    return i == 0 ? 0 : ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (size_t)(i - 1) * IGN_SEGMENT_INDEX_BYTES);
}

static int by_place(const void *a, const void *b)
{
    const moved *x = a, *y = b;
    if (x->magazine != y->magazine)
        return x->magazine < y->magazine ? -1 : 1;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int add_piece(move_call *call, const piece *one)
{
    if (call->piece_count == call->piece_room) {
        uint32_t room = call->piece_room == 0 ? 256 : call->piece_room * 2;
        piece *grown = realloc(call->pieces, room * sizeof *grown);
        if (grown == NULL)
            return IGN_E_NOMEM;
        call->pieces = grown;
        call->piece_room = room;
    }
    call->pieces[call->piece_count++] = *one;
    return IGN_OK;
}

/* Which records of the batches live, and what becomes of them: one part for each run of pointers. */
static int find_pieces(move_call *call, ign_ctl *ctl)
{
    const moved *before = NULL;
    ign_cursor at, was;
    uint64_t behind = 0, expires = 0, bytes = 0;
    uint32_t groups = 0, end = call->begin + MOST_BATCHES < call->count ? call->begin + MOST_BATCHES : call->count, at_batch;
    int rc = IGN_OK;
    call->piece_count = 0;
    for (at_batch = call->begin; rc == IGN_OK && at_batch < end; at_batch++) {
        const moved *one = &call->batches[at_batch];
        ign_magazine *magazine = ign_state_magazine(ctl, one->magazine);
        ign_shard *shard = magazine == NULL ? NULL : ign_state_shard(ctl, magazine, one->shard);
        const ign_item *extent = shard == NULL ? NULL : ign_seq_find(ctl, &shard->extents, one->first, &at);
        ign_segment whole;
        if (extent == NULL || extent->first != one->first || extent->word[0] != one->position)
            continue; /* dead, or moved by somebody else */
        if (ign_segment_open(call->buffer + one->at, one->bytes, &whole) != IGN_OK || whole.count != IGN_ITEM_SPAN(extent))
            continue; /* what is damaged stays where it is, to be told of by whoever reads it */
        if (bytes > 0 && bytes + one->bytes > call->entry_most)
            break;
        bytes += one->bytes;
        bool joins = before != NULL && before->magazine == one->magazine && before->shard == one->shard && expires == whole.expires_at_ms;
        if (joins)
            joins = ign_seq_next(ctl, &shard->extents, &was) == extent;
        if (!joins && ++groups > MOST_GROUPS)
            break;
        piece next = {.of = one, .begins_move = !joins, .joins = joins};
        uint64_t first, last;
        for (uint64_t from = extent->first; rc == IGN_OK && from <= IGN_ITEM_LAST(extent) &&
             ign_extent_run(ctl, extent, from, UINT32_MAX, &first, &last); from = last + 1) {
            next.from = (uint32_t)(first - extent->first);
            next.to = (uint32_t)(last - extent->first + 1);
            next.begins_part = next.begins_move || first != behind;
            rc = add_piece(call, &next);
            next.begins_move = next.joins = false;
            behind = last + 1;
        }
        before = one;
        was = at;
        expires = whole.expires_at_ms;
    }
    call->taken = at_batch - call->begin;
    return rc;
}

static const uint8_t *batch_of(const move_call *call, const piece *p)
{
    return call->buffer + p->of->at;
}

/* The pieces from `i` on that make one part: how many, and what the batch of them takes. */
static uint32_t part_size(const move_call *call, uint32_t i, uint32_t *count, uint64_t *data)
{
    uint32_t end = i;
    *count = 0;
    *data = 0;
    do {
        const piece *p = &call->pieces[end++];
        *count += p->to - p->from;
        *data += record_end(batch_of(call, p), p->to) - record_end(batch_of(call, p), p->from);
    } while (end < call->piece_count && !call->pieces[end].begins_part);
    return end;
}

/* A part; the checks in the index are of the pointers, which stay. */
static uint8_t *put_part(const move_call *call, uint32_t i, uint8_t *to)
{
    uint32_t count, index = 0, offset = 0;
    uint64_t data;
    uint32_t end = part_size(call, i, &count, &data);
    const piece *p = &call->pieces[i];
    uint64_t size = ign_segment_size(count, data);
    ign_put16(to, (uint16_t)p->of->shard);
    ign_put32(to + 4, (uint32_t)size);
    ign_put64(to + 8, p->of->first + p->from);
    uint8_t *made = to + 16, *records = made + size - data;
    ign_segment_begin(made, count, ign_get64(batch_of(call, p) + 8));
    for (; i < end; i++) {
        p = &call->pieces[i];
        const uint8_t *batch = batch_of(call, p);
        uint32_t from = record_end(batch, p->from), bytes = record_end(batch, p->to) - from;
        const uint8_t *old = batch + ign_segment_size(ign_get32(batch + 4), 0);
        memcpy(records + offset, old + from, bytes);
        for (uint32_t k = p->from; k < p->to; k++)
            ign_segment_put_index(made, index++, offset + record_end(batch, k + 1) - from,
                                  ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (size_t)k * IGN_SEGMENT_INDEX_BYTES + 4));
        offset += bytes;
    }
    ign_segment_finish(made);
    return to + 16 + ign_pad8(size);
}

static int build_move(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    move_call *call = arg;
    uint8_t *to, *move = NULL;
    int rc = find_pieces(call, &g->ctl);
    if (rc != IGN_OK || call->piece_count == 0)
        return rc != IGN_OK ? rc : IGN_EMPTY;
    *bytes = 0;
    for (uint32_t i = 0, count; i < call->piece_count;) {
        uint64_t data;
        *bytes += call->pieces[i].begins_move ? 24 : 0;
        i = part_size(call, i, &count, &data);
        *bytes += 16 + ign_pad8(ign_segment_size(count, data));
    }
    rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    call->entry_bytes = *bytes;
    memset(to, 0, (size_t)*bytes);
    for (uint32_t i = 0; i < call->piece_count; i++) {
        const piece *p = &call->pieces[i];
        if (p->begins_move) {
            move = to;
            ign_put32(move, p->of->magazine);
            ign_put16(move + 4, (uint16_t)p->of->shard);
            ign_put64(move + 16, p->of->first);
            to += 24;
        }
        if (p->joins)
            ign_put32(move + 12, ign_get32(move + 12) + 1);
        if (p->begins_part) {
            ign_put32(move + 8, ign_get32(move + 8) + 1);
            to = put_part(call, i, to);
        }
    }
    return IGN_OK;
}

static void count_moved(move_call *call)
{
    const moved *before = NULL;
    for (uint32_t i = 0; i < call->piece_count; i++) {
        call->done.moved += call->pieces[i].of != before;
        call->done.made += call->pieces[i].begins_part;
        before = call->pieces[i].of;
    }
    call->done.written += ign_entry_size(call->entry_bytes);
}

/* All that was gathered is moved, in as many entries as it takes. */
static int move_gathered(ign_store *store, move_call *call)
{
    int rc = IGN_OK;
    if (call->count > 1)
        qsort(call->batches, call->count, sizeof call->batches[0], by_place);
    for (call->begin = 0; rc == IGN_OK && call->begin < call->count; call->begin += call->taken) {
        ign_store_mark mark;
        rc = ign_store_commit(store, IGN_ENTRY_MOVE, build_move, call, NULL, &mark);
        if (rc == IGN_OK)
            count_moved(call);
        rc = rc == IGN_EMPTY ? IGN_OK : rc;
    }
    call->count = 0;
    call->bytes = 0;
    return rc;
}

static int make_room_for(move_call *call, const moved *one)
{
    if (call->bytes + one->bytes > call->capacity) {
        uint64_t want = one->bytes > call->most ? one->bytes : call->most;
        uint8_t *grown = realloc(call->buffer, (size_t)want);
        if (grown == NULL)
            return IGN_E_NOMEM;
        call->buffer = grown;
        call->capacity = want;
    }
    if (call->count == call->room) {
        uint32_t room = call->room == 0 ? MOST_BATCHES : call->room * 2;
        moved *grown = realloc(call->batches, room * sizeof *grown);
        if (grown == NULL)
            return IGN_E_NOMEM;
        call->batches = grown;
        call->room = room;
    }
    return IGN_OK;
}

static int gather(ign_store *store, move_call *call, const moved *one, const uint8_t *batch)
{
    int rc = IGN_OK;
    if (call->count == call->most_batches || (call->count > 0 && call->bytes + one->bytes > call->most))
        rc = move_gathered(store, call);
    if (rc == IGN_OK)
        rc = make_room_for(call, one);
    if (rc != IGN_OK)
        return rc;
    memcpy(call->buffer + call->bytes, batch, one->bytes);
    call->batches[call->count] = *one;
    call->batches[call->count++].at = call->bytes;
    call->bytes += one->bytes;
    return IGN_OK;
}

/* The batches of one part of a LOAD, TRANSFER or MOVE, one after the other. *next: where they end. */
static int gather_parts(ign_store *store, move_call *call, const ign_entry *entry, const uint8_t *p, uint32_t magazine, uint32_t parts,
                        const uint8_t **next)
{
    const uint8_t *end = entry->payload + entry->payload_bytes;
    int rc = IGN_OK;
    for (; parts > 0 && rc == IGN_OK; parts--) {
        uint32_t bytes = end - p < 16 ? UINT32_MAX : ign_get32(p + 4);
        if (bytes > end - p - 16) {
            p = end;
            break;
        }
        moved one = {.magazine = magazine, .shard = ign_get16(p), .first = ign_get64(p + 8), .position = entry->position, .bytes = bytes};
        bool stays = call->packs && (bytes < IGN_SEGMENT_HEADER_BYTES || ign_get32(p + 16 + 4) >= PACKED_RECORDS || bytes >= PACKED_BYTES);
        rc = stays ? IGN_OK : gather(store, call, &one, p + 16);
        p += 16 + ign_pad8(bytes);
        p = p < end ? p : end;
    }
    *next = p;
    return rc;
}

static int gather_entry(ign_store *store, move_call *call, const ign_entry *entry)
{
    const uint8_t *p = entry->payload, *end = p + entry->payload_bytes, *next;
    if (entry->type == IGN_ENTRY_MOVE) {
        int rc = IGN_OK;
        while (rc == IGN_OK && end - p >= 24) {
            rc = gather_parts(store, call, entry, p + 24, ign_get32(p), ign_get32(p + 8), &next);
            p = next;
        }
        return rc;
    }
    if (entry->type == IGN_ENTRY_TRANSFER || entry->type == IGN_ENTRY_CLAIMED)
        p += 8;
    else if (entry->type == IGN_ENTRY_ONCE && end - p >= 16)
        p += (uint64_t)(end - p - 16) / IGN_STORE_ID_BYTES < ign_get32(p + 4) ? 0 : 16 + (uint64_t)ign_get32(p + 4) * IGN_STORE_ID_BYTES;
    else if (entry->type != IGN_ENTRY_LOAD)
        return IGN_OK;
    return end - p < 8 ? IGN_OK : gather_parts(store, call, entry, p + 8, ign_get32(p), ign_get16(p + 6), &next);
}

static void note_left(ign_store *store, ign_generation *g, const ign_segment_info *info)
{
    if (ign_store_lock(store, g, false) != IGN_OK)
        return;
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        if (all[i].info.generation == info->generation && all[i].info.number == info->number && all[i].living != 0) {
            store->left[store->left_next].generation = info->generation;
            store->left[store->left_next].number = info->number;
            store->left[store->left_next].living = all[i].living;
            store->left_next = (store->left_next + 1) % IGN_STORE_LEFT;
        }
    ign_store_unlock(store, g);
}

static void set_bounds(move_call *call, ign_work work, bool is_short)
{
    call->most = is_short ? IGN_SHORT_MOVE_BYTES : GATHERED_BYTES;
    call->entry_most = is_short ? IGN_SHORT_MOVE_BYTES : MOST_BYTES;
    call->most_batches = is_short ? MOST_BATCHES : GATHERED_BATCHES;
    call->packs = work == IGN_WORK_PACK;
}

static int work_on_segment(ign_store *store, const ign_segment_info *info, uint64_t limit, const ign_store_figures *figures, ign_work work, bool is_short)
{
    ign_log_file *file;
    int rc = ign_store_use_file(store, info->generation, info->number, NULL, &file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc); /* gone meanwhile: look again */
    move_call *call = calloc(1, sizeof *call);
    ign_log_reader reader;
    ign_entry entry;
    ign_log_reader_open(&reader, store->io, file->file, info, info->base, limit);
    rc = call == NULL ? IGN_E_NOMEM : IGN_OK;
    if (call != NULL)
        set_bounds(call, work, is_short);
    while (rc == IGN_OK) {
        rc = ign_log_next(&reader, &entry);
        if (rc == IGN_E_CORRUPT)
            rc = ign_log_resync(&reader);
        else if (rc == IGN_OK)
            rc = gather_entry(store, call, &entry);
    }
    if (rc == IGN_EMPTY)
        rc = move_gathered(store, call);
    if (call != NULL) {
        if (rc == IGN_OK && !is_short)
            ign_store_note_compacted(store, figures, info, work, &call->done);
        free(call->batches);
        free(call->pieces);
        free(call->buffer);
    }
    free(call);
    ign_log_reader_close(&reader);
    ign_store_drop_file(store, file);
    return rc;
}

int ign_store_compact(ign_store *store, const ign_store_figures *figures, ign_need need)
{
    bool is_short = need != IGN_NEED_NONE;
    if (!is_short && !ign_store_may_choose(store, figures))
        return IGN_EMPTY;
    /* In vain, and nothing was written since? */
    if (is_short && store->vain_generation == figures->generation && figures->end < store->vain_end + VAIN_BYTES)
        return IGN_EMPTY;
    ign_generation *g;
    ign_segment_info info;
    uint64_t limit = 0;
    ign_work work = IGN_WORK_NONE;
    int rc = ign_store_enter(store, &g);
    if (rc != IGN_OK)
        return rc;
    rc = ign_store_lock(store, g, false);
    if (rc == IGN_OK)
        work = is_short ? ign_store_choose_short(store, g, need, &info, &limit) : ign_store_choose(store, g, figures, &info, &limit);
    uint64_t before = rc == IGN_OK ? g->ctl.root->applied : 0;
    if (rc == IGN_OK)
        ign_store_unlock(store, g);
    if (work != IGN_WORK_NONE)
        rc = work_on_segment(store, &info, limit, figures, work, is_short);
    if (work == IGN_WORK_EMPTY && rc == IGN_OK)
        note_left(store, g, &info);
    uint64_t end = atomic_load_explicit(&g->ctl.head->end, memory_order_seq_cst);
    if (work == IGN_WORK_EMPTY && rc == IGN_OK && end - before > info.size / 16 * 15) {
        store->vain_generation = figures->generation;
        store->vain_end = end;
    }
    ign_store_leave(store, g);
    return rc == IGN_OK && (work == IGN_WORK_NONE || end == before) ? IGN_EMPTY : rc; /* what could not be moved is no reason to look again at once */
}
