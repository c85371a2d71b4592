/* The broker's bulk payloads: SENDs sorted into segments, batches, routing, pointers, claims, acknowledgements; each
 * against literal or independently computed bytes, at every truncation, in memory of exactly the size. */
#include <string.h>

#include "check.h"
#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_record.h"
#include "ignis_wire.h"

/* A copy as large as asked for, so that a sanitizer sees a read beyond it. */
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

static size_t put_send(uint8_t *dst, int64_t id, const char *name, uint64_t ttl, uint16_t shard, const char *body)
{
    uint8_t *p = dst + IGN_FRAME_HEADER_BYTES;
    size_t n = strlen(name);
    ign_put16(p, (uint16_t)n);
    memcpy(p + 2, name, n);
    ign_put64(p + 2 + n, ttl);
    ign_put16(p + 10 + n, shard);
    size_t payload = 12 + n + put_record(p + 12 + n, "", body);
    ign_frame_put_header(dst, IGN_WIRE_SEND, id, payload);
    return IGN_FRAME_HEADER_BYTES + payload;
}

/* Whether the body of record i of an unsealed segment is `body`, and its checksum right. */
static bool body_is(const uint8_t *segment, size_t len, uint32_t i, const char *body)
{
    uint8_t *sealed = exact(segment, len);
    ign_segment seg;
    ign_record rec;
    const uint8_t *data;
    size_t size;
    ign_segment_finish(sealed);
    ign_segment_seal(sealed, 1, 2, 3);
    bool same = ign_segment_open(sealed, len, &seg) == IGN_OK && seg.expires_at_ms == 0 && i < seg.count
                && ign_segment_get(&seg, i, 1, 2, 3, &data, &size) == IGN_OK && ign_record_decode(data, size, &rec) == IGN_OK
                && rec.body_len == strlen(body) && memcmp(rec.body, body, rec.body_len) == 0;
    free(sealed);
    return same;
}

static bool id_is(const ign_wire_group *group, uint32_t i, uint64_t id)
{
    return ign_get64(group->request_ids + 8 * (size_t)i) == id;
}

/* -- SEND -------------------------------------------------------------------------------------------------------- */

static void sends_are_sorted_by_shard(void)
{
    uint8_t bytes[1024];
    size_t end = 0, used;
    ign_wire_sorter sorter = {0};
    ign_wire_sends sends;
    end += put_send(bytes + end, 11, "q", 5, 3, "a");
    end += put_send(bytes + end, 12, "q", 5, 65535, "b");
    end += put_send(bytes + end, 13, "q", 5, 3, "c");
    uint8_t *stream = exact(bytes, end);
    for (int again = 0; again < 3; again++) {
        CHECK_EQ(ign_wire_take_sends(&sorter, stream, end, 4096, &sends, &used), IGN_OK);
        CHECK(used == end && sends.name_len == 1 && sends.name[0] == 'q' && sends.ttl_ms == 5 && sends.request_id == 11);
        CHECK_EQ(sorter.group_count, 2);
        ign_wire_group *g = sorter.groups;
        CHECK(g[0].shard == 3 && g[0].count == 2 && g[1].shard == 65535 && g[1].count == 1);
        CHECK(body_is(g[0].segment, g[0].segment_bytes, 0, "a") && body_is(g[0].segment, g[0].segment_bytes, 1, "c"));
        CHECK(body_is(g[1].segment, g[1].segment_bytes, 0, "b"));
        CHECK(id_is(&g[0], 0, 11) && id_is(&g[0], 1, 13) && id_is(&g[1], 0, 12));
        if (again == 1) { /* one is taken, the other is the sorter's to free */
            free(g[0].segment);
            g[0].segment = NULL;
        }
        ign_wire_sorter_clear(&sorter);
        CHECK_EQ(sorter.group_count, 0);
    }
    ign_wire_sorter_free(&sorter);
    free(stream);
}

