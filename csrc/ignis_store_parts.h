/* What the parts of the store know of each other; see ignis_store.h for what it does. */
#ifndef IGNIS_STORE_PARTS_H
#define IGNIS_STORE_PARTS_H

/* For sigsetjmp and sigaction: not every C library shows them with -std=c11 alone. Each file that includes this one includes it
 * before any other header, because the first header of the C library reads it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "ignis_store.h"
#include "ignis_store_landing.h"

#include <pthread.h>

/* One segment's file, as this process has it open. */
typedef struct ign_log_file {
    int file;
    unsigned users;
    uint64_t generation, number;
    uint64_t since; /* what was written before may have failed to reach the disk without our being told */
    ign_segment_info info;
    bool headless; /* its header could not be read, and `info` is empty */
    uint64_t used_at;
    _Atomic bool flushing, failed; /* ignis_store_flush.c: one of our threads flushes it; a flush of it failed */
} ign_log_file;

/* What this process has of one generation. */
struct ign_generation {
    ign_ctl ctl;
    unsigned users;        /* threads in a call; the store's own */
    uint64_t number;
    char name[IGN_STORE_NAME_MAX]; /* of its control file */
    ign_store_identity identity;   /* ... which is found under that name; zeros: not known */
    uint32_t slot, word;   /* our slot, and what stands in a lock that we hold */
    uint8_t *stage;        /* the entry that is being written; for whoever holds the lock */
    uint64_t stage_bytes;
    _Atomic uint64_t control_bytes; /* the control file has at least that many: it never shrinks by us */
    _Atomic uint64_t sent; /* up to there this process has sent the log on its way to the disk */
    _Atomic bool lost;     /* its control file failed under us: nothing of it is looked at any more */
    bool at_once;          /* whoever holds the lock waits for nothing */
    bool patient;          /* ... asks again when maintenance has the room in hand */
    bool in_hand;          /* ... found no room while maintenance was at work, so nobody is told yet that room is short */
    uint64_t since;        /* maintenance's turn when whoever holds the lock got it */
};

enum { IGN_LOG_FILES = 32, IGN_STORE_LEFT = 16 };

struct ign_store {
    ign_store_io *io;
    ign_store_options options;
    pthread_mutex_t mutex; /* over what follows; held for moments, never over a wait or the disk */
    ign_generation *now;
    ign_log_file files[IGN_LOG_FILES];
    unsigned found_at;     /* of these, the last that was looked for */
    uint64_t uses;
    ign_store_lost lost;      /* what IGN_E_LOST was about */
    _Atomic uint32_t searching; /* a thread of this process looks for the next generation */
    uint64_t lost_generation; /* whose control file failed under us */
    _Atomic uint64_t quiet_end; /* where the log ended when it was last maintained */
    _Atomic uint64_t unread;  /* how often a part of a batch could not be read */
    uint64_t maintain_turn, maintain_since; /* what was seen of another's maintenance, and when first */
    uint64_t image_generation, image_bytes; /* of the newest checkpoint, if this store made it: how large the state is in it; for who maintains */
    uint64_t unpacked, unemptied;           /* so many batches there were, and so large the log was, when less did not become of them; for who maintains */
    uint64_t vain_generation, vain_end;     /* where the log ended behind a compaction that gave nothing back; for who maintains */
    struct { uint64_t generation, number, living; } left[IGN_STORE_LEFT]; /* segments that could not be emptied; for who maintains */
    unsigned left_next;
    _Atomic uint32_t removals;              /* of segments, as far as `files` knows */
};

/* ignis_store_landing.c: this thread begins or ends to write an entry. */
void ign_landing_writes(bool begins);
/* Whether this thread looks for the next generation: behind a fall it does not. */
void ign_landing_searches(bool begins);

/* A file name with its kind's two numbers. */
void ign_store_file_name(char name[IGN_STORE_NAME_MAX], const char *kind, uint64_t a, uint64_t b);
bool ign_store_parse_name(const char *name, const char *kind, uint64_t *a, uint64_t *b);
int ign_store_error(int error); /* from an errno (or a code already) to a code; sets errno */

