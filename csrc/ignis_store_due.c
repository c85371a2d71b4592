#include "ignis_store_due_tree.h"

#include <stdlib.h>
#include <string.h>

enum { TIDY_RUNS = 4096, PAGE_COSTS = 16, SPARE_RECORDS = 4096 };

static ign_due_run run_of(const uint64_t run[3])
{
    return (ign_due_run){.ms = ms_of(run), .shard = run[0] & ((1u << SHARD_BITS) - 1), .first = run[1], .last = run[2]};
}

/* -- adding -------------------------------------------------------------------------------------------------------------- */

static uint64_t new_page(ign_ctl *ctl)
{
    uint64_t offset = ign_ctl_alloc(ctl, sizeof(page));
    if (offset != 0) {
        page *p = page_at(ctl, offset);
        p->count = p->next = p->last = 0;
    }
    return offset;
}

/* Makes a node over two: `at` on the side of the time `ms`, `other` on the other side. */
static uint64_t new_node(ign_ctl *ctl, unsigned bit, uint64_t ms, uint64_t at, uint64_t other)
{
    uint64_t offset = ign_ctl_alloc(ctl, sizeof(node));
    if (offset == 0)
        return 0;
    node *n = ign_ctl_at(ctl, offset);
    *n = (node){.bit = bit, .prefix = ms >> bit >> 1};
    n->child[ms >> bit & 1] = at;
    n->child[~(ms >> bit) & 1] = other;
    return offset + INNER;
}

static void fill(page *p, const uint64_t run[3])
{
    memcpy(p->runs[p->count], run, sizeof p->runs[0]); /* plainly, since no other process sees this page yet */
    p->count++;
}

/* Puts a run into a page of its own beside what is in the slot, whose times differ from the run's in `bit` and not above. */
static void add_beside(ign_ctl *ctl, uint64_t *slot, unsigned bit, const uint64_t run[3])
{
    uint64_t made = new_page(ctl);
    if (made == 0)
        return;
    fill(page_at(ctl, made), run);
    uint64_t above = new_node(ctl, bit, ms_of(run), made, *slot);
    if (above != 0)
        ign_ctl_put(ctl, slot, above);
}

/* Splits a full page whose times differ in `bit` into two. */
static void split(ign_ctl *ctl, uint64_t *slot, unsigned bit)
{
    uint64_t old = *slot, made[2] = {new_page(ctl), new_page(ctl)};
    const page *p = page_at(ctl, old);
    if (ctl->no_room)
        return;
    for (uint64_t i = 0; i < PAGE_RUNS; i++)
        fill(page_at(ctl, made[ms_of(p->runs[i]) >> bit & 1]), p->runs[i]);
    uint64_t above = new_node(ctl, bit, ms_of(p->runs[0]) | (uint64_t)1 << bit, made[1], made[0]);
    if (above == 0)
        return;
    ign_ctl_put(ctl, slot, above);
    ign_ctl_free(ctl, old, sizeof *p);
}

/* Adds a run to pages of one time: to the last one, or, when that is full, to another page behind it. */
static void chain(ign_ctl *ctl, uint64_t first, const uint64_t run[3])
{
    page *head = page_at(ctl, first), *last = head->last == 0 ? head : page_at(ctl, head->last);
    if (last->count < PAGE_RUNS) {
        memcpy(last->runs[last->count], run, sizeof last->runs[0]); /* plainly: beyond the count nothing is read */
        ign_ctl_put(ctl, &last->count, last->count + 1);
        return;
    }
    uint64_t made = new_page(ctl);
    if (made == 0)
        return;
    fill(page_at(ctl, made), run);
    ign_ctl_put(ctl, &last->next, made);
    ign_ctl_put(ctl, &head->last, made);
}

/* Returns the bits in which the times of a full page differ. */
static uint64_t differences(const page *p)
{
    uint64_t found = 0;
    for (uint64_t i = 1; i < p->count; i++)
        found |= ms_of(p->runs[i]) ^ ms_of(p->runs[0]);
    return found;
}

void ign_due_add(ign_ctl *ctl, ign_due *due, const ign_due_run *added)
{
    uint64_t ms = added->ms < IGN_DUE_MAX ? added->ms : IGN_DUE_MAX;
    const uint64_t run[3] = {ms << SHARD_BITS | added->shard, added->first, added->last};
    uint64_t *slot = &due->root;
    if (*slot == 0) {
        uint64_t made = new_page(ctl);
        if (made == 0)
            return;
        ign_ctl_put(ctl, slot, made);
    }
    while (!ctl->no_room) {
        if (is_node(*slot)) {
            node *n = node_at(ctl, *slot);
            uint64_t above = (ms >> n->bit >> 1) ^ n->prefix;
            if (above != 0) {
                add_beside(ctl, slot, highest_bit(above) + (unsigned)n->bit + 1, run);
                break;
            }
            slot = &n->child[ms >> n->bit & 1];
            continue;
        }
        page *p = page_at(ctl, *slot);
        if (p->count < PAGE_RUNS && p->next == 0) {
            memcpy(p->runs[p->count], run, sizeof p->runs[0]); /* plainly: beyond the count nothing is read */
            ign_ctl_put(ctl, &p->count, p->count + 1);
            break;
        }
        uint64_t among = p->next != 0 ? 0 : differences(p), beside = ms ^ ms_of(p->runs[0]);
        if (among == 0 && beside == 0) {
            chain(ctl, *slot, run);
            break;
        }
        if (among == 0 || (beside != 0 && highest_bit(beside) > highest_bit(among))) {
            add_beside(ctl, slot, highest_bit(beside), run);
            break;
        }
        split(ctl, slot, highest_bit(among));
    }
    if (ms < due->next)
        ign_ctl_put(ctl, &due->next, ms);
    ign_ctl_add(ctl, &due->records, added->last - added->first + 1);
}

