/* The ring: white-box cases at the wraps, and two threads that check order and content of every entry. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "check.h"
#include "ignis_error.h"
#include "ignis_ring.h"

typedef struct pair {
    void *memory;
    ign_ring_producer *out;
    ign_ring_consumer *in;
} pair;

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(IGN_LINE_BYTES, (bytes + IGN_LINE_BYTES - 1) / IGN_LINE_BYTES * IGN_LINE_BYTES);
    CHECK(p != NULL);
    return p;
}

static pair make(uint32_t capacity, uint64_t start)
{
    pair p = {aligned(ign_ring_bytes(capacity)), aligned(sizeof(ign_ring_producer)), aligned(sizeof(ign_ring_consumer))};
    CHECK_EQ(ign_ring_format(p.memory, capacity, start), IGN_OK);
    CHECK_EQ(ign_ring_producer_open(p.out, p.memory, capacity), IGN_OK);
    CHECK_EQ(ign_ring_consumer_open(p.in, p.memory, capacity), IGN_OK);
    return p;
}

static void drop(pair p)
{
    free(p.memory);
    free(p.out);
    free(p.in);
}

static ign_ring_entry entry(uint64_t n)
{
    return (ign_ring_entry){.slot = (uint32_t)n, .generation = (uint32_t)(n >> 32), .length = (uint32_t)(n * 7),
                            .offset = (uint16_t)n, .kind = (uint16_t)(n ^ 0x5555)};
}

static bool same(const ign_ring_entry *e, uint64_t n)
{
    ign_ring_entry want = entry(n);
    return memcmp(e, &want, sizeof want) == 0;
}

static void capacities(void)
{
    CHECK(!ign_ring_capacity_valid(0) && !ign_ring_capacity_valid(3) && !ign_ring_capacity_valid(1u << 25));
    CHECK(ign_ring_capacity_valid(1) && ign_ring_capacity_valid(1u << 24));
    void *memory = aligned(ign_ring_bytes(4));
    CHECK_EQ(ign_ring_format(memory, 3, 0), IGN_E_INVALID);
    CHECK_EQ(ign_ring_format((char *)memory + 8, 2, 0), IGN_E_INVALID);
    CHECK_EQ(ign_ring_format(NULL, 4, 0), IGN_E_INVALID);
    free(memory);
}

/* Fill, refuse, drain, refuse: every slot is usable, whatever the positions are. */
static void fill_and_drain_from(uint64_t start, uint32_t capacity)
{
    pair p = make(capacity, start);
    for (int lap = 0; lap < 3; lap++) {
        for (uint32_t i = 0; i < capacity; i++) {
            ign_ring_entry e = entry(i);
            CHECK_EQ(ign_ring_try_push_spsc(p.out, &e), IGN_OK);
            CHECK_EQ(ign_ring_depth(p.out->control), i + 1);
        }
        ign_ring_entry extra = entry(99), got;
        CHECK_EQ(ign_ring_try_push_spsc(p.out, &extra), IGN_FULL);
        for (uint32_t i = 0; i < capacity; i++) {
            CHECK_EQ(ign_ring_try_pop_spsc(p.in, &got), IGN_OK);
            CHECK(same(&got, i));
        }
        CHECK_EQ(ign_ring_try_pop_spsc(p.in, &got), IGN_EMPTY);
    }
    drop(p);
}

static void wraps(void)
{
    static const uint64_t starts[] = {0, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 5, UINT32_MAX, UINT32_MAX - 3ull, 1ull << 32};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (uint32_t capacity = 1; capacity <= 16; capacity *= 2)
            fill_and_drain_from(starts[s], capacity);
}

