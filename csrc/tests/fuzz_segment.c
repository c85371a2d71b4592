/* Fuzz target: arbitrary bytes as a segment, and as a record.
 *
 * Whatever comes in, nothing outside it is read, and the parts of what was accepted lie inside and side by side. Then
 * the same bytes are packed as records, sealed, and read back: one byte changed anywhere must not give other data.
 */
#include "../ignis_error.h"
#include "../ignis_record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)  \
    do {               \
        if (!(cond))   \
            abort();   \
    } while (0)

enum { RECORDS = 3 };

static void read_record(const uint8_t *data, size_t size)
{
    ign_record rec;
    if (ign_record_decode(data, size, &rec) != IGN_OK)
        return;
    REQUIRE(rec.key == data + IGN_RECORD_HEADER_BYTES && rec.meta == rec.key + rec.key_len);
    REQUIRE(rec.body == rec.meta + rec.meta_len && rec.body + rec.body_len == data + size);
    REQUIRE(ign_record_size(&rec) == size);

    /* One way to write a record: decoding and encoding gives the same bytes. */
    uint8_t *again = malloc(size);
    REQUIRE(again != NULL);
    ign_record_encode(&rec, again);
    REQUIRE(memcmp(again, data, size) == 0);
    free(again);
}

static void read_segment(const uint8_t *data, size_t size)
{
    ign_segment seg;
    if (ign_segment_open(data, size, &seg) != IGN_OK)
        return;
    const uint8_t *expected = seg.data;
    for (uint32_t i = 0; i < seg.count; i++) {
        const uint8_t *rec;
        size_t len;
        ign_segment_get(&seg, i, 1, 2, 3, &rec, &len);
        REQUIRE(rec == expected);
        read_record(rec, len);
        expected += len;
    }
    REQUIRE(expected == data + size);
}

/* The fuzzer cannot guess a checksum: mend the index so that what lies behind the checksum is reached too. */
static void read_mended(const uint8_t *data, size_t size)
{
    if (size < IGN_SEGMENT_HEADER_BYTES)
        return;
    uint32_t count = (uint32_t)data[4] << 24 | (uint32_t)data[5] << 16 | (uint32_t)data[6] << 8 | data[7];
    if (count == 0 || count > (size - IGN_SEGMENT_HEADER_BYTES) / IGN_SEGMENT_INDEX_BYTES)
        return;
    uint8_t *copy = malloc(size);
    REQUIRE(copy != NULL);
    memcpy(copy, data, size);
    ign_segment_finish(copy);
    read_segment(copy, size);
    free(copy);
}

static void round_trip(const uint8_t *data, size_t size)
{
    size_t ends[RECORDS] = {size / 4, size / 2, size};
    size_t total = ign_segment_size(RECORDS, size);
    uint8_t *segment = malloc(total);
    REQUIRE(segment != NULL);
    ign_segment_begin(segment, RECORDS, size);
    memcpy(segment + total - size, data, size);
    for (uint32_t i = 0; i < RECORDS; i++) {
        size_t start = i == 0 ? 0 : ends[i - 1];
        ign_segment_put_index(segment, i, (uint32_t)ends[i], ign_crc32c(0, data + start, ends[i] - start));
    }
    ign_segment_finish(segment);
    ign_segment_seal(segment, 1, 2, 3);

    for (int damaged = 0; damaged < 2; damaged++) {
        size_t at = (data[0] * 256u + data[1]) % total;
        if (damaged)
            segment[at] ^= data[2] != 0 ? data[2] : 1;
        ign_segment seg;
        int code = ign_segment_open(segment, total, &seg);
        REQUIRE(code == IGN_OK || damaged);
        int sound = 0;
        for (uint32_t i = 0; code == IGN_OK && i < RECORDS; i++) {
            const uint8_t *rec;
            size_t len, start = i == 0 ? 0 : ends[i - 1];
            if (ign_segment_get(&seg, i, 1, 2, 3, &rec, &len) != IGN_OK)
                continue;
            sound++;
            REQUIRE(len == ends[i] - start && memcmp(rec, data + start, len) == 0);
        }
        REQUIRE(damaged ? sound < RECORDS : sound == RECORDS);
    }
    free(segment);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    REQUIRE(ign_crc32c(0, data, size) == ign_crc32c_portable(0, data, size));
    read_record(data, size);
    read_segment(data, size);
    read_mended(data, size);
    if (size >= 3)
        round_trip(data, size);
    return 0;
}
