#include "ignis_store_state.h"

#include <string.h>

enum { INLINE_RECORDS = 64 };

/* -- which of an extent's records live -------------------------------------------------------------------------- */

static uint64_t mask_of(uint32_t from, uint32_t to) /* bits from..to of one word */
{
    uint64_t upto = to == 63 ? UINT64_MAX : ((uint64_t)1 << (to + 1)) - 1;
    return upto & ~(((uint64_t)1 << from) - 1);
}

static uint64_t bitmap_bytes(const ign_item *extent)
{
    return (IGN_ITEM_SPAN(extent) + 63) / 64 * 8;
}

/* Word `w` of what is dead. */
static const uint64_t *dead_word(ign_ctl *ctl, const ign_item *extent, uint64_t w)
{
    static const uint64_t none = 0;
    if (IGN_ITEM_SPAN(extent) <= INLINE_RECORDS)
        return &extent->word[2];
    return extent->word[2] == 0 ? &none : (const uint64_t *)ign_ctl_at(ctl, extent->word[2]) + w;
}

static uint32_t count_living(ign_ctl *ctl, const ign_item *extent, uint64_t from, uint64_t to)
{
    uint32_t living = 0;
    if (from == 0 && to + 1 == IGN_ITEM_SPAN(extent))
        return IGN_ITEM_LEFT(extent);
    for (uint64_t w = from / 64; w <= to / 64; w++) {
        uint32_t low = w == from / 64 ? (uint32_t)(from % 64) : 0, high = w == to / 64 ? (uint32_t)(to % 64) : 63;
        living += (uint32_t)__builtin_popcountll(~*dead_word(ctl, extent, w) & mask_of(low, high));
    }
    return living;
}

uint32_t ign_extent_living(ign_ctl *ctl, const ign_item *extent, uint64_t first, uint64_t last)
{
    if (last < extent->first || first > IGN_ITEM_LAST(extent))
        return 0;
    uint64_t from = first > extent->first ? first - extent->first : 0;
    uint64_t to = (last < IGN_ITEM_LAST(extent) ? last : IGN_ITEM_LAST(extent)) - extent->first;
    return count_living(ctl, extent, from, to);
}

bool ign_extent_lives(ign_ctl *ctl, const ign_item *extent, uint64_t pointer)
{
    uint64_t i = pointer - extent->first;
    return (*dead_word(ctl, extent, i / 64) >> (i % 64) & 1) == 0;
}

/* Marks records from..to dead; returns how many of them lived. */
static uint32_t mark_dead(ign_ctl *ctl, ign_item *extent, uint64_t from, uint64_t to)
{
    uint32_t span = (uint32_t)IGN_ITEM_SPAN(extent), died = count_living(ctl, extent, from, to);
    if (died == 0 || died == IGN_ITEM_LEFT(extent))
        return died; /* the extent goes as a whole: nobody reads its bits again */
    if (span > INLINE_RECORDS && extent->word[2] == 0) {
        uint64_t bitmap = ign_ctl_alloc(ctl, bitmap_bytes(extent));
        if (bitmap == 0)
            return 0;
        memset(ign_ctl_at(ctl, bitmap), 0, (size_t)bitmap_bytes(extent));
        ign_ctl_put(ctl, &extent->word[2], bitmap);
    }
    for (uint64_t w = from / 64; w <= to / 64; w++) {
        uint32_t low = w == from / 64 ? (uint32_t)(from % 64) : 0, high = w == to / 64 ? (uint32_t)(to % 64) : 63;
        uint64_t *word = span <= INLINE_RECORDS ? &extent->word[2] : (uint64_t *)ign_ctl_at(ctl, extent->word[2]) + w;
        ign_ctl_put(ctl, word, *word | mask_of(low, high));
    }
    return died;
}

/* -- space ------------------------------------------------------------------------------------------------------- */