static void bulk_splits_at_the_end_of_the_array(void)
{
    pair p = make(8, UINT64_MAX - 2); /* the array wraps and so does the counter */
    ign_ring_entry in[12], out[12];
    uint32_t n;
    for (uint64_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 12; i++)
            in[i] = entry(round * 100 + i);
        CHECK_EQ(ign_ring_try_push_many_spsc(p.out, in, 5, &n), IGN_OK);
        CHECK_EQ(n, 5);
        CHECK_EQ(ign_ring_try_push_many_spsc(p.out, in + 5, 7, &n), IGN_OK);
        CHECK_EQ(n, 3); /* what fits */
        CHECK_EQ(ign_ring_try_push_many_spsc(p.out, in, 1, &n), IGN_FULL);
        CHECK_EQ(n, 0);
        CHECK_EQ(ign_ring_try_pop_many_spsc(p.in, out, 12, &n), IGN_OK);
        CHECK_EQ(n, 8);
        for (uint32_t i = 0; i < n; i++)
            CHECK(same(&out[i], round * 100 + i));
        CHECK_EQ(ign_ring_try_pop_many_spsc(p.in, out, 12, &n), IGN_EMPTY);
        CHECK_EQ(n, 0);
    }
    drop(p);
}

static void reserve_without_commit_is_nothing(void)
{
    pair p = make(4, 0);
    uint32_t room, got;
    ign_ring_entry e[4];
    CHECK_EQ(ign_ring_reserve_spsc(p.out, 3, &room), IGN_OK);
    CHECK_EQ(room, 3);
    *ign_ring_reserved(p.out, 0) = entry(1);
    CHECK_EQ(ign_ring_peek_spsc(p.in, e, 4, &got), IGN_EMPTY);
    CHECK_EQ(ign_ring_reserve_spsc(p.out, 9, &room), IGN_OK);
    CHECK_EQ(room, 4);
    *ign_ring_reserved(p.out, 0) = entry(2);
    *ign_ring_reserved(p.out, 1) = entry(3);
    ign_ring_commit_spsc(p.out, 2);
    CHECK_EQ(ign_ring_peek_spsc(p.in, e, 4, &got), IGN_OK);
    CHECK_EQ(got, 2);
    CHECK(same(&e[0], 2) && same(&e[1], 3));
    /* Peeked is not taken: the same again, and the slots are still the consumer's. */
    CHECK_EQ(ign_ring_peek_spsc(p.in, e, 1, &got), IGN_OK);
    CHECK(got == 1 && same(&e[0], 2));
    ign_ring_release_spsc(p.in, 1);
    CHECK_EQ(ign_ring_depth(p.out->control), 1);
    drop(p);
}

static void positions_that_cannot_be(void)
{
    pair p = make(4, 10);
    ign_ring_entry e = entry(1);
    uint32_t n;
    atomic_store(&p.out->control->write_pos, 15); /* five entries in a ring of four */
    CHECK_EQ(ign_ring_try_pop_spsc(p.in, &e), IGN_E_CORRUPT);
    CHECK_EQ(ign_ring_peek_spsc(p.in, &e, 1, &n), IGN_E_CORRUPT);
    atomic_store(&p.out->control->write_pos, 9); /* before the reader */
    CHECK_EQ(ign_ring_try_pop_spsc(p.in, &e), IGN_E_CORRUPT);
    CHECK_EQ(ign_ring_consumer_open(p.in, p.memory, 4), IGN_E_CORRUPT);
    CHECK_EQ(ign_ring_producer_open(p.out, p.memory, 4), IGN_E_CORRUPT);
    drop(p);
    p = make(2, 10);
    CHECK_EQ(ign_ring_try_push_spsc(p.out, &e), IGN_OK);
    CHECK_EQ(ign_ring_try_push_spsc(p.out, &e), IGN_OK);
    atomic_store(&p.out->control->read_pos, 13); /* beyond the writer */
    CHECK_EQ(ign_ring_try_push_spsc(p.out, &e), IGN_E_CORRUPT);
    drop(p);
}

#ifdef IGN_DEBUG
static void *push_from_elsewhere(void *arg)
{
    ign_ring_entry e = entry(1);
    return (void *)(intptr_t)(ign_ring_try_push_spsc(arg, &e) == IGN_E_THREAD);
}

static void a_second_thread_is_refused(void)
{
    pair p = make(4, 0);
    ign_ring_entry e = entry(1);
    CHECK_EQ(ign_ring_try_push_spsc(p.out, &e), IGN_OK);
    pthread_t t;
    void *refused;
    CHECK_EQ(pthread_create(&t, NULL, push_from_elsewhere, p.out), 0);
    pthread_join(t, &refused);
    CHECK(refused != NULL);
    drop(p);
}
#endif

