/* The thread that flushes every so often. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_parts.h"
#include "../ignis_wait.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 1000000ull
#define S 1000000000ull

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 27, .checkpoint_bytes = 1 << 16};

static ign_store *open_small(ign_store_io *io, uint32_t *number)
{
    ign_store *store;
    ign_store_mark mark;
    CHECK_EQ(ign_store_open(&store, io, &small), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, number, NULL, &mark), IGN_OK);
    return store;
}

static void load(ign_store *store, uint32_t number, uint64_t id)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.batch = batch, .bytes = batch_make_until(batch, 1, id, 24, 0)};
    CHECK_EQ(ign_store_load(store, number, &part, 1, NULL, &mark), IGN_OK);
}

static bool all_flushed(ign_store *store)
{
    ign_store_figures figures;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    return figures.durable >= figures.end;
}

static uint64_t living(ign_store *store)
{
    ign_store_figures figures;
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    return figures.living_records;
}

/* True once it is so, within a time that only a fault takes. */
static bool soon(bool (*is)(void *), void *arg)
{
    for (uint64_t until = ign_now_ns() + 30 * S; ign_now_ns() < until; usleep(2000))
        if (is(arg))
            return true;
    return false;
}

static bool is_flushed(void *store)
{
    return all_flushed(store);
}

static bool has_failed(void *interval)
{
    return ign_store_interval_failures(interval) != 0;
}

static void end(ign_store_interval *interval)
{
    CHECK_EQ(ign_store_interval_close(interval, 30 * S), IGN_OK);
    CHECK_EQ(ign_store_interval_close(interval, 0), IGN_OK);
    ign_store_interval_free(interval);
}

/* -- a disk that refuses, and one that hangs */

static struct {
    int (*flush)(ign_store_io *io, int file);
    _Atomic bool refuses, hangs, hung;
} disk;

static int flush_of_disk(ign_store_io *io, int file)
{
    while (atomic_load(&disk.hangs)) {
        atomic_store(&disk.hung, true);
        usleep(1000);
    }
    return atomic_load(&disk.refuses) ? EIO : disk.flush(io, file);
}

static ign_store_io *open_disk(void)
{
    ign_store_io *io = store_dir_open();
    disk.flush = io->flush;
    atomic_store(&disk.hung, false);
    io->flush = flush_of_disk;
    return io;
}

static bool is_hung(void *arg)
{
    (void)arg;
    return atomic_load(&disk.hung);
}

/* -- the cases */

static void flushes_by_itself(void)
{
    ign_store_io *io = store_dir_open();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    CHECK_EQ(ign_store_interval_open(&interval, store, 20 * MS), IGN_OK);
    for (uint64_t id = 1; id < 4; id++) {
        load(store, m, id);
        CHECK(soon(is_flushed, store));
    }
    CHECK_EQ(ign_store_interval_failures(interval), 0);
    end(interval);
    ign_store_close(store);
    store_dir_close(io);
}

/* With its code and its errno; and nothing is given up. */
static void a_failure_is_kept(void)
{
    ign_store_io *io = open_disk();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    ign_store_failure failure, later;
    CHECK_EQ(ign_store_interval_open(&interval, store, 20 * MS), IGN_OK);
    ign_store_interval_failure(interval, &failure);
    CHECK_EQ(failure.times, 0);
    CHECK_EQ(ign_store_interval_rest(interval, 30 * S), IGN_OK);
    load(store, m, 1);
    load(store, m, 2);
    atomic_store(&disk.refuses, true);
    ign_store_interval_go_on(interval);
    CHECK(soon(has_failed, interval));
    CHECK_EQ(ign_store_interval_rest(interval, 30 * S), IGN_OK); /* no other flush is about to fail */
    atomic_store(&disk.refuses, false);
    ign_store_interval_go_on(interval);
    CHECK(soon(is_flushed, store));
    ign_store_interval_failure(interval, &failure);
    CHECK(failure.times != 0 && failure.times == ign_store_interval_failures(interval));
    CHECK_EQ(failure.code, IGN_E_FAILED);
    CHECK_EQ(failure.error, EIO);
    load(store, m, 3);
    CHECK(soon(is_flushed, store));
    ign_store_interval_failure(interval, &later);
    CHECK(later.times == failure.times && later.code == IGN_E_FAILED); /* it is for who asks to forget it */
    end(interval);
    CHECK_EQ(living(store), 3);
    ign_store_close(store);
    store_dir_close(io);
}

