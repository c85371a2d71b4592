/* What a call may be asked to do besides: at once, behind a fence, with a claim, once for an id; and the listings. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_parts.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

static ign_store_io *store_dir_io;

typedef struct named_with {
    const char *prefix;
    unsigned count;
} named_with;

static void count_name(void *arg, const char *name)
{
    named_with *n = arg;
    n->count += strncmp(name, n->prefix, strlen(n->prefix)) == 0;
}

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 27, .checkpoint_bytes = 1 << 16};
static const ign_store_how at_once = {.at_once = true};

static ign_store *open_with(ign_store_io *io, const ign_store_options *options)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, options), IGN_OK);
    return store;
}

static uint32_t declare(ign_store *store, const char *name, uint16_t shards)
{
    uint32_t number;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, name, shards, 0, &number, NULL, &mark), IGN_OK);
    return number;
}

static ign_store_part part_of(uint8_t *batch, uint16_t shard, uint32_t count, uint64_t id, uint64_t expires_at_ms)
{
    ign_store_part part = {.shard = shard, .batch = batch, .bytes = batch_make_until(batch, count, id, 24, expires_at_ms)};
    return part;
}

static int load_how(ign_store *store, uint32_t m, uint16_t shard, uint32_t count, uint64_t id, uint64_t expires, const ign_store_how *how)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = part_of(batch, shard, count, id, expires);
    return ign_store_load(store, m, &part, 1, how, &mark);
}

/* How many were claimed at that time; *expired as told. */
static uint32_t claim_at(ign_store *store, uint32_t m, uint16_t shard, uint64_t ms, const char *owner, bool *expired)
{
    ign_slice slices[64];
    uint32_t count, total = 0;
    ign_store_mark mark;
    int rc = ign_store_claim(store, m, shard, 1000, 1 << 20, owner, ms, slices, 64, &count, expired, NULL, &mark);
    CHECK(rc == IGN_OK || rc == IGN_EMPTY);
    for (uint32_t i = 0; i < count; i++)
        total += slices[i].to - slices[i].from;
    return total;
}

static void never_waits(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    ign_generation *g;
    CHECK_EQ(ign_store_look(other, &g), IGN_OK); /* holds the lock */
    uint64_t began = io->now_ns(io);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &at_once), IGN_E_BUSY);
    CHECK(io->now_ns(io) - began < 500000000);
    ign_store_look_end(other, g);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &at_once), IGN_OK);
    /* A segment that is full is for somebody who has the time. */
    unsigned busy = 0, loaded = 1;
    for (uint64_t i = 0; i < 200; i++)
        if (load_how(store, m, 0, 40, 10 + i * 40, 0, &at_once) == IGN_OK)
            loaded++;
        else {
            busy++;
            CHECK_EQ(load_how(store, m, 0, 40, 10 + i * 40, 0, NULL), IGN_OK);
        }
    CHECK(busy > 0 && loaded > 100);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.living, 3 + 200 * 40);
    /* A generation that has ended as well. */
    CHECK_EQ(ign_store_enter(store, &g), IGN_OK);
    ign_store_seal(store, g);
    ign_store_leave(store, g);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &at_once), IGN_E_BUSY);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, NULL), IGN_OK);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &at_once), IGN_OK);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

/* One who waits for many: rung once for each that was announced, by loads, by others and when the generation ends. */
static void the_bell(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1), n = declare(store, "n", 1);
    uint32_t bell = ign_store_listen(store, 0, 0), seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(load_how(other, m, 0, 3, 1, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 0), bell); /* nobody had announced it */
    CHECK_EQ(ign_store_announce(store, m, seen), seen + 1);
    CHECK_EQ(load_how(other, n, 0, 3, 11, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 1000000), bell);
    CHECK_EQ(load_how(other, m, 0, 3, 21, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 60000000000u), bell + 1);
    CHECK_EQ(load_how(other, m, 0, 3, 31, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell + 1, 0), bell + 1); /* announced once, rung once */
    CHECK_EQ(ign_store_announce(store, m, 0), seen + 3);
    /* Who sleeps on the magazine itself and who listens do not take each other's call. */
    CHECK_EQ(ign_store_wait(store, m, seen + 3, 1000000), seen + 3);
    ign_store_wake(other, m);
    CHECK_EQ(ign_store_listen(store, bell + 1, 60000000000u), bell + 2);
    ign_store_ring(other);
    CHECK_EQ(ign_store_listen(store, bell + 2, 60000000000u), bell + 3);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    CHECK_EQ(ign_store_announce(store, m, seen + 9), seen + 9); /* cannot be told: it is looked at */
    CHECK(ign_store_listen(store, bell + 3, 60000000000u) != bell + 3);
    bell = ign_store_listen(store, 0, 0); /* of the next one, to which it has followed */
    seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(ign_store_announce(store, m, seen + 9), seen);
    CHECK_EQ(load_how(other, m, 0, 3, 41, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 60000000000u), bell + 1);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

typedef struct sleeper {
    ign_store *store;
    uint32_t magazine, seen, found;
} sleeper;

static void *sleeps(void *arg)
{
    sleeper *s = arg;
    s->found = ign_store_await(s->store, s->magazine, s->seen, 60000000000u, 0);
    return NULL;
}

static uint32_t waiting_word(ign_store *store, uint32_t m)
{
    ign_generation *g;
    CHECK_EQ(ign_store_enter(store, &g), IGN_OK);
    uint32_t word = atomic_load(&g->ctl.head->wake_waiting[m % IGN_STORE_WAKES]);
    ign_store_leave(store, g);
    return word;
}

/* Whoever sleeps and is told of a load sleeps again when none comes, and is woken by the one that does come: no call is lost to a
 * warning, whether it is awake by then or not. */
