/* The files of a store: a disk that is full, strays, what is set aside, one maintainer, a control file that is cut or removed, a child. */
#define _GNU_SOURCE
#include "store_small.h"

#include "../ignis_store_parts.h"

#include <errno.h>
#include <sys/wait.h>
#include <time.h>

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

MAIN("store_files", {
    RUN(full_disk);
    RUN(strays);
    RUN(one_maintains);
    RUN(set_aside);
    RUN(control_file_cut);
    RUN(control_file_removed);
    RUN(in_a_child);
})
