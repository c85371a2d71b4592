#define _DEFAULT_SOURCE
#include "ignis_store_control.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define MAGIC 0x314C5443534E4749ull /* "IGNSCTL1" on a little-endian machine */
#define BYTE_ORDER_MARK 0x01020304u

enum { PAGE = 4096, SMALLEST = 32, MOST_FREE = 1 << 18 };

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

static void point(ign_ctl *ctl)
{
    ctl->head = (ign_ctl_head *)(void *)ctl->base;
    ctl->undo = (ign_ctl_undo *)(void *)(ctl->base + ctl->head->undo_at);
    ctl->arena = ctl->base + ctl->head->arena_at;
    ctl->root = (ign_root *)(void *)ctl->arena;
}

static void begin(ign_ctl *ctl, uint64_t undo_at, uint64_t undo_capacity, uint64_t arena_at, uint64_t arena_bytes)
{
    ign_ctl_head *head = (ign_ctl_head *)(void *)ctl->base;
    head->version = IGN_CTL_VERSION;
    head->byte_order = BYTE_ORDER_MARK;
    head->undo_at = undo_at;
    head->undo_capacity = undo_capacity;
    head->arena_at = arena_at;
    atomic_store_explicit(&head->refused_from, UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&head->arena_bytes, arena_bytes, memory_order_relaxed);
    point(ctl);
    *ctl->root = (ign_root){.used = round_up(sizeof(ign_root), 16), .next_magazine = 1, .first_pointer = 1};
    head->magic = MAGIC;
}

int ign_ctl_create(ign_ctl *ctl, ign_store_io *io, const char *name, uint64_t reserve, uint64_t undo_capacity,
                   uint64_t arena_bytes)
{
    uint64_t undo_at = round_up(sizeof(ign_ctl_head), 64);
    uint64_t arena_at = round_up(undo_at + undo_capacity * sizeof(ign_ctl_undo), PAGE);
    *ctl = (ign_ctl){.io = io, .file = -1, .reserve = reserve, .alone = true};
    int rc = io->open(io, name, true, &ctl->file);
    if (rc != 0)
        return rc;
    rc = arena_at + arena_bytes > reserve ? ENOSPC : io->allocate(io, ctl->file, arena_at + arena_bytes);
    void *base = NULL;
    if (rc == 0)
        rc = io->map(io, ctl->file, reserve, &base);
    if (rc != 0) {
        io->close(io, ctl->file);
        ctl->file = -1;
        io->remove(io, name);
        return rc;
    }
    ctl->base = base;
    begin(ctl, undo_at, undo_capacity, arena_at, arena_bytes);
    return 0;
}

