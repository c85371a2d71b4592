/* Delayed messages: loads them, and moves those that are due. Listing them is in ignis_store_list_later.c. */
#include "ignis_store_parts.h"

#include "ignis_store_fire.h"
#include "ignis_store_later.h"

#include "ignis_bytes.h"
#include "ignis_record.h"
#include "ignis_store_salvage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SLICES = 4096, MOST_EXPIRED = 4096, TRIES = 16, MOST_TIDIES = 64, READ_WHOLE = 16 << 10, WORTH_ALL = 4 };

int ign_store_load_later(ign_store *store, uint32_t later, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                         const ign_store_how *how, ign_store_mark *mark)
{
    ign_load_call call = {.magazine = later, .parts = parts, .count = count, .dues = dues};
    int rc = count == 0 ? IGN_E_INVALID : ign_load_check(&call);
    if (rc == IGN_OK)
        rc = ign_store_commit(store, IGN_ENTRY_LOAD, ign_load_build, &call, how, mark);
    if (rc == IGN_OK)
        ign_load_wake(store, &call);
    return rc;
}

static int look(ign_store *store, bool at_once, ign_generation **g)
{
    if (!at_once)
        return ign_store_look(store, g);
    int rc = ign_store_enter(store, g);
    if (rc != IGN_OK)
        return rc;
    rc = ign_store_lock(store, *g, true);
    if (rc != IGN_OK)
        ign_store_leave(store, *g);
    return rc == IGN_E_STALE ? IGN_E_BUSY : rc;
}

/* -- what is due --------------------------------------------------------------------------------------------------------- */

/* Records of one batch, in the order in which they are due. */
typedef struct due_slice {
    ign_slice slice;
    uint32_t order;
    const uint8_t *records; /* a copy: for each u32 bytes, u32 check, bytes; padded to 4 */
} due_slice;

typedef struct gathering {
    ign_generation *g;
    const ign_magazine *later;
    uint64_t ms, records_left, bytes_left;
    due_slice *slices;
    ign_store_run *expired;
    uint32_t count, expired_count, later_number, main_number;
    uint64_t moved, main_shards;
} gathering;

static bool gather_run(void *arg, const ign_due_run *run)
{
    gathering *c = arg;
    ign_ctl *ctl = &c->g->ctl;
    ign_cursor at;
    uint64_t from = run->first, first, last;
    if (run->ms > c->ms)
        return false;
    ign_shard *shard = ign_state_shard(ctl, c->later, run->shard);
    if (shard == NULL)
        return true;
    for (ign_item *e = ign_seq_find(ctl, &shard->extents, from, &at); e != NULL && e->first <= run->last;
         e = ign_seq_next(ctl, &shard->extents, &at)) {
        uint64_t each = (e->word[3] & UINT32_MAX) / IGN_ITEM_SPAN(e) + 1;
        from = e->first > from ? e->first : from;
        while (from <= run->last && from <= IGN_ITEM_LAST(e)) {
            if (c->count == MOST_SLICES || c->expired_count == MOST_EXPIRED || c->records_left == 0 || c->bytes_left == 0)
                return false;
            uint64_t most = (c->bytes_left + each - 1) / each;
            most = most < c->records_left ? most : c->records_left;
            most = most < run->last - from + 1 ? most : run->last - from + 1;
            if (!ign_extent_run(ctl, e, from, most, &first, &last) || first > run->last)
                break;
            last = last < run->last ? last : run->last;
            uint64_t many = last - first + 1;
            c->records_left -= many;
            from = last + 1;
            if (e->word[1] != 0 && e->word[1] <= c->ms) {
                c->expired[c->expired_count++] = (ign_store_run){.shard = (uint16_t)run->shard, .first = first, .last = last};
                continue;
            }
            c->bytes_left -= c->bytes_left < each * many ? c->bytes_left : each * many;
            due_slice *made = &c->slices[c->count];
            made->slice = ign_extent_slice((uint16_t)run->shard, e, first, last);
            made->order = c->count++;
            ign_store_locate(c->g, (uint16_t)run->shard, &made->slice);
            c->moved += many;
        }
    }
    return true;
}

