#include "ignis_store_index.h"

#include "ignis_record.h"

#include <string.h>

enum { FIRST_ITEMS = 4, PART_ITEMS = 64, FIRST_PARTS = 4, FIRST_BUCKETS = 64 };

typedef struct part {
    uint64_t first, items;
    uint64_t counts; /* items in it, room << 16, living << 32; `items` 0: a gap in the directory */
} part;

static part *part_at(ign_ctl *ctl, const ign_seq *seq, uint64_t index)
{
    return (part *)ign_ctl_at(ctl, seq->directory) + seq->head + index;
}

static uint32_t part_count(const part *p) { return (uint32_t)(p->counts & 0xffffu); }
static uint32_t part_room(const part *p) { return (uint32_t)(p->counts >> 16 & 0xffffu); }
static uint32_t part_living(const part *p) { return (uint32_t)(p->counts >> 32); }
static uint64_t counts_of(uint64_t count, uint64_t room, uint64_t living) { return count | room << 16 | living << 32; }

/* -- sequences: looking ---------------------------------------------------------------------------------------- */

static ign_item *next_from(ign_ctl *ctl, ign_seq *seq, ign_cursor *cursor)
{
    for (; cursor->part < seq->length; cursor->part++, cursor->index = 0) {
        part *p = part_at(ctl, seq, cursor->part);
        if (p->items == 0 || part_living(p) == 0)
            continue;
        ign_item *items = ign_ctl_at(ctl, p->items);
        for (; cursor->index < part_count(p); cursor->index++)
            if (IGN_ITEM_LEFT(&items[cursor->index]) != 0)
                return &items[cursor->index];
    }
    return NULL;
}

ign_item *ign_seq_find(ign_ctl *ctl, ign_seq *seq, uint64_t number, ign_cursor *cursor)
{
    uint64_t low = 0, high = seq->length;
    while (low < high) { /* parts below `low` begin at or below the number, or are gaps */
        uint64_t middle = low + (high - low) / 2, at = middle;
#ifndef IGN_MUTANT_GAP_COUNTS
        while (at > low && part_at(ctl, seq, at)->items == 0) /* where a gap began says nothing: what stands before it may have taken over more */
            at--;
        if (part_at(ctl, seq, at)->items == 0)
            low = middle + 1;
        else
#endif
            if (part_at(ctl, seq, at)->first <= number)
            low = middle + 1;
        else
            high = at;
    }
    while (low > 1 && part_at(ctl, seq, low - 1)->items == 0) /* gone: an item of the one before may reach over it */
        low--;
    *cursor = (ign_cursor){.part = low > 0 ? low - 1 : 0};
    if (low > 0 && part_at(ctl, seq, low - 1)->items != 0) {
        part *p = part_at(ctl, seq, low - 1);
        ign_item *items = ign_ctl_at(ctl, p->items);
        uint32_t from = 0, to = part_count(p);
        while (from < to) {
            uint32_t middle = from + (to - from) / 2;
            if (items[middle].first <= number)
                from = middle + 1;
            else
                to = middle;
        }
        cursor->index = from > 0 ? from - 1 : 0;
        if (from > 0 && number > IGN_ITEM_LAST(&items[from - 1]))
            cursor->index++;
    }
    return next_from(ctl, seq, cursor);
}

ign_item *ign_seq_next(ign_ctl *ctl, ign_seq *seq, ign_cursor *cursor)
{
    cursor->index++;
    return next_from(ctl, seq, cursor);
}

/* -- sequences: changing --------------------------------------------------------------------------------------- */