static void rests(void)
{
    ign_store_io *io = store_dir_open();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    CHECK_EQ(ign_store_interval_open(&interval, store, 1 * MS), IGN_OK);
    CHECK_EQ(ign_store_interval_rest(interval, 30 * S), IGN_OK);
    CHECK_EQ(ign_store_interval_rest(interval, 30 * S), IGN_OK);
    load(store, m, 1);
    usleep(100000);
    CHECK(!all_flushed(store));
    ign_store_interval_go_on(interval);
    usleep(100000);
    CHECK(!all_flushed(store)); /* the other one rests still */
    ign_store_interval_go_on(interval);
    CHECK(soon(is_flushed, store));
    end(interval);
    ign_store_close(store);
    store_dir_close(io);
}

static void ends_at_once(void)
{
    ign_store_io *io = store_dir_open();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    CHECK_EQ(ign_store_interval_open(&interval, store, 3600 * S), IGN_OK);
    uint64_t began = ign_now_ns();
    end(interval);
    CHECK(ign_now_ns() - began < 20 * S);
    /* Also while somebody has it rest. */
    CHECK_EQ(ign_store_interval_open(&interval, store, 3600 * S), IGN_OK);
    CHECK_EQ(ign_store_interval_rest(interval, 30 * S), IGN_OK);
    end(interval);
    ign_store_close(store);
    store_dir_close(io);
}

/* Who waits for it waits for as long as it said. */
static void a_disk_that_hangs(void)
{
    ign_store_io *io = open_disk();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    atomic_store(&disk.hangs, true);
    load(store, m, 1);
    CHECK_EQ(ign_store_interval_open(&interval, store, 1 * MS), IGN_OK);
    CHECK(soon(is_hung, NULL));
    CHECK_EQ(ign_store_interval_rest(interval, 20 * MS), IGN_TIMEOUT);
    CHECK_EQ(ign_store_interval_close(interval, 20 * MS), IGN_TIMEOUT);
    CHECK_EQ(ign_store_interval_close(interval, 0), IGN_TIMEOUT);
    atomic_store(&disk.hangs, false);
    end(interval);
    CHECK(all_flushed(store));
    ign_store_close(store);
    store_dir_close(io);
}

static _Atomic int signals;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
}

/* A signal of the process is for the threads of the program. */
static void takes_no_signal(void)
{
    ign_store_io *io = store_dir_open();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    CHECK_EQ(ign_store_interval_open(&interval, store, 1 * MS), IGN_OK);
    struct sigaction count = {.sa_handler = count_signal};
    sigset_t one, before, pending;
    CHECK_EQ(sigaction(SIGUSR1, &count, NULL), 0);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &one, &before), 0);
    CHECK_EQ(kill(getpid(), SIGUSR1), 0);
    load(store, m, 1);
    CHECK(soon(is_flushed, store));
    CHECK_EQ(atomic_load(&signals), 0);
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    CHECK_EQ(atomic_load(&signals), 1);
    end(interval);
    ign_store_close(store);
    store_dir_close(io);
}

/* There is no thread there, and whatever was held stays held. */
static void in_a_child(void)
{
    ign_store_io *io = store_dir_open();
    uint32_t m;
    ign_store *store = open_small(io, &m);
    ign_store_interval *interval;
    CHECK_EQ(ign_store_interval_open(&interval, store, 1 * MS), IGN_OK);
    for (uint64_t id = 1; id < 20; id++) {
        load(store, m, id);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            ign_store_interval_abandon(interval);
            ign_store_abandon(store);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(soon(is_flushed, store));
    end(interval);
    ign_store_close(store);
    store_dir_close(io);
}

MAIN("store_interval", {
    RUN(flushes_by_itself);
    RUN(a_failure_is_kept);
    RUN(rests);
    RUN(ends_at_once);
    RUN(a_disk_that_hangs);
    RUN(takes_no_signal);
    RUN(in_a_child);
})
