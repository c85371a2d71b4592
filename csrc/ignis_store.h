/* The embedded store: one log, shared by all processes that open its directory, and recovered one way at every opening.
 *
 * All calls are thread-safe, and safe beside any number of other processes. After fork() the child calls `ign_store_abandon`
 * and opens another store. A call that changes something returns a mark; `ign_store_flush` with it returns once that is on
 * the disk. Until then it survives kill -9 of everybody, and no power cut. Errors are the codes of ignis_error.h; with
 * IGN_E_IO, IGN_E_NO_ROOM and IGN_E_FAILED errno says more; 0: not known any more. An error means that nothing was changed, but for IGN_E_IN_DOUBT. Only
 * IGN_E_FAILED says that the log itself could not be written: the next call tries anew in another file.
 */
#ifndef IGNIS_STORE_H
#define IGNIS_STORE_H

#include "ignis_store_state.h"
#include "ignis_watch.h"

#define IGN_STORE_NAME_BYTES 1024u  /* of a magazine's name, at most */
#define IGN_STORE_OWNER_BYTES 1280u /* of an owner's name, at most: 1,024 of the name, and what says who lives */
#define IGN_STORE_ID_BYTES 16u

typedef struct ign_store ign_store;

/* What a call has written ends here. Positions are given again when a flush failed, so they belong to a generation. */
typedef struct ign_store_mark {
    uint64_t generation, position;
} ign_store_mark;

/* What is missing of a log: a file, or one that has no header any more ("": not known which), and positions. */
typedef struct ign_store_lost {
    char file[IGN_STORE_NAME_MAX];
    uint64_t from, to; /* to = ~0: not known */
} ign_store_lost;

/* Zero = the default. */
typedef struct ign_store_options {
    uint64_t segment_bytes;    /* of the largest: 16 MiB */
    uint64_t first_segment_bytes; /* of the first in a generation; each next is twice as large: 1 MiB */
    uint64_t control_reserve;  /* addresses for the control file, and so its limit: 64 GiB */
    uint64_t arena_bytes;      /* of a new control file: 768 KiB */
    uint64_t undo_capacity;    /* words that one transaction may change and be undone cheaply: 8192 */
    uint64_t stopped_after_ns; /* who holds the lock for so long is passed over: 2 s */
    uint64_t piece_bytes;      /* a larger entry is written in such pieces, between which its writer shows that it is at work: 4 MiB */
    uint64_t busy_after_ns;    /* a call that waited so long for the lock fails with IGN_E_BUSY: 30 s */
    uint64_t checkpoint_bytes; /* of log between two checkpoints, if the state does not take more: 64 MiB */
    uint64_t repack_bytes;     /* a state that is smaller stays as it is, though most of it is free: 768 KiB. 1: every one is repacked */
    uint64_t max_bytes;        /* living batches take no more: what would be over fails with IGN_E_NO_ROOM and ENOBUFS. No limit */
    ign_store_lost *lost;      /* with IGN_E_LOST from ign_store_open: what is missing */
    bool pass_over;            /* ... is passed over instead, for good: what it held is gone */
} ign_store_options;

typedef struct ign_store_change {
    const void *key;      uint32_t key_bytes;
    const void *expected; uint32_t expected_bytes; /* NULL: must not be there; with expected_bytes ~0: whatever it is */
    const void *value;    uint32_t value_bytes;    /* NULL: is removed */
} ign_store_change;

/* How a call that changes something is to be made; NULL = as by zeros. */
typedef struct ign_store_how {
    bool at_once;                  /* waits for no lock, room or disk: IGN_E_BUSY, and nothing happened */
    const ign_store_change *fence; /* its key has the value `expected` when the entry is made, else IGN_E_MISMATCH */
} ign_store_how;

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

/* A magazine, as it is listed. */
typedef struct ign_store_magazine {
    uint32_t number;
    uint16_t shards;
    uint8_t durability;
    uint32_t name_bytes;
    char name[IGN_STORE_NAME_BYTES + 1]; /* ends with a zero */
} ign_store_magazine;

