#include "ignis_store_state.h"

#include "ignis_bytes.h"

#include <string.h>

enum { FIRST_SEGMENTS = 8 };

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* -- magazines ----------------------------------------------------------------------------------------------------- */

ign_magazine *ign_state_magazine(ign_ctl *ctl, uint64_t number)
{
    if (number >= ctl->root->by_id_count)
        return NULL;
    uint64_t record = ((uint64_t *)ign_ctl_at(ctl, ctl->root->by_id))[number];
    return record == 0 ? NULL : ign_record_value(ign_ctl_at(ctl, record));
}

ign_shard *ign_state_shard(ign_ctl *ctl, const ign_magazine *magazine, uint64_t shard)
{
    return shard >= magazine->shards ? NULL : (ign_shard *)ign_ctl_at(ctl, magazine->shards_at) + shard;
}

static ign_due *due_behind(const ign_magazine *magazine)
{
    return (ign_due *)(void *)(uintptr_t)(magazine + 1);
}

ign_due *ign_state_due(ign_ctl *ctl, const ign_magazine *magazine)
{
    if ((magazine->durability & IGN_MAGAZINE_IS_LATER) != 0)
        return due_behind(magazine);
    uint32_t other = IGN_MAGAZINE_OTHER(magazine);
    const ign_magazine *later = other == 0 ? NULL : ign_state_magazine(ctl, other);
    return later == NULL || (later->durability & IGN_MAGAZINE_IS_LATER) == 0 ? NULL : due_behind(later);
}

/* Returns the place of a number in the table of numbers, which grows if it must. */
static uint64_t *number_slot(ign_ctl *ctl, uint64_t number)
{
    uint64_t had = ctl->root->by_id_count;
    if (number >= had) {
        uint64_t count = had == 0 ? 16 : had * 2;
        while (count <= number)
            count *= 2;
        uint64_t offset = ign_ctl_alloc(ctl, count * sizeof(uint64_t));
        if (offset == 0)
            return NULL;
        uint64_t *table = ign_ctl_at(ctl, offset);
        memset(table, 0, (size_t)count * sizeof *table);
        memcpy(table, ign_ctl_at(ctl, ctl->root->by_id), (size_t)had * sizeof *table);
        ign_ctl_free(ctl, ctl->root->by_id, had * sizeof *table);
        ign_ctl_put(ctl, &ctl->root->by_id, offset);
        ign_ctl_put(ctl, &ctl->root->by_id_count, count);
    }
    return (uint64_t *)ign_ctl_at(ctl, ctl->root->by_id) + number;
}

static void set_shards(ign_ctl *ctl, ign_magazine *magazine, uint16_t shards, uint64_t first, uint64_t incarnation)
{
    uint64_t had = magazine->shards, old = magazine->shards_at;
    if (shards == had)
        return;
    uint64_t offset = ign_ctl_alloc(ctl, shards * sizeof(ign_shard));
    if (offset == 0)
        return;
    ign_shard *all = ign_ctl_at(ctl, offset);
    uint64_t kept = had < shards ? had : shards;
    memset(all, 0, shards * sizeof *all);
    memcpy(all, ign_ctl_at(ctl, old), (size_t)kept * sizeof *all);
    for (uint64_t i = kept; i < shards; i++)
        all[i] = (ign_shard){.load_pointer = first - 1, .fire_pointer = first - 1,
                             .incarnation = incarnation * 0x9E3779B97F4A7C15ull + i};
    ign_ctl_free(ctl, old, had * sizeof *all);
    ign_ctl_put(ctl, &magazine->shards_at, offset);
    ign_ctl_put(ctl, &magazine->shards, shards);
}

static void drop_shard(ign_ctl *ctl, ign_shard *shard)
{
    ign_state_forget_claims(ctl, shard);
    ign_state_retire(ctl, shard, 1, UINT64_MAX - 1);
    ign_seq_free(ctl, &shard->extents);
    if (shard->load_pointer >= ctl->root->first_pointer)
        ign_ctl_put(ctl, &ctl->root->first_pointer, shard->load_pointer + 1);
}

static void set_other(ign_ctl *ctl, ign_magazine *magazine, uint32_t other)
{
    ign_ctl_put(ctl, &magazine->durability, (magazine->durability & UINT32_MAX) | (uint64_t)other << 32);
}

