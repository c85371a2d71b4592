/* The byte ring alone, and under a channel: laps, a consumer that falls behind, a producer that takes over. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdalign.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "ignis_channel.h"

#define SECOND 1000000000ull

/* A ring with nothing on it, whose positions begin at `start`. */
static void *fresh_ring(ign_ring_producer *ring, uint32_t capacity, uint64_t start)
{
    void *memory = aligned_alloc(IGN_LINE_BYTES, (ign_ring_bytes(capacity) + 127) & ~(size_t)127);
    CHECK(memory != NULL);
    memset(memory, 0, ign_ring_bytes(capacity));
    CHECK_EQ(ign_ring_format(memory, capacity, start), IGN_OK);
    CHECK_EQ(ign_ring_producer_open(ring, memory, capacity), IGN_OK);
    return memory;
}

static void sizes(void)
{
    CHECK(ign_bytering_size_valid(0) && ign_bytering_size_valid(2048) && ign_bytering_size_valid(1u << 28));
    CHECK(!ign_bytering_size_valid(1024) && !ign_bytering_size_valid(3000) && !ign_bytering_size_valid(1u << 29));
    CHECK_EQ(ign_bytering_default_bytes(1), 2048);
    CHECK_EQ(ign_bytering_default_bytes(4096), 128 * 4096);
    CHECK_EQ(ign_bytering_default_bytes(1u << 24), 8 << 20);
}

/* Filled to the last byte, freed step by step, never more than was received. */
static void what_is_in_use_is_not_handed_out(void)
{
    ign_ring_producer ring;
    void *memory = fresh_ring(&ring, 256, UINT64_MAX - 100); /* positions wrap */
    static uint8_t data[4096];
    ign_bytering b;
    CHECK_EQ(ign_bytering_open(&b, data, sizeof data, &ring), IGN_OK);
    uint64_t pos = ring.write_pos, first = pos;
    uint32_t expected = 0;
    for (;; pos++) {
        ign_bytering_mark(&b, pos);
        uint32_t at = ign_bytering_reserve(&b, 25); /* 32 with its alignment */
        if (at == UINT32_MAX)
            break;
        CHECK_EQ(at, expected);
        expected += 32;
    }
    CHECK_EQ(expected, sizeof data);
    CHECK_EQ(pos - first, 128);
    for (uint64_t read = first; read != pos; read++) {
        ign_bytering_free(&b, read, pos);
        CHECK(b.head - b.tail <= sizeof data);
        CHECK(b.head - b.tail >= 32 * (pos - read)); /* nothing that is not received yet */
        CHECK(b.head - b.tail <= 32 * (pos - read + IGN_BYTERING_STEP));
    }
    ign_bytering_free(&b, pos, pos);
    CHECK_EQ(b.head - b.tail, 0);
    ign_bytering_turn(&b, 25);
    ign_bytering_mark(&b, pos);
    CHECK_EQ(ign_bytering_reserve(&b, 25), 0);
    ign_bytering_close(&b);
    ign_bytering_close(&b);
    free(memory);
}

/* A consumer that keeps up sees the same short stretch again and again; one that does not, the whole. */
static void laps(void)
{
    ign_ring_producer ring;
    void *memory = fresh_ring(&ring, 65536, 0);
    uint32_t bytes = 4 * IGN_BYTERING_LAP;
    uint8_t *data = malloc(bytes);
    ign_bytering b;
    CHECK_EQ(ign_bytering_open(&b, data, bytes, &ring), IGN_OK);
    uint64_t pos = 0;
    uint32_t highest = 0;
    for (; pos < 50000; pos++) {
        ign_bytering_mark(&b, pos);
        uint32_t at = ign_bytering_reserve(&b, 100);
        if (at == UINT32_MAX) {
            ign_bytering_free(&b, pos - 10, pos);
            ign_bytering_turn(&b, 100);
            at = ign_bytering_reserve(&b, 100);
        }
        CHECK(at != UINT32_MAX);
        highest = at > highest ? at : highest;
    }
    CHECK(highest < IGN_BYTERING_LAP);
    /* From here on the consumer takes one message while the producer sends two. */
    for (uint64_t read = pos - 10;; pos++, read += pos % 2) {
        ign_bytering_mark(&b, pos);
        uint32_t at = ign_bytering_reserve(&b, 100);
        for (int i = 0; at == UINT32_MAX && i < 20; i++) {
            ign_bytering_free(&b, read, pos);
            ign_bytering_turn(&b, 100);
            at = ign_bytering_reserve(&b, 100);
        }
        if (at == UINT32_MAX) {
            CHECK((pos - read + 64) * 104 > bytes - IGN_BYTERING_LAP); /* full, and not before */
            break;
        }
        highest = at > highest ? at : highest;
    }
    CHECK(highest > bytes - IGN_BYTERING_LAP);
    ign_bytering_close(&b);
    free(data);
    free(memory);
}