/* A claim, as it is listed: of the pointers first..last so many live. */
typedef struct ign_store_claimed {
    uint64_t first, last, living, ms;
    uint32_t owner_bytes;
    char owner[IGN_STORE_OWNER_BYTES + 1]; /* ends with a zero */
} ign_store_claimed;

/* Where a listing goes on; zeros to begin. */
typedef struct ign_store_place {
    uint64_t a, b;
} ign_store_place;

typedef struct ign_store_figures {
    uint64_t generation, openings, end, durable, living_bytes, living_records, damaged_bytes, segments, log_bytes, state_bytes, arena_bytes;
    uint64_t salvaged_records, damaged_records; /* in damaged entries: what could be read of them, and what not */
    uint64_t batches;    /* of which something lives: each has its place in the state */
    uint64_t dead_bytes; /* of segments in which nothing lives, and which wait for their removal */
    uint64_t written, segment_bytes, next_segment_bytes, reserve_bytes, cheapest_bytes; /* of the newest segment: bytes of entries, and its size; what is laid out next */
} ign_store_figures;

/* IGN_E_LOST: a part of the log is missing; nothing was changed. */
int ign_store_open(ign_store **store, ign_store_io *io, const ign_store_options *options);
void ign_store_close(ign_store *store);
/* In a child after fork(): closes the descriptors and mappings that were inherited, and frees the store. Takes no lock and wakes
 * nobody. `io` stays open, and is to be closed by itself. */
void ign_store_abandon(ign_store *store);

/* A magazine of that name has that many shards; fewer than before only while nothing lives in those that go. IGN_E_MISMATCH: it
 * has another durability, or something lives there. */
int ign_store_declare(ign_store *store, const char *name, uint16_t shards, uint8_t durability, uint32_t *number,
                      const ign_store_how *how, ign_store_mark *mark);
/* With `only_empty` IGN_EMPTY, and nothing happens, when anything lives in it. */
int ign_store_drop(ign_store *store, uint32_t number, bool only_empty, const ign_store_how *how, ign_store_mark *mark);
int ign_store_find(ign_store *store, const char *name, uint32_t *number); /* IGN_E_UNKNOWN */
int ign_store_shard(ign_store *store, uint32_t number, uint16_t shard, ign_shard *copy);

/* IGN_E_NO_ROOM: the disk is full; with ENOBUFS `max_bytes` are living; with EOVERFLOW a shard has given out all its pointers. */
int ign_store_load(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const ign_store_how *how,
                   ign_store_mark *mark);
/* A load, and in the same entry a claim of just its records. IGN_EMPTY, and nothing happens, when something older is pending
 * in one of its shards. */
int ign_store_load_claimed(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const char *owner, uint64_t ms,
                           const ign_store_how *how, ign_store_mark *mark);
/* Ids of 16 bytes each, one behind the other: which of them were loaded and are not to be forgotten yet. Hours count from
 * the Unix epoch; an id goes when its hour is here. */
int ign_store_known_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, const uint8_t *ids, uint32_t count, bool *known);
/* A load, and in the same entry these ids become known until `forget_hour`. IGN_E_MISMATCH when one of them is known. Into a later
 * magazine with `dues`, as ign_store_load_later; the ids are those of its main one. NULL into any other. */
int ign_store_load_once(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const uint64_t *dues,
                        const uint8_t *ids, uint32_t id_count, uint32_t forget_hour, uint32_t hour_now, const ign_store_how *how,
                        ign_store_mark *mark);
/* Removes about `limit` ids whose hour is here. IGN_EMPTY: there are none. */
int ign_store_forget_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, uint32_t limit, const ign_store_how *how,
                         ign_store_mark *mark);

/* Up to `limit` records of one shard; IGN_EMPTY when none is taken. The slices say where they are. What has expired at `ms` is
 * not handed out: *expired says that a record before which the claim ended has, see ign_store_expire. */