/* A new directory of the same parts without gaps, in which `extra` parts stand in the place of number `at`. */
static void new_directory(ign_ctl *ctl, ign_seq *seq, uint64_t at, const part *extra, uint64_t extras, bool replace)
{
    uint64_t needed = seq->length + extras + 1;
    uint64_t capacity = FIRST_PARTS;
    while (capacity < needed + needed / 2)
        capacity *= 2;
    uint64_t offset = ign_ctl_alloc(ctl, capacity * sizeof(part));
    if (offset == 0)
        return;
    part *to = ign_ctl_at(ctl, offset);
    uint64_t length = 0;
    for (uint64_t i = 0; i <= seq->length; i++) {
        if (i == at) {
            memcpy(to + length, extra, (size_t)(extras * sizeof *extra));
            length += extras;
            if (replace)
                continue;
        }
        if (i < seq->length && part_at(ctl, seq, i)->items != 0)
            to[length++] = *part_at(ctl, seq, i);
    }
    ign_ctl_free(ctl, seq->directory, seq->capacity * sizeof(part));
    ign_ctl_put(ctl, &seq->directory, offset);
    ign_ctl_put(ctl, &seq->capacity, capacity);
    ign_ctl_put(ctl, &seq->head, 0);
    ign_ctl_put(ctl, &seq->length, length);
}

/* Blocks of items have one of three sizes. */
static uint64_t room_of(uint64_t count)
{
    return count <= FIRST_ITEMS ? FIRST_ITEMS : count <= 4 * FIRST_ITEMS ? 4 * FIRST_ITEMS : PART_ITEMS;
}

static part new_part(ign_ctl *ctl, const ign_item *items, uint64_t count, uint64_t room)
{
    part made = {.first = items[0].first, .counts = counts_of(count, room, count)};
    made.items = ign_ctl_alloc(ctl, room * sizeof *items);
    if (made.items != 0)
        memcpy(ign_ctl_at(ctl, made.items), items, (size_t)(count * sizeof *items));
    return made;
}

static void replace_part(ign_ctl *ctl, part *p, const part *by)
{
    ign_ctl_free(ctl, p->items, part_room(p) * sizeof(ign_item));
    ign_ctl_put(ctl, &p->first, by->first);
    ign_ctl_put(ctl, &p->items, by->items);
    ign_ctl_put(ctl, &p->counts, by->counts);
}

void ign_seq_append(ign_ctl *ctl, ign_seq *seq, const ign_item *item)
{
    if (seq->length > 0) {
        part *p = part_at(ctl, seq, seq->length - 1);
        uint32_t count = part_count(p), room = part_room(p);
        if (p->items != 0 && count == room && room < PART_ITEMS) {
            ign_item copy[PART_ITEMS];
            memcpy(copy, ign_ctl_at(ctl, p->items), count * sizeof copy[0]);
            part grown = new_part(ctl, copy, count, room * 4u);
            if (grown.items == 0)
                return;
            grown.first = p->first;
            grown.counts = counts_of(count, room * 4u, part_living(p));
            replace_part(ctl, p, &grown);
            room *= 4;
        }
        if (p->items != 0 && count < room) {
            ((ign_item *)ign_ctl_at(ctl, p->items))[count] = *item;
            ign_ctl_put(ctl, &p->counts, counts_of(count + 1, room, part_living(p) + 1u));
            return;
        }
    }
    part made = new_part(ctl, item, 1, seq->length == 0 ? FIRST_ITEMS : PART_ITEMS);
    if (made.items == 0)
        return;
    if (seq->head + seq->length == seq->capacity) {
        new_directory(ctl, seq, seq->length, &made, 1, false);
        return;
    }
    *part_at(ctl, seq, seq->length) = made; /* beyond the length: nobody's */
    ign_ctl_put(ctl, &seq->length, seq->length + 1);
}

static void drop_part(ign_ctl *ctl, ign_seq *seq, uint64_t index)
{
    part *p = part_at(ctl, seq, index);
    ign_ctl_free(ctl, p->items, part_room(p) * sizeof(ign_item));
    ign_ctl_put(ctl, &p->items, 0);
    ign_ctl_put(ctl, &p->counts, 0);
    while (seq->length > 0 && part_at(ctl, seq, 0)->items == 0) {
        ign_ctl_put(ctl, &seq->head, seq->head + 1);
        ign_ctl_put(ctl, &seq->length, seq->length - 1);
    }
    if (seq->length == 0) {
        ign_ctl_free(ctl, seq->directory, seq->capacity * sizeof(part));
        ign_ctl_put(ctl, &seq->directory, 0);
        ign_ctl_put(ctl, &seq->capacity, 0);
        ign_ctl_put(ctl, &seq->head, 0);
    }
}

