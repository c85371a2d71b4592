#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define PAGE 4096u /* granularity of the layout, not of the machine */

/* -- the SIGBUS guard --------------------------------------------------------------------------------------------- */

struct ign_guard {
    _Atomic uintptr_t base; /* 0: free for reuse */
    _Atomic size_t bytes;
    _Atomic bool poisoned;
    void (*leave)(void); /* NULL: nobody jumps */
    struct ign_guard *next; /* set before the node is published, never changed */
};

/* A list that only grows (nodes are reused), so that the handler can walk it at any moment. Each extension module has
 * its own list and its own handler; the one installed later passes foreign addresses on to the earlier. */
static _Atomic(ign_guard *) guards;
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous_action;
static uintptr_t page_mask;

#ifdef __linux__
#define RAISED_CODE SI_TKILL
#else
#define RAISED_CODE SI_USER
#endif
#define RAISED_AGAIN_NS 1000000000u

/* A handler that was installed over ours (Python's faulthandler.enable() after our import) reports a fault, puts ours back and
 * hands the signal on by raise(), which has no address. Nothing to be done with it: the fault comes again as soon as we return,
 * with its address, and now to us. Only the last of the chain does so, where the answer would be the end of the process; a
 * second raise within a second is what it looks like, and ends it. */
static bool handed_on(const siginfo_t *info)
{
    static _Atomic uint64_t before;
    bool last = (previous_action.sa_flags & SA_SIGINFO) == 0 &&
                (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN);
    if (!last || info->si_code != RAISED_CODE || info->si_pid != getpid())
        return false;
    uint64_t now = ign_now_ns();
    uint64_t earlier = atomic_exchange_explicit(&before, now, memory_order_relaxed);
    return earlier == 0 || now - earlier > RAISED_AGAIN_NS;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    uintptr_t address = (uintptr_t)info->si_addr;
    if (handed_on(info))
        return;
    bool fault = info->si_code > 0; /* else somebody sent it, and there is no address */
    for (ign_guard *g = atomic_load_explicit(&guards, memory_order_acquire); fault && g != NULL; g = g->next) {
        uintptr_t base = atomic_load_explicit(&g->base, memory_order_acquire);
        size_t bytes = atomic_load_explicit(&g->bytes, memory_order_relaxed);
        if (base == 0 || address - base >= bytes)
            continue;
        atomic_store_explicit(&g->poisoned, true, memory_order_release);
        if (g->leave != NULL)
            g->leave();
        uintptr_t from = address & page_mask;
        /* Everything behind the first lost page is lost too. mmap is a plain system call here. */
        if (mmap((void *)from, base + bytes - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) !=
            MAP_FAILED) {
            errno = saved_errno;
            return;
        }
        break;
    }
    errno = saved_errno;
    if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != NULL) {
        previous_action.sa_sigaction(signal_number, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
        previous_action.sa_handler(signal_number);
    } else {
        /* A synchronous fault cannot be ignored: return to it with the default action and let it end the process. One that was
         * sent does not come again by itself. */
        struct sigaction fallback;
        memset(&fallback, 0, sizeof fallback);
        fallback.sa_handler = SIG_DFL;
        sigaction(SIGBUS, &fallback, NULL);
        if (!fault)
            raise(SIGBUS);
    }
}

static void lock_guards(void) { pthread_mutex_lock(&guards_lock); }
static void unlock_guards(void) { pthread_mutex_unlock(&guards_lock); }

static void install_handler(void)
{
    page_mask = ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    (void)pthread_atfork(lock_guards, unlock_guards, unlock_guards); /* a child must not inherit a held lock */
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
}

ign_guard *ign_guard_add(void *base, size_t bytes)
{
    return ign_guard_add_leaving(base, bytes, NULL);
}

