#include "ignis_store_salvage.h"

#include "ignis_bytes.h"
#include "ignis_record.h"
#include "ignis_store_state.h"

#include <stdlib.h>
#include <string.h>

enum { PART = 16, MOST_TRIED = 4096, EXPIRES_AT = 8, INDEX_CRC = 16 };

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* -- batches ------------------------------------------------------------------------------------------------------------- */

static uint32_t check_of(uint32_t magazine, uint16_t shard, uint64_t pointer, uint32_t crc)
{
    uint8_t place[18];
    ign_put32(place, magazine);
    ign_put16(place + 4, shard);
    ign_put64(place + 6, pointer);
    ign_put32(place + 14, crc);
    return ign_crc32c(0, place, sizeof place);
}

static uint8_t *entry_of(uint8_t *batch, uint64_t i)
{
    return batch + IGN_SEGMENT_HEADER_BYTES + i * IGN_SEGMENT_INDEX_BYTES;
}

/* How many records a batch of that size has: as many as end where it ends. 0: cannot be told. */
static uint32_t count_of(uint8_t *batch, uint32_t bytes)
{
    uint64_t room = bytes - IGN_SEGMENT_HEADER_BYTES, count = ign_get32(batch + 4);
    for (uint64_t n = 1; n <= IGN_SEGMENT_MAX_RECORDS && n * IGN_SEGMENT_INDEX_BYTES <= room; n++)
        if (ign_get32(entry_of(batch, n - 1)) == room - n * IGN_SEGMENT_INDEX_BYTES)
            return (uint32_t)n;
    return count <= IGN_SEGMENT_MAX_RECORDS && count * IGN_SEGMENT_INDEX_BYTES <= room ? (uint32_t)count : 0;
}

/* Where the record ends that begins at `from` and has that check; UINT32_MAX: nowhere up to `to`. */
static uint32_t find_end(const uint8_t *data, uint32_t from, uint32_t to, uint32_t check, uint32_t magazine, uint16_t shard, uint64_t pointer)
{
    uint32_t crc = 0;
    for (uint32_t end = from;; end++) {
        if (check_of(magazine, shard, pointer, crc) == check)
            return end;
        if (end >= to)
            return UINT32_MAX;
        crc = ign_crc32c(crc, data + end, 1);
    }
}

static uint32_t count_whole(const ign_segment *segment, uint32_t magazine, uint16_t shard, uint64_t first)
{
    uint32_t whole = 0;
    for (uint32_t i = 0; i < segment->count; i++) {
        const uint8_t *record;
        size_t length;
        whole += ign_segment_get(segment, i, magazine, shard, first, &record, &length) == IGN_OK;
    }
    return whole;
}

/* The header's checksum is right for this index, or becomes so with one other byte of when the batch expires. If not, it is itself what
 * was damaged. */
static void mend_header(uint8_t *batch, uint32_t count)
{
    uint32_t stood = ign_get32(batch + INDEX_CRC);
    ign_segment_finish(batch);
    for (unsigned at = EXPIRES_AT; at < INDEX_CRC && count <= MOST_TRIED && ign_get32(batch + INDEX_CRC) != stood; at++) {
        uint8_t was = batch[at];
        for (unsigned value = 0; value < 256 && ign_get32(batch + INDEX_CRC) != stood; value++) {
            batch[at] = (uint8_t)value;
            ign_segment_finish(batch);
        }
        if (ign_get32(batch + INDEX_CRC) != stood)
            batch[at] = was;
    }
    ign_segment_finish(batch);
}

