/* Real processes on one store: some are killed, one is stopped for longer than anybody waits, and the rest go on.
 *
 * A worker loads messages with numbers of its own and retires what it claims; what it was told stands in memory that
 * it shares with the parent. In the end every message that a load returned for is there or was retired, and none twice. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WORKERS = 3, LIVES = 12, IDS = 1 << 17, PER_LIFE = IDS / (WORKERS * LIVES + 1), BATCH = 3 };

typedef struct told {
    _Atomic uint8_t loaded[IDS];   /* the load returned */
    _Atomic uint8_t retiring[IDS]; /* it was claimed, and is being retired */
    _Atomic uint32_t claims[IDS];
    _Atomic uint32_t rounds[WORKERS];
    _Atomic uint32_t failed, done; /* `done`: workers that had no more to do */
} told;

static const ign_store_options options = {.segment_bytes = 1 << 18, .control_reserve = 1 << 26, .stopped_after_ns = 100000000,
                                          .checkpoint_bytes = 1 << 18};
static told *shared;
static uint32_t magazine;

#define EXPECT(condition)                                                                                \
    do {                                                                                                 \
        if (!(condition)) {                                                                              \
            fprintf(stderr, "%s:%d: not true: %s (code %d)\n", __FILE__, __LINE__, #condition, rc);      \
            atomic_store(&shared->failed, 1);                                                            \
            _exit(1);                                                                                    \
        }                                                                                                \
    } while (0)

static void live(int worker, uint64_t first_id)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_io *io;
    ign_store *store;
    ign_store_mark mark;
    int rc = ign_store_io_open(store_dir_path, &io);
    EXPECT(rc == 0);
    rc = ign_store_open(&store, io, &options);
    EXPECT(rc == IGN_OK);
    for (uint64_t id = first_id; id + BATCH <= first_id + PER_LIFE; id += BATCH) {
        ign_store_part part = {.batch = batch, .bytes = batch_make(batch, BATCH, id, 20)};
        rc = ign_store_load(store, magazine, &part, 1, NULL, &mark);
        EXPECT(rc == IGN_OK);
        for (uint32_t i = 0; i < BATCH; i++)
            atomic_store(&shared->loaded[id + i], 1);
        ign_slice slices[8];
        uint32_t count;
        bool expired;
        rc = ign_store_claim(store, magazine, 0, BATCH, 1 << 20, "worker", 1, slices, 8, &count, &expired, NULL, &mark);
        EXPECT(rc == IGN_OK || rc == IGN_EMPTY);
        for (uint32_t i = 0; i < count; i++) {
            rc = ign_store_fetch(store, &slices[i], batch);
            EXPECT(rc == IGN_OK);
            ign_store_run run = {.first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
            for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
                uint64_t got = batch_read(batch, &slices[i], magazine, k);
                EXPECT(got > 0 && got < IDS);
                atomic_fetch_add(&shared->claims[got], 1);
                atomic_store(&shared->retiring[got], 1);
            }
            uint64_t retired;
            rc = ign_store_retire(store, magazine, &run, 1, false, &retired, NULL, &mark);
            EXPECT(rc == IGN_OK && retired == run.last - run.first + 1);
        }
        if (id % 64 == 0) {
            rc = ign_store_flush(store, &mark, true);
            EXPECT(rc == IGN_OK);
        }
        if (id % 512 == 0)
            ign_store_maintain(store);
        atomic_fetch_add(&shared->rounds[worker], 1);
    }
    ign_store_close(store);
    ign_store_io_close(io);
    atomic_fetch_or(&shared->done, 1u << worker);
    _exit(0);
}

static pid_t start(int worker, int life)
{
    atomic_fetch_and(&shared->done, ~(1u << worker));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        live(worker, 1 + (uint64_t)(worker * LIVES + life) * PER_LIFE);
    return child;
}

/* Somebody other than `worker` makes progress, though that one is dead or stopped. */
static void others_go_on(int worker, const bool *running)
{
    uint32_t before[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        before[i] = atomic_load(&shared->rounds[i]);
    for (int wait = 0; wait < 20000; wait++) {
        bool any = false;
        for (int i = 0; i < WORKERS; i++) {
            if (i == worker || !running[i] || (atomic_load(&shared->done) >> i & 1) != 0)
                continue;
            any = true;
            if (atomic_load(&shared->rounds[i]) > before[i] + 2)
                return;
        }
        if (!any || atomic_load(&shared->failed))
            return;
        usleep(1000);
    }
    CHECK(false && "somebody goes on within 20 s");
}

static void killed_and_stopped(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store;
    ign_store_mark mark;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &magazine, NULL, &mark), IGN_OK);
    ign_store_close(store);

    pid_t children[WORKERS];
    bool running[WORKERS];
    int lives[WORKERS] = {0};
    for (int i = 0; i < WORKERS; i++) {
        children[i] = start(i, lives[i]++);
        running[i] = true;
    }
    unsigned draw = 7;
    for (int event = 0; event < 24 && !atomic_load(&shared->failed); event++) {
        int victim = event % WORKERS;
        draw = draw * 1103515245u + 12345u;
        usleep(draw >> 16 & 0x3fff);
        if (event % 4 == 3) {
            kill(children[victim], SIGSTOP);
            others_go_on(victim, running);
            kill(children[victim], SIGCONT);
            continue;
        }
        kill(children[victim], SIGKILL);
        CHECK(waitpid(children[victim], NULL, 0) == children[victim]);
        running[victim] = lives[victim] < LIVES;
        others_go_on(victim, running);
        if (running[victim])
            children[victim] = start(victim, lives[victim]++);
    }
    for (int i = 0; i < WORKERS; i++) {
        if (!running[i])
            continue;
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    CHECK_EQ(atomic_load(&shared->failed), 0);

    static uint8_t there[IDS], batch[BATCH_MAX];
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_OK);
    for (uint64_t from = 1;;) {
        ign_slice slices[64];
        uint32_t count;
        CHECK_EQ(ign_store_peek(store, magazine, 0, from, UINT64_MAX, slices, 64, &count), IGN_OK);
        if (count == 0)
            break;
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
            for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
                uint64_t id = batch_read(batch, &slices[i], magazine, k);
                CHECK(id > 0 && id < IDS && !there[id]);
                there[id] = 1;
            }
            from = slices[i].first + slices[i].to;
        }
    }
    uint32_t loaded = 0;
    for (int id = 1; id < IDS; id++) {
        loaded += atomic_load(&shared->loaded[id]);
        CHECK(!atomic_load(&shared->loaded[id]) || there[id] || atomic_load(&shared->retiring[id])); /* none lost */
        CHECK(atomic_load(&shared->claims[id]) <= 1);                                                /* none twice */
    }
    CHECK(loaded > 100);
    ign_store_close(store);
    munmap(shared, sizeof *shared);
    store_dir_close(io);
}

#ifdef __linux__
MAIN("store_process", { RUN(killed_and_stopped); })
#else
MAIN("store_process", { (void)killed_and_stopped; })
#endif
