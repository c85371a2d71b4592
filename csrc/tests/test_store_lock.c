/* The writer's lock: whose holder is at work, however slow its disk, is not taken for stopped.
 *
 * The clock stands still but for what a slow disk takes, and that ends when who waits has looked at it, so nothing depends on
 * how fast this machine is.
 */
#define _GNU_SOURCE
#include "check.h"
#include "store_batch.h"
#include "store_dir.h"

#include "../ignis_store_parts.h"

#include <pthread.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#define LEAKS(yes) ((yes) ? __lsan_disable() : __lsan_enable())
#else
#define LEAKS(yes) ((void)(yes))
#endif

enum { MIB = 1 << 20, LARGE_MIB = 6, LOOKS = 3 };
#define S UINT64_C(1000000000)

static const ign_store_options options = {.segment_bytes = 1 << 18, .control_reserve = 1 << 27, .checkpoint_bytes = 64 * MIB,
                                          .piece_bytes = MIB, .stopped_after_ns = 2 * S};

static _Atomic uint64_t clock_ns, looks; /* `looks`: at the clock, by who waits */
static _Atomic bool held_up, done;       /* the writer, by its disk; who waits has what it wanted */
static bool slow_writes, slow_flush;
static ign_store_io real;

static uint64_t stands_still(ign_store_io *io)
{
    (void)io;
    return atomic_load(&clock_ns);
}

static uint64_t is_looked_at(ign_store_io *io)
{
    atomic_fetch_add(&looks, 1);
    return stands_still(io);
}

static void until(const char *what, bool (*is_so)(uint64_t), uint64_t arg)
{
    for (int i = 0; !is_so(arg); i++) {
        if (i == 60000) {
            fprintf(stderr, "not within a minute: %s\n", what);
            exit(1);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static bool was_seen(uint64_t from)
{
    return atomic_load(&done) || atomic_load(&looks) >= from + LOOKS;
}

static bool is_held_up(uint64_t arg)
{
    (void)arg;
    return atomic_load(&held_up);
}

static void takes(uint64_t ns)
{
    atomic_store(&held_up, true);
    until("who waits looks", was_seen, atomic_load(&looks));
    atomic_fetch_add(&clock_ns, ns);
    until("who waits looks again", was_seen, atomic_load(&looks));
}

static int write_slowly(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at)
{
    if (slow_writes && bytes >= MIB)
        takes(S * bytes / MIB);
    return real.write(io, file, from, bytes, at);
}

static int flush_slowly(ign_store_io *io, int file)
{
    if (slow_flush) {
        slow_flush = false;
        takes(3 * S);
    }
    return real.flush(io, file);
}

static ign_store *open_with(ign_store_io *io)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_OK);
    return store;
}

static uint64_t load(ign_store *store, uint32_t m, uint8_t *batch, uint32_t bytes)
{
    ign_store_mark mark;
    ign_store_part part = {.batch = batch, .bytes = bytes};
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    return mark.generation;
}

typedef struct neighbour {
    ign_store *store;
    uint32_t m;
    uint64_t generation;
} neighbour;

static void *load_small(void *arg)
{
    neighbour *n = arg;
    uint8_t batch[4096];
    until("the writer is held up", is_held_up, 0);
    n->generation = load(n->store, n->m, batch, batch_make(batch, 3, 100, 24));
    atomic_store(&done, true);
    return NULL;
}

/* Two large loads one behind the other, and somebody else's small one in the midst of the second. */
static void large_beside_small(bool writes, bool flush)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    real = *io;
    io->write = write_slowly;
    io->flush = flush_slowly;
    io->now_ns = stands_still;
    other_io->now_ns = is_looked_at;
    atomic_store(&clock_ns, S);
    atomic_store(&held_up, false);
    atomic_store(&done, false);
    slow_writes = slow_flush = false;
    ign_store *store = open_with(io);
    neighbour n = {.store = open_with(other_io)};
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &n.m, NULL, &mark), IGN_OK);
    uint8_t *large = malloc((LARGE_MIB + 1) * MIB);
    CHECK(large != NULL);
    uint32_t bytes = batch_make(large, LARGE_MIB, 1, MIB);
    uint64_t generation = load(store, n.m, large, bytes);
    slow_writes = writes;
    slow_flush = flush;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, load_small, &n), 0);
    CHECK_EQ(load(store, n.m, large, bytes), generation);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(n.generation, generation);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, n.m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.living, 2 * LARGE_MIB + 3);
    CHECK(!slow_flush && atomic_load(&clock_ns) > 3 * S);
    free(large);
    ign_store_close(store);
    ign_store_close(n.store);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

