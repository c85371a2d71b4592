/* Due times: the tree against a plain list, and messages that wait for their time in a store. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_fire.h"
#include "../ignis_store_later.h"

#include <errno.h>
#include <sys/stat.h>

/* -- the tree ------------------------------------------------------------------------------------------------------------ */

enum { ROOM = 64 << 20, MOST = 20000 };

static uint8_t *memory;

static int no_file(ign_store_io *io, const char *name, bool create, int *file)
{
    (void)io, (void)name, (void)create;
    *file = 1;
    return 0;
}

static int all_room(ign_store_io *io, int file, uint64_t bytes)
{
    (void)io, (void)file;
    return bytes <= ROOM ? 0 : ENOSPC;
}

static int one_map(ign_store_io *io, int file, uint64_t reserve, void **to)
{
    (void)io, (void)file, (void)reserve;
    *to = memory;
    return 0;
}

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % below;
}

/* Run n is pointer n + 1, of shard n % 7. */
typedef struct model {
    ign_store_io io;
    ign_ctl ctl;
    ign_due *due;
    uint64_t ms[MOST];
    bool lives[MOST];
    uint32_t count, seen;
    uint64_t before; /* ... with this time, and of it this shard and pointer */
    uint64_t shard_last[7];
    bool told[MOST];
} model;

static bool lives(ign_ctl *ctl, void *arg, const ign_due_run *run)
{
    (void)ctl;
    const model *m = arg;
    return m->lives[run->first - 1];
}

static bool see(void *arg, const ign_due_run *run)
{
    model *m = arg;
    uint64_t n = run->first - 1;
    CHECK(n < m->count);
    CHECK_EQ(run->last, run->first);
    CHECK_EQ(run->shard, n % 7);
    CHECK_EQ(run->ms, m->ms[n]);
    CHECK(run->ms >= m->before);
    if (run->ms > m->before)
        memset(m->shard_last, 0, sizeof m->shard_last);
    CHECK(run->first > m->shard_last[run->shard]); /* of one shard and time: as they came */
    m->shard_last[run->shard] = run->first;
    m->before = run->ms;
    CHECK(!m->told[n]);
    m->told[n] = true;
    m->seen++;
    return true;
}

static void check_tree(model *m)
{
    uint64_t next = IGN_DUE_NONE, living = 0;
    m->before = 0;
    m->seen = 0;
    memset(m->told, 0, sizeof m->told);
    memset(m->shard_last, 0, sizeof m->shard_last);
    CHECK(ign_due_walk(&m->ctl, m->due, 0, see, m));
    for (uint32_t n = 0; n < m->count; n++) {
        CHECK(!m->lives[n] || m->told[n]); /* nothing that lives is missing */
        living += m->lives[n];
        if (m->told[n] && m->ms[n] < next)
            next = m->ms[n];
    }
    CHECK_EQ(m->due->records, m->seen);
    CHECK_EQ(m->due->living, living);
    CHECK_EQ(m->due->next, next);
}

static model *begin_model(uint64_t from)
{
    model *m = calloc(1, sizeof *m);
    memory = calloc(1, ROOM);
    CHECK(m != NULL && memory != NULL);
    m->io = (ign_store_io){.open = no_file, .allocate = all_room, .map = one_map};
    CHECK_EQ(ign_ctl_create(&m->ctl, &m->io, "due", ROOM, 1 << 16, 4096), 0);
    m->ctl.alone = false;
    ign_ctl_begin(&m->ctl);
    uint64_t at = ign_ctl_alloc(&m->ctl, sizeof *m->due);
    m->due = ign_ctl_at(&m->ctl, at);
    *m->due = (ign_due){.next = IGN_DUE_NONE};
    ign_ctl_commit(&m->ctl, 0);
    seed = from;
    return m;
}

static void end_model(model *m)
{
    free(memory);
    free(m);
}

