/* An ACK that came alone, and the number that answers it. What is not as simple as that is left alone. In memory of exactly the
 * size. */
#include <string.h>

#include "check.h"
#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_wire.h"
#include "ignis_wire_ack.h"

static uint8_t *exact(const uint8_t *src, size_t len)
{
    uint8_t *copy = malloc(len != 0 ? len : 1);
    CHECK(copy != NULL);
    if (len != 0)
        memcpy(copy, src, len);
    return copy;
}

static int opened(ign_wire_ack *ack, const uint8_t *src, size_t len)
{
    uint8_t *copy = exact(src, len);
    int code = ign_wire_ack_open(ack, copy, len, 8192);
    if (code == IGN_OK)
        CHECK(ack->name >= copy && ack->name + ack->name_len <= copy + len && ack->pointers > copy);
    free(copy);
    return code;
}

/* A frame with this head and these runs. */
static size_t put(uint8_t *dst, const char *head, size_t head_bytes, const ign_wire_run *run, uint32_t runs)
{
    uint8_t *at = dst + IGN_FRAME_HEADER_BYTES;
    ign_put32(at, (uint32_t)head_bytes);
    memcpy(at + 4, head, head_bytes);
    at += 4 + head_bytes;
    ign_put32(at, runs);
    at += 4;
    for (uint32_t i = 0; i < runs; i++, at += IGN_WIRE_RUN_BYTES) {
        ign_put16(at, run[i].shard);
        ign_put64(at + 2, run[i].first);
        ign_put32(at + 10, run[i].count);
    }
    size_t payload = (size_t)(at - dst) - IGN_FRAME_HEADER_BYTES;
    ign_frame_put_header(dst, IGN_WIRE_ACK, 42, payload);
    return IGN_FRAME_HEADER_BYTES + payload;
}

#define PUT(dst, head, run, runs) put(dst, head, sizeof(head) - 1, run, runs)

static const ign_wire_run one = {.shard = 3, .first = 7, .count = 1};

static void one_message(void)
{
    uint8_t bytes[256];
    ign_wire_ack ack;
    ign_wire_run run;
    size_t len = PUT(bytes, "\x91\xa5queue", &one, 1);
    CHECK_EQ(ign_wire_ack_open(&ack, bytes, len, len), IGN_OK);
    CHECK_EQ(ack.request_id, 42);
    CHECK_EQ(ack.name_len, 5);
    CHECK(memcmp(ack.name, "queue", 5) == 0);
    CHECK_EQ(ack.runs, 1);
    CHECK_EQ(ack.count, 1);
    ign_wire_pointers_get(ack.pointers, 0, &run);
    CHECK(run.shard == 3 && run.first == 7 && run.count == 1);
}

static void a_delete(void)
{
    uint8_t bytes[256];
    ign_wire_ack ack;
    size_t len = PUT(bytes, "\x91\xa5queue", &one, 1);
    CHECK_EQ(opened(&ack, bytes, len), IGN_OK);
    CHECK_EQ(ack.command, IGN_WIRE_ACK);
    ign_frame_put_header(bytes, IGN_WIRE_DELETE, 43, len - IGN_FRAME_HEADER_BYTES);
    CHECK_EQ(opened(&ack, bytes, len), IGN_OK);
    CHECK_EQ(ack.command, IGN_WIRE_DELETE);
    CHECK_EQ(ack.request_id, 43);
    CHECK_EQ(ack.count, 1);
    for (int16_t other = 0; other < 128; other++) {
        ign_frame_put_header(bytes, other, 44, len - IGN_FRAME_HEADER_BYTES);
        CHECK_EQ(opened(&ack, bytes, len), other == IGN_WIRE_ACK || other == IGN_WIRE_DELETE ? IGN_OK : IGN_EMPTY);
    }
}

static void names(void)
{
    uint8_t bytes[256];
    ign_wire_ack ack;
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xd9\x03" "abc", &one, 1)), IGN_OK);
    CHECK_EQ(ack.name_len, 3);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa0", &one, 1)), IGN_OK); /* no name: for the caller to see */
    CHECK_EQ(ack.name_len, 0);
    /* Other forms of a name, or no name, are for those who read MessagePack. */
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xda\x00\x03" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xc4\x03" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\xdc\x00\x01\xa3" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x92\xa3" "abc\x01", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa3" "abc\x01", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa4" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xd9", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xd9\xff" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\x07", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\xa3" "abc", &one, 1)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "", &one, 1)), IGN_EMPTY);
}

