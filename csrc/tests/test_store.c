/* The store on the real disk: every call once and in the order in which they matter, and what is left after closing it. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include <pthread.h>

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 26, .checkpoint_bytes = 1 << 16};

static ign_store *open_small(ign_store_io *io)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, &small), IGN_OK);
    return store;
}

static uint64_t load(ign_store *store, uint32_t magazine, uint16_t shard, uint32_t count, uint64_t id)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.shard = shard, .batch = batch, .bytes = batch_make(batch, count, id, 24)};
    CHECK_EQ(ign_store_load(store, magazine, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    return part.first;
}

/* Claims up to `limit`; the ids must be id, id + 1 ...; returns how many, and their pointers in a run each. */
static uint32_t claim(ign_store *store, uint32_t magazine, uint32_t limit, uint64_t id, ign_store_run *runs)
{
    static uint8_t batch[BATCH_MAX];
    ign_slice slices[64];
    uint32_t count, total = 0;
    bool expired;
    ign_store_mark mark;
    int rc = ign_store_claim(store, magazine, 0, limit, 1 << 20, "me", 1, slices, 64, &count, &expired, NULL, &mark);
    if (rc == IGN_EMPTY)
        return 0;
    CHECK_EQ(rc, IGN_OK);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
        for (uint32_t k = slices[i].from; k < slices[i].to; k++)
            CHECK_EQ(batch_read(batch, &slices[i], magazine, k), id + total++);
        runs[i] = (ign_store_run){.shard = 0, .first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
    }
    return total;
}

