/* When an event loop looks before it sleeps: where what came next came soon, from another core, and for no longer than the limit. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/epoll.h>
#endif

#include "check.h"
#include "ignis_spin.h"
#include "ignis_wait.h"

#define LIMIT_NS 100000u

/* What comes so long after each answer, so many times. */
static void come(ign_spin *spin, uint64_t gap_ns, int times)
{
    static uint64_t now = 1000000;
    for (int i = 0; i < times; i++) {
        (void)ign_spin_wants(spin, now);
        now += gap_ns;
        ign_spin_arrived(spin, now);
        now += 1000;
    }
}

static bool wants(ign_spin *spin)
{
    ign_spin probe = *spin;
    return ign_spin_wants(&probe, 1);
}

static void it_goes_by_what_came(void)
{
    ign_spin spin;
    ign_spin_open(&spin, 0, LIMIT_NS);
    CHECK(!wants(&spin)); /* nothing is known */
    come(&spin, 50000, 32);
    CHECK(wants(&spin));
    come(&spin, 1000000000, 1);
    CHECK(wants(&spin)); /* one pause */
    come(&spin, 1000000000, 2);
    CHECK(!wants(&spin));
    come(&spin, 50000, 32);
    CHECK(wants(&spin));
    come(&spin, 900000, 8); /* a thousand a second */
    CHECK(!wants(&spin));
    come(&spin, 4000, 64); /* it is there already */
    CHECK(!wants(&spin));
}

static void what_comes_unasked_counts_once(void)
{
    ign_spin spin;
    ign_spin_open(&spin, 0, LIMIT_NS);
    uint64_t had = spin.gap_ns;
    ign_spin_arrived(&spin, 5);
    CHECK_EQ(spin.gap_ns, had);
    (void)ign_spin_wants(&spin, 1000);
    ign_spin_arrived(&spin, 2000);
    CHECK(spin.gap_ns < had);
    had = spin.gap_ns;
    ign_spin_arrived(&spin, 3000);
    CHECK_EQ(spin.gap_ns, had);
    (void)ign_spin_wants(&spin, 5000);
    ign_spin_arrived(&spin, 4000); /* a clock that went back */
    CHECK(spin.gap_ns < had);
}

static void never_without_a_limit_or_a_loop(void)
{
    ign_spin spin;
    ign_spin_open(&spin, 0, 0);
    come(&spin, 0, 32);
    CHECK(!wants(&spin));
    ign_spin_open(&spin, -1, LIMIT_NS);
    come(&spin, 50000, 32);
    CHECK(!wants(&spin));
}

#ifdef __linux__
static void on_core(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

typedef struct sender {
    int socket, core;
    uint64_t after_ns;
} sender;

static void *send_one(void *arg)
{
    const sender *s = arg;
    if (s->core >= 0)
        on_core(s->core);
    for (uint64_t until = ign_now_ns() + s->after_ns; ign_now_ns() < until;)
        ;
    CHECK_EQ(send(s->socket, "x", 1, 0), 1);
    return NULL;
}

/* Two ends of a connection over loopback. */
static void connected(int *one, int *other)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listening >= 0 && bind(listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(listening, 1) == 0);
    CHECK_EQ(getsockname(listening, (struct sockaddr *)&at, &bytes), 0);
    *one = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(*one, (struct sockaddr *)&at, sizeof at), 0);
    *other = accept(listening, NULL, NULL);
    CHECK(*other >= 0);
    close(listening);
}

static void sent(int socket, int core, uint64_t after_ns, pthread_t *thread, sender *s)
{
    *s = (sender){socket, core, after_ns};
    CHECK_EQ(pthread_create(thread, NULL, send_one, s), 0);
}

static void it_sees_what_comes_from_another_core(void)
{
    cpu_set_t allowed;
    CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int cores[2], found = 0;
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET((unsigned)i, &allowed))
            cores[found++] = i;
    if (found < 2)
        return; /* nobody sends from another core */
    int client, server, loop = epoll_create1(0);
    connected(&client, &server);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(loop >= 0 && epoll_ctl(loop, EPOLL_CTL_ADD, server, &event) == 0);
    ign_spin spin;
    pthread_t thread;
    sender s;
    char byte;
    on_core(cores[0]);
    ign_spin_open(&spin, loop, 10000000000u);
    sent(client, cores[1], 0, &thread, &s);
    pthread_join(thread, NULL);
    CHECK_EQ(recv(server, &byte, 1, 0), 1); /* from now on it is known where it comes from */
    sent(client, cores[1], 300000, &thread, &s);
    errno = EIO;
    CHECK(ign_spin_look(&spin, server)); /* well within its limit */
    CHECK_EQ(errno, EIO);
    CHECK_EQ(spin.looked, 1);
    CHECK_EQ(spin.found, 1);
    pthread_join(thread, NULL);
    CHECK_EQ(recv(server, &byte, 1, 0), 1);
    ign_spin_open(&spin, loop, 2000000);
    uint64_t began = ign_now_ns();
    CHECK(!ign_spin_look(&spin, server)); /* nothing comes */
    uint64_t took = ign_now_ns() - began;
    CHECK(took >= 2000000 && took < 2000000000);
    CHECK_EQ(spin.looked, 1);
    CHECK_EQ(spin.found, 0);
    sent(client, cores[0], 0, &thread, &s);
    pthread_join(thread, NULL);
    CHECK_EQ(recv(server, &byte, 1, 0), 1);
    CHECK(!ign_spin_look(&spin, server)); /* the sender needs this core */
    CHECK_EQ(spin.looked, 1);
    CHECK(!ign_spin_look(&spin, -1));
    CHECK_EQ(spin.looked, 1);
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
    close(client);
    close(server);
    close(loop);
}
#endif

#ifdef __linux__
MAIN("spin", RUN(it_goes_by_what_came); RUN(what_comes_unasked_counts_once); RUN(never_without_a_limit_or_a_loop);
     RUN(it_sees_what_comes_from_another_core);)
#else
MAIN("spin", RUN(it_goes_by_what_came); RUN(what_comes_unasked_counts_once); RUN(never_without_a_limit_or_a_loop);)
#endif
