/* Claims over many shards in one entry, and parts of batches. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_fire.h"

static const ign_store_options small = {.segment_bytes = 1 << 18, .control_reserve = 1 << 27};

typedef struct world {
    ign_store_io *io;
    ign_store *store;
    uint32_t m;
    ign_slice slices[64];
    uint16_t expired[IGN_STORE_MAX_SHARDS];
} world;

static void begin(world *w, uint16_t shards)
{
    ign_store_mark mark;
    w->io = store_dir_open();
    CHECK_EQ(ign_store_open(&w->store, w->io, &small), IGN_OK);
    CHECK_EQ(ign_store_declare(w->store, "m", shards, 0, &w->m, NULL, &mark), IGN_OK);
}

static void end(world *w)
{
    ign_store_close(w->store);
    store_dir_close(w->io);
}

static void load(world *w, uint16_t shard, uint32_t count, uint64_t id, uint32_t size, uint64_t expires)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.shard = shard, .batch = batch, .bytes = batch_make_until(batch, count, id, size, expires)};
    CHECK_EQ(ign_store_load(w->store, w->m, &part, 1, NULL, &mark), IGN_OK);
}

static ign_store_fire asked(world *w, uint64_t limit)
{
    return (ign_store_fire){.limit = limit, .max_bytes = UINT64_MAX, .owner = "me", .ms = 100, .slices = w->slices, .room = 64,
                            .expired = w->expired};
}

static int fire(world *w, ign_store_fire *f)
{
    ign_store_mark mark;
    return ign_store_fire_over(w->store, w->m, f, NULL, &mark);
}

static uint32_t taken(const ign_store_fire *f)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < f->count; i++)
        total += f->slices[i].to - f->slices[i].from;
    return total;
}

static void over_shards(void)
{
    world w;
    begin(&w, 5);
    for (uint16_t shard = 0; shard < 5; shard++)
        load(&w, shard, 3, shard * 100u + 1, 24, 0);
    ign_store_fire f = asked(&w, 7);
    f.begin = 3;
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK_EQ(f.shards, 5);
    CHECK_EQ(f.count, 3);
    CHECK_EQ(taken(&f), 7);
    CHECK(f.more && !f.full);
    CHECK(f.slices[0].shard == 3 && f.slices[1].shard == 4 && f.slices[2].shard == 0);
    const uint16_t order[] = {1, 0};
    f = asked(&w, 100);
    f.order = order;
    f.order_count = 2;
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK_EQ(taken(&f), 5);
    CHECK(!f.more && f.slices[0].shard == 1);
    f = asked(&w, 100);
    f.room = 1;
    load(&w, 2, 1, 900, 24, 0);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(taken(&f) == 3 && f.more && f.full);
    const uint16_t outside[] = {0, 5};
    f.order = outside;
    f.order_count = 2;
    CHECK_EQ(fire(&w, &f), IGN_E_INVALID);
    f = asked(&w, 100);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK_EQ(taken(&f), 1);
    CHECK_EQ(fire(&w, &f), IGN_EMPTY);
    ign_shard copies[5];
    uint32_t count;
    CHECK_EQ(ign_store_shards(w.store, w.m, copies, 4, &count), IGN_E_TOO_LARGE);
    CHECK_EQ(ign_store_shards(w.store, w.m, copies, 5, &count), IGN_OK);
    CHECK_EQ(count, 5);
    for (unsigned i = 0; i < 5; i++)
        CHECK(copies[i].in_flight == (i == 2 ? 4u : 3u) && copies[i].fire_counter == copies[i].load_counter);
    CHECK_EQ(ign_store_shards(w.store, w.m + 1, copies, 5, &count), IGN_E_UNKNOWN);
    end(&w);
}

static void expired_heads(void)
{
    world w;
    begin(&w, 4);
    load(&w, 0, 2, 1, 24, 50);
    load(&w, 0, 2, 3, 24, 0);
    load(&w, 1, 1, 5, 24, 0);
    load(&w, 1, 1, 6, 24, 100);
    load(&w, 2, 1, 7, 24, 101);
    load(&w, 3, 1, 8, 24, 1);
    ign_store_fire f = asked(&w, 0);
    CHECK_EQ(fire(&w, &f), IGN_EMPTY);
    CHECK(f.expired_count == 2 && f.expired[0] == 0 && f.expired[1] == 3 && f.more);
    f = asked(&w, 2);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK_EQ(taken(&f), 2);
    CHECK(f.expired_count == 3 && f.expired[0] == 0 && f.expired[1] == 1 && f.expired[2] == 3 && !f.more);
    end(&w);
}

static void by_bytes(void)
{
    world w;
    begin(&w, 2);
    load(&w, 0, 10, 1, 1000, 0);
    load(&w, 0, 1, 11, 100, 0);
    load(&w, 1, 1, 12, 100, 0);
    ign_store_fire f = asked(&w, 100);
    f.max_bytes = 3000;
    CHECK_EQ(fire(&w, &f), IGN_NEED_MORE);
    CHECK(f.count == 0 && f.slices[0].first == 1 && f.slices[0].to == 10);
    f.sized_first = 2; /* of another batch, which somebody has claimed meanwhile */
    f.sized_count = 3;
    CHECK_EQ(fire(&w, &f), IGN_NEED_MORE);
    f.sized_first = 1;
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(taken(&f) == 3 && f.more);
    ign_shard copies[2];
    uint32_t count;
    CHECK_EQ(ign_store_shards(w.store, w.m, copies, 2, &count), IGN_OK);
    CHECK(copies[0].fire_pointer == 3 && copies[1].fire_pointer == 0);
    f = asked(&w, 7); /* what is left of the large one */
    CHECK_EQ(fire(&w, &f), IGN_OK);
    f = asked(&w, 100);
    f.max_bytes = 200; /* one small batch, and not the second */
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(taken(&f) == 1 && f.more);
    end(&w);
}

