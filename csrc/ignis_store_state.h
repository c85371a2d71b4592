/* What the store knows: magazines, shards, where each loaded batch stands in the log, who claimed what, keys and values.
 * All of it follows from the log: `ign_state_apply` is the only thing that changes it, entry by entry.
 *
 * A shard has two sequences. An *extent* is what one load appended: pointers first..last, and the batch's place in the
 * log. A *claim* is what one fire handed out: pointers first..last, owner and time. Both die as their pointers are
 * retired. Pointers that were never given out, and extents that died, leave gaps, over which everybody steps.
 *
 * Payloads of the entries (big-endian, parts at multiples of 8):
 *
 *   OPEN       u64 openings, u64 jump
 *   CATALOGUE  u32 number, u16 shards (0: drop), u8 durability, u8 flags (1: a later magazine), u64 first pointer, u64 incarnation,
 *              u32 bytes of name, u32 number of the magazine whose later one it is, name
 *   LOAD       u32 magazine, u16 flags (1: reload; 2: with due times), u16 parts; each: u16 shard, u16 0 (1: see ignis_store_salvage.h),
 *              u32 bytes, u64 first pointer, batch. Due times are at its end: of so many records each u64 ms, u32 records, u32 0; and
 *              behind these, u32 how many, u32 CRC32C of magazine, these, and how many. Where it does not hold, all are due at once
 *   CLAIM      u32 magazine, u16 bytes of owner, u16 0, u64 ms, u32 runs, u32 0, owner, runs
 *   RETIRE     u32 magazine, u32 runs, runs
 *   TRANSFER   u32 bytes of LOAD, u32 0, LOAD, RETIRE
 *   RENEW      u32 magazine, u16 bytes of owner, u16 bytes of next owner, u64 ms, u32 runs, u32 0, owner, next owner, runs
 *   MOVE       one or more of: u32 magazine, u16 shard, u16 0, u32 parts, u32 extents that follow and are moved too, u64 first pointer of the
 *              first extent; parts as in LOAD
 *   KEY        u32 keys, u32 0; each: u32 bytes of key, u32 bytes of value (~0: removed), key, value
 *   SEGMENT    u64 generation, u64 number: it is gone
 *   EXPIRE     u32 magazine, u32 0, a run: from the first that waits on; or, where it is not 0, so many runs of a later magazine
 *   CLAIMED    u32 bytes of LOAD, u32 0, LOAD, CLAIM
 *   ONCE       u32 magazine, u32 ids, u32 hour, u32 0, ids of 16 bytes, LOAD
 *   FORGET     u32 magazine, u32 hour, u32 how many, u32 0
 *   WITNESS    nothing
 *   RETIRE of no run: the due times of a later magazine are tidied
 *   a run      u16 shard, u16 0, u32 0, u64 first, u64 last
 *
 * A batch is a packed batch of ignis_record.h, sealed for its pointers.
 */
#ifndef IGNIS_STORE_STATE_H
#define IGNIS_STORE_STATE_H

#include "ignis_store_due.h"
#include "ignis_store_ids.h"
#include "ignis_store_index.h"
#include "ignis_store_log.h"

#define IGN_STORE_MAX_SHARDS 512u
#define IGN_STORE_JUMP (1ull << 24)   /* pointers that each opening by somebody alone leaves out, and below */
#define IGN_STORE_JUMP_MORE (1ull << 28) /* ... so many more, by chance: two copies of a store give out others */
#define IGN_POINTER_MAX (1ull << 62)
#define IGN_RUN_BYTES 24u
#define IGN_MAX_SPAN (1u << 30)

enum { IGN_LOAD_RELOAD = 1, IGN_LOAD_LATER = 2 };
enum { IGN_CATALOGUE_LATER = 1 };
#define IGN_DUES_BYTES 16u /* of the due times of neighbours; and, at the end, */
#define IGN_DUES_END 8u

typedef struct ign_shard {
    uint64_t load_pointer, fire_pointer; /* the last that was loaded, the last that was claimed */
    uint64_t load_counter, fire_counter, in_flight, living;
    uint64_t incarnation, expired; /* `expired`: how many records ever were, for good */
    ign_seq extents; /* word: position of the entry; ms at which it expires; dead (mask, or bitmap's offset); offset in entry << 32 | bytes */
    ign_seq claims;  /* word: record of the owner; ms */
} ign_shard;

typedef struct ign_magazine {
    uint64_t number, shards, shards_at;
    uint64_t durability; /* in the lowest byte; see below for the rest */
    ign_ids ids; /* that were loaded */
} ign_magazine;

/* A magazine and its later one name each other. Behind the later one's record stands its `ign_due`. */
#define IGN_MAGAZINE_IS_LATER 0x100u
#define IGN_MAGAZINE_DURABILITY(magazine) ((uint8_t)(magazine)->durability)
#define IGN_MAGAZINE_OTHER(magazine) ((uint32_t)((magazine)->durability >> 32)) /* 0: none */

