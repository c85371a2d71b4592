/* What a load appends to its shard, and a move puts in its place: extents. */
#include "ignis_store_state.h"

#include "ignis_bytes.h"
#include "ignis_record.h"
#include "ignis_store_salvage.h"

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* One part of a LOAD or a MOVE at `p`, of which `bytes` are there. `extent` is filled in. IGN_OK | IGN_E_MALFORMED | IGN_EMPTY: it was
 * lost. */
static int read_part(const ign_entry *entry, const uint8_t *p, uint64_t bytes, uint16_t *shard, ign_item *extent, uint64_t *size)
{
    if (bytes < 16 || bytes - 16 < ign_get32(p + 4) || ign_get32(p + 4) < IGN_SEGMENT_HEADER_BYTES)
        return IGN_E_MALFORMED;
    uint32_t batch_bytes = ign_get32(p + 4), count = ign_get32(p + 16 + 4);
    uint64_t first = ign_get64(p + 8);
    *size = 16 + pad8(batch_bytes);
    if (ign_get16(p) == IGN_SHARD_LOST)
        return IGN_EMPTY;
    bool unread = ign_get16(p + 2) == IGN_PART_UNREAD; /* its place may be what was damaged */
    if (count == 0 || count > IGN_SEGMENT_MAX_RECORDS || (!unread && (first == 0 || first > INT64_MAX)))
        return IGN_E_MALFORMED;
    *shard = ign_get16(p);
    *extent = (ign_item){
        .first = first, .left = (uint64_t)count << 32 | count,
        .word = {entry->position, ign_get64(p + 16 + 8), 0,
                 (uint64_t)(p + 16 - entry->payload + IGN_ENTRY_HEADER) << 32 | batch_bytes},
    };
    return IGN_OK;
}

/* -- due times ----------------------------------------------------------------------------------------------------- */

uint32_t ign_dues_check(uint32_t magazine, const uint8_t *dues, uint32_t count)
{
    uint8_t ends[8];
    ign_put32(ends, magazine);
    ign_put32(ends + 4, count);
    return ign_crc32c(ign_crc32c(0, dues, (size_t)count * IGN_DUES_BYTES), ends, sizeof ends);
}

uint32_t ign_dues_count(const uint8_t *load, uint64_t bytes)
{
    if (bytes < 8 + IGN_DUES_END || (ign_get16(load + 4) & IGN_LOAD_LATER) == 0)
        return 0;
    const uint8_t *end = load + bytes - IGN_DUES_END;
    uint32_t count = ign_get32(end);
    if (count > (bytes - 8 - IGN_DUES_END) / IGN_DUES_BYTES)
        return 0;
    const uint8_t *dues = end - (uint64_t)count * IGN_DUES_BYTES;
    return ign_get32(end + 4) == ign_dues_check(ign_get32(load), dues, count) ? count : 0;
}

/* The due times of a LOAD, as they are taken record by record. */
typedef struct dues_of {
    const uint8_t *next;
    uint32_t count, taken; /* entries that are left, and records of the first */
} dues_of;

static dues_of open_dues(const uint8_t *load, uint64_t bytes)
{
    dues_of dues = {.count = ign_dues_count(load, bytes)};
    dues.next = dues.count == 0 ? load : load + bytes - IGN_DUES_END - (uint64_t)dues.count * IGN_DUES_BYTES;
    return dues;
}

/* How many of the next records, of so many, are due at one time; what there is no time for, at once. */
static uint64_t take_due(dues_of *dues, uint64_t records, uint64_t *ms)
{
    *ms = 0;
    if (dues->count == 0)
        return records;
    uint64_t left = ign_get32(dues->next + 8) - dues->taken, many = left < records ? left : records;
    *ms = ign_get64(dues->next);
    dues->taken += (uint32_t)many;
    if (many == left) {
        dues->next += IGN_DUES_BYTES;
        dues->count--;
        dues->taken = 0;
    }
    return many;
}

static void add_dues(ign_ctl *ctl, ign_due *due, dues_of *dues, uint16_t shard, uint64_t first, uint64_t records)
{
    while (records > 0 && !ctl->no_room) {
        uint64_t ms, many = take_due(dues, records, &ms);
        if (many == 0)
            continue;
        ign_due_add(ctl, due, &(ign_due_run){.ms = ms, .shard = shard, .first = first, .last = first + many - 1});
        ign_ctl_add(ctl, &due->living, many);
        first += many;
        records -= many;
    }
}

uint64_t ign_dues_times(const uint8_t *load, uint64_t bytes, uint64_t *times, uint64_t room)
{
    dues_of dues = open_dues(load, bytes);
    uint64_t found = 0, ms;
    const uint8_t *part = load + 8;
    for (uint16_t parts = ign_get16(load + 6); parts > 0; parts--, part += 16 + pad8(ign_get32(part + 4)))
        for (uint64_t records = ign_get32(part + 16 + 4); records > 0 && found < room;) {
            uint64_t many = take_due(&dues, records, &ms);
            records -= many;
            if (many > 0)
                times[found++] = ms < IGN_DUE_MAX ? ms : IGN_DUE_MAX;
        }
    return found;
}

/* -- loads and moves ----------------------------------------------------------------------------------------------- */