/* A batch's bytes belong to its living records in equal shares. */
void ign_state_account(ign_ctl *ctl, const ign_item *extent, uint32_t before, uint32_t after)
{
    uint64_t bytes = extent->word[3] & UINT32_MAX, span = IGN_ITEM_SPAN(extent);
    uint64_t change = bytes * after / span - bytes * before / span; /* modulo 2^64 */
    ign_state_segment *segment = ign_state_find_segment(ctl, extent->word[0]);
    if (segment != NULL) {
        ign_ctl_add(ctl, &segment->living, change);
        ign_ctl_add(ctl, &segment->extents, (uint64_t)(after != 0) - (before != 0));
    }
    ign_ctl_add(ctl, &ctl->root->living_bytes, change);
    ign_ctl_add(ctl, &ctl->root->living_records, (uint64_t)after - before);
}

/* -- owners ------------------------------------------------------------------------------------------------------ */

static uint64_t *references(ign_ctl *ctl, uint64_t owner)
{
    return ign_record_value(ign_ctl_at(ctl, owner));
}

static uint64_t hold_owner(ign_ctl *ctl, const void *name, uint32_t bytes)
{
    uint64_t owner = ign_map_find(ctl, IGN_KEY_OWNER, name, bytes);
    if (owner == 0)
        owner = ign_map_set(ctl, IGN_KEY_OWNER, name, bytes, NULL, sizeof(uint64_t));
    if (owner != 0)
        ign_ctl_add(ctl, references(ctl, owner), 1);
    return owner;
}

static void let_owner_go(ign_ctl *ctl, uint64_t owner)
{
    ign_ctl_add(ctl, references(ctl, owner), (uint64_t)-1);
    if (*references(ctl, owner) == 0)
        ign_map_remove(ctl, owner);
}

/* -- claims ------------------------------------------------------------------------------------------------------ */

uint64_t ign_state_living(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last)
{
    uint64_t living = 0;
    ign_cursor at;
    for (ign_item *e = ign_seq_find(ctl, &shard->extents, first, &at); e != NULL && e->first <= last;
         e = ign_seq_next(ctl, &shard->extents, &at))
        living += ign_extent_living(ctl, e, first, last);
    return living;
}

