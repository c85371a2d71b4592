/* Fuzz target: arbitrary bytes as what a connection receives, the bulk payloads taken apart.
 *
 * Whatever comes in, nothing outside it is read. What is accepted is compared with a second reading that knows nothing
 * of runs and groups: every SEND stands once, in order, in the segment of its shard; what was routed is what was there;
 * pointers and claims written again are the bytes they were read from. */
#include <stdlib.h>
#include <string.h>

#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_record.h"
#include "ignis_wire.h"
#include "ignis_wire_ack.h"
#include "ignis_wire_lone.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

/* In memory of its own, so that a read beyond it is seen. */
static uint8_t *exact(const uint8_t *src, size_t size)
{
    uint8_t *copy = malloc(size != 0 ? size : 1);
    REQUIRE(copy != NULL);
    if (size != 0)
        memcpy(copy, src, size);
    return copy;
}

/* -- SEND -------------------------------------------------------------------------------------------------------- */

/* Record i of a group, whose segment must be one. */
static const uint8_t *record_of(const ign_wire_group *group, uint32_t i, size_t *len)
{
    const uint8_t *entry = group->segment + IGN_SEGMENT_HEADER_BYTES + (size_t)i * IGN_SEGMENT_INDEX_BYTES;
    uint32_t begin = i == 0 ? 0 : ign_get32(entry - IGN_SEGMENT_INDEX_BYTES), end = ign_get32(entry);
    REQUIRE(i < group->count && begin <= end && end <= group->data_bytes);
    const uint8_t *record = group->segment + (group->segment_bytes - group->data_bytes) + begin;
    *len = end - begin;
    REQUIRE(ign_crc32c(0, record, *len) == ign_get32(entry + 4));
    return record;
}

static void check_groups(ign_wire_sorter *sorter, uint32_t total)
{
    ign_segment seg;
    for (uint32_t g = 0; g < sorter->group_count; g++) {
        ign_wire_group *group = &sorter->groups[g];
        REQUIRE(group->filled == group->count && group->end == group->data_bytes);
        ign_segment_finish(group->segment);
        REQUIRE(ign_segment_open(group->segment, group->segment_bytes, &seg) == IGN_OK);
        REQUIRE(seg.count == group->count && seg.expires_at_ms == 0);
        group->filled = 0; /* from here on: how many of them were compared */
        total -= group->count;
        for (uint32_t other = 0; other < g; other++)
            REQUIRE(sorter->groups[other].shard != group->shard);
    }
    REQUIRE(total == 0);
}

static void compare_next(ign_wire_sorter *sorter, uint16_t shard, int64_t id, const uint8_t *record, size_t len)
{
    size_t found_len;
    for (uint32_t g = 0; g < sorter->group_count; g++) {
        ign_wire_group *group = &sorter->groups[g];
        if (group->shard != shard)
            continue;
        const uint8_t *found = record_of(group, group->filled, &found_len);
        REQUIRE(found_len == len && memcmp(found, record, len) == 0);
        REQUIRE((int64_t)ign_get64(group->request_ids + 8 * (size_t)group->filled) == id);
        group->filled++;
        return;
    }
    REQUIRE(false);
}

static void route(const ign_wire_group *group)
{
    ign_wire_sorter sorter = {0};
    uint16_t shards = (uint16_t)(1 + group->segment_bytes % 17);
    uint32_t bad = UINT32_MAX;
    int code = ign_wire_route(&sorter, group->segment, group->segment_bytes, shards, (uint16_t)(shards - 1),
                              group->request_ids, &bad);
    REQUIRE(code == IGN_OK || (code == IGN_E_MALFORMED && bad < group->count));
    if (code == IGN_OK) {
        check_groups(&sorter, group->count);
        for (uint32_t i = 0; i < group->count; i++) {
            size_t len;
            ign_record rec;
            const uint8_t *record = record_of(group, i, &len);
            REQUIRE(ign_record_decode(record, len, &rec) == IGN_OK);
            uint16_t shard = rec.key_len != 0 ? ign_shard_for_key(rec.key, rec.key_len, shards) : (uint16_t)(shards - 1);
            compare_next(&sorter, shard, (int64_t)ign_get64(group->request_ids + 8 * (size_t)i), record, len);
        }
    }
    ign_wire_sorter_free(&sorter);
}

