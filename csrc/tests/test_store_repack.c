/* A state without holes says what the one before said; and what all of it takes of the disk, before and behind. */
#define _GNU_SOURCE
#include "store_batch.h"
#include "store_dir.h"

#include "../ignis_store_fire.h"
#include "../ignis_store_later.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { SHARDS = 3, HOURS = 3, IDS = 4000, MIB = 1 << 20 };
#ifdef IGN_TEST_TSAN
enum { SEEDS = 1 };
#else
enum { SEEDS = 6 };
#endif

static uint64_t seed;

static uint64_t draw(uint64_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % n;
}

/* -- what a state says --------------------------------------------------------------------------------------------------- */

static uint32_t told; /* a checksum of all of it */

static void tell(const void *bytes, size_t size)
{
    told = ign_crc32c(told, bytes, size);
}

static void tell_number(uint64_t number)
{
    tell(&number, sizeof number);
}

static void tell_slices(ign_store *store, uint32_t m, uint16_t shard)
{
    static ign_slice slices[4096];
    uint32_t count;
    for (uint64_t from = 1;; from = slices[count - 1].first + slices[count - 1].to) {
        CHECK_EQ(ign_store_peek(store, m, shard, from, INT64_MAX, slices, 4096, &count), IGN_OK);
        if (count == 0)
            return;
        for (uint32_t i = 0; i < count; i++) {
            tell_number(slices[i].first);
            tell_number((uint64_t)slices[i].from << 32 | slices[i].to);
            tell_number(slices[i].position);
            tell_number(slices[i].expires_at_ms);
        }
    }
}

static void tell_shard(ign_store *store, uint32_t m, uint16_t shard)
{
    static ign_store_claimed claims[64];
    ign_shard copy;
    uint32_t count;
    CHECK_EQ(ign_store_shard(store, m, shard, &copy), IGN_OK);
    tell_number(copy.fire_pointer);
    tell_number(copy.load_counter);
    tell_number(copy.fire_counter);
    tell_number(copy.in_flight);
    tell_number(copy.living);
    tell_number(copy.incarnation);
    tell_number(copy.expired);
    tell_slices(store, m, shard);
    for (uint64_t from = 0;; from = claims[count - 1].last + 1) {
        CHECK_EQ(ign_store_claims(store, m, shard, from, claims, 64, &count), IGN_OK);
        for (uint32_t i = 0; i < count; i++) {
            tell_number(claims[i].first);
            tell_number(claims[i].last);
            tell_number(claims[i].living);
            tell_number(claims[i].ms);
            tell(claims[i].owner, claims[i].owner_bytes);
        }
        if (count < 64)
            return;
    }
}

static void tell_magazine(ign_store *store, const ign_store_magazine *m)
{
    static ign_due_run runs[256];
    static uint8_t ids[IDS * IGN_ID_BYTES];
    static bool known[IDS];
    ign_due_run after = {0};
    uint32_t count;
    uint64_t due;
    tell(m->name, m->name_bytes);
    tell_number(m->number);
    for (uint16_t shard = 0; shard < m->shards; shard++)
        tell_shard(store, m->number, shard);
    for (uint64_t i = 0; i < IDS; i++)
        memcpy(ids + i * IGN_ID_BYTES, (uint64_t[2]){i * 0x9E3779B97F4A7C15ull, i % 7}, IGN_ID_BYTES);
    for (uint32_t hour = 9; hour < 14; hour++) {
        CHECK_EQ(ign_store_known_ids(store, m->number, hour, ids, IDS, known), IGN_OK);
        tell(known, sizeof known);
    }
    CHECK_EQ(ign_store_next_due(store, m->number, &due), IGN_OK);
    tell_number(due);
    while (m->name[0] == 'l' && ign_store_list_later(store, m->number, &after, runs, 256, &count) == IGN_OK && count > 0) {
        for (uint32_t i = 0; i < count; i++) {
            tell_number(runs[i].ms);
            tell_number(runs[i].shard);
            tell_number(runs[i].first);
            tell_number(runs[i].last);
        }
        after = runs[count - 1];
        after.first = after.last;
    }
}