/* ignis_store_generation.c: joining and leaving. The result is to be given back. */
int ign_store_enter(ign_store *store, ign_generation **generation);
int ign_store_enter_living(ign_store *store, ign_generation **generation); /* behind one that was lost, if it was */
void ign_store_ring_head(ign_store *store, ign_ctl_head *head);           /* whoever sleeps on the bell looks round */
void ign_store_leave(ign_store *store, ign_generation *generation);
/* `old` is sealed: makes or joins a later one. *cut: where the one behind `old` began; UINT64_MAX when not known. */
int ign_store_follow(ign_store *store, ign_generation *old, uint64_t *cut);
void ign_store_end_search(ign_store *store); /* for the others of this process */
void ign_store_seal(ign_store *store, ign_generation *generation);
bool ign_store_sealed(const ign_generation *generation);
bool ign_store_alive(ign_store *store, ign_generation *generation, uint32_t word);

/* ignis_store_lock.c. IGN_OK: ours, and the state is whole. IGN_E_STALE: sealed. IGN_E_BUSY. */
int ign_store_lock(ign_store *store, ign_generation *generation, bool at_once);
/* The same for who writes: also the directory must be where it was, else IGN_E_MOVED. */
int ign_store_lock_to_write(ign_store *store, ign_generation *generation, bool at_once);
/* Sealed, or its control file has no name any more: whoever opens the store now finds nobody in it, so nothing that is written in it from
 * here on is confirmed. */
bool ign_store_has_ended(ign_store *store, ign_generation *generation);
void ign_store_unlock(ign_store *store, ign_generation *generation);
/* Its holder is at work: who waits for it does not take him for stopped. */
void ign_store_gets_on(ign_generation *generation);

/* ignis_store_append.c, under the lock. Room for a payload; NULL and IGN_E_NOMEM. */
int ign_store_stage(ign_generation *generation, uint64_t payload_bytes, uint8_t **payload);
/* IGN_OK; IGN_E_STALE: sealed meanwhile, and *position says where it stands if it does, UINT64_MAX: nowhere; or an error, and nothing happened. */
int ign_store_append(ign_store *store, ign_generation *generation, uint8_t type, uint64_t payload_bytes, uint64_t *position);
/* All that there is was flushed, and no entry says so: one is written that does, unless somebody has the lock. It is not flushed. */
void ign_store_witness(ign_store *store);
void ign_store_tell_segment(ign_generation *generation);
int ign_store_heal(ign_store *store, ign_generation *generation);
bool ign_store_is_whole(const ign_generation *generation); /* there is nothing to heal */
/* Builds an entry's payload from the state with ign_store_stage; a result that is not IGN_OK ends the call. */
typedef int ign_store_build(ign_store *store, ign_generation *generation, void *arg, uint64_t *payload_bytes);
int ign_store_commit(ign_store *store, uint8_t type, ign_store_build *build, void *arg, const ign_store_how *how, ign_store_mark *mark);

/* ignis_store_load.c: parts of a LOAD, which several entries have. */
typedef struct ign_load_call {
    uint32_t magazine;
    ign_store_part *parts;
    uint16_t count;
    bool reload;
    bool moves;              /* what is due, which was counted when it was loaded, and of which nothing can be left out */
    const uint64_t *dues;    /* of a later magazine: ms, record by record; NULL: another */
    uint64_t earliest;       /* of these */
    uint32_t wakes;          /* the main magazine, whose sleepers are to reckon anew; 0: nobody is */
    uint64_t bytes, batches; /* of the payload; of the batches in it */
} ign_load_call;

