/* CRC32C (Castagnoli, RFC 3720 appendix B.4): the processor's instruction where there is one, else tables.
 *
 * Both give the same value for the same bytes on every machine: the value is part of the stored format.
 */
#include "ignis_record.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* -- portable ------------------------------------------------------------------------------------------------ */

/* The CRC is linear over XOR, so entry i of a table is the XOR of the entries of the bits of i. Eight constants a
 * table are written down and the compiler makes the other 248: nothing is filled in at run time, so there is no
 * first use to guard. TABLES[k][i] is byte i followed by k zero bytes. */
#define BIT(i, n, value) (((i) >> (n) & 1u) != 0 ? (value) : 0u)
#define ENTRY(i, a, b, c, d, e, f, g, h)                                                          \
    (BIT(i, 0, a) ^ BIT(i, 1, b) ^ BIT(i, 2, c) ^ BIT(i, 3, d) ^ BIT(i, 4, e) ^ BIT(i, 5, f) ^    \
     BIT(i, 6, g) ^ BIT(i, 7, h))
#define FOUR(i, ...)                                                                              \
    ENTRY(i, __VA_ARGS__), ENTRY((i) + 1u, __VA_ARGS__), ENTRY((i) + 2u, __VA_ARGS__), ENTRY((i) + 3u, __VA_ARGS__)
#define SIXTEEN(i, ...)                                                                           \
    FOUR(i, __VA_ARGS__), FOUR((i) + 4u, __VA_ARGS__), FOUR((i) + 8u, __VA_ARGS__), FOUR((i) + 12u, __VA_ARGS__)
#define SIXTY_FOUR(i, ...)                                                                        \
    SIXTEEN(i, __VA_ARGS__), SIXTEEN((i) + 16u, __VA_ARGS__), SIXTEEN((i) + 32u, __VA_ARGS__),    \
        SIXTEEN((i) + 48u, __VA_ARGS__)
#define TABLE(...)                                                                                \
    { SIXTY_FOUR(0u, __VA_ARGS__), SIXTY_FOUR(64u, __VA_ARGS__), SIXTY_FOUR(128u, __VA_ARGS__),   \
      SIXTY_FOUR(192u, __VA_ARGS__) }

static const uint32_t TABLES[8][256] = {
    TABLE(0xF26B8303u, 0xE13B70F7u, 0xC79A971Fu, 0x8AD958CFu, 0x105EC76Fu, 0x20BD8EDEu, 0x417B1DBCu, 0x82F63B78u),
    TABLE(0x13A29877u, 0x274530EEu, 0x4E8A61DCu, 0x9D14C3B8u, 0x3FC5F181u, 0x7F8BE302u, 0xFF17C604u, 0xFBC3FAF9u),
    TABLE(0xA541927Eu, 0x4F6F520Du, 0x9EDEA41Au, 0x38513EC5u, 0x70A27D8Au, 0xE144FB14u, 0xC76580D9u, 0x8B277743u),
    TABLE(0xDD45AAB8u, 0xBF672381u, 0x7B2231F3u, 0xF64463E6u, 0xE964B13Du, 0xD725148Bu, 0xABA65FE7u, 0x52A0C93Fu),
    TABLE(0x38116FACu, 0x7022DF58u, 0xE045BEB0u, 0xC5670B91u, 0x8F2261D3u, 0x1BA8B557u, 0x37516AAEu, 0x6EA2D55Cu),
    TABLE(0xEF306B19u, 0xDB8CA0C3u, 0xB2F53777u, 0x6006181Fu, 0xC00C303Eu, 0x85F4168Du, 0x0E045BEBu, 0x1C08B7D6u),
    TABLE(0x68032CC8u, 0xD0065990u, 0xA5E0C5D1u, 0x4E2DFD53u, 0x9C5BFAA6u, 0x3D5B83BDu, 0x7AB7077Au, 0xF56E0EF4u),
    TABLE(0x493C7D27u, 0x9278FA4Eu, 0x211D826Du, 0x423B04DAu, 0x847609B4u, 0x0D006599u, 0x1A00CB32u, 0x34019664u),
};

uint32_t ign_crc32c_portable(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t c = ~crc;

    /* Bytes, not words: the same on either byte order, and compilers fuse the loads where they may. */
    for (; len >= 8; len -= 8, p += 8) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = TABLES[7][c & 0xFFu] ^ TABLES[6][c >> 8 & 0xFFu] ^ TABLES[5][c >> 16 & 0xFFu] ^ TABLES[4][c >> 24] ^
            TABLES[3][p[4]] ^ TABLES[2][p[5]] ^ TABLES[1][p[6]] ^ TABLES[0][p[7]];
    }
    for (; len > 0; len--, p++)
        c = c >> 8 ^ TABLES[0][(c ^ *p) & 0xFFu];
    return ~c;
}

/* -- x86-64: SSE4.2, and PCLMULQDQ to join three streams --------------------------------------------------- */

#if defined(__x86_64__)

/* The instruction takes a new word every cycle and answers after three, so one stream uses a third of the machine.
 * From LANES * LANE_BYTES on three streams run side by side; joining them multiplies a stream's value by
 * x^(8 * bytes behind it), which is one carry-less product and one more step of the instruction. */
