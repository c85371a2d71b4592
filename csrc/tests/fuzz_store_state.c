/* Fuzz target: arbitrary bytes as entries that are applied to the store's state.
 *
 * An entry with a good checksum was written by this code, so what is looked for is a write outside the state by one that was
 * not: by a program with another idea of the format. Whatever comes in, the arena's blocks are all that is touched.
 */
#include "../ignis_store_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROOM = 1 << 20 };

static uint8_t *memory;

static int no_file(ign_store_io *io, const char *name, bool create, int *file)
{
    (void)io, (void)name, (void)create;
    *file = 1;
    return 0;
}

static int all_room(ign_store_io *io, int file, uint64_t bytes)
{
    (void)io, (void)file;
    return bytes <= ROOM ? 0 : ENOSPC;
}

static int one_map(ign_store_io *io, int file, uint64_t reserve, void **to)
{
    (void)io, (void)file, (void)reserve;
    *to = memory;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ign_store_io io = {.open = no_file, .allocate = all_room, .map = one_map};
    ign_ctl ctl;
    memory = calloc(1, ROOM);
    if (memory == NULL || ign_ctl_create(&ctl, &io, "fuzz", ROOM, 16, 4096) != 0)
        abort();
    ign_state_add_segment(&ctl, &(ign_segment_info){.size = 1 << 20});
    /* A magazine is there, and its later one, so that less has to be guessed. */
    static const uint8_t declared[40] = {[3] = 1, [5] = 2, [15] = 1, [27] = 1, [32] = 'm'};
    uint64_t position = 0;
    ign_ctl_begin(&ctl);
    ign_state_apply(&ctl, &(ign_entry){.type = IGN_ENTRY_CATALOGUE, .payload = declared, .payload_bytes = sizeof declared});
    ign_ctl_commit(&ctl, 0);
    static const uint8_t later[40] = {[3] = 2, [5] = 2, [7] = IGN_CATALOGUE_LATER, [15] = 1, [27] = 1, [31] = 1, [32] = 'l'};
    ign_ctl_begin(&ctl);
    ign_state_apply(&ctl, &(ign_entry){.type = IGN_ENTRY_CATALOGUE, .payload = later, .payload_bytes = sizeof later});
    ign_ctl_commit(&ctl, 0);
    if (ign_state_magazine(&ctl, 1) == NULL || ign_state_magazine(&ctl, 2) == NULL)
        abort();
    while (size >= 2) {
        uint8_t type = data[0] % (IGN_ENTRY_TYPES + 1);
        size_t bytes = data[1] * 4u < size - 2 ? data[1] * 4u : size - 2;
        ign_entry entry = {.type = type, .position = position, .payload = data + 2, .payload_bytes = (uint32_t)bytes,
                           .next = position + ign_entry_size(bytes)};
        ign_ctl_begin(&ctl);
        int rc = ign_state_apply(&ctl, &entry);
        ign_ctl_commit(&ctl, entry.next);
        if (rc == IGN_E_NO_ROOM || ctl.no_room)
            break; /* the state is not to be used */
        position = entry.next;
        data += 2 + bytes;
        size -= 2 + bytes;
    }
    free(memory);
    return 0;
}
