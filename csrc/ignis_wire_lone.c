/* A SEND or SEND_BATCH that came alone. */
#include "ignis_wire_lone.h"

#include <string.h>

#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_record.h"
#include "ignis_wire.h"

/* [more = false, expired = 0, holes = {}] */
static const uint8_t delivery_head[] = {0x93, 0xC2, 0x00, 0x80};

static int open_send(ign_wire_lone *lone, const ign_frame *frame)
{
    const uint8_t *at = frame->payload;
    if (frame->payload_len < 2)
        return IGN_EMPTY;
    lone->name_len = ign_get16(at);
    if (frame->payload_len < lone->name_len + 12 + IGN_RECORD_HEADER_BYTES)
        return IGN_EMPTY;
    lone->name = at + 2;
    at += 2 + lone->name_len;
    lone->ttl_ms = ign_get64(at);
    lone->shard = ign_get16(at + 8);
    lone->data = at + 10;
    lone->data_len = frame->payload_len - lone->name_len - 12;
    lone->segment_bytes = ign_segment_size(1, lone->data_len);
    return lone->segment_bytes == SIZE_MAX || ign_record_meta_over(lone->data, lone->data_len) != 0 ? IGN_EMPTY : IGN_OK;
}

static int open_batch(ign_wire_lone *lone, const ign_frame *frame)
{
    ign_wire_batches batches;
    uint16_t none;
    const uint8_t *segment;
    size_t len;
    if (ign_wire_batches_open(&batches, frame->payload, frame->payload_len) != IGN_OK || batches.groups != 1 ||
        ign_wire_batches_next(&batches, &lone->shard, &lone->data, &lone->data_len) != IGN_OK ||
        ign_wire_batches_next(&batches, &none, &segment, &len) != IGN_EMPTY)
        return IGN_EMPTY;
    lone->name = batches.name;
    lone->name_len = batches.name_len;
    lone->ttl_ms = batches.ttl_ms;
    lone->segment_bytes = lone->data_len;
    return IGN_OK;
}

int ign_wire_lone_open(ign_wire_lone *lone, const uint8_t *src, size_t len, size_t max_frame_bytes)
{
    ign_frame frame;
    size_t used;
    if (ign_frame_decode(src, len, max_frame_bytes, &frame, &used) != IGN_OK || used != len)
        return IGN_EMPTY;
    lone->command = frame.command;
    lone->request_id = frame.request_id;
    if (frame.command == IGN_WIRE_SEND)
        return open_send(lone, &frame);
    return frame.command == IGN_WIRE_SEND_BATCH ? open_batch(lone, &frame) : IGN_EMPTY;
}

int ign_wire_lone_shard(const ign_wire_lone *lone, uint16_t shards, uint16_t *shard)
{
    const uint8_t *data = lone->data;
    size_t len = lone->data_len;
    ign_record record;
    *shard = lone->shard;
    if (lone->shard != IGN_WIRE_ANY_SHARD)
        return lone->shard < shards ? IGN_OK : IGN_EMPTY;
    if (lone->command == IGN_WIRE_SEND_BATCH) {
        ign_segment segment;
        if (ign_segment_open(data, len, &segment) != IGN_OK || segment.count != 1)
            return IGN_EMPTY; /* several may go to several shards */
        data = segment.data;
        len = segment.data_len;
    }
    if (ign_record_decode(data, len, &record) != IGN_OK)
        return IGN_EMPTY;
    if (record.key_len == 0)
        return IGN_FULL;
    *shard = ign_shard_for_key(record.key, record.key_len, shards);
    return IGN_OK;
}

uint32_t ign_wire_lone_count(const ign_wire_lone *lone)
{
    if (lone->command == IGN_WIRE_SEND)
        return 1;
    return lone->data_len < IGN_SEGMENT_HEADER_BYTES ? 0 : ign_get32(lone->data + 4);
}

int ign_wire_lone_put(const ign_wire_lone *lone, uint8_t *dst, uint64_t expires_at_ms, uint32_t *count)
{
    if (lone->command == IGN_WIRE_SEND) {
        *count = 1;
        ign_segment_begin(dst, 1, expires_at_ms);
        memcpy(dst + (lone->segment_bytes - lone->data_len), lone->data, lone->data_len);
        ign_segment_put_index(dst, 0, (uint32_t)lone->data_len, ign_crc32c(0, lone->data, lone->data_len));
    } else {
        size_t data_bytes;
        uint32_t bad;
        if (ign_wire_copy_segment(dst, lone->data, lone->data_len, count, &data_bytes, &bad) != IGN_OK)
            return IGN_EMPTY;
        ign_segment_begin(dst, *count, expires_at_ms);
    }
    ign_segment_finish(dst);
    return IGN_OK;
}

void ign_wire_lone_ack(const ign_wire_lone *lone, uint8_t *dst, uint16_t shard, uint64_t first, uint32_t count)
{
    uint8_t id[8];
    ign_put64(id, (uint64_t)lone->request_id);
    ign_wire_put_acks(dst, id, 1, shard, first);
    ign_put32(dst + IGN_WIRE_ACK_FRAME_BYTES - 4, count);
}

size_t ign_wire_delivery_front(uint32_t count)
{
    return IGN_FRAME_HEADER_BYTES + 4 + sizeof delivery_head + 4 + IGN_WIRE_CLAIM_BYTES + IGN_WIRE_CLAIM_RUN_BYTES + 4 * (size_t)count;
}

void ign_wire_put_delivery(uint8_t *dst, int64_t subscription, uint16_t shard, uint64_t first, const ign_segment *segment)
{
    size_t front = ign_wire_delivery_front(segment->count);
    uint8_t *at = dst + IGN_FRAME_HEADER_BYTES;
    uint32_t begin = 0;
    ign_frame_put_header(dst, IGN_WIRE_DELIVER, subscription, front - IGN_FRAME_HEADER_BYTES + segment->data_len);
    ign_put32(at, sizeof delivery_head);
    memcpy(at + 4, delivery_head, sizeof delivery_head);
    at += 4 + sizeof delivery_head;
    ign_put32(at, 1);
    ign_wire_put_claim(at + 4, shard, segment->count, 1);
    at += 4 + IGN_WIRE_CLAIM_BYTES;
    ign_put64(at, first);
    ign_put32(at + 8, segment->count);
    at += IGN_WIRE_CLAIM_RUN_BYTES;
    for (uint32_t i = 0; i < segment->count; i++, at += 4) {
        uint32_t end = ign_get32(segment->base + IGN_SEGMENT_HEADER_BYTES + (size_t)i * IGN_SEGMENT_INDEX_BYTES);
        ign_put32(at, end - begin);
        begin = end;
    }
}