int ign_state_apply_load(ign_ctl *ctl, const ign_entry *entry, const uint8_t *p, uint64_t bytes)
{
    ign_magazine *magazine = bytes < 8 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    if (magazine == NULL)
        return IGN_E_MALFORMED;
    bool reload = (ign_get16(p + 4) & IGN_LOAD_RELOAD) != 0;
    uint16_t parts = ign_get16(p + 6);
    ign_due *due = (magazine->durability & IGN_MAGAZINE_IS_LATER) == 0 ? NULL : ign_state_due(ctl, magazine);
    dues_of dues = {.next = p};
    if (due != NULL)
        dues = open_dues(p, bytes);
    for (uint64_t at = 8, size; parts > 0; parts--, at += size) {
        uint16_t number;
        ign_item extent;
        int rc = at > bytes ? IGN_E_MALFORMED : read_part(entry, p + at, bytes - at, &number, &extent, &size);
        if (rc == IGN_EMPTY) {
            dues.count = 0; /* nobody knows how many records it had */
            continue;
        }
        if (rc != IGN_OK)
            return rc;
        ign_shard *shard = ign_state_shard(ctl, magazine, number);
        if (ign_get16(p + at + 2) == IGN_PART_UNREAD && shard != NULL &&
            ign_part_stood_at(p + at + 16, ign_get32(p + at + 4), ign_get32(p), number, shard->load_pointer + 1))
            extent.first = shard->load_pointer + 1; /* which was not known when this entry was repaired */
#ifndef IGN_MUTANT_ANY_PLACE
        if (ign_get16(p + at + 2) == IGN_PART_UNREAD && (shard == NULL || extent.first != shard->load_pointer + 1)) {
            dues.count = 0;
            continue; /* its place is what was damaged, or came behind another that is lost */
        }
#endif
        if (shard == NULL || extent.first <= shard->load_pointer)
            return IGN_E_MALFORMED;
        uint32_t count = IGN_ITEM_LEFT(&extent);
        ign_seq_append(ctl, &shard->extents, &extent);
        ign_ctl_put(ctl, &shard->load_pointer, IGN_ITEM_LAST(&extent));
        if (reload)
            ign_ctl_add(ctl, &shard->fire_counter, (uint64_t)-(int64_t)count);
        else
            ign_ctl_add(ctl, &shard->load_counter, count);
        ign_ctl_add(ctl, &shard->living, count);
        ign_state_account(ctl, &extent, 0, count);
        if (due != NULL)
            add_dues(ctl, due, &dues, number, extent.first, count);
    }
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

/* The living records of an extent, and of those that follow it, stand in other places now, as extents of their own. *size: of the move. */
static int move_one(ign_ctl *ctl, const ign_entry *entry, const uint8_t *p, uint64_t bytes, uint64_t *size)
{
    ign_magazine *magazine = bytes < 24 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    ign_shard *shard = magazine == NULL ? NULL : ign_state_shard(ctl, magazine, ign_get16(p + 4));
    uint32_t parts = shard == NULL ? 0 : ign_get32(p + 8), further = shard == NULL ? 0 : ign_get32(p + 12);
    ign_cursor at;
    ign_item *old = parts == 0 ? NULL : ign_seq_find(ctl, &shard->extents, ign_get64(p + 16), &at);
    if (old == NULL || old->first != ign_get64(p + 16))
        return IGN_E_MALFORMED;
    uint64_t first = old->first, last = IGN_ITEM_LAST(old), living = IGN_ITEM_LEFT(old), total = 0, part_bytes;
    for (uint32_t i = 0; i < further; i++) {
        const ign_item *next = ign_seq_next(ctl, &shard->extents, &at);
        if (next == NULL)
            return IGN_E_MALFORMED;
        last = IGN_ITEM_LAST(next);
        living += IGN_ITEM_LEFT(next);
    }
    if (parts > last - first + 1 || parts > bytes / 16)
        return IGN_E_MALFORMED;
    uint64_t scratch = ign_ctl_alloc(ctl, parts * sizeof(ign_item));
    if (scratch == 0)
        return IGN_E_NO_ROOM;
    ign_item *items = ign_ctl_at(ctl, scratch);
    *size = 24;
    for (uint64_t i = 0, behind = first; i < parts; i++, *size += part_bytes) {
        uint16_t number;
        if (*size > bytes || read_part(entry, p + *size, bytes - *size, &number, &items[i], &part_bytes) != IGN_OK ||
            items[i].first < behind || IGN_ITEM_LAST(&items[i]) > last)
            return IGN_E_MALFORMED;
        behind = IGN_ITEM_LAST(&items[i]) + 1;
        total += IGN_ITEM_LEFT(&items[i]);
    }
    if (total != living)
        return IGN_E_MALFORMED;
    for (uint32_t i = 0; i <= further; i++) { /* the first goes last, by the splice */
        old = ign_seq_find(ctl, &shard->extents, first, &at);
        if (i < further)
            old = ign_seq_next(ctl, &shard->extents, &at);
        ign_state_account(ctl, old, IGN_ITEM_LEFT(old), 0);
        if (IGN_ITEM_SPAN(old) > 64)
            ign_ctl_free(ctl, old->word[2], (IGN_ITEM_SPAN(old) + 63) / 64 * 8);
        if (i < further)
            ign_seq_remove(ctl, &shard->extents, &at);
    }
    for (uint64_t i = 0; i < parts; i++)
        ign_state_account(ctl, &items[i], 0, IGN_ITEM_LEFT(&items[i]));
    ign_seq_splice(ctl, &shard->extents, &at, true, items, parts);
    ign_ctl_free(ctl, scratch, parts * sizeof(ign_item));
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

int ign_state_apply_move(ign_ctl *ctl, const ign_entry *entry, const uint8_t *p, uint64_t bytes)
{
    int rc = IGN_E_MALFORMED;
    for (uint64_t size; bytes >= 24; p += size, bytes -= size) {
        rc = move_one(ctl, entry, p, bytes, &size);
        if (rc != IGN_OK)
            break;
    }
    return rc;
}
