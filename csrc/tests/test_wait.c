/* Sleeping and waking: a thousand hand-overs without a lost wake-up, bounds, process identity, the mutex. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ignis_board.h"

static char path[128];

static const char *fresh_path(const char *what)
{
    snprintf(path, sizeof path, "/tmp/ignis-test-%ld-%s", (long)getpid(), what);
    unlink(path);
    return path;
}

static void timeouts_are_kept(void)
{
    ign_board board;
    CHECK_EQ(ign_board_open(&board, NULL, 4), IGN_OK);
    uint64_t now, began = ign_now_ns();
    CHECK_EQ(ign_event_wait_sequence(&board.events[0], 0, 30000000, &now), IGN_TIMEOUT);
    uint64_t took = ign_now_ns() - began;
    CHECK(took >= 29000000 && took < 2000000000);
    ign_event_advance(&board.events[0]);
    CHECK_EQ(ign_event_wait_sequence(&board.events[0], 0, 30000000, &now), IGN_OK);
    CHECK_EQ(now, 1);
    ign_board_close(&board);
    CHECK_EQ(ign_board_check(&board), IGN_E_CLOSED);
}

/* Two threads hand a number to and fro, always asleep in between. A lost wake-up shows as a timeout. */
typedef struct ball {
    ign_board board;
    uint32_t rounds;
} ball;

static void *return_the_ball(void *arg)
{
    ball *b = arg;
    uint64_t now;
    for (uint32_t i = 0; i < b->rounds; i++) {
        CHECK_EQ(ign_event_wait_sequence(&b->board.events[0], i, 10000000000u, &now), IGN_OK);
        ign_event_advance(&b->board.events[1]);
    }
    return NULL;
}

static void no_wake_up_is_lost(void)
{
    ball b = {.rounds = 5000};
    CHECK_EQ(ign_board_open(&b.board, NULL, 2), IGN_OK);
    pthread_t t;
    uint64_t now, began = ign_now_ns();
    CHECK_EQ(pthread_create(&t, NULL, return_the_ball, &b), 0);
    for (uint32_t i = 0; i < b.rounds; i++) {
        ign_event_advance(&b.board.events[0]);
        CHECK_EQ(ign_event_wait_sequence(&b.board.events[1], i, 1000000000u, &now), IGN_OK);
    }
    pthread_join(t, NULL);
    CHECK(ign_now_ns() - began < 30000000000u);
    ign_board_close(&b.board);
}

typedef struct crowd {
    ign_event *event;
    _Atomic uint32_t awake;
} crowd;

static void *one_of_many(void *arg)
{
    crowd *c = arg;
    uint64_t now;
    CHECK_EQ(ign_event_wait_sequence(c->event, 0, 5000000000u, &now), IGN_OK);
    atomic_fetch_add(&c->awake, 1);
    return NULL;
}

static void all_sleepers_wake(void)
{
    ign_board board;
    CHECK_EQ(ign_board_open(&board, NULL, 1), IGN_OK);
    crowd c = {.event = &board.events[0]};
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, one_of_many, &c), 0);
    usleep(30000);
    ign_event_advance(&board.events[0]);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(atomic_load(&c.awake), 6);
    ign_board_close(&board);
}

static void between_processes(void)
{
    const char *file = fresh_path("board");
    ign_board board;
    CHECK_EQ(ign_board_open(&board, file, 16), IGN_OK);
    pid_t child = fork();
    if (child == 0) {
        ign_board mine;
        if (ign_board_check(&board) != IGN_E_FORKED || ign_board_open(&mine, file, 16) != IGN_OK)
            _exit(2);
        usleep(20000);
        ign_event_advance(&mine.events[7]);
        _exit(0);
    }
    uint64_t now;
    CHECK_EQ(ign_event_wait_sequence(&board.events[7], 0, 5000000000u, &now), IGN_OK);
    CHECK_EQ(now, 1);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    ign_board other;
    CHECK_EQ(ign_board_open(&other, file, 17), IGN_E_SIZE);
    ign_mutex mutex;
    CHECK_EQ(ign_mutex_open(&mutex, file), IGN_E_MAGIC);
    CHECK_EQ(truncate(file, 4096), 0);
    CHECK_EQ(ign_board_open(&other, file, 16), IGN_E_TRUNCATED);
    CHECK_EQ(truncate(file, 3), 0);
    CHECK_EQ(ign_board_open(&other, file, 16), IGN_E_MAGIC);
#ifndef IGN_TEST_TSAN /* the fault would strike inside TSan's own runtime */
    /* The open one lost its pages: touching them is an error, not a crash. */
    ign_event_advance(&board.events[7]);
    CHECK_EQ(ign_board_check(&board), IGN_E_TRUNCATED);
#endif
    ign_board_close(&board);
    unlink(file);
}

static void identity_of_processes(void)
{
    uint64_t mine = ign_process_start_time(getpid());
    CHECK(mine != 0 && mine == ign_process_start_time(getpid()));
    CHECK_EQ(ign_process_start_time(0), 0);
    CHECK_EQ(ign_process_start_time(-5), 0);
    CHECK_EQ(ign_process_start_time(1ll << 40), 0);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    CHECK(ign_process_start_time(child) != 0);
    kill(child, SIGKILL);
    siginfo_t info;
    CHECK_EQ(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    CHECK_EQ(ign_process_start_time(child), 0); /* a zombie counts as dead */
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_EQ(ign_process_start_time(child), 0);
}

#ifndef IGN_TEST_TSAN /* the kernel's part in the hand-over is invisible to it */
static void mutex_survives_its_holder(void)
{
    const char *file = fresh_path("mutex");
    ign_mutex mutex;
    CHECK_EQ(ign_mutex_open(&mutex, file), IGN_OK);
    CHECK_EQ(ign_mutex_acquire(&mutex, 0), IGN_OK);
    CHECK_EQ(ign_mutex_holder(&mutex), getpid());
    CHECK_EQ(ign_mutex_release(&mutex), IGN_OK);
    CHECK_EQ(ign_mutex_holder(&mutex), 0);
    CHECK_EQ(ign_mutex_release(&mutex), IGN_E_INVALID);
    int ready[2];
    CHECK_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ign_mutex mine;
        if (ign_mutex_check(&mutex) != IGN_E_FORKED || ign_mutex_open(&mine, file) != IGN_OK || ign_mutex_acquire(&mine, 0) != IGN_OK)
            _exit(2);
        (void)!write(ready[1], "x", 1);
        pause();
        _exit(0);
    }
    char c;
    CHECK_EQ(read(ready[0], &c, 1), 1);
    CHECK_EQ(ign_mutex_acquire(&mutex, 20000000), IGN_TIMEOUT);
    CHECK_EQ(ign_mutex_holder(&mutex), child);
    kill(child, SIGKILL);
    CHECK_EQ(ign_mutex_acquire(&mutex, 5000000000u), IGN_OK);
    CHECK_EQ(mutex.recovered, 1);
    CHECK_EQ(ign_mutex_release(&mutex), IGN_OK);
    CHECK_EQ(ign_mutex_acquire(&mutex, 0), IGN_OK);
    CHECK_EQ(ign_mutex_release(&mutex), IGN_OK);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    ign_mutex_close(&mutex);
    unlink(file);
    close(ready[0]);
    close(ready[1]);
}
#endif

MAIN("wait", {
    RUN(timeouts_are_kept);
    RUN(no_wake_up_is_lost);
    RUN(all_sleepers_wake);
    RUN(between_processes);
    RUN(identity_of_processes);
#ifndef IGN_TEST_TSAN
    RUN(mutex_survives_its_holder);
#endif
})
