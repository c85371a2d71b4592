/* Records, segments and CRC32C: the byte maps of ignis_record.h against literal bytes, known checksums, and what
 * damaged input answers. Prints one line; exit status 0 when all held. */
#include "../ignis_error.h"
#include "../ignis_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks;
static int failures;

#define CHECK(cond)                                                                  \
    do {                                                                             \
        checks++;                                                                    \
        if (!(cond)) {                                                               \
            failures++;                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);               \
        }                                                                            \
    } while (0)

/* Exactly as large as asked for, so that a sanitizer sees one byte too far. */
static uint8_t *exact(const void *src, size_t len)
{
    uint8_t *copy = malloc(len != 0 ? len : 1);
    if (copy == NULL)
        abort();
    if (len != 0)
        memcpy(copy, src, len);
    return copy;
}

static uint64_t random_state = 0x1234567890ABCDEFu;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* -- CRC32C -------------------------------------------------------------------------------------------------- */

static uint32_t crc32c_bitwise(uint32_t crc, const uint8_t *p, size_t len)
{
    uint32_t c = ~crc;
    for (size_t i = 0; i < len; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ ((c & 1u) != 0 ? 0x82F63B78u : 0u);
    }
    return ~c;
}

static void test_crc_vectors(void)
{
    /* RFC 3720 appendix B.4, and the check value of the CRC catalogues. */
    uint8_t zeros[32] = {0}, ones[32], rising[32], falling[32];
    static const uint8_t iscsi_read[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    };
    memset(ones, 0xFF, sizeof ones);
    for (uint8_t i = 0; i < 32; i++) {
        rising[i] = i;
        falling[i] = (uint8_t)(31 - i);
    }
    const struct { const void *data; size_t len; uint32_t crc; } vectors[] = {
        {zeros, 32, 0x8A9136AAu},  {ones, 32, 0x62A8AB43u},      {rising, 32, 0x46DD794Eu},
        {falling, 32, 0x113FDB5Cu}, {iscsi_read, 48, 0xD9963A56u}, {"123456789", 9, 0xE3069283u},
        {"", 0, 0u},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        CHECK(ign_crc32c(0, vectors[i].data, vectors[i].len) == vectors[i].crc);
        CHECK(ign_crc32c_portable(0, vectors[i].data, vectors[i].len) == vectors[i].crc);
    }
    CHECK(ign_crc32c(7, NULL, 0) == 7u);
}

static void test_crc_same_everywhere(void)
{
    /* Every length around the word sizes and around the three-lane blocks (768 bytes), at every alignment. */
    enum { MOST = 768 * 3 + 40 };
    static uint8_t pool[MOST + 8];
    for (size_t i = 0; i < sizeof pool; i++)
        pool[i] = (uint8_t)next_random();
    for (size_t len = 0; len <= MOST; len = len < 40 || len % 768 > 740 || len % 768 < 24 ? len + 1 : len + 13) {
        uint8_t *data = exact(pool + len % 8, len);
        uint32_t start = (uint32_t)next_random();
        uint32_t whole = ign_crc32c(start, data, len);
        size_t split = len != 0 ? (size_t)(next_random() % len) : 0;
        CHECK(whole == crc32c_bitwise(start, data, len));
        CHECK(whole == ign_crc32c_portable(start, data, len));
        CHECK(whole == ign_crc32c(ign_crc32c(start, data, split), data + split, len - split));
        CHECK(whole == ign_crc32c(start, memcpy(pool + 1, data, len), len));
        free(data);
    }
}

static void test_crc_of_neighbours(void)
{
    for (int round = 0; round < 4000; round++) {
        /* Short and much alike, as records are; now and then one that is long. */
        size_t sizes[IGN_CRC_SIDE_BY_SIDE], total = 0, base = (size_t)(next_random() % 300);
        uint32_t crcs[IGN_CRC_SIDE_BY_SIDE];
        for (size_t i = 0; i < IGN_CRC_SIDE_BY_SIDE; i++) {
            sizes[i] = round % 3 == 0 ? base : base + (size_t)(next_random() % (round % 7 == 0 ? 2500 : 20));
            total += sizes[i];
        }
        uint8_t *filled = malloc(total + 1);
        CHECK(filled != NULL);
        for (size_t i = 0; i < total; i++)
            filled[i] = (uint8_t)next_random();
        uint8_t *data = exact(filled, total);
        free(filled);
        ign_crc32c_side_by_side(data, sizes, crcs);
        for (size_t i = 0, at = 0; i < IGN_CRC_SIDE_BY_SIDE; at += sizes[i++])
            CHECK(crcs[i] == ign_crc32c(0, data + at, sizes[i]));
        free(data);
    }
}