int ign_load_check(ign_load_call *call);
/* IGN_E_NO_ROOM: with it, and without what is `freed`, more would live than may; with E2BIG: it is larger than what is freed, on a full disk. */
int ign_load_fits(ign_store *store, ign_generation *generation, const ign_load_call *call, uint64_t freed);
int ign_load_put(ign_generation *generation, ign_load_call *call, uint8_t *to);
/* ignis_store.c: ign_store_transfer of records as they are. `max_bytes` does not refuse it, and growing does not: a batch of its own takes some bytes. */
int ign_store_move(ign_store *store, uint32_t source, const ign_store_run *runs, uint32_t count, uint32_t target, ign_store_part *parts,
                   uint16_t part_count, const ign_store_how *how, ign_store_mark *mark);
/* ignis_store_due_fits.c: of the state, what the due times of a LOAD may take; and whether a load with due times, which takes nothing's place, may be. */
uint64_t ign_load_dues_take(ign_ctl *ctl, const uint8_t *load, uint64_t bytes);
bool ign_load_dues_fit(ign_store *store, ign_generation *generation, const ign_load_call *call);
int ign_load_build(ign_store *store, ign_generation *generation, void *arg, uint64_t *bytes); /* of a LOAD; `arg` is an ign_load_call */

void ign_load_wake(ign_store *store, const ign_load_call *call);

/* ignis_store_entry.c: pieces of payloads. What is put returns where the next goes. */
static inline uint64_t ign_pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}
uint8_t *ign_put_padded(uint8_t *to, const void *from, uint64_t bytes);
uint8_t *ign_put_run(uint8_t *to, uint16_t shard, uint64_t first, uint64_t last);
bool ign_owner_fits(const char *owner);
uint64_t ign_claim_bytes(const char *owner, uint32_t runs);
uint8_t *ign_claim_put(uint8_t *to, uint32_t magazine, const char *owner, uint64_t ms, uint32_t runs);
bool ign_as_expected(ign_ctl *ctl, const ign_store_change *change);

/* ignis_store_roll.c, under the lock. */
bool ign_store_must_roll(ign_generation *generation, uint64_t size);
int ign_store_roll(ign_store *store, ign_generation *generation, uint64_t size);

/* ignis_store_ahead.c. A word of the control file says what is laid out: how large it is, and whether it is. */
enum { IGN_AHEAD_UNIT = 1024 };

static inline uint64_t ign_ahead_bytes(uint64_t drawn)
{
    return (drawn & IGN_AHEAD_KIB) * IGN_AHEAD_UNIT;
}

static inline bool ign_ahead_is_laid(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst) != 0;
}

/* A file of a kind with room on the disk and nothing in it, and its end. */
int ign_store_lay_out(ign_store *store, const ign_generation *generation, const char *kind, uint64_t bytes, bool filled, uint64_t *drawn);
int ign_store_fill(ign_store_io *io, int file, uint64_t from, uint64_t to); /* with zeros; 0 or an errno */
void ign_store_give(ign_store *store, const ign_generation *generation, const char *kind, uint64_t drawn);
/* Under the lock: */
uint64_t ign_store_next_bytes(const ign_store *store, ign_generation *generation); /* of the segment that is laid out next */
uint64_t ign_store_reserve_bytes(const ign_store *store, ign_generation *generation); /* ... and of the one that is kept */
/* What is laid out is in the word, unless somebody was quicker. */
int ign_store_lay_into(ign_store *store, ign_generation *generation, _Atomic uint64_t *word, uint64_t bytes, bool filled);
void ign_store_set_ahead(ign_store *store, ign_generation *generation, uint64_t another);
uint64_t ign_store_cheapest(ign_generation *generation); /* ... the one that is emptied most cheaply */
uint64_t ign_store_log_bytes(ign_generation *generation);  /* of all segments */
uint64_t ign_store_kept_bytes(ign_generation *generation); /* of what is laid out and kept beside them */
/* Bytes of log that it takes at most to empty a segment of what lives in it. */
uint64_t ign_store_cost(const ign_state_segment *segment);
/* Without the lock, by maintenance: the segments that are laid out ahead, filled. IGN_OK; IGN_EMPTY: they were there; IGN_E_NO_ROOM. */
int ign_store_probe(ign_store *store, ign_generation *generation, uint64_t bytes);
int ign_store_lay_reserve(ign_store *store, ign_generation *generation, uint64_t bytes);
int ign_store_lay_ahead(ign_store *store, ign_generation *generation, uint64_t bytes, uint64_t reserve_bytes);
/* Room that is kept for checkpoints, and given to them when they find none. */
/* Of that, what goes with the log. */
uint64_t ign_store_spare_of_log(uint64_t log_bytes);
uint64_t ign_store_spare_bytes(const ign_generation *generation, uint64_t log_bytes);
int ign_store_keep_spare(ign_store *store, ign_generation *generation, uint64_t bytes);