#define LANE_BYTES 256u
#define LANES 3u
#define SHIFT_ONE_LANE 0xB9E02B86 /* x^(8 * LANE_BYTES - 33) modulo the polynomial, bit-reflected */
#define SHIFT_TWO_LANES 0xDD7E3B0C /* the same for 2 * LANE_BYTES */

__attribute__((target("sse4.2"))) static inline uint64_t step8(uint64_t c, const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return _mm_crc32_u64(c, word);
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t c = ~crc;

    for (; len >= 8; len -= 8, p += 8)
        c = step8(c, p);
    uint32_t c32 = (uint32_t)c;
    if ((len & 4u) != 0) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        c32 = _mm_crc32_u32(c32, word);
        p += 4;
    }
    if ((len & 2u) != 0) {
        uint16_t word;
        memcpy(&word, p, sizeof word);
        c32 = _mm_crc32_u16(c32, word);
        p += 2;
    }
    if ((len & 1u) != 0)
        c32 = _mm_crc32_u8(c32, *p);
    return ~c32;
}

/* Three streams as below, but of pieces that have nothing to do with each other: nothing is joined. */
__attribute__((target("sse4.2"))) static void side_by_side_sse42(const uint8_t *p, const size_t *sizes, uint32_t *crcs)
{
    const uint8_t *q = p + sizes[0], *r = q + sizes[1];
    size_t least = sizes[0] < sizes[1] ? sizes[0] : sizes[1], i = 0;
    least = least < sizes[2] ? least : sizes[2];
    uint64_t a = UINT32_MAX, b = UINT32_MAX, c = UINT32_MAX;
    for (; i + 8 <= least; i += 8) {
        a = step8(a, p + i);
        b = step8(b, q + i);
        c = step8(c, r + i);
    }
    crcs[0] = crc32c_sse42(~(uint32_t)a, p + i, sizes[0] - i);
    crcs[1] = crc32c_sse42(~(uint32_t)b, q + i, sizes[1] - i);
    crcs[2] = crc32c_sse42(~(uint32_t)c, r + i, sizes[2] - i);
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t shifted(uint64_t c, long long factor)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)c), _mm_cvtsi64_si128(factor), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_lanes(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t a = ~crc;

    if (len < LANES * LANE_BYTES)
        return crc32c_sse42(crc, data, len);
    for (; len >= LANES * LANE_BYTES; len -= LANES * LANE_BYTES, p += LANES * LANE_BYTES) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            a = step8(a, p + i);
            b = step8(b, p + LANE_BYTES + i);
            c = step8(c, p + 2 * LANE_BYTES + i);
        }
        a = c ^ _mm_crc32_u64(0, shifted(a, SHIFT_TWO_LANES) ^ shifted(b, SHIFT_ONE_LANE));
    }
    return crc32c_sse42(~(uint32_t)a, p, len);
}

/* -- ARMv8: the CRC32 extension ----------------------------------------------------------------------------- */

#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* Inline assembly rather than <arm_acle.h>: whether the intrinsics exist without -march depends on the compiler's
 * version, and the rest of the build must not assume the extension. */
#define ARM_CRC(insn, c, word, form) \
    __asm__(".arch_extension crc\n\t" insn " %w0, %w0, %" form "1" : "+r"(c) : "r"(word))

static uint32_t crc32c_armv8(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t c = ~crc;

    for (; len >= 8; len -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        ARM_CRC("crc32cx", c, word, "x");
    }
    for (; len > 0; len--, p++)
        ARM_CRC("crc32cb", c, (uint32_t)*p, "w");
    return ~c;
}

#endif

/* -- dispatch ------------------------------------------------------------------------------------------------ */

typedef uint32_t crc32c_fn(uint32_t crc, const void *data, size_t len);

static crc32c_fn *choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return __builtin_cpu_supports("pclmul") ? crc32c_lanes : crc32c_sse42;
#elif defined(__aarch64__) && defined(__APPLE__)
    return crc32c_armv8; /* every 64-bit ARM Mac has it */
#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0)
        return crc32c_armv8;
#endif
    return ign_crc32c_portable;
}

static crc32c_fn *chosen(void)
{
    /* Relaxed is enough: the pointer is the whole message, what it points to is code, and threads that race here
     * store the same value. */
    static crc32c_fn *_Atomic kept;
    crc32c_fn *fn = atomic_load_explicit(&kept, memory_order_relaxed);

    if (fn == NULL) {
        fn = choose();
        atomic_store_explicit(&kept, fn, memory_order_relaxed);
    }
    return fn;
}

uint32_t ign_crc32c(uint32_t crc, const void *data, size_t len)
{
    return chosen()(crc, data, len);
}

void ign_crc32c_side_by_side(const void *data, const size_t sizes[IGN_CRC_SIDE_BY_SIDE], uint32_t crcs[IGN_CRC_SIDE_BY_SIDE])
{
    crc32c_fn *fn = chosen();
    const uint8_t *p = data;
#if defined(__x86_64__)
    /* A long piece is three streams by itself. */
    bool is_long = fn == crc32c_lanes && (sizes[0] | sizes[1] | sizes[2]) >= LANES * LANE_BYTES;
    if (fn != ign_crc32c_portable && !is_long) {
        side_by_side_sse42(p, sizes, crcs);
        return;
    }
#endif
    for (size_t i = 0; i < IGN_CRC_SIDE_BY_SIDE; p += sizes[i++])
        crcs[i] = fn(0, p, sizes[i]);
}
