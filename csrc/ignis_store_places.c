#include "ignis_store_places.h"

#include "ignis_bytes.h"
#include "ignis_record.h"
#include "ignis_store_salvage.h"

#include <stdlib.h>
#include <string.h>

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* -- the table ----------------------------------------------------------------------------------------------------------- */

void ign_places_free(ign_places *places)
{
    free(places->all);
    *places = (ign_places){0};
}

int ign_places_copy(ign_places *to, const ign_places *from)
{
    *to = *from;
    to->room = from->count + 1;
    to->all = malloc((size_t)to->room * sizeof *to->all);
    if (to->all == NULL)
        return IGN_E_NOMEM;
    if (from->count > 0)
        memcpy(to->all, from->all, (size_t)from->count * sizeof *to->all);
    return IGN_OK;
}

static bool has(const ign_places *places, uint32_t magazine)
{
    for (uint64_t i = 0; i < places->count; i++)
        if (places->all[i].magazine == magazine)
            return true;
    return false;
}

void ign_places_forget(ign_places *places, uint32_t magazine)
{
    bool all = !has(places, magazine);
    for (uint64_t i = 0; i < places->count; i++)
        if (all || places->all[i].magazine == magazine)
            places->all[i].next = 0;
    places->unplaced = 0;
}

/* Where it stands, or would. */
static uint64_t index_of(const ign_places *places, uint32_t magazine, uint16_t shard)
{
    uint64_t low = 0, high = places->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const ign_place *one = &places->all[middle];
        if (one->magazine < magazine || (one->magazine == magazine && one->shard < shard))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ign_place *ign_places_find(const ign_places *places, uint32_t magazine, uint16_t shard)
{
    uint64_t i = index_of(places, magazine, shard);
    return i < places->count && places->all[i].magazine == magazine && places->all[i].shard == shard ? &places->all[i] : NULL;
}

static int add(ign_places *places, uint32_t magazine, uint16_t shard, uint64_t next)
{
    if (places->count == places->room) {
        uint64_t room = places->room == 0 ? 64 : places->room * 2;
        ign_place *grown = realloc(places->all, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return IGN_E_NOMEM;
        places->all = grown;
        places->room = room;
    }
    uint64_t i = index_of(places, magazine, shard);
    memmove(&places->all[i + 1], &places->all[i], (size_t)(places->count++ - i) * sizeof *places->all);
    places->all[i] = (ign_place){.magazine = magazine, .shard = shard, .next = next};
    return IGN_OK;
}

int ign_places_of_state(ign_places *places, ign_ctl *ctl)
{
    int rc = IGN_OK;
    for (uint64_t n = 0; n < ctl->root->by_id_count; n++) {
        const ign_magazine *magazine = ign_state_magazine(ctl, n);
        for (uint64_t i = 0; magazine != NULL && rc == IGN_OK && i < magazine->shards; i++)
            rc = add(places, (uint32_t)n, (uint16_t)i, ign_state_shard(ctl, magazine, i)->load_pointer + 1);
    }
    return rc;
}

/* -- what is read -------------------------------------------------------------------------------------------------------- */

/* As many as an opening leaves out did not go missing: it is the opening's entry that did. */
int ign_places_take(ign_places *places, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t count, uint64_t *missing)
{
    ign_place *place = ign_places_find(places, magazine, shard);
    if (place == NULL)
        return add(places, magazine, shard, first + count);
    uint64_t gap = place->next == 0 || first <= place->next ? 0 : first - place->next;
    if (gap < IGN_STORE_JUMP) {
        uint64_t known = gap < places->unplaced ? gap : places->unplaced;
        places->unplaced -= known;
        *missing += gap - known;
    }
    place->next = first + count;
    return IGN_OK;
}

static int see_load(ign_places *places, const uint8_t *load, uint64_t bytes, uint64_t *missing)
{
    uint64_t at = 8;
    int rc = IGN_OK;
    for (uint32_t parts = bytes < 8 ? 0 : ign_get16(load + 6); parts > 0 && rc == IGN_OK; parts--) {
        if (at > bytes || bytes - at < 16 + IGN_SEGMENT_HEADER_BYTES)
            break;
        const uint8_t *part = load + at;
        const ign_place *place = ign_places_find(places, ign_get32(load), ign_get16(part));
        bool placed = ign_get16(part + 2) != IGN_PART_UNREAD || (place != NULL && place->next == ign_get64(part + 8));
        if (ign_get16(part) != IGN_SHARD_LOST && placed)
            rc = ign_places_take(places, ign_get32(load), ign_get16(part), ign_get64(part + 8), ign_get32(part + 16 + 4), missing);
        at += 16 + pad8(ign_get32(part + 4));
    }
    return rc;
}

static int see_catalogue(ign_places *places, const uint8_t *p)
{
    uint32_t number = ign_get32(p), kept = 0;
    uint16_t shards = ign_get16(p + 4);
    int rc = IGN_OK;
    for (uint64_t i = 0; i < places->count; i++)
        if (places->all[i].magazine != number || places->all[i].shard < shards)
            places->all[kept++] = places->all[i];
    places->count = kept;
    for (uint16_t i = 0; rc == IGN_OK && i < shards && shards <= IGN_STORE_MAX_SHARDS; i++)
        if (ign_places_find(places, number, i) == NULL)
            rc = add(places, number, i, ign_get64(p + 8));
    return rc;
}

static void see_open(ign_places *places, uint64_t jump)
{
    for (uint64_t i = 0; i < places->count; i++)
        if (places->all[i].next != 0)
            places->all[i].next = jump < IGN_POINTER_MAX - places->all[i].next ? places->all[i].next + jump : 0;
}

int ign_places_see(ign_places *places, uint8_t type, const uint8_t *payload, uint64_t bytes, uint64_t *missing)
{
    uint64_t ids;
    switch (type) {
    case IGN_ENTRY_OPEN:
        if (bytes >= 16)
            see_open(places, ign_get64(payload + 8));
        return IGN_OK;
    case IGN_ENTRY_CATALOGUE: return bytes < 32 ? IGN_OK : see_catalogue(places, payload);
    case IGN_ENTRY_LOAD: return see_load(places, payload, bytes, missing);
    case IGN_ENTRY_TRANSFER:
    case IGN_ENTRY_CLAIMED: return bytes < 8 ? IGN_OK : see_load(places, payload + 8, bytes - 8, missing);
    case IGN_ENTRY_ONCE:
        ids = bytes < 16 ? UINT64_MAX : 16 + 16 * (uint64_t)ign_get32(payload + 4);
        return ids > bytes ? IGN_OK : see_load(places, payload + ids, bytes - ids, missing);
    default: return IGN_OK;
    }
}