static void drop_magazine(ign_ctl *ctl, ign_magazine *magazine)
{
    for (uint64_t i = 0; i < magazine->shards; i++)
        drop_shard(ctl, ign_state_shard(ctl, magazine, i));
    if ((magazine->durability & IGN_MAGAZINE_IS_LATER) != 0)
        ign_due_free(ctl, due_behind(magazine));
    ign_ids_free(ctl, &magazine->ids);
    ign_ctl_free(ctl, magazine->shards_at, magazine->shards * sizeof(ign_shard));
    uint64_t *slot = number_slot(ctl, magazine->number), record = *slot;
    ign_ctl_put(ctl, slot, 0);
    ign_map_remove(ctl, record);
}

/* Drops a magazine together with its later one. */
static void drop_both(ign_ctl *ctl, ign_magazine *magazine)
{
    uint32_t number = IGN_MAGAZINE_OTHER(magazine);
    ign_magazine *other = number == 0 ? NULL : ign_state_magazine(ctl, number);
    if (other != NULL && (magazine->durability & IGN_MAGAZINE_IS_LATER) != 0)
        set_other(ctl, other, 0);
    else if (other != NULL)
        drop_magazine(ctl, other);
    drop_magazine(ctl, magazine);
}

static ign_magazine *make_magazine(ign_ctl *ctl, const uint8_t *p, uint32_t name_bytes, bool later)
{
    uint32_t number = ign_get32(p);
    struct {
        ign_magazine magazine;
        ign_due due;
    } fresh = {{.number = number, .durability = p[6] | (later ? IGN_MAGAZINE_IS_LATER : 0)}, {.next = IGN_DUE_NONE}};
    uint64_t *slot = number_slot(ctl, number);
    uint64_t record = ign_map_set(ctl, IGN_KEY_MAGAZINE, p + 32, name_bytes, &fresh, later ? sizeof fresh : sizeof fresh.magazine);
    if (slot == NULL || record == 0)
        return NULL;
    ign_ctl_put(ctl, slot, record);
    if (number >= ctl->root->next_magazine)
        ign_ctl_put(ctl, &ctl->root->next_magazine, (uint64_t)number + 1);
    return ign_state_magazine(ctl, number);
}

