/* Fuzz target: the walk over MessagePack's keys against one by recursion, which knows nothing of its tables. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "ignis_error.h"
#include "ignis_pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)
#define INTEGERS 3u

typedef struct reader {
    const uint8_t *data;
    size_t at, size, place;
    int code; /* IGN_OK while it goes on */
    bool ended;
} reader;

static uint64_t number(reader *r, unsigned bytes)
{
    uint64_t value = 0;
    if (r->size - r->at < bytes) {
        r->ended = true;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | r->data[r->at++];
    return value;
}

static void pass(reader *r, uint64_t bytes)
{
    if (r->ended || r->size - r->at < bytes)
        r->ended = true;
    else
        r->at += (size_t)bytes;
}

static void value(reader *r, unsigned depth, uint32_t *integers);

static void values(reader *r, uint64_t pairs, bool map, unsigned depth, size_t place)
{
    uint32_t integers = 0;
    if (r->ended || pairs == 0)
        return;
    if (depth + 1 == IGN_PACK_MAX_DEPTH) {
        r->code = IGN_FULL;
        r->place = place;
        r->ended = true;
    }
    for (uint64_t i = 0; i < pairs && !r->ended; i++) {
        if (map)
            value(r, depth + 1, &integers);
        if (!r->ended)
            value(r, depth + 1, NULL);
    }
}

/* integers: of the map whose key this is; NULL: it is no key. */
static void value(reader *r, unsigned depth, uint32_t *integers)
{
    size_t place = r->at;
    if (r->at == r->size) {
        r->ended = true;
        return;
    }
    uint8_t b = r->data[r->at++];
    bool text = (b >= 0xA0 && b <= 0xBF) || (b >= 0xD9 && b <= 0xDB) || (b >= 0xC4 && b <= 0xC6);
    bool wide = (b >= 0xCD && b <= 0xCF) || (b >= 0xD1 && b <= 0xD3);
    bool whole = b <= 0x7F || b >= 0xE0 || (b >= 0xCC && b <= 0xD3);
    if (integers != NULL && b != 0xC1 && b != 0xC0 && b != 0xC2 && b != 0xC3 && !text && (!whole || (wide && ++*integers > INTEGERS))) {
        r->code = whole ? IGN_E_TOO_LARGE : IGN_E_INVALID;
        r->place = place;
        r->ended = true;
        return;
    }
    if (b <= 0x7F || b >= 0xE0 || b == 0xC0 || b == 0xC2 || b == 0xC3)
        return;
    if (b <= 0x8F)
        values(r, b & 15, true, depth, place);
    else if (b <= 0x9F)
        values(r, b & 15, false, depth, place);
    else if (b <= 0xBF)
        pass(r, b & 31);
    else if (b == 0xC1)
        r->ended = true;
    else if (b <= 0xC6)
        pass(r, number(r, b == 0xC4 ? 1 : b == 0xC5 ? 2 : 4));
    else if (b <= 0xC9)
        pass(r, number(r, b == 0xC7 ? 1 : b == 0xC8 ? 2 : 4) + 1);
    else if (b <= 0xCB)
        pass(r, b == 0xCA ? 4 : 8);
    else if (b <= 0xD3)
        pass(r, (uint64_t)1 << (b & 3));
    else if (b <= 0xD8)
        pass(r, 1 + ((uint64_t)1 << (b - 0xD4)));
    else if (b <= 0xDB)
        pass(r, number(r, b == 0xD9 ? 1 : b == 0xDA ? 2 : 4));
    else if (b <= 0xDD)
        values(r, number(r, b == 0xDC ? 2 : 4), false, depth, place);
    else
        values(r, number(r, b == 0xDE ? 2 : 4), true, depth, place);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader r = {.data = data, .size = size, .code = IGN_OK};
    ign_pack_found found;
    value(&r, 0, NULL);
    int code = ign_pack_check(data, size, INTEGERS, &found);
    REQUIRE(code == r.code);
    REQUIRE(code == IGN_OK || (found.at == r.place && found.byte == data[r.place]));
    return 0;
}
