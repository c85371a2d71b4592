#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_spin.h"

#include "ignis_wait.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

enum { NEWEST = 8, MOST_GAPS = 4, THERE_ALREADY_NS = 8000, RELAXES = 8 };

void ign_spin_open(ign_spin *spin, int loop, uint64_t limit_ns)
{
    *spin = (ign_spin){.loop = loop, .limit_ns = limit_ns, .gap_ns = MOST_GAPS * limit_ns};
}

void ign_spin_arrived(ign_spin *spin, uint64_t now_ns)
{
    if (spin->answered_ns == 0)
        return;
    uint64_t gap = now_ns > spin->answered_ns ? now_ns - spin->answered_ns : 0, most = MOST_GAPS * spin->limit_ns;
    gap = gap < most ? gap : most; /* one long pause does not end it, two do */
    spin->gap_ns = (spin->gap_ns * (NEWEST - 1) + gap) / NEWEST;
    spin->answered_ns = 0;
}

bool ign_spin_wants(ign_spin *spin, uint64_t now_ns)
{
    spin->answered_ns = now_ns;
#ifdef IGN_MUTANT_LOOKS_ALWAYS /* known-bad build: the tests must catch it */
    return true;
#endif
    return spin->loop >= 0 && spin->gap_ns < spin->limit_ns && spin->gap_ns >= THERE_ALREADY_NS;
}

#ifdef __linux__
/* Whether what came last on the socket was sent from this core. */
static bool shares_core(int socket)
{
    int core = -1;
    socklen_t bytes = sizeof core;
    return getsockopt(socket, SOL_SOCKET, SO_INCOMING_CPU, &core, &bytes) != 0 || core < 0 || core == sched_getcpu();
}
#else
static bool shares_core(int socket)
{
    (void)socket;
    return true;
}
#endif

bool ign_spin_look(ign_spin *spin, int socket)
{
    int kept = errno;
    bool found = false;
    if (!shares_core(socket)) {
        struct pollfd loop = {.fd = spin->loop, .events = POLLIN};
        uint64_t until_ns = ign_now_ns() + spin->limit_ns;
        spin->looked++;
        while (!(found = poll(&loop, 1, 0) != 0) && ign_now_ns() < until_ns)
            for (int i = 0; i < RELAXES; i++)
                ign_cpu_relax();
        spin->found += found;
    }
    errno = kept;
    return found;
}