static void a_run_ends_where_something_else_begins(void)
{
    static const struct { const char *name; uint64_t ttl; int16_t command; } others[] = {
        {"r", 5, IGN_WIRE_SEND}, {"qq", 5, IGN_WIRE_SEND}, {"q", 6, IGN_WIRE_SEND}, {"q", 5, 3}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        uint8_t bytes[512];
        size_t used, first = put_send(bytes, 1, "q", 5, 0, "a");
        size_t end = first + put_send(bytes + first, 2, others[i].name, others[i].ttl, 0, "b");
        ign_put16(bytes + first + 4, (uint16_t)others[i].command);
        ign_wire_sorter sorter = {0};
        ign_wire_sends sends;
        CHECK_EQ(ign_wire_take_sends(&sorter, bytes, end, 4096, &sends, &used), IGN_OK);
        CHECK(used == first && sorter.group_count == 1 && sorter.groups[0].count == 1);
        ign_wire_sorter_free(&sorter);
    }
}

static void a_cut_run_is_what_is_complete(void)
{
    uint8_t bytes[512];
    size_t used, first = put_send(bytes, 1, "q", 5, 0, "a"), end = first + put_send(bytes + first, 2, "q", 5, 1, "b");
    ign_wire_sends sends;
    for (size_t cut = first; cut < end; cut++) {
        ign_wire_sorter sorter = {0};
        uint8_t *part = exact(bytes, cut);
        CHECK_EQ(ign_wire_take_sends(&sorter, part, cut, 4096, &sends, &used), IGN_OK);
        CHECK(used == first && sorter.group_count == 1);
        free(part);
        ign_wire_sorter_free(&sorter);
    }
}

static void what_is_no_send(void)
{
    uint8_t bytes[512];
    size_t whole = put_send(bytes, 9, "q", 5, 0, ""), used;
    ign_wire_sends sends;
    for (size_t payload = 0; payload + IGN_FRAME_HEADER_BYTES < whole; payload++) {
        ign_wire_sorter sorter = {0};
        size_t size = payload + IGN_FRAME_HEADER_BYTES;
        ign_frame_put_header(bytes, IGN_WIRE_SEND, 9, payload);
        uint8_t *frame = exact(bytes, size);
        CHECK_EQ(ign_wire_take_sends(&sorter, frame, size, 4096, &sends, &used), IGN_E_MALFORMED);
        CHECK(used == size && sends.request_id == 9 && sorter.group_count == 0);
        free(frame);
        ign_wire_sorter_free(&sorter);
    }
    /* A name that reaches behind the payload, as the first and as a later frame. */
    put_send(bytes, 9, "q", 5, 0, "");
    size_t second = whole + put_send(bytes + whole, 10, "q", 5, 0, "");
    ign_put16(bytes + whole + IGN_FRAME_HEADER_BYTES, 0xFFFF);
    ign_wire_sorter sorter = {0};
    CHECK_EQ(ign_wire_take_sends(&sorter, bytes, second, 4096, &sends, &used), IGN_OK);
    CHECK_EQ(used, whole);
    ign_wire_sorter_clear(&sorter);
    CHECK_EQ(ign_wire_take_sends(&sorter, bytes + whole, second - whole, 4096, &sends, &used), IGN_E_MALFORMED);
    CHECK_EQ(ign_wire_take_sends(&sorter, bytes, 10, 4096, &sends, &used), IGN_E_INVALID); /* no complete frame */
    ign_wire_sorter_free(&sorter);
}