static void test_ids_of_one_time(void)
{
    uint8_t first[16], alone[16], next[16];
    uint64_t random = next_random();
    ign_uuid7(1764350000123456u, 7, first);
    ign_uuid7(1764350000123456u, random, alone);
    ign_uuid7_next(first, random, next);
    CHECK(memcmp(alone, next, 16) == 0);
    ign_uuid7_next(first, random, first);
    CHECK(memcmp(alone, first, 16) == 0);
}

/* -- record -------------------------------------------------------------------------------------------------- */

static const uint8_t ID[16] = {0x01, 0x8F, 0x3A, 0x2B, 0x4C, 0x5D, 0x71, 0x23,
                               0x84, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB};

static const uint8_t RECORD_BYTES[] = {
    0x01,                                           /* version */
    0x02,                                           /* flags: msgpack */
    0x01, 0x02,                                     /* attempts 258 */
    0x03, 0x04,                                     /* crashes 772 */
    0x00, 0x03,                                     /* key_len */
    0x00, 0x00, 0x00, 0x01,                         /* meta_len */
    0x00, 0x06, 0x1A, 0x80, 0x11, 0x22, 0x33, 0x44, /* enqueued_at_us */
    0x01, 0x8F, 0x3A, 0x2B, 0x4C, 0x5D, 0x71, 0x23, /* id */
    0x84, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB,
    'k', 'e', 'y',                                  /* key */
    0x80,                                           /* meta: an empty map */
    'b', 'o', 'd', 'y',                             /* body */
};

static ign_record example(void)
{
    ign_record rec = {
        .flags = 2,
        .attempts = 0x0102,
        .crashes = 0x0304,
        .enqueued_at_us = 0x00061A8011223344u,
        .key = (const uint8_t *)"key",
        .key_len = 3,
        .meta = (const uint8_t *)"\x80",
        .meta_len = 1,
        .body = (const uint8_t *)"body",
        .body_len = 4,
    };
    memcpy(rec.id, ID, sizeof ID);
    return rec;
}

static void test_record_bytes(void)
{
    ign_record rec = example(), back;
    uint8_t *encoded = exact(RECORD_BYTES, sizeof RECORD_BYTES);

    CHECK(ign_record_size(&rec) == sizeof RECORD_BYTES);
    memset(encoded, 0xEE, sizeof RECORD_BYTES);
    ign_record_encode(&rec, encoded);
    CHECK(memcmp(encoded, RECORD_BYTES, sizeof RECORD_BYTES) == 0);

    CHECK(ign_record_decode(encoded, sizeof RECORD_BYTES, &back) == IGN_OK);
    CHECK(back.flags == 2 && back.attempts == 0x0102 && back.crashes == 0x0304);
    CHECK(back.enqueued_at_us == 0x00061A8011223344u);
    CHECK(memcmp(back.id, ID, 16) == 0);
    CHECK(back.key_len == 3 && memcmp(back.key, "key", 3) == 0);
    CHECK(back.meta_len == 1 && back.meta[0] == 0x80);
    CHECK(back.body_len == 4 && memcmp(back.body, "body", 4) == 0);
    CHECK(back.key == encoded + 36 && back.body + back.body_len == encoded + sizeof RECORD_BYTES);
    free(encoded);
}

static void test_record_empty_fields(void)
{
    ign_record rec = {0}, back;
    uint8_t encoded[IGN_RECORD_HEADER_BYTES];

    CHECK(ign_record_size(&rec) == IGN_RECORD_HEADER_BYTES);
    ign_record_encode(&rec, encoded);
    CHECK(ign_record_decode(encoded, sizeof encoded, &back) == IGN_OK);
    CHECK(back.key_len == 0 && back.meta_len == 0 && back.body_len == 0);
}