static void add(model *m, uint64_t ms)
{
    uint32_t n = m->count++;
    CHECK(n < MOST);
    m->ms[n] = ms;
    m->lives[n] = true;
    ign_ctl_begin(&m->ctl);
    ign_due_add(&m->ctl, m->due, &(ign_due_run){.ms = ms, .shard = n % 7, .first = n + 1, .last = n + 1});
    ign_ctl_add(&m->ctl, &m->due->living, 1);
    CHECK(!m->ctl.no_room);
    ign_ctl_commit(&m->ctl, 0);
}

static void kill_some(model *m, uint32_t first, uint32_t many)
{
    uint64_t died = 0;
    for (uint32_t n = first; n < first + many && n < m->count; n++) {
        died += m->lives[n];
        m->lives[n] = false;
    }
    ign_ctl_begin(&m->ctl);
    ign_ctl_add(&m->ctl, &m->due->living, (uint64_t)-(int64_t)died);
    ign_due_tidy(&m->ctl, m->due, died, lives, m);
    CHECK(!m->ctl.no_room);
    ign_ctl_commit(&m->ctl, 0);
}

/* Times of every kind: near and far, alone and shared, rising and falling. */
static uint64_t any_time(uint64_t kind, uint32_t n)
{
    switch (kind % 6) {
    case 0: return 1u << 20;                                 /* all at once */
    case 1: return 1700000000000ull + n;                     /* rising */
    case 2: return 1800000000000ull - n;                     /* falling */
    case 3: return 1700000000000ull + draw(86400000);        /* over a day */
    case 4: return 1700000000000ull + draw(40);              /* a few */
    default: return draw(3) == 0 ? 0 : draw(1ull << 31) << draw(17);
    }
}

static void as_a_list(void)
{
    for (uint64_t round = 0; round < 24; round++) {
        model *m = begin_model(round);
        for (uint32_t n = 0; n < 3000; n++) {
            add(m, any_time(round, n));
            if (n % 5 == 0)
                kill_some(m, (uint32_t)draw(m->count), 1 + (uint32_t)draw(round % 2 == 0 ? 4 : 12));
            if (n % 500 == 499)
                check_tree(m);
        }
        kill_some(m, 0, m->count);
        for (int i = 0; i < 20; i++)
            kill_some(m, 0, 1000); /* a piece of what is dead each time */
        ign_ctl_begin(&m->ctl);
        ign_due_tidy(&m->ctl, m->due, UINT32_MAX, lives, m);
        ign_ctl_commit(&m->ctl, 0);
        check_tree(m);
        end_model(m);
    }
}

/* What is cancelled long before its time is not kept: of many that come and go, few stay. */
static void garbage_is_bounded(void)
{
    model *m = begin_model(5);
    for (uint32_t n = 0; n < 19000; n++) {
        add(m, 1700000000000ull + draw(1ull << 36));
        if (n >= 100)
            kill_some(m, n - 100, 1);
    }
    check_tree(m);
    CHECK(m->seen < 3 * 4096);
    end_model(m);
}

static void undone(void)
{
    for (uint64_t round = 0; round < 6; round++) {
        model *m = begin_model(round);
        for (uint32_t n = 0; n < 500; n++)
            add(m, any_time(round, n));
        for (uint32_t n = 0; n < 200; n++) {
            ign_ctl_begin(&m->ctl);
            for (uint32_t i = 0; i < 60; i++)
                ign_due_add(&m->ctl, m->due, &(ign_due_run){.ms = any_time(round, n + i), .shard = 1, .first = 9999, .last = 9999});
            CHECK(ign_ctl_roll_back(&m->ctl));
            check_tree(m);
            add(m, any_time(round, 500 + n));
        }
        end_model(m);
    }
}

