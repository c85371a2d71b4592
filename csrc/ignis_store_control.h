/* The control file: everything derived from the log, in memory that all processes of a store share.
 *
 * Three parts: the head, with the words that processes meet at; the undo log; and the arena, which holds the state as of
 * one position of the log. A checkpoint is a copy of the arena, so nothing in it is an address: blocks are named by their
 * offset, and 0 names none. Numbers have the machine's own byte order, which the head names.
 *
 * The arena changes only under the writer's lock, one transaction for each entry of the log. Every change of a word that
 * held something goes through `ign_ctl_put`, which notes the old value first; memory that the transaction itself
 * allocated is written plainly. So a process may be killed between any two instructions: whoever takes the lock next
 * puts the old values back, and applies the entry again from the log. A block that is freed can be had again in the next
 * transaction only, so that undoing never meets memory with other contents. A transaction that changes more than the undo log holds
 * raises `undo_lost`: if its process dies then, the state is made anew from the checkpoint, as at an opening.
 */
#ifndef IGNIS_STORE_CONTROL_H
#define IGNIS_STORE_CONTROL_H

#include "ignis_error.h"
#include "ignis_store_io.h"

#include <stdalign.h>

#define IGN_CTL_VERSION 4u
#define IGN_STORE_SLOTS 1024u  /* open stores at a time */
#define IGN_STORE_WAKES 1024u  /* words that consumers sleep on; magazines share them */
#define IGN_STORE_SLEEPS 1u     /* in `wake_waiting`, on which one sleeps: somebody does */
#define IGN_STORE_LISTENS 2u    /* somebody sleeps on the bell, for this word and others */
#define IGN_CTL_CLASSES 80u
#define IGN_CTL_CUTS 64u

typedef struct ign_ctl_cut {
    uint64_t generation; /* that began with it */
    uint64_t position;   /* entries of the one before are in it below this position, and nothing from it on */
} ign_ctl_cut;

typedef struct ign_ctl_head {
    uint64_t magic;
    uint32_t version, byte_order;
    uint64_t generation, store;
    uint64_t undo_at, undo_capacity, arena_at;
    uint64_t segment_number; /* of the segment that begins the generation: its temporary name ends in `instance` */
    uint64_t instance;
    ign_ctl_cut cuts[IGN_CTL_CUTS]; /* by generation modulo; 0 = not known */
    alignas(64) _Atomic uint32_t sealed; /* a later generation holds, or is being made */
    _Atomic uint32_t ready;              /* the generation's first segment has its name */
    _Atomic uint64_t refused_from;       /* entries from here on were refused, ~0 = none; behind a failed flush */
    _Atomic uint64_t durable;            /* the log is flushed up to here; with IGN_DURABLE_FINAL: and that is all, see ign_ctl_durable */
    _Atomic uint64_t log_number;         /* of the segment that is written */
    alignas(64) _Atomic uint32_t lock;   /* holder: slot + 1, and its incarnation above */
    _Atomic uint32_t lock_waiting;
    _Atomic uint64_t lock_turn;          /* rises with every acquisition, and as its holder gets on with a large entry */
    _Atomic uint32_t undo_count, undo_lost;
    _Atomic uint64_t next_number;        /* of a segment */
    _Atomic uint64_t ahead;              /* the name of the segment that is laid out, see IGN_AHEAD_; 0 = none */
    _Atomic uint64_t reserve;            /* ... and of the one that is kept for compaction */
    _Atomic uint64_t spare, spare_bytes; /* the name of the room that is kept for a checkpoint; 0 = none */
    _Atomic uint32_t maintaining;        /* as `lock`: who maintains the store */
    _Atomic uint64_t maintain_turn;      /* rises while it does */
    _Atomic uint64_t written_to;         /* bytes of the log up to here may have been written to */
    _Atomic uint64_t arena_bytes;        /* that the file has room for */
    _Atomic uint32_t short_of_room;      /* 1: the disk refused room, loads wait until maintenance found some; 2: others do, too */
    _Atomic uint64_t largest;            /* bytes of the largest entry of this generation */
    _Atomic uint32_t removals;           /* rises when segments went */
    alignas(64) _Atomic uint64_t end;    /* of the log, for whoever flushes without the lock */
    _Atomic uint64_t log_base;           /* of the segment that is written; set before `end` goes beyond its base */
    _Atomic uint64_t witnessed;          /* the end of the last entry that says that all before it was flushed */
    _Atomic uint32_t flush_turn;         /* what waits for a flush sleeps on this */
    _Atomic uint32_t flushing;           /* as `lock`: who flushes */
    _Atomic uint32_t bell, bell_waiting; /* one word for who waits for many magazines; rung for those that were announced */
    alignas(64) _Atomic uint32_t incarnation[IGN_STORE_SLOTS];
    _Atomic uint32_t wake[IGN_STORE_WAKES];
    _Atomic uint32_t wake_waiting[IGN_STORE_WAKES]; /* see ignis_store_wake.c */
} ign_ctl_head;