static void the_warning(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    for (uint32_t i = 0; i < 200; i++) {
        pthread_t thread;
        sleeper s = {.store = store, .magazine = m, .seen = ign_store_wait(store, m, 0, 0)};
        uint32_t told = waiting_word(store, m) & ~(IGN_STORE_SLEEPS | IGN_STORE_LISTENS);
        pthread_create(&thread, NULL, sleeps, &s);
        while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
            sched_yield();
        ign_store_forewarn(other, m);
        CHECK((waiting_word(store, m) & ~(IGN_STORE_SLEEPS | IGN_STORE_LISTENS)) != told); /* nobody announces itself for ever */
        if (i % 2 == 0) /* it has given up and sleeps again */
            while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
                sched_yield();
        CHECK_EQ(load_how(other, m, 0, 1, 100 + i, 0, NULL), IGN_OK);
        pthread_join(thread, NULL);
        CHECK_EQ(s.found, s.seen + 1);
    }
    /* A generation that ends is told to who was warned as well. */
    sleeper s = {.store = store, .magazine = m, .seen = ign_store_wait(store, m, 0, 0)};
    pthread_t thread;
    pthread_create(&thread, NULL, sleeps, &s);
    while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
        sched_yield();
    ign_store_forewarn(other, m);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    pthread_join(thread, NULL);
    CHECK(s.found != s.seen);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

static bool is_told(ign_watch *watch)
{
    struct pollfd p = {.fd = ign_watch_descriptor(watch), .events = POLLIN};
    do
        CHECK_EQ(poll(&p, 1, 60000), 1);
    while (!ign_watch_take(watch));
    return true;
}

/* The descriptor of an event loop: told as a sleeper is, by a warning, a load, a call and the end of a generation. */
static void the_watch(void)
{
    ign_watch watch;
    if (ign_watch_open(&watch) != IGN_OK)
        return; /* not on this kernel */
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    int rc;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t seen = ign_store_wait(store, m, 0, 0);
        CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen);
        CHECK_EQ(rc, IGN_OK);
        if (i % 2 == 0) {
            ign_store_forewarn(other, m);
            CHECK(is_told(&watch));
            CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen); /* armed again */
            CHECK_EQ(rc, IGN_OK);
        }
        CHECK_EQ(load_how(other, m, 0, 1, 100 + i, 0, NULL), IGN_OK);
        CHECK(is_told(&watch));
        CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen + 1);
    }
    uint32_t seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen);
    ign_store_wake(other, m);
    CHECK(is_told(&watch));
    CHECK_EQ(ign_store_watch(store, m, seen + 1, &watch, &rc), seen + 1);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    CHECK(is_told(&watch));
    CHECK(ign_store_watch(store, m, seen + 1, &watch, &rc) != seen + 1 || rc == IGN_OK);
    ign_watch_close(&watch);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

static void set_key(ign_store *store, const char *key, const char *value)
{
    ign_store_mark mark;
    ign_store_change change = {.key = key, .key_bytes = (uint32_t)strlen(key), .expected_bytes = UINT32_MAX, .value = value,
                               .value_bytes = (uint32_t)strlen(value)};
    CHECK_EQ(ign_store_change_keys(store, &change, 1, NULL, &mark), IGN_OK);
}