/* ignis_store_way.c, under the lock. What an entry is to the disk: it asks for room, it neither asks nor gives, it gives room back. */
typedef enum ign_store_weight { IGN_WEIGHT_LOAD, IGN_WEIGHT_OTHER, IGN_WEIGHT_FREES } ign_store_weight;
/* Is there nothing to do in ign_store_make_way? */
bool ign_store_has_way(ign_generation *generation, uint64_t size, ign_store_weight weight);
/* An entry of that size may be written: what has to be laid out ahead is. *another: for which the one ahead makes way in the roll; it is
 * to be given to ign_store_set_ahead behind that. IGN_OK, or IGN_E_NO_ROOM: maintenance has to find room first. */
int ign_store_make_way(ign_store *store, ign_generation *generation, uint64_t size, ign_store_weight weight, uint64_t *another);
uint64_t ign_store_left(ign_generation *generation); /* bytes of entries that fit without more room on the disk */
/* The call that holds the lock found no room for what is to be laid out; `goes`: it goes on all the same. */
void ign_store_note_no_room(ign_generation *generation, ign_store_weight weight, bool goes);

/* ignis_store_growth.c, under the lock: may batches take the place of what is freed, though they are larger? */
bool ign_store_may_grow(ign_store *store, ign_generation *generation, const ign_load_call *call, uint64_t frees);

/* ignis_store_look.c: enters the newest generation and locks it. */
int ign_store_look(ign_store *store, ign_generation **generation);
void ign_store_look_end(ign_store *store, ign_generation *generation);

/* ignis_store_look.c: fills in which file a slice is in. */
void ign_store_locate(const ign_generation *generation, uint16_t shard, ign_slice *slice);

/* ignis_store_wake.c: whoever of `whom` (IGN_STORE_SLEEPS, IGN_STORE_LISTENS) has announced itself in the word is told; returns who that
 * was. Sleepers are woken, for listeners the bell is to be rung. */
uint32_t ign_store_tell(ign_store *store, _Atomic uint32_t *waiting, uint32_t whom);

/* ignis_store_flush.c: the log is on the disk up to `position`. IGN_OK; IGN_E_STALE: sealed; IGN_E_FAILED: sealed by us, the
 * disk refused. */
int ign_store_flush_to(ign_store *store, ign_generation *generation, uint64_t position);
/* When much is not flushed and not under way yet: it is sent to the disk, so that who flushes waits for less. Promises nothing. Without the lock. */
void ign_store_send(ign_store *store, ign_generation *generation);

/* ignis_store_files.c: segments' files held open. `head`: of the generation that writes to it, NULL when it is only read.
 * 0, an errno, or a code. */
int ign_store_use_file(ign_store *store, uint64_t generation, uint64_t number, const ign_ctl_head *head, ign_log_file **file);
void ign_store_drop_file(ign_store *store, ign_log_file *file);
void ign_store_drop_removed(ign_store *store, ign_generation *generation); /* those that the state does not know any more, and nobody uses */
void ign_store_close_files(ign_store *store);

/* ignis_store_recovery.c. Set in `refused_from` once it is known what the next generation holds: nothing more can be
 * refused then. */
#define IGN_REFUSED_FROZEN ((uint64_t)1 << 63)

typedef struct ign_chain_segment {
    ign_segment_info info;
    uint64_t limit; /* another segment begins here */
} ign_chain_segment;