static uint32_t what_is_told(ign_store *store)
{
    static uint8_t room[1 << 16];
    ign_store_magazine m = {0};
    ign_store_place place = {0};
    ign_store_figures figures;
    uint64_t bytes;
    told = 0;
    while (ign_store_next_magazine(store, m.number, &m) == IGN_OK)
        tell_magazine(store, &m);
    while (ign_store_next_keys(store, "", 0, &place, room, sizeof room, &bytes) == IGN_OK)
        tell(room, (size_t)bytes);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    tell_number(figures.living_bytes);
    tell_number(figures.living_records);
    tell_number(figures.batches);
    return told;
}

/* -- a state with everything in it --------------------------------------------------------------------------------------- */

typedef struct world {
    ign_store_io *io;
    ign_store *store;
    uint32_t main, later, other;
    uint64_t next_id, next_key;
} world;

static void load_some(world *w, uint32_t m)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    uint32_t count = draw(4) == 0 ? 100 + (uint32_t)draw(200) : 1 + (uint32_t)draw(5);
    ign_store_part part = {.shard = (uint16_t)draw(SHARDS), .batch = batch,
                           .bytes = batch_make_until(batch, count, w->next_id, 24, draw(8) == 0 ? 1000 + draw(1000) : 0)};
    CHECK_EQ(ign_store_load(w->store, m, &part, 1, NULL, &mark), IGN_OK);
    w->next_id += count;
}

static void load_later(world *w)
{
    static uint8_t batch[BATCH_MAX];
    static uint64_t dues[256];
    ign_store_mark mark;
    uint32_t count = 1 + (uint32_t)draw(100);
    uint64_t alike = draw(3) == 0 ? 5000 : 0; /* more of one time than a page holds */
    for (uint32_t i = 0; i < count; i++)
        dues[i] = alike != 0 ? alike : 10000 + draw(1 << 20);
    ign_store_part part = {.shard = (uint16_t)draw(SHARDS), .batch = batch, .bytes = batch_make(batch, count, w->next_id, 24)};
    CHECK_EQ(ign_store_load_later(w->store, w->later, &part, 1, dues, NULL, &mark), IGN_OK);
    w->next_id += count;
}

static void load_once(world *w)
{
    static uint8_t batch[BATCH_MAX], ids[200 * IGN_ID_BYTES];
    ign_store_mark mark;
    uint32_t count = 1 + (uint32_t)draw(200);
    uint64_t first = draw(IDS - count);
    for (uint64_t i = 0; i < count; i++)
        memcpy(ids + i * IGN_ID_BYTES, (uint64_t[2]){(first + i) * 0x9E3779B97F4A7C15ull, (first + i) % 7}, IGN_ID_BYTES);
    ign_store_part part = {.shard = (uint16_t)draw(SHARDS), .batch = batch, .bytes = batch_make(batch, count, w->next_id, 24)};
    int rc = ign_store_load_once(w->store, w->main, &part, 1, NULL, ids, count, 10 + (uint32_t)draw(HOURS), 9, NULL, &mark);
    CHECK(rc == IGN_OK || rc == IGN_E_MISMATCH);
    w->next_id += count;
}