uint32_t ign_batch_mend(uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t *count)
{
    ign_segment segment;
    *count = 0;
    if (bytes <= IGN_SEGMENT_HEADER_BYTES)
        return 0;
    if (ign_segment_open(batch, bytes, &segment) == IGN_OK) {
        *count = segment.count;
        return count_whole(&segment, magazine, shard, first);
    }
    uint32_t n = count_of(batch, bytes);
    if (n == 0)
        return 0;
    uint32_t data_bytes = (uint32_t)(bytes - IGN_SEGMENT_HEADER_BYTES - (uint64_t)n * IGN_SEGMENT_INDEX_BYTES), begin = 0, whole = 0;
    const uint8_t *data = batch + bytes - data_bytes;
    uint64_t tried = 0; /* no search beyond what reading it a few times costs */
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *at = entry_of(batch, i);
        uint32_t end = i + 1 == n ? data_bytes : ign_get32(at), check = ign_get32(at + 4);
        bool holds = end >= begin && end <= data_bytes &&
                     check_of(magazine, shard, first + i, ign_crc32c(0, data + begin, end - begin)) == check;
        if (!holds && i + 1 < n && tried <= 4 * (uint64_t)bytes) {
            uint32_t next = i + 2 == n ? data_bytes : ign_get32(at + IGN_SEGMENT_INDEX_BYTES);
            next = next >= begin && next <= data_bytes ? next : data_bytes;
            tried += next - begin;
            uint32_t found = find_end(data, begin, next, check, magazine, shard, first + i);
            holds = found != UINT32_MAX;
            end = holds ? found : end;
        }
        end = end < begin ? begin : end > data_bytes ? data_bytes : end;
        ign_put32(at, end);
        whole += holds;
        begin = end;
    }
    if (whole == 0)
        return 0;
    batch[0] = IGN_SEGMENT_VERSION;
    memset(batch + 1, 0, 3);
    ign_put32(batch + 4, n);
    ign_put32(batch + 20, 0);
    mend_header(batch, n);
    *count = n;
    return whole;
}

/* -- parts of a LOAD ----------------------------------------------------------------------------------------------------- */

typedef struct load {
    uint8_t *magazine; /* where its number stands */
    uint64_t at, limit; /* of the part, in the payload */
    bool mended, typed; /* `typed`: the header of the entry holds, and with it that this is a LOAD */
    ign_salvaged salvaged;
    uint32_t walked, lost, unread;
} load;

/* Which part this is: its fields as they stand, or with one other byte, with which the first records hold. */
static bool find_place(load *l, uint8_t *part, uint32_t bytes)
{
    ign_segment segment;
    if (ign_segment_open(part + PART, bytes, &segment) != IGN_OK)
        return false;
    uint32_t crc[2], check[2], tested = segment.count < 2 ? 1 : 2;
    for (uint32_t i = 0; i < tested; i++) {
        const uint8_t *record;
        size_t length;
        ign_segment_get(&segment, i, 0, 0, 0, &record, &length);
        crc[i] = ign_crc32c(0, record, length);
        check[i] = ign_get32(entry_of(part + PART, i) + 4);
    }
    uint8_t *fields[3] = {l->magazine, part, part + 8};
    static const unsigned sizes[3] = {4, 2, 8};
    for (unsigned f = 0; f < 3; f++)
        for (unsigned at = 0; at < sizes[f]; at++) {
            uint8_t was = fields[f][at];
            for (unsigned value = 0; value < 256; value++) {
                fields[f][at] = (uint8_t)value;
                uint32_t held = 0;
                while (held < tested && check_of(ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8) + held, crc[held]) == check[held])
                    held++;
                if (held == tested)
                    return true;
            }
            fields[f][at] = was;
        }
    return false;
}

/* False: it cannot be told where it ends. */
static bool salvage_part(load *l, uint8_t *part)
{
    uint64_t left = l->limit - l->at - PART;
    uint32_t bytes = ign_get32(part + 4), count = ign_get32(part + PART + 4), had;
    ign_segment segment;
    if (bytes > left || bytes < IGN_SEGMENT_HEADER_BYTES || ign_segment_open(part + PART, bytes, &segment) != IGN_OK) {
        uint64_t head = IGN_SEGMENT_HEADER_BYTES + (uint64_t)count * IGN_SEGMENT_INDEX_BYTES;
        uint64_t size = count == 0 || head > left ? 0 : head + ign_get32(entry_of(part + PART, (uint64_t)count - 1));
        if (size != 0 && size <= left && ign_segment_open(part + PART, (size_t)size, &segment) == IGN_OK)
            bytes = (uint32_t)size;
        l->mended = true;
    }
    if (bytes > left || bytes < IGN_SEGMENT_HEADER_BYTES)
        return false;
    uint32_t whole = ign_batch_mend(part + PART, bytes, ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8), &had);
    if (whole == 0 && find_place(l, part, bytes)) {
        l->mended = true;
        whole = ign_batch_mend(part + PART, bytes, ign_get32(l->magazine), ign_get16(part), ign_get64(part + 8), &had);
    }
    ign_put16(part + 2, 0);
    ign_put32(part + 4, bytes);
    if (whole == 0) {
        had = had != 0 ? had : count <= IGN_SEGMENT_MAX_RECORDS && IGN_SEGMENT_HEADER_BYTES + (uint64_t)count * IGN_SEGMENT_INDEX_BYTES <= bytes ? count : 1;
        bool sealed = ign_segment_open(part + PART, bytes, &segment) == IGN_OK; /* so it is the records that were damaged */
        if (l->typed && sealed) {
            ign_put16(part + 2, IGN_PART_UNREAD);
            l->unread++;
        } else {
            ign_put16(part, IGN_SHARD_LOST);
            l->lost++;
        }
    }
    l->mended = l->mended || whole < had;
    l->salvaged.whole += whole;
    l->salvaged.damaged += had - whole;
    l->at += PART + pad8(bytes);
    return true;
}

