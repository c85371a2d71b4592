/* Ids that a magazine knows until their hour is here: for each hour a table of pages that splits one page at a time.
 *
 * A page holds up to 63 ids whose hashes begin with the same bits, and says how many bits; the directory has a page for each value
 * of the first `depth` bits, so a page of fewer bits stands there several times, side by side. A page that is full is split
 * in two, and the directory doubled when it has no bit left. Where splitting does not help, pages hang one behind the other.
 * An id takes about 24 bytes. Ids go by pages when their hour is here; nobody looks at that hour any more.
 *
 * For whoever holds the writer's lock, within a transaction but for looking.
 */
#ifndef IGNIS_STORE_IDS_H
#define IGNIS_STORE_IDS_H

#include "ignis_store_control.h"

#define IGN_ID_BYTES 16u

/* Part of a magazine. */
typedef struct ign_ids {
    uint64_t hours, count, room; /* of hours that there are ids for */
    uint64_t floor;              /* hours up to here are over, whatever a clock says */
} ign_ids;

bool ign_ids_known(ign_ctl *ctl, const ign_ids *ids, uint32_t hour_now, const uint8_t *id);
/* Known until `hour`, or if that is over, the next hour. */
void ign_ids_add(ign_ctl *ctl, ign_ids *ids, uint32_t hour, const uint8_t *id);
bool ign_ids_over(ign_ctl *ctl, const ign_ids *ids, uint32_t hour_now); /* is there anything to forget? */
void ign_ids_forget(ign_ctl *ctl, ign_ids *ids, uint32_t hour_now, uint64_t limit);
void ign_ids_free(ign_ctl *ctl, ign_ids *ids);
/* The same ids in another state, which nobody else sees. */
void ign_ids_copy(ign_ctl *to, ign_ids *made, ign_ctl *from, const ign_ids *ids);

#endif