/* Finds what is due. IGN_EMPTY: nothing is. With IGN_OK and nothing found, what was due is gone, and the due times must be tidied. */
static int gather_due(ign_store *store, uint32_t main, bool at_once, gathering *c)
{
    IGN_LANDING(store, );
    int rc = look(store, at_once, &c->g);
    if (rc != IGN_OK)
        return rc;
    const ign_magazine *magazine = ign_state_magazine(&c->g->ctl, main);
    const ign_due *due = magazine == NULL ? NULL : ign_state_due(&c->g->ctl, magazine);
    c->count = c->expired_count = 0;
    c->moved = 0;
    c->later = due == NULL ? NULL : ign_state_magazine(&c->g->ctl, IGN_MAGAZINE_OTHER(magazine));
    rc = magazine == NULL ? IGN_E_UNKNOWN : due == NULL || due->next > c->ms ? IGN_EMPTY : IGN_OK;
    if (rc == IGN_OK && (magazine->durability & IGN_MAGAZINE_IS_LATER) != 0)
        rc = IGN_E_INVALID;
    if (rc == IGN_OK) {
        c->main_number = main;
        c->main_shards = magazine->shards;
        c->later_number = (uint32_t)c->later->number;
        ign_due_walk(&c->g->ctl, due, 0, gather_run, c);
    }
    ign_store_look_end(store, c->g);
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const ign_slice *x = &((const due_slice *)a)->slice, *y = &((const due_slice *)b)->slice;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int by_turn(const void *a, const void *b)
{
    const due_slice *x = a, *y = b;
    if (x->slice.shard != y->slice.shard)
        return x->slice.shard < y->slice.shard ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int by_pointer(const void *a, const void *b)
{
    const ign_store_run *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Whether a slice is of the same batch as the one before. */
static bool of_one_batch(const gathering *c, uint32_t i)
{
    return i > 0 && c->slices[i - 1].slice.position == c->slices[i].slice.position && c->slices[i - 1].slice.offset == c->slices[i].slice.offset;
}

static uint32_t record_end(const uint8_t *batch, uint32_t k)
{
    return k == 0 ? 0 : ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (size_t)(k - 1) * IGN_SEGMENT_INDEX_BYTES);
}

/* Reads the batch of slice `i`. If only a few records of a large batch are wanted, it reads the header, the index and those records, at their
 * places. *opened: it is a valid batch. */
static int read_batch(ign_store *store, const gathering *c, uint32_t i, uint8_t *batch, ign_segment *segment, bool *opened)
{
    const ign_slice *s = &c->slices[i].slice;
    uint32_t wanted = s->to - s->from, end = i + 1, count = 0;
    for (; end < c->count && of_one_batch(c, end); end++)
        wanted += c->slices[end].slice.to - c->slices[end].slice.from;
    int rc = s->bytes < READ_WHOLE ? IGN_EMPTY : ign_store_fetch_part(store, s, 0, batch, IGN_SEGMENT_HEADER_BYTES);
    uint64_t head = rc == IGN_OK ? IGN_SEGMENT_HEADER_BYTES + (uint64_t)ign_get32(batch + 4) * IGN_SEGMENT_INDEX_BYTES : 0;
    if (rc == IGN_OK && (head > s->bytes || wanted > ign_get32(batch + 4) / WORTH_ALL))
        rc = IGN_EMPTY;
    if (rc == IGN_OK)
        rc = ign_store_fetch_part(store, s, 0, batch, head);
    if (rc == IGN_OK && ign_segment_open(batch, s->bytes, segment) != IGN_OK)
        rc = IGN_EMPTY;
    *opened = rc == IGN_OK;
    for (uint32_t k = i; rc == IGN_OK && k < end; k++) {
        const ign_slice *part = &c->slices[k].slice;
        if (part->to > segment->count)
            continue;
        uint32_t from = record_end(batch, part->from);
        rc = ign_store_fetch_part(store, s, head + from, batch + head + from, record_end(batch, part->to) - from);
    }
    if (rc != IGN_EMPTY)
        return rc;
    rc = ign_store_fetch(store, s, batch);
    *opened = rc == IGN_OK && ign_segment_open(batch, s->bytes, segment) == IGN_OK;
    if (rc == IGN_OK && !*opened) {
        ign_batch_mend(batch, s->bytes, c->later_number, s->shard, s->first, &count);
        *opened = ign_segment_open(batch, s->bytes, segment) == IGN_OK;
    }
    return rc;
}

/* Reads one batch after the other, and copies the wanted records. */
static int copy_records(ign_store *store, gathering *c, uint8_t **copies)
{
    uint64_t room = 0, batch_room = 0, at = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const ign_slice *s = &c->slices[i].slice;
        room += (of_one_batch(c, i) ? 0 : s->bytes) + 16ull * (s->to - s->from);
        batch_room = s->bytes > batch_room ? s->bytes : batch_room;
    }
    uint8_t *batch = malloc((size_t)batch_room);
    *copies = malloc((size_t)room);
    int rc = batch == NULL || *copies == NULL ? IGN_E_NOMEM : IGN_OK;
    ign_segment segment;
    bool opened = false;
    for (uint32_t i = 0; rc == IGN_OK && i < c->count; i++) {
        due_slice *d = &c->slices[i];
        const ign_slice *s = &d->slice;
        if (!of_one_batch(c, i))
            rc = read_batch(store, c, i, batch, &segment, &opened);
        if (rc != IGN_OK)
            break;
        d->records = *copies + at;
        for (uint32_t k = s->from; k < s->to; k++) {
            const uint8_t *record = batch;
            size_t bytes = 0;
            bool sound = opened && k < segment.count &&
                         ign_segment_get(&segment, k, c->later_number, s->shard, s->first, &record, &bytes) == IGN_OK;
            /* A damaged record keeps a wrong checksum: with that of its own bytes it would count as a message. */
            uint32_t check = ign_crc32c(0, record, bytes) ^ (sound ? 0u : 1u);
            memcpy(*copies + at, &(uint32_t){(uint32_t)bytes}, 4);
            memcpy(*copies + at + 4, &check, 4);
            memcpy(*copies + at + 8, record, bytes);
            at += 8 + ((uint64_t)bytes + 3) / 4 * 4;
        }
    }
    free(batch);
    return rc;
}

typedef struct packing {
    ign_store_part *parts;
    uint8_t *batches;
    uint16_t count;
} packing;

static uint32_t field(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Packs neighbours of one shard that expire at the same time into one batch. */
static int pack(const gathering *c, packing *made)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const uint8_t *at = c->slices[i].records;
        room += 8 + IGN_SEGMENT_HEADER_BYTES;
        for (uint32_t k = c->slices[i].slice.from; k < c->slices[i].slice.to; k++) {
            room += IGN_SEGMENT_INDEX_BYTES + field(at);
            at += 8 + ((uint64_t)field(at) + 3) / 4 * 4;
        }
    }
    made->parts = malloc(c->count * sizeof *made->parts);
    made->batches = malloc((size_t)room);
    made->count = 0;
    if (made->parts == NULL || made->batches == NULL)
        return IGN_E_NOMEM;
    uint8_t *to = made->batches;
    for (uint32_t i = 0, end; i < c->count; i = end) {
        const ign_slice *first = &c->slices[i].slice;
        uint32_t records = 0, index = 0, offset = 0;
        for (end = i; end < c->count && c->slices[end].slice.shard == first->shard &&
                      c->slices[end].slice.expires_at_ms == first->expires_at_ms; end++)
            records += c->slices[end].slice.to - c->slices[end].slice.from;
        uint8_t *data = to + ign_segment_size(records, 0);
        ign_segment_begin(to, records, first->expires_at_ms);
        for (uint32_t k = i; k < end; k++) {
            const uint8_t *at = c->slices[k].records;
            for (uint32_t n = c->slices[k].slice.from; n < c->slices[k].slice.to; n++) {
                memcpy(data + offset, at + 8, field(at));
                offset += field(at);
                ign_segment_put_index(to, index++, offset, field(at + 4));
                at += 8 + ((uint64_t)field(at) + 3) / 4 * 4;
            }
        }
        ign_segment_finish(to);
        uint64_t size = ign_segment_size(records, offset);
        made->parts[made->count++] = (ign_store_part){.shard = (uint16_t)(first->shard % c->main_shards), .batch = to, .bytes = (uint32_t)size};
        to += ign_pad8(size);
    }
    return IGN_OK;
}