/* Set once entries of a generation that has ended are refused: a flush of another process that comes back later counts no more. */
#define IGN_DURABLE_FINAL ((uint64_t)1 << 63)

static inline uint64_t ign_ctl_durable(const ign_ctl_head *head)
{
    return atomic_load_explicit(&head->durable, memory_order_seq_cst) & ~IGN_DURABLE_FINAL;
}

/* An opening and `ignis doctor` read these of a control file that nobody lives in. */
_Static_assert(offsetof(ign_ctl_head, ready) == 1156 && offsetof(ign_ctl_head, durable) == 1168 && offsetof(ign_ctl_head, log_number) == 1176,
               "ignis/storage/embedded/log_files.py has them too");

/* The number in the name of a segment that is laid out: its KiB, whether it is filled, and above, what was drawn. */
#define IGN_AHEAD_KIB 0x7fffffull
#define IGN_AHEAD_FILLED 0x800000ull

typedef struct ign_ctl_undo {
    uint64_t offset, old;
} ign_ctl_undo;

/* A growing sequence of items; see ignis_store_index.h. */
typedef struct ign_seq {
    uint64_t directory, head, length, capacity;
} ign_seq;

/* The first block of the arena. */
typedef struct ign_root {
    uint64_t used;      /* bytes of the arena that were ever allocated */
    uint64_t applied;   /* position up to which the log is in this state */
    uint64_t openings;  /* how often the store was opened by somebody alone */
    uint64_t next_magazine;
    uint64_t first_pointer; /* that a new magazine begins with */
    uint64_t buckets, bucket_count, keys; /* the map */
    uint64_t by_id, by_id_count;          /* magazine number -> its record */
    uint64_t segments, segment_count, segment_capacity;
    uint64_t living_bytes, living_records, damaged_bytes;
    uint64_t salvaged_records, damaged_records; /* of damaged entries: what could be read of them, and what not */
    uint64_t pending;   /* freed in this transaction */
    uint64_t free[IGN_CTL_CLASSES];
} ign_root;

typedef struct ign_ctl {
    ign_store_io *io;
    int file;
    uint64_t reserve;
    uint8_t *base;
    ign_ctl_head *head;
    ign_ctl_undo *undo;
    uint8_t *arena;
    ign_root *root;
    bool cut;    /* the file is shorter than it says: nobody goes on in it */
    bool alone;  /* nobody else sees it yet: nothing is undone */
    bool in_memory;
    bool no_room; /* an allocation failed in this transaction: the state is not to be used */
} ign_ctl;

/* Makes the control file `name`, with an empty arena, and maps it. 0 or an errno. */
int ign_ctl_create(ign_ctl *ctl, ign_store_io *io, const char *name, uint64_t reserve, uint64_t undo_capacity,
                   uint64_t arena_bytes);
/* The same without a file, in memory that nobody shares, for who has no room on the disk. It does not grow. */
int ign_ctl_create_in_memory(ign_ctl *ctl, ign_store_io *io, uint64_t reserve);
/* Maps an existing one: 0, an errno, or a negative IGN_E_ code when it is none, or of another version. */
int ign_ctl_open(ign_ctl *ctl, ign_store_io *io, const char *name, uint64_t reserve);
void ign_ctl_close(ign_ctl *ctl);

static inline void *ign_ctl_at(const ign_ctl *ctl, uint64_t offset)
{
    return ctl->arena + offset;
}

/* One word of the arena gets another value. */
void ign_ctl_put(ign_ctl *ctl, uint64_t *word, uint64_t value);
static inline void ign_ctl_add(ign_ctl *ctl, uint64_t *word, uint64_t change)
{
    ign_ctl_put(ctl, word, *word + change);
}

void ign_ctl_begin(ign_ctl *ctl);
void ign_ctl_commit(ign_ctl *ctl, uint64_t applied);
/* Undoes a transaction that was not committed. False when its old values are not known any more. */
bool ign_ctl_roll_back(ign_ctl *ctl);

/* A block of at least that many bytes, contents undefined, at a multiple of 16; 0 and `no_room` when there is none. */
uint64_t ign_ctl_alloc(ign_ctl *ctl, uint64_t bytes);
void ign_ctl_free(ign_ctl *ctl, uint64_t offset, uint64_t bytes);
/* Of what was allocated, how much can be had again: as far as a few hundred thousand blocks show. */
uint64_t ign_ctl_free_bytes(const ign_ctl *ctl);
/* Grows the file until the arena has that much beyond what is used. 0 or an errno; nothing changes then. */
int ign_ctl_make_room(ign_ctl *ctl, uint64_t bytes);
/* Of a generation that is sealed and in which nobody lives: the state, which follows from the log, gives its room back. What stands before it
 * (how far the log was flushed, what was refused) stays for whoever opens the store. */
void ign_ctl_give_back(ign_ctl *ctl);

#endif
