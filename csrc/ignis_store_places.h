/* The pointer that comes next in each shard, as a log is read: where a damaged LOAD must have stood, and how many messages went where the
 * next one stands further on. No place is known of what nothing was read of. Not thread-safe. */
#ifndef IGNIS_STORE_PLACES_H
#define IGNIS_STORE_PLACES_H

#include "ignis_store_state.h"

typedef struct ign_place {
    uint32_t magazine;
    uint16_t shard;
    uint64_t next; /* 0: not known any more */
} ign_place;

typedef struct ign_places {
    ign_place *all; /* by magazine and shard */
    uint64_t count, room;
    uint64_t unplaced; /* damaged records that were counted, and stand nowhere: what goes missing later may be these */
} ign_places;

void ign_places_free(ign_places *places);
/* IGN_OK | IGN_E_NOMEM, as below. */
int ign_places_copy(ign_places *to, const ign_places *from);
int ign_places_of_state(ign_places *places, ign_ctl *ctl);
/* What comes next in a magazine is not known any more; in none, when there is no such magazine. */
void ign_places_forget(ign_places *places, uint32_t magazine);
ign_place *ign_places_find(const ign_places *places, uint32_t magazine, uint16_t shard); /* NULL: not known */

/* So many records stand there. *missing grows by those that went before them and were not counted yet. */
int ign_places_take(ign_places *places, uint32_t magazine, uint16_t shard, uint64_t first, uint32_t count, uint64_t *missing);
/* An entry that is whole. */
int ign_places_see(ign_places *places, uint8_t type, const uint8_t *payload, uint64_t bytes, uint64_t *missing);

#endif