static void claim_some(world *w, uint32_t m)
{
    static const char *const owners[] = {"a", "the other worker", "c"};
    ign_slice slices[8];
    ign_store_mark mark;
    uint32_t count;
    bool expired;
    uint16_t shard = (uint16_t)draw(SHARDS);
    int rc = ign_store_claim(w->store, m, shard, 1 + (uint32_t)draw(60), UINT64_MAX, owners[draw(3)], draw(100), slices, 8, &count, &expired, NULL, &mark);
    CHECK(rc == IGN_OK || rc == IGN_EMPTY);
    for (uint32_t i = 0; rc == IGN_OK && i < count; i++) { /* every third record of it is retired, so that bits are needed */
        for (uint64_t at = slices[i].from; at < slices[i].to; at += 3) {
            ign_store_run run = {.shard = shard, .first = slices[i].first + at, .last = slices[i].first + at};
            uint64_t retired;
            CHECK_EQ(ign_store_retire(w->store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
        }
    }
}

/* All that waits in a shard up to some pointer. */
static void retire_many(world *w, uint32_t m)
{
    ign_store_mark mark;
    ign_shard shard;
    uint64_t retired;
    ign_store_run run = {.shard = (uint16_t)draw(SHARDS), .first = 1};
    CHECK_EQ(ign_store_shard(w->store, m, run.shard, &shard), IGN_OK);
    run.last = shard.load_pointer == 0 ? 1 : 1 + draw(shard.load_pointer);
    CHECK_EQ(ign_store_retire(w->store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
}

static void set_key(world *w)
{
    char key[32], value[200];
    ign_store_mark mark;
    snprintf(key, sizeof key, "key %" PRIu64, draw(w->next_key += draw(2)) + 1);
    memset(value, (int)draw(256), sizeof value);
    ign_store_change change = {.key = key, .key_bytes = (uint32_t)strlen(key), .expected_bytes = UINT32_MAX,
                               .value = draw(4) == 0 ? NULL : value, .value_bytes = (uint32_t)draw(sizeof value)};
    CHECK_EQ(ign_store_change_keys(w->store, &change, 1, NULL, &mark), IGN_OK);
}

static void begin(world *w, uint64_t from, uint64_t repack_bytes)
{
    ign_store_mark mark;
    *w = (world){.io = store_dir_open(), .next_id = 1, .next_key = 1};
    seed = from;
    CHECK_EQ(ign_store_open(&w->store, w->io, &(ign_store_options){.segment_bytes = 1 << 18, .control_reserve = 1 << 28,
                                                                   .checkpoint_bytes = 1 << 18, .repack_bytes = repack_bytes}), IGN_OK);
    CHECK_EQ(ign_store_declare(w->store, "main", SHARDS, 0, &w->main, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare_later(w->store, w->main, "later", SHARDS, &w->later, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(w->store, "other", SHARDS, 0, &w->other, NULL, &mark), IGN_OK);
}

static void end(world *w)
{
    ign_store_close(w->store);
    store_dir_close(w->io);
}

static void step(world *w)
{
    ign_store_mark mark;
    switch (draw(12)) {
    case 0: load_later(w); break;
    case 1: load_once(w); break;
    case 2: case 3: claim_some(w, draw(2) == 0 ? w->main : w->other); break;
    case 4: retire_many(w, draw(3) == 0 ? w->later : draw(2) == 0 ? w->main : w->other); break;
    case 5: case 6: set_key(w); break;
    case 7: ign_store_forget_ids(w->store, w->main, 9 + (uint32_t)draw(3), 300, NULL, &mark); break;
    case 8:
        if (draw(40) == 0) { /* numbers of magazines with none between them */
            CHECK_EQ(ign_store_drop(w->store, w->other, false, NULL, &mark), IGN_OK);
            CHECK_EQ(ign_store_declare(w->store, "other", SHARDS, 0, &w->other, NULL, &mark), IGN_OK);
        }
        break;
    default: load_some(w, draw(2) == 0 ? w->main : w->other); break;
    }
}

/* Whatever is in it, the state that follows from a repacked checkpoint says the same, and goes on the same. */
static void says_the_same(void)
{
    for (uint64_t from = 1; from <= SEEDS; from++) {
        world w;
        begin(&w, from, 1);
        for (unsigned round = 0; round < 8; round++) {
            ign_store_mark mark;
            for (unsigned i = 0; i < 400; i++)
                step(&w);
            CHECK_EQ(ign_store_mark_now(w.store, &mark), IGN_OK);
            CHECK_EQ(ign_store_flush(w.store, &mark, true), IGN_OK);
            CHECK(ign_store_checkpoint(w.store) >= 0);
            uint32_t before = what_is_told(w.store);
            ign_store_close(w.store);
            CHECK_EQ(ign_store_open(&w.store, w.io, &(ign_store_options){.segment_bytes = 1 << 18, .control_reserve = 1 << 28,
                                                                         .checkpoint_bytes = 1 << 18, .repack_bytes = 1}), IGN_OK);
            CHECK_EQ(what_is_told(w.store), before);
            for (unsigned i = 0; i < 3; i++) /* each of these begins a generation, too */
                CHECK(ign_store_maintain(w.store) >= 0);
        }
        end(&w);
    }
}

/* -- what it takes ------------------------------------------------------------------------------------------------------- */

#ifndef IGN_TEST_TSAN
static void add_blocks(void *arg, const char *name)
{
    char path[512];
    struct stat found;
    snprintf(path, sizeof path, "%s/%s", store_dir_path, name);
    if (stat(path, &found) == 0)
        *(uint64_t *)arg += (uint64_t)found.st_blocks * 512;
}

static uint64_t taken(ign_store_io *io)
{
    uint64_t bytes = 0;
    io->list(io, add_blocks, &bytes);
    return bytes;
}

static void maintain(ign_store *store)
{
    int rc = IGN_OK;
    for (unsigned i = 0; rc == IGN_OK; i++) {
        rc = ign_store_maintain(store);
        CHECK(rc == IGN_OK || rc == IGN_EMPTY || rc == IGN_E_STALE);
        CHECK(i < 1000); /* it comes to an end */
    }
}

/* The store's own options, and messages that are loaded one by one. */
static void load_singles(ign_store *store, uint32_t m, uint16_t shards, uint64_t count, uint64_t first_id)
{
    static uint8_t batch[256];
    ign_store_mark mark;
    for (uint64_t i = 0; i < count; i++) {
        ign_store_part part = {.shard = (uint16_t)((first_id + i) % shards), .batch = batch, .bytes = batch_make(batch, 1, first_id + i, 100)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        if (i % 4096 == 0)
            CHECK(ign_store_maintain(store) >= 0);
    }
}

/* Each of so many messages is there, once, and claims are what they were. */
static void check_all(ign_store *store, uint32_t m, uint16_t shards, uint64_t count)
{
    static uint8_t batch[8 * MIB];
    static ign_slice slices[1024];
    uint8_t *seen = calloc(count + 1, 1);
    uint32_t found;
    CHECK(seen != NULL);
    for (uint16_t shard = 0; shard < shards; shard++)
        for (uint64_t from = 1;; from = slices[found - 1].first + slices[found - 1].to) {
            CHECK_EQ(ign_store_peek(store, m, shard, from, INT64_MAX, slices, 1024, &found), IGN_OK);
            if (found == 0)
                break;
            for (uint32_t i = 0; i < found; i++) {
                CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
                for (uint32_t at = slices[i].from; at < slices[i].to; at++) {
                    uint64_t id = batch_read(batch, &slices[i], m, at);
                    CHECK(id >= 1 && id <= count && !seen[id]);
                    seen[id] = 1;
                }
            }
        }
    for (uint64_t id = 1; id <= count; id++)
        CHECK(seen[id]);
    free(seen);
}

static uint64_t in_flight(ign_store *store, uint32_t m, uint16_t shards)
{
    ign_shard shard;
    uint64_t total = 0;
    for (uint16_t i = 0; i < shards; i++) {
        CHECK_EQ(ign_store_shard(store, m, i, &shard), IGN_OK);
        total += shard.in_flight;
    }
    return total;
}

static void singles_are_packed(void)
{
    enum { MANY = 400000, WIDE = 16 };
    ign_store_io *io = store_dir_open();
    ign_store *store;
    ign_store_mark mark;
    ign_store_figures figures;
    uint32_t m, count;
    ign_slice slices[4];
    bool expired;
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", WIDE, 0, &m, NULL, &mark), IGN_OK);
    load_singles(store, m, WIDE, MANY, 1);
    for (unsigned i = 0; i < 20; i++) /* in hand while they are moved */
        CHECK_EQ(ign_store_claim(store, m, (uint16_t)(i % WIDE), 3, UINT64_MAX, "me", 7, slices, 4, &count, &expired, NULL, &mark), IGN_OK);
    CHECK_EQ(in_flight(store, m, WIDE), 60);
    maintain(store);
    CHECK_EQ(in_flight(store, m, WIDE), 60);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(figures.living_records, MANY);
    CHECK(figures.batches < MANY / 4);
    CHECK(taken(io) <= 2 * figures.living_bytes + 128 * MIB);
    check_all(store, m, WIDE, MANY);
    ign_store_close(store);
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    check_all(store, m, WIDE, MANY);
    CHECK_EQ(in_flight(store, m, WIDE), 60);
    ign_store_close(store);
    store_dir_close(io);
}

/* Where no two are neighbours there is nothing to pack, and maintenance finds that out once. */
static void what_has_no_neighbour_is_left_alone(void)
{
    enum { MAGAZINES = 200, EACH = 512 };
    ign_store_io *io = store_dir_open();
    ign_store *store;
    ign_store_mark mark;
    ign_store_figures before, after;
    static uint32_t numbers[MAGAZINES];
    static uint8_t batch[256];
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){.segment_bytes = 2 * MIB}), IGN_OK);
    for (unsigned i = 0; i < MAGAZINES; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%u", i);
        CHECK_EQ(ign_store_declare(store, name, EACH, 0, &numbers[i], NULL, &mark), IGN_OK);
    }
    for (uint64_t n = 0; n < MAGAZINES * EACH; n++) {
        ign_store_part part = {.shard = (uint16_t)(n / MAGAZINES), .batch = batch, .bytes = batch_make(batch, 1, n + 1, 100)};
        CHECK_EQ(ign_store_load(store, numbers[n % MAGAZINES], &part, 1, NULL, &mark), IGN_OK);
        if (n % 4096 == 0)
            CHECK(ign_store_maintain(store) >= 0);
    }
    maintain(store);
    CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
    for (unsigned i = 0; i < 10; i++)
        CHECK(ign_store_maintain(store) >= 0);
    CHECK_EQ(ign_store_figures_of(store, &after), IGN_OK);
    CHECK_EQ(after.batches, MAGAZINES * EACH);
    CHECK(after.end - before.end < 4096);
    CHECK(after.end < 4 * after.living_bytes); /* it was not written over and over */
    ign_store_close(store);
    store_dir_close(io);
}

/* All but one are retired: what they took is given back, while the store is open and nobody writes. */
static void what_was_taken_is_given_back(void)
{
    enum { MANY = 600000, WIDE = 16 };
    ign_store_io *io = store_dir_open();
    ign_store *store;
    ign_store_mark mark;
    ign_store_figures figures;
    uint32_t m;
    uint64_t retired, total = 0;
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){.checkpoint_bytes = 32 * MIB}), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", WIDE, 0, &m, NULL, &mark), IGN_OK);
    static uint8_t batch[256];
    for (uint64_t n = 0; n < MANY; n++) { /* nobody maintains it: the state has a place for each */
        ign_store_part part = {.shard = (uint16_t)(n % WIDE), .batch = batch, .bytes = batch_make(batch, 1, n + 1, 100)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    }
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.state_bytes > 20 * MIB);
    for (uint16_t i = 0; i < WIDE; i++) {
        ign_store_run run = {.shard = i, .first = i == 3 ? 2 : 1, .last = INT64_MAX};
        CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
        total += retired;
    }
    CHECK_EQ(total, MANY - 1);
    maintain(store);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(figures.living_records, 1);
    CHECK(figures.state_bytes < MIB);
    CHECK(taken(io) <= 128 * MIB);
    ign_store_close(store);
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(figures.living_records, 1);
    ign_store_close(store);
    store_dir_close(io);
}

#endif

#ifdef IGN_TEST_TSAN /* one thread, and many messages: ThreadSanitizer would see nothing, slowly */
MAIN("store_repack", RUN(says_the_same);)
#else
MAIN("store_repack", RUN(says_the_same); RUN(singles_are_packed); RUN(what_has_no_neighbour_is_left_alone); RUN(what_was_taken_is_given_back);)
#endif
