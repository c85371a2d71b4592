/* Nobody oversleeps: the channel's own code under every order of memory that C11 allows, not only those of this machine.
 *
 * A sleeper that nobody wakes would go on after its slice of 100 ms, so that no test on a real clock tells it from a slow
 * machine. Here there is no clock and no slice: such a run is stuck. See explore.h for how the runs are made.
 */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/futex.h>

#include "../check.h"
#include "explore.h"
#include "ignis_channel.h"

/* -- what the core asks of the kernel (compiled with -Dsyscall=model_syscall -Dclock_gettime=model_clock_gettime) ------ */

long model_syscall(long number, ...)
{
    va_list args;
    va_start(args, number);
    uint32_t *at = va_arg(args, uint32_t *);
    int operation = va_arg(args, int);
    uint32_t value = va_arg(args, uint32_t);
    va_end(args);
    CHECK_EQ(number, SYS_futex);
    if (operation == FUTEX_WAIT) {
        errno = EAGAIN;
        return model_futex_wait(at, value);
    }
    CHECK_EQ(operation, FUTEX_WAKE);
    model_futex_wake(at);
    return 0;
}

int model_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    *t = (struct timespec){.tv_sec = 1, .tv_nsec = 0}; /* no time goes by: what is slept is slept for ever */
    return 0;
}

/* -- the explorer itself: the classical pairs, of which some outcomes are allowed and others not ---------------------- */

static _Atomic uint32_t x, y;
static uint32_t saw_x, saw_y;
static memory_order stores, loads;
static uint32_t outcomes; /* bit 2 * saw_y + saw_x */

static void two_words(void)
{
    atomic_init(&x, 0);
    atomic_init(&y, 0);
    model_watch(&x, sizeof x, MODEL_ANYBODY);
    model_watch(&y, sizeof y, MODEL_ANYBODY);
}

static void note_outcome(bool complete)
{
    if (complete)
        outcomes |= 1u << (2 * saw_y + saw_x);
}

static void store_x_load_y(void)
{
    atomic_store_explicit(&x, 1, stores);
    saw_y = atomic_load_explicit(&y, loads);
}

static void store_y_load_x(void)
{
    atomic_store_explicit(&y, 1, stores);
    saw_x = atomic_load_explicit(&x, loads);
}

static void store_x_store_y(void)
{
    atomic_store_explicit(&x, 1, memory_order_relaxed);
    atomic_store_explicit(&y, 1, stores);
}

static void load_y_load_x(void)
{
    saw_y = atomic_load_explicit(&y, loads);
    saw_x = atomic_load_explicit(&x, memory_order_relaxed);
}

static uint32_t outcomes_of(void (*first)(void), void (*second)(void), memory_order store_order, memory_order load_order)
{
    model_program p = {.name = "two words", .set_up = two_words, .thread = {first, second}, .tear_down = note_outcome};
    stores = store_order;
    loads = load_order;
    outcomes = 0;
    CHECK_EQ(model_explore(&p, false).stuck, 0);
    return outcomes;
}

static void the_explorer_knows_weak_memory(void)
{
    /* Store buffering: only the total order forbids that neither sees the other. */
    CHECK_EQ(outcomes_of(store_x_load_y, store_y_load_x, memory_order_release, memory_order_acquire), 0xf);
    CHECK_EQ(outcomes_of(store_x_load_y, store_y_load_x, memory_order_release, memory_order_seq_cst), 0xf);
    CHECK_EQ(outcomes_of(store_x_load_y, store_y_load_x, memory_order_seq_cst, memory_order_seq_cst), 0xe);
    /* Message passing: y without x only where nothing orders them. */
    CHECK_EQ(outcomes_of(store_x_store_y, load_y_load_x, memory_order_relaxed, memory_order_acquire), 0xf);
    CHECK_EQ(outcomes_of(store_x_store_y, load_y_load_x, memory_order_release, memory_order_relaxed), 0xf);
    CHECK_EQ(outcomes_of(store_x_store_y, load_y_load_x, memory_order_release, memory_order_acquire), 0xb);
}

/* -- the channel ------------------------------------------------------------------------------------------------------ */

enum { PRODUCER, CONSUMER }; /* the threads' numbers */

typedef struct scenario {
    const char *name;
    uint32_t messages;
    bool progress; /* the producer waits as a publisher to a relay does, whose consumer need not live */
    ign_region_config config;
} scenario;

static const scenario *played;
static ign_channel channel;
static uint32_t received;

/* The channel as it was made, put back before each run: quicker than making it anew, a million times. */
static struct part {
    void *at;
    size_t bytes;
    void *copy;
} parts[8];
static uint32_t part_count;

static void keep(void *at, size_t bytes)
{
    void *copy = malloc(bytes);
    CHECK(copy != NULL && part_count < sizeof parts / sizeof parts[0]);
    memcpy(copy, at, bytes);
    parts[part_count++] = (struct part){.at = at, .bytes = bytes, .copy = copy};
}

