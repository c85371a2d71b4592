/* An ACK or a DELETE that came alone. */
#include "ignis_wire_ack.h"

#include <stdbool.h>

#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_wire.h"

/* MessagePack, in the forms that a sender of short values uses: another one is for who knows them all. */
#define ARRAY_OF_ONE 0x91u
#define SHORT_TEXT 0xA0u
#define SHORT_TEXT_MOST 31u
#define TEXT_8 0xD9u
#define SMALL_NUMBER_MOST 0x7Fu
#define NUMBER_8 0xCCu
#define NUMBER_16 0xCDu
#define NUMBER_32 0xCEu

/* The head is an array of one text. */
static bool read_name(ign_wire_ack *ack, const uint8_t *head, size_t len)
{
    if (len < 2 || head[0] != ARRAY_OF_ONE)
        return false;
    if (head[1] >= SHORT_TEXT && head[1] <= SHORT_TEXT + SHORT_TEXT_MOST) {
        ack->name = head + 2;
        ack->name_len = head[1] - SHORT_TEXT;
    } else if (head[1] == TEXT_8 && len >= 3) {
        ack->name = head + 3;
        ack->name_len = head[2];
    } else {
        return false;
    }
    return (size_t)(ack->name - head) + ack->name_len == len;
}

/* None names what another one names: each pointer is counted once. */
static bool ascend(ign_wire_ack *ack)
{
    uint64_t behind = 0;
    uint32_t shard = 0;
    ack->count = 0;
    for (uint32_t i = 0; i < ack->runs; i++) {
        ign_wire_run run;
        ign_wire_pointers_get(ack->pointers, i, &run);
        if (i != 0 && (run.shard < shard || (run.shard == shard && run.first < behind)))
            return false;
        shard = run.shard;
        behind = run.first + run.count;
        ack->count += run.count; /* below IGN_WIRE_MAX_POINTERS in all */
    }
    return true;
}

int ign_wire_ack_open(ign_wire_ack *ack, const uint8_t *src, size_t len, size_t max_frame_bytes)
{
    ign_frame frame;
    size_t used;
    if (ign_frame_decode(src, len, max_frame_bytes, &frame, &used) != IGN_OK || used != len || frame.payload_len < 4 ||
        (frame.command != IGN_WIRE_ACK && frame.command != IGN_WIRE_DELETE))
        return IGN_EMPTY;
    size_t head = ign_get32(frame.payload);
    if (head > frame.payload_len - 4 || !read_name(ack, frame.payload + 4, head))
        return IGN_EMPTY;
    ack->request_id = frame.request_id;
    ack->command = frame.command;
    ack->pointers = frame.payload + 4 + head;
    if (ign_wire_pointers_open(ack->pointers, frame.payload_len - 4 - head, &ack->runs) != IGN_OK || ack->runs == 0 ||
        ack->runs > IGN_WIRE_LONE_MOST_RUNS || !ascend(ack) || ack->count > IGN_WIRE_LONE_MOST_POINTERS)
        return IGN_EMPTY;
    return IGN_OK;
}

size_t ign_wire_put_result(uint8_t *dst, int64_t request_id, uint32_t number)
{
    uint8_t *at = dst + IGN_FRAME_HEADER_BYTES + 4;
    size_t bytes = 1;
    if (number <= SMALL_NUMBER_MOST) {
        at[0] = (uint8_t)number;
    } else if (number <= UINT8_MAX) {
        at[0] = NUMBER_8;
        at[1] = (uint8_t)number;
        bytes = 2;
    } else if (number <= UINT16_MAX) {
        at[0] = NUMBER_16;
        ign_put16(at + 1, (uint16_t)number);
        bytes = 3;
    } else {
        at[0] = NUMBER_32;
        ign_put32(at + 1, number);
        bytes = 5;
    }
    ign_put32(dst + IGN_FRAME_HEADER_BYTES, (uint32_t)bytes);
    ign_frame_put_header(dst, IGN_WIRE_RESULT, request_id, 4 + bytes);
    return IGN_FRAME_HEADER_BYTES + 4 + bytes;
}
