/* A walk over MessagePack without making anything of it. */
#include "ignis_pack.h"

#include <stdbool.h>

#include "ignis_bytes.h"
#include "ignis_error.h"

/* What a value begins with. In the low bits how many bytes follow the first, beside those that a length in it counts. */
enum {
    FIXED = 0x1F,
    WIDTH = 0xE0,       /* of the length that stands behind the first byte; see W */
    SECRET = 0x100,     /* text and bytes: hashed with a secret. Nil and booleans too: they are three keys at most */
    INTEGER = 0x200,
    FLOAT = 0x400,
    EXTENSION = 0x800,
    ARRAY = 0x1000,
    MAP = 0x2000,
    NONE = 0x4000,      /* 0xC1, which MessagePack has not */
};
#define W(bytes) ((bytes) << 5)
#define X4(what) what, what, what, what
#define X16(what) X4(what), X4(what), X4(what), X4(what)
#define X32(what) X16(what), X16(what)
#define TEXT(bytes) (SECRET | (bytes))
#define TEXT4(bytes) TEXT(bytes), TEXT((bytes) + 1), TEXT((bytes) + 2), TEXT((bytes) + 3)
#define TEXT16(bytes) TEXT4(bytes), TEXT4((bytes) + 4), TEXT4((bytes) + 8), TEXT4((bytes) + 12)

static const uint16_t begins[256] = {
    X32(INTEGER), X32(INTEGER), X32(INTEGER), X32(INTEGER), X16(MAP), X16(ARRAY), TEXT16(0), TEXT16(16),
    /* 0xC0 */ SECRET, NONE, SECRET, SECRET, SECRET | W(1), SECRET | W(2), SECRET | W(4), EXTENSION | W(1) | 1,
    /* 0xC8 */ EXTENSION | W(2) | 1, EXTENSION | W(4) | 1, FLOAT | 4, FLOAT | 8, INTEGER | 1, INTEGER | 2, INTEGER | 4, INTEGER | 8,
    /* 0xD0 */ INTEGER | 1, INTEGER | 2, INTEGER | 4, INTEGER | 8, EXTENSION | 2, EXTENSION | 3, EXTENSION | 5, EXTENSION | 9,
    /* 0xD8 */ EXTENSION | 17, SECRET | W(1), SECRET | W(2), SECRET | W(4), ARRAY | W(2), ARRAY | W(4), MAP | W(2), MAP | W(4),
    X32(INTEGER),
};

/* An array or a map that the walk is in. */
typedef struct level {
    uint64_t left;      /* values still to come: of a map two for each pair */
    uint32_t integers;  /* keys of a map so far */
    bool map;
} level;

const char *ign_pack_kind(uint8_t byte)
{
    uint16_t what = begins[byte];
    return (what & ARRAY) != 0 ? "array" : (what & MAP) != 0 ? "map" : (what & FLOAT) != 0 ? "float" :
           (what & EXTENSION) != 0 ? "extension" : (what & INTEGER) != 0 ? "integer" : "value";
}

static int stop(ign_pack_found *found, const uint8_t *src, const uint8_t *at, int code)
{
    found->at = (size_t)(at - src);
    found->byte = *at;
    return code;
}

int ign_pack_check(const uint8_t *src, size_t len, uint32_t max_integers, ign_pack_found *found)
{
    level levels[IGN_PACK_MAX_DEPTH]; /* those around `in` */
    level in = {.left = 1};           /* at first the whole value */
    uint32_t depth = 0;
    const uint8_t *at = src, *end = src + len;

    for (;;) {
        while (in.left == 0) {
            if (depth == 0)
                return IGN_OK;
            in = levels[--depth];
        }
        if (at == end)
            return IGN_OK;
        const uint8_t *first = at++;
        uint16_t what = begins[*first];
        bool key = in.map && (in.left & 1) == 0;
        in.left--;
        if (key && (what & SECRET) == 0) {
            if (what == NONE)
                return IGN_OK;
            if ((what & INTEGER) == 0)
                return stop(found, src, first, IGN_E_INVALID);
            if ((what & FIXED) >= 2 && ++in.integers > max_integers)
                return stop(found, src, first, IGN_E_TOO_LARGE);
        }
        uint64_t size = what & FIXED;
        if ((what & (WIDTH | ARRAY | MAP | NONE)) != 0) {
            size_t width = (size_t)(what & WIDTH) >> 5;
            if (what == NONE || (size_t)(end - at) < width)
                return IGN_OK;
            uint64_t told = width == 1 ? *at : width == 2 ? ign_get16(at) : width == 4 ? ign_get32(at) : *first & 0x0Fu;
            at += width;
            if ((what & (ARRAY | MAP)) != 0) {
                if (told == 0)
                    continue;
                if (depth == IGN_PACK_MAX_DEPTH - 1)
                    return stop(found, src, first, IGN_FULL);
                levels[depth++] = in;
                in = (level){.left = (what & MAP) != 0 ? 2 * told : told, .map = (what & MAP) != 0};
                continue;
            }
            size += told;
        }
        if ((uint64_t)(end - at) < size)
            return IGN_OK;
        at += size;
    }
}
