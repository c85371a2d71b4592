/* What adding due times may take of the state: not so much for each as the worst of them may, but what these take in this tree.
 *
 * Whatever the order in which runs are added, the nodes are those at which the times below differ and below which there are more runs than a page
 * holds. Each new one comes with a page, and with a second one where a full page is split, whose place is free for the next transaction only.
 */
#include "ignis_store_due_tree.h"

enum { PAGE_TAKES = 1024, NODE_TAKES = 32 };
_Static_assert(sizeof(page) <= PAGE_TAKES && sizeof(page) > PAGE_TAKES / 4 * 3 && sizeof(node) == NODE_TAKES, "as ign_ctl_alloc rounds them");

typedef struct tally {
    uint64_t nodes;
    uint64_t pages; /* beside those of the nodes */
} tally;

/* How many of sorted times are below a limit. */
static uint64_t below(const uint64_t *times, uint64_t count, uint64_t limit)
{
    uint64_t low = 0;
    while (low < count) {
        uint64_t middle = low + (count - low) / 2;
        if (times[middle] < limit)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* New times, and those of a page beside them, in a tree of their own. */
static void lay(tally *t, const uint64_t *times, uint64_t count, const uint64_t *had, uint64_t had_count)
{
    while (count + had_count > PAGE_RUNS && count > 0) {
        uint64_t first = times[0], last = times[count - 1];
        if (had_count > 0) {
            first = had[0] < first ? had[0] : first;
            last = had[had_count - 1] > last ? had[had_count - 1] : last;
        }
        if (first == last) {
            t->pages += (count + had_count - 1) / PAGE_RUNS;
            return;
        }
        unsigned bit = highest_bit(first ^ last);
        uint64_t left = below(times, count, last >> bit << bit), had_left = below(had, had_count, last >> bit << bit);
        t->nodes++;
        lay(t, times, left, had, had_left);
        times += left;
        count -= left;
        had += had_left;
        had_count -= had_left;
    }
}

/* Times beside a part of the tree in which `inside` is, and none of them: those that leave its path at one bit are a part of their own. */
static void beside(tally *t, uint64_t inside, const uint64_t *times, uint64_t count)
{
    while (count > 0) {
        unsigned bit = highest_bit(times[0] ^ inside);
        uint64_t many = below(times, count, ((times[0] >> bit) + 1) << bit);
        t->nodes++;
        lay(t, times, many, times, 0);
        times += many;
        count -= many;
    }
}

static void sort_few(uint64_t *times, uint64_t count)
{
    for (uint64_t i = 1; i < count; i++) {
        uint64_t one = times[i], at = i;
        for (; at > 0 && times[at - 1] > one; at--)
            times[at] = times[at - 1];
        times[at] = one;
    }
}

static void in_page(tally *t, ign_ctl *ctl, uint64_t at, const uint64_t *times, uint64_t count)
{
    const page *p = page_at(ctl, at);
    uint64_t had[PAGE_RUNS];
    if (p->next == 0) {
        for (uint64_t i = 0; i < p->count; i++)
            had[i] = ms_of(p->runs[i]);
        sort_few(had, p->count);
        lay(t, times, count, had, p->count);
        return;
    }
    uint64_t ms = ms_of(p->runs[0]), left = below(times, count, ms), right = below(times, count, ms + 1), same = right - left;
    uint64_t fits = PAGE_RUNS - page_at(ctl, p->last)->count;
    t->pages += same > fits ? (same - fits + PAGE_RUNS - 1) / PAGE_RUNS : 0;
    beside(t, ms, times, left);
    beside(t, ms, times + right, count - right);
}

static void in_tree(tally *t, ign_ctl *ctl, uint64_t at, const uint64_t *times, uint64_t count)
{
    while (count > 0 && is_node(at)) {
        const node *n = node_at(ctl, at);
        uint64_t begin = n->prefix << 1 << n->bit, middle = end_of_left(n) + 1, end = middle + (middle - begin);
        uint64_t left = below(times, count, begin), right = below(times, count, end), half = below(times, count, middle);
        beside(t, begin, times, left);
        beside(t, begin, times + right, count - right);
        in_tree(t, ctl, n->child[0], times + left, half - left);
        at = n->child[1];
        times += half;
        count = right - half;
    }
    if (count > 0)
        in_page(t, ctl, at, times, count);
}

uint64_t ign_due_takes(ign_ctl *ctl, const ign_due *due, const uint64_t *times, uint64_t count)
{
    tally t = {.pages = due->root == 0};
    if (due->root == 0)
        lay(&t, times, count, times, 0);
    else
        in_tree(&t, ctl, due->root, times, count);
    return t.nodes * (2 * PAGE_TAKES + NODE_TAKES) + t.pages * PAGE_TAKES;
}