/* -- looking ------------------------------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    for (unsigned i = 0; i < 2; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static bool visit_page(ign_ctl *ctl, uint64_t at, uint64_t from, ign_due_visit *visit, void *arg)
{
    for (; at != 0; at = page_at(ctl, at)->next) {
        const page *p = page_at(ctl, at);
        uint64_t copy[PAGE_RUNS][3], i = 1;
        const uint64_t(*sorted)[3] = p->runs;
        while (i < p->count && by_time(p->runs[i - 1], p->runs[i]) <= 0)
            i++;
        if (i < p->count) {
            memcpy(copy, p->runs, p->count * sizeof copy[0]);
            qsort(copy, p->count, sizeof copy[0], by_time);
            sorted = (const uint64_t(*)[3])copy;
        }
        for (i = 0; i < p->count; i++) {
            ign_due_run run = run_of(sorted[i]);
            if (run.ms >= from && !visit(arg, &run))
                return false;
        }
    }
    return true;
}

static bool walk(ign_ctl *ctl, uint64_t at, uint64_t from, ign_due_visit *visit, void *arg)
{
    while (is_node(at)) {
        const node *n = node_at(ctl, at);
        if (from <= end_of_left(n) && !walk(ctl, n->child[0], from, visit, arg))
            return false;
        at = n->child[1];
    }
    return visit_page(ctl, at, from, visit, arg);
}

bool ign_due_walk(ign_ctl *ctl, const ign_due *due, uint64_t from, ign_due_visit *visit, void *arg)
{
    return due->root == 0 || walk(ctl, due->root, from, visit, arg);
}

/* -- tidying ------------------------------------------------------------------------------------------------------------- */

typedef struct tidying {
    ign_due *due;
    ign_due_lives *lives;
    void *arg;
    uint64_t from; /* pages of earlier times are left out */
    uint64_t left; /* how many runs it may still look at */
    bool edge;     /* it ends with the first page in which anything lives */
    bool over;
    uint64_t next; /* the time behind those of the last page that it looked at */
} tidying;

/* Copies the living runs of a page into another one, if any run is dead. Returns the offset of the page that has them; 0: none lives. */
static uint64_t tidy_page(ign_ctl *ctl, uint64_t at, tidying *t)
{
    const page *p = page_at(ctl, at);
    bool living[PAGE_RUNS];
    uint64_t dead = 0, kept = 0;
    for (uint64_t i = 0; i < p->count; i++) {
        ign_due_run run = run_of(p->runs[i]);
        living[i] = t->lives(ctl, t->arg, &run);
        dead += living[i] ? 0 : run.last - run.first + 1;
        kept += living[i];
        t->next = run.ms >= t->next ? run.ms + 1 : t->next;
    }
    uint64_t cost = p->count + PAGE_COSTS;
    t->left = t->left > cost ? t->left - cost : 0;
    t->over = t->left == 0 || (t->edge && kept != 0);
    if (dead == 0)
        return at;
    uint64_t made = kept == 0 ? 0 : new_page(ctl);
    if (kept != 0 && made == 0)
        return at;
    if (made != 0) {
        page *to = page_at(ctl, made);
        for (uint64_t i = 0; i < p->count; i++)
            if (living[i])
                fill(to, p->runs[i]);
    }
    ign_ctl_add(ctl, &t->due->records, (uint64_t)-(int64_t)dead);
    return made;
}

/* Tidies a page, and those of the same time behind it. */
static void tidy_pages(ign_ctl *ctl, uint64_t *slot, tidying *t)
{
    for (uint64_t before = 0, at = *slot; at != 0 && !t->over && !ctl->no_room;) {
        const page *p = page_at(ctl, at);
        uint64_t behind = p->next, last = p->last, made = tidy_page(ctl, at, t);
        if (made == at) {
            before = at;
            at = behind;
            continue;
        }
        ign_ctl_free(ctl, at, sizeof *p);
        if (made != 0) {
            page_at(ctl, made)->next = behind;
            page_at(ctl, made)->last = last;
        }
        ign_ctl_put(ctl, before == 0 ? slot : &page_at(ctl, before)->next, made != 0 ? made : behind);
        if (before == 0 && made == 0 && behind != 0)
            ign_ctl_put(ctl, &page_at(ctl, behind)->last, behind == last ? 0 : last);
        if (before != 0 && behind == 0) {
            uint64_t end = made != 0 ? made : before;
            ign_ctl_put(ctl, &page_at(ctl, *slot)->last, end == *slot ? 0 : end);
        }
        before = made != 0 ? made : before;
        at = behind;
    }
}