/* -- moving -------------------------------------------------------------------------------------------------------------- */

typedef struct expire_call {
    uint32_t magazine, count;
    const ign_store_run *runs;
    uint64_t expired;
} expire_call;

static int build_expired(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    expire_call *call = arg;
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    call->expired = 0;
    for (uint32_t i = 0; i < call->count; i++) {
        ign_shard *shard = ign_state_shard(&g->ctl, magazine, call->runs[i].shard);
        call->expired += shard == NULL ? 0 : ign_state_living(&g->ctl, shard, call->runs[i].first, call->runs[i].last);
    }
    if (call->expired == 0)
        return IGN_EMPTY;
    uint8_t *to;
    *bytes = 8 + (uint64_t)call->count * IGN_RUN_BYTES;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    ign_put32(to, call->magazine);
    ign_put32(to + 4, call->count);
    to += 8;
    for (uint32_t i = 0; i < call->count; i++)
        to = ign_put_run(to, call->runs[i].shard, call->runs[i].first, call->runs[i].last);
    return IGN_OK;
}

typedef struct tidy_call {
    uint32_t magazine;
    uint64_t ms;
} tidy_call;

static int build_tidy(ign_store *store, ign_generation *g, void *arg, uint64_t *bytes)
{
    (void)store;
    const tidy_call *call = arg;
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, call->magazine);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    if ((magazine->durability & IGN_MAGAZINE_IS_LATER) == 0 || ign_state_due(&g->ctl, magazine)->next > call->ms)
        return IGN_EMPTY;
    uint8_t *to;
    *bytes = 8;
    int rc = ign_store_stage(g, *bytes, &to);
    if (rc != IGN_OK)
        return rc;
    memset(to, 0, 8);
    ign_put32(to, call->magazine);
    return IGN_OK;
}