void ign_seq_set_left(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor, uint32_t left)
{
    part *p = part_at(ctl, seq, cursor->part);
    ign_item *item = (ign_item *)ign_ctl_at(ctl, p->items) + cursor->index;
    ign_ctl_put(ctl, &item->left, (item->left & ~(uint64_t)UINT32_MAX) | left);
    if (left != 0)
        return;
    if (part_living(p) > 1)
        ign_ctl_put(ctl, &p->counts, counts_of(part_count(p), part_room(p), part_living(p) - 1u));
    else
        drop_part(ctl, seq, cursor->part);
}

void ign_seq_remove(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor)
{
    part *p = part_at(ctl, seq, cursor->part);
    bool last = part_living(p) == 1;
    ign_seq_set_left(ctl, seq, cursor, 0);
    if (last)
        return;
    const ign_item *items = ign_ctl_at(ctl, p->items);
    uint32_t i = 0;
    while (IGN_ITEM_LEFT(&items[i]) == 0)
        i++;
    if (items[i].first > p->first)
        ign_ctl_put(ctl, &p->first, items[i].first);
}

/* Living items of one part, with others in or beside the place of one of them: written to new parts, which take its place. */
void ign_seq_splice(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor, bool drop, const ign_item *items, uint64_t count)
{
    part *p = part_at(ctl, seq, cursor->part);
    const ign_item *old = ign_ctl_at(ctl, p->items);
    uint64_t room = part_count(p) + count, total = 0, taken = 0;
    uint64_t scratch = ign_ctl_alloc(ctl, (room + 1) * sizeof(ign_item) + (room / (PART_ITEMS / 2) + 2) * sizeof(part));
    if (scratch == 0)
        return;
    ign_item *all = ign_ctl_at(ctl, scratch);
    for (uint32_t i = 0; i < part_count(p); i++) {
        if (IGN_ITEM_LEFT(&old[i]) == 0 || (drop && i == cursor->index))
            continue;
        while (taken < count && items[taken].first < old[i].first)
            all[total++] = items[taken++];
        all[total++] = old[i];
    }
    while (taken < count)
        all[total++] = items[taken++];
    part *parts = (part *)(all + room + 1);
    uint64_t made = 0;
    for (uint64_t at = 0; at < total && !ctl->no_room; made++) {
        uint64_t part_items = total - at <= PART_ITEMS ? total - at : PART_ITEMS / 2;
        parts[made] = new_part(ctl, all + at, part_items, room_of(part_items));
        at += part_items;
    }
    if (!ctl->no_room) {
        if (made == 0)
            drop_part(ctl, seq, cursor->part);
        else if (made == 1)
            replace_part(ctl, p, &parts[0]);
        else {
            ign_ctl_free(ctl, p->items, part_room(p) * sizeof(ign_item));
            new_directory(ctl, seq, cursor->part, parts, made, true);
        }
    }
    ign_ctl_free(ctl, scratch, (room + 1) * sizeof(ign_item) + (room / (PART_ITEMS / 2) + 2) * sizeof(part));
}

void ign_seq_free(ign_ctl *ctl, ign_seq *seq)
{
    for (uint64_t i = 0; i < seq->length; i++)
        if (part_at(ctl, seq, i)->items != 0)
            ign_ctl_free(ctl, part_at(ctl, seq, i)->items, part_room(part_at(ctl, seq, i)) * sizeof(ign_item));
    ign_ctl_free(ctl, seq->directory, seq->capacity * sizeof(part));
    ign_ctl_put(ctl, &seq->directory, 0);
    ign_ctl_put(ctl, &seq->head, 0);
    ign_ctl_put(ctl, &seq->length, 0);
    ign_ctl_put(ctl, &seq->capacity, 0);
}

