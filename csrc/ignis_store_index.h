/* The two structures of the arena: sequences of items in the order of a number, and one map from keys to values.
 *
 * A sequence keeps its items in blocks of up to 64, and a directory of the blocks. Items are appended with rising numbers,
 * found by binary search, and die in any order; a block goes when all in it are dead. A block's items beyond its count
 * are nobody's, so appending writes them plainly and then raises the count.
 *
 * The map is a table of buckets with chains. A value that has another size gets a new record. Records of `fixed` kinds
 * never move, so their offset names them.
 *
 * For whoever holds the writer's lock, within a transaction. An allocation that fails leaves `no_room` in the control.
 */
#ifndef IGNIS_STORE_INDEX_H
#define IGNIS_STORE_INDEX_H

#include "ignis_store_control.h"

/* One item. What the words mean is in ignis_store_state.h. */
typedef struct ign_item {
    uint64_t first; /* what it is found by */
    uint64_t left;  /* low 32 bits: how much of it lives, 0 = dead; high 32 bits: the span, first..first + span - 1 */
    uint64_t word[4];
} ign_item;

#define IGN_ITEM_LEFT(item) ((uint32_t)(item)->left)
#define IGN_ITEM_SPAN(item) ((item)->left >> 32)
#define IGN_ITEM_LAST(item) ((item)->first + IGN_ITEM_SPAN(item) - 1)

/* A place in a sequence; good until the sequence changes other than by appending. */
typedef struct ign_cursor {
    uint64_t part; /* from the head on */
    uint32_t index;
} ign_cursor;

/* The living item with the greatest `first` at or below `number`, or if there is none, or it ends before `number`, the
 * next living one; NULL: none. */
ign_item *ign_seq_find(ign_ctl *ctl, ign_seq *seq, uint64_t number, ign_cursor *cursor);
ign_item *ign_seq_next(ign_ctl *ctl, ign_seq *seq, ign_cursor *cursor);
void ign_seq_append(ign_ctl *ctl, ign_seq *seq, const ign_item *item);
/* Changes how much of it lives. When nothing does, the cursor may be good for nothing but being found again. */
void ign_seq_set_left(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor, uint32_t left);
/* It goes, and an item before it may take over its numbers. */
void ign_seq_remove(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor);
/* In the place of the item at the cursor (or, with `drop` false, beside it) stand these, which are in order and fit there. */
void ign_seq_splice(ign_ctl *ctl, ign_seq *seq, const ign_cursor *cursor, bool drop, const ign_item *items, uint64_t count);
void ign_seq_free(ign_ctl *ctl, ign_seq *seq);
/* Its living items in another state, which nobody else sees: one behind the other, without what the dead left. `change` sees each. */
typedef void ign_seq_change(ign_ctl *to, ign_ctl *from, ign_item *item);
void ign_seq_copy(ign_ctl *to, ign_seq *made, ign_ctl *from, ign_seq *seq, ign_seq_change *change);

typedef enum ign_key_kind {
    IGN_KEY_MAGAZINE = 1, /* fixed */
    IGN_KEY_OWNER,        /* fixed */
    IGN_KEY_VALUE,
} ign_key_kind;

typedef struct ign_record_of {
    uint64_t next, hash;
    uint64_t sizes; /* kind, bytes of the key << 8, bytes of the value << 32 */
    uint64_t data[]; /* the key, and from the next multiple of 8 on the value */
} ign_record_of;

#define IGN_KEY_KIND(record) ((uint8_t)(record)->sizes)
#define IGN_KEY_BYTES(record) ((uint32_t)((record)->sizes >> 8) & 0xffffffu)
#define IGN_VALUE_BYTES(record) ((uint32_t)((record)->sizes >> 32))

static inline void *ign_record_value(ign_record_of *record)
{
    return record->data + (IGN_KEY_BYTES(record) + 7u) / 8u;
}

uint64_t ign_map_find(ign_ctl *ctl, uint8_t kind, const void *key, uint32_t key_bytes); /* 0: not there */
/* Sets or replaces; `value` NULL = zeros. The record's offset, 0 when there was no room. */
uint64_t ign_map_set(ign_ctl *ctl, uint8_t kind, const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes);
void ign_map_remove(ign_ctl *ctl, uint64_t offset);
/* The record behind `offset` of that kind in the map's own order, 0 = the first; 0 at the end. */
uint64_t ign_map_next(ign_ctl *ctl, uint8_t kind, uint64_t offset);
/* All records in another state, in their order. Of the map that was copied nothing is left but where each record is now. */
void ign_map_copy(ign_ctl *to, ign_ctl *from);
uint64_t ign_map_copied(const ign_ctl *from, uint64_t offset);

#endif
