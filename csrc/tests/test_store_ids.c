/* Ids that were loaded once: known for as long as they should be, small, and given back. */
#define _GNU_SOURCE
#include "store_small.h"

#include "../ignis_store_parts.h"

static void id_of(uint8_t *to, uint64_t n, bool alike)
{
    uint64_t words[2] = {alike ? 7 : n * 0x9E3779B97F4A7C15ull, n};
    memcpy(to, words, sizeof words);
}

static int load_once(ign_store *store, uint32_t m, uint64_t first, uint32_t count, uint32_t forget_hour, uint32_t now)
{
    static uint8_t batch[BATCH_MAX], ids[5000 * IGN_ID_BYTES];
    for (uint32_t i = 0; i < count; i++)
        id_of(ids + i * IGN_ID_BYTES, first + i, false);
    ign_store_mark mark;
    ign_store_part part = part_of(batch, 0, 3, first, 0);
    return ign_store_load_once(store, m, &part, 1, NULL, ids, count, forget_hour, now, NULL, &mark);
}

static uint32_t how_many_known(ign_store *store, uint32_t m, uint64_t first, uint32_t count, uint32_t now)
{
    static uint8_t ids[200000 * IGN_ID_BYTES];
    static bool known[200000];
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        id_of(ids + i * IGN_ID_BYTES, first + i, false);
    CHECK_EQ(ign_store_known_ids(store, m, now, ids, count, known), IGN_OK);
    for (uint32_t i = 0; i < count; i++)
        total += known[i];
    return total;
}

static void ids_once(void)
{
    ign_store_io *io = store_dir_open();
    ign_store_options options = small;
    options.undo_capacity = 1 << 16;
    ign_store *store = open_with(io, &options);
    uint32_t m = declare(store, "m", 1), other = declare(store, "n", 1);
    ign_store_mark mark;
    CHECK_EQ(ign_store_forget_ids(store, m, 100, 10, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(load_once(store, m, 1, 100, 10, 10), IGN_E_INVALID);
    CHECK_EQ(load_once(store, m, 1, 100, 12, 10), IGN_OK);
    CHECK_EQ(load_once(store, m, 100, 5, 14, 10), IGN_E_MISMATCH);
    CHECK_EQ(load_once(store, other, 100, 5, 14, 10), IGN_OK);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.living, 3);
    CHECK_EQ(how_many_known(store, m, 0, 200, 10), 100);
    CHECK_EQ(how_many_known(store, m, 0, 200, 11), 100);
    CHECK_EQ(how_many_known(store, m, 0, 200, 12), 0);
    CHECK_EQ(ign_store_forget_ids(store, m, 11, 1000, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(load_once(store, m, 50, 60, 14, 12), IGN_OK); /* known no more */
    ign_store_figures before, figures;
    CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
    for (uint64_t i = 0; i < 40; i++)
        CHECK_EQ(load_once(store, m, 1000 + i * 5000, 5000, 16 + (uint32_t)(i % 2), 12), IGN_OK);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.state_bytes - before.state_bytes < 200000ull * 70);
    printf("  an id takes %.1f bytes of state\n", (double)(figures.state_bytes - before.state_bytes) / 200000);
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(how_many_known(store, m, 1000, 200000, 15), 200000);
        CHECK_EQ(how_many_known(store, m, 1000, 200000, 16), 100000);
        CHECK_EQ(how_many_known(store, m, 0, 1000, 13), 60);
        CHECK_EQ(how_many_known(store, m, 201000, 1000, 13), 0);
        CHECK_EQ(ign_store_maintain(store) >= 0, 1);
        ign_store_close(store);
        store = open_with(io, &options);
    }
    unsigned rounds = 0;
    int rc;
    while ((rc = ign_store_forget_ids(store, m, 16, 1000, NULL, &mark)) == IGN_OK) {
        rounds++;
        CHECK_EQ(how_many_known(store, m, 1000, 10000, 16), 5000);
    }
    CHECK_EQ(rc, IGN_EMPTY);
    CHECK(rounds > 80 && rounds < 130);
    CHECK_EQ(how_many_known(store, m, 1000, 200000, 12), 100000); /* a clock that went back */
    CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
    for (uint64_t i = 0; i < 20; i++) /* into what was given back */
        CHECK_EQ(load_once(store, m, 300000 + i * 5000, 5000, 19, 17), IGN_OK);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.state_bytes - before.state_bytes < 2000000);
    CHECK_EQ(ign_store_drop(store, m, false, NULL, &mark), IGN_OK);
    CHECK_EQ(declare(store, "m", 1) != m, 1);
    ign_store_close(store);
    store_dir_close(io);
}

/* Ids that look alike to the table: they hang one behind the other, and memory does not run away. */
static void ids_alike(void)
{
    ign_store_io *io = store_dir_open();
    ign_ctl ctl;
    CHECK_EQ(ign_ctl_create(&ctl, io, "control", 1 << 26, 0, 1 << 16), 0);
    ign_ids ids = {0};
    uint8_t id[IGN_ID_BYTES];
    for (uint64_t n = 0; n < 20000; n++) {
        id_of(id, n % 2 == 0 ? n : 5, true);
        ign_ids_add(&ctl, &ids, 9, id);
    }
    CHECK(!ctl.no_room && ctl.root->used < 20000 * 70);
    for (uint64_t n = 0; n < 20000; n++) {
        id_of(id, n, true);
        CHECK_EQ(ign_ids_known(&ctl, &ids, 8, id), n % 2 == 0 || n == 5);
    }
    ign_ctl_close(&ctl);
    store_dir_close(io);
}

MAIN("store_ids", {
    RUN(ids_once);
    RUN(ids_alike);
})