ign_guard *ign_guard_add_leaving(void *base, size_t bytes, void (*leave)(void))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handler);
    lock_guards();
    ign_guard *g = atomic_load_explicit(&guards, memory_order_relaxed);
    while (g != NULL && atomic_load_explicit(&g->base, memory_order_relaxed) != 0)
        g = g->next;
    bool fresh = g == NULL;
    if (fresh)
        g = calloc(1, sizeof *g);
    if (g != NULL) {
        atomic_store_explicit(&g->poisoned, false, memory_order_relaxed);
        atomic_store_explicit(&g->bytes, bytes, memory_order_relaxed);
        g->leave = leave;
        /* Pairs with the handler's acquire of base: bytes before base. */
        atomic_store_explicit(&g->base, (uintptr_t)base, memory_order_release);
        if (fresh) {
            g->next = atomic_load_explicit(&guards, memory_order_relaxed);
            atomic_store_explicit(&guards, g, memory_order_release);
        }
    }
    unlock_guards();
    return g;
}

void ign_guard_remove(ign_guard *guard)
{
    if (guard == NULL)
        return;
    lock_guards();
    atomic_store_explicit(&guard->base, 0, memory_order_release);
    unlock_guards();
}

bool ign_guard_poisoned(const ign_guard *guard)
{
    return guard != NULL && atomic_load_explicit(&guard->poisoned, memory_order_acquire);
}

/* -- files -------------------------------------------------------------------------------------------------------- */

static int allocate_file(int fd, size_t bytes)
{
    if (ftruncate(fd, (off_t)bytes) != 0)
        return -1;
#ifdef __linux__
    int rc = posix_fallocate(fd, 0, (off_t)bytes);
    if (rc != 0 && rc != EOPNOTSUPP && rc != EINVAL) {
        errno = rc;
        return -1;
    }
#endif
    return 0;
}

int ign_file_create(const char *path, size_t bytes, int (*format)(void *memory, void *arg), void *arg, int *fd, void **memory)
{
    static _Atomic uint32_t serial;
    size_t room = strlen(path) + 48;
    char *temporary = malloc(room);
    if (temporary == NULL)
        return IGN_E_NOMEM;
    snprintf(temporary, room, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed));
    int rc = IGN_E_IO, kept = 0;
    void *p = MAP_FAILED;
    *fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd >= 0) {
        if (fchmod(*fd, 0600) == 0 && allocate_file(*fd, bytes) == 0) /* whatever the umask has taken */
            p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (p != MAP_FAILED) {
            rc = format(p, arg);
            /* link, not rename: it refuses to replace what another process made in the meantime. */
            if (rc == IGN_OK && link(temporary, path) != 0)
                rc = IGN_E_IO;
        }
        kept = errno;
        unlink(temporary);
        if (rc != IGN_OK) {
            if (p != MAP_FAILED)
                munmap(p, bytes);
            close(*fd);
            *fd = -1;
        }
        errno = kept;
    }
    free(temporary);
    if (rc == IGN_OK)
        *memory = p;
    return rc;
}

/* -- layout ------------------------------------------------------------------------------------------------------- */

static uint64_t align_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) & ~(to - 1);
}

int ign_region_config_default(ign_region_config *config, uint32_t ring_capacity, uint64_t max_message_bytes)
{
    memset(config, 0, sizeof *config);
    if (!ign_ring_capacity_valid(ring_capacity) || max_message_bytes == 0 || max_message_bytes > IGN_SLAB_MAX_SLOT_BYTES)
        return IGN_E_INVALID;
    config->ring_capacity = ring_capacity;
    config->max_message_bytes = max_message_bytes;
    config->bytering_bytes = ign_bytering_default_bytes(ring_capacity);
    uint64_t largest = align_up(max_message_bytes, IGN_SLAB_ALIGN);
    uint64_t count = ring_capacity;
    for (uint64_t size = 256; config->class_count < IGN_SLAB_MAX_CLASSES; size *= 4) {
        bool last = size >= largest;
        uint32_t c = config->class_count++;
        config->slot_bytes[c] = (uint32_t)(last ? largest : size);
        config->slot_counts[c] = (uint32_t)(count < 4 ? 4 : count);
        if (last)
            return IGN_OK;
        count /= size == 16384 ? 16 : 4; /* beyond 16 KiB a class gets a quarter of the bytes of the smaller ones */
    }
    return IGN_E_INVALID;
}

static uint32_t power_of_two_from(uint32_t value)
{
    uint32_t p = 1;
    while (p < value)
        p *= 2;
    return p;
}