int ign_store_claim(ign_store *store, uint32_t magazine, uint16_t shard, uint32_t limit, uint64_t max_bytes, const char *owner,
                    uint64_t ms, ign_slice *slices, uint32_t room, uint32_t *count, bool *expired, const ign_store_how *how,
                    ign_store_mark *mark);
/* Retires up to `limit` of the records that come next and have expired at `ms`; the shard counts them. IGN_EMPTY: there are none. */
int ign_store_expire(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t ms, uint64_t limit, uint64_t *expired,
                     const ign_store_how *how, ign_store_mark *mark);
/* With `waiting_only` nothing that was ever claimed. */
int ign_store_retire(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, bool waiting_only,
                     uint64_t *retired, const ign_store_how *how, ign_store_mark *mark);
/* Retires `runs` of the source and loads `parts` into the target, or neither. IGN_EMPTY, and nothing happens, when a pointer
 * of the runs is gone: look again. With `reload`, source and target are one, and the records are no new messages. */
int ign_store_transfer(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target,
                       ign_store_part *parts, uint16_t part_count, bool reload, const ign_store_how *how, ign_store_mark *mark);
int ign_store_renew(ign_store *store, uint32_t magazine, const ign_store_run *runs, uint32_t count, const char *owner,
                    const char *next_owner, uint64_t ms, const ign_store_how *how, ign_store_mark *mark);
/* All changes, or none: IGN_E_MISMATCH when an expectation does not hold. */
int ign_store_change_keys(ign_store *store, const ign_store_change *changes, uint32_t count, const ign_store_how *how,
                          ign_store_mark *mark);
/* IGN_OK, with *bytes set; IGN_EMPTY: not there; IGN_E_TOO_LARGE: *bytes is what is needed. */
int ign_store_get_key(ign_store *store, const void *key, uint32_t key_bytes, void *value, uint32_t room, uint32_t *bytes);

/* Listings, in bounded pieces: what is there from the first piece to the last is listed, and what comes or goes meanwhile may be.
 * The magazine with the lowest number above `after`; IGN_EMPTY: none. */
int ign_store_next_magazine(ign_store *store, uint32_t after, ign_store_magazine *found);
/* Up to `room` claims of a shard that end at `from` or behind; fewer: there are no more. */
int ign_store_claims(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t from, ign_store_claimed *claims, uint32_t room,
                     uint32_t *count);
/* A piece of what is asked for is written to `to`, as u32 bytes of key, u32 bytes of value, key, value, and the next, in the machine's
 * byte order. IGN_OK: call again; IGN_EMPTY: there is nothing more, and nothing was written; IGN_E_TOO_LARGE: *bytes is the
 * room that is needed. No order. Nothing that stays is named twice but owners.
 * Keys that begin with the prefix, and their values. */
int ign_store_next_keys(ign_store *store, const void *prefix, uint32_t prefix_bytes, ign_store_place *place, void *to, uint64_t room,
                        uint64_t *bytes);
/* Owners of claims of one magazine, or of all (0), as keys without values. An owner may be named more than once. */
int ign_store_next_owners(ign_store *store, uint32_t magazine, ign_store_place *place, void *to, uint64_t room, uint64_t *bytes);

/* What exists of these pointers, claimed or not, up to `room` slices. */
int ign_store_peek(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t first, uint64_t last, ign_slice *slices,
                   uint32_t room, uint32_t *count);
/* The whole batch of a slice; `bytes` of the slice are written. IGN_E_STALE: it was moved meanwhile, peek again.
 * Whether its records are sound is for ign_segment_get to say, and what ign_segment_open refuses, for ign_batch_mend. Bytes that are missing,
 * or that the disk goes on to refuse while it gives others, are ones; a disk that gives nothing is IGN_E_IO. */
int ign_store_fetch(ign_store *store, const ign_slice *slice, uint8_t *batch);
/* How often a part of a batch could not be read, by this store since it was opened. */
uint64_t ign_store_unread(ign_store *store);

