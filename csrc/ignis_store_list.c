/* Listings, piece by piece: each takes the writer's lock for a bounded time. */
#include "ignis_store_parts.h"
void ign_store_abandon(ign_store *store) { (void)store; }
int ign_store_load_claimed(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const char *owner, uint64_t ms,
                           const ign_store_how *how, ign_store_mark *mark) { (void)store, (void)magazine, (void)parts, (void)count, (void)owner, (void)ms, (void)how, (void)mark; return IGN_E_INVALID; }
int ign_store_known_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, const uint8_t *ids, uint32_t count, bool *known) { (void)store, (void)magazine, (void)hour_now, (void)ids, (void)count, (void)known; return IGN_E_INVALID; }
int ign_store_load_once(ign_store *store, uint32_t magazine, ign_store_part *parts, uint16_t count, const uint8_t *ids,
                        uint32_t id_count, uint32_t forget_hour, uint32_t hour_now, const ign_store_how *how, ign_store_mark *mark) { (void)store, (void)magazine, (void)parts, (void)count, (void)ids, (void)id_count, (void)forget_hour, (void)hour_now, (void)how, (void)mark; return IGN_E_INVALID; }
int ign_store_forget_ids(ign_store *store, uint32_t magazine, uint32_t hour_now, uint32_t limit, const ign_store_how *how,
                         ign_store_mark *mark) { (void)store, (void)magazine, (void)hour_now, (void)limit, (void)how, (void)mark; return IGN_E_INVALID; }
int ign_store_expire(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t ms, uint64_t limit, uint64_t *expired,
                     const ign_store_how *how, ign_store_mark *mark) { (void)store, (void)magazine, (void)shard, (void)ms, (void)limit, (void)expired, (void)how, (void)mark; return IGN_E_INVALID; }
int ign_store_next_magazine(ign_store *store, uint32_t after, ign_store_magazine *found) { (void)store, (void)after, (void)found; return IGN_E_INVALID; }
int ign_store_claims(ign_store *store, uint32_t magazine, uint16_t shard, uint64_t from, ign_store_claimed *claims, uint32_t room,
                     uint32_t *count) { (void)store, (void)magazine, (void)shard, (void)from, (void)claims, (void)room, (void)count; return IGN_E_INVALID; }
int ign_store_next_keys(ign_store *store, const void *prefix, uint32_t prefix_bytes, ign_store_place *place, void *to, uint64_t room,
                        uint64_t *bytes) { (void)store, (void)prefix, (void)prefix_bytes, (void)place, (void)to, (void)room, (void)bytes; return IGN_E_INVALID; }
int ign_store_next_owners(ign_store *store, uint32_t magazine, ign_store_place *place, void *to, uint64_t room, uint64_t *bytes) { (void)store, (void)magazine, (void)place, (void)to, (void)room, (void)bytes; return IGN_E_INVALID; }
