#include "ignis_store_salvage_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

enum { SAMPLES = 64, SEARCHED = 16 };

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* -- where a part stood -------------------------------------------------------------------------------------------------- */

/* Records all over a batch: whatever was damaged together with the head, some of them prove a place. */
typedef struct samples {
    uint32_t count, index[SAMPLES], crc[SAMPLES], check[SAMPLES];
} samples;

static samples take_samples(const uint8_t *batch, uint32_t bytes)
{
    samples s = {0};
    uint32_t n = ign_batch_count(batch, bytes), step = (n + SAMPLES - 1) / SAMPLES;
    const uint8_t *index = batch + IGN_SEGMENT_HEADER_BYTES, *data = index + (uint64_t)n * IGN_SEGMENT_INDEX_BYTES;
    uint64_t data_bytes = (uint64_t)(batch + bytes - data);
    for (uint32_t i = 0; i < n; i += step) {
        const uint8_t *at = index + (uint64_t)i * IGN_SEGMENT_INDEX_BYTES;
        uint32_t begin = i == 0 ? 0 : ign_get32(at - IGN_SEGMENT_INDEX_BYTES), end = ign_get32(at);
        if (begin > end || end > data_bytes)
            continue;
        s.index[s.count] = i;
        s.crc[s.count] = ign_crc32c(0, data + begin, end - begin);
        s.check[s.count++] = ign_get32(at + 4);
    }
    return s;
}

static bool proves(const samples *s, uint32_t magazine, uint16_t shard, uint64_t first)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (ign_check_of(magazine, shard, first + s->index[i], s->crc[i]) == s->check[i])
            return true;
    return false;
}

bool ign_part_stood_at(const uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first)
{
    samples s = take_samples(batch, bytes);
    return proves(&s, magazine, shard, first);
}

/* What is loaded never stands before what was loaded. What compaction moved stands where it stood. */
static bool may_stand(const ign_load_walk *l, uint32_t magazine, uint16_t shard, uint64_t first)
{
    const ign_place *known = l->moves ? NULL : ign_places_find(l->places, magazine, shard);
    return first != 0 && first <= INT64_MAX && (known == NULL || first >= known->next);
}

/* Its fields as they stand; what comes next in some shard; and its first pointer in another shard or magazine. */
static bool find_place(const ign_load_walk *l, const uint8_t *part, const samples *s, ign_place *found)
{
    *found = (ign_place){.magazine = ign_get32(l->magazine), .shard = ign_get16(part), .next = ign_get64(part + 8)};
    uint64_t first = found->next;
#ifdef IGN_MUTANT_PLACE_UNPROVEN
    return first != 0;
#endif
    if (may_stand(l, found->magazine, found->shard, first) && proves(s, found->magazine, found->shard, first))
        return true;
    for (uint64_t i = 0; !l->moves && i < l->places->count; i++) {
        const ign_place *one = &l->places->all[i];
        if (one->next == 0 || (l->proven && one->magazine != found->magazine))
            continue;
        bool next = proves(s, one->magazine, one->shard, one->next);
        if (next || (may_stand(l, one->magazine, one->shard, first) && proves(s, one->magazine, one->shard, first))) {
            *found = (ign_place){.magazine = one->magazine, .shard = one->shard, .next = next ? one->next : first};
            return true;
        }
    }
    return false;
}

/* With one other byte in its fields the first records hold. */
static bool mend_place(ign_load_walk *l, uint8_t *part, const samples *s)
{
    uint8_t *fields[3] = {l->magazine, part, part + 8};
    static const unsigned sizes[3] = {4, 2, 8};
    uint32_t tested = s->count < 2 ? s->count : 2;
    for (unsigned f = l->proven ? 1 : 0; tested > 0 && f < 3; f++)
        for (unsigned at = 0; at < sizes[f]; at++) {
            uint8_t was = fields[f][at];
            for (unsigned value = 0; value < 256; value++) {
                fields[f][at] = (uint8_t)value;
                uint32_t held = 0;
                while (held < tested && ign_check_of(ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8) + s->index[held], s->crc[held]) == s->check[held])
                    held++;
                if (held == tested)
                    return true;
            }
            fields[f][at] = was;
        }
    return false;
}

static void put_place(ign_load_walk *l, uint8_t *part, const ign_place *place)
{
    l->mended = l->mended || ign_get32(l->magazine) != place->magazine || ign_get16(part) != place->shard || ign_get64(part + 8) != place->next;
    ign_put32(l->magazine, place->magazine);
    ign_put16(part, place->shard);
    ign_put64(part + 8, place->next);
}