static void pointers(void)
{
    static uint8_t bytes[8192];
    ign_wire_ack ack;
    ign_wire_run run[IGN_WIRE_LONE_MOST_RUNS + 1];
    const ign_wire_run good[] = {{.shard = 1, .first = 5, .count = 2}, {.shard = 1, .first = 7, .count = 1}, {.shard = 2, .first = 1, .count = 4}};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", good, 3)), IGN_OK);
    CHECK_EQ(ack.count, 7);
    const ign_wire_run twice[] = {{.shard = 1, .first = 5, .count = 2}, {.shard = 1, .first = 6, .count = 1}};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", twice, 2)), IGN_EMPTY);
    const ign_wire_run back[] = {{.shard = 1, .first = 5, .count = 2}, {.shard = 0, .first = 9, .count = 1}};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", back, 2)), IGN_EMPTY);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", good, 0)), IGN_EMPTY);
    const ign_wire_run none = {.shard = 1, .first = 5, .count = 0};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", &none, 1)), IGN_EMPTY);
    const ign_wire_run beyond = {.shard = 1, .first = IGN_WIRE_POINTER_MAX + 1, .count = 1};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", &beyond, 1)), IGN_EMPTY);
    const ign_wire_run last = {.shard = 1, .first = IGN_WIRE_POINTER_MAX, .count = IGN_WIRE_LONE_MOST_POINTERS};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", &last, 1)), IGN_OK);
    CHECK_EQ(ack.count, IGN_WIRE_LONE_MOST_POINTERS);
    const ign_wire_run many = {.shard = 1, .first = 5, .count = IGN_WIRE_LONE_MOST_POINTERS + 1};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", &many, 1)), IGN_EMPTY);
    for (uint32_t i = 0; i <= IGN_WIRE_LONE_MOST_RUNS; i++)
        run[i] = (ign_wire_run){.shard = 0, .first = 2 * i + 1, .count = 1};
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", run, IGN_WIRE_LONE_MOST_RUNS)), IGN_OK);
    CHECK_EQ(ack.count, IGN_WIRE_LONE_MOST_RUNS);
    CHECK_EQ(opened(&ack, bytes, PUT(bytes, "\x91\xa1q", run, IGN_WIRE_LONE_MOST_RUNS + 1)), IGN_EMPTY);
}

static void what_is_not_one_alone(void)
{
    uint8_t bytes[256];
    ign_wire_ack ack;
    size_t len = PUT(bytes, "\x91\xa5queue", &one, 1);
    CHECK_EQ(ign_wire_ack_open(&ack, bytes, len, len - 1), IGN_EMPTY);  /* over the limit */
    CHECK_EQ(ign_wire_ack_open(&ack, bytes, len + 1, 4096), IGN_EMPTY); /* something behind it */
    for (size_t part = 0; part < len; part++)
        CHECK_EQ(opened(&ack, bytes, part), IGN_EMPTY);
    /* The payload cut short, or longer, within a frame that is whole. */
    for (size_t part = IGN_FRAME_HEADER_BYTES; part <= len + 1; part++) {
        ign_frame_put_header(bytes, IGN_WIRE_ACK, 42, part - IGN_FRAME_HEADER_BYTES);
        CHECK_EQ(opened(&ack, bytes, part), part == len ? IGN_OK : IGN_EMPTY);
    }
    len = PUT(bytes, "\x91\xa5queue", &one, 1);
    ign_put16(bytes + 4, 26);
    CHECK_EQ(opened(&ack, bytes, len), IGN_EMPTY);
    /* A head that says that it is longer than all there is. */
    for (uint32_t said = 0; said < 64; said++) {
        len = PUT(bytes, "\x91\xa5queue", &one, 1);
        ign_put32(bytes + IGN_FRAME_HEADER_BYTES, said != 63 ? said : UINT32_MAX);
        CHECK_EQ(opened(&ack, bytes, len), said == 7 ? IGN_OK : IGN_EMPTY);
    }
}

static void the_answer(void)
{
    static const struct {
        uint32_t number;
        size_t bytes;
        uint8_t value[5];
    } known[] = {
        {0, 1, {0}}, {127, 1, {127}}, {128, 2, {0xCC, 128}}, {255, 2, {0xCC, 255}}, {256, 3, {0xCD, 1, 0}},
        {65535, 3, {0xCD, 255, 255}}, {65536, 5, {0xCE, 0, 1, 0, 0}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint8_t made[IGN_WIRE_RESULT_FRAME_BYTES];
        ign_frame frame;
        size_t len = ign_wire_put_result(made, -9, known[i].number), used;
        CHECK_EQ(ign_frame_decode(made, len, 4096, &frame, &used), IGN_OK);
        CHECK(used == len && frame.command == 5 && frame.request_id == -9);
        CHECK_EQ(frame.payload_len, 4 + known[i].bytes);
        CHECK_EQ(ign_get32(frame.payload), known[i].bytes);
        CHECK(memcmp(frame.payload + 4, known[i].value, known[i].bytes) == 0);
    }
}

MAIN("wire_ack", {
    RUN(one_message);
    RUN(a_delete);
    RUN(names);
    RUN(pointers);
    RUN(what_is_not_one_alone);
    RUN(the_answer);
})