/* Fills the copies in `region` from a configuration. Every header must come out the same way. */
static int plan(ign_region *region, const ign_region_config *config)
{
    memset(region, 0, sizeof *region);
    region->fd = -1;
    if (!ign_ring_capacity_valid(config->ring_capacity))
        return IGN_E_INVALID;
    int rc = ign_slab_table_build(&region->table, config->slot_bytes, config->slot_counts, config->class_count);
    if (rc != IGN_OK)
        return rc;
    if (config->max_message_bytes == 0 ||
        config->max_message_bytes > region->table.classes[region->table.class_count - 1].slot_bytes)
        return IGN_E_INVALID;
    if (!ign_bytering_size_valid(config->bytering_bytes) || config->label_bytes > IGN_REGION_LABEL_MAX)
        return IGN_E_INVALID;
    region->ring_capacity = config->ring_capacity;
    region->bytering_bytes = config->bytering_bytes;
    region->label_bytes = config->label_bytes;
    /* Room for every slot at once: sending a buffer home never has to wait. */
    region->return_capacity = power_of_two_from(region->table.slot_count);
    region->max_message_bytes = config->max_message_bytes;
    region->ring_offset = IGN_REGION_HEADER_BYTES;
    region->return_offset = align_up(region->ring_offset + ign_ring_bytes(region->ring_capacity), IGN_LINE_BYTES);
    region->words_offset = align_up(region->return_offset + ign_ring_bytes(region->return_capacity), IGN_LINE_BYTES);
    region->bytering_offset = align_up(region->words_offset + ign_slab_words_bytes(&region->table), PAGE);
    region->data_offset = align_up(region->bytering_offset + region->bytering_bytes, PAGE);
    uint64_t total = align_up(region->data_offset + region->table.data_bytes, PAGE);
    if (total > IGN_REGION_MAX_BYTES)
        return IGN_E_INVALID;
    region->bytes = (size_t)total;
    return IGN_OK;
}

static void take_role(ign_owner *owner, uint64_t attach_pos)
{
    /* attach_pos before state: pairs with the acquire in ign_region_owner_state and with the producer's acquire of
     * attach_pos itself. */
    atomic_store_explicit(&owner->attach_pos, attach_pos, memory_order_release);
    atomic_store_explicit(&owner->start_time, ign_process_start_time(getpid()), memory_order_relaxed);
    atomic_store_explicit(&owner->namespaces, ign_process_namespaces(), memory_order_relaxed);
    atomic_store_explicit(&owner->pid, (uint32_t)getpid(), memory_order_relaxed);
    atomic_store_explicit(&owner->state, IGN_OWNER_ATTACHED, memory_order_release);
}

typedef struct format_request {
    const ign_region *region;
    const uint8_t *label;
    int role; /* -1: both */
} format_request;

/* `memory` is zeroed. The magic goes last, though the name appears only afterwards. */
static int format_region(void *memory, void *arg)
{
    const format_request *request = arg;
    const ign_region *region = request->region;
    ign_region_header *header = memory;
    header->version = IGN_REGION_VERSION;
    header->header_bytes = IGN_REGION_HEADER_BYTES;
    header->total_bytes = region->bytes;
    header->ring_capacity = region->ring_capacity;
    header->return_capacity = region->return_capacity;
    header->max_message_bytes = region->max_message_bytes;
    header->ring_offset = region->ring_offset;
    header->return_offset = region->return_offset;
    header->words_offset = region->words_offset;
    header->bytering_offset = region->bytering_offset;
    header->bytering_bytes = region->bytering_bytes;
    header->label_bytes = region->label_bytes;
    if (region->label_bytes != 0)
        memcpy((uint8_t *)memory + IGN_REGION_LABEL_OFFSET, request->label, region->label_bytes);
    header->data_offset = region->data_offset;
    header->class_count = region->table.class_count;
    header->slot_count = region->table.slot_count;
    header->data_bytes = region->table.data_bytes;
    memcpy(header->classes, region->table.classes, sizeof header->classes);
    (void)ign_ring_format((uint8_t *)memory + region->ring_offset, region->ring_capacity, 0);
    (void)ign_ring_format((uint8_t *)memory + region->return_offset, region->return_capacity, 0);
    for (int role = 0; role < 2; role++)
        if (request->role < 0 || request->role == role)
            take_role(&header->owners[role], 0);
    header->magic = IGN_REGION_MAGIC;
    return IGN_OK;
}

