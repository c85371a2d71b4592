#include "ignis_slab.h"

#include <stdlib.h>
#include <string.h>

#include "ignis_error.h"

/* In sanitizer builds a free buffer is poisoned: touching it through a stale pointer stops the program. */
#if defined(__SANITIZE_ADDRESS__)
#define IGN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IGN_ASAN 1
#endif
#endif

/* IGN_MUTANT_*: known-bad builds, which the tests must catch. */
#ifdef IGN_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

static uint8_t *slot_data(const ign_slab *slab, const ign_slab_class *cls, uint32_t slot)
{
    return slab->data + cls->data_offset + (uint64_t)(slot - cls->first_slot) * cls->slot_bytes;
}

static bool is_live(const ign_slab *slab, uint32_t slot)
{
    return (slab->live[slot / 64] >> (slot % 64) & 1u) != 0;
}

static void set_live(ign_slab *slab, uint32_t slot, bool live)
{
    uint64_t bit = 1ull << (slot % 64);
    slab->live[slot / 64] = live ? slab->live[slot / 64] | bit : slab->live[slot / 64] & ~bit;
}

int ign_slab_table_build(ign_slab_table *table, const uint32_t *slot_bytes, const uint32_t *counts, uint32_t classes)
{
    memset(table, 0, sizeof *table);
    if (classes == 0 || classes > IGN_SLAB_MAX_CLASSES)
        return IGN_E_INVALID;
    uint64_t slots = 0, bytes = 0;
    uint32_t before = 0;
    for (uint32_t c = 0; c < classes; c++) {
        if (slot_bytes[c] == 0 || slot_bytes[c] > IGN_SLAB_MAX_SLOT_BYTES || counts[c] == 0)
            return IGN_E_INVALID;
        uint32_t rounded = (slot_bytes[c] + IGN_SLAB_ALIGN - 1) & ~(IGN_SLAB_ALIGN - 1);
        if (rounded <= before || slots + counts[c] > IGN_SLAB_MAX_SLOTS)
            return IGN_E_INVALID;
        ign_slab_class *cls = &table->classes[c];
        cls->slot_bytes = rounded;
        cls->count = counts[c];
        cls->first_slot = (uint32_t)slots;
        cls->data_offset = bytes;
        slots += counts[c];
        bytes += (uint64_t)rounded * counts[c]; /* at most 2^24 * 2^30: no overflow over 16 classes */
        before = rounded;
    }
    table->class_count = classes;
    table->slot_count = (uint32_t)slots;
    table->data_bytes = bytes;
    return IGN_OK;
}

int ign_slab_table_check(const ign_slab_table *table)
{
    uint32_t sizes[IGN_SLAB_MAX_CLASSES], counts[IGN_SLAB_MAX_CLASSES];
    if (table->class_count == 0 || table->class_count > IGN_SLAB_MAX_CLASSES)
        return IGN_E_SIZE;
    for (uint32_t c = 0; c < table->class_count; c++) {
        sizes[c] = table->classes[c].slot_bytes;
        counts[c] = table->classes[c].count;
    }
    ign_slab_table again;
    if (ign_slab_table_build(&again, sizes, counts, table->class_count) != IGN_OK ||
        again.slot_count != table->slot_count || again.data_bytes != table->data_bytes)
        return IGN_E_SIZE;
    for (uint32_t c = 0; c < table->class_count; c++) {
        const ign_slab_class *a = &again.classes[c], *b = &table->classes[c];
        if (a->slot_bytes != b->slot_bytes || a->first_slot != b->first_slot || a->data_offset != b->data_offset)
            return IGN_E_SIZE;
    }
    return IGN_OK;
}

uint32_t ign_slab_class_of(const ign_slab_table *table, uint32_t slot)
{
    for (uint32_t c = 0; c < table->class_count; c++)
        if (slot - table->classes[c].first_slot < table->classes[c].count)
            return c;
    return IGN_SLAB_MAX_CLASSES;
}

int ign_slab_resolve(const ign_slab_table *table, uint32_t slot, uint32_t offset, uint32_t length, uint64_t *data_offset)
{
    uint32_t c = ign_slab_class_of(table, slot);
    if (c == IGN_SLAB_MAX_CLASSES)
        return IGN_E_FOREIGN;
    const ign_slab_class *cls = &table->classes[c];
#ifndef IGN_MUTANT_NO_BOUNDS
    if (offset > cls->slot_bytes || length > cls->slot_bytes - offset)
        return IGN_E_FOREIGN;
#else
    (void)length;
#endif
    *data_offset = cls->data_offset + (uint64_t)(slot - cls->first_slot) * cls->slot_bytes + offset;
    return IGN_OK;
}