static void load_claim_retire(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m, again;
    ign_store_mark mark;
    ign_store_run runs[64];
    CHECK_EQ(ign_store_declare(store, "queue", 4, 0, &m, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "queue", 4, 0, &again, NULL, &mark), IGN_OK);
    CHECK_EQ(again, m);
    CHECK_EQ(ign_store_declare(store, "queue", 4, 1, &again, NULL, &mark), IGN_E_MISMATCH);
    CHECK_EQ(load(store, m, 0, 10, 100), 1);
    CHECK_EQ(load(store, m, 0, 5, 110), 11);
    CHECK_EQ(claim(store, m, 12, 100, runs), 12);
    CHECK_EQ(runs[1].last, 12);
    uint64_t retired;
    ign_store_run some = {.shard = 0, .first = 2, .last = 11};
    CHECK_EQ(ign_store_retire(store, m, &some, 1, false, &retired, NULL, &mark), IGN_OK);
    CHECK_EQ(retired, 10);
    CHECK_EQ(ign_store_retire(store, m, &some, 1, false, &retired, NULL, &mark), IGN_OK);
    CHECK_EQ(retired, 0);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK(shard.load_pointer == 15 && shard.fire_pointer == 12 && shard.load_counter == 15 && shard.fire_counter == 12);
    CHECK(shard.in_flight == 2 && shard.living == 5);
    CHECK_EQ(claim(store, m, 12, 112, runs), 3);
    CHECK_EQ(claim(store, m, 12, 0, runs), 0);
    ign_store_close(store);

    /* Opened again: the same, but for the pointers to come, which leave some out. */
    store = open_small(io);
    CHECK_EQ(ign_store_find(store, "queue", &again), IGN_OK);
    CHECK_EQ(again, m);
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK(shard.living == 5 && shard.in_flight == 5 && shard.load_counter == 15);
    uint64_t later = load(store, m, 0, 3, 200);
    CHECK(later >= 16 + IGN_STORE_JUMP && later < 16 + IGN_STORE_JUMP + IGN_STORE_JUMP_MORE);
    CHECK_EQ(claim(store, m, 12, 200, runs), 3);
    ign_slice slices[8];
    uint32_t count;
    CHECK_EQ(ign_store_peek(store, m, 0, 1, UINT64_MAX, slices, 8, &count), IGN_OK);
    CHECK_EQ(count, 3); /* 1; 12 to 15; and the last three */
    CHECK_EQ(ign_store_drop(store, m, false, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_find(store, "queue", &again), IGN_E_UNKNOWN);
    CHECK_EQ(ign_store_declare(store, "queue", 4, 0, &again, NULL, &mark), IGN_OK);
    CHECK(load(store, again, 0, 1, 7) == later + 3); /* not the dropped one's pointers */
    ign_store_close(store);
    store_dir_close(io);
}

static void transfers_and_keys(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    static uint8_t batch[BATCH_MAX];
    uint32_t a, b, bytes;
    ign_store_mark mark;
    ign_store_run runs[8];
    CHECK_EQ(ign_store_declare(store, "a", 1, 0, &a, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "b", 1, 0, &b, NULL, &mark), IGN_OK);
    load(store, a, 0, 4, 1);
    CHECK_EQ(claim(store, a, 4, 1, runs), 4);
    ign_store_part part = {.shard = 0, .batch = batch, .bytes = batch_make(batch, 2, 1, 24)};
    ign_store_run two = {.shard = 0, .first = 1, .last = 2};
    CHECK_EQ(ign_store_transfer(store, a, &two, 1, b, &part, 1, false, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_transfer(store, a, &two, 1, b, &part, 1, false, NULL, &mark), IGN_EMPTY);
    ign_store_run third = {.shard = 0, .first = 3, .last = 3};
    part.bytes = batch_make(batch, 1, 3, 24);
    CHECK_EQ(ign_store_transfer(store, a, &third, 1, a, &part, 1, true, NULL, &mark), IGN_OK);
    ign_shard shard;
    ign_store_shard(store, a, 0, &shard);
    CHECK(shard.load_counter == 4 && shard.fire_counter == 3 && shard.living == 2 && shard.in_flight == 1);
    CHECK_EQ(claim(store, a, 4, 3, runs), 1);
    CHECK_EQ(claim(store, b, 4, 1, runs), 2);

    ign_store_run all = {.shard = 0, .first = 1, .last = 100};
    CHECK_EQ(ign_store_renew(store, a, &all, 1, "me", "you", 9, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_renew(store, a, &all, 1, "nobody", NULL, 9, NULL, &mark), IGN_EMPTY);

    ign_store_change change = {.key = "lock", .key_bytes = 4, .value = "x1", .value_bytes = 2};
    CHECK_EQ(ign_store_change_keys(store, &change, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_change_keys(store, &change, 1, NULL, &mark), IGN_E_MISMATCH);
    change.expected = "x1", change.expected_bytes = 2, change.value = "y22", change.value_bytes = 3;
    CHECK_EQ(ign_store_change_keys(store, &change, 1, NULL, &mark), IGN_OK);
    ign_store_close(store);
    store = open_small(io);
    char value[8];
    CHECK_EQ(ign_store_get_key(store, "lock", 4, value, 8, &bytes), IGN_OK);
    CHECK(bytes == 3 && memcmp(value, "y22", 3) == 0);
    CHECK_EQ(ign_store_get_key(store, "none", 4, value, 8, &bytes), IGN_EMPTY);
    ign_store_close(store);
    store_dir_close(io);
}

/* Many small loads and partial retirements through many segments, with checkpoints; then all again after reopening. */
static void through_many_segments(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m;
    ign_store_mark mark;
    ign_store_run runs[64];
    CHECK_EQ(ign_store_declare(store, "m", 2, 0, &m, NULL, &mark), IGN_OK);
    uint64_t next = 1, at = 1;
    for (int round = 0; round < 300; round++) {
        uint32_t count = 1 + (uint32_t)round * 7 % 90;
        load(store, m, 0, count, next);
        next += count;
        if (round % 3 == 2) {
            uint32_t got = claim(store, m, 64, at, runs);
            at += got;
            uint64_t retired;
            CHECK_EQ(ign_store_retire(store, m, runs, 1, false, &retired, NULL, &mark), IGN_OK);
        }
        if (round % 50 == 49) {
            CHECK(ign_store_maintain(store) >= 0);
        }
        if (round % 70 == 69) {
            ign_store_close(store);
            store = open_small(io);
        }
    }
    ign_store_figures figures;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.segments > 4 && figures.damaged_bytes == 0);
    while (at < next) {
        uint32_t got = claim(store, m, 64, at, runs);
        CHECK(got > 0);
        at += got;
    }
    ign_store_close(store);
    store_dir_close(io);
}

typedef struct newest_name {
    const char *prefix;
    char name[IGN_STORE_NAME_MAX];
} newest_name;

static void look_for_newest(void *arg, const char *name)
{
    newest_name *n = arg;
    if (strncmp(name, n->prefix, strlen(n->prefix)) == 0 && strcmp(name, n->name) > 0)
        strcpy(n->name, name);
}

/* A checkpoint that was damaged is not used, an entry that was damaged is passed over and told of, and a message that was
 * damaged is not delivered. */
static void damage(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m;
    ign_store_mark mark;
    ign_store_run runs[64];
    ign_store_figures figures;
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &m, NULL, &mark), IGN_OK);
    for (uint64_t i = 0; i < 4; i++) {
        load(store, m, 0, 10, 1 + i * 10);
        CHECK_EQ(ign_store_checkpoint(store), IGN_OK);
    }
    ign_store_close(store);
    newest_name n = {.prefix = "checkpoint-"};
    io->list(io, look_for_newest, &n);
    flip(io, n.name, IGN_LOG_SECTOR + offsetof(ign_root, living_records));
    store = open_small(io);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.living_records == 40 && figures.damaged_bytes == 0);
    load(store, m, 0, 10, 41);
    load(store, m, 0, 10, 51);
    load(store, m, 0, 10, 61);
    ign_slice slices[8];
    uint32_t count;
    CHECK_EQ(ign_store_peek(store, m, 0, 41 + IGN_STORE_JUMP, UINT64_MAX, slices, 8, &count), IGN_OK);
    CHECK_EQ(count, 3);
    ign_store_close(store);
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, slices[0].generation, slices[0].number);
    flip(io, name, slices[0].file_offset + slices[0].bytes - 3); /* one flushed entry of three */
    store = open_small(io);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.living_records == 70 && figures.damaged_bytes > 0 && figures.salvaged_records == 9 && figures.damaged_records == 1);
    CHECK_EQ(claim(store, m, 49, 1, runs), 49);
    uint64_t retired;
    ign_store_run tenth = {.first = slices[0].first + 9, .last = slices[0].first + 9}; /* does not match its checksum */
    CHECK_EQ(ign_store_retire(store, m, &tenth, 1, false, &retired, NULL, &mark), IGN_OK);
    CHECK_EQ(retired, 1);
    CHECK_EQ(claim(store, m, 40, 51, runs), 20);

    static uint8_t batch[BATCH_MAX];
    CHECK_EQ(ign_store_peek(store, m, 0, 1, 10, slices, 8, &count), IGN_OK);
    ign_segment_name(name, slices[0].generation, slices[0].number);
    flip(io, name, slices[0].file_offset + slices[0].bytes - 3);
    CHECK_EQ(ign_store_fetch(store, &slices[0], batch), IGN_OK);
    for (uint32_t k = 0; k < 10; k++)
        CHECK_EQ(batch_read(batch, &slices[0], m, k), k == 9 ? 0 : k + 1);
    ign_store_close(store);
    store_dir_close(io);
}

