/* Encoding and decoding of records and segments. The byte maps are in ignis_record.h. */
#include "ignis_record.h"

#include "ignis_bytes.h"
#include "ignis_error.h"

#include <string.h>

/* memcpy must not be given a null pointer, not even for no bytes, and an empty field may have one. */
static inline uint8_t *append(uint8_t *dst, const uint8_t *src, size_t len)
{
    if (len != 0)
        memcpy(dst, src, len);
    return dst + len;
}

/* -- record -------------------------------------------------------------------------------------------------- */

enum {
    REC_VERSION = 0,
    REC_FLAGS = 1,
    REC_ATTEMPTS = 2,
    REC_CRASHES = 4,
    REC_KEY_LEN = 6,
    REC_META_LEN = 8,
    REC_ENQUEUED_AT = 12,
    REC_ID = 20,
};

/* Reserved bits are set by no writer of this version. One that is set belongs to a later writer and may change what
 * the body means, so the record is of another version to us. */
#define REC_FLAGS_KNOWN 0x0Fu

#define KEY_MAX_BYTES 0xFFFFu
#define RECORD_MAX_BYTES 0xFFFFFFFFu

size_t ign_record_size(const ign_record *rec)
{
    size_t room = RECORD_MAX_BYTES - IGN_RECORD_HEADER_BYTES;

    /* Each length is compared with what is left, so no sum can overflow. */
    if (rec->key_len > KEY_MAX_BYTES)
        return SIZE_MAX;
    room -= rec->key_len;
    if (rec->meta_len > room)
        return SIZE_MAX;
    room -= rec->meta_len;
    if (rec->body_len > room)
        return SIZE_MAX;
    return IGN_RECORD_HEADER_BYTES + rec->key_len + rec->meta_len + rec->body_len;
}

void ign_record_encode(const ign_record *rec, uint8_t *dst)
{
    dst[REC_VERSION] = IGN_RECORD_VERSION;
    dst[REC_FLAGS] = rec->flags;
    ign_put16(dst + REC_ATTEMPTS, rec->attempts);
    ign_put16(dst + REC_CRASHES, rec->crashes);
    ign_put16(dst + REC_KEY_LEN, (uint16_t)rec->key_len);
    ign_put32(dst + REC_META_LEN, (uint32_t)rec->meta_len);
    ign_put64(dst + REC_ENQUEUED_AT, rec->enqueued_at_us);
    memcpy(dst + REC_ID, rec->id, sizeof rec->id);
    dst = append(dst + IGN_RECORD_HEADER_BYTES, rec->key, rec->key_len);
    dst = append(dst, rec->meta, rec->meta_len);
    append(dst, rec->body, rec->body_len);
}

size_t ign_record_meta_over(const uint8_t *src, size_t len)
{
    if (len < IGN_RECORD_HEADER_BYTES || src[REC_VERSION] != IGN_RECORD_VERSION)
        return 0;
    size_t meta_len = ign_get32(src + REC_META_LEN);
    return meta_len > IGN_RECORD_MAX_META_BYTES ? meta_len : 0;
}

int ign_record_decode(const uint8_t *src, size_t len, ign_record *rec)
{
    /* The version first: what follows it may lie elsewhere in another one. */
    if (len == 0)
        return IGN_E_MALFORMED;
    if (src[REC_VERSION] != IGN_RECORD_VERSION)
        return IGN_E_VERSION;
    if (len < IGN_RECORD_HEADER_BYTES || len > RECORD_MAX_BYTES)
        return IGN_E_MALFORMED;
    if ((src[REC_FLAGS] & ~REC_FLAGS_KNOWN) != 0)
        return IGN_E_VERSION;

    size_t left = len - IGN_RECORD_HEADER_BYTES;
    size_t key_len = ign_get16(src + REC_KEY_LEN);
    size_t meta_len = ign_get32(src + REC_META_LEN);
    if (key_len > left || meta_len > left - key_len)
        return IGN_E_MALFORMED;

    rec->flags = src[REC_FLAGS];
    rec->attempts = ign_get16(src + REC_ATTEMPTS);
    rec->crashes = ign_get16(src + REC_CRASHES);
    rec->enqueued_at_us = ign_get64(src + REC_ENQUEUED_AT);
    memcpy(rec->id, src + REC_ID, sizeof rec->id);
    rec->key = src + IGN_RECORD_HEADER_BYTES;
    rec->key_len = key_len;
    rec->meta = rec->key + key_len;
    rec->meta_len = meta_len;
    rec->body = rec->meta + meta_len;
    rec->body_len = left - key_len - meta_len;
    return IGN_OK;
}

