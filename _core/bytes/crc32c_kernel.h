/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78), as defined in RFC 3720 appendix B.4, in up
 * to four forms. All tables and constants are computed from the polynomial at startup.
 *
 * table:       slicing by eight: eight bytes a step, on any processor.
 * instruction: SSE4.2's crc32. Three independent streams hide its latency. Their remainders are
 *              combined by multiplying with x^(8*LANE), which is linear algebra over GF(2).
 * 256, 512:    carry-less multiplication folds 16 bytes onto the 16 bytes that lie D bits later:
 *              their product with x^D mod P is congruent to them (Gopal and others, "Fast CRC
 *              Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). A
 *              step folds two or four times 16 bytes. Four accumulators hide the latency. */
#ifndef LATERMQ_CRC32C_KERNEL_H
#define LATERMQ_CRC32C_KERNEL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u
#define CRC32C_LANE 1024 /* bytes per stream and round */

/* Extends `crc`, without the inversions before and after. */
typedef uint32_t crc32c_form(uint32_t crc, const uint8_t *p, size_t n);

enum { CRC32C_TABLE, CRC32C_INSTRUCTION, CRC32C_256, CRC32C_512, CRC32C_FORM_COUNT };
static crc32c_form *crc32c_forms[CRC32C_FORM_COUNT]; /* NULL: not supported by this processor */
static crc32c_form *crc32c_fastest;

static uint32_t crc32c_table[8][256];
static uint32_t crc32c_shift[4][256]; /* appends CRC32C_LANE zero bytes */

static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = __builtin_bswap32(low);
        high = __builtin_bswap32(high);
#endif
        low ^= crc;
        crc = crc32c_table[7][low & 0xFF] ^ crc32c_table[6][(low >> 8) & 0xFF] ^
              crc32c_table[5][(low >> 16) & 0xFF] ^ crc32c_table[4][low >> 24] ^
              crc32c_table[3][high & 0xFF] ^ crc32c_table[2][(high >> 8) & 0xFF] ^
              crc32c_table[1][(high >> 16) & 0xFF] ^ crc32c_table[0][high >> 24];
        p += 8;
        n -= 8;
    }
    while (n--) crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

static uint32_t crc32c_append_lane(uint32_t crc) {
    return crc32c_shift[0][crc & 0xFF] ^ crc32c_shift[1][(crc >> 8) & 0xFF] ^
           crc32c_shift[2][(crc >> 16) & 0xFF] ^ crc32c_shift[3][crc >> 24];
}

__attribute__((target("sse4.2")))
static uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t a = crc, word;
    while (n >= 3 * CRC32C_LANE) {
        uint64_t b = 0, c = 0, word_b, word_c;
        for (size_t i = 0; i < CRC32C_LANE; i += 8) {
            memcpy(&word, p + i, 8);
            memcpy(&word_b, p + CRC32C_LANE + i, 8);
            memcpy(&word_c, p + 2 * CRC32C_LANE + i, 8);
            a = _mm_crc32_u64(a, word);
            b = _mm_crc32_u64(b, word_b);
            c = _mm_crc32_u64(c, word_c);
        }
        a = crc32c_append_lane((uint32_t)a) ^ (uint32_t)b;
        a = crc32c_append_lane((uint32_t)a) ^ (uint32_t)c;
        p += 3 * CRC32C_LANE;
        n -= 3 * CRC32C_LANE;
    }
    while (n >= 8) {
        memcpy(&word, p, 8);
        a = _mm_crc32_u64(a, word);
        p += 8;
        n -= 8;
    }
    crc = (uint32_t)a;
    while (n--) crc = _mm_crc32_u8(crc, *p++);
    return crc;
}

/* Factors that fold by D bits: x^(D+32) mod P for the first 8 bytes, x^(D-32) mod P for the other
 * 8. Both are reflected and shifted left by one bit, because a reflected product is one bit too far
 * to the right. */
enum { CRC32C_BY_2048, CRC32C_BY_1024, CRC32C_BY_512, CRC32C_BY_256, CRC32C_BY_128 };
static uint64_t crc32c_fold[5][2];

static uint64_t crc32c_power(int n) {
    uint32_t crc = 0x80000000u; /* x^0 */
    while (n--) crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
    return (uint64_t)crc << 1;
}

#define CRC32C_FACTORS(by) _mm_loadu_si128((const __m128i *)crc32c_fold[by])
#define CRC32C_LOAD_256(p) _mm256_loadu_si256((const __m256i *)(p))
#define CRC32C_LOAD_512(p) _mm512_loadu_si512(p)
#define CRC32C_FOLD_128(x, by, onto)                              \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00),     \
                                _mm_clmulepi64_si128(x, by, 0x11)), onto)
#define CRC32C_FOLD_256(x, by, onto)                                            \
    _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(x, by, 0x00),    \
                                      _mm256_clmulepi64_epi128(x, by, 0x11)), onto)
#define CRC32C_FOLD_512(x, by, onto)                                            \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00),            \
                              _mm512_clmulepi64_epi128(x, by, 0x11), onto, 0x96)

