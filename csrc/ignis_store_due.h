/* When the records of a later magazine are due: runs of them in the order of a time.
 *
 * A tree of pages. A page holds up to 41 runs, in no order. A page that is full is split by the highest bit in which their times
 * differ, under a node that names the bit and what stands above it; where all have one time, pages hang one behind the other, in the order
 * of arrival. So the earliest is down the left edge, and a time beside others costs one word of undo. A run takes some 24 to 48 bytes.
 *
 * What dies is not looked for: its runs stay until `ign_due_tidy` meets them, at the left edge or, when more than half is dead, on a
 * walk through all pages that goes on a piece with each retirement. Either follows from the log alone.
 *
 * For whoever holds the writer's lock, within a transaction but for looking.
 */
#ifndef IGNIS_STORE_DUE_H
#define IGNIS_STORE_DUE_H

#include "ignis_store_control.h"

#define IGN_DUE_MAX ((1ull << 48) - 1)
#define IGN_DUE_NONE UINT64_MAX
#define IGN_DUE_RUN_TAKES 2400u /* of the state, that any one run may take which is added; ign_due_takes says better */

/* Behind the record of a later magazine. */
typedef struct ign_due {
    uint64_t root;    /* 0: nothing */
    uint64_t next;    /* ms: nothing is due before; IGN_DUE_NONE: nothing at all */
    uint64_t records; /* in all runs, dead ones too */
    uint64_t living;  /* records of the magazine */
    uint64_t walked;  /* the walk goes on with this time */
} ign_due;

typedef struct ign_due_run {
    uint64_t ms;
    uint64_t shard;
    uint64_t first, last;
} ign_due_run;

/* Does anything of a run live? */
typedef bool ign_due_lives(ign_ctl *ctl, void *arg, const ign_due_run *run);

void ign_due_add(ign_ctl *ctl, ign_due *due, const ign_due_run *run);
/* So many records have died. */
void ign_due_tidy(ign_ctl *ctl, ign_due *due, uint64_t died, ign_due_lives *lives, void *arg);
uint64_t ign_due_tidy_takes(const ign_due *due); /* of the state, at most */
/* ignis_store_due_room.c: of the state, what adding runs of these times takes at most; they are sorted, and none is over IGN_DUE_MAX. */
uint64_t ign_due_takes(ign_ctl *ctl, const ign_due *due, const uint64_t *times, uint64_t count);
void ign_due_free(ign_ctl *ctl, ign_due *due);
/* The tree in another state, which nobody else sees; its root there. */
uint64_t ign_due_copy(ign_ctl *to, ign_ctl *from, uint64_t root);

/* Calls with all runs whose time is `from` or later, by time, shard and pointer, until it returns false. Runs of one shard and one time
 * come in the order in which they were added. False: `visit` did. */
typedef bool ign_due_visit(void *arg, const ign_due_run *run);
bool ign_due_walk(ign_ctl *ctl, const ign_due *due, uint64_t from, ign_due_visit *visit, void *arg);

#endif