static void test_record_limits(void)
{
    ign_record rec = {0};

    rec.key_len = 65535;
    CHECK(ign_record_size(&rec) == IGN_RECORD_HEADER_BYTES + 65535u);
    rec.key_len = 65536;
    CHECK(ign_record_size(&rec) == SIZE_MAX);
    rec.key_len = 0;
    rec.body_len = UINT32_MAX - IGN_RECORD_HEADER_BYTES;
    CHECK(ign_record_size(&rec) == UINT32_MAX);
    rec.body_len++;
    CHECK(ign_record_size(&rec) == SIZE_MAX);
    rec.meta_len = SIZE_MAX; /* a sum that wraps must not look small */
    rec.body_len = 2;
    CHECK(ign_record_size(&rec) == SIZE_MAX);
    rec.meta_len = 2;
    rec.body_len = SIZE_MAX - 1;
    CHECK(ign_record_size(&rec) == SIZE_MAX);
}

static void test_record_damage(void)
{
    ign_record rec;
    for (size_t len = 0; len < sizeof RECORD_BYTES; len++) {
        uint8_t *cut = exact(RECORD_BYTES, len);
        /* 40 bytes hold the envelope, the key and the meta; whatever follows is body. */
        CHECK(ign_record_decode(cut, len, &rec) == (len < 40 ? IGN_E_MALFORMED : IGN_OK));
        free(cut);
    }
    uint8_t copy[sizeof RECORD_BYTES];
    memcpy(copy, RECORD_BYTES, sizeof copy);
    copy[0] = 2;
    CHECK(ign_record_decode(copy, sizeof copy, &rec) == IGN_E_VERSION);
    CHECK(ign_record_decode(copy, 1, &rec) == IGN_E_VERSION);
    copy[0] = 1;
    copy[1] = 0x12; /* a reserved flag */
    CHECK(ign_record_decode(copy, sizeof copy, &rec) == IGN_E_VERSION);
    copy[1] = 0x0F;
    CHECK(ign_record_decode(copy, sizeof copy, &rec) == IGN_OK);
    memset(copy + 8, 0xFF, 4); /* meta_len */
    CHECK(ign_record_decode(copy, sizeof copy, &rec) == IGN_E_MALFORMED);
    memset(copy + 8, 0, 4);
    memset(copy + 6, 0xFF, 2); /* key_len */
    CHECK(ign_record_decode(copy, sizeof copy, &rec) == IGN_E_MALFORMED);
}

static void test_uuid7(void)
{
    uint8_t id[16], later[16];
    /* RFC 9562 appendix A.6: 2022-02-22 19:22:22.000 UTC. */
    static const uint8_t expected[16] = {0x01, 0x7F, 0x22, 0xE2, 0x79, 0xB0, 0x70, 0x00,
                                         0x98, 0xC4, 0xDC, 0x0C, 0x0C, 0x07, 0x39, 0x8F};
    ign_uuid7(1645557742000000u, 0x18C4DC0C0C07398Fu, id);
    CHECK(memcmp(id, expected, 16) == 0);
    ign_uuid7(1645557742000500u, UINT64_MAX, id);
    CHECK(id[6] == 0x78 && id[7] == 0x00); /* half a millisecond */
    CHECK(id[8] == 0xBF && id[15] == 0xFF);
    ign_uuid7(1645557742000999u, 0, id);
    CHECK(id[6] == 0x7F && id[8] == 0x80);
    for (uint64_t us = 1645557741999990u; us < 1645557742001010u; us++) {
        ign_uuid7(us, UINT64_MAX, id);
        ign_uuid7(us + 1, 0, later);
        CHECK(memcmp(id, later, 16) < 0); /* every microsecond sorts behind the one before */
    }
}

static void test_shard_for_key(void)
{
    CHECK(ign_shard_for_key("123456789", 9, 32) == 0xE3069283u % 32);
    CHECK(ign_shard_for_key("123456789", 9, 65535) == 0xE3069283u % 65535);
    CHECK(ign_shard_for_key("", 0, 7) == 0);
    CHECK(ign_shard_for_key("anything", 8, 1) == 0);
}

/* -- segment ------------------------------------------------------------------------------------------------- */

#define MAGAZINE 0x01020304u
#define SHARD 0x0506u
#define FIRST 0x1112131415161718u

