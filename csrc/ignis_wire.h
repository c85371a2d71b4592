/* The bulk payloads of the broker's protocol: what a client sends, in runs and in batches, becomes unsealed segments
 * that a store can take; pointers and claims become runs and slices. The layouts are those of docs/protocol.md.
 *
 *   SEND        u16 name_len, name, u64 ttl_ms, u16 shard, record
 *   SEND_BATCH  u16 name_len, name, u64 ttl_ms, u16 groups, then per group u16 shard, u32 bytes, segment
 *   SEND_ACK    u16 runs, then per run u16 shard, u64 first, u32 count
 *   pointers    u32 runs, then per run u16 shard, u64 first, u32 count
 *   claims      u32 claims, then per claim u16 shard, u32 records, u32 runs, the runs (u64 first, u32 count),
 *               u32 length per record (IGN_WIRE_NO_RECORD: corrupt, no bytes follow), the records
 *
 * Everything that comes from a peer is checked against the bytes that are there before it is used, and nothing is
 * allocated for a length that was only announced. What is handed out points into the caller's bytes unless it says
 * otherwise.
 *
 * No globals. Functions are safe from several threads; a sorter, a list of runs and a cursor belong to one at a time.
 */
#ifndef IGNIS_WIRE_H
#define IGNIS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ignis_frame.h"

#define IGN_WIRE_SEND 10
#define IGN_WIRE_SEND_BATCH 11
#define IGN_WIRE_SEND_ACK 12

#define IGN_WIRE_NO_RECORD 0xFFFFFFFFu
#define IGN_WIRE_RUN_BYTES 14u
#define IGN_WIRE_ACK_FRAME_BYTES (IGN_FRAME_HEADER_BYTES + 16u) /* a SEND_ACK of one run */
#define IGN_WIRE_CLAIM_BYTES 10u     /* what precedes the runs of a claim */
#define IGN_WIRE_CLAIM_RUN_BYTES 12u
#define IGN_WIRE_MAX_POINTERS (1u << 20) /* in one request */
#define IGN_WIRE_POINTER_MAX 0x7FFFFFFF00000000u

/* -- SEND: many frames become few segments ---------------------------------------------------------------------- */

/* The records that go to one shard, as an unsealed segment without an expiry. */
typedef struct ign_wire_group {
    uint8_t *segment; /* from malloc; whoever takes it sets this to NULL and frees it */
    size_t segment_bytes;
    size_t data_bytes;    /* of them the records */
    uint8_t *request_ids; /* count times int64 big-endian, in the sorter's memory; NULL when there are none */
    uint32_t count;
    uint32_t filled; /* while it is built */
    size_t end;      /* likewise */
    uint16_t shard;
} ign_wire_group;

typedef struct ign_wire_piece {
    const uint8_t *record;
    size_t record_bytes;
    int64_t request_id;
    uint32_t crc; /* of the record, where it is known already */
    uint32_t group;
    uint16_t shard;
} ign_wire_piece;

/* Groups records by shard. Begin with {0}; use it again after _clear, which keeps its memory; end with _free. */
typedef struct ign_wire_sorter {
    ign_wire_group *groups; /* in the order of the first record of each */
    uint32_t group_count;
    uint32_t group_room;
    ign_wire_piece *pieces;
    uint32_t piece_count;
    uint32_t piece_room;
    uint32_t *group_of; /* per shard, 0 = none yet, else 1 + group; all 0 between two uses */
    uint32_t shards;    /* entries of it */
    uint8_t *ids;
    size_t ids_room;
} ign_wire_sorter;

/* What the SENDs of one run have in common. */
typedef struct ign_wire_sends {
    const uint8_t *name;
    size_t name_len;
    uint64_t ttl_ms;
    int64_t request_id; /* of the first */
    size_t meta_bytes;  /* of the one that IGN_E_TOO_LARGE is about */
} ign_wire_sends;

/* Takes the SEND frames that stand side by side at src and name one queue and one time to live. The first frame at
 * src must be a complete SEND. The groups hold a copy of the records.
 *
 * IGN_OK: *consumed bytes were taken and the groups are ready. IGN_E_MALFORMED: the payload of the first is no SEND;
 * IGN_E_TOO_LARGE: its record has a map over IGN_RECORD_MAX_META_BYTES. *consumed is its size and sends->request_id its id then.
 * IGN_E_NOMEM. */
int ign_wire_take_sends(ign_wire_sorter *sorter, const uint8_t *src, size_t len, size_t max_frame_bytes,
                        ign_wire_sends *sends, size_t *consumed);

/* Divides the records of an unsealed segment by key, one without a key going to any_shard; order within a shard is
 * kept. `shards` 1..65535, any_shard below it. request_ids: one per record, or NULL.
 *
 * IGN_OK; IGN_E_CORRUPT: the segment contradicts its index; IGN_E_MALFORMED: record *bad is none of this version;
 * IGN_E_NOMEM. */
int ign_wire_route(ign_wire_sorter *sorter, const uint8_t *segment, size_t len, uint16_t shards, uint16_t any_shard,
                   const uint8_t *request_ids, uint32_t *bad);