static void tidy_below(ign_ctl *ctl, uint64_t *slot, tidying *t)
{
    if (*slot == 0 || t->over || ctl->no_room)
        return;
    if (!is_node(*slot)) {
        tidy_pages(ctl, slot, t);
        return;
    }
    uint64_t at = *slot;
    node *n = node_at(ctl, at);
    if (t->from <= end_of_left(n))
        tidy_below(ctl, &n->child[0], t);
    tidy_below(ctl, &n->child[1], t);
    if (n->child[0] != 0 && n->child[1] != 0)
        return;
    ign_ctl_put(ctl, slot, n->child[0] != 0 ? n->child[0] : n->child[1]);
    ign_ctl_free(ctl, at - INNER, sizeof *n);
}

/* Returns the earliest time below, of a dead run or a living one. */
static uint64_t earliest_of(ign_ctl *ctl, uint64_t at)
{
    uint64_t found = IGN_DUE_NONE;
    while (is_node(at))
        at = node_at(ctl, at)->child[0];
    if (at == 0)
        return found;
    const page *p = page_at(ctl, at);
    for (uint64_t i = 0; i < p->count; i++)
        found = ms_of(p->runs[i]) < found ? ms_of(p->runs[i]) : found;
    return found;
}

void ign_due_tidy(ign_ctl *ctl, ign_due *due, uint64_t died, ign_due_lives *lives, void *arg)
{
    uint64_t most = died < TIDY_RUNS ? 4 * died + 4 * PAGE_RUNS : TIDY_RUNS;
    tidying t = {.due = due, .lives = lives, .arg = arg, .left = most < TIDY_RUNS ? most : TIDY_RUNS, .edge = true};
    tidy_below(ctl, &due->root, &t);
    if (due->records > 2 * due->living + SPARE_RECORDS && !ctl->no_room) {
        t = (tidying){.due = due, .lives = lives, .arg = arg, .from = due->walked, .left = t.left + 2 * PAGE_RUNS};
        tidy_below(ctl, &due->root, &t);
        ign_ctl_put(ctl, &due->walked, t.over ? t.next : 0);
    }
    uint64_t next = earliest_of(ctl, due->root);
    if (next != due->next)
        ign_ctl_put(ctl, &due->next, next);
}

/* Returns the room that tidying may take: for pages made anew, each of which has at least one record, and of which it looks at so many. */
uint64_t ign_due_tidy_takes(const ign_due *due)
{
    uint64_t most = TIDY_RUNS / PAGE_COSTS + 4;
    return (due->records < most ? due->records : most) * 1024;
}

static void free_below(ign_ctl *ctl, uint64_t at)
{
    while (is_node(at)) {
        node *n = node_at(ctl, at);
        uint64_t right = n->child[1];
        free_below(ctl, n->child[0]);
        ign_ctl_free(ctl, at - INNER, sizeof *n);
        at = right;
    }
    while (at != 0) {
        uint64_t next = page_at(ctl, at)->next;
        ign_ctl_free(ctl, at, sizeof(page));
        at = next;
    }
}

void ign_due_free(ign_ctl *ctl, ign_due *due)
{
    free_below(ctl, due->root);
    ign_ctl_put(ctl, &due->root, 0);
    ign_ctl_put(ctl, &due->next, IGN_DUE_NONE);
    ign_ctl_put(ctl, &due->records, 0);
}

static uint64_t copy_pages(ign_ctl *to, ign_ctl *from, uint64_t at)
{
    uint64_t first = 0, made = 0, *link = &first;
    for (; at != 0; at = page_at(from, at)->next) {
        made = ign_ctl_alloc(to, sizeof(page));
        if (made == 0)
            return 0;
        page *copy = page_at(to, made);
        memcpy(copy, page_at(from, at), sizeof *copy);
        copy->next = copy->last = 0;
        *link = made;
        link = &copy->next;
    }
    if (made != first)
        page_at(to, first)->last = made;
    return first;
}

uint64_t ign_due_copy(ign_ctl *to, ign_ctl *from, uint64_t root)
{
    if (!is_node(root))
        return copy_pages(to, from, root);
    const node *n = node_at(from, root);
    uint64_t made = ign_ctl_alloc(to, sizeof *n);
    if (made == 0)
        return 0;
    node *copy = ign_ctl_at(to, made);
    *copy = *n;
    for (unsigned i = 0; i < 2; i++)
        copy->child[i] = ign_due_copy(to, from, n->child[i]);
    return made + INNER;
}
