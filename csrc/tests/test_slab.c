/* The slab: classes, generations, every kind of wrong release, and a random walk against a model. */
#include <string.h>

#include "check.h"
#include "ignis_error.h"
#include "ignis_slab.h"

static const uint32_t SIZES[] = {64, 256, 1024};
static const uint32_t COUNTS[] = {8, 4, 2};

typedef struct pool {
    ign_slab slab;
    ign_slab_word *words;
    uint8_t *data;
} pool;

static void open_pool(pool *p)
{
    ign_slab_table table;
    CHECK_EQ(ign_slab_table_build(&table, SIZES, COUNTS, 3), IGN_OK);
    CHECK_EQ(table.slot_count, 14);
    CHECK_EQ(table.data_bytes, 8 * 64 + 4 * 256 + 2 * 1024);
    p->words = calloc(1, ign_slab_words_bytes(&table));
    p->data = calloc(1, table.data_bytes);
    CHECK_EQ(ign_slab_open(&p->slab, &table, p->words, p->data), IGN_OK);
}

static void close_pool(pool *p)
{
    ign_slab_close(&p->slab);
    free(p->words);
    free(p->data);
}

static void tables(void)
{
    ign_slab_table t;
    CHECK_EQ(ign_slab_table_build(&t, SIZES, COUNTS, 0), IGN_E_INVALID);
    CHECK_EQ(ign_slab_table_build(&t, SIZES, COUNTS, 17), IGN_E_INVALID);
    uint32_t falling[] = {256, 64}, same[] = {60, 64}, zero[] = {0, 64}, huge[] = {64, 1u << 31}, ones[] = {1, 1}, many[] = {1u << 24, 1};
    CHECK_EQ(ign_slab_table_build(&t, falling, ones, 2), IGN_E_INVALID);
    CHECK_EQ(ign_slab_table_build(&t, same, ones, 2), IGN_E_INVALID); /* both round to 64 */
    CHECK_EQ(ign_slab_table_build(&t, zero, ones, 2), IGN_E_INVALID);
    CHECK_EQ(ign_slab_table_build(&t, huge, ones, 2), IGN_E_INVALID);
    CHECK_EQ(ign_slab_table_build(&t, SIZES, many, 2), IGN_E_INVALID);
    CHECK_EQ(ign_slab_table_build(&t, SIZES, COUNTS, 3), IGN_OK);
    CHECK_EQ(ign_slab_table_check(&t), IGN_OK);
    t.classes[1].data_offset += 64;
    CHECK_EQ(ign_slab_table_check(&t), IGN_E_SIZE);
    uint64_t at;
    CHECK_EQ(ign_slab_table_build(&t, SIZES, COUNTS, 3), IGN_OK);
    CHECK_EQ(ign_slab_resolve(&t, 7, 0, 64, &at), IGN_OK);
    CHECK_EQ(at, 7 * 64);
    CHECK_EQ(ign_slab_resolve(&t, 7, 0, 65, &at), IGN_E_FOREIGN);
    CHECK_EQ(ign_slab_resolve(&t, 7, 65, 0, &at), IGN_E_FOREIGN);
    CHECK_EQ(ign_slab_resolve(&t, 7, 60, UINT32_MAX, &at), IGN_E_FOREIGN);
    CHECK_EQ(ign_slab_resolve(&t, 14, 0, 0, &at), IGN_E_FOREIGN);
    CHECK_EQ(ign_slab_resolve(&t, UINT32_MAX, 0, 0, &at), IGN_E_FOREIGN);
}

static void fit_and_exhaustion(void)
{
    pool p;
    open_pool(&p);
    ign_slab_ref ref, refs[2];
    CHECK_EQ(ign_slab_allocate(&p.slab, 1025, &ref), IGN_E_NO_CLASS);
    CHECK_EQ(ign_slab_allocate(&p.slab, 257, &refs[0]), IGN_OK);
    CHECK_EQ(ign_slab_allocate(&p.slab, 1024, &refs[1]), IGN_OK);
    CHECK_EQ(ign_slab_allocate(&p.slab, 1000, &ref), IGN_E_EXHAUSTED);
    CHECK_EQ(p.slab.stats.refused, 1);
    CHECK_EQ(ign_slab_active(&p.slab), 2);
    CHECK_EQ(p.slab.stats.active_bytes, 2048);
    CHECK_EQ(ign_slab_allocate(&p.slab, 0, &ref), IGN_OK);
    CHECK_EQ(ref.slot, 0);
    CHECK_EQ(ign_slab_release(&p.slab, refs[1].slot, refs[1].generation), IGN_OK);
    CHECK_EQ(ign_slab_allocate(&p.slab, 1000, &ref), IGN_OK);
    CHECK_EQ(ref.slot, refs[1].slot);
    CHECK(ref.generation == refs[1].generation + 2);
    close_pool(&p);
}

