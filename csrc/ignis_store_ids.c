#include "ignis_store_ids.h"

#include <string.h>

enum { PAGE_IDS = 63, FIRST_HOURS = 4, MAX_DEPTH = 40 };

typedef struct hour_of {
    uint64_t hour, directory, depth;
    uint64_t pages; /* in all chains */
    uint64_t gone;  /* the directory's entries below are forgotten */
    uint64_t spare;
} hour_of;

typedef struct page {
    uint64_t counts; /* ids in it, bits << 16 */
    uint64_t next;   /* of the same bits */
    uint64_t ids[PAGE_IDS][2];
} page;

static uint64_t page_count(const page *p) { return p->counts & 0xffffu; }
static uint64_t page_bits(const page *p) { return p->counts >> 16; }

static uint64_t hash_of(const uint64_t id[2])
{
    uint64_t h = (id[0] ^ 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
    h = ((h ^ h >> 29) + id[1]) * 0x94D049BB133111EBull;
    return h ^ h >> 32;
}

static uint64_t slot_of(uint64_t hash, uint64_t depth)
{
    return depth == 0 ? 0 : hash >> (64 - depth);
}

static hour_of *hour_at(ign_ctl *ctl, const ign_ids *ids, uint64_t i)
{
    return (hour_of *)ign_ctl_at(ctl, ids->hours) + i;
}

static uint64_t *entry_at(ign_ctl *ctl, const hour_of *hour, uint64_t slot)
{
    return (uint64_t *)ign_ctl_at(ctl, hour->directory) + slot;
}

static bool in_hour(ign_ctl *ctl, const hour_of *hour, const uint64_t id[2], uint64_t hash)
{
    for (uint64_t at = *entry_at(ctl, hour, slot_of(hash, hour->depth)); at != 0;) {
        const page *p = ign_ctl_at(ctl, at);
        for (uint64_t i = 0, count = page_count(p); i < count; i++)
            if (p->ids[i][0] == id[0] && p->ids[i][1] == id[1])
                return true;
        at = p->next;
    }
    return false;
}

static uint64_t floor_of(const ign_ids *ids, uint32_t hour_now)
{
#ifdef IGN_MUTANT_FORGET_EARLY
    hour_now++;
#endif
    return ids->floor > hour_now ? ids->floor : hour_now;
}

bool ign_ids_known(ign_ctl *ctl, const ign_ids *ids, uint32_t hour_now, const uint8_t *id)
{
    uint64_t words[2], over = floor_of(ids, hour_now);
    memcpy(words, id, sizeof words);
    uint64_t hash = hash_of(words);
    for (uint64_t i = 0; i < ids->count; i++) {
        const hour_of *hour = hour_at(ctl, ids, i);
        if (hour->hour > over && in_hour(ctl, hour, words, hash))
            return true;
    }
    return false;
}

/* -- adding -------------------------------------------------------------------------------------------------------------- */

static uint64_t new_page(ign_ctl *ctl, uint64_t bits, uint64_t next)
{
    uint64_t offset = ign_ctl_alloc(ctl, sizeof(page));
    if (offset != 0) {
        page *p = ign_ctl_at(ctl, offset);
        p->counts = bits << 16;
        p->next = next;
    }
    return offset;
}

/* NULL: no room. */
static hour_of *make_hour(ign_ctl *ctl, ign_ids *ids, uint64_t number)
{
    for (uint64_t i = 0; i < ids->count; i++)
        if (hour_at(ctl, ids, i)->hour == number)
            return hour_at(ctl, ids, i);
    if (ids->count == ids->room) {
        uint64_t room = ids->room == 0 ? FIRST_HOURS : ids->room * 2;
        uint64_t offset = ign_ctl_alloc(ctl, room * sizeof(hour_of));
        if (offset == 0)
            return NULL;
        memcpy(ign_ctl_at(ctl, offset), hour_at(ctl, ids, 0), (size_t)(ids->count * sizeof(hour_of)));
        ign_ctl_free(ctl, ids->hours, ids->room * sizeof(hour_of));
        ign_ctl_put(ctl, &ids->hours, offset);
        ign_ctl_put(ctl, &ids->room, room);
    }
    uint64_t directory = ign_ctl_alloc(ctl, sizeof(uint64_t)), first = new_page(ctl, 0, 0);
    if (directory == 0 || first == 0)
        return NULL;
    *(uint64_t *)ign_ctl_at(ctl, directory) = first;
    *hour_at(ctl, ids, ids->count) = (hour_of){.hour = number, .directory = directory, .pages = 1}; /* beyond the count: nobody's */
    ign_ctl_put(ctl, &ids->count, ids->count + 1);
    return hour_at(ctl, ids, ids->count - 1);
}

static void double_directory(ign_ctl *ctl, hour_of *hour)
{
    uint64_t had = (uint64_t)1 << hour->depth;
    uint64_t offset = ign_ctl_alloc(ctl, had * 2 * sizeof(uint64_t));
    if (offset == 0)
        return;
    uint64_t *to = ign_ctl_at(ctl, offset);
    for (uint64_t i = 0; i < had; i++)
        to[2 * i] = to[2 * i + 1] = *entry_at(ctl, hour, i);
    ign_ctl_free(ctl, hour->directory, had * sizeof(uint64_t));
    ign_ctl_put(ctl, &hour->directory, offset);
    ign_ctl_put(ctl, &hour->depth, hour->depth + 1);
}

/* A full page without others behind it becomes two of one bit more. */
static void split(ign_ctl *ctl, hour_of *hour, uint64_t offset, uint64_t hash)
{
    const page *old = ign_ctl_at(ctl, offset);
    uint64_t bits = page_bits(old), made[2];
    if (bits == hour->depth)
        double_directory(ctl, hour);
    made[0] = new_page(ctl, bits + 1, 0);
    made[1] = new_page(ctl, bits + 1, 0);
    if (ctl->no_room)
        return;
    for (uint64_t i = 0; i < PAGE_IDS; i++) {
        page *to = ign_ctl_at(ctl, made[hash_of(old->ids[i]) >> (63 - bits) & 1]);
        uint64_t count = page_count(to);
        memcpy(to->ids[count], old->ids[i], sizeof to->ids[count]);
        to->counts++;
    }
    uint64_t each = (uint64_t)1 << (hour->depth - bits), first = slot_of(hash, hour->depth) & ~(each - 1);
    for (uint64_t i = 0; i < each; i++)
        ign_ctl_put(ctl, entry_at(ctl, hour, first + i), made[i >= each / 2]);
    ign_ctl_free(ctl, offset, sizeof(page));
    ign_ctl_put(ctl, &hour->pages, hour->pages + 1);
}

void ign_ids_add(ign_ctl *ctl, ign_ids *ids, uint32_t number, const uint8_t *id)
{
    uint64_t words[2];
    memcpy(words, id, sizeof words);
    uint64_t hash = hash_of(words);
    hour_of *hour = make_hour(ctl, ids, number > ids->floor ? number : ids->floor + 1);
    if (hour == NULL || in_hour(ctl, hour, words, hash))
        return;
    while (!ctl->no_room) {
        uint64_t offset = *entry_at(ctl, hour, slot_of(hash, hour->depth)), last = offset;
        page *p = ign_ctl_at(ctl, offset);
        while (page_count(p) == PAGE_IDS && p->next != 0) {
            last = p->next;
            p = ign_ctl_at(ctl, last);
        }
        uint64_t count = page_count(p);
        if (count < PAGE_IDS) {
            memcpy(p->ids[count], words, sizeof words); /* beyond the count: nobody's */
            ign_ctl_put(ctl, &p->counts, p->counts + 1);
            return;
        }
        if (last == offset && page_bits(p) < MAX_DEPTH && (page_bits(p) < hour->depth || (uint64_t)1 << hour->depth <= 8 * hour->pages))
            split(ctl, hour, offset, hash);
        else {
            uint64_t more = new_page(ctl, page_bits(p), 0);
            if (more == 0)
                return;
            ign_ctl_put(ctl, &p->next, more);
            ign_ctl_put(ctl, &hour->pages, hour->pages + 1);
        }
    }
}

/* -- forgetting ---------------------------------------------------------------------------------------------------------- */

bool ign_ids_over(ign_ctl *ctl, const ign_ids *ids, uint32_t hour_now)
{
    for (uint64_t i = 0; i < ids->count; i++)
        if (hour_at(ctl, ids, i)->hour <= floor_of(ids, hour_now))
            return true;
    return false;
}

/* Pages from the front, until about `limit` ids are gone. How many those were. */
static uint64_t empty(ign_ctl *ctl, hour_of *hour, uint64_t limit)
{
    uint64_t slots = (uint64_t)1 << hour->depth, slot = hour->gone, ids = 0;
    while (slot < slots && ids < limit) {
        uint64_t at = *entry_at(ctl, hour, slot), bits = page_bits(ign_ctl_at(ctl, at));
        while (at != 0) {
            const page *p = ign_ctl_at(ctl, at);
            uint64_t next = p->next;
            ids += page_count(p) + 1; /* a page that is empty is some work too */
            ign_ctl_free(ctl, at, sizeof *p);
            at = next;
        }
        slot += (uint64_t)1 << (hour->depth - bits);
    }
    ign_ctl_put(ctl, &hour->gone, slot);
    return ids;
}

void ign_ids_forget(ign_ctl *ctl, ign_ids *ids, uint32_t hour_now, uint64_t limit)
{
    if (hour_now > ids->floor)
        ign_ctl_put(ctl, &ids->floor, hour_now);
    for (uint64_t i = 0; i < ids->count && limit > 0;) {
        hour_of *hour = hour_at(ctl, ids, i);
        if (hour->hour > floor_of(ids, hour_now)) {
            i++;
            continue;
        }
        uint64_t gone = empty(ctl, hour, limit);
        limit = gone < limit ? limit - gone : 0;
        if (hour->gone < (uint64_t)1 << hour->depth)
            return;
        ign_ctl_free(ctl, hour->directory, ((uint64_t)1 << hour->depth) * sizeof(uint64_t));
        const hour_of *last = hour_at(ctl, ids, ids->count - 1);
        if (last != hour)
            for (size_t w = 0; w < sizeof *hour / sizeof(uint64_t); w++)
                ign_ctl_put(ctl, (uint64_t *)(void *)hour + w, ((const uint64_t *)(const void *)last)[w]);
        ign_ctl_put(ctl, &ids->count, ids->count - 1);
    }
    if (ids->count == 0 && ids->room != 0) {
        ign_ctl_free(ctl, ids->hours, ids->room * sizeof(hour_of));
        ign_ctl_put(ctl, &ids->room, 0);
        ign_ctl_put(ctl, &ids->hours, 0);
    }
}

void ign_ids_free(ign_ctl *ctl, ign_ids *ids)
{
    for (uint64_t i = 0; i < ids->count; i++) {
        hour_of *hour = hour_at(ctl, ids, i);
        empty(ctl, hour, UINT64_MAX);
        ign_ctl_free(ctl, hour->directory, ((uint64_t)1 << hour->depth) * sizeof(uint64_t));
    }
    ign_ctl_free(ctl, ids->hours, ids->room * sizeof(hour_of));
    ign_ctl_put(ctl, &ids->count, 0);
    ign_ctl_put(ctl, &ids->room, 0);
    ign_ctl_put(ctl, &ids->hours, 0);
}

/* -- in another state ---------------------------------------------------------------------------------------------------- */

static uint64_t copy_pages(ign_ctl *to, ign_ctl *from, uint64_t at)
{
    uint64_t first = 0, *link = &first;
    for (; at != 0; at = ((const page *)ign_ctl_at(from, at))->next) {
        uint64_t made = ign_ctl_alloc(to, sizeof(page));
        if (made == 0)
            return 0;
        page *copy = ign_ctl_at(to, made);
        memcpy(copy, ign_ctl_at(from, at), sizeof *copy);
        copy->next = 0;
        *link = made;
        link = &copy->next;
    }
    return first;
}

void ign_ids_copy(ign_ctl *to, ign_ids *made, ign_ctl *from, const ign_ids *ids)
{
    *made = (ign_ids){.floor = ids->floor};
    if (ids->count == 0)
        return;
    *made = *ids;
    made->hours = ign_ctl_alloc(to, ids->room * sizeof(hour_of));
    for (uint64_t i = 0; i < ids->count && !to->no_room; i++) {
        const hour_of *hour = hour_at(from, ids, i);
        uint64_t slots = (uint64_t)1 << hour->depth, directory = ign_ctl_alloc(to, slots * sizeof(uint64_t));
        if (directory == 0)
            return;
        *hour_at(to, made, i) = *hour;
        hour_at(to, made, i)->directory = directory;
        uint64_t *entries = ign_ctl_at(to, directory);
        memset(entries, 0, (size_t)(slots * sizeof *entries));
        for (uint64_t slot = hour->gone; slot < slots && !to->no_room;) { /* a page of fewer bits stands there several times */
            uint64_t at = *entry_at(from, hour, slot), each = (uint64_t)1 << (hour->depth - page_bits(ign_ctl_at(from, at)));
            uint64_t copy = copy_pages(to, from, at);
            for (uint64_t k = 0; k < each; k++)
                entries[slot++] = copy;
        }
    }
}