typedef struct ign_state_segment {
    ign_segment_info info;
    uint64_t living;  /* bytes of batches in it that live */
    uint64_t extents; /* ... and of how many */
} ign_state_segment;

/* Living records side by side, and where they stand. */
typedef struct ign_slice {
    uint16_t shard;
    uint64_t first;      /* pointer of the extent's first record */
    uint32_t from, to;   /* records of the extent: from..to - 1 */
    uint32_t offset, bytes; /* of the batch, in its entry */
    uint64_t position;   /* of the entry */
    uint64_t expires_at_ms;
    uint64_t generation, number, file_offset; /* of the segment's file, and where the batch is in it */
} ign_slice;

ign_magazine *ign_state_magazine(ign_ctl *ctl, uint64_t number); /* NULL: none */
/* How many due times a LOAD of so many bytes ends with; 0: none that hold. */
uint32_t ign_dues_count(const uint8_t *load, uint64_t bytes);
/* Of a LOAD that this process made: the times of the runs that it adds, in their order; at most `room`. Of neighbours with one time, each part has a
 * run of its own. */
uint64_t ign_dues_times(const uint8_t *load, uint64_t bytes, uint64_t *times, uint64_t room);
uint32_t ign_dues_check(uint32_t magazine, const uint8_t *dues, uint32_t count);
ign_due *ign_state_due(ign_ctl *ctl, const ign_magazine *magazine); /* of it, if it is a later one, or of its later one; NULL: there is none */
ign_magazine *ign_state_with_ids(ign_ctl *ctl, ign_magazine *magazine); /* that remembers its ids: the main one of a later one. NULL: gone */
ign_shard *ign_state_shard(ign_ctl *ctl, const ign_magazine *magazine, uint64_t shard);

/* IGN_OK, IGN_E_MALFORMED (a payload that cannot be: nothing changed that matters), IGN_E_NO_ROOM. */
int ign_state_apply(ign_ctl *ctl, const ign_entry *entry);
void ign_state_add_segment(ign_ctl *ctl, const ign_segment_info *segment);
ign_state_segment *ign_state_find_segment(ign_ctl *ctl, uint64_t position); /* NULL: none */
ign_state_segment *ign_state_last_segment(ign_ctl *ctl);

/* ignis_store_repack.c: all that `from` says, in the empty state `to`. Nobody else sees either, and `from` is good for nothing behind it. IGN_OK |
 * IGN_E_NO_ROOM. */
int ign_state_repack(ign_ctl *to, ign_ctl *from);

/* ignis_store_extents.c: pieces of ign_state_apply. */
int ign_state_apply_load(ign_ctl *ctl, const ign_entry *entry, const uint8_t *p, uint64_t bytes);
int ign_state_apply_move(ign_ctl *ctl, const ign_entry *entry, const uint8_t *p, uint64_t bytes);

/* ignis_store_claims.c */
uint32_t ign_extent_living(ign_ctl *ctl, const ign_item *extent, uint64_t first, uint64_t last);
uint64_t ign_state_living(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last);
bool ign_extent_lives(ign_ctl *ctl, const ign_item *extent, uint64_t pointer);
uint64_t ign_state_living(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last); /* how many of these */
uint64_t ign_state_retire(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last);
int ign_state_claim(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last, const void *owner, uint32_t owner_bytes,
                    uint64_t ms);
void ign_state_renew(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last, uint64_t owner, const void *next,
                     uint32_t next_bytes, uint64_t ms);
void ign_state_forget_claims(ign_ctl *ctl, ign_shard *shard);
void ign_state_account(ign_ctl *ctl, const ign_item *extent, uint32_t before, uint32_t after);
/* The first run of living records of an extent at or behind `from`, `most` of them at most. False: none. */
bool ign_extent_run(ign_ctl *ctl, const ign_item *extent, uint64_t from, uint64_t most, uint64_t *first, uint64_t *last);
/* What a fire of at most `limit` records and about `max_bytes` would take next: up to `room` slices, in order; *first and
 * *last are their pointers. *expired: it ended before one that has expired at `ms`. */
uint32_t ign_state_next(ign_ctl *ctl, ign_shard *shard, uint32_t limit, uint64_t max_bytes, uint64_t ms, ign_slice *slices,
                        uint32_t room, uint64_t *first, uint64_t *last, bool *expired);
/* How many of the records that come next have expired at `ms`, up to `limit`; *last is the last of them. */
uint64_t ign_state_expired(ign_ctl *ctl, ign_shard *shard, uint64_t ms, uint64_t limit, uint64_t *last);
void ign_state_expire(ign_ctl *ctl, ign_shard *shard, uint64_t first, uint64_t last);
ign_slice ign_extent_slice(uint16_t shard, const ign_item *extent, uint64_t first, uint64_t last);

#endif