static void fences(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1), count, number;
    ign_store_change seven = {.key = "epoch", .key_bytes = 5, .expected = "7", .expected_bytes = 1};
    ign_store_how behind = {.fence = &seven};
    ign_store_mark mark;
    ign_slice slice;
    bool expired;
    uint64_t retired;
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &behind), IGN_E_MISMATCH);
    set_key(store, "epoch", "7");
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, &behind), IGN_OK);
    set_key(store, "epoch", "8");
    uint8_t batch[256];
    ign_store_part part = part_of(batch, 0, 1, 9, 0);
    ign_store_run run = {.first = 1, .last = 1};
    ign_store_change other = {.key = "k", .key_bytes = 1, .value = "v", .value_bytes = 1};
    CHECK_EQ(ign_store_claim(store, m, 0, 9, 99, "me", 1, &slice, 1, &count, &expired, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_transfer(store, m, &run, 1, m, &part, 1, true, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_change_keys(store, &other, 1, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_drop(store, m, false, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_declare(store, "n", 1, 0, &number, &behind, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_load_claimed(store, m, &part, 1, "me", 1, &behind, &mark), IGN_E_MISMATCH);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK(shard.living == 3 && shard.in_flight == 0 && shard.load_pointer == 3);
    seven.expected = "8";
    CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, &behind, &mark), IGN_OK);
    CHECK_EQ(retired, 1);
    ign_store_close(store);
    store_dir_close(io);
}

static void expiry(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1);
    ign_store_mark mark;
    bool expired;
    uint64_t gone;
    CHECK_EQ(load_how(store, m, 0, 5, 1, 0, NULL), IGN_OK);
    CHECK_EQ(load_how(store, m, 0, 70, 10, 1000, NULL), IGN_OK);
    CHECK_EQ(load_how(store, m, 0, 5, 100, 2000, NULL), IGN_OK);
    CHECK_EQ(load_how(store, m, 0, 5, 200, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_expire(store, m, 0, 5000, 100, &gone, NULL, &mark), IGN_EMPTY); /* behind some that stay */
    CHECK_EQ(gone, 0);
    CHECK_EQ(claim_at(store, m, 0, 1000, "me", &expired), 5);
    CHECK(expired);
    CHECK_EQ(claim_at(store, m, 0, 1000, "me", &expired), 0);
    CHECK(expired);
    ign_store_run some = {.first = 8, .last = 10};
    CHECK_EQ(ign_store_retire(store, m, &some, 1, false, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_expire(store, m, 0, 999, 100, &gone, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(ign_store_expire(store, m, 0, 1000, 20, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 20);
    CHECK_EQ(ign_store_expire(store, m, 0, 1000, 1000, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 47); /* three were retired */
    CHECK_EQ(claim_at(store, m, 0, 1999, "me", &expired), 10);
    CHECK(!expired);
    for (int again = 0; again < 2; again++) {
        ign_shard shard;
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK(shard.expired == 67 && shard.living == 15 && shard.in_flight == 15);
        CHECK(shard.load_counter == 85 && shard.fire_counter == 85);
        ign_store_close(store);
        store = open_with(io, &small);
    }
    ign_store_close(store);
    store_dir_close(io);
}

static void only_what_waits(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 2);
    ign_store_mark mark;
    bool expired;
    uint64_t gone;
    CHECK_EQ(load_how(store, m, 0, 5, 1, 0, NULL), IGN_OK);
    CHECK_EQ(load_how(store, m, 1, 5, 21, 0, NULL), IGN_OK);
    CHECK_EQ(claim_at(store, m, 0, 1, "me", &expired), 5);
    CHECK_EQ(load_how(store, m, 0, 5, 11, 0, NULL), IGN_OK);
    ign_store_run runs[3] = {{.first = 1, .last = 3}, {.first = 4, .last = 7}, {.shard = 1, .first = 1, .last = 2}};
    CHECK_EQ(ign_store_retire(store, m, runs, 3, true, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 4);
    CHECK_EQ(ign_store_retire(store, m, runs, 1, true, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 0);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK(shard.living == 8 && shard.in_flight == 5);
    CHECK_EQ(ign_store_drop(store, m, true, NULL, &mark), IGN_EMPTY);
    uint32_t number;
    CHECK_EQ(ign_store_find(store, "m", &number), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &number, NULL, &mark), IGN_E_MISMATCH); /* three in the second */
    ign_store_run all[2] = {{.first = 1, .last = 100}, {.shard = 1, .first = 1, .last = 100}};
    CHECK_EQ(ign_store_retire(store, m, all + 1, 1, false, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &number, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 2, 0, &number, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_shard(store, m, 1, &shard), IGN_OK);
    CHECK_EQ(shard.load_pointer, 5); /* goes on behind what was given out */
    CHECK_EQ(ign_store_retire(store, m, all, 2, false, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 8);
    CHECK_EQ(ign_store_drop(store, m, true, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_find(store, "m", &number), IGN_E_UNKNOWN);
    ign_store_close(store);
    store_dir_close(io);
}

static void loaded_and_claimed(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 2);
    ign_store_mark mark;
    static uint8_t batch[2][BATCH_MAX];
    bool expired;
    uint64_t gone;
    ign_store_part parts[2] = {part_of(batch[0], 0, 4, 1, 0), part_of(batch[1], 1, 2, 11, 0)};
    CHECK_EQ(ign_store_load_claimed(store, m, parts, 2, "job", 5, NULL, &mark), IGN_OK);
    CHECK_EQ(claim_at(store, m, 0, 1, "me", &expired), 0);
    CHECK_EQ(load_how(store, m, 1, 3, 21, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_load_claimed(store, m, parts, 2, "job", 5, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(ign_store_load_claimed(store, m, parts, 1, "job", 6, NULL, &mark), IGN_OK);
    CHECK_EQ(parts[0].first, 5);
    CHECK_EQ(claim_at(store, m, 1, 1, "me", &expired), 3);
    /* What is claimed and lives at the head is nothing older that is pending. */
    CHECK_EQ(load_how(store, m, 1, 3, 31, 0, NULL), IGN_OK);
    ign_store_run pending = {.shard = 1, .first = 6, .last = 8};
    CHECK_EQ(ign_store_retire(store, m, &pending, 1, true, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(gone, 3);
    CHECK_EQ(ign_store_load_claimed(store, m, parts + 1, 1, "job", 7, NULL, &mark), IGN_OK);
    ign_store_close(store);
    store = open_with(io, &small);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK(shard.living == 8 && shard.in_flight == 8 && shard.load_counter == 8 && shard.fire_counter == 8);
    ign_store_claimed claims[4];
    uint32_t count;
    CHECK_EQ(ign_store_claims(store, m, 0, 0, claims, 4, &count), IGN_OK);
    CHECK_EQ(count, 2);
    CHECK(claims[1].first == 5 && claims[1].last == 8 && claims[1].living == 4 && claims[1].ms == 6 && strcmp(claims[1].owner, "job") == 0);
    CHECK_EQ(ign_store_claims(store, m, 0, 5, claims, 4, &count), IGN_OK);
    CHECK_EQ(count, 1);
    ign_store_close(store);
    store_dir_close(io);
}

static void limit_of_bytes(void)
{
    ign_store_io *io = store_dir_open();
    ign_store_options options = small;
    options.max_bytes = 4000;
    ign_store *store = open_with(io, &options);
    uint32_t m = declare(store, "m", 1), loaded = 0;
    ign_store_mark mark;
    bool expired;
    uint64_t gone;
    int rc;
    while ((rc = load_how(store, m, 0, 10, 1, 0, NULL)) == IGN_OK)
        loaded += 10;
    CHECK_EQ(rc, IGN_E_NO_ROOM);
    CHECK_EQ(errno, ENOBUFS);
    CHECK(loaded >= 90 && loaded <= 130);
    uint8_t batch[1024];
    ign_store_part part = part_of(batch, 0, 10, 1, 0);
    CHECK_EQ(ign_store_load_claimed(store, m, &part, 1, "me", 1, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(claim_at(store, m, 0, 1, "me", &expired), loaded);
    CHECK_EQ(ign_store_load_claimed(store, m, &part, 1, "me", 1, NULL, &mark), IGN_E_NO_ROOM);
    ign_store_run ten = {.first = 1, .last = 10};
    CHECK_EQ(ign_store_transfer(store, m, &ten, 1, m, &part, 1, true, NULL, &mark), IGN_OK); /* does not grow */
    ten = (ign_store_run){.first = 11, .last = 20};
    CHECK_EQ(ign_store_retire(store, m, &ten, 1, false, &gone, NULL, &mark), IGN_OK);
    CHECK_EQ(load_how(store, m, 0, 10, 1, 0, NULL), IGN_OK);
    ign_store_close(store);
    store_dir_close(io);
}

enum { KEYS = 900 };

static unsigned list_keys(ign_store *store, const char *prefix, unsigned *times, uint32_t room, void (*between)(ign_store *store))
{
    static uint8_t bytes[1 << 16];
    ign_store_place place = {0};
    uint64_t got;
    unsigned total = 0;
    int rc;
    while ((rc = ign_store_next_keys(store, prefix, (uint32_t)strlen(prefix), &place, bytes, room, &got)) == IGN_OK) {
        for (uint64_t at = 0; at < got; total++) {
            uint32_t sizes[2];
            char key[32] = {0}, value[32] = {0};
            memcpy(sizes, bytes + at, sizeof sizes);
            memcpy(key, bytes + at + 8, sizes[0]);
            memcpy(value, bytes + at + 8 + sizes[0], sizes[1]);
            CHECK(strncmp(key, prefix, strlen(prefix)) == 0 && strcmp(key + strlen(prefix), value) == 0);
            times[atoi(value)]++;
            at += 8 + sizes[0] + sizes[1];
        }
        if (between != NULL)
            between(store);
    }
    CHECK_EQ(rc, IGN_EMPTY);
    return total;
}

static void add_other_keys(ign_store *store)
{
    static unsigned next;
    char key[32];
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "other%u", next++);
        set_key(store, key, key + 5);
    }
}

static void listings(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    static unsigned times[KEYS];
    char key[32];
    static uint8_t bytes[1 << 16];
    ign_store_place place = {0};
    uint64_t got;
    CHECK_EQ(ign_store_next_keys(store, "", 0, &place, bytes, sizeof bytes, &got), IGN_EMPTY);
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "key%d", i);
        set_key(store, key, key + 3);
    }
    CHECK_EQ(list_keys(store, "key", times, 700, NULL), KEYS);
    CHECK_EQ(list_keys(store, "nothing", times, 700, NULL), 0);
    /* The table grows while it is listed: all are seen, once. */
    CHECK_EQ(list_keys(store, "key", times, 700, add_other_keys), KEYS);
    for (int i = 0; i < KEYS; i++)
        CHECK_EQ(times[i], 2);
    place = (ign_store_place){0};
    CHECK_EQ(ign_store_next_keys(store, "key", 3, &place, bytes, 4, &got), IGN_E_TOO_LARGE);
    CHECK(got >= 12);
    CHECK_EQ(ign_store_next_keys(store, "key", 3, &place, bytes, got, &got), IGN_OK);

    uint32_t a = declare(store, "a", 1), b = declare(store, "bee", 3);
    ign_store_magazine found;
    CHECK_EQ(ign_store_next_magazine(store, 0, &found), IGN_OK);
    CHECK(found.number == a && strcmp(found.name, "a") == 0 && found.shards == 1 && found.name_bytes == 1);
    CHECK_EQ(ign_store_next_magazine(store, a, &found), IGN_OK);
    CHECK(found.number == b && strcmp(found.name, "bee") == 0 && found.shards == 3);
    CHECK_EQ(ign_store_next_magazine(store, b, &found), IGN_EMPTY);

    bool expired;
    for (uint16_t s = 0; s < 3; s++) {
        CHECK_EQ(load_how(store, b, s, 3, 1, 0, NULL), IGN_OK);
        CHECK_EQ(claim_at(store, b, s, 1, s == 1 ? "one" : "two", &expired), 3);
    }
    CHECK_EQ(load_how(store, a, 0, 3, 1, 0, NULL), IGN_OK);
    CHECK_EQ(claim_at(store, a, 0, 1, "three", &expired), 3);
    unsigned seen[3] = {0};
    for (uint32_t m = 0; m <= b; m += b) {
        place = (ign_store_place){0};
        int rc;
        while ((rc = ign_store_next_owners(store, m, &place, bytes, 16, &got)) == IGN_OK)
            for (uint64_t at = 0; at < got;) {
                uint32_t sizes[2];
                memcpy(sizes, bytes + at, sizeof sizes);
                CHECK_EQ(sizes[1], 0);
                seen[sizes[0] == 5 ? 2 : bytes[at + 8] == 't']++;
                at += 8 + sizes[0];
            }
        CHECK_EQ(rc, IGN_EMPTY);
        CHECK(seen[0] == 1 + (m != 0) && seen[1] >= 1u + (m != 0) && seen[2] == 1);
    }
    ign_store_close(store);
    store_dir_close(io);
}

/* -- ids ----------------------------------------------------------------------------------------------------------------- */

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

/* -- a disk that is full ------------------------------------------------------------------------------------------------- */

static int (*real_allocate)(ign_store_io *io, int file, uint64_t bytes);
static uint64_t disk_bytes;

static void add_size(void *arg, const char *name)
{
    ign_store_io *io = store_dir_io;
    uint64_t size, *total = arg;
    int file;
    if (io->open(io, name, false, &file) != 0)
        return;
    if (io->size(io, file, &size) == 0)
        *total += size;
    io->close(io, file);
}

static int allocate_on_small_disk(ign_store_io *io, int file, uint64_t bytes)
{
    uint64_t total = 0, had = 0;
    io->list(io, add_size, &total);
    io->size(io, file, &had);
    return bytes > had && total + bytes - had > disk_bytes ? ENOSPC : real_allocate(io, file, bytes);
}

/* One thread: ThreadSanitizer, under which a round takes as long as a hundred of this, has no use for all of them. */
#ifdef IGN_TEST_TSAN
enum { FULL_ROUNDS = 1 };
#else
enum { FULL_ROUNDS = 5 };
#endif

/* A disk that is full refuses loads, and neither claims nor retirements; and when they have made room, loads go on. */
static void full_disk(void)
{
    ign_store_io *io = store_dir_io = store_dir_open();
    ign_store_options options = small;
    options.arena_bytes = 1 << 15;
    options.segment_bytes = options.checkpoint_bytes = 1 << 20;
    real_allocate = io->allocate;
    io->allocate = allocate_on_small_disk;
    disk_bytes = 20 * options.segment_bytes;
    ign_store *store = open_with(io, &options);
    uint32_t m = declare(store, "m", 1), count, total = 0, taken = 0;
    for (int round = 0; round < FULL_ROUNDS; round++) {
        int rc;
        uint64_t id = 1;
        while ((rc = load_how(store, m, 0, 40, id, 0, NULL)) == IGN_OK) {
            id += 40;
            total += 40;
            if (id % 37 == 0) {
                rc = ign_store_maintain(store);
                CHECK(rc >= 0 || rc == IGN_E_NO_ROOM);
            }
        }
        CHECK_EQ(rc, IGN_E_NO_ROOM);
        CHECK(errno == ENOSPC);
        CHECK(id > 80000);
        if (round % 2 == 0) { /* and somebody else takes what was left */
            disk_bytes = 0;
            io->list(io, add_size, &disk_bytes);
        }
        if (round == 2) { /* the same after everybody was gone */
            ign_store_close(store);
            store = open_with(io, &options);
        }
        for (unsigned n = 1;; n++) {
            ign_slice slice;
            ign_store_mark mark;
            bool expired;
            uint64_t retired;
            if (n % 100 == 0) { /* as a thread of each process does */
                rc = ign_store_maintain(store);
                CHECK(rc >= 0 || rc == IGN_E_NO_ROOM);
            }
            rc = ign_store_claim(store, m, 0, 20, 1 << 20, "me", 1, &slice, 1, &count, &expired, NULL, &mark);
            if (rc == IGN_EMPTY)
                break;
            CHECK_EQ(rc, IGN_OK);
            ign_store_run run = {.first = slice.first + slice.from, .last = slice.first + slice.to - 1};
            CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
            if (n % 200 == 0)
                CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
            taken += (uint32_t)retired;
        }
        CHECK_EQ(taken, total);
        disk_bytes = 20 * options.segment_bytes;
        while ((rc = ign_store_maintain(store)) == IGN_OK)
            ;
        CHECK_EQ(rc, IGN_EMPTY);
    }
    ign_store_close(store);
    io->allocate = real_allocate;
    store_dir_close(io);
}

static unsigned names_with(ign_store_io *io, const char *prefix)
{
    named_with n = {.prefix = prefix};
    io->list(io, count_name, &n);
    return n.count;
}

/* A segment that was laid out and never written is gone with the next opening; one that has lost its header is told. */
static void strays(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1);
    for (uint64_t i = 0; i < 40; i++)
        CHECK_EQ(load_how(store, m, 0, 40, i * 40, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_maintain(store) >= 0, 1);
    ign_store_figures figures;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(names_with(io, "log-"), figures.segments);
    CHECK_EQ(names_with(io, "tmp-ahead-"), 2); /* the next one, and what is kept */
    ign_store_close(store);
    uint8_t zeros[IGN_LOG_SECTOR] = {0};
    int file;
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, 1, 98); /* begun, and then nothing */
    CHECK_EQ(io->open(io, name, true, &file), 0);
    CHECK_EQ(io->allocate(io, file, 65536), 0);
    io->close(io, file);
    ign_segment_name(name, 1, 99); /* with something in it */
    CHECK_EQ(io->open(io, name, true, &file), 0);
    CHECK_EQ(io->write(io, file, zeros, sizeof zeros, 0), 0);
    CHECK_EQ(io->write(io, file, "entries?", 8, sizeof zeros), 0);
    io->close(io, file);
    ign_store_lost lost;
    ign_store_options options = small;
    options.lost = &lost;
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_E_LOST);
    CHECK(strcmp(lost.file, name) == 0);
    CHECK_EQ(io->remove(io, name), 0);
    store = open_with(io, &small);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(names_with(io, "log-"), figures.segments); /* the one that was only begun is gone */
    CHECK_EQ(names_with(io, "tmp-"), 0);
    CHECK_EQ(figures.damaged_bytes, 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- maintenance, and what is set aside --------------------------------------------------------------------------------------------- */

/* While one store maintains, another does not, but for one that is dead or seems to be stopped. */
static void one_maintains(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store_options options = small;
    options.stopped_after_ns = 10000000;
    ign_store *store = open_with(io, &options), *other = open_with(other_io, &options);
    uint32_t m = declare(store, "m", 1);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 100; i++)
            CHECK_EQ(load_how(store, m, 0, 40, i * 40, 0, NULL), IGN_OK);
        ign_generation *g;
        CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
        atomic_store(&g->ctl.head->maintaining, g->word);
        ign_store_leave(other, g);
        unsigned before = names_with(io, "checkpoint-");
        CHECK_EQ(ign_store_maintain(store), IGN_EMPTY);
        CHECK_EQ(names_with(io, "checkpoint-"), before);
        if (round == 0) {
            struct timespec moment = {.tv_nsec = 400000000};
            nanosleep(&moment, NULL);
        } else {
            int file;
            char name[IGN_STORE_NAME_MAX];
            ign_store_file_name(name, "tmp-checkpoint", 1, 7); /* what it was about to make */
            CHECK_EQ(io->open(io, name, true, &file), 0);
            io->close(io, file);
            ign_store_close(other);
        }
        CHECK_EQ(ign_store_maintain(store), IGN_OK);
        CHECK_EQ(names_with(io, "checkpoint-"), before + 1);
    }
    CHECK_EQ(names_with(io, "tmp-checkpoint-"), 0);
    ign_store_close(store);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

static void flip(ign_store_io *io, const char *name, uint64_t at)
{
    int file;
    uint8_t byte;
    CHECK_EQ(io->open(io, name, false, &file), 0);
    CHECK_EQ(io->read(io, file, &byte, 1, at), 0);
    byte ^= 0x20;
    CHECK_EQ(io->write(io, file, &byte, 1, at), 0);
    io->close(io, file);
}

/* What was passed over has a copy, made once. */
static void set_aside(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1), count;
    ign_store_mark mark;
    ign_slice slices[2];
    for (uint64_t i = 0; i < 100; i++)
        CHECK_EQ(load_how(store, m, 0, 40, i * 40, 0, NULL), IGN_OK);
    CHECK(ign_store_mark_now(store, &mark) == IGN_OK && ign_store_flush(store, &mark, true) == IGN_OK);
    CHECK_EQ(ign_store_peek(store, m, 0, 1, 40, slices, 2, &count), IGN_OK);
    ign_store_close(store);
    char name[IGN_STORE_NAME_MAX], aside[IGN_STORE_NAME_MAX];
    ign_segment_name(name, slices[0].generation, slices[0].number);
    flip(io, name, slices[0].file_offset + 9);
    CHECK_EQ(names_with(io, "damaged-"), 0);
    store = open_with(io, &small);
    ign_store_figures figures;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.living_records == 100 * 40 && figures.salvaged_records == 40);
    CHECK(figures.damaged_bytes >= slices[0].bytes && figures.damaged_bytes < slices[0].bytes + 100u);
    ign_store_close(store);
    store = open_with(io, &small);
    ign_store_close(store);
    CHECK_EQ(names_with(io, "damaged-"), 1);
    ign_store_file_name(aside, "damaged", slices[0].generation, slices[0].position);
    int file, log;
    uint8_t copy[1 << 12], was[1 << 12];
    uint64_t size;
    CHECK_EQ(io->open(io, aside, false, &file), 0);
    CHECK_EQ(io->open(io, name, false, &log), 0);
    CHECK(io->size(io, file, &size) == 0 && size == figures.damaged_bytes && size <= sizeof copy);
    CHECK(io->read(io, file, copy, (size_t)size, 0) == 0 &&
          io->read(io, log, was, (size_t)size, slices[0].file_offset - slices[0].offset) == 0);
    CHECK(memcmp(copy, was, (size_t)size) == 0);
    io->close(io, file);
    io->close(io, log);
    store_dir_close(io);
}

/* The control file is cut under the mapping: an error of that call at the most, and the next goes on. */
static void control_file_cut(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    ign_shard shard;
    unsigned failed = 0;
    uint64_t loaded = 0, in_doubt = 0;
    for (unsigned round = 0; round < 12; round++) {
        for (uint64_t i = 0; i < 20; i++) {
            CHECK_EQ(load_how(i % 2 == 0 ? store : other, m, 0, 10, 1, 0, NULL), IGN_OK);
            loaded += 10;
        }
        ign_generation *g;
        char path[200];
        CHECK_EQ(ign_store_enter(store, &g), IGN_OK);
        snprintf(path, sizeof path, "%s/control-%016" PRIx64 "-%016x", store_dir_path, g->number, 0);
        uint64_t sizes[] = {0, 4096, g->ctl.head->arena_at + 100, g->ctl.head->arena_at + 8192};
        ign_store_leave(store, g);
        CHECK_EQ(truncate(path, (off_t)sizes[round % 4]), 0);
        ign_store *stores[2] = {round / 4 == 1 ? other : store, round / 4 == 1 ? store : other};
        for (unsigned s = 0; s < 2; s++) {
            ign_store_mark mark; /* is read without the lock, and so without a look at the file before */
            int rc = round / 4 == 2 ? ign_store_mark_now(stores[s], &mark) : load_how(stores[s], m, 0, 10, 1, 0, NULL);
            CHECK(rc == IGN_OK || rc == IGN_E_IO || rc == IGN_E_IN_DOUBT);
            failed += rc != IGN_OK;
            CHECK(round != 8 || s != 0 || rc == IGN_E_IO);
            loaded += rc == IGN_OK && round / 4 != 2 ? 10 : 0;
            in_doubt += rc == IGN_E_IN_DOUBT ? 10 : 0;
            CHECK_EQ(load_how(stores[s], m, 0, 10, 1, 0, NULL), IGN_OK);
            loaded += 10;
        }
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK(shard.living >= loaded && shard.living <= loaded + in_doubt);
    }
    CHECK(failed >= 1); /* the landing was needed */
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

static ign_store_io *intruder_io;
static ign_store *intruder;
static int (*real_write)(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at);

/* Somebody removes the control file and opens the store, in which nobody seems to live then. */
static void intrude(void)
{
    for (uint64_t generation = 1; generation < 10; generation++) {
        char name[IGN_STORE_NAME_MAX];
        ign_store_file_name(name, "control", generation, 0);
        intruder_io->remove(intruder_io, name);
    }
    CHECK_EQ(names_with(intruder_io, "control-"), 0);
    intruder = open_with(intruder_io, &small);
}

static int intruded_write(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at)
{
    if (intruder == NULL)
        intrude();
    return real_write(io, file, from, bytes, at);
}

/* The control file is removed while the store is open: what anybody was told is stored is there. */
static void control_file_removed(void)
{
    for (int before_the_write = 0; before_the_write < 2; before_the_write++) {
        ign_store_io *io = store_dir_open();
        CHECK_EQ(ign_store_io_open(store_dir_path, &intruder_io), 0);
        ign_store *store = open_with(io, &small);
        uint32_t m = declare(store, "m", 1);
        CHECK_EQ(load_how(store, m, 0, 4, 1, 0, NULL), IGN_OK);
        intruder = NULL;
        real_write = io->write;
        if (before_the_write) /* and behind the look at the control file that a call begins with */
            io->write = intruded_write;
        else
            intrude();
        for (unsigned n = 0; n < 5; n++)
            CHECK_EQ(load_how(n % 2 == 0 ? store : intruder, m, 0, 2, 10 + n * 10, 0, NULL), IGN_OK);
        io->write = real_write;
        ign_shard shard;
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK_EQ(shard.living, 14);
        ign_store_close(store);
        ign_store_close(intruder);
        ign_store_io_close(intruder_io);
        store = open_with(io, &small);
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK_EQ(shard.living, 14);
        ign_store_close(store);
        store_dir_close(io);
    }
}

static void in_a_child(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1);
    CHECK_EQ(load_how(store, m, 0, 3, 1, 0, NULL), IGN_OK);
    int ready[2], left[2];
    char byte;
    CHECK_EQ(pipe(ready), 0);
    CHECK_EQ(pipe(left), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ign_store_abandon(store);
        ign_store_io_close(io);
        close(ready[1]);
        if (write(left[1], "", 1) != 1)
            _exit(1);
        _exit(read(ready[0], &byte, 1) == 0 ? 0 : 1); /* until the parent goes on */
    }
    CHECK_EQ(load_how(store, m, 0, 3, 4, 0, NULL), IGN_OK);
    ign_store_figures before, after;
    CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
    ign_store_close(store);
    /* Nobody lives in it now, though the child does. */
    CHECK_EQ(read(left[0], &byte, 1), 1);
    store = open_with(io, &small);
    CHECK_EQ(ign_store_figures_of(store, &after), IGN_OK);
    CHECK_EQ(after.openings, before.openings + 1);
    close(ready[0]);
    close(ready[1]);
    close(left[0]);
    close(left[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- two flushes through one descriptor ---------------------------------------------------------------------------------- */

/* The kernel tells a descriptor once that a write failed: of two flushes at a time, the second hears that all is well. */
static struct {
    int (*flush)(ign_store_io *io, int file);
    void (*wait)(ign_store_io *io, _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
    int file;
    _Atomic bool armed, second;
    _Atomic unsigned begun, waits;
} once;

static int told_once(ign_store_io *io, int file)
{
    if (atomic_load(&once.armed) && atomic_fetch_add(&once.begun, 1) == 0) {
        once.file = file;
        while (!atomic_load(&once.second) && atomic_load(&once.waits) < 100)
            sched_yield();
        return EIO;
    }
    if (!atomic_load(&once.armed) || file != once.file)
        return once.flush(io, file);
    atomic_store(&once.second, true);
    return 0;
}

static void counted_wait(ign_store_io *io, _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    once.wait(io, word, seen, timeout_ns);
    atomic_fetch_add(&once.waits, atomic_load(&once.begun) > 0);
}

static void *load_and_flush(void *arg)
{
    uint8_t batch[4096];
    ign_store *store = arg;
    ign_store_mark mark;
    ign_store_part part = part_of(batch, 0, 1, 7, 0);
    CHECK_EQ(ign_store_load(store, 1, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    return NULL;
}

static void told_to_one_thread(void)
{
    ign_store_io *io = store_dir_open();
    once.flush = io->flush;
    once.wait = io->wait;
    io->flush = told_once;
    io->wait = counted_wait;
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1);
    CHECK_EQ(m, 1);
    load_and_flush(store);
    ign_store_mark before;
    CHECK_EQ(ign_store_declare(store, "n", 1, 0, &m, NULL, &before), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &before, true), IGN_OK);
    atomic_store(&once.armed, true);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, load_and_flush, store), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* Both are stored, so both were written again into the file that followed. */
    char name[IGN_STORE_NAME_MAX];
    uint8_t sector[IGN_LOG_SECTOR];
    ign_segment_info info;
    int file;
    ign_segment_name(name, before.generation + 1, 1);
    CHECK_EQ(io->open(io, name, false, &file), 0);
    CHECK_EQ(io->read(io, file, sector, sizeof sector, 0), 0);
    CHECK_EQ(ign_segment_get_header(sector, &info), 0);
    CHECK(info.base <= before.position);
    io->close(io, file);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- handed out before the flush --------------------------------------------------------------------------------------- */

static int never_flushed(ign_store_io *io, int file)
{
    (void)io, (void)file;
    return EIO;
}

/* A message can be claimed before the flush that its publisher waits for. When that fails, and no other file takes it either, the publisher is
 * told so, and the message is not found again; who has claimed it has it. */
static void handed_out_and_refused(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    uint8_t batch[4096], fetched[4096];
    ign_store_mark mark, flushed, ignored;
    ign_store_part part = part_of(batch, 0, 1, 7, 0);
    ign_slice slice;
    uint32_t count;
    uint64_t retired;
    bool expired;
    CHECK_EQ(ign_store_mark_now(store, &flushed), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &flushed, true), IGN_OK);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_claim(other, m, 0, 1, 1 << 20, "me", 1, &slice, 1, &count, &expired, NULL, &ignored), IGN_OK);
    CHECK_EQ(ign_store_fetch(other, &slice, fetched), IGN_OK);
    CHECK_EQ(batch_read(fetched, &slice, m, slice.from), 7);
    int (*real_flush)(ign_store_io *, int) = io->flush;
    io->flush = never_flushed;
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_E_FAILED);
    io->flush = real_flush;
    CHECK_EQ(ign_store_peek(store, m, 0, 1, UINT64_MAX, &slice, 1, &count), IGN_OK);
    CHECK_EQ(count, 0);
    ign_store_run run = {.first = 1, .last = part.first};
    CHECK_EQ(ign_store_retire(other, m, &run, 1, false, &retired, NULL, &ignored), IGN_OK);
    CHECK_EQ(retired, 0);
    ign_store_close(store);
    ign_store_close(other);
    store = open_with(io, &small);
    CHECK_EQ(ign_store_peek(store, m, 0, 1, UINT64_MAX, &slice, 1, &count), IGN_OK);
    CHECK_EQ(count, 0);
    ign_store_close(store);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

/* Nobody waits for the flush of a claim. What is refused is all behind the last flush, and so a claim of an older message goes with it: that one
 * waits again, as it would behind a power cut, and whoever has it may still acknowledge it. */
static void claimed_before_a_refusal(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_with(io, &small);
    uint32_t m = declare(store, "m", 1), count;
    uint8_t batch[4096];
    ign_store_mark mark;
    ign_store_part part = part_of(batch, 0, 1, 7, 0);
    ign_slice slice;
    ign_shard shard;
    bool expired;
    uint64_t retired;
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    ign_store_run run = {.first = part.first, .last = part.first};
    CHECK_EQ(ign_store_claim(store, m, 0, 1, 1 << 20, "me", 1, &slice, 1, &count, &expired, NULL, &mark), IGN_OK);
    part = part_of(batch, 0, 1, 8, 0);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    int (*real_flush)(ign_store_io *, int) = io->flush;
    io->flush = never_flushed;
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_E_FAILED);
    io->flush = real_flush;
    CHECK_EQ(ign_store_peek(store, m, 0, 1, UINT64_MAX, &slice, 1, &count), IGN_OK);
    CHECK_EQ(count, 1);
    CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.in_flight, 0);
    CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
    CHECK_EQ(retired, 1);
    ign_store_close(store);
    store_dir_close(io);
}

/* Who is refused is told by what, the second as well, who only finds that the first has failed; and the figures of a store can be asked for. */
static void refused_by_what(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    uint8_t batch[4096];
    ign_store_mark mark, second;
    ign_store_part part = part_of(batch, 0, 1, 7, 0);
    ign_store_figures figures;
    CHECK_EQ(ign_store_mark_now(store, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_load(other, m, &part, 1, NULL, &second), IGN_OK);
    int (*real_flush)(ign_store_io *, int) = io->flush;
    io->flush = other_io->flush = never_flushed;
    errno = 0;
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_E_FAILED);
    CHECK_EQ(errno, EIO);
    errno = ENOENT;
    CHECK_EQ(ign_store_flush(other, &second, true), IGN_E_FAILED);
    CHECK_EQ(errno, EIO);
    for (int i = 0; i < 2; i++) { /* with and without somebody who has begun another generation */
        errno = 0;
        int rc = ign_store_figures_of(store, &figures);
        CHECK(rc == IGN_OK || (rc == IGN_E_IO && errno == EIO));
        rc = ign_store_load(store, m, &part, 1, NULL, &mark);
        CHECK(rc == IGN_E_IO && errno == EIO);
    }
    io->flush = other_io->flush = real_flush;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    /* A generation that is over, and began before the mark: what it was refused by is not known any more. */
    errno = ENOENT;
    CHECK_EQ(ign_store_flush(store, &second, true), IGN_E_FAILED);
    CHECK_EQ(errno, 0);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

/* -- sent to the disk ahead of the flush ------------------------------------------------------------------------------- */

static struct {
    uint64_t bytes, least;
} sent;

static void counting_send(ign_store_io *io, int file, uint64_t at, uint64_t bytes)
{
    (void)io, (void)file, (void)at;
    sent.bytes += bytes;
    sent.least = sent.least == 0 || bytes < sent.least ? bytes : sent.least;
}

/* What is not flushed is sent a MiB at a time, each byte once; and nothing that is flushed already. */
static void sent_ahead(void)
{
    enum { MIB = 1 << 20, SIZE = 64 << 10, LOADS = 100 };
    ign_store_io *io = store_dir_open();
    io->send = counting_send;
    static const ign_store_options large = {.segment_bytes = 16 * MIB, .control_reserve = 1 << 27, .checkpoint_bytes = 64 * MIB};
    ign_store *store = open_with(io, &large);
    uint32_t m = declare(store, "m", 1);
    static uint8_t batch[SIZE + 256];
    ign_store_mark mark = {0};
    for (uint64_t i = 0; i < LOADS; i++) {
        ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 1, i + 1, SIZE)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        if (i == LOADS / 2)
            CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    }
    CHECK(sent.least >= MIB);
    CHECK(sent.bytes >= 2 * MIB && sent.bytes <= (LOADS + 1) * (SIZE + 512));
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    uint64_t had = sent.bytes;
    for (uint64_t i = 0; i < LOADS; i++) {
        ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 1, i + 1, SIZE)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    }
    CHECK_EQ(sent.bytes, had);
    ign_store_close(store);
    store_dir_close(io);
}

MAIN("store_calls", {
    RUN(sent_ahead);
    RUN(never_waits);
    RUN(the_bell);
    RUN(the_warning);
    RUN(the_watch);
    RUN(fences);
    RUN(expiry);
    RUN(only_what_waits);
    RUN(loaded_and_claimed);
    RUN(limit_of_bytes);
    RUN(listings);
    RUN(ids_once);
    RUN(ids_alike);
    RUN(full_disk);
    RUN(strays);
    RUN(one_maintains);
    RUN(set_aside);
    RUN(control_file_cut);
    RUN(control_file_removed);
    RUN(in_a_child);
    RUN(told_to_one_thread);
    RUN(handed_out_and_refused);
    RUN(claimed_before_a_refusal);
    RUN(refused_by_what);
})
