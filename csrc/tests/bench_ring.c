/* Throughput of the ring (references only) and of the channel (messages copied in and out), two pinned threads.
 * Order is checked inside the loop. One JSON line per measurement:
 *   bench_ring [references] [core of the producer] [core of the consumer]
 */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "check.h"
#include "ignis_channel.h"

#define PAUSE 64 /* about a microsecond: what a waiting side lets pass */

static int cores[2] = {0, 1};

static void pin(int core)
{
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
        fprintf(stderr, "could not pin to core %d\n", core);
#else
    (void)core;
#endif
}

typedef struct run {
    ign_ring_producer *out;
    ign_ring_consumer *in;
    ign_channel *channel;
    uint64_t count;
    uint32_t bulk;
    uint32_t size;
    int pause; /* times that the core pauses between two tries of a side that found nothing to do */
    _Atomic int ready;
} run;

static void meet(run *r)
{
    atomic_fetch_add(&r->ready, 1);
    while (atomic_load(&r->ready) != 2)
        sched_yield(); /* the other may have to run on this core before it is pinned to its own */
}

/* A side that tries again at once takes the other's cache line each time. */
static void rest(const run *r)
{
    for (int i = 0; i < r->pause; i++)
        ign_cpu_relax();
}

static void *push_references(void *arg)
{
    run *r = arg;
    pin(cores[0]);
    meet(r);
    ign_ring_entry batch[64];
    uint64_t next = 0;
    while (next < r->count) {
        if (r->bulk == 1) {
            ign_ring_entry e = {.slot = (uint32_t)next, .length = 100};
            if (ign_ring_try_push_spsc(r->out, &e) == IGN_OK)
                next++;
            else
                rest(r);
            continue;
        }
        uint32_t n = r->bulk < r->count - next ? r->bulk : (uint32_t)(r->count - next), pushed;
        for (uint32_t i = 0; i < n; i++)
            batch[i] = (ign_ring_entry){.slot = (uint32_t)(next + i), .length = 100};
        ign_ring_try_push_many_spsc(r->out, batch, n, &pushed);
        next += pushed;
    }
    return NULL;
}

static void pop_references(run *r)
{
    ign_ring_entry batch[64];
    uint64_t next = 0;
    while (next < r->count) {
        uint32_t got = 0;
        if (r->bulk == 1)
            got = ign_ring_try_pop_spsc(r->in, batch) == IGN_OK;
        else
            ign_ring_try_pop_many_spsc(r->in, batch, r->bulk, &got);
        for (uint32_t i = 0; i < got; i++, next++)
            CHECK(batch[i].slot == (uint32_t)next);
        if (got == 0)
            rest(r);
    }
}

static void *send_messages(void *arg)
{
    run *r = arg;
    pin(cores[0]);
    meet(r);
    uint8_t body[65536];
    memset(body, 'x', sizeof body);
    for (uint64_t n = 0; n < r->count;) {
        uint32_t staged = 0;
        while (staged < r->bulk && n < r->count) {
            ign_slab_ref ref;
            uint8_t *at;
            if (ign_channel_reserve(r->channel, r->size, &ref, &at) != IGN_OK) {
                ign_channel_publish(r->channel);
                rest(r);
                break;
            }
            memcpy(at, body, r->size);
            memcpy(at, &n, 8);
            ign_channel_stage(r->channel, &ref, 0);
            staged++;
            n++;
        }
        ign_channel_publish(r->channel);
    }
    return NULL;
}

static void receive_messages(run *r)
{
    uint8_t body[65536];
    for (uint64_t next = 0; next < r->count;) {
        const ign_message *m;
        uint32_t got;
        if (ign_channel_peek(r->channel, &m, &got) != IGN_OK) {
            ign_channel_flush(r->channel);
            rest(r);
            continue;
        }
        for (uint32_t i = 0; i < got; i++, next++) {
            memcpy(body, m[i].bytes, m[i].length);
            CHECK(memcmp(body, &next, 8) == 0);
            ign_channel_give_back(r->channel, m[i].slot, m[i].generation);
        }
        ign_channel_advance(r->channel, got);
    }
    ign_channel_flush(r->channel);
}

static void measure(const char *name, run *r, void *(*produce)(void *), void (*consume)(run *))
{
    pthread_t t;
    CHECK_EQ(pthread_create(&t, NULL, produce, r), 0);
    pin(cores[1]);
    meet(r);
    uint64_t began = ign_now_ns();
    consume(r);
    uint64_t took = ign_now_ns() - began;
    pthread_join(t, NULL);
    printf("{\"bench\": \"%s\", \"bulk\": %u, \"size\": %u, \"n\": %" PRIu64 ", \"cores\": [%d, %d], \"per_second\": %.0f, \"ns\": %.2f}\n",
           name, r->bulk, r->size, r->count, cores[0], cores[1], (double)r->count * 1e9 / (double)took,
           (double)took / (double)r->count);
    fflush(stdout);
}

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(IGN_LINE_BYTES, (bytes + IGN_LINE_BYTES - 1) / IGN_LINE_BYTES * IGN_LINE_BYTES);
    CHECK(p != NULL);
    memset(p, 0, bytes);
    return p;
}

static void bench_ring(const char *name, uint32_t capacity, uint32_t bulk, int pause, uint64_t count)
{
    void *memory = aligned(ign_ring_bytes(capacity));
    run r = {.out = aligned(sizeof(ign_ring_producer)), .in = aligned(sizeof(ign_ring_consumer)), .count = count, .bulk = bulk, .pause = pause};
    CHECK_EQ(ign_ring_format(memory, capacity, 0), IGN_OK);
    CHECK_EQ(ign_ring_producer_open(r.out, memory, capacity), IGN_OK);
    CHECK_EQ(ign_ring_consumer_open(r.in, memory, capacity), IGN_OK);
    measure(name, &r, push_references, pop_references);
    free(memory), free(r.out), free(r.in);
}

static void bench_channel(const char *name, uint32_t size, uint32_t bulk, int pause, uint64_t count)
{
    ign_region_config config;
    CHECK_EQ(ign_region_config_default(&config, 4096, 65536), IGN_OK);
    run r = {.channel = aligned(sizeof(ign_channel)), .count = count, .bulk = bulk, .size = size, .pause = pause};
    CHECK_EQ(ign_channel_heap(r.channel, &config), IGN_OK);
    measure(name, &r, send_messages, receive_messages);
    ign_channel_close(r.channel);
    free(r.channel);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 50000000;
    if (argc > 3) {
        cores[0] = atoi(argv[2]);
        cores[1] = atoi(argv[3]);
    }
    bench_ring("ring", 4096, 1, PAUSE, count);
    bench_ring("ring", 4096, 64, PAUSE, count);
    bench_ring("ring_always_empty", 4096, 1, 0, count / 4);
    bench_ring("ring_always_full", 16, 1, 0, count / 4);
    bench_channel("channel", 100, 1, PAUSE, count / 4);
    bench_channel("channel", 100, 64, PAUSE, count / 2);
    bench_channel("channel", 4096, 1, PAUSE, count / 50);
    bench_channel("channel_always_empty", 100, 1, 0, count / 8);
    return 0;
}