/* Reduces the 16 bytes that folding leaves, then appends the rest of the input. */
__attribute__((target("sse4.2,pclmul")))
static uint32_t crc32c_finish(__m128i x, const uint8_t *p, size_t n) {
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(x, 1));
    return crc32c_by_instruction((uint32_t)crc, p, n);
}

__attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))
static uint32_t crc32c_by_256(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 128) return crc32c_by_instruction(crc, p, n);
    __m256i by = _mm256_broadcastsi128_si256(CRC32C_FACTORS(CRC32C_BY_1024));
    __m256i a = CRC32C_LOAD_256(p), b = CRC32C_LOAD_256(p + 32);
    __m256i c = CRC32C_LOAD_256(p + 64), d = CRC32C_LOAD_256(p + 96);
    a = _mm256_xor_si256(a, _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)crc));
    for (p += 128, n -= 128; n >= 128; p += 128, n -= 128) {
        a = CRC32C_FOLD_256(a, by, CRC32C_LOAD_256(p));
        b = CRC32C_FOLD_256(b, by, CRC32C_LOAD_256(p + 32));
        c = CRC32C_FOLD_256(c, by, CRC32C_LOAD_256(p + 64));
        d = CRC32C_FOLD_256(d, by, CRC32C_LOAD_256(p + 96));
    }
    by = _mm256_broadcastsi128_si256(CRC32C_FACTORS(CRC32C_BY_256));
    b = CRC32C_FOLD_256(a, by, b);
    c = CRC32C_FOLD_256(b, by, c);
    d = CRC32C_FOLD_256(c, by, d);
    return crc32c_finish(
        CRC32C_FOLD_128(_mm256_castsi256_si128(d), CRC32C_FACTORS(CRC32C_BY_128),
                        _mm256_extracti128_si256(d, 1)), p, n);
}

__attribute__((target("sse4.2,pclmul,avx2,avx512f,vpclmulqdq")))
static uint32_t crc32c_by_512(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 256) return crc32c_by_256(crc, p, n);
    __m512i by = _mm512_broadcast_i32x4(CRC32C_FACTORS(CRC32C_BY_2048));
    __m512i a = CRC32C_LOAD_512(p), b = CRC32C_LOAD_512(p + 64);
    __m512i c = CRC32C_LOAD_512(p + 128), d = CRC32C_LOAD_512(p + 192);
    __m128i x, by_128 = CRC32C_FACTORS(CRC32C_BY_128);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = CRC32C_FOLD_512(a, by, CRC32C_LOAD_512(p));
        b = CRC32C_FOLD_512(b, by, CRC32C_LOAD_512(p + 64));
        c = CRC32C_FOLD_512(c, by, CRC32C_LOAD_512(p + 128));
        d = CRC32C_FOLD_512(d, by, CRC32C_LOAD_512(p + 192));
    }
    by = _mm512_broadcast_i32x4(CRC32C_FACTORS(CRC32C_BY_512));
    b = CRC32C_FOLD_512(a, by, b);
    c = CRC32C_FOLD_512(b, by, c);
    d = CRC32C_FOLD_512(c, by, d);
    x = CRC32C_FOLD_128(_mm512_castsi512_si128(d), by_128, _mm512_extracti32x4_epi32(d, 1));
    x = CRC32C_FOLD_128(x, by_128, _mm512_extracti32x4_epi32(d, 2));
    x = CRC32C_FOLD_128(x, by_128, _mm512_extracti32x4_epi32(d, 3));
    return crc32c_finish(x, p, n);
}

static void crc32c_setup_x86(void) {
    static const uint8_t zeros[CRC32C_LANE];
    for (int k = 0; k < 4; k++)
        for (uint32_t i = 0; i < 256; i++)
            crc32c_shift[k][i] = crc32c_by_table(i << (8 * k), zeros, CRC32C_LANE);
    for (int k = 0; k < 5; k++) {
        crc32c_fold[k][0] = crc32c_power((2048 >> k) + 32);
        crc32c_fold[k][1] = crc32c_power((2048 >> k) - 32);
    }
    if (!__builtin_cpu_supports("sse4.2")) return;
    crc32c_forms[CRC32C_INSTRUCTION] = crc32c_by_instruction;
    if (!__builtin_cpu_supports("vpclmulqdq") || !__builtin_cpu_supports("avx2")) return;
    crc32c_forms[CRC32C_256] = crc32c_by_256;
    if (__builtin_cpu_supports("avx512f")) crc32c_forms[CRC32C_512] = crc32c_by_512;
}
#endif

static void crc32c_setup(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc32c_table[k][i] =
                (crc32c_table[k - 1][i] >> 8) ^ crc32c_table[0][crc32c_table[k - 1][i] & 0xFF];
    crc32c_forms[CRC32C_TABLE] = crc32c_by_table;
#if defined(__x86_64__)
    crc32c_setup_x86();
#endif
    for (int k = 0; k < CRC32C_FORM_COUNT; k++)
        if (crc32c_forms[k]) crc32c_fastest = crc32c_forms[k];
}
#endif
