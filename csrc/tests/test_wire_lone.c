/* A request to load that came alone: what it becomes beside what the ways for many make of it, and that everything else is left
 * to them. In memory of exactly the size. */
#include <string.h>

#include "check.h"
#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_record.h"
#include "ignis_wire.h"
#include "ignis_wire_lone.h"

#define EXPIRES 1234567u

static uint8_t *exact(const uint8_t *src, size_t len)
{
    uint8_t *copy = malloc(len != 0 ? len : 1);
    CHECK(copy != NULL);
    if (len != 0)
        memcpy(copy, src, len);
    return copy;
}

static size_t put_record(uint8_t *dst, const char *key, const char *body)
{
    ign_record rec = {.enqueued_at_us = 7, .key = (const uint8_t *)key, .key_len = strlen(key),
                      .body = (const uint8_t *)body, .body_len = strlen(body)};
    ign_record_encode(&rec, dst);
    return ign_record_size(&rec);
}

/* "q", ttl 5. */
static uint8_t *put_front(uint8_t *payload)
{
    ign_put16(payload, 1);
    payload[2] = 'q';
    ign_put64(payload + 3, 5);
    return payload + 11;
}

static size_t put_send(uint8_t *dst, uint16_t shard, const char *key, const char *body)
{
    uint8_t *at = put_front(dst + IGN_FRAME_HEADER_BYTES);
    ign_put16(at, shard);
    size_t payload = 13 + put_record(at + 2, key, body);
    ign_frame_put_header(dst, IGN_WIRE_SEND, 42, payload);
    return IGN_FRAME_HEADER_BYTES + payload;
}

static size_t put_segment(uint8_t *dst, uint32_t count, const char *key)
{
    size_t head = IGN_SEGMENT_HEADER_BYTES + (size_t)count * IGN_SEGMENT_INDEX_BYTES, end = 0;
    ign_segment_begin(dst, count, 99); /* an expiry that is not the sender's to say */
    for (uint32_t i = 0; i < count; i++) {
        size_t size = put_record(dst + head + end, key, "body");
        uint32_t crc = ign_crc32c(0, dst + head + end, size);
        end += size;
        ign_segment_put_index(dst, i, (uint32_t)end, crc);
    }
    ign_segment_finish(dst);
    return head + end;
}

/* `groups` times the same segment. */
static size_t put_batch(uint8_t *dst, uint16_t groups, uint16_t shard, uint32_t count, const char *key)
{
    uint8_t *at = put_front(dst + IGN_FRAME_HEADER_BYTES);
    ign_put16(at, groups);
    at += 2;
    for (uint16_t i = 0; i < groups; i++) {
        size_t size = put_segment(at + 6, count, key);
        ign_put16(at, shard);
        ign_put32(at + 2, (uint32_t)size);
        at += 6 + size;
    }
    size_t payload = (size_t)(at - dst) - IGN_FRAME_HEADER_BYTES;
    ign_frame_put_header(dst, IGN_WIRE_SEND_BATCH, 42, payload);
    return IGN_FRAME_HEADER_BYTES + payload;
}

static void check_front(const ign_wire_lone *lone, int16_t command, uint16_t shard)
{
    CHECK(lone->name_len == 1 && lone->name[0] == 'q' && lone->ttl_ms == 5 && lone->request_id == 42);
    CHECK(lone->command == command && lone->shard == shard);
}

static void a_send(void)
{
    uint8_t bytes[512];
    size_t len = put_send(bytes, 3, "key", "body"), used;
    uint8_t *frame = exact(bytes, len);
    ign_wire_lone lone;
    ign_wire_sends sends;
    ign_wire_sorter sorter = {0};
    uint32_t count;
    CHECK_EQ(ign_wire_lone_open(&lone, frame, len, len), IGN_OK);
    check_front(&lone, IGN_WIRE_SEND, 3);
    CHECK_EQ(ign_wire_lone_count(&lone), 1);
    uint8_t *made = malloc(lone.segment_bytes);
    CHECK(made != NULL);
    CHECK_EQ(ign_wire_lone_put(&lone, made, EXPIRES, &count), IGN_OK);
    CHECK_EQ(count, 1);
    CHECK_EQ(ign_wire_take_sends(&sorter, frame, len, len, &sends, &used), IGN_OK);
    CHECK_EQ(sorter.groups[0].segment_bytes, lone.segment_bytes);
    ign_segment_begin(sorter.groups[0].segment, 1, EXPIRES);
    ign_segment_finish(sorter.groups[0].segment);
    CHECK(memcmp(made, sorter.groups[0].segment, lone.segment_bytes) == 0);
    ign_wire_sorter_free(&sorter);
    free(made);
    free(frame);
}