/* A record whose map is one byte over the limit, and one at it: in a run of SENDs and in a batch. */
static void a_map_over_the_limit(void)
{
    static uint8_t meta[IGN_RECORD_MAX_META_BYTES + 1], bytes[3 * (sizeof meta + 100)], segment[sizeof meta + 200], copy[sizeof segment];
    size_t used, rest, size = put_send(bytes, 1, "q", 5, 0, "a"), first = size, data_bytes;
    uint32_t count, bad = 9;
    ign_wire_sends sends;
    ign_wire_sorter sorter = {0};
    for (size_t over = 0; over < 2; over++) {
        ign_record rec = {.meta = meta, .meta_len = IGN_RECORD_MAX_META_BYTES + over};
        uint8_t *p = bytes + size + IGN_FRAME_HEADER_BYTES, *data = segment + ign_segment_size(1, ign_record_size(&rec)) - ign_record_size(&rec);
        ign_record_encode(&rec, data);
        memcpy(p, bytes + IGN_FRAME_HEADER_BYTES, 13);
        ign_record_encode(&rec, p + 13);
        ign_frame_put_header(bytes + size, IGN_WIRE_SEND, 2 + (int64_t)over, 13 + ign_record_size(&rec));
        size += IGN_FRAME_HEADER_BYTES + 13 + ign_record_size(&rec);
        size_t whole = ign_segment_size(1, ign_record_size(&rec));
        ign_segment_begin(segment, 1, 0);
        ign_segment_put_index(segment, 0, (uint32_t)ign_record_size(&rec), ign_crc32c(0, data, ign_record_size(&rec)));
        ign_segment_finish(segment);
        CHECK_EQ(ign_wire_copy_segment(copy, segment, whole, &count, &data_bytes, &bad), over ? IGN_E_TOO_LARGE : IGN_OK);
        CHECK(!over || (bad == 0 && data_bytes == rec.meta_len));
        CHECK_EQ(ign_record_meta_over(data, ign_record_size(&rec)), over ? rec.meta_len : 0);
        CHECK_EQ(ign_record_meta_over(data, IGN_RECORD_HEADER_BYTES - 1), 0);
    }
    CHECK_EQ(ign_wire_take_sends(&sorter, bytes, size, sizeof bytes, &sends, &used), IGN_OK);
    CHECK(sorter.piece_count == 2 && used > first && used < size);
    ign_wire_sorter_clear(&sorter);
    CHECK_EQ(ign_wire_take_sends(&sorter, bytes + used, size - used, sizeof bytes, &sends, &rest), IGN_E_TOO_LARGE);
    CHECK(rest == size - used && sends.request_id == 3 && sends.meta_bytes == sizeof meta && sorter.piece_count == 0);
    ign_wire_sorter_free(&sorter);
}

static void more_sends_than_a_sorter_keeps(void)
{
    enum { MANY = 20000 };
    uint8_t one[128];
    size_t size = put_send(one, 0, "q", 0, 0, "x"), used;
    uint8_t *stream = malloc(size * MANY);
    CHECK(stream != NULL);
    for (uint32_t i = 0; i < MANY; i++) {
        uint8_t *at = stream + size * i;
        memcpy(at, one, size);
        ign_put64(at + 6, i);
        ign_put16(at + IGN_FRAME_HEADER_BYTES + 11, (uint16_t)(i % 1000));
    }
    ign_wire_sorter sorter = {0};
    ign_wire_sends sends;
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(ign_wire_take_sends(&sorter, stream, size * MANY, 4096, &sends, &used), IGN_OK);
        CHECK(used == size * MANY && sorter.group_count == 1000);
        for (uint32_t g = 0; g < 1000; g++) {
            CHECK(sorter.groups[g].shard == g && sorter.groups[g].count == MANY / 1000);
            for (uint32_t i = 0; i < MANY / 1000; i++)
                CHECK(id_is(&sorter.groups[g], i, g + 1000u * i));
        }
        CHECK(body_is(sorter.groups[999].segment, sorter.groups[999].segment_bytes, 19, "x"));
        ign_wire_sorter_clear(&sorter);
        CHECK(sorter.pieces == NULL && sorter.groups == NULL && sorter.ids == NULL);
    }
    /* A table of another size, then a shard beyond it. */
    ign_wire_sorter small = {0};
    uint32_t bad;
    uint8_t record[64], segment[256];
    size_t n = put_record(record, "", "y"), total = ign_segment_size(1, n);
    ign_segment_begin(segment, 1, 0);
    memcpy(segment + total - n, record, n);
    ign_segment_put_index(segment, 0, (uint32_t)n, ign_crc32c(0, record, n));
    ign_segment_finish(segment);
    CHECK_EQ(ign_wire_route(&small, segment, total, 4, 3, NULL, &bad), IGN_OK);
    ign_wire_sorter_clear(&small);
    ign_put16(one + IGN_FRAME_HEADER_BYTES + 11, 60000);
    CHECK_EQ(ign_wire_take_sends(&small, one, size, 4096, &sends, &used), IGN_OK);
    CHECK_EQ(small.groups[0].shard, 60000);
    ign_wire_sorter_free(&small);
    ign_wire_sorter_free(&sorter);
    free(stream);
}