/* Three records, "one", "" and "three", expiring at 0x0123456789ABCDEF. */
static const uint8_t UNSEALED[] = {
    0x01, 0x00, 0x00, 0x00,                         /* version, reserved */
    0x00, 0x00, 0x00, 0x03,                         /* count */
    0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF, /* expires_at_ms */
    0xD2, 0x57, 0x67, 0x6A,                         /* index_crc */
    0x00, 0x00, 0x00, 0x00,                         /* reserved */
    0x00, 0x00, 0x00, 0x03, 0x2A, 0x94, 0xB2, 0xE9, /* index: end offset, CRC32C of the record */
    0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x08, 0x1C, 0x44, 0x51, 0xBC,
    'o', 'n', 'e', 't', 'h', 'r', 'e', 'e',
};

/* The checks after sealing for MAGAZINE, SHARD and FIRST; nothing else changes. */
static const uint8_t SEALED_CHECKS[3][4] = {
    {0x87, 0xED, 0x40, 0x24}, {0x43, 0xEB, 0x7E, 0xF5}, {0x1A, 0x47, 0x1B, 0x01},
};

enum { SEGMENT_LEN = sizeof UNSEALED, INDEX_AT = 24, DATA_AT = 48 };

static void seal_literally(uint8_t *segment)
{
    memcpy(segment, UNSEALED, SEGMENT_LEN);
    for (size_t i = 0; i < 3; i++)
        memcpy(segment + INDEX_AT + 8 * i + 4, SEALED_CHECKS[i], 4);
}

static void test_segment_bytes(void)
{
    static const char *records[] = {"one", "", "three"};
    uint8_t *built = exact(UNSEALED, SEGMENT_LEN), sealed[SEGMENT_LEN];
    uint32_t end = 0;

    CHECK(ign_segment_size(3, 8) == SEGMENT_LEN);
    memset(built, 0xEE, SEGMENT_LEN);
    ign_segment_begin(built, 3, 0x0123456789ABCDEFu);
    for (uint32_t i = 0; i < 3; i++) {
        size_t len = strlen(records[i]);
        memcpy(built + DATA_AT + end, records[i], len);
        end += (uint32_t)len;
        ign_segment_put_index(built, i, end, ign_crc32c(0, records[i], len));
    }
    ign_segment_finish(built);
    CHECK(memcmp(built, UNSEALED, SEGMENT_LEN) == 0);

    ign_segment_seal(built, MAGAZINE, SHARD, FIRST);
    seal_literally(sealed);
    CHECK(memcmp(built, sealed, SEGMENT_LEN) == 0);

    ign_segment seg;
    CHECK(ign_segment_open(built, SEGMENT_LEN, &seg) == IGN_OK);
    CHECK(seg.base == built && seg.len == SEGMENT_LEN && seg.data == built + DATA_AT && seg.data_len == 8);
    CHECK(seg.count == 3 && seg.expires_at_ms == 0x0123456789ABCDEFu);
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t *rec;
        size_t len;
        CHECK(ign_segment_get(&seg, i, MAGAZINE, SHARD, FIRST, &rec, &len) == IGN_OK);
        CHECK(len == strlen(records[i]) && memcmp(rec, records[i], len) == 0);
        /* The right bytes in the wrong place. */
        CHECK(ign_segment_get(&seg, i, MAGAZINE + 1, SHARD, FIRST, &rec, &len) == IGN_E_CORRUPT);
        CHECK(ign_segment_get(&seg, i, MAGAZINE, SHARD ^ 0x100u, FIRST, &rec, &len) == IGN_E_CORRUPT);
        CHECK(ign_segment_get(&seg, i, MAGAZINE, SHARD, FIRST - 1, &rec, &len) == IGN_E_CORRUPT);
        CHECK(ign_segment_get(&seg, i, MAGAZINE, SHARD, FIRST + (1ull << 32), &rec, &len) == IGN_E_CORRUPT);
        CHECK(len == strlen(records[i]));
    }
    free(built);
}

static void test_segment_limits(void)
{
    CHECK(ign_segment_size(0, 0) == SIZE_MAX);
    CHECK(ign_segment_size(IGN_SEGMENT_MAX_RECORDS, 0) == 24u + 8u * (size_t)IGN_SEGMENT_MAX_RECORDS);
    CHECK(ign_segment_size(IGN_SEGMENT_MAX_RECORDS + 1, 0) == SIZE_MAX);
#if SIZE_MAX > UINT32_MAX
    CHECK(ign_segment_size(1, UINT32_MAX) == 32u + (size_t)UINT32_MAX);
    CHECK(ign_segment_size(1, (size_t)UINT32_MAX + 1) == SIZE_MAX);
#endif
}