/* -- under a channel ---------------------------------------------------------------------------------------------- */

static ign_channel *blank(void)
{
    ign_channel *c = aligned_alloc(IGN_LINE_BYTES, sizeof *c);
    CHECK(c != NULL);
    memset(c, 0, sizeof *c);
    return c;
}

static ign_region_config config_of(uint32_t capacity, uint32_t bytering_bytes)
{
    ign_region_config config;
    CHECK_EQ(ign_region_config_default(&config, capacity, 4096), IGN_OK);
    config.bytering_bytes = bytering_bytes;
    return config;
}

static size_t size_of_message(uint64_t n)
{
    return n % 7 == 0 ? 1024 + n % 2000 : (n * 37) % 1025;
}

/* Message n: its size follows from n, and so does every byte. */
static int send_numbered(ign_channel *c, uint64_t n)
{
    ign_slab_ref ref;
    uint8_t *at;
    size_t size = size_of_message(n);
    int rc = ign_channel_reserve(c, size, &ref, &at);
    if (rc != IGN_OK)
        return rc;
    memset(at, (int)(n % 251), size);
    ign_channel_stage(c, &ref, (uint16_t)n);
    ign_channel_publish(c);
    return IGN_OK;
}

static void take_numbered(ign_channel *c, const ign_message *m, uint64_t n)
{
    CHECK_EQ(m->code, IGN_OK);
    CHECK_EQ(m->kind, (uint16_t)n);
    CHECK_EQ(m->length, size_of_message(n));
    for (uint32_t i = 0; i < m->length; i++)
        CHECK(m->bytes[i] == n % 251);
    CHECK_EQ(ign_channel_give_back(c, m->slot, m->generation), IGN_OK);
}

static uint64_t take_all(ign_channel *c, uint64_t n)
{
    const ign_message *m;
    uint32_t got;
    while (ign_channel_peek(c, &m, &got) == IGN_OK) {
        for (uint32_t i = 0; i < got; i++)
            take_numbered(c, &m[i], n++);
        ign_channel_advance(c, got);
    }
    ign_channel_flush(c);
    return n;
}

/* What does not fit goes into the slab, in the same order. */
static void a_full_byte_ring_is_no_full_channel(void)
{
    ign_channel *c = blank();
    ign_region_config config = config_of(64, 2048);
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    uint64_t sent = 0, received = 0;
    for (int round = 0; round < 200; round++) {
        int rc;
        while ((rc = send_numbered(c, sent)) == IGN_OK)
            sent++;
        CHECK_EQ(rc, IGN_FULL);
        received = take_all(c, received);
        CHECK_EQ(received, sent);
    }
    CHECK(sent > 200 * 10);
    CHECK_EQ(ign_channel_collect(c), IGN_OK);
    CHECK_EQ(ign_slab_active(&c->slab), 0);
    ign_channel_close(c);
    free(c);
}

typedef struct job {
    ign_channel *c;
    uint64_t count;
} job;

static void *produce(void *arg)
{
    job *j = arg;
    for (uint64_t n = 0; n < j->count;) {
        int rc = send_numbered(j->c, n);
        if (rc == IGN_OK) {
            n++;
            continue;
        }
        CHECK_EQ(rc, IGN_FULL);
        rc = ign_channel_wait_space(j->c, 10 * SECOND, true, ign_channel_depth(j->c) < j->c->region.ring_capacity);
        CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
    }
    return NULL;
}

static void stress(uint32_t capacity, uint32_t bytes, uint64_t count)
{
    ign_region_config config = config_of(capacity, bytes);
    job j = {.c = blank(), .count = count};
    CHECK_EQ(ign_channel_heap(j.c, &config), IGN_OK);
    pthread_t t;
    CHECK_EQ(pthread_create(&t, NULL, produce, &j), 0);
    for (uint64_t n = 0; n < count;) {
        n = take_all(j.c, n);
        int rc = n == count ? IGN_OK : ign_channel_wait_items(j.c, 10 * SECOND, true);
        CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
    }
    pthread_join(t, NULL);
    ign_channel_close(j.c);
    free(j.c);
}

#ifdef IGN_TEST_TSAN
#define ROUNDS 8000u
#else
#define ROUNDS 60000u
#endif

/* -- a byte ring that every size but the largest goes through ------------------------------------------------------- */

#define WAITING_SMALL 2048u

static size_t size_that_waits(uint64_t n) { return n % 11 == 0 ? WAITING_SMALL - n % 3 : (n * 613) % WAITING_SMALL; }

