/* The nodes and pages of a tree of due times. Of ignis_store_due.c, which keeps it, and ignis_store_due_room.c, which reckons what it takes. */
#ifndef IGNIS_STORE_DUE_TREE_H
#define IGNIS_STORE_DUE_TREE_H

#include "ignis_store_due.h"

enum { PAGE_RUNS = 41, INNER = 1, SHARD_BITS = 16 };

/* A place in the tree is an offset, with INNER in it for a node. */
typedef struct node {
    uint64_t bit;    /* in which the times of the two children differ; 0 = the lowest */
    uint64_t prefix; /* the bits above it, the same in all times below */
    uint64_t child[2];
} node;

typedef struct page {
    uint64_t count;
    uint64_t next, last; /* pages of one time: the next one, and, in the first, the last one (0: itself) */
    uint64_t runs[PAGE_RUNS][3]; /* ms << SHARD_BITS | shard; first; last */
} page;

static inline bool is_node(uint64_t at)
{
    return (at & INNER) != 0;
}

static inline node *node_at(ign_ctl *ctl, uint64_t at)
{
    return ign_ctl_at(ctl, at - INNER);
}

static inline page *page_at(ign_ctl *ctl, uint64_t at)
{
    return ign_ctl_at(ctl, at);
}

static inline uint64_t ms_of(const uint64_t run[3])
{
    return run[0] >> SHARD_BITS;
}

static inline unsigned highest_bit(uint64_t word)
{
    return 63u - (unsigned)__builtin_clzll(word);
}

static inline uint64_t end_of_left(const node *n)
{
    return (n->prefix << 1 << n->bit) | (((uint64_t)1 << n->bit) - 1);
}

#endif