/* Also where the byte order and the version stand: what is merely wrong is no file of another machine. */
static void damaged_checkpoint_header(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m;
    ign_store_mark mark;
    ign_store_figures figures;
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &m, NULL, &mark), IGN_OK);
    load(store, m, 0, 10, 1);
    CHECK_EQ(ign_store_checkpoint(store), IGN_OK);
    ign_store_close(store);
    newest_name n = {.prefix = "checkpoint-"};
    io->list(io, look_for_newest, &n);
    for (uint64_t at = 0; at < 60; at++) {
        flip(io, n.name, at);
        store = open_small(io);
        CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
        CHECK(figures.living_records == 10 && figures.damaged_bytes == 0);
        ign_store_close(store);
        flip(io, n.name, at);
    }
    store_dir_close(io);
}

/* The directory that was opened is another one now: nothing is confirmed any more. */
static void moved_directory(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &m, NULL, &mark), IGN_OK);
    char moved[80];
    snprintf(moved, sizeof moved, "%s.moved", store_dir_path);
    CHECK_EQ(rename(store_dir_path, moved), 0);
    uint8_t batch[256];
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 1, 1, 16)};
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_E_MOVED);
    CHECK_EQ(rename(moved, store_dir_path), 0);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(rename(store_dir_path, moved), 0);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_E_LEFT);
    CHECK_EQ(rename(moved, store_dir_path), 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* One old message here and there stays for ever; the log does not grow with what comes and goes, and they stay whole. */
static void one_old_message(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m, old, got;
    ign_store_mark mark;
    ign_store_run runs[64];
    uint64_t retired, next = 1, kept = 0;
    ign_store_figures figures;
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &m, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "old", 1, 0, &old, NULL, &mark), IGN_OK);
    for (int round = 0; round < 1500; round++) {
        load(store, m, 0, 40, next);
        if (round % 15 == 0) { /* 3 of 5 will go */
            load(store, old, 0, 5, 1000000 + kept * 5);
            ign_store_run two[2] = {{.first = kept * 5 + 1, .last = kept * 5 + 2}, {.first = kept * 5 + 4, .last = kept * 5 + 4}};
            CHECK_EQ(ign_store_retire(store, old, two, 2, false, &retired, NULL, &mark), IGN_OK);
            CHECK_EQ(retired, 3);
            kept++;
        }
        got = claim(store, m, 40, next, runs);
        CHECK_EQ(got, 40);
        next += 40;
        CHECK_EQ(ign_store_retire(store, m, runs, 1, false, &retired, NULL, &mark), IGN_OK);
        CHECK_EQ(retired, 40);
        if (round % 20 == 19)
            CHECK(ign_store_maintain(store) >= 0);
    }
    while (ign_store_maintain(store) == IGN_OK)
        ;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.end > 30ull * small.segment_bytes);
    CHECK(figures.log_bytes <= 2 * figures.living_bytes + 9 * small.segment_bytes);
    CHECK_EQ(figures.living_records, 2 * kept);
    for (int again = 0; again < 2; again++) {
        static ign_slice slices[512];
        static uint8_t batch[BATCH_MAX];
        uint32_t count, seen = 0;
        CHECK_EQ(ign_store_peek(store, old, 0, 1, UINT64_MAX, slices, 512, &count), IGN_OK);
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
            for (uint32_t k = slices[i].from; k < slices[i].to; k++, seen++)
                CHECK_EQ(batch_read(batch, &slices[i], old, k), 1000000 + slices[i].first + k - 1);
        }
        CHECK_EQ(seen, 2 * kept);
        ign_store_close(store);
        store = open_small(io);
    }
    ign_store_close(store);
    store_dir_close(io);
}