/* -- how long a part is -------------------------------------------------------------------------------------------------- */

/* By its index, when that holds; else 0. */
static uint32_t own_size(const uint8_t *batch, uint64_t left)
{
    ign_segment segment;
    uint64_t count = ign_get32(batch + 4), head = IGN_SEGMENT_HEADER_BYTES + count * IGN_SEGMENT_INDEX_BYTES;
    uint64_t size = count == 0 || head > left ? 0 : head + ign_get32(batch + head - IGN_SEGMENT_INDEX_BYTES);
    return size != 0 && size <= left && ign_segment_open(batch, (size_t)size, &segment) == IGN_OK ? (uint32_t)size : 0;
}

static bool is_batch(const ign_load_walk *l, const uint8_t *payload, uint64_t at)
{
    return at <= l->limit && l->limit - at > IGN_PART + IGN_SEGMENT_HEADER_BYTES && ign_get32(payload + at + IGN_PART) == IGN_SEGMENT_VERSION << 24;
}

bool ign_looks_like_part(const ign_load_walk *l, const uint8_t *payload, uint64_t at)
{
    if (!is_batch(l, payload, at) || ign_get16(payload + at) >= IGN_STORE_MAX_SHARDS || ign_get16(payload + at + 2) != 0)
        return false;
    uint32_t bytes = ign_get32(payload + at + 4);
    return bytes > IGN_SEGMENT_HEADER_BYTES && bytes <= l->limit - at - IGN_PART;
}

/* The next part whose index holds, and whose place its records prove: a message may contain what looks like one. No search beyond what reading
 * the entry a few times costs. UINT64_MAX: none. */
static uint64_t next_part(ign_load_walk *l, const uint8_t *payload)
{
    for (uint64_t at = l->at + IGN_PART + IGN_SEGMENT_HEADER_BYTES; l->limit > at + IGN_PART + IGN_SEGMENT_HEADER_BYTES; at += 8) {
        ign_place place;
        uint64_t left = l->limit - at - IGN_PART, head = (uint64_t)ign_get32(payload + at + IGN_PART + 4) * IGN_SEGMENT_INDEX_BYTES;
        if (!is_batch(l, payload, at) || head > left || l->tried > SEARCHED * l->limit)
            continue;
        l->tried += head;
        uint32_t bytes = own_size(payload + at + IGN_PART, left);
        if (bytes == 0)
            continue;
        l->tried += bytes;
        samples s = take_samples(payload + at + IGN_PART, bytes);
        if (find_place(l, payload + at, &s, &place))
            return at;
    }
    return UINT64_MAX;
}

/* Of a batch that reaches up to there, but for what it is padded with. */
static uint32_t fit(const uint8_t *batch, uint64_t room)
{
    for (uint64_t cut = 0; cut < 8 && room - cut > IGN_SEGMENT_HEADER_BYTES; cut++)
        if (ign_batch_ends(batch, room - cut) != 0)
            return (uint32_t)(room - cut);
    return (uint32_t)room;
}

/* 0: it cannot be told where it ends. *followed: a part that holds stands behind it. */
static uint32_t part_size(ign_load_walk *l, const uint8_t *payload, bool *followed)
{
    const uint8_t *part = payload + l->at;
    uint64_t left = l->limit - l->at - IGN_PART, behind;
    uint32_t bytes = ign_get32(part + 4), own;
    bool fits = bytes <= left && bytes >= IGN_SEGMENT_HEADER_BYTES;
    ign_segment segment;
    *followed = false;
    if (fits && ign_segment_open(part + IGN_PART, bytes, &segment) == IGN_OK)
        return bytes;
    l->mended = true;
    own = own_size(part + IGN_PART, left);
    if (own != 0)
        return own;
    behind = l->at + IGN_PART + pad8(bytes);
    if (fits && (behind == l->limit || ign_looks_like_part(l, payload, behind)))
        return bytes;
    behind = l->searches ? next_part(l, payload) : UINT64_MAX;
    *followed = behind != UINT64_MAX;
    if (*followed)
        return fit(part + IGN_PART, behind - l->at - IGN_PART);
    return fits ? bytes : l->searches ? fit(part + IGN_PART, left) : 0;
}

/* -- one part after the other -------------------------------------------------------------------------------------------- */

