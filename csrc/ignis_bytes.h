/* Big-endian numbers in memory. Shifts of single bytes, not pointer casts: right at any alignment and on either byte
 * order; compilers make one load or store and one swap of them. */
#ifndef IGNIS_BYTES_H
#define IGNIS_BYTES_H

#include <stdint.h>

static inline uint16_t ign_get16(const uint8_t *p)
{
    return (uint16_t)((uint32_t)p[0] << 8 | p[1]);
}

static inline uint32_t ign_get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t ign_get64(const uint8_t *p)
{
    return (uint64_t)ign_get32(p) << 32 | ign_get32(p + 4);
}

static inline void ign_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void ign_put32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static inline void ign_put64(uint8_t *p, uint64_t v)
{
    ign_put32(p, (uint32_t)(v >> 32));
    ign_put32(p + 4, (uint32_t)v);
}

#endif