void ign_seq_copy(ign_ctl *to, ign_seq *made, ign_ctl *from, ign_seq *seq, ign_seq_change *change)
{
    uint64_t left = 0, capacity = FIRST_PARTS;
    *made = (ign_seq){0};
    for (uint64_t i = 0; i < seq->length; i++)
        left += part_at(from, seq, i)->items == 0 ? 0 : part_living(part_at(from, seq, i));
    if (left == 0)
        return;
    uint64_t parts = (left + PART_ITEMS - 1) / PART_ITEMS;
    while (capacity < parts + parts / 2 + 1)
        capacity *= 2;
    uint64_t directory = ign_ctl_alloc(to, capacity * sizeof(part));
    ign_cursor at = {0};
    ign_item *next = next_from(from, seq, &at);
    for (uint64_t i = 0; i < parts && !to->no_room; i++) {
        ign_item items[PART_ITEMS];
        uint64_t count = left < PART_ITEMS ? left : PART_ITEMS;
        for (uint64_t k = 0; k < count; k++, next = ign_seq_next(from, seq, &at)) {
            items[k] = *next;
            change(to, from, &items[k]);
        }
        part one = new_part(to, items, count, room_of(count));
        ((part *)ign_ctl_at(to, directory))[i] = one; /* plainly: nobody else sees it */
        left -= count;
    }
    *made = (ign_seq){.directory = directory, .length = parts, .capacity = capacity};
}