static void a_batch(void)
{
    uint8_t bytes[1024];
    size_t len = put_batch(bytes, 1, 7, 3, "");
    uint8_t *frame = exact(bytes, len);
    ign_wire_lone lone;
    ign_segment segment;
    uint32_t count;
    CHECK_EQ(ign_wire_lone_open(&lone, frame, len, len), IGN_OK);
    check_front(&lone, IGN_WIRE_SEND_BATCH, 7);
    CHECK_EQ(ign_wire_lone_count(&lone), 3);
    uint8_t *made = malloc(lone.segment_bytes);
    CHECK(made != NULL);
    CHECK_EQ(ign_wire_lone_put(&lone, made, EXPIRES, &count), IGN_OK);
    CHECK_EQ(ign_segment_open(made, lone.segment_bytes, &segment), IGN_OK);
    CHECK(count == 3 && segment.count == 3 && segment.expires_at_ms == EXPIRES);
    CHECK(memcmp(made + IGN_SEGMENT_HEADER_BYTES, lone.data + IGN_SEGMENT_HEADER_BYTES,
                 lone.data_len - IGN_SEGMENT_HEADER_BYTES) == 0);
    /* A record that does not match its checksum: said by the way for many. */
    frame[len - 1] ^= 1;
    CHECK_EQ(ign_wire_lone_put(&lone, made, EXPIRES, &count), IGN_EMPTY);
    frame[len - 1] ^= 1;
    /* An index that contradicts the bytes. */
    ((uint8_t *)lone.data)[4] ^= 1;
    CHECK_EQ(ign_wire_lone_put(&lone, made, EXPIRES, &count), IGN_EMPTY);
    free(made);
    free(frame);
}