/* All parts that there are, up to `limit`; `parts` are said to be. */
static void salvage_parts(load *l, uint8_t *payload, uint32_t parts)
{
    while (l->at <= l->limit && l->limit - l->at > PART + IGN_SEGMENT_HEADER_BYTES) {
        load before = *l;
        if (!salvage_part(l, payload + l->at))
            break;
        if (l->walked >= parts && l->salvaged.whole == before.salvaged.whole) {
            *l = before; /* what follows is no part */
            break;
        }
        l->walked++;
    }
    l->mended = l->mended || l->walked != parts;
}

/* -- entries ------------------------------------------------------------------------------------------------------------- */

/* Does a LOAD with whole records begin there? */
static bool is_load(const uint8_t *payload, uint64_t bytes, uint64_t at)
{
    ign_segment segment;
    if (at > bytes || bytes - at < 8 + PART + IGN_SEGMENT_HEADER_BYTES)
        return false;
    const uint8_t *part = payload + at + 8;
    return ign_get32(part + 4) <= bytes - at - 8 - PART && ign_segment_open(part + PART, ign_get32(part + 4), &segment) == IGN_OK &&
           count_whole(&segment, ign_get32(payload + at), ign_get16(part), ign_get64(part + 8)) != 0;
}

/* Where the LOAD of a ONCE begins: behind as many ids as it says, or as with one other byte. */
static uint64_t behind_ids(uint8_t *payload, uint64_t bytes, bool *mended)
{
    uint64_t at = bytes < 16 ? UINT64_MAX : 16 + 16 * (uint64_t)ign_get32(payload + 4);
    if (at == UINT64_MAX || (at <= bytes && bytes - at >= 8 && ign_get32(payload + at) == ign_get32(payload)))
        return at;
    for (unsigned i = 4; i < 8; i++) {
        uint8_t was = payload[i];
        for (unsigned value = 0; value < 256; value++) {
            payload[i] = (uint8_t)value;
            uint64_t found = 16 + 16 * (uint64_t)ign_get32(payload + 4);
            if (is_load(payload, bytes, found)) {
                *mended = *mended || found != at;
                return found;
            }
        }
        payload[i] = was;
    }
    return at;
}

