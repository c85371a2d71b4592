/* Listings, piece by piece: each takes the writer's lock for a bounded time.
 *
 * The map is walked by its buckets in the order of their numbers read backwards: when the table has grown between two pieces,
 * the buckets that came from one that was listed are all behind us, and the others all before us.
 */
#include "ignis_store_parts.h"

#include <string.h>

enum { BUCKETS_AT_A_TIME = 4096, CLAIMS_AT_A_TIME = 1024 };

int ign_store_next_magazine(ign_store *store, uint32_t after, ign_store_magazine *found)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    rc = IGN_EMPTY;
    const uint64_t *records = ign_ctl_at(&g->ctl, g->ctl.root->by_id);
    for (uint64_t n = (uint64_t)after + 1; n < g->ctl.root->by_id_count; n++) {
        if (records[n] == 0)
            continue;
        ign_record_of *record = ign_ctl_at(&g->ctl, records[n]);
        const ign_magazine *magazine = ign_record_value(record);
        uint32_t bytes = IGN_KEY_BYTES(record) < IGN_STORE_NAME_BYTES ? IGN_KEY_BYTES(record) : IGN_STORE_NAME_BYTES;
        *found = (ign_store_magazine){.number = (uint32_t)n, .shards = (uint16_t)magazine->shards,
                                      .durability = (uint8_t)magazine->durability, .name_bytes = bytes};
        memcpy(found->name, record->data, bytes);
        rc = IGN_OK;
        break;
    }
    ign_store_look_end(store, g);
    return rc;
}

int ign_store_claims(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t from, ign_store_claimed *claims, uint32_t room,
                     uint32_t *count)
{
    IGN_LANDING(store, );
    ign_generation *g;
    *count = 0;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    const ign_magazine *found = ign_state_magazine(&g->ctl, magazine);
    ign_shard *in = found == NULL ? NULL : ign_state_shard(&g->ctl, found, shard);
    ign_cursor at;
    if (in == NULL)
        rc = found == NULL ? IGN_E_UNKNOWN : IGN_E_INVALID;
    else
        for (ign_item *c = ign_seq_find(&g->ctl, &in->claims, from, &at); c != NULL && *count < room;
             c = ign_seq_next(&g->ctl, &in->claims, &at)) {
            ign_record_of *owner = ign_ctl_at(&g->ctl, c->word[0]);
            ign_store_claimed *to = &claims[(*count)++];
            to->first = c->first;
            to->last = IGN_ITEM_LAST(c);
            to->living = IGN_ITEM_LEFT(c);
            to->ms = c->word[1];
            to->owner_bytes = IGN_KEY_BYTES(owner) < IGN_STORE_OWNER_BYTES ? IGN_KEY_BYTES(owner) : IGN_STORE_OWNER_BYTES;
            memcpy(to->owner, owner->data, to->owner_bytes);
            to->owner[to->owner_bytes] = 0;
        }
    ign_store_look_end(store, g);
    return rc;
}

/* -- pieces -------------------------------------------------------------------------------------------------------------- */

typedef struct piece {
    uint8_t *to;
    uint64_t room, bytes, needed;
} piece;

static bool put(piece *p, ign_record_of *record, bool value)
{
    uint32_t sizes[2] = {IGN_KEY_BYTES(record), value ? IGN_VALUE_BYTES(record) : 0};
    uint64_t needed = sizeof sizes + (uint64_t)sizes[0] + sizes[1];
    p->needed += needed;
    if (needed > p->room - p->bytes)
        return false;
    uint8_t *to = p->to + p->bytes;
    memcpy(to, sizes, sizeof sizes);
    memcpy(to + sizeof sizes, record->data, sizes[0]);
    if (sizes[1] > 0)
        memcpy(to + sizeof sizes + sizes[0], ign_record_value(record), sizes[1]);
    p->bytes += needed;
    return true;
}

