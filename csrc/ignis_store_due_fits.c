/* What due times take: of the state, for an entry; and of what a store may take, for a load.
 *
 * A message takes room in the log, and a due time of its own takes room in the state. On the disk the state stands in the control file, which has half as
 * much again, in two checkpoints, and twice in what is kept for the next one. So beside living bytes a load with due times counts the
 * state, STATE_TIMES, but for the first MiB. Loads without due times do not, and neither does what takes the place of something.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <stdlib.h>

enum { FEW = 8, LEAST_BYTES = 512 << 10, STATE_TIMES = 7, STATE_FREE = 1 << 20 };

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Of the state, for runs of these times; `times` NULL: of any. */
static uint64_t takes(ign_ctl *ctl, uint32_t number, uint64_t *times, uint64_t count)
{
    const ign_magazine *magazine = ign_state_magazine(ctl, number);
    const ign_due *due = magazine == NULL ? NULL : ign_state_due(ctl, magazine);
    if (times == NULL || due == NULL)
        return count * IGN_DUE_RUN_TAKES;
    for (uint64_t i = 1; i < count; i++)
        if (times[i] < times[i - 1]) {
            qsort(times, (size_t)count, sizeof *times, by_time);
            break;
        }
    return ign_due_takes(ctl, due, times, count);
}

uint64_t ign_load_dues_take(ign_ctl *ctl, const uint8_t *load, uint64_t bytes)
{
    uint64_t count = ign_dues_count(load, bytes);
    if (count == 0)
        return 0;
    count += ign_get16(load + 6) - 1;
    uint64_t *times = count <= FEW ? NULL : malloc((size_t)count * sizeof *times);
    uint64_t found = times == NULL ? count : ign_dues_times(load, bytes, times, count);
    uint64_t more = takes(ctl, ign_get32(load), times, found), least = found * IGN_DUE_RUN_TAKES;
    free(times);
    /* On a full disk what is left of it is for moving them one by one. */
    least = least < LEAST_BYTES ? least : LEAST_BYTES;
    return more > least ? more : least;
}

/* The times of the runs that a load adds; `to` NULL: only how many. */
static uint64_t runs_of(const ign_load_call *call, uint64_t *to)
{
    uint64_t found = 0, at = 0;
    for (uint16_t i = 0; i < call->count; i++)
        for (uint64_t begin = at, end = at + ign_get32(call->parts[i].batch + 4); at < end; at++) {
            if (at > begin && call->dues[at] == call->dues[at - 1])
                continue;
            if (to != NULL)
                to[found] = call->dues[at] < IGN_DUE_MAX ? call->dues[at] : IGN_DUE_MAX;
            found++;
        }
    return found;
}

static bool fits_in(uint64_t state, uint64_t room)
{
    return state <= STATE_FREE || (state - STATE_FREE) * STATE_TIMES <= room;
}

bool ign_load_dues_fit(ign_store *store, ign_generation *g, const ign_load_call *call)
{
    uint64_t most = store->options.max_bytes, lives = g->ctl.root->living_bytes + call->batches, used = g->ctl.root->used;
    if (call->dues == NULL || lives > most)
        return lives <= most;
    uint64_t count = runs_of(call, NULL), room = most - lives;
    if (fits_in(used + count * IGN_DUE_RUN_TAKES, room))
        return true;
    uint64_t *times = malloc((size_t)(count + 1) * sizeof *times);
    if (times != NULL)
        runs_of(call, times);
    uint64_t more = takes(&g->ctl, call->magazine, times, count);
    free(times);
    return fits_in(used + more, room) || fits_in(used - ign_ctl_free_bytes(&g->ctl) + more, room);
}