/* -- segments ------------------------------------------------------------------------------------------------------ */

/* An unsealed segment of records with these keys, the body of each being its number; returns its size. */
static size_t put_segment(uint8_t *dst, const char *const *keys, uint32_t count, uint64_t expires_at_ms)
{
    uint8_t records[1024];
    size_t end = 0, ends[16];
    for (uint32_t i = 0; i < count; i++)
        ends[i] = end += put_record(records + end, keys[i], (const char[]){(char)('0' + i), 0});
    size_t total = ign_segment_size(count, end);
    ign_segment_begin(dst, count, expires_at_ms);
    memcpy(dst + total - end, records, end);
    for (uint32_t i = 0; i < count; i++) {
        size_t begin = i == 0 ? 0 : ends[i - 1];
        ign_segment_put_index(dst, i, (uint32_t)ends[i], ign_crc32c(0, records + begin, ends[i] - begin));
    }
    ign_segment_finish(dst);
    return total;
}

static void routing_by_key(void)
{
    static const char *const keys[] = {"", "a", "b", "a", "", "c"};
    uint8_t bytes[1024], ids[48];
    uint32_t bad = 99;
    size_t total = put_segment(bytes, keys, 6, 0);
    uint8_t *segment = exact(bytes, total);
    for (uint32_t i = 0; i < 6; i++)
        ign_put64(ids + 8 * (size_t)i, 100 + i);
    ign_wire_sorter sorter = {0};
    for (int with_ids = 0; with_ids < 2; with_ids++) {
        CHECK_EQ(ign_wire_route(&sorter, segment, total, 7, 6, with_ids ? ids : NULL, &bad), IGN_OK);
        uint32_t seen = 0;
        for (uint32_t g = 0; g < sorter.group_count; g++) {
            const ign_wire_group *group = &sorter.groups[g];
            uint32_t at = 0;
            for (uint32_t i = 0; i < 6; i++) {
                uint16_t shard = keys[i][0] ? ign_shard_for_key(keys[i], 1, 7) : 6;
                if (shard != group->shard)
                    continue;
                CHECK(body_is(group->segment, group->segment_bytes, at, (const char[]){(char)('0' + i), 0}));
                CHECK(with_ids ? id_is(group, at, 100 + i) : group->request_ids == NULL);
                at++;
            }
            CHECK_EQ(at, group->count);
            seen += at;
        }
        CHECK_EQ(seen, 6);
        ign_wire_sorter_clear(&sorter);
    }
    segment[24] ^= 1; /* the index */
    CHECK_EQ(ign_wire_route(&sorter, segment, total, 7, 6, NULL, &bad), IGN_E_CORRUPT);
    segment[24] ^= 1;
    segment[24 + 48 + IGN_RECORD_HEADER_BYTES + 1] = 99; /* the version of the second record */
    CHECK_EQ(ign_wire_route(&sorter, segment, total, 7, 6, NULL, &bad), IGN_E_MALFORMED);
    CHECK_EQ(bad, 1);
    ign_wire_sorter_free(&sorter);
    free(segment);
}