/* Parts before one whose place is known stood right before it. Returns where the first of them did. */
static uint64_t place_pending(ign_load_walk *l, uint8_t *payload, uint32_t magazine, uint16_t shard, uint64_t first)
{
    while (l->pending_count > 0) {
        uint8_t *part = payload + l->pending[l->pending_count - 1];
        uint32_t bytes = ign_get32(part + 4), had = ign_get32(part + IGN_PART + 4);
        uint64_t before = first > had ? first - had : 0;
        if (!may_stand(l, magazine, shard, before) || !ign_part_stood_at(part + IGN_PART, bytes, magazine, shard, before))
            break;
        uint32_t *marked = ign_get16(part + 2) == IGN_PART_UNREAD ? &l->unread : &l->lost;
        (*marked)--;
        ign_put16(part + 2, 0);
        put_place(l, part, &(ign_place){.magazine = magazine, .shard = shard, .next = before});
        uint32_t whole = ign_batch_mend(part + IGN_PART, bytes, magazine, shard, before, &had);
        l->salvaged.whole += whole;
        l->salvaged.damaged -= whole;
        l->places->unplaced -= had < l->places->unplaced ? had : l->places->unplaced;
        l->pending_count--;
        first = before;
    }
    l->pending_count = 0;
    return first;
}

static void take_place(ign_load_walk *l, uint8_t *payload, const uint8_t *part, uint32_t count)
{
    uint32_t magazine = ign_get32(l->magazine);
    uint64_t at = ign_get64(part + 8), first = place_pending(l, payload, magazine, ign_get16(part), at);
    if (!l->moves && l->rc == IGN_OK)
        l->rc = ign_places_take(l->places, magazine, ign_get16(part), first, (uint32_t)(at + count - first), &l->missing);
}

/* No record of it holds. It stays when only its records can have been damaged; else it is counted: as one, if its index does not hold, until
 * the pointers behind it say how many they were. */
static void lose_part(ign_load_walk *l, uint8_t *payload, uint8_t *part, uint32_t bytes)
{
    ign_segment segment;
    bool sealed = ign_segment_open(part + IGN_PART, bytes, &segment) == IGN_OK;
    uint32_t had = sealed ? segment.count : 1;
    const ign_place *place = ign_places_find(l->places, ign_get32(l->magazine), ign_get16(part));
    l->mended = true;
    l->salvaged.damaged += had;
    if (l->typed && sealed) {
        ign_put16(part + 2, IGN_PART_UNREAD);
        l->unread++;
        if (place != NULL && place->next != 0 && place->next == ign_get64(part + 8)) {
            take_place(l, payload, part, had);
            return;
        }
    } else {
        ign_put16(part + 2, 0);
        ign_put16(part, IGN_SHARD_LOST);
        l->lost++;
    }
    l->places->unplaced += had;
    if (sealed && !l->moves && l->pending_count < IGN_PENDING)
        l->pending[l->pending_count++] = l->at;
    else
        l->pending_count = 0;
}

/* False: it cannot be told where it ends, or it is no part. */
static bool salvage_part(ign_load_walk *l, uint8_t *payload)
{
    uint8_t *part = payload + l->at;
    uint32_t had, whole;
    bool followed, mended = l->mended;
    uint32_t bytes = part_size(l, payload, &followed);
    if (bytes == 0)
        return false;
    ign_place place;
    samples s = take_samples(part + IGN_PART, bytes);
    if (find_place(l, part, &s, &place))
        put_place(l, part, &place);
    whole = ign_batch_mend(part + IGN_PART, bytes, ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8), &had);
    if (whole == 0 && mend_place(l, part, &s)) {
        l->mended = true;
        whole = ign_batch_mend(part + IGN_PART, bytes, ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8), &had);
    }
    if (whole == 0 && l->walked >= l->parts && !followed) {
        l->mended = mended;
        return false; /* what follows is no part */
    }
    ign_put32(part + 4, bytes);
    if (whole == 0) {
        lose_part(l, payload, part, bytes);
#ifdef IGN_MUTANT_LOST_ENDS_ALL
        return false;
#endif
    } else {
        ign_put16(part + 2, 0);
        l->proven = true;
        l->mended = l->mended || whole < had;
        l->salvaged.whole += whole;
        l->salvaged.damaged += had - whole;
        take_place(l, payload, part, had);
    }
    l->at += IGN_PART + pad8(bytes);
    l->walked++;
    return true;
}

void ign_salvage_parts(ign_load_walk *l, uint8_t *payload)
{
    while (l->at <= l->limit && l->limit - l->at > IGN_PART + IGN_SEGMENT_HEADER_BYTES && salvage_part(l, payload))
        ;
    l->mended = l->mended || l->walked != l->parts;
#ifndef IGN_MUTANT_MISSING_UNCOUNTED
    l->salvaged.damaged += l->missing;
#endif
}
