/* Index and header of a damaged batch, mended where its records show what stood there. */
#include "ignis_store_salvage.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <string.h>

enum { MOST_TRIED = 4096, EXPIRES_AT = 8, INDEX_CRC = 16 };

uint32_t ign_check_of(uint32_t magazine, uint16_t shard, uint64_t pointer, uint32_t crc)
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

uint32_t ign_batch_ends(const uint8_t *batch, uint64_t bytes)
{
    uint64_t room = bytes - IGN_SEGMENT_HEADER_BYTES;
    for (uint64_t n = 1; n <= IGN_SEGMENT_MAX_RECORDS && n * IGN_SEGMENT_INDEX_BYTES <= room; n++)
        if (ign_get32(batch + IGN_SEGMENT_HEADER_BYTES + (n - 1) * IGN_SEGMENT_INDEX_BYTES) == room - n * IGN_SEGMENT_INDEX_BYTES)
            return (uint32_t)n;
    return 0;
}

uint32_t ign_batch_count(const uint8_t *batch, uint32_t bytes)
{
    uint64_t room = bytes - IGN_SEGMENT_HEADER_BYTES, count = ign_get32(batch + 4);
    uint32_t ends = ign_batch_ends(batch, bytes);
    if (ends != 0)
        return ends;
    return count <= IGN_SEGMENT_MAX_RECORDS && count * IGN_SEGMENT_INDEX_BYTES <= room ? (uint32_t)count : 0;
}

/* Where the record ends that begins at `from` and has that check; UINT32_MAX: nowhere up to `to`. */
static uint32_t find_end(const uint8_t *data, uint32_t from, uint32_t to, uint32_t check, uint32_t magazine, uint16_t shard, uint64_t pointer)
{
    uint32_t crc = 0;
    for (uint32_t end = from;; end++) {
        if (ign_check_of(magazine, shard, pointer, crc) == check)
            return end;
        if (end >= to)
            return UINT32_MAX;
        crc = ign_crc32c(crc, data + end, 1);
    }
}

uint32_t ign_batch_whole(const ign_segment *segment, uint32_t magazine, uint16_t shard, uint64_t first)
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

/* Where the record behind it ends, as far as that can be. */
static uint32_t end_behind(uint8_t *batch, uint32_t count, uint32_t i, uint32_t data_bytes)
{
    uint32_t end = i + 2 >= count ? data_bytes : ign_get32(entry_of(batch, i + 1));
    return end <= data_bytes ? end : data_bytes;
}

uint32_t ign_batch_mend(uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t *count)
{
    ign_segment segment;
    *count = 0;
    if (bytes <= IGN_SEGMENT_HEADER_BYTES)
        return 0;
    if (ign_segment_open(batch, bytes, &segment) == IGN_OK) {
        *count = segment.count;
        return ign_batch_whole(&segment, magazine, shard, first);
    }
    uint32_t n = ign_batch_count(batch, bytes);
    if (n == 0)
        return 0;
    uint32_t data_bytes = (uint32_t)(bytes - IGN_SEGMENT_HEADER_BYTES - (uint64_t)n * IGN_SEGMENT_INDEX_BYTES), begin = 0, whole = 0;
    const uint8_t *data = batch + bytes - data_bytes;
    uint64_t tried = 0; /* no search beyond what reading it a few times costs */
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *at = entry_of(batch, i);
        uint32_t end = i + 1 == n ? data_bytes : ign_get32(at), check = ign_get32(at + 4);
        bool holds = end >= begin && end <= data_bytes &&
                     ign_check_of(magazine, shard, first + i, ign_crc32c(0, data + begin, end - begin)) == check;
        if (!holds && i + 1 < n && tried <= 4 * (uint64_t)bytes) {
            uint32_t next = i + 2 == n ? data_bytes : ign_get32(at + IGN_SEGMENT_INDEX_BYTES);
            next = next >= begin && next <= data_bytes ? next : data_bytes;
            tried += next - begin;
            uint32_t found = find_end(data, begin, next, check, magazine, shard, first + i);
            holds = found != UINT32_MAX;
            end = holds ? found : end;
        }
        if (i + 1 < n && (end < begin || end > data_bytes || (!holds && end > end_behind(batch, n, i, data_bytes))))
            end = begin; /* the records behind it have ends of their own */
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