/* Frees the segments that nobody took and forgets what was sorted; memory for a usual load is kept. */
void ign_wire_sorter_clear(ign_wire_sorter *sorter);
void ign_wire_sorter_free(ign_wire_sorter *sorter);

/* -- SEND_BATCH ---------------------------------------------------------------------------------------------------- */

typedef struct ign_wire_batches {
    const uint8_t *name;
    size_t name_len;
    uint64_t ttl_ms;
    const uint8_t *at;
    size_t left;
    uint32_t groups; /* still to come */
} ign_wire_batches;

/* IGN_OK, or IGN_E_TRUNCATED. */
int ign_wire_batches_open(ign_wire_batches *batches, const uint8_t *src, size_t len);
/* The next group: IGN_OK; IGN_EMPTY behind the last; IGN_E_TRUNCATED; IGN_E_MALFORMED: `left` bytes are too many. */
int ign_wire_batches_next(ign_wire_batches *batches, uint16_t *shard, const uint8_t **segment, size_t *len);

/* Copies an unsealed segment, without its expiry, to dst of the same size and compares every record with the sender's
 * checksum. IGN_OK; IGN_E_MALFORMED: it contradicts its own index; IGN_E_CORRUPT: record *bad does not match; IGN_E_TOO_LARGE:
 * its map has *data_bytes, over IGN_RECORD_MAX_META_BYTES. */
int ign_wire_copy_segment(uint8_t *dst, const uint8_t *src, size_t len, uint32_t *count, size_t *data_bytes,
                          uint32_t *bad);

/* SEND_ACK frames for `count` SENDs that went to one shard side by side, so that pointers rise by one:
 * count * IGN_WIRE_ACK_FRAME_BYTES at dst. request_ids: int64 big-endian each. */
void ign_wire_put_acks(uint8_t *dst, const uint8_t *request_ids, size_t count, uint16_t shard, uint64_t first);

/* -- pointers ------------------------------------------------------------------------------------------------------ */

typedef struct ign_wire_run {
    uint64_t first;
    uint32_t count;
    uint16_t shard;
} ign_wire_run;

/* Runs to be written. Begin with {0}, end with _free. */
typedef struct ign_wire_runs {
    ign_wire_run *run;
    uint32_t count;
    uint32_t room;
    bool closed; /* the next one does not join the last */
} ign_wire_runs;

/* `count` pointers from `first` on, which join the last run where they go on from it. IGN_OK | IGN_E_NOMEM */
int ign_wire_runs_add(ign_wire_runs *runs, uint16_t shard, uint64_t first, uint32_t count);
void ign_wire_runs_break(ign_wire_runs *runs); /* what follows is a run of its own */
/* Pointers as above: 4 + count * IGN_WIRE_RUN_BYTES at dst. */
void ign_wire_runs_put(const ign_wire_runs *runs, uint8_t *dst);
/* Without shards and their number, as in claims: count * IGN_WIRE_CLAIM_RUN_BYTES at dst. */
void ign_wire_runs_put_bare(const ign_wire_runs *runs, uint8_t *dst);
void ign_wire_runs_free(ign_wire_runs *runs);

/* Checks pointers as a whole. IGN_OK: *count runs can be read with _get; IGN_E_TRUNCATED; IGN_E_MALFORMED: bytes too
 * many, or a run of none; IGN_E_TOO_LARGE: over IGN_WIRE_MAX_POINTERS, or a pointer over IGN_WIRE_POINTER_MAX. */
int ign_wire_pointers_open(const uint8_t *src, size_t len, uint32_t *count);
void ign_wire_pointers_get(const uint8_t *src, uint32_t i, ign_wire_run *run);

/* -- claims -------------------------------------------------------------------------------------------------------- */

typedef struct ign_wire_claims {
    const uint8_t *at;
    size_t left;
    uint32_t claims; /* still to come */
} ign_wire_claims;

typedef struct ign_wire_claim {
    uint16_t shard;
    uint32_t records;
    uint32_t runs;
    const uint8_t *run;     /* the first; see _claim_run */
    const uint8_t *lengths; /* of the records still to be taken */
    const uint8_t *data;    /* likewise */
} ign_wire_claim;

/* IGN_OK, or IGN_E_TRUNCATED. */
int ign_wire_claims_open(ign_wire_claims *claims, const uint8_t *src, size_t len);
/* The next claim, checked as a whole: IGN_OK; IGN_EMPTY behind the last; IGN_E_TRUNCATED; IGN_E_MALFORMED: runs and
 * records differ in number, a run of none, or bytes too many behind the last. */
int ign_wire_claims_next(ign_wire_claims *claims, ign_wire_claim *claim);
/* Run i of 0..runs-1; its shard is the claim's. */
void ign_wire_claim_run(const ign_wire_claim *claim, uint32_t i, ign_wire_run *run);
/* The next record, at most `records` times: NULL when it is corrupt. */
const uint8_t *ign_wire_claim_take(ign_wire_claim *claim, uint32_t *len);
/* What precedes the runs: IGN_WIRE_CLAIM_BYTES at dst. */
void ign_wire_put_claim(uint8_t *dst, uint16_t shard, uint32_t records, uint32_t runs);

#endif
