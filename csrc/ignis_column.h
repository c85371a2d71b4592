/* Columns of bytes that somebody else holds, read in place: the Arrow C data interface
 * (https://arrow.apache.org/docs/format/CDataInterface.html), as far as binary and text columns go.
 *
 * The two structures are the interface's, to the byte; whoever fills them keeps the memory until the caller releases
 * them. Buffer lengths are not part of the interface: a producer that lies about them cannot be caught here. What can
 * be seen is checked when a column is opened: its type, its buffers, and that its offsets rise.
 *
 * Pure functions over caller's memory: no allocation, no globals. Thread-safe.
 */
#ifndef IGNIS_COLUMN_H
#define IGNIS_COLUMN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

typedef struct ign_column {
    int64_t count;
    int64_t shift;         /* values of the buffers that lie before the column's first */
    const uint8_t *valid;  /* bit i % 8 of byte i / 8, counted with the shift; NULL = no value is null */
    const uint8_t *offsets; /* int32 or, when wide, int64; NULL for values of one size */
    const uint8_t *data;
    size_t value_bytes;    /* of values of one size; 0 = by offsets */
    bool wide;
} ign_column;

/* IGN_OK; IGN_E_INVALID: the type is none of z Z u U w:N (binary, text, both with 64-bit offsets, bytes of one size);
 * IGN_E_MALFORMED: the buffers do not fit the type, or an offset is negative or below the one before. */
int ign_column_open(const struct ArrowSchema *schema, const struct ArrowArray *array, ign_column *column);

/* Value i of 0..count-1: false and no bytes when it is null. */
bool ign_column_get(const ign_column *column, int64_t i, const uint8_t **data, size_t *len);

#endif