static uint64_t backwards(uint64_t v)
{
    v = (v >> 1 & 0x5555555555555555ull) | (v & 0x5555555555555555ull) << 1;
    v = (v >> 2 & 0x3333333333333333ull) | (v & 0x3333333333333333ull) << 2;
    v = (v >> 4 & 0x0f0f0f0f0f0f0f0full) | (v & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(v);
}

/* Whole buckets, so that a place needs no more than the next one's number. Not made a part of who calls it: a jump would leave its
 * variables undefined. */
__attribute__((noinline)) static int walk_map(ign_ctl *ctl, uint8_t kind, const void *prefix, uint32_t prefix_bytes, bool values,
                                              ign_store_place *place, piece *p)
{
    uint64_t count = ctl->root->bucket_count, step = count == 0 ? 0 : (uint64_t)1 << (64 - __builtin_ctzll(count));
    for (unsigned looked = 0; place->b == 0 && count != 0 && looked < BUCKETS_AT_A_TIME; looked++) {
        uint64_t bucket = backwards(place->a) & (count - 1), kept = p->bytes;
        bool all = true;
        p->needed = 0;
        for (uint64_t at = ((uint64_t *)ign_ctl_at(ctl, ctl->root->buckets))[bucket]; at != 0;) {
            ign_record_of *record = ign_ctl_at(ctl, at);
            if (IGN_KEY_KIND(record) == kind && IGN_KEY_BYTES(record) >= prefix_bytes && memcmp(record->data, prefix, prefix_bytes) == 0)
                all = put(p, record, values) && all;
            at = record->next;
        }
        if (!all) {
            p->bytes = kept;
            return kept > 0 ? IGN_OK : IGN_E_TOO_LARGE;
        }
        place->a += step; /* the highest bits count buckets, backwards */
        place->b = place->a == 0 || step == 0; /* all were listed */
    }
    return count != 0 && place->b == 0 ? IGN_OK : p->bytes > 0 ? IGN_OK : IGN_EMPTY;
}

static int list(ign_store *store, uint8_t kind, const void *prefix, uint32_t prefix_bytes, bool values, ign_store_place *place,
                piece *p)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    rc = walk_map(&g->ctl, kind, prefix, prefix_bytes, values, place, p);
    ign_store_look_end(store, g);
    return rc;
}

static int finish(int rc, const piece *p, uint64_t *bytes)
{
    *bytes = rc == IGN_OK ? p->bytes : rc == IGN_E_TOO_LARGE ? p->needed : 0;
    return rc;
}

int ign_store_next_keys(ign_store *store, const void *prefix, uint32_t prefix_bytes, ign_store_place *place, void *to, uint64_t room,
                        uint64_t *bytes)
{
    piece p = {.to = to, .room = room};
    return finish(list(store, IGN_KEY_VALUE, prefix, prefix_bytes, true, place, &p), &p, bytes);
}

/* Claims of a magazine from a place on: a shard, and a pointer. Neighbours of one owner name it once. */
__attribute__((noinline)) static int walk_claims(ign_ctl *ctl, uint32_t number, ign_store_place *place, piece *p)
{
    const ign_magazine *magazine = ign_state_magazine(ctl, number);
    if (magazine == NULL)
        return IGN_E_UNKNOWN;
    uint64_t last = 0;
    for (unsigned looked = 0; place->a < magazine->shards; place->a++, place->b = 0) {
        ign_cursor at;
        ign_seq *claims = &ign_state_shard(ctl, magazine, place->a)->claims;
        for (ign_item *c = ign_seq_find(ctl, claims, place->b, &at); c != NULL; c = ign_seq_next(ctl, claims, &at)) {
            if (looked++ == CLAIMS_AT_A_TIME)
                return IGN_OK;
            p->needed = 0;
            if (c->word[0] != last && !put(p, ign_ctl_at(ctl, c->word[0]), false))
                return p->bytes > 0 ? IGN_OK : IGN_E_TOO_LARGE;
            last = c->word[0];
            place->b = IGN_ITEM_LAST(c) + 1;
        }
    }
    return p->bytes > 0 ? IGN_OK : IGN_EMPTY;
}

int ign_store_next_owners(ign_store *store, uint32_t magazine, ign_store_place *place, void *to, uint64_t room, uint64_t *bytes)
{
    IGN_LANDING(store, );
    piece p = {.to = to, .room = room};
    if (magazine == 0)
        return finish(list(store, IGN_KEY_OWNER, "", 0, false, place, &p), &p, bytes);
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    rc = walk_claims(&g->ctl, magazine, place, &p);
    ign_store_look_end(store, g);
    return finish(rc, &p, bytes);
}
