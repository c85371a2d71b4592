/* A request to load that came alone: the ordinary case of a publisher that waits for each answer. It is taken apart where it was
 * received, and nothing is kept of it. Layouts are those of ignis_wire.h.
 *
 * IGN_EMPTY says that something is not as simple as that. Nothing has happened then, and the functions of ignis_wire.h say what it is.
 *
 * No globals. Functions are safe from several threads.
 */
#ifndef IGNIS_WIRE_LONE_H
#define IGNIS_WIRE_LONE_H

#include <stddef.h>
#include <stdint.h>

#include "ignis_record.h"

#define IGN_WIRE_DELIVER 24
#define IGN_WIRE_ANY_SHARD 0xFFFFu

typedef struct ign_wire_lone {
    const uint8_t *name;
    size_t name_len;
    uint64_t ttl_ms;
    int64_t request_id;
    const uint8_t *data;  /* of a SEND its record, of a SEND_BATCH the segment of its only group */
    size_t data_len;
    size_t segment_bytes; /* that ign_wire_lone_put writes */
    int16_t command;
    uint16_t shard;       /* as it was sent */
} ign_wire_lone;

/* IGN_OK: `len` bytes at src are one such frame and nothing else; `lone` points into them. IGN_EMPTY. */
int ign_wire_lone_open(ign_wire_lone *lone, const uint8_t *src, size_t len, size_t max_frame_bytes);
/* The shard of a magazine with that many. IGN_OK; IGN_FULL: any will do; IGN_EMPTY. */
int ign_wire_lone_shard(const ign_wire_lone *lone, uint16_t shards, uint16_t *shard);
/* How many records it says that it has; 0 when it has no room to say so. */
uint32_t ign_wire_lone_count(const ign_wire_lone *lone);
/* The records as a finished, unsealed segment: segment_bytes at dst. A sender's checksums are compared with its records.
 * IGN_OK, or IGN_EMPTY. */
int ign_wire_lone_put(const ign_wire_lone *lone, uint8_t *dst, uint64_t expires_at_ms, uint32_t *count);
/* The answer: a SEND_ACK of one run, IGN_WIRE_ACK_FRAME_BYTES at dst. */
void ign_wire_lone_ack(const ign_wire_lone *lone, uint8_t *dst, uint16_t shard, uint64_t first, uint32_t count);

/* What stands before the records of a DELIVER of one claim of one run, when nothing expired and no more is known to be there: its
 * bytes for so many records. */
size_t ign_wire_delivery_front(uint32_t count);
/* That at dst; the segment's records, with pointers from `first` on, come behind it as they lie there. */
void ign_wire_put_delivery(uint8_t *dst, int64_t subscription, uint16_t shard, uint64_t first, const ign_segment *segment);

#endif
