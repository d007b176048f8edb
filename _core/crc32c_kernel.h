/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78), as RFC 3720 appendix B.4 defines it.
 *
 * With SSE4.2 three independent streams hide the latency of the crc32 instruction; their remainders
 * are joined by multiplying with x^(8*LANE) through tables, which is linear algebra over GF(2) and
 * therefore computed at start from the plain table-driven form. Elsewhere the table-driven form
 * (eight bytes a step) serves alone. */
#ifndef LATERMQ_CRC32C_KERNEL_H
#define LATERMQ_CRC32C_KERNEL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u
#define CRC32C_LANE 1024 /* bytes of each of the three streams of one round */

static uint32_t crc32c_table[8][256];
static uint32_t crc32c_shift[4][256]; /* appends CRC32C_LANE zero bytes */
static int crc32c_has_hardware;

static uint32_t crc32c_software(uint32_t crc, const uint8_t *p, size_t n) {
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

static uint32_t crc32c_append_lane(uint32_t crc) {
    return crc32c_shift[0][crc & 0xFF] ^ crc32c_shift[1][(crc >> 8) & 0xFF] ^
           crc32c_shift[2][(crc >> 16) & 0xFF] ^ crc32c_shift[3][crc >> 24];
}

#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2")))
static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) {
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
#else
#define crc32c_hardware crc32c_software
#endif

static void crc32c_setup(void) {
    static const uint8_t zeros[CRC32C_LANE];
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc32c_table[k][i] =
                (crc32c_table[k - 1][i] >> 8) ^ crc32c_table[0][crc32c_table[k - 1][i] & 0xFF];
    for (int k = 0; k < 4; k++)
        for (uint32_t i = 0; i < 256; i++)
            crc32c_shift[k][i] = crc32c_software(i << (8 * k), zeros, CRC32C_LANE);
#if defined(__x86_64__)
    crc32c_has_hardware = __builtin_cpu_supports("sse4.2");
#endif
}

/* Continues `crc`, a finished CRC32C (0 to begin), over n bytes. */
static uint32_t crc32c_extend(uint32_t crc, const void *p, size_t n) {
    crc = ~crc;
    crc = crc32c_has_hardware ? crc32c_hardware(crc, (const uint8_t *)p, n)
                              : crc32c_software(crc, (const uint8_t *)p, n);
    return ~crc;
}
#endif