static void wrong_releases(void)
{
    pool p;
    open_pool(&p);
    ign_slab_ref a, b;
    uint8_t *bytes;
    CHECK_EQ(ign_slab_allocate(&p.slab, 64, &a), IGN_OK);
    CHECK_EQ(ign_slab_bytes(&p.slab, &a, &bytes), IGN_OK);
    CHECK_EQ(ign_slab_release(&p.slab, a.slot, a.generation), IGN_OK);
    CHECK_EQ(ign_slab_release(&p.slab, a.slot, a.generation), IGN_E_DOUBLE_RELEASE);
    CHECK_EQ(ign_slab_bytes(&p.slab, &a, &bytes), IGN_E_STALE);
    CHECK_EQ(ign_slab_allocate(&p.slab, 64, &b), IGN_OK);
    CHECK_EQ(b.slot, a.slot);
    CHECK_EQ(ign_slab_release(&p.slab, a.slot, a.generation), IGN_E_STALE);
    CHECK_EQ(ign_slab_release(&p.slab, b.slot, b.generation + 1), IGN_E_STALE);
    CHECK_EQ(ign_slab_release(&p.slab, 14, 1), IGN_E_FOREIGN);
    CHECK_EQ(ign_slab_release(&p.slab, 5, 0), IGN_E_STALE); /* never allocated */
    CHECK_EQ(ign_slab_release(&p.slab, b.slot, b.generation), IGN_OK);
    /* A peer that scribbles over the words cannot make the free list overflow. */
    p.words[b.slot].generation |= 1u;
    CHECK_EQ(ign_slab_release(&p.slab, b.slot, p.words[b.slot].generation), IGN_E_CORRUPT);
    close_pool(&p);
    CHECK_EQ(ign_slab_allocate(&p.slab, 1, &a), IGN_E_NO_CLASS); /* closed */
}

static void generation_wraps(void)
{
    pool p;
    open_pool(&p);
    ign_slab_ref a;
    for (int i = 0; i < 8; i++)
        p.words[i].generation = UINT32_MAX - 1;
    CHECK_EQ(ign_slab_allocate(&p.slab, 1, &a), IGN_OK);
    CHECK_EQ(a.generation, UINT32_MAX);
    CHECK_EQ(ign_slab_release(&p.slab, a.slot, a.generation), IGN_OK);
    CHECK_EQ(p.words[a.slot].generation, 0);
    CHECK_EQ(ign_slab_release(&p.slab, a.slot, a.generation), IGN_E_DOUBLE_RELEASE);
    close_pool(&p);
}

static void reopening_keeps_what_is_allocated(void)
{
    pool p;
    open_pool(&p);
    ign_slab_ref refs[8], extra;
    for (int i = 0; i < 5; i++)
        CHECK_EQ(ign_slab_allocate(&p.slab, 64, &refs[i]), IGN_OK);
    ign_slab_table table = p.slab.table;
    ign_slab_close(&p.slab);
    CHECK_EQ(ign_slab_open(&p.slab, &table, p.words, p.data), IGN_OK);
    CHECK_EQ(ign_slab_active(&p.slab), 5);
    for (int i = 5; i < 8; i++)
        CHECK_EQ(ign_slab_allocate(&p.slab, 64, &refs[i]), IGN_OK);
    CHECK_EQ(ign_slab_allocate(&p.slab, 64, &extra), IGN_E_EXHAUSTED);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(ign_slab_release(&p.slab, refs[i].slot, refs[i].generation), IGN_OK);
    CHECK_EQ(ign_slab_active(&p.slab), 0);
    close_pool(&p);
}

/* Every live buffer holds its own pattern: two that overlap would spoil one another. */
static void random_walk(void)
{
    pool p;
    open_pool(&p);
    ign_slab_ref live[14];
    uint8_t marks[14];
    uint32_t n = 0, seed = 12345;
    for (int step = 0; step < 200000; step++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t r = seed >> 8;
        uint8_t *bytes;
        if (r % 2 == 0 && n < 14) {
            uint32_t size = 1 + r / 2 % 1024;
            int rc = ign_slab_allocate(&p.slab, size, &live[n]);
            CHECK(rc == IGN_OK || rc == IGN_E_EXHAUSTED);
            if (rc == IGN_OK) {
                CHECK_EQ(ign_slab_bytes(&p.slab, &live[n], &bytes), IGN_OK);
                marks[n] = (uint8_t)r;
                memset(bytes, marks[n], size);
                n++;
            }
        } else if (n > 0) {
            uint32_t i = r / 2 % n;
            CHECK_EQ(ign_slab_bytes(&p.slab, &live[i], &bytes), IGN_OK);
            for (uint32_t b = 0; b < live[i].length; b++)
                CHECK(bytes[b] == marks[i]);
            CHECK_EQ(ign_slab_release(&p.slab, live[i].slot, live[i].generation), IGN_OK);
            live[i] = live[--n];
            marks[i] = marks[n];
        }
        CHECK_EQ(ign_slab_active(&p.slab), n);
        CHECK_EQ(p.slab.stats.allocated - p.slab.stats.released, n);
    }
    close_pool(&p);
}

MAIN("slab", {
    RUN(tables);
    RUN(fit_and_exhaustion);
    RUN(wrong_releases);
    RUN(generation_wraps);
    RUN(reopening_keeps_what_is_allocated);
    RUN(random_walk);
})