/* Moves what was gathered. IGN_EMPTY: something of it is gone meanwhile. */
static int move_gathered(ign_store *store, gathering *c, const ign_store_how *how, ign_store_mark *mark)
{
    packing made = {0};
    uint8_t *copies = NULL;
    ign_store_run *runs = malloc(c->count * sizeof *runs);
    qsort(c->slices, c->count, sizeof *c->slices, by_place);
    int rc = runs == NULL ? IGN_E_NOMEM : copy_records(store, c, &copies);
    if (rc == IGN_OK) {
        qsort(c->slices, c->count, sizeof *c->slices, by_turn);
        rc = pack(c, &made);
    }
    for (uint32_t i = 0; rc == IGN_OK && i < c->count; i++) {
        const ign_slice *s = &c->slices[i].slice;
        runs[i] = (ign_store_run){.shard = s->shard, .first = s->first + s->from, .last = s->first + s->to - 1};
    }
    if (rc == IGN_OK) {
        qsort(runs, c->count, sizeof *runs, by_pointer);
        rc = ign_store_move(store, c->later_number, runs, c->count, c->main_number, made.parts, made.count, how, mark);
    }
    free(runs);
    free(copies);
    free(made.parts);
    free(made.batches);
    return rc == IGN_E_STALE ? IGN_EMPTY : rc;
}

static int move_some(ign_store *store, uint32_t main, gathering *c, ign_store_moved *result, const ign_store_how *how, ign_store_mark *mark)
{
    bool at_once = how != NULL && how->at_once;
    uint64_t limit = c->records_left, max_bytes = c->bytes_left;
    int rc = IGN_EMPTY, tidied = 0;
    for (int i = 0; i < TRIES && rc == IGN_EMPTY; i++) {
        c->records_left = limit;
        c->bytes_left = max_bytes;
        rc = gather_due(store, main, at_once, c);
        if (rc != IGN_OK)
            return rc == IGN_EMPTY ? IGN_OK : rc;
        if (c->expired_count != 0) {
            expire_call call = {.magazine = c->later_number, .runs = c->expired, .count = c->expired_count};
            rc = ign_store_commit(store, IGN_ENTRY_EXPIRE, build_expired, &call, how, mark);
            if (rc == IGN_OK)
                result->expired += call.expired;
            if (rc < 0)
                return rc;
            rc = IGN_OK;
        }
        if (c->count != 0) {
            rc = move_gathered(store, c, how, mark);
            if (rc == IGN_OK)
                result->moved += c->moved;
            /* What is kept on a full disk may do for less. And how large records are is guessed by the others of their batch. */
            if ((rc == IGN_E_NO_ROOM || rc == IGN_E_TOO_LARGE) && c->moved > 1) {
                limit = c->moved / 2;
                rc = IGN_EMPTY;
                i--;
            }
        } else if (c->expired_count == 0) {
            tidy_call call = {.magazine = c->later_number, .ms = c->ms};
            rc = ign_store_commit(store, IGN_ENTRY_RETIRE, build_tidy, &call, how, mark);
            rc = rc == IGN_OK ? IGN_EMPTY : rc; /* look again */
            i -= rc == IGN_EMPTY && ++tidied < MOST_TIDIES ? 1 : 0;
        }
    }
    return rc == IGN_EMPTY ? IGN_OK : rc; /* others were quicker each time, and moved what was due */
}

int ign_store_move_due(ign_store *store, uint32_t main, uint64_t ms, uint64_t limit, uint64_t max_bytes, ign_store_moved *result,
                       const ign_store_how *how, ign_store_mark *mark)
{
    gathering c = {.ms = ms, .records_left = limit, .bytes_left = max_bytes};
    *result = (ign_store_moved){.next = IGN_DUE_NONE};
    if (limit == 0 || max_bytes == 0)
        return IGN_E_INVALID;
    c.slices = malloc(MOST_SLICES * sizeof *c.slices);
    c.expired = malloc(MOST_EXPIRED * sizeof *c.expired);
    int rc = c.slices == NULL || c.expired == NULL ? IGN_E_NOMEM : ign_store_mark_now(store, mark);
    if (rc == IGN_OK)
        rc = move_some(store, main, &c, result, how, mark);
    int kept = errno;
    free(c.slices);
    free(c.expired);
    if (rc == IGN_OK)
        rc = ign_store_next_due(store, main, &result->next);
    else
        errno = kept;
    return rc;
}