/* Waits until all up to the mark is on the disk. IGN_E_FAILED: it is not, and with `refuse` it will not be found later. Without,
 * nothing is given up: call again. */
int ign_store_flush(ign_store *store, const ign_store_mark *mark, bool refuse);
/* Where the log ends now. */
int ign_store_mark_now(ign_store *store, ign_store_mark *mark);

/* A thread that flushes all there is every so often, and needs nobody to run for that. Of the calls on it those that wait do so for as
 * long as they are told. In a child of fork() only `ign_store_interval_abandon` is allowed. */
typedef struct ign_store_interval ign_store_interval;

typedef struct ign_store_failure {
    uint64_t times; /* how many flushes failed; of the last one: */
    int code, error;
} ign_store_failure;

/* The store stays open until the thread has ended. IGN_E_NOMEM; IGN_E_IO: no thread can be started. */
int ign_store_interval_open(ign_store_interval **interval, ign_store *store, uint64_t every_ns);
uint64_t ign_store_interval_failures(const ign_store_interval *interval);
void ign_store_interval_failure(ign_store_interval *interval, ign_store_failure *failure);
/* No flush is under way and none begins until `ign_store_interval_go_on`, one for each rest. IGN_TIMEOUT: one still is. */
int ign_store_interval_rest(ign_store_interval *interval, uint64_t timeout_ns);
void ign_store_interval_go_on(ign_store_interval *interval);
/* Ends the thread, at once but for a flush that is under way. IGN_TIMEOUT: it ends behind that; call again. Idempotent. */
int ign_store_interval_close(ign_store_interval *interval, uint64_t timeout_ns);
void ign_store_interval_free(ign_store_interval *interval); /* behind a close that was IGN_OK */
void ign_store_interval_abandon(ign_store_interval *interval);
/* Waits until something was loaded into the magazine, or the time is over: returns the new number; `seen` = the last one. */
uint32_t ign_store_wait(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns);
/* The same, and looks for so long before it sleeps. It may return early, with `seen`. */
uint32_t ign_store_await(ign_store *store, uint32_t magazine, uint32_t seen, uint64_t timeout_ns, uint64_t spin_ns);
/* For an event loop: arms the watch, which is told as a sleeper would be, by a load that is about to be made too.
 * Returns the number; `seen`, and *armed is IGN_OK: the watch tells when to look again. */
uint32_t ign_store_watch(ign_store *store, uint32_t magazine, uint32_t seen, ign_watch *watch, int *armed);
void ign_store_wake(ign_store *store, uint32_t magazine);
/* Whether anybody has announced itself, asleep or listening, since the magazine was loaded or woken last. It may have gone since, and
 * may wait for another magazine that shares the word: a hint. */
bool ign_store_awaited(ign_store *store, uint32_t magazine);
/* A load of this magazine is about to be made: who sleeps until then is woken, and is there when it is. Nothing is promised by it. */
void ign_store_forewarn(ign_store *store, uint32_t magazine);
/* For one thread that waits for many magazines. `announce`: a load of this one rings the bell, once; returns the magazine's number,
 * or `unknown` when it cannot be told now. `listen`: until the bell is not at `seen`, or the time is over; returns where it is.
 * Read the bell (timeout 0), announce, listen. The bell is rung for others as well: look at the numbers. */
uint32_t ign_store_announce(ign_store *store, uint32_t magazine, uint32_t unknown);
uint32_t ign_store_listen(ign_store *store, uint32_t seen, uint64_t timeout_ns);
void ign_store_ring(ign_store *store);

/* Lays out the next segment, checkpoints, moves what lives out of segments that hold little, removes what nobody needs: a bounded
 * piece of that. IGN_OK: there was something to do; IGN_EMPTY: there was not, or another store is at it; IGN_E_STALE: what was
 * looked at changed meanwhile. */
int ign_store_maintain(ign_store *store);
int ign_store_checkpoint(ign_store *store);
int ign_store_figures_of(ign_store *store, ign_store_figures *figures);

#endif