/* The run at the start of src; returns the bytes it took. */
static size_t read_sends(ign_wire_sorter *sorter, const uint8_t *src, size_t size)
{
    ign_wire_sends sends;
    ign_frame frame;
    size_t consumed, used;
    int code = ign_wire_take_sends(sorter, src, size, SIZE_MAX, &sends, &consumed);
    REQUIRE(consumed != 0 && consumed <= size);
    if (code == IGN_E_MALFORMED || code == IGN_E_TOO_LARGE) {
        REQUIRE(sorter->group_count == 0);
        ign_wire_sorter_clear(sorter);
        return consumed;
    }
    REQUIRE(code == IGN_OK);
    uint32_t total = 0;
    for (size_t at = 0; at < consumed; at += used, total++)
        REQUIRE(ign_frame_decode(src + at, consumed - at, SIZE_MAX, &frame, &used) == IGN_OK);
    check_groups(sorter, total);
    for (size_t at = 0; at < consumed; at += used) {
        ign_frame_decode(src + at, consumed - at, SIZE_MAX, &frame, &used);
        REQUIRE(frame.command == IGN_WIRE_SEND);
        size_t name_len = ign_get16(frame.payload);
        REQUIRE(name_len == sends.name_len && memcmp(frame.payload + 2, sends.name, name_len) == 0);
        REQUIRE(ign_get64(frame.payload + 2 + name_len) == sends.ttl_ms);
        compare_next(sorter, ign_get16(frame.payload + 10 + name_len), frame.request_id, frame.payload + 12 + name_len,
                     frame.payload_len - 12 - name_len);
    }
    for (uint32_t g = 0; g < sorter->group_count; g++)
        route(&sorter->groups[g]);
    ign_wire_sorter_clear(sorter);
    return consumed;
}

/* -- SEND_BATCH ---------------------------------------------------------------------------------------------------- */

static void copy_segment(const uint8_t *src, size_t len)
{
    uint8_t *part = exact(src, len), *copy = exact(src, len);
    uint32_t count = 0, bad = UINT32_MAX;
    size_t data_bytes = 0;
    int code = ign_wire_copy_segment(copy, part, len, &count, &data_bytes, &bad);
    if (code == IGN_OK) {
        ign_segment theirs, ours;
        ign_segment_finish(copy);
        REQUIRE(ign_segment_open(part, len, &theirs) == IGN_OK && ign_segment_open(copy, len, &ours) == IGN_OK);
        REQUIRE(ours.count == count && theirs.count == count && ours.data_len == data_bytes && ours.expires_at_ms == 0);
        REQUIRE(memcmp(copy + IGN_SEGMENT_HEADER_BYTES, part + IGN_SEGMENT_HEADER_BYTES, len - IGN_SEGMENT_HEADER_BYTES) == 0);
    } else {
        REQUIRE(code == IGN_E_MALFORMED || code == IGN_E_CORRUPT || code == IGN_E_TOO_LARGE);
    }
    free(part);
    free(copy);
}

/* The fuzzer cannot guess a checksum: mended, what lies behind it is reached too. */
static void copy_mended(const uint8_t *src, size_t len)
{
    if (len < IGN_SEGMENT_HEADER_BYTES)
        return;
    uint32_t count = ign_get32(src + 4), begin = 0;
    if (count == 0 || count > (len - IGN_SEGMENT_HEADER_BYTES) / IGN_SEGMENT_INDEX_BYTES)
        return;
    uint8_t *copy = exact(src, len);
    size_t head = IGN_SEGMENT_HEADER_BYTES + (size_t)count * IGN_SEGMENT_INDEX_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t end = ign_get32(copy + IGN_SEGMENT_HEADER_BYTES + (size_t)i * IGN_SEGMENT_INDEX_BYTES);
        if (end >= begin && end <= len - head)
            ign_segment_put_index(copy, i, end, ign_crc32c(0, copy + head + begin, end - begin));
        begin = end;
    }
    ign_segment_finish(copy);
    copy_segment(copy, len);
    free(copy);
}

static void read_batches(const uint8_t *src, size_t size)
{
    ign_wire_batches batches;
    const uint8_t *segment;
    size_t len;
    uint16_t shard;
    int code = ign_wire_batches_open(&batches, src, size);
    while (code == IGN_OK && (code = ign_wire_batches_next(&batches, &shard, &segment, &len)) == IGN_OK) {
        REQUIRE(segment >= src && len <= size && segment + len <= src + size);
        copy_segment(segment, len);
        copy_mended(segment, len);
    }
    REQUIRE(code == IGN_EMPTY || code == IGN_E_TRUNCATED || code == IGN_E_MALFORMED);
}

/* -- a request that came alone ------------------------------------------------------------------------------------- */