int ign_ctl_create_in_memory(ign_ctl *ctl, ign_store_io *io, uint64_t reserve)
{
    uint64_t undo_at = round_up(sizeof(ign_ctl_head), 64), arena_at = round_up(undo_at, PAGE);
    *ctl = (ign_ctl){.io = io, .file = -1, .reserve = reserve, .alone = true, .in_memory = true};
    void *base = mmap(NULL, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return errno;
    ctl->base = base;
    begin(ctl, undo_at, 0, arena_at, reserve - arena_at);
    return 0;
}

int ign_ctl_open(ign_ctl *ctl, ign_store_io *io, const char *name, uint64_t reserve)
{
    *ctl = (ign_ctl){.io = io, .file = -1, .reserve = reserve};
    int rc = io->open(io, name, false, &ctl->file);
    if (rc != 0)
        return rc;
    uint64_t bytes = 0;
    ign_ctl_head *head = NULL;
    rc = io->size(io, ctl->file, &bytes);
    if (rc == 0 && (bytes < sizeof(ign_ctl_head) || bytes > reserve))
        rc = IGN_E_TRUNCATED;
    void *base = NULL;
    if (rc == 0)
        rc = io->map(io, ctl->file, reserve, &base);
    if (rc == 0) {
        ctl->base = base;
        head = base;
        if (head->magic != MAGIC || head->byte_order != BYTE_ORDER_MARK)
            rc = IGN_E_MAGIC;
        else if (head->version != IGN_CTL_VERSION)
            rc = IGN_E_VERSION;
        else if (head->undo_at < sizeof *head || head->undo_at > bytes || head->arena_at < head->undo_at ||
                 head->undo_capacity > (head->arena_at - head->undo_at) / sizeof(ign_ctl_undo) ||
                 head->arena_at > bytes || bytes - head->arena_at < sizeof(ign_root))
            rc = IGN_E_SIZE;
    }
    if (rc != 0) {
        ign_ctl_close(ctl);
        return rc;
    }
    point(ctl);
    ctl->cut = bytes - head->arena_at < atomic_load_explicit(&head->arena_bytes, memory_order_relaxed);
    return 0;
}

void ign_ctl_close(ign_ctl *ctl)
{
    if (ctl->base != NULL && ctl->in_memory)
        munmap(ctl->base, ctl->reserve);
    else if (ctl->base != NULL)
        ctl->io->unmap(ctl->io, ctl->base, ctl->reserve);
    if (ctl->file >= 0)
        ctl->io->close(ctl->io, ctl->file);
    ctl->base = NULL;
    ctl->file = -1;
}

/* -- transactions ---------------------------------------------------------------------------------------------- */

static void store_word(ign_ctl *ctl, uint64_t *word, uint64_t value)
{
    IGN_STEP(ctl->io);
    /* Release: a process that is killed has made all stores before this one. Read back by others under the lock only. */
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

void ign_ctl_put(ign_ctl *ctl, uint64_t *word, uint64_t value)
{
    if (*word == value)
        return;
    if (!ctl->alone) {
        ign_ctl_head *head = ctl->head;
        uint32_t count = atomic_load_explicit(&head->undo_count, memory_order_relaxed);
        if (count < head->undo_capacity) {
            ctl->undo[count] = (ign_ctl_undo){.offset = (uint64_t)((uint8_t *)word - ctl->arena), .old = *word};
            IGN_STEP(ctl->io);
#ifndef IGN_MUTANT_NO_UNDO
            atomic_store_explicit(&head->undo_count, count + 1, memory_order_release);
#endif
        } else
            atomic_store_explicit(&head->undo_lost, 1, memory_order_release);
    }
    store_word(ctl, word, value);
}

void ign_ctl_begin(ign_ctl *ctl)
{
    ctl->no_room = false;
    while (ctl->root->pending != 0) {
        uint64_t *block = ign_ctl_at(ctl, ctl->root->pending);
        uint64_t offset = ctl->root->pending, next = block[0], class = block[1];
        ign_ctl_put(ctl, &block[0], ctl->root->free[class]);
        ign_ctl_put(ctl, &ctl->root->free[class], offset);
        ign_ctl_put(ctl, &ctl->root->pending, next);
    }
}

void ign_ctl_commit(ign_ctl *ctl, uint64_t applied)
{
    ign_ctl_put(ctl, &ctl->root->applied, applied);
    if (ctl->alone)
        return;
    IGN_STEP(ctl->io);
    /* The count first: with the mark alone, a transaction that is whole would be made anew, which is right too. */
    atomic_store_explicit(&ctl->head->undo_count, 0, memory_order_release);
    IGN_STEP(ctl->io);
    atomic_store_explicit(&ctl->head->undo_lost, 0, memory_order_release);
    IGN_STEP(ctl->io);
}

bool ign_ctl_roll_back(ign_ctl *ctl)
{
    ign_ctl_head *head = ctl->head;
    if (atomic_load_explicit(&head->undo_lost, memory_order_acquire) != 0)
        return false;
    uint32_t count = atomic_load_explicit(&head->undo_count, memory_order_acquire);
    if (count > head->undo_capacity)
        return false;
    /* All of them, newest first, and only then the count: whoever is killed here is followed by one who begins again. */
    for (uint32_t i = count; i-- > 0;)
        store_word(ctl, (uint64_t *)(void *)(ctl->arena + ctl->undo[i].offset), ctl->undo[i].old);
    IGN_STEP(ctl->io);
    atomic_store_explicit(&head->undo_count, 0, memory_order_release);
    return true;
}

/* -- blocks ---------------------------------------------------------------------------------------------------- */

/* Sizes are 32, 48, 64, 96, 128, 192 ...: two to each power of two. */
static uint64_t class_of(uint64_t bytes, uint64_t *class)
{
    uint64_t size = SMALLEST, number = 0;
    while (size < bytes) {
        size = number % 2 == 0 ? size / 2 * 3 : size / 3 * 4;
        number++;
    }
    *class = number;
    return size;
}

static uint64_t size_of(uint64_t class)
{
    return (class % 2 == 0 ? (uint64_t)SMALLEST : (uint64_t)SMALLEST / 2 * 3) << class / 2;
}

uint64_t ign_ctl_free_bytes(const ign_ctl *ctl)
{
    const ign_root *root = ctl->root;
    uint64_t found = 0, looked = 0;
    for (uint64_t at = root->pending; at != 0 && looked < MOST_FREE; looked++) {
        const uint64_t *block = ign_ctl_at(ctl, at);
        found += size_of(block[1]);
        at = block[0];
    }
    for (uint64_t class = IGN_CTL_CLASSES; class-- > 0;)
        for (uint64_t at = root->free[class]; at != 0 && looked < MOST_FREE; looked++) {
            found += size_of(class);
            at = *(const uint64_t *)ign_ctl_at(ctl, at);
        }
    return found;
}

int ign_ctl_make_room(ign_ctl *ctl, uint64_t bytes)
{
    uint64_t has = atomic_load_explicit(&ctl->head->arena_bytes, memory_order_relaxed);
    if (has - ctl->root->used >= bytes)
        return 0;
    uint64_t most = ctl->reserve - ctl->head->arena_at;
    if (bytes > most - ctl->root->used)
        return ENOSPC;
    uint64_t want = round_up(ctl->root->used + bytes + ctl->root->used / 2, PAGE);
    want = want < most ? want : most;
    int rc = ctl->io->allocate(ctl->io, ctl->file, ctl->head->arena_at + want);
    if (rc == ENOSPC || rc == EDQUOT) {
        want = round_up(ctl->root->used + bytes, PAGE);
        rc = want > most ? rc : ctl->io->allocate(ctl->io, ctl->file, ctl->head->arena_at + want);
    }
    if (rc == 0)
        atomic_store_explicit(&ctl->head->arena_bytes, want, memory_order_relaxed);
    return rc;
}

void ign_ctl_give_back(ign_ctl *ctl)
{
    if (ctl->io->punch != NULL)
        ctl->io->punch(ctl->io, ctl->file, ctl->head->arena_at + round_up(sizeof(ign_root), PAGE));
}

uint64_t ign_ctl_alloc(ign_ctl *ctl, uint64_t bytes)
{
    uint64_t class, size = class_of(bytes, &class), offset = ctl->root->free[class];
    if (offset != 0) {
        uint64_t *block = ign_ctl_at(ctl, offset);
        ign_ctl_put(ctl, &ctl->root->free[class], block[0]);
        /* The caller writes these two plainly; what they held must come back when this is undone. */
        ign_ctl_put(ctl, &block[0], UINT64_MAX);
        ign_ctl_put(ctl, &block[1], UINT64_MAX);
        return offset;
    }
    if (ign_ctl_make_room(ctl, size) != 0) {
        ctl->no_room = true;
        return 0;
    }
    offset = ctl->root->used;
    ign_ctl_put(ctl, &ctl->root->used, offset + size);
    return offset;
}

void ign_ctl_free(ign_ctl *ctl, uint64_t offset, uint64_t bytes)
{
    uint64_t class;
    class_of(bytes, &class);
    if (offset == 0)
        return;
    uint64_t *block = ign_ctl_at(ctl, offset);
    ign_ctl_put(ctl, &block[0], ctl->root->pending);
    ign_ctl_put(ctl, &block[1], class);
    ign_ctl_put(ctl, &ctl->root->pending, offset);
}