static void shards(void)
{
    static const struct {
        bool batch;
        uint16_t shard;
        uint32_t count;
        const char *key;
        int code;
    } cases[] = {
        {false, 7, 1, "", IGN_OK},      {false, 8, 1, "", IGN_EMPTY},      {false, 65535, 1, "", IGN_FULL},
        {false, 65535, 1, "k", IGN_OK}, {true, 7, 2, "k", IGN_OK},         {true, 8, 1, "", IGN_EMPTY},
        {true, 65535, 1, "", IGN_FULL}, {true, 65535, 1, "k", IGN_OK},     {true, 65535, 2, "k", IGN_EMPTY},
        {true, 65534, 1, "", IGN_EMPTY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[1024];
        size_t len = cases[i].batch ? put_batch(bytes, 1, cases[i].shard, cases[i].count, cases[i].key)
                                    : put_send(bytes, cases[i].shard, cases[i].key, "body");
        uint8_t *frame = exact(bytes, len);
        ign_wire_lone lone;
        uint16_t shard = 0;
        CHECK_EQ(ign_wire_lone_open(&lone, frame, len, len), IGN_OK);
        CHECK_EQ(ign_wire_lone_shard(&lone, 8, &shard), cases[i].code);
        if (cases[i].code == IGN_OK)
            CHECK_EQ(shard, cases[i].shard == 65535 ? ign_shard_for_key("k", 1, 8) : cases[i].shard);
        free(frame);
    }
}

/* A record of another version goes where it is sent, as it always did, and nowhere by its key. */
static void a_record_of_another_version(void)
{
    uint8_t bytes[512];
    size_t len = put_send(bytes, 65535, "k", "body");
    ign_wire_lone lone;
    uint16_t shard;
    bytes[IGN_FRAME_HEADER_BYTES + 13] = 9;
    uint8_t *frame = exact(bytes, len);
    CHECK_EQ(ign_wire_lone_open(&lone, frame, len, len), IGN_OK);
    CHECK_EQ(ign_wire_lone_shard(&lone, 8, &shard), IGN_EMPTY);
    ign_put16(frame + IGN_FRAME_HEADER_BYTES + 11, 3);
    CHECK_EQ(ign_wire_lone_open(&lone, frame, len, len), IGN_OK);
    CHECK_EQ(ign_wire_lone_shard(&lone, 8, &shard), IGN_OK);
    free(frame);
}

static void what_is_not_one_alone(void)
{
    uint8_t bytes[4096];
    ign_wire_lone lone;
    for (int batch = 0; batch < 2; batch++) {
        size_t len = batch ? put_batch(bytes, 1, 0, 1, "") : put_send(bytes, 0, "", "body");
        CHECK_EQ(ign_wire_lone_open(&lone, bytes, len, len), IGN_OK);
        CHECK_EQ(ign_wire_lone_open(&lone, bytes, len, len - 1), IGN_EMPTY);     /* over the limit */
        CHECK_EQ(ign_wire_lone_open(&lone, bytes, len + 1, 4096), IGN_EMPTY);    /* something behind it */
        for (size_t part = 0; part < len; part++) {
            uint8_t *cut = exact(bytes, part);
            CHECK_EQ(ign_wire_lone_open(&lone, cut, part, 4096), IGN_EMPTY);
            free(cut);
        }
        /* The payload cut short, within a frame that is whole. */
        for (size_t part = IGN_FRAME_HEADER_BYTES; part < len; part++) {
            uint8_t *cut = exact(bytes, part);
            uint32_t count;
            ign_frame_put_header(cut, batch ? IGN_WIRE_SEND_BATCH : IGN_WIRE_SEND, 1, part - IGN_FRAME_HEADER_BYTES);
            if (ign_wire_lone_open(&lone, cut, part, 4096) == IGN_OK) {
                uint8_t *made = malloc(lone.segment_bytes != 0 ? lone.segment_bytes : 1);
                CHECK(made != NULL);
                /* Of a SEND the record is what is there; its header must be. */
                CHECK(!batch && part >= len - 4);
                CHECK_EQ(ign_wire_lone_put(&lone, made, 0, &count), IGN_OK);
                free(made);
            }
            free(cut);
        }
    }
    size_t len = put_batch(bytes, 2, 0, 1, "");
    CHECK_EQ(ign_wire_lone_open(&lone, bytes, len, len), IGN_EMPTY);
    len = put_batch(bytes, 0, 0, 1, "");
    CHECK_EQ(ign_wire_lone_open(&lone, bytes, len, len), IGN_EMPTY);
    len = put_send(bytes, 0, "", "body");
    ign_put16(bytes + 4, 25);
    CHECK_EQ(ign_wire_lone_open(&lone, bytes, len, len), IGN_EMPTY);
}

static void the_answer(void)
{
    ign_wire_lone lone = {.request_id = 0x0102030405060708};
    static const uint8_t expected[IGN_WIRE_ACK_FRAME_BYTES] = {
        0, 0, 0, 26, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3,
    };
    uint8_t made[IGN_WIRE_ACK_FRAME_BYTES];
    ign_wire_lone_ack(&lone, made, 9, 256, 3);
    CHECK(memcmp(made, expected, sizeof expected) == 0);
}

/* A claim of one run, as the broker's own frames have it; the records follow as they lie in the segment. */
static void a_delivery(void)
{
    static const uint8_t expected[] = {
        0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 8, /* the frame, its length below */
        0, 0, 0, 4, 0x93, 0xC2, 0, 0x80,           /* [more = false, expired = 0, holes = {}] */
        0, 0, 0, 1, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1,  /* one claim: shard 3, two records, one run */
        0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2,        /* pointers 256 and 257 */
    };
    uint8_t bytes[1024], made[256];
    ign_segment segment;
    size_t size = put_segment(bytes, 2, "k"), front = ign_wire_delivery_front(2);
    CHECK_EQ(ign_segment_open(bytes, size, &segment), IGN_OK);
    CHECK_EQ(front, sizeof expected + 8);
    uint8_t *exactly = malloc(front);
    CHECK(exactly != NULL);
    ign_wire_put_delivery(exactly, 8, 3, 256, &segment);
    memcpy(made, exactly, front);
    free(exactly);
    CHECK_EQ(ign_get32(made), front - 4 + segment.data_len);
    CHECK(memcmp(made + 4, expected + 4, sizeof expected - 4) == 0);
    CHECK_EQ(ign_get32(made + sizeof expected), segment.data_len / 2);
    CHECK_EQ(ign_get32(made + sizeof expected + 4), segment.data_len / 2);
}

MAIN("wire_lone", {
    RUN(a_send);
    RUN(a_batch);
    RUN(shards);
    RUN(a_record_of_another_version);
    RUN(what_is_not_one_alone);
    RUN(the_answer);
    RUN(a_delivery);
})