static void batches(void)
{
    static const char *const keys[] = {"", "k"};
    uint8_t segment[512], payload[2048];
    size_t size = put_segment(segment, keys, 2, 12345), at = 0;
    ign_put16(payload, 3);
    memcpy(payload + 2, "abc", 3);
    ign_put64(payload + 5, 77);
    ign_put16(payload + 13, 2);
    at = 15;
    for (uint16_t g = 0; g < 2; g++) {
        ign_put16(payload + at, (uint16_t)(g + 8));
        ign_put32(payload + at + 2, (uint32_t)size);
        memcpy(payload + at + 6, segment, size);
        at += 6 + size;
    }
    for (size_t cut = 0; cut <= at + 1; cut++) {
        uint8_t *part = exact(payload, cut);
        ign_wire_batches b;
        const uint8_t *found;
        size_t len;
        uint16_t shard;
        int code = ign_wire_batches_open(&b, part, cut);
        uint32_t groups = 0;
        while (code == IGN_OK && (code = ign_wire_batches_next(&b, &shard, &found, &len)) == IGN_OK) {
            CHECK(shard == 8 + groups++ && len == size && memcmp(found, segment, size) == 0);
            CHECK(b.name_len == 3 && memcmp(b.name, "abc", 3) == 0 && b.ttl_ms == 77);
        }
        CHECK_EQ(code, cut < at ? IGN_E_TRUNCATED : cut == at ? IGN_EMPTY : IGN_E_MALFORMED);
        free(part);
    }
    /* The copy: same records, no expiry; and no changed byte of the sender's gets through unseen. */
    uint8_t *copy = malloc(size);
    CHECK(copy != NULL);
    uint32_t count, bad;
    size_t data_bytes;
    CHECK_EQ(ign_wire_copy_segment(copy, segment, size, &count, &data_bytes, &bad), IGN_OK);
    CHECK(count == 2 && data_bytes == size - 40 && body_is(copy, size, 0, "0") && body_is(copy, size, 1, "1"));
    for (size_t i = 0; i < size; i++) {
        segment[i] ^= 0x40;
        uint8_t *src = exact(segment, size);
        int code = ign_wire_copy_segment(copy, src, size, &count, &data_bytes, &bad);
        CHECK(code == IGN_E_MALFORMED || code == IGN_E_CORRUPT);
        CHECK(code != IGN_E_CORRUPT || bad < 2);
        segment[i] ^= 0x40;
        free(src);
    }
    CHECK_EQ(ign_wire_copy_segment(copy, segment, 0, &count, &data_bytes, &bad), IGN_E_MALFORMED);
    free(copy);
}

static void acknowledgements(void)
{
    static const uint8_t want[] = {0, 0, 0, 26, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0xAB, 0xCD, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1,
                                   0, 0, 0, 26, 0, 12, 0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0xAB, 0xCD, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 1};
    uint8_t ids[16], got[sizeof want];
    ign_put64(ids, 0x0102030405060708u);
    ign_put64(ids + 8, 7);
    ign_wire_put_acks(got, ids, 2, 0xABCD, 0x100000009u);
    CHECK(memcmp(got, want, sizeof want) == 0);
}

/* -- pointers and claims -------------------------------------------------------------------------------------------- */