static void holes(void)
{
    world w;
    begin(&w, 1);
    load(&w, 0, 10, 1, 24, 0);
    ign_store_run runs[] = {{0, 1, 2}, {0, 5, 5}, {0, 10, 10}};
    uint64_t retired;
    ign_store_mark mark;
    CHECK_EQ(ign_store_retire(w.store, w.m, runs, 3, false, &retired, NULL, &mark), IGN_OK);
    ign_store_fire f = asked(&w, 3);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(f.count == 2 && f.slices[0].from == 2 && f.slices[0].to == 4 && f.slices[1].from == 5 && f.slices[1].to == 6 && f.more);
    f = asked(&w, 100);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(taken(&f) == 3 && !f.more);
    CHECK_EQ(fire(&w, &f), IGN_EMPTY);
    end(&w);
}

/* Each opening leaves 2^24 pointers out, and more. A claim does not span more than 2^30 of them. */
static void far_apart(void)
{
    world w;
    begin(&w, 2);
    load(&w, 0, 1, 1, 24, 0);
    for (unsigned i = 0; i < 66; i++) {
        ign_store_close(w.store);
        CHECK_EQ(ign_store_open(&w.store, w.io, &small), IGN_OK);
    }
    load(&w, 0, 1, 2, 24, 0);
    load(&w, 1, 1, 3, 24, 0);
    ign_store_fire f = asked(&w, 100);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(f.count == 2 && f.slices[0].shard == 0 && f.slices[0].first == 1 && f.slices[1].shard == 1 && f.more);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    CHECK(f.count == 1 && f.slices[0].first > IGN_MAX_SPAN && !f.more);
    end(&w);
}

static void parts_of_batches(void)
{
    static uint8_t whole[BATCH_MAX], part[BATCH_MAX];
    world w;
    begin(&w, 1);
    load(&w, 0, 50, 1, 1000, 0);
    ign_store_fire f = asked(&w, 100);
    CHECK_EQ(fire(&w, &f), IGN_OK);
    const ign_slice *slice = &f.slices[0];
    CHECK_EQ(ign_store_fetch(w.store, slice, whole), IGN_OK);
    CHECK_EQ(ign_store_fetch_part(w.store, slice, 100, part, 5000), IGN_OK);
    CHECK(memcmp(whole + 100, part, 5000) == 0);
    CHECK_EQ(ign_store_fetch_part(w.store, slice, slice->bytes - 10, part, 10), IGN_OK);
    CHECK_EQ(ign_store_fetch_part(w.store, slice, slice->bytes - 10, part, 11), IGN_E_INVALID);
    CHECK_EQ(ign_store_fetch_part(w.store, slice, (uint64_t)slice->bytes + 1, part, 0), IGN_E_INVALID);
    ign_slice gone = *slice;
    gone.number = 99;
    CHECK_EQ(ign_store_fetch_part(w.store, &gone, 0, part, 10), IGN_E_STALE);
    end(&w);
}

static void wrong_arguments(void)
{
    world w;
    begin(&w, 1);
    load(&w, 0, 1, 1, 24, 0);
    char longest[IGN_STORE_OWNER_BYTES + 2];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    ign_store_fire f = asked(&w, 1);
    f.owner = longest;
    CHECK_EQ(fire(&w, &f), IGN_E_INVALID);
    f.owner = "";
    CHECK_EQ(fire(&w, &f), IGN_E_INVALID);
    f = asked(&w, 1);
    f.room = 0;
    CHECK_EQ(fire(&w, &f), IGN_E_INVALID);
    f = asked(&w, 1);
    ign_store_mark mark;
    CHECK_EQ(ign_store_fire_over(w.store, w.m + 1, &f, NULL, &mark), IGN_E_UNKNOWN);
    longest[IGN_STORE_OWNER_BYTES] = 0;
    f.owner = longest;
    CHECK_EQ(fire(&w, &f), IGN_OK);
    end(&w);
}

MAIN("store_fire", {
    RUN(over_shards);
    RUN(expired_heads);
    RUN(by_bytes);
    RUN(holes);
    RUN(far_apart);
    RUN(parts_of_batches);
    RUN(wrong_arguments);
})