/* The payload as that type has it. False: nothing in it holds. */
static bool salvage_as(uint8_t type, uint8_t *payload, uint64_t bytes, bool header_holds, ign_salvaged *salvaged)
{
    bool wrapped = type == IGN_ENTRY_TRANSFER || type == IGN_ENTRY_CLAIMED;
    bool mended = !header_holds;
    uint64_t from = wrapped ? 8 : type == IGN_ENTRY_ONCE ? behind_ids(payload, bytes, &mended) : 0;
    uint64_t head = type == IGN_ENTRY_MOVE ? 24 : 8;
    if (from > bytes || bytes - from < head)
        return false;
    load l = {.magazine = payload + from, .at = from + head, .limit = bytes, .mended = mended, .typed = header_holds && type != IGN_ENTRY_MOVE};
    if (wrapped && pad8(ign_get32(payload)) <= bytes - 8)
        l.limit = 8 + pad8(ign_get32(payload));
    uint32_t parts = type == IGN_ENTRY_MOVE ? ign_get32(payload + 8) : ign_get16(payload + from + 6);
    salvage_parts(&l, payload, parts);
    if (l.salvaged.whole == 0 && (l.unread == 0 || type == IGN_ENTRY_TRANSFER))
        return false; /* what was to be transferred stays where it was */
    if (type == IGN_ENTRY_MOVE && (l.lost != 0 || l.walked != parts))
        return false;
    if (type != IGN_ENTRY_MOVE)
        ign_put16(payload + from + 6, (uint16_t)l.walked);
    if (type == IGN_ENTRY_ONCE)
        memcpy(payload, payload + from, 4);
    *salvaged = l.salvaged;
    if (type != IGN_ENTRY_MOVE && (ign_get16(payload + from + 4) & IGN_LOAD_LATER) != 0) {
        /* Due times that do not hold where they are said to be are no longer spoken of: all is due at once. */
        uint64_t end = wrapped ? l.limit : bytes;
        uint32_t dues = ign_dues_count(payload + from, end - from);
        if (dues != 0 && l.at + (uint64_t)dues * IGN_DUES_BYTES + IGN_DUES_END == end)
            l.at = end;
        else
            ign_put16(payload + from + 4, (uint16_t)(ign_get16(payload + from + 4) & ~IGN_LOAD_LATER));
    }
    if (wrapped) {
        l.mended = l.mended || ign_get32(payload) != l.at - 8;
        ign_put32(payload, (uint32_t)(l.at - 8));
        uint64_t runs = l.at + (type == IGN_ENTRY_CLAIMED ? 16 : 4);
        bool there = runs + 4 <= bytes;
        if (there && type == IGN_ENTRY_TRANSFER && (bytes - runs - 4) / IGN_RUN_BYTES >= ign_get32(payload + runs)) {
            salvaged->retires = payload + l.at;
            salvaged->runs = ign_get32(payload + runs);
        }
        if (there && (!l.mended || type == IGN_ENTRY_TRANSFER)) /* the damage is in the claim, or perhaps in what is retired */
            ign_put32(payload + runs, 0);
    }
    return true;
}

static bool loads(uint8_t type)
{
    return type == IGN_ENTRY_LOAD || type == IGN_ENTRY_TRANSFER || type == IGN_ENTRY_CLAIMED || type == IGN_ENTRY_ONCE ||
           type == IGN_ENTRY_MOVE;
}

int ign_entry_salvage(uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_entry *entry, ign_salvaged *salvaged)
{
    static const uint8_t types[] = {0, IGN_ENTRY_LOAD, IGN_ENTRY_ONCE, IGN_ENTRY_CLAIMED, IGN_ENTRY_TRANSFER, IGN_ENTRY_MOVE};
    uint64_t size = available, length;
    bool holds = ign_entry_header_holds(bytes, available, salt, position, &size);
#ifdef IGN_MUTANT_NO_SALVAGE
    return IGN_EMPTY;
#endif
    length = holds ? ign_get32(bytes) : available;
    if (length < IGN_ENTRY_HEADER || length > IGN_ENTRY_MAX)
        return IGN_EMPTY;
    uint8_t said = bytes[8];
    uint8_t *kept = holds ? NULL : malloc((size_t)length);
    if (!holds && kept == NULL)
        return IGN_E_NOMEM;
    if (kept != NULL)
        memcpy(kept, bytes, (size_t)length);
    int rc = IGN_EMPTY;
    for (unsigned i = 0; i < (holds ? 1 : sizeof types) && rc == IGN_EMPTY; i++) {
        uint8_t type = i == 0 ? said : types[i];
        if (!loads(type) || (i > 0 && type == said))
            continue;
        if (salvage_as(type, bytes + IGN_ENTRY_HEADER, length - IGN_ENTRY_HEADER, holds, salvaged)) {
            *entry = (ign_entry){.type = type, .position = position, .payload = bytes + IGN_ENTRY_HEADER,
                                 .payload_bytes = (uint32_t)(length - IGN_ENTRY_HEADER), .next = position + size};
            rc = IGN_OK;
        } else if (kept != NULL)
            memcpy(bytes, kept, (size_t)length);
    }
    free(kept);
    return rc;
}
