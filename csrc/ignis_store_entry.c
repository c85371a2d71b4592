/* Pieces that the payloads of several entries are made of. */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <string.h>

/* Bytes at the end of a field that is filled up to a multiple of 8. */
uint8_t *ign_put_padded(uint8_t *to, const void *from, uint64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
    memset(to + bytes, 0, (size_t)(ign_pad8(bytes) - bytes));
    return to + ign_pad8(bytes);
}

uint8_t *ign_put_run(uint8_t *to, uint16_t shard, uint64_t first, uint64_t last)
{
    memset(to, 0, 8);
    ign_put16(to, shard);
    ign_put64(to + 8, first);
    ign_put64(to + 16, last);
    return to + IGN_RUN_BYTES;
}

bool ign_owner_fits(const char *owner)
{
    return owner[0] != 0 && strlen(owner) <= IGN_STORE_OWNER_BYTES;
}

uint64_t ign_claim_bytes(const char *owner, uint32_t runs)
{
    return 24 + ign_pad8(strlen(owner)) + (uint64_t)runs * IGN_RUN_BYTES;
}

/* All but the runs. */
uint8_t *ign_claim_put(uint8_t *to, uint32_t magazine, const char *owner, uint64_t ms, uint32_t runs)
{
    size_t bytes = strlen(owner);
    memset(to, 0, 24);
    ign_put32(to, magazine);
    ign_put16(to + 4, (uint16_t)bytes);
    ign_put64(to + 8, ms);
    ign_put32(to + 16, runs);
    return ign_put_padded(to + 24, owner, bytes);
}

bool ign_as_expected(ign_ctl *ctl, const ign_store_change *change)
{
    uint64_t found = ign_map_find(ctl, IGN_KEY_VALUE, change->key, change->key_bytes);
    if (change->expected == NULL)
        return change->expected_bytes == UINT32_MAX || found == 0;
    ign_record_of *record = ign_ctl_at(ctl, found);
    return found != 0 && IGN_VALUE_BYTES(record) == change->expected_bytes &&
           memcmp(ign_record_value(record), change->expected, change->expected_bytes) == 0;
}
