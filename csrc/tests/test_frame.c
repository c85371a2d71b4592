/* The frame codec against literal bytes, at every split, and on every wrong length. */
#include <string.h>

#include "check.h"
#include "ignis_error.h"
#include "ignis_frame.h"

static void byte_map(void)
{
    static const uint8_t want[] = {0, 0, 0, 13, 0x7F, 0xFE, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 'a', 'b', 'c'};
    uint8_t got[sizeof want];
    ign_frame_put_header(got, 0x7FFE, 0x0102030405060708, 3);
    memcpy(got + IGN_FRAME_HEADER_BYTES, "abc", 3);
    CHECK(memcmp(got, want, sizeof want) == 0);
    static const uint8_t negative[] = {0, 0, 0, 10, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE};
    ign_frame f;
    size_t used;
    CHECK_EQ(ign_frame_decode(negative, sizeof negative, IGN_FRAME_HEADER_BYTES, &f, &used), IGN_OK);
    CHECK(f.command == -1 && f.request_id == -2 && f.payload_len == 0 && used == IGN_FRAME_HEADER_BYTES);
}

static size_t put(uint8_t *dst, int16_t command, int64_t id, size_t n)
{
    ign_frame_put_header(dst, command, id, n);
    memset(dst + IGN_FRAME_HEADER_BYTES, (int)(id & 0xFF), n);
    return IGN_FRAME_HEADER_BYTES + n;
}

static void every_truncation_needs_more(void)
{
    uint8_t bytes[64];
    size_t n = put(bytes, 5, 77, 20), used;
    ign_frame f;
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees a read beyond the cut */
        memcpy(exact, bytes, cut);
        uint8_t *end = realloc(exact, cut ? cut : 1);
        CHECK_EQ(ign_frame_decode(end, cut, 1000, &f, &used), IGN_NEED_MORE);
        CHECK_EQ(used, 0);
        free(end);
    }
    CHECK_EQ(ign_frame_decode(bytes, n, n, &f, &used), IGN_OK);
    CHECK_EQ(ign_frame_decode(bytes, n, n - 1, &f, &used), IGN_E_TOO_LARGE);
    CHECK_EQ(used, n);
    CHECK_EQ(ign_frame_decode(bytes, 4, n - 1, &f, &used), IGN_E_TOO_LARGE); /* four bytes are enough to know */
}

static void lengths_that_cannot_be(void)
{
    static const uint32_t bad[] = {0, 1, 9, 0x80000000u, 0xFFFFFFFFu};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t b[IGN_FRAME_HEADER_BYTES] = {(uint8_t)(bad[i] >> 24), (uint8_t)(bad[i] >> 16), (uint8_t)(bad[i] >> 8), (uint8_t)bad[i]};
        ign_frame f;
        size_t used;
        CHECK_EQ(ign_frame_decode(b, sizeof b, SIZE_MAX, &f, &used), IGN_E_MALFORMED);
    }
    uint8_t top[4] = {0x7F, 0xFF, 0xFF, 0xFF};
    ign_frame f;
    size_t used;
    CHECK_EQ(ign_frame_decode(top, 4, SIZE_MAX, &f, &used), IGN_NEED_MORE);
}

static void bulk(void)
{
    uint8_t bytes[4096];
    size_t end = 0, count, consumed, announced;
    for (int i = 0; i < 50; i++)
        end += put(bytes + end, (int16_t)i, i, (size_t)i);
    size_t good = end;
    ign_frame frames[64];
    CHECK_EQ(ign_frame_decode_many(bytes, end, 1000, frames, 64, &count, &consumed, &announced), IGN_NEED_MORE);
    CHECK(count == 50 && consumed == good);
    CHECK_EQ(ign_frame_decode_many(bytes, end, 1000, frames, 50, &count, &consumed, &announced), IGN_OK);
    for (int i = 0; i < 50; i++)
        CHECK(frames[i].command == i && frames[i].request_id == i && frames[i].payload_len == (size_t)i);
    end += put(bytes + end, 1, 1, 2000);
    CHECK_EQ(ign_frame_decode_many(bytes, end, 1000, frames, 64, &count, &consumed, &announced), IGN_E_TOO_LARGE);
    CHECK(count == 50 && consumed == good && announced == 2000 + IGN_FRAME_HEADER_BYTES);
    memset(bytes + good, 0, IGN_FRAME_HEADER_BYTES);
    CHECK_EQ(ign_frame_decode_many(bytes, end, 1000, frames, 64, &count, &consumed, &announced), IGN_E_MALFORMED);
    CHECK(count == 50 && consumed == good);
}

MAIN("frame", {
    RUN(byte_map);
    RUN(every_truncation_needs_more);
    RUN(lengths_that_cannot_be);
    RUN(bulk);
})
