/* Fuzz target: a region made of arbitrary bytes, opened and used from both sides.
 *
 * The input overwrites a good region: first a list of (offset, byte) patches for the header, then whatever is left is
 * laid over the rings and slot words. Whatever the other side wrote, a call answers with a code and touches nothing
 * outside the mapping.
 */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ignis_channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

static ign_region_config tiny(void)
{
    return (ign_region_config){.ring_capacity = 8, .bytering_bytes = 2048, .max_message_bytes = 200, .class_count = 2,
                               .slot_bytes = {64, 256}, .slot_counts = {6, 2}};
}

static volatile uint8_t sink;

static void use_as_consumer(ign_channel *c)
{
    for (int i = 0; i < 40; i++) {
        const ign_message *m;
        uint32_t got;
        if (ign_channel_peek(c, &m, &got) != IGN_OK)
            break;
        uint32_t slot = m->slot, generation = m->generation;
        for (uint32_t b = 0; b < m->length; b++)
            sink = m->bytes[b];
        ign_channel_advance(c, 1);
        ign_channel_give_back(c, slot, generation);
    }
    (void)ign_channel_depth(c);
}

static void use_as_producer(ign_channel *c)
{
    for (size_t i = 0; i < 40; i++) {
        ign_slab_ref ref;
        uint8_t *at;
        if (ign_channel_reserve(c, i * 5, &ref, &at) != IGN_OK)
            break;
        memset(at, (int)i, i * 5);
        if (i % 5 == 4) {
            ign_channel_abort(c, &ref);
            continue;
        }
        ign_channel_stage(c, &ref, (uint16_t)i);
        ign_channel_publish(c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ign_channel *c;
    if (c == NULL)
        c = aligned_alloc(IGN_LINE_BYTES, sizeof *c);
    if (size < 2)
        return 0;
    ign_role role = data[0] % 2 == 0 ? IGN_CONSUMER : IGN_PRODUCER;
    size_t patches = data[1] % 8;
    data += 2, size -= 2;

    ign_region_config config = tiny();
    ign_region region, checked;
    REQUIRE(ign_region_heap(&region, &config) == IGN_OK);
    uint8_t *memory = (uint8_t *)region.header;
    for (; patches > 0 && size >= 3; patches--, data += 3, size -= 3)
        memory[((size_t)data[0] << 8 | data[1]) % 512] = data[2];
    int rc = ign_region_check_header(&checked, region.header, region.bytes);
    if (rc == IGN_OK) {
        /* What passes has exactly this file's size, so every part lies inside. */
        REQUIRE(checked.bytes == region.bytes && checked.data_offset + checked.table.data_bytes <= region.bytes);
        checked.header = region.header;
        checked.fork_generation = region.fork_generation;
        memset(&checked.header->owners, 0, sizeof checked.header->owners);
        size_t room = (size_t)checked.data_offset - IGN_REGION_HEADER_BYTES;
        memcpy(memory + IGN_REGION_HEADER_BYTES, data, size < room ? size : room);
        if (ign_channel_adopt(c, &checked, role) == IGN_OK) {
            if (role == IGN_CONSUMER)
                use_as_consumer(c);
            else
                use_as_producer(c);
            ign_channel_close(c); /* unmaps the region's memory */
            return 0;
        }
    } else {
        REQUIRE(rc == IGN_E_MAGIC || rc == IGN_E_VERSION || rc == IGN_E_SIZE || rc == IGN_E_TRUNCATED);
    }
    ign_region_close(&region);
    return 0;
}
