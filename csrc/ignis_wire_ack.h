/* A request to acknowledge that came alone: the ordinary case of a consumer that finishes one message at a time. It is taken apart
 * where it was received, and nothing is kept of it. Layouts are those of docs/protocol.md.
 *
 *   ACK, DELETE u32 head_bytes, head: an array of the queue's name alone; pointers
 *   RESULT      u32 head_bytes, head: a whole number
 *
 * IGN_EMPTY says that something is not as simple as that. Nothing has happened then, and the functions of ignis_wire.h say what it is.
 *
 * No globals. Functions are safe from several threads.
 */
#ifndef IGNIS_WIRE_ACK_H
#define IGNIS_WIRE_ACK_H

#include <stddef.h>
#include <stdint.h>

#include "ignis_frame.h"

#define IGN_WIRE_RESULT 5
#define IGN_WIRE_ACK 25
#define IGN_WIRE_DELETE 67
#define IGN_WIRE_LONE_MOST_RUNS 64u       /* of one request; more are left to others */
#define IGN_WIRE_LONE_MOST_POINTERS 4096u /* likewise */
#define IGN_WIRE_RESULT_FRAME_BYTES (IGN_FRAME_HEADER_BYTES + 9u) /* the longest with a whole number below 2^32 */

typedef struct ign_wire_ack {
    const uint8_t *name;
    size_t name_len;
    const uint8_t *pointers; /* for ign_wire_pointers_get */
    uint32_t runs;           /* of them; ascending, and none has anything in common with another */
    uint32_t count;          /* of what they name */
    int64_t request_id;
    int16_t command;         /* IGN_WIRE_ACK, IGN_WIRE_DELETE */
} ign_wire_ack;

/* IGN_OK: `len` bytes at src are one such frame and nothing else; `ack` points into them. IGN_EMPTY. */
int ign_wire_ack_open(ign_wire_ack *ack, const uint8_t *src, size_t len, size_t max_frame_bytes);
/* The RESULT that answers a request with a number: up to IGN_WIRE_RESULT_FRAME_BYTES at dst. Returns how many. */
size_t ign_wire_put_result(uint8_t *dst, int64_t request_id, uint32_t number);

#endif
