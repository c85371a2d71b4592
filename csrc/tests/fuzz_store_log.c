/* Fuzz target: arbitrary bytes as a segment of the store's log.
 *
 * Whatever comes in, the reader ends, and stays inside. Then the bytes become payloads of sealed entries, one byte is
 * changed, and no entry may be read that differs from what was sealed.
 */
#include "../ignis_store_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)  \
    do {               \
        if (!(cond))   \
            abort();   \
    } while (0)

typedef struct memory_io {
    ign_store_io io;
    const uint8_t *data;
    size_t size, read;
} memory_io;

static int memory_size(ign_store_io *io, int file, uint64_t *bytes)
{
    (void)file;
    *bytes = ((memory_io *)io)->size;
    return 0;
}

static int memory_read(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at)
{
    memory_io *m = (memory_io *)io;
    (void)file;
    if (at > m->size || bytes > m->size - at)
        return EIO;
    memcpy(to, m->data + at, bytes);
    m->read += bytes;
    return 0;
}

static unsigned read_all(const uint8_t *data, size_t size, const ign_segment_info *segment)
{
    memory_io m = {.io = {.size = memory_size, .read = memory_read}, .data = data, .size = size};
    ign_log_reader reader;
    ign_entry entry;
    unsigned found = 0;
    ign_log_reader_open(&reader, &m.io, 0, segment, segment->base, UINT64_MAX);
    for (;;) {
        int rc = ign_log_next(&reader, &entry);
        if (rc == IGN_E_CORRUPT)
            rc = ign_log_resync(&reader);
        else if (rc == IGN_OK)
            found++;
        if (rc != IGN_OK)
            break;
    }
    ign_log_reader_close(&reader);
    REQUIRE(m.read <= 8 * size + 4096); /* whatever it is, it is read a few times at most */
    return found;
}

static void sealed(const uint8_t *data, size_t size)
{
    enum { PARTS = 4 };
    size_t part = size / PARTS, step = (size_t)ign_entry_size(part);
    ign_segment_info segment = {.base = 64, .size = IGN_LOG_SECTOR + PARTS * step, .salt = data[0]};
    uint8_t *file = calloc(1, (size_t)segment.size);
    REQUIRE(file != NULL);
    for (size_t i = 0; i < PARTS; i++) {
        uint8_t *at = file + IGN_LOG_SECTOR + i * step;
        memcpy(at + IGN_ENTRY_HEADER, data + i * part, part);
        ign_entry_seal(at, (uint8_t)(1 + i), (uint32_t)part, segment.salt, segment.base + i * step, 0);
    }
    REQUIRE(read_all(file, (size_t)segment.size, &segment) == PARTS);
    size_t hit = (data[1] * 256u + data[2]) % (PARTS * step);
    file[IGN_LOG_SECTOR + hit] ^= data[3] != 0 ? data[3] : 1;
    bool padding = hit % step >= IGN_ENTRY_HEADER + part;
    REQUIRE(read_all(file, (size_t)segment.size, &segment) == (padding ? PARTS : PARTS - 1));
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ign_segment_info segment;
    if (size >= IGN_LOG_SECTOR && ign_segment_get_header(data, &segment) == IGN_OK && segment.size <= 1 << 20)
        read_all(data, size, &segment);
    ign_segment_info plain = {.base = 0, .size = size + IGN_LOG_SECTOR + 64, .salt = 1};
    read_all(data, size, &plain);
    if (size >= 4)
        sealed(data, size);
    return 0;
}