static int send_that_waits(ign_channel *c, uint64_t n)
{
    ign_slab_ref ref;
    uint8_t *at;
    int rc = ign_channel_reserve(c, size_that_waits(n), &ref, &at);
    if (rc != IGN_OK)
        return rc;
    CHECK_EQ(ref.slot, IGN_BYTERING_SLOT);
    memset(at, (int)(n % 251), size_that_waits(n));
    ign_channel_stage(c, &ref, (uint16_t)n);
    ign_channel_publish(c);
    return IGN_OK;
}

/* Looks at up to `max` messages behind the `held` ones that it has looked at already; returns how many there were. */
static uint32_t look(ign_channel *c, uint64_t taken, uint32_t held, uint32_t max)
{
    static ign_ring_entry entries[4096];
    static ign_message messages[4096];
    uint32_t got;
    int rc = ign_channel_survey(c, held, entries, messages, max, &got);
    CHECK(rc == IGN_OK || (rc == IGN_EMPTY && got == 0));
    for (uint32_t i = 0; i < got; i++) {
        uint64_t n = taken + held + i;
        CHECK(messages[i].code == IGN_OK && messages[i].slot == IGN_BYTERING_SLOT && messages[i].kind == (uint16_t)n);
        CHECK_EQ(messages[i].length, size_that_waits(n));
        for (uint32_t k = 0; k < messages[i].length; k++)
            CHECK(messages[i].bytes[k] == n % 251);
    }
    return got;
}

static void what_does_not_fit_waits(void)
{
    ign_channel *c = blank();
    ign_region_config config = config_of(4096, 1u << 20); /* more than a lap */
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    CHECK(!ign_channel_set_small(c, 0) && !ign_channel_set_small(c, (1u << 18) + 1));
    CHECK(ign_channel_set_small(c, WAITING_SMALL));
    uint64_t sent = 0, taken = 0;
    uint32_t held = 0;
    for (int round = 0; round < 60; round++) {
        int rc;
        while ((rc = send_that_waits(c, sent)) == IGN_OK)
            sent++;
        CHECK_EQ(rc, IGN_FULL);
        CHECK_EQ(ign_slab_active(&c->slab), 0);
        CHECK(sent - taken >= 800); /* the whole ring, not a lap of it */
        held += look(c, taken, held, 300);
        held += look(c, taken, held, 4096);
        CHECK_EQ(held, sent - taken);
        CHECK_EQ(look(c, taken, held, 1), 0);
        uint32_t some = round % 3 == 0 ? held : held / 2;
        ign_channel_take(c, some);
        ign_channel_flush(c);
        taken += some;
        held -= some;
    }
    ign_ring_entry entry;
    ign_message message;
    uint32_t got;
    CHECK_EQ(ign_channel_survey(c, (uint32_t)(sent - taken) + 1, &entry, &message, 1, &got), IGN_E_CORRUPT);
    ign_slab_ref ref;
    uint8_t *at;
    CHECK_EQ(ign_channel_reserve(c, WAITING_SMALL + 1, &ref, &at), IGN_OK); /* larger ones have their slots */
    CHECK(ref.slot != IGN_BYTERING_SLOT);
    ign_channel_close(c);
    free(c);
}

/* A message may be longer than the laps of one that keeps up. */
static void one_longer_than_a_lap_fits(void)
{
    for (uint32_t size = IGN_BYTERING_LAP - 8; size <= 2 * IGN_BYTERING_LAP; size += IGN_BYTERING_LAP / 4 + 8) {
        ign_channel *c = blank();
        ign_region_config config = config_of(64, 8u << 20);
        config.max_message_bytes = config.slot_bytes[0] = 2 * IGN_BYTERING_LAP;
        config.slot_counts[0] = 1;
        config.class_count = 1;
        CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
        CHECK(ign_channel_set_small(c, size));
        for (uint32_t n = 0; n < 100; n++) {
            ign_slab_ref ref;
            uint8_t *at;
            uint32_t sent = 0;
            while (ign_channel_reserve(c, n % 2 ? size : 100, &ref, &at) == IGN_OK) {
                CHECK_EQ(ref.slot, IGN_BYTERING_SLOT);
                CHECK(ref.generation + ref.length <= 8u << 20);
                at[0] = at[ref.length - 1] = (uint8_t)n;
                ign_channel_stage(c, &ref, 0);
                ign_channel_publish(c);
                sent++;
                if (n % 7 != 0)
                    break;
            }
            CHECK(sent > 0); /* one at a time, and as many as there is room for */
            for (; sent > 0; sent--) {
                const ign_message *m;
                uint32_t got;
                CHECK_EQ(ign_channel_peek(c, &m, &got), IGN_OK);
                CHECK(m->length == (n % 2 ? size : 100) && m->bytes[0] == (uint8_t)n && m->bytes[m->length - 1] == (uint8_t)n);
                ign_channel_advance(c, 1);
            }
            ign_channel_flush(c);
        }
        ign_channel_close(c);
        free(c);
    }
}