/* What adding many at a time takes is never more than what is reckoned, and that is little where the times are as people choose them. */
static void reckoned(void)
{
    for (uint64_t round = 0; round < 18; round++) {
        model *m = begin_model(round);
        static uint64_t times[MOST], sorted[MOST];
        while (m->count + 2000 < MOST / 2) {
            uint32_t many = 1 + (uint32_t)draw(draw(3) == 0 ? 2000 : 90);
            for (uint32_t i = 0; i < many; i++) {
                times[i] = any_time(round < 6 ? round : draw(6), m->count + i);
                uint32_t at = i;
                for (; at > 0 && sorted[at - 1] > times[i]; at--)
                    sorted[at] = sorted[at - 1];
                sorted[at] = times[i];
            }
            uint64_t takes = ign_due_takes(&m->ctl, m->due, sorted, many), used = m->ctl.root->used, free_before = 0;
            ign_ctl_begin(&m->ctl);
            free_before = ign_ctl_free_bytes(&m->ctl);
            for (uint32_t i = 0; i < many; i++) {
                uint32_t n = m->count++;
                m->ms[n] = times[i];
                m->lives[n] = true;
                ign_due_add(&m->ctl, m->due, &(ign_due_run){.ms = times[i], .shard = n % 7, .first = n + 1, .last = n + 1});
                ign_ctl_add(&m->ctl, &m->due->living, 1);
            }
            CHECK(!m->ctl.no_room);
            uint64_t grown = m->ctl.root->used - used;
            ign_ctl_commit(&m->ctl, 0);
            CHECK(grown <= takes);
            CHECK(takes <= (uint64_t)many * IGN_DUE_RUN_TAKES);
            if (many > 200 && round < 5)
                CHECK(takes < (uint64_t)many * 150);
            CHECK(free_before <= m->ctl.root->used);
            if (draw(3) == 0)
                kill_some(m, (uint32_t)draw(m->count), (uint32_t)draw(1500));
        }
        check_tree(m);
        end_model(m);
    }
}

/* -- in a store ---------------------------------------------------------------------------------------------------------- */

static const ign_store_options small = {.segment_bytes = 1 << 18, .control_reserve = 1 << 28, .checkpoint_bytes = 1 << 18};

enum { SHARDS = 3, MESSAGES = 4000 };

typedef struct world {
    ign_store_io *io;
    ign_store *store;
    uint32_t main, later;
    uint64_t at[MESSAGES + 1], due[MESSAGES + 1]; /* pointer there, 0: it is there no more */
    uint16_t shard[MESSAGES + 1];
    uint32_t known;
} world;

static void begin(world *w)
{
    ign_store_mark mark;
    memset(w, 0, sizeof *w);
    w->io = store_dir_open();
    CHECK_EQ(ign_store_open(&w->store, w->io, &small), IGN_OK);
    CHECK_EQ(ign_store_declare(w->store, "m", SHARDS, 0, &w->main, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare_later(w->store, w->main, "m later", SHARDS, &w->later, NULL, &mark), IGN_OK);
}

static void end(world *w)
{
    ign_store_close(w->store);
    store_dir_close(w->io);
}

static void put_until(world *w, uint16_t shard, uint32_t count, const uint64_t *dues, uint64_t expires)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.shard = shard, .batch = batch, .bytes = batch_make_until(batch, count, w->known + 1, 24, expires)};
    CHECK_EQ(ign_store_load_later(w->store, w->later, &part, 1, dues, NULL, &mark), IGN_OK);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = ++w->known;
        CHECK(id <= MESSAGES);
        w->at[id] = part.first + i;
        w->due[id] = dues[i];
        w->shard[id] = shard;
    }
}

static void put(world *w, uint16_t shard, uint64_t due)
{
    put_until(w, shard, 1, &due, 0);
}

static uint64_t next_of(world *w)
{
    uint64_t ms;
    CHECK_EQ(ign_store_next_due(w->store, w->main, &ms), IGN_OK);
    return ms;
}

