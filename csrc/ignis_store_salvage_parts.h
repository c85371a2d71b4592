/* The parts of a damaged LOAD, one behind the other; a piece of ignis_store_salvage.h. */
#ifndef IGNIS_STORE_SALVAGE_PARTS_H
#define IGNIS_STORE_SALVAGE_PARTS_H

#include "ignis_store_salvage.h"

enum { IGN_PART = 16, IGN_PENDING = 64 };

typedef struct ign_load_walk {
    uint8_t *magazine; /* where its number stands */
    uint64_t at, limit; /* of the part, in the payload */
    bool mended, typed; /* `typed`: the header of the entry holds, and with it that this is a LOAD */
    bool moves, proven, searches; /* `proven`: the magazine; `searches`: parts may be looked for */
    ign_places *places;
    ign_salvaged salvaged;
    uint32_t parts, walked, lost, unread; /* `parts`: that there are said to be */
    uint64_t missing, tried;
    uint64_t pending[IGN_PENDING]; /* parts that are whole but for where they stood, up to here */
    uint32_t pending_count;
    int rc;
} ign_load_walk;

/* By its fields, which nothing vouches for. */
bool ign_looks_like_part(const ign_load_walk *walk, const uint8_t *payload, uint64_t at);
/* All parts that there are, up to `limit`. */
void ign_salvage_parts(ign_load_walk *walk, uint8_t *payload);

#endif
