/* Messages that wait for their time: when the next is due, and which there are, in the order in which they are due. */
#include "ignis_store_parts.h"

#include "ignis_store_later.h"

#include <stdlib.h>

int ign_store_next_due(ign_store *store, uint32_t number, uint64_t *ms)
{
    IGN_LANDING(store, );
    ign_generation *g;
    int rc = ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    const ign_magazine *magazine = ign_state_magazine(&g->ctl, number);
    const ign_due *due = magazine == NULL ? NULL : ign_state_due(&g->ctl, magazine);
    *ms = due == NULL ? IGN_DUE_NONE : due->next;
    ign_store_look_end(store, g);
    return magazine == NULL ? IGN_E_UNKNOWN : IGN_OK;
}

/* The first runs so far, with the last of them on top: `runs[i]` comes behind what stands at 2i + 1 and 2i + 2. */
typedef struct listing {
    ign_ctl *ctl;
    const ign_magazine *later;
    const ign_due_run *after;
    ign_due_run *runs;
    uint32_t room, count;
} listing;

static int compare(const void *one, const void *other)
{
    const ign_due_run *a = one, *b = other;
    if (a->ms != b->ms)
        return a->ms < b->ms ? -1 : 1;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static void sink(listing *l, const ign_due_run *run)
{
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < l->count; at = child) {
        if (child + 1 < l->count && compare(&l->runs[child], &l->runs[child + 1]) < 0)
            child++;
        if (compare(run, &l->runs[child]) >= 0)
            break;
        l->runs[at] = l->runs[child];
    }
    l->runs[at] = *run;
}

/* Runs of one time come in no order of their places: the first of them are kept. */
static void keep_run(listing *l, const ign_due_run *run)
{
    if (l->count == l->room) {
        if (compare(run, &l->runs[0]) < 0)
            sink(l, run);
        return;
    }
    uint32_t at = l->count++;
    for (uint32_t above; at > 0 && compare(run, &l->runs[above = (at - 1) / 2]) > 0; at = above)
        l->runs[at] = l->runs[above];
    l->runs[at] = *run;
}

static bool list_run(void *arg, const ign_due_run *run)
{
    listing *l = arg;
    ign_due_run left = *run;
    if (l->count == l->room && run->ms > l->runs[0].ms)
        return false;
    if (run->ms == l->after->ms) {
        if (run->shard < l->after->shard || (run->shard == l->after->shard && run->last <= l->after->first))
            return true;
        if (run->shard == l->after->shard && run->first <= l->after->first)
            left.first = l->after->first + 1;
    }
    ign_shard *shard = ign_state_shard(l->ctl, l->later, run->shard);
    ign_cursor at;
    uint64_t from = left.first, first, last;
    if (shard == NULL || (l->count == l->room && compare(&left, &l->runs[0]) > 0))
        return true;
    for (ign_item *e = ign_seq_find(l->ctl, &shard->extents, from, &at); e != NULL && e->first <= left.last;
         e = ign_seq_next(l->ctl, &shard->extents, &at)) {
        from = e->first > from ? e->first : from;
        while (from <= left.last && from <= IGN_ITEM_LAST(e) && ign_extent_run(l->ctl, e, from, left.last - from + 1, &first, &last)) {
            if (first > left.last)
                break;
            last = last < left.last ? last : left.last;
            const ign_due_run found = {.ms = run->ms, .shard = run->shard, .first = first, .last = last};
            if (l->count == l->room && compare(&found, &l->runs[0]) > 0)
                return true; /* and so is all that is left of this one */
            keep_run(l, &found);
            from = last + 1;
        }
    }
    return true;
}

int ign_store_list_later(ign_store *store, uint32_t number, const ign_due_run *after, ign_due_run *runs, uint32_t room, uint32_t *count)
{
    IGN_LANDING(store, );
    ign_generation *g;
    *count = 0;
    int rc = room == 0 ? IGN_E_INVALID : ign_store_look(store, &g);
    if (rc != IGN_OK)
        return rc;
    listing l = {.ctl = &g->ctl, .later = ign_state_magazine(&g->ctl, number), .after = after, .runs = runs, .room = room};
    if (l.later == NULL)
        rc = IGN_E_UNKNOWN;
    else if ((l.later->durability & IGN_MAGAZINE_IS_LATER) == 0)
        rc = IGN_E_INVALID;
    else
        ign_due_walk(&g->ctl, ign_state_due(&g->ctl, l.later), after->ms, list_run, &l);
    *count = l.count;
    ign_store_look_end(store, g);
    qsort(runs, l.count, sizeof *runs, compare);
    return rc;
}
