/* What a call may be asked to do besides: at once, behind a fence, with a claim, within a limit of bytes; and the listings. */
#define _GNU_SOURCE
#include "store_small.h"

#include "../ignis_store_parts.h"

#include <errno.h>

static const ign_store_how at_once = {.at_once = true};

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

MAIN("store_calls", {
    RUN(never_waits);
    RUN(fences);
    RUN(expiry);
    RUN(only_what_waits);
    RUN(loaded_and_claimed);
    RUN(limit_of_bytes);
    RUN(listings);
})