static void *produce_and_wait(void *arg)
{
    job *j = arg;
    for (uint64_t n = 0; n < j->count;) {
        uint64_t seen = ign_channel_read_pos(j->c); /* before the attempt: what is taken after it ends the wait */
        int rc = send_that_waits(j->c, n);
        n += rc == IGN_OK;
        if (rc == IGN_FULL)
            rc = ign_channel_wait_progress(j->c, seen, false, 10 * SECOND);
        CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
    }
    return NULL;
}

static void waiting_stress(void)
{
    ign_region_config config = config_of(64, 16384);
    job j = {.c = blank(), .count = ROUNDS / 4};
    CHECK_EQ(ign_channel_heap(j.c, &config), IGN_OK);
    CHECK(ign_channel_set_small(j.c, WAITING_SMALL));
    pthread_t t;
    CHECK_EQ(pthread_create(&t, NULL, produce_and_wait, &j), 0);
    uint32_t held = 0;
    for (uint64_t taken = 0; taken < j.count;) {
        uint32_t more = look(j.c, taken, held, 64);
        held += more;
        uint32_t some = more == 0 ? held : held / 2;
        ign_channel_take(j.c, some);
        ign_channel_flush(j.c);
        taken += some;
        held -= some;
        int rc = held != 0 || taken == j.count ? IGN_OK : ign_channel_wait_items(j.c, 10 * SECOND, true);
        CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
    }
    pthread_join(t, NULL);
    ign_channel_close(j.c);
    free(j.c);
}

static void stress_small(void) { stress(8, 2048, ROUNDS); }
static void stress_large(void) { stress(4096, 1u << 20, ROUNDS); }

/* What a producer published and nobody received is not written over by the next one. */
static void a_successor_keeps_what_was_sent(void)
{
    char file[64];
    snprintf(file, sizeof file, "/tmp/ignis-bytering-%ld.region", (long)getpid());
    for (uint64_t before = 0; before < 40; before += 3) {
        unlink(file);
        ign_region_config config = config_of(256, 8192);
        ign_channel *p = blank(), *c = blank();
        CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
        CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
        uint64_t sent = 0, received = 0;
        while (sent < before)
            CHECK_EQ(send_numbered(p, sent++), IGN_OK);
        received = take_all(c, received);
        for (int i = 0; i < 9; i++)
            CHECK_EQ(send_numbered(p, sent++), IGN_OK);
        ign_channel_close(p);
        CHECK_EQ(ign_channel_open(p, file, IGN_PRODUCER), IGN_OK);
        while (send_numbered(p, sent) == IGN_OK)
            sent++;
        CHECK(sent > before + 20);
        received = take_all(c, received);
        CHECK_EQ(received, sent);
        ign_channel_close(p);
        ign_channel_close(c);
        free(p), free(c);
    }
    unlink(file);
}

static void references_that_point_outside(void)
{
    ign_channel *c = blank();
    ign_region_config config = config_of(64, 2048);
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    static const uint32_t wrong[][2] = {{2048, 0}, {UINT32_MAX, 1}, {2040, 9}, {0, 2049}, {0, UINT32_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ign_slab_ref ref = {.slot = IGN_BYTERING_SLOT, .generation = wrong[i][0], .length = wrong[i][1]};
        ign_channel_stage(c, &ref, 0);
        ign_channel_publish(c);
        const ign_message *m;
        uint32_t got;
        CHECK_EQ(ign_channel_peek(c, &m, &got), IGN_OK);
        CHECK_EQ(m->code, IGN_E_FOREIGN);
        CHECK(m->bytes == NULL && m->length == 0);
        ign_channel_advance(c, 1);
    }
    CHECK_EQ(send_numbered(c, 1), IGN_OK);
    CHECK_EQ(take_all(c, 1), 2);
    ign_channel_close(c);
    /* A region without one has no such reference at all. */
    config.bytering_bytes = 0;
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    ign_slab_ref ref = {.slot = IGN_BYTERING_SLOT};
    ign_channel_stage(c, &ref, 0);
    ign_channel_publish(c);
    const ign_message *m;
    uint32_t got;
    CHECK_EQ(ign_channel_peek(c, &m, &got), IGN_OK);
    CHECK_EQ(m->code, IGN_E_FOREIGN);
    ign_channel_close(c);
    free(c);
}

MAIN("bytering", {
    RUN(sizes);
    RUN(what_is_in_use_is_not_handed_out);
    RUN(laps);
    RUN(a_full_byte_ring_is_no_full_channel);
    RUN(what_does_not_fit_waits);
    RUN(one_longer_than_a_lap_fits);
    RUN(waiting_stress);
    RUN(stress_small);
    RUN(stress_large);
    RUN(a_successor_keeps_what_was_sent);
    RUN(references_that_point_outside);
})