/* What is made of its messages for a consumer has them all, in order. */
static void deliver(const uint8_t *made, size_t made_bytes, uint32_t count)
{
    ign_segment segment;
    ign_frame frame;
    ign_wire_claims claims;
    ign_wire_claim claim;
    size_t used, front = ign_wire_delivery_front(count);
    REQUIRE(ign_segment_open(made, made_bytes, &segment) == IGN_OK && segment.count == count);
    uint8_t *bytes = malloc(front + segment.data_len);
    REQUIRE(bytes != NULL);
    ign_wire_put_delivery(bytes, 5, 9, 11, &segment);
    if (segment.data_len != 0)
        memcpy(bytes + front, segment.data, segment.data_len);
    REQUIRE(ign_frame_decode(bytes, front + segment.data_len, SIZE_MAX, &frame, &used) == IGN_OK);
    REQUIRE(used == front + segment.data_len && frame.command == IGN_WIRE_DELIVER && frame.request_id == 5);
    size_t head = 4 + (size_t)ign_get32(frame.payload);
    REQUIRE(head <= frame.payload_len);
    REQUIRE(ign_wire_claims_open(&claims, frame.payload + head, frame.payload_len - head) == IGN_OK);
    REQUIRE(ign_wire_claims_next(&claims, &claim) == IGN_OK && claim.records == count && claim.shard == 9 && claim.runs == 1);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry = segment.base + IGN_SEGMENT_HEADER_BYTES + (size_t)i * IGN_SEGMENT_INDEX_BYTES;
        uint32_t begin = i == 0 ? 0 : ign_get32(entry - IGN_SEGMENT_INDEX_BYTES), len;
        const uint8_t *record = ign_wire_claim_take(&claim, &len);
        REQUIRE(record != NULL && len == ign_get32(entry) - begin && memcmp(record, segment.data + begin, len) == 0);
    }
    REQUIRE(ign_wire_claims_next(&claims, &claim) == IGN_EMPTY);
    free(bytes);
}

/* The same segment as by the two ways above, or nothing. */
static void read_lone(const uint8_t *src, size_t size)
{
    ign_wire_lone lone;
    uint8_t *frame = exact(src, size);
    uint32_t count = 0, bad = 0;
    uint16_t shard = 0, shards = (uint16_t)(1 + size % 17);
    if (ign_wire_lone_open(&lone, frame, size, SIZE_MAX) == IGN_OK) {
        REQUIRE(lone.name >= frame && lone.name + lone.name_len <= frame + size);
        int placed = ign_wire_lone_shard(&lone, shards, &shard);
        REQUIRE(placed == IGN_FULL || placed == IGN_EMPTY || (placed == IGN_OK && shard < shards));
        uint8_t *made = malloc(lone.segment_bytes != 0 ? lone.segment_bytes : 1);
        REQUIRE(made != NULL);
        int code = ign_wire_lone_put(&lone, made, 77, &count);
        uint8_t *other = exact(lone.data, lone.data_len);
        size_t other_bytes = lone.data_len, data_bytes;
        ign_wire_sorter sorter = {0};
        if (lone.command == IGN_WIRE_SEND) {
            ign_wire_sends sends;
            size_t used;
            REQUIRE(code == IGN_OK && ign_wire_take_sends(&sorter, frame, size, SIZE_MAX, &sends, &used) == IGN_OK);
            REQUIRE(sends.request_id == lone.request_id && sends.ttl_ms == lone.ttl_ms && sorter.groups[0].shard == lone.shard);
            free(other);
            other_bytes = sorter.groups[0].segment_bytes;
            other = exact(sorter.groups[0].segment, other_bytes);
        } else {
            int copied = ign_wire_copy_segment(other, lone.data, lone.data_len, &bad, &data_bytes, &bad);
            REQUIRE((copied == IGN_OK) == (code == IGN_OK));
        }
        if (code == IGN_OK) {
            REQUIRE(other_bytes == lone.segment_bytes && count == ign_wire_lone_count(&lone));
            ign_segment_begin(other, count, 77);
            ign_segment_finish(other);
            REQUIRE(memcmp(made, other, other_bytes) == 0);
            deliver(made, other_bytes, count);
            ign_wire_sorter routed = {0};
            if (lone.shard == IGN_WIRE_ANY_SHARD && ign_wire_route(&routed, made, other_bytes, shards, 0, NULL, &bad) == IGN_OK)
                REQUIRE(count > 1 ? placed == IGN_EMPTY : placed == IGN_FULL || (placed == IGN_OK && routed.groups[0].shard == shard));
            ign_wire_sorter_free(&routed);
        }
        ign_wire_sorter_free(&sorter);
        free(other);
        free(made);
    }
    free(frame);
}

