/* Reading columns of the Arrow C data interface. See ignis_column.h. */
#include "ignis_column.h"

#include "ignis_error.h"

#include <string.h>

/* A buffer that came through Python may lie at any address. */
static inline int64_t offset_at(const ign_column *column, int64_t i)
{
    if (column->wide) {
        int64_t value;
        memcpy(&value, column->offsets + i * (int64_t)sizeof value, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, column->offsets + i * (int64_t)sizeof value, sizeof value);
    return value;
}

/* "w:16" -> 16; 0 for what is none. */
static size_t fixed_size(const char *format)
{
    size_t size = 0;
    if (format[0] != 'w' || format[1] != ':')
        return 0;
    for (const char *digit = format + 2; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9' || size > (size_t)INT32_MAX / 10)
            return 0;
        size = size * 10 + (size_t)(*digit - '0');
    }
    return size;
}

static int check_offsets(const ign_column *column)
{
    int64_t before = offset_at(column, column->shift);
    if (before < 0)
        return IGN_E_MALFORMED;
    for (int64_t i = 1; i <= column->count; i++) {
        int64_t end = offset_at(column, column->shift + i);
        if (end < before)
            return IGN_E_MALFORMED;
        before = end;
    }
    if (before > 0 && column->data == NULL)
        return IGN_E_MALFORMED;
    return IGN_OK;
}

int ign_column_open(const struct ArrowSchema *schema, const struct ArrowArray *array, ign_column *column)
{
    const char *format = schema->format;
    memset(column, 0, sizeof *column);
    column->value_bytes = fixed_size(format);
    if (schema->dictionary != NULL)
        return IGN_E_INVALID;
    if (column->value_bytes == 0) {
        if (strlen(format) != 1 || strchr("zZuU", format[0]) == NULL)
            return IGN_E_INVALID;
        column->wide = format[0] == 'Z' || format[0] == 'U';
    }
    if (array->n_buffers != (column->value_bytes != 0 ? 2 : 3) || array->length < 0 || array->offset < 0 ||
        array->offset > INT64_MAX / 16 - array->length - 1 || array->buffers == NULL)
        return IGN_E_MALFORMED;
    column->count = array->length;
    column->shift = array->offset;
    column->valid = array->null_count == 0 ? NULL : array->buffers[0];
    column->data = array->buffers[array->n_buffers - 1];
    if (column->count == 0)
        return IGN_OK;
    if (column->value_bytes != 0)
        return column->data != NULL ? IGN_OK : IGN_E_MALFORMED;
    column->offsets = array->buffers[1];
    return column->offsets != NULL ? check_offsets(column) : IGN_E_MALFORMED;
}

bool ign_column_get(const ign_column *column, int64_t i, const uint8_t **data, size_t *len)
{
    int64_t at = column->shift + i;
    *data = NULL;
    *len = 0;
    if (column->valid != NULL && (column->valid[at >> 3] >> (at & 7) & 1) == 0)
        return false;
    if (column->value_bytes != 0) {
        *data = column->data + (size_t)at * column->value_bytes;
        *len = column->value_bytes;
        return true;
    }
    int64_t begin = offset_at(column, at);
    *len = (size_t)(offset_at(column, at + 1) - begin);
    if (*len != 0)
        *data = column->data + begin;
    return true;
}