int ign_state_claim(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last, const void *owner, uint32_t owner_bytes,
                    uint64_t ms)
{
    if (first <= shard->fire_pointer || last < first || last > shard->load_pointer || last - first >= IGN_MAX_SPAN)
        return IGN_E_MALFORMED;
    uint64_t living = ign_state_living(ctl, shard, first, last);
    ign_ctl_put(ctl, &shard->fire_pointer, last);
    if (living == 0)
        return IGN_OK;
    ign_item claim = {.first = first, .left = (last - first + 1) << 32 | living, .word = {hold_owner(ctl, owner, owner_bytes), ms}};
    ign_seq_append(ctl, &shard->claims, &claim);
    ign_ctl_add(ctl, &shard->fire_counter, living);
    ign_ctl_add(ctl, &shard->in_flight, living);
    return ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

/* Retires what lives of first..last, piece by piece: within one extent, and within one claim or outside all of them. */
uint64_t ign_state_retire(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last)
{
    uint64_t total = 0;
    ign_cursor at, claimed;
    for (uint64_t pointer = first; pointer <= last && !ctl->no_room;) {
        ign_item *extent = ign_seq_find(ctl, &shard->extents, pointer, &at);
        if (extent == NULL || extent->first > last)
            break;
        pointer = extent->first > pointer ? extent->first : pointer;
        uint64_t end = IGN_ITEM_LAST(extent) < last ? IGN_ITEM_LAST(extent) : last;
        bool unfired = pointer > shard->fire_pointer;
        if (!unfired && end > shard->fire_pointer)
            end = shard->fire_pointer;
        ign_item *claim = unfired ? NULL : ign_seq_find(ctl, &shard->claims, pointer, &claimed);
        if (claim != NULL && claim->first > pointer) {
            end = claim->first - 1 < end ? claim->first - 1 : end;
            claim = NULL;
        }
        if (claim != NULL && IGN_ITEM_LAST(claim) < end)
            end = IGN_ITEM_LAST(claim);

        uint32_t before = IGN_ITEM_LEFT(extent);
        uint32_t died = mark_dead(ctl, extent, pointer - extent->first, end - extent->first);
        pointer = end + 1;
        if (died == 0)
            continue;
        total += died;
        ign_state_account(ctl, extent, before, before - died);
        ign_ctl_add(ctl, &shard->living, (uint64_t)-(int64_t)died);
        if (unfired)
            ign_ctl_add(ctl, &shard->fire_counter, died); /* it is pending no more */
        if (claim != NULL) {
            uint32_t left = IGN_ITEM_LEFT(claim) - died;
            uint64_t owner = claim->word[0];
            ign_ctl_add(ctl, &shard->in_flight, (uint64_t)-(int64_t)died);
            ign_seq_set_left(ctl, &shard->claims, &claimed, left);
            if (left == 0)
                let_owner_go(ctl, owner);
        }
        if (before == died && IGN_ITEM_SPAN(extent) > INLINE_RECORDS)
            ign_ctl_free(ctl, extent->word[2], bitmap_bytes(extent));
        ign_seq_set_left(ctl, &shard->extents, &at, before - died);
    }
    return total;
}

/* Claims of `owner` within first..last get another time, and perhaps another owner; what is beside that is cut off. */
void ign_state_renew(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last, uint64_t owner, const void *next,
                     uint32_t next_bytes, uint64_t ms)
{
    ign_cursor at;
    for (uint64_t pointer = first; pointer <= last && !ctl->no_room;) {
        ign_item *claim = ign_seq_find(ctl, &shard->claims, pointer, &at);
        if (claim == NULL || claim->first > last)
            return;
        uint64_t begin = claim->first, end = IGN_ITEM_LAST(claim);
        uint64_t from = begin > first ? begin : first, to = end < last ? end : last;
        pointer = end + 1;
        uint64_t middle = ign_state_living(ctl, shard, from, to);
        if (claim->word[0] != owner || middle == 0)
            continue;
        ign_item pieces[3];
        unsigned count = 0;
        uint64_t bounds[3][2] = {{begin, from - 1}, {from, to}, {to + 1, end}};
        for (unsigned i = 0; i < 3; i++) {
            uint64_t living = bounds[i][0] > bounds[i][1] ? 0 : ign_state_living(ctl, shard, bounds[i][0], bounds[i][1]);
            if (living == 0)
                continue;
            uint64_t whose = i == 1 && next_bytes != 0 ? hold_owner(ctl, next, next_bytes) : owner;
            if (whose == owner)
                ign_ctl_add(ctl, references(ctl, owner), 1);
            pieces[count++] = (ign_item){.first = bounds[i][0], .left = (bounds[i][1] - bounds[i][0] + 1) << 32 | living,
                                         .word = {whose, i == 1 ? ms : claim->word[1]}};
        }
        if (count == 1 && pieces[0].first == begin && IGN_ITEM_SPAN(&pieces[0]) == IGN_ITEM_SPAN(claim)) {
            ign_ctl_put(ctl, &claim->word[0], pieces[0].word[0]);
            ign_ctl_put(ctl, &claim->word[1], ms);
        } else
            ign_seq_splice(ctl, &shard->claims, &at, true, pieces, count);
        let_owner_go(ctl, owner);
    }
}

void ign_state_forget_claims(ign_ctl *ctl, ign_shard *shard)
{
    ign_cursor at;
    for (ign_item *c = ign_seq_find(ctl, &shard->claims, 0, &at); c != NULL; c = ign_seq_next(ctl, &shard->claims, &at))
        let_owner_go(ctl, c->word[0]);
    ign_seq_free(ctl, &shard->claims);
}

/* -- what comes next --------------------------------------------------------------------------------------------- */

ign_slice ign_extent_slice(uint16_t shard, const ign_item *extent, uint64_t first, uint64_t last)
{
    return (ign_slice){
        .shard = shard, .first = extent->first, .from = (uint32_t)(first - extent->first),
        .to = (uint32_t)(last - extent->first + 1), .offset = (uint32_t)(extent->word[3] >> 32),
        .bytes = (uint32_t)extent->word[3], .position = extent->word[0], .expires_at_ms = extent->word[1],
    };
}

bool ign_extent_run(ign_ctl *ctl, const ign_item *extent, uint64_t from, uint64_t most, uint64_t *first, uint64_t *last)
{
    uint64_t end = IGN_ITEM_LAST(extent);
    if (IGN_ITEM_LEFT(extent) == IGN_ITEM_SPAN(extent))
        *first = from;
    else {
        while (from <= end && !ign_extent_lives(ctl, extent, from))
            from++;
        if (from > end)
            return false;
        *first = from;
        while (from < end && from - *first + 1 < most && ign_extent_lives(ctl, extent, from + 1))
            from++;
        end = from;
    }
    *last = end - *first < most ? end : *first + most - 1;
    return true;
}

static bool has_expired(const ign_item *extent, uint64_t ms)
{
    return extent->word[1] != 0 && extent->word[1] <= ms;
}

uint64_t ign_state_expired(ign_ctl *ctl, ign_shard *shard, uint64_t ms, uint64_t limit, uint64_t *last)
{
    uint64_t found = 0, from = shard->fire_pointer + 1, begin, end;
    ign_cursor at;
    for (ign_item *e = ign_seq_find(ctl, &shard->extents, from, &at); e != NULL; e = ign_seq_next(ctl, &shard->extents, &at)) {
        from = e->first > from ? e->first : from;
        while (from <= IGN_ITEM_LAST(e) && found < limit && ign_extent_run(ctl, e, from, limit - found, &begin, &end)) {
            if (!has_expired(e, ms))
                return found;
            found += end - begin + 1;
            *last = end;
            from = end + 1;
        }
        if (found == limit)
            break;
    }
    return found;
}

void ign_state_expire(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last)
{
    uint64_t died = ign_state_retire(ctl, shard, first, last);
#ifndef IGN_MUTANT_EXPIRED_UNCOUNTED
    ign_ctl_add(ctl, &shard->expired, died);
#endif
    ign_ctl_put(ctl, &shard->fire_pointer, last);
}

uint32_t ign_state_next(ign_ctl *ctl, ign_shard *shard, uint32_t limit, uint64_t max_bytes, uint64_t ms, ign_slice *slices,
                        uint32_t room, uint64_t *first, uint64_t *last, bool *expired)
{
    uint32_t count = 0, taken = 0;
    uint64_t bytes = 0, from = shard->fire_pointer + 1, begin, end;
    ign_cursor at;
    for (ign_item *e = ign_seq_find(ctl, &shard->extents, from, &at); e != NULL; e = ign_seq_next(ctl, &shard->extents, &at)) {
        uint64_t each = (e->word[3] & UINT32_MAX) / IGN_ITEM_SPAN(e) + 1;
        from = e->first > from ? e->first : from;
        while (from <= IGN_ITEM_LAST(e)) {
            if (count == room || taken == limit || bytes >= max_bytes || (count > 0 && IGN_ITEM_LAST(e) - *first >= IGN_MAX_SPAN))
                return count;
            uint64_t most = (max_bytes - bytes - 1) / each + 1;
            most = most < limit - taken ? most : limit - taken;
            if (!ign_extent_run(ctl, e, from, most, &begin, &end))
                break;
#ifndef IGN_MUTANT_EXPIRED_CLAIMED
            if (has_expired(e, ms)) {
                *expired = true;
                return count;
            }
#endif
            if (count == 0)
                *first = begin;
            *last = end;
            slices[count++] = ign_extent_slice(0, e, begin, end);
            taken += (uint32_t)(end - begin + 1);
            bytes += each * (end - begin + 1);
            from = end + 1;
        }
    }
    return count;
}
