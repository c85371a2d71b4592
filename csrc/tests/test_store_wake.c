/* Who waits for a load: sleepers, who listens for many, event loops; a warning ahead of the load, and the end of a generation. */
#define _GNU_SOURCE
#include "store_small.h"

#include "../ignis_store_parts.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

/* One who waits for many: rung once for each that was announced, by loads, by others and when the generation ends. */
static void the_bell(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1), n = declare(store, "n", 1);
    uint32_t bell = ign_store_listen(store, 0, 0), seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(load_how(other, m, 0, 3, 1, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 0), bell); /* nobody had announced it */
    CHECK_EQ(ign_store_announce(store, m, seen), seen + 1);
    CHECK_EQ(load_how(other, n, 0, 3, 11, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 1000000), bell);
    CHECK_EQ(load_how(other, m, 0, 3, 21, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 60000000000u), bell + 1);
    CHECK_EQ(load_how(other, m, 0, 3, 31, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell + 1, 0), bell + 1); /* announced once, rung once */
    CHECK_EQ(ign_store_announce(store, m, 0), seen + 3);
    /* Who sleeps on the magazine itself and who listens do not take each other's call. */
    CHECK_EQ(ign_store_wait(store, m, seen + 3, 1000000), seen + 3);
    ign_store_wake(other, m);
    CHECK_EQ(ign_store_listen(store, bell + 1, 60000000000u), bell + 2);
    ign_store_ring(other);
    CHECK_EQ(ign_store_listen(store, bell + 2, 60000000000u), bell + 3);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    CHECK_EQ(ign_store_announce(store, m, seen + 9), seen + 9); /* cannot be told: it is looked at */
    CHECK(ign_store_listen(store, bell + 3, 60000000000u) != bell + 3);
    bell = ign_store_listen(store, 0, 0); /* of the next one, to which it has followed */
    seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(ign_store_announce(store, m, seen + 9), seen);
    CHECK_EQ(load_how(other, m, 0, 3, 41, 0, NULL), IGN_OK);
    CHECK_EQ(ign_store_listen(store, bell, 60000000000u), bell + 1);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

typedef struct sleeper {
    ign_store *store;
    uint32_t magazine, seen, found;
} sleeper;

static void *sleeps(void *arg)
{
    sleeper *s = arg;
    s->found = ign_store_await(s->store, s->magazine, s->seen, 60000000000u, 0);
    return NULL;
}

static uint32_t waiting_word(ign_store *store, uint32_t m)
{
    ign_generation *g;
    CHECK_EQ(ign_store_enter(store, &g), IGN_OK);
    uint32_t word = atomic_load(&g->ctl.head->wake_waiting[m % IGN_STORE_WAKES]);
    ign_store_leave(store, g);
    return word;
}

/* Whoever sleeps and is told of a load sleeps again when none comes, and is woken by the one that does come: no call is lost to a
 * warning, whether it is awake by then or not. */
static void the_warning(void)
{
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    for (uint32_t i = 0; i < 200; i++) {
        pthread_t thread;
        sleeper s = {.store = store, .magazine = m, .seen = ign_store_wait(store, m, 0, 0)};
        uint32_t told = waiting_word(store, m) & ~(IGN_STORE_SLEEPS | IGN_STORE_LISTENS);
        pthread_create(&thread, NULL, sleeps, &s);
        while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
            sched_yield();
        ign_store_forewarn(other, m);
        CHECK((waiting_word(store, m) & ~(IGN_STORE_SLEEPS | IGN_STORE_LISTENS)) != told); /* nobody announces itself for ever */
        if (i % 2 == 0) /* it has given up and sleeps again */
            while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
                sched_yield();
        CHECK_EQ(load_how(other, m, 0, 1, 100 + i, 0, NULL), IGN_OK);
        pthread_join(thread, NULL);
        CHECK_EQ(s.found, s.seen + 1);
    }
    /* A generation that ends is told to who was warned as well. */
    sleeper s = {.store = store, .magazine = m, .seen = ign_store_wait(store, m, 0, 0)};
    pthread_t thread;
    pthread_create(&thread, NULL, sleeps, &s);
    while ((waiting_word(store, m) & IGN_STORE_SLEEPS) == 0)
        sched_yield();
    ign_store_forewarn(other, m);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    pthread_join(thread, NULL);
    CHECK(s.found != s.seen);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

static bool is_told(ign_watch *watch)
{
    struct pollfd p = {.fd = ign_watch_descriptor(watch), .events = POLLIN};
    do
        CHECK_EQ(poll(&p, 1, 60000), 1);
    while (!ign_watch_take(watch));
    return true;
}

/* The descriptor of an event loop: told as a sleeper is, by a warning, a load, a call and the end of a generation. */
static void the_watch(void)
{
    ign_watch watch;
    if (ign_watch_open(&watch) != IGN_OK)
        return; /* not on this kernel */
    ign_store_io *io = store_dir_open(), *other_io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &other_io), 0);
    ign_store *store = open_with(io, &small), *other = open_with(other_io, &small);
    uint32_t m = declare(store, "m", 1);
    int rc;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t seen = ign_store_wait(store, m, 0, 0);
        CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen);
        CHECK_EQ(rc, IGN_OK);
        if (i % 2 == 0) {
            ign_store_forewarn(other, m);
            CHECK(is_told(&watch));
            CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen); /* armed again */
            CHECK_EQ(rc, IGN_OK);
        }
        CHECK_EQ(load_how(other, m, 0, 1, 100 + i, 0, NULL), IGN_OK);
        CHECK(is_told(&watch));
        CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen + 1);
    }
    uint32_t seen = ign_store_wait(store, m, 0, 0);
    CHECK_EQ(ign_store_watch(store, m, seen, &watch, &rc), seen);
    ign_store_wake(other, m);
    CHECK(is_told(&watch));
    CHECK_EQ(ign_store_watch(store, m, seen + 1, &watch, &rc), seen + 1);
    ign_generation *g;
    CHECK_EQ(ign_store_enter(other, &g), IGN_OK);
    ign_store_seal(other, g);
    ign_store_leave(other, g);
    CHECK(is_told(&watch));
    CHECK(ign_store_watch(store, m, seen + 1, &watch, &rc) != seen + 1 || rc == IGN_OK);
    ign_watch_close(&watch);
    ign_store_close(store);
    ign_store_close(other);
    ign_store_io_close(other_io);
    store_dir_close(io);
}

MAIN("store_wake", {
    RUN(the_bell);
    RUN(the_warning);
    RUN(the_watch);
})