static int apply_catalogue(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    if (bytes < 32 || bytes - 32 < ign_get32(p + 24))
        return IGN_E_MALFORMED;
    uint32_t number = ign_get32(p), name_bytes = ign_get32(p + 24);
    uint16_t shards = ign_get16(p + 4);
    ign_magazine *magazine = ign_state_magazine(ctl, number);
    bool later = (p[7] & IGN_CATALOGUE_LATER) != 0;
    ign_magazine *main = later ? ign_state_magazine(ctl, ign_get32(p + 28)) : NULL;
    if (shards > IGN_STORE_MAX_SHARDS || (magazine == NULL && shards == 0) || number >= 1u << 28)
        return IGN_E_MALFORMED;
    if (later && (main == NULL || main == magazine || (main->durability & IGN_MAGAZINE_IS_LATER) != 0 ||
                  (magazine != NULL && (magazine->durability & IGN_MAGAZINE_IS_LATER) == 0)))
        return IGN_E_MALFORMED;
    if (shards == 0) {
        drop_both(ctl, magazine);
        return IGN_OK;
    }
    if (magazine == NULL)
        magazine = make_magazine(ctl, p, name_bytes, later);
    if (magazine == NULL)
        return IGN_E_NO_ROOM;
    if (later) {
        set_other(ctl, magazine, (uint32_t)main->number);
        set_other(ctl, main, number);
    }
    for (uint64_t i = shards; i < magazine->shards; i++)
        drop_shard(ctl, ign_state_shard(ctl, magazine, i));
    set_shards(ctl, magazine, shards, ign_get64(p + 8), ign_get64(p + 16));
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

/* -- segments ------------------------------------------------------------------------------------------------------ */

ign_state_segment *ign_state_find_segment(ign_ctl *ctl, uint64_t position)
{
    ign_state_segment *all = ign_ctl_at(ctl, ctl->root->segments);
    uint64_t low = 0, high = ctl->root->segment_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (all[middle].info.base <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? NULL : &all[low - 1];
}

ign_state_segment *ign_state_last_segment(ign_ctl *ctl)
{
    uint64_t count = ctl->root->segment_count;
    return count == 0 ? NULL : (ign_state_segment *)ign_ctl_at(ctl, ctl->root->segments) + (count - 1);
}

void ign_state_add_segment(ign_ctl *ctl, const ign_segment_info *segment)
{
    ign_root *root = ctl->root;
    if (root->segment_count == root->segment_capacity) {
        uint64_t capacity = root->segment_capacity == 0 ? FIRST_SEGMENTS : root->segment_capacity * 2;
        uint64_t offset = ign_ctl_alloc(ctl, capacity * sizeof(ign_state_segment));
        if (offset == 0)
            return;
        memcpy(ign_ctl_at(ctl, offset), ign_ctl_at(ctl, root->segments), (size_t)(root->segment_count * sizeof(ign_state_segment)));
        ign_ctl_free(ctl, root->segments, root->segment_capacity * sizeof(ign_state_segment));
        ign_ctl_put(ctl, &root->segments, offset);
        ign_ctl_put(ctl, &root->segment_capacity, capacity);
    }
    ign_state_segment *slot = (ign_state_segment *)ign_ctl_at(ctl, root->segments) + root->segment_count;
    *slot = (ign_state_segment){.info = *segment}; /* plainly: beyond the count nothing is read */
    ign_ctl_put(ctl, &root->segment_count, root->segment_count + 1);
}

static int apply_segment(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    if (bytes < 16)
        return IGN_E_MALFORMED;
    ign_root *root = ctl->root;
    uint64_t generation = ign_get64(p), number = ign_get64(p + 8), kept = 0;
    uint64_t offset = ign_ctl_alloc(ctl, root->segment_capacity * sizeof(ign_state_segment));
    if (offset == 0)
        return root->segment_capacity == 0 ? IGN_E_MALFORMED : IGN_E_NO_ROOM;
    ign_state_segment *from = ign_ctl_at(ctl, root->segments), *to = ign_ctl_at(ctl, offset);
    for (uint64_t i = 0; i < root->segment_count; i++)
        if (from[i].info.generation != generation || from[i].info.number != number)
            to[kept++] = from[i];
    ign_ctl_free(ctl, root->segments, root->segment_capacity * sizeof(ign_state_segment));
    ign_ctl_put(ctl, &root->segments, offset);
    ign_ctl_put(ctl, &root->segment_count, kept);
    return IGN_OK;
}

/* -- runs ---------------------------------------------------------------------------------------------------------- */

static ign_shard *run_at(ign_ctl *ctl, const ign_magazine *magazine, const uint8_t *run, uint64_t *first, uint64_t *last)
{
    *first = ign_get64(run + 8);
    *last = ign_get64(run + 16);
    return *first == 0 || *last < *first ? NULL : ign_state_shard(ctl, magazine, ign_get16(run));
}

static bool run_lives(ign_ctl *ctl, void *arg, const ign_due_run *run)
{
    ign_shard *shard = ign_state_shard(ctl, arg, run->shard);
    return shard != NULL && ign_state_living(ctl, shard, run->first, run->last) != 0;
}

/* Notes in the due times that so many records of a later magazine died, and tidies them. */
static void note_died(ign_ctl *ctl, ign_magazine *magazine, uint64_t died, bool tidy)
{
    if ((magazine->durability & IGN_MAGAZINE_IS_LATER) == 0 || (died == 0 && !tidy))
        return;
    ign_due *due = due_behind(magazine);
    ign_ctl_put(ctl, &due->living, due->living > died ? due->living - died : 0);
    ign_due_tidy(ctl, due, tidy ? UINT32_MAX : died, run_lives, magazine);
}

static int apply_retire(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    ign_magazine *magazine = bytes < 8 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    if (magazine == NULL || (bytes - 8) / IGN_RUN_BYTES < ign_get32(p + 4))
        return IGN_E_MALFORMED;
    uint64_t died = 0;
    for (uint32_t i = 0; i < ign_get32(p + 4); i++) {
        uint64_t first, last;
        ign_shard *shard = run_at(ctl, magazine, p + 8 + (uint64_t)i * IGN_RUN_BYTES, &first, &last);
        if (shard != NULL)
            died += ign_state_retire(ctl, shard, first, last);
    }
    note_died(ctl, magazine, died, ign_get32(p + 4) == 0);
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

static int apply_transfer(ign_ctl *ctl, const ign_entry *entry)
{
    uint64_t loads = entry->payload_bytes < 8 ? UINT64_MAX : pad8(ign_get32(entry->payload));
    if (loads > entry->payload_bytes || entry->payload_bytes - 8 < loads)
        return IGN_E_MALFORMED;
    int rc = ign_state_apply_load(ctl, entry, entry->payload + 8, loads);
    return rc != IGN_OK ? rc : apply_retire(ctl, entry->payload + 8 + loads, entry->payload_bytes - 8 - loads);
}

/* Applies CLAIM and RENEW, whose payloads begin alike. */
static int apply_claims(ign_ctl *ctl, const uint8_t *p, uint64_t bytes, bool renew)
{
    ign_magazine *magazine = bytes < 24 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    if (magazine == NULL)
        return IGN_E_MALFORMED;
    uint32_t owner_bytes = ign_get16(p + 4), next_bytes = renew ? ign_get16(p + 6) : 0, runs = ign_get32(p + 16);
    uint64_t names = pad8(owner_bytes) + pad8(next_bytes), ms = ign_get64(p + 8);
    if (bytes - 24 < names || (bytes - 24 - names) / IGN_RUN_BYTES < runs)
        return IGN_E_MALFORMED;
    const uint8_t *owner = p + 24, *next = owner + pad8(owner_bytes);
    for (uint32_t i = 0; i < runs; i++) {
        uint64_t first, last, known;
        ign_shard *shard = run_at(ctl, magazine, p + 24 + names + (uint64_t)i * IGN_RUN_BYTES, &first, &last);
        if (shard == NULL)
            return IGN_E_MALFORMED;
        if (!renew) {
            int rc = ign_state_claim(ctl, shard, first, last, owner, owner_bytes, ms);
            if (rc != IGN_OK)
                return rc;
        } else if ((known = ign_map_find(ctl, IGN_KEY_OWNER, owner, owner_bytes)) != 0)
            ign_state_renew(ctl, shard, first, last, known, next, next_bytes, ms);
    }
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

static int apply_claimed(ign_ctl *ctl, const ign_entry *entry)
{
    uint64_t loads = entry->payload_bytes < 8 ? UINT64_MAX : pad8(ign_get32(entry->payload));
    if (loads > entry->payload_bytes || entry->payload_bytes - 8 < loads)
        return IGN_E_MALFORMED;
    int rc = ign_state_apply_load(ctl, entry, entry->payload + 8, loads);
    return rc != IGN_OK ? rc : apply_claims(ctl, entry->payload + 8 + loads, entry->payload_bytes - 8 - loads, false);
}

/* Expires runs anywhere in a later magazine, where nothing has to wait for what is before it. */
static int expire_anywhere(ign_ctl *ctl, ign_magazine *magazine, const uint8_t *p, uint64_t bytes)
{
    uint32_t runs = ign_get32(p + 4);
    if ((bytes - 8) / IGN_RUN_BYTES < runs)
        return IGN_E_MALFORMED;
    uint64_t total = 0;
    for (uint32_t i = 0; i < runs; i++) {
        uint64_t first, last;
        ign_shard *shard = run_at(ctl, magazine, p + 8 + (uint64_t)i * IGN_RUN_BYTES, &first, &last);
        uint64_t died = shard == NULL ? 0 : ign_state_retire(ctl, shard, first, last);
        if (died != 0)
            ign_ctl_add(ctl, &shard->expired, died);
        total += died;
    }
    note_died(ctl, magazine, total, false);
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

static int apply_expire(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    uint64_t first, last;
    ign_magazine *magazine = bytes < 8 + IGN_RUN_BYTES ? NULL : ign_state_magazine(ctl, ign_get32(p));
    if (magazine != NULL && ign_get32(p + 4) != 0)
        return expire_anywhere(ctl, magazine, p, bytes);
    ign_shard *shard = magazine == NULL ? NULL : run_at(ctl, magazine, p + 8, &first, &last);
    if (shard == NULL || first <= shard->fire_pointer || last > shard->load_pointer)
        return IGN_E_MALFORMED;
    uint64_t before = shard->living;
    ign_state_expire(ctl, shard, first, last);
    note_died(ctl, magazine, before - shard->living, false);
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

/* -- ids ----------------------------------------------------------------------------------------------------------- */

ign_magazine *ign_state_with_ids(ign_ctl *ctl, ign_magazine *magazine)
{
    if ((magazine->durability & IGN_MAGAZINE_IS_LATER) == 0)
        return magazine;
    return IGN_MAGAZINE_OTHER(magazine) == 0 ? NULL : ign_state_magazine(ctl, IGN_MAGAZINE_OTHER(magazine));
}

static int apply_once(ign_ctl *ctl, const ign_entry *entry)
{
    const uint8_t *p = entry->payload;
    uint64_t bytes = entry->payload_bytes;
    ign_magazine *magazine = bytes < 16 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    magazine = magazine == NULL ? NULL : ign_state_with_ids(ctl, magazine);
    if (magazine == NULL || (bytes - 16) / IGN_ID_BYTES < ign_get32(p + 4))
        return IGN_E_MALFORMED;
    uint64_t ids = (uint64_t)ign_get32(p + 4) * IGN_ID_BYTES;
    int rc = ign_state_apply_load(ctl, entry, p + 16 + ids, bytes - 16 - ids);
    for (uint64_t at = 0; rc == IGN_OK && at < ids; at += IGN_ID_BYTES) {
        ign_ids_add(ctl, &magazine->ids, ign_get32(p + 8), p + 16 + at);
        rc = ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
    }
    return rc;
}

static int apply_forget(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    ign_magazine *magazine = bytes < 16 ? NULL : ign_state_magazine(ctl, ign_get32(p));
    if (magazine == NULL)
        return IGN_E_MALFORMED;
    ign_ids_forget(ctl, &magazine->ids, ign_get32(p + 4), ign_get32(p + 8));
    return IGN_OK;
}

/* -- the rest ------------------------------------------------------------------------------------------------------ */

static int apply_keys(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    uint32_t keys = bytes < 8 ? 0 : ign_get32(p);
    for (uint64_t at = 8; keys > 0; keys--) {
        if (at > bytes || bytes - at < 8)
            return IGN_E_MALFORMED;
        uint32_t key_bytes = ign_get32(p + at), value_bytes = ign_get32(p + at + 4);
        bool gone = value_bytes == UINT32_MAX;
        uint64_t size = pad8(key_bytes) + (gone ? 0 : pad8(value_bytes));
        if (key_bytes >= 1u << 24 || bytes - at - 8 < size)
            return IGN_E_MALFORMED;
        const uint8_t *key = p + at + 8;
        uint64_t had = gone ? ign_map_find(ctl, IGN_KEY_VALUE, key, key_bytes) : 0;
        if (had != 0)
            ign_map_remove(ctl, had);
        if (!gone)
            ign_map_set(ctl, IGN_KEY_VALUE, key, key_bytes, key + pad8(key_bytes), value_bytes);
        at += 8 + size;
    }
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

static uint64_t leap(uint64_t pointer, uint64_t jump)
{
    return jump > IGN_POINTER_MAX || pointer > IGN_POINTER_MAX - jump ? IGN_POINTER_MAX : pointer + jump;
}

static int apply_open(ign_ctl *ctl, const uint8_t *p, uint64_t bytes)
{
    if (bytes < 16)
        return IGN_E_MALFORMED;
    uint64_t jump = ign_get64(p + 8);
    bool anything = ctl->root->openings != 0;
    ign_ctl_put(ctl, &ctl->root->openings, ign_get64(p));
#ifdef IGN_MUTANT_NO_JUMP
    jump = 0;
#endif
    /* Also for magazines to come: one that was declared and lost had given out pointers too. */
#ifndef IGN_MUTANT_LOST_MAGAZINE
    if (anything)
        ign_ctl_put(ctl, &ctl->root->first_pointer, leap(ctl->root->first_pointer, jump));
#endif
    for (uint64_t n = 0; n < ctl->root->by_id_count; n++) {
        ign_magazine *magazine = ign_state_magazine(ctl, n);
        for (uint64_t i = 0; magazine != NULL && i < magazine->shards; i++) {
            ign_shard *shard = ign_state_shard(ctl, magazine, i);
            ign_ctl_put(ctl, &shard->load_pointer, leap(shard->load_pointer, jump));
        }
    }
    return IGN_OK;
}

int ign_state_apply(ign_ctl *ctl, const ign_entry *entry)
{
    const uint8_t *p = entry->payload;
    uint64_t bytes = entry->payload_bytes;
    switch (entry->type) {
    case IGN_ENTRY_OPEN: return apply_open(ctl, p, bytes);
    case IGN_ENTRY_CATALOGUE: return apply_catalogue(ctl, p, bytes);
    case IGN_ENTRY_LOAD: return ign_state_apply_load(ctl, entry, p, bytes);
    case IGN_ENTRY_CLAIM: return apply_claims(ctl, p, bytes, false);
    case IGN_ENTRY_RENEW: return apply_claims(ctl, p, bytes, true);
    case IGN_ENTRY_RETIRE: return apply_retire(ctl, p, bytes);
    case IGN_ENTRY_TRANSFER: return apply_transfer(ctl, entry);
    case IGN_ENTRY_MOVE: return ign_state_apply_move(ctl, entry, p, bytes);
    case IGN_ENTRY_KEY: return apply_keys(ctl, p, bytes);
    case IGN_ENTRY_SEGMENT: return apply_segment(ctl, p, bytes);
    case IGN_ENTRY_EXPIRE: return apply_expire(ctl, p, bytes);
    case IGN_ENTRY_CLAIMED: return apply_claimed(ctl, entry);
    case IGN_ENTRY_ONCE: return apply_once(ctl, entry);
    case IGN_ENTRY_FORGET: return apply_forget(ctl, p, bytes);
    case IGN_ENTRY_WITNESS: return IGN_OK;
    default: return IGN_E_MALFORMED;
    }
}
