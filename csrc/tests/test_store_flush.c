/* Flushes: one that fails is told to all whom it concerns, with what refused it; and what is sent to the disk ahead of one. */
#define _GNU_SOURCE
#include "store_small.h"

#include "../ignis_store_parts.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

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

MAIN("store_flush", {
    RUN(sent_ahead);
    RUN(told_to_one_thread);
    RUN(handed_out_and_refused);
    RUN(claimed_before_a_refusal);
    RUN(refused_by_what);
})