/* -- two threads -------------------------------------------------------------------------------------------------- */

/* Entry n names cache line n % LINES of a common store, filled with n. The consumer compares the whole line: a ring
 * that publishes a position before the bytes are there shows itself in the content, and to TSan in the access. */
#define LINES 1024u
typedef struct line {
    _Alignas(128) uint64_t words[16];
} line;

typedef struct stress {
    pair p;
    line *lines;
    uint64_t count;
    uint32_t in_bulk;  /* 1: one at a time */
    uint32_t out_bulk;
} stress;

static void *produce(void *arg)
{
    stress *s = arg;
    uint64_t next = 0;
    ign_ring_entry batch[64];
    while (next < s->count) {
        uint32_t want = s->in_bulk < s->count - next ? s->in_bulk : (uint32_t)(s->count - next), room, n = 0;
        if (ign_ring_reserve_spsc(s->p.out, want, &room) != IGN_OK) {
            sched_yield();
            continue;
        }
        for (; n < room; n++) {
            line *l = &s->lines[(next + n) % LINES];
            for (int w = 0; w < 16; w++)
                l->words[w] = next + n;
            batch[n] = entry(next + n);
        }
        if (s->in_bulk == 1) {
            CHECK_EQ(ign_ring_try_push_spsc(s->p.out, &batch[0]), IGN_OK);
        } else {
            CHECK_EQ(ign_ring_try_push_many_spsc(s->p.out, batch, room, &n), IGN_OK);
            CHECK_EQ(n, room);
        }
        next += n;
    }
    return NULL;
}

static void consume(stress *s)
{
    uint64_t next = 0;
    ign_ring_entry batch[64];
    while (next < s->count) {
        uint32_t n = 0;
        int rc = ign_ring_peek_spsc(s->p.in, batch, s->out_bulk, &n);
        CHECK(rc == IGN_OK || rc == IGN_EMPTY);
        if (n == 0) {
            sched_yield();
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            CHECK(same(&batch[i], next + i));
            const line *l = &s->lines[(next + i) % LINES];
            for (int w = 0; w < 16; w++)
                CHECK(l->words[w] == next + i);
        }
        ign_ring_release_spsc(s->p.in, n); /* only now may the producer reuse the lines */
        next += n;
    }
}

static void run_stress(uint32_t capacity, uint32_t in_bulk, uint32_t out_bulk, uint64_t count)
{
    CHECK(capacity <= LINES);
    stress s = {.p = make(capacity, UINT64_MAX - count / 2), .count = count, .in_bulk = in_bulk, .out_bulk = out_bulk};
    s.lines = aligned(LINES * sizeof(line));
    memset(s.lines, 0, LINES * sizeof(line));
    pthread_t t;
    CHECK_EQ(pthread_create(&t, NULL, produce, &s), 0);
    consume(&s);
    pthread_join(t, NULL);
    CHECK_EQ(ign_ring_depth(s.p.out->control), 0);
    free(s.lines);
    drop(s.p);
}

#ifdef IGN_TEST_TSAN
#define ROUNDS 60000u
#else
#define ROUNDS 600000u
#endif

static void stress_roomy(void) { run_stress(1024, 1, 64, ROUNDS); }
static void stress_bulk(void) { run_stress(256, 64, 64, ROUNDS); }
static void stress_always_full(void) { run_stress(2, 1, 1, ROUNDS / 4); }
static void stress_always_empty(void) { run_stress(1024, 1, 1, ROUNDS); }

MAIN("ring", {
    RUN(capacities);
    RUN(wraps);
    RUN(bulk_splits_at_the_end_of_the_array);
    RUN(reserve_without_commit_is_nothing);
    RUN(positions_that_cannot_be);
#ifdef IGN_DEBUG
    RUN(a_second_thread_is_refused);
#endif
    RUN(stress_roomy);
    RUN(stress_bulk);
    RUN(stress_always_full);
    RUN(stress_always_empty);
})
