#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_store_io.h"

#include "ignis_region.h"
#include "ignis_store_landing.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Mappings, and what the handler of SIGBUS knows of them. */
typedef struct mapping {
    void *memory;
    ign_guard *guard;
    struct mapping *next;
} mapping;

static mapping *mappings;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

int ign_store_os_map(ign_store_io *io, int file, uint64_t reserve, void **memory)
{
    (void)io;
    mapping *m = malloc(sizeof *m);
    void *base = m == NULL ? MAP_FAILED : mmap(NULL, reserve, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ign_guard *guard = base == MAP_FAILED ? NULL : ign_guard_add_leaving(base, reserve, ign_landing_leave);
    if (guard == NULL) {
        int kept = m == NULL || base != MAP_FAILED ? ENOMEM : errno;
        if (base != MAP_FAILED)
            munmap(base, reserve);
        free(m);
        return kept;
    }
    *m = (mapping){.memory = base, .guard = guard};
    pthread_mutex_lock(&mappings_lock);
    m->next = mappings;
    mappings = m;
    pthread_mutex_unlock(&mappings_lock);
    *memory = base;
    return 0;
}

void ign_store_os_unmap(ign_store_io *io, void *memory, uint64_t reserve)
{
    (void)io;
    mapping *found = NULL;
    pthread_mutex_lock(&mappings_lock);
    for (mapping **link = &mappings; *link != NULL && found == NULL;)
        if ((*link)->memory == memory) {
            found = *link;
            *link = found->next;
        } else
            link = &(*link)->next;
    pthread_mutex_unlock(&mappings_lock);
    ign_guard_remove(found == NULL ? NULL : found->guard);
    free(found);
    munmap(memory, reserve);
}