typedef struct ign_chain {
    ign_chain_segment *segments; /* by base */
    uint64_t count, capacity;
    struct { uint64_t generation, number; } *strays; /* segments without a header */
    uint64_t stray_count, stray_room;
    uint64_t store;
    uint64_t newest_generation, newest_control; /* of any file; of a control file, 0 = none */
    uint64_t checkpoint_generation, checkpoint; /* ~0: none */
    uint64_t known, known_generation, known_number; /* by a control file: flushed up to there, in that segment, 0 = not known */
    int failed;
} ign_chain;

int ign_chain_read(ign_store *store, ign_chain *chain);
void ign_chain_free(ign_chain *chain);
const ign_chain_segment *ign_chain_at(const ign_chain *chain, uint64_t position);
uint64_t ign_chain_next(const ign_chain *chain, uint64_t position); /* where the next segment behind begins; ~0: nowhere */
/* ignis_store_scan.c: along the log from `position` on. IGN_OK: to its end, or what one of the functions said. */
typedef int ign_chain_enter(void *arg, const ign_segment_info *segment);
typedef int ign_chain_visit(void *arg, const ign_entry *entry);
/* Something at `from` is no entry; `next` is where the log goes on, if it does. IGN_OK: go on there. IGN_EMPTY: end. */
typedef int ign_chain_gap(void *arg, uint64_t from, uint64_t next, ign_log_reader *reader);

typedef struct ign_chain_walker {
    ign_chain_enter *enter;
    ign_chain_visit *visit;
    ign_chain_gap *gap;
    void *arg;
} ign_chain_walker;

int ign_chain_walk(ign_store *store, const ign_chain *chain, uint64_t position, const ign_chain_walker *walker);
/* Looks at the log from `position` on: where it ends, up to where it was known to be flushed, and behind what nothing of it is damaged. */
int ign_chain_scan(ign_store *store, const ign_chain *chain, uint64_t position, uint64_t *whole, uint64_t *durable, uint64_t *end);
/* ignis_store_replay.c. Applies the log from what `ctl` has up to `end`. What is damaged is passed over, and counted. `sink` writes again what
 * stands at `again` or behind it: see recovery.c. */
typedef int ign_chain_sink(void *arg, const ign_entry *entry);
int ign_chain_replay(ign_store *store, const ign_chain *chain, ign_ctl *ctl, uint64_t end, uint64_t again, ign_chain_sink *sink, void *arg);
/* A generation is made from the disk and published, unless somebody else was quicker: IGN_E_STALE. `newest`: the control file
 * that was the newest (0: there was none), and `sealed` what is in it, if that can be read. */
int ign_store_rebuild(ign_store *store, uint64_t newest, ign_ctl *sealed, ign_generation *made);
int ign_store_make_ready(ign_store *store, ign_ctl *ctl);

/* ignis_store_before.c: what older generations left. The room that they kept is given back for the next. */
void ign_before_give_back(ign_store *store, ign_ctl *sealed, uint64_t generation);
void ign_before_remove_unborn(ign_store *store); /* what makers of a generation left who died */
int ign_before_keep_spare(ign_store *store, ign_generation *made, bool needs_room);
void ign_before_remove_strays(ign_store *store, const ign_chain *chain);
void ign_before_remove_replaced(ign_store *store, const ign_chain *chain, uint64_t begin); /* ... that were written again from `begin` on */
void ign_before_sweep(ign_store *store, uint64_t generation);

/* ignis_store_checkpoint.c: the checkpoint of that generation and position into a new control's arena. */
int ign_checkpoint_load(ign_store *store, uint64_t generation, uint64_t position, ign_ctl *ctl);
int ign_checkpoint_check(ign_store *store, uint64_t generation, uint64_t position);
/* A control that nobody else sees; on a disk without room it is in memory. And its end. */
int ign_checkpoint_scratch(ign_store *store, ign_ctl *ctl, const char *name, bool in_memory, uint64_t state_bytes);
void ign_checkpoint_drop_scratch(ign_store *store, ign_ctl *ctl, const char *name);