void ign_uuid7(uint64_t now_us, uint64_t random, uint8_t out[16])
{
    uint64_t ms = now_us / 1000u;
    uint32_t fraction = (uint32_t)(((now_us % 1000u) << 12) / 1000u); /* of the millisecond, in 1/4096 */

    ign_put16(out, (uint16_t)(ms >> 32));
    ign_put32(out + 2, (uint32_t)ms);
    ign_put16(out + 6, (uint16_t)(0x7000u | fraction));
    ign_put64(out + 8, (random & 0x3FFFFFFFFFFFFFFFu) | 0x8000000000000000u);
}

void ign_uuid7_next(const uint8_t *first, uint64_t random, uint8_t out[16])
{
    memmove(out, first, 8);
    ign_put64(out + 8, (random & 0x3FFFFFFFFFFFFFFFu) | 0x8000000000000000u);
}

uint16_t ign_shard_for_key(const void *key, size_t key_len, uint16_t shards)
{
    return (uint16_t)(ign_crc32c(0, key, key_len) % shards);
}

/* -- segment ------------------------------------------------------------------------------------------------- */

enum {
    SEG_VERSION = 0,
    SEG_RESERVED_1 = 1,
    SEG_RESERVED_2 = 2,
    SEG_COUNT = 4,
    SEG_EXPIRES_AT = 8,
    SEG_INDEX_CRC = 16,
    SEG_RESERVED_3 = 20,
};

#define SEG_CRC_PREFIX 16u /* header bytes that index_crc covers */
#define CHECK_OFFSET 4u    /* of the check inside an index entry */

static inline size_t index_bytes(uint32_t count)
{
    return (size_t)count * IGN_SEGMENT_INDEX_BYTES;
}

static inline uint8_t *entry_of(uint8_t *segment, uint32_t i)
{
    return segment + IGN_SEGMENT_HEADER_BYTES + index_bytes(i);
}

/* CRC32C of the header's start and of the end offsets, without the checks: those change when the segment is sealed,
 * this value does not. */
static uint32_t index_crc_of(const uint8_t *segment, uint32_t count)
{
    uint8_t ends[4 * 64]; /* gathered, because a checksum call per four bytes would cost more than the checksum */
    uint32_t crc = ign_crc32c(0, segment, SEG_CRC_PREFIX);
    const uint8_t *entry = segment + IGN_SEGMENT_HEADER_BYTES;

    while (count > 0) {
        uint32_t batch = count < 64 ? count : 64;
        for (uint32_t i = 0; i < batch; i++, entry += IGN_SEGMENT_INDEX_BYTES)
            memcpy(ends + 4 * (size_t)i, entry, 4);
        crc = ign_crc32c(crc, ends, 4 * (size_t)batch);
        count -= batch;
    }
    return crc;
}

/* CRC32C of the record's place: magazine and shard. The pointer and the record's own CRC follow. */
static uint32_t place_crc(uint32_t magazine_id, uint16_t shard)
{
    uint8_t place[6];
    ign_put32(place, magazine_id);
    ign_put16(place + 4, shard);
    return ign_crc32c(0, place, sizeof place);
}

static uint32_t check_of(uint32_t place, uint64_t pointer, uint32_t record_crc)
{
    uint8_t rest[12];
    ign_put64(rest, pointer);
    ign_put32(rest + 8, record_crc);
    return ign_crc32c(place, rest, sizeof rest);
}

size_t ign_segment_size(uint32_t count, size_t data_bytes)
{
    if (count == 0 || count > IGN_SEGMENT_MAX_RECORDS || data_bytes > UINT32_MAX)
        return SIZE_MAX;
    size_t head = IGN_SEGMENT_HEADER_BYTES + index_bytes(count);
    return data_bytes > SIZE_MAX - head ? SIZE_MAX : head + data_bytes;
}