int ign_region_heap(ign_region *region, const ign_region_config *config)
{
    ign_fork_watch();
    int rc = plan(region, config);
    if (rc != IGN_OK)
        return rc;
    /* Untouched pages cost nothing, so large classes that are never used are free. */
    void *memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return IGN_E_NOMEM;
    format_request request = {.region = region, .label = config->label, .role = -1};
    (void)format_region(memory, &request);
    region->header = memory;
    region->fork_generation = ign_fork_generation();
    return IGN_OK;
}

static int guard_mapping(ign_region *region, void *memory)
{
    region->guard = ign_guard_add(memory, region->bytes);
    if (region->guard == NULL) {
        munmap(memory, region->bytes);
        close(region->fd);
        region->fd = -1;
        return IGN_E_NOMEM;
    }
    region->header = memory;
    region->fork_generation = ign_fork_generation();
    return IGN_OK;
}

int ign_region_create(ign_region *region, const char *path, const ign_region_config *config, ign_role role)
{
    ign_fork_watch();
    int rc = plan(region, config);
    if (rc != IGN_OK)
        return rc;
    format_request request = {.region = region, .label = config->label, .role = (int)role};
    void *memory;
    rc = ign_file_create(path, region->bytes, format_region, &request, &region->fd, &memory);
    return rc == IGN_OK ? guard_mapping(region, memory) : rc;
}

int ign_region_check_header(ign_region *region, const ign_region_header *header, uint64_t file_bytes)
{
    memset(region, 0, sizeof *region);
    region->fd = -1;
    if (header->magic != IGN_REGION_MAGIC)
        return IGN_E_MAGIC;
    if (header->version != IGN_REGION_VERSION)
        return IGN_E_VERSION;
    if (header->total_bytes > file_bytes)
        return IGN_E_TRUNCATED;
    if (header->class_count == 0 || header->class_count > IGN_SLAB_MAX_CLASSES)
        return IGN_E_SIZE;
    ign_region_config config = {
        .ring_capacity = header->ring_capacity,
        .bytering_bytes = header->bytering_bytes,
        .label_bytes = header->label_bytes,
        .max_message_bytes = header->max_message_bytes,
        .class_count = header->class_count,
    };
    for (uint32_t c = 0; c < header->class_count; c++) {
        config.slot_bytes[c] = header->classes[c].slot_bytes;
        config.slot_counts[c] = header->classes[c].count;
    }
    /* The layout follows from the configuration; compare instead of trusting offsets one by one. */
    if (plan(region, &config) != IGN_OK || region->bytes != header->total_bytes || region->bytes != file_bytes ||
        header->header_bytes != IGN_REGION_HEADER_BYTES || region->return_capacity != header->return_capacity ||
        region->ring_offset != header->ring_offset || region->return_offset != header->return_offset ||
        region->words_offset != header->words_offset || region->bytering_offset != header->bytering_offset ||
        region->data_offset != header->data_offset ||
        region->table.slot_count != header->slot_count || region->table.data_bytes != header->data_bytes ||
        memcmp(region->table.classes, header->classes, sizeof header->classes) != 0)
        return IGN_E_SIZE;
    return IGN_OK;
}

int ign_region_open(ign_region *region, const char *path)
{
    ign_fork_watch();
    memset(region, 0, sizeof *region);
    region->fd = -1;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a fifo under that name must not block us */
    if (fd < 0)
        return IGN_E_IO;
    int rc = IGN_E_IO;
    struct stat st;
    /* Read, not mapped: what is checked here cannot change under the check. */
    union {
        ign_region_header header;
        uint8_t bytes[IGN_REGION_HEADER_BYTES];
    } start;
    memset(&start, 0, sizeof start);
    ssize_t got;
    if (fstat(fd, &st) != 0) {
        rc = IGN_E_IO;
    } else if (!S_ISREG(st.st_mode)) {
        rc = IGN_E_MAGIC;
    } else if ((got = pread(fd, start.bytes, sizeof start.bytes, 0)) < 0) {
        rc = IGN_E_IO;
    } else if (got < (ssize_t)sizeof start.bytes) {
        rc = got >= 8 && start.header.magic == IGN_REGION_MAGIC ? IGN_E_TRUNCATED : IGN_E_MAGIC;
    } else {
        rc = ign_region_check_header(region, &start.header, (uint64_t)st.st_size);
    }
    if (rc == IGN_OK) {
        void *memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) {
            region->fd = fd;
            return guard_mapping(region, memory);
        }
        rc = IGN_E_IO;
    }
    int kept = errno;
    close(fd);
    errno = kept;
    return rc;
}