static void runs_join(void)
{
    ign_wire_runs runs = {0};
    static const struct { uint16_t shard; uint64_t first; uint32_t count; } parts[] = {
        {1, 5, 1}, {1, 6, 2}, {1, 9, 1}, {2, 10, 1}, {2, 8, 1}, {2, 9, 0}, {2, 9, UINT32_MAX - 1}, {2, UINT32_MAX + 8ull, 5}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        CHECK_EQ(ign_wire_runs_add(&runs, parts[i].shard, parts[i].first, parts[i].count), IGN_OK);
    static const struct { uint16_t shard; uint64_t first; uint32_t count; } want[] = {
        {1, 5, 3}, {1, 9, 1}, {2, 10, 1}, {2, 8, UINT32_MAX}, {2, UINT32_MAX + 8ull, 5}};
    CHECK_EQ(runs.count, 5);
    for (size_t i = 0; i < 5; i++)
        CHECK(runs.run[i].shard == want[i].shard && runs.run[i].first == want[i].first && runs.run[i].count == want[i].count);
    ign_wire_runs_break(&runs);
    CHECK_EQ(ign_wire_runs_add(&runs, 2, UINT32_MAX + 13ull, 1), IGN_OK);
    CHECK_EQ(runs.count, 6);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(ign_wire_runs_add(&runs, 3, 2 * i, 1), IGN_OK);
    CHECK_EQ(runs.count, 1006);
    ign_wire_runs_free(&runs);
    CHECK(runs.run == NULL && runs.count == 0);
}

static void pointers_there_and_back(void)
{
    static const uint8_t want[] = {0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3, 0xFF, 0xFF, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    ign_wire_runs runs = {0};
    uint8_t got[sizeof want];
    uint32_t count;
    CHECK_EQ(ign_wire_runs_add(&runs, 1, 5, 3), IGN_OK);
    CHECK_EQ(ign_wire_runs_add(&runs, 65535, 1ull << 40, 1), IGN_OK);
    ign_wire_runs_put(&runs, got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    ign_wire_runs_free(&runs);
    for (size_t cut = 0; cut <= sizeof want; cut++) {
        uint8_t *part = exact(want, cut);
        CHECK_EQ(ign_wire_pointers_open(part, cut, &count), cut < sizeof want ? IGN_E_TRUNCATED : IGN_OK);
        free(part);
    }
    ign_wire_run run;
    CHECK_EQ(count, 2);
    ign_wire_pointers_get(want, 1, &run);
    CHECK(run.shard == 65535 && run.first == 1ull << 40 && run.count == 1);
}

static void pointers_that_are_none(void)
{
    uint8_t bytes[4 + 2 * IGN_WIRE_RUN_BYTES + 1] = {0};
    uint32_t count;
    ign_put32(bytes, 1);
    ign_put32(bytes + 14, 1);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_OK);
    CHECK_EQ(ign_wire_pointers_open(bytes, 19, &count), IGN_E_MALFORMED);
    CHECK_EQ(ign_wire_pointers_open(bytes, 32, &count), IGN_E_MALFORMED);
    ign_put32(bytes + 14, 0);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_E_MALFORMED);
    ign_put32(bytes + 14, IGN_WIRE_MAX_POINTERS);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_OK);
    ign_put32(bytes + 14, IGN_WIRE_MAX_POINTERS + 1);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_E_TOO_LARGE);
    ign_put32(bytes, 2); /* too many in all, none by itself; a sum that does not fit 32 bits */
    ign_put32(bytes + 14, 1);
    ign_put32(bytes + 28, UINT32_MAX);
    CHECK_EQ(ign_wire_pointers_open(bytes, 32, &count), IGN_E_TOO_LARGE);
    ign_put32(bytes, 1);
    ign_put64(bytes + 6, 1ull << 63);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_E_TOO_LARGE);
    ign_put32(bytes, UINT32_MAX);
    CHECK_EQ(ign_wire_pointers_open(bytes, 18, &count), IGN_E_TRUNCATED);
}