void ign_segment_begin(uint8_t *dst, uint32_t count, uint64_t expires_at_ms)
{
    memset(dst, 0, IGN_SEGMENT_HEADER_BYTES);
    dst[SEG_VERSION] = IGN_SEGMENT_VERSION;
    ign_put32(dst + SEG_COUNT, count);
    ign_put64(dst + SEG_EXPIRES_AT, expires_at_ms);
}

void ign_segment_put_index(uint8_t *dst, uint32_t i, uint32_t end_offset, uint32_t record_crc)
{
    uint8_t *entry = entry_of(dst, i);
    ign_put32(entry, end_offset);
    ign_put32(entry + CHECK_OFFSET, record_crc);
}

void ign_segment_finish(uint8_t *dst)
{
    ign_put32(dst + SEG_INDEX_CRC, index_crc_of(dst, ign_get32(dst + SEG_COUNT)));
}

void ign_segment_seal(uint8_t *dst, uint32_t magazine_id, uint16_t shard, uint64_t first_pointer)
{
    uint32_t count = ign_get32(dst + SEG_COUNT);
    uint32_t place = place_crc(magazine_id, shard);

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *check = entry_of(dst, i) + CHECK_OFFSET;
        ign_put32(check, check_of(place, first_pointer + i, ign_get32(check)));
    }
}

int ign_segment_open(const uint8_t *src, size_t len, ign_segment *seg)
{
    if (len == 0)
        return IGN_E_MALFORMED;
    if (src[SEG_VERSION] != IGN_SEGMENT_VERSION)
        return IGN_E_VERSION;
    if (len < IGN_SEGMENT_HEADER_BYTES)
        return IGN_E_MALFORMED;
    if (src[SEG_RESERVED_1] != 0 || ign_get16(src + SEG_RESERVED_2) != 0 || ign_get32(src + SEG_RESERVED_3) != 0)
        return IGN_E_MALFORMED;

    uint32_t count = ign_get32(src + SEG_COUNT);
    if (count == 0 || count > IGN_SEGMENT_MAX_RECORDS || index_bytes(count) > len - IGN_SEGMENT_HEADER_BYTES)
        return IGN_E_MALFORMED;
    if (ign_get32(src + SEG_INDEX_CRC) != index_crc_of(src, count))
        return IGN_E_CORRUPT;

    /* The checksum says that the index is what somebody wrote, not that what they wrote makes sense. */
    size_t data_len = len - IGN_SEGMENT_HEADER_BYTES - index_bytes(count);
    uint32_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t next = ign_get32(src + IGN_SEGMENT_HEADER_BYTES + index_bytes(i));
        if (next < end)
            return IGN_E_MALFORMED;
        end = next;
    }
    if (end != data_len) /* cut short, or followed by bytes that are not its own */
        return IGN_E_MALFORMED;

    seg->base = src;
    seg->len = len;
    seg->data = src + IGN_SEGMENT_HEADER_BYTES + index_bytes(count);
    seg->data_len = data_len;
    seg->count = count;
    seg->expires_at_ms = ign_get64(src + SEG_EXPIRES_AT);
    return IGN_OK;
}

int ign_segment_get(const ign_segment *seg, uint32_t i, uint32_t magazine_id, uint16_t shard, uint64_t first_pointer,
                    const uint8_t **rec, size_t *rec_len)
{
    const uint8_t *entry = seg->base + IGN_SEGMENT_HEADER_BYTES + index_bytes(i);
    uint32_t start = i == 0 ? 0 : ign_get32(entry - IGN_SEGMENT_INDEX_BYTES);
    uint32_t end = ign_get32(entry);

    /* _open has seen these offsets rise within bounds. Memory that somebody else can write may say otherwise now,
     * and then the answer is a corrupt record, not a read outside the segment. */
    if (start > end || end > seg->data_len) {
        *rec = seg->data;
        *rec_len = 0;
        return IGN_E_CORRUPT;
    }
    *rec = seg->data + start;
    *rec_len = end - start;

    uint32_t check = check_of(place_crc(magazine_id, shard), first_pointer + i, ign_crc32c(0, *rec, *rec_len));
    return check == ign_get32(entry + CHECK_OFFSET) ? IGN_OK : IGN_E_CORRUPT;
}