void ign_region_close(ign_region *region)
{
    if (region->header == NULL)
        return;
    ign_guard_remove(region->guard);
    region->guard = NULL;
    munmap(region->header, region->bytes);
    region->header = NULL;
    if (region->fd >= 0)
        close(region->fd);
    region->fd = -1;
}

/* -- who is there ------------------------------------------------------------------------------------------------- */

int ign_region_owner_state(ign_region *region, ign_role role)
{
    ign_owner *owner = &region->header->owners[role];
    uint32_t state = atomic_load_explicit(&owner->state, memory_order_acquire);
    if (state == IGN_OWNER_NEVER)
        return IGN_EMPTY;
    if (state == IGN_OWNER_DETACHED)
        return IGN_E_CLOSED;
    /* A pid of another namespace names somebody else here, and in another time namespace /proc says other start times:
     * nothing can be proven, so count it as alive. */
    if (atomic_load_explicit(&owner->namespaces, memory_order_relaxed) != ign_process_namespaces())
        return IGN_OK;
    uint32_t pid = atomic_load_explicit(&owner->pid, memory_order_relaxed);
    uint64_t start_time = atomic_load_explicit(&owner->start_time, memory_order_relaxed);
    uint64_t found = ign_process_start_time(pid);
    return found != 0 && found == start_time ? IGN_OK : IGN_E_PEER_DEAD;
}

int ign_region_attach(ign_region *region, ign_role role, uint64_t attach_pos)
{
    if (region->fd >= 0) {
        /* Two processes may want the role at once. Held for microseconds; a holder that is stopped costs us BUSY. */
        int tries = 0;
        while (flock(region->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR)
                return IGN_E_IO;
            if (++tries == 100)
                return IGN_E_BUSY;
            struct timespec pause = {.tv_sec = 0, .tv_nsec = 1000000};
            nanosleep(&pause, NULL);
        }
    }
    int rc = ign_region_owner_state(region, role) == IGN_OK ? IGN_E_BUSY : IGN_OK;
    if (rc == IGN_OK)
        take_role(&region->header->owners[role], attach_pos);
    if (region->fd >= 0)
        flock(region->fd, LOCK_UN);
    return rc;
}

void ign_region_detach(ign_region *region, ign_role role)
{
    atomic_store_explicit(&region->header->owners[role].state, IGN_OWNER_DETACHED, memory_order_seq_cst);
    ign_event_notify(&region->header->items);
    ign_event_notify(&region->header->space);
}

int ign_region_check(const ign_region *region)
{
    if (region->header == NULL)
        return IGN_E_CLOSED;
    if (region->fork_generation != ign_fork_generation())
        return IGN_E_FORKED;
    if (ign_guard_poisoned(region->guard))
        return IGN_E_TRUNCATED;
    return IGN_OK;
}

int ign_region_check_size(ign_region *region)
{
    int rc = ign_region_check(region);
    if (rc != IGN_OK || region->fd < 0)
        return rc;
    struct stat st;
    if (fstat(region->fd, &st) != 0 || (uint64_t)st.st_size >= region->bytes)
        return IGN_OK;
    atomic_store_explicit(&region->guard->poisoned, true, memory_order_release);
    return IGN_E_TRUNCATED;
}

ign_naming ign_region_naming(const ign_region *region, const char *path)
{
    struct stat own, found;
    if (ign_region_check(region) != IGN_OK || region->fd < 0 || fstat(region->fd, &own) != 0)
        return IGN_NAMED;
    if (own.st_nlink == 0)
        return IGN_UNNAMED;
    if (lstat(path, &found) != 0)
        return errno == ENOENT || errno == ENOTDIR ? IGN_RENAMED : IGN_NAMED;
    return found.st_dev == own.st_dev && found.st_ino == own.st_ino ? IGN_NAMED : IGN_RENAMED;
}
