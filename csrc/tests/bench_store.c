/* The store beside a raw append of the same bytes, in the same run: ratios, and processor time of lone calls.
 *
 *   bench_store DIRECTORY
 */
#define _GNU_SOURCE
#include "store_batch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 1000, BODY = 100, BATCHES = 2000, ALONE = 1000, ROUNDS = 5 };

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static uint8_t *batch;
static uint32_t batch_bytes;

static double raw_append(const char *path, const uint8_t *bytes, size_t size, int count, int flush_each)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0);
    double began = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < count; i++) {
        CHECK(write(fd, bytes, size) == (ssize_t)size);
        if (flush_each)
            CHECK(fdatasync(fd) == 0);
    }
    double took = seconds(CLOCK_MONOTONIC) - began;
    close(fd);
    unlink(path);
    return took;
}

static double load_all(ign_store *store, uint32_t m, const uint8_t *bytes, uint32_t size, int count, int flush_each)
{
    ign_store_mark mark;
    double began = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < count; i++) {
        ign_store_part part = {.batch = bytes, .bytes = size};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        if (flush_each)
            CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    }
    return seconds(CLOCK_MONOTONIC) - began;
}

static double claim_all(ign_store *store, uint32_t m, uint32_t limit, uint64_t *total)
{
    static uint8_t buffer[1 << 20];
    ign_slice slices[64];
    uint32_t count;
    bool expired;
    ign_store_mark mark;
    *total = 0;
    double began = seconds(CLOCK_MONOTONIC);
    while (ign_store_claim(store, m, 0, limit, 1 << 26, "bench", 1, slices, 64, &count, &expired, NULL, &mark) == IGN_OK) {
        ign_store_run runs[64];
        uint64_t retired;
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(ign_store_fetch(store, &slices[i], buffer), IGN_OK);
            runs[i] = (ign_store_run){.first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
        }
        CHECK_EQ(ign_store_retire(store, m, runs, count, false, &retired, NULL, &mark), IGN_OK);
        *total += retired;
    }
    return seconds(CLOCK_MONOTONIC) - began;
}

/* Processor time of one call, a millisecond after the last. */
static void cold(ign_store *store, uint32_t m, const uint8_t *one, uint32_t size)
{
    double load = 0, claim = 0, retire = 0;
    uint8_t buffer[4096];
    for (int i = 0; i < ALONE; i++) {
        ign_store_mark mark;
        ign_store_part part = {.batch = one, .bytes = size};
        ign_slice slice;
        uint32_t count;
        bool expired;
        uint64_t retired;
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        double t = seconds(CLOCK_THREAD_CPUTIME_ID);
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        load += seconds(CLOCK_THREAD_CPUTIME_ID) - t;
        nanosleep(&pause, NULL);
        t = seconds(CLOCK_THREAD_CPUTIME_ID);
        CHECK_EQ(ign_store_claim(store, m, 0, 1, 1 << 20, "bench", 1, &slice, 1, &count, &expired, NULL, &mark), IGN_OK);
        CHECK_EQ(ign_store_fetch(store, &slice, buffer), IGN_OK);
        claim += seconds(CLOCK_THREAD_CPUTIME_ID) - t;
        nanosleep(&pause, NULL);
        ign_store_run run = {.first = slice.first, .last = slice.first};
        t = seconds(CLOCK_THREAD_CPUTIME_ID);
        CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
        retire += seconds(CLOCK_THREAD_CPUTIME_ID) - t;
    }
    printf("alone, cold: load %.1f us, claim and fetch %.1f us, retire %.1f us of processor time\n", load / ALONE * 1e6,
           claim / ALONE * 1e6, retire / ALONE * 1e6);
}