/* The messages that a firing at that time brings, in order. */
static uint32_t fire(world *w, uint64_t ms, uint64_t *ids, uint32_t room)
{
    static ign_slice slices[1024];
    static uint16_t expired[IGN_STORE_MAX_SHARDS];
    static uint8_t batch[8 << 20];
    ign_store_fire f = {.limit = room, .max_bytes = UINT64_MAX, .owner = "me", .ms = ms, .slices = slices, .room = 1024, .expired = expired};
    ign_store_mark mark;
    uint32_t found = 0;
    int rc = ign_store_fire_over(w->store, w->main, &f, NULL, &mark);
    CHECK(rc == IGN_OK || rc == IGN_EMPTY);
    CHECK(f.later);
    for (uint32_t i = 0; i < f.count; i++) {
        CHECK(slices[i].bytes <= sizeof batch);
        CHECK_EQ(ign_store_fetch(w->store, &slices[i], batch), IGN_OK);
        for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
            uint64_t id = batch_read(batch, &slices[i], w->main, k);
            CHECK(id != 0 && id <= w->known);
            CHECK_EQ(slices[i].shard, w->shard[id]);
            ids[found++] = id;
        }
    }
    return found;
}

static void moves_what_is_due(void)
{
    world w;
    uint64_t ids[64];
    begin(&w);
    put(&w, 0, 30);
    put(&w, 0, 10);
    put(&w, 1, 20);
    put(&w, 0, 20);
    CHECK_EQ(next_of(&w), 10);
    CHECK_EQ(fire(&w, 9, ids, 64), 0);
    CHECK_EQ(fire(&w, 20, ids, 64), 3);
    CHECK(ids[0] == 2 && ids[1] == 4 && ids[2] == 3);
    CHECK_EQ(next_of(&w), 30);
    CHECK_EQ(fire(&w, 29, ids, 64), 0);
    CHECK_EQ(fire(&w, UINT64_MAX, ids, 64), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(next_of(&w), IGN_DUE_NONE);
    end(&w);
}

/* Of a large batch a few records come at a time. */
static void few_of_many(void)
{
    world w;
    uint64_t ids[64], dues[800];
    begin(&w);
    for (uint64_t i = 0; i < 800; i++)
        dues[i] = 1000 + i * 7 % 800;
    put_until(&w, 2, 800, dues, 0);
    uint32_t found = 0;
    for (uint64_t now = 1009; now < 1800; now += 10) {
        CHECK_EQ(fire(&w, now, ids, 64), 10);
        for (uint32_t i = 0; i < 10; i++)
            CHECK_EQ(w.due[ids[i]], 1000 + found++);
    }
    CHECK_EQ(found, 800);
    end(&w);
}

static void a_step_of_the_clock(void)
{
    world w;
    uint64_t ids[64];
    begin(&w);
    for (uint64_t i = 0; i < 10; i++)
        put(&w, 0, 1000 + i);
    CHECK_EQ(fire(&w, 1004, ids, 64), 5);
    CHECK_EQ(fire(&w, 3, ids, 64), 0); /* hours back: nothing twice */
    CHECK_EQ(fire(&w, 1ull << 60, ids, 64), 5);
    CHECK_EQ(fire(&w, 1004, ids, 64), 0);
    end(&w);
}

/* Who sleeps until the beginning of a millisecond does not sleep to its end. */
static void to_the_moment(void)
{
    CHECK_EQ(ign_due_in_ns(7, 7, 0), 0);
    CHECK_EQ(ign_due_in_ns(7, 8, 999999), 0);
    CHECK_EQ(ign_due_in_ns(8, 7, 0), 1000000);
    CHECK_EQ(ign_due_in_ns(8, 7, 999999), 1);
    CHECK_EQ(ign_due_in_ns(1007, 7, 250000), 999750000);
    CHECK_EQ(ign_due_in_ns(IGN_DUE_MAX, 0, 1), UINT64_MAX);
}

static void expires_on_the_way(void)
{
    world w;
    uint64_t ids[64], dues[3] = {10, 11, 12};
    ign_store_mark mark;
    ign_store_moved moved;
    ign_shard shard;
    begin(&w);
    put_until(&w, 1, 3, dues, 11);
    put_until(&w, 1, 2, dues, 50);
    CHECK_EQ(ign_store_move_due(w.store, w.main, 11, 100, 1 << 20, &moved, NULL, &mark), IGN_OK);
    CHECK_EQ(moved.expired, 2);
    CHECK_EQ(moved.moved, 2);
    CHECK_EQ(moved.next, 12);
    CHECK_EQ(ign_store_shard(w.store, w.later, 1, &shard), IGN_OK);
    CHECK_EQ(shard.expired, 2);
    CHECK_EQ(fire(&w, 12, ids, 64), 2);
    CHECK_EQ(ign_store_shard(w.store, w.later, 1, &shard), IGN_OK);
    CHECK_EQ(shard.expired, 3);
    CHECK_EQ(shard.living, 0);
    end(&w);
}

static void a_claim_tells_what_expired_on_the_way(void)
{
    world w;
    uint64_t dues[3] = {10, 11, 12};
    uint16_t expired[IGN_STORE_MAX_SHARDS];
    ign_slice slices[8];
    ign_store_mark mark;
    begin(&w);
    put_until(&w, 1, 3, dues, 11);
    put_until(&w, 2, 1, dues, 50);
    ign_store_fire claim = {.limit = 8, .max_bytes = 1 << 20, .owner = "o", .ms = 11, .slices = slices, .room = 8, .expired = expired};
    CHECK_EQ(ign_store_fire_over(w.store, w.main, &claim, NULL, &mark), IGN_OK);
    CHECK_EQ(claim.late, 2);
    CHECK_EQ(claim.count, 1);
    claim.ms = 12;
    CHECK_EQ(ign_store_fire_over(w.store, w.main, &claim, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(claim.late, 3);
    end(&w);
}

static void both_go_together(void)
{
    world w;
    ign_store_mark mark;
    uint64_t ms;
    uint32_t number;
    begin(&w);
    put(&w, 0, 30);
    CHECK_EQ(ign_store_drop(w.store, w.main, true, NULL, &mark), IGN_EMPTY);
    CHECK_EQ(ign_store_declare(w.store, "m later", SHARDS, 0, &number, NULL, &mark), IGN_E_MISMATCH);
    CHECK_EQ(ign_store_drop(w.store, w.main, false, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_find(w.store, "m later", &number), IGN_E_UNKNOWN);
    CHECK_EQ(ign_store_next_due(w.store, w.later, &ms), IGN_E_UNKNOWN);
    CHECK_EQ(ign_store_declare_later(w.store, w.main, "m later", SHARDS, &w.later, NULL, &mark), IGN_E_UNKNOWN);
    end(&w);
}

/* Which message each run of the listing is, against what was put and not taken. */
static void check_list(world *w)
{
    ign_due_run runs[7], after = {0};
    uint32_t count, listed = 0, living = 0;
    for (uint32_t id = 1; id <= w->known; id++)
        living += w->at[id] != 0;
    for (;;) {
        CHECK_EQ(ign_store_list_later(w->store, w->later, &after, runs, 7, &count), IGN_OK);
        if (count == 0)
            break;
        for (uint32_t i = 0; i < count; i++)
            for (uint64_t p = runs[i].first; p <= runs[i].last; p++) {
                uint32_t id = 1;
                while (id <= w->known && (w->at[id] != p || w->shard[id] != runs[i].shard))
                    id++;
                CHECK(id <= w->known);
                CHECK_EQ(runs[i].ms, w->due[id]);
                CHECK(runs[i].ms >= after.ms);
                after = (ign_due_run){.ms = runs[i].ms, .shard = runs[i].shard, .first = p};
                listed++;
            }
    }
    CHECK_EQ(listed, living);
}

static void come_and_go(void)
{
    for (uint64_t round = 0; round < 6; round++) {
        world *w = malloc(sizeof *w);
        uint64_t now = 1000, dues[8], ids[600];
        begin(w);
        seed = round;
        while (w->known + 8 < MESSAGES / (1 + round % 2)) {
            uint32_t count = 1 + (uint32_t)draw(round < 3 ? 2 : 8);
            for (uint32_t i = 0; i < count; i++)
                dues[i] = now + draw(draw(3) == 0 ? 4000 : 40);
            put_until(w, (uint16_t)draw(SHARDS), count, dues, 0);
            if (draw(4) == 0) { /* one is cancelled */
                uint32_t id = 1 + (uint32_t)draw(w->known);
                if (w->at[id] != 0) {
                    ign_store_run run = {.shard = w->shard[id], .first = w->at[id], .last = w->at[id]};
                    uint64_t retired;
                    ign_store_mark mark;
                    CHECK_EQ(ign_store_retire(w->store, w->later, &run, 1, false, &retired, NULL, &mark), IGN_OK);
                    CHECK_EQ(retired, 1);
                    w->at[id] = 0;
                }
            }
            if (draw(9) == 0) {
                now += draw(60);
                for (uint32_t found; (found = fire(w, now, ids, 600)) != 0;)
                    for (uint32_t i = 0; i < found; i++) {
                        CHECK(w->at[ids[i]] != 0 && w->due[ids[i]] <= now);
                        w->at[ids[i]] = 0;
                    }
                for (uint32_t id = 1; id <= w->known; id++)
                    CHECK(w->at[id] == 0 || w->due[id] > now);
            }
            if (draw(400) == 0)
                CHECK(ign_store_maintain(w->store) >= 0);
            if (draw(600) == 0) {
                check_list(w);
                ign_store_close(w->store);
                CHECK_EQ(ign_store_open(&w->store, w->io, &small), IGN_OK);
            }
        }
        check_list(w);
        end(w);
        free(w);
    }
}

/* -- room ---------------------------------------------------------------------------------------------------------------- */

static void add_blocks(void *arg, const char *name)
{
    char path[sizeof store_dir_path + IGN_STORE_NAME_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", store_dir_path, name);
    if (stat(path, &st) == 0)
        *(uint64_t *)arg += (uint64_t)st.st_blocks * 512;
}

static uint64_t on_disk(world *w)
{
    uint64_t total = 0;
    w->io->list(w->io, add_blocks, &total);
    return total;
}

/* Records of one load, each with a time of its own, which is not near that of its neighbour. */
static int put_apart(world *w, uint32_t count, uint64_t from, uint64_t *first)
{
    static uint8_t batch[BATCH_MAX];
    static uint64_t dues[BATCH_MAX / 32];
    ign_store_mark mark;
    ign_store_part part = {.shard = 1, .batch = batch, .bytes = batch_make(batch, count, 1, 24)};
    for (uint32_t i = 0; i < count; i++)
        dues[i] = from + (uint64_t)i * 7919 % count;
    int rc = ign_store_load_later(w->store, w->later, &part, 1, dues, NULL, &mark);
    *first = part.first;
    return rc;
}

static void a_time_takes_little(void)
{
    world w;
    uint64_t first;
    begin(&w);
    uint64_t before = on_disk(&w);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(put_apart(&w, 1500, 1000 + i * 100000, &first), IGN_OK);
    CHECK(on_disk(&w) - before < (6 << 20)); /* 6,000 of them: with 2.4 KB each beside what is kept, 14 MB and more */
    end(&w);
}

/* What a store may take counts the due times too, and what was cancelled counts no more. */
static void a_bound_holds(void)
{
    static const ign_store_options bounded = {.segment_bytes = 1 << 20, .control_reserve = 1 << 28, .max_bytes = 8 << 20};
    world w;
    uint64_t first, firsts[4096], puts[3] = {0};
    begin(&w);
    ign_store_close(w.store);
    CHECK_EQ(ign_store_open(&w.store, w.io, &bounded), IGN_OK);
    for (int round = 0; round < 3; round++) {
        int rc;
        while ((rc = put_apart(&w, 1500, 1000 + puts[round] * 100000, &first)) == IGN_OK) {
            firsts[puts[round]++] = first;
            CHECK(puts[round] < 4096);
            if (puts[round] % 8 == 0)
                CHECK(ign_store_maintain(w.store) >= 0);
        }
        CHECK(rc == IGN_E_NO_ROOM && errno == ENOBUFS);
        CHECK(on_disk(&w) < (32 << 20));
        for (uint64_t i = 0; i < puts[round]; i++) {
            ign_store_run run = {.shard = 1, .first = firsts[i], .last = firsts[i] + 1499};
            uint64_t retired;
            ign_store_mark mark;
            CHECK_EQ(ign_store_retire(w.store, w.later, &run, 1, false, &retired, NULL, &mark), IGN_OK);
            CHECK_EQ(retired, 1500);
        }
        while (ign_store_maintain(w.store) == IGN_OK)
            ;
    }
    CHECK(puts[0] > 20 && puts[1] >= puts[0] / 2 && puts[2] >= puts[0] / 2);
    end(&w);
}

/* Messages that are due are moved though the store holds as much as it may: one of many takes a batch of its own, which is larger. */
static void moved_at_the_bound(void)
{
    static const ign_store_options bounded = {.segment_bytes = 1 << 20, .control_reserve = 1 << 28, .max_bytes = 1 << 20};
    world w;
    uint64_t first, moved = 0, next = 0;
    ign_store_mark mark;
    ign_store_moved found;
    uint8_t full[BATCH_MAX];
    begin(&w);
    ign_store_close(w.store);
    CHECK_EQ(ign_store_open(&w.store, w.io, &bounded), IGN_OK);
    CHECK_EQ(put_apart(&w, 1500, 1000, &first), IGN_OK);
    int rc;
    for (uint32_t size = 800; size > 8; size = rc == IGN_OK ? size : size / 2) {
        ign_store_part part = {.shard = 0, .batch = full, .bytes = batch_make(full, 1, 1, size)};
        rc = ign_store_load(w.store, w.main, &part, 1, NULL, &mark);
    }
    CHECK(rc == IGN_E_NO_ROOM && errno == ENOBUFS);
    for (uint64_t now = 1000; now < 2500; now++) {
        CHECK_EQ(ign_store_move_due(w.store, w.main, now, 100, 1 << 20, &found, NULL, &mark), IGN_OK);
        moved += found.moved;
        next = found.next;
    }
    CHECK_EQ(moved, 1500);
    CHECK_EQ(next, IGN_DUE_NONE);
    end(&w);
}

/* Many that are due at the same time, each of a load of its own, in pages: each comes once, in order. */
static void pages_of_one_time(void)
{
    world w;
    begin(&w);
    for (uint32_t i = 0; i < 3000; i++)
        put(&w, (uint16_t)(i * 7 % SHARDS), i % 10 == 0 ? 2000 : 1000);
    check_list(&w);
    ign_due_run runs[64], after = {0};
    uint32_t count;
    CHECK_EQ(ign_store_list_later(w.store, w.later, &after, runs, 64, &count), IGN_OK);
    CHECK_EQ(count, 64);
    for (uint32_t i = 1; i < count; i++)
        CHECK(runs[i].shard == runs[i - 1].shard && runs[i].first > runs[i - 1].first);
    end(&w);
}

static int put_once(world *w, uint32_t magazine, const uint64_t *dues, uint8_t key)
{
    static uint8_t batch[BATCH_MAX];
    uint8_t id[IGN_STORE_ID_BYTES];
    ign_store_mark mark;
    memset(id, key, sizeof id);
    ign_store_part part = {.shard = 1, .batch = batch, .bytes = batch_make_until(batch, 1, w->known + 1, 24, 0)};
    int rc = ign_store_load_once(w->store, magazine, &part, 1, dues, id, 1, 1000, 1, NULL, &mark);
    if (rc == IGN_OK)
        w->shard[++w->known] = 1;
    return rc;
}

/* Once is once: whether the first one was delayed or the second, and over an opening and a due time. */
static void once_and_delayed(void)
{
    world w;
    uint64_t ids[8], due = 30;
    uint8_t id[IGN_STORE_ID_BYTES];
    bool known;
    begin(&w);
    CHECK_EQ(put_once(&w, w.later, &due, 1), IGN_OK);
    CHECK_EQ(put_once(&w, w.main, NULL, 2), IGN_OK);
    for (int again = 0; again < 3; again++) {
        for (uint8_t key = 1; key <= 2; key++) {
            CHECK_EQ(put_once(&w, w.later, &due, key), IGN_E_MISMATCH);
            CHECK_EQ(put_once(&w, w.main, NULL, key), IGN_E_MISMATCH);
            memset(id, key, sizeof id);
            CHECK_EQ(ign_store_known_ids(w.store, w.main, 1, id, 1, &known), IGN_OK);
            CHECK(known);
            CHECK_EQ(ign_store_known_ids(w.store, w.later, 1, id, 1, &known), IGN_OK);
            CHECK(!known);
        }
        if (again == 0)
            CHECK_EQ(fire(&w, 29, ids, 8), 1);
        if (again == 1)
            CHECK_EQ(fire(&w, 30, ids, 8), 1);
        ign_store_close(w.store);
        CHECK_EQ(ign_store_open(&w.store, w.io, &small), IGN_OK);
    }
    CHECK_EQ(put_once(&w, w.later, NULL, 3), IGN_OK); /* without times: due at once */
    CHECK_EQ(put_once(&w, w.main, &due, 4), IGN_E_INVALID);
    end(&w);
}

/* Times that were damaged are not believed: what they were of is due at once. */
static void damaged_times(void)
{
    uint8_t load[64] = {[3] = 7, [5] = IGN_LOAD_LATER};
    uint8_t *dues = load + 8, *tail = dues + IGN_DUES_BYTES;
    dues[6] = 5;
    dues[11] = 3;
    tail[3] = 1;
    uint32_t check = ign_dues_check(7, dues, 1);
    for (int i = 0; i < 4; i++)
        tail[4 + i] = (uint8_t)(check >> (24 - 8 * i));
    uint64_t bytes = (uint64_t)(tail + IGN_DUES_END - load);
    CHECK_EQ(ign_dues_count(load, bytes), 1);
    for (uint64_t at = 8; at < bytes; at++) {
        load[at] ^= 0x10;
        CHECK_EQ(ign_dues_count(load, bytes), 0);
        load[at] ^= 0x10;
    }
    load[3] = 8;
    CHECK_EQ(ign_dues_count(load, bytes), 0);
}

MAIN("store_due", {
    RUN(as_a_list);
    RUN(garbage_is_bounded);
    RUN(undone);
    RUN(reckoned);
    RUN(moves_what_is_due);
    RUN(few_of_many);
    RUN(a_step_of_the_clock);
    RUN(to_the_moment);
    RUN(expires_on_the_way);
    RUN(a_claim_tells_what_expired_on_the_way);
    RUN(both_go_together);
    RUN(come_and_go);
    RUN(pages_of_one_time);
    RUN(a_time_takes_little);
    RUN(a_bound_holds);
    RUN(moved_at_the_bound);
    RUN(damaged_times);
    RUN(once_and_delayed);
})
