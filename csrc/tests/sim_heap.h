/* Frees what killed processes of a simulated machine have left, between two histories: a program that runs thousands of them otherwise spends
 * half of its time on pages that it touches for the first time. Not under a sanitizer, which has its own heap.
 *
 * Each block has a head of 16 bytes, by which it stands in a list if it was taken while `sim_heap_marks`. */
#ifndef IGNIS_TEST_SIM_HEAP_H
#define IGNIS_TEST_SIM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIM_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SIM_SANITIZED 1
#endif
#endif

static bool sim_heap_marks;

#ifdef SIM_SANITIZED
static inline void sim_heap_clear(void)
{
}
#else

typedef struct sim_block {
    struct sim_block *next, **link; /* `link`: what points at this one; NULL: it is in no list */
} sim_block;

static sim_block *sim_blocks;

/* glibc's own, which `malloc` and its like below take the place of. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t each);
void *__libc_realloc(void *old, size_t bytes);
void __libc_free(void *old);

static void sim_heap_enter(sim_block *b)
{
    b->link = NULL;
    if (!sim_heap_marks)
        return;
    b->next = sim_blocks;
    b->link = &sim_blocks;
    if (sim_blocks != NULL)
        sim_blocks->link = &b->next;
    sim_blocks = b;
}

static void sim_heap_leave(sim_block *b)
{
    if (b->link == NULL)
        return;
    *b->link = b->next;
    if (b->next != NULL)
        b->next->link = b->link;
}

static void *sim_heap_given(sim_block *b)
{
    if (b == NULL)
        return NULL;
    sim_heap_enter(b);
    return b + 1;
}

void *malloc(size_t bytes)
{
    return sim_heap_given(bytes > SIZE_MAX - sizeof(sim_block) ? NULL : __libc_malloc(bytes + sizeof(sim_block)));
}

void *calloc(size_t count, size_t each)
{
    bool fits = each == 0 || count <= (SIZE_MAX - sizeof(sim_block)) / each;
    return sim_heap_given(fits ? __libc_calloc(1, count * each + sizeof(sim_block)) : NULL);
}

void free(void *old)
{
    if (old == NULL)
        return;
    sim_block *b = (sim_block *)old - 1;
    sim_heap_leave(b);
    __libc_free(b);
}

void *realloc(void *old, size_t bytes)
{
    if (old == NULL)
        return malloc(bytes);
    sim_block *b = (sim_block *)old - 1, *moved = bytes > SIZE_MAX - sizeof *b ? NULL : __libc_realloc(b, bytes + sizeof *b);
    if (moved == NULL)
        return NULL;
    if (moved->link != NULL) {
        *moved->link = moved;
        if (moved->next != NULL)
            moved->next->link = &moved->next;
    }
    return moved + 1;
}

/* Nobody who took a block while `sim_heap_marks` has it any more. */
static inline void sim_heap_clear(void)
{
    while (sim_blocks != NULL) {
        sim_block *b = sim_blocks;
        sim_heap_leave(b);
        __libc_free(b);
    }
}
#endif
#endif