/* ignis_store_remove.c. Removes the segments that two checkpoints no longer need. IGN_OK | IGN_EMPTY. */
int ign_store_remove_dead(ign_store *store);
int ign_store_drop_older(ign_store *store); /* checkpoints: IGN_OK | IGN_EMPTY */

/* ignis_store_lost.c. Notes what is missing: IGN_E_LOST, or IGN_OK when it is to be passed over. */
int ign_store_is_lost(ign_store *store, const char *file, uint64_t from, uint64_t to);
bool ign_chain_has(const ign_chain *chain, uint64_t generation, uint64_t number);
/* What the control file of a generation that ended says was there. It is asked before the directory is read: who has not seen the seal
 * may begin another segment. The chain notes it, and must have it. */
typedef struct ign_known {
    uint64_t store, generation, number, durable;
} ign_known;
ign_known ign_ctl_knows(const ign_ctl *sealed);
int ign_chain_know(ign_store *store, ign_chain *chain, const ign_known *known);
/* Is what stands there in a segment's file all zeros? */
bool ign_chain_is_blank(ign_store *store, const char *name, uint64_t from, uint64_t to);
/* The checkpoint's last segment is there, or one that took over from it, and no file that may have held entries has lost its header. */
int ign_chain_check_files(ign_store *store, const ign_chain *chain, ign_ctl *ctl);
/* Each segment in which something lives is there. */
int ign_chain_check_living(ign_store *store, const ign_chain *chain, ign_ctl *ctl);
/* Retires what lives in files that are not there, and makes a checkpoint behind them. */
int ign_store_drop_lost(ign_store *store);

/* ignis_store_aside.c: a damaged part of the log is copied into a file of its own, if that is possible. */
void ign_store_set_aside(ign_store *store, const ign_chain *chain, uint64_t from, uint64_t to);

/* ignis_store_maintain.c: without the lock. Waits until the round of maintenance that is under way has ended, for `stopped_after_ns` at most:
 * false then. */
bool ign_store_await_maintenance(ign_store *store, ign_generation *generation);

/* Of the state: what a move may take while it is applied, since compaction makes them small enough; and what is left for each message, should all be
 * moved one by one. */
enum { IGN_MOVE_TAKES = 64 << 10, IGN_RECORD_TAKES = 16, IGN_RECORDS_TAKE = 48 << 20 /* at most */ };
enum { IGN_SHORT_MOVE_BYTES = 64 << 10 /* of the log, when room is short */ };

typedef enum ign_need { IGN_NEED_NONE, IGN_NEED_SOME, IGN_NEED_MUCH } ign_need; /* of room */

/* ignis_store_choose.c: what takes more than it may. */
typedef enum ign_work { IGN_WORK_NONE, IGN_WORK_PACK, IGN_WORK_EMPTY } ign_work;
bool ign_store_may_choose(const ign_store *store, const ign_store_figures *figures); /* else there is nothing to do, unless room is short */
/* Under the lock: one of those that nobody writes to; its entries end at *limit. The second when room is short. */
ign_work ign_store_choose(const ign_store *store, ign_generation *g, const ign_store_figures *figures, ign_segment_info *info, uint64_t *limit);
ign_work ign_store_choose_short(const ign_store *store, ign_generation *g, ign_need need, ign_segment_info *info, uint64_t *limit);
typedef struct ign_compacted {
    uint64_t moved, made; /* batches, and into how many */
    uint64_t written;     /* bytes of log */
} ign_compacted;
/* What became of a segment: what was in vain is not chosen again. */
void ign_store_note_compacted(ign_store *store, const ign_store_figures *figures, const ign_segment_info *info, ign_work work, const ign_compacted *done);

/* ignis_store_compact.c: moves what lives out of one segment, when there is one to be emptied. IGN_OK | IGN_EMPTY. */
int ign_store_compact(ign_store *store, const ign_store_figures *figures, ign_need need);

#endif
