/* What a MessagePack value may not hold if a stranger chose it: map keys whose hashes can be made equal.
 *
 * A decoder without a type makes a dict of a map. Text and bytes are hashed with a secret of the process. Arrays (tuples there),
 * maps, floats and extensions are not: a few thousand keys of one hash make the dict take seconds, and no other thread runs
 * meanwhile. Integers have no secret either, so a map may have only so many of 16 bits or more. Smaller ones are too few to be chosen
 * from. Nil and booleans are three keys at most.
 *
 * The bytes are walked once, in the order in which a decoder makes objects of them. Where they are cut short or are no
 * MessagePack the walk ends, as the decoder does there. So what the decoder makes before that place was looked at.
 *
 * A pure function: no allocation, no globals. Thread-safe.
 */
#ifndef IGNIS_PACK_H
#define IGNIS_PACK_H

#include <stddef.h>
#include <stdint.h>

#define IGN_PACK_MAX_DEPTH 256u

typedef struct ign_pack_found {
    size_t at;       /* where it stands */
    uint8_t byte;    /* the first of it */
} ign_pack_found;

/* IGN_OK: there is nothing of the kind. Else *found says where the first one is: IGN_E_INVALID, a key of such a type;
 * IGN_E_TOO_LARGE, a map's key of 16 bits or more behind `max_integers` others; IGN_FULL, more than IGN_PACK_MAX_DEPTH arrays and maps in
 * one another. */
int ign_pack_check(const uint8_t *src, size_t len, uint32_t max_integers, ign_pack_found *found);

/* "array", "map", "float", "extension", and for other bytes "value": a static string. */
const char *ign_pack_kind(uint8_t byte);

#endif