/* -- the map --------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(uint8_t kind, const void *key, uint32_t bytes)
{
    uint32_t a = ign_crc32c(kind, key, bytes);
    uint64_t h = ((uint64_t)a << 32 | bytes) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

static uint64_t record_bytes(uint32_t key_bytes, uint32_t value_bytes)
{
    return sizeof(ign_record_of) + (key_bytes + 7ull) / 8 * 8 + (value_bytes + 7ull) / 8 * 8;
}

static uint64_t *bucket_of(ign_ctl *ctl, uint64_t hash)
{
    return (uint64_t *)ign_ctl_at(ctl, ctl->root->buckets) + (hash & (ctl->root->bucket_count - 1));
}

uint64_t ign_map_find(ign_ctl *ctl, uint8_t kind, const void *key, uint32_t key_bytes)
{
    if (ctl->root->bucket_count == 0)
        return 0;
    uint64_t hash = hash_of(kind, key, key_bytes);
    for (uint64_t at = *bucket_of(ctl, hash); at != 0;) {
        ign_record_of *record = ign_ctl_at(ctl, at);
        if (record->hash == hash && IGN_KEY_KIND(record) == kind && IGN_KEY_BYTES(record) == key_bytes &&
            memcmp(record->data, key, key_bytes) == 0)
            return at;
        at = record->next;
    }
    return 0;
}

static void grow_buckets(ign_ctl *ctl)
{
    uint64_t had = ctl->root->bucket_count, count = had == 0 ? FIRST_BUCKETS : had * 4, old = ctl->root->buckets;
    uint64_t offset = ign_ctl_alloc(ctl, count * sizeof(uint64_t));
    if (offset == 0)
        return;
    uint64_t *buckets = ign_ctl_at(ctl, offset);
    memset(buckets, 0, (size_t)count * sizeof *buckets);
    for (uint64_t b = 0; b < had; b++)
        for (uint64_t at = ((uint64_t *)ign_ctl_at(ctl, old))[b]; at != 0;) {
            ign_record_of *record = ign_ctl_at(ctl, at);
            uint64_t next = record->next, *bucket = &buckets[record->hash & (count - 1)];
            ign_ctl_put(ctl, &record->next, *bucket);
            *bucket = at;
            at = next;
        }
    ign_ctl_free(ctl, old, had * sizeof(uint64_t));
    ign_ctl_put(ctl, &ctl->root->buckets, offset);
    ign_ctl_put(ctl, &ctl->root->bucket_count, count);
}

uint64_t ign_map_set(ign_ctl *ctl, uint8_t kind, const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes)
{
    uint64_t before = ign_map_find(ctl, kind, key, key_bytes);
    if (before != 0)
        ign_map_remove(ctl, before);
    else if (ctl->root->keys >= ctl->root->bucket_count * 2)
        grow_buckets(ctl);
    if (ctl->root->bucket_count == 0)
        return 0;
    uint64_t offset = ign_ctl_alloc(ctl, record_bytes(key_bytes, value_bytes));
    if (offset == 0)
        return 0;
    ign_record_of *record = ign_ctl_at(ctl, offset);
    uint64_t *bucket = bucket_of(ctl, hash_of(kind, key, key_bytes));
    memset(record, 0, (size_t)record_bytes(key_bytes, value_bytes));
    *record = (ign_record_of){.next = *bucket, .hash = hash_of(kind, key, key_bytes),
                              .sizes = kind | (uint64_t)key_bytes << 8 | (uint64_t)value_bytes << 32};
    memcpy(record->data, key, key_bytes);
    if (value != NULL)
        memcpy(ign_record_value(record), value, value_bytes);
    ign_ctl_put(ctl, bucket, offset);
    ign_ctl_put(ctl, &ctl->root->keys, ctl->root->keys + 1);
    return offset;
}

void ign_map_remove(ign_ctl *ctl, uint64_t offset)
{
    ign_record_of *record = ign_ctl_at(ctl, offset);
    uint64_t *link = bucket_of(ctl, record->hash);
    while (*link != offset)
        link = &((ign_record_of *)ign_ctl_at(ctl, *link))->next;
    ign_ctl_put(ctl, link, record->next);
    ign_ctl_put(ctl, &ctl->root->keys, ctl->root->keys - 1);
    ign_ctl_free(ctl, offset, record_bytes(IGN_KEY_BYTES(record), IGN_VALUE_BYTES(record)));
}

uint64_t ign_map_next(ign_ctl *ctl, uint8_t kind, uint64_t offset)
{
    uint64_t bucket = 0, at = 0;
    if (offset != 0) {
        ign_record_of *record = ign_ctl_at(ctl, offset);
        bucket = record->hash & (ctl->root->bucket_count - 1);
        at = record->next;
        bucket++;
    }
    for (;;) {
        for (; at != 0; at = ((ign_record_of *)ign_ctl_at(ctl, at))->next)
            if (IGN_KEY_KIND((ign_record_of *)ign_ctl_at(ctl, at)) == kind)
                return at;
        if (bucket >= ctl->root->bucket_count)
            return 0;
        at = ((uint64_t *)ign_ctl_at(ctl, ctl->root->buckets))[bucket++];
    }
}

void ign_map_copy(ign_ctl *to, ign_ctl *from)
{
    uint64_t count = from->root->bucket_count, offset = count == 0 ? 0 : ign_ctl_alloc(to, count * sizeof(uint64_t));
    if (offset == 0)
        return;
    const uint64_t *old = ign_ctl_at(from, from->root->buckets);
    uint64_t *buckets = ign_ctl_at(to, offset);
    memset(buckets, 0, (size_t)count * sizeof *buckets);
    for (uint64_t b = 0; b < count; b++) {
        uint64_t *link = &buckets[b];
        for (uint64_t at = old[b]; at != 0;) {
            ign_record_of *record = ign_ctl_at(from, at);
            uint64_t bytes = record_bytes(IGN_KEY_BYTES(record), IGN_VALUE_BYTES(record)), made = ign_ctl_alloc(to, bytes);
            if (made == 0)
                return;
            ign_record_of *copy = ign_ctl_at(to, made);
            memcpy(copy, record, (size_t)bytes);
            at = record->next;
            record->hash = made; /* found by ign_map_copied */
            copy->next = 0;
            *link = made;
            link = &copy->next;
        }
    }
    to->root->buckets = offset;
    to->root->bucket_count = count;
    to->root->keys = from->root->keys;
}

uint64_t ign_map_copied(const ign_ctl *from, uint64_t offset)
{
    return ((const ign_record_of *)ign_ctl_at(from, offset))->hash;
}
