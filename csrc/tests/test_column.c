/* Columns of the Arrow C data interface: each type, nulls, slices, and what cannot be a column. Prints one line; exit
 * status 0 when all held. */
#include "../ignis_column.h"
#include "../ignis_error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks;
static int failures;

#define CHECK(cond)                                                                  \
    do {                                                                             \
        checks++;                                                                    \
        if (!(cond)) {                                                               \
            failures++;                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);               \
        }                                                                            \
    } while (0)

/* Exactly as large as asked for and not aligned, so that a sanitizer sees one byte too far and a wrong load. */
static uint8_t *odd(const void *src, size_t len, uint8_t **block)
{
    *block = malloc(len + 1);
    if (*block == NULL)
        abort();
    memcpy(*block + 1, src, len);
    return *block + 1;
}

static bool is(const ign_column *column, int64_t i, const char *text)
{
    const uint8_t *data;
    size_t len;
    if (!ign_column_get(column, i, &data, &len))
        return text == NULL && data == NULL && len == 0;
    return text != NULL && len == strlen(text) && (len == 0 || memcmp(data, text, len) == 0);
}

static int open_as(const char *format, int64_t length, int64_t offset, int64_t nulls, int64_t n_buffers,
                   const void **buffers, ign_column *column)
{
    struct ArrowSchema schema = {.format = format};
    struct ArrowArray array = {
        .length = length, .null_count = nulls, .offset = offset, .n_buffers = n_buffers, .buffers = buffers};
    return ign_column_open(&schema, &array, column);
}

static void test_by_offsets(void)
{
    static const int32_t narrow[] = {0, 2, 2, 5, 6};
    static const int64_t wide[] = {0, 2, 2, 5, 6};
    static const char *const formats[] = {"z", "u", "Z", "U"};
    static const uint8_t valid[] = {0xB}; /* the third is null */
    for (size_t f = 0; f < 4; f++) {
        uint8_t *blocks[3];
        ign_column column;
        const void *buffers[3] = {
            odd(valid, sizeof valid, &blocks[0]),
            f < 2 ? odd(narrow, sizeof narrow, &blocks[1]) : odd(wide, sizeof wide, &blocks[1]),
            odd("abcdeF", 6, &blocks[2]),
        };
        CHECK(open_as(formats[f], 4, 0, 1, 3, buffers, &column) == IGN_OK);
        CHECK(column.count == 4 && is(&column, 0, "ab") && is(&column, 1, "") && is(&column, 2, NULL) && is(&column, 3, "F"));
        /* A slice, and nulls that nobody counted. */
        CHECK(open_as(formats[f], 2, 2, -1, 3, buffers, &column) == IGN_OK);
        CHECK(column.count == 2 && is(&column, 0, NULL) && is(&column, 1, "F"));
        /* No null: the bitmap is not looked at. */
        CHECK(open_as(formats[f], 2, 1, 0, 3, buffers, &column) == IGN_OK);
        CHECK(is(&column, 0, "") && is(&column, 1, "cde"));
        for (size_t i = 0; i < 3; i++)
            free(blocks[i]);
    }
}

static void test_of_one_size(void)
{
    static const uint8_t valid[] = {0x5};
    const void *buffers[2] = {valid, "aaabbbccc"};
    ign_column column;
    CHECK(open_as("w:3", 3, 0, 1, 2, buffers, &column) == IGN_OK);
    CHECK(is(&column, 0, "aaa") && is(&column, 1, NULL) && is(&column, 2, "ccc"));
    CHECK(open_as("w:3", 1, 2, 0, 2, buffers, &column) == IGN_OK && is(&column, 0, "ccc"));
}

static void test_empty(void)
{
    const void *buffers[3] = {NULL, NULL, NULL};
    ign_column column;
    CHECK(open_as("z", 0, 0, 0, 3, buffers, &column) == IGN_OK && column.count == 0);
    /* Empty values need no data. */
    static const int32_t offsets[] = {0, 0, 0};
    buffers[1] = offsets;
    CHECK(open_as("z", 2, 0, 0, 3, buffers, &column) == IGN_OK && is(&column, 0, "") && is(&column, 1, ""));
}

static void test_refusals(void)
{
    static const char *const formats[] = {"", "i", "vz", "zz", "w:", "w:0", "w:x", "w:99999999999", "+s", "tdD"};
    static const int32_t offsets[] = {0, 2, 1}, negative[] = {-1, 0, 1}, good[] = {0, 1, 2};
    const void *buffers[3] = {NULL, good, "abc"};
    ign_column column;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        CHECK(open_as(formats[i], 2, 0, 0, 3, buffers, &column) == IGN_E_INVALID);
    struct ArrowSchema words = {.format = "u"}, keys = {.format = "u", .dictionary = &words};
    struct ArrowArray array = {.length = 2, .n_buffers = 3, .buffers = buffers};
    CHECK(ign_column_open(&keys, &array, &column) == IGN_E_INVALID);
    CHECK(open_as("z", 2, 0, 0, 2, buffers, &column) == IGN_E_MALFORMED);
    CHECK(open_as("z", -1, 0, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    CHECK(open_as("z", 2, -1, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    CHECK(open_as("z", INT64_MAX / 16, INT64_MAX / 16, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    CHECK(open_as("z", 2, 0, 0, 3, NULL, &column) == IGN_E_MALFORMED);
    buffers[1] = offsets;
    CHECK(open_as("z", 2, 0, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    buffers[1] = negative;
    CHECK(open_as("z", 2, 0, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    buffers[1] = NULL;
    CHECK(open_as("z", 2, 0, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    buffers[1] = good;
    buffers[2] = NULL;
    CHECK(open_as("z", 2, 0, 0, 3, buffers, &column) == IGN_E_MALFORMED);
    buffers[1] = NULL;
    CHECK(open_as("w:4", 2, 0, 0, 2, buffers, &column) == IGN_E_MALFORMED);
}

int main(void)
{
    test_by_offsets();
    test_of_one_size();
    test_empty();
    test_refusals();
    printf("column: %d checks, %d failed\n", checks, failures);
    return failures != 0;
}