static void each_round(ign_store *store, uint32_t m, const char *raw, int round, double values[6][ROUNDS])
{
    uint8_t one[512];
    uint32_t size = batch_make(one, 1, 1, BODY);
    uint64_t total;
    double raw_one = raw_append(raw, one, size, 500, 1), raw_many = raw_append(raw, batch, batch_bytes, 200, 1);
    double raw_plain = raw_append(raw, batch, batch_bytes, BATCHES, 0);
    values[0][round] = raw_one / load_all(store, m, one, size, 500, 1);
    values[1][round] = raw_many / load_all(store, m, batch, batch_bytes, 200, 1);
    claim_all(store, m, BATCH, &total);
    double plain = load_all(store, m, batch, batch_bytes, BATCHES, 0);
    values[2][round] = raw_plain / plain;
    values[3][round] = (double)BATCHES * BATCH / plain / 1e6;
    double claimed = claim_all(store, m, BATCH, &total);
    values[4][round] = (double)total / claimed / 1e6;
    load_all(store, m, one, size, 20000, 0);
    values[5][round] = claim_all(store, m, 1, &total) / 20000 * 1e6;
    while (ign_store_maintain(store) == IGN_OK)
        ;
}

/* How long opening takes with so many messages waiting, loaded so many at a time: behind a checkpoint of all but the last segment or
 * two, and with nothing but the log. */
static int opening(const char *directory, uint64_t messages, uint32_t each)
{
    ign_store_io *io;
    ign_store *store;
    ign_store_mark mark;
    ign_store_figures figures;
    uint32_t m;
    const ign_store_options never = {.checkpoint_bytes = UINT64_MAX};
    CHECK(each >= 1 && each <= BATCH);
    batch = malloc(1 << 20);
    CHECK(batch != NULL);
    batch_bytes = batch_make(batch, each, 1, BODY);
    CHECK_EQ(ign_store_io_open(directory, &io), 0);
    CHECK_EQ(ign_store_open(&store, io, &never), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "bench", 1, 0, &m, NULL, &mark), IGN_OK);
    ign_store_part part = {.batch = batch, .bytes = batch_bytes};
    for (uint64_t n = 0; n < messages; n += each)
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    ign_store_close(store);
    double began = seconds(CLOCK_MONOTONIC);
    CHECK_EQ(ign_store_open(&store, io, &never), IGN_OK);
    double whole = seconds(CLOCK_MONOTONIC) - began;
    ign_store_close(store);
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    while (ign_store_maintain(store) == IGN_OK)
        ;
    ign_store_close(store);
    began = seconds(CLOCK_MONOTONIC);
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    double clean = seconds(CLOCK_MONOTONIC) - began;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.living_records >= messages);
    printf("%" PRIu64 " messages, %u at a time: state %.1f MiB, log %.2f GiB; opened in %.2f s behind a checkpoint, in %.2f s from the log alone "
           "(%.2f s for each GiB)\n",
           figures.living_records, each, (double)figures.state_bytes / 1048576, (double)figures.end / 1073741824, clean, whole,
           whole / ((double)figures.end / 1073741824));
    ign_store_close(store);
    ign_store_io_close(io);
    return 0;
}

/* bench_store DIRECTORY [MESSAGES AT_A_TIME] */
int main(int argc, char **argv)
{
    if (argc == 4)
        return opening(argv[1], strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
    static double values[6][ROUNDS];
    char raw[512];
    ign_store_io *io;
    ign_store *store;
    ign_store_mark mark;
    uint32_t m;
    CHECK(argc == 2);
    snprintf(raw, sizeof raw, "%s/raw", argv[1]);
    batch = malloc(1 << 20);
    CHECK(batch != NULL);
    batch_bytes = batch_make(batch, BATCH, 1, BODY);
    CHECK_EQ(ign_store_io_open(argv[1], &io), 0);
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "bench", 1, 0, &m, NULL, &mark), IGN_OK);
    for (int round = 0; round < ROUNDS; round++)
        each_round(store, m, raw, round, values);
    printf("one at a time, flushed each:  %.2f x raw append and fdatasync\n", median(values[0]));
    printf("batches of %d, flushed each: %.2f x\n", BATCH, median(values[1]));
    printf("batches, not flushed:         %.2f x raw append, %.1f million messages a second\n", median(values[2]), median(values[3]));
    printf("claim, fetch, retire batches: %.1f million messages a second\n", median(values[4]));
    printf("claim, fetch, retire one:     %.1f us\n", median(values[5]));
    uint8_t one[512];
    cold(store, m, one, batch_make(one, 1, 1, BODY));
    ign_store_close(store);
    ign_store_io_close(io);
    return 0;
}