/* The same runs as by the way below, each pointer once, or nothing. */
static void read_ack(const uint8_t *src, size_t size)
{
    ign_wire_ack ack;
    uint8_t *frame = exact(src, size);
    if (ign_wire_ack_open(&ack, frame, size, SIZE_MAX) == IGN_OK) {
        const uint8_t *end = frame + size, *payload = frame + IGN_FRAME_HEADER_BYTES;
        uint32_t runs, count = 0;
        uint64_t behind = 0;
        REQUIRE(ack.name > payload && ack.name + ack.name_len == payload + 4 + ign_get32(payload));
        REQUIRE(ack.pointers == ack.name + ack.name_len && ack.request_id == (int64_t)ign_get64(frame + 6));
        REQUIRE(ign_wire_pointers_open(ack.pointers, (size_t)(end - ack.pointers), &runs) == IGN_OK);
        REQUIRE(runs == ack.runs && runs != 0 && runs <= IGN_WIRE_LONE_MOST_RUNS);
        for (uint32_t i = 0; i < runs; i++) {
            ign_wire_run run, last;
            ign_wire_pointers_get(ack.pointers, i, &run);
            if (i != 0) {
                ign_wire_pointers_get(ack.pointers, i - 1, &last);
                REQUIRE(run.shard > last.shard || (run.shard == last.shard && run.first >= behind));
            }
            behind = run.first + run.count;
            count += run.count;
        }
        REQUIRE(count == ack.count && count <= IGN_WIRE_LONE_MOST_POINTERS);
        uint8_t answer[IGN_WIRE_RESULT_FRAME_BYTES];
        ign_frame made;
        size_t used, len = ign_wire_put_result(answer, ack.request_id, count);
        REQUIRE(ign_frame_decode(answer, len, SIZE_MAX, &made, &used) == IGN_OK && used == len);
        REQUIRE(made.command == IGN_WIRE_RESULT && made.request_id == ack.request_id);
    }
    free(frame);
}

/* -- pointers and claims -------------------------------------------------------------------------------------------- */

static void read_pointers(const uint8_t *src, size_t size)
{
    uint32_t count;
    uint64_t total = 0;
    if (ign_wire_pointers_open(src, size, &count) != IGN_OK)
        return;
    ign_wire_runs runs = {0};
    for (uint32_t i = 0; i < count; i++) {
        ign_wire_run run;
        ign_wire_pointers_get(src, i, &run);
        total += run.count;
        ign_wire_runs_break(&runs);
        REQUIRE(ign_wire_runs_add(&runs, run.shard, run.first, run.count) == IGN_OK);
    }
    REQUIRE(total <= IGN_WIRE_MAX_POINTERS && runs.count == count);
    uint8_t *again = malloc(size);
    REQUIRE(again != NULL);
    ign_wire_runs_put(&runs, again);
    REQUIRE(memcmp(again, src, size) == 0);
    ign_wire_runs_free(&runs);
    free(again);
}

static void read_claims(const uint8_t *src, size_t size)
{
    ign_wire_claims claims;
    ign_wire_claim claim;
    int code = ign_wire_claims_open(&claims, src, size);
    const uint8_t *end = src + 4;
    while (code == IGN_OK && (code = ign_wire_claims_next(&claims, &claim)) == IGN_OK) {
        uint64_t pointers = 0;
        uint32_t len;
        REQUIRE(claim.run == end + IGN_WIRE_CLAIM_BYTES);
        for (uint32_t i = 0; i < claim.runs; i++) {
            ign_wire_run run;
            ign_wire_claim_run(&claim, i, &run);
            pointers += run.count;
        }
        REQUIRE(pointers == claim.records);
        end = claim.data;
        for (uint32_t i = 0; i < claim.records; i++) {
            const uint8_t *record = ign_wire_claim_take(&claim, &len);
            REQUIRE(record == NULL ? len == 0 : record == end);
            end += len;
        }
    }
    REQUIRE(code == IGN_EMPTY || code == IGN_E_TRUNCATED || code == IGN_E_MALFORMED);
    REQUIRE(code != IGN_EMPTY || end == src + size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ign_wire_sorter sorter = {0};
    ign_frame frame;
    size_t used;
    for (size_t at = 0; at < size; at += used) {
        if (ign_frame_decode(data + at, size - at, SIZE_MAX, &frame, &used) != IGN_OK)
            break;
        uint8_t *payload = exact(frame.payload, frame.payload_len);
        read_lone(data + at, used);
        read_ack(data + at, used);
        if (frame.command == IGN_WIRE_SEND) {
            used = read_sends(&sorter, data + at, size - at);
        } else if (frame.command == IGN_WIRE_SEND_BATCH) {
            read_batches(payload, frame.payload_len);
        } else if (frame.payload_len >= 4) {
            /* A head, then pointers or claims. */
            size_t head = 4 + (size_t)ign_get32(payload);
            if (head <= frame.payload_len) {
                read_pointers(payload + head, frame.payload_len - head);
                read_claims(payload + head, frame.payload_len - head);
            }
        }
        free(payload);
    }
    ign_wire_sorter_free(&sorter);
    return 0;
}
