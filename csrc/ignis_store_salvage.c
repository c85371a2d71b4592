#include "ignis_store_salvage_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <stdlib.h>
#include <string.h>

static uint64_t pad8(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* Does a LOAD with whole records begin there? */
static bool is_load(const uint8_t *payload, uint64_t bytes, uint64_t at)
{
    ign_segment segment;
    if (at > bytes || bytes - at < 8 + IGN_PART + IGN_SEGMENT_HEADER_BYTES)
        return false;
    const uint8_t *part = payload + at + 8;
    return ign_get32(part + 4) <= bytes - at - 8 - IGN_PART && ign_segment_open(part + IGN_PART, ign_get32(part + 4), &segment) == IGN_OK &&
           ign_batch_whole(&segment, ign_get32(payload + at), ign_get16(part), ign_get64(part + 8)) != 0;
}

/* Where the LOAD of a ONCE begins: behind as many ids as it says, or behind as many as there is a LOAD behind. */
static uint64_t behind_ids(uint8_t *payload, uint64_t bytes, bool *mended)
{
    uint64_t at = bytes < 16 ? UINT64_MAX : 16 + 16 * (uint64_t)ign_get32(payload + 4);
    if (at == UINT64_MAX || (at <= bytes && bytes - at >= 8 && ign_get32(payload + at) == ign_get32(payload)))
        return at;
    for (uint64_t found = 16; found < bytes; found += 16)
        if (is_load(payload, bytes, found)) {
            ign_put32(payload + 4, (uint32_t)((found - 16) / 16));
            *mended = *mended || found != at;
            return found;
        }
    return at;
}

/* Where the LOAD of a TRANSFER or CLAIMED ends: as it says, unless its parts, one behind the other, end elsewhere. */
static uint64_t wrapped_end(const ign_load_walk *l, const uint8_t *payload, uint64_t bytes)
{
    uint64_t said = pad8(ign_get32(payload)), at = l->at;
    bool fits = said <= bytes - 8 && 8 + said > at;
    for (uint32_t i = 0; i < l->parts; i++) {
        if (!ign_looks_like_part(l, payload, at))
            return fits ? 8 + said : bytes;
        at += IGN_PART + pad8(ign_get32(payload + at + 4));
    }
    return fits && 8 + said >= at ? 8 + said : at;
}

/* The flags of a LOAD whose parts end at `at`: only a TRANSFER reloads, and due times are where they hold. Times that do not hold are no longer
 * spoken of: all is due at once. Returns where it ends with them. */
static uint64_t mend_flags(uint8_t *load, uint64_t at, uint64_t end, bool reloads)
{
    uint16_t flags = ign_get16(load + 4), reload = reloads && (flags & ~(IGN_LOAD_RELOAD | IGN_LOAD_LATER)) == 0 ? flags & IGN_LOAD_RELOAD : 0;
    ign_put16(load + 4, reload | IGN_LOAD_LATER);
    uint32_t dues = ign_dues_count(load, end);
    if (dues != 0 && at + (uint64_t)dues * IGN_DUES_BYTES + IGN_DUES_END == end)
        return end;
    ign_put16(load + 4, reload);
    return at;
}

/* The payload as that type has it. IGN_OK | IGN_EMPTY: nothing in it holds | IGN_E_NOMEM. */
static int salvage_as(uint8_t type, uint8_t *payload, uint64_t bytes, bool header_holds, bool searches, ign_places *places, ign_salvaged *salvaged)
{
    bool wrapped = type == IGN_ENTRY_TRANSFER || type == IGN_ENTRY_CLAIMED;
    bool mended = !header_holds;
    uint64_t from = wrapped ? 8 : type == IGN_ENTRY_ONCE ? behind_ids(payload, bytes, &mended) : 0;
    uint64_t head = type == IGN_ENTRY_MOVE ? 24 : 8;
    if (from > bytes || bytes - from < head)
        return IGN_EMPTY;
    ign_load_walk l = {.magazine = payload + from, .at = from + head, .limit = bytes, .mended = mended, .typed = header_holds && type != IGN_ENTRY_MOVE,
              .moves = type == IGN_ENTRY_MOVE, .searches = searches && type != IGN_ENTRY_MOVE, .places = places,
              .parts = type == IGN_ENTRY_MOVE ? ign_get32(payload + 8) : ign_get16(payload + from + 6)};
    if (wrapped)
        l.limit = wrapped_end(&l, payload, bytes);
    ign_salvage_parts(&l, payload);
    if (l.rc != IGN_OK)
        return l.rc;
    *salvaged = (ign_salvaged){.damaged = l.salvaged.damaged};
    if (l.salvaged.whole == 0 && (l.unread == 0 || type == IGN_ENTRY_TRANSFER))
        return IGN_EMPTY; /* what was to be transferred stays where it was */
    if (type == IGN_ENTRY_MOVE && (l.lost != 0 || l.walked != l.parts))
        return IGN_EMPTY;
    if (type != IGN_ENTRY_MOVE)
        ign_put16(payload + from + 6, (uint16_t)l.walked);
    if (type == IGN_ENTRY_ONCE)
        memcpy(payload, payload + from, 4);
    *salvaged = l.salvaged;
    if (type != IGN_ENTRY_MOVE)
        l.at = mend_flags(payload + from, l.at - from, (wrapped ? l.limit : bytes) - from, type == IGN_ENTRY_TRANSFER) + from;
    if (wrapped) {
        l.mended = l.mended || ign_get32(payload) != l.at - 8;
        ign_put32(payload, (uint32_t)(l.at - 8));
        uint64_t runs = l.at + (type == IGN_ENTRY_CLAIMED ? 16 : 4);
        bool there = runs + 4 <= bytes;
        if (there && type == IGN_ENTRY_TRANSFER && (bytes - runs - 4) / IGN_RUN_BYTES >= ign_get32(payload + runs)) {
            salvaged->retires = payload + l.at;
            salvaged->runs = ign_get32(payload + runs);
        }
        if (there && (!l.mended || type == IGN_ENTRY_TRANSFER)) /* the damage is in the claim, or perhaps in what is retired */
            ign_put32(payload + runs, 0);
    }
    return IGN_OK;
}

static bool loads(uint8_t type)
{
    return type == IGN_ENTRY_LOAD || type == IGN_ENTRY_TRANSFER || type == IGN_ENTRY_CLAIMED || type == IGN_ENTRY_ONCE ||
           type == IGN_ENTRY_MOVE;
}

/* Each type in turn, and at last as a LOAD whose first parts are gone. */
static int salvage_any(uint8_t *bytes, uint64_t length, const uint8_t *kept, ign_places *places, uint8_t *found, ign_salvaged *salvaged)
{
    const uint8_t types[] = {bytes[8], IGN_ENTRY_LOAD, IGN_ENTRY_ONCE, IGN_ENTRY_CLAIMED, IGN_ENTRY_TRANSFER, IGN_ENTRY_MOVE, IGN_ENTRY_LOAD};
    int rc = IGN_EMPTY;
    for (unsigned i = 0; i < sizeof types && rc == IGN_EMPTY; i++) {
        bool last = i + 1 == sizeof types;
        ign_places tried;
        if (!loads(types[i]) || (i > 0 && types[i] == types[0] && !last))
            continue;
        rc = ign_places_copy(&tried, places);
        if (rc == IGN_OK)
            rc = salvage_as(types[i], bytes + IGN_ENTRY_HEADER, length - IGN_ENTRY_HEADER, false, last, &tried, salvaged);
        if (rc == IGN_OK) {
            ign_places was = *places;
            *places = tried;
            tried = was;
            *found = types[i];
        } else if (rc == IGN_EMPTY)
            memcpy(bytes, kept, (size_t)length);
        ign_places_free(&tried);
    }
    if (rc == IGN_EMPTY)
        *salvaged = (ign_salvaged){0};
    return rc;
}

int ign_entry_salvage(uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_places *places, ign_entry *entry, ign_salvaged *salvaged)
{
    uint64_t size = available, length;
    bool holds = ign_entry_header_holds(bytes, available, salt, position, &size);
    *salvaged = (ign_salvaged){0};
#ifdef IGN_MUTANT_NO_SALVAGE
    return IGN_EMPTY;
#endif
    length = holds ? ign_get32(bytes) : available;
    uint8_t type = available < IGN_ENTRY_HEADER ? 0 : bytes[8];
    if (length < IGN_ENTRY_HEADER || length > IGN_ENTRY_MAX || (holds && !loads(type)))
        return IGN_EMPTY;
    int rc;
    if (holds) {
        rc = salvage_as(type, bytes + IGN_ENTRY_HEADER, length - IGN_ENTRY_HEADER, true, true, places, salvaged);
        if (rc == IGN_EMPTY && type == IGN_ENTRY_MOVE)
            *salvaged = (ign_salvaged){0};
        if (rc == IGN_EMPTY && type == IGN_ENTRY_TRANSFER && length >= IGN_ENTRY_HEADER + 12) {
            *salvaged = (ign_salvaged){0}; /* it is where it was; pointers are left out */
            ign_places_forget(places, ign_get32(bytes + IGN_ENTRY_HEADER + 8));
        }
    } else {
        uint8_t *kept = malloc((size_t)length);
        if (kept == NULL)
            return IGN_E_NOMEM;
        memcpy(kept, bytes, (size_t)length);
        rc = salvage_any(bytes, length, kept, places, &type, salvaged);
        free(kept);
    }
    if (rc == IGN_OK)
        *entry = (ign_entry){.type = type, .position = position, .payload = bytes + IGN_ENTRY_HEADER,
                             .payload_bytes = (uint32_t)(length - IGN_ENTRY_HEADER), .next = position + size};
    return rc;
}
