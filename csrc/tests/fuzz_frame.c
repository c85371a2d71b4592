/* Fuzz target: the frame decoder over arbitrary bytes. The stream decoded whole, and cut at every place (or at many,
 * when it is long), must give the same frames and the same end; what is decoded must encode to the bytes it came from. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ignis_error.h"
#include "ignis_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LIMIT 4096u
#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

/* Decodes all frames of data[0..size): hash over the frames, *used bytes, the code that ended it. */
static uint64_t decode_all(const uint8_t *data, size_t size, size_t *used, int *end, uint64_t hash)
{
    *used = 0;
    for (;;) {
        ign_frame f;
        size_t n;
        *end = ign_frame_decode(data + *used, size - *used, LIMIT, &f, &n);
        if (*end != IGN_OK)
            return hash;
        REQUIRE(n >= IGN_FRAME_HEADER_BYTES && n <= LIMIT && n <= size - *used);
        REQUIRE(f.payload == data + *used + IGN_FRAME_HEADER_BYTES && f.payload_len == n - IGN_FRAME_HEADER_BYTES);
        uint8_t header[IGN_FRAME_HEADER_BYTES];
        ign_frame_put_header(header, f.command, f.request_id, f.payload_len);
        REQUIRE(memcmp(header, data + *used, sizeof header) == 0);
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ data[*used + i]) * 0x100000001B3u;
        hash = hash * 31 + n;
        *used += n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t whole_used;
    int whole_end;
    uint64_t whole = decode_all(data, size, &whole_used, &whole_end, 1);

    ign_frame frames[8];
    size_t count, consumed, announced, total = 0;
    int rc;
    do {
        rc = ign_frame_decode_many(data + total, size - total, LIMIT, frames, 8, &count, &consumed, &announced);
        REQUIRE((announced != 0) == (rc == IGN_E_TOO_LARGE));
        total += consumed;
    } while (rc == IGN_OK);
    REQUIRE(rc == whole_end && total == whole_used);

    size_t step = size / 256 + 1;
    for (size_t cut = 0; cut <= size; cut += step) {
        /* The first part in memory of its own, so that a read beyond it is seen. */
        uint8_t *part = malloc(cut != 0 ? cut : 1);
        REQUIRE(part != NULL);
        if (cut != 0)
            memcpy(part, data, cut);
        size_t used, rest;
        int end;
        uint64_t hash = decode_all(part, cut, &used, &end, 1);
        free(part);
        if (end < 0) {
            REQUIRE(end == whole_end && used == whole_used && hash == whole);
            continue;
        }
        hash = decode_all(data + used, size - used, &rest, &end, hash);
        REQUIRE(end == whole_end && used + rest == whole_used && hash == whole);
    }
    return 0;
}