/* Two claims: shard 3 with the pointers 1, 2 and 9 (the second corrupt), shard 4 with none. Returns the size. */
static size_t put_claims(uint8_t *dst)
{
    ign_wire_runs runs = {0};
    CHECK_EQ(ign_wire_runs_add(&runs, 0, 1, 2), IGN_OK);
    CHECK_EQ(ign_wire_runs_add(&runs, 0, 9, 1), IGN_OK);
    ign_put32(dst, 2);
    ign_wire_put_claim(dst + 4, 3, 3, 2);
    ign_wire_runs_put_bare(&runs, dst + 14);
    ign_put32(dst + 38, 2);
    ign_put32(dst + 42, IGN_WIRE_NO_RECORD);
    ign_put32(dst + 46, 0);
    memcpy(dst + 50, "ab", 2);
    ign_wire_put_claim(dst + 52, 4, 0, 0);
    ign_wire_runs_free(&runs);
    return 62;
}

static void claims(void)
{
    uint8_t bytes[80];
    size_t size = put_claims(bytes);
    for (size_t cut = 0; cut <= size + 1; cut++) {
        uint8_t *part = exact(bytes, cut);
        ign_wire_claims c;
        ign_wire_claim claim;
        uint32_t found = 0, len;
        int code = ign_wire_claims_open(&c, part, cut);
        while (code == IGN_OK && (code = ign_wire_claims_next(&c, &claim)) == IGN_OK) {
            if (found++ == 1) {
                CHECK(claim.shard == 4 && claim.records == 0 && claim.runs == 0);
                continue;
            }
            ign_wire_run run;
            CHECK(claim.shard == 3 && claim.records == 3 && claim.runs == 2);
            ign_wire_claim_run(&claim, 1, &run);
            CHECK(run.shard == 3 && run.first == 9 && run.count == 1);
            const uint8_t *record = ign_wire_claim_take(&claim, &len);
            CHECK(len == 2 && memcmp(record, "ab", 2) == 0);
            CHECK(ign_wire_claim_take(&claim, &len) == NULL);
            CHECK(ign_wire_claim_take(&claim, &len) != NULL && len == 0);
        }
        CHECK_EQ(code, cut < size ? IGN_E_TRUNCATED : cut == size ? IGN_EMPTY : IGN_E_MALFORMED);
        free(part);
    }
}

static void claims_that_are_none(void)
{
    static const struct { size_t at; uint32_t value; int code; } changes[] = {
        {6, 2, IGN_E_MALFORMED}, {6, 4, IGN_E_MALFORMED}, {6, UINT32_MAX, IGN_E_TRUNCATED}, {10, UINT32_MAX, IGN_E_TRUNCATED},
        {22, 1, IGN_E_MALFORMED}, {22, UINT32_MAX, IGN_E_MALFORMED}, {14, 0x80000000u, IGN_E_MALFORMED}, {34, 0, IGN_E_MALFORMED},
        {38, 1000, IGN_E_TRUNCATED}, {38, UINT32_MAX - 1, IGN_E_TRUNCATED}, {0, 3, IGN_E_TRUNCATED}, {0, 1, IGN_E_MALFORMED},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t bytes[80];
        size_t size = put_claims(bytes);
        ign_put32(bytes + changes[i].at, changes[i].value);
        uint8_t *part = exact(bytes, size);
        ign_wire_claims c;
        ign_wire_claim claim;
        int code = ign_wire_claims_open(&c, part, size);
        while (code == IGN_OK)
            code = ign_wire_claims_next(&c, &claim);
        CHECK_EQ(code, changes[i].code);
        free(part);
    }
}

MAIN("wire", {
    RUN(sends_are_sorted_by_shard);
    RUN(a_run_ends_where_something_else_begins);
    RUN(a_cut_run_is_what_is_complete);
    RUN(what_is_no_send);
    RUN(a_map_over_the_limit);
    RUN(more_sends_than_a_sorter_keeps);
    RUN(routing_by_key);
    RUN(batches);
    RUN(acknowledgements);
    RUN(runs_join);
    RUN(pointers_there_and_back);
    RUN(pointers_that_are_none);
    RUN(claims);
    RUN(claims_that_are_none);
})