int ign_slab_open(ign_slab *slab, const ign_slab_table *table, ign_slab_word *words, uint8_t *data)
{
    memset(slab, 0, sizeof *slab);
    if (ign_slab_table_check(table) != IGN_OK)
        return IGN_E_SIZE;
    slab->free_slots = malloc((size_t)table->slot_count * sizeof *slab->free_slots);
    slab->live = calloc(((size_t)table->slot_count + 63) / 64, sizeof *slab->live);
    if (slab->free_slots == NULL || slab->live == NULL) {
        free(slab->free_slots);
        free(slab->live);
        slab->free_slots = NULL;
        slab->live = NULL;
        return IGN_E_NOMEM;
    }
    slab->table = *table;
    slab->words = words;
    slab->data = data;
    for (uint32_t c = 0; c < table->class_count; c++) {
        const ign_slab_class *cls = &table->classes[c];
        /* Highest first, so that a fresh slab hands out rising addresses. */
        for (uint32_t i = cls->count; i-- > 0;) {
            uint32_t slot = cls->first_slot + i;
            if ((words[slot].generation & 1u) == 0) {
                slab->free_slots[cls->first_slot + slab->free_count[c]++] = slot;
                POISON(slot_data(slab, cls, slot), cls->slot_bytes);
            } else {
                set_live(slab, slot, true);
                slab->stats.allocated++;
                slab->stats.active_bytes += cls->slot_bytes;
            }
        }
    }
    return IGN_OK;
}

void ign_slab_close(ign_slab *slab)
{
    if (slab->free_slots != NULL)
        UNPOISON(slab->data, slab->table.data_bytes);
    free(slab->free_slots);
    free(slab->live);
    slab->free_slots = NULL;
    slab->live = NULL;
    slab->table.class_count = 0; /* every later call answers IGN_E_NO_CLASS or IGN_E_FOREIGN */
    slab->table.slot_count = 0;
}

int ign_slab_allocate(ign_slab *slab, size_t size, ign_slab_ref *ref)
{
    for (uint32_t c = 0; c < slab->table.class_count; c++) {
        const ign_slab_class *cls = &slab->table.classes[c];
        if (size > cls->slot_bytes)
            continue;
        /* No borrowing from the next class: small messages in bulk would starve the large ones. */
        if (slab->free_count[c] == 0) {
            slab->stats.refused++;
            return IGN_E_EXHAUSTED;
        }
        uint32_t slot = slab->free_slots[cls->first_slot + --slab->free_count[c]];
        ign_slab_word *word = &slab->words[slot];
        word->generation = (word->generation | 1u); /* even -> odd; a scribbled odd one stays what it is */
        word->sent_pos = IGN_SLAB_HELD;
        set_live(slab, slot, true);
        if (slab->free_count[c] != 0) /* the next buffer comes back from another core's cache: ask for it early */
            __builtin_prefetch(slot_data(slab, cls, slab->free_slots[cls->first_slot + slab->free_count[c] - 1]), 1);
        ref->slot = slot;
        ref->generation = word->generation;
        ref->offset = 0;
        ref->length = (uint32_t)size;
        slab->stats.allocated++;
        slab->stats.active_bytes += cls->slot_bytes;
        UNPOISON(slot_data(slab, cls, slot), cls->slot_bytes);
        return IGN_OK;
    }
    return IGN_E_NO_CLASS;
}

int ign_slab_release(ign_slab *slab, uint32_t slot, uint32_t generation)
{
    uint32_t c = ign_slab_class_of(&slab->table, slot);
    if (c == IGN_SLAB_MAX_CLASSES)
        return IGN_E_FOREIGN;
    const ign_slab_class *cls = &slab->table.classes[c];
    ign_slab_word *word = &slab->words[slot];
    uint32_t now = word->generation;
#ifndef IGN_MUTANT_NO_GENERATION
    if (now != generation || (generation & 1u) == 0)
        return now == generation + 1u && (generation & 1u) != 0 ? IGN_E_DOUBLE_RELEASE : IGN_E_STALE;
#else
    (void)generation;
#endif
    if (!is_live(slab, slot))
        return IGN_E_CORRUPT; /* somebody wrote to our words: this buffer never went out */
    set_live(slab, slot, false);
    word->generation = now + 1u;
    slab->free_slots[cls->first_slot + slab->free_count[c]++] = slot;
    slab->stats.released++;
    slab->stats.active_bytes -= cls->slot_bytes;
    POISON(slot_data(slab, cls, slot), cls->slot_bytes);
    return IGN_OK;
}

int ign_slab_bytes(ign_slab *slab, const ign_slab_ref *ref, uint8_t **bytes)
{
    uint64_t at;
    int rc = ign_slab_resolve(&slab->table, ref->slot, ref->offset, ref->length, &at);
    if (rc != IGN_OK)
        return rc;
    if (slab->words[ref->slot].generation != ref->generation || (ref->generation & 1u) == 0)
        return IGN_E_STALE;
    *bytes = slab->data + at;
    return IGN_OK;
}
