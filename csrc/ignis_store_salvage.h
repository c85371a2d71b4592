/* What can still be read of an entry whose checksum does not hold.
 *
 * Each record has a checksum of its own, over its magazine, shard and pointer as well, so it can be told which of an entry's
 * records are what was written. They are looked for where the entry's type has them and nowhere else: a message may contain
 * whatever looks like a batch. What stands around them is mended where records show what it was:
 *
 *   the entry's header       when it does not hold: the entry reaches to the next one, and its type is tried
 *   magazine, shard, first   one wrong byte, what came next in a shard, or what stood right before a part that holds: when records hold there
 *   bytes of a batch         from the batch's own index, or up to the next part whose index and records hold
 *   count, index of a batch  from the bytes, and where the records end
 *   parts, bytes of a LOAD   by what there is
 *   number of ids            as many as a LOAD follows
 *
 * A part that is not found costs no other. How many records it had is told by its index, or by the pointers up to the next that is read.
 *
 * A part of which no record holds is kept as well when the headers of the entry and of the batch do: it is the records that were damaged.
 * Nothing vouches for its place then, so it is believed only where the state says that this place came next (`ign_state_apply`). Of
 * a TRANSFER nothing is kept when no record at all holds: what it was to move is still where it was.
 *
 * What has no checksum of its own beside the records: a claim is believed only when the damage was found elsewhere, and a retirement never.
 * So what a damaged TRANSFER was to move stays where it is. Where all of it is there, nothing is taken of the TRANSFER, as it could be the worse
 * copy; else both stand.
 * Ids are taken as they stand. Records that do not hold stay in the batch: whoever reads them is told.
 */
#ifndef IGNIS_STORE_SALVAGE_H
#define IGNIS_STORE_SALVAGE_H

#include "ignis_record.h"
#include "ignis_store_places.h"

#define IGN_SHARD_LOST 0xffffu /* of a part of a LOAD in which nothing holds */
#define IGN_PART_UNREAD 1u     /* behind the shard, of a part whose records all do not hold: it counts only if its pointers come next */

typedef struct ign_salvaged {
    uint64_t whole, damaged; /* records */
    const uint8_t *retires;  /* of a TRANSFER, in the payload: what it was to retire, as it stands; NULL: there is nothing */
    uint32_t runs;           /* ... so many of them */
} ign_salvaged;

/* Index and header of a batch are made to fit its records. How many of these hold; *count: of how many. 0: nothing does, and the batch is
 * not to be used. */
uint32_t ign_batch_mend(uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t *count);

/* Is this the header of an entry, and how long is it? */
bool ign_entry_header_holds(const uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, uint64_t *size);

/* As many records as end where a batch of that size ends; 0: none do. And, failing that, as many as it says. */
uint32_t ign_batch_ends(const uint8_t *batch, uint64_t bytes);
uint32_t ign_batch_count(const uint8_t *batch, uint32_t bytes);
uint32_t ign_batch_whole(const ign_segment *segment, uint32_t magazine, uint16_t shard, uint64_t first); /* how many records hold */
uint32_t ign_check_of(uint32_t magazine, uint16_t shard, uint64_t pointer, uint32_t crc); /* of a record with that checksum */

/* Do records of a batch hold when its first one stands there? */
bool ign_part_stood_at(const uint8_t *batch, uint32_t bytes, uint32_t magazine, uint16_t shard, uint64_t first);

/* Bytes that begin as an entry at `position` did; `places` are those before it, and then those behind it. IGN_OK: mended in place, *entry is
 * what to apply, *salvaged what it has. IGN_EMPTY: it loaded nothing, or nothing of that holds; how many damaged records it had, as far as that
 * can be told, is in *salvaged. IGN_E_NOMEM. */
int ign_entry_salvage(uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_places *places, ign_entry *entry,
                      ign_salvaged *salvaged);

#endif