enum { THREADS = 4, ROUNDS = 300 };

typedef struct worker {
    ign_store *store;
    uint32_t magazine;
    uint64_t base, claimed;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    static _Thread_local uint8_t batch[4096];
    for (uint64_t i = 0; i < ROUNDS; i++) {
        ign_store_mark mark;
        ign_store_part part = {.shard = 0, .batch = batch, .bytes = batch_make(batch, 3, w->base + i * 3, 16)};
        CHECK_EQ(ign_store_load(w->store, w->magazine, &part, 1, NULL, &mark), IGN_OK);
        if (i % 16 == 0)
            CHECK_EQ(ign_store_flush(w->store, &mark, true), IGN_OK);
        ign_slice slices[8];
        uint32_t count;
        bool expired;
        int rc = ign_store_claim(w->store, w->magazine, 0, 3, 1 << 20, "w", 1, slices, 8, &count, &expired, NULL, &mark);
        CHECK(rc == IGN_OK || rc == IGN_EMPTY);
        for (uint32_t k = 0; k < count; k++) {
            ign_store_run run = {.first = slices[k].first + slices[k].from, .last = slices[k].first + slices[k].to - 1};
            uint64_t retired;
            CHECK_EQ(ign_store_retire(w->store, w->magazine, &run, 1, false, &retired, NULL, &mark), IGN_OK);
            w->claimed += retired;
        }
    }
    return NULL;
}

/* Threads of two stores over one directory: nothing is handed out twice, nothing is left over. */
static void threads_of_two(void)
{
    ign_store_io *io[2];
    ign_store *store[2];
    io[0] = store_dir_open();
    CHECK_EQ(ign_store_io_open(store_dir_path, &io[1]), 0);
    store[0] = open_small(io[0]);
    store[1] = open_small(io[1]);
    uint32_t m;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store[0], "m", 1, 0, &m, NULL, &mark), IGN_OK);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.store = store[i % 2], .magazine = m, .base = (uint64_t)i << 32 | 1};
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    uint64_t total = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += workers[i].claimed;
    }
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store[0], m, 0, &shard), IGN_OK);
    CHECK_EQ(total + shard.living, THREADS * ROUNDS * 3);
    CHECK_EQ(shard.in_flight, 0);
    ign_store_close(store[0]);
    ign_store_close(store[1]);
    ign_store_io_close(io[1]);
    store_dir_close(io[0]);
}

MAIN("store", {
    RUN(load_claim_retire);
    RUN(transfers_and_keys);
    RUN(through_many_segments);
    RUN(damage);
    RUN(damaged_checkpoint_header);
    RUN(moved_directory);
    RUN(one_old_message);
    RUN(threads_of_two);
})