/* Reads everything; true when every record came back as it was written. */
static bool reads_whole(const uint8_t *data, size_t len)
{
    static const char *records[] = {"one", "", "three"};
    ign_segment seg;
    if (ign_segment_open(data, len, &seg) != IGN_OK)
        return false;
    bool whole = seg.count == 3 && seg.expires_at_ms == 0x0123456789ABCDEFu;
    for (uint32_t i = 0; i < seg.count; i++) {
        const uint8_t *rec;
        size_t rec_len;
        int code = ign_segment_get(&seg, i, MAGAZINE, SHARD, FIRST, &rec, &rec_len);
        CHECK(rec >= seg.data && rec + rec_len <= data + len);
        if (code != IGN_OK)
            whole = false;
        else /* what is called sound is what was written */
            CHECK(i < 3 && rec_len == strlen(records[i]) && memcmp(rec, records[i], rec_len) == 0);
    }
    return whole;
}

static void test_segment_damage(void)
{
    uint8_t sealed[SEGMENT_LEN + 1] = {0};
    seal_literally(sealed);
    CHECK(reads_whole(sealed, SEGMENT_LEN));
    CHECK(!reads_whole(sealed, SEGMENT_LEN + 1)); /* something behind it */
    for (size_t len = 0; len < SEGMENT_LEN; len++) {
        uint8_t *cut = exact(sealed, len);
        CHECK(!reads_whole(cut, len));
        free(cut);
    }
    for (size_t at = 0; at < SEGMENT_LEN; at++) {
        for (unsigned change = 1; change < 256; change++) {
            uint8_t *flipped = exact(sealed, SEGMENT_LEN);
            flipped[at] ^= (uint8_t)change;
            CHECK(!reads_whole(flipped, SEGMENT_LEN));
            free(flipped);
        }
    }
}

static void test_segment_codes(void)
{
    uint8_t copy[SEGMENT_LEN];
    ign_segment seg;

    memcpy(copy, UNSEALED, sizeof copy);
    CHECK(ign_segment_open(copy, 0, &seg) == IGN_E_MALFORMED);
    CHECK(ign_segment_open(copy, 23, &seg) == IGN_E_MALFORMED);
    copy[0] = 2;
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_VERSION);
    copy[0] = 1;
    copy[23] = 1;
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_MALFORMED);
    copy[23] = 0;
    copy[16] ^= 1;
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_CORRUPT);

    /* A checksum that fits offsets that fall: written so, not damaged. */
    memcpy(copy, UNSEALED, sizeof copy);
    ign_segment_put_index(copy, 0, 7, 0);
    ign_segment_finish(copy);
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_MALFORMED);
    /* ... and a last offset behind the end, or before it. */
    for (uint32_t end = 7; end <= 9; end += 2) {
        memcpy(copy, UNSEALED, sizeof copy);
        ign_segment_put_index(copy, 2, end, 0);
        ign_segment_finish(copy);
        CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_MALFORMED);
    }
    /* A count whose index would end far behind the bytes that there are. */
    ign_segment_begin(copy, IGN_SEGMENT_MAX_RECORDS, 0);
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_MALFORMED);
    ign_segment_begin(copy, 0, 0);
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_E_MALFORMED);

    /* Memory that changes after it was opened gives a corrupt record, never one outside the segment. */
    memcpy(copy, UNSEALED, sizeof copy);
    CHECK(ign_segment_open(copy, sizeof copy, &seg) == IGN_OK);
    ign_segment_put_index(copy, 1, 0xFFFFFFFFu, 0);
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t *rec;
        size_t len;
        CHECK(ign_segment_get(&seg, i, MAGAZINE, SHARD, FIRST, &rec, &len) == IGN_E_CORRUPT);
        CHECK(rec + len <= copy + sizeof copy);
    }
}

int main(void)
{
    test_crc_vectors();
    test_crc_same_everywhere();
    test_record_bytes();
    test_record_empty_fields();
    test_record_limits();
    test_record_damage();
    test_crc_of_neighbours();
    test_ids_of_one_time();
    test_uuid7();
    test_shard_for_key();
    test_segment_bytes();
    test_segment_limits();
    test_segment_damage();
    test_segment_codes();
    printf("record: %d checks, %d failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