static void open_channel(void)
{
    CHECK_EQ(ign_channel_heap(&channel, &played->config), IGN_OK);
    channel.forward_out.check_thread = channel.back_out.check_thread = false;
    channel.forward_in.check_thread = channel.back_in.check_thread = false;
    keep(&channel, sizeof channel);
    keep(channel.region.header, channel.region.bytes);
    keep(channel.slab.free_slots, channel.slab.table.slot_count * sizeof *channel.slab.free_slots);
    keep(channel.slab.live, sizeof *channel.slab.live);
    if (channel.bytering.bytes != 0)
        keep(channel.bytering.marks, channel.bytering.mark_count * sizeof *channel.bytering.marks);
}

static void close_channel(void)
{
    while (part_count > 0)
        free(parts[--part_count].copy);
    ign_channel_close(&channel);
}

static void begin(void)
{
    for (uint32_t i = 0; i < part_count; i++)
        memcpy(parts[i].at, parts[i].copy, parts[i].bytes);
    received = 0;
    ign_region *r = &channel.region;
    ign_event *events[2] = {&r->header->items, &r->header->space};
    uint64_t rings[2] = {r->ring_offset, r->return_offset};
    for (int i = 0; i < 2; i++) {
        ign_ring_control *ring = ign_region_at(r, rings[i]);
        model_watch(&events[i]->wake, sizeof events[i]->wake, MODEL_ANYBODY);
        model_watch(&events[i]->waiting, sizeof events[i]->waiting, MODEL_ANYBODY);
        model_watch(&ring->write_pos, sizeof ring->write_pos, i == 0 ? PRODUCER : CONSUMER);
        model_watch(&ring->read_pos, sizeof ring->read_pos, i == 0 ? CONSUMER : PRODUCER);
    }
}

static void check_all_came(bool complete)
{
    if (complete)
        CHECK_EQ(received, played->messages);
}

static void look_again(int rc)
{
    CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
}

static void produce(void)
{
    for (uint32_t i = 0; i < played->messages; i++) {
        ign_slab_ref ref;
        uint8_t *at;
        int rc;
        while ((rc = ign_channel_reserve(&channel, sizeof i, &ref, &at)) == IGN_FULL) {
            /* As the outbox does: what is taken after the second attempt ends the wait. */
            uint64_t read_pos = ign_channel_read_pos(&channel);
            if (!played->progress)
                look_again(ign_channel_wait_space(&channel, UINT32_MAX, false, true));
            else if ((rc = ign_channel_reserve(&channel, sizeof i, &ref, &at)) == IGN_FULL)
                look_again(ign_channel_wait_progress(&channel, read_pos, true, UINT32_MAX));
            else
                break;
        }
        CHECK_EQ(rc, IGN_OK);
        memcpy(at, &i, sizeof i);
        ign_channel_stage(&channel, &ref, 0);
        ign_channel_publish(&channel);
    }
}

static void consume(void)
{
    while (received < played->messages) {
        const ign_message *messages;
        uint32_t got, number;
        int rc = ign_channel_peek(&channel, &messages, &got);
        if (rc == IGN_EMPTY) {
            ign_channel_flush(&channel);
            while ((rc = ign_channel_peek(&channel, &messages, &got)) == IGN_EMPTY)
                look_again(ign_channel_wait_items(&channel, UINT32_MAX, false));
        }
        CHECK_EQ(rc, IGN_OK);
        CHECK_EQ(messages->code, IGN_OK);
        memcpy(&number, messages->bytes, sizeof number);
        CHECK_EQ(number, received);
        ign_message taken = *messages;
        ign_channel_advance(&channel, 1);
        CHECK_EQ(ign_channel_give_back(&channel, taken.slot, taken.generation), IGN_OK);
        received++;
    }
    ign_channel_flush(&channel);
}

static void nobody_oversleeps(const scenario *s)
{
    model_program p = {.name = s->name, .set_up = begin, .thread = {produce, consume}, .tear_down = check_all_came};
    played = s;
    open_channel();
    model_result result = model_explore(&p, true);
    close_channel();
    printf("model          %-52s %8" PRIu64 " runs, %8" PRIu64 " states\n", s->name, result.runs, result.states);
    if (result.stuck != 0) {
        fprintf(stderr, "model: %s: both sides sleep and nobody wakes them\n", s->name);
        exit(1);
    }
}

#define CHANNEL(places, slots, small) \
    {.ring_capacity = places, .max_message_bytes = 64, .class_count = 1, .slot_bytes = {64}, .slot_counts = {slots}, .bytering_bytes = small}

static const scenario scenarios[] = {
    {"one slot", 2, false, CHANNEL(2, 1, 0)},
    {"one slot, a consumer that need not live", 2, true, CHANNEL(2, 1, 0)},
    {"one place in the ring", 2, false, CHANNEL(1, 2, 0)},
    {"one place in the ring, a consumer that need not live", 2, true, CHANNEL(1, 2, 0)},
    {"one place in the ring, small messages", 2, false, CHANNEL(1, 1, 2048)},
};

static void the_channel_loses_no_wake_up(void)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        nobody_oversleeps(&scenarios[i]);
}

MAIN("model_sleep", RUN(the_explorer_knows_weak_memory); RUN(the_channel_loses_no_wake_up);)
