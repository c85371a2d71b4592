/* The embedded store: one log, shared by all processes that open its directory, and recovered one way at every opening.
 *
 * All calls are thread-safe, and safe beside any number of other processes; none is after fork(): close the files in the
 * child and open another store there. A call that changes something returns a mark; `ign_store_flush` with it returns
 * once that is on the disk. Until then it survives kill -9 of everybody, and no power cut. Errors are the codes of
 * ignis_error.h; with IGN_E_IO and IGN_E_NO_ROOM errno says more. An error means that nothing was changed, but for
 * IGN_E_IN_DOUBT. Only IGN_E_FAILED says that the log itself could not be written: the next call tries anew in another file.
 */
#ifndef IGNIS_STORE_H
#define IGNIS_STORE_H

#include "ignis_store_state.h"

typedef struct ign_store ign_store;

/* What a call has written ends here. Positions are given again when a flush failed, so they belong to a generation. */
typedef struct ign_store_mark {
    uint64_t generation, position;
} ign_store_mark;

/* Zero = the default. */
typedef struct ign_store_options {
    uint64_t segment_bytes;    /* 64 MiB */
    uint64_t control_reserve;  /* addresses for the control file, and so its limit: 64 GiB */
    uint64_t arena_bytes;      /* of a new control file: 1 MiB */
    uint64_t undo_capacity;    /* words that one transaction may change and be undone cheaply: 8192 */
    uint64_t stopped_after_ns; /* who holds the lock for so long is passed over: 2 s */
    uint64_t busy_after_ns;    /* a call that waited so long for the lock fails with IGN_E_BUSY: 30 s */
    uint64_t checkpoint_bytes; /* of log between two checkpoints: 64 MiB */
} ign_store_options;

typedef struct ign_store_part {
    uint16_t shard;
    const uint8_t *batch; /* a packed batch, finished; it is sealed in the log's copy, and stays as it is */
    uint32_t bytes;
    uint64_t first;       /* result */
} ign_store_part;

typedef struct ign_store_run {
    uint16_t shard;
    uint64_t first, last;
} ign_store_run;

typedef struct ign_store_change {
    const void *key;      uint32_t key_bytes;
    const void *expected; uint32_t expected_bytes; /* NULL: must not be there; with expected_bytes ~0: whatever it is */
    const void *value;    uint32_t value_bytes;    /* NULL: is removed */
} ign_store_change;

typedef struct ign_store_figures {
    uint64_t generation, openings, end, durable, living_bytes, living_records, damaged_bytes, segments, log_bytes, state_bytes;
    uint64_t dead_bytes; /* of segments in which nothing lives, and which wait for their removal */
} ign_store_figures;

int ign_store_open(ign_store **store, ign_store_io *io, const ign_store_options *options);
void ign_store_close(ign_store *store);

int ign_store_declare(ign_store *store, const char *name, uint16_t shards, uint8_t durability, uint32_t *number, ign_store_mark *mark);
int ign_store_drop(ign_store *store, uint32_t number, ign_store_mark *mark);
int ign_store_find(ign_store *store, const char *name, uint32_t *number); /* IGN_E_UNKNOWN */
int ign_store_shard(ign_store *store, uint32_t number, uint16_t shard, ign_shard *copy);

int ign_store_load(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, ign_store_mark *mark);
/* Up to `limit` records of one shard; IGN_EMPTY when none is pending. The slices say where they are. */
int ign_store_claim(ign_store *store, uint32_t magazine, uint16_t shard, uint32_t limit, uint64_t max_bytes, const char *owner,
                    uint64_t ms, ign_slice *slices, uint32_t room, uint32_t *count, ign_store_mark *mark);
int ign_store_retire(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, uint64_t *retired,
                     ign_store_mark *mark);
/* Retires `runs` of the source and loads `parts` into the target, or neither. IGN_EMPTY, and nothing happens, when a pointer
 * of the runs is gone: look again. With `reload`, source and target are one, and the records are no new messages. */
int ign_store_transfer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target,
                       ign_store_part *parts, uint16_t part_count, bool reload, ign_store_mark *mark);
int ign_store_renew(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, const char *owner,
                    const char *next_owner, uint64_t ms, ign_store_mark *mark);
/* All changes, or none: IGN_E_MISMATCH when an expectation does not hold. */
int ign_store_change_keys(ign_store *store, const ign_store_change *changes, uint32_t count, ign_store_mark *mark);
/* IGN_OK, with *bytes set; IGN_EMPTY: not there; IGN_E_TOO_LARGE: *bytes is what is needed. */
int ign_store_get_key(ign_store *store, const void *key, uint32_t key_bytes, void *value, uint32_t room, uint32_t *bytes);

/* What exists of these pointers, claimed or not, up to `room` slices. */
int ign_store_peek(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t first, uint64_t last, ign_slice *slices,
                   uint32_t room, uint32_t *count);
/* The whole batch of a slice; `bytes` of the slice are written. IGN_E_STALE: it was moved meanwhile, peek again.
 * Whether its records are sound is for ign_segment_get to say. */
int ign_store_fetch(ign_store *store, const ign_slice *slice, uint8_t *batch);

/* Waits until all up to the mark is on the disk. IGN_E_FAILED: it is not, and with `refuse` it will not be found later. Without,
 * nothing is given up: call again. */
int ign_store_flush(ign_store *store, const ign_store_mark *mark, bool refuse);
/* Where the log ends now. */
int ign_store_mark_now(ign_store *store, ign_store_mark *mark);
/* Waits until something was loaded into the magazine, or the time is over: returns the new number; `seen` = the last one. */
uint32_t ign_store_wait(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns);
void ign_store_wake(ign_store *store, uint32_t magazine);

/* Checkpoints, moves what lives out of segments that hold little, removes what nobody needs: a bounded piece of that.
 * IGN_OK: there was something to do; IGN_EMPTY: there was not; IGN_E_STALE: others were at it. For one process at a time; others
 * may. */
int ign_store_maintain(ign_store *store);
int ign_store_checkpoint(ign_store *store);
int ign_store_figures_of(ign_store *store, ign_store_figures *figures);

#endif