/* A write that takes three times as long as anybody waits, in pieces that do not. */
static void slow_write(void)
{
    large_beside_small(true, false);
}

/* A flush that takes longer than anybody waits is over before the lock is taken. */
static void slow_flush_of_the_last(void)
{
    large_beside_small(false, true);
}

/* -- the next generation ----------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4 };
static _Atomic unsigned begun, made; /* threads that are about to load; logs of new generations */
static _Atomic bool falls;

static bool all_begun(uint64_t arg)
{
    (void)arg;
    return atomic_load(&begun) == THREADS;
}

static int list_late(ign_store_io *io, ign_store_name_fn *each, void *arg)
{
    if (atomic_exchange(&falls, false))
        ign_landing_leave(); /* as if the control file were cut under its mapping just here */
    until("all threads are there", all_begun, 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* to where they find that the generation has ended */
    return real.list(io, each, arg);
}

static int open_and_count(ign_store_io *io, const char *name, bool create, int *file)
{
    atomic_fetch_add(&made, create && strncmp(name, "tmp-log", 7) == 0);
    return real.open(io, name, create, file);
}

static void *load_one(void *arg)
{
    neighbour *n = arg;
    uint8_t batch[4096];
    atomic_fetch_add(&begun, 1);
    load(n->store, n->m, batch, batch_make(batch, 3, 100, 24));
    return NULL;
}

static ign_store *sealed_store(ign_store_io *io, neighbour *n)
{
    static const ign_store_options bounded = {.segment_bytes = 1 << 18, .control_reserve = 1 << 27, .busy_after_ns = 30 * S};
    ign_store_mark mark;
    ign_generation *g;
    real = *io;
    CHECK_EQ(ign_store_open(&n->store, io, &bounded), IGN_OK);
    CHECK_EQ(ign_store_declare(n->store, "m", 1, 0, &n->m, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_enter(n->store, &g), IGN_OK);
    ign_store_seal(n->store, g);
    ign_store_leave(n->store, g);
    atomic_store(&made, 0);
    return n->store;
}

/* Of a process that finds its generation ended one thread makes the next. */
static void made_once(void)
{
    ign_store_io *io = store_dir_open();
    neighbour n;
    ign_store *store = sealed_store(io, &n);
    pthread_t threads[THREADS];
    atomic_store(&begun, 0);
    io->list = list_late;
    io->open = open_and_count;
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, load_one, &n), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(atomic_load(&made), 1);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(store, n.m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.living, 3 * THREADS);
    ign_store_close(store);
    store_dir_close(io);
}

/* One that falls out of making it keeps nobody else from it. */
static void one_that_falls(void)
{
    ign_store_io *io = store_dir_open();
    neighbour n;
    ign_store *store = sealed_store(io, &n);
    uint8_t batch[4096];
    ign_store_mark mark;
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 3, 100, 24)};
    atomic_store(&begun, THREADS);
    atomic_store(&falls, true);
    io->list = list_late;
    LEAKS(true); /* what a thread has allocated where it falls stays */
    CHECK_EQ(ign_store_load(store, n.m, &part, 1, NULL, &mark), IGN_E_IO);
    LEAKS(false);
    CHECK_EQ(ign_store_load(store, n.m, &part, 1, NULL, &mark), IGN_OK);
    ign_store_close(store);
    store_dir_close(io);
}

MAIN("store_lock", {
    RUN(slow_write);
    RUN(slow_flush_of_the_last);
    RUN(made_once);
    RUN(one_that_falls);
})
