/* Receives what gcc's -fsanitize-coverage=trace-pc reports of each branch taken.

   A map of counters, one for each pair of successive places in the code (as AFL does), and the
   union of what all cases reached so far. Preloaded into the process that fuzzes; the sanitized
   modules call the first function here, tests/system/fuzz/branch_trace.py the others. One thread.
   */

#include <stdint.h>
#include <string.h>

#define PLACES (1 << 16)

static uint8_t counts[PLACES];
static uint8_t reached[PLACES];
static uintptr_t last;

void __sanitizer_cov_trace_pc(void) {
    /* Functions are aligned, so the lowest bits tell little: mix. */
    uintptr_t here = (uintptr_t)__builtin_return_address(0) * 0x9E3779B97F4A7C15u >> 40;
    uint8_t *count = &counts[(here ^ last) & (PLACES - 1)];
    if (*count < 255)
        ++*count;
    last = here >> 1;
}

/* Forget what the last case did. */
void branch_trace_begin(void) {
    memset(counts, 0, sizeof counts);
    last = 0;
}

/* Add the last case to what was reached; how many places it reached first, or by far more often. */
int branch_trace_end(void) {
    int found = 0;
    for (int i = 0; i < PLACES; ++i) {
        if (!counts[i])
            continue;
        /* 1, 2, 3-4, 5-8, ...: how often matters by its magnitude. */
        uint8_t bit = (uint8_t)(1u << (31 - __builtin_clz(counts[i])));
        if (!(reached[i] & bit)) {
            reached[i] |= bit;
            ++found;
        }
    }
    return found;
}

/* How many places were reached by any case. */
int branch_trace_total(void) {
    int total = 0;
    for (int i = 0; i < PLACES; ++i)
        total += reached[i] != 0;
    return total;
}

/* Read one byte: a test names one that must not be read. */
int branch_trace_peek(const uint8_t *p, int index) {
    return p[index];
}
